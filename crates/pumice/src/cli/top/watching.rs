//! The drives that are watched, and their figures over time.

use std::collections::VecDeque;

use anyhow::Result;

use super::source::{Asker, Source};
use crate::watch::{Rates, Snapshot};

/// Rates kept for the graphs: more than a terminal is wide.
const HISTORY: usize = 512;

/// Watched drives, and their sources.
pub(super) struct Watching {
    asker: Asker,
    pub(super) sources: Vec<Source>,
    pub(super) drives: Vec<Watched>,
}

/// A watched drive.
pub(super) struct Watched {
    /// Index of its source.
    pub(super) source: usize,
    /// Its path, or its name on the server.
    pub(super) name: String,
    /// The latest snapshot, of this drive alone; none while its source does not answer.
    pub(super) now: Option<Snapshot>,
    /// Rates from one snapshot to the next, the newest last.
    pub(super) rates: VecDeque<Rates>,
}

impl Watching {
    /// Takes the first samples; every source must answer.
    ///
    /// # Errors
    /// Errors of [`Asker::ask`].
    pub(super) fn start(asker: Asker, sources: &[Source]) -> Result<Self> {
        let mut watching = Self { asker, sources: sources.to_vec(), drives: Vec::new() };
        for (index, source) in sources.iter().enumerate() {
            let first = watching.asker.ask(source)?;
            watching.take(index, Some(first));
        }
        Ok(watching)
    }

    /// Takes a sample from every source. A server that is ending or busy may answer the next time.
    pub(super) fn look(&mut self) {
        for index in 0..self.sources.len() {
            let answer = self.asker.ask(&self.sources[index]).ok();
            self.take(index, answer);
        }
    }

    /// Assigns the answer of a source to its drives; new drives are watched from now on.
    fn take(&mut self, source: usize, answer: Option<Snapshot>) {
        let mut parts: Vec<(String, Snapshot)> = Vec::new();
        for drive in answer.iter().flat_map(|answer| &answer.drives) {
            let answer = answer.as_ref().expect("an answer with drives");
            let name = match &self.sources[source] {
                Source::Drive(path) => path.display().to_string(),
                Source::Server(_) if self.sources.len() == 1 => drive.name.clone(),
                Source::Server(url) => format!("{} at {url}", drive.name),
            };
            parts.push((name, Snapshot { drives: vec![drive.clone()], ..answer.clone() }));
        }
        for drive in self.drives.iter_mut().filter(|drive| drive.source == source) {
            let part = parts.iter().position(|(name, _)| *name == drive.name);
            drive.update(part.map(|index| parts.swap_remove(index).1));
        }
        for (name, now) in parts {
            self.drives.push(Watched { source, name, now: Some(now), rates: VecDeque::new() });
        }
    }
}

impl Watched {
    /// Advances to a later snapshot.
    fn update(&mut self, later: Option<Snapshot>) {
        if let (Some(earlier), Some(later)) = (&self.now, &later) {
            match later.now_ns.checked_sub(earlier.now_ns) {
                Some(ns) if ns > 0 => {
                    let seconds = ns as f64 / 1e9;
                    let (from, to) = (&earlier.drives[0], &later.drives[0]);
                    self.rates.push_back(Rates::between(from, to, seconds));
                }
                // The server was restarted.
                _ => self.rates.clear(),
            }
            if self.rates.len() > HISTORY {
                self.rates.pop_front();
            }
        }
        self.now = later;
    }
}

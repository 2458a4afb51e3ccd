//! A whole benchmark in one call: prepare the target, describe it, run the plan, clean up.
//!
//! ```text
//! prepare target -> header -> Sink::begin -> { Sink::progress, Sink::keep } per run -> remove file
//! ```
//!
//! A [`Sink`] receives everything as it happens. Prints nothing.

use std::sync::atomic::AtomicBool;

use super::results::{Header, Results};
use super::runner::{End, carry_out};
use super::sink::Sink;
use super::target::Location;
use crate::error::{Error, Result};
use crate::workload::Plan;

/// A plan with the facts that identify its results.
#[derive(Clone, Debug)]
pub struct Benchmark {
    /// Name of the preset.
    pub title: String,
    /// What the preset shows, in a sentence or two.
    pub about: String,
    /// The tests, levels and rounds.
    pub plan: Plan,
    /// Allows overwriting existing data on the target.
    pub destroy: bool,
    /// Start of the benchmark, in seconds since 1970, UTC; 0 if it must not appear in the results.
    pub begun_unix_s: u64,
}

/// The results of a benchmark, complete or not.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Whether every run was made.
    pub end: End,
    /// The header and all runs so far.
    pub results: Results,
}

impl Benchmark {
    /// Runs the benchmark on `target`. A file that the benchmark created on the target is removed
    /// at the end. Setting `stop` ends the benchmark after the current run, which is discarded.
    ///
    /// # Errors
    /// The errors of [`Location::prepare`], [`Header::new`], the target and the sink.
    ///
    /// ```
    /// use std::sync::atomic::AtomicBool;
    ///
    /// use pumice_bench::workload::{Changes, Preset};
    /// use pumice_bench::{Benchmark, target::Location};
    ///
    /// let preset = Preset::load("atto")?;
    /// let changes = Changes {
    ///     runs: Some(1),
    ///     records: vec![4096],
    ///     span_bytes: Some(1 << 20),
    ///     ..Changes::default()
    /// };
    /// let benchmark = Benchmark {
    ///     title: "atto".into(),
    ///     about: preset.about.clone(),
    ///     plan: preset.plan(&changes)?,
    ///     destroy: false,
    ///     begun_unix_s: 0,
    /// };
    /// let target = Location::parse("sim:micro-center-64")?;
    /// let finished = benchmark.run(&target, &AtomicBool::new(false), &mut ())?;
    /// assert!(finished.results.cells().iter().all(|cell| cell.values.mean > 0.0));
    /// # Ok::<(), pumice_bench::Error>(())
    /// ```
    pub fn run(
        self,
        target: &Location,
        stop: &AtomicBool,
        sink: &mut dyn Sink,
    ) -> Result<Finished> {
        target.prepare(self.plan.end_bytes(), self.destroy)?;
        let header = Header::new(&self.title, &self.about, target, self.plan, self.begun_unix_s);
        let header = header.inspect_err(|_| target.remove())?;
        finish(target, Results { header, runs: Vec::new() }, stop, sink)
    }
}

/// An interrupted benchmark that continues after its last run, with the same outcome as if it had
/// not been interrupted.
#[derive(Clone, Debug)]
pub struct Resumption {
    /// The header and all runs so far.
    pub results: Results,
    /// Allows overwriting existing data on the target.
    pub destroy: bool,
}

impl Resumption {
    /// Runs the remaining cells.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a simulated drive, whose content is lost; [`Error::Invalid`] if
    /// the results belong to another target; the errors of [`Benchmark::run`].
    pub fn run(
        self,
        target: &Location,
        stop: &AtomicBool,
        sink: &mut dyn Sink,
    ) -> Result<Finished> {
        check_resumable(&self.results, target)?;
        target.prepare(self.results.header.plan.end_bytes(), self.destroy)?;
        finish(target, self.results, stop, sink)
    }
}

fn check_resumable(results: &Results, target: &Location) -> Result<()> {
    if let Location::Sim(_) = target {
        let what = format!("{target} is simulated and its content is lost: start a new benchmark");
        return Err(Error::unsupported(what));
    }
    let measured = &results.header.target;
    if *measured != target.to_string() {
        let what = format!("the file is of {measured}, not of {target}: specify {measured}");
        return Err(Error::invalid(what));
    }
    Ok(())
}

fn finish(
    target: &Location,
    results: Results,
    stop: &AtomicBool,
    sink: &mut dyn Sink,
) -> Result<Finished> {
    let Results { header, runs } = results;
    let begun = sink.begin(&header);
    let ended = begun.and_then(|()| carry_out(target, &header.plan, runs, stop, sink));
    target.remove();
    let (end, runs) = ended?;
    Ok(Finished { end, results: Results { header, runs } })
}

//! Receives the progress and the results of a benchmark while it runs, so that an interruption
//! loses no finished run.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::results::{Header, Results, RunResult, Writer};
use super::target::Location;
use crate::error::Result;

/// Receives the results of a benchmark while it runs.
pub trait Sink {
    /// Returns additional facts about a target for its header, with their names. These are known
    /// only to the caller, for example the drive of a server.
    fn describe(&mut self, _location: &Location) -> Vec<(String, String)> {
        Vec::new()
    }

    /// Receives a header for each target when the targets are ready, before the first run.
    ///
    /// # Errors
    /// The headers cannot be stored; the benchmark ends.
    fn begin(&mut self, _headers: &[Header]) -> Result<()> {
        Ok(())
    }

    /// Reports that the benchmark starts the next activity.
    fn progress(&mut self, _status: Status) {}

    /// Receives a completed run of the target with this index.
    ///
    /// # Errors
    /// The result cannot be stored; the benchmark ends.
    fn keep(&mut self, _target: usize, _run: &RunResult) -> Result<()> {
        Ok(())
    }
}

/// Discards everything. [`Benchmark::run`](crate::Benchmark::run) returns the results in any case.
impl Sink for () {}

/// Appends every run to a file.
pub struct FileSink {
    path: PathBuf,
    writer: Option<Writer>,
}

impl FileSink {
    /// Returns a sink that creates `path` when the benchmark starts. The file must not exist.
    pub fn new(path: PathBuf) -> Self {
        Self { path, writer: None }
    }

    /// Opens a file to append to it. Returns its results for a [`Resumption`](super::Resumption).
    ///
    /// # Errors
    /// The errors of [`Writer::resume`].
    pub fn resume(path: PathBuf) -> Result<(Self, Vec<Results>)> {
        let (writer, results) = Writer::resume(&path)?;
        Ok((Self { path, writer: Some(writer) }, results))
    }
}

impl Sink for FileSink {
    fn begin(&mut self, headers: &[Header]) -> Result<()> {
        if self.writer.is_none() {
            self.writer = Some(Writer::create(&self.path, headers)?);
        }
        Ok(())
    }

    fn keep(&mut self, target: usize, run: &RunResult) -> Result<()> {
        self.writer.as_mut().expect("a sink begins before it keeps runs").append(target, run)
    }
}

/// The current activity of a benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Activity {
    /// Trimming the span before the first round.
    Purge,
    /// Writing the whole span before the first round; contains the number of the pass, from 0.
    Precondition(u32),
    /// Writing a level's data before a test.
    Fill,
    /// Measuring.
    Measure,
}

/// Current position of a benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The current activity.
    pub activity: Activity,
    /// Index of the target.
    pub target: usize,
    /// Round, from 0.
    pub round: u32,
    /// Index into the plan's tests.
    pub test: usize,
    /// Index into the plan's levels.
    pub level: usize,
    /// Completed runs of all targets.
    pub done: u64,
    /// Number of runs known to be needed, including the completed ones.
    pub planned: u64,
}

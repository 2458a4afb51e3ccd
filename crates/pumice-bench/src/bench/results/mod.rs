//! Results of a benchmark: all data required by reports, comparisons and resumed benchmarks.
//!
//! * `file`: a file that grows by one line per run, so that an interruption loses no completed run.
//! * `header`: the facts known before the first run; `run`: the result of one run.
//! * `cells`: all runs, and summaries of repeated runs.
//! * `environment`: the machine and the device.
//!
//! This module contains only measured numbers; `stats` and the reports draw the conclusions.

mod cells;
pub mod environment;
mod file;
mod header;
mod run;
#[cfg(test)]
pub(crate) mod sample;

pub(crate) use cells::names;
pub use cells::{CellSummary, Results};
pub use environment::{DeviceBytes, MachineLoad};
pub use file::{Writer, line_schema, read};
pub use header::{FORMAT, Header, LevelFindings, TARGETS_MAX, Turns};
pub use run::RunResult;

//! Results of a benchmark: all data that a report, a comparison or a continuation needs.
//!
//! * `file`: a file that grows by one line per run, so that an interruption loses no run.
//! * `header`: the facts known before the first run; `run`: the result of one run.
//! * `cells`: all runs, and summaries of repeated runs.
//! * `environment`: the machine and the device.
//!
//! Contains numbers as measured; conclusions belong to `stats` and the reports.

mod cells;
pub mod environment;
mod file;
mod header;
mod run;
#[cfg(test)]
pub(crate) mod sample;

pub(crate) use cells::names;
pub use cells::{CellSummary, Results};
pub use environment::MachineLoad;
pub use file::{Writer, line_schema, read};
pub use header::{FORMAT, Header, LevelFindings, TARGETS_MAX, Turns};
pub use run::{DeviceBytes, RunResult};

//! x

mod bench;
mod error;
pub mod forecast;
pub mod payload;
pub mod reproduce;
pub mod stats;
pub mod workload;

pub use bench::{Benchmark, FileSink, Finished, Resumption, Sink};
pub use bench::{compare, detect, engine, interop, report, results, runner, target};
pub use error::{Error, Result};

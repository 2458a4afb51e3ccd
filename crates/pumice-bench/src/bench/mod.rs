//! Measurements on a target.

mod benchmark;
pub mod compare;
pub mod detect;
pub mod engine;
pub mod interop;
pub mod report;
pub mod results;
pub mod runner;
mod shutdown;
pub mod target;
mod warnings;

pub use benchmark::{Benchmark, FileSink, Finished, Resumption, Sink};

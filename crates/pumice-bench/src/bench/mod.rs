//! Measurements on a target. Imports point down only:
//!
//! ```text
//! hosts        the benchmark on several hosts concurrently
//! benchmark    one call: prepare, run the plan, clean up
//! runner       the runs of a plan, in order
//! report       reports of results          interop   results and jobs of fio and IOzone
//! compare      comparison of results       detect    does a target compress or deduplicate?
//! sink         the receiver of runs and progress
//! warnings     facts that a reader of a run must know
//! results      runs in a file, and the environment
//! engine       one run of one workload     shutdown  bounded waiting for a target
//! purge        a target as new             copying   files copied within a file system
//! target       files, devices, drives, NBD exports, simulated drives
//! ```

mod benchmark;
pub mod compare;
mod copying;
pub mod detect;
pub mod engine;
pub mod hosts;
pub mod interop;
mod purge;
pub mod report;
pub mod results;
pub mod runner;
mod shutdown;
mod sink;
pub mod target;
mod warnings;

pub use benchmark::{Benchmark, Contest, Finished, Resumption};
pub use sink::{Activity, FileSink, Sink, Status};

//! A storage benchmark that uses data of known compressibility.
//!
//! ```text
//!   reproduce        published experiments on simulated drives
//!     |
//!   bench            forecast            measurements on a target; figures of a simulated drive
//!     |                 |
//!     +----> workload <-+                the activity of a host: workloads, plans, presets
//!               |
//!      payload     stats                 pure libraries: data, and conclusions from numbers
//!               |
//!             error
//! ```
//!
//! Imports point down only: nothing imports `forecast` or `reproduce`, and `payload` and `stats`
//! import neither each other nor anything above them. `workload`, `payload` and `stats` can be used
//! without the bench. The modules of `bench` are re-exported here: [`target`], [`engine`],
//! [`runner`], [`results`], [`compare`], [`report`], [`detect`], [`interop`] and [`hosts`].
//!
//! The crate uses a drive only as a host does, and prints nothing. [`Benchmark::run`] runs a whole
//! benchmark.

mod bench;
mod error;
pub mod forecast;
pub mod payload;
pub mod reproduce;
pub mod stats;
pub mod workload;

pub use bench::{Activity, Benchmark, Contest, FileSink, Finished, Resumption, Sink, Status};
pub use bench::{compare, detect, engine, hosts, interop, report, results, runner, target};
pub use error::{Error, Result};

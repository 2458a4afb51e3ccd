//! Estimates how compressible data is, in the chunks that a drive's controller compresses, and how
//! a compressing drive would perform with this data.
//!
//! A scan draws blocks at random and measures the chunks around them until the confidence interval
//! is as narrow as requested. If reading all data is cheaper, the scan reads all data instead. The
//! interval is valid for any data. Several machines can each scan a shard; their partial results
//! merge to exactly the result of a single scan.
//!
//! This is not a benchmark: only [`Medium::speed`] writes, in a temporary folder. Scanned data is
//! only read. The crate prints nothing.
//!
//! ```
//! use std::sync::atomic::AtomicBool;
//! use pumice_scan::{
//!     Codec, Config, Error, Outcome, Reading, ScanOptions, ScanProgress, Shard, scan,
//! };
//!
//! struct Silent;
//! impl ScanProgress for Silent {
//!     fn found(&self, _files: u64, _bytes: u64) {}
//!     fn begin(&self, _reads_draws: bool, _total: u64) {}
//!     fn advance(&self, _count: u64) {}
//! }
//!
//! let folder = tempfile::tempdir().unwrap();
//! std::fs::write(folder.path().join("text"), "all work and no play ".repeat(10_000)).unwrap();
//! let options = ScanOptions {
//!     configs: vec![Config { codec: "lz4".parse().unwrap(), chunk_bytes: 32 << 10 }],
//!     main: 0,
//!     error_points: 1.0,
//!     confidence_percent: 95.0,
//!     reading: Reading::Auto,
//!     seed: 1,
//!     shard: Shard::ALL,
//!     threads: 1,
//!     bytes_per_s: None,
//!     crosses: false,
//!     exports: Vec::new(),
//!     now_s: 1_750_000_000,
//! };
//! let stop = AtomicBool::new(false);
//! let scanned = scan(&[folder.path().into()], &options, false, &Silent, &stop)?.unwrap();
//! let outcome = Outcome::of(&scanned.partial);
//! assert!(outcome.configs[0].drive.stored < 0.05);
//! # Ok::<(), Error>(())
//! ```
//!
//! # Map
//!
//! ```text
//! walk -> population (blocks, draws) -> sample (some chunks) or everything (all of them)
//!      -> partial (measurements; shards are merged here) -> outcome -> report
//! ```
//!
//! * `scan`: the sequence of steps; `options`: parameters and progress reports.
//! * `walk`: lists files; `extents` with `fiemap`, and `export`: find the parts of a file or an
//!   export that contain data; `passed`: skipped files; `read`: reads the data; `work`: the state
//!   shared by the threads.
//! * `population`: selects the drawn blocks; `strata`, `interval`: the error of a mean of draws.
//! * `duplicate_files`: copies of whole files.
//! * `chunks`: the size of a chunk after compression, and as records of a drive; `codec`: the
//!   codecs; `sums`: totals.
//! * `like`: a profile that the benchmark uses to generate similar data.
//! * `outcome`: the estimates; `verdict`: their consequences for drives; `medium`: the speed of a
//!   Pumice drive on a medium; `provision`: the drive to create for the data; `report`: formats the
//!   results for people.

mod chunks;
mod codec;
mod duplicate_files;
mod error;
mod everything;
mod export;
mod extents;
mod fiemap;
mod interval;
mod like;
mod medium;
mod options;
mod outcome;
mod partial;
mod passed;
mod population;
mod provision;
mod read;
mod report;
mod sample;
mod scan;
mod strata;
mod sums;
#[cfg(test)]
mod tests;
mod verdict;
mod walk;
mod work;

pub use chunks::Config;
pub use codec::Codec;
pub use error::{Error, Result};
pub use medium::{Bound, Medium, OnMedium, Speed};
pub use options::{Reading, ScanOptions, ScanProgress};
pub use outcome::Outcome;
pub use partial::{PARTIAL_BYTES_MAX, Partial};
pub use population::Shard;
pub use provision::Provision;
pub use scan::{Scanned, scan};
pub use verdict::{Drive, Range, verdicts};

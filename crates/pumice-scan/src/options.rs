//! The options of a scan, and the trait through which a scan reports its progress.

use std::path::PathBuf;

use super::chunks::Config;
use super::interval;
use super::population::Shard;

/// The standard deviation between chunks, as a fraction, that is assumed before any draw was
/// measured: real data has 0.25 to 0.27 (see `docs/scan.md`).
const DEVIATION_TYPICAL: f64 = 0.3;

/// Draws that are measured between two checks of the interval.
pub(super) const ROUND_DRAWS: usize = 512;

/// How much of the data is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// Draws until the requested error is reached, or everything where that is cheaper.
    Auto,
    /// This number of draws.
    Draws(u64),
    /// Everything.
    All,
}

/// The options of a scan.
#[derive(Clone, Debug, PartialEq)]
pub struct ScanOptions {
    /// Codecs and chunk sizes to measure: 1 to 64.
    pub configs: Vec<Config>,
    /// Index of the configuration whose error decides when to stop.
    pub main: usize,
    /// Requested half-width of the confidence interval, in percentage points, above 0.
    pub error_points: f64,
    /// Least probability that the interval contains the true value, in percent, below 100.
    pub confidence_percent: f64,
    /// How much of the data is read.
    pub reading: Reading,
    /// Seed of the draws.
    pub seed: u64,
    /// The shard to scan.
    pub shard: Shard,
    /// Number of compressing threads.
    pub threads: usize,
    /// Limit on the bytes read per second.
    pub bytes_per_s: Option<u64>,
    /// Whether to descend into other file systems that are mounted below the folders.
    pub crosses: bool,
    /// Named paths that stand for exports, with the NBD URI of each: results show the path.
    pub exports: Vec<(PathBuf, String)>,
    /// The current time in seconds since 1970, for the age of files.
    pub now_s: i64,
}

impl ScanOptions {
    pub(super) fn chunk_bytes_max(&self) -> u64 {
        self.configs.iter().map(|config| config.chunk_bytes).max().unwrap_or(0).into()
    }

    /// Returns the requested half-width as a fraction.
    pub(super) fn aim(&self) -> f64 {
        self.error_points / 100.0
    }

    pub(super) fn confidence(&self) -> f64 {
        self.confidence_percent / 100.0
    }

    /// Returns the total number of draws of all shards if it is fixed in advance: a shard does not
    /// know when all shards together have enough.
    pub(super) fn draws_planned(&self) -> Option<u64> {
        match self.reading {
            Reading::Draws(count) => Some(count),
            Reading::Auto if self.shard.count > 1 => Some(self.draws_typical() as u64),
            _ => None,
        }
    }

    /// Returns the number of draws after which the scan decides whether to continue drawing or to
    /// read everything. A shard cannot decide for all: it assumes the draws that typical data
    /// needs.
    pub(super) fn draws_first(&self) -> f64 {
        if self.shard.count > 1 { self.draws_typical() } else { ROUND_DRAWS as f64 }
    }

    /// Returns the number of draws that typical data needs.
    pub(super) fn draws_typical(&self) -> f64 {
        interval::draws_needed(self.confidence(), DEVIATION_TYPICAL.powi(2), self.aim())
    }
}

/// Receives the progress of a scan, from several threads.
pub trait ScanProgress: Sync {
    /// Reports that an export of `bytes`, or 0 if its size is not known yet, has reported its data
    /// up to byte `told`.
    fn mapped(&self, told: u64, bytes: u64) {
        let _ = (told, bytes);
    }
    /// Reports files that were found while folders are listed.
    fn found(&self, files: u64, bytes: u64);
    /// Reports that reading begins: of about `total` draws, or else of `total` blocks.
    fn begin(&self, reads_draws: bool, total: u64);
    /// Reports `count` more measured draws or blocks.
    fn advance(&self, count: u64);
}

/// Ignores all progress.
pub(super) struct NoProgress;

impl ScanProgress for NoProgress {
    fn found(&self, _files: u64, _bytes: u64) {}
    fn begin(&self, _reads_draws: bool, _total: u64) {}
    fn advance(&self, _count: u64) {}
}

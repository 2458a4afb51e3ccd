//! The options of a scan, and the trait that receives its progress.

use std::path::PathBuf;

use super::chunks::Config;
use super::interval;
use super::population::Shard;

/// The assumed standard deviation between chunks, as a fraction, before any draw has been measured.
/// Real data has 0.25 to 0.27 (see `docs/scan.md`).
const DEVIATION_TYPICAL: f64 = 0.3;

/// Number of draws measured between two checks of the interval.
pub(super) const ROUND_DRAWS: usize = 512;

/// The amount of data to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// Draws until the requested error is reached, or all data if that is cheaper.
    Auto,
    /// This number of draws.
    Draws(u64),
    /// All data.
    All,
}

/// The options of a scan.
#[derive(Clone, Debug, PartialEq)]
pub struct ScanOptions {
    /// Codecs and chunk sizes to measure: 1 to 64.
    pub configs: Vec<Config>,
    /// Index of the configuration whose error determines when to stop.
    pub main: usize,
    /// Requested half-width of the confidence interval, in percentage points, above 0.
    pub error_points: f64,
    /// Minimum probability that the interval contains the true value, in percent, below 100.
    pub confidence_percent: f64,
    /// The amount of data to read.
    pub reading: Reading,
    /// Seed of the draws.
    pub seed: u64,
    /// The shard to scan.
    pub shard: Shard,
    /// Number of compression threads.
    pub threads: usize,
    /// Maximum number of bytes read per second.
    pub bytes_per_s: Option<u64>,
    /// Whether to descend into other file systems mounted below the folders.
    pub crosses: bool,
    /// Named paths that represent exports, with the NBD URI of each. Results contain the path.
    pub exports: Vec<(PathBuf, String)>,
    /// The current time in seconds since 1970, for calculating the age of files.
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

    /// Returns the total number of draws of all shards, if it is fixed in advance. A shard does not
    /// know when all shards together have enough draws.
    pub(super) fn draws_planned(&self) -> Option<u64> {
        match self.reading {
            Reading::Draws(count) => Some(count),
            Reading::Auto if self.shard.count > 1 => Some(self.draws_typical() as u64),
            _ => None,
        }
    }

    /// Returns the number of draws after which the scan decides whether to continue drawing or to
    /// read all data. A shard cannot decide for all shards, so it assumes the number of draws that
    /// typical data needs.
    pub(super) fn draws_first(&self) -> f64 {
        if self.shard.count > 1 { self.draws_typical() } else { ROUND_DRAWS as f64 }
    }

    /// Returns the number of draws that typical data needs.
    pub(super) fn draws_typical(&self) -> f64 {
        interval::draws_needed(self.confidence(), DEVIATION_TYPICAL.powi(2), self.aim())
    }
}

/// Receives the progress of a scan from several threads.
pub trait ScanProgress: Sync {
    /// Reports that an export has reported its data up to byte `told`. `bytes` is the size of the
    /// export, or 0 if not known yet.
    fn mapped(&self, told: u64, bytes: u64) {
        let _ = (told, bytes);
    }
    /// Reports the files found while folders are being listed.
    fn found(&self, files: u64, bytes: u64);
    /// Reports that reading starts. The expected `total` is in draws if `reads_draws`, otherwise in
    /// blocks.
    fn begin(&self, reads_draws: bool, total: u64);
    /// Reports that another `count` draws or blocks have been measured.
    fn advance(&self, count: u64);
}

/// Ignores all progress reports.
pub(super) struct NoProgress;

impl ScanProgress for NoProgress {
    fn found(&self, _files: u64, _bytes: u64) {}
    fn begin(&self, _reads_draws: bool, _total: u64) {}
    fn advance(&self, _count: u64) {}
}

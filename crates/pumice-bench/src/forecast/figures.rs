//! Figures of a round of requests.

use schemars::JsonSchema;
use serde::Serialize;

use super::host::Tally;
use crate::stats::Percentiles;
use pumice_sim::drive::cached::CacheCounts;
use pumice_sim::formula;
use pumice_sim::ftl::LogCounts;

/// Behaviour of a drive under one workload.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Figures {
    /// The preconditioning of the drive.
    pub preconditioning: Preconditioning,
    /// Virtual seconds of the measured round.
    pub seconds: f64,
    /// Reads and writes.
    pub all: Speed,
    /// Reads.
    pub reads: Speed,
    /// Writes.
    pub writes: Speed,
    /// Read latency; `None` without reads.
    pub read_latency: Option<Percentiles>,
    /// Write latency until acknowledgement; `None` without writes.
    pub write_latency: Option<Percentiles>,
    /// Maximum delay of a request of a trace, in ns; 0 for workloads.
    pub late_ns: u64,
    /// Bytes written by the host.
    pub host_bytes: u64,
    /// Bytes programmed to flash during the round.
    pub flash_bytes: f64,
    /// Flash bytes divided by host bytes, by cause; `None` if the host wrote nothing.
    pub write_amplification: Option<Breakdown>,
    /// Write amplification calculated by the formula, for uniform random writes in steady state.
    pub write_amplification_by_formula: Option<f64>,
    /// Erase counts of the blocks since the drive was new; `None` for a drive without flash.
    pub wear: Option<Worn>,
    /// Endurance; `None` if the host wrote nothing.
    pub endurance: Option<Endurance>,
    /// Use of the cache; `None` without a cache.
    pub cache: Option<CacheUse>,
    /// Data lost if a die failed after the round, without further requests; `None` unless the drive
    /// of the profile has parity.
    pub lost_die: Option<LostPart>,
    /// An additional round in which parts of the flash fail; `None` unless requested.
    pub failing: Option<Failing>,
    /// Rounds, starting with the first one after the fill.
    pub course: Vec<Point>,
    /// Histogram of the erase counts: the erase count, and the number of blocks with that count.
    pub erases: Vec<(u32, u64)>,
}

/// Data lost because of a failure of the flash. Bytes and seconds apply to the whole drive; if a
/// smaller drive was simulated, they are scaled proportionally.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct LostPart {
    /// Lost bytes of the host's blocks.
    pub lost_bytes: f64,
    /// Bytes of frames that were rewritten elsewhere.
    pub rebuilt_bytes: f64,
    /// Duration of the rebuild after the last failure, in seconds.
    pub rebuild_seconds: f64,
    /// Whether the rebuild was completed; otherwise the drive had too little free space.
    pub is_rebuilt: bool,
}

/// A round in which parts of the flash fail.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Failing {
    /// The failed parts and the times of their failures, in the form `die:3@50%`.
    pub faults: Vec<String>,
    /// The reason why the drive could not continue; `None` if it did.
    pub ended_by: Option<String>,
    /// Reads and writes; 0 if the drive could not continue.
    pub all: Speed,
    /// Latency of reads, including reads of rebuilt data; `None` without reads.
    pub read_latency: Option<Percentiles>,
    /// Latency of writes; `None` without writes.
    pub write_latency: Option<Percentiles>,
    /// Blocks that the host could not read. Each read is an I/O error.
    pub unreadable_blocks: u64,
    /// Data lost because of the failures.
    pub lost: LostPart,
}

/// The use of the cache in front of a drive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct CacheUse {
    /// Share of the lines of reads that were in the cache, 0 to 1; `None` without reads.
    pub hit_fraction: Option<f64>,
    /// Share of the lines of writes that bypassed the cache, 0 to 1; `None` without writes.
    pub past_fraction: Option<f64>,
    /// Bytes written back to the drive.
    pub written_back_bytes: u64,
    /// Maximum number of bytes that only the cache contained, since the cache and the drive were
    /// new.
    pub dirty_bytes_max: u64,
}

impl CacheUse {
    /// Returns the use of a cache from its counters; a line has `line_bytes` bytes.
    pub(super) fn of(counts: &CacheCounts, line_bytes: u64) -> Self {
        let share = |part: u64, all: u64| (all > 0).then(|| part as f64 / all as f64);
        Self {
            hit_fraction: share(counts.lines_hit, counts.lines_read),
            past_fraction: share(counts.lines_past, counts.lines_written),
            written_back_bytes: counts.lines_written_back * line_bytes,
            dirty_bytes_max: counts.dirty_bytes_max,
        }
    }
}

/// Throughput and rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Speed {
    /// 10^6 bytes per second.
    pub mb_per_s: f64,
    /// Requests per second.
    pub iops: f64,
}

/// Preconditioning of a measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Preconditioning {
    /// Bytes written sequentially before the first round.
    pub filled_bytes: u64,
    /// Rounds of the workload before the measured one.
    pub rounds: u32,
    /// Whether the write amplification of the last two rounds differed by at most 1 %, after
    /// garbage collection had started.
    pub is_steady: bool,
}

/// Write amplification by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Breakdown {
    /// Total.
    pub all: f64,
    /// Host data, as stored.
    pub host: f64,
    /// Other data in units of the map that the host overwrote partly.
    pub rewritten: f64,
    /// Garbage collection.
    pub collected: f64,
    /// Wear leveling.
    pub leveled: f64,
    /// Flushed rows and segment ends that were not full.
    pub padding: f64,
    /// Parity over dies.
    pub parity: f64,
    /// ECC and metadata, and parity that is not listed separately, according to the profile.
    pub overhead: f64,
}

/// Erase counts of the good blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Worn {
    /// Mean.
    pub mean: f64,
    /// Maximum.
    pub max: u32,
    /// Standard deviation.
    pub deviation: f64,
}

/// Endurance of a drive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Endurance {
    /// Bytes that the host can write; see [`formula::endurance_bytes`].
    pub host_bytes: f64,
    /// Lifetime in years, for the daily writes given in the options.
    pub years: Option<f64>,
}

/// One round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Point {
    /// Bytes written by the host up to the end of the round, including the fill.
    pub host_bytes: u64,
    /// Write amplification of the round.
    pub write_amplification: Option<f64>,
    /// Throughput of reads and writes.
    pub mb_per_s: f64,
    /// Mean latency of all writes in the round.
    pub write_mean_ns: Option<f64>,
    /// 99th percentile of the write latency.
    pub write_p99_ns: Option<u64>,
}

impl Breakdown {
    /// Returns the write amplification for `host_bytes` by cause, on a drive whose programmed bytes
    /// contain `overhead_percent` of overhead; `None` if the host wrote nothing.
    pub(super) fn of(counts: &LogCounts, host_bytes: u64, overhead_percent: f64) -> Option<Self> {
        // Programmed bytes per byte of data.
        let programmed = 1.0 / (1.0 - overhead_percent / 100.0);
        let per_byte = |bytes: u64| bytes as f64 / host_bytes as f64;
        let all = per_byte(counts.flash_bytes) * programmed;
        (host_bytes > 0).then(|| Self {
            all,
            host: per_byte(counts.host_bytes),
            rewritten: per_byte(counts.rewritten_bytes),
            collected: per_byte(counts.collected_bytes),
            leveled: per_byte(counts.leveled_bytes),
            padding: per_byte(counts.padding_bytes),
            parity: per_byte(counts.parity_bytes),
            overhead: all - per_byte(counts.flash_bytes),
        })
    }
}

impl Endurance {
    /// Returns the endurance of a drive of this size and number of program/erase cycles.
    pub(super) fn of(
        size_bytes: u64,
        pe_cycles: u64,
        write_amplification: f64,
        bytes_per_day: Option<f64>,
    ) -> Self {
        let host_bytes = formula::endurance_bytes(size_bytes, pe_cycles, write_amplification);
        let years = |bytes_per_day| formula::years(host_bytes, bytes_per_day);
        Self { host_bytes, years: bytes_per_day.map(years) }
    }
}

impl Speed {
    fn of(bytes: u64, requests: u64, seconds: f64) -> Self {
        if seconds <= 0.0 {
            return Self::default();
        }
        Self { mb_per_s: bytes as f64 / 1e6 / seconds, iops: requests as f64 / seconds }
    }

    /// Returns the speeds of all requests, of the reads and of the writes.
    pub(super) fn all(tally: &Tally, seconds: f64) -> [Self; 3] {
        let (reads, writes) = (tally.reads.count(), tally.writes.count());
        let reads = Self::of(tally.read_bytes, reads, seconds);
        let writes = Self::of(tally.write_bytes, writes, seconds);
        let bytes = tally.read_bytes + tally.write_bytes;
        [Self::of(bytes, tally.requests, seconds), reads, writes]
    }
}

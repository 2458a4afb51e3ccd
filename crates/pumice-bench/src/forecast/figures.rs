//! What a round of requests shows.

use serde::Serialize;

use super::host::Tally;
use crate::stats::Percentiles;
use pumice_sim::formula;
use pumice_sim::ftl::LogCounts;
use pumice_sim::nand::Wear;

/// What a drive would do under one workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// How it came to its state.
    pub preconditioning: Preconditioning,
    /// Virtual seconds of the round that was measured.
    pub seconds: f64,
    /// Reads and writes together.
    pub all: Speed,
    /// Reads.
    pub reads: Speed,
    /// Writes.
    pub writes: Speed,
    /// How long reads took; nothing if there were none.
    pub read_latency: Option<Percentiles>,
    /// How long writes took until they were acknowledged.
    pub write_latency: Option<Percentiles>,
    /// How late a trace's latest request could be made, in ns; 0 of workloads.
    pub late_ns: u64,
    /// Bytes that the host wrote.
    pub host_bytes: u64,
    /// Bytes that the flash programmed meanwhile.
    pub flash_bytes: f64,
    /// Flash bytes over host bytes, by cause; nothing if the host wrote nothing.
    pub write_amplification: Option<Breakdown>,
    /// The same by formula, for uniform random writes in steady state.
    pub write_amplification_by_formula: Option<f64>,
    /// How often blocks were erased since the drive was new; nothing of a drive without flash.
    pub wear: Option<Worn>,
    /// How long it would last; nothing if the host wrote nothing.
    pub endurance: Option<Endurance>,
    /// Round after round, from the first after the fill.
    pub course: Vec<Point>,
    /// How many blocks were erased so often: erasures, and blocks.
    pub erases: Vec<(u32, u64)>,
}

/// How much and how many a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Speed {
    /// 10^6 bytes a second.
    pub mb_per_s: f64,
    /// Requests a second.
    pub iops: f64,
}

/// What was done before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Preconditioning {
    /// Bytes that were written in order first.
    pub filled_bytes: u64,
    /// Rounds of the workload before the one that was measured.
    pub rounds: u32,
    /// Whether write amplification of the last two rounds differed by a hundredth at most, after
    /// garbage collection had begun.
    pub is_steady: bool,
}

/// Write amplification by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Breakdown {
    /// All of it.
    pub all: f64,
    /// What the host wrote, as it is stored.
    pub host: f64,
    /// Garbage collection.
    pub collected: f64,
    /// Wear leveling.
    pub leveled: f64,
    /// Flushed rows and ends of segments that were not full.
    pub padding: f64,
    /// Parity, ECC and metadata, as the profile has it.
    pub overhead: f64,
}

/// Erasures of the blocks that are not bad.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Worn {
    /// On average.
    pub mean: f64,
    /// The most of any block.
    pub max: u32,
    /// Standard deviation.
    pub deviation: f64,
}

/// How long a drive lasts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Endurance {
    /// Bytes that the host can write: see [`formula::endurance_bytes`].
    pub host_bytes: f64,
    /// Years, at what the host writes a day.
    pub years: Option<f64>,
}

/// One round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Point {
    /// Bytes that the host had written when it ended, the fill included.
    pub host_bytes: u64,
    /// Of the round.
    pub write_amplification: Option<f64>,
    /// Reads and writes together.
    pub mb_per_s: f64,
    /// Mean of all writes of the round.
    pub write_mean_ns: Option<f64>,
    /// What 99 % of them did not exceed.
    pub write_p99_ns: Option<u64>,
}

impl Breakdown {
    /// Of what was written for `host_bytes` of the host, by a drive of whose programmed bytes
    /// `overhead_percent` are no data; nothing if the host wrote nothing.
    pub(super) fn of(counts: &LogCounts, host_bytes: u64, overhead_percent: f64) -> Option<Self> {
        // What is programmed for each byte of data.
        let programmed = 1.0 / (1.0 - overhead_percent / 100.0);
        let per_byte = |bytes: u64| bytes as f64 / host_bytes as f64;
        let all = per_byte(counts.flash_bytes) * programmed;
        (host_bytes > 0).then(|| Self {
            all,
            host: per_byte(counts.host_bytes),
            collected: per_byte(counts.collected_bytes),
            leveled: per_byte(counts.leveled_bytes),
            padding: per_byte(counts.padding_bytes),
            overhead: all - per_byte(counts.flash_bytes),
        })
    }
}

impl Endurance {
    /// Of a drive of this size and life.
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

    /// Of all, of reads and of writes.
    pub(super) fn all(tally: &Tally, seconds: f64) -> [Self; 3] {
        let (reads, writes) = (tally.reads.count(), tally.writes.count());
        let reads = Self::of(tally.read_bytes, reads, seconds);
        let writes = Self::of(tally.write_bytes, writes, seconds);
        let bytes = tally.read_bytes + tally.write_bytes;
        [Self::of(bytes, tally.requests, seconds), reads, writes]
    }
}

impl From<Wear> for Worn {
    fn from(wear: Wear) -> Self {
        Self { mean: wear.mean, max: wear.max, deviation: wear.deviation }
    }
}

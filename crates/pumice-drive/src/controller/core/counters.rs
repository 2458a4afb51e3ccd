//! Counters of one drive. Every byte counter names its layer.
//!
//! `host_bytes`, `frame_bytes`, `media_bytes` and `moved_bytes` cover the drive's life: batch
//! headers carry them. The other counters start at 0 when the drive is opened.

use super::Totals;

#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Bytes the host wrote.
    pub(crate) host_bytes: Counter,
    /// Bytes of record headers and payloads written for them.
    pub(crate) frame_bytes: Counter,
    /// Bytes appended to the medium.
    pub(crate) media_bytes: Counter,
    /// Bytes of records that garbage collection moved.
    pub(crate) moved_bytes: Counter,
    /// Bytes of metadata records that checkpoints wrote.
    pub(crate) meta_bytes: Counter,
    pub(crate) host_read_bytes: Counter,
    /// Bytes read from the medium to serve host reads.
    pub(crate) media_read_bytes: Counter,
    /// Host writes.
    pub(crate) writes: Counter,
    /// Host reads.
    pub(crate) reads: Counter,
    /// Host flushes, and requests with FUA.
    pub(crate) flushes: Counter,
    /// Host trims and write-zeroes.
    pub(crate) trims: Counter,
    /// Batches appended to the medium.
    pub(crate) batches: Counter,
    /// Batches that were durable without a sync.
    pub(crate) durable_appends: Counter,
    /// Syncs of the medium.
    pub(crate) syncs: Counter,
    /// Bytes of the disk appended again, in order, because the host read them in order.
    pub(crate) reordered_bytes: Counter,
    /// Bytes of zeroes written to free segments.
    pub(crate) zeroed_bytes: Counter,
    /// Blocks written as fills, without data.
    pub(crate) fill_blocks: Counter,
    /// Partly written blocks that had to be read first.
    pub(crate) merged_blocks: Counter,
    /// Small reads served from a decoded frame.
    pub(crate) frame_cache_hits: Counter,
    /// Reads that encountered damage.
    pub(crate) corrupt_reads: Counter,
    /// Frames that were damaged, or could not be read, and were restored from parity for a read.
    pub(crate) restored_reads: Counter,
}

impl Counters {
    /// Creates counters that continue from `totals`.
    pub(crate) fn new(totals: Totals) -> Self {
        Self {
            host_bytes: Counter(totals.host_bytes),
            frame_bytes: Counter(totals.frame_bytes),
            media_bytes: Counter(totals.media_bytes),
            moved_bytes: Counter(totals.moved_bytes),
            ..Self::default()
        }
    }

    /// Returns the number of writes and trims of the host since the opening.
    pub(crate) fn host_changes(&self) -> u64 {
        self.writes.get() + self.trims.get()
    }

    /// Returns the counters that batch headers carry.
    pub(crate) fn totals(&self) -> Totals {
        Totals {
            host_bytes: self.host_bytes.get(),
            frame_bytes: self.frame_bytes.get(),
            media_bytes: self.media_bytes.get(),
            moved_bytes: self.moved_bytes.get(),
        }
    }
}

/// A number that only grows. Additions saturate, because the initial value is read from the medium.
#[derive(Debug, Default)]
pub(crate) struct Counter(u64);

impl Counter {
    #[inline]
    pub(crate) fn add(&mut self, amount: u64) {
        self.0 = self.0.saturating_add(amount);
    }

    /// Returns the sum.
    #[inline]
    pub(crate) fn get(&self) -> u64 {
        self.0
    }
}

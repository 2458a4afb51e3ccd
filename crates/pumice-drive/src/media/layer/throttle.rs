//! A medium at the speed of a slower device.
//!
//! ```text
//! operation -> time on the pipe ---------------+
//!          \-> the wrapped medium, in parallel +--> both have ended, and the latency -> complete
//!
//! pipe      |append, 1 MiB|read|append, 1 MiB|   one transfer after another
//! ```
//!
//! The pipe is a token bucket that holds no tokens: a device does not accumulate its idle time, so
//! no burst exceeds the limits, however short a measurement is. Appends and reads share the pipe,
//! each at a rate of its own. Latencies of operations in progress overlap.
//!
//! The wrapped medium works while an operation waits, so its own time does not add to the limit. If
//! the wrapped medium takes longer than the limit, the operation completes when the medium does,
//! and counts as [late](Kept::late): a measurement then includes the wrapped medium too. Syncs and
//! discards are passed on without a delay, as by a device whose write cache is protected.
//! Superblocks count as reads and appends. An operation whose future is dropped still uses its time
//! on the pipe.

use std::cell::Cell;
use std::sync::Arc;

use super::Layer;
use crate::base::{AlignedBuffer, Clock, Result, SegmentId};
use crate::media::{Medium, SUPERBLOCK_BYTES};

const SECOND_NS: u128 = 1_000_000_000;

/// The speed of a device. The default sets no limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Speed {
    /// Bytes read per second; 0 for no limit.
    pub read_bytes_per_s: u64,
    /// Bytes appended per second; 0 for no limit.
    pub append_bytes_per_s: u64,
    /// Time of a read in addition to its transfer, in nanoseconds.
    pub read_latency_ns: u64,
    /// Time of an append in addition to its transfer, in nanoseconds.
    pub append_latency_ns: u64,
}

/// A pipe that performs one transfer after another.
#[derive(Debug, Default)]
pub struct Pipe {
    free_ns: Cell<u64>,
}

impl Pipe {
    /// Reserves the time of a transfer requested at `now_ns`, at `bytes_per_s`, or without a limit
    /// if that is 0. Returns when the transfer ends, in nanoseconds of the same clock.
    pub fn reserve(&self, now_ns: u64, bytes: u64, bytes_per_s: u64) -> u64 {
        if bytes_per_s == 0 {
            return now_ns;
        }
        let ns = (u128::from(bytes) * SECOND_NS).div_ceil(u128::from(bytes_per_s));
        let ns = u64::try_from(ns).unwrap_or(u64::MAX);
        let end_ns = self.free_ns.get().max(now_ns).saturating_add(ns);
        assert!(end_ns >= now_ns, "a transfer ends after its request");
        self.free_ns.set(end_ns);
        end_ns
    }
}

/// Whether the wrapped medium kept up with the limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Completed reads and appends, including superblocks.
    pub operations: u64,
    /// Operations for which the wrapped medium took longer than the limit.
    pub late: u64,
}

/// A medium that is no faster than a [`Speed`].
#[derive(Debug)]
pub struct Throttle<M, C> {
    inner: M,
    clock: C,
    speed: Speed,
    pipe: Pipe,
    kept: Cell<Kept>,
}

impl<M: Medium, C: Clock> Throttle<M, C> {
    /// Wraps `inner`.
    pub fn new(inner: M, clock: C, speed: Speed) -> Self {
        Self { inner, clock, speed, pipe: Pipe::default(), kept: Cell::default() }
    }

    /// Returns the wrapped medium.
    pub fn inner(&self) -> &M {
        &self.inner
    }

    /// Returns whether the wrapped medium has kept up.
    pub fn kept(&self) -> Kept {
        self.kept.get()
    }

    /// Reserves the time of an append and returns when it is due.
    fn append_due_ns(&self, bytes: usize) -> u64 {
        let Speed { append_bytes_per_s, append_latency_ns, .. } = self.speed;
        let end_ns = self.pipe.reserve(self.clock.now_ns(), bytes as u64, append_bytes_per_s);
        end_ns.saturating_add(append_latency_ns)
    }

    /// Reserves the time of a read and returns when it is due.
    fn read_due_ns(&self, bytes: usize) -> u64 {
        let Speed { read_bytes_per_s, read_latency_ns, .. } = self.speed;
        let end_ns = self.pipe.reserve(self.clock.now_ns(), bytes as u64, read_bytes_per_s);
        end_ns.saturating_add(read_latency_ns)
    }

    /// Waits until the wrapped medium has answered and the operation is due.
    async fn no_sooner<T>(&self, due_ns: u64, answer: impl Future<Output = T>) -> T {
        let answer = answer.await;
        let now_ns = self.clock.now_ns();
        let mut kept = self.kept.get();
        kept.operations += 1;
        kept.late += u64::from(now_ns > due_ns && self.speed != Speed::default());
        assert!(kept.late <= kept.operations, "an operation that is late has ended");
        self.kept.set(kept);
        if due_ns > now_ns {
            self.clock.sleep_ns(due_ns - now_ns).await;
        }
        answer
    }
}

impl<M: Medium, C: Clock> Layer for Throttle<M, C> {
    type Inner = M;

    fn inner(&self) -> &M {
        &self.inner
    }

    async fn on_append(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: Arc<AlignedBuffer>,
    ) -> Result<()> {
        let due_ns = self.append_due_ns(buffer.len());
        self.no_sooner(due_ns, self.inner.append(segment, offset, buffer)).await
    }

    async fn on_append_durably(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: Arc<AlignedBuffer>,
    ) -> Result<()> {
        let due_ns = self.append_due_ns(buffer.len());
        self.no_sooner(due_ns, self.inner.append_durably(segment, offset, buffer)).await
    }

    async fn on_read(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: AlignedBuffer,
    ) -> (AlignedBuffer, Result<()>) {
        let due_ns = self.read_due_ns(buffer.len());
        self.no_sooner(due_ns, self.inner.read(segment, offset, buffer)).await
    }

    async fn on_read_superblock(&self, slot: u32) -> Result<AlignedBuffer> {
        let due_ns = self.read_due_ns(SUPERBLOCK_BYTES);
        self.no_sooner(due_ns, self.inner.read_superblock(slot)).await
    }

    async fn on_write_superblock(&self, slot: u32, bytes: AlignedBuffer) -> Result<()> {
        let due_ns = self.append_due_ns(SUPERBLOCK_BYTES);
        self.no_sooner(due_ns, self.inner.write_superblock(slot, bytes)).await
    }
}

#[cfg(test)]
mod tests;

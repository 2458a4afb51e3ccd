//! Counters of the operations requested of a medium.
//!
//! The counters are *media* bytes: the bytes that the drive passed, padding included. An operation
//! counts when it is called, whether or not it succeeds. This layer changes no operation.

use std::cell::Cell;
use std::sync::Arc;

use super::Layer;
use crate::base::{AlignedBuffer, Result, SegmentId};
use crate::media::Medium;

/// The operations since the medium was wrapped. Subtract two snapshots to obtain an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Appends, including durable ones.
    pub appends: u64,
    /// Durable appends.
    pub durable_appends: u64,
    /// Bytes of all appends.
    pub append_bytes: u64,
    /// Reads.
    pub reads: u64,
    /// Bytes of all reads.
    pub read_bytes: u64,
    /// Syncs.
    pub syncs: u64,
    /// Discards of segments.
    pub discards: u64,
    /// Superblock writes, of [`SUPERBLOCK_BYTES`](crate::media::SUPERBLOCK_BYTES) each. Not counted
    /// in `append_bytes`.
    pub superblock_writes: u64,
}

impl std::ops::Sub for Counts {
    type Output = Self;

    /// Returns the operations between the snapshot `earlier` and this one.
    ///
    /// # Panics
    /// If `earlier` is the later of the two and overflow checks are on.
    fn sub(self, earlier: Self) -> Self {
        Self {
            appends: self.appends - earlier.appends,
            durable_appends: self.durable_appends - earlier.durable_appends,
            append_bytes: self.append_bytes - earlier.append_bytes,
            reads: self.reads - earlier.reads,
            read_bytes: self.read_bytes - earlier.read_bytes,
            syncs: self.syncs - earlier.syncs,
            discards: self.discards - earlier.discards,
            superblock_writes: self.superblock_writes - earlier.superblock_writes,
        }
    }
}

/// A medium that counts its operations.
#[derive(Debug)]
pub struct Count<M> {
    inner: M,
    counts: Cell<Counts>,
}

impl<M> Count<M> {
    /// Wraps `inner`, with all counters at zero.
    pub fn new(inner: M) -> Self {
        Self { inner, counts: Cell::default() }
    }

    /// Returns the counters.
    pub fn counts(&self) -> Counts {
        self.counts.get()
    }

    /// Returns the wrapped medium.
    pub fn inner(&self) -> &M {
        &self.inner
    }

    fn add(&self, change: impl FnOnce(&mut Counts)) {
        let mut counts = self.counts.get();
        change(&mut counts);
        assert!(counts.durable_appends <= counts.appends, "a durable append is an append");
        self.counts.set(counts);
    }
}

impl<M: Medium> Layer for Count<M> {
    type Inner = M;

    fn inner(&self) -> &M {
        &self.inner
    }

    fn on_append(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: Arc<AlignedBuffer>,
    ) -> impl Future<Output = Result<()>> {
        self.add(|counts| {
            counts.appends += 1;
            counts.append_bytes += buffer.len() as u64;
        });
        self.inner.append(segment, offset, buffer)
    }

    fn on_append_durably(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: Arc<AlignedBuffer>,
    ) -> impl Future<Output = Result<()>> {
        self.add(|counts| {
            counts.appends += 1;
            counts.durable_appends += 1;
            counts.append_bytes += buffer.len() as u64;
        });
        self.inner.append_durably(segment, offset, buffer)
    }

    fn on_read(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: AlignedBuffer,
    ) -> impl Future<Output = (AlignedBuffer, Result<()>)> {
        self.add(|counts| {
            counts.reads += 1;
            counts.read_bytes += buffer.len() as u64;
        });
        self.inner.read(segment, offset, buffer)
    }

    fn on_sync(&self) -> impl Future<Output = Result<()>> {
        self.add(|counts| counts.syncs += 1);
        self.inner.sync()
    }

    fn on_discard(&self, segment: SegmentId) -> impl Future<Output = Result<()>> {
        self.add(|counts| counts.discards += 1);
        self.inner.discard(segment)
    }

    fn on_write_superblock(
        &self,
        slot: u32,
        bytes: AlignedBuffer,
    ) -> impl Future<Output = Result<()>> {
        self.add(|counts| counts.superblock_writes += 1);
        self.inner.write_superblock(slot, bytes)
    }
}

#[cfg(test)]
mod tests {
    //! Goal: every operation counts once, in its own counter, and still has its effect. Operations
    //! without a visible effect, such as a sync, are made to fail.
    use super::*;
    use crate::media::layer::{Fault, FaultPlan, Trigger};
    use crate::media::mem::MemMedium;
    use crate::media::{Geometry, SUPERBLOCK_BYTES};
    use crate::runtime::Runtime;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    fn now<T>(future: impl Future<Output = T>) -> T {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => value,
            Poll::Pending => panic!("memory never waits"),
        }
    }

    #[test]
    fn every_operation_counts_once_and_does_its_work() {
        let medium = Count::new(MemMedium::new(1 << 20));
        let geometry = Geometry { segment_bytes: 65536, segment_count: 4, data_offset: 0 };
        medium.set_geometry(geometry).unwrap();
        assert_eq!(medium.counts(), Counts::default());
        let mut buffer = AlignedBuffer::zeroed(8192);
        buffer.fill(3);
        let buffer = Arc::new(buffer);
        let result = now(medium.append(SegmentId(0), 0, Arc::clone(&buffer)));
        result.unwrap();
        let before = medium.counts();
        now(medium.read(SegmentId(0), 0, AlignedBuffer::zeroed(512))).1.unwrap();
        let (copy, result) = now(medium.read(SegmentId(0), 0, AlignedBuffer::zeroed(8192)));
        result.unwrap();
        assert_eq!(*copy, **buffer);
        assert_eq!(
            medium.counts() - before,
            Counts { reads: 2, read_bytes: 8704, ..Counts::default() }
        );
        now(medium.sync()).unwrap();
        now(medium.discard(SegmentId(0))).unwrap();
        assert_eq!(medium.inner().resident_bytes(), 0);
        let mut superblock = AlignedBuffer::zeroed(SUPERBLOCK_BYTES);
        superblock.fill(5);
        now(medium.write_superblock(1, superblock)).unwrap();
        assert_eq!(*now(medium.read_superblock(1)).unwrap(), [5; SUPERBLOCK_BYTES]);
        // Failures count too.
        now(medium.append(SegmentId(9), 0, buffer.clone())).unwrap_err();
        now(medium.append_durably(SegmentId(2), 0, buffer)).unwrap();
        assert_eq!(medium.inner().resident_bytes(), 65536);
        let expected = Counts {
            appends: 3,
            durable_appends: 1,
            append_bytes: 24576,
            reads: 2,
            read_bytes: 8704,
            syncs: 1,
            discards: 1,
            superblock_writes: 1,
        };
        assert_eq!(medium.counts(), expected);
        assert_eq!(medium.counts() - expected, Counts::default());
    }
    #[test]
    fn failures_of_the_medium_are_passed_on_and_counted() {
        let always = Trigger::Probability(1.0);
        let plan = FaultPlan {
            append_errors: always,
            read_errors: always,
            sync_errors: always,
            discard_errors: always,
            ..FaultPlan::default()
        };
        let runtime = Runtime::simulated();
        let medium = Count::new(Fault::new(MemMedium::new(1 << 20), runtime.clone(), 1, plan));
        let geometry = Geometry { segment_bytes: 65536, segment_count: 4, data_offset: 0 };
        medium.set_geometry(geometry).unwrap();
        let bytes = || AlignedBuffer::zeroed(SUPERBLOCK_BYTES);
        let segment = SegmentId(0);
        runtime.block_on(async {
            medium.append(segment, 0, Arc::new(bytes())).await.unwrap_err();
            medium.append_durably(segment, 0, Arc::new(bytes())).await.unwrap_err();
            medium.read(segment, 0, bytes()).await.1.unwrap_err();
            medium.discard(segment).await.unwrap_err();
            medium.write_superblock(0, bytes()).await.unwrap_err();
            medium.read_superblock(0).await.unwrap_err();
            medium.sync().await.unwrap_err();
        });
        let expected = Counts {
            appends: 2,
            durable_appends: 1,
            append_bytes: 8192,
            reads: 1,
            read_bytes: 4096,
            syncs: 1,
            discards: 1,
            superblock_writes: 1,
        };
        assert_eq!(medium.counts(), expected);
    }
}

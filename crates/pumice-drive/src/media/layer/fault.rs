//! A medium that is slow, fails, returns wrong bytes and loses power, reproducibly by seed.
//!
//! It exercises the failures that [`Medium`] allows and, if the plan requests them, two that it
//! does not allow and that real devices have: lost and misdirected writes. Every write is passed to
//! the wrapped medium at once, and its earlier content is remembered until a sync, as if the write
//! were still in a volatile cache:
//!
//! ```text
//! append: remember old bytes -> write through -> latency -> complete        sync: forget them
//! durable append: the same, then forget the old bytes of its own range, and no others
//! crash:  each unsynced write, newest first: kept | dropped | torn at 512 bytes -> old bytes back
//! ```
//!
//! [Bad ranges](BadRange) fail at every operation, until a write heals them. They belong to the
//! medium and not to a plan.
//!
//! Before the crash, reads therefore see every write. After it, the wrapped medium holds the
//! surviving bytes. Operations in progress at the crash count as unsynced. They and all later
//! operations fail.
//!
//! This layer does not model the speed of a device: latencies are drawn independently, and
//! operations do not queue. Two writes to one region must not be in progress at the same time. An
//! operation whose future is dropped stops where it is.

mod bad;
mod undo;

use std::cell::{Cell, RefCell};
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use rand_xoshiro::rand_core::Rng;

pub use self::bad::BadRange;
use self::bad::BadRanges;
pub use self::undo::Region;
use self::undo::{Rollback, UndoLog};
use super::Layer;
use crate::base::seed::{Random, random};
use crate::base::wait::WaitQueue;
use crate::base::{AlignedBuffer, Clock, Error, ErrorKind, Result, SegmentId};
use crate::media::{Geometry, Medium, SUPERBLOCK_BYTES, not_durable};

/// The unit that a power loss never tears: the smallest sector of common devices.
const SECTOR_BYTES: usize = 512;

/// When a fault strikes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Trigger {
    /// Never.
    #[default]
    Never,
    /// At one operation of the kind, counted from 1 since the plan was set.
    Nth(u64),
    /// At each operation of the kind, independently, with this probability (0 to 1).
    Probability(f64),
}

/// The content of the buffer after a failed read, which must not be mistaken for stored data.
const UNREAD_BYTE: u8 = 0xbd;

/// The faults to inject. The default injects none, but unsynced writes are volatile even then.
#[derive(Clone, Debug)]
pub struct FaultPlan {
    /// Additional time of each operation in nanoseconds, uniformly distributed. With more than one
    /// value, operations complete out of order.
    pub latency_ns: RangeInclusive<u64>,
    /// Failing appends and superblock writes. Whether the bytes have arrived is random.
    pub append_errors: Trigger,
    /// Failing reads, of segments and superblocks.
    pub read_errors: Trigger,
    /// Failing syncs, and durable appends that fail like a sync. The writes that had completed when
    /// a sync failed never become durable, even if a later sync succeeds. Linux's page cache
    /// behaves this way.
    pub sync_errors: Trigger,
    /// Reads, of segments and superblocks, that return one flipped bit.
    pub read_corruptions: Trigger,
    /// Discards that report success and leave all bytes unchanged, as a device may.
    pub discards_ignored: Trigger,
    /// Discards after which the segment reads as noise, as a device may do.
    pub discards_scrambled: Trigger,
    /// Failing discards. Whether the bytes are lost is random.
    pub discard_errors: Trigger,
    /// Appends that fail with `NoSpace`, as on a full file system. Whether some of their bytes have
    /// arrived is random.
    pub no_space_errors: Trigger,
    /// Superblock writes that fail with `NoSpace`, as on a full file system that writes each block
    /// to a new location. Whether some of their bytes have arrived is random.
    pub superblock_no_space_errors: Trigger,
    /// Appends and superblock writes that report success and change nothing. [`Medium`] does not
    /// allow this.
    pub lost_writes: Trigger,
    /// Appends that report success and write their bytes to a random other offset of a random
    /// segment. [`Medium`] does not allow this.
    pub misdirected_writes: Trigger,
    /// Whether a power loss leaves unreadable sectors: in each region, with a probability of a
    /// half, the last sector of the newest unsynced write reads as an error until it is written
    /// again.
    pub crash_leaves_unreadable: bool,
}

impl Default for FaultPlan {
    fn default() -> Self {
        Self {
            latency_ns: 0..=0,
            append_errors: Trigger::Never,
            read_errors: Trigger::Never,
            sync_errors: Trigger::Never,
            read_corruptions: Trigger::Never,
            discards_ignored: Trigger::Never,
            discards_scrambled: Trigger::Never,
            discard_errors: Trigger::Never,
            no_space_errors: Trigger::Never,
            superblock_no_space_errors: Trigger::Never,
            lost_writes: Trigger::Never,
            misdirected_writes: Trigger::Never,
            crash_leaves_unreadable: false,
        }
    }
}

/// The fate of the unsynced writes (appends and superblock writes) in a crash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Crash {
    /// Writes that survived as if synced.
    pub writes_kept: u64,
    /// Writes that left no trace.
    pub writes_dropped: u64,
    /// Writes that survived in part, by whole sectors.
    pub writes_torn: u64,
}

/// The kinds of operation that a trigger counts.
#[derive(Clone, Copy)]
enum Kind {
    Append,
    Read,
    ReadCorruption,
    Sync,
    Discard,
    DiscardScrambled,
    DiscardError,
    NoSpace,
    LostWrite,
    MisdirectedWrite,
    SuperblockNoSpace,
}

/// The durability of a successful write.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    /// Lost or torn by a crash, until a sync.
    Volatile,
    /// Kept by a crash.
    Durable,
}

/// Number of [`Kind`]s.
const KINDS: usize = 11;

/// A medium with faults. See the [module](self).
pub struct Fault<M, C> {
    inner: M,
    clock: C,
    plan: RefCell<FaultPlan>,
    /// Operations of each [`Kind`] since the plan was set.
    operations: Cell<[u64; KINDS]>,
    random: RefCell<Random>,
    undo: RefCell<UndoLog>,
    bad: RefCell<BadRanges>,
    is_off: Cell<bool>,
    geometry: Cell<Option<Geometry>>,
    /// Operations in progress on the wrapped medium.
    in_progress: Cell<u32>,
    finished: WaitQueue,
}

impl<M: Medium, C: Clock> Fault<M, C> {
    /// Wraps `inner`. The same seed and the same operations in the same order cause the same
    /// faults.
    pub fn new(inner: M, clock: C, seed: u64, plan: FaultPlan) -> Self {
        Self {
            inner,
            clock,
            plan: RefCell::new(plan),
            operations: Cell::default(),
            random: RefCell::new(random(seed)),
            undo: RefCell::default(),
            bad: RefCell::default(),
            is_off: Cell::new(false),
            geometry: Cell::new(None),
            in_progress: Cell::new(0),
            finished: WaitQueue::default(),
        }
    }

    /// Replaces the plan and restarts the counters for [`Trigger::Nth`].
    pub fn set_plan(&self, plan: FaultPlan) {
        self.plan.replace(plan);
        self.operations.set(Default::default());
    }

    /// Returns the wrapped medium.
    pub fn inner(&self) -> &M {
        &self.inner
    }

    /// Makes a range bad.
    pub fn add_bad_range(&self, range: BadRange) {
        self.bad.borrow_mut().add(range);
    }

    /// Returns the ranges that are bad now. They are not stored on the wrapped medium: pass them to
    /// the next layer over it if they must persist.
    pub fn bad_ranges(&self) -> Vec<BadRange> {
        self.bad.borrow().ranges().to_vec()
    }

    /// Makes every range good again.
    pub fn clear_bad_ranges(&self) {
        self.bad.borrow_mut().clear();
    }

    /// Simulates a power loss: draws the fate of every unsynced write and leaves exactly the
    /// surviving bytes on the wrapped medium. From this call on, every operation fails, including
    /// those in progress.
    ///
    /// # Errors
    /// Errors of the wrapped medium while bytes are restored; `InvalidInput` at the second call.
    pub async fn crash(&self) -> Result<Crash> {
        if self.is_off.replace(true) {
            return Err(Error::new(ErrorKind::InvalidInput, "the medium has already crashed"));
        }
        self.finished.wait_for(|| (self.in_progress.get() == 0).then_some(())).await;
        assert_eq!(self.in_progress.get(), 0, "no operation outlives the power");
        let interrupted = self.undo.borrow().last_sectors();
        let (rollbacks, crash) = self.undo.borrow_mut().crash(&mut self.random.borrow_mut());
        for rollback in rollbacks {
            self.roll_back(rollback).await?;
        }
        let leaves_unreadable = self.plan.borrow().crash_leaves_unreadable;
        for (region, offset) in interrupted.into_iter().filter(|_| leaves_unreadable) {
            if below(&mut self.random.borrow_mut(), 2) == 0 {
                self.add_bad_range(BadRange::unreadable(region, offset..offset + 1));
            }
        }
        Ok(crash)
    }

    /// Simulates the death of the process that uses the medium, without a power loss. Each write in
    /// progress is present, absent or torn. Every completed write is present, and as volatile as
    /// before. The medium continues to serve.
    ///
    /// # Errors
    /// Errors of the wrapped medium while bytes are restored.
    pub async fn kill(&self) -> Result<Crash> {
        self.finished.wait_for(|| (self.in_progress.get() == 0).then_some(())).await;
        let (rollbacks, crash) = self.undo.borrow_mut().kill(&mut self.random.borrow_mut());
        for rollback in rollbacks {
            self.roll_back(rollback).await?;
        }
        Ok(crash)
    }

    async fn roll_back(&self, Rollback { record, sectors }: Rollback) -> Result<()> {
        if sectors.is_empty() {
            return Ok(());
        }
        let mut content = self.peek(record.region, record.offset, record.old.len()).await?;
        for sector in sectors {
            let range = sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES;
            content[range.clone()].copy_from_slice(&record.old[range]);
        }
        self.inner_write(record.region, record.offset, Arc::new(content), Effect::Volatile).await
    }

    /// Reads the wrapped medium, without faults.
    async fn peek(&self, region: Region, offset: u32, len: usize) -> Result<AlignedBuffer> {
        match region {
            Region::Segment(segment) => {
                let buffer = AlignedBuffer::zeroed(len);
                let (buffer, result) = self.inner.read(segment, offset, buffer).await;
                result.map(|()| buffer)
            }
            Region::Superblock(slot) => self.inner.read_superblock(slot).await,
        }
    }

    async fn inner_write(
        &self,
        region: Region,
        offset: u32,
        buffer: Arc<AlignedBuffer>,
        effect: Effect,
    ) -> Result<()> {
        match (region, effect) {
            (Region::Segment(segment), Effect::Durable) => {
                self.inner.append_durably(segment, offset, buffer).await
            }
            (Region::Segment(segment), _) => self.inner.append(segment, offset, buffer).await,
            (Region::Superblock(slot), _) => {
                self.inner.write_superblock(slot, AlignedBuffer::clone(&buffer)).await
            }
        }
    }

    /// Saves the content that a write of `len` bytes at `offset` is about to replace. Returns the
    /// number of the write.
    async fn remember(&self, region: Region, offset: u32, len: usize) -> Result<u64> {
        let write = offset as usize..offset as usize + len;
        let (start, end) = match region {
            // Whole sectors that the medium can read and write back.
            Region::Segment(_) => {
                let capabilities = self.inner.capabilities();
                let unit = capabilities.read_unit.max(capabilities.write_unit) as usize;
                let unit = unit.max(SECTOR_BYTES);
                (write.start / unit * unit, write.end.next_multiple_of(unit))
            }
            Region::Superblock(_) => (0, SUPERBLOCK_BYTES),
        };
        let offset = u32::try_from(start).expect("offsets in a segment have 32 bits");
        let old = self.peek(region, offset, end - start).await?;
        Ok(self.undo.borrow_mut().begin(region, offset, old, write))
    }

    /// Performs a write with all its faults.
    async fn write(
        &self,
        region: Region,
        offset: u32,
        buffer: Arc<AlignedBuffer>,
        effect: Effect,
    ) -> Result<()> {
        let latency_ns = self.draw_latency_ns();
        let failure = self.draw_failure(region, &range_of(offset, buffer.len()));
        let is_lost = self.strikes(Kind::LostWrite);
        let is_bad = self.bad.borrow().fails_write(region, &range_of(offset, buffer.len()));
        let arrives = failure.is_ok() || (!is_bad && below(&mut self.random.borrow_mut(), 2) == 0);
        // The bytes become visible at once, or after half of the operation's time.
        let is_late = latency_ns > 0 && below(&mut self.random.borrow_mut(), 2) == 0;
        let late_ns = if is_late { latency_ns / 2 } else { 0 };
        assert!(late_ns <= latency_ns, "bytes arrive before their write ends");
        self.pass(late_ns).await?;
        let in_progress = self.enter()?;
        let (region, offset) = self.draw_target(region, offset, buffer.len());
        let range = range_of(offset, buffer.len());
        let id = self.remember(region, offset, buffer.len()).await?;
        let is_written = arrives && !is_lost;
        let written = if is_written {
            self.inner_write(region, offset, buffer, effect).await
        } else {
            Ok(())
        };
        if is_written && written.is_ok() && failure.is_ok() {
            self.bad.borrow_mut().heal(region, &range);
        }
        drop(in_progress);
        let waited = self.pass(latency_ns - late_ns).await;
        let result = written.and(waited).and(failure);
        match result {
            Ok(()) => self.undo.borrow_mut().complete(id),
            Err(_) => self.undo.borrow_mut().doom(&[id]),
        }
        result?;
        if effect == Effect::Durable { self.settle_append(id) } else { Ok(()) }
    }

    /// Makes one completed write durable. If this fails, no completed write can become durable any
    /// more.
    fn settle_append(&self, id: u64) -> Result<()> {
        if self.strikes(Kind::Sync) {
            let completed = self.undo.borrow().completed();
            self.undo.borrow_mut().doom(&completed);
            return Err(not_durable(injected("sync")));
        }
        self.undo.borrow_mut().settle(&[id]);
        Ok(())
    }

    /// Draws the error of a write, if one strikes.
    fn draw_failure(&self, region: Region, range: &Range<u32>) -> Result<()> {
        if self.strikes(Kind::Append) {
            return Err(injected("append"));
        }
        let kind = match region {
            Region::Segment(_) => Kind::NoSpace,
            Region::Superblock(_) => Kind::SuperblockNoSpace,
        };
        if self.strikes(kind) {
            return Err(Error::new(ErrorKind::NoSpace, "injected lack of space in a write"));
        }
        if self.bad.borrow().fails_write(region, range) {
            return Err(injected("append to a bad range"));
        }
        Ok(())
    }

    /// Returns the target of a write: the requested one, unless the fault that misdirects it
    /// strikes.
    fn draw_target(&self, region: Region, offset: u32, len: usize) -> (Region, u32) {
        let Some(geometry) = self.geometry.get() else { return (region, offset) };
        let is_append = matches!(region, Region::Segment(_));
        if !is_append || !self.strikes(Kind::MisdirectedWrite) {
            return (region, offset);
        }
        let random = &mut self.random.borrow_mut();
        let unit = self.inner.capabilities().write_unit;
        let segment = below_u64(random, u64::from(geometry.segment_count));
        let places = (geometry.segment_bytes - range_of(0, len).end) / unit + 1;
        let place = below_u64(random, u64::from(places));
        let [segment, place] = [segment, place].map(|n| u32::try_from(n).expect("below a u32"));
        (Region::Segment(SegmentId(segment)), place * unit)
    }

    /// Fills a segment of the wrapped medium with noise.
    async fn scramble(&self, segment: SegmentId) -> Result<()> {
        let Some(geometry) = self.geometry.get() else { return Ok(()) };
        let mut noise = AlignedBuffer::zeroed(geometry.segment_bytes as usize);
        self.random.borrow_mut().fill_bytes(&mut noise);
        self.inner.append(segment, 0, Arc::new(noise)).await
    }

    /// Applies the faults of a read to its bytes: flips a bit, or fails and overwrites the bytes.
    async fn spoil(
        &self,
        region: Region,
        offset: u32,
        bytes: &mut [u8],
        latency_ns: u64,
    ) -> Result<()> {
        if self.strikes(Kind::ReadCorruption) && !bytes.is_empty() {
            let bit = below(&mut self.random.borrow_mut(), bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        let is_bad = self.bad.borrow().fails_read(region, &range_of(offset, bytes.len()));
        let fails = self.strikes(Kind::Read) || is_bad;
        self.pass(latency_ns).await?;
        if !fails {
            return Ok(());
        }
        bytes.fill(UNREAD_BYTE);
        Err(injected("read"))
    }

    fn draw_latency_ns(&self) -> u64 {
        let plan = self.plan.borrow();
        let (low, high) = (*plan.latency_ns.start(), *plan.latency_ns.end());
        if high <= low {
            return low;
        }
        low + below_u64(&mut self.random.borrow_mut(), (high - low).saturating_add(1))
    }

    /// Counts an operation and returns whether its fault strikes.
    fn strikes(&self, kind: Kind) -> bool {
        let mut operations = self.operations.get();
        operations[kind as usize] += 1;
        self.operations.set(operations);
        let plan = self.plan.borrow();
        let trigger = match kind {
            Kind::Append => plan.append_errors,
            Kind::Read => plan.read_errors,
            Kind::ReadCorruption => plan.read_corruptions,
            Kind::Sync => plan.sync_errors,
            Kind::Discard => plan.discards_ignored,
            Kind::DiscardScrambled => plan.discards_scrambled,
            Kind::DiscardError => plan.discard_errors,
            Kind::NoSpace => plan.no_space_errors,
            Kind::LostWrite => plan.lost_writes,
            Kind::MisdirectedWrite => plan.misdirected_writes,
            Kind::SuperblockNoSpace => plan.superblock_no_space_errors,
        };
        match trigger {
            Trigger::Never => false,
            Trigger::Nth(number) => operations[kind as usize] == number,
            Trigger::Probability(probability) => {
                let uniform = (self.random.borrow_mut().next_u64() >> 11) as f64;
                uniform / ((1u64 << 53) as f64) < probability
            }
        }
    }

    /// Waits for the latency of an operation.
    ///
    /// # Errors
    /// `Medium` if the power was lost meanwhile.
    async fn pass(&self, latency_ns: u64) -> Result<()> {
        if latency_ns > 0 {
            self.clock.sleep_ns(latency_ns).await;
        }
        self.check_power()
    }

    fn check_power(&self) -> Result<()> {
        if self.is_off.get() {
            return Err(Error::new(ErrorKind::Medium, "the medium has lost power"));
        }
        Ok(())
    }

    /// Starts an operation of the wrapped medium. A crash must wait for it.
    fn enter(&self) -> Result<InProgress<'_>> {
        self.check_power()?;
        self.in_progress.set(self.in_progress.get() + 1);
        Ok(InProgress { count: &self.in_progress, finished: &self.finished })
    }
}

/// An operation in progress on the wrapped medium, until it is dropped.
struct InProgress<'a> {
    count: &'a Cell<u32>,
    finished: &'a WaitQueue,
}

impl Drop for InProgress<'_> {
    fn drop(&mut self) {
        let left = self.count.get().checked_sub(1);
        self.count.set(left.expect("an operation ends once"));
        self.finished.wake_all();
    }
}

fn range_of(offset: u32, len: usize) -> Range<u32> {
    let len = u32::try_from(len).expect("offsets in a segment have 32 bits");
    offset..offset + len
}

fn injected(operation: &str) -> Error {
    Error::new(ErrorKind::Medium, format!("injected failure of a {operation}"))
}

/// Returns a uniform random number below `bound`, which is not 0.
///
/// Source: Lemire, "Fast Random Integer Generation in an Interval", 2019, without the rejection:
/// the bias is below 2^-32 for every bound used here.
fn below_u64(random: &mut Random, bound: u64) -> u64 {
    assert!(bound > 0, "no number is below 0");
    ((u128::from(random.next_u64()) * u128::from(bound)) >> 64) as u64
}

/// Returns a uniform random index below `bound`, which is not 0.
fn below(random: &mut Random, bound: usize) -> usize {
    usize::try_from(below_u64(random, bound as u64)).expect("below a usize")
}

impl<M: Medium, C: Clock> Layer for Fault<M, C> {
    type Inner = M;

    fn inner(&self) -> &M {
        &self.inner
    }

    fn on_set_geometry(&self, geometry: Geometry) -> Result<()> {
        self.inner.set_geometry(geometry)?;
        self.geometry.set(Some(geometry));
        Ok(())
    }

    async fn on_append(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: Arc<AlignedBuffer>,
    ) -> Result<()> {
        self.write(Region::Segment(segment), offset, buffer, Effect::Volatile).await
    }

    async fn on_append_durably(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: Arc<AlignedBuffer>,
    ) -> Result<()> {
        self.write(Region::Segment(segment), offset, buffer, Effect::Durable).await
    }

    async fn on_read(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: AlignedBuffer,
    ) -> (AlignedBuffer, Result<()>) {
        let latency_ns = self.draw_latency_ns();
        let in_progress = match self.enter() {
            Ok(in_progress) => in_progress,
            Err(error) => return (buffer, Err(error)),
        };
        let (mut buffer, read) = self.inner.read(segment, offset, buffer).await;
        drop(in_progress);
        let region = Region::Segment(segment);
        let spoilt = self.spoil(region, offset, &mut buffer, latency_ns).await;
        (buffer, read.and(spoilt))
    }

    async fn on_sync(&self) -> Result<()> {
        let latency_ns = self.draw_latency_ns();
        let fails = self.strikes(Kind::Sync);
        let in_progress = self.enter()?;
        let completed = self.undo.borrow().completed();
        let synced = self.inner.sync().await;
        drop(in_progress);
        self.pass(latency_ns).await?;
        let result = synced.and(if fails { Err(injected("sync")) } else { Ok(()) });
        match result {
            Ok(()) => self.undo.borrow_mut().settle(&completed),
            Err(_) => self.undo.borrow_mut().doom(&completed),
        }
        result
    }

    /// Takes effect immediately and then survives a crash, or has no effect if the plan ignores it.
    async fn on_discard(&self, segment: SegmentId) -> Result<()> {
        let latency_ns = self.draw_latency_ns();
        let fails = self.strikes(Kind::DiscardError);
        let is_lost = fails && below(&mut self.random.borrow_mut(), 2) == 0;
        let is_ignored = self.strikes(Kind::Discard) || is_lost;
        let is_scrambled = self.strikes(Kind::DiscardScrambled);
        let in_progress = self.enter()?;
        if !is_ignored {
            self.undo.borrow_mut().forget(segment);
            self.inner.discard(segment).await?;
            if is_scrambled {
                self.scramble(segment).await?;
            }
        }
        drop(in_progress);
        self.pass(latency_ns).await?;
        if fails { Err(injected("discard")) } else { Ok(()) }
    }

    async fn on_read_superblock(&self, slot: u32) -> Result<AlignedBuffer> {
        let latency_ns = self.draw_latency_ns();
        let in_progress = self.enter()?;
        let read = self.inner.read_superblock(slot).await;
        drop(in_progress);
        let mut buffer = read?;
        self.spoil(Region::Superblock(slot), 0, &mut buffer, latency_ns).await?;
        Ok(buffer)
    }

    async fn on_write_superblock(&self, slot: u32, bytes: AlignedBuffer) -> Result<()> {
        self.write(Region::Superblock(slot), 0, Arc::new(bytes), Effect::Volatile).await
    }
}

#[cfg(test)]
mod tests;

//! A medium that is slow, fails, returns wrong bytes and loses power: reproducibly, by seed.
//!
//! It exercises exactly what [`Medium`] allows. Around any medium, every write goes through to the
//! wrapped one at once, and what it replaced is remembered until a sync, as if the write were still
//! in a volatile cache:
//!
//! ```text
//! append: remember old bytes -> write through -> latency -> complete        sync: forget them
//! crash:  each unsynced write, newest first: kept | dropped | torn at 512 bytes -> old bytes back
//! ```
//!
//! So reads see everything before the crash, and after it the wrapped medium holds what survived.
//! Operations under way at the crash are as good as unsynced; they and all later ones then fail.
//!
//! Deliberately not a model of a device's speed: latencies are drawn independently, and nothing
//! queues. Two writes to one place must not be under way at the same time. A dropped future stops
//! where it is.

mod undo;

use std::cell::{Cell, RefCell};
use std::ops::RangeInclusive;
use std::sync::Arc;

use rand_xoshiro::rand_core::Rng;

use self::undo::{Place, Rollback, UndoLog};
use crate::base::seed::{Random, random};
use crate::base::wait::WaitQueue;
use crate::base::{AlignedBuffer, Clock, Error, ErrorKind, Result, SegmentId};
use crate::media::{Capabilities, Geometry, Medium, SUPERBLOCK_BYTES};

/// What a power loss leaves whole: the smallest sector of common devices.
const SECTOR_BYTES: usize = 512;

/// When a fault strikes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Trigger {
    /// Never.
    #[default]
    Never,
    /// At one operation of its kind, counted from 1 since the plan was set.
    Nth(u64),
    /// At each operation of its kind, independently, with this probability (0 to 1).
    Probability(f64),
}

/// What stands in the buffer of a read that failed: nobody must take it for content.
const UNREAD_BYTE: u8 = 0xbd;

/// Which faults to inject. The default injects none, but the cache is volatile all the same.
#[derive(Clone, Debug)]
pub struct FaultPlan {
    /// Time that each operation takes in addition, in nanoseconds, uniformly distributed. With
    /// more than one value, operations complete out of order.
    pub latency_ns: RangeInclusive<u64>,
    /// Failing appends and superblock writes. Whether the bytes have arrived is drawn.
    pub append_errors: Trigger,
    /// Failing reads, of segments and superblocks.
    pub read_errors: Trigger,
    /// Failing syncs. What one of them should have made durable never becomes so, whatever later
    /// syncs say: the behaviour of Linux's page cache.
    pub sync_errors: Trigger,
    /// Reads, of segments and superblocks, that return one flipped bit.
    pub read_corruptions: Trigger,
    /// Discards that report success and leave all bytes as they are, as a device may.
    pub discards_ignored: Trigger,
    /// Discards after which the segment reads as noise, as a device may give.
    pub discards_scrambled: Trigger,
    /// Failing discards. Whether the bytes are gone is drawn.
    pub discard_errors: Trigger,
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
        }
    }
}

/// What became of the unsynced writes (appends and superblock writes) in a crash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Crash {
    /// Writes that survived as if synced.
    pub writes_kept: u64,
    /// Writes that left nothing.
    pub writes_dropped: u64,
    /// Writes of which some sectors survived.
    pub writes_torn: u64,
}

/// The kinds of operation that triggers count.
#[derive(Clone, Copy)]
enum Kind {
    Append,
    Read,
    ReadCorruption,
    Sync,
    Discard,
    DiscardScrambled,
    DiscardError,
}

/// Number of [`Kind`]s.
const KINDS: usize = 7;

/// A medium with faults. See the [module](self).
pub struct Fault<M, C> {
    inner: M,
    clock: C,
    plan: RefCell<FaultPlan>,
    /// Operations of each [`Kind`] since the plan was set.
    operations: Cell<[u64; KINDS]>,
    random: RefCell<Random>,
    undo: RefCell<UndoLog>,
    is_off: Cell<bool>,
    geometry: Cell<Option<Geometry>>,
    /// Operations that the wrapped medium has not finished.
    under_way: Cell<u32>,
    finished: WaitQueue,
}

impl<M: Medium, C: Clock> Fault<M, C> {
    /// Wraps `inner`. The same seed and the same operations in the same order give the same faults.
    pub fn new(inner: M, clock: C, seed: u64, plan: FaultPlan) -> Self {
        Self {
            inner,
            clock,
            plan: RefCell::new(plan),
            operations: Cell::default(),
            random: RefCell::new(random(seed)),
            undo: RefCell::default(),
            is_off: Cell::new(false),
            geometry: Cell::new(None),
            under_way: Cell::new(0),
            finished: WaitQueue::default(),
        }
    }

    /// Replaces the plan, and starts the counting for [`Trigger::Nth`] again.
    pub fn set_plan(&self, plan: FaultPlan) {
        self.plan.replace(plan);
        self.operations.set(Default::default());
    }

    /// The wrapped medium.
    pub fn inner(&self) -> &M {
        &self.inner
    }

    /// Power loss: decides for every unsynced write what survives and leaves exactly that on the
    /// wrapped medium. From the call on every operation fails, those under way included.
    ///
    /// # Errors
    /// What the wrapped medium reports while bytes are put back; `InvalidInput` at the second call.
    pub async fn crash(&self) -> Result<Crash> {
        if self.is_off.replace(true) {
            return Err(Error::new(ErrorKind::InvalidInput, "the medium has crashed already"));
        }
        self.finished.wait_for(|| (self.under_way.get() == 0).then_some(())).await;
        let (rollbacks, crash) = self.undo.borrow_mut().crash(&mut self.random.borrow_mut());
        for rollback in rollbacks {
            self.roll_back(rollback).await?;
        }
        Ok(crash)
    }

    /// The process that used the medium is gone, the power is not: of the writes under way each is
    /// there, not there, or torn; all that had completed is there, and as volatile as before. The
    /// medium goes on serving.
    ///
    /// # Errors
    /// What the wrapped medium reports while bytes are put back.
    pub async fn kill(&self) -> Result<Crash> {
        self.finished.wait_for(|| (self.under_way.get() == 0).then_some(())).await;
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
        let mut content = self.peek(record.place, record.offset, record.old.len()).await?;
        for sector in sectors {
            let range = sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES;
            content[range.clone()].copy_from_slice(&record.old[range]);
        }
        self.inner_write(record.place, record.offset, Arc::new(content)).await
    }

    /// Reads the wrapped medium, without faults.
    async fn peek(&self, place: Place, offset: u32, len: usize) -> Result<AlignedBuffer> {
        match place {
            Place::Segment(segment) => {
                let buffer = AlignedBuffer::zeroed(len);
                let (buffer, result) = self.inner.read(segment, offset, buffer).await;
                result.map(|()| buffer)
            }
            Place::Superblock(slot) => self.inner.read_superblock(slot).await,
        }
    }

    async fn inner_write(
        &self,
        place: Place,
        offset: u32,
        buffer: Arc<AlignedBuffer>,
    ) -> Result<()> {
        match place {
            Place::Segment(segment) => self.inner.append(segment, offset, buffer).await,
            Place::Superblock(slot) => {
                self.inner.write_superblock(slot, AlignedBuffer::clone(&buffer)).await
            }
        }
    }

    /// Saves what a write of `len` bytes at `offset` is about to replace; gives the write's number.
    async fn remember(&self, place: Place, offset: u32, len: usize) -> Result<u64> {
        let write = offset as usize..offset as usize + len;
        let (start, end) = match place {
            // Whole sectors that can be read and written back.
            Place::Segment(_) => {
                let capabilities = self.inner.capabilities();
                let unit = capabilities.read_unit.max(capabilities.write_unit) as usize;
                let unit = unit.max(SECTOR_BYTES);
                (write.start / unit * unit, write.end.next_multiple_of(unit))
            }
            Place::Superblock(_) => (0, SUPERBLOCK_BYTES),
        };
        let old = self.peek(place, start as u32, end - start).await?;
        Ok(self.undo.borrow_mut().begin(place, start as u32, old, write))
    }

    /// A write with all its faults.
    async fn write(&self, place: Place, offset: u32, buffer: Arc<AlignedBuffer>) -> Result<()> {
        let latency_ns = self.draw_latency_ns();
        let fails = self.strikes(Kind::Append);
        let arrives = !fails || below(&mut self.random.borrow_mut(), 2) == 0;
        // Its bytes are seen on the medium at once, or after half of the time that it takes.
        let is_late = latency_ns > 0 && below(&mut self.random.borrow_mut(), 2) == 0;
        let late_ns = if is_late { latency_ns / 2 } else { 0 };
        self.pass(late_ns).await?;
        let under_way = self.enter()?;
        let id = self.remember(place, offset, buffer.len()).await?;
        let written = if arrives { self.inner_write(place, offset, buffer).await } else { Ok(()) };
        drop(under_way);
        let failure = if fails { Err(injected("append")) } else { Ok(()) };
        let waited = self.pass(latency_ns - late_ns).await;
        let result = written.and(waited).and(failure);
        match result {
            Ok(()) => self.undo.borrow_mut().complete(id),
            Err(_) => self.undo.borrow_mut().doom(&[id]),
        }
        result
    }

    /// Fills a segment of the wrapped medium with noise.
    async fn scramble(&self, segment: SegmentId) -> Result<()> {
        let Some(geometry) = self.geometry.get() else { return Ok(()) };
        let mut noise = AlignedBuffer::zeroed(geometry.segment_bytes as usize);
        self.random.borrow_mut().fill_bytes(&mut noise);
        self.inner.append(segment, 0, Arc::new(noise)).await
    }

    /// What is wrong with a read that just got its bytes: flips a bit, or fails, and then the bytes
    /// are not what they should be.
    async fn spoil(&self, bytes: &mut [u8], latency_ns: u64) -> Result<()> {
        if self.strikes(Kind::ReadCorruption) && !bytes.is_empty() {
            let bit = below(&mut self.random.borrow_mut(), bytes.len() as u64 * 8) as usize;
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        let fails = self.strikes(Kind::Read);
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
        low + below(&mut self.random.borrow_mut(), (high - low).saturating_add(1))
    }

    /// Counts an operation and says whether its fault strikes.
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

    /// Lets the latency of an operation pass.
    ///
    /// # Errors
    /// `Medium` if the power went meanwhile.
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

    /// Begins an operation of the wrapped medium, which a crash must wait for.
    fn enter(&self) -> Result<UnderWay<'_>> {
        self.check_power()?;
        self.under_way.set(self.under_way.get() + 1);
        Ok(UnderWay { count: &self.under_way, finished: &self.finished })
    }
}

/// An operation of the wrapped medium, until dropped.
struct UnderWay<'a> {
    count: &'a Cell<u32>,
    finished: &'a WaitQueue,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.count.set(self.count.get() - 1);
        self.finished.wake_all();
    }
}

fn injected(operation: &str) -> Error {
    Error::new(ErrorKind::Medium, format!("injected failure of a {operation}"))
}

/// A uniform number below `bound`, which is not 0.
///
/// Source: Lemire, "Fast Random Integer Generation in an Interval", 2019, without the rejection:
/// the bias is below 2^-32 for every bound used here.
fn below(random: &mut Random, bound: u64) -> u64 {
    ((u128::from(random.next_u64()) * u128::from(bound)) >> 64) as u64
}

impl<M: Medium, C: Clock> Medium for Fault<M, C> {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn set_geometry(&self, geometry: Geometry) -> Result<()> {
        self.inner.set_geometry(geometry)?;
        self.geometry.set(Some(geometry));
        Ok(())
    }

    async fn append(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: Arc<AlignedBuffer>,
    ) -> Result<()> {
        self.write(Place::Segment(segment), offset, buffer).await
    }

    async fn read(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: AlignedBuffer,
    ) -> (AlignedBuffer, Result<()>) {
        let latency_ns = self.draw_latency_ns();
        let under_way = match self.enter() {
            Ok(under_way) => under_way,
            Err(error) => return (buffer, Err(error)),
        };
        let (mut buffer, read) = self.inner.read(segment, offset, buffer).await;
        drop(under_way);
        let spoilt = self.spoil(&mut buffer, latency_ns).await;
        (buffer, read.and(spoilt))
    }

    async fn sync(&self) -> Result<()> {
        let latency_ns = self.draw_latency_ns();
        let fails = self.strikes(Kind::Sync);
        let under_way = self.enter()?;
        let completed = self.undo.borrow().completed();
        let synced = self.inner.sync().await;
        drop(under_way);
        self.pass(latency_ns).await?;
        let result = synced.and(if fails { Err(injected("sync")) } else { Ok(()) });
        match result {
            Ok(()) => self.undo.borrow_mut().settle(&completed),
            Err(_) => self.undo.borrow_mut().doom(&completed),
        }
        result
    }

    /// Takes effect at once, and then survives a crash; or not at all, if the plan ignores it.
    async fn discard(&self, segment: SegmentId) -> Result<()> {
        let latency_ns = self.draw_latency_ns();
        let fails = self.strikes(Kind::DiscardError);
        let is_lost = fails && below(&mut self.random.borrow_mut(), 2) == 0;
        let is_ignored = self.strikes(Kind::Discard) || is_lost;
        let is_scrambled = self.strikes(Kind::DiscardScrambled);
        let under_way = self.enter()?;
        if !is_ignored {
            self.undo.borrow_mut().forget(segment);
            self.inner.discard(segment).await?;
            if is_scrambled {
                self.scramble(segment).await?;
            }
        }
        drop(under_way);
        self.pass(latency_ns).await?;
        if fails { Err(injected("discard")) } else { Ok(()) }
    }

    async fn read_superblock(&self, slot: u32) -> Result<AlignedBuffer> {
        let latency_ns = self.draw_latency_ns();
        let under_way = self.enter()?;
        let read = self.inner.read_superblock(slot).await;
        drop(under_way);
        let mut buffer = read?;
        self.spoil(&mut buffer, latency_ns).await?;
        Ok(buffer)
    }

    async fn write_superblock(&self, slot: u32, bytes: AlignedBuffer) -> Result<()> {
        self.write(Place::Superblock(slot), 0, Arc::new(bytes)).await
    }
}

#[cfg(test)]
mod tests;

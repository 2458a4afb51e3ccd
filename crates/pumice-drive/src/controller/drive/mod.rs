//! The shell: an open drive as used by the host and the tasks. Async code over two seams,
//! [`AnyMedium`] and [`AnyClock`], around the core.
//!
//! ```text
//!   request or task --> Drive::with_core(call) --> core
//!         ^                      |
//!         |   wake queues <------+  changes made by the call
//!         +-- wait, I/O
//! ```
//!
//! The core is borrowed for the length of a call and never across an await. The shell itself owns
//! queues of waiting tasks, buffers, decoded frames, loads under way and codecs, none of which are
//! part of the drive's state.
//!
//! * `open`: opening, the drive's tasks, closing. `view`: reading a snapshot of an open drive.
//! * `origin`: the snapshot from which a clone reads.
//! * `leaves`: loading leaves of the map. `frame_cache`: decoded frames.
//! * `read_cache`: decoded blocks. `read_ahead`: stored frames that a host is about to request.
//! * `streams`: recognizing sequential reads.
//! * `audited`: results of audits of snapshots.
//! * `superblocks`: the two slots. `restoring`: damaged records from parity.

mod audited;
pub(crate) mod frame_cache;
pub(super) mod leaf_sweep;
pub(super) mod leaves;
pub(super) mod open;
mod origin;
pub(super) mod read_ahead;
pub(super) mod read_cache;
mod restoring;
pub(super) mod streams;
pub(crate) mod superblocks;
mod view;

use std::cell::{Cell, OnceCell, Ref, RefCell};
use std::pin::pin;
use std::rc::Rc;

pub(super) use audited::{Audited, Found, Named};
use frame_cache::FrameCache;
use futures_util::future::{Either, select};
use leaves::Loads;
pub(super) use open::check_kind;
pub use origin::{is_flat_on, origin_on};
use read_ahead::ReadAhead;
use read_cache::ReadCache;
use restoring::Restoring;
use serde::{Deserialize, Serialize};
use streams::Streams;
use view::Lease;

use super::core::{Core, Wakes};
use super::log::buffers::Buffers;
use super::log::walk::Cut;
use super::options::OpenOptions;
use crate::base::clock::AnyClock;
use crate::base::wait::WaitQueue;
use crate::base::{Error, ErrorKind, Result, SegmentId};
use crate::codec::{Codec, Compressor, Decompressor, FrameForm, Workers};
use crate::format::Superblock;
use crate::media::{AnyMedium, Geometry};

/// Interval at which a write is repeated while the medium has no space for it.
pub(super) const FULL_RETRY_NS: u64 = 1_000_000_000;

/// An open drive: a disk of [`Drive::size_bytes`] bytes for a host, on a medium of segments.
///
/// [`Drive::open`] starts the background tasks; [`Drive::close`] ends them.
pub struct Drive {
    pub(super) medium: Rc<dyn AnyMedium>,
    pub(super) clock: Rc<dyn AnyClock>,
    pub(super) options: OpenOptions,
    core: RefCell<Core>,
    pub(super) queues: Queues,
    pub(super) opened: Opened,
    /// Codec of new frames, as recorded in the superblock.
    pub(super) codec: Cell<Codec>,
    pub(super) form: FrameForm,
    pub(super) read_unit: u32,
    pub(super) loads: Loads,
    restoring: Restoring,
    pub(super) cache: FrameCache,
    pub(super) read_cache: ReadCache,
    pub(super) streams: Streams,
    pub(super) ahead: ReadAhead,
    pub(super) buffers: Buffers,
    pub(super) compressor: RefCell<Compressor>,
    pub(super) meta_compressor: RefCell<Compressor>,
    pub(super) decompressor: RefCell<Decompressor>,
    pub(super) workers: OnceCell<Workers>,
    /// Number of tasks that have a handle to the drive.
    tasks: Cell<usize>,
    /// Whether the task of garbage collection runs.
    pub(super) gc_runs: Cell<bool>,
    pub(super) scrub: Cell<ScrubProgress>,
    /// For a view, the lease on the drive whose snapshot it shows.
    lease: Option<Lease>,
    /// For a clone, the drive from which its holes read, once it is open.
    origin: OnceCell<Rc<Drive>>,
    /// The state of snapshots that tests have learned from earlier audits.
    pub(super) audited: RefCell<Audited>,
}

/// Tasks that wait for the core. [`Wakes`] lists the events that wake each queue.
#[derive(Debug, Default)]
pub(super) struct Queues {
    pub(super) progress: WaitQueue,
    pub(super) writers: WaitQueue,
    pub(super) syncer: WaitQueue,
    pub(super) collector: WaitQueue,
    pub(super) checkpointer: WaitQueue,
    pub(super) turn: WaitQueue,
    pub(super) warmer: WaitQueue,
    /// Garbage collection has ended.
    pub(super) collector_ended: WaitQueue,
    /// A snapshot that yields was given up.
    pub(super) given_up: WaitQueue,
    /// [`Core::end`] was called.
    ending: WaitQueue,
    /// A task of the drive has ended.
    tasks_ended: WaitQueue,
}

impl Queues {
    #[cold]
    #[inline(never)]
    fn wake(&self, wakes: Wakes) {
        let queues = [
            (Wakes::WRITERS, &self.writers),
            (Wakes::SYNCER, &self.syncer),
            (Wakes::COLLECTOR, &self.collector),
            (Wakes::CHECKPOINTER, &self.checkpointer),
            (Wakes::TURN, &self.turn),
            (Wakes::WARMER, &self.warmer),
            (Wakes::PROGRESS, &self.progress),
        ];
        for (wake, queue) in queues {
            if wakes.has(wake) {
                queue.wake_all();
            }
        }
    }
}

/// Progress of the running scrub, or the end of the last one; all 0 before the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ScrubProgress {
    /// Whether a scrub is running.
    pub scrub_running: bool,
    /// Segments to read, as far as known.
    pub scrub_segments: u64,
    /// Segments that have been read.
    pub scrub_segments_done: u64,
    /// Bytes of batches read and checked.
    pub scrub_checked_bytes: u64,
    /// Problems found.
    pub scrub_problems: u64,
    /// Scrubs that completed since the opening.
    pub scrubs_completed: u64,
}

/// Data about the opening of a drive.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opened {
    /// Whether the drive had been closed cleanly.
    pub(super) was_clean: bool,
    /// Batches that were rolled forward.
    pub(super) recovered_batches: u64,
    /// Nanoseconds that recovery took.
    pub(super) recovery_ns: u64,
    /// The bytes found beyond the end of the log.
    pub(super) cut: Cut,
}

impl Drive {
    /// Calls the core, then wakes the tasks that can continue after the call.
    #[inline]
    pub(super) fn with_core<T>(&self, call: impl FnOnce(&mut Core) -> T) -> T {
        let mut core = self.core.borrow_mut();
        let result = call(&mut core);
        let wakes = core.take_wakes();
        drop(core);
        if !wakes.is_empty() {
            self.queues.wake(wakes);
        }
        result
    }

    /// Returns the core for reading, for the length of an expression.
    #[inline]
    pub(super) fn core(&self) -> Ref<'_, Core> {
        self.core.borrow()
    }

    /// Calls the core now and whenever `queue` is woken, until it returns a value.
    pub(super) async fn wait_for<T>(
        &self,
        queue: &WaitQueue,
        mut call: impl FnMut(&mut Core) -> Option<T>,
    ) -> T {
        queue.wait_for(|| self.with_core(&mut call)).await
    }

    /// Repeats a call that needs space in the log until the space is available; see
    /// [`Core::make_room`].
    pub(super) async fn with_room<T>(
        &self,
        mut call: impl FnMut(&mut Core) -> Result<Option<T>>,
    ) -> Result<T> {
        self.wait_for(&self.queues.progress, |core| call(core).transpose()).await
    }

    /// Lets these threads compress host writes for which passing the work on is worthwhile. Without
    /// them, as with a codec of `none`, all work is done on the drive's own thread, and in the same
    /// order in every run. Only the first call has an effect. A drive in virtual time accepts only
    /// [`Workers`] without threads: virtual time does not wait for other threads.
    pub fn use_workers(&self, workers: Workers) {
        let _ = self.workers.set(workers);
    }

    /// Returns the size of the host's disk in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.core().size_bytes()
    }

    /// Returns whether writes are refused.
    pub fn is_read_only(&self) -> bool {
        self.options.read_only
    }

    /// Returns the identity of the drive.
    pub fn uuid(&self) -> uuid::Uuid {
        self.core().superblock().uuid
    }

    /// Returns the division of the medium into segments.
    pub fn geometry(&self) -> Geometry {
        superblocks::geometry(self.core().superblock())
    }

    /// Returns the medium.
    pub fn medium(&self) -> &dyn AnyMedium {
        &*self.medium
    }

    /// Waits until `ns` nanoseconds have passed, or until the drive is closing.
    pub(super) async fn pause(&self, ns: u64) {
        let ending = || self.core().is_ending().then_some(());
        let ends = pin!(self.queues.ending.wait_for(ending));
        select(ends, pin!(self.clock.sleep_ns(ns))).await;
    }

    /// Waits until more than `seen` snapshots that yield were given up since the opening because
    /// the host needed their space. Returns their number; `None` once the drive is closing.
    // For the server, which withdraws their exports: others compare `snapshots`.
    #[doc(hidden)]
    pub async fn snapshots_given_up(&self, seen: u64) -> Option<u64> {
        let more = || Some(self.core().snapshots().given_up()).filter(|&count| count > seen);
        let ending = || self.core().is_ending().then_some(());
        let given_up = pin!(self.queues.given_up.wait_for(more));
        match select(pin!(self.queues.ending.wait_for(ending)), given_up).await {
            Either::Left(_) => None,
            Either::Right((count, _)) => Some(count),
        }
    }

    /// Protects a segment from being freed until the pin is dropped.
    #[inline]
    pub(super) fn pin(&self, segment: SegmentId) -> Pin<'_> {
        self.with_core(|core| core.pin(segment));
        Pin { drive: self, segment }
    }
}

/// A read under way in a segment.
pub(super) struct Pin<'a> {
    drive: &'a Drive,
    segment: SegmentId,
}

impl Drop for Pin<'_> {
    #[inline]
    fn drop(&mut self) {
        self.drive.with_core(|core| core.unpin(self.segment));
    }
}

/// The turn to change checkpoint and superblock, which ends when dropped.
pub(super) struct Turn<'a>(&'a Drive);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.with_core(Core::return_turn);
    }
}

/// Records that a superblock waits for space, if it `has_waited`, until dropped.
struct WaitsForSpace<'a> {
    drive: &'a Drive,
    has_waited: bool,
}

impl Drop for WaitsForSpace<'_> {
    fn drop(&mut self) {
        if self.has_waited {
            self.drive.with_core(Core::superblock_has_space);
        }
    }
}

/// Marks superblocks as being written. If this is dropped before the end, it is unknown which one
/// counts.
struct Updating<'a> {
    drive: &'a Drive,
    has_ended: bool,
}

impl Drop for Updating<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            let what = "writing the superblocks was cancelled before its end";
            self.drive.with_core(|core| core.poison(&Error::new(ErrorKind::Poisoned, what)));
        }
    }
}

impl Drive {
    /// Waits for the turn to change checkpoint and superblock.
    pub(super) async fn turn(&self) -> Turn<'_> {
        self.wait_for(&self.queues.turn, |core| core.take_turn().then_some(())).await;
        Turn(self)
    }

    /// Changes the superblock: writes one slot, makes it durable, then writes the other. The caller
    /// has the turn. If the medium has no space for a slot, the write is repeated every second;
    /// until it succeeds, the other slot counts.
    ///
    /// # Errors
    /// `Medium` or `Poisoned`, and the drive is poisoned, since it is unknown which superblock
    /// counts. Dropping the future before its end also poisons the drive. `NoSpace` if the drive
    /// ends while the medium has no space; if neither slot was written, nothing is changed.
    pub(super) async fn update_superblocks(
        &self,
        change: impl FnOnce(&mut Superblock),
    ) -> Result<()> {
        let mut updating = Updating { drive: self, has_ended: false };
        let slot = self.core().next_superblock_slot();
        let updated = self.store_superblocks(change).await;
        updating.has_ended = true;
        let is_unchanged = self.core().next_superblock_slot() == slot;
        assert!(updated.is_err() || is_unchanged, "both slots are written, or none is next");
        if let Err(error) = &updated
            && !(error.kind() == ErrorKind::NoSpace && is_unchanged)
            && !self.core().log().is_poisoned()
        {
            self.with_core(|core| core.poison(error));
        }
        updated
    }

    async fn store_superblocks(&self, change: impl FnOnce(&mut Superblock)) -> Result<()> {
        let mut superblock = self.core().next_superblock();
        change(&mut superblock);
        for _ in 0..2 {
            let slot = self.core().next_superblock_slot();
            superblock.revision = superblock.revision.saturating_add(1);
            self.store_slot(slot, &superblock).await?;
            self.sync().await?;
            self.with_core(|core| core.superblock_slot_written(slot));
        }
        self.with_core(|core| core.set_superblock(superblock));
        Ok(())
    }

    /// Writes a superblock to a slot, and repeats the write while the medium has no space for it.
    /// The slot may be torn in the meantime; the other one counts. Every waiter waits for the whole
    /// update, so nothing that needs the update is acknowledged early.
    async fn store_slot(&self, slot: u32, superblock: &Superblock) -> Result<()> {
        let mut waiting = WaitsForSpace { drive: self, has_waited: false };
        loop {
            self.core().log().check_poison()?;
            match superblocks::store(&*self.medium, slot, superblock).await {
                Err(error) if error.kind() == ErrorKind::NoSpace => {
                    // The closing of the drive does not wait for space.
                    if self.core().is_ending() {
                        return Err(error);
                    }
                    waiting.has_waited = true;
                    self.with_core(|core| core.superblock_lacks_space(&error));
                }
                stored => return stored,
            }
            self.pause(FULL_RETRY_NS).await;
        }
    }

    /// Writes a superblock of a poisoned drive to the older slot and syncs the medium. The newer
    /// slot stays as it is, so nothing is lost if this fails. The caller has the turn, and no sync
    /// is under way.
    pub(super) async fn store_one_superblock(&self, mut superblock: Superblock) -> Result<()> {
        let slot = self.core().next_superblock_slot();
        superblocks::store_next(&*self.medium, slot, &mut superblock).await?;
        self.medium.sync().await?;
        self.with_core(|core| {
            core.superblock_slot_written(slot);
            core.set_superblock(superblock);
        });
        Ok(())
    }

    /// Waits for a sync of the medium that begins after this call and covers all operations
    /// completed by then.
    ///
    /// # Errors
    /// `Poisoned` if this sync or an earlier one fails.
    pub(super) async fn sync(&self) -> Result<()> {
        let number = self.with_core(Core::request_sync);
        let synced = |core: &mut Core| {
            if core.log().has_synced(number) {
                return Some(Ok(()));
            }
            core.log().check_poison().err().map(Err)
        };
        self.wait_for(&self.queues.progress, synced).await
    }
}

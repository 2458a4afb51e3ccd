//! Opening a drive, its background tasks, and closing.
//!
//! ```text
//! superblock -> recovery builds the core -> sync -> both superblock slots, in a new epoch -> tasks
//! close: background tasks end -> flush -> checkpoint -> superblocks, clean -> writers end
//! ```

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use super::super::core::{Core, GivesBack, Settings};
use super::super::log::buffers::Buffers;
use super::super::log::walk::{Pages, WalkEnd};
use super::super::log::{BUFFER_COUNT, LogEnd, Tail, WRITERS};
use super::super::options::OpenOptions;
use super::super::recovery::{self, Limits, Reader, Recovered, make_equal};
use super::frame_cache::FrameCache;
use super::leaves::Loads;
use super::read_ahead::ReadAhead;
use super::read_cache::ReadCache;
use super::streams::Streams;
use super::superblocks::{self, StoredSuperblock};
use super::{Drive, Opened, Queues};
use crate::base::clock::{AnyClock, Task};
use crate::base::{AlignedBuffer, Error, ErrorKind, Remedy, Result, SegmentId};
use crate::codec::{Codec, Compressor, Decompressor, FrameForm};
use crate::format::{BATCH_ALIGNMENT, Snapshot, Superblock};
use crate::media::{AnyMedium, SUPERBLOCK_SLOTS};

/// Attempts to read bytes that were just written.
const READS_MAX: usize = 3;

impl Drive {
    /// Opens the drive on a medium: reads the superblock, replays the log, begins a new epoch
    /// unless read-only, and starts the drive's tasks on `clock`, which also runs tasks. The tasks
    /// write batches to the medium, sync it, collect garbage and write checkpoints. They end after
    /// [`Drive::close`]. A drive whose process crashed needs no special treatment.
    ///
    /// # Errors
    /// `NotADrive`, `Unsupported`, `Corrupt`, `Medium`; `InvalidInput` if the medium is too small,
    /// if the disk contains a part of a snapshot and `partial` is not set, or if the log changes
    /// more of the map than four times `map_cache_bytes`, or 1 GiB if that is more.
    pub async fn open(
        medium: Rc<dyn AnyMedium>,
        clock: Rc<dyn AnyClock>,
        options: OpenOptions,
    ) -> Result<Rc<Self>> {
        let drive = Rc::new(Self::open_without_tasks(medium, clock, options).await?);
        drive.settle_room().await;
        Ok(Self::start(drive))
    }

    /// Opens a drive that [`create_target`](crate::controller::create_target) created, to write the
    /// disk being rebuilt. The drive stays incomplete when it is closed, until
    /// [`complete_target`](crate::controller::complete_target).
    ///
    /// # Errors
    /// The errors of [`Drive::open`].
    pub async fn open_target(
        medium: Rc<dyn AnyMedium>,
        clock: Rc<dyn AnyClock>,
    ) -> Result<Rc<Self>> {
        let options = OpenOptions::default();
        let limits = Limits::for_map_cache(options.map_cache_bytes);
        let loaded = superblocks::load_any(&*medium).await?;
        let drive = Self::open_as(medium, clock, options, limits, loaded.stored).await?;
        Ok(Self::start(Rc::new(drive)))
    }

    /// Opens a snapshot of the drive on a medium, or a bookmark if `options` permit, read-only. The
    /// drive must not be open for writing at the same time.
    ///
    /// # Errors
    /// `NotFound`, `InvalidInput` if it is a bookmark, or the errors of [`Drive::open`].
    pub async fn open_snapshot(
        medium: Rc<dyn AnyMedium>,
        clock: Rc<dyn AnyClock>,
        name: &str,
        options: OpenOptions,
    ) -> Result<Rc<Self>> {
        let present = superblocks::load(&*medium).await?.stored.superblock;
        medium.set_geometry(superblocks::geometry(&present))?;
        let (snapshot, forwards) = Reader::new(&*medium, &present).find_snapshot(name).await?;
        check_kind(&snapshot, &options)?;
        let kept = (&snapshot, forwards);
        let drive = Self::of_kept(medium, clock, &present, kept, options).await?;
        Ok(Self::start(Rc::new(drive)))
    }

    fn start(drive: Rc<Self>) -> Rc<Self> {
        for task in Self::tasks(&drive) {
            drive.clock.spawn(task);
        }
        drive
    }

    /// Returns the background tasks.
    fn tasks(drive: &Rc<Self>) -> Vec<Task> {
        let handle = || TaskHandle::new(drive);
        let mut tasks: Vec<Task> = Vec::new();
        for _ in 0..WRITERS {
            let handle = handle();
            tasks.push(Box::pin(async move { handle.0.run_writer().await }));
        }
        let (syncer, gc, checkpoints) = (handle(), handle(), handle());
        let (warmer, upkeep, ahead) = (handle(), handle(), handle());
        tasks.push(Box::pin(async move { syncer.0.run_syncer().await }));
        tasks.push(Box::pin(async move { gc.0.run_gc().await }));
        tasks.push(Box::pin(async move { checkpoints.0.run_checkpoints().await }));
        tasks.push(Box::pin(async move { warmer.0.run_warmer().await }));
        tasks.push(Box::pin(async move { upkeep.0.run_upkeep().await }));
        tasks.push(Box::pin(async move { ahead.0.run_read_ahead().await }));
        tasks
    }
}

impl Drive {
    /// Opens the drive on a medium without its tasks.
    pub(in super::super) async fn open_without_tasks(
        medium: Rc<dyn AnyMedium>,
        clock: Rc<dyn AnyClock>,
        options: OpenOptions,
    ) -> Result<Self> {
        let loaded = superblocks::load(&*medium).await?;
        for problem in &loaded.problems {
            tracing::warn!(error = %problem.chain(), "a superblock slot is damaged");
        }
        if !options.incomplete && loaded.stored.superblock.receiving.is_some() {
            let what = "its disk holds a part of a snapshot that is being received: receive the \
                        rest, or discard the part with a rollback to the newest snapshot";
            return Err(Error::new(ErrorKind::InvalidInput, what).with_remedy(Remedy::Resume));
        }
        let limits = Limits::for_map_cache(options.map_cache_bytes);
        Self::open_as(medium, clock, options, limits, loaded.stored).await
    }

    /// Opens the drive that a superblock describes, without its tasks.
    pub(in super::super) async fn open_as(
        medium: Rc<dyn AnyMedium>,
        clock: Rc<dyn AnyClock>,
        options: OpenOptions,
        limits: Limits,
        stored: StoredSuperblock,
    ) -> Result<Self> {
        let superblock = &stored.superblock;
        medium.set_geometry(superblocks::geometry(superblock))?;
        let begun_ns = clock.now_ns();
        let settings = settings(&*medium, superblock, &options);
        let recovered = recovery::recover(&*medium, superblock, settings, limits).await?;
        let recovery_ns = clock.now_ns() - begun_ns;
        tracing::debug!(batches = recovered.batches, us = recovery_ns / 1000, "replayed the log");
        Self::assemble(medium, clock, options, stored, recovered, recovery_ns).await
    }

    /// Builds a drive from the result of recovery, in a new epoch unless it is read-only.
    pub(super) async fn assemble(
        medium: Rc<dyn AnyMedium>,
        clock: Rc<dyn AnyClock>,
        options: OpenOptions,
        stored: StoredSuperblock,
        recovered: Recovered,
        recovery_ns: u64,
    ) -> Result<Self> {
        let StoredSuperblock { mut superblock, mut slot } = stored;
        assert!(slot < SUPERBLOCK_SLOTS, "a superblock was read from one of two slots");
        let was_clean = superblock.clean;
        let WalkEnd { end, epoch, totals, cut, unreadable, unproven, completed } =
            recovered.walk_end;
        let buffers = if options.read_only { 0 } else { BUFFER_COUNT };
        let mut core = recovered.core;
        if !options.read_only {
            let written = write_completed(&*medium, completed).await;
            make_equal(&*medium, superblock.segment_bytes, &unproven).await?;
            superblock.is_array = medium.as_array().is_some();
            for segment in settle_tail(&*medium, &end, &unreadable, written).await? {
                core.note_bad_segment(segment, &mut superblock);
            }
            // If the newest superblock was lost, the log contains a later epoch than the other
            // superblock.
            superblock.epoch = next_epoch(superblock.epoch.max(epoch))?;
            superblock.clean = false;
            superblock.watermark = end.seq;
            superblock.watermark_checksum = end.checksum;
        }
        core.start(superblock.clone(), slot, end, totals, buffers);
        if !options.read_only {
            core.leave_bad_segments(&mut superblock);
            for _ in 0..2 {
                slot = 1 - slot;
                superblocks::store_next(&*medium, slot, &mut superblock).await?;
                medium.sync().await?;
            }
            core.set_superblock(superblock.clone());
            core.room_tick(room(&*medium, &superblock));
        }
        let (codec, form) = encoding_of(&superblock);
        Ok(Self {
            options,
            core: RefCell::new(core),
            queues: Queues::default(),
            opened: Opened { was_clean, recovered_batches: recovered.batches, recovery_ns, cut },
            codec: Cell::new(codec),
            form,
            read_unit: medium.capabilities().read_unit,
            loads: Loads::default(),
            cache: FrameCache::new(),
            read_cache: ReadCache::new(options.read_cache_bytes),
            streams: Streams::default(),
            ahead: ReadAhead::new(options.read_ahead_bytes),
            buffers: Buffers::default(),
            compressor: RefCell::new(Compressor::new(codec).with_form(form)),
            meta_compressor: RefCell::new(Compressor::new(Codec::Lz4)),
            decompressor: RefCell::new(Decompressor::new()),
            workers: OnceCell::new(),
            tasks: Cell::new(0),
            gc_runs: Cell::new(false),
            scrub: Cell::default(),
            restoring: super::Restoring::default(),
            lease: None,
            origin: OnceCell::new(),
            audited: RefCell::default(),
            medium,
            clock,
        })
    }

    /// Announces that the drive is about to be closed, before its last requests have ended, so that
    /// none of them waits long for remote storage, such as a bucket. See
    /// [`Remote::ending`](crate::media::Remote::ending).
    pub fn announce_close(&self) {
        // A view uses the medium of a drive that stays open.
        if let (None, Some(remote)) = (&self.lease, self.medium.as_remote()) {
            remote.ending();
        }
    }

    /// Flushes, writes a checkpoint, marks the drive as closed cleanly, and ends its tasks. No
    /// request may follow. When this returns, with or without an error, no task of the drive holds
    /// a handle to it any more: the medium is released with the last handle of the caller.
    ///
    /// # Errors
    /// `Poisoned`, `Medium`, or `Busy` if requests were still under way: writes that were not
    /// flushed before may be lost, but the drive still opens. After errors of
    /// [`Remote::finish`](crate::media::Remote::finish), nothing is lost.
    pub async fn close(&self) -> Result<()> {
        self.close_with(Ending::Checkpoint).await
    }

    /// Closes without a checkpoint, so that the next opening reads the log.
    #[cfg(test)]
    pub(in super::super) async fn close_without_checkpoint(&self) -> Result<()> {
        self.close_with(Ending::Log).await
    }

    async fn close_with(&self, ending: Ending) -> Result<()> {
        self.announce_close();
        self.with_core(Core::end);
        self.queues.ending.wake_all();
        self.ahead.wanted.wake_all();
        self.until_gc_ended().await;
        let closed = self.close_log(ending).await;
        self.with_core(Core::close);
        self.queues.tasks_ended.wait_for(|| (self.tasks.get() == 0).then_some(())).await;
        closed?;
        match self.medium.as_remote() {
            Some(remote) if !self.is_read_only() => remote.finish().await,
            _ => Ok(()),
        }
    }

    async fn close_log(&self, ending: Ending) -> Result<()> {
        self.flush().await?;
        if self.is_read_only() {
            return Ok(());
        }
        // Other streams may have sealed batches since the last batch of the host.
        self.flush_log().await?;
        let is_in_log = {
            let core = self.core();
            core.log().sealed_seq() > core.checkpoints().checkpointed()
        };
        if is_in_log
            && ending == Ending::Checkpoint
            && let Err(error) = self.checkpoint().await
        {
            // The next opening reads a longer log.
            tracing::warn!(error = %error.chain(), "no checkpoint was written at the end");
            self.core().log().check_poison()?;
        }
        self.until_nothing_cools().await;
        let _turn = self.turn().await;
        self.core().check_all_is_durable()?;
        self.update_superblocks(|superblock| superblock.clean = true).await
    }
}

/// A task's handle to the drive. [`Drive::close`] waits until all handles are dropped.
struct TaskHandle(Rc<Drive>);

impl TaskHandle {
    fn new(drive: &Rc<Drive>) -> Self {
        drive.tasks.set(drive.tasks.get() + 1);
        Self(drive.clone())
    }
}

impl Drop for TaskHandle {
    fn drop(&mut self) {
        let others = self.0.tasks.get().checked_sub(1).expect("a task ended twice");
        self.0.tasks.set(others);
        self.0.queues.tasks_ended.wake_all();
    }
}

/// The state in which a closed drive is left for the next opening.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// A checkpoint of everything.
    Checkpoint,
    /// The log since the newest checkpoint.
    #[cfg(test)]
    Log,
}

/// Returns whether segments are discarded when they are freed. They are not if their space was
/// reserved.
pub(in super::super) fn can_discard(medium: &dyn AnyMedium, superblock: &Superblock) -> bool {
    medium.capabilities().discard && !superblock.is_preallocated
}

/// Returns the space that is left for the medium, if the drive has not reserved its own.
pub(in super::super) fn room(medium: &dyn AnyMedium, superblock: &Superblock) -> Option<u64> {
    medium.room().filter(|_| !superblock.is_preallocated)
}

/// Returns the settings for returning space to a medium, depending on whether segments can be
/// discarded.
fn gives_back(options: &OpenOptions, can_discard: bool) -> GivesBack {
    let is_of_use = can_discard && !options.read_only;
    GivesBack { empty: is_of_use, idle_percent: options.compact_percent.filter(|_| is_of_use) }
}

/// Makes the log that recovery found durable, and makes unreadable pages readable where streams
/// continue. Returns the segments in which that failed.
///
/// # Errors
/// `Medium` if the sync fails.
async fn settle_tail(
    medium: &dyn AnyMedium,
    end: &LogEnd,
    unreadable: &[(SegmentId, u32)],
    mut written: Vec<(SegmentId, u32, bool)>,
) -> Result<BTreeSet<SegmentId>> {
    written.extend(rewrite_unreadable(medium, end, unreadable).await);
    // The log must be durable before anything records it as durable.
    medium.sync().await?;
    Ok(still_unreadable(medium, written).await)
}

/// Writes the pages that were restored at the end of the log. Returns their places and whether each
/// write succeeded. Parity restores a page again until its write succeeds.
async fn write_completed(
    medium: &dyn AnyMedium,
    completed: Vec<Pages>,
) -> Vec<(SegmentId, u32, bool)> {
    let mut written = Vec::new();
    for Pages { segment, offset, bytes } in completed {
        let mut buffer = AlignedBuffer::zeroed(bytes.len());
        buffer.copy_from_slice(&bytes);
        let result = medium.append(segment, offset, Arc::new(buffer)).await;
        written.push((segment, offset, is_not_refused(result)));
    }
    written
}

/// Returns whether the result of a write does not count against its place, as for a full file
/// system.
fn is_not_refused(written: Result<()>) -> bool {
    !written.is_err_and(|error| error.kind() == ErrorKind::Medium)
}

/// Overwrites unreadable pages with zeroes where streams continue: a device then replaces the
/// sectors. Returns the places and whether each write succeeded.
async fn rewrite_unreadable(
    medium: &dyn AnyMedium,
    end: &LogEnd,
    unreadable: &[(SegmentId, u32)],
) -> Vec<(SegmentId, u32, bool)> {
    let mut written = Vec::new();
    for &(segment, offset) in unreadable {
        let is_beyond = |tail: &Tail| tail.segment == segment && offset >= tail.used;
        if !end.tails.iter().flatten().any(is_beyond) {
            continue;
        }
        let zeroes = Arc::new(AlignedBuffer::zeroed(BATCH_ALIGNMENT));
        let result = medium.append(segment, offset, zeroes).await;
        written.push((segment, offset, is_not_refused(result)));
    }
    written
}

/// Returns the segments in which a page could not be written, or cannot be read afterwards.
async fn still_unreadable(
    medium: &dyn AnyMedium,
    written: Vec<(SegmentId, u32, bool)>,
) -> BTreeSet<SegmentId> {
    let mut bad = BTreeSet::new();
    for (segment, offset, is_written) in written {
        if !is_written || !can_be_read(medium, segment, offset).await {
            bad.insert(segment);
        }
    }
    bad
}

/// Returns whether one of several attempts to read a page succeeds: a segment is not given up for a
/// transient fault.
async fn can_be_read(medium: &dyn AnyMedium, segment: SegmentId, offset: u32) -> bool {
    for _ in 0..READS_MAX {
        let buffer = AlignedBuffer::zeroed(BATCH_ALIGNMENT);
        if medium.read(segment, offset, buffer).await.1.is_ok() {
            return true;
        }
    }
    false
}

/// Checks that a snapshot has data, or that the options accept a bookmark, which has none.
///
/// # Errors
/// `InvalidInput`.
pub(in super::super) fn check_kind(entry: &Snapshot, options: &OpenOptions) -> Result<()> {
    if options.incomplete || !entry.is_bookmark {
        return Ok(());
    }
    let what = format!(
        "{} is a bookmark, which has no data: use it as the start of a diff or a send",
        entry.name
    );
    Err(Error::new(ErrorKind::InvalidInput, what))
}

/// Returns the settings of the core for this medium and these options.
pub(super) fn settings(
    medium: &dyn AnyMedium,
    superblock: &Superblock,
    options: &OpenOptions,
) -> Settings {
    let capabilities = medium.capabilities();
    Settings {
        cipher: medium.cipher().clone(),
        has_durable_appends: capabilities.durable_appends,
        prefers_written: capabilities.prefers_written,
        is_read_only: options.read_only,
        map_cache_bytes: options.map_cache_bytes,
        checkpoint_bytes: options.checkpoint_bytes,
        gives_back: gives_back(options, can_discard(medium, superblock)),
        warn_percent: options.warn_percent,
    }
}

/// Returns the codec and the form of new frames.
fn encoding_of(superblock: &Superblock) -> (Codec, FrameForm) {
    let codec = Codec::from_format(superblock.codec, superblock.codec_level);
    (codec, FrameForm::from_format(superblock.has_chunks))
}

fn next_epoch(epoch: u32) -> Result<u32> {
    epoch.checked_add(1).ok_or_else(|| Error::new(ErrorKind::Corrupt, "epoch counter overflow"))
}

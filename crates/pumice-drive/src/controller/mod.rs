//! The drive: one file per host verb, and the leaves they move.
//!
//! ```text
//! verbs:  write  read  flush  trim            the order of steps; with write_back, gc (moving,
//!         write_back  gc  checkpoint          joining), checkpoint, recovery, check, scrub,
//!         recovery  check  scrub  resize      resize, create and extract the only ones that know
//!         create  extract                     it; rebuild stands above them
//! leaves: admit  framing  packing  log  l2p  space  cache  buffers  stats
//!         walk  scan  window  records  leaves
//! ```
//!
//! Async code over two seams, [`Medium`] and [`Clock`], on one thread that owns all state: no
//! locks, and between two awaits nobody else runs. It never names a socket, a thread or a runtime.

mod admit;
mod audit;
mod buffers;
mod cache;
mod check;
mod checkpoint;
mod create;
mod extents;
mod extract;
mod flush;
mod framing;
mod gc;
mod info;
mod joining;
mod l2p;
mod leaves;
mod log;
mod moving;
mod overview;
mod packing;
mod read;
mod rebuild;
mod records;
mod recovery;
mod resize;
mod scan;
mod scrub;
mod space;
mod stats;
mod superblocks;
#[cfg(test)]
mod tests;
mod trim;
mod walk;
mod warn;
mod window;
mod write;
mod write_back;

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;

pub use audit::{Audit, Taken};
pub use check::{CheckReport, Depth, Problem, check};
pub use create::{
    FRAME_BLOCKS_DEFAULT, OVER_PROVISIONING_PERCENT_DEFAULT, SEGMENT_BYTES_DEFAULT, Spec, create,
};
pub use extents::{Content, Extent};
pub use extract::{Extract, Extracted};
pub use framing::{Span, spans};
pub use info::{Info, Memory, Operations};
pub use joining::COLD_FRAME_BLOCKS_DEFAULT;
pub use overview::{Alert, AlertKind, CellState, MapCell, Overview, SegmentMap};
pub use rebuild::{Finder, Identity, Parts, Way, Wreck, copy_into};
use recovery::Limits;
pub use resize::{Resize, Resized};
pub use scrub::{ScrubProgress, ScrubReport};
pub use space::benefit_over_cost;
pub use warn::WARN_THRESHOLDS_MAX;
pub use write::ATOMIC_WRITE_BYTES;

use crate::base::wait::WaitQueue;
use crate::base::{Clock, Error, ErrorKind, Result};
use crate::codec::{Codec, Compressor, Decompressor};
use crate::format::{Stream, Superblock};
use crate::media::Medium;

/// Default bytes of clean and dirty leaves of the map in memory: the whole map of a disk of 64 GiB
/// that was written in random blocks.
pub const MAP_CACHE_BYTES_DEFAULT: usize = 256 << 20;

/// Default bytes of log between checkpoints, at most: what is read again when a drive is opened
/// after a crash, in a second or less.
pub const CHECKPOINT_BYTES_DEFAULT: u64 = 1 << 30;

/// How to open a drive.
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// Refuse writes and change nothing on the medium.
    pub read_only: bool,
    /// Bytes of the map's leaves to keep in memory, about.
    pub map_cache_bytes: usize,
    /// Bytes of log between checkpoints, at most.
    pub checkpoint_bytes: u64,
    /// A denser codec for what garbage collection moves.
    pub recompress: Option<Codec>,
    /// With that, the most blocks of a frame that is joined from several: a power of two up to 64,
    /// the drive's `frame_blocks` if that is more; 1 joins none.
    pub cold_frame_blocks: u16,
    /// Shares of the capacity in use, in per cent, at which to warn; 0 is none. `None` for those
    /// that the drive was created with.
    pub warn_percent: Option<[u8; WARN_THRESHOLDS_MAX]>,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            map_cache_bytes: MAP_CACHE_BYTES_DEFAULT,
            checkpoint_bytes: CHECKPOINT_BYTES_DEFAULT,
            recompress: None,
            cold_frame_blocks: COLD_FRAME_BLOCKS_DEFAULT,
            warn_percent: None,
        }
    }
}

/// A background task of a drive.
pub type Task = Pin<Box<dyn Future<Output = ()>>>;

/// An open drive: a disk of [`Drive::size_bytes`] bytes for a host, on a medium of segments.
///
/// The owner runs [`Drive::tasks`] beside the host's requests, and ends with [`Drive::close`].
pub struct Drive<M, C> {
    medium: M,
    clock: C,
    superblock: RefCell<Superblock>,
    superblock_slot: Cell<u32>,
    options: OpenOptions,
    was_clean: bool,
    recovered_batches: u64,
    recovery_ns: u64,
    epoch: u32,
    frame_blocks: u16,
    codec: Codec,
    read_unit: u32,
    segments_opened: Cell<u32>,
    /// Segments kept for checkpoints.
    meta_segments: Cell<u32>,
    /// Bytes of the map's leaves that may wait for a checkpoint.
    dirty_bytes_max: Cell<usize>,
    /// Whether size or capacity are being changed.
    resizing: Cell<bool>,
    ending: Cell<bool>,
    gc: gc::Gc,
    checkpoints: checkpoint::Checkpoints,
    /// A checkpoint may be due.
    checkpoint_wanted: WaitQueue,
    loads: leaves::Loads,
    scrubs: scrub::Scrubs,
    warnings: warn::Warnings,
    l2p: RefCell<l2p::L2p>,
    space: RefCell<space::Space>,
    log: log::Log,
    compressor: RefCell<Compressor>,
    decompressor: RefCell<Decompressor>,
    cache: cache::FrameCache,
    buffers: buffers::Buffers,
    stats: stats::Stats,
}

impl<M: Medium, C: Clock> Drive<M, C> {
    /// Opens the drive on a medium: reads the superblock, replays the log, and unless read-only
    /// begins a new epoch. A drive whose process crashed needs nothing special.
    ///
    /// # Errors
    /// `NotADrive`, `Unsupported`, `Corrupt`, `Medium`; `InvalidInput` if the medium is too small,
    /// or if the log changes more of the map than four times `map_cache_bytes`, or than 1 GiB if
    /// that is more.
    pub async fn open(medium: M, clock: C, options: OpenOptions) -> Result<Self> {
        let loaded = superblocks::load(&medium).await?;
        for problem in &loaded.problems {
            tracing::warn!("{}", problem.chain());
        }
        let limits = Limits::for_map_cache(options.map_cache_bytes);
        Self::open_as(medium, clock, options, limits, (loaded.superblock, loaded.slot)).await
    }

    /// Opens the drive as a superblock describes it, which was read from that slot.
    async fn open_as(
        medium: M,
        clock: C,
        options: OpenOptions,
        limits: Limits,
        (mut superblock, mut slot): (Superblock, u32),
    ) -> Result<Self> {
        medium.set_geometry(superblocks::geometry(&superblock))?;
        let was_clean = superblock.clean;
        let begun_ns = clock.now_ns();
        let recovered = recovery::recover(&medium, &superblock, limits).await?;
        let recovery_ns = clock.now_ns() - begun_ns;
        tracing::debug!("read {} batches in {} us", recovered.batches, recovery_ns / 1000);
        let end = recovered.walk_end.end;
        if !options.read_only {
            // What was found must be durable before anything calls it so.
            medium.sync().await?;
            // If the newest superblock was lost, the log knows of a later epoch than the other.
            superblock.epoch = next_epoch(superblock.epoch.max(recovered.walk_end.epoch))?;
            superblock.clean = false;
            superblock.watermark = end.seq;
            superblock.watermark_checksum = end.checksum;
            for _ in 0..2 {
                slot = 1 - slot;
                superblocks::store_next(&medium, slot, &mut superblock).await?;
                medium.sync().await?;
            }
        }
        let codec = Codec::from_format(superblock.codec, superblock.codec_level);
        let (shape, epoch, uuid) = (superblock.shape(), superblock.epoch, superblock.uuid);
        let (watermark, begun_at_bytes) = recovered.checkpoint;
        let lists = recovered.lists;
        let buffers = if options.read_only { 0 } else { log::BUFFER_COUNT };
        Ok(Self {
            superblock_slot: Cell::new(slot),
            options,
            was_clean,
            recovered_batches: recovered.batches,
            recovery_ns,
            epoch,
            frame_blocks: superblock.frame_blocks,
            codec,
            read_unit: medium.capabilities().read_unit,
            segments_opened: Cell::new(0),
            meta_segments: Cell::new(create::meta_segments(&shape, options.map_cache_bytes)),
            dirty_bytes_max: Cell::new(create::dirty_bytes_max(&shape, options.map_cache_bytes)),
            resizing: Cell::new(false),
            ending: Cell::new(false),
            gc: gc::Gc::default(),
            checkpoints: checkpoint::Checkpoints::new(watermark, begun_at_bytes, lists),
            checkpoint_wanted: WaitQueue::default(),
            loads: leaves::Loads::default(),
            scrubs: scrub::Scrubs::default(),
            warnings: warn::Warnings::default(),
            l2p: RefCell::new(recovered.l2p),
            space: RefCell::new(recovered.space),
            log: log::Log::new(end, shape, epoch, uuid, buffers),
            compressor: RefCell::new(Compressor::new(codec)),
            decompressor: RefCell::new(Decompressor::new()),
            cache: cache::FrameCache::new(),
            buffers: buffers::Buffers::default(),
            stats: stats::Stats::new(recovered.walk_end.totals),
            superblock: RefCell::new(superblock),
            medium,
            clock,
        })
    }

    /// What must run beside the host's requests: taking batches to the medium, syncing it, garbage
    /// collection, checkpoints, upkeep. Each task ends by itself when the drive is closed.
    pub fn tasks(drive: &Rc<Self>) -> Vec<Task>
    where
        M: 'static,
        C: 'static,
    {
        let mut tasks: Vec<Task> = Vec::new();
        for _ in 0..write_back::WRITERS {
            let drive = drive.clone();
            tasks.push(Box::pin(async move { drive.run_writer().await }));
        }
        let syncer = drive.clone();
        tasks.push(Box::pin(async move { syncer.run_syncer().await }));
        let (gc, checkpoints, upkeep) = (drive.clone(), drive.clone(), drive.clone());
        tasks.push(Box::pin(async move { gc.run_gc().await }));
        tasks.push(Box::pin(async move { checkpoints.run_checkpoints().await }));
        tasks.push(Box::pin(async move { upkeep.run_upkeep().await }));
        tasks
    }

    /// Flushes, writes a checkpoint, marks the drive as closed in order, and ends its tasks. No
    /// request may follow.
    ///
    /// # Errors
    /// `Poisoned`, `Medium`, or `Busy` if requests were still under way: what was not flushed
    /// before may be lost, the drive still opens.
    pub async fn close(&self) -> Result<()> {
        self.ending.set(true);
        self.gc.wake();
        self.log.changed.wake_all();
        self.checkpoint_wanted.wake_all();
        self.gc.until_it_ended().await;
        let closed = self.close_log().await;
        self.log.close();
        closed
    }

    /// Closes without a checkpoint, so that the next opening reads the log.
    #[cfg(test)]
    async fn close_without_checkpoint(&self) -> Result<()> {
        self.checkpoints.pretend_all_is_in();
        self.close().await
    }

    async fn close_log(&self) -> Result<()> {
        self.flush().await?;
        if self.is_read_only() {
            return Ok(());
        }
        if self.log.sealed_seq() > self.checkpoints.watermark()
            && let Err(error) = self.checkpoint().await
        {
            // The next opening reads a longer log.
            tracing::warn!("no checkpoint at the end: {}", error.chain());
            self.log.check_poison()?;
        }
        let _turn = self.checkpoint_turn().await;
        let has_open_records =
            Stream::ALL.into_iter().any(|stream| self.log.has_open_records(stream));
        if self.log.sealed_seq() != self.log.durable_seq() || has_open_records {
            // A request that should have ended got in behind the flush. To call that durable would
            // make its loss look like damage; an unclean end is always safe.
            let what = "the drive was closed while requests were under way";
            return Err(Error::new(ErrorKind::Busy, what));
        }
        self.update_superblocks(|superblock| superblock.clean = true).await
    }

    /// Changes the superblock: one slot, made durable, then the other. Whoever calls this has the
    /// checkpoint's turn.
    ///
    /// # Errors
    /// `Medium` or `Poisoned`, and the drive is poisoned: which superblock counts is not known. It
    /// is too if this is dropped before its end.
    pub(crate) async fn update_superblocks(
        &self,
        change: impl FnOnce(&mut Superblock),
    ) -> Result<()> {
        let mut updating = Updating { log: &self.log, has_ended: false };
        let updated = self.store_superblocks(change).await;
        updating.has_ended = true;
        if let Err(error) = &updated
            && self.log.check_poison().is_ok()
        {
            self.log.poison(error);
        }
        updated
    }

    async fn store_superblocks(&self, change: impl FnOnce(&mut Superblock)) -> Result<()> {
        let mut superblock = self.superblock.borrow().clone();
        let durable = self.log.durable_end();
        superblock.watermark = durable.seq;
        superblock.watermark_checksum = durable.checksum;
        change(&mut superblock);
        for _ in 0..2 {
            let slot = 1 - self.superblock_slot.get();
            superblocks::store_next(&self.medium, slot, &mut superblock).await?;
            self.sync().await?;
            self.superblock_slot.set(slot);
        }
        *self.superblock.borrow_mut() = superblock;
        Ok(())
    }

    /// Size of the host's disk in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.superblock.borrow().size_bytes
    }

    /// Whether writes are refused.
    pub fn is_read_only(&self) -> bool {
        self.options.read_only
    }

    /// Identity of the drive.
    pub fn uuid(&self) -> uuid::Uuid {
        self.superblock.borrow().uuid
    }

    /// The medium below.
    pub fn medium(&self) -> &M {
        &self.medium
    }

    /// Seals a stream's open batch, or gives it up if it holds no record.
    fn seal(&self, stream: Stream) {
        let Some(sealed) = self.log.seal(stream, self.stats.totals()) else { return };
        self.stats.media_bytes.add(sealed.media_bytes);
        self.space.borrow_mut().batch_sealed(sealed.segment, sealed.seq);
        self.checkpoints.batch_sealed(stream, sealed.media_bytes);
        if stream != Stream::Moved {
            self.gc.spend(sealed.media_bytes);
        }
        if self.checkpoint_is_due() {
            self.checkpoint_wanted.wake_all();
        }
    }
}

/// Superblocks are being written; dropped before the end, that leaves it open which of them counts.
struct Updating<'a> {
    log: &'a log::Log,
    has_ended: bool,
}

impl Drop for Updating<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            let what = "writing the superblocks was given up half-way";
            self.log.poison(&Error::new(ErrorKind::Poisoned, what));
        }
    }
}

fn next_epoch(epoch: u32) -> Result<u32> {
    let worn = || Error::new(ErrorKind::Corrupt, "the drive counts more openings than there are");
    epoch.checked_add(1).ok_or_else(worn)
}

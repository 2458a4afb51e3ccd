//! The drive: one file per host verb, and the leaves they move.
//!
//! ```text
//! verbs:  write  read  flush  trim            the order of steps; with write_back, recovery,
//!         write_back  recovery  check  create check and create the only ones that know it
//! leaves: admit  framing  packing  log  l2p  space  cache  buffers  stats
//! ```
//!
//! Async code over two seams, [`Medium`] and [`Clock`], on one thread that owns all state: no
//! locks, and between two awaits nobody else runs. It never names a socket, a thread or a runtime.

mod admit;
mod buffers;
mod cache;
mod check;
mod create;
mod flush;
mod framing;
mod info;
mod l2p;
mod log;
mod packing;
mod read;
mod recovery;
mod replay;
mod space;
mod stats;
mod superblocks;
#[cfg(test)]
mod tests;
mod trim;
mod write;
mod write_back;

use std::cell::{Cell, RefCell};

pub use check::{CheckReport, Problem, check};
pub use create::{FRAME_BLOCKS_DEFAULT, SEGMENT_BYTES_DEFAULT, Spec, create};
pub use info::{Info, Memory, Operations};
pub use write::ATOMIC_WRITE_BYTES;
pub use write_back::WRITERS;

use crate::base::{Clock, Error, ErrorKind, Result};
use crate::codec::{Codec, Compressor, Decompressor};
use crate::format::Superblock;
use crate::media::Medium;

/// How to open a drive.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    /// Refuse writes and change nothing on the medium.
    pub read_only: bool,
}

/// An open drive: a disk of [`Drive::size_bytes`] bytes for a host, on a medium of segments.
///
/// The owner runs [`Drive::run_writer`] ([`WRITERS`] times) and [`Drive::run_upkeep`] as tasks
/// beside the host's requests, and ends with [`Drive::close`].
pub struct Drive<M, C> {
    medium: M,
    clock: C,
    superblock: RefCell<Superblock>,
    superblock_slot: Cell<u32>,
    read_only: bool,
    was_clean: bool,
    epoch: u32,
    frame_blocks: u16,
    read_unit: u32,
    segments_opened: Cell<u32>,
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
    /// `NotADrive`, `Unsupported`, `Corrupt`, `InvalidInput` (the medium is too small), `Medium`.
    pub async fn open(medium: M, clock: C, options: OpenOptions) -> Result<Self> {
        let loaded = superblocks::load(&medium).await?;
        for problem in &loaded.problems {
            tracing::warn!("{}", problem.chain());
        }
        let mut superblock = loaded.superblock;
        medium.set_geometry(superblocks::geometry(&superblock))?;
        let was_clean = superblock.clean;
        let recovered = recovery::recover(&medium, &superblock).await?;
        let end = recovered.walk_end.end;
        let mut slot = loaded.slot;
        if !options.read_only {
            // What was found must be durable before anything calls it so.
            medium.sync().await?;
            slot = 1 - slot;
            // If the newest superblock was lost, the log knows of a later epoch than the other.
            superblock.epoch = next_epoch(superblock.epoch.max(recovered.walk_end.epoch))?;
            superblock.revision = superblock.revision.saturating_add(1);
            superblock.clean = false;
            superblock.watermark = end.seq;
            superblock.watermark_checksum = end.checksum;
            superblocks::store(&medium, slot, &superblock).await?;
            medium.sync().await?;
        }
        let codec = Codec::from_format(superblock.codec, superblock.codec_level);
        Ok(Self {
            superblock_slot: Cell::new(slot),
            read_only: options.read_only,
            was_clean,
            epoch: superblock.epoch,
            frame_blocks: superblock.frame_blocks,
            read_unit: medium.capabilities().read_unit,
            segments_opened: Cell::new(0),
            l2p: RefCell::new(recovered.l2p),
            space: RefCell::new(recovered.space),
            log: log::Log::new(end, superblock.segment_bytes, superblock.epoch, superblock.uuid),
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

    /// Flushes, marks the drive as closed in order, and ends its tasks. No request may follow.
    ///
    /// # Errors
    /// `Poisoned`, `Medium`, or `Busy` if requests were still under way: what was not flushed
    /// before may be lost, the drive still opens.
    pub async fn close(&self) -> Result<()> {
        let flushed = self.flush().await;
        self.log.close();
        flushed?;
        if self.read_only {
            return Ok(());
        }
        let (watermark, watermark_checksum) = self.log.chain_end();
        if watermark != self.log.durable_seq() || self.log.has_open_records() {
            // A request that should have ended got in behind the flush. To call that durable would
            // make its loss look like damage; an unclean end is always safe.
            let what = "the drive was closed while requests were under way";
            return Err(Error::new(ErrorKind::Busy, what));
        }
        let superblock = {
            let mut superblock = self.superblock.borrow_mut();
            superblock.revision = superblock.revision.saturating_add(1);
            superblock.clean = true;
            superblock.watermark = watermark;
            superblock.watermark_checksum = watermark_checksum;
            superblock.clone()
        };
        self.superblock_slot.set(1 - self.superblock_slot.get());
        superblocks::store(&self.medium, self.superblock_slot.get(), &superblock).await?;
        self.medium.sync().await
    }

    /// Size of the host's disk in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.superblock.borrow().size_bytes
    }

    /// Whether writes are refused.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Identity of the drive.
    pub fn uuid(&self) -> uuid::Uuid {
        self.superblock.borrow().uuid
    }

    /// The medium below.
    pub fn medium(&self) -> &M {
        &self.medium
    }

    /// Seals the open batch, or gives it up if it holds no record.
    fn seal(&self) {
        let media_bytes = self.log.seal(self.stats.totals());
        self.stats.media_bytes.add(media_bytes);
    }
}

fn next_epoch(epoch: u32) -> Result<u32> {
    let worn = || Error::new(ErrorKind::Corrupt, "the drive counts more openings than there are");
    epoch.checked_add(1).ok_or_else(worn)
}

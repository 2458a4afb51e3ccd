//! The content of a range of the disk, and loading it ahead of a read. These are queries of the
//! map, not reads.
//!
//! Holes of a clone are looked up in its origin. Extents do not examine bytes: only reading a frame
//! shows whether it can be read.

use std::pin::Pin;

use super::super::core::Located;
use super::super::drive::Drive;
use super::super::map::Mapping;
use crate::base::units::BLOCK_BYTES;
use crate::base::{Lba, Result};

/// Maximum number of frames that one [`Drive::prefetch`] decodes: half of the frame cache, so that
/// it does not evict frames that other requests have just loaded.
const PREFETCH_FRAMES_MAX: usize = 32;

/// Maximum number of look-ups of one [`Drive::prefetch`], some of which load a leaf of the map: a
/// fraction of a second on a disk.
const PREFETCH_LOOKUPS_MAX: usize = 1024;

/// The content of an [`Extent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Never written, or trimmed; reads as zeroes.
    Hole,
    /// Zeroes that were written; they occupy almost no space.
    Zeroes,
    /// Anything else.
    Data,
}

/// A run of bytes with one content, which is in one frame or in no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Its length; never 0.
    pub bytes: u64,
    /// Its content.
    pub content: Content,
    /// Bytes that it occupies in the log, including the record header: its whole frame, or its
    /// share of it. The shares of extents of whole blocks that make up a frame add up to the frame.
    pub stored_bytes: u64,
}

impl Drive {
    /// Calls `visit` for each extent of the `len` bytes starting at `offset`, in order, until it
    /// returns false. Extents do not extend beyond the range; adjacent extents may have the same
    /// content. Leaves of the map are loaded as needed; a block that changes during the call is
    /// reported as of its turn.
    ///
    /// # Errors
    /// `InvalidInput` beyond the end of the disk; `Corrupt` or `Medium` if the map cannot be read.
    pub async fn extents(
        &self,
        offset: u64,
        len: u64,
        mut visit: impl FnMut(Extent) -> bool,
    ) -> Result<()> {
        self.visit_extents(offset, len, &mut visit).await.map(|_| ())
    }

    /// Like [`Drive::extents`]. Returns whether more extents are wanted.
    async fn visit_extents(
        &self,
        offset: u64,
        len: u64,
        visit: &mut dyn FnMut(Extent) -> bool,
    ) -> Result<bool> {
        self.core().check_range(offset, len)?;
        let block = BLOCK_BYTES as u64;
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let (mapping, run_blocks) = match self.with_core(|core| core.locate(Lba(at / block))) {
                Located::Run { mapping, blocks, .. } => (mapping, blocks),
                Located::Missing(leaf) => {
                    self.load_leaf(leaf).await?;
                    continue;
                }
            };
            let bytes = (run_blocks * block - at % block).min(end - at);
            assert!(bytes > 0, "an extent is never empty");
            if mapping == Mapping::Hole
                && let Some(blocks) = self.inherited(Lba(at / block), run_blocks)
            {
                let bytes = bytes.min(blocks * block - at % block);
                if !self.inherited_extents(at, bytes, visit).await? {
                    return Ok(false);
                }
                at += bytes;
                continue;
            }
            let (content, stored_bytes) = match mapping {
                Mapping::Hole => (Content::Hole, 0),
                Mapping::Fill(0) => (Content::Zeroes, 0),
                Mapping::Fill(_) => (Content::Data, 0),
                Mapping::Frame { place, index } => {
                    // A run in a frame has at most as many blocks as a frame.
                    let blocks = (at % block + bytes).div_ceil(block);
                    let count = u8::try_from(blocks).expect("a frame has at most 64 blocks");
                    let share = u64::from(place.share(index, count));
                    (Content::Data, share * bytes / (blocks * block))
                }
            };
            if !visit(Extent { bytes, content, stored_bytes }) {
                return Ok(false);
            }
            at += bytes;
        }
        assert_eq!(at, end, "extents end where the range ends");
        Ok(true)
    }

    /// Visits extents of the origin of a clone, which occupy nothing in the clone's log. Boxed,
    /// because an origin may also be a clone.
    fn inherited_extents<'a>(
        &'a self,
        offset: u64,
        len: u64,
        visit: &'a mut dyn FnMut(Extent) -> bool,
    ) -> Pin<Box<dyn Future<Output = Result<bool>> + 'a>> {
        Box::pin(async move {
            let mut visit = |extent| visit(Extent { stored_bytes: 0, ..extent });
            self.opened_origin()?.visit_extents(offset, len, &mut visit).await
        })
    }

    /// Loads a range ahead of a read: the leaves of the map, and the decoded form of frames of
    /// several blocks, from the start of the range up to the amount that is worth caching in
    /// memory. Frames of one block are not cached: they are always read from the medium.
    ///
    /// # Errors
    /// The errors of [`Drive::extents`]; unreadable frames are left to the read that needs them.
    pub async fn prefetch(&self, offset: u64, len: u64) -> Result<()> {
        self.core().check_range(offset, len)?;
        let block = BLOCK_BYTES as u64;
        let (mut at, end) = (offset / block, (offset + len).div_ceil(block));
        let mut frames = 0;
        let mut target = [0; BLOCK_BYTES];
        for _ in 0..PREFETCH_LOOKUPS_MAX {
            if at >= end || frames == PREFETCH_FRAMES_MAX {
                break;
            }
            let (mapping, run_blocks) = match self.with_core(|core| core.locate(Lba(at))) {
                Located::Run { mapping, blocks, .. } => (mapping, blocks),
                Located::Missing(leaf) => {
                    self.load_leaf(leaf).await?;
                    continue;
                }
            };
            if matches!(mapping, Mapping::Frame { place, .. } if place.blocks > 1) {
                frames += 1;
                if let Err(error) = self.read_blocks(Lba(at), &mut target).await {
                    tracing::debug!(lba = at, error = %error.chain(), "cannot prefetch a frame");
                }
            }
            at += run_blocks;
        }
        Ok(())
    }
}

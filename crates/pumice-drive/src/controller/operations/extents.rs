//! The content of a range of the disk, and loading it ahead of a read. These are queries of the
//! map, not reads.
//!
//! Holes of a clone are looked up in its origin. Extents do not examine bytes: only reading a frame
//! shows whether it can be read.

use std::pin::Pin;

use super::super::core::Located;
use super::super::drive::Drive;
use super::super::map::Mapping;
use super::read::CACHED_READ_BYTES_MAX;
use crate::base::units::{BLOCK_BYTES, len_usize};
use crate::base::{Lba, Result};

/// Maximum bytes that one [`Drive::prefetch`] reads: a small part of the read cache, which other
/// requests use as well.
const PREFETCH_BYTES_MAX: u64 = 1 << 20;

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

    /// Reads the first MiB of a range, or less, into the read cache.
    ///
    /// # Errors
    /// `InvalidInput` beyond the end of the disk. Unreadable blocks are left to the read that needs
    /// them.
    pub async fn prefetch(&self, offset: u64, len: u64) -> Result<()> {
        self.core().check_range(offset, len)?;
        let block = BLOCK_BYTES as u64;
        let first = offset / block;
        let end = (offset + len.min(PREFETCH_BYTES_MAX)).div_ceil(block);
        let mut target = vec![0; CACHED_READ_BYTES_MAX];
        for lba in (first..end).step_by(CACHED_READ_BYTES_MAX / BLOCK_BYTES) {
            let bytes = len_usize((end - lba) * block).min(CACHED_READ_BYTES_MAX);
            let (target, _) = target.split_at_mut(bytes);
            if let Err(error) = self.read_blocks(Lba(lba), target).await {
                tracing::debug!(lba, error = %error.chain(), "cannot prefetch blocks");
            }
        }
        Ok(())
    }
}

//! What differs between two disks of one drive, by their maps: no data is read.
//!
//! A frame of a segment that a snapshot needs is not moved, and its place is not used again while
//! the snapshot is there. So a block of a later disk that lies where the snapshot has it was not
//! written since. Leaves of the map that lie at one place are not even read.

use super::super::core::{Core, Located};
use super::super::drive::Drive;
use super::super::map::Mapping;
use super::Content;
use crate::base::units::BLOCK_BYTES;
use crate::base::{Clock, Error, ErrorKind, Lba, Result};
use crate::format::LEAF_BLOCKS;
use crate::media::Medium;

/// A range of bytes that was written between two snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changed {
    /// Byte offset of its beginning, in whole blocks of 4 KiB.
    pub offset: u64,
    /// Its length, in whole blocks; never 0.
    pub bytes: u64,
    /// What it is now.
    pub content: Content,
}

/// What a block is, and how many blocks from it on are parts of the same.
struct Piece {
    mapping: Mapping,
    generation: u64,
    blocks: u64,
}

impl<M: Medium, C: Clock> Drive<M, C> {
    /// Calls `visit` for each range of this disk that was written since `earlier`, a snapshot of
    /// the same drive, in order, until it returns false. Ranges of one content do not touch.
    /// Blocks that were written and are zeroes as before do not count, nor does what was trimmed
    /// and was zeroes before. What a scrub has restored elsewhere counts.
    ///
    /// # Errors
    /// `InvalidInput` if `earlier` is of another drive, or is not earlier; `Corrupt` or `Medium` if
    /// a map cannot be read.
    pub async fn changes_since(
        &self,
        earlier: &Drive<M, C>,
        mut visit: impl FnMut(Changed) -> bool,
    ) -> Result<()> {
        let [before, now] =
            [earlier, self].map(|drive| (drive.uuid(), drive.core().log().durable_seq()));
        if before.0 != now.0 || before.1 > now.1 {
            let what = "changes are counted from an earlier snapshot of the same drive";
            return Err(Error::new(ErrorKind::InvalidInput, what));
        }
        let mut found: Option<Changed> = None;
        let mut differences = Differences::new(self, Some(earlier), 0);
        while let Some(Difference { lba, blocks, mapping, .. }) = differences.next().await? {
            let content = content_of(mapping);
            let (offset, bytes) = (lba.0 * BLOCK_BYTES as u64, blocks * BLOCK_BYTES as u64);
            match &mut found {
                Some(last) if last.offset + last.bytes == offset && last.content == content => {
                    last.bytes += bytes;
                }
                _ => {
                    let next = Changed { offset, bytes, content };
                    if found.replace(next).is_some_and(|last| !visit(last)) {
                        return Ok(());
                    }
                }
            }
        }
        if let Some(last) = found {
            visit(last);
        }
        Ok(())
    }

    /// Returns the first block after `at` that may differ, if that is known without reading: at the
    /// beginning of a leaf that both maps have at one place, or of leaves that neither has.
    fn next_difference(&self, earlier: Option<&Drive<M, C>>, at: u64) -> Option<u64> {
        let leaf_blocks = u64::from(LEAF_BLOCKS);
        let leaf = at / leaf_blocks;
        let leaves = |core: &Core| (core.size_bytes() / BLOCK_BYTES as u64).div_ceil(leaf_blocks);
        let (old, new) = (earlier.map(Drive::core), self.core());
        let common = old.as_ref().map_or(leaves(&new), |old| leaves(old));
        if !at.is_multiple_of(leaf_blocks) || leaf >= common {
            return None;
        }
        let mapped = |core: &Core| core.map().next_mapped_leaf(leaf);
        let both = [old.as_ref().and_then(|old| mapped(old)), mapped(&new)];
        let next = both.into_iter().flatten().min().unwrap_or(common).min(common);
        if next > leaf {
            return Some(next * leaf_blocks);
        }
        let place = |core: &Core| {
            let place = core.map().stored_leaf(leaf)?;
            Some((place, core.space().generation(place.segment)))
        };
        let old = old.as_ref().and_then(|old| place(old));
        let is_one = old.is_some() && old == place(&new);
        is_one.then_some((leaf + 1) * leaf_blocks)
    }

    /// Returns what a block is; beyond the end of the disk a hole.
    async fn piece(&self, at: u64) -> Result<Piece> {
        if at >= self.size_bytes() / BLOCK_BYTES as u64 {
            return Ok(Piece { mapping: Mapping::Hole, generation: 0, blocks: u64::MAX });
        }
        loop {
            match self.with_core(|core| core.locate(Lba(at))) {
                Located::Run { mapping, blocks, .. } => {
                    let generation = match mapping {
                        Mapping::Frame { place, .. } => {
                            self.core().space().generation(place.segment)
                        }
                        Mapping::Hole | Mapping::Fill(_) => 0,
                    };
                    return Ok(Piece { mapping, generation, blocks });
                }
                Located::Missing(leaf) => self.load_leaf(leaf).await?,
            }
        }
    }
}

/// A piece of a disk that differs from an earlier one: blocks of one frame, or of one content.
pub(crate) struct Difference {
    /// The first block.
    pub(crate) lba: Lba,
    /// Number of blocks, at least 1.
    pub(crate) blocks: u64,
    /// What the first block is; those after it continue it.
    pub(crate) mapping: Mapping,
    /// Generation of its segment; 0 without a frame.
    pub(crate) generation: u64,
}

/// What differs between a disk and an earlier one of the same drive, piece by piece, in order.
pub(crate) struct Differences<'a, M, C> {
    now: &'a Drive<M, C>,
    earlier: Option<&'a Drive<M, C>>,
    at: u64,
}

impl<'a, M: Medium, C: Clock> Differences<'a, M, C> {
    /// Begins at block `at`. Without an earlier disk, everything but zeroes differs.
    pub(crate) fn new(now: &'a Drive<M, C>, earlier: Option<&'a Drive<M, C>>, at: u64) -> Self {
        Self { now, earlier, at }
    }

    /// Returns the next piece; `None` at the end of the disk.
    ///
    /// # Errors
    /// `Corrupt` or `Medium` if a map cannot be read.
    pub(crate) async fn next(&mut self) -> Result<Option<Difference>> {
        let Self { now, earlier, .. } = *self;
        let end = now.size_bytes() / BLOCK_BYTES as u64;
        while self.at < end {
            let at = self.at;
            if let Some(next) = now.next_difference(earlier, at) {
                self.at = next;
                continue;
            }
            let old = match earlier {
                Some(earlier) => earlier.piece(at).await?,
                None => Piece { mapping: Mapping::Hole, generation: 0, blocks: u64::MAX },
            };
            let new = now.piece(at).await?;
            let blocks = old.blocks.min(new.blocks).min(end - at);
            assert!(blocks > 0, "a comparison of disks makes progress");
            self.at += blocks;
            if !is_same(&old, &new) {
                let Piece { mapping, generation, .. } = new;
                return Ok(Some(Difference { lba: Lba(at), blocks, mapping, generation }));
            }
        }
        Ok(None)
    }
}

fn is_same(old: &Piece, new: &Piece) -> bool {
    let is_zero = |piece: &Piece| matches!(piece.mapping, Mapping::Hole | Mapping::Fill(0));
    let is_one_place = (old.mapping, old.generation) == (new.mapping, new.generation);
    is_one_place || is_zero(old) && is_zero(new)
}

fn content_of(mapping: Mapping) -> Content {
    match mapping {
        Mapping::Hole => Content::Hole,
        Mapping::Fill(0) => Content::Zeroes,
        Mapping::Fill(_) | Mapping::Frame { .. } => Content::Data,
    }
}

//! What differs between two disks of one drive, by their maps: no data is read.
//!
//! A frame of a segment that a snapshot needs is not moved, and its place is not used again while
//! the snapshot is there. So a block of a later disk that lies where the snapshot has it was not
//! written since. Leaves of the map that lie at one place are not even read. Compared with a
//! bookmark, whose frames may have been moved without a trace, moved blocks say how old they are.

use super::super::core::{Core, Located};
use super::super::drive::Drive;
use super::super::map::Mapping;
use super::Content;
use super::ages::{Ages, FrameBlock};
use crate::base::units::BLOCK_BYTES;
use crate::base::{Clock, Error, ErrorKind, Lba, Result};
use crate::format::{DIRECTORY_PAGE_LEAVES, LEAF_BLOCKS};
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

/// A run of bytes of a disk, compared with an earlier snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compared {
    /// Its length; never 0.
    pub bytes: u64,
    /// What it is now, if it was written since.
    pub changed: Option<Content>,
}

/// What a block is, and how many blocks from it on are parts of the same.
struct Piece {
    mapping: Mapping,
    generation: u64,
    blocks: u64,
    /// Whether it is that of the origin of a clone.
    is_inherited: bool,
}

impl Piece {
    /// A hole up to the end of any disk.
    const HOLE: Self =
        Self { mapping: Mapping::Hole, generation: 0, blocks: u64::MAX, is_inherited: false };
}

impl<M: Medium, C: Clock> Drive<M, C> {
    /// Calls `visit` for each range of this disk that was written since `earlier`, a snapshot of
    /// the same drive or a bookmark, in order, until it returns false. Ranges of one content do not
    /// touch. Blocks that were written and are zeroes as before do not count, nor does what was
    /// trimmed and was zeroes before. What a scrub has restored elsewhere counts. Since a bookmark,
    /// more may count: of a frame that garbage collection copied for a snapshot, what was
    /// overwritten then.
    ///
    /// # Errors
    /// `InvalidInput` if `earlier` is of another drive, or is not earlier; `Corrupt` or `Medium` if
    /// a map cannot be read.
    pub async fn changes_since(
        &self,
        earlier: &Drive<M, C>,
        mut visit: impl FnMut(Changed) -> bool,
    ) -> Result<()> {
        let (mut at, mut found, mut is_wanted) = (0, None::<Changed>, true);
        let compare = self.compare(earlier, 0, self.size_bytes(), |Compared { bytes, changed }| {
            let offset = at;
            at += bytes;
            let Some(content) = changed else { return true };
            match &mut found {
                Some(last) if last.offset + last.bytes == offset && last.content == content => {
                    last.bytes += bytes;
                }
                _ => {
                    let before = found.replace(Changed { offset, bytes, content });
                    is_wanted = before.is_none_or(&mut visit);
                }
            }
            is_wanted
        });
        compare.await?;
        if let Some(last) = found.filter(|_| is_wanted) {
            visit(last);
        }
        Ok(())
    }

    /// Calls `visit` for each run of the `len` bytes from `offset` on, in order, until it returns
    /// false, with whether it was written since `earlier`: see [`Drive::changes_since`]. Runs do
    /// not reach beyond the range; adjacent ones may say the same. A block of an open drive that
    /// changes during the call is compared as it is when its turn comes.
    ///
    /// # Errors
    /// As [`Drive::changes_since`]; `InvalidInput` beyond the end of the disk.
    pub async fn compare(
        &self,
        earlier: &Drive<M, C>,
        offset: u64,
        len: u64,
        mut visit: impl FnMut(Compared) -> bool,
    ) -> Result<()> {
        self.core().check_range(offset, len)?;
        let [before, now] =
            [earlier, self].map(|drive| (drive.uuid(), drive.core().log().durable_seq()));
        if before.0 != now.0 || before.1 > now.1 {
            let what = "changes are counted from an earlier snapshot of the same drive";
            return Err(Error::new(ErrorKind::InvalidInput, what));
        }
        let block = BLOCK_BYTES as u64;
        let mut ages = Ages::since(earlier);
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let (lba, last) = (at / block, end.div_ceil(block));
            let (count, changed) = match self.next_difference(Some(earlier), lba) {
                Some(next) => (next - lba, None),
                None => {
                    let old = earlier.piece(lba).await?;
                    // Of this moment, in which it is compared.
                    let new = self.piece(lba).await?;
                    let (blocks, is_same) = self.same(&mut ages, lba, &old, &new).await;
                    (blocks, (!is_same).then(|| content_of(&new)))
                }
            };
            let bytes = (lba + count.min(last - lba)) * block - at;
            let bytes = bytes.min(end - at);
            assert!(bytes > 0, "a comparison of disks makes progress");
            if !visit(Compared { bytes, changed }) {
                return Ok(());
            }
            at += bytes;
        }
        Ok(())
    }

    /// Returns whether a piece is what it was in an earlier disk, and for how many blocks from `at`
    /// on that is so.
    async fn same(
        &self,
        ages: &mut Option<Ages>,
        at: u64,
        old: &Piece,
        new: &Piece,
    ) -> (u64, bool) {
        let blocks = old.blocks.min(new.blocks);
        match (ages, old.mapping, new.mapping) {
            _ if is_same(old, new) => (blocks, true),
            (Some(ages), Mapping::Frame { .. }, Mapping::Frame { place, index }) => {
                let generation = new.generation;
                let block = FrameBlock { lba: Lba(at), place, generation, index };
                let (is_as_old, of_one_age) = ages.is_as_old(self, block).await;
                (blocks.min(of_one_age), is_as_old)
            }
            _ => (blocks, false),
        }
    }

    /// Returns the first block after `at` that may differ, if that is known without reading: in a
    /// leaf that both maps have at one place, or in leaves that neither has.
    fn next_difference(&self, earlier: Option<&Drive<M, C>>, at: u64) -> Option<u64> {
        let leaf_blocks = u64::from(LEAF_BLOCKS);
        let leaf = at / leaf_blocks;
        let leaves = |core: &Core| (core.size_bytes() / BLOCK_BYTES as u64).div_ceil(leaf_blocks);
        let (old, new) = (earlier.map(Drive::core), self.core());
        let common = old.as_ref().map_or(leaves(&new), |old| leaves(old));
        if leaf >= common {
            return None;
        }
        // No further than a directory page: the next call would look at the same leaves again.
        let end = (leaf + 1).next_multiple_of(DIRECTORY_PAGE_LEAVES as u64).min(common);
        let mapped = |core: &Core| core.map().next_mapped_leaf_below(leaf, end);
        let both = [old.as_ref().and_then(|old| mapped(old)), mapped(&new)];
        let next = both.into_iter().flatten().min().unwrap_or(end).min(end);
        if next > leaf {
            return Some(next * leaf_blocks);
        }
        let stored =
            |core: &Core| core.stored_leaf(leaf).map(|found| (found.place, found.generation));
        let old = old.as_ref().and_then(|old| stored(old));
        let is_one = old.is_some() && old == stored(&new);
        is_one.then_some((leaf + 1) * leaf_blocks)
    }

    /// Returns what a block is; beyond the end of the disk a hole.
    async fn piece(&self, at: u64) -> Result<Piece> {
        if at >= self.size_bytes() / BLOCK_BYTES as u64 {
            return Ok(Piece::HOLE);
        }
        loop {
            match self.with_core(|core| core.locate(Lba(at))) {
                Located::Run { mapping: Mapping::Frame { place, index }, blocks, generation } => {
                    let (place, generation) = self.core().forwarded(place, generation);
                    let mapping = Mapping::Frame { place, index };
                    return Ok(Piece { mapping, generation, blocks, is_inherited: false });
                }
                Located::Run { mapping, blocks, generation } => {
                    let inherited = match mapping {
                        Mapping::Hole => self.inherited(Lba(at), blocks),
                        _ => None,
                    };
                    let is_inherited = inherited.is_some();
                    let blocks = inherited.unwrap_or(blocks);
                    return Ok(Piece { mapping, generation, blocks, is_inherited });
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
    ages: Option<Ages>,
    at: u64,
}

impl<'a, M: Medium, C: Clock> Differences<'a, M, C> {
    /// Begins at block `at`. Without an earlier disk, everything but zeroes differs.
    pub(crate) fn new(now: &'a Drive<M, C>, earlier: Option<&'a Drive<M, C>>, at: u64) -> Self {
        Self { now, earlier, ages: earlier.and_then(Ages::since), at }
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
                None => Piece::HOLE,
            };
            let new = now.piece(at).await?;
            let (blocks, is_same) = now.same(&mut self.ages, at, &old, &new).await;
            let blocks = blocks.min(end - at);
            assert!(blocks > 0, "a comparison of disks makes progress");
            self.at += blocks;
            if !is_same {
                let Piece { mapping, generation, .. } = new;
                return Ok(Some(Difference { lba: Lba(at), blocks, mapping, generation }));
            }
        }
        Ok(None)
    }
}

fn is_same(old: &Piece, new: &Piece) -> bool {
    let is_zero = |piece: &Piece| {
        !piece.is_inherited && matches!(piece.mapping, Mapping::Hole | Mapping::Fill(0))
    };
    // All disks of a drive inherit the same blocks, as far as they have written none.
    let is_one_place = (old.mapping, old.generation) == (new.mapping, new.generation)
        && old.is_inherited == new.is_inherited;
    is_one_place || is_zero(old) && is_zero(new)
}

fn content_of(piece: &Piece) -> Content {
    match piece.mapping {
        Mapping::Hole if piece.is_inherited => Content::Data,
        Mapping::Hole => Content::Hole,
        Mapping::Fill(0) => Content::Zeroes,
        Mapping::Fill(_) | Mapping::Frame { .. } => Content::Data,
    }
}

//! Finds the differences between two disks of one drive by their maps, without reading data.
//!
//! A frame of a segment that a snapshot needs is not moved, and its place is not reused while the
//! snapshot exists. A block of a later disk that has the same place as in the snapshot was
//! therefore not written since. Leaves of the two maps with the same place are not even read. In a
//! comparison with a bookmark, whose frames may have been moved without a trace, moved blocks
//! record their age.
//!
//! All disks of a clone read from one snapshot of its origin, so blocks that two of them read from
//! there are equal. If there is no earlier disk, blocks that a clone reads from its origin differ,
//! with the origin's content; in a comparison with zeroes, they differ where the origin has other
//! data.

use std::ops::Range;

use futures_util::future::join;

use super::super::core::{Core, LeafPiece, Located};
use super::super::drive::Drive;
use super::super::drive::leaf_sweep::SWEEP_LEAVES_MAX;
use super::super::map::Mapping;
use super::Content;
use super::ages::{Ages, FrameBlock};
use crate::base::units::BLOCK_BYTES;
use crate::base::{Error, ErrorKind, Lba, Result};
use crate::format::{DIRECTORY_PAGE_LEAVES, LEAF_BLOCKS};

/// A range of bytes that was written between two snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changed {
    /// Byte offset of its start, a multiple of 4 KiB.
    pub offset: u64,
    /// Its length, a multiple of 4 KiB; never 0.
    pub bytes: u64,
    /// Its current content.
    pub content: Content,
}

/// A run of bytes of a disk, compared with an earlier snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compared {
    /// Its length; never 0.
    pub bytes: u64,
    /// Its current content, if it was written since.
    pub changed: Option<Content>,
}

/// The mapping of a block, and the number of blocks, counted from it, that continue it.
#[derive(Clone, Copy)]
struct Piece {
    mapping: Mapping,
    generation: u64,
    blocks: u64,
    /// Whether the blocks are read from the origin of a clone.
    is_inherited: bool,
}

impl Piece {
    /// A hole up to the end of any disk.
    const HOLE: Self =
        Self { mapping: Mapping::Hole, generation: 0, blocks: u64::MAX, is_inherited: false };

    /// Returns whether the blocks are zeroes, as far as this drive can determine.
    fn are_zeroes(&self) -> bool {
        !self.is_inherited && matches!(self.mapping, Mapping::Hole | Mapping::Fill(0))
    }

    /// Returns the part of a leaf's piece that begins at block `at`, which is in the piece.
    fn of_leaf(piece: LeafPiece, at: u64) -> Self {
        let LeafPiece { start, end, mapping, generation } = piece;
        assert!((start..end).contains(&at), "a block lies in its piece");
        let mapping = match mapping {
            Mapping::Frame { place, index } => {
                let index = u64::from(index) + at - start;
                let index = u8::try_from(index).expect("a run ends within its frame");
                Mapping::Frame { place, index }
            }
            mapping => mapping,
        };
        Self { mapping, generation, blocks: end - at, is_inherited: false }
    }
}

/// The progress of loading leaves ahead of a comparison.
struct Sweep {
    /// The first leaf of the next sweep.
    leaf: u64,
    /// The first leaf beyond all sweeps.
    end: u64,
}

/// Leaves that one sweep examines, in some milliseconds.
const SWEEP_LOOKS: u64 = 1 << 18;

impl Drive {
    /// Calls `visit` for each range of this disk that was written since `earlier`, a snapshot of
    /// the same drive or a bookmark, in order, until it returns false. Adjacent ranges have
    /// different contents. Blocks that were written but are zeroes as before do not count, nor do
    /// trimmed blocks that were zeroes before. Blocks that a scrub has restored elsewhere count. In
    /// a comparison with a bookmark, more may count: blocks that had been overwritten when garbage
    /// collection copied their frame for a snapshot.
    ///
    /// # Errors
    /// `InvalidInput` if `earlier` belongs to another drive, or is not earlier; `Corrupt` or
    /// `Medium` if a map cannot be read.
    pub async fn changes_since(
        &self,
        earlier: &Drive,
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

    /// Calls `visit` for each run of the `len` bytes starting at `offset`, in order, until it
    /// returns false, and passes whether the run was written since `earlier`: see
    /// [`Drive::changes_since`]. Runs do not extend beyond the range; adjacent runs may have equal
    /// results. A block of an open drive that changes during the call is compared as of its turn.
    ///
    /// # Errors
    /// The errors of [`Drive::changes_since`]; `InvalidInput` beyond the end of the disk.
    pub async fn compare(
        &self,
        earlier: &Drive,
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
        let mut sweep = Sweep { leaf: 0, end: end.div_ceil(block).div_ceil(LEAF_BLOCKS.into()) };
        let mut runs = Vec::new();
        while at < end {
            let (lba, last) = (at / block, end.div_ceil(block));
            let run =
                |blocks: u64, changed| Compared { bytes: blocks.min(last - lba) * block, changed };
            if let Some(next) = self.next_difference(Some(earlier), lba) {
                runs.push(run(next - lba, None));
            } else {
                self.sweep_differing(Some(earlier), lba, &mut sweep).await;
                if ages.is_some() || !self.compare_leaf(earlier, lba..last, &mut runs) {
                    runs.clear();
                    let old = earlier.piece(lba).await?;
                    // Read now, at the moment of the comparison.
                    let new = self.piece(lba).await?;
                    let (blocks, is_same) = self.same((earlier, &mut ages), lba, &old, &new).await;
                    runs.push(run(blocks, (!is_same).then(|| content_of(&new))));
                }
            }
            for Compared { bytes, changed } in runs.drain(..) {
                // The first run may begin, and the last end, within a block.
                let bytes = (at / block * block + bytes).min(end) - at;
                assert!(bytes > 0, "a comparison of disks makes progress");
                if !visit(Compared { bytes, changed }) {
                    return Ok(());
                }
                at += bytes;
            }
        }
        assert_eq!(at, end, "the runs end where the range ends");
        Ok(())
    }

    /// Compares a leaf from the first of `blocks` on, up to their end, if it is in memory on both
    /// disks and has no blocks of an origin. Puts its runs into `runs`, in whole blocks. Returns
    /// false if it cannot compare them.
    fn compare_leaf(&self, earlier: &Self, blocks: Range<u64>, runs: &mut Vec<Compared>) -> bool {
        runs.clear();
        let (old, new) = (earlier.core(), self.core());
        let leaf = blocks.start / u64::from(LEAF_BLOCKS);
        let (mut at, end) = (blocks.start, blocks.end.min((leaf + 1) * u64::from(LEAF_BLOCKS)));
        let (olds, news) = (old.leaf_pieces(leaf), new.leaf_pieces(leaf));
        let (Some(mut olds), Some(mut news)) = (olds, news) else { return false };
        let (mut one, mut other) = (olds.next(), news.next());
        while at < end {
            let (Some(before), Some(now)) = (one, other) else { return false };
            let until = before.end.min(now.end);
            if at < until {
                let (was, is) = (Piece::of_leaf(before, at), Piece::of_leaf(now, at));
                let changed = (!is_same(&was, &is)).then(|| content_of(&is));
                let bytes = (until.min(end) - at) * BLOCK_BYTES as u64;
                match runs.last_mut().filter(|last| last.changed == changed) {
                    Some(last) => last.bytes += bytes,
                    None => runs.push(Compared { bytes, changed }),
                }
                at = until;
            }
            one = if before.end <= at { olds.next() } else { one };
            other = if now.end <= at { news.next() } else { other };
        }
        let bytes: u64 = runs.iter().map(|run| run.bytes).sum();
        assert_eq!(bytes, (end - blocks.start) * BLOCK_BYTES as u64, "runs are the whole part");
        true
    }

    /// Loads the next differing leaves, from the leaf of block `at` on, in the order of the medium,
    /// unless the last sweep also covered this leaf.
    async fn sweep_differing(&self, earlier: Option<&Self>, at: u64, sweep: &mut Sweep) {
        let leaf_blocks = u64::from(LEAF_BLOCKS);
        let leaf = at / leaf_blocks;
        if leaf < sweep.leaf {
            return;
        }
        let (mut next, mut leaves) = (leaf, Vec::new());
        while next < sweep.end.min(leaf + SWEEP_LOOKS) && leaves.len() < SWEEP_LEAVES_MAX {
            next = match self.next_difference(earlier, next * leaf_blocks) {
                Some(differing) => differing / leaf_blocks,
                None => {
                    leaves.push(next);
                    next + 1
                }
            };
        }
        let of_earlier = async {
            match earlier {
                Some(earlier) => earlier.sweep_leaves(&leaves).await,
                None => leaves.len(),
            }
        };
        let (one, other) = join(self.sweep_leaves(&leaves), of_earlier).await;
        sweep.leaf = leaves.get(one.min(other)).copied().unwrap_or(next);
    }

    /// Compares a piece with that of an earlier disk. Returns the number of blocks starting at `at`
    /// for which the result is valid, and whether they are equal.
    async fn same(
        &self,
        (earlier, ages): (&Drive, &mut Option<Ages>),
        at: u64,
        old: &Piece,
        new: &Piece,
    ) -> (u64, bool) {
        let blocks = old.blocks.min(new.blocks);
        match (ages, old.mapping, new.mapping) {
            _ if is_same(old, new) => (blocks, true),
            _ if old.is_inherited && new.are_zeroes() => match earlier.at_source(at, *old).await {
                Ok((source, _)) => (blocks.min(source.blocks), source.are_zeroes()),
                Err(_) => (blocks, false),
            },
            (Some(ages), Mapping::Frame { .. }, Mapping::Frame { place, index }) => {
                let generation = new.generation;
                let block = FrameBlock { lba: Lba(at), place, generation, index };
                let (is_as_old, of_one_age) = ages.is_as_old(self, block).await;
                (blocks.min(of_one_age), is_as_old)
            }
            _ => (blocks, false),
        }
    }

    /// Returns the first block after `at` that may differ. The result is known without reading only
    /// if `at` is in a leaf to which both maps assign the same place, or in leaves that neither
    /// has.
    fn next_difference(&self, earlier: Option<&Drive>, at: u64) -> Option<u64> {
        let leaf_blocks = u64::from(LEAF_BLOCKS);
        let leaf = at / leaf_blocks;
        let leaves = |core: &Core| (core.size_bytes() / BLOCK_BYTES as u64).div_ceil(leaf_blocks);
        let (old, new) = (earlier.map(Drive::core), self.core());
        let common = old.as_ref().map_or(leaves(&new), |old| leaves(old));
        if leaf >= common {
            return None;
        }
        // No further than a directory page: the next call would examine the same leaves again.
        let end = (leaf + 1).next_multiple_of(DIRECTORY_PAGE_LEAVES as u64).min(common);
        let mapped = |core: &Core| core.map().next_mapped_leaf_below(leaf, end);
        let of_old = old.as_ref().and_then(|old| mapped(old));
        let inherits = |core: &Core| core.inherited_blocks();
        // Blocks that both inherit are equal.
        let inherited = match (earlier, &old) {
            (Some(_), Some(old)) if inherits(old) == inherits(&new) => [None, None],
            _ => [Some(self), earlier].map(|disk| disk?.next_inherited_leaf(leaf, end)),
        };
        let [of_one, of_other] = inherited;
        let all = [of_old, mapped(&new), of_one, of_other];
        let next = all.into_iter().flatten().min().unwrap_or(end).min(end);
        if next > leaf {
            return Some(next * leaf_blocks);
        }
        let stored =
            |core: &Core| core.stored_leaf(leaf).map(|found| (found.place, found.generation));
        let old = old.as_ref().and_then(|old| stored(old));
        let is_one = old.is_some() && old == stored(&new);
        is_one.then_some((leaf + 1) * leaf_blocks)
    }

    /// Returns the first leaf at or after `leaf`, below `end`, in which this clone may have blocks
    /// of its origin, or of a more distant origin.
    fn next_inherited_leaf(&self, leaf: u64, end: u64) -> Option<u64> {
        let (mut drive, mut end, mut found) = (self, end, None::<u64>);
        loop {
            end = end.min(drive.core().inherited_blocks().div_ceil(u64::from(LEAF_BLOCKS)));
            if leaf >= end {
                return found;
            }
            // Reading the piece then returns the error.
            let Ok(origin) = drive.opened_origin() else { return Some(leaf) };
            let next = origin.core().map().next_mapped_leaf_below(leaf, end);
            end = next.unwrap_or(end);
            found = next.or(found);
            drive = origin;
        }
    }

    /// Returns the piece of a block at its source, and the depth of the source: 0 for this drive, 1
    /// for its origin, and so on. `piece` is this drive's own.
    async fn at_source(&self, at: u64, mut piece: Piece) -> Result<(Piece, u32)> {
        let (mut drive, mut depth) = (self, 0);
        while piece.is_inherited {
            drive = drive.opened_origin()?;
            depth += 1;
            let blocks = piece.blocks;
            piece = drive.piece(at).await?;
            piece.blocks = piece.blocks.min(blocks);
        }
        Ok((piece, depth))
    }

    /// Returns the piece that begins at a block. Beyond the end of the disk, this is a hole.
    async fn piece(&self, at: u64) -> Result<Piece> {
        if at >= self.size_bytes() / BLOCK_BYTES as u64 {
            return Ok(Piece::HOLE);
        }
        loop {
            match self.with_core(|core| core.locate(Lba(at))) {
                Located::Run { mapping: Mapping::Frame { place, index }, blocks, generation } => {
                    let (place, generation) = self.core().forwards().resolve(place, generation);
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
    /// The mapping of the first block; the subsequent blocks continue it.
    pub(crate) mapping: Mapping,
    /// Generation of its segment; 0 without a frame.
    pub(crate) generation: u64,
    /// Depth of the log that contains the frame: 0 for the drive itself, 1 for its origin, and so
    /// on.
    pub(crate) depth: u32,
}

/// The differences between a disk and an earlier one of the same drive, piece by piece, in order.
pub(crate) struct Differences<'a> {
    now: &'a Drive,
    earlier: Option<&'a Drive>,
    ages: Option<Ages>,
    at: u64,
    sweep: Sweep,
}

impl<'a> Differences<'a> {
    /// Begins at block `at`. Without an earlier disk, everything but zeroes differs.
    pub(crate) fn new(now: &'a Drive, earlier: Option<&'a Drive>, at: u64) -> Self {
        let end = now.size_bytes().div_ceil(BLOCK_BYTES as u64 * u64::from(LEAF_BLOCKS));
        let sweep = Sweep { leaf: 0, end };
        Self { now, earlier, ages: earlier.and_then(Ages::since), at, sweep }
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
                assert!(next > at, "equal leaves are skipped forward");
                self.at = next;
                continue;
            }
            now.sweep_differing(earlier, at, &mut self.sweep).await;
            let old = match earlier {
                Some(earlier) => earlier.piece(at).await?,
                None => Piece::HOLE,
            };
            let new = now.piece(at).await?;
            let before = (earlier.unwrap_or(now), &mut self.ages);
            let (mut blocks, mut is_same) = now.same(before, at, &old, &new).await;
            let mut found = (new, 0);
            if !is_same && new.is_inherited {
                found = now.at_source(at, new).await?;
                blocks = blocks.min(found.0.blocks);
                is_same = old.are_zeroes() && found.0.are_zeroes();
            }
            let blocks = blocks.min(end - at);
            assert!(blocks > 0, "a comparison of disks makes progress");
            self.at += blocks;
            if !is_same {
                let (Piece { mapping, generation, .. }, depth) = found;
                return Ok(Some(Difference { lba: Lba(at), blocks, mapping, generation, depth }));
            }
        }
        Ok(None)
    }
}

fn is_same(old: &Piece, new: &Piece) -> bool {
    // All disks of a drive inherit the same blocks, except those that they have written.
    let is_one_place = (old.mapping, old.generation) == (new.mapping, new.generation)
        && old.is_inherited == new.is_inherited;
    is_one_place || old.are_zeroes() && new.are_zeroes()
}

fn content_of(piece: &Piece) -> Content {
    match piece.mapping {
        Mapping::Hole if piece.is_inherited => Content::Data,
        Mapping::Hole => Content::Hole,
        Mapping::Fill(0) => Content::Zeroes,
        Mapping::Fill(_) | Mapping::Frame { .. } => Content::Data,
    }
}

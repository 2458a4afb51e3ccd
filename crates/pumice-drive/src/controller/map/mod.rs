//! The logical-to-physical map: the frame that contains each block.
//!
//! ```text
//! directory: pages of 512 entries --> hole | fill | address of a leaf on the medium | slot
//! slab:      slots --> leaf: runs of 1024 blocks --> hole | fill | frame + index
//!                            tables: frame --> places and checksums of its chunks
//! dropped:   ranges of whole leaves that became a hole or a fill in one step, not yet reaped
//! ```
//!
//! The directory is resident. Leaves are *paged*: loaded when needed, evicted under a budget when
//! the medium has their current content, and written by checkpoints. A leaf that is only on the
//! medium must be loaded before it is changed or looked up ([`Lookup::Missing`], [`L2p::missing`],
//! [`L2p::install`]); the core checks that the leaf is in memory and changes it in one call.
//!
//! A trim of any length takes constant work per call: whole leaves are only recorded in `dropped`,
//! which every look-up checks first, and [`L2p::reap`] removes the old leaves in bounded steps. A
//! leaf that is written before it is reaped is removed from the range immediately.
//!
//! The map is pure: it does no I/O, sees no bytes of data and never waits. It reports pieces of
//! frames that died as [`Released`], and its own dead records at the end of a checkpoint.

#![warn(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::indexing_slicing
)]

mod checkpoint;
mod directory;
mod dropped;
mod leaf;
mod slab;
mod tables;
#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "small numbers of a model")]
mod tests;
mod walk;

use std::ops::Range;

use checkpoint::Running;
pub(crate) use checkpoint::{DroppedSnapshot, LeafContent};
use directory::{Directory, Location, page_of};
use dropped::Dropped;
pub(crate) use dropped::DroppedRange;
pub(crate) use leaf::{LEAF_BLOCKS, Leaf};
pub(crate) use slab::KeptLeaves;
use slab::Slab;
pub(crate) use walk::RestoredPage;

use super::place::{FrameAddress, FramePlace};
use crate::base::Lba;
use crate::base::units::BLOCK_BYTES;
use crate::codec::ChunkTable;
use crate::format::{DIRECTORY_PAGE_LEAVES, DirectoryEntry, MetadataAddress, SIZE_BYTES_MAX};

const PAGE_LEAVES: u64 = DIRECTORY_PAGE_LEAVES as u64;

/// Number of leaves of dropped ranges to examine for leaves that must be loaded. Examining them
/// takes some microseconds.
const REAP_AHEAD: usize = 1024;

/// The mapping of one logical block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mapping {
    /// Never written, or trimmed: reads as zeroes.
    Hole,
    /// All bytes of the block have this value.
    Fill(u8),
    /// Block `index` of a frame.
    Frame {
        /// The frame.
        place: FramePlace,
        /// The index of the block in the frame.
        index: u8,
    },
}

impl Mapping {
    /// Returns whether the block reads as zeroes, whatever is written elsewhere: it contains no
    /// data.
    #[inline]
    pub(crate) fn is_zero(self) -> bool {
        matches!(self, Self::Hole | Self::Fill(0))
    }
}

/// A piece of a frame that nothing maps to any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Released {
    pub(crate) place: FramePlace,
    /// First block of the piece within the frame.
    pub(crate) index: u8,
    /// Blocks in the piece.
    pub(crate) count: u8,
}

/// The mapping of a block, as far as it is known without I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// Its mapping, and the number of blocks, counted from it and within its leaf, over which the
    /// same run continues: frame indexes increase, holes and fills stay the same.
    Run(Mapping, u64),
    /// The leaf with this number must be loaded first.
    Missing(u64),
}

impl Lookup {
    /// Returns the run; all leaves must be in memory.
    #[cfg(test)]
    pub(crate) fn resident(self) -> (Mapping, u64) {
        match self {
            Lookup::Run(mapping, count) => (mapping, count),
            Lookup::Missing(leaf) => unreachable!("leaf {leaf} of the map is not in memory"),
        }
    }
}

/// The result of a look-up, and the slot of the leaf that was searched.
struct Found {
    lookup: Lookup,
    slot: Option<u32>,
}

/// Blocks of a leaf that map to one frame, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LivePiece {
    /// The first block, within its leaf.
    pub(crate) start: u16,
    /// The block of the frame to which the first block is mapped.
    pub(crate) index: u8,
    /// Number of blocks.
    pub(crate) count: u8,
}

impl LivePiece {
    /// Returns the blocks of the frame.
    pub(crate) fn blocks(&self) -> Range<usize> {
        usize::from(self.index)..usize::from(self.index) + usize::from(self.count)
    }
}

/// Blocks that [`L2p::move_blocks`] is to move from one frame to another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockMove {
    /// Where the first block is mapped.
    pub(crate) lba: Lba,
    /// Number of blocks, all in one leaf.
    pub(crate) count: u16,
    /// The frame that they leave.
    pub(crate) from: FrameAddress,
    /// The frame that they move to.
    pub(crate) to: FramePlace,
    /// Which block of the new frame the first one becomes; the second becomes the next one, and so
    /// on.
    pub(crate) to_index: u8,
}

/// The progress of [`L2p::reap`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reap {
    /// Nothing is left to reap.
    Done,
    /// More is left.
    More,
    /// More is left, and the leaf with this number must be loaded first.
    Missing(u64),
}

/// Counts of the map's paging since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MapStats {
    /// Look-ups and changes that found their leaf in memory.
    pub(crate) hits: u64,
    /// Leaves loaded.
    pub(crate) misses: u64,
    /// Leaves evicted for the budget.
    pub(crate) evictions: u64,
}

/// The map of one drive.
pub(crate) struct L2p {
    directory: Directory,
    slab: Slab,
    dropped: Dropped,
    leaf_count: u64,
    budget_bytes: usize,
    /// Blocks of leaves that are not holes. Retained ranges are not counted; unreaped ranges count
    /// with their former content.
    leaf_mapped_blocks: u64,
    /// Places that the newest checkpoint names and the next one will not; packed.
    superseded: Vec<u64>,
    /// Bytes of leaves that checkpoints wrote since the last completed one.
    unnamed_bytes: usize,
    running: Option<Running>,
    hits: u64,
    misses: u64,
    evictions: u64,
}

impl L2p {
    /// Creates a map of `blocks` logical blocks, all holes, that caches up to `budget_bytes` of
    /// clean leaves in memory in addition to the dirty leaves.
    pub(crate) fn new(blocks: u64, budget_bytes: usize) -> Self {
        assert!(blocks <= SIZE_BYTES_MAX / BLOCK_BYTES as u64, "blocks of the largest disk");
        let leaf_count = blocks.div_ceil(u64::from(LEAF_BLOCKS));
        Self {
            directory: Directory::new(leaf_count),
            slab: Slab::default(),
            dropped: Dropped::default(),
            leaf_count,
            budget_bytes,
            leaf_mapped_blocks: 0,
            superseded: Vec::new(),
            unnamed_bytes: 0,
            running: None,
            hits: 0,
            misses: 0,
            evictions: 0,
        }
    }

    /// Grows the map to `blocks` logical blocks; the new blocks are holes.
    pub(crate) fn grow(&mut self, blocks: u64) {
        assert!(blocks <= SIZE_BYTES_MAX / BLOCK_BYTES as u64, "blocks of the largest disk");
        self.leaf_count = self.leaf_count.max(blocks.div_ceil(u64::from(LEAF_BLOCKS)));
        self.directory.grow(self.leaf_count);
    }

    fn check_range(&self, lba: Lba, count: u64) {
        let end = lba.0.checked_add(count).expect("blocks of the drive");
        let leaf_end = self.leaf_count * u64::from(LEAF_BLOCKS);
        assert!(end <= leaf_end, "blocks {lba}..{end} are not on the drive");
    }

    /// Returns the mapping of `lba`, a block of the drive, and marks its leaf as used.
    #[inline]
    pub(crate) fn lookup(&mut self, lba: Lba) -> Lookup {
        let found = self.find(lba);
        if let Some(slot) = found.slot {
            self.hits += 1;
            self.slab.reference(slot);
        }
        found.lookup
    }

    /// Returns the mapping of `lba`, for the drive's own use: the leaf is not marked as used.
    #[inline]
    pub(crate) fn peek(&self, lba: Lba) -> Lookup {
        self.find(lba).lookup
    }

    #[inline]
    fn find(&self, lba: Lba) -> Found {
        let (leaf, block) = leaf_of(lba);
        assert!(leaf < self.leaf_count, "block {lba} is not on the drive");
        let rest = u64::from(LEAF_BLOCKS - block);
        if let Some(mapping) = self.dropped.get(leaf) {
            return Found { lookup: Lookup::Run(mapping, rest), slot: None };
        }
        match self.directory.location(leaf) {
            Location::Slot(number) => {
                let (mapping, count) = self.slab.slot(number).content.lookup(block);
                Found { lookup: Lookup::Run(mapping, u64::from(count)), slot: Some(number) }
            }
            Location::Entry(entry) => {
                let run = |mapping| Lookup::Run(mapping, rest);
                Found { lookup: uniform(entry).map_or(Lookup::Missing(leaf), run), slot: None }
            }
        }
    }

    /// Returns the first leaf that must be loaded before the `count` blocks starting at `lba` can
    /// be changed. Checks each leaf: for ranges of a write, not of a trim.
    pub(crate) fn missing(&self, lba: Lba, count: u64) -> Option<u64> {
        self.check_range(lba, count);
        let leaf_blocks = u64::from(LEAF_BLOCKS);
        let leaves = lba.0 / leaf_blocks..(lba.0 + count).div_ceil(leaf_blocks);
        leaves.into_iter().find(|&leaf| self.is_missing(leaf))
    }

    /// Returns the first leaf that must be loaded before [`L2p::map_uniform`] of this range.
    pub(crate) fn missing_edges(&self, lba: Lba, count: u64) -> Option<u64> {
        self.check_range(lba, count);
        let leaf_blocks = u64::from(LEAF_BLOCKS);
        let end = lba.0 + count;
        let edge = |at: u64| (!at.is_multiple_of(leaf_blocks)).then_some(at / leaf_blocks);
        let edges = [edge(lba.0), edge(end)];
        edges.into_iter().flatten().find(|&leaf| count > 0 && self.is_missing(leaf))
    }

    /// Returns whether a leaf must be loaded before it is used. The leaf number may be arbitrary.
    pub(crate) fn is_on_medium_only(&self, leaf: u64) -> bool {
        leaf < self.leaf_count && self.dropped.get(leaf).is_none() && self.is_missing(leaf)
    }

    fn is_missing(&self, leaf: u64) -> bool {
        matches!(self.directory.location(leaf), Location::Entry(DirectoryEntry::Leaf(_)))
    }

    /// Returns the entry of a leaf in the newest checkpoint, or in the running one if it has
    /// already written the leaf: the place from which to load it.
    pub(crate) fn entry(&self, leaf: u64) -> DirectoryEntry {
        match self.directory.location(leaf) {
            Location::Slot(number) => self.slab.slot(number).entry,
            Location::Entry(entry) => entry,
        }
    }

    /// Returns the place of a leaf on the medium if the copy there is current: not changed in
    /// memory, and in no dropped range.
    pub(crate) fn stored_leaf(&self, leaf: u64) -> Option<MetadataAddress> {
        let is_changed = match self.directory.location(leaf) {
            Location::Slot(number) => {
                let slot = self.slab.slot(number);
                slot.is_dirty() || slot.is_pending()
            }
            Location::Entry(_) => false,
        };
        match self.entry(leaf) {
            DirectoryEntry::Leaf(place) if !is_changed && self.dropped.get(leaf).is_none() => {
                Some(place)
            }
            _ => None,
        }
    }

    /// Retains leaves in memory, once loaded, until the next call; `None` releases them.
    pub(crate) fn keep(&mut self, leaves: Option<KeptLeaves>) {
        let leaf_count = self.leaf_count;
        assert!(leaves.is_none_or(|kept| kept.last < leaf_count), "kept leaves are on the drive");
        self.slab.keep(leaves);
    }

    /// Installs a leaf that was loaded from `address` into memory. Does nothing if the leaf has
    /// been loaded, moved or reaped in the meantime. Returns whether the leaf was installed.
    pub(crate) fn install(&mut self, leaf: u64, address: MetadataAddress, content: Leaf) -> bool {
        let entry = DirectoryEntry::Leaf(address);
        if self.directory.location(leaf) != Location::Entry(entry) {
            return false;
        }
        assert!(leaf < self.leaf_count, "leaf {leaf} is not on the drive");
        self.misses += 1;
        let number = self.slab.insert(leaf, content, entry);
        self.directory.set(leaf, Location::Slot(number));
        self.evict();
        assert!(!self.is_missing(leaf), "a leaf that was just loaded is in memory");
        debug_assert_eq!(self.entry(leaf), entry, "loading a leaf does not move it");
        true
    }

    /// Maps a frame's blocks, which must be in one leaf, and reports their former content.
    ///
    /// # Panics
    /// If the leaf is [`L2p::missing`].
    pub(crate) fn map_frame(
        &mut self,
        lba: Lba,
        place: FramePlace,
        mut released: impl FnMut(Released),
    ) {
        let (leaf, block) = leaf_of(lba);
        assert!(place.blocks > 0, "a frame has a block or more");
        let mapping = Mapping::Frame { place, index: 0 };
        let number = self.writable(leaf, &mut released);
        self.replace(number, (block, u16::from(place.blocks)), mapping, &mut released);
    }

    /// Stores the table of a frame whose first block is `lba`, if that block is still mapped to it;
    /// without a table, forgets the table of an earlier frame at its address. The leaf becomes
    /// neither used nor dirty, so a table that no checkpoint writes is lost with the memory.
    pub(crate) fn set_table(&mut self, lba: Lba, place: FramePlace, table: Option<ChunkTable>) {
        let (leaf, start) = leaf_of(lba);
        let Location::Slot(number) = self.directory.location(leaf) else { return };
        let has_tables = self.slab.slot(number).content.table_count() > 0;
        if self.dropped.get(leaf).is_some() || (table.is_none() && !has_tables) {
            return;
        }
        self.slab.amend(number, |leaf| leaf.set_table(start, place, table));
        self.evict();
    }

    /// Returns the table of a frame whose block `index` is `lba`, if the table is known without
    /// I/O.
    pub(crate) fn table(&self, lba: Lba, index: u8, frame: &FramePlace) -> Option<ChunkTable> {
        let (leaf, block) = leaf_of(lba);
        let Location::Slot(number) = self.directory.location(leaf) else { return None };
        if self.dropped.get(leaf).is_some() {
            return None;
        }
        self.slab.slot(number).content.table(block.checked_sub(index.into())?, frame)
    }

    /// Makes `count` blocks a hole or a fill, in time that does not grow with `count`. Immediately
    /// reports only the former content of the two edge leaves.
    ///
    /// # Panics
    /// If an edge leaf is missing; see [`L2p::missing_edges`].
    pub(crate) fn map_uniform(
        &mut self,
        lba: Lba,
        count: u64,
        mapping: Mapping,
        mut released: impl FnMut(Released),
    ) {
        assert!(!matches!(mapping, Mapping::Frame { .. }), "a range is mapped to one frame");
        self.check_range(lba, count);
        let leaf_blocks = u64::from(LEAF_BLOCKS);
        let (mut at, end) = (lba.0, lba.0 + count);
        let edge_end = end.min(at.next_multiple_of(leaf_blocks));
        if at < edge_end {
            self.map_edge(at, edge_end, mapping, &mut released);
            at = edge_end;
        }
        let whole_end = end / leaf_blocks * leaf_blocks;
        if at < whole_end {
            self.dropped.insert(at / leaf_blocks, whole_end / leaf_blocks, mapping);
            at = whole_end;
        }
        if at < end {
            self.map_edge(at, end, mapping, &mut released);
        }
    }

    fn map_edge(
        &mut self,
        start: u64,
        end: u64,
        mapping: Mapping,
        released: &mut impl FnMut(Released),
    ) {
        let (leaf, block) = leaf_of(Lba(start));
        assert_eq!(leaf_of(Lba(end - 1)).0, leaf, "the edge of a range lies in one leaf");
        let count = u16::try_from(end - start).expect("an edge is shorter than a leaf");
        let whole = self.dropped.get(leaf).or_else(|| match self.directory.location(leaf) {
            Location::Entry(entry) => uniform(entry),
            Location::Slot(_) => None,
        });
        if whole == Some(mapping) {
            return;
        }
        let number = self.writable(leaf, released);
        self.replace(number, (block, count), mapping, released);
    }

    /// Moves blocks to another frame; blocks that do not map to the old frame stay. Reports each
    /// piece of the old frame with the block of the new frame that its first block became. Returns
    /// the number of blocks moved.
    ///
    /// # Panics
    /// If the leaf is [`L2p::missing`].
    pub(crate) fn move_blocks(
        &mut self,
        blocks: BlockMove,
        mut moved_piece: impl FnMut(Released, u8),
    ) -> u32 {
        let BlockMove { lba, count, from, to, to_index } = blocks;
        let (leaf, first) = leaf_of(lba);
        let (mut at, end) = (first, first + count);
        assert!(end <= LEAF_BLOCKS, "blocks that are moved lie in one leaf");
        assert!(
            u16::from(to_index) + count <= u16::from(to.blocks),
            "blocks are moved into their new frame"
        );
        let mut moved = 0;
        while let Some(piece) = self.next_piece(leaf, at, end, from) {
            let skipped = u8::try_from(piece.start - first).expect("a frame has at most 64 blocks");
            let index = to_index + skipped;
            assert!(index + piece.count <= to.blocks, "a block is moved beyond its new frame");
            let mut released = |released| moved_piece(released, index);
            let number = self.writable(leaf, &mut released);
            let mapping = Mapping::Frame { place: to, index };
            let range = (piece.start, u16::from(piece.count));
            self.replace(number, range, mapping, &mut released);
            moved += u32::from(piece.count);
            at = piece.start + range.1;
        }
        assert!(moved <= u32::from(count), "a block is moved once");
        moved
    }

    /// Returns the blocks of a frame that map to it, in order. According to its record, the frame
    /// begins at `lba`; it is in one leaf. Blocks for which a damaged map disagrees with the record
    /// (other lengths, other blocks) are omitted.
    ///
    /// # Panics
    /// If the leaf is [`L2p::missing`].
    pub(crate) fn live_pieces(
        &self,
        lba: Lba,
        frame: FramePlace,
    ) -> impl Iterator<Item = LivePiece> {
        let (leaf, first) = leaf_of(lba);
        assert!(frame.blocks > 0, "a frame has a block or more");
        let (mut at, end) = (first, LEAF_BLOCKS.min(first + u16::from(frame.blocks)));
        let pieces = std::iter::from_fn(move || {
            let piece = self.next_piece(leaf, at, end, frame.address())?;
            at = piece.start + u16::from(piece.count);
            Some(piece)
        });
        pieces.filter(move |piece| {
            let mapping = Mapping::Frame { place: frame, index: piece.index };
            let at = Lba(leaf * u64::from(LEAF_BLOCKS) + u64::from(piece.start));
            let is_its_own = u16::from(piece.index) == piece.start - first;
            is_its_own && matches!(self.peek(at), Lookup::Run(found, _) if found == mapping)
        })
    }

    fn next_piece(&self, leaf: u64, at: u16, end: u16, from: FrameAddress) -> Option<LivePiece> {
        assert!(end <= LEAF_BLOCKS, "pieces of a frame lie in one leaf");
        if at >= end || self.dropped.get(leaf).is_some() {
            return None;
        }
        match self.directory.location(leaf) {
            Location::Slot(number) => self.slab.slot(number).content.next_piece(at, end, from),
            Location::Entry(entry) => {
                assert!(uniform(entry).is_some(), "leaf {leaf} is asked before it was loaded");
                None
            }
        }
    }

    /// Reaps up to `steps` leaves of dropped ranges and reports their former content.
    pub(crate) fn reap(&mut self, steps: u32, mut released: impl FnMut(Released)) -> Reap {
        for _ in 0..steps {
            let Some(range) = self.dropped.next_unreaped() else { return Reap::Done };
            if self.skip_absent_pages(range) {
                continue;
            }
            let leaf = range.start;
            match self.directory.location(leaf) {
                Location::Entry(DirectoryEntry::Leaf(_)) => return Reap::Missing(leaf),
                Location::Entry(entry) => {
                    if uniform(entry) != Some(range.mapping) {
                        self.uncount(whole_leaf_blocks(uniform(entry)));
                        self.set_uniform(leaf, range.mapping);
                    }
                }
                Location::Slot(number) => self.reap_slot(number, range.mapping, &mut released),
            }
            self.dropped.reaped_to(leaf + 1);
        }
        match self.dropped.next_unreaped() {
            None => Reap::Done,
            Some(_) => Reap::More,
        }
    }

    /// Returns the leaves, among the next ones of dropped ranges, that must be loaded before they
    /// can be reaped: at most `count`.
    pub(crate) fn missing_to_reap(&self, count: usize) -> Vec<u64> {
        let leaves = self.dropped.unreaped().flat_map(|range| range.start..range.end);
        leaves.take(REAP_AHEAD).filter(|&leaf| self.is_missing(leaf)).take(count).collect()
    }

    /// Skips all pages up to the next existing one, if their leaves need no entries.
    fn skip_absent_pages(&mut self, range: DroppedRange) -> bool {
        assert!(range.end <= self.leaf_count, "a range of leaves lies on the drive");
        let absent_end = self.directory.absent_end(page_of(range.start)) * PAGE_LEAVES;
        if absent_end <= range.start {
            return false;
        }
        if range.mapping == Mapping::Hole {
            self.dropped.reaped_to(absent_end);
            return true;
        }
        let whole_end = absent_end.min(range.end / PAGE_LEAVES * PAGE_LEAVES);
        let has_whole = range.start.is_multiple_of(PAGE_LEAVES) && range.start < whole_end;
        if has_whole {
            self.dropped.retain_to(whole_end);
        }
        has_whole
    }

    fn reap_slot(&mut self, number: u32, mapping: Mapping, released: &mut impl FnMut(Released)) {
        let slot = self.slab.slot(number);
        slot.content.release_all(released);
        let leaf = slot.leaf;
        assert_eq!(self.directory.location(leaf), Location::Slot(number), "a leaf has one slot");
        if slot.is_pending() {
            // The running checkpoint reads the slot; the next one finds it uniform.
            self.make_uniform(number, mapping);
            return;
        }
        self.uncount_slot(number);
        self.freeze_page(page_of(leaf));
        if let DirectoryEntry::Leaf(address) = self.slab.remove(number) {
            self.superseded.push(address.pack());
        }
        self.set_uniform(leaf, mapping);
    }

    /// Returns the slot of a leaf that is about to be changed. Creates the slot, or removes the
    /// leaf from a dropped range, if necessary.
    fn writable(&mut self, leaf: u64, released: &mut impl FnMut(Released)) -> u32 {
        assert!(leaf < self.leaf_count, "leaf {leaf} is not on the drive");
        let dropped = self.dropped.take_out(leaf);
        match self.directory.location(leaf) {
            Location::Slot(number) => {
                assert_eq!(
                    self.slab.slot(number).leaf,
                    leaf,
                    "a slot holds the leaf that names it"
                );
                self.hits += 1;
                if let Some(mapping) = dropped {
                    self.slab.slot(number).content.release_all(released);
                    self.make_uniform(number, mapping);
                }
                number
            }
            Location::Entry(entry) => {
                let before = uniform(entry);
                assert!(before.is_some(), "leaf {leaf} is changed before it was loaded");
                let now = dropped.or(before).unwrap_or(Mapping::Hole);
                self.uncount(whole_leaf_blocks(before));
                self.leaf_mapped_blocks += whole_leaf_blocks(Some(now));
                let number = self.slab.insert(leaf, Leaf::uniform(now), entry);
                self.directory.set(leaf, Location::Slot(number));
                self.mark_changed(number);
                self.evict();
                assert_eq!(self.slab.slot(number).leaf, leaf, "a dirty leaf is not evicted");
                number
            }
        }
    }

    #[inline]
    fn replace(
        &mut self,
        number: u32,
        (start, count): (u16, u16),
        mapping: Mapping,
        released: &mut impl FnMut(Released),
    ) {
        if !self.slab.slot(number).is_dirty() {
            self.mark_changed(number);
        }
        let zeroes = self.slab.change(number, |leaf| leaf.replace(start, count, mapping, released));
        let before = count.checked_sub(zeroes).expect("only replaced blocks were zeroes");
        let before = u64::from(before);
        let now = if mapping.is_zero() { 0 } else { u64::from(count) };
        self.leaf_mapped_blocks += now;
        self.uncount(before);
        if self.slab.resident_bytes() > self.budget_bytes {
            self.evict();
        }
    }

    /// Makes a slot's leaf one hole or fill; its content has already been reported.
    fn make_uniform(&mut self, number: u32, mapping: Mapping) {
        self.uncount_slot(number);
        self.leaf_mapped_blocks += whole_leaf_blocks(Some(mapping));
        self.mark_changed(number);
        self.slab.change(number, |leaf| *leaf = Leaf::uniform(mapping));
    }

    /// Makes a leaf that is not in memory, and is counted as holes, one hole or fill.
    fn set_uniform(&mut self, leaf: u64, mapping: Mapping) {
        self.freeze_page(page_of(leaf));
        let entry = match mapping {
            Mapping::Fill(byte) => DirectoryEntry::Fill(byte),
            Mapping::Hole => DirectoryEntry::Hole,
            Mapping::Frame { .. } => unreachable!("a frame is shorter than a leaf"),
        };
        self.directory.set(leaf, Location::Entry(entry));
        self.directory.page_mut(page_of(leaf)).dirty = true;
        self.leaf_mapped_blocks += whole_leaf_blocks(Some(mapping));
    }

    fn uncount_slot(&mut self, number: u32) {
        self.uncount(self.slab.slot(number).content.mapped_blocks());
    }

    /// Subtracts blocks from the count, which may have been read from the medium and be wrong.
    fn uncount(&mut self, blocks: u64) {
        self.leaf_mapped_blocks = self.leaf_mapped_blocks.saturating_sub(blocks);
    }

    /// Evicts clean leaves until the map is within its budget, or too few clean leaves are left.
    fn evict(&mut self) {
        while self.slab.resident_bytes() > self.budget_bytes {
            let Some(number) = self.slab.victim() else { return };
            let leaf = self.slab.slot(number).leaf;
            assert_eq!(
                self.directory.location(leaf),
                Location::Slot(number),
                "a leaf has one slot"
            );
            let entry = self.slab.remove(number);
            self.directory.set(leaf, Location::Entry(entry));
            self.evictions += 1;
        }
    }
}

/// Returns the mapping of all blocks of a leaf, if its entry states it.
fn uniform(entry: DirectoryEntry) -> Option<Mapping> {
    match entry {
        DirectoryEntry::Hole => Some(Mapping::Hole),
        DirectoryEntry::Fill(byte) => Some(Mapping::Fill(byte)),
        DirectoryEntry::Leaf(_) => None,
    }
}

/// Returns the number of blocks that contain data in a leaf that is one hole or fill.
fn whole_leaf_blocks(mapping: Option<Mapping>) -> u64 {
    assert!(!matches!(mapping, Some(Mapping::Frame { .. })), "a frame is shorter than a leaf");
    if mapping.is_some_and(Mapping::is_zero) { 0 } else { u64::from(LEAF_BLOCKS) }
}

#[expect(clippy::cast_possible_truncation, reason = "the remainder is below 1024")]
fn leaf_of(lba: Lba) -> (u64, u16) {
    let leaf_blocks = u64::from(LEAF_BLOCKS);
    (lba.0 / leaf_blocks, (lba.0 % leaf_blocks) as u16)
}

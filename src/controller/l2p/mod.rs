//! The logical-to-physical map: which frame holds which block.
//!
//! ```text
//! directory: pages of 1024 leaves --> leaf: runs of 1024 blocks --> hole | fill | frame + index
//! dropped:   ranges of whole leaves that became a hole or a fill at once, not yet taken down
//! ```
//!
//! Trimming any length takes constant work per call: whole leaves are only noted in `dropped`,
//! which every look-up asks first, and [`L2p::reap`] takes the old leaves down in bounded steps.
//! A leaf written to in the meantime is taken out of the range at once.
//!
//! Sees no bytes and knows no medium; who holds live bytes is told through [`Released`].

mod dropped;
mod leaf;
#[cfg(test)]
mod tests;

use dropped::Dropped;
pub(crate) use leaf::LEAF_BLOCKS;
use leaf::Leaf;

use crate::base::Lba;

/// Leaves of one directory page: 4 GiB of the host's disk, 8 KiB of memory.
const PAGE_LEAVES: usize = 1024;

/// Where a frame's record stands, and how large it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FramePlace {
    /// Segment number.
    pub(crate) segment: u32,
    /// Byte offset of the record header in the segment.
    pub(crate) offset: u32,
    /// Bytes of header and payload.
    pub(crate) record_bytes: u32,
    /// Blocks in the frame, at least 1.
    pub(crate) blocks: u8,
}

impl FramePlace {
    /// The share of the record's bytes that `count` of its blocks from `index` on stand for. The
    /// shares of any partition of the frame add up to exactly `record_bytes`.
    #[inline]
    pub(crate) fn share(&self, index: u8, count: u8) -> u32 {
        if count == self.blocks {
            return self.record_bytes;
        }
        let up_to =
            |block: u64| u64::from(self.record_bytes) * block / u64::from(self.blocks.max(1));
        (up_to(u64::from(index) + u64::from(count)) - up_to(u64::from(index))) as u32
    }
}

/// What one logical block maps to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mapping {
    /// Never written, or trimmed: reads as zeroes.
    Hole,
    /// Every byte is this one.
    Fill(u8),
    /// Block `index` of a frame.
    Frame {
        /// The frame.
        place: FramePlace,
        /// Which of its blocks.
        index: u8,
    },
}

/// A piece of a frame that nothing maps to any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Released {
    /// The frame.
    pub(crate) place: FramePlace,
    /// First block of the piece within the frame.
    pub(crate) index: u8,
    /// Blocks in the piece.
    pub(crate) count: u8,
}

type Page = Box<[Option<Box<Leaf>>; PAGE_LEAVES]>;

/// The map of one drive.
pub(crate) struct L2p {
    pages: Vec<Option<Page>>,
    dropped: Dropped,
    leaf_count: u64,
}

impl L2p {
    /// A map of `blocks` logical blocks, all holes.
    pub(crate) fn new(blocks: u64) -> Self {
        let leaf_count = blocks.div_ceil(u64::from(LEAF_BLOCKS));
        let page_count = leaf_count.div_ceil(PAGE_LEAVES as u64);
        let pages = (0..page_count).map(|_| None).collect();
        Self { pages, dropped: Dropped::default(), leaf_count }
    }

    /// The mapping of `lba`, and for how many blocks from it on (within its leaf) the same run
    /// continues: frame indexes count up, holes and fills stay.
    pub(crate) fn lookup(&self, lba: Lba) -> (Mapping, u64) {
        let (leaf, block) = leaf_of(lba);
        if let Some(mapping) = self.dropped.get(leaf) {
            return (mapping, u64::from(LEAF_BLOCKS - block));
        }
        match self.leaf(leaf) {
            None => (Mapping::Hole, u64::from(LEAF_BLOCKS - block)),
            Some(found) => {
                let (mapping, count) = found.lookup(block);
                (mapping, u64::from(count))
            }
        }
    }

    /// Maps a frame's blocks, which must lie in one leaf, and reports what they held before.
    pub(crate) fn map_frame(
        &mut self,
        lba: Lba,
        place: FramePlace,
        mut released: impl FnMut(Released),
    ) {
        let (leaf, block) = leaf_of(lba);
        let mapping = Mapping::Frame { place, index: 0 };
        self.writable_leaf(leaf, &mut released).replace(
            block,
            u16::from(place.blocks),
            mapping,
            &mut released,
        );
    }

    /// Makes `count` blocks a hole or a fill, in time that does not grow with `count`; reports at
    /// once only what the two edge leaves held.
    pub(crate) fn map_uniform(
        &mut self,
        lba: Lba,
        count: u64,
        mapping: Mapping,
        mut released: impl FnMut(Released),
    ) {
        debug_assert!(!matches!(mapping, Mapping::Frame { .. }));
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
        if mapping == Mapping::Hole && self.leaf(leaf).is_none() && self.dropped.get(leaf).is_none()
        {
            return;
        }
        let count = (end - start) as u16;
        self.writable_leaf(leaf, released).replace(block, count, mapping, released);
    }

    /// Takes down up to `steps` leaves of dropped ranges and reports what they held. Gives whether
    /// more is left to do.
    pub(crate) fn reap(&mut self, steps: u32, mut released: impl FnMut(Released)) -> bool {
        for _ in 0..steps {
            let Some(leaf) = self.dropped.next_unreaped() else { return false };
            let page = (leaf / PAGE_LEAVES as u64) as usize;
            if self.pages[page].is_none() {
                let page_end = (page as u64 + 1) * PAGE_LEAVES as u64;
                self.dropped.reaped_to(page_end);
                continue;
            }
            if let Some(old) = self.slot(leaf).take() {
                old.release_all(&mut released);
            }
            self.dropped.reaped_to(leaf + 1);
        }
        self.dropped.next_unreaped().is_some()
    }

    /// Every mapped run in order of LBA: first block, number of blocks, mapping. Holes are left
    /// out.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (Lba, u64, Mapping)> {
        (0..self.leaf_count).flat_map(move |leaf| self.leaf_runs(leaf))
    }

    fn leaf_runs(&self, leaf: u64) -> impl Iterator<Item = (Lba, u64, Mapping)> {
        let first = leaf * u64::from(LEAF_BLOCKS);
        let dropped = self.dropped.get(leaf);
        let whole = dropped
            .filter(|mapping| *mapping != Mapping::Hole)
            .map(|mapping| (Lba(first), u64::from(LEAF_BLOCKS), mapping));
        let leaf = if dropped.is_some() { None } else { self.leaf(leaf) };
        let runs = leaf.into_iter().flat_map(Leaf::runs);
        let runs = runs.filter(|(_, _, mapping)| *mapping != Mapping::Hole);
        let absolute = move |(start, count, mapping)| {
            (Lba(first + u64::from(start)), u64::from(count), mapping)
        };
        whole.into_iter().chain(runs.map(absolute))
    }

    /// Bytes of memory the map holds.
    pub(crate) fn memory_bytes(&self) -> usize {
        let directory = self.pages.len() * size_of::<Option<Page>>();
        let pages = self.pages.iter().flatten();
        let leaves = pages.map(|page| {
            let held = page.iter().flatten().map(|leaf| leaf.memory_bytes()).sum::<usize>();
            held + PAGE_LEAVES * size_of::<Option<Box<Leaf>>>()
        });
        directory + leaves.sum::<usize>() + self.dropped.memory_bytes()
    }

    fn leaf(&self, leaf: u64) -> Option<&Leaf> {
        let page = self.pages[(leaf / PAGE_LEAVES as u64) as usize].as_ref()?;
        page[(leaf % PAGE_LEAVES as u64) as usize].as_deref()
    }

    fn slot(&mut self, leaf: u64) -> &mut Option<Box<Leaf>> {
        let page = self.pages[(leaf / PAGE_LEAVES as u64) as usize]
            .get_or_insert_with(|| Box::new([const { None }; PAGE_LEAVES]));
        &mut page[(leaf % PAGE_LEAVES as u64) as usize]
    }

    /// The leaf, created or taken out of a dropped range if need be.
    fn writable_leaf(&mut self, leaf: u64, released: &mut impl FnMut(Released)) -> &mut Leaf {
        if let Some(mapping) = self.dropped.take_out(leaf) {
            let fresh = Box::new(Leaf::uniform(mapping));
            if let Some(old) = self.slot(leaf).replace(fresh) {
                old.release_all(released);
            }
        }
        self.slot(leaf).get_or_insert_with(|| Box::new(Leaf::uniform(Mapping::Hole)))
    }
}

fn leaf_of(lba: Lba) -> (u64, u16) {
    let leaf_blocks = u64::from(LEAF_BLOCKS);
    (lba.0 / leaf_blocks, (lba.0 % leaf_blocks) as u16)
}

//! The map as a whole: restored from a checkpoint, walked leaf by leaf, counted.

use super::directory::{Location, page_of};
use super::{
    DroppedRange, L2p, LEAF_BLOCKS, Leaf, MapStats, Mapping, PAGE_LEAVES, uniform,
    whole_leaf_blocks,
};
use crate::base::{Error, ErrorKind, Lba, Result, SegmentId};
use crate::format::{DIRECTORY_PAGE_LEAVES, DirectoryEntry, MetaKind, MetadataAddress};

/// A directory page of a checkpoint.
pub(crate) struct RestoredPage {
    /// Its number.
    pub(crate) page: u32,
    pub(crate) address: MetadataAddress,
    /// Its entries, as [`crate::format::decode_page`] returns them.
    pub(crate) entries: Box<[u64; DIRECTORY_PAGE_LEAVES]>,
}

impl L2p {
    /// Restores the map of a checkpoint from its pages, its dropped ranges and its count of mapped
    /// blocks (see [`super::DroppedSnapshot`]). Leaves are loaded when they are needed.
    ///
    /// # Errors
    /// `Corrupt` if something is outside the drive, or ranges overlap or are out of order.
    pub(crate) fn restore(
        blocks: u64,
        budget_bytes: usize,
        pages: impl IntoIterator<Item = RestoredPage>,
        dropped: &[DroppedRange],
        leaf_mapped_blocks: u64,
    ) -> Result<Self> {
        let corrupt = |what: &'static str| Error::new(ErrorKind::Corrupt, what);
        let mut map = Self::new(blocks, budget_bytes);
        for page in pages {
            map.restore_page(page)?;
        }
        let mut end = 0;
        for range in dropped {
            let possible = end <= range.start
                && range.start < range.end
                && range.end <= blocks / u64::from(LEAF_BLOCKS)
                && !matches!(range.mapping, Mapping::Frame { .. });
            if !possible {
                return Err(corrupt("a checkpoint has invalid dropped ranges"));
            }
            map.dropped.insert(range.start, range.end, range.mapping);
            end = range.end;
        }
        if leaf_mapped_blocks > blocks {
            return Err(corrupt("a checkpoint counts more mapped blocks than the drive has"));
        }
        map.leaf_mapped_blocks = leaf_mapped_blocks;
        map.slab.check_counts();
        map.directory.check_counts();
        Ok(map)
    }

    fn restore_page(&mut self, restored: RestoredPage) -> Result<()> {
        let corrupt = |what: &'static str| Error::new(ErrorKind::Corrupt, what);
        let first = u64::from(restored.page) * PAGE_LEAVES;
        if first >= self.leaf_count || self.directory.page(restored.page).is_some() {
            return Err(corrupt("a checkpoint has an invalid directory page"));
        }
        for (leaf, packed) in (first..).zip(restored.entries.iter()) {
            let entry = DirectoryEntry::unpack(*packed);
            let entry =
                entry.filter(|entry| leaf < self.leaf_count || *entry == DirectoryEntry::Hole);
            let Some(entry) = entry else {
                return Err(corrupt("a directory page of a checkpoint has an invalid entry"));
            };
            if leaf < self.leaf_count {
                self.directory.set(leaf, Location::Entry(entry));
            }
        }
        let page = self.directory.page_mut(restored.page);
        assert!(!page.dirty && !page.pending, "a restored page is as it is on the medium");
        page.address = Some(restored.address);
        Ok(())
    }

    /// Returns every address occupied by the newest version of a leaf or a directory page: the live
    /// metadata after [`L2p::restore`].
    pub(crate) fn metadata_addresses(&self) -> impl Iterator<Item = MetadataAddress> {
        self.directory.pages().flat_map(move |(_, page)| {
            let leaves =
                page.locations().filter_map(move |location| match self.entry_of(location) {
                    DirectoryEntry::Leaf(address) => Some(address),
                    _ => None,
                });
            page.address.into_iter().chain(leaves)
        })
    }

    /// Returns the newest version of each leaf and each directory page in a segment: kind, number
    /// and address.
    pub(crate) fn metadata_in(
        &self,
        segment: SegmentId,
    ) -> impl Iterator<Item = (MetaKind, u64, MetadataAddress)> {
        self.metadata().filter(move |(_, _, address)| address.segment == segment)
    }

    /// Returns the newest version of each leaf and each directory page: kind, number and address.
    pub(crate) fn metadata(&self) -> impl Iterator<Item = (MetaKind, u64, MetadataAddress)> {
        self.directory.pages().flat_map(move |(number, page)| {
            let number = u64::from(number);
            let first = number * DIRECTORY_PAGE_LEAVES as u64;
            let leaves =
                page.locations().zip(first..).filter_map(move |(location, leaf)| {
                    match self.entry_of(location) {
                        DirectoryEntry::Leaf(address) => Some((MetaKind::Leaf, leaf, address)),
                        _ => None,
                    }
                });
            page.address.map(|address| (MetaKind::Page, number, address)).into_iter().chain(leaves)
        })
    }

    /// Sets the new addresses of moved records: `moved` returns the new address of a leaf or a
    /// page. Pages of moved leaves are written by the next checkpoint.
    pub(crate) fn relocate(&mut self, moved: impl Fn(MetadataAddress) -> Option<MetadataAddress>) {
        assert!(self.running.is_none(), "no checkpoint is running of a map that was just restored");
        let all: Vec<_> = self.metadata().collect();
        for (kind, number, address) in all {
            let Some(address) = moved(address) else { continue };
            if kind == MetaKind::Page {
                let page = u32::try_from(number).expect("the number of a page has 32 bits");
                self.directory.page_mut(page).address = Some(address);
                continue;
            }
            match self.directory.location(number) {
                Location::Slot(slot) => self.slab.relocate(slot, address),
                Location::Entry(_) => {
                    let entry = DirectoryEntry::Leaf(address);
                    self.directory.set(number, Location::Entry(entry));
                }
            }
            self.directory.page_mut(page_of(number)).dirty = true;
        }
    }

    /// Returns the first leaf at or after `leaf` that may contain something other than holes.
    pub(crate) fn next_mapped_leaf(&self, leaf: u64) -> Option<u64> {
        self.next_mapped_leaf_below(leaf, self.leaf_count)
    }

    /// Like [`L2p::next_mapped_leaf`], but searches only below `end`.
    pub(crate) fn next_mapped_leaf_below(&self, leaf: u64, end: u64) -> Option<u64> {
        let mut leaf = leaf;
        let end = end.min(self.leaf_count);
        while leaf < end {
            if let Some(range) = self.dropped.range_at(leaf) {
                if range.mapping != Mapping::Hole {
                    return Some(leaf);
                }
                leaf = range.end;
                continue;
            }
            if self.directory.page(page_of(leaf)).is_none() {
                let page_end = (leaf / PAGE_LEAVES + 1) * PAGE_LEAVES;
                let next = self.dropped.next_from(leaf).map_or(page_end, |next| next.min(page_end));
                assert!(leaf < next, "a walk of the map makes progress");
                leaf = next;
                continue;
            }
            if self.directory.location(leaf) != Location::Entry(DirectoryEntry::Hole) {
                return Some(leaf);
            }
            leaf += 1;
        }
        None
    }

    /// Returns the first leaf at or after `leaf` that, according to its entry, is not one hole or
    /// fill.
    pub(crate) fn next_stored_leaf(&self, leaf: u64) -> Option<u64> {
        let mut leaf = leaf;
        while leaf < self.leaf_count {
            if let Some(range) = self.dropped.range_at(leaf) {
                leaf = range.end;
            } else if self.directory.page(page_of(leaf)).is_none() {
                leaf = (leaf / PAGE_LEAVES + 1) * PAGE_LEAVES;
            } else if let Location::Entry(DirectoryEntry::Hole | DirectoryEntry::Fill(_)) =
                self.directory.location(leaf)
            {
                leaf += 1;
            } else {
                return Some(leaf);
            }
        }
        None
    }

    /// Returns the mapped runs of a leaf in order, without holes: first block, number of blocks,
    /// mapping. Returns `None` if the leaf must be loaded first.
    pub(crate) fn leaf_runs(&self, leaf: u64) -> Option<impl Iterator<Item = (Lba, u64, Mapping)>> {
        let runs = self.all_leaf_runs(leaf)?;
        Some(runs.filter(|(_, _, mapping)| *mapping != Mapping::Hole))
    }

    /// Like [`L2p::leaf_runs`], with the holes: the runs cover the leaf.
    pub(crate) fn all_leaf_runs(
        &self,
        leaf: u64,
    ) -> Option<impl Iterator<Item = (Lba, u64, Mapping)>> {
        assert!(leaf < self.leaf_count, "leaf {leaf} is not on the drive");
        let location = self.directory.location(leaf);
        let (whole, content) = match (self.dropped.get(leaf), location) {
            (Some(mapping), _) => (Some(mapping), None),
            (None, Location::Slot(number)) => (None, Some(&self.slab.slot(number).content)),
            (None, Location::Entry(entry)) => (Some(uniform(entry)?), None),
        };
        let whole = whole.into_iter().map(|mapping| (0, LEAF_BLOCKS, mapping));
        let runs = whole.chain(Leaf::runs_of(content));
        let first = leaf * u64::from(LEAF_BLOCKS);
        Some(runs.map(move |(start, count, mapping)| {
            (Lba(first + u64::from(start)), u64::from(count), mapping)
        }))
    }

    /// Returns every mapped run in order of LBA; all leaves must be in memory.
    #[cfg(test)]
    pub(crate) fn runs(&self) -> impl Iterator<Item = (Lba, u64, Mapping)> {
        let next = |leaf: &u64| self.next_mapped_leaf(leaf + 1);
        let leaves = std::iter::successors(self.next_mapped_leaf(0), next);
        leaves.flat_map(|leaf| self.leaf_runs(leaf).expect("the leaf is in memory"))
    }

    /// Returns the number of tables of frames in memory.
    #[cfg(test)]
    pub(crate) fn table_count(&self) -> usize {
        self.slab.slots().map(|(_, slot)| slot.content.table_count()).sum()
    }

    /// Returns the number of blocks that contain data other than zeroes. Leaves of a trim or a fill
    /// count with their former content while they are only on the medium and [`L2p::reap`] has not
    /// reached them; all other leaves that it has not reached are walked.
    pub(crate) fn mapped_blocks(&self) -> u64 {
        let retained = self.dropped.retained_data_leaves() * u64::from(LEAF_BLOCKS);
        let mut now = self.leaf_mapped_blocks + retained;
        let mut before = 0;
        for range in self.dropped.unreaped() {
            let after = whole_leaf_blocks(Some(range.mapping));
            let mut leaf = range.start;
            while leaf < range.end {
                let mut next = leaf + 1;
                match self.directory.location(leaf) {
                    Location::Slot(number) => {
                        before += self.slab.slot(number).content.mapped_blocks()
                    }
                    Location::Entry(DirectoryEntry::Leaf(_)) => {
                        leaf = next;
                        continue;
                    }
                    Location::Entry(entry) => before += whole_leaf_blocks(uniform(entry)),
                }
                if self.directory.page(page_of(leaf)).is_none() {
                    next = range.end.min((leaf / PAGE_LEAVES + 1) * PAGE_LEAVES);
                }
                assert!(leaf < next && next <= range.end, "a walk of a range makes progress");
                now += (next - leaf) * after;
                leaf = next;
            }
        }
        now.saturating_sub(before)
    }

    /// Returns the bytes of leaves in memory, which the budget limits.
    pub(crate) fn resident_bytes(&self) -> usize {
        self.slab.resident_bytes()
    }

    /// Returns the bytes of leaves in memory that a checkpoint must write before they can be
    /// evicted.
    pub(crate) fn dirty_bytes(&self) -> usize {
        self.slab.dirty_bytes()
    }

    /// Returns the number of leaves in memory that a checkpoint must write before they can be
    /// evicted.
    pub(crate) fn dirty_leaves(&self) -> usize {
        self.slab.dirty_count()
    }

    /// Returns the bytes of memory that the map occupies.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.directory.memory_bytes()
            + self.slab.memory_bytes()
            + self.dropped.memory_bytes()
            + self.superseded.capacity() * size_of::<u64>()
            + self.running.as_ref().map_or(0, |running| running.memory_bytes())
    }

    /// Returns the counts of paging since the map was opened.
    pub(crate) fn stats(&self) -> MapStats {
        MapStats { hits: self.hits, misses: self.misses, evictions: self.evictions }
    }
}

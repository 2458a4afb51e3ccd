//! The map's part in a checkpoint, and the queries that garbage collection of metadata makes.
//!
//! ```text
//! begin --> each pending leaf: content, written, checkpointed
//!       --> each dirty page:   page, written, set_page_address
//!       --> page addresses and the dropped snapshot go into the root --> durable --> end
//! ```
//!
//! The map continues to change, and the checkpoint shows the moment at which it began: a pending
//! leaf is set aside (*frozen*) before its first change; a page to be written is set aside before
//! one of its entries changes without the checkpoint. Records that the previous checkpoint needs
//! stay named until `end`.

use std::collections::HashMap;

use super::directory::{Location, Page, index_of, page_of};
use super::{DroppedRange, L2p, Leaf, Mapping};
use crate::format::{DIRECTORY_PAGE_LEAVES, DirectoryEntry, MetadataAddress, leaf_bytes_max};

/// Maximum bytes of a leaf before encoding.
const LEAF_BYTES_MAX: usize = leaf_bytes_max(true);

/// The part of the map that belongs to a checkpoint in addition to leaves and pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DroppedSnapshot {
    /// The dropped ranges in order, without the leaves that have been reaped.
    pub(crate) ranges: Vec<DroppedRange>,
    /// An argument of [`L2p::restore`]; not [`L2p::mapped_blocks`].
    pub(crate) leaf_mapped_blocks: u64,
}

/// Content of a leaf in a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeafContent {
    /// One hole or fill, which needs no record.
    Uniform(Mapping),
    /// Runs, whose bytes were appended.
    Runs,
}

/// A checkpoint that has begun and not ended.
#[derive(Default)]
pub(super) struct Running {
    /// Leaves not yet returned by [`L2p::next_pending`], the lowest last.
    pending: Vec<u64>,
    /// Leaves not yet checkpointed.
    unwritten: usize,
    frozen: HashMap<u64, Leaf>,
    frozen_bytes: usize,
    frozen_pages: HashMap<u32, Box<[u64; DIRECTORY_PAGE_LEAVES]>>,
    /// Places that will be dead when this checkpoint is durable; packed.
    superseded: Vec<u64>,
}

impl Running {
    pub(super) fn memory_bytes(&self) -> usize {
        let pages = self.frozen_pages.len() * DIRECTORY_PAGE_LEAVES * size_of::<u64>();
        let lists = (self.pending.capacity() + self.superseded.capacity()) * size_of::<u64>();
        self.frozen_bytes + pages + lists
    }
}

impl L2p {
    /// Begins a checkpoint of the current map.
    ///
    /// # Panics
    /// If one is running.
    pub(crate) fn begin_checkpoint(&mut self) -> DroppedSnapshot {
        assert!(self.running.is_none(), "a checkpoint is running already");
        let dirty = self.slab.slots().filter(|(_, slot)| slot.is_dirty());
        let dirty: Vec<_> = dirty.map(|(number, slot)| (number, slot.leaf)).collect();
        for (number, _) in &dirty {
            self.slab.mark(*number, false, true);
        }
        for (_, page) in self.directory.pages_mut() {
            page.pending = std::mem::take(&mut page.dirty);
        }
        let mut pending: Vec<_> = dirty.into_iter().map(|(_, leaf)| leaf).collect();
        pending.sort_unstable_by(|a, b| b.cmp(a));
        self.running = Some(Running {
            unwritten: pending.len(),
            pending,
            superseded: std::mem::take(&mut self.superseded),
            ..Running::default()
        });
        self.check_begun();
        DroppedSnapshot {
            ranges: self.dropped.ranges(),
            leaf_mapped_blocks: self.leaf_mapped_blocks,
        }
    }

    /// Checks the invariants that hold while no leaf changes after a checkpoint begins.
    fn check_begun(&self) {
        let running = self.running.as_ref().expect("no checkpoint is running");
        assert_eq!(running.unwritten, self.slab.dirty_count(), "every changed leaf is pending");
        let is_ordered = running.pending.is_sorted_by(|leaf, next| leaf > next);
        debug_assert!(is_ordered, "each leaf is pending once, the lowest last");
        debug_assert!(
            running.pending.first().is_none_or(|&leaf| leaf < self.leaf_count),
            "pending leaves are on the drive"
        );
        debug_assert!(self.slab.slots().all(|(_, slot)| !slot.is_dirty()), "no leaf changed");
        self.slab.check_counts();
        self.directory.check_counts();
    }

    /// Returns the next leaf to write: each leaf once, in order, then `None`.
    pub(crate) fn next_pending(&mut self) -> Option<u64> {
        let running = self.running.as_mut()?;
        assert!(running.pending.len() <= running.unwritten, "a leaf is written before it is next");
        let leaf = running.pending.pop();
        assert!(leaf.is_none_or(|leaf| leaf < self.leaf_count), "pending leaves are on the drive");
        leaf
    }

    /// Returns the content of a pending leaf when the checkpoint began. Runs are appended to
    /// `target`.
    ///
    /// # Panics
    /// If the leaf is not pending.
    pub(crate) fn pending_content(&self, leaf: u64, target: &mut Vec<u8>) -> LeafContent {
        let (number, running) = self.pending_slot(leaf);
        let content = running.frozen.get(&leaf).unwrap_or(&self.slab.slot(number).content);
        match content.as_uniform() {
            Some(mapping) => LeafContent::Uniform(mapping),
            None => {
                let start = target.len();
                content.encode(target);
                assert!(
                    target.len() - start <= LEAF_BYTES_MAX,
                    "an address can describe a leaf of any length"
                );
                LeafContent::Runs
            }
        }
    }

    /// Records that the content of a pending leaf when the checkpoint began is now stored at
    /// `entry`. The leaf may be loaded from there at any later time.
    ///
    /// # Panics
    /// If the leaf is not pending.
    pub(crate) fn checkpointed(&mut self, leaf: u64, entry: DirectoryEntry) {
        let (number, running) = self.pending_slot(leaf);
        let is_frozen = running.frozen.contains_key(&leaf);
        let dirty = self.slab.slot(number).is_dirty();
        assert_eq!(is_frozen, dirty, "a pending leaf that changed is set aside");
        let before = self.slab.set_entry(number, entry);
        self.unnamed_bytes = self.unnamed_bytes.saturating_add(self.slab.slot(number).bytes());
        self.slab.mark(number, dirty, false);
        if let Some(running) = &mut self.running {
            let unwritten = running.unwritten.checked_sub(1);
            running.unwritten = unwritten.expect("more leaves are written than were pending");
            if let DirectoryEntry::Leaf(address) = before {
                running.superseded.push(address.pack());
            }
            if let Some(frozen) = running.frozen.remove(&leaf) {
                let bytes = running.frozen_bytes.checked_sub(frozen_bytes(&frozen));
                running.frozen_bytes = bytes.expect("a leaf set aside is counted");
            }
            if let Some(page) = running.frozen_pages.get_mut(&page_of(leaf)) {
                let frozen = page.get_mut(index_of(leaf)).expect("an entry belongs to its page");
                *frozen = entry.pack();
            }
        }
        self.evict();
    }

    fn pending_slot(&self, leaf: u64) -> (u32, &Running) {
        let running = self.running.as_ref().expect("no checkpoint is running");
        let Location::Slot(number) = self.directory.location(leaf) else {
            panic!("leaf {leaf} is not in memory and cannot be pending");
        };
        assert!(self.slab.slot(number).is_pending(), "leaf {leaf} is not pending");
        (number, running)
    }

    /// Returns the directory pages that the running checkpoint has yet to write, in order.
    pub(crate) fn dirty_pages(&self) -> Vec<u32> {
        let pages = self.directory.pages().filter(|(_, page)| page.pending);
        pages.map(|(number, _)| number).collect()
    }

    /// Returns the entries of a dirty page as the running checkpoint must write them.
    ///
    /// # Panics
    /// If leaves are still pending, or the page does not exist.
    pub(crate) fn page(&self, page: u32) -> [u64; DIRECTORY_PAGE_LEAVES] {
        let running = self.running.as_ref().expect("no checkpoint is running");
        assert_eq!(running.unwritten, 0, "a page is asked for before its leaves are written");
        assert!(
            self.directory.page(page).is_some_and(|page| page.pending),
            "directory page {page} was not to be written"
        );
        match running.frozen_pages.get(&page) {
            Some(frozen) => **frozen,
            None => self.page_now(page),
        }
    }

    fn page_now(&self, page: u32) -> [u64; DIRECTORY_PAGE_LEAVES] {
        let page = self.directory.page(page).expect("only pages that exist are written");
        let mut entries = [0; DIRECTORY_PAGE_LEAVES];
        for (entry, location) in entries.iter_mut().zip(page.locations()) {
            *entry = self.entry_of(location).pack();
            debug_assert!(DirectoryEntry::unpack(*entry).is_some(), "a page holds packed entries");
        }
        entries
    }

    pub(super) fn entry_of(&self, location: Location) -> DirectoryEntry {
        match location {
            Location::Slot(number) => self.slab.slot(number).entry,
            Location::Entry(entry) => entry,
        }
    }

    /// Records where the running checkpoint wrote a dirty page.
    ///
    /// # Panics
    /// If the checkpoint need not write the page.
    pub(crate) fn set_page_address(&mut self, number: u32, address: MetadataAddress) {
        let running = self.running.as_mut().expect("no checkpoint is running");
        let page = self.directory.page_mut(number);
        assert!(page.pending, "directory page {number} was not to be written");
        page.pending = false;
        assert_eq!(running.unwritten, 0, "a page is written before its leaves");
        if let Some(before) = page.address.replace(address) {
            running.superseded.push(before.pack());
        }
        running.frozen_pages.remove(&number);
    }

    /// Returns every directory page on the medium and its address, in order, for the root of a
    /// checkpoint whose pages are all written.
    pub(crate) fn page_addresses(&self) -> impl Iterator<Item = (u32, MetadataAddress)> {
        self.directory.pages().filter_map(|(number, page)| Some((number, page.address?)))
    }

    /// Ends the running checkpoint, whose root must be durable. Returns the addresses that only the
    /// previous checkpoint named.
    ///
    /// # Panics
    /// If a leaf or a page of it was not written.
    pub(crate) fn end_checkpoint(&mut self) -> Vec<MetadataAddress> {
        let running = self.running.take().expect("no checkpoint is running");
        assert_eq!(running.unwritten, 0, "a leaf was not written");
        let unwritten = self.directory.pages().any(|(_, page)| page.pending);
        assert!(!unwritten, "a directory page was not written");
        assert!(running.pending.is_empty(), "a leaf to write was not asked for");
        assert!(running.frozen.is_empty(), "a leaf set aside was not written");
        assert_eq!(running.frozen_bytes, 0, "bytes set aside belong to leaves set aside");
        assert!(running.frozen_pages.is_empty(), "a page set aside was not written");
        self.unnamed_bytes = 0;
        self.slab.check_counts();
        self.directory.check_counts();
        unpacked(&running.superseded).collect()
    }

    /// Abandons the running checkpoint, if there is one. The next one inherits its unwritten
    /// records and the records that it would have made dead.
    pub(crate) fn abandon_checkpoint(&mut self) {
        let Some(running) = self.running.take() else { return };
        self.superseded.extend(running.superseded);
        let pending: Vec<u32> =
            self.slab.slots().filter(|(_, slot)| slot.is_pending()).map(|(n, _)| n).collect();
        for number in pending {
            self.slab.mark(number, true, false);
        }
        for (_, page) in self.directory.pages_mut() {
            page.dirty |= std::mem::take(&mut page.pending);
        }
        let mut slots = self.slab.slots();
        debug_assert!(slots.all(|(_, slot)| !slot.is_pending()), "no leaf stays pending");
    }

    /// Returns the addresses that the newest checkpoint names and the next will not, while no
    /// checkpoint is running.
    pub(crate) fn superseded_addresses(&self) -> impl Iterator<Item = MetadataAddress> {
        unpacked(&self.superseded)
    }

    /// Sets the places, packed, that the newest checkpoint names and this map does not: for the map
    /// of a disk that is rolled back.
    pub(crate) fn supersede(&mut self, places: Vec<u64>) {
        assert!(self.running.is_none(), "this map was just restored");
        self.superseded = places;
    }

    /// Returns the bytes set aside for the running checkpoint.
    pub(crate) fn frozen_bytes(&self) -> usize {
        let running = self.running.as_ref();
        running.map_or(0, |running| {
            running.frozen_bytes + running.frozen_pages.len() * size_of::<[u64; 512]>()
        })
    }

    /// Returns the maximum bytes of leaves that changed since the newest checkpoint: the memory
    /// that recovery would need if the drive stopped now, including leaves that a checkpoint under
    /// way has already written.
    pub(crate) fn unsaved_bytes(&self) -> usize {
        self.slab.dirty_bytes().saturating_add(self.unnamed_bytes)
    }

    /// Returns whether the newest version of a leaf on the medium is the one at `address`. The
    /// number may be read from the medium.
    pub(crate) fn is_current_leaf(&self, leaf: u64, address: MetadataAddress) -> bool {
        leaf < self.leaf_count && self.entry(leaf) == DirectoryEntry::Leaf(address)
    }

    /// Makes the next checkpoint write a leaf again, or the running one if it has not written it
    /// yet. Returns whether the leaf was in memory; if not, it must be loaded first.
    pub(crate) fn touch_leaf(&mut self, leaf: u64) -> bool {
        let Location::Slot(number) = self.directory.location(leaf) else { return false };
        let slot = self.slab.slot(number);
        if !slot.is_pending() && !slot.is_dirty() {
            self.mark_changed(number);
        }
        let slot = self.slab.slot(number);
        assert!(slot.is_pending() || slot.is_dirty(), "a touched leaf is written");
        true
    }

    /// Returns whether the newest version of a directory page on the medium is the one at
    /// `address`. The number may be read from the medium.
    pub(crate) fn is_current_page(&self, page: u32, address: MetadataAddress) -> bool {
        self.directory.page(page).is_some_and(|page| page.address == Some(address))
    }

    /// Makes the next checkpoint write a directory page again, or the running one if it has not
    /// written it yet.
    ///
    /// # Panics
    /// If the page does not exist.
    pub(crate) fn touch_page(&mut self, page: u32) {
        assert!(self.directory.page(page).is_some(), "directory page {page} does not exist");
        let page: &mut Page = self.directory.page_mut(page);
        page.dirty |= !page.pending;
        assert!(page.dirty || page.pending, "a touched page is written");
    }

    /// Marks a slot and its page dirty; a pending slot is set aside first.
    pub(super) fn mark_changed(&mut self, number: u32) {
        let slot = self.slab.slot(number);
        let (leaf, pending) = (slot.leaf, slot.is_pending());
        if pending
            && !slot.is_dirty()
            && let Some(running) = &mut self.running
        {
            let frozen = slot.content.clone();
            running.frozen_bytes += frozen_bytes(&frozen);
            let before = running.frozen.insert(leaf, frozen);
            assert!(before.is_none(), "a leaf is set aside before its first change");
        }
        assert!(!pending || self.running.is_some(), "only a running checkpoint has pending leaves");
        self.slab.mark(number, true, pending);
        self.directory.page_mut(page_of(leaf)).dirty = true;
    }

    /// Sets a page aside, if the running checkpoint has yet to write it, before one of its entries
    /// changes without the checkpoint.
    pub(super) fn freeze_page(&mut self, number: u32) {
        let pending = self.directory.page(number).is_some_and(|page| page.pending);
        assert!(!pending || self.running.is_some(), "only a running checkpoint has pending pages");
        let known = |running: &Running| running.frozen_pages.contains_key(&number);
        if !pending || self.running.as_ref().is_none_or(known) {
            return;
        }
        let entries = Box::new(self.page_now(number));
        if let Some(running) = &mut self.running {
            let before = running.frozen_pages.insert(number, entries);
            assert!(before.is_none(), "a page is set aside once");
        }
    }
}

/// Unpacks addresses that the map has packed.
fn unpacked(packed: &[u64]) -> impl Iterator<Item = MetadataAddress> {
    let unpack =
        |&packed| MetadataAddress::unpack(packed).expect("the map packs addresses of records");
    packed.iter().map(unpack)
}

fn frozen_bytes(leaf: &Leaf) -> usize {
    leaf.memory_bytes() + size_of::<(u64, Leaf)>()
}

//! The leaves in memory, in numbered slots, and the order of their eviction.
//!
//! A slot is *clean* if its content is stored on the medium at its `entry`, *dirty* if it changed
//! since the last checkpoint began, *pending* if the running checkpoint has yet to write it. Only
//! clean slots are evicted, in CLOCK order: they wait in a queue, and a slot that was used since it
//! was queued moves to the back again instead. One change at a time may have its leaves *kept*:
//! they are not evicted before it releases them. Nor is the leaf that was loaded last.
//!
//! Source: Corbato, "A Paging Experiment with the Multics System", 1968.

use std::collections::VecDeque;

use super::leaf::Leaf;
use super::leaf_of;
use crate::base::Lba;
use crate::format::{DirectoryEntry, MetadataAddress};

/// Clean leaves that stay in memory whatever the budget: more than are kept for a change, so that
/// one can always be evicted, and enough that a change of two leaves alone on the drive does not
/// lose the first while it loads the second. Otherwise arbitrary; 251 KiB at most, if all have
/// tables.
const CLEAN_KEPT: usize = 8;

/// The number that stands for no leaf.
const NO_LEAF: u64 = u64::MAX;

/// A leaf in memory.
pub(super) struct Slot {
    /// Its number.
    pub(super) leaf: u64,
    /// Its runs.
    pub(super) content: Leaf,
    /// Its entry in the checkpoint that wrote it last.
    pub(super) entry: DirectoryEntry,
    dirty: bool,
    pending: bool,
    /// Whether the slot is queued; free slots stay in the queue.
    queued: bool,
    referenced: bool,
}

impl Slot {
    /// Returns whether it changed since the last checkpoint began.
    pub(super) fn is_dirty(&self) -> bool {
        self.dirty
    }

    /// Returns whether the running checkpoint has yet to write it.
    pub(super) fn is_pending(&self) -> bool {
        self.pending
    }

    fn is_clean(&self) -> bool {
        !self.dirty && !self.pending
    }

    fn is_free(&self) -> bool {
        self.leaf == NO_LEAF
    }

    /// Returns the bytes of memory that it occupies.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + self.content.memory_bytes()
    }
}

/// The leaves that must stay in memory for a change: the first and the last one affected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeptLeaves {
    pub(super) first: u64,
    /// The last, which may equal the first.
    pub(super) last: u64,
}

impl KeptLeaves {
    /// Returns the leaves at both ends of the `count` blocks starting at `lba`.
    pub(crate) fn of_range(lba: Lba, count: u64) -> Self {
        let last = lba.0 + count.max(1) - 1;
        Self { first: leaf_of(lba).0, last: leaf_of(Lba(last)).0 }
    }
}

/// The slots.
#[derive(Default)]
pub(super) struct Slab {
    slots: Vec<Slot>,
    free: Vec<u32>,
    queue: VecDeque<u32>,
    clean_count: usize,
    resident_bytes: usize,
    dirty_bytes: usize,
    /// Leaves of a change, which are not evicted.
    kept: Option<KeptLeaves>,
    /// The slot filled last, which is not evicted either: a slot that was free may be next in the
    /// queue.
    newest: Option<u32>,
}

impl Slab {
    /// Protects two leaves from eviction, in place of the previous two; `None` protects none.
    pub(super) fn keep(&mut self, leaves: Option<KeptLeaves>) {
        assert!(leaves.is_none_or(|kept| kept.first <= kept.last), "leaves are kept in order");
        self.kept = leaves;
    }

    /// Returns the slot with this number.
    #[inline]
    pub(super) fn slot(&self, slot: u32) -> &Slot {
        let slot = self.slots.get(slot as usize).expect("the directory names slots that exist");
        assert!(!slot.is_free(), "a free slot is asked for its leaf");
        slot
    }

    #[inline]
    fn slot_mut(&mut self, slot: u32) -> &mut Slot {
        let slot = self.slots.get_mut(slot as usize);
        let slot = slot.expect("the directory names slots that exist");
        assert!(!slot.is_free(), "a free slot is changed");
        slot
    }

    /// Marks a leaf as used.
    #[inline]
    pub(super) fn reference(&mut self, slot: u32) {
        self.slot_mut(slot).referenced = true;
    }

    /// Returns every slot in use, with its number.
    pub(super) fn slots(&self) -> impl Iterator<Item = (u32, &Slot)> {
        (0..).zip(&self.slots).filter(|(_, slot)| !slot.is_free())
    }

    /// Puts a leaf into a slot, clean and just used.
    pub(super) fn insert(&mut self, leaf: u64, content: Leaf, entry: DirectoryEntry) -> u32 {
        assert_ne!(leaf, NO_LEAF, "the number that marks free slots belongs to no leaf");
        content.check_invariants();
        let number = self.free.pop().unwrap_or_else(|| {
            let empty = Slot {
                leaf: NO_LEAF,
                content: Leaf::default(),
                entry: DirectoryEntry::Hole,
                dirty: false,
                pending: false,
                queued: false,
                referenced: false,
            };
            self.slots.push(empty);
            u32::try_from(self.slots.len() - 1).expect("the number of a slot has 32 bits")
        });
        let slot = self.slots.get_mut(number as usize).expect("free slots exist");
        assert!(slot.is_free() && slot.is_clean(), "slot {number} is free and was not used since");
        (slot.leaf, slot.content, slot.entry) = (leaf, content, entry);
        slot.referenced = true;
        self.resident_bytes += slot.bytes();
        self.clean_count += 1;
        self.newest = Some(number);
        self.enqueue(number);
        self.check_invariants();
        number
    }

    /// Frees a slot. Returns its leaf's entry on the medium.
    pub(super) fn remove(&mut self, number: u32) -> DirectoryEntry {
        assert!(!self.slot(number).pending, "the running checkpoint has yet to write the leaf");
        self.mark(number, false, false);
        let slot = self.slot_mut(number);
        let bytes = slot.bytes();
        let entry = slot.entry;
        (slot.leaf, slot.content) = (NO_LEAF, Leaf::default());
        self.resident_bytes =
            self.resident_bytes.checked_sub(bytes).expect("a leaf in memory is counted");
        self.clean_count = self.clean_count.checked_sub(1).expect("a clean leaf is counted");
        self.free.push(number);
        self.check_invariants();
        entry
    }

    /// Sets whether a slot is dirty and whether it is pending.
    pub(super) fn mark(&mut self, number: u32, dirty: bool, pending: bool) {
        let slot = self.slot_mut(number);
        let was_clean = slot.is_clean();
        (slot.dirty, slot.pending) = (dirty, pending);
        let (is_clean, bytes) = (slot.is_clean(), slot.bytes());
        match (was_clean, is_clean) {
            (true, false) => {
                let clean_count = self.clean_count.checked_sub(1);
                self.clean_count = clean_count.expect("a clean leaf is counted");
                self.dirty_bytes += bytes;
            }
            (false, true) => {
                self.clean_count += 1;
                let dirty_bytes = self.dirty_bytes.checked_sub(bytes);
                self.dirty_bytes = dirty_bytes.expect("a leaf that is not clean is counted");
                self.enqueue(number);
            }
            _ => {}
        }
        self.check_invariants();
    }

    /// Changes the content of a slot, which must be dirty.
    #[inline]
    pub(super) fn change<T>(&mut self, number: u32, change: impl FnOnce(&mut Leaf) -> T) -> T {
        let slot = self.slot_mut(number);
        assert!(slot.dirty, "a leaf is changed that is not marked dirty");
        slot.referenced = true;
        self.amend(number, change)
    }

    /// Changes a part of a slot's content that need not be written to the medium.
    #[inline]
    pub(super) fn amend<T>(&mut self, number: u32, change: impl FnOnce(&mut Leaf) -> T) -> T {
        let slot = self.slot_mut(number);
        let before = slot.content.memory_bytes();
        let result = change(&mut slot.content);
        let after = slot.content.memory_bytes();
        let is_clean = slot.is_clean();
        let resident_bytes = (self.resident_bytes + after).checked_sub(before);
        self.resident_bytes = resident_bytes.expect("a leaf in memory is counted");
        if !is_clean {
            let dirty_bytes = (self.dirty_bytes + after).checked_sub(before);
            self.dirty_bytes = dirty_bytes.expect("a dirty leaf is counted");
        }
        self.check_invariants();
        result
    }

    /// Sets the entry of a leaf in the running checkpoint. Returns the previous entry.
    pub(super) fn set_entry(&mut self, number: u32, entry: DirectoryEntry) -> DirectoryEntry {
        let slot = self.slot_mut(number);
        assert!(slot.pending, "only leaves of the running checkpoint are written");
        std::mem::replace(&mut slot.entry, entry)
    }

    /// Records the new place of a leaf that moved from the place that a checkpoint names.
    pub(super) fn relocate(&mut self, number: u32, address: MetadataAddress) {
        let slot = self.slot_mut(number);
        assert!(!slot.pending, "no checkpoint of the map is running");
        slot.entry = DirectoryEntry::Leaf(address);
    }

    /// Returns the slot to evict next; `None` if too few clean slots are left.
    pub(super) fn victim(&mut self) -> Option<u32> {
        if self.clean_count <= CLEAN_KEPT {
            return None;
        }
        while let Some(number) = self.queue.pop_front() {
            let slot = self.slots.get_mut(number as usize).expect("slots in the queue exist");
            assert!(slot.queued, "a slot is in the queue at most once");
            slot.queued = false;
            if slot.is_free() || !slot.is_clean() {
                continue;
            }
            let KeptLeaves { first, last } =
                self.kept.unwrap_or(KeptLeaves { first: NO_LEAF, last: NO_LEAF });
            let is_newest = self.newest == Some(number);
            let is_kept = slot.leaf == first || slot.leaf == last || is_newest;
            if !std::mem::take(&mut slot.referenced) && !is_kept {
                return Some(number);
            }
            self.enqueue(number);
        }
        None
    }

    /// Returns the bytes of memory that leaves and their slots occupy.
    pub(super) fn resident_bytes(&self) -> usize {
        self.resident_bytes
    }

    /// Returns the bytes of slots that are not clean.
    pub(super) fn dirty_bytes(&self) -> usize {
        self.dirty_bytes
    }

    /// Returns the number of leaves that are not clean.
    pub(super) fn dirty_count(&self) -> usize {
        let not_clean = self.used_count().checked_sub(self.clean_count);
        not_clean.expect("a clean slot is in use")
    }

    fn used_count(&self) -> usize {
        let used = self.slots.len().checked_sub(self.free.len());
        used.expect("a free slot is a slot")
    }

    /// Returns the bytes of memory in use.
    pub(super) fn memory_bytes(&self) -> usize {
        let spare_slots = self.slots.capacity() - self.used_count();
        let numbers = self.free.capacity() + self.queue.capacity();
        self.resident_bytes + spare_slots * size_of::<Slot>() + numbers * size_of::<u32>()
    }

    fn enqueue(&mut self, number: u32) {
        let slot = self.slot_mut(number);
        assert!(slot.is_clean(), "only clean slots are queued for eviction");
        if !slot.queued {
            slot.queued = true;
            self.queue.push_back(number);
        }
        assert!(self.queue.len() <= self.slots.len(), "a slot is in the queue at most once");
    }

    /// Checks the relations between the counts.
    fn check_invariants(&self) {
        assert!(self.clean_count <= self.used_count(), "a clean slot is in use");
        assert!(self.dirty_bytes <= self.resident_bytes, "a dirty leaf is in memory");
        assert_eq!(
            self.dirty_bytes == 0,
            self.dirty_count() == 0,
            "bytes that are not clean belong to leaves that are not clean"
        );
    }

    /// Checks the counts against the slots, in debug builds.
    pub(super) fn check_counts(&self) {
        debug_assert_eq!(self.slots().count(), self.used_count(), "every other slot is free");
        let clean = self.slots().filter(|(_, slot)| slot.is_clean());
        debug_assert_eq!(clean.count(), self.clean_count, "clean slots are counted");
        let bytes = |(_, slot): (u32, &Slot)| slot.bytes();
        debug_assert_eq!(self.slots().map(bytes).sum::<usize>(), self.resident_bytes, "bytes");
        let dirty = self.slots().filter(|(_, slot)| !slot.is_clean());
        debug_assert_eq!(dirty.map(bytes).sum::<usize>(), self.dirty_bytes, "bytes to write");
        let queued = self.slots.iter().filter(|slot| slot.queued);
        debug_assert_eq!(queued.count(), self.queue.len(), "the queue holds every queued slot");
        debug_assert!(
            self.slots().all(|(_, slot)| !slot.is_clean() || slot.queued),
            "every clean slot can be evicted"
        );
    }
}

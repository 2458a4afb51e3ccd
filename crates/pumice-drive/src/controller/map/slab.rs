//! The leaves in memory, in numbered slots, and which of them may be evicted.
//!
//! A slot is *clean* if the medium holds its content where its `place` says, *dirty* if it changed
//! since the last checkpoint began, *pending* if the running checkpoint has yet to write it; only
//! clean slots are evicted, in CLOCK order: they wait in a queue, and a slot that was used since it
//! was queued moves to the back once more instead. One change at a time may have its leaves *kept*:
//! they are not evicted before it releases them.
//!
//! Source: Corbato, "A Paging Experiment with the Multics System", 1968.

use std::collections::VecDeque;

use super::leaf::Leaf;
use crate::format::DirectoryEntry;

/// Clean leaves that stay whatever the budget: more than are kept for a change, so that one can
/// always be evicted, and enough that a change of two leaves alone on the drive does not lose
/// the first while it loads the second. Arbitrary beyond that; 128 KiB at most.
const CLEAN_KEPT: usize = 8;

/// The number of no leaf.
const NO_LEAF: u64 = u64::MAX;

/// A leaf in memory.
pub(super) struct Slot {
    /// Its number.
    pub(super) leaf: u64,
    /// Its runs.
    pub(super) content: Leaf,
    /// What the checkpoint that wrote it last says about it.
    pub(super) place: DirectoryEntry,
    dirty: bool,
    pending: bool,
    /// Whether it is in the queue, in which free slots stay as well.
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

    /// Returns the bytes of memory it takes.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + self.content.memory_bytes()
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
    /// First and last leaf of a change, which are not evicted.
    kept: Option<(u64, u64)>,
}

impl Slab {
    /// Keeps two leaves from being evicted, instead of the two before; `None` keeps no leaves.
    pub(super) fn keep(&mut self, leaves: Option<(u64, u64)>) {
        self.kept = leaves;
    }

    /// Returns the slot with this number.
    #[inline]
    pub(super) fn slot(&self, slot: u32) -> &Slot {
        &self.slots[slot as usize]
    }

    /// Notes that a leaf was used.
    #[inline]
    pub(super) fn reference(&mut self, slot: u32) {
        self.slots[slot as usize].referenced = true;
    }

    /// Returns every slot in use, with its number.
    pub(super) fn slots(&self) -> impl Iterator<Item = (u32, &Slot)> {
        let numbered = self.slots.iter().enumerate().map(|(number, slot)| (number as u32, slot));
        numbered.filter(|(_, slot)| slot.leaf != NO_LEAF)
    }

    /// Puts a leaf into a slot, clean and just used.
    pub(super) fn insert(&mut self, leaf: u64, content: Leaf, place: DirectoryEntry) -> u32 {
        let number = self.free.pop().unwrap_or_else(|| {
            let empty = Slot {
                leaf: NO_LEAF,
                content: Leaf::default(),
                place: DirectoryEntry::Hole,
                dirty: false,
                pending: false,
                queued: false,
                referenced: false,
            };
            self.slots.push(empty);
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[number as usize];
        (slot.leaf, slot.content, slot.place) = (leaf, content, place);
        slot.referenced = true;
        self.resident_bytes += slot.bytes();
        self.clean_count += 1;
        self.enqueue(number);
        number
    }

    /// Frees a slot; returns what the medium says about its leaf.
    pub(super) fn remove(&mut self, number: u32) -> DirectoryEntry {
        self.mark(number, false, false);
        assert!(self.clean_count > 0, "a leaf is evicted, and no clean leaf is counted");
        let slot = &mut self.slots[number as usize];
        assert_ne!(slot.leaf, NO_LEAF, "slot {number} is freed twice");
        self.resident_bytes -= slot.bytes();
        self.clean_count -= 1;
        (slot.leaf, slot.content) = (NO_LEAF, Leaf::default());
        self.free.push(number);
        slot.place
    }

    /// Sets whether a slot is dirty and whether it is pending.
    pub(super) fn mark(&mut self, number: u32, dirty: bool, pending: bool) {
        let slot = &mut self.slots[number as usize];
        let was_clean = slot.is_clean();
        (slot.dirty, slot.pending) = (dirty, pending);
        match (was_clean, slot.is_clean()) {
            (true, false) => {
                self.clean_count -= 1;
                self.dirty_bytes += slot.bytes();
            }
            (false, true) => {
                self.clean_count += 1;
                self.dirty_bytes -= slot.bytes();
                self.enqueue(number);
            }
            _ => {}
        }
    }

    /// Changes the content of a slot, which must be dirty.
    #[inline]
    pub(super) fn change<T>(&mut self, number: u32, change: impl FnOnce(&mut Leaf) -> T) -> T {
        let slot = &mut self.slots[number as usize];
        assert!(slot.dirty, "a leaf is changed that is not marked dirty");
        slot.referenced = true;
        let before = slot.content.memory_bytes();
        let result = change(&mut slot.content);
        let after = slot.content.memory_bytes();
        self.resident_bytes = self.resident_bytes + after - before;
        self.dirty_bytes = self.dirty_bytes + after - before;
        result
    }

    /// Notes what a checkpoint says about the leaf from now on; returns what it said before.
    pub(super) fn set_place(&mut self, number: u32, place: DirectoryEntry) -> DirectoryEntry {
        std::mem::replace(&mut self.slots[number as usize].place, place)
    }

    /// Returns the slot to evict next; `None` if too few clean slots are left.
    pub(super) fn victim(&mut self) -> Option<u32> {
        if self.clean_count <= CLEAN_KEPT {
            return None;
        }
        while let Some(number) = self.queue.pop_front() {
            let slot = &mut self.slots[number as usize];
            slot.queued = false;
            if slot.leaf == NO_LEAF || !slot.is_clean() {
                continue;
            }
            let is_kept = self.kept.is_some_and(|(a, b)| slot.leaf == a || slot.leaf == b);
            if !std::mem::take(&mut slot.referenced) && !is_kept {
                return Some(number);
            }
            self.enqueue(number);
        }
        None
    }

    /// Returns the bytes of memory that leaves and their slots take.
    pub(super) fn resident_bytes(&self) -> usize {
        self.resident_bytes
    }

    /// Returns the bytes of slots that are not clean.
    pub(super) fn dirty_bytes(&self) -> usize {
        self.dirty_bytes
    }

    /// Returns the number of leaves that are not clean.
    pub(super) fn dirty_count(&self) -> usize {
        self.slots.len() - self.free.len() - self.clean_count
    }

    /// Returns the bytes of memory held.
    pub(super) fn memory_bytes(&self) -> usize {
        let spare_slots = self.slots.capacity() - (self.slots.len() - self.free.len());
        let numbers = self.free.capacity() + self.queue.capacity();
        self.resident_bytes + spare_slots * size_of::<Slot>() + numbers * size_of::<u32>()
    }

    fn enqueue(&mut self, number: u32) {
        let slot = &mut self.slots[number as usize];
        if !slot.queued {
            slot.queued = true;
            self.queue.push_back(number);
        }
    }
}

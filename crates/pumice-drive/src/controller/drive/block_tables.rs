//! Where the blocks of frames of independent blocks are, so that a short read reads a block from
//! the medium instead of the frame.
//!
//! A table is taken from a payload that has its checksum, and has the checksum of each block: what
//! is read with it is verified by it. As in the read cache, the key holds a frame's address with
//! the generation of its segment, so a table can never be stale; and the frame's first LBA, so that
//! it serves no other blocks than those of the frame's record.
//!
//! It is a hash table of sets of four. In a full set a table that was asked for outlives one that
//! was not. A table that is lost costs one read of a whole frame. Memory is taken in pieces of
//! 2 KiB as tables come; the list of the pieces is whole from the first table on.

use std::cell::RefCell;

use super::super::place::FrameAddress;
use super::read_cache::FrameKey;
use crate::base::{Lba, SegmentId};
use crate::codec::BlockTable;

/// Slots of a set: with one, a third of the tables would be lost where half of the slots are used.
const WAYS: usize = 4;

/// Sets that are allocated together: about half a page.
const CHUNK_SETS: usize = 8;

#[derive(Clone, Copy, Debug)]
struct Slot {
    key: FrameKey,
    /// Without a block in a slot that is not used.
    table: BlockTable,
}

const NO_SLOT: Slot = Slot {
    key: FrameKey {
        address: FrameAddress { segment: SegmentId(u32::MAX), offset: u32::MAX },
        generation: 0,
        lba: Lba(0),
    },
    table: BlockTable::EMPTY,
};

#[derive(Clone, Copy, Debug)]
struct Set {
    slots: [Slot; WAYS],
    /// Which of them were asked for since the hand last passed them.
    used: [bool; WAYS],
    /// The slot that makes room next.
    hand: u8,
}

const NO_SET: Set = Set { slots: [NO_SLOT; WAYS], used: [false; WAYS], hand: 0 };

type Chunk = [Set; CHUNK_SETS];

/// The tables of one drive.
#[derive(Debug)]
pub(crate) struct BlockTables {
    /// Made for the first table; each chunk for the first table in it.
    chunks: RefCell<Vec<Option<Box<Chunk>>>>,
    chunks_max: usize,
}

impl BlockTables {
    /// Creates tables that take up to `bytes_max` bytes of memory.
    pub(crate) fn new(bytes_max: usize) -> Self {
        let chunks_max = bytes_max / (size_of::<Chunk>() + size_of::<Option<Box<Chunk>>>());
        Self { chunks: RefCell::default(), chunks_max }
    }

    /// Returns whether any table can be kept.
    pub(crate) fn has_room(&self) -> bool {
        self.chunks_max > 0
    }

    /// Returns the table of a frame, if it is here.
    pub(crate) fn get(&self, key: &FrameKey) -> Option<BlockTable> {
        let (chunk, set) = self.set_of(key);
        let mut chunks = self.chunks.borrow_mut();
        let set = chunks.get_mut(chunk)?.as_mut()?.get_mut(set)?;
        let way = set.way_of(key)?;
        *set.used.get_mut(way)? = true;
        set.slots.get(way).map(|slot| slot.table)
    }

    /// Takes the table of a frame.
    pub(crate) fn insert(&self, key: &FrameKey, table: BlockTable) {
        let (chunk, set) = self.set_of(key);
        let mut chunks = self.chunks.borrow_mut();
        if chunks.is_empty() {
            *chunks = vec![None; self.chunks_max];
        }
        let Some(chunk) = chunks.get_mut(chunk) else { return };
        let chunk = chunk.get_or_insert_with(|| Box::new([NO_SET; CHUNK_SETS]));
        if let Some(set) = chunk.get_mut(set).filter(|set| set.way_of(key).is_none()) {
            set.take(Slot { key: *key, table });
        }
    }

    /// Returns the bytes of memory held.
    pub(crate) fn memory_bytes(&self) -> usize {
        let chunks = self.chunks.borrow();
        let made = chunks.iter().flatten().count();
        made * size_of::<Chunk>() + chunks.capacity() * size_of::<Option<Box<Chunk>>>()
    }

    /// Returns the chunk of a frame's set, and which of its sets that is.
    fn set_of(&self, key: &FrameKey) -> (usize, usize) {
        // Source: Knuth, The Art of Computer Programming, volume 3, section 6.4.
        let place = (u64::from(key.address.segment.0) << 32) | u64::from(key.address.offset);
        let hash = place.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let sets = (self.chunks_max * CHUNK_SETS) as u64;
        let set = usize::try_from((hash * sets) >> 32).expect("a number below that of sets");
        (set / CHUNK_SETS, set % CHUNK_SETS)
    }
}

impl Set {
    fn way_of(&self, key: &FrameKey) -> Option<usize> {
        self.slots.iter().position(|slot| slot.key == *key && slot.table != BlockTable::EMPTY)
    }

    /// Puts a slot in the place of an empty one, or of one that was not asked for lately.
    fn take(&mut self, new: Slot) {
        let empty = self.slots.iter().position(|slot| slot.table == BlockTable::EMPTY);
        let way = empty.unwrap_or_else(|| {
            loop {
                let way = usize::from(self.hand);
                self.hand = (self.hand + 1) % WAYS as u8;
                let is_used = self.used.get_mut(way).is_some_and(std::mem::take);
                if !is_used {
                    break way;
                }
            }
        });
        if let Some(slot) = self.slots.get_mut(way) {
            *slot = new;
        }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a table is found under its own key only, memory stays within the budget, and what is
    //! in use stays.
    use super::*;
    use crate::codec::{Codec, Compressor, FrameForm};

    fn table(seed: u32) -> BlockTable {
        let mut compressor = Compressor::new(Codec::Lz4).with_form(FrameForm::Blocks);
        let source = vec![seed as u8; 8 * 4096];
        let mut target = vec![0; Compressor::target_bytes(source.len())];
        let (_, len) = compressor.compress(&source, &mut target);
        BlockTable::of(&target[..len], 8).unwrap()
    }

    fn key(segment: u32, offset: u32) -> FrameKey {
        let address = FrameAddress { segment: SegmentId(segment), offset };
        FrameKey { address, generation: 3, lba: Lba(u64::from(offset)) }
    }

    #[test]
    fn a_table_is_found_under_its_own_key() {
        let tables = BlockTables::new(1 << 20);
        let own = key(1, 5000);
        assert_eq!(tables.get(&own), None);
        assert_eq!(tables.memory_bytes(), 0);
        tables.insert(&own, table(1));
        assert_eq!(tables.get(&own), Some(table(1)));
        let others = [
            FrameKey { generation: 4, ..own },
            FrameKey { lba: Lba(5001), ..own },
            FrameKey { address: key(2, 5000).address, ..own },
            FrameKey { address: key(1, 5001).address, ..own },
        ];
        for other in others {
            assert_eq!(tables.get(&other), None, "{other:?}");
        }
    }

    #[test]
    fn memory_stays_within_the_budget() {
        let tables = BlockTables::new(1 << 20);
        let kept = 1 << 13;
        for number in 0..4 * kept {
            tables.insert(&key(7, number * 9000), table(number));
            assert!(tables.memory_bytes() <= 1 << 20);
        }
        assert!(tables.memory_bytes() > 1 << 19, "a budget that is not used");
        let is_kept = |number: &u32| tables.get(&key(7, number * 9000)).is_some();
        let left = (3 * kept..4 * kept).filter(is_kept).count();
        assert!(left > kept as usize * 8 / 10, "{left} of the last {kept} tables");
    }

    /// Guards against a first read that waits for all of the memory.
    #[test]
    fn memory_grows_with_what_is_kept() {
        let tables = BlockTables::new(32 << 20);
        for number in 0..100 {
            tables.insert(&key(1, number * 9000), table(number));
            let bytes = tables.memory_bytes();
            assert!(bytes < 512 << 10, "{bytes} bytes for {number} tables");
        }
    }

    #[test]
    fn what_is_asked_for_outlives_what_is_not() {
        let tables = BlockTables::new(1 << 18);
        let used = |number: u32| key(1, number * 9000);
        (0..400).for_each(|number| tables.insert(&used(number), table(number)));
        for scanned in 0..20_000 {
            if scanned % 64 == 0 {
                (0..400).for_each(|number| _ = tables.get(&used(number)));
            }
            tables.insert(&key(2, scanned * 9000), table(scanned));
        }
        let left = (0..400).filter(|&number| tables.get(&used(number)).is_some()).count();
        assert!(left >= 390, "{left} of 400 tables in use are left");
    }

    #[test]
    fn without_a_budget_nothing_is_kept() {
        let tables = BlockTables::new(63);
        tables.insert(&key(1, 1), table(1));
        assert_eq!((tables.get(&key(1, 1)), tables.memory_bytes()), (None, 0));
    }
}

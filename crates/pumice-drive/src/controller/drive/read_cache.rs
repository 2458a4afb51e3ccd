//! Decoded blocks requested by short reads, within a budget of memory.
//!
//! A block is identified by its frame and its index in it: segment, generation of the segment,
//! offset of the record, first LBA, index. The content of a frame never changes while its segment
//! has that generation, so an entry can never be stale. An overwritten or moved block has another
//! key, and its old entry is evicted like any other unused one. The LBA is copied from the record's
//! header when the block is read, so that no hit is for another LBA than the record's.
//!
//! The policy is that of `quick_cache`, a variant of S3-FIFO: a block that was requested once is
//! evicted before one that was requested again, so a scan does not evict blocks in use. The hash
//! function has no random seed: the same requests leave the same blocks in memory.

use std::cell::{Cell, RefCell};
use std::hash::{BuildHasherDefault, DefaultHasher};

use quick_cache::unsync::Cache;
use quick_cache::{Lifecycle, OptionsBuilder, UnitWeighter};

use super::super::place::FrameAddress;
use crate::base::Lba;
use crate::base::units::BLOCK_BYTES;

/// Bytes of a block's entry: the block, and approximately the memory that the cache needs to find
/// and order it, including its share of the keys of evicted blocks.
const ENTRY_BYTES: usize = BLOCK_BYTES + 256;

/// The identity and place of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FrameKey {
    pub(crate) address: FrameAddress,
    /// Generation of its segment.
    pub(crate) generation: u64,
    /// Its first block.
    pub(crate) lba: Lba,
}

/// The place of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BlockKey {
    /// The block's frame.
    pub(crate) frame: FrameKey,
    /// Number of the block in the frame.
    pub(crate) index: u8,
}

type Block = Box<[u8; BLOCK_BYTES]>;

/// Reuses the memory of an evicted block for the next new one.
#[derive(Debug)]
struct Recycle;

impl Lifecycle<BlockKey, Block> for Recycle {
    type RequestState = Option<Block>;

    fn on_evict(&self, evicted: &mut Option<Block>, _: BlockKey, block: Block) {
        *evicted = Some(block);
    }
}

type Blocks = Cache<BlockKey, Block, UnitWeighter, BuildHasherDefault<DefaultHasher>, Recycle>;

/// The cache of one drive.
#[derive(Debug)]
pub(crate) struct ReadCache {
    /// `None` without a budget.
    blocks: Option<RefCell<Blocks>>,
    spare: RefCell<Option<Block>>,
    hits: Cell<u64>,
    misses: Cell<u64>,
}

impl ReadCache {
    /// Creates an empty cache that uses up to `bytes_max` bytes of memory. The cache stores nothing
    /// if that is too little for one block.
    pub(crate) fn new(bytes_max: usize) -> Self {
        let count = bytes_max / ENTRY_BYTES;
        let options = OptionsBuilder::new()
            .shards(1)
            .estimated_items_capacity(count)
            .weight_capacity(count as u64)
            .build()
            .expect("the options are complete");
        let blocks = || Cache::with_options(options, UnitWeighter, <_>::default(), Recycle);
        Self {
            blocks: (count > 0).then(|| RefCell::new(blocks())),
            spare: RefCell::default(),
            hits: Cell::new(0),
            misses: Cell::new(0),
        }
    }

    /// Copies the bytes of a block starting at byte `from` to `out`, if the block is in the cache.
    #[inline]
    pub(crate) fn read(&self, key: BlockKey, from: usize, out: &mut [u8]) -> bool {
        let Some(blocks) = &self.blocks else { return false };
        let blocks = blocks.borrow();
        let Some(block) = blocks.get(&key) else { return false };
        out.copy_from_slice(block.get(from..from + out.len()).expect("a part of a block"));
        self.hits.set(self.hits.get() + 1);
        true
    }

    /// Adds a block that had to be read and decoded.
    #[inline]
    pub(crate) fn insert(&self, key: BlockKey, bytes: &[u8]) {
        let Some(blocks) = &self.blocks else { return };
        self.misses.set(self.misses.get() + 1);
        let mut block = self.spare.take().unwrap_or_else(|| Box::new([0; BLOCK_BYTES]));
        block.copy_from_slice(bytes);
        let mut evicted = None;
        blocks.borrow_mut().insert_with_lifecycle(key, block, &mut evicted);
        self.spare.replace(evicted);
    }

    /// Returns the number of blocks served from the cache.
    pub(crate) fn hits(&self) -> u64 {
        self.hits.get()
    }

    /// Returns the number of blocks that had to be read and decoded first.
    pub(crate) fn misses(&self) -> u64 {
        self.misses.get()
    }

    /// Returns the bytes of memory in use.
    pub(crate) fn memory_bytes(&self) -> usize {
        let Some(blocks) = &self.blocks else { return 0 };
        let blocks = blocks.borrow();
        let count = blocks.len() + usize::from(self.spare.borrow().is_some());
        count * BLOCK_BYTES + blocks.memory_used().total()
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a block is found until it is evicted, memory stays within the budget, and a scan does
    //! not evict blocks in use.
    use super::*;
    use crate::base::SegmentId;

    fn key(number: u32) -> BlockKey {
        let address = FrameAddress { segment: SegmentId(1), offset: number / 8 * 4096 };
        let frame = FrameKey { address, generation: 1, lba: Lba(u64::from(number) / 8) };
        BlockKey { frame, index: (number % 8) as u8 }
    }

    /// Requests a block like a read. Returns whether it was in the cache.
    fn ask(cache: &ReadCache, number: u32) -> bool {
        let mut out = [0; 4];
        let is_hit = cache.read(key(number), 8, &mut out);
        if is_hit {
            assert_eq!(out, number.to_le_bytes(), "another block than the one asked for");
        } else {
            let mut block = [0; BLOCK_BYTES];
            block[8..12].copy_from_slice(&number.to_le_bytes());
            cache.insert(key(number), &block);
        }
        is_hit
    }

    #[test]
    fn a_block_is_another_in_another_generation_frame_or_place() {
        let cache = ReadCache::new(1 << 20);
        assert!(!ask(&cache, 1));
        assert!(ask(&cache, 1));
        let other = |change: &dyn Fn(&mut BlockKey)| {
            let mut key = key(1);
            change(&mut key);
            cache.read(key, 0, &mut [0])
        };
        assert!(other(&|_| ()));
        assert!(!other(&|key| key.frame.generation = 2));
        assert!(!other(&|key| key.frame.lba = Lba(8)));
        assert!(!other(&|key| key.index = 2));
        assert!(!other(&|key| key.frame.address.offset = 28));
        assert!(!other(&|key| key.frame.address.segment = SegmentId(2)));
        assert_eq!((cache.hits(), cache.misses()), (2, 1));
    }

    #[test]
    fn memory_stays_within_the_budget() {
        for budget in [ENTRY_BYTES, 1 << 20, 8 << 20] {
            let cache = ReadCache::new(budget);
            assert!(cache.memory_bytes() < 4096, "memory before the first block");
            let count = (budget / ENTRY_BYTES) as u32;
            for number in 0..3 * count {
                ask(&cache, number);
                ask(&cache, number / 2);
                let bytes = cache.memory_bytes();
                assert!(bytes <= budget + BLOCK_BYTES, "{bytes} bytes of {budget}");
            }
            assert!(cache.memory_bytes() > budget / 10 * 8, "a budget that is not used");
        }
    }

    #[test]
    fn a_scan_does_not_evict_blocks_in_use() {
        let cache = ReadCache::new(100 * ENTRY_BYTES);
        for _ in 0..3 {
            (0..50).for_each(|number| _ = ask(&cache, number));
        }
        (1000..2000).for_each(|number| _ = ask(&cache, number));
        let left = (0..50).filter(|&number| ask(&cache, number)).count();
        assert!(left >= 45, "a scan left {left} of 50 blocks in use");
    }

    #[test]
    fn without_a_budget_nothing_is_kept() {
        let cache = ReadCache::new(ENTRY_BYTES - 1);
        assert!(!ask(&cache, 1) && !ask(&cache, 1));
        assert_eq!((cache.memory_bytes(), cache.hits(), cache.misses()), (0, 0, 0));
    }
}

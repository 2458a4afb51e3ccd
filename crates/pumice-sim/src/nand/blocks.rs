//! The free erase blocks of each die, ordered by wear.
//!
//! Bad blocks are drawn once from a seed and are never allocated. The module is independent of
//! segments.

use std::collections::BTreeSet;

use super::flash::{BlockAddress, Flash, FlashShape};
use pumice_drive::base::seed::mix;

/// Memory for a free block: a pair of numbers, in tree nodes that are half full in the worst case.
pub(crate) const FREE_BLOCK_BYTES: u64 = 16;

/// Erase counts over all good blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Wear {
    /// Minimum over the blocks.
    pub min: u32,
    /// Maximum over the blocks.
    pub max: u32,
    /// Mean over the blocks.
    pub mean: f64,
    /// Standard deviation.
    pub deviation: f64,
}

/// The order in which free blocks are allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Worn {
    /// The least erased block first.
    Least,
    /// The most erased block first.
    Most,
}

/// The free blocks of all dies.
#[derive(Clone, Debug)]
pub struct FreeBlocks {
    /// For each die, the erase count and number of each free block.
    dies: Vec<BTreeSet<(u32, u32)>>,
    bad: BadBlocks,
}

#[derive(Clone, Copy, Debug)]
struct BadBlocks {
    blocks_per_die: u32,
    /// Share of bad blocks, as a multiple of 2^-32.
    share: u64,
    seed: u64,
}

impl BadBlocks {
    fn contains(&self, address: BlockAddress) -> bool {
        let index = u64::from(address.die) * u64::from(self.blocks_per_die);
        (mix(self.seed ^ mix(index + u64::from(address.block))) >> 32) < self.share
    }
}

impl FreeBlocks {
    /// Creates the set of all good blocks, without wear. `bad_percent` must be 0 to 100.
    pub fn new(shape: &FlashShape, bad_percent: f64, seed: u64) -> Self {
        let share = (bad_percent / 100.0 * 2f64.powi(32)) as u64;
        let bad = BadBlocks { blocks_per_die: shape.blocks_per_plane, share, seed };
        let good = |die| {
            let blocks = 0..shape.blocks_per_plane;
            let good = blocks.filter(move |&block| !bad.contains(BlockAddress { die, block }));
            good.map(|block| (0, block)).collect()
        };
        Self { dies: (0..shape.dies()).map(good).collect(), bad }
    }

    /// Returns the number of segments that can be created from one block of each die.
    pub fn segment_count(&self) -> u32 {
        self.dies.iter().map(BTreeSet::len).min().unwrap_or(0) as u32
    }

    /// Removes and returns the least or the most erased free block of a die.
    ///
    /// # Panics
    /// If the die has no free block. This cannot happen to a caller that respects
    /// [`FreeBlocks::segment_count`].
    pub fn take(&mut self, die: u32, which: Worn) -> u32 {
        let die = &mut self.dies[die as usize];
        let taken = match which {
            Worn::Least => die.pop_first(),
            Worn::Most => die.pop_last(),
        };
        taken.expect("a die has a block for every segment").1
    }

    /// Returns a block with this erase count to the set.
    pub fn release(&mut self, address: BlockAddress, erases: u32) {
        let is_new = self.dies[address.die as usize].insert((erases, address.block));
        assert!(is_new && !self.bad.contains(address), "{address:?} is not in use");
    }

    /// Removes a block with this erase count, if it is free.
    pub fn remove(&mut self, address: BlockAddress, erases: u32) {
        self.dies[address.die as usize].remove(&(erases, address.block));
    }

    /// Returns the erase count of each good block, die by die.
    pub fn erases(&self, flash: &Flash) -> impl Iterator<Item = u32> {
        let bad = self.bad;
        let good = (0u32..).zip(flash.wear()).filter(move |&(index, _)| {
            let (die, block) = (index / bad.blocks_per_die, index % bad.blocks_per_die);
            !bad.contains(BlockAddress { die, block })
        });
        good.map(|(_, erases)| erases)
    }

    /// Returns the wear of the good blocks.
    pub fn wear(&self, flash: &Flash) -> Wear {
        let (mut count, mut sum, mut squares) = (0.0f64, 0.0, 0.0);
        let mut wear = Wear { min: u32::MAX, ..Wear::default() };
        for erases in self.erases(flash) {
            wear.min = wear.min.min(erases);
            wear.max = wear.max.max(erases);
            count += 1.0;
            sum += f64::from(erases);
            squares += f64::from(erases).powi(2);
        }
        assert_eq!(sum, flash.counts().blocks_erased as f64, "only good blocks are erased");
        wear.min = wear.min.min(wear.max);
        wear.mean = sum / count.max(1.0);
        wear.deviation = (squares / count.max(1.0) - wear.mean.powi(2)).max(0.0).sqrt();
        wear
    }

    /// Returns the maximum memory use in bytes.
    pub(crate) fn heap_bytes(&self) -> u64 {
        self.dies.iter().map(|die| FREE_BLOCK_BYTES * die.len() as u64).sum()
    }
}

#[cfg(test)]
mod tests {
    //! Goal: the least worn block is allocated first, and bad blocks never. Method: all blocks of a
    //! small flash are allocated, and some released.

    use super::*;
    use crate::ftl::sample;

    const SHAPE: FlashShape = FlashShape {
        channels: 1,
        planes: 1,
        blocks_per_plane: 1000,
        pages_per_block: 1,
        ..sample::SHAPE
    };

    #[test]
    fn the_least_worn_comes_first() {
        let mut free = FreeBlocks::new(&SHAPE, 0.0, 1);
        assert_eq!(free.segment_count(), 1000);
        for expected in 0..1000 {
            assert_eq!(free.take(1, Worn::Least), expected);
        }
        for (block, erases) in [(10, 5), (20, 3), (30, 4)] {
            free.release(BlockAddress { die: 1, block }, erases);
        }
        assert_eq!(free.take(1, Worn::Most), 10);
        assert_eq!([free.take(1, Worn::Least), free.take(1, Worn::Least)], [20, 30]);
    }

    #[test]
    fn bad_blocks_have_the_specified_number_and_differ_with_the_seed() {
        let bad = |seed| {
            let mut free = FreeBlocks::new(&SHAPE, 5.0, seed);
            let count = free.dies[0].len();
            assert!((930..970).contains(&count), "{count} are good");
            assert_eq!(free.segment_count() as usize, count.min(free.dies[1].len()));
            Vec::from_iter((0..count).map(|_| free.take(0, Worn::Least)))
        };
        assert_eq!(bad(1), bad(1));
        assert_ne!(bad(1), bad(2));
    }
}

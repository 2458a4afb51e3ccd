//! Which erase blocks of each die are free, and which of them is worn least.
//!
//! Bad blocks are drawn once from a seed and never handed out. Knows nothing of segments.

use std::collections::BTreeSet;

use super::flash::{BlockAddress, Flash, FlashShape};
use pumice_drive::base::seed::mix;

/// Memory of a free block: a pair of numbers, in nodes of a tree that are half full at worst.
pub const FREE_BLOCK_BYTES: u64 = 16;

/// How often erase blocks were erased, over all that are not bad.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Wear {
    /// The least of any block.
    pub min: u32,
    /// The most.
    pub max: u32,
    /// On average.
    pub mean: f64,
    /// Standard deviation.
    pub deviation: f64,
}

/// Which free block is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Worn {
    /// The one that was erased least.
    Least,
    /// The one that was erased most.
    Most,
}

/// The free blocks of all dies.
#[derive(Clone, Debug)]
pub struct FreeBlocks {
    /// Of each die: how often erased, and which.
    dies: Vec<BTreeSet<(u32, u32)>>,
    bad: BadBlocks,
}

#[derive(Clone, Copy, Debug)]
struct BadBlocks {
    blocks_per_die: u32,
    /// Of 2^32.
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
    /// All blocks but the bad ones, none of them worn; `bad_percent` is from 0 to 100.
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

    /// How many segments can be made of one block of each die.
    pub fn segment_count(&self) -> u32 {
        self.dies.iter().map(BTreeSet::len).min().unwrap_or(0) as u32
    }

    /// Takes the free block of a die that was erased least, or most.
    ///
    /// # Panics
    /// If the die has none: whoever keeps to [`FreeBlocks::segment_count`] finds one.
    pub fn take(&mut self, die: u32, which: Worn) -> u32 {
        let die = &mut self.dies[die as usize];
        let taken = match which {
            Worn::Least => die.pop_first(),
            Worn::Most => die.pop_last(),
        };
        taken.expect("a die has a block for every segment").1
    }

    /// Gives back a block that was erased so often.
    pub fn give(&mut self, address: BlockAddress, erases: u32) {
        self.dies[address.die as usize].insert((erases, address.block));
    }

    /// How often each block was erased that is not bad, die after die.
    pub fn erases(&self, flash: &Flash) -> impl Iterator<Item = u32> {
        let bad = self.bad;
        let good = (0u32..).zip(flash.wear()).filter(move |&(index, _)| {
            let (die, block) = (index / bad.blocks_per_die, index % bad.blocks_per_die);
            !bad.contains(BlockAddress { die, block })
        });
        good.map(|(_, erases)| erases)
    }

    /// How worn the blocks are that are not bad.
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
        wear.min = wear.min.min(wear.max);
        wear.mean = sum / count.max(1.0);
        wear.deviation = (squares / count.max(1.0) - wear.mean.powi(2)).max(0.0).sqrt();
        wear
    }

    /// Bytes of memory that it takes at most.
    pub fn heap_bytes(&self) -> u64 {
        self.dies.iter().map(|die| FREE_BLOCK_BYTES * die.len() as u64).sum()
    }
}

#[cfg(test)]
mod tests {
    //! Goal: the least worn block comes first, and bad ones never.
    //! Method: take all of a small flash; give some back.

    use super::*;

    const SHAPE: FlashShape = FlashShape {
        channels: 1,
        dies_per_channel: 2,
        planes: 1,
        blocks_per_plane: 1000,
        pages_per_block: 1,
        page_bytes: 4096,
    };

    #[test]
    fn the_least_worn_comes_first() {
        let mut free = FreeBlocks::new(&SHAPE, 0.0, 1);
        assert_eq!(free.segment_count(), 1000);
        for expected in 0..1000 {
            assert_eq!(free.take(1, Worn::Least), expected);
        }
        for (block, erases) in [(10, 5), (20, 3), (30, 4)] {
            free.give(BlockAddress { die: 1, block }, erases);
        }
        assert_eq!(free.take(1, Worn::Most), 10);
        assert_eq!([free.take(1, Worn::Least), free.take(1, Worn::Least)], [20, 30]);
    }

    #[test]
    fn bad_blocks_are_as_many_as_said_and_differ_with_the_seed() {
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

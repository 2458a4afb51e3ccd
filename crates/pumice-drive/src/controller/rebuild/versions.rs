//! The newest version of each block, assembled from records in any order.
//!
//! ```text
//! age: the batch in which the host wrote it -> of one batch: moved blocks, then by place
//! ```
//!
//! A moved block was live when it was moved: no other version from the same batch is newer. Memory
//! is bounded: when too many leaves are affected, the last of them are dropped and left to another
//! pass.

use std::collections::BTreeMap;

use super::super::place::blocks_of_frame;
use crate::base::{Lba, SegmentId};
use crate::format::LEAF_BLOCKS;

/// Maximum number of leaves in memory: 32 GiB of the disk in 256 MiB of memory.
const LEAVES_MAX: usize = 8192;

const LEAF: u64 = LEAF_BLOCKS as u64;

/// Content of a version of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// Nothing.
    Hole,
    /// Every byte has this value.
    Fill(u8),
    /// This block of the frame.
    Frame(u8),
}

/// A version of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Version {
    /// The batch in which the host wrote it; 0 for no version.
    pub(super) age: u64,
    /// Its order within the batch.
    pub(super) order: u32,
    /// Segment of its record.
    pub(super) segment: SegmentId,
    /// Byte offset of its record.
    pub(super) offset: u32,
    pub(super) record_bytes: u32,
    pub(super) content: Content,
}

/// [`Version::order`] of a moved block.
pub(super) const MOVED: u32 = u32::MAX;

const NONE: Version = Version {
    age: 0,
    order: 0,
    segment: SegmentId(0),
    offset: 0,
    record_bytes: 0,
    content: Content::Hole,
};

impl Version {
    fn is_newer_than(&self, other: &Self) -> bool {
        (self.age, self.order) > (other.age, other.order)
    }

    /// Returns the version of the block `count` blocks later in the same record.
    fn at(&self, count: u64) -> Self {
        match self.content {
            Content::Frame(index) => {
                let index = u64::from(index) + count;
                Self { content: Content::Frame(blocks_of_frame(index)), ..*self }
            }
            _ => *self,
        }
    }
}

fn index_in_leaf(block: u64) -> usize {
    (block % LEAF) as usize
}

/// Adjacent blocks, and the version of the first, which determines the other versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) lba: Lba,
    pub(super) count: u64,
    pub(super) version: Version,
}

/// The newest versions of the blocks of some leaves.
pub(super) struct Versions {
    first: u64,
    end: u64,
    leaves: BTreeMap<u64, Box<[Version]>>,
    /// Ranges of leaves with one content: first leaf, the leaf after the last, version.
    uniform: BTreeMap<u64, (u64, Version)>,
    leaves_max: usize,
}

impl Versions {
    /// Creates an empty collection for the leaves from `first` up to `end`.
    pub(super) fn new(first: u64, end: u64) -> Self {
        let (leaves, uniform) = (BTreeMap::new(), BTreeMap::new());
        assert!(first < end, "versions are collected of a leaf or more");
        Self { first, end, leaves, uniform, leaves_max: LEAVES_MAX }
    }

    /// Returns the leaf after the last one whose versions are known.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Adds a version of `count` blocks; `version` is the version of the first.
    pub(super) fn add(&mut self, lba: Lba, count: u64, version: Version) {
        let start = lba.0.max(self.first * LEAF);
        let end = (lba.0 + count).min(self.end * LEAF);
        let is_frame = matches!(version.content, Content::Frame(_));
        let mut at = start;
        while at < end {
            if !is_frame && at.is_multiple_of(LEAF) && end - at >= LEAF {
                self.add_uniform(at / LEAF, end / LEAF, version);
                at = end / LEAF * LEAF;
                continue;
            }
            let leaf_end = end.min((at / LEAF + 1) * LEAF);
            self.add_to_leaf(at, leaf_end, &version, at - lba.0);
            at = leaf_end;
        }
        while self.leaves.len() > self.leaves_max {
            if let Some((leaf, _)) = self.leaves.pop_last() {
                assert!(
                    (self.first..self.end).contains(&leaf),
                    "only leaves of this pass are in memory"
                );
                self.end = leaf;
            }
        }
    }

    fn add_to_leaf(&mut self, from: u64, to: u64, version: &Version, skipped: u64) {
        assert!(from < to && (to - 1) / LEAF == from / LEAF, "blocks of one leaf are added");
        let new = || vec![NONE; usize::from(LEAF_BLOCKS)].into_boxed_slice();
        let blocks = self.leaves.entry(from / LEAF).or_insert_with(new);
        for at in from..to {
            let known = blocks.get_mut(index_in_leaf(at)).expect("a block lies in its leaf");
            if version.is_newer_than(known) {
                *known = version.at(skipped + at - from);
            }
        }
    }

    fn add_uniform(&mut self, start: u64, end: u64, version: Version) {
        assert!(start < end, "a range has a leaf or more");
        assert!(!matches!(version.content, Content::Frame(_)), "a frame is shorter than a leaf");
        self.cut(start);
        self.cut(end);
        let mut gaps = Vec::new();
        let mut at = start;
        for (&from, (to, known)) in self.uniform.range_mut(start..end) {
            if at < from {
                gaps.push((at, from));
            }
            if version.is_newer_than(known) {
                *known = version;
            }
            at = *to;
        }
        if at < end {
            gaps.push((at, end));
        }
        self.uniform.extend(gaps.into_iter().map(|(from, to)| (from, (to, version))));
    }

    /// Splits the range that crosses the start of a leaf.
    fn cut(&mut self, leaf: u64) {
        let Some((_, range)) = self.uniform.range_mut(..leaf).next_back() else { return };
        let (end, version) = *range;
        if end > leaf {
            range.0 = leaf;
            self.uniform.insert(leaf, (end, version));
        }
    }

    fn uniform_at(&self, leaf: u64) -> Option<(u64, Version)> {
        let (_, &(end, version)) = self.uniform.range(..=leaf).next_back()?;
        (end > leaf).then_some((end, version))
    }

    /// Returns the runs of the first leaf at or after `leaf` that has any, and the leaf after it,
    /// or after the last of equal leaves; holes are omitted.
    pub(super) fn runs_from(&self, leaf: u64) -> Option<(Vec<Run>, u64)> {
        let next = self.leaves.range(leaf..).next().map(|(&leaf, _)| leaf);
        let uniform = self.uniform_at(leaf).map(|_| leaf);
        let uniform = uniform.or_else(|| self.uniform.range(leaf..).next().map(|(&leaf, _)| leaf));
        let leaf = [next, uniform].into_iter().flatten().min().filter(|&leaf| leaf < self.end)?;
        let over = self.uniform_at(leaf);
        let Some(blocks) = self.leaves.get(&leaf) else {
            let (end, version) = over?;
            let end = end.min(next.unwrap_or(end)).min(self.end);
            assert!(leaf < end, "a range has a leaf or more");
            let run = Run { lba: Lba(leaf * LEAF), count: (end - leaf) * LEAF, version };
            let is_hole = version.content == Content::Hole;
            return Some((if is_hole { Vec::new() } else { vec![run] }, end));
        };
        let mut runs: Vec<Run> = Vec::new();
        for (lba, known) in (leaf * LEAF..).zip(blocks.iter()) {
            let version = match over {
                Some((_, over)) if over.is_newer_than(known) => over,
                _ => *known,
            };
            match runs.last_mut() {
                Some(run)
                    if run.lba.0 + run.count == lba && run.version.at(run.count) == version =>
                {
                    run.count += 1;
                }
                _ if version.content == Content::Hole => {}
                _ => runs.push(Run { lba: Lba(lba), count: 1, version }),
            }
        }
        Some((runs, leaf + 1))
    }
}

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "patterns of test data")]
mod tests {
    //! Goal: the newest version wins, whatever the order in which versions arrive; memory is
    //! bounded and nothing is lost by that. Method: random versions against an array of the newest
    //! ones.
    use rand::RngExt;

    use super::*;
    use crate::base::seed::random;

    const LEAVES: u64 = 6;

    fn version(age: u64, content: Content) -> Version {
        Version { age, content, order: 7, segment: SegmentId(3), offset: age as u32, ..NONE }
    }

    /// Returns the content of every block, collected in passes.
    fn blocks(records: &[(u64, u64, Version)], leaves_max: usize) -> (Vec<(u64, Content)>, u32) {
        let mut blocks = vec![(0, Content::Hole); (LEAVES * LEAF) as usize];
        let (mut first, mut passes) = (0, 0);
        while first < LEAVES {
            let mut versions = Versions { leaves_max, ..Versions::new(first, LEAVES) };
            for &(lba, count, version) in records {
                versions.add(Lba(lba), count, version);
            }
            assert!(versions.leaves.len() <= leaves_max);
            let mut leaf = first;
            while let Some((runs, next)) = versions.runs_from(leaf) {
                for run in runs {
                    for at in 0..run.count {
                        let version = run.version.at(at);
                        blocks[(run.lba.0 + at) as usize] = (version.age, version.content);
                    }
                }
                assert!(next > leaf);
                leaf = next;
            }
            assert!(versions.end() > first);
            first = versions.end();
            passes += 1;
        }
        (blocks, passes)
    }

    #[test]
    fn the_newest_version_of_each_block_is_found_in_any_order() {
        let mut random = random(11);
        for round in 0..20 {
            let mut records = Vec::new();
            let mut expected = vec![(0, Content::Hole); (LEAVES * LEAF) as usize];
            for age in 1..200u64 {
                let (count, content) = match random.random_range(0..3) {
                    0 => (random.random_range(1..=8), Content::Frame(0)),
                    1 => (random.random_range(1..3 * LEAF), Content::Fill(age as u8)),
                    _ => (random.random_range(1..3 * LEAF), Content::Hole),
                };
                let lba = random.random_range(0..LEAVES * LEAF - count);
                // A frame is in one leaf.
                let lba = if count <= 8 { lba / 8 * 8 } else { lba };
                for at in 0..count {
                    let age = if content == Content::Hole { 0 } else { age };
                    let found = version(age, content).at(at);
                    expected[(lba + at) as usize] = (age, found.content);
                }
                records.push((lba, count, version(age, content)));
            }
            for at in (1..records.len()).rev() {
                records.swap(at, random.random_range(0..=at));
            }
            let (all, passes) = blocks(&records, LEAVES_MAX);
            assert!(all == expected && passes == 1, "round {round}");
            let (all, passes) = blocks(&records, 2);
            assert!(all == expected && passes >= 3, "round {round}, {passes} passes");
        }
    }

    #[test]
    fn within_a_batch_moved_frames_are_newest_then_later_records() {
        let early = Version { order: 10, ..version(5, Content::Fill(1)) };
        let late = Version { order: 20, ..version(5, Content::Fill(2)) };
        let moved = Version { order: MOVED, ..version(5, Content::Fill(3)) };
        for (versions, expected) in
            [(vec![late, early], 2), (vec![moved, late], 3), (vec![early, late], 2)]
        {
            let records: Vec<_> = versions.into_iter().map(|version| (9, 1, version)).collect();
            assert_eq!(blocks(&records, LEAVES_MAX).0[9].1, Content::Fill(expected));
        }
    }
}

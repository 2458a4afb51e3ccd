//! Ranges of whole leaves that became a hole or a fill at once.
//!
//! Invariant: the ranges do not overlap. Each remembers how far its old leaves have been taken
//! down; a fully reaped hole is forgotten (an absent leaf is a hole), a fill stays.

use std::collections::BTreeMap;

use super::Mapping;

#[derive(Clone, Copy, Debug)]
struct Range {
    end: u64,
    mapping: Mapping,
    /// Old leaves below this one are gone.
    reaped: u64,
}

/// The ranges, by their first leaf.
#[derive(Debug, Default)]
pub(super) struct Dropped {
    ranges: BTreeMap<u64, Range>,
    /// First leaves of ranges with something left to reap; may name ranges that have gone since.
    unreaped: Vec<u64>,
}

impl Dropped {
    /// What `leaf` became, if it lies in a range.
    pub(super) fn get(&self, leaf: u64) -> Option<Mapping> {
        if self.ranges.is_empty() {
            return None;
        }
        let (_, range) = self.ranges.range(..=leaf).next_back()?;
        (leaf < range.end).then_some(range.mapping)
    }

    /// Notes that the leaves `start..end` are `mapping` from now on.
    pub(super) fn insert(&mut self, start: u64, end: u64, mapping: Mapping) {
        self.cut(start);
        self.cut(end);
        let covered: Vec<u64> = self.ranges.range(start..end).map(|(&first, _)| first).collect();
        for first in covered {
            self.ranges.remove(&first);
        }
        self.put(start, Range { end, mapping, reaped: start });
    }

    /// Takes `leaf` out of the range it lies in; gives what it had become.
    pub(super) fn take_out(&mut self, leaf: u64) -> Option<Mapping> {
        let mapping = self.get(leaf)?;
        self.cut(leaf);
        self.cut(leaf + 1);
        self.ranges.remove(&leaf);
        Some(mapping)
    }

    /// A leaf whose old content is still to be taken down.
    pub(super) fn next_unreaped(&mut self) -> Option<u64> {
        while let Some(&first) = self.unreaped.last() {
            match self.ranges.get(&first) {
                Some(range) if range.reaped < range.end => return Some(range.reaped),
                _ => self.unreaped.pop(),
            };
        }
        None
    }

    /// Says that all leaves below `leaf` in the range of [`Dropped::next_unreaped`] are gone.
    pub(super) fn reaped_to(&mut self, leaf: u64) {
        let Some(&first) = self.unreaped.last() else { return };
        let Some(range) = self.ranges.get_mut(&first) else { return };
        range.reaped = leaf.min(range.end);
        if range.reaped == range.end && range.mapping == Mapping::Hole {
            self.ranges.remove(&first);
        }
    }

    /// Bytes of memory held, about: a B-tree entry is its key, its value and half a node's spare.
    pub(super) fn memory_bytes(&self) -> usize {
        self.ranges.len() * 2 * (size_of::<u64>() + size_of::<Range>())
            + self.unreaped.capacity() * size_of::<u64>()
    }

    /// Makes `at` a border between ranges.
    fn cut(&mut self, at: u64) {
        let Some((&first, &range)) = self.ranges.range(..at).next_back() else { return };
        if range.end <= at {
            return;
        }
        let left = Range { end: at, reaped: range.reaped.min(at), ..range };
        let right = Range { reaped: range.reaped.max(at), ..range };
        self.ranges.remove(&first);
        self.put(first, left);
        self.put(at, right);
    }

    fn put(&mut self, first: u64, range: Range) {
        if range.reaped < range.end {
            self.unreaped.push(first);
        } else if range.mapping == Mapping::Hole {
            return;
        }
        self.ranges.insert(first, range);
    }
}

//! Ranges of whole leaves that became a hole or a fill in one step.
//!
//! A range is *unreaped* until the former content of its leaves is released; as leaves are reaped,
//! the range shrinks from the front, and the directory records the leaves' new content. A fill of
//! whole directory pages that do not exist is *retained* instead, so that it needs no pages.
//!
//! Invariants: ranges do not overlap; retained ranges begin and end at page boundaries of the
//! directory, and their leaves have no entries. Their number is thus at most the number of pages,
//! and unreaped ranges last only until the reaper reaches them.

use std::collections::BTreeMap;

use super::Mapping;
use crate::format::DIRECTORY_PAGE_LEAVES;

const PAGE_LEAVES: u64 = DIRECTORY_PAGE_LEAVES as u64;

/// Leaves that became a hole or a fill in one step, as a checkpoint records them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DroppedRange {
    /// The first leaf.
    pub(crate) start: u64,
    /// The leaf after the last.
    pub(crate) end: u64,
    /// Their new content: a hole or a fill.
    pub(crate) mapping: Mapping,
}

#[derive(Clone, Copy, Debug)]
struct Range {
    end: u64,
    mapping: Mapping,
}

/// The ranges, by their first leaf.
#[derive(Debug, Default)]
pub(super) struct Dropped {
    unreaped: BTreeMap<u64, Range>,
    retained: BTreeMap<u64, Range>,
    retained_data_leaves: u64,
}

impl Range {
    /// Returns the number of its leaves, from `start` onwards, that contain data.
    fn data_leaves(&self, start: u64) -> u64 {
        if self.mapping.is_zero() { 0 } else { self.end - start }
    }
}

impl Dropped {
    /// Returns the new content of `leaf`, if it is in a range.
    #[inline]
    pub(super) fn get(&self, leaf: u64) -> Option<Mapping> {
        if self.is_empty() {
            return None;
        }
        self.range_at(leaf).map(|range| range.mapping)
    }

    /// Returns the range that contains `leaf`.
    pub(super) fn range_at(&self, leaf: u64) -> Option<DroppedRange> {
        let within = |ranges: &BTreeMap<u64, Range>| {
            let (&start, &Range { end, mapping }) = ranges.range(..=leaf).next_back()?;
            assert!(start < end, "a range has a leaf or more");
            (leaf < end).then_some(DroppedRange { start, end, mapping })
        };
        within(&self.unreaped).or_else(|| within(&self.retained))
    }

    /// Returns the first leaf at or after `leaf` that is in a range.
    pub(super) fn next_from(&self, leaf: u64) -> Option<u64> {
        if self.is_empty() {
            return None;
        }
        if self.range_at(leaf).is_some() {
            return Some(leaf);
        }
        let next = |ranges: &BTreeMap<u64, Range>| ranges.range(leaf..).next().map(|(&at, _)| at);
        let next = next(&self.unreaped).into_iter().chain(next(&self.retained)).min();
        assert!(next.is_none_or(|next| leaf < next), "the next range begins after the leaf");
        next
    }

    /// Records that the leaves `start..end` are now `mapping`.
    pub(super) fn insert(&mut self, start: u64, end: u64, mapping: Mapping) {
        assert!(start < end, "a range has a leaf or more");
        assert!(!matches!(mapping, Mapping::Frame { .. }), "a frame is shorter than a leaf");
        self.clear(start, end);
        put(&mut self.unreaped, start, end, mapping);
        debug_assert_eq!(self.get(start), Some(mapping), "the first leaf lies in the range");
        debug_assert_eq!(self.get(end - 1), Some(mapping), "the last leaf lies in the range");
        debug_assert!(self.is_valid(), "dropped ranges are invalid after an insertion");
    }

    /// Removes `leaf` from its range. Returns the new content that the range recorded for it.
    pub(super) fn take_out(&mut self, leaf: u64) -> Option<Mapping> {
        let mapping = self.get(leaf)?;
        self.clear(leaf, leaf + 1);
        assert!(self.get(leaf).is_none(), "a leaf that was taken out lies in no range");
        debug_assert!(self.is_valid(), "dropped ranges are invalid after a removal");
        Some(mapping)
    }

    /// Returns the lowest range with leaves left to reap, starting with the first of these leaves.
    pub(super) fn next_unreaped(&self) -> Option<DroppedRange> {
        let (&start, &Range { end, mapping }) = self.unreaped.first_key_value()?;
        Some(DroppedRange { start, end, mapping })
    }

    /// Returns every range with leaves left to reap.
    pub(super) fn unreaped(&self) -> impl Iterator<Item = DroppedRange> {
        let ranges = self.unreaped.iter();
        ranges.map(|(&start, &Range { end, mapping })| DroppedRange { start, end, mapping })
    }

    /// Records that all leaves below `leaf` in the range of [`Dropped::next_unreaped`] are reaped
    /// and have their entries.
    pub(super) fn reaped_to(&mut self, leaf: u64) {
        let (start, range) = self.unreaped.pop_first().expect("a range is being taken down");
        assert!(start < leaf, "taking down a range makes progress");
        if leaf < range.end {
            let before = self.unreaped.insert(leaf, range);
            assert!(before.is_none(), "ranges do not overlap");
        }
    }

    /// Records that the leaves below `leaf` in that range, which belong to directory pages that do
    /// not exist, stay a fill without entries.
    pub(super) fn retain_to(&mut self, leaf: u64) {
        let range = self.next_unreaped().expect("a range is being taken down");
        let is_whole = range.start.is_multiple_of(PAGE_LEAVES) && leaf.is_multiple_of(PAGE_LEAVES);
        assert!(is_whole, "a part of a directory page is retained");
        assert!(leaf <= range.end, "leaves beyond the range are retained");
        assert!(matches!(range.mapping, Mapping::Fill(_)), "holes need no retained range");
        self.reaped_to(leaf);
        let retained = Range { end: leaf, mapping: range.mapping };
        self.retained_data_leaves += retained.data_leaves(range.start);
        put(&mut self.retained, range.start, leaf, range.mapping);
        debug_assert!(self.is_valid(), "dropped ranges are invalid after a part was retained");
    }

    /// Returns the number of leaves in retained ranges that contain data.
    pub(super) fn retained_data_leaves(&self) -> u64 {
        self.retained_data_leaves
    }

    /// Returns all ranges, in order. A restored map treats them as unreaped and determines anew
    /// which ones to retain.
    pub(super) fn ranges(&self) -> Vec<DroppedRange> {
        let all = self.unreaped.iter().chain(&self.retained);
        let mut ranges: Vec<_> = all
            .map(|(&start, &Range { end, mapping })| DroppedRange { start, end, mapping })
            .collect();
        ranges.sort_unstable_by_key(|range| range.start);
        let is_ordered = ranges.is_sorted_by(|range, next| range.end <= next.start);
        assert!(is_ordered, "ranges do not overlap");
        ranges
    }

    /// Returns the approximate bytes of memory in use: a B-tree entry is its key, its value and
    /// half a node's spare.
    pub(super) fn memory_bytes(&self) -> usize {
        let ranges = self.unreaped.len() + self.retained.len();
        ranges * 2 * (size_of::<u64>() + size_of::<Range>())
    }

    /// Returns whether the invariants of this file hold.
    fn is_valid(&self) -> bool {
        let mut end = 0;
        let is_ordered = self.ranges().iter().all(|range| {
            let follows = end <= range.start && range.start < range.end;
            end = range.end;
            follows
        });
        let is_paged = self.retained.iter().all(|(start, range)| {
            start.is_multiple_of(PAGE_LEAVES) && range.end.is_multiple_of(PAGE_LEAVES)
        });
        let retained = self.retained.iter().map(|(start, range)| range.data_leaves(*start));
        is_ordered && is_paged && retained.sum::<u64>() == self.retained_data_leaves
    }

    fn is_empty(&self) -> bool {
        self.unreaped.is_empty() && self.retained.is_empty()
    }

    /// Removes `start..end` from all ranges. The rest of retained pages is unreaped again: the
    /// pages are about to exist.
    fn clear(&mut self, start: u64, end: u64) {
        take(&mut self.unreaped, start, end);
        if self.retained.is_empty() {
            return;
        }
        let first = start / PAGE_LEAVES * PAGE_LEAVES;
        let last = end.next_multiple_of(PAGE_LEAVES);
        for (from, range) in take(&mut self.retained, first, last) {
            let Range { end: to, mapping } = range;
            let left = self.retained_data_leaves.checked_sub(range.data_leaves(from));
            self.retained_data_leaves = left.expect("leaves of retained ranges are counted");
            put(&mut self.unreaped, from, to.min(start), mapping);
            put(&mut self.unreaped, from.max(end), to, mapping);
        }
    }
}

/// Cuts `start..end` out of `ranges` and returns the removed parts.
fn take(ranges: &mut BTreeMap<u64, Range>, start: u64, end: u64) -> Vec<(u64, Range)> {
    assert!(start < end, "leaves are cut out of ranges");
    split(ranges, start);
    split(ranges, end);
    let covered: Vec<_> = ranges.range(start..end).map(|(&first, &range)| (first, range)).collect();
    for (first, range) in &covered {
        assert!(range.end <= end, "a range that was split ends at the border");
        ranges.remove(first);
    }
    covered
}

/// Makes `at` a border between ranges.
fn split(ranges: &mut BTreeMap<u64, Range>, at: u64) {
    let Some((_, range)) = ranges.range_mut(..at).next_back() else { return };
    if range.end > at {
        let right = *range;
        range.end = at;
        let before = ranges.insert(at, right);
        assert!(before.is_none(), "ranges do not overlap");
    }
}

/// Adds `start..end`, which overlaps no range, and joins neighbours with the same mapping.
fn put(ranges: &mut BTreeMap<u64, Range>, mut start: u64, mut end: u64, mapping: Mapping) {
    if start >= end {
        return;
    }
    if let Some(next) = ranges.get(&end).copied()
        && next.mapping == mapping
    {
        ranges.remove(&end);
        assert!(end < next.end, "a range has a leaf or more");
        end = next.end;
    }
    if let Some((&before, range)) = ranges.range(..start).next_back()
        && range.end == start
        && range.mapping == mapping
    {
        start = before;
    }
    let last = ranges.range(..end).next_back();
    assert!(
        last.is_none_or(|(&at, range)| at == start || range.end <= start),
        "leaves are added that lie in a range"
    );
    ranges.insert(start, Range { end, mapping });
}

//! Sets of bytes of a segment, as ranges in ascending order that neither overlap nor touch.

/// A set of bytes of a segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ranges(Vec<(u32, u32)>);

impl Ranges {
    /// Returns the set of one range.
    pub(super) fn one(start: u32, end: u32) -> Self {
        let mut ranges = Self::default();
        ranges.insert(start, end);
        ranges
    }

    /// Adds the bytes from `start` up to `end`.
    pub(super) fn insert(&mut self, start: u32, end: u32) {
        if start >= end {
            return;
        }
        let first = self.0.partition_point(|&(_, before)| before < start);
        let last = self.0.partition_point(|&(from, _)| from <= end);
        let joined = self.0.get(first..last).unwrap_or_default();
        let start = joined.first().map_or(start, |&(from, _)| from.min(start));
        let end = joined.last().map_or(end, |&(_, to)| to.max(end));
        self.0.splice(first..last.max(first), [(start, end)]);
        debug_assert!(self.is_in_order(), "ranges ascend, and neither overlap nor touch");
    }

    /// Removes the bytes from `start` up to `end` from the set.
    pub(super) fn remove(&mut self, start: u32, end: u32) {
        if start >= end {
            return;
        }
        let parts =
            self.0.iter().flat_map(|&(from, to)| [(from, to.min(start)), (from.max(end), to)]);
        self.0 = parts.filter(|&(from, to)| from < to).collect();
        debug_assert!(self.is_in_order(), "what is left ascends");
    }

    fn is_in_order(&self) -> bool {
        let is_in_order = self.0.is_sorted_by(|one, next| one.1 < next.0);
        is_in_order && self.0.iter().all(|(from, to)| from < to)
    }

    /// Returns whether any byte from `start` up to `end` is in the set.
    pub(super) fn overlaps(&self, start: u32, end: u32) -> bool {
        start < end && self.0.iter().any(|&(from, to)| from < end && start < to)
    }

    /// Returns the number of bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.0.iter().map(|&(from, to)| u64::from(to - from)).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, u32)> {
        self.0.iter().copied()
    }

    /// Returns the bytes below `end` that are not in the set.
    pub(super) fn complement(&self, end: u32) -> Self {
        let mut holes = Self::default();
        let mut from = 0;
        for (start, next) in self.iter() {
            holes.insert(from, start.min(end));
            from = next;
        }
        holes.insert(from, end);
        holes
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a set of ranges behaves like a set of single bytes.
    //! Method: random insertions, compared with an array.
    use rand::RngExt;

    use super::*;
    use crate::base::seed::random;

    #[test]
    fn ranges_are_a_set_of_bytes() {
        for seed in 0..200 {
            let mut random = random(seed);
            let (mut ranges, mut plain) = (Ranges::default(), [false; 40]);
            for _ in 0..8 {
                let start: u32 = random.random_range(0..40);
                let end = random.random_range(0..=40);
                assert_eq!(
                    ranges.overlaps(start, end),
                    (start..end).any(|at| plain[at as usize]),
                    "{start} {end} {ranges:?}"
                );
                let is_set = random.random_range(0..3) > 0;
                if is_set {
                    ranges.insert(start, end)
                } else {
                    ranges.remove(start, end)
                }
                (start..end).for_each(|at| plain[at as usize] = is_set);
                let found: Vec<u32> = ranges.iter().flat_map(|(from, to)| from..to).collect();
                let expected: Vec<u32> = (0..40).filter(|&at| plain[at as usize]).collect();
                assert_eq!(found, expected);
                assert_eq!(ranges.bytes(), expected.len() as u64);
                assert!(ranges.0.is_sorted_by(|a, b| a.1 < b.0), "{ranges:?}");
                let holes: Vec<u32> =
                    ranges.complement(40).iter().flat_map(|(from, to)| from..to).collect();
                let expected: Vec<u32> = (0..40).filter(|&at| !plain[at as usize]).collect();
                assert_eq!(holes, expected);
            }
        }
    }
}

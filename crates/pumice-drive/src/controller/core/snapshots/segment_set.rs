//! A set of segments, and its bitmap on the medium.

use crate::base::SegmentId;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SegmentSet(Vec<u64>);

impl SegmentSet {
    /// Adds a segment. Returns whether it was not yet in the set.
    pub(crate) fn insert(&mut self, segment: SegmentId) -> bool {
        let (word, bit) = (segment.0 as usize / 64, 1 << (segment.0 % 64));
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        let Some(word) = self.0.get_mut(word) else { return false };
        let is_new = *word & bit == 0;
        *word |= bit;
        debug_assert!(self.contains(segment), "a segment that was inserted is in the set");
        is_new
    }

    /// Removes a segment. Returns whether it was in the set.
    pub(crate) fn remove(&mut self, segment: SegmentId) -> bool {
        let was_in = self.contains(segment);
        if let Some(word) = self.0.get_mut(segment.0 as usize / 64) {
            *word &= !(1 << (segment.0 % 64));
        }
        debug_assert!(!self.contains(segment), "a segment that was removed is not in the set");
        was_in
    }

    /// Returns whether a segment is in the set.
    pub(crate) fn contains(&self, segment: SegmentId) -> bool {
        let word = self.0.get(segment.0 as usize / 64);
        word.is_some_and(|word| word >> (segment.0 % 64) & 1 == 1)
    }

    /// Returns the segments, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = SegmentId> {
        (0..).zip(&self.0).flat_map(|(at, &word)| {
            // Each step clears the lowest bit.
            let rest = std::iter::successors(Some(word), |rest| Some(rest & rest.wrapping_sub(1)));
            let rest = rest.take_while(|rest| *rest != 0);
            rest.map(move |rest| SegmentId(at * 64 + rest.trailing_zeros()))
        })
    }

    /// Encodes the bits of `segment_count` segments, starting at bit 0 of the first byte.
    pub(crate) fn encode(&self, segment_count: u32) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.0.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.resize((segment_count as usize).div_ceil(8), 0);
        bytes
    }

    /// Decodes the bits of `segment_count` segments. Returns `None` if other bits are set.
    pub(crate) fn decode(bytes: &[u8], segment_count: u32) -> Option<Self> {
        if bytes.len() != (segment_count as usize).div_ceil(8) {
            return None;
        }
        let mut set = Self::default();
        for (at, byte) in (0..).zip(bytes) {
            for bit in (0..8).filter(|bit| byte >> bit & 1 == 1) {
                set.insert(SegmentId(at * 8 + bit));
            }
        }
        let is_possible = set.iter().all(|segment| segment.0 < segment_count);
        is_possible.then_some(set)
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a decoded bitmap equals the encoded one.
    use super::*;

    #[test]
    fn sets_of_segments_come_back() {
        let mut set = SegmentSet::default();
        for segment in [0, 7, 8, 63, 64, 200] {
            assert!(set.insert(SegmentId(segment)));
            assert!(!set.insert(SegmentId(segment)));
        }
        let found: Vec<_> = set.iter().map(|segment| segment.0).collect();
        assert_eq!(found, [0, 7, 8, 63, 64, 200]);
        for count in [201, 208, 209, 10_000] {
            let bytes = set.encode(count);
            let back = SegmentSet::decode(&bytes, count).unwrap();
            assert!(back.iter().eq(set.iter()), "{count}");
            assert!(SegmentSet::decode(&bytes[1..], count).is_none());
        }
        let beyond = [0, 0x20];
        assert!(SegmentSet::decode(&beyond, 13).is_none(), "a bit of no segment");
        assert!(SegmentSet::decode(&beyond, 14).is_some());
    }
}

//! Segments that must be emptied: segments beyond the end of a table that becomes shorter, and uses
//! of segments that were started under a key that is replaced.

use super::{Segment, Space, State};
use crate::base::SegmentId;

impl Space {
    /// Causes every use of a segment with a lower generation to be emptied; 0 selects none.
    pub(crate) fn expire(&mut self, generation: u64) {
        assert!(self.expired == 0 || generation == 0, "one key is replaced at a time");
        self.expired = generation;
        self.changes += 1;
    }

    /// Returns whether a segment must be emptied: it is no longer allocated, or its use must end.
    pub(crate) fn must_go(&self, segment: SegmentId) -> bool {
        let entry = self.segments.get(segment.0 as usize);
        segment.0 >= self.end || entry.is_some_and(|entry| self.is_expired(entry))
    }

    fn is_expired(&self, entry: &Segment) -> bool {
        entry.state != State::Free && entry.generation < self.expired
    }

    /// Returns the segments that must be emptied, including free ones beyond the end.
    fn going(&self) -> impl Iterator<Item = (SegmentId, &Segment)> {
        let first = if self.expired == 0 { self.end } else { 0 };
        let from = self.numbered().skip(first as usize);
        from.filter(move |(segment, entry)| segment.0 >= self.end || self.is_expired(entry))
    }

    /// Returns whether a segment must be emptied: see [`Space::going_count`].
    pub(crate) fn has_going(&self) -> bool {
        self.going().any(|(_, segment)| segment.state != State::Free)
    }

    /// Returns the number of segments in use that must be emptied: they are no longer allocated, or
    /// their key will be removed.
    pub(crate) fn going_count(&self) -> u32 {
        let going = self.going().filter(|(_, segment)| segment.state != State::Free);
        u32::try_from(going.count()).expect("a table has at most 2^32 segments")
    }

    /// Returns the number of segments in use whose generation is lower than this.
    pub(crate) fn used_before(&self, generation: u64) -> u32 {
        let before = self
            .segments
            .iter()
            .filter(|segment| segment.state != State::Free && segment.generation < generation);
        u32::try_from(before.count()).expect("a table has at most 2^32 segments")
    }

    /// Returns a sealed segment that must be emptied.
    pub(crate) fn evacuee(&self) -> Option<SegmentId> {
        let wanted = self.going().find(|(_, segment)| {
            let is_movable = !segment.stuck && !self.is_no_victim(segment);
            segment.state == State::Sealed && is_movable
        });
        wanted.map(|(segment, _)| segment)
    }

    /// Returns a segment that must be emptied and that garbage collection cannot empty.
    pub(crate) fn stuck_and_going(&self) -> Option<SegmentId> {
        let is_needed = |segment: &Segment| segment.live_bytes > 0 || segment.retained.count > 0;
        let stuck = self.going().find(|(_, segment)| segment.stuck && is_needed(segment));
        stuck.map(|(segment, _)| segment)
    }
}

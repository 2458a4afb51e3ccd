//! The allocation of free segments: lowest number first, and a *warm* one of the lowest few for the
//! host.
//!
//! ```text
//! freed --> discarded ----------------------------------------> allocated
//!      \--> kept: warm --hold--> discarded --end_hold--> cold --^
//!                  \-----------------------------------------> allocated, to the host first
//! cold --hold--> zeroed --end_hold--> warm
//! ```
//!
//! A warm segment is one whose bytes have been written: `core::reclaim::warm` describes why that
//! matters, and which segments stay warm. A segment is *held* while its content is discarded or
//! zeroed: it counts as free, and is not allocated until the hold ends.
//!
//! While room is low ([`Space::set_room`], `core::reclaim::low_room`) only warm segments are
//! allocated.

use super::{FREE, Segment, Space, State};
use crate::base::SegmentId;
use crate::format::Stream;

/// Number of lowest free segments from which a stream receives one. A larger number would permit
/// more warm segments, which occupy the medium's space; recovery searches the lowest 16 for the
/// log's next segment.
pub(crate) const CHOICES: usize = 4;

impl Space {
    /// Allocates a free segment for a stream and marks it open: a warm one of the lowest few for
    /// the host, a cold one for the other streams, or else the lowest. Returns `None` if all are in
    /// use or held.
    pub(crate) fn allocate(&mut self, stream: Stream, generation: u64) -> Option<SegmentId> {
        let Some(segment) = self.next_for(stream) else {
            assert_eq!(self.available_count(), 0, "a segment that is counted as free is found");
            return None;
        };
        let lowest = self.all_free().next();
        self.lowest_free = lowest.map_or(segment.0, |lowest| lowest.0);
        let entry = self.entry_mut(segment);
        assert_eq!(entry.live_bytes, 0, "nothing in a free segment is live");
        // A damaged map may name data in a free segment, and a read of it may be under way.
        let readers = entry.readers;
        *entry = Segment { generation, stream, state: State::Open, readers, ..FREE };
        self.warm.retain(|&warm| warm != segment);
        assert!(self.free_count > 0, "a segment that is found free is counted");
        self.free_count -= 1;
        if self.lowest_free == segment.0 {
            self.lowest_free += 1;
        }
        assert!(segment.0 < self.end, "segments beyond the end are not handed out");
        self.check_invariants();
        Some(segment)
    }

    /// Sets the number of segments, neither warm nor held, for which the file system has space, if
    /// that is low.
    pub(crate) fn set_room(&mut self, room: Option<u32>) {
        self.room = room;
    }

    /// Returns the number of free segments below the end that have space.
    pub(crate) fn free_count(&self) -> u32 {
        let Some(room) = self.room else { return self.free_count };
        let kept = self.count_free_of(&self.warm) + self.count_free_of(&self.held);
        let cold = self.free_count.checked_sub(kept);
        kept + cold.expect("kept segments count as free").min(room)
    }

    /// Returns the number of segments below the end that are in use, or free with space.
    pub(crate) fn usable_count(&self) -> u32 {
        self.end - (self.free_count - self.free_count())
    }

    fn count_free_of(&self, some: &[SegmentId]) -> u32 {
        let is_free =
            |segment: SegmentId| segment.0 < self.end && self.entry(segment).is_available();
        some.iter().map(|&segment| u32::from(is_free(segment))).sum()
    }

    /// Returns the next segment for a stream.
    pub(crate) fn next_for(&self, stream: Stream) -> Option<SegmentId> {
        if self.room.is_some() {
            return self.warm.iter().copied().filter(|segment| segment.0 < self.end).min();
        }
        let wants_warm = stream == Stream::Host;
        let choices =
            || self.all_free().filter(|segment| !self.held.contains(segment)).take(CHOICES);
        let wanted = choices().find(|&segment| self.is_warm(segment) == wants_warm);
        wanted.or_else(|| choices().next())
    }

    /// Returns the free segments, lowest first.
    pub(crate) fn all_free(&self) -> impl Iterator<Item = SegmentId> {
        let from = self.lowest_free.min(self.end) as usize;
        let handed_out = self.numbered().take(self.end as usize).skip(from);
        handed_out.filter(|(_, entry)| entry.is_available()).map(|(segment, _)| segment)
    }

    /// Returns whether a segment is one of the lowest few that are free, or would be.
    pub(crate) fn is_among_lowest(&self, segment: SegmentId) -> bool {
        let before = self.all_free().take(CHOICES).take_while(|&free| free < segment).count();
        segment.0 < self.end && !self.is_bad(segment) && before < CHOICES
    }

    /// Returns the number of free segments that can be allocated.
    pub(crate) fn available_count(&self) -> u32 {
        if self.room.is_some() {
            return self.count_free_of(&self.warm);
        }
        let available = self.free_count.checked_sub(self.count_free_of(&self.held));
        available.expect("held segments count as free")
    }

    /// Returns whether a free segment was not discarded.
    pub(crate) fn is_warm(&self, segment: SegmentId) -> bool {
        self.warm.contains(&segment)
    }

    /// Returns the warm segments, in the order in which they became warm.
    pub(crate) fn warm(&self) -> &[SegmentId] {
        &self.warm
    }

    /// Returns the number of segments that are warm or held.
    pub(crate) fn kept_count(&self) -> usize {
        self.warm.len() + self.held.len()
    }

    /// Returns whether a segment is warm or held.
    pub(crate) fn is_kept(&self, segment: SegmentId) -> bool {
        self.is_warm(segment) || self.held.contains(&segment)
    }

    /// Returns whether a segment is held.
    pub(crate) fn has_held_free(&self) -> bool {
        !self.held.is_empty()
    }

    /// Returns whether a segment from this one onwards is warm or held.
    pub(crate) fn is_kept_from(&self, first: u32) -> bool {
        self.warm.iter().chain(&self.held).any(|segment| segment.0 >= first)
    }

    /// Records that the bytes of a free segment are left from an earlier use, or are zeroes that
    /// were written.
    pub(crate) fn set_warm(&mut self, segment: SegmentId) {
        assert!(self.entry(segment).state == State::Free, "only a free segment is warm");
        assert!(!self.is_warm(segment), "a segment becomes warm once");
        if !self.is_bad(segment) {
            self.warm.push(segment);
        }
    }

    /// Prevents a free segment from being allocated until [`Space::end_hold`].
    pub(crate) fn hold_free(&mut self, segment: SegmentId) {
        assert!(self.entry(segment).state == State::Free, "segment {segment} is free when held");
        assert!(!self.held.contains(&segment), "a segment is held once");
        self.warm.retain(|&warm| warm != segment);
        self.held.push(segment);
    }

    /// Reverts [`Space::hold_free`].
    pub(crate) fn end_hold(&mut self, segment: SegmentId) {
        assert!(self.entry(segment).state == State::Free, "a held segment stays free");
        assert!(self.held.contains(&segment), "segment {segment} was held");
        self.held.retain(|&held| held != segment);
    }
}

//! Frames that the medium cannot read, as opposed to frames with wrong bytes, and the time at which
//! garbage collection gives them up.
//!
//! ```text
//! first visit -> left in place; the segment is no victim for a while
//! a visit five minutes later, or when writes would otherwise be refused -> they become lost
//! ```
//!
//! A failing device may read a sector again after a reset, when it is cooler, or on another path. A
//! frame that was given up cannot be recovered. But while the frame is left in place, so is its
//! whole segment, and a write must not be refused for the sake of a block that the host cannot read
//! anyway.

use super::super::{Core, Purpose};
use super::Reclaim;
use crate::base::SegmentId;

/// Time from the first visit until a frame, or a leaf of the map, is given up.
pub(crate) const GIVE_UP_NS: u64 = 300_000_000_000;

/// Maximum number of segments that are remembered; any other counts as visited for the first time.
const SEGMENTS_MAX: usize = 1024;

/// A segment with a frame that could not be read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unreadable {
    segment: SegmentId,
    generation: u64,
    /// The time at which the frame was found.
    since_ns: u64,
}

impl Reclaim {
    /// Records that the unreadable frames of a segment were given up.
    pub(crate) fn forget_unreadable(&mut self, segment: SegmentId) {
        self.unreadable.retain(|known| known.segment != segment);
    }
}

impl Core {
    /// Returns whether unreadable frames of a segment were left in place long enough.
    pub(crate) fn gives_up_unreadable(&self, segment: SegmentId, now_ns: u64) -> bool {
        let known = self.reclaim.unreadable.iter().find(|known| known.segment == segment);
        known.is_some_and(|known| {
            self.space.generation(segment) == known.generation
                && now_ns.saturating_sub(known.since_ns) >= GIVE_UP_NS
        })
    }

    /// Records that a part of a segment cannot be read and was left in place.
    pub(crate) fn note_unreadable(&mut self, segment: SegmentId, now_ns: u64) {
        let (all, space) = (&mut self.reclaim.unreadable, &self.space);
        all.retain(|known| space.generation(known.segment) == known.generation);
        if all.len() < SEGMENTS_MAX && all.iter().all(|known| known.segment != segment) {
            let generation = space.generation(segment);
            all.push(Unreadable { segment, generation, since_ns: now_ns });
        }
        assert!(all.len() <= SEGMENTS_MAX, "few segments are remembered");
    }

    /// Returns a segment to empty although its unreadable frames are thereby lost, because writes
    /// would otherwise be refused, and the time at which it was found unreadable. Must only be
    /// called if no other victim exists.
    pub(crate) fn last_resort(&self) -> Option<(SegmentId, u64)> {
        if !self.must_collect() || self.has_segment_for_data() {
            return None;
        }
        let room_bytes = self.room_to_move(self.reserved_segments(Purpose::Moved));
        let segment_bytes = self.superblock.segment_bytes;
        let would_gain = |known: &&Unreadable| {
            self.space.generation(known.segment) == known.generation
                && self.space.gains_as_last_resort(known.segment, segment_bytes, room_bytes)
                    >= self.gain_bytes_min()
        };
        let known = self.reclaim.unreadable.iter().find(would_gain)?;
        Some((known.segment, known.since_ns))
    }
}

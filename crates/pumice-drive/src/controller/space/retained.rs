//! Segments that snapshots need, and the needed bytes of each.
//!
//! Nothing of a snapshot counts as live. Each segment with frames or metadata of a snapshot counts
//! the snapshots that need it; while the count is above zero the segment is not empty, so nothing
//! in it is discarded or overwritten.
//!
//! ```text
//! records of a segment:  | retained | retained and live | live, younger than snapshots | dead |
//! needed                 = retained                     + uncovered live                 | gain
//! ```
//!
//! **Retained** bytes are bytes of frames that snapshots name: the frames live when the oldest of
//! them was taken, and those written since and live when later ones were. The number is an estimate
//! that errs on the high side within a process; after an opening or a deletion it is unknown until
//! it is measured, and the whole segment counts. The live bytes that *cover* retained bytes are
//! counted once. Metadata is retained as a whole: it stays in place unless the capacity shrinks.

use super::{Segment, Space, State};
use crate::base::{SegmentId, SeqNo};
use crate::format::Stream;

/// The retained bytes are not known.
const UNKNOWN: u32 = u32::MAX;

/// The needs of snapshots in a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Retention {
    /// Snapshots that need it.
    pub(super) count: u16,
    /// Bytes of frames that they name; [`UNKNOWN`].
    bytes: u32,
    /// Retained bytes among those that were live when they were appended.
    covered_bytes: u32,
    /// Whether a view or a clone reads from it. If so, it is not emptied.
    pub(super) is_fixed: bool,
}

impl Retention {
    /// No snapshot needs the segment.
    pub(super) const NONE: Self = Self { count: 0, bytes: 0, covered_bytes: 0, is_fixed: false };
}

/// The content of retained segments, in sums that are updated as the segments change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RetainedSums {
    /// Number of retained segments.
    count: u32,
    /// Number of segments that count as a whole.
    whole_count: u32,
    /// Needed bytes of the others.
    needed_bytes: u64,
    /// Live bytes of all retained segments.
    live_bytes: u64,
    /// Live bytes of segments that contain metadata.
    meta_bytes: u64,
}

impl RetainedSums {
    /// Records that a segment became `entry`. Before, it had `live_before` live bytes, and
    /// `filled_before` bytes that were live when they were appended.
    #[inline]
    pub(super) fn changed(&mut self, entry: &Segment, live_before: u32, filled_before: u32) {
        if entry.retained.count > 0 {
            let (live_bytes, filled_bytes) = (live_before, filled_before);
            self.remove(&Segment { live_bytes, filled_bytes, ..*entry });
            self.add(entry);
        }
    }

    fn add(&mut self, entry: &Segment) {
        if entry.retained.count == 0 {
            return;
        }
        self.count += 1;
        self.live_bytes += u64::from(entry.live_bytes);
        if entry.is_retained_whole() {
            self.whole_count += 1;
        } else {
            self.needed_bytes += entry.needed_bytes();
        }
        if entry.stream == Stream::Meta {
            self.meta_bytes += u64::from(entry.live_bytes);
        }
    }

    fn remove(&mut self, entry: &Segment) {
        let less = |sum: u64, by: u64| sum.checked_sub(by).expect("subtracted bytes were added");
        if entry.retained.count == 0 {
            return;
        }
        self.count = self.count.checked_sub(1).expect("a retained segment is counted");
        self.live_bytes = less(self.live_bytes, entry.live_bytes.into());
        if entry.is_retained_whole() {
            let left = self.whole_count.checked_sub(1);
            self.whole_count = left.expect("a segment that counts as a whole is counted");
        } else {
            self.needed_bytes = less(self.needed_bytes, entry.needed_bytes());
        }
        if entry.stream == Stream::Meta {
            self.meta_bytes = less(self.meta_bytes, entry.live_bytes.into());
        }
    }
}

impl Segment {
    /// Returns whether a snapshot needs all of it, as far as known.
    pub(super) fn is_retained_whole(&self) -> bool {
        self.stream == Stream::Meta || self.retained.bytes == UNKNOWN
    }

    /// Returns the bytes of records that the disk or a snapshot needs, as far as known; not for a
    /// segment that is retained as a whole.
    pub(super) fn needed_bytes(&self) -> u64 {
        let uncovered = self.filled_bytes.saturating_sub(self.retained.covered_bytes);
        u64::from(self.retained.bytes) + u64::from(self.live_bytes.min(uncovered))
    }
}

impl Space {
    /// Changes the account of a segment that snapshots need.
    fn amend(&mut self, segment: SegmentId, change: impl FnOnce(&mut Segment)) {
        let Some(entry) = self.segments.get_mut(segment.0 as usize) else { return };
        self.sums.remove(entry);
        change(entry);
        if entry.retained.count == 0 {
            entry.retained = Retention::NONE;
        }
        let is_free = entry.state == State::Free;
        assert!(!is_free || entry.retained.count == 0, "what a snapshot needs is not free");
        self.sums.add(entry);
        self.note_empty(segment);
    }

    /// Protects a segment for one more snapshot, which names nothing in it so far. Returns whether
    /// the segment is in use; a snapshot that needs a free segment is damaged.
    pub(crate) fn retain(&mut self, segment: SegmentId) -> bool {
        if self.is_free(segment) {
            return false;
        }
        self.amend(segment, |entry| {
            let count = entry.retained.count.checked_add(1);
            entry.retained.count = count.expect("a drive has 1,024 snapshots");
        });
        true
    }

    /// Reverts one [`Space::retain`].
    ///
    /// # Panics
    /// If the segment is not retained.
    pub(crate) fn let_go(&mut self, segment: SegmentId) {
        self.amend(segment, |entry| {
            let count = entry.retained.count.checked_sub(1);
            entry.retained.count = count.expect("a segment is let go once");
        });
        self.changes += 1;
    }

    /// Records that a snapshot retains all live bytes in a retained segment.
    pub(crate) fn note_retained_live(&mut self, segment: SegmentId) {
        self.amend(segment, |entry| {
            let uncovered = entry.filled_bytes.saturating_sub(entry.retained.covered_bytes);
            if entry.retained.bytes != UNKNOWN {
                let more = uncovered.min(entry.live_bytes);
                entry.retained.bytes = entry.retained.bytes.saturating_add(more);
            }
            entry.retained.covered_bytes = entry.filled_bytes;
        });
    }

    /// Records that snapshots retain a frame that was copied to a retained segment.
    pub(crate) fn note_retained_copy(&mut self, segment: SegmentId, bytes: u32, is_live: bool) {
        assert!(self.is_retained(segment), "a snapshot that needs a copy retains its segment");
        self.amend(segment, |entry| {
            if entry.retained.bytes != UNKNOWN {
                entry.retained.bytes = entry.retained.bytes.saturating_add(bytes);
            }
            if is_live {
                let covered = entry.retained.covered_bytes.saturating_add(bytes);
                entry.retained.covered_bytes = covered;
            }
        });
    }

    /// Records that the bytes that snapshots retain in a segment are unknown.
    pub(crate) fn forget_retained_bytes(&mut self, segment: SegmentId) {
        self.amend(segment, |entry| entry.retained.bytes = UNKNOWN);
    }

    /// Sets the bytes that snapshots retain in a retained segment for which they were unknown, and
    /// the part of them that is live.
    pub(crate) fn set_retained_bytes(&mut self, segment: SegmentId, bytes: u64, live_bytes: u64) {
        self.amend(segment, |entry| {
            if entry.retained.bytes == UNKNOWN {
                let short = |bytes: u64| u32::try_from(bytes).unwrap_or(UNKNOWN - 1);
                entry.retained.bytes = short(bytes).min(UNKNOWN - 1);
                entry.retained.covered_bytes = short(live_bytes);
            }
        });
        self.changes += 1;
    }

    /// Returns the retained segments of frames whose retained bytes are unknown.
    pub(crate) fn unmeasured(&self) -> impl Iterator<Item = SegmentId> {
        let is_unknown = |entry: &Segment| {
            let is_of_frames = entry.stream != Stream::Meta && entry.state != State::Free;
            is_of_frames && entry.retained.count > 0 && entry.retained.bytes == UNKNOWN
        };
        self.matching(is_unknown)
    }

    /// Records that all data that snapshots need in a segment was copied, when the newest batch was
    /// `sealed`. The segment is not freed before a checkpoint records the places of the copies.
    pub(crate) fn emptied(&mut self, segment: SegmentId, sealed: SeqNo) {
        let entry = self.entry_mut(segment);
        entry.last_seq = entry.last_seq.max(SeqNo(sealed.0 + 1));
    }

    /// Sets whether garbage collection may empty retained segments of frames.
    pub(crate) fn set_retained_fixed(&mut self, is_fixed: bool) {
        self.changes += u64::from(self.is_retained_fixed && !is_fixed);
        self.is_retained_fixed = is_fixed;
    }

    /// Returns whether a retained segment is not emptied for now.
    pub(crate) fn stays_retained(&self, segment: SegmentId) -> bool {
        self.is_retained_fixed || self.is_fixed(segment)
    }

    /// Excludes a retained segment, which a view or a clone reads, from garbage collection.
    pub(crate) fn fix(&mut self, segment: SegmentId) {
        assert!(self.is_retained(segment), "a segment that a snapshot reads is retained");
        self.amend(segment, |entry| entry.retained.is_fixed = true);
    }

    /// Like [`Space::fix`], and permits garbage collection to empty all other retained segments.
    pub(crate) fn fix_only(&mut self, is_fixed: impl Fn(SegmentId) -> bool) {
        for (number, entry) in (0..).zip(&mut self.segments) {
            entry.retained.is_fixed = entry.retained.count > 0 && is_fixed(SegmentId(number));
        }
        self.changes += 1;
    }

    /// Returns whether a view or a clone reads from a segment, which is not emptied.
    pub(crate) fn is_fixed(&self, segment: SegmentId) -> bool {
        self.segments.get(segment.0 as usize).is_some_and(|entry| entry.retained.is_fixed)
    }

    /// Returns whether a snapshot needs a segment.
    #[inline]
    pub(crate) fn is_retained(&self, segment: SegmentId) -> bool {
        self.retained_by(segment) > 0
    }

    /// Returns the number of snapshots that need a segment.
    pub(crate) fn retained_by(&self, segment: SegmentId) -> u16 {
        self.segments.get(segment.0 as usize).map_or(0, |entry| entry.retained.count)
    }

    /// Returns the bytes of a segment that the disk or a snapshot needs.
    pub(crate) fn needed_bytes_of(&self, segment: SegmentId, segment_bytes: u32) -> u32 {
        let entry = self.entry(segment);
        match entry.retained.count {
            0 => entry.live_bytes,
            _ if entry.is_retained_whole() => segment_bytes,
            _ => u32::try_from(entry.needed_bytes()).unwrap_or(u32::MAX).min(segment_bytes),
        }
    }

    /// Returns whether snapshots need any segment.
    #[inline]
    pub(crate) fn has_retained(&self) -> bool {
        self.sums.count > 0
    }

    /// Returns the bytes of segments of `segment_bytes` that snapshots need and that are not live:
    /// the bytes that snapshots retain in addition to the disk.
    #[inline]
    pub(crate) fn retained_dead_bytes(&self, segment_bytes: u32) -> u64 {
        let whole = u64::from(self.sums.whole_count) * u64::from(segment_bytes);
        (whole + self.sums.needed_bytes).saturating_sub(self.sums.live_bytes)
    }

    /// Returns the bytes of frames that snapshots retain and that are not live, as far as known.
    pub(crate) fn retained_dead_frame_bytes(&self) -> u64 {
        let is_known = |entry: &&Segment| entry.retained.count > 0 && !entry.is_retained_whole();
        let dead = |entry: &Segment| entry.needed_bytes().saturating_sub(entry.live_bytes.into());
        self.segments.iter().filter(is_known).map(dead).sum()
    }

    /// Returns the live bytes of metadata in retained segments: writing it again frees nothing at
    /// its old place.
    #[inline]
    pub(crate) fn retained_meta_bytes(&self) -> u64 {
        self.sums.meta_bytes
    }

    /// Returns the live bytes of all metadata.
    pub(crate) fn meta_bytes(&self) -> u64 {
        let meta = self.segments.iter().filter(|entry| entry.stream == Stream::Meta);
        meta.map(|entry| u64::from(entry.live_bytes)).sum()
    }

    /// Counts as live in segments of frames the bytes that are live in another table of this drive,
    /// for segments still in the use known to that table. No frame is live in any other segment.
    pub(crate) fn restore_frames(&mut self, kept: &Space) {
        for number in 0..self.segment_count() {
            let segment = SegmentId(number);
            let entry = self.entry(segment);
            if entry.state == State::Free || entry.stream == Stream::Meta {
                continue;
            }
            let (now, generation) = (entry.live_bytes, entry.generation);
            let then = kept.segments.get(number as usize);
            let then = then.filter(|then| then.state != State::Free);
            let then = then.filter(|then| then.generation == generation);
            let then = then.map_or(0, |then| then.live_bytes);
            self.release(segment, now);
            self.add_live(segment, then);
            self.entry_mut(segment).burden_bytes = 0;
        }
    }

    pub(super) fn sum_up(&self) -> RetainedSums {
        let mut sums = RetainedSums::default();
        self.segments.iter().for_each(|entry| sums.add(entry));
        sums
    }
}

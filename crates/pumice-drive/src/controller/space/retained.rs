//! Segments that snapshots need.
//!
//! Nothing of a snapshot counts as live. Each segment that holds something of one has a count of
//! the snapshots that need it; as long as that is above zero the segment is neither empty nor a
//! victim, so nothing in it is moved, freed, discarded or written again.

use super::{Segment, Space, State};
use crate::base::SegmentId;
use crate::format::Stream;

/// What the retained segments hold, in sums that are kept while the segments change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RetainedSums {
    /// Number of retained segments.
    count: u32,
    /// Their live bytes.
    live_bytes: u64,
    /// Live bytes of those that hold metadata.
    meta_bytes: u64,
}

impl RetainedSums {
    /// Notes that live bytes of a segment became more (`bytes`) or fewer (`died`).
    #[inline]
    pub(super) fn changed(&mut self, entry: &Segment, bytes: u32, died: u32) {
        if entry.retained == 0 {
            return;
        }
        let change = |sum: u64| {
            let left = (sum + u64::from(bytes)).checked_sub(u64::from(died));
            left.expect("the sums hold every retained segment")
        };
        self.live_bytes = change(self.live_bytes);
        if entry.stream == Stream::Meta {
            self.meta_bytes = change(self.meta_bytes);
        }
    }

    fn add(&mut self, live_bytes: u32, stream: Stream) {
        self.count += 1;
        self.live_bytes += u64::from(live_bytes);
        if stream == Stream::Meta {
            self.meta_bytes += u64::from(live_bytes);
        }
    }

    fn remove(&mut self, live_bytes: u32, stream: Stream) {
        let less = |sum: u64, by: u64| sum.checked_sub(by).expect("what is taken off was added");
        self.count = self.count.checked_sub(1).expect("a retained segment is counted");
        self.live_bytes = less(self.live_bytes, live_bytes.into());
        if stream == Stream::Meta {
            self.meta_bytes = less(self.meta_bytes, live_bytes.into());
        }
    }
}

impl Space {
    /// Protects a segment for one snapshot more. Returns whether it is in use; a snapshot that
    /// needs a free one is damaged.
    pub(crate) fn retain(&mut self, segment: SegmentId) -> bool {
        let Some(entry) = self.segments.get_mut(segment.0 as usize) else { return false };
        if entry.state == State::Free {
            return false;
        }
        entry.retained = entry.retained.checked_add(1).expect("a drive has 1,024 snapshots");
        if entry.retained == 1 {
            let (live_bytes, stream) = (entry.live_bytes, entry.stream);
            self.sums.add(live_bytes, stream);
        }
        self.note_empty(segment);
        true
    }

    /// Ends what [`Space::retain`] began.
    ///
    /// # Panics
    /// If the segment is not retained.
    pub(crate) fn let_go(&mut self, segment: SegmentId) {
        let entry = self.entry_mut(segment);
        entry.retained = entry.retained.checked_sub(1).expect("a segment is let go once");
        if entry.retained == 0 {
            let (live_bytes, stream) = (entry.live_bytes, entry.stream);
            self.sums.remove(live_bytes, stream);
        }
        self.note_empty(segment);
        self.changes += 1;
    }

    /// Returns whether a snapshot needs a segment.
    #[inline]
    pub(crate) fn is_retained(&self, segment: SegmentId) -> bool {
        self.retained_by(segment) > 0
    }

    /// Returns how many snapshots need a segment.
    pub(crate) fn retained_by(&self, segment: SegmentId) -> u16 {
        self.segments.get(segment.0 as usize).map_or(0, |entry| entry.retained)
    }

    /// Returns whether snapshots need any segment.
    #[inline]
    pub(crate) fn has_retained(&self) -> bool {
        self.sums.count > 0
    }

    /// Returns the bytes of retained segments of `segment_bytes` that are not live: what snapshots
    /// hold beyond the disk. Segments that are still being filled count whole.
    #[inline]
    pub(crate) fn retained_dead_bytes(&self, segment_bytes: u32) -> u64 {
        let whole = u64::from(self.sums.count) * u64::from(segment_bytes);
        whole.saturating_sub(self.sums.live_bytes)
    }

    /// Returns the live bytes of metadata in retained segments: written again, it gives back
    /// nothing where it was.
    #[inline]
    pub(crate) fn retained_meta_bytes(&self) -> u64 {
        self.sums.meta_bytes
    }

    /// Returns the live bytes of all metadata.
    pub(crate) fn meta_bytes(&self) -> u64 {
        let meta = self.segments.iter().filter(|entry| entry.stream == Stream::Meta);
        meta.map(|entry| u64::from(entry.live_bytes)).sum()
    }

    /// Counts as live in segments of frames what another table of this drive does, for segments
    /// that are still in the use that it knows. In all others no frame is live.
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
        for entry in self.segments.iter().filter(|entry| entry.retained > 0) {
            sums.add(entry.live_bytes, entry.stream);
        }
        sums
    }
}

//! The choice of the segment that garbage collection empties next: the one whose emptying gains the
//! most for its cost.
//!
//! ```text
//! gain = segment - live bytes - burden - remainder into which nothing fits
//! ```
//!
//! **Burden** is the space that moving data requires in addition to its live bytes. It is known for
//! data that this process appended, and falls as that data dies, by an estimated amount: if all of
//! a frame died, its burden is gone; if a part of it died, the burden may remain in full. Between
//! these cases, the burden is assumed to fall with the live bytes; [`Choice::frame_blocks`] selects
//! the best case.
//!
//! **No segment is moved in circles.** A copy counts the space it occupies, so its segment promises
//! no gain until something in it dies, not even in the best case. Each move that gains nothing is
//! thus paid for by deaths since the last one, or by an opening, which forgets burdens: the content
//! of a segment is then moved once, to determine them. Burdens are not stored across openings
//! because a table's entry has 16 spare bits and the best case needs two counts, the bytes filled
//! and their burden. With one shared count, a segment would promise no gain although one exists, so
//! that a write is refused on a drive with space, or promise a gain that does not exist, as after
//! every opening now.

use super::{Segment, Space, State};
use crate::base::units::len_usize;
use crate::base::{SegmentId, SeqNo};
use crate::format::Stream;

/// Number of segments among which a victim is chosen: examining them takes about a millisecond.
const PART_SEGMENTS: usize = 1 << 16;

/// The limits within which garbage collection may choose.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice {
    /// The newest batch.
    pub(crate) now: SeqNo,
    pub(crate) segment_bytes: u32,
    /// Minimum number of bytes that emptying a victim must gain.
    pub(crate) gain_bytes_min: u32,
    /// The moved data must fit into this many bytes.
    pub(crate) room_bytes: u64,
    /// If set, as much of the burden as possible is assumed to be gone, with frames of this many
    /// blocks or fewer.
    pub(crate) frame_blocks: Option<u16>,
}

impl Space {
    /// Returns the sealed segment that garbage collection should empty next: one with the best
    /// [`benefit_over_cost`] among those that gain enough and whose content fits elsewhere. On a
    /// drive with very many segments, it is the best of a part of them, another part each time.
    ///
    /// Age counts by its square root. At full weight, segments are emptied early merely because
    /// they are old: at 85 % in use, 10 % more was written under uniform writes, and 6 % more with
    /// four of five writes to a fifth of the disk. Without age, the latter cost 15 % more.
    pub(crate) fn victim(&self, choice: &Choice) -> Option<SegmentId> {
        self.parts(choice.now).find_map(|first| self.best_victim(choice, first))
    }

    /// Returns the first segment of each part of the drive, in an order that depends on `now`.
    fn parts(&self, now: SeqNo) -> impl Iterator<Item = usize> {
        let parts = self.segments.len().div_ceil(PART_SEGMENTS).max(1) as u64;
        (0..parts).map(move |part| len_usize((now.0 + part) % parts) * PART_SEGMENTS)
    }

    /// Returns the best victim among [`PART_SEGMENTS`] segments.
    fn best_victim(&self, choice: &Choice, first: usize) -> Option<SegmentId> {
        let Choice { now, segment_bytes, gain_bytes_min, room_bytes, frame_blocks } = *choice;
        let mut best: Option<(f64, SegmentId)> = None;
        for (number, segment) in self.numbered().skip(first).take(PART_SEGMENTS) {
            let gain = match frame_blocks {
                None => segment.gain_bytes(segment_bytes),
                Some(blocks) => segment.gain_if_moved(segment_bytes, segment.hoped_bytes(blocks)),
            };
            if self.is_no_victim(segment) || gain < gain_bytes_min.max(1) {
                continue;
            }
            if segment.stream != Stream::Meta && segment.moved_bytes() > room_bytes {
                continue;
            }
            let age = now.0.saturating_sub(segment.age.0).isqrt();
            let score = benefit_over_cost(gain, segment_bytes, age);
            if best.is_none_or(|(highest, _)| score > highest) {
                best = Some((score, number));
            }
        }
        best.map(|(_, segment)| segment)
    }

    /// Returns the bytes gained by emptying a segment although it is stuck; 0 if its content does
    /// not fit into `room_bytes`.
    pub(crate) fn gains_as_last_resort(
        &self,
        segment: SegmentId,
        segment_bytes: u32,
        room_bytes: u64,
    ) -> u32 {
        let segment = Segment { stuck: false, ..*self.entry(segment) };
        let has_room = segment.moved_bytes() <= room_bytes;
        let is_victim = has_room && !self.is_no_victim(&segment);
        if is_victim { segment.gain_bytes(segment_bytes) } else { 0 }
    }

    /// Returns the sealed segment with the most dead bytes, whose emptying frees most, if these are
    /// `gain_bytes_min` or more. On a drive with very many segments it is the best of a part of
    /// them, as for [`Space::victim`].
    pub(crate) fn emptiest(
        &self,
        now: SeqNo,
        segment_bytes: u32,
        gain_bytes_min: u32,
    ) -> Option<SegmentId> {
        self.parts(now).find_map(|first| {
            let part = self.numbered().skip(first).take(PART_SEGMENTS);
            let gains = part.filter(|(_, segment)| !self.is_no_victim(segment));
            let gains = gains.map(|(number, segment)| (segment.gain_bytes(segment_bytes), number));
            let enough = gains.filter(|&(gain, _)| gain >= gain_bytes_min);
            enough.max_by_key(|&(gain, _)| gain).map(|(_, number)| number)
        })
    }

    /// Returns whether a segment has nothing to move, or must not be emptied.
    pub(super) fn is_no_victim(&self, segment: &Segment) -> bool {
        match segment.retained.count {
            0 => segment.live_bytes == 0,
            _ => self.is_retained_fixed || segment.retained.is_fixed,
        }
    }

    /// Returns the bytes that garbage collection can gain in segments where the gain is
    /// `gain_bytes_min` or more.
    pub(crate) fn gainable_bytes(&self, segment_bytes: u32, gain_bytes_min: u32) -> u64 {
        let below = self.segments.iter().take(self.end as usize);
        let is_fixed = |entry: &Segment| {
            entry.retained.is_fixed || self.is_retained_fixed && entry.retained.count > 0
        };
        let below = below.filter(|segment| !is_fixed(segment));
        let gains = below.map(|segment| segment.gain_bytes(segment_bytes));
        gains.filter(|&gain| gain >= gain_bytes_min).map(u64::from).sum()
    }
}

/// Returns the benefit of emptying a segment with `dead` dead bytes, whose youngest data is `age`
/// old, relative to its cost: the gain (dead bytes, which last the longer the older the data is)
/// over the cost (reading all of it, writing the live data).
///
/// Source: Rosenblum and Ousterhout, "The design and implementation of a log-structured file
/// system", 1992, section 3.6.
pub fn benefit_over_cost(dead: u32, segment_bytes: u32, age: u64) -> f64 {
    assert!(dead <= segment_bytes, "no more bytes of a segment are dead than it has");
    let utilization = 1.0 - f64::from(dead) / f64::from(segment_bytes);
    (1.0 - utilization) * (age as f64 + 1.0) / (1.0 + utilization)
}

impl Segment {
    /// Returns the bytes that moving its content occupies elsewhere. The bytes beyond the live
    /// bytes are assumed to shrink with them: garbage collection determines the real number by
    /// moving.
    fn moved_bytes(&self) -> u64 {
        if self.retained.count > 0 {
            return self.needed_bytes() + u64::from(self.burden_bytes);
        }
        let (live, filled) = (u64::from(self.live_bytes), u64::from(self.filled_bytes));
        live + u64::from(self.burden_bytes) * live.min(filled) / filled.max(1)
    }

    /// Returns the minimum number of bytes that moving its content can occupy: each byte that died
    /// was the last live one of its block, and the only live block of a frame of `frame_blocks`.
    ///
    /// Data that snapshots need is copied in whole frames, so its burden remains in full.
    fn hoped_bytes(&self, frame_blocks: u16) -> u64 {
        if self.retained.count > 0 {
            return self.moved_bytes();
        }
        let died = u64::from(self.filled_bytes.saturating_sub(self.live_bytes));
        let gone = died * u64::from(frame_blocks.saturating_sub(1));
        u64::from(self.live_bytes) + u64::from(self.burden_bytes).saturating_sub(gone)
    }

    /// Returns the bytes that emptying it gains.
    fn gain_bytes(&self, segment_bytes: u32) -> u32 {
        self.gain_if_moved(segment_bytes, self.moved_bytes())
    }

    /// Returns the bytes gained by emptying it if its moved content occupies `moved_bytes`. A
    /// remainder into which no frame fits is not a gain: moving leaves an equal one elsewhere.
    fn gain_if_moved(&self, segment_bytes: u32, moved_bytes: u64) -> u32 {
        let is_retained = self.retained.count > 0;
        if self.state != State::Sealed || self.stuck || is_retained && self.is_retained_whole() {
            return 0;
        }
        if self.live_bytes == 0 && !is_retained {
            return segment_bytes;
        }
        // Moving metadata means writing it again with the next checkpoint, and most of it dies
        // before then anyway.
        if self.stream == Stream::Meta && self.live_bytes >= segment_bytes / 4 {
            return 0;
        }
        let kept = moved_bytes + u64::from(self.unused_bytes);
        let gain = u64::from(segment_bytes).saturating_sub(kept);
        u32::try_from(gain).expect("no more is gained than the segment has")
    }
}

//! Warm segments: free segments whose bytes were written before, kept for a host that flushes
//! often.
//!
//! ```text
//! freed --the host flushed often in the last minute, few are free before it--> warm
//!      \--otherwise--> discarded
//! next for the host, never written --it flushes often now, many are free--> zeroed --> warm
//! warm --a minute without many flushes, a full medium, a compaction, a resize, a close-->
//!      discarded
//! ```
//!
//! A flush into bytes that were written before costs the underlying file system only the write. A
//! flush into a hole, or into space that was reserved but never written, also costs a journal
//! commit and takes two to three times as long. The host's stream receives warm segments, the other
//! streams cold ones.
//!
//! Once garbage collection runs, the segments that it frees are enough. Before that, a drive
//! continues in segments that it has not used yet: the next one is filled with zeroes ahead of
//! time. A segment that still contains data of an earlier process needs no zeroes. A bulk load does
//! not flush, and never incurs this cost. Once the next segment is warm, the host's stream leaves a
//! cold segment even if it has space left: each flush there would cost a commit until it is full.
//! This happens once per period of frequent flushes, since more often would waste segments faster
//! than they are zeroed.
//!
//! Nothing depends on which segments are warm: the bytes of a free segment are arbitrary. The list
//! exists only in memory, so after a crash of the process the warm segments stay on the medium
//! until they are used again.
//!
//! `maintenance::warm` does the work.

use super::super::super::log::Tail;
use super::super::{Core, Counters, Wakes};
use super::Reclaim;
use crate::base::{Result, SegmentId};
use crate::format::Stream;

/// Flushes per second at which a host counts as flushing often, if on average each flushes at most
/// this number of bytes of log. Zeroing costs as much as writing, so the saving must justify
/// writing the bytes twice.
const OFTEN_FLUSHES: u64 = 16;
const OFTEN_BYTES: u64 = (1 << 20) / OFTEN_FLUSHES;

/// Minimum number of log bytes per flush for flushes to count: a flush with nothing to write adds
/// none, and each of eight that share a batch adds 512 or more.
const OFTEN_BYTES_MIN: u64 = 512;

/// A segment is zeroed once this part of its size was flushed in addition to the bytes zeroed
/// before the last zeroed segment. The next segment thus becomes warm while the host fills the
/// current one, and for a host with short bursts, zeroes never exceed the log by two segments.
const ZEROED_AFTER: u64 = 8;

/// The host's stream leaves a cold segment for a warm one if more than this part of the cold one is
/// unused.
const LEFT_BEFORE: u32 = 8;

/// Seconds without frequent flushes after which warm segments are discarded.
const QUIET_TICKS: u32 = 60;

/// Maximum number of bytes that warm segments occupy on the medium, although one segment may always
/// be warm: four of the default size.
const WARM_BYTES_MAX: u64 = 128 << 20;

/// The state of warming.
#[derive(Debug, Default)]
pub(crate) struct Warming {
    /// Number of host flushes at the last tick.
    seen_flushes: u64,
    /// Media bytes at the last tick.
    seen_bytes: u64,
    /// Ticks since the last second in which the host flushed often; `None` before the first.
    quiet_ticks: Option<u32>,
    /// Media bytes written in seconds in which the host flushed often.
    flushed_bytes: u64,
    /// Bytes of segments whose zeroing was started: never much more than `flushed_bytes`.
    zeroed_bytes: u64,
    /// Whether the current segment of the host's stream was warm. Unknown after an opening.
    is_tail_warm: bool,
    /// Whether the host has left a segment since it began to flush often.
    has_left: bool,
    /// Segments that were left before they were full and have not been freed since.
    partly_written: Vec<SegmentId>,
    /// Whether writing zeroes has failed, or filled the medium: zeroing is not tried again in this
    /// opening.
    has_failed: bool,
}

/// Work to do on a segment. A free segment is held until [`Core::end_hold`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FreeWork {
    /// Discard the segment, which was warm.
    Discard(SegmentId),
    /// Fill the segment with zeroes.
    Zero(SegmentId),
    /// Allocate the segment's space in the file system: room is low.
    Take(SegmentId),
    /// Allocate the space of the rest of an open segment, which is not held.
    TakeRest(SegmentId),
    /// Discard a kept segment, and use its space for the rest of an open segment.
    GiveUp { kept: SegmentId, open: SegmentId },
}

impl FreeWork {
    /// Returns the segment.
    pub(crate) fn segment(self) -> SegmentId {
        let (Self::Discard(segment)
        | Self::Zero(segment)
        | Self::Take(segment)
        | Self::TakeRest(segment)
        | Self::GiveUp { kept: segment, .. }) = self;
        segment
    }
}

impl Warming {
    fn tick(&mut self, counters: &Counters) {
        let (flushes, bytes) = (counters.flushes.get(), counters.media_bytes.get());
        let new_flushes = flushes.saturating_sub(self.seen_flushes);
        let new_bytes = bytes.saturating_sub(self.seen_bytes);
        (self.seen_flushes, self.seen_bytes) = (flushes, bytes);
        let is_often = new_flushes >= OFTEN_FLUSHES
            && (OFTEN_BYTES_MIN..=OFTEN_BYTES).contains(&(new_bytes / new_flushes));
        if is_often {
            self.flushed_bytes += new_bytes;
        }
        let ticks = self.quiet_ticks.map(|ticks| ticks.saturating_add(1));
        self.quiet_ticks = if is_often { Some(0) } else { ticks };
        self.has_left &= self.is_wanted();
    }

    /// Returns whether the host has flushed often recently.
    fn is_wanted(&self) -> bool {
        self.quiet_ticks.is_some_and(|ticks| ticks < QUIET_TICKS)
    }

    /// Returns whether the host flushes often now, and has flushed enough since the last segment
    /// was zeroed.
    fn is_zeroing_due(&self, segment_bytes: u64) -> bool {
        let is_of_use = self.quiet_ticks == Some(0) && !self.has_failed;
        let before_bytes = self.zeroed_bytes.saturating_sub(segment_bytes);
        is_of_use && self.flushed_bytes >= before_bytes + segment_bytes / ZEROED_AFTER
    }
}

impl Reclaim {
    /// Records that a stream leaves a segment before it is full.
    pub(in super::super) fn note_left(&mut self, segment: SegmentId) {
        self.warming.partly_written.push(segment);
    }

    /// Records that a segment was freed.
    pub(super) fn note_freed(&mut self, segment: SegmentId) {
        self.warming.partly_written.retain(|&left| left != segment);
    }

    /// Records that segments cannot be zeroed in this opening.
    pub(crate) fn zeroing_failed(&mut self) {
        self.warming.has_failed = true;
    }
}

impl Core {
    /// Checks, once a second, whether the host flushes often.
    pub(crate) fn warm_tick(&mut self) {
        self.reclaim.warming.tick(&self.counters);
        self.wake(Wakes::WARMER);
    }

    /// Returns whether segments stay warm or become warm.
    fn keeps_warm(&self) -> bool {
        let is_of_use = self.settings.gives_back.empty && self.settings.prefers_written;
        let is_in_use = !self.must_end() && !self.is_resizing();
        let has_room = !self.log.is_medium_full() && !self.reclaim.has_low_room();
        let is_wanted = self.reclaim.warming.is_wanted() && !self.reclaim.is_being_compacted();
        is_wanted && is_of_use && is_in_use && has_room
    }

    /// Returns whether one more segment may be warm.
    fn may_warm(&self) -> bool {
        let more = self.space.kept_count() as u64 + 1;
        let bytes = more * u64::from(self.superblock.segment_bytes);
        self.keeps_warm() && (more == 1 || bytes <= WARM_BYTES_MAX)
    }

    /// Returns whether a segment that is freed now should stay warm instead of being discarded.
    pub(crate) fn stays_warm(&self, segment: SegmentId) -> bool {
        let is_written = !self.reclaim.warming.partly_written.contains(&segment);
        is_written && self.may_warm() && self.space.is_among_lowest(segment)
    }

    /// Frees an empty segment like [`Core::free_segment`], without its content having been
    /// discarded.
    pub(crate) fn free_warm_segment(&mut self, segment: SegmentId) {
        self.free_segment(segment);
        // A damaged map may name something in it, and a read of that may have begun.
        if self.space.is_free(segment) {
            self.space.set_warm(segment);
        }
        // There may now be one warm segment too many.
        self.wake(Wakes::WARMER);
    }

    /// Returns the next operation on a segment, if any, and holds the segment if it is free.
    pub(crate) fn begin_free_work(&mut self) -> Option<FreeWork> {
        let work = self.next_free_work()?;
        match work {
            FreeWork::TakeRest(_) => return Some(work),
            FreeWork::Zero(_) => {
                self.reclaim.warming.zeroed_bytes += u64::from(self.superblock.segment_bytes);
            }
            FreeWork::Discard(_) | FreeWork::Take(_) | FreeWork::GiveUp { .. } => {}
        }
        self.space.hold_free(work.segment());
        Some(work)
    }

    fn next_free_work(&self) -> Option<FreeWork> {
        if self.reclaim.has_low_room() {
            return self.low_room_work();
        }
        let cools = |segment| !self.keeps_warm() || !self.space.is_among_lowest(segment);
        let cooled = self.space.warm().iter().copied().find(|&segment| cools(segment));
        cooled.map(FreeWork::Discard).or_else(|| self.segment_to_zero().map(FreeWork::Zero))
    }

    /// Returns the next segment of the host's stream, if it should be zeroed first.
    fn segment_to_zero(&self) -> Option<SegmentId> {
        let is_due = self.reclaim.warming.is_zeroing_due(self.superblock.segment_bytes.into());
        let may_zero = is_due && self.may_warm() && self.has_spare();
        let segment = may_zero.then(|| self.space.next_for(Stream::Host)).flatten();
        segment.filter(|&segment| !self.space.is_warm(segment))
    }

    /// Records whether the segment that the host's stream enters is warm.
    pub(in super::super) fn note_host_enters(&mut self, is_warm: bool) {
        self.reclaim.warming.is_tail_warm = is_warm;
        // The next segment may be zeroed.
        self.wake(Wakes::WARMER);
    }

    /// Returns whether the host's stream should continue in the next segment, which is warm,
    /// although its own has space left.
    pub(crate) fn should_leave_cold_segment(&self) -> bool {
        let next = self.space.next_for(Stream::Host);
        let is_next_warm = next.is_some_and(|segment| self.space.is_warm(segment));
        let segment_bytes = self.superblock.segment_bytes;
        let has_room = |tail: Tail| segment_bytes - tail.used > segment_bytes / LEFT_BEFORE;
        !self.reclaim.warming.is_tail_warm
            && !self.reclaim.warming.has_left
            && is_next_warm
            && self.log.tail(Stream::Host).is_some_and(has_room)
            && self.keeps_warm()
            && self.has_spare()
    }

    /// Continues the host's stream in the next segment. Returns whether this is complete; if not,
    /// the caller waits for [`Wakes::PROGRESS`].
    ///
    /// # Errors
    /// The errors of [`Core::leave_segment`].
    pub(crate) fn leave_cold_segment(&mut self) -> Result<bool> {
        let has_left = self.leave_segment(Stream::Host)?;
        self.reclaim.warming.has_left |= has_left;
        Ok(has_left)
    }

    /// Returns whether zeroing of a segment must stop early.
    pub(crate) fn must_stop_zeroing(&self) -> bool {
        !self.keeps_warm() || !self.has_spare()
    }

    /// Returns whether a free segment may be held for long. It may not while garbage collection
    /// runs or soon will, since that leaves warm segments anyway.
    fn has_spare(&self) -> bool {
        self.space.free_count() > self.gc_target_segments()
    }

    /// Releases a held segment so that it can be allocated again.
    pub(crate) fn end_hold(&mut self, segment: SegmentId, is_warm: bool) {
        self.space.end_hold(segment);
        if is_warm {
            self.space.set_warm(segment);
        }
        self.wake(Wakes::PROGRESS);
    }

    /// Returns whether no free segment is held or waits to be discarded.
    pub(crate) fn nothing_cools(&self) -> bool {
        !self.space.has_held_free() && !matches!(self.next_free_work(), Some(FreeWork::Discard(_)))
    }

    /// Returns the bytes of kept segments, including one that is being zeroed or discarded.
    pub(crate) fn warm_bytes(&self) -> u64 {
        self.space.kept_count() as u64 * u64::from(self.superblock.segment_bytes)
    }
}

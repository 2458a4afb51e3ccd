//! The state of garbage collection: whether it should run, which segment it empties next, and the
//! credit that sets the host's pace.
//!
//! **Pace.** While garbage collection runs, data is admitted only as fast as segments are gained,
//! so that writes wait briefly and often instead of long when the last segment is full. The host
//! receives the share of each gain that makes the space left in its segment last until the next
//! segment is free:
//!
//! ```text
//! share = space left in the host's segment / bytes still to gain for the next one
//! ```
//!
//! `maintenance::gc` defines the order of the steps and performs the I/O.

use super::super::super::log::Log;
use super::super::super::log::packing::moved_bytes_max;
use super::super::super::space::{Choice, Space};
use super::super::reserves::TRIM_SEGMENTS;
use super::super::{Core, Purpose, Wakes};
use super::Reclaim;
use crate::base::SegmentId;
use crate::base::units::{len_u32, len_usize};
use crate::format::Stream;

/// Garbage collection runs when the number of free segments is less than the reserve that data must
/// leave plus at most this number. The host fills these segments while the first victims are
/// emptied.
const HEADROOM_SEGMENTS_MAX: u64 = 3;

/// The headroom is at most this part of the space that is not live. A free segment cannot contain
/// dead data, and the more dead data the segments contain, the less must be moved for each segment
/// gained: with 118 segments, 95 % in use, a headroom of three doubles the moved bytes.
const HEADROOM_DIVISOR: u64 = 8;

/// A segment is not a victim if its dead bytes are less than this part of it: the gain is too small
/// to justify the wear of moving the rest.
const GAIN_DIVISOR: u32 = 50;

/// A victim that promises this part of a segment is sure to gain something, whatever its content: a
/// moved record grows by a fifth at most.
const SURE_GAIN_DIVISOR: u32 = 4;

/// Headers of the segment and its batches, and parity, occupy less than this part of a segment.
const HEADERS_DIVISOR: u32 = 128;

/// Number of consecutive victims without a gain after which evacuations come first and use the
/// remaining space. Partly live frames may not become smaller when moved. Their new segment counts
/// the dead blocks that they carry along, so none of them is moved in vain twice.
const FRUITLESS_BEFORE_EVACUATION: u32 = 2;

/// Assumed minimum number of blocks in a frame when an uncertain gain is tried: the blocks of a
/// frame differ in size, so a dead block may account for more bytes than its share. Arbitrary.
const UNCERTAIN_BLOCKS_MIN: u16 = 16;

/// With fewer segments of space that is not live, no segment is set aside to shorten waits.
const SPARE_SEGMENTS_MIN: u64 = 4;

/// The host's share of a gain is at least this part. Once its segment is full, the host waits in
/// any case.
const SHARE_DIVISOR_MAX: u64 = 4;

/// Maximum number of emptied segments that wait for another one before they are freed together.
const EMPTIED_WAITING_MAX: usize = 1;

/// Bytes that the host may write before the first gain, and the most credit that it can accumulate
/// while it does not write: about a batch. With more credit it would fill the remaining free
/// segments at once and then wait for a whole segment.
const CREDIT_BYTES: i64 = 1 << 20;

/// The largest debt, in bytes, that the host must wait out: the size of its largest burst.
const DEBT_BYTES: i64 = -CREDIT_BYTES;

/// The largest debt that the host must wait out for metadata. A checkpoint, which has a reserve and
/// whose content dies with the next one, may write far more at once than the host should wait for.
const META_DEBT_BYTES: i64 = DEBT_BYTES / 4;

/// The state of garbage collection.
#[derive(Debug, Default)]
pub(crate) struct Collector {
    /// Bytes the host may write before more is gained; meaningful while `is_moving`, which lasts
    /// from the first victim until enough segments are free.
    credit: i64,
    is_moving: bool,
    /// Bytes of the victim scanned so far.
    passed_bytes: u64,
    /// Victims whose gain was already credited to the host, and which are not yet freed.
    credited: Vec<SegmentId>,
    /// [`Space::changes`] when no gain was found.
    exhausted_at: Option<u64>,
    /// Consecutive victims without a gain.
    fruitless: u32,
    /// Segments emptied since the opening.
    victims: u64,
    /// Whether garbage collection runs to gain more segments although enough are free.
    is_compacting: bool,
}

impl Collector {
    /// Sets the credit that the host has before the first gain, and whenever nothing can be gained.
    fn begin_credit(&mut self, gains_nothing: bool) {
        let was_moving = std::mem::replace(&mut self.is_moving, true);
        if !was_moving || gains_nothing {
            self.credit = CREDIT_BYTES;
        }
    }

    fn host_is_ahead(&self, log: &Log) -> bool {
        let sealed = log.tail(Stream::Host).map_or(0, |tail| tail.used);
        let filled = log.filled(Stream::Host).unwrap_or(sealed);
        let open = filled.checked_sub(sealed).expect("an open batch follows the sealed batches");
        self.credit <= i64::from(open)
    }

    /// Adds a gain to the credit, or subtracts the cost of moving.
    fn earn(&mut self, bytes: i64) {
        self.credit = self.credit.saturating_add(bytes).min(CREDIT_BYTES);
        assert!(self.credit <= CREDIT_BYTES, "the host saves up a batch at most");
    }

    /// Adds the size of an empty segment, unless emptying it has already earned that credit.
    fn earn_segment(&mut self, segment: SegmentId, segment_bytes: u32) {
        match self.credited.iter().position(|&victim| victim == segment) {
            Some(at) => drop(self.credited.swap_remove(at)),
            None => self.earn(segment_bytes.into()),
        }
    }
}

/// A segment that is being emptied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Victim {
    pub(crate) segment: SegmentId,
    pub(crate) generation: u64,
    /// Bytes of the segment that the disk or a snapshot needed before.
    pub(crate) needed_bytes: u32,
    /// [`super::super::Counters::moved_bytes`] before the segment was emptied.
    moved_bytes: u64,
}

impl Reclaim {
    /// Subtracts bytes written to the medium, other than by garbage collection, from the credit.
    pub(in super::super) fn spend(&mut self, bytes: u64, stream: Stream) {
        let least = if stream == Stream::Meta { META_DEBT_BYTES } else { DEBT_BYTES };
        let credit = &mut self.collector.credit;
        let before = *credit;
        *credit = credit.saturating_sub_unsigned(bytes).max(least.min(*credit));
        assert!(*credit <= before, "what is written earns nothing");
    }

    /// Returns the number of segments emptied since the opening.
    pub(crate) fn victims(&self) -> u64 {
        self.collector.victims
    }

    /// Returns whether nothing could be gained, and no data has died since.
    pub(in super::super) fn is_exhausted(&self, space: &Space) -> bool {
        self.collector.exhausted_at == Some(space.changes())
    }

    /// Sets whether garbage collection runs as if too few segments were free.
    pub(crate) fn set_compacting(&mut self, is_compacting: bool) {
        self.collector.is_compacting = is_compacting;
    }

    /// Lets garbage collection try again although no data has died since it failed.
    pub(crate) fn collect_again(&mut self) {
        self.collector.exhausted_at = None;
    }
}

impl Core {
    /// Returns whether garbage collection has work.
    pub(crate) fn collection_is_wanted(&self) -> bool {
        self.compaction_is_wanted()
            || (self.must_collect() && !self.reclaim.is_exhausted(&self.space))
    }

    /// Returns whether segments are needed, or must be emptied.
    pub(super) fn must_collect(&self) -> bool {
        self.is_short_of_segments() || self.space.has_going()
    }

    /// Returns whether garbage collection could still gain something, and wakes it.
    pub(in super::super) fn can_gain(&mut self) -> bool {
        let is_exhausted = self.reclaim.is_exhausted(&self.space);
        if !is_exhausted {
            self.wake(Wakes::COLLECTOR);
        }
        !is_exhausted || self.checkpoints.is_running()
    }

    /// Returns whether the number of free segments is so low that garbage collection should run.
    pub(crate) fn is_short_of_segments(&self) -> bool {
        let is_short = self.reclaim.collector.is_compacting || self.has_few_segments();
        is_short || self.space.free_count() < self.snapshots.wanted_segments()
    }

    fn has_few_segments(&self) -> bool {
        self.space.free_count() < self.gc_target_segments()
    }

    /// Returns the number of free segments at which garbage collection rests.
    pub(crate) fn gc_target_segments(&self) -> u32 {
        self.reserved_segments(Purpose::Data) + self.headroom_segments()
    }

    fn headroom_segments(&self) -> u32 {
        let spare = self.spare_segments();
        let headroom = (spare / HEADROOM_DIVISOR).clamp(1, HEADROOM_SEGMENTS_MAX);
        // The next checkpoint needs a segment, for which the host should not have to wait.
        let half = u64::from(self.superblock.segment_bytes / 2);
        let is_meta_half_full = self.unfilled(Stream::Meta) < half;
        let more = u32::from(is_meta_half_full && spare >= SPARE_SEGMENTS_MIN);
        len_u32(len_usize(headroom)) + more
    }

    /// Returns the difference between the space for data and the live data, in segments.
    fn spare_segments(&self) -> u64 {
        let segment_bytes = u64::from(self.superblock.segment_bytes);
        let usable = self.space.usable_count();
        let segments = usable.saturating_sub(self.reserved_segments(Purpose::Data));
        let space = u64::from(segments) * segment_bytes;
        let retained = self.space.retained_dead_bytes(self.superblock.segment_bytes);
        space.saturating_sub(self.space.live_bytes() + retained) / segment_bytes
    }

    /// Returns the bytes left in the segment to which a stream is appended.
    pub(super) fn unfilled(&self, stream: Stream) -> u64 {
        let filled = self.log.filled(stream).unwrap_or(self.superblock.segment_bytes);
        u64::from(self.superblock.segment_bytes.saturating_sub(filled))
    }

    /// Returns whether data must wait for garbage collection to gain something first. Bytes in the
    /// open batch already count, so that each write waits for its own share of the moving, and the
    /// write that needs the next batch does not wait for all shares.
    #[inline]
    pub(in super::super) fn must_wait_for_gc(&self) -> bool {
        self.reclaim.collector.is_moving
            && self.reclaim.collector.host_is_ahead(&self.log)
            && self.has_few_segments()
    }

    /// Returns the segments that may be freed once the changes that made their records dead are
    /// durable. Nothing in them is live, no task reads them, and the newest checkpoint covers their
    /// last batch, so that recovery no longer reads a batch in them.
    pub(crate) fn empty_segments(&self) -> Vec<SegmentId> {
        self.space.empty(self.checkpoints.checkpointed())
    }

    /// Returns whether empty segments may be freed later, together with the next victim: the host
    /// could not use them yet, and there is space to move data without them. A flush and a discard
    /// for each segment take as long as emptying it.
    pub(crate) fn can_free_later(&self) -> bool {
        let (free, waiting) = (self.space.free_count(), self.space.empty_count());
        let is_of_no_use = free + len_u32(waiting) <= self.reserved_segments(Purpose::Data);
        let has_room = free > self.reserved_segments(Purpose::Moved) + TRIM_SEGMENTS;
        let has_spare = self.spare_segments() >= SPARE_SEGMENTS_MIN;
        let is_ordinary = !self.space.has_going() && !self.compaction_is_wanted();
        let may_wait = waiting <= EMPTIED_WAITING_MAX && is_of_no_use && has_room;
        may_wait && has_spare && is_ordinary && self.next_victim().is_some()
    }

    /// Returns whether a checkpoint would free segments, and nothing better can be done.
    pub(crate) fn needs_checkpoint_to_free(&self, victim: Option<SegmentId>) -> bool {
        let has_empty = || self.space.has_empty_after(self.checkpoints.checkpointed());
        if victim.is_none() { has_empty() } else { self.needs_checkpoint_now() }
    }

    /// Returns whether a checkpoint would free segments for which something waits.
    pub(crate) fn needs_checkpoint_now(&self) -> bool {
        let is_last_chance = self.space.free_count() <= self.reserved_segments(Purpose::Data) + 1;
        (is_last_chance || self.has_emptied_enough())
            && self.space.has_empty_after(self.checkpoints.checkpointed())
    }

    /// Frees an empty segment, whose content may already be discarded.
    pub(crate) fn free_segment(&mut self, segment: SegmentId) {
        let last_seq = self.space.last_seq(segment);
        assert!(
            last_seq <= self.checkpoints.checkpointed(),
            "segment {segment} is freed once its last batch, {last_seq}, is in a checkpoint"
        );
        assert!(last_seq <= self.log.durable_seq(), "a segment that is freed was written");
        self.reclaim.collector.earn_segment(segment, self.superblock.segment_bytes);
        let free_before = self.space.free_count();
        self.space.free(segment);
        self.reclaim.note_freed(segment);
        assert!(self.space.free_count() >= free_before, "freeing a segment takes none away");
        self.space_was_freed();
        self.wake(Wakes::PROGRESS);
    }

    /// Returns the segment to empty next. Evacuating a segment gains nothing by itself: while there
    /// is too little space for it, space is freed first.
    pub(crate) fn next_victim(&self) -> Option<SegmentId> {
        if !self.must_collect() {
            return self.compaction_victim();
        }
        let segment_bytes = self.superblock.segment_bytes;
        let is_short = self.is_short_of_segments();
        let gain_bytes_min = if is_short { self.gain_bytes_min() } else { u32::MAX };
        let space = &self.space;
        let has_going = space.has_going();
        let may_evacuate = |reserve| has_going && space.free_count() > reserve;
        let with_ease = self.reserved_segments(Purpose::Data) + 1;
        let at_all = self.reserved_segments(Purpose::Moved) + TRIM_SEGMENTS;
        let now = self.log.sealed_seq();
        let room_bytes = self.room_to_move(at_all);
        let choice = Choice { now, segment_bytes, gain_bytes_min, room_bytes, frame_blocks: None };
        let best = || {
            // A large, certain gain also restores the reserve of trims.
            let gain_bytes_min = gain_bytes_min.max(segment_bytes / SURE_GAIN_DIVISOR);
            let room_bytes = self.room_to_move(self.reserved_segments(Purpose::Moved));
            let sure = Choice { gain_bytes_min, room_bytes, ..choice };
            // Before a write is refused, even an uncertain gain is tried.
            let frame_blocks = Some(self.superblock.frame_blocks.max(UNCERTAIN_BLOCKS_MIN));
            let hoped = Choice { frame_blocks, ..choice };
            let sure = || space.victim(&sure);
            space.victim(&choice).or_else(sure).or_else(|| space.victim(&hoped))
        };
        let is_fruitless = self.reclaim.collector.fruitless > FRUITLESS_BEFORE_EVACUATION;
        if may_evacuate(with_ease) || (is_fruitless && may_evacuate(at_all)) {
            return space.evacuee().or_else(best);
        }
        let evacuee = || space.evacuee().filter(|_| may_evacuate(at_all));
        best().or_else(evacuee)
    }

    /// Returns the bytes that garbage collection can move while it leaves `left_segments` free.
    pub(super) fn room_to_move(&self, left_segments: u32) -> u64 {
        let segment_bytes = self.superblock.segment_bytes;
        let filled = self.log.tail(Stream::Moved).filter(|tail| !self.must_leave(tail));
        let filled = filled.and_then(|_| self.log.filled(Stream::Moved)).unwrap_or(segment_bytes);
        let free = self.space.free_count().saturating_sub(left_segments);
        // Headers, and a remainder into which the next frame does not fit.
        let frame_blocks = usize::from(self.superblock.frame_blocks);
        let frame = len_u32(moved_bytes_max(frame_blocks, self.seal_bytes()));
        let unusable = frame + segment_bytes / HEADERS_DIVISOR;
        u64::from(segment_bytes.saturating_sub(filled))
            + u64::from(free) * u64::from(segment_bytes.saturating_sub(unusable))
    }

    /// Returns the minimum number of bytes that a victim must gain.
    pub(super) fn gain_bytes_min(&self) -> u32 {
        self.superblock.segment_bytes / GAIN_DIVISOR
    }

    /// Begins to empty a segment.
    pub(crate) fn begin_victim(&mut self, segment: SegmentId) -> Victim {
        assert!(!self.space.is_free(segment), "a victim is in use");
        self.note_job();
        self.reclaim.collector.victims += 1;
        self.reclaim.collector.passed_bytes = 0;
        // An evacuated segment earns nothing, and the host need not wait for it.
        let is_evacuated = self.space.must_go(segment);
        self.reclaim.collector.begin_credit(is_evacuated);
        self.victim(segment)
    }

    /// Returns the state of a segment before it is emptied.
    pub(crate) fn victim(&self, segment: SegmentId) -> Victim {
        Victim {
            segment,
            generation: self.space.generation(segment),
            needed_bytes: self.space.needed_bytes_of(segment, self.superblock.segment_bytes),
            moved_bytes: self.counters.moved_bytes.get(),
        }
    }

    /// Adds the gain from a part of a victim: the bytes passed in it, less the bytes moved.
    pub(crate) fn earn(&mut self, passed_bytes: u32, moved_bytes: u64) {
        assert!(
            passed_bytes <= self.superblock.segment_bytes,
            "no more of a victim is passed than it has"
        );
        self.reclaim.collector.passed_bytes += u64::from(passed_bytes);
        match u64::from(passed_bytes).checked_sub(moved_bytes) {
            Some(gained) => self.reclaim.collector.earn(self.host_share(gained).cast_signed()),
            None => self
                .reclaim
                .collector
                .earn(i64::from(passed_bytes).saturating_sub_unsigned(moved_bytes)),
        }
        self.wake(Wakes::PROGRESS);
    }

    /// Returns the bytes that the host may write in return for `gained` bytes.
    fn host_share(&self, gained: u64) -> u64 {
        let segment_bytes = u64::from(self.superblock.segment_bytes);
        let segments = |count: u64| count * segment_bytes;
        // On average, a segment is half full when the next one becomes free.
        let wanted = segments(self.gc_target_segments().into()) + segment_bytes / 2;
        let emptied = segments(self.reclaim.collector.credited.len() as u64)
            + self.reclaim.collector.passed_bytes;
        let free = segments(self.space.free_count().into());
        let missing = wanted.saturating_sub(free + emptied + self.unfilled(Stream::Moved)).max(1);
        let share = gained.min(gained * self.unfilled(Stream::Host) / missing);
        let share = share.max(gained / SHARE_DIVISOR_MAX);
        assert!(share <= gained, "the host gets no more than is gained");
        share
    }

    /// Records that everything that can be moved out of a segment was moved and credited.
    pub(crate) fn victim_scanned(&mut self, segment: SegmentId) {
        assert!(!self.space.is_free(segment), "a victim stays in use until it is freed");
        let collector = &mut self.reclaim.collector;
        collector.passed_bytes = 0;
        if self.space.live_bytes_of(segment) == 0 && !self.space.is_retained(segment) {
            collector.credited.push(segment);
        }
    }

    /// Records that a segment cannot be emptied and is no longer a victim.
    pub(crate) fn set_stuck(&mut self, segment: SegmentId) {
        self.space.set_stuck(segment);
    }

    /// Records that `victim` was emptied. Returns whether more may be gained. Each segment is
    /// emptied in vain at most once until something in it dies, so if the number of fruitless
    /// victims exceeds the number of segments, their counts are wrong, and garbage collection
    /// rests.
    pub(crate) fn end_victim(&mut self, victim: &Victim) -> bool {
        let moved_bytes = self.counters.moved_bytes.get().checked_sub(victim.moved_bytes);
        let moved_bytes = moved_bytes.expect("counters never decrease");
        let segment_bytes = self.superblock.segment_bytes;
        tracing::debug!(
            segment = %victim.segment,
            needed_bytes = victim.needed_bytes,
            moved_bytes,
            "garbage collection emptied a segment"
        );
        let has_gained = u64::from(segment_bytes) > moved_bytes + u64::from(segment_bytes / 100);
        let is_evacuated = self.space.must_go(victim.segment);
        if has_gained {
            self.reclaim.collector.fruitless = 0;
        } else {
            let more = u32::from(!is_evacuated);
            self.reclaim.collector.fruitless =
                self.reclaim.collector.fruitless.saturating_add(more);
        }
        self.job_gained(victim.needed_bytes, moved_bytes);
        self.reclaim.collector.fruitless <= self.space.segment_count()
    }

    /// Checks, once a second, whether to retry a segment that could not be emptied. While nothing
    /// else can be gained, seconds count as checkpoints, since there may be none.
    pub(crate) fn stuck_tick(&mut self) {
        if self.must_collect() && self.reclaim.is_exhausted(&self.space) {
            self.space.let_stuck_rest();
            self.wake(Wakes::COLLECTOR);
        }
    }

    /// Ends a step of garbage collection; with `gains_nothing`, garbage collection rests until some
    /// data dies. Between victims the pace of the host stays the same: without it, the host would
    /// fill a whole segment and then wait for all of the next one.
    pub(crate) fn end_collection_step(&mut self, gains_nothing: bool) {
        if gains_nothing {
            if self.must_collect() {
                self.reclaim.collector.exhausted_at = Some(self.space.changes());
                self.reclaim.collector.fruitless = 0;
                self.snapshots.give_up_segments();
            }
            self.rest_compaction();
        }
        self.reclaim.collector.is_moving &= self.collection_is_wanted();
        self.wake(Wakes::PROGRESS);
    }
}

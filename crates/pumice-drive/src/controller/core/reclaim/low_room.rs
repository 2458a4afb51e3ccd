//! Low room: the file system that contains a sparse drive has little space left, which other files
//! may take.
//!
//! ```text
//! free segments  = kept ones + cold ones with space          used in all decisions
//! allocated      = kept ones                                 never one without space
//! kept           = the reserves and [`AHEAD`] more, allocated in the file system in advance
//! ```
//!
//! A *kept* segment is a free segment whose space is allocated. It is also *warm*, like the
//! segments kept for flushes. While room is not low, none of this applies, and a segment allocates
//! its space as it is written. Once room is low, free segments without space do not count, so that
//! all measures against a shortage of free segments begin in time: garbage collection, checkpoints,
//! waiting, the refusal of writes. Admitted changes have their space, and so do trims and the work
//! that returns space.

use super::super::super::log::Tail;
use super::super::{Core, Purpose, Wakes};
use super::Reclaim;
use super::warm::FreeWork;
use crate::base::SegmentId;
use crate::format::Stream;

/// Segments kept in addition to the reserves: one for each stream to continue in.
const AHEAD: u32 = 3;
const _: () = assert!(AHEAD as usize == Stream::COUNT, "one for each stream");

/// Room is low when less than this is left in addition to the space that the drive keeps: other
/// files may fill it before the next check, a second later.
const SUDDEN_BYTES: u64 = 1 << 30;

/// Number of free segments to try when room becomes low, even if the file system has space for
/// none, since they may still have their space; and the number per second after that.
const TRIES: u32 = 256;
const TRIES_PER_TICK: u32 = 4;

/// The state of the room.
#[derive(Debug, Default)]
pub(crate) struct LowRoom {
    /// Bytes that are left; `None` if they cannot run out.
    left_bytes: Option<u64>,
    is_low: bool,
    /// Open segments to check, which may have bytes without allocated space.
    open: Vec<SegmentId>,
    /// Open segments whose bytes found no space left. A kept segment is given up for each.
    short: Vec<SegmentId>,
    /// Open segments for which a kept segment was given up. This happens only once for each,
    /// since other files may have taken the space.
    paid: Vec<SegmentId>,
    /// Free segments below this one are not tried until the next check.
    from: u32,
    /// Number of tries that may still fail.
    tries: u32,
}

impl LowRoom {
    fn tried(&mut self, work: FreeWork, is_taken: bool) {
        match work {
            FreeWork::TakeRest(segment) => {
                self.open.retain(|&open| open != segment);
                let is_known = self.short.contains(&segment) || self.paid.contains(&segment);
                if !is_taken && !is_known {
                    self.short.push(segment);
                }
            }
            FreeWork::GiveUp { open, .. } => {
                self.short.retain(|&short| short != open);
                assert!(!self.paid.contains(&open), "one segment is given up for an open one");
                self.paid.push(open);
            }
            FreeWork::Take(segment) => self.from = segment.0 + 1,
            _ => {}
        }
        if !is_taken {
            self.tries = self.tries.saturating_sub(1);
        }
    }
}

impl Reclaim {
    /// Returns whether room is low.
    pub(crate) fn has_low_room(&self) -> bool {
        self.room.is_low
    }

    /// Returns the bytes that are left, if room is low.
    pub(crate) fn low_room(&self) -> Option<u64> {
        self.room.left_bytes.filter(|_| self.room.is_low)
    }

    /// Returns the measure, other than trims, that makes a full drive accept writes again.
    pub(crate) fn makes_room(&self) -> &'static str {
        if self.room.is_low {
            "free space on the file system that holds it"
        } else {
            "extend the capacity"
        }
    }
}

impl Core {
    /// Records the space that is left for the medium at this moment; `None` if the space cannot run
    /// out.
    pub(crate) fn note_room(&mut self, left_bytes: Option<u64>) {
        self.reclaim.room.left_bytes = left_bytes;
        self.look_at_room();
    }

    /// Checks, once a second, whether room is low, and permits more failed tries.
    pub(crate) fn room_tick(&mut self, left_bytes: Option<u64>) {
        self.reclaim.room.from = 0;
        self.reclaim.room.tries = self.reclaim.room.tries.max(TRIES_PER_TICK);
        self.note_room(left_bytes);
        if self.reclaim.room.is_low {
            self.reclaim.room.open = self.open_segments();
            self.wake(Wakes::WARMER);
        }
    }

    /// Records that a segment is opened. It allocates its space as it is written unless it was
    /// kept.
    pub(in super::super) fn takes_room(&mut self, segment: SegmentId) {
        if self.reclaim.room.is_low {
            self.wake(Wakes::WARMER);
        } else if let Some(left) = self.reclaim.room.left_bytes
            && !self.space.is_warm(segment)
        {
            self.reclaim.room.left_bytes =
                Some(left.saturating_sub(self.superblock.segment_bytes.into()));
            self.look_at_room();
        }
    }

    fn look_at_room(&mut self) {
        let segment_bytes = u64::from(self.superblock.segment_bytes);
        let kept_bytes = u64::from(self.wanted_kept() + AHEAD) * segment_bytes;
        let left = self.reclaim.room.left_bytes;
        let is_low = left.is_some_and(|left| left < SUDDEN_BYTES + kept_bytes);
        let was_low = std::mem::replace(&mut self.reclaim.room.is_low, is_low);
        if is_low && !was_low {
            self.reclaim.room.tries = TRIES;
            self.reclaim.room.open = self.open_segments();
            self.reclaim.room.paid.clear();
        }
        let for_cold = left.map(|left| u32::try_from(left / segment_bytes).unwrap_or(u32::MAX));
        self.space.set_room(for_cold.filter(|_| is_low));
        if is_low != was_low {
            tracing::info!(
                drive = %self.superblock.uuid,
                left_bytes = left,
                "room on the file system that holds the drive is {}",
                if is_low { "low: it limits the drive now" } else { "no longer low" }
            );
            self.wake(Wakes::WARMER);
        }
        if is_low || was_low {
            self.space_was_freed();
            self.wake(Wakes::PROGRESS);
            if self.collection_is_wanted() {
                self.wake(Wakes::COLLECTOR);
            }
        }
    }

    fn open_segments(&self) -> Vec<SegmentId> {
        let tails = Stream::ALL.into_iter().filter_map(|stream| self.log.tail(stream));
        tails.map(|Tail { segment, .. }| segment).collect()
    }

    /// Returns the number of free segments to keep.
    fn wanted_kept(&self) -> u32 {
        self.reserved_segments(Purpose::Data) + AHEAD
    }

    /// Returns whether the space of a segment that is freed now is kept.
    pub(crate) fn keeps_space(&self, segment: SegmentId) -> bool {
        let highest = self.space.warm().iter().max();
        let is_wanted = || {
            // Without discards its space stays allocated in any case.
            !self.settings.gives_back.empty
                || self.space.kept_count() < self.wanted_kept() as usize
                || highest.is_some_and(|&highest| segment < highest)
        };
        let may_be = segment.0 < self.space.end() && !self.space.is_bad(segment);
        self.reclaim.room.is_low && may_be && is_wanted()
    }

    /// Returns the next operation on a segment while room is low.
    pub(super) fn low_room_work(&self) -> Option<FreeWork> {
        let end = self.space.end();
        let warm = self.space.warm();
        let is_too_many =
            self.settings.gives_back.empty && warm.len() > self.wanted_kept() as usize;
        let highest = warm.iter().copied().max();
        if let Some(segment) = highest.filter(|segment| is_too_many || segment.0 >= end) {
            return Some(FreeWork::Discard(segment));
        }
        if self.must_end() || self.reclaim.room.tries == 0 {
            return None;
        }
        if let Some(&segment) = self.reclaim.room.open.last() {
            return Some(FreeWork::TakeRest(segment));
        }
        if let (Some(kept), Some(&open)) = (highest, self.reclaim.room.short.last()) {
            return Some(FreeWork::GiveUp { kept, open });
        }
        if self.log.is_medium_full() || self.space.kept_count() >= self.wanted_kept() as usize {
            return None;
        }
        let mut free = self.space.all_free().filter(|&segment| !self.space.is_kept(segment));
        free.find(|segment| segment.0 >= self.reclaim.room.from).map(FreeWork::Take)
    }

    /// Records whether the space of a segment could be allocated.
    pub(crate) fn space_was_taken(&mut self, work: FreeWork, is_taken: bool) {
        self.reclaim.room.tried(work, is_taken);
        if self.reclaim.room.tries == 0 {
            // This overrides the figure of the file system.
            self.note_room(Some(0));
        }
    }
}

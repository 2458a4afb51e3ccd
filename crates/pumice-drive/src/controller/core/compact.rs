//! Giving space back to the medium, as far as it is state: when empty segments are freed although
//! none are needed, and when segments are emptied although enough are free.
//!
//! ```text
//! tick, once a second:  the host was quiet, or a while has passed -> empty segments are freed
//!                       quiet, and much more occupied than live   -> an errand of the collector
//! errand: emptiest segment -> ... -> little more occupied than live, or nothing gained -> rest
//! ```
//!
//! **Occupied** are the sealed segments, whole, and what is filled of the open ones. The *excess*
//! is what of that is not live.
//!
//! **It ends.** A segment is emptied only if that frees a fair part of it, and an errand ends when
//! several in a row freed less than they promised, or as many were emptied as were in use when it
//! began: a host that never rests would always leave another. The next one begins only once the
//! excess has grown, or the live data has shrunk, by a segment, which takes changes by the host: a
//! drive that is not in use comes to rest, whatever its content.
//!
//! `maintenance::gc` does the work; `maintenance::compact` asks for it.

use super::{Core, Purpose, Wakes};
use crate::base::{Error, ErrorKind, Result, SegmentId};
use crate::format::Stream;

/// Ticks without a change by the host after which it counts as quiet.
const QUIET_TICKS: u32 = 3;

/// Ticks without a request by the host after which buffers are released.
const SHED_TICKS: u32 = 10;

/// Ticks after which empty segments are freed beside a host that is not quiet: twice in a minute,
/// so that a trim shows within one.
const BUSY_TICKS: u32 = 25;

/// Dead bytes that are not worth an errand, nor a stream's move to another segment.
const SLACK_BYTES: u64 = 4 << 20;
const DEAD_TAIL_BYTES: u32 = 1 << 20;

/// The least part of a segment that emptying it must free.
const GAIN_DIVISOR: u32 = 50;

/// Segments in a row that freed less than half of what they promised, after which an errand ends.
const FRUITLESS_MAX: u32 = 3;

/// Emptied segments that wait for a checkpoint during an errand, at most. Their content takes as
/// much of the medium a second time until then, and the medium may have little room.
const WAITING_SEGMENTS_MAX: usize = 2;

/// What of the options decides about it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GivesBack {
    /// Empty segments are freed soon, since the medium makes use of that.
    pub(crate) empty: bool,
    /// While the host is quiet, segments are emptied down to this excess, in per cent of what is
    /// live.
    pub(crate) idle_percent: Option<u32>,
}

/// A task for garbage collection beside its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Errand {
    /// The excess at which it ends, in per cent of what is live.
    percent: u32,
    /// It ends when the host changes something; [`Core::host_changes`] when it began.
    until_changes: Option<u64>,
    /// Segments in a row that gained too little.
    fruitless: u32,
    /// Segments that may still be emptied.
    left: u32,
}

/// The state of giving space back.
#[derive(Debug, Default)]
pub(crate) struct Compaction {
    /// [`Core::host_changes`] at the last tick.
    seen_changes: u64,
    /// Ticks since the host last changed something.
    quiet_ticks: u32,
    /// Host reads at the last tick, and ticks since the host last asked for anything.
    seen_reads: u64,
    idle_ticks: u32,
    /// Ticks since empty segments were looked for.
    busy_ticks: u32,
    /// [`super::Space::changes`] when empty segments were last looked for.
    looked_at: Option<u64>,
    /// Empty segments are to be freed, with a checkpoint if that takes one.
    frees: bool,
    errand: Option<Errand>,
    /// [`Core::begin_compaction`] was called, and [`Core::end_compaction`] was not yet.
    is_asked: bool,
    /// The segment that is being emptied was chosen for an errand.
    is_emptying: bool,
    /// What was occupied when the last errand ended.
    rested_at: Option<Occupied>,
}

/// How much a drive occupies on its medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Occupied {
    /// Bytes of sealed segments, and filled bytes of open ones.
    pub(crate) bytes: u64,
    /// Live bytes among them.
    pub(crate) live_bytes: u64,
}

impl Occupied {
    fn excess(self) -> u64 {
        self.bytes.saturating_sub(self.live_bytes)
    }

    /// Returns whether the excess is within `percent` of what is live.
    pub(crate) fn is_within(self, percent: u32) -> bool {
        self.excess() <= self.live_bytes / 100 * u64::from(percent) + SLACK_BYTES
    }
}

impl Core {
    /// Counts what the host changed since the opening.
    fn host_changes(&self) -> u64 {
        self.counters.writes.get() + self.counters.trims.get()
    }

    /// Returns how much the drive occupies on its medium.
    pub(crate) fn occupied(&self) -> Occupied {
        let segment_bytes = u64::from(self.superblock.segment_bytes);
        let used =
            u64::from(self.space.segment_count().saturating_sub(self.space.all_free_count()));
        let tails = Stream::ALL.into_iter().filter_map(|stream| self.log.filled(stream));
        let (open, filled) =
            tails.fold((0, 0), |(open, filled), bytes| (open + 1, filled + u64::from(bytes)));
        let bytes = used.saturating_sub(open) * segment_bytes + filled;
        let retained = self.space.retained_dead_bytes(self.superblock.segment_bytes);
        Occupied { bytes, live_bytes: self.space.live_bytes() + retained }
    }

    /// Looks, once a second, whether there is something to give back. Returns whether the drive
    /// has been out of use for so long that buffers should be released.
    pub(crate) fn compaction_tick(&mut self) -> bool {
        let (changes, reads) = (self.host_changes(), self.counters.reads.get());
        let compaction = &mut self.compaction;
        compaction.busy_ticks += 1;
        let is_quiet = compaction.seen_changes == changes;
        let is_idle = is_quiet && compaction.seen_reads == reads;
        let ticks = |ticks: u32, continues| if continues { ticks.saturating_add(1) } else { 0 };
        compaction.quiet_ticks = ticks(compaction.quiet_ticks, is_quiet);
        compaction.idle_ticks = ticks(compaction.idle_ticks, is_idle);
        (compaction.seen_changes, compaction.seen_reads) = (changes, reads);
        compaction.errand.take_if(|errand| errand.until_changes.is_some_and(|at| at != changes));
        if !self.is_resizing && !self.must_end() {
            self.look_for_empty_segments();
            self.look_for_excess(changes);
        }
        if self.compaction_is_wanted() {
            self.wake(Wakes::COLLECTOR);
            return false;
        }
        self.compaction.idle_ticks >= SHED_TICKS
    }

    fn look_for_empty_segments(&mut self) {
        let is_quiet = self.compaction.quiet_ticks >= QUIET_TICKS;
        let is_time = is_quiet || self.compaction.busy_ticks >= BUSY_TICKS;
        let changes = Some(self.space.changes());
        if !self.settings.gives_back.empty || !is_time || self.compaction.looked_at == changes {
            return;
        }
        self.compaction.busy_ticks = 0;
        let empty = self.space.empty_count() as u64 * u64::from(self.superblock.segment_bytes);
        // Beside a busy host, a checkpoint must free at least what it writes.
        let is_worth_it = is_quiet || empty >= self.map.dirty_bytes() as u64;
        if is_worth_it {
            self.compaction.looked_at = changes;
        }
        self.compaction.frees |=
            is_worth_it && (empty > 0 || (is_quiet && self.stale_stream().is_some()));
    }

    fn look_for_excess(&mut self, changes: u64) {
        let Some(percent) = self.settings.gives_back.idle_percent else { return };
        let occupied = self.occupied();
        let segment_bytes = u64::from(self.superblock.segment_bytes);
        let has_changed = self.compaction.rested_at.is_none_or(|at| {
            let has_grown = occupied.excess() >= at.excess().saturating_add(segment_bytes);
            has_grown || occupied.live_bytes.saturating_add(segment_bytes) <= at.live_bytes
        });
        let is_wanted = self.compaction.quiet_ticks >= QUIET_TICKS
            && self.compaction.errand.is_none()
            && !occupied.is_within(percent)
            && has_changed;
        if is_wanted {
            tracing::debug!(
                drive = %self.superblock.uuid,
                occupied_bytes = occupied.bytes,
                live_bytes = occupied.live_bytes,
                "the host is quiet: giving back what is dead"
            );
            self.compaction.errand = Some(self.new_errand(percent, Some(changes)));
        }
    }

    fn new_errand(&self, percent: u32, until_changes: Option<u64>) -> Errand {
        let left = self.space.segment_count().saturating_sub(self.space.all_free_count());
        Errand { percent, until_changes, fruitless: 0, left }
    }

    /// Begins to empty segments until the excess is within `percent` of what is live, whatever the
    /// host does.
    ///
    /// # Errors
    /// `Busy` if that, or a resize, is under way.
    pub(crate) fn begin_compaction(&mut self, percent: u32) -> Result<()> {
        if self.is_resizing || self.is_rekeying || self.compaction.is_asked {
            let what = "the drive is being resized, compacted or given another key: wait until \
                        that has ended";
            return Err(Error::new(ErrorKind::Busy, what));
        }
        self.compaction.is_asked = true;
        self.compaction.frees = true;
        self.compaction.errand = Some(self.new_errand(percent, None));
        self.wake(Wakes::COLLECTOR);
        self.wake(Wakes::WARMER);
        Ok(())
    }

    /// Ends what [`Core::begin_compaction`] began, done or not.
    pub(crate) fn end_compaction(&mut self) {
        self.compaction.is_asked = false;
        self.compaction.errand.take_if(|errand| errand.until_changes.is_none());
    }

    /// Returns whether what [`Core::begin_compaction`] began has not been ended.
    pub(crate) fn is_being_compacted(&self) -> bool {
        self.compaction.is_asked
    }

    /// Returns whether segments are still emptied for it, or warm.
    pub(crate) fn compacts_more(&self) -> bool {
        let is_emptying = |errand: Errand| errand.until_changes.is_none();
        self.compaction.errand.is_some_and(is_emptying) || !self.nothing_cools()
    }

    /// Has garbage collection give back what has become free, soon.
    pub(super) fn give_back_once(&mut self) {
        self.compaction.frees = true;
    }

    /// Returns whether garbage collection has something to give back.
    pub(crate) fn compaction_is_wanted(&self) -> bool {
        self.compaction.frees || self.errand().is_some()
    }

    /// Returns the errand, unless the host has ended it.
    fn errand(&self) -> Option<Errand> {
        let changes = self.host_changes();
        self.compaction.errand.filter(|errand| errand.until_changes.is_none_or(|at| at == changes))
    }

    /// Returns whether a segment that is being emptied is to be left as it is: the host is back and
    /// nothing else asks for its emptying, or a snapshot needs it now.
    pub(crate) fn must_stop_collecting(&self, victim: SegmentId) -> bool {
        self.space.is_retained(victim) || self.errand_is_over()
    }

    /// Returns whether the host is back, and nothing else asks for the emptying of a segment.
    pub(crate) fn errand_is_over(&self) -> bool {
        let is_over = || self.errand().is_none() && !self.must_collect();
        self.compaction.is_emptying && is_over()
    }

    /// Returns whether garbage collection takes its time, for nothing waits for it.
    pub(crate) fn collects_gently(&self) -> bool {
        self.errand().is_some_and(|errand| errand.until_changes.is_some()) && !self.must_collect()
    }

    /// Notes why a segment begins to be emptied.
    pub(super) fn note_errand(&mut self) {
        self.compaction.is_emptying = self.errand().is_some() && !self.must_collect();
    }

    /// Returns the dead bytes that a segment must have to be emptied on an errand.
    fn errand_gain_min(&self, errand: Errand) -> u32 {
        let segment_bytes = self.superblock.segment_bytes;
        // If the excess is too large, the segment with the most dead bytes has more than this.
        let part = u64::from(segment_bytes) * u64::from(errand.percent);
        let half_share = part / (100 + u64::from(errand.percent)) / 2;
        u32::try_from(half_share).unwrap_or(segment_bytes).max(segment_bytes / GAIN_DIVISOR)
    }

    /// Returns whether a segment more may be taken for moving what is live.
    fn has_room_to_compact(&self) -> bool {
        let has_space = self.log.check_medium_full().is_ok();
        has_space && self.space.free_count() > self.reserved_segments(Purpose::Data) + 1
    }

    /// Returns the segment to empty next on an errand.
    pub(super) fn compaction_victim(&self) -> Option<SegmentId> {
        let errand = self.errand()?;
        if self.occupied().is_within(errand.percent) || !self.has_room_to_compact() {
            return None;
        }
        let now = self.log.sealed_seq();
        self.space.emptiest(now, self.superblock.segment_bytes, self.errand_gain_min(errand))
    }

    /// Returns whether a checkpoint should free what was emptied on an errand.
    pub(super) fn has_emptied_enough(&self) -> bool {
        self.errand().is_some() && self.space.empty_count() >= WAITING_SEGMENTS_MAX
    }

    /// Returns a stream whose open segment holds so little that is live that the stream should
    /// continue in another, if space is to be given back.
    pub(crate) fn stale_stream(&self) -> Option<Stream> {
        if !self.has_room_to_compact() {
            return None;
        }
        let errand = self.errand().filter(|errand| !self.occupied().is_within(errand.percent));
        let gain_min = errand.map_or(u32::MAX, |errand| self.errand_gain_min(errand));
        Stream::ALL.into_iter().find(|&stream| {
            let (Some(tail), Some(filled)) = (self.log.tail(stream), self.log.filled(stream))
            else {
                return false;
            };
            if self.space.is_retained(tail.segment) {
                return false;
            }
            let live_bytes = self.space.live_bytes_of(tail.segment);
            let least = if live_bytes == 0 { 0 } else { gain_min };
            filled.saturating_sub(live_bytes) >= least.max(DEAD_TAIL_BYTES)
        })
    }

    /// Notes that a segment was emptied for `moved_bytes`, which may end an errand. Segments that
    /// are needed are a matter of their own.
    pub(super) fn errand_gained(&mut self, needed_bytes: u32, moved_bytes: u64) {
        let Some(errand) = &mut self.compaction.errand else { return };
        let segment_bytes = u64::from(self.superblock.segment_bytes);
        let promised = segment_bytes.saturating_sub(u64::from(needed_bytes));
        let gained = segment_bytes.saturating_sub(moved_bytes);
        errand.fruitless = if gained >= promised / 2 { 0 } else { errand.fruitless + 1 };
        errand.left = errand.left.saturating_sub(1);
        if errand.fruitless >= FRUITLESS_MAX || errand.left == 0 {
            self.rest_compaction();
        }
    }

    /// Notes that nothing more can be given back now: the next errand waits until more is dead.
    pub(super) fn rest_compaction(&mut self) {
        self.compaction.frees = false;
        if self.compaction.errand.take().is_some() {
            self.compaction.rested_at = Some(self.occupied());
        }
    }
}

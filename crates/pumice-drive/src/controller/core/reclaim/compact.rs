//! The state of returning space to the medium: when empty segments are freed although none are
//! needed, and when segments are emptied although enough are free.
//!
//! ```text
//! tick, once a second:  the host was quiet, or a while has passed -> empty segments are freed
//!                       quiet, and much more occupied than live   -> a job for the collector
//! job: emptiest segment -> ... -> little more occupied than live, or nothing gained -> rest
//! ```
//!
//! **Occupied** bytes are all bytes of sealed segments and the filled bytes of open ones. The
//! *excess* is the part of them that is not live.
//!
//! **Termination.** A segment is emptied only if that frees a fair part of it. A job ends when
//! several consecutive segments freed less than they promised, or when the number of emptied
//! segments equals the number in use at its start, since an active host would always leave another.
//! The next job begins only once the excess has grown, or the live data has shrunk, by a segment,
//! which requires changes by the host. A drive that is not in use therefore comes to rest, whatever
//! its content.
//!
//! `maintenance::gc` does the work; `maintenance::compact` requests it.

use super::super::super::space::Space;
use super::super::{Core, Counters, Purpose, Wakes};
use super::Reclaim;
use crate::base::{Error, ErrorKind, Result, SegmentId};
use crate::format::Stream;

/// Ticks without a change by the host after which the host counts as quiet.
const QUIET_TICKS: u32 = 3;

/// Ticks without a request by the host after which buffers are released.
const SHED_TICKS: u32 = 10;

/// Ticks after which empty segments are freed even if the host is not quiet: twice a minute, so
/// that the effect of a trim is visible within one.
const BUSY_TICKS: u32 = 25;

/// Dead bytes that justify neither a job nor moving a stream to another segment.
const SLACK_BYTES: u64 = 4 << 20;
const DEAD_TAIL_BYTES: u32 = 1 << 20;

/// Minimum part of a segment that emptying it must free.
const GAIN_DIVISOR: u32 = 50;

/// Number of consecutive segments that freed less than half of the promised bytes, after which a
/// job ends.
const FRUITLESS_MAX: u32 = 3;

/// Maximum number of emptied segments that wait for a checkpoint during a job. Until then the
/// medium, which may have little space, contains their live data twice.
const WAITING_SEGMENTS_MAX: usize = 2;

/// The options for returning space to the medium.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GivesBack {
    /// Empty segments are freed soon, since the medium benefits from the free space.
    pub(crate) empty: bool,
    /// While the host is quiet, segments are emptied down to this excess, in percent of live
    /// bytes.
    pub(crate) idle_percent: Option<u32>,
}

/// A task for garbage collection in addition to its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CompactionJob {
    /// The excess at which the job ends, in percent of live bytes.
    percent: u32,
    /// [`Counters::host_changes`] at the start of the job, if it ends when the host changes
    /// something.
    until_changes: Option<u64>,
    /// Consecutive segments that gained too little.
    fruitless: u32,
    /// Number of segments that may still be emptied.
    left: u32,
}

impl CompactionJob {
    fn new(space: &Space, percent: u32, until_changes: Option<u64>) -> Self {
        let left = space.segment_count().saturating_sub(space.all_free_count());
        Self { percent, until_changes, fruitless: 0, left }
    }

    /// Returns the dead bytes that justify emptying a segment for a job.
    fn gain_bytes_min(&self, segment_bytes: u32) -> u32 {
        // If the excess is too large, the segment with the most dead bytes exceeds this limit.
        let part = u64::from(segment_bytes) * u64::from(self.percent);
        let half_share = part / (100 + u64::from(self.percent)) / 2;
        let half_share = u32::try_from(half_share).unwrap_or(segment_bytes);
        assert!(half_share <= segment_bytes, "no more is asked of a segment than it has");
        half_share.max(segment_bytes / GAIN_DIVISOR)
    }
}

/// The state of returning space.
#[derive(Debug, Default)]
pub(crate) struct Compaction {
    /// [`Counters::host_changes`] at the last tick.
    seen_changes: u64,
    /// Ticks since the host last changed something.
    quiet_ticks: u32,
    /// Host reads at the last tick, and ticks since the last request of the host.
    seen_reads: u64,
    idle_ticks: u32,
    /// Ticks since the last search for empty segments.
    busy_ticks: u32,
    /// [`Space::changes`] at the last search for empty segments.
    looked_at: Option<u64>,
    /// Whether empty segments should be freed, with a checkpoint if necessary.
    frees: bool,
    job: Option<CompactionJob>,
    /// Whether a compaction started by [`Core::begin_compaction`] has not ended.
    is_asked: bool,
    /// Whether the segment being emptied was chosen for a job.
    is_emptying: bool,
    /// The occupied bytes when the last job ended.
    rested_at: Option<Occupied>,
}

/// The space that a drive occupies on its medium.
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

    /// Returns whether the excess is within `percent` of the live bytes.
    pub(crate) fn is_within(self, percent: u32) -> bool {
        self.excess() <= self.live_bytes / 100 * u64::from(percent) + SLACK_BYTES
    }
}

impl Compaction {
    fn tick(&mut self, counters: &Counters) {
        let (changes, reads) = (counters.host_changes(), counters.reads.get());
        self.busy_ticks += 1;
        let is_quiet = self.seen_changes == changes;
        let is_idle = is_quiet && self.seen_reads == reads;
        let ticks = |ticks: u32, continues| if continues { ticks.saturating_add(1) } else { 0 };
        self.quiet_ticks = ticks(self.quiet_ticks, is_quiet);
        self.idle_ticks = ticks(self.idle_ticks, is_idle);
        (self.seen_changes, self.seen_reads) = (changes, reads);
        self.job.take_if(|job| job.until_changes.is_some_and(|at| at != changes));
    }
}

impl Reclaim {
    /// Ends a compaction started by [`Core::begin_compaction`], complete or not.
    pub(crate) fn end_compaction(&mut self) {
        assert!(self.compaction.is_asked, "a compaction begins before it ends");
        self.compaction.is_asked = false;
        self.compaction.job.take_if(|job| job.until_changes.is_none());
    }

    /// Returns whether a compaction started by [`Core::begin_compaction`] has not ended.
    pub(crate) fn is_being_compacted(&self) -> bool {
        self.compaction.is_asked
    }

    /// Makes garbage collection return newly freed space soon.
    pub(in super::super) fn give_back_once(&mut self) {
        self.compaction.frees = true;
    }
}

impl Core {
    /// Returns the space that the drive occupies on its medium.
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

    /// Checks, once a second, whether there is space to return. Returns whether the drive has been
    /// idle long enough to release buffers.
    pub(crate) fn compaction_tick(&mut self) -> bool {
        self.reclaim.compaction.tick(&self.counters);
        if !self.is_resizing() && !self.must_end() {
            self.look_for_empty_segments();
            self.look_for_excess();
        }
        if self.compaction_is_wanted() {
            self.wake(Wakes::COLLECTOR);
            return false;
        }
        self.reclaim.compaction.idle_ticks >= SHED_TICKS
    }

    fn look_for_empty_segments(&mut self) {
        let is_quiet = self.reclaim.compaction.quiet_ticks >= QUIET_TICKS;
        let is_time = is_quiet || self.reclaim.compaction.busy_ticks >= BUSY_TICKS;
        let changes = Some(self.space.changes());
        if !self.settings.gives_back.empty
            || !is_time
            || self.reclaim.compaction.looked_at == changes
        {
            return;
        }
        self.reclaim.compaction.busy_ticks = 0;
        let empty = self.space.empty_count() as u64 * u64::from(self.superblock.segment_bytes);
        // While the host is busy, a checkpoint must free at least as many bytes as it writes.
        let is_worth_it = is_quiet || empty >= self.map.dirty_bytes() as u64;
        if is_worth_it {
            self.reclaim.compaction.looked_at = changes;
        }
        self.reclaim.compaction.frees |=
            is_worth_it && (empty > 0 || (is_quiet && self.stale_stream().is_some()));
    }

    fn look_for_excess(&mut self) {
        let Some(percent) = self.settings.gives_back.idle_percent else { return };
        let occupied = self.occupied();
        let segment_bytes = u64::from(self.superblock.segment_bytes);
        let has_changed = self.reclaim.compaction.rested_at.is_none_or(|at| {
            let has_grown = occupied.excess() >= at.excess().saturating_add(segment_bytes);
            has_grown || occupied.live_bytes.saturating_add(segment_bytes) <= at.live_bytes
        });
        let is_wanted = self.reclaim.compaction.quiet_ticks >= QUIET_TICKS
            && self.reclaim.compaction.job.is_none()
            && !occupied.is_within(percent)
            && has_changed;
        if is_wanted {
            tracing::debug!(
                drive = %self.superblock.uuid,
                occupied_bytes = occupied.bytes,
                live_bytes = occupied.live_bytes,
                "the host is idle: freeing dead space"
            );
            self.reclaim.compaction.job =
                Some(CompactionJob::new(&self.space, percent, Some(self.counters.host_changes())));
        }
    }

    /// Begins to empty segments until the excess is within `percent` of the live bytes, whatever
    /// the host does.
    ///
    /// # Errors
    /// `Busy` if a compaction, a resize or a change of the key is under way.
    pub(crate) fn begin_compaction(&mut self, percent: u32) -> Result<()> {
        if self.exclusive.is_some() || self.reclaim.compaction.is_asked {
            let what = "the drive is being resized, compacted or rekeyed: wait until this ends";
            return Err(Error::new(ErrorKind::Busy, what));
        }
        let is_of_host = |job: CompactionJob| job.until_changes.is_some();
        let before = self.reclaim.compaction.job;
        assert!(before.is_none_or(is_of_host), "a job that was asked for ends with its request");
        self.reclaim.compaction.is_asked = true;
        self.reclaim.compaction.frees = true;
        self.reclaim.compaction.job = Some(CompactionJob::new(&self.space, percent, None));
        self.wake(Wakes::COLLECTOR);
        self.wake(Wakes::WARMER);
        Ok(())
    }

    /// Returns whether segments are still being emptied for a requested compaction, or warm
    /// segments still wait to be discarded.
    pub(crate) fn compacts_more(&self) -> bool {
        let is_emptying = |job: CompactionJob| job.until_changes.is_none();
        self.reclaim.compaction.job.is_some_and(is_emptying) || !self.nothing_cools()
    }

    /// Returns whether garbage collection has space to return.
    pub(crate) fn compaction_is_wanted(&self) -> bool {
        self.reclaim.compaction.frees || self.job().is_some()
    }

    /// Returns the job, unless the host has ended it.
    fn job(&self) -> Option<CompactionJob> {
        let changes = self.counters.host_changes();
        self.reclaim.compaction.job.filter(|job| job.until_changes.is_none_or(|at| at == changes))
    }

    /// Returns whether the emptying of a segment must stop: the host is active again and nothing
    /// else requires it, or a snapshot now needs the segment.
    pub(crate) fn must_stop_collecting(&self, victim: SegmentId) -> bool {
        self.space.is_retained(victim) || self.job_is_over()
    }

    /// Returns whether the host is active again and nothing else requires emptying a segment.
    pub(crate) fn job_is_over(&self) -> bool {
        let is_over = || self.job().is_none() && !self.must_collect();
        self.reclaim.compaction.is_emptying && is_over()
    }

    /// Returns whether garbage collection runs slowly because nothing waits for it.
    pub(crate) fn collects_gently(&self) -> bool {
        self.job().is_some_and(|job| job.until_changes.is_some()) && !self.must_collect()
    }

    /// Notes whether a segment is emptied for a job.
    pub(super) fn note_job(&mut self) {
        self.reclaim.compaction.is_emptying = self.job().is_some() && !self.must_collect();
    }

    /// Returns whether another segment may be used for moving live data.
    fn has_room_to_compact(&self) -> bool {
        let has_space = self.log.check_medium_full().is_ok();
        has_space && self.space.free_count() > self.reserved_segments(Purpose::Data) + 1
    }

    /// Returns the segment to empty next for a job.
    pub(super) fn compaction_victim(&self) -> Option<SegmentId> {
        let job = self.job()?;
        if self.occupied().is_within(job.percent) || !self.has_room_to_compact() {
            return None;
        }
        let now = self.log.sealed_seq();
        let segment_bytes = self.superblock.segment_bytes;
        self.space.emptiest(now, segment_bytes, job.gain_bytes_min(segment_bytes))
    }

    /// Returns whether a checkpoint should free the segments emptied for a job.
    pub(super) fn has_emptied_enough(&self) -> bool {
        self.job().is_some() && self.space.empty_count() >= WAITING_SEGMENTS_MAX
    }

    /// Returns a stream whose open segment contains so little live data that the stream should
    /// continue in another segment, so that space can be returned.
    pub(crate) fn stale_stream(&self) -> Option<Stream> {
        if !self.has_room_to_compact() {
            return None;
        }
        let job = self.job().filter(|job| !self.occupied().is_within(job.percent));
        let segment_bytes = self.superblock.segment_bytes;
        let gain_min = job.map_or(u32::MAX, |job| job.gain_bytes_min(segment_bytes));
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

    /// Records that a segment was emptied for `moved_bytes`, which may end a job.
    pub(super) fn job_gained(&mut self, needed_bytes: u32, moved_bytes: u64) {
        let Some(job) = &mut self.reclaim.compaction.job else { return };
        let segment_bytes = u64::from(self.superblock.segment_bytes);
        let promised = segment_bytes.saturating_sub(u64::from(needed_bytes));
        let gained = segment_bytes.saturating_sub(moved_bytes);
        job.fruitless = if gained >= promised / 2 { 0 } else { job.fruitless + 1 };
        job.left = job.left.saturating_sub(1);
        if job.fruitless >= FRUITLESS_MAX || job.left == 0 {
            self.rest_compaction();
        }
    }

    /// Records that no more space can be returned now: the next job waits until more data is dead.
    pub(super) fn rest_compaction(&mut self) {
        self.reclaim.compaction.frees = false;
        if self.reclaim.compaction.job.take().is_some() {
            self.reclaim.compaction.rested_at = Some(self.occupied());
        }
    }
}

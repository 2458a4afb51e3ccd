//! Garbage collection: emptying segments that hold little live data, and giving empty ones back.
//!
//! ```text
//! few segments are free -> take down trimmed leaves -> free what is empty
//!                       -> a checkpoint, if that is what frees segments -> a victim -> ...
//! victim:  each record that the map names -> copied, still compressed, behind what was moved
//!          before -> the map names the copy
//! free:    seal every stream, flush -> discard -> free
//! ```
//!
//! **A segment is given back** when nothing in it is live, nobody reads it, everything that made
//! its records dead is durable, and the newest checkpoint's watermark lies behind its last batch:
//! recovery reads no batch in it any more and finds every map entry into it replaced. (Metadata
//! dies when a checkpoint that does not name it is complete.)
//!
//! **Pace.** While it works, data is let in only as fast as segments are gained, so that a write
//! waits a little, often, and not long when the last segment is used up.
//!
//! A frame whose payload is damaged is moved as it is, with the checksum that it does not match: it
//! stays unreadable, and its neighbours stay readable.

use std::cell::{Cell, RefCell};

use super::Drive;
use super::admit::Purpose;
use super::joining::Scanned;
use super::l2p::Reap;
use super::moving::Mover;
use super::records::{check_possible, records};
use super::scan::Scan;
use super::write::release;
use crate::base::wait::WaitQueue;
use crate::base::{Clock, Result, SegmentId};
use crate::format::{Stream, Superblock};
use crate::media::Medium;

/// Garbage collection works when there are fewer free segments than data must leave and this many
/// more: what the host fills while the first victims are emptied.
const HEADROOM_SEGMENTS: u32 = 3;

/// A segment with fewer dead bytes than this part of it is no victim: so little is gained that
/// moving the rest would wear the medium for nothing.
const GAIN_DIVISOR: u32 = 50;

/// Victims in a row that gained nothing, after which the drive counts as full: frames of which only
/// a part is live may not get smaller by being moved.
const FRUITLESS_MAX: u32 = 16;

/// The same, after which what must be emptied comes first, with the room that there is.
const FRUITLESS_BEFORE_EVACUATION: u32 = 2;

/// What the host may write before the first gain, and the most that it can save up of what was
/// gained while it did not write, in bytes: about a batch. More would let it fill the rest of the
/// free segments at once and then wait for a whole one.
const CREDIT_BYTES: i64 = 1 << 20;

/// The most that the host has to wait to be gained: a checkpoint, which has a reserve, may write
/// far more at once than the host should wait for.
const DEBT_BYTES: i64 = -CREDIT_BYTES;

/// Bytes that are moved before others have a turn: a fraction of a millisecond, so that a medium
/// without pauses of its own leaves none. A frame that is compressed anew is a turn by itself.
const TURN_BYTES: u64 = 128 << 10;

/// Leaves of trimmed ranges taken down in one step: at most 64 K runs, well under a millisecond.
const REAP_STEPS: u32 = 64;

/// How long to wait for the last readers of an empty segment.
const READERS_NS: u64 = 1_000_000;

/// The state of garbage collection.
#[derive(Default)]
pub(crate) struct Gc {
    wanted: WaitQueue,
    /// Bytes the host may write before more is gained; meaningful while `is_moving`, which lasts
    /// from the first victim until enough segments are free.
    credit: Cell<i64>,
    is_moving: Cell<bool>,
    /// Victims whose gain the host was given already, and which are not given back yet.
    credited: RefCell<Vec<SegmentId>>,
    /// [`super::space::Space::changes`] when nothing was found to be gained.
    exhausted_at: Cell<Option<u64>>,
    fruitless: Cell<u32>,
    victims: Cell<u64>,
    /// Works though enough segments are free: more are wanted.
    compacting: Cell<bool>,
    runs: Cell<bool>,
    ended: WaitQueue,
}

/// Garbage collection runs as long as this lives.
struct Running<'a>(&'a Gc);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.runs.set(false);
        self.0.ended.wake_all();
    }
}

impl Gc {
    /// Lets garbage collection look whether there is something to do.
    pub(crate) fn wake(&self) {
        self.wanted.wake_all();
    }

    /// Has it work, or not, as if too few segments were free.
    pub(crate) fn set_compacting(&self, compacting: bool) {
        self.compacting.set(compacting);
    }

    /// Whether nothing was to be gained when that many changes had been counted.
    pub(crate) fn is_exhausted(&self, changes: u64) -> bool {
        self.exhausted_at.get() == Some(changes)
    }

    /// Whether the host has used up what was gained.
    fn is_host_ahead(&self) -> bool {
        self.is_moving.get() && self.credit.get() <= 0
    }

    /// Takes what was written to the medium, and not by garbage collection, off the credit.
    pub(crate) fn spend(&self, bytes: u64) {
        self.credit.set(self.credit.get().saturating_sub_unsigned(bytes).max(DEBT_BYTES));
    }

    /// The host may write something before the first gain, and whenever nothing is to be gained.
    fn begin_credit(&self, gains_nothing: bool) {
        let was_moving = self.is_moving.replace(true);
        if !was_moving || gains_nothing {
            self.credit.set(CREDIT_BYTES);
        }
    }

    /// Adds what was gained, or takes off what moving cost.
    fn earn(&self, bytes: i64) {
        self.credit.set(self.credit.get().saturating_add(bytes).min(CREDIT_BYTES));
    }

    /// Adds what an empty segment is worth, if its emptying has not earned that already.
    fn earn_segment(&self, segment: SegmentId, segment_bytes: u32) {
        let mut credited = self.credited.borrow_mut();
        match credited.iter().position(|&victim| victim == segment) {
            Some(at) => drop(credited.swap_remove(at)),
            None => self.earn(segment_bytes.into()),
        }
    }

    /// Says that garbage collection runs until the guard is dropped.
    fn begin(&self) -> Running<'_> {
        self.runs.set(true);
        Running(self)
    }

    /// Waits until garbage collection has ended; it must have been told to.
    pub(crate) async fn until_it_ended(&self) {
        self.ended.wait_for(|| (!self.runs.get()).then_some(())).await;
    }

    /// Segments emptied since the opening.
    pub(crate) fn victims(&self) -> u64 {
        self.victims.get()
    }
}

/// What one step of garbage collection came to.
enum Step {
    Progress,
    /// Nothing is to be gained now.
    Nothing,
}

impl<M: Medium, C: Clock> Drive<M, C> {
    /// Empties segments and gives them back until the drive closes.
    pub(crate) async fn run_gc(&self) {
        let _running = self.gc.begin();
        while !self.is_read_only() {
            let next = || (self.gc_ends() || self.gc_is_wanted()).then_some(self.gc_ends());
            if self.gc.wanted.wait_for(next).await {
                return;
            }
            match self.gc_step().await {
                Ok(Step::Progress) => {}
                Ok(Step::Nothing) => self.gc.exhausted_at.set(Some(self.space.borrow().changes())),
                Err(error) => {
                    tracing::warn!("garbage collection failed: {}", error.chain());
                    self.gc.exhausted_at.set(Some(self.space.borrow().changes()));
                }
            }
            // Between victims the host is kept at the same pace: let go, it would fill a whole
            // segment and then wait for all of the next one.
            self.gc.is_moving.set(self.gc.is_moving.get() && self.gc_is_wanted());
            self.log.changed.wake_all();
        }
    }

    fn gc_ends(&self) -> bool {
        self.ending.get() || self.log.check_poison().is_err()
    }

    /// Whether garbage collection could still gain something; asks it to try.
    pub(crate) fn gc_can_gain(&self) -> bool {
        let exhausted = self.gc.is_exhausted(self.space.borrow().changes());
        if !exhausted {
            self.gc.wake();
        }
        !exhausted || self.checkpoints.is_running()
    }

    /// Whether so few segments are free that garbage collection should work.
    pub(crate) fn is_short_of_segments(&self) -> bool {
        self.gc.compacting.get() || self.has_few_segments()
    }

    fn has_few_segments(&self) -> bool {
        self.space.borrow().free_count() < self.gc_target_segments()
    }

    /// Free segments from which on garbage collection rests.
    pub(crate) fn gc_target_segments(&self) -> u32 {
        self.reserved_segments(Purpose::Data) + HEADROOM_SEGMENTS
    }

    /// Whether data must wait for garbage collection to gain something first.
    pub(crate) fn must_wait_for_gc(&self) -> bool {
        self.gc.is_host_ahead() && self.has_few_segments()
    }

    fn gc_is_wanted(&self) -> bool {
        let must_evacuate = self.space.borrow().beyond_end() > 0;
        (self.is_short_of_segments() || must_evacuate)
            && !self.gc.is_exhausted(self.space.borrow().changes())
    }

    async fn gc_step(&self) -> Result<Step> {
        self.reap_all().await?;
        if self.free_empty_segments().await? > 0 {
            return Ok(Step::Progress);
        }
        let watermark = self.checkpoints.watermark();
        let victim = self.next_victim();
        let is_last_chance =
            self.space.borrow().free_count() <= self.reserved_segments(Purpose::Data) + 1;
        if (victim.is_none() || is_last_chance) && self.space.borrow().has_empty_behind(watermark) {
            self.checkpoint().await?;
            return Ok(Step::Progress);
        }
        let Some(victim) = victim else {
            if self.space.borrow().has_empty_in_use() {
                self.clock.sleep_ns(READERS_NS).await;
                return Ok(Step::Progress);
            }
            return Ok(Step::Nothing);
        };
        let before = self.space.borrow().live_bytes_of(victim);
        let moved_bytes = self.stats.moved_bytes.get();
        self.empty_victim(victim).await?;
        let moved_bytes = self.stats.moved_bytes.get() - moved_bytes;
        let segment_bytes = self.superblock.borrow().segment_bytes;
        let gained = u64::from(segment_bytes) > moved_bytes + u64::from(segment_bytes / 100);
        let is_evacuated = victim.0 >= self.space.borrow().end();
        let fruitless = match gained {
            true => 0,
            false => self.gc.fruitless.get() + u32::from(!is_evacuated),
        };
        self.gc.fruitless.set(fruitless);
        tracing::debug!("garbage collection: {victim} had {before}, moved {moved_bytes} bytes");
        if fruitless > FRUITLESS_MAX {
            self.gc.fruitless.set(0);
            return Ok(Step::Nothing);
        }
        Ok(Step::Progress)
    }

    /// The segment to empty next. Emptying what must go gains nothing by itself: as long as there
    /// is little room for it, room is made first.
    fn next_victim(&self) -> Option<SegmentId> {
        let segment_bytes = self.superblock.borrow().segment_bytes;
        let is_short = self.is_short_of_segments();
        let gain_bytes_min = if is_short { segment_bytes / GAIN_DIVISOR } else { u32::MAX };
        let space = self.space.borrow();
        let must_evacuate = |purpose| {
            space.beyond_end() > 0 && space.free_count() > self.reserved_segments(purpose) + 1
        };
        let best = || space.victim(self.log.sealed_seq(), segment_bytes, gain_bytes_min);
        let is_fruitless = self.gc.fruitless.get() > FRUITLESS_BEFORE_EVACUATION;
        if must_evacuate(Purpose::Data) || (is_fruitless && must_evacuate(Purpose::Moved)) {
            return space.evacuee().or_else(best);
        }
        let evacuee = || space.evacuee().filter(|_| must_evacuate(Purpose::Moved));
        best().or_else(evacuee)
    }

    /// Takes down every leaf of trimmed ranges: what they held is dead only then.
    pub(crate) async fn reap_all(&self) -> Result<()> {
        loop {
            match self.reap_step() {
                Reap::Done => return Ok(()),
                Reap::More => self.clock.sleep_ns(0).await,
                Reap::Missing(leaf) => self.load_leaf(leaf).await?,
            }
        }
    }

    /// Takes down some leaves of trimmed ranges.
    pub(crate) fn reap_step(&self) -> Reap {
        let space = &mut *self.space.borrow_mut();
        self.l2p.borrow_mut().reap(REAP_STEPS, |released| release(space, released))
    }

    /// Gives back every segment that may be; says how many.
    async fn free_empty_segments(&self) -> Result<usize> {
        if self.space.borrow().empty(self.checkpoints.watermark()).is_empty() {
            return Ok(0);
        }
        // A segment that was in use when a checkpoint was begun must not hold a piece of it: its
        // table would say two things about the segment.
        let _turn = self.checkpoint_turn().await;
        let empty = self.space.borrow().empty(self.checkpoints.watermark());
        // What made their records dead may stand in batches that are still open.
        for stream in Stream::ALL {
            self.seal(stream);
        }
        self.flush_log().await?;
        let mut freed = 0;
        let segment_bytes = self.superblock.borrow().segment_bytes;
        for segment in empty {
            self.gc.earn_segment(segment, segment_bytes);
            self.cache.forget(segment.0);
            let is_discarded = self.medium.capabilities().discard;
            if is_discarded && let Err(error) = self.medium.discard(segment).await {
                // Its bytes stay, and do no harm.
                tracing::warn!("cannot discard: {}", error.chain());
            }
            // Nobody can have begun to read what nothing names.
            self.space.borrow_mut().free(segment);
            freed += 1;
        }
        self.log.changed.wake_all();
        Ok(freed)
    }

    /// Moves everything live out of a segment.
    pub(crate) async fn empty_victim(&self, victim: SegmentId) -> Result<()> {
        let superblock: Superblock = self.superblock.borrow().clone();
        let (generation, stream) = {
            let space = self.space.borrow();
            (space.generation(victim), space.stream(victim))
        };
        // What is still on its way would not be found.
        let last = self.space.borrow().last_seq(victim);
        let next = || (self.log.written_seq() >= last || self.gc_ends()).then_some(());
        self.log.changed.wait_for(next).await;
        self.gc.victims.set(self.gc.victims.get() + 1);
        // What must be emptied earns nothing, and the host need not wait for it.
        let is_evacuated = victim.0 >= self.space.borrow().end();
        self.gc.begin_credit(is_evacuated);
        let mut mover = Mover::new(self);
        self.scan_victim(&superblock, victim, generation, &mut mover, true).await?;
        if mover.joins.has_waiting {
            // What waited for a frame that died meanwhile.
            self.scan_victim(&superblock, victim, generation, &mut mover, false).await?;
        }
        if self.space.borrow().live_bytes_of(victim) == 0 {
            self.gc.credited.borrow_mut().push(victim);
        }
        if stream == Stream::Meta && self.space.borrow().live_bytes_of(victim) > 0 {
            self.checkpoint().await?;
        }
        if self.gc_ends() {
            return Ok(());
        }
        // Trims that came meanwhile.
        self.reap_all().await?;
        if self.space.borrow().live_bytes_of(victim) > 0 {
            let what = "cannot be emptied, for something in it is damaged";
            tracing::warn!("segment {victim} {what}; `pumice check` says what");
            self.space.borrow_mut().set_stuck(victim);
        }
        Ok(())
    }

    /// Moves what is live in a segment, record by record; as a `first` look at it, joined with its
    /// neighbours there if that is asked for.
    async fn scan_victim(
        &self,
        superblock: &Superblock,
        victim: SegmentId,
        generation: u64,
        mover: &mut Mover<'_, M, C>,
        is_first: bool,
    ) -> Result<()> {
        let turn_bytes = if self.options.recompress.is_some() { 1 } else { TURN_BYTES };
        let shape = superblock.shape();
        let mut scan = Scan::new(&self.medium, superblock.uuid, &shape, victim, generation);
        while self.space.borrow().live_bytes_of(victim) > 0 && !self.gc_ends() {
            let before = scan.offset();
            let Some((header, body)) = scan.next().await else { break };
            let moved_bytes = self.stats.moved_bytes.get();
            let mut turn_ends = moved_bytes + turn_bytes;
            let batch = Scanned { header: &header, body };
            mover.enter_batch(&header);
            for found in records(&header, body) {
                // The frames behind a damaged header cannot be found any more.
                let Ok(found) = found else { break };
                self.wait_for_clean_leaves().await;
                // A life that was lost may have left anything.
                if check_possible(&found, superblock).is_err() {
                    continue;
                }
                match is_first {
                    true => mover.join_record(batch, &found).await?,
                    false => mover.move_record(header.seq, &found).await?,
                }
                if self.stats.moved_bytes.get() >= turn_ends {
                    self.clock.sleep_ns(0).await;
                    turn_ends = self.stats.moved_bytes.get() + turn_bytes;
                }
            }
            let moved_bytes = self.stats.moved_bytes.get() - moved_bytes;
            // What the second look passes was earned by the first.
            let passed = if is_first { i64::from(scan.offset() - before) } else { 0 };
            self.gc.earn(passed - moved_bytes as i64);
            self.log.changed.wake_all();
        }
        if is_first {
            self.gc.earn(i64::from(superblock.segment_bytes - scan.offset()));
        }
        Ok(())
    }

    /// Waits as long as a host's write would have to, but not when garbage collection is to end.
    async fn wait_for_clean_leaves(&self) {
        let next = || (self.gc_ends() || !self.must_wait_for_checkpoint()).then_some(());
        self.log.changed.wait_for(next).await;
    }

    /// Whether changes must wait until a checkpoint has made leaves of the map clean, which only
    /// then can be evicted; or until one is complete, because so many changed since the last that
    /// recovery could not hold them.
    pub(crate) fn must_wait_for_checkpoint(&self) -> bool {
        let is_over = self.has_too_many_changed_leaves();
        if is_over && !self.checkpoints.is_running() {
            self.checkpoint_wanted.wake_all();
        }
        is_over
    }

    /// Twice as much may have changed since the last checkpoint as may be dirty: what one that is
    /// under way writes, and what changes meanwhile. So an attempt that fails, or a crash in it,
    /// and then another, leave no more than that to recovery: see [`super::recovery`].
    pub(crate) fn has_too_many_changed_leaves(&self) -> bool {
        let l2p = self.l2p.borrow();
        let most = self.dirty_bytes_max.get();
        l2p.dirty_bytes() + l2p.frozen_bytes() > most || l2p.behind_bytes() / 2 > most
    }
}

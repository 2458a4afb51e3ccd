//! Garbage collection: emptying segments with little live data, and freeing empty segments.
//!
//! ```text
//! few segments are free -> reap trimmed leaves -> free empty segments
//!                       -> a checkpoint, if it frees segments -> a victim -> ...
//! victim:  each record that the map names -> copied, still compressed, after the frames moved
//!          before -> the map names the copy
//! free:    seal every stream, flush -> discard, unless it stays warm -> free
//! ```
//!
//! **A segment is freed** when nothing in it is live, no read is under way in it, everything that
//! made its records dead is durable, and the newest checkpoint covers its last batch: recovery no
//! longer reads a batch in it and finds every map entry into it replaced. (Metadata dies when a
//! checkpoint that does not name it is complete.)
//!
//! A frame whose payload is damaged beyond restoring becomes a record of its loss: it stays
//! unreadable, and its neighbours stay readable.

use super::super::core::{Core, MoveReason, Victim};
use super::super::drive::Drive;
use super::super::drive::open::can_discard;
use super::super::log::records::{check_possible, records};
use super::super::log::segment_scan::SegmentScan;
use super::moving::Mover;
use crate::base::{ErrorKind, Lba, Result, SegmentId, SeqNo};
use crate::format::{BatchHeader, LEAF_BLOCKS, MetaKind, Record, Stream, Superblock};

/// Bytes that are moved before other tasks have a turn: a fraction of a millisecond, for a medium
/// whose I/O never yields. Recompressing a frame takes a separate turn.
const TURN_BYTES: u64 = 128 << 10;

/// Time for which trimmed leaves are reaped before newly empty segments are freed: the host may
/// wait for the segments.
pub(super) const REAP_NS: u64 = 10_000_000;

/// Pause while the last readers of an empty segment finish.
const READERS_NS: u64 = 1_000_000;

/// Consecutive steps that may fail because of a fault of the medium before it counts as permanent.
const FAILURES_MAX: u32 = 8;

/// Pause after such a step.
const RETRY_NS: u64 = 50_000_000;

/// Pause after such a step once writes are refused because of the fault.
const REFUSED_RETRY_NS: u64 = 1_000_000_000;

/// Minimum time for which frames that may become readable again are left in place, while the host
/// waits.
const LAST_RESORT_NS: u64 = 5_000_000_000;

/// Number of times that a victim is read again when a part of it could not be read.
const SCANS_AGAIN: u32 = 2;

/// Marks the task of garbage collection as running until dropped.
struct Running<'a>(&'a Drive);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.gc_runs.set(false);
        self.0.queues.collector_ended.wake_all();
    }
}

/// The outcome of one step of garbage collection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Progress,
    /// Nothing can be gained now.
    Nothing,
}

/// The state of a victim after everything that can be moved out of it was moved.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Emptied {
    /// It has no live bytes.
    Whole,
    /// Frames are left that cannot be read now.
    Unreadable,
    /// Every record was found, and none is live: the live bytes may be those of a lost leaf.
    Unnamed,
    /// Something in it, or a leaf that maps it, is damaged.
    Damaged,
}

impl Emptied {
    /// Judges a victim by its live bytes; `is_found` if it holds frames and each was found.
    fn of(live_bytes: u32, is_found: bool, mover: &Mover<'_>) -> Self {
        if live_bytes == 0 {
            return Self::Whole;
        }
        match (mover.has_unreadable, is_found && !mover.has_left) {
            (true, _) => Self::Unreadable,
            (false, true) => Self::Unnamed,
            (false, false) => Self::Damaged,
        }
    }
}

impl Drive {
    /// Empties and frees segments until the drive closes.
    pub(crate) async fn run_gc(&self) {
        assert!(!self.gc_runs.replace(true), "garbage collection is one task");
        let _running = Running(self);
        let mut failures = 0;
        let next = |core: &mut Core| {
            let ends = core.must_end();
            (ends || core.wants_measure() || core.collection_is_wanted()).then_some(ends)
        };
        while !self.is_read_only() && !self.wait_for(&self.queues.collector, next).await {
            let step = self.gc_step().await;
            let Err(error) = &step else {
                failures = 0;
                let gains_nothing = matches!(step, Ok(Step::Nothing));
                self.with_core(|core| core.end_collection_step(gains_nothing));
                continue;
            };
            tracing::warn!(error = %error.chain(), "garbage collection failed");
            failures += 1;
            let is_of_medium = error.kind() == ErrorKind::Medium;
            if is_of_medium && failures < FAILURES_MAX {
                // A fault of the medium may be temporary: no write is refused for it yet.
                self.pause(RETRY_NS).await;
                continue;
            }
            self.with_core(|core| core.end_collection_step(true));
            if is_of_medium {
                // No more data may ever die, since writes are refused.
                self.pause(REFUSED_RETRY_NS).await;
                self.with_core(|core| core.reclaim_mut().collect_again());
            }
        }
    }

    /// Waits until the task of garbage collection has ended. The drive must be ending.
    pub(crate) async fn until_gc_ended(&self) {
        let ended = || (!self.gc_runs.get()).then_some(());
        self.queues.collector_ended.wait_for(ended).await;
    }

    async fn gc_step(&self) -> Result<Step> {
        if self.core().wants_measure() {
            self.measure_retained().await;
            return Ok(Step::Progress);
        }
        // A trim may cover the whole disk: segments that become empty are used while the rest is
        // reaped. If reaping fails, other empty segments must not wait for it.
        let reaped = self.reap_for(REAP_NS).await;
        let is_left = reaped.as_ref().is_ok_and(|&is_left| is_left);
        let is_later = self.core().can_free_later();
        if !is_later && self.free_empty_segments().await? > 0 {
            return Ok(Step::Progress);
        }
        if is_left {
            let needs_checkpoint = self.core().needs_checkpoint_now();
            if needs_checkpoint {
                self.checkpoint().await?;
            }
            return Ok(Step::Progress);
        }
        let victim = self.core().next_victim();
        let last_resort = victim.is_none().then(|| self.core().last_resort()).flatten();
        let victim = victim.or(last_resort.map(|(segment, _)| segment));
        let needs_checkpoint = self.core().needs_checkpoint_to_free(victim);
        if needs_checkpoint {
            self.checkpoint().await?;
            return Ok(Step::Progress);
        }
        let Some(victim) = victim else {
            if self.leave_stale_segment().await? {
                return Ok(Step::Progress);
            }
            let has_readers = self.core().space().has_empty_in_use();
            if has_readers {
                self.clock.sleep_ns(READERS_NS).await;
                return Ok(Step::Progress);
            }
            return reaped.map(|_| Step::Nothing);
        };
        if let Some((_, since_ns)) = last_resort {
            // The host waits for this, since a wait is better than the subsequent loss.
            let left_ns = self.clock.now_ns().saturating_sub(since_ns);
            self.pause(LAST_RESORT_NS.saturating_sub(left_ns)).await;
            if self.core().next_victim().is_some() || self.core().last_resort() != last_resort {
                // Some data has died in the meantime.
                return Ok(Step::Progress);
            }
        }
        let before = self.core().victim(victim);
        let is_retained = self.core().space().is_retained(victim);
        if is_retained {
            self.empty_retained(victim).await?;
        } else {
            self.empty_victim_as(victim, last_resort.is_some()).await?;
        }
        if self.core().must_stop_collecting(victim) {
            return Ok(Step::Progress);
        }
        let continues = self.with_core(|core| core.end_victim(&before));
        Ok(if continues { Step::Progress } else { Step::Nothing })
    }

    /// Frees every segment that may be freed. Returns their number.
    async fn free_empty_segments(&self) -> Result<usize> {
        if self.core().empty_segments().is_empty() {
            return Ok(0);
        }
        // A segment that was in use when a checkpoint began must not contain a piece of it: the
        // checkpoint's table would contradict itself about the segment.
        let _turn = self.turn().await;
        // The changes that made their records dead may be in batches that are still open.
        let empty = self.with_core(|core| {
            core.seal_all();
            core.empty_segments()
        });
        self.flush_log().await?;
        let is_discarded = can_discard(&*self.medium, self.core().superblock());
        for &segment in &empty {
            self.cache.forget(segment);
            let is_kept = self.core().keeps_space(segment) && self.take_space(segment).await;
            if is_kept || is_discarded && self.core().stays_warm(segment) {
                self.with_core(|core| core.free_warm_segment(segment));
                continue;
            }
            if is_discarded {
                self.discard_free(segment).await;
            }
            // No read can have begun in the segment, since nothing names it.
            self.with_core(|core| core.free_segment(segment));
            self.look_at_room();
        }
        Ok(empty.len())
    }

    /// Moves everything live out of a segment.
    #[cfg(test)]
    pub(crate) async fn empty_victim(&self, segment: SegmentId) -> Result<()> {
        self.empty_victim_as(segment, false).await
    }

    /// Moves everything live out of a segment. Frames that cannot be read are given up if enough
    /// time has passed since the first attempt, or as a last resort.
    async fn empty_victim_as(&self, segment: SegmentId, is_last_resort: bool) -> Result<()> {
        self.until_written(segment).await;
        let superblock: Superblock = self.core().superblock().clone();
        let victim = self.with_core(|core| core.begin_victim(segment));
        let mut mover = Mover::new(self, self.reason_to_move(segment, is_last_resort));
        let is_whole = self.scan_victim(&superblock, &victim, &mut mover, true).await?;
        for _ in 0..SCANS_AGAIN {
            let is_left = {
                let core = self.core();
                core.space().stream(segment) != Stream::Meta
                    && core.space().live_bytes_of(segment) > 0
                    && !core.must_end()
            };
            if !is_left {
                break;
            }
            self.scan_victim(&superblock, &victim, &mut mover, false).await?;
        }
        let (left_bytes, stream) = self.with_core(|core| {
            core.victim_scanned(segment);
            (core.space().live_bytes_of(segment), core.space().stream(segment))
        });
        if stream == Stream::Meta && left_bytes > 0 && !self.core().must_stop_collecting(segment) {
            self.rewrite_metadata_in(segment).await;
            self.checkpoint().await?;
        }
        if self.core().must_end() || self.core().must_stop_collecting(segment) {
            return Ok(());
        }
        // Reap trims that arrived in the meantime.
        if self.reap_for(REAP_NS).await? {
            // The rest may be dead.
            return Ok(());
        }
        let now_ns = self.clock.now_ns();
        self.with_core(|core| {
            let live_bytes = core.space().live_bytes_of(segment);
            if mover.reason == MoveReason::GiveUp {
                core.reclaim_mut().forget_unreadable(segment);
            }
            match Emptied::of(live_bytes, stream != Stream::Meta && is_whole, &mover) {
                Emptied::Whole => return,
                Emptied::Unnamed if core.forget_live(segment) => return,
                Emptied::Unreadable => core.note_unreadable(segment, now_ns),
                Emptied::Unnamed | Emptied::Damaged => {}
            }
            tracing::warn!(
                %segment,
                live_bytes,
                "a segment cannot be emptied for now, because something in it is damaged or cannot \
                 be read; a check lists the damage"
            );
            core.set_stuck(segment);
        });
        Ok(())
    }

    /// Waits for the batches of a segment that are still in flight, which a scan would not find,
    /// unless garbage collection must end. Returns the number of the last one.
    pub(super) async fn until_written(&self, segment: SegmentId) -> SeqNo {
        let last_seq = self.core().space().last_seq(segment);
        let is_written = |core: &mut Core| {
            (core.log().written_seq() >= last_seq || core.must_end()).then_some(last_seq)
        };
        self.wait_for(&self.queues.progress, is_written).await
    }

    /// Returns the reason for moving a segment's records. Unreadable frames are tried a last time
    /// before they are given up.
    fn reason_to_move(&self, segment: SegmentId, is_last_resort: bool) -> MoveReason {
        let now_ns = self.clock.now_ns();
        if !is_last_resort && !self.core().gives_up_unreadable(segment, now_ns) {
            return MoveReason::Empty;
        }
        self.restore_again();
        MoveReason::GiveUp
    }

    /// Makes the next checkpoint write the metadata that the map names in a segment elsewhere. The
    /// scan has found most of it, but nothing after a damaged header.
    pub(super) async fn rewrite_metadata_in(&self, segment: SegmentId) {
        self.with_core(|core| core.rewrite_forwards_in(segment));
        let named: Vec<_> = self.core().map().metadata_in(segment).collect();
        for (kind, number, place) in named {
            self.wait_for_clean_leaves().await;
            let first = Lba(number.saturating_mul(LEAF_BLOCKS.into()));
            if kind == MetaKind::Leaf
                && self.core().map().missing(first, 1).is_some()
                && let Err(error) = self.load_or_lose(number).await
            {
                tracing::warn!(leaf = number, error = %error.chain(), "a leaf stays where it is");
                continue;
            }
            self.with_core(|core| core.rewrite_metadata(kind, number, place));
        }
    }

    /// Moves the live frames of a segment, record by record. Returns whether every batch and every
    /// record was found.
    async fn scan_victim(
        &self,
        superblock: &Superblock,
        victim: &Victim,
        mover: &mut Mover<'_>,
        is_first: bool,
    ) -> Result<bool> {
        let (mut is_whole, mut last) = (true, SeqNo(0));
        let &Victim { segment, generation, .. } = victim;
        let shape = superblock.shape();
        let mut scan =
            SegmentScan::new(&*self.medium, superblock.uuid, &shape, segment, generation);
        let moved_total = || self.core().counters().moved_bytes.get();
        loop {
            let is_over = {
                let core = self.core();
                let has_ended = core.must_end() || core.must_stop_collecting(segment);
                core.space().live_bytes_of(segment) == 0 || has_ended
            };
            if is_over {
                break;
            }
            let before = scan.offset();
            let Some((header, body)) = scan.next().await else { break };
            let moved_before = moved_total();
            last = header.seq;
            is_whole &= self.scan_batch(superblock, (&header, body), mover).await?;
            let moved_bytes = moved_total().checked_sub(moved_before);
            let moved_bytes = moved_bytes.expect("counters never decrease");
            // The first scan has already earned the bytes that a later one passes.
            let passed = scan.offset().checked_sub(before).expect("a scan moves forward");
            let passed = if is_first { passed } else { 0 };
            self.with_core(|core| core.earn(passed, moved_bytes));
            self.pause_gently(scan.offset() - before).await;
        }
        if is_first {
            let rest = superblock.segment_bytes.checked_sub(scan.offset());
            let rest = rest.expect("a scan ends within its segment");
            self.with_core(|core| core.earn(rest, 0));
        }
        let is_end = last == self.core().space().last_seq(segment);
        Ok(is_whole && is_end && scan.skipped_bytes == 0)
    }

    /// Moves the live frames of a batch of a victim. Returns whether every record was found.
    async fn scan_batch(
        &self,
        superblock: &Superblock,
        (header, body): (&BatchHeader, &[u8]),
        mover: &mut Mover<'_>,
    ) -> Result<bool> {
        let turn_bytes = if self.options.recompress.is_some() { 1 } else { TURN_BYTES };
        let moved_total = || self.core().counters().moved_bytes.get();
        let mut turn_ends = moved_total() + turn_bytes;
        let mut is_whole = true;
        let mut possible = Vec::new();
        for found in records(self.medium.cipher(), header, body) {
            // Frames after a damaged header can no longer be found, and a lost life may have left
            // arbitrary bytes.
            match found {
                Ok(found) if check_possible(&found, superblock).is_ok() => possible.push(found),
                _ => is_whole = false,
            }
        }
        let mut loaded = 0;
        for (index, record) in possible.iter().enumerate() {
            if index >= loaded {
                let ahead = possible.iter().skip(index).map(|found| match found.record {
                    Record::Data { .. } => found.record.lba_range(),
                    _ => (Lba(0), 0),
                });
                loaded = index + self.load_leaves_ahead(ahead).await;
            }
            self.wait_for_clean_leaves().await;
            mover.move_record(header.seq, record).await?;
            if moved_total() >= turn_ends {
                self.clock.sleep_ns(0).await;
                turn_ends = moved_total() + turn_bytes;
            }
        }
        Ok(is_whole)
    }

    /// Waits as long as a host write would have to, unless garbage collection must end.
    pub(super) async fn wait_for_clean_leaves(&self) {
        let next =
            |core: &mut Core| (core.must_end() || !core.must_wait_for_checkpoint()).then_some(());
        self.wait_for(&self.queues.progress, next).await;
    }
}

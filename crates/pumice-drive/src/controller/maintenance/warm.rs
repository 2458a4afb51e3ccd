//! Discarding warm segments that no flush needs any more, and zeroing the next segment of the host;
//! `core::reclaim::warm` decides which.
//!
//! One task does both, one segment after the other, concurrently with everything else. It holds a
//! segment while it works on it, so no other operation uses the segment. Only this task ends a
//! hold, and it runs as long as the drive, so no segment is allocated while it is being discarded.
//! A shrink waits until no segment that it removes is warm or held. While room is low, the task
//! reserves space instead: `core::reclaim::low_room`.

use std::sync::Arc;

use super::super::core::{Core, FreeWork, Wakes};
use super::super::drive::Drive;
use crate::base::{AlignedBuffer, Result, SegmentId};
use crate::format::BATCH_ALIGNMENT;

/// Number of zero bytes written at a time.
const ZERO_BYTES: u32 = 1 << 20;

impl Drive {
    /// Discards and zeroes free segments until the drive closes.
    pub(crate) async fn run_warmer(&self) {
        let next = |core: &mut Core| match core.begin_free_work() {
            Some(work) => Some(Some(work)),
            None => core.log().is_closing().then_some(None),
        };
        while let Some(work) = self.wait_for(&self.queues.warmer, next).await {
            self.work_on_free(work).await;
            if self.core().should_leave_cold_segment() {
                let leave = |core: &mut Core| Ok(core.leave_cold_segment()?.then_some(()));
                // If the log has failed, other requests report that.
                let _ = self.with_room(leave).await;
            }
        }
    }

    /// Reserves the space that a drive keeps while room is low, before the drive is used.
    pub(in super::super) async fn settle_room(&self) {
        let next = |core: &mut Core| {
            core.reclaim().has_low_room().then(|| core.begin_free_work()).flatten()
        };
        while let Some(work) = self.with_core(next) {
            self.work_on_free(work).await;
        }
    }

    async fn work_on_free(&self, work: FreeWork) {
        let segment = work.segment();
        let is_warm = match work {
            FreeWork::Discard(_) | FreeWork::GiveUp { .. } => false,
            FreeWork::Take(_) | FreeWork::TakeRest(_) => {
                let is_taken = self.take_space(segment).await;
                self.with_core(|core| core.space_was_taken(work, is_taken));
                is_taken
            }
            FreeWork::Zero(_) => self.zero(segment).await.unwrap_or_else(|error| {
                let error = error.chain();
                tracing::debug!(%segment, error, "cannot zero a free segment");
                self.with_core(|core| core.reclaim_mut().zeroing_failed());
                false
            }),
        };
        if matches!(work, FreeWork::TakeRest(_)) {
            return;
        }
        if !is_warm {
            self.discard_free(segment).await;
        }
        if let FreeWork::GiveUp { open, .. } = work {
            let is_taken = self.take_space(open).await;
            self.with_core(|core| core.space_was_taken(work, is_taken));
        }
        self.with_core(|core| core.end_hold(segment, is_warm));
        self.look_at_room();
    }

    /// Waits until no free segment is held or waits to be discarded, as the caller has arranged.
    pub(in super::super) async fn until_nothing_cools(&self) {
        // The space kept while room is low depends on the segments that snapshots retain.
        self.with_core(|core| core.wake(Wakes::WARMER));
        let is_over = |core: &mut Core| core.nothing_cools().then_some(());
        self.wait_for(&self.queues.progress, is_over).await;
    }

    /// Checks the space that is left for the medium after this drive has changed it.
    pub(in super::super) fn look_at_room(&self) {
        if self.core().reclaim().has_low_room() {
            let left_bytes = self.medium.room();
            self.with_core(|core| core.note_room(left_bytes));
        }
    }

    /// Allocates the space of a segment in the file system. Returns whether the segment has its
    /// space.
    pub(super) async fn take_space(&self, segment: SegmentId) -> bool {
        let taken = self.medium.preallocate(segment).await;
        if let Err(error) = &taken {
            tracing::debug!(%segment, error = %error.chain(), "cannot take the space of a segment");
        }
        taken.is_ok()
    }

    /// Discards a segment that nothing names.
    pub(super) async fn discard_free(&self, segment: SegmentId) {
        if let Err(error) = self.medium.discard(segment).await {
            // Its bytes remain, and do no harm.
            tracing::warn!(%segment, error = %error.chain(), "cannot discard a free segment");
        }
    }

    /// Fills a free segment with zeroes and syncs it, unless it was written before. Returns false
    /// if it had to stop.
    async fn zero(&self, segment: SegmentId) -> Result<bool> {
        if self.medium.prepare(segment).await? {
            return Ok(true);
        }
        // Data of an earlier process serves as well, and a half-zeroed segment must not look like
        // damage.
        let (first, read) =
            self.medium.read(segment, 0, AlignedBuffer::zeroed(BATCH_ALIGNMENT)).await;
        read?;
        if first.iter().any(|&byte| byte != 0) {
            return Ok(true);
        }
        let segment_bytes = self.core().superblock().segment_bytes;
        let zeroes = Arc::new(AlignedBuffer::zeroed(ZERO_BYTES.min(segment_bytes) as usize));
        for offset in (0..segment_bytes).step_by(zeroes.len()) {
            let begun_ns = self.clock.now_ns();
            let left = (segment_bytes - offset) as usize;
            let zeroes = if left < zeroes.len() {
                Arc::new(AlignedBuffer::zeroed(left))
            } else {
                zeroes.clone()
            };
            let bytes = zeroes.len() as u64;
            self.medium.append(segment, offset, zeroes).await?;
            self.with_core(|core| core.counters_mut().zeroed_bytes.add(bytes));
            // Half of the medium's time is left to the host.
            self.pause(self.clock.now_ns().saturating_sub(begun_ns)).await;
            if self.core().must_stop_zeroing() {
                return Ok(false);
            }
        }
        let number = self.with_core(Core::request_sync);
        let is_over = |core: &mut Core| {
            (core.must_end() || core.log().has_synced(number)).then(|| !core.must_end())
        };
        Ok(self.wait_for(&self.queues.progress, is_over).await)
    }
}

//! Background work of the data path: appending sealed batches to the medium, sealing a batch that
//! has waited too long, reaping trimmed leaves, finding space to return.
//!
//! A drive runs [`WRITERS`](super::super::log::WRITERS) tasks of [`Drive::run_writer`] and one of
//! [`Drive::run_upkeep`]. Syncs belong to `flush`.

use super::super::core::Core;
use super::super::drive::open::room;
use super::super::drive::{Drive, FULL_RETRY_NS};
use crate::base::ErrorKind;
use crate::format::BATCH_ALIGNMENT;

/// Maximum time for which acknowledged data may stay in memory when no more arrives, before it is
/// written to the medium (without a sync): similar to the limits of operating systems, for the same
/// reason.
const UPKEEP_NS: u64 = 1_000_000_000;

/// Time for which trimmed leaves are reaped at once: the rest of the upkeep waits for it.
const REAP_NS: u64 = 500_000_000;

impl Drive {
    /// Appends sealed batches to the medium until the drive closes.
    pub(crate) async fn run_writer(&self) {
        let next = |core: &mut Core| match core.next_to_write() {
            Some(batch) => Some(Some(batch)),
            None => core.log().is_closing().then_some(None),
        };
        while let Some(batch) = self.wait_for(&self.queues.writers, next).await {
            let place = batch.place;
            assert!(
                batch.bytes.len().is_multiple_of(BATCH_ALIGNMENT),
                "a batch fills whole write units of any medium"
            );
            let appended = if batch.is_durable {
                self.medium.append_durably(place.segment, place.base, batch.bytes).await
            } else {
                self.medium.append(place.segment, place.base, batch.bytes).await
            };
            let is_full = self.with_core(|core| match appended {
                Ok(()) => {
                    let spare = || self.medium.spare_buffer();
                    core.batch_written(batch.seq, batch.is_durable, spare);
                    false
                }
                // Nothing was lost: the batch stays in memory and is written again.
                Err(error) if error.kind() == ErrorKind::NoSpace => {
                    core.batch_lacks_space(batch.seq, &error);
                    true
                }
                // The medium wrote the batch but could not make it durable.
                Err(error) if batch.is_durable && error.kind() == ErrorKind::Poisoned => {
                    core.sync_failed(&error);
                    false
                }
                // The batch stays in memory, where reads still find it.
                Err(error) => {
                    core.append_failed(place.segment, &error);
                    false
                }
            });
            if is_full {
                // The closing of the drive does not wait for space.
                if self.core().is_ending() {
                    return;
                }
                self.pause(FULL_RETRY_NS).await;
            }
        }
    }

    /// Seals batches that are not flushed, confirms flushed ones, reaps trimmed leaves and warns of
    /// a lack of space until the drive closes.
    pub(crate) async fn run_upkeep(&self) {
        let mut seen = self.core().log().sealed_seq();
        while !self.core().is_ending() {
            self.vouch_when_idle().await;
            self.vouch_when_idle().await;
            seen = self.with_core(|core| {
                if core.log().sealed_seq() == seen && !core.log().is_poisoned() {
                    core.seal_all();
                }
                core.log().sealed_seq()
            });
            if let Err(error) = self.reap_for(REAP_NS).await {
                tracing::warn!(error = %error.chain(), "cannot record trimmed leaves");
            }
            self.with_core(Core::stuck_tick);
            self.with_core(Core::warn_of_space);
            self.give_back_tick();
            self.with_core(Core::warm_tick);
            let left_bytes = room(&*self.medium, self.core().superblock());
            self.with_core(|core| core.room_tick(left_bytes));
            self.name_bad_segment().await;
        }
        self.name_bad_segment().await;
    }

    /// Writes a superblock that names the segment in which an append failed, so that the next
    /// opening does not begin in it. If this fails, that opening fails there again.
    async fn name_bad_segment(&self) {
        let is_wanted = |core: &Core| core.bad_segment().is_some();
        if !is_wanted(&self.core()) {
            return;
        }
        let _turn = self.turn().await;
        // Two concurrent syncs would hide a failure from each other. No sync begins after the
        // failure, and no durable append that ends after it counts.
        let has_rested =
            |core: &mut Core| (!core.log().is_syncing() || !is_wanted(core)).then_some(());
        self.wait_for(&self.queues.progress, has_rested).await;
        let Some(superblock) = self.with_core(Core::superblock_with_bad_segment) else { return };
        if let Err(error) = self.store_one_superblock(superblock).await {
            tracing::warn!(error = %error.chain(), "cannot record a bad segment");
        }
    }

    /// Waits for half of the upkeep's period. If nothing was sealed in that time, a batch confirms
    /// the batches flushed before, and is itself made durable.
    async fn vouch_when_idle(&self) {
        let before = self.core().log().sealed_seq();
        self.pause(UPKEEP_NS / 2).await;
        let is_idle = |core: &Core| core.log().sealed_seq() == before;
        // A flush of the host does not wait for batches that other streams have sealed after it,
        // and their watermarks may be older than the durable end of the log.
        let is_unconfirmed = is_idle(&self.core()) && self.core().log().is_unconfirmed();
        if is_unconfirmed && let Err(error) = self.flush_log().await {
            tracing::debug!(error = %error.chain(), "cannot make batches after a flush durable");
        }
        let vouches = self.with_core(|core| is_idle(core) && core.vouch());
        if vouches && let Err(error) = self.flush_log().await {
            tracing::debug!(error = %error.chain(), "cannot confirm the last flush");
        }
    }
}

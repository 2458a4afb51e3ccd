//! Background work of the data path: appending sealed batches to the medium, sealing a batch that
//! has waited too long, taking down trimmed leaves.
//!
//! A drive runs [`WRITERS`] tasks of [`Drive::run_writer`] and one of [`Drive::run_upkeep`]. Syncs
//! belong to `flush`.

use super::super::core::Core;
use super::super::drive::Drive;
use crate::base::Clock;
use crate::format::BATCH_ALIGNMENT;
use crate::media::Medium;

/// Batches on their way to the medium at once.
pub(crate) const WRITERS: usize = 4;

/// How long acknowledged data may stay in memory when no more comes, before it goes to the medium
/// (without a sync): the order of what operating systems do, for the same reason.
const UPKEEP_NS: u64 = 1_000_000_000;

impl<M: Medium, C: Clock> Drive<M, C> {
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
            let appended = self.medium.append(place.segment, place.base, batch.bytes).await;
            self.with_core(|core| match appended {
                Ok(()) => core.batch_written(batch.seq),
                // The batch stays in memory, where reads still find it.
                Err(error) => core.poison(&error),
            });
        }
    }

    /// Seals batches that are not flushed, takes down trimmed leaves and warns of a lack of space
    /// until the drive closes.
    pub(crate) async fn run_upkeep(&self) {
        let mut seen = self.core().log().sealed_seq();
        while !self.core().is_ending() {
            self.pause(UPKEEP_NS).await;
            seen = self.with_core(|core| {
                if core.log().sealed_seq() == seen && !core.log().is_poisoned() {
                    core.seal_all();
                }
                core.log().sealed_seq()
            });
            if let Err(error) = self.reap_all().await {
                tracing::warn!(error = %error.chain(), "cannot take down trimmed leaves");
            }
            self.with_core(Core::warn_of_space);
        }
    }
}

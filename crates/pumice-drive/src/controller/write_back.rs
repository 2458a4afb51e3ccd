//! What runs behind the host's back: taking sealed batches to the medium, sealing a batch that has
//! waited too long, taking down trimmed leaves.
//!
//! [`Drive::tasks`] has these: [`WRITERS`] times [`Drive::run_writer`], and [`Drive::run_upkeep`].
//! Syncs are for `flush`.

use super::Drive;
use crate::base::Clock;
use crate::format::Stream;
use crate::media::Medium;

/// Batches on their way to the medium at once.
pub(crate) const WRITERS: usize = 4;

/// How long acknowledged data may sit in memory when no more comes, before it goes to the medium
/// (without a sync): the order of what operating systems do, for the same reason.
const UPKEEP_NS: u64 = 1_000_000_000;

impl<M: Medium, C: Clock> Drive<M, C> {
    /// Takes sealed batches to the medium until the drive closes.
    pub(crate) async fn run_writer(&self) {
        loop {
            let next = || match self.log.next_to_write() {
                Some(batch) => Some(Some(batch)),
                None => self.log.is_closing().then_some(None),
            };
            let Some((seq, place, bytes)) = self.log.work.wait_for(next).await else { return };
            match self.medium.append(place.segment, place.base, bytes).await {
                Ok(()) => {
                    self.stats.batches.add(1);
                    self.log.written(seq);
                }
                // The batch stays in memory, where reads still find it.
                Err(error) => self.log.poison(&error),
            }
        }
    }

    /// Seals batches that nobody flushes, takes down trimmed leaves and warns of a lack of space
    /// until the drive closes.
    pub(crate) async fn run_upkeep(&self) {
        let mut seen = self.log.sealed_seq();
        while !self.ending.get() {
            self.clock.sleep_ns(UPKEEP_NS).await;
            let now = self.log.sealed_seq();
            if now == seen && self.log.check_poison().is_ok() {
                for stream in Stream::ALL {
                    self.seal(stream);
                }
            }
            seen = self.log.sealed_seq();
            if let Err(error) = self.reap_all().await {
                tracing::warn!("cannot take down what was trimmed: {}", error.chain());
            }
            self.warn_of_space();
        }
    }
}

//! Flush: making everything acknowledged durable, with one sync of the medium for all who wait.
//!
//! ```text
//! already durable? done
//! else seal the open batch -> wait until all batches up to it are written
//!      -> one of the waiting syncs the medium, the others wait for it -> watermark
//! ```
//!
//! Touches neither map nor codec. A failed sync poisons the log: the operating system may have
//! dropped the dirty pages, so a later success would prove nothing.

use super::Drive;
use super::log::Log;
use crate::base::{Clock, Result, SeqNo};
use crate::format::Stream;
use crate::media::Medium;

/// What a waiting flush does next.
enum Step {
    Done,
    Sync,
}

impl<M: Medium, C: Clock> Drive<M, C> {
    /// Makes every write, trim and write-zeroes that returned before this was called durable.
    ///
    /// # Errors
    /// `Poisoned` if the medium failed now or earlier; what was acknowledged since the last flush
    /// may then be lost when the drive is reopened. On a read-only drive nothing is to be done.
    pub async fn flush(&self) -> Result<()> {
        if self.is_read_only() {
            return Ok(());
        }
        self.stats.flushes.add(1);
        self.seal(Stream::Host);
        self.flush_log().await
    }

    /// Makes every batch that is sealed durable.
    ///
    /// # Errors
    /// As [`Drive::flush`].
    pub(crate) async fn flush_log(&self) -> Result<()> {
        let target = self.log.sealed_seq();
        while let Step::Sync = self.next_flush_step(target).await? {
            let written = self.log.written_seq();
            if self.sync_alone().await.is_ok() {
                self.log.set_durable(written);
            }
        }
        Ok(())
    }

    /// Syncs the medium when nobody else does. Of two syncs at once, only one may be told that what
    /// both were to make durable is lost.
    ///
    /// # Errors
    /// `Medium`, and the drive is poisoned; `Poisoned` if it is already.
    pub(crate) async fn sync_alone(&self) -> Result<()> {
        self.log.changed.wait_for(|| (!self.log.syncing.get()).then_some(())).await;
        self.log.check_poison()?;
        let syncing = Syncing::begin(&self.log);
        let synced = self.medium.sync().await;
        match &synced {
            Ok(()) => self.stats.syncs.add(1),
            Err(error) => self.log.poison(error),
        }
        drop(syncing);
        synced
    }

    async fn next_flush_step(&self, target: SeqNo) -> Result<Step> {
        let next = || {
            if self.log.durable_seq() >= target {
                return Some(Ok(Step::Done));
            }
            if let Err(error) = self.log.check_poison() {
                return Some(Err(error));
            }
            let may_sync = self.log.written_seq() >= target && !self.log.syncing.get();
            may_sync.then_some(Ok(Step::Sync))
        };
        self.log.changed.wait_for(next).await
    }
}

/// Whoever holds this syncs the medium for all. A flush that is abandoned meanwhile leaves the task
/// to the others.
struct Syncing<'a>(&'a Log);

impl<'a> Syncing<'a> {
    fn begin(log: &'a Log) -> Self {
        log.syncing.set(true);
        Self(log)
    }
}

impl Drop for Syncing<'_> {
    fn drop(&mut self) {
        self.0.syncing.set(false);
        self.0.changed.wake_all();
    }
}

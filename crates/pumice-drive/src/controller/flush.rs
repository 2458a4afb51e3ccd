//! Flush: making everything acknowledged durable, with one sync of the medium for all who wait.
//!
//! ```text
//! already durable? done
//! else seal the open batch -> wait until all batches up to it are written
//!      -> ask for a sync that begins now or later -> wait for its end
//! ```
//!
//! Touches neither map nor codec. One task syncs the medium for all, one sync after the other: of
//! two syncs at once only one may be told that what both were to make durable is lost, and a medium
//! may tell it only once. So a sync ends though whoever asked for it has gone, and if it fails all
//! are told: it poisons the log, for the operating system may have dropped the dirty pages, and a
//! later success would prove nothing.

use super::Drive;
use crate::base::{Clock, Result};
use crate::format::Stream;
use crate::media::Medium;

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
        let is_durable = || self.log.durable_seq() >= target;
        let next = || match self.log.check_poison() {
            _ if is_durable() => Some(Ok(())),
            Ok(()) => (self.log.written_seq() >= target).then_some(Ok(())),
            Err(error) => Some(Err(error)),
        };
        self.log.changed.wait_for(next).await?;
        if is_durable() { Ok(()) } else { self.sync().await }
    }

    /// Waits for a sync of the medium that begins after this is called, and covers all that had
    /// completed by then.
    ///
    /// # Errors
    /// `Poisoned` if it fails, or one before it has.
    pub(crate) async fn sync(&self) -> Result<()> {
        let number = self.log.ask_for_sync();
        let next = || match self.log.check_poison() {
            _ if self.log.has_synced(number) => Some(Ok(())),
            Ok(()) => None,
            Err(error) => Some(Err(error)),
        };
        self.log.changed.wait_for(next).await
    }

    /// Syncs the medium for all who ask until the drive closes.
    pub(crate) async fn run_syncer(&self) {
        loop {
            let next = || match self.log.begin_sync() {
                true => Some(true),
                false => self.log.is_closing().then_some(false),
            };
            if !self.log.sync_work.wait_for(next).await {
                return;
            }
            let written = self.log.written_end();
            let synced = self.medium.sync().await;
            match synced {
                Ok(()) => {
                    self.stats.syncs.add(1);
                    self.log.set_durable(written);
                    self.log.sync_ended();
                }
                Err(error) => self.log.poison(&error),
            }
        }
    }
}

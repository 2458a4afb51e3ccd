//! Flush: making everything acknowledged durable, with one sync of the medium for all waiting
//! flushes.
//!
//! ```text
//! already durable? done
//! else seal the open batch -> wait until all batches up to it are written
//!      -> request a sync that begins now or later -> wait for its end
//! ```
//!
//! Touches neither map nor codec. One task syncs the medium, one sync after the other: of two syncs
//! at once only one may learn that data of both was lost, and a medium may report that only once.
//! So a sync runs to its end even if the request for it was cancelled, and a failed sync fails all:
//! it poisons the log, for the operating system may have dropped the dirty pages, and a later
//! success would prove nothing.

use super::super::core::Core;
use super::super::drive::Drive;
use crate::base::{Clock, Result};
use crate::format::Stream;
use crate::media::Medium;

/// What a flush does while the medium is full.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OnFull {
    /// It fails: the host must know.
    Fail,
    /// It waits: background work resumes where it was.
    Wait,
}

impl<M: Medium, C: Clock> Drive<M, C> {
    /// Makes every write, trim and write-zeroes that returned before this call durable.
    ///
    /// # Errors
    /// `Poisoned` if the medium failed now or earlier; what was acknowledged since the last flush
    /// may then be lost when the drive is reopened. `NoSpace` while the medium is full: nothing is
    /// lost, and a later flush makes it durable when there is space. A read-only drive has nothing
    /// to flush.
    pub async fn flush(&self) -> Result<()> {
        if self.is_read_only() {
            return Ok(());
        }
        self.with_core(|core| {
            core.counters_mut().flushes.add(1);
            core.seal(Stream::Host);
        });
        self.flush_sealed(OnFull::Fail).await
    }

    /// Makes every batch that is sealed durable. Waits while the medium is full, unless the drive
    /// is ending.
    ///
    /// # Errors
    /// As [`Drive::flush`].
    pub(crate) async fn flush_log(&self) -> Result<()> {
        self.flush_sealed(OnFull::Wait).await
    }

    async fn flush_sealed(&self, on_full: OnFull) -> Result<()> {
        let target = self.core().log().sealed_seq();
        assert!(target >= self.core().log().durable_seq(), "what is durable was sealed");
        let is_written = |core: &mut Core| {
            let log = core.log();
            if log.durable_seq() >= target {
                return Some(Ok(()));
            }
            if let Err(error) = log.check_poison() {
                return Some(Err(error));
            }
            if log.written_seq() >= target {
                return Some(Ok(()));
            }
            let fails = on_full == OnFull::Fail || core.is_ending();
            log.check_medium_full().err().filter(|_| fails).map(Err)
        };
        self.wait_for(&self.queues.progress, is_written).await?;
        let is_durable = self.core().log().durable_seq() >= target;
        if !is_durable {
            self.sync().await?;
            assert!(
                self.core().log().durable_seq() >= target,
                "a sync that begins after a batch was written makes it durable"
            );
        }
        Ok(())
    }

    /// Syncs the medium for all requests until the drive closes.
    pub(crate) async fn run_syncer(&self) {
        let next = |core: &mut Core| match core.begin_sync() {
            Some(written) => Some(Some(written)),
            None => core.log().is_closing().then_some(None),
        };
        while let Some(written) = self.wait_for(&self.queues.syncer, next).await {
            let synced = self.medium.sync().await;
            self.with_core(|core| match synced {
                Ok(()) => core.sync_ended(written),
                Err(error) => core.sync_failed(&error),
            });
        }
    }
}

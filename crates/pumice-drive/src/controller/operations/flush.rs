//! Flush: making everything acknowledged durable, with one sync of the medium for all waiting
//! flushes.
//!
//! ```text
//! already durable? done
//! else seal the open batch, or let it collect while every writer is busy
//!      -> a durable append of it, if all before it are durable or durable appends: done
//!      -> else wait until all batches up to it are written
//!         -> request a sync that begins now or later -> wait for its end
//! ```
//!
//! A flush of the host waits for the last batch of the host and all batches before it, but not for
//! batches that garbage collection and checkpoints seal after it.
//!
//! Flushes involve neither map nor codec. One task syncs the medium, one sync after the other,
//! concurrently with up to four durable appends. Of operations that sync at the same time, only one
//! may receive the error that data of others was lost, and a medium may report that only once.
//! Therefore no operation that ends after a failure counts, and a sync runs to completion even if
//! the request for it was cancelled. A failed sync fails all operations: it poisons the log, since
//! the operating system may have dropped the dirty pages, and a later success would prove nothing.

use super::super::core::Core;
use super::super::drive::Drive;
use crate::base::{Result, SeqNo};

/// The behaviour of a flush while the medium is full.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OnFull {
    /// The flush fails, since the host must receive the error.
    Fail,
    /// The flush waits, and background work resumes afterwards.
    Wait,
}

impl Drive {
    /// Makes every write, trim and write-zeroes that returned before this call durable.
    ///
    /// # Errors
    /// `Poisoned` if the medium failed now or earlier; writes acknowledged since the last flush may
    /// then be lost when the drive is reopened. `NoSpace` while the medium is full: nothing is
    /// lost, and a later flush makes the writes durable when there is space. A read-only drive has
    /// nothing to flush.
    pub async fn flush(&self) -> Result<()> {
        if self.is_read_only() {
            return Ok(());
        }
        let batches = self.with_core(Core::begin_flush);
        let target = |core: &mut Core| {
            let is_sealed = core.log().host_batches() >= batches;
            is_sealed.then(|| core.want_host_batches())
        };
        self.flush_to(target, OnFull::Fail).await
    }

    /// Makes every sealed batch durable. Waits while the medium is full, unless the drive is
    /// ending.
    ///
    /// # Errors
    /// The errors of [`Drive::flush`].
    pub(crate) async fn flush_log(&self) -> Result<()> {
        let target = self.core().log().sealed_seq();
        assert!(target >= self.core().log().durable_seq(), "durable batches are sealed");
        self.flush_to(|_| Some(target), OnFull::Wait).await
    }

    /// Makes everything appended so far durable, including records in open batches.
    ///
    /// # Errors
    /// The errors of [`Drive::flush`].
    pub(crate) async fn flush_all(&self) -> Result<()> {
        self.with_core(Core::seal_all);
        let target = self.core().log().sealed_seq();
        self.flush_to(|_| Some(target), OnFull::Fail).await
    }

    /// Makes every batch up to the one that `target` returns durable, once `target` returns one.
    async fn flush_to(
        &self,
        mut target: impl FnMut(&mut Core) -> Option<SeqNo>,
        on_full: OnFull,
    ) -> Result<()> {
        let mut found = None;
        let is_written = |core: &mut Core| {
            found = found.or_else(|| target(core));
            let log = core.log();
            if found.is_some_and(|target| log.durable_seq() >= target) {
                return Some(Ok(()));
            }
            if let Err(error) = log.check_poison() {
                return Some(Err(error));
            }
            if found.is_some_and(|target| log.needs_sync(target)) {
                return Some(Ok(()));
            }
            let fails = on_full == OnFull::Fail || core.is_ending();
            log.check_medium_full().err().filter(|_| fails).map(Err)
        };
        self.wait_for(&self.queues.progress, is_written).await?;
        let target = found.expect("the wait ended well, so there is a target");
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

//! Restoring damaged records from the parity of their batch.

use std::cell::Cell;

use super::super::log::parity::restore_record;
use super::Drive;
use crate::base::wait::WaitQueue;
use crate::base::{Clock, Result};
use crate::format::RecordAddress;
use crate::media::Medium;

/// Lets one request restore at a time: each takes the memory of two batches.
#[derive(Debug, Default)]
pub(crate) struct Restoring {
    is_busy: Cell<bool>,
    ended: WaitQueue,
}

/// The turn to restore.
struct Turn<'a>(&'a Restoring);

impl Restoring {
    async fn turn(&self) -> Turn<'_> {
        self.ended.wait_for(|| (!self.is_busy.replace(true)).then_some(())).await;
        Turn(self)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.is_busy.set(false);
        self.0.ended.wake_all();
    }
}

impl<M: Medium, C: Clock> Drive<M, C> {
    /// Restores a record from the parity of its batch; `is_right` says whether its bytes are the
    /// wanted ones. Returns whether that was possible.
    ///
    /// # Errors
    /// `Medium` if it was not, and a part of the batch cannot be read.
    pub(in super::super) async fn restore_record(
        &self,
        place: RecordAddress,
        record_bytes: u32,
        is_right: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<bool> {
        let segment_bytes = self.core().superblock().segment_bytes;
        let _turn = self.restoring.turn().await;
        restore_record(&self.medium, segment_bytes, place, record_bytes, is_right).await
    }
}

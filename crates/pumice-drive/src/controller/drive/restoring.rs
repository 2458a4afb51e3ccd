//! Restoring damaged records from another copy of the medium, or from the parity of their batch,
//! and overwriting damaged copies.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use super::super::log::parity::restore_record;
use super::super::log::records::records;
use super::Drive;
use crate::base::wait::WaitQueue;
use crate::base::{Error, ErrorKind, Result};
use crate::crypt::Cipher;
use crate::format::{BatchHeader, Record, RecordAddress, check_payload};

/// Time for which a record that could not be restored is not retried: reading a batch with bad
/// sectors can take seconds, and a host repeats failed requests.
const PAUSE_NS: u64 = 10_000_000_000;

/// Maximum number of failures that are remembered; beyond that the oldest is forgotten.
const FAILURES_MAX: usize = 256;

/// Lets one request restore at a time: each needs the memory of two batches.
#[derive(Debug, Default)]
pub(crate) struct Restoring {
    is_busy: Cell<bool>,
    ended: WaitQueue,
    /// Records that recently could not be restored, the oldest first.
    failures: RefCell<VecDeque<Failure>>,
}

/// An attempt to restore a record that has failed.
#[derive(Debug)]
struct Failure {
    place: RecordAddress,
    at_ns: u64,
    /// Whether a part of the batch could not be read.
    is_unreadable: bool,
}

/// The turn to restore.
struct Turn<'a>(&'a Restoring);

impl Restoring {
    async fn turn(&self) -> Turn<'_> {
        self.ended.wait_for(|| (!self.is_busy.replace(true)).then_some(())).await;
        Turn(self)
    }

    /// Returns whether a part of the batch could not be read, if restoring the record has recently
    /// failed.
    fn lately(&self, place: RecordAddress, now_ns: u64) -> Option<bool> {
        let mut failures = self.failures.borrow_mut();
        failures.retain(|failure| now_ns.saturating_sub(failure.at_ns) < PAUSE_NS);
        let failure = failures.iter().find(|failure| failure.place == place)?;
        Some(failure.is_unreadable)
    }

    fn remember(&self, failure: Failure) {
        let mut failures = self.failures.borrow_mut();
        if failures.len() == FAILURES_MAX {
            failures.pop_front();
        }
        failures.push_back(failure);
        assert!(failures.len() <= FAILURES_MAX, "few failures are remembered");
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        assert!(self.0.is_busy.replace(false), "a turn to restore ends once");
        self.0.ended.wake_all();
    }
}

impl Drive {
    /// Restores a record from another copy or the parity of its batch; `is_right` returns whether
    /// its bytes are the wanted ones. Returns whether that was possible. After a failure, the
    /// record is not retried for ten seconds.
    ///
    /// # Errors
    /// `Medium` if that was not possible and a part of the batch cannot be read.
    pub(in super::super) async fn restore_record(
        &self,
        place: RecordAddress,
        record_bytes: u32,
        is_right: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<bool> {
        let segment_bytes = self.core().superblock().segment_bytes;
        let restoring = &self.restoring;
        let _turn = restoring.turn().await;
        match restoring.lately(place, self.clock.now_ns()) {
            Some(true) => {
                let what = "a part of its batch could not be read a moment ago";
                return Err(Error::new(ErrorKind::Medium, what).in_segment(place.segment));
            }
            Some(false) => return Ok(false),
            None => {}
        }
        let mut right = None;
        let mut is_right = |record: &[u8]| {
            let is_right = is_right(record);
            if is_right && self.medium.copies().len() > 1 {
                right = Some(record.to_vec());
            }
            is_right
        };
        let restored =
            restore_record(&*self.medium, segment_bytes, place, record_bytes, &mut is_right).await;
        if let (Ok(true), Some(record)) = (&restored, right) {
            self.repair_record(place, &record).await;
        }
        if !matches!(restored, Ok(true)) {
            let (at_ns, is_unreadable) = (self.clock.now_ns(), restored.is_err());
            restoring.remember(Failure { place, at_ns, is_unreadable });
        }
        restored
    }

    /// Overwrites the copies of a record that differ from `bytes`, if `bytes` are the record as
    /// written and its segment is still in the same use.
    async fn repair_record(&self, place: RecordAddress, bytes: &[u8]) {
        let Some(array) = self.medium.as_array() else { return };
        if self.is_read_only() || !is_intact(self.medium.cipher(), place, bytes) {
            return;
        }
        // While this pin exists, the segment is not freed.
        let _pin = self.pin(place.segment);
        if self.core().space().generation(place.segment) != place.generation {
            return;
        }
        match array.repair(place.segment, place.offset, bytes).await {
            Ok(0) => {}
            Ok(copies) => tracing::warn!(
                segment = %place.segment,
                offset = place.offset,
                copies,
                "a damaged copy of a record was overwritten with an intact one"
            ),
            Err(error) => tracing::warn!(
                segment = %place.segment,
                offset = place.offset,
                error = %error.chain(),
                "cannot overwrite a damaged copy of a record"
            ),
        }
    }

    /// Repairs the records of a batch one by one, in every copy, when no copy contains the whole
    /// batch. Returns the number of records that are whole in no copy.
    pub(in super::super) async fn repair_records(&self, header: &BatchHeader, body: &[u8]) -> u64 {
        let mut lost = 0;
        for found in records(self.medium.cipher(), header, body).map_while(Result::ok) {
            let bytes = found.record.record_bytes();
            let mut is_right = |record: &[u8]| found.is_copied_in(record);
            let restored = self.restore_record(found.place, bytes, &mut is_right).await;
            lost += u64::from(!matches!(restored, Ok(true)));
        }
        lost
    }

    /// Forgets recent failures to restore.
    pub(in super::super) fn restore_again(&self) {
        self.restoring.failures.borrow_mut().clear();
    }
}

/// Returns whether header and payload of a record are as written to a place.
fn is_intact(cipher: &Cipher, place: RecordAddress, bytes: &[u8]) -> bool {
    let Ok(record) = Record::decode_with(bytes, place, cipher) else { return false };
    let payload = bytes.get(record.header_bytes() as usize..);
    let is_whole = |payload, checksum| check_payload(payload, checksum, place).is_ok();
    record.record_bytes() as usize == bytes.len()
        && payload.zip(record.payload_checksum()).is_some_and(|(bytes, sum)| is_whole(bytes, sum))
}

//! Whether a request may run at all, and the wait for room in the log: the only place of
//! back-pressure.
//!
//! A write is let through only when the log is sure to take its worst case, so that once
//! acknowledged it cannot fail for space; a refused one changed nothing.

use super::Drive;
use super::log::Fit;
use crate::base::{Clock, Error, ErrorKind, Result};
use crate::format::generation;
use crate::media::Medium;

/// Segments kept back from data so that trims and write-zeroes still find room when the log is
/// full: one of 32 MiB holds over a million of their records, or 8,000 that are each flushed.
const RESERVED_SEGMENTS: u32 = 1;

/// What a request for room is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Data and fills: may not touch the reserve.
    Data,
    /// Trims and write-zeroes: may.
    Trim,
}

impl<M: Medium, C: Clock> Drive<M, C> {
    /// # Errors
    /// `InvalidInput` if the range does not lie on the disk.
    pub(crate) fn check_range(&self, offset: u64, len: u64) -> Result<()> {
        if offset.checked_add(len).is_some_and(|end| end <= self.size_bytes()) {
            return Ok(());
        }
        let what = format!("the range {offset}+{len} lies beyond the disk's end");
        Err(Error::new(ErrorKind::InvalidInput, what))
    }

    /// # Errors
    /// `InvalidInput`, `ReadOnly` or `Poisoned`.
    pub(crate) fn check_writable(&self, offset: u64, len: u64) -> Result<()> {
        self.check_range(offset, len)?;
        if self.log.is_closing() {
            return Err(Error::new(ErrorKind::Poisoned, "the drive is closing"));
        }
        if self.is_read_only() {
            return Err(Error::new(ErrorKind::ReadOnly, "the drive was opened read-only"));
        }
        self.log.check_poison()
    }

    /// Waits until the open batch has room for `bytes` of records. No other task runs between this
    /// returning and the caller's next await.
    ///
    /// # Errors
    /// `NoSpace` if the log is full, `Poisoned`.
    pub(crate) async fn make_room(&self, bytes: usize, purpose: Purpose) -> Result<()> {
        self.log.changed.wait_for(|| self.try_make_room(bytes, purpose).transpose()).await
    }

    /// Whether [`Drive::make_room`] would return at once.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.log.fit(bytes) == Fit::Open || self.log.has_free_buffer()
    }

    fn try_make_room(&self, bytes: usize, purpose: Purpose) -> Result<Option<()>> {
        self.log.check_poison()?;
        let fit = self.log.fit(bytes);
        // Once trims have begun to use the reserve, what is left of it is theirs too.
        let reserved = if purpose == Purpose::Data { RESERVED_SEGMENTS } else { 0 };
        if self.space.borrow().free_count() < reserved + u32::from(fit == Fit::NewSegment) {
            return Err(Error::new(ErrorKind::NoSpace, "the drive's log is full"));
        }
        if fit == Fit::Open {
            return Ok(Some(()));
        }
        self.seal();
        if !self.log.has_free_buffer() {
            return Ok(None);
        }
        if fit == Fit::NewSegment {
            self.next_segment();
        }
        self.log.begin_batch();
        Ok(Some(()))
    }

    /// Moves the log on to a free segment; there must be one.
    fn next_segment(&self) {
        let mut space = self.space.borrow_mut();
        if let Some(full) = self.log.tail_segment() {
            space.seal(full);
        }
        let ordinal = self.segments_opened.get();
        self.segments_opened.set(ordinal + 1);
        let generation = generation(self.epoch, ordinal);
        let segment = space.allocate(generation).expect("a free segment was just counted");
        self.log.start_segment(segment, generation);
    }
}

//! The watermark, up to which all batches are durable, and the rules for moving it.
//!
//! ```text
//!    durable          written                        sealed
//!  =====|---------------|--- in flight, waiting ---|
//!        plain: a sync that begins now covers it
//!        durable append: already durable, but the watermark passes it only after all before it
//! ```
//!
//! A batch for which a flush waits is appended durably if everything before it is durable, is being
//! made durable by the sync in progress, or is itself a durable append. Otherwise the flush needs a
//! sync anyway, which also covers a plain append.
//!
//! This module does no I/O and does not depend on buffers.

use super::ChainEnd;
use crate::base::SeqNo;

/// The watermark of one log.
#[derive(Debug)]
pub(super) struct Watermark {
    durable: ChainEnd,
    /// The newest batch passed to a writer to be appended plainly, and the newest batch that is
    /// written together with all previous ones.
    plain_taken: SeqNo,
    plain_written: SeqNo,
    /// The newest batch for which a flush of the host waits.
    wanted: SeqNo,
    /// The batches covered by the sync in progress or, if there is none, the last sync.
    synced: SeqNo,
    /// Whether the medium has durable appends.
    is_possible: bool,
    /// Whether the medium has failed. If so, no durable append counts any more.
    has_failed: bool,
}

impl Watermark {
    /// Creates the watermark of a log whose batches are all durable.
    pub(super) fn new(end: ChainEnd, is_possible: bool) -> Self {
        let seq = end.seq;
        Self {
            durable: end,
            plain_taken: seq,
            plain_written: seq,
            wanted: seq,
            synced: seq,
            is_possible,
            has_failed: false,
        }
    }

    /// Returns the last batch that is durable together with all previous ones.
    pub(super) fn durable(&self) -> ChainEnd {
        self.durable
    }

    /// Records that a flush of the host waits for a batch.
    pub(super) fn want(&mut self, seq: SeqNo) {
        self.wanted = self.wanted.max(seq);
    }

    /// Returns whether a batch that is passed to a writer now must be appended durably.
    /// `is_repeated` states that the medium had no space for the batch before. Such a batch is
    /// appended plainly, since the sync after a plain append distinguishes the errors.
    pub(super) fn take(&mut self, seq: SeqNo, is_repeated: bool) -> bool {
        assert!(seq > self.durable.seq, "a batch is written before it is durable");
        let covered = self.durable.seq.max(self.synced);
        let is_next = self.plain_taken <= covered;
        let is_possible = self.is_possible && !self.has_failed;
        let is_durable = is_possible && !is_repeated && seq <= self.wanted && is_next;
        if !is_durable {
            self.plain_taken = self.plain_taken.max(seq);
        }
        is_durable
    }

    /// Records that a batch and all previous ones are written, this one by an append that may be
    /// durable (`is_durable`).
    pub(super) fn written(&mut self, end: ChainEnd, is_durable: bool) {
        assert!(end.seq > self.plain_written, "batches are written in order");
        if !is_durable {
            self.plain_written = end.seq;
        }
        self.advance(end);
    }

    /// Moves the watermark over durable appends up to `written`, if no plain append is left among
    /// them.
    fn advance(&mut self, written: ChainEnd) {
        assert!(written.seq >= self.durable.seq, "durable batches are written");
        if self.plain_written <= self.durable.seq && !self.has_failed {
            self.durable = written;
        }
    }

    /// Records that the medium has failed. Of two concurrent operations that sync, only one may
    /// receive the error of a loss that concerns both, so a success after it proves nothing.
    pub(super) fn fail(&mut self) {
        self.has_failed = true;
    }

    /// Returns whether [`Watermark::fail`] was called.
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Returns whether a flush of the host waits, or waited, for a batch after `confirmed`.
    pub(super) fn wants_more_than(&self, confirmed: SeqNo) -> bool {
        self.wanted > confirmed
    }

    /// Records that a sync begins, which covers everything up to `written`.
    pub(super) fn sync_began(&mut self, written: ChainEnd) {
        assert!(written.seq >= self.synced, "a sync covers no less than the last");
        self.synced = written.seq;
    }

    /// Records that a sync that covers everything up to `end` has succeeded; batches up to
    /// `written` are written by now.
    pub(super) fn sync_ended(&mut self, end: ChainEnd, written: ChainEnd) {
        assert!(end.seq <= written.seq, "a batch is written before it is durable");
        if end.seq > self.durable.seq && !self.has_failed {
            self.durable = end;
        }
        self.advance(written);
    }

    /// Returns whether some written batches become durable only by a sync that has not begun yet.
    pub(super) fn needs_sync(&self) -> bool {
        self.plain_written > self.durable.seq.max(self.synced)
    }
}

#[cfg(test)]
mod tests {
    //! Goal: the watermark moves over durable appends exactly when no plain append is left before
    //! them, whatever the order of events.
    //! Method: a few batches by hand; the crash tests cover random orders.

    use super::*;

    fn at(seq: u64) -> ChainEnd {
        ChainEnd { seq: SeqNo(seq), checksum: seq }
    }

    fn new() -> Watermark {
        let mut watermark = Watermark::new(at(10), true);
        watermark.want(SeqNo(100));
        watermark
    }

    #[test]
    fn durable_appends_move_it_one_by_one() {
        let mut watermark = new();
        for seq in 11..15 {
            assert!(watermark.take(SeqNo(seq), false));
        }
        for seq in 11..15 {
            watermark.written(at(seq), true);
            assert_eq!(watermark.durable(), at(seq));
            assert!(!watermark.needs_sync());
        }
        assert!(!watermark.take(SeqNo(101), false), "no flush waits for it");
        assert!(!Watermark::new(at(10), false).take(SeqNo(11), false), "the medium cannot");
    }

    #[test]
    fn a_plain_batch_stops_it_until_a_sync_that_covers_it() {
        let mut watermark = new();
        assert!(!watermark.take(SeqNo(11), true));
        assert!(!watermark.take(SeqNo(12), false), "a sync is needed anyway");
        watermark.written(at(11), false);
        watermark.written(at(12), false);
        assert!(watermark.needs_sync());
        watermark.sync_began(at(12));
        assert!(!watermark.needs_sync());
        // Covered by the sync in progress, not durable yet.
        assert!(watermark.take(SeqNo(13), false));
        watermark.written(at(13), true);
        assert_eq!(watermark.durable(), at(10));
        watermark.sync_ended(at(12), at(13));
        assert_eq!(watermark.durable(), at(13));
    }

    #[test]
    fn a_plain_batch_that_arrived_during_a_sync_needs_another() {
        let mut watermark = new();
        assert!(!watermark.take(SeqNo(11), true));
        watermark.written(at(11), false);
        watermark.sync_began(at(11));
        assert!(!watermark.take(SeqNo(12), true));
        watermark.written(at(12), false);
        assert!(watermark.needs_sync());
        watermark.sync_ended(at(11), at(12));
        assert_eq!(watermark.durable(), at(11));
        watermark.sync_began(at(12));
        watermark.sync_ended(at(12), at(12));
        assert_eq!(watermark.durable(), at(12));
    }

    #[test]
    fn after_a_failure_no_sync_counts() {
        let mut watermark = new();
        assert!(!watermark.take(SeqNo(11), true));
        watermark.written(at(11), false);
        watermark.sync_began(at(11));
        watermark.fail();
        watermark.sync_ended(at(11), at(11));
        assert_eq!(watermark.durable(), at(10));
    }

    #[test]
    fn after_a_failure_no_durable_append_counts() {
        let mut watermark = new();
        assert!(watermark.take(SeqNo(11), false));
        watermark.fail();
        watermark.written(at(11), true);
        assert_eq!(watermark.durable(), at(10));
        assert!(!watermark.take(SeqNo(12), false), "nothing would come of it");
    }
}

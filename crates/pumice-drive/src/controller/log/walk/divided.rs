//! A write that is divided between two batches: both count, or neither does.
//!
//! The first batch states that it needs the next one. If the next one does not continue the log,
//! the log ends before the first batch, as if it were torn. Since the first is intact, recovery
//! overwrites it with zeroes: a later opening, which may find its number in another stream, must
//! not accept it.

use super::super::batch_bytes;
use super::{Batch, Pages, Step, Walk};
use crate::base::{Result, SegmentId, SeqNo};

impl Walk<'_> {
    /// Moves past a batch that counts only together with the next one, and returns it. Returns
    /// `None` if the next one does not continue the log.
    pub(super) async fn enter_both(
        &mut self,
        step: Step,
        lowest_empty: &dyn Fn(usize) -> Vec<SegmentId>,
    ) -> Result<Option<Batch<'_>>> {
        let (positions, seq, chain) = (self.positions, self.seq, self.chain);
        let (watermark, epoch, totals) = (self.watermark, self.epoch, self.totals);
        let (unproven, completed) = (self.unproven.clone(), self.completed.len());
        let Batch { header, enters, body, damage } = self.enter(step)?;
        let body = body.to_vec();
        self.ahead = self.find(lowest_empty).await?;
        if self.ahead.is_some() {
            self.body = body;
            return Ok(Some(Batch { header, enters, body: &self.body, damage }));
        }
        (self.positions, self.seq, self.chain) = (positions, seq, chain);
        (self.watermark, self.epoch, self.totals) = (watermark, epoch, totals);
        self.unproven = unproven;
        self.completed.truncate(completed);
        // This also counts the batch.
        let number = SeqNo(seq.0 + 1);
        if self.is_proven(number, lowest_empty).await? {
            return Err(self.missing(SeqNo(number.0 + 1), None));
        }
        let bytes = vec![0; batch_bytes(&header) as usize];
        self.completed.push(Pages { segment: header.segment, offset: header.offset, bytes });
        Ok(None)
    }
}

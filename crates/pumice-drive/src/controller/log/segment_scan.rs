//! Reading every batch of one segment, wherever in the log it belongs: what garbage collection,
//! `check`, scrubbing and `rebuild` share.
//!
//! A batch counts if its header is whole and was written for this place in this use of the segment.
//! It may still belong to a life that was lost: the map decides whether anything in it is live.
//! After a damaged header the scan searches for the next whole one.
//!
//! Only reads. Bytes from the medium are never trusted.

use super::window::Window;
use super::{FIRST_BATCH_OFFSET, SEQ_END, UNIT, batch_bytes};
use crate::base::SegmentId;
use crate::format::{BATCH_HEADER_BYTES, BatchHeader, DriveShape};
use crate::media::Medium;

/// A scan of one segment.
pub(crate) struct SegmentScan<'a, M> {
    window: Window<'a, M>,
    uuid: uuid::Uuid,
    segment: SegmentId,
    generation: u64,
    segment_bytes: u32,
    offset: u32,
    /// Bytes between batches in which no batch was found.
    pub(crate) skipped_bytes: u64,
}

impl<'a, M: Medium> SegmentScan<'a, M> {
    /// Begins a scan of `segment` in its use `generation`, at the front.
    pub(crate) fn new(
        medium: &'a M,
        uuid: uuid::Uuid,
        shape: &DriveShape,
        segment: SegmentId,
        generation: u64,
    ) -> Self {
        assert!(segment.0 < shape.segment_count, "a segment that is scanned exists");
        Self {
            window: Window::new(medium, shape.segment_bytes),
            uuid,
            segment,
            generation,
            segment_bytes: shape.segment_bytes,
            offset: FIRST_BATCH_OFFSET,
            skipped_bytes: 0,
        }
    }

    /// Returns the next batch: its header and the bytes after it. `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<(BatchHeader, &[u8])> {
        assert!(self.offset.is_multiple_of(UNIT), "a scan stops between batches");
        let mut at = self.offset;
        let header = loop {
            if at >= self.segment_bytes {
                self.offset = at;
                return None;
            }
            let bytes = self.window.read(self.segment, at, UNIT).await;
            match BatchHeader::decode(bytes) {
                Ok((header, _)) if self.belongs(&header, at) => break header,
                _ => at += UNIT,
            }
        };
        self.skipped_bytes += u64::from(at - self.offset);
        let batch_bytes = batch_bytes(&header);
        self.offset = at + batch_bytes;
        assert!(self.offset <= self.segment_bytes, "a batch that belongs here ends here");
        let bytes = self.window.read(self.segment, at, batch_bytes).await;
        let (_, body) = bytes.split_at(BATCH_HEADER_BYTES);
        assert_eq!(body.len(), header.body_bytes as usize, "a batch is read whole");
        Some((header, body))
    }

    /// Returns how far the scan has come in the segment.
    pub(crate) fn offset(&self) -> u32 {
        self.offset
    }

    fn belongs(&self, header: &BatchHeader, at: u32) -> bool {
        header.uuid == self.uuid
            && header.generation == self.generation
            && header.segment == self.segment
            && header.offset == at
            && (header.watermark < header.seq && header.seq.0 < SEQ_END)
            && header.batch_bytes() <= u64::from(self.segment_bytes - at)
    }
}

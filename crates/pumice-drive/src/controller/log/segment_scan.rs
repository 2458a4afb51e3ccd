//! Reading every batch of one segment, wherever in the log it belongs: what garbage collection,
//! `check`, scrubbing and `rebuild` share.
//!
//! A batch counts if its header is whole and was written for this place in this use of the segment.
//! It may still belong to a life that was lost: the map decides whether anything in it is live.
//! After a damaged header the scan searches for the next whole one.
//!
//! Only reads. Bytes from the medium are never trusted.

use super::window::Window;
use crate::base::SegmentId;
use crate::format::{
    BATCH_ALIGNMENT, BATCH_HEADER_BYTES, BatchHeader, DriveShape, SEGMENT_HEADER_BYTES,
};
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
        Self {
            window: Window::new(medium, shape.segment_bytes),
            uuid,
            segment,
            generation,
            segment_bytes: shape.segment_bytes,
            offset: SEGMENT_HEADER_BYTES as u32,
            skipped_bytes: 0,
        }
    }

    /// Returns the next batch: its header and the bytes after it. `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<(BatchHeader, &[u8])> {
        let mut at = self.offset;
        let header = loop {
            if at >= self.segment_bytes {
                self.offset = at;
                return None;
            }
            let bytes = self.window.read(self.segment, at, BATCH_ALIGNMENT as u32).await;
            match BatchHeader::decode(bytes) {
                Ok((header, _)) if self.belongs(&header, at) => break header,
                _ => at += BATCH_ALIGNMENT as u32,
            }
        };
        self.skipped_bytes += u64::from(at - self.offset);
        let batch_bytes = header.batch_bytes() as u32;
        self.offset = at + batch_bytes;
        let bytes = self.window.read(self.segment, at, batch_bytes).await;
        Some((header, &bytes[BATCH_HEADER_BYTES..]))
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
            && header.batch_bytes() <= u64::from(self.segment_bytes - at)
    }
}

//! Reading every batch of one segment, wherever in the log it belongs: what garbage collection,
//! `check`, scrubbing and `rebuild` share.
//!
//! A batch counts if its header is whole and was written for this place in this use of the segment.
//! It may still belong to a life that was lost: the map decides whether anything in it is live.
//! Damaged headers are restored from the batch's parity; after one that cannot be, the scan
//! searches for the next whole one.
//!
//! Only reads. Bytes from the medium are never trusted.

use super::parity::Append;
use super::records::records;
use super::window::Window;
use super::{FIRST_BATCH_OFFSET, SEQ_END, UNIT, batch_bytes};
use crate::base::SegmentId;
use crate::format::{BATCH_HEADER_BYTES, BatchHeader, DriveShape};
use crate::media::AnyMedium;

/// A scan of one segment.
pub(crate) struct SegmentScan<'a> {
    window: Window<'a>,
    uuid: uuid::Uuid,
    segment: SegmentId,
    generation: u64,
    segment_bytes: u32,
    offset: u32,
    /// Bytes between batches in which no batch was found.
    pub(crate) skipped_bytes: u64,
    /// Whether a header in the newest batch, its own or a record's, was restored from parity.
    is_restored: bool,
    restored: Vec<u8>,
}

impl<'a> SegmentScan<'a> {
    /// Begins a scan of `segment` in its use `generation`, at the front.
    pub(crate) fn new(
        medium: &'a dyn AnyMedium,
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
            is_restored: false,
            restored: Vec::new(),
        }
    }

    /// Continues the scan at the batch at `offset`.
    pub(crate) fn at(self, offset: u32) -> Self {
        Self { offset, ..self }
    }

    /// Returns the next batch: its header and the bytes after it. `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<(BatchHeader, &[u8])> {
        assert!(self.offset.is_multiple_of(UNIT), "a scan stops between batches");
        let mut at = self.offset;
        let cipher = self.window.medium().cipher();
        self.is_restored = false;
        let header = loop {
            if at >= self.segment_bytes {
                self.offset = at;
                return None;
            }
            let bytes = self.window.read(self.segment, at, UNIT).await;
            match BatchHeader::decode_with(bytes, cipher) {
                Ok((header, _)) if self.belongs(&header, at) => break header,
                _ if at == self.offset && self.restore(at).await.is_some() => {}
                _ => at += UNIT,
            }
            if self.is_restored {
                let (header, _) = BatchHeader::decode_with(&self.restored, cipher).ok()?;
                break header;
            }
        };
        self.skipped_bytes += u64::from(at - self.offset);
        let batch_bytes = batch_bytes(&header);
        self.offset = at + batch_bytes;
        assert!(self.offset <= self.segment_bytes, "a batch that belongs here ends here");
        let is_restorable = header.parity_pages > 0 || self.window.medium().copies().len() > 1;
        if !self.is_restored && is_restorable {
            let bytes = self.window.read(self.segment, at, batch_bytes).await;
            let (_, body) = bytes.split_at(BATCH_HEADER_BYTES);
            if records(cipher, &header, body).any(|found| found.is_err()) {
                self.restore(at).await;
            }
        }
        let bytes = if self.is_restored {
            &self.restored
        } else {
            self.window.read(self.segment, at, batch_bytes).await
        };
        let (_, body) = bytes.split_at(BATCH_HEADER_BYTES);
        assert_eq!(body.len(), header.body_bytes as usize, "a batch is read whole");
        Some((header, body))
    }

    /// Restores the headers of the batch at `at` from another copy or its parity.
    async fn restore(&mut self, at: u32) -> Option<()> {
        if let Some(batch) = self.copied(at).await {
            self.restored = batch;
            self.is_restored = true;
            return Some(());
        }
        let Self { segment, generation, .. } = *self;
        // The scan's own may hold what follows.
        let medium = self.window.medium();
        let cipher = medium.cipher();
        let mut window = Window::new(medium, self.segment_bytes);
        let belongs = |header: &BatchHeader| self.belongs(header, at);
        let append = Append::read(&mut window, segment, Some(generation), at, &belongs).await;
        let mut append = append?;
        let are_whole = |append: &Append| {
            let split = append.batch().split_at_checked(BATCH_HEADER_BYTES);
            split.is_some_and(|(head, body)| {
                BatchHeader::decode_with(head, cipher).is_ok_and(|(header, _)| {
                    belongs(&header) && records(cipher, &header, body).all(|found| found.is_ok())
                })
            })
        };
        if !append.restore(0..u32::MAX, &mut |append| are_whole(append)) {
            return None;
        }
        tracing::warn!(%segment, offset = at, "a damaged batch was restored from parity");
        self.restored = append.into_batch();
        self.is_restored = true;
        Some(())
    }

    /// Returns the batch at `at` from the first copy in which its headers are whole, if the medium
    /// has several.
    async fn copied(&self, at: u32) -> Option<Vec<u8>> {
        let medium = self.window.medium();
        let copies = medium.copies();
        if copies.len() == 1 {
            return None;
        }
        let mut window = Window::new(medium, self.segment_bytes);
        for copy in copies {
            window.read_copy(Some(copy));
            let bytes = window.read(self.segment, at, UNIT).await;
            let Ok((header, _)) = BatchHeader::decode_with(bytes, medium.cipher()) else {
                continue;
            };
            if !self.belongs(&header, at) {
                continue;
            }
            let bytes = window.read(self.segment, at, batch_bytes(&header)).await;
            let (_, body) = bytes.split_at(BATCH_HEADER_BYTES);
            if records(medium.cipher(), &header, body).all(|found| found.is_ok()) {
                return Some(bytes.to_vec());
            }
        }
        None
    }

    /// Returns whether the newest batch, which began at `at`, has parity, and something in it is
    /// damaged on the medium.
    pub(crate) async fn is_damaged(&mut self, at: u32) -> bool {
        if self.is_restored {
            return true;
        }
        let (segment, generation) = (self.segment, Some(self.generation));
        let append = Append::read(&mut self.window, segment, generation, at, &|_| true).await;
        append.is_some_and(|append| !append.is_parity_right())
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

//! Reading every batch of one segment, wherever in the log it belongs. This code is shared by
//! garbage collection, `check`, scrubbing and `rebuild`.
//!
//! A batch counts if its header is intact and was written for this place in this use of the
//! segment. It may still belong to a lost life: the map determines whether anything in it is live.
//! Damaged headers are restored from the batch's parity, or from its [echo] if that is in the
//! segment; after a header that cannot be restored, the scan searches for the next intact one.
//!
//! This module only reads. Bytes from the medium are never trusted.

use super::echo;
use super::parity::Append;
use super::records::{records, records_and_padding};
use super::window::Window;
use super::{FIRST_BATCH_OFFSET, SEQ_END, UNIT, batch_bytes};
use crate::base::SegmentId;
use crate::format::{BATCH_HEADER_BYTES, BatchHeader, DriveShape};
use crate::media::AnyMedium;

pub(crate) struct SegmentScan<'a> {
    window: Window<'a>,
    uuid: uuid::Uuid,
    segment: SegmentId,
    generation: u64,
    segment_bytes: u32,
    offset: u32,
    /// Bytes between batches in which no batch was found.
    pub(crate) skipped_bytes: u64,
    /// Whether a header in the newest batch, either of the batch or of a record, was restored.
    is_restored: bool,
    /// Whether they were restored from the next batch, which reads of a frame do not use.
    is_from_echo: bool,
    restored: Vec<u8>,
}

impl<'a> SegmentScan<'a> {
    /// Begins a scan of `segment` in its use `generation`, at the start.
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
            is_from_echo: false,
            restored: Vec::new(),
        }
    }

    /// Continues the scan at the batch at `offset`.
    pub(crate) fn at(self, offset: u32) -> Self {
        assert!(offset >= FIRST_BATCH_OFFSET, "the header of a segment is no batch");
        Self { offset, ..self }
    }

    /// Returns the next batch: its header and the bytes after it. Returns `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<(BatchHeader, &[u8])> {
        assert!(self.offset.is_multiple_of(UNIT), "a scan stops between batches");
        let mut at = self.offset;
        let cipher = self.window.medium().cipher();
        (self.is_restored, self.is_from_echo) = (false, false);
        let mut header = loop {
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
        if at > self.offset {
            header = self.restore_before(at, self.offset).await.unwrap_or(header);
        }
        if !self.is_restored {
            let bytes = self.window.read(self.segment, at, batch_bytes(&header)).await;
            let (_, body) = bytes.split_at(BATCH_HEADER_BYTES);
            let is_damaged = records(cipher, &header, body).any(|found| found.is_err());
            if is_damaged && self.restore(at).await.is_none() {
                let after = at + batch_bytes(&header);
                header = self.restore_before(after, at).await.unwrap_or(header);
            }
        }
        let (at, batch_bytes) = (header.offset, batch_bytes(&header));
        assert!(at >= self.offset, "a scan moves forward");
        self.skipped_bytes += u64::from(at - self.offset);
        self.offset = at + batch_bytes;
        assert!(self.offset <= self.segment_bytes, "a batch that belongs here ends here");
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
        // The scan's own window may contain the subsequent data.
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

    /// Restores the headers of the batch that the batch at `at` repeats, if it begins between
    /// `from` and `at`. Returns its batch header.
    async fn restore_before(&mut self, at: u32, from: u32) -> Option<BatchHeader> {
        let cipher = self.window.medium().cipher();
        if at >= self.segment_bytes {
            return None;
        }
        let head = self.window.read(self.segment, at, UNIT).await;
        let (after, _) = BatchHeader::decode_with(head, cipher).ok()?;
        if !self.belongs(&after, at) {
            return None;
        }
        let bytes = self.window.read(self.segment, at, batch_bytes(&after)).await;
        let padding = records_and_padding(&after, bytes.get(BATCH_HEADER_BYTES..)?)?.1.to_vec();
        let (header, _) = echo::echoed(&after, &padding, cipher)?;
        let offset = header.offset;
        let is_between = (from..at).contains(&offset) && offset.is_multiple_of(UNIT);
        let is_one = is_between && self.belongs(&header, offset);
        if !is_one || batch_bytes(&header) > at - offset {
            return None;
        }
        let bytes = self.window.read(self.segment, offset, batch_bytes(&header)).await;
        let mut batch = bytes.to_vec();
        if !echo::restore(&header, &padding, cipher, &mut batch) {
            return None;
        }
        let segment = self.segment;
        tracing::warn!(%segment, offset, "headers of a batch were restored from the one after it");
        self.restored = batch;
        (self.is_restored, self.is_from_echo) = (true, true);
        Some(header)
    }

    /// Returns the batch at `at` from the first copy in which its headers are intact, if the medium
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

    /// Returns whether a part of the newest batch, which began at `at`, is damaged on the medium,
    /// that is, was restored or does not match the parity.
    pub(crate) async fn is_damaged(&mut self, at: u32) -> bool {
        if self.is_restored {
            return true;
        }
        let (segment, generation) = (self.segment, Some(self.generation));
        let append = Append::read(&mut self.window, segment, generation, at, &|_| true).await;
        append.is_some_and(|append| !append.is_parity_right())
    }

    /// Returns whether headers in the newest batch were restored from the batch after it.
    pub(crate) fn is_from_echo(&self) -> bool {
        self.is_from_echo
    }

    /// Returns the scan's offset in the segment.
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

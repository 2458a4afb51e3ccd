//! Packing records into the buffer of the open batch, byte by byte.
//!
//! ```text
//! buffer: | [segment header 4096] | batch header 128 | record | record | ...used | limit | slack |
//!         '--- base in the segment
//! ```
//!
//! The codec writes straight into the buffer; the slack behind the limit is room for a codec's
//! worst case and never reaches the medium. Does no I/O and knows no order of batches.

use std::sync::Arc;

use super::l2p::FramePlace;
use crate::base::checksum::crc64;
use crate::base::units::BLOCK_BYTES;
use crate::base::{AlignedBuffer, Lba, SegmentId};
use crate::codec::Compressor;
use crate::format::{
    BATCH_ALIGNMENT, BATCH_HEADER_BYTES, BatchHeader, FRAME_BLOCKS_MAX, RECORD_HEADER_BYTES,
    Record, RecordPlace, SEGMENT_HEADER_BYTES, SegmentHeader, chain_record,
};

/// Bytes of a batch buffer that may reach the medium. Larger batches save media operations, but
/// past 1 MiB of payload no medium here gets faster; it must hold an atomic write (1 MiB) with a
/// record header for each block, a batch header and a segment header.
pub(crate) const BATCH_LIMIT: usize = (1 << 20) + (64 << 10);

/// Where a batch goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchPlace {
    /// The segment.
    pub(crate) segment: SegmentId,
    /// Its generation.
    pub(crate) generation: u64,
    /// Byte offset in the segment of the buffer's first byte.
    pub(crate) base: u32,
}

/// A batch that still takes records.
pub(crate) struct OpenBatch {
    buffer: Arc<AlignedBuffer>,
    place: BatchPlace,
    header_at: usize,
    used: usize,
    limit: usize,
    record_count: u32,
    records_checksum: u64,
}

/// A buffer for one batch.
pub(crate) fn batch_buffer() -> Arc<AlignedBuffer> {
    Arc::new(AlignedBuffer::zeroed(batch_buffer_bytes()))
}

/// Bytes of memory of a batch buffer.
pub(crate) fn batch_buffer_bytes() -> usize {
    let slack = Compressor::target_bytes(FRAME_BLOCKS_MAX as usize * BLOCK_BYTES);
    (BATCH_LIMIT + slack).next_multiple_of(BATCH_ALIGNMENT)
}

/// The most bytes that writing `blocks` blocks can take in a batch.
pub(crate) fn worst_case_bytes(blocks: usize) -> usize {
    blocks * (BLOCK_BYTES + RECORD_HEADER_BYTES)
}

impl OpenBatch {
    /// Begins a batch at `place` in a buffer that nobody else holds, up to `segment_end`; with
    /// `segment_header` it is the first of its segment.
    pub(crate) fn begin(
        mut buffer: Arc<AlignedBuffer>,
        place: BatchPlace,
        segment_header: Option<&SegmentHeader>,
        segment_end: u32,
    ) -> Self {
        let bytes = exclusive(&mut buffer);
        bytes.set_len(bytes.capacity());
        let mut header_at = 0;
        if let Some(header) = segment_header {
            header.encode_into(bytes);
            header_at = SEGMENT_HEADER_BYTES;
        }
        let limit = BATCH_LIMIT.min((segment_end - place.base) as usize);
        let used = header_at + BATCH_HEADER_BYTES;
        Self { buffer, place, header_at, used, limit, record_count: 0, records_checksum: 0 }
    }

    /// Bytes of records that still fit.
    pub(crate) fn room(&self) -> usize {
        self.limit - self.used
    }

    /// Whether it holds no record yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.record_count == 0
    }

    /// The buffer of a batch that is given up.
    pub(crate) fn into_buffer(self) -> Arc<AlignedBuffer> {
        self.buffer
    }

    /// Where in the segment the batch would end if it were sealed now.
    pub(crate) fn end(&self) -> u32 {
        self.place.base + self.used.next_multiple_of(BATCH_ALIGNMENT) as u32
    }

    /// Compresses `bytes` (whole blocks, at most a frame) into the batch. The caller has made sure
    /// of the room.
    pub(crate) fn push_frame(
        &mut self,
        lba: Lba,
        bytes: &[u8],
        compressor: &mut Compressor,
    ) -> FramePlace {
        let place = self.record_place();
        let payload_at = self.used + RECORD_HEADER_BYTES;
        let buffer = exclusive(&mut self.buffer);
        let (encoding, stored) = compressor.compress(bytes, &mut buffer[payload_at..]);
        let payload = &buffer[payload_at..payload_at + stored];
        let blocks = (bytes.len() / BLOCK_BYTES) as u16;
        let record = Record::Data {
            lba,
            lba_count: blocks,
            encoding: encoding as u8,
            stored_bytes: stored as u32,
            payload_checksum: crc64(payload),
        };
        record.encode_into(place, &mut buffer[self.used..]);
        self.advance(record.record_bytes() as usize);
        FramePlace {
            segment: place.segment.0,
            offset: place.offset,
            record_bytes: record.record_bytes(),
            blocks: blocks as u8,
        }
    }

    /// Adds a record without payload: a fill or a trim.
    pub(crate) fn push_range(&mut self, record: &Record) {
        let place = self.record_place();
        record.encode_into(place, &mut exclusive(&mut self.buffer)[self.used..]);
        self.advance(record.record_bytes() as usize);
    }

    /// The bytes from segment offset `offset` to the end of the records, if they are here.
    pub(crate) fn bytes_from(&self, segment: u32, offset: u32) -> Option<&[u8]> {
        let here = segment == self.place.segment.0 && offset >= self.place.base;
        if !here {
            return None;
        }
        self.buffer.get((offset - self.place.base) as usize..self.used)
    }

    /// Ends the batch: pads it, completes `header` (everything but what is known here) and gives
    /// the bytes to append at the batch's place, and the header's checksum.
    pub(crate) fn seal(mut self, header: BatchHeader) -> (BatchPlace, Arc<AlignedBuffer>, u64) {
        let end = self.used.next_multiple_of(BATCH_ALIGNMENT);
        let body_at = self.header_at + BATCH_HEADER_BYTES;
        let (used, header_at) = (self.used, self.header_at);
        let records_checksum = self.records_checksum;
        let buffer = exclusive(&mut self.buffer);
        buffer[used..end].fill(0);
        let header = BatchHeader {
            records_checksum,
            generation: self.place.generation,
            segment: self.place.segment,
            offset: self.place.base + header_at as u32,
            body_bytes: (end - body_at) as u32,
            record_bytes: (used - body_at) as u32,
            record_count: self.record_count,
            ..header
        };
        let checksum = header.encode_into(&mut buffer[header_at..]);
        buffer.set_len(end);
        (self.place, self.buffer, checksum)
    }

    fn record_place(&self) -> RecordPlace {
        RecordPlace {
            generation: self.place.generation,
            segment: self.place.segment,
            offset: self.place.base + self.used as u32,
        }
    }

    /// Takes in the record of `bytes` bytes that was just written.
    fn advance(&mut self, bytes: usize) {
        let header = self.buffer[self.used..].first_chunk().expect("the record's header");
        self.records_checksum = chain_record(self.records_checksum, header);
        self.used += bytes;
        self.record_count += 1;
        assert!(self.used <= self.limit, "a batch was filled beyond its limit");
    }
}

fn exclusive(buffer: &mut Arc<AlignedBuffer>) -> &mut AlignedBuffer {
    Arc::get_mut(buffer).expect("the open batch's buffer is shared")
}

//! Packing records into the buffer of the open batch, byte by byte.
//!
//! ```text
//! buffer: | [segment header 4096] | batch header 128 | record | record | ...used | limit | slack |
//!         '--- base in the segment
//! ```
//!
//! The codec writes directly into the buffer; the slack after the limit is space for a codec's
//! worst case and never reaches the medium. This module does no I/O and does not depend on the
//! order of batches.
//!
//! Frames are packed byte by byte. Metadata records are padded to 16 bytes. Their stream contains
//! nothing else, except the record that closes a segment, so all of them begin at a multiple of 16
//! bytes.

use std::sync::Arc;

use super::super::place::{FrameAddress, FramePlace};
use crate::base::checksum::crc64;
use crate::base::units::{BLOCK_BYTES, len_u32};
use crate::base::{AlignedBuffer, Lba, SegmentId};
use crate::codec::{Compressor, Encoding};
use crate::crypt::{Binding, Cipher, NONCE_BYTES, SEAL_BYTES};
use crate::format::{
    BATCH_ALIGNMENT, BATCH_BYTES_MAX, BATCH_HEADER_BYTES, BatchHeader, FRAME_BLOCKS_MAX,
    META_ALIGNMENT, META_PREFIX_BYTES, MetaKind, MetadataAddress, RECORD_HEADER_BYTES, Record,
    RecordAddress, SEALED, SEGMENT_HEADER_BYTES, SOURCE_BYTES, SegmentHeader, Source, Stream,
    chain_record,
};

use super::parity::{fill_parity, parity_pages, room_beside_parity};
use super::payload::encode_sealed;

/// A host write of up to this many bytes is atomic; a longer one is cut, between blocks, into
/// pieces of at most this size.
pub const ATOMIC_WRITE_BYTES: usize = 1 << 20;

/// Bytes of a batch buffer that may reach the medium. Larger batches save media operations, but
/// beyond 1 MiB of payload no medium here becomes faster. The limit must accommodate an atomic
/// write (1 MiB) with a record header for each block, a batch header, a segment header and a page
/// of parity.
pub(crate) const BATCH_LIMIT: usize = (1 << 20) + (64 << 10);
const _: () = assert!(
    BATCH_LIMIT
        >= SEGMENT_HEADER_BYTES
            + BATCH_HEADER_BYTES
            + ATOMIC_WRITE_BYTES
            + ATOMIC_WRITE_BYTES / BLOCK_BYTES * (RECORD_HEADER_BYTES + SEAL_BYTES)
            + BATCH_ALIGNMENT,
    "a batch holds any atomic write"
);
const _: () = assert!(BATCH_LIMIT <= BATCH_BYTES_MAX, "every reader can hold a batch");

/// Bytes of records for which any empty batch of data has space in addition to its parity,
/// including the first batch of a segment.
pub(crate) const RECORDS_BYTES_MAX: usize =
    BATCH_LIMIT - SEGMENT_HEADER_BYTES - BATCH_HEADER_BYTES - BATCH_ALIGNMENT;

/// Location of a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchPlace {
    pub(crate) segment: SegmentId,
    pub(crate) generation: u64,
    /// Byte offset in the segment of the buffer's first byte.
    pub(crate) base: u32,
}

/// A batch that still accepts records.
pub(crate) struct OpenBatch {
    buffer: Arc<AlignedBuffer>,
    place: BatchPlace,
    header_at: usize,
    used: usize,
    limit: usize,
    record_count: u32,
    records_checksum: u32,
    /// See [`BatchHeader::needs_next`].
    needs_next: bool,
    /// Its headers, for its [echo](super::echo); headers too long for any padding are not stored.
    headers: Vec<u8>,
    stream: Stream,
    cipher: Cipher,
}

/// A metadata record that was appended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MetaRecord {
    pub(crate) place: MetadataAddress,
    /// The checksum of its stored payload.
    pub(crate) payload_checksum: u64,
}

/// A frame that garbage collection moves, already encoded: the content of its record, its payload
/// and its sources.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MovedFrame<'a> {
    /// First block.
    pub(crate) lba: Lba,
    /// Number of blocks.
    pub(crate) blocks: u8,
    /// Encoding of the payload.
    pub(crate) encoding: u8,
    /// The stored payload.
    pub(crate) payload: &'a [u8],
    /// Its checksum. A damaged payload retains it, and thus stays damaged.
    pub(crate) payload_checksum: u64,
    /// The frames from which its blocks were copied, in order.
    pub(crate) sources: &'a [Source],
    /// A generation with the key that seals the payload.
    pub(crate) generation: u64,
}

impl MovedFrame<'_> {
    /// Returns the bytes that the frame occupies in a batch.
    pub(crate) fn record_bytes(&self) -> usize {
        RECORD_HEADER_BYTES + self.sources.len() * SOURCE_BYTES + self.payload.len()
    }
}

/// Allocates a buffer for one batch.
pub(crate) fn batch_buffer() -> Arc<AlignedBuffer> {
    Arc::new(AlignedBuffer::zeroed(batch_buffer_bytes()))
}

/// Returns the bytes of memory of a batch buffer.
pub(crate) fn batch_buffer_bytes() -> usize {
    let slack = Compressor::target_bytes(FRAME_BLOCKS_MAX as usize * BLOCK_BYTES) + SEAL_BYTES;
    (BATCH_LIMIT + slack).next_multiple_of(BATCH_ALIGNMENT)
}

/// Returns the maximum number of bytes that a metadata record with `raw_bytes` before encoding, and
/// `seal_bytes` for its seal, can occupy in a batch.
pub(crate) fn meta_bytes_max(raw_bytes: usize, seal_bytes: usize) -> usize {
    let bytes = RECORD_HEADER_BYTES + seal_bytes + META_PREFIX_BYTES + raw_bytes;
    bytes.next_multiple_of(META_ALIGNMENT as usize)
}

/// Returns the maximum number of bytes that moving `blocks` blocks can occupy in a batch: each
/// stored as it is, in a separate frame with `seal_bytes` for its seal.
pub(crate) fn moved_bytes_max(blocks: usize, seal_bytes: usize) -> usize {
    blocks * (RECORD_HEADER_BYTES + SOURCE_BYTES + seal_bytes + BLOCK_BYTES)
}

/// Returns the maximum number of bytes that one frame of `blocks` blocks can occupy in a batch,
/// with `seal_bytes` for its seal.
pub(crate) fn frame_bytes_max(blocks: usize, seal_bytes: usize) -> usize {
    RECORD_HEADER_BYTES + seal_bytes + blocks * BLOCK_BYTES
}

/// Returns the maximum number of bytes that writing `blocks` blocks can occupy in a batch, with
/// `seal_bytes` for the seal of each frame.
pub(crate) fn worst_case_bytes(blocks: usize, seal_bytes: usize) -> usize {
    blocks * (BLOCK_BYTES + RECORD_HEADER_BYTES + seal_bytes)
}

impl OpenBatch {
    /// Begins a batch of a stream at `place` in a buffer without other owners, up to `segment_end`;
    /// the first batch of a segment leaves space for the segment header.
    pub(crate) fn begin(
        mut buffer: Arc<AlignedBuffer>,
        place: BatchPlace,
        stream: Stream,
        segment_end: u32,
        cipher: Cipher,
    ) -> Self {
        let bytes = exclusive(&mut buffer);
        bytes.set_len(bytes.capacity());
        assert_eq!(bytes.len(), batch_buffer_bytes(), "a batch is packed into a batch buffer");
        let header_at = if place.base == 0 { SEGMENT_HEADER_BYTES } else { 0 };
        let room = segment_end.checked_sub(place.base).expect("a batch begins in its segment");
        let limit = room_beside_parity(stream, BATCH_LIMIT.min(room as usize));
        let used = header_at + BATCH_HEADER_BYTES;
        assert!(used <= limit, "a batch has room for its headers");
        Self {
            buffer,
            place,
            header_at,
            used,
            limit,
            record_count: 0,
            records_checksum: 0,
            needs_next: false,
            headers: vec![0; BATCH_HEADER_BYTES],
            stream,
            cipher,
        }
    }

    /// Returns the offset at which the batch begins, if it is in `segment`.
    pub(super) fn begin_in(&self, segment: SegmentId) -> Option<u32> {
        (self.place.segment == segment).then_some(self.place.base)
    }

    /// Returns the bytes of records that still fit.
    pub(crate) fn room(&self) -> usize {
        self.limit.checked_sub(self.used).expect("a batch is filled up to its limit")
    }

    /// Records that its last write ends in the next batch; see [`BatchHeader::needs_next`].
    pub(crate) fn set_needs_next(&mut self) {
        assert!(!self.needs_next, "one write of a batch ends in the next");
        self.needs_next = true;
    }

    /// Returns whether its last write ends in the next batch.
    pub(crate) fn needs_next(&self) -> bool {
        self.needs_next
    }

    /// Returns the bytes of its records.
    pub(crate) fn records_bytes(&self) -> usize {
        self.used - self.header_at - BATCH_HEADER_BYTES
    }

    /// Returns whether it contains no record yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.record_count == 0
    }

    /// Returns the buffer of a batch that is discarded.
    pub(crate) fn into_buffer(self) -> Arc<AlignedBuffer> {
        assert!(self.is_empty(), "a batch that is discarded holds no record");
        self.buffer
    }

    /// Returns the offset in the segment at which the batch would end if it were sealed now.
    pub(crate) fn end(&self) -> u32 {
        self.place.base + len_u32(self.padded_bytes() + self.parity_pages() * BATCH_ALIGNMENT)
    }

    /// Returns the bytes up to the end of the padding.
    fn padded_bytes(&self) -> usize {
        self.used.next_multiple_of(BATCH_ALIGNMENT)
    }

    /// Returns the number of parity pages that the batch would have if it were sealed now.
    fn parity_pages(&self) -> usize {
        parity_pages(self.stream, self.padded_bytes() / BATCH_ALIGNMENT)
    }

    /// Appends a frame of `blocks` blocks. `encode` writes the payload at the start of the bytes
    /// passed to it, by compressing there directly or by copying a payload that another thread has
    /// compressed, and returns the encoding and the length. The caller has checked the space.
    #[inline]
    pub(crate) fn push_frame(
        &mut self,
        lba: Lba,
        blocks: u8,
        encode: impl FnOnce(&mut [u8]) -> (Encoding, usize),
    ) -> FramePlace {
        assert!(blocks > 0, "a frame has a block");
        let place = self.record_address();
        let (rest, cipher) = self.rest();
        let (header, target) = rest.split_at_mut(RECORD_HEADER_BYTES);
        let bind = |encoding| Binding::frame(lba, blocks, encoding);
        let (encoding, stored) = encode_sealed(target, place.generation, cipher, encode, bind);
        let longest = usize::from(blocks) * BLOCK_BYTES + cipher.seal_bytes();
        assert!(stored <= longest, "an encoded frame never grows");
        let payload = target.get(..stored).expect("an encoded frame lies in its target");
        let record = Record::Data {
            lba,
            lba_count: u16::from(blocks),
            source_count: 0,
            encoding,
            stored_bytes: len_u32(stored),
            payload_checksum: crc64(payload),
        };
        record.check_invariants();
        record.encode_with(place, &[], header, cipher);
        self.advance(record.header_bytes(), record.record_bytes() as usize);
        FramePlace {
            segment: place.segment,
            offset: place.offset,
            record_bytes: record.record_bytes(),
            blocks,
        }
    }

    /// Copies a moved frame into the batch as it is. The caller has checked the space.
    pub(crate) fn push_moved(&mut self, frame: &MovedFrame<'_>) -> FramePlace {
        assert!(!frame.sources.is_empty(), "a moved frame names its sources");
        let place = self.record_address();
        let source_count = u8::try_from(frame.sources.len());
        let record = Record::Data {
            lba: frame.lba,
            lba_count: u16::from(frame.blocks),
            source_count: source_count.expect("a frame has no more sources than blocks"),
            encoding: frame.encoding,
            stored_bytes: len_u32(frame.payload.len()),
            payload_checksum: frame.payload_checksum,
        };
        let (rest, cipher) = self.rest();
        let (header, rest) = rest.split_at_mut(record.header_bytes() as usize);
        record.check_invariants();
        record.encode_with(place, frame.sources, header, cipher);
        let (payload, _) = rest.split_at_mut(frame.payload.len());
        payload.copy_from_slice(frame.payload);
        self.advance(record.header_bytes(), record.record_bytes() as usize);
        FramePlace {
            segment: place.segment,
            offset: place.offset,
            record_bytes: record.record_bytes(),
            blocks: frame.blocks,
        }
    }

    /// Adds a record without payload: a fill or a trim.
    pub(crate) fn push_range(&mut self, record: &Record) {
        assert_eq!(record.stored_bytes(), 0, "a record about a range has no payload");
        let place = self.record_address();
        record.check_invariants();
        let (rest, cipher) = self.rest();
        record.encode_with(place, &[], rest, cipher);
        self.advance(record.header_bytes(), record.record_bytes() as usize);
    }

    /// Adds the record that names a stream's next segment. The record may extend beyond the limit,
    /// into the bytes that every segment reserves for it.
    pub(crate) fn push_open(&mut self, record: &Record) {
        assert!(matches!(record, Record::Open { .. }), "only this record has bytes reserved");
        self.limit += RECORD_HEADER_BYTES;
        self.push_range(record);
    }

    /// Encodes a metadata payload into the batch. The caller has checked the space
    /// ([`meta_bytes_max`]).
    pub(crate) fn push_meta(
        &mut self,
        kind: MetaKind,
        number: u64,
        raw: &[u8],
        compressor: &mut Compressor,
    ) -> MetaRecord {
        let place = self.record_address();
        assert!(place.offset.is_multiple_of(META_ALIGNMENT), "metadata is aligned");
        let (rest, cipher) = self.rest();
        let seal_bytes = cipher.seal_bytes();
        let (header, rest) = rest.split_at_mut(RECORD_HEADER_BYTES);
        let (_, clear) = rest.split_at_mut(if cipher.is_plain() { 0 } else { NONCE_BYTES });
        let (prefix, target) = clear.split_at_mut(META_PREFIX_BYTES);
        let (encoding, encoded) = compressor.compress(raw, target);
        assert!(encoded <= raw.len(), "encoded metadata never grows");
        let lengths = [len_u32(raw.len()), len_u32(encoded)].map(u32::to_le_bytes);
        prefix.copy_from_slice(lengths.as_flattened());
        let record_bytes = meta_bytes_max(encoded, seal_bytes);
        let stored_bytes = record_bytes - RECORD_HEADER_BYTES;
        let (clear, _) = clear.split_at_mut(stored_bytes - seal_bytes);
        let (_, padding) = clear.split_at_mut(META_PREFIX_BYTES + encoded);
        padding.fill(0);
        let clear_bytes = clear.len();
        let mut encoding = encoding as u8;
        if !cipher.is_plain() {
            encoding |= SEALED;
            let binding = Binding::metadata(kind as u8, number, encoding, place.bytes());
            cipher.seal(place.generation, binding, rest, clear_bytes);
        }
        let (payload, _) = rest.split_at(stored_bytes);
        let payload_checksum = crc64(payload);
        let record = Record::Meta {
            kind,
            number,
            encoding,
            stored_bytes: len_u32(stored_bytes),
            payload_checksum,
        };
        record.check_invariants();
        record.encode_with(place, &[], header, cipher);
        self.advance(record.header_bytes(), record_bytes);
        let bytes = len_u32(record_bytes);
        let place = MetadataAddress { segment: place.segment, offset: place.offset, bytes };
        MetaRecord { place, payload_checksum }
    }

    /// Returns the bytes from `address` to the end of the records, if they are in this batch.
    pub(crate) fn bytes_from(&self, address: FrameAddress) -> Option<&[u8]> {
        let here = address.segment == self.place.segment && address.offset >= self.place.base;
        if !here {
            return None;
        }
        self.buffer.get((address.offset - self.place.base) as usize..self.used)
    }

    /// Ends the batch: pads it, completes `header` with the values that only the batch knows, and
    /// puts the segment header before the first batch of a segment. Returns the batch's place, the
    /// bytes to append there, and the checksum of the batch header. Puts `echo`, left by the
    /// previous batch, into the padding if it fits, and replaces it by its own headers. A batch
    /// without records only confirms earlier ones.
    pub(crate) fn seal(
        mut self,
        header: BatchHeader,
        segment_header: Option<&SegmentHeader>,
        echo: &mut Vec<u8>,
    ) -> (BatchPlace, Arc<AlignedBuffer>, u64) {
        assert_eq!(
            segment_header.is_some(),
            self.header_at > 0,
            "the first batch of a segment, and no other, follows a segment header"
        );
        let (padded, parity) = (self.padded_bytes(), self.parity_pages());
        let end = padded + parity * BATCH_ALIGNMENT;
        let body_at = self.header_at + BATCH_HEADER_BYTES;
        let (used, header_at) = (self.used, self.header_at);
        let records_checksum = self.records_checksum;
        let buffer = exclusive(&mut self.buffer);
        let padding = buffer.get_mut(used..padded).expect("the padding lies in the buffer");
        padding.fill(0);
        if let Some(target) = padding.get_mut(..echo.len()) {
            target.copy_from_slice(echo);
        }
        if let Some(segment_header) = segment_header {
            segment_header.check_invariants();
            segment_header.encode_into(buffer);
        }
        let header = BatchHeader {
            records_checksum,
            generation: self.place.generation,
            segment: self.place.segment,
            offset: self.place.base + len_u32(header_at),
            body_bytes: len_u32(end - body_at),
            record_bytes: len_u32(used - body_at),
            record_count: self.record_count,
            parity_pages: u8::try_from(parity).expect("a batch has a few pages of parity"),
            needs_next: self.needs_next,
            ..header
        };
        let (_, target) = buffer.split_at_mut(header_at);
        let checksum = header.encode_with(target, &self.cipher);
        let (encoded, _) = target.split_at(BATCH_HEADER_BYTES);
        self.headers.splice(..BATCH_HEADER_BYTES, encoded.iter().copied());
        buffer.set_len(end);
        if parity > 0 {
            fill_parity(buffer, parity);
            self.headers.clear();
        }
        *echo = self.headers;
        (self.place, self.buffer, checksum)
    }

    fn record_address(&self) -> RecordAddress {
        RecordAddress {
            generation: self.place.generation,
            segment: self.place.segment,
            offset: self.place.base + len_u32(self.used),
        }
    }

    /// Returns the unused bytes of the buffer, including slack, and the cipher.
    #[inline]
    fn rest(&mut self) -> (&mut [u8], &Cipher) {
        let rest = exclusive(&mut self.buffer).get_mut(self.used..);
        (rest.expect("a batch is filled up to its limit, which lies in the buffer"), &self.cipher)
    }

    /// Accounts for the most recently written record of `bytes` bytes, of which `header_bytes` are
    /// its header and sources.
    fn advance(&mut self, header_bytes: u32, bytes: usize) {
        assert!(bytes >= RECORD_HEADER_BYTES, "a record has a header");
        let rest = self.buffer.get(self.used..).unwrap_or_default();
        let header = rest.first_chunk().expect("a record's header was written");
        self.records_checksum = chain_record(self.records_checksum, header);
        if self.headers.len() < BATCH_ALIGNMENT {
            self.headers.extend(rest.get(..header_bytes as usize).unwrap_or_default());
        }
        self.used += bytes;
        self.record_count += 1;
        assert!(self.used <= self.limit, "a batch is filled up to its limit");
    }
}

fn exclusive(buffer: &mut Arc<AlignedBuffer>) -> &mut AlignedBuffer {
    Arc::get_mut(buffer).expect("an open batch is the only owner of its buffer")
}

//! Targets for the decoders of `format`: superblock, segment header, batch, record.
//!
//! Each decodes the input as it is, then once more with its checksum put right. What is taken for
//! good must encode to the same bytes again; a superblock to the same values, as a reader ignores
//! some of its fields.

use uuid::Uuid;

use crate::base::checksum::{crc32, crc64};
use crate::base::units::BLOCK_BYTES;
use crate::base::{Result, SegmentId};
use crate::codec::{Codec, Compressor, Decompressor, Encoding};
use crate::format::{
    BATCH_ALIGNMENT, BATCH_BYTES_MAX, BATCH_HEADER_BYTES, BatchHeader, FRAME_BLOCKS_MAX,
    RECORD_HEADER_BYTES, Record, RecordPlace, SEGMENT_HEADER_BYTES, SUPERBLOCK_BYTES,
    SegmentHeader, Superblock, chain_record, check_payload,
};

/// Where the checksum stands in superblocks and segment headers.
const CHECKSUM_AT: usize = 16;

/// Where the checksum stands in batch headers.
const BATCH_CHECKSUM_AT: usize = 8;

/// Blocks of host data that `record` sends through the codecs at most.
const ROUND_TRIP_BLOCKS_MAX: usize = 8;

/// A superblock slot; the input is its beginning.
pub fn superblock(input: &[u8]) -> bool {
    settle(Superblock::decode(input));
    let mut slot = filled::<SUPERBLOCK_BYTES>(input);
    seal(&mut slot, CHECKSUM_AT);
    let Ok(found) = Superblock::decode(&slot) else { return false };
    assert_eq!(found.impossible(), None);
    assert_eq!(Superblock::decode(&found.encode()).expect("was good before"), found);
    true
}

/// A segment header; the input is its beginning. It is read as that of the drive and segment that
/// it names, and of others.
pub fn segment(input: &[u8]) -> bool {
    settle(SegmentHeader::decode(input, Uuid::nil(), SegmentId(0)));
    let mut bytes = filled::<SEGMENT_HEADER_BYTES>(input);
    seal(&mut bytes, CHECKSUM_AT);
    settle(SegmentHeader::decode(&bytes, Uuid::nil(), SegmentId(0)));
    let uuid = Uuid::from_bytes(*bytes[24..].first_chunk().expect("inside the header"));
    let number = u32::from_le_bytes(*bytes[56..].first_chunk().expect("inside the header"));
    let segment = SegmentId(number);
    let Ok(Some(found)) = SegmentHeader::decode(&bytes, uuid, segment) else { return false };
    let mut again = [0; SEGMENT_HEADER_BYTES];
    found.encode_into(&mut again);
    assert!(again == bytes, "there is one way only to write a segment header");
    true
}

/// A batch: one byte that says what to put right (bit 0 the length of the body, bit 1 the records'
/// checksums), a batch header, its body.
pub fn batch(input: &[u8]) -> bool {
    let Some((&mode, input)) = input.split_first() else { return false };
    settle(BatchHeader::decode(input));
    let mut bytes = input[..input.len().min(BATCH_BYTES_MAX)].to_vec();
    let whole = bytes.len().max(BATCH_HEADER_BYTES).next_multiple_of(BATCH_ALIGNMENT);
    bytes.resize(whole, 0);
    if mode & 1 != 0 {
        let body_bytes = (whole - BATCH_HEADER_BYTES) as u32;
        bytes[88..92].copy_from_slice(&body_bytes.to_le_bytes());
    }
    let (head, body) = bytes.split_at_mut(BATCH_HEADER_BYTES);
    seal(head, BATCH_CHECKSUM_AT);
    let Ok((header, checksum)) = BatchHeader::decode(head) else { return false };
    let mut again = [0; BATCH_HEADER_BYTES];
    assert_eq!(header.encode_into(&mut again), checksum);
    assert!(again == *head, "there is one way only to write a batch header");
    let records = body.len().min(header.record_bytes as usize);
    walk(&header, &mut body[..records], mode & 2 != 0)
}

/// Walks the records as replay does; gives whether they are as many and as long as they must be.
fn walk(header: &BatchHeader, records: &mut [u8], put_right: bool) -> bool {
    let (mut at, mut chain) = (0, 0);
    for _ in 0..header.record_count {
        let offset = header.offset.wrapping_add((BATCH_HEADER_BYTES + at) as u32);
        let place = RecordPlace { generation: header.generation, segment: header.segment, offset };
        let rest = &mut records[at..];
        if let Some(head) = rest.first_chunk_mut().filter(|_| put_right) {
            seal_record(head, place);
        }
        let Ok(record) = Record::decode(rest, place) else { return false };
        let Some((whole, _)) = rest.split_at_checked(record.record_bytes() as usize) else {
            return false;
        };
        let (head, payload) = whole.split_first_chunk().expect("a record has its header");
        chain = chain_record(chain, head);
        if let Record::Data { payload_checksum, .. } = record {
            settle(check_payload(payload, payload_checksum, place));
        }
        at += whole.len();
    }
    at == records.len() && (put_right || chain == header.records_checksum)
}

/// One record and what its payload decodes to: one byte that says what to put right (bit 0 the
/// payload's length and checksum) and what to do besides (bit 1: take the payload for host data
/// and send it through every codec), a record header, a payload.
pub fn record(input: &[u8]) -> bool {
    let Some((&mode, input)) = input.split_first() else { return false };
    let place = RecordPlace { generation: 1 << 32, segment: SegmentId(3), offset: 4096 + 128 };
    settle(Record::decode(input, place));
    let Some((head, payload)) = input.split_first_chunk::<RECORD_HEADER_BYTES>() else {
        return false;
    };
    if mode & 2 != 0 {
        round_trip(payload);
    }
    let mut head = *head;
    if mode & 1 != 0 {
        head[4..8].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        head[20..28].copy_from_slice(&crc64(payload).to_le_bytes());
    }
    seal_record(&mut head, place);
    let Ok(record) = Record::decode(&head, place) else { return false };
    let mut again = [0; RECORD_HEADER_BYTES];
    record.encode_into(place, &mut again);
    assert_eq!(again, head, "there is one way only to write a record");
    let Record::Data { lba_count, encoding, payload_checksum, stored_bytes, .. } = record else {
        return true;
    };
    if payload.len() != stored_bytes as usize
        || check_payload(payload, payload_checksum, place).is_err()
        || lba_count > FRAME_BLOCKS_MAX
    {
        return false;
    }
    let Some(encoding) = Encoding::from_u8(encoding) else { return false };
    let mut frame = vec![0; usize::from(lba_count) * BLOCK_BYTES];
    Decompressor::new().decompress(encoding, payload, &mut frame).is_ok()
}

/// Encodes and decodes host data with every codec.
fn round_trip(data: &[u8]) {
    let whole = data.len().max(1).next_multiple_of(BLOCK_BYTES);
    let mut data = data.to_vec();
    data.resize(whole.min(ROUND_TRIP_BLOCKS_MAX * BLOCK_BYTES), 0);
    let mut target = vec![0; Compressor::target_bytes(data.len())];
    let mut decoded = vec![0xee; data.len()];
    for codec in [Codec::None, Codec::Lz4, Codec::Zstd { level: 1 }] {
        let (encoding, length) = Compressor::new(codec).compress(&data, &mut target);
        assert!(length <= data.len(), "a payload grew");
        let result = Decompressor::new().decompress(encoding, &target[..length], &mut decoded);
        assert!(result.is_ok() && decoded == data, "{codec} does not give back what it took");
    }
}

/// Takes note that a decoder came back, whatever it says.
fn settle<T>(_outcome: Result<T>) {}

/// `input` and then zeroes, or its beginning.
fn filled<const N: usize>(input: &[u8]) -> [u8; N] {
    let mut bytes = [0; N];
    let length = input.len().min(N);
    bytes[..length].copy_from_slice(&input[..length]);
    bytes
}

/// Puts a CRC-64 over all of `bytes` at `at`, which counts as zero in it.
fn seal(bytes: &mut [u8], at: usize) {
    bytes[at..at + 8].fill(0);
    let checksum = crc64(bytes);
    bytes[at..at + 8].copy_from_slice(&checksum.to_le_bytes());
}

/// Puts a record header's checksum right for `place`.
fn seal_record(head: &mut [u8; RECORD_HEADER_BYTES], place: RecordPlace) {
    head[..4].fill(0);
    let mut bytes = place.generation.to_le_bytes().to_vec();
    bytes.extend_from_slice(&place.segment.0.to_le_bytes());
    bytes.extend_from_slice(&place.offset.to_le_bytes());
    bytes.extend_from_slice(head);
    head[..4].copy_from_slice(&crc32(&bytes).to_le_bytes());
}

//! Fuzz targets for the decoders of `format`: superblock, header of a member of an array, segment
//! header, batch, record; leaves and directory pages of the map; the parts of a checkpoint.
//!
//! Each target decodes the input unmodified, then again with a corrected checksum. Accepted input
//! must encode to identical bytes; a superblock to equal values, because a reader ignores some of
//! its fields.

use uuid::Uuid;

use pumice_drive::base::checksum::{crc32, crc64};
use pumice_drive::base::units::BLOCK_BYTES;
use pumice_drive::base::{AlignedBuffer, Result, SegmentId};
use pumice_drive::codec::{ChunkTable, Codec, Compressor, Decompressor, Encoding, FrameForm};
use pumice_drive::format::{
    ARRAY_HEADER_BYTES, ArrayHeader, BATCH_ALIGNMENT, BATCH_BYTES_MAX, BATCH_HEADER_BYTES,
    BatchHeader, DIRECTORY_PAGE_BYTES, DirectoryEntry, DroppedRange, FRAME_BLOCKS_MAX, MapLimits,
    RECORD_HEADER_BYTES, Record, RecordAddress, Root, SEGMENT_BYTES_MIN, SEGMENT_HEADER_BYTES,
    SOURCE_BYTES, SUPERBLOCK_BYTES, SegmentHeader, Superblock, TableEntry, chain_record,
    check_payload, decode_leaf, decode_page, encode_page, encode_run, meta_payload,
};
use pumice_drive::media::array::{Array, Assembly};
use pumice_drive::media::mem::MemMedium;
use pumice_drive::media::{Medium, SLOTS};
use pumice_drive::runtime::Runtime;

/// Offset of the checksum in superblocks and segment headers.
const CHECKSUM_AT: usize = 16;

/// Offset of the checksum in batch headers.
const BATCH_CHECKSUM_AT: usize = 8;

/// Maximum number of blocks of host data that `record` passes through the codecs.
const ROUND_TRIP_BLOCKS_MAX: usize = 8;

/// Decodes a superblock slot that begins with the input.
pub fn superblock(input: &[u8]) -> bool {
    settle(Superblock::decode(input));
    let mut slot = filled::<SUPERBLOCK_BYTES>(input);
    seal(&mut slot, CHECKSUM_AT);
    let Ok(found) = Superblock::decode(&slot) else { return false };
    assert_eq!(found.impossible(), None);
    assert_eq!(Superblock::decode(&found.encode()).expect("was valid before"), found);
    true
}

/// Decodes a segment header that begins with the input, as a header of the drive and segment that
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
    assert!(again == bytes, "a segment header has a single encoding");
    true
}

/// Decodes the header of a member of an array that begins with the input, and assembles an array of
/// that member and another one of its list.
pub fn array(input: &[u8]) -> bool {
    settle(ArrayHeader::decode(input));
    let mut bytes = filled::<ARRAY_HEADER_BYTES>(input);
    seal(&mut bytes, CHECKSUM_AT);
    let Ok(found) = ArrayHeader::decode(&bytes) else { return false };
    assert!(found.encode() == bytes, "the header of a member has a single encoding");
    let others = found.members.iter().filter(|member| member.uuid != found.own);
    let other = others.map(|member| ArrayHeader { own: member.uuid, ..found.clone() }).next();
    let runtime = Runtime::simulated();
    let headers = [Some(found), other];
    let media = headers.into_iter().flatten().map(|header| {
        let medium = MemMedium::new(4 << 20);
        let mut page = AlignedBuffer::zeroed(ARRAY_HEADER_BYTES);
        page.copy_from_slice(&header.encode());
        runtime.block_on(medium.write_superblock(SLOTS - 1, page)).expect("memory");
        (medium, String::new())
    });
    let options = Assembly::default().with_degraded(true);
    settle(runtime.block_on(Array::assemble(media.collect(), options)));
    true
}

/// Decodes a batch. Input: one byte that selects corrections (bit 0 the length of the body, bit 1
/// the checksums of the records), a batch header, its body.
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
    assert!(again == *head, "a batch header has a single encoding");
    let records = body.len().min(header.record_bytes as usize);
    walk(&header, &mut body[..records], mode & 2 != 0)
}

/// Walks the records as replay does; returns whether their number and length match the header.
fn walk(header: &BatchHeader, records: &mut [u8], put_right: bool) -> bool {
    let (mut at, mut chain) = (0, 0);
    for _ in 0..header.record_count {
        let offset = header.offset.wrapping_add((BATCH_HEADER_BYTES + at) as u32);
        let place =
            RecordAddress { generation: header.generation, segment: header.segment, offset };
        let rest = &mut records[at..];
        if put_right {
            seal_record(rest, place);
        }
        let Ok(record) = Record::decode(rest, place) else { return false };
        let Some((whole, _)) = rest.split_at_checked(record.record_bytes() as usize) else {
            return false;
        };
        let head = whole.first_chunk().expect("a record has its header");
        chain = chain_record(chain, head);
        let payload = &whole[record.header_bytes() as usize..];
        if let Some(payload_checksum) = record.payload_checksum() {
            settle(check_payload(payload, payload_checksum, place));
        }
        at += whole.len();
    }
    at == records.len() && (put_right || chain == header.records_checksum)
}

/// Decodes one record and its payload. Input: one byte that selects corrections (bit 0: the length
/// and checksum of the payload) and further work (bit 1: pass the payload as host data through
/// every codec), a record header, its sources, a payload.
pub fn record(input: &[u8]) -> bool {
    let Some((&mode, input)) = input.split_first() else { return false };
    let place = RecordAddress { generation: 1 << 32, segment: SegmentId(3), offset: 4096 + 128 };
    settle(Record::decode(input, place));
    let mut bytes = input[..input.len().min(BATCH_BYTES_MAX)].to_vec();
    if bytes.len() < RECORD_HEADER_BYTES {
        return false;
    }
    let payload_at = RECORD_HEADER_BYTES + usize::from(bytes[17]) * SOURCE_BYTES;
    let Some(payload) = bytes.get(payload_at..) else { return false };
    if mode & 2 != 0 {
        round_trip(payload);
    }
    if mode & 1 != 0 {
        let (length, checksum) = (payload.len() as u32, crc64(payload));
        bytes[4..8].copy_from_slice(&length.to_le_bytes());
        bytes[20..28].copy_from_slice(&checksum.to_le_bytes());
    }
    seal_record(&mut bytes, place);
    let Ok(record) = Record::decode(&bytes, place) else { return false };
    let (head, payload) = bytes.split_at(record.header_bytes() as usize);
    let sources: Vec<_> = record.sources(&bytes).collect();
    let mut again = vec![0; head.len()];
    record.encode_into(place, &sources, &mut again);
    assert_eq!(again, head, "a record has a single encoding");
    match record {
        Record::Data { lba_count, encoding, payload_checksum, stored_bytes, .. } => {
            assert!((1..=FRAME_BLOCKS_MAX).contains(&lba_count));
            let whole = usize::from(lba_count) * BLOCK_BYTES;
            payload.len() == stored_bytes as usize
                && check_payload(payload, payload_checksum, place).is_ok()
                && decodes(encoding, payload, whole)
        }
        Record::Meta { encoding, payload_checksum, stored_bytes, .. } => {
            let payload = Some(payload).filter(|payload| payload.len() == stored_bytes as usize);
            payload.is_some_and(|payload| {
                check_payload(payload, payload_checksum, place).is_ok()
                    && meta_payload(payload)
                        .is_ok_and(|(raw, encoded)| decodes(encoding, encoded, raw))
            })
        }
        Record::Fill { .. } | Record::Trim { .. } | Record::Open { .. } => true,
    }
}

/// Returns whether a payload decodes to `raw_bytes`, a number from its header that limits bound.
fn decodes(encoding: u8, payload: &[u8], raw_bytes: usize) -> bool {
    let Some(encoding) = Encoding::from_u8(encoding) else { return false };
    Decompressor::new().decompress(encoding, payload, &mut vec![0; raw_bytes]).is_ok()
}

/// Bounds of addresses in the map.
const LIMITS: MapLimits =
    MapLimits { segment_count: 8, segment_bytes: SEGMENT_BYTES_MIN, seal_bytes: 0 };

/// Decodes a leaf of the map, or a page of its directory that begins with the input. Input: one
/// byte that selects one (bit 0: a page), its bytes.
pub fn leaf(input: &[u8]) -> bool {
    let Some((&mode, input)) = input.split_first() else { return false };
    if mode & 1 != 0 {
        settle(decode_page(input, &LIMITS));
        let page = filled::<DIRECTORY_PAGE_BYTES>(input);
        let Ok(entries) = decode_page(&page, &LIMITS) else { return false };
        assert!(encode_page(&entries) == page, "a page has a single encoding");
        for packed in entries {
            let entry = DirectoryEntry::unpack(packed).expect("was valid before");
            assert_eq!(entry.pack(), packed, "an entry has a single encoding");
        }
        return true;
    }
    let Ok((runs, tables)) = decode_leaf(input, &LIMITS) else { return false };
    let mut again = Vec::new();
    for (start, content) in runs {
        encode_run(start, content, &mut again);
    }
    for table in tables {
        let Ok(found) = ChunkTable::from_stored(table.bytes, table.blocks.into()) else {
            return false;
        };
        assert_eq!(found.blocks(), usize::from(table.blocks));
        again.extend_from_slice(found.stored());
    }
    assert!(again == input, "a leaf has a single encoding");
    true
}

/// Decodes a part of a checkpoint. Input: one byte that selects it (metadata payload, root, entries
/// of the segment table, dropped ranges), its bytes.
pub fn checkpoint(input: &[u8]) -> bool {
    let Some((&mode, input)) = input.split_first() else { return false };
    match mode % 4 {
        0 => meta_payload(input).is_ok_and(|(_, encoded)| encoded.len() < input.len()),
        1 => {
            let Ok(root) = Root::decode(input) else { return false };
            assert_eq!(Root::decode(&root.encode()).expect("was valid before"), root);
            assert_eq!(root.encode().len(), input.len());
            true
        }
        2 => every(input, TableEntry::BYTES, |bytes| {
            let Ok(entry) = TableEntry::decode(bytes) else { return false };
            let mut again = Vec::new();
            entry.encode_into(&mut again);
            assert!(again == bytes || !entry.in_use, "an entry has a single encoding");
            true
        }),
        _ => every(input, DroppedRange::BYTES, |bytes| {
            let Ok(range) = DroppedRange::decode(bytes) else { return false };
            let mut again = Vec::new();
            range.encode_into(&mut again);
            assert!(again == bytes, "a range has a single encoding");
            true
        }),
    }
}

/// Returns whether every piece of `bytes` bytes of a list is accepted; the last piece may be
/// truncated.
fn every(list: &[u8], bytes: usize, taken: impl Fn(&[u8]) -> bool) -> bool {
    list.chunks(bytes).all(taken)
}

/// Encodes and decodes host data with every codec.
fn round_trip(data: &[u8]) {
    let whole = data.len().max(1).next_multiple_of(BLOCK_BYTES);
    let mut data = data.to_vec();
    data.resize(whole.min(ROUND_TRIP_BLOCKS_MAX * BLOCK_BYTES), 0);
    let mut target = vec![0; Compressor::target_bytes(data.len())];
    let mut decoded = vec![0xee; data.len()];
    let codecs = [Codec::None, Codec::Lz4, Codec::Zstd { level: 1 }];
    let forms = [FrameForm::Solid, FrameForm::Chunks];
    for (codec, form) in codecs.into_iter().flat_map(|codec| forms.map(|form| (codec, form))) {
        let mut compressor = Compressor::new(codec).with_form(form);
        let (encoding, length) = compressor.compress(&data, &mut target);
        assert!(length <= data.len(), "a payload grew");
        let result = Decompressor::new().decompress(encoding, &target[..length], &mut decoded);
        assert!(result.is_ok() && decoded == data, "{codec}, {form}, does not return its input");
    }
}

/// Discards the outcome of a decoder: only its return counts.
fn settle<T>(_outcome: Result<T>) {}

/// Returns `input` padded with zeroes, or its beginning.
pub(super) fn filled<const N: usize>(input: &[u8]) -> [u8; N] {
    let mut bytes = [0; N];
    let length = input.len().min(N);
    bytes[..length].copy_from_slice(&input[..length]);
    bytes
}

/// Writes the CRC-64 of all of `bytes` at `at`; the field counts as zero in it.
pub(super) fn seal(bytes: &mut [u8], at: usize) {
    bytes[at..at + 8].fill(0);
    let checksum = crc64(bytes);
    bytes[at..at + 8].copy_from_slice(&checksum.to_le_bytes());
}

/// Writes the checksum of the record header at the start of `bytes`, and of its sources, for
/// `place`; does nothing if they are truncated.
pub(super) fn seal_record(bytes: &mut [u8], place: RecordAddress) {
    let Some(&source_count) = bytes.get(17) else { return };
    let length = RECORD_HEADER_BYTES + usize::from(source_count) * SOURCE_BYTES;
    let Some(head) = bytes.get_mut(..length) else { return };
    head[..4].fill(0);
    let mut covered = place.generation.to_le_bytes().to_vec();
    covered.extend_from_slice(&place.segment.0.to_le_bytes());
    covered.extend_from_slice(&place.offset.to_le_bytes());
    covered.extend_from_slice(head);
    head[..4].copy_from_slice(&crc32(&covered).to_le_bytes());
}

//! Fuzz target for the input of `pumice receive` from a pipe: the head of a transfer and its
//! batches.

use pumice_drive::base::SegmentId;
use pumice_drive::base::checksum::crc64;
use pumice_drive::base::units::BLOCK_BYTES;
use pumice_drive::controller::{TransferReader, transfer_batch_bytes};
use pumice_drive::format::{
    BATCH_ALIGNMENT, BATCH_HEADER_BYTES, RECORD_HEADER_BYTES, Record, RecordAddress,
    TRANSFER_HEAD_BYTES, chain_record,
};

use super::bytes::{seal, seal_record};

/// Sums that the headers of batches must have.
#[derive(Default)]
struct Sums {
    seq: u64,
    previous: u64,
    host_bytes: u64,
    frame_bytes: u64,
    media_bytes: u64,
    /// The block after the last record, and whether each record begins there or later.
    next_block: u64,
    is_disordered: bool,
}

/// Reads a transfer. Input: a head, then batches without their padding: a header, and the number of
/// bytes of records that it states. Checksums, sequence, sums and lengths are corrected, so that
/// only values that no sender would write are wrong. Accepted if it has an end.
pub fn transfer(input: &[u8]) -> bool {
    let (head, mut rest) = input.split_at(input.len().min(TRANSFER_HEAD_BYTES));
    let mut bytes = [0; TRANSFER_HEAD_BYTES];
    bytes[..head.len()].copy_from_slice(head);
    let _ = TransferReader::new(&bytes);
    seal(&mut bytes, 16);
    let Ok(mut reader) = TransferReader::new(&bytes) else { return false };
    let size_bytes = reader.head().size_bytes;
    let previous = u64::from_le_bytes(*bytes[16..].first_chunk().expect("inside the head"));
    let media_bytes = TRANSFER_HEAD_BYTES as u64;
    let next_block = reader.head().start / BLOCK_BYTES as u64;
    let mut sums = Sums { seq: 1, previous, media_bytes, next_block, ..Sums::default() };
    while let Some(header) = rest.first_chunk::<BATCH_HEADER_BYTES>() {
        let _ = transfer_batch_bytes(header);
        let stated = u32::from_le_bytes(*header[92..].first_chunk().expect("inside the header"));
        let (_, body) = rest.split_at(BATCH_HEADER_BYTES);
        let (records, later) = body.split_at(body.len().min(stated as usize).min(1 << 20));
        let batch = whole(header, records, &bytes[48..64], &mut sums);
        if reader.check(&batch).is_err() {
            return false;
        }
        assert!(!sums.is_disordered, "records are in the order of the disk");
        assert!(sums.next_block <= size_bytes / BLOCK_BYTES as u64, "records are on the disk");
        assert_eq!(reader.bytes(), sums.media_bytes);
        let header = batch.first_chunk().expect("a header");
        assert_eq!(transfer_batch_bytes(header).expect("it was checked"), batch.len());
        rest = later;
    }
    assert!(!reader.has_ended() || reader.check(&[]).is_err(), "nothing follows the end");
    reader.has_ended()
}

/// Returns a batch in which every correctable field is corrected.
fn whole(header: &[u8], records: &[u8], uuid: &[u8], sums: &mut Sums) -> Vec<u8> {
    let mut batch = [header, records].concat();
    let mut chain = 0;
    let (mut count, mut at) = (0_u32, BATCH_HEADER_BYTES);
    while at + RECORD_HEADER_BYTES <= batch.len() {
        let place =
            RecordAddress { generation: sums.seq, segment: SegmentId(0), offset: 4096 + at as u32 };
        let rest = &mut batch[at..];
        let stored = u32::from_le_bytes(*rest[4..].first_chunk().expect("inside the record"));
        if rest[18] == 1 && (stored as usize) <= rest.len() - RECORD_HEADER_BYTES {
            let payload = &rest[RECORD_HEADER_BYTES..][..stored as usize];
            let checksum = crc64(payload).to_le_bytes();
            rest[20..28].copy_from_slice(&checksum);
        }
        seal_record(rest, place);
        let Ok(record) = Record::decode(rest, place) else { break };
        let head = rest.first_chunk().expect("a record has its header");
        chain = chain_record(chain, head);
        let (lba, blocks) = record.lba_range();
        sums.is_disordered |= lba.0 < sums.next_block;
        sums.next_block = lba.0.saturating_add(blocks);
        sums.host_bytes = sums.host_bytes.wrapping_add(blocks.wrapping_mul(BLOCK_BYTES as u64));
        count += 1;
        at += record.record_bytes() as usize;
    }
    let record_bytes = batch.len() - BATCH_HEADER_BYTES;
    batch.resize(batch.len().next_multiple_of(BATCH_ALIGNMENT), 0);
    sums.frame_bytes += record_bytes as u64;
    sums.media_bytes += batch.len() as u64;
    let body_bytes = (batch.len() - BATCH_HEADER_BYTES) as u32;
    let mut put = |at: usize, value: &[u8]| batch[at..at + value.len()].copy_from_slice(value);
    put(16, &chain.to_le_bytes());
    put(24, &sums.seq.to_le_bytes());
    put(32, &sums.previous.to_le_bytes());
    put(48, &sums.seq.to_le_bytes());
    put(56, &sums.host_bytes.to_le_bytes());
    put(64, &sums.frame_bytes.to_le_bytes());
    put(72, &sums.media_bytes.to_le_bytes());
    put(88, &body_bytes.to_le_bytes());
    put(92, &(record_bytes as u32).to_le_bytes());
    put(96, &count.to_le_bytes());
    put(112, uuid);
    seal(&mut batch[..BATCH_HEADER_BYTES], 8);
    sums.previous = u64::from_le_bytes(*batch[8..].first_chunk().expect("inside the header"));
    sums.seq += 1;
    batch
}

/// Returns inputs that are accepted: a whole disk, and the differences from a base.
#[cfg(test)]
pub(super) fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    use pumice_drive::base::{Lba, SeqNo};
    use pumice_drive::format::{BatchHeader, TransferBase, TransferHead};
    let base = TransferBase { snapshot: uuid::Uuid::from_u128(2), name: "monday".into() };
    let head = |base| TransferHead {
        drive: uuid::Uuid::from_u128(1),
        snapshot: uuid::Uuid::from_u128(3),
        name: "tuesday".into(),
        created_seconds: 1_790_000_000,
        base,
        size_bytes: 1 << 20,
        start: 0,
        frame_blocks: 8,
        codec: 1,
        codec_level: 0,
        has_chunks: false,
    };
    let header = |records: &[u8]| {
        let header = BatchHeader {
            records_checksum: 0,
            seq: SeqNo(1),
            previous_checksum: 0,
            watermark: SeqNo(0),
            moved_bytes: 0,
            generation: 1,
            host_bytes: 0,
            frame_bytes: 0,
            media_bytes: 0,
            segment: SegmentId(0),
            offset: 4096,
            body_bytes: 4096 - BATCH_HEADER_BYTES as u32,
            record_bytes: records.len() as u32,
            record_count: 0,
            parity_pages: 0,
            needs_next: false,
            epoch: 0,
            uuid: uuid::Uuid::nil(),
        };
        let mut bytes = [0; BATCH_HEADER_BYTES];
        header.encode_into(&mut bytes);
        [&bytes[..], records].concat()
    };
    let record = |record: Record, payload: &[u8]| {
        let place = RecordAddress { generation: 1, segment: SegmentId(0), offset: 4096 };
        let mut bytes = vec![0; RECORD_HEADER_BYTES];
        record.encode_into(place, &[], &mut bytes);
        [&bytes[..], payload].concat()
    };
    let frame = Record::Data {
        lba: Lba(0),
        lba_count: 2,
        source_count: 0,
        encoding: 1,
        stored_bytes: 40,
        payload_checksum: 0,
    };
    let fill = record(Record::Fill { lba: Lba(5), lba_count: 3, byte: 7 }, &[]);
    let trim = record(Record::Trim { lba: Lba(100), lba_count: 156 }, &[]);
    let first = header(&[record(frame, &[9; 40]), fill].concat());
    let all = |base| [&head(base).encode().0[..], &first, &header(&trim), &header(&[])].concat();
    vec![("whole", all(None)), ("since", all(Some(base)))]
}

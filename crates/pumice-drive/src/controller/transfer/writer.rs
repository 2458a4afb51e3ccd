//! Puts records into batches, each of which names the previous one.

use super::{OFFSET, SEGMENT, address};
use crate::base::SeqNo;
use crate::base::units::{BLOCK_BYTES, len_u32};
use crate::format::{
    BATCH_ALIGNMENT, BATCH_HEADER_BYTES, BatchHeader, RECORD_HEADER_BYTES, Record, TransferHead,
    chain_record,
};

/// Size at which a batch ends: its padding is a small part of it, and a receiver that holds several
/// batches needs little memory.
const BATCH_BYTES: usize = 1 << 20;

/// Maximum number of retained buffers: about the number that a caller may have in flight.
const SPARE_MAX: usize = 8;

/// The batches of one transfer.
pub(super) struct Writer {
    snapshot: uuid::Uuid,
    /// The next batch: space for its header, then records.
    batch: Vec<u8>,
    record_count: u32,
    records_checksum: u32,
    seq: u64,
    previous_checksum: u64,
    host_bytes: u64,
    frame_bytes: u64,
    media_bytes: u64,
    /// The complete batches.
    out: Vec<u8>,
    /// Buffers for further batches.
    spare: Vec<Vec<u8>>,
}

impl Writer {
    /// Begins with the head.
    pub(super) fn new(head: &TransferHead) -> Self {
        let (bytes, checksum) = head.encode();
        Self {
            snapshot: head.snapshot,
            batch: vec![0; BATCH_HEADER_BYTES],
            record_count: 0,
            records_checksum: 0,
            seq: 1,
            previous_checksum: checksum,
            host_bytes: 0,
            frame_bytes: 0,
            media_bytes: bytes.len() as u64,
            out: bytes.to_vec(),
            spare: Vec::new(),
        }
    }

    /// Appends a record with its payload.
    pub(super) fn push(&mut self, record: &Record, payload: &[u8]) {
        assert_eq!(record.stored_bytes() as usize, payload.len(), "a record has its payload");
        record.check_invariants();
        if self.batch.len() + RECORD_HEADER_BYTES + payload.len() > BATCH_BYTES {
            self.seal();
        }
        let mut header = [0; RECORD_HEADER_BYTES];
        record.encode_into(address(self.seq, self.batch.len()), &[], &mut header);
        self.records_checksum = chain_record(self.records_checksum, &header);
        self.record_count += 1;
        self.batch.extend(header);
        self.batch.extend(payload);
        self.host_bytes += record.lba_range().1 * BLOCK_BYTES as u64;
        self.frame_bytes += (header.len() + payload.len()) as u64;
    }

    /// Ends the transfer with a batch without records.
    pub(super) fn end(&mut self) {
        if self.record_count > 0 {
            self.seal();
        }
        self.seal();
    }

    fn seal(&mut self) {
        let record_bytes = len_u32(self.batch.len() - BATCH_HEADER_BYTES);
        self.batch.resize(self.batch.len().next_multiple_of(BATCH_ALIGNMENT), 0);
        self.media_bytes += self.batch.len() as u64;
        assert!(self.frame_bytes <= self.media_bytes, "records are a part of the transfer");
        let header = BatchHeader {
            records_checksum: self.records_checksum,
            seq: SeqNo(self.seq),
            previous_checksum: self.previous_checksum,
            watermark: SeqNo(0),
            moved_bytes: 0,
            generation: self.seq,
            host_bytes: self.host_bytes,
            frame_bytes: self.frame_bytes,
            media_bytes: self.media_bytes,
            segment: SEGMENT,
            offset: OFFSET,
            body_bytes: len_u32(self.batch.len() - BATCH_HEADER_BYTES),
            record_bytes,
            record_count: self.record_count,
            parity_pages: 0,
            needs_next: false,
            epoch: 0,
            uuid: self.snapshot,
        };
        header.check_invariants();
        self.previous_checksum = header.encode_into(&mut self.batch);
        let mut next = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(BATCH_BYTES));
        next.clear();
        next.resize(BATCH_HEADER_BYTES, 0);
        let batch = std::mem::replace(&mut self.batch, next);
        if self.out.is_empty() {
            self.out = batch;
        } else {
            self.out.extend_from_slice(&batch);
            self.reuse(batch);
        }
        (self.record_count, self.records_checksum) = (0, 0);
        self.seq += 1;
    }

    /// Returns whether a batch is complete.
    pub(super) fn has_some(&self) -> bool {
        !self.out.is_empty()
    }

    /// Removes and returns the complete batches.
    pub(super) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }

    /// Accepts a buffer for a later batch.
    pub(super) fn reuse(&mut self, buffer: Vec<u8>) {
        if self.spare.len() < SPARE_MAX {
            self.spare.push(buffer);
        }
    }

    /// Returns the bytes of the disk, of records, and of the transfer so far.
    pub(super) fn totals(&self) -> (u64, u64, u64) {
        (self.host_bytes, self.frame_bytes, self.media_bytes)
    }
}

//! Checks the batches of a transfer, one after the other. No byte is trusted.

use super::super::log::records::{Body, Found, body_state, records};
use super::{OFFSET, SEGMENT};
use crate::base::units::BLOCK_BYTES;
use crate::base::{Error, ErrorKind, Lba, Result, ensure};
use crate::crypt::PLAIN;
use crate::format::{
    BATCH_ALIGNMENT, BATCH_HEADER_BYTES, BatchHeader, Record, TRANSFER_HEAD_BYTES, TransferHead,
};

/// Returns the length of the batch that begins with a header, including the header: at most 4 MiB.
///
/// # Errors
/// `Corrupt` if there is no header.
pub fn transfer_batch_bytes(header: &[u8; BATCH_HEADER_BYTES]) -> Result<usize> {
    let (header, _) = BatchHeader::decode(header).map_err(|error| damaged().caused_by(error))?;
    Ok(BATCH_HEADER_BYTES + header.body_bytes as usize)
}

/// The state of a transfer as read so far.
#[derive(Debug)]
pub struct TransferReader {
    head: TransferHead,
    seq: u64,
    previous_checksum: u64,
    /// The lowest block that the next record may contain.
    next_block: u64,
    host_bytes: u64,
    frame_bytes: u64,
    media_bytes: u64,
    has_ended: bool,
}

/// A checked batch.
pub(super) struct Batch<'a> {
    header: BatchHeader,
    body: &'a [u8],
}

impl Batch<'_> {
    /// Returns the records.
    pub(super) fn records(&self) -> impl Iterator<Item = Found<'_>> {
        records(&PLAIN, &self.header, self.body)
            .map(|found| found.expect("a batch that was checked"))
    }
}

impl TransferReader {
    /// Begins with the head.
    ///
    /// # Errors
    /// `InvalidInput` if the bytes are not from `pumice send`; `Unsupported` if a newer version
    /// wrote them; `Corrupt`.
    pub fn new(head: &[u8; TRANSFER_HEAD_BYTES]) -> Result<Self> {
        let (decoded, checksum) = TransferHead::decode(head)?;
        Ok(Self {
            seq: 1,
            previous_checksum: checksum,
            next_block: decoded.start / BLOCK_BYTES as u64,
            host_bytes: 0,
            frame_bytes: 0,
            media_bytes: head.len() as u64,
            has_ended: false,
            head: decoded,
        })
    }

    /// Returns the head.
    pub fn head(&self) -> &TransferHead {
        &self.head
    }

    /// Returns the number of bytes of the transfer so far.
    pub fn bytes(&self) -> u64 {
        self.media_bytes
    }

    /// Returns whether the end was read.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Checks the whole of the next batch, without using it.
    ///
    /// # Errors
    /// `Corrupt` if the transfer is damaged in this batch. The next batch is still the same one.
    pub fn check(&mut self, batch: &[u8]) -> Result<()> {
        self.take(batch).map(|_| ())
    }

    /// Checks the whole of the next batch, and returns its records; they are in the order of the
    /// disk, and on it.
    ///
    /// # Errors
    /// The errors of [`TransferReader::check`].
    pub(super) fn take<'a>(&mut self, batch: &'a [u8]) -> Result<Batch<'a>> {
        let at = self.media_bytes;
        self.take_at(batch).map_err(|error| error.at_offset(at))
    }

    fn take_at<'a>(&mut self, batch: &'a [u8]) -> Result<Batch<'a>> {
        ensure(!self.has_ended, ErrorKind::Corrupt, "the transfer continues after its end")?;
        let (header, checksum) =
            BatchHeader::decode(batch).map_err(|error| damaged().caused_by(error))?;
        let (_, body) = batch.split_at(BATCH_HEADER_BYTES);
        let is_next = header.seq.0 == self.seq
            && header.previous_checksum == self.previous_checksum
            && header.uuid == self.head.snapshot;
        ensure(is_next, ErrorKind::Corrupt, "the transfer is out of order, or of two transfers")?;
        let is_possible = header.generation == self.seq
            && (header.segment, header.offset) == (SEGMENT, OFFSET)
            && (header.watermark.0, header.moved_bytes, header.epoch) == (0, 0, 0)
            && (header.parity_pages, header.needs_next) == (0, false)
            && body.len() == header.body_bytes as usize
            && body.len() - (header.record_bytes as usize) < BATCH_ALIGNMENT
            && matches!(body_state(&PLAIN, &header, body), Body::Whole);
        ensure(is_possible, ErrorKind::Corrupt, DAMAGED)?;
        let (mut next_block, mut host_bytes) = (self.next_block, self.host_bytes);
        for found in records(&PLAIN, &header, body) {
            let (lba, count) = self.blocks_of(&found?.record, next_block)?;
            next_block = lba.0 + count;
            host_bytes += count * BLOCK_BYTES as u64;
        }
        let frame_bytes = self.frame_bytes + u64::from(header.record_bytes);
        let media_bytes = self.media_bytes + batch.len() as u64;
        let totals = (header.host_bytes, header.frame_bytes, header.media_bytes);
        let is_sum = totals == (host_bytes, frame_bytes, media_bytes);
        ensure(is_sum, ErrorKind::Corrupt, "the sums of the transfer are wrong")?;
        (self.next_block, self.host_bytes) = (next_block, host_bytes);
        (self.frame_bytes, self.media_bytes) = (frame_bytes, media_bytes);
        self.has_ended = header.record_count == 0;
        self.seq += 1;
        self.previous_checksum = checksum;
        Ok(Batch { header, body })
    }

    /// Returns the blocks of a record, which are on the disk and not before `next_block`.
    fn blocks_of(&self, record: &Record, next_block: u64) -> Result<(Lba, u64)> {
        let is_possible = match *record {
            Record::Data { source_count, .. } => source_count == 0,
            Record::Fill { .. } | Record::Trim { .. } => true,
            Record::Open { .. } | Record::Meta { .. } => false,
        };
        let (lba, count) = record.lba_range();
        let blocks = self.head.size_bytes / BLOCK_BYTES as u64;
        let is_on_disk = lba.0 <= blocks && count <= blocks - lba.0;
        if !is_possible || !is_on_disk || lba.0 < next_block {
            let what = "a record of the transfer is invalid";
            return Err(Error::new(ErrorKind::Corrupt, what));
        }
        Ok((lba, count))
    }
}

const DAMAGED: &str = "the transfer is damaged";

fn damaged() -> Error {
    Error::new(ErrorKind::Corrupt, DAMAGED)
}

//! The records of a batch that was read from a medium, in order, and a check of whether the batch
//! was sealed with them.
//!
//! Bytes from the medium are never trusted: every length is checked before use.

use super::echo::is_padding_right;
use crate::base::units::{BLOCK_BYTES, len_u32};
use crate::base::{Error, ErrorKind, Result};
use crate::crypt::Cipher;
use crate::format::{
    BATCH_HEADER_BYTES, BatchHeader, FRAME_BLOCKS_MAX, Record, RecordAddress, Source, Superblock,
    chain_record, check_payload,
};

/// A record, its place, and all its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found<'a> {
    pub(crate) record: Record,
    pub(crate) place: RecordAddress,
    /// Header, sources and payload.
    pub(crate) bytes: &'a [u8],
}

impl<'a> Found<'a> {
    /// Returns the stored payload.
    pub(crate) fn payload(&self) -> &'a [u8] {
        let (_, payload) = self.bytes.split_at(self.record.header_bytes() as usize);
        assert_eq!(payload.len(), self.record.stored_bytes() as usize, "a record is read whole");
        payload
    }

    /// Returns the sources of a frame that was moved.
    pub(crate) fn sources(&self, cipher: &Cipher) -> Vec<Source> {
        self.record.sources_with(self.bytes, self.place, cipher)
    }

    /// Returns whether the stored payload matches its checksum.
    pub(crate) fn is_whole(&self) -> bool {
        match self.record {
            Record::Data { payload_checksum, .. } => {
                check_payload(self.payload(), payload_checksum, self.place).is_ok()
            }
            _ => true,
        }
    }
}

impl Found<'_> {
    /// Returns whether other bytes are this record, whose headers are intact, with a payload that
    /// matches its checksum.
    pub(crate) fn is_copied_in(&self, bytes: &[u8]) -> bool {
        let headers = self.record.header_bytes() as usize;
        let Some((head, payload)) = bytes.split_at_checked(headers) else { return false };
        let expected = self.record.payload_checksum();
        bytes.len() == self.bytes.len()
            && self.bytes.get(..headers) == Some(head)
            && expected.is_none_or(|sum| check_payload(payload, sum, self.place).is_ok())
    }
}

/// The records of a batch, which end with the first wrong record, as an error.
pub(crate) struct Records<'a> {
    cipher: &'a Cipher,
    header: &'a BatchHeader,
    rest: &'a [u8],
    left: u32,
}

/// Returns the records of the batch with a given header, on a drive with a cipher; `body` is the
/// bytes after the header.
pub(crate) fn records<'a>(
    cipher: &'a Cipher,
    header: &'a BatchHeader,
    body: &'a [u8],
) -> Records<'a> {
    let (rest, _) = body.split_at(body.len().min(header.record_bytes as usize));
    Records { cipher, header, rest, left: header.record_count }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Found<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        self.left -= 1;
        let record_bytes = self.header.record_bytes as usize;
        let passed = record_bytes.checked_sub(self.rest.len());
        let passed = passed.expect("the records that are left are a part of the batch's");
        let offset = self.header.offset + len_u32(BATCH_HEADER_BYTES + passed);
        let (generation, segment) = (self.header.generation, self.header.segment);
        let place = RecordAddress { generation, segment, offset };
        let found = Record::decode_with(self.rest, place, self.cipher).and_then(|record| {
            let split = self.rest.split_at_checked(record.record_bytes() as usize);
            let (bytes, later) = split.ok_or_else(|| wrong("a record is truncated", place))?;
            assert!(later.len() < self.rest.len(), "each record advances the batch");
            self.rest = later;
            Ok(Found { record, place, bytes })
        });
        if found.is_err() {
            self.left = 0;
        }
        Some(found)
    }
}

/// The bytes after a batch header: see [`body_state`].
pub(crate) enum Body {
    /// They match the header.
    Whole,
    /// The record headers match; a payload or the padding is wrong.
    WrongPayload,
    /// Something else differs, even if only in one record header: it is unknown which blocks the
    /// batch contained.
    Foreign,
}

/// Returns the records of a batch and its padding; `body` is the bytes after the header. Returns
/// `None` if it is too short.
pub(super) fn records_and_padding<'a>(
    header: &BatchHeader,
    body: &'a [u8],
) -> Option<(&'a [u8], &'a [u8])> {
    // Parity only helps to restore the rest.
    let padded_bytes = body.len().checked_sub(header.parity_bytes() as usize)?;
    body.get(..padded_bytes)?.split_at_checked(header.record_bytes as usize)
}

/// Compares a batch's body with its header: record headers, payloads, padding.
pub(crate) fn body_state(cipher: &Cipher, header: &BatchHeader, body: &[u8]) -> Body {
    let Some((all, padding)) = records_and_padding(header, body) else { return Body::Foreign };
    let mut checksum = 0;
    let mut used = 0;
    let mut payloads_right = is_padding_right(header, padding, cipher);
    for found in records(cipher, header, body) {
        let Ok(found) = found else { return Body::Foreign };
        if let Some(expected) = found.record.payload_checksum() {
            payloads_right &= check_payload(found.payload(), expected, found.place).is_ok();
        }
        let Some(record_header) = found.bytes.first_chunk() else { return Body::Foreign };
        checksum = chain_record(checksum, record_header);
        used += found.bytes.len();
    }
    assert!(used <= all.len(), "the records that were found lie in the batch");
    if used != all.len() || checksum != header.records_checksum {
        Body::Foreign
    } else if payloads_right {
        Body::Whole
    } else {
        Body::WrongPayload
    }
}

/// Checks that a record's blocks are on the disk and, for a frame, within the bounds of one frame.
///
/// # Errors
/// `Corrupt`, naming the place.
pub(crate) fn check_possible(found: &Found<'_>, superblock: &Superblock) -> Result<()> {
    let (lba, count) = found.record.lba_range();
    let on_disk = lba.0 + count <= superblock.size_bytes / BLOCK_BYTES as u64;
    let possible = match found.record {
        // A moved frame may be larger than the host's frames, but does not cross a leaf either.
        Record::Data { source_count, .. } => {
            let longest = if source_count > 0 { FRAME_BLOCKS_MAX } else { superblock.frame_blocks };
            let frame_blocks = u64::from(longest);
            on_disk && lba.0 / frame_blocks == (lba.0 + count - 1) / frame_blocks
        }
        Record::Fill { .. } | Record::Trim { .. } => on_disk,
        Record::Open { segment, .. } => segment.0 < superblock.segment_count,
        Record::Meta { .. } => true,
    };
    if possible {
        Ok(())
    } else {
        Err(wrong("a record names blocks that the drive cannot have", found.place))
    }
}

fn wrong(what: &'static str, place: RecordAddress) -> Error {
    let error = Error::new(ErrorKind::Corrupt, what);
    error.in_segment(place.segment).at_offset(u64::from(place.offset))
}

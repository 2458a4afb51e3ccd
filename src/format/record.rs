//! The records of a batch: frames of data, fills, trims.
//!
//! ```text
//! | record header 28 | payload: stored_bytes |   packed byte by byte, no alignment
//! ```
//!
//! The header has its own checksum, so that a frame with a damaged payload still says which blocks
//! it held; it is bound to the segment's generation and to the record's place, so that a header
//! read from the wrong place, or left by an earlier use of the segment, does not pass.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::layout::layout;
use crate::base::checksum::{crc32, crc64};
use crate::base::units::BLOCK_BYTES;
use crate::base::{Error, ErrorKind, Lba, Result, SegmentId};

/// Bytes of a record header.
pub const RECORD_HEADER_BYTES: usize = 28;

layout! {
    struct Layout: 28 {
        header_checksum: U32,
        stored_bytes: U32,
        lba: U64,
        lba_count: U16,
        kind: u8,
        argument: u8,
        tail: U64,
    }
}

pub(super) const FIELDS: &[super::layout::Field] = Layout::FIELDS;

const KIND_DATA: u8 = 1;
const KIND_FILL: u8 = 2;
const KIND_TRIM: u8 = 3;

/// Where a record stands; its header's checksum covers this too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordPlace {
    /// Generation of the segment.
    pub generation: u64,
    /// The segment.
    pub segment: SegmentId,
    /// Byte offset of the record header in the segment.
    pub offset: u32,
}

/// What a record says about consecutive logical blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// A frame: the blocks' content follows the header.
    Data {
        /// First block.
        lba: Lba,
        /// Number of blocks, at least 1.
        lba_count: u16,
        /// How the payload is encoded (numbers of `codec::Encoding`; not checked here).
        encoding: u8,
        /// Bytes of the payload.
        stored_bytes: u32,
        /// CRC-64/NVME of the payload as stored.
        payload_checksum: u64,
    },
    /// Every byte of the blocks is `byte`; nothing is stored.
    Fill {
        /// First block.
        lba: Lba,
        /// Number of blocks, at least 1.
        lba_count: u64,
        /// The byte.
        byte: u8,
    },
    /// The blocks hold nothing any more and read as zeroes.
    Trim {
        /// First block.
        lba: Lba,
        /// Number of blocks, at least 1.
        lba_count: u64,
    },
}

impl Record {
    /// First block and number of blocks.
    pub fn lba_range(&self) -> (Lba, u64) {
        match *self {
            Record::Data { lba, lba_count, .. } => (lba, u64::from(lba_count)),
            Record::Fill { lba, lba_count, .. } | Record::Trim { lba, lba_count } => {
                (lba, lba_count)
            }
        }
    }

    /// Bytes of the payload behind the header.
    pub fn stored_bytes(&self) -> u32 {
        match *self {
            Record::Data { stored_bytes, .. } => stored_bytes,
            Record::Fill { .. } | Record::Trim { .. } => 0,
        }
    }

    /// Bytes of the whole record: header and payload.
    pub fn record_bytes(&self) -> u32 {
        RECORD_HEADER_BYTES as u32 + self.stored_bytes()
    }

    /// Writes the header for `place` at the start of `target`.
    ///
    /// # Panics
    /// If `target` is shorter than [`RECORD_HEADER_BYTES`].
    #[inline]
    pub fn encode_into(&self, place: RecordPlace, target: &mut [u8]) {
        let (lba, _) = self.lba_range();
        let (kind, argument, lba_count, tail) = match *self {
            Record::Data { lba_count, encoding, payload_checksum, .. } => {
                (KIND_DATA, encoding, lba_count, payload_checksum)
            }
            Record::Fill { byte, lba_count, .. } => (KIND_FILL, byte, 0, lba_count),
            Record::Trim { lba_count, .. } => (KIND_TRIM, 0, 0, lba_count),
        };
        let mut layout = Layout {
            header_checksum: 0.into(),
            stored_bytes: self.stored_bytes().into(),
            lba: lba.0.into(),
            lba_count: lba_count.into(),
            kind,
            argument,
            tail: tail.into(),
        };
        layout.header_checksum = checksum(&layout, place).into();
        target[..RECORD_HEADER_BYTES].copy_from_slice(layout.as_bytes());
    }

    /// Reads the record header at the start of `bytes`, which were read from `place`.
    ///
    /// The block range is checked against overflow only; whether it lies on the drive, and whether
    /// the payload lies in what was read, is the caller's to check.
    ///
    /// # Errors
    /// `Corrupt`, naming the place.
    #[inline]
    pub fn decode(bytes: &[u8], place: RecordPlace) -> Result<Self> {
        let Ok((mut layout, _)) = Layout::read_from_prefix(bytes) else {
            return Err(corrupt("a record header is cut off", place));
        };
        let expected = layout.header_checksum.get();
        layout.header_checksum = 0.into();
        if checksum(&layout, place) != expected {
            return Err(corrupt("a record header's checksum is wrong", place));
        }
        let lba = Lba(layout.lba.get());
        let stored_bytes = layout.stored_bytes.get();
        let (lba_count, tail) = (layout.lba_count.get(), layout.tail.get());
        let record = match (layout.kind, layout.argument) {
            (KIND_DATA, encoding) => {
                Record::Data { lba, lba_count, encoding, stored_bytes, payload_checksum: tail }
            }
            (KIND_FILL, byte) => Record::Fill { lba, lba_count: tail, byte },
            (KIND_TRIM, 0) => Record::Trim { lba, lba_count: tail },
            _ => return Err(corrupt("a record is of an unknown kind", place)),
        };
        let (_, blocks) = record.lba_range();
        let possible = blocks > 0
            && lba.0.checked_add(blocks).is_some_and(|end| end <= u64::MAX / BLOCK_BYTES as u64)
            && record.stored_bytes() == stored_bytes
            && stored_bytes as usize <= super::BATCH_BYTES_MAX
            && (lba_count == 0) != (layout.kind == KIND_DATA);
        if possible { Ok(record) } else { Err(corrupt("a record's values are impossible", place)) }
    }
}

/// Checks a data record's payload.
///
/// # Errors
/// `Corrupt`, naming the place.
#[inline]
pub fn check_payload(payload: &[u8], expected: u64, place: RecordPlace) -> Result<()> {
    if crc64(payload) == expected {
        return Ok(());
    }
    Err(corrupt("a frame's payload has a wrong checksum", place))
}

fn checksum(layout: &Layout, place: RecordPlace) -> u32 {
    let mut bytes = [0; 16 + RECORD_HEADER_BYTES];
    bytes[..8].copy_from_slice(&place.generation.to_le_bytes());
    bytes[8..12].copy_from_slice(&place.segment.0.to_le_bytes());
    bytes[12..16].copy_from_slice(&place.offset.to_le_bytes());
    bytes[16..].copy_from_slice(layout.as_bytes());
    crc32(&bytes)
}

#[cold]
fn corrupt(what: &'static str, place: RecordPlace) -> Error {
    Error::new(ErrorKind::Corrupt, what)
        .in_segment(place.segment)
        .at_offset(u64::from(place.offset))
}

#[cfg(test)]
mod tests {
    //! Goal: round trip of every kind; every damaged bit and every wrong place is noticed.
    use super::*;

    const PLACE: RecordPlace =
        RecordPlace { generation: 1 << 32 | 7, segment: SegmentId(3), offset: 4097 };

    fn samples() -> [Record; 3] {
        [
            Record::Data {
                lba: Lba(77),
                lba_count: 8,
                encoding: 1,
                stored_bytes: 1234,
                payload_checksum: 0xdead_beef,
            },
            Record::Fill { lba: Lba(0), lba_count: 1 << 40, byte: 0xff },
            Record::Trim { lba: Lba(5), lba_count: 1 },
        ]
    }

    #[test]
    fn round_trip() {
        for record in samples() {
            let mut bytes = [0; 64];
            record.encode_into(PLACE, &mut bytes);
            assert_eq!(Record::decode(&bytes, PLACE).unwrap(), record);
        }
    }

    #[test]
    fn every_flipped_bit_every_truncation_and_every_wrong_place_is_noticed() {
        for record in samples() {
            let mut good = [0; RECORD_HEADER_BYTES];
            record.encode_into(PLACE, &mut good);
            for bit in 0..good.len() * 8 {
                let mut bytes = good;
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert!(Record::decode(&bytes, PLACE).is_err(), "{record:?} bit {bit}");
            }
            for len in 0..good.len() {
                assert!(Record::decode(&good[..len], PLACE).is_err());
            }
            let wrong = [
                RecordPlace { generation: 1, ..PLACE },
                RecordPlace { segment: SegmentId(4), ..PLACE },
                RecordPlace { offset: 4098, ..PLACE },
            ];
            for place in wrong {
                assert!(Record::decode(&good, place).is_err(), "{place:?}");
            }
        }
    }

    #[test]
    fn impossible_values_are_refused_though_the_checksum_is_right() {
        let impossible = [
            Record::Trim { lba: Lba(5), lba_count: 0 },
            Record::Fill { lba: Lba(u64::MAX), lba_count: 2, byte: 1 },
            Record::Data {
                lba: Lba(1),
                lba_count: 0,
                encoding: 0,
                stored_bytes: 0,
                payload_checksum: 0,
            },
        ];
        for record in impossible {
            let mut bytes = [0; RECORD_HEADER_BYTES];
            record.encode_into(PLACE, &mut bytes);
            assert!(Record::decode(&bytes, PLACE).is_err(), "{record:?}");
        }
        type Change = (usize, fn(&mut Layout));
        let changes: [Change; 7] = [
            (0, |layout| layout.stored_bytes = (super::super::BATCH_BYTES_MAX as u32 + 1).into()),
            (1, |layout| layout.stored_bytes = 1.into()),
            (1, |layout| layout.lba_count = 1.into()),
            (2, |layout| layout.lba_count = 1.into()),
            (2, |layout| layout.argument = 1),
            (2, |layout| layout.kind = 0),
            (2, |layout| layout.kind = 4),
        ];
        for (index, (sample, change)) in changes.into_iter().enumerate() {
            let mut bytes = [0; RECORD_HEADER_BYTES];
            samples()[sample].encode_into(PLACE, &mut bytes);
            let mut layout = Layout::read_from_bytes(&bytes).unwrap();
            change(&mut layout);
            layout.header_checksum = 0.into();
            layout.header_checksum = checksum(&layout, PLACE).into();
            assert!(Record::decode(layout.as_bytes(), PLACE).is_err(), "change {index}");
        }
    }
}

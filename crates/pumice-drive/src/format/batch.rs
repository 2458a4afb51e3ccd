//! The batch header: describes one append to a segment and its position in the log.
//!
//! ```text
//! | batch header 128 | record | record | ... | padding to the write unit | parity |
//!                    '-------------------- body: body_bytes --------------------------'
//! ```
//!
//! Batches form a chain: each contains the header checksum of the batch before it, and its own
//! header checksum covers its records' checksum. A batch belongs to the log only if the entire
//! chain before it does. Batches that a crashed process left after the end of the log are therefore
//! never accepted.

use uuid::Uuid;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::layout::layout;
use super::limits::BATCH_BYTES_MAX;
use super::record::{META_ALIGNMENT, RECORD_HEADER_BYTES};
use super::segment::SEGMENT_HEADER_BYTES;
use crate::base::checksum::{crc32, crc64};
use crate::base::{Error, ErrorContext, ErrorKind, Result, SegmentId, SeqNo, ensure};
use crate::crypt::{Cipher, PLAIN};

/// Bytes of a batch header. The records follow it.
pub const BATCH_HEADER_BYTES: usize = 128;

/// Batches begin and end at multiples of this many bytes from the start of their segment.
pub const BATCH_ALIGNMENT: usize = 4096;

/// Maximum pages of parity of a batch.
pub const PARITY_PAGES_MAX: u8 = 4;

/// The flag of [`BatchHeader::needs_next`].
const NEEDS_NEXT: u8 = 1;

const _: () = assert!(size_of::<Layout>() == BATCH_HEADER_BYTES, "the layout fills the header");
const _: () = assert!(BATCH_BYTES_MAX.is_multiple_of(BATCH_ALIGNMENT), "whole write units");
const _: () = assert!(
    SEGMENT_HEADER_BYTES.is_multiple_of(BATCH_ALIGNMENT),
    "the first batch of a segment is aligned"
);
const _: () = assert!(
    BATCH_ALIGNMENT.is_multiple_of(META_ALIGNMENT as usize)
        && BATCH_HEADER_BYTES.is_multiple_of(META_ALIGNMENT as usize),
    "the first record of a batch is aligned for metadata"
);

const MAGIC: [u8; 8] = *b"PUMICEBT";

/// [`super::FORMAT_VERSION`] in the width of the header's field.
const VERSION: u16 = 1;
const _: () = assert!(VERSION as u32 == super::FORMAT_VERSION);

layout! {
    struct Layout: 128 {
        magic: [u8; 8],
        header_checksum: U64,
        records_checksum: U32,
        epoch: U32,
        seq: U64,
        previous_checksum: U64,
        watermark: U64,
        generation: U64,
        host_bytes: U64,
        frame_bytes: U64,
        media_bytes: U64,
        segment: U32,
        offset: U32,
        body_bytes: U32,
        record_bytes: U32,
        record_count: U32,
        version: U16,
        parity_pages: u8,
        flags: u8,
        moved_bytes: U64,
        uuid: [u8; 16],
    }
}

pub(super) const FIELDS: &[super::layout::Field] = Layout::FIELDS;

/// The decoded batch header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    /// Checksum that is chained over the record headers in order; see [`chain_record`]. Each record
    /// header covers its payload, so no byte is checksummed twice.
    pub records_checksum: u32,
    /// Position in the log. Positions are consecutive; the first is 1.
    pub seq: SeqNo,
    /// Header checksum of the batch before it; see [`chain_start`].
    pub previous_checksum: u64,
    /// The highest batch known to be durable when this one was sealed.
    pub watermark: SeqNo,
    /// Bytes of records that garbage collection moved over the drive's life.
    pub moved_bytes: u64,
    /// Generation of the segment that contains the batch.
    pub generation: u64,
    /// Bytes the host has written over the drive's life, this batch included.
    pub host_bytes: u64,
    /// Record headers and payloads over the drive's life, this batch included.
    pub frame_bytes: u64,
    /// Bytes appended to the medium over the drive's life, this batch included.
    pub media_bytes: u64,
    /// The segment that contains the batch.
    pub segment: SegmentId,
    /// Byte offset of the header in the segment: a multiple of [`BATCH_ALIGNMENT`].
    pub offset: u32,
    /// Bytes after the header, padding included. Header and body fill whole write units.
    pub body_bytes: u32,
    /// Bytes of the body that are records. The rest is padding and parity.
    pub record_bytes: u32,
    /// Number of records.
    pub record_count: u32,
    /// Pages of parity at the end of the body, up to [`PARITY_PAGES_MAX`]. Batches of metadata have
    /// some; batches of data have one if they are 64 KiB or longer. No checksum covers the parity.
    pub parity_pages: u8,
    /// Whether the last write in the batch ends in the next batch, in another segment. The batch is
    /// then valid only together with the next one.
    pub needs_next: bool,
    /// Epoch of the drive in which the batch was written.
    pub epoch: u32,
    /// The drive that the batch belongs to. A host that stores bytes that look like a batch cannot
    /// know this value.
    pub uuid: Uuid,
}

/// Returns the value that the first batch of a drive has as the checksum of its predecessor.
pub fn chain_start(uuid: Uuid) -> u64 {
    crc64(uuid.as_bytes())
}

/// Returns the records' checksum extended by one record: the CRC-32C of the checksum so far (4
/// bytes, 0 before the first record) and the record's header.
///
/// The header has a checksum of its own, which also covers its sources. This one proves that the
/// header is the one with which the batch was sealed.
#[inline]
pub fn chain_record(checksum: u32, record_header: &[u8; RECORD_HEADER_BYTES]) -> u32 {
    let mut bytes = [0; 4 + RECORD_HEADER_BYTES];
    let (start, rest) = bytes.split_at_mut(4);
    start.copy_from_slice(&checksum.to_le_bytes());
    rest.copy_from_slice(record_header);
    crc32(&bytes)
}

impl BatchHeader {
    /// Checks the rules for every batch that a drive seals. Call this before
    /// [`BatchHeader::encode_into`], which also encodes other values, for tests of the decoders.
    ///
    /// # Panics
    /// If a rule is violated.
    pub(crate) fn check_invariants(&self) {
        assert!(self.seq > self.watermark, "a batch is sealed before it is durable");
        assert!(self.batch_bytes() <= BATCH_BYTES_MAX as u64, "a batch fits in a reader's buffer");
        assert!(
            self.batch_bytes().is_multiple_of(BATCH_ALIGNMENT as u64),
            "a batch fills whole write units"
        );
        assert!(
            (self.offset as usize).is_multiple_of(BATCH_ALIGNMENT),
            "a batch begins at a write unit"
        );
        assert!(
            self.offset as usize >= SEGMENT_HEADER_BYTES,
            "a batch begins after the segment header"
        );
        assert!(
            u64::from(self.offset) + self.batch_bytes() <= u64::from(super::SEGMENT_BYTES_MAX),
            "a batch ends within its segment"
        );
        let padded_bytes = self.body_bytes.checked_sub(self.parity_bytes());
        let padded_bytes = padded_bytes.expect("the parity of a batch lies in its body");
        let padding_bytes = padded_bytes.checked_sub(self.record_bytes);
        let padding_bytes = padding_bytes.expect("the records of a batch lie in its body");
        assert!((padding_bytes as usize) < BATCH_ALIGNMENT, "padding is shorter than a write unit");
        assert!(
            u64::from(self.record_count) * RECORD_HEADER_BYTES as u64
                <= u64::from(self.record_bytes),
            "every record of a batch has a header"
        );
        assert_eq!(
            self.record_count == 0,
            self.record_bytes == 0,
            "bytes of records belong to records"
        );
    }

    /// Writes the header at the start of `target` and returns its checksum, which the next batch
    /// contains.
    ///
    /// # Panics
    /// If `target` is shorter than [`BATCH_HEADER_BYTES`].
    pub fn encode_into(&self, target: &mut [u8]) -> u64 {
        self.encode_with(target, &PLAIN)
    }

    /// Like [`BatchHeader::encode_into`], on a drive with a cipher: if the cipher encrypts, a MAC
    /// replaces the checksum.
    ///
    /// # Panics
    /// See [`BatchHeader::encode_into`].
    pub(crate) fn encode_with(&self, target: &mut [u8], cipher: &Cipher) -> u64 {
        let mut layout = Layout::new_zeroed();
        layout.magic = MAGIC;
        layout.records_checksum = self.records_checksum.into();
        layout.seq = self.seq.0.into();
        layout.previous_checksum = self.previous_checksum.into();
        layout.watermark = self.watermark.0.into();
        layout.generation = self.generation.into();
        layout.host_bytes = self.host_bytes.into();
        layout.frame_bytes = self.frame_bytes.into();
        layout.media_bytes = self.media_bytes.into();
        layout.moved_bytes = self.moved_bytes.into();
        layout.segment = self.segment.0.into();
        layout.offset = self.offset.into();
        layout.body_bytes = self.body_bytes.into();
        layout.record_bytes = self.record_bytes.into();
        layout.record_count = self.record_count.into();
        layout.epoch = self.epoch.into();
        layout.uuid = *self.uuid.as_bytes();
        layout.version = VERSION.into();
        layout.parity_pages = self.parity_pages;
        layout.flags = if self.needs_next { NEEDS_NEXT } else { 0 };
        let checksum = checksum(&layout, cipher);
        layout.header_checksum = checksum.into();
        assert!(target.len() >= BATCH_HEADER_BYTES, "no room for a batch header");
        let (header, _) = target.split_at_mut(BATCH_HEADER_BYTES);
        header.copy_from_slice(layout.as_bytes());
        checksum
    }

    /// Decodes a batch header from the first 128 bytes of `bytes`. Returns the header and its
    /// checksum.
    ///
    /// # Errors
    /// `Corrupt` if there is no valid header. The caller decides whether that means the end of the
    /// log or damage.
    pub fn decode(bytes: &[u8]) -> Result<(Self, u64)> {
        Self::decode_with(bytes, &PLAIN)
    }

    /// Like [`BatchHeader::decode`], on a drive with a cipher.
    ///
    /// # Errors
    /// See [`BatchHeader::decode`].
    pub fn decode_with(bytes: &[u8], cipher: &Cipher) -> Result<(Self, u64)> {
        const CORRUPT: ErrorKind = ErrorKind::Corrupt;
        let layout = Layout::read_from_prefix(bytes).ok();
        let (mut layout, _) = layout.or_error(CORRUPT, "a batch header is truncated")?;
        ensure(layout.magic == MAGIC, CORRUPT, "there is no batch header")?;
        let expected = layout.header_checksum.get();
        layout.header_checksum = 0.into();
        let checksum = checksum(&layout, cipher);
        if checksum != expected {
            return Err(Error::new(CORRUPT, "a batch header's checksum is wrong"));
        }
        let header = Self {
            records_checksum: layout.records_checksum.get(),
            seq: SeqNo(layout.seq.get()),
            previous_checksum: layout.previous_checksum.get(),
            watermark: SeqNo(layout.watermark.get()),
            generation: layout.generation.get(),
            host_bytes: layout.host_bytes.get(),
            frame_bytes: layout.frame_bytes.get(),
            media_bytes: layout.media_bytes.get(),
            moved_bytes: layout.moved_bytes.get(),
            segment: SegmentId(layout.segment.get()),
            offset: layout.offset.get(),
            body_bytes: layout.body_bytes.get(),
            record_bytes: layout.record_bytes.get(),
            record_count: layout.record_count.get(),
            parity_pages: layout.parity_pages,
            needs_next: layout.flags == NEEDS_NEXT,
            epoch: layout.epoch.get(),
            uuid: Uuid::from_bytes(layout.uuid),
        };
        let whole = BATCH_HEADER_BYTES + header.body_bytes as usize;
        let is_possible = (1..=VERSION).contains(&layout.version.get())
            && header.parity_pages <= PARITY_PAGES_MAX
            && layout.flags <= NEEDS_NEXT
            && whole <= BATCH_BYTES_MAX
            && whole.is_multiple_of(BATCH_ALIGNMENT)
            && header.parity_bytes() <= header.body_bytes
            && header.record_bytes <= header.body_bytes - header.parity_bytes()
            && header.seq.0 > 0;
        ensure(is_possible, CORRUPT, "a batch header's values are invalid")?;
        debug_assert_eq!(
            header.encode_with(&mut [0; BATCH_HEADER_BYTES], cipher),
            checksum,
            "a batch header has a single encoding"
        );
        Ok((header, checksum))
    }

    /// Returns the bytes of the parity at the end of the body.
    pub fn parity_bytes(&self) -> u32 {
        u32::from(self.parity_pages) * super::record::BLOCK_LENGTH
    }

    /// Returns the bytes of the entire batch on the medium: header, records, padding and parity.
    pub fn batch_bytes(&self) -> u64 {
        BATCH_HEADER_BYTES as u64 + u64::from(self.body_bytes)
    }
}

/// Returns the checksum of a header, computed with a checksum field of 0, or its MAC if the cipher
/// encrypts.
fn checksum(layout: &Layout, cipher: &Cipher) -> u64 {
    if cipher.is_plain() {
        crc64(layout.as_bytes())
    } else {
        cipher.batch_mac(layout.generation.get(), layout.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    //! Goal: round trip; every damaged bit is detected; impossible lengths are never accepted.
    use super::*;

    fn sample() -> BatchHeader {
        BatchHeader {
            records_checksum: 1,
            seq: SeqNo(2),
            previous_checksum: 3,
            watermark: SeqNo(1),
            generation: 5,
            host_bytes: 6,
            frame_bytes: 7,
            media_bytes: 8,
            moved_bytes: 4,
            segment: SegmentId(9),
            offset: 4096,
            body_bytes: 8192 - 128,
            record_bytes: 5000,
            record_count: 12,
            parity_pages: 0,
            needs_next: true,
            epoch: 13,
            uuid: Uuid::from_u128(14),
        }
    }

    #[test]
    fn round_trip() {
        let mut bytes = [0xff; 200];
        let checksum = sample().encode_into(&mut bytes);
        assert_eq!(BatchHeader::decode(&bytes).unwrap(), (sample(), checksum));
    }

    #[test]
    fn every_flipped_bit_and_every_truncation_is_noticed() {
        let mut good = [0; BATCH_HEADER_BYTES];
        sample().encode_into(&mut good);
        for bit in 0..good.len() * 8 {
            let mut bytes = good;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(BatchHeader::decode(&bytes).is_err(), "bit {bit}");
        }
        for len in 0..good.len() {
            assert!(BatchHeader::decode(&good[..len]).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn impossible_values_are_refused_though_the_checksum_is_right() {
        let changes: [fn(&mut BatchHeader); 6] = [
            |header| header.body_bytes += 512,
            |header| header.body_bytes = (8 << 20) - 128,
            |header| header.record_bytes = header.body_bytes + 1,
            |header| header.seq = SeqNo(0),
            |header| header.parity_pages = 1,
            |header| (header.parity_pages, header.record_bytes) = (5, 0),
        ];
        for (index, change) in changes.into_iter().enumerate() {
            let mut header = sample();
            change(&mut header);
            let mut bytes = [0; BATCH_HEADER_BYTES];
            header.encode_into(&mut bytes);
            assert!(BatchHeader::decode(&bytes).is_err(), "change {index}");
        }
        let changes: [fn(&mut Layout); 2] =
            [|layout| layout.version = 2.into(), |layout| layout.flags = 2];
        for (index, change) in changes.into_iter().enumerate() {
            let mut bytes = [0; BATCH_HEADER_BYTES];
            sample().encode_into(&mut bytes);
            let mut layout = Layout::read_from_bytes(&bytes).unwrap();
            change(&mut layout);
            layout.header_checksum = 0.into();
            layout.header_checksum = crc64(layout.as_bytes()).into();
            assert!(BatchHeader::decode(layout.as_bytes()).is_err(), "layout change {index}");
        }
    }

    #[test]
    fn other_versions_are_refused_though_the_checksum_is_right() {
        for (version, is_read) in [(0u16, false), (1, true), (2, false)] {
            let mut bytes = [0; BATCH_HEADER_BYTES];
            sample().encode_into(&mut bytes);
            let mut layout = Layout::read_from_bytes(&bytes).unwrap();
            layout.version = version.into();
            layout.header_checksum = 0.into();
            layout.header_checksum = crc64(layout.as_bytes()).into();
            assert_eq!(BatchHeader::decode(layout.as_bytes()).is_ok(), is_read, "{version}");
        }
    }
}

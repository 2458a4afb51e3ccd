//! The segment header: the first 4 KiB of a segment, written together with the first batch.
//!
//! The header identifies the drive that owns the segment and its *generation*, a number that no two
//! uses of a segment share. Every record header in the segment is bound to the generation, so a
//! remnant of an earlier use is never mistaken for current data.

use uuid::Uuid;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::keys::{KEY_SLOT_BYTES, KeySlot};
use super::layout::layout;
use crate::base::checksum::crc64;
use crate::base::{Error, ErrorContext, ErrorKind, Result, SegmentId, SeqNo, ensure};

/// Bytes of a segment header. The first batch follows it.
pub const SEGMENT_HEADER_BYTES: usize = LENGTH as usize;

const LENGTH: u32 = 4096;

const MAGIC: [u8; 8] = *b"PUMICESG";

const _: () = assert!(size_of::<Layout>() == SEGMENT_HEADER_BYTES, "the layout fills the header");

layout! {
    struct Layout: 4096 {
        magic: [u8; 8],
        version: U32,
        length: U32,
        checksum: U64,
        uuid: [u8; 16],
        generation: U64,
        first_seq: U64,
        segment: U32,
        stream: U16,
        frame_blocks: U16,
        size_bytes: U64,
        data_offset: U64,
        segment_bytes: U32,
        segment_count: U32,
        opening_seq: U64,
        recovery_slot: [u8; KEY_SLOT_BYTES],
        reserved: [u8; 3872],
    }
}

pub(super) const FIELDS: &[super::layout::Field] = Layout::FIELDS;

/// The decoded segment header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// For an encrypted drive, the master key of this use of the segment under the recovery code,
    /// so that the drive can be rebuilt without its superblocks.
    pub recovery: Option<KeySlot>,
    /// The drive that the segment belongs to.
    pub uuid: Uuid,
    /// Number of this use of the segment. See [`generation`].
    pub generation: u64,
    /// Sequence number of the first batch in the segment.
    pub first_seq: SeqNo,
    /// The segment's own number.
    pub segment: SegmentId,
    /// The stream that is appended to the segment.
    pub stream: Stream,
    /// Sequence number of the first batch after the opening of the drive during which the segment
    /// was started; 0 if unknown.
    pub opening_seq: SeqNo,
    /// Shape of the drive when the segment was started.
    pub shape: DriveShape,
}

/// The parameters of a drive that a reader of its segments needs. Every segment header repeats
/// them, so a drive can be rebuilt without its superblocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriveShape {
    /// Size of the host's disk in bytes.
    pub size_bytes: u64,
    /// Byte offset of segment 0 on the medium.
    pub data_offset: u64,
    /// Bytes of a segment.
    pub segment_bytes: u32,
    /// Number of segments.
    pub segment_count: u32,
    /// Maximum number of blocks of a frame in the host stream.
    pub frame_blocks: u16,
}

/// The kind of data that is appended to a segment. Each stream has one open segment, so data of
/// different ages does not share segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Stream {
    /// Host writes.
    Host = 0,
    /// Frames that garbage collection moves.
    Moved = 1,
    /// The map and the rest of checkpoints.
    Meta = 2,
}

impl Stream {
    /// Number of streams.
    pub const COUNT: usize = 3;

    /// All streams.
    pub const ALL: [Self; Self::COUNT] = [Self::Host, Self::Moved, Self::Meta];

    const IS_ORDERED: () = {
        let [host, moved, meta] = Self::ALL;
        assert!(host as u8 == 0 && moved as u8 == 1 && meta as u8 == 2, "streams in order");
    };

    /// Returns the stream with this number on the medium, if any.
    pub fn from_u8(stream: u8) -> Option<Self> {
        const { Self::IS_ORDERED };
        Self::ALL.get(usize::from(stream)).copied()
    }
}

/// Returns the epoch in which a segment of this generation was started.
pub(crate) fn epoch_of(generation: u64) -> u32 {
    (generation >> 32) as u32
}

/// Returns the generation of the `ordinal`-th segment opened in `epoch`. It is unique over the
/// drive's life, because the epoch is durable before any batch of it is written.
pub fn generation(epoch: u32, ordinal: u32) -> u64 {
    u64::from(epoch) << 32 | u64::from(ordinal)
}

impl SegmentHeader {
    /// Checks the rules for every segment that a drive starts. Call this before
    /// [`SegmentHeader::encode_into`], which also encodes other values, for tests of the decoders.
    ///
    /// # Panics
    /// If a rule is violated.
    pub(crate) fn check_invariants(&self) {
        let shape = &self.shape;
        assert!(self.first_seq.0 > 0, "the first batch of a drive is 1");
        assert!(self.opening_seq <= self.first_seq, "a segment is started after the opening");
        assert!(self.segment.0 < shape.segment_count, "a drive uses its own segments");
        assert!(shape.segment_count <= super::META_SEGMENTS_MAX, "an address names any segment");
        assert!(
            (super::SEGMENT_BYTES_MIN..=super::SEGMENT_BYTES_MAX).contains(&shape.segment_bytes),
            "bytes of a segment"
        );
        assert!(
            shape.frame_blocks.is_power_of_two() && shape.frame_blocks <= super::FRAME_BLOCKS_MAX,
            "blocks of a frame"
        );
        assert!(
            (1..=super::SIZE_BYTES_MAX).contains(&shape.size_bytes),
            "the size of a disk lies within the limits of the format"
        );
        assert!(
            shape.data_offset >= super::limits::DATA_OFFSET_MIN,
            "segments follow the superblock slots"
        );
    }

    /// Writes the header at the start of `target`.
    ///
    /// # Panics
    /// If `target` is shorter than [`SEGMENT_HEADER_BYTES`].
    pub fn encode_into(&self, target: &mut [u8]) {
        let mut layout = Layout::new_zeroed();
        layout.magic = MAGIC;
        layout.version = super::FORMAT_VERSION.into();
        layout.length = LENGTH.into();
        layout.uuid = *self.uuid.as_bytes();
        layout.generation = self.generation.into();
        layout.first_seq = self.first_seq.0.into();
        layout.segment = self.segment.0.into();
        layout.stream = (self.stream as u16).into();
        layout.frame_blocks = self.shape.frame_blocks.into();
        layout.size_bytes = self.shape.size_bytes.into();
        layout.data_offset = self.shape.data_offset.into();
        layout.segment_bytes = self.shape.segment_bytes.into();
        layout.segment_count = self.shape.segment_count.into();
        layout.opening_seq = self.opening_seq.0.into();
        if let Some(recovery) = &self.recovery {
            layout.recovery_slot = recovery.encode();
        }
        layout.checksum = crc64(layout.as_bytes()).into();
        assert!(target.len() >= SEGMENT_HEADER_BYTES, "no room for a segment header");
        let (header, _) = target.split_at_mut(SEGMENT_HEADER_BYTES);
        header.copy_from_slice(layout.as_bytes());
    }

    /// Returns the segment header in `bytes`, if there is one, whatever its drive and segment.
    pub fn found_in(bytes: &[u8]) -> Option<Self> {
        let layout = Layout::read_from_bytes(bytes).ok()?;
        let segment = SegmentId(layout.segment.get());
        Self::decode(bytes, Uuid::from_bytes(layout.uuid), segment).ok()?
    }

    /// Decodes the header of `segment` of the drive `uuid` from the segment's first 4 KiB. Returns
    /// `None` if this drive has never used the segment.
    ///
    /// # Errors
    /// `Corrupt` for a header with a wrong checksum or wrong values.
    pub fn decode(bytes: &[u8], uuid: Uuid, segment: SegmentId) -> Result<Option<Self>> {
        Self::decode_layout(bytes, uuid, segment).map_err(|error| error.in_segment(segment))
    }

    fn decode_layout(bytes: &[u8], uuid: Uuid, segment: SegmentId) -> Result<Option<Self>> {
        const CORRUPT: ErrorKind = ErrorKind::Corrupt;
        let layout = Layout::read_from_bytes(bytes).ok();
        let mut layout = layout.or_error(CORRUPT, "a segment header must be 4096 bytes")?;
        if layout.magic != MAGIC {
            let is_unused = bytes.iter().all(|&byte| byte == 0);
            ensure(is_unused, CORRUPT, "the segment does not begin with a segment header")?;
            return Ok(None);
        }
        let checksum = layout.checksum.get();
        layout.checksum = 0.into();
        if crc64(layout.as_bytes()) != checksum {
            return Err(Error::new(CORRUPT, "the segment header's checksum is wrong"));
        }
        if layout.uuid != *uuid.as_bytes() {
            return Ok(None);
        }
        let stream = u8::try_from(layout.stream.get()).ok().and_then(Stream::from_u8);
        let stream = stream.filter(|_| {
            (1..=super::FORMAT_VERSION).contains(&layout.version.get())
                && layout.length.get() == LENGTH
                && layout.segment.get() == segment.0
                && layout.reserved.iter().all(|&byte| byte == 0)
        });
        let stream = stream.or_error(CORRUPT, "the segment header's values are invalid")?;
        let recovery = KeySlot::decode(&layout.recovery_slot).ok();
        let recovery = recovery.or_error(CORRUPT, "the segment header's key slot is invalid")?;
        let header = Self {
            recovery,
            uuid,
            generation: layout.generation.get(),
            first_seq: SeqNo(layout.first_seq.get()),
            segment,
            stream,
            opening_seq: SeqNo(layout.opening_seq.get()),
            shape: DriveShape {
                size_bytes: layout.size_bytes.get(),
                data_offset: layout.data_offset.get(),
                segment_bytes: layout.segment_bytes.get(),
                segment_count: layout.segment_count.get(),
                frame_blocks: layout.frame_blocks.get(),
            },
        };
        debug_assert!(header.encodes_to(bytes), "a segment header has a single encoding");
        Ok(Some(header))
    }

    fn encodes_to(&self, bytes: &[u8]) -> bool {
        let mut again = [0; SEGMENT_HEADER_BYTES];
        self.encode_into(&mut again);
        again == *bytes
    }
}

#[cfg(test)]
mod tests {
    //! Goal: round trip; all damage is detected; unused and foreign segments are distinguished.
    use super::*;

    fn sample() -> (SegmentHeader, Vec<u8>) {
        let header = SegmentHeader {
            recovery: None,
            uuid: Uuid::from_u128(7),
            generation: generation(3, 9),
            first_seq: SeqNo(1000),
            segment: SegmentId(42),
            stream: Stream::Meta,
            opening_seq: SeqNo(900),
            shape: DriveShape {
                size_bytes: 1 << 40,
                data_offset: 2 << 20,
                segment_bytes: 32 << 20,
                segment_count: 1000,
                frame_blocks: 8,
            },
        };
        let mut bytes = vec![0xaa; SEGMENT_HEADER_BYTES];
        header.encode_into(&mut bytes);
        (header, bytes)
    }

    #[test]
    fn round_trip_and_place() {
        let (header, bytes) = sample();
        assert_eq!(
            SegmentHeader::decode(&bytes, header.uuid, SegmentId(42)).unwrap(),
            Some(header)
        );
        assert!(SegmentHeader::decode(&bytes, Uuid::from_u128(7), SegmentId(41)).is_err());
        assert_eq!(SegmentHeader::decode(&bytes, Uuid::from_u128(8), SegmentId(42)).unwrap(), None);
        let unused = SegmentHeader::decode(&[0; 4096], Uuid::from_u128(7), SegmentId(42));
        assert_eq!(unused.unwrap(), None);
    }

    #[test]
    fn impossible_values_are_refused_though_the_checksum_is_right() {
        let (header, good) = sample();
        let changes: [fn(&mut Layout); 5] = [
            |layout| layout.version = 0.into(),
            |layout| layout.version = 2.into(),
            |layout| layout.length = 0.into(),
            |layout| layout.segment = 41.into(),
            |layout| layout.reserved[9] = 1,
        ];
        for (index, change) in changes.into_iter().enumerate() {
            let mut layout = Layout::read_from_bytes(&good).unwrap();
            change(&mut layout);
            layout.checksum = 0.into();
            layout.checksum = crc64(layout.as_bytes()).into();
            let decoded = SegmentHeader::decode(layout.as_bytes(), header.uuid, SegmentId(42));
            assert_eq!(decoded.unwrap_err().kind(), ErrorKind::Corrupt, "change {index}");
        }
    }

    #[test]
    fn no_two_uses_of_a_segment_share_a_generation() {
        let uses = [(0, 0), (0, 1), (0, u32::MAX), (1, 0), (1, 1), (2, 0), (u32::MAX, u32::MAX)];
        let generations = uses.map(|(epoch, ordinal)| generation(epoch, ordinal));
        assert!(generations.is_sorted_by(|earlier, later| earlier < later), "{generations:?}");
    }

    #[test]
    fn every_flipped_bit_and_every_truncation_is_noticed() {
        let (header, good) = sample();
        for bit in (0..600).chain((600..good.len() * 8).step_by(101)) {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(
                SegmentHeader::decode(&bytes, header.uuid, SegmentId(42)).is_err(),
                "bit {bit}"
            );
        }
        for len in [0, 8, 4095] {
            assert!(SegmentHeader::decode(&good[..len], header.uuid, SegmentId(42)).is_err());
        }
    }
}

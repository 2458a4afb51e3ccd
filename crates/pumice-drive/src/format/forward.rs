//! Forwarding tables: the new locations of frames that snapshots refer to and that garbage
//! collection has moved.
//!
//! ```text
//! piece of a table: | header: the use of a segment | entries, by the offsets that maps name |
//! ```
//!
//! The map of a snapshot is never rewritten. It refers to frames in a given use of a segment. If
//! that use has a table, the table has the location of each frame. Decoders accept untrusted bytes.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::layout::layout;
use super::limits::META_SEGMENTS_MAX;
use super::map::MapLimits;
use crate::base::{ErrorContext, ErrorKind, Result, SegmentId, SeqNo, ensure};

/// Maximum number of entries in a piece of a forwarding table, which has 16 KiB.
pub(crate) const FORWARDS_IN_A_PIECE: usize = (16 << 10) / size_of::<ForwardLayout>() - 1;

/// Maximum number of pieces of all tables: a root counts them in 16 bits.
pub(crate) const FORWARD_PIECES_MAX: usize = u16::MAX as usize;

layout! {
    struct ForwardsLayout: 32 {
        generation: U64,
        emptied: U64,
        segment: U32,
        reserved: [u8; 12],
    }
}

layout! {
    struct ForwardLayout: 32 {
        offset: U32,
        new_segment: U32,
        new_offset: U32,
        new_bytes: U32,
        since: U64,
        until: U64,
    }
}

pub(super) const PIECE_FIELDS: &[super::layout::Field] = ForwardsLayout::FIELDS;
pub(super) const ENTRY_FIELDS: &[super::layout::Field] = ForwardLayout::FIELDS;

const _: () = assert!(
    size_of::<ForwardsLayout>() + FORWARDS_IN_A_PIECE * size_of::<ForwardLayout>() <= 16 << 10,
    "a piece fits a metadata record"
);

/// The bit of an entry's length field that is set if blocks of the frame were live when it was
/// moved.
const WAS_LIVE: u32 = 1 << 31;

/// The bit of an entry's length field that is set if the record is a metadata record.
const IS_META: u32 = 1 << 30;

const FLAGS: u32 = WAS_LIVE | IS_META;
const _: () = assert!(super::SEGMENT_BYTES_MAX <= IS_META, "no flag is a part of a length");

/// The current location of one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forward {
    /// Byte offset of the frame in the segment that maps refer to.
    pub offset: u32,
    /// The segment of the copy. It stays in use as long as a snapshot needs the copy.
    pub new_segment: SegmentId,
    /// Byte offset of the copy.
    pub new_offset: u32,
    /// Bytes of the copy: header, sources and payload.
    pub new_bytes: u32,
    /// Whether blocks of it were live when it was moved.
    pub was_live: bool,
    /// Whether the record is not a frame but metadata of a snapshot: part of its map or lists.
    pub is_meta: bool,
    /// A snapshot whose last batch is before this one does not refer to the frame.
    pub since: SeqNo,
    /// Nor does a snapshot whose last batch is after this one.
    pub until: SeqNo,
}

/// A piece of the forwarding table of one use of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardPiece {
    /// The segment.
    pub segment: SegmentId,
    /// Its generation in that use.
    pub generation: u64,
    /// The newest batch at the time when all data that snapshots refer to in the segment had been
    /// moved; 0 until then. Data that snapshots up to this batch refer to in the segment belongs to
    /// this use or an earlier one.
    pub emptied: SeqNo,
    /// Its entries, by ascending offset.
    pub entries: Vec<Forward>,
}

impl ForwardPiece {
    /// Encodes the piece.
    ///
    /// # Panics
    /// If it has too many entries.
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.entries.len() <= FORWARDS_IN_A_PIECE, "a piece fits a metadata record");
        let mut layout = ForwardsLayout::new_zeroed();
        layout.generation = self.generation.into();
        layout.emptied = self.emptied.0.into();
        layout.segment = self.segment.0.into();
        let mut bytes = layout.as_bytes().to_vec();
        for entry in &self.entries {
            assert!(entry.new_bytes & FLAGS == 0, "a record is shorter than a segment");
            let was_live = if entry.was_live { WAS_LIVE } else { 0 };
            let flags = was_live | if entry.is_meta { IS_META } else { 0 };
            let layout = ForwardLayout {
                offset: entry.offset.into(),
                new_segment: entry.new_segment.0.into(),
                new_offset: entry.new_offset.into(),
                new_bytes: (entry.new_bytes | flags).into(),
                since: entry.since.0.into(),
                until: entry.until.0.into(),
            };
            bytes.extend(layout.as_bytes());
        }
        bytes
    }

    /// Decodes a piece. All copies are within `limits`, and offsets ascend. The segment may be one
    /// that the drive had before its capacity shrank.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn decode(bytes: &[u8], limits: &MapLimits) -> Result<Self> {
        const WHAT: &str = "a piece of a forwarding table is invalid";
        let layout = ForwardsLayout::read_from_prefix(bytes).ok();
        let (layout, rest) = layout.or_error(ErrorKind::Corrupt, WHAT)?;
        let is_possible = layout.reserved == [0; 12]
            && layout.segment.get() < META_SEGMENTS_MAX
            && rest.len().is_multiple_of(size_of::<ForwardLayout>());
        ensure(is_possible, ErrorKind::Corrupt, WHAT)?;
        let entries = rest.chunks_exact(size_of::<ForwardLayout>()).map(|bytes| {
            let layout = ForwardLayout::read_from_bytes(bytes).ok()?;
            let flags = layout.new_bytes.get() & FLAGS;
            let new_bytes = layout.new_bytes.get() & !FLAGS;
            let (since, until) = (SeqNo(layout.since.get()), SeqNo(layout.until.get()));
            let (segment, offset) = (layout.new_segment.get(), layout.new_offset.get());
            let is_within = limits.contain(segment, offset, new_bytes)
                && layout.offset.get() < limits.segment_bytes;
            // Metadata contains no block of the disk.
            (is_within && since <= until && flags != FLAGS).then_some(Forward {
                offset: layout.offset.get(),
                new_segment: SegmentId(segment),
                new_offset: offset,
                new_bytes,
                was_live: flags & WAS_LIVE != 0,
                is_meta: flags & IS_META != 0,
                since,
                until,
            })
        });
        let entries = entries.collect::<Option<Vec<_>>>().or_error(ErrorKind::Corrupt, WHAT)?;
        let is_sorted = entries.is_sorted_by(|one, next| one.offset < next.offset);
        ensure(is_sorted, ErrorKind::Corrupt, WHAT)?;
        Ok(Self {
            segment: SegmentId(layout.segment.get()),
            generation: layout.generation.get(),
            emptied: SeqNo(layout.emptied.get()),
            entries,
        })
    }
}

#[cfg(test)]
mod tests {
    //! Goal: round trip; impossible pieces are refused.
    use super::*;

    const LIMITS: MapLimits = MapLimits { segment_count: 9, segment_bytes: 1 << 20, seal_bytes: 0 };

    fn sample() -> ForwardPiece {
        let entry = |offset, was_live| Forward {
            offset,
            new_segment: SegmentId(8),
            new_offset: 8192,
            new_bytes: 700,
            was_live,
            is_meta: !was_live && offset == 6000,
            since: SeqNo(5),
            until: SeqNo(77),
        };
        ForwardPiece {
            segment: SegmentId(3),
            generation: 4 << 32 | 1,
            emptied: SeqNo(78),
            entries: vec![entry(4096, true), entry(5000, false), entry(6000, false)],
        }
    }

    #[test]
    fn round_trip() {
        let piece = sample();
        assert_eq!(ForwardPiece::decode(&piece.encode(), &LIMITS).unwrap(), piece);
        let longest = ForwardPiece {
            entries: (0..511).map(|offset| Forward { offset, ..piece.entries[0] }).collect(),
            ..piece
        };
        assert!(longest.encode().len() <= 16 << 10);
        assert_eq!(ForwardPiece::decode(&longest.encode(), &LIMITS).unwrap(), longest);
    }

    #[test]
    fn impossible_pieces_are_refused() {
        let good = sample().encode();
        for len in (0..good.len()).filter(|len| ![32, 64, 96].contains(len)) {
            assert!(ForwardPiece::decode(&good[..len], &LIMITS).is_err(), "{len}");
        }
        let wrong = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            assert!(ForwardPiece::decode(&bytes, &LIMITS).is_err(), "byte {at}");
        };
        wrong(19, 4);
        wrong(32 + 15, 0xc0);
        wrong(20, 1);
        wrong(32 + 4, 9);
        wrong(32 + 10, 0x10);
        wrong(32 + 16, 78);
        wrong(32 + 1, 0x20);
    }
}

//! The map on the medium: places of metadata records, directory entries and pages, leaves.
//!
//! ```text
//! directory page: 512 entries of 8 bytes, one a leaf
//! entry:          0 hole | 1 << 63 | byte: fill | place of the leaf's record
//! place:          0 | segment 26 | offset / 16: 26 | bytes / 16: 11 bits
//! leaf:           1..=1024 runs of 16 bytes that partition its 1024 blocks in order
//! ```
//!
//! One content has one encoding: what is equal is equal byte for byte. Checksums are those of the
//! records that carry leaves and pages. Deliberately absent: what a map does with its runs.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, IntoBytes};

use super::layout::layout;
use super::record::{RECORD_HEADER_BYTES, SOURCE_BYTES};
use super::superblock::FRAME_BLOCKS_MAX;
use crate::base::units::BLOCK_BYTES;
use crate::base::{Error, ErrorKind, Result, SegmentId};

/// Leaves of one directory page: 2 GiB of the host's disk, 4096 bytes.
pub const DIRECTORY_PAGE_LEAVES: usize = 512;

/// Bytes of a directory page.
pub const DIRECTORY_PAGE_BYTES: usize = DIRECTORY_PAGE_LEAVES * 8;

/// Logical blocks of one leaf: 4 MiB of the host's disk.
pub const LEAF_BLOCKS: u16 = 1024;

/// Bytes of one run of a leaf.
pub const LEAF_RUN_BYTES: usize = 16;

/// Segments that a place can name.
pub const META_SEGMENTS_MAX: u32 = 1 << 26;

/// Most bytes of a metadata record; places count them in units of 16, in 11 bits.
pub const META_RECORD_BYTES_MAX: u32 = 2047 * UNIT;

/// What offsets and lengths of metadata records are multiples of.
const UNIT: u32 = 16;

const SEGMENT_BITS: u32 = 26;
const OFFSET_BITS: u32 = 26;
const BYTES_BITS: u32 = 11;
const FILL_TAG: u64 = 1 << 63;

layout! {
    struct LeafRun: 16 {
        start: U16,
        index: u8,
        blocks: u8,
        segment: U32,
        offset: U32,
        record_bytes: U32,
    }
}

pub(super) const FIELDS: &[super::layout::Field] = LeafRun::FIELDS;

const HOLE: u32 = 0;
const FILL: u32 = 1;

/// What places on a drive must lie within.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapLimits {
    /// Segments of the drive.
    pub segment_count: u32,
    /// Bytes of each.
    pub segment_bytes: u32,
}

impl MapLimits {
    fn contain(&self, segment: u32, offset: u32, bytes: u32) -> bool {
        let end = u64::from(offset) + u64::from(bytes);
        segment < self.segment_count && end <= u64::from(self.segment_bytes)
    }
}

/// Where a metadata record stands, and how long it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MetaPlace {
    /// The segment, below [`META_SEGMENTS_MAX`].
    pub segment: SegmentId,
    /// Byte offset in the segment: a multiple of 16 below 2^30.
    pub offset: u32,
    /// Bytes of the record: a multiple of 16, from 16 to [`META_RECORD_BYTES_MAX`].
    pub bytes: u32,
}

impl MetaPlace {
    /// The place as 8 bytes: bit 63 is 0, and some other bit is 1.
    ///
    /// # Panics
    /// If a field has a value that its documentation rules out.
    pub fn pack(self) -> u64 {
        let Self { segment, offset, bytes } = self;
        assert!(offset.is_multiple_of(UNIT) && bytes.is_multiple_of(UNIT) && bytes > 0);
        let (offset, bytes) = (offset / UNIT, bytes / UNIT);
        assert!(segment.0 >> SEGMENT_BITS == 0 && offset >> OFFSET_BITS == 0);
        assert!(bytes >> BYTES_BITS == 0);
        u64::from(segment.0) << (OFFSET_BITS + BYTES_BITS)
            | u64::from(offset) << BYTES_BITS
            | u64::from(bytes)
    }

    /// The place that packs to `packed`, if there is one.
    #[inline]
    pub fn unpack(packed: u64) -> Option<Self> {
        let bits = |from: u32, count: u32| (packed >> from) as u32 & ((1 << count) - 1);
        let bytes = bits(0, BYTES_BITS) * UNIT;
        let place = Self {
            segment: SegmentId(bits(OFFSET_BITS + BYTES_BITS, SEGMENT_BITS)),
            offset: bits(BYTES_BITS, OFFSET_BITS) * UNIT,
            bytes,
        };
        (packed & FILL_TAG == 0 && bytes > 0).then_some(place)
    }

    /// Whether the record lies within a drive.
    pub fn is_within(&self, limits: &MapLimits) -> bool {
        limits.contain(self.segment.0, self.offset, self.bytes)
    }
}

/// What a directory says about a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectoryEntry {
    /// All its blocks are holes.
    Hole,
    /// Every byte of all its blocks is this one.
    Fill(u8),
    /// The record at this place holds its runs.
    Leaf(MetaPlace),
}

impl DirectoryEntry {
    /// The entry as 8 bytes; never with both of the two highest bits set.
    pub fn pack(self) -> u64 {
        match self {
            Self::Hole => 0,
            Self::Fill(byte) => FILL_TAG | u64::from(byte),
            Self::Leaf(place) => place.pack(),
        }
    }

    /// The entry that packs to `packed`, if there is one.
    #[inline]
    pub fn unpack(packed: u64) -> Option<Self> {
        match packed {
            0 => Some(Self::Hole),
            _ if packed & FILL_TAG == 0 => MetaPlace::unpack(packed).map(Self::Leaf),
            _ => u8::try_from(packed & !FILL_TAG).ok().map(Self::Fill),
        }
    }
}

/// The bytes of a directory page.
pub fn encode_page(entries: &[u64; DIRECTORY_PAGE_LEAVES]) -> [u8; DIRECTORY_PAGE_BYTES] {
    let mut bytes = [0; DIRECTORY_PAGE_BYTES];
    for (target, entry) in bytes.chunks_exact_mut(8).zip(entries) {
        target.copy_from_slice(&entry.to_le_bytes());
    }
    bytes
}

/// The entries of a directory page, all of them possible and within `limits`.
///
/// # Errors
/// `Corrupt`.
pub fn decode_page(bytes: &[u8], limits: &MapLimits) -> Result<[u64; DIRECTORY_PAGE_LEAVES]> {
    let corrupt = |what: &'static str| Error::new(ErrorKind::Corrupt, what);
    if bytes.len() != DIRECTORY_PAGE_BYTES {
        return Err(corrupt("a directory page of the map has the wrong length"));
    }
    let mut entries = [0; DIRECTORY_PAGE_LEAVES];
    for (entry, source) in entries.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *entry = u64::from_le_bytes(*source);
        let possible = match DirectoryEntry::unpack(*entry) {
            None => false,
            Some(DirectoryEntry::Leaf(place)) => place.is_within(limits),
            Some(_) => true,
        };
        if !possible {
            return Err(corrupt("a directory page of the map has an impossible entry"));
        }
    }
    Ok(entries)
}

/// What the blocks of a run hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunContent {
    /// Nothing.
    Hole,
    /// Every byte is this one.
    Fill(u8),
    /// Blocks of a frame, in order.
    Frame {
        /// Segment number.
        segment: u32,
        /// Byte offset of the frame's record header in the segment.
        offset: u32,
        /// Bytes of header and payload.
        record_bytes: u32,
        /// Blocks of the whole frame, from 1 to 64.
        blocks: u8,
        /// Which of them the run begins with.
        index: u8,
    },
}

/// Appends the run of a leaf that begins at block `start` to `target`.
pub fn encode_run(start: u16, content: RunContent, target: &mut Vec<u8>) {
    let none = U32::new(0);
    let uniform = |index, kind: u32| LeafRun {
        start: start.into(),
        index,
        blocks: 0,
        segment: kind.into(),
        offset: none,
        record_bytes: none,
    };
    let run = match content {
        RunContent::Hole => uniform(0, HOLE),
        RunContent::Fill(byte) => uniform(byte, FILL),
        RunContent::Frame { segment, offset, record_bytes, blocks, index } => LeafRun {
            start: start.into(),
            index,
            blocks,
            segment: segment.into(),
            offset: offset.into(),
            record_bytes: record_bytes.into(),
        },
    };
    target.extend_from_slice(run.as_bytes());
}

/// The runs of a leaf: first block, content. They partition its blocks in order, frame pieces fit
/// their frames, frames lie within `limits`, and no two neighbours are the same hole or fill.
///
/// # Errors
/// `Corrupt`.
pub fn decode_leaf<'a>(
    bytes: &'a [u8],
    limits: &MapLimits,
) -> Result<impl ExactSizeIterator<Item = (u16, RunContent)> + use<'a>> {
    let corrupt = |what: &'static str| Error::new(ErrorKind::Corrupt, what);
    let runs = <[LeafRun]>::ref_from_bytes(bytes).map_err(|_| corrupt("a leaf is cut off"))?;
    if runs.is_empty() || runs[0].start.get() != 0 {
        return Err(corrupt("a leaf of the map does not begin at its first block"));
    }
    for (at, run) in runs.iter().enumerate() {
        let end = runs.get(at + 1).map_or(LEAF_BLOCKS, |next| next.start.get());
        if end <= run.start.get() || end > LEAF_BLOCKS {
            return Err(corrupt("the runs of a leaf of the map are out of order"));
        }
        let repeats = at > 0 && run.blocks == 0 && runs[at - 1].content() == run.content();
        if repeats || !run.is_possible(end - run.start.get(), limits) {
            return Err(corrupt("a leaf of the map has an impossible run"));
        }
    }
    Ok(runs.iter().map(|run| (run.start.get(), run.content())))
}

impl LeafRun {
    fn is_possible(&self, count: u16, limits: &MapLimits) -> bool {
        let (segment, offset) = (self.segment.get(), self.offset.get());
        let record_bytes = self.record_bytes.get();
        if self.blocks == 0 {
            let kind = segment == FILL || (segment == HOLE && self.index == 0);
            return kind && offset == 0 && record_bytes == 0;
        }
        // Each block stored as it is, with a source of its own.
        let longest = u32::from(self.blocks) * (SOURCE_BYTES + BLOCK_BYTES) as u32;
        u16::from(self.blocks) <= FRAME_BLOCKS_MAX
            && record_bytes <= RECORD_HEADER_BYTES as u32 + longest
            && u16::from(self.index) + count <= u16::from(self.blocks)
            && record_bytes > RECORD_HEADER_BYTES as u32
            && limits.contain(segment, offset, record_bytes)
    }

    fn content(&self) -> RunContent {
        match (self.blocks, self.segment.get()) {
            (0, HOLE) => RunContent::Hole,
            (0, _) => RunContent::Fill(self.index),
            (blocks, segment) => RunContent::Frame {
                segment,
                offset: self.offset.get(),
                record_bytes: self.record_bytes.get(),
                blocks,
                index: self.index,
            },
        }
    }
}

#[cfg(test)]
mod tests;

//! The map on the medium: locations of metadata records, directory entries and pages, and leaves.
//!
//! ```text
//! directory page: 512 entries of 8 bytes, one for each leaf
//! entry:          0 hole | 1 << 63 | byte: fill | address of the leaf's record
//! address:        0 | segment 26 | offset / 16: 26 | bytes / 16: 11 bits
//! leaf:           1..=1024 runs of 16 bytes that partition its 1024 blocks in order, then tables
//!                 of 48 bytes: one for each frame whose runs have the flag, in the runs' order
//! ```
//!
//! Each content has exactly one encoding, so equal content is byte-for-byte equal. The records that
//! hold leaves and pages have the checksums. This file defines neither how a map uses runs nor the
//! content of a table.

use std::collections::BTreeMap;

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, IntoBytes};

use super::layout::layout;
use super::limits::{CHUNKED_BLOCKS_MAX, FRAME_BLOCKS_MAX, META_SEGMENTS_MAX};
use super::record::{BLOCK_LENGTH, HEADER_BYTES, SOURCE_LENGTH};
use crate::base::{ErrorContext, ErrorKind, Result, SegmentId, ensure};

/// Leaves of one directory page, which covers 2 GiB of the host's disk in 4096 bytes.
pub const DIRECTORY_PAGE_LEAVES: usize = 512;

/// Bytes of a directory page.
pub const DIRECTORY_PAGE_BYTES: usize = DIRECTORY_PAGE_LEAVES * 8;

/// Logical blocks of one leaf: 4 MiB of the host's disk.
pub const LEAF_BLOCKS: u16 = 1024;

pub(crate) const LEAF_RUN_BYTES: usize = 16;

/// Bytes of the table of a frame of chunks in a leaf.
pub const LEAF_TABLE_BYTES: usize = 48;

/// Minimum number of blocks of a leaf that must map to a frame for the leaf to have the frame's
/// table. With fewer blocks, the table would be longer than the bytes that it saves a read, and a
/// leaf with many tables would be too long for an address.
pub const TABLE_BLOCKS_MIN: u8 = 4;

/// Maximum number of tables of a leaf.
pub const LEAF_TABLES_MAX: usize = LEAF_BLOCKS as usize / TABLE_BLOCKS_MIN as usize;

/// Maximum bytes of a metadata record. A [`MetadataAddress`] counts them in units of 16, in 11
/// bits.
pub const META_RECORD_BYTES_MAX: u32 = 2047 * UNIT;

/// Offsets and lengths of metadata records are multiples of this many bytes.
const UNIT: u32 = 16;

const _: () = assert!(UNIT == super::META_ALIGNMENT, "an address counts units of alignment");
const _: () = assert!(META_SEGMENTS_MAX == 1 << SEGMENT_BITS, "an address names any segment");
const _: () = assert!(META_RECORD_BYTES_MAX == ((1 << BYTES_BITS) - 1) * UNIT, "longest record");
const _: () = assert!(super::SEGMENT_BYTES_MAX == UNIT << OFFSET_BITS, "offsets in a segment");
const _: () = assert!(SEGMENT_BITS + OFFSET_BITS + BYTES_BITS == 63, "the tag bit remains");
const _: () = assert!(
    super::RECORD_HEADER_BYTES
        + super::META_PREFIX_BYTES
        + leaf_bytes_max(true).next_multiple_of(UNIT as usize)
        <= META_RECORD_BYTES_MAX as usize,
    "an address names the longest leaf"
);
const _: () = assert!(
    LEAF_BLOCKS.is_multiple_of(FRAME_BLOCKS_MAX),
    "a frame that crosses no multiple of its blocks crosses no leaf"
);
const _: () = assert!(
    (super::SIZE_BYTES_MAX / BLOCK_LENGTH as u64 / LEAF_BLOCKS as u64)
        / (DIRECTORY_PAGE_LEAVES as u64)
        <= u32::MAX as u64,
    "the number of a directory page has 32 bits"
);

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

const _: () = assert!(size_of::<LeafRun>() == LEAF_RUN_BYTES, "the layout fills a run");

pub(super) const FIELDS: &[super::layout::Field] = LeafRun::FIELDS;

const CORRUPT: ErrorKind = ErrorKind::Corrupt;

const HOLE: u32 = 0;
const FILL: u32 = 1;

/// The bit of a run's `blocks` that is set if the leaf has the table of the frame.
const HAS_TABLE: u8 = 1 << 7;
const _: () = assert!(FRAME_BLOCKS_MAX < HAS_TABLE as u16, "the flag is not part of a number");

/// Returns the maximum bytes of a leaf, on a drive with or without tables in its leaves.
pub const fn leaf_bytes_max(has_tables: bool) -> usize {
    let tables = if has_tables { LEAF_TABLES_MAX * LEAF_TABLE_BYTES } else { 0 };
    LEAF_BLOCKS as usize * LEAF_RUN_BYTES + tables
}

/// The bounds of the locations on a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapLimits {
    /// Number of segments of the drive.
    pub segment_count: u32,
    /// Bytes of each segment.
    pub segment_bytes: u32,
    /// Bytes that a frame adds to its blocks and their sources: the seal, on an encrypted drive.
    pub seal_bytes: u32,
}

impl MapLimits {
    pub(super) fn contain(&self, segment: u32, offset: u32, bytes: u32) -> bool {
        debug_assert!(self.segment_count <= META_SEGMENTS_MAX, "an address names any segment");
        debug_assert!(
            self.segment_bytes <= super::SEGMENT_BYTES_MAX,
            "an address names any offset in a segment"
        );
        let end = u64::from(offset) + u64::from(bytes);
        segment < self.segment_count && end <= u64::from(self.segment_bytes)
    }
}

/// The location and length of a metadata record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MetadataAddress {
    /// The segment, below [`META_SEGMENTS_MAX`].
    pub segment: SegmentId,
    /// Byte offset in the segment: a multiple of 16 below 2^30.
    pub offset: u32,
    /// Bytes of the record: a multiple of 16, from 16 to [`META_RECORD_BYTES_MAX`].
    pub bytes: u32,
}

impl MetadataAddress {
    /// Packs the location into 64 bits. Bit 63 is 0, and at least one other bit is 1.
    ///
    /// # Panics
    /// If a field has a value that its documentation excludes.
    pub fn pack(self) -> u64 {
        let Self { segment, offset, bytes } = self;
        assert!(offset.is_multiple_of(UNIT), "unaligned metadata");
        assert!(bytes.is_multiple_of(UNIT) && bytes > 0, "length of metadata");
        let (offset, bytes) = (offset / UNIT, bytes / UNIT);
        assert!(segment.0 >> SEGMENT_BITS == 0, "the segment of metadata has 26 bits");
        assert!(offset >> OFFSET_BITS == 0, "metadata begins within the largest segment");
        assert!(bytes >> BYTES_BITS == 0, "metadata is at most 2047 units long");
        let packed = u64::from(segment.0) << (OFFSET_BITS + BYTES_BITS)
            | u64::from(offset) << BYTES_BITS
            | u64::from(bytes);
        debug_assert_eq!(Self::unpack(packed), Some(self), "an address is unpacked as it was");
        packed
    }

    /// Returns the location that packs to `packed`, if any.
    #[inline]
    pub fn unpack(packed: u64) -> Option<Self> {
        #[expect(clippy::cast_possible_truncation, reason = "at most 26 bits are kept")]
        let bits = |from: u32, count: u32| (packed >> from) as u32 & ((1 << count) - 1);
        let bytes = bits(0, BYTES_BITS) * UNIT;
        let address = Self {
            segment: SegmentId(bits(OFFSET_BITS + BYTES_BITS, SEGMENT_BITS)),
            offset: bits(BYTES_BITS, OFFSET_BITS) * UNIT,
            bytes,
        };
        (packed & FILL_TAG == 0 && bytes > 0).then_some(address)
    }

    /// Returns whether the record is within the limits of a drive.
    pub fn is_within(&self, limits: &MapLimits) -> bool {
        limits.contain(self.segment.0, self.offset, self.bytes)
    }
}

/// The entry of a directory for one leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectoryEntry {
    /// All its blocks are holes.
    Hole,
    /// Every byte of all its blocks has this value.
    Fill(u8),
    /// The record at this location holds its runs.
    Leaf(MetadataAddress),
}

impl DirectoryEntry {
    /// Packs the entry into 64 bits. The two highest bits are never both set.
    pub fn pack(self) -> u64 {
        let packed = match self {
            Self::Hole => 0,
            Self::Fill(byte) => FILL_TAG | u64::from(byte),
            Self::Leaf(address) => address.pack(),
        };
        assert!(packed >> 62 != 0b11, "the two highest bits of an entry are never both set");
        assert_eq!(packed == 0, self == Self::Hole, "only a hole packs to 0");
        packed
    }

    /// Returns the entry that packs to `packed`, if any.
    #[inline]
    pub fn unpack(packed: u64) -> Option<Self> {
        match packed {
            0 => Some(Self::Hole),
            _ if packed & FILL_TAG == 0 => MetadataAddress::unpack(packed).map(Self::Leaf),
            _ => u8::try_from(packed & !FILL_TAG).ok().map(Self::Fill),
        }
    }
}

/// Encodes a directory page.
pub fn encode_page(entries: &[u64; DIRECTORY_PAGE_LEAVES]) -> [u8; DIRECTORY_PAGE_BYTES] {
    let mut bytes = [0; DIRECTORY_PAGE_BYTES];
    for (target, entry) in bytes.chunks_exact_mut(8).zip(entries) {
        target.copy_from_slice(&entry.to_le_bytes());
    }
    bytes
}

/// Decodes a directory page. All entries are possible and within `limits`.
///
/// # Errors
/// `Corrupt`.
pub fn decode_page(bytes: &[u8], limits: &MapLimits) -> Result<[u64; DIRECTORY_PAGE_LEAVES]> {
    let is_whole = bytes.len() == DIRECTORY_PAGE_BYTES;
    ensure(is_whole, ErrorKind::Corrupt, "a directory page of the map has the wrong length")?;
    let mut entries = [0; DIRECTORY_PAGE_LEAVES];
    for (entry, source) in entries.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *entry = u64::from_le_bytes(*source);
        let is_possible = match DirectoryEntry::unpack(*entry) {
            None => false,
            Some(DirectoryEntry::Leaf(address)) => address.is_within(limits),
            Some(_) => true,
        };
        let what = "a directory page of the map has an invalid entry";
        ensure(is_possible, ErrorKind::Corrupt, what)?;
    }
    Ok(entries)
}

/// The content of the blocks of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunContent {
    /// Nothing.
    Hole,
    /// Every byte has this value.
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
        /// Index in the frame of the first block of the run.
        index: u8,
        /// Whether the leaf has the table of the frame, which then has 4 to 8 blocks.
        has_table: bool,
    },
}

/// The table of a frame with several live blocks, as stored in a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafTable<'a> {
    /// Segment number of the frame.
    pub segment: u32,
    /// Byte offset of its record header.
    pub offset: u32,
    /// Bytes of its header and payload.
    pub record_bytes: u32,
    /// Its blocks.
    pub blocks: u8,
    /// The block of the leaf at which it begins.
    pub start: u16,
    /// Blocks of the leaf that map to it.
    pub live: u8,
    /// Its unchecked table.
    pub bytes: &'a [u8; LEAF_TABLE_BYTES],
}

/// Appends a run that begins at block `start` of its leaf to `target`. The tables follow the last
/// run, one for each frame that has one, in the order of the frames' first runs.
pub fn encode_run(start: u16, content: RunContent, target: &mut Vec<u8>) {
    let uniform = |index, kind: u32| LeafRun {
        start: start.into(),
        index,
        blocks: 0,
        segment: kind.into(),
        offset: 0.into(),
        record_bytes: 0.into(),
    };
    let run = match content {
        RunContent::Hole => uniform(0, HOLE),
        RunContent::Fill(byte) => uniform(byte, FILL),
        RunContent::Frame { segment, offset, record_bytes, blocks, index, has_table } => LeafRun {
            start: start.into(),
            index,
            blocks: if has_table { blocks | HAS_TABLE } else { blocks },
            segment: segment.into(),
            offset: offset.into(),
            record_bytes: record_bytes.into(),
        },
    };
    target.extend_from_slice(run.as_bytes());
}

/// Decodes a leaf into its runs, each with its first block and content, and the tables of frames.
/// The runs partition the leaf's blocks in order, pieces of frames fit their frames, frames are
/// within `limits`, and no two neighbours are the same hole or fill. All runs of a frame agree on
/// whether it has a table.
///
/// # Errors
/// `Corrupt`.
pub fn decode_leaf<'a>(
    bytes: &'a [u8],
    limits: &MapLimits,
) -> Result<(impl ExactSizeIterator<Item = (u16, RunContent)> + use<'a>, Vec<LeafTable<'a>>)> {
    let (runs, tables) = split_leaf(bytes).or_error(CORRUPT, "a leaf of the map is truncated")?;
    let begins_at_0 = runs.first().is_some_and(|run| run.start.get() == 0);
    ensure(begins_at_0, CORRUPT, "a leaf of the map does not begin at its first block")?;
    let mut previous = None;
    for (at, run) in runs.iter().enumerate() {
        let end = runs.get(at + 1).map_or(LEAF_BLOCKS, |next| next.start.get());
        let is_ordered = run.start.get() < end && end <= LEAF_BLOCKS;
        ensure(is_ordered, CORRUPT, "the runs of a leaf of the map are out of order")?;
        let repeats = run.blocks == 0 && previous == Some(run.content());
        let is_possible = !repeats && run.is_possible(end - run.start.get(), limits);
        ensure(is_possible, CORRUPT, "a leaf of the map has an invalid run")?;
        previous = Some(run.content());
    }
    assert!(runs.len() <= usize::from(LEAF_BLOCKS), "a run of a leaf has a block or more");
    let tables = tables_of(runs, tables);
    let tables =
        tables.or_error(CORRUPT, "a leaf of the map has tables that do not fit its runs")?;
    Ok((runs.iter().map(|run| (run.start.get(), run.content())), tables))
}

/// Splits the bytes of a leaf into its runs and its tables. The number of tables must equal the
/// number of flagged frames that seem to begin in the runs.
fn split_leaf(bytes: &[u8]) -> Option<(&[LeafRun], &[[u8; LEAF_TABLE_BYTES]])> {
    let units = <[LeafRun]>::ref_from_bytes(bytes).ok()?;
    let (mut runs_bytes, mut tables_bytes) = (0, 0);
    for (at, run) in units.iter().enumerate() {
        runs_bytes += LEAF_RUN_BYTES;
        // Between two runs of a frame of eight blocks there are no more than seven other runs.
        let before = units.get(at.saturating_sub(usize::from(CHUNKED_BLOCKS_MAX))..at)?;
        if run.has_table() && !before.iter().any(|before| before.frame() == run.frame()) {
            tables_bytes += LEAF_TABLE_BYTES;
        }
        if runs_bytes + tables_bytes >= bytes.len() {
            break;
        }
    }
    let (runs, tables) = bytes.split_at_checked(runs_bytes)?;
    let (tables, rest) = tables.as_chunks();
    let is_whole = tables.as_flattened().len() == tables_bytes && rest.is_empty();
    let runs = <[LeafRun]>::ref_from_bytes(runs).ok()?;
    is_whole.then_some((runs, tables))
}

/// Returns the tables of a leaf in the order of their frames. Returns `None` unless each table
/// belongs to one frame, and enough blocks for a table map to that frame.
fn tables_of<'a>(
    runs: &[LeafRun],
    tables: &'a [[u8; LEAF_TABLE_BYTES]],
) -> Option<Vec<LeafTable<'a>>> {
    if tables.is_empty() {
        return Some(Vec::new());
    }
    let mut found: Vec<LeafTable<'a>> = Vec::with_capacity(tables.len());
    let mut tables = tables.iter();
    // Address of each frame with a table, and its number.
    let mut numbers: BTreeMap<(u32, u32), usize> = BTreeMap::new();
    let ends = runs.iter().skip(1).map(|next| next.start.get()).chain([LEAF_BLOCKS]);
    for (run, end) in runs.iter().zip(ends).filter(|(run, _)| run.has_table()) {
        let (segment, offset, record_bytes, blocks, start) = run.frame()?;
        let number = *numbers.entry((segment, offset)).or_insert(found.len());
        if number == found.len() {
            let bytes = tables.next()?;
            let live = 0;
            let table = LeafTable { segment, offset, record_bytes, blocks, start, live, bytes };
            found.push(table);
        }
        let table = found.get_mut(number)?;
        if (table.record_bytes, table.blocks, table.start) != (record_bytes, blocks, start) {
            return None;
        }
        table.live += u8::try_from(end.checked_sub(run.start.get())?).ok()?;
    }
    let is_without = |run: &&LeafRun| run.blocks > 0 && !run.has_table();
    let disagrees = |run: &LeafRun| numbers.contains_key(&(run.segment.get(), run.offset.get()));
    let is_right = tables.next().is_none()
        && found.iter().all(|table| table.live >= TABLE_BLOCKS_MIN)
        && !runs.iter().filter(is_without).any(disagrees);
    is_right.then_some(found)
}

impl LeafRun {
    fn has_table(&self) -> bool {
        self.blocks & HAS_TABLE != 0
    }

    fn frame_blocks(&self) -> u8 {
        self.blocks & !HAS_TABLE
    }

    /// Returns the frame of a run with a table: segment, offset, bytes, blocks, and the block of
    /// the leaf at which it begins. Returns `None` for any other run, or if the frame begins before
    /// the leaf.
    fn frame(&self) -> Option<(u32, u32, u32, u8, u16)> {
        let start = self.start.get().checked_sub(self.index.into())?;
        let (segment, offset) = (self.segment.get(), self.offset.get());
        let frame = (segment, offset, self.record_bytes.get(), self.frame_blocks(), start);
        self.has_table().then_some(frame)
    }

    fn is_possible(&self, count: u16, limits: &MapLimits) -> bool {
        assert!(
            (1..=LEAF_BLOCKS).contains(&count),
            "a run that is in order has blocks of its leaf"
        );
        let (segment, offset) = (self.segment.get(), self.offset.get());
        let record_bytes = self.record_bytes.get();
        if self.blocks == 0 {
            let kind = segment == FILL || (segment == HOLE && self.index == 0);
            return kind && offset == 0 && record_bytes == 0;
        }
        let blocks = u16::from(self.frame_blocks());
        let blocks_max = if self.has_table() { CHUNKED_BLOCKS_MAX } else { FRAME_BLOCKS_MAX };
        // The longest frame stores every block as it is, with a source for each.
        let longest = u32::from(blocks) * (SOURCE_LENGTH + BLOCK_LENGTH) + limits.seal_bytes;
        blocks <= blocks_max
            && record_bytes <= HEADER_BYTES + longest
            && u16::from(self.index) + count <= blocks
            && self.has_table() == self.frame().is_some()
            && record_bytes >= HEADER_BYTES
            && limits.contain(segment, offset, record_bytes)
    }

    fn content(&self) -> RunContent {
        match (self.blocks, self.segment.get()) {
            (0, HOLE) => RunContent::Hole,
            (0, _) => RunContent::Fill(self.index),
            (_, segment) => RunContent::Frame {
                segment,
                offset: self.offset.get(),
                record_bytes: self.record_bytes.get(),
                blocks: self.frame_blocks(),
                index: self.index,
                has_table: self.has_table(),
            },
        }
    }
}

#[cfg(test)]
mod tests;

//! The structures of a checkpoint: its root, the segment table and the list of dropped ranges, and
//! the length prefix of every metadata payload.
//!
//! ```text
//! metadata payload: | raw_bytes u32 | encoded_bytes u32 | encoded | zero padding |
//! root:             | Layout | opened segments | addresses: page lists, tables, dropped lists,
//!                                                snapshot lists, retained lists,
//!                                                forwarding tables |
//! ```
//!
//! Everything that a checkpoint refers to is written before its root, and the root before the
//! superblock that refers to it. Decoders accept untrusted bytes: every count is compared with the
//! length of the input before anything is allocated.

use std::collections::BTreeSet;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::layout::layout;
use super::map::{DirectoryEntry, MetadataAddress};
use super::record::META_PREFIX_BYTES;
use super::segment::Stream;
use crate::base::{ErrorContext, ErrorKind, Result, SegmentId, SeqNo, ensure};

/// Maximum bytes of a metadata payload before encoding. Leaves and pieces of lists have at most 16
/// KiB, so that a [`MetadataAddress`] can refer to them. A root, which the superblock refers to,
/// may be this long. It then holds 65 thousand pieces: enough for the table of [`SEGMENTS_MAX`]
/// segments, which uses half of them, all directory pages, and 20 million dropped ranges.
pub(crate) const META_RAW_BYTES_MAX: usize = 512 << 10;

/// Maximum number of segments of a drive at its creation or after growing: a root refers to their
/// table.
pub const SEGMENTS_MAX: u32 = 1 << 24;

const MAGIC: [u8; 8] = *b"PUMICECP";
const NO_SEGMENT: u32 = u32::MAX;

const _: () = assert!(SEGMENTS_MAX <= super::META_SEGMENTS_MAX, "an address names any segment");
const _: () = assert!(
    (SEGMENTS_MAX as usize).div_ceil((16 << 10) / TableEntry::BYTES) * 8 <= META_RAW_BYTES_MAX / 2,
    "the table of all segments takes half of a root"
);

/// Exclusive upper bound of sequence numbers: sources have 56 bits for them. No drive writes this
/// many batches.
const SEQ_END: u64 = 1 << 56;
const _: () = assert!(SEQ_END == 1 << super::record::BIRTH_BITS, "a source names any batch");
const _: () = assert!(NO_SEGMENT > super::META_SEGMENTS_MAX, "no segment has this number");
const _: () = assert!(
    super::RECORD_HEADER_BYTES + META_PREFIX_BYTES + META_RAW_BYTES_MAX
        <= super::BATCH_BYTES_MAX - super::BATCH_HEADER_BYTES,
    "the longest root fits in a batch"
);

layout! {
    struct RootLayout: 184 {
        magic: [u8; 8],
        epoch: U32,
        segment_count: U32,
        watermark: U64,
        watermark_checksum: U64,
        host_bytes: U64,
        frame_bytes: U64,
        media_bytes: U64,
        size_bytes: U64,
        mapped_blocks: U64,
        tails: [[u8; 16]; 3],
        page_count: U32,
        dropped_count: U32,
        opened_count: U16,
        forward_lists: U16,
        page_lists: U32,
        tables: U32,
        dropped_lists: U32,
        moved_bytes: U64,
        lost_leaves: U32,
        snapshot_lists: U16,
        retained_lists: U16,
        lost_until: U64,
        lost_pieces: U16,
        reserved: [u8; 6],
        rolled_back: U64,
    }
}

layout! {
    struct TailLayout: 16 {
        generation: U64,
        segment: U32,
        used: U32,
    }
}

layout! {
    struct TableLayout: 32 {
        generation: U64,
        last_seq: U64,
        age: U64,
        live_bytes: U32,
        stream: u8,
        state: u8,
        reserved: U16,
    }
}

layout! {
    struct DroppedLayout: 24 {
        start: U64,
        end: U64,
        mapping: U64,
    }
}

pub(super) const ROOT_FIELDS: &[super::layout::Field] = RootLayout::FIELDS;
pub(super) const TAIL_FIELDS: &[super::layout::Field] = TailLayout::FIELDS;
pub(super) const TABLE_FIELDS: &[super::layout::Field] = TableLayout::FIELDS;
pub(super) const DROPPED_FIELDS: &[super::layout::Field] = DroppedLayout::FIELDS;

/// Returns the length of a metadata payload before encoding, and its encoded bytes.
///
/// # Errors
/// `Corrupt`.
pub fn meta_payload(payload: &[u8]) -> Result<(usize, &[u8])> {
    split_meta_payload(payload)
        .or_error(ErrorKind::Corrupt, "a metadata payload's lengths are invalid")
}

fn split_meta_payload(payload: &[u8]) -> Option<(usize, &[u8])> {
    let (raw, rest) = U32::read_from_prefix(payload).ok()?;
    let (encoded, rest) = U32::read_from_prefix(rest).ok()?;
    let (raw, encoded) = (raw.get() as usize, encoded.get() as usize);
    let (encoded, padding) = rest.split_at_checked(encoded)?;
    let is_right = raw <= META_RAW_BYTES_MAX
        && padding.len() < super::META_ALIGNMENT as usize
        && padding.iter().all(|&byte| byte == 0);
    is_right.then(|| {
        let bytes = META_PREFIX_BYTES + encoded.len() + padding.len();
        assert_eq!(bytes, payload.len(), "the parts of a metadata payload add up");
        (raw, encoded)
    })
}

/// The end of a stream at the start of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamTail {
    /// The stream's open segment.
    pub segment: SegmentId,
    /// Its generation.
    pub generation: u64,
    /// Byte offset at which the next batch begins; 0 before the first batch.
    pub used: u32,
}

/// A segment that was opened while a checkpoint was being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OpenedSegment {
    /// The segment.
    pub segment: SegmentId,
    /// Its generation.
    pub generation: u64,
    /// The stream that continues in it.
    pub stream: Stream,
}

/// The root of a checkpoint: the state of the drive after the batch `watermark`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    /// Epoch of the drive in which the checkpoint was written.
    pub epoch: u32,
    /// Number of segments of the drive, and of entries of the table.
    pub segment_count: u32,
    /// Size of the host's disk in bytes.
    pub size_bytes: u64,
    /// The last batch whose effects are in the checkpoint. All earlier batches are included.
    pub watermark: SeqNo,
    /// Header checksum of that batch.
    pub watermark_checksum: u64,
    /// Lifetime counters at the watermark, as in batch headers.
    pub host_bytes: u64,
    /// See [`Root::host_bytes`].
    pub frame_bytes: u64,
    /// See [`Root::host_bytes`].
    pub media_bytes: u64,
    /// See [`Root::host_bytes`].
    pub moved_bytes: u64,
    /// Blocks in leaves that hold data other than zeroes. Blocks of dropped ranges are not counted.
    pub mapped_blocks: u64,
    /// Leaves of the map that were lost over the drive's life.
    pub lost_leaves: u32,
    /// Tails of the streams at the watermark.
    pub tails: [Option<StreamTail>; Stream::COUNT],
    /// Segments that were opened after the watermark and hold parts of the checkpoint.
    pub opened_segments: Vec<OpenedSegment>,
    /// Number of directory pages that exist, in all page lists.
    pub page_count: u32,
    /// Number of dropped ranges, in all lists of them.
    pub dropped_count: u32,
    /// Pieces of the list of directory pages.
    pub page_lists: Vec<MetadataAddress>,
    /// Pieces of the segment table.
    pub tables: Vec<MetadataAddress>,
    /// Pieces of the list of dropped ranges.
    pub dropped_lists: Vec<MetadataAddress>,
    /// Pieces of the list of snapshots.
    pub snapshot_lists: Vec<MetadataAddress>,
    /// Pieces of the bitmap of segments that the snapshot needs, if this is the root of one.
    pub retained_lists: Vec<MetadataAddress>,
    /// Pieces of the forwarding tables, which are written only when they change. Only the pieces of
    /// the newest root count: a snapshot needs none of the pieces that its own root refers to.
    pub forward_lists: Vec<MetadataAddress>,
    /// Number of unreadable pieces, which are the first ones and remain in the list: snapshots up
    /// to [`Root::lost_until`] need their content.
    pub lost_pieces: u16,
    /// The last batch of the snapshot that was newest when one of these pieces first became
    /// unreadable; 0 if all are readable.
    pub lost_until: SeqNo,
    /// The last batch before the disk was last rolled back to a snapshot; 0 if it never was. A
    /// replay from an older checkpoint continues as if there had been no rollback.
    pub rolled_back: SeqNo,
}

impl Root {
    /// Checks the rules for every root that a drive writes. Call this before [`Root::encode`],
    /// which also encodes other values, for tests of the decoders.
    ///
    /// # Panics
    /// If a rule is violated.
    pub(crate) fn check_invariants(&self) {
        assert!(self.watermark.0 < SEQ_END, "a sequence number has 56 bits");
        assert!(self.size_bytes <= super::SIZE_BYTES_MAX, "the size of a disk");
        assert!(self.segment_count <= super::META_SEGMENTS_MAX, "an address names any segment");
        for tail in self.tails.iter().flatten() {
            assert!(tail.segment.0 < self.segment_count, "a stream ends on the drive");
            assert!(
                (tail.used as usize).is_multiple_of(super::BATCH_ALIGNMENT),
                "a stream ends where the next batch begins"
            );
        }
        assert_eq!(
            self.page_count == 0,
            self.page_lists.is_empty(),
            "directory pages are listed in pieces"
        );
        assert_eq!(
            self.dropped_count == 0,
            self.dropped_lists.is_empty(),
            "dropped ranges are listed in pieces"
        );
        assert_eq!(
            self.segment_count == 0,
            self.tables.is_empty(),
            "every segment has an entry in a piece of the table"
        );
        let lists: Vec<_> = self.lists().chain(&self.forward_lists).copied().collect();
        let addresses: BTreeSet<_> = lists.iter().collect();
        assert_eq!(addresses.len(), lists.len(), "every piece of a list is a record of its own");
        let uses = self.opened_segments.iter().map(|opened| (opened.segment, opened.generation));
        let distinct = uses.collect::<BTreeSet<_>>().len();
        assert_eq!(distinct, self.opened_segments.len(), "each use of a segment is opened once");
    }

    /// Returns the generation of a segment in which the checkpoint wrote metadata; `None` for other
    /// segments, or if the root does not contain it.
    pub(crate) fn generation_of(&self, segment: SegmentId) -> Option<u64> {
        let [_host, _moved, meta] = &self.tails;
        let tail = meta.as_ref().map(|tail| (tail.segment, tail.generation));
        let opened = self.opened_segments.iter().map(|opened| (opened.segment, opened.generation));
        opened.chain(tail).find(|&(found, _)| found == segment).map(|(_, generation)| generation)
    }

    /// Returns the pieces of all lists that each checkpoint writes, in the order of the root.
    pub fn lists(&self) -> impl Iterator<Item = &MetadataAddress> {
        let map = self.page_lists.iter().chain(&self.tables).chain(&self.dropped_lists);
        map.chain(&self.snapshot_lists).chain(&self.retained_lists)
    }

    /// Encodes the root.
    pub fn encode(&self) -> Vec<u8> {
        let mut layout = RootLayout::new_zeroed();
        layout.magic = MAGIC;
        layout.epoch = self.epoch.into();
        layout.segment_count = self.segment_count.into();
        layout.size_bytes = self.size_bytes.into();
        layout.watermark = self.watermark.0.into();
        layout.watermark_checksum = self.watermark_checksum.into();
        layout.host_bytes = self.host_bytes.into();
        layout.frame_bytes = self.frame_bytes.into();
        layout.media_bytes = self.media_bytes.into();
        layout.moved_bytes = self.moved_bytes.into();
        layout.mapped_blocks = self.mapped_blocks.into();
        layout.lost_leaves = self.lost_leaves.into();
        for (bytes, tail) in layout.tails.iter_mut().zip(&self.tails) {
            let tail = match tail {
                None => encode_tail(0, NO_SEGMENT, 0),
                Some(tail) => encode_tail(tail.generation, tail.segment.0, tail.used),
            };
            bytes.copy_from_slice(tail.as_bytes());
        }
        layout.page_count = self.page_count.into();
        layout.dropped_count = self.dropped_count.into();
        let count = |len: usize| U32::new(u32::try_from(len).expect("a list of a checkpoint"));
        let short = |len: usize| U16::new(u16::try_from(len).expect("a root's list is short"));
        layout.opened_count = short(self.opened_segments.len());
        layout.forward_lists = short(self.forward_lists.len());
        layout.page_lists = count(self.page_lists.len());
        layout.tables = count(self.tables.len());
        layout.dropped_lists = count(self.dropped_lists.len());
        layout.snapshot_lists = short(self.snapshot_lists.len());
        layout.retained_lists = short(self.retained_lists.len());
        layout.lost_pieces = self.lost_pieces.into();
        layout.lost_until = self.lost_until.0.into();
        layout.rolled_back = self.rolled_back.0.into();
        let mut bytes = layout.as_bytes().to_vec();
        for &OpenedSegment { segment, generation, stream } in &self.opened_segments {
            bytes.extend(encode_tail(generation, segment.0, stream as u32).as_bytes());
        }
        for address in self.lists().chain(&self.forward_lists) {
            bytes.extend(address.pack().to_le_bytes());
        }
        let addresses = self.lists().count() + self.forward_lists.len();
        let tails = self.opened_segments.len() * size_of::<TailLayout>();
        assert_eq!(
            bytes.len(),
            size_of::<RootLayout>() + tails + addresses * 8,
            "length of a root"
        );
        bytes
    }

    /// Decodes a root.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        Self::decode_parts(bytes).or_error(ErrorKind::Corrupt, "a checkpoint's root is invalid")
    }

    fn decode_parts(bytes: &[u8]) -> Option<Self> {
        let (layout, rest) = RootLayout::read_from_prefix(bytes).ok()?;
        let count = |count: U32| count.get() as usize;
        let opened_bytes = usize::from(layout.opened_count.get()) * size_of::<TailLayout>();
        let (opened, addresses) = rest.split_at_checked(opened_bytes)?;
        let [pages, tables, dropped] =
            [layout.page_lists, layout.tables, layout.dropped_lists].map(count);
        let [snapshots, retained, forwards] =
            [layout.snapshot_lists, layout.retained_lists, layout.forward_lists]
                .map(|count| usize::from(count.get()));
        let lists = [pages, tables, dropped, snapshots, retained, forwards];
        let is_right = layout.magic == MAGIC
            && layout.reserved == [0; 6]
            && usize::from(layout.lost_pieces.get()) <= forwards
            && layout.watermark.get() < SEQ_END
            && addresses.len() as u64 == lists.iter().map(|&list| list as u64 * 8).sum::<u64>();
        if !is_right {
            return None;
        }
        let mut addresses = addresses
            .as_chunks::<8>()
            .0
            .iter()
            .map(|word| MetadataAddress::unpack(u64::from_le_bytes(*word)));
        let mut list = |count: usize| addresses.by_ref().take(count).collect::<Option<Vec<_>>>();
        let (page_lists, tables, dropped_lists) = (list(pages)?, list(tables)?, list(dropped)?);
        let (snapshot_lists, retained_lists) = (list(snapshots)?, list(retained)?);
        let forward_lists = list(forwards)?;
        let opened = opened.chunks_exact(size_of::<TailLayout>()).map(|bytes| {
            let tail = TailLayout::read_from_bytes(bytes).ok()?;
            let stream = u8::try_from(tail.used.get()).ok().and_then(Stream::from_u8)?;
            let segment = SegmentId(tail.segment.get());
            Some(OpenedSegment { segment, generation: tail.generation.get(), stream })
        });
        assert!(addresses.next().is_none(), "every address of a root belongs to a list");
        Some(Self {
            epoch: layout.epoch.get(),
            segment_count: layout.segment_count.get(),
            size_bytes: layout.size_bytes.get(),
            watermark: SeqNo(layout.watermark.get()),
            watermark_checksum: layout.watermark_checksum.get(),
            host_bytes: layout.host_bytes.get(),
            frame_bytes: layout.frame_bytes.get(),
            media_bytes: layout.media_bytes.get(),
            moved_bytes: layout.moved_bytes.get(),
            mapped_blocks: layout.mapped_blocks.get(),
            lost_leaves: layout.lost_leaves.get(),
            tails: layout.tails.map(|bytes| decode_tail(&bytes)),
            opened_segments: opened.collect::<Option<_>>()?,
            page_count: layout.page_count.get(),
            dropped_count: layout.dropped_count.get(),
            page_lists,
            tables,
            dropped_lists,
            snapshot_lists,
            retained_lists,
            forward_lists,
            lost_pieces: layout.lost_pieces.get(),
            lost_until: SeqNo(layout.lost_until.get()),
            rolled_back: SeqNo(layout.rolled_back.get()),
        })
    }
}

fn encode_tail(generation: u64, segment: u32, used: u32) -> TailLayout {
    TailLayout { generation: generation.into(), segment: segment.into(), used: used.into() }
}

fn decode_tail(bytes: &[u8; 16]) -> Option<StreamTail> {
    let tail = TailLayout::read_from_bytes(bytes).ok()?;
    (tail.segment.get() != NO_SEGMENT).then(|| StreamTail {
        segment: SegmentId(tail.segment.get()),
        generation: tail.generation.get(),
        used: tail.used.get(),
    })
}

/// The entry of a checkpoint's segment table for one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableEntry {
    /// Whether the segment is in use. The other fields are meaningful only then.
    pub in_use: bool,
    /// Its generation.
    pub generation: u64,
    /// Its stream.
    pub stream: Stream,
    /// The last batch in it.
    pub last_seq: SeqNo,
    /// The batch in which the host wrote the newest data in the segment.
    pub age: SeqNo,
    /// Bytes of records in the segment that the map refers to. Metadata is not counted, because the
    /// checkpoint itself refers to it.
    pub live_bytes: u32,
}

impl TableEntry {
    /// Bytes of an entry.
    pub const BYTES: usize = size_of::<TableLayout>();

    /// Appends the entry to `out`.
    pub fn encode_into(&self, out: &mut Vec<u8>) {
        let end = out.len() + Self::BYTES;
        let mut layout = TableLayout::new_zeroed();
        if self.in_use {
            layout.generation = self.generation.into();
            layout.last_seq = self.last_seq.0.into();
            layout.age = self.age.0.into();
            layout.live_bytes = self.live_bytes.into();
            layout.stream = self.stream as u8;
            layout.state = 1;
        }
        out.extend(layout.as_bytes());
        assert_eq!(out.len(), end, "an entry is found by the number of its segment");
    }

    /// Decodes an entry of [`TableEntry::BYTES`] bytes.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        const WHAT: &str = "a segment table's entry is invalid";
        let layout = TableLayout::read_from_bytes(bytes).ok();
        let layout = layout.or_error(ErrorKind::Corrupt, WHAT)?;
        let stream = Stream::from_u8(layout.stream).or_error(ErrorKind::Corrupt, WHAT)?;
        let is_possible = layout.state <= 1 && layout.reserved.get() == 0;
        ensure(is_possible, ErrorKind::Corrupt, WHAT)?;
        Ok(Self {
            in_use: layout.state == 1,
            generation: layout.generation.get(),
            stream,
            last_seq: SeqNo(layout.last_seq.get()),
            age: SeqNo(layout.age.get()),
            live_bytes: layout.live_bytes.get(),
        })
    }
}

/// Leaves of the map that became a hole or a fill in one step, while their old content still counts
/// as live bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DroppedRange {
    /// First leaf.
    pub start: u64,
    /// The leaf after the last.
    pub end: u64,
    /// The new mapping of the leaves; never [`DirectoryEntry::Leaf`].
    pub mapping: DirectoryEntry,
}

impl DroppedRange {
    /// Bytes of a range.
    pub const BYTES: usize = size_of::<DroppedLayout>();

    /// Appends the range to `out`.
    pub fn encode_into(&self, out: &mut Vec<u8>) {
        let layout = DroppedLayout {
            start: self.start.into(),
            end: self.end.into(),
            mapping: self.mapping.pack().into(),
        };
        out.extend(layout.as_bytes());
    }

    /// Decodes a range of [`DroppedRange::BYTES`] bytes.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        const WHAT: &str = "a dropped range is invalid";
        let layout = DroppedLayout::read_from_bytes(bytes).ok();
        let layout = layout.or_error(ErrorKind::Corrupt, WHAT)?;
        let mapping = DirectoryEntry::unpack(layout.mapping.get());
        let mapping = mapping.or_error(ErrorKind::Corrupt, WHAT)?;
        let (start, end) = (layout.start.get(), layout.end.get());
        let is_possible = start < end && !matches!(mapping, DirectoryEntry::Leaf(_));
        ensure(is_possible, ErrorKind::Corrupt, WHAT)?;
        Ok(Self { start, end, mapping })
    }
}

#[cfg(test)]
mod tests {
    //! Goal: round trip; truncated and impossible input is refused without a panic and without an
    //! allocation of a size taken from the input.
    use super::*;

    fn address(number: u32) -> MetadataAddress {
        MetadataAddress { segment: SegmentId(number), offset: 4096 + 16 * number, bytes: 160 }
    }

    fn sample() -> Root {
        let tail = StreamTail { segment: SegmentId(7), generation: 9 << 32, used: 8192 };
        Root {
            epoch: 3,
            segment_count: 99,
            size_bytes: 1 << 30,
            watermark: SeqNo(1234),
            watermark_checksum: 0xfeed,
            host_bytes: 1,
            frame_bytes: 2,
            media_bytes: 3,
            moved_bytes: 4,
            mapped_blocks: 5,
            lost_leaves: 6,
            tails: [Some(tail), None, Some(StreamTail { used: 0, ..tail })],
            opened_segments: vec![OpenedSegment {
                segment: SegmentId(8),
                generation: 9 << 32 | 1,
                stream: Stream::Meta,
            }],
            page_count: 6,
            dropped_count: 7,
            page_lists: vec![address(1), address(2)],
            tables: vec![address(3)],
            dropped_lists: vec![address(4), address(5), address(6)],
            snapshot_lists: vec![address(7)],
            retained_lists: vec![address(8), address(9)],
            forward_lists: vec![address(10)],
            lost_pieces: 1,
            lost_until: SeqNo(7),
            rolled_back: SeqNo(5),
        }
    }

    #[test]
    fn round_trip() {
        assert_eq!(Root::decode(&sample().encode()).unwrap(), sample());
        let entry = TableEntry {
            in_use: true,
            generation: 5,
            stream: Stream::Moved,
            last_seq: SeqNo(6),
            age: SeqNo(4),
            live_bytes: 77,
        };
        let mut bytes = Vec::new();
        entry.encode_into(&mut bytes);
        assert_eq!(TableEntry::decode(&bytes).unwrap(), entry);
        let range = DroppedRange { start: 1, end: 9, mapping: DirectoryEntry::Fill(7) };
        bytes.clear();
        range.encode_into(&mut bytes);
        assert_eq!(DroppedRange::decode(&bytes).unwrap(), range);
    }

    #[test]
    fn truncated_or_impossible_checkpoints_are_refused() {
        let good = sample().encode();
        for len in 0..good.len() {
            assert!(Root::decode(&good[..len]).is_err(), "{len}");
        }
        for offset in [
            std::mem::offset_of!(RootLayout, page_lists),
            std::mem::offset_of!(RootLayout, tables),
            std::mem::offset_of!(RootLayout, dropped_lists),
        ] {
            let mut bytes = good.clone();
            bytes[offset..offset + 4].fill(0xff);
            assert!(Root::decode(&bytes).is_err(), "the count at {offset}");
        }
        for offset in [
            std::mem::offset_of!(RootLayout, opened_count),
            std::mem::offset_of!(RootLayout, forward_lists),
            std::mem::offset_of!(RootLayout, snapshot_lists),
            std::mem::offset_of!(RootLayout, retained_lists),
        ] {
            let mut bytes = good.clone();
            bytes[offset..offset + 2].fill(0xff);
            assert!(Root::decode(&bytes).is_err(), "the count at {offset}");
        }
        let mut bytes = Vec::new();
        for (start, end) in [(5, 5), (5, 4)] {
            bytes.clear();
            DroppedRange { start, end, mapping: DirectoryEntry::Hole }.encode_into(&mut bytes);
            assert!(DroppedRange::decode(&bytes).is_err(), "{start} {end}");
        }
        assert!(DroppedRange::decode(&bytes[1..]).is_err());
        let mut entry = [0; TableEntry::BYTES];
        entry[28] = 3;
        assert!(TableEntry::decode(&entry).is_err());
        assert!(TableEntry::decode(&entry[1..]).is_err());
    }

    #[test]
    fn a_metadata_payload_says_its_lengths() {
        let mut payload = vec![0; 32];
        payload[..4].copy_from_slice(&100u32.to_le_bytes());
        payload[4..8].copy_from_slice(&20u32.to_le_bytes());
        payload[8..28].fill(7);
        assert_eq!(meta_payload(&payload).unwrap(), (100, &[7; 20][..]));
        assert!(meta_payload(&payload[..27]).is_err());
        payload[30] = 1;
        assert!(meta_payload(&payload).is_err(), "padding");
        payload[30] = 0;
        payload[..4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(meta_payload(&payload).is_err(), "raw length");
    }
}

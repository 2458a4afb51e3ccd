//! The metadata of an image: the map and the segment table after the records so far, and a
//! checkpoint of them, except where the script overrides it.
//!
//! The model is a map of single blocks, separate from the controller's map so that both do not
//! share a bug. It covers the first [`MODEL_LEAVES`] leaves of a disk. Metadata is stored
//! uncompressed, so that a script can change a field by its offset.

use std::collections::BTreeMap;

use super::{FrameRange, SEGMENTS, Script, Writer, encode};
use pumice_drive::base::checksum::crc64;
use pumice_drive::base::{SegmentId, SeqNo};
use pumice_drive::codec::Encoding;
use pumice_drive::format::{
    CheckpointAddress, DIRECTORY_PAGE_LEAVES, DirectoryEntry, DroppedRange, LEAF_BLOCKS,
    LEAF_TABLE_BYTES, META_ALIGNMENT, META_PREFIX_BYTES, MetaKind, MetadataAddress, OpenedSegment,
    RECORD_HEADER_BYTES, Record, RecordAddress, Root, RunContent, Source, Stream, StreamTail,
    TABLE_BLOCKS_MIN, TableEntry, encode_page, encode_run,
};

/// Number of leaves of the model: more than the image's disk has.
const MODEL_LEAVES: u64 = 32;

/// Maximum number of entries of a segment table, whatever the superblock states.
const TABLE_ENTRIES_MAX: u32 = 1500;

const PIECE_ENTRIES: usize = (16 << 10) / TableEntry::BYTES;

/// An override of a value in metadata of a kind.
pub(super) struct Edit {
    kind: MetaKind,
    /// Bytes of the value: 1, 2, 4 or 8.
    width: usize,
    offset: u64,
    value: u64,
}

/// A use of a segment.
pub(super) struct Use {
    generation: u64,
    stream: Stream,
    last_seq: SeqNo,
}

/// The state of a drive after the records so far.
#[derive(Default)]
pub(super) struct Model {
    /// Content of each block that is not a hole.
    blocks: BTreeMap<u64, RunContent>,
    /// Tables of frames of chunks, by the frames' addresses.
    pub(super) tables: BTreeMap<(u32, u32), [u8; LEAF_TABLE_BYTES]>,
    /// Segments in use.
    pub(super) uses: BTreeMap<u32, Use>,
}

impl Model {
    pub(super) fn opened(&mut self, segment: u32, stream: Stream, generation: u64) {
        self.uses.insert(segment, Use { generation, stream, last_seq: SeqNo(0) });
    }

    pub(super) fn sealed(&mut self, segment: u32, seq: SeqNo) {
        if let Some(found) = self.uses.get_mut(&segment) {
            found.last_seq = seq;
        }
    }

    /// Applies a record stored at `place`.
    pub(super) fn apply(&mut self, record: &Record, sources: &[Source], place: RecordAddress) {
        let (lba, count) = record.lba_range();
        let end = lba.0.saturating_add(count).min(MODEL_LEAVES * u64::from(LEAF_BLOCKS));
        let places = sources.iter().flat_map(|source| {
            std::iter::repeat_n((source.segment.0, source.offset), source.blocks.into())
        });
        let mut places = places.map(Some).chain(std::iter::repeat(None));
        for block in lba.0..end {
            let place_before = places.next().flatten();
            let is_moved = place_before.is_none() || self.frame_of(block) == place_before;
            let content = match *record {
                Record::Data { lba_count, .. } => RunContent::Frame {
                    segment: place.segment.0,
                    offset: place.offset,
                    record_bytes: record.record_bytes(),
                    blocks: lba_count as u8,
                    index: (block - lba.0) as u8,
                    has_table: false,
                },
                Record::Fill { byte, .. } => RunContent::Fill(byte),
                _ => RunContent::Hole,
            };
            match content {
                RunContent::Hole => drop(self.blocks.remove(&block)),
                _ if is_moved => drop(self.blocks.insert(block, content)),
                _ => {}
            }
        }
    }

    fn content(&self, block: u64) -> RunContent {
        self.blocks.get(&block).copied().unwrap_or(RunContent::Hole)
    }

    fn frame_of(&self, block: u64) -> Option<(u32, u32)> {
        match self.content(block) {
            RunContent::Frame { segment, offset, .. } => Some((segment, offset)),
            _ => None,
        }
    }

    fn live_bytes(&self, segment: u32) -> u64 {
        let share = |content: &RunContent| match *content {
            RunContent::Frame { segment: here, record_bytes, blocks, index, .. }
                if here == segment =>
            {
                let up_to = |at: u64| u64::from(record_bytes) * at / u64::from(blocks.max(1));
                up_to(u64::from(index) + 1) - up_to(index.into())
            }
            _ => 0,
        };
        self.blocks.values().map(share).sum()
    }

    /// Returns a leaf's runs as stored, or the directory entry of a uniform leaf.
    fn leaf(&self, leaf: u64) -> Result<Vec<u8>, DirectoryEntry> {
        let first = leaf * u64::from(LEAF_BLOCKS);
        if self.blocks.range(first..first + u64::from(LEAF_BLOCKS)).next().is_none() {
            return Err(DirectoryEntry::Hole);
        }
        let mut runs = vec![(0, self.content(first))];
        for start in 1..LEAF_BLOCKS {
            let (before, now) = (
                self.content(first + u64::from(start) - 1),
                self.content(first + u64::from(start)),
            );
            if !continues(before, now) {
                runs.push((start, now));
            }
        }
        match runs[..] {
            [(_, RunContent::Hole)] => return Err(DirectoryEntry::Hole),
            [(_, RunContent::Fill(byte))] => return Err(DirectoryEntry::Fill(byte)),
            _ => {}
        }
        let mut raw = Vec::new();
        let mut tables: Vec<&[u8; LEAF_TABLE_BYTES]> = Vec::new();
        for (start, content) in runs {
            let table = self.block_table(first, content);
            let content = match (content, table) {
                (
                    RunContent::Frame { segment, offset, record_bytes, blocks, index, .. },
                    Some(_),
                ) => {
                    let has_table = true;
                    RunContent::Frame { segment, offset, record_bytes, blocks, index, has_table }
                }
                _ => content,
            };
            encode_run(start, content, &mut raw);
            tables.extend(table.filter(|_| self.is_first(first, start, content)));
        }
        tables.iter().for_each(|table| raw.extend_from_slice(&table[..]));
        Ok(raw)
    }

    /// Returns the table of a run's frame, if enough blocks of the leaf from block `first` on map
    /// to the frame.
    fn block_table(&self, first: u64, content: RunContent) -> Option<&[u8; LEAF_TABLE_BYTES]> {
        let RunContent::Frame { segment, offset, .. } = content else { return None };
        let table = self.tables.get(&(segment, offset))?;
        let mut leaf = first..first + u64::from(LEAF_BLOCKS);
        let mut is_live = |_: u8| leaf.any(|block| self.frame_of(block) == Some((segment, offset)));
        (0..TABLE_BLOCKS_MIN).all(&mut is_live).then_some(table)
    }

    /// Returns whether no block of the leaf before block `start` of it maps to a run's frame.
    fn is_first(&self, first: u64, start: u16, content: RunContent) -> bool {
        let RunContent::Frame { segment, offset, .. } = content else { return false };
        let mut before = first..first + u64::from(start);
        before.all(|block| self.frame_of(block) != Some((segment, offset)))
    }

    fn table(&self, segment_count: u32) -> Vec<TableEntry> {
        let entry = |segment: u32| {
            let found = self.uses.get(&segment);
            let stream = found.map_or(Stream::Host, |found| found.stream);
            let live_bytes = if stream == Stream::Meta { 0 } else { self.live_bytes(segment) };
            let last_seq = found.map_or(SeqNo(0), |found| found.last_seq);
            TableEntry {
                in_use: found.is_some(),
                generation: found.map_or(0, |found| found.generation),
                stream,
                last_seq,
                age: last_seq,
                live_bytes: live_bytes as u32,
            }
        };
        (0..segment_count.min(TABLE_ENTRIES_MAX)).map(entry).collect()
    }
}

/// Returns whether two adjacent blocks belong to one run.
fn continues(before: RunContent, now: RunContent) -> bool {
    match (before, now) {
        (RunContent::Frame { index, .. }, RunContent::Frame { index: next, .. }) => {
            let at_start = |content| match content {
                RunContent::Frame { segment, offset, record_bytes, blocks, .. } => {
                    Some((segment, offset, record_bytes, blocks))
                }
                _ => None,
            };
            at_start(before) == at_start(now) && index.checked_add(1) == Some(next)
        }
        _ => before == now,
    }
}

impl Writer {
    pub(super) fn obey_metadata(&mut self, verb: u8, script: &mut Script<'_>) {
        match verb {
            12 => self.checkpoint(),
            13 => {
                const KINDS: [MetaKind; 9] = [
                    MetaKind::Leaf,
                    MetaKind::Page,
                    MetaKind::PageList,
                    MetaKind::Table,
                    MetaKind::Dropped,
                    MetaKind::Root,
                    MetaKind::Snapshots,
                    MetaKind::Retained,
                    MetaKind::Forwards,
                ];
                let kind = KINDS[usize::from(script.byte()) % KINDS.len()];
                let width = 1 << (script.byte() % 4);
                let (offset, value) = (script.number(), script.number());
                self.edits.push(Edit { kind, width, offset, value });
            }
            14 => self.moved(script),
            _ => {
                let (start, end) = (script.number(), script.number());
                let mapping = match script.byte() {
                    0 => DirectoryEntry::Hole,
                    byte => DirectoryEntry::Fill(byte),
                };
                self.dropped.push(DroppedRange { start, end, mapping });
            }
        }
    }

    /// Writes a frame as garbage collection moves it, from its address in the model.
    fn moved(&mut self, script: &mut Script<'_>) {
        let (lba, blocks) = (script.number(), script.byte());
        let (byte, birth, twist) = (script.byte(), script.number(), script.byte());
        let blocks = blocks % super::FRAME_BLOCKS as u8 + 1;
        let mut sources: Vec<Source> = Vec::new();
        for at in 0..u64::from(blocks) {
            let (segment, offset) = self.model.frame_of(lba.wrapping_add(at)).unwrap_or_default();
            let (segment, offset) = (SegmentId(segment), offset ^ u32::from(twist));
            match sources.last_mut() {
                Some(last) if (last.segment, last.offset) == (segment, offset) => last.blocks += 1,
                _ => {
                    let birth = SeqNo(birth & ((1 << 56) - 1));
                    sources.push(Source { birth, blocks: 1, segment, offset });
                }
            }
        }
        let (encoding, payload) = encode(blocks.into(), 1, byte);
        self.data(Stream::Moved, FrameRange { lba, blocks }, encoding, payload, sources);
    }

    fn checkpoint(&mut self) {
        self.seal();
        let mut root = self.begin_root();
        let table = self.model.table(self.superblock.segment_count);
        if self.tails[Stream::Meta as usize].is_none() {
            let segment = self.unused();
            self.open_segment(Stream::Meta, segment);
            let generation = self.model.uses.get(&segment).map_or(0, |found| found.generation);
            let (segment, stream) = (SegmentId(segment), Stream::Meta);
            root.opened_segments.push(OpenedSegment { segment, generation, stream });
        }
        let mut entries = [0; DIRECTORY_PAGE_LEAVES];
        for leaf in 0..MODEL_LEAVES {
            entries[leaf as usize] = match self.model.leaf(leaf) {
                Err(entry) => entry.pack(),
                Ok(raw) => self.meta(MetaKind::Leaf, leaf, raw).0.pack(),
            };
        }
        if entries.iter().any(|&entry| entry != 0) {
            let (place, _) = self.meta(MetaKind::Page, 0, encode_page(&entries).to_vec());
            let list = [0, place.pack()].map(u64::to_le_bytes).concat();
            root.page_count = 1;
            root.page_lists = vec![self.meta(MetaKind::PageList, 0, list).0];
        }
        for (number, piece) in (0..).zip(table.chunks(PIECE_ENTRIES)) {
            let mut raw = Vec::new();
            piece.iter().for_each(|entry| entry.encode_into(&mut raw));
            root.tables.push(self.meta(MetaKind::Table, number, raw).0);
        }
        let dropped = std::mem::take(&mut self.dropped);
        if !dropped.is_empty() {
            let mut raw = Vec::new();
            dropped.iter().for_each(|range| range.encode_into(&mut raw));
            root.dropped_count = dropped.len() as u32;
            root.dropped_lists = vec![self.meta(MetaKind::Dropped, 0, raw).0];
        }
        let (place, payload_checksum) = self.meta(MetaKind::Root, 0, root.encode());
        let generation = self.tails[Stream::Meta as usize].as_ref().map(|tail| &tail.header);
        let generation = generation.map_or(0, |header| header.generation);
        self.seal();
        self.superblock.checkpoint = Some(CheckpointAddress {
            address: RecordAddress { generation, segment: place.segment, offset: place.offset },
            record_bytes: place.bytes,
            payload_checksum,
        });
    }

    fn begin_root(&self) -> Root {
        let tails = self.tails.each_ref().map(|tail| {
            tail.as_ref().map(|tail| StreamTail {
                segment: tail.header.segment,
                generation: tail.header.generation,
                used: tail.used as u32,
            })
        });
        Root {
            epoch: self.superblock.epoch,
            segment_count: self.superblock.segment_count,
            size_bytes: self.superblock.size_bytes,
            watermark: SeqNo(self.seq),
            watermark_checksum: self.chain,
            host_bytes: 0,
            frame_bytes: 0,
            media_bytes: 0,
            moved_bytes: 0,
            lost_leaves: 0,
            mapped_blocks: self.model.blocks.len() as u64,
            tails,
            opened_segments: Vec::new(),
            page_count: 0,
            dropped_count: 0,
            page_lists: Vec::new(),
            tables: Vec::new(),
            dropped_lists: Vec::new(),
            snapshot_lists: Vec::new(),
            retained_lists: Vec::new(),
            forward_lists: Vec::new(),
            lost_pieces: 0,
            lost_until: SeqNo(0),
            rolled_back: SeqNo(0),
        }
    }

    /// Adds metadata to the batch, with the edits of its kind; returns its place and checksum.
    fn meta(&mut self, kind: MetaKind, number: u64, mut raw: Vec<u8>) -> (MetadataAddress, u64) {
        for edit in self.edits.extract_if(.., |edit| edit.kind == kind) {
            let bytes = edit.value.to_le_bytes();
            let at = usize::try_from(edit.offset).unwrap_or(usize::MAX);
            if let Some(target) = raw.get_mut(at..).and_then(|rest| rest.get_mut(..edit.width)) {
                target.copy_from_slice(&bytes[..edit.width]);
            }
        }
        let lengths = [raw.len() as u32; 2].map(u32::to_le_bytes);
        let mut payload = [lengths.as_flattened(), &raw[..]].concat();
        let bytes = RECORD_HEADER_BYTES + META_PREFIX_BYTES + raw.len();
        let bytes = bytes.next_multiple_of(META_ALIGNMENT as usize);
        payload.resize(bytes - RECORD_HEADER_BYTES, 0);
        let payload_checksum = crc64(&payload);
        let record = Record::Meta {
            kind,
            number,
            encoding: Encoding::Store as u8,
            stored_bytes: payload.len() as u32,
            payload_checksum,
        };
        let place = self.push(Stream::Meta, record, Vec::new(), payload);
        let place =
            MetadataAddress { segment: place.segment, offset: place.offset, bytes: bytes as u32 };
        (place, payload_checksum)
    }
}

// A place is packed into a directory entry: its segment is one of the image's.
const _: () = assert!(SEGMENTS < pumice_drive::format::META_SEGMENTS_MAX);

//! A small drive's medium, written from a script: every checksum, length and link of the chain is
//! valid, except where the script overrides it. So a fuzzer reaches the code after the checksums,
//! and a few bytes are enough for a log of several segments and a checkpoint.
//!
//! ```text
//! script   verb u8 | arguments | verb u8 | arguments | ...     missing bytes read as zero
//! number   0..=0xef itself | 0xf0..=0xf7 and 1 to 8 bytes | 0xf8..=0xff just below 2^64
//! ```
//!
//! | verb | arguments |
//! |---|---|
//! | 0 segment | u8: number in the low 6 bits, stream above: the stream goes there, announced |
//! | 1 seal | the batch |
//! | 2 data | lba, blocks, encoding u8, length u8, bytes: a frame with that payload |
//! | 3 frame | lba, blocks u8, codec u8 (bit 7: in blocks), byte u8: a frame as it is encoded |
//! | 4 fill, 5 trim | lba, blocks (and byte u8) |
//! | 6 superblock | field u8, number: replaces a value from now on |
//! | 7 segment, 8 batch | field u8, number: replaces a value in the next header |
//! | 9 damage | segment u8 (12, 13: slot 0, 1), offset, byte u8: changes a byte at the end |
//! | 10 slot | the other slot keeps the present superblock; the revision increases |
//! | 11 write | the drive is written to |
//! | 12 checkpoint | of everything so far; see `metadata` |
//! | 13 edit | kind u8, width u8, offset, number: replaces a value in the next metadata of a kind |
//! | 14 moved | lba, blocks u8, byte u8, source, twist u8: a frame moved from its address |
//! | 15 dropped | first leaf, end, byte u8 (0: a hole): a dropped range of the next checkpoint |

mod metadata;

use std::collections::BTreeMap;
use std::sync::Arc;

use rand::Rng;
use uuid::Uuid;

use metadata::{Edit, Model};

use pumice_drive::base::checksum::crc64;
use pumice_drive::base::seed::random;
use pumice_drive::base::units::BLOCK_BYTES;
use pumice_drive::base::{AlignedBuffer, Lba, SegmentId, SeqNo};
use pumice_drive::codec::{ChunkTable, Codec, Compressor, Encoding, FrameForm};
use pumice_drive::format::{
    BATCH_ALIGNMENT, BATCH_BYTES_MAX, BATCH_HEADER_BYTES, BatchHeader, CheckpointAddress,
    DroppedRange, LEAF_TABLE_BYTES, Record, RecordAddress, SEGMENT_BYTES_MIN, SEGMENT_HEADER_BYTES,
    SUPERBLOCK_BYTES, SegmentHeader, Source, Stream, Superblock, TABLE_BLOCKS_MIN, chain_record,
    chain_start, generation,
};

/// Number of segments that can be written; the superblock can state another number. A drive with
/// its reserves for garbage collection and checkpoints accepts writes with this many.
const SEGMENTS: u32 = 12;

/// Maximum number of verbs; a longer script is cut off. Bounds the work and memory of one image.
const VERBS_MAX: usize = 2000;

/// Maximum number of blocks of a frame that a codec encodes.
const FRAME_BLOCKS: usize = 8;

/// The bit of a codec's number that makes it encode chunks.
const CHUNKS_BIT: u8 = 1 << 7;

/// The content of a medium.
pub(super) struct Image {
    /// Both slots.
    pub(super) superblocks: [[u8; SUPERBLOCK_BYTES]; 2],
    /// The used prefixes of segments: multiples of 4096 bytes.
    pub(super) segments: BTreeMap<u32, Vec<u8>>,
    /// Whether the drive is written to.
    pub(super) is_written_to: bool,
}

impl Image {
    /// Returns a segment's bytes as a medium accepts them.
    pub(super) fn buffer(bytes: &[u8]) -> Arc<AlignedBuffer> {
        let mut buffer = AlignedBuffer::zeroed(bytes.len());
        buffer.copy_from_slice(bytes);
        Arc::new(buffer)
    }
}

/// Writes the medium that a script describes.
pub(super) fn write(script: &[u8]) -> Image {
    let mut script = Script(script);
    let mut writer = Writer::new();
    for _ in 0..VERBS_MAX {
        let Some(verb) = script.next_byte() else { break };
        writer.obey(verb, &mut script);
    }
    writer.finish()
}

struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    fn next_byte(&mut self) -> Option<u8> {
        let (&byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(byte)
    }

    fn byte(&mut self) -> u8 {
        self.next_byte().unwrap_or(0)
    }

    fn bytes(&mut self, length: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        bytes
    }

    fn number(&mut self) -> u64 {
        match self.byte() {
            small @ 0..=0xef => small.into(),
            tag @ 0xf0..=0xf7 => {
                let mut bytes = [0; 8];
                let given = self.bytes(usize::from(tag - 0xef));
                bytes[..given.len()].copy_from_slice(given);
                u64::from_le_bytes(bytes)
            }
            tag => u64::MAX - u64::from(tag - 0xf8),
        }
    }
}

/// The end of a stream.
struct Tail {
    /// The segment's header; `segment` is the actual segment, whatever the header states.
    header: SegmentHeader,
    /// Bytes used; 0 until the first batch.
    used: usize,
}

/// The blocks of a frame.
#[derive(Clone, Copy)]
struct FrameRange {
    lba: u64,
    blocks: u8,
}

/// A record in the open batch.
struct Pending {
    record: Record,
    sources: Vec<Source>,
    payload: Vec<u8>,
}

struct Writer {
    superblock: Superblock,
    other_slot: Superblock,
    segments: BTreeMap<u32, Vec<u8>>,
    tails: [Option<Tail>; Stream::COUNT],
    /// The stream of the open batch, its records, their bytes.
    stream: Stream,
    records: Vec<Pending>,
    record_bytes: usize,
    model: Model,
    seq: u64,
    chain: u64,
    ordinal: u32,
    segment_fields: Vec<(u8, u64)>,
    batch_fields: Vec<(u8, u64)>,
    damage: Vec<(u32, u64, u8)>,
    edits: Vec<Edit>,
    dropped: Vec<DroppedRange>,
    is_written_to: bool,
}

impl Writer {
    fn new() -> Self {
        let uuid = Uuid::from_u128(0xf022);
        let superblock = Superblock {
            uuid,
            revision: 1,
            epoch: 1,
            clean: false,
            incomplete: false,
            size_bytes: 64 << 20,
            segment_bytes: SEGMENT_BYTES_MIN,
            segment_count: SEGMENTS,
            data_offset: 2 << 20,
            created_seconds: 0,
            frame_blocks: FRAME_BLOCKS as u16,
            codec: 1,
            codec_level: 0,
            watermark: SeqNo(0),
            watermark_checksum: chain_start(uuid),
            checkpoint: None,
            warn_percent: [0; 4],
            is_preallocated: false,
            has_chunks: false,
            has_snapshots: false,
            receiving: None,
            origin: None,
            flat_since: SeqNo(0),
            has_clones: false,
            keys: None,
            is_array: false,
            bad_segments: Vec::new(),
            detours: Vec::new(),
        };
        Self {
            other_slot: superblock.clone(),
            superblock,
            segments: BTreeMap::new(),
            tails: [const { None }; Stream::COUNT],
            stream: Stream::Host,
            records: Vec::new(),
            record_bytes: 0,
            model: Model::default(),
            seq: 0,
            chain: chain_start(uuid),
            ordinal: 0,
            segment_fields: Vec::new(),
            batch_fields: Vec::new(),
            damage: Vec::new(),
            edits: Vec::new(),
            dropped: Vec::new(),
            is_written_to: false,
        }
    }

    fn obey(&mut self, verb: u8, script: &mut Script<'_>) {
        match verb % 16 {
            0 => {
                let byte = script.byte();
                let stream = Stream::ALL[usize::from(byte >> 6) % Stream::COUNT];
                self.open_segment(stream, u32::from(byte & 63) % SEGMENTS);
            }
            1 => self.seal(),
            2 => {
                let (lba, blocks) = (script.number(), script.number() as u8);
                let (encoding, length) = (script.byte(), script.byte());
                let payload = script.bytes(length.into()).to_vec();
                self.data(Stream::Host, FrameRange { lba, blocks }, encoding, payload, Vec::new());
            }
            3 => {
                let (lba, blocks) = (script.number(), script.byte());
                let (codec, byte) = (script.byte(), script.byte());
                let blocks = usize::from(blocks) % FRAME_BLOCKS + 1;
                let (encoding, payload) = encode(blocks, codec, byte);
                self.data(
                    Stream::Host,
                    FrameRange { lba, blocks: blocks as u8 },
                    encoding,
                    payload,
                    Vec::new(),
                );
            }
            4 => {
                let (lba, lba_count) = (Lba(script.number()), script.number());
                self.push_host(Record::Fill { lba, lba_count, byte: script.byte() });
            }
            5 => {
                let (lba, lba_count) = (Lba(script.number()), script.number());
                self.push_host(Record::Trim { lba, lba_count });
            }
            6 => {
                let (field, value) = (script.byte(), script.number());
                self.set_superblock(field, value);
            }
            7 => self.segment_fields.push((script.byte(), script.number())),
            8 => self.batch_fields.push((script.byte(), script.number())),
            9 => {
                let place = u32::from(script.byte()) % (SEGMENTS + 2);
                self.damage.push((place, script.number(), script.byte()));
            }
            10 => {
                self.other_slot = self.superblock.clone();
                self.superblock.revision = self.superblock.revision.wrapping_add(1);
            }
            11 => self.is_written_to = true,
            _ => self.obey_metadata(verb % 16, script),
        }
    }

    /// Returns a free segment that was never used, or the last one.
    fn unused(&self) -> u32 {
        let unused = (0..SEGMENTS).find(|number| !self.model.uses.contains_key(number));
        unused.unwrap_or(SEGMENTS - 1)
    }

    /// Continues a stream in a segment, and announces it as a reader expects.
    fn open_segment(&mut self, stream: Stream, number: u32) {
        self.ordinal += 1;
        let segment = SegmentId(number);
        let generation = generation(self.superblock.epoch, self.ordinal);
        let carrier = if self.tails[stream as usize].is_some() { stream } else { Stream::Host };
        if stream != Stream::Host || self.tails[stream as usize].is_some() {
            let record = Record::Open { stream, segment, generation };
            self.push(carrier, record, Vec::new(), Vec::new());
        }
        self.seal();
        self.begin_segment(stream, segment, generation);
    }

    fn begin_segment(&mut self, stream: Stream, segment: SegmentId, generation: u64) {
        let header = SegmentHeader {
            recovery: None,
            uuid: self.superblock.uuid,
            generation,
            first_seq: SeqNo(0),
            segment,
            stream,
            opening_seq: SeqNo(0),
            shape: self.superblock.shape(),
        };
        self.model.opened(segment.0, stream, generation);
        self.tails[stream as usize] = Some(Tail { header, used: 0 });
    }

    /// Returns the header that is written before a segment's first batch.
    fn segment_header(&mut self, header: &SegmentHeader) -> SegmentHeader {
        let mut header = header.clone();
        header.first_seq = SeqNo(self.seq.wrapping_add(1));
        for (field, value) in self.segment_fields.drain(..) {
            match field % 10 {
                0 => header.generation = value,
                1 => header.first_seq = SeqNo(value),
                2 => header.segment = SegmentId(value as u32),
                3 => header.stream = Stream::ALL[value as usize % Stream::COUNT],
                4 => header.uuid = Uuid::from_u128(value.into()),
                5 => header.shape.size_bytes = value,
                6 => header.shape.data_offset = value,
                7 => header.shape.segment_bytes = value as u32,
                8 => header.shape.segment_count = value as u32,
                _ => header.shape.frame_blocks = value as u16,
            }
        }
        header
    }

    fn data(
        &mut self,
        stream: Stream,
        range: FrameRange,
        encoding: u8,
        payload: Vec<u8>,
        sources: Vec<Source>,
    ) {
        let record = Record::Data {
            lba: Lba(range.lba),
            lba_count: range.blocks.into(),
            source_count: sources.len() as u8,
            encoding,
            stored_bytes: payload.len() as u32,
            payload_checksum: crc64(&payload),
        };
        let table = table_of(range.blocks, encoding, &payload);
        let place = self.push(stream, record, sources, payload);
        if let Some(table) = table {
            self.model.tables.insert((place.segment.0, place.offset), table);
        }
    }

    fn push_host(&mut self, record: Record) {
        self.push(Stream::Host, record, Vec::new(), Vec::new());
    }

    /// Adds a record to its stream's batch if it fits; returns its place.
    fn push(
        &mut self,
        stream: Stream,
        record: Record,
        sources: Vec<Source>,
        payload: Vec<u8>,
    ) -> RecordAddress {
        if stream != self.stream {
            self.seal();
            self.stream = stream;
        }
        if self.tails[stream as usize].is_none() {
            let first = if stream == Stream::Host { 0 } else { self.unused() };
            self.open_segment(stream, first);
            self.stream = stream;
        }
        let tail = self.tails[stream as usize].as_ref().expect("just begun");
        let offset = tail.used.max(SEGMENT_HEADER_BYTES) + BATCH_HEADER_BYTES + self.record_bytes;
        let place = RecordAddress {
            generation: tail.header.generation,
            segment: tail.header.segment,
            offset: offset as u32,
        };
        let record_bytes = record.header_bytes() as usize + payload.len();
        if BATCH_HEADER_BYTES + self.record_bytes + record_bytes <= BATCH_BYTES_MAX {
            self.model.apply(&record, &sources, place);
            self.record_bytes += record_bytes;
            self.records.push(Pending { record, sources, payload });
        }
        place
    }

    /// Appends the batch, unless it is empty or does not fit the segment.
    fn seal(&mut self) {
        let records = std::mem::take(&mut self.records);
        let record_bytes = std::mem::take(&mut self.record_bytes);
        let stream = self.stream;
        let Some(mut tail) = self.tails[stream as usize].take_if(|_| !records.is_empty()) else {
            return;
        };
        let whole = (BATCH_HEADER_BYTES + record_bytes).next_multiple_of(BATCH_ALIGNMENT);
        if tail.used.max(SEGMENT_HEADER_BYTES) + whole <= SEGMENT_BYTES_MIN as usize {
            self.append(&mut tail, &records, record_bytes, whole);
        }
        self.tails[stream as usize] = Some(tail);
    }

    fn append(&mut self, tail: &mut Tail, records: &[Pending], record_bytes: usize, whole: usize) {
        let mut out = Vec::new();
        if tail.used == 0 {
            out.resize(SEGMENT_HEADER_BYTES, 0);
            self.segment_header(&tail.header).encode_into(&mut out);
        }
        let (generation, segment) = (tail.header.generation, tail.header.segment);
        let base = tail.used + out.len();
        let mut batch = vec![0; whole];
        let (mut at, mut chain) = (BATCH_HEADER_BYTES, 0);
        for Pending { record, sources, payload } in records {
            let place = RecordAddress { generation, segment, offset: (base + at) as u32 };
            record.encode_into(place, sources, &mut batch[at..]);
            chain = chain_record(chain, batch[at..].first_chunk().expect("room was made"));
            at += record.header_bytes() as usize;
            batch[at..at + payload.len()].copy_from_slice(payload);
            at += payload.len();
        }
        let header = BatchHeader {
            records_checksum: chain,
            seq: SeqNo(self.seq.wrapping_add(1)),
            previous_checksum: self.chain,
            watermark: SeqNo(0),
            generation,
            host_bytes: 0,
            frame_bytes: 0,
            media_bytes: 0,
            moved_bytes: 0,
            segment,
            offset: base as u32,
            body_bytes: (whole - BATCH_HEADER_BYTES) as u32,
            record_bytes: record_bytes as u32,
            record_count: records.len() as u32,
            parity_pages: 0,
            needs_next: false,
            epoch: self.superblock.epoch,
            uuid: self.superblock.uuid,
        };
        let header = self.with_batch_fields(header);
        self.chain = header.encode_into(&mut batch);
        self.seq = header.seq.0;
        self.model.sealed(segment.0, header.seq);
        out.extend(batch);
        let end = tail.used + out.len();
        let target = self.segments.entry(segment.0).or_default();
        target.resize(target.len().max(end), 0);
        target[tail.used..end].copy_from_slice(&out);
        tail.used = end;
    }

    fn with_batch_fields(&mut self, mut header: BatchHeader) -> BatchHeader {
        for (field, value) in self.batch_fields.drain(..) {
            match field % 16 {
                0 => header.records_checksum = value as u32,
                1 => header.seq = SeqNo(value),
                2 => header.previous_checksum = value,
                3 => header.watermark = SeqNo(value),
                4 => header.generation = value,
                5 => header.host_bytes = value,
                6 => header.frame_bytes = value,
                7 => header.media_bytes = value,
                8 => header.segment = SegmentId(value as u32),
                9 => header.offset = value as u32,
                10 => header.body_bytes = value as u32,
                11 => header.record_bytes = value as u32,
                12 => header.record_count = value as u32,
                13 => header.epoch = value as u32,
                14 => header.uuid = Uuid::from_u128(value.into()),
                _ => header.moved_bytes = value,
            }
        }
        header
    }

    fn set_superblock(&mut self, field: u8, value: u64) {
        let superblock = &mut self.superblock;
        match field % 20 {
            0 => superblock.revision = value,
            1 => superblock.epoch = value as u32,
            2 => superblock.clean = value & 1 != 0,
            3 => superblock.size_bytes = value.wrapping_mul(BLOCK_BYTES as u64),
            4 => superblock.segment_bytes = value as u32,
            5 => superblock.segment_count = value as u32,
            6 => superblock.data_offset = value,
            7 => superblock.created_seconds = value,
            8 => superblock.frame_blocks = value as u16,
            9 => superblock.codec = value as u16,
            10 => superblock.codec_level = value as i32,
            11 => superblock.watermark = SeqNo(value),
            12 => superblock.watermark_checksum = value,
            13 => superblock.uuid = Uuid::from_u128(value.into()),
            14 => superblock.warn_percent = (value as u32).to_le_bytes(),
            _ => self.set_checkpoint(field % 20, value),
        }
    }

    fn set_checkpoint(&mut self, field: u8, value: u64) {
        let nowhere = RecordAddress { generation: 0, segment: SegmentId(0), offset: 0 };
        let none = CheckpointAddress { address: nowhere, record_bytes: 0, payload_checksum: 0 };
        let checkpoint = self.superblock.checkpoint.get_or_insert(none);
        match field {
            15 => checkpoint.address.segment = SegmentId(value as u32),
            16 => checkpoint.address.offset = value as u32,
            17 => checkpoint.address.generation = value,
            18 => checkpoint.record_bytes = value as u32,
            _ => checkpoint.payload_checksum = value,
        }
    }

    fn finish(mut self) -> Image {
        self.seal();
        let mut superblocks = [self.superblock.encode(), self.other_slot.encode()];
        for (place, offset, byte) in self.damage {
            let bytes = match place.checked_sub(SEGMENTS) {
                Some(slot) => Some(&mut superblocks[slot as usize][..]),
                None => self.segments.get_mut(&place).map(|bytes| &mut bytes[..]),
            };
            let offset = usize::try_from(offset).unwrap_or(usize::MAX);
            if let Some(target) = bytes.and_then(|bytes| bytes.get_mut(offset)) {
                *target ^= byte;
            }
        }
        Image { superblocks, segments: self.segments, is_written_to: self.is_written_to }
    }
}

/// Returns the table that a leaf may contain for a frame with this payload.
fn table_of(blocks: u8, encoding: u8, payload: &[u8]) -> Option<[u8; LEAF_TABLE_BYTES]> {
    let table = match Encoding::from_u8(encoding)? {
        Encoding::Chunks => ChunkTable::of(payload, blocks.into()).ok(),
        Encoding::Store => ChunkTable::of_stored(payload),
        Encoding::Lz4 | Encoding::Zstd | Encoding::Lost => None,
    };
    table.filter(|_| blocks >= TABLE_BLOCKS_MIN)?.stored().try_into().ok()
}

/// Returns a frame of `blocks` blocks as a codec encodes it.
fn encode(blocks: usize, codec: u8, byte: u8) -> (u8, Vec<u8>) {
    let form = if codec & CHUNKS_BIT != 0 { FrameForm::Chunks } else { FrameForm::Solid };
    let codec = match (codec & !CHUNKS_BIT) % 3 {
        0 => Codec::None,
        1 => Codec::Lz4,
        _ => Codec::Zstd { level: 1 },
    };
    let mut source = vec![0; blocks * BLOCK_BYTES];
    for (at, piece) in (0u8..7).cycle().zip(source.chunks_exact_mut(64)) {
        piece.fill(byte.wrapping_add(at));
    }
    if form == FrameForm::Chunks {
        // Less compressible, so that the frame has several chunks.
        let mut random = random(byte.into());
        source
            .chunks_exact_mut(BLOCK_BYTES)
            .for_each(|block| random.fill_bytes(&mut block[..2048]));
    }
    let mut target = vec![0; Compressor::target_bytes(source.len())];
    let mut compressor = Compressor::new(codec).with_form(form);
    let (encoding, length) = compressor.compress(&source, &mut target);
    target.truncate(length);
    (encoding as u8, target)
}

//! A small drive's medium, written as a script says: every checksum, length and link of the chain
//! right, except where the script says otherwise. So a fuzzer reaches what lies behind the
//! checksums, and a few bytes are enough for a log of several segments.
//!
//! ```text
//! script   verb u8 | arguments | verb u8 | arguments | ...     what is missing reads as zero
//! number   0..=0xef itself | 0xf0..=0xf7 and 1 to 8 bytes | 0xf8..=0xff just below 2^64
//! ```
//!
//! | verb | arguments |
//! |---|---|
//! | 0 segment | number u8: seals the batch, begins the segment; what it held stays behind |
//! | 1 seal | the batch |
//! | 2 data | lba, blocks, encoding u8, length u8, bytes: a frame with that payload |
//! | 3 frame | lba, blocks u8, codec u8, byte u8: a frame as the codec encodes it |
//! | 4 fill, 5 trim | lba, blocks (and byte u8) |
//! | 6 superblock | field u8, number: another value from now on |
//! | 7 segment, 8 batch | field u8, number: another value in the header of the next one |
//! | 9 damage | segment u8 (4, 5: slot 0, 1), offset, byte u8: changes a byte in the end |
//! | 10 slot | the other slot keeps the superblock as it is now; the revision rises |
//! | 11 write | the drive shall be written to, if nothing is wrong with it |

use std::collections::BTreeMap;
use std::sync::Arc;

use uuid::Uuid;

use crate::base::checksum::crc64;
use crate::base::units::BLOCK_BYTES;
use crate::base::{AlignedBuffer, Lba, SegmentId, SeqNo};
use crate::codec::{Codec, Compressor};
use crate::format::{
    BATCH_ALIGNMENT, BATCH_BYTES_MAX, BATCH_HEADER_BYTES, BatchHeader, RECORD_HEADER_BYTES, Record,
    RecordPlace, SEGMENT_BYTES_MIN, SEGMENT_HEADER_BYTES, SUPERBLOCK_BYTES, SegmentHeader,
    Superblock, chain_record, chain_start, generation,
};

/// Segments that can be written; the superblock may tell of another number.
const SEGMENTS: u32 = 4;

/// Verbs obeyed; a longer script ends there. Bounds the work and memory of one image.
const VERBS_MAX: usize = 2000;

/// Blocks of a frame that a codec encodes at most.
const FRAME_BLOCKS: usize = 8;

/// What a medium holds.
pub(super) struct Image {
    /// Both slots.
    pub(super) superblocks: [[u8; SUPERBLOCK_BYTES]; 2],
    /// The used beginnings of segments: whole multiples of 4096 bytes.
    pub(super) segments: BTreeMap<u32, Vec<u8>>,
    /// Whether the drive shall be written to.
    pub(super) is_written_to: bool,
}

impl Image {
    /// A segment's bytes as a medium takes them.
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

struct Writer {
    superblock: Superblock,
    other_slot: Superblock,
    segments: BTreeMap<u32, Vec<u8>>,
    /// The segment that batches go to, and how much of it is written.
    open: SegmentHeader,
    used: usize,
    records: Vec<(Record, Vec<u8>)>,
    record_bytes: usize,
    seq: u64,
    chain: u64,
    ordinal: u32,
    segment_fields: Vec<(u8, u64)>,
    batch_fields: Vec<(u8, u64)>,
    damage: Vec<(u32, u64, u8)>,
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
        };
        let open = SegmentHeader {
            uuid,
            generation: 0,
            first_seq: SeqNo(0),
            segment: SegmentId(0),
            stream: 0,
        };
        Self {
            other_slot: superblock.clone(),
            superblock,
            segments: BTreeMap::new(),
            open,
            used: 0,
            records: Vec::new(),
            record_bytes: 0,
            seq: 0,
            chain: chain_start(uuid),
            ordinal: 0,
            segment_fields: Vec::new(),
            batch_fields: Vec::new(),
            damage: Vec::new(),
            is_written_to: false,
        }
    }

    fn obey(&mut self, verb: u8, script: &mut Script<'_>) {
        match verb % 12 {
            0 => {
                let number = u32::from(script.byte()) % SEGMENTS;
                self.seal();
                self.begin_segment(number);
            }
            1 => self.seal(),
            2 => {
                let (lba, blocks) = (script.number(), script.number() as u16);
                let (encoding, length) = (script.byte(), script.byte());
                self.data(lba, blocks, encoding, script.bytes(length.into()).to_vec());
            }
            3 => {
                let (lba, blocks) = (script.number(), script.byte());
                let (codec, byte) = (script.byte(), script.byte());
                self.frame(lba, usize::from(blocks) % FRAME_BLOCKS + 1, codec, byte);
            }
            4 => {
                let (lba, lba_count) = (Lba(script.number()), script.number());
                self.push(Record::Fill { lba, lba_count, byte: script.byte() }, Vec::new());
            }
            5 => {
                let (lba, lba_count) = (Lba(script.number()), script.number());
                self.push(Record::Trim { lba, lba_count }, Vec::new());
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
            _ => self.is_written_to = true,
        }
    }

    fn begin_segment(&mut self, number: u32) {
        self.ordinal += 1;
        let mut header = SegmentHeader {
            uuid: self.superblock.uuid,
            generation: generation(self.superblock.epoch, self.ordinal),
            first_seq: SeqNo(self.seq.wrapping_add(1)),
            segment: SegmentId(number),
            stream: 0,
        };
        for (field, value) in self.segment_fields.drain(..) {
            match field % 5 {
                0 => header.generation = value,
                1 => header.first_seq = SeqNo(value),
                2 => header.segment = SegmentId(value as u32),
                3 => header.stream = value as u16,
                _ => header.uuid = Uuid::from_u128(value.into()),
            }
        }
        let bytes = self.segments.entry(number).or_default();
        let length = bytes.len().max(SEGMENT_HEADER_BYTES);
        bytes.resize(length, 0);
        header.encode_into(bytes);
        // Where it stands, whatever it says.
        self.open = SegmentHeader { segment: SegmentId(number), ..header };
        self.used = SEGMENT_HEADER_BYTES;
    }

    fn data(&mut self, lba: u64, lba_count: u16, encoding: u8, payload: Vec<u8>) {
        let record = Record::Data {
            lba: Lba(lba),
            lba_count,
            encoding,
            stored_bytes: payload.len() as u32,
            payload_checksum: crc64(&payload),
        };
        self.push(record, payload);
    }

    fn frame(&mut self, lba: u64, blocks: usize, codec: u8, byte: u8) {
        let codec = match codec % 3 {
            0 => Codec::None,
            1 => Codec::Lz4,
            _ => Codec::Zstd { level: 1 },
        };
        let source: Vec<u8> =
            (0..blocks * BLOCK_BYTES).map(|at| byte.wrapping_add((at / 64 % 7) as u8)).collect();
        let mut target = vec![0; Compressor::target_bytes(source.len())];
        let (encoding, length) = Compressor::new(codec).compress(&source, &mut target);
        target.truncate(length);
        self.data(lba, blocks as u16, encoding as u8, target);
    }

    /// Takes a record into the batch, unless it would not fit any more.
    fn push(&mut self, record: Record, payload: Vec<u8>) {
        let record_bytes = RECORD_HEADER_BYTES + payload.len();
        if BATCH_HEADER_BYTES + self.record_bytes + record_bytes <= BATCH_BYTES_MAX {
            self.record_bytes += record_bytes;
            self.records.push((record, payload));
        }
    }

    /// Appends the batch, unless it is empty or does not fit the segment.
    fn seal(&mut self) {
        let records = std::mem::take(&mut self.records);
        let record_bytes = std::mem::take(&mut self.record_bytes);
        if records.is_empty() {
            return;
        }
        if self.used == 0 {
            self.begin_segment(0);
        }
        let whole = (BATCH_HEADER_BYTES + record_bytes).next_multiple_of(BATCH_ALIGNMENT);
        if self.used + whole > SEGMENT_BYTES_MIN as usize {
            return;
        }
        let mut batch = vec![0; whole];
        let (mut at, mut chain) = (BATCH_HEADER_BYTES, 0);
        for (record, payload) in &records {
            let place = RecordPlace {
                generation: self.open.generation,
                segment: self.open.segment,
                offset: (self.used + at) as u32,
            };
            record.encode_into(place, &mut batch[at..]);
            let head = batch[at..].first_chunk().expect("room was made");
            chain = chain_record(chain, head);
            at += RECORD_HEADER_BYTES;
            batch[at..at + payload.len()].copy_from_slice(payload);
            at += payload.len();
        }
        let header = self.batch_header(whole, record_bytes, records.len(), chain);
        self.chain = header.encode_into(&mut batch);
        self.seq = header.seq.0;
        let target = self.segments.entry(self.open.segment.0).or_default();
        let length = target.len().max(self.used + whole);
        target.resize(length, 0);
        target[self.used..self.used + whole].copy_from_slice(&batch);
        self.used += whole;
    }

    fn batch_header(
        &mut self,
        whole: usize,
        record_bytes: usize,
        record_count: usize,
        records_checksum: u64,
    ) -> BatchHeader {
        let mut header = BatchHeader {
            records_checksum,
            seq: SeqNo(self.seq.wrapping_add(1)),
            previous_checksum: self.chain,
            watermark: SeqNo(0),
            generation: self.open.generation,
            host_bytes: 0,
            frame_bytes: 0,
            media_bytes: 0,
            segment: self.open.segment,
            offset: self.used as u32,
            body_bytes: (whole - BATCH_HEADER_BYTES) as u32,
            record_bytes: record_bytes as u32,
            record_count: record_count as u32,
            epoch: self.superblock.epoch,
            uuid: self.superblock.uuid,
        };
        for (field, value) in self.batch_fields.drain(..) {
            match field % 15 {
                0 => header.records_checksum = value,
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
                _ => header.uuid = Uuid::from_u128(value.into()),
            }
        }
        header
    }

    fn set_superblock(&mut self, field: u8, value: u64) {
        let superblock = &mut self.superblock;
        match field % 14 {
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
            _ => superblock.uuid = Uuid::from_u128(value.into()),
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

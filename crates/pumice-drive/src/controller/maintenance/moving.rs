//! Moving one record out of a segment that garbage collection empties.
//!
//! ```text
//! frame, all of it live  -> copied, still compressed (or recompressed, denser, if requested)
//! frame, partly live     -> the live blocks in separate frames, if they are smaller
//! frame, damaged         -> a record without payload, whose blocks stay lost; independent
//!                           blocks that are known to be whole, in separate frames
//! leaf, directory page   -> marked dirty: the next checkpoint writes it elsewhere
//! anything else          -> nothing: the map or the checkpoint contains it
//! ```
//!
//! A frame is first encoded from the blocks that are live at that time. The core then appends and
//! maps it in one call, if the same blocks are still live. A copy names its sources; recovery maps
//! a block of it only if the block still maps to its source.

use std::ops::Range;

use super::super::core::{Attempt, Core, Move, MoveReason};
use super::super::drive::Drive;
use super::super::log::packing::{MovedFrame, moved_bytes_max};
use super::super::log::payload::{Stored, encode_sealed};
use super::super::log::records::Found;
use super::super::map::LivePiece;
use super::super::place::{FramePlace, blocks_of_frame};
use crate::base::checksum::crc64;
use crate::base::units::{BLOCK_BYTES, len_u32};
use crate::base::{Lba, Result, SeqNo};
use crate::codec::{ChunkTable, Compressor, Encoding, cut_chunks};
use crate::crypt::{Binding, Cipher, NONCE_BYTES, SEAL_BYTES};
use crate::format::{
    FRAME_BLOCKS_MAX, MetaKind, MetadataAddress, RECORD_HEADER_BYTES, Record, RecordAddress,
    SEALED, SOURCE_BYTES, Source, Stream, check_payload,
};

/// A recompressed frame must be smaller by this part to be worthwhile: every later read incurs the
/// slower decoding.
const DENSER_DIVISOR: usize = 16;

/// Bytes for the seals of the parts into which a frame is cut.
const FRAME_SEALS_BYTES: usize = FRAME_BLOCKS_MAX as usize * SEAL_BYTES;

/// Number of times that a payload that looks damaged is read again before it counts as damaged.
/// More than once, since the cause that disturbed one read may disturb the next; otherwise
/// arbitrary.
const READS_AGAIN: u32 = 4;

/// Moves records, with its own buffers.
pub(crate) struct Mover<'a> {
    pub(super) drive: &'a Drive,
    pub(super) reason: MoveReason,
    /// The last decoded frame.
    frame: Vec<u8>,
    /// Payloads that were recompressed.
    target: Vec<u8>,
    /// Compresses live parts of frames like new data.
    codec: Compressor,
    /// Compresses cold frames more densely, if requested.
    dense: Option<Compressor>,
    /// A generation with the key that seals the payloads.
    generation: u64,
    /// Whether a frame was left in place because its leaf cannot be read.
    pub(super) has_left: bool,
    /// Whether a frame was left in place because it cannot be read.
    pub(super) has_unreadable: bool,
}

/// The payload of a record, read again or restored if it looked damaged.
pub(super) enum Reread {
    /// The record was found with its payload whole.
    NotNeeded,
    Whole(Vec<u8>),
    /// Its bytes are wrong.
    Damaged,
    /// The medium does not return them.
    Unreadable,
}

impl Reread {
    /// Returns the payload of the record that was `found`, if it is whole.
    pub(super) fn whole<'a>(&'a self, found: &'a Found<'_>) -> Option<&'a [u8]> {
        match self {
            Self::NotNeeded => Some(found.payload()),
            Self::Whole(payload) => Some(payload),
            Self::Damaged | Self::Unreadable => None,
        }
    }
}

/// A frame to be moved.
#[derive(Clone, Copy)]
pub(super) struct Frame<'a> {
    pub(super) lba: Lba,
    /// Generation of its segment.
    pub(super) generation: u64,
    pub(super) encoding: u8,
    pub(super) payload: &'a [u8],
    pub(super) payload_checksum: u64,
    pub(super) place: FramePlace,
    /// Whether the payload matches its checksum.
    pub(super) is_whole: bool,
}

impl Frame<'_> {
    /// Returns the payload, to be decoded.
    fn stored(&self, cipher: &Cipher) -> Result<Stored<'_>> {
        let record = Record::Data {
            lba: self.lba,
            lba_count: self.place.blocks.into(),
            source_count: 0,
            encoding: self.encoding,
            stored_bytes: len_u32(self.payload.len()),
            payload_checksum: self.payload_checksum,
        };
        Stored::of_frame(&record, self.payload, self.generation, cipher)
    }

    /// Returns a record without payload for some of its blocks, which marks their content as lost.
    /// If it contained the damaged payload, the new batch would look torn after a crash.
    fn lost(&self, index: u8, blocks: u8, sources: Vec<Source>) -> Encoded {
        assert!(blocks > 0 && index + blocks <= self.place.blocks, "blocks of the frame are lost");
        Encoded {
            lba: Lba(self.lba.0 + u64::from(index)),
            blocks,
            encoding: Encoding::Lost as u8,
            payload: Payload::Lost,
            payload_checksum: crc64(&[]),
            sources,
        }
    }
}

/// The result of encoding a frame or a part of it.
pub(super) struct Encoded {
    lba: Lba,
    blocks: u8,
    encoding: u8,
    payload: Payload,
    payload_checksum: u64,
    sources: Vec<Source>,
}

/// The location of the payload of an [`Encoded`].
enum Payload {
    /// The payload as it was read.
    Stored,
    /// No payload: it was damaged.
    Lost,
    /// In [`Mover::target`]: first byte, length.
    Target { from: usize, len: usize },
}

impl<'a> Mover<'a> {
    /// Creates a mover for a drive.
    pub(crate) fn new(drive: &'a Drive, reason: MoveReason) -> Self {
        let frame_bytes = usize::from(FRAME_BLOCKS_MAX) * BLOCK_BYTES;
        Self {
            drive,
            reason,
            frame: vec![0; frame_bytes],
            target: vec![0; Compressor::target_bytes(frame_bytes) + FRAME_SEALS_BYTES],
            codec: Compressor::new(drive.codec.get()).with_form(drive.form),
            dense: drive.options.recompress.map(Compressor::new),
            generation: Cipher::NEWEST,
            has_left: false,
            has_unreadable: false,
        }
    }

    /// Moves a record of batch `seq`, or the parts of it that are still live.
    ///
    /// # Errors
    /// `NoSpace`, `Poisoned`. An unreadable leaf of the map is not an error: the blocks that it
    /// maps stay in place.
    pub(crate) async fn move_record(&mut self, seq: SeqNo, found: &Found<'_>) -> Result<()> {
        match found.record {
            Record::Data { lba, lba_count, encoding, payload_checksum, .. } => {
                let place = FramePlace {
                    segment: found.place.segment,
                    offset: found.place.offset,
                    record_bytes: found.record.record_bytes(),
                    blocks: blocks_of_frame(lba_count.into()),
                };
                let again = self.payload_again(found).await;
                if matches!(again, Reread::Unreadable) {
                    if self.reason != MoveReason::GiveUp {
                        self.has_unreadable = true;
                        return Ok(());
                    }
                    tracing::warn!(
                        segment = %found.place.segment,
                        %lba,
                        "giving up an unreadable frame: blocks that cannot be verified without it \
                         are lost"
                    );
                }
                let whole = again.whole(found);
                let (payload, is_whole) = (whole.unwrap_or(found.payload()), whole.is_some());
                let generation = found.place.generation;
                let sources = sources_of(seq, found, self.drive.medium.cipher());
                let frame =
                    Frame { lba, generation, encoding, payload, payload_checksum, place, is_whole };
                self.move_frame(frame, &sources).await
            }
            Record::Meta { kind, number, .. } => self.touch(kind, number, found).await,
            Record::Fill { .. } | Record::Trim { .. } | Record::Open { .. } => Ok(()),
        }
    }

    /// Returns whether the damaged payload of a data record can be read again, or restored.
    pub(crate) async fn can_restore(&self, found: &Found<'_>) -> bool {
        matches!(self.payload_again(found).await, Reread::Whole(_))
    }

    /// Reads a payload that looks damaged again: the fault may have been in the read, and a copy
    /// would make it permanent. A payload that is damaged on the medium is restored from the
    /// batch's parity.
    pub(super) async fn payload_again(&self, found: &Found<'_>) -> Reread {
        let Record::Data { payload_checksum, .. } = found.record else { return Reread::NotNeeded };
        let is_whole =
            |payload: &[u8]| check_payload(payload, payload_checksum, found.place).is_ok();
        if is_whole(found.payload()) {
            return Reread::NotNeeded;
        }
        let mut outcome = Reread::Unreadable;
        let drive = self.drive;
        let RecordAddress { segment, offset, .. } = found.place;
        let from = offset + found.record.header_bytes();
        let end = offset + found.record.record_bytes();
        let whole = |payload: &[u8]| is_whole(payload).then(|| payload.to_vec());
        for _ in 0..READS_AGAIN {
            match drive.buffers.read(&*drive.medium, segment, from..end, whole).await {
                Ok(Some(payload)) => return Reread::Whole(payload),
                Ok(None) => outcome = Reread::Damaged,
                Err(_) => {}
            }
        }
        let header_bytes = found.record.header_bytes() as usize;
        let mut restored = None;
        let mut is_wanted = |record: &[u8]| {
            let payload = record.get(header_bytes..).filter(|payload| is_whole(payload));
            restored = payload.map(<[u8]>::to_vec);
            restored.is_some()
        };
        let bytes = found.record.record_bytes();
        match drive.restore_record(found.place, bytes, &mut is_wanted).await {
            // It might be restored later.
            Err(_) => Reread::Unreadable,
            Ok(_) => restored.map_or(outcome, Reread::Whole),
        }
    }

    async fn move_frame(&mut self, frame: Frame<'_>, sources: &[Source]) -> Result<()> {
        let drive = self.drive;
        let blocks = frame.place.blocks;
        loop {
            if drive.core().stays_for_snapshot(frame.place.segment, self.reason) {
                return Ok(());
            }
            if let Err(error) = drive.load_to_change(frame.lba, u64::from(blocks)).await {
                tracing::warn!(
                    lba = %frame.lba,
                    error = %error.chain(),
                    "garbage collection leaves a frame where it is"
                );
                self.has_left = true;
                return Ok(());
            }
            let pieces: Vec<LivePiece> =
                drive.core().map().live_pieces(frame.lba, frame.place).collect();
            if pieces.is_empty() {
                return Ok(());
            }
            self.take_key();
            let encoded = self.encode(&frame, sources, &pieces);
            let frames: Vec<MovedFrame<'_>> =
                encoded.iter().map(|encoded| self.moved_frame(encoded, frame.payload)).collect();
            let live: usize = pieces.iter().map(|piece| usize::from(piece.count)).sum();
            let encoded_blocks: usize = frames.iter().map(|frame| usize::from(frame.blocks)).sum();
            assert!(encoded_blocks >= live, "each live block is in a frame that is moved");
            // The worst case: the copy with a source for each block, or each live block as it is.
            let copy = RECORD_HEADER_BYTES + usize::from(blocks) * SOURCE_BYTES;
            let moved = Move {
                lba: frame.lba,
                from: frame.place,
                pieces: &pieces,
                frames: &frames,
                room_bytes: (copy + frame.payload.len())
                    .max(moved_bytes_max(live, drive.medium.cipher().seal_bytes())),
                reason: self.reason,
            };
            let attempt = |core: &mut Core| Ok(core.move_frame(&moved)?.unless_waiting());
            if drive.with_room(attempt).await? == Attempt::Done {
                return Ok(());
            }
        }
    }

    pub(super) fn moved_frame<'b>(
        &'b self,
        encoded: &'b Encoded,
        stored: &'b [u8],
    ) -> MovedFrame<'b> {
        MovedFrame {
            lba: encoded.lba,
            generation: self.generation,
            blocks: encoded.blocks,
            encoding: encoded.encoding,
            payload: match encoded.payload {
                Payload::Stored => stored,
                Payload::Lost => &[],
                Payload::Target { from, len } => self.encoded(from, len),
            },
            payload_checksum: encoded.payload_checksum,
            sources: &encoded.sources,
        }
    }

    /// Returns compressed bytes of the target.
    fn encoded(&self, from: usize, len: usize) -> &[u8] {
        let encoded = self.target.get(from..).and_then(|bytes| bytes.get(..len));
        encoded.expect("the compressed bytes lie in the target")
    }

    /// Encodes the live blocks of a frame for its next place.
    fn encode(
        &mut self,
        frame: &Frame<'_>,
        sources: &[Source],
        pieces: &[LivePiece],
    ) -> Vec<Encoded> {
        let live: usize = pieces.iter().map(|piece| usize::from(piece.count)).sum();
        assert!(live <= usize::from(frame.place.blocks), "no more of a frame is live than it has");
        let is_all = live == usize::from(frame.place.blocks);
        let sources = if is_all { sources.to_vec() } else { mark_dead(sources, pieces) };
        if !frame.is_whole {
            let salvaged = self.salvage(frame, &sources, pieces);
            return salvaged.unwrap_or_else(|| vec![frame.lost(0, frame.place.blocks, sources)]);
        }
        if is_all {
            return vec![self.copy(frame, sources)];
        }
        let is_of_chunks = |piece: &LivePiece| Self::chunks_of(frame, &piece.blocks()).is_some();
        let can_reframe = pieces.iter().all(is_of_chunks) || self.decode(frame);
        let reframed = if can_reframe { self.reframe(frame, &sources, pieces) } else { None };
        reframed.unwrap_or_else(|| vec![self.copy(frame, sources)])
    }

    /// Puts the live blocks of a damaged frame that can still be verified individually into
    /// separate frames, and the other live blocks into lost frames. Returns `None` if no block can
    /// be verified. Only the table in the map verifies them: the table in the payload may be
    /// damaged, or out of date.
    fn salvage(
        &mut self,
        frame: &Frame<'_>,
        sources: &[Source],
        pieces: &[LivePiece],
    ) -> Option<Vec<Encoded>> {
        let table = self.drive.core().map().table(frame.lba, 0, &frame.place)?;
        let live = pieces.iter().flat_map(|piece| piece.index..piece.index + piece.count);
        let live: Vec<(u8, bool)> =
            live.map(|index| (index, table.has_block(frame.payload, usize::from(index)))).collect();
        let mut parts = Vec::with_capacity(live.len());
        let mut used = 0;
        let is_run = |&(one, is_good): &(u8, bool), &(next, is_next_good): &(u8, bool)| {
            one + 1 == next && is_good == is_next_good
        };
        for run in live.chunk_by(is_run) {
            let &(index, is_good) = run.first()?;
            let count = u8::try_from(run.len()).expect("a run lies in a frame");
            let sources = cut_sources(sources, index, count);
            let blocks = index..index + count;
            let cut = if is_good { self.cut(frame, &table, blocks, used) } else { None };
            let Some((encoding, len)) = cut else {
                parts.push(frame.lost(index, count, sources));
                continue;
            };
            parts.push(Encoded {
                lba: Lba(frame.lba.0 + u64::from(index)),
                blocks: count,
                encoding,
                payload: Payload::Target { from: used, len },
                payload_checksum: crc64(self.encoded(used, len)),
                sources,
            });
            used += len;
        }
        if used == 0 {
            return None;
        }
        tracing::warn!(
            lba = %frame.lba,
            segment = %frame.place.segment,
            "a frame is damaged: kept the blocks that have their checksums"
        );
        Some(parts)
    }

    /// Puts blocks of a frame into the target starting at byte `at`: their chunks as they are, or
    /// decoded if that is shorter, or if the blocks are not whole chunks. Returns `None` if there
    /// is no space, or if a chunk is damaged.
    fn cut(
        &mut self,
        frame: &Frame<'_>,
        table: &ChunkTable,
        blocks: Range<u8>,
        at: usize,
    ) -> Option<(u8, usize)> {
        let target = self.target.get_mut(at..)?;
        let range = usize::from(blocks.start)..usize::from(blocks.end);
        if let Some((encoding, len)) = cut_chunks(table, frame.payload, range.clone(), target) {
            return Some((encoding as u8, len));
        }
        let target = target.get_mut(..range.len() * BLOCK_BYTES)?;
        let mut decompressor = self.drive.decompressor.borrow_mut();
        for (index, block) in range.zip(target.chunks_mut(BLOCK_BYTES)) {
            let chunk = table.chunk_of(index);
            let mut start = decompressor.take_scratch((index + 1 - chunk.start) * BLOCK_BYTES);
            let stored = table.bytes_of(frame.payload, index);
            decompressor.decompress_chunk(table, index, stored, &mut start).ok()?;
            block.copy_from_slice(start.split_at((index - chunk.start) * BLOCK_BYTES).1);
            decompressor.keep_scratch(start);
        }
        Some((Encoding::Store as u8, target.len()))
    }

    /// Returns the table of a frame of chunks, if `blocks` consist of chunks.
    fn chunks_of(frame: &Frame<'_>, blocks: &Range<usize>) -> Option<ChunkTable> {
        if frame.encoding != Encoding::Chunks as u8 {
            return None;
        }
        let table = ChunkTable::of(frame.payload, frame.place.blocks.into()).ok()?;
        table.has_chunks_of(blocks).then_some(table)
    }

    /// Decodes a frame into the buffer. Returns whether that was possible.
    fn decode(&mut self, frame: &Frame<'_>) -> bool {
        let cipher = self.drive.medium.cipher();
        let Ok(stored) = frame.stored(cipher) else { return false };
        let (target, _) = self.frame.split_at_mut(usize::from(frame.place.blocks) * BLOCK_BYTES);
        stored.decode(cipher, &mut self.drive.decompressor.borrow_mut(), target).is_ok()
    }

    /// Returns the offset in the target of a plaintext payload that will be sealed to the start of
    /// the target.
    fn clear_at(&self) -> usize {
        if self.drive.medium.cipher().is_plain() { 0 } else { NONCE_BYTES }
    }

    /// Seals the payload of `len` bytes at [`Mover::clear_at`] of the target, if the drive is
    /// encrypted. Returns its encoding and length in records.
    fn seal(
        &mut self,
        (lba, blocks): (Lba, u8),
        (encoding, len): (Encoding, usize),
    ) -> (u8, usize) {
        let cipher = self.drive.medium.cipher();
        let bind = |encoding| Binding::frame(lba, blocks, encoding);
        encode_sealed(&mut self.target, self.generation, cipher, |_| (encoding, len), bind)
    }

    /// Selects the key of the segment that receives moved frames for all payloads encoded
    /// afterwards.
    pub(super) fn take_key(&mut self) {
        self.generation = self.drive.core().log().sealing_generation(Stream::Moved);
    }

    /// Seals the payload of a frame again if the segment that receives it has a different key.
    /// Returns `None` if the key is the same, or the payload cannot be opened.
    fn seal_again(&mut self, frame: &Frame<'_>) -> Option<(u8, usize)> {
        let cipher = self.drive.medium.cipher();
        if cipher.is_same_key(frame.generation, self.generation) {
            return None;
        }
        let stored = frame.stored(cipher).ok()?;
        let clear = stored.open(cipher).ok()?;
        let at = self.clear_at();
        self.target.get_mut(at..at + clear.len())?.copy_from_slice(&clear);
        Some(self.seal((frame.lba, frame.place.blocks), (stored.encoding, clear.len())))
    }

    /// Encodes a whole frame as it is, or more densely.
    pub(super) fn copy(&mut self, frame: &Frame<'_>, sources: Vec<Source>) -> Encoded {
        let as_stored = Encoded {
            lba: frame.lba,
            blocks: frame.place.blocks,
            encoding: frame.encoding,
            payload: Payload::Stored,
            payload_checksum: frame.payload_checksum,
            sources,
        };
        match self.compress_denser(frame).or_else(|| self.seal_again(frame)) {
            None => as_stored,
            Some((encoding, len)) => Encoded {
                encoding,
                payload: Payload::Target { from: 0, len },
                payload_checksum: crc64(self.encoded(0, len)),
                ..as_stored
            },
        }
    }

    /// Compresses a whole frame with the dense codec. Returns encoding and length if the frame
    /// becomes small enough.
    fn compress_denser(&mut self, frame: &Frame<'_>) -> Option<(u8, usize)> {
        if self.dense.is_none() || frame.encoding & !SEALED == Encoding::Zstd as u8 {
            return None;
        }
        if !self.decode(frame) {
            return None;
        }
        let clear_at = self.clear_at();
        let (raw, _) = self.frame.split_at(usize::from(frame.place.blocks) * BLOCK_BYTES);
        let (_, target) = self.target.split_at_mut(clear_at);
        let (encoding, len) = self.dense.as_mut()?.compress(raw, target);
        let stored = len + self.drive.medium.cipher().seal_bytes();
        let is_worth_it = stored + frame.payload.len() / DENSER_DIVISOR <= frame.payload.len();
        is_worth_it.then(|| self.seal((frame.lba, frame.place.blocks), (encoding, len)))
    }

    /// Puts the live parts of the decoded frame into separate frames. Returns `None` if the frame
    /// as a whole is smaller.
    fn reframe(
        &mut self,
        frame: &Frame<'_>,
        sources: &[Source],
        pieces: &[LivePiece],
    ) -> Option<Vec<Encoded>> {
        let mut parts = Vec::with_capacity(pieces.len());
        let mut used = 0;
        let mut bytes = 0;
        for piece in pieces {
            let (encoding, len) = self.encode_piece(frame, piece, used)?;
            let sources = cut_sources(sources, piece.index, piece.count);
            bytes += RECORD_HEADER_BYTES + sources.len() * SOURCE_BYTES + len;
            parts.push(Encoded {
                lba: Lba(frame.lba.0 + u64::from(piece.index)),
                blocks: piece.count,
                encoding,
                payload: Payload::Target { from: used, len },
                payload_checksum: crc64(self.encoded(used, len)),
                sources,
            });
            used += len;
        }
        let copy = RECORD_HEADER_BYTES + sources.len() * SOURCE_BYTES + frame.payload.len();
        (bytes < copy).then_some(parts)
    }

    /// Encodes a live part of a frame to the target starting at byte `at`: whole chunks as they
    /// are, others from the decoded frame. Returns `None` if there is no space, or if the frame
    /// cannot be cut.
    fn encode_piece(
        &mut self,
        frame: &Frame<'_>,
        piece: &LivePiece,
        at: usize,
    ) -> Option<(u8, usize)> {
        let blocks = piece.blocks();
        if let Some(table) = Self::chunks_of(frame, &blocks) {
            return self.cut(frame, &table, piece.index..piece.index + piece.count, at);
        }
        let (_, target) = self.target.split_at_mut(at);
        if target.len() < Compressor::target_bytes(blocks.len() * BLOCK_BYTES) + SEAL_BYTES {
            return None;
        }
        let raw = self.frame.get(blocks.start * BLOCK_BYTES..blocks.end * BLOCK_BYTES);
        let raw = raw.expect("a piece of a frame lies in the frame");
        let lba = Lba(frame.lba.0 + u64::from(piece.index));
        let bind = |encoding| Binding::frame(lba, piece.count, encoding);
        let encode = |target: &mut [u8]| self.codec.compress(raw, target);
        Some(encode_sealed(target, self.generation, self.drive.medium.cipher(), encode, bind))
    }

    /// Marks metadata that the newest checkpoint names as dirty.
    async fn touch(&mut self, kind: MetaKind, number: u64, found: &Found<'_>) -> Result<()> {
        let place = MetadataAddress {
            segment: found.place.segment,
            offset: found.place.offset,
            bytes: found.record.record_bytes(),
        };
        match kind {
            MetaKind::Leaf => {
                while !self.drive.with_core(|core| core.touch_leaf(number, place)) {
                    if let Err(error) = self.drive.load_leaf(number).await {
                        tracing::warn!(
                            leaf = number,
                            error = %error.chain(),
                            "garbage collection leaves a leaf of the map where it is"
                        );
                        break;
                    }
                }
            }
            MetaKind::Page => {
                if let Ok(page) = u32::try_from(number) {
                    self.drive.with_core(|core| core.touch_page(page, place));
                }
            }
            MetaKind::Forwards => {
                self.drive.with_core(|core| core.rewrite_metadata(kind, number, place));
            }
            // Every checkpoint rewrites these records.
            MetaKind::PageList
            | MetaKind::Table
            | MetaKind::Dropped
            | MetaKind::Snapshots
            | MetaKind::Retained
            | MetaKind::Root => {}
        }
        Ok(())
    }
}

/// Returns the sources that a copy of this record, of batch `seq`, names: its own place, and the
/// age of its blocks.
pub(super) fn sources_of(seq: SeqNo, found: &Found<'_>, cipher: &Cipher) -> Vec<Source> {
    let (segment, offset) = (found.place.segment, found.place.offset);
    let mut sources: Vec<Source> = Vec::new();
    for source in found.sources(cipher) {
        // Adjacent blocks with the same age are now one source.
        match sources.last_mut() {
            Some(last) if last.birth == source.birth => last.blocks += source.blocks,
            _ => sources.push(Source { segment, offset, ..source }),
        }
    }
    if sources.is_empty() {
        let blocks = blocks_of_frame(found.record.lba_range().1);
        sources.push(Source { birth: seq, blocks, segment, offset });
    }
    debug_assert_eq!(
        blocks_of(&sources),
        found.record.lba_range().1,
        "each block of a frame has a source"
    );
    sources
}

/// Returns the number of blocks that sources name.
fn blocks_of(sources: &[Source]) -> u64 {
    sources.iter().map(|source| u64::from(source.blocks)).sum()
}

/// Returns the sources of a frame whose live blocks are `pieces`. Dead blocks are marked as older
/// than everything, so that a copy that carries them along is never mistaken for their newest
/// version.
pub(super) fn mark_dead(sources: &[Source], pieces: &[LivePiece]) -> Vec<Source> {
    let blocks = sources.iter().map(|source| source.blocks).sum();
    let place = *sources.first().expect("a frame that is moved has a source");
    let mut marked = Vec::with_capacity(sources.len() + 2 * pieces.len());
    let mut at = 0;
    for piece in pieces {
        if at < piece.index {
            marked.push(Source { birth: SeqNo(0), blocks: piece.index - at, ..place });
        }
        marked.extend(cut_sources(sources, piece.index, piece.count));
        at = piece.index + piece.count;
    }
    if at < blocks {
        marked.push(Source { birth: SeqNo(0), blocks: blocks - at, ..place });
    }
    assert_eq!(blocks_of(&marked), u64::from(blocks), "marking keeps the number of sources");
    marked
}

/// Returns the sources of `count` blocks of a frame starting at block `index`.
fn cut_sources(sources: &[Source], index: u8, count: u8) -> Vec<Source> {
    let (from, end) = (index, index + count);
    let mut at = 0;
    let mut cut = Vec::with_capacity(1);
    for source in sources {
        let (start, stop) = (at.max(from), (at + source.blocks).min(end));
        if start < stop {
            cut.push(Source { blocks: stop - start, ..*source });
        }
        at += source.blocks;
    }
    assert_eq!(blocks_of(&cut), u64::from(count), "each block that is cut out has a source");
    cut
}

#[cfg(test)]
mod tests {
    //! Goal: the sources of a part of a frame are the sources of its blocks.
    use super::*;
    use crate::base::SegmentId;

    #[test]
    fn dead_blocks_of_a_copy_are_older_than_everything() {
        let source = |birth, blocks| Source {
            birth: SeqNo(birth),
            blocks,
            segment: SegmentId(1),
            offset: 2,
        };
        let all = [source(7, 3), source(8, 5)];
        let piece = |index, count| LivePiece { start: 100 + u16::from(index), index, count };
        let marked = mark_dead(&all, &[piece(1, 1), piece(2, 2), piece(6, 1)]);
        let expected = [
            source(0, 1),
            source(7, 1),
            source(7, 1),
            source(8, 1),
            source(0, 2),
            source(8, 1),
            source(0, 1),
        ];
        assert_eq!(marked, expected);
        assert_eq!(mark_dead(&all, &[piece(0, 8)]), all);
    }

    #[test]
    fn sources_are_cut_to_the_blocks_that_move() {
        let source = |birth, blocks| Source {
            birth: SeqNo(birth),
            blocks,
            segment: SegmentId(1),
            offset: 2,
        };
        let all = [source(7, 3), source(8, 1), source(9, 4)];
        assert_eq!(cut_sources(&all, 0, 8), all);
        assert_eq!(cut_sources(&all, 0, 3), [source(7, 3)]);
        assert_eq!(cut_sources(&all, 2, 3), [source(7, 1), source(8, 1), source(9, 1)]);
        assert_eq!(cut_sources(&all, 7, 1), [source(9, 1)]);
    }
}

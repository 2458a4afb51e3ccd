//! Moving one record out of a segment that garbage collection empties.
//!
//! ```text
//! frame, all of it live  -> copied, still compressed (or compressed anew, denser, if asked for)
//! frame, a part live     -> the live blocks in frames of their own, if they are smaller
//! neighbours on the disk -> one larger frame, if asked for: see `joining`
//! leaf, directory page   -> marked dirty: the next checkpoint writes it elsewhere
//! anything else          -> nothing: the map or the checkpoint has it
//! ```
//!
//! A copy names its sources. Whether a block still maps to its source is looked up in the same step
//! in which it is mapped to the copy, with no await in between; recovery asks the same.

use super::Drive;
use super::admit::Purpose;
use super::joining::Joins;
use super::l2p::{FramePlace, LivePiece, Released};
use super::packing::MovedFrame;
use super::records::Found;
use super::write::release;
use crate::base::checksum::crc64;
use crate::base::units::BLOCK_BYTES;
use crate::base::{Clock, Lba, Result, SeqNo};
use crate::codec::{Compressor, Encoding};
use crate::format::{
    FRAME_BLOCKS_MAX, MetaKind, MetaPlace, RECORD_HEADER_BYTES, Record, SOURCE_BYTES, Source,
    Stream, check_payload,
};
use crate::media::Medium;

/// A frame compressed anew must be smaller by this part to be worth it: every later read pays for
/// the slower decoding.
const DENSER_DIVISOR: usize = 16;

/// How often a payload that looks damaged is read again before it is taken for damaged. More than
/// once, since what disturbed one reading may disturb the next; arbitrary beyond that.
const READS_AGAIN: u32 = 4;

/// Moves records, with its own buffers.
pub(crate) struct Mover<'a, M: Medium, C: Clock> {
    pub(super) drive: &'a Drive<M, C>,
    /// The last frame that was decoded.
    pub(super) frame: Vec<u8>,
    /// What was compressed anew.
    pub(super) target: Vec<u8>,
    /// Compresses live parts of frames like new data.
    codec: Compressor,
    /// Compresses cold frames denser, if asked for.
    pub(super) dense: Option<Compressor>,
    sources: Vec<Source>,
    /// What joining frames needs.
    pub(super) joins: Joins,
}

/// The most bytes that moving `blocks` blocks can take in a batch: each stored as it is, in a frame
/// of its own.
pub(crate) fn moved_bytes_max(blocks: usize) -> usize {
    blocks * (RECORD_HEADER_BYTES + SOURCE_BYTES + BLOCK_BYTES)
}

/// A frame to be moved.
#[derive(Clone, Copy)]
struct Frame<'a> {
    lba: Lba,
    blocks: u8,
    encoding: u8,
    payload: &'a [u8],
    payload_checksum: u64,
    place: FramePlace,
    is_whole: bool,
}

impl<'a, M: Medium, C: Clock> Mover<'a, M, C> {
    /// A mover for a drive.
    pub(crate) fn new(drive: &'a Drive<M, C>) -> Self {
        let frame_bytes = usize::from(FRAME_BLOCKS_MAX) * BLOCK_BYTES;
        Self {
            drive,
            frame: vec![0; frame_bytes],
            target: vec![0; Compressor::target_bytes(frame_bytes)],
            codec: Compressor::new(drive.codec),
            dense: drive.options.recompress.map(Compressor::new),
            sources: Vec::new(),
            joins: Joins::default(),
        }
    }

    /// Moves a record of batch `seq`, or the parts of it that are still live.
    ///
    /// # Errors
    /// `NoSpace`, `Poisoned`; a leaf of the map that cannot be read is no error: what it maps stays
    /// where it is.
    pub(crate) async fn move_record(&mut self, seq: SeqNo, found: &Found<'_>) -> Result<()> {
        match found.record {
            Record::Data { lba, lba_count, encoding, payload_checksum, .. } => {
                let place = FramePlace {
                    segment: found.place.segment.0,
                    offset: found.place.offset,
                    record_bytes: found.record.record_bytes(),
                    blocks: lba_count as u8,
                };
                self.sources = sources_of(seq, found);
                let is_whole =
                    |payload: &[u8]| check_payload(payload, payload_checksum, found.place).is_ok();
                let again = match is_whole(found.payload()) {
                    true => None,
                    false => self.read_again(found, is_whole).await,
                };
                let payload = again.as_deref().unwrap_or(found.payload());
                let frame = Frame {
                    lba,
                    blocks: lba_count as u8,
                    encoding,
                    payload,
                    payload_checksum,
                    place,
                    is_whole: is_whole(payload),
                };
                self.move_frame(frame).await
            }
            Record::Meta { kind, number, .. } => self.touch(kind, number, found).await,
            Record::Fill { .. } | Record::Trim { .. } | Record::Open { .. } => Ok(()),
        }
    }

    /// Reads a payload that looks damaged again: what was wrong may have been the reading of it,
    /// and a copy would make that last. None if it is damaged on the medium.
    async fn read_again(
        &self,
        found: &Found<'_>,
        is_whole: impl Fn(&[u8]) -> bool,
    ) -> Option<Vec<u8>> {
        let drive = self.drive;
        let unit = drive.read_unit;
        let from = found.place.offset + found.record.header_bytes();
        let end = found.place.offset + found.record.record_bytes();
        let start = from / unit * unit;
        for _ in 0..READS_AGAIN {
            let buffer = drive.buffers.take((end.next_multiple_of(unit) - start) as usize);
            let (bytes, result) = drive.medium.read(found.place.segment, start, buffer).await;
            let payload = &bytes[(from - start) as usize..(end - start) as usize];
            let payload = (result.is_ok() && is_whole(payload)).then(|| payload.to_vec());
            drive.buffers.put(bytes);
            if payload.is_some() {
                return payload;
            }
        }
        None
    }

    async fn move_frame(&mut self, frame: Frame<'_>) -> Result<()> {
        let drive = self.drive;
        let count = u64::from(frame.blocks);
        loop {
            if let Err(error) = drive.load_range(frame.lba, count).await {
                tracing::warn!("garbage collection leaves a frame: {}", error.chain());
                return Ok(());
            }
            let live = self.live_blocks(&frame);
            if live == 0 {
                return Ok(());
            }
            // The worst case, or a source for each block.
            let sources = usize::from(frame.blocks);
            let whole = RECORD_HEADER_BYTES + sources * SOURCE_BYTES + frame.payload.len();
            drive.make_room(whole.max(moved_bytes_max(live)), Purpose::Moved).await?;
            if drive.l2p.borrow().missing(frame.lba, count).is_none() {
                break;
            }
        }
        // From here on nothing awaits.
        let live = self.live_blocks(&frame);
        if live == 0 {
            return Ok(());
        }
        if live == usize::from(frame.blocks) {
            self.copy(&frame);
            return Ok(());
        }
        let pieces: Vec<LivePiece> = {
            let l2p = drive.l2p.borrow();
            l2p.live_pieces(frame.lba, frame.place).collect()
        };
        self.sources = mark_dead(&self.sources, &pieces);
        if !frame.is_whole || !self.decode(frame.encoding, frame.blocks, frame.payload) {
            self.copy(&frame);
        } else {
            self.reframe(&frame, &pieces);
        }
        Ok(())
    }

    fn live_blocks(&self, frame: &Frame<'_>) -> usize {
        let l2p = self.drive.l2p.borrow();
        let pieces = l2p.live_pieces(frame.lba, frame.place);
        pieces.map(|piece| usize::from(piece.count)).sum()
    }

    /// Decodes a frame of so many blocks into the buffer.
    pub(super) fn decode(&mut self, encoding: u8, blocks: u8, payload: &[u8]) -> bool {
        let Some(encoding) = Encoding::from_u8(encoding) else { return false };
        let target = &mut self.frame[..usize::from(blocks) * BLOCK_BYTES];
        let mut decompressor = self.drive.decompressor.borrow_mut();
        decompressor.decompress(encoding, payload, target).is_ok()
    }

    /// Copies a frame as it is, or denser.
    fn copy(&mut self, frame: &Frame<'_>) {
        let denser = self.compress_denser(frame);
        let payload = match &denser {
            Some((_, bytes, _)) => &self.target[..*bytes],
            None => frame.payload,
        };
        let moved = MovedFrame {
            lba: frame.lba,
            blocks: frame.blocks,
            encoding: denser.map_or(frame.encoding, |(encoding, _, _)| encoding as u8),
            payload,
            payload_checksum: denser.map_or(frame.payload_checksum, |(_, _, checksum)| checksum),
            sources: &self.sources,
        };
        push(self.drive, &moved);
    }

    /// Compresses a whole frame with the dense codec; gives encoding, bytes and checksum if that is
    /// worth it.
    fn compress_denser(&mut self, frame: &Frame<'_>) -> Option<(Encoding, usize, u64)> {
        if self.dense.is_none() || frame.encoding == Encoding::Zstd as u8 || !frame.is_whole {
            return None;
        }
        if !self.decode(frame.encoding, frame.blocks, frame.payload) {
            return None;
        }
        let raw = &self.frame[..usize::from(frame.blocks) * BLOCK_BYTES];
        let (encoding, bytes) = self.dense.as_mut()?.compress(raw, &mut self.target);
        let is_worth_it = bytes + frame.payload.len() / DENSER_DIVISOR <= frame.payload.len();
        is_worth_it.then(|| (encoding, bytes, crc64(&self.target[..bytes])))
    }

    /// Puts the live parts of the decoded frame into frames of their own, or copies it whole if
    /// that is smaller.
    fn reframe(&mut self, frame: &Frame<'_>, pieces: &[LivePiece]) {
        let mut encoded = Vec::with_capacity(pieces.len());
        let mut used = 0;
        let mut bytes = 0;
        for piece in pieces {
            let from = usize::from(piece.index) * BLOCK_BYTES;
            let raw = &self.frame[from..from + usize::from(piece.count) * BLOCK_BYTES];
            if self.target.len() - used < Compressor::target_bytes(raw.len()) {
                return self.copy(frame);
            }
            let (encoding, len) = self.codec.compress(raw, &mut self.target[used..]);
            let sources = cut_sources(&self.sources, piece.index, piece.count);
            bytes += RECORD_HEADER_BYTES + sources.len() * SOURCE_BYTES + len;
            encoded.push((encoding, used, len, sources));
            used += len;
        }
        if bytes >= RECORD_HEADER_BYTES + self.sources.len() * SOURCE_BYTES + frame.payload.len() {
            return self.copy(frame);
        }
        for (piece, (encoding, from, len, sources)) in pieces.iter().zip(&encoded) {
            let payload = &self.target[*from..*from + *len];
            let moved = MovedFrame {
                lba: Lba(frame.lba.0 + u64::from(piece.index)),
                blocks: piece.count,
                encoding: *encoding as u8,
                payload,
                payload_checksum: crc64(payload),
                sources,
            };
            push(self.drive, &moved);
        }
    }

    /// Marks metadata that the newest checkpoint names as dirty.
    async fn touch(&mut self, kind: MetaKind, number: u64, found: &Found<'_>) -> Result<()> {
        let place = MetaPlace {
            segment: found.place.segment,
            offset: found.place.offset,
            bytes: found.record.record_bytes(),
        };
        let l2p = &self.drive.l2p;
        match kind {
            MetaKind::Leaf => {
                while l2p.borrow().is_current_leaf(number, place) {
                    if l2p.borrow_mut().touch_leaf(number) {
                        break;
                    }
                    if let Err(error) = self.drive.load_leaf(number).await {
                        tracing::warn!("garbage collection leaves a leaf: {}", error.chain());
                        break;
                    }
                }
            }
            MetaKind::Page => {
                if let Ok(page) = u32::try_from(number)
                    && l2p.borrow().is_current_page(page, place)
                {
                    l2p.borrow_mut().touch_page(page);
                }
            }
            // Every checkpoint writes these anew.
            MetaKind::PageList | MetaKind::Table | MetaKind::Dropped | MetaKind::Root => {}
        }
        Ok(())
    }
}

/// The sources that a copy of this record, of batch `seq`, names: its own place, and the age of its
/// blocks.
pub(super) fn sources_of(seq: SeqNo, found: &Found<'_>) -> Vec<Source> {
    let (segment, offset) = (found.place.segment, found.place.offset);
    let mut sources: Vec<Source> = Vec::new();
    for source in found.record.sources(found.bytes) {
        // Neighbours of one age are one source now.
        match sources.last_mut() {
            Some(last) if last.origin == source.origin => last.blocks += source.blocks,
            _ => sources.push(Source { segment, offset, ..source }),
        }
    }
    if sources.is_empty() {
        let blocks = found.record.lba_range().1 as u8;
        sources.push(Source { origin: seq, blocks, segment, offset });
    }
    sources
}

/// Appends a moved frame, which fits, and maps the blocks that still map to its sources.
pub(super) fn push<M: Medium, C: Clock>(drive: &Drive<M, C>, moved: &MovedFrame<'_>) {
    let place = drive.log.append(Stream::Moved, |open| open.push_moved(moved));
    let origin = moved.sources.iter().map(|source| source.origin).max();
    drive.stats.moved_bytes.add(moved.record_bytes() as u64);
    let space = &mut *drive.space.borrow_mut();
    space.moved_in(place.segment, origin.unwrap_or(SeqNo(0)));
    let mut l2p = drive.l2p.borrow_mut();
    let mut index = 0;
    for source in moved.sources {
        let lba = Lba(moved.lba.0 + u64::from(index));
        let from = (source.segment.0, source.offset);
        l2p.move_blocks(lba, source.blocks.into(), from, place, index, |released, index| {
            move_live(space, &released, place, index);
        });
        index += source.blocks;
    }
}

/// Takes a piece off the live bytes of where it was, and adds it where it is now.
pub(crate) fn move_live(
    space: &mut super::space::Space,
    released: &Released,
    place: FramePlace,
    index: u8,
) {
    space.add_live(place.segment, place.share(index, released.count));
    release(space, *released);
}

/// The sources of a frame of which only `pieces` are live: dead blocks are older than everything,
/// so that a copy that carries them along never passes for the newest version of them.
fn mark_dead(sources: &[Source], pieces: &[LivePiece]) -> Vec<Source> {
    let blocks = sources.iter().map(|source| source.blocks).sum();
    let place = sources[0];
    let mut marked = Vec::with_capacity(sources.len() + 2 * pieces.len());
    let mut at = 0;
    for piece in pieces {
        if at < piece.index {
            marked.push(Source { origin: SeqNo(0), blocks: piece.index - at, ..place });
        }
        marked.extend(cut_sources(sources, piece.index, piece.count));
        at = piece.index + piece.count;
    }
    if at < blocks {
        marked.push(Source { origin: SeqNo(0), blocks: blocks - at, ..place });
    }
    marked
}

/// The sources of `count` blocks of a frame from block `index` on.
pub(super) fn cut_sources(sources: &[Source], index: u8, count: u8) -> Vec<Source> {
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
    cut
}

#[cfg(test)]
mod tests {
    //! Goal: the sources of a part of a frame are those of its blocks.
    use super::*;
    use crate::base::SegmentId;

    #[test]
    fn dead_blocks_of_a_copy_are_older_than_everything() {
        let source = |origin, blocks| Source {
            origin: SeqNo(origin),
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
        let source = |origin, blocks| Source {
            origin: SeqNo(origin),
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

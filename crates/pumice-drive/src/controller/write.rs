//! A host write.
//!
//! ```text
//! admit -> (read and merge the blocks written in part) -> room in the log
//!       -> framing -> codec, straight into the open batch -> L2P, live bytes -> acknowledge
//! ```
//!
//! From the room on nothing waits, so no other request sees a part of a write, and all its records
//! stand in one batch: after a crash a write of up to 1 MiB is all there or not at all.

use super::Drive;
use super::admit::Purpose;
use super::framing::{Span, spans};
use super::l2p::{FramePlace, Lookup, Mapping, Released};
use super::packing::worst_case_bytes;
use super::space::Space;
use crate::base::units::BLOCK_BYTES;
use crate::base::{Clock, Lba, Result, SegmentId};
use crate::format::{RECORD_HEADER_BYTES, Record, Stream};
use crate::media::Medium;

/// A host write of up to this many bytes is atomic; a longer one is cut, between blocks, into
/// pieces of at most as many.
pub const ATOMIC_WRITE_BYTES: usize = 1 << 20;

/// The blocks that a write covers only in part, merged with what they held.
struct Edge {
    lba: Lba,
    /// What the block mapped to when it was read.
    before: Version,
    block: Box<[u8; BLOCK_BYTES]>,
}

/// What a block maps to, and in which use of its segment: the same again means the same content. A
/// pin would do as well, but a write waits for room with this in hand, and nothing may keep a
/// segment from being given back that makes the room.
type Version = (Mapping, Option<u64>);

impl<M: Medium, C: Clock> Drive<M, C> {
    /// Writes `data` at byte `offset`; no alignment needed. Visible to reads, and ordered among
    /// the writes, when this returns; durable after the next [`Drive::flush`], or at once with
    /// `fua`.
    ///
    /// # Errors
    /// `InvalidInput`, `ReadOnly`, `Poisoned`; `NoSpace` when the log is full; `Corrupt` or
    /// `Medium` if a block written in part cannot be read. Up to 1 MiB, nothing is written on an
    /// error; of a longer write the pieces before the error are.
    pub async fn write(&self, offset: u64, data: &[u8], fua: bool) -> Result<()> {
        self.check_writable(offset, data.len() as u64)?;
        self.stats.writes.add(1);
        let mut at = offset;
        let mut rest = data;
        while !rest.is_empty() {
            let (piece, later) = rest.split_at(piece_bytes(at, rest.len()));
            self.write_piece(at, piece).await?;
            at += piece.len() as u64;
            rest = later;
        }
        if fua { self.flush().await } else { Ok(()) }
    }

    /// Whether a write of `len` bytes at `offset` would complete without waiting for the medium.
    pub fn write_is_ready(&self, offset: u64, len: usize) -> bool {
        let block = BLOCK_BYTES as u64;
        len <= ATOMIC_WRITE_BYTES
            && offset.is_multiple_of(block)
            && len.is_multiple_of(BLOCK_BYTES)
            && self.has_room(worst_case_bytes(len / BLOCK_BYTES), Purpose::Data)
            && self.is_resident(Lba(offset / block), (len / BLOCK_BYTES) as u64)
    }

    fn is_resident(&self, lba: Lba, count: u64) -> bool {
        self.l2p.borrow().missing(lba, count).is_none()
    }

    async fn write_piece(&self, offset: u64, data: &[u8]) -> Result<()> {
        let block = BLOCK_BYTES as u64;
        if offset.is_multiple_of(block) && data.len().is_multiple_of(BLOCK_BYTES) {
            let (lba, count) = (Lba(offset / block), data.len() / BLOCK_BYTES);
            let mut kept = None;
            loop {
                self.load_range(lba, count as u64).await?;
                self.make_room(worst_case_bytes(count), Purpose::Data).await?;
                if self.is_resident(lba, count as u64) {
                    break;
                }
                if kept.is_none() {
                    kept = Some(self.keep_leaves(lba, count as u64).await);
                }
            }
            self.append_blocks(lba, data);
        } else {
            self.write_unaligned(offset, data).await?;
        }
        self.stats.host_bytes.add(data.len() as u64);
        Ok(())
    }

    /// Merges the edges with what is stored. If a block changed while it was being read or while
    /// the log made room, it is read again: the loser of such a race merges with the winner.
    async fn write_unaligned(&self, offset: u64, data: &[u8]) -> Result<()> {
        let block = BLOCK_BYTES as u64;
        let end = offset + data.len() as u64;
        let head_bytes = ((block - offset % block) % block).min(data.len() as u64) as usize;
        let (head_data, rest) = data.split_at(head_bytes);
        let (body, tail_data) = rest.split_at(rest.len() / BLOCK_BYTES * BLOCK_BYTES);
        let blocks = (end.div_ceil(block) - offset / block) as usize;
        let lba = Lba(offset / block);
        let mut kept = None;
        loop {
            let head = self.merged_edge(offset, head_data).await?;
            let tail = self.merged_edge(end - tail_data.len() as u64, tail_data).await?;
            self.load_range(lba, blocks as u64).await?;
            self.make_room(worst_case_bytes(blocks), Purpose::Data).await?;
            let unchanged = |edge: &Edge| self.version(edge.lba) == Some(edge.before);
            if !self.is_resident(lba, blocks as u64) || !head.iter().chain(&tail).all(unchanged) {
                if kept.is_none() {
                    kept = Some(self.keep_leaves(lba, blocks as u64).await);
                }
                continue;
            }
            if let Some(edge) = head {
                self.append_blocks(edge.lba, &edge.block[..]);
            }
            self.append_blocks(Lba(offset.div_ceil(block)), body);
            if let Some(edge) = tail {
                self.append_blocks(edge.lba, &edge.block[..]);
            }
            return Ok(());
        }
    }

    /// The block around `data`, which lies within one block at `offset`; nothing for no data.
    async fn merged_edge(&self, offset: u64, data: &[u8]) -> Result<Option<Edge>> {
        if data.is_empty() {
            return Ok(None);
        }
        let lba = Lba(offset / BLOCK_BYTES as u64);
        let before = loop {
            match self.version(lba) {
                Some(before) => break before,
                None => self.load_range(lba, 1).await?,
            }
        };
        let mut block = Box::new([0; BLOCK_BYTES]);
        self.read_blocks(lba, &mut block[..]).await?;
        let from = (offset % BLOCK_BYTES as u64) as usize;
        block[from..from + data.len()].copy_from_slice(data);
        self.stats.merged_blocks.add(1);
        Ok(Some(Edge { lba, before, block }))
    }

    /// What a block maps to, if its leaf is in memory.
    fn version(&self, lba: Lba) -> Option<Version> {
        let Lookup::Run(mapping, _) = self.l2p.borrow().lookup(lba) else { return None };
        let generation = match mapping {
            Mapping::Frame { place, .. } => {
                Some(self.space.borrow().generation(SegmentId(place.segment)))
            }
            _ => None,
        };
        Some((mapping, generation))
    }

    /// Appends whole blocks to the open batch, which has the room, and maps them.
    pub(crate) fn append_blocks(&self, lba: Lba, bytes: &[u8]) {
        let mut compressor = self.compressor.borrow_mut();
        for span in spans(lba, bytes, self.frame_blocks) {
            match span {
                Span::Data { lba, bytes } => {
                    let place = self
                        .log
                        .append(Stream::Host, |open| open.push_frame(lba, bytes, &mut compressor));
                    self.stats.frame_bytes.add(u64::from(place.record_bytes));
                    self.map_frame(lba, place);
                }
                Span::Fill { lba, count, byte } => {
                    self.stats.fill_blocks.add(count);
                    self.append_range(&Record::Fill { lba, lba_count: count, byte });
                }
            }
        }
    }

    fn map_frame(&self, lba: Lba, place: FramePlace) {
        let space = &mut *self.space.borrow_mut();
        space.add_live(place.segment, place.record_bytes);
        self.l2p.borrow_mut().map_frame(lba, place, |released| release(space, released));
    }

    /// Appends a fill or a trim to the open batch, which has the room, and maps it.
    pub(crate) fn append_range(&self, record: &Record) {
        self.log.append(Stream::Host, |open| open.push_range(record));
        self.stats.frame_bytes.add(RECORD_HEADER_BYTES as u64);
        let (lba, count) = record.lba_range();
        let mapping = match *record {
            Record::Fill { byte, .. } => Mapping::Fill(byte),
            _ => Mapping::Hole,
        };
        let space = &mut *self.space.borrow_mut();
        let mut l2p = self.l2p.borrow_mut();
        l2p.map_uniform(lba, count, mapping, |released| release(space, released));
    }
}

/// Bytes of the first atomic piece of a write of `len` bytes at `offset`. It ends between blocks
/// unless it is the last, so that no block belongs to two pieces.
fn piece_bytes(offset: u64, len: usize) -> usize {
    if len <= ATOMIC_WRITE_BYTES {
        return len;
    }
    ATOMIC_WRITE_BYTES - (offset % BLOCK_BYTES as u64) as usize
}

/// Takes a dead piece of a frame off its segment's live bytes.
pub(crate) fn release(space: &mut Space, released: Released) {
    let bytes = released.place.share(released.index, released.count);
    space.release(released.place.segment, bytes);
}

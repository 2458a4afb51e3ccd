//! A host write.
//!
//! ```text
//! check -> (read and merge partly written blocks) -> leaves of the map in memory
//!       -> core: space -> framing -> codec, directly into the open batch -> map, live bytes
//!       -> acknowledge
//! ```
//!
//! With [`Workers`], frames that justify it are compressed on other threads first, and the core
//! copies them into the open batch.
//!
//! The core does its part in one call, so no other request sees a part of a write. All its records
//! are in one batch or, at the end of a segment, in two that count only together: after a crash a
//! write of up to 1 MiB is complete or absent.

use super::super::core::{Attempt, BlockWrite, Core, Edge};
use super::super::drive::Drive;
use super::super::log::framing::{Span, spans};
use super::super::log::packing::ATOMIC_WRITE_BYTES;
use crate::base::units::{BLOCK_BYTES, len_usize};
use crate::base::{Lba, Result};
use crate::codec::{Coding, CompressedFrames, Encoding, Workers, fill_byte};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// A partly written block, merged with its previous content.
struct MergedEdge {
    edge: Edge,
    block: Box<[u8; BLOCK_BYTES]>,
}

/// The content of a write that does not consist of whole blocks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    /// Data that the host sent.
    Data,
    /// Zeroes that stay mapped.
    Zeroes,
    /// Zeroes whose blocks become holes.
    Holes,
}

impl Drive {
    /// Writes `data` at byte `offset`, which may have any alignment. The write is visible to reads,
    /// and ordered among the writes, when this returns, and durable after the next
    /// [`Drive::flush`].
    ///
    /// # Errors
    /// `InvalidInput`, `ReadOnly`, `Poisoned`; `NoSpace` when the log is full; `Corrupt` or
    /// `Medium` if a partly written block cannot be read. On an error, a write of up to 1 MiB has
    /// written nothing; of a longer write, the pieces before the error are written.
    pub async fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.with_core(|core| {
            core.check_writable(offset, data.len() as u64)?;
            core.counters_mut().writes.add(1);
            Ok(())
        })?;
        let mut at = offset;
        let mut rest = data;
        while !rest.is_empty() {
            let (piece, later) = rest.split_at(piece_bytes(at, rest.len()));
            assert!(!piece.is_empty(), "each piece advances the write");
            self.write_piece(at, piece).await?;
            at += piece.len() as u64;
            rest = later;
        }
        Ok(())
    }

    /// Writes like [`Drive::write`], and returns when the data is durable, as a host expects of a
    /// write with FUA.
    ///
    /// # Errors
    /// The errors of [`Drive::write`] and [`Drive::flush`].
    pub async fn write_durable(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.write(offset, data).await?;
        self.flush().await
    }

    /// Carries out a write like [`Drive::write`], if this requires no wait: whole blocks, up to 1
    /// MiB, with space in the log, the map's leaves in memory, and no work for other threads.
    /// Returns `None` if the write must wait; nothing has been written.
    pub fn try_write(&self, offset: u64, data: &[u8]) -> Option<Result<()>> {
        let is_whole = offset.is_multiple_of(BLOCK) && data.len().is_multiple_of(BLOCK_BYTES);
        if !is_whole || data.len() > ATOMIC_WRITE_BYTES || self.workers_for(data).is_some() {
            return None;
        }
        let parts = [data];
        let write = whole_blocks(offset, &parts);
        let compressor = &mut *self.compressor.borrow_mut();
        self.with_core(|core| {
            let attempt = core.check_writable(offset, data.len() as u64).and_then(|()| {
                core.append_write(&write, |raw, target| compressor.compress(raw, target))
            });
            if matches!(attempt, Ok(Attempt::Wait | Attempt::Changed)) {
                return None;
            }
            core.counters_mut().writes.add(1);
            Some(attempt.map(|_| ()))
        })
    }

    async fn write_piece(&self, offset: u64, data: &[u8]) -> Result<()> {
        if !offset.is_multiple_of(BLOCK) || !data.len().is_multiple_of(BLOCK_BYTES) {
            return self.write_unaligned(offset, data, Content::Data).await;
        }
        let parts = [data];
        let write = whole_blocks(offset, &parts);
        let compressed = self.compress_aside(&write, data).await;
        let mut kept = None;
        loop {
            self.load_to_change(write.lba, write.blocks as u64).await?;
            if self.append_write(&write, compressed.as_ref()).await? {
                return Ok(());
            }
            if kept.is_none() {
                kept = Some(self.keep_leaves(write.lba, write.blocks as u64).await);
            }
        }
    }

    /// Writes the blocks of a frame that is already encoded: `payload` decodes to `raw`. If this
    /// drive divides frames differently, its own codec encodes them. Ordered and durable like a
    /// write.
    ///
    /// # Errors
    /// The errors of [`Drive::write`]; nothing has been written.
    pub(in super::super) async fn write_encoded(
        &self,
        lba: Lba,
        raw: &[u8],
        encoding: Encoding,
        payload: &[u8],
    ) -> Result<()> {
        let offset = lba.0 * BLOCK;
        self.with_core(|core| {
            core.check_writable(offset, raw.len() as u64)?;
            core.counters_mut().writes.add(1);
            Ok(())
        })?;
        let parts = [raw];
        let write = whole_blocks(offset, &parts);
        let mut kept = None;
        loop {
            self.load_to_change(write.lba, write.blocks as u64).await?;
            let append = |core: &mut Core| {
                let compressor = &mut *self.compressor.borrow_mut();
                let attempt = core.append_write(&write, |bytes, target| {
                    if bytes.len() < raw.len() {
                        return compressor.compress(bytes, target);
                    }
                    copy_next(&mut [(raw.len(), encoding, payload)].into_iter(), bytes, target)
                });
                Ok(attempt?.unless_waiting())
            };
            if self.with_room(append).await? == Attempt::Done {
                return Ok(());
            }
            if kept.is_none() {
                kept = Some(self.keep_leaves(write.lba, write.blocks as u64).await);
            }
        }
    }

    /// Merges the edges with the stored blocks. If a block changed while it was being read or while
    /// the write waited for space in the log, it is read again: the loser of such a race merges
    /// with the winner.
    pub(super) async fn write_unaligned(
        &self,
        offset: u64,
        data: &[u8],
        content: Content,
    ) -> Result<()> {
        let end = offset + data.len() as u64;
        let head_bytes = len_usize((BLOCK - offset % BLOCK) % BLOCK).min(data.len());
        let (head_data, rest) = data.split_at(head_bytes);
        let (body, tail_data) = rest.split_at(rest.len() / BLOCK_BYTES * BLOCK_BYTES);
        let blocks = len_usize(end.div_ceil(BLOCK) - offset / BLOCK);
        assert!(tail_data.len() < BLOCK_BYTES, "an edge covers a block in part");
        let lba = Lba(offset / BLOCK);
        let mut kept = None;
        loop {
            let head = self.merged_edge(offset, head_data).await?;
            let tail = self.merged_edge(end - tail_data.len() as u64, tail_data).await?;
            self.load_to_change(lba, blocks as u64).await?;
            let merged = [&head, &tail].into_iter().flatten();
            let edges: Vec<Edge> = merged.map(|merged| merged.edge).collect();
            let parts = [bytes_of(&head), body, bytes_of(&tail)];
            let host_bytes = match content {
                Content::Data => data.len(),
                Content::Zeroes | Content::Holes => head_data.len() + tail_data.len(),
            };
            let makes_holes = content == Content::Holes;
            let write =
                BlockWrite { lba, blocks, parts: &parts, edges: &edges, host_bytes, makes_holes };
            if self.append_write(&write, None).await? {
                return Ok(());
            }
            if kept.is_none() {
                kept = Some(self.keep_leaves(lba, blocks as u64).await);
            }
        }
    }

    /// Returns the threads that should compress a write, if any should.
    fn workers_for(&self, data: &[u8]) -> Option<&Workers> {
        let workers = self.workers.get()?;
        let is_wanted = workers.can_take(self.codec.get(), data.len())
            && self.compressor.borrow().is_trying()
            && data.chunks_exact(BLOCK_BYTES).any(|block| fill_byte(block).is_none());
        is_wanted.then_some(workers)
    }

    /// Compresses the frames of a write of whole blocks on other threads, if that is worthwhile.
    async fn compress_aside(
        &self,
        write: &BlockWrite<'_>,
        data: &[u8],
    ) -> Option<CompressedFrames> {
        let workers = self.workers_for(data)?;
        let frame_blocks = self.core().superblock().frame_blocks;
        let frames = spans(write.lba, data, frame_blocks).filter_map(|span| match span {
            Span::Data { bytes, .. } => Some(bytes),
            Span::Fill { .. } => None,
        });
        let frames: Vec<_> = frames.collect();
        let coding = Coding { codec: self.codec.get(), form: self.form };
        let compressed = workers.compress(&*self.clock, coding, &frames).await;
        self.compressor.borrow_mut().note(compressed.iter().map(|(_, encoding, _)| encoding));
        Some(compressed)
    }

    /// Waits for space and appends a write, whose frames may be `compressed` already. Returns false
    /// if a leaf was evicted, or an edge changed, during the wait.
    async fn append_write(
        &self,
        write: &BlockWrite<'_>,
        compressed: Option<&CompressedFrames>,
    ) -> Result<bool> {
        let append = |core: &mut Core| {
            let attempt = match compressed {
                Some(frames) => {
                    let mut payloads = frames.iter();
                    core.append_write(write, |raw, target| copy_next(&mut payloads, raw, target))
                }
                None => {
                    let compressor = &mut *self.compressor.borrow_mut();
                    core.append_write(write, |raw, target| compressor.compress(raw, target))
                }
            };
            Ok(attempt?.unless_waiting())
        };
        Ok(self.with_room(append).await? == Attempt::Done)
    }

    /// Reads the block around `data`, which is within one block at `offset`, and merges the two.
    /// Returns `None` for no data.
    async fn merged_edge(&self, offset: u64, data: &[u8]) -> Result<Option<MergedEdge>> {
        if data.is_empty() {
            return Ok(None);
        }
        let lba = Lba(offset / BLOCK);
        let before = loop {
            let version = self.core().version(lba);
            match version {
                Some(before) => break before,
                None => self.load_range(lba, 1).await?,
            }
        };
        let mut block = Box::new([0; BLOCK_BYTES]);
        self.read_blocks(lba, &mut block[..]).await?;
        let from = len_usize(offset % BLOCK);
        let target = block.get_mut(from..from + data.len());
        target.expect("an edge lies within one block").copy_from_slice(data);
        self.with_core(|core| core.counters_mut().merged_blocks.add(1));
        Ok(Some(MergedEdge { edge: Edge { lba, before }, block }))
    }
}

/// Copies the payload of the next frame, whose bytes are `raw`, to the start of `target`.
fn copy_next<'a>(
    payloads: &mut impl Iterator<Item = (usize, Encoding, &'a [u8])>,
    raw: &[u8],
    target: &mut [u8],
) -> (Encoding, usize) {
    let (raw_bytes, encoding, payload) = payloads.next().expect("each frame was compressed");
    assert_eq!(raw_bytes, raw.len(), "frames are appended in the order they were compressed in");
    let (target, _) = target.split_at_mut(payload.len());
    target.copy_from_slice(payload);
    (encoding, payload.len())
}

fn bytes_of(edge: &Option<MergedEdge>) -> &[u8] {
    edge.as_ref().map_or(&[], |edge| &edge.block[..])
}

/// Returns the write of one part of whole blocks.
fn whole_blocks<'a>(offset: u64, part: &'a [&'a [u8]; 1]) -> BlockWrite<'a> {
    let [bytes] = part;
    let host_bytes = bytes.len();
    assert!(
        offset.is_multiple_of(BLOCK) && host_bytes.is_multiple_of(BLOCK_BYTES),
        "a write without edges is whole blocks"
    );
    let (lba, blocks) = (Lba(offset / BLOCK), host_bytes / BLOCK_BYTES);
    BlockWrite { lba, blocks, parts: part, edges: &[], host_bytes, makes_holes: false }
}

/// Returns the bytes of the first atomic piece of a write of `len` bytes at `offset`. The piece
/// ends between blocks unless it is the last, so that no block belongs to two pieces.
fn piece_bytes(offset: u64, len: usize) -> usize {
    assert!(len > 0, "a write has a byte");
    if len <= ATOMIC_WRITE_BYTES {
        return len;
    }
    ATOMIC_WRITE_BYTES - (offset % BLOCK) as usize
}

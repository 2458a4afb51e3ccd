//! Reading single blocks of frames of chunks: only the chunk of the block is read from the medium
//! and decoded, not the frame.
//!
//! ```text
//! table in the map?  -> read the chunks of the wanted blocks -> checksum of each -> decode -> copy
//!             no, or a chunk is damaged -> the whole frame; see `read`
//! ```
//!
//! The map has the table of each frame with several live blocks, except for frames written by a
//! program without support for tables: the first short read of such a frame leaves its table in
//! memory. Only short reads that do not continue an earlier one use tables. A sequential reader
//! needs the rest of the frame next, and a long read most of it.

use std::ops::Range;

use super::super::core::table_of;
use super::super::drive::Drive;
use super::super::drive::read_cache::FrameKey;
use super::read::Piece;
use crate::base::units::{BLOCK_BYTES, len_u32};
use crate::base::{ErrorKind, Result, ensure};
use crate::codec::{ChunkTable, Decompressor, Encoding};

impl Drive {
    /// Returns the table with which a piece is read without the rest of its frame. Returns `None`
    /// if the table is not known, or if reading the frame is more useful.
    pub(super) fn table_for(&self, piece: &Piece) -> Option<ChunkTable> {
        if !piece.is_alone || piece.is_whole_frame() {
            return None;
        }
        let table = self.table_of(piece)?;
        (!self.cache.has(piece.decoded_frame())).then_some(table)
    }

    fn table_of(&self, piece: &Piece) -> Option<ChunkTable> {
        self.core().map().table(piece.lba, piece.index, &piece.place)
    }

    /// Reads a piece of a damaged frame, if the chunks of its blocks are intact and their table is
    /// known. Returns false otherwise.
    pub(super) async fn read_remains(&self, piece: &Piece, out: &mut [u8]) -> bool {
        // Otherwise reading the chunks alone was tried before.
        match self.table_of(piece).filter(|_| !piece.is_alone) {
            Some(table) => Box::pin(self.read_part(piece, &table, out)).await,
            None => false,
        }
    }

    /// Reads a piece of a frame with this table. Returns false if that fails: reading the whole
    /// frame then finds the damage, and may restore the frame.
    pub(super) async fn read_part(
        &self,
        piece: &Piece,
        table: &ChunkTable,
        out: &mut [u8],
    ) -> bool {
        let place = piece.place;
        let wanted = piece.wanted_blocks();
        let range = table.range(wanted.start).start..table.range(wanted.end - 1).end;
        let headers = place.record_bytes.checked_sub(len_u32(table.payload_bytes()));
        // The frame is shorter only in a damaged map.
        let Some(headers) = headers else { return false };
        let payload_at = place.offset + headers;
        let unit = self.read_unit;
        let start = (payload_at + len_u32(range.start)) / unit * unit;
        let end = (payload_at + len_u32(range.end)).next_multiple_of(unit);
        let (buffer, in_flight) = self.buffers.take((end - start) as usize).await;
        self.with_core(|core| core.counters_mut().media_read_bytes.add(u64::from(end - start)));
        let (bytes, result) = self.medium.read(place.segment, start, buffer).await;
        let (_, chunks) = bytes.split_at((payload_at + len_u32(range.start) - start) as usize);
        let stored = |chunk: Range<usize>| {
            let stored = chunks.get(chunk.start - range.start..chunk.end - range.start);
            stored.expect("a read covers the chunks of the wanted blocks")
        };
        let decoded = result.and_then(|()| self.decode_chunks(piece, table, out, stored));
        self.buffers.put(bytes, in_flight);
        decoded
            .inspect_err(|error| {
                // The subsequent read of the whole frame reports the error.
                tracing::debug!(
                    lba = %piece.lba,
                    segment = %place.segment,
                    error = %error.chain(),
                    "cannot read a chunk without its frame"
                );
            })
            .is_ok()
    }

    /// Decodes the wanted part of an unsealed payload, which matches its checksum, without the rest
    /// of the frame if possible. If the read cache stores the blocks, the map stores the table of
    /// the frame.
    pub(super) fn decode_alone(
        &self,
        piece: &Piece,
        encoding: Encoding,
        payload: &[u8],
        out: &mut [u8],
    ) -> Result<()> {
        if encoding == Encoding::Chunks {
            let table = ChunkTable::of(payload, piece.place.blocks.into())?;
            let stored = |chunk: Range<usize>| payload.get(chunk).unwrap_or_default();
            self.decode_chunks(piece, &table, out, stored)?;
        } else {
            let frame = 0..usize::from(piece.place.blocks);
            let bytes = frame.len() * BLOCK_BYTES;
            self.decode_part(piece, frame, out, |decompressor, target| {
                decompressor.decompress_start(encoding, payload, bytes, target)
            })?;
        }
        if piece.is_kept && self.core().superblock().has_chunks {
            let FrameKey { lba, .. } = piece.frame_key();
            if let Some(table) = table_of(piece.place.blocks, encoding as u8, payload) {
                self.with_core(|core| core.note_table(lba, piece.place, Some(table)));
            }
        }
        Ok(())
    }

    /// Decodes the wanted part of a frame from its chunks; `stored` returns the bytes of a range of
    /// the payload.
    fn decode_chunks<'a>(
        &self,
        piece: &Piece,
        table: &ChunkTable,
        out: &mut [u8],
        stored: impl Fn(Range<usize>) -> &'a [u8],
    ) -> Result<()> {
        let wanted = piece.wanted_blocks();
        let (mut next, mut out) = (wanted.start, out);
        while next < wanted.end {
            let chunk = table.chunk_of(next);
            ensure(!chunk.is_empty(), ErrorKind::Corrupt, "a frame has too few blocks")?;
            let (here, rest) = out.split_at_mut(piece.bytes_in(&chunk).len());
            let stored = stored(table.range(next));
            self.decode_part(piece, chunk.clone(), here, |decompressor, target| {
                decompressor.decompress_chunk(table, next, stored, target)
            })?;
            (next, out) = (chunk.end, rest);
        }
        assert!(out.is_empty(), "the wanted parts of blocks fill the piece");
        Ok(())
    }

    /// Decodes the wanted bytes of some blocks of a frame; `decode` decodes the start of these
    /// blocks.
    fn decode_part(
        &self,
        piece: &Piece,
        blocks: Range<usize>,
        out: &mut [u8],
        decode: impl FnOnce(&mut Decompressor, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let decompressor = &mut *self.decompressor.borrow_mut();
        let wanted = piece.wanted_blocks();
        let kept = wanted.start.max(blocks.start)..wanted.end.min(blocks.end);
        let bytes = (kept.end - blocks.start) * BLOCK_BYTES;
        if out.len() == bytes {
            decode(decompressor, out)?;
            self.keep_blocks(piece, kept, out);
            return Ok(());
        }
        let mut start = decompressor.take_scratch(bytes);
        let decoded = decode(decompressor, &mut start);
        if decoded.is_ok() {
            let base = blocks.start * BLOCK_BYTES;
            let Range { start: from, end: to } = piece.bytes_in(&blocks);
            out.copy_from_slice(start.get(from - base..to - base).expect("a part of the blocks"));
            let (_, first_kept) = start.split_at((kept.start - blocks.start) * BLOCK_BYTES);
            self.keep_blocks(piece, kept, first_kept);
        }
        decompressor.keep_scratch(start);
        decoded
    }
}

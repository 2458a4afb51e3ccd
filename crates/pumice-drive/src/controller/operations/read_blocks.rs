//! Reading single blocks of frames of independent blocks: only the block is read from the medium
//! and decoded, not the frame.
//!
//! ```text
//! table in the map?  -> read the wanted blocks -> checksum of each -> decode -> copy
//!             no, or a block is damaged -> the whole frame; see `read`
//! ```
//!
//! The map has the table of each frame with several live blocks, except for frames written by a
//! program without support for tables: the first short read of such a frame leaves its table in
//! memory. Only short reads that do not continue an earlier one use tables. A sequential reader
//! needs the rest of the frame next, and a long read most of it.

use super::super::drive::Drive;
use super::super::drive::read_cache::FrameKey;
use super::read::Piece;
use crate::base::Result;
use crate::base::units::{BLOCK_BYTES, len_u32};
use crate::codec::{BlockTable, Decompressor};

impl Drive {
    /// Returns the table with which a piece is read without the rest of its frame. Returns `None`
    /// if the table is not known, or if reading the frame is more useful.
    pub(super) fn table_for(&self, piece: &Piece) -> Option<BlockTable> {
        if !piece.is_alone || piece.is_whole_frame() {
            return None;
        }
        let table = self.table_of(piece)?;
        (!self.cache.has(piece.decoded_frame())).then_some(table)
    }

    fn table_of(&self, piece: &Piece) -> Option<BlockTable> {
        self.core().map().table(piece.lba, piece.index, &piece.place)
    }

    /// Reads a piece of a damaged frame, if the blocks of the piece are intact and their table is
    /// known. Returns false otherwise.
    pub(super) async fn read_remains(&self, piece: &Piece, out: &mut [u8]) -> bool {
        // Otherwise reading the blocks alone was tried before.
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
        table: &BlockTable,
        out: &mut [u8],
    ) -> bool {
        let place = piece.place;
        let mut ranges = piece.blocks_wanted().map(|(block, _)| table.range(block));
        let Some(first) = ranges.next() else { return false };
        let last = ranges.last().unwrap_or_else(|| first.clone());
        let headers = place.record_bytes.checked_sub(len_u32(table.payload_bytes()));
        // The frame is shorter only in a damaged map.
        let Some(headers) = headers else { return false };
        let payload_at = place.offset + headers;
        let unit = self.read_unit;
        let start = (payload_at + len_u32(first.start)) / unit * unit;
        let end = (payload_at + len_u32(last.end)).next_multiple_of(unit);
        let (buffer, in_flight) = self.buffers.take((end - start) as usize).await;
        self.with_core(|core| core.counters_mut().media_read_bytes.add(u64::from(end - start)));
        let (bytes, result) = self.medium.read(place.segment, start, buffer).await;
        let (_, payload) = bytes.split_at((payload_at + len_u32(first.start) - start) as usize);
        let decode = |decompressor: &mut Decompressor, block, target: &mut [u8]| {
            let range = table.range(block);
            let stored = payload.get(range.start - first.start..range.end - first.start);
            let stored = stored.expect("a read covers the blocks that are wanted");
            decompressor.decompress_stored(table, block, stored, target)
        };
        let decoded = result.and_then(|()| self.decode_blocks(piece, out, decode));
        self.buffers.put(bytes, in_flight);
        decoded
            .inspect_err(|error| {
                // The subsequent read of the whole frame reports the error.
                tracing::debug!(
                    lba = %piece.lba,
                    segment = %place.segment,
                    error = %error.chain(),
                    "cannot read a block without its frame"
                );
            })
            .is_ok()
    }

    /// Decodes the wanted part of a payload of independent blocks, which matches its checksum. If
    /// the read cache stores its blocks, the map stores their table.
    pub(super) fn decode_payload(
        &self,
        piece: &Piece,
        payload: &[u8],
        out: &mut [u8],
    ) -> Result<()> {
        let table = BlockTable::of(payload, piece.place.blocks.into())?;
        self.decode_blocks(piece, out, |decompressor, block, target| {
            decompressor.decompress_block(&table, payload, block, target)
        })?;
        if piece.is_kept {
            let FrameKey { lba, .. } = piece.frame_key();
            self.with_core(|core| core.note_table(lba, piece.place, Some(table)));
        }
        Ok(())
    }

    fn decode_blocks(
        &self,
        piece: &Piece,
        out: &mut [u8],
        decode: impl Fn(&mut Decompressor, usize, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let decompressor = &mut *self.decompressor.borrow_mut();
        let keep = |block, bytes: &[u8]| {
            if piece.is_kept {
                self.read_cache.insert(piece.key_of(block), bytes);
            }
        };
        let mut out = out;
        for (block, part) in piece.blocks_wanted() {
            let (here, rest) = out.split_at_mut(part.len());
            if part.len() == BLOCK_BYTES {
                decode(decompressor, block, here)?;
                keep(block, here);
            } else {
                let mut whole = [0; BLOCK_BYTES];
                decode(decompressor, block, &mut whole)?;
                here.copy_from_slice(whole.get(part).expect("a part of a block"));
                keep(block, &whole);
            }
            out = rest;
        }
        assert!(out.is_empty(), "the wanted parts of blocks fill the piece");
        Ok(())
    }
}

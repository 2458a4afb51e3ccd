//! A host read.
//!
//! ```text
//! L2P runs -> holes and fills: no I/O; holes of a clone: a read of its origin
//!          -> frames still in a batch buffer: decoded from there
//!          -> blocks in the read cache: copied from there
//!          -> chunks of a frame with a table: read alone, see `read_chunks`
//!          -> frames on the medium: adjacent ones in one media read, several reads at once
//!             -> checksum -> decode -> copy
//! ```
//!
//! A frame that fails its checksum, or cannot be read, is restored from its batch's parity if it
//! has one. Otherwise only reads of its own blocks fail, and no retry returns a wrong result.

use std::ops::Range;

use futures_util::stream::{StreamExt, TryStreamExt, iter};

use super::super::core::Located;
use super::super::drive::Drive;
use super::super::drive::frame_cache::{Load, Lookup, Wanted};
use super::super::drive::read_cache::{BlockKey, FrameKey};
use super::super::log::buffers::COALESCED_BYTES_MAX;
use super::super::log::payload::Stored;
use super::super::map::Mapping;
use super::super::place::{FramePlace, blocks_of_frame};
use crate::base::units::{BLOCK_BYTES, len_usize};
use crate::base::{Error, ErrorKind, Lba, Result};
use crate::codec::Encoding;
use crate::crypt::Cipher;
use crate::format::{Record, RecordAddress, check_payload};

/// Frames with at most this many bytes between them are read together: reading 16 KiB too many
/// costs less than another operation.
const COALESCED_GAP_BYTES: u32 = 16 << 10;

/// Concurrent media reads of one host read: a deep queue for a fast medium, with bounded memory.
pub(crate) const READS_AT_ONCE: usize = 32;

/// Maximum length of a host read that uses and fills the read cache: databases and file systems
/// read at random up to this size. Longer reads are scans, and cheap per block.
pub(super) const CACHED_READ_BYTES_MAX: usize = 64 << 10;

/// A part of a host read that one frame serves.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) place: FramePlace,
    /// Generation of the frame's segment.
    pub(super) generation: u64,
    /// The first wanted block and its position in the frame.
    pub(super) lba: Lba,
    pub(super) index: u8,
    /// Wanted bytes of the decoded frame.
    wanted: Range<usize>,
    /// Their offset in the host's buffer.
    target: usize,
    /// Whether the read cache stores its blocks.
    pub(super) is_kept: bool,
    /// Whether no other part of the frame is expected to be read next. If so, only the wanted ones
    /// are decoded.
    pub(super) is_alone: bool,
}

impl Piece {
    fn frame_bytes(&self) -> usize {
        usize::from(self.place.blocks) * BLOCK_BYTES
    }

    /// Returns the address of the frame's record according to the map.
    fn record_address(&self) -> RecordAddress {
        let FramePlace { segment, offset, .. } = self.place;
        RecordAddress { generation: self.generation, segment, offset }
    }

    pub(super) fn is_whole_frame(&self) -> bool {
        self.wanted == (0..self.frame_bytes())
    }

    /// Returns the numbers of the wanted blocks of the frame.
    pub(super) fn wanted_blocks(&self) -> Range<usize> {
        self.wanted.start / BLOCK_BYTES..self.wanted.end.div_ceil(BLOCK_BYTES)
    }

    /// Returns the bytes of the decoded frame that are wanted and belong to `blocks`.
    pub(super) fn bytes_in(&self, blocks: &Range<usize>) -> Range<usize> {
        let Range { start, end } = self.wanted;
        start.max(blocks.start * BLOCK_BYTES)..end.min(blocks.end * BLOCK_BYTES)
    }

    /// Returns the numbers of the wanted blocks, and the wanted bytes of each.
    fn blocks_wanted(&self) -> impl Iterator<Item = (usize, Range<usize>)> {
        let Range { start, end } = self.wanted;
        self.wanted_blocks().map(move |block| {
            let at = block * BLOCK_BYTES;
            (block, start.saturating_sub(at)..(end - at).min(BLOCK_BYTES))
        })
    }

    /// Returns the identity and place of the wanted frame. Only its record shows whether they are
    /// right.
    pub(super) fn frame_key(&self) -> FrameKey {
        let lba = Lba(self.lba.0.wrapping_sub(self.index.into()));
        FrameKey { address: self.place.address(), generation: self.generation, lba }
    }

    /// Returns the place of a block of the frame.
    pub(super) fn key_of(&self, block: usize) -> BlockKey {
        BlockKey { frame: self.frame_key(), index: blocks_of_frame(block as u64) }
    }

    /// Returns the key of the frame in the cache of decoded frames.
    pub(super) fn decoded_frame(&self) -> Wanted {
        let FrameKey { address, lba, .. } = self.frame_key();
        Wanted { address, lba, bytes: self.frame_bytes() }
    }

    /// Returns the wanted part of the decoded frame.
    fn part_wanted<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        frame.get(self.wanted.clone()).expect("the wanted part of a frame lies in it")
    }

    /// Returns the part of `out` for the piece; `out` begins at the host buffer's byte `out_at`.
    pub(super) fn part_of<'a>(&self, out: &'a mut [u8], out_at: usize) -> &'a mut [u8] {
        let at = self.target.checked_sub(out_at).expect("a piece lies in its part of the buffer");
        let part = out.get_mut(at..at + self.wanted.len());
        part.expect("a piece lies in its part of the buffer")
    }
}

/// The source of the start of a host read.
enum Next {
    /// This many bytes have been served.
    Done(usize),
    /// This many bytes are read from the clone's origin.
    Inherited(usize),
    /// This many bytes are read from a frame on the medium.
    Read(usize, Piece),
    /// The leaf with this number must be loaded first.
    Missing(u64),
}

impl Drive {
    /// Fills `out` with the bytes starting at byte `offset`, which may have any alignment.
    ///
    /// # Errors
    /// `InvalidInput` beyond the end of the disk, and for a bookmark; `Corrupt` (naming the LBA) or
    /// `Medium` if a block cannot be read; the content of `out` is then unspecified.
    pub async fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.with_core(|core| {
            core.check_readable(offset, out.len() as u64)?;
            core.counters_mut().reads.add(1);
            core.counters_mut().host_read_bytes.add(out.len() as u64);
            Ok(())
        })?;
        let _reading = self.ahead.begin_host_read();
        self.read_range(offset, out, true).await
    }

    /// Fills `out`, of whole blocks, with the blocks of the disk starting at `lba`. Not counted as
    /// a read of the host.
    ///
    /// # Errors
    /// The errors of [`Drive::read`].
    pub async fn read_blocks(&self, lba: Lba, out: &mut [u8]) -> Result<()> {
        self.read_range(lba.0 * BLOCK_BYTES as u64, out, false).await
    }

    pub(in super::super) async fn read_range(
        &self,
        offset: u64,
        out: &mut [u8],
        is_of_host: bool,
    ) -> Result<()> {
        let mut at = 0;
        let mut rest = Vec::new();
        let is_sequential = self.streams.note(offset, out.len());
        let is_kept = out.len() <= CACHED_READ_BYTES_MAX;
        let is_alone = is_kept && !is_sequential;
        // While these pins exist, no segment that is read is freed.
        let mut pins = Vec::new();
        while at < out.len() {
            let (_, left) = out.split_at_mut(at);
            let (len, piece) = match self.next_piece(offset + at as u64, left)? {
                Next::Missing(leaf) => {
                    self.load_leaf(leaf).await?;
                    continue;
                }
                Next::Done(len) => (len, None),
                Next::Inherited(len) => {
                    let (out, _) = left.split_at_mut(len);
                    self.read_inherited(offset + at as u64, out).await?;
                    (len, None)
                }
                Next::Read(len, piece) => {
                    let piece = Piece { target: at, is_kept, is_alone, ..piece };
                    match self.read_cached(&piece, left) {
                        0 => (len, Some(piece)),
                        served => (served, None),
                    }
                }
            };
            if let Some(piece) = piece {
                let pin = self.pin(piece.place.segment);
                if is_of_host && is_sequential && rest.is_empty() {
                    self.want_read_ahead(offset + out.len() as u64);
                }
                // The common small read is one piece and needs no list.
                if at == 0 && len == out.len() {
                    return self.read_piece(&piece, out).await;
                }
                pins.push(pin);
                rest.push(piece);
            }
            at += len;
        }
        assert_eq!(at, out.len(), "pieces end where the read ends");
        match rest.as_slice() {
            [] => Ok(()),
            [piece] => self.read_piece(piece, piece.part_of(out, 0)).await,
            rest => {
                self.read_pieces(rest, out).await?;
                if is_of_host {
                    self.restore_order(offset, rest, out);
                }
                Ok(())
            }
        }
    }

    /// Serves the start of `out` from memory, or returns the frame on the medium that serves it.
    /// Also returns the number of bytes.
    fn next_piece(&self, offset: u64, out: &mut [u8]) -> Result<Next> {
        let block = BLOCK_BYTES as u64;
        let lba = Lba(offset / block);
        let skip = len_usize(offset % block);
        let (mapping, blocks, generation) = match self.with_core(|core| core.locate(lba)) {
            Located::Run { mapping, blocks, generation } => (mapping, blocks, generation),
            Located::Missing(leaf) => return Ok(Next::Missing(leaf)),
        };
        let run_bytes = blocks.saturating_mul(block) - skip as u64;
        let len = len_usize(run_bytes.min(out.len() as u64));
        assert!(len > 0, "each piece advances the read");
        let (out, _) = out.split_at_mut(len);
        let (place, index) = match mapping {
            Mapping::Hole => {
                if let Some(blocks) = self.inherited(lba, blocks) {
                    let most = blocks.saturating_mul(block) - skip as u64;
                    return Ok(Next::Inherited(len_usize(most.min(len as u64))));
                }
                out.fill(0);
                return Ok(Next::Done(len));
            }
            Mapping::Fill(byte) => {
                out.fill(byte);
                return Ok(Next::Done(len));
            }
            Mapping::Frame { place, index } => (place, index),
        };
        let from = usize::from(index) * BLOCK_BYTES + skip;
        let wanted = from..from + len;
        let (is_kept, is_alone) = (false, true);
        let piece = Piece { place, generation, lba, index, wanted, target: 0, is_kept, is_alone };
        let decoded = {
            let core = self.core();
            let bytes = core.log().in_memory(place.address());
            bytes.map(|bytes| self.decode_piece(&piece, bytes, out))
        };
        match decoded {
            None => Ok(Next::Read(len, piece)),
            Some(result) => self.count_damage(result).map(|()| Next::Done(len)),
        }
    }

    /// Serves the start of a piece from the read cache, if the cache stores its blocks. Returns the
    /// number of bytes.
    fn read_cached(&self, piece: &Piece, out: &mut [u8]) -> usize {
        if !piece.is_kept {
            return 0;
        }
        let (mut served, mut out) = (0, out);
        for (block, part) in piece.blocks_wanted() {
            let (here, rest) = out.split_at_mut(part.len());
            if !self.read_cache.read(piece.key_of(block), part.start, here) {
                break;
            }
            (served, out) = (served + part.len(), rest);
        }
        served
    }

    /// Puts decoded blocks of a frame into the read cache, if it stores blocks of this read.
    pub(super) fn keep_blocks(&self, piece: &Piece, blocks: Range<usize>, decoded: &[u8]) {
        if !piece.is_kept {
            return;
        }
        for (block, bytes) in blocks.zip(decoded.chunks(BLOCK_BYTES)) {
            self.read_cache.insert(piece.key_of(block), bytes);
        }
    }

    /// Puts the wanted blocks of a decoded frame into the read cache.
    fn keep_wanted(&self, piece: &Piece, frame: &[u8]) {
        let blocks = piece.wanted_blocks();
        let (_, wanted) = frame.split_at(blocks.start * BLOCK_BYTES);
        self.keep_blocks(piece, blocks, wanted);
    }

    /// Counts a frame that could not be decoded.
    fn count_damage(&self, decoded: Result<()>) -> Result<()> {
        decoded.inspect_err(|_| self.with_core(|core| core.counters_mut().corrupt_reads.add(1)))
    }

    /// Reads one piece from the medium or, if it is a part of a frame, from the decoded frames.
    async fn read_piece(&self, piece: &Piece, out: &mut [u8]) -> Result<()> {
        if piece.is_whole_frame() || piece.place.blocks == 1 {
            return self.read_group(std::slice::from_ref(piece), piece.target, out).await;
        }
        let frame = piece.decoded_frame();
        loop {
            // The leaf may have been loaded again during the wait.
            if let Some(table) = self.table_for(piece)
                && self.read_part(piece, &table, out).await
            {
                return Ok(());
            }
            match self.cache.begin(frame, |frame| out.copy_from_slice(piece.part_wanted(frame))) {
                Lookup::Hit(()) => {
                    self.with_core(|core| core.counters_mut().frame_cache_hits.add(1));
                    return Ok(());
                }
                Lookup::Miss => {
                    let _load = Load::new(&self.cache, frame.address);
                    let pieces = std::slice::from_ref(piece);
                    let result = self.read_group(pieces, piece.target, out).await;
                    let Err(error) = &result else { return result };
                    if !self.read_remains(piece, out).await {
                        return result;
                    }
                    tracing::warn!(
                        lba = %piece.lba,
                        segment = %piece.place.segment,
                        error = %error.chain(),
                        "a frame is damaged: read the blocks that have their checksums"
                    );
                    return Ok(());
                }
                Lookup::Loading => {}
            }
            let was_loaded = || (!self.cache.is_loading(frame.address)).then_some(());
            self.cache.loaded.wait_for(was_loaded).await;
        }
    }

    /// Reads many pieces: adjacent pieces in the log together, groups concurrently. Blocks that can
    /// be read without their frames are read individually.
    async fn read_pieces(&self, pieces: &[Piece], out: &mut [u8]) -> Result<()> {
        let mut groups = Vec::new();
        let (mut pieces, mut out, mut out_at) = (pieces, out, 0);
        while !pieces.is_empty() {
            let places = pieces.iter().map(|piece| &piece.place);
            let near = pieces.iter().take(group_len(places, COALESCED_BYTES_MAX));
            let stretch = pieces.first().and_then(|first| self.stretch_of(first));
            let is_beside = |piece: &&Piece| {
                self.table_for(piece).is_none() && self.stretch_of(piece) == stretch
            };
            let frames = near.take_while(is_beside).count();
            let (group, later) = pieces.split_at(frames.max(1));
            let end = later.first().map_or(out_at + out.len(), |next| next.target);
            assert!(end > out_at, "pieces fill the host's buffer in order");
            let (here, there) = out.split_at_mut(end - out_at);
            groups.push(self.read_some(group, out_at, here));
            (pieces, out, out_at) = (later, there, end);
        }
        iter(groups).buffer_unordered(READS_AT_ONCE).try_collect::<()>().await
    }

    /// Reads a piece, or several together. `out` begins at the host buffer's byte `out_at`.
    async fn read_some(&self, pieces: &[Piece], out_at: usize, out: &mut [u8]) -> Result<()> {
        match pieces {
            [piece] => self.read_piece(piece, piece.part_of(out, out_at)).await,
            pieces => self.read_group(pieces, out_at, out).await,
        }
    }

    /// Reads pieces that are close together in one segment, with one media read if possible. `out`
    /// begins at the host buffer's byte `out_at`.
    ///
    /// If the medium cannot read them together, the unreadable sector may be between them, or in
    /// only one of them. Each is then read alone, and the error names the one that fails.
    async fn read_group(&self, pieces: &[Piece], out_at: usize, out: &mut [u8]) -> Result<()> {
        if let Some(stretch) = pieces.first().and_then(|first| self.stretch_of(first))
            && self.read_from_stretch(stretch, pieces, out_at, out).await
        {
            return Ok(());
        }
        match self.read_together(pieces, out_at, out).await {
            Err(error) if error.kind() == ErrorKind::Medium && pieces.len() > 1 => {
                tracing::warn!(error = %error.chain(), "reading adjacent frames one by one");
            }
            result => return result,
        }
        for piece in pieces {
            let out = piece.part_of(out, out_at);
            self.read_together(std::slice::from_ref(piece), piece.target, out).await?;
        }
        Ok(())
    }

    /// Reads pieces that are close together in one segment with one media read. `out` begins at the
    /// host buffer's byte `out_at`.
    async fn read_together(&self, pieces: &[Piece], out_at: usize, out: &mut [u8]) -> Result<()> {
        let ends = pieces.first().zip(pieces.last());
        let (first, last) = ends.expect("a group of pieces has a first and a last");
        let segment = first.place.segment;
        assert_eq!(segment, last.place.segment, "pieces in one segment are read together");
        let unit = self.read_unit;
        let start = first.place.offset / unit * unit;
        let end = (last.place.offset + last.place.record_bytes).next_multiple_of(unit);
        let (buffer, in_flight) = self.buffers.take((end - start) as usize).await;
        let media_bytes = u64::from(end - start);
        self.with_core(|core| core.counters_mut().media_read_bytes.add(media_bytes));
        let (bytes, result) = self.medium.read(segment, start, buffer).await;
        let mut damaged = Vec::new();
        let result = result.map_err(|error| error.at_lba(first.lba)).map(|()| {
            for piece in pieces {
                let (_, record) = bytes.split_at((piece.place.offset - start) as usize);
                let out = piece.part_of(out, out_at);
                if let Err(error) = self.decode_piece(piece, record, out) {
                    damaged.push((piece, error, is_intact(piece, record, self.medium.cipher())));
                }
            }
        });
        self.buffers.put(bytes, in_flight);
        match (result, pieces) {
            (Err(error), [piece]) => damaged.push((piece, error, false)),
            (result, _) => result?,
        }
        for (piece, error, is_intact) in damaged {
            if is_intact {
                // The content is lost, and the record is as it was written.
                return self.count_damage(Err(error));
            }
            let out = piece.part_of(out, out_at);
            // Boxed, so that reads without damage do not carry its state.
            Box::pin(self.restore_piece(piece, out, error)).await?;
        }
        Ok(())
    }

    /// Reads a piece of a frame that is damaged, or cannot be read, from its batch's parity.
    ///
    /// # Errors
    /// `error`, if the frame cannot be restored.
    async fn restore_piece(&self, piece: &Piece, out: &mut [u8], error: Error) -> Result<()> {
        let FramePlace { segment, record_bytes, .. } = piece.place;
        if self.core().has_metadata(segment) {
            // The block belongs to a lost leaf.
            return self.count_damage(Err(error));
        }
        let mut decode = |record: &[u8]| self.decode_piece(piece, record, out).is_ok();
        let place = piece.record_address();
        if self.restore_record(place, record_bytes, &mut decode).await.unwrap_or(false) {
            tracing::warn!(
                lba = %piece.lba,
                error = %error.chain(),
                "a damaged frame was restored from parity: a scrub rewrites it"
            );
            self.with_core(|core| core.counters_mut().restored_reads.add(1));
            return Ok(());
        }
        if error.kind() == ErrorKind::Corrupt { self.count_damage(Err(error)) } else { Err(error) }
    }

    /// Checks the frame that begins at the start of `record` and decodes the part that `piece`
    /// needs. Uses only the piece: the core may be borrowed.
    pub(super) fn decode_piece(&self, piece: &Piece, record: &[u8], out: &mut [u8]) -> Result<()> {
        assert_eq!(piece.wanted.len(), out.len(), "a piece is decoded to where it goes");
        let cipher = self.medium.cipher();
        let decoded = check_frame(piece, record, cipher).and_then(|stored| {
            let mut decompressor = self.decompressor.borrow_mut();
            if piece.is_whole_frame() {
                stored.decode(cipher, &mut decompressor, out)?;
                self.keep_wanted(piece, out);
                return Ok(());
            }
            if piece.place.blocks == 1 {
                let mut block = [0; BLOCK_BYTES];
                stored.decode(cipher, &mut decompressor, &mut block)?;
                out.copy_from_slice(piece.part_wanted(&block));
                self.keep_wanted(piece, &block);
                return Ok(());
            }
            if piece.is_alone && !stored.is_sealed() && stored.encoding != Encoding::Zstd {
                drop(decompressor);
                return self.decode_alone(piece, stored.encoding, stored.bytes, out);
            }
            self.cache.fill(piece.decoded_frame(), |frame| {
                stored.decode(cipher, &mut decompressor, frame)?;
                out.copy_from_slice(piece.part_wanted(frame));
                self.keep_wanted(piece, frame);
                Ok(())
            })
        });
        decoded.map_err(|error| error.at_lba(piece.lba))
    }
}

/// Returns the payload of a frame, if header and payload agree with the map.
fn check_frame<'a>(piece: &Piece, record: &'a [u8], cipher: &Cipher) -> Result<Stored<'a>> {
    let place = piece.record_address();
    let RecordAddress { generation, segment, offset } = place;
    let wrong = |what: &'static str| {
        Error::new(ErrorKind::Corrupt, what).in_segment(segment).at_offset(u64::from(offset))
    };
    let header = Record::decode_with(record, place, cipher)?;
    let Record::Data { lba, lba_count, payload_checksum, .. } = header else {
        return Err(wrong("the map names a record that is not a frame"));
    };
    if lba.0 + u64::from(piece.index) != piece.lba.0
        || lba_count != u16::from(piece.place.blocks)
        || header.record_bytes() != piece.place.record_bytes
    {
        return Err(wrong("a frame is not the one that the map names"));
    }
    let payload = record.get(header.header_bytes() as usize..piece.place.record_bytes as usize);
    let payload = payload.ok_or_else(|| wrong("a frame is truncated"))?;
    check_payload(payload, payload_checksum, place)?;
    let stored = Stored::of_frame(&header, payload, generation, cipher);
    stored.map_err(|error| error.in_segment(segment).at_offset(u64::from(offset)))
}

/// Returns whether header and payload of a record match their checksums.
fn is_intact(piece: &Piece, record: &[u8], cipher: &Cipher) -> bool {
    let place = piece.record_address();
    let Ok(header) = Record::decode_with(record, place, cipher) else { return false };
    let Record::Data { payload_checksum, .. } = header else { return false };
    let payload = record.get(header.header_bytes() as usize..header.record_bytes() as usize);
    payload.is_some_and(|payload| check_payload(payload, payload_checksum, place).is_ok())
}

/// Returns the number of frames, starting with the first, that one media read of up to `bytes_max`
/// bytes can serve.
pub(crate) fn group_len<'a>(
    places: impl Iterator<Item = &'a FramePlace> + Clone,
    bytes_max: usize,
) -> usize {
    let first = places.clone().next().expect("there is a frame to read");
    let together = |(one, next): (&FramePlace, &FramePlace)| {
        let one_end = one.offset + one.record_bytes;
        let whole = (next.offset + next.record_bytes).saturating_sub(first.offset);
        one.segment == next.segment
            && (next.offset == one.offset || next.offset >= one_end)
            && next.offset.saturating_sub(one_end) <= COALESCED_GAP_BYTES
            && whole as usize <= bytes_max
    };
    1 + places.clone().zip(places.skip(1)).take_while(|&pair| together(pair)).count()
}

#[cfg(test)]
mod tests {
    //! Goal: only close frames, in order, are read together.
    use super::*;
    use crate::base::SegmentId;

    fn group_len(places: &[(u32, u32, u32)]) -> usize {
        let place = |&(segment, offset, record_bytes)| FramePlace {
            segment: SegmentId(segment),
            offset,
            record_bytes,
            blocks: 1,
        };
        let places: Vec<_> = places.iter().map(place).collect();
        super::group_len(places.iter(), COALESCED_BYTES_MAX)
    }

    #[test]
    fn only_near_neighbours_in_order_are_read_together() {
        assert_eq!(group_len(&[(1, 0, 100)]), 1);
        assert_eq!(group_len(&[(1, 0, 100), (1, 100, 50), (1, 150, 9)]), 3);
        assert_eq!(group_len(&[(1, 0, 100), (2, 100, 50)]), 1);
        assert_eq!(group_len(&[(1, 500, 100), (1, 100, 50)]), 1);
        assert_eq!(group_len(&[(1, 0, 100), (1, 40_000, 50)]), 1);
        assert_eq!(group_len(&[(1, 7, 100), (1, 7, 100)]), 2);
        let long: Vec<_> = (0..400).map(|at| (1, at * 4096, 4096)).collect();
        assert_eq!(group_len(&long), 256);
    }
}

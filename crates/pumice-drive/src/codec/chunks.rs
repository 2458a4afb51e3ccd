//! Payloads of chunks: adjacent blocks of a frame are encoded together in *chunks*, each
//! separately, so that a block can be read without the rest of its frame.
//!
//! ```text
//! | entry of block 0 | ... | entry of block n-1 | chunk 0 | chunk 1 | ...
//! entry: stored bytes, and encoding in the upper three bits (2), CRC-32C of the stored bytes (4)
//! ```
//!
//! The entry of a chunk's first block describes the chunk; the entries of its other blocks mark
//! them as continuing it. A chunk that does not compress is stored as chunks of one block, as they
//! are. The checksums of the chunks do not cover the entries; the checksum of the whole payload
//! does. A [`ChunkTable`] is therefore built from a payload that matches its checksum, or from a
//! stored copy of such a table, and then serves to read parts of the payload.
//!
//! A payload that is stored as it is has no entries. Its table has an entry for each block all the
//! same, and serves to read single blocks of it.
//!
//! Invariant: the entries of a table add up to a possible payload, which is shorter than its
//! decoded blocks unless it is stored as it is. [`ChunkTable::check`] alone enforces this, for all
//! readers.

use std::ops::Range;

use super::{Encoding, Engine, SAVING_DIVISOR};
use crate::base::checksum::crc32;
use crate::base::units::BLOCK_BYTES;
use crate::base::{ErrorContext, ErrorKind, Result, ensure};

/// Maximum number of blocks in a payload of chunks.
pub const CHUNKED_BLOCKS_MAX: usize = 8;

/// Bytes of a block's entry.
const ENTRY_BYTES: usize = 6;

/// Bytes of a table that is stored separately: eight entries. The entries of absent blocks are
/// zero.
pub(crate) const CHUNK_TABLE_BYTES: usize = CHUNKED_BLOCKS_MAX * ENTRY_BYTES;

/// The bits of an entry's first two bytes that hold the length; the others hold the encoding.
const LENGTH_BITS: u32 = 13;
const _: () = assert!(BLOCK_BYTES < 1 << LENGTH_BITS, "an entry holds the length of each block");

/// Maximum bytes of a chunk.
const CHUNK_BYTES_MAX: usize = (1 << LENGTH_BITS) - 1;

/// Number in place of the encoding in the entry of a block that continues a chunk.
const CONTINUES: u8 = 3;
const _: () = assert!(CONTINUES == Encoding::Lost as u8, "no block has this encoding");

/// Stored bytes that a chunk should have: between one and two pages of the medium, because a read
/// of a chunk reads whole pages.
///
/// Measured on a system's programs, libraries and documents with LZ4, against frames that are
/// encoded as a whole: 4096 stores 5 % more, 5000 4.7 %, 6000 3.9 %, and single blocks 12 %. A
/// block is then read with 2.2, 2.3, 2.5 and 1.5 pages. On the tables of a database: 11, 11, 4 and
/// 38 %.
const CHUNK_BYTES_WANTED: usize = 6000;

/// Blocks of a chunk, at least: single blocks store 6 % more than two together.
const CHUNK_BLOCKS_MIN: usize = 2;

const CORRUPT: ErrorKind = ErrorKind::Corrupt;

type Entry = [u8; ENTRY_BYTES];

/// A chunk in its stored form.
pub(super) struct StoredChunk<'a> {
    /// Its encoding: none, LZ4 or zstd.
    pub(super) encoding: Encoding,
    /// Its stored bytes, which match their checksum.
    pub(super) bytes: &'a [u8],
    /// The blocks of the frame in it.
    pub(super) blocks: Range<usize>,
}

/// The entries of a payload of chunks: the location and the checksum of each chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkTable([Entry; CHUNKED_BLOCKS_MAX]);

impl ChunkTable {
    /// Returns the table of a payload of `count` blocks. The payload is not trusted.
    ///
    /// # Errors
    /// `Corrupt` if it is not a payload of chunks with that number of blocks. The checksums of the
    /// chunks are not verified here.
    pub fn of(payload: &[u8], count: usize) -> Result<Self> {
        let entries = payload.get(..count * ENTRY_BYTES);
        let (entries, _) =
            entries.or_error(CORRUPT, "a payload of chunks is truncated")?.as_chunks();
        let mut table = Self::empty();
        table.0.iter_mut().zip(entries).for_each(|(target, entry)| *target = *entry);
        table.check(count)?;
        let is_whole = !table.is_stored() && table.payload_bytes() == payload.len();
        ensure(is_whole, CORRUPT, "a payload of chunks has the wrong length")?;
        Ok(table)
    }

    /// Returns the table of a payload that is stored as it is. Returns `None` if such a payload has
    /// none, because of its length.
    pub fn of_stored(payload: &[u8]) -> Option<Self> {
        let count = payload.len() / BLOCK_BYTES;
        let is_possible =
            payload.len().is_multiple_of(BLOCK_BYTES) && (2..=CHUNKED_BLOCKS_MAX).contains(&count);
        let mut table = Self::empty();
        for (target, block) in table.0.iter_mut().zip(payload.chunks(BLOCK_BYTES)) {
            *target = entry(Encoding::Store, block);
        }
        is_possible.then_some(table)
    }

    /// Returns the table of a payload of `count` blocks from the bytes that [`ChunkTable::stored`]
    /// returned. The bytes are not trusted.
    ///
    /// # Errors
    /// `Corrupt` if no payload of that number of blocks can have this table.
    pub fn from_stored(stored: &[u8; CHUNK_TABLE_BYTES], count: usize) -> Result<Self> {
        let mut table = Self::empty();
        table.0.as_flattened_mut().copy_from_slice(stored);
        table.check(count)?;
        Ok(table)
    }

    fn empty() -> Self {
        Self([[0; ENTRY_BYTES]; CHUNKED_BLOCKS_MAX])
    }

    /// Returns the bytes of the table, to be stored separately from the payload.
    pub fn stored(&self) -> &[u8] {
        self.0.as_flattened()
    }

    /// Checks that the table is possible for a payload of `count` blocks.
    fn check(&self, count: usize) -> Result<()> {
        let is_possible = (2..=CHUNKED_BLOCKS_MAX).contains(&count);
        ensure(is_possible, CORRUPT, "a payload of chunks must have 2 to 8 blocks")?;
        let mut before = None;
        for (index, entry) in self.0.iter().enumerate() {
            let bytes = stored_bytes(entry);
            let is_right = match encoding(entry) {
                _ if index >= count => *entry == [0; ENTRY_BYTES],
                Some(Encoding::Store) => bytes == BLOCK_BYTES,
                Some(_) => bytes > 0,
                // A block that is stored as it is, and the first one, have nothing to continue.
                None => continues(entry) && before.is_some_and(|it| it != Some(Encoding::Store)),
            };
            ensure(is_right, CORRUPT, "a block has an invalid entry")?;
            if !continues(entry) {
                before = Some(encoding(entry));
            }
        }
        let mut chunks = self.chunks();
        let are_shorter = chunks.all(|blocks| {
            let entry = self.0.get(blocks.start).expect("a chunk has a first block");
            let is_stored = encoding(entry) == Some(Encoding::Store);
            is_stored || stored_bytes(entry) < blocks.len() * BLOCK_BYTES
        });
        let is_shorter = self.is_stored() || self.payload_bytes() < count * BLOCK_BYTES;
        ensure(are_shorter && is_shorter, CORRUPT, "chunks are not shorter than their content")
    }

    /// Returns whether the payload is stored as it is, and has no entries.
    fn is_stored(&self) -> bool {
        let mut used = self.0.iter().filter(|entry| **entry != [0; ENTRY_BYTES]);
        used.all(|entry| encoding(entry) == Some(Encoding::Store))
    }

    /// Returns the number of blocks.
    pub fn blocks(&self) -> usize {
        self.0.iter().filter(|entry| **entry != [0; ENTRY_BYTES]).count()
    }

    /// Returns the chunks, in order: the blocks of each.
    pub fn chunks(&self) -> impl Iterator<Item = Range<usize>> {
        let mut next = 0;
        std::iter::from_fn(move || {
            let chunk = self.chunk_of(next);
            next = chunk.end;
            (!chunk.is_empty()).then_some(chunk)
        })
    }

    /// Returns the blocks of the chunk that contains block `index`; none if there is no such block.
    pub fn chunk_of(&self, index: usize) -> Range<usize> {
        let end = self.blocks();
        if index >= end {
            return end..end;
        }
        let entries = self.0.iter().enumerate().take(end).filter(|(_, entry)| !continues(entry));
        let starts = entries.map(|(block, _)| block);
        let start = starts.clone().rfind(|&block| block <= index).unwrap_or(0);
        start..starts.into_iter().find(|&block| block > index).unwrap_or(end)
    }

    /// Returns the length of the payload.
    pub fn payload_bytes(&self) -> usize {
        self.entries_bytes() + self.0.iter().map(stored_bytes).sum::<usize>()
    }

    fn entries_bytes(&self) -> usize {
        if self.is_stored() { 0 } else { self.blocks() * ENTRY_BYTES }
    }

    /// Returns the range of the payload that holds the chunk with block `index`; an empty range if
    /// there is no such block.
    pub fn range(&self, index: usize) -> Range<usize> {
        let start = self.chunk_of(index).start;
        let before = self.0.iter().take(start).map(stored_bytes).sum::<usize>();
        let from = self.entries_bytes() + before;
        from..from + self.0.get(start).map_or(0, stored_bytes)
    }

    /// Returns whether the payload holds bytes that match the checksum of the chunk with block
    /// `index` of this table.
    pub(crate) fn has_block(&self, payload: &[u8], index: usize) -> bool {
        self.stored_chunk(index, self.bytes_of(payload, index)).is_ok()
    }

    /// Returns whether chunks begin and end where `blocks` do.
    pub(crate) fn has_chunks_of(&self, blocks: &Range<usize>) -> bool {
        let end = self.blocks();
        let is_boundary = |at: usize| at == end || self.chunk_of(at).start == at;
        blocks.end <= end && is_boundary(blocks.start) && is_boundary(blocks.end)
    }

    /// Returns the bytes of the chunk with block `index` in a payload; none if the payload is too
    /// short.
    pub(crate) fn bytes_of<'a>(&self, payload: &'a [u8], index: usize) -> &'a [u8] {
        payload.get(self.range(index)).unwrap_or_default()
    }

    /// Returns the chunk with block `index`, given its stored bytes.
    ///
    /// # Errors
    /// `Corrupt` if the bytes do not match the chunk's checksum.
    pub(super) fn stored_chunk<'a>(
        &self,
        index: usize,
        bytes: &'a [u8],
    ) -> Result<StoredChunk<'a>> {
        let blocks = self.chunk_of(index);
        let entry = self.0.get(blocks.start).filter(|_| !blocks.is_empty());
        let entry = entry.or_error(CORRUPT, "the payload has no such block")?;
        let [_, _, checksum @ ..] = *entry;
        let is_it =
            bytes.len() == stored_bytes(entry) && crc32(bytes) == u32::from_le_bytes(checksum);
        ensure(is_it, CORRUPT, "the checksum of a chunk is wrong")?;
        let encoding = encoding(entry).or_error(CORRUPT, "a chunk has an unknown encoding")?;
        Ok(StoredChunk { encoding, bytes, blocks })
    }
}

/// The number of blocks that the next chunk should have. It follows the last chunk, because the
/// blocks of a frame, and the frames of a stream, are often similar.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChunkSize(usize);

impl Default for ChunkSize {
    fn default() -> Self {
        Self(CHUNK_BLOCKS_MIN)
    }
}

impl ChunkSize {
    /// Returns the size for data of which `blocks` blocks were encoded in `bytes` bytes.
    pub(super) fn after(blocks: usize, bytes: usize) -> Self {
        let bytes = bytes.max(1);
        let wanted = (CHUNK_BYTES_WANTED * blocks + bytes / 2) / bytes;
        Self(wanted.clamp(CHUNK_BLOCKS_MIN, CHUNKED_BLOCKS_MAX))
    }
}

/// Encodes the blocks of `source`, from two to [`CHUNKED_BLOCKS_MAX`], at the start of `target`.
/// Returns the encoding and the length of the payload, or `None` if the length would exceed
/// `most_bytes`. The remaining bytes of the target are unspecified.
///
/// A payload that is only one chunk has no entries: it is encoded as a whole.
pub(super) fn encode(
    engine: &mut Engine,
    size: &mut ChunkSize,
    source: &[u8],
    target: &mut [u8],
    most_bytes: usize,
) -> Option<(Encoding, usize)> {
    assert!(source.len().is_multiple_of(BLOCK_BYTES), "a frame has whole blocks");
    let count = source.len() / BLOCK_BYTES;
    let (entries, mut rest) = target.split_at_mut(count * ENTRY_BYTES);
    let mut used = entries.len();
    let (entries, _) = entries.as_chunks_mut::<ENTRY_BYTES>();
    let (mut entries, mut blocks) = (entries, source);
    while !blocks.is_empty() {
        let (chunk, encoded) = encode_chunk(engine, size, blocks, rest)?;
        let (bytes, later) = blocks.split_at(chunk * BLOCK_BYTES);
        let (heads, later_heads) = entries.split_at_mut(chunk);
        let len = encoded.map_or(bytes.len(), |(_, len)| len);
        used += len;
        if used > most_bytes {
            return None;
        }
        let (stored, later_rest) = rest.split_at_mut(len);
        match encoded {
            Some((encoding, len)) if chunk == count => {
                target.copy_within(count * ENTRY_BYTES..count * ENTRY_BYTES + len, 0);
                return Some((encoding, len));
            }
            Some((encoding, _)) => {
                heads.fill(CONTINUATION);
                let (first, _) = heads.split_first_mut().expect("a chunk has a block");
                *first = entry(encoding, stored);
            }
            None => {
                stored.copy_from_slice(bytes);
                for (head, block) in heads.iter_mut().zip(bytes.chunks(BLOCK_BYTES)) {
                    *head = entry(Encoding::Store, block);
                }
            }
        }
        (blocks, entries, rest) = (later, later_heads, later_rest);
    }
    Some((Encoding::Chunks, used))
}

/// Encodes a chunk from the start of `blocks` at the start of `target`. Returns its number of
/// blocks, with its encoding and length, or without if it does not compress. Returns `None` if the
/// target is too short.
fn encode_chunk(
    engine: &mut Engine,
    size: &mut ChunkSize,
    blocks: &[u8],
    target: &mut [u8],
) -> Option<(usize, Option<(Encoding, usize)>)> {
    let count = blocks.len() / BLOCK_BYTES;
    loop {
        let chunk = size.0.min(count);
        let source = blocks.get(..chunk * BLOCK_BYTES).expect("a chunk has some of the blocks");
        if target.len() < Engine::target_bytes(source.len()) {
            return None;
        }
        let most_bytes = source.len() - source.len().div_ceil(SAVING_DIVISOR);
        let encoded = engine.encode(source, target, most_bytes);
        let len = encoded.map_or(source.len(), |(_, len)| len);
        let next = ChunkSize::after(chunk, len);
        if chunk > CHUNK_BLOCKS_MIN && (encoded.is_none() || len > CHUNK_BYTES_MAX) {
            // The blocks compress less than the last ones.
            *size = ChunkSize(next.0.min(chunk - 1));
            continue;
        }
        *size = next;
        return Some((chunk, encoded));
    }
}

/// Copies some blocks of a payload, still encoded, to the start of `target` as a payload of their
/// own. Returns its encoding and length; `None` if chunks do not begin and end with the blocks, if
/// one of the chunks is damaged, if they are not shorter than when decoded, or if the target is too
/// short.
pub(crate) fn cut(
    table: &ChunkTable,
    payload: &[u8],
    blocks: Range<usize>,
    target: &mut [u8],
) -> Option<(Encoding, usize)> {
    assert!(!blocks.is_empty(), "a payload has a block");
    if !table.has_chunks_of(&blocks) {
        return None;
    }
    let chunks = table.chunks().filter(|chunk| blocks.contains(&chunk.start));
    let found = chunks.map(|chunk| {
        let chunk = table.stored_chunk(chunk.start, table.bytes_of(payload, chunk.start)).ok()?;
        Some((chunk.encoding, chunk.bytes.len()))
    });
    let found: Vec<(Encoding, usize)> = found.collect::<Option<_>>()?;
    let stored_bytes = found.iter().map(|(_, len)| len).sum::<usize>();
    let (encoding, entries) = match *found.as_slice() {
        [(encoding, _)] => (encoding, [].as_slice()),
        ref all if all.iter().all(|(encoding, _)| *encoding == Encoding::Store) => {
            (Encoding::Store, [].as_slice())
        }
        // The entry is not taken from the payload, whose entries may be damaged.
        _ => (Encoding::Chunks, table.0.get(blocks.clone())?.as_flattened()),
    };
    let used = entries.len() + stored_bytes;
    if used >= blocks.len() * BLOCK_BYTES && encoding != Encoding::Store {
        return None;
    }
    // The chunks follow each other in the payload, as they will in the new one.
    let stored = table.range(blocks.start).start..table.range(blocks.end - 1).end;
    let (head, tail) = target.get_mut(..used)?.split_at_mut(entries.len());
    head.copy_from_slice(entries);
    tail.copy_from_slice(payload.get(stored)?);
    Some((encoding, used))
}

/// The entry of a block that continues a chunk.
const CONTINUATION: Entry = [0, CONTINUES << (LENGTH_BITS - 8), 0, 0, 0, 0];

/// Returns the entry of a chunk with these stored bytes.
fn entry(encoding: Encoding, stored: &[u8]) -> Entry {
    let word = u16::try_from(stored.len() | (usize::from(encoding as u8) << LENGTH_BITS));
    let word = word.expect("an entry has 16 bits for length and encoding");
    let ([low, high], [c0, c1, c2, c3]) = (word.to_le_bytes(), crc32(stored).to_le_bytes());
    [low, high, c0, c1, c2, c3]
}

/// Returns whether the entry belongs to a block that continues a chunk.
fn continues(entry: &Entry) -> bool {
    *entry == CONTINUATION
}

/// Returns the encoding of a block, if the entry has a valid one.
fn encoding(entry: &Entry) -> Option<Encoding> {
    let [_, high, ..] = *entry;
    match high >> (LENGTH_BITS - 8) {
        0 => Some(Encoding::Store),
        1 => Some(Encoding::Lz4),
        2 => Some(Encoding::Zstd),
        _ => None,
    }
}

/// Returns the stored length of a block.
fn stored_bytes(entry: &Entry) -> usize {
    let [low, high, ..] = *entry;
    usize::from(u16::from_le_bytes([low, high]) & ((1 << LENGTH_BITS) - 1))
}

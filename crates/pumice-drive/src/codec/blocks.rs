//! Payloads of independent blocks: each block of a frame is encoded separately, so that it can be
//! read without the others.
//!
//! ```text
//! | entry of block 0 | ... | entry of block n-1 | block 0 | ... | block n-1 |
//! entry: stored bytes, and encoding in the upper three bits (2), CRC-32C of the stored bytes (4)
//! ```
//!
//! A block that does not compress is stored as it is. The checksums of the blocks do not cover the
//! entries; the checksum of the whole payload does. A [`BlockTable`] is therefore built from a
//! payload that matches its checksum, or from a stored copy of such a table, and then serves to
//! read parts of the payload.
//!
//! Invariant: the entries of a table add up to a possible payload that is shorter than its decoded
//! blocks. [`BlockTable::check`] alone enforces this, for all readers.

use std::ops::Range;

use super::{Encoding, Engine, SAVING_DIVISOR};
use crate::base::checksum::crc32;
use crate::base::units::BLOCK_BYTES;
use crate::base::{ErrorContext, ErrorKind, Result, ensure};

/// Maximum number of blocks in a payload of independent blocks.
pub const INDEPENDENT_BLOCKS_MAX: usize = 8;

/// Bytes of a block's entry.
const ENTRY_BYTES: usize = 6;

/// Bytes of a table that is stored separately: eight entries. The entries of absent blocks are
/// zero.
pub(crate) const BLOCK_TABLE_BYTES: usize = INDEPENDENT_BLOCKS_MAX * ENTRY_BYTES;

/// The bits of an entry's first two bytes that hold the length; the others hold the encoding.
const LENGTH_BITS: u32 = 13;
const _: () = assert!(BLOCK_BYTES < 1 << LENGTH_BITS, "an entry holds the length of each block");

/// Maximum bytes of an encoded block.
const ENCODED_BYTES_MAX: usize = BLOCK_BYTES - BLOCK_BYTES / SAVING_DIVISOR;

const CORRUPT: ErrorKind = ErrorKind::Corrupt;

type Entry = [u8; ENTRY_BYTES];

/// A block in its stored form.
pub(super) struct StoredBlock<'a> {
    /// Its encoding: none, LZ4 or zstd.
    pub(super) encoding: Encoding,
    /// Its stored bytes, which match their checksum.
    pub(super) bytes: &'a [u8],
}

/// The entries of a payload of independent blocks: the location and the checksum of each block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockTable([Entry; INDEPENDENT_BLOCKS_MAX]);

impl BlockTable {
    /// Returns the table of a payload of `count` blocks. The payload is not trusted.
    ///
    /// # Errors
    /// `Corrupt` if it is not a payload of that number of independent blocks. The checksums of the
    /// blocks are not verified here.
    pub fn of(payload: &[u8], count: usize) -> Result<Self> {
        let entries = payload.get(..count * ENTRY_BYTES);
        let (entries, _) =
            entries.or_error(CORRUPT, "a payload of blocks is truncated")?.as_chunks();
        let mut table = Self([[0; ENTRY_BYTES]; INDEPENDENT_BLOCKS_MAX]);
        table.0.iter_mut().zip(entries).for_each(|(target, entry)| *target = *entry);
        table.check(count)?;
        let is_whole = table.payload_bytes() == payload.len();
        ensure(is_whole, CORRUPT, "a payload of blocks has the wrong length")?;
        Ok(table)
    }

    /// Returns the table of a payload of `count` blocks from the bytes that [`BlockTable::stored`]
    /// returned. The bytes are not trusted.
    ///
    /// # Errors
    /// `Corrupt` if no payload of that number of independent blocks can have this table.
    pub fn from_stored(stored: &[u8; BLOCK_TABLE_BYTES], count: usize) -> Result<Self> {
        let mut table = Self([[0; ENTRY_BYTES]; INDEPENDENT_BLOCKS_MAX]);
        table.0.as_flattened_mut().copy_from_slice(stored);
        table.check(count)?;
        Ok(table)
    }

    /// Returns the bytes of the table, to be stored separately from the payload.
    pub fn stored(&self) -> &[u8] {
        self.0.as_flattened()
    }

    /// Checks that the table is possible for a payload of `count` blocks.
    fn check(&self, count: usize) -> Result<()> {
        let is_possible = (2..=INDEPENDENT_BLOCKS_MAX).contains(&count);
        ensure(is_possible, CORRUPT, "a payload of independent blocks must have 2 to 8 blocks")?;
        for (index, entry) in self.0.iter().enumerate() {
            let is_right = match encoding(entry) {
                _ if index >= count => *entry == [0; ENTRY_BYTES],
                Some(Encoding::Store) => stored_bytes(entry) == BLOCK_BYTES,
                Some(_) => (1..BLOCK_BYTES).contains(&stored_bytes(entry)),
                None => false,
            };
            ensure(is_right, CORRUPT, "a block has an invalid entry")?;
        }
        let is_shorter = self.payload_bytes() < count * BLOCK_BYTES;
        ensure(is_shorter, CORRUPT, "independent blocks are not shorter than their content")
    }

    /// Returns the number of blocks.
    pub fn blocks(&self) -> usize {
        self.0.iter().filter(|entry| stored_bytes(entry) > 0).count()
    }

    /// Returns the length of the payload.
    pub fn payload_bytes(&self) -> usize {
        self.blocks() * ENTRY_BYTES + self.0.iter().map(stored_bytes).sum::<usize>()
    }

    /// Returns the range of the payload that holds block `index`; an empty range if there is no
    /// such block.
    pub fn range(&self, index: usize) -> Range<usize> {
        let before = self.0.iter().take(index).map(stored_bytes).sum::<usize>();
        let from = self.blocks() * ENTRY_BYTES + before;
        from..from + self.0.get(index).map_or(0, stored_bytes)
    }

    /// Returns whether the payload holds bytes that match the checksum of block `index` of this
    /// table.
    pub(crate) fn has_block(&self, payload: &[u8], index: usize) -> bool {
        self.stored_block(index, self.bytes_of(payload, index)).is_ok()
    }

    /// Returns the bytes of block `index` in a payload; none if the payload is too short.
    pub(super) fn bytes_of<'a>(&self, payload: &'a [u8], index: usize) -> &'a [u8] {
        payload.get(self.range(index)).unwrap_or_default()
    }

    /// Returns block `index`, given its stored bytes.
    ///
    /// # Errors
    /// `Corrupt` if the bytes do not match the block's checksum.
    pub(super) fn stored_block<'a>(
        &self,
        index: usize,
        bytes: &'a [u8],
    ) -> Result<StoredBlock<'a>> {
        let entry = self.0.get(index).filter(|entry| stored_bytes(entry) > 0);
        let entry = entry.or_error(CORRUPT, "the payload has no such block")?;
        let [_, _, checksum @ ..] = *entry;
        let is_it =
            bytes.len() == stored_bytes(entry) && crc32(bytes) == u32::from_le_bytes(checksum);
        ensure(is_it, CORRUPT, "the checksum of a block is wrong")?;
        let encoding = encoding(entry).or_error(CORRUPT, "a block has an unknown encoding")?;
        Ok(StoredBlock { encoding, bytes })
    }
}

/// Encodes the blocks of `source`, from two to [`INDEPENDENT_BLOCKS_MAX`], at the start of
/// `target`. Returns the length of the payload, or `None` if it would exceed `most_bytes`. The
/// remaining bytes of the target are unspecified.
pub(super) fn encode(
    engine: &mut Engine,
    source: &[u8],
    target: &mut [u8],
    most_bytes: usize,
) -> Option<usize> {
    assert!(source.len().is_multiple_of(BLOCK_BYTES), "a frame has whole blocks");
    let (entries, mut rest) = target.split_at_mut(source.len() / BLOCK_BYTES * ENTRY_BYTES);
    let mut used = entries.len();
    let (entries, _) = entries.as_chunks_mut::<ENTRY_BYTES>();
    for (block, entry) in source.chunks(BLOCK_BYTES).zip(entries) {
        if rest.len() < Engine::target_bytes(BLOCK_BYTES) {
            return None;
        }
        let encoded = engine.encode(block, rest, ENCODED_BYTES_MAX);
        let (encoding, len) = encoded.unwrap_or((Encoding::Store, BLOCK_BYTES));
        let (stored, later) = rest.split_at_mut(len);
        if encoding == Encoding::Store {
            stored.copy_from_slice(block);
        }
        used += len;
        if used > most_bytes {
            return None;
        }
        let word = u16::try_from(len | (usize::from(encoding as u8) << LENGTH_BITS));
        let word = word.expect("an entry has 16 bits for length and encoding");
        let ([low, high], [c0, c1, c2, c3]) = (word.to_le_bytes(), crc32(stored).to_le_bytes());
        *entry = [low, high, c0, c1, c2, c3];
        rest = later;
    }
    Some(used)
}

/// Copies some blocks of a payload, still encoded, to the start of `target` as a payload of their
/// own. Returns its encoding and length; `None` if one of the blocks is damaged, if they are not
/// shorter than when decoded, or if the target is too short.
pub(crate) fn cut(
    table: &BlockTable,
    payload: &[u8],
    blocks: Range<usize>,
    target: &mut [u8],
) -> Option<(Encoding, usize)> {
    assert!(!blocks.is_empty(), "a payload has a block");
    let found = blocks.clone().map(|index| {
        let block = table.stored_block(index, table.bytes_of(payload, index)).ok()?;
        Some((block.encoding, block.bytes.len()))
    });
    let found: Vec<(Encoding, usize)> = found.collect::<Option<_>>()?;
    let stored_bytes = found.iter().map(|(_, len)| len).sum::<usize>();
    let (encoding, entries) = match *found.as_slice() {
        [(encoding, _)] => (encoding, [].as_slice()),
        ref all if all.iter().all(|(encoding, _)| *encoding == Encoding::Store) => {
            (Encoding::Store, [].as_slice())
        }
        // The entry is not taken from the payload, whose entries may be damaged.
        _ => (Encoding::Blocks, table.0.get(blocks.clone())?.as_flattened()),
    };
    let used = entries.len() + stored_bytes;
    if used >= blocks.len() * BLOCK_BYTES && encoding != Encoding::Store {
        return None;
    }
    // The blocks follow each other in the payload, as they will in the new one.
    let stored = table.range(blocks.start).start..table.range(blocks.end - 1).end;
    let (head, tail) = target.get_mut(..used)?.split_at_mut(entries.len());
    head.copy_from_slice(entries);
    tail.copy_from_slice(payload.get(stored)?);
    Some((encoding, used))
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

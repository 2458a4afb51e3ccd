//! Decoding of a frame's payload.
//!
//! The source is not trusted: whatever its content, the decoder neither panics nor writes outside
//! the target. The decoder checks only the length. The frame's checksum proves that the bytes are
//! the right ones, and callers verify it first.

use zstd_safe::DCtx;

use super::{ChunkTable, Encoding};
use crate::base::units::BLOCK_BYTES;
use crate::base::{Error, ErrorContext, ErrorKind, Result, ensure};

/// Decodes payloads of every [`Encoding`]. It reuses its context, so only the first call allocates.
pub struct Decompressor {
    /// Created for the first payload, because it uses 100 KiB.
    zstd: Option<DCtx<'static>>,
    /// Buffer for a caller that processes a payload before decoding it.
    scratch: Vec<u8>,
}

impl Decompressor {
    /// Creates a decompressor.
    pub fn new() -> Self {
        Self { zstd: None, scratch: Vec::new() }
    }

    /// Returns a buffer of `len` bytes with unspecified values. Give it back with
    /// [`Decompressor::keep_scratch`].
    pub(crate) fn take_scratch(&mut self, len: usize) -> Vec<u8> {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.resize(len, 0);
        scratch
    }

    /// Stores a buffer for the next payload.
    pub(crate) fn keep_scratch(&mut self, scratch: Vec<u8>) {
        self.scratch = scratch;
    }

    /// Decodes `source` into `target`. The decoded payload must fill the target exactly.
    ///
    /// # Errors
    /// `Corrupt` if the source is not a payload of that encoding or decodes to another length. The
    /// content of the target is then unspecified.
    pub fn decompress(
        &mut self,
        encoding: Encoding,
        source: &[u8],
        target: &mut [u8],
    ) -> Result<()> {
        let decoded = match encoding {
            Encoding::Store if source.len() == target.len() => {
                target.copy_from_slice(source);
                return Ok(());
            }
            Encoding::Store => source.len(),
            Encoding::Lost => {
                let what = "the content is lost: it was damaged before the frame was moved";
                return Err(Error::new(ErrorKind::Corrupt, what));
            }
            Encoding::Chunks => return self.decompress_all(source, target),
            Encoding::Lz4 => lzzzz::lz4::decompress(source, target)
                .or_error(ErrorKind::Corrupt, "an LZ4 payload does not decode")?,
            Encoding::Zstd => self
                .zstd
                .get_or_insert_with(DCtx::create)
                .decompress(target, source)
                .map_err(zstd_safe::get_error_name)
                .or_error(ErrorKind::Corrupt, "a zstd payload does not decode")?,
        };
        assert!(
            encoding == Encoding::Store || decoded <= target.len(),
            "a codec writes within its target"
        );
        if decoded == target.len() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Corrupt,
            format!("a payload decodes to {decoded} bytes instead of {}", target.len()),
        ))
    }

    /// Decodes the start of the chunk with block `index` into `target`, which is at most as long as
    /// the decoded chunk. `source` holds the stored bytes of the chunk.
    ///
    /// # Errors
    /// `Corrupt`, as for [`Decompressor::decompress`]; also if the chunk's checksum is wrong.
    pub fn decompress_chunk(
        &mut self,
        table: &ChunkTable,
        index: usize,
        source: &[u8],
        target: &mut [u8],
    ) -> Result<()> {
        let chunk = table.stored_chunk(index, source)?;
        let bytes = chunk.blocks.len() * BLOCK_BYTES;
        self.decompress_start(chunk.encoding, chunk.bytes, bytes, target)
    }

    /// Decodes the start of a payload that decodes to `bytes` bytes into `target`, which is at most
    /// that long. The rest of the payload is not checked.
    ///
    /// # Errors
    /// See [`Decompressor::decompress`].
    pub fn decompress_start(
        &mut self,
        encoding: Encoding,
        source: &[u8],
        bytes: usize,
        target: &mut [u8],
    ) -> Result<()> {
        assert!(target.len() <= bytes, "the start of a payload is not longer than it");
        if target.len() == bytes {
            return self.decompress(encoding, source, target);
        }
        if encoding == Encoding::Lz4 {
            let decoded = lzzzz::lz4::decompress_partial(source, target, bytes)
                .or_error(ErrorKind::Corrupt, "an LZ4 payload does not decode")?;
            return ensure(
                decoded == target.len(),
                ErrorKind::Corrupt,
                "an LZ4 payload is too short",
            );
        }
        if encoding == Encoding::Store {
            let start = source.get(..target.len()).filter(|_| source.len() == bytes);
            let what = "a stored payload has the wrong length";
            target.copy_from_slice(start.or_error(ErrorKind::Corrupt, what)?);
            return Ok(());
        }
        let mut whole = self.take_scratch(bytes);
        let decoded = self.decompress(encoding, source, &mut whole);
        let (start, _) = whole.split_at(target.len());
        target.copy_from_slice(start);
        self.keep_scratch(whole);
        decoded
    }

    fn decompress_all(&mut self, source: &[u8], target: &mut [u8]) -> Result<()> {
        let is_whole = target.len().is_multiple_of(BLOCK_BYTES);
        ensure(is_whole, ErrorKind::Corrupt, "chunks outside of a frame")?;
        let table = ChunkTable::of(source, target.len() / BLOCK_BYTES)?;
        let mut rest = target;
        for blocks in table.chunks() {
            let (chunk, later) = rest.split_at_mut(blocks.len() * BLOCK_BYTES);
            let stored = table.bytes_of(source, blocks.start);
            self.decompress_chunk(&table, blocks.start, stored, chunk)?;
            rest = later;
        }
        Ok(())
    }
}

impl Default for Decompressor {
    fn default() -> Self {
        Self::new()
    }
}

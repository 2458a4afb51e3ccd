//! Decoding of a frame's payload.
//!
//! The source is not trusted: whatever its content, the decoder neither panics nor writes outside
//! the target. The decoder checks only the length. The frame's checksum proves that the bytes are
//! the right ones, and callers verify it first.

use zstd_safe::DCtx;

use super::{BlockTable, Encoding};
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
            Encoding::Blocks => return self.decompress_all(source, target),
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

    /// Decodes block `index` of a payload with this table into `target`, which has the length of a
    /// block.
    ///
    /// # Errors
    /// `Corrupt`, as for [`Decompressor::decompress`]; also if the block's checksum is wrong.
    pub fn decompress_block(
        &mut self,
        table: &BlockTable,
        payload: &[u8],
        index: usize,
        target: &mut [u8],
    ) -> Result<()> {
        self.decompress_stored(table, index, table.bytes_of(payload, index), target)
    }

    /// Decodes block `index` of a payload from its stored bytes, `source`, into `target`, which has
    /// the length of a block.
    ///
    /// # Errors
    /// See [`Decompressor::decompress_block`].
    pub(crate) fn decompress_stored(
        &mut self,
        table: &BlockTable,
        index: usize,
        source: &[u8],
        target: &mut [u8],
    ) -> Result<()> {
        assert_eq!(target.len(), BLOCK_BYTES, "a block is decoded into a block");
        let block = table.stored_block(index, source)?;
        self.decompress(block.encoding, block.bytes, target)
    }

    fn decompress_all(&mut self, source: &[u8], target: &mut [u8]) -> Result<()> {
        let is_whole = target.len().is_multiple_of(BLOCK_BYTES);
        ensure(is_whole, ErrorKind::Corrupt, "independent blocks outside of a frame")?;
        let table = BlockTable::of(source, target.len() / BLOCK_BYTES)?;
        for (index, block) in target.chunks_mut(BLOCK_BYTES).enumerate() {
            self.decompress_block(&table, source, index, block)?;
        }
        Ok(())
    }
}

impl Default for Decompressor {
    fn default() -> Self {
        Self::new()
    }
}

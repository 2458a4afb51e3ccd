//! Decoding of a frame's payload.
//!
//! The source is not trusted: whatever it holds, the decoder neither panics nor writes outside the
//! target. Only the length is checked here; that the bytes are the right ones is what the frame's
//! checksum is for, and callers verify it first.

use zstd_safe::DCtx;

use super::Encoding;
use crate::base::{Error, ErrorKind, Result};

/// Decodes payloads of every [`Encoding`]; keeps its context, so that a call allocates nothing.
pub struct Decompressor {
    zstd: DCtx<'static>,
}

impl Decompressor {
    /// A decompressor.
    pub fn new() -> Self {
        Self { zstd: DCtx::create() }
    }

    /// Decodes `source` into `target`, all of it: the length of the target is the length that the
    /// payload must have.
    ///
    /// # Errors
    /// `Corrupt` if the source is not a payload of that encoding or decodes to another length; the
    /// target's content is then unspecified.
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
            Encoding::Lz4 => lz4_flex::block::decompress_into(source, target).map_err(|cause| {
                Error::new(ErrorKind::Corrupt, "an LZ4 payload does not decode").caused_by(cause)
            })?,
            Encoding::Zstd => self.zstd.decompress(target, source).map_err(|code| {
                Error::new(ErrorKind::Corrupt, "a zstd payload does not decode")
                    .caused_by(zstd_safe::get_error_name(code))
            })?,
        };
        if decoded == target.len() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Corrupt,
            format!("a payload decodes to {decoded} instead of {} bytes", target.len()),
        ))
    }
}

impl Default for Decompressor {
    fn default() -> Self {
        Self::new()
    }
}

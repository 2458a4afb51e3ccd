//! Decoding of a frame's payload.
//!
//! The source is not trusted: for any content, the decoder neither panics nor writes outside the
//! target. Only the length is checked here. The frame's checksum proves that the bytes are the
//! right ones, and callers verify it first.

use zstd_safe::DCtx;

use super::Encoding;
use crate::base::{Error, ErrorContext, ErrorKind, Result};

/// Decodes payloads of every [`Encoding`]. It keeps its context, so a call allocates nothing.
pub struct Decompressor {
    zstd: DCtx<'static>,
}

impl Decompressor {
    /// Creates a decompressor.
    pub fn new() -> Self {
        Self { zstd: DCtx::create() }
    }

    /// Decodes `source` into all of `target`. The length of the target is the length that the
    /// decoded payload must have.
    ///
    /// # Errors
    /// `Corrupt` if the source is not a payload of that encoding or decodes to another length. The
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
            Encoding::Lost => {
                let what = "the content is lost: it was damaged before the frame was moved";
                return Err(Error::new(ErrorKind::Corrupt, what));
            }
            Encoding::Lz4 => lz4_flex::block::decompress_into(source, target)
                .or_error(ErrorKind::Corrupt, "an LZ4 payload does not decode")?,
            Encoding::Zstd => self
                .zstd
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
}

impl Default for Decompressor {
    fn default() -> Self {
        Self::new()
    }
}

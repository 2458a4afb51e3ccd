//! The codecs: encode one payload, regardless of the saving.
//!
//! An engine reuses its tables and contexts but otherwise remembers nothing of earlier payloads, so
//! equal payloads have equal encodings. The caller decides whether the saving is worthwhile.

use lz4_flex::block::{CompressTable, compress_into_with_table, get_maximum_output_size};
use zstd_safe::{CCtx, CParameter};

use super::{Codec, Encoding};

/// Payloads shorter than this use LZ4's table with 16-bit entries, which is half as large to clear
/// and hashes four bytes. Longer payloads use the table with 32-bit entries, which hashes five.
///
/// Measured on a system's programs, libraries and documents: from 16 KiB up, the large table
/// encodes 15 % faster, and its blocks decode 10 % faster and are 0.4 % larger (0.1 % from 32 KiB
/// up). At 8 KiB they would be 0.9 % larger. The small table does not support 64 KiB. Source:
/// lz4_flex, `CompressTable`.
const LZ4_SMALL_BYTES: usize = 16 << 10;
const _: () = assert!(LZ4_SMALL_BYTES <= 64 << 10, "entries of the small table have 16 bits");

/// One codec with its tables and contexts.
pub struct Engine(Kind);

enum Kind {
    None,
    // Both tables exist from the start, because the codec would otherwise replace the small one
    // permanently at the first large payload.
    Lz4 { small: CompressTable, large: CompressTable },
    Zstd(CCtx<'static>),
}

impl Engine {
    /// Creates an engine for `codec`.
    pub fn new(codec: Codec) -> Self {
        Self(match codec {
            Codec::None => Kind::None,
            Codec::Lz4 => {
                Kind::Lz4 { small: CompressTable::small(), large: CompressTable::large() }
            }
            Codec::Zstd { level } => {
                let mut context = CCtx::create();
                context
                    .set_parameter(CParameter::CompressionLevel(level))
                    .expect("zstd clamps levels instead of refusing them");
                Kind::Zstd(context)
            }
        })
    }

    /// Returns the target bytes that a source of `source_bytes` needs if the result may have any
    /// length.
    pub fn target_bytes(source_bytes: usize) -> usize {
        // LZ4's bound is the larger one.
        let bytes = get_maximum_output_size(source_bytes);
        assert!(bytes >= source_bytes, "a target has room for the source as it is");
        bytes
    }

    /// Returns whether this is [`Codec::None`], which encodes nothing.
    pub fn is_none(&self) -> bool {
        matches!(self.0, Kind::None)
    }

    /// Encodes `source` at the start of `target`. Returns the encoding and the encoded length.
    /// Returns `None` if the length would exceed `most_bytes`, and always for [`Codec::None`]. The
    /// remaining bytes of the target are unspecified.
    pub fn encode(
        &mut self,
        source: &[u8],
        target: &mut [u8],
        most_bytes: usize,
    ) -> Option<(Encoding, usize)> {
        let room = target.len();
        let (encoding, encoded) = match &mut self.0 {
            Kind::None => return None,
            Kind::Lz4 { small, large } => {
                let table = if source.len() < LZ4_SMALL_BYTES { small } else { large };
                (Encoding::Lz4, compress_into_with_table(source, target, table).ok()?)
            }
            // The only possible error is a target that is too small, which zstd detects early.
            Kind::Zstd(context) => {
                let room = most_bytes.min(target.len());
                let (target, _) = target.split_at_mut(room);
                (Encoding::Zstd, context.compress2(target, source).ok()?)
            }
        };
        assert!(encoded <= room, "a codec writes within its target");
        (encoded <= most_bytes).then_some((encoding, encoded))
    }
}

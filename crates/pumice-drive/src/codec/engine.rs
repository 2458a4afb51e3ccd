//! The codecs themselves: one payload, encoded, whatever it is worth.
//!
//! Keeps tables and contexts from call to call; remembers nothing else of earlier payloads, so the
//! same payload always becomes the same bytes. Whether they pay is for the caller to say.

use lz4_flex::block::{CompressTable, compress_into_with_table, get_maximum_output_size};
use zstd_safe::{CCtx, CParameter};

use super::{Codec, Encoding};

/// Payloads shorter than this use LZ4's table with 16-bit entries, which has half as much to clear
/// and hashes four bytes; longer ones the table with 32-bit entries, which hashes five.
///
/// Measured on a system's programs, libraries and documents: from 16 KiB on the large table encodes
/// 15 % faster, its blocks decode 10 % faster and are 0.4 % larger (0.1 % from 32 KiB on); at 8 KiB
/// they would be 0.9 % larger. The small one cannot take 64 KiB. Source: lz4_flex, `CompressTable`.
const LZ4_SMALL_BYTES: usize = 16 << 10;

/// One codec with its tables and contexts.
pub struct Engine(Kind);

enum Kind {
    None,
    // Both tables from the start: the codec would otherwise replace the small one for good when the
    // first large payload comes.
    Lz4 { small: CompressTable, large: CompressTable },
    Zstd(CCtx<'static>),
}

impl Engine {
    /// An engine for `codec`.
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

    /// Bytes of target that a source of `source_bytes` needs while it is being encoded, if the
    /// result may have any length.
    pub fn target_bytes(source_bytes: usize) -> usize {
        // LZ4's bound is the larger one.
        get_maximum_output_size(source_bytes)
    }

    /// Whether this is [`Codec::None`], which encodes nothing.
    pub fn is_none(&self) -> bool {
        matches!(self.0, Kind::None)
    }

    /// Encodes `source` at the start of `target` and gives the encoding and the encoded length;
    /// none if that would be more than `most_bytes`, or for [`Codec::None`]. Bytes of the target
    /// behind it are unspecified.
    pub fn encode(
        &mut self,
        source: &[u8],
        target: &mut [u8],
        most_bytes: usize,
    ) -> Option<(Encoding, usize)> {
        let (encoding, encoded) = match &mut self.0 {
            Kind::None => return None,
            Kind::Lz4 { small, large } => {
                let table = if source.len() < LZ4_SMALL_BYTES { small } else { large };
                (Encoding::Lz4, compress_into_with_table(source, target, table).ok()?)
            }
            // The only error there can be is that the target is too small; zstd notices early.
            Kind::Zstd(context) => {
                let room = most_bytes.min(target.len());
                (Encoding::Zstd, context.compress2(&mut target[..room], source).ok()?)
            }
        };
        (encoded <= most_bytes).then_some((encoding, encoded))
    }
}

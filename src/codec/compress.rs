//! Encoding of a frame's payload.
//!
//! Invariant: a payload never grows, and one that saves too little to pay for its decoding is
//! stored as it is.

use lz4_flex::block::{CompressTable, compress_into_with_table, get_maximum_output_size};
use zstd_safe::{CCtx, CParameter};

use super::backoff::Backoff;
use super::{Codec, Encoding};

/// A payload is kept encoded only if that saves at least this fraction of it (one in so many
/// bytes).
///
/// Every later read pays for the decoding. On 1 GiB of a system's programs, libraries and documents
/// 1/32 spares that for 2 % of the 4 KiB frames with LZ4 (1 % with zstd), which together would have
/// saved 0.04 % of the bytes; in frames of 32 KiB for 4 % (2 %), and 0.06 %.
pub const SAVING_DIVISOR: usize = 32;

/// Payloads shorter than this use LZ4's table with 16-bit entries, which has half as much to clear
/// and hashes four bytes; longer ones the table with 32-bit entries, which hashes five.
///
/// Measured on a system's programs, libraries and documents: from 16 KiB on the large table encodes
/// 15 % faster, its blocks decode 10 % faster and are 0.4 % larger (0.1 % from 32 KiB on); at 8 KiB
/// they would be 0.9 % larger. The small one cannot take 64 KiB. Source: lz4_flex, `CompressTable`.
const LZ4_SMALL_BYTES: usize = 16 << 10;

/// Encodes payloads with one [`Codec`].
///
/// Keeps its tables and contexts, so that a call allocates nothing; only zstd's workspace follows
/// the size of the payloads: it grows when one needs more than any before, and is given back when
/// 128 in a row needed less than a third. Source: zstd, `ZSTD_WORKSPACETOOLARGE_FACTOR`.
///
/// Nothing but the codec itself looks at a payload beforehand: an entropy test costs every 4 KiB
/// payload 0.6 us, more than random data costs on average when attempts are skipped as below
/// (0.2 us LZ4, 0.3 us zstd -1, 0.5 us zstd 1; copying alone 0.15 us).
///
/// Remembers whether the last payloads were worth the attempt, and skips some attempts after many
/// failures (see [`super::FRAMES_MISSED_MAX`]). The result therefore depends on the order of calls,
/// and on nothing else.
pub struct Compressor {
    engine: Engine,
    backoff: Backoff,
}

enum Engine {
    None,
    // Both tables from the start: the codec would otherwise replace the small one for good when the
    // first large payload comes.
    Lz4 { small: CompressTable, large: CompressTable },
    Zstd(CCtx<'static>),
}

impl Compressor {
    /// A compressor for `codec`.
    pub fn new(codec: Codec) -> Self {
        let engine = match codec {
            Codec::None => Engine::None,
            Codec::Lz4 => {
                Engine::Lz4 { small: CompressTable::small(), large: CompressTable::large() }
            }
            Codec::Zstd { level } => {
                let mut context = CCtx::create();
                context
                    .set_parameter(CParameter::CompressionLevel(level))
                    .expect("zstd clamps levels instead of refusing them");
                Engine::Zstd(context)
            }
        };
        Self { engine, backoff: Backoff::default() }
    }

    /// Bytes of target that a source of `source_bytes` may need while it is being encoded.
    pub fn target_bytes(source_bytes: usize) -> usize {
        // LZ4's bound is the largest of all: zstd is told to stop where it no longer pays.
        get_maximum_output_size(source_bytes)
    }

    /// Encodes `source` at the start of `target` and gives the encoding and the encoded length,
    /// which is at most the length of the source. Bytes of the target behind it are unspecified.
    ///
    /// # Panics
    /// If the target is shorter than [`Compressor::target_bytes`] says.
    pub fn compress(&mut self, source: &[u8], target: &mut [u8]) -> (Encoding, usize) {
        assert!(target.len() >= Self::target_bytes(source.len()));
        if !matches!(self.engine, Engine::None) && self.backoff.is_worth_trying() {
            let encoded = self.encode(source, target);
            self.backoff.record(encoded.is_some());
            if let Some(encoded) = encoded {
                return encoded;
            }
        }
        target[..source.len()].copy_from_slice(source);
        (Encoding::Store, source.len())
    }

    /// Encodes if that saves enough.
    fn encode(&mut self, source: &[u8], target: &mut [u8]) -> Option<(Encoding, usize)> {
        let worthwhile_bytes = source.len() - source.len().div_ceil(SAVING_DIVISOR);
        let (encoding, encoded) = match &mut self.engine {
            Engine::None => return None,
            Engine::Lz4 { small, large } => {
                let table = if source.len() < LZ4_SMALL_BYTES { small } else { large };
                (Encoding::Lz4, compress_into_with_table(source, target, table).ok()?)
            }
            // The only error there can be is that the target is too small, and then it does not
            // pay; zstd notices early.
            Engine::Zstd(context) => {
                let target = &mut target[..worthwhile_bytes];
                (Encoding::Zstd, context.compress2(target, source).ok()?)
            }
        };
        (encoded <= worthwhile_bytes).then_some((encoding, encoded))
    }
}

//! Encoding of a frame's payload.
//!
//! Invariant: a payload never grows, and one that saves too little to pay for its decoding is
//! stored as it is.

use super::backoff::Backoff;
use super::{Codec, Encoding, Engine};

/// A payload is kept encoded only if that saves at least this fraction of it (one in so many
/// bytes).
///
/// Every later read pays for the decoding. On 1 GiB of a system's programs, libraries and documents
/// 1/32 spares that for 2 % of the 4 KiB frames with LZ4 (1 % with zstd), which together would have
/// saved 0.04 % of the bytes; in frames of 32 KiB for 4 % (2 %), and 0.06 %.
pub const SAVING_DIVISOR: usize = 32;

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

impl Compressor {
    /// A compressor for `codec`.
    pub fn new(codec: Codec) -> Self {
        Self { engine: Engine::new(codec), backoff: Backoff::default() }
    }

    /// Bytes of target that a source of `source_bytes` may need while it is being encoded.
    pub fn target_bytes(source_bytes: usize) -> usize {
        Engine::target_bytes(source_bytes)
    }

    /// Encodes `source` at the start of `target` and gives the encoding and the encoded length,
    /// which is at most the length of the source. Bytes of the target behind it are unspecified.
    ///
    /// # Panics
    /// If the target is shorter than [`Compressor::target_bytes`] says.
    pub fn compress(&mut self, source: &[u8], target: &mut [u8]) -> (Encoding, usize) {
        assert!(target.len() >= Self::target_bytes(source.len()));
        if !self.engine.is_none() && self.backoff.is_worth_trying() {
            let worthwhile_bytes = source.len() - source.len().div_ceil(SAVING_DIVISOR);
            let encoded = self.engine.encode(source, target, worthwhile_bytes);
            self.backoff.record(encoded.is_some());
            if let Some(encoded) = encoded {
                return encoded;
            }
        }
        target[..source.len()].copy_from_slice(source);
        (Encoding::Store, source.len())
    }
}

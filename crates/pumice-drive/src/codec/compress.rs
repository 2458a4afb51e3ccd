//! Encoding of a frame's payload.
//!
//! Invariant: a payload never grows, and a payload whose encoding saves too little to justify
//! decoding is stored as it is.

use super::backoff::Backoff;
use super::chunks::{self, CHUNK_TABLE_BYTES, ChunkSize};
use super::{CHUNKED_BLOCKS_MAX, Codec, Encoding, Engine, FrameForm, SAVING_DIVISOR};
use crate::base::units::BLOCK_BYTES;

/// Encodes payloads with one [`Codec`].
///
/// The compressor reuses its tables and contexts, so a call allocates nothing. Only zstd's
/// workspace follows the size of the payloads: it grows when a payload needs more than any earlier
/// one, and is freed when 128 consecutive payloads needed less than a third. Source: zstd,
/// `ZSTD_WORKSPACETOOLARGE_FACTOR`.
///
/// Payloads are not inspected before the codec runs: an entropy test costs every 4 KiB payload 0.6
/// us, which is more than the average cost of random data when attempts are skipped (0.2 us LZ4,
/// 0.3 us zstd -1, 0.5 us zstd 1; copying alone 0.15 us).
///
/// The compressor remembers whether recent payloads were worth the attempt and skips some attempts
/// after many failures (see [`super::FRAMES_MISSED_MAX`]). The result therefore depends on the
/// order of calls and on nothing else.
pub struct Compressor {
    encoder: Encoder,
    backoff: Backoff,
    form: FrameForm,
}

/// Encodes payloads like [`Compressor`], but tries each of them.
pub struct Encoder {
    engine: Engine,
    /// Learned from the last frame.
    size: ChunkSize,
}

impl Encoder {
    /// Creates an encoder for `codec`.
    pub fn new(codec: Codec) -> Self {
        Self { engine: Engine::new(codec), size: ChunkSize::default() }
    }

    /// Replaces what was learned from the last frame: `source_bytes` of it took `stored_bytes`.
    pub fn expect(&mut self, source_bytes: usize, stored_bytes: usize) {
        self.size = ChunkSize::after(source_bytes / BLOCK_BYTES, stored_bytes);
    }

    /// Encodes `source` like [`Compressor::compress`].
    ///
    /// # Panics
    /// If the target is shorter than [`Compressor::target_bytes`] of the source's length.
    pub fn encode_or_store(
        &mut self,
        form: FrameForm,
        source: &[u8],
        target: &mut [u8],
    ) -> (Encoding, usize) {
        encode(self, form, source, target).unwrap_or_else(|| store(source, target))
    }
}

impl Compressor {
    /// Creates a compressor for `codec`.
    pub fn new(codec: Codec) -> Self {
        let (encoder, backoff) = (Encoder::new(codec), Backoff::default());
        Self { encoder, backoff, form: FrameForm::Solid }
    }

    /// Sets the form of frames. Payloads of several blocks, up to [`CHUNKED_BLOCKS_MAX`], are
    /// encoded in that form, and other payloads as a whole.
    #[must_use]
    pub fn with_form(self, form: FrameForm) -> Self {
        Self { form, ..self }
    }

    /// Returns the target bytes that a source of `source_bytes` may need.
    pub fn target_bytes(source_bytes: usize) -> usize {
        Engine::target_bytes(source_bytes) + CHUNK_TABLE_BYTES
    }

    /// Encodes `source` at the start of `target`. Returns the encoding and the encoded length,
    /// which is at most the length of the source. The remaining bytes of the target are
    /// unspecified.
    ///
    /// # Panics
    /// If the target is shorter than [`Compressor::target_bytes`] of the source's length.
    pub fn compress(&mut self, source: &[u8], target: &mut [u8]) -> (Encoding, usize) {
        assert!(
            target.len() >= Self::target_bytes(source.len()),
            "the target holds the longest encoding"
        );
        if !self.encoder.engine.is_none() && self.backoff.is_worth_trying() {
            let encoded = encode(&mut self.encoder, self.form, source, target);
            self.backoff.record(encoded.is_some());
            if let Some(encoded) = encoded {
                return encoded;
            }
        }
        store(source, target)
    }

    /// Returns whether the next frame will be tried.
    pub(crate) fn is_trying(&self) -> bool {
        !self.encoder.engine.is_none() && self.backoff.is_trying()
    }

    /// Records the results of frames that were compressed elsewhere.
    pub(crate) fn note(&mut self, encodings: impl Iterator<Item = Encoding>) {
        encodings.for_each(|encoding| self.backoff.record_late(encoding != Encoding::Store));
    }
}

/// Encodes `source` at the start of `target`, unless that saves too little.
fn encode(
    encoder: &mut Encoder,
    form: FrameForm,
    source: &[u8],
    target: &mut [u8],
) -> Option<(Encoding, usize)> {
    let worthwhile_bytes = source.len() - source.len().div_ceil(SAVING_DIVISOR);
    let is_of_blocks = source.len().is_multiple_of(BLOCK_BYTES)
        && (2..=CHUNKED_BLOCKS_MAX).contains(&(source.len() / BLOCK_BYTES));
    let Encoder { engine, size } = encoder;
    let encoded = if form == FrameForm::Chunks && is_of_blocks {
        chunks::encode(engine, size, source, target, worthwhile_bytes)?
    } else {
        engine.encode(source, target, worthwhile_bytes)?
    };
    assert!(encoded.1 <= worthwhile_bytes, "an encoded payload that does not pay");
    Some(encoded)
}

fn store(source: &[u8], target: &mut [u8]) -> (Encoding, usize) {
    let (stored, _) = target.split_at_mut(source.len());
    stored.copy_from_slice(source);
    (Encoding::Store, source.len())
}

//! Measures the savings of codecs, chunk by chunk.
//!
//! Each chunk is compressed independently and its stored size is counted to the byte; a chunk that
//! does not shrink counts as uncompressed. Frame headers, rounding to sectors and a drive's
//! compression threshold are not counted, because they differ between drives, and the drive reports
//! them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Saving;
use pumice_drive::codec::{Codec, Engine};

/// Compresses chunks with one codec and sums their sizes.
pub struct Meter {
    engine: Engine,
    target: Vec<u8>,
    tally: Tally,
}

/// Sums over chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tally {
    chunks: u64,
    bytes: u64,
    stored_bytes: u64,
    sum: f64,
    sum_of_squares: f64,
}

impl Tally {
    /// Returns the number of chunks.
    pub fn chunks(&self) -> u64 {
        self.chunks
    }

    /// Returns the saving over all bytes.
    pub fn saved(&self) -> Saving {
        Saving::of(self.bytes, self.stored_bytes)
    }

    /// Returns the standard deviation of the saving between chunks, in percentage points.
    pub fn deviation_points(&self) -> f64 {
        let mean = self.sum / self.chunks.max(1) as f64;
        let variance = self.sum_of_squares / self.chunks.max(1) as f64 - mean * mean;
        variance.max(0.0).sqrt() * 100.0
    }
}

impl Meter {
    /// Returns an empty meter.
    pub fn new(codec: Codec) -> Self {
        Self { engine: Engine::new(codec), target: Vec::new(), tally: Tally::default() }
    }

    /// Compresses and counts one chunk. Returns its saving.
    pub fn add(&mut self, chunk: &[u8]) -> Saving {
        let stored = self.stored_bytes(chunk).min(chunk.len());
        let saving = Saving::of(chunk.len() as u64, stored as u64);
        let tally = &mut self.tally;
        tally.chunks += 1;
        tally.bytes += chunk.len() as u64;
        tally.stored_bytes += stored as u64;
        tally.sum += saving.fraction();
        tally.sum_of_squares += saving.fraction() * saving.fraction();
        saving
    }

    /// Splits `data` into chunks of `chunk_bytes` and adds them. The last chunk may be shorter.
    ///
    /// # Panics
    /// If `chunk_bytes` is 0.
    pub fn add_chunks(&mut self, data: &[u8], chunk_bytes: usize) {
        for chunk in data.chunks(chunk_bytes) {
            self.add(chunk);
        }
    }

    /// Returns the totals so far.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    fn stored_bytes(&mut self, chunk: &[u8]) -> usize {
        let room = Engine::target_bytes(chunk.len());
        if self.target.len() < room {
            self.target.resize(room, 0);
        }
        let encoded = self.engine.encode(chunk, &mut self.target, room);
        // A chunk without an encoded form counts as uncompressed. This cannot happen unless the
        // target buffer is full.
        encoded.map_or(chunk.len(), |(_, bytes)| bytes)
    }
}

/// Returns the saving of `codec` for `data` in independent chunks of `chunk_bytes`.
///
/// # Panics
/// If `chunk_bytes` is 0.
pub fn measure(data: &[u8], codec: Codec, chunk_bytes: usize) -> Saving {
    let mut meter = Meter::new(codec);
    meter.add_chunks(data, chunk_bytes);
    meter.tally().saved()
}

const SURVEY_CODECS: [Codec; 2] = [Codec::Lz4, Codec::Zstd { level: 1 }];

const SURVEY_CHUNK_BYTES: [usize; 3] = [4 << 10, 16 << 10, 64 << 10];

/// Measures data with LZ4 and zstd:1 in chunks of 4, 16 and 64 KiB.
pub struct Survey(Vec<(Codec, usize, Meter)>);

/// One result of a survey.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// The codec.
    pub codec: String,
    /// Chunk size in bytes.
    pub chunk_bytes: usize,
    /// Saving over all bytes.
    #[serde(flatten)]
    pub saved: Saving,
    /// Standard deviation between chunks, in percentage points.
    pub deviation_points: f64,
    /// Number of chunks.
    pub chunks: u64,
}

impl Default for Survey {
    fn default() -> Self {
        let pairs = SURVEY_CODECS.map(|codec| SURVEY_CHUNK_BYTES.map(|chunk| (codec, chunk)));
        Self(pairs.into_iter().flatten().map(|(c, chunk)| (c, chunk, Meter::new(c))).collect())
    }
}

impl Survey {
    /// Measures `data`, split into chunks from its first byte.
    pub fn add(&mut self, data: &[u8]) {
        for (_, chunk_bytes, meter) in &mut self.0 {
            meter.add_chunks(data, *chunk_bytes);
        }
    }

    /// Returns the findings, ordered by codec and then by chunk size.
    pub fn findings(&self) -> Vec<Finding> {
        let findings = self.0.iter().map(|(codec, chunk_bytes, meter)| Finding {
            codec: codec.to_string(),
            chunk_bytes: *chunk_bytes,
            saved: meter.tally().saved(),
            deviation_points: meter.tally().deviation_points(),
            chunks: meter.tally().chunks(),
        });
        findings.collect()
    }
}

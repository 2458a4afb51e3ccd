//! What codecs make of data, chunk by chunk.
//!
//! Packing rule: each chunk is compressed on its own, stored to the byte, and as it is where that
//! is shorter. Headers of frames, rounding to sectors and a drive's threshold for what pays are not
//! counted; they differ from drive to drive and are the drive's to report.

use serde::{Deserialize, Serialize};

use super::Saving;
use pumice_drive::codec::{Codec, Engine};

/// Compresses chunks with one codec and counts.
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
    /// Chunks counted.
    pub fn chunks(&self) -> u64 {
        self.chunks
    }

    /// The saving over all bytes.
    pub fn saved(&self) -> Saving {
        Saving::of(self.bytes, self.stored_bytes)
    }

    /// Standard deviation of the saving between chunks, in percentage points.
    pub fn deviation_points(&self) -> f64 {
        let mean = self.sum / self.chunks.max(1) as f64;
        let variance = self.sum_of_squares / self.chunks.max(1) as f64 - mean * mean;
        variance.max(0.0).sqrt() * 100.0
    }
}

impl Meter {
    /// A meter that has counted nothing yet.
    pub fn new(codec: Codec) -> Self {
        Self { engine: Engine::new(codec), target: Vec::new(), tally: Tally::default() }
    }

    /// Compresses one chunk, counts it and gives what it saves.
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

    /// Cuts `data` into chunks of `chunk_bytes` (the last may be shorter) and adds them all.
    ///
    /// # Panics
    /// If `chunk_bytes` is 0.
    pub fn add_chunks(&mut self, data: &[u8], chunk_bytes: usize) {
        for chunk in data.chunks(chunk_bytes) {
            self.add(chunk);
        }
    }

    /// What was counted so far.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    fn stored_bytes(&mut self, chunk: &[u8]) -> usize {
        let room = Engine::target_bytes(chunk.len());
        if self.target.len() < room {
            self.target.resize(room, 0);
        }
        let encoded = self.engine.encode(chunk, &mut self.target, room);
        // Without an encoded form, which only a full target would cause, a chunk is stored.
        encoded.map_or(chunk.len(), |(_, bytes)| bytes)
    }
}

/// What `codec` saves of `data` in independent chunks of `chunk_bytes`.
///
/// # Panics
/// If `chunk_bytes` is 0.
pub fn measure(data: &[u8], codec: Codec, chunk_bytes: usize) -> Saving {
    let mut meter = Meter::new(codec);
    meter.add_chunks(data, chunk_bytes);
    meter.tally().saved()
}

/// The codecs that a [`Survey`] measures with.
const SURVEY_CODECS: [Codec; 2] = [Codec::Lz4, Codec::Zstd { level: 1 }];

/// The chunks that a [`Survey`] measures in.
const SURVEY_CHUNK_BYTES: [usize; 3] = [4 << 10, 16 << 10, 64 << 10];

/// Measures data with LZ4 and zstd:1 in chunks of 4, 16 and 64 KiB at once.
pub struct Survey(Vec<(Codec, usize, Meter)>);

/// One line of a survey.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// The codec.
    pub codec: String,
    /// Bytes of a chunk.
    pub chunk_bytes: usize,
    /// What it saves over all bytes.
    #[serde(flatten)]
    pub saved: Saving,
    /// Standard deviation between chunks, in percentage points.
    pub deviation_points: f64,
    /// Chunks measured.
    pub chunks: u64,
}

impl Default for Survey {
    fn default() -> Self {
        let pairs = SURVEY_CODECS.map(|codec| SURVEY_CHUNK_BYTES.map(|chunk| (codec, chunk)));
        Self(pairs.into_iter().flatten().map(|(c, chunk)| (c, chunk, Meter::new(c))).collect())
    }
}

impl Survey {
    /// Measures `data`, cut into chunks from its beginning.
    pub fn add(&mut self, data: &[u8]) {
        for (_, chunk_bytes, meter) in &mut self.0 {
            meter.add_chunks(data, *chunk_bytes);
        }
    }

    /// What was found, codec by codec, chunks from small to large.
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

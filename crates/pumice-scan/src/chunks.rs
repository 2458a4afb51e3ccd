//! The size of a chunk after compression, both with the codec alone and as stored by a drive.
//!
//! A chunk becomes frames and fills, as in a write to the drive: blocks of one repeated byte become
//! fills; the others are compressed together, or stored uncompressed if compression saves too
//! little. A chunk of the size of a drive's frames is compressed in pieces, as in a frame of
//! chunks. Packing is byte by byte, with a header for each record. [`LOG_OVERHEAD`] adds the
//! overhead of batches, segments and the rest of the map.

use rustix::time::{ClockId, clock_gettime};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::codec::{Codec, Engine};
use pumice_drive::base::Lba;
use pumice_drive::base::units::{BLOCK_BYTES, format_size_exact};
use pumice_drive::codec::{Compressor, Encoder, Encoding, FrameForm, SAVING_DIVISOR};
use pumice_drive::controller::{FRAME_BLOCKS_DEFAULT, Span, spans};
use pumice_drive::format::{LEAF_TABLE_BYTES, RECORD_HEADER_BYTES, TABLE_BLOCKS_MIN};

/// Blocks per fill record in large writes, because the drive splits writes at 1 MiB.
const FILL_BLOCKS: usize = 256;

/// Overhead of the log in addition to its records, in bytes for each byte of data that is written
/// in requests of 1 MiB: batch headers and their alignment, segment headers, the map and its
/// checkpoints. Measured on 44 MiB each of noise, generated data, libraries, documents and sources:
/// 0.0074 to 0.0107. The test `a_drive_stores_data_as_the_scan_predicts` verifies it.
pub(super) const LOG_OVERHEAD: f64 = 0.009;

/// A codec and a chunk size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Config {
    /// The codec.
    pub codec: Codec,
    /// Chunk size in bytes, a power of two from 4 KiB to 256 KiB.
    pub chunk_bytes: u32,
}

impl std::fmt::Display for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} in chunks of {}", self.codec, format_size_exact(self.chunk_bytes.into()))
    }
}

/// The stored size of data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Taken {
    /// With the codec alone: each run of blocks counts at most its own length, and fills count 0.
    pub(super) codec_bytes: u64,
    /// As records of the drive.
    pub(super) record_bytes: u64,
}

impl Taken {
    pub(super) fn add(&mut self, other: Taken) {
        self.codec_bytes += other.codec_bytes;
        self.record_bytes += other.record_bytes;
    }
}

/// Time spent and bytes compressed by one configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Effort {
    pub(super) bytes: u64,
    pub(super) ns: u64,
}

impl Effort {
    pub(super) fn add(&mut self, other: Effort) {
        self.bytes += other.bytes;
        self.ns += other.ns;
    }
}

/// Consecutive whole blocks of a file.
#[derive(Clone, Copy)]
pub(super) struct Piece<'a> {
    pub(super) bytes: &'a [u8],
    /// Whether each block contains data; `None` if all do. Blocks without data are zeroes.
    pub(super) has_data: Option<&'a [bool]>,
}

impl<'a> Piece<'a> {
    /// Splits the piece into chunks; the last one may be shorter.
    fn chunks(self, chunk_bytes: usize) -> impl Iterator<Item = Piece<'a>> {
        let blocks = chunk_bytes / BLOCK_BYTES;
        self.bytes.chunks(chunk_bytes).enumerate().map(move |(index, bytes)| Piece {
            bytes,
            has_data: self.has_data.map(|all| &all[index * blocks..][..bytes.len() / BLOCK_BYTES]),
        })
    }

    /// Returns the number of blocks with data in a range of blocks.
    fn data_blocks(self, range: std::ops::Range<usize>) -> usize {
        let marked = |all: &[bool]| all[range.clone()].iter().filter(|has_data| **has_data).count();
        self.has_data.map_or(range.len(), marked)
    }

    fn data_bytes(self) -> u64 {
        (self.data_blocks(0..self.bytes.len() / BLOCK_BYTES) * BLOCK_BYTES) as u64
    }
}

/// Measures chunks in every configuration. Each thread has its own.
pub(super) struct ChunkMeter {
    configs: Vec<(Config, Codecs, Effort)>,
    target: Vec<u8>,
}

/// The encoders of one configuration.
struct Codecs {
    engine: Engine,
    /// For frames of the default size: how a drive encodes them.
    frames: Option<Encoder>,
    /// Time that compression took which a drive does not do.
    aside_ns: u64,
}

impl Codecs {
    fn new(config: &Config) -> Self {
        let is_frame =
            config.chunk_bytes as usize == usize::from(FRAME_BLOCKS_DEFAULT) * BLOCK_BYTES;
        let codec = config.codec.of_drive().filter(|_| is_frame);
        Self { engine: Engine::new(config.codec), frames: codec.map(Encoder::new), aside_ns: 0 }
    }

    /// Returns the length of `bytes` with the codec alone, and the length that a drive stores,
    /// including the table of its chunks in the map.
    fn encode(&mut self, bytes: &[u8], target: &mut [u8]) -> (usize, usize) {
        let began_ns = self.frames.as_ref().map(|_| busy_ns());
        let alone = self.engine.encode(bytes, target).unwrap_or(bytes.len());
        let worthwhile = bytes.len() - bytes.len().div_ceil(SAVING_DIVISOR);
        let Some(frames) = &mut self.frames else {
            return (alone, if alone <= worthwhile { alone } else { bytes.len() });
        };
        self.aside_ns += busy_ns() - began_ns.unwrap_or_default();
        // Frames before it on the drive are likely to be similar.
        frames.expect(bytes.len(), alone);
        let (encoding, len) = frames.encode_or_store(FrameForm::Chunks, bytes, target);
        let is_long = bytes.len() >= usize::from(TABLE_BLOCKS_MIN) * BLOCK_BYTES;
        let has_table = is_long && matches!(encoding, Encoding::Chunks | Encoding::Store);
        (alone, len + if has_table { LEAF_TABLE_BYTES } else { 0 })
    }
}

impl ChunkMeter {
    pub(super) fn new(configs: &[Config]) -> Self {
        let largest = configs.iter().map(|config| config.chunk_bytes).max().unwrap_or(0);
        let codecs = configs.iter().map(|config| (*config, Codecs::new(config), Effort::default()));
        let target_bytes =
            Engine::target_bytes(largest as usize).max(Compressor::target_bytes(largest as usize));
        Self { configs: codecs.collect(), target: vec![0; target_bytes] }
    }

    /// Returns the stored size of `piece`, split into chunks of configuration `index`. Calls `heed`
    /// for each chunk with its number of data bytes and their stored size.
    pub(super) fn measure(
        &mut self,
        index: usize,
        piece: Piece<'_>,
        mut heed: impl FnMut(u64, Taken),
    ) -> Taken {
        let (config, codecs, effort) = &mut self.configs[index];
        codecs.aside_ns = 0;
        let began_ns = busy_ns();
        let mut all = Taken::default();
        for chunk in piece.chunks(config.chunk_bytes as usize) {
            let taken = taken(codecs, &mut self.target, chunk);
            all.add(taken);
            heed(chunk.data_bytes(), taken);
        }
        effort.bytes += piece.bytes.len() as u64;
        effort.ns += busy_ns() - began_ns - codecs.aside_ns;
        all
    }

    /// Returns the effort of each configuration, in order.
    pub(super) fn efforts(&self) -> impl Iterator<Item = Effort> {
        self.configs.iter().map(|(_, _, effort)| *effort)
    }
}

/// Returns the CPU time of this thread, which excludes waiting for a processor.
fn busy_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns the stored size of one chunk: a frame and the fills around it. Holes need no space.
fn taken(codecs: &mut Codecs, target: &mut [u8], chunk: Piece<'_>) -> Taken {
    let mut taken = Taken::default();
    for span in spans(Lba(0), chunk.bytes, u16::MAX) {
        let record_bytes = match span {
            Span::Fill { lba, count, .. } => {
                let (first, count) = (lba.0 as usize, count as usize);
                let fills = chunk.data_blocks(first..first + count);
                match fills {
                    0 => 0,
                    // Part of a record for a longer run.
                    _ if count * BLOCK_BYTES == chunk.bytes.len() => {
                        (RECORD_HEADER_BYTES * fills).div_ceil(FILL_BLOCKS)
                    }
                    _ => RECORD_HEADER_BYTES,
                }
            }
            Span::Data { bytes, .. } => {
                let (alone, stored) = codecs.encode(bytes, target);
                taken.codec_bytes += alone as u64;
                RECORD_HEADER_BYTES + stored
            }
        };
        taken.record_bytes += record_bytes as u64;
    }
    taken
}

#[cfg(test)]
mod tests {
    //! Goal: the size of a chunk follows from the codec and the drive's rules. Method: blocks whose
    //! stored size is known exactly.

    use rand::Rng;

    use super::*;
    use pumice_drive::base::seed::random;

    const LZ4: Codec = Codec::Drive(pumice_drive::codec::Codec::Lz4);
    const NONE: Codec = Codec::Drive(pumice_drive::codec::Codec::None);

    fn taken(config: Config, chunk: &[u8]) -> (u64, u64) {
        let mut meter = ChunkMeter::new(&[config]);
        let taken = meter.measure(0, Piece { bytes: chunk, has_data: None }, |_, _| {});
        assert_eq!(meter.efforts().next().unwrap().bytes, chunk.len() as u64);
        (taken.codec_bytes, taken.record_bytes)
    }

    #[test]
    fn fills_cost_a_header_and_other_chunks_their_encoded_length() {
        let config = Config { codec: LZ4, chunk_bytes: 32 << 10 };
        let zeroes = vec![0; 32 << 10];
        assert_eq!(taken(config, &zeroes), (0, 1), "28 bytes for a MiB");
        let mut noise = vec![0; 32 << 10];
        random(1).fill_bytes(&mut noise);
        assert_eq!(taken(config, &noise), (32768, 32768 + 28 + 48), "with a table of its blocks");
        let mut mixed = noise.clone();
        mixed[4096..8192].fill(0xff);
        assert_eq!(taken(config, &mixed), (28672, 28672 + 3 * 28 + 48), "data, fill, data");
        let text: Vec<u8> = (0..32 << 10).map(|at: u32| b"abcdefgh"[(at % 8) as usize]).collect();
        let (alone, stored) = taken(config, &text);
        // The frame has several chunks, each with its own start.
        assert!(alone < 400 && (alone + 28..alone + 500).contains(&stored), "{alone} {stored}");
        let small = Config { codec: LZ4, chunk_bytes: 4096 };
        assert!(taken(small, &text[..4096]).0 > 20);
    }

    #[test]
    fn holes_take_nothing() {
        let config = Config { codec: LZ4, chunk_bytes: 4096 };
        let mut bytes = vec![0; 8 * 4096];
        random(3).fill_bytes(&mut bytes[4096..2 * 4096]);
        // Noise, and two blocks of zeroes that were written; the other blocks are holes.
        let mut has_data = [false; 8];
        has_data[1..4].fill(true);
        let piece = Piece { bytes: &bytes, has_data: Some(&has_data) };
        let mut chunks = Vec::new();
        let mut measured = |config: Config| {
            chunks.clear();
            let mut meter = ChunkMeter::new(&[config]);
            let taken = meter.measure(0, piece, |bytes, taken| {
                chunks.push((bytes, taken.record_bytes));
            });
            (taken.codec_bytes, taken.record_bytes, chunks.clone())
        };
        let (alone, stored, chunks) = measured(config);
        assert_eq!((alone, stored), (4096, 4096 + 28 + 2));
        let expected = [(0, 0), (4096, 4124), (4096, 1), (4096, 1), (0, 0), (0, 0), (0, 0), (0, 0)];
        assert_eq!(chunks, expected);
        let (_, stored, chunks) = measured(Config { chunk_bytes: 32 << 10, ..config });
        assert_eq!(stored, 4096 + 28 + 28, "no header for the holes before it");
        assert_eq!(chunks, [(3 * 4096, stored)]);
    }

    #[test]
    fn chunks_that_save_little_are_stored_as_they_are() {
        // One eightieth of the data repeats, which is less than one thirty-second.
        let mut chunk = vec![0; 4096];
        random(2).fill_bytes(&mut chunk);
        chunk[4000..4080].fill(7);
        let (alone, stored) = taken(Config { codec: LZ4, chunk_bytes: 4096 }, &chunk);
        assert!(alone < 4090, "{alone}");
        assert_eq!(stored, 4096 + 28);
        assert_eq!(taken(Config { codec: NONE, chunk_bytes: 4096 }, &chunk), (4096, 4124));
    }
}

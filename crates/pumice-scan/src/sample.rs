//! Measures draws: the chunks around drawn blocks, in rounds until the interval is narrow enough.
//!
//! Several threads measure the draws of a round in the order of files and offsets, and the results
//! are used in the order of their marks. An interrupted round is discarded, because its measured
//! draws come only from the first files and are not a random sample.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::{Deserialize, Serialize};

use super::chunks::{ChunkMeter, Piece};
use super::options::ScanOptions;
use super::population::{Draw, Source};
use super::read::Reader;
use super::work::{THREADS_MIN, Work, locked};
use pumice_bench::payload::repeats;
use pumice_drive::base::units::BLOCK_BYTES;

/// Number of bytes that identify the format of a file.
pub(super) const HEAD_BYTES: usize = 512;

/// Stored fraction above which the format of a file is determined.
pub(super) const PACKED_MIN: f64 = 0.95;

/// The measurements of one draw.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Drawn {
    pub(super) mark: f64,
    /// Index of the draw's stratum, set by the caller, which knows the strata.
    pub(super) stratum: u32,
    /// Name of the file.
    pub(super) file: String,
    /// The block number in the file.
    pub(super) block: u64,
    /// Bytes with data in the file.
    pub(super) file_bytes: u64,
    pub(super) extension: String,
    pub(super) folder: String,
    /// Index in [`super::population::Age::ALL`].
    pub(super) age: u8,
    /// For each configuration, the stored fraction with the codec alone, and as records of the
    /// drive.
    pub(super) fractions: Vec<(f64, f64)>,
    /// Hash of the block's contents; `None` if the block is one repeated byte.
    pub(super) content: Option<u64>,
    /// Format according to the first bytes of the file, if the saving is small.
    pub(super) format: Option<String>,
}

/// The draws of a round, except draws from unreadable files.
pub(super) struct Round {
    pub(super) drawn: Vec<Drawn>,
    pub(super) lost: u64,
    pub(super) bytes_read: u64,
}

/// Measures the draws of a round; `None` if the scan was stopped.
pub(super) fn round(work: &Work<'_>, draws: &[Draw]) -> Option<Round> {
    let mut order: Vec<&Draw> = draws.iter().collect();
    order.sort_by(|one, other| {
        (&one.source.name, one.block).cmp(&(&other.source.name, other.block))
    });
    let next = AtomicUsize::new(0);
    let round = Mutex::new(Round { drawn: Vec::new(), lost: 0, bytes_read: 0 });
    let threads = work.options.threads.max(THREADS_MIN);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| measure_some(work, &order, &next, work.reader(threads, false), &round));
        }
    });
    if work.is_stopped() {
        return None;
    }
    let mut round = round.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    round.drawn.sort_by(|one, other| one.mark.total_cmp(&other.mark));
    Some(round)
}

fn measure_some(
    work: &Work<'_>,
    order: &[&Draw],
    next: &AtomicUsize,
    mut reader: Reader,
    round: &Mutex<Round>,
) {
    let mut meter = work.meter();
    let mut buffer = Vec::new();
    while !work.is_stopped() {
        let Some(draw) = order.get(next.fetch_add(1, Ordering::Relaxed)) else { break };
        let measured = measure(work.options, draw, &mut meter, &mut reader, &mut buffer);
        let mut round = locked(round);
        match measured {
            Ok((drawn, bytes_read)) => {
                round.drawn.push(drawn);
                round.bytes_read += bytes_read;
            }
            Err(error) => {
                round.lost += 1;
                work.failed(&draw.source, &error);
            }
        }
        drop(round);
        work.progress.advance(1);
    }
    work.add_efforts(&meter);
}

fn measure(
    options: &ScanOptions,
    draw: &Draw,
    meter: &mut ChunkMeter,
    reader: &mut Reader,
    buffer: &mut Vec<u8>,
) -> std::io::Result<(Drawn, u64)> {
    let source = &*draw.source;
    let (window, blocks) = chunk_around(draw.block, options.chunk_bytes_max(), source);
    let bytes_read = reader.read(source, window, blocks, buffer)?;
    let has_data = source.data_mask(window, blocks);
    let mut fractions = Vec::with_capacity(options.configs.len());
    for (index, config) in options.configs.iter().enumerate() {
        let (first, blocks) = chunk_around(draw.block, config.chunk_bytes.into(), source);
        let (from, blocks_read) = ((first - window) as usize, blocks as usize);
        let chunk = Piece {
            bytes: &buffer[from * BLOCK_BYTES..][..blocks_read * BLOCK_BYTES],
            has_data: has_data.as_ref().map(|all| &all[from..][..blocks_read]),
        };
        let taken = meter.measure(index, chunk, |_, _| {});
        // Relative to the bytes with data: holes between them are never drawn, and need no space.
        let bytes = source.data_blocks_in(first, blocks) * BLOCK_BYTES as u64;
        let fraction = |taken: u64| taken as f64 / bytes.max(1) as f64;
        fractions.push((fraction(taken.codec_bytes), fraction(taken.record_bytes)));
    }
    let own = (draw.block - window) as usize * BLOCK_BYTES;
    let content = repeats::hash(&buffer[own..own + BLOCK_BYTES]);
    let is_packed = fractions[options.main].1 > PACKED_MIN;
    let format = is_packed.then(|| format_of(reader.head(source, &mut [0; HEAD_BYTES]))).flatten();
    let drawn = Drawn {
        mark: draw.mark,
        stratum: 0,
        file: source.name.clone(),
        block: draw.block,
        file_bytes: source.data_blocks() * BLOCK_BYTES as u64,
        extension: source.extension.clone(),
        folder: source.folder.clone(),
        age: source.age as u8,
        fractions,
        content,
        format,
    };
    Ok((drawn, bytes_read))
}

/// Returns the chunk that contains a block: its first block, and its number of blocks within the
/// file.
fn chunk_around(block: u64, chunk_bytes: u64, source: &Source) -> (u64, u64) {
    let chunk_blocks = chunk_bytes / BLOCK_BYTES as u64;
    let first = block - block % chunk_blocks;
    (first, chunk_blocks.min(source.blocks() - first))
}

/// Returns the format according to the first bytes of a file.
pub(super) fn format_of(head: &[u8]) -> Option<String> {
    infer::get(head).map(|kind| kind.mime_type().to_owned())
}

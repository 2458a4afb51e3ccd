//! Frame sizes and codecs, measured on your own files.
//!
//! ```text
//! cargo bench --bench frame_size -- SIZE DIRECTORY...
//! ```
//!
//! The benchmark reads an even selection of the files (about SIZE bytes, such as 1G) into memory,
//! each at a 4 KiB boundary, removes blocks of one repeated byte, cuts the rest into frames and
//! prints a table. Times are medians of three passes on one thread. A 4 KiB read decodes the frame
//! of a random block up to the block, or only its chunk if the frame consists of chunks.

#![allow(clippy::disallowed_methods, reason = "a measurement")]

mod files;

use std::hint::black_box;
use std::time::Instant;

use pumice_drive::base::seed::random;
use pumice_drive::base::units::{BLOCK_BYTES, format_size, parse_size};
use pumice_drive::codec::{
    ChunkTable, Codec, Compressor, Decompressor, Encoding, FrameForm, fill_byte,
};
use rand_xoshiro::rand_core::Rng;

/// Bytes of a frame's header, and of the record of a run of equal filled blocks.
const HEADER_BYTES: usize = 28;
const RANDOM_READS: usize = 20_000;

struct Frame<'a> {
    source: &'a [u8],
    encoding: Encoding,
    /// Offset and length of the payload.
    payload: (usize, usize),
}

/// Cuts the data into the payloads of frames. Returns them and the number of fill records.
fn cut(data: &[u8], frame_blocks: usize) -> (Vec<&[u8]>, usize) {
    let fills: Vec<_> = data.chunks(BLOCK_BYTES).map(fill_byte).collect();
    let (mut sources, mut fill_records, mut start) = (Vec::new(), 0, 0);
    for run in fills.chunk_by(|a, b| a == b) {
        let end = start + run.len() * BLOCK_BYTES;
        match run[0] {
            Some(_) => fill_records += 1,
            None => sources.extend(data[start..end].chunks(frame_blocks * BLOCK_BYTES)),
        }
        start = end;
    }
    (sources, fill_records)
}

/// Returns the duration of `work` in seconds, as the median of all passes.
fn seconds(mut work: impl FnMut()) -> f64 {
    let mut passes = [(); 3].map(|()| {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64()
    });
    passes.sort_by(f64::total_cmp);
    passes[1]
}

fn measure(data: &[u8], codec: Codec, form: FrameForm, frame_blocks: usize) {
    let (sources, fill_records) = cut(data, frame_blocks);
    let source_bytes: usize = sources.iter().map(|source| source.len()).sum();
    let mut scratch = vec![0; Compressor::target_bytes(frame_blocks * BLOCK_BYTES)];
    let mut stored = Vec::with_capacity(source_bytes);
    let mut frames = Vec::with_capacity(sources.len());
    let compress_s = seconds(|| {
        let mut compressor = Compressor::new(codec).with_form(form);
        stored.clear();
        frames.clear();
        for source in &sources {
            let (encoding, len) = compressor.compress(source, &mut scratch);
            frames.push(Frame { source, encoding, payload: (stored.len(), len) });
            stored.extend_from_slice(&scratch[..len]);
        }
    });
    let mut decompressor = Decompressor::new();
    let mut target = vec![0; frame_blocks * BLOCK_BYTES];
    let mut decode = |frame: &Frame| {
        let (offset, len) = frame.payload;
        let target = &mut target[..frame.source.len()];
        decompressor.decompress(frame.encoding, &stored[offset..][..len], target).unwrap();
        black_box(target);
    };
    let decompress_s = seconds(|| frames.iter().for_each(&mut decode));
    // One entry for each block, so a frame is picked in proportion to its blocks.
    let by_block: Vec<(&Frame, usize)> = frames
        .iter()
        .flat_map(|f| (0..f.source.len() / BLOCK_BYTES).map(move |block| (f, block)))
        .collect();
    let mut generator = random(1);
    let mut pick = || by_block[(generator.next_u64() % by_block.len() as u64) as usize];
    let picks: Vec<(&Frame, usize)> = (0..RANDOM_READS).map(|_| pick()).collect();
    let mut block_decoder = Decompressor::new();
    let mut start = vec![0; frame_blocks * BLOCK_BYTES];
    let mut read = |&(frame, block): &(&Frame, usize)| {
        let (offset, len) = frame.payload;
        let payload = &stored[offset..][..len];
        let (encoding, bytes) = (frame.encoding, frame.source.len());
        if encoding != Encoding::Chunks {
            let start = &mut start[..(block + 1) * BLOCK_BYTES];
            block_decoder.decompress_start(encoding, payload, bytes, start).unwrap();
            black_box(start);
            return len + HEADER_BYTES;
        }
        let table = ChunkTable::of(payload, bytes / BLOCK_BYTES).unwrap();
        let before = block - table.chunk_of(block).start;
        let (start, stored) = (&mut start[..(before + 1) * BLOCK_BYTES], table.range(block));
        block_decoder.decompress_chunk(&table, block, &payload[stored.clone()], start).unwrap();
        black_box(start);
        stored.len()
    };
    let reads_s = seconds(|| picks.iter().for_each(|pick| _ = black_box(read(pick))));
    let read_bytes: usize = picks.iter().map(&mut read).sum();

    let stored_bytes = stored.len() + (frames.len() + fill_records) * HEADER_BYTES;
    println!(
        "| {codec} | {form} | {frame_blocks} | {:.4} | {:.0} | {:.0} | {:.1} | {:.1} |",
        stored_bytes as f64 / data.len() as f64,
        source_bytes as f64 / compress_s / 1e6,
        source_bytes as f64 / decompress_s / 1e6,
        reads_s * 1e6 / RANDOM_READS as f64,
        read_bytes as f64 / RANDOM_READS as f64 / 1024.0,
    );
}

fn main() -> Result<(), String> {
    let mut arguments = std::env::args().skip(1);
    let limit = parse_size(&arguments.next().unwrap_or_default())?;
    let data = files::load(&arguments.collect::<Vec<_>>(), limit);
    if data.is_empty() {
        let what = "no data: expected a size, then one or more directories with readable files";
        return Err(what.to_owned());
    }
    println!("{} in memory\n", format_size(data.len() as u64));
    println!(
        "| codec | frames | blocks a frame | stored fraction | compress MB/s | decompress MB/s \
         | decode for a 4 KiB read, us | stored KiB it reads |\n|---|---|---|---|---|---|---|---|"
    );
    for codec in [Codec::Lz4, Codec::Zstd { level: -1 }, Codec::Zstd { level: 1 }] {
        for frame_blocks in [1, 2, 4, 8, 16, 32] {
            measure(&data, codec, FrameForm::Solid, frame_blocks);
        }
        measure(&data, codec, FrameForm::Chunks, 8);
    }
    Ok(())
}

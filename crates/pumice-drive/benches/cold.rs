//! Cold data: the saving when garbage collection compresses it with a denser codec, and the cost
//! for reads, measured on your own files.
//!
//! ```text
//! cargo bench --bench cold -- SIZE DIRECTORY...
//! ```
//!
//! The benchmark writes about SIZE bytes of files to a drive on a memory medium: in writes of 1
//! MiB, block by block in order, or block by block in random order. It then overwrites a fifth of
//! them, in pieces of 64 KiB all over the disk, until it has written several times the size of the
//! disk, so that segments become victims and the rest of the data is moved. It reports the bytes
//! that the drive stores, divided by the size of the disk. For random reads of blocks that were not
//! overwritten, it reports the time (the medium takes no time, so this is decoding and checking)
//! and the bytes read from the medium.
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
#![allow(missing_docs)]

mod files;

use std::rc::Rc;
use std::time::Instant;

use pumice_drive::base::seed::random;
use pumice_drive::base::units::{BLOCK_BYTES, format_size, parse_size};
use pumice_drive::codec::{Codec, Compressor, fill_byte};
use pumice_drive::controller::{Drive, OpenOptions, Spec, create};
use pumice_drive::media::mem::MemMedium;
use pumice_drive::runtime::{Backend, Runtime};
use rand::RngExt;
use rand::seq::SliceRandom;

const SEGMENT_BYTES: u32 = 4 << 20;
const HOT_BYTES: usize = 64 << 10;
/// One piece in this many is hot.
const HOT_DIVISOR: usize = 5;
/// Number of times that the size of the disk is overwritten.
const ROUNDS: usize = 4;
const READS: usize = 40_000;
/// Bytes of a record header and a source.
const HEADER_BYTES: usize = 44;
/// Segments that are reserved for trims, garbage collection and checkpoints, are open, or serve as
/// headroom.
const OTHER_SEGMENTS: u64 = 12;

/// The order in which the files are written first.
#[derive(Clone, Copy, PartialEq)]
enum Layout {
    Large,
    Small,
    Scattered,
}

type MemDrive = Rc<Drive>;

/// Returns at most `limit` bytes of files, in whole pieces.
fn load(directories: &[String], limit: usize) -> Vec<u8> {
    let mut data = files::load(directories, limit as u64);
    data.truncate(limit / HOT_BYTES * HOT_BYTES);
    data.resize(data.len() / HOT_BYTES * HOT_BYTES, 0);
    data
}

/// Returns the size of the data under LZ4 in frames of this size, plus a sixth of it, plus the
/// segments that never hold data.
fn capacity(data: &[u8], frame_bytes: usize) -> u64 {
    let mut compressor = Compressor::new(Codec::Lz4);
    let mut target = vec![0; Compressor::target_bytes(frame_bytes)];
    let mut stored = |frame: &[u8]| match fill_byte(frame) {
        Some(_) => HEADER_BYTES,
        None => HEADER_BYTES + compressor.compress(frame, &mut target).1,
    };
    let stored: usize = data.chunks(frame_bytes).map(&mut stored).sum();
    stored as u64 * 7 / 6 + OTHER_SEGMENTS * u64::from(SEGMENT_BYTES)
}

fn open(
    size_bytes: usize,
    capacity_bytes: u64,
    options: OpenOptions,
    runtime: &Runtime,
) -> MemDrive {
    let spec = Spec {
        codec: Codec::Lz4,
        segment_bytes: SEGMENT_BYTES,
        capacity_bytes: Some(capacity_bytes),
        ..Spec::new(uuid::Uuid::from_u128(1), size_bytes as u64)
    };
    let geometry = spec.geometry().expect("a possible drive");
    let medium = MemMedium::new(geometry.medium_bytes());
    runtime.block_on(create(&medium, &spec)).expect("create");
    let opening = Drive::open(Rc::new(medium), runtime.clock(), options);
    runtime.block_on(opening).expect("open")
}

fn measure(data: &[u8], layout: Layout, name: &str, options: OpenOptions) {
    let runtime = Runtime::new(Backend::Auto).expect("a runtime");
    let is_scattered = layout == Layout::Scattered;
    let is_small = layout != Layout::Large;
    let frame_bytes = if is_small { BLOCK_BYTES } else { 8 * BLOCK_BYTES };
    let drive = open(data.len(), capacity(data, frame_bytes), options, &runtime);
    let mut random = random(1);
    let write = async |offset: usize, len: usize| {
        drive.write(offset as u64, &data[offset..offset + len]).await.expect("write");
        runtime.yield_now().await;
    };
    let step = if is_small { BLOCK_BYTES } else { 1 << 20 };
    let mut offsets: Vec<usize> = (0..data.len()).step_by(step).collect();
    if is_scattered {
        offsets.shuffle(&mut random);
    }
    let mut pieces: Vec<usize> = (0..data.len()).step_by(HOT_BYTES).collect();
    pieces.shuffle(&mut random);
    let (hot, cold) = pieces.split_at(pieces.len() / HOT_DIVISOR);
    let begun = Instant::now();
    runtime.block_on(async {
        for offset in offsets {
            write(offset, step.min(data.len() - offset)).await;
        }
        for _ in 0..ROUNDS * pieces.len() {
            write(hot[random.random_range(0..hot.len())], HOT_BYTES).await;
        }
        drive.checkpoint().await.expect("checkpoint");
    });
    let seconds = begun.elapsed().as_secs_f64();
    let info = drive.info();
    let mut block = vec![0; BLOCK_BYTES];
    let start = Instant::now();
    runtime.block_on(async {
        for _ in 0..READS {
            let piece = cold[random.random_range(0..cold.len())];
            let at = piece + random.random_range(0..HOT_BYTES / BLOCK_BYTES) * BLOCK_BYTES;
            drive.read(at as u64, &mut block).await.expect("read");
            assert!(block == data[at..at + BLOCK_BYTES], "the disk holds something else");
        }
    });
    let read_us = start.elapsed().as_secs_f64() * 1e6 / READS as f64;
    let after = drive.info();
    let read_bytes = after.operations.media_read_bytes - info.operations.media_read_bytes;
    runtime.block_on(drive.close()).expect("close");
    runtime.drop_tasks();
    println!(
        "| {} | {name} | {:.4} | {:.2} | {read_us:.1} | {:.1} | {seconds:.0} |",
        match layout {
            Layout::Large => "1 MiB",
            Layout::Small => "4 KiB, in order",
            Layout::Scattered => "4 KiB, random order",
        },
        info.live_bytes as f64 / data.len() as f64,
        info.write_amplification,
        read_bytes as f64 / READS as f64 / 1024.0,
    );
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let Some((Ok(limit), directories)) =
        arguments.split_first().map(|(size, rest)| (parse_size(size), rest))
    else {
        return eprintln!("expected a size, then one or more directories with readable files");
    };
    let data = load(directories, limit as usize);
    println!("{} of files\n", format_size(data.len() as u64));
    println!(
        "| written in | moved data | stored / size | WA | us per read | KiB per read | s |\n\
         |---|---|---|---|---|---|---|"
    );
    let recompress = Some(Codec::Zstd { level: 3 });
    let dense = OpenOptions { recompress, ..OpenOptions::default() };
    for layout in [Layout::Large, Layout::Small, Layout::Scattered] {
        measure(&data, layout, "as it is", OpenOptions::default());
        measure(&data, layout, "zstd:3", dense);
    }
}

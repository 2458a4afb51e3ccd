//! In-process benchmark: writes with additional compression threads against writes with one thread.
//!
//! The controller on a memory medium, without NBD, and many tasks that write, as in a server. The
//! data is noise and zeroes in equal parts (the fastest data that compresses by half), and the
//! files in /usr. The two sides alternate on fresh drives, and the result is the ratio of each
//! pair. The gain of the codec alone from the same number of threads, each with its own blocks,
//! shows the limit set by the processors.
//!
//! ```text
//! cargo bench --bench threads            # as many threads as there are processors, at most 8
//! cargo bench --bench threads -- 4 "/usr: lz4"     # only cases with such a name, for a profiler
//! ```
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
#![allow(missing_docs)]

mod files;

use std::cell::RefCell;
use std::hint::black_box;
use std::rc::Rc;
use std::thread;
use std::time::Instant;

use pumice_drive::base::seed::random;
use pumice_drive::codec::{Codec, Compressor, Workers};
use pumice_drive::controller::{Drive, OpenOptions, Spec, create};
use pumice_drive::media::mem::MemMedium;
use pumice_drive::runtime::{Backend, Runtime};
use rand::{Rng, RngExt};

const DISK_BYTES: u64 = 256 << 20;
const POOL_BYTES: usize = 16 << 20;
const FILES_BYTES: u64 = 128 << 20;
const WRITTEN_BYTES: usize = 512 << 20;
const CAPACITY: u64 = DISK_BYTES + (WRITTEN_BYTES + WRITTEN_BYTES / 32) as u64 + (1 << 30);
/// Frames of the default size, into which longer writes are divided.
const FRAME_BYTES: usize = 32 << 10;
const ROUNDS: usize = 9;

/// Returns bytes in which half of every 512 are noise.
fn pool() -> Vec<u8> {
    let mut random = random(1);
    let mut pool = vec![0; POOL_BYTES];
    for unit in pool.chunks_exact_mut(512) {
        random.fill_bytes(&mut unit[..256]);
    }
    pool
}

struct Case {
    codec: Codec,
    bytes: usize,
    depth: usize,
}

/// Returns the MiB written per second with `others` threads in addition to the drive's.
fn rate(case: &Case, pool: &Rc<Vec<u8>>, medium: &MemMedium, others: usize, run: u128) -> f64 {
    let runtime = Runtime::new(Backend::Auto).expect("a runtime");
    let uuid = uuid::Uuid::from_u128(run);
    let codec = case.codec;
    let spec = Spec { codec, capacity_bytes: Some(CAPACITY), ..Spec::new(uuid, DISK_BYTES) };
    runtime.block_on(create(medium, &spec)).expect("create");
    let opening = Drive::open(Rc::new(medium.clone()), runtime.clock(), OpenOptions::default());
    let drive = runtime.block_on(opening).expect("open");
    if others > 0 {
        drive.use_workers(Workers::start(others).expect("threads"));
    }
    let drive = Rc::new(drive);
    let mut random = random(2);
    let (disk, pool_units) = (DISK_BYTES / case.bytes as u64, pool.len() / case.bytes);
    let bytes = case.bytes;
    let writes: Vec<_> = (0..WRITTEN_BYTES / bytes)
        .map(|number| (random.random_range(0..disk) * bytes as u64, number % pool_units))
        .collect();
    let writes = Rc::new(RefCell::new(writes.into_iter()));
    let start = Instant::now();
    let (running, ended) = async_channel::bounded::<()>(1);
    for _ in 0..case.depth {
        let (drive, pool) = (drive.clone(), pool.clone());
        let (writes, running) = (writes.clone(), running.clone());
        runtime.spawn(async move {
            loop {
                let next = writes.borrow_mut().next();
                let Some((offset, unit)) = next else { break };
                let data = &pool[unit * bytes..][..bytes];
                drive.write(offset, data).await.expect("write");
            }
            drop(running);
        });
    }
    drop(running);
    runtime.block_on(async {
        assert!(ended.recv().await.is_err(), "tasks send nothing");
        drive.flush().await.expect("flush");
    });
    let seconds = start.elapsed().as_secs_f64();
    let drive = Rc::into_inner(drive).expect("the tasks have ended");
    runtime.block_on(drive.close()).expect("close");
    runtime.drop_tasks();
    WRITTEN_BYTES as f64 / (1 << 20) as f64 / seconds
}

/// Returns the MiB per second of the codec alone on `threads` threads.
fn codec_rate(case: &Case, pool: &[u8], threads: usize) -> f64 {
    let frames: Vec<_> = pool.chunks(case.bytes.min(FRAME_BYTES)).collect();
    let start = Instant::now();
    thread::scope(|scope| {
        for share in frames.chunks(frames.len().div_ceil(threads)) {
            scope.spawn(move || {
                let mut compressor = Compressor::new(case.codec);
                let mut target = vec![0; Compressor::target_bytes(FRAME_BYTES)];
                for frame in share {
                    black_box(compressor.compress(frame, &mut target));
                }
            });
        }
    });
    pool.len() as f64 / (1 << 20) as f64 / start.elapsed().as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let mut args = std::env::args().skip(1).filter(|arg| !arg.starts_with("--"));
    let processors = || std::thread::available_parallelism().map_or(1, usize::from).min(8);
    let threads = args.next().and_then(|count| count.parse().ok()).unwrap_or_else(processors);
    let wanted = args.next().unwrap_or_default();
    let medium = MemMedium::new(CAPACITY + (64 << 20));
    let files = files::load(&["/usr".to_owned()], FILES_BYTES);
    let zstd = Codec::Zstd { level: 1 };
    let mut run = 0;
    for (content, pool) in [("noise and zeroes", pool()), ("/usr", files)] {
        let pool = Rc::new(pool);
        for (name, codec, bytes, depth) in [
            ("zstd:1, 4 KiB, depth 32", zstd, 4 << 10, 32),
            ("zstd:1, 4 KiB, depth 1", zstd, 4 << 10, 1),
            ("zstd:1, 1 MiB, depth 8", zstd, 1 << 20, 8),
            ("lz4, 1 MiB, depth 8", Codec::Lz4, 1 << 20, 8),
            ("lz4, 1 MiB, depth 1", Codec::Lz4, 1 << 20, 1),
            ("lz4, 64 KiB, depth 8", Codec::Lz4, 64 << 10, 8),
            ("lz4, 4 KiB, depth 32", Codec::Lz4, 4 << 10, 32),
        ] {
            let name = format!("{content}: {name}");
            if !name.contains(&wanted) {
                continue;
            }
            let case = Case { codec, bytes, depth };
            let mut next = |others| {
                run += 1;
                rate(&case, &pool, &medium, others, run)
            };
            // The first run maps the medium's memory.
            next(0);
            let pairs: Vec<_> = (0..ROUNDS).map(|_| (next(0), next(threads - 1))).collect();
            let one = median(pairs.iter().map(|pair| pair.0).collect());
            let many = median(pairs.iter().map(|pair| pair.1).collect());
            let ratio = median(pairs.iter().map(|pair| pair.1 / pair.0).collect());
            let codec = (0..ROUNDS)
                .map(|_| codec_rate(&case, &pool, threads) / codec_rate(&case, &pool, 1))
                .collect();
            let codec = median(codec);
            println!(
                "{name}: 1 thread {one:.0} MiB/s, {threads} threads {many:.0}, {ratio:.2} \
                 (codec alone {codec:.2})"
            );
        }
    }
}

//! In-process benchmark: the controller on a memory medium against the codec alone.
//!
//! One thread, no NBD, no kernel: 4 KiB random writes of 50 % compressible blocks. The codec alone
//! compresses the same blocks in the same order into one buffer. The two alternate, and the result
//! is the ratio of each pair. Allocations are counted after a warm-up that maps every block once.
//!
//! ```text
//! cargo bench --bench drive
//! cargo bench --bench drive -- drive 12000    # one side, for a profiler
//! cargo bench --bench drive -- hit 100000     # reads of 4 KiB from the read cache, or `miss`
//! ```
#![allow(unsafe_code, clippy::disallowed_methods, reason = "a benchmark: see `Counting`")]
#![allow(missing_docs)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use pumice_drive::base::seed::random;
use pumice_drive::codec::{Codec, Compressor};
use pumice_drive::controller::{Drive, OpenOptions, Spec, create};
use pumice_drive::media::mem::MemMedium;
use pumice_drive::runtime::{Backend, Runtime};
use rand::{Rng, RngExt};

const BLOCK: usize = 4096;
const DISK_BYTES: u64 = 256 << 20;
const READ_DISK_BYTES: u64 = 16 << 20;
const POOL_BLOCKS: usize = 4096;
const WRITES: usize = 100_000;
const ROUNDS: usize = 9;

/// Counts allocations.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is passed on unchanged to the system's allocator, which obeys the contract;
// counting needs a global allocator, and that trait is unsafe.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller guarantees it.
        unsafe { System.alloc(layout) }
    }

    // The default implementation clears memory that the operating system has already cleared.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller guarantees it.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller guarantees it.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static GLOBAL: Counting = Counting;

fn pool(saved_percent: usize) -> Vec<u8> {
    let mut random = random(1);
    let mut pool = vec![0; POOL_BLOCKS * BLOCK];
    for unit in pool.chunks_exact_mut(512) {
        random.fill_bytes(&mut unit[..512 * (100 - saved_percent) / 100]);
    }
    pool
}

fn block(pool: &[u8], number: usize) -> &[u8] {
    &pool[number % POOL_BLOCKS * BLOCK..][..BLOCK]
}

/// Returns the writes per second of the codec alone.
fn codec_rate(pool: &[u8], codec: Codec, writes: usize) -> f64 {
    let mut compressor = Compressor::new(codec);
    let mut target = vec![0; Compressor::target_bytes(BLOCK)];
    let start = Instant::now();
    for number in 0..writes {
        black_box(compressor.compress(block(pool, number), &mut target));
    }
    writes as f64 / start.elapsed().as_secs_f64()
}

/// The log holds the warm-up and the measured writes without garbage collection, which the
/// benchmark `collect` measures.
const CAPACITY: u64 = DISK_BYTES + (WRITES * (BLOCK + 64)) as u64 + (1 << 30);

/// Returns the writes per second of the drive and the allocations per write, after a warm-up. All
/// runs use the same medium, so all except the first find its memory mapped.
fn drive_rate(
    pool: &[u8],
    codec: Codec,
    writes: usize,
    medium: &MemMedium,
    run: u128,
) -> (f64, f64) {
    let runtime = Runtime::new(Backend::Auto).expect("a runtime");
    let uuid = uuid::Uuid::from_u128(run);
    let spec = Spec { codec, capacity_bytes: Some(CAPACITY), ..Spec::new(uuid, DISK_BYTES) };
    runtime.block_on(create(medium, &spec)).expect("create");
    let opening = Drive::open(Rc::new(medium.clone()), runtime.clock(), OpenOptions::default());
    let drive = runtime.block_on(opening).expect("open");
    let mut random = random(2);
    runtime.block_on(async {
        for number in 0..(DISK_BYTES as usize / BLOCK) {
            let offset = (number * BLOCK) as u64;
            drive.write(offset, block(pool, number)).await.expect("write");
        }
        drive.flush().await.expect("flush");
    });
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    let start = Instant::now();
    runtime.block_on(async {
        for number in 0..writes {
            let offset = random.random_range(0..DISK_BYTES / BLOCK as u64) * BLOCK as u64;
            drive.write(offset, block(pool, number)).await.expect("write");
        }
        drive.flush().await.expect("flush");
    });
    let seconds = start.elapsed().as_secs_f64();
    let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
    runtime.block_on(drive.close()).expect("close");
    (writes as f64 / seconds, allocations as f64 / writes as f64)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Returns the number of random 4 KiB reads per second of a drive on which each block was written
/// separately: from its read cache, which holds all the data read, or from the medium.
fn read_rate(pool: &[u8], reads: usize, from_cache: bool) -> f64 {
    let runtime = Runtime::new(Backend::Auto).expect("a runtime");
    let medium = MemMedium::new(CAPACITY + (64 << 20));
    let uuid = uuid::Uuid::from_u128(1);
    let spec = Spec { capacity_bytes: Some(CAPACITY), ..Spec::new(uuid, READ_DISK_BYTES) };
    runtime.block_on(create(&medium, &spec)).expect("create");
    let read_cache_bytes = if from_cache { 2 * READ_DISK_BYTES as usize } else { 0 };
    let options = OpenOptions { read_cache_bytes, ..OpenOptions::default() };
    let opening = Drive::open(Rc::new(medium), runtime.clock(), options);
    let drive = runtime.block_on(opening).expect("open");
    let blocks = READ_DISK_BYTES / BLOCK as u64;
    let mut target = vec![0; BLOCK];
    runtime.block_on(async {
        for number in 0..blocks {
            let data = block(pool, number as usize);
            drive.write(number * BLOCK as u64, data).await.expect("write");
        }
        drive.flush().await.expect("flush");
        for number in 0..blocks {
            drive.read(number * BLOCK as u64, &mut target).await.expect("read");
        }
    });
    let mut random = random(3);
    let start = Instant::now();
    runtime.block_on(async {
        for _ in 0..reads {
            let offset = random.random_range(0..blocks) * BLOCK as u64;
            drive.read(offset, &mut target).await.expect("read");
        }
    });
    let seconds = start.elapsed().as_secs_f64();
    runtime.block_on(drive.close()).expect("close");
    reads as f64 / seconds
}

/// Number of runs of the drive alone. With this many, the first one, which maps the memory, hardly
/// affects the result.
const PROFILED_RUNS: u128 = 8;

/// Runs only the named side, with this many writes per run: for profiles and instruction counts.
fn one_side(side: &str, writes: usize) {
    let pool = pool(50);
    let rate = match side {
        "codec" => codec_rate(&pool, Codec::Lz4, writes),
        "hit" => read_rate(&pool, writes, true),
        "miss" => read_rate(&pool, writes, false),
        _ => {
            let medium = MemMedium::new(CAPACITY + (64 << 20));
            (1..=PROFILED_RUNS)
                .map(|run| drive_rate(&pool, Codec::Lz4, writes, &medium, run).0)
                .fold(0.0, f64::max)
        }
    };
    println!("{rate:.0}");
}

fn main() {
    let mut args = std::env::args().skip(1);
    if let Some(side) = args.next().filter(|side| !side.starts_with("--")) {
        let writes = args.next().and_then(|count| count.parse().ok()).unwrap_or(WRITES);
        return one_side(&side, writes.min(WRITES));
    }
    let medium = MemMedium::new(CAPACITY + (64 << 20));
    // Maps the memory of the entire medium: incompressible data uses the most space.
    drive_rate(&pool(0), Codec::None, WRITES, &medium, 1);
    let mut run = 1;
    for (name, codec, saved) in [
        ("lz4, 50 % saved", Codec::Lz4, 50),
        ("lz4, 98 % saved", Codec::Lz4, 98),
        ("lz4, 2 % saved", Codec::Lz4, 2),
        ("zstd:1, 50 % saved", Codec::Zstd { level: 1 }, 50),
    ] {
        let pool = pool(saved);
        let (mut codec_rates, mut drive_rates, mut allocations) = (vec![], vec![], 0.0);
        for _ in 0..ROUNDS {
            codec_rates.push(codec_rate(&pool, codec, WRITES));
            run += 1;
            let (rate, allocated) = drive_rate(&pool, codec, WRITES, &medium, run);
            drive_rates.push(rate);
            allocations = allocated;
        }
        let ratios = codec_rates.iter().zip(&drive_rates).map(|(codec, drive)| drive / codec);
        println!(
            "{name}: codec {:.0}/s, drive {:.0}/s, ratio {:.2}, {allocations:.4} allocations each",
            median(codec_rates.clone()),
            median(drive_rates.clone()),
            median(ratios.collect()),
        );
    }
}

//! Garbage collection: write amplification and pauses, on a memory medium.
//!
//! The benchmark fills a drive, overwrites it once, and measures while it overwrites it twice more:
//! 4 KiB writes, uniform, 80/20 and Zipf, incompressible at several over-provisionings, and 50 %
//! compressible. For each case it also reports the result of Xiang and Kurkoski's formula for
//! greedy garbage collection under uniform traffic ("Improved analytic models of SSD write
//! amplification", 2012), and the time from a write to its acknowledgement.
//!
//! ```text
//! cargo bench --bench collect                 # a disk of 512 MiB, every case
//! cargo bench --bench collect -- 2048 80/20   # of 2 GiB, the cases whose names contain 80/20
//! ```
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
#![allow(missing_docs)]

use std::rc::Rc;
use std::time::Instant;

use pumice_drive::base::seed::random;
use pumice_drive::codec::Codec;
use pumice_drive::controller::{Drive, OpenOptions, Spec, create};
use pumice_drive::media::mem::MemMedium;
use pumice_drive::runtime::{Backend, Runtime};
use rand::{Rng, RngExt};

const BLOCK: usize = 4096;
const SEGMENT_BYTES: u32 = 4 << 20;
const POOL_BLOCKS: usize = 4096;

/// Segments that are reserved for trims (2), garbage collection (2) and checkpoints (2), are open
/// (3), or are the headroom at which garbage collection begins (3).
const OTHER_SEGMENTS: u64 = 12;

/// Number of times that the disk is overwritten before and during the measurement.
const WARM_UP: u64 = 1;
const MEASURED: u64 = 2;

/// The choice of the next block.
#[derive(Clone, Copy)]
enum Traffic {
    Uniform,
    /// 80 % of the writes go to 20 % of the disk.
    HotCold,
    /// Zipf with this exponent.
    Zipf(f64),
}

struct Case {
    name: &'static str,
    traffic: Traffic,
    saved_percent: usize,
    over_provisioning_percent: u32,
}

const CASES: [Case; 8] = [
    case("uniform 7 %", Traffic::Uniform, 0, 7),
    case("uniform 12 %", Traffic::Uniform, 0, 12),
    case("uniform 28 %", Traffic::Uniform, 0, 28),
    case("80/20 7 %", Traffic::HotCold, 0, 7),
    case("80/20 28 %", Traffic::HotCold, 0, 28),
    case("zipf 0.99 7 %", Traffic::Zipf(0.99), 0, 7),
    case("zipf 0.99 28 %", Traffic::Zipf(0.99), 0, 28),
    case("half uniform 28 %", Traffic::Uniform, 50, 28),
];

const fn case(
    name: &'static str,
    traffic: Traffic,
    saved_percent: usize,
    over_provisioning_percent: u32,
) -> Case {
    Case { name, traffic, saved_percent, over_provisioning_percent }
}

fn pool(saved_percent: usize) -> Vec<u8> {
    let mut random = random(1);
    let mut pool = vec![0; POOL_BLOCKS * BLOCK];
    for unit in pool.chunks_exact_mut(512) {
        random.fill_bytes(&mut unit[..512 * (100 - saved_percent) / 100]);
    }
    pool
}

/// Draws blocks. Hot blocks are spread over the disk.
struct Draw {
    traffic: Traffic,
    blocks: u64,
    random: pumice_drive::base::seed::Random,
    zipf_norm: f64,
}

impl Draw {
    fn next(&mut self) -> u64 {
        let blocks = self.blocks;
        let rank = match self.traffic {
            Traffic::Uniform => return self.random.random_range(0..blocks),
            Traffic::HotCold if self.random.random_bool(0.8) => {
                self.random.random_range(0..blocks / 5)
            }
            Traffic::HotCold => self.random.random_range(blocks / 5..blocks),
            // The inverse of the continuous distribution, which is close enough to separate hot and
            // cold.
            Traffic::Zipf(exponent) => {
                let share = self.random.random::<f64>() * self.zipf_norm;
                let power = 1.0 - exponent;
                ((share * power + 1.0).powf(1.0 / power) as u64 - 1).min(blocks - 1)
            }
        };
        // A bijection, so that neighbours in rank are not neighbours on the disk.
        let mut step = (0x9e37_79b1 % blocks) | 1;
        while gcd(step, blocks) != 1 {
            step += 2;
        }
        (u128::from(rank) * u128::from(step) % u128::from(blocks)) as u64
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Returns the write amplification of greedy garbage collection under uniform traffic; `a` is raw
/// over user bytes.
fn theory(a: f64) -> f64 {
    let x = -a * (-a).exp();
    // Newton's method on w e^w = x, on the principal branch.
    let mut w = x;
    for _ in 0..50 {
        w -= (w * w.exp() - x) / (w.exp() * (1.0 + w));
    }
    -a / (-a - w)
}

/// Returns the bytes of log for a disk of incompressible blocks in frames of one block, each with
/// its header and its source; plus the map twice; plus `percent` of these; plus the segments that
/// never hold data. (`pumice create` adds an atomic write for each segment, for bytes outside
/// records.)
fn capacity(size_bytes: u64, percent: u32) -> u64 {
    let blocks = size_bytes / BLOCK as u64;
    let stored = (size_bytes + blocks * 44) * u64::from(100 + percent) / 100;
    let segments = (stored + 2 * 16 * blocks).div_ceil(u64::from(SEGMENT_BYTES) - (24 << 10));
    (segments + OTHER_SEGMENTS) * u64::from(SEGMENT_BYTES)
}

/// Returns a new drive in memory for a case, with its tasks running.
fn open(case: &Case, size_bytes: u64, runtime: &Runtime) -> Rc<Drive> {
    let spec = Spec {
        codec: if case.saved_percent == 0 { Codec::None } else { Codec::Lz4 },
        segment_bytes: SEGMENT_BYTES,
        capacity_bytes: Some(capacity(size_bytes, case.over_provisioning_percent)),
        ..Spec::new(uuid::Uuid::from_u128(1), size_bytes)
    };
    let geometry = spec.geometry().expect("a possible drive");
    let medium = MemMedium::new(geometry.medium_bytes());
    runtime.block_on(create(&medium, &spec)).expect("create");
    let opening = Drive::open(Rc::new(medium), runtime.clock(), OpenOptions::default());
    runtime.block_on(opening).expect("open")
}

fn measure(case: &Case, size_bytes: u64) {
    let pool = pool(case.saved_percent);
    let runtime = Runtime::new(Backend::Auto).expect("a runtime");
    let drive = open(case, size_bytes, &runtime);
    let blocks = size_bytes / BLOCK as u64;
    let zipf_norm = match case.traffic {
        Traffic::Zipf(exponent) => {
            ((blocks as f64 + 1.0).powf(1.0 - exponent) - 1.0) / (1.0 - exponent)
        }
        _ => 0.0,
    };
    let mut draw = Draw { traffic: case.traffic, blocks, random: random(2), zipf_norm };
    let write = async |lba: u64, number: u64| {
        let data = &pool[number as usize % POOL_BLOCKS * BLOCK..][..BLOCK];
        drive.write(lba * BLOCK as u64, data).await.expect("write");
    };
    runtime.block_on(async {
        for lba in 0..blocks {
            write(lba, lba).await;
        }
        for number in 0..WARM_UP * blocks {
            write(draw.next(), number).await;
        }
    });
    let before = drive.info();
    let mut pauses_ns = Vec::with_capacity((MEASURED * blocks) as usize);
    let start = Instant::now();
    runtime.block_on(async {
        for number in 0..MEASURED * blocks {
            let asked = Instant::now();
            write(draw.next(), number).await;
            pauses_ns.push(asked.elapsed().as_nanos() as u64);
            if number % 64 == 0 {
                runtime.yield_now().await;
            }
        }
    });
    let seconds = start.elapsed().as_secs_f64();
    let after = drive.info();
    runtime.block_on(drive.close()).expect("close");
    runtime.drop_tasks();
    let host = (after.host_bytes - before.host_bytes) as f64;
    let media = (after.media_bytes - before.media_bytes) as f64;
    let meta = (after.operations.meta_bytes - before.operations.meta_bytes) as f64;
    pauses_ns.sort_unstable();
    let at = |share: f64| pauses_ns[((pauses_ns.len() - 1) as f64 * share) as usize] as f64 / 1e3;
    println!(
        "{:<18} WA {:.3} (uniform greedy {:.3}), metadata {:.3}, {:.0} MiB/s, us: p50 {:.1} \
         p99 {:.1} p99.9 {:.0} max {:.0}, {} checkpoints",
        case.name,
        media / host,
        theory(1.0 + f64::from(case.over_provisioning_percent) / 100.0),
        meta / host,
        host / seconds / f64::from(1 << 20),
        at(0.5),
        at(0.99),
        at(0.999),
        at(1.0),
        after.operations.checkpoints - before.operations.checkpoints,
    );
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let size_mib: u64 = arguments.first().and_then(|arg| arg.parse().ok()).unwrap_or(512);
    let filter = arguments.get(1).map_or("", String::as_str);
    for case in CASES.iter().filter(|case| case.name.contains(filter)) {
        measure(case, size_mib << 20);
    }
}

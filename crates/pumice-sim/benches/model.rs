//! Benchmark of the translation layer without contents: simulation speed, memory use for a
//! terabyte, and the cost of garbage collection compared with the formula.
//!
//! * `speed`: uniform random 4 KiB writes at depth 32, with garbage collection in steady state, on
//!   one core. Prints the simulated requests per second of real time for drives of 8 and 64 GiB.
//! * `memory`: a drive of 10^12 bytes with filled maps and lists, and the memory used by the
//!   process at that point.
//! * `amplification`: drives of 400 segments of 2048 blocks, overwritten three times to reach
//!   steady state and five times for the measurement, compared with Xiang and Kurkoski's formula
//!   ("An improved analytic expression for write amplification in NAND flash", 2012) for the part
//!   of the raw space that contains data.
//!
//! * `terabyte`: like `speed`, for 10^12 bytes with 7 % more flash, overwritten once beforehand.
//!
//! ```text
//! cargo bench --bench model              # all except `terabyte`, about ten minutes
//! cargo bench --bench model -- speed     # one of them
//! cargo bench --bench model -- terabyte  # ten minutes more
//! ```
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
#![allow(missing_docs)]

use std::time::Instant;

use pumice_sim::ftl::{LogFtl, LogSpec, StoredSizes, VictimPolicy};
use pumice_sim::host::{Host, HostSpec, Order};
use pumice_sim::nand::{FlashShape, FlashTiming};

/// Flash with two planes and 16 KiB pages at 400 MB/s.
const TIMING: FlashTiming = FlashTiming {
    read_ns: 60_000,
    program_ns: 900_000,
    program_fast_ns: 900_000,
    erase_ns: 3_000_000,
    bus_bytes_per_s: 400_000_000,
    multi_plane: true,
    cache_program: false,
};

const FREE_SEGMENTS: u32 = 3;

/// Returns the number of host blocks in a segment of `shape`.
fn slots(shape: &FlashShape) -> u64 {
    shape.block_bytes() * u64::from(shape.dies()) / 4096
}

fn spec(shape: FlashShape, user_blocks: u64, stored: f64) -> LogSpec {
    LogSpec {
        shape,
        timing: TIMING,
        user_blocks,
        stored: StoredSizes::Constant(stored),
        stored_min: 0.0,
        header_bytes: if stored < 1.0 { 24 } else { 0 },
        stripe_dies: None,
        victims: VictimPolicy::Greedy,
        moved_apart: true,
        buffer_bytes: 8 << 20,
        store_bytes_per_s: None,
        free_segments: FREE_SEGMENTS,
        bad_percent: 0.0,
        seed: 1,
        wear_gap_max: None,
    }
}

fn host(order: Order, blocks: u32, now_ns: u64) -> Host {
    let spec = HostSpec { depth: 32, blocks, order, read_percent: 0, seed: 1 };
    Host::new(spec, now_ns).expect("a host")
}

/// Writes every block once.
fn fill(drive: &mut LogFtl) {
    let blocks = drive.spec().user_blocks;
    host(Order::Sequential, 8, 0).run(drive, blocks / 8).expect("room for all");
    drive.settle();
}

/// Returns the shape of a drive with a raw space of `raw_blocks` blocks on 16 dies, in segments of
/// 8192 blocks.
fn shape(raw_blocks: u64) -> FlashShape {
    FlashShape {
        channels: 4,
        dies_per_channel: 4,
        planes: 2,
        blocks_per_plane: raw_blocks.div_ceil(8192) as u32 + FREE_SEGMENTS + 2,
        pages_per_block: 64,
        page_bytes: 16384,
    }
}

/// Prints the simulation speed of a drive that has been filled and then overwritten `warm_up`
/// times.
fn run(name: &str, spec: LogSpec, warm_up: u64) {
    let user_blocks = spec.user_blocks;
    let mut drive = LogFtl::new(spec).expect("it fits");
    fill(&mut drive);
    let mut host = host(Order::Uniform, 1, drive.settle());
    host.run(&mut drive, warm_up * user_blocks).expect("the run ends");
    let (before, started) = (drive.counts(), Instant::now());
    let requests = 4_000_000;
    let run = host.run(&mut drive, requests).expect("the run ends");
    let rate = requests as f64 / started.elapsed().as_secs_f64();
    let amplification = drive.counts().since(&before).write_amplification();
    let bandwidth = requests as f64 * 4096e3 / (run.ended_ns - run.began_ns) as f64;
    println!("{name:44} {rate:12.0} {amplification:8.2} {bandwidth:10.1}");
}

fn speed() {
    println!("{:44} {:>12} {:>8} {:>10}", "random 4 KiB writes", "requests/s", "WA", "MB/s");
    for gib in [8u64, 64] {
        for (percent, stored, warm_up) in [(7, 1.0, 2), (28, 1.0, 2), (7, 0.5, 4)] {
            let user_blocks = gib << 18;
            let shape = shape(user_blocks * (100 + percent) / 100);
            let name = format!("{gib} GiB, {percent} % more flash, stored {stored}");
            run(&name, spec(shape, user_blocks, stored), warm_up);
        }
    }
}

/// Returns a drive of 10^12 bytes with 7 % more flash.
fn terabyte_spec(stored: f64) -> LogSpec {
    let user_blocks = 1_000_000_000_000u64 / 4096;
    let mut shape = FlashShape {
        channels: 8,
        dies_per_channel: 8,
        planes: 2,
        blocks_per_plane: 1,
        pages_per_block: 256,
        page_bytes: 16384,
    };
    let segments = (user_blocks * 107 / 100).div_ceil(slots(&shape)) as u32;
    shape.blocks_per_plane = segments + FREE_SEGMENTS + 2;
    spec(shape, user_blocks, stored)
}

fn terabyte() {
    println!("{:44} {:>12} {:>8} {:>10}", "random 4 KiB writes", "requests/s", "WA", "MB/s");
    run("10^12 bytes, 7 % more flash", terabyte_spec(1.0), 1);
}

/// Returns the resident memory of this process in bytes, if the kernel reports it.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().split(' ').next()?.parse::<u64>().ok()? * 1024)
}

fn memory() {
    let head = "10^12 bytes, 7 % more flash; MB";
    println!("{head:44} {:>10} {:>10} {:>10}", "at most", "counted", "VmRSS");
    for stored in [1.0, 0.5] {
        let spec = terabyte_spec(stored);
        let (user_blocks, most) = (spec.user_blocks, spec.memory_bytes_max().expect("it fits"));
        let mut drive = LogFtl::new(spec).expect("it fits");
        fill(&mut drive);
        // With compression, the lists are longest just before garbage collection starts.
        let requests = if stored < 1.0 { user_blocks } else { user_blocks / 50 };
        let mut host = host(Order::Uniform, 1, drive.settle());
        host.run(&mut drive, requests).expect("the run ends");
        let mb = |bytes: u64| bytes as f64 / 1e6;
        let (name, resident) = (format!("stored {stored}"), resident_bytes().unwrap_or(0));
        let counted = drive.memory_bytes();
        println!("{name:44} {:10.0} {:10.0} {:10.0}", mb(most), mb(counted), mb(resident));
    }
}

/// Evaluates Xiang and Kurkoski's formula; `a` is the ratio of raw to user space.
fn formula(a: f64) -> f64 {
    let w = (0..200_000).fold(0.0, |w: f64, _| (w - a).exp() * a);
    a / (a - w)
}

fn amplification() {
    println!("{:>10} {:>10} {:>10} {:>10}", "raw/user", "measured", "formula", "ratio");
    let shape = FlashShape {
        channels: 2,
        dies_per_channel: 2,
        planes: 2,
        blocks_per_plane: 400,
        pages_per_block: 256,
        page_bytes: 4096,
    };
    for a in [1.05, 1.0737, 1.12, 1.2, 1.28, 1.374, 1.5] {
        let full = f64::from(shape.blocks_per_plane) - 1.0 - f64::from(FREE_SEGMENTS) + 0.5;
        let user_blocks = (full * slots(&shape) as f64 / a) as u64;
        let mut drive = LogFtl::new(spec(shape, user_blocks, 1.0)).expect("it fits");
        fill(&mut drive);
        let mut host = host(Order::Uniform, 1, drive.settle());
        host.run(&mut drive, 3 * user_blocks).expect("the run ends");
        let before = drive.counts();
        let (mut free, mut samples) = (0.0, 0.0);
        for _ in 0..5 * user_blocks / 100 {
            host.run(&mut drive, 100).expect("the run ends");
            free += f64::from(drive.free_segments());
            samples += 1.0;
        }
        let full = f64::from(shape.blocks_per_plane) - 1.0 - free / samples;
        let a = full * slots(&shape) as f64 / user_blocks as f64;
        let measured = drive.counts().since(&before).write_amplification();
        let expected = formula(a);
        println!("{a:10.4} {measured:10.3} {expected:10.3} {:10.3}", measured / expected);
    }
}

fn main() {
    let name = std::env::args().skip(1).find(|arg| !arg.starts_with('-')).unwrap_or_default();
    match name.as_str() {
        "terabyte" => terabyte(),
        "speed" => speed(),
        "memory" => memory(),
        "amplification" => amplification(),
        _ => {
            speed();
            memory();
            amplification();
        }
    }
}

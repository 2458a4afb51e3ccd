//! Benchmark: a full drive, overwritten at 100 % utilization for hours of virtual time.
//!
//! ```text
//! cargo bench --bench full                  # six minutes
//! cargo bench --bench full -- 3             # three hours
//! cargo bench --bench full -- 3 64 7        # on a disk of 64 MiB with 7 % of over-provisioning
//! ```
//!
//! The over-provisioning is net of headers, map and reserves; by default the drive has the capacity
//! of a full drive from `pumice create`, which is generous with segments of 4 MiB.
//!
//! `pumice_torture::run_full` describes the load and the checks.
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
#![allow(missing_docs)]

use std::time::Instant;

use pumice_drive::controller::OpenOptions;
use pumice_torture::{FullPlan, run_full};

/// Returns the bytes of log for the disk in frames of one block, each with its header and its
/// source; the map twice; `percent` of all that; and 12 segments that never hold data.
fn capacity(size_bytes: u64, percent: f64) -> u64 {
    let blocks = size_bytes / 4096;
    let stored = (size_bytes + blocks * (44 + 2 * 16)) as f64 * (1.0 + percent / 100.0);
    ((stored / f64::from((4 << 20) - (24 << 10))).ceil() as u64 + 12) << 22
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let number = |at: usize, default: f64| {
        arguments.get(at).and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let size_bytes = (number(1, 64.0) as u64) << 20;
    let plan = FullPlan {
        seed: 1,
        size_bytes,
        capacity_bytes: arguments.get(2).map(|_| capacity(size_bytes, number(2, 7.0))),
        time_ns: (number(0, 0.1) * 3.6e12) as u64,
        burst_bytes: 12 << 20,
        rest_ns: 60_000_000_000,
        options: OpenOptions { checkpoint_bytes: 64 << 20, ..OpenOptions::default() },
    };
    let start = Instant::now();
    let report = match run_full(plan) {
        Ok(report) => report,
        Err(error) => {
            eprintln!("{}", error.chain());
            std::process::exit(1);
        }
    };
    println!(
        "{:.2} h of virtual time in {:.0} s: {:.1} GiB written, the disk {:.0} times, {} % of it \
         mapped\n{} writes, {} flushes, {} trims, {} victims, {} checkpoints\nWA {:.2}; longest \
         write {:.1} ms, p99.9 {:.1} ms; longest flush {:.1} ms",
        report.time_ns as f64 / 3.6e12,
        start.elapsed().as_secs_f64(),
        report.host_bytes as f64 / f64::from(1 << 30),
        report.host_bytes as f64 / plan.size_bytes as f64,
        report.mapped_percent,
        report.writes,
        report.flushes,
        report.trims,
        report.victims,
        report.checkpoints,
        report.media_bytes as f64 / report.host_bytes as f64,
        report.write_ns_max as f64 / 1e6,
        report.write_ns_p999 as f64 / 1e6,
        report.flush_ns_max as f64 / 1e6,
    );
}

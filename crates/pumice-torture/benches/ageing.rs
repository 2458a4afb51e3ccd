//! Benchmark: drives that are overwritten as databases do, at several shares of their space.
//!
//! ```text
//! cargo bench --bench ageing               # 20 times what each drive holds
//! cargo bench --bench ageing -- 100 4096 32   # 100 times, on 4,096 MiB in segments of 32 MiB
//! ```
//!
//! `pumice_torture::run_ageing` describes the load and the checks.

use pumice_drive::controller::OpenOptions;
use pumice_torture::{AgeingPlan, run_ageing};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let number = |at: usize, default: u64| {
        arguments.get(at).and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let only = number(3, 0);
    let pause_ns = number(4, 0) * 1000;
    for used_percent in [70, 85, 95] {
        if only != 0 && only != used_percent {
            continue;
        }
        let plan = AgeingPlan {
            seed: 1,
            capacity_bytes: number(1, 512) << 20,
            segment_bytes: (number(2, 4) as u32) << 20,
            used_percent: used_percent as f64,
            times: number(0, 20),
            latency_ns: 80_000..=2_000_000,
            pause_ns,
            options: OpenOptions { checkpoint_bytes: 64 << 20, ..OpenOptions::default() },
        };
        let report = match run_ageing(&plan) {
            Ok(report) => report,
            Err(error) => {
                eprintln!("{}", error.chain());
                std::process::exit(1);
            }
        };
        let ms = |ns: u64| ns as f64 / 1e6;
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        println!(
            "{used_percent} %: {:.0} s of virtual time; {:.0} MiB of disk, each byte \
             stored in {:.2}; {:.0} MiB written\n  used {:.1} to {:.1} %, {} writes refused, WA \
             {:.2}, moved {:.2}, {} victims, {} checkpoints\n  longest write {:.1} ms, p99.9 \
             {:.1} ms, longest flush {:.1} ms; memory {:.1}, then {:.1} MiB",
            report.time_ns as f64 / 1e9,
            mib(report.mapped_bytes),
            report.stored_fraction,
            mib(report.host_bytes),
            report.used_percent_filled,
            report.used_percent_max,
            report.refused,
            report.media_bytes as f64 / report.host_bytes as f64,
            report.moved_bytes as f64 / report.host_bytes as f64,
            report.victims,
            report.checkpoints,
            ms(report.write_ns_max),
            ms(report.write_ns_p999),
            ms(report.flush_ns_max),
            mib(report.memory_bytes_early),
            mib(report.memory_bytes_late),
        );
    }
}

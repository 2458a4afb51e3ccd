//! Benchmark: drives overwritten for a month in the pattern of databases, at several shares of
//! their space.
//!
//! ```text
//! cargo bench --bench ageing               # 8 times the data of each drive, in 30 days
//! cargo bench --bench ageing -- 20 4096 32   # 20 times, on 4,096 MiB in segments of 32 MiB
//! cargo bench --bench ageing -- 8 512 4 95 uniform     # one share; no hot data
//! cargo bench --bench ageing -- 8 512 4 95 hot keep    # nothing is reclaimed in idle hours
//! ```
//!
//! `pumice_torture::run_ageing` describes the load and the checks.

use pumice_drive::controller::OpenOptions;
use pumice_torture::{AgeingPlan, run_ageing};

/// 30 days.
const MONTH_NS: u64 = 30 * 86_400_000_000_000;

/// Bursts in a month.
const BURSTS: u64 = 120;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let number = |at: usize, default: u64| {
        arguments.get(at).and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let has = |word: &str| arguments.iter().any(|argument| argument == word);
    let only = number(3, 0);
    let mut options = OpenOptions::default();
    if has("keep") {
        options.compact_percent = None;
    }
    for used_percent in [70, 85, 95] {
        if only != 0 && only != used_percent {
            continue;
        }
        let plan = AgeingPlan {
            seed: 1,
            capacity_bytes: number(1, 512) << 20,
            segment_bytes: (number(2, 4) as u32) << 20,
            used_percent: used_percent as f64,
            times: number(0, 8),
            has_hot_data: !has("uniform"),
            bursts: BURSTS,
            burst_interval_ns: MONTH_NS / BURSTS,
            latency_ns: 80_000..=2_000_000,
            options,
        };
        run(&plan);
    }
}

fn run(plan: &AgeingPlan) {
    let report = match run_ageing(plan) {
        Ok(report) => report,
        Err(error) => {
            eprintln!("{}", error.chain());
            std::process::exit(1);
        }
    };
    let ms = |ns: u64| ns as f64 / 1e6;
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let (wa, formula) = (report.write_amplification(), report.write_amplification_by_formula());
    let of_host = |bytes: u64| bytes as f64 / report.host_bytes as f64;
    let rest = report.media_bytes - report.frame_bytes - report.moved_bytes;
    println!(
        "{} %: {:.1} days; {:.0} MiB of disk, {:.0} MiB written, {} writes refused\n  used {:.1} % \
         ({:.1} to {:.1}), {:.3} occupied for each live byte\n  WA {wa:.2} ({:.2} stored, {:.2} \
         moved, {:.2} the rest), {formula:.2} by the formula: {:.2} of it; {} victims, {} \
         checkpoints\n  longest write {:.1} ms, p99.9 {:.1} ms, longest flush {:.1} ms; memory \
         {:.1}, then {:.1} MiB",
        plan.used_percent,
        report.time_ns as f64 / 86.4e12,
        mib(report.mapped_bytes),
        mib(report.host_bytes),
        report.refused,
        report.used.percent(),
        report.used.percent_min,
        report.used.percent_max,
        report.used.occupied_ratio(),
        of_host(report.frame_bytes),
        of_host(report.moved_bytes),
        of_host(rest),
        wa / formula,
        report.victims,
        report.checkpoints,
        ms(report.write_ns_max),
        ms(report.write_ns_p999),
        ms(report.flush_ns_max),
        mib(report.memory_bytes_early),
        mib(report.memory_bytes_late),
    );
}

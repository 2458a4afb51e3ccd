//! The bench, its data and reports, and the scan.

mod bench;
mod bench_hosts;
mod bench_presets;
mod bench_report;
mod bench_seeds;
mod bench_sim;
mod bench_target;
mod bench_turns;
mod demo;
mod detect;
mod payload;
mod report;
mod scan;
mod scan_disks;

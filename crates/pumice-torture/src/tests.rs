//! Goal: the promises hold in a few worlds, and a seed determines a run.
//! Method: a handful of seeds; `pumice-torture` runs as many as wanted.

use super::*;
use pumice_drive::codec::Codec;
use pumice_drive::controller::OpenOptions;

const STEPS: u64 = 120;

fn run(seed: u64) -> Tally {
    run_world(seed, STEPS).unwrap_or_else(|violation| panic!("{violation}"))
}

#[test]
fn a_few_worlds_keep_every_promise() {
    let mut tally = Tally::default();
    for seed in 1..=24 {
        tally.add(&run(seed));
    }
    let tame = tally.power_losses < 10
        || tally.kills < 5
        || tally.crashes_while_opening == 0
        || tally.writes_torn == 0
        || tally.changes_kept == 0
        || tally.changes_lost == 0
        || tally.gc_victims == 0
        || tally.map_misses == 0
        || tally.checkpoints < 24;
    assert!(!tame, "too tame a test: {tally:?}");
}

#[test]
fn the_same_seed_is_the_same_run() {
    let first = run(7);
    assert_eq!(first, run(7), "a seed must determine the run");
    assert_ne!(first.fingerprint, run(8).fingerprint, "another seed must change the run");
}

/// Ten minutes of virtual time in which a disk without a free block is overwritten some ten times.
#[test]
fn a_full_drive_is_overwritten_for_minutes() {
    for recompress in [None, Some(Codec::Zstd { level: 1 })] {
        let options =
            OpenOptions { recompress, checkpoint_bytes: 8 << 20, ..OpenOptions::default() };
        let plan = FullPlan {
            seed: 1,
            size_bytes: 24 << 20,
            // The disk and what it takes in blocks of 4 KiB, 13 % of that, and reserves.
            capacity_bytes: Some((7 + 12) * (4 << 20)),
            time_ns: 600_000_000_000,
            burst_bytes: 1 << 20,
            rest_ns: 12_000_000_000,
            options,
        };
        let report = run_full(plan).unwrap();
        assert_eq!(report.mapped_percent, 100);
        let overwrites = report.host_bytes / plan.size_bytes;
        let tame = overwrites < 6
            || report.victims < 50
            || report.checkpoints < 10
            || report.trims < 50
            || report.time_ns < plan.time_ns;
        assert!(!tame, "too tame a test: {report:?}");
        assert!(report.write_ns_max < 500_000_000, "a write waited long: {report:?}");
    }
}

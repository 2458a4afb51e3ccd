//! Goal: promises hold in a few worlds, and a seed is one run.
//! Method: a handful of seeds; `pumice torture` runs as many as anybody likes.

use super::*;

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
    assert_eq!(first, run(7), "the same seed gave another run");
    assert_ne!(first.fingerprint, run(8).fingerprint, "another seed gave the same run");
}

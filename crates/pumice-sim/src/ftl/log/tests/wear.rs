//! Goal: erasures are distributed over the blocks, whether or not the host writes evenly. Method:
//! long runs on a small drive; the erase counts of the blocks.

use rand::RngExt;

use super::*;
use pumice_drive::base::seed::random;

/// Writes all blocks once, then a tenth of them repeatedly.
fn run_hot(spec: LogSpec) -> LogFtl {
    let mut drive = LogFtl::new(spec).unwrap();
    let blocks = drive.spec.user_blocks;
    let mut random = random(1);
    let mut now_ns = 0;
    for write in 0..60 * blocks {
        let lba = if write < blocks { write } else { random.random_range(0..blocks / 10) };
        now_ns = drive.write(now_ns, Lba(lba), 1).unwrap();
        drive.trace.clear();
    }
    drive.settle();
    drive
}

/// All blocks, including free ones, take turns in receiving hot data.
#[test]
fn the_least_worn_free_block_is_used_first() {
    let drive = run_hot(LogSpec { user_blocks: 1600, free_segments: 10, ..small() });
    let hot = Vec::from_iter(drive.erases().filter(|&erases| erases > 3));
    let (least, most) = (hot.iter().min().unwrap(), hot.iter().max().unwrap());
    assert!(hot.len() > 4 * 10 && *least > 50, "{hot:?}");
    assert!(most - least < 5, "{hot:?}");
}

#[test]
fn cold_segments_are_moved_when_wear_grows_apart() {
    let without = run_hot(LogSpec { user_blocks: 1800, ..small() });
    let with = run_hot(LogSpec { user_blocks: 1800, wear_gap_max: Some(10), ..small() });
    let (apart, even) = (without.wear(), with.wear());
    assert!(apart.min <= 1 && apart.max > 60, "cold data stays where it is: {apart:?}");
    assert!(even.min > 20 && even.max - even.min < 20, "{even:?}");
    let (counts, least) = (with.counts(), without.counts().flash_bytes);
    // 115 segments. There would be 134 if cold data went to blocks with little wear, from which it
    // would be moved again.
    assert!((1..125).contains(&counts.segments_leveled), "{counts:?}");
    assert!(counts.flash_bytes * 100 < least * 115, "{counts:?}, without {least} bytes");
    assert_eq!(without.counts().leveled_bytes, 0);
}

#[test]
fn bad_blocks_are_never_used() {
    let mut drive =
        LogFtl::new(LogSpec { bad_percent: 5.0, user_blocks: 1500, ..small() }).unwrap();
    let mut host = host(Order::Uniform, 1);
    host.run(&mut drive, 40 * 1500).unwrap();
    drive.settle();
    let good = drive.erases().count();
    assert!((141..159).contains(&good), "{good} of 160 blocks");
    assert!(drive.wear().min > 0, "they were all used: {:?}", drive.wear());
    assert!(drive.erases().all(|erases| erases > 0), "bad ones are in no distribution");
}

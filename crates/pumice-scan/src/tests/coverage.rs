//! Goal: the interval contains the true value at least as often as stated, on misleading
//! populations: one huge incompressible file among tiny texts, data that repeats with a period,
//! files full of holes, and a small part that differs from the rest. Method: real files, scanned
//! once completely, and with draws for many seeds.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::*;
use pumice_drive::base::units::BLOCK_BYTES;

/// Returns the number of `seeds` scans whose interval misses the true value, and the average width
/// of their intervals.
fn missed(paths: &[&Path], draws: u64, seeds: u64) -> (u64, f64) {
    let configs = vec![LZ4];
    let all = ScanOptions { reading: Reading::All, configs: configs.clone(), ..options() };
    let truth = Outcome::of(&run(paths, &all).unwrap()).main().drive.stored;
    let (mut missed, mut points) = (0, 0.0);
    for seed in 1..=seeds {
        let reading = Reading::Draws(draws);
        let options = ScanOptions { reading, seed, configs: configs.clone(), ..options() };
        let drive = Outcome::of(&run(paths, &options).unwrap()).main().drive;
        missed += u64::from(truth < drive.stored_low || truth > drive.stored_high);
        points += drive.error_points();
    }
    (missed, points / seeds as f64)
}

const SEEDS: u64 = 60;

/// 5 % of [`SEEDS`], plus three standard deviations of that number.
const MISSED_MAX: u64 = 8;

#[test]
fn one_huge_file_among_tiny_ones() {
    let tree = tempfile::tempdir().unwrap();
    write(&tree.path().join("huge.bin"), 3000, 0.0, 1);
    for number in 0..300 {
        write(&tree.path().join(format!("{number}.txt")), 1, 0.9, number);
    }
    let (missed, points) = missed(&[tree.path()], 1500, SEEDS);
    assert!(missed <= MISSED_MAX, "{missed} of {SEEDS}");
    // Each kind is a separate stratum; without strata, the interval would have 1.8 points.
    assert!(points < 1.3, "{points}");
}

#[test]
fn a_period_that_a_stride_would_follow() {
    // The first 32 of every 64 blocks are noise and the others are nearly empty. With a stride that
    // is a power of two, a scan would see only one kind.
    let tree = tempfile::tempdir().unwrap();
    let path = tree.path().join("disk.img");
    write(&path, 4096, 0.0, 2);
    let file = File::options().write(true).open(&path).unwrap();
    for period in 0..64u64 {
        file.write_all_at(&vec![b'y'; 32 * 4096], (period * 64 + 32) * 4096).unwrap();
    }
    let (missed, points) = missed(&[&path], 400, SEEDS);
    assert!(missed <= MISSED_MAX, "{missed} of {SEEDS}");
    assert!((4.0..10.0).contains(&points), "half of it is noise: {points}");
}

#[test]
fn data_among_holes() {
    // Single blocks of noise at distances of 1 MiB, and a dense part of text; holes do not count.
    let tree = tempfile::tempdir().unwrap();
    let path = tree.path().join("sparse.img");
    write(&path, 1000, 0.8, 3);
    let file = File::options().write(true).open(&path).unwrap();
    let mut noise = vec![0; 4096];
    random(4).fill_bytes(&mut noise);
    for number in 0..1000u64 {
        file.write_all_at(&noise, (8 << 20) + (number << 20)).unwrap();
    }
    let (missed, points) = missed(&[&path], 400, SEEDS);
    assert!(missed <= MISSED_MAX, "{missed} of {SEEDS}");
    assert!(points < 8.0, "{points}");
}

#[test]
fn a_little_of_another_kind() {
    // One block in 200 is noise among zeroes; most small samples contain none, and consist of
    // identical blocks.
    let tree = tempfile::tempdir().unwrap();
    let path = tree.path().join("zeroes.img");
    let mut bytes = vec![0; 4000 * BLOCK_BYTES];
    for number in (0..4000).step_by(200) {
        random(number as u64).fill_bytes(&mut bytes[number * BLOCK_BYTES..][..BLOCK_BYTES]);
    }
    fs::write(&path, bytes).unwrap();
    let (missed, _) = missed(&[&path], 100, SEEDS);
    assert!(missed <= MISSED_MAX, "{missed} of {SEEDS}");
}

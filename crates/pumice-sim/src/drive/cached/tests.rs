//! Goal: a cache never returns a byte that the host did not write, its durations are the durations
//! of the drives that it uses, and after a flush it retains the data that its type guarantees.
//! Method: random requests from several tasks, compared with an array; runs in virtual time;
//! counters.

use std::rc::Rc;

use futures_util::future::join_all;
use rand::RngExt;

use super::*;
use crate::Result;
use crate::drive::{DesignCounts, SimDesign, SimDrive, SimSpec};
use crate::ftl::StoredSizes;
use pumice_drive::base::Clock;
use pumice_drive::base::seed::random;
use pumice_drive::runtime::Runtime;

const BLOCK: u64 = 4096;

fn spec(slow: &str, cache: &str) -> SimSpec {
    let slow = SimSpec::find(slow).expect("a drive");
    let cache = DriveCache::find(cache).expect("a cache");
    cache.before(slow, StoredSizes::AsWritten).expect("a drive with a cache")
}

fn drive(slow: &str, cache: &str) -> SimDrive {
    SimDrive::new(spec(slow, cache)).expect("a drive")
}

/// Returns the cache itself, which allows examining its drives.
fn cached(slow: &str, cache: &str) -> (Rc<Cached>, Runtime) {
    let SimDesign::Cached(spec) = spec(slow, cache).design else { panic!("no cache") };
    let runtime = Runtime::simulated();
    (Cached::new(&spec, &runtime).expect("a cache"), runtime)
}

fn counts(drive: &SimDrive) -> CacheCounts {
    let DesignCounts::Cached(counts, _) = drive.counts().design else { panic!("no cache") };
    counts
}

/// Returns the duration of `work` in virtual ns.
fn timed<T>(runtime: &Runtime, work: impl Future<Output = Result<T>>) -> u64 {
    let begun_ns = runtime.now_ns();
    runtime.block_on(work).expect("no error");
    runtime.now_ns() - begun_ns
}

/// Performs `requests` reads and writes in a range that no other task uses.
async fn use_range(drive: &SimDrive, from: u64, bytes: usize, seed: u64, requests: u32) {
    let (mut random, mut array) = (random(seed), vec![0u8; bytes]);
    for step in 0..requests {
        let at = random.random_range(0..bytes / 512) * 512;
        let len = (random.random_range(1..40) * 512).min(bytes - at);
        match random.random_range(0..20) {
            0 => drive.flush().await.expect("no error"),
            1..=10 => {
                random.fill(&mut array[at..at + len]);
                let data = &array[at..at + len];
                drive.write(from + at as u64, data).await.expect("no error");
            }
            _ => {
                let mut target = vec![1; len];
                drive.read(from + at as u64, &mut target).await.expect("no error");
                assert_eq!(target, array[at..at + len], "step {step}, seed {seed}");
            }
        }
    }
}

#[test]
fn every_byte_is_read_back_with_any_cache() {
    // Ranges of 10.5 KiB, so that tasks share lines.
    const BYTES: usize = 21 * 512;
    for (slow, cache) in [
        ("hdd-2010", "ram:32KiB"),
        ("hdd-2010", "ram:32KiB:write-back"),
        ("hdd-2010", "ram-card:64KiB:write-back:16KiB"),
        ("hdd-2010", "intel-x25-e-32:1MiB:64KiB"),
        ("hdd-2010", "intel-x25-e-32:256KiB:write-back:8KiB"),
        ("jmicron-jmf602b", "micro-center-64:48KiB:write-back"),
    ] {
        let drive = drive(slow, cache);
        let tasks = (0..8).map(|task| {
            let from = task * BYTES as u64;
            use_range(&drive, from, BYTES, task, 150)
        });
        drive.runtime().block_on(join_all(tasks));
        let counts = counts(&drive);
        assert!(counts.lines_read > counts.lines_hit && counts.lines_hit > 0, "{cache} {counts:?}");
    }
}

#[test]
fn a_hit_takes_the_time_of_the_cache_and_a_miss_the_time_of_the_drive() {
    for (cache, hit_ns_max) in
        [("ram:1MiB", 10_000), ("ram-card:1MiB", 40_000), ("intel-x25-e-32:1MiB", 400_000)]
    {
        let drive = drive("hdd-2010", cache);
        let far = 300 << 30;
        let read = |at| {
            let mut block = [0; 4096];
            timed(drive.runtime(), async { drive.read(at, &mut block).await })
        };
        let (miss_ns, near_ns) = (read(far), read(0));
        assert!(miss_ns > 1_000_000 && near_ns > 1_000_000, "{cache}: {miss_ns} {near_ns}");
        let hit_ns = read(far);
        assert!(hit_ns < hit_ns_max, "{cache}: a hit takes {hit_ns} ns");
        assert_eq!((counts(&drive).lines_read, counts(&drive).lines_hit), (3, 1));
    }
}

#[test]
fn the_least_recently_used_line_makes_room() {
    let drive = drive("hdd-2010", "ram:16KiB");
    let read = |line: u64| {
        let before = counts(&drive).lines_hit;
        let mut block = [0; 4096];
        timed(drive.runtime(), async { drive.read(line * BLOCK, &mut block).await });
        counts(&drive).lines_hit > before
    };
    assert!((0..4).all(|line| !read(line)), "nothing was there");
    assert!(read(0), "0 was there, and is now the most recently used");
    assert!(!read(4), "4 takes the place of 1");
    assert!(read(0) && read(2) && read(3) && read(4));
    assert!(!read(1));
}

#[test]
fn write_through_waits_for_the_drive_and_write_back_does_not() {
    let write = |cache| {
        // Without a separate cache, so that each write waits for a merge.
        let drive = drive("jmicron-jmf602b", cache);
        let ns = timed(drive.runtime(), async {
            for number in 0..20 {
                drive.write(number << 24, &[7; 4096]).await?;
            }
            Ok(())
        });
        (ns, counts(&drive).dirty_bytes_max)
    };
    let (through_ns, none) = write("ram-card:1MiB");
    let (back_ns, dirty_bytes) = write("ram-card:1MiB:write-back");
    assert!(through_ns > 100 * back_ns, "{through_ns} {back_ns}");
    assert_eq!((none, dirty_bytes), (0, 20 * BLOCK));
}

/// Returns whether the slow drive has the data that was written and flushed.
fn has_after_flush(cache: &str) -> (bool, u64) {
    let (cached, runtime) = cached("hdd-2010", cache);
    let ns = timed(&runtime, async {
        for number in 0..8 {
            cached.write(number << 20, &[7; 4096]).await?;
        }
        cached.flush().await
    });
    let mut all = true;
    for number in 0..8 {
        let mut block = [0; 4096];
        timed(&runtime, cached.slow.read(number << 20, &mut block));
        all &= block == [7; 4096];
    }
    runtime.drop_tasks();
    (all, ns)
}

#[test]
fn a_flush_leaves_nothing_in_a_volatile_cache() {
    let (ram, ram_ns) = has_after_flush("ram:1MiB:write-back");
    assert!(ram, "memory of the host forgets");
    let (card, card_ns) = has_after_flush("ram-card:1MiB:write-back");
    assert!(!card, "a card with a battery does not");
    assert!(ram_ns > 10 * card_ns, "{ram_ns} {card_ns}");
    assert!(has_after_flush("ram:1MiB").0, "written through");
}

#[test]
fn a_cache_full_of_newer_lines_lets_writes_pass() {
    let drive = drive("hdd-2010", "ram-card:32KiB:write-back");
    let writes = (0..64u64).map(|number| {
        let drive = &drive;
        async move { drive.write(number << 20, &[number as u8 + 1; 4096]).await }
    });
    let all = drive.runtime().block_on(join_all(writes));
    assert!(all.iter().all(Result::is_ok));
    let counts = counts(&drive);
    assert!(counts.lines_past > 0 && counts.lines_written == 64, "{counts:?}");
    assert!(counts.dirty_bytes_max <= 2 * (32 << 10), "{counts:?}");
    for number in 0..64 {
        let mut block = [0; 4096];
        timed(drive.runtime(), async { drive.read(number << 20, &mut block).await });
        assert_eq!(block, [number as u8 + 1; 4096]);
    }
}

#[test]
fn trimmed_lines_leave_the_cache() {
    let drive = drive("micro-center-64", "ram-card:1MiB:write-back");
    let mut block = [1; 4096];
    timed(drive.runtime(), async {
        drive.write(0, &[7; 8192]).await?;
        drive.trim(0, 4096).await?;
        drive.read(0, &mut block).await?;
        assert_eq!(block, [0; 4096]);
        drive.read(4096, &mut block).await
    });
    assert_eq!(block, [7; 4096]);
    let disk = self::drive("hdd-2010", "ram:1MiB");
    let trimmed = disk.runtime().block_on(disk.trim(0, 4096));
    assert!(trimmed.is_err(), "a hard disk has no trim");
}

#[test]
fn mistakes_are_explained() {
    let cache = DriveCache::find("intel-x25-e-32:8GiB:write-back:64KiB").expect("a cache");
    assert_eq!(cache.to_string(), "8 GiB of intel-x25-e-32, write-back, lines of 64 KiB");
    assert!(!cache.is_volatile() && DriveCache::find("ram:1GiB").expect("memory").is_volatile());
    for (text, words) in [
        ("ram", "expected NAME:SIZE"),
        ("nothing:1GiB", "no drive or file is called nothing"),
        ("ram:x", "'x'"),
        ("ram:1GiB:write", "'write'"),
        ("ram:1GiB:5000", "4, 8, 16, 32 or 64 KiB"),
        ("ram:1GiB:128KiB", "4, 8, 16, 32 or 64 KiB"),
        ("ram:100", "lines"),
        ("ram:1TiB", "lines"),
        ("intel-x25-e-32:33GB:64KiB", "less than the cache"),
    ] {
        let error = DriveCache::find(text).expect_err(text).to_string();
        assert!(error.contains(words), "{words}: {error}");
    }
}

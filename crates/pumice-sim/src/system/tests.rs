//! Goal: a page cache loses no data, makes writers wait and the drive work when necessary, and
//! includes the durations of calls and copies. Method: random requests compared with an array; runs
//! in virtual time compared with calculated durations.

use std::rc::Rc;

use rand::RngExt;

use super::*;
use crate::drive::cached::CALL_NS;
use crate::drive::{DesignCounts, SimDesign};
use pumice_drive::base::Clock;
use pumice_drive::base::seed::random;

/// A small profile: the drive in the published articles on compression.
const PROFILE: &str = "micro-center-64";

fn system(conditions: &str) -> Rc<System> {
    let spec = SystemSpec::find(&format!("{PROFILE}{conditions}")).expect("a system");
    Rc::new(System::new(spec).expect("a drive"))
}

/// Returns the duration of `work` in virtual seconds.
fn timed<T>(system: &System, work: impl Future<Output = T>) -> (T, f64) {
    let begun_ns = system.runtime().now_ns();
    let result = system.runtime().block_on(work);
    (result, (system.runtime().now_ns() - begun_ns) as f64 / 1e9)
}

/// Writes `count` records of 4 KiB of noise, one after another.
async fn write_records(system: &Rc<System>, count: u64) {
    let mut random = random(3);
    let mut record = vec![0; 4096];
    for number in 0..count {
        random.fill(&mut record[..]);
        system.write(number * 4096, &record).await.expect("room");
    }
}

#[test]
fn every_byte_is_read_back_through_all_layers() {
    const BYTES: usize = 1 << 20;
    for conditions in ["?offset_bytes=32256", "?cache_bytes=64MiB&offset_bytes=512"] {
        let system = system(conditions);
        let mut random = random(9);
        let mut array = vec![0; BYTES];
        for step in 0..1500 {
            let at = random.random_range(0..BYTES / 512) * 512;
            let len = (random.random_range(1..40) * 512).min(BYTES - at);
            let range = at..at + len;
            let work = async {
                match random.random_range(0..20) {
                    0 => system.flush().await,
                    1 => {
                        system.drop_clean();
                        Ok(())
                    }
                    2..=10 => {
                        random.fill(&mut array[range.clone()]);
                        system.write(at as u64, &array[range]).await
                    }
                    _ => {
                        let mut target = vec![1; len];
                        system.read(at as u64, &mut target).await?;
                        assert_eq!(target, array[range], "step {step}{conditions}");
                        Ok(())
                    }
                }
            };
            system.runtime().block_on(work).expect("no error");
        }
    }
}

#[test]
fn writes_are_fast_until_the_allowance_is_dirty() {
    // 20 % of 64 MiB are 3276 pages. The first pages need only the time of calls and copies.
    let system = system("?cache_bytes=64MiB&call_ns=10000&copy_bytes_per_s=1GB");
    let ((), free_s) = timed(&system, write_records(&system, 1600));
    assert!((free_s / (1600.0 * (10_000.0 + 4096.0) * 1e-9) - 1.0).abs() < 0.01, "{free_s} s");
    let counts = system.counts();
    let DesignCounts::Log(written) = counts.design else { panic!("{counts:?}") };
    assert_eq!(written.host_bytes, 0, "half of it is not written back yet");
    let ((), many_s) = timed(&system, write_records(&system, 16_000));
    // All data beyond the allowance is written at 130 MB/s.
    assert!(many_s > (16_000.0 - 3276.0) * 4096.0 / 130e6, "{many_s} s: writers wait");
    let (result, flush_s) = timed(&system, system.flush());
    result.expect("no error");
    let drive_mb_s = 16_000.0 * 4096.0 / (many_s + flush_s) / 1e6;
    assert!((50.0..130.0).contains(&drive_mb_s), "{drive_mb_s} MB/s: the flash's pace");
    assert!(flush_s > 0.05, "{flush_s} s for a sixth of the cache");
    assert_eq!(system.cache.as_ref().unwrap().borrow().dirty_pages(), 0);
}

#[test]
fn a_sequential_reader_is_read_ahead_of() {
    let speed = |conditions: &str| {
        let system = system(conditions);
        system.runtime().block_on(async {
            write_records(&system, 4096).await;
            system.flush().await.expect("no error");
            system.drop_clean();
        });
        let read = async {
            let mut record = vec![0; 4096];
            for number in 0..4096 {
                system.read(number * 4096, &mut record).await.expect("no error");
            }
        };
        let ((), seconds) = timed(&system, read);
        4096.0 * 4096.0 / seconds / 1e6
    };
    let without = speed("?cache_bytes=64MiB&readahead_bytes=0");
    let with = speed("?cache_bytes=64MiB");
    assert!(with > 2.0 * without, "{with} MB/s, without {without}");
}

#[test]
fn conditions_are_read_and_mistakes_explained() {
    let spec = SystemSpec::find(
        "micro-center-64?cache_bytes=1GiB&dirty_percent=40&depth=1&offset_bytes=32256",
    );
    let spec = spec.unwrap();
    let cache = spec.cache.unwrap();
    assert_eq!((cache.cache_bytes, cache.dirty_percent), (1 << 30, 40));
    assert_eq!((cache.readahead_bytes, spec.call_ns), (128 << 10, CALL_NS));
    assert_eq!((spec.drive.front.depth, spec.offset_bytes), (1, 32256));
    assert_eq!(spec.size_bytes(), spec.drive.size_bytes - 32256);
    let cached = SystemSpec::find("micro-center-64?cached_by=ram:1GiB:write-back&depth=1").unwrap();
    let SimDesign::Cached(parts) = cached.drive.design else { panic!("no cache") };
    assert_eq!((parts.size_bytes, parts.slow.front.depth), (1 << 30, 1));
    for (conditions, words) in [
        ("?cache=1G", "'cache' is not a condition"),
        ("?cached_by=ram", "expected NAME:SIZE"),
        ("?cache_bytes=x", "cache_bytes:"),
        ("?cache_bytes=1M", "64 MiB to 16 GiB"),
        ("?dirty_percent=20", "requires cache_bytes"),
        ("?cache_bytes=1G&dirty_percent=0", "1 to 90"),
        ("?cache_bytes=1G&dirty_percent=91", "1 to 90"),
        ("?cache_bytes=64M&readahead_bytes=32M", "an eighth"),
        ("?cache_bytes=64M&copy_bytes_per_s=0", "not be zero"),
        ("?offset_bytes=100", "multiple of 512"),
    ] {
        let error = SystemSpec::find(&format!("{PROFILE}{conditions}")).unwrap_err().to_string();
        assert!(error.contains(words), "{words}: {error}");
    }
}

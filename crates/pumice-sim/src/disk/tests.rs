//! Goal: a disk stores every byte, and durations are the sum of seeks, rotational delays and
//! transfers. Method: random operations compared with an array; streams and single accesses
//! compared with calculated durations; the same workload with and without reordering.

use std::cell::Cell;
use std::rc::Rc;

use futures_util::future::try_join_all;
use rand::RngExt;

use super::*;
use crate::content::SECTOR_BYTES;
use pumice_drive::base::Clock;
use pumice_drive::base::seed::random;
use pumice_drive::runtime::Runtime;

/// 10 ms per revolution, and 1 MB on every track.
pub(super) const SPEC: DiskSpec = DiskSpec {
    rpm: 6000,
    seek_track_ns: 800_000,
    seek_average_ns: 8_900_000,
    seek_full_ns: 20_000_000,
    outer_bytes_per_s: 100_000_000,
    inner_bytes_per_s: 100_000_000,
    cache_bytes: 1 << 20,
    ncq: true,
    reorder_max: 32,
};
const SIZE: u64 = 4_000_000_000_000 / 4096 * 4096;
const TURN_NS: u64 = 10_000_000;

struct Bench {
    runtime: Runtime,
    disk: Rc<Disk<Runtime>>,
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.runtime.drop_tasks();
    }
}

impl Bench {
    fn new(size_bytes: u64, spec: DiskSpec) -> Self {
        let runtime = Runtime::simulated();
        let disk = Rc::new(Disk::new(size_bytes, spec, runtime.clone()).unwrap());
        runtime.spawn(Rc::clone(&disk).turn());
        Self { runtime, disk }
    }

    /// Writes, and returns the duration.
    fn write(&self, offset: u64, bytes: &[u8]) -> u64 {
        let begun_ns = self.runtime.now_ns();
        self.runtime.block_on(self.disk.write(offset, bytes)).unwrap();
        self.runtime.now_ns() - begun_ns
    }

    /// Reads, and returns the duration.
    fn read(&self, offset: u64, target: &mut [u8]) -> u64 {
        let begun_ns = self.runtime.now_ns();
        self.runtime.block_on(self.disk.read(offset, target)).unwrap();
        self.runtime.now_ns() - begun_ns
    }

    fn flush(&self) {
        self.runtime.block_on(self.disk.flush()).unwrap();
    }

    /// Runs `tasks` tasks that each perform `count` random 4 KiB operations. Returns the duration.
    fn at_random(&self, tasks: u64, count: u64, is_write: bool) -> u64 {
        let begun_ns = self.runtime.now_ns();
        let left = Rc::new(Cell::new(tasks));
        for task in 0..tasks {
            let (disk, left) = (Rc::clone(&self.disk), Rc::clone(&left));
            self.runtime.spawn(async move {
                let (mut random, mut block) = (random(task), [1; 4096]);
                for _ in 0..count {
                    let offset = random.random_range(0..disk.size_bytes / 4096) * 4096;
                    if is_write {
                        disk.write(offset, &block).await.unwrap()
                    } else {
                        disk.read(offset, &mut block).await.unwrap()
                    }
                }
                left.set(left.get() - 1);
                disk.ended.wake_all();
            });
        }
        let ended = || (left.get() == 0).then_some(());
        self.runtime.block_on(self.disk.ended.wait_for(ended));
        self.flush();
        self.runtime.now_ns() - begun_ns
    }
}

/// Compares random concurrent operations with an array. Returns the elapsed time and the counters.
fn random_operations(spec: DiskSpec) -> String {
    let size_bytes = 40_000_512 / 4096 * 4096 + 1536;
    let bench = Bench::new(size_bytes, spec);
    let left = Rc::new(Cell::new(4u64));
    for task in 0..4u64 {
        let (disk, left) = (Rc::clone(&bench.disk), Rc::clone(&left));
        bench.runtime.spawn(async move {
            let mut random = random(task);
            // This task owns a quarter of the disk.
            let quarter = size_bytes / 4 / SECTOR_BYTES * SECTOR_BYTES;
            let mut plain = vec![0u8; quarter as usize];
            let sectors = quarter / SECTOR_BYTES;
            for number in 0..600 {
                let at = random.random_range(0..sectors);
                let count = random.random_range(1..=300.min(sectors - at));
                let (offset, len) = (at * SECTOR_BYTES, (count * SECTOR_BYTES) as usize);
                let place = &mut plain[offset as usize..][..len];
                let mut data = vec![0; len];
                match random.random_range(0..20) {
                    0 => disk.flush().await.unwrap(),
                    1..10 => {
                        disk.read(task * quarter + offset, &mut data).await.unwrap();
                        assert!(data == place, "task {task}, operation {number}");
                    }
                    _ => {
                        random.fill(&mut data[..]);
                        disk.write(task * quarter + offset, &data).await.unwrap();
                        place.copy_from_slice(&data);
                    }
                }
            }
            let mut back = vec![0; plain.len()];
            disk.read(task * quarter, &mut back).await.unwrap();
            assert!(back == plain);
            left.set(left.get() - 1);
            disk.ended.wake_all();
        });
    }
    let ended = || (left.get() == 0).then_some(());
    bench.runtime.block_on(bench.disk.ended.wait_for(ended));
    bench.flush();
    let state = bench.disk.state.borrow();
    assert!(state.order.is_empty() && state.writes.is_empty() && state.write_bytes == 0);
    format!("{} {:?}", bench.runtime.now_ns(), state.counts)
}

#[test]
fn every_byte_is_kept_and_the_same_run_gives_the_same() {
    let first = random_operations(SPEC);
    assert_eq!(first, random_operations(SPEC));
    random_operations(DiskSpec { ncq: false, ..SPEC });
    random_operations(DiskSpec { cache_bytes: 4096, inner_bytes_per_s: 30_000_000, ..SPEC });
}

#[test]
fn a_stream_has_the_rate_of_its_zone() {
    let spec = DiskSpec { inner_bytes_per_s: 50_000_000, ..SPEC };
    for (at, bytes_per_us) in [(0, 100.0), (SIZE / 2 / 4096 * 4096, 75.0)] {
        for is_write in [false, true] {
            let bench = Bench::new(SIZE, spec);
            let mut record = vec![1; 128 << 10];
            bench.read(at, &mut record);
            let begun_ns = bench.runtime.now_ns();
            for number in 1..=400 {
                let offset = at + number * (128 << 10);
                // The host pauses, but for less than a revolution.
                bench.runtime.block_on(bench.runtime.sleep_ns(300_000));
                if is_write {
                    bench.write(offset, &record)
                } else {
                    bench.read(offset, &mut record)
                };
            }
            bench.flush();
            let took_us = (bench.runtime.now_ns() - begun_ns) as f64 / 1e3;
            let rate = 400.0 * f64::from(128 << 10) / took_us;
            assert!((rate / bytes_per_us - 1.0).abs() < 0.02, "at {at}: {rate} MB/s, {is_write}");
        }
    }
}

#[test]
fn data_read_ahead_is_available_after_the_head_passed_it() {
    let bench = Bench::new(SIZE, SPEC);
    let mut record = vec![0; 124 << 10];
    assert_eq!(bench.read(0, &mut record[..4096]), 4096 * 10);
    let passed_ns = bench.read(4096, &mut record);
    assert!(passed_ns.abs_diff((124 << 10) * 10) < 10, "{passed_ns}");
    bench.runtime.block_on(bench.runtime.sleep_ns(5_000_000));
    assert_eq!(bench.read(128 << 10, &mut record), 0);
    assert_eq!((bench.disk.counts().head_reads, bench.disk.counts().cached_reads), (1, 2));
}

/// Guards against a head that leaves a stream for a later part of the same stream.
#[test]
fn a_stream_of_several_commands_at_once_has_the_rate_of_its_zone_too() {
    let bench = Bench::new(SIZE, SPEC);
    let begun_ns = bench.runtime.now_ns();
    for number in 0..20u64 {
        let mut record = vec![0; 2 << 20];
        let commands = (0..).zip(record.chunks_mut(128 << 10)).map(|(at, part)| {
            let bench = &bench;
            async move {
                // Each command arrives at the disk after the previous one.
                bench.runtime.sleep_ns(at * 100_000).await;
                bench.disk.read(number * (2 << 20) + at * (128 << 10), part).await
            }
        });
        bench.runtime.block_on(try_join_all(commands)).unwrap();
        bench.runtime.block_on(bench.runtime.sleep_ns(500_000));
    }
    let rate = 20.0 * f64::from(2 << 20) / (bench.runtime.now_ns() - begun_ns) as f64 * 1e3;
    assert!((rate / 100.0 - 1.0).abs() < 0.02, "{rate} MB/s");
}

#[test]
fn a_random_read_is_a_seek_half_a_turn_and_its_bytes() {
    let bench = Bench::new(SIZE, SPEC);
    let count = 4000;
    let mean_ns = bench.at_random(1, count, false) / count;
    let expected_ns = SPEC.seek_average_ns + TURN_NS / 2 + 4096 * 10;
    assert!(mean_ns.abs_diff(expected_ns) < expected_ns / 50, "{mean_ns}, {expected_ns}");
    assert_eq!(bench.disk.counts().head_reads, count);
}

#[test]
fn a_drive_that_reorders_is_faster() {
    for is_write in [false, true] {
        let time = |spec| Bench::new(SIZE, spec).at_random(32, 50, is_write);
        let plain_ns = time(DiskSpec { ncq: false, ..SPEC });
        let (four_ns, all_ns) = (time(DiskSpec { reorder_max: 4, ..SPEC }), time(SPEC));
        assert!(four_ns < plain_ns * 3 / 4, "{four_ns}, {plain_ns}, {is_write}");
        assert!(all_ns < four_ns * 3 / 4, "{all_ns}, {four_ns}, {is_write}");
        assert_eq!(plain_ns, time(DiskSpec { reorder_max: 1, ..SPEC }));
    }
}

#[test]
fn the_cache_takes_writes_until_it_is_full_and_reads_see_them() {
    let bench = Bench::new(SIZE, SPEC);
    let mut random = random(1);
    let mut places: Vec<u64> = Vec::new();
    for number in 0..256u64 {
        let offset = random.random_range(0..SIZE / 4096) * 4096;
        assert_eq!(bench.write(offset, &[number as u8; 4096]), 0, "{number}");
        places.push(offset);
    }
    let mut block = [0; 4096];
    for (number, &offset) in places.iter().enumerate() {
        assert_eq!(bench.read(offset, &mut block), 0, "{number}");
        assert_eq!(block, [number as u8; 4096]);
        // The second time, the write is already pending and needs no additional space.
        if number > 0 {
            assert_eq!(bench.write(offset, &block), 0, "{number}");
        }
    }
    assert!(bench.write(4096, &[1; 4096]) > 1_000_000, "there is no room before one has ended");
    assert_eq!(bench.disk.counts().head_writes, 1);
    bench.flush();
    assert_eq!(bench.disk.counts().head_writes, 257);
    assert!(bench.read(places[9], &mut block) > 1_000_000, "it is on the platters only");
}

/// Guards against a flush that never ends because other tasks keep writing.
#[test]
fn a_flush_waits_for_earlier_writes_only() {
    let bench = Bench::new(SIZE, SPEC);
    for number in 0..16 {
        bench.write(number * (200 << 30), &[1; 4096]);
    }
    let (disk, clock) = (Rc::clone(&bench.disk), bench.runtime.clone());
    let written = Rc::new(Cell::new(0));
    let counted = Rc::clone(&written);
    bench.runtime.spawn(async move {
        // This runs after the flush.
        clock.sleep_ns(1).await;
        for number in 0..100u64 {
            disk.write((number + 1) << 20, &[1; 4096]).await.unwrap();
            counted.set(counted.get() + 1);
        }
    });
    bench.flush();
    assert_eq!((bench.disk.counts().head_writes, written.get()), (16, 0));
    bench.runtime.block_on(bench.runtime.sleep_ns(1));
    assert_eq!(written.get(), 100);
    bench.flush();
    assert_eq!(bench.disk.counts().head_writes, 116);
}

#[test]
fn impossible_disks_are_refused() {
    let wrong: [fn(&mut DiskSpec); 5] = [
        |spec| spec.rpm = 0,
        |spec| spec.inner_bytes_per_s = 0,
        |spec| spec.inner_bytes_per_s = spec.outer_bytes_per_s + 1,
        |spec| spec.seek_average_ns = 0,
        |spec| spec.reorder_max = 0,
    ];
    for (number, wrong) in wrong.into_iter().enumerate() {
        let mut spec = SPEC;
        wrong(&mut spec);
        assert!(Disk::new(SIZE, spec, Runtime::simulated()).is_err(), "{number}");
    }
    let bench = Bench::new(SIZE, SPEC);
    for (offset, len) in [(100, 512), (0, 100), (SIZE, 512), (u64::MAX - 511, 512)] {
        let target = &mut vec![0; len];
        assert!(bench.runtime.block_on(bench.disk.read(offset, target)).is_err(), "{offset}");
        assert!(bench.runtime.block_on(bench.disk.write(offset, target)).is_err(), "{offset}");
    }
}

/// Guards against a long write that finds no space while short writes keep arriving.
#[test]
fn room_is_given_in_order_of_arrival() {
    let bench = Bench::new(SIZE, DiskSpec { cache_bytes: 64 << 10, ..SPEC });
    for task in 0..8 {
        let disk = Rc::clone(&bench.disk);
        bench.runtime.spawn(async move {
            let mut random = random(task);
            for _ in 0..200 {
                let at = random.random_range(0..SIZE / 4096) * 4096;
                disk.write(at, &[1; 4096]).await.expect("no error");
            }
        });
    }
    bench.runtime.block_on(bench.runtime.sleep_ns(100 * TURN_NS));
    // The writes in the cache and the earlier ones in the queue take at most three revolutions
    // each.
    let took_ns = bench.write(0, &[2; 64 << 10]);
    assert!(took_ns < 3 * (16 + 8) * TURN_NS, "{took_ns}");
}

//! Goal: every kind of request has its specified effect, over a drive and over a disk that records.

use std::rc::Rc;
use std::sync::Barrier;

use super::{Outcome, identity, serve, serve_with};
use crate::driver::{
    INDIRECT, NEXT, SLOT_BYTES, Setup, WRITE, descriptor_bytes, kind, range_bytes,
};
use pumice_drive::base::ErrorKind;
use pumice_drive::{Drive, MemMedium, OpenOptions, Spec, Uuid, create};
use pumice_nbd::memory_disk::{MemoryDisk, SIZE};

const GOOD: u8 = 0;
const FAILED: u8 = 1;
const UNSUPPORTED: u8 = 2;

/// The feature by which a driver announces that it sends flushes.
const FLUSH: u64 = 1 << 9;

#[test]
fn a_drive_returns_the_written_data() {
    let device = serve_with(
        identity(),
        |runtime| {
            runtime.block_on(async {
                let spec = Spec::new(Uuid::from_u128(1), 64 << 20);
                let medium = MemMedium::new(spec.geometry().unwrap().medium_bytes());
                create(&medium, &spec).await.unwrap();
                Drive::open(Rc::new(medium), runtime.clock(), OpenOptions::default()).await.unwrap()
            })
        },
        |runtime, drive| runtime.block_on(drive.close()).unwrap(),
    );
    let mut driver = device.connect();
    assert_eq!(driver.config().unwrap()[..8], (64_u64 << 11).to_le_bytes());
    let data: Vec<u8> = (0..4096).map(|at| (at * 7 % 251) as u8).collect();
    assert_eq!(driver.call(kind::WRITE, 8, &data).unwrap(), GOOD);
    assert_eq!(driver.call(kind::FLUSH, 0, &[]).unwrap(), GOOD);
    let mut read = vec![1; 4096];
    driver.read(8, &mut read).unwrap();
    assert_eq!(read, data);
    // Half of it, by sectors.
    assert_eq!(driver.call(kind::ZEROES, 0, &range_bytes(10, 2, 1)).unwrap(), GOOD);
    driver.read(8, &mut read).unwrap();
    assert_eq!((&read[..1024], &read[1024..2048]), (&data[..1024], &[0; 1024][..]));
    assert_eq!(driver.call(kind::DISCARD, 0, &range_bytes(8, 8, 0)).unwrap(), GOOD);
    driver.read(8, &mut read).unwrap();
    assert_eq!(read, [0; 4096]);
    device.end();
}

#[test]
fn each_request_reaches_the_disk_with_its_type() {
    let device = serve(MemoryDisk::default);
    let mut driver = device.connect();
    assert_eq!(driver.call(kind::WRITE, 8, &[7; 8192]).unwrap(), GOOD);
    assert_eq!(driver.call(kind::FLUSH, 0, &[]).unwrap(), GOOD);
    let ranges = [range_bytes(0, 8, 0), range_bytes(16, 24, 0)].concat();
    assert_eq!(driver.call(kind::DISCARD, 0, &ranges).unwrap(), GOOD);
    assert_eq!(driver.call(kind::ZEROES, 0, &range_bytes(1, 2, 0)).unwrap(), GOOD);
    assert_eq!(driver.call(kind::ZEROES, 0, &range_bytes(1, 2, 1)).unwrap(), GOOD);
    let slot = driver.take(0);
    driver.submit(0, slot, kind::ID, 0, 20);
    assert_eq!(driver.wait(0).unwrap().status, GOOD);
    let mut id = [1; 20];
    driver.get(driver.data(0, slot), &mut id);
    assert_eq!(&id, b"0123456789\0\0\0\0\0\0\0\0\0\0");
    drop(driver);
    let calls = device.end().calls;
    assert_eq!(
        calls,
        [
            "write 4096 8192 Volatile",
            "flush",
            "trim 0 4096 Volatile",
            "trim 8192 12288 Volatile",
            "zero 512 1024 Keep Volatile",
            "zero 512 1024 Release Volatile",
            "flush",
        ]
    );
}

#[test]
fn impossible_requests_fail_and_change_nothing() {
    let device = serve(|| MemoryDisk {
        failure: Some((1 << 20, ErrorKind::Medium)),
        ..MemoryDisk::default()
    });
    let mut driver = device.connect();
    let sectors = SIZE / 512;
    let mut call = |kind, sector, data: &[u8]| driver.call(kind, sector, data).unwrap();
    // Slightly beyond the end, and where the sum overflows.
    assert_eq!(call(kind::WRITE, sectors - 1, &[1; 1024]), FAILED);
    assert_eq!(call(kind::WRITE, u64::MAX, &[1; 512]), FAILED);
    assert_eq!(call(kind::WRITE, u64::MAX / 512, &[1; 512]), FAILED);
    // Not a multiple of sectors, and no data at all.
    assert_eq!(call(kind::WRITE, 0, &[1; 513]), FAILED);
    assert_eq!(call(kind::WRITE, 0, &[]), FAILED);
    // Ranges: beyond the end, half of one, none, too many, and with unknown flags.
    assert_eq!(call(kind::DISCARD, 0, &range_bytes(sectors, 1, 0)), FAILED);
    assert_eq!(call(kind::DISCARD, 0, &[0; 8]), FAILED);
    assert_eq!(call(kind::DISCARD, 0, &[]), FAILED);
    assert_eq!(call(kind::DISCARD, 0, &[0; 17 * 16]), FAILED);
    assert_eq!(call(kind::DISCARD, 0, &range_bytes(0, 1, 1)), UNSUPPORTED);
    assert_eq!(call(kind::ZEROES, 0, &range_bytes(0, 1, 2)), UNSUPPORTED);
    assert_eq!(call(99, 0, &[]), UNSUPPORTED);
    // An error of the disk itself.
    assert_eq!(call(kind::WRITE, 2048, &[1; 512]), FAILED);
    let mut one = [0; 512];
    driver.read(2048, &mut one).unwrap_err();
    driver.read(sectors, &mut one).unwrap_err();
    driver.read(sectors - 1, &mut one).unwrap();
    drop(driver);
    let outcome = device.end();
    assert_eq!(outcome.calls, ["write 1048576 512 Volatile", "flush"]);
    assert!(outcome.bytes.iter().all(|&byte| byte == 0));
}

#[test]
fn without_a_write_cache_each_change_is_durable() {
    let device = serve(MemoryDisk::default);
    let mut driver = device.connect_with(Setup { features: !FLUSH, ..Setup::default() });
    assert_eq!(driver.call(kind::WRITE, 0, &[1; 512]).unwrap(), GOOD);
    assert_eq!(driver.call(kind::DISCARD, 0, &range_bytes(0, 8, 0)).unwrap(), GOOD);
    assert_eq!(driver.call(kind::ZEROES, 0, &range_bytes(0, 8, 1)).unwrap(), GOOD);
    drop(driver);
    let mut driver = device.connect();
    assert_eq!(driver.call(kind::WRITE, 1, &[1; 512]).unwrap(), GOOD);
    drop(driver);
    assert_eq!(
        device.end().calls,
        [
            "write 0 512 Durable",
            "trim 0 4096 Durable",
            "zero 0 4096 Release Durable",
            "write 512 512 Volatile",
            "flush",
        ]
    );
}

/// The writes of one ring do not keep the thread from the other rings for long.
#[test]
fn long_writes_of_one_ring_let_others_in_between() {
    static READY: Barrier = Barrier::new(2);
    let device = serve(|| MemoryDisk {
        is_ready: |offset| {
            if offset == SIZE - 4096 {
                READY.wait();
            }
            true
        },
        ..MemoryDisk::default()
    });
    let mut driver = device.connect_with(Setup { rings: 3, size: 64, ..Setup::default() });
    // Occupies the thread until both other rings have requests.
    let slot = driver.take(2);
    driver.submit(2, slot, kind::WRITE, SIZE / 512 - 8, 4096);
    let since = driver.next(0);
    for sector in 0..8 {
        let slot = driver.take(0);
        driver.prepare(0, slot, kind::WRITE, sector * 2048, 1 << 20);
        driver.offer(0, slot * 3);
    }
    driver.announce(0, since);
    let slot = driver.take(1);
    driver.submit(1, slot, kind::WRITE, SIZE / 512 - 16, 4096);
    READY.wait();
    assert_eq!(driver.wait(1).unwrap().status, GOOD);
    for _ in 0..8 {
        assert_eq!(driver.wait(0).unwrap().status, GOOD);
    }
    drop(driver);
    let calls = device.end().calls;
    let short = format!("write {} 4096 Volatile", SIZE - 8192);
    let at = calls.iter().position(|call| *call == short);
    assert!(at.is_some_and(|at| at < 6), "{calls:?}");
}

/// The writes of many rings do not keep the thread from other tasks.
#[test]
fn long_writes_of_all_rings_let_other_tasks_run_in_between() {
    static READY: Barrier = Barrier::new(2);
    let device = serve_with(
        identity(),
        |runtime| {
            let disk = Rc::new(MemoryDisk {
                is_ready: |offset| {
                    if offset == SIZE - 4096 {
                        READY.wait();
                    }
                    true
                },
                ..MemoryDisk::default()
            });
            let (of_task, clock) = (disk.clone(), runtime.clone());
            runtime.spawn(async move {
                loop {
                    clock.yield_now().await;
                    let calls = &mut *of_task.calls.borrow_mut();
                    if calls.last().is_some_and(|last| last != "another task") {
                        calls.push("another task".into());
                    }
                }
            });
            disk
        },
        |_, disk| Outcome::of(&disk),
    );
    let mut driver = device.connect_with(Setup { rings: 7, size: 16, ..Setup::default() });
    // Occupies the thread until all other rings have requests.
    let slot = driver.take(6);
    driver.submit(6, slot, kind::WRITE, SIZE / 512 - 8, 4096);
    for ring in 0..6 {
        let since = driver.next(ring);
        for sector in 0..4 {
            let slot = driver.take(ring);
            driver.prepare(ring, slot, kind::WRITE, sector * 2048, 1 << 20);
            driver.offer(ring, slot * 3);
        }
        driver.announce(ring, since);
    }
    READY.wait();
    for ring in 0..6 {
        for _ in 0..4 {
            assert_eq!(driver.wait(ring).unwrap().status, GOOD);
        }
    }
    drop(driver);
    let calls = device.end().calls;
    let is_long = |call: &&String| call.ends_with("1048576 Volatile");
    let together = calls.split(|call| call == "another task");
    let most = together.map(|calls| calls.iter().filter(is_long).count()).max();
    assert!(most.is_some_and(|most| most <= 2), "{calls:?}");
}

#[test]
fn a_read_only_disk_says_so() {
    let device = serve(|| MemoryDisk { is_read_only: true, ..MemoryDisk::default() });
    let mut driver = device.connect();
    // Read-only; neither discard nor write-zeroes.
    assert_eq!(driver.features() & (1 << 5 | 1 << 13 | 1 << 14), 1 << 5);
    assert_eq!(driver.call(kind::WRITE, 0, &[1; 512]).unwrap(), FAILED);
    assert_eq!(driver.call(kind::DISCARD, 0, &range_bytes(0, 8, 0)).unwrap(), FAILED);
    driver.read(0, &mut [0; 512]).unwrap();
    drop(driver);
    assert!(device.end().calls.is_empty());
}

#[test]
fn requests_overtake_one_that_waits() {
    let device = serve(|| MemoryDisk {
        gated_offset: Some(0),
        gates_flush: true,
        is_opened_by_reads: true,
        ..MemoryDisk::default()
    });
    let mut driver = device.connect();
    let waiting = driver.take(0);
    driver.put(driver.data(0, waiting), &[1; 4096]);
    driver.submit(0, waiting, kind::WRITE, 0, 4096);
    let others: Vec<_> = (1..=30).map(|_| driver.take(0)).collect();
    for (at, &slot) in others.iter().enumerate() {
        driver.put(driver.data(0, slot), &[2; 4096]);
        driver.submit(0, slot, kind::WRITE, 8 * (at as u64 + 1), 4096);
    }
    for _ in &others {
        let completion = driver.wait(0).unwrap();
        assert_ne!(completion.slot, waiting);
        assert_eq!(completion.status, GOOD);
    }
    // The guest changes the data of a write in flight, which is too late.
    driver.put(driver.data(0, waiting), &[9; 4096]);
    driver.read(1 << 10, &mut [0; 512]).unwrap_or_else(|error| {
        // The request that ends first is reported first.
        assert!(error.to_string().contains(&format!("slot: {waiting}")), "{error}");
    });
    let last = driver.wait(0).unwrap();
    assert_eq!(last.status, GOOD);
    drop(driver);
    assert_eq!(device.end().bytes[..8192], [[1; 4096], [2; 4096]].concat());
}

/// The parts of a request may be anywhere, and a long request is split into pieces.
#[test]
fn scattered_and_long_requests_arrive_whole() {
    let device = serve(MemoryDisk::default);
    let mut driver = device.connect();
    let (slot, table) = (driver.take(0), driver.take(0));
    let (head, data) = (driver.head(0, slot), driver.data(0, slot));
    let bytes: Vec<u8> = (0..SLOT_BYTES).map(|at| (at % 253) as u8).collect();
    driver.put(data, &bytes);
    for (kind, flag) in [(kind::WRITE, 0), (kind::READ, WRITE)] {
        driver.prepare(0, slot, kind, 8, 0);
        // The head in two parts; 3.5 MiB of data in four; the status alone.
        let mut parts = vec![(head, 6, 0), (head + 6, 10, 0)];
        parts.extend([(data, 1 << 20, flag), (data, 512 << 10, flag)]);
        parts.extend([(data, 1 << 20, flag), (data, 1 << 20, flag), (head + 16, 1, WRITE)]);
        let last = parts.len() - 1;
        for (at, &(address, length, flags)) in parts.iter().enumerate() {
            let next = if at == last { 0 } else { NEXT };
            let descriptor = (address, length, flags | next, at as u16 + 1);
            driver.put(driver.data(0, table) + at as u64 * 16, &descriptor_bytes(descriptor));
        }
        let indirect = (driver.data(0, table), parts.len() as u32 * 16, INDIRECT, 0);
        driver.describe(0, slot * 3, indirect);
        if kind == kind::READ {
            driver.put(data, &[0; 4096]);
        }
        driver.offer(0, slot * 3);
        driver.kick(0);
        assert_eq!(driver.wait(0).unwrap().status, GOOD);
    }
    let mut read = vec![0; 4096];
    driver.get(data, &mut read);
    // The last piece that was read into the same memory.
    assert_eq!(read, bytes[..4096]);
    drop(driver);
    let outcome = device.end();
    let expected = [&bytes[..], &bytes[..512 << 10], &bytes[..], &bytes[..]].concat();
    assert!(outcome.bytes[4096..][..expected.len()] == expected);
    assert_eq!(
        outcome.calls,
        [
            "write 4096 1048576 Volatile",
            "write 1052672 1048576 Volatile",
            "write 2101248 1048576 Volatile",
            "write 3149824 524288 Volatile",
            "flush",
        ]
    );
}

#[test]
fn several_rings_serve_one_disk() {
    for features in [u64::MAX, !crate::driver::EVENT_INDEX] {
        let device =
            serve(|| MemoryDisk { is_ready: |at| at % 8192 == 0, ..MemoryDisk::default() });
        let mut driver = device.connect_with(Setup { rings: 4, size: 64, features, base: 0 });
        for round in 0..50 {
            for ring in 0..4 {
                for _ in 0..8 {
                    let slot = driver.take(ring);
                    driver.put(driver.data(ring, slot), &[ring as u8 + 1; 4096]);
                    let sector = ring as u64 * 1024 + u64::from(slot) * 8 + round;
                    driver.submit(ring, slot, kind::WRITE, sector, 4096);
                }
            }
            for ring in 0..4 {
                for _ in 0..8 {
                    assert_eq!(driver.wait(ring).unwrap().status, GOOD);
                }
            }
        }
        drop(driver);
        let outcome = device.end();
        for ring in 0..4 {
            assert_eq!(outcome.bytes[(ring * 1024 + 40 * 8) * 512], 0);
            let first = outcome.bytes[ring * 1024 * 512..][..1024 * 512].iter();
            let written = first.filter(|&&byte| byte == ring as u8 + 1).count();
            assert!(written >= 8 * 4096, "ring {ring}: {written}");
        }
    }
}

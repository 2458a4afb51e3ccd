//! Goal: a guest that writes arbitrary bytes into its memory may lose its request or its ring, but
//! never harms the device. Method: after each attack, the ring is set up again and must work.

use std::time::Duration;

use super::{Device, Outcome, serve};
use crate::driver::{
    DATA, Descriptor, Driver, INDIRECT, NEXT, SLOT_BYTES, SLOT_STRIDE, Setup, WRITE,
    descriptor_bytes, head_bytes, kind,
};
use pumice_nbd::memory_disk::MemoryDisk;

/// The state of the ring after an attack.
#[derive(Debug, PartialEq, Eq)]
enum After {
    /// The request ended with this status.
    Status(u8),
    /// The ring is broken.
    Broken,
}

/// Waits for the end of an attack.
fn after(driver: &mut Driver) -> After {
    driver.kick(0);
    for _ in 0..2000 {
        if driver.is_broken(0) {
            return After::Broken;
        }
        if let Ok(completion) = driver.wait_for(0, Duration::from_millis(5)) {
            return After::Status(completion.status);
        }
    }
    panic!("the device does not react");
}

/// Sets up the ring again, and uses it.
fn assert_alive(driver: &mut Driver) {
    driver.stop(0).unwrap();
    driver.restart(0, 0).unwrap();
    let _ = driver.is_broken(0);
    assert_eq!(driver.call(kind::WRITE, 64, &[3; 4096]).unwrap(), 0);
    let mut read = [0; 4096];
    driver.read(64, &mut read).unwrap();
    assert_eq!(read, [3; 4096]);
}

fn device() -> (Device<Outcome>, Driver) {
    let device = serve(MemoryDisk::default);
    let driver = device.connect();
    (device, driver)
}

#[test]
fn chains_that_are_none_break_the_ring() {
    let (device, mut driver) = device();
    let head = driver.head(0, 0);
    let good_head = (head, 16, NEXT, 1);
    let status = (head + 16, 1, WRITE, 0);
    let chains: [(&str, &[Descriptor]); 13] = [
        ("a loop of one", &[(head, 16, NEXT, 0)]),
        ("a loop of two", &[good_head, (DATA, 512, NEXT, 0)]),
        ("next outside of the ring", &[(head, 16, NEXT, 128)]),
        ("more after the status", &[(head, 16, NEXT, 1), (head + 16, 1, NEXT | WRITE, 200)]),
        ("no status", &[(head, 16, 0, 0)]),
        ("a status without a byte", &[good_head, (head + 16, 0, WRITE, 0)]),
        ("no head", &[status]),
        ("a head that is too short", &[(head, 15, NEXT, 1), status]),
        ("a head outside of memory", &[(1 << 40, 16, NEXT, 1), status]),
        ("a head at the end of the address space", &[(u64::MAX - 7, 16, NEXT, 1), status]),
        ("read after write", &[good_head, (DATA, 512, NEXT | WRITE, 2), (DATA, 512, 0, 0)]),
        ("a table of half a descriptor", &[good_head, (DATA, 24, INDIRECT, 0)]),
        ("a table outside of memory", &[(1 << 40, 64, INDIRECT, 0)]),
    ];
    for (what, chain) in chains {
        driver.put(head, &head_bytes(kind::WRITE, 0));
        for (index, &descriptor) in (0..).zip(chain) {
            driver.describe(0, index, descriptor);
        }
        driver.offer(0, 0);
        assert_eq!(after(&mut driver), After::Broken, "{what}");
        assert_alive(&mut driver);
    }
    drop(driver);
    device.end();
}

#[test]
fn tables_are_bounded() {
    let (device, mut driver) = device();
    let (head, table) = (driver.head(0, 0), DATA);
    driver.put(head, &head_bytes(kind::WRITE, 0));
    // A table in a table.
    driver.put(table, &descriptor_bytes((table, 64, INDIRECT, 0)));
    driver.describe(0, 0, (table, 64, INDIRECT, 0));
    driver.offer(0, 0);
    assert_eq!(after(&mut driver), After::Broken);
    assert_alive(&mut driver);
    // The maximum number of descriptors of a table, each with the maximum number of bytes.
    for index in 0..65535_u16 {
        let next = if index == 65534 { 0 } else { NEXT };
        let descriptor = (head, u32::MAX, next, index.wrapping_add(1));
        driver.put(table + u64::from(index) * 16, &descriptor_bytes(descriptor));
    }
    driver.put(head, &head_bytes(kind::WRITE, 0));
    driver.describe(0, 0, (table, 65535 * 16, INDIRECT, 0));
    driver.offer(0, 0);
    assert_eq!(after(&mut driver), After::Broken);
    assert_alive(&mut driver);
    // One descriptor more than allowed, all of them empty.
    let last = 129;
    for index in 0..last {
        let (address, length, flags) = match index {
            0 => (head, 16, NEXT),
            128 => (head + 16, 1, WRITE),
            _ => (DATA + SLOT_BYTES, 512, NEXT),
        };
        let descriptor = (address, length, flags, index + 1);
        driver.put(table + u64::from(index) * 16, &descriptor_bytes(descriptor));
    }
    driver.put(head, &head_bytes(kind::WRITE, 0));
    driver.describe(0, 0, (table, u32::from(last) * 16, INDIRECT, 0));
    driver.offer(0, 0);
    assert_eq!(after(&mut driver), After::Broken);
    assert_alive(&mut driver);
    drop(driver);
    device.end();
}

#[test]
fn data_outside_of_memory_fails_its_request() {
    let (device, mut driver) = device();
    for (kind, flag) in [(kind::WRITE, 0), (kind::READ, WRITE)] {
        // Outside of memory, across its end, across the end of the address space.
        let end = DATA + 42 * SLOT_STRIDE;
        for address in [1 << 40, end - 512, u64::MAX - 100] {
            driver.prepare(0, 0, kind, 0, 1024);
            driver.describe(0, 1, (address, 1024, NEXT | flag, 2));
            driver.offer(0, 0);
            assert_eq!(after(&mut driver), After::Status(1), "{kind} {address:#x}");
        }
    }
    // More than the device reads or writes in one request.
    driver.prepare(0, 0, kind::READ, 0, u32::MAX);
    driver.describe(0, 1, (DATA, u32::MAX / 512 * 512, NEXT | WRITE, 2));
    driver.offer(0, 0);
    assert_eq!(after(&mut driver), After::Status(1));
    // A status outside of memory: the request ends without a status.
    driver.prepare(0, 0, kind::FLUSH, 0, 0);
    driver.describe(0, 2, (1 << 40, 1, WRITE, 0));
    driver.offer(0, 0);
    assert_eq!(after(&mut driver), After::Status(255));
    assert_alive(&mut driver);
    drop(driver);
    let outcome = device.end();
    assert!(outcome.bytes[..4096].iter().all(|&byte| byte == 0), "nothing half-read is written");
}

#[test]
fn indices_that_are_wrong_break_the_ring() {
    let (device, mut driver) = device();
    // A chain that begins outside of the ring.
    driver.offer(0, 128);
    assert_eq!(after(&mut driver), After::Broken);
    assert_alive(&mut driver);
    // More requests than the ring has entries, and fewer than before.
    for index in [driver.next(0).wrapping_add(129), driver.next(0).wrapping_sub(1)] {
        driver.offer_up_to(0, index);
        assert_eq!(after(&mut driver), After::Broken);
        assert_alive(&mut driver);
    }
    drop(driver);
    device.end();
}

/// A guest may offer a request repeatedly without waiting for its end.
#[test]
fn requests_in_flight_are_bounded_by_the_ring() {
    let device = serve(|| MemoryDisk {
        gated_offset: Some(0),
        is_opened_by_reads: true,
        ..MemoryDisk::default()
    });
    let mut driver = device.connect_with(Setup { rings: 2, size: 4, ..Setup::default() });
    driver.prepare(0, 0, kind::WRITE, 0, 4096);
    for is_full in [false, true] {
        for _ in 0..4 {
            driver.offer(0, 0);
        }
        driver.kick(0);
        // A full ring does not react to kicks.
        while !is_full && !driver.is_kick_noticed(0) {
            std::hint::spin_loop();
        }
        // This ring has its turn after the first one.
        let slot = driver.take(1);
        driver.submit(1, slot, kind::FLUSH, 0, 0);
        assert_eq!(driver.wait(1).unwrap().status, 0);
    }
    // On another ring, a write marks the time, and a read lets the other requests end.
    for kind in [kind::WRITE, kind::READ] {
        let slot = driver.take(1);
        driver.submit(1, slot, kind, 8, 4096);
        assert_eq!(driver.wait(1).unwrap().status, 0);
    }
    for _ in 0..8 {
        assert_eq!(driver.wait(0).unwrap().status, 0);
    }
    drop(driver);
    let mut calls = device.end().calls;
    calls.retain(|call| call != "flush");
    let of_ring =
        |calls: &[String]| calls.iter().filter(|call| *call == "write 0 4096 Volatile").count();
    assert_eq!((of_ring(&calls[..4]), of_ring(&calls)), (4, 8));
    assert_eq!(calls[4], "write 4096 4096 Volatile");
}

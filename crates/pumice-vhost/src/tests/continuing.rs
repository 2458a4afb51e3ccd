//! Goal: no write of a guest is executed twice or dropped because its front end connects again.
//! Method: guests that ran before, here or elsewhere, and shutdowns with requests in flight.

use std::rc::Rc;
use std::time::Duration;

use super::{Outcome, identity, serve, serve_gated, serve_with};
use crate::Identity;
use crate::driver::{Driver, Setup, kind};
use pumice_drive::runtime::Runtime;
use pumice_nbd::memory_disk::MemoryDisk;

/// A guest that ran before: 7 of its requests are used.
const RAN: Setup = Setup { base: 7, rings: 1, size: 128, features: u64::MAX };

/// How long a test watches for an event that must not happen.
const WHILE: Duration = Duration::from_millis(200);

const LONG: Duration = Duration::from_secs(20);

/// Begins a write of a block.
fn begin_write(driver: &mut Driver, ring: usize, sector: u64) {
    let slot = driver.take(ring);
    driver.submit(ring, slot, kind::WRITE, sector, 4096);
}

fn write(driver: &mut Driver) {
    assert_eq!(driver.call(kind::WRITE, 0, &[1; 512]).unwrap(), 0);
}

#[test]
fn a_shutdown_hangs_up_once_all_requests_have_ended() {
    let (mut device, gate) = serve_gated();
    let mut driver = device.connect();
    for sector in [0, 8] {
        begin_write(&mut driver, 0, sector);
    }
    assert_eq!(driver.wait(0).unwrap().status, 0);
    device.begin_end();
    assert!(!driver.hangs_up(WHILE).unwrap(), "the front end takes its base too early");
    assert_eq!(driver.used_index(0), 1);
    gate.open();
    assert!(driver.hangs_up(LONG).unwrap());
    assert_eq!(driver.used_index(0), 2);
    device.end();
}

/// The disk holds up a request for longer than a shutdown waits.
#[test]
fn a_handover_waits_until_all_requests_have_ended() {
    let (mut device, gate) = serve_gated();
    let mut driver = device.connect();
    begin_write(&mut driver, 0, 0);
    assert_eq!(driver.call_beside(kind::WRITE, 8, &[1; 512]).unwrap(), 0);
    device.begin_hand_over();
    assert!(!driver.hangs_up(Duration::from_secs(6)).unwrap());
    gate.open();
    assert!(driver.hangs_up(LONG).unwrap());
    assert_eq!(driver.used_index(0), 2);
    device.end();
}

#[test]
fn a_handover_that_is_interrupted_lets_no_guest_continue() {
    let (mut device, _gate) = serve_gated();
    let mut driver = device.connect();
    begin_write(&mut driver, 0, 0);
    assert_eq!(driver.call_beside(kind::WRITE, 8, &[1; 512]).unwrap(), 0);
    device.begin_hand_over();
    assert!(!driver.hangs_up(WHILE).unwrap());
    device.begin_end();
    let (_, guest) = device.thread.join().unwrap();
    assert_eq!(guest, None);
    assert_eq!(driver.used_index(0), 1);
}

#[test]
fn a_shutdown_stops_all_rings_together() {
    let (mut device, gate) = serve_gated();
    let mut driver = device.connect_with(Setup { rings: 2, ..Setup::default() });
    begin_write(&mut driver, 0, 0);
    let other = |driver: &mut Driver, limit| {
        begin_write(driver, 1, 8);
        driver.wait_for(1, limit).is_ok()
    };
    assert!(other(&mut driver, LONG));
    device.begin_end();
    let is_over = (0..200_000).any(|_| !other(&mut driver, WHILE));
    assert!(is_over, "a ring is served while another one is stopped");
    let ended = driver.used_index(1);
    gate.open();
    assert!(driver.hangs_up(LONG).unwrap());
    assert_eq!(driver.used_index(1), ended);
    device.end();
}

#[test]
fn a_new_server_refuses_a_guest_that_ran_before() {
    let device = serve(MemoryDisk::default);
    assert!(Driver::connect(&device.socket(), RAN).is_err());
    assert!(Driver::connect(&device.socket(), RAN).is_err());
    let mut driver = device.connect();
    write(&mut driver);
    device.end();
}

/// One of several rings may be one that the guest has not used yet.
#[test]
fn an_unused_ring_does_not_admit_the_others() {
    let device = serve(MemoryDisk::default);
    let mut driver = device.connect();
    write(&mut driver);
    driver.restart(1, 7).unwrap_err();
    assert!(driver.hangs_up(LONG).unwrap());
    // A refused guest stays refused, even if this server has served it before.
    assert!(driver.reconnect(&device.socket()).is_err());
    assert!(driver.reconnect(&device.socket()).is_err());
    device.end();
}

#[test]
fn a_ring_is_known_by_where_it_ended_here() {
    let device = serve(MemoryDisk::default);
    let mut driver = device.connect();
    write(&mut driver);
    // The front end hangs up before it has set up the other ring.
    driver.reconnect(&device.socket()).unwrap();
    driver.restart(1, 7).unwrap_err();
    let mut driver = device.connect();
    write(&mut driver);
    driver.disconnect();
    // A write that this server has not seen.
    driver.pretend_used_index(0, 2);
    assert!(driver.reconnect(&device.socket()).is_err(), "its ring went on elsewhere");
    device.end();
}

/// The index of a guest that ran is 0 again after 65,536 requests.
#[test]
fn a_wrapped_index_is_not_taken_for_a_new_guest() {
    let device = serve(MemoryDisk::default);
    let mut driver = device.connect();
    driver.pretend_used(1, 5);
    driver.restart(1, 0).unwrap_err();
    device.end();
}

#[test]
fn a_guest_continues_at_the_server_that_knows_it() {
    let device = serve(MemoryDisk::default);
    let mut first = device.connect();
    write(&mut first);
    first.reconnect(&device.socket()).unwrap();
    write(&mut first);
    first.disconnect();
    // It does not admit other guests, and their attempts change nothing.
    assert!(Driver::connect(&device.socket(), RAN).is_err());
    first.reconnect(&device.socket()).unwrap();
    write(&mut first);
    first.disconnect();
    let mut second = device.connect();
    write(&mut second);
    second.disconnect();
    assert!(first.reconnect(&device.socket()).is_err(), "two guests changed the disk in turns");
    second.reconnect(&device.socket()).unwrap();
    write(&mut second);
    device.end();
}

/// The known guest is handed over, as when the program restarts.
#[test]
fn a_guest_continues_at_the_server_that_replaces_its_own() {
    let device = serve(MemoryDisk::default);
    let mut driver = device.connect();
    write(&mut driver);
    let (outcome, guest) = device.hand_over();
    assert_eq!(outcome.calls, ["write 0 512 Volatile", "flush"]);
    let guest = guest.to_string().parse().unwrap();
    let identity = Identity { guest: Some(guest), ..identity() };
    let disk = |_: &Runtime| Rc::new(MemoryDisk::default());
    let device = serve_with(identity, disk, |_, disk| Outcome::of(&disk));
    assert!(Driver::connect(&device.socket(), RAN).is_err());
    driver.reconnect(&device.socket()).unwrap();
    write(&mut driver);
    assert_eq!(device.end().calls, ["write 0 512 Volatile", "flush"]);
}

#[test]
fn a_shutdown_does_not_wait_forever() {
    let (device, _gate) = serve_gated();
    let mut driver = device.connect();
    begin_write(&mut driver, 0, 0);
    assert_eq!(driver.call_beside(kind::WRITE, 8, &[1; 512]).unwrap(), 0);
    device.end();
    assert_eq!(driver.used_index(0), 1);
}

#[test]
fn a_ring_begins_where_its_used_requests_end() {
    let device = serve(MemoryDisk::default);
    let mut driver = device.connect();
    for _ in 0..3 {
        write(&mut driver);
    }
    assert_eq!(driver.stop(0).unwrap(), 3);
    driver.reattach(0, 3).unwrap();
    write(&mut driver);
    driver.reconnect(&device.socket()).unwrap();
    write(&mut driver);
    assert_eq!(driver.stop(0).unwrap(), 5);
    driver.reattach(0, 4).unwrap_err();
    assert!(driver.reconnect(&device.socket()).is_err(), "it was refused");
    // All requests from its first on would be executed again.
    let mut driver = device.connect();
    write(&mut driver);
    assert_eq!(driver.stop(0).unwrap(), 1);
    driver.reattach(0, 0).unwrap_err();
    device.end();
}

#[test]
fn the_memory_of_a_guest_is_let_go_at_its_end() {
    let device = serve(MemoryDisk::default);
    let mut driver = device.connect();
    write(&mut driver);
    let file = format!(" {} ", driver.inode().unwrap());
    drop(driver);
    let _next = device.connect();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(!maps.contains(&file), "{file} is mapped");
    device.end();
}

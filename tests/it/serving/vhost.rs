//! Goal: a virtual machine keeps all promised data on its vhost-user disk, whatever happens to the
//! server. Method: the built program and a scripted driver over shared memory, through SIGTERM,
//! SIGHUP, `kill -9` and a resize. `guest` has a kernel for a driver.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use pumice_vhost::driver::{Driver, Setup, kind, range_bytes};
use std::io::Read;

use crate::harness::{Drive, PUMICE, Server, pumice, run_ok, stand_in, wait_until};

/// Serves a drive to a virtual machine at this socket.
fn serve(drive: &Drive, socket: &Path) -> Server {
    drive.serve_with_control(&["--vhost-user", socket.to_str().expect("a path in UTF-8")])
}

/// Connects a driver whose ring begins at `base`, once the server listens.
fn connect(socket: &Path, base: u16) -> Driver {
    wait_until("the server listens", || UnixStream::connect(socket).is_ok());
    let setup = Setup { base, ..Setup::default() };
    Driver::connect(socket, setup).expect("a device with one ring")
}

/// Returns a block that compresses by half.
fn block(number: u64) -> Vec<u8> {
    (0..4096_u64).map(|at| if at % 2 == 0 { (number * 37 + at / 7) as u8 } else { 0 }).collect()
}

fn assert_holds(driver: &mut Driver, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let mut read = [0; 4096];
        driver.read(number * 8, &mut read).expect("a read");
        assert!(read[..] == block(number), "block {number} is another one");
    }
}

fn write(driver: &mut Driver, numbers: std::ops::Range<u64>) {
    for number in numbers {
        assert_eq!(driver.call(kind::WRITE, number * 8, &block(number)).expect("a write"), 0);
    }
}

/// Begins writes of all these blocks without waiting for their end.
fn begin_writes(driver: &mut Driver, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let slot = driver.take(0);
        driver.put(driver.data(0, slot), &block(number));
        driver.submit(0, slot, kind::WRITE, number * 8, 4096);
    }
}

/// Returns the number of requests that have succeeded since the last call.
fn acknowledged(driver: &mut Driver) -> u64 {
    let mut acknowledged = 0;
    while let Some(completion) = driver.completed(0) {
        assert_eq!(completion.status, 0);
        acknowledged += 1;
    }
    acknowledged
}

#[test]
fn acknowledged_writes_survive_a_shutdown() {
    if stand_in().is_some() {
        return;
    }
    let drive = Drive::create("64M", &[]);
    let socket = drive.beside("vhost");
    let server = serve(&drive, &socket);
    let mut driver = connect(&socket, 0);
    write(&mut driver, 0..100);
    // Not flushed: the shutdown does that. The requests in flight end before it.
    begin_writes(&mut driver, 100..130);
    server.stop();
    assert!(!socket.exists(), "the server does not remove its socket");
    let acknowledged = 100 + acknowledged(&mut driver);
    assert_eq!(u64::from(driver.used_index(0)), acknowledged);
    drive.assert_checks();

    // Another process does not know whether the guest ran there last.
    let server = serve(&drive, &socket);
    wait_until("the server listens", || UnixStream::connect(&socket).is_ok());
    assert!(driver.reconnect(&socket).is_err(), "a guest continues at a server that it never saw");
    assert_holds(&mut connect(&socket, 0), 0..acknowledged);
    server.stop();
}

#[test]
fn a_guest_continues_when_the_server_restarts() {
    if stand_in().is_some() {
        return;
    }
    let drive = Drive::create("64M", &[]);
    let socket = drive.beside("vhost");
    let server = serve(&drive, &socket);
    let mut driver = connect(&socket, 0);
    for restarts in 1..=3 {
        let numbers = restarts * 100..restarts * 100 + 30;
        begin_writes(&mut driver, numbers.clone());
        server.hang_up();
        let restarted = || server.stderr().matches("restarted clients=0").count();
        wait_until("the server restarts", || restarted() == restarts as usize);
        wait_until("the server listens", || UnixStream::connect(&socket).is_ok());
        driver.reconnect(&socket).expect("the guest that ran there");
        // Requests that the old server did not accept are carried out now.
        let mut ended = acknowledged(&mut driver);
        while ended < 30 {
            assert_eq!(driver.wait(0).expect("a write").status, 0);
            ended += 1;
        }
        assert_holds(&mut driver, numbers);
    }
    let ran = Setup { base: driver.used_index(0), ..Setup::default() };
    driver.disconnect();
    assert!(Driver::connect(&socket, ran).is_err(), "another guest continues");
    server.stop();
    drive.assert_checks();
}

#[test]
fn flushed_writes_survive_kill_9_and_no_guest_continues_without_the_others() {
    if stand_in().is_some() {
        return;
    }
    let drive = Drive::create("64M", &[]);
    let socket = drive.beside("vhost");
    for round in 0..3 {
        let server = serve(&drive, &socket);
        let mut driver = connect(&socket, 0);
        assert_holds(&mut driver, 0..round * 100);
        write(&mut driver, round * 100..round * 100 + 100);
        let discarded = range_bytes((round * 100 + 50) * 8, 8, 0);
        assert_eq!(driver.call(kind::DISCARD, 0, &discarded).expect("a discard"), 0);
        write(&mut driver, round * 100 + 50..round * 100 + 51);
        assert_eq!(driver.call(kind::FLUSH, 0, &[]).expect("a flush"), 0);
        // Neither flushed nor promised.
        write(&mut driver, 1000..1010);
        server.kill();
        // Neither the next server nor its successor after an orderly shutdown lets the guest
        // continue.
        for _ in 0..2 {
            let server = serve(&drive, &socket);
            wait_until("the server listens", || UnixStream::connect(&socket).is_ok());
            assert!(driver.reconnect(&socket).is_err(), "a guest continues without its writes");
            wait_until("the reason is logged", || server.stderr().contains("restart the guest"));
            assert_holds(&mut connect(&socket, 0), 0..round * 100 + 100);
            server.stop();
        }
    }
    drive.assert_checks();
}

#[test]
fn a_guest_is_told_of_a_new_size() {
    if stand_in().is_some() {
        return;
    }
    let drive = Drive::create("64M", &["--segment", "4M", "--capacity", "160M"]);
    let socket = drive.beside("vhost");
    let server = serve(&drive, &socket);
    let mut driver = connect(&socket, 0);
    let (mut ours, theirs) = UnixStream::pair().expect("a pair of sockets");
    driver.set_back_channel(&theirs).expect("a back channel");
    assert_eq!(driver.config().expect("config")[..8], (64_u64 << 11).to_le_bytes());
    assert_eq!(driver.call(kind::WRITE, 64 << 11, &[1; 512]).expect("a refusal"), 1);
    let mut resize = Command::new(PUMICE);
    resize.env("PUMICE_RUNTIME_DIR", drive.beside("pumice"));
    run_ok(resize.arg("resize").arg(drive.path()).args(["--size", "96M"]));
    ours.set_read_timeout(Some(std::time::Duration::from_secs(20))).expect("a time limit");
    ours.read_exact(&mut [0; 12]).expect("a message");
    assert_eq!(driver.config().expect("config")[..8], (96_u64 << 11).to_le_bytes());
    assert_eq!(driver.call(kind::WRITE, 64 << 11, &[1; 512]).expect("a write"), 0);
    drop(driver);
    server.stop();
    drive.assert_checks();
}

#[test]
fn a_device_follows_the_options() {
    if stand_in().is_some() {
        return;
    }
    let drive = Drive::create("64M", &[]);
    let socket = drive.beside("vhost");
    let path = socket.to_str().expect("a path in UTF-8");
    let server = drive.serve_with(&["--vhost-user", path, "--unix-mode", "0600", "--read-only"]);
    wait_until("the server listens", || socket.exists());
    let mode = std::fs::metadata(&socket).expect("a socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut driver = connect(&socket, 0);
    assert_eq!(driver.call(kind::WRITE, 0, &[1; 512]).expect("a refusal"), 1);
    let slot = driver.take(0);
    driver.submit(0, slot, kind::ID, 0, 20);
    assert_eq!(driver.wait(0).expect("a serial number").status, 0);
    let mut id = [0; 20];
    driver.get(driver.data(0, slot), &mut id);
    let info = drive.info();
    let uuid = info.pointer("/drive/uuid").or_else(|| info.pointer("/uuid"));
    let uuid = uuid.and_then(|uuid| uuid.as_str()).map(|uuid| uuid.replace('-', ""));
    assert_eq!(std::str::from_utf8(&id).ok(), uuid.as_deref().map(|uuid| &uuid[..20]), "{info}");
    drop(driver);
    server.stop();

    let other = Drive::create("64M", &[]);
    let paths = [drive.path(), other.path()].map(|path| path.to_str().expect("UTF-8").to_owned());
    let two = pumice(&["serve", &paths[0], &paths[1], "--vhost-user", path, "--check"]);
    assert_eq!(two.code, Some(2), "{two:?}");
    assert!(two.stderr.contains("--vhost-user needs a single drive"), "{two:?}");
}

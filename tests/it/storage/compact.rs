//! Goal: the file of a drive takes about as much space as its live data; a drive is created and
//! shown with its limits.
//!
//! Method: noise is written repeatedly through qemu-io; the blocks of the file show its use of the
//! file system.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::harness::{
    COMMAND_LIMIT, Drive, Finished, PUMICE, Server, counter, noise, pumice, run, run_ok, stand_in,
    tool, wait_until,
};
use crate::program::bad_input::refused;

const MIB: u64 = 1 << 20;

/// Returns the bytes that a drive's file takes.
fn taken(drive: &Drive) -> u64 {
    fs::metadata(drive.path()).unwrap().blocks() * 512
}

fn qemu_io(server: &Server, commands: &[String]) {
    let Some(qemu_io) = tool("qemu-io") else { return };
    let mut command = Command::new(qemu_io);
    command.args(["-f", "raw"]).args(commands.iter().flat_map(|text| ["-c", text]));
    run_ok(command.arg(server.uri()));
}

/// Writes 8 MiB of noise `times` times to the start of the disk.
fn overwrite(drive: &Drive, server: &Server, times: usize) {
    let image = drive.beside("noise");
    fs::write(&image, noise(5, 8 << 20)).unwrap();
    let mut commands = vec![format!("write -s {} 0 8M", image.display()); times];
    commands.push("flush".to_owned());
    qemu_io(server, &commands);
}

fn compact(drive: &Drive, args: &[&str]) -> Finished {
    let mut command = Command::new(PUMICE);
    command.env("PUMICE_RUNTIME_DIR", drive.beside("pumice"));
    run(command.arg("compact").arg(drive.path()).args(args), COMMAND_LIMIT)
}

#[test]
fn the_file_returns_overwritten_and_trimmed_space() {
    if stand_in().is_some() || tool("qemu-io").is_none() {
        return;
    }
    let drive = Drive::create("256M", &["--segment", "4M"]);
    let server = drive.serve_with_control(&[]);
    overwrite(&drive, &server, 12);
    // 96 MiB were written, and 8 are live.
    wait_until("overwritten space goes back", || taken(&drive) <= 8 * MIB * 5 / 4 + 4 * MIB);
    qemu_io(&server, &["discard 0 256M".to_owned(), "flush".to_owned()]);
    wait_until("trimmed space goes back", || taken(&drive) <= 4 * MIB);
    server.stop();
    assert!(taken(&drive) <= 4 * MIB);
    drive.assert_checks();
}

#[test]
fn a_drive_is_compacted_closed_and_served() {
    if stand_in().is_some() || tool("qemu-io").is_none() {
        return;
    }
    let drive = Drive::create("256M", &["--segment", "4M"]);
    for is_served in [true, false] {
        let server = drive.serve_with_control(&["--compact", "off"]);
        overwrite(&drive, &server, 8);
        let before = taken(&drive);
        assert!(before > 48 * MIB, "{before} bytes");
        if !is_served {
            server.stop();
            let finished = compact(&drive, &["--to", "10"]);
            assert_eq!(finished.code, Some(0), "{finished:?}");
            assert!(finished.stdout.contains(": occupies "), "{finished:?}");
        } else {
            let finished = compact(&drive, &["--json"]);
            assert_eq!(finished.code, Some(0), "{finished:?}");
            let result: Value = serde_json::from_str(&finished.stdout).unwrap();
            assert!(counter(&result, "occupied_bytes") < 14 * MIB, "{result}");
            assert!(counter(&result, "occupied_bytes_before") > 48 * MIB, "{result}");
        }
        assert!(taken(&drive) <= 14 * MIB, "{} of {before} bytes are left", taken(&drive));
    }
    drive.assert_checks();
    let wrong = pumice(&["serve", "drive", "--compact", "much"]);
    refused(&wrong, "expected a percentage such as 20, or off");
}

#[test]
fn scattered_blocks_are_put_in_order_closed_and_served() {
    if stand_in().is_some() || tool("qemu-io").is_none() {
        return;
    }
    let drive = Drive::create("256M", &["--segment", "4M"]);
    let image = drive.beside("noise");
    fs::write(&image, noise(6, 4096)).unwrap();
    let scatter = |server: &Server| {
        // 97 is coprime to the 512 blocks of 2 MiB.
        let write = |number| format!("write -s {} {}k 4k", image.display(), number * 97 % 512 * 4);
        let mut commands: Vec<_> = (0..512).map(write).collect();
        commands.push("flush".to_owned());
        qemu_io(server, &commands);
    };
    let reordered = || {
        let finished = compact(&drive, &["--in-order", "--json"]);
        assert_eq!(finished.code, Some(0), "{finished:?}");
        counter(&serde_json::from_str(&finished.stdout).unwrap(), "reordered_bytes")
    };
    let server = drive.serve_with_control(&["--compact", "off"]);
    scatter(&server);
    assert_eq!((reordered(), reordered()), (2 * MIB, 0));
    scatter(&server);
    server.stop();
    let finished = compact(&drive, &["--in-order"]);
    assert!(finished.stdout.contains(", put in order 2 MiB"), "{finished:?}");
    drive.assert_checks();
    drive.ok(&["snapshot", "create", &drive.named("one")]);
    refused(&compact(&drive, &["--in-order"]), "with snapshots or bookmarks stay in place");
}

#[test]
fn a_drive_is_created_with_its_limits() {
    if stand_in().is_some() {
        return;
    }
    let drive = Drive::create("64M", &["--segment", "4M", "--preallocate"]);
    assert!(taken(&drive) >= fs::metadata(drive.path()).unwrap().len());
    assert_eq!(drive.info()["preallocated"], true);
    let path = |name: &str| drive.beside(name).to_str().unwrap().to_owned();
    let too_large = pumice(&["create", &path("large"), "--size", "64T", "--preallocate"]);
    refused(&too_large, "cannot reserve ");
    assert!(!drive.beside("large").exists());
    // Larger than the file system, but sparse.
    let sparse = pumice(&["create", &path("sparse"), "--size", "4T"]);
    assert_eq!(sparse.code, Some(0), "{sparse:?}");
    assert!(sparse.stderr.contains("refuses writes once neither has space left"), "{sparse:?}");
    assert!(!sparse.stdout.contains("may grow to "), "{sparse:?}");
    let small = pumice(&["create", &path("small"), "--size", "64M"]);
    assert!(small.stdout.contains("the file may grow to "), "{small:?}");
    for place in ["/dev/nosuch-device", "/proc/drive", "/sys/drive"] {
        refused(&pumice(&["create", place, "--size", "64M"]), "choose a path outside of");
        assert!(!PathBuf::from(place).exists());
    }
}

#[test]
fn info_shows_servers_and_removes_dead_sockets() {
    if stand_in().is_some() {
        return;
    }
    let drive = Drive::create("64M", &["--segment", "4M"]);
    assert_eq!(drive.info()["process"], Value::Null);
    let server = drive.serve_with_control(&[]);
    // The socket left by a killed server of another drive.
    let dead = drive.beside("pumice/0-0.sock");
    drop(UnixListener::bind(&dead).unwrap());
    let info = drive.info();
    assert_eq!(info["process"], server.id());
    assert_eq!(info["uris"][0], server.uri());
    let mut command = Command::new(PUMICE);
    command.env("PUMICE_RUNTIME_DIR", drive.beside("pumice")).arg("info").arg(drive.path());
    let shown = run_ok(&mut command).stdout;
    let lines: Vec<_> = shown.lines().map(|line| line.split_once("  ").unwrap()).collect();
    let told: Vec<_> = lines.iter().take(5).map(|(name, fact)| (*name, fact.trim())).collect();
    let process = format!("{}, 0 clients", server.id());
    let log = "standard error of the process";
    let expected = [
        ("drive", drive.path().to_str().unwrap()),
        ("state", "served"),
        ("address", &server.uri()),
        ("process", &process),
        ("log", log),
    ];
    assert_eq!(told, expected);
    server.kill();
    let server = drive.serve_with_control(&[]);
    // The killed server may answer for a moment, before the new one has removed its socket.
    wait_until("the sockets of dead servers are gone", || {
        !dead.exists() && drive.control_sockets().len() == 1
    });
    server.stop();
    assert_eq!(drive.control_sockets(), Vec::<PathBuf>::new());
}

/// A name that Linux allows need not be UTF-8.
#[test]
fn a_path_that_is_not_utf_8_is_served() {
    if stand_in().is_some() {
        return;
    }
    let drive = Drive::create("64M", &["--segment", "4M"]);
    let name = std::ffi::OsStr::from_bytes(b"other\xff.pumice");
    let other = drive.beside("").join(name);
    fs::rename(drive.path(), &other).unwrap();
    let mut command = Command::new(PUMICE);
    command.env("PUMICE_RUNTIME_DIR", drive.beside("pumice"));
    run_ok(command.arg("info").arg(&other).arg("--json"));
}

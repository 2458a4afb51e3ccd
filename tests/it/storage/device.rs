//! Goal: a block device holds a drive as a file does, and a device held by another program (a
//! mount, a volume manager) is left alone.
//! Method: loop devices; where the machine has none, the tests report that and are skipped.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::process::Command;

use rustix::fs::OFlags;

use crate::harness::{Drive, Finished, LoopDevice, counter, pumice, run_ok, stand_in, tool};
use crate::program::bad_input::refused;

const DEVICE_BYTES: u64 = 64 << 20;

fn create(drive: &Drive, flags: &[&str]) -> Finished {
    let path = drive.path().to_str().expect("a plain path");
    let args = ["create", path, "--size=32M", "--capacity=44M", "--segment=4M"];
    pumice(&[&args, flags].concat())
}

#[test]
fn a_device_holds_a_drive() {
    if stand_in().is_some() {
        return;
    }
    let Some(qemu_io) = tool("qemu-io") else { return };
    let Some(device) = LoopDevice::new(DEVICE_BYTES) else { return };
    let drive = Drive::on(&device);
    let path = drive.path().to_str().expect("a plain path");
    let large = pumice(&["create", path, "--size=32M", "--capacity=128M"]);
    refused(&large, "too small");
    // The whole device, unless something else is requested.
    let whole = pumice(&["create", path, "--size=128M", "--segment=4M", "--json"]);
    assert_eq!(whole.code, Some(0), "{whole:#?}");
    let whole = serde_json::from_str(&whole.stdout).unwrap();
    assert_eq!(counter(&whole, "capacity_bytes"), DEVICE_BYTES - (4 << 20));
    // The disk is as large as the device can cover, or a multiple of it.
    let sized = |flags: &[&str]| {
        let args = ["create", path, "--segment=4M", "--force", "--overwrite-drive", "--json"];
        let created = pumice(&[&args, flags].concat());
        assert_eq!(created.code, Some(0), "{created:#?}");
        let created = serde_json::from_str(&created.stdout).unwrap();
        assert_eq!(counter(&created, "capacity_bytes"), DEVICE_BYTES - (4 << 20));
        counter(&created, "size_bytes")
    };
    let covered = sized(&[]);
    assert!((4 << 20..DEVICE_BYTES).contains(&covered), "{covered}");
    assert!(sized(&["--over-provisioning=50"]) < covered);
    assert_eq!(sized(&["--thin=3x"]), 3 * (DEVICE_BYTES - (2 << 20)));
    let created = create(&drive, &["--force", "--overwrite-drive"]);
    assert_eq!(created.code, Some(0), "{created:#?}");
    let io = |uri: &str, commands: &[&str]| {
        let mut command = Command::new(&qemu_io);
        command.args(["-f", "raw"]).args(commands.iter().flat_map(|text| ["-c", text])).arg(uri);
        let finished = run_ok(&mut command);
        assert!(!finished.stdout.contains("verification failed"), "{finished:#?}");
    };
    let server = drive.serve();
    io(&server.uri(), &["write -P 7 0 3M", "write -P 8 1000 5000", "flush"]);
    assert_eq!(counter(&drive.info(), "mapped_bytes"), 3 << 20);
    server.kill();
    let server = drive.serve();
    io(&server.uri(), &["read -P 8 1000 5000", "read -P 7 1M 2M", "read -P 0 3M 1M"]);
    server.stop();
    drive.assert_checks();
    refused(&create(&drive, &[]), "--force");
    refused(&create(&drive, &["--force"]), "--overwrite-drive");
    drive.assert_checks();
    assert_eq!(create(&drive, &["--force", "--overwrite-drive"]).code, Some(0));
    assert_eq!(counter(&drive.info(), "mapped_bytes"), 0);
}

#[test]
fn a_device_that_is_held_is_left_alone() {
    if stand_in().is_some() {
        return;
    }
    let Some(device) = LoopDevice::new(DEVICE_BYTES) else { return };
    // Holds the device as the kernel holds a mounted one.
    let hold = || {
        let mut opening = OpenOptions::new();
        opening.read(true).custom_flags(OFlags::EXCL.bits() as i32);
        opening.open(device.path()).expect("an exclusive opening")
    };
    let drive = Drive::on(&device);
    let holder = hold();
    let refusal = create(&drive, &["--force"]);
    refused(&refusal, "busy");
    // Refused by the first look at the device, not only when it is opened for writing.
    refused(&refusal, "cannot create");
    let mut start = [1; 4096];
    File::open(device.path()).unwrap().read_exact_at(&mut start, 0).unwrap();
    assert_eq!(start, [0; 4096], "something was written");
    drop(holder);
    assert_eq!(create(&drive, &[]).code, Some(0));
    let holder = hold();
    let path = drive.path().to_str().expect("a plain path");
    refused(&pumice(&["serve", path, "--run", "true"]), "busy");
    drop(holder);
    assert_eq!(pumice(&["serve", path, "--run", "true"]).code, Some(0));
}

//! Goal: the bench writes to no block device that holds data or is in use, and its reads after
//! dropping the page cache come from the medium.
//! Method: loop devices with content made by tools of other projects (a file system, mounted and
//! not, a partition); `fincore` counts cached bytes. Where the machine has no loop devices or
//! cannot mount, the tests report that and are skipped.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use pumice_bench::target::Location;
use pumice_drive::base::ErrorKind;
use rustix::fs::{fstatfs, sync};

use crate::harness::{COMMAND_LIMIT, LoopDevice, PUMICE, run, run_ok, skip, tool};

const DEVICE_BYTES: u64 = 64 << 20;

/// Linux, include/uapi/linux/magic.h.
const TMPFS_MAGIC: i64 = 0x0102_1994;

fn device() -> Option<LoopDevice> {
    LoopDevice::new(DEVICE_BYTES).or_else(|| skip("block devices cannot be tried"))
}

/// Returns the reason why the device must not be written, and asserts that the check changed
/// nothing.
fn refusal(device: &LoopDevice, destroy: bool) -> Option<ErrorKind> {
    let location = Location::parse(device.path().to_str().expect("a plain path")).unwrap();
    assert!(matches!(location, Location::Device(_)), "{location:?}");
    let before = fs::read(device.path()).expect("the device");
    let prepared = location.prepare(DEVICE_BYTES, destroy);
    assert!(fs::read(device.path()).expect("the device") == before, "something was written");
    prepared.err().map(|error| error.kind())
}

fn put(device: &LoopDevice, offset: u64, byte: u8) {
    let file = File::options().write(true).open(device.path()).expect("the device");
    file.write_all_at(&[byte], offset).expect("a byte written");
}

#[test]
fn a_blank_device_may_be_written() {
    let Some(device) = device() else { return };
    assert_eq!(refusal(&device, false), None);
    let location = Location::Device(device.path().to_owned());
    let error = location.prepare(DEVICE_BYTES + 1, true).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{}", error.chain());
}

#[test]
fn a_device_that_is_not_blank_needs_leave() {
    let Some(device) = device() else { return };
    for offset in [0, (1 << 20) - 1, DEVICE_BYTES - (1 << 20), DEVICE_BYTES - 1] {
        put(&device, offset, 1);
        assert_eq!(refusal(&device, false), Some(ErrorKind::AlreadyExists), "at {offset}");
        assert_eq!(refusal(&device, true), None);
        put(&device, offset, 0);
    }
    assert_eq!(refusal(&device, false), None);
}

/// Guards against a device that can be opened for writing, and refuses each write with EPERM.
#[test]
fn a_read_only_device_is_refused_before_anything_else() {
    let Some(device) = device() else { return };
    let Some(blockdev) = tool("blockdev") else { return };
    let read_only = ReadOnly::new(&blockdev, device.path());
    assert_eq!(refusal(&device, true), Some(ErrorKind::ReadOnly));
    let mut bench = Command::new(PUMICE);
    bench.arg("bench").arg(device.path()).args(["--preset", "wsat", "--destroy-data"]);
    let refused = run(&mut bench, COMMAND_LIMIT);
    let expected = format!("blockdev --setrw {}", device.path().display());
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains(&expected), "{}", refused.stderr);
    drop(read_only);
    assert_eq!(refusal(&device, true), None);
}

/// A device that refuses writes until this is dropped: the kernel keeps that state longer than the
/// file of a loop device.
struct ReadOnly<'a> {
    blockdev: &'a Path,
    device: &'a Path,
}

impl<'a> ReadOnly<'a> {
    fn new(blockdev: &'a Path, device: &'a Path) -> Self {
        run_ok(Command::new(blockdev).arg("--setro").arg(device));
        Self { blockdev, device }
    }
}

impl Drop for ReadOnly<'_> {
    fn drop(&mut self) {
        let _ = Command::new(self.blockdev).arg("--setrw").arg(self.device).status();
    }
}

/// A mount that ends when this is dropped.
struct Mount<'a>(&'a Path);

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0).status();
    }
}

#[test]
fn a_mounted_device_is_never_written() {
    let Some(device) = device() else { return };
    let (Some(mkfs), Some(mount)) = (tool("mkfs.ext4"), tool("mount")) else { return };
    run_ok(Command::new(mkfs).arg("-q").arg(device.path()));
    assert_eq!(refusal(&device, false), Some(ErrorKind::AlreadyExists));
    let folder = tempfile::tempdir().expect("temp dir");
    // Read-only: the file system must not write unnoticed by the test.
    let mut command = Command::new(mount);
    command.args(["-o", "ro"]).arg(device.path()).arg(folder.path());
    let mounted = run(&mut command, COMMAND_LIMIT);
    if mounted.code != Some(0) {
        return skip(&format!("cannot mount: {}", mounted.stderr.trim())).unwrap_or(());
    }
    let mount = Mount(folder.path());
    sync();
    assert_eq!(refusal(&device, true), Some(ErrorKind::Busy));
    drop(mount);
    assert_eq!(refusal(&device, true), None);
}

#[test]
fn a_device_with_partitions_is_never_written() {
    let Some(device) = device() else { return };
    let Some(partx) = tool("partx") else { return };
    // A master boot record with one Linux partition, of 4 MiB from sector 2048 on.
    let mut record = [0; 512];
    record[446 + 4] = 0x83;
    record[446 + 8..][..4].copy_from_slice(&2048u32.to_le_bytes());
    record[446 + 12..][..4].copy_from_slice(&8192u32.to_le_bytes());
    record[510..].copy_from_slice(&[0x55, 0xaa]);
    let file = File::options().write(true).open(device.path()).expect("the device");
    file.write_all_at(&record, 0).expect("a partition table");
    drop(file);
    // partx reads the table itself, because not every kernel can.
    run_ok(Command::new(partx).arg("--add").arg(device.path()));
    assert_eq!(refusal(&device, true), Some(ErrorKind::Busy));
}

fn cached_bytes(fincore: &Path, path: &Path) -> u64 {
    let mut command = Command::new(fincore);
    command.args(["--bytes", "--noheadings", "--output", "RES"]).arg(path);
    run_ok(&mut command).stdout.trim().parse().expect("a number of bytes")
}

#[test]
fn a_dropped_cache_holds_nothing_of_the_target() {
    const BYTES: usize = 8 << 20;
    let Some(fincore) = tool("fincore") else { return };
    let folder = tempfile::tempdir().expect("temp dir");
    let location = Location::Folder(folder.path().to_owned());
    location.prepare(BYTES as u64, false).expect("a new file");
    let path = location.path().expect("a file");
    let file = File::open(&path).expect("the file");
    if fstatfs(&file).expect("its file system").f_type == TMPFS_MAGIC {
        return skip("the folder for temporary files is in memory").unwrap_or(());
    }
    // Dirty first, then only read.
    let data = vec![7; BYTES];
    fs::write(&path, &data).expect("data written");
    for _ in 0..2 {
        assert_eq!(cached_bytes(&fincore, &path), BYTES as u64);
        location.drop_cache().expect("a dropped cache");
        assert_eq!(cached_bytes(&fincore, &path), 0);
        assert!(fs::read(&path).expect("the file") == data);
    }
    let Some(device) = device() else { return };
    let location = Location::Device(device.path().to_owned());
    put(&device, 4096, 1);
    fs::read(device.path()).expect("the device");
    location.drop_cache().expect("a dropped cache");
    assert_eq!(refusal(&device, false), Some(ErrorKind::AlreadyExists), "a byte was lost");
    Location::Drive(path.with_file_name("none").into()).drop_cache().expect("nothing to do");
    location.remove();
    let gone = Location::File(folder.path().join("none")).drop_cache().unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NotFound);
}

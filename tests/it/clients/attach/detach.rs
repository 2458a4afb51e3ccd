//! Goal: a drive is detached whole and wherever it is named, not while it is in use, and after the
//! death of its process; losses are reported. Method: the program and the process of an attached
//! drive are killed, and mounts, names and users of the device changed, between attach and detach.

use std::io::Write;
use std::process::Child;

use super::*;
use crate::harness::spawn;

/// A child that is killed when dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A small file system in memory, for a drive that it cannot hold; unmounted when this is dropped.
struct SmallHost(TempDir);

impl SmallHost {
    /// Mounts one, or reports why the test is skipped.
    fn mounted() -> Option<Self> {
        Attachable::new("64M")?;
        let folder = tempfile::Builder::new().prefix("pumice-").tempdir().expect("temp dir");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=32M", "small"]).arg(folder.path());
        run_ok(&mut mount);
        Some(Self(folder))
    }
}

impl Drop for SmallHost {
    fn drop(&mut self) {
        let _ = unmount(self.0.path(), UnmountFlags::DETACH);
    }
}

#[test]
fn synced_data_survives_the_process() {
    let Some(attachable) = Attachable::new("256M") else { return };
    let mountpoint = attachable.mountpoint();
    let Some(mut command) = fio(&mountpoint) else { return };
    let Some(fsck) = tool("fsck.ext4") else { return };
    attachable.mount(&["--mkfs=ext4"]);
    let content = fs::read(PUMICE).unwrap()[..8 << 20].to_vec();
    let load = Killed(spawn(command.args(["--bs=4k", "--time_based", "--runtime=30"])));
    let mut file = File::create(mountpoint.join("synced")).unwrap();
    file.write_all(&content).unwrap();
    file.sync_all().unwrap();
    File::open(&mountpoint).unwrap().sync_all().unwrap();
    drop(file);
    let written = counter(&attachable.drive.info(), "mapped_bytes");
    wait_until("the load writes", || {
        counter(&attachable.drive.info(), "mapped_bytes") > written + (1 << 20)
    });
    kill_process(attachable.process().expect("a process"), Signal::KILL).unwrap();
    drop(load);
    // The dead mount and its device still exist, and are removed.
    assert_eq!(attachable.mounts().len(), 2);
    let device = attachable.mount(&[]);
    assert_eq!(attachable.devices(), vec![device]);
    assert!(fs::read(mountpoint.join("synced")).unwrap() == content);
    attachable.detach_well(&mountpoint);
    let device = attachable.attach(&[]);
    run_ok(Command::new(fsck).args(["-f", "-n"]).arg(&device));
    // Without another attach, detaching also cleans up, and reports that the end was not orderly.
    kill_process(attachable.process().expect("a process"), Signal::KILL).unwrap();
    wait_until("the process is gone", || {
        let info = run_ok(attachable.command("info").arg(attachable.drive.path())).stdout;
        info.contains("stale: its process was killed")
    });
    let finished = attachable.detach(attachable.drive.path());
    let is_said = finished.stderr.contains("unsynced writes are lost");
    assert!(finished.code == Some(1) && is_said, "{finished:?}");
    attachable.assert_nothing_left();
    attachable.drive.assert_checks();
}

/// Guards against finding a record of a killed process instead of the currently mounted drive:
/// `detach` succeeded, and the drive stayed mounted.
#[test]
fn the_drive_that_is_mounted_is_the_one_detached() {
    for swaps in [false, true] {
        let Some(attachable) = Attachable::new("128M") else { return };
        let mountpoint = attachable.mountpoint();
        let at = mountpoint.to_str().unwrap();
        let other = attachable.drive.beside("other.pumice");
        let mut paths = [attachable.drive.path().to_owned(), other.clone()];
        run_ok(Command::new(PUMICE).arg("create").arg(&other).args(["--size", "128M"]));
        if swaps {
            paths.reverse();
        }
        let attach = |path: &Path| {
            run_ok(attachable.command("attach").arg(path).args([at, "--mkfs=ext4"]));
        };
        attach(&paths[0]);
        kill_process(attachable.process().expect("a process"), Signal::KILL).unwrap();
        wait_until("the dead mount goes", || unmount(&mountpoint, UnmountFlags::DETACH).is_ok());
        attach(&paths[1]);
        let finished = attachable.detach(&mountpoint);
        assert_eq!(finished.code, Some(0), "{finished:#?}");
        assert!(!attachable.mounts().contains(&mountpoint), "swaps {swaps}: it is still mounted");
        // The remains of the killed process.
        let finished = attachable.detach(&paths[0]);
        assert_eq!(finished.code, Some(1), "{finished:#?}");
        attachable.assert_nothing_left();
    }
}

#[test]
fn devices_in_use_are_not_detached() {
    let Some(attachable) = Attachable::new("256M") else { return };
    let mountpoint = attachable.mountpoint();
    let device = attachable.mount(&["--mkfs=ext4"]);
    let idle = |command: &mut Command| {
        Killed(command.arg("600").stdout(Stdio::null()).spawn().expect("sleep starts"))
    };
    let user = idle(Command::new("sleep").current_dir(&mountpoint));
    let name = format!("is in use by process {} (sleep)", user.0.id());
    wait_until("the refusal names the process", || {
        let finished = attachable.detach(&mountpoint);
        refused(&finished, "is in use");
        finished.stderr.contains(&name)
    });
    drop(user);
    let elsewhere = attachable.drive.beside("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    mount_bind(&mountpoint, &elsewhere).unwrap();
    refused(&attachable.detach(&device), "elsewhere: unmount it first");
    unmount(&elsewhere, UnmountFlags::empty()).unwrap();
    let opener = idle(Command::new("sleep").stdin(File::open(&device).unwrap()));
    refused(&attachable.detach(attachable.drive.path()), "is held open by process");
    drop(opener);
    // A signal does not circumvent that.
    let file = File::create(mountpoint.join("open")).unwrap();
    kill_process(attachable.process().expect("a process"), Signal::TERM).unwrap();
    let log = attachable.attachments()[0].join("log");
    wait_until("the process says that it goes on", || {
        fs::read_to_string(&log).is_ok_and(|log| log.contains("still serving"))
    });
    file.sync_all().unwrap();
    drop(file);
    // Detaching waits for processes that only inspect the device.
    let opened = File::open(&device).unwrap();
    let looker = Killed(Command::new("sleep").arg("0.3").stdin(opened).spawn().unwrap());
    attachable.detach_well(&mountpoint);
    drop(looker);
    refused(&attachable.detach(&mountpoint), "is not attached");
}

/// A loop device on top does not prevent removal of the device below it.
#[test]
fn a_device_below_another_is_not_detached() {
    let Some(attachable) = Attachable::new("64M") else { return };
    let Some(losetup) = tool("losetup") else { return };
    let device = attachable.attach(&[]);
    let top = run_ok(Command::new(&losetup).args(["--find", "--show"]).arg(&device)).stdout;
    let top = top.trim_end();
    let what = format!("by the loop device {top}: losetup --detach {top} first");
    refused(&attachable.detach(&device), &what);
    run_ok(Command::new(&losetup).args(["--detach", top]));
    assert_eq!(attachable.devices(), std::slice::from_ref(&device), "the refusal was none");
    attachable.detach_well(&device);
}

/// Guards against a drive that can no longer be detached because its record has the old name.
#[test]
fn a_renamed_drive_is_detached() {
    let Some(attachable) = Attachable::new("128M") else { return };
    let mountpoint = attachable.mountpoint();
    let device = attachable.mount(&["--mkfs=ext4"]);
    let renamed = attachable.drive.beside("renamed");
    fs::rename(attachable.drive.path(), &renamed).unwrap();
    let finished = attachable.detach(&renamed);
    assert_eq!(finished.code, Some(0), "{finished:#?}");
    for what in [&mountpoint, &device] {
        assert!(finished.stdout.contains(what.to_str().unwrap()), "{finished:#?}");
    }
    attachable.assert_nothing_left();
}

#[test]
fn a_drive_is_detached_from_where_it_was_mounted_by_hand() {
    let Some(attachable) = Attachable::new("128M") else { return };
    let device = attachable.attach(&["--mkfs=ext4"]);
    let mountpoint = attachable.mountpoint();
    run_ok(Command::new("mount").arg(&device).arg(&mountpoint));
    let elsewhere = attachable.drive.beside("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    run_ok(Command::new("mount").arg(&device).arg(&elsewhere));
    // A mount that was not named is not unmounted.
    refused(&attachable.detach(&mountpoint), "elsewhere: unmount it first");
    refused(&attachable.detach(attachable.drive.path()), "unmount it first");
    unmount(&elsewhere, UnmountFlags::empty()).unwrap();
    // Neither is a file system mounted over it.
    run_ok(Command::new("mount").args(["-t", "tmpfs", "over"]).arg(&mountpoint));
    refused(&attachable.detach(&mountpoint), "another file system is mounted over");
    unmount(&mountpoint, UnmountFlags::empty()).unwrap();
    attachable.detach_well(&mountpoint);
}

/// Guards against a drive that can be detached only by force, and against a silent loss.
#[test]
fn a_drive_that_cannot_write_is_detached_and_says_so() {
    let Some(small) = SmallHost::mounted() else { return };
    let drive = Drive::within(small.0.path());
    let mut create = Command::new(PUMICE);
    run_ok(create.arg("create").arg(drive.path()).args(["--size", "128M"]));
    let attachable = Attachable { drive };
    fs::create_dir(attachable.mountpoint()).unwrap();
    let device = attachable.attach(&[]);
    // Incompressible, and more than fits.
    let word = |at: u64| (at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(at as u32 % 64);
    let content: Vec<u8> = (0..48_u64 << 17).flat_map(|at| word(at).to_le_bytes()).collect();
    let file = File::options().write(true).open(&device).unwrap();
    let mut offset = 0;
    while file.write_all_at(&content[offset..][..1 << 20], offset as u64).is_ok() {
        offset += 1 << 20;
        if offset == content.len() {
            break;
        }
    }
    drop(file);
    let detached = attachable.detach(&device);
    assert_eq!(detached.code, Some(1), "{detached:#?}");
    assert!(detached.stderr.contains("earlier writes to it had failed"), "{detached:#?}");
    attachable.assert_nothing_left();
    let device = attachable.attach(&[]);
    let mut force = attachable.command("detach");
    let finished = run(force.arg("--force").arg(&device), COMMAND_LIMIT);
    assert_eq!(finished.code, Some(1), "{finished:#?}");
    assert!(finished.stderr.contains("unsynced writes are lost"), "{finished:#?}");
    attachable.assert_nothing_left();
}

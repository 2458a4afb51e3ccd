//! Goal: file systems can rely on a drive as a block device of the kernel, from attaching to
//! detaching and through the death of the process between; actions that would lose data are
//! refused; nothing is left over. Method: FUSE and loop devices of this machine; where it has none,
//! the tests report that and are skipped.

mod boot;
mod detach;
mod snapshots;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::mount::{UnmountFlags, mount_bind, unmount};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::harness::{
    COMMAND_LIMIT, Drive, Finished, LoopDevice, PUMICE, counter, noise, run, run_ok, stand_in,
    tool, wait_until,
};
use crate::program::bad_input::refused;

/// A drive that can be attached. Anything that a test leaves of it is removed when this is dropped.
struct Attachable {
    drive: Drive,
}

impl Attachable {
    /// Creates a new drive with an empty directory next to it, or reports why the test is skipped:
    /// attaching requires privileges that not even CI has everywhere.
    fn new(size: &str) -> Option<Self> {
        Self::named(Drive::absent(), size)
    }

    /// Like [`Self::new`], with a drive of a given name.
    fn named(drive: Drive, size: &str) -> Option<Self> {
        let needed = ["/dev/fuse", "/dev/loop-control"];
        let lacks = needed.into_iter().find(|file| !Path::new(file).exists());
        if stand_in().is_some() || lacks.is_some() || !rustix::process::geteuid().is_root() {
            println!("skipped: attaching needs root, FUSE and loop devices");
            return None;
        }
        for name in ["losetup", "mkfs.ext4", "mkfs.xfs", "blkid", "mount"] {
            tool(name)?;
        }
        let attachable = Self { drive: drive.created(size, &[]) };
        fs::create_dir(attachable.mountpoint()).unwrap();
        Some(attachable)
    }

    fn mountpoint(&self) -> PathBuf {
        self.drive.beside("mnt")
    }

    fn command(&self, verb: &str) -> Command {
        let mut command = Command::new(PUMICE);
        command.arg(verb).env("PUMICE_RUNTIME_DIR", self.drive.beside("pumice"));
        command
    }

    fn try_attach(&self, args: &[&str]) -> Finished {
        run(self.command("attach").arg(self.drive.path()).args(args), COMMAND_LIMIT)
    }

    /// Attaches the drive and returns its device.
    fn attach(&self, args: &[&str]) -> PathBuf {
        let finished = self.try_attach(args);
        assert_eq!(finished.code, Some(0), "{finished:#?}");
        let device = PathBuf::from(finished.stdout.trim_end());
        assert!(device.starts_with("/dev"), "{finished:#?}");
        device
    }

    /// Attaches the drive and mounts it.
    fn mount(&self, args: &[&str]) -> PathBuf {
        let mountpoint = self.mountpoint();
        let at = mountpoint.to_str().expect("a plain path");
        self.attach(&[&[at], args].concat())
    }

    /// Creates another drive next to this one.
    fn other(&self, size: &str) -> PathBuf {
        let other = self.drive.beside("other.pumice");
        run_ok(Command::new(PUMICE).arg("create").arg(&other).args(["--size", size]));
        other
    }

    fn detach(&self, target: &Path) -> Finished {
        run(self.command("detach").arg(target), COMMAND_LIMIT)
    }

    fn detach_well(&self, target: &Path) {
        let finished = self.detach(target);
        assert_eq!(finished.code, Some(0), "{finished:#?}");
        self.assert_nothing_left();
    }

    fn assert_nothing_left(&self) {
        assert_eq!(self.attachments(), Vec::<PathBuf>::new());
        assert_eq!(self.mounts(), Vec::<PathBuf>::new());
        assert_eq!(self.devices(), Vec::<PathBuf>::new());
    }

    fn attachments(&self) -> Vec<PathBuf> {
        let mut found = self.drive.control_sockets();
        found.retain(|path| path.extension().is_some_and(|suffix| suffix == "attached"));
        found
    }

    /// Returns the process that serves the device.
    fn process(&self) -> Option<Pid> {
        let record = fs::read(self.attachments().first()?.join("record.json")).ok()?;
        let record: serde_json::Value = serde_json::from_slice(&record).ok()?;
        Pid::from_raw(record["process"].as_i64()? as i32)
    }

    /// Returns the mounts in the test's directory, last first.
    fn mounts(&self) -> Vec<PathBuf> {
        let mounts = fs::read_to_string("/proc/mounts").unwrap();
        let places = mounts.lines().filter_map(|line| line.split(' ').nth(1)).map(PathBuf::from);
        let mut own: Vec<_> =
            places.filter(|place| place.starts_with(self.drive.beside(""))).collect();
        own.reverse();
        own
    }

    /// Returns the loop devices on files in the test's directory.
    fn devices(&self) -> Vec<PathBuf> {
        let directory = self.drive.beside("");
        let names = fs::read_dir("/sys/block").unwrap().map(|entry| entry.unwrap().file_name());
        let is_own = |name: &std::ffi::OsString| {
            let file = Path::new("/sys/block").join(name).join("loop/backing_file");
            fs::read_to_string(file)
                .is_ok_and(|backing| Path::new(&backing).starts_with(&directory))
        };
        names.filter(is_own).map(|name| Path::new("/dev").join(name)).collect()
    }
}

impl Drop for Attachable {
    fn drop(&mut self) {
        if let Some(process) = self.process() {
            let _ = kill_process(process, Signal::KILL);
        }
        let (fuse, own): (Vec<_>, Vec<_>) =
            self.mounts().into_iter().partition(|place| place.ends_with("fuse"));
        for place in own {
            let _ = unmount(&place, UnmountFlags::DETACH);
        }
        for device in self.devices() {
            let _ = Command::new("losetup").arg("--detach").arg(device).status();
        }
        for place in fuse {
            let _ = unmount(&place, UnmountFlags::DETACH);
        }
    }
}

/// Writes a few files that compress differently.
fn write_files(directory: &Path) {
    fs::copy(PUMICE, directory.join("program")).unwrap();
    fs::write(directory.join("zeroes"), vec![0; 3 << 20]).unwrap();
    fs::create_dir(directory.join("many")).unwrap();
    for number in 0..200_usize {
        fs::write(directory.join(format!("many/{number}")), number.to_string().repeat(number))
            .unwrap();
    }
}

fn assert_files(directory: &Path) {
    assert!(fs::read(directory.join("program")).unwrap() == fs::read(PUMICE).unwrap());
    assert!(fs::read(directory.join("zeroes")).unwrap() == vec![0; 3 << 20]);
    for number in 0..200_usize {
        let text = fs::read_to_string(directory.join(format!("many/{number}"))).unwrap();
        assert_eq!(text, number.to_string().repeat(number));
    }
}

fn sync() {
    run_ok(&mut Command::new("sync"));
}

fn lives(kind: &str, check: &[&str]) {
    let Some(attachable) = Attachable::new("512M") else { return };
    let Some(fsck) = tool(check[0]) else { return };
    let mountpoint = attachable.mountpoint();
    attachable.mount(&["--mkfs", kind]);
    write_files(&mountpoint);
    sync();
    // The process that has the drive open answers.
    assert!(counter(&attachable.drive.info(), "mapped_bytes") > 1 << 20);
    attachable.detach_well(&mountpoint);
    attachable.drive.assert_checks();
    let device = attachable.attach(&[]);
    run_ok(Command::new(fsck).args(&check[1..]).arg(&device));
    attachable.detach_well(&device);
    attachable.mount(&["--read-only"]);
    assert_files(&mountpoint);
    assert!(File::create(mountpoint.join("new")).is_err(), "a read-only drive was written");
    attachable.detach_well(attachable.drive.path());
    let text = ["--mkfs", kind];
    refused(&attachable.try_attach(&text), &format!("already contains {kind}"));
    attachable.assert_nothing_left();
    attachable.mount(&["--mkfs", kind, "--force"]);
    assert!(!mountpoint.join("program").exists());
    attachable.detach_well(&mountpoint);
}

#[test]
fn an_attached_drive_holds_an_ext4() {
    lives("ext4", &["fsck.ext4", "-f", "-n"]);
}

#[test]
fn an_attached_drive_holds_an_xfs() {
    lives("xfs", &["xfs_repair", "-n"]);
}

/// A mounted btrfs in a file; removed when dropped.
struct Btrfs {
    mountpoint: PathBuf,
    _directory: TempDir,
    _device: LoopDevice,
}

impl Btrfs {
    fn mounted(mkfs: &Path) -> Option<Self> {
        let device = LoopDevice::new(1 << 30)?;
        run_ok(Command::new(mkfs).arg("-q").arg(device.path()));
        let directory = tempfile::Builder::new().prefix("pumice-").tempdir().expect("temp dir");
        let mountpoint = directory.path().join("host");
        fs::create_dir(&mountpoint).unwrap();
        run_ok(Command::new("mount").arg(device.path()).arg(&mountpoint));
        Some(Self { mountpoint, _directory: directory, _device: device })
    }
}

impl Drop for Btrfs {
    fn drop(&mut self) {
        let _ = unmount(&self.mountpoint, UnmountFlags::DETACH);
    }
}

/// Guards against a mounted btrfs that could not be detached: its mount has a device number
/// different from the device's, so that it counted as an invisible mount.
#[test]
fn a_drive_on_btrfs_holds_a_btrfs() {
    let Some(mkfs) = tool("mkfs.btrfs") else { return };
    let Some(host) = Btrfs::mounted(&mkfs) else { return };
    let Some(attachable) = Attachable::named(Drive::within(&host.mountpoint), "512M") else {
        return;
    };
    let mountpoint = attachable.mountpoint();
    let device = attachable.attach(&[]);
    run_ok(Command::new(mkfs).arg("-q").arg(&device));
    attachable.detach_well(&device);
    attachable.mount(&[]);
    write_files(&mountpoint);
    sync();
    attachable.detach_well(&mountpoint);
    attachable.drive.assert_checks();
    let device = attachable.mount(&[]);
    assert_files(&mountpoint);
    let elsewhere = attachable.drive.beside("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    mount_bind(&mountpoint, &elsewhere).unwrap();
    refused(&attachable.detach(&device), "elsewhere: unmount it first");
    unmount(&elsewhere, UnmountFlags::empty()).unwrap();
    attachable.detach_well(&device);
}

/// Guards against resolving the path from another folder: the background process leaves the folder
/// in which it was started.
#[test]
fn a_drive_that_was_attached_by_a_relative_path_is_in_its_place() {
    let Some(attachable) = Attachable::new("64M") else { return };
    let (path, other) = (attachable.drive.path(), attachable.drive.beside("other"));
    let mut attach = attachable.command("attach");
    attach.current_dir(path.parent().unwrap()).arg(path.file_name().unwrap());
    let device = PathBuf::from(run_ok(&mut attach).stdout.trim_end());
    let is_missed = || {
        let info = run_ok(attachable.command("info").arg(path)).stdout;
        info.contains("no longer leads to the file")
    };
    fs::rename(path, &other).unwrap();
    wait_until("the move is noticed", is_missed);
    // It is listed under its new name, and no longer under the old one.
    let listed = run_ok(attachable.command("list").arg(&other)).stdout;
    assert_eq!(listed.lines().count(), 2, "a line below the names of the columns: {listed}");
    fs::rename(&other, path).unwrap();
    wait_until("it is back", || !is_missed());
    attachable.detach_well(&device);
}

fn fio(mountpoint: &Path) -> Option<Command> {
    let mut command = Command::new(tool("fio")?);
    command.current_dir(mountpoint).args(["--name=load", "--ioengine=libaio", "--direct=1"]);
    // Threads instead of processes, so that killing the process ends them.
    command.args(["--thread", "--rw=randwrite", "--iodepth=16", "--size=64m", "--randseed=7"]);
    command.args(["--refill_buffers=1", "--buffer_compress_percentage=50"]);
    Some(command)
}

#[test]
fn random_writes_to_a_mounted_file_verify() {
    let Some(attachable) = Attachable::new("256M") else { return };
    let mountpoint = attachable.mountpoint();
    let Some(mut command) = fio(&mountpoint) else { return };
    // Sectors of 512 bytes, so that writes of partial blocks also reach the drive.
    attachable.mount(&["--mkfs=ext4", "--sector-size=512"]);
    let sizes = "--bssplit=512/15:4k/50:12k/10:64k/20:1m/5";
    command.args(["--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0"]);
    run_ok(command.args([sizes, "--serialize_overlap=1", "--fsync=256", "--verify_backlog=64"]));
    attachable.detach_well(&mountpoint);
    attachable.drive.assert_checks();
}

#[test]
fn fstrim_gives_space_back() {
    let Some(attachable) = Attachable::new("256M") else { return };
    let Some(fstrim) = tool("fstrim") else { return };
    let mountpoint = attachable.mountpoint();
    attachable.mount(&["--mkfs=ext4"]);
    let mapped = || counter(&attachable.drive.info(), "mapped_bytes");
    let file = mountpoint.join("file");
    fs::write(&file, vec![7; 64 << 20]).unwrap();
    sync();
    let full = mapped();
    assert!(full >= 64 << 20, "{full}");
    fs::remove_file(file).unwrap();
    sync();
    run_ok(Command::new(fstrim).arg(&mountpoint));
    let trimmed = mapped();
    assert!(trimmed + (60 << 20) < full, "{full} before, {trimmed} after");
    attachable.detach_well(&mountpoint);
}

/// Guards against a path that cannot be recorded, and a record that then cannot be removed.
#[test]
fn a_path_that_is_not_utf_8_is_attached() {
    let Some(attachable) = Attachable::new("128M") else { return };
    let name = std::os::unix::ffi::OsStrExt::from_bytes(b"not\xffutf-8.pumice");
    let path = attachable.drive.beside("").join::<&std::ffi::OsStr>(name);
    fs::rename(attachable.drive.path(), &path).unwrap();
    let mountpoint = attachable.mountpoint();
    let mut command = attachable.command("attach");
    run_ok(command.arg(&path).arg(&mountpoint).arg("--mkfs=ext4"));
    attachable.detach_well(&mountpoint);
}

/// A table made for other sectors is reported wherever its partitions would be missed.
#[test]
fn a_partition_table_for_other_sectors_is_noticed() {
    let Some(attachable) = Attachable::new("64M") else { return };
    let Some(sfdisk) = tool("sfdisk") else { return };
    for (label, sectors, others) in
        [("gpt", "512", "4096"), ("gpt", "4096", "512"), ("dos", "4096", "512")]
    {
        let device = attachable.attach(&["--sector-size", sectors]);
        let script = "printf \"label: $2\nsize=32M\n\" | \"$0\" --quiet --wipe=always \"$1\"";
        run_ok(Command::new("sh").args(["-c", script]).arg(&sfdisk).arg(&device).arg(label));
        let row = format!("for sectors of {sectors} bytes");
        let says_so = |said: String| assert!(said.contains(&row), "{said}");
        let info = || attachable.drive.ok(&["info", attachable.drive.path().to_str().unwrap()]);
        says_so(info());
        attachable.detach_well(&device);
        says_so(info());
        let same = attachable.try_attach(&["--sector-size", sectors]);
        assert!(same.code == Some(0) && !same.stderr.contains("sectors"), "{same:?}");
        let device = Path::new(same.stdout.trim_end());
        let name = device.file_name().unwrap().to_str().unwrap();
        // Not every kernel supports the table.
        let searches = fs::read_to_string(format!("/sys/block/{name}/loop/partscan"));
        assert_eq!(searches.unwrap().trim(), "1", "the kernel looks for no partition");
        attachable.detach_well(device);
        let other = attachable.try_attach(&["--sector-size", others]);
        assert_eq!(other.code, Some(0), "{other:?}");
        assert!(other.stderr.contains(&format!("--sector-size {sectors}")), "{other:?}");
        attachable.detach_well(Path::new(other.stdout.trim_end()));
        let at = attachable.mountpoint();
        let at = at.to_str().unwrap();
        refused(&attachable.try_attach(&[at, "--sector-size", others]), &format!("size {sectors}"));
        attachable.assert_nothing_left();
    }
    let server = attachable.drive.serve_with_control(&[]);
    wait_until("the server says so", || server.stderr().contains("sector_bytes=4096"));
    server.stop();
}

#[test]
fn the_file_below_the_device_is_an_ordinary_one() {
    let Some(attachable) = Attachable::new("64M") else { return };
    let device = attachable.attach(&[]);
    let name = device.file_name().unwrap().to_str().unwrap();
    let affinity = PathBuf::from(format!("/sys/block/{name}/queue/rq_affinity"));
    let is_strict = || fs::read_to_string(&affinity).unwrap().trim() == "2";
    assert!(is_strict(), "requests end wherever the drive's thread is");
    let directory = attachable.attachments()[0].join("fuse");
    let names: Vec<_> =
        fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["drive"], "lists of loop devices show the name");
    let path = directory.join("drive");
    let about = fs::metadata(&path).unwrap();
    assert_eq!((about.len(), about.mode(), about.blksize()), (64 << 20, 0o100_600, 4096));
    let space = rustix::fs::statvfs(&directory).unwrap();
    assert_eq!((space.f_blocks * space.f_frsize, space.f_bavail), (64 << 20, 0));
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let end = (64 << 20) - 3;
    file.write_all_at(b"end", end).unwrap();
    file.sync_all().unwrap();
    let mut bytes = [0; 8];
    assert_eq!(file.read_at(&mut bytes, end).unwrap(), 3);
    assert_eq!(bytes[..3], *b"end");
    assert_eq!(file.read_at(&mut bytes, 64 << 20).unwrap(), 0);
    assert!(file.write_at(b"more", end).is_err(), "a write beyond the end");
    assert!(file.set_len(1 << 20).is_err(), "the disk was truncated");
    assert!(File::create(directory.join("other")).is_err(), "another file");
    assert!(fs::remove_file(&path).is_err(), "the disk was removed");
    drop(file);
    // The content is the same through the device.
    let through = File::open(&device).unwrap();
    assert_eq!(through.read_at(&mut bytes, end).unwrap(), 3);
    assert_eq!(bytes[..3], *b"end");
    drop(through);
    attachable.detach_well(&device);
    // Another test may have the device for a while.
    wait_until("the loop device is as it was before", || !is_strict());
}

#[test]
fn impossible_attachments_are_refused_and_leave_nothing() {
    let Some(attachable) = Attachable::new("64M") else { return };
    let mountpoint = attachable.mountpoint();
    let at = mountpoint.to_str().expect("a plain path");
    let server = attachable.drive.serve_with_control(&[]);
    refused(&attachable.try_attach(&[]), "in use");
    server.stop();
    refused(&attachable.try_attach(&["/no/such/place"]), "cannot mount on /no/such/place");
    // There is no file system: by then, every step but the last has been done.
    refused(&attachable.try_attach(&[at]), "add --mkfs ext4");
    refused(&attachable.try_attach(&[at, "--read-only"]), "there is no file system on");
    attachable.assert_nothing_left();
    // XFS requires at least 300 MiB.
    refused(&attachable.try_attach(&[at, "--mkfs=xfs"]), "mkfs.xfs failed");
    fs::write(mountpoint.join("file"), "hidden").unwrap();
    refused(&attachable.try_attach(&[at, "--mkfs=ext4"]), "is not empty");
    refused(&attachable.try_attach(&["--sector-size=1024"]), "512 or 4096");
    let mut other = attachable.command("attach");
    other.arg(attachable.drive.path()).uid(65534).gid(65534);
    // Its directories are closed to other users.
    if let Ok(child) = other.stderr(Stdio::piped()).spawn() {
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&output.stderr).contains("needs root"));
    }
    attachable.assert_nothing_left();
    attachable.attach(&[]);
    refused(&attachable.try_attach(&[]), "is already attached: /dev/loop");
    attachable.detach_well(attachable.drive.path());
    attachable.drive.assert_checks();
}

/// Guards against a second drive that hides the first: `detach` of one unmounted the other.
#[test]
fn two_drives_are_not_mounted_on_one_directory() {
    let Some(attachable) = Attachable::new("512M") else { return };
    let mountpoint = attachable.mountpoint();
    // The root of a new XFS is empty.
    attachable.mount(&["--mkfs=xfs"]);
    let other = attachable.other("512M");
    let mut second = attachable.command("attach");
    second.arg(&other).arg(&mountpoint).arg("--mkfs=xfs");
    refused(&run(&mut second, COMMAND_LIMIT), "detach it first");
    attachable.detach_well(attachable.drive.path());
}

/// A full drive ends the journal of its file system, which is whole again once the drive has space
/// and is attached again.
#[test]
fn a_full_thin_drive_is_given_space_and_attached_again() {
    let Some(_) = Attachable::new("64M") else { return };
    let attachable = Attachable { drive: Drive::create("512M", &["--capacity", "128M"]) };
    fs::create_dir(attachable.mountpoint()).unwrap();
    attachable.mount(&["--mkfs", "ext4"]);
    let kept = attachable.mountpoint().join("kept");
    fs::write(&kept, "kept").unwrap();
    File::open(&kept).unwrap().sync_all().unwrap();
    let file = File::create(attachable.mountpoint().join("large")).unwrap();
    let mut written = (0..256).map(|at| file.write_all_at(&noise(at, 1 << 20), at << 20));
    let is_refused = written.any(|written| written.is_err()) || file.sync_all().is_err();
    assert!(is_refused, "too tame a test");
    drop(file);
    let drive = attachable.drive.path().display().to_string();
    attachable.drive.ok(&["resize", &drive, "--capacity", "640M"]);
    let detached = attachable.detach(&attachable.mountpoint());
    // The file system's own writes may also have failed before.
    assert!(matches!(detached.code, Some(0 | 1)), "{detached:#?}");
    attachable.assert_nothing_left();
    attachable.mount(&[]);
    assert_eq!(fs::read_to_string(&kept).unwrap(), "kept");
    fs::write(&kept, "changed").unwrap();
    File::open(&kept).unwrap().sync_all().unwrap();
    // More than the drive could hold before.
    let file = File::create(attachable.mountpoint().join("large")).unwrap();
    (0..192).for_each(|at| file.write_all_at(&noise(at, 1 << 20), at << 20).unwrap());
    file.sync_all().unwrap();
    drop(file);
    attachable.detach_well(&attachable.mountpoint());
    attachable.drive.assert_checks();
}

#[test]
fn a_path_after_two_dashes_is_attached() {
    let Some(attachable) = Attachable::new("64M") else { return };
    let mut command = attachable.command("attach");
    let finished = run_ok(command.arg("--").arg(attachable.drive.path()));
    attachable.detach_well(Path::new(finished.stdout.trim()));
}

/// Returns the options with which `path` is mounted.
fn mount_options(path: &Path) -> String {
    let shown = Command::new("findmnt").args(["-n", "-o", "OPTIONS"]).arg(path).output().unwrap();
    String::from_utf8(shown.stdout).unwrap().trim().to_owned()
}

/// Guards against programs of other users' drives that run as root, and a new file system in which
/// the user who has created it can create nothing.
#[test]
fn a_new_file_system_is_its_user_s_and_gives_no_rights() {
    let Some(attachable) = Attachable::new("128M") else { return };
    let mountpoint = attachable.mountpoint();
    let mut command = attachable.command("attach");
    command.arg(attachable.drive.path()).arg(&mountpoint).arg("--mkfs=ext4");
    let finished = run_ok(command.env("SUDO_UID", "65534").env("SUDO_GID", "65533"));
    let root = fs::metadata(&mountpoint).unwrap();
    assert_eq!((root.uid(), root.gid()), (65534, 65533));
    let options = mount_options(&mountpoint);
    assert!(options.contains("nosuid") && options.contains("nodev"), "{options}");
    // Its name appears where devices and mounts are listed.
    let device = finished.stdout.trim();
    let mut blkid = Command::new(tool("blkid").unwrap());
    let label = run_ok(blkid.args(["-p", "-o", "value", "-s", "LABEL", device]));
    assert_eq!(label.stdout.trim(), "drive");
    assert!(fs::read_to_string("/proc/mounts").unwrap().contains("pumice:drive "));
    attachable.detach_well(&mountpoint);
    attachable.mount(&["--mount-options=suid,noatime"]);
    let options = mount_options(&mountpoint);
    assert!(!options.contains("nosuid") && options.contains("noatime"), "{options}");
    // Only a new file system is handed to the user.
    assert_eq!(fs::metadata(&mountpoint).unwrap().uid(), 65534);
    attachable.detach_well(&mountpoint);
    // An error that mount(8) leaves to the kernel's log.
    let unknown =
        attachable.try_attach(&[mountpoint.to_str().unwrap(), "--mount-options=map-cahce"]);
    refused(&unknown, "Unknown parameter 'map-cahce'");
}

#[test]
fn xfs_of_small_sectors_names_the_flag_it_needs() {
    let Some(attachable) = Attachable::new("512M") else { return };
    attachable.mount(&["--mkfs=xfs", "--sector-size=512"]);
    attachable.detach_well(&attachable.mountpoint());
    let mountpoint = attachable.mountpoint();
    let at = mountpoint.to_str().unwrap();
    refused(&attachable.try_attach(&[at]), "add --sector-size 512");
    attachable.assert_nothing_left();
}

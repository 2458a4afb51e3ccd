//! Goal: `bench::detect` recognizes compression by real file systems and devices: btrfs with and
//! without compression, zram, a Pumice drive; it finds none on ext4 and on a loop device, and
//! reports that it cannot tell for an export.
//!
//! Method: whole detections of 8 MiB a run. Loop devices are in memory, so that a busy disk does
//! not slow them down. Loop devices, mounts and zram need root and a kernel that has them: where
//! they are not available, the tests report that and are skipped, under CI too; missing programs
//! fail there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;

use pumice_bench::Error;
use pumice_bench::detect::{
    Answer, Class, Data, Detection, Settings, Strength, Sweep, Zeroes, detect,
};
use pumice_bench::target::{Access, Location};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::harness::{
    COMMAND_LIMIT, Drive, LoopDevice, PUMICE, Server, counter, run, run_ok, spawn, stand_in, tool,
    wait, wait_until,
};

const SPAN_BYTES: u64 = 8 << 20;

/// mkfs.btrfs needs at least 109 MiB.
const DEVICE_BYTES: u64 = 256 << 20;

fn detected(location: &Location, destroy: bool) -> pumice_bench::Result<Detection> {
    let stop = AtomicBool::new(false);
    let access = Access::default();
    let settings = Settings { access, destroy, span_bytes: SPAN_BYTES, seed: 1 };
    detect(location, settings, &stop, &mut |_, _| {})
}

fn found(location: &Location) -> Detection {
    let found = detected(location, true).expect("a detection");
    println!("{}", found.document().to_text());
    found
}

/// Returns the share that data of a kind saves by the account whose name contains `name`.
fn saved(found: &Detection, name: &str, data: Data) -> f64 {
    let account = found.accounts.iter().find(|account| account.name.contains(name));
    let account = account.unwrap_or_else(|| panic!("no account of {name} in {found:#?}"));
    let amount = account.amounts.iter().find(|amount| amount.data == data);
    amount.and_then(|amount| amount.saved).expect("a share")
}

fn limit(sweep: &Option<Sweep>) -> Option<f64> {
    sweep.as_ref().expect("a sweep").limit
}

fn assert_shows_none(found: &Detection) {
    assert_eq!(found.answer, Answer::ShowsNone, "{found:#?}");
    let usable = |strength| found.accounts.iter().any(|account| account.strength == strength);
    assert!(usable(Strength::Nothing) && !usable(Strength::Sure), "{found:#?}");
    assert!(found.threshold.is_none() && found.reach.is_none());
    assert_eq!(found.zeroes, Zeroes::Stored);
}

/// A file system on a loop device; unmounted when dropped.
struct Mounted {
    place: TempDir,
    _device: LoopDevice,
}

impl Mounted {
    /// Creates and mounts it, or reports why the test is skipped.
    fn new(mkfs: &str, options: &str) -> Option<Self> {
        let (mkfs, mount) = (tool(mkfs)?, tool("mount")?);
        let device = LoopDevice::in_memory(DEVICE_BYTES)?;
        run_ok(Command::new(mkfs).arg("-q").arg(device.path()));
        let place = tempfile::Builder::new().prefix("pumice-").tempdir().expect("temp dir");
        let mut command = Command::new(mount);
        command.args(["-o", options]).arg(device.path()).arg(place.path());
        let finished = run(&mut command, COMMAND_LIMIT);
        if finished.code != Some(0) {
            println!("skipped: no such mount to be had: {}", finished.stderr.trim());
            return None;
        }
        Some(Self { place, _device: device })
    }

    fn location(&self) -> Location {
        Location::Folder(self.place.path().to_owned())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.place.path()).status();
    }
}

/// A zram device; gone when dropped.
pub(crate) struct Zram(String);

impl Zram {
    /// Adds a device, or reports why the test is skipped: not every kernel has zram.
    fn new(bytes: u64) -> Option<Self> {
        Self::made(None, bytes)
    }

    /// Adds a device with this algorithm.
    pub(crate) fn with(algorithm: &str, bytes: u64) -> Option<Self> {
        Self::made(Some(algorithm), bytes)
    }

    fn made(algorithm: Option<&str>, bytes: u64) -> Option<Self> {
        let added = fs::read_to_string("/sys/class/zram-control/hot_add");
        let number = match added {
            Ok(number) => number.trim().to_owned(),
            Err(error) => {
                println!("skipped: no zram device to be had: {error}");
                return None;
            }
        };
        let zram = Self(number);
        if let Some(algorithm) = algorithm
            && let Err(error) = fs::write(zram.stat("comp_algorithm"), algorithm)
        {
            println!("skipped: zram does not know {algorithm}: {error}");
            return None;
        }
        fs::write(zram.stat("disksize"), bytes.to_string()).expect("size the zram device");
        Some(zram)
    }

    pub(crate) fn path(&self) -> PathBuf {
        format!("/dev/zram{}", self.0).into()
    }

    /// Returns the path of a file of the kernel about the device.
    pub(crate) fn stat(&self, name: &str) -> PathBuf {
        format!("/sys/block/zram{}/{name}", self.0).into()
    }
}

impl Drop for Zram {
    fn drop(&mut self) {
        let _ = fs::write("/sys/class/zram-control/hot_remove", &self.0);
    }
}

#[test]
fn btrfs_with_zstd_compresses_128_kib_as_one() {
    let Some(mounted) = Mounted::new("mkfs.btrfs", "compress=zstd") else { return };
    let found = found(&mounted.location());
    assert_eq!(found.answer, Answer::Compresses);
    assert!((0.4..0.6).contains(&saved(&found, "statvfs", Data::Saving(50.0))));
    assert!((0.8..0.99).contains(&saved(&found, "statvfs", Data::Saving(90.0))));
    assert!(saved(&found, "statvfs", Data::Duplicates) < 0.05);
    // The stat call of btrfs reports the length before compression.
    assert!(saved(&found, "st_blocks", Data::Saving(90.0)) < 0.05);
    // The file has no device of its own: the counter is that of the mounted device.
    assert!((0.3..0.6).contains(&saved(&found, "loop", Data::Saving(50.0))));
    let counts = |class| found.accounts.iter().filter(|account| account.class == class).count();
    assert_eq!((counts(Class::Usage), counts(Class::Counter)), (2, 1));
    assert_eq!(limit(&found.reach), Some(65536.0));
    // Nearer repeats also compress: the data is not mistaken for random data and stored as it is.
    assert!(!found.remarks.iter().any(|remark| remark.contains("rise and fall")), "{found:#?}");
    // btrfs does not try to compress data that looks random.
    assert!((12.5..=50.0).contains(&limit(&found.threshold).expect("a threshold")));
    assert_eq!(found.zeroes, Zeroes::Compressed);
    let left = fs::read_dir(mounted.place.path()).expect("the folder").count();
    assert_eq!(left, 0, "files are left");
}

#[test]
fn btrfs_with_lzo_compresses_pages() {
    let Some(mounted) = Mounted::new("mkfs.btrfs", "compress=lzo") else { return };
    let found = found(&mounted.location());
    assert_eq!(found.answer, Answer::Compresses);
    assert!((0.4..0.6).contains(&saved(&found, "statvfs", Data::Saving(50.0))));
    assert_eq!(limit(&found.reach), Some(2048.0));
    assert_eq!(found.zeroes, Zeroes::Compressed);
}

#[test]
fn btrfs_without_compression_shows_none() {
    let Some(mounted) = Mounted::new("mkfs.btrfs", "rw") else { return };
    assert_shows_none(&found(&mounted.location()));
}

#[test]
fn ext4_on_a_loop_device_shows_none() {
    let Some(mounted) = Mounted::new("mkfs.ext4", "rw") else { return };
    assert_shows_none(&found(&mounted.location()));
}

#[test]
fn a_loop_device_shows_none_and_its_file_is_examined() {
    let Some(device) = LoopDevice::in_memory(DEVICE_BYTES) else { return };
    let Some(mkfs) = tool("mkfs.ext4") else { return };
    let location = Location::Device(device.path().to_owned());
    let found = found(&location);
    assert_shows_none(&found);
    assert!(found.remarks.iter().any(|remark| remark.contains("its own counter is not usable")));
    run_ok(Command::new(mkfs).arg("-q").arg(device.path()));
    let before = start_of(device.path());
    let refused = detected(&location, false).expect_err("a refusal");
    assert!(matches!(refused, Error::AlreadyExists(_)), "{refused:?}");
    assert!(start_of(device.path()) == before, "something was written");
}

fn start_of(path: &Path) -> Vec<u8> {
    use std::os::unix::fs::FileExt;
    let mut bytes = vec![0; 1 << 20];
    fs::File::open(path).expect("the device").read_exact_at(&mut bytes, 0).expect("its start");
    bytes
}

#[test]
fn zram_compresses_pages_and_detects_fills() {
    let Some(zram) = Zram::new(64 << 20) else { return };
    let found = found(&Location::Device(zram.path()));
    assert_eq!(found.answer, Answer::Compresses);
    assert!((0.4..0.55).contains(&saved(&found, "mm_stat", Data::Saving(50.0))));
    assert!((0.8..0.95).contains(&saved(&found, "mm_stat", Data::Saving(90.0))));
    assert_eq!(found.zeroes, Zeroes::Fill);
    // zram stores pages uncompressed that would not save an eighth.
    assert_eq!(limit(&found.threshold), Some(12.5));
    assert_eq!(limit(&found.reach), Some(2048.0));
    assert!(found.remarks.iter().any(|remark| remark.contains("is not usable")));
}

#[test]
fn a_pumice_drive_compresses_chunks_or_frames() {
    if stand_in().is_some() {
        return;
    }
    // A chunk has two blocks or more, and a frame eight.
    for (form, reach_bytes) in [("chunks", 4096.0), ("solid", 16384.0)] {
        let options = ["--capacity=128M", "--segment=4M", "--frame", form];
        let drive = Drive::create("64M", &options);
        let found = found(&Location::Drive(drive.path().to_owned().into()));
        assert_eq!(found.answer, Answer::Compresses);
        assert!((0.45..0.55).contains(&saved(&found, "frame_bytes", Data::Saving(50.0))));
        assert!(saved(&found, "frame_bytes", Data::Duplicates) < 0.01);
        assert_eq!(found.zeroes, Zeroes::Fill);
        assert_eq!(limit(&found.threshold), Some(5.0));
        assert_eq!(limit(&found.reach), Some(reach_bytes), "{form}");
        assert_eq!(counter(&drive.info(), "mapped_bytes"), 0, "blocks are still mapped");
        drive.assert_checks();
    }
}

/// Asserts that an export shows only speed, which never proves compression, and that no data is
/// left on it.
fn assert_cannot_tell(server: &Server) {
    let location = Location::parse(&server.uri()).expect("a URI");
    let found = found(&location);
    assert_eq!((found.answer, found.zeroes), (Answer::CannotTell, Zeroes::Unknown));
    assert!(found.accounts.is_empty() && found.speeds.len() == 8 && !found.stopped, "{found:#?}");
    assert!(found.speeds.iter().all(|speed| speed.rates.len() == 6), "{found:#?}");
    assert!(found.remarks.iter().any(|remark| remark.contains("the server uses")), "{found:#?}");
}

#[test]
fn a_served_drive_cannot_tell_and_is_left_empty() {
    if stand_in().is_some() {
        return;
    }
    let drive = Drive::create("64M", &["--capacity=128M", "--segment=4M"]);
    let server = drive.serve_with_control(&[]);
    assert_cannot_tell(&server);
    let info = drive.info();
    // At least thirty runs arrived, and compressible data was compressed.
    let (host, frame) = (counter(&info, "host_bytes"), counter(&info, "frame_bytes"));
    assert!(host >= 30 * SPAN_BYTES && frame < host * 3 / 4, "{info}");
    assert_eq!(counter(&info, "mapped_bytes"), 0, "blocks are still mapped");
    server.stop();
    drive.assert_checks();
}

#[test]
fn an_export_without_compression_cannot_tell() {
    let Some(nbdkit) = tool("nbdkit") else { return };
    let folder = tempfile::Builder::new().prefix("pumice-").tempdir().expect("temp dir");
    let socket = folder.path().join("socket");
    let mut command = Command::new(nbdkit);
    command.args(["--foreground", "--exit-with-parent", "--unix"]).arg(&socket);
    let server = Server::start(command.args(["memory", "16M"]), socket);
    assert_cannot_tell(&server);
    server.stop();
}

/// Guards against a first Ctrl-C that waits for a server which never answers.
#[test]
fn one_signal_ends_the_wait_for_a_silent_server() {
    let Some(nbdkit) = tool("nbdkit") else { return };
    let folder = tempfile::Builder::new().prefix("pumice-").tempdir().expect("temp dir");
    let (socket, log) = (folder.path().join("socket"), folder.path().join("log"));
    let mut command = Command::new(nbdkit);
    command.args(["--foreground", "--exit-with-parent", "--filter=log", "--filter=delay"]);
    command.arg("--unix").arg(&socket).args(["memory", "16M", "rdelay=3600"]);
    let server = Server::start(command.arg(format!("logfile={}", log.display())), socket);
    let mut command = Command::new(PUMICE);
    command.args(["bench", &server.uri(), "--detect-compression", "--span", "8M"]);
    let mut child = spawn(command.arg("--destroy-data"));
    let asked = || fs::read_to_string(&log).is_ok_and(|text| text.contains(" Read id="));
    wait_until("a read is under way", asked);
    kill_process(Pid::from_child(&child), Signal::INT).expect("a child");
    let status = wait(&mut child, COMMAND_LIMIT).expect("an end after one signal");
    let mut said = String::new();
    let mut stderr = child.stderr.take().expect("stderr is piped");
    std::io::Read::read_to_string(&mut stderr, &mut said).expect("text");
    assert!(status.code() == Some(130) && said.contains("interrupted"), "{said}");
    server.kill();
}

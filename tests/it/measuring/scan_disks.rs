//! Goal: the result of `pumice scan` depends neither on the access to a disk nor on earlier reads
//! of it; and the drive that it proposes holds the data.
//! Method: a real ext4 file system in an image, most of which mkfs allocates without writing, is
//! scanned cold and warm, and over NBD from Pumice and from qemu-nbd. The command at the end of a
//! report is run, and the drive that it creates is filled with the data, twice.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{Advice, fadvise};
use serde_json::Value;

use crate::harness::{Drive, PUMICE, Server, counter, run_ok, stand_in, tool};
use crate::measuring::scan::{json, scan, stored};

/// Size of the image: mkfs leaves most of the inode tables and of the journal unwritten.
const IMAGE_BYTES: u64 = 256 << 20;

/// Writes an image with the sources of this project on ext4, and syncs it; `None` without mkfs.
fn ext4(folder: &Path) -> Option<PathBuf> {
    let mkfs = tool("mkfs.ext4")?;
    let image = folder.join("disk.img");
    fs::File::create(&image).unwrap().set_len(IMAGE_BYTES).unwrap();
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../crates"));
    let mut make = Command::new(mkfs);
    run_ok(make.args(["-q", "-E", "lazy_itable_init=0,nodiscard", "-d"]).arg(root).arg(&image));
    let file = fs::File::open(&image).unwrap();
    file.sync_all().unwrap();
    Some(image)
}

/// Drops a synced image from the page cache.
fn forget(image: &Path) {
    fadvise(fs::File::open(image).unwrap(), 0, None, Advice::DontNeed).expect("dropped");
}

fn figures(of: &Value) -> (u64, Vec<(f64, f64)>) {
    let configs = of["configs"].as_array().expect("configurations").len();
    let all = (0..configs).map(|index| (stored(of, index, "drive"), stored(of, index, "codec")));
    (counter(of, "bytes"), all.collect())
}

#[test]
fn an_image_is_the_same_cold_and_warm_and_over_nbd() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(image) = ext4(folder.path()) else { return };
    let shown = image.display().to_string();
    forget(&image);
    let cold = figures(&json(&[&shown, "--all"]));
    assert!(cold.0 < IMAGE_BYTES / 2, "{} of it is data", cold.0);
    over_nbd(&image, &cold);
    fs::read(&image).expect("all of it is in the cache now");
    assert_eq!(figures(&json(&[&shown, "--all"])), cold);
    // The same space without holes: fully allocated, and still not written.
    run_ok(Command::new("fallocate").arg("--length").arg(IMAGE_BYTES.to_string()).arg(&image));
    fs::read(&image).expect("all of it is in the cache again");
    assert_eq!(figures(&json(&[&shown, "--all"])), cold);
}

/// Scans the image served by Pumice from a copy, and by qemu-nbd as it is.
fn over_nbd(image: &Path, file: &(u64, Vec<(f64, f64)>)) {
    let takes = |of: &(u64, Vec<(f64, f64)>)| of.1[1].0 * of.0 as f64;
    if let Some(nbdcopy) = tool("nbdcopy") {
        let drive = Drive::create("256M", &[]);
        let server = drive.serve();
        let mut copy = Command::new(nbdcopy);
        run_ok(copy.args(["--requests=1", "--connections=1"]).arg(image).arg(server.uri()));
        let of = figures(&json(&[&server.uri(), "--all"]));
        server.stop();
        // nbdcopy turns written zeroes into holes: no more data, and hardly less.
        assert!(of.0 <= file.0 && of.0 > file.0 / 2, "{} of {}", of.0, file.0);
        let ratio = takes(&of) / takes(file);
        assert!((ratio - 1.0).abs() < 0.005, "{ratio}");
    }
    if let Some(qemu_nbd) = tool("qemu-nbd") {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("sock");
        let mut serve = Command::new(qemu_nbd);
        // A scan opens several connections, also concurrently.
        serve.args(["-r", "-f", "raw", "-t", "-e", "16", "-k"]).arg(&socket).arg(image);
        let server = Server::start(&mut serve, socket);
        let of = figures(&json(&[&server.uri(), "--all"]));
        server.kill();
        let ratio = takes(&of) / takes(file);
        assert!(of.0 < IMAGE_BYTES && (ratio - 1.0).abs() < 0.02, "{ratio}, {} bytes", of.0);
    }
}

/// Runs the command at the end of a report, for a drive in this folder; returns its path.
fn create(text: &str, folder: &Path) -> PathBuf {
    let commands: Vec<&str> =
        text.lines().map(str::trim).filter(|line| line.starts_with("pumice create ")).collect();
    let [command] = commands[..] else { panic!("one command: {text}") };
    let mut words = command.split(' ');
    assert_eq!(words.next(), Some("pumice"));
    run_ok(Command::new(PUMICE).args(words).current_dir(folder));
    folder.join("drive.pumice")
}

/// Overwrites a drive with an image, with several requests in flight.
fn fill(nbdcopy: &Path, image: &Path, drive: &Path) {
    let run = format!("'{}' --flush '{}' \"$uri\"", nbdcopy.display(), image.display());
    run_ok(Command::new(PUMICE).arg("serve").arg(drive).args(["--run", &run]));
}

#[test]
fn the_drive_that_is_recommended_holds_the_data() {
    let Some(nbdcopy) = tool("nbdcopy") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let Some(image) = ext4(folder.path()) else { return };
    // A disk that is much larger than the reserved segments and than its data.
    let saving = folder.path().join("saving");
    let made = ["payload", "--saved", "85%", "--size", "800M", "--output"];
    run_ok(Command::new(PUMICE).args(made).arg(&saving));
    for data in [&image, &saving] {
        let place = tempfile::tempdir().expect("a folder");
        let report = scan(&[&data.display().to_string(), "--error", "2"]);
        assert_eq!(report.code, Some(0), "{}", report.stderr);
        let drive = create(&report.stdout, place.path());
        let info = run_ok(Command::new(PUMICE).args(["info", "--json"]).arg(&drive)).stdout;
        let info: Value = serde_json::from_str(&info).expect("JSON");
        let (size, capacity) = (counter(&info, "size_bytes"), counter(&info, "capacity_bytes"));
        assert_eq!(size, fs::metadata(data).unwrap().len());
        if data == &saving {
            assert!(capacity < size * 4 / 5, "it is thin: {capacity} for {size}");
        }
        fill(&nbdcopy, data, &drive);
        fill(&nbdcopy, data, &drive);
    }
}

#[test]
fn the_drive_for_a_folder_holds_a_file_system_with_it() {
    let (Some(nbdcopy), Some(mkfs)) = (tool("nbdcopy"), tool("mkfs.ext4")) else { return };
    let place = tempfile::tempdir().expect("a folder");
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../crates"));
    let report = scan(&[&root.display().to_string()]);
    let drive = create(&report.stdout, place.path());
    let info = run_ok(Command::new(PUMICE).args(["info", "--json"]).arg(&drive)).stdout;
    let size = counter(&serde_json::from_str(&info).expect("JSON"), "size_bytes");
    let image = place.path().join("disk.img");
    fs::File::create(&image).unwrap().set_len(size).unwrap();
    run_ok(Command::new(mkfs).args(["-q", "-d"]).arg(root).arg(&image));
    fill(&nbdcopy, &image, &drive);
}

/// The snapshot of a closed drive is served to the scan alone; the snapshot of a served drive comes
/// from its server.
#[test]
fn a_snapshot_is_scanned_like_its_disk() {
    let folder = tempfile::tempdir().expect("a folder");
    let (Some(image), Some(nbdcopy)) = (ext4(folder.path()), tool("nbdcopy")) else { return };
    if stand_in().is_some() {
        return;
    }
    let image_figures = figures(&json(&[&image.display().to_string(), "--all"]));
    let drive = Drive::create("256M", &["--capacity", "512M"]);
    let server = drive.serve_with_control(&[]);
    run_ok(Command::new(&nbdcopy).arg(&image).arg(server.uri()));
    drive.ok(&["snapshot", "create", &drive.named("a")]);
    run_ok(Command::new("qemu-io").args(["-f", "raw", "-c", "discard 0 256M"]).arg(server.uri()));
    let of_snapshot = || {
        let scanned = drive.ok(&["scan", &drive.named("a"), "--all", "--json"]);
        serde_json::from_str::<Value>(&scanned).expect("JSON")
    };
    let served = of_snapshot();
    drop(server);
    let closed = of_snapshot();
    for scanned in [&served, &closed] {
        assert_eq!(scanned["paths"][0], Value::from(drive.named("a")), "{scanned}");
        // The drive stores blocks of zeroes as holes.
        let (bytes, stored) = figures(scanned);
        assert!(bytes <= image_figures.0 && bytes > image_figures.0 / 2, "{bytes}");
        for (one, other) in stored.iter().zip(&image_figures.1) {
            assert!((one.1 - other.1).abs() < 0.2, "{stored:?}, {image_figures:?}");
        }
    }
    assert_eq!(figures(&served), figures(&closed));
    drive.refused(&["scan", &drive.named("b")], "no snapshot named b");
    drive.refused(&["scan", &format!("{}x@a", drive.named("b"))], "cannot scan");
}

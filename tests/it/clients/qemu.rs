//! Goal: a file system and its files are read back from a drive unchanged, through QEMU's and
//! libnbd's clients.
//!
//! Method: an ext4 image made of real files is converted into the drive, compared, compared again
//! after a restart, and copied back; qemu-io checks patterns at odd offsets.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::{Drive, PUMICE, run_ok, tool};

/// Enough files for a file system of several hundred inodes, few enough to copy in a second.
const FILE_BYTES_MAX: u64 = 12 << 20;

#[test]
fn a_file_system_survives_the_round_trip() {
    let (Some(mkfs), Some(fsck)) = (tool("mkfs.ext4"), tool("e2fsck")) else { return };
    let (Some(qemu_img), Some(nbdcopy)) = (tool("qemu-img"), tool("nbdcopy")) else { return };
    let drive = Drive::create("128M", &[]);
    let image = drive.beside("image");
    let files = copy_of_real_files(&drive.beside("files"));
    run_ok(Command::new(mkfs).args(["-q", "-F", "-d"]).arg(files).arg(&image).arg("128M"));

    let server = drive.serve();
    let mut convert = Command::new(&qemu_img);
    convert.args(["convert", "-n", "-f", "raw", "-O", "raw"]).arg(&image).arg(server.uri());
    run_ok(&mut convert);
    compare(&qemu_img, &image, &server.uri());
    server.stop();
    drive.assert_checks();

    let server = drive.serve();
    compare(&qemu_img, &image, &server.uri());
    let copy = drive.beside("copy");
    run_ok(Command::new(nbdcopy).arg(server.uri()).arg(&copy));
    server.stop();
    assert!(fs::read(&image).unwrap() == fs::read(&copy).unwrap(), "nbdcopy read other bytes");
    run_ok(Command::new(fsck).arg("-fn").arg(&copy));
}

fn compare(qemu_img: &Path, image: &Path, uri: &str) {
    // Without --strict, zeroes and holes are equal, as for a host.
    run_ok(Command::new(qemu_img).args(["compare", "-f", "raw", "-F", "raw"]).arg(image).arg(uri));
}

/// Fills a directory with files of every checkout: this project's own files, the program itself,
/// and the system's documentation where it is installed.
fn copy_of_real_files(target: &Path) -> PathBuf {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let mut budget = FILE_BYTES_MAX;
    copy_tree(Path::new("/usr/share/doc"), &target.join("doc"), &mut (FILE_BYTES_MAX / 2));
    copy_tree(&root.join("crates"), &target.join("crates"), &mut budget);
    copy_tree(&root.join("tests"), &target.join("tests"), &mut budget);
    let program = fs::read(PUMICE).expect("the program under test");
    let end = program.len().min(FILE_BYTES_MAX as usize);
    fs::write(target.join("program"), &program[..end]).expect("copy the program");
    target.to_path_buf()
}

/// Copies regular files until `budget` bytes are used up.
fn copy_tree(source: &Path, target: &Path, budget: &mut u64) {
    let Ok(entries) = fs::read_dir(source) else { return };
    fs::create_dir_all(target).expect("create a directory");
    for entry in entries.map_while(Result::ok) {
        let (kind, path) = (entry.file_type().expect("file type"), entry.path());
        if kind.is_dir() {
            copy_tree(&path, &target.join(entry.file_name()), budget);
        } else if kind.is_file() && entry.metadata().is_ok_and(|it| it.len() <= *budget) {
            *budget -= fs::copy(&path, target.join(entry.file_name())).expect("copy a file");
        }
    }
}

#[test]
fn patterns_at_odd_offsets_read_back() {
    let Some(qemu_io) = tool("qemu-io") else { return };
    let drive = Drive::create("64M", &[]);
    let server = drive.serve();
    qemu_io_script(&qemu_io, &server.uri(), &WRITE_SCRIPT);
    qemu_io_script(&qemu_io, &server.uri(), &READ_SCRIPT);
    server.stop();

    let server = drive.serve();
    qemu_io_script(&qemu_io, &server.uri(), &READ_SCRIPT);
    server.stop();
    drive.assert_checks();
}

/// Overlapping writes, discards and zeroes, synchronous and not. `aio_flush` waits for all earlier
/// ones.
const WRITE_SCRIPT: [&str; 18] = [
    "write -P 0x11 0 1M",
    "write -P 0x22 512 512",
    "write -P 0x33 3584 1024",
    "write -P 0x44 9728 66048",
    "read -P 0x22 512 512",
    "write -z 20480 8192",
    "discard 131072 65536",
    "write -z -u 262656 5632",
    "flush",
    "aio_write -P 0x55 2M 512k",
    "aio_write -P 0x66 3M 64k",
    "aio_write -P 0x77 4194816 1536",
    "aio_flush",
    "aio_read -P 0x55 2M 512k",
    "aio_read -P 0x66 3M 64k",
    "aio_flush",
    "write -f -P 0x88 67108352 512",
    "flush",
];

/// The expected content afterwards: the last writer of every byte.
const READ_SCRIPT: [&str; 18] = [
    "read -P 0x11 0 512",
    "read -P 0x22 512 512",
    "read -P 0x11 1024 2560",
    "read -P 0x33 3584 1024",
    "read -P 0x11 4608 5120",
    "read -P 0x44 9728 10752",
    "read -P 0 20480 8192",
    "read -P 0x44 28672 47104",
    "read -P 0x11 75776 55296",
    "read -P 0 131072 65536",
    "read -P 0x11 196608 66048",
    "read -P 0 262656 5632",
    "read -P 0x11 268288 780288",
    "read -P 0 1M 1M",
    "read -P 0x55 2M 512k",
    "read -P 0x66 3M 64k",
    "read -P 0x77 4194816 1536",
    "read -P 0x88 67108352 512",
];

fn qemu_io_script(qemu_io: &Path, uri: &str, script: &[&str]) {
    let mut command = Command::new(qemu_io);
    command.args(["-f", "raw", "-d", "unmap", "-t", "none"]);
    for line in script {
        command.args(["-c", line]);
    }
    let finished = run_ok(command.arg(uri));
    // qemu-io reports a wrong pattern on stdout, and older versions end with 0 anyway.
    let wrong = ["Pattern verification failed", "failed:", "invalid"];
    let bad = wrong.iter().any(|text| finished.stdout.contains(text));
    assert!(!bad && finished.stderr.is_empty(), "{}\n{}", finished.stdout, finished.stderr);
}

//! Goal: fio's own verification holds for random writes through its NBD engine.
//!
//! Method: fio writes blocks that carry checksums, reads them back, and reads them again after a
//! restart of the server.

use std::path::Path;
use std::process::Command;

use crate::harness::{Drive, run_ok, tool};

#[test]
fn random_4k_writes_verify() {
    verify(&["--bs=4k"]);
}

#[test]
fn mixed_block_sizes_verify() {
    // Blocks smaller than a logical block and blocks that straddle several. fio keeps overlapping
    // blocks apart only while they are not in flight together.
    verify(&["--bssplit=512/15:1k/10:4k/35:12k/10:16k/20:64k/10", "--serialize_overlap=1"]);
}

#[test]
fn sequential_writes_of_a_mebibyte_verify() {
    verify(&["--bs=1m", "--rw=write"]);
}

fn verify(pattern: &[&str]) {
    let Some(fio) = tool("fio") else { return };
    let drive = Drive::create("64M", &[]);
    let server = drive.serve();
    run_ok(job(&fio, &drive, &server.uri()).args(pattern).arg("--do_verify=1"));
    server.stop();

    let server = drive.serve();
    run_ok(job(&fio, &drive, &server.uri()).args(pattern).arg("--verify_only=1"));
    server.stop();
    drive.assert_checks();
}

fn job(fio: &Path, drive: &Drive, uri: &str) -> Command {
    let mut command = Command::new(fio);
    command
        .current_dir(drive.path().parent().expect("a drive lies in a directory"))
        .args(["--name=verify", "--ioengine=nbd", "--rw=randwrite", "--size=64m"])
        .args(["--iodepth=16", "--randseed=7", "--refill_buffers=1"])
        .args(["--buffer_compress_percentage=50", "--fsync=256"])
        .args(["--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0"])
        .arg(format!("--uri={uri}"));
    command
}

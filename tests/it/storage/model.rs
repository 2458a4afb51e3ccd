//! Goal: whatever a host does, a drive has the content of a plain array of bytes.
//!
//! Method: `fixtures/model.py` sends random reads, writes, trims, write-zeroes and flushes of
//! random sizes and alignments over several connections and keeps a bytearray as the model; the
//! server is restarted between rounds and the whole disk is compared. The seed is printed; set
//! `PUMICE_SEED` to repeat a run.

use std::env;
use std::process::Command;

use crate::harness::{Drive, Server, fixture, python_with_libnbd, run_ok};

/// Operations of one round; a round takes a second or two.
const OPERATIONS: u32 = 600;

#[test]
fn a_drive_behaves_like_an_array_of_bytes() {
    let drive = Drive::create("64M", &["--capacity", "2G"]);
    model_rounds(&drive, 1);
}

#[test]
fn so_does_a_drive_with_zstd() {
    let drive = Drive::create("64M", &["--codec", "zstd", "--capacity", "2G"]);
    model_rounds(&drive, 2);
}

#[test]
fn so_does_a_drive_without_compression() {
    let drive = Drive::create("64M", &["--codec", "none", "--capacity", "2G"]);
    model_rounds(&drive, 3);
}

fn model_rounds(drive: &Drive, default_seed: u64) {
    let Some(python) = python_with_libnbd() else { return };
    let seed = env::var("PUMICE_SEED").map_or(default_seed, |text| text.parse().expect("a seed"));
    println!("PUMICE_SEED={seed}");
    let state = drive.beside("model");
    let model = |server: &Server, operations: u32, seed: u64| {
        let mut command = Command::new(&python);
        command.arg(fixture("model.py")).args(["--uri", &server.uri()]).arg("--state").arg(&state);
        command.arg(format!("--seed={seed}")).arg(format!("--operations={operations}"));
        run_ok(&mut command);
    };
    for round in 0..3 {
        let server = drive.serve();
        model(&server, OPERATIONS, seed + 1000 * round);
        server.stop();
    }
    let server = drive.serve();
    model(&server, 0, seed);
    server.stop();
    drive.assert_checks();
}

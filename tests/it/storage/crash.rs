//! Goal: after `kill -9` with writes in flight a drive holds all flushed data, a prefix of the
//! acknowledged writes, and no mixed block.
//!
//! Method: `fixtures/crash.py` writes and reports its progress; at a seeded moment the server is
//! killed and restarted, and the script checks the disk. Several crashes in a row hit the same
//! drive, so that recovery starts from the state left by an earlier recovery. The seed is printed;
//! set `PUMICE_SEED` to repeat a run (the moment is repeated to within a few writes only).

use std::env;
use std::path::Path;
use std::process::Command;

use rand::RngExt;

use crate::harness::{Drive, Talker, fixture, python_with_libnbd, run_ok};

const CRASHES: u64 = 5;

#[test]
fn kill_9_breaks_no_promise() {
    crash_and_check("lz4", 11);
}

#[test]
fn kill_9_breaks_no_promise_without_compression() {
    crash_and_check("none", 12);
}

fn crash_and_check(codec: &str, default_seed: u64) {
    let Some(python) = python_with_libnbd() else { return };
    let seed = env::var("PUMICE_SEED").map_or(default_seed, |text| text.parse().expect("a seed"));
    println!("PUMICE_SEED={seed}");
    let mut random = pumice_drive::base::seed::random(seed);
    let drive = Drive::create("64M", &["--codec", codec, "--capacity", "2G"]);
    for crash in 0..CRASHES {
        let server = drive.serve();
        let seed = format!("--seed={}", seed * 1000 + crash);
        let mut writer = Talker::start(script(&python, &drive, "write", &server.uri()).arg(seed));
        // One line is a few acknowledged writes: from the first to a few thousand writes.
        for _ in 0..random.random_range(1..300) {
            writer.next_line();
        }
        server.kill();
        writer.finish();

        let server = drive.serve();
        let finished = run_ok(&mut script(&python, &drive, "check", &server.uri()));
        println!("crash {crash}: {}", finished.stdout.trim_end());
        server.stop();
        drive.assert_checks();
    }
}

fn script(python: &Path, drive: &Drive, mode: &str, uri: &str) -> Command {
    let mut command = Command::new(python);
    command.arg(fixture("crash.py")).args([mode, "--uri", uri]);
    command.arg("--state").arg(drive.beside("state.json"));
    command
}

//! Goal: `pumice scrub` finds damage on a closed and on a served drive, lists the lost blocks, then
//! exits with 1, and stops when it is interrupted.
//!
//! Method: noise is written through qemu-io; a byte of it is found in the drive's file and changed.

use std::fs;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::harness::{
    COMMAND_LIMIT, Drive, Finished, PUMICE, noise, run, run_ok, stand_in, tool, wait_until,
};

/// A pattern that no codec stores in fewer bytes than these, found again in the drive's file.
const NOISE_LEN: usize = 1 << 20;

/// Returns a drive with a MiB of noise at offset 0, and the offset of some bytes of block 0 in its
/// file.
fn written() -> Option<(Drive, u64)> {
    let qemu_io = tool("qemu-io")?;
    if stand_in().is_some() {
        return None;
    }
    let drive = Drive::create("64M", &["--segment", "4M"]);
    let noise = noise(5, NOISE_LEN);
    let image = drive.beside("noise");
    fs::write(&image, &noise).unwrap();
    let server = drive.serve();
    let write = format!("write -s {} 0 1M", image.display());
    run_ok(
        Command::new(qemu_io).args(["-f", "raw", "-c", &write, "-c", "flush"]).arg(server.uri()),
    );
    server.stop();
    let bytes = fs::read(drive.path()).unwrap();
    let at = bytes.windows(64).position(|window| window == &noise[100..164]).expect("the noise");
    Some((drive, at as u64))
}

/// Damages two pages of a frame: parity restores only one.
fn damage(drive: &Drive, at: u64) {
    let file = fs::OpenOptions::new().read(true).write(true).open(drive.path()).unwrap();
    for at in [at, at + 4096] {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 1], at).unwrap();
    }
    file.sync_all().unwrap();
}

fn scrub(drive: &Drive, args: &[&str]) -> Finished {
    let mut command = Command::new(PUMICE);
    command.env("PUMICE_RUNTIME_DIR", drive.beside("pumice"));
    run(command.arg("scrub").arg(drive.path()).args(args), COMMAND_LIMIT)
}

fn report(finished: &Finished) -> Value {
    serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {finished:?}"))
}

#[test]
fn a_sound_drive_is_found_sound_closed_and_served() {
    let Some((drive, _)) = written() else { return };
    for is_served in [false, true] {
        let server = is_served.then(|| drive.serve_with_control(&[]));
        let finished = scrub(&drive, &["--json"]);
        assert_eq!(finished.code, Some(0), "{finished:?}");
        let report = report(&finished);
        assert_eq!((&report["problem_count"], &report["completed"]), (&0.into(), &true.into()));
        assert!(report["frames"].as_u64() >= Some(32), "{report}");
        assert!(report["checked_bytes"].as_u64() >= Some(1 << 20), "{report}");
        let finished = scrub(&drive, &[]);
        assert_eq!(finished.code, Some(0), "{finished:?}");
        assert!(finished.stdout.starts_with("0 problems in "), "{finished:?}");
        if is_served {
            assert_eq!(drive.info()["scrubs_completed"], 2, "the server did it");
        }
        drop(server);
    }
}

#[test]
fn damage_is_listed_with_its_blocks_closed_and_served() {
    let Some((drive, at)) = written() else { return };
    damage(&drive, at);
    for is_served in [false, true] {
        let server = is_served.then(|| drive.serve_with_control(&[]));
        let finished = scrub(&drive, &["--json"]);
        assert_eq!(finished.code, Some(1), "{finished:?}");
        let report = report(&finished);
        assert_eq!(report["problem_count"], 1, "{report}");
        let problem = &report["problems"][0];
        assert_eq!((&problem["lba"], &problem["lba_count"]), (&0.into(), &8.into()), "{report}");
        let finished = scrub(&drive, &[]);
        assert_eq!(finished.code, Some(1), "{finished:?}");
        assert!(finished.stdout.contains("LBA 0, 8 blocks"), "{finished:?}");
        assert_eq!(finished.stdout.lines().count(), 2, "{finished:?}");
        if is_served {
            assert_eq!(drive.info()["scrub_problems"], 1);
        }
        drop(server);
    }
}

#[test]
fn an_interrupted_scrub_stops_in_the_server_too() {
    let Some((drive, _)) = written() else { return };
    let server = drive.serve_with_control(&[]);
    let mut child = Command::new(PUMICE)
        .env("PUMICE_RUNTIME_DIR", drive.beside("pumice"))
        .args(["scrub".as_ref(), drive.path().as_os_str(), "--rate".as_ref(), "4K".as_ref()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let running = || drive.info()["scrub_running"] == true;
    wait_until("the scrub runs", running);
    let second = scrub(&drive, &[]);
    assert_eq!(second.code, Some(2), "{second:?}");
    assert!(second.stderr.contains("is running"), "{second:?}");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    child.wait().unwrap();
    wait_until("the scrub stops", || !running());
    assert_eq!(scrub(&drive, &[]).code, Some(0));
    server.stop();
    drive.assert_checks();
}

#[test]
fn impossible_scrubs_are_refused() {
    let absent = Drive::absent();
    let finished = scrub(&absent, &[]);
    assert_eq!(finished.code, Some(2), "{finished:?}");
    let finished = scrub(&absent, &["--rate", "0"]);
    assert_eq!(finished.code, Some(2), "{finished:?}");
    assert!(finished.stderr.contains("a rate above 0"), "{finished:?}");
}

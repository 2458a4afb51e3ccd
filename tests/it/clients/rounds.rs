//! Goal: data that other software made durable on a drive survives `kill -9` of the server, and of
//! the process that attaches it: fio's synchronous writes, files on ext4 and XFS, PostgreSQL's
//! commits; PostgreSQL starts on the daily copies of its drive; and snapshots of a nearly full,
//! busy drive stay whole.
//!
//! Method: a few rounds of `tests/crash_rounds.sh`, whose header describes a round; `make
//! crash-rounds` runs many. Several crashes in a row hit the same drive, and the third round also
//! kills the server at its next start. `tests/backups.sh` backs up, `make backups` for a year. Set
//! `PUMICE_SEED` to repeat the choice of moments (a moment is repeated to within a few writes
//! only). `tests/snapshot_rounds.py` takes, reads, sends and deletes snapshots meanwhile.
//!
//! Mounting needs root, FUSE and a loop device: where they are missing, the tests report that and
//! are skipped, under CI too, because installing packages does not provide them.

use std::env;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::harness::{PUMICE, python_with_libnbd, run, skip, tool};

/// Rounds of one test: the minimum that has a drive which was crashed before, and a crash at the
/// start.
const ROUNDS: &str = "3";

/// Time limit of a script; below the limit of a test. A week of backups takes 31 s on two quiet
/// cores, and took more than 80 s with three computing processes and a writing one.
const LIMIT: Duration = Duration::from_secs(200);

/// Exit codes of the script other than success and failure.
const PROGRAM_IS_MISSING: i32 = 2;
const MACHINE_CANNOT: i32 = 77;

#[test]
fn fio_finds_each_synchronous_write_after_kill_9() {
    run_rounds(&["--load", "fio"]);
}

#[test]
fn ext4_and_its_files_survive_kill_9() {
    run_rounds(&["--load", "ext4"]);
}

#[test]
fn xfs_and_its_files_survive_kill_9() {
    run_rounds(&["--load", "xfs"]);
}

#[test]
fn postgresql_keeps_each_commit_after_kill_9() {
    run_rounds(&["--load", "postgresql"]);
}

#[test]
fn postgresql_on_an_attached_drive_keeps_each_commit_after_kill_9() {
    run_rounds(&["--load", "postgresql", "--attach"]);
}

#[test]
fn xfs_on_an_attached_drive_and_its_files_survive_kill_9() {
    run_rounds(&["--load", "xfs", "--attach"]);
}

/// The days include a kill under load and an interrupted transfer.
#[test]
fn a_week_of_backups_of_a_busy_postgresql_is_restored() {
    run_script(&[], "tests/backups.sh", &["--days", "7", "--every", "5"]);
}

#[test]
fn snapshots_of_a_busy_full_drive_survive_kill_9() {
    let Some(python) = python_with_libnbd() else { return };
    run_script(&[&python], "tests/snapshot_rounds.py", &["--rounds", "2"]);
}

fn run_rounds(what: &[&str]) {
    run_script(&[], "tests/crash_rounds.sh", &[&["--rounds", ROUNDS], what].concat());
}

fn run_script(interpreter: &[&Path], script: &str, what: &[&str]) {
    let Some(timeout) = tool("timeout") else { return };
    let seed = env::var("PUMICE_SEED").unwrap_or_else(|_| "13".into());
    let script = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(script);
    // SIGTERM lets the script unmount what it has mounted; the harness would only kill it.
    let limit = format!("{}s", LIMIT.as_secs() - 40);
    let finished = run(
        Command::new(timeout)
            .args(["--signal=TERM", "--kill-after=30s", &limit])
            .args(interpreter)
            .arg(script)
            .args(["--seed", &seed, "--pumice", PUMICE])
            .args(what),
        LIMIT,
    );
    let reason = finished.stderr.trim_end();
    match finished.code {
        Some(0) => println!("{}", finished.stdout.trim_end()),
        Some(PROGRAM_IS_MISSING) => skip(reason).unwrap_or_default(),
        Some(MACHINE_CANNOT) => println!("skipped: {reason}"),
        code => panic!("exit code {code:?}\n{}\n{reason}", finished.stdout),
    }
}

//! Goal: the server passes the test suites of libnbd and of the reference implementation.
//!
//! Method: their own C programs and scripts, which `tests/foreign/list` names, built from source by
//! `tests/foreign/build.sh` in the folder that `PUMICE_FOREIGN_TESTS` names. libnbd's start
//! `nbdkit`, which is `tests/foreign/nbdkit` here.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::{COMMAND_LIMIT, Drive, PUMICE, python_with_libnbd, run, skip, stand_in};

/// The exit code of a test that lacks a requirement.
const SKIPPED: i32 = 77;

fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/foreign"))
}

/// Returns the folder of the built suites, or reports why they are skipped.
fn suites() -> Option<PathBuf> {
    if stand_in().is_some() {
        return None;
    }
    match env::var_os("PUMICE_FOREIGN_TESTS") {
        Some(folder) => Some(folder.into()),
        None => skip("PUMICE_FOREIGN_TESTS names no folder: see tests/foreign/build.sh"),
    }
}

/// Returns the tests in folders with these prefixes: the program or script, and its arguments.
fn listed(beginnings: &[&str]) -> Vec<(&'static str, Vec<&'static str>)> {
    let lines = include_str!("../../foreign/list").lines();
    let wanted = lines.filter(|line| beginnings.iter().any(|start| line.starts_with(start)));
    let mut found = Vec::new();
    for line in wanted {
        let mut words = line.split(' ');
        found.push((words.next().expect("a program"), words.collect()));
    }
    found
}

/// Returns the command of a program in its own folder, where it looks for its files.
fn command(suites: &Path, program: &str) -> Command {
    let program = suites.join(program);
    let mut command = Command::new(&program);
    command.current_dir(program.parent().expect("a folder")).env("srcdir", ".");
    command
}

/// Runs tests of libnbd, with Pumice as its nbdkit.
fn run_libnbd(beginnings: &[&str]) {
    let (Some(suites), Some(_)) = (suites(), python_with_libnbd()) else { return };
    let directory = tempfile::Builder::new().prefix("pumice-").tempdir().expect("temp dir");
    // Scripts of libnbd use the Python that has its module, which is the system's.
    let path = env::var("PATH").unwrap_or_default();
    let path = format!("{}:/usr/bin:{path}", folder().display());
    let mut wrong = Vec::new();
    for (program, args) in listed(beginnings) {
        let mut command = command(&suites, program);
        command.args(&args).env("PATH", &path).env("PUMICE", PUMICE).env("PUMICE_LOG", "warn");
        command.env("TMPDIR", directory.path());
        command.env("PUMICE_RUNTIME_DIR", directory.path().join("pumice"));
        let finished = run(&mut command, COMMAND_LIMIT);
        match finished.code {
            Some(0) => {}
            // Not every machine lets a process mount.
            Some(SKIPPED) if program.contains("/fuse/") => println!("skipped: {program}"),
            _ => wrong.push((program, finished)),
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn libnbd_s_programs_pass() {
    run_libnbd(&["libnbd/tests/", "libnbd/interop/"]);
}

#[test]
fn libnbd_s_scripts_for_its_tools_pass() {
    run_libnbd(&["libnbd/copy/", "libnbd/info/", "libnbd/sh/", "libnbd/fuse/"]);
}

#[test]
fn the_reference_tester_passes() {
    let Some(suites) = suites() else { return };
    for (program, args) in listed(&["nbd/"]) {
        // One test expects a new disk of a gigabyte; others process the whole of their disk.
        let size = if args.contains(&"-i") { "1G" } else { "64M" };
        let drive = Drive::create(size, &[]);
        let server = drive.serve();
        let mut command = command(&suites, program);
        command.args(&args).args(["-N", "drive", "-u"]).arg(server.socket());
        let finished = run(&mut command, COMMAND_LIMIT);
        assert_eq!(finished.code, Some(0), "{args:?}: {finished:#?}");
        server.stop();
        drive.assert_checks();
    }
}

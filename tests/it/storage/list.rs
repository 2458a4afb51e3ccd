//! Goal: `pumice list` shows the served and the named drives, with their state and savings; an
//! unreadable drive hides no other.

use std::fs;
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::harness::{
    COMMAND_LIMIT, Drive, Finished, PUMICE, run, run_ok, stand_in, tool, wait_until,
};

fn list(drive: &Drive, args: &[&str]) -> Finished {
    let mut command = Command::new(PUMICE);
    command.env("PUMICE_RUNTIME_DIR", drive.beside("pumice"));
    run(command.arg("list").args(args), COMMAND_LIMIT)
}

fn json(finished: &Finished) -> Value {
    serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {finished:?}"))
}

#[test]
fn drives_are_listed_with_their_state() {
    let Some(qemu_io) = tool("qemu-io").filter(|_| stand_in().is_none()) else { return };
    let drive = Drive::create("64M", &["--segment", "4M"]);
    let nothing = list(&drive, &[]);
    assert_eq!((nothing.code, nothing.stdout.as_str()), (Some(0), ""));
    assert!(nothing.stderr.contains("no drive is served or attached"), "{nothing:?}");
    assert_eq!(json(&list(&drive, &["--json"])), Value::Array(Vec::new()));

    let server = drive.serve_with_control(&[]);
    // Four bytes repeated: not a fill, and nearly nothing once compressed.
    let pattern = drive.beside("pattern");
    fs::write(&pattern, b"abcd".repeat(1024)).unwrap();
    let write = format!("write -s {} 0 8M", pattern.display());
    let mut command = Command::new(qemu_io);
    run_ok(command.args(["-f", "raw", "-c", &write, "-c", "flush"]).arg(server.uri()));
    let served = json(&list(&drive, &["--json"]));
    assert_eq!(served.as_array().map(Vec::len), Some(1), "{served}");
    let one = &served[0];
    assert_eq!(one["path"].as_str(), drive.path().to_str());
    assert_eq!((&one["state"], &one["health"]), (&"served".into(), &"healthy".into()));
    assert_eq!((&one["process"], &one["clients"]), (&server.id().into(), &0.into()));
    assert_eq!(one["uris"][0], server.uri());
    assert_eq!(one["mapped_bytes"], 8 << 20);
    assert!(one["live_bytes"].as_u64().expect("bytes") < 1 << 20, "{one}");
    let length = fs::metadata(drive.path()).unwrap().len();
    for shown in [one, &drive.info()] {
        let taken = shown["file_bytes"].as_u64().expect("bytes");
        assert!((1..length).contains(&taken), "{taken} of {length}");
    }
    let text = list(&drive, &[]).stdout;
    for word in ["drive ", "served", "64 MiB", "8 MiB", "x, 7.", "healthy", &server.uri()] {
        assert!(text.contains(word), "{word} in\n{text}");
    }

    // A folder with a closed drive and a file that is no drive.
    let folder = drive.beside("folder");
    fs::create_dir(&folder).unwrap();
    let closed = folder.join("closed.pumice");
    let create = ["--size", "64M", "--segment", "4M"];
    run_ok(Command::new(PUMICE).arg("create").arg(&closed).args(create));
    fs::write(folder.join("other.txt"), "not a drive").unwrap();
    fs::write(folder.join("broken.pumice"), "not a drive").unwrap();
    let args = [folder.to_str().unwrap(), drive.path().to_str().unwrap(), "--json"];
    let finished = list(&drive, &args);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert!(finished.stderr.contains("broken.pumice: "), "{finished:?}");
    let all = json(&finished);
    let states: Vec<_> = all.as_array().unwrap().iter().map(|one| one["state"].clone()).collect();
    assert_eq!(states, ["unreadable", "closed", "served"], "{all}");
    server.stop();
    // Served by a server that the command cannot query.
    let server = drive.serve();
    let mut command = Command::new(PUMICE);
    command
        .env("PUMICE_RUNTIME_DIR", folder.join("none"))
        .args(["status", "--json"])
        .arg(drive.path());
    let finished = run(&mut command, COMMAND_LIMIT);
    assert_eq!((finished.code, &json(&finished)[0]["state"]), (Some(1), &"in use".into()));
    assert!(finished.stderr.contains(&format!("process {} ", server.id())), "{finished:?}");
    server.stop();
}

/// Each query takes ten seconds.
#[test]
fn a_server_that_does_not_answer_is_asked_once() {
    if stand_in().is_some() {
        return;
    }
    let drive = Drive::create("64M", &[]);
    let server = drive.serve_with_control(&[]);
    let signal = |signal| kill_process(Pid::from_raw(server.id().cast_signed()).unwrap(), signal);
    signal(Signal::STOP).unwrap();
    let finished = list(&drive, &[drive.path().to_str().unwrap()]);
    signal(Signal::CONT).unwrap();
    assert_eq!((finished.code, finished.stderr.lines().count()), (Some(1), 1), "{finished:?}");
    server.stop();
}

/// Guards against a file that is deleted while its drive is served: all data is lost when the
/// server ends.
#[test]
fn a_served_drive_whose_file_is_moved_or_deleted_says_so() {
    if stand_in().is_some() {
        return;
    }
    let drive = Drive::create("64M", &[]);
    let server = drive.serve_with_control(&[]);
    let shown = |word: &str| {
        // Also by its name, at which there is no file any more.
        let mut info = Command::new(PUMICE);
        info.env("PUMICE_RUNTIME_DIR", drive.beside("pumice")).arg("info").arg(drive.path());
        let info = run_ok(&mut info).stdout;
        info.contains(word) && list(&drive, &[]).stdout.contains("attention")
    };
    let other = drive.beside("other");
    fs::rename(drive.path(), &other).unwrap();
    wait_until("the move is noticed", || server.stderr().contains("was moved or replaced"));
    assert!(shown("no longer leads"));
    fs::rename(&other, drive.path()).unwrap();
    wait_until("it is back", || server.stderr().contains("back in its place"));
    assert_eq!(drive.info()["alerts"], Value::Array(Vec::new()));
    fs::remove_file(drive.path()).unwrap();
    wait_until("the end is noticed", || server.stderr().contains("was deleted while in use"));
    assert!(shown("was deleted while in use"));
    server.stop();
}

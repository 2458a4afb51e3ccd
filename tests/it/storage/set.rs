//! Goal: `pumice set` changes the settings of a closed and of a served drive, reports the changes,
//! and refuses unknown settings.
//!
//! Method: the same text is written through qemu-io before and after; `info` shows its stored size.

use std::fs::{self, File};
use std::process::Command;

use serde_json::Value;

use crate::harness::{
    COMMAND_LIMIT, Drive, Finished, PUMICE, Server, counter, run, run_ok, stand_in, tool,
};

fn set(drive: &Drive, args: &[&str]) -> Finished {
    let mut command = Command::new(PUMICE);
    command.env("PUMICE_RUNTIME_DIR", drive.beside("pumice"));
    run(command.arg("set").arg(drive.path()).args(args), COMMAND_LIMIT)
}

fn changed(drive: &Drive, args: &[&str]) -> Value {
    let finished = set(drive, &[args, &["--json"]].concat());
    assert_eq!(finished.code, Some(0), "{finished:?}");
    serde_json::from_str(&finished.stdout).expect("set --json prints JSON")
}

/// Returns the frame bytes of a mebibyte of text written at an offset.
fn stored(drive: &Drive, server: &Server, offset: &str) -> u64 {
    let Some(qemu_io) = tool("qemu-io") else { return 0 };
    let text = drive.beside("text");
    let mut words = Vec::new();
    for number in 0..150_000_u64 {
        // No cycle within a window of LZ4.
        let word = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60;
        words.extend_from_slice(format!("word{word} ").as_bytes());
    }
    words.truncate(1 << 20);
    fs::write(&text, words).unwrap();
    let before = counter(&drive.info(), "frame_bytes");
    let write = format!("write -s {} {offset} 1M", text.display());
    let mut command = Command::new(qemu_io);
    run_ok(command.args(["-f", "raw", "-c", &write, "-c", "flush"]).arg(server.uri()));
    counter(&drive.info(), "frame_bytes") - before
}

#[test]
fn settings_change_on_a_served_and_on_a_closed_drive() {
    if tool("qemu-io").is_none() || stand_in().is_some() {
        return;
    }
    let drive = Drive::create("64M", &["--segment", "4M"]);
    let server = drive.serve_with_control(&[]);
    let dense = stored(&drive, &server, "0");
    let finished = set(&drive, &["codec=zstd:3", "warn=50,60"]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    for line in [": codec lz4 -> zstd:3, for new data\n", ": warn 80,90,95 -> 50,60\n"] {
        assert!(finished.stdout.contains(line), "{finished:?}");
    }
    let denser = stored(&drive, &server, "1M");
    assert!(denser < dense * 9 / 10, "{denser} bytes with zstd, {dense} with LZ4");
    let info = drive.info();
    assert_eq!((&info["codec"], &info["warn_percent"]), (&"zstd:3".into(), &[50, 60].into()));
    server.stop();
    // The closed drive keeps the settings.
    assert_eq!(drive.info()["codec"], "zstd:3");
    let result = changed(&drive, &["codec=none", "warn=none"]);
    assert_eq!(result["before"], serde_json::json!({ "codec": "zstd:3", "warn": "50,60" }));
    assert_eq!(result["after"], serde_json::json!({ "codec": "none", "warn": "none" }));
    assert_eq!(set(&drive, &["codec=none"]).stdout.matches("as before").count(), 1);
    let server = drive.serve_with_control(&["--warn", "7"]);
    assert_eq!(drive.info()["warn_percent"], serde_json::json!([7]));
    assert!(stored(&drive, &server, "2M") > 1 << 20);
    assert_eq!(changed(&drive, &["warn=90"])["warn_overridden"], true);
    assert_eq!(drive.info()["warn_percent"], serde_json::json!([7]));
    server.stop();
    assert_eq!(drive.info()["warn_percent"], serde_json::json!([90]));
    drive.assert_checks();
}

#[test]
fn invalid_settings_are_refused() {
    if stand_in().is_some() {
        return;
    }
    let drive = Drive::create("64M", &["--segment", "4M"]);
    for is_served in [false, true] {
        let server = is_served.then(|| drive.serve_with_control(&[]));
        for (args, mention) in [
            (&["codek=zstd"][..], "did you mean 'codec'?"),
            (&["codec=zstd", "codec=lz4"], "specified twice"),
            (&["size=1G"], "pumice resize"),
            (&[], "KEY=VALUE"),
        ] {
            let refused = set(&drive, args);
            assert_eq!(refused.code, Some(2), "{args:?}: {refused:?}");
            assert!(refused.stderr.contains(mention), "{args:?}: {refused:?}");
            assert_eq!(refused.stderr.trim_end().lines().count(), 1, "{refused:?}");
        }
        assert_eq!(drive.info()["codec"], "lz4");
        drop(server);
    }
    assert_eq!(set(&Drive::absent(), &["codec=lz4"]).code, Some(2));
}

#[test]
fn files_that_are_no_drive_are_refused_with_a_remedy() {
    let drive = Drive::absent();
    fs::write(drive.path(), "a text\n".repeat(1000)).unwrap();
    let refused = set(&drive, &["codec=lz4"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.stderr.contains("check the path; `pumice list"), "{refused:?}");
    assert!(!refused.stderr.contains("pumice create"), "{refused:?}");
}

/// Another command that reads the drive ends soon, and a command that needs the drive waits for it.
#[test]
fn a_closed_drive_is_waited_for() {
    if stand_in().is_some() {
        return;
    }
    let drive = Drive::create("64M", &[]);
    let opened = File::open(drive.path()).unwrap();
    opened.lock_shared().unwrap();
    let mut reader = Command::new("sleep").arg("2").stdin(opened).spawn().unwrap();
    drive.ok(&["snapshot", "create", &drive.named("taken")]);
    assert!(reader.wait().unwrap().success(), "the reader kept the drive while it was open");
}

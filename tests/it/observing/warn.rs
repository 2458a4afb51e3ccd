//! Goal: a drive that fills up reports the thresholds set by its user, in the server's log and in
//! `pumice info`, once each.
//!
//! Method: noise is written through qemu-io to a thin drive with low thresholds.

use std::fs;
use std::process::Command;

use crate::harness::{Drive, PUMICE, Server, noise, pumice, run_ok, stand_in, tool, wait_until};

fn write_noise(drive: &Drive, server: &Server, seed: u64, offset: &str) {
    let Some(qemu_io) = tool("qemu-io") else { return };
    let image = drive.beside("noise");
    fs::write(&image, noise(seed, 4 << 20)).unwrap();
    let write = format!("write -s {} {offset} 4M", image.display());
    run_ok(
        Command::new(qemu_io).args(["-f", "raw", "-c", &write, "-c", "flush"]).arg(server.uri()),
    );
}

#[test]
fn thresholds_are_warned_of_once_each() {
    if tool("qemu-io").is_none() || stand_in().is_some() {
        return;
    }
    // Data may take 50 to 60 of the 80 MiB.
    let args = ["--segment", "4M", "--capacity", "80M", "--warn", "5,12,60"];
    let drive = Drive::create("64M", &args);
    let server = drive.serve_with_control(&[]);
    assert_eq!(drive.info()["warnings"], serde_json::json!([]));
    write_noise(&drive, &server, 1, "0");
    wait_until("the first warning", || {
        server.stderr().contains("above the warning threshold of 5 %")
    });
    write_noise(&drive, &server, 2, "8M");
    wait_until("the second warning", || {
        server.stderr().contains("above the warning threshold of 12 %")
    });
    let info = drive.info();
    assert_eq!(info["warnings"], serde_json::json!([5, 12]));
    let used_percent = info["used_percent"].as_f64().expect("a number");
    assert!((12.0..20.0).contains(&used_percent), "{used_percent}");
    assert_eq!(server.stderr().matches("warning threshold").count(), 2, "{}", server.stderr());
    server.stop();
    // The closed drive shows the warning in words.
    let shown = run_ok(Command::new(PUMICE).arg("info").arg(drive.path()));
    assert!(shown.stdout.contains("above 12 %"), "{}", shown.stdout);
    // Overrides the thresholds for one server only.
    let server = drive.serve_with_control(&["--warn", "none"]);
    assert_eq!(drive.info()["warnings"], serde_json::json!([]));
    server.stop();
    assert_eq!(drive.info()["warnings"], serde_json::json!([5, 12]));
}

#[test]
fn impossible_thresholds_are_refused() {
    for warn in ["0", "101", "80,", "1,2,3,4,5", "much", "-3"] {
        let drive = Drive::absent();
        let args = ["--size=64M".to_owned(), format!("--warn={warn}")];
        let path = drive.path();
        let finished = pumice(&["create".as_ref(), path, args[0].as_ref(), args[1].as_ref()]);
        assert_eq!(finished.code, Some(2), "{warn}: {finished:?}");
        assert!(finished.stderr.contains("such as 80,90,95"), "{warn}: {finished:?}");
        assert!(!path.exists());
    }
}

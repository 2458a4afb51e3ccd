//! Goal: the page of a served drive works in a real browser: its figures move under load, nothing
//! is cut off or hard to read on a desktop or a phone, in light or dark, the keyboard reaches the
//! map, and the browser reports no errors. A newly loaded page shows the recent past, and the page
//! of several drives opens on the one that refuses writes.
//!
//! Method: headless Chromium, driven by `fixtures/browser.py`, while fio writes.

use std::fs;
use std::process::Command;
use std::time::Duration;

use crate::harness::{
    COMMAND_LIMIT, Drive, PUMICE, Talker, fixture, noise, run, run_ok, serve_folder, tool,
};
use crate::observing::http::{address, serve};

#[test]
fn the_page_updates_in_a_browser() {
    let (Some(_), Some(fio), Some(python)) = (tool("chromium"), tool("fio"), tool("python3"))
    else {
        return;
    };
    // Space for the data of the snapshots, which is the whole disk in the end.
    let drive = Drive::create("256M", &["--segment", "4M", "--capacity", "1G"]);
    let long = "x".repeat(200);
    for name in ["nightly", "before the upgrade of the database", &long] {
        drive.ok(&["snapshot", "create", &drive.named(name)]);
    }
    let (server, address) = serve(&drive, &["--rated-tbw", "10T"]);
    let mut load = Command::new(fio);
    load.current_dir(drive.path().parent().expect("a directory"))
        .args([
            "--name=load",
            "--thread",
            "--ioengine=nbd",
            "--rw=randrw",
            "--bs=4k",
            "--size=256m",
        ])
        .args(["--iodepth=4", "--rate=2m,4m", "--time_based", "--runtime=280"])
        .args(["--buffer_compress_percentage=50", "--refill_buffers=1"])
        .arg(format!("--uri={}", server.uri()));
    let load = Talker::start(&mut load);
    let mut look = Command::new(python);
    look.arg(fixture("browser.py")).arg(format!("http://{address}/"));
    look.arg(drive.beside("profile"));
    // A browser running with other tests on two cores is slow.
    let looked = run(&mut look, Duration::from_secs(280));
    assert_eq!(looked.stdout.trim(), "ok", "what is wrong with the page: {}", looked.stderr);
    drop(load);
    server.stop();
}

#[test]
fn the_page_of_several_drives_opens_on_problems() {
    let (Some(_), Some(qemu_io), Some(python)) =
        (tool("chromium"), tool("qemu-io"), tool("python3"))
    else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let full = folder.path().join("z.pumice");
    let thin = ["--size", "256M", "--capacity", "64M", "--segment", "4M"];
    run_ok(Command::new(PUMICE).arg("create").arg(full).args(thin));
    let server = serve_folder(folder.path(), &["a", "b"], &["--http", "127.0.0.1:0"]);
    let image = folder.path().join("noise");
    fs::write(&image, noise(9, 64 << 20)).unwrap();
    let mut fill = Command::new(qemu_io);
    fill.args(["-f", "raw"]);
    for mebibyte in 0..64 {
        let write = format!("write -s {} {mebibyte}M 1M", image.display());
        fill.args(["-c", &write]);
    }
    let filled = run(fill.arg(server.uri_of("z")), COMMAND_LIMIT);
    assert!(filled.stderr.contains("No space left") || filled.stdout.contains("No space left"));
    let mut look = Command::new(python);
    look.arg(fixture("browser.py")).arg(format!("http://{}/", address(&server)));
    look.arg(folder.path().join("profile")).arg("--several");
    let looked = run(&mut look, Duration::from_secs(280));
    assert_eq!(looked.stdout.trim(), "ok", "what is wrong with the page: {}", looked.stderr);
    server.stop();
}

//! Goal: the page of a served drive works in a real browser: its figures move under load, nothing
//! is cut off or hard to read on a desktop or a phone, in light or dark, the keyboard reaches the
//! map, and the browser has nothing to complain about.
//!
//! Method: headless Chromium, driven by `fixtures/browser.py`, while fio writes.

use std::process::Command;
use std::time::Duration;

use crate::harness::{Drive, Talker, fixture, run, tool};
use crate::http::serve;

#[test]
fn the_page_lives_in_a_browser() {
    let (Some(_), Some(fio), Some(python)) = (tool("chromium"), tool("fio"), tool("python3"))
    else {
        return;
    };
    let drive = Drive::create("256M", &["--segment", "4M"]);
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
    // A browser beside other tests on two cores takes its time.
    let looked = run(&mut look, Duration::from_secs(280));
    assert_eq!(looked.stdout.trim(), "ok", "what is wrong with the page: {}", looked.stderr);
    drop(load);
    server.stop();
}

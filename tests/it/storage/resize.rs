//! Goal: `pumice resize` grows and shrinks a closed and a served drive, keeps its data, makes its
//! file longer and shorter, and refuses a resize that would lose data, with the numbers.
//!
//! Method: a pattern is written through qemu-io and read again after each step.

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::harness::{
    COMMAND_LIMIT, Drive, Finished, LoopDevice, PUMICE, Server, counter, noise, run, run_ok,
    stand_in, tool,
};

const MIB: u64 = 1 << 20;

fn resize(drive: &Drive, args: &[&str]) -> Finished {
    let mut command = Command::new(PUMICE);
    command.env("PUMICE_RUNTIME_DIR", drive.beside("pumice"));
    run(command.arg("resize").arg(drive.path()).args(args), COMMAND_LIMIT)
}

fn resized(drive: &Drive, args: &[&str]) -> (u64, u64) {
    let finished = resize(drive, &[args, &["--json"]].concat());
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let result: Value = serde_json::from_str(&finished.stdout).expect("resize --json prints JSON");
    let shape = (counter(&result, "size_bytes"), counter(&result, "capacity_bytes"));
    let info = drive.info();
    assert_eq!(shape, (counter(&info, "size_bytes"), counter(&info, "capacity_bytes")));
    shape
}

fn qemu_io(server: &Server, command: &str) {
    let Some(qemu_io) = tool("qemu-io") else { return };
    let mut qemu_io = Command::new(qemu_io);
    let output =
        run_ok(qemu_io.args(["-f", "raw", "-c", command, "-c", "flush"]).arg(server.uri()));
    assert!(!output.stdout.contains("verification failed"), "{output:?}");
}

#[test]
fn a_drive_grows_and_shrinks_closed_and_served() {
    if tool("qemu-io").is_none() || stand_in().is_some() {
        return;
    }
    let drive = Drive::create("64M", &["--segment", "4M", "--capacity", "160M"]);
    let mut server = Some(drive.serve());
    qemu_io(server.as_ref().unwrap(), "write -P 7 0 20M");
    for is_served in [true, false] {
        let ask = |command: &str| match &server {
            Some(server) => qemu_io(server, command),
            None => {
                let server = drive.serve();
                qemu_io(&server, command);
                server.stop();
            }
        };
        let (size, capacity) = if is_served { (64, 160) } else { (96, 100) };
        let (more, most) = (format!("{}M", size + 32), format!("{}M", capacity + 80));
        let grown = resized(&drive, &["--size", &more, "--capacity", &most]);
        assert_eq!(grown, ((size + 32) * MIB, (capacity + 80) * MIB));
        let file_bytes = || fs::metadata(drive.path()).unwrap().len();
        assert_eq!(file_bytes(), (capacity + 80 + 2) * MIB);
        // A newly connected client sees the new size.
        ask(&format!("write -P {size} {size}M 32M"));
        ask("read -P 7 0 20M");
        assert_eq!(resized(&drive, &["--capacity", "100M"]), ((size + 32) * MIB, 100 * MIB));
        assert_eq!(file_bytes(), 102 * MIB);
        ask("read -P 7 0 20M");
        ask(&format!("read -P {size} {size}M 32M"));
        if let Some(server) = server.take() {
            server.stop();
        }
        drive.assert_checks();
    }
}

/// Frames and maps of snapshots are moved, and the decoder also reads the moved ones.
#[test]
fn a_drive_with_snapshots_shrinks_closed_and_served() {
    if tool("qemu-io").is_none() || stand_in().is_some() {
        return;
    }
    let drive = Drive::create("32M", &["--segment", "4M", "--capacity", "400M"]);
    let server = drive.serve_with_control(&[]);
    for (name, byte) in [("a", 1), ("b", 2), ("c", 3)] {
        qemu_io(&server, &format!("write -P {byte} 0 20M"));
        let random = drive.beside("random");
        fs::write(&random, noise(byte, 24 << 20)).unwrap();
        qemu_io(&server, &format!("write -s {} 8M 24M", random.display()));
        drive.ok(&["snapshot", "create", &drive.named(name)]);
    }
    let image = |place: &str| {
        let file = drive.beside("image");
        drive.ok(&["extract", place, &file.display().to_string(), "--force"]);
        fs::read(file).unwrap()
    };
    assert_eq!(resized(&drive, &["--capacity", "280M"]), (32 * MIB, 280 * MIB));
    qemu_io(&server, "write -P 9 1M 30M");
    server.stop();
    drive.assert_checks();
    assert_eq!(resized(&drive, &["--capacity", "200M"]), (32 * MIB, 200 * MIB));
    drive.assert_checks();
    for (name, byte) in [("a", 1), ("b", 2), ("c", 3)] {
        let expected = [vec![byte; 8 << 20], noise(byte.into(), 24 << 20)].concat();
        assert!(image(&drive.named(name)) == expected, "{name}");
        let Some(python) = tool("python3") else { continue };
        let decoder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/decoder.py");
        let file = drive.beside("decoded");
        run_ok(
            Command::new(python)
                .arg(decoder)
                .args(["--snapshot", name])
                .arg(drive.path())
                .arg(&file),
        );
        assert!(fs::read(file).unwrap() == expected, "{name}, by the decoder");
    }
    drive.ok(&["snapshot", "rollback", &drive.named("a"), "--delete-newer"]);
    let expected = [vec![1; 8 << 20], noise(1, 24 << 20)].concat();
    assert!(image(&drive.path().display().to_string()) == expected);
    drive.assert_checks();
}

#[test]
fn changes_that_would_lose_data_are_refused() {
    if tool("qemu-io").is_none() || stand_in().is_some() {
        return;
    }
    let drive = Drive::create("64M", &["--segment", "4M"]);
    let image = drive.beside("noise");
    fs::write(&image, noise(6, 8 << 20)).unwrap();
    let server = drive.serve();
    qemu_io(&server, &format!("write -s {} 0 8M", image.display()));
    server.stop();
    let before = drive.info();
    for is_served in [false, true] {
        let server = is_served.then(|| drive.serve_with_control(&[]));
        for (args, mention) in [
            (&["--size", "32M"][..], "cannot shrink below 64 MiB"),
            (&["--capacity", "4M"], "segments of 4 MiB"),
            (&["--capacity", "44M"], "live bytes"),
            (&["--size", "65537K"], "multiple of 4 KiB"),
            (&[], "--size"),
        ] {
            let refused = resize(&drive, args);
            assert_eq!(refused.code, Some(2), "{args:?}: {refused:?}");
            assert!(refused.stderr.contains(mention), "{args:?}: {refused:?}");
            assert_eq!(refused.stderr.trim_end().lines().count(), 1, "{refused:?}");
        }
        drop(server);
    }
    let after = drive.info();
    for key in ["size_bytes", "capacity_bytes"] {
        assert_eq!(counter(&before, key), counter(&after, key));
    }
    drive.assert_checks();
    assert_eq!(resize(&Drive::absent(), &["--size", "1G"]).code, Some(2));
}

#[test]
fn a_block_device_must_be_large_enough() {
    let Some(device) = LoopDevice::new(128 * MIB) else { return };
    let drive = Drive::on(&device);
    let made = ["--size", "32M", "--capacity", "80M", "--segment", "4M"];
    run_ok(Command::new(PUMICE).arg("create").arg(drive.path()).args(made));
    assert_eq!(resized(&drive, &["--capacity", "120M"]), (32 * MIB, 120 * MIB));
    let refused = resize(&drive, &["--capacity", "160M"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.stderr.contains("too small"), "{refused:?}");
    drive.assert_checks();
    assert_eq!(resized(&drive, &["--capacity", "80M"]), (32 * MIB, 80 * MIB));
    drive.assert_checks();
}

/// A drive whose capacity no longer covers its size reports that.
#[test]
fn a_drive_that_becomes_thin_says_so() {
    let drive = Drive::create("512M", &[]);
    let grown = resize(&drive, &["--size", "1G"]);
    let stdout = &grown.stdout;
    assert!(stdout.contains("thin: the log fills up unless the data of"), "{grown:?}");
    let capacity = stdout.split_once("--capacity ").and_then(|(_, rest)| rest.split_once(' '));
    let (capacity, _) = capacity.expect("the option that helps");
    let roomy = resize(&drive, &["--capacity", capacity]);
    assert!(!roomy.stdout.contains("thin"), "{roomy:?}");
    drive.assert_checks();
}

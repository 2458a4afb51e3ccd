//! Goal: a snapshot travels to another drive through a file, a pipe or a shell, as a whole disk and
//! as what was written since; whatever ends a receive, it goes on, and no part passes for a disk.
//!
//! Method: disks are written with nbdcopy and qemu-io to a served drive, snapshots of it are sent
//! and received, and what `extract` reads is compared.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::harness::{COMMAND_LIMIT, Drive, Finished, PUMICE, run, run_ok, stand_in, tool};

const DISK_BYTES: usize = 64 << 20;

fn pumice(drive: &Drive, args: &[&str]) -> Finished {
    let mut command = Command::new(PUMICE);
    command.env("PUMICE_RUNTIME_DIR", drive.beside("pumice")).stdin(Stdio::null());
    run(command.args(args), COMMAND_LIMIT)
}

fn ok(drive: &Drive, args: &[&str]) -> String {
    let finished = pumice(drive, args);
    assert_eq!(finished.code, Some(0), "{args:?}: {finished:?}");
    finished.stdout
}

fn refused(drive: &Drive, args: &[&str], mention: &str) {
    let finished = pumice(drive, args);
    assert_eq!(finished.code, Some(2), "{args:?}: {finished:?}");
    assert!(finished.stderr.contains(mention), "{args:?}: {}", finished.stderr);
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

fn beside(drive: &Drive, name: &str) -> String {
    text(&drive.beside(name))
}

fn named(drive: &Drive, name: &str) -> String {
    format!("{}@{name}", drive.path().display())
}

/// Bytes of which about a half compresses.
fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut word = |at: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        if (at / 1024).is_multiple_of(2) { state } else { state & 0xff }
    };
    (0..len / 8).flat_map(|at| word(at).to_le_bytes()).collect()
}

/// A drive with snapshots `a` and `b`, and their disks.
struct Sender {
    drive: Drive,
    a: Vec<u8>,
    b: Vec<u8>,
}

impl Sender {
    /// `None` if clients are missing.
    fn new() -> Option<Self> {
        let (Some(nbdcopy), Some(qemu_io), None) = (tool("nbdcopy"), tool("qemu-io"), stand_in())
        else {
            return None;
        };
        let drive = Drive::create("64M", &["--segment", "4M", "--capacity", "256M"]);
        let a = bytes(DISK_BYTES, 7);
        let image = drive.beside("image");
        fs::write(&image, &a).unwrap();
        let server = drive.serve_with_control(&[]);
        run_ok(Command::new(&nbdcopy).arg(&image).arg(server.uri()));
        ok(&drive, &["snapshot", "create", &named(&drive, "a")]);
        let mut b = a.clone();
        for (number, at) in [4096, 1 << 20, 9 << 20, 33 << 20].into_iter().enumerate() {
            let part = bytes(4096 << (number * 3), 100 + at as u64);
            let file = drive.beside("part");
            fs::write(&file, &part).unwrap();
            let write = format!("write -s {} {at} {}", file.display(), part.len());
            run_ok(Command::new(&qemu_io).args(["-f", "raw", "-c", &write]).arg(server.uri()));
            b[at..at + part.len()].copy_from_slice(&part);
        }
        run_ok(
            Command::new(&qemu_io).args(["-f", "raw", "-c", "discard 50M 1M"]).arg(server.uri()),
        );
        b[50 << 20..51 << 20].fill(0);
        ok(&drive, &["snapshot", "create", &named(&drive, "b")]);
        drop(server);
        Some(Self { drive, a, b })
    }

    /// Writes a transfer to a file.
    fn transfer(&self, name: &str, since: Option<&str>) -> PathBuf {
        let file = self.drive.beside(&format!("{name}.transfer"));
        let (path, snapshot) = (text(&file), named(&self.drive, name));
        let mut args = vec!["send", &snapshot, "--output", &path, "--force"];
        args.extend(since.into_iter().flat_map(|since| ["--since", since]));
        ok(&self.drive, &args);
        file
    }

    /// Compares a disk.
    fn compare(&self, path: &str, wanted: &[u8]) {
        let image = self.drive.beside("extracted");
        ok(&self.drive, &["extract", path, &text(&image), "--force"]);
        assert!(fs::read(&image).unwrap() == wanted, "{path}");
    }
}

#[test]
fn snapshots_travel_through_files_pipes_and_shells() {
    let Some(sender) = Sender::new() else { return };
    let Sender { drive, a, b } = &sender;
    let copy = beside(drive, "copy.pumice");
    let file = sender.transfer("a", None);
    let args = ["receive", &copy, "--create", "--codec", "zstd:3", "--input", &text(&file)];
    let received = ok(drive, &args);
    assert!(received.starts_with(&format!("{copy}@a: received")), "{received}");
    sender.compare(&copy, a);
    // As ssh would: another shell's stdin.
    let script = format!(
        "{PUMICE} send {} --since a | sh -c '{PUMICE} receive {copy} --as second'",
        named(drive, "b")
    );
    let mut command = Command::new("sh");
    run_ok(command.env("PUMICE_RUNTIME_DIR", drive.beside("pumice")).args(["-c", &script]));
    sender.compare(&copy, b);
    sender.compare(&format!("{copy}@second"), b);
    sender.compare(&format!("{copy}@a"), a);
    ok(drive, &["check", &copy]);
    // What is not from `send`, or not for this drive.
    let input = text(&file);
    refused(drive, &["receive", &copy, "--input", &input], "has this snapshot already");
    refused(
        drive,
        &["receive", &copy, "--input", &beside(drive, "image")],
        "not from `pumice send`",
    );
    refused(drive, &["receive", &copy], "as `pumice send` does: the transfer is cut off");
    refused(drive, &["receive", &copy, "--create", "--input", &input], "exists");
    refused(drive, &["receive", &copy, "--resume-token"], "its disk is whole");
    refused(drive, &["send", &named(drive, "c")], "no snapshot named c");
    refused(drive, &["send", &named(drive, "a"), "--since", "b"], "an earlier one");
    refused(drive, &["send", &text(drive.path())], "PATH@NAME");
    let other = beside(drive, "other.pumice");
    ok(drive, &["create", &other, "--size", "64M"]);
    let b_only = text(&sender.transfer("b", Some("a")));
    refused(drive, &["receive", &other, "--input", &b_only], "has no snapshots");
    let server = drive.serve_with_control(&[]);
    refused(drive, &["receive", &text(drive.path()), "--input", &b_only], "in use");
    drop(server);
}

#[test]
fn a_disk_that_was_written_since_is_refused() {
    let Some(sender) = Sender::new() else { return };
    let drive = &sender.drive;
    let copy = Drive::create("64M", &["--segment", "4M", "--capacity", "256M"]);
    let path = text(copy.path());
    ok(drive, &["receive", &path, "--input", &text(&sender.transfer("a", None))]);
    let Some(qemu_io) = tool("qemu-io") else { return };
    let server = copy.serve_with_control(&[]);
    run_ok(
        Command::new(qemu_io)
            .args(["-f", "raw", "-c", "write 8k 4k", "-c", "flush"])
            .arg(server.uri()),
    );
    drop(server);
    let input = text(&sender.transfer("b", Some("a")));
    refused(drive, &["receive", &path, "--input", &input], "was written since snapshot a");
}

#[test]
fn a_killed_receive_goes_on() {
    let Some(sender) = Sender::new() else { return };
    let Sender { drive, a, b } = &sender;
    let copy = beside(drive, "copy.pumice");
    let whole = fs::read(sender.transfer("a", None)).unwrap();
    let rest = fs::read(sender.transfer("b", Some("a"))).unwrap();
    let mut args = vec!["receive", &copy, "--create"];
    for (wanted, transfer) in [(a, whole), (b, rest)] {
        let mut sent = transfer;
        for part in [3, 2] {
            // Ends in the middle of a batch; the first time by a signal that nothing catches.
            let mut command = Command::new(PUMICE);
            command.env("PUMICE_RUNTIME_DIR", drive.beside("pumice")).args(&args);
            command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
            let mut child = command.spawn().unwrap();
            let mut input = child.stdin.take().unwrap();
            // A receiver that has found an error reads no more.
            let _ = input.write_all(&sent[..sent.len() / part]);
            if part == 3 {
                // What is in the pipe was read, but for the last batch.
                child.kill().unwrap();
            }
            drop(input);
            let mut said = String::new();
            child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
            assert!(!child.wait().unwrap().success());
            args = vec!["receive", &copy];
            let is_part = pumice(drive, &["receive", &copy, "--resume-token"]);
            if part == 2 {
                assert!(said.contains("cut off") && said.contains("--resume"), "{said}");
                assert_eq!(is_part.code, Some(0), "{is_part:?}");
                refused(drive, &["extract", &copy, "-"], "holds a part of a snapshot");
                refused(drive, &["snapshot", "create", &format!("{copy}@x")], "holds a part");
                let info = ok(drive, &["info", &copy]);
                assert!(info.contains("part") && info.contains("so far"), "{info}");
                ok(drive, &["check", &copy]);
            }
            let token = is_part.stdout.trim();
            if !token.is_empty() {
                let file = drive.beside("resumed");
                let from = text(drive.path());
                let output = text(&file);
                ok(drive, &["send", &from, "--resume", token, "--output", &output, "--force"]);
                sent = fs::read(&file).unwrap();
            } else if !Path::new(&copy).exists() {
                args = vec!["receive", &copy, "--create"];
            }
        }
        let file = drive.beside("rest");
        fs::write(&file, &sent).unwrap();
        ok(drive, &["receive", &copy, "--input", &text(&file)]);
        sender.compare(&copy, wanted);
    }
    ok(drive, &["check", &copy]);
}

//! Goal: a snapshot is sent to another drive through a file, a pipe or a shell, as a whole disk and
//! as the changes since a snapshot; an interrupted receive can always be resumed, and no part is
//! mistaken for a whole disk.
//!
//! Method: disks are written with nbdcopy and qemu-io to a served drive, snapshots of it are sent
//! and received, and the output of `extract` is compared.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::harness::{Drive, PUMICE, noise, run_ok, stand_in, tool, wait_until};

const DISK_BYTES: usize = 64 << 20;

fn text(path: &Path) -> String {
    path.display().to_string()
}

fn beside(drive: &Drive, name: &str) -> String {
    text(&drive.beside(name))
}

/// Returns bytes that compress to about a half.
fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = noise(seed, len);
    bytes.chunks_mut(4096).for_each(|block| block[2048..].fill(0));
    bytes
}

/// A drive with snapshots `a` and `b`, and their disks.
struct Sender {
    drive: Drive,
    a: Vec<u8>,
    b: Vec<u8>,
}

impl Sender {
    /// Returns `None` if clients are missing.
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
        drive.ok(&["snapshot", "create", &drive.named("a")]);
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
        drive.ok(&["snapshot", "create", &drive.named("b")]);
        drop(server);
        Some(Self { drive, a, b })
    }

    /// Writes a transfer to a file.
    fn transfer(&self, name: &str, since: Option<&str>) -> PathBuf {
        let file = self.drive.beside(&format!("{name}.transfer"));
        let (path, snapshot) = (text(&file), self.drive.named(name));
        let mut args = vec!["send", &snapshot, "--output", &path, "--force"];
        args.extend(since.into_iter().flat_map(|since| ["--since", since]));
        self.drive.ok(&args);
        file
    }

    /// Compares a disk.
    fn compare(&self, path: &str, wanted: &[u8]) {
        let image = self.drive.beside("extracted");
        self.drive.ok(&["extract", path, &text(&image), "--force"]);
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
    let received = drive.ok(&args);
    assert!(received.starts_with(&format!("{copy}@a: received")), "{received}");
    sender.compare(&copy, a);
    // As ssh would: another shell's stdin.
    let script = format!(
        "{PUMICE} send {} --since a | sh -c '{PUMICE} receive {copy} --as second'",
        drive.named("b")
    );
    let mut command = Command::new("sh");
    run_ok(command.env("PUMICE_RUNTIME_DIR", drive.beside("pumice")).args(["-c", &script]));
    sender.compare(&copy, b);
    sender.compare(&format!("{copy}@second"), b);
    sender.compare(&format!("{copy}@a"), a);
    drive.ok(&["check", &copy]);
    // Input that is not from `send`, or not for this drive.
    let input = text(&file);
    drive.refused(&["receive", &copy, "--input", &input], "has this snapshot already");
    drive.refused(&["receive", &copy, "--input", &beside(drive, "image")], "output of a send");
    drive.refused(&["receive", &copy], "from stdin: the transfer is truncated");
    drive.refused(&["receive", &copy, "--create", "--input", &input], "exists");
    let absent = beside(drive, "absent.pumice");
    drive.refused(&["receive", &absent, "--input", &input], "no such drive: `--create` creates it");
    let image = beside(drive, "absent/image");
    drive.refused(&["extract", &drive.named("a"), &image], "create it first");
    drive.refused(&["receive", &copy, "--resume-token"], "the disk is complete");
    drive.refused(&["send", &drive.named("c")], "no snapshot named c");
    drive.refused(&["send", &drive.named("a"), "--since", "b"], "an earlier one");
    drive.refused(&["send", &text(drive.path())], "PATH@NAME");
    let other = beside(drive, "other.pumice");
    drive.ok(&["create", &other, "--size", "64M"]);
    let b_only = text(&sender.transfer("b", Some("a")));
    drive.refused(&["receive", &other, "--input", &b_only], "has no snapshots");
    let server = drive.serve_with_control(&[]);
    drive.refused(&["receive", &text(drive.path()), "--input", &b_only], "in use");
    drop(server);
}

#[test]
fn a_disk_that_was_written_since_is_refused() {
    let Some(sender) = Sender::new() else { return };
    let drive = &sender.drive;
    let copy = Drive::create("64M", &["--segment", "4M", "--capacity", "256M"]);
    let path = text(copy.path());
    drive.ok(&["receive", &path, "--input", &text(&sender.transfer("a", None))]);
    let Some(qemu_io) = tool("qemu-io") else { return };
    let server = copy.serve_with_control(&[]);
    run_ok(
        Command::new(qemu_io)
            .args(["-f", "raw", "-c", "write 8k 4k", "-c", "flush"])
            .arg(server.uri()),
    );
    drop(server);
    let input = text(&sender.transfer("b", Some("a")));
    drive.refused(&["receive", &path, "--input", &input], "was written after snapshot a");
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
        for is_killed in [true, false] {
            // Ends in the middle of a batch; the first time by a signal that nothing catches.
            let end = if is_killed { sent.len() / 3 } else { sent.len() - 8192 };
            let mut command = Command::new(PUMICE);
            command.env("PUMICE_RUNTIME_DIR", drive.beside("pumice")).args(&args);
            command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
            let mut child = command.spawn().unwrap();
            let mut input = child.stdin.take().unwrap();
            // A receiver that has found an error reads no more.
            let _ = input.write_all(&sent[..end]);
            if is_killed {
                // The bytes in the pipe have been read, except for the last batch.
                child.kill().unwrap();
            }
            drop(input);
            let mut said = String::new();
            child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
            assert!(!child.wait().unwrap().success());
            args = vec!["receive", &copy];
            let is_part = drive.pumice(&["receive", &copy, "--resume-token"]);
            if !is_killed {
                assert!(said.contains("is truncated") && said.contains("--resume"), "{said}");
                assert_eq!(is_part.code, Some(0), "{is_part:?}");
                drive.refused(&["extract", &copy, "-"], "holds a part of a snapshot");
                drive.refused(&["snapshot", "create", &format!("{copy}@x")], "holds a part");
                let info = drive.ok(&["info", &copy]);
                assert!(info.contains("part") && info.contains("so far"), "{info}");
                drive.ok(&["check", &copy]);
            }
            let token = is_part.stdout.trim();
            if !token.is_empty() {
                let file = drive.beside("resumed");
                let from = text(drive.path());
                let output = text(&file);
                drive.ok(&["send", &from, "--resume", token, "--output", &output, "--force"]);
                sent = fs::read(&file).unwrap();
            } else if !Path::new(&copy).exists() {
                args = vec!["receive", &copy, "--create"];
            }
        }
        let file = drive.beside("rest");
        fs::write(&file, &sent).unwrap();
        drive.ok(&["receive", &copy, "--input", &text(&file)]);
        sender.compare(&copy, wanted);
    }
    drive.ok(&["check", &copy]);
}

#[test]
fn a_receive_without_room_is_given_some_and_goes_on() {
    let Some(sender) = Sender::new() else { return };
    let Sender { drive, a, b } = &sender;
    let (copy, from) = (beside(drive, "copy.pumice"), text(drive.path()));
    let whole = text(&sender.transfer("a", None));
    let full = ["receive", &copy, "--create", "--capacity", "48M", "--input", &whole];
    drive.refused(&full, &format!("make space on the drive with `pumice resize {copy} --capacity"));
    drive.ok(&["resize", &copy, "--capacity", "256M"]);
    let rest = beside(drive, "rest");
    let receive_rest = || {
        let token = drive.ok(&["receive", &copy, "--resume-token"]);
        let args = ["send", &from, "--resume", token.trim(), "--output", &rest, "--force"];
        drive.ok(&args);
        assert!(fs::metadata(&rest).unwrap().len() < fs::metadata(&whole).unwrap().len());
        drive.ok(&["receive", &copy, "--input", &rest]);
    };
    receive_rest();
    sender.compare(&copy, a);
    // The snapshot that a part needs is retained.
    let transfer = fs::read(sender.transfer("b", Some("a"))).unwrap();
    fs::write(&rest, &transfer[..transfer.len() - 8192]).unwrap();
    drive.refused(&["receive", &copy, "--input", &rest], "the transfer is truncated");
    drive.refused(&["resize", &copy, "--size", "128M"], "only the capacity can change");
    let delete = ["snapshot", "delete", &format!("{copy}@a")];
    drive.refused(&delete, "a part of a snapshot that was sent since a");
    drive.refused(&["snapshot", "bookmark", &format!("{copy}@a")], "holds a part");
    receive_rest();
    sender.compare(&copy, b);
    sender.compare(&format!("{copy}@a"), a);
    drive.ok(&delete);
    drive.ok(&["check", &copy]);
}

#[test]
fn a_transfer_that_is_damaged_from_the_start_changes_nothing() {
    let Some(sender) = Sender::new() else { return };
    let whole = sender.transfer("a", None);
    let copy = Drive::create("32M", &["--segment", "4M", "--capacity", "256M"]);
    let path = text(copy.path());
    let mut damaged = fs::read(&whole).unwrap();
    damaged[3 * 4096] ^= 1;
    fs::write(copy.beside("damaged"), damaged).unwrap();
    let args = ["receive", &path, "--input", &beside(&copy, "damaged")];
    copy.refused(&args, "nothing was received");
    assert_eq!(copy.info()["size_bytes"], 32 << 20);
    copy.refused(&["receive", &path, "--resume-token"], "the disk is complete");
    copy.ok(&["receive", &path, "--input", &text(&whole)]);
    sender.compare(&path, &sender.a);
}

impl Sender {
    /// Starts to send to a pipe, and waits until data has arrived there.
    fn begin(&self, name: &str) -> Child {
        let mut command = Command::new(PUMICE);
        command.env("PUMICE_RUNTIME_DIR", self.drive.beside("pumice"));
        command.args(["send", &self.drive.named(name)]).stdin(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut first = [0; 4096];
        child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
        child
    }
}

/// Reads the rest of a transfer; returns its length, the exit code and standard error.
fn end(mut child: Child) -> (u64, Option<i32>, String) {
    let mut rest = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut rest).unwrap();
    let ended = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    (4096 + rest.len() as u64, ended.status.code(), said)
}

#[test]
fn a_served_drive_is_sent_while_clients_write() {
    let Some(sender) = Sender::new() else { return };
    let Sender { drive, a, b } = &sender;
    let [whole, since] = [None, Some("a")].map(|since| {
        let name = if since.is_some() { "b" } else { "a" };
        fs::read(sender.transfer(name, since)).unwrap()
    });
    let server = drive.serve_with_control(&[]);
    // A client overwrites the whole disk repeatedly.
    let script =
        format!("while nbdcopy {} '{}'; do :; done", text(&drive.beside("image")), server.uri());
    let mut writing = Command::new("sh");
    let writing = writing.args(["-c", &script]).stderr(Stdio::null());
    let mut writing = writing.spawn().unwrap();
    let written = || drive.info()["operations"]["writes"].as_u64();
    wait_until("a client writes", || written().is_some_and(|writes| writes > 0));
    let copy = beside(drive, "copy.pumice");
    for (name, base, wanted, of_closed) in [("a", None, a, whole), ("b", Some("a"), b, since)] {
        let file = sender.transfer(name, base);
        assert!(fs::read(&file).unwrap() == of_closed, "{name}: as the closed drive is sent");
        let mut args = vec!["receive", &copy, "--input"];
        let input = text(&file);
        args.push(&input);
        args.extend(base.is_none().then_some("--create"));
        drive.ok(&args);
        sender.compare(&copy, wanted);
    }
    assert!(writing.try_wait().unwrap().is_none(), "the client was served all the time");
    drive.refused(&["send", &drive.named("c"), "--output", "x"], "no snapshot named c");
    drive.refused(&["send", &drive.named("a"), "--since", "b", "--output", "x"], "an earlier one");
    drive.refused(&["send", &text(drive.path()), "--output", "x"], "PATH@NAME");
    drop(server);
    writing.wait().unwrap();
    drive.ok(&["check", &text(drive.path())]);
}

#[test]
fn a_snapshot_stays_while_a_server_sends_it() {
    let Some(sender) = Sender::new() else { return };
    let drive = &sender.drive;
    let whole = fs::read(sender.transfer("a", None)).unwrap().len() as u64;
    let server = drive.serve_with_control(&[]);
    let delete = ["snapshot", "delete", &drive.named("a")];
    let (one, mut other) = (sender.begin("a"), sender.begin("b"));
    drive.refused(&["send", &drive.named("b"), "--output", "x"], "2 snapshots of the drive are");
    drive.refused(&delete, "being read");
    assert_eq!(end(one), (whole, Some(0), drive_sent(&sender, whole)));
    // A killed client no longer holds anything.
    other.kill().unwrap();
    other.wait().unwrap();
    wait_until("both can be deleted", || {
        ["a", "b"].iter().all(|name| {
            let deleted = drive.pumice(&["snapshot", "delete", &drive.named(name)]);
            deleted.code == Some(0) || deleted.stderr.contains("no snapshot named")
        })
    });
    server.stop();
}

/// Returns the line of `send` about the disk of snapshot a.
fn drive_sent(sender: &Sender, transfer_bytes: u64) -> String {
    let [disk, transfer] =
        [DISK_BYTES as u64, transfer_bytes].map(pumice_drive::base::units::format_size);
    format!("pumice: sent {}: {disk} of the disk in {transfer}\n", sender.drive.named("a"))
}

#[test]
fn a_server_ends_in_time_while_it_sends() {
    let Some(sender) = Sender::new() else { return };
    let drive = &sender.drive;
    let whole = fs::read(sender.transfer("a", None)).unwrap().len() as u64;
    for is_killed in [false, true] {
        let server = drive.serve_with_control(&[]);
        // The reader takes no more data for now.
        let sending = sender.begin("a");
        if is_killed {
            server.kill();
        } else {
            server.stop();
        }
        let (arrived, code, said) = end(sending);
        assert!(arrived < whole, "{arrived} of {whole}");
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains("ended before the transfer"), "{said}");
    }
    drive.ok(&["check", &text(drive.path())]);
}

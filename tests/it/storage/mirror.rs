//! Goal: a drive on two files or devices survives the loss of one of them: deleted, damaged or
//! replaced, while it is served, and no wrong command changes it. Method: the built program with
//! qemu-io as its client; loop devices where the machine has them.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::harness::{Drive, LoopDevice, PUMICE, Server, counter, run_ok, stand_in, tool};
use crate::program::bad_input::refused;

const NBDCOPY: &str = "nbdcopy";

/// A mirror of two files.
struct Pair {
    drive: Drive,
    other: PathBuf,
    qemu_io: PathBuf,
}

impl Pair {
    fn create() -> Option<Self> {
        let qemu_io = clients()?;
        let drive = Drive::absent();
        let other = drive.beside("other");
        let pair = Self { drive, other, qemu_io };
        let (one, other) = (pair.one(), pair.other());
        pair.drive.ok(&["create", &one, &other, "--mirror", "--size=32M", "--segment=4M"]);
        Some(pair)
    }

    fn one(&self) -> String {
        text(self.drive.path())
    }

    fn other(&self) -> String {
        text(&self.other)
    }

    fn io(&self, server: &Server, commands: &[&str]) {
        let mut command = Command::new(&self.qemu_io);
        let commands = commands.iter().flat_map(|text| ["-c", text]);
        command.args(["-f", "raw"]).args(commands).arg(server.uri());
        let finished = run_ok(&mut command);
        assert!(!finished.stdout.contains("verification failed"), "{finished:#?}");
    }

    /// Fills the disk with noise, which is stored as it is.
    fn put(&self, server: &Server) -> Vec<u8> {
        let noise: Vec<u8> = (0..8u32 << 20)
            .map(|number| (number.wrapping_mul(0x9e37_79b9) >> 13 ^ number >> 3) as u8)
            .collect();
        let file = self.drive.beside("noise");
        fs::write(&file, &noise).expect("a file of noise");
        run_ok(Command::new(NBDCOPY).arg(&file).arg(server.uri()).arg("--flush"));
        noise
    }

    fn assert_has(&self, server: &Server, noise: &[u8]) {
        let file = self.drive.beside("copy");
        let _ = fs::remove_file(&file);
        run_ok(Command::new(NBDCOPY).arg(server.uri()).arg(&file));
        let found = fs::read(&file).expect("the copy");
        assert!(found[..noise.len()] == *noise, "the disk is not what was written");
    }

    /// Returns the members, by path and state.
    fn members(&self) -> Vec<(String, String)> {
        let shown = self.drive.ok(&["device", "list", &self.one(), "--json"]);
        let shown: Value = serde_json::from_str(&shown).expect("JSON");
        let members = shown["members"].as_array().expect("members").iter();
        let word = |member: &Value, key: &str| member[key].as_str().expect("a word").to_owned();
        members.map(|member| (word(member, "path"), word(member, "state"))).collect()
    }

    fn states(&self) -> Vec<String> {
        self.members().into_iter().map(|(_, state)| state).collect()
    }
}

/// Finds the programs that the tests need; returns qemu-io.
fn clients() -> Option<PathBuf> {
    tool(NBDCOPY)?;
    tool("qemu-io").filter(|_| stand_in().is_none())
}

fn text(path: &Path) -> String {
    path.to_str().expect("a plain path").to_owned()
}

/// Overwrites everything from the first segment on with noise.
fn damage(path: &Path) {
    let file = OpenOptions::new().write(true).open(path).expect("a member");
    let bytes = file.metadata().expect("its size").len();
    for offset in ((2 << 20)..bytes).step_by(1 << 20) {
        file.write_all_at(&vec![0x5a; 1 << 20], offset).expect("damage");
    }
}

#[test]
fn a_member_that_is_damaged_is_read_around_and_repaired() {
    let Some(pair) = Pair::create() else { return };
    let server = pair.drive.serve();
    let noise = pair.put(&server);
    pair.io(&server, &["write -P 9 8M 1M", "flush"]);
    server.kill();
    // The member that is named, and the other one.
    for victim in [pair.drive.path(), &pair.other] {
        damage(victim);
        let checked = pair.drive.pumice(&["check", &pair.one()]);
        let named = format!("the copy of a batch on {} is damaged", text(victim));
        assert_eq!(checked.code, Some(1), "{checked:#?}");
        assert!(checked.stdout.contains(&named), "{checked:#?}");
        let server = pair.drive.serve_with_control(&[]);
        pair.assert_has(&server, &noise);
        pair.io(&server, &["read -P 9 8M 1M"]);
        let scrubbed = pair.drive.ok(&["scrub", &pair.one(), "--json"]);
        let scrubbed: Value = serde_json::from_str(&scrubbed).expect("JSON");
        assert_eq!(counter(&scrubbed, "problem_count"), 0, "{scrubbed:#}");
        assert_eq!(pair.states(), ["online", "online"]);
        server.stop();
    }
    // Each member was repaired, and serves alone.
    fs::remove_file(&pair.other).expect("delete a member");
    let server = pair.drive.serve_with(&["--degraded"]);
    pair.assert_has(&server, &noise);
    pair.io(&server, &["read -P 9 8M 1M"]);
    server.stop();
}

#[test]
fn a_member_that_is_deleted_is_replaced_while_clients_work() {
    let Some(pair) = Pair::create() else { return };
    let server = pair.drive.serve();
    let noise = pair.put(&server);
    server.kill();
    fs::remove_file(&pair.other).expect("delete a member");
    // The missing member may have been written to alone, which does not prevent a check of the
    // present member.
    let alone = pair.drive.pumice(&["scrub", &pair.one()]);
    refused(&alone, "a member of the mirror, is missing");
    let checked = pair.drive.pumice(&["check", &pair.one()]);
    assert_eq!(checked.code, Some(0), "{checked:#?}");
    assert!(checked.stderr.contains("is missing"), "{checked:#?}");
    pair.drive.ok(&["device", "fail", &pair.one(), &pair.other()]);
    assert_eq!(pair.states(), ["online", "out"]);
    let server = pair.drive.serve_with_control(&[]);
    let info = pair.drive.info();
    assert_eq!(info["alerts"][0]["kind"], "degraded", "{info:#}");
    let third = pair.drive.beside("third");
    let replace = ["device", "replace", &pair.one(), &pair.other(), &text(&third)];
    let mut command = Command::new(PUMICE);
    command.env("PUMICE_RUNTIME_DIR", pair.drive.beside("pumice")).stdout(Stdio::null());
    let mut replacing = command.args(replace).spawn().expect("the command");
    for round in 8..16 {
        pair.io(&server, &[&format!("write -P {round} {round}M 1M"), "flush"]);
    }
    assert!(replacing.wait().expect("its end").success(), "not replaced");
    let expected = [(pair.one(), "online".to_owned()), (text(&third), "online".to_owned())];
    assert_eq!(pair.members(), expected);
    server.kill();
    // The new member has all data.
    fs::remove_file(pair.drive.path()).expect("delete the old one");
    let third = Drive::absent_at(&third);
    let server = third.serve_with(&["--degraded"]);
    pair.assert_has(&server, &noise);
    for round in 8..16 {
        pair.io(&server, &[&format!("read -P {round} {round}M 1M")]);
    }
    server.stop();
}

/// A member that lacks the newest data is never accepted as complete.
#[test]
fn a_member_that_was_away_is_not_used_again() {
    let Some(pair) = Pair::create() else { return };
    let away = pair.drive.beside("away");
    fs::rename(&pair.other, &away).expect("take a member away");
    let image = text(&pair.drive.beside("image"));
    refused(&pair.drive.pumice(&["extract", &pair.one(), &image]), "is missing");
    pair.drive.ok(&["extract", &pair.one(), &image, "--degraded"]);
    let server = pair.drive.serve_with(&["--degraded"]);
    pair.io(&server, &["write -P 5 0 1M", "flush"]);
    server.kill();
    fs::rename(&away, &pair.other).expect("put it back");
    let server = pair.drive.serve_with_control(&[]);
    assert_eq!(pair.states(), ["online", "out"]);
    assert!(server.stderr().contains("the array is degraded"), "{}", server.stderr());
    for _ in 0..4 {
        pair.io(&server, &["read -P 5 0 1M"]);
    }
    server.stop();
    // Also by the path of that member.
    let other = Drive::absent_at(&pair.other);
    let server = other.serve();
    pair.io(&server, &["read -P 5 0 1M"]);
    server.stop();
    // If the other member was also used alone, neither is right by itself.
    let kept = pair.drive.beside("kept");
    fs::rename(pair.drive.path(), &kept).expect("take the other one away");
    let server = other.serve_with(&["--degraded"]);
    pair.io(&server, &["write -P 6 0 1M", "flush"]);
    server.kill();
    fs::rename(&kept, pair.drive.path()).expect("put it back");
    for (path, byte) in [(pair.one(), 5), (pair.other(), 6)] {
        let (check, extract) = (["check", &path], ["extract", &path, &image, "--force"]);
        for command in [&check[..], &extract] {
            let apart = pair.drive.pumice(command);
            refused(&apart, "were each written without the other");
        }
        // The named member alone, for inspection before the other one is given up.
        pair.drive.ok(&[&check[..], &["--degraded"]].concat());
        pair.drive.ok(&[&extract[..], &["--degraded"]].concat());
        let extracted = fs::read(&image).expect("the image");
        assert!(extracted[..1 << 20].iter().all(|&found| found == byte), "not {byte}");
    }
}

#[test]
fn impossible_mirrors_are_refused() {
    let Some(pair) = Pair::create() else { return };
    let (one, other, new) = (pair.one(), pair.other(), text(&pair.drive.beside("new")));
    let create = |args: &[&str]| pair.drive.pumice(&[&["create"], args].concat());
    refused(&create(&[&new, &other, "--size=32M"]), "need --mirror");
    refused(&create(&[&new, "--mirror", "--size=32M"]), "name two or more");
    refused(&create(&[&new, &new, "--mirror", "--size=32M"]), "are the same");
    refused(&create(&[&new, &other, "--mirror", "--size=32M"]), "use --force");
    assert!(!Path::new(&new).exists(), "an unfinished member is left");
    pair.drive.refused(&["device", "remove", &one, &new], "is not a member");
    pair.drive.refused(&["device", "add", &one, &other], "is a member already");
    fs::write(&new, "precious").expect("a file");
    pair.drive.refused(&["device", "add", &one, &new], "--force");
    assert_eq!(fs::read_to_string(&new).expect("the file"), "precious");
    assert_eq!(pair.states(), ["online", "online"]);
    // A copy of a member in place of the other one.
    fs::remove_file(&other).expect("delete a member");
    fs::copy(&one, &other).expect("copy a member");
    pair.drive.refused(&["scrub", &one], "is missing");
    pair.drive.ok(&["device", "fail", &one, &other]);
    pair.drive.ok(&["device", "remove", &one, &other]);
    pair.drive.refused(&["device", "remove", &one, &one], "the only member that has everything");
    pair.drive.assert_checks();
}

#[test]
fn a_drive_on_one_file_becomes_a_mirror() {
    let Some(qemu_io) = clients() else { return };
    let drive = Drive::create("32M", &["--segment=4M"]);
    let other = drive.beside("other");
    let pair = Pair { drive, other, qemu_io };
    let server = pair.drive.serve_with_control(&[]);
    let noise = pair.put(&server);
    pair.drive.refused(&["device", "add", &pair.one(), &pair.other()], "close it");
    server.stop();
    pair.drive.ok(&["device", "add", &pair.one(), &pair.other()]);
    assert_eq!(pair.states(), ["online", "online"]);
    fs::remove_file(pair.drive.path()).expect("delete the first");
    let other = Drive::absent_at(&pair.other);
    let server = other.serve_with(&["--degraded"]);
    pair.assert_has(&server, &noise);
    server.stop();
}

#[test]
fn a_concatenation_uses_all_of_its_members() {
    let Some(qemu_io) = clients() else { return };
    let drive = Drive::absent();
    let other = drive.beside("other");
    let pair = Pair { drive, other, qemu_io };
    let args = ["create", &pair.one(), &pair.other(), "--concat", "--size=64M", "--segment=4M"];
    pair.drive.ok(&args);
    let server = pair.drive.serve_with_control(&[]);
    let noise = pair.put(&server);
    let file = text(&pair.drive.beside("noise"));
    let write = |number: u32| {
        let offset = number * 8;
        pair.io(&server, &[&format!("write -s {file} {offset}M 8M")]);
    };
    (1..8).for_each(write);
    // Overwritten data stays in the snapshot: more than the first member can hold.
    pair.drive.ok(&["snapshot", "create", &pair.drive.named("a")]);
    (1..4).for_each(write);
    pair.io(&server, &["flush"]);
    server.kill();
    let server = pair.drive.serve();
    pair.assert_has(&server, &[&noise[..]; 8].concat());
    server.kill();
    let used = |path: &Path| std::os::unix::fs::MetadataExt::blocks(&fs::metadata(path).unwrap());
    assert!(used(pair.drive.path()) > 65_536 && used(&pair.other) > 8192, "one is empty");
    pair.drive.ok(&["snapshot", "delete", &pair.drive.named("a")]);
    pair.drive.assert_checks();
    grow_and_shrink(&pair, &[&noise[..]; 8].concat());
    fs::remove_file(&pair.other).expect("delete a member");
    pair.drive.refused(&["check", &pair.one()], "is missing: attach it");
}

/// Adds and removes a third member while the drive is served.
fn grow_and_shrink(pair: &Pair, content: &[u8]) {
    let capacity = || counter(&pair.drive.info(), "capacity_bytes");
    let third = text(&pair.drive.beside("third"));
    let before = capacity();
    let server = pair.drive.serve_with_control(&[]);
    pair.drive.ok(&["device", "add", &pair.one(), &third]);
    assert_eq!(pair.states(), ["online"; 3]);
    assert!(capacity() > before, "the drive did not grow");
    pair.assert_has(&server, content);
    let file = text(&pair.drive.beside("noise"));
    for offset in 0..8 {
        pair.io(&server, &[&format!("write -s {file} {}M 8M", offset * 8)]);
    }
    server.kill();
    let server = pair.drive.serve_with_control(&[]);
    pair.assert_has(&server, content);
    pair.drive.refused(&["device", "remove", &pair.one(), &pair.other()], "only the last member");
    pair.drive.refused(&["device", "replace", &pair.one(), &third, &third], "is not a mirror");
    pair.drive.ok(&["device", "remove", &pair.one(), &third]);
    assert_eq!((capacity(), pair.states().len()), (before, 2));
    fs::remove_file(&third).expect("it is not needed");
    pair.assert_has(&server, content);
    server.kill();
    pair.drive.assert_checks();
}

/// The copying process is killed, and the same command resumes, or another one takes over.
#[test]
fn a_replacement_that_is_killed_is_gone_on_with() {
    let Some(pair) = Pair::create() else { return };
    let server = pair.drive.serve();
    let noise = pair.put(&server);
    server.stop();
    let killed = |new: &Path| {
        let replace = ["device", "replace", &pair.one(), &pair.other(), &text(new)];
        let mut command = Command::new(PUMICE);
        command.env("PUMICE_RUNTIME_DIR", pair.drive.beside("pumice")).stdout(Stdio::null());
        let mut replacing = command.args(replace).spawn().expect("the command");
        let is_listed = || {
            let mut magic = [0; 8];
            let read = fs::File::open(new).and_then(|file| file.read_exact_at(&mut magic, 3 << 19));
            read.is_ok() && magic == *b"PUMICEAR"
        };
        while !is_listed() && replacing.try_wait().expect("its state").is_none() {}
        replacing.kill().expect("end it");
        replacing.wait().expect("its end");
    };
    let (third, fourth) = (pair.drive.beside("third"), pair.drive.beside("fourth"));
    killed(&third);
    killed(&fourth);
    // The replacement may have completed before.
    if pair.members().iter().any(|(path, _)| *path == pair.other()) {
        let replace = ["device", "replace", &pair.one(), &pair.other(), &text(&fourth)];
        pair.drive.ok(&replace);
        assert_eq!(pair.members()[1], (text(&fourth), "online".to_owned()));
    }
    assert_eq!(pair.states(), ["online", "online"]);
    pair.drive.assert_checks();
    let new = pair.members().remove(1).0;
    fs::remove_file(pair.drive.path()).expect("delete the old one");
    let new = Drive::absent_at(Path::new(&new));
    let server = new.serve_with(&["--degraded"]);
    pair.assert_has(&server, &noise);
    server.stop();
}

/// A mirror of devices, one of which is zeroed while it is in use.
#[test]
fn loop_devices_hold_a_mirror() {
    let Some(qemu_io) = clients() else { return };
    let (Some(one), Some(other)) = (LoopDevice::new(96 << 20), LoopDevice::new(100 << 20)) else {
        return;
    };
    let drive = Drive::on(&one);
    let pair = Pair { drive, other: other.path().to_owned(), qemu_io };
    pair.drive.ok(&["create", &pair.one(), &pair.other(), "--mirror", "--segment=4M"]);
    let server = pair.drive.serve();
    let noise = pair.put(&server);
    server.kill();
    let file = OpenOptions::new().write(true).open(&pair.other).expect("the device");
    for offset in (2 << 20..96 << 20).step_by(1 << 20) {
        file.write_all_at(&vec![0; 1 << 20], offset).expect("damage");
    }
    drop(file);
    let server = pair.drive.serve_with_control(&[]);
    pair.assert_has(&server, &noise);
    pair.io(&server, &["write -P 9 24M 1M", "flush"]);
    pair.drive.ok(&["scrub", &pair.one()]);
    server.kill();
    drop(one);
    let other = Drive::absent_at(&pair.other);
    let server = other.serve_with(&["--degraded"]);
    pair.assert_has(&server, &noise);
    pair.io(&server, &["read -P 9 24M 1M"]);
    server.stop();
}

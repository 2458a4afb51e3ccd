//! Goal: a clone is a drive of its own that costs no copy; its origin refuses to lose data that the
//! clone needs, and reports why; without its origin the clone refuses to open, and once flattened
//! it needs none.
//!
//! Method: a template of random bytes is cloned and overwritten; clones are read with `extract`,
//! nbdcopy and the decoder, written with qemu-io through servers, and compared with files.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::harness::{Drive, PUMICE, run_ok, spawn, stand_in, tool, wait_until};
use crate::snapshots::snapshot::{disk, path, same};

/// Returns a drive of 64 MiB with a snapshot `golden` of random bytes, and a file with these bytes.
fn template(seed: u64) -> Option<(Drive, PathBuf)> {
    let (Some(nbdcopy), Some(_), None) = (tool("nbdcopy"), tool("qemu-io"), stand_in()) else {
        return None;
    };
    let drive = Drive::create("24M", &["--segment", "4M", "--capacity", "96M"]);
    let golden = disk(&drive, "golden", seed);
    let server = drive.serve();
    run_ok(Command::new(nbdcopy).arg(&golden).arg(server.uri()));
    server.stop();
    drive.ok(&["snapshot", "create", &drive.named("golden")]);
    Some((drive, golden))
}

/// Creates a clone; returns its path.
fn clone(drive: &Drive, name: &str) -> String {
    let target = drive.beside(name).display().to_string();
    let made = drive.ok(&["clone", &drive.named("golden"), &target]);
    assert!(made.contains("a clone of"), "{made}");
    target
}

/// Runs a script with a server of a drive at `$uri`.
fn served(drive: &Drive, path: &str, script: &str) {
    let socket = format!("{path}.socket");
    let mut command = Command::new(PUMICE);
    command.env("PUMICE_RUNTIME_DIR", drive.beside("pumice")).stderr(Stdio::null());
    command.args(["serve", path, "--unix", &socket, "--export-name", "", "--run", script]);
    run_ok(&mut command);
    let _ = fs::remove_file(socket);
}

/// Writes the same to a clone and to the file with its expected content.
fn write(drive: &Drive, clone: &str, expected: &Path) {
    let script = "qemu-io -f raw -c 'write -P 7 1M 100k' -c 'write -z 5M 64k' -c 'discard 8M 1M' \
                  -c 'write -P 9 20004000 30' -c flush \"$uri\" > /dev/null";
    served(drive, clone, script);
    let file = OpenOptions::new().write(true).open(expected).unwrap();
    file.write_all_at(&[7; 100 << 10], 1 << 20).unwrap();
    file.write_all_at(&[0; 64 << 10], 5 << 20).unwrap();
    file.write_all_at(&[0; 1 << 20], 8 << 20).unwrap();
    file.write_all_at(&[9; 30], 20_004_000).unwrap();
}

fn assert_holds(drive: &Drive, clone: &str, expected: &Path) {
    let image = drive.beside("image");
    drive.ok(&["extract", clone, &image.display().to_string(), "--force"]);
    assert!(same(&image, expected), "{clone}");
    let checked = drive.ok(&["check", clone]);
    assert!(checked.starts_with("0 problems"), "{checked}");
}

/// Like [`assert_holds`], and also asserts that the decoder agrees.
fn assert_decodes(drive: &Drive, clone: &str, expected: &Path) {
    assert_holds(drive, clone, expected);
    let image = drive.beside("image");
    if let Some(python) = tool("python3") {
        let decoder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/decoder.py");
        run_ok(Command::new(python).arg(decoder).arg(clone).arg(&image));
        assert!(same(&image, expected), "{clone}, by the decoder");
    }
}

fn clones(drive: &Drive) -> Vec<String> {
    let list = drive.ok(&["snapshot", "list", &path(drive), "--json"]);
    let list: Value = serde_json::from_str(&list).expect("JSON");
    let clones = list["drives"][0]["snapshots"][0]["clones"].as_array().cloned();
    let clones = clones.unwrap_or_default().into_iter();
    clones.map(|clone| clone["path"].as_str().expect("a path").to_owned()).collect()
}

#[test]
fn clones_of_a_template_are_written_and_flattened() {
    let Some((drive, golden)) = template(51) else { return };
    let [a, b] = ["a", "b"].map(|name| clone(&drive, name));
    let taken = fs::metadata(&a).unwrap().blocks() * 512;
    assert!(taken < 4 << 20, "a clone takes {taken} bytes");
    let info = drive.ok(&["info", &a]);
    assert!(info.contains(&path(&drive)), "{info}");
    let expected = drive.beside("expected");
    fs::copy(&golden, &expected).unwrap();
    write(&drive, &a, &expected);
    assert_decodes(&drive, &a, &expected);
    // The origin stays in use while clones are read and written.
    let second = disk(&drive, "second", 52);
    let server = drive.serve_with_control(&[]);
    run_ok(Command::new("nbdcopy").arg(&second).arg(server.uri()));
    assert_holds(&drive, &b, &golden);
    write(&drive, &b, &golden);
    let image = drive.beside("copied").display().to_string();
    served(&drive, &b, &format!("nbdcopy \"$uri\" {image}"));
    assert!(same(Path::new(&image), &golden));
    drive.refused(&["snapshot", "delete", &drive.named("golden")], &format!("{a}, {b}"));
    let c = clone(&drive, "c");
    server.stop();
    assert_eq!(clones(&drive), [a.clone(), b.clone(), c.clone()]);
    let gone = ["snapshot", "delete", &drive.named("golden"), "--forget", &c];
    drive.refused(&gone, &format!("{a}, {b}"));
    assert_eq!(clones(&drive), [a.clone(), b.clone()]);
    for clone in [&a, &b] {
        let flattened = drive.ok(&["flatten", clone]);
        assert!(flattened.contains("no longer reads from"), "{flattened}");
        drive.refused(&["flatten", clone], "is not a clone");
    }
    assert_eq!(clones(&drive), [""; 0]);
    drive.ok(&["snapshot", "delete", &drive.named("golden")]);
    fs::rename(drive.path(), drive.beside("away")).unwrap();
    assert_holds(&drive, &a, &expected);
    assert_holds(&drive, &b, &golden);
}

#[test]
fn a_clone_without_its_origin_is_not_opened() {
    let Some((drive, golden)) = template(53) else { return };
    let a = clone(&drive, "a");
    let away = drive.beside("folder");
    fs::create_dir(&away).unwrap();
    let moved = away.join("drive");
    fs::rename(drive.path(), &moved).unwrap();
    let before = fs::read(&a).unwrap();
    let image = drive.beside("image").display().to_string();
    for command in
        [&["extract", &a, &image][..], &["serve", &a, "--unix", &image], &["flatten", &a]]
    {
        drive.refused(command, "its origin cannot be opened at");
    }
    let lacks = |args: &[&str], code, mention: &str| {
        let finished = drive.pumice(args);
        assert_eq!(finished.code, Some(code), "{args:?}: {finished:?}");
        assert!(finished.stdout.contains(mention), "{args:?}: {finished:?}");
    };
    lacks(&["info", &a], 0, "its origin cannot be opened at");
    lacks(&["list", &a], 0, "attention");
    lacks(&["check", &a], 1, "1 problem in");
    lacks(&["check", &a, "--json"], 1, "its origin cannot be opened at");
    // Another drive in place of the origin.
    run_ok(Command::new(PUMICE).arg("create").arg(drive.path()).args(["--size", "24M"]));
    lacks(&["check", &a], 1, "it holds drive");
    drive.refused(&["extract", &a, &image], "it holds drive");
    fs::remove_file(drive.path()).unwrap();
    assert!(fs::read(&a).unwrap() == before, "nothing was changed");
    // The clone moves with its origin; then `set` changes the origin's path.
    let beside = away.join("a").display().to_string();
    fs::rename(&a, &beside).unwrap();
    assert_holds(&drive, &beside, &golden);
    fs::rename(&beside, &a).unwrap();
    let origin = format!("origin={}", drive.path().display());
    drive.refused(&["set", &a, &origin], "cannot open");
    drive.ok(&["set", &a, &format!("origin={}", moved.display())]);
    assert_holds(&drive, &a, &golden);
}

#[test]
fn a_clone_is_rebuilt_beside_its_origin() {
    let Some((drive, golden)) = template(62) else { return };
    let made = clone(&drive, "broken");
    write(&drive, &made, &golden);
    let rebuilt = drive.beside("rebuilt").display().to_string();
    let away = drive.beside("away");
    fs::rename(drive.path(), &away).unwrap();
    drive.refused(&["rebuild", &made, &rebuilt], "move it back there");
    assert!(!Path::new(&rebuilt).exists());
    fs::rename(&away, drive.path()).unwrap();
    drive.ok(&["rebuild", &made, &rebuilt]);
    assert_holds(&drive, &rebuilt, &golden);
    assert_eq!(clones(&drive), [made.clone(), rebuilt.clone()]);
    // A clone that could not be created is not listed.
    drive.refused(&["rebuild", &made, &rebuilt], "--force");
    assert_eq!(clones(&drive), [made, rebuilt]);
}

#[test]
fn impossible_clones_are_refused_and_leave_nothing() {
    let Some((drive, _)) = template(54) else { return };
    let target = drive.beside("new").display().to_string();
    let golden = drive.named("golden");
    let taken = drive.beside("taken").display().to_string();
    fs::write(&taken, "data").unwrap();
    let long = drive.beside(&"x".repeat(250)).display().to_string();
    for (args, mention) in [
        (&["clone", &path(&drive), &target][..], "name the snapshot"),
        (&["clone", &drive.named("silver"), &target], "has no snapshot named silver"),
        (&["clone", &golden, &taken], "already exists"),
        (&["clone", &golden, &target, "--size", "23M"], "the disk of the snapshot has"),
        (&["clone", &golden, &target, "--capacity", "4M"], "too small"),
        (&["clone", &golden, &long], "at most 255 bytes"),
        (&["flatten", &path(&drive)], "is not a clone"),
        (&["snapshot", "delete", &golden, "--forget", &target], "has no clone"),
    ] {
        drive.refused(args, mention);
        assert_eq!(clones(&drive), [""; 0], "{args:?}");
        assert!(!Path::new(&target).exists(), "{args:?}");
    }
    let a = clone(&drive, "a");
    drive.refused(&["clone", &golden, &a], "already exists");
}

/// A received clone needs no origin, and later transfers contain only the changes.
#[test]
fn a_clone_is_sent_closed_and_served() {
    let Some((drive, golden)) = template(59) else { return };
    let a = clone(&drive, "a");
    let copy = drive.beside("copy").display().to_string();
    let [first, second] = ["1.transfer", "2.transfer"].map(|name| drive.beside(name));
    let [one, two] = [&first, &second].map(|path| path.display().to_string());
    let expected = drive.beside("expected");
    fs::copy(&golden, &expected).unwrap();
    write(&drive, &a, &expected);
    drive.ok(&["snapshot", "create", &format!("{a}@one")]);
    drive.ok(&["send", &format!("{a}@one"), "--output", &one]);
    drive.ok(&["receive", &copy, "--create", "--input", &one]);
    assert_holds(&drive, &copy, &expected);
    // The clone's server sends while the clone is in use.
    let script = format!(
        "qemu-io -f raw -c 'write -P 5 20M 1M' -c flush \"$uri\" > /dev/null && \
         {PUMICE} snapshot create {a}@two && \
         qemu-io -f raw -c 'write -P 6 20M 1M' -c flush \"$uri\" > /dev/null && \
         {PUMICE} send {a}@two --since one --output {two} && \
         {PUMICE} send {a}@one --output {one} --force"
    );
    let before = fs::read(&first).unwrap();
    served(&drive, &a, &script);
    assert!(fs::read(&first).unwrap() == before, "served or closed, it is one transfer");
    assert!(fs::metadata(&second).unwrap().len() < 1 << 20, "no more than was written");
    drive.ok(&["receive", &copy, "--input", &two]);
    let file = OpenOptions::new().write(true).open(&expected).unwrap();
    file.write_all_at(&[5; 1 << 20], 20 << 20).unwrap();
    fs::remove_file(drive.path()).unwrap();
    assert_decodes(&drive, &copy, &expected);
    // Without its origin, the clone is not sent.
    let send = ["send", &format!("{a}@two"), "--output", &one, "--force"];
    drive.refused(&send, "its origin cannot be opened at");
}

#[test]
fn snapshots_of_a_flattened_clone_are_read_until_they_are_deleted() {
    let Some((drive, golden)) = template(60) else { return };
    let a = clone(&drive, "a");
    let [old, older, new] = ["old", "older", "new"].map(|name| format!("{a}@{name}"));
    drive.ok(&["snapshot", "create", &older]);
    let expected = drive.beside("expected");
    fs::copy(&golden, &expected).unwrap();
    write(&drive, &a, &expected);
    drive.ok(&["snapshot", "create", &old]);
    let script = format!("{PUMICE} flatten {a} > {a}.said");
    served(&drive, &a, &script);
    let said = fs::read_to_string(format!("{a}.said")).unwrap();
    assert!(said.contains("2 snapshots do"), "{said}");
    assert_eq!(clones(&drive), [a.as_str()], "the origin lists it");
    let openings = || drive.info()["epoch"].as_u64().unwrap();
    let before = openings();
    drive.refused(&["snapshot", "delete", &drive.named("golden")], &a);
    assert_eq!(openings(), before + 1, "the drive's own refusal is final");
    assert_decodes(&drive, &a, &expected);
    for (name, disk) in [(&old, &expected), (&older, &golden)] {
        let image = drive.beside("image");
        drive.ok(&["extract", name, &image.display().to_string(), "--force"]);
        assert!(same(&image, disk), "{name}");
    }
    drive.ok(&["snapshot", "create", &new]);
    // Without the origin, the disk and later snapshots remain readable.
    let away = drive.beside("away");
    fs::rename(drive.path(), &away).unwrap();
    let image = drive.beside("image").display().to_string();
    let opened = drive.pumice(&["extract", &a, &image, "--force"]);
    assert!(opened.code == Some(0) && opened.stderr.contains("only snapshots"), "{opened:?}");
    assert!(same(Path::new(&image), &expected));
    drive.ok(&["extract", &new, &image, "--force"]);
    assert!(same(Path::new(&image), &expected));
    drive.refused(&["extract", &older, &image, "--force"], "its origin cannot be opened at");
    fs::rename(&away, drive.path()).unwrap();
    drive.ok(&["snapshot", "delete", &older]);
    assert_eq!(clones(&drive), [a.as_str()], "one is left");
    drive.ok(&["snapshot", "delete", &old]);
    assert_eq!(clones(&drive), [""; 0], "the origin was told");
    drive.ok(&["snapshot", "delete", &drive.named("golden")]);
    fs::remove_file(drive.path()).unwrap();
    assert_decodes(&drive, &a, &expected);
}

/// The origin does not forget a clone in use, and forgets a clone that needs it no longer.
#[test]
fn the_list_of_clones_is_kept_true() {
    let Some((drive, golden)) = template(55) else { return };
    let a = clone(&drive, "a");
    // The origin cannot record the change.
    let server = drive.serve_with_control(&["--read-only"]);
    let flattened = drive.pumice(&["flatten", &a]);
    assert_eq!(flattened.code, Some(0), "{flattened:?}");
    assert!(flattened.stderr.contains("still lists the clone"), "{flattened:?}");
    server.stop();
    assert_eq!(clones(&drive), [a.as_str()]);
    drive.ok(&["snapshot", "delete", &drive.named("golden")]);
    assert_holds(&drive, &a, &golden);
}

/// A flattening killed at any moment is resumed.
#[test]
fn a_flattening_that_is_killed_is_gone_on_with() {
    let Some((drive, golden)) = template(56) else { return };
    let a = clone(&drive, "a");
    let expected = drive.beside("expected");
    fs::copy(&golden, &expected).unwrap();
    write(&drive, &a, &expected);
    // Each run copies further blocks.
    for _ in 0..4 {
        let limit = fs::metadata(&a).unwrap().blocks() * 512 + (8 << 20);
        let mut command = Command::new(PUMICE);
        command.env("PUMICE_RUNTIME_DIR", drive.beside("pumice")).args(["flatten", &a]);
        let mut child = spawn(&mut command);
        let has_grown = || fs::metadata(&a).unwrap().blocks() * 512 > limit;
        wait_until("it has copied some", || has_grown() || child.try_wait().unwrap().is_some());
        let _ = child.kill();
        child.wait().unwrap();
        assert_holds(&drive, &a, &expected);
    }
    let again = drive.pumice(&["flatten", &a]);
    assert!(again.code == Some(0) || again.stderr.contains("is not a clone"), "{again:?}");
    assert_holds(&drive, &a, &expected);
    drive.ok(&["snapshot", "delete", &drive.named("golden")]);
    assert_eq!(clones(&drive), [""; 0]);
}

#[test]
fn a_served_clone_is_flattened_by_its_server() {
    let Some((drive, golden)) = template(57) else { return };
    let a = clone(&drive, "a");
    let image = drive.beside("copied").display().to_string();
    let script = format!(
        "qemu-io -f raw -c 'write -P 7 1M 100k' \"$uri\" > /dev/null && \
         {PUMICE} snapshot delete {0} --forget {a} 2> {image}; {PUMICE} flatten {a} && \
         qemu-io -f raw -c 'write -P 8 3M 100k' -c flush \"$uri\" > /dev/null",
        drive.named("golden")
    );
    served(&drive, &a, &script);
    let said = fs::read_to_string(&image).unwrap();
    assert!(said.contains("is in use, and reads from"), "{said}");
    let file = OpenOptions::new().write(true).open(&golden).unwrap();
    file.write_all_at(&[7; 100 << 10], 1 << 20).unwrap();
    file.write_all_at(&[8; 100 << 10], 3 << 20).unwrap();
    assert_eq!(clones(&drive), [""; 0]);
    drive.ok(&["snapshot", "delete", &drive.named("golden")]);
    fs::remove_file(drive.path()).unwrap();
    assert_holds(&drive, &a, &golden);
}

/// Each clone of a clone reads through all of its ancestors.
#[test]
fn a_chain_of_clones_is_read_up_to_its_limit() {
    let Some((drive, golden)) = template(58) else { return };
    let mut last = drive.named("golden");
    for step in 1..=16 {
        let target = drive.beside(&format!("clone-{step}")).display().to_string();
        drive.ok(&["clone", &last, &target, "--capacity", "64M"]);
        drive.ok(&["snapshot", "create", &format!("{target}@one")]);
        last = format!("{target}@one");
    }
    assert_holds(&drive, last.trim_end_matches("@one"), &golden);
    let target = drive.beside("one-more").display().to_string();
    drive.refused(&["clone", &last, &target], "the chain of clones is too long (at most 16)");
}

//! Goal: an encrypted drive as a user sees it: created, served, checked, extracted and decoded
//! with its key; refused, in one line with the remedy, and unchanged, with another key or none.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::harness::{Drive, PUMICE, Server, pumice, run_ok, stand_in, tool};

const CREATE: [&str; 4] = ["--segment", "4M", "--capacity", "128M"];

/// Writes a key file next to a drive.
fn key(drive: &Drive, name: &str, byte: u8) -> String {
    let path = drive.beside(name);
    fs::write(&path, [byte; 32]).expect("a key file");
    path.display().to_string()
}

fn encrypted(drive: &Drive, flags: &[&str]) -> String {
    let path = drive.path().display().to_string();
    let mut args = vec!["create", &path, "--size", "32M", "--encrypt"];
    args.extend(CREATE);
    args.extend(flags);
    let made = pumice(&args);
    assert_eq!(made.code, Some(0), "{made:#?}");
    let line = made.stdout.lines().find(|line| line.len() == 69 && line.matches('-').count() == 13);
    line.expect("a recovery code").to_owned()
}

/// Writes an image of text, with holes.
fn image(drive: &Drive) -> PathBuf {
    let mut bytes = vec![0; 32 << 20];
    for (index, line) in bytes.chunks_mut(64).enumerate() {
        if index / 4096 % 3 != 1 {
            let text = format!("line {index:08} of a text that must not be read on the medium");
            line[..text.len()].copy_from_slice(text.as_bytes());
        }
    }
    let path = drive.beside("image");
    fs::write(&path, bytes).expect("an image");
    path
}

#[test]
fn a_drive_opens_with_its_keys_only() {
    let (Some(nbdcopy), None) = (tool("nbdcopy"), stand_in()) else { return };
    let drive = Drive::absent();
    let right = key(&drive, "right.key", 1);
    let wrong = key(&drive, "wrong.key", 2);
    let code = encrypted(&drive, &["--key-file", &right]);
    let image = image(&drive);
    let server = drive.serve_with(&["--key-file", &right]);
    run_ok(Command::new(&nbdcopy).arg("--flush").arg(&image).arg(server.uri()));
    server.kill();

    let path = drive.path().display().to_string();
    let before = fs::read(drive.path()).expect("the drive");
    let text = b"that must not be read";
    assert!(!before.windows(text.len()).any(|window| window == text));
    let out = drive.beside("out").display().to_string();
    let info = drive.ok(&["info", &path]);
    assert!(info.contains("encrypted, and no key was given"), "{info}");
    let json = drive.ok(&["info", &path, "--json"]);
    assert!(json.contains("\"locked-1\"") && json.contains("\"recovery-code\""), "{json}");
    for command in [&["check", &path][..], &["extract", &path, &out]] {
        drive.refused(command, "is encrypted: give its key with --key-file");
        let with = [command, &["--key-file", &wrong]].concat();
        drive.refused(&with, "wrong key, or a key of another drive");
        let with = [command, &["--key-command", "false"]].concat();
        drive.refused(&with, "--key-command has failed");
    }
    drive.refused(&["serve", &path, "--unix", "s", "--key-file", &wrong], "wrong key");
    assert!(fs::read(drive.path()).expect("the drive") == before, "nothing was written");

    let code_file = drive.beside("code");
    fs::write(&code_file, format!("{code}\n")).expect("a file");
    let code_file = code_file.display().to_string();
    let command = format!("cat {right}");
    for flags in
        [["--key-file", &right], ["--key-command", &command], ["--recovery-code-file", &code_file]]
    {
        let extract = [&["extract", &path, &out, "--force"][..], &flags].concat();
        drive.ok(&extract);
        assert!(fs::read(&out).expect("out") == fs::read(&image).expect("image"), "{flags:?}");
    }
    let checked = drive.ok(&["check", &path, "--key-file", &right]);
    assert!(checked.starts_with("0 problems"), "{checked}");
    let Some(python) = tool("python3") else { return };
    let decoder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/decoder.py");
    for flags in [["--key-file", &right], ["--recovery-code-file", &code_file]] {
        let mut command = Command::new(&python);
        let decoded = run_ok(command.arg(decoder).args(flags).arg(drive.path()).arg(&out));
        assert!(fs::read(&out).expect("out") == fs::read(&image).expect("image"), "{decoded:#?}");
    }
}

#[test]
fn keys_are_added_removed_and_changed() {
    let drive = Drive::absent();
    let path = drive.path().display().to_string();
    let (one, two) = (key(&drive, "one", 1), key(&drive, "two", 2));
    let phrase = drive.beside("phrase");
    fs::write(&phrase, "a long passphrase\n").expect("a file");
    let phrase = phrase.display().to_string();
    encrypted(&drive, &["--passphrase-file", &phrase]);
    let listed = drive.ok(&["key", "list", &path]);
    assert_eq!(listed, "slot 0: passphrase\nslot 1: recovery-code\n");
    drive.ok(&["key", "add", &path, "--passphrase-file", &phrase, "--new-key-file", &one]);
    drive.ok(&["key", "change", &path, "--key-file", &one, "--new-key-file", &two]);
    drive.refused(&["check", &path, "--key-file", &one], "wrong key");
    drive.ok(&["check", &path, "--key-file", &two]);
    drive.ok(&["key", "remove", &path, "--slot", "0", "--key-file", &two]);
    drive.refused(&["check", &path, "--passphrase-file", &phrase], "wrong passphrase");
    drive.ok(&["key", "remove", &path, "--slot", "1", "--key-file", &two]);
    let last = ["key", "remove", &path, "--slot", "2", "--key-file", &two];
    drive.refused(&last, "this is the only key");
    let renewed = drive.ok(&["key", "add", &path, "--key-file", &two, "--new-recovery-code"]);
    assert!(renewed.contains("slot 0: recovery-code"), "{renewed}");
    let mut by_descriptor = Command::new("sh");
    let script = "\"$0\" key add \"$1\" --key-file \"$2\" --new-passphrase-fd 3 3< \"$3\" && \
                  \"$0\" check \"$1\" --passphrase-fd 4 4< \"$3\"";
    let args = ["-c", script, PUMICE, &path, &two, &phrase];
    run_ok(by_descriptor.args(args).stdin(Stdio::null()));
}

#[test]
fn the_master_key_is_replaced_closed_and_served() {
    let (Some(nbdcopy), None) = (tool("nbdcopy"), stand_in()) else { return };
    let drive = Drive::absent();
    let (right, other) = (key(&drive, "right.key", 1), key(&drive, "other.key", 2));
    let code = encrypted(&drive, &["--key-file", &right]);
    let path = drive.path().display().to_string();
    let image = image(&drive);
    let server = drive.serve_with(&["--key-file", &right]);
    run_ok(Command::new(&nbdcopy).arg("--flush").arg(&image).arg(server.uri()));
    drive.ok(&["snapshot", "create", &format!("{path}@before")]);
    drive.refused(&["rekey", &path], "is encrypted: give its key");
    drive.refused(&["rekey", &path, "--key-file", &other], "wrong key");
    let rekeyed = drive.ok(&["rekey", &path, "--key-file", &right]);
    assert!(rekeyed.contains("new recovery code") && rekeyed.contains("segments moved"));
    let served = drive.beside("served");
    run_ok(Command::new(&nbdcopy).arg(server.uri()).arg(&served));
    assert!(fs::read(&served).expect("served") == fs::read(&image).expect("image"));
    server.stop();
    let superblock = fs::read(drive.path()).expect("the drive")[..4096].to_vec();
    drive.ok(&["key", "add", &path, "--key-file", &right, "--new-key-file", &other]);
    let rekey = ["rekey", &path, "--key-file", &right];
    drive.refused(&rekey, "1 other keys, which could no longer open it");
    drive.ok(&[&rekey[..], &["--drop-other-keys"]].concat());
    drive.refused(&["check", &path, "--key-file", &other], "wrong key");
    // The earlier copy of the superblock has the earlier master key.
    let copy = drive.beside("copy");
    fs::copy(drive.path(), &copy).expect("a copy");
    let file = fs::File::options().write(true).open(&copy).expect("the copy");
    for offset in [0, 1 << 20] {
        file.write_all_at(&superblock, offset).expect("the earlier superblock");
    }
    let checked = pumice(&["check", &copy.display().to_string(), "--key-file", &right]);
    assert_ne!(checked.code, Some(0), "{checked:#?}");
    let code_file = drive.beside("code");
    fs::write(&code_file, code).expect("a file");
    let code_file = code_file.display().to_string();
    drive.refused(&["check", &path, "--recovery-code-file", &code_file], "wrong recovery code");
    drive.ok(&["check", &path, "--key-file", &right]);
    let out = drive.beside("out").display().to_string();
    drive.ok(&["extract", &format!("{path}@before"), &out, "--key-file", &right]);
    assert!(fs::read(&out).expect("out") == fs::read(&image).expect("image"));
    let Some(python) = tool("python3") else { return };
    let decoder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/decoder.py");
    let mut command = Command::new(&python);
    let args = ["--key-file", &right];
    let decoded = run_ok(command.arg(decoder).args(args).arg(drive.path()).arg(&out));
    assert!(fs::read(&out).expect("out") == fs::read(&image).expect("image"), "{decoded:#?}");
}

/// A pipe can be read only once.
#[test]
fn a_passphrase_from_a_pipe_outlives_restarts() {
    let (Some(bash), Some(nbdcopy), None) = (tool("bash"), tool("nbdcopy"), stand_in()) else {
        return;
    };
    let drive = Drive::absent();
    let phrase = drive.beside("phrase");
    fs::write(&phrase, "a long passphrase").expect("a file");
    encrypted(&drive, &["--passphrase-file", &phrase.display().to_string()]);
    let socket = drive.beside("socket");
    let mut command = Command::new(bash);
    command.args(["-c", "exec \"$0\" \"$@\" 3< <(printf 'a long passphrase')", PUMICE, "serve"]);
    command.arg(drive.path()).arg("--unix").arg(&socket).args(["--passphrase-fd", "3"]);
    command.env("PUMICE_RUNTIME_DIR", drive.beside("pumice"));
    let server = Server::start(&mut command, socket);
    let image = image(&drive);
    run_ok(Command::new(&nbdcopy).arg("--flush").arg(&image).arg(server.uri()));
    for _ in 0..3 {
        server.restart();
    }
    let served = drive.beside("served");
    run_ok(Command::new(&nbdcopy).arg(server.uri()).arg(&served));
    assert!(fs::read(&served).expect("served") == fs::read(&image).expect("image"));
    server.stop();
}

#[test]
fn keys_are_given_to_scans_and_receivers() {
    let (Some(nbdcopy), None) = (tool("nbdcopy"), stand_in()) else { return };
    let drive = Drive::absent();
    let right = key(&drive, "key", 1);
    encrypted(&drive, &["--key-file", &right]);
    let image = image(&drive);
    let server = drive.serve_with(&["--key-file", &right]);
    run_ok(Command::new(&nbdcopy).arg("--flush").arg(&image).arg(server.uri()));
    server.stop();
    let path = drive.path().display().to_string();
    let flags = ["--key-file", &right];
    let named = format!("{path}@a");
    drive.ok(&[&["snapshot", "create", &named][..], &flags].concat());
    let (transfer, copy) = (drive.beside("transfer"), drive.beside("copy.pumice"));
    let (transfer, copy) = (transfer.display().to_string(), copy.display().to_string());
    drive.ok(&[&["send", &named, "--output", &transfer][..], &flags].concat());
    let receive = ["receive", &copy, "--create", "--input", &transfer];
    drive.refused(&[&receive[..], &flags].concat(), "a key was given without --encrypt");
    drive.ok(&[&receive[..], &["--encrypt"], &flags].concat());
    drive.refused(&["check", &copy], "is encrypted");
    let out = drive.beside("out").display().to_string();
    drive.ok(&[&["extract", &copy, &out][..], &flags].concat());
    assert!(fs::read(&out).expect("out") == fs::read(&image).expect("image"));
    drive.refused(&["scan", &named, "--all", "--full-speed"], "is encrypted");
    drive.ok(&[&["scan", &named, "--all", "--full-speed"][..], &flags].concat());
}

/// Each member is damaged in turn, then one is gone; the key is replaced in between.
#[test]
fn an_encrypted_mirror_outlives_a_member() {
    let (Some(nbdcopy), None) = (tool("nbdcopy"), stand_in()) else { return };
    let drive = Drive::absent();
    let right = key(&drive, "key", 1);
    let other = drive.beside("other");
    let (path, second) = (drive.path().display().to_string(), other.display().to_string());
    let flags = ["--key-file", &right];
    let create = ["create", &path, &second, "--mirror", "--size", "32M", "--segment", "4M"];
    drive.ok(&[&create[..], &["--encrypt"], &flags].concat());
    let image = image(&drive);
    let server = drive.serve_with(&flags);
    run_ok(Command::new(&nbdcopy).arg("--flush").arg(&image).arg(server.uri()));
    drive.ok(&[&["rekey", &path][..], &flags].concat());
    server.kill();
    for member in [drive.path(), &other] {
        let file = fs::File::options().write(true).open(member).expect("a member");
        let bytes = file.metadata().expect("its size").len();
        for offset in ((2 << 20)..bytes).step_by(1 << 20) {
            file.write_all_at(&vec![0x5a; 1 << 20], offset).expect("damage");
        }
        let server = drive.serve_with(&flags);
        let served = drive.beside("served");
        run_ok(Command::new(&nbdcopy).arg(server.uri()).arg(&served));
        assert!(fs::read(&served).expect("served") == fs::read(&image).expect("image"));
        drive.pumice(&["scrub", &path]);
        drive.ok(&["scrub", &path]);
        server.stop();
    }
    fs::remove_file(&other).expect("the other member");
    drive.refused(&[&["serve", &path, "--unix", "s"][..], &flags].concat(), "--degraded");
    let server = drive.serve_with(&[&["--degraded"][..], &flags].concat());
    let served = drive.beside("served");
    run_ok(Command::new(&nbdcopy).arg(server.uri()).arg(&served));
    assert!(fs::read(&served).expect("served") == fs::read(&image).expect("image"));
    server.stop();
}

#[test]
fn bad_keys_are_refused_before_anything_is_made() {
    let drive = Drive::absent();
    let path = drive.path().display().to_string();
    let short = drive.beside("short");
    fs::write(&short, "short").expect("a file");
    let short = short.display().to_string();
    let create = ["create", &path, "--size", "32M", "--encrypt"];
    drive.refused(&[&create[..], &["--key-file", &short]].concat(), "a key needs 32 random bytes");
    drive.refused(&[&create[..], &["--key-file", "missing"]].concat(), "cannot read the key");
    let two = ["--key-file", &short, "--passphrase-file", &short];
    drive.refused(&[&create[..], &two].concat(), "specify one key");
    drive.refused(&create, "a key is needed");
    drive.refused(
        &[&create[..], &["--frame", "chunks", "--passphrase-file", &short]].concat(),
        "solid",
    );
    drive.refused(
        &["create", &path, "--size", "32M", "--key-file", &short],
        "a key was given without --encrypt",
    );
    assert!(!drive.path().exists());
    // A key for a drive without encryption.
    let plain = Drive::create("32M", &CREATE);
    let right = key(&plain, "key", 1);
    let path = plain.path().display().to_string();
    plain.refused(&["check", &path, "--key-file", &right], "is not encrypted, and a key was given");
    plain.refused(&["key", "list", &path], "the drive is not encrypted");
}

#[test]
fn a_drive_without_superblocks_is_rebuilt_with_its_recovery_code() {
    let (Some(nbdcopy), None) = (tool("nbdcopy"), stand_in()) else { return };
    let drive = Drive::absent();
    let right = key(&drive, "key", 1);
    let code = drive.beside("code");
    fs::write(&code, encrypted(&drive, &["--key-file", &right])).expect("a file");
    let code = code.display().to_string();
    let image = image(&drive);
    let server = drive.serve_with(&["--key-file", &right]);
    run_ok(Command::new(&nbdcopy).arg("--flush").arg(&image).arg(server.uri()));
    server.stop();
    let file = fs::File::options().write(true).open(drive.path()).expect("the drive");
    for offset in [0, 1 << 20] {
        file.write_all_at(&[0; 4096], offset).expect("wipe a superblock");
    }
    let path = drive.path().display().to_string();
    let target = drive.beside("target").display().to_string();
    let rebuild = ["rebuild", &path, &target, "--force"];
    drive.refused(&rebuild, "only its recovery code opens it");
    drive.refused(&[&rebuild[..], &["--key-file", &right]].concat(), "only its recovery code");
    drive.ok(&[&rebuild[..], &["--recovery-code-file", &code]].concat());
    let out = drive.beside("out").display().to_string();
    drive.refused(&["extract", &target, &out], "is encrypted");
    drive.ok(&["extract", &target, &out, "--recovery-code-file", &code]);
    assert!(fs::read(&out).expect("out") == fs::read(&image).expect("image"));
}

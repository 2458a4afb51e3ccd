//! Goal: a drive without its server, or without its superblocks, still yields its disk:
//! `extract` as an image, `rebuild` as a new drive; neither changes the drive it reads.
//! Method: drives written by a real client, damaged in their files, compared as images.

use std::fs::{self, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{
    COMMAND_LIMIT, Drive, Finished, PUMICE, pumice, run, spawn, tool, wait, wait_until,
};

/// Bytes of the disk of every drive here.
const SIZE: usize = 64 << 20;

/// Returns a drive of [`SIZE`] with data, text of two kinds, a trimmed range and a fill, and the
/// content of its disk as read from the server; `None` without a client.
fn written(args: &[&str]) -> Option<(Drive, Vec<u8>)> {
    let qemu_io = tool("qemu-io")?;
    let qemu_img = tool("qemu-img")?;
    let drive = Drive::create("64M", args);
    let source = drive.beside("source");
    let text: Vec<u8> = (0..12u32 << 20).map(|at| ((at / 7) ^ (at / 4096)) as u8).collect();
    fs::write(&source, &text).expect("the source");
    let image = drive.beside("expected");
    let io = format!(
        "{io} -f raw -c 'write -s {source} 1M 12M' -c 'write -P 7 3M 40k' \
         -c 'write -s {source} 5M 64k' -c 'discard 8M 1M' -c flush \"$uri\" \
         && {img} convert -f raw -O raw \"$uri\" {image}",
        io = qemu_io.display(),
        img = qemu_img.display(),
        source = source.display(),
        image = image.display(),
    );
    let finished = pumice(&["serve".as_ref(), drive.path(), "--run".as_ref(), io.as_ref()]);
    assert_eq!(finished.code, Some(0), "{finished:#?}");
    let disk = fs::read(&image).expect("the image");
    assert_eq!(disk.len(), SIZE);
    assert!(disk[1 << 20..3 << 20] == text[..2 << 20] && disk[3 << 20] == 7);
    Some((drive, disk))
}

fn two(verb: &str, source: &Path, target: &Path, flags: &[&str]) -> Finished {
    let mut args: Vec<&std::ffi::OsStr> = vec![verb.as_ref(), source.as_ref(), target.as_ref()];
    args.extend(flags.iter().map(AsRef::<std::ffi::OsStr>::as_ref));
    pumice(&args)
}

/// Returns the image that `pumice extract` makes of a drive, which must be whole.
fn extracted(path: &Path, drive: &Drive) -> Vec<u8> {
    let image = drive.beside("image");
    let finished = two("extract", path, &image, &["--force"]);
    assert_eq!(finished.code, Some(0), "{finished:#?}");
    fs::read(image).expect("the image")
}

fn overwrite(drive: &Drive, offset: u64, bytes: &[u8]) {
    let file = OpenOptions::new().write(true).open(drive.path()).expect("the drive's file");
    file.write_all_at(bytes, offset).expect("damage the drive");
}

#[test]
fn an_image_is_the_disk_and_as_sparse() {
    let Some((drive, disk)) = written(&[]) else { return };
    let before = fs::read(drive.path()).unwrap();
    assert!(extracted(drive.path(), &drive) == disk);
    let image = fs::metadata(drive.beside("image")).unwrap();
    assert_eq!(image.mode() & 0o7177, 0, "other users can read the image");
    let allocated = image.blocks() * 512;
    assert!(allocated < 16 << 20, "{allocated} bytes: holes were written");
    assert!(before == fs::read(drive.path()).unwrap(), "the drive was changed");
    // Extracts as a stream, which need not be read to its end.
    let path = drive.path().display();
    let stream = drive.beside("stream");
    let command = format!(
        "{pumice} extract {path} - > {} && {pumice} extract {path} - | head -c 1 > /dev/null",
        stream.display(),
        pumice = crate::harness::PUMICE
    );
    let mut shell = std::process::Command::new("sh");
    crate::harness::run_ok(shell.args(["-c", &command]));
    assert!(fs::read(stream).unwrap() == disk);
}

/// The pipe's buffer is smaller than the disk, so that the program is interrupted in the middle of
/// its work.
#[test]
fn an_interrupted_extraction_says_so() {
    let Some((drive, disk)) = written(&[]) else { return };
    let mut command = Command::new(crate::harness::PUMICE);
    command.arg("extract").arg(drive.path()).arg("-").stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().expect("stdout is piped");
    let mut image = vec![0];
    stdout.read_exact(&mut image).unwrap();
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    stdout.read_to_end(&mut image).unwrap();
    let finished = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&finished.stderr);
    assert_eq!(finished.status.code(), Some(130), "{said}");
    assert!(said.contains("interrupted: the image - is incomplete"), "{said}");
    assert!(image.len() < disk.len() && image == disk[..image.len()]);
}

/// An image or a transfer has its final name only when it is whole, however its creation ends.
#[test]
fn incomplete_files_have_another_name() {
    let Some((drive, disk)) = written(&[]) else { return };
    let snapshot = drive.named("a");
    drive.ok(&["snapshot", "create", &snapshot]);
    let target = drive.beside("whole");
    let part = drive.beside("whole.part");
    let path = drive.path().display().to_string();
    let wanted = target.display().to_string();
    let commands = [vec!["extract", &path, &wanted], vec!["send", &snapshot, "--output", &wanted]];
    for command in commands {
        // A file that grows beyond 32 KiB ends the process.
        let mut limited = Command::new("sh");
        let script = "ulimit -c 0; ulimit -f 64; exec \"$0\" \"$@\"";
        limited.args(["-c", script, PUMICE]).args(&command);
        assert_ne!(run(&mut limited, COMMAND_LIMIT).code, Some(0));
        assert!(part.exists() && !target.exists());
        drive.refused(&command, "whole.part exists: use --force");
        drive.ok(&[&command[..], &["--force"]].concat());
        assert!(!part.exists());
        if command[0] == "extract" {
            assert!(fs::read(&target).unwrap() == disk);
        }
        fs::remove_file(&target).unwrap();
    }
}

/// Returns whether a process catches SIGINT yet.
fn catches_interrupts(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a child's status");
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).expect("a mask");
    let caught = u64::from_str_radix(caught.trim(), 16).expect("a mask in hexadecimal");
    caught & 1 << (Signal::INT.as_raw() - 1) != 0
}

/// Rebuilds from a source that takes far longer to read than a test, and interrupts the process
/// once `is_time` returns true.
fn interrupted_rebuild(source: &Path, target: &Path, is_time: impl Fn(u32) -> bool) {
    let mut command = Command::new(PUMICE);
    command.arg("rebuild").args([source, target]).args(["--capacity", "1G"]);
    let mut child = spawn(&mut command);
    wait_until("the rebuild is under way", || is_time(child.id()));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let status = wait(&mut child, COMMAND_LIMIT).expect("an interrupted rebuild that ends");
    let mut said = String::new();
    child.stderr.take().expect("stderr is piped").read_to_string(&mut said).unwrap();
    assert_eq!(status.code(), Some(130), "{said}");
    let expected = format!("interrupted: the new drive {} is incomplete", target.display());
    assert!(said.contains(&expected) && said.contains("--force"), "{said}");
}

/// Asserts that every command that opens a drive refuses the target of an incomplete rebuild, with
/// the reason.
fn assert_incomplete(target: &Path, drive: &Drive) {
    let image = drive.beside("partial");
    for finished in [
        pumice(&["check".as_ref(), target.as_os_str()]),
        pumice(&["info".as_ref(), target.as_os_str()]),
        pumice(&["serve".as_ref(), target.as_os_str(), "--run".as_ref(), "true".as_ref()]),
        two("extract", target, &image, &["--force"]),
        two("rebuild", target, &drive.beside("another"), &[]),
    ] {
        assert_eq!(finished.code, Some(2), "{finished:#?}");
        assert!(finished.stderr.contains("run the rebuild again; use --force"), "{finished:#?}");
    }
}

/// A killed rebuild leaves nothing that looks complete, and it can be repeated onto its incomplete
/// target.
#[test]
fn a_killed_rebuild_leaves_a_target_that_is_refused() {
    let Some((drive, disk)) = written(&[]) else { return };
    let target = drive.beside("rebuilt");
    let mut incomplete = 0;
    for round in 0..12u64 {
        let _ = fs::remove_file(&target);
        let mut command = Command::new(PUMICE);
        command.arg("rebuild").args([drive.path(), &target]);
        let mut child = spawn(&mut command);
        let is_begun = || {
            let file = fs::File::open(&target);
            let mut magic = [0; 8];
            file.and_then(|file| file.read_exact_at(&mut magic, 1 << 20)).is_ok()
                && magic == *b"PUMICESB"
        };
        wait_until("the rebuild has begun", is_begun);
        // The rebuild may end before.
        let _ = wait(&mut child, Duration::from_millis(round * round));
        let _ = child.kill();
        child.wait().unwrap();
        let checked = pumice(&["check".as_ref(), target.as_os_str()]);
        if checked.code == Some(0) {
            assert!(extracted(&target, &drive) == disk, "round {round}");
        } else {
            assert_incomplete(&target, &drive);
            incomplete += 1;
        }
    }
    assert!(incomplete > 0, "too tame: every rebuild ended before it was killed");
    let flags = ["--force", "--overwrite-drive"];
    let is_whole = pumice(&["check".as_ref(), target.as_os_str()]).code == Some(0);
    let finished = two("rebuild", drive.path(), &target, &flags[..1 + usize::from(is_whole)]);
    assert_eq!(finished.code, Some(0), "{finished:#?}");
    assert!(extracted(&target, &drive) == disk);
}

/// The remaining data of a drive is extracted and rebuilt.
#[test]
fn a_drive_that_was_cut_short_is_rescued() {
    let Some((drive, disk)) = written(&[]) else { return };
    let file = OpenOptions::new().write(true).open(drive.path()).unwrap();
    file.set_len(file.metadata().unwrap().len() - 4096).unwrap();
    drop(file);
    for verb in ["check", "info"] {
        let refused = pumice(&[verb.as_ref(), drive.path().as_os_str()]);
        let names = ["too small", "an extract copies", "a rebuild"];
        let names_them = names.iter().all(|name| refused.stderr.contains(name));
        assert!(refused.code == Some(2) && names_them, "{refused:#?}");
    }
    assert!(extracted(drive.path(), &drive) == disk);
    let target = drive.beside("rebuilt");
    let finished = two("rebuild", drive.path(), &target, &[]);
    assert_eq!(finished.code, Some(0), "{finished:#?}");
    assert!(extracted(&target, &drive) == disk);
    // Only superblocks are left.
    let file = OpenOptions::new().write(true).open(drive.path()).unwrap();
    file.set_len((2 << 20) + 8192).unwrap();
    drop(file);
    let nothing = two("rebuild", drive.path(), &drive.beside("nothing"), &[]);
    assert!(nothing.code == Some(1), "{nothing:#?}");
}

/// No message leads a user to overwrite a drive that can be recovered.
#[test]
fn a_drive_without_superblocks_is_not_overwritten() {
    let Some((drive, disk)) = written(&[]) else { return };
    for slot in 0..2 {
        overwrite(&drive, slot << 20, &[0; 4096]);
    }
    let path = drive.path().to_str().unwrap();
    for args in [
        &["info", path][..],
        &["check", path],
        &["serve", path, "--run", "true"],
        &["extract", path, "-"],
    ] {
        let refused = pumice(args);
        assert_eq!(refused.code, Some(2), "{refused:#?}");
        let hint = format!("pumice rebuild {path} NEW");
        assert!(refused.stderr.contains(&hint), "{refused:#?}");
        assert!(!refused.stderr.contains("pumice create"), "{refused:#?}");
    }
    let create = ["create", path, "--size", "64M", "--force"];
    let refused = pumice(&create);
    assert!(
        refused.code == Some(2) && refused.stderr.contains("--overwrite-drive"),
        "{refused:#?}"
    );
    let target = drive.beside("rebuilt");
    assert_eq!(two("rebuild", drive.path(), &target, &[]).code, Some(0));
    assert!(extracted(&target, &drive) == disk);
    let refused = two("rebuild", drive.path(), &target, &["--force"]);
    assert!(
        refused.code == Some(2) && refused.stderr.contains("--overwrite-drive"),
        "{refused:#?}"
    );
    assert!(extracted(&target, &drive) == disk);
    let overwritten = pumice(&[&create[..], &["--overwrite-drive"]].concat());
    assert_eq!(overwritten.code, Some(0), "{overwritten:#?}");
    let blank = drive.beside("blank");
    fs::write(&blank, [0; 4 << 10]).unwrap();
    let refused = pumice(&["info".as_ref(), blank.as_os_str()]);
    assert!(refused.stderr.contains("pumice create"), "{refused:#?}");
}

/// A terabyte of zeroes takes minutes to search for segments.
#[test]
fn an_interrupted_search_for_a_drive_is_reported() {
    let drive = Drive::absent();
    let file = fs::File::create(drive.path()).unwrap();
    file.set_len(1 << 40).unwrap();
    let target = drive.beside("rebuilt");
    interrupted_rebuild(drive.path(), &target, catches_interrupts);
    assert!(!target.exists());
}

/// The same with superblocks that name a log: the new drive has been begun by then.
#[test]
fn an_interrupted_rebuild_says_so() {
    let Some((drive, _)) = written(&["--capacity", "1T"]) else { return };
    let source = drive.beside("superblocks");
    let file = fs::File::create(&source).unwrap();
    file.set_len(fs::metadata(drive.path()).unwrap().len()).unwrap();
    let whole = fs::File::open(drive.path()).unwrap();
    for slot in 0..2 {
        let mut superblock = [0; 4096];
        whole.read_exact_at(&mut superblock, slot << 20).unwrap();
        file.write_all_at(&superblock, slot << 20).unwrap();
    }
    let target = drive.beside("rebuilt");
    interrupted_rebuild(&source, &target, |_| target.exists());
    let checked = pumice(&["check".as_ref(), target.as_os_str()]);
    assert_eq!(checked.code, Some(2), "{checked:#?}");
}

#[test]
fn an_image_is_not_overwritten_and_never_the_drive() {
    let drive = Drive::create("64M", &[]);
    let before = fs::read(drive.path()).unwrap();
    let image = drive.beside("image");
    fs::write(&image, b"a precious thesis").unwrap();
    for verb in ["extract", "rebuild"] {
        let refused = two(verb, drive.path(), &image, &[]);
        assert!(refused.code == Some(2) && refused.stderr.contains("--force"), "{refused:#?}");
        assert_eq!(fs::read(&image).unwrap(), b"a precious thesis");
        let refused = two(verb, drive.path(), drive.path(), &["--force"]);
        assert_eq!(refused.code, Some(2), "{refused:#?}");
        assert!(before == fs::read(drive.path()).unwrap(), "{verb} changed the drive");
    }
}

#[test]
fn a_damaged_frame_is_left_out_of_the_image_and_listed() {
    let Some((drive, disk)) = written(&["--codec", "none"]) else { return };
    let bytes = fs::read(drive.path()).unwrap();
    // LBA 1280 + 40 has not been overwritten.
    let at = 1320 * 4096;
    let block = &disk[at..at + 4096];
    let place = bytes.windows(4096).position(|window| window == block).expect("the block's place");
    // Damages two pages of its frame: parity restores only one.
    overwrite(&drive, place as u64, b"?");
    overwrite(&drive, place as u64 + 4096, b"?");
    for verb in ["extract", "rebuild"] {
        let target = drive.beside(verb);
        let finished = two(verb, drive.path(), &target, &["--json"]);
        assert_eq!(finished.code, Some(1), "{finished:#?}");
        let json: serde_json::Value = serde_json::from_str(&finished.stdout).unwrap();
        assert_eq!(json["lost_blocks"], 8, "{json:#}");
        let image =
            if verb == "extract" { fs::read(&target).unwrap() } else { extracted(&target, &drive) };
        let mut expected = disk.clone();
        expected[at..at + 8 * 4096].fill(0);
        assert!(image == expected, "{verb}");
    }
}

#[test]
fn a_drive_without_superblocks_is_refused_and_rebuilt() {
    let Some((drive, disk)) = written(&[]) else { return };
    for slot in 0..2 {
        overwrite(&drive, (slot << 20) + 100, &[0xff; 64]);
    }
    let before = fs::read(drive.path()).unwrap();
    let refused = pumice(&["serve".as_ref(), drive.path(), "--run".as_ref(), "true".as_ref()]);
    assert!(refused.code == Some(2), "{refused:#?}");
    assert!(refused.stderr.contains("with a rebuild"), "{refused:#?}");
    for slot in 0..2 {
        overwrite(&drive, slot << 20, &[0; 4096]);
    }
    let wiped = fs::read(drive.path()).unwrap();
    assert!(before != wiped);
    let target = drive.beside("rebuilt");
    let finished = two("rebuild", drive.path(), &target, &["--json"]);
    assert_eq!(finished.code, Some(0), "{finished:#?}");
    let json: serde_json::Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!((&json["from"], &json["problem_count"]), (&"checkpoint".into(), &0.into()));
    assert!(wiped == fs::read(drive.path()).unwrap(), "the source was changed");
    assert!(extracted(&target, &drive) == disk);
    let checked = pumice(&["check".as_ref(), target.as_os_str()]);
    assert_eq!(checked.code, Some(0), "{checked:#?}");
    let wrong = two("rebuild", &drive.beside("source"), &drive.beside("nothing"), &[]);
    assert!(wrong.code == Some(2) && wrong.stderr.contains("nothing to rebuild"), "{wrong:#?}");
    assert!(!drive.beside("nothing").exists());
}

//! Goal: a drive in a sparse file respects the free space of its file system: it reuses dead space,
//! refuses a write only when no space can be reclaimed, still returns space, loses nothing, and
//! continues once there is space again.
//!
//! Method: a drive on a tmpfs that another file fills, written through qemu-io. Mounting needs
//! root; without it the test is skipped.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::harness::{
    COMMAND_LIMIT, Drive, Finished, PUMICE, Server, noise, run, run_ok, skip, stand_in, tool,
    wait_until,
};

/// Unmounts when dropped.
struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        run(Command::new("umount").arg(self.0), COMMAND_LIMIT);
    }
}

fn qemu_io(program: &Path, server: &Server, commands: &[&str]) -> Finished {
    let mut command = Command::new(program);
    command.args(["-f", "raw"]).args(commands.iter().flat_map(|text| ["-c", text]));
    run(command.arg(server.uri()), COMMAND_LIMIT)
}

fn pumice(drive: &Drive, args: &[&str]) -> Finished {
    let mut command = Command::new(PUMICE);
    command.env("PUMICE_RUNTIME_DIR", drive.beside("pumice"));
    run(command.args(args), COMMAND_LIMIT)
}

#[test]
fn a_thin_drive_obeys_the_space_of_its_file_system() {
    let (Some(program), Some(mount)) = (tool("qemu-io"), tool("mount")) else { return };
    if stand_in().is_some() {
        return;
    }
    let drive = Drive::in_folder("small");
    let small = drive.path().parent().expect("a folder");
    let mut command = Command::new(&mount);
    command.args(["-t", "tmpfs", "-o", "size=64M", "pumice"]).arg(small);
    if run(&mut command, COMMAND_LIMIT).code != Some(0) {
        skip::<()>("mounting is not allowed");
        return;
    }
    let mounted = Mounted(small);
    let create = ["create", "--size", "256M", "--segment", "4M"];
    run_ok(Command::new(PUMICE).args(create).arg(drive.path()));
    let [old, new] = [1, 2].map(|seed| noise(seed, 16 << 20));
    let [old_file, new_file] = ["old", "new"].map(|name| drive.beside(name));
    fs::write(&old_file, &old).expect("a file");
    fs::write(&new_file, &new).expect("a file");
    let [old_write, new_write] =
        [&old_file, &new_file].map(|file| format!("write -s {} 0 16M", file.display()));

    let server = drive.serve_with_control(&[]);
    let first = qemu_io(&program, &server, &[&old_write, "flush"]);
    assert_eq!(first.code, Some(0), "{}", first.stderr);
    // Other files take the remaining space.
    let filler = small.join("filler");
    let _ = fs::write(&filler, vec![1; 64 << 20]);
    for round in 0..8 {
        let write = if round % 2 == 0 { &new_write } else { &old_write };
        let overwritten = qemu_io(&program, &server, &[write, "flush"]);
        assert_eq!(overwritten.code, Some(0), "{round}: {}", overwritten.stderr);
    }
    let refused = qemu_io(&program, &server, &[&old_write.replace(" 0 16M", " 32M 16M"), "flush"]);
    let said = format!("{}{}", refused.stdout, refused.stderr);
    assert!(said.contains("No space left on device"), "{said}\n{}", server.stderr());
    let info = drive.info();
    assert!(info["low_room_bytes"].is_u64() && info["medium_full"] == false, "{info}");
    let path = drive.path().to_str().expect("a name in UTF-8");
    let taken = pumice(&drive, &["snapshot", "create", &format!("{path}@now")]);
    assert!(taken.stderr.contains("there is no space for a snapshot"), "{taken:?}");
    let trimmed = qemu_io(&program, &server, &["discard 32M 16M", "flush", "read 0 16M"]);
    assert_eq!(trimmed.code, Some(0), "{}", trimmed.stderr);
    server.stop();

    // The closed drive also compacts; where garbage collection has left nothing to reclaim, it
    // reports that.
    let compacted = pumice(&drive, &["compact", path]);
    let is_done =
        compacted.code == Some(0) || compacted.stdout.contains("no more can be freed now");
    assert!(is_done, "{compacted:?}");
    let server = drive.serve_with_control(&[]);
    let overwritten = qemu_io(&program, &server, &[&new_write, "flush"]);
    assert_eq!(overwritten.code, Some(0), "{}", overwritten.stderr);
    fs::remove_file(filler).expect("removed");
    run_ok(Command::new(&mount).args(["-o", "remount,size=160M"]).arg(small));
    let room = || drive.info()["low_room_bytes"].as_u64().unwrap_or(u64::MAX);
    wait_until("the drive sees the room", || room() > 16 << 20);
    let more = qemu_io(&program, &server, &[&new_write.replace(" 0 16M", " 32M 16M"), "flush"]);
    assert_eq!(more.code, Some(0), "{}\n{}", more.stderr, server.stderr());
    server.stop();
    drive.assert_checks();
    let disk = drive.beside("disk");
    run_ok(Command::new(PUMICE).arg("extract").arg(drive.path()).arg(&disk));
    let disk = fs::read(disk).expect("a file");
    assert!(disk[..16 << 20] == new, "what was written last is gone");
    assert!(disk[32 << 20..48 << 20] == new, "what was written once there was room is gone");
    drop(mounted);
}

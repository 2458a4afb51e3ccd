//! Goal: a drive in a sparse file whose file system is full loses nothing, refuses writes with
//! ENOSPC, and continues when there is space again.
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

fn write(qemu_io: &Path, server: &Server, file: &Path, offset: &str, len: &str) -> Finished {
    let write = format!("write -s {} {offset} {len}", file.display());
    let mut command = Command::new(qemu_io);
    command.args(["-f", "raw", "-c", &write, "-c", "flush"]).arg(server.uri());
    run(&mut command, COMMAND_LIMIT)
}

#[test]
fn a_drive_waits_for_a_full_file_system() {
    let (Some(qemu_io), Some(mount)) = (tool("qemu-io"), tool("mount")) else { return };
    if stand_in().is_some() {
        return;
    }
    let drive = Drive::in_folder("small");
    let small = drive.path().parent().expect("a folder");
    let mut command = Command::new(mount);
    command.args(["-t", "tmpfs", "-o", "size=64M", "pumice"]).arg(small);
    if run(&mut command, COMMAND_LIMIT).code != Some(0) {
        skip::<()>("mounting is not allowed");
        return;
    }
    let mounted = Mounted(small);
    let create = ["create", "--size", "256M", "--segment", "4M"];
    run_ok(Command::new(PUMICE).args(create).arg(drive.path()));
    let filler = small.join("filler");
    fs::write(&filler, vec![1; 44 << 20]).expect("a file");
    let image = drive.beside("noise");
    let noise = noise(1, 24 << 20);
    fs::write(&image, &noise).expect("a file");

    let server = drive.serve_with_control(&[]);
    let first = write(&qemu_io, &server, &image, "0", "4M");
    assert_eq!(first.code, Some(0), "{}", first.stderr);
    let refused = write(&qemu_io, &server, &image, "8M", "24M");
    let said = format!("{}{}", refused.stdout, refused.stderr);
    assert!(said.contains("No space left on device"), "{said}\n{}", server.stderr());
    assert_eq!(drive.info()["medium_full"], true);
    let read = Command::new(&qemu_io)
        .args(["-r", "-f", "raw", "-c", "read 0 4M"])
        .arg(server.uri())
        .output();
    assert!(read.expect("qemu-io").status.success());

    fs::remove_file(filler).expect("removed");
    wait_until("the drive continues", || drive.info()["medium_full"] == false);
    let written = write(&qemu_io, &server, &image, "8M", "24M");
    assert_eq!(written.code, Some(0), "{}\n{}", written.stderr, server.stderr());
    assert!(!server.stderr().contains("takes no more writes"), "{}", server.stderr());
    server.stop();
    drive.assert_checks();
    let disk = drive.beside("disk");
    run_ok(Command::new(PUMICE).arg("extract").arg(drive.path()).arg(&disk));
    let disk = fs::read(disk).expect("a file");
    assert!(disk[..4 << 20] == noise[..4 << 20], "what was flushed before is gone");
    assert!(disk[8 << 20..32 << 20] == noise, "what was flushed after is gone");
    drop(mounted);
}

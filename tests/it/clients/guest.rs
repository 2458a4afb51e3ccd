//! Goal: features that this machine's kernel lacks, or has in another version, work: the kernel's
//! own NBD client stays through restarts; `pumice attach` works on Debian's kernel, by hand, by
//! fstab and by its unit; its driver works on a vhost-user disk.
//! Method: Debian's kernel in a guest under QEMU, which `tests/guest/run.sh` boots.

use std::env;
#[cfg(feature = "attach")]
use std::fs::File;
use std::path::Path;
use std::process::Command;

#[cfg(feature = "attach")]
use crate::harness::Server;
#[cfg(feature = "vhost")]
use crate::harness::run_ok;
use crate::harness::{Drive, PUMICE, Talker, skip, stand_in, tool, wait_until};

/// Returns a guest that runs a script of `tests/guest`, or reports why the test is skipped.
fn guest(script: &str) -> Option<Command> {
    if env::var_os("PUMICE_GUEST_KERNEL").is_none() {
        return skip("PUMICE_GUEST_KERNEL names no kernel: see tests/guest/run.sh");
    }
    for name in ["qemu-system-x86_64", "busybox", "cpio", "depmod", "nbd-client", "strip"] {
        tool(name)?;
    }
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tests/guest");
    let mut command = Command::new(folder.join("run.sh"));
    command.arg(folder.join(script)).arg(PUMICE);
    Some(command)
}

/// Waits until the guest has printed this, and no failure.
fn hear(guest: &mut Talker, word: &str) {
    loop {
        let said = guest.next_line();
        assert!(!said.starts_with("failed"), "{said}\n{}", guest.end().1);
        if said == word {
            return;
        }
    }
}

#[test]
fn the_kernels_own_client_does_not_notice_restarts() {
    let Some(mut command) = guest("nbd_client.sh") else { return };
    if stand_in().is_some() {
        return;
    }
    let drive = Drive::create("256M", &[]);
    let server = drive.serve_with(&["--listen", "127.0.0.1:0"]);
    let port = || {
        let stderr = server.stderr();
        let port = stderr.split("nbd://127.0.0.1:").nth(1)?.split_whitespace().next()?;
        Some(port.to_owned())
    };
    wait_until("the server has said where it is", || port().is_some());
    let mut guest = Talker::start(command.arg(port().expect("a port")));
    for restarts in 1..=5 {
        hear(&mut guest, &format!("wrote {}", restarts * 6));
        server.restart();
    }
    hear(&mut guest, "good");
    guest.finish();
    assert_eq!(server.stderr().matches("restarted clients=1").count(), 5);
    server.stop();
    drive.assert_checks();
}

#[test]
#[cfg(feature = "vhost")]
fn a_virtual_machine_does_not_notice_restarts_of_its_disk() {
    let Some(mut command) = guest("vhost_user.sh") else { return };
    if stand_in().is_some() {
        return;
    }
    let drive = Drive::create("256M", &[]);
    let socket = drive.beside("vhost");
    let path = socket.to_str().expect("a path in UTF-8");
    let server = drive.serve_with_control(&["--vhost-user", path]);
    wait_until("the server listens", || socket.exists());
    let mut guest = Talker::start(command.arg(path));
    for restarts in 1..=5 {
        hear(&mut guest, &format!("wrote {}", restarts * 6));
        server.hang_up();
        wait_until("the guest continues", || {
            server.stderr().matches("front end connected").count() > restarts
        });
    }
    hear(&mut guest, "resize");
    let mut resize = Command::new(PUMICE);
    resize.env("PUMICE_RUNTIME_DIR", drive.beside("pumice"));
    run_ok(resize.arg("resize").arg(drive.path()).args(["--size", "320M"]));
    hear(&mut guest, "good");
    guest.finish();
    server.stop();
    drive.assert_checks();
}

#[test]
#[cfg(feature = "attach")]
fn a_drive_is_attached_on_debians_kernel() {
    let Some(mut command) = guest("attach.sh") else { return };
    let mut guest = Talker::start(&mut command);
    for word in ["attached", "detached", "killed", "good"] {
        hear(&mut guest, word);
    }
    guest.finish();
}

/// Serves a disk whose write cache is lost with its process: unflushed data is on no medium.
#[cfg(feature = "attach")]
fn disk_with_cache(drive: &Drive, turn: &str) -> Option<Server> {
    let (socket, medium) = (drive.beside(turn), drive.beside("medium"));
    let file = File::options().create(true).append(true).open(&medium).expect("the medium");
    file.set_len(1 << 30).expect("its size");
    let mut command = Command::new(tool("nbdkit")?);
    command.args(["--foreground", "--filter=cache", "--unix"]).arg(&socket);
    command.arg("file").arg(medium).arg("cache=writeback");
    Some(Server::start(&mut command, socket))
}

/// A machine that has a drive in its fstab boots, loses power while it writes, and boots again. The
/// drive is stored on ext4, whose disk loses its cache with the power.
#[test]
#[cfg(feature = "attach")]
fn a_machine_with_a_drive_in_fstab_comes_up_after_a_power_cut() {
    let Some(mut command) = guest("boot.sh") else { return };
    let drive = Drive::absent();
    // Files left by the first boot's QEMU are removed with the drive's folder.
    command.env("TMPDIR", drive.beside(""));
    let Some(disk) = disk_with_cache(&drive, "first") else { return };
    let first = command.arg(disk.uri());
    let mut machine = Talker::start(first);
    hear(&mut machine, "synced");
    hear(&mut machine, "writing");
    disk.kill();
    drop(machine);
    let Some(mut command) = guest("boot.sh") else { return };
    let Some(disk) = disk_with_cache(&drive, "second") else { return };
    let mut machine = Talker::start(command.arg(disk.uri()));
    for word in ["found", "attached", "good"] {
        hear(&mut machine, word);
    }
    machine.finish();
}

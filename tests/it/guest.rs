//! Goal: what this machine's kernel lacks, or has in another version: the kernel's own NBD client
//! stays through restarts; `pumice attach` works on Debian's kernel; its driver works on a
//! vhost-user disk.
//! Method: Debian's kernel in a guest under QEMU, which `tests/guest/run.sh` boots.

use std::env;
use std::path::Path;
use std::process::Command;

#[cfg(feature = "vhost")]
use crate::harness::run_ok;
use crate::harness::{Drive, PUMICE, Talker, skip, stand_in, tool, wait_until};

/// A guest that runs a script of `tests/guest`, or why the test is skipped.
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

/// Waits until the guest has said this, and nothing of a failure.
fn hear(guest: &mut Talker, word: &str) {
    loop {
        let said = guest.next_line();
        assert!(!said.starts_with("failed"), "{said}");
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

//! Goal: no process, mount or loop device of a test outlives a run of the tests that Ctrl-C ends.
//! Method: `tests/run.sh` with a script in place of cargo, which starts processes like tests do,
//! and prints where; then SIGINT.
//!
//! Mounts and loop devices need root: where they are unavailable, only processes are checked.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{Talker, tool, wait_until};

/// Stands in for cargo without nextest. Its tests are a server in a session of its own that ignores
/// SIGINT, a mount, a loop device, and a file. Prints the server's number and the folder.
const CARGO: &str = r#"#!/bin/bash
[ "$1" = test ] || exit 1
trap '' INT
setsid sleep 600 &
echo $!
mkdir "$TMPDIR/mounted" && mount -t tmpfs none "$TMPDIR/mounted" 2> /dev/null
truncate --size 1M "$TMPDIR/backing" && losetup --find "$TMPDIR/backing" 2> /dev/null
echo "$TMPDIR"
wait
"#;

#[test]
fn ctrl_c_leaves_no_server_mount_or_loop_device() {
    let (Some(_), Some(_)) = (tool("bash"), tool("setsid")) else { return };
    let folder = tempfile::tempdir().expect("a directory");
    let cargo = folder.path().join("cargo");
    fs::write(&cargo, CARGO).expect("a script");
    fs::set_permissions(&cargo, fs::Permissions::from_mode(0o755)).expect("an executable");
    let script = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/run.sh"));
    let mut command = Command::new(script);
    // A folder other than that of the run with this test.
    command.env("CARGO", &cargo).env("TMPDIR", folder.path());
    let mut run = Talker::start(&mut command);
    let server = run.next_line();
    let place = run.next_line();
    let mounted = || fs::read_to_string("/proc/self/mounts").expect("mounts").contains(&place);
    let attached = || {
        let devices = fs::read_dir("/sys/block").expect("devices").flatten();
        let backing = devices.map(|it| it.path().join("loop/backing_file"));
        backing.flat_map(fs::read_to_string).any(|file| file.contains(&place))
    };
    let runs = || Path::new("/proc").join(&server).join("exe").exists();
    assert!(runs(), "the server has not started");
    println!("mounted: {}, attached: {}", mounted(), attached());
    let id = Pid::from_raw(run.id().cast_signed()).expect("a process");
    kill_process(id, Signal::INT).expect("SIGINT");
    wait_until("the run ends", || run.has_ended());
    let (status, said) = run.end();
    assert_eq!(status.code(), Some(130), "{said}");
    assert!(!runs() && !mounted() && !attached(), "{said}");
    assert!(!Path::new(&place).exists(), "{said}");
}

//! Goal: `pumice top` shows a served drive on a terminal of any size, ends when it is told to, and
//! leaves the terminal as it was; without a terminal it prints a sample.
//!
//! Method: a terminal made by Python's `pty`, which looks for words and presses keys.

use std::ffi::OsStr;
use std::process::Command;

use serde_json::Value;

use crate::harness::{COMMAND_LIMIT, Drive, PUMICE, fixture, run, run_ok, tool};

/// A command that finds the control socket of the drive's server.
fn beside(drive: &Drive, program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env("XDG_RUNTIME_DIR", drive.path().parent().expect("a directory"));
    command.env("TERM", "xterm-256color");
    command
}

#[test]
fn it_draws_and_ends() {
    let Some(python) = tool("python3") else { return };
    let drive = Drive::create("64M", &[]);
    let server = drive.serve_with_control(&[]);
    for key in ["q", "^C", "TERM"] {
        let mut command = beside(&drive, &python);
        command.arg(fixture("terminal.py")).args([key, PUMICE, "top"]).arg(drive.path());
        let ended = run_ok(command.args(["--interval", "0.2"]));
        assert_eq!(ended.stdout.trim(), "ok", "{key}: {}", ended.stderr);
    }
    server.stop();
}

/// A terminal that is closed must not leave a process behind that reads its end for ever.
#[test]
fn it_ends_with_its_terminal() {
    let Some(python) = tool("python3") else { return };
    let drive = Drive::create("64M", &[]);
    let server = drive.serve_with_control(&[]);
    let script = "
import fcntl, os, pty, struct, subprocess, sys, termios
ours, theirs = pty.openpty()
fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack('HHHH', 40, 120, 0, 0))
child = subprocess.Popen(sys.argv[1:], stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL)
os.close(theirs)
screen = b''
while b'healthy' not in screen:
    screen += os.read(ours, 65536)
os.close(ours)
try:
    child.wait(20)
finally:
    child.kill()
";
    let mut command = beside(&drive, &python);
    command.args(["-c", script, PUMICE, "top"]).arg(drive.path());
    run_ok(command.args(["--interval", "0.2"]));
    server.stop();
}

#[test]
fn a_sample_is_printed_without_a_terminal() {
    let drive = Drive::create("64M", &[]);
    let server = drive.serve_with_control(&[]);
    let args = |more: &[&str]| {
        let mut command = beside(&drive, PUMICE);
        command.arg("top").arg(drive.path()).args(["--interval", "0.1"]).args(more);
        command
    };
    let text = run_ok(&mut args(&["--once"])).stdout;
    for word in ["writes MB/s", "healthy", "space: live", "garbage collection", "p99"] {
        assert!(text.contains(word), "{word} in\n{text}");
    }
    let sample: Value = serde_json::from_str(&run_ok(&mut args(&["--json"])).stdout).expect("JSON");
    assert_eq!(sample[0]["rates"]["requests"], 0.0);
    assert_eq!(sample[0]["snapshot"]["drives"][0]["info"], drive.info());
    let refused = run(&mut args(&[]), COMMAND_LIMIT);
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("--once"), "{}", refused.stderr);
    server.stop();
    let refused = run(&mut args(&["--once"]), COMMAND_LIMIT);
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("nobody serves"), "{}", refused.stderr);
}

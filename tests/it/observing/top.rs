//! Goal: `pumice top` shows a served drive on a terminal of any size, ends on request, and restores
//! the terminal; without a terminal it prints a sample.
//!
//! Method: a terminal made by Python's `pty`, which waits for words and presses keys.

use std::ffi::OsStr;
use std::process::Command;

use serde_json::Value;

use crate::harness::{COMMAND_LIMIT, Drive, PUMICE, fixture, pumice, run, run_ok, tool};
#[cfg(feature = "http")]
use crate::observing::http::serve;

/// Returns a command that finds the control socket of the drive's server.
fn beside(drive: &Drive, program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env("PUMICE_RUNTIME_DIR", drive.path().with_file_name("pumice"));
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

/// A closed terminal must not leave a process that reads its end forever.
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
    for word in ["wr MB/s", "healthy", "space: live", "garbage collection", "p99"] {
        assert!(text.contains(word), "{word} in\n{text}");
    }
    let sample: Value = serde_json::from_str(&run_ok(&mut args(&["--json"])).stdout).expect("JSON");
    assert_eq!(sample[0]["rates"]["requests"], 0.0);
    let mut told = drive.info();
    // Only `pumice info` knows how the drive is in use.
    for key in [
        "schema",
        "process",
        "uris",
        "clients",
        "devices",
        "mountpoint",
        "log",
        "table_sector_bytes",
        "file_bytes",
        "snapshot_list",
    ] {
        told.as_object_mut().expect("an object").remove(key);
    }
    assert_eq!(sample[0]["snapshot"]["drives"][0]["info"], told);
    let refused = run(&mut args(&[]), COMMAND_LIMIT);
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("--once"), "{}", refused.stderr);
    server.stop();
    let refused = run(&mut args(&["--once"]), COMMAND_LIMIT);
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("is not served"), "{}", refused.stderr);
}

/// The server's own HTTP, on loopback and as seen by other machines; and HTTP of another server.
#[cfg(feature = "http")]
#[test]
fn a_server_is_watched_over_http() {
    let drive = Drive::create("64M", &[]);
    let (server, address) = serve(&drive, &["--export-name", "far"]);
    let top = |args: &[&str]| pumice(&[&["top", "--interval", "0.1"], args].concat());
    let url = format!("http://{address}/");
    let text = top(&[&url, "--once"]);
    assert_eq!(text.code, Some(0), "{}", text.stderr);
    for word in ["far", "healthy", "space: live"] {
        assert!(text.stdout.contains(word), "{word} in\n{}", text.stdout);
    }
    // The same drive twice, by its control socket and by HTTP: each is named by its address.
    let mut both = beside(&drive, PUMICE);
    both.arg("top").arg(drive.path()).args([&url, "--json", "--interval", "0.1"]);
    let both: Value = serde_json::from_str(&run_ok(&mut both).stdout).expect("JSON");
    assert_eq!(both[0]["path"].as_str(), drive.path().to_str());
    assert_eq!(both[1]["url"], format!("http://{address}"));
    assert_eq!(both[0]["snapshot"]["drives"][0]["info"], both[1]["snapshot"]["drives"][0]["info"]);
    assert_eq!(both[1]["rates"]["requests"], 0.0);

    for (args, words) in [
        (&["https://127.0.0.1:1"][..], "tunnel to the server"),
        (&["http://127.0.0.1:1"], "no answer from http://127.0.0.1:1: start `pumice serve"),
        (&[&format!("http://{address}/deeper")], "is not a `pumice serve --http`"),
        (&["gone", "--token-file", "x"], "--token-file needs a server URL"),
    ] {
        let refused = top(&[args, &["--once"]].concat());
        assert_eq!(refused.code, Some(2), "{args:?}: {}", refused.stdout);
        assert!(refused.stderr.contains(words), "{args:?}: {}", refused.stderr);
        assert_eq!(refused.stderr.lines().count(), 1, "{}", refused.stderr);
    }
    server.stop();
    let refused = top(&[&url, "--once"]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("no answer from"), "{}", refused.stderr);
}

#[cfg(feature = "http")]
#[test]
fn a_server_s_token_is_asked_for_and_given() {
    let drive = Drive::create("64M", &[]);
    let file = |name: &str, token: &str| {
        std::fs::write(drive.beside(name), format!("{token}\n")).expect("a token");
        drive.beside(name).to_str().expect("plain").to_owned()
    };
    let right = file("right", "a-token-of-27-characters-ok");
    let wrong = file("wrong", "another-token-of-33-characters-ok");
    let open = ["--http", "0.0.0.0:0", "--http-token-file", &right];
    let server = drive.serve_with(&open);
    let mut port = None;
    crate::harness::wait_until("the server says where it is", || {
        let said = server.stderr();
        let rest = said.split_once("url=http://0.0.0.0:").map(|(_, rest)| rest);
        port = rest.and_then(|rest| Some(rest.split_once('/')?.0.to_owned()));
        port.is_some()
    });
    let url = format!("http://127.0.0.1:{}", port.expect("a port"));
    let top =
        |args: &[&str]| pumice(&[&["top", "--interval", "0.1", "--once", &url], args].concat());
    let refused = top(&[]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("requires a token: use --token-file"), "{}", refused.stderr);
    let refused = top(&["--token-file", &wrong]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("refuses the token"), "{}", refused.stderr);
    let shown = top(&["--token-file", &right]);
    assert_eq!(shown.code, Some(0), "{}", shown.stderr);
    assert!(shown.stdout.contains("healthy"), "{}", shown.stdout);
    server.stop();
}

//! Goal: the exit code of the program does not depend on readers of its output.
//! Method: each kind of end, with standard output and standard error closed, or pipes that no
//! process reads.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};

use crate::harness::{Drive, PUMICE, stand_in};

/// Returns the exit code of `pumice` with these arguments and outputs.
fn code(args: &[&str], stdout: Stdio, stderr: Stdio) -> Option<i32> {
    let mut command = Command::new(PUMICE);
    command.args(args).stdin(Stdio::null()).stdout(stdout).stderr(stderr);
    command.status().expect("run pumice").code()
}

/// Returns a pipe whose reader has gone.
fn broken() -> Stdio {
    let (_reader, writer) = std::io::pipe().expect("a pipe");
    writer.into()
}

#[test]
fn nobody_listening_changes_no_exit_code() {
    if stand_in().is_some() {
        return;
    }
    let good = Drive::create("64M", &[]);
    let damaged = Drive::create("64M", &[]);
    let file = OpenOptions::new().write(true).open(damaged.path()).unwrap();
    file.write_all_at(&[0xa5; 512], 512).unwrap();
    let path = |drive: &Drive| drive.path().to_str().expect("a plain path").to_owned();
    let (good_path, damaged_path) = (path(&good), path(&damaged));
    let (good, damaged) = (good_path.as_str(), damaged_path.as_str());
    for (args, expected) in [
        (&["--help"][..], 0),
        (&["serve", "--help"], 0),
        (&["--version"], 0),
        (&["info", good], 0),
        (&["check", good, "--json"], 0),
        // Its first superblock is damaged: a warning on standard error, and a problem found.
        (&["info", damaged], 0),
        (&["check", damaged], 1),
        (&["serve", damaged, "--read-only", "--run", "exit 7"], 7),
        (&["serve", good, "--json", "--run", "exit 7"], 7),
        (&["create", good, "--size", "64M", "--force", "--overwrite-drive"], 0),
        (&["create", good, "--size", "64M"], 2),
        (&["info", "/nonexistent"], 2),
        (&["no-such-command"], 2),
        (&[], 2),
    ] {
        assert_eq!(code(args, Stdio::null(), Stdio::null()), Some(expected), "{args:?}");
        assert_eq!(code(args, broken(), Stdio::null()), Some(expected), "{args:?} >|");
        assert_eq!(code(args, Stdio::null(), broken()), Some(expected), "{args:?} 2>|");
        assert_eq!(code(args, broken(), broken()), Some(expected), "{args:?} >| 2>|");
        let mut closed = Command::new("sh");
        closed.args(["-c", "exec \"$0\" \"$@\" <&- >&- 2>&-", PUMICE]).args(args);
        assert_eq!(closed.status().unwrap().code(), Some(expected), "{args:?} >&- 2>&-");
    }
}

/// Not to be confused with a reader that stops early.
#[test]
fn a_result_that_cannot_be_written_is_an_error() {
    let full = || Stdio::from(OpenOptions::new().write(true).open("/dev/full").expect("open"));
    assert_eq!(code(&["--help"], full(), Stdio::null()), Some(2));
    assert_eq!(code(&["--help"], Stdio::null(), full()), Some(0));
    assert_eq!(code(&["info", "/nonexistent"], Stdio::null(), full()), Some(2));
}

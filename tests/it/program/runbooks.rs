//! Goal: the runbooks of docs/operate.md work as written: their commands run, and print the output
//! shown.
//! Method: `fixtures/runbook.py` brings a drive into the state for which a runbook is written,
//! types its commands, and compares the output.

use std::process::Command;

use crate::harness::{COMMAND_LIMIT, PUMICE, fixture, python_with_libnbd, run, stand_in, tool};

fn try_out(title: &str) {
    let (Some(python), Some(_)) = (python_with_libnbd(), tool("openssl")) else { return };
    if stand_in().is_some() {
        return;
    }
    let mut command = Command::new(python);
    command.arg(fixture("runbook.py")).arg(title).arg(PUMICE);
    let finished = run(&mut command, COMMAND_LIMIT);
    assert_eq!(finished.code, Some(0), "{title}\n{}{}", finished.stdout, finished.stderr);
}

#[test]
fn a_drive_is_full() {
    try_out("A drive is full");
}

#[test]
fn blocks_are_damaged() {
    try_out("Blocks are damaged");
}

#[test]
fn a_drive_does_not_open() {
    try_out("A drive does not open");
}

#[test]
fn a_drive_is_slow() {
    try_out("A drive is slow");
}

#[test]
fn a_drive_moves() {
    try_out("A drive moves to another machine or path");
}

#[test]
fn a_server_is_upgraded() {
    try_out("A server is upgraded");
}

#[test]
fn a_key_is_lost() {
    try_out("A key or certificate is lost");
}

/// Tries out every runbook.
#[test]
fn each_runbook_is_tried_out() {
    let document = include_str!("../../../docs/operate.md");
    let (_, runbooks) = document.split_once("\n## Runbooks\n").expect("the section");
    let runbooks = runbooks.split("\n## ").next().expect("its text");
    let titles: Vec<_> = runbooks.lines().filter_map(|line| line.strip_prefix("### ")).collect();
    assert!(titles.len() >= 7, "{titles:?}");
    for title in titles {
        assert!(include_str!("runbooks.rs").contains(&format!("\"{title}\"")), "{title}");
    }
}

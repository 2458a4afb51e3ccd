//! Forbidden text, and the places where it is allowed: calls that break determinism or bypass the
//! command line, meaningless names, paths of one machine.

use crate::code;

/// A call, its allowed places (prefixes of paths), and the reason for the limit.
struct Banned {
    call: &'static str,
    allowed: &'static [&'static str],
    reason: &'static str,
}

const CLOCK: &str = "ask base::clock::Clock, so that it runs in virtual time too";
const PRINT: &str = "only the command line prints";
/// Where wall-clock time is the point.
const CLOCK_ALLOWED: &[&str] = &[
    "crates/pumice-drive/src/runtime/",
    "crates/pumice/src/cli/",
    "crates/pumice/src/environment.rs",
    "crates/pumice-torture/src/main.rs",
    "tests/it/harness.rs",
    "tests/mutants/",
    "crates/*/benches/",
    "crates/*/examples/",
];
const PRINT_ALLOWED: &[&str] = &[
    "crates/pumice/src/cli/",
    "crates/pumice-torture/src/main.rs",
    "crates/pumice-torture/src/tests.rs",
    "tests/",
    "crates/*/benches/",
    "crates/*/examples/",
    "fuzz/",
];

/// Raw pointers for io_uring; a system call without a safe binding; a global allocator that counts.
const UNSAFE_ALLOWED: &[&str] = &[
    "crates/pumice-drive/src/runtime/uring.rs",
    "crates/pumice-scan/src/fiemap.rs",
    "crates/pumice-drive/benches/drive.rs",
];

const BANNED: [Banned; 12] = [
    Banned { call: "Instant::now", allowed: CLOCK_ALLOWED, reason: CLOCK },
    Banned { call: "SystemTime::now", allowed: CLOCK_ALLOWED, reason: CLOCK },
    Banned { call: "println!", allowed: PRINT_ALLOWED, reason: PRINT },
    Banned { call: "print!", allowed: PRINT_ALLOWED, reason: PRINT },
    Banned { call: "eprintln!", allowed: PRINT_ALLOWED, reason: PRINT },
    Banned { call: "eprint!", allowed: PRINT_ALLOWED, reason: PRINT },
    Banned { call: "dbg!", allowed: &[], reason: "left over from a search" },
    Banned { call: "thread::sleep", allowed: &[], reason: "wait for the event itself" },
    Banned { call: "todo!", allowed: &[], reason: "finish it or leave it out" },
    Banned { call: "unimplemented!", allowed: &[], reason: "finish it or leave it out" },
    Banned { call: "#[ignore", allowed: &[], reason: "a test runs or does not exist" },
    Banned { call: "unsafe", allowed: UNSAFE_ALLOWED, reason: "safe code can do it" },
];

pub(crate) fn calls_are_where_they_belong(path: &str, text: &str) -> Vec<String> {
    if !path.ends_with(".rs") {
        return Vec::new();
    }
    let mut wrong = Vec::new();
    for (index, line) in code::only(text).lines().enumerate() {
        for banned in &BANNED {
            let allowed = banned.allowed.iter().any(|start| begins(path, start));
            if !allowed && contains_word(line, banned.call) {
                wrong.push(format!("{}: {}: {}", index + 1, banned.call, banned.reason));
            }
        }
    }
    wrong
}

/// Returns whether a path begins with a pattern, in which `*` is one folder.
fn begins(path: &str, pattern: &str) -> bool {
    let Some((before, after)) = pattern.split_once('*') else { return path.starts_with(pattern) };
    let rest = path.strip_prefix(before).and_then(|rest| rest.split_once('/'));
    rest.is_some_and(|(_, rest)| rest.starts_with(&after[1..]))
}

/// Returns whether `line` contains `word`, not as a part of a longer word.
pub(crate) fn contains_word(line: &str, word: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = word.starts_with(is_word) && line[..at].ends_with(is_word);
        let after = word.ends_with(is_word) && line[at + word.len()..].starts_with(is_word);
        !before && !after
    })
}

const EMPTY_NAMES: [&str; 8] =
    ["utils", "util", "helpers", "helper", "common", "misc", "shared", "manager"];

/// Checks that a file or directory has a meaningful name.
pub(crate) fn file_name_says_something(path: &str, _text: &str) -> Vec<String> {
    let parts = path.split('/').map(|part| part.split('.').next().unwrap_or(part));
    let empty = parts.filter(|part| EMPTY_NAMES.contains(part));
    empty.map(|part| format!("1: '{part}' says nothing about what is in it")).collect()
}

/// Prefixes of paths that exist on one machine only. Split, so that this file can also be checked.
const MACHINE_PATHS: [&str; 4] =
    [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/"), concat!("/Us", "ers/")];

pub(crate) fn no_machine_paths(_path: &str, text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for start in MACHINE_PATHS {
            // The same words after a directory of the project are no absolute path.
            let absolute = line.match_indices(start).any(|(at, _)| {
                !line[..at].ends_with(|c: char| c.is_alphanumeric() || "._-*$}".contains(c))
            });
            if absolute {
                wrong.push(format!("{}: {start} is a path of one machine", index + 1));
            }
        }
    }
    wrong
}

/// Checks the rules of .editorconfig: no trailing blanks, one line feed at the end, no carriage
/// returns.
pub(crate) fn text_is_clean(path: &str, text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    for (index, line) in text.split('\n').enumerate() {
        let tab = line.contains('\t') && !path.ends_with("Makefile");
        if line.ends_with([' ', '\r', '\t']) || tab {
            wrong.push(format!("{}: trailing blank, tab or carriage return", index + 1));
        }
    }
    if !text.is_empty() && (!text.ends_with('\n') || text.ends_with("\n\n")) {
        wrong.push("1: does not end with exactly one line feed".to_owned());
    }
    wrong
}

#[test]
fn banned_calls_are_refused() {
    for (path, good, bad) in [
        ("src/codec/x.rs", "clock.now_ns()", "let t = std::time::Instant::now();"),
        ("src/media/x.rs", "// SystemTime::now", "SystemTime::now()"),
        ("src/serve/x.rs", "tracing::info!(\"println!\")", "println!(\"x\")"),
        ("src/serve/x.rs", "writeln!(out)", "eprint!(\"x\")"),
        ("tests/it/x.rs", "println!()", "thread::sleep(TICK)"),
        ("crates/pumice/src/cli/x.rs", "println!(); Instant::now()", "dbg!(x)"),
        ("src/base/x.rs", "#![deny(unsafe_code)]", "unsafe { f() }"),
        ("src/base/x.rs", "my_todo!()", "todo!()"),
        ("src/base/x.rs", "ok()", "unimplemented!()"),
        ("tests/it/x.rs", "#[test]", "#[ignore = \"slow\"]"),
    ] {
        crate::assert_tells_apart(calls_are_where_they_belong, path, good, bad);
    }
    assert!(
        calls_are_where_they_belong("crates/pumice-drive/src/runtime/uring.rs", "unsafe { f() }")
            .is_empty()
    );
    assert!(
        !calls_are_where_they_belong("crates/pumice-drive/src/runtime/real.rs", "unsafe { f() }")
            .is_empty()
    );
}

#[test]
fn empty_names_are_refused() {
    assert!(file_name_says_something("src/base/units.rs", "").is_empty());
    assert!(!file_name_says_something("src/base/utils.rs", "").is_empty());
    assert!(!file_name_says_something("src/common/mod.rs", "").is_empty());
}

#[test]
fn machine_paths_are_refused() {
    for start in MACHINE_PATHS {
        let (good, bad) = (format!("see docs{start}x"), format!("see `{start}x`"));
        crate::assert_tells_apart(no_machine_paths, "docs/x.md", &good, &bad);
    }
}

#[test]
fn unclean_text_is_refused() {
    for bad in ["a \n", "a\r\n", "\ta\n", "a", "a\n\n"] {
        crate::assert_tells_apart(text_is_clean, "src/x.rs", "a\n\nb\n", bad);
    }
}

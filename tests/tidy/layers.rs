//! Which room may import which: imports point down only.

use crate::code;

/// What each room of `src/` may import. `base` is what everything stands on, `cli` the top.
/// `controller` never names `runtime`: it asks `base::clock` for time, so that it runs in virtual
/// time too.
const ALLOWED: [(&str, &[&str]); 14] = [
    ("base", &[]),
    ("runtime", &["base"]),
    ("format", &["base"]),
    ("codec", &["base"]),
    ("media", &["base", "runtime"]),
    ("report", &["base"]),
    ("controller", &["base", "format", "codec", "media", "report"]),
    ("model", &["base", "runtime", "format", "codec", "media", "report", "controller"]),
    ("serve", &["base", "runtime", "media", "report", "controller"]),
    ("bench", &["base", "runtime", "codec", "media", "report", "controller", "model", "serve"]),
    (
        "scan",
        &["base", "runtime", "format", "codec", "report", "controller", "serve", "model", "bench"],
    ),
    ("torture", &["base", "runtime", "format", "codec", "media", "report", "controller"]),
    (
        "cli",
        &[
            "base",
            "runtime",
            "format",
            "codec",
            "media",
            "report",
            "controller",
            "serve",
            "model",
            "bench",
            "scan",
            "torture",
        ],
    ),
    ("fuzz", &["base", "runtime", "format", "codec", "media", "controller", "serve"]),
];

/// Test code of a room may also import this, to run what it tests.
const FOR_TESTS: &str = "runtime";

/// Every `crate::`, and every `super::` that leaves its room, leads to a room that may be imported.
pub(crate) fn imports_point_down(path: &str, text: &str) -> Vec<String> {
    let Some(module) = path.strip_prefix("src/").and_then(|path| path.strip_suffix(".rs")) else {
        return Vec::new();
    };
    let module: Vec<&str> = module.split('/').filter(|part| *part != "mod").collect();
    let room = module[0];
    if module.len() == 1 && ["lib", "main"].contains(&room) {
        return Vec::new();
    }
    let Some((_, allowed)) = ALLOWED.iter().find(|(name, _)| *name == room) else {
        return vec![format!("1: room '{room}' has no place in tests/tidy/layers.rs")];
    };
    let is_test_file = module.contains(&"tests");
    let mut wrong = Vec::new();
    let code = code::only(text);
    let tests_start = code.find("\nmod tests {").unwrap_or(code.len());
    for (at, import) in imports(&code, module.len(), tests_start) {
        let in_tests = is_test_file || at > tests_start;
        let fine = import == room
            || allowed.contains(&import)
            || (in_tests && import == FOR_TESTS)
            || ALLOWED.iter().all(|(name, _)| *name != import);
        if !fine {
            let line = code[..at].lines().count();
            wrong.push(format!("{line}: '{room}' must not import '{import}'"));
        }
    }
    wrong
}

/// First names of all paths that start at the crate's root, with their places.
fn imports(code: &str, depth: usize, tests_start: usize) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        if !preceded_by_word(code, at) {
            first_names(code, at + "crate::".len(), &mut found);
        }
    }
    for (at, _) in code.match_indices("super::") {
        if preceded_by_word(code, at) || code[..at].ends_with("super::") {
            continue;
        }
        let depth = depth + usize::from(at > tests_start);
        let rest = &code[at..];
        let path = rest.trim_start_matches("super::");
        let supers = (rest.len() - path.len()) / "super::".len();
        if supers >= depth {
            first_names(code, at + supers * "super::".len(), &mut found);
        }
    }
    found
}

fn preceded_by_word(code: &str, at: usize) -> bool {
    code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_')
}

/// The name at `at`, or all first names of a group in braces there.
fn first_names<'a>(code: &'a str, at: usize, found: &mut Vec<(usize, &'a str)>) {
    if !code[at..].starts_with('{') {
        found.push((at, name_at(code, at)));
        return;
    }
    let mut depth = 0;
    for (index, c) in code[at..].char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 1 && matches!(c, '{' | ',') {
            let blank = code[at + index + 1..].find(|c: char| !c.is_whitespace()).unwrap_or(0);
            let start = at + index + 1 + blank;
            found.push((start, name_at(code, start)));
        }
        if depth == 0 {
            break;
        }
    }
}

fn name_at(code: &str, at: usize) -> &str {
    let end = code[at..].find(|c: char| !c.is_alphanumeric() && c != '_');
    &code[at..end.map_or(code.len(), |end| at + end)]
}

#[test]
fn an_import_that_points_up_is_refused() {
    for (path, good, bad) in [
        ("src/base/x.rs", "use super::units::Lba;", "use crate::format::frame;"),
        ("src/codec/x.rs", "use crate::base::Result;", "use crate::media::Medium;"),
        ("src/controller/read.rs", "use crate::media::Medium;", "use crate::runtime::Runtime;"),
        ("src/format/mod.rs", "use crate::{base::Lba};", "use crate::{base::{A, B}, media::C};"),
        ("src/serve/nbd/x.rs", "fn f(_: super::super::Disk) {}", "use super::super::super::cli;"),
        ("src/media/mod.rs", "use crate::runtime;", "fn f() { super::controller::open() }"),
        ("src/report/x.rs", "// crate::serve", "use\n    crate::serve;"),
    ] {
        crate::assert_tells_apart(imports_point_down, path, good, bad);
    }
}

#[test]
fn test_code_may_run_what_it_tests() {
    let import = "use crate::runtime::Runtime;\n";
    let tests = format!("//! x\n#[cfg(test)]\nmod tests {{\n{import}}}\n");
    crate::assert_tells_apart(imports_point_down, "src/codec/x.rs", &tests, import);
    assert!(imports_point_down("src/codec/tests.rs", import).is_empty());
    let up = "#[cfg(test)]\nmod tests {\nuse super::super::super::serve;\n}\n";
    assert!(!imports_point_down("src/codec/x.rs", &format!("//! x\n{up}")).is_empty());
}

#[test]
fn an_unknown_room_is_refused() {
    assert!(!imports_point_down("src/cellar/mod.rs", "//! Below everything.\n").is_empty());
    assert!(imports_point_down("src/lib.rs", "use crate::cli;\n").is_empty());
}

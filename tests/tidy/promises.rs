//! Promises name tests that exist.

use std::fs;
use std::path::Path;

/// Checks that in GUARANTEES.md every `room::...::test` is a function in a file of that room: below
/// `tests/it`, or in a crate of that name (`pumice_nbd::tests::x`), or in a room of one.
pub(crate) fn named_tests_exist(path: &str, text: &str) -> Vec<String> {
    if path != "GUARANTEES.md" {
        return Vec::new();
    }
    let root = Path::new(crate::ROOT);
    let crates = fs::read_dir(root.join("crates")).expect("the crates");
    let crates: Vec<_> = crates.flatten().map(|entry| entry.path()).collect();
    let mut wrong = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for name in line.split('`').skip(1).step_by(2).filter(|name| name.contains("::")) {
            let room = name.split("::").next().unwrap_or_default();
            let function = format!("fn {}(", name.rsplit("::").next().unwrap_or_default());
            let mut sources = vec![root.join("tests/it").join(room)];
            sources.extend(crates.iter().map(|sources| {
                match sources.ends_with(room.replace('_', "-")) {
                    true => sources.join("src"),
                    false => sources.join("src").join(room),
                }
            }));
            if !sources.iter().any(|source| contains(source, &function)) {
                wrong.push(format!("{}: no test {name}", index + 1));
            }
        }
    }
    wrong
}

/// Returns whether `source.rs` or a Rust file below the directory `source` contains `needle`.
fn contains(source: &Path, needle: &str) -> bool {
    let file = source.with_extension("rs");
    if fs::read_to_string(file).is_ok_and(|text| text.contains(needle)) {
        return true;
    }
    let Ok(entries) = fs::read_dir(source) else { return false };
    entries.map_while(Result::ok).any(|entry| contains(&entry.path().with_extension(""), needle))
}

#[test]
fn a_test_that_does_not_exist_is_refused() {
    crate::assert_tells_apart(
        named_tests_exist,
        "GUARANTEES.md",
        "`crash::kill_9_keeps_what_was_promised`, `pumice info`,\n\
         `base::units::tests::sizes_are_read_as_coreutils_does`",
        "- Enforced by: `crash::nobody_wrote_this`",
    );
}

//! Every planted bug of `tests/mutants` still fits the sources: its text occurs exactly once in its
//! file, and its test exists. `make test-mutants` shows whether the test fails with the bug.

use std::fs;
use std::path::Path;

use list::{Mutant, Target};

#[path = "../mutants/list.rs"]
mod list;

pub(crate) fn planted_bugs_fit(path: &str, text: &str) -> Vec<String> {
    let name = path.strip_prefix("tests/mutants/").and_then(|name| name.strip_suffix(".toml"));
    let Some(room) = name else { return Vec::new() };
    let mutants = match list::parse(room, text) {
        Ok(mutants) => mutants,
        Err(error) => return vec![format!("1: {error}")],
    };
    let root = Path::new(crate::ROOT);
    let wrong = mutants.iter().filter_map(|mutant| Some((mutant, misfit(root, mutant)?)));
    wrong.map(|(mutant, what)| format!("1: '{}: {}': {what}", mutant.room, mutant.name)).collect()
}

/// Returns the fault of an entry, checked against the sources below `root`.
fn misfit(root: &Path, mutant: &Mutant) -> Option<String> {
    let (target, test) = mutant.test();
    let sources = match &target {
        Target::Unit(package) => root.join("crates").join(package).join("src"),
        Target::It => root.join("tests/it"),
    };
    if !test_exists(&sources, test) {
        return Some(format!("there is no test {test}"));
    }
    match fs::read_to_string(root.join(&mutant.file)) {
        Ok(source) => mutant.plant(&source).err(),
        Err(error) => Some(format!("cannot read {}: {error}", mutant.file)),
    }
}

/// Returns whether the function that `test` names is a test in the file of its module, below
/// `sources`.
pub(crate) fn test_exists(sources: &Path, test: &str) -> bool {
    let mut parts: Vec<&str> = test.split("::").collect();
    let function = format!("fn {}(", parts.pop().unwrap_or_default());
    let has_test = |text: &str| {
        let mut found = text.match_indices(&function);
        found.any(|(at, _)| text[..at].trim_end().ends_with("#[test]"))
    };
    // A module's tests are in a file of their own or at the end of the module's file.
    while !parts.is_empty() {
        let place = sources.join(parts.join("/"));
        for file in [place.with_extension("rs"), place.join("mod.rs")] {
            if fs::read_to_string(file).is_ok_and(|text| has_test(&text)) {
                return true;
            }
        }
        parts.pop();
    }
    false
}

#[test]
fn a_planted_bug_that_does_not_fit_is_refused() {
    let entry = |file: &str, find: &str, replace: &str, test: &str| {
        let place = format!("file = '{file}'\nfind = '{find}'\nreplace = '{replace}'");
        format!("[[mutant]]\nname = 'x'\n{place}\n{test}\n")
    };
    let test = "unit = 'format::batch::tests::round_trip'";
    let (file, find) = ("crates/pumice-drive/src/format/batch.rs", "pub fn chain_start(");
    let good = entry(file, find, "fn start(", test);
    for bad in [
        entry(file, "no such text", "y", test),
        entry(file, "use ", "y", test),
        entry(file, "", "y", test),
        entry(file, find, find, test),
        entry("crates/pumice-drive/src/none.rs", find, "y", test),
        entry(file, find, "y", "lib = 'format::batch::tests::nobody_wrote_this'"),
        entry(file, find, "y", "it = 'batch::round_trip'"),
        entry(file, find, "y", ""),
        entry(file, find, "y", &format!("{test}\nit = 'crash::x'")),
        entry(file, find, "y", &format!("{test}\nwhy = 'x'")),
        good.repeat(2),
    ] {
        crate::assert_tells_apart(planted_bugs_fit, "tests/mutants/x.toml", &good, &bad);
    }
}

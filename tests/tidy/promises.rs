//! Each promise has a test, and the tests that promises name exist.

use std::collections::BTreeSet;
use std::path::Path;

use crate::mutants::test_exists;

/// Checks GUARANTEES.md: its promises, `## 1. NAME` and so on, are numbered without gaps. Its table
/// of tests has rows `| 1 | PART | TESTS |` for each promise and for no others, each row names a
/// test, and every test that the document names exists.
pub(crate) fn promises_have_tests(path: &str, text: &str) -> Vec<String> {
    if path != "GUARANTEES.md" {
        return Vec::new();
    }
    let (mut wrong, mut promises, mut tested) = (Vec::new(), Vec::new(), BTreeSet::new());
    for (line, number) in text.lines().zip(1..) {
        let spans = line.split('`').skip(1).step_by(2);
        let names: Vec<&str> = spans.filter(|span| span.contains("::")).collect();
        let missing = names.iter().filter(|name| !is_test(name));
        wrong.extend(missing.map(|name| format!("{number}: no test {name}")));
        promises.extend(number_between(line, "## ", ". "));
        if let Some(promise) = number_between(line, "| ", " |") {
            tested.insert(promise);
            if names.is_empty() {
                wrong.push(format!("{number}: a row of promise {promise} names no test"));
            }
        }
    }
    if promises.is_empty() || !promises.iter().copied().eq(1..=promises.len()) {
        wrong.push(format!("1: promises are not numbered from 1: {promises:?}"));
    }
    let promises = BTreeSet::from_iter(promises);
    let odd = promises.symmetric_difference(&tested);
    wrong.extend(odd.map(|promise| format!("1: promise {promise} has no test, or is none")));
    wrong
}

/// Returns the number between `before`, which begins the line, and `after`.
fn number_between(line: &str, before: &str, after: &str) -> Option<usize> {
    line.strip_prefix(before)?.split_once(after)?.0.parse().ok()
}

/// Returns whether `name` is a test: of the crate that it begins with (`pumice_nbd::tests::x`), or
/// in `tests/it`, or of the drive.
fn is_test(name: &str) -> bool {
    let root = Path::new(crate::ROOT);
    let (first, rest) = name.split_once("::").unwrap_or((name, ""));
    let package = root.join("crates").join(first.replace('_', "-"));
    if package.is_dir() {
        return test_exists(&package.join("src"), rest);
    }
    let places = ["tests/it", "crates/pumice-drive/src"];
    places.iter().any(|place| test_exists(&root.join(place), name))
}

#[test]
fn a_promise_without_a_test_that_exists_is_refused() {
    let good = "## 1. One\n## 2. Two, see `pumice info`\n## The tests\n\
        | 1 | `kill -9` | `storage::crash::kill_9_breaks_no_promise` |\n\
        | 2 | sizes | `base::units::tests::sizes_are_read_as_coreutils_does` |\n\
        | 2 | clients | `pumice_nbd::tests::access::unlisted_clients_are_refused` |\n";
    for (from, to) in [
        ("kill_9_breaks", "nobody_wrote_this"),
        ("crash::kill", "serve::kill"),
        ("crash::kill_9_breaks_no_promise", "bad_input::refused"),
        ("`storage::crash::kill_9_breaks_no_promise`", "none"),
        ("| 1 | `kill -9`", "| 2 | `kill -9`"),
        ("| 2 | clients", "| 3 | clients"),
        ("## 2. Two", "## 3. Two"),
        ("## 1. One\n", ""),
    ] {
        let bad = good.replace(from, to);
        crate::assert_tells_apart(promises_have_tests, "GUARANTEES.md", good, &bad);
    }
}

//! Documents name things that exist: every identifier between back ticks in a Markdown file occurs
//! somewhere in the sources. Only the last part of a path is searched for, and prose in back ticks
//! (commands, file names, values) is not an identifier.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use crate::links::prose;

/// Names of the kernel's that documents may use.
const FOREIGN: [&str; 3] = ["CAP_SYS_RESOURCE", "O_NOATIME", "PR_SET_IO_FLUSHER"];

/// Prefix of metrics and suffix of counters; the registry adds them.
const METRIC_PREFIX: &str = "pumice_";
const COUNTER_SUFFIX: &str = "_total";

pub(crate) fn named_things_exist(path: &str, text: &str) -> Vec<String> {
    if !path.ends_with(".md") {
        return Vec::new();
    }
    let mut wrong = Vec::new();
    for (number, line) in prose(text) {
        for span in line.split('`').skip(1).step_by(2) {
            let Some(name) = identifier(span) else { continue };
            let name = name.strip_prefix(METRIC_PREFIX).unwrap_or(name);
            let name = name.strip_suffix(COUNTER_SUFFIX).unwrap_or(name);
            if !words().contains(name) && !FOREIGN.contains(&name) {
                wrong.push(format!("{number}: `{span}` is named nowhere in the sources"));
            }
        }
    }
    wrong
}

/// Returns the last part of a path such as `Drive::open()` or `live_bytes`; `None` for anything
/// else.
fn identifier(span: &str) -> Option<&str> {
    let span = span.strip_suffix("()").unwrap_or(span);
    let is_word = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    if !span.split("::").all(is_word) {
        return None;
    }
    let last = span.rsplit("::").next().unwrap_or(span);
    let is_camel = last.starts_with(|c: char| c.is_ascii_uppercase())
        && last.contains(|c: char| c.is_ascii_lowercase())
        && last.len() > 1;
    (span.contains("::") || last.contains('_') || is_camel).then_some(last)
}

/// Returns every word of the tree's text files that are not Markdown.
fn words() -> &'static BTreeSet<String> {
    static WORDS: OnceLock<BTreeSet<String>> = OnceLock::new();
    WORDS.get_or_init(|| {
        let root = Path::new(crate::ROOT);
        let mut files = Vec::new();
        crate::collect(root, root, &mut files);
        let mut words = BTreeSet::new();
        for path in files.iter().filter(|path| !path.ends_with(".md")) {
            let text = fs::read_to_string(root.join(path)).expect("text files are UTF-8");
            let found = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            words.extend(found.map(str::to_owned));
        }
        words
    })
}

#[test]
fn identifiers_that_nothing_defines_are_refused() {
    for (good, bad) in [
        ("see `named_things_exist`", "see `no_such_name_anywhere`".replace("anywhere", "at_all")),
        ("see `Drive::open()`", "see `Drive::no_such_method`".replace("no_such", "nonesuch")),
        ("`pumice info`, `4 KiB`, `live`", "`NoSuchType`".replace("Such", "Imaginary")),
        ("```\n`not_checked_here`\n```", "`not_checked_there`".replace("there", "hither")),
    ] {
        crate::assert_tells_apart(named_things_exist, "docs/x.md", good, &bad);
    }
}

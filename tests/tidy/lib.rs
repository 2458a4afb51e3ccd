//! Goal: the rules of STYLE are enforced by a machine, not by reviewers.
//!
//! Method: each rule is a function of a file's path and text that returns the file's faults; the
//! first test runs all rules over the whole tree, the others feed each rule text that it must
//! refuse. `code` strips comments and strings, `limits` counts, `words` lists forbidden text,
//! `prose` words that have a plainer term, `links` follows the documents' links, `identifiers` and
//! `promises` search for the names and tests they mention, `mutants` for the text that planted bugs
//! replace, `dialect` counts relative clauses, `embedding` keeps the program's flags out of the
//! libraries. `layers`, `face` and `ci` are not such rules: they check for cycles of imports, for
//! types that the library does not export, and for the commands that CI calls.
#![cfg(test)]

use std::fs;
use std::path::Path;

mod ci;
mod code;
mod dialect;
mod embedding;
mod face;
mod identifiers;
mod layers;
mod limits;
mod links;
mod mutants;
mod promises;
mod prose;
mod words;

/// The root of the tree.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// A rule: returns the faults of the file at `path` (relative to the root), one a line.
type Rule = fn(path: &str, text: &str) -> Vec<String>;

const RULES: [Rule; 17] = [
    limits::file_is_short,
    limits::functions_fit_a_screen,
    limits::lines_fit,
    limits::header_is_there,
    words::calls_are_where_they_belong,
    words::file_name_says_something,
    words::no_machine_paths,
    words::text_is_clean,
    links::relative_links_resolve,
    identifiers::named_things_exist,
    promises::promises_have_tests,
    prose::prose_is_plain,
    dialect::names_have_nouns,
    dialect::nouns_are_nouns,
    dialect::paragraphs_are_short,
    embedding::libraries_name_no_flags,
    mutants::planted_bugs_fit,
];

/// Directories without handwritten files.
const NOT_OURS: [&str; 5] = [".git", "advisories", "target", "__pycache__", "node_modules"];

/// Suffixes of the names of text files.
const TEXT: [&str; 9] =
    [".rs", ".md", ".toml", ".py", ".sh", "Makefile", ".ci/run", ".gitignore", ".editorconfig"];

#[test]
fn the_tree_is_tidy() {
    let root = Path::new(crate::ROOT);
    let mut files = Vec::new();
    collect(root, root, &mut files);
    assert!(
        files.iter().any(|path| path == "crates/pumice-drive/src/lib.rs"),
        "the walk found no sources: {files:?}"
    );
    let mut wrong = Vec::new();
    for path in &files {
        let text = fs::read_to_string(root.join(path)).expect("text files are UTF-8");
        for rule in RULES {
            wrong.extend(rule(path, &text).into_iter().map(|what| format!("{path}:{what}")));
        }
    }
    assert!(wrong.is_empty(), "{} untidy places:\n{}", wrong.len(), wrong.join("\n"));
}

fn collect(root: &Path, directory: &Path, files: &mut Vec<String>) {
    for entry in fs::read_dir(directory).expect("read a directory") {
        let entry = entry.expect("directory entry");
        let name = entry.file_name().to_string_lossy().into_owned();
        let kind = entry.file_type().expect("file type");
        if kind.is_dir() && !NOT_OURS.contains(&name.as_str()) {
            collect(root, &entry.path(), files);
        } else if kind.is_file() {
            let path = entry.path();
            let path = path.strip_prefix(root).expect("below the root").to_string_lossy();
            if TEXT.iter().any(|end| path.ends_with(end)) {
                files.push(path.into_owned());
            }
        }
    }
}

/// Asserts that a rule accepts the first text and refuses the second one.
fn assert_tells_apart(rule: Rule, path: &str, good: &str, bad: &str) {
    assert_eq!(rule(path, good), Vec::<String>::new(), "refuses good text\n{good}");
    assert!(!rule(path, bad).is_empty(), "accepts bad text\n{bad}");
}

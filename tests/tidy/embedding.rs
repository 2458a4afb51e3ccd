//! The texts of the libraries that other programs embed name no flag and no command of this one,
//! which adds the remedies of errors itself (`crates/pumice/src/remedy.rs`).

use crate::code::strings;

/// The libraries that serve a drive. The others, of the bench and the model, serve this program.
const LIBRARIES: [&str; 4] = ["drive", "nbd", "fuse", "vhost"];

pub(crate) fn libraries_name_no_flags(path: &str, text: &str) -> Vec<String> {
    let is_of = |library: &str| path.starts_with(&format!("crates/pumice-{library}/src/"));
    if path.contains("/tests") || !LIBRARIES.into_iter().any(is_of) {
        return Vec::new();
    }
    let text = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or(text);
    let line = |at: usize| text[..at].lines().count().max(1);
    let wrong = strings(text).into_iter().filter_map(|(at, string)| {
        let name = flag_or_command(string)?;
        Some(format!("{}: '{name}' is of the program: use a Remedy or other words", line(at)))
    });
    wrong.collect()
}

/// Returns the first flag in a string, or the first word after the name of the program.
fn flag_or_command(string: &str) -> Option<&str> {
    let is_of_word = |c: char| c.is_alphanumeric() || "-_.:{}".contains(c);
    let starts_small = |word: &str| word.starts_with(|c: char| c.is_ascii_lowercase());
    let mut before = "";
    string.split(|c: char| !is_of_word(c)).filter(|word| !word.is_empty()).find(|word| {
        let is_command = before == "pumice" && starts_small(word);
        let is_flag = word.strip_prefix("--").is_some_and(starts_small);
        before = *word;
        is_command || is_flag
    })
}

#[test]
fn flags_and_commands_in_libraries_are_refused() {
    let path = "crates/pumice-drive/src/x.rs";
    for (good, bad) in [
        ("f(\"replace it\")", "f(\"add it with --force.\")"),
        ("// see `pumice check`", "f(\"see `pumice check`\")"),
        ("f(\"a -- b\")", "f(\"`pumice \\\n   rebuild` does\")"),
        ("\n#[cfg(test)]\nmod tests {\n\"--x\"}", "f(\"--x\")"),
        ("f(\"pumice {}: install it\", version)", "f(\"pumice bench A B\")"),
        ("f(\"drive.pumice of a - b\")", "f(r\"(--all)\")"),
    ] {
        crate::assert_tells_apart(libraries_name_no_flags, path, good, bad);
    }
    let outside = libraries_name_no_flags("crates/pumice/src/x.rs", "f(\"--x\")");
    assert!(outside.is_empty(), "{outside:?}");
}

//! Links of documents resolve: to a file of the project, and to a heading in it.

use std::fs;
use std::path::{Path, PathBuf};

/// Checks that relative links of a Markdown file name existing files, and headings in them.
pub(crate) fn relative_links_resolve(path: &str, text: &str) -> Vec<String> {
    if !path.ends_with(".md") {
        return Vec::new();
    }
    let root = Path::new(crate::ROOT);
    let directory = root.join(path).parent().map(PathBuf::from).unwrap_or_default();
    let mut wrong = Vec::new();
    for (line, link) in links(text) {
        if link.contains("://") || link.starts_with("mailto:") {
            continue;
        }
        let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
        let target = directory.join(file);
        if !file.is_empty() && !target.exists() {
            wrong.push(format!("{line}: link to {file}, which does not exist"));
            continue;
        }
        let elsewhere = (!file.is_empty()).then(|| fs::read_to_string(&target).unwrap_or_default());
        let document = elsewhere.as_deref().unwrap_or(text);
        if !anchor.is_empty() && !anchors(document).any(|name| name == anchor) {
            wrong.push(format!("{line}: no heading #{anchor} in {link}"));
        }
    }
    wrong
}

/// Returns the lines outside fenced blocks, numbered from 1.
pub(crate) fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        (!fenced && !fence).then_some((index + 1, line))
    })
}

fn links(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (number, line) in prose(text) {
        for (at, open) in line.match_indices("](") {
            let rest = &line[at + open.len()..];
            found.extend(rest.find(')').map(|end| (number, &rest[..end])));
        }
        // Reference definitions: `[name]: target`.
        if let Some((_, target)) = line.split_once("]: ").filter(|_| line.starts_with('[')) {
            found.push((number, target.trim()));
        }
    }
    found
}

/// Returns the anchors of a document's headings, as code hosts derive them.
fn anchors(text: &str) -> impl Iterator<Item = String> {
    let headings = prose(text).filter_map(|(_, line)| line.strip_prefix('#'));
    headings.map(|heading| {
        let title = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    })
}

#[test]
fn broken_links_are_refused() {
    for (good, bad) in [
        ("[a](Cargo.toml)", "[a](no-such-file.md)"),
        ("[a](https://example.org/x)", "[a](./src/nothing)"),
        ("# One thing\n[a](#one-thing)", "# One thing\n[a](#another)"),
        ("```\n[a](nothing)\n```", "```\n```\n[a](nothing)"),
        ("[a]: crates/pumice-drive/src/lib.rs", "[a]: src/nothing.rs"),
    ] {
        crate::assert_tells_apart(relative_links_resolve, "x.md", good, bad);
    }
    assert!(!relative_links_resolve("docs/x.md", "[a](Cargo.toml)").is_empty());
    assert!(relative_links_resolve("docs/x.md", "[a](../Cargo.toml)").is_empty());
}

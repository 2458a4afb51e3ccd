//! Goal: docs/cli.md shows exactly what `--help` prints, in the same groups.
//!
//! Method: the document has one fenced block for the program and one for each subcommand, and each
//! of those in turn; the first line of a block is its command, the rest its output. `UPDATE_DOCS=1`
//! (or `make docs`) rewrites the blocks, and adds those of new subcommands after the previous one.

use std::path::{Path, PathBuf};
use std::{env, fs};

use crate::harness::pumice;

/// Subcommands a user can rely on; there may be more.
const EXPECTED: [&str; 13] = [
    "create", "serve", "info", "check", "scrub", "resize", "extract", "rebuild", "demo", "payload",
    "report", "compare", "drives",
];

const FENCE: &str = "```";

#[test]
fn help_and_document_agree() {
    let top = help(&[]);
    let subcommands = subcommands(&top);
    for name in EXPECTED {
        assert!(subcommands.contains(&name), "no subcommand {name} in\n{top}");
    }
    let mut document = fs::read_to_string(document_path()).expect("docs/cli.md");
    let update = env::var_os("UPDATE_DOCS").is_some();
    let mut blocks = Vec::new();
    collect(&mut Vec::new(), &mut blocks);
    assert!(blocks.iter().any(|(command, _)| command == "$ pumice snapshot create --help"));
    let mut before = None;
    for (command, output) in &blocks {
        if update {
            document = with_block(&document, before.replace(command), command, output);
        }
        let shown = block(&document, command);
        assert_eq!(shown, Some(output.as_str()), "docs/cli.md: {command} (run `make docs`)");
    }
    for command in document.lines().filter(|line| line.starts_with("$ pumice ")) {
        let known = blocks.iter().any(|(name, _)| name == command);
        assert!(known || !command.ends_with("--help"), "docs/cli.md: {command} is gone");
    }
    let titles = top.lines().filter_map(|line| line.strip_suffix(':').filter(|_| is_title(line)));
    let mut titles = titles.collect::<Vec<_>>();
    let shown = document.lines().filter_map(|line| line.strip_prefix("## "));
    titles.insert(0, "pumice");
    assert_eq!(shown.collect::<Vec<_>>(), titles, "docs/cli.md: groups");
    let position = |(command, _): &(String, String)| document.find(&format!("\n{command}\n"));
    let positions: Vec<_> = blocks.iter().map(position).collect();
    assert!(positions.is_sorted(), "docs/cli.md: another order than that of --help");
    if update {
        fs::write(document_path(), document).expect("write docs/cli.md");
    }
}

fn document_path() -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("docs/cli.md")
}

/// Collects the help of a subcommand and of all below it, each after its command.
fn collect(path: &mut Vec<String>, blocks: &mut Vec<(String, String)>) {
    let words: Vec<&str> = path.iter().map(String::as_str).collect();
    let text = help(&words);
    let command = [&["$ pumice"], &words[..], &["--help"]].concat().join(" ");
    blocks.push((command, text.clone()));
    for name in subcommands(&text) {
        path.push(name.to_owned());
        collect(path, blocks);
        path.pop();
    }
}

/// Returns the output of `pumice [subcommand] --help`, without trailing blanks.
fn help(subcommand: &[&str]) -> String {
    let finished = pumice(&[subcommand, &["--help"]].concat());
    assert_eq!(finished.code, Some(0), "{subcommand:?}: {}", finished.stderr);
    assert!(finished.stderr.is_empty(), "help goes to stdout: {}", finished.stderr);
    let lines: Vec<&str> = finished.stdout.trim_end().lines().map(str::trim_end).collect();
    let widest = lines.iter().map(|line| line.chars().count()).max();
    assert!(widest <= Some(100), "help of {subcommand:?} is {widest:?} columns wide");
    lines.join("\n") + "\n"
}

/// Returns whether a line of the help begins a group of subcommands.
fn is_title(line: &str) -> bool {
    line == "Commands:" || line.ends_with(" commands:")
}

/// Returns the names listed in the groups of subcommands, without clap's own `help`.
fn subcommands(top: &str) -> Vec<&str> {
    top.lines()
        .skip_while(|line| !is_title(line))
        .take_while(|line| is_title(line) || line.is_empty() || line.starts_with("  "))
        // A wrapped description is indented further than a name.
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .collect()
}

/// Returns the output that the document shows for a command.
fn block<'a>(document: &'a str, command: &str) -> Option<&'a str> {
    let (_, rest) = document.split_once(&format!("{FENCE}text\n{command}\n"))?;
    if rest.starts_with(FENCE) {
        return Some("");
    }
    rest.find(&format!("\n{FENCE}\n")).map(|end| &rest[..=end])
}

/// Returns the document with this output for a command: in place, after the block of the previous
/// command, or at the end.
fn with_block(document: &str, before: Option<&String>, command: &str, output: &str) -> String {
    let opening = format!("{FENCE}text\n{command}\n");
    match block(document, command) {
        Some(old) => {
            document.replacen(&format!("{opening}{old}"), &format!("{opening}{output}"), 1)
        }
        None => {
            let title = command.trim_start_matches("$ ").trim_end_matches(" --help");
            let section = format!("\n### {title}\n\n{opening}{output}{FENCE}\n");
            let found = before.and_then(|before| {
                let shown = format!("{FENCE}text\n{before}\n{}{FENCE}\n", block(document, before)?);
                document.find(&shown).map(|at| at + shown.len())
            });
            let (above, below) = document.split_at(found.unwrap_or(document.len()));
            format!("{above}{section}{below}")
        }
    }
}

#[test]
fn a_stale_block_is_noticed_and_rewritten() {
    let stale = "# CLI\n\n```text\n$ pumice a --help\nold\n```\n\nWords.\n";
    assert_eq!(block(stale, "$ pumice a --help"), Some("old\n"));
    assert_eq!(block(stale, "$ pumice b --help"), None);
    let fresh = with_block(stale, None, "$ pumice a --help", "new\nlines\n");
    assert_eq!(fresh, stale.replace("old", "new\nlines"));
    let (first, second) = ("$ pumice a --help".to_owned(), "$ pumice b --help");
    let longer = with_block(&fresh, Some(&first), second, "more\n");
    assert!(longer.ends_with("\nmore\n```\n\nWords.\n"), "{longer}");
    assert_eq!(block(&longer, "$ pumice b --help"), Some("more\n"));
    assert_eq!(block(&longer, "$ pumice a --help"), Some("new\nlines\n"));
    let (command, empty) = ("$ pumice c --help", "```text\n$ pumice c --help\n```\n");
    assert_eq!(block(&with_block(empty, None, command, "x\n"), command), Some("x\n"));
}

#[test]
fn subcommands_are_read_from_the_help() {
    let top = "\
Usage: pumice <COMMAND>

Drive commands:
  create  Make a drive
          that lasts

Other commands:
  man     Write a page
  help    Print help

Options:
  -h, --help  Print help
";
    assert_eq!(subcommands(top), ["create", "man"]);
}

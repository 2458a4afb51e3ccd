//! Directories whose modules do not import each other in a cycle, and a program whose directories
//! do not import its command line: a reader can study one after the other.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Directories whose modules import in one direction only.
const ROOMS: [&str; 8] = [
    "crates/pumice-bench/src",
    "crates/pumice-drive/src",
    "crates/pumice-drive/src/controller",
    "crates/pumice-fuse/src",
    "crates/pumice-nbd/src",
    "crates/pumice-report/src",
    "crates/pumice-scan/src",
    "crates/pumice-sim/src",
];

/// The program, and the files that may import its command line.
const PROGRAM: &str = "crates/pumice/src";
const ABOVE: [&str; 2] = ["cli/", "main.rs"];

/// An import of one module of a directory by another: its location, once for each pair.
type Arrows = BTreeMap<(String, String), String>;

/// Returns the path of the module that a file of a directory is: `drive/open.rs` is `drive::open`.
fn module(file: &str) -> Vec<&str> {
    let mut path: Vec<&str> = file.trim_end_matches(".rs").split('/').collect();
    if matches!(path.last(), Some(&"mod" | &"lib")) {
        path.pop();
    }
    path
}

/// Adds the imports of a file of a directory, given by its path below that directory, from other
/// modules of the directory, whose path in its crate is `root`.
fn add(arrows: &mut Arrows, root: &str, file: &str, text: &str, modules: &BTreeSet<String>) {
    let path = module(file);
    let Some(own) = path.first() else { return };
    if path.contains(&"tests") {
        return;
    }
    let text = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or(text);
    let code = crate::code::only(text);
    let ups = "super::".repeat(path.len());
    for (at, start) in [root, &ups].into_iter().flat_map(|start| code.match_indices(start)) {
        let (before, rest) = (&code[..at], &code[at + start.len()..]);
        let is_of_longer = before.ends_with("super::") || rest.starts_with("super::");
        if is_of_longer || before.ends_with("in ") {
            continue;
        }
        for name in first_names(rest) {
            if name != *own && modules.contains(name) {
                let line = before.lines().count();
                let place = format!("{file}:{line}");
                arrows.entry((own.to_string(), name.to_owned())).or_insert(place);
            }
        }
    }
}

/// Returns the first names of a path; a group has several.
fn first_names(path: &str) -> Vec<&str> {
    let is_of_name = |c: char| c.is_alphanumeric() || c == '_';
    let first = |text: &str| text.find(|c| !is_of_name(c)).unwrap_or(text.len());
    let Some(group) = path.strip_prefix('{') else { return vec![&path[..first(path)]] };
    let (mut names, mut depth) = (Vec::new(), 0);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            _ => {}
        }
        let begins = is_of_name(c) && !group[..at].ends_with(|c| is_of_name(c) || c == ':');
        if depth == 0 && begins {
            names.push(&group[at..at + first(&group[at..])]);
        }
    }
    names
}

/// Keeps the arrows that are part of a cycle, or lead from one cycle to another.
fn circles(mut arrows: Arrows) -> Arrows {
    loop {
        let from: BTreeSet<String> = arrows.keys().map(|(from, _)| from.clone()).collect();
        let to: BTreeSet<String> = arrows.keys().map(|(_, to)| to.clone()).collect();
        let count = arrows.len();
        arrows.retain(|(tail, head), _| to.contains(tail) && from.contains(head));
        if arrows.len() == count {
            return arrows;
        }
    }
}

#[test]
fn imports_form_no_circle() {
    for room in ROOMS {
        let root = Path::new(crate::ROOT).join(room);
        let below = room.split_once("/src/");
        let own = below.map_or("crate::".to_owned(), |(_, below)| format!("crate::{below}::"));
        let mut files = Vec::new();
        crate::collect(&root, &root, &mut files);
        let modules = files.iter().filter_map(|file| Some((*module(file).first()?).to_owned()));
        let modules: BTreeSet<String> = modules.collect();
        let mut arrows = Arrows::new();
        for file in &files {
            let text = fs::read_to_string(root.join(file)).expect("text files are UTF-8");
            add(&mut arrows, &own, file, &text, &modules);
        }
        assert!(!arrows.is_empty(), "no imports in {room}");
        let circles = circles(arrows);
        assert!(circles.is_empty(), "modules of {room} import each other: {circles:#?}");
    }
}

/// Returns the modules of the command line that code imports.
fn from_above(code: &str) -> Vec<&str> {
    let imports = code.match_indices("cli::");
    imports.flat_map(|(at, cli)| first_names(&code[at + cli.len()..])).collect()
}

#[test]
fn the_command_line_is_above_the_rooms() {
    let root = Path::new(crate::ROOT).join(PROGRAM);
    let mut files = Vec::new();
    crate::collect(&root, &root, &mut files);
    files.retain(|file| file.ends_with(".rs") && !ABOVE.iter().any(|it| file.starts_with(it)));
    assert!(files.iter().any(|file| file == "server/mod.rs"), "the server is not found");
    for file in files {
        let text = fs::read_to_string(root.join(&file)).expect("text files are UTF-8");
        let code = crate::code::only(&text);
        let names = from_above(&code);
        assert!(names.is_empty(), "{PROGRAM}/{file} imports {names:?} from the command line");
    }
    assert_eq!(from_above("use crate::cli::{values::size, serve};"), ["values", "serve"]);
}

#[test]
fn a_circle_is_found() {
    let modules = ["a", "b", "c", "d"].map(str::to_owned).into();
    let mut arrows = Arrows::new();
    for (file, text) in [
        ("a/mod.rs", "use super::b::B;"),
        ("a/inner.rs", "use super::inner;\nuse super::super::{Root, c::{C, d}};"),
        ("d.rs", "use super::a::A;"),
        ("b/tests.rs", "use super::super::a::A;"),
        ("b/mod.rs", "use crate::a::A;\n#[cfg(test)]\nmod tests {\n    use crate::room::a::A;"),
    ] {
        add(&mut arrows, "crate::room::", file, text, &modules);
    }
    assert!(circles(arrows.clone()).is_empty(), "{arrows:?}");
    let pair = |from: &str, to: &str| (from.to_owned(), to.to_owned());
    for code in ["fn f() { super::a::g() }", "fn f() { crate::room::a::g() }"] {
        let mut arrows = arrows.clone();
        add(&mut arrows, "crate::room::", "c.rs", code, &modules);
        let found: Vec<_> = circles(arrows).into_keys().collect();
        assert_eq!(found, [pair("a", "c"), pair("c", "a")]);
    }
}

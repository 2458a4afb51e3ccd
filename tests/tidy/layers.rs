//! Directories whose modules do not import each other in a cycle, and a program whose directories
//! do not import its command line: a reader can study one after the other.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Directories with cycles, and the modules of each cycle. No directory may be added.
const CIRCLES: [(&str, &str); 1] = [
    // A drive with a cache is one of the designs of a simulated drive, and consists of two of them,
    // each of any design. Its parameters and counters contain theirs. Without the cycle, these
    // recursive types would need traits that nothing else uses, or would share one file.
    ("crates/pumice-sim/src/drive", "cached design simulated spec"),
];

/// Names of the file that declares the modules of a directory.
const MAPS: [&str; 3] = ["lib.rs", "main.rs", "mod.rs"];

/// The program, and the files that may import its command line.
const PROGRAM: &str = "crates/pumice/src";
const ABOVE: [&str; 2] = ["cli/", "main.rs"];

/// An import of one module of a directory by another: its location, once for each pair.
type Arrows = BTreeMap<(String, String), String>;

/// Modules of a directory by the names that lead to them: their own, and those of the items that
/// the file of the directory imports from them.
type Names = BTreeMap<String, String>;

/// Returns the path of the module that a file of a directory is: `drive/open.rs` is `drive::open`.
fn module(file: &str) -> Vec<&str> {
    let mut path: Vec<&str> = file.trim_end_matches(".rs").split('/').collect();
    if matches!(path.last(), Some(&"mod" | &"lib")) {
        path.pop();
    }
    path
}

/// Returns the names of a directory with these modules and this text of its own file.
fn names(modules: impl Iterator<Item = String>, text: &str) -> Names {
    let mut names: Names = modules.map(|module| (module.clone(), module)).collect();
    let code = crate::code::only(text);
    for (at, import) in code.match_indices("use ") {
        let path = code[at + import.len()..].split(';').next().unwrap_or_default();
        let mut items = path.trim_start_matches("self::").split(|c: char| !is_of_name(c));
        let Some(module) = items.next().and_then(|first| names.get(first).cloned()) else {
            continue;
        };
        for item in items.filter(|item| !item.is_empty()) {
            names.entry(item.to_owned()).or_insert_with(|| module.clone());
        }
    }
    names
}

fn is_of_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Adds the imports of a file of a directory, given by its path below that directory, from other
/// modules of the directory, whose path in its crate is `root`.
fn add(arrows: &mut Arrows, root: &str, file: &str, text: &str, names: &Names) {
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
            if let Some(module) = names.get(name).filter(|module| *module != own) {
                let line = before.lines().count();
                let place = format!("{file}:{line}");
                arrows.entry((own.to_string(), module.clone())).or_insert(place);
            }
        }
    }
}

/// Returns the first names of a path; a group has several.
fn first_names(path: &str) -> Vec<&str> {
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

/// Returns the imports between the modules of a directory.
fn arrows(room: &str) -> Arrows {
    let root = Path::new(crate::ROOT).join(room);
    let own = match room.split_once("/src/") {
        Some((_, below)) => format!("crate::{}::", below.replace('/', "::")),
        None => "crate::".to_owned(),
    };
    let mut files = Vec::new();
    crate::collect(&root, &root, &mut files);
    files.retain(|file| file.ends_with(".rs"));
    let text = |file: &str| fs::read_to_string(root.join(file)).expect("text files are UTF-8");
    let modules = files.iter().filter_map(|file| Some((*module(file).first()?).to_owned()));
    let map = MAPS.iter().find(|map| files.iter().any(|file| file == *map));
    let names = names(modules, &text(map.expect("a room has a file of its own")));
    let mut arrows = Arrows::new();
    files.iter().for_each(|file| add(&mut arrows, &own, file, &text(file), &names));
    arrows
}

#[test]
fn imports_form_no_circle() {
    let crates = Path::new(crate::ROOT).join("crates");
    let mut files = Vec::new();
    crate::collect(&crates, &crates, &mut files);
    let rooms = files.iter().filter_map(|file| {
        let (room, map) = file.rsplit_once('/')?;
        let is_room = MAPS.contains(&map) && room.contains("/src") && !room.contains("/tests");
        is_room.then(|| format!("crates/{room}"))
    });
    let rooms: BTreeSet<String> = rooms.collect();
    assert!(rooms.contains("crates/pumice-drive/src/controller"), "the walk found no rooms");
    let mut found = Vec::new();
    for room in rooms {
        let circles = circles(arrows(&room));
        let modules: BTreeSet<&str> = circles.keys().map(|(tail, _)| tail.as_str()).collect();
        let modules = Vec::from_iter(modules).join(" ");
        if !CIRCLES.contains(&(&*room, &*modules)) {
            assert!(circles.is_empty(), "modules of {room} import each other: {circles:#?}");
        } else {
            found.push(room);
        }
    }
    assert_eq!(found, CIRCLES.map(|(room, _)| room), "a listed room has another circle, or none");
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
    let modules = ["a", "b", "c", "d"].map(str::to_owned).into_iter();
    let names = names(modules, "pub use self::a::{A, inner};\nuse d::D;\nuse other::c;");
    let mut arrows = Arrows::new();
    for (file, text) in [
        ("a/mod.rs", "use super::b::B;"),
        ("a/inner.rs", "use super::inner;\nuse super::super::{Root, c::{C, d}};"),
        ("d.rs", "use super::a::A;"),
        ("b/tests.rs", "use super::super::a::A;"),
        ("b/mod.rs", "use crate::a::A;\n#[cfg(test)]\nmod tests {\n    use crate::room::a::A;"),
    ] {
        add(&mut arrows, "crate::room::", file, text, &names);
    }
    assert!(circles(arrows.clone()).is_empty(), "{arrows:?}");
    let pair = |from: &str, to: &str| (from.to_owned(), to.to_owned());
    for code in ["fn f() { super::a::g() }", "fn f() { crate::room::a::g() }", "use super::A;"] {
        let mut arrows = arrows.clone();
        add(&mut arrows, "crate::room::", "c.rs", code, &names);
        let found: Vec<_> = circles(arrows).into_keys().collect();
        assert_eq!(found, [pair("a", "c"), pair("c", "a")]);
    }
}

//! The face of the library: the names at the root of the crate and the methods of `Drive`.
//!
//! `crates/pumice-drive/api.txt` lists both, so that a change to them shows in a review; the test
//! writes the list again if `UPDATE_DOCS` is set. Every type in a signature is at the root, too,
//! where an embedder finds it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Where the methods are.
const CONTROLLER: &str = "crates/pumice-drive/src/controller";

/// The names at the root.
const ROOT: &str = "crates/pumice-drive/src/lib.rs";

/// The list.
const LIST: &str = "crates/pumice-drive/api.txt";

/// Names of Rust itself.
const OF_RUST: [&str; 13] = [
    "Self", "Rc", "Arc", "Result", "Option", "Some", "Vec", "String", "Fn", "FnMut", "FnOnce",
    "AsyncFn", "Range",
];

/// Returns the signatures of the public methods of `Drive`, each on one line, without those that
/// are hidden from the documentation.
fn methods(text: &str) -> Vec<String> {
    let (mut found, mut in_drive, mut is_hidden) = (Vec::new(), false, false);
    let mut signature: Option<String> = None;
    for line in text.lines() {
        match line {
            "impl Drive {" => in_drive = true,
            "}" => in_drive = false,
            "    #[doc(hidden)]" => is_hidden = true,
            _ => {}
        }
        let begins = line.starts_with("    pub fn ") || line.starts_with("    pub async fn ");
        if in_drive && begins && !std::mem::take(&mut is_hidden) {
            signature = Some(String::new());
        }
        let Some(so_far) = &mut signature else { continue };
        so_far.push_str(line.trim_start());
        if so_far.ends_with(',') {
            so_far.push(' ');
        }
        if let Some(whole) = so_far.strip_suffix(" {") {
            found.push(whole.replace(", )", ")").replace(", mut ", ", ").replace("(mut ", "("));
            signature = None;
        }
    }
    found
}

/// Returns the words of a text that may be names.
fn names(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// Returns the paths of the `pub use` declarations of a file, one for each name.
fn exports(code: &str) -> Vec<String> {
    let uses = code.split("pub use ").skip(1).filter_map(|rest| rest.split_once(';'));
    let mut all = Vec::new();
    for (path, _) in uses {
        let (module, list) = path.rsplit_once("::").unwrap_or(("", path));
        let (module, list) = path.split_once("::{").unwrap_or((module, list));
        let module = module.strip_prefix("crate::").unwrap_or(module);
        all.extend(names(list).map(|name| format!("{module}::{name}")));
    }
    all
}

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(crate::ROOT).join(path)).unwrap_or_default()
}

/// Returns the signatures of all public methods of `Drive`, sorted.
fn methods_of_drive() -> BTreeSet<String> {
    let root = Path::new(crate::ROOT).join(CONTROLLER);
    let mut files = Vec::new();
    crate::collect(&root, &root, &mut files);
    let files = files.iter().filter(|file| !file.starts_with("tests/"));
    files.flat_map(|file| methods(&read(&format!("{CONTROLLER}/{file}")))).collect()
}

#[test]
fn types_of_the_drive_are_at_the_root() {
    let face = read(ROOT);
    let code = crate::code::only(&face);
    let exported: BTreeSet<&str> = names(&code).chain(OF_RUST).collect();
    let methods = methods_of_drive();
    let words = methods.iter().flat_map(|method| names(method));
    let types: BTreeSet<&str> = words.filter(|it| it.starts_with(char::is_uppercase)).collect();
    assert!(types.contains("SnapshotInfo"), "no methods were found: {types:?}");
    let missing: Vec<_> = types.difference(&exported).collect();
    assert!(missing.is_empty(), "not in lib.rs, though methods of Drive have them: {missing:?}");
}

#[test]
fn the_list_of_the_library_is_current() {
    let mut exports = exports(&crate::code::only(&read(ROOT)));
    exports.sort();
    let lines = exports.into_iter().chain(methods_of_drive());
    let list: String = lines.map(|line| line + "\n").collect();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(Path::new(crate::ROOT).join(LIST), &list).expect("written");
    }
    let why = "if the library should change, run this test with UPDATE_DOCS=1";
    assert!(read(LIST) == list, "{LIST} is not the face of the library: {why}");
}

#[test]
fn signatures_are_read() {
    let text = r"
impl Drive {
    pub async fn f(
        &self,
        wanted: Wanted,
    ) -> Result<Done> {
        Inner::new()
    }
    #[doc(hidden)]
    pub fn g(&self) -> Hidden {
    }
    fn h() -> Private {
    }
}
impl Other {
    pub fn i() -> Foreign {
    }
}
";
    assert_eq!(methods(text), ["pub async fn f(&self, wanted: Wanted) -> Result<Done>"]);
}

#[test]
fn exports_are_read() {
    let text =
        "pub mod a;\npub use crate::a::{\n    B, C,\n};\npub use a::d::E;\npub use uuid::F;\n";
    assert_eq!(exports(text), ["a::B", "a::C", "a::d::E", "uuid::F"]);
}

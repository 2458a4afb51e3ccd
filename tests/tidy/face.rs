//! The face of the library: an embedder finds every type of the methods of `Drive` where the
//! documentation says.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Where the methods are.
const CONTROLLER: &str = "crates/pumice-drive/src/controller";

/// Names of Rust itself.
const OF_RUST: [&str; 13] = [
    "Self", "Rc", "Arc", "Result", "Option", "Some", "Vec", "String", "Fn", "FnMut", "FnOnce",
    "AsyncFn", "Range",
];

/// Returns the names of types in the signatures of the public methods of `Drive`, without those
/// that are hidden from the documentation.
fn types_of_methods(text: &str) -> BTreeSet<&str> {
    let (mut types, mut in_drive, mut in_signature, mut is_hidden) =
        (BTreeSet::new(), false, false, false);
    for line in text.lines() {
        match line {
            "impl Drive {" => in_drive = true,
            "}" => in_drive = false,
            "    #[doc(hidden)]" => is_hidden = true,
            _ => {}
        }
        let begins = line.starts_with("    pub fn ") || line.starts_with("    pub async fn ");
        in_signature |= in_drive && begins && !is_hidden;
        if in_signature {
            let words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
            types.extend(words.filter(|word| word.starts_with(char::is_uppercase)));
        }
        if begins || line.ends_with('}') {
            is_hidden = false;
        }
        in_signature &= !line.ends_with('{');
    }
    types.retain(|name| !OF_RUST.contains(name));
    types
}

#[test]
fn types_of_the_drive_are_at_the_root() {
    let root = Path::new(crate::ROOT);
    let read = |path: &str| fs::read_to_string(root.join(path)).expect("a source");
    let face = read("crates/pumice-drive/src/lib.rs");
    let code = crate::code::only(&face);
    let exported: BTreeSet<&str> = code.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    let mut files = Vec::new();
    crate::collect(&root.join(CONTROLLER), &root.join(CONTROLLER), &mut files);
    let sources: Vec<String> = files
        .iter()
        .filter(|file| !file.starts_with("tests/"))
        .map(|file| read(&format!("{CONTROLLER}/{file}")))
        .collect();
    let types: BTreeSet<&str> = sources.iter().flat_map(|text| types_of_methods(text)).collect();
    assert!(types.contains("SnapshotInfo"), "no methods were found: {types:?}");
    let missing: Vec<_> = types.difference(&exported).collect();
    assert!(missing.is_empty(), "not in lib.rs, though methods of Drive have them: {missing:?}");
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
    assert_eq!(types_of_methods(text), BTreeSet::from(["Done", "Wanted"]));
}

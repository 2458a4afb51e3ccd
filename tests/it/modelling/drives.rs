//! Goal: `pumice drives` lists the drives that can be modelled and explains each, for people and
//! for programs, and reports errors in a name or a file.

use std::fs;

use serde_json::Value;

use crate::harness::pumice;

fn json(args: &[&str]) -> Value {
    let finished = pumice(&[&["drives"], args, &["--json"]].concat());
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    serde_json::from_str(&finished.stdout).expect("JSON")
}

fn text(args: &[&str]) -> String {
    let finished = pumice(&[&["drives"], args].concat());
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let wide = finished.stdout.lines().find(|line| line.chars().count() > 100);
    assert_eq!(wide, None, "a line is too wide");
    finished.stdout
}

#[test]
fn every_drive_is_listed_and_explained() {
    let list = text(&[]);
    let listed = json(&[]);
    let listed = listed.as_array().expect("a list");
    assert_eq!(list.lines().count(), listed.len() + 2, "a header of two lines\n{list}");
    for (line, of) in list.lines().skip(2).zip(listed) {
        let id = of["id"].as_str().expect("an id");
        assert!(line.starts_with(id) && line.contains(of["kind"].as_str().unwrap()), "{line}");
        let explained = json(&[id]);
        assert_eq!(explained["id"], of["id"]);
        assert_eq!(explained["kind"], of["kind"]);
        assert_eq!(explained["size_bytes"]["is"], of["size_bytes"]);
        let percent = &explained["computed"]["over_provisioning_percent"];
        assert_eq!(percent, &of["over_provisioning_percent"]);
        // The text has every number with its basis, and no others.
        let explanation = text(&[id]);
        let bases = explanation.matches(" source: ").count()
            + explanation.matches(" fitted: ").count()
            + explanation.matches(" guess: ").count();
        assert_eq!(bases, told(&explained), "{explanation}");
    }
}

/// Returns the number of objects that state how they are known.
fn told(value: &Value) -> usize {
    let Value::Object(object) = value else { return 0 };
    usize::from(object.contains_key("is")) + object.values().map(told).sum::<usize>()
}

#[test]
fn a_drive_is_explained_with_units_and_arithmetic() {
    let text = text(&["ocz-vertex-2-50"]);
    for line in [
        &["OCZ Vertex 2 50 GB"][..],
        &["kind", "log,", "from", "2010"],
        &["size_bytes", "50.02", "GB", "source:"],
        &["program_ns", "940", "µs", "source:"],
        &["over_provisioning_percent", "37.38", "%"],
        &["program_bytes_per_s", "123.2", "MB/s"],
    ] {
        let is_there = text.lines().any(|shown| {
            let words: Vec<&str> = shown.split_whitespace().collect();
            words.starts_with(&line.join(" ").split(' ').collect::<Vec<_>>())
        });
        assert!(is_there, "{line:?} in\n{text}");
    }
}

#[test]
fn own_files_are_explained_and_mistakes_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("mine.toml");
    let name = path.to_str().expect("a plain path");
    let theirs =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../crates/pumice-sim/src/profiles/hdd-2010.toml");
    let theirs = fs::read_to_string(theirs).expect("a profile");
    fs::write(&path, &theirs).expect("a file");
    let explained = json(&[name]);
    assert_eq!((&explained["id"], &explained["disk"]["rpm"]["is"]), (&"mine".into(), &7200.into()));
    fs::write(&path, theirs.replace("[disk]", "[desk]")).expect("a file");
    for (name, words) in [
        (name, "mine.toml, line 18: unknown field `desk`"),
        ("hdd2010", "no drive or file is called hdd2010, did you mean hdd-2010? Drives: "),
        ("./no-such.toml", "cannot read ./no-such.toml"),
    ] {
        let finished = pumice(&["drives", name]);
        assert_eq!((finished.code, finished.stdout.as_str()), (Some(2), ""), "{name}");
        assert!(finished.stderr.contains(words), "{words}: {}", finished.stderr);
        assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
    }
}

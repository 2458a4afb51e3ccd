//! Goal: all JSON output of the program, and a file of results, follows a schema of `pumice
//! schema`, and has no undescribed field.
//!
//! Method: the harness checks each output of each test against the schema that the output names.
//! This file checks the output of quick commands, a file of a real benchmark, the schemas
//! themselves, and their list. The schemas allow further fields, for readers of later versions;
//! here they do not.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

use serde_json::Value;

use crate::harness::{Drive, PUMICE, pumice, run_ok};

/// Panics if the output of the program is JSON that violates its schema.
pub(crate) fn hold(output: &str) {
    if !output.starts_with(['{', '[']) {
        return;
    }
    let Ok(value) = serde_json::from_str::<Value>(output) else { return };
    let named = value.get("schema").or_else(|| value.get(0)?.get("schema"));
    if let Some(name) = named.and_then(Value::as_str) {
        let wrong = faults(name, &value);
        assert!(wrong.is_empty(), "not as pumice schema {name} says:\n{}", wrong.join("\n"));
    }
}

/// Returns the list of schemas, or the schema of a name.
fn printed(name: Option<&str>) -> String {
    run_ok(Command::new(PUMICE).arg("schema").args(name)).stdout
}

/// Returns the schema of a name; the program runs only once.
fn schema(name: &str) -> Value {
    static SCHEMAS: Mutex<BTreeMap<String, Value>> = Mutex::new(BTreeMap::new());
    if let Some(schema) = SCHEMAS.lock().expect("no panic").get(name) {
        return schema.clone();
    }
    let schema: Value = serde_json::from_str(&printed(Some(name))).expect("a schema is JSON");
    SCHEMAS.lock().expect("no panic").insert(name.to_owned(), schema.clone());
    schema
}

/// Returns the violations of a schema by a value, one a line.
fn faults(name: &str, value: &Value) -> Vec<String> {
    let mut schema = schema(name);
    close(&mut schema, false);
    let validator = jsonschema::validator_for(&schema).expect("a valid schema");
    let fault =
        |error: jsonschema::ValidationError<'_>| format!("{}: {error:.300}", error.instance_path());
    validator.iter_errors(value).map(fault).take(20).collect()
}

/// Restricts every object to its described fields, except one that describes a part of its fields.
fn close(schema: &mut Value, is_part: bool) {
    match schema {
        Value::Object(parts) => {
            let has_fields = parts.contains_key("properties");
            if has_fields && !is_part && !parts.contains_key("additionalProperties") {
                let has_more = parts.contains_key("oneOf");
                let rest = if has_more { "unevaluatedProperties" } else { "additionalProperties" };
                parts.insert(rest.into(), false.into());
            }
            parts.iter_mut().for_each(|(key, part)| close(part, has_fields && key == "oneOf"));
        }
        Value::Array(parts) => parts.iter_mut().for_each(|part| close(part, is_part)),
        _ => {}
    }
}

/// Runs the program; it must succeed and print this schema.
fn prints(schema: &str, args: &[&str]) -> Value {
    let finished = pumice(args);
    assert_eq!(finished.code, Some(0), "{args:?}: {}", finished.stderr);
    let value: Value = serde_json::from_str(&finished.stdout).expect("JSON");
    let named = value.get("schema").or_else(|| value.get(0)?.get("schema"));
    assert_eq!(named, Some(&schema.into()), "{args:?}");
    value
}

#[test]
fn drives_are_printed_as_their_schemas_say() {
    let folder = tempfile::Builder::new().prefix("pumice-").tempdir().expect("temp dir");
    let path = |name: &str| folder.path().join(name).to_str().expect("plain").to_owned();
    let drive = path("a.pumice");
    prints("create-1", &["create", &drive, "--size", "64M", "--json"]);
    prints("info-1", &["info", &drive, "--json"]);
    prints("check-1", &["check", &drive, "--json"]);
    prints("scrub-1", &["scrub", &drive, "--json"]);
    prints("compact-1", &["compact", &drive, "--json"]);
    prints("set-1", &["set", &drive, "codec=zstd:3", "--json"]);
    let (encrypted, key) = (path("encrypted.pumice"), path("key"));
    fs::write(&key, [7; 32]).expect("a key");
    let create = ["create", &encrypted, "--size", "64M", "--encrypt", "--key-file", &key, "--json"];
    prints("create-1", &create);
    prints("key-1", &["key", "list", &encrypted, "--json"]);
    let add = ["key", "add", &encrypted, "--key-file", &key, "--new-key-file", &key, "--json"];
    prints("key-1", &add);
    let rekey = ["rekey", &encrypted, "--key-file", &key, "--drop-other-keys", "--json"];
    prints("rekey-1", &rekey);
    prints("locked-1", &["info", &encrypted, "--json"]);
    let snapshot = format!("{drive}@nightly");
    prints("snapshot-1", &["snapshot", "create", &snapshot, "--json"]);
    prints("snapshot-1", &["snapshot", "list", &drive, "--json"]);
    prints("diff-1", &["diff", &snapshot, &drive, "--json"]);
    let (transfer, copy) = (path("transfer"), path("copy.pumice"));
    prints("send-1", &["send", &snapshot, "--output", &transfer, "--json"]);
    prints("receive-1", &["receive", &copy, "--create", "--input", &transfer, "--json"]);
    prints("snapshot-1", &["snapshot", "rollback", &snapshot, "--json"]);
    prints("snapshot-1", &["snapshot", "rotate", &drive, "--keep", "hourly:1", "--json"]);
    let clone = path("clone.pumice");
    prints("clone-1", &["clone", &snapshot, &clone, "--json"]);
    prints("snapshot-1", &["snapshot", "list", &drive, "--json"]);
    prints("info-1", &["info", &clone, "--json"]);
    prints("flatten-1", &["flatten", &clone, "--json"]);
    prints("snapshot-1", &["snapshot", "delete", &snapshot, "--json"]);
    prints("resize-1", &["resize", &drive, "--size", "80M", "--json"]);
    prints("list-1", &["list", &drive, "--json"]);
    prints("extract-1", &["extract", &drive, &path("image"), "--json"]);
    prints("rebuild-1", &["rebuild", &drive, &path("b.pumice"), "--json"]);
    let (one, other) = (path("one"), path("other"));
    prints("create-1", &["create", &one, &other, "--mirror", "--size", "16M", "--json"]);
    prints("device-1", &["device", "list", &other, "--json"]);
    prints("device-1", &["device", "fail", &one, &other, "--json"]);
    prints("info-1", &["info", &one, "--json"]);
}

#[cfg(feature = "bench")]
#[test]
fn measurements_are_printed_as_their_schemas_say() {
    let folder = tempfile::Builder::new().prefix("pumice-").tempdir().expect("temp dir");
    let path = |name: &str| folder.path().join(name).to_str().expect("plain").to_owned();
    let (data, file) = (path("data"), path("results.jsonl"));
    prints(
        "payload-1",
        &["payload", "--saved", "50%", "--size", "1M", "--output", &data, "--json"],
    );
    prints("profile-1", &["payload", "--profile-of", &data, "--json"]);
    prints("scan-1", &["scan", &data, "--all", "--full-speed", "--json"]);
    prints("drives-1", &["drives", "--json"]);
    prints("drive-1", &["drives", "micro-center-64", "--json"]);
    let disk = ["--profile", "hdd-2010", "--span", "4M", "--seed", "3", "--json"];
    let cached = ["--cache", "ram:1M:write-back", "--workload", "random-write"];
    let made = prints("forecast-1", &[&["forecast"], &cached[..], &disk[..]].concat());
    assert!(made["tests"][0]["drive"]["cache"]["past_fraction"].is_number(), "{made}");
    let bench = ["bench", &path("target"), "--quick", "--span", "8M", "--seconds", "0.05"];
    prints("plan-1", &[&bench[..], &["--dry-run", "--json"]].concat());
    prints("bench-1", &[&bench[..], &["--runs", "2", "--output", &file, "--json"]].concat());
    let lines = fs::read_to_string(&file).expect("results");
    let lines: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert!(lines.len() > 2 && lines[0]["pumice_bench"] == 2, "{}", lines[0]);
    for line in &lines {
        let wrong = faults("results-2", line);
        assert!(wrong.is_empty(), "{}\n{line}", wrong.join("\n"));
    }
    // Facts about this machine, and its other load during the bench.
    let facts = lines[0]["environment"].as_array().expect("facts");
    for name in ["host", "distribution", "kernel", "file system", "file system used"] {
        assert!(facts.iter().any(|fact| fact[0] == name), "{name} in {facts:?}");
    }
    // The machine's counters mean nothing for a run of a few milliseconds.
    let is_seen = |line: &Value| line["machine"]["others_processors"].is_number();
    assert!(lines.iter().any(is_seen), "{}", lines[1]);
    prints("compare-1", &["compare", &file, &file, "--json"]);
}

#[test]
fn output_that_no_schema_describes_is_a_fault() {
    let drive = Drive::create("64M", &[]);
    let info = pumice(&["info", drive.path().to_str().expect("plain"), "--json"]);
    let mut info: Value = serde_json::from_str(&info.stdout).expect("JSON");
    assert_eq!(faults("info-1", &info), Vec::<String>::new());
    info["surprise"] = 1.into();
    info["size_bytes"] = "many".into();
    info.as_object_mut().expect("an object").remove("uuid");
    assert_eq!(faults("info-1", &info).len(), 3);
}

#[test]
fn schemas_describe_every_field() {
    let mut wrong = Vec::new();
    for line in printed(None).lines() {
        let name = line.split_whitespace().next().expect("a name");
        let schema = schema(name);
        assert!(jsonschema::meta::is_valid(&schema), "{name} is not a schema");
        assert_eq!((&schema["$id"], schema["title"].is_string()), (&name.into(), true));
        undescribed(&schema, name, &mut wrong);
    }
    assert!(wrong.is_empty(), "fields without a description:\n{}", wrong.join("\n"));
}

/// Adds the fields of a schema that have no description.
fn undescribed(schema: &Value, at: &str, wrong: &mut Vec<String>) {
    match schema {
        Value::Object(parts) => {
            for (key, part) in parts {
                undescribed(part, &format!("{at}/{key}"), wrong);
                let fields = part.as_object().filter(|_| key == "properties");
                // An alternative with one field describes it.
                let is_alternative = at.ends_with("/oneOf") && schema.get("description").is_some();
                for (name, field) in fields.into_iter().flatten() {
                    // The value of a field that selects an alternative describes it.
                    let is_told = field.get("description").is_some()
                        || field.get("const").is_some()
                        || is_alternative && fields.is_some_and(|fields| fields.len() == 1);
                    if !is_told {
                        wrong.push(format!("{at}/{name}"));
                    }
                }
            }
        }
        Value::Array(parts) => parts.iter().for_each(|part| undescribed(part, at, wrong)),
        _ => {}
    }
}

/// Guards against a command whose JSON has no schema.
#[test]
fn every_command_that_prints_json_has_a_schema() {
    let schemas = printed(None);
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let help = fs::read_to_string(root.join("docs/cli.md")).expect("a document");
    for section in help.split("\n### ").skip(1) {
        let command = section.lines().next().unwrap_or_default().trim_matches('`');
        if !section.contains("--json") {
            continue;
        }
        let command = command.trim_start_matches("pumice ").split_whitespace().next();
        let row = format!("  pumice {} ", command.unwrap_or_default());
        assert!(schemas.contains(&row), "no schema of {row}");
    }
}

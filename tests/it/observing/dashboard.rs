//! Goal: the dashboard in `docs/` fits Grafana's model and requests existing metrics.
//!
//! Method: Grafana is not available here, so the file is checked for the fields that Grafana needs;
//! every name and label in its expressions is looked up in a server's answer, and promtool parses
//! the expressions.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::harness::{COMMAND_LIMIT, Drive, run, tool};
use crate::observing::http::{get, serve};

/// Columns of Grafana's grid.
const COLUMNS: u64 = 24;

fn dashboard() -> Value {
    let file =
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("docs/grafana-pumice.json");
    let text = fs::read_to_string(file).expect("read the dashboard");
    serde_json::from_str(&text).expect("the dashboard is JSON")
}

fn panels(dashboard: &Value) -> &[Value] {
    dashboard["panels"].as_array().expect("panels")
}

/// Returns every expression, with the variables that Grafana fills in replaced.
fn expressions(dashboard: &Value) -> Vec<String> {
    let targets = panels(dashboard).iter().flat_map(|panel| {
        panel["targets"].as_array().unwrap_or_else(|| panic!("no targets: {panel}"))
    });
    let expressions = targets.map(|target| target["expr"].as_str().expect("an expression"));
    let plain = |text: &str| text.replace("$__rate_interval", "1m").replace("$drive", ".*");
    expressions.map(plain).collect()
}

/// Returns the names in an expression that begin with our prefix.
fn names(expression: &str) -> impl Iterator<Item = &str> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("pumice_"))
}

#[test]
fn the_dashboard_has_the_form_that_grafana_reads() {
    let dashboard = dashboard();
    assert_eq!(dashboard["uid"], "pumice");
    assert!(dashboard["schemaVersion"].as_u64().is_some_and(|version| version >= 36));
    let variables = dashboard["templating"]["list"].as_array().expect("variables");
    let named: BTreeSet<&str> = variables.iter().filter_map(|one| one["name"].as_str()).collect();
    assert_eq!(named, BTreeSet::from(["datasource", "drive"]));
    let mut ids = BTreeSet::new();
    let mut taken: BTreeSet<(u64, u64)> = BTreeSet::new();
    for panel in panels(&dashboard) {
        let title = panel["title"].as_str().filter(|title| !title.is_empty()).expect("a title");
        assert!(ids.insert(panel["id"].as_u64().expect("an id")), "{title}: the id is there twice");
        let kind = panel["type"].as_str();
        assert!(["stat", "timeseries"].map(Some).contains(&kind), "{title}: {kind:?}");
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        assert!(panel["fieldConfig"]["defaults"]["unit"].is_string(), "{title}: no unit");
        let at = |key: &str| panel["gridPos"][key].as_u64().expect("a place");
        assert!(at("x") + at("w") <= COLUMNS && at("w") > 0 && at("h") > 0, "{title}: its place");
        for (x, y) in (at("x")..at("x") + at("w"))
            .flat_map(|x| (at("y")..at("y") + at("h")).map(move |y| (x, y)))
        {
            assert!(taken.insert((x, y)), "{title} covers another panel");
        }
        let refs: BTreeSet<_> = panel["targets"]
            .as_array()
            .expect("targets")
            .iter()
            .map(|target| target["refId"].as_str().expect("a refId"))
            .collect();
        assert_eq!(refs.len(), panel["targets"].as_array().expect("targets").len(), "{title}");
    }
}

#[test]
fn every_metric_of_the_dashboard_is_served() {
    let drive = Drive::create("64M", &[]);
    let (server, address) = serve(&drive, &[]);
    let metrics = get(&address, "/metrics").body;
    let dashboard = dashboard();
    let expressions = expressions(&dashboard);
    assert!(expressions.len() > 15, "{}", expressions.len());
    let served: BTreeSet<&str> = metrics
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split(['{', ' ']).next())
        .collect();
    // A counter without series is only described, and without the suffix of its series.
    let described: BTreeSet<String> = metrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"))
        .map(|name| format!("{name}_total"))
        .collect();
    for expression in &expressions {
        assert!(names(expression).next().is_some(), "{expression}");
        for name in names(expression) {
            assert!(
                served.contains(name) || described.contains(name),
                "{name} of {expression} is not served"
            );
        }
    }
    assert!(dashboard["templating"].to_string().contains("label_values(pumice_size_bytes, drive)"));
    assert!(served.contains("pumice_size_bytes"));
    server.stop();
}

#[test]
fn promtool_parses_every_expression() {
    let Some(promtool) = tool("promtool") else { return };
    let directory = tempfile::Builder::new().prefix("pumice-").tempdir().expect("temp dir");
    let rules = directory.path().join("rules.json");
    // A rule file is YAML, and JSON is YAML.
    let rule = |(at, expr): (usize, String)| {
        let name = format!("r:{at}");
        serde_json::json!({ "record": name, "expr": expr })
    };
    let list: Vec<_> = expressions(&dashboard()).into_iter().enumerate().map(rule).collect();
    let groups = serde_json::json!({ "groups": [{ "name": "dashboard", "rules": list }] });
    fs::write(&rules, groups.to_string()).expect("write the rules");
    let mut command = Command::new(promtool);
    let checked = run(command.args(["check", "rules"]).arg(&rules), COMMAND_LIMIT);
    assert_eq!(checked.code, Some(0), "{}\n{}", checked.stdout, checked.stderr);
}

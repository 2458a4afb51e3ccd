//! Goal: `pumice reproduce` runs published measurements on a simulated drive and reports the
//! deviation, for people and for programs; errors are named.

use std::fs;

use serde_json::Value;

use crate::harness::pumice;

/// Guards against a flattering report: its errors follow from its own numbers.
#[test]
fn a_drive_is_compared_with_published_results() {
    let finished = pumice(&["reproduce", "intel-x25-e-32", "--json"]);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let json: Value = serde_json::from_str(&finished.stdout).expect("JSON");
    let experiment = &json["experiments"][0];
    assert_eq!(experiment["drive"], "intel-x25-e-32");
    let cells = experiment["cells"].as_array().expect("cells");
    assert_eq!(cells.len(), 4);
    let (mut sum, mut count) = (0.0, 0);
    for cell in cells {
        let simulated = cell["simulated"].as_f64().expect("a number");
        let Some(published) = cell["published"].as_f64() else {
            assert_eq!(
                (&cell["error_percent"], &cell["basis"]),
                (&Value::Null, &"predicted".into())
            );
            continue;
        };
        let error = (simulated / published - 1.0) * 100.0;
        assert!((cell["error_percent"].as_f64().unwrap() - error).abs() < 1e-9, "{cell}");
        assert!(error.abs() < 6.0, "{cell}");
        sum += error.abs();
        count += 1;
    }
    let group = &json["errors"][0];
    assert_eq!((group["cells"].as_u64(), &group["basis"]), (Some(2), &"calibrated".into()));
    let mean = group["mean_percent"].as_f64().unwrap();
    assert!((mean - sum / f64::from(count)).abs() < 1e-9, "{group}");
}

#[test]
fn mistakes_are_named() {
    for (args, words) in [
        (&["intel-x25"][..], "no experiment with drive intel-x25"),
        (&["intel-x25-e-23"], "did you mean intel-x25-e-32?"),
        (&["all", "--profile", "own.toml"], "specify whose experiments to run"),
        (&["intel-x25-e-32", "--profile", "./none.toml"], "cannot read ./none.toml"),
        (&["intel-x25-e-32", "--runs", "0"], "0 is not in 1..=1000"),
    ] {
        let finished = pumice(&[&["reproduce"], args].concat());
        assert_eq!(finished.code, Some(2), "{args:?}");
        assert!(finished.stderr.contains(words), "{words}: {}", finished.stderr);
    }
}

/// A requested page exists, is self-contained, and has every cell.
#[test]
fn an_own_profile_is_run_and_a_page_is_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let page = folder.path().join("page.html");
    let profile = folder.path().join("own.toml");
    let text = include_str!("../../../crates/pumice-sim/src/profiles/intel-x25-e-32.toml");
    fs::write(&profile, text.replace("name = \"", "name = \"My ")).expect("a file");
    let profile = profile.to_str().expect("text");
    let page_path = page.to_str().expect("text");
    let args = ["reproduce", "intel-x25-e-32", "--profile", profile, "--html", page_path];
    let finished = pumice(&args);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let html = fs::read_to_string(&page).expect("a page");
    for words in ["random write, 4 KiB, depth 32", "calibrated", "mean absolute error"] {
        assert!(html.contains(words), "{words}");
    }
    assert!(!html.contains("http://") || html.contains("www.w3.org"), "nothing is loaded");
}

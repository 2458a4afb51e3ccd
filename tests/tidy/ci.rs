//! CI calls only existing targets of the Makefile, and executable programs in the tree. Its list of
//! tests that passed only when repeated agrees with nextest's report.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::ROOT;

/// Returns every command of the workflow and of `.ci/run` that begins with `make` or `.ci/`, as
/// written.
fn commands(text: &str) -> impl Iterator<Item = &str> {
    let lines = text.lines().map(|line| line.trim().trim_start_matches("- "));
    let lines = lines.map(|line| line.strip_prefix("run: ").unwrap_or(line));
    lines.filter(|line| line.starts_with("make ") || line.starts_with(".ci/"))
}

/// Returns the fault of a command that CI calls.
fn fault(command: &str, makefile: &str) -> Option<String> {
    if let Some(targets) = command.strip_prefix("make ") {
        let is_missing = |name: &&str| !makefile.contains(&format!("\n{name}: "));
        let name = targets.split_whitespace().find(is_missing)?;
        return Some(format!("the Makefile has no target {name}"));
    }
    let program = command.split_whitespace().next()?;
    let metadata = fs::metadata(Path::new(ROOT).join(program));
    let can_run = metadata.is_ok_and(|data| data.permissions().mode() & 0o111 != 0);
    (!can_run).then(|| format!("{program} is no program"))
}

#[test]
fn ci_calls_existing_targets() {
    let read = |name: &str| fs::read_to_string(Path::new(ROOT).join(name)).expect(name);
    let makefile = read("Makefile");
    for (file, least) in [(".github/workflows/ci.yml", 2), (".ci/run", 2)] {
        let text = read(file);
        let faults: Vec<_> = commands(&text).filter_map(|it| fault(it, &makefile)).collect();
        assert!(commands(&text).count() >= least, "{file} calls nothing that is looked for");
        assert!(faults.is_empty(), "{file}: {faults:?}");
    }
    assert!(fault("make demo no-such-target", &makefile).is_some());
    assert!(fault(".ci/no-such-program", &makefile).is_some());
}

/// Two attempts of one test failed before it passed; a second test failed for good.
const JUNIT: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="nextest-run" tests="2" failures="1" errors="0">
  <testsuite name="pumice::it" tests="2" disabled="0" errors="0" failures="1">
    <testcase name="model::a_drive" classname="pumice::it" time="1.5">
      <flakyFailure message="read differs" type="test failure">
        <system-out>PUMICE_SEED=77&#10;</system-out><system-err>read differs</system-err>
      </flakyFailure>
      <flakyFailure type="test timeout"><system-out>PUMICE_SEED=77</system-out></flakyFailure>
    </testcase>
    <testcase name="model::another" classname="pumice::it" time="1.5">
      <failure type="test failure">PUMICE_SEED=5</failure>
    </testcase>
  </testsuite>
</testsuites>
"#;

#[test]
fn tests_that_pass_only_when_repeated_are_named_with_their_seeds() {
    let name = format!("tidy-junit-{}.xml", std::process::id());
    let file = std::env::temp_dir().join(name);
    fs::write(&file, JUNIT).expect("a file");
    let output =
        Command::new("python3").arg("tests/flaky.py").arg(&file).current_dir(ROOT).output();
    fs::remove_file(&file).expect("the file");
    let output = output.expect("python3");
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said, "FLAKY pumice::it model::a_drive (seed 77)\n1 FLAKY\n", "{output:?}");
    assert!(output.status.success(), "{output:?}");
}

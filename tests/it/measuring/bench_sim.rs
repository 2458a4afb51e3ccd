//! Goal: `pumice bench sim:PROFILE` measures a simulated drive in virtual time: the same data and
//! the same results every time, faster for data that compresses better, and refusals with their
//! reason.
//! Method: tiny plans on built-in profiles and on one of the test's own.

use pumice_bench::results::{Results, RunResult};

use crate::harness::{COMMAND_LIMIT, run};
use crate::measuring::bench::Place;

const PRESET: &str = r#"
about = "Small."
runs = 2
span = "64M"
seconds = 0.05
[[level]]
saved = "90%"
[[level]]
saved = "0%"
[[test]]
operation = "write"
record = "1M"
depth = 4
[[test]]
operation = "random-read"
record = "4K"
depth = 32
unit = "IOPS"
[[test]]
operation = "random-write"
record = "4K"
depth = 32
unit = "IOPS"
"#;

/// Runs the preset on a target and returns the results.
fn results(place: &Place, target: &str, output: &str) -> Results {
    let finished = place.bench(&[target, "--output", output]);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    place.results(output)
}

/// Returns everything of a run except its wall-clock start.
fn measured(run: &RunResult) -> String {
    let mut run = run.clone();
    run.begun_s = 0.0;
    serde_json::to_string(&run).expect("JSON")
}

/// Guards against a wall clock or randomness in virtual time, and against a drive that does not
/// benefit from compression.
#[test]
fn a_simulated_drive_gives_the_same_every_time_and_is_faster_with_data_that_compresses() {
    let place = Place::with(PRESET);
    let first = results(&place, "sim:micro-center-64", "first");
    let again = results(&place, "sim:micro-center-64", "again");
    assert_eq!(first.runs.len(), 12);
    for (one, other) in first.runs.iter().zip(&again.runs) {
        assert_eq!(measured(one), measured(other));
        assert!(one.processor_share == 0.0 && one.sample.generation_share == 0.0, "{one:?}");
    }
    let fact = |name: &str| {
        let fact = first.header.environment.iter().find(|(known, _)| known == name);
        fact.unwrap_or_else(|| panic!("no {name}")).1.as_str()
    };
    assert_eq!((fact("profile"), fact("time")), ("micro-center-64", "virtual"));
    assert!(fact("cost model").starts_with("flash, link and commands"));
    let mean = |results: &Results, test: usize, level: usize| {
        let of = |run: &&RunResult| run.test == test && run.level == level;
        let runs: Vec<_> = results.runs.iter().filter(of).collect();
        let unit = results.header.plan.tests[test].unit;
        runs.iter().map(|run| run.value(unit)).sum::<f64>() / runs.len() as f64
    };
    // Sequential writes are limited by the link and the processor, random writes by the flash. A
    // drive without compression shows no difference.
    for test in [0, 2] {
        let gain = mean(&first, test, 0) / mean(&first, test, 1);
        assert!((1.4..4.0).contains(&gain), "test {test}: {gain}");
    }
    let plain = results(&place, "sim:intel-x25-m-g1-80", "plain");
    for test in [0, 1, 2] {
        let gain = mean(&plain, test, 0) / mean(&plain, test, 1);
        assert!((0.93..1.07).contains(&gain), "test {test} without compression: {gain}");
    }
}

/// Guards against conditions of a host that are read and then ignored.
#[test]
fn a_page_cache_takes_writes_until_it_is_full_of_them() {
    let place = Place::with(&PRESET.replace("runs = 2", "runs = 1\nflush = \"untimed\""));
    let first_write = |target: &str, output: &str| {
        let results = results(&place, target, output);
        let run = results.runs.iter().find(|run| run.test == 0 && run.level == 1);
        run.expect("a run").value(results.header.plan.tests[0].unit)
    };
    let direct = first_write("sim:micro-center-64", "direct");
    let half = "sim:micro-center-64?cache_bytes=160MiB&copy_bytes_per_s=3GB&dirty_percent=20";
    let half = first_write(half, "half");
    // Half of the written data stays in the cache, and no request waits for it.
    assert!((1.6..2.6).contains(&(half / direct)), "{half} MB/s, direct {direct}");
    let all = first_write("sim:micro-center-64?cache_bytes=1GiB&dirty_percent=40", "all");
    assert!(all > 1_000.0, "{all} MB/s: all of it stays there");
    let refused = place.bench(&["sim:micro-center-64?cache=1G"]);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("'cache' is not a condition"), "{}", refused.stderr);
}

/// Guards against a design on which some operation of a benchmark does not end.
#[test]
fn drives_that_are_no_log_are_measured_too() {
    let place = Place::with(PRESET);
    let value = |target: &str, test: usize| {
        let results = results(&place, target, &format!("{target}-{test}").replace(':', "-"));
        assert_eq!(results.runs.len(), 12, "{target}");
        let of = |run: &&RunResult| run.test == test;
        let unit = results.header.plan.tests[test].unit;
        let runs: Vec<_> = results.runs.iter().filter(of).map(|run| run.value(unit)).collect();
        runs.iter().sum::<f64>() / runs.len() as f64
    };
    let random_write = value("sim:jmicron-jmf602b", 2);
    assert!((3.0..20.0).contains(&random_write), "{random_write} a second, of 178 ms each");
    // 4.2 ms of half a turn and a short seek, less the saving by reordering.
    let random_read = value("sim:hdd-2010", 1);
    assert!((150.0..600.0).contains(&random_read), "{random_read} a second");
}

#[test]
fn errors_of_a_simulation_give_the_reason() {
    let place = Place::with(PRESET);
    let refused = |args: &[&str]| place.refused(args);
    let mapped = include_str!("../../../crates/pumice-sim/src/profiles/jmicron-jmf602b.toml");
    let other_unit = mapped.replace("unit_bytes = { is = 524_288", "unit_bytes = { is = 1_048_576");
    assert_ne!(mapped, other_unit);
    std::fs::write(place.path("unit.toml"), other_unit).expect("a file");
    let unknown = refused(&["sim:micro-center-65"]);
    assert!(unknown.contains("micro-center-64"), "{unknown}");
    let missing = refused(&["sim:mine.toml"]);
    assert!(missing.contains("mine.toml"), "{missing}");
    let unit = refused(&["sim:unit.toml"]);
    assert!(unit.contains("unit_bytes is 1048576, which cannot be simulated"), "{unit}");
    let large = refused(&["sim:micro-center-64", "--span", "1T"]);
    assert!(large.contains("use a smaller --span"), "{large}");
    let threads = refused(&["sim:micro-center-64", "--threads", "2"]);
    assert!(threads.contains("has one thread"), "{threads}");
    let mut command = place.command(&["sim:micro-center-64", "--detect-compression"]);
    let detected = run(&mut command, COMMAND_LIMIT);
    assert!(detected.stderr.contains("micro-center-64' shows its codec"), "{}", detected.stderr);
    results(&place, "sim:micro-center-64", "done");
    let mut command = place.command(&["sim:micro-center-64", "--resume", "done"]);
    let resumed = run(&mut command, COMMAND_LIMIT);
    assert!(resumed.stderr.contains("its content is lost"), "{}", resumed.stderr);
}

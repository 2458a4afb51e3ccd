//! Goal: `pumice bench A B` measures its targets in turns, keeps all results in one file, states
//! the difference that it can detect, and compares pair by pair; a gate obeys the verdict. Method:
//! tiny plans on files of the test's own; a server that delays every read, where nbdkit is
//! installed.

use std::fs;
use std::process::Command;

use pumice_bench::results::{RunResult, read};
use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{COMMAND_LIMIT, Server, pumice, run, spawn, tool, wait, wait_until};
use crate::measuring::bench::Place;

const PRESET: &str = r#"
about = "Small."
runs = 6
span = "1M"
seconds = 0.02
[[level]]
saved = "90%"
[[test]]
operation = "random-read"
record = "4K"
unit = "IOPS"
[[test]]
operation = "write"
record = "64K"
"#;

/// Returns position, target and size of each run of a file.
fn turns(place: &Place, name: &str) -> Vec<Vec<(u64, u64)>> {
    let content = |run: &RunResult| (run.place, run.round.into());
    let all = read(&place.path(name)).expect("results");
    all.iter().map(|one| one.runs.iter().map(content).collect()).collect()
}

#[test]
fn targets_take_turns_in_one_file() {
    let place = Place::with(PRESET);
    let names = ["--label", "old", "--label", "new"];
    let finished = place.bench(&[&["a", "b", "c", "--output", "r"][..], &names].concat());
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    for words in ["new against old", "c against old", "Results: r", "no difference"] {
        assert!(finished.stdout.contains(words), "{words}: {}", finished.stdout);
    }
    // Two comparisons share the risk, and six rounds are judged like two sessions.
    let said = "6 runs of each of 2 cells show a difference of";
    assert!(finished.stderr.contains(said), "{}", finished.stderr);
    let all = read(&place.path("r")).expect("results");
    let targets: Vec<&str> = all.iter().map(|one| one.header.name()).collect();
    assert_eq!(targets, ["old", "new", "c"]);
    let runs = turns(&place, "r");
    assert!(runs.iter().all(|one| *one == runs[0] && one.len() == 12), "{runs:?}");
    for file in ["a", "b", "c"] {
        assert!(!place.path(file).exists(), "{file}");
    }
    let file = place.path("r");
    let file = file.to_str().expect("a plain path");
    let compared = pumice(&["compare", file]);
    assert_eq!(compared.code, Some(0), "{}", compared.stderr);
    assert!(compared.stdout.contains("new against old"), "{}", compared.stdout);
    let page = place.path("page");
    let page = page.to_str().expect("a plain path");
    assert_eq!(pumice(&["compare", file, "--html", page]).code, Some(0));
    let page = fs::read_to_string(page).expect("a page");
    assert!(page.contains("Side by side") && page.contains("<svg"), "no chart");
}

#[test]
fn an_interrupted_turn_is_gone_on_with() {
    let place = Place::with(PRESET);
    let args = ["--preset", "small.toml", "a", "b", "--output", "part", "--seconds", "0.1"];
    let mut child = spawn(&mut place.command(&args));
    let lines = || fs::read_to_string(place.path("part")).map_or(0, |text| text.lines().count());
    wait_until("some runs are kept", || lines() >= 5);
    kill_process(Pid::from_child(&child), Signal::INT).expect("a child");
    let status = wait(&mut child, COMMAND_LIMIT).expect("an interrupted benchmark that ends");
    assert_eq!(status.code(), Some(130));
    let kept: usize = turns(&place, "part").iter().map(Vec::len).sum();
    assert!((3..24).contains(&kept), "{kept}");
    let other = run(&mut place.command(&["a", "--resume", "part"]), COMMAND_LIMIT);
    assert!(other.stderr.contains("runs of a b, not of a: specify a b"), "{}", other.stderr);
    let resumed = run(&mut place.command(&["a", "b", "--resume", "part"]), COMMAND_LIMIT);
    assert_eq!(resumed.code, Some(0), "{}", resumed.stderr);
    let runs = turns(&place, "part");
    let places: Vec<(u64, u64)> = (0..12).map(|place| (place, place / 2)).collect();
    assert_eq!(runs, [places.clone(), places]);
}

#[test]
fn the_smallest_detectable_difference_is_announced() {
    let place = Place::with(PRESET);
    let dry = |args: &[&str]| {
        let finished = place.bench(&[args, &["--dry-run"]].concat());
        assert_eq!(finished.code, Some(0), "{}", finished.stderr);
        finished.stdout
    };
    let text = dry(&["a", "b"]);
    assert!(text.contains("a, b in turns: 2 tests"), "{text}");
    assert!(text.contains("6 runs of each of 2 cells show a difference of 2"), "{text}");
    assert!(dry(&["a"]).contains("between targets in turns"));
    let few = dry(&["a", "b", "--runs", "3"]);
    assert!(few.contains("3 runs of each of 2 cells can show no difference: 4 runs"), "{few}");
    let written = |text: &str| {
        let (_, after) = text.split_once("and writes ").expect("an amount");
        after.split(',').next().expect("an amount").to_owned()
    };
    assert_ne!(written(&text), written(&dry(&["a"])));
    assert!(place.refused(&["a", "a"]).contains("is named twice"));
    assert!(place.refused(&["a", "./a"]).contains("is named twice"));
    assert!(place.refused(&["a", "--label", "x", "--label", "y"]).contains("2 labels for 1"));
    assert!(place.refused(&["a", "b", "--fio-job"]).contains("one target"));
    let detect = run(&mut place.command(&["a", "b", "--detect-compression"]), COMMAND_LIMIT);
    assert!(detect.stderr.contains("one target"), "{}", detect.stderr);
    assert!(!place.path("a").exists());
}

/// Guards against a gate that fails without a verdict, passes without enough runs, or misses a
/// target that is slower.
#[test]
fn a_gate_obeys_the_verdict() {
    let place = Place::with(PRESET);
    let gate = |file: &str| {
        let file = place.path(file);
        pumice(&["compare", file.to_str().expect("plain"), "--fail-if-slower", "5"])
    };
    let same = place.bench(&["a", "b", "--output", "few", "--runs", "2"]);
    assert_eq!(same.code, Some(0), "{}", same.stderr);
    let few = gate("few");
    assert_eq!(few.code, Some(2), "{}", few.stdout);
    assert!(few.stderr.contains("too few runs for --fail-if-slower: 4 of each"), "{}", few.stderr);
    let alone = place.bench(&["a", "--output", "alone", "--runs", "1"]);
    assert_eq!(alone.code, Some(0), "{}", alone.stderr);
    assert!(gate("alone").stderr.contains("results of one target"));
    let Some(nbdkit) = tool("nbdkit") else { return };
    let serve = |name: &str, delay: &str| {
        let socket = place.path(name);
        let mut command = Command::new(&nbdkit);
        command.args(["--foreground", "--exit-with-parent", "--filter=delay", "--unix"]);
        command.arg(&socket).args(["memory", "16M"]).arg(format!("rdelay={delay}"));
        Server::start(&mut command, socket)
    };
    // Far apart, so that a busy machine does not hide it.
    let (fast, slow) = (serve("fast", "1ms"), serve("slow", "20ms"));
    let (one, two) = (fast.uri(), slow.uri());
    let args = [one.as_str(), &two, "--destroy-data", "--operation", "random-read", "--runs", "8"];
    let finished = place.bench(&[&args[..], &["--output", "nbd", "--seconds", "0.2"]].concat());
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    fast.stop();
    slow.stop();
    assert!(finished.stdout.contains("slower"), "{}", finished.stdout);
    assert!(finished.stdout.contains("Measured in turns"), "{}", finished.stdout);
    let slower = gate("nbd");
    assert_eq!(slower.code, Some(1), "{}", slower.stderr);
}

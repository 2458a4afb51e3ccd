//! Goal: written results can be read after any interruption, and no other file is accepted as
//! results.

use std::fs;

use super::*;
use crate::bench::engine::{Interval, Sample, Spot};
use crate::bench::results::{DeviceBytes, Turns};
use crate::stats::Latencies;
use crate::workload::{Changes, Preset};
use pumice_drive::base::ErrorKind;

fn header() -> Header {
    let preset = Preset::load("compressibility").expect("a preset");
    Header {
        pumice_bench: FORMAT,
        tool: "pumice 0".into(),
        title: "compressibility".into(),
        about: "about".into(),
        target: "target".into(),
        label: String::new(),
        turns: None,
        plan: preset.plan(&Changes::default()).expect("a plan"),
        command: "pumice bench".into(),
        begun_unix_s: 7,
        environment: vec![("kernel".into(), "Linux".into())],
        payloads: Vec::new(),
    }
}

fn run(place: u64) -> RunResult {
    let mut latency = Latencies::new();
    (1..100).for_each(|latency_ns| latency.record(latency_ns * 997));
    RunResult {
        round: 1,
        test: 2,
        level: 1,
        place,
        begun_s: 0.5,
        sample: Sample {
            seconds: 1.25,
            flush_seconds: 0.25,
            operations: 99,
            host_bytes: 99 * 4096,
            written_bytes: 4096,
            latency,
            interval_ns: 50_000_000,
            intervals: vec![Interval { operations: 3, latency_ns_sum: 9, latency_ns_max: 5 }],
            spots: vec![Spot { offset_bytes: 7, bytes: 4096, ns: 11 }],
            generation_share: 0.125,
        },
        processor_share: 0.5,
        device: Some(DeviceBytes { read: 1, written: 2, discarded: 3, smart_written: Some(4) }),
        machine: None,
        warnings: vec!["doubt".into()],
    }
}

/// Creates a file with three runs.
fn written(folder: &tempfile::TempDir) -> PathBuf {
    let path = folder.path().join("results");
    let mut writer = Writer::create(&path, &[header()]).expect("a new file");
    for place in 0..3 {
        writer.append(0, &run(place)).expect("a run");
    }
    path
}

#[test]
fn results_come_back_as_they_were() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = written(&folder);
    let results = read(&path).expect("results");
    assert_eq!(results, [Results { header: header(), runs: [0, 1, 2].map(run).to_vec() }]);
    let error = Writer::create(&path, &[header()]).map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
}

/// Guards against losing a run, or accepting it as complete, when a crash truncated its line.
#[test]
fn a_torn_last_line_is_cut_off() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = written(&folder);
    let whole = fs::read(&path).expect("a file");
    let last = whole[..whole.len() - 1].iter().rposition(|byte| *byte == b'\n').expect("lines");
    for end in [last + 1, last + 2, (last + whole.len()) / 2, whole.len() - 1] {
        fs::write(&path, &whole[..end]).expect("a file");
        assert_eq!(read(&path).expect("results")[0].runs, [0, 1].map(run), "{end}");
        let (mut writer, results) = Writer::resume(&path).expect("a file");
        assert_eq!(results[0].runs.len(), 2);
        writer.append(0, &run(2)).expect("a run");
        assert_eq!(fs::read(&path).expect("a file"), whole, "{end}");
    }
}

#[test]
fn invalid_results_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = written(&folder);
    let text = fs::read_to_string(&path).expect("text");
    let refused = |text: &str, words: &str| {
        fs::write(&path, text).expect("a file");
        let error = read(&path).map(|_| ()).expect_err(words).chain();
        assert!(error.contains(words), "{words}: {error}");
    };
    refused("", "no complete line");
    refused("hello\n", "line 1: not a benchmark result");
    refused("{}\n", "not a result of pumice bench");
    refused(&text.replacen("\"pumice_bench\":2", "\"pumice_bench\":3", 1), "version 3");
    refused(&text.replace("\"test\":2", "\"test\":4"), "line 2: a run of a test");
    refused(&text.replace("\"level\":1", "\"level\":3"), "line 2: a run of a test");
    refused(&text.replace("\"interval_ns\":50000000", "\"interval_ns\":0"), "invalid duration");
    refused(&text.replace("\"seconds\":1.25", "\"seconds\":-1.0"), "invalid duration");
    refused(&text.replace("\"place\":1,", "\"plaice\":1,"), "line 3: missing field");
    refused(&text.replacen("\"depth\":4", "\"depth\":0", 1), "invalid plan");
    refused(
        &text.replace("\"place\":1,", "\"place\":1,\"target\":1,"),
        "line 3: a run of a target",
    );
    let endless = format!("{}{}", text, "x".repeat(LINE_BYTES_MAX as usize + 1));
    refused(&endless, "line 5: the line is too long");
}

/// Guards against mixing up the results of several targets.
#[test]
fn targets_that_took_turns_come_back_apart() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("results");
    let one = |index: u32| {
        let turns = Some(Turns { session: "this".into(), index, of: 2 });
        Header { target: format!("target {index}"), label: "it".into(), turns, ..header() }
    };
    let headers = [one(0), one(1)];
    let mut writer = Writer::create(&path, &headers).expect("a new file");
    for (target, place) in [(0, 0), (1, 0), (1, 1), (0, 1), (0, 2)] {
        writer.append(target, &run(place)).expect("a run");
    }
    let results = read(&path).expect("results");
    assert_eq!(results.len(), 2);
    for (result, (header, places)) in results.iter().zip(headers.iter().zip([3, 2])) {
        assert_eq!(result.header, *header);
        assert_eq!(result.runs, (0..places).map(run).collect::<Vec<_>>());
    }
    let text = fs::read_to_string(&path).expect("text");
    let refused = |text: &str, words: &str| {
        fs::write(&path, text).expect("a file");
        let error = read(&path).map(|_| ()).expect_err(words).chain();
        assert!(error.contains(words), "{words}: {error}");
    };
    refused(&text.replace("\"target\":1,", "\"target\":2,"), "a target that no header describes");
    refused(&text.replacen("\"of\":2", "\"of\":4000000000", 1), "expected 1 to 16");
    refused(&text.replacen("\"of\":2", "\"of\":0", 1), "expected 1 to 16");
    refused(&text.replacen("\"session\":\"this\"", "\"session\":\"that\"", 1), "another benchmark");
    let first_line = text.split_inclusive('\n').next().expect("a line");
    refused(first_line, "the header of a target is missing");
}

/// Guards against a new version that cannot read files of the previous version.
#[test]
fn results_of_version_1_are_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = written(&folder);
    let text = fs::read_to_string(&path).expect("text");
    let old = text.replacen("\"pumice_bench\":2", "\"pumice_bench\":1", 1);
    assert_ne!(text, old);
    fs::write(&path, old).expect("a file");
    assert_eq!(read(&path).expect("results")[0].runs.len(), 3);
}

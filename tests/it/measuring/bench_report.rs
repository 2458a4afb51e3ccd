//! Goal: `pumice report` and `pumice compare` show results in every form, refuse meaningless
//! requests and touch no other file; fio accepts the job written for a plan; a report's page is
//! complete in a browser.
//!
//! Method: results with plain numbers, written by the library as a benchmark writes them; files are
//! read back by other libraries; the real fio, where it is installed, checks a job.

use std::fs;
use std::path::Path;
use std::process::Command;

use calamine::{Reader, Xlsx};
use pumice_bench::engine::{Interval, Sample};
use pumice_bench::interop::fio_job;
use pumice_bench::report;
use pumice_bench::results::{FORMAT, Header, RunResult, Writer, read};
use pumice_bench::stats::Latencies;
use pumice_bench::workload::{Cache, Level, Order, Plan, Test, Unit};
use pumice_bench::workload::{Ends, Flush, Operation, Pattern, Workload};

use crate::harness::{Finished, fixture, pumice, run_ok, tool};
use crate::measuring::report::LEGIBLE;

const ROUNDS: [f64; 8] = [1000.0, 1030.0, 980.0, 1010.0, 995.0, 1005.0, 1015.0, 990.0];

/// Returns a plan of every operation at two levels.
fn plan() -> Plan {
    let test = |operation: Operation| Test {
        name: operation.name().to_owned(),
        unit: if operation.is_timed() { Unit::Rate } else { Unit::Throughput },
        workload: Workload {
            operation,
            record_bytes: 4096,
            depth: if operation.is_stdio() || operation.is_serial() { 1 } else { 4 },
            threads: if operation.is_serial() { 1 } else { 2 },
            span_bytes: 8 << 20,
            shift_bytes: 0,
            pattern: Pattern::HotCold,
            reads_percent: 70,
            seconds: 1.0,
            flush: Flush::Timed,
            ends: Ends::Usual,
            mix: Vec::new(),
        },
    };
    let level = |name: &str, kind: &str, saved_percent| Level {
        name: name.to_owned(),
        kind: kind.to_owned(),
        saved_percent,
        duplicates_percent: None,
    };
    Plan {
        tests: Operation::ALL.map(test).to_vec(),
        levels: vec![level("50 % saved", "exact", Some(50.0)), level("a byte", "byte:0x2a", None)],
        runs: ROUNDS.len() as u32,
        runs_max: ROUNDS.len() as u32,
        precision_percent: None,
        steady: None,
        purge: false,
        precondition: 0,
        fills: true,
        order: Order::Shuffled,
        direct: true,
        cache: Cache::Dropped,
        warm_up_seconds: 0.0,
        pause_seconds: 0.0,
        best_of: None,
        seed: 7,
    }
}

/// Writes results whose values are [`ROUNDS`] times `scale`, in MB/s or IOPS.
fn write(path: &Path, scale: f64, plan: Plan) {
    let header = Header {
        pumice_bench: FORMAT,
        tool: "pumice 0.1.0".to_owned(),
        title: path.file_stem().expect("a name").to_str().expect("plain").to_owned(),
        about: "Every operation at two levels.".to_owned(),
        target: "disk.img".to_owned(),
        label: String::new(),
        turns: None,
        plan,
        command: "pumice bench run".to_owned(),
        begun_unix_s: 1,
        environment: vec![("kernel".to_owned(), "Linux".to_owned())],
        payloads: Vec::new(),
    };
    let mut writer = Writer::create(path, std::slice::from_ref(&header)).expect("a new file");
    let mut latency = Latencies::new();
    (1..=2000).for_each(|us| latency.record(us * 1000));
    let interval = Interval { operations: 50, latency_ns_sum: 1, latency_ns_max: 2_000_000 };
    let mut place = 0;
    for (round, value) in (0..).zip(ROUNDS) {
        for (test, it) in header.plan.tests.iter().enumerate() {
            for level in 0..header.plan.levels.len() {
                let value = value * scale / (level + 1) as f64;
                let operations = match it.unit {
                    Unit::Rate => value as u64,
                    _ => (value * 1e6) as u64 / 4096,
                };
                let run = RunResult {
                    round,
                    test,
                    level,
                    place,
                    begun_s: 0.0,
                    sample: Sample {
                        seconds: 1.0,
                        flush_seconds: 0.0,
                        operations,
                        host_bytes: operations * 4096,
                        written_bytes: 0,
                        latency: latency.clone(),
                        interval_ns: 50_000_000,
                        intervals: vec![interval; 20],
                        spots: Vec::new(),
                        generation_share: 0.0,
                    },
                    processor_share: 0.5,
                    device: None,
                    machine: None,
                    warnings: vec!["the processor was busy".to_owned()],
                };
                writer.append(0, &run).expect("appended");
                place += 1;
            }
        }
    }
}

/// Creates a folder with `base` and `slower`, the latter at 80 %.
fn folder() -> (tempfile::TempDir, impl Fn(&str) -> String) {
    let folder = tempfile::Builder::new().prefix("pumice-").tempdir().expect("temp dir");
    let path = folder.path().to_owned();
    let name = move |name: &str| path.join(name).to_str().expect("a plain path").to_owned();
    write(Path::new(&name("base")), 1.0, plan());
    write(Path::new(&name("slower")), 0.8, plan());
    (folder, name)
}

fn good(finished: &Finished) {
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    assert!(finished.stderr.is_empty(), "{}", finished.stderr);
}

#[test]
fn the_terminal_gets_a_screen() {
    let (_folder, name) = folder();
    let finished = pumice(&["report", &name("base")]);
    good(&finished);
    let text = &finished.stdout;
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    assert!(text.lines().any(|line| line.starts_with("write  ")), "{text}");
    assert!(text.contains("1003 ± 16") && text.contains("MB/s") && text.contains("IOPS"), "{text}");
    assert!(text.contains("in 384 of 384 runs: the processor was busy"), "{text}");
    let finished = pumice(&["report", &name("base"), &name("slower")]);
    good(&finished);
    assert!(finished.stdout.contains("slower against base"), "{}", finished.stdout);
}

#[test]
fn every_form_holds_the_numbers() {
    let (_folder, name) = folder();
    let files = ["html", "xlsx", "csv"].map(|form| (format!("--{form}"), name(form)));
    let mut args = vec!["report".to_owned(), name("base"), "--markdown".into(), "-".into()];
    args.extend(files.iter().flat_map(|(option, path)| [option.clone(), path.clone()]));
    let finished = pumice(&args);
    good(&finished);
    assert!(finished.stdout.starts_with("# base on disk.img\n"), "{}", finished.stdout);
    assert!(fs::read_to_string(name("html")).expect("a page").contains("random-write"));
    let mut reader = csv::Reader::from_path(name("csv")).expect("a table");
    let rows: Vec<_> = reader.records().map(|row| row.expect("valid CSV")).collect();
    assert_eq!(rows.len(), 2 * Operation::ALL.len());
    let bytes = fs::read(name("xlsx")).expect("a workbook");
    let mut workbook: Xlsx<_> = Xlsx::new(std::io::Cursor::new(bytes)).expect("opens");
    let sheet = workbook.worksheet_range("Requests per second").expect("a sheet");
    let has = |wanted: f64| {
        sheet.used_cells().any(|(_, _, cell)| {
            matches!(cell, calamine::Data::Float(number) if (number - wanted).abs() < 1e-9)
        })
    };
    assert!(has(1003.125) && has(980.0) && has(1030.0));
}

#[test]
fn a_page_is_whole_in_a_browser() {
    let (_folder, name) = folder();
    let all = ["base", "slower"].map(|file| read(Path::new(&name(file))).expect("results"));
    let all = all.concat();
    let pages = [("two results", report::document(&all).to_html())];
    let Some((wrong, drawings, _)) = crate::measuring::report::measured(&pages) else { return };
    assert!(wrong.is_empty(), "{} faults:\n{}", wrong.len(), wrong.join("\n"));
    // For both results, a chart for each operation, and for each timed operation two charts of its
    // seconds at both levels. For each result, three bar charts, a chart of percentiles for each
    // operation, and for each timed operation a chart of its course and two of its seconds. Each in
    // the four frames.
    let (tests, timed) = (Operation::ALL.len(), 7);
    let charts = tests + 2 * 2 * timed + 2 * (3 + tests + 3 * timed);
    assert_eq!(drawings, charts * 4);
    let Some((wrong, drawings)) = crate::measuring::report::printed(&pages, LEGIBLE) else {
        return;
    };
    assert!(wrong.is_empty(), "{} faults:\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!(drawings, charts);
}

#[test]
fn results_have_the_names_that_they_are_given() {
    let (_folder, name) = folder();
    let (base, slower) = (name("base"), name("slower"));
    let labels = ["--label", "6.1", "--label", "6.18"];
    let finished = pumice(&[&["compare", &base, &slower][..], &labels].concat());
    good(&finished);
    assert!(finished.stdout.contains("6.18 against 6.1"), "{}", finished.stdout);
    let markdown = ["--markdown", "-"];
    let finished = pumice(&[&["report", &base, &slower][..], &labels, &markdown].concat());
    good(&finished);
    assert!(finished.stdout.starts_with("# 6.1 · 6.18\n"), "{}", finished.stdout);
    let finished = pumice(&[&["report", &base][..], &labels].concat());
    assert_eq!(
        (finished.code, finished.stderr.contains("2 labels for 1 results")),
        (Some(2), true)
    );
}

#[test]
fn files_are_kept_unless_told() {
    let (_folder, name) = folder();
    fs::write(name("page"), "precious").expect("written");
    let refused = |args: &[&str], wanted: &str| {
        let finished = pumice(args);
        assert_eq!(finished.code, Some(2), "{args:?}");
        assert!(finished.stderr.contains(wanted), "{}", finished.stderr);
    };
    let (base, page, other) = (name("base"), name("page"), name("new"));
    refused(&["report", &base, "--html", &page], "use --force");
    assert_eq!(fs::read_to_string(&page).expect("a file"), "precious");
    let before = fs::read(&base).expect("results");
    refused(&["report", &base, "--html", &base, "--force"], "is an input: name another file");
    refused(&["report", &base, "--html", &other, "--csv", &other, "--force"], "named twice");
    refused(&["report", &base, "--html", "-", "--csv", "-"], "only one");
    refused(&["report", &page, "--html", &other], "expected results of pumice bench");
    let here = name("here");
    fs::create_dir(&here).expect("a folder");
    refused(&["report", &base, "--html", &here], "here is a directory: name a file in it");
    refused(&["report", &base, "--html", &here, "--force"], "here is a directory: name a file");
    assert!(!Path::new(&other).exists(), "what was not written is gone");
    assert_eq!(fs::read(&base).expect("results"), before);
    good(&pumice(&["report", &base, "--html", &page, "--force"]));
    assert!(fs::read_to_string(&page).expect("a page").starts_with("<!DOCTYPE html>"));
}

#[test]
fn slower_results_fail_on_request() {
    let (_folder, name) = folder();
    let (base, slower) = (name("base"), name("slower"));
    good(&pumice(&["compare", &base, &slower]));
    good(&pumice(&["compare", &base, &base, "--fail-if-slower", "1"]));
    good(&pumice(&["compare", &slower, &base, "--fail-if-slower", "1%"]));
    let finished = pumice(&["compare", &base, &slower, "--fail-if-slower", "10", "--json"]);
    assert_eq!(finished.code, Some(1));
    assert_eq!(finished.stderr.lines().count(), 2 * Operation::ALL.len(), "{}", finished.stderr);
    let told: serde_json::Value = serde_json::from_str(&finished.stdout).expect("JSON");
    let ratio = told["others"][0]["cells"][0]["compared"]["ratio"].as_f64().expect("a ratio");
    assert!((ratio - 0.8).abs() < 1e-3);
    let mut unlike = plan();
    unlike.tests[3].workload.depth = 9;
    write(Path::new(&name("unlike")), 1.0, unlike);
    let finished = pumice(&["compare", &base, &name("unlike")]);
    assert_eq!(finished.code, Some(2));
    let wanted = "test 'reread': depth is 9 instead of 4";
    assert!(finished.stderr.contains(wanted), "{}", finished.stderr);
}

#[test]
fn other_tools_results_are_shown() {
    let samples = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .join("crates/pumice-bench/src/bench/interop/samples");
    for (file, wanted) in [
        ("fio-plus.json", "mixed (read)"),
        ("fio-plain.json", "mixed (write)"),
        ("iozone-auto.txt", "stride-read 64 KiB of 1 MiB"),
        ("iozone-throughput.txt", "reread 4 KiB of 1 MiB × 2"),
    ] {
        let path = samples.join(file).to_str().expect("a plain path").to_owned();
        let finished = pumice(&["report", &path]);
        good(&finished);
        assert!(finished.stdout.contains(wanted), "{}", finished.stdout);
        good(&pumice(&["report", &path, "--html", "-"]));
    }
    let program = fixture("files.py").to_str().expect("a plain path").to_owned();
    assert_eq!(pumice(&["report", &program]).code, Some(2));
}

#[test]
fn fio_takes_the_job() {
    let Some(fio) = tool("fio") else { return };
    let folder = tempfile::Builder::new().prefix("pumice-").tempdir().expect("temp dir");
    for (threads, pattern) in [(1, Pattern::HotCold), (2, Pattern::Zipf(1.0))] {
        let mut plan = plan();
        plan.warm_up_seconds = 0.5;
        plan.tests.iter_mut().for_each(|test| test.workload.pattern = pattern);
        plan.tests.iter_mut().for_each(|test| test.workload.threads = threads);
        let path = folder.path().join("plan.fio");
        fs::write(&path, fio_job(&plan, "disk.img")).expect("written");
        let mut command = Command::new(&fio);
        run_ok(command.current_dir(folder.path()).arg("--parse-only").arg(&path));
    }
}

//! Goal: presets modelled on other programs run, state the differences from those programs, and
//! show the same figures; jobs of fio and access specifications of Iometer are executed as written.
//! Method: each preset once on a small span; jobs with an exact number of requests, run by the
//! bench and by the real fio; the page of a sweep.

use std::fs;
use std::process::Command;

use pumice_bench::results::{Results, read};

use crate::harness::{COMMAND_LIMIT, Finished, run, run_ok, tool};
use crate::measuring::bench::Place;

/// The presets of this file, with the smallest span that their records and threads allow.
const PRESETS: [(&str, &str); 9] = [
    ("crystaldiskmark", "4M"),
    ("crystaldiskmark-sizes", "4M"),
    ("crystaldiskmark-8", "8M"),
    ("crystaldiskmark-8-nvme", "8M"),
    ("atto", "64M"),
    ("iometer-patterns", "8M"),
    ("queue-depth", "4M"),
    ("iozone-iops", "1M"),
    ("iozone-throughput", "16M"),
];

fn bench(place: &Place, args: &[&str]) -> Finished {
    run(&mut place.command(args), COMMAND_LIMIT)
}

/// Runs a preset or job in the place and returns its results and standard error.
fn results(place: &Place, args: &[&str], output: &str) -> (Results, String) {
    let mut command = place.command(args);
    let finished = run_ok(command.args(["--output", output]));
    (place.results(output), finished.stderr)
}

#[test]
fn every_preset_runs() {
    let place = Place::with("");
    let list = run_ok(&mut place.command(&["--list"])).stdout;
    for (preset, span) in PRESETS {
        assert!(list.lines().any(|line| line.split_whitespace().next() == Some(preset)), "{list}");
        let quick = ["--quick", "--runs", "1", "--seconds", "0.01", "--warm-up", "0"];
        // A part of the largest sweeps is enough.
        let chosen = match preset {
            "iozone-throughput" => &["--record", "16M", "--saved", "50%"][..],
            "iozone-iops" => &["--saved", "50%"],
            "atto" => &["--record", "64K", "--record", "64M"],
            "crystaldiskmark-sizes" => &["--kind", "random"],
            _ => &[],
        };
        let args = [&["data", "--preset", preset, "--span", span][..], &quick, chosen].concat();
        let output = format!("{preset}.jsonl");
        let (found, _) = results(&place, &args, &output);
        let plan = &found.header.plan;
        assert_eq!(found.runs.len(), plan.cells(), "{preset}");
        for run in &found.runs {
            let test = &plan.tests[run.test];
            // On a busy machine 10 ms may pass before a timed test's first request.
            let has_run = run.sample.operations > 0 || test.workload.is_timed();
            assert!(has_run, "{preset}: {}", test.name);
        }
        assert!(found.runs.iter().any(|run| run.sample.operations > 0), "{preset}");
    }
}

/// Checks that, as in CrystalDiskMark, the best run is shown, with a wait before each test.
#[test]
fn the_best_run_is_printed_with_the_mean() {
    let place = Place::with("");
    let args = [
        "data",
        "--preset",
        "crystaldiskmark-8",
        "--span",
        "8M",
        "--seconds",
        "0.02",
        "--warm-up",
        "0",
        "--kind",
        "random",
        "--operation",
        "random-read",
        "--runs",
        "3",
        "--quick",
    ];
    let finished = bench(&place, &args);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let summary = finished.stdout;
    let head =
        summary.lines().find(|line| line.contains("best of 5")).expect("a table of the best");
    assert!(head.contains("mean") && head.contains("95 % from"), "{summary}");
    let dry = ["data", "--preset", "crystaldiskmark-8", "--dry-run", "--json"];
    let plan: serde_json::Value =
        serde_json::from_str(&run_ok(&mut place.command(&dry)).stdout).expect("JSON");
    let numbers = (plan["pause_seconds"].as_f64(), plan["warm_up_seconds"].as_f64());
    assert_eq!((numbers, plan["best_of"].as_u64()), ((Some(5.0), Some(5.0)), Some(5)));
}

#[test]
fn a_sweep_over_the_depth_is_lines() {
    let place = Place::with("");
    for seed in ["1", "2"] {
        let args = ["data", "--preset", "queue-depth", "--span", "4M", "--seconds", "0.01"];
        let output = format!("{seed}.jsonl");
        results(&place, &[&args[..], &["--runs", "2", "--seed", seed]].concat(), &output);
    }
    let page = |command: &str, files: &[&str]| {
        let mut report = Command::new(crate::harness::PUMICE);
        report.current_dir(place.path("")).arg(command).args(files).args(["--html", "-"]);
        run_ok(&mut report).stdout
    };
    let one = page("report", &["1.jsonl"]);
    for chart in ["random-read, 4 KiB: ", "mixed, 4 KiB: mean latency"] {
        assert!(one.contains(chart), "{chart}");
    }
    let both = page("compare", &["1.jsonl", "2.jsonl"]);
    assert!(both.contains("random-read, 4 KiB: "), "no chart of both");
}

#[test]
fn spans_are_multiples_of_the_memory() {
    let place = Place::new();
    let dry = bench(&place, &["data", "--preset", "small.toml", "--dry-run", "--span", "1xmem"]);
    assert_eq!(dry.code, Some(0), "{}", dry.stderr);
    let large = ["data", "--span", "1000xmem"];
    let refused = place.refused(&large);
    assert!(refused.contains("use a smaller --span"), "{refused}");
    let wrong = place.refused(&["data", "--span", "2xmemory"]);
    assert!(wrong.lines().count() == 1, "{wrong}");
}

/// IOzone's operations cover the file once, in requests and not in time.
#[test]
fn tests_end_with_the_span_or_by_time() {
    let place = Place::with("");
    let args = ["data", "--preset", "iozone-iops", "--span", "1M", "--runs", "1"];
    let level = ["--saved", "50%", "--ends", "span"];
    let (found, _) = results(&place, &[&args[..], &level].concat(), "span.jsonl");
    for run in &found.runs {
        let name = &found.header.plan.tests[run.test].name;
        assert_eq!(run.sample.operations, 256, "{name}");
    }
    // A span of 16 records and a second: a disk that stalls in between still reads it twice.
    let args = ["data", "--preset", "iozone-iops", "--span", "64K", "--runs", "1"];
    let timed = ["--saved", "50%", "--ends", "time", "--seconds", "1", "--operation", "read"];
    let (found, _) = results(&place, &[&args[..], &timed].concat(), "time.jsonl");
    let sample = &found.runs[0].sample;
    assert!(sample.operations > 16, "{} requests", sample.operations);
}

/// Jobs that end with their size, and the number of their requests and bytes.
const JOBS: [(&str, u64, u64); 8] = [
    ("rw=read\nbs=64k", 64, 4 << 20),
    ("rw=randread\nbs=4k", 1024, 4 << 20),
    ("rw=randwrite\nbs=8k\niodepth=8", 512, 4 << 20),
    ("rw=randrw\nrwmixread=70\nbs=4k", 1024, 4 << 20),
    ("rw=rw\nbs=16k", 256, 4 << 20),
    ("rw=randread\nbs=4k\nnumjobs=2\nsize=2m\noffset_increment=2m", 1024, 4 << 20),
    ("rw=write\nbs=32k\nnumjobs=2\nsize=2m\noffset_increment=2m", 128, 4 << 20),
    ("rw=randread\nrandom_distribution=zipf:1.2\nbs=4k", 1024, 4 << 20),
];

#[test]
fn jobs_make_the_requests_that_fio_makes() {
    let fio = tool("fio");
    let place = Place::with("");
    for (number, (lines, requests, bytes)) in JOBS.into_iter().enumerate() {
        let head = "[job]\nioengine=io_uring\ndirect=1\nfilename=data\nsize=4m\nrefill_buffers\n";
        fs::write(place.path("job.fio"), format!("{head}{lines}\n")).expect("a job");
        // Without a target the job's file is used; the bench removes it.
        let args = ["--preset", "job.fio", "--runs", "1"];
        let (found, said) = results(&place, &args, &format!("{number}.jsonl"));
        let sample = &found.runs[0].sample;
        assert_eq!((sample.operations, sample.host_bytes), (requests, bytes), "{lines}: {said}");
        let Some(fio) = &fio else { continue };
        let mut command = Command::new(fio);
        command.current_dir(place.path("")).args(["job.fio", "--output-format=json"]);
        let output = run_ok(command.arg("--group_reporting")).stdout;
        let output = &output[output.find('{').expect("JSON")..];
        let json: serde_json::Value = serde_json::from_str(output).expect("JSON");
        let sum = |what: &str| {
            let of = |direction: &str| json["jobs"][0][direction][what].as_u64().unwrap_or(0);
            of("read") + of("write")
        };
        assert_eq!((sum("total_ios"), sum("io_bytes")), (requests, bytes), "fio, {lines}");
        fs::remove_file(place.path("data")).expect("fio's file");
    }
}

#[test]
fn options_of_a_job_are_applied_or_named() {
    let place = Place::with("");
    let head = "[job]\nrw=randread\nioengine=libaio\niodepth=8\nsize=1m\nruntime=1\n";
    fs::write(place.path("job.fio"), head).expect("a job");
    let args = ["data", "--preset", "job.fio", "--runs", "1", "--saved", "50%"];
    let (found, said) = results(&place, &args, "a.jsonl");
    assert_eq!(found.header.plan.tests[0].workload.depth, 1, "libaio waits without direct=1");
    assert!(said.contains("job.fio: iodepth=8 becomes 1"), "{said}");
    let none = bench(&place, &["--preset", "job.fio"]);
    assert!(none.code == Some(2) && none.stderr.contains("no TARGET"), "{}", none.stderr);
    fs::write(place.path("job.fio"), format!("{head}rate=1m\nverify=crc32c\n")).expect("a job");
    let refused = bench(&place, &["data", "--preset", "job.fio"]);
    assert_eq!(refused.code, Some(2));
    let words = "job.fio: job 'job': not supported: rate=1m, verify=crc32c";
    assert!(refused.stderr.contains(words), "{}", refused.stderr);
    fs::write(place.path("job.fio"), "[job]\nrw=read\nfilename=there\n").expect("a job");
    let sizeless = bench(&place, &["data", "--preset", "job.fio"]);
    assert!(sizeless.stderr.contains("add --span"), "{}", sizeless.stderr);
    let sized = bench(&place, &["data", "--preset", "job.fio", "--span", "1M", "--dry-run"]);
    assert!(sized.stderr.contains("job.fio: the target is data, not there"), "{}", sized.stderr);
    assert!(sized.stderr.contains("job.fio: each test runs 8 times"), "{}", sized.stderr);
}

#[test]
fn access_specifications_are_carried_out() {
    let place = Place::with("");
    let text = "Version 1.1.0\n\
        'TEST SETUP ====\n'Run Time\n'\thours  minutes  seconds\n\t0  0  1\n'END test setup\n\
        'ACCESS SPECIFICATIONS ====\n\
        'Access specification name,default assignment\n\tmine,NONE\n\
        'size,% of size,% reads,% random,delay,burst,align,reply\n\
        \t4096,75,100,100,0,1,4096,0\n\t65536,25,0,0,0,1,0,0\n\
        'END access specifications\n";
    fs::write(place.path("mine.icf"), text).expect("a configuration");
    let args = ["data", "--preset", "mine.icf", "--runs", "1", "--span", "1M", "--seconds", "0.1"];
    let (found, said) = results(&place, &args, "a.jsonl");
    let sample = &found.runs[0].sample;
    let written = sample.written_bytes / 65536;
    assert_eq!(sample.written_bytes % 65536, 0);
    let reads = (sample.host_bytes - sample.written_bytes) / 4096;
    assert_eq!(reads + written, sample.operations);
    let share = written as f64 / sample.operations as f64;
    assert!(sample.operations < 200 || (0.15..0.35).contains(&share), "{share}");
    assert!(said.contains("mine.icf: writes have random bytes"), "{said}");
}

/// Runs `benches/turns.py`: settings of one machine in turns.
#[test]
fn settings_take_turns() {
    let Some(python) = tool("python3") else { return };
    let place = Place::new();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../benches/turns.py");
    let mut command = Command::new(python);
    command.current_dir(place.path("")).env("PUMICE", crate::harness::PUMICE).arg(script);
    command.args(["--switch", "echo {} >> switched", "--values", "none,bfq", "--rounds", "2"]);
    run_ok(command.args(["--output", "all.jsonl", "data", "--preset", "small.toml"]));
    let switched = fs::read_to_string(place.path("switched")).expect("the switch");
    assert_eq!(switched.lines().collect::<Vec<_>>(), ["none", "bfq", "bfq", "none"]);
    let all = read(&place.path("all.jsonl")).expect("results");
    assert_eq!(all.iter().map(|one| one.header.name()).collect::<Vec<_>>(), ["none", "bfq"]);
    for results in &all {
        let rounds: Vec<u32> = results.all_of(0, 0).map(|run| run.round).collect();
        assert_eq!((results.runs.len(), &rounds[..]), (12, &[0, 1][..]));
        assert!(results.header.is_in_turns_with(&all[0].header));
    }
    let mut report = Command::new(crate::harness::PUMICE);
    report.current_dir(place.path("")).args(["compare", "all.jsonl"]);
    assert!(run_ok(&mut report).stdout.contains("bfq against none"));
}

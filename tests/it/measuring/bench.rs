//! Goal: `pumice bench` measures files and drives in one command, keeps every run whatever ends the
//! benchmark, resumes after an interruption, and destroys nothing without permission.
//! Method: tiny plans on files of the test's own; results are read by the library.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use pumice_bench::results::{Results, RunResult, read};
use pumice_bench::workload::Unit;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::harness::{
    COMMAND_LIMIT, Drive, Finished, PUMICE, Server, pumice, run, run_ok, skip, spawn, tool, wait,
    wait_until,
};

/// A preset that takes a tenth of a second a round.
const PRESET: &str = r#"
about = "Small."
runs = 2
span = "1M"
seconds = 0.01
[[level]]
saved = "90%"
[[level]]
saved = "10%"
[[test]]
operation = "write"
record = "64K"
[[test]]
operation = "read"
record = "64K"
[[test]]
operation = "random-write"
record = "4K"
depth = 4
unit = "IOPS"
"#;

/// A folder with a preset, in which the command runs.
pub(crate) struct Place(TempDir);

impl Place {
    pub(crate) fn new() -> Self {
        Self::with(PRESET)
    }

    pub(crate) fn with(preset: &str) -> Self {
        let place = Self(tempfile::Builder::new().prefix("pumice-").tempdir().expect("temp dir"));
        fs::write(place.path("small.toml"), preset).expect("a preset");
        place
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(PUMICE);
        command.current_dir(self.0.path()).arg("bench").args(args);
        command
    }

    /// Runs the small preset with these further arguments.
    pub(crate) fn bench(&self, args: &[&str]) -> Finished {
        run(self.command(&["--preset", "small.toml"]).args(args), COMMAND_LIMIT)
    }

    pub(crate) fn refused(&self, args: &[&str]) -> String {
        let finished = self.bench(args);
        assert_eq!(finished.code, Some(2), "{args:?}: {}", finished.stderr);
        finished.stderr
    }

    pub(crate) fn results(&self, name: &str) -> Results {
        let mut all = read(&self.path(name)).expect("results");
        assert_eq!(all.len(), 1, "results of one target");
        all.remove(0)
    }
}

/// Returns the cells that ran, in their order.
fn cells(results: &Results) -> Vec<(u32, usize, usize, u64)> {
    let cell = |run: &pumice_bench::results::RunResult| (run.round, run.test, run.level, run.place);
    results.runs.iter().map(cell).collect()
}

#[test]
fn a_file_is_measured_and_removed() {
    let place = Place::new();
    let finished = place.bench(&["data"]);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    assert!(!place.path("data").exists());
    for words in ["90 % saved", "random write, 4 KiB, depth 4", "Results: small-1.jsonl"] {
        assert!(finished.stdout.contains(words), "{words}: {}", finished.stdout);
    }
    assert!(
        finished.stderr.contains("lz4 90.0 % saved (stored 0.100, ratio"),
        "{}",
        finished.stderr
    );
    assert!(finished.stdout.lines().all(|line| line.chars().count() <= 100));
    let results = place.results("small-1.jsonl");
    assert_eq!(results.runs.len(), 12);
    assert_eq!(results.values(0, 0).len(), 2);
    assert!(results.header.command.contains("--preset small.toml data"));
    assert!(results.header.environment.iter().any(|(name, _)| name == "kernel"));
    let json = place.bench(&[".", "--json"]);
    assert_eq!(json.code, Some(0), "{}", json.stderr);
    let json: serde_json::Value = serde_json::from_str(&json.stdout).expect("JSON");
    assert_eq!(json.as_array().expect("cells").len(), 6);
    assert_eq!((&json[0]["n"], &json[0]["unit"]), (&2.into(), &"MB/s".into()));
    assert_eq!(place.results("small-2.jsonl").runs.len(), 12);
    let names: Vec<_> = fs::read_dir(place.0.path()).expect("a folder").flatten().collect();
    assert_eq!(names.len(), 3, "{names:?}");
}

#[test]
fn a_drive_in_process_writes_less_compressible_data() {
    let place = Place::new();
    let drive = Drive::create("64M", &[]);
    let target = format!("drive:{}", drive.path().display());
    let finished = place.bench(&[&target, "--destroy-data", "--span", "32M", "--output", "r"]);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let info = pumice(&["info", drive.path().to_str().expect("a path"), "--json"]);
    let info: serde_json::Value = serde_json::from_str(&info.stdout).expect("JSON");
    let of = |name: &str| info[name].as_u64().expect(name) as f64;
    // Sequential writes of 10 % and 90 % stored, in equal amounts, and a few random ones.
    let share = of("frame_bytes") / of("host_bytes");
    assert!((0.4..0.6).contains(&share), "{share}: {info}");
    assert_eq!(pumice(&["check", drive.path().to_str().expect("a path")]).code, Some(0));
}

/// Guards against runs that are lost with an interruption, and against a continuation that is
/// another benchmark.
#[test]
fn an_interrupted_benchmark_is_gone_on_with() {
    let place = Place::new();
    let whole = place.bench(&["data", "--output", "whole", "--seconds", "0.2"]);
    assert_eq!(whole.code, Some(0), "{}", whole.stderr);
    let args = ["--preset", "small.toml", "data", "--output", "part", "--seconds", "0.2"];
    let mut child = spawn(&mut place.command(&args));
    let lines = || fs::read_to_string(place.path("part")).map_or(0, |text| text.lines().count());
    // After the header, a write and a read: the signal arrives during a run limited by time.
    wait_until("some runs are kept", || lines() >= 3);
    kill_process(Pid::from_child(&child), Signal::INT).expect("a child");
    let status = wait(&mut child, COMMAND_LIMIT).expect("an interrupted benchmark that ends");
    let mut said = String::new();
    let mut stderr = child.stderr.take().expect("stderr is piped");
    std::io::Read::read_to_string(&mut stderr, &mut said).expect("text");
    assert_eq!(status.code(), Some(130), "{said}");
    let kept = place.results("part").runs.len();
    let line = format!("interrupted: {kept} runs are in part; continue with --resume part");
    assert!(said.contains(&line), "{said}");
    assert!((2..12).contains(&kept) && !place.path("data").exists());
    let other = run(&mut place.command(&["other", "--resume", "part"]), COMMAND_LIMIT);
    let is_refused = other.code == Some(2) && other.stderr.contains("runs of data, not of other");
    assert!(is_refused, "{}", other.stderr);
    let resumed = run(&mut place.command(&["data", "--resume", "part"]), COMMAND_LIMIT);
    assert_eq!(resumed.code, Some(0), "{}", resumed.stderr);
    let (part, whole) = (place.results("part"), place.results("whole"));
    assert_eq!(part.header.plan, whole.header.plan);
    // The run in progress at the signal is repeated, not kept.
    for run in &part.runs {
        let is_whole =
            if run.test < 2 { run.sample.host_bytes == 1 << 20 } else { run.sample.seconds >= 0.2 };
        assert!(is_whole, "{run:?}");
    }
    assert_eq!(cells(&part), cells(&whole));
}

/// Guards against requests that are counted and not made, or made and not counted, and against
/// wrong times: the server counts for itself, no read ends before its delay, and four in flight
/// share the available time (Little's law). The same holds for fio's results, and the two agree.
#[test]
fn results_show_the_delay_of_the_server() {
    let (Some(nbdkit), Some(fio)) = (tool("nbdkit"), tool("fio")) else { return };
    let place = Place::new();
    let preset = PRESET.split("[[test]]").next().expect("a beginning").replace("0.01", "1");
    let test =
        "[[test]]\noperation = \"random-read\"\nrecord = \"4K\"\ndepth = 4\nunit = \"IOPS\"\n";
    fs::write(place.path("read.toml"), preset + test).expect("a preset");
    let serve = |name: &str| {
        let (socket, counts) = (place.path(name), place.path(&format!("{name}.counts")));
        let mut command = Command::new(&nbdkit);
        command.args(["--foreground", "--exit-with-parent", "--filter=stats", "--filter=delay"]);
        command.arg("--unix").arg(&socket).args(["memory", "16M", "rdelay=2ms"]);
        command.arg(format!("statsfile={}", counts.display()));
        (Server::start(&mut command, socket), counts)
    };

    let (server, counts) = serve("ours");
    let args = ["--destroy-data", "--preset", "read.toml", "--output", "results"];
    let finished = run(place.command(&args).arg(server.uri()), COMMAND_LIMIT);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    server.stop();
    let runs = place.results("results").runs;
    let counted: u64 = runs.iter().map(|run| run.sample.operations).sum();
    assert_eq!(reads_served(&counts), counted, "reads");
    runs.iter().for_each(obeys_delay);
    let ours = runs.iter().map(|run| run.value(Unit::Rate)).sum::<f64>() / runs.len() as f64;

    let (server, counts) = serve("theirs");
    let mut command = Command::new(fio);
    command.args(["--name=x", "--ioengine=nbd", "--rw=randread", "--bs=4k", "--iodepth=4"]);
    command.args(["--size=1m", "--time_based=1", "--runtime=2", "--norandommap=1"]);
    command.arg(format!("--uri={}", server.uri())).arg("--output-format=json+");
    let theirs = run_ok(&mut command).stdout;
    server.stop();
    fs::write(place.path("fio.json"), &theirs[theirs.find('{').expect("JSON")..]).expect("a file");
    let results = pumice_bench::interop::read(&place.path("fio.json")).expect("results");
    let runs = &results[0].runs;
    assert_eq!(reads_served(&counts), runs[0].sample.operations, "fio's reads");
    obeys_delay(&runs[0]);
    // The machine may have been busy during one of the two.
    let ratio = ours / runs[0].value(Unit::Rate);
    assert!((0.5..2.0).contains(&ratio), "{ratio} of fio's requests a second");
}

/// Guards against a first Ctrl-C that waits for a server which never answers.
#[test]
fn a_server_that_answers_nothing_keeps_no_interruption() {
    let Some(nbdkit) = tool("nbdkit") else { return };
    let place = Place::new();
    let (socket, log) = (place.path("socket"), place.path("log"));
    let mut command = Command::new(&nbdkit);
    command.args(["--foreground", "--exit-with-parent", "--filter=log", "--filter=delay"]);
    command.arg("--unix").arg(&socket).args(["memory", "16M", "rdelay=3600"]);
    let server = Server::start(command.arg(format!("logfile={}", log.display())), socket);
    let args = ["--destroy-data", "--preset", "small.toml", "--output", "results"];
    let mut child = spawn(place.command(&args).arg(server.uri()));
    let asked = || fs::read_to_string(&log).is_ok_and(|text| text.contains(" Read id="));
    wait_until("a read is under way", asked);
    kill_process(Pid::from_child(&child), Signal::INT).expect("a child");
    let status = wait(&mut child, COMMAND_LIMIT).expect("an end after one signal");
    let mut said = String::new();
    let mut stderr = child.stderr.take().expect("stderr is piped");
    std::io::Read::read_to_string(&mut stderr, &mut said).expect("text");
    assert_eq!(status.code(), Some(130), "{said}");
    let line = "interrupted: 1 run is in results; continue with --resume results\n";
    assert!(said.ends_with(line), "{said}");
    assert_eq!(place.results("results").runs.len(), 1);
    server.kill();
}

/// Returns the number of reads that a server with a counting filter has received.
fn reads_served(counts: &Path) -> u64 {
    let text = fs::read_to_string(counts).expect("counts");
    let line = text.lines().find(|line| line.starts_with("read: ")).expect("a line on reads");
    let count = line.split_whitespace().nth(1).expect("a count");
    count.parse().unwrap_or_else(|_| panic!("{line}"))
}

/// Asserts that the run had four requests in flight, of at least two milliseconds each.
fn obeys_delay(run: &RunResult) {
    let told = run.sample.latency.percentiles().expect("latencies");
    // The buckets of a histogram are exact to three digits.
    assert!(told.mean_ns >= 2e6 && told.p50_ns >= 1_998_000, "{told:?}");
    let per_second = run.value(Unit::Rate);
    assert!(per_second <= 2000.0, "{per_second}");
    let in_flight = per_second * told.mean_ns / 1e9;
    assert!((3.8..=4.05).contains(&in_flight), "{in_flight} in flight");
}

/// Guards against results that are lost when the target fails in the middle.
#[test]
fn a_file_system_that_fills_up_costs_no_run() {
    let Some(mount) = tool("mount") else { return };
    let place = Place::new();
    let small = place.path("small");
    fs::create_dir(&small).expect("a folder");
    let mut command = Command::new(mount);
    command.args(["-t", "tmpfs", "-o", "size=4M", "pumice"]).arg(&small);
    if run(&mut command, COMMAND_LIMIT).code != Some(0) {
        skip::<()>("mounting is not allowed");
        return;
    }
    let args = ["small", "--preset", "small.toml", "--output", "r", "--seconds", "0.2"];
    let mut child = spawn(place.command(&args).args(["--runs", "50"]));
    let lines = || fs::read_to_string(place.path("r")).map_or(0, |text| text.lines().count());
    wait_until("some runs are kept", || lines() >= 4);
    // Fills all the space, also when the bench empties its file.
    let mut filler = fs::File::create(small.join("filler")).expect("a file");
    let status = loop {
        // Most of these writes fail for lack of space.
        let _ = std::io::Write::write_all(&mut filler, &[1; 4096]);
        if let Some(status) = child.try_wait().expect("a child") {
            break status;
        }
    };
    let mut said = String::new();
    let mut stderr = child.stderr.take().expect("stderr is piped");
    std::io::Read::read_to_string(&mut stderr, &mut said).expect("text");
    drop(filler);
    run_ok(Command::new("umount").arg(&small));
    assert_eq!(status.code(), Some(2), "{said}");
    let kept = place.results("r").runs.len();
    assert!(said.contains(&format!("the benchmark failed; {kept} runs are in r")), "{said}");
    let is_why = said.contains("no space left") || said.contains("No space left on device");
    assert!(is_why && kept >= 3, "{said}");
}

#[test]
fn nothing_is_overwritten_unasked() {
    let place = Place::new();
    fs::write(place.path("mine"), "precious").expect("a file");
    let is_whole = |path: &Path| fs::read(path).expect("a file") == b"precious";
    assert!(place.refused(&["mine"]).contains("holds 8 bytes that would be overwritten"));
    assert!(is_whole(&place.path("mine")));
    assert!(place.refused(&["data", "--output", "mine"]).contains("--resume"));
    assert!(is_whole(&place.path("mine")) && !place.path("data").exists());
    let resumed = run(&mut place.command(&["data", "--resume", "mine"]), COMMAND_LIMIT);
    let is_refused = resumed.code == Some(2) && resumed.stderr.contains("no complete line");
    assert!(is_refused, "{}", resumed.stderr);
    assert!(is_whole(&place.path("mine")));
    // A dry run also reports that.
    assert!(place.refused(&["mine", "--dry-run"]).contains("holds 8 bytes"));
    // An empty drive has nothing to lose.
    let drive = Drive::create("64M", &[]);
    let target = format!("drive:{}", drive.path().display());
    let finished = place.bench(&[&target, "--span", "32M", "--output", "empty"]);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    assert!(place.refused(&[&target]).contains("--destroy-data"));
    let folder: Vec<_> = fs::read_dir(place.0.path()).expect("a folder").flatten().collect();
    assert_eq!(folder.len(), 3, "{folder:?}");
}

#[test]
fn a_folder_that_may_not_be_written_is_refused() {
    let Some(setpriv) = tool("setpriv") else { return };
    let place = Place::new();
    let mut command = Command::new(setpriv);
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", PUMICE, "bench"]);
    command.arg(place.0.path()).args(["--output", "never"]);
    let finished = run(&mut command, COMMAND_LIMIT);
    if finished.stderr.contains("setpriv:") {
        skip::<()>("another user cannot be had, or cannot run the program");
        return;
    }
    assert_eq!(finished.code, Some(2), "{}", finished.stderr);
    assert!(finished.stderr.contains("Permission denied"), "{}", finished.stderr);
    assert_eq!(fs::read_dir(place.0.path()).expect("a folder").count(), 1);
}

#[test]
fn mistakes_name_a_remedy() {
    let place = Place::new();
    let unknown = run(&mut place.command(&["data", "--preset", "atot"]), COMMAND_LIMIT);
    assert_eq!(unknown.code, Some(2));
    assert!(unknown.stderr.contains("did you mean atto?"), "{}", unknown.stderr);
    for (args, words) in [
        (&["data", "--resume", "nothing"][..], "no results to continue in nothing"),
        (&["data", "--detect-compression", "--runs", "5"], "cannot be used with '--runs"),
        (&["data", "--detect-compression", "--span", "1M"], "span 1 MiB: expected at least 8 MiB"),
    ] {
        let finished = run(&mut place.command(args), COMMAND_LIMIT);
        let is_said = finished.stderr.contains(words) && finished.stderr.lines().count() == 1;
        assert!(finished.code == Some(2) && is_said, "{args:?}: {}", finished.stderr);
    }
    for (args, words) in [
        (&["data", "--operation", "raed"][..], "did you mean read?"),
        (&["data", "--saved", "50"], "such as 50%"),
        (&["data", "--kind", "spread"], "needs --saved"),
        (&["data", "--span", "1K"], "a span of 1 KiB is too small"),
        (&["data", "--span", "1000T"], "use a smaller --span"),
        (&["data", "--depth", "0"], "0 is not in 1..=1024"),
        (&["data", "--threads", "65"], "65 is not in 1..=64"),
        (&["data", "--seconds", "0"], "0 seconds: expected more than 0"),
        (&["data", "--seconds", "nan"], "expected a duration such as 0.5"),
        (&["data", "--record", "3"], "512 B to 64 MiB"),
        (&["data", "--flush", "never"], "expected one of timed, untimed, each-write"),
        (&["data", "--cache", "cold"], "expected dropped or warm"),
        (
            &["data", "--runs-max", "7"],
            "a maximum of 7 runs needs a precision; without one there are 2",
        ),
        (&["data", "--output", "."], ". is a directory: specify a file in it"),
        (&["drive:nothing"], "cannot open nothing: No such file"),
        (&["data", "--resume", "nothing"], "'--preset <NAME>' cannot be used with '--resume"),
        (&["no/such/folder"], "no/such/folder"),
        (&["/dev/null"], "not a file, folder or block device"),
        (&["/nowhere/file"], "there is no folder /nowhere: create it first"),
    ] {
        let said = place.refused(args);
        assert!(said.contains(words) && said.lines().count() == 1, "{args:?}: {said}");
    }
    let folder: Vec<_> = fs::read_dir(place.0.path()).expect("a folder").flatten().collect();
    assert_eq!(folder.len(), 1, "{folder:?}");
}

/// Guards against a number with a minus that is mistaken for an option.
#[test]
fn a_number_below_zero_is_called_one() {
    let place = Place::new();
    for (option, number) in [
        ("--seconds", "-1"),
        ("--warm-up", "-0.5"),
        ("--runs", "-3"),
        ("--runs-max", "-3"),
        ("--depth", "-1"),
        ("--threads", "-1"),
        ("--seed", "-1"),
        ("--span", "-1G"),
        ("--shift", "-512"),
        ("--record", "-4K"),
        ("--saved", "-5%"),
        ("--duplicates", "-5%"),
        ("--precision", "-2%"),
    ] {
        let said = place.refused(&["data", option, number]);
        let words = format!("invalid value '{number}' for '{option}");
        assert!(said.contains(&words) && said.lines().count() == 1, "{option}: {said}");
        assert!(!said.contains("suffix") && !said.contains("digit"), "{option}: {said}");
    }
}

#[test]
fn a_dry_run_only_prints_the_plan() {
    let place = Place::new();
    let finished = place.bench(&["data", "--dry-run", "--seconds", "60"]);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    // Four runs of a minute, and eight spans of 1 MiB, four of them written.
    for words in [
        "3 tests at 2 levels, 2 runs each",
        "at least 4m (if whole spans run at 500 MB/s)",
        "writes 4 MiB",
    ] {
        assert!(finished.stdout.contains(words), "{words}: {}", finished.stdout);
    }
    let single = ["data", "--dry-run", "--saved", "5%", "--operation", "read", "--runs", "1"];
    let single = place.bench(&single).stdout;
    assert!(single.starts_with("data: 1 test at 1 level, 1 run each, "), "{single}");
    assert_eq!(fs::read_dir(place.0.path()).expect("a folder").count(), 1);
    let list = pumice(&["bench", "--list"]);
    assert!(list.code == Some(0) && list.stdout.contains("\nsnia-iops "), "{}", list.stdout);
    assert!(list.stdout.lines().all(|line| line.chars().count() <= 100), "{}", list.stdout);
}

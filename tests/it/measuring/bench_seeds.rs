//! Goal: the presets modelled on AS SSD and HD Tune and the copy of a file run to completion and
//! show the figures of those programs; read-only targets stay unchanged, also while they are
//! mounted.
//! Method: small spans; a loop device with a mounted file system, whose bytes and counters of
//! writes are compared before and after.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use pumice_bench::results::{Results, read};
use pumice_bench::workload::Unit;

use crate::harness::{
    COMMAND_LIMIT, Drive, Finished, LoopDevice, pumice, run, run_ok, skip, stand_in, tool,
};
use crate::measuring::bench::Place;

/// Runs a preset on a target in a few short runs, with these further arguments.
fn bench(place: &Place, preset: &str, args: &[&str]) -> Finished {
    let short = ["--runs", "3", "--seconds", "0.05", "--output", "r", "--preset", preset];
    run(place.command(&short).args(args), COMMAND_LIMIT)
}

fn good(finished: &Finished) {
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let long = finished.stdout.lines().find(|line| line.chars().count() > 100);
    assert_eq!(long, None);
}

/// Returns the report of the results as a page.
fn page(place: &Place) -> String {
    let file = place.path("r");
    let file = file.to_str().expect("a plain path");
    let finished = pumice(&["report", file, "--html", "-"]);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    finished.stdout
}

fn only_own_files(place: &Place, own: &[&str]) {
    let names = fs::read_dir(place.path(".")).expect("a folder").flatten();
    let mut names: Vec<String> =
        names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    assert_eq!(names, own);
}

#[test]
fn as_ssd_has_its_tests_scores_and_copies() {
    let place = Place::with("");
    let finished = bench(&place, "as-ssd", &[".", "--span", "16M", "--buffered"]);
    good(&finished);
    for words in [
        "4K-64Thrd read",
        "Acc.time write",
        "AS SSD score",
        "total",
        "Copies of files",
        "Copy program",
        "Over the range",
    ] {
        assert!(finished.stdout.contains(words), "{words}: {}", finished.stdout);
    }
    only_own_files(&place, &["r", "small.toml"]);
    let results = place.results("r");
    let test = |name: &str| {
        let tests = &results.header.plan.tests;
        tests.iter().position(|test| test.name == name).unwrap_or_else(|| panic!("no {name}"))
    };
    let threads = &results.header.plan.tests[test("4K-64Thrd read")].workload;
    assert_eq!((threads.threads, threads.depth), (64, 1));
    let access = &results.header.plan.tests[test("Acc.time write")];
    assert_eq!((access.workload.record_bytes, access.unit), (512, Unit::Latency));
    let runs = |name: &'static str| results.runs.iter().filter(move |run| run.test == test(name));
    assert!(runs("Copy ISO").all(|run| run.sample.operations == 2));
    assert!(runs("Copy game").all(|run| run.sample.host_bytes == 16 << 20));
    let files = |name| runs(name).next().expect("a run").sample.operations;
    assert!(files("Copy program") > 100 && files("Copy program") > files("Copy game"));
    let page = page(&place);
    for words in ["AS SSD score", "Over the range", "access time, ms", "Copies of files"] {
        assert!(page.contains(words), "{words}");
    }
}

/// Guards against tests of many threads that a drive in this process refuses.
#[test]
fn as_ssd_omits_unsupported_operations() {
    let place = Place::with("");
    let finished = bench(&place, "as-ssd", &["sim:micro-center-64", "--span", "16M"]);
    good(&finished);
    for words in ["skipped copy-iso, copy-program, copy-game: requires a folder", "one thread"] {
        assert!(finished.stderr.contains(words), "{words}: {}", finished.stderr);
    }
    let results = place.results("r");
    assert_eq!(results.header.plan.tests.len(), 8);
    assert_eq!(results.header.plan.tests[4].workload.depth, 64);
}

#[test]
fn the_compression_sweep_is_one_chart() {
    let place = Place::with("");
    let args = ["sim:micro-center-64", "--span", "16M"];
    good(&bench(&place, "as-ssd-compression", &args));
    let results = place.results("r");
    let savings: Vec<f64> =
        results.header.plan.levels.iter().filter_map(|level| level.known_saving()).collect();
    assert_eq!(savings, [100.0, 90.0, 80.0, 70.0, 60.0, 50.0, 40.0, 30.0, 20.0, 10.0, 0.0]);
    let mean = |level: usize| {
        let values = results.values(0, level);
        values.iter().sum::<f64>() / values.len() as f64
    };
    assert!(mean(0) > mean(10) * 1.5, "{} and {}", mean(0), mean(10));
    let page = page(&place);
    assert!(page.contains("Throughput over the saving of the data"));
    assert!(page.contains("space saved, %"));
}

#[test]
fn a_copy_takes_seconds_and_is_compared() {
    let place = Place::with("");
    fs::create_dir(place.path("a")).expect("a folder");
    fs::create_dir(place.path("b")).expect("a folder");
    let args = ["a", "b", "--span", "3M", "--runs", "6"];
    let short = ["--output", "r", "--preset", "copy-paste"];
    let finished = run(place.command(&short).args(args), COMMAND_LIMIT);
    good(&finished);
    assert!(finished.stdout.contains("copy by copy_file_range"), "{}", finished.stdout);
    assert!(finished.stdout.contains("b against a"), "{}", finished.stdout);
    let all: Vec<Results> = read(&place.path("r")).expect("results");
    for results in &all {
        assert_eq!(results.runs.len(), 6 * 2 * 3);
        for run in &results.runs {
            assert_eq!((run.sample.host_bytes, run.sample.operations), (3 << 20, 1));
            assert_eq!(run.value(Unit::Duration), run.sample.seconds);
            assert!(!run.warnings.iter().any(|it| it.contains("requests in")), "{run:?}");
        }
    }
    let page = page(&place);
    assert!(page.contains("a: Copies of files") && page.contains("Lower is better."));
    for folder in ["a", "b"] {
        assert_eq!(fs::read_dir(place.path(folder)).expect("a folder").count(), 0);
    }
    let refused = run(place.command(&["--preset", "copy-paste", "file"]).args(args), COMMAND_LIMIT);
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("skipped copy-file, copy-range: requires a folder"));
}

#[test]
fn a_folder_is_filled_before_its_range_is_read() {
    let place = Place::with("");
    let finished = bench(&place, "hd-tune", &[".", "--span", "8M", "--buffered"]);
    good(&finished);
    for words in ["Over the range", "Transfer rate", "Access time", "Burst rate", "processor"] {
        assert!(finished.stdout.contains(words), "{words}: {}", finished.stdout);
    }
    only_own_files(&place, &["r", "small.toml"]);
    let results = place.results("r");
    let surface = results.runs.iter().find(|run| run.test == 0).expect("a run");
    let spots: Vec<u64> = surface.sample.spots.iter().map(|spot| spot.offset_bytes).collect();
    assert_eq!(spots, (0..8).map(|mebibyte| mebibyte << 20).collect::<Vec<u64>>());
    let page = page(&place);
    let chart = "Transfer rate and access time over the range";
    for words in [chart, "position, GB", "transfer rate, MB/s", "access time, ms"] {
        assert!(page.contains(words), "{words}");
    }
}

/// Guards against a file or drive of the user's that is emptied, removed or changed by a test that
/// only reads.
#[test]
fn targets_that_are_only_read_are_not_changed() {
    let place = Place::with("");
    let bytes: Vec<u8> = (0..4u32 << 20).map(|at| (at / 977) as u8).collect();
    fs::write(place.path("mine"), &bytes).expect("a file");
    let finished = bench(&place, "hd-tune", &["mine", "--buffered"]);
    good(&finished);
    assert!(fs::read(place.path("mine")).expect("still a file") == bytes);
    let results = place.results("r");
    assert_eq!(results.header.plan.end_bytes(), 4 << 20, "the whole file");
    assert!(results.header.payloads.is_empty());
    fs::remove_file(place.path("r")).expect("results");
    // A preset that writes protects the file, as usual.
    let refused = bench(&place, "as-ssd", &["mine"]);
    assert!(refused.stderr.contains("would be overwritten"), "{}", refused.stderr);
    if stand_in().is_some() {
        return;
    }
    let drive = Drive::create("64M", &[]);
    let before = fs::read(drive.path()).expect("a drive");
    let target = format!("drive:{}", drive.path().display());
    good(&bench(&place, "hd-tune", &[&target]));
    assert!(fs::read(drive.path()).expect("a drive") == before, "the drive was changed");
}

/// A file system on a loop device, mounted until it is dropped.
struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0).status();
    }
}

/// Returns the file of a loop device.
fn backing(device: &Path) -> PathBuf {
    let name = device.file_name().expect("a name");
    let file = Path::new("/sys/block").join(name).join("loop/backing_file");
    PathBuf::from(fs::read_to_string(file).expect("a loop device").trim_end())
}

/// Returns the counters of requests and sectors that a loop device was asked to write.
fn writes(device: &Path) -> Vec<String> {
    let name = device.file_name().expect("a name");
    let stat = Path::new("/sys/block").join(name).join("stat");
    let stat = fs::read_to_string(stat).expect("counters");
    // Writes completed, merged, sectors and time; discards likewise.
    let fields: Vec<String> = stat.split_whitespace().map(str::to_owned).collect();
    [&fields[4..8], &fields[11..14]].concat()
}

/// A device that cannot be written until this is dropped: otherwise the next device of the same
/// number would still be read-only.
struct ReadOnly<'a>(PathBuf, &'a Path);

impl<'a> ReadOnly<'a> {
    fn set(blockdev: PathBuf, device: &'a Path) -> Self {
        run_ok(Command::new(&blockdev).arg("--setro").arg(device));
        Self(blockdev, device)
    }
}

impl Drop for ReadOnly<'_> {
    fn drop(&mut self) {
        let _ = Command::new(&self.0).arg("--setrw").arg(self.1).status();
    }
}

/// Guards against a write to a device that is in use.
#[test]
fn a_mounted_device_is_read_and_never_written() {
    let (Some(mkfs), Some(mount)) = (tool("mkfs.ext4"), tool("mount")) else { return };
    let Some(blockdev) = tool("blockdev") else { return };
    let Some(device) = LoopDevice::new(64 << 20) else { return };
    let place = Place::with("");
    let path = device.path().to_str().expect("a plain path");
    // Leaves nothing for the kernel to initialise later.
    let lazy = "lazy_itable_init=0,lazy_journal_init=0";
    run_ok(Command::new(mkfs).args(["-q", "-E", lazy, path]));
    let folder = place.path("mounted");
    fs::create_dir(&folder).expect("a folder");
    let mounted =
        run(Command::new(mount).args(["-o", "noatime", path]).arg(&folder), COMMAND_LIMIT);
    if mounted.code != Some(0) {
        skip::<()>("mounting is not allowed");
        return;
    }
    let mounted = Mounted(&folder);
    fs::write(folder.join("file"), vec![7; 1 << 20]).expect("a file");
    rustix::fs::sync();
    let whole = || fs::read(backing(device.path())).expect("the device's file");
    let (bytes, counts) = (whole(), writes(device.path()));
    good(&bench(&place, "hd-tune", &[path]));
    assert_eq!(writes(device.path()), counts, "something was written");
    assert!(whole() == bytes, "the device holds something else");
    let results = place.results("r");
    assert_eq!(results.header.plan.end_bytes(), 64 << 20, "the whole device");
    let last = results.runs[0].sample.spots.last().expect("positions").offset_bytes;
    assert_eq!(last, 63 << 20);
    fs::remove_file(place.path("r")).expect("results");
    let refused = bench(&place, "as-ssd", &[path, "--destroy-data"]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("is mounted or in use"), "{}", refused.stderr);
    // A read-only test of a preset whose other tests write.
    good(&bench(&place, "as-ssd", &[path, "--operation", "access-read"]));
    assert!(whole() == bytes, "the device holds something else");
    fs::remove_file(place.path("r")).expect("results");
    drop(mounted);
    // Any opening of the device for writing fails.
    let _read_only = ReadOnly::set(blockdev, device.path());
    good(&bench(&place, "hd-tune", &[path]));
}

//! Goal: every cell runs on its own data, in an order that is a function of the plan, and an
//! interrupted benchmark resumes without a difference in its results. Method: small plans on real
//! files; a sink that examines the file before each run, and stops after a number of runs.

use super::*;
use crate::bench::results::sample;
use crate::payload::Meter;
use crate::workload::{Level, Unit};
use pumice_drive::codec::Codec;

const SPAN: u64 = 1 << 20;

fn workload(operation: Operation) -> Workload {
    let workload = sample::workload(operation, 64 << 10);
    let depth = if operation.is_serial() { 1 } else { 2 };
    Workload { depth, span_bytes: SPAN, reads_percent: 50, seconds: 0.01, ..workload }
}

fn plan(operations: &[Operation]) -> Plan {
    let test = |operation: &Operation| {
        sample::test(operation.name(), Unit::Throughput, workload(*operation))
    };
    let level = |percent: f64| Level {
        name: format!("{percent}"),
        kind: "exact".into(),
        saved_percent: Some(percent),
        duplicates_percent: None,
    };
    let plan = Plan {
        tests: operations.iter().map(test).collect(),
        levels: [90.0, 50.0, 10.0].map(level).to_vec(),
        runs: 3,
        runs_max: 3,
        direct: false,
        seed: 1,
        ..sample::plan()
    };
    plan.check().expect("a plan");
    plan
}

/// Records the events, examines the file before each run, and stops after a number of runs.
struct Notes<'a> {
    location: Location,
    stop: &'a AtomicBool,
    stop_after: usize,
    steps: Vec<Status>,
    /// The saving of the file at the start of each run, in percent; 0 if the file is empty.
    saved: Vec<f64>,
    kept: Vec<RunResult>,
}

impl Sink for Notes<'_> {
    fn progress(&mut self, step: Status) {
        if step.activity == Activity::Measure {
            let data = std::fs::read(self.location.path().expect("a file")).expect("a file");
            let mut meter = Meter::new(Codec::Lz4);
            meter.add_chunks(&data, 4096);
            self.saved.push(if data.is_empty() { 0.0 } else { meter.tally().saved().percent() });
        }
        self.steps.push(step);
    }

    fn keep(&mut self, _target: usize, run: &RunResult) -> Result<()> {
        self.kept.push(run.clone());
        if self.kept.len() == self.stop_after {
            self.stop.store(true, Ordering::Relaxed);
        }
        Ok(())
    }
}

fn carried_out(
    plan: &Plan,
    done: Vec<RunResult>,
    stop_after: usize,
) -> (End, Vec<Status>, Vec<f64>, Vec<RunResult>) {
    let folder = tempfile::tempdir().expect("a folder");
    let location = Location::File(folder.path().join("data"));
    location.prepare(plan.end_bytes(), false).expect("room");
    let stop = AtomicBool::new(false);
    let mut notes = Notes {
        location: location.clone(),
        stop: &stop,
        stop_after,
        steps: Vec::new(),
        saved: Vec::new(),
        kept: Vec::new(),
    };
    let targets = std::slice::from_ref(&location);
    let carried = carry_out(targets, plan, vec![done], &stop, &mut notes);
    let (end, _) = carried.expect("a benchmark");
    (end, notes.steps, notes.saved, notes.kept)
}

/// Returns the parts of a run that do not depend on timing.
fn content(run: &RunResult) -> (u32, usize, usize, u64, u64) {
    (run.round, run.test, run.level, run.place, run.sample.host_bytes)
}

#[test]
fn every_cell_runs_once_a_round_and_finds_its_own_data() {
    let plan = plan(&[Operation::Read, Operation::Rewrite, Operation::Write, Operation::Reread]);
    let (end, steps, saved, kept) = carried_out(&plan, Vec::new(), usize::MAX);
    assert_eq!((end, kept.len()), (End::Complete, 36));
    for test in 0..4 {
        for level in 0..3 {
            let cell = kept.iter().filter(|run| (run.test, run.level) == (test, level));
            assert_eq!(cell.map(|run| run.round).collect::<Vec<_>>(), [0, 1, 2]);
        }
    }
    for (run, saved) in kept.iter().zip(saved) {
        let asked = plan.levels[run.level].saved_percent.expect("exact");
        // A new file is truncated first.
        let asked = if run.test == 2 { 0.0 } else { asked };
        assert!((saved - asked).abs() < 1.0, "{saved} for {:?}", content(run));
        assert_eq!(run.sample.host_bytes, SPAN);
    }
    // The tests of a level are consecutive, so the span is filled once per round and level, for the
    // first test.
    let fills: Vec<_> = steps.iter().filter(|step| step.activity == Activity::Fill).collect();
    assert!(fills.iter().all(|step| step.test == 0));
    assert!((7..=9).contains(&fills.len()), "{}", fills.len());
}

#[test]
fn the_target_rests_before_each_run() {
    let mut plan = plan(&[Operation::Rewrite]);
    plan.levels.truncate(1);
    let begins = |plan: &Plan| {
        let (end, _, _, kept) = carried_out(plan, Vec::new(), usize::MAX);
        assert_eq!((end, kept.len()), (End::Complete, 3));
        kept.iter().map(|run| run.begun_s).collect::<Vec<_>>()
    };
    plan.pause_seconds = 0.12;
    let apart = begins(&plan);
    assert!(apart.windows(2).all(|pair| pair[1] - pair[0] >= 0.12), "{apart:?}");
}

#[test]
fn levels_come_in_another_order_in_every_round() {
    let mut plan = plan(&[Operation::Read]);
    let orders = |plan: &Plan| -> Vec<Vec<usize>> {
        let levels =
            |round| cells(plan, &[0, 1, 2], round, &[&[]]).into_iter().map(|cell| cell.level);
        (0..plan.runs).map(|round| levels(round).collect()).collect()
    };
    plan.runs = 30;
    plan.runs_max = 30;
    let shuffled = orders(&plan);
    assert_eq!(shuffled, orders(&plan));
    for first in 0..3 {
        let count = shuffled.iter().filter(|levels| levels[0] == first).count();
        assert!((4..=16).contains(&count), "level {first} first in {count} of 30 rounds");
    }
    plan.seed = 2;
    assert_ne!(shuffled, orders(&plan));
    plan.order = Order::Given;
    assert!(orders(&plan).iter().all(|levels| *levels == [0, 1, 2]));
}

/// Guards against a resumed benchmark that repeats, skips or reorders runs, or reads data that the
/// file does not contain.
#[test]
fn an_interrupted_benchmark_resumes_with_the_same_results() {
    let plan = plan(&[Operation::Write, Operation::Read, Operation::Copy]);
    let (_, _, _, whole) = carried_out(&plan, Vec::new(), usize::MAX);
    for stop_after in [1, 5, 14, 26] {
        let (end, _, _, mut kept) = carried_out(&plan, Vec::new(), stop_after);
        assert_eq!((end, kept.len()), (End::Stopped, stop_after));
        let (end, _, saved, rest) = carried_out(&plan, kept.clone(), usize::MAX);
        assert_eq!(end, End::Complete);
        for (run, saved) in rest.iter().zip(saved).filter(|(run, _)| run.test > 0) {
            let asked = plan.levels[run.level].saved_percent.expect("exact");
            assert!((saved - asked).abs() < 1.0, "{saved} for {:?}", content(run));
        }
        kept.extend(rest);
        let contents = |runs: &[RunResult]| runs.iter().map(content).collect::<Vec<_>>();
        assert_eq!(contents(&kept), contents(&whole));
    }
}

#[test]
fn trimmed_data_is_put_back() {
    let (_, _, saved, kept) = {
        let mut plan = plan(&[Operation::RecordRewrite, Operation::Read]);
        plan.levels.truncate(1);
        carried_out(&plan, Vec::new(), usize::MAX)
    };
    assert_eq!(kept.len(), 6);
    assert!(saved.iter().all(|saved| (saved - 90.0).abs() < 1.0), "{saved:?}");
    let plan = plan(&[Operation::Trim]);
    let location = Location::File("none".into());
    let mut held = Lane::new(0, &location, Vec::new()).expect("a file");
    held.held = Some(1);
    for (workload, level, wanted) in [
        (workload(Operation::Rewrite), 1, Some(1)),
        (workload(Operation::Trim), 1, None),
        (workload(Operation::Write), 2, Some(2)),
        (Workload { span_bytes: SPAN / 2, ..workload(Operation::Write) }, 2, None),
    ] {
        held.note_held(&plan, &workload, level);
        assert_eq!(held.held, wanted);
    }
}

/// Returns a run with this value in MB/s.
fn run(round: u32, test: usize, level: usize, value: f64) -> RunResult {
    let mut run = sample::run(round, test, level, 0.0);
    run.sample.host_bytes = (value * 1e6) as u64;
    run
}

#[test]
fn rounds_go_on_for_the_cells_that_are_not_known_well() {
    let mut plan = plan(&[Operation::Read, Operation::Write]);
    (plan.runs, plan.runs_max, plan.precision_percent) = (5, 12, Some(2.0));
    let mut runs = Vec::new();
    for round in 0..5 {
        for level in 0..3 {
            runs.push(run(round, 0, level, 100.0));
            let scatter = if level == 1 { f64::from(round) * 20.0 } else { 0.0 };
            runs.push(run(round, 1, level, 100.0 + scatter));
        }
    }
    let all = |round| cells(&plan, &[0, 1, 2], round, &[&runs]);
    assert_eq!(all(4).len(), 6);
    assert_eq!(all(5), [Cell { test: 1, level: 1 }]);
    assert_eq!(all(12), []);
    // Later rounds do not change the result. A resumed benchmark already has them.
    let later: Vec<_> = runs.iter().cloned().chain([run(5, 1, 1, 1.0)]).collect();
    assert_eq!(cells(&plan, &[0, 1, 2], 5, &[&later]), all(5));
}

#[test]
fn rounds_go_on_until_the_tracked_test_is_steady() {
    let mut plan = plan(&[Operation::Read, Operation::RandomWrite]);
    (plan.runs, plan.runs_max) = (5, 25);
    plan.steady = Some("random-write".into());
    assert_eq!(passes(&plan), [[0], [1], [2]]);
    let falling: Vec<_> = (0..8)
        .flat_map(|round| {
            let value = if round < 4 { 100.0 - 20.0 * f64::from(round) } else { 30.0 };
            [run(round, 0, 1, 50.0), run(round, 1, 1, value)]
        })
        .collect();
    let rounds = (0..25).take_while(|round| !cells(&plan, &[1], *round, &[&falling]).is_empty());
    // Five rounds, and more until the last five are steady.
    assert_eq!(rounds.count(), 25);
    let level: Vec<_> =
        falling.iter().cloned().chain([run(8, 0, 1, 50.0), run(8, 1, 1, 30.0)]).collect();
    let rounds = (0..25).take_while(|round| !cells(&plan, &[1], *round, &[&level]).is_empty());
    assert_eq!(rounds.count(), 9);
}

#[test]
fn a_plan_preconditions_before_each_pass_that_is_not_complete() {
    let mut plan = plan(&[Operation::Mixed]);
    (plan.precondition, plan.fills, plan.runs, plan.runs_max) = (2, false, 1, 1);
    let (_, steps, saved, kept) = carried_out(&plan, Vec::new(), usize::MAX);
    let doing: Vec<_> = steps.iter().map(|step| step.activity).collect();
    let (first, second) = (Activity::Precondition(0), Activity::Precondition(1));
    assert_eq!(doing, [first, second, Activity::Measure, Activity::Measure, Activity::Measure]);
    assert!((saved[0] - 90.0).abs() < 1.0, "{saved:?}");
    assert_eq!(carried_out(&plan, kept, usize::MAX).1, []);
}

/// Guards against preconditioning a target without purging it first.
#[test]
fn a_target_is_purged_first() {
    let mut plan = plan(&[Operation::Mixed]);
    (plan.purge, plan.precondition, plan.fills) = (true, 1, false);
    (plan.runs, plan.runs_max) = (1, 1);
    plan.levels.truncate(1);
    let (_, steps, _, _) = carried_out(&plan, Vec::new(), usize::MAX);
    let doing: Vec<_> = steps.iter().map(|step| step.activity).collect();
    assert_eq!(doing, [Activity::Purge, Activity::Precondition(0), Activity::Measure]);
    let folder = tempfile::tempdir().expect("a folder");
    let file = Location::File(folder.path().join("data"));
    std::fs::write(file.path().expect("a file"), [7; 1 << 16]).expect("written");
    purge(&file, Access::default(), None, 1 << 16).expect("emptied");
    assert_eq!(std::fs::metadata(file.path().expect("a file")).expect("a file").len(), 0);
    let sim =
        Rc::new(System::new(SystemSpec::find("micro-center-64").expect("known")).expect("ok"));
    let location = Location::Sim("micro-center-64".into());
    purge(&location, Access::default(), Some(&sim), 1 << 20).expect("trimmed");
}

/// Guards against an order that favours a target, and against targets that receive different
/// requests.
#[test]
fn targets_take_turns_in_every_cell() {
    let plan = plan(&[Operation::Write, Operation::RandomRead]);
    let folder = tempfile::tempdir().expect("a folder");
    let targets = ["a", "b", "c"].map(|name| Location::File(folder.path().join(name)));
    targets.iter().for_each(|target| target.prepare(plan.end_bytes(), false).expect("room"));
    let stop = AtomicBool::new(false);
    let mut sink = Turns { runs: Vec::new(), stop: &stop, stop_after: usize::MAX };
    let carried = carry_out(&targets, &plan, vec![Vec::new(); 3], &stop, &mut sink);
    let (end, all) = carried.expect("a benchmark");
    assert_eq!(end, End::Complete);
    for (cell, three) in sink.runs.chunks(3).enumerate() {
        let mut targets: Vec<usize> = three.iter().map(|(target, _)| *target).collect();
        targets.sort_unstable();
        assert_eq!(targets, [0, 1, 2]);
        let cells = three.iter().map(|(_, run)| (run.round, run.test, run.level, run.place));
        assert!(cells.clone().all(|one| Some(one) == cells.clone().next()));
        assert_eq!(three[0].1.place, cell as u64);
    }
    // In three rounds, every target is first once.
    for (test, level) in [(0, 0), (0, 1), (1, 2)] {
        let firsts = sink.runs.chunks(3).map(|three| &three[0]);
        let firsts = firsts.filter(|(_, run)| (run.test, run.level) == (test, level));
        let mut firsts: Vec<usize> = firsts.map(|(target, _)| *target).collect();
        firsts.sort_unstable();
        assert_eq!(firsts, [0, 1, 2]);
    }
    // A benchmark interrupted between the turns of a cell resumes there.
    let stop = AtomicBool::new(false);
    let mut part = Turns { runs: Vec::new(), stop: &stop, stop_after: 13 };
    let carried = carry_out(&targets, &plan, vec![Vec::new(); 3], &stop, &mut part);
    let (end, done) = carried.expect("a benchmark");
    assert_eq!((end, done.iter().flatten().count()), (End::Stopped, 13));
    let stop = AtomicBool::new(false);
    let mut rest = Turns { runs: part.runs, stop: &stop, stop_after: usize::MAX };
    let (end, resumed) = carry_out(&targets, &plan, done, &stop, &mut rest).expect("the rest");
    assert_eq!(end, End::Complete);
    let places = |all: &[Vec<RunResult>]| -> Vec<Vec<u64>> {
        all.iter().map(|runs| runs.iter().map(|run| run.place).collect()).collect()
    };
    assert_eq!(places(&resumed), places(&all));
    let turns = |runs: &[(usize, RunResult)]| -> Vec<(usize, u64)> {
        runs.iter().map(|(target, run)| (*target, run.place)).collect()
    };
    assert_eq!(turns(&rest.runs), turns(&sink.runs));
}

/// Records the turns, and stops after a number of them.
struct Turns<'a> {
    runs: Vec<(usize, RunResult)>,
    stop: &'a AtomicBool,
    stop_after: usize,
}

impl Sink for Turns<'_> {
    fn keep(&mut self, target: usize, run: &RunResult) -> Result<()> {
        self.runs.push((target, run.clone()));
        if self.runs.len() == self.stop_after {
            self.stop.store(true, Ordering::Relaxed);
        }
        Ok(())
    }
}

#[test]
fn a_cell_runs_on_all_targets_if_one_needs_it() {
    let mut plan = plan(&[Operation::Read]);
    (plan.runs, plan.runs_max, plan.precision_percent) = (5, 12, Some(2.0));
    let runs = |scatter: f64| -> Vec<RunResult> {
        let one = |round: u32, level: usize| {
            let scatter = if level == 1 { f64::from(round) * scatter } else { 0.0 };
            run(round, 0, level, 100.0 + scatter)
        };
        (0..5).flat_map(|round| (0..3).map(move |level| one(round, level))).collect()
    };
    let (close, scattered) = (runs(0.0), runs(20.0));
    assert_eq!(cells(&plan, &[0, 1, 2], 5, &[&close, &close]), []);
    let wanted = [Cell { test: 0, level: 1 }];
    assert_eq!(cells(&plan, &[0, 1, 2], 5, &[&close, &scattered]), wanted);
}

/// Guards against filling spans in sectors because their length is not a multiple of a block, and
/// against fills that start before the span.
#[test]
fn a_fill_covers_the_span_in_long_records() {
    for (begin, end) in [(0, 1_000_000_512), (32_256, 32_256 + 1_000_000_000), (512, 1024), (0, 0)]
    {
        let mut at = begin;
        let mut requests = 0;
        for part in fill(begin, end) {
            part.check().expect("a workload");
            assert_eq!(part.shift_bytes, at);
            at = part.end_bytes();
            requests += part.span_bytes / part.record_bytes;
        }
        assert_eq!(at, end);
        assert!(requests <= end / (1 << 20) + 256 + 8, "{requests} requests");
    }
}

#[test]
fn only_the_span_is_filled() {
    let mut plan = plan(&[Operation::Rewrite]);
    plan.tests[0].workload.shift_bytes = 64 << 10;
    let (_, steps, saved, _) = carried_out(&plan, Vec::new(), 1);
    assert!(steps.iter().any(|step| step.activity == Activity::Fill));
    // The first sixteenth of the file is a hole.
    let asked = plan.levels[steps[0].level].saved_percent.expect("exact");
    let hole = 100.0 / 17.0;
    assert!((saved[0] - (hole + asked * (1.0 - hole / 100.0))).abs() < 1.0, "{saved:?}, {asked}");
}

/// Guards against operations that should read existing data but find an empty file.
#[test]
fn the_benchs_own_file_is_filled_before_it_is_read_as_it_is() {
    let plan = plan(&[Operation::SurfaceRead, Operation::AccessRead]);
    let (end, steps, saved, kept) = carried_out(&plan, Vec::new(), usize::MAX);
    assert_eq!((end, kept.len()), (End::Complete, 18));
    assert!(steps.iter().any(|step| step.activity == Activity::Fill));
    for (run, saved) in kept.iter().zip(saved) {
        let asked = plan.levels[run.level].saved_percent.expect("exact");
        assert!((saved - asked).abs() < 1.0, "{saved} for {:?}", content(run));
        assert!(!run.sample.spots.is_empty());
        assert_eq!(run.sample.written_bytes, 0);
    }
}

/// Guards against a read-only benchmark that fills, truncates or removes a user's file.
#[test]
fn a_file_that_is_only_read_is_never_written() {
    let plan = plan(&[Operation::SurfaceRead]);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("mine");
    let bytes = vec![7; SPAN as usize];
    std::fs::write(&path, &bytes).expect("a file");
    let location = Location::File(path.clone()).as_it_is();
    assert_eq!(location.whole_bytes().expect("a file"), Some(SPAN));
    location.prepare(plan.end_bytes(), false).expect("large enough");
    assert!(location.prepare(SPAN + 1, true).is_err(), "too small");
    let opened = location.open_file(Access::default()).expect("a file");
    let written = std::os::unix::fs::FileExt::write_at(&opened, &[1], 0);
    assert!(written.is_err(), "opened to be written");
    let targets = std::slice::from_ref(&location);
    let stop = AtomicBool::new(false);
    let (end, runs) = carry_out(targets, &plan, vec![Vec::new()], &stop, &mut ()).expect("runs");
    assert_eq!((end, runs[0].len()), (End::Complete, 9));
    location.empty().expect("nothing to do");
    location.remove();
    assert!(std::fs::read(&path).expect("a file") == bytes);
    // The benchmark owns files without contents.
    std::fs::write(&path, []).expect("a file");
    assert!(Location::File(path).as_it_is().is_made());
}

/// Guards against leaving files in place, and against copies on a target that is not a folder.
#[test]
fn files_are_copied_in_a_folder_and_removed() {
    let plan = plan(&[Operation::CopyProgram, Operation::CopyRange]);
    let folder = tempfile::tempdir().expect("a folder");
    let location = Location::Folder(folder.path().to_owned());
    location.prepare(plan.end_bytes(), false).expect("room");
    let targets = std::slice::from_ref(&location);
    let stop = AtomicBool::new(false);
    let (end, runs) = carry_out(targets, &plan, vec![Vec::new()], &stop, &mut ()).expect("runs");
    assert_eq!((end, runs[0].len()), (End::Complete, 18));
    assert!(runs[0].iter().all(|run| run.sample.host_bytes == SPAN));
    let files = |test| runs[0].iter().filter(move |run| run.test == test);
    assert!(files(0).all(|run| run.sample.operations > 10));
    assert!(files(1).all(|run| run.sample.operations == 1));
    location.remove();
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0);
    let file = Location::File(folder.path().join("data"));
    file.prepare(0, false).expect("room");
    let refused = carry_out(&[file], &plan, vec![Vec::new()], &stop, &mut ()).unwrap_err();
    assert!(refused.to_string().contains("needs a folder"), "{}", refused.chain());
}

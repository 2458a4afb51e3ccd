//! Runs a plan by rounds and cells, with equal conditions for each cell. Several targets take turns
//! within each cell.
//!
//! Every decision is a function of the plan and of the runs of earlier rounds. A resumed benchmark
//! therefore runs the same cells in the same order, with the same addresses and the same data.
//! Before a test that reads or overwrites, the span contains data of the test's own level. No test
//! reads blocks that were never written.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};

use rand::seq::SliceRandom;
use rustix::time::{ClockId, clock_gettime};

use super::sink::{Activity, Sink, Status};
use crate::bench::copying::Files;
use crate::bench::engine::{self, RunSpec, Sample};
use crate::bench::purge::purge;
use crate::bench::results::RunResult;
use crate::bench::results::environment::{Device, Gauges};
use crate::bench::shutdown::POLL_NS;
use crate::bench::target::{Access, Location};
use crate::bench::warnings::warnings;
use crate::error::Result;
use crate::payload::Payload;
use crate::stats::{Goal, Progress, enough, steady};
use crate::workload::{Cache, Order, Plan, memory_bytes};
use crate::workload::{Ends, Flush, Operation, Pattern, THREADS_MAX, Workload};
use pumice_drive::base::Clock;
use pumice_drive::base::seed::{mix, random};
use pumice_drive::runtime::{Backend, Runtime};
use pumice_sim::system::{System, SystemSpec};

/// Number of data streams for each position in the order of runs: the streams of its threads, of
/// the preceding fill and of its warm-up. No stream is used twice.
const POSITION_STREAMS: u64 = 4 * THREADS_MAX as u64;

/// The lowest bit of the target's index in a stream number; the streams of one target are below it.
/// Two targets receive the same requests with different data, which a disk below both cannot
/// deduplicate.
const TARGET_BIT: u32 = 52;
const FILL_STREAM: u64 = THREADS_MAX as u64;
const WARM_UP_STREAM: u64 = 2 * THREADS_MAX as u64;

/// Record sizes of a fill in bytes: first large records, which saturate any target, then the
/// remainder of the span in blocks and sectors.
const FILL_RECORD_BYTES: [u64; 3] = [1 << 20, 4096, 512];

/// Records in flight during a fill: enough to saturate any target.
const FILL_DEPTH: u32 = 8;

/// The end of a benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Every run was made.
    Complete,
    /// The stop flag was set.
    Stopped,
}

/// Runs `plan` on prepared targets, skipping the runs in `done`, which contains the runs of each
/// target. Returns all runs of each target, including `done`.
///
/// # Errors
/// The errors of the targets and of [`Sink::keep`], and of data that cannot be generated.
pub fn carry_out(
    targets: &[Location],
    plan: &Plan,
    done: Vec<Vec<RunResult>>,
    stop: &AtomicBool,
    sink: &mut dyn Sink,
) -> Result<(End, Vec<Vec<RunResult>>)> {
    carry_out_from(0, targets, plan, done, stop, sink)
}

/// Runs [`carry_out`], reusing the data of the targets from index `first` on.
pub(super) fn carry_out_from(
    first: usize,
    targets: &[Location],
    plan: &Plan,
    done: Vec<Vec<RunResult>>,
    stop: &AtomicBool,
    sink: &mut dyn Sink,
) -> Result<(End, Vec<Vec<RunResult>>)> {
    assert_eq!(targets.len(), done.len(), "runs of each target, if there are none as yet");
    let earlier = done.iter().flatten().map(|run| run.begun_s).fold(0.0, f64::max);
    let begun = seconds(ClockId::Monotonic) - earlier;
    let bench = Bench { plan, stop, begun, payloads: RefCell::default() };
    let each = targets.iter().zip(done).enumerate();
    let lanes = each.map(|(index, (location, runs))| Lane::new(first + index, location, runs));
    let lanes = lanes.collect::<Result<Vec<_>>>()?;
    let mut runner = Runner { bench: &bench, lanes, sink, position: 0 };
    let end = runner.all()?;
    Ok((end, runner.lanes.into_iter().map(|lane| lane.runs).collect()))
}

/// The state that all targets share.
struct Bench<'a> {
    plan: &'a Plan,
    stop: &'a AtomicBool,
    begun: f64,
    /// Payloads by level and unit size.
    payloads: RefCell<Vec<((usize, usize), Payload)>>,
}

/// Targets that take turns.
struct Runner<'a> {
    bench: &'a Bench<'a>,
    lanes: Vec<Lane<'a>>,
    sink: &'a mut dyn Sink,
    /// Position of the next cell in the order of all cells.
    position: u64,
}

/// One target and its runs.
struct Lane<'a> {
    index: usize,
    location: &'a Location,
    device: Option<Device>,
    /// Gauges of the machine's load from other programs; `None` in virtual time.
    gauges: Option<Gauges>,
    /// The simulated drive. Each run starts from the final state of the previous run.
    sim: Option<Rc<System>>,
    runs: Vec<RunResult>,
    /// The level whose data fills the whole span.
    held: Option<usize>,
    /// The files of the last copy.
    files: Option<Files>,
    /// Whether the target could not be purged and this has not been reported yet.
    is_unpurged: bool,
}

/// One test at one level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell {
    test: usize,
    level: usize,
}

/// Returns the groups of levels that run together. A level runs alone if it must reach steady state
/// first.
fn passes(plan: &Plan) -> Vec<Vec<usize>> {
    let levels = 0..plan.levels.len();
    match plan.steady {
        Some(_) => levels.map(|level| vec![level]).collect(),
        None => vec![levels.collect()],
    }
}

/// Returns all cells of a pass in the order in which a round runs them.
fn ordered(plan: &Plan, pass: &[usize], round: u32) -> Vec<Cell> {
    let mut levels = pass.to_vec();
    if plan.order == Order::Shuffled {
        levels.shuffle(&mut random(plan.seed ^ (u64::from(round) + 1)));
    }
    let cells = levels
        .iter()
        .flat_map(|&level| (0..plan.tests.len()).map(move |test| Cell { test, level }));
    cells.collect()
}

/// Returns the cells in one round of a pass that any target needs, in order; empty if there is no
/// such round. The result depends only on the runs of earlier rounds.
fn cells(plan: &Plan, pass: &[usize], round: u32, targets: &[&[RunResult]]) -> Vec<Cell> {
    let mut cells = ordered(plan, pass, round);
    match round {
        round if round < plan.runs => {}
        round if round >= plan.runs_max => cells.clear(),
        _ => cells.retain(|cell| targets.iter().any(|runs| is_wanting(plan, *cell, round, runs))),
    }
    cells
}

/// Returns the order of `count` targets in a cell of a round. Over `count` rounds, each target has
/// each place once; the start is drawn from the seed.
fn order(seed: u64, round: u32, cell: Cell, count: usize) -> Vec<usize> {
    let cycle = u64::from(round) / count as u64;
    let place = (cell.test as u64) << 32 | cell.level as u64;
    let mut order: Vec<usize> = (0..count).collect();
    order.shuffle(&mut random(mix(seed ^ mix(cycle)) ^ mix(place)));
    order.rotate_left(round as usize % count);
    order
}

/// Returns whether a cell needs another round.
fn is_wanting(plan: &Plan, cell: Cell, round: u32, runs: &[RunResult]) -> bool {
    let values = |test: usize| -> Vec<f64> {
        let of_test = runs.iter().filter(|run| run.test == test && run.level == cell.level);
        let mut earlier: Vec<_> = of_test.filter(|run| run.round < round).collect();
        earlier.sort_by_key(|run| run.round);
        earlier.iter().map(|run| run.value(plan.tests[test].unit)).collect()
    };
    if let Some(name) = &plan.steady {
        let tracked = plan.tests.iter().position(|test| test.name == *name);
        let rounds = steady(&values(tracked.expect("a checked plan")));
        return !rounds.last.is_some_and(|window| window.is_steady());
    }
    let Some(percent) = plan.precision_percent else { return false };
    let goal = Goal {
        half_width: percent / 100.0,
        runs_min: plan.runs as usize,
        runs_max: plan.runs_max as usize,
    };
    enough(&values(cell.test), goal) == Progress::Continue
}

impl Runner<'_> {
    fn all(&mut self) -> Result<End> {
        let plan = self.bench.plan;
        for pass in passes(plan) {
            for lane in 0..self.lanes.len() {
                self.precondition(lane, &pass)?;
            }
            for round in 0..plan.runs_max {
                for cell in self.cells(&pass, round) {
                    let position = self.position;
                    self.position += 1;
                    for lane in order(plan.seed, round, cell, self.lanes.len()) {
                        if self.lanes[lane].runs.iter().any(|run| run.place == position) {
                            continue;
                        }
                        self.cell(lane, cell, round, position)?;
                        if self.bench.is_stopped() {
                            return Ok(End::Stopped);
                        }
                    }
                }
            }
        }
        Ok(End::Complete)
    }

    fn cells(&self, pass: &[usize], round: u32) -> Vec<Cell> {
        let runs: Vec<&[RunResult]> = self.lanes.iter().map(|lane| &lane.runs[..]).collect();
        cells(self.bench.plan, pass, round, &runs)
    }

    fn report(&mut self, lane: usize, activity: Activity, round: u32, cell: Cell) {
        let plan = self.bench.plan;
        let planned = plan.cells() as u64 * u64::from(plan.runs) * self.lanes.len() as u64;
        let done = self.lanes.iter().map(|lane| lane.runs.len() as u64).sum();
        let planned = planned.max(done + 1);
        let Cell { test, level } = cell;
        let status = Status { activity, target: lane, round, test, level, done, planned };
        self.sink.progress(status);
    }

    fn precondition(&mut self, lane: usize, pass: &[usize]) -> Result<()> {
        let (plan, level) = (self.bench.plan, pass[0]);
        // A complete pass needs no preconditioning; a resumed pass needs it again.
        let rounds = 0..plan.runs_max;
        let rounds = rounds.map(|round| self.cells(pass, round).len());
        let runs = &self.lanes[lane].runs;
        let done = runs.iter().filter(|run| pass.contains(&run.level)).count();
        if done >= rounds.sum() {
            return Ok(());
        }
        if plan.purge {
            self.report(lane, Activity::Purge, 0, Cell { test: 0, level });
            self.lanes[lane].purge(plan)?;
        }
        for time in 0..plan.precondition {
            self.report(lane, Activity::Precondition(time), 0, Cell { test: 0, level });
            // No position uses these streams: positions stay far below the wrap-around.
            let stream = u64::MAX - POSITION_STREAMS * (u64::from(time) + 1 + level as u64 * 1000);
            self.lanes[lane].write_span(self.bench, level, stream)?;
            if self.bench.is_stopped() {
                break;
            }
        }
        Ok(())
    }

    fn cell(&mut self, lane: usize, cell: Cell, round: u32, position: u64) -> Result<()> {
        let plan = self.bench.plan;
        let workload = &plan.tests[cell.test].workload;
        let first_stream = position * POSITION_STREAMS;
        if workload.operation.is_new() {
            self.lanes[lane].location.empty()?;
            self.lanes[lane].held = None;
        } else if plan.fills && self.lanes[lane].must_fill(workload.operation, cell.level) {
            self.report(lane, Activity::Fill, round, cell);
            self.lanes[lane].write_span(self.bench, cell.level, first_stream + FILL_STREAM)?;
        }
        self.report(lane, Activity::Measure, round, cell);
        if let Some(run) = self.lanes[lane].run(self.bench, cell, round, position)? {
            self.sink.keep(lane, &run)?;
            self.lanes[lane].runs.push(run);
        }
        Ok(())
    }
}

impl<'a> Lane<'a> {
    fn new(index: usize, location: &'a Location, runs: Vec<RunResult>) -> Result<Self> {
        let device = location.path().and_then(|path| Device::of(&path));
        let sim = match location {
            Location::Sim(profile) => Some(Rc::new(System::new(SystemSpec::find(profile)?)?)),
            _ => None,
        };
        let gauges = sim.is_none().then(|| Gauges::new(device.as_ref()));
        let (held, files) = (None, None);
        Ok(Self { index, location, device, gauges, sim, runs, held, files, is_unpurged: false })
    }

    /// Trims the used part of the target. A target that cannot be trimmed is left unchanged, and
    /// its first run reports this.
    fn purge(&mut self, plan: &Plan) -> Result<()> {
        let access = Access { direct: plan.direct };
        let (_, end) = plan.filled(self.location.is_own()).unwrap_or_default();
        match purge(self.location, access, self.sim.as_ref(), end) {
            Err(error) if error.is_unsupported() => self.is_unpurged = true,
            purged => purged?,
        }
        self.held = None;
        Ok(())
    }

    /// Returns whether the span must be filled with a level's data before an operation. Operations
    /// that read existing data need a fill only if the target belongs to the benchmark.
    fn must_fill(&self, operation: Operation, level: usize) -> bool {
        let is_as_it_is = operation.reads_as_it_is() && !self.location.is_own();
        let uses_span = operation.file_set().is_none() && !is_as_it_is;
        uses_span && self.held != Some(level)
    }

    /// Fills the whole span with a level's data.
    fn write_span(&mut self, bench: &Bench<'_>, level: usize, stream: u64) -> Result<()> {
        let (begin, end) = bench.plan.filled(self.location.is_own()).unwrap_or_default();
        for (number, part) in (0..).zip(fill(begin, end)) {
            self.measure(bench, &part, level, stream + number)?;
        }
        self.held = (!bench.is_stopped()).then_some(level);
        Ok(())
    }

    /// Runs a cell. Returns `None` if it was stopped.
    fn run(
        &mut self,
        bench: &Bench<'_>,
        cell: Cell,
        round: u32,
        position: u64,
    ) -> Result<Option<RunResult>> {
        let plan = bench.plan;
        let workload = &plan.tests[cell.test].workload;
        let first_stream = position * POSITION_STREAMS;
        self.rest(bench)?;
        if plan.warm_up_seconds > 0.0 && workload.is_timed() {
            let warm_up = Workload { seconds: plan.warm_up_seconds, ..workload.clone() };
            self.measure(bench, &warm_up, cell.level, first_stream + WARM_UP_STREAM)?;
        }
        let is_copy = workload.operation.file_set().is_some();
        if is_copy {
            self.write_files(bench, cell, first_stream)?;
        } else if !plan.direct && plan.cache == Cache::Dropped {
            match &self.sim {
                Some(sim) => sim.drop_clean(),
                None => self.location.drop_cache()?,
            }
        }
        let counted = self.device.as_ref().and_then(Device::bytes);
        let moment = self.gauges.as_ref().and_then(Gauges::now);
        let begun = [ClockId::Monotonic, ClockId::ProcessCPUTime].map(seconds);
        let sample = match &self.files {
            Some(files) if is_copy => files.copy(workload, bench.stop)?,
            _ => self.measure(bench, workload, cell.level, first_stream)?,
        };
        let ended = [ClockId::Monotonic, ClockId::ProcessCPUTime].map(seconds);
        let machine = self.gauges.as_ref().and_then(|gauges| gauges.since(moment));
        if bench.is_stopped() {
            return Ok(None);
        }
        self.note_held(plan, workload, cell.level);
        // A simulation runs in virtual time.
        let processor_share = match self.sim {
            Some(_) => 0.0,
            None => {
                let wall = (ended[0] - begun[0]).max(1e-9);
                (ended[1] - begun[1]) / wall / f64::from(workload.threads)
            }
        };
        let now = self.device.as_ref().and_then(Device::bytes);
        let mut run = RunResult {
            round,
            test: cell.test,
            level: cell.level,
            place: position,
            begun_s: begun[0] - bench.begun,
            sample,
            processor_share,
            device: now.zip(counted).map(|(now, earlier)| now.since(earlier)),
            machine,
            warnings: Vec::new(),
        };
        let in_process = self.location.is_in_process();
        run.warnings = warnings(plan, &run, memory_bytes(), in_process);
        if std::mem::take(&mut self.is_unpurged) {
            let what = "the target does not support trim: its state before the test is unknown";
            run.warnings.push(what.to_owned());
        }
        Ok(Some(run))
    }

    /// Leaves the target idle for the plan's pause, unless the benchmark is stopped.
    fn rest(&self, bench: &Bench<'_>) -> Result<()> {
        let mut left_ns = (bench.plan.pause_seconds * 1e9) as u64;
        if left_ns == 0 {
            return Ok(());
        }
        let runtime = match &self.sim {
            Some(sim) => sim.runtime().clone(),
            None => Runtime::new(Backend::Auto)?,
        };
        runtime.block_on(async {
            while left_ns > 0 && !bench.is_stopped() {
                let part_ns = left_ns.min(POLL_NS);
                runtime.sleep_ns(part_ns).await;
                left_ns -= part_ns;
            }
        });
        Ok(())
    }

    /// Writes the files that a test copies, unless they already exist with the level's data.
    fn write_files(&mut self, bench: &Bench<'_>, cell: Cell, stream: u64) -> Result<()> {
        let plan = bench.plan;
        let workload = &plan.tests[cell.test].workload;
        if self.files.as_ref().is_some_and(|files| files.are_of(workload, cell.level)) {
            return Ok(());
        }
        // The old files are removed before new ones are created.
        self.files = None;
        engine::check(self.location, Access { direct: plan.direct }, workload)?;
        let path = self.location.path().unwrap_or_default();
        let folder = path.parent().unwrap_or(&path);
        let payload = bench.payload(cell.level, workload.record_bytes)?;
        let stream = stream ^ (self.index as u64) << TARGET_BIT;
        let numbers = (stream, plan.seed);
        let files = Files::write(folder, workload, cell.level, &payload, numbers, bench.stop)?;
        self.files = Some(files);
        Ok(())
    }

    /// Records which level's data the span contains after a test.
    fn note_held(&mut self, plan: &Plan, workload: &Workload, level: usize) {
        match workload.operation {
            Operation::Trim => self.held = None,
            operation if operation.is_new() => {
                let own = (workload.shift_bytes, workload.end_bytes());
                let is_whole = !workload.is_timed()
                    && plan.filled(self.location.is_own()) == Some(own)
                    && workload.span_bytes.is_multiple_of(workload.record_bytes)
                    && workload.threads == 1;
                self.held = is_whole.then_some(level);
            }
            _ => {}
        }
    }

    fn measure(
        &self,
        bench: &Bench<'_>,
        workload: &Workload,
        level: usize,
        stream: u64,
    ) -> Result<Sample> {
        let run = RunSpec {
            workload: workload.clone(),
            payload: bench.payload(level, workload.piece_bytes())?,
            stream: stream ^ (self.index as u64) << TARGET_BIT,
            // Each target receives the same requests.
            seed: bench.plan.seed ^ stream,
        };
        let access = Access { direct: bench.plan.direct };
        match &self.sim {
            Some(sim) => {
                engine::check(self.location, access, workload)?;
                engine::simulate(sim, &run, bench.stop)
            }
            None => engine::measure(self.location, access, &run, bench.stop),
        }
    }
}

impl Bench<'_> {
    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Returns a level's payload for records of this size or a multiple of it. Its units have this
    /// size, but at most 4 KiB.
    fn payload(&self, level: usize, record_bytes: u64) -> Result<Payload> {
        let description = &self.plan.levels[level];
        let unit_bytes = description.unit_bytes(record_bytes);
        let key = (level, unit_bytes);
        let mut payloads = self.payloads.borrow_mut();
        if let Some((_, payload)) = payloads.iter().find(|(known, _)| *known == key) {
            return Ok(payload.clone());
        }
        let payload = description.payload(self.plan.seed, unit_bytes)?;
        payloads.push((key, payload.clone()));
        Ok(payload)
    }
}

/// Returns workloads that write each sector of a range once, in order and at full speed.
fn fill(begin: u64, end: u64) -> Vec<Workload> {
    let mut shift_bytes = begin;
    let mut parts = Vec::new();
    for record_bytes in FILL_RECORD_BYTES {
        let span_bytes = (end - shift_bytes) / record_bytes * record_bytes;
        if span_bytes > 0 {
            parts.push(Workload {
                operation: Operation::Write,
                record_bytes,
                depth: FILL_DEPTH,
                threads: 1,
                span_bytes,
                shift_bytes,
                pattern: Pattern::default(),
                reads_percent: 0,
                seconds: 1.0,
                flush: Flush::Timed,
                ends: Ends::Usual,
                mix: Vec::new(),
            });
        }
        shift_bytes += span_bytes;
    }
    parts
}

fn seconds(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

#[cfg(test)]
mod tests;

//! Runs a plan: round by round, cell by cell, with equal conditions for each.
//!
//! Every decision is a function of the plan and of the runs of earlier rounds. An interrupted
//! benchmark therefore continues with the same cells in the same order, with the same addresses and
//! the same data. Before a test that reads or overwrites, the span holds data of the test's own
//! level; no test reads blocks that were never written.

use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};

use rand::seq::SliceRandom;
use rustix::time::{ClockId, clock_gettime};

use super::sink::{Activity, Sink, Status};
use crate::bench::engine::{self, RunSpec, Sample};
use crate::bench::results::RunResult;
use crate::bench::results::environment::{Device, memory_bytes};
use crate::bench::target::{Access, Location};
use crate::bench::warnings::warnings;
use crate::error::Result;
use crate::payload::Payload;
use crate::stats::{Goal, Progress, enough, steady};
use crate::workload::{Cache, Order, Plan};
use crate::workload::{Flush, Operation, Pattern, THREADS_MAX, Workload};
use pumice_drive::base::seed::random;
use pumice_sim::system::{System, SystemSpec};

/// Data streams of one position in the order of runs: those of its threads, of the fill before it
/// and of its warm-up. No stream is used twice.
const POSITION_STREAMS: u64 = 4 * THREADS_MAX as u64;
const FILL_STREAM: u64 = THREADS_MAX as u64;
const WARM_UP_STREAM: u64 = 2 * THREADS_MAX as u64;

/// Records of a fill in bytes: long ones, which saturate any target, then what is left of the span
/// in blocks and in sectors.
const FILL_RECORD_BYTES: [u64; 3] = [1 << 20, 4096, 512];

/// Records of a fill in flight: enough to saturate any target.
const FILL_DEPTH: u32 = 8;

/// How a benchmark ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Every run was made.
    Complete,
    /// The stop flag was set.
    Stopped,
}

/// Runs `plan` on a prepared target, skipping the runs in `done`. Returns all runs, including
/// `done`.
///
/// # Errors
/// The errors of the target, of [`Sink::keep`] and of data that cannot be generated.
pub fn carry_out(
    location: &Location,
    plan: &Plan,
    done: Vec<RunResult>,
    stop: &AtomicBool,
    sink: &mut dyn Sink,
) -> Result<(End, Vec<RunResult>)> {
    let access = Access { direct: plan.direct };
    let device = location.path().and_then(|path| Device::of(&path));
    let begun =
        seconds(ClockId::Monotonic) - done.iter().map(|run| run.begun_s).fold(0.0, f64::max);
    let bench = Bench { location, plan, access, device, stop, begun, sink };
    let sim = match location {
        Location::Sim(profile) => Some(Rc::new(System::new(SystemSpec::find(profile)?)?)),
        _ => None,
    };
    let mut runner =
        Runner { bench, sim, payloads: Vec::new(), runs: done, held: None, position: 0 };
    let end = runner.all()?;
    Ok((end, runner.runs))
}

struct Bench<'a> {
    location: &'a Location,
    plan: &'a Plan,
    access: Access,
    device: Option<Device>,
    stop: &'a AtomicBool,
    begun: f64,
    sink: &'a mut dyn Sink,
}

struct Runner<'a> {
    bench: Bench<'a>,
    /// The simulated drive. Each run starts from the state that the previous run left.
    sim: Option<Rc<System>>,
    /// Payloads by level and unit size.
    payloads: Vec<((usize, usize), Payload)>,
    runs: Vec<RunResult>,
    /// The level whose data fills the whole span.
    held: Option<usize>,
    /// Position of the next run in the order of all runs.
    position: u64,
}

/// One test at one level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell {
    test: usize,
    level: usize,
}

/// Returns the levels that run together: each level alone if it must reach steady state first.
fn passes(plan: &Plan) -> Vec<Vec<usize>> {
    let levels = 0..plan.levels.len();
    match plan.steady {
        Some(_) => levels.map(|level| vec![level]).collect(),
        None => vec![levels.collect()],
    }
}

/// Returns the cells of one round of a pass in order, or an empty list if there is no such round.
/// Depends on the runs of earlier rounds only.
fn cells(plan: &Plan, pass: &[usize], round: u32, runs: &[RunResult]) -> Vec<Cell> {
    let mut levels = pass.to_vec();
    if plan.order == Order::Shuffled {
        levels.shuffle(&mut random(plan.seed ^ (u64::from(round) + 1)));
    }
    let all = levels
        .iter()
        .flat_map(|&level| (0..plan.tests.len()).map(move |test| Cell { test, level }));
    match round {
        round if round < plan.runs => all.collect(),
        round if round >= plan.runs_max => Vec::new(),
        _ => all.filter(|cell| is_wanting(plan, *cell, round, runs)).collect(),
    }
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
    enough(&values(cell.test), goal, plan.seed) == Progress::Continue
}

impl Runner<'_> {
    fn all(&mut self) -> Result<End> {
        let plan = self.bench.plan;
        for pass in passes(plan) {
            self.precondition(&pass)?;
            for round in 0..plan.runs_max {
                for cell in cells(plan, &pass, round, &self.runs) {
                    let position = self.position;
                    self.position += 1;
                    if self.runs.iter().any(|run| run.place == position) {
                        continue;
                    }
                    self.cell(cell, round, position)?;
                    if self.is_stopped() {
                        return Ok(End::Stopped);
                    }
                }
            }
        }
        Ok(End::Complete)
    }

    fn is_stopped(&self) -> bool {
        self.bench.stop.load(Ordering::Relaxed)
    }

    fn report(&mut self, activity: Activity, round: u32, cell: Cell) {
        let plan = self.bench.plan;
        let planned = plan.tests.len() as u64 * plan.levels.len() as u64 * u64::from(plan.runs);
        let done = self.runs.len() as u64;
        let planned = planned.max(done + 1);
        let Cell { test, level } = cell;
        self.bench.sink.progress(Status { activity, round, test, level, done, planned });
    }

    fn precondition(&mut self, pass: &[usize]) -> Result<()> {
        let (plan, level) = (self.bench.plan, pass[0]);
        // A complete pass needs no preconditioning; an interrupted pass needs it again.
        let rounds = (0..plan.runs_max).map(|round| cells(plan, pass, round, &self.runs).len());
        let done = self.runs.iter().filter(|run| pass.contains(&run.level)).count();
        if done >= rounds.sum() {
            return Ok(());
        }
        for time in 0..plan.precondition {
            self.report(Activity::Precondition(time), 0, Cell { test: 0, level });
            // Streams that no position uses: positions stay far below the wrap-around.
            let stream = u64::MAX - POSITION_STREAMS * (u64::from(time) + 1 + level as u64 * 1000);
            self.write_span(level, stream)?;
            if self.is_stopped() {
                break;
            }
        }
        Ok(())
    }

    /// Fills the whole span with a level's data.
    fn write_span(&mut self, level: usize, stream: u64) -> Result<()> {
        let plan = self.bench.plan;
        for (number, part) in (0..).zip(fill(plan.begin_bytes(), plan.end_bytes())) {
            self.measure(&part, level, stream + number)?;
        }
        self.held = (!self.is_stopped()).then_some(level);
        Ok(())
    }

    fn cell(&mut self, cell: Cell, round: u32, position: u64) -> Result<()> {
        let plan = self.bench.plan;
        let workload = &plan.tests[cell.test].workload;
        let first_stream = position * POSITION_STREAMS;
        if workload.operation.is_new() {
            self.bench.location.empty()?;
            self.held = None;
        } else if plan.fills && self.held != Some(cell.level) {
            self.report(Activity::Fill, round, cell);
            self.write_span(cell.level, first_stream + FILL_STREAM)?;
        }
        self.report(Activity::Measure, round, cell);
        if plan.warm_up_seconds > 0.0 && workload.operation.is_timed() {
            let warm_up = Workload { seconds: plan.warm_up_seconds, ..workload.clone() };
            self.measure(&warm_up, cell.level, first_stream + WARM_UP_STREAM)?;
        }
        if !plan.direct && plan.cache == Cache::Dropped {
            match &self.sim {
                Some(sim) => sim.drop_clean(),
                None => self.bench.location.drop_cache()?,
            }
        }
        let counted = self.bench.device.as_ref().and_then(Device::bytes);
        let begun = [ClockId::Monotonic, ClockId::ProcessCPUTime].map(seconds);
        let sample = self.measure(workload, cell.level, first_stream)?;
        let ended = [ClockId::Monotonic, ClockId::ProcessCPUTime].map(seconds);
        if self.is_stopped() {
            return Ok(());
        }
        self.note_held(workload, cell.level);
        // A simulation runs in virtual time.
        let processor_share = match self.sim {
            Some(_) => 0.0,
            None => {
                let wall = (ended[0] - begun[0]).max(1e-9);
                (ended[1] - begun[1]) / wall / f64::from(workload.threads)
            }
        };
        let now = self.bench.device.as_ref().and_then(Device::bytes);
        let mut run = RunResult {
            round,
            test: cell.test,
            level: cell.level,
            place: position,
            begun_s: begun[0] - self.bench.begun,
            sample,
            processor_share,
            device: now.zip(counted).map(|(now, earlier)| now.since(earlier)),
            warnings: Vec::new(),
        };
        let in_process = matches!(self.bench.location, Location::Drive(_) | Location::Sim(_));
        run.warnings = warnings(plan, &run, memory_bytes(), in_process);
        self.bench.sink.keep(&run)?;
        self.runs.push(run);
        Ok(())
    }

    /// Records which level the span holds after a test.
    fn note_held(&mut self, workload: &Workload, level: usize) {
        match workload.operation {
            Operation::Trim => self.held = None,
            operation if operation.is_new() => {
                let plan = self.bench.plan;
                let is_whole = workload.shift_bytes == plan.begin_bytes()
                    && workload.end_bytes() == plan.end_bytes()
                    && workload.span_bytes.is_multiple_of(workload.record_bytes)
                    && workload.threads == 1;
                self.held = is_whole.then_some(level);
            }
            _ => {}
        }
    }

    fn measure(&mut self, workload: &Workload, level: usize, stream: u64) -> Result<Sample> {
        let payload = self.payload(level, workload.record_bytes)?;
        let run = RunSpec {
            workload: workload.clone(),
            payload,
            stream,
            seed: self.bench.plan.seed ^ stream,
        };
        let Bench { location, access, stop, .. } = self.bench;
        match &self.sim {
            Some(sim) => {
                engine::check(location, access, workload)?;
                engine::simulate(sim, &run, stop)
            }
            None => engine::measure(location, access, &run, stop),
        }
    }

    /// Returns a level's payload for this record size, in units of a record or 4 KiB at most.
    fn payload(&mut self, level: usize, record_bytes: u64) -> Result<Payload> {
        let description = &self.bench.plan.levels[level];
        let unit_bytes = description.unit_bytes(record_bytes);
        let key = (level, unit_bytes);
        if let Some((_, payload)) = self.payloads.iter().find(|(known, _)| *known == key) {
            return Ok(payload.clone());
        }
        let payload = description.payload(self.bench.plan.seed, unit_bytes)?;
        self.payloads.push((key, payload.clone()));
        Ok(payload)
    }
}

/// Returns workloads that write all sectors of a range once, in order and at full speed.
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

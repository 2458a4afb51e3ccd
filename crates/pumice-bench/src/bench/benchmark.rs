//! Runs a whole benchmark in one call: prepares and describes the targets, runs the plan, cleans
//! up.
//!
//! ```text
//! prepare targets -> headers, with Sink::describe -> Sink::begin
//!                 -> { Sink::progress, Sink::keep } per run -> remove
//! ```
//!
//! A [`Sink`] receives each event as it happens. This module prints nothing.

use std::sync::atomic::AtomicBool;

use super::results::{Header, Results, TARGETS_MAX};
use super::runner::{End, carry_out_from};
use super::sink::Sink;
use super::target::{Contender, Location};
use crate::error::{Error, Result};
use crate::workload::Plan;

/// A plan, with the metadata that identifies its results.
#[derive(Clone, Debug)]
pub struct Benchmark {
    /// Name of the preset.
    pub title: String,
    /// Subject of the preset, in one or two sentences.
    pub about: String,
    /// The tests, levels and rounds.
    pub plan: Plan,
    /// Allows overwriting existing data on the target.
    pub destroy: bool,
    /// Start of the benchmark, in seconds since 1970, UTC; 0 if it must not appear in the results.
    pub begun_unix_s: u64,
}

/// The results of a benchmark, complete or partial.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Whether every run was made.
    pub end: End,
    /// The header and all runs so far.
    pub results: Results,
}

/// The results of a benchmark of targets that took turns, complete or partial.
#[derive(Clone, Debug)]
pub struct Contest {
    /// Whether every run was made.
    pub end: End,
    /// Header and runs of each target, in the given order.
    pub results: Vec<Results>,
}

impl Benchmark {
    /// Runs the benchmark on `target`, then removes any file that the benchmark created there. If
    /// the plan [only looks](Plan::only_looks), targets that contain data are opened read-only, and
    /// may be mounted. Setting `stop` ends the benchmark after the current run, which is discarded.
    ///
    /// # Errors
    /// The errors of [`Location::prepare`], [`Header::new`], the target and the sink.
    ///
    /// ```
    /// use std::sync::atomic::AtomicBool;
    ///
    /// use pumice_bench::workload::{Changes, Preset};
    /// use pumice_bench::{Benchmark, target::Location};
    ///
    /// let preset = Preset::load("atto")?;
    /// let changes = Changes {
    ///     runs: Some(1),
    ///     records: vec![4096],
    ///     span_bytes: Some(1 << 20),
    ///     ..Changes::default()
    /// };
    /// let benchmark = Benchmark {
    ///     title: "atto".into(),
    ///     about: preset.about.clone(),
    ///     plan: preset.plan(&changes)?,
    ///     destroy: false,
    ///     begun_unix_s: 0,
    /// };
    /// let target = Location::parse("sim:micro-center-64")?;
    /// let finished = benchmark.run(&target, &AtomicBool::new(false), &mut ())?;
    /// assert!(finished.results.cells().iter().all(|cell| cell.values.mean > 0.0));
    /// # Ok::<(), pumice_bench::Error>(())
    /// ```
    pub fn run(
        self,
        target: &Location,
        stop: &AtomicBool,
        sink: &mut dyn Sink,
    ) -> Result<Finished> {
        self.run_as(0, target, stop, sink)
    }

    /// Runs the benchmark as the host with this index, concurrently with other hosts. Each host
    /// writes its own data.
    ///
    /// # Errors
    /// The errors of [`Benchmark::run`].
    pub(super) fn run_as(
        self,
        host: u32,
        target: &Location,
        stop: &AtomicBool,
        sink: &mut dyn Sink,
    ) -> Result<Finished> {
        let targets = [target.clone().into()];
        let Contest { end, mut results } = self.all(host as usize, &targets, stop, sink)?;
        Ok(Finished { end, results: results.remove(0) })
    }

    /// Runs the benchmark on several targets that take turns: after each run of a cell, the same
    /// run is made on the next target, so that changes of the machine affect all targets alike. The
    /// order of the targets is balanced over the rounds and drawn from the seed.
    ///
    /// # Errors
    /// The errors of [`Benchmark::run`]; [`Error::Invalid`] if there are no targets, too many, or
    /// duplicates.
    pub fn run_in_turns(
        self,
        targets: &[Contender],
        stop: &AtomicBool,
        sink: &mut dyn Sink,
    ) -> Result<Contest> {
        self.all(0, targets, stop, sink)
    }

    /// Runs the benchmark. The targets reuse the data of the targets from index `first` on.
    fn all(
        self,
        first: usize,
        targets: &[Contender],
        stop: &AtomicBool,
        sink: &mut dyn Sink,
    ) -> Result<Contest> {
        check_distinct(targets)?;
        let targets = &as_the_plan_needs(targets, &self.plan);
        for (index, target) in targets.iter().enumerate() {
            let prepared = prepare(&target.location, &self.plan, self.destroy);
            prepared.inspect_err(|_| remove(&targets[..index]))?;
        }
        let location = &targets[0].location;
        let header = Header::new(&self.title, &self.about, location, self.plan, self.begun_unix_s);
        let headers = header.and_then(|header| header.in_turns(targets));
        let mut headers = headers.inspect_err(|_| remove(targets))?;
        for (header, target) in headers.iter_mut().zip(targets) {
            header.environment.extend(sink.describe(&target.location));
        }
        let results = headers.into_iter().map(|header| Results { header, runs: Vec::new() });
        finish(first, targets, results.collect(), stop, sink)
    }
}

/// Returns the targets. If the plan only looks, targets that contain data are opened read-only.
fn as_the_plan_needs(targets: &[Contender], plan: &Plan) -> Vec<Contender> {
    let mut targets = targets.to_vec();
    if plan.only_looks() {
        for target in &mut targets {
            target.location = target.location.clone().as_it_is();
        }
    }
    targets
}

/// Prepares a target for a plan. For copies, the target needs space for each file twice.
fn prepare(location: &Location, plan: &Plan, destroy: bool) -> Result<()> {
    let copied_bytes = plan.copied_bytes().saturating_mul(2);
    location.prepare(plan.end_bytes().saturating_add(copied_bytes), destroy)
}

/// Checks that all targets are distinct.
fn check_distinct(targets: &[Contender]) -> Result<()> {
    if !(1..=TARGETS_MAX).contains(&targets.len()) {
        let what = format!("{} targets: expected 1 to {TARGETS_MAX}", targets.len());
        return Err(Error::invalid(what));
    }
    for (index, Contender { location, .. }) in targets.iter().enumerate() {
        if targets[..index].iter().any(|other| other.location.is_same(location)) {
            let what = format!("{location} is named twice: the runs would overwrite each other");
            return Err(Error::invalid(what));
        }
    }
    Ok(())
}

/// Removes the files that the benchmark created.
fn remove(targets: &[Contender]) {
    targets.iter().for_each(|target| target.location.remove());
}

/// An interrupted benchmark that resumes after its last run, with the same outcome as without the
/// interruption.
#[derive(Clone, Debug)]
pub struct Resumption {
    /// Header and runs of each target so far.
    pub results: Vec<Results>,
    /// Allows overwriting existing data on the targets.
    pub destroy: bool,
}

impl Resumption {
    /// Runs the remaining cells.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a simulated drive, whose contents are lost; [`Error::Invalid`] if
    /// the results belong to other targets; the errors of [`Benchmark::run`].
    pub fn run(
        self,
        targets: &[Location],
        stop: &AtomicBool,
        sink: &mut dyn Sink,
    ) -> Result<Contest> {
        check_resumable(&self.results, targets)?;
        let contenders: Vec<Contender> = targets.iter().cloned().map(Contender::from).collect();
        check_distinct(&contenders)?;
        let plan = &self.results[0].header.plan;
        let contenders = as_the_plan_needs(&contenders, plan);
        for target in &contenders {
            prepare(&target.location, plan, self.destroy)?;
        }
        finish(0, &contenders, self.results, stop, sink)
    }
}

fn check_resumable(results: &[Results], targets: &[Location]) -> Result<()> {
    if let Some(target) = targets.iter().find(|target| matches!(target, Location::Sim(_))) {
        let what = format!("{target} is simulated and its content is lost: start a new benchmark");
        return Err(Error::unsupported(what));
    }
    let measured: Vec<&str> = results.iter().map(|one| one.header.target.as_str()).collect();
    let given: Vec<String> = targets.iter().map(Location::to_string).collect();
    if given != measured {
        let (measured, given) = (measured.join(" "), given.join(" "));
        let what = format!("the file has runs of {measured}, not of {given}: specify {measured}");
        return Err(Error::invalid(what));
    }
    Ok(())
}

fn finish(
    first: usize,
    targets: &[Contender],
    results: Vec<Results>,
    stop: &AtomicBool,
    sink: &mut dyn Sink,
) -> Result<Contest> {
    let (headers, done): (Vec<Header>, Vec<_>) =
        results.into_iter().map(|Results { header, runs }| (header, runs)).unzip();
    let locations: Vec<Location> = targets.iter().map(|target| target.location.clone()).collect();
    let begun = sink.begin(&headers);
    let ended =
        begun.and_then(|()| carry_out_from(first, &locations, &headers[0].plan, done, stop, sink));
    remove(targets);
    let (end, runs) = ended?;
    let results = headers.into_iter().zip(runs).map(|(header, runs)| Results { header, runs });
    Ok(Contest { end, results: results.collect() })
}

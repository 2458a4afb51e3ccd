//! Repeats published experiments on simulated drives and compares the results with the published
//! numbers.
//!
//! * `experiment`: workloads and published numbers, from TOML files included in the program.
//! * `outcome`: the simulated numbers, with the error of each cell and of each group of cells.
//!
//! There are three kinds of published cells. *Calibrated*: parameters of the profile were fitted to
//! the cell, so its error measures the fit. *Predicted*: no parameter was fitted to the cell, so
//! its error measures the prediction. *Host*: the cell shows an effect of the machine around the
//! drive, which no model of a drive explains; it is shown but excluded from the means.

mod experiment;
mod outcome;

use std::sync::atomic::AtomicBool;

pub use experiment::{Basis, EXPERIMENTS, Experiment, Measure, Published};
pub use outcome::{
    DriveError, Group, Outcome, Reproduced, document, drives, groups, summary, table,
};

use crate::bench::results::Results;
use crate::bench::runner::End;
use crate::bench::target::Location;
use crate::bench::{Benchmark, Finished, Sink, Status};
use crate::error::Result;
use crate::workload::Plan;

/// Receives the progress of an experiment.
pub type Progress<'a> = dyn FnMut(&Plan, Status) + 'a;

struct ProgressSink<'a, 'b> {
    plan: &'a Plan,
    progress: &'a mut Progress<'b>,
}

impl Sink for ProgressSink<'_, '_> {
    fn progress(&mut self, status: Status) {
        (self.progress)(self.plan, status);
    }
}

/// Runs an experiment `runs` times in virtual time, each time on a new drive and with a different
/// seed for addresses and data. Returns `None` if it was stopped.
///
/// # Errors
/// The errors of the plan and of the drive.
pub fn reproduce(
    experiment: &Experiment,
    runs: u32,
    stop: &AtomicBool,
    progress: &mut Progress<'_>,
) -> Result<Option<Reproduced>> {
    let mut all = Vec::new();
    for run in 0..runs.max(1) {
        let Some(results) = once(experiment, u64::from(run), stop, progress)? else {
            return Ok(None);
        };
        all.push(results);
    }
    Outcome::all(experiment, &all).map(Some)
}

/// Runs an experiment on a new drive. Returns `None` if it was stopped.
fn once(
    experiment: &Experiment,
    run: u64,
    stop: &AtomicBool,
    progress: &mut Progress<'_>,
) -> Result<Option<Results>> {
    let mut plan = experiment.plan()?;
    plan.seed += run;
    let benchmark = Benchmark {
        title: experiment.title.clone(),
        about: experiment.about.clone(),
        plan: plan.clone(),
        destroy: false,
        // The date is omitted, so that the same program produces the same output.
        begun_unix_s: 0,
    };
    let mut sink = ProgressSink { plan: &plan, progress };
    let location = Location::Sim(experiment.target());
    let Finished { end, results } = benchmark.run(&location, stop, &mut sink)?;
    match end {
        End::Stopped => Ok(None),
        End::Complete => Ok(Some(results)),
    }
}

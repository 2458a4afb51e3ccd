//! Experiments that somebody published, run again on simulated drives, and held against what they
//! gave.
//!
//! * `experiment`: what was done and what came out, from TOML files that come with the program.
//! * `outcome`: the same here, with the error of each cell and of each group of cells.
//!
//! Published cells are of three kinds. *Calibrated*: numbers of the profile were fitted to them, so
//! that an error says how well the form fits. *Predicted*: nothing was fitted to them, so that an
//! error says what a prediction is worth. *Host*: they are effects of the machine around the drive
//! that no model of a drive explains; they are shown, and count in no mean.

mod experiment;
mod outcome;

use std::sync::atomic::AtomicBool;

pub use experiment::{Basis, EXPERIMENTS, Experiment, Measure, Published};
pub use outcome::{Group, Outcome, Reproduced, document, groups, summary, table};

use super::plan::Plan;
use super::results::{Header, Results, RunResult};
use super::runner::{End, Step, Watch, carry_out};
use super::target::Location;
use pumice_drive::base::Result;

/// What is told while an experiment runs.
pub type Progress<'a> = dyn FnMut(&Plan, Step) + 'a;

/// Keeps runs, and tells how they go.
struct Keeper<'a, 'b> {
    plan: &'a Plan,
    runs: Vec<RunResult>,
    progress: &'a mut Progress<'b>,
}

impl Watch for Keeper<'_, '_> {
    fn begins(&mut self, step: Step) {
        (self.progress)(self.plan, step);
    }

    fn keep(&mut self, run: &RunResult) -> Result<()> {
        self.runs.push(run.clone());
        Ok(())
    }
}

/// Runs an experiment on the drive it was published of, in virtual time. `None` if it was stopped.
///
/// # Errors
/// Those of the plan and of the drive.
pub fn reproduce(
    experiment: &Experiment,
    runs: Option<u32>,
    stop: &AtomicBool,
    progress: &mut Progress<'_>,
) -> Result<Option<Reproduced>> {
    let location = Location::Sim(experiment.target());
    let plan = experiment.plan(runs)?;
    location.prepare(plan.end_bytes(), false)?;
    let mut keeper = Keeper { plan: &plan, runs: Vec::new(), progress };
    let ended = carry_out(&location, &plan, Vec::new(), stop, &mut keeper)?;
    let runs = keeper.runs;
    if ended == End::Stopped {
        return Ok(None);
    }
    // An experiment has no date, so that the same program gives the same outcome.
    let header = Header::new(&experiment.title, &experiment.about, &location, plan, 0)?;
    Outcome::all(experiment, &Results { header, runs }).map(Some)
}

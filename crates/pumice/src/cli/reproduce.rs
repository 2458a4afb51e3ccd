//! `pumice reproduce`: published experiments on simulated drives.

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::documents::Documents;
use super::signals::Interrupt;
use super::{Outcome, print, print_json};
use pumice_bench::reproduce::{
    Experiment, Group, Reproduced, document, groups, reproduce, summary, table,
};
use pumice_drive::base::{Error, ErrorKind, Result};

/// Run published experiments on simulated drives, and hold the outcomes against each other
///
/// Prints what was published and what the simulation gives, cell by cell, with the error; and the
/// mean absolute error of the cells that numbers of a profile were fitted to (calibrated) and of
/// those that nothing was fitted to (predicted). Effects of the host that no model of a drive
/// explains are named as such. Reports have a chart of each test that was done with data of
/// different compressibility. Everything runs in virtual time: every machine prints the same.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pumice reproduce corsair-force-100
  pumice reproduce all --runs 1
  pumice reproduce corsair-force-100 --profile ./my-drive.toml
  pumice reproduce all --html reproduced.html")]
pub(crate) struct Args {
    /// A drive of pumice drives that experiments are known of, or all
    #[arg(default_value = "all")]
    drive: String,

    /// Profile to run the drive's experiments on, in place of its own: to calibrate one
    #[arg(long, value_name = "FILE")]
    profile: Option<String>,

    /// Runs of each test, in place of the experiments' own
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=1000),
        allow_negative_numbers = true)]
    runs: Option<u32>,

    /// Print the outcome as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    documents: Documents,
}

/// All of it, for programs.
#[derive(Serialize)]
struct Summary<'a> {
    experiments: &'a [Reproduced],
    errors: Vec<Group>,
}

/// Runs the subcommand.
///
/// # Errors
/// No experiment is known of the drive, or a file cannot be written.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let mut experiments = Experiment::of_drive(&args.drive)?;
    if let Some(profile) = &args.profile {
        if args.drive == "all" {
            let what = "--profile stands for one drive: name the one whose experiments it runs";
            return Err(Error::new(ErrorKind::InvalidInput, what));
        }
        experiments.iter_mut().for_each(|one| one.drive.clone_from(profile));
    }
    let opened = args.documents.open(&[])?;
    if args.json && opened.uses_stdout() {
        let what = "--json and a file of - would both go to stdout";
        return Err(Error::new(ErrorKind::InvalidInput, what));
    }
    let interrupt = Interrupt::catch()?;
    let style = ProgressStyle::with_template("{msg} [{pos}/{len}, {eta} left]");
    let bar = ProgressBar::no_length().with_style(style.expect("a constant template"));
    let mut all = Vec::new();
    for experiment in &experiments {
        let outcome = reproduce(experiment, args.runs, interrupt.flag(), &mut |plan, step| {
            let (test, level) = (&plan.tests[step.test].name, &plan.levels[step.level].name);
            bar.set_length(step.planned);
            bar.set_position(step.done);
            bar.set_message(format!("{}: {test}, {level}", experiment.drive));
        });
        let failed = |error: pumice_bench::Error| {
            error.context(format!("{}: {}", experiment.drive, experiment.title))
        };
        match outcome.map_err(failed)? {
            Some(outcome) => all.push(outcome),
            None => {
                super::say_error("interrupted: what is complete follows");
                break;
            }
        }
    }
    bar.finish_and_clear();
    let is_complete = all.len() == experiments.len();
    if args.json {
        print_json(&Summary { experiments: &all, errors: groups(&all) })?;
    } else if opened.is_none() {
        print(&summary(&all).to_text())?;
    }
    if !opened.is_none() {
        opened.write(&document(&all), &table(&all))?;
    }
    Ok(if is_complete { Outcome::Good } else { Outcome::Code(2) })
}

//! `pumice reproduce`: runs published experiments on simulated drives.

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use schemars::JsonSchema;
use serde::Serialize;

use super::documents::{Documents, JSON_AND_STDOUT};
use super::output::columns;
use super::{Outcome, print, print_schema};
use crate::signals::Interrupt;
use pumice_bench::reproduce::{
    DriveError, Experiment, Group, Reproduced, document, drives, groups, reproduce, summary, table,
};

/// Run published experiments on simulated drives, and compare the results
///
/// Prints the published and the simulated value of every cell, with the error. Also prints the mean
/// absolute error of the cells to which a profile was fitted (calibrated), and of all other cells
/// (predicted). Simulated values are means over several runs, with their standard deviation.
/// Effects of the host, which a simulated drive cannot explain, are marked. Reports have a chart of
/// each test that used data of different compressibility. Everything runs in virtual time, so all
/// machines print the same results.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pumice reproduce corsair-force-100
  pumice reproduce all --runs 1
  pumice reproduce all --leave-out
  pumice reproduce corsair-force-100 --profile ./my-drive.toml
  pumice reproduce all --html reproduced.html")]
pub(crate) struct Args {
    /// Drive profile with published experiments, or all
    #[arg(default_value = "all")]
    drive: String,

    /// Run the drive's experiments on this profile instead, to calibrate it
    #[arg(long, value_name = "FILE")]
    profile: Option<String>,

    /// Leave out parameters that were fitted to the published results of the drive itself, to
    /// measure how well the others predict it
    #[arg(long, conflicts_with = "profile")]
    leave_out: bool,

    /// Number of runs of each experiment, each on a new drive with other addresses and data
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=1000),
        default_value_t = 3, allow_negative_numbers = true)]
    runs: u32,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    documents: Documents,
}

/// The result as JSON.
#[derive(Serialize, JsonSchema)]
pub(super) struct Summary<'a> {
    /// The experiments, cell by cell.
    experiments: &'a [Reproduced],
    /// Errors by group of cells.
    errors: Vec<Group>,
    /// Errors by drive.
    drives: Vec<DriveError>,
}

/// Runs the subcommand.
///
/// # Errors
/// The drive has no experiments, or a file cannot be written.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let mut experiments = Experiment::of_drive(&args.drive)?;
    if let Some(profile) = &args.profile {
        if args.drive == "all" {
            bail!("--profile requires a drive: specify whose experiments to run");
        }
        experiments.iter_mut().for_each(|one| one.drive.clone_from(profile));
    }
    if args.leave_out {
        experiments.iter_mut().for_each(Experiment::leave_out);
    }
    let opened = args.documents.open(&[])?;
    if args.json && opened.uses_stdout() {
        bail!(JSON_AND_STDOUT);
    }
    let interrupt = Interrupt::catch()?;
    let style = ProgressStyle::with_template("[{pos}/{len}, {eta} left] {wide_msg}");
    let bar = ProgressBar::no_length().with_style(style.expect("a constant template"));
    let mut all = Vec::new();
    for experiment in &experiments {
        let outcome = reproduce(experiment, args.runs, interrupt.flag(), &mut |plan, step| {
            let (test, level) = (&plan.tests[step.test].name, &plan.levels[step.level].name);
            bar.set_length(step.planned);
            bar.set_position(step.done);
            bar.set_message(format!("{}: {test}, {level}", experiment.drive));
        });
        let outcome =
            outcome.with_context(|| format!("{}: {}", experiment.drive, experiment.title))?;
        match outcome {
            Some(outcome) => all.push(outcome),
            None => {
                super::say_error("interrupted: the results so far follow");
                break;
            }
        }
    }
    bar.finish_and_clear();
    let is_complete = all.len() == experiments.len();
    if args.json {
        print_schema(
            "reproduce-1",
            &Summary { experiments: &all, errors: groups(&all), drives: drives(&all) },
        )?;
    } else if opened.is_none() {
        print(&summary(&all).to_text_within(columns()))?;
    }
    if !opened.is_none() {
        opened.write(&document(&all), &table(&all))?;
    }
    Ok(if is_complete { Outcome::Good } else { Outcome::Code(2) })
}

//! `pumice scrub`: reads all that a drive holds and says what is damaged, closed or served.

use std::path::{Path, PathBuf};

use indicatif::{ProgressBar, ProgressStyle};

use super::check::list;
use super::{Outcome, at_path, print, print_json, size};
use crate::control::{self, Answer, Client, Request};
use pumice_drive::base::units::format_size;
use pumice_drive::base::{Error, ErrorKind, Result};
use pumice_drive::controller::{OpenOptions, ScrubReport};
use pumice_drive::runtime::{Backend, Runtime};

/// Read and verify all that a drive holds, at a set rate, also while it is served
///
/// Reads every segment in use; verifies the checksum of every frame that the map names and decodes
/// it, and all metadata of the newest checkpoint. Changes nothing. On a served drive the server
/// does it, beside its clients' requests, and stops when this command does. Exit code 1 with a list
/// when something is wrong.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pumice scrub drive.pumice --rate 100M
  pumice scrub drive.pumice --json")]
pub(crate) struct Args {
    /// File or block device
    path: PathBuf,

    /// Bytes to read in a second at most [default: no limit]
    #[arg(long, value_parser = rate, value_name = "SIZE")]
    rate: Option<u64>,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Reads a rate for clap.
fn rate(text: &str) -> Result<u64, String> {
    match size(text)? {
        0 => Err("nothing is ever read at a rate of 0: give something like 100M".into()),
        bytes => Ok(bytes),
    }
}

/// Runs the subcommand.
///
/// # Errors
/// There is no drive, it cannot be opened, or another scrub of it runs.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let rate_bytes = args.rate.unwrap_or(0);
    let report = match control::connect(&args.path)? {
        Some(client) => ask(client, &args.path, rate_bytes)?,
        None => scrub(&args.path, rate_bytes)?,
    };
    if args.json {
        print_json(&report)?;
    } else {
        print(&text(&report))?;
    }
    if !report.completed {
        let what = "the drive was closed before the scrub came to its end";
        return Err(at_path(&args.path, Error::new(ErrorKind::Busy, what)));
    }
    Ok(if report.problem_count == 0 { Outcome::Good } else { Outcome::Problem })
}

/// Has the drive's server do it.
fn ask(client: Client, path: &Path, rate_bytes: u64) -> Result<ScrubReport> {
    let bar = bar();
    let mut problems = Vec::new();
    let answer = client.ask(&Request::Scrub { rate_bytes }, |answer| match answer {
        Answer::Progress(progress) => bar.set_position(progress.bytes),
        Answer::Problem(problem) => problems.push(problem),
        _ => {}
    });
    bar.finish_and_clear();
    match answer.map_err(|error| at_path(path, error))? {
        Some(Answer::Scrubbed(report)) => Ok(ScrubReport { problems, ..report }),
        _ => {
            let what = "the server ended before the scrub did";
            Err(at_path(path, Error::new(ErrorKind::Busy, what)))
        }
    }
}

/// Does it on a drive that nobody serves.
fn scrub(path: &Path, rate_bytes: u64) -> Result<ScrubReport> {
    let runtime = Runtime::new(Backend::Auto)?;
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let drive = super::open::drive(&runtime, path, options)?;
    let bar = bar();
    let (shown, watched, clock) = (bar.clone(), drive.clone(), runtime.clone());
    runtime.spawn(async move {
        loop {
            pumice_drive::base::Clock::sleep_ns(&clock, 100_000_000).await;
            shown.set_position(watched.info().scrub.scrub_checked_bytes);
        }
    });
    let report = runtime.block_on(drive.scrub(rate_bytes));
    runtime.drop_tasks();
    bar.finish_and_clear();
    report.map_err(|error| at_path(path, error))
}

fn bar() -> ProgressBar {
    let style = ProgressStyle::with_template("scrubbed {bytes} ({bytes_per_sec})");
    ProgressBar::no_length().with_style(style.expect("a constant template"))
}

fn text(report: &ScrubReport) -> String {
    list(&report.problems, report.problem_count)
        + &format!(
            "{} problems in {} segments, {} batches, {} frames, {} metadata records, {}\n",
            report.problem_count,
            report.segments,
            report.batches,
            report.frames,
            report.metadata,
            format_size(report.checked_bytes)
        )
}

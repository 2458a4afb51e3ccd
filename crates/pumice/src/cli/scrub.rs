//! `pumice scrub`: reads all data of a drive and reports damage, closed or served.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::{Context, Result, bail};

use super::check::list;
use super::key_args::KeyArgs;
use super::output::counted;
use super::{Outcome, print, print_schema, progress, size};
use crate::control::{Answer, Client, Progress, Request};
use crate::members;
use crate::open;
use pumice_drive::base::Clock;
use pumice_drive::base::units::format_size;
use pumice_drive::controller::{Drive, OpenOptions, ScrubReport};
use pumice_drive::runtime::Runtime;

/// Read and verify all data of a drive at a limited rate, closed or served
///
/// Reads every segment in use, verifies and decodes every frame that the map references, and
/// verifies all metadata of the newest checkpoint. On a mirror, compares all copies and repairs
/// damaged ones. Writes data restored from parity to a new place, and changes nothing else. A
/// served drive is scrubbed by its server, which continues to serve its clients; the server stops
/// scrubbing if this command is interrupted. If there are problems, lists them and exits with code
/// 1.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pumice scrub drive.pumice --rate 100M
  pumice scrub drive.pumice --json")]
pub(crate) struct Args {
    /// File or block device
    path: PathBuf,

    /// Maximum read rate, per second [default: unlimited]
    #[arg(long, value_parser = rate, value_name = "SIZE")]
    rate: Option<u64>,

    #[command(flatten)]
    keys: KeyArgs,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Parses a rate for clap.
fn rate(text: &str) -> Result<u64, String> {
    match size(text)? {
        0 => Err("expected a rate above 0, such as 100M".into()),
        bytes => Ok(bytes),
    }
}

/// Runs the subcommand.
///
/// # Errors
/// There is no drive, it cannot be opened, or another scrub of it is running.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    args.keys.provide()?;
    let rate_bytes = args.rate.unwrap_or(0);
    let path = args.path.as_path();
    let served = |client| ask(client, path, rate_bytes).map(Some);
    // Damage on one member of a mirror is repaired; any other closed drive is only read.
    let repairs = members::header_at(path).is_some();
    let options = OpenOptions { read_only: !repairs, ..OpenOptions::default() };
    let open = |runtime: &Runtime| open::alone(runtime, path, options);
    let scrub = |runtime: &Runtime, drive: &Rc<Drive>| scrub(runtime, drive, rate_bytes);
    let report = open::served_or_closed(path, served, open, scrub)?;
    if args.json {
        print_schema("scrub-1", &report)?;
    } else {
        print(&text(&report))?;
    }
    if !report.completed {
        bail!("{}: the drive was closed before the scrub finished", args.path.display());
    }
    Ok(if report.problem_count == 0 { Outcome::Good } else { Outcome::Problem })
}

/// Asks the drive's server to scrub it.
fn ask(client: Client, path: &Path, rate_bytes: u64) -> Result<ScrubReport> {
    let bar = progress::segments();
    let mut problems = Vec::new();
    let answer = client.ask(&Request::Scrub { rate_bytes }, |answer| match answer {
        Answer::Progress(Progress { done, total, bytes }) => {
            progress::set_segments(&bar, done, total, bytes);
        }
        Answer::Problem(problem) => problems.push(problem),
        _ => {}
    });
    bar.finish_and_clear();
    match answer.with_context(|| path.display().to_string())? {
        Some(Answer::Scrubbed(report)) => Ok(ScrubReport { problems, ..report }),
        _ => bail!("{}: the server stopped before the scrub finished", path.display()),
    }
}

/// Scrubs a drive that is not served.
fn scrub(runtime: &Runtime, drive: &Rc<Drive>, rate_bytes: u64) -> Result<ScrubReport> {
    let bar = progress::segments();
    let (shown, watched, clock) = (bar.clone(), drive.clone(), runtime.clone());
    runtime.spawn(async move {
        loop {
            clock.sleep_ns(100_000_000).await;
            let scrub = watched.info().scrub;
            let (done, total) = (scrub.scrub_segments_done, scrub.scrub_segments);
            progress::set_segments(&shown, done, total, scrub.scrub_checked_bytes);
        }
    });
    let report = runtime.block_on(drive.scrub(rate_bytes));
    bar.finish_and_clear();
    Ok(report?)
}

fn text(report: &ScrubReport) -> String {
    list(&report.problems, report.problem_count)
        + &format!(
            "{} in {}, {} batches, {} frames, {} metadata records, {} repaired, {}\n",
            counted(report.problem_count, "problem"),
            counted(report.segments, "segment"),
            report.batches,
            report.frames,
            report.metadata,
            report.repaired,
            format_size(report.checked_bytes)
        )
}

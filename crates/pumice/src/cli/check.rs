//! `pumice check`: verifies every structure and checksum of a closed drive.

use std::path::PathBuf;

use indicatif::{ProgressBar, ProgressStyle};

use super::{Outcome, at_path, print, print_json};
use pumice_drive::base::Result;
use pumice_drive::base::units::format_size;
use pumice_drive::controller::{CheckReport, Depth, Problem, check};
use pumice_drive::runtime::{Backend, Runtime};

/// Verify every structure and checksum of a drive that is not in use
///
/// Reads superblocks, checkpoint, the log behind it and the whole map, counts live bytes again,
/// and decodes every frame that the map names. Changes nothing. Exit code 1 with a list when
/// something is wrong.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// File or block device
    path: PathBuf,

    /// Leave the frames out: whether the drive opens, and map and accounting agree
    #[arg(long)]
    quick: bool,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand.
///
/// # Errors
/// There is no drive that could be checked.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let runtime = Runtime::new(Backend::Auto)?;
    let medium = super::open::medium(&runtime, &args.path, true)?;
    let style = ProgressStyle::with_template("checked {bytes} ({bytes_per_sec})");
    let bar = ProgressBar::no_length().with_style(style.expect("a constant template"));
    let depth = if args.quick { Depth::Quick } else { Depth::Full };
    let mut progress = |bytes| bar.set_position(bytes);
    let report = runtime.block_on(check(&medium, depth, &mut progress));
    bar.finish_and_clear();
    let report = report.map_err(|error| at_path(&args.path, error))?;
    if args.json {
        print_json(&report)?;
    } else {
        print(&text(&report))?;
    }
    Ok(if report.problem_count == 0 { Outcome::Good } else { Outcome::Problem })
}

fn text(report: &CheckReport) -> String {
    list(&report.problems, report.problem_count)
        + &format!(
            "{} problems in {} segments, {} leaves, {} batches, {} records, {} frames, {}\n",
            report.problem_count,
            report.segments,
            report.leaves,
            report.batches,
            report.records,
            report.frames,
            format_size(report.checked_bytes)
        )
}

/// The problems that are listed, a line each, and how many there are beside them.
pub(crate) fn list(problems: &[Problem], problem_count: u64) -> String {
    let mut text = String::new();
    for problem in problems {
        text += &problem.what;
        if let (Some(lba), Some(count)) = (problem.lba, problem.lba_count) {
            text += &format!(": LBA {lba}, {count} blocks");
        }
        text.push('\n');
    }
    let unlisted = problem_count - problems.len() as u64;
    if unlisted > 0 {
        text += &format!("and {unlisted} more\n");
    }
    text
}

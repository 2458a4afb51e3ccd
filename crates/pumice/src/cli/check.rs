//! `pumice check`: verifies every structure and checksum of a closed drive.

use std::path::PathBuf;

use anyhow::Result;

use super::key_args::KeyArgs;
use super::output::counted;
use super::{Outcome, print, print_schema, progress};
use crate::open::{self, origin, served_snapshot};
use crate::place::Place;
use crate::remedy;
use crate::storage::{Absent, Access};
use pumice_drive::base::units::format_size;
use pumice_drive::controller::{CheckReport, Checked, Depth, Problem, check, check_snapshot};
use pumice_drive::runtime::{Backend, Runtime};

/// Verify every structure and checksum of a drive that is not in use
///
/// Reads the superblocks, the checkpoint, the log after it and the whole map, recomputes the live
/// bytes of every segment, and decodes every frame that the map references. Reads only the maps of
/// snapshots; name a snapshot to check its data. On a mirror, compares all copies of the segments
/// in use; the present members suffice. For a clone, checks its own data, and whether its origin
/// can be opened. Changes nothing on the drive. If there are problems, lists them and exits with
/// code 1.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pumice check drive.pumice
  pumice check /dev/sdx --quick --json")]
pub(crate) struct Args {
    /// File or block device; PATH@NAME for a snapshot
    path: PathBuf,

    /// If members of a mirror were written independently, check the member at PATH
    #[arg(long)]
    degraded: bool,

    /// Skip the frames: check only that the drive opens and that the map and the accounting agree
    #[arg(long)]
    quick: bool,

    #[command(flatten)]
    keys: KeyArgs,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand.
///
/// # Errors
/// The drive cannot be opened.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    args.keys.provide()?;
    let runtime = Runtime::new(Backend::Auto)?;
    let place = Place::of(&args.path)?;
    let absent = Absent::Allowed.apart_if(args.degraded);
    let access = Access { absent, ..Access::new(true) };
    let medium = open::medium(&runtime, &place.path, &access);
    let medium = medium.map_err(|error| served_snapshot::advise(&place, error))?;
    let bar = progress::segments();
    let depth = if args.quick { Depth::Quick } else { Depth::Full };
    let mut show = |Checked { segments, segments_total, bytes }| {
        progress::set_segments(&bar, segments, segments_total, bytes);
    };
    let report = runtime.block_on(async {
        match &place.snapshot {
            None => check(&*medium, depth, &mut show).await,
            Some(name) => check_snapshot(&*medium, name, depth, &mut show).await,
        }
    });
    bar.finish_and_clear();
    let mut report = report.map_err(|error| crate::leftovers::advise(&place.path, error))?;
    let origin = match runtime.block_on(origin::needed(&runtime, &*medium, medium.path(), &access))
    {
        Ok(None) => "",
        Ok(Some(_)) => "its origin was opened, but not checked\n",
        Err(error) => {
            let what = remedy::chain(&error);
            report.problems.push(Problem { what, segment: None, lba: None, lba_count: None });
            report.problem_count += 1;
            ""
        }
    };
    if args.json {
        print_schema("check-1", &report)?;
    } else {
        print(&(text(&report) + origin))?;
    }
    Ok(if report.problem_count == 0 { Outcome::Good } else { Outcome::Problem })
}

fn text(report: &CheckReport) -> String {
    list(&report.problems, report.problem_count)
        + &format!(
            "{} in {}, {} leaves, {} batches, {} records, {} frames, {}\n",
            counted(report.problem_count, "problem"),
            counted(report.segments, "segment"),
            report.leaves,
            report.batches,
            report.records,
            report.frames,
            format_size(report.checked_bytes)
        )
}

/// Returns a line for each listed problem, and the number of unlisted ones.
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

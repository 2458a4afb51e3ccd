//! `pumice resize`: gives a drive another size or capacity, closed or served.

use std::path::{Path, PathBuf};

use clap::ArgGroup;
use indicatif::{ProgressBar, ProgressStyle};

use super::{Outcome, at_path, print, print_json, size};
use crate::control::{self, Answer, Client, Request};
use pumice_drive::base::units::format_size;
use pumice_drive::base::{Error, ErrorKind, Result};
use pumice_drive::controller::{OpenOptions, Resize, Resized};
use pumice_drive::runtime::{Backend, Runtime};

/// Change a drive's size or capacity, also while it is served
///
/// The size, what the host sees, can only grow; NBD clients see it when they connect anew. The
/// capacity, what the log may take, grows and shrinks: a file is made longer or shorter, a block
/// device must be large enough. Shrinking first moves what is stored beyond the new end, and is
/// refused if that does not fit. Power loss leaves the old drive or the new one, with all data. On
/// a served drive the server does it, and goes on when this command is interrupted.
#[derive(Debug, clap::Args)]
#[command(group(ArgGroup::new("change").args(["size", "capacity"]).required(true).multiple(true)))]
#[command(after_help = "\
Examples:
  pumice resize drive.pumice --size 128G --capacity 150G
  pumice resize drive.pumice --capacity 40G")]
pub(crate) struct Args {
    /// File or block device
    path: PathBuf,

    /// Size of the disk that the host sees: a multiple of 4 KiB, not below what it is
    #[arg(long, value_parser = size, value_name = "SIZE")]
    size: Option<u64>,

    /// Bytes for the log
    #[arg(long, value_parser = size, value_name = "SIZE")]
    capacity: Option<u64>,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand.
///
/// # Errors
/// There is no drive, it is in use, or the request is refused; the drive is what it was then.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let wanted = Resize { size_bytes: args.size, capacity_bytes: args.capacity };
    let resized = match control::connect(&args.path)? {
        Some(client) => ask(client, &args.path, wanted),
        None => resize(&args.path, wanted),
    }?;
    if args.json {
        print_json(&resized)?;
    } else {
        print(&format!(
            "{}: a disk of {}, {} for its log\n",
            args.path.display(),
            format_size(resized.size_bytes),
            format_size(resized.capacity_bytes)
        ))?;
    }
    Ok(Outcome::Good)
}

/// Has the drive's server do it.
fn ask(client: Client, path: &Path, wanted: Resize) -> Result<Resized> {
    let style = ProgressStyle::with_template("{pos} segments to empty");
    let bar = ProgressBar::no_length().with_style(style.expect("a constant template"));
    let answer = client.ask(&Request::Resize(wanted), |answer| {
        if let Answer::Progress(progress) = answer {
            bar.set_position(progress.total);
        }
    });
    bar.finish_and_clear();
    match answer.map_err(|error| at_path(path, error))? {
        Some(Answer::Resized(resized)) => Ok(resized),
        _ => {
            let what = "the server ended before the drive was resized: see `pumice info`";
            Err(at_path(path, Error::new(ErrorKind::Busy, what)))
        }
    }
}

/// Does it on a drive that nobody serves.
fn resize(path: &Path, wanted: Resize) -> Result<Resized> {
    let runtime = Runtime::new(Backend::Auto)?;
    let drive = super::open::drive(&runtime, path, OpenOptions::default())?;
    let resized = runtime.block_on(drive.resize(wanted));
    let closed = runtime.block_on(drive.close());
    runtime.drop_tasks();
    let resized = resized.and_then(|resized| closed.map(|()| resized));
    resized.map_err(|error| at_path(path, error))
}

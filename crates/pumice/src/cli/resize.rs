//! `pumice resize`: changes the size or the capacity of a drive, closed or served.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::{Context, Result, bail};
use clap::ArgGroup;

use super::key_args::KeyArgs;
use super::progress::Descent;
use super::{Outcome, create, print, print_schema, size};
use crate::control::{self, Answer, Client, Request};
use crate::open;
use pumice_drive::base::Clock;
use pumice_drive::base::units::format_size;
use pumice_drive::controller::{Drive, OpenOptions, Resize, Resized, Spec};
use pumice_drive::runtime::Runtime;

/// Change the size or capacity of a drive, closed or served
///
/// The size, which hosts see, can only grow; NBD clients see the new size when they reconnect. The
/// capacity, which is the space for the log, can grow and shrink: a file is extended or truncated,
/// a block device must be large enough. Shrinking first moves the data beyond the new end, and is
/// refused if it does not fit. After a power loss the drive has its old or its new size, with all
/// data. A served drive is resized by its server, which continues if this command is interrupted.
#[derive(Debug, clap::Args)]
#[command(group(ArgGroup::new("change").args(["size", "capacity"]).required(true).multiple(true)))]
#[command(after_help = "\
Examples:
  pumice resize drive.pumice --size 128G --capacity 150G
  pumice resize drive.pumice --capacity 40G")]
pub(crate) struct Args {
    /// File or block device
    path: PathBuf,

    /// New size of the disk that hosts see: a multiple of 4 KiB, at least the current size
    #[arg(long, value_parser = size, value_name = "SIZE")]
    size: Option<u64>,

    /// New size of the log on the medium
    #[arg(long, value_parser = size, value_name = "SIZE")]
    capacity: Option<u64>,

    #[command(flatten)]
    keys: KeyArgs,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand.
///
/// # Errors
/// There is no drive, it is in use, or the request is refused; the drive has not changed then.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    args.keys.provide()?;
    let wanted = Resize { size_bytes: args.size, capacity_bytes: args.capacity };
    let path = args.path.as_path();
    let served = |client| ask(client, path, wanted).map(Some);
    // A receive that ran out of space may need the new space.
    let options = OpenOptions { incomplete: true, ..OpenOptions::default() };
    let open = |runtime: &Runtime| open::alone(runtime, path, options);
    let resize = |runtime: &Runtime, drive: &Rc<Drive>| resize(runtime, drive, wanted);
    let resized = open::served_or_closed(path, served, open, resize)?;
    if args.json {
        print_schema("resize-1", &resized)?;
    } else {
        print(&format!(
            "{}: size {}, capacity {}{}\n",
            args.path.display(),
            format_size(resized.size_bytes),
            format_size(resized.capacity_bytes),
            if args.size.is_some() { seen_later(&args.path) } else { "" }
        ))?;
        if let Some(thin) = create::thin(resized.size_bytes, resized.capacity_bytes) {
            print(&format!("{thin}{}\n", roomy(&resized)))?;
        }
    }
    Ok(Outcome::Good)
}

/// Returns the option that provides space for the whole size of a drive.
fn roomy(resized: &Resized) -> String {
    let spec = Spec {
        // The value that `create` chooses for a drive of this capacity.
        segment_bytes: create::segment_bytes_of(resized.capacity_bytes),
        ..Spec::new(uuid::Uuid::nil(), resized.size_bytes)
    };
    let whole = spec.geometry().ok().map(|geometry| geometry.capacity_bytes().div_ceil(1 << 20));
    whole.map_or_else(String::new, |mib| format!("; with --capacity {mib}M, any data fits"))
}

/// Returns when hosts see the new size, if they do not see it immediately.
fn seen_later(path: &Path) -> &'static str {
    #[cfg(feature = "attach")]
    if let Ok(Some(attachment)) = super::attach::Attachment::of(path)
        && attachment.process().is_some()
    {
        return "; its device gets this size after detach and attach";
    }
    match control::service(path) {
        Ok(Some(service)) if service.clients > 0 => "; clients see this size when they reconnect",
        _ => "",
    }
}

/// Interval between checks of the progress.
const LOOK_NS: u64 = 100_000_000;

/// Asks the drive's server to resize it.
fn ask(client: Client, path: &Path, wanted: Resize) -> Result<Resized> {
    let mut shown = Descent::new();
    let answer = client.ask(&Request::Resize(wanted), |answer| {
        if let Answer::Progress(progress) = answer {
            shown.set_segments_left(progress.total);
        }
    });
    drop(shown);
    match answer.with_context(|| path.display().to_string())? {
        Some(Answer::Resized(resized)) => Ok(resized),
        _ => bail!(
            "{}: the server stopped before the drive was resized: see `pumice info`",
            path.display()
        ),
    }
}

/// Resizes a drive that is not served.
fn resize(runtime: &Runtime, drive: &Rc<Drive>, wanted: Resize) -> Result<Resized> {
    let (watched, clock) = (drive.clone(), runtime.clone());
    runtime.spawn(async move {
        let mut shown = Descent::new();
        loop {
            clock.sleep_ns(LOOK_NS).await;
            shown.set_segments_left(watched.segments_to_empty().into());
        }
    });
    Ok(runtime.block_on(drive.resize(wanted))?)
}

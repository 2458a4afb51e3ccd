//! `pumice flatten`: makes a clone independent of the drive that it reads from, closed or served.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::{Context, Result, bail};
use schemars::JsonSchema;
use serde::Serialize;

use super::key_args::KeyArgs;
use super::{Outcome, lossy, print, print_schema, progress, say_error, snapshot, state};
use crate::control::{self, Answer, Client, Request};
use crate::open::{self, origin};
use crate::place::Place;
use crate::signals::Interrupt;
use crate::storage::Access;
use pumice_drive::base::units::format_size;
use pumice_drive::controller::{Drive, Flattened, OpenOptions, Origin};
use pumice_drive::runtime::{Backend, Runtime};

/// Make a clone independent by copying the data of its origin
///
/// A served clone is flattened by its server, which continues even if this command is interrupted.
/// An interrupted flatten of a closed clone is resumed by the next `pumice flatten`. Afterwards the
/// origin no longer lists the clone. The data of the clone's own snapshots is not copied: they
/// still read from the origin until the last of them is deleted.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pumice flatten vm1.pumice
  pumice flatten vm1.pumice --json")]
pub(crate) struct Args {
    /// File or block device
    path: PathBuf,

    #[command(flatten)]
    keys: KeyArgs,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// The result as JSON.
#[derive(Serialize, JsonSchema)]
pub(super) struct Shown {
    /// The drive's file or device.
    path: String,
    /// File or device of the drive that the clone read from.
    origin: String,
    #[serde(flatten)]
    flattened: Flattened,
    /// Whether that drive no longer lists the clone.
    is_forgotten: bool,
}

/// Runs the subcommand.
///
/// # Errors
/// The drive is not a clone, or cannot be opened: nothing has changed. If the copy failed, the
/// clone still reads from its origin, and stores more of its data itself.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    args.keys.provide()?;
    let path = args.path.as_path();
    let runtime = Runtime::new(Backend::Auto)?;
    let (uuid, wanted) = match control::connect(path)? {
        Some(_) => of_served(path)?,
        None => origin::identity(&runtime, path).with_context(|| path.display().to_string())?,
    };
    let Some(wanted) = wanted else {
        bail!("{} is not a clone: it reads from no other drive", path.display());
    };
    let from = origin::path_of(path, &wanted);
    let served = |client| ask(client, path, &wanted).map(Some);
    let place = Place::of(path)?;
    let options = OpenOptions { compact_percent: None, ..OpenOptions::default() };
    let open = |runtime: &Runtime| open::at(runtime, &place, &Access::new(false), options);
    let flatten = |runtime: &Runtime, drive: &Rc<Drive>| flatten(runtime, drive, &wanted);
    let flattened = open::served_or_closed(path, served, open, flatten)?;
    if !flattened.is_complete && flattened.snapshots == 0 {
        let left = format_size(flattened.total_bytes - flattened.done_bytes);
        say_error(&format!(
            "interrupted: {} still reads from its origin, {left} of the disk remain to be copied",
            path.display()
        ));
        return Ok(Outcome::Code(2));
    }
    let is_forgotten = flattened.is_complete && snapshot::forget_or_warn(&from, uuid);
    let shown = Shown { path: lossy(path), origin: lossy(&from), flattened, is_forgotten };
    if args.json {
        print_schema("flatten-1", &shown)?;
        return Ok(Outcome::Good);
    }
    let (path, from) = (&shown.path, &shown.origin);
    let copied = format_size(flattened.copied_bytes);
    let rest = match flattened.snapshots {
        0 => String::new(),
        1 => "; one snapshot does until it is deleted".to_owned(),
        some => format!("; {some} snapshots do until the last is deleted"),
    };
    let subject = if rest.is_empty() { "it" } else { "its disk" };
    print(&format!("{path}: {copied} copied; {subject} no longer reads from {from}{rest}\n"))?;
    Ok(Outcome::Good)
}

/// Requests the origin of a clone from the clone's server.
fn of_served(path: &Path) -> Result<(uuid::Uuid, Option<Origin>)> {
    let (info, _) = state::read(path)?;
    let origin = info.origin.map(|origin| Origin {
        drive: origin.drive,
        snapshot: origin.snapshot,
        watermark: pumice_drive::base::SeqNo(0),
        blocks: origin.bytes / 4096,
        path: origin.path,
    });
    Ok((info.uuid, origin))
}

fn ask(client: Client, path: &Path, wanted: &Origin) -> Result<Flattened> {
    let bar = progress::bytes(wanted.blocks * 4096);
    let answer = client.ask(&Request::Flatten {}, |answer| {
        if let Answer::Progress(progress) = answer {
            bar.set_position(progress.bytes);
        }
    });
    bar.finish_and_clear();
    match answer.with_context(|| path.display().to_string())? {
        Some(Answer::Flattened(flattened)) => Ok(flattened),
        _ => bail!("{}: the server stopped before the clone was flattened", path.display()),
    }
}

fn flatten(runtime: &Runtime, drive: &Drive, wanted: &Origin) -> Result<Flattened> {
    let interrupt = Interrupt::catch()?;
    let bar = progress::bytes(wanted.blocks * 4096);
    let flattened = runtime.block_on(drive.flatten(|so_far| {
        bar.set_position(so_far.done_bytes);
        !interrupt.came()
    }));
    bar.finish_and_clear();
    Ok(flattened?)
}

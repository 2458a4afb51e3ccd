//! `pumice compact`: returns the space of dead data to the medium, closed or served.

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::rc::Rc;

use anyhow::{Context, Result, bail};
use futures_util::future::{Either, select};

use super::key_args::KeyArgs;
use super::progress::Descent;
use super::{Outcome, print, print_schema};
use crate::control::{Answer, Client, Request};
use crate::open;
use crate::signals::Interrupt;
use pumice_drive::base::Clock;
use pumice_drive::base::units::format_size;
use pumice_drive::controller::{Compacted, Drive, OpenOptions};
use pumice_drive::runtime::Runtime;

/// Interval of checks for progress and an interruption.
const LOOK_NS: u64 = 100_000_000;

/// Return the space of overwritten and trimmed data to the file system, closed or served
///
/// Moves live data out of the segments with the most dead data, and discards those segments. An
/// open drive is compacted when its host is idle (see --compact of `pumice serve`); this command
/// compacts it immediately, and further. A served drive is compacted by its server, which continues
/// to serve its clients; the server stops compacting if this command is interrupted. An
/// interruption loses no data. Exits with code 1 if the drive could not be made as small as
/// requested.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pumice compact drive.pumice
  pumice compact drive.pumice --in-order
  pumice compact drive.pumice --to 20 --json")]
pub(crate) struct Args {
    /// File or block device
    path: PathBuf,

    /// Stop when the drive occupies at most this much beyond its live data, in percent of the live
    /// data
    #[arg(long, default_value_t = 5, value_name = "PERCENT")]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=1000))]
    to: u32,

    /// First write blocks that are scattered over the drive again, in the order of the disk, so
    /// that long reads of them are fast. Reads the whole disk. Not possible with snapshots or
    /// bookmarks, or when more than 85 % of the capacity is in use
    #[arg(long)]
    in_order: bool,

    #[command(flatten)]
    keys: KeyArgs,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand.
///
/// # Errors
/// There is no drive, it cannot be opened, or it is being compacted or resized.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    args.keys.provide()?;
    let path = args.path.as_path();
    let served = |client| ask(client, args).map(Some);
    let options = OpenOptions { compact_percent: None, ..OpenOptions::default() };
    let open = |runtime: &Runtime| open::alone(runtime, path, options);
    let compact = |runtime: &Runtime, drive: &Rc<Drive>| compact(runtime, drive, args);
    let compacted = open::served_or_closed(path, served, open, compact)?;
    if args.json {
        print_schema("compact-1", &compacted)?;
    } else {
        print(&text(&args.path, &compacted))?;
    }
    Ok(if compacted.is_complete { Outcome::Good } else { Outcome::Problem })
}

/// Asks the drive's server to compact it.
fn ask(client: Client, args: &Args) -> Result<Compacted> {
    let &Args { ref path, to: percent, in_order, .. } = args;
    let mut shown = Shown::new(percent);
    let answer = client.ask(&Request::Compact { percent, in_order }, |answer| {
        if let Answer::Progress(progress) = answer {
            shown.set(progress.bytes, progress.total);
        }
    });
    drop(shown);
    match answer.with_context(|| path.display().to_string())? {
        Some(Answer::Compacted(compacted)) => Ok(compacted),
        _ => bail!("{}: the server stopped before the drive was compacted", path.display()),
    }
}

/// Compacts a drive that is not served.
fn compact(runtime: &Runtime, drive: &Drive, args: &Args) -> Result<Compacted> {
    let interrupt = Interrupt::catch()?;
    let mut shown = Shown::new(args.to);
    let compacting = async {
        let mut work = pin!(async {
            match args.in_order {
                true => drive.compact_in_order(args.to).await,
                false => drive.compact(args.to).await,
            }
        });
        loop {
            match select(work.as_mut(), pin!(runtime.sleep_ns(LOOK_NS))).await {
                Either::Left((compacted, _)) => return Ok(compacted?),
                Either::Right(_) if interrupt.came() => bail!("interrupted; the drive is sound"),
                Either::Right(_) => {
                    let info = drive.info();
                    shown.set(info.occupied_bytes, info.live_bytes);
                }
            }
        }
    };
    runtime.block_on(compacting)
}

/// Progress on stderr.
struct Shown {
    descent: Descent,
    percent: u32,
}

impl Shown {
    fn new(percent: u32) -> Self {
        Self { descent: Descent::new(), percent }
    }

    fn set(&mut self, occupied: u64, live: u64) {
        let goal = live.saturating_add(live.saturating_mul(self.percent.into()) / 100);
        let (shown, live) = (format_size(occupied), format_size(live));
        let message = format!("occupies {shown}, {live} of it live");
        self.descent.set(occupied.saturating_sub(goal), message);
    }
}

fn text(path: &Path, compacted: &Compacted) -> String {
    let ordered = match compacted.reordered_bytes {
        0 => String::new(),
        bytes => format!(", put in order {}", format_size(bytes)),
    };
    let more = if compacted.is_complete { "" } else { "; no more can be freed now" };
    format!(
        "{}: occupies {}, before {}; live {}, moved {}{ordered}{more}\n",
        path.display(),
        format_size(compacted.occupied_bytes),
        format_size(compacted.occupied_bytes_before),
        format_size(compacted.live_bytes),
        format_size(compacted.moved_bytes)
    )
}

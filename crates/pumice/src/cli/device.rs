//! `pumice device`: the files and devices that together hold a drive, closed or served.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::open;
use anyhow::{Context, Result, bail};
use indicatif::ProgressBar;
use pumice_report::{Align, Table};

use super::{Outcome, output, print, print_schema, progress, state};
use crate::control::{Answer, Client, Progress, Request};
use crate::devices::{self, DeviceChange, listed};
use crate::members;
use crate::storage::{Absent, Access};
use pumice_drive::base::Clock;
use pumice_drive::base::units::format_size;
use pumice_drive::controller::{Drive, OpenOptions};
use pumice_drive::media::Copies;
use pumice_drive::media::array::{ArrayInfo, MemberStatus};
use pumice_drive::runtime::Runtime;

/// Interval between checks of the progress.
const LOOK_NS: u64 = 100_000_000;

/// List, add, remove or replace the files and devices of a drive, closed or served
///
/// PATH is any file or device of the drive. A served drive is changed by its server, which
/// continues to serve its clients. A new member of a mirror gets all new writes, and verified
/// copies of the segments in use; if copying is interrupted, it starts again when the drive is next
/// served, or with the same command.
#[derive(Debug, clap::Args)]
#[command(disable_help_subcommand = true)]
#[command(after_help = "\
Examples:
  pumice device list drive.pumice
  pumice device replace /dev/sdx /dev/sdy /dev/sdz
  pumice device add drive.pumice second.pumice
  pumice device remove drive.pumice second.pumice")]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

/// Arguments of every action.
#[derive(Debug, clap::Args)]
struct OfDrive {
    /// File or block device of the drive
    path: PathBuf,

    /// Print the members as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Show the members and their state
    List {
        #[command(flatten)]
        drive: OfDrive,
    },
    /// Add a copy of everything on another file or device, or add its space
    ///
    /// Adds a copy to a mirror. Turns a drive on one file or device, which must not be served, into
    /// a mirror. Adds space to a drive created with `--concat`: a device, or a file as large as the
    /// last.
    Add {
        #[command(flatten)]
        drive: OfDrive,

        /// File, which is created, or block device
        new: PathBuf,

        /// Overwrite existing data
        #[arg(long)]
        force: bool,
    },
    /// Stop using a member permanently
    ///
    /// For a drive created with `--concat`, this must be the last member: its data is moved to the
    /// others.
    Remove {
        #[command(flatten)]
        drive: OfDrive,

        /// Path of the member, as listed
        member: PathBuf,
    },
    /// Replace a member, which stays in use until the new file or device is complete
    Replace {
        #[command(flatten)]
        drive: OfDrive,

        /// Path of the member, as listed, whether it is present or not
        member: PathBuf,

        /// File, which is created, or block device
        new: PathBuf,

        /// Overwrite existing data
        #[arg(long)]
        force: bool,
    },
    /// Stop using a member that fails or is gone; it stays listed until it is replaced
    Fail {
        #[command(flatten)]
        drive: OfDrive,

        /// Path of the member, as listed
        member: PathBuf,
    },
}

/// Runs the subcommand.
///
/// # Errors
/// There is no drive, or this change is not possible: nothing has changed then.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let (drive, change) = match &args.action {
        Action::List { drive } => {
            let (info, _) = state::read(&drive.path)?;
            let Some(array) = info.array else {
                bail!("{} is a drive on one file or device", drive.path.display());
            };
            return show(drive, &array);
        }
        Action::Add { drive, new, force } => {
            (drive, DeviceChange::Add { path: listed(new)?, force: *force })
        }
        Action::Remove { drive, member } => (drive, DeviceChange::Remove { path: listed(member)? }),
        Action::Replace { drive, member, new, force } => {
            let (old, new, force) = (listed(member)?, listed(new)?, *force);
            (drive, DeviceChange::Replace { old, new, force })
        }
        Action::Fail { drive, member } => (drive, DeviceChange::Fail { path: listed(member)? }),
    };
    let path = drive.path.as_path();
    let served = |client| ask(client, path, change.clone()).map(Some);
    let open = |runtime: &Runtime| open_for(runtime, path, &change);
    let work = |runtime: &Runtime, drive: &Rc<Drive>| change_closed(runtime, drive, &change);
    let array = open::served_or_closed(path, served, open, work)?;
    show(drive, &array)
}

fn show(drive: &OfDrive, array: &ArrayInfo) -> Result<Outcome> {
    if drive.json {
        print_schema("device-1", array)?;
    } else {
        print(&text(array))?;
    }
    Ok(Outcome::Good)
}

fn text(array: &ArrayInfo) -> String {
    let columns = ["member", "state", "read errors", "repaired", "error"];
    let mut table = Table::new(&columns.map(|name| (name, Align::Left)));
    for member in &array.members {
        table.row(vec![
            member.path.clone(),
            word(member.state).to_owned(),
            member.read_errors.to_string(),
            member.repaired.to_string(),
            member.error.clone().unwrap_or_default(),
        ]);
    }
    output::table(&table)
}

/// Returns the word for the state of a member.
pub(super) fn word(state: MemberStatus) -> &'static str {
    match state {
        MemberStatus::Online => "online",
        MemberStatus::Rebuilding => "rebuilding",
        MemberStatus::Out => "out",
    }
}

/// Asks the drive's server.
fn ask(client: Client, path: &Path, change: DeviceChange) -> Result<ArrayInfo> {
    let bar = progress::bytes(0);
    let answer = client.ask(&Request::Device { change }, |answer| {
        if let Answer::Progress(Progress { total, bytes, .. }) = answer {
            set(&bar, bytes, total);
        }
    });
    bar.finish_and_clear();
    match answer.with_context(|| path.display().to_string())? {
        Some(Answer::Devices(array)) => Ok(*array),
        _ => bail!(
            "{}: the server stopped before the change was complete: see `pumice device list`",
            path.display()
        ),
    }
}

fn set(bar: &ProgressBar, bytes: u64, total: u64) {
    bar.set_length(total);
    bar.set_message(format_size(bytes));
    bar.set_position(bytes);
}

/// Changes a drive that is not served.
fn change_closed(runtime: &Runtime, drive: &Rc<Drive>, change: &DeviceChange) -> Result<ArrayInfo> {
    let (watched, clock, bar) = (drive.clone(), runtime.clone(), progress::bytes(0));
    let shown = bar.clone();
    runtime.spawn(async move {
        loop {
            clock.sleep_ns(LOOK_NS).await;
            let rebuild = watched.medium().as_array().map(|array| array.info().rebuild);
            let rebuild = rebuild.unwrap_or_default();
            set(&shown, rebuild.copied_bytes, rebuild.total_bytes);
        }
    });
    let is_out = |array: &ArrayInfo, wanted: &str| {
        let mut members = array.members.iter();
        members.any(|member| member.path == wanted && member.state == MemberStatus::Out)
    };
    let changed = match (change, drive.medium().as_array().map(Copies::info)) {
        // Opening the drive without the member has already marked it as failed.
        (DeviceChange::Fail { path }, Some(array)) if is_out(&array, path) => Ok(array),
        _ => runtime.block_on(devices::change(runtime, drive, change)),
    };
    bar.finish_and_clear();
    Ok(changed?)
}

/// Opens the drive. A drive on one file or device that gets a second one becomes an array.
fn open_for(runtime: &Runtime, path: &Path, change: &DeviceChange) -> Result<Rc<Drive>> {
    // A member that is declared failed may be absent.
    let absent = Absent::default().apart_if(matches!(change, DeviceChange::Fail { .. }));
    let access = Access { absent, ..Access::new(false) };
    let is_alone = members::header_at(path).is_none();
    if !is_alone || !matches!(change, DeviceChange::Add { .. }) {
        return open::alone_as(runtime, path, &access, OpenOptions::default());
    }
    // The path must hold a drive that opens.
    let drive = open::alone(runtime, path, OpenOptions::default())?;
    let closed = runtime.block_on(drive.close());
    runtime.drop_tasks();
    drop(drive);
    closed.with_context(|| path.display().to_string())?;
    open::as_mirror(runtime, path)
}

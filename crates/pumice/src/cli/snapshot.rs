//! `pumice snapshot`: takes, lists and deletes snapshots of a drive, closed or served.

use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use pumice_report::{Align, Table};
use serde::Serialize;

use super::output::{self, counted};
use super::outside;
use super::{Outcome, lossy, print, print_schema};
use crate::control::{self, Answer, Client, Request};
use crate::place::Place;
use pumice_drive::base::units::format_size;
use pumice_drive::controller::{NewSnapshot, OpenOptions, SnapshotInfo};
use pumice_drive::runtime::{Backend, Runtime};

/// Take, list or delete snapshots of a drive, closed or served
///
/// A snapshot keeps the disk as it was at one moment, with everything that was written before the
/// command began; what a file system still has in its cache is not in it. It takes no copy: it
/// costs the space of what is overwritten or trimmed later, until it is deleted. `pumice extract`,
/// `check` and `serve` read PATH@NAME; PATH must not be in use then.
#[derive(Debug, clap::Args)]
#[command(disable_help_subcommand = true)]
#[command(after_help = "\
Examples:
  pumice snapshot create drive.pumice@before-upgrade
  pumice snapshot list drive.pumice
  pumice extract drive.pumice@before-upgrade disk.img
  pumice snapshot delete drive.pumice@before-upgrade")]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Take a snapshot; when the command ends, it is durable
    Create {
        /// File or block device, and the name of the snapshot
        #[arg(value_name = "PATH@NAME")]
        snapshot: PathBuf,

        /// Print the snapshot as JSON
        #[arg(long)]
        json: bool,
    },
    /// List the snapshots of a drive, oldest first
    List {
        /// File or block device
        path: PathBuf,

        /// Print the snapshots as JSON
        #[arg(long)]
        json: bool,
    },
    /// Delete a snapshot; garbage collection gives back what only it held
    Delete {
        /// File or block device, and the name of the snapshot
        #[arg(value_name = "PATH@NAME")]
        snapshot: PathBuf,

        /// Print what was deleted as JSON
        #[arg(long)]
        json: bool,
    },
}

/// What is printed as JSON.
#[derive(Serialize)]
struct Shown {
    /// `create`, `list` or `delete`.
    action: &'static str,
    path: String,
    snapshots: Vec<SnapshotInfo>,
}

/// What is to be done with a drive.
enum Wanted {
    Create(NewSnapshot),
    Delete(String),
    List,
}

/// Runs the subcommand.
///
/// # Errors
/// There is no drive, it cannot be opened, or the snapshot cannot be made or does not exist:
/// nothing has changed.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let (action, path, wanted, json) = match &args.action {
        Action::Create { snapshot, json } => {
            let (path, name) = Place::snapshot(snapshot)?;
            ("create", path, Wanted::Create(new(name)), *json)
        }
        Action::Delete { snapshot, json } => {
            let (path, name) = Place::snapshot(snapshot)?;
            ("delete", path, Wanted::Delete(name), *json)
        }
        Action::List { path, json } => ("list", path.clone(), Wanted::List, *json),
    };
    let snapshots = match control::connect(&path)? {
        Some(client) => ask(client, &path, wanted),
        None => change(&path, wanted),
    }?;
    let shown = Shown { action, path: lossy(&path), snapshots };
    if json {
        print_schema("snapshot-1", &shown)?;
    } else {
        print(&text(&shown))?;
    }
    Ok(Outcome::Good)
}

/// Returns what a snapshot of now is.
fn new(name: String) -> NewSnapshot {
    let (guid, created_seconds) = (outside::new_identity(), outside::unix_seconds());
    NewSnapshot { name, guid, created_seconds }
}

/// Asks the drive's server.
fn ask(client: Client, path: &Path, wanted: Wanted) -> Result<Vec<SnapshotInfo>> {
    let request = match wanted {
        Wanted::Create(new) => Request::CreateSnapshot(new),
        Wanted::Delete(name) => Request::DeleteSnapshot { name },
        Wanted::List => Request::Snapshots {},
    };
    let mut listed = Vec::new();
    let answer = client.ask(&request, |answer| {
        if let Answer::SomeSnapshots(part) = answer {
            listed.extend(part);
        }
    });
    match answer.with_context(|| path.display().to_string())? {
        Some(Answer::Snapshots(rest)) => {
            listed.extend(rest);
            Ok(listed)
        }
        _ => bail!(
            "{}: the server stopped before it answered: see `pumice snapshot list`",
            path.display()
        ),
    }
}

/// The same for a drive that is not served.
fn change(path: &Path, wanted: Wanted) -> Result<Vec<SnapshotInfo>> {
    let runtime = Runtime::new(Backend::Auto)?;
    let read_only = matches!(wanted, Wanted::List);
    // A drive that holds a part of a snapshot still has the others.
    let options = OpenOptions {
        read_only,
        partial: read_only,
        compact_percent: None,
        ..OpenOptions::default()
    };
    let drive = super::open::drive(&runtime, path, options)?;
    let changed = runtime.block_on(async {
        match wanted {
            Wanted::Create(new) => drive.create_snapshot(new).await.map(|info| vec![info]),
            Wanted::Delete(name) => drive.delete_snapshot(&name).await.map(|info| vec![info]),
            Wanted::List => Ok(drive.snapshots()),
        }
    });
    let closed = runtime.block_on(drive.close());
    runtime.drop_tasks();
    let changed = changed.and_then(|changed| closed.map(|()| changed));
    changed.with_context(|| path.display().to_string())
}

fn text(shown: &Shown) -> String {
    let Shown { action, path, snapshots } = shown;
    match (*action, snapshots.as_slice()) {
        ("create", [info]) => format!("{path}@{}: taken\n", info.name),
        ("delete", [info]) => {
            let alone = format_size(info.alone_bytes);
            format!("{path}@{}: deleted, {alone} that only it held are given back\n", info.name)
        }
        (_, []) => format!("{path} has no snapshots\n"),
        (_, snapshots) => table(snapshots),
    }
}

fn table(snapshots: &[SnapshotInfo]) -> String {
    let mut table = Table::new(&[
        ("snapshot", Align::Left),
        ("taken", Align::Left),
        ("stored", Align::Right),
        ("written since the one before", Align::Right),
        ("held alone", Align::Right),
    ]);
    for info in snapshots {
        let damage = if info.damage.is_some() { " (damaged)" } else { "" };
        table.row(vec![
            format!("{}{damage}", info.name),
            time(info.created_seconds),
            format_size(info.live_bytes),
            format_size(info.written_bytes),
            format_size(info.alone_bytes),
        ]);
    }
    output::table(&table) + &format!("{}\n", counted(snapshots.len() as u64, "snapshot"))
}

/// Returns a time in UTC; what a drive says may be anything.
fn time(seconds: u64) -> String {
    /// The end of the year 9999.
    const LAST: u64 = 253_402_300_799;
    let time = UNIX_EPOCH + Duration::from_secs(seconds.min(LAST));
    humantime::format_rfc3339_seconds(time).to_string()
}

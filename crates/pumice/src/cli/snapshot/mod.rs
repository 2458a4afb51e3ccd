//! `pumice snapshot`: takes, lists, rotates and deletes snapshots of drives, closed or served,
//! makes bookmarks of them, and rolls a disk back to one.

mod clones;
#[cfg_attr(not(feature = "attach"), path = "no_freeze.rs")]
mod freeze;
mod rotate;
mod together;

pub(super) use clones::{forget, forget_or_warn, named, register};

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, UNIX_EPOCH};

use crate::open;
use anyhow::{Context, Result, bail};
use pumice_report::{Align, Table};
use schemars::JsonSchema;
use serde::Serialize;

use super::output::{self, counted};
use super::{Outcome, lossy, print, print_schema};
use crate::cli::key_args::KeyArgs;
use crate::control::{Answer, Client, Request};
use crate::environment;
use crate::place::Place;
use pumice_drive::base::units::format_size;
use pumice_drive::base::{Error, ErrorKind};
use pumice_drive::controller::{Drive, NewSnapshot, OpenOptions, SnapshotInfo};
use pumice_drive::runtime::Runtime;

/// Prefix of the names of snapshots that `rotate` takes, unless `--prefix` is given.
const PREFIX: &str = "auto-";

/// Maximum bytes of names in one request: a line has 4096 bytes, and JSON escapes some.
const NAMES_BYTES_MAX: usize = 1500;

/// Take, list, rotate or delete snapshots of drives, or roll a disk back to one
///
/// A snapshot preserves the state of a disk at one moment. It includes everything written before
/// the command began and the caches of file systems mounted by `pumice attach`, but not the caches
/// of other file systems. Nothing is copied: a snapshot retains the space of data that is
/// overwritten or trimmed later, until it is deleted. `pumice attach --read-only` mounts PATH@NAME
/// at any time; `extract`, `check` and `serve` read it while PATH is not in use; a server of PATH
/// exports it as DRIVE@NAME.
#[derive(Debug, clap::Args)]
#[command(disable_help_subcommand = true)]
#[command(after_help = "\
Examples:
  pumice snapshot create drive.pumice@before-upgrade
  pumice snapshot create data.pumice log.pumice @nightly
  pumice snapshot list drive.pumice
  pumice extract drive.pumice@before-upgrade disk.img
  pumice snapshot rollback drive.pumice@before-upgrade
  pumice snapshot rotate drive.pumice --keep hourly:24,daily:7
  pumice snapshot bookmark drive.pumice@monday
  pumice snapshot delete drive.pumice@before-upgrade")]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Take a snapshot, which is durable when the command ends
    ///
    /// Snapshots of several drives are taken at the same moment: if one of them contains a write,
    /// all contain every write that was acknowledged before that write was sent. Meanwhile writes
    /// wait, for a second at most.
    Create {
        /// File or block device, and the name of the snapshot; or several of them; or several files
        /// or devices, then @NAME
        #[arg(value_name = "PATH@NAME", required = true)]
        snapshots: Vec<PathBuf>,

        /// Delete the snapshot, the oldest such first, rather than refuse a write because the drive
        /// is full
        #[arg(long = "yield")]
        yields: bool,

        /// Do not freeze the file system of a mounted drive: the snapshot is then only
        /// crash-consistent
        #[arg(long)]
        no_freeze: bool,

        #[command(flatten)]
        keys: KeyArgs,

        /// Print the snapshots as JSON
        #[arg(long)]
        json: bool,
    },
    /// List the snapshots of a drive, oldest first
    List {
        /// File or block device
        path: PathBuf,

        #[command(flatten)]
        keys: KeyArgs,

        /// Print the snapshots as JSON
        #[arg(long)]
        json: bool,
    },
    /// Restore the disk's state at the time of a snapshot
    ///
    /// Everything written since is lost. A served drive must have no clients. The disk keeps its
    /// size; any part added since then reads as zeroes.
    Rollback {
        /// File or block device, and the name of the snapshot
        #[arg(value_name = "PATH@NAME")]
        snapshot: PathBuf,

        /// Delete the snapshots taken after it; required if there are any
        #[arg(long)]
        delete_newer: bool,

        #[command(flatten)]
        keys: KeyArgs,

        /// Print the snapshot as JSON
        #[arg(long)]
        json: bool,
    },
    /// Take a snapshot named by the time, and delete older ones by a rule
    ///
    /// Snapshots of several drives are taken at the same moment. Only snapshots whose name begins
    /// with the prefix are deleted; the newest of each period is kept. Times are in UTC.
    Rotate {
        /// Files or block devices
        #[arg(value_name = "PATH", required = true)]
        paths: Vec<PathBuf>,

        /// Number of snapshots to keep for each period: hourly:24 keeps the newest snapshot of each
        /// of the last 24 hours with a snapshot; also daily, weekly, monthly and yearly
        #[arg(long, value_name = "hourly:24,daily:7")]
        keep: rotate::Keep,

        /// Prefix of the names
        #[arg(long, default_value = PREFIX)]
        prefix: String,

        /// Take the snapshot with --yield, as with create
        #[arg(long = "yield")]
        yields: bool,

        /// Delete bookmarks by the rule as well
        #[arg(long)]
        bookmarks: bool,

        /// Only print the snapshots that would be deleted, and take none
        #[arg(long)]
        dry_run: bool,

        /// Do not freeze the file system of a mounted drive: the snapshot is then only
        /// crash-consistent
        #[arg(long)]
        no_freeze: bool,

        #[command(flatten)]
        keys: KeyArgs,

        /// Print the snapshots as JSON
        #[arg(long)]
        json: bool,
    },
    /// Drop the data of a snapshot, but keep the record of blocks written since
    ///
    /// The snapshot becomes a bookmark of the same name, against which `pumice diff`, `pumice send
    /// --since` and the metadata contexts of a server compare later states. It cannot be read. It
    /// takes the space of the snapshot's map, usually less than 1 % of the disk's data. After
    /// garbage collection, comparisons may include blocks that were not written, but never omit a
    /// written one.
    Bookmark {
        /// File or block device, and the name of the snapshot
        #[arg(value_name = "PATH@NAME")]
        snapshot: PathBuf,

        #[command(flatten)]
        keys: KeyArgs,

        /// Print the bookmark as JSON
        #[arg(long)]
        json: bool,
    },
    /// Delete a snapshot or bookmark; garbage collection frees its space
    Delete {
        /// File or block device, and the name of the snapshot
        #[arg(value_name = "PATH@NAME")]
        snapshot: PathBuf,

        /// Forget a clone that no longer exists, named as in `snapshot list`; may be repeated. A
        /// clone that still exists becomes unreadable
        #[arg(long, value_name = "CLONE")]
        forget: Vec<String>,

        #[command(flatten)]
        keys: KeyArgs,

        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
}

impl Action {
    fn keys(&self) -> &KeyArgs {
        match self {
            Self::Create { keys, .. }
            | Self::List { keys, .. }
            | Self::Rollback { keys, .. }
            | Self::Rotate { keys, .. }
            | Self::Bookmark { keys, .. }
            | Self::Delete { keys, .. } => keys,
        }
    }
}

/// The result for one drive.
#[derive(Serialize, JsonSchema)]
struct Done {
    /// The drive's file or device.
    path: String,
    /// Snapshots that were taken, listed, turned into bookmarks or rolled back to.
    snapshots: Vec<SnapshotInfo>,
    /// Snapshots that were deleted, or would be without `--dry-run`.
    deleted: Vec<SnapshotInfo>,
}

/// The result as JSON.
#[derive(Serialize, JsonSchema)]
pub(super) struct Shown {
    /// The action.
    #[schemars(extend("enum" = ["create", "list", "rollback", "rotate", "bookmark", "delete"]))]
    action: &'static str,
    /// The drives, in the order of the arguments.
    drives: Vec<Done>,
}

/// Runs the subcommand.
///
/// # Errors
/// There is no drive, it cannot be opened, or the snapshot cannot be made or does not exist:
/// nothing has changed.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    args.action.keys().provide()?;
    let (action, json, drives) = match &args.action {
        Action::Create { snapshots, yields, no_freeze, json, .. } => {
            let how = How { yields: *yields, freezes: !no_freeze };
            ("create", *json, create(&wanted(snapshots)?, how)?)
        }
        Action::List { path, json, .. } => {
            let listed = list(path)?;
            ("list", *json, vec![Done { path: lossy(path), snapshots: listed, deleted: vec![] }])
        }
        Action::Rollback { snapshot, delete_newer, json, .. } => {
            ("rollback", *json, vec![roll_back(snapshot, *delete_newer)?])
        }
        Action::Rotate {
            paths, keep, prefix, yields, no_freeze, bookmarks, dry_run, json, ..
        } => {
            let how = How { yields: *yields, freezes: !no_freeze };
            let rule = Rule { keep, prefix, how, bookmarks: *bookmarks };
            ("rotate", *json, if *dry_run { rule.try_out(paths) } else { rule.rotate(paths) }?)
        }
        Action::Bookmark { snapshot, json, .. } => {
            let (path, name) = Place::snapshot(snapshot)?;
            let snapshots = bookmark(&path, name)?;
            ("bookmark", *json, vec![Done { path: lossy(&path), snapshots, deleted: vec![] }])
        }
        Action::Delete { snapshot, forget, json, .. } => {
            let (path, name) = Place::snapshot(snapshot)?;
            clones::forget_all(&path, &name, forget)?;
            let deleted = delete(&path, &[name])?;
            ("delete", *json, vec![Done { path: lossy(&path), snapshots: vec![], deleted }])
        }
    };
    if json {
        print_schema("snapshot-1", &Shown { action, drives })?;
    } else {
        print(&drives.iter().map(|done| text(&args.action, done)).collect::<String>())?;
    }
    Ok(Outcome::Good)
}

/// Returns the drives to snapshot, and the names of the snapshots.
fn wanted(arguments: &[PathBuf]) -> Result<Vec<together::Wanted>> {
    let last = arguments.last().map_or(&[][..], |last| last.as_os_str().as_bytes());
    let wanted: Vec<together::Wanted> = match (last.strip_prefix(b"@"), arguments) {
        (Some(name), [paths @ .., _]) if !paths.is_empty() => {
            let name = str::from_utf8(name).context("the name of a snapshot is not UTF-8")?;
            pumice_drive::format::check_snapshot_name(name)?;
            paths.iter().map(|path| (path.clone(), name.to_owned())).collect()
        }
        _ => arguments.iter().map(|it| Place::snapshot(it)).collect::<Result<_>>()?,
    };
    check_distinct(wanted.iter().map(|(path, _)| path))?;
    Ok(wanted)
}

/// Checks that no drive is named twice: its second opening would wait for the first, or be refused
/// halfway.
fn check_distinct<'a>(paths: impl Iterator<Item = &'a PathBuf>) -> Result<()> {
    let mut seen = std::collections::BTreeSet::new();
    for path in paths {
        let whole = path.canonicalize().unwrap_or_else(|_| path.clone());
        if !seen.insert(whole) {
            bail!("{} is named twice", path.display());
        }
    }
    Ok(())
}

/// The way in which snapshots are taken.
#[derive(Clone, Copy)]
struct How {
    /// See [`NewSnapshot::yields`].
    yields: bool,
    /// Whether mounted file systems are frozen.
    freezes: bool,
}

fn create(wanted: &[together::Wanted], how: How) -> Result<Vec<Done>> {
    let create = || together::create(wanted, how.yields);
    let taken = match how.freezes {
        true => freeze::during(wanted.iter().map(|(path, _)| path), create)?,
        false => create()?,
    };
    let done = taken.into_iter().zip(wanted).map(|(info, (path, _))| Done {
        path: lossy(path),
        snapshots: vec![info],
        deleted: Vec::new(),
    });
    Ok(done.collect())
}

/// Returns the snapshots of a drive, oldest first, and the space that each retains; asks the
/// drive's server, if there is one.
///
/// # Errors
/// There is no drive, or it cannot be read.
pub(super) fn list(path: &Path) -> Result<Vec<SnapshotInfo>> {
    // A drive with a partly received snapshot still has its other snapshots.
    let options = OpenOptions { read_only: true, incomplete: true, ..OpenOptions::default() };
    with(path, &Request::Snapshots {}, options, async |drive| Ok(drive.snapshots()))
}

fn roll_back(snapshot: &Path, delete_newer: bool) -> Result<Done> {
    let (path, name) = Place::snapshot(snapshot)?;
    let served = |client| roll_back_served(client, &path, name.clone(), delete_newer).map(Some);
    // The received part of another snapshot is discarded as well.
    let options = OpenOptions { incomplete: true, compact_percent: None, ..OpenOptions::default() };
    let open = |runtime: &Runtime| open::alone(runtime, &path, options);
    let work = |runtime: &Runtime, drive: &Rc<Drive>| {
        let before = drive.snapshots();
        let rolling = drive.roll_back(&name, delete_newer);
        let info = runtime.block_on(rolling).map_err(advise_newer)?;
        let is_newer = |it: &SnapshotInfo| it.sequence > info.sequence;
        let deleted = before.into_iter().filter(is_newer).collect();
        Ok((vec![info], deleted))
    };
    let (rolled, deleted) = open::served_or_closed(&path, served, open, work)?;
    Ok(Done { path: lossy(&path), snapshots: rolled, deleted })
}

/// The snapshot that was rolled back to, and the deleted ones.
type RolledBack = (Vec<SnapshotInfo>, Vec<SnapshotInfo>);

fn roll_back_served(
    client: Client,
    path: &Path,
    name: String,
    deletes_newer: bool,
) -> Result<RolledBack> {
    let mut deleted = Vec::new();
    let answer = client.ask(&Request::RollBack { name, deletes_newer }, |answer| {
        if let Answer::SomeSnapshots(part) = answer {
            deleted.extend(part);
        }
    });
    match answer.map_err(advise_newer).with_context(|| path.display().to_string())? {
        Some(Answer::Snapshots(rolled)) => Ok((rolled, deleted)),
        _ => bail!(
            "{}: the server stopped before it answered: see `pumice snapshot list`",
            path.display()
        ),
    }
}

/// Adds advice about newer snapshots that prevent the rollback.
fn advise_newer(error: Error) -> Error {
    match error.kind() {
        ErrorKind::InvalidInput => {
            let what = format!("{error}; --delete-newer deletes newer snapshots");
            Error::new(ErrorKind::InvalidInput, what)
        }
        _ => error,
    }
}

fn bookmark(path: &Path, name: String) -> Result<Vec<SnapshotInfo>> {
    let request = Request::BookmarkSnapshot { name: name.clone() };
    change(path, &request, async |drive| Ok(vec![drive.bookmark_snapshot(&name).await?]))
}

/// Deletes snapshots of a drive. Each step deletes as many as fit in one request.
fn delete(path: &Path, names: &[String]) -> Result<Vec<SnapshotInfo>> {
    let origin = clones::origin_of(path);
    let deleted = delete_only(path, names)?;
    if let Some(origin) = origin {
        clones::forget_if_independent(path, origin);
    }
    Ok(deleted)
}

fn delete_only(path: &Path, names: &[String]) -> Result<Vec<SnapshotInfo>> {
    let (mut deleted, mut rest) = (Vec::new(), names);
    while !rest.is_empty() {
        let mut bytes = 0;
        let too_many = rest.iter().position(|name| {
            bytes += name.len();
            bytes > NAMES_BYTES_MAX
        });
        let (part, later) = rest.split_at(too_many.unwrap_or(rest.len()).max(1));
        let names: Vec<&str> = part.iter().map(String::as_str).collect();
        let request = Request::DeleteSnapshots { names: part.to_vec() };
        let delete = async |drive: &Drive| drive.delete_snapshots(&names).await;
        deleted.extend(change_even_a_part(path, &request, delete)?);
        rest = later;
    }
    Ok(deleted)
}

/// Deletes the snapshots that no client reads. A snapshot that another command has deleted
/// meanwhile counts as deleted.
fn delete_unused(path: &Path, mut expired: Vec<SnapshotInfo>) -> Result<Vec<SnapshotInfo>> {
    if expired.is_empty() {
        return Ok(expired);
    }
    let names: Vec<_> = expired.iter().map(|info| info.name.clone()).collect();
    match delete(path, &names) {
        Err(error) if is_of(ErrorKind::Busy, &error) || is_of(ErrorKind::NotFound, &error) => {}
        deleted => return deleted,
    }
    for name in names {
        match delete(path, std::slice::from_ref(&name)) {
            Err(error) if is_of(ErrorKind::Busy, &error) => {
                let error = crate::cli::chain(&error);
                tracing::warn!(snapshot = name, %error, "an expired snapshot was kept");
                expired.retain(|info| info.name != name);
            }
            Err(error) if is_of(ErrorKind::NotFound, &error) => {}
            deleted => drop(deleted?),
        }
    }
    Ok(expired)
}

fn is_of(kind: ErrorKind, error: &anyhow::Error) -> bool {
    error.downcast_ref::<Error>().is_some_and(|error| error.kind() == kind)
}

/// The settings of rotate.
struct Rule<'a> {
    keep: &'a rotate::Keep,
    prefix: &'a str,
    how: How,
    bookmarks: bool,
}

impl Rule<'_> {
    /// Returns the snapshots that no rule keeps, except those that have clones.
    fn expired(&self, mut snapshots: Vec<SnapshotInfo>) -> Vec<SnapshotInfo> {
        // A bookmark does not replace a snapshot.
        let is_of_kind = |info: &SnapshotInfo| self.bookmarks || !info.is_bookmark;
        snapshots.retain(|info| info.name.starts_with(self.prefix) && is_of_kind(info));
        let expired = self.keep.expired(&snapshots);
        snapshots.retain(|info| expired.contains(&info.name));
        snapshots.retain(|info| {
            if !info.clones.is_empty() {
                let name = &info.name;
                tracing::warn!(snapshot = name, "an expired snapshot was kept: it has clones");
            }
            info.clones.is_empty()
        });
        snapshots
    }

    /// Takes the snapshots and deletes those that no rule keeps.
    fn rotate(&self, paths: &[PathBuf]) -> Result<Vec<Done>> {
        check_distinct(paths.iter())?;
        let name = format!("{}{}", self.prefix, time(environment::unix_seconds()));
        pumice_drive::format::check_snapshot_name(&name)?;
        let wanted: Vec<_> = paths.iter().map(|path| (path.clone(), name.clone())).collect();
        let mut done = match create(&wanted, self.how) {
            Err(error) if is_of(ErrorKind::AlreadyExists, &error) => {
                tracing::warn!(snapshot = name, "a snapshot of this second exists already: kept");
                let done = |path| Done { path: lossy(path), snapshots: vec![], deleted: vec![] };
                paths.iter().map(|path| done(path)).collect()
            }
            done => done?,
        };
        for (done, path) in done.iter_mut().zip(paths) {
            done.deleted = delete_unused(path, self.expired(list(path)?))?;
        }
        Ok(done)
    }

    /// Returns the snapshots that would be deleted now.
    fn try_out(&self, paths: &[PathBuf]) -> Result<Vec<Done>> {
        let tried = paths.iter().map(|path| {
            let deleted = self.expired(list(path)?);
            Ok(Done { path: lossy(path), snapshots: Vec::new(), deleted })
        });
        tried.collect()
    }
}

/// Returns the description of a snapshot taken now.
fn new(name: String, yields: bool) -> NewSnapshot {
    let (guid, created_seconds) = (environment::new_identity(), environment::unix_seconds());
    NewSnapshot { name, guid, created_seconds, yields }
}

/// Sends a request about snapshots to a drive's server, and returns the snapshots of the answer;
/// `None` if the server ends before it answers.
fn ask(client: Client, path: &Path, request: &Request) -> Result<Option<Vec<SnapshotInfo>>> {
    let mut listed = Vec::new();
    let answer = client.ask(request, |answer| {
        if let Answer::SomeSnapshots(part) = answer {
            listed.extend(part);
        }
    });
    match answer.with_context(|| path.display().to_string())? {
        None => Ok(None),
        Some(Answer::Snapshots(rest)) => {
            listed.extend(rest);
            Ok(Some(listed))
        }
        Some(_) => bail!("{}: unexpected answer from its server", path.display()),
    }
}

/// Sends a request to the drive's server, or does the same work with the closed drive. Returns the
/// snapshots concerned.
fn change(
    path: &Path,
    request: &Request,
    work: impl AsyncFnOnce(&Drive) -> pumice_drive::base::Result<Vec<SnapshotInfo>>,
) -> Result<Vec<SnapshotInfo>> {
    with(path, request, OpenOptions::default(), work)
}

/// Like [`change`], also if the disk holds a partly received snapshot: the drive still has the
/// others.
fn change_even_a_part(
    path: &Path,
    request: &Request,
    work: impl AsyncFnOnce(&Drive) -> pumice_drive::base::Result<Vec<SnapshotInfo>>,
) -> Result<Vec<SnapshotInfo>> {
    with(path, request, OpenOptions { incomplete: true, ..OpenOptions::default() }, work)
}

fn with(
    path: &Path,
    request: &Request,
    options: OpenOptions,
    work: impl AsyncFnOnce(&Drive) -> pumice_drive::base::Result<Vec<SnapshotInfo>>,
) -> Result<Vec<SnapshotInfo>> {
    let served = |client| ask(client, path, request);
    let options = OpenOptions { compact_percent: None, ..options };
    let open = |runtime: &Runtime| open::alone(runtime, path, options);
    let work = |runtime: &Runtime, drive: &Rc<Drive>| Ok(runtime.block_on(work(drive))?);
    open::served_or_closed(path, served, open, work)
}

fn text(action: &Action, done: &Done) -> String {
    let Done { path, snapshots, deleted } = done;
    let alone = |info: &SnapshotInfo| format_size(info.alone_bytes);
    let line = |info: &SnapshotInfo| match action {
        Action::Rollback { .. } => {
            format!("{path}: rolled back to {}, {}\n", info.name, time(info.created_seconds))
        }
        Action::Bookmark { .. } => {
            format!("{path}@{}: now a bookmark, which retains {} alone\n", info.name, alone(info))
        }
        _ => format!("{path}@{}: taken\n", info.name),
    };
    let line_deleted = |info: &SnapshotInfo| match action {
        Action::Delete { .. } => format!("{path}@{}: deleted, {} freed\n", info.name, alone(info)),
        Action::Rotate { dry_run: true, .. } => format!("{path}@{}: would be deleted\n", info.name),
        _ => format!("{path}@{}: deleted\n", info.name),
    };
    match action {
        Action::List { .. } if snapshots.is_empty() => format!("{path} has no snapshots\n"),
        Action::List { .. } => table(snapshots),
        _ => snapshots.iter().map(line).chain(deleted.iter().map(line_deleted)).collect(),
    }
}

fn table(snapshots: &[SnapshotInfo]) -> String {
    let has_clones = snapshots.iter().any(|info| !info.clones.is_empty());
    let mut columns = vec![
        ("snapshot", Align::Left),
        ("taken", Align::Left),
        ("stored", Align::Right),
        ("written since previous", Align::Right),
        ("retained alone", Align::Right),
        ("with others", Align::Right),
    ];
    if has_clones {
        columns.push(("clones", Align::Left));
    }
    let mut table = Table::new(&columns);
    for info in snapshots {
        let kind = if info.is_bookmark { " (bookmark)" } else { "" };
        let damage = if info.damage.is_some() { " (damaged)" } else { "" };
        let mut row = vec![
            format!("{}{kind}{damage}", info.name),
            time(info.created_seconds),
            format_size(info.live_bytes),
            format_size(info.written_bytes),
            format_size(info.alone_bytes),
            format_size(info.shared_bytes),
        ];
        if has_clones {
            let paths: Vec<_> = info.clones.iter().map(|clone| clone.path.as_str()).collect();
            row.push(if paths.is_empty() { "-".into() } else { paths.join(", ") });
        }
        table.row(row);
    }
    output::table(&table) + &format!("{}\n", counted(snapshots.len() as u64, "snapshot"))
}

/// Returns a time in UTC; a drive may contain any value.
pub(super) fn time(seconds: u64) -> String {
    /// The end of the year 9999.
    const LAST: u64 = 253_402_300_799;
    let time = UNIX_EPOCH + Duration::from_secs(seconds.min(LAST));
    humantime::format_rfc3339_seconds(time).to_string()
}

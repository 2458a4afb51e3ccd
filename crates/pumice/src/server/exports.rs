//! The drives that a server serves: opened, shown, closed.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;

use anyhow::{Context, Result};
use futures_util::stream::{StreamExt, iter};

use super::disk::{ServedDisk, Views};
use super::follow::{Follower, Following};
use super::snapshots::{self, Front, Snapshots};
use super::watch::MeasuredDrive;
use crate::control::{ControlSocket, SnapshotExports};
use crate::devices;
use crate::leftovers;
use crate::open::{self, media};
use crate::partitions;
use crate::path_watch;
use crate::remedy::chain_of as chain;
use crate::savings::saved_text;
use crate::storage::{Access, Storage};
use crate::watch::{Measured, Terms, Watch};
use pumice_drive::base::units::format_size;
use pumice_drive::codec::Workers;
use pumice_drive::controller::{Drive, Info, OpenOptions};
use pumice_drive::runtime::Runtime;
use pumice_nbd::{Export, Lineage, Server};

/// Maximum number of drives that are opened or closed at the same time, on all threads. Each
/// opening waits for several syncs of the medium, which file systems do together; each may take
/// memory for a long log.
const AT_ONCE: usize = 8;

/// A drive to serve.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    pub(crate) path: PathBuf,
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    pub(crate) access: Access,
    pub(crate) options: OpenOptions,
    /// Whether it was found in a directory: if it cannot be opened, the others are served.
    pub(crate) is_found: bool,
    /// Device and inode of the file at the time of planning.
    pub(crate) file: Option<(u64, u64)>,
    /// The snapshot to serve, if not the disk.
    pub(crate) snapshot: Option<String>,
    /// Interval of checks for a newer commit, if another machine writes the drive.
    pub(crate) follow_ns: Option<u64>,
}

/// The open drive of an export.
#[derive(Clone)]
pub(super) enum Source {
    /// The same drive for all requests.
    Drive(Rc<Drive>),
    /// A different drive after each newer commit.
    Followed(Rc<Follower>),
}

impl Source {
    /// Returns the drive that is open now.
    pub(super) fn get(&self) -> Rc<Drive> {
        match self {
            Self::Drive(drive) => drive.clone(),
            Self::Followed(follower) => follower.drive(),
        }
    }
}

impl Planned {
    fn medium(&self, runtime: &Runtime) -> Result<Storage> {
        let access = Access { read_only: self.options.read_only, ..self.access.clone() };
        open::medium(runtime, &self.path, &access)
    }

    /// Whether serving this is the same as serving `other`.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let is_same_file = self.path == other.path && self.file == other.file;
        let is_same_place = is_same_file && self.snapshot == other.snapshot;
        let is_same_export = self.name == other.name && self.description == other.description;
        // Options of a drive have no equality, but their debug text shows all of them.
        let options = [self, other].map(|planned| format!("{:?}", planned.options));
        let is_same_drive = is_same_place && self.follow_ns == other.follow_ns;
        is_same_drive && self.access == other.access && is_same_export && options[0] == options[1]
    }
}

/// A drive that is served.
pub(super) struct Served {
    pub(super) path: PathBuf,
    pub(super) drive: Source,
    pub(super) export: Rc<Export>,
    /// The disk of the export.
    measured: Rc<MeasuredDrive>,
    /// URIs under which clients reach it.
    pub(super) uris: Rc<RefCell<Vec<String>>>,
    /// The control socket of the drive, open until this is dropped.
    control: Option<ControlSocket>,
    is_snapshot: bool,
    /// The views of the snapshots; `None` for a followed drive.
    pub(super) views: Option<Rc<Views>>,
    /// The exports of its snapshots, once there is a server.
    pub(super) snapshots: Option<Rc<Snapshots>>,
}

/// Checks that each file holds a drive, as far as this can be determined without opening it.
///
/// # Errors
/// A named file holds no drive, or none of the files found in directories does.
pub(super) fn check(planned: &[Planned]) -> Result<()> {
    let mut failed = None;
    let mut are_some_good = false;
    for Planned { path, is_found, .. } in planned {
        match leftovers::check(path) {
            Ok(()) => are_some_good = true,
            Err(error) if *is_found => failed = failed.or(Some(error)),
            Err(error) => return Err(error),
        }
    }
    failed.filter(|_| !are_some_good).map_or(Ok(()), Err)
}

/// Opens drives, which share `workers`. If a named drive cannot be opened, those already open are
/// closed again; a drive that was found in a directory is left out, with an error in the log.
/// `threads` open drives at the same time.
///
/// # Errors
/// Errors from opening a named drive.
pub(super) fn open_all(
    runtime: &Runtime,
    planned: &[Planned],
    workers: Option<&Workers>,
    threads: usize,
) -> Result<Vec<Served>> {
    let media: Vec<_> = planned.iter().map(|planned| planned.medium(runtime)).collect();
    let openings = planned.iter().zip(media).map(|(planned, medium)| async move {
        let snapshot = planned.snapshot.as_deref();
        let drive = open::on_medium(runtime, snapshot, medium?, planned.options).await;
        drive.map_err(|error| leftovers::advise(&planned.path, error))
    });
    let at_once = AT_ONCE.div_ceil(threads);
    let opened: Vec<_> = runtime.block_on(iter(openings).buffered(at_once).collect());
    let mut served = Vec::new();
    // The first error is the one to report.
    let mut failed = None;
    for (planned, opened) in planned.iter().zip(opened) {
        let Planned { path, is_found, .. } = planned;
        match opened {
            Ok(drive) => {
                let one = Served::of(runtime, planned, drive, workers);
                if let Source::Followed(follower) = &one.drive
                    && let Err(error) = runtime.block_on(follower.settle())
                {
                    failed = failed.or(Some(leftovers::advise(path, error)));
                }
                served.push(one);
            }
            Err(error) if *is_found => {
                let (drive, error) = (path.display(), chain(&error));
                tracing::error!(%drive, %error, "left out: the drive cannot be opened");
            }
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    let Some(error) = failed else { return Ok(served) };
    let _ = close_all(runtime, &served);
    Err(error)
}

impl Served {
    /// Returns the served form of an open drive.
    fn of(
        runtime: &Runtime,
        planned: &Planned,
        drive: Rc<Drive>,
        workers: Option<&Workers>,
    ) -> Self {
        workers.into_iter().for_each(|workers| drive.use_workers(workers.clone()));
        let description = planned.description.clone().unwrap_or_else(|| describe(&drive));
        let is_snapshot = planned.snapshot.is_some();
        let lineage = lineage(&drive, is_snapshot);
        let (source, disk, views) = match planned.follow_ns {
            Some(every_ns) => {
                let (options, workers) = (planned.options, workers.cloned());
                let following = Following { options, workers, every_ns };
                let follower = Follower::start(runtime, drive, following);
                let disk = ServedDisk::Followed(follower.clone());
                (Source::Followed(follower), disk, None)
            }
            None => {
                let views = Views::of(drive.clone(), runtime.clone());
                let disk = ServedDisk::Drive(drive.clone(), views.clone());
                (Source::Drive(drive), disk, Some(views))
            }
        };
        let measured = Rc::new(Measured::new(Rc::new(disk), runtime.clone()));
        let export = Export::new(planned.name.clone(), description, measured.clone());
        Self {
            path: planned.path.clone(),
            drive: source,
            export: Rc::new(export.with_lineage(lineage)),
            measured,
            uris: Rc::default(),
            control: None,
            is_snapshot,
            views,
            snapshots: None,
        }
    }
}

/// Makes a drive visible to monitoring and to other commands.
pub(super) fn show(runtime: &Runtime, served: &mut Served, terms: Terms, watch: &Rc<Watch>) {
    let (name, measured) = (served.export.name.clone(), served.measured.clone());
    let source = served.drive.clone();
    watch.add(name.clone(), move || source.get(), measured, terms);
    let Source::Drive(drive) = &served.drive else { return };
    media::path_watch(drive).into_iter().for_each(path_watch::watch);
    devices::go_on(runtime, drive);
    let read = drive.clone();
    runtime.spawn(async move {
        if let Some(sector_bytes) = partitions::sector_bytes_on(&read).await {
            let advice = partitions::advice(sector_bytes);
            tracing::info!(sector_bytes, advice, "the disk has a partition table");
        }
    });
    // Neither a snapshot nor a followed drive answers requests about the drive at its path; for a
    // followed drive, the bucket is the better source.
    if !served.is_snapshot {
        served.control = control(runtime, served, (watch.clone(), name));
    }
}

/// Offers the snapshots of a drive.
pub(super) fn show_snapshots(
    runtime: &Runtime,
    served: &mut Served,
    server: &Rc<Server>,
    front: Option<Front>,
) {
    let (Some(views), false) = (served.views.clone(), served.is_snapshot) else { return };
    let drive = served.drive.get();
    let (runtime_of_theirs, export) = (runtime.clone(), served.export.clone());
    let snapshots = Snapshots::of(runtime_of_theirs, (drive, views), export, server.clone());
    snapshots.inform(front);
    runtime.block_on(snapshots.show());
    served.snapshots = Some(snapshots);
}

/// Closes drives; returns the first error, with its path.
pub(super) fn close_all(runtime: &Runtime, served: &[Served]) -> Result<()> {
    for Served { drive, .. } in served {
        if let Source::Followed(follower) = drive {
            follower.end();
        }
    }
    let closings = iter(served.iter().map(|served| served.close(runtime)).collect::<Vec<_>>());
    let closed: Vec<Result<()>> = runtime.block_on(closings.buffered(AT_ONCE).collect());
    closed.into_iter().fold(Ok(()), Result::and)
}

impl Served {
    /// Closes the drive, after the requests that commands have begun with it have ended.
    async fn close(&self, runtime: &Runtime) -> Result<()> {
        let end_requests = async || {
            if let Some(control) = &self.control {
                control.end(runtime).await;
            }
        };
        end_requests().await;
        // The views also keep the drive open.
        self.views.iter().for_each(|views| views.remove_all());
        let (drive, written) = (self.drive.get(), self.measured.stats().write.bytes);
        let info = drive.info();
        let closed = drive.close().await;
        end_requests().await;
        let path = self.path.display();
        closed.with_context(|| path.to_string())?;
        let (written, saved) = (format_size(written), saved_text(&info));
        tracing::info!(drive = %path, %written, %saved, "closed: all data is durable");
        Ok(())
    }
}

/// Returns the position of a drive among its states: each opening to write has the next epoch. A
/// drive that was not closed in order may lack data that was acknowledged to clients, and follows
/// no state.
fn lineage(drive: &Drive, is_snapshot: bool) -> Lineage {
    let Info { uuid, epoch, was_clean, sequence, .. } = drive.info();
    if is_snapshot {
        return snapshots::lineage(uuid, sequence);
    }
    let state = |epoch: u32| format!("{uuid} {epoch}");
    let follows = match (drive.is_read_only(), was_clean) {
        (true, _) => state(epoch),
        (false, true) => state(epoch.saturating_sub(1)),
        (false, false) => "a state that was lost".into(),
    };
    Lineage { follows, leaves: state(epoch) }
}

fn describe(drive: &Drive) -> String {
    format!("a Pumice drive of {}", format_size(drive.size_bytes()))
}

/// Lets other commands reach the drive. If that fails, the drive is served without it.
fn control(
    runtime: &Runtime,
    served: &Served,
    watch: (Rc<Watch>, String),
) -> Option<ControlSocket> {
    let path = &served.path;
    let socket = ControlSocket::bind(runtime, path).inspect_err(|error| {
        let (path, error) = (path.display(), error.chain());
        tracing::warn!(drive = %path, %error, "other commands cannot reach the drive");
    });
    let socket = socket.ok()?;
    let uris = served.uris.clone();
    let snapshots = served.snapshots.clone();
    let snapshots = snapshots.map(|snapshots| snapshots as Rc<dyn SnapshotExports>);
    runtime.spawn(socket.serve(runtime.clone(), served.drive.get(), watch, uris, snapshots));
    Some(socket)
}

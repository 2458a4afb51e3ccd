//! The use and health of a drive: the state that `info` and `list` show.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::Result;
use schemars::JsonSchema;
use serde::Serialize;

#[cfg(feature = "attach")]
use super::attach::Attachment;
use crate::control::{self, Service};
use crate::open::{self, origin};
use crate::partitions;
use crate::remedy;
use crate::storage::{Absent, Access};
use pumice_drive::base::ErrorKind;
use pumice_drive::controller::{Alert, AlertKind, Drive, Info, OpenOptions, SnapshotInfo};
use pumice_drive::runtime::{Backend, Runtime};

/// The use of a drive.
#[derive(Default, Serialize, JsonSchema)]
pub(super) struct State {
    /// The process that serves it, or has it attached.
    pub(super) process: Option<u32>,
    /// URIs under which clients reach it.
    pub(super) uris: Vec<String>,
    /// Connections of clients to the server, which may also serve other drives.
    pub(super) clients: Option<u64>,
    /// Its devices, if it is attached, as text.
    pub(super) devices: Vec<String>,
    /// Its mount point.
    pub(super) mountpoint: Option<String>,
    /// The file to which the process writes its log, if it is a file.
    pub(super) log: Option<String>,
    /// Sector size in bytes for which the partition table of the disk was made, if it has one.
    pub(super) table_sector_bytes: Option<u32>,
    /// Whether a process that had it attached was killed, and its remains were not removed.
    #[serde(skip)]
    is_stale: bool,
}

impl State {
    /// Returns the state of the drive at `path`, with `service` from its server.
    pub(super) fn of(path: &Path, service: Option<Service>) -> Self {
        let Some(service) = service else { return Self::default() };
        let Service { process, uris, clients, table_sector_bytes, .. } = service;
        let log = log_file(process);
        let state =
            Self { process: Some(process), uris, log, table_sector_bytes, ..Self::default() };
        #[cfg(feature = "attach")]
        if let Ok(Some(attachment)) = Attachment::of(path) {
            let shown = |path: &Path| path.display().to_string();
            return Self {
                devices: attachment.devices().iter().map(|device| shown(device)).collect(),
                mountpoint: attachment.mountpoint().map(shown),
                log: Some(shown(&attachment.log_file())),
                ..state
            };
        }
        #[cfg(not(feature = "attach"))]
        let _ = path;
        Self { clients: Some(clients), ..state }
    }

    /// Returns the word for this state.
    pub(super) fn word(&self) -> &'static str {
        match (self.process, self.devices.is_empty()) {
            (None, _) if self.is_stale => "stale",
            (None, _) => "closed",
            (Some(_), true) => "served",
            (Some(_), false) => "attached",
        }
    }

    /// Returns the addresses or devices at which hosts reach the drive.
    pub(super) fn places(&self) -> Vec<String> {
        if self.devices.is_empty() {
            return self.uris.clone();
        }
        let mounted = self.mountpoint.as_ref().map(|path| format!(" on {path}"));
        vec![self.devices.join(", ") + &mounted.unwrap_or_default()]
    }
}

/// Returns the file that a process's standard error writes to, if it is a file.
fn log_file(process: u32) -> Option<String> {
    let file = fs::read_link(format!("/proc/{process}/fd/2")).ok()?;
    file.is_file().then(|| file.display().to_string())
}

/// Asks the drive's server if it is served; otherwise opens the drive read-only.
///
/// # Errors
/// There is no drive, or it is in use by a process that does not answer.
pub(super) fn read(path: &Path) -> Result<(Info, State)> {
    if let Some(found) = read_served(path)? {
        return Ok(found);
    }
    let (info, (), state) = read_closed(path, |_| ())?;
    Ok((info, state))
}

/// Like [`read`], with the snapshots and the space that each retains; `None` for a drive whose file
/// is gone: its server is not asked.
pub(super) fn read_with_snapshots(path: &Path) -> Result<(Info, State, Option<Vec<SnapshotInfo>>)> {
    let Some((info, state)) = read_served(path)? else {
        let (info, snapshots, state) = read_closed(path, Drive::snapshots)?;
        return Ok((info, state, Some(snapshots)));
    };
    let snapshots = match info.snapshots {
        0 => Some(Vec::new()),
        _ if path.exists() => Some(super::snapshot::list(path)?),
        _ => None,
    };
    Ok((info, state, snapshots))
}

/// Asks the drive's server, if there is one.
fn read_served(path: &Path) -> Result<Option<(Info, State)>> {
    match control::info(path) {
        Ok(Some(info)) => Ok(Some((info, State::of(path, control::service(path)?)))),
        Ok(None) => Ok(None),
        Err(error) => {
            let is_missing = error.kind() == ErrorKind::NotFound;
            let found = is_missing.then(|| misplaced(path)).flatten();
            found.map(Some).ok_or(error.into())
        }
    }
}

/// Opens a drive read-only and reads additional data with `read`.
fn read_closed<T>(path: &Path, read: impl FnOnce(&Drive) -> T) -> Result<(Info, T, State)> {
    let runtime = Runtime::new(Backend::Auto)?;
    let options = OpenOptions { read_only: true, incomplete: true, ..OpenOptions::default() };
    let access = Access { absent: Absent::AndApart, ..Access::new(true) };
    let drive = open::alone_as(&runtime, path, &access, options)?;
    let (mut info, more) = (drive.info(), read(&drive));
    if let Err(error) = runtime.block_on(origin::needed(&runtime, drive.medium(), path, &access)) {
        let what = remedy::chain(&error);
        info.alerts.push(Alert { kind: AlertKind::Origin, refuses_writes: false, what });
    }
    let table_sector_bytes = runtime.block_on(partitions::sector_bytes_on(&drive));
    drop(drive);
    // The tasks keep the drive open, and its file locked.
    runtime.drop_tasks();
    Ok((info, more, State { table_sector_bytes, is_stale: is_stale(path), ..State::default() }))
}

/// Whether a drive that no process has open is attached: `pumice detach` removes the attachment.
#[cfg(feature = "attach")]
fn is_stale(path: &Path) -> bool {
    matches!(Attachment::of(path), Ok(Some(_)))
}

#[cfg(not(feature = "attach"))]
fn is_stale(_path: &Path) -> bool {
    false
}

/// Returns the drive that a server of this user opened at `path`, where no file exists any more.
fn misplaced(path: &Path) -> Option<(Info, State)> {
    let path = std::path::absolute(path).ok()?;
    let mut servers = control::servers(&[]).into_iter().filter_map(Result::ok);
    let (service, info) = servers.find(|(service, _)| Path::new(&service.path) == path)?;
    Some((info, State::of(&path, Some(service))))
}

/// Returns the bytes that the file of a drive takes on its file system, which are fewer than its
/// length because it is sparse; `None` for a device.
pub(super) fn file_bytes(path: &Path) -> Option<u64> {
    let file = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
    Some(file.blocks() * 512)
}

/// A drive without alerts.
pub(super) const HEALTHY: &str = "healthy";

/// Returns the health of a drive, in a word or two.
pub(super) fn health(info: &Info) -> &'static str {
    match &info.alerts[..] {
        [] => HEALTHY,
        alerts if alerts.iter().any(|alert| alert.refuses_writes) => "refuses writes",
        _ => "attention",
    }
}

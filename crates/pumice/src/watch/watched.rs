//! The source of snapshots: drives of a server and its connections, on the thread that owns the
//! drives. Each question is answered between two awaits, so that all parts of the answer are from
//! one moment.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::measured::Measured;
use super::snapshot::{Connections, DriveSnapshot, Snapshot};
use crate::objects::Prices;
use pumice_drive::base::{Clock, Result};
use pumice_drive::controller::{Drive, SegmentMap, SnapshotInfo};
use pumice_drive::runtime::Runtime;
use pumice_nbd::{Disk, Roster};

/// A maintenance action on a drive; it changes nothing that a host could see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Action {
    /// Make every acknowledged write durable.
    Flush,
    /// Write a checkpoint, so that the next opening has little to read.
    Checkpoint,
}

/// A drive that can be observed.
pub(crate) trait Watched {
    /// Returns its name on the server.
    fn name(&self) -> &str;

    /// Returns a snapshot of the drive.
    fn snapshot(&self) -> DriveSnapshot;

    /// Returns its segments in at most `cells_max` cells.
    fn segment_map(&self, cells_max: u32) -> SegmentMap;

    /// Returns the snapshots of its disk, oldest first, with the space that each retains.
    fn snapshots(&self) -> Pin<Box<dyn Future<Output = Vec<SnapshotInfo>>>>;

    /// Carries out an action.
    fn act(&self, action: Action) -> Pin<Box<dyn Future<Output = Result<()>>>>;
}

/// A drive, its name and the counters of its requests.
struct WatchedDrive<D> {
    name: String,
    /// Returns the drive that is open now.
    drive: Box<dyn Fn() -> Rc<Drive>>,
    measured: Rc<Measured<D>>,
    terms: Terms,
    media_bytes_at_start: u64,
}

impl<D: Disk> Watched for WatchedDrive<D> {
    fn name(&self) -> &str {
        &self.name
    }

    fn snapshot(&self) -> DriveSnapshot {
        let drive = (self.drive)();
        let info = drive.info();
        DriveSnapshot {
            name: self.name.clone(),
            overview: drive.overview(),
            host: self.measured.stats(),
            rated_write_bytes: self.terms.rated_write_bytes,
            bucket_cost: info.bucket.as_ref().map(|bucket| self.terms.prices.cost(bucket)),
            media_bytes_at_start: self.media_bytes_at_start,
            info,
        }
    }

    fn segment_map(&self, cells_max: u32) -> SegmentMap {
        (self.drive)().segment_map(cells_max)
    }

    fn snapshots(&self) -> Pin<Box<dyn Future<Output = Vec<SnapshotInfo>>>> {
        let drive = (self.drive)();
        Box::pin(async move { drive.list_snapshots().await })
    }

    fn act(&self, action: Action) -> Pin<Box<dyn Future<Output = Result<()>>>> {
        let drive = (self.drive)();
        Box::pin(async move {
            match action {
                Action::Flush => drive.flush().await,
                Action::Checkpoint => drive.checkpoint().await,
            }
        })
    }
}

/// Properties of the storage that holds a server's drives, beyond those that it reports itself.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Terms {
    /// Rated write endurance of the medium, in bytes.
    pub(crate) rated_write_bytes: Option<u64>,
    /// Prices of a bucket.
    pub(crate) prices: Prices,
}

/// The drives of one thread of a server.
pub(crate) struct Watch {
    runtime: Runtime,
    connections: Box<dyn Fn() -> Connections>,
    roster: Arc<Roster>,
    drives: RefCell<Vec<Rc<dyn Watched>>>,
}

impl Watch {
    /// Returns a server without drives; `connections` returns its connections, and `roster` has its
    /// clients.
    pub(crate) fn new(
        runtime: Runtime,
        connections: impl Fn() -> Connections + 'static,
        roster: Arc<Roster>,
    ) -> Rc<Self> {
        let drives = RefCell::default();
        Rc::new(Self { runtime, connections: Box::new(connections), roster, drives })
    }

    /// Returns the clients of the server.
    pub(crate) fn roster(&self) -> &Roster {
        &self.roster
    }

    /// Returns the connections of the server.
    pub(crate) fn connections(&self) -> Connections {
        (self.connections)()
    }

    /// Adds a drive; `drive` returns the one that is currently open. `terms` are those of the
    /// storage that holds it.
    pub(crate) fn add<D: Disk + 'static>(
        &self,
        name: String,
        drive: impl Fn() -> Rc<Drive> + 'static,
        measured: Rc<Measured<D>>,
        terms: Terms,
    ) {
        let media_bytes_at_start = drive().info().media_bytes;
        let drive = Box::new(drive);
        let watched = WatchedDrive { name, drive, measured, terms, media_bytes_at_start };
        self.drives.borrow_mut().push(Rc::new(watched));
    }

    /// Removes a drive.
    pub(crate) fn remove(&self, name: &str) {
        self.drives.borrow_mut().retain(|drive| drive.name() != name);
    }

    /// Returns a drive by its name.
    pub(crate) fn find(&self, name: &str) -> Option<Rc<dyn Watched>> {
        self.drives.borrow().iter().find(|drive| drive.name() == name).cloned()
    }

    /// Returns a snapshot of the server with all its drives, or with the one of this name.
    pub(crate) fn snapshot(&self, only: Option<&str>) -> Snapshot {
        let now_ns = self.runtime.now_ns();
        let drives = self.drives.borrow();
        let wanted = drives.iter().filter(|drive| only.is_none_or(|only| only == drive.name()));
        let drives = wanted.map(|drive| drive.snapshot()).collect();
        Snapshot {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            now_ns,
            connections: (self.connections)(),
            drives,
            taken_ns: self.runtime.now_ns() - now_ns,
        }
    }
}

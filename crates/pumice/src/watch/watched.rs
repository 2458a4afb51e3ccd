//! Where snapshots come from: the drives of a server and its connections, on the thread that owns
//! them. Each question is answered in one go, between two awaits, so that its parts belong to one
//! moment.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;

use serde::{Deserialize, Serialize};

use super::measured::Measured;
use super::snapshot::{Connections, DriveSnapshot, Snapshot};
use pumice_drive::base::{Clock, Result};
use pumice_drive::controller::{Drive, SegmentMap};
use pumice_drive::media::Medium;
use pumice_drive::runtime::Runtime;

/// Something that can be done to a drive from outside, beside what hosts do: it changes nothing
/// that a host could see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Action {
    /// Make everything acknowledged durable.
    Flush,
    /// Write a checkpoint, so that the next opening has little to read.
    Checkpoint,
}

/// A drive that can be asked how it is.
pub(crate) trait Watched {
    /// Its name on the server.
    fn name(&self) -> &str;

    /// The drive now.
    fn snapshot(&self) -> DriveSnapshot;

    /// Its segments in at most `cells_max` cells.
    fn segment_map(&self, cells_max: u32) -> SegmentMap;

    /// Does something.
    fn act(&self, action: Action) -> Pin<Box<dyn Future<Output = Result<()>>>>;
}

/// A drive, its name and what hosts do with it.
struct WatchedDrive<M> {
    name: String,
    drive: Rc<Drive<M, Runtime>>,
    measured: Rc<Measured<Drive<M, Runtime>>>,
    rated_write_bytes: Option<u64>,
    media_bytes_at_start: u64,
}

impl<M: Medium + 'static> Watched for WatchedDrive<M> {
    fn name(&self) -> &str {
        &self.name
    }

    fn snapshot(&self) -> DriveSnapshot {
        DriveSnapshot {
            name: self.name.clone(),
            info: self.drive.info(),
            overview: self.drive.overview(),
            host: self.measured.stats(),
            rated_write_bytes: self.rated_write_bytes,
            media_bytes_at_start: self.media_bytes_at_start,
        }
    }

    fn segment_map(&self, cells_max: u32) -> SegmentMap {
        self.drive.segment_map(cells_max)
    }

    fn act(&self, action: Action) -> Pin<Box<dyn Future<Output = Result<()>>>> {
        let drive = self.drive.clone();
        Box::pin(async move {
            match action {
                Action::Flush => drive.flush().await,
                Action::Checkpoint => drive.checkpoint().await,
            }
        })
    }
}

/// The drives of one server.
pub(crate) struct Watch {
    runtime: Runtime,
    connections: Box<dyn Fn() -> Connections>,
    drives: RefCell<Vec<Rc<dyn Watched>>>,
}

impl Watch {
    /// A server without drives, whose connections are what `connections` says.
    pub(crate) fn new(
        runtime: Runtime,
        connections: impl Fn() -> Connections + 'static,
    ) -> Rc<Self> {
        let drives = RefCell::default();
        Rc::new(Self { runtime, connections: Box::new(connections), drives })
    }

    /// Adds a drive, and gives its number. `rated_write_bytes` is what may be written to its medium
    /// over its life.
    pub(crate) fn add<M: Medium + 'static>(
        &self,
        name: String,
        drive: Rc<Drive<M, Runtime>>,
        measured: Rc<Measured<Drive<M, Runtime>>>,
        rated_write_bytes: Option<u64>,
    ) -> usize {
        let media_bytes_at_start = drive.info().media_bytes;
        let watched =
            WatchedDrive { name, drive, measured, rated_write_bytes, media_bytes_at_start };
        self.drives.borrow_mut().push(Rc::new(watched));
        self.drives.borrow().len() - 1
    }

    /// A drive by its name.
    pub(crate) fn find(&self, name: &str) -> Option<Rc<dyn Watched>> {
        self.drives.borrow().iter().find(|drive| drive.name() == name).cloned()
    }

    /// The server with all its drives, or with one.
    pub(crate) fn snapshot(&self, only: Option<usize>) -> Snapshot {
        let now_ns = self.runtime.now_ns();
        let drives = self.drives.borrow();
        let wanted = drives.iter().enumerate();
        let wanted = wanted.filter(|(number, _)| only.is_none_or(|only| only == *number));
        let drives = wanted.map(|(_, drive)| drive.snapshot()).collect();
        Snapshot {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            now_ns,
            connections: (self.connections)(),
            drives,
            taken_ns: self.runtime.now_ns() - now_ns,
        }
    }
}

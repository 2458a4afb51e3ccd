//! The exports of a drive's snapshots, which come and go while it is served.
//!
//! `DRIVE@NAME`, read-only, under the rules, limits and certificates of the drive. Names are
//! composed here and never parsed, since names of drives may contain an `@`. Bookmarks are not
//! exports; clients can only compare with them.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;

use async_channel::{Receiver, Sender, bounded};

use super::disk::{ServedDisk, Views};
use crate::control::SnapshotExports;
use crate::watch::Measured;
use pumice_drive::Uuid;
use pumice_drive::base::units::format_size;
use pumice_drive::base::{Error, ErrorKind, Result};
use pumice_drive::controller::Drive;
use pumice_drive::controller::SnapshotInfo;
use pumice_drive::runtime::Runtime;
use pumice_nbd::{Announcement, Earlier, Export, Lineage, Server};

/// The snapshots of a drive, for another thread to offer.
pub(super) struct Notice {
    /// Name of the drive's export.
    of: String,
    snapshots: Vec<Announcement>,
    /// Dropped when they are offered.
    _done: Sender<()>,
}

/// Sends notices to the server that clients connect to.
pub(super) type Front = Sender<Notice>;

/// The exports of the snapshots of one drive.
pub(super) struct Snapshots {
    runtime: Runtime,
    drive: Rc<Drive>,
    views: Rc<Views>,
    /// The export of the drive.
    drive_export: Rc<Export>,
    server: Rc<Server>,
    exports: RefCell<Vec<(SnapshotInfo, Rc<Export>)>>,
    front: RefCell<Option<Front>>,
    /// Whether the drive is also a virtual machine's device.
    has_device: Cell<bool>,
}

impl Snapshots {
    /// Returns the exports for a drive, none of which are offered yet.
    pub(super) fn of(
        runtime: Runtime,
        (drive, views): (Rc<Drive>, Rc<Views>),
        drive_export: Rc<Export>,
        server: Rc<Server>,
    ) -> Rc<Self> {
        let (exports, front) = (RefCell::default(), RefCell::default());
        let has_device = Cell::default();
        Rc::new(Self { runtime, drive, views, drive_export, server, exports, front, has_device })
    }

    /// Notes that a virtual machine, which is no client of the server, may use the drive.
    #[cfg(feature = "vhost")]
    pub(super) fn note_device(&self) {
        self.has_device.set(true);
    }

    /// Keeps a server on another thread informed.
    pub(super) fn inform(&self, front: Option<Front>) {
        *self.front.borrow_mut() = front;
    }

    /// Offers the snapshots of the drive, now and whenever the drive has deleted some on its own.
    pub(super) async fn show(self: &Rc<Self>) {
        self.refresh().await;
        let (drive, snapshots) = (self.drive.clone(), Rc::downgrade(self));
        self.runtime.spawn(async move {
            let mut seen = 0;
            // Runs until the drive closes, and then releases it.
            while let Some(count) = drive.snapshots_given_up(seen).await {
                let Some(snapshots) = snapshots.upgrade() else { return };
                snapshots.refresh().await;
                seen = count;
            }
        });
    }

    /// Offers the current snapshots of the drive, and no others.
    async fn refresh(&self) {
        let found = self.drive.snapshots();
        let is_there = |info: &SnapshotInfo| {
            let key = (info.sequence, &info.name, info.is_bookmark);
            found.iter().any(|found| (found.sequence, &found.name, found.is_bookmark) == key)
        };
        let gone: Vec<_> =
            self.exports.borrow_mut().extract_if(.., |(info, _)| !is_there(info)).collect();
        for (info, export) in gone {
            // Clients that still read it get errors.
            self.views.remove(&info.name);
            let _ = self.server.retract(&export).await;
        }
        for info in found {
            let is_known = self.exports.borrow().iter().any(|(known, _)| known.name == info.name);
            if !is_known {
                self.offer(info);
            }
        }
        let Some(front) = self.front.borrow().clone() else { return };
        let (done, is_done) = bounded(1);
        let snapshots = self.announcements();
        let notice = Notice { of: self.drive_export.name.clone(), snapshots, _done: done };
        // A server that has ended offers nothing.
        let _ = front.send(notice).await;
        let _ = is_done.recv().await;
    }

    fn announcements(&self) -> Vec<Announcement> {
        self.exports.borrow().iter().map(|(_, export)| Announcement::of(export)).collect()
    }

    fn offer(&self, info: SnapshotInfo) {
        let name = format!("{}@{}", self.drive_export.name, info.name);
        let size = format_size(info.size_bytes);
        let description = format!("snapshot {} of {}, {size}", info.name, self.drive_export.name);
        let view = self.views.add(&info.name, info.size_bytes);
        let disk = Measured::new(Rc::new(ServedDisk::Snapshot(view)), self.runtime.clone());
        let earlier = Earlier {
            of: self.drive_export.name.clone(),
            name: info.name.clone(),
            sequence: info.sequence,
            is_readable: !info.is_bookmark,
        };
        let export = self.drive_export.of_earlier(name, description, Rc::new(disk), earlier);
        let export = Rc::new(export.with_lineage(lineage(self.drive.uuid(), info.sequence)));
        if self.server.add(export.clone()) {
            self.exports.borrow_mut().push((info, export));
        } else {
            let export = &export.name;
            tracing::warn!(export, "a snapshot is not served: another export has its name");
        }
    }

    /// Stops offering a snapshot, so that it can be deleted.
    async fn withdraw(&self, name: &str) -> Result<()> {
        let found = self.exports.borrow().iter().find(|(info, _)| info.name == name).cloned();
        let Some((_, export)) = found else { return Ok(()) };
        if let Err(clients) = self.server.retract(&export).await {
            let clients =
                if clients == 1 { "a client".into() } else { format!("{clients} clients") };
            let what = format!(
                "the snapshot {name} is being read by {clients} of the server: disconnect them \
                 first, see `pumice clients`"
            );
            return Err(Error::new(ErrorKind::Busy, what));
        }
        self.exports.borrow_mut().retain(|(info, _)| info.name != name);
        self.views.remove(name);
        Ok(())
    }
}

impl SnapshotExports for Snapshots {
    fn withdraw<'a>(&'a self, name: &'a str) -> Pin<Box<dyn Future<Output = Result<()>> + 'a>> {
        Box::pin(self.withdraw(name))
    }

    fn until_unused(&self) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        Box::pin(self.server.until_unused(&self.drive_export.name))
    }

    fn check_unused(&self) -> Result<()> {
        let busy = |what| Err(Error::new(ErrorKind::Busy, what));
        if self.has_device.get() {
            let what = "it is a virtual machine's device, whose guest may have cached its data: \
                        end its server, then roll it back";
            return busy(what.to_owned());
        }
        match self.server.users_of(&self.drive_export.name) {
            0 => Ok(()),
            clients => {
                let some = match clients {
                    1 => "a client".to_owned(),
                    _ => format!("{clients} clients"),
                };
                busy(format!(
                    "it is in use by {some}, which may have cached its data: disconnect first, \
                     see `pumice clients`, then roll it back"
                ))
            }
        }
    }

    fn refresh(&self) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        Box::pin(self.refresh())
    }
}

/// Returns the position of a snapshot among the states of the drive with this identity.
pub(super) fn lineage(drive: Uuid, sequence: u64) -> Lineage {
    // No other snapshot of the drive has this number, whatever its name.
    let state = format!("{drive} snapshot {sequence}");
    Lineage { follows: state.clone(), leaves: state }
}

/// Returns a channel through which a thread of drives informs this server; a task handles the
/// notices.
pub(super) fn front(runtime: &Runtime, server: &Rc<Server>, thread: usize) -> Front {
    let (front, notices) = bounded(1);
    runtime.spawn(take(server.clone(), thread, notices));
    front
}

async fn take(server: Rc<Server>, thread: usize, notices: Receiver<Notice>) {
    while let Ok(Notice { of, snapshots, _done }) = notices.recv().await {
        server.announce_earlier(thread, &of, snapshots);
    }
}

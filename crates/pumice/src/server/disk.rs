//! The disks that `pumice serve` serves: a drive, a snapshot of an open drive, or a drive that
//! another machine writes.
//!
//! A snapshot is opened by the first request, and closed some time after the last:
//!
//! ```text
//! closed --first request--> open --10 to 20 s without requests, or others need the room--> closed
//!    \______________ shut: the snapshot is being deleted, or the drive closed ______________/
//! ```
//!
//! Bounded: [`OPEN_MAX`] snapshots of a drive are open at a time.

use std::cell::{Cell, RefCell};
use std::ops::Deref;
use std::rc::{Rc, Weak};

use super::follow::{self, Follower, Pinned};
use pumice_drive::base::wait::WaitQueue;
use pumice_drive::base::{Clock, Error, ErrorKind, Result};
use pumice_drive::controller::{Compared, Drive, OpenOptions};
use pumice_drive::runtime::Runtime;
use pumice_nbd::Disk;
use pumice_nbd::disk::{Allocation, Change, Durability, Extent};

/// Maximum number of open snapshots of one drive. Arbitrary: more than are compared or copied at a
/// time; each takes about 4 MiB, and another 4 MiB for each TiB of the disk.
const OPEN_MAX: usize = 16;

/// Memory for the map of each snapshot, which is mostly read in order: enough for one GiB of the
/// disk.
const MAP_CACHE_BYTES: usize = 4 << 20;

/// Interval of checks for whether a snapshot is still read. Arbitrary.
const LOOK_NS: u64 = 10_000_000_000;

/// A disk of an export.
pub(crate) enum ServedDisk {
    /// The disk of a drive, and the snapshots with which it may be compared.
    Drive(Rc<Drive>, Rc<Views>),
    /// A snapshot.
    Snapshot(Rc<View>),
    /// A drive that another machine writes.
    Followed(Rc<Follower>),
    /// A followed drive at one moment.
    Pinned(Rc<Follower>, Pinned),
}

/// The snapshots of one open drive that are served.
pub(crate) struct Views {
    drive: Rc<Drive>,
    runtime: Runtime,
    all: RefCell<Vec<Rc<View>>>,
}

/// A snapshot, which is opened on demand.
pub(crate) struct View {
    views: Weak<Views>,
    name: String,
    size_bytes: u64,
    open: RefCell<Option<Rc<Drive>>>,
    is_opening: Cell<bool>,
    opened: WaitQueue,
    /// Requests under way.
    users: Cell<u32>,
    /// Whether there was a request since the last check.
    was_used: Cell<bool>,
    is_shut: Cell<bool>,
}

/// An open snapshot, for one request.
struct Lent {
    view: Rc<View>,
    drive: Rc<Drive>,
}

impl Drop for Lent {
    fn drop(&mut self) {
        let others = self.view.users.get().checked_sub(1);
        self.view.users.set(others.expect("a request ends once"));
    }
}

/// Marks a snapshot as being opened, until this is dropped.
struct Opening<'a>(&'a View);

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        self.0.is_opening.set(false);
        self.0.opened.wake_all();
    }
}

impl Views {
    /// Returns the views of a drive, none of which are served yet.
    pub(crate) fn of(drive: Rc<Drive>, runtime: Runtime) -> Rc<Self> {
        Rc::new(Self { drive, runtime, all: RefCell::default() })
    }

    /// Serves a snapshot that the drive has.
    pub(crate) fn add(self: &Rc<Self>, name: &str, size_bytes: u64) -> Rc<View> {
        let view = Rc::new(View {
            views: Rc::downgrade(self),
            name: name.to_owned(),
            size_bytes,
            open: RefCell::default(),
            is_opening: Cell::default(),
            opened: WaitQueue::default(),
            users: Cell::default(),
            was_used: Cell::default(),
            is_shut: Cell::default(),
        });
        self.remove(name);
        self.all.borrow_mut().push(view.clone());
        view
    }

    /// Closes a snapshot permanently, so that it can be deleted.
    pub(crate) fn remove(&self, name: &str) {
        let gone: Vec<_> = self.all.borrow_mut().extract_if(.., |view| view.name == name).collect();
        gone.iter().for_each(|view| view.shut());
    }

    /// Closes all snapshots permanently, so that the drive can be released.
    pub(crate) fn remove_all(&self) {
        let gone = self.all.take();
        gone.iter().for_each(|view| view.shut());
    }

    fn find(&self, name: &str) -> Result<Rc<View>> {
        let found = self.all.borrow().iter().find(|view| view.name == name).cloned();
        found.ok_or_else(|| gone(name))
    }

    /// Makes room to open another snapshot.
    fn make_room(&self) -> Result<()> {
        let count = || self.all.borrow().iter().filter(|view| view.takes_room()).count();
        // The snapshot that is being opened counts.
        if count() > OPEN_MAX {
            for view in self.all.borrow().iter() {
                view.close_if_idle();
            }
        }
        if count() > OPEN_MAX {
            let what = format!("{OPEN_MAX} snapshots of the drive are being read");
            return Err(Error::new(ErrorKind::Busy, what));
        }
        Ok(())
    }
}

fn gone(name: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("the snapshot {name} no longer exists"))
}

impl View {
    /// Returns the snapshot, open for one request.
    async fn lend(self: &Rc<Self>) -> Result<Lent> {
        loop {
            if self.is_shut.get() {
                return Err(gone(&self.name));
            }
            if let Some(drive) = &*self.open.borrow() {
                self.users.set(self.users.get() + 1);
                self.was_used.set(true);
                return Ok(Lent { view: self.clone(), drive: drive.clone() });
            }
            if self.is_opening.get() {
                self.opened.wait_for(|| (!self.is_opening.get()).then_some(())).await;
            } else {
                // Rare, and boxed so that the other requests are smaller.
                Box::pin(self.open()).await?;
            }
        }
    }

    async fn open(self: &Rc<Self>) -> Result<()> {
        let Some(views) = self.views.upgrade() else { return Err(gone(&self.name)) };
        self.is_opening.set(true);
        let _opening = Opening(self);
        views.make_room()?;
        let options = OpenOptions {
            map_cache_bytes: MAP_CACHE_BYTES,
            read_cache_bytes: 0,
            // A bookmark for comparison; its data is never requested.
            incomplete: true,
            ..OpenOptions::default()
        };
        let opened = views.drive.view(&self.name, options).await?;
        // It may have been closed in the meantime.
        if !self.is_shut.get() {
            *self.open.borrow_mut() = Some(opened);
            let (runtime, view) = (views.runtime.clone(), Rc::downgrade(self));
            views.runtime.spawn(close_later(runtime, view));
        }
        Ok(())
    }

    fn takes_room(&self) -> bool {
        self.is_opening.get() || self.open.borrow().is_some()
    }

    /// Closes the snapshot if there are no requests; returns whether there are none.
    fn close_if_idle(&self) -> bool {
        let is_idle = self.users.get() == 0;
        if is_idle {
            self.open.take();
        }
        is_idle
    }

    fn shut(&self) {
        self.is_shut.set(true);
        self.open.take();
    }
}

/// Closes a snapshot that is no longer read.
async fn close_later(runtime: Runtime, view: Weak<View>) {
    loop {
        runtime.sleep_ns(LOOK_NS).await;
        let Some(view) = view.upgrade() else { return };
        if !view.takes_room() || (!view.was_used.replace(false) && view.close_if_idle()) {
            return;
        }
    }
}

/// The disk that carries out a request.
enum Target<'a> {
    Drive(&'a Drive),
    View(Lent),
    Pinned(Pinned),
}

impl Deref for Target<'_> {
    type Target = Drive;

    #[inline]
    fn deref(&self) -> &Drive {
        match self {
            Self::Drive(drive) => drive,
            Self::View(lent) => &lent.drive,
            Self::Pinned(pinned) => pinned.drive(),
        }
    }
}

impl ServedDisk {
    #[inline]
    async fn target(&self) -> Result<Target<'_>> {
        match self {
            Self::Drive(drive, _) => Ok(Target::Drive(drive)),
            Self::Snapshot(view) => Ok(Target::View(view.lend().await?)),
            Self::Followed(follower) => Ok(Target::Pinned(follower.pin())),
            Self::Pinned(_, pinned) => Ok(Target::Drive(pinned.drive())),
        }
    }

    /// Returns the drive, for changes.
    #[inline]
    fn writable(&self) -> Result<&Drive> {
        match self {
            Self::Drive(drive, _) => Ok(drive),
            Self::Snapshot(view) => {
                let what = format!("{} is a snapshot, which can only be read", view.name);
                Err(Error::new(ErrorKind::ReadOnly, what))
            }
            Self::Followed(_) | Self::Pinned(..) => Err(follow::refusal()),
        }
    }

    /// Returns the earlier snapshot of this name.
    fn earlier(&self, name: &str) -> Result<Rc<View>> {
        match self {
            Self::Drive(_, views) => views.find(name),
            Self::Snapshot(view) => view.views.upgrade().ok_or_else(|| gone(name))?.find(name),
            Self::Followed(_) | Self::Pinned(..) => Err(gone(name)),
        }
    }
}

impl Disk for ServedDisk {
    fn ending(&self) {
        if let Self::Drive(drive, _) = self {
            drive.announce_close();
        }
    }

    fn size_bytes(&self) -> u64 {
        match self {
            Self::Drive(drive, _) => drive.size_bytes(),
            Self::Snapshot(view) => view.size_bytes,
            Self::Followed(follower) => follower.drive().size_bytes(),
            Self::Pinned(_, pinned) => pinned.drive().size_bytes(),
        }
    }

    fn is_read_only(&self) -> bool {
        match self {
            Self::Drive(drive, _) => drive.is_read_only(),
            Self::Snapshot(_) | Self::Followed(_) | Self::Pinned(..) => true,
        }
    }

    fn pinned(&self) -> Option<Self> {
        match self {
            Self::Followed(follower) => Some(Self::Pinned(follower.clone(), follower.pin())),
            Self::Drive(..) | Self::Snapshot(_) | Self::Pinned(..) => None,
        }
    }

    async fn moves_on(&self) -> bool {
        match self {
            Self::Pinned(follower, pinned) => follower.moves_on(pinned).await,
            Self::Drive(..) | Self::Snapshot(_) | Self::Followed(_) => false,
        }
    }

    async fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        if let Self::Followed(follower) = self {
            // Larger than the other futures, and rare.
            return Box::pin(follower.read(offset, out)).await;
        }
        self.target().await?.read(offset, out).await
    }

    #[inline]
    fn try_write(&self, offset: u64, data: &[u8]) -> Option<Result<()>> {
        match self {
            Self::Drive(drive, _) => drive.try_write(offset, data),
            Self::Snapshot(_) | Self::Followed(_) | Self::Pinned(..) => None,
        }
    }

    async fn write(&self, offset: u64, data: &[u8], durability: Durability) -> Result<()> {
        Disk::write(self.writable()?, offset, data, durability).await
    }

    async fn flush(&self) -> Result<()> {
        match self {
            Self::Drive(drive, _) => drive.flush().await,
            // Its data was durable before it existed.
            Self::Snapshot(_) | Self::Followed(_) | Self::Pinned(..) => Ok(()),
        }
    }

    async fn trim(&self, offset: u64, len: u64, durability: Durability) -> Result<()> {
        Disk::trim(self.writable()?, offset, len, durability).await
    }

    async fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        allocation: Allocation,
        durability: Durability,
    ) -> Result<()> {
        Disk::write_zeroes(self.writable()?, offset, len, allocation, durability).await
    }

    async fn prefetch(&self, offset: u64, len: u64) -> Result<()> {
        self.target().await?.prefetch(offset, len).await
    }

    async fn extents(
        &self,
        offset: u64,
        len: u64,
        visit: impl FnMut(Extent) -> bool,
    ) -> Result<()> {
        if let Self::Followed(follower) = self {
            return Box::pin(follower.extents(offset, len, visit)).await;
        }
        self.target().await?.extents(offset, len, visit).await
    }

    async fn changes(
        &self,
        since: &str,
        offset: u64,
        len: u64,
        mut visit: impl FnMut(Change) -> bool,
    ) -> Result<()> {
        let earlier = self.earlier(since)?.lend().await?;
        let visit =
            |Compared { bytes, changed }| visit(Change { bytes, is_changed: changed.is_some() });
        self.target().await?.compare(&earlier.drive, offset, len, visit).await
    }
}

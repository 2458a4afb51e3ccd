//! `pumice serve --follow`: a drive in a bucket, which another machine writes, for reading.
//!
//! ```text
//! every few seconds, or when something is gone:
//!   a newer commit that counts? -> open the drive in it -> the image for requests from now on
//!                                                          the one before: closed after its last
//! ```
//!
//! An image is a drive that is open read-only, in a state that a crash at the moment of its commit
//! could have left. A request uses one image, from its beginning to its end. If the writer deletes
//! objects of an image, a request fails there and is carried out again in the next image.
//!
//! Claims nothing and writes nothing.

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::{Rc, Weak};

use futures_util::future::select;

use crate::keys;
use crate::objects;
use crate::open;
use pumice_drive::base::wait::WaitQueue;
use pumice_drive::base::{Clock, Error, ErrorKind, Result};
use pumice_drive::codec::Workers;
use pumice_drive::controller::{Drive, Extent, OpenOptions};
use pumice_drive::runtime::Runtime;

/// Maximum number of images that cannot be opened before the next check, because the writer has
/// deleted their objects. Arbitrary.
const ATTEMPTS: u32 = 4;

/// Pause before the next check while objects are gone: a newer commit may soon appear.
const STALE_PAUSE_NS: u64 = 500_000_000;

/// Time that a request waits for the next image. Longer than a machine takes for a take-over,
/// during which it is not certain which commits count; as long as hosts wait for a disk.
const PATIENCE_NS: u64 = 30_000_000_000;

/// Maximum number of extents listed in one image, so that after a failure all of them can be listed
/// again.
const EXTENTS_MAX: usize = 4096;

/// The settings with which a follower opens an image.
#[derive(Clone)]
pub(super) struct Following {
    pub(super) options: OpenOptions,
    pub(super) workers: Option<Workers>,
    /// Interval of checks for a newer commit.
    pub(super) every_ns: u64,
}

/// A drive that is followed.
pub(crate) struct Follower {
    runtime: Runtime,
    following: Following,
    current: RefCell<Rc<Image>>,
    /// Wakes the next check.
    wanted: WaitQueue,
    is_wanted: Cell<bool>,
    /// Wakes requests that wait for the next image.
    moved: WaitQueue,
    is_over: Cell<bool>,
}

struct Image {
    drive: Rc<Drive>,
    /// Requests in progress.
    users: Cell<u32>,
    left: WaitQueue,
}

/// An image for one request.
pub(crate) struct Pinned(Rc<Image>);

impl Pinned {
    fn new(image: &Rc<Image>) -> Self {
        image.users.set(image.users.get() + 1);
        Self(image.clone())
    }

    /// Returns the drive in this image.
    pub(crate) fn drive(&self) -> &Drive {
        &self.0.drive
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let others = self.0.users.get().checked_sub(1);
        self.0.users.set(others.expect("a request ends once"));
        self.0.left.wake_all();
    }
}

impl Follower {
    /// Follows a drive that was opened read-only in the newest commit.
    pub(super) fn start(runtime: &Runtime, drive: Rc<Drive>, following: Following) -> Rc<Self> {
        let current = RefCell::new(Self::image(drive));
        let follower = Rc::new(Self {
            runtime: runtime.clone(),
            following,
            current,
            wanted: WaitQueue::default(),
            is_wanted: Cell::default(),
            moved: WaitQueue::default(),
            is_over: Cell::default(),
        });
        runtime.spawn(look_often(runtime.clone(), Rc::downgrade(&follower)));
        follower
    }

    fn image(drive: Rc<Drive>) -> Rc<Image> {
        Rc::new(Image { drive, users: Cell::default(), left: WaitQueue::default() })
    }

    /// Returns the drive in the newest image.
    pub(super) fn drive(&self) -> Rc<Drive> {
        self.current.borrow().drive.clone()
    }

    /// Returns the newest image, for one request.
    pub(crate) fn pin(&self) -> Pinned {
        Pinned::new(&self.current.borrow())
    }

    /// Stops following: no newer commit is opened.
    pub(super) fn end(&self) {
        self.is_over.set(true);
        self.wanted.wake_all();
        self.moved.wake_all();
    }

    /// Waits for another image after a request has failed in `pinned`. Returns false if no object
    /// of that image is gone, or if no other image is opened in time.
    pub(crate) async fn moves_on(&self, pinned: &Pinned) -> bool {
        let is_another = || !Rc::ptr_eq(&self.current.borrow(), &pinned.0);
        if is_another() {
            return true;
        }
        if !objects::is_stale(pinned.drive()) {
            return false;
        }
        self.is_wanted.set(true);
        self.wanted.wake_all();
        let moved = || (is_another() || self.is_over.get()).then_some(());
        self.runtime.timeout(PATIENCE_NS, self.moved.wait_for(moved)).await;
        is_another()
    }

    /// Reads in one image.
    pub(crate) async fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        loop {
            let pinned = self.pin();
            match pinned.drive().read(offset, out).await {
                Err(_) if self.moves_on(&pinned).await => {}
                result => return result,
            }
        }
    }

    /// Lists the extents of one image, as [`pumice_nbd::Disk::extents`]: up to [`EXTENTS_MAX`].
    pub(crate) async fn extents(
        &self,
        offset: u64,
        len: u64,
        visit: impl FnMut(Extent) -> bool,
    ) -> Result<()> {
        let mut found = Vec::new();
        loop {
            found.clear();
            let pinned = self.pin();
            let note = |extent| {
                found.push(extent);
                found.len() < EXTENTS_MAX
            };
            match pinned.drive().extents(offset, len, note).await {
                Ok(()) => break,
                Err(error) if !self.moves_on(&pinned).await => return Err(error),
                Err(_) => {}
            }
        }
        let _ = found.into_iter().all(visit);
        Ok(())
    }

    /// Waits for an image whose objects all existed when it was opened.
    ///
    /// # Errors
    /// `Busy` if there is none in time; errors of [`Follower::look`].
    pub(super) async fn settle(&self) -> Result<()> {
        let end_ns = self.runtime.now_ns() + PATIENCE_NS;
        while objects::is_stale(&self.drive()) {
            if self.runtime.now_ns() >= end_ns {
                let what = "the writer deletes objects faster than the drive is opened here: let \
                            it commit less often (--lag) or checkpoint more often (--checkpoint)";
                return Err(Error::new(ErrorKind::Busy, what));
            }
            self.runtime.sleep_ns(STALE_PAUSE_NS).await;
            self.look().await?;
        }
        Ok(())
    }

    /// Moves on to the newest commit, if there is a newer one; returns whether it did.
    async fn look(&self) -> Result<bool> {
        let mut failed = None;
        for _ in 0..ATTEMPTS {
            let current = self.drive();
            let Some(storage) = objects::newer(&current).await? else { break };
            match self.open(storage).await {
                // Another check may have advanced further in the meantime.
                Ok(drive)
                    if objects::is_stale(&drive)
                        || self.is_over.get()
                        || !Rc::ptr_eq(&current, &self.drive()) =>
                {
                    drive.close().await?;
                }
                Ok(drive) => {
                    self.move_on(drive);
                    return Ok(true);
                }
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(false), Err)
    }

    async fn open(&self, storage: crate::storage::Storage) -> Result<Rc<Drive>> {
        let storage = keys::unlock(storage).await?;
        let options = self.following.options;
        let drive = open::on_medium(&self.runtime, None, storage, options).await?;
        self.following.workers.iter().for_each(|workers| drive.use_workers(workers.clone()));
        Ok(drive)
    }

    fn move_on(&self, drive: Rc<Drive>) {
        let before = self.current.replace(Self::image(drive));
        self.runtime.spawn(async move {
            before.left.wait_for(|| (before.users.get() == 0).then_some(())).await;
            // A reader has nothing to lose.
            let _ = before.drive.close().await;
        });
        self.moved.wake_all();
    }
}

/// Checks for newer commits until following ends.
async fn look_often(runtime: Runtime, follower: Weak<Follower>) {
    let mut trouble = false;
    loop {
        let Some(follower) = follower.upgrade() else { return };
        let is_stale = objects::is_stale(&follower.drive());
        let every_ns = follower.following.every_ns;
        let pause_ns = if is_stale { every_ns.min(STALE_PAUSE_NS) } else { every_ns };
        // A waiting request brings forward the first check only.
        let is_wanted = || (follower.is_wanted.take() || follower.is_over.get()).then_some(());
        select(pin!(runtime.sleep_ns(pause_ns)), pin!(follower.wanted.wait_for(is_wanted))).await;
        if follower.is_over.get() {
            return;
        }
        match follower.look().await {
            Ok(_) => trouble = false,
            Err(error) if !std::mem::replace(&mut trouble, true) => {
                let error = error.chain();
                tracing::warn!(error, "cannot move on to a newer commit: trying again");
            }
            Err(_) => {}
        }
    }
}

/// Returns the error for a write to a followed drive.
pub(super) fn refusal() -> Error {
    Error::new(ErrorKind::ReadOnly, "the drive is read-only here: another machine writes it")
}

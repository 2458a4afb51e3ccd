//! The origin of a clone: a snapshot of another drive.
//!
//! ```text
//! read of the clone -> its map -> a frame, a fill: its own
//!                              -> a hole, below the origin's blocks -> a read of the origin
//! ```
//!
//! The origin is a separate read-only drive, built from the retained root of its snapshot like a
//! view. Another process may have it open and write to it at the same time: its superblocks are
//! then read while they are written, so a failed opening is retried. Frames that the snapshot needs
//! stay in place, because the origin lists the clone, so no request to that process is needed.
//! Origins of origins are set one by one. A clone has no holes of its own below the origin's
//! blocks: a trim there becomes a fill.

use std::pin::Pin;
use std::rc::Rc;

use uuid::Uuid;

use super::super::options::OpenOptions;
use super::super::recovery::Reader;
use super::Drive;
use super::superblocks;
use crate::base::clock::AnyClock;
use crate::base::units::BLOCK_BYTES;
use crate::base::{Error, ErrorKind, Lba, Result, SeqNo};
use crate::format::{Origin, Superblock};
use crate::media::AnyMedium;

/// Attempts to open an origin, whose superblocks may be changing: a change requires two writes and
/// syncs.
const ATTEMPTS: u32 = 6;

/// Pause between two attempts.
const PAUSE_NS: u64 = 50_000_000;

/// Returns the identity of the drive on a medium, and the origin from which its holes read if it is
/// a clone.
///
/// # Errors
/// `NotADrive`, `Unsupported`, `Corrupt` or `Medium`.
pub async fn origin_on(medium: &dyn AnyMedium) -> Result<(Uuid, Option<Origin>)> {
    let superblock = superblocks::load_any(medium).await?.stored.superblock;
    Ok((superblock.uuid, superblock.origin))
}

/// Returns whether the disk on a medium reads nothing from an origin. Its snapshots may still read
/// from one.
///
/// # Errors
/// The errors of [`origin_on`].
pub async fn is_flat_on(medium: &dyn AnyMedium) -> Result<bool> {
    let superblock = superblocks::load_any(medium).await?.stored.superblock;
    Ok(superblock.origin.is_none() || superblock.flat_since > SeqNo(0))
}

impl Drive {
    /// Returns whether holes of the disk read from an origin; false after a flatten.
    pub fn reads_from_origin(&self) -> bool {
        self.core().inherited_blocks() > 0
    }

    /// Returns the origin from which the holes of this clone, or of its snapshots, read; `None` if
    /// the drive is not a clone.
    pub fn origin(&self) -> Option<Origin> {
        self.core().superblock().origin.clone()
    }

    /// Returns the number of blocks, of the `blocks` from a hole on, that read from the origin;
    /// `None` for zeroes.
    #[inline]
    pub(in super::super) fn inherited(&self, hole: Lba, blocks: u64) -> Option<u64> {
        let left = self.core().inherited_blocks().checked_sub(hole.0)?;
        (left > 0).then(|| blocks.min(left))
    }

    /// Returns the drive from which the holes of this clone read.
    ///
    /// # Errors
    /// `NotFound` if it is not open.
    pub(in super::super) fn opened_origin(&self) -> Result<&Rc<Self>> {
        self.origin.get().ok_or_else(|| {
            let what = "the block belongs to the clone's origin, which is not open";
            Error::new(ErrorKind::NotFound, what)
        })
    }

    /// Returns the drive at a `depth`: 0 for this drive, 1 for its origin, 2 for the origin's
    /// origin.
    ///
    /// # Panics
    /// If one of them is not open.
    pub(in super::super) fn origin_at(&self, depth: u32) -> &Self {
        (0..depth)
            .fold(self, |drive, _| drive.origin.get().expect("an origin that was read is open"))
    }

    /// Lets a view of a clone read from the clone's origin.
    pub(super) fn share_origin(&self, view: &Self) {
        if let Some(origin) = self.origin.get() {
            let _ = view.origin.set(origin.clone());
        }
    }

    /// Lets the holes of this clone read from `origin` until the drive is dropped. Before this
    /// call, reading them fails. Only the first call has an effect.
    ///
    /// # Errors
    /// `InvalidInput` if `origin` is not the snapshot from which the clone was made.
    pub fn set_origin(&self, origin: Rc<Self>) -> Result<()> {
        let wrong = |what| Error::new(ErrorKind::InvalidInput, what);
        let wanted = self.origin().ok_or_else(|| wrong("the drive is not a clone"))?;
        let found = origin.core().superblock().clone();
        let blocks = found.size_bytes / BLOCK_BYTES as u64;
        let is_it = found.uuid == wanted.drive && found.watermark == wanted.watermark;
        if !is_it || !origin.is_read_only() || blocks < wanted.blocks {
            return Err(wrong("this is not the snapshot from which the clone was created"));
        }
        let _ = self.origin.set(origin);
        Ok(())
    }
}

impl Drive {
    /// Fills `out` with the origin's data starting at byte `offset`. Boxed, because an origin may
    /// also be a clone.
    pub(in super::super) fn read_inherited<'a>(
        &'a self,
        offset: u64,
        out: &'a mut [u8],
    ) -> Pin<Box<dyn Future<Output = Result<()>> + 'a>> {
        Box::pin(async move {
            let read = self.opened_origin()?.read_range(offset, out, false).await;
            read.map_err(|error| {
                Error::new(error.kind(), "cannot read from the clone's origin").caused_by(error)
            })
        })
    }
}

impl Drive {
    /// Opens `origin`, the snapshot from which the drive `clone` was made, read-only, on the medium
    /// of its drive, which may be open for writing elsewhere. It has no tasks, so it need only be
    /// dropped.
    ///
    /// # Errors
    /// `InvalidInput` if the medium contains another drive, `NotFound` if the snapshot does not
    /// exist or does not list the clone; or the errors of [`Drive::open`].
    pub async fn open_origin(
        medium: Rc<dyn AnyMedium>,
        clock: Rc<dyn AnyClock>,
        clone: Uuid,
        origin: &Origin,
        options: OpenOptions,
    ) -> Result<Rc<Self>> {
        let may_pass = |error: &Error| matches!(error.kind(), ErrorKind::Corrupt);
        for _ in 1..ATTEMPTS {
            let opened =
                Self::try_open_origin(medium.clone(), clock.clone(), clone, origin, options).await;
            match opened {
                Err(error) if may_pass(&error) => {
                    tracing::debug!(error = %error.chain(), "the origin may be changing");
                    clock.sleep_ns(PAUSE_NS).await;
                }
                opened => return opened,
            }
        }
        Self::try_open_origin(medium, clock, clone, origin, options).await
    }

    async fn try_open_origin(
        medium: Rc<dyn AnyMedium>,
        clock: Rc<dyn AnyClock>,
        clone: Uuid,
        origin: &Origin,
        options: OpenOptions,
    ) -> Result<Rc<Self>> {
        let superblock: Superblock = superblocks::load(&*medium).await?.stored.superblock;
        if superblock.uuid != origin.drive {
            let what = format!("it holds drive {}, not {}", superblock.uuid, origin.drive);
            return Err(Error::new(ErrorKind::InvalidInput, what));
        }
        medium.set_geometry(superblocks::geometry(&superblock))?;
        let guid = origin.snapshot.to_string();
        let reader = Reader::new(&*medium, &superblock);
        let found = reader.snapshot_like(&guid, |entry| {
            (entry.guid, entry.watermark) == (origin.snapshot, origin.watermark)
        });
        let (snapshot, forwards) = found.await?;
        // Otherwise nothing ensures that the needed frames stay at the places in these tables.
        if snapshot.clones.iter().all(|listed| listed.drive != clone) {
            let what = format!("its snapshot {} no longer lists the clone", snapshot.name);
            return Err(Error::new(ErrorKind::NotFound, what));
        }
        let options = OpenOptions { read_ahead_bytes: 0, ..options };
        let kept = (&snapshot, forwards);
        Ok(Rc::new(Self::of_kept(medium, clock, &superblock, kept, options).await?))
    }
}

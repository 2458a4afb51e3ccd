//! Reading a snapshot of an open drive.
//!
//! A view is a separate read-only drive on another handle of the medium: its map and its segment
//! table are those of the snapshot's checkpoint, and the subsequent log is not read. The places
//! that it names do not change as long as the snapshot is read: garbage collection leaves the
//! needed frames in place, and tables name the places to which it had moved frames before.
//! Otherwise the two drives are independent. The place of the checkpoint is obtained from the open
//! drive, not from the medium, whose superblocks may be in the middle of a write. The latest copies
//! may still be in buffers of the open drive, which a view does not see: they are written to the
//! medium first. A view has no tasks, and writes nothing.

use std::rc::Rc;

use super::super::core::Forwards;
use super::super::options::OpenOptions;
use super::super::recovery::{self, Limits, not_found};
use super::Drive;
use super::open::{check_kind, settings};
use super::superblocks::StoredSuperblock;
use crate::base::clock::AnyClock;
use crate::base::{Result, SeqNo};
use crate::format::{Snapshot, Superblock};
use crate::media::AnyMedium;

/// Protects a snapshot from deletion while it is read.
pub(super) struct Lease {
    drive: Rc<Drive>,
    watermark: SeqNo,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.drive.with_core(|core| core.end_view(self.watermark));
    }
}

impl Drive {
    /// Opens a snapshot of this open drive, or a bookmark if `options` permit, read-only. As long
    /// as the result exists, the snapshot is not deleted, and this drive is not released; the
    /// result need only be dropped. Memory: the directory and the segment table, about 4 MiB for
    /// each TiB, and the caches of `options`.
    ///
    /// # Errors
    /// `NotFound`, `InvalidInput` if it is a bookmark, `Busy` while it is being deleted, `Corrupt`
    /// or `Medium` if its checkpoint cannot be read; the errors of [`Drive::flush`] if the latest
    /// copies cannot be written.
    pub async fn view(self: &Rc<Self>, name: &str, options: OpenOptions) -> Result<Rc<Self>> {
        let Some((entry, forwards)) = self.with_core(|core| core.begin_view(name))? else {
            let all = self.snapshots();
            return Err(not_found(name, all.iter().map(|info| info.name.as_str())));
        };
        let lease = Lease { drive: self.clone(), watermark: entry.watermark };
        check_kind(&entry, &options)?;
        if !entry.is_bookmark {
            self.write_out_copies(&forwards).await?;
        }
        let mut view = self.open_kept(&entry, forwards, options).await?;
        view.lease = Some(lease);
        Ok(Rc::new(view))
    }

    /// Builds the drive through which a snapshot of this one is read. The frames that it reads may
    /// be moved.
    pub(in super::super) async fn open_kept(
        &self,
        entry: &Snapshot,
        forwards: Forwards,
        options: OpenOptions,
    ) -> Result<Self> {
        let (medium, clock) = (self.medium.clone(), self.clock.clone());
        // A view has no task to read ahead.
        let options = OpenOptions { read_ahead_bytes: 0, ..options };
        let present = self.core().superblock().clone();
        let view = Self::of_kept(medium, clock, &present, (entry, forwards), options).await?;
        self.share_origin(&view);
        Ok(view)
    }

    /// Builds the drive through which a snapshot or a bookmark is read: `present` is the superblock
    /// of its drive, and `forwards` are the tables through which it is read. The new drive writes
    /// nothing.
    ///
    /// # Errors
    /// `Corrupt` or `Medium` if its checkpoint cannot be read.
    pub(super) async fn of_kept(
        medium: Rc<dyn AnyMedium>,
        clock: Rc<dyn AnyClock>,
        present: &Superblock,
        (entry, forwards): (&Snapshot, Forwards),
        options: OpenOptions,
    ) -> Result<Self> {
        let superblock = recovery::superblock_of(present, entry);
        let options = OpenOptions { read_only: true, ..options };
        let settings = settings(&*medium, &superblock, &options);
        let limits = Limits::for_map_cache(options.map_cache_bytes);
        let kept = (entry, forwards);
        let recovered = recovery::restore(&*medium, &superblock, settings, limits, kept).await?;
        // Neither slot is ever written.
        let stored = StoredSuperblock { superblock, slot: 0 };
        Self::assemble(medium, clock, options, stored, recovered, 0).await
    }

    /// Ensures that the copies to which tables lead are on the medium. Nothing that the snapshot
    /// needs is copied after this, since it is being read.
    ///
    /// # Errors
    /// The errors of [`Drive::flush`], if one of them is not on the medium.
    async fn write_out_copies(&self, forwards: &Forwards) -> Result<()> {
        let are_in_memory = {
            let core = self.core();
            let mut copies = forwards.copies();
            copies.any(|copied| core.log().in_memory(copied.address()).is_some())
        };
        if are_in_memory { self.flush_all().await } else { Ok(()) }
    }
}

//! Taking and deleting snapshots: a snapshot is a checkpoint that is retained; a deletion is a
//! checkpoint without it.
//!
//! A snapshot is the disk at a moment between two batches, so it contains only whole writes. Taking
//! a snapshot is a checkpoint with two more lists: the host waits no longer than for any other
//! checkpoint.

use uuid::Uuid;

use super::super::core::{CheckpointAction, Core, Edit, NewSnapshot};
use super::super::drive::Drive;
use super::super::recovery::not_found;
use crate::base::units::BLOCK_BYTES;
use crate::base::{Error, ErrorKind, Result, SeqNo};
use crate::format::{RegisteredClone, Snapshot, check_snapshot_name};

/// Attempts to begin before the host uses up the space again.
const ATTEMPTS: u32 = 3;

/// A snapshot, for display.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct SnapshotInfo {
    /// Its name.
    pub name: String,
    /// Its identity, which a copy on another drive shares.
    pub guid: Uuid,
    /// Number of its last batch on this drive.
    pub sequence: u64,
    /// Time at which it was taken, in seconds since 1970.
    pub created_seconds: u64,
    /// Size of the disk in bytes.
    pub size_bytes: u64,
    /// Bytes of the disk that contained data other than zeroes, without ranges dropped as a whole.
    pub mapped_bytes: u64,
    /// Bytes of the stored frames that it names; 0 for a bookmark.
    pub live_bytes: u64,
    /// Bytes that the host wrote between the previous snapshot, or the creation of the drive, and
    /// this one.
    pub written_bytes: u64,
    /// Bytes that the snapshot retains in segments that no other snapshot needs, and that are not
    /// live: its deletion frees them.
    pub alone_bytes: u64,
    /// Bytes retained in segments that this and other snapshots need, and that are not live: the
    /// maximum that it may retain together with them.
    #[serde(default)]
    pub shared_bytes: u64,
    /// Whether it is deleted before a write is refused for lack of space.
    #[serde(default)]
    pub yields: bool,
    /// Whether it is a bookmark, which contains no data and serves to find later changes.
    #[serde(default)]
    pub is_bookmark: bool,
    /// Drives that read from it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clones: Vec<RegisteredClone>,
    /// Its damage, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub damage: Option<String>,
}

/// The host's changes, suspended for a snapshot until dropped.
pub struct SuspendedChanges<'a> {
    drive: &'a Drive,
    of: Uuid,
}

impl SuspendedChanges<'_> {
    /// Waits until the snapshot has begun.
    pub async fn until_in_the_snapshot(&self) {
        let is_begun =
            |core: &mut Core| (!core.snapshots().changes_are_suspended_for(self.of)).then_some(());
        self.drive.wait_for(&self.drive.queues.progress, is_begun).await;
    }

    /// Returns whether the snapshot has begun, which also lets changes continue.
    pub fn are_in_the_snapshot(&self) -> bool {
        !self.drive.core().snapshots().changes_are_suspended_for(self.of)
    }
}

impl Drop for SuspendedChanges<'_> {
    fn drop(&mut self) {
        self.drive.with_core(|core| core.resume_changes(self.of));
    }
}

/// Marks a snapshot as being created until dropped; the capacity cannot change during this time.
struct Creating<'a>(&'a Drive);

impl Drop for Creating<'_> {
    fn drop(&mut self) {
        self.0.with_core(Core::end_snapshot);
    }
}

impl Drive {
    /// Takes a snapshot of the disk at some moment during this call. When this returns, the
    /// snapshot is durable, and so is every change before it. Writes continue during the call.
    ///
    /// The call must run to completion while the drive is open: if it is dropped while it writes
    /// superblocks, the drive accepts no writes until it is reopened.
    ///
    /// # Errors
    /// `InvalidInput` for an impossible name, `AlreadyExists`, `NoSpace` if there are too few free
    /// segments or too many snapshots, `Busy` during a resize, or if changes were suspended for the
    /// snapshot and no longer are (see [`Drive::suspend_changes`]), `ReadOnly`: nothing is changed.
    /// After `Medium` or `Poisoned` the snapshot may or may not exist, and the drive accepts no
    /// writes.
    pub async fn create_snapshot(&self, new: NewSnapshot) -> Result<SnapshotInfo> {
        check_snapshot_name(&new.name)?;
        self.with_core(|core| core.begin_snapshot(&new.name))?;
        let creating = Creating(self);
        let while_suspended = self.core().snapshots().changes_are_suspended_for(new.guid);
        // Blocks of trims that were not reaped yet would count as live, as they do if reaping
        // fails. Reaping needs space in the log, which is not available while changes are
        // suspended.
        if !self.core().snapshots().changes_are_suspended() {
            let _ = self.reap_all().await;
        }
        let mut attempt = 0;
        loop {
            attempt += 1;
            self.with_room(Core::room_for_snapshot).await?;
            match self
                .checkpoint_with(CheckpointAction::Create { new: new.clone(), while_suspended })
                .await
            {
                Err(error) if error.kind() == ErrorKind::NoSpace && attempt < ATTEMPTS => {}
                result => {
                    result?;
                    break;
                }
            }
        }
        drop(creating);
        self.snapshot_info(&new.name)
    }

    /// Deletes a snapshot. When this returns, the deletion is durable; garbage collection frees the
    /// space that only the snapshot retained. The call must run to completion, like
    /// [`Drive::create_snapshot`].
    ///
    /// # Errors
    /// `NotFound`, `Busy` while the snapshot is read (see [`Drive::view`]) or while the disk
    /// contains a part of a snapshot sent since, `ReadOnly`, `NoSpace`: nothing is changed. After
    /// `Medium` or `Poisoned` the snapshot may or may not exist, and the drive accepts no writes.
    pub async fn delete_snapshot(&self, name: &str) -> Result<SnapshotInfo> {
        let mut deleted = self.delete_snapshots(&[name]).await?;
        Ok(deleted.pop().expect("one name, one snapshot"))
    }

    /// Deletes several snapshots in one step, otherwise like [`Drive::delete_snapshot`].
    ///
    /// # Errors
    /// The errors of [`Drive::delete_snapshot`].
    pub async fn delete_snapshots(&self, names: &[&str]) -> Result<Vec<SnapshotInfo>> {
        let gone = names.iter().map(|name| self.snapshot_info(name));
        let gone = gone.collect::<Result<Vec<_>>>()?;
        if !gone.is_empty() {
            let watermarks = gone.iter().map(|info| SeqNo(info.sequence)).collect();
            self.edit(Edit::Delete(watermarks)).await?;
        }
        Ok(gone)
    }

    /// Changes the list of snapshots. When this returns, the change is durable.
    pub(super) async fn edit(&self, edit: Edit) -> Result<()> {
        let action = CheckpointAction::Edit(edit);
        self.core().check_action(&action)?;
        self.checkpoint_with(action).await
    }

    /// Turns a snapshot into a bookmark: its data is given up, as by a deletion, but its map is
    /// retained, so that later changes can still be found. A bookmark does not yield. The call must
    /// run to completion, like [`Drive::create_snapshot`].
    ///
    /// # Errors
    /// `NotFound`, `AlreadyExists` if it is a bookmark, `Corrupt` if it is damaged, `Busy` as for
    /// [`Drive::delete_snapshot`], `ReadOnly`, `NoSpace`: nothing is changed. After `Medium` or
    /// `Poisoned` it may or may not be a bookmark, and the drive accepts no writes.
    pub async fn bookmark_snapshot(&self, name: &str) -> Result<SnapshotInfo> {
        let info = self.snapshot_info(name)?;
        if info.is_bookmark {
            return Err(Error::new(ErrorKind::AlreadyExists, format!("{name} is a bookmark")));
        }
        if let Some(damage) = info.damage {
            let what =
                format!("the snapshot {name} is damaged and cannot become a bookmark: {damage}");
            return Err(Error::new(ErrorKind::Corrupt, what));
        }
        self.edit(Edit::Bookmark(SeqNo(info.sequence))).await?;
        self.snapshot_info(name)
    }

    /// Deletes a snapshot that yields because the host needs the space.
    pub(super) async fn give_up(&self, snapshot: Snapshot) -> Result<()> {
        let drive = self.uuid();
        tracing::warn!(%drive, snapshot = snapshot.name, "full: a snapshot that yields is deleted");
        self.edit(Edit::Delete(vec![snapshot.watermark])).await?;
        self.with_core(Core::note_given_up);
        self.queues.given_up.wake_all();
        Ok(())
    }

    /// Suspends writes and trims until the snapshot with the identity `of` has begun, so that
    /// snapshots of several drives show the same moment: suspend all drives before taking the first
    /// snapshot. Suspend only briefly, since the host waits.
    ///
    /// # Errors
    /// `ReadOnly` or `Poisoned`.
    pub async fn suspend_changes(&self, of: Uuid) -> Result<SuspendedChanges<'_>> {
        self.core().check_writable(0, 0)?;
        // Taking the snapshot cannot reap while changes are suspended: see `create_snapshot`.
        let _ = self.reap_all().await;
        self.with_core(|core| core.suspend_changes(of));
        Ok(SuspendedChanges { drive: self, of })
    }

    /// Returns the snapshots, oldest first. The time grows with the number of segments that each
    /// snapshot needs: see [`Drive::list_snapshots`].
    pub fn snapshots(&self) -> Vec<SnapshotInfo> {
        let core = self.core();
        (0..core.snapshots().kept().len()).filter_map(|at| info_at(&core, at)).collect()
    }

    /// Returns the snapshots, oldest first, and lets other tasks run after each, so that the
    /// figures of each are of a different moment. A snapshot taken during the call is omitted, and
    /// a deleted one may be.
    pub async fn list_snapshots(&self) -> Vec<SnapshotInfo> {
        let kept = |core: &Core, at: SeqNo| {
            core.snapshots().kept().binary_search_by_key(&at, |kept| kept.entry.watermark).ok()
        };
        let watermarks: Vec<_> =
            self.core().snapshots().kept().iter().map(|kept| kept.entry.watermark).collect();
        let mut listed = Vec::with_capacity(watermarks.len());
        for watermark in watermarks {
            listed.extend({
                let core = self.core();
                kept(&core, watermark).and_then(|at| info_at(&core, at))
            });
            self.clock.sleep_ns(0).await;
        }
        listed
    }

    pub(super) fn snapshot_info(&self, name: &str) -> Result<SnapshotInfo> {
        let core = self.core();
        let names = || core.snapshots().kept().iter().map(|kept| kept.entry.name.as_str());
        let at = names().position(|found| found == name);
        at.and_then(|at| info_at(&core, at)).ok_or_else(|| not_found(name, names()))
    }
}

/// Returns the properties of the snapshot at an index.
fn info_at(core: &Core, at: usize) -> Option<SnapshotInfo> {
    let all = core.snapshots().kept();
    let kept = all.get(at)?;
    let before = at.checked_sub(1).and_then(|before| all.get(before));
    let host_bytes_before = before.map_or(0, |before| before.entry.host_bytes);
    let entry = &kept.entry;
    let [alone_bytes, shared_bytes] =
        kept.bytes_retained(core.space(), core.superblock().segment_bytes);
    Some(SnapshotInfo {
        name: entry.name.clone(),
        guid: entry.guid,
        sequence: entry.watermark.0,
        created_seconds: entry.created_seconds,
        size_bytes: entry.size_bytes,
        mapped_bytes: entry.mapped_blocks.saturating_mul(BLOCK_BYTES as u64),
        live_bytes: if entry.is_bookmark { 0 } else { entry.live_bytes },
        written_bytes: entry.host_bytes.saturating_sub(host_bytes_before),
        alone_bytes,
        shared_bytes,
        yields: entry.yields,
        is_bookmark: entry.is_bookmark,
        clones: entry.clones.clone(),
        damage: kept.damage.clone(),
    })
}

//! Taking and deleting snapshots: checkpoints that are kept, and the first one without.
//!
//! A snapshot is the disk at a moment between two batches, so it has whole writes only. Taking one
//! is a checkpoint with two more lists: the host waits for nothing that it would not wait for in
//! any checkpoint.

use uuid::Uuid;

use super::super::core::{Core, Edit, NewSnapshot, Wish};
use super::super::drive::Drive;
use super::super::recovery::not_found;
use crate::base::{Error, ErrorKind, Result, SeqNo};
use crate::format::{RegisteredClone, Snapshot, check_snapshot_name};

/// Attempts to begin before the host fills the room again.
const ATTEMPTS: u32 = 3;

/// A snapshot, for display.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct SnapshotInfo {
    /// Its name.
    pub name: String,
    /// Its identity, which a copy on another drive shares.
    pub guid: Uuid,
    /// The last batch in it: its number on this drive.
    pub sequence: u64,
    /// When it was taken, in seconds since 1970.
    pub created_seconds: u64,
    /// Size of the disk in bytes.
    pub size_bytes: u64,
    /// Bytes of the disk that held data other than zeroes, without ranges dropped as a whole.
    pub mapped_bytes: u64,
    /// Bytes of frames that it names, as they are stored; 0 for a bookmark.
    pub live_bytes: u64,
    /// Bytes that the host wrote from the snapshot before it, or the creation of the drive, to it.
    pub written_bytes: u64,
    /// Bytes of segments that no other snapshot needs and that are not live: its deletion frees
    /// them.
    pub alone_bytes: u64,
    /// Bytes of segments that it and others need and that are not live: what it holds together with
    /// them, at most.
    #[serde(default)]
    pub shared_bytes: u64,
    /// Whether it is deleted before a write is refused for space.
    #[serde(default)]
    pub yields: bool,
    /// Whether it is a bookmark: it says what changed since, and has no data.
    #[serde(default)]
    pub is_bookmark: bool,
    /// Drives that read from it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clones: Vec<RegisteredClone>,
    /// What is wrong with it, if it is damaged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub damage: Option<String>,
}

/// The host's changes wait for a snapshot. Its end lets them go on.
pub struct HeldChanges<'a> {
    drive: &'a Drive,
    of: Uuid,
}

impl HeldChanges<'_> {
    /// Waits until the snapshot is begun.
    pub async fn until_in_the_snapshot(&self) {
        let is_begun = |core: &mut Core| (!core.snapshots().is_held_for(self.of)).then_some(());
        self.drive.wait_for(&self.drive.queues.progress, is_begun).await;
    }

    /// Returns whether the snapshot is begun, which also lets changes go on.
    pub fn are_in_the_snapshot(&self) -> bool {
        !self.drive.core().snapshots().is_held_for(self.of)
    }
}

impl Drop for HeldChanges<'_> {
    fn drop(&mut self) {
        self.drive.with_core(|core| core.let_changes_go(self.of));
    }
}

/// A snapshot is being made. Its end lets the capacity change again.
struct Creating<'a>(&'a Drive);

impl Drop for Creating<'_> {
    fn drop(&mut self) {
        self.0.with_core(Core::end_snapshot);
    }
}

impl Drive {
    /// Takes a snapshot of the disk as it is at some moment of this call. When this returns, it is
    /// durable, and so is every change before it. Writes go on meanwhile.
    ///
    /// Must run to its end while the drive is open: dropped while it writes superblocks, it leaves
    /// a drive that takes no writes until it is reopened.
    ///
    /// # Errors
    /// `InvalidInput` for an impossible name, `AlreadyExists`, `NoSpace` if there are too few free
    /// segments or too many snapshots, `Busy` during a resize, or if changes were held for it and
    /// are no longer (see [`Drive::hold_changes`]), `ReadOnly`: nothing is changed.
    /// After `Medium` or `Poisoned` the snapshot exists or does not, and the drive takes no writes.
    pub async fn create_snapshot(&self, new: NewSnapshot) -> Result<SnapshotInfo> {
        check_snapshot_name(&new.name)?;
        self.with_core(|core| core.begin_snapshot(&new.name))?;
        let creating = Creating(self);
        let while_held = self.core().snapshots().is_held_for(new.guid);
        // What a trim has not taken down yet would count as live. If that fails, it does. It takes
        // room in the log, which there is none of while changes are held.
        if !self.core().snapshots().is_held() {
            let _ = self.reap_all().await;
        }
        let mut attempt = 0;
        loop {
            attempt += 1;
            self.with_room(Core::room_for_snapshot).await?;
            match self.checkpoint_with(Wish::Create { new: new.clone(), while_held }).await {
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

    /// Deletes a snapshot. When this returns, that is durable; what only the snapshot held is given
    /// back by garbage collection. Must run to its end, as [`Drive::create_snapshot`].
    ///
    /// # Errors
    /// `NotFound`, `Busy` while it is read (see [`Drive::view`]) or the disk holds a part of what
    /// was sent since, `ReadOnly`, `NoSpace`: nothing is changed. After `Medium` or `Poisoned` the
    /// snapshot exists or does not, and the drive takes no writes.
    pub async fn delete_snapshot(&self, name: &str) -> Result<SnapshotInfo> {
        let mut deleted = self.delete_snapshots(&[name]).await?;
        Ok(deleted.pop().expect("one name, one snapshot"))
    }

    /// Deletes several snapshots in one step, as [`Drive::delete_snapshot`] one.
    ///
    /// # Errors
    /// As [`Drive::delete_snapshot`].
    pub async fn delete_snapshots(&self, names: &[&str]) -> Result<Vec<SnapshotInfo>> {
        let gone = names.iter().map(|name| self.snapshot_info(name));
        let gone = gone.collect::<Result<Vec<_>>>()?;
        if !gone.is_empty() {
            let watermarks = gone.iter().map(|info| SeqNo(info.sequence)).collect();
            self.edit(Edit::Delete(watermarks)).await?;
        }
        Ok(gone)
    }

    /// Changes the list of snapshots. When this returns, that is durable.
    pub(super) async fn edit(&self, edit: Edit) -> Result<()> {
        let wish = Wish::Edit(edit);
        self.core().check_wish(&wish)?;
        self.checkpoint_with(wish).await
    }

    /// Makes a snapshot a bookmark: its data is given up, as when it is deleted, and its map is
    /// kept, so that what changed since can still be told. A bookmark does not yield. Must run to
    /// its end, as [`Drive::create_snapshot`].
    ///
    /// # Errors
    /// `NotFound`, `AlreadyExists` if it is one, `Corrupt` if it is damaged, `Busy` as for
    /// [`Drive::delete_snapshot`], `ReadOnly`, `NoSpace`: nothing is changed. After `Medium` or
    /// `Poisoned` it is a bookmark or not, and the drive takes no writes.
    pub async fn bookmark_snapshot(&self, name: &str) -> Result<SnapshotInfo> {
        let info = self.snapshot_info(name)?;
        if info.is_bookmark {
            return Err(Error::new(ErrorKind::AlreadyExists, format!("{name} is a bookmark")));
        }
        if let Some(damage) = info.damage {
            let what =
                format!("the snapshot {name} is damaged, and no use as a bookmark: {damage}");
            return Err(Error::new(ErrorKind::Corrupt, what));
        }
        self.edit(Edit::Bookmark(SeqNo(info.sequence))).await?;
        self.snapshot_info(name)
    }

    /// Deletes a snapshot that yields, for the host needs the space.
    pub(super) async fn give_up(&self, snapshot: Snapshot) -> Result<()> {
        let drive = self.uuid();
        tracing::warn!(%drive, snapshot = snapshot.name, "full: a snapshot that yields is deleted");
        self.edit(Edit::Delete(vec![snapshot.watermark])).await?;
        self.with_core(Core::note_given_up);
        self.queues.given_up.wake_all();
        Ok(())
    }

    /// Holds back writes and trims until the snapshot with the identity `of` is begun, so that
    /// snapshots of several drives are of one moment: all are held before the first is taken. To be
    /// held briefly: the host waits.
    ///
    /// # Errors
    /// `ReadOnly`, `Poisoned`.
    pub async fn hold_changes(&self, of: Uuid) -> Result<HeldChanges<'_>> {
        self.core().check_writable(0, 0)?;
        // The snapshot that is taken meanwhile cannot: see `create_snapshot`.
        let _ = self.reap_all().await;
        self.with_core(|core| core.hold_changes(of));
        Ok(HeldChanges { drive: self, of })
    }

    /// Returns the snapshots, oldest first. Takes time for each segment that each of them needs:
    /// see [`Drive::list_snapshots`].
    pub fn snapshots(&self) -> Vec<SnapshotInfo> {
        let core = self.core();
        (0..core.snapshots().kept().len()).filter_map(|at| info_at(&core, at)).collect()
    }

    /// Returns the snapshots, oldest first, and lets others run after each: what each holds is of a
    /// moment of its own. One that is taken meanwhile is left out, and one that is deleted may be.
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

/// Returns the facts about the snapshot at an index.
fn info_at(core: &Core, at: usize) -> Option<SnapshotInfo> {
    let all = core.snapshots().kept();
    let kept = all.get(at)?;
    let before = at.checked_sub(1).and_then(|before| all.get(before));
    let host_bytes_before = before.map_or(0, |before| before.entry.host_bytes);
    let entry = &kept.entry;
    let [alone_bytes, shared_bytes] = core.bytes_held(kept);
    Some(SnapshotInfo {
        name: entry.name.clone(),
        guid: entry.guid,
        sequence: entry.watermark.0,
        created_seconds: entry.created_seconds,
        size_bytes: entry.size_bytes,
        mapped_bytes: Core::mapped_bytes(entry),
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

//! Rolling back: a checkpoint of a snapshot's map. No data is read or written.
//!
//! The map names frames at the places that they had when the snapshot was taken. The leaves with
//! frames that garbage collection has copied since are rewritten to name the current places.

use std::collections::BTreeMap;
use std::rc::Rc;

use futures_util::stream::{StreamExt, TryStreamExt, iter};

use super::super::core::{CheckpointAction, Condition, Forwards, KeptDisk, LeafPlace};
use super::super::drive::{Drive, check_kind};
use super::super::map::{BlockMove, Leaf, Mapping, Reap, Released};
use super::super::options::OpenOptions;
use super::super::place::FramePlace;
use super::super::recovery::{self, Limits, Reader};
use super::snapshot::SnapshotInfo;
use crate::base::{Error, ErrorKind, Lba, Result, ensure};
use crate::format::{DirectoryEntry, MetadataAddress, Snapshot, Superblock};

/// Leaves that are read concurrently.
const READS_AT_ONCE: usize = 32;

/// Leaves that are reaped between checks of the amount of changes.
const REAP_STEPS: u32 = 256;

/// Keeps frames that snapshots need in place until dropped.
struct Staying<'a>(&'a Drive);

impl<'a> Staying<'a> {
    fn begin(drive: &'a Drive) -> Self {
        drive.with_core(|core| core.set_rolling_back(true));
        Self(drive)
    }
}

impl Drop for Staying<'_> {
    fn drop(&mut self) {
        self.0.with_core(|core| core.set_rolling_back(false));
    }
}

/// A run of blocks whose frame was copied.
struct Copied {
    lba: Lba,
    blocks: u64,
    from: FramePlace,
    index: u8,
    to: FramePlace,
}

impl Drive {
    /// Restores the disk to its state when a snapshot was taken. The size of the disk does not
    /// change, and blocks beyond the snapshot's end become holes. If `deletes_newer`, snapshots
    /// taken after it are deleted in the same step. All of these changes are durable when this
    /// returns. The caller ensures that no request is under way, since the host assumes the old
    /// content of the disk.
    ///
    /// The call must run to completion, like [`Drive::create_snapshot`].
    ///
    /// # Errors
    /// `NotFound`, `ReadOnly`, `Corrupt` if the snapshot's map cannot be read; `InvalidInput` if it
    /// is a bookmark, if there are newer snapshots and `deletes_newer` is false, or if the changes
    /// of the map would exceed its memory limit: nothing is changed. After any other error, the
    /// drive may or may not be rolled back, and accepts no writes.
    pub async fn roll_back(&self, name: &str, deletes_newer: bool) -> Result<SnapshotInfo> {
        self.roll_back_if(name, deletes_newer, Rc::new(|| Ok(()))).await
    }

    /// Like [`Drive::roll_back`], for a drive that hosts may begin to use: `is_unused` is checked
    /// in the step that replaces the disk. A host that connects after that step has seen no other
    /// disk.
    ///
    /// # Errors
    /// The errors of [`Drive::roll_back`]; after an error of `is_unused`, nothing is changed.
    pub async fn roll_back_if(
        &self,
        name: &str,
        deletes_newer: bool,
        is_unused: Condition,
    ) -> Result<SnapshotInfo> {
        if self.is_read_only() {
            return Err(Error::new(ErrorKind::ReadOnly, "the drive was opened read-only"));
        }
        // Nothing is freed during the turn, so the originals of frames copied after this point also
        // stay in place.
        let turn = self.turn().await;
        let info = self.snapshot_info(name)?;
        let (superblock, entry) = self.to_roll_back_to(name, deletes_newer)?;
        let cache_bytes = self.options.map_cache_bytes;
        let _stays = Staying::begin(self);
        let forwards = self.core().forwards().of(&entry);
        let kept = recovery::kept_disk(&*self.medium, &superblock, cache_bytes, &forwards);
        let mut disk = kept.await?;
        let reader = Reader::of_kept(&*self.medium, &superblock, &forwards);
        reader.widen(disk.space.segment_count());
        self.take_down(&reader, &mut disk).await?;
        if forwards.is_used() {
            self.follow_copies(&reader, &mut disk, &forwards).await?;
            let KeptDisk { map, space, .. } = &mut disk;
            map.relocate(|place| {
                let moved = forwards.metadata_at(place, space.generation(place.segment));
                moved.map(|(place, _)| place)
            });
        }
        self.checkpoint_in(turn, CheckpointAction::RollBack(Box::new(disk), is_unused)).await?;
        Ok(info)
    }

    /// Returns the superblock of the disk after the rollback, and the snapshot.
    fn to_roll_back_to(&self, name: &str, deletes_newer: bool) -> Result<(Superblock, Snapshot)> {
        let core = self.core();
        core.check_writable(0, 0)?;
        let mut kept = core.snapshots().kept().iter().map(|kept| &kept.entry);
        let target = kept.find(|entry| entry.name == name).expect("it was just found");
        check_kind(target, &OpenOptions::default())?;
        if let Some(newest) = kept.next_back().map(|entry| &entry.name)
            && !deletes_newer
        {
            let what = format!(
                "the disk can be rolled back only to its newest snapshot, and {newest} is newer \
                 than {name}"
            );
            return Err(Error::new(ErrorKind::InvalidInput, what));
        }
        let superblock = recovery::superblock_of(core.superblock(), target);
        Ok((Superblock { size_bytes: core.size_bytes(), ..superblock }, target.clone()))
    }

    /// Reaps blocks that were trimmed when the snapshot was taken but still counted as live in its
    /// segment table: the segments may have been reused since.
    async fn take_down(&self, reader: &Reader<'_>, disk: &mut KeptDisk) -> Result<()> {
        loop {
            let KeptDisk { map, space, .. } = disk;
            let release = |dead: Released| space.release_blocks(dead.place, dead.index, dead.count);
            match map.reap(REAP_STEPS, release) {
                Reap::Done => return Ok(()),
                Reap::More => {}
                Reap::Missing(_) => {
                    let leaves = map.missing_to_reap(READS_AT_ONCE);
                    for (leaf, (place, content)) in read_leaves(reader, disk, &leaves).await? {
                        disk.map.install(leaf, place, content);
                    }
                }
            }
            self.check_changed(disk)?;
        }
    }

    /// Makes the map name copied frames at their current places.
    async fn follow_copies(
        &self,
        reader: &Reader<'_>,
        disk: &mut KeptDisk,
        forwards: &Forwards,
    ) -> Result<()> {
        let mut next = 0;
        loop {
            let mut leaves = Vec::new();
            while let Some(leaf) = disk.map.next_stored_leaf(next)
                && leaves.len() < READS_AT_ONCE
            {
                leaves.push(leaf);
                next = leaf + 1;
            }
            if leaves.is_empty() {
                return Ok(());
            }
            let mut contents = read_leaves(reader, disk, &leaves).await?;
            for leaf in leaves {
                // Only now: the next leaves may not fit in memory with this one.
                if let Some((place, content)) = contents.remove(&leaf) {
                    disk.map.install(leaf, place, content);
                }
                for copied in self.copied_in(leaf, disk, forwards)? {
                    follow(disk, &copied);
                }
            }
            self.check_changed(disk)?;
        }
    }

    /// Returns an error if the changes of a map exceed the amount that one checkpoint may write.
    fn check_changed(&self, disk: &KeptDisk) -> Result<()> {
        let most = Limits::for_map_cache(self.options.map_cache_bytes).changed_bytes;
        let what = "too much of the map changes at once: use a larger map cache, or extract the \
                    snapshot";
        ensure(disk.map.dirty_bytes() <= most, ErrorKind::InvalidInput, what)
    }

    /// Returns the runs of a leaf whose frames were copied.
    fn copied_in(&self, leaf: u64, disk: &KeptDisk, forwards: &Forwards) -> Result<Vec<Copied>> {
        let core = self.core();
        let space = core.space();
        let mut found = Vec::new();
        let runs = disk.map.leaf_runs(leaf).expect("copies are followed in a leaf in memory");
        for (lba, blocks, mapping) in runs {
            let Mapping::Frame { place: from, index } = mapping else { continue };
            let generation = disk.space.generation(from.segment);
            let (to, generation) = forwards.resolve(from, generation);
            if space.is_free(to.segment) || space.generation(to.segment) != generation {
                let what = "a snapshot names a frame that does not exist";
                return Err(Error::new(ErrorKind::Corrupt, what).in_segment(from.segment));
            }
            if to != from {
                found.push(Copied { lba, blocks, from, index, to });
            }
        }
        Ok(found)
    }
}

/// Reads leaves of a map; returns the place and the content of those that the medium has.
async fn read_leaves(
    reader: &Reader<'_>,
    disk: &KeptDisk,
    leaves: &[u64],
) -> Result<BTreeMap<u64, (MetadataAddress, Leaf)>> {
    let places = leaves.iter().filter_map(|&leaf| {
        let DirectoryEntry::Leaf(place) = disk.map.entry(leaf) else { return None };
        let generation = disk.space.generation(place.segment);
        Some((leaf, LeafPlace { place, generation }))
    });
    let places: Vec<_> = places.collect();
    let reads = places.into_iter().map(async |(leaf, from)| {
        Ok::<_, Error>((leaf, (from.place, reader.leaf(leaf, from).await?)))
    });
    iter(reads).buffered(READS_AT_ONCE).try_collect().await
}

fn follow(disk: &mut KeptDisk, copied: &Copied) {
    let Copied { lba, blocks, from, index, to } = *copied;
    let KeptDisk { map, space, copies, .. } = disk;
    let count = u16::try_from(blocks).expect("a frame has at most 64 blocks");
    let blocks = BlockMove { lba, count, from: from.address(), to, to_index: index };
    let moved = map.move_blocks(blocks, |released, index| {
        let (place, first, count) = (released.place, released.index, released.count);
        space.release(place.segment, place.share(first, count));
        *copies.entry(to.segment).or_insert(0) += to.share(index, count);
    });
    assert_eq!(moved, u32::from(count), "a run of a leaf maps to one frame");
}

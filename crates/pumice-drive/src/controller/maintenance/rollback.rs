//! Rolling back: a checkpoint of the map that a snapshot has. No data is read or written.
//!
//! The map names frames where they were when the snapshot was taken. Those that garbage collection
//! has copied since are named where they are now: their leaves are written again.

use std::rc::Rc;

use futures_util::stream::{StreamExt, TryStreamExt, iter};

use super::super::core::{Condition, Forwards, KeptDisk, LeafPlace, Wish};
use super::super::drive::Drive;
use super::super::map::Mapping;
use super::super::options::OpenOptions;
use super::super::place::FramePlace;
use super::super::recovery::{self, Limits, Reader};
use super::snapshot::{SnapshotInfo, check_kind};
use crate::base::{Error, ErrorKind, Lba, Result};
use crate::format::{DirectoryEntry, Snapshot, Superblock};

/// Leaves that are read side by side.
const READS_AT_ONCE: usize = 32;

/// A run of blocks whose frame was copied.
struct Copied {
    lba: Lba,
    blocks: u64,
    from: FramePlace,
    index: u8,
    to: FramePlace,
}

impl Drive {
    /// Makes the disk what it was when a snapshot was taken; its size stays, and what lies beyond
    /// the snapshot's end becomes a hole. Snapshots taken after it are deleted in the same step,
    /// if `deletes_newer`. When this returns, all of that is durable. The caller ensures that no
    /// request is under way: the host knows another disk.
    ///
    /// Must run to its end, as [`Drive::create_snapshot`].
    ///
    /// # Errors
    /// `NotFound`, `ReadOnly`, `Corrupt` if the snapshot's map cannot be read; `InvalidInput` if it
    /// is a bookmark, there are newer ones, which are not to be deleted, or more of the map would
    /// change than memory is allowed for it: nothing is changed. After any other, the drive is
    /// rolled back or not, and takes no writes.
    pub async fn roll_back(&self, name: &str, deletes_newer: bool) -> Result<SnapshotInfo> {
        self.roll_back_if(name, deletes_newer, Rc::new(|| Ok(()))).await
    }

    /// As [`Drive::roll_back`], of a drive that hosts may begin to use: `is_unused` is asked in the
    /// step in which the disk becomes another. A host that comes after it knows no other disk.
    ///
    /// # Errors
    /// As [`Drive::roll_back`]; that of `is_unused`: nothing is changed.
    pub async fn roll_back_if(
        &self,
        name: &str,
        deletes_newer: bool,
        is_unused: Condition,
    ) -> Result<SnapshotInfo> {
        if self.is_read_only() {
            return Err(Error::new(ErrorKind::ReadOnly, "the drive was opened read-only"));
        }
        // Nothing is freed meanwhile, so what is copied from now on is still where it was, too.
        let turn = self.turn().await;
        let info = self.snapshot_info(name)?;
        let (superblock, entry) = self.to_roll_back_to(name, deletes_newer)?;
        let cache_bytes = self.options.map_cache_bytes;
        let forwards = self.core().forwards().of(&entry);
        let kept = recovery::kept_disk(&*self.medium, &superblock, cache_bytes, &forwards);
        let mut disk = kept.await?;
        let was_moved = self.core().forwards().is_used();
        if was_moved {
            self.follow_copies(&superblock, &entry, &mut disk, &forwards).await?;
            let KeptDisk { map, space, .. } = &mut disk;
            map.relocate(|place| {
                let moved = forwards.metadata_at(place, space.generation(place.segment));
                moved.map(|(place, _)| place)
            });
        }
        self.checkpoint_in(turn, Wish::RollBack(Box::new(disk), is_unused)).await?;
        Ok(info)
    }

    /// Returns the superblock of the disk to be, and the snapshot.
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
                "the disk can be rolled back to its newest snapshot only, and {newest} is newer \
                 than {name}"
            );
            return Err(Error::new(ErrorKind::InvalidInput, what));
        }
        let superblock = recovery::superblock_of(core.superblock(), target);
        Ok((Superblock { size_bytes: core.size_bytes(), ..superblock }, target.clone()))
    }

    /// Lets the map name frames that were copied where they are now.
    async fn follow_copies(
        &self,
        superblock: &Superblock,
        entry: &Snapshot,
        disk: &mut KeptDisk,
        forwards: &Forwards,
    ) -> Result<()> {
        let reader = Reader::of_kept(&*self.medium, superblock, forwards);
        reader.widen(disk.space.segment_count());
        let most = Limits::for_map_cache(self.options.map_cache_bytes).changed_bytes;
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
            let places = leaves.iter().filter_map(|&leaf| {
                let DirectoryEntry::Leaf(place) = disk.map.entry(leaf) else { return None };
                let generation = disk.space.generation(place.segment);
                Some((leaf, LeafPlace { place, generation }))
            });
            let places: Vec<_> = places.collect();
            let reads = places.into_iter().map(async |(leaf, from)| {
                Ok::<_, Error>((leaf, from.place, reader.leaf(leaf, from).await?))
            });
            let read: Vec<_> = iter(reads).buffered(READS_AT_ONCE).try_collect().await?;
            for (leaf, place, content) in read {
                disk.map.install(leaf, place, content);
                for copied in self.copied_in(leaf, entry, disk)? {
                    follow(disk, &copied);
                }
            }
            if disk.map.dirty_bytes() > most {
                let what = "too much of the map changes at once: use a larger --map-cache, or \
                            extract the snapshot";
                return Err(Error::new(ErrorKind::InvalidInput, what));
            }
        }
    }

    /// Returns the runs of a leaf whose frames were copied, and are no longer needed, or no longer
    /// there, where the snapshot's map names them.
    fn copied_in(&self, leaf: u64, entry: &Snapshot, disk: &KeptDisk) -> Result<Vec<Copied>> {
        let core = self.core();
        let (forwards, space) = (core.forwards(), core.space());
        let mut found = Vec::new();
        for (lba, blocks, mapping) in disk.map.leaf_runs(leaf).into_iter().flatten() {
            let Mapping::Frame { place: from, index } = mapping else { continue };
            let generation = disk.space.generation(from.segment);
            let is_there = space.generation(from.segment) == generation
                && !space.is_free(from.segment)
                && !forwards.is_emptied(from.segment, disk.watermark);
            if is_there {
                continue;
            }
            let (to, generation) = forwards.resolve_for(entry, from, generation);
            if space.is_free(to.segment) || space.generation(to.segment) != generation {
                let what = "a snapshot names a frame that is nowhere";
                return Err(Error::new(ErrorKind::Corrupt, what).in_segment(from.segment));
            }
            if to != from {
                found.push(Copied { lba, blocks, from, index, to });
            }
        }
        Ok(found)
    }
}

fn follow(disk: &mut KeptDisk, copied: &Copied) {
    let Copied { lba, blocks, from, index, to } = *copied;
    let KeptDisk { map, space, copies, .. } = disk;
    let count = u16::try_from(blocks).expect("a frame has at most 64 blocks");
    map.move_blocks(lba, count, from.address(), to, index, |released, index| {
        let (place, first, count) = (released.place, released.index, released.count);
        space.release(place.segment, place.share(first, count));
        *copies.entry(to.segment).or_insert(0) += to.share(index, count);
    });
}

//! Emptying a segment that contains metadata of snapshots: the records that their roots and maps
//! name in it are copied, and forwarding tables lead to the copies, as with frames.
//!
//! ```text
//! records of the disk's map in it -> rewritten by a checkpoint
//! root, lists, pages, leaves of each snapshot in it -> copied, on the medium
//!    -> tables, in memory -> a checkpoint has them -> the segment is free
//! ```
//!
//! The turn is held for this time, so that no checkpoint counts copies as live that nothing names.
//! *Crash before the checkpoint that contains the tables:* the copies are dead, and the originals
//! are still in place.

use std::collections::BTreeMap;

use super::super::core::{Core, Emptying, MetaPosition, MetadataCopy};
use super::super::drive::Drive;
use super::super::log::metadata::Wanted;
use super::super::place::SegmentUse;
use super::super::recovery::{KeptMap, Reader};
use crate::base::{Result, SegmentId, SeqNo};

/// A record that snapshots need, and the first and the last snapshot that name it at its place.
struct Needed {
    wanted: Wanted,
    named: Option<(SeqNo, SeqNo)>,
}

/// Copies that nothing names yet, which are dead if dropped.
struct Copies<'a> {
    drive: &'a Drive,
    all: Vec<MetadataCopy>,
}

impl Drop for Copies<'_> {
    fn drop(&mut self) {
        self.drive.with_core(|core| core.forget_metadata(&self.all));
    }
}

impl Drive {
    /// Copies the records of snapshots in a retained segment of metadata, and makes the next
    /// checkpoint write the disk's own records elsewhere.
    pub(super) async fn empty_kept_metadata(&self, segment: SegmentId) -> Result<()> {
        self.with_core(|core| core.begin_victim(segment));
        self.rewrite_metadata_in(segment).await;
        self.checkpoint().await?;
        let turn = self.turn().await;
        let Some(emptying) = self.core().begin_emptying(segment) else { return Ok(()) };
        let is_emptied = self.copy_metadata(&emptying).await?;
        drop(turn);
        self.with_core(|core| core.victim_scanned(segment));
        let is_over = self.core().must_end() || self.core().snapshots().is_void(&emptying);
        if !is_emptied && !is_over {
            tracing::warn!(%segment, "a segment with maps of snapshots cannot be emptied for now");
            self.with_core(|core| core.set_stuck(segment));
        }
        Ok(())
    }

    /// Copies the records of snapshots in the segment. Returns whether nothing in it is needed any
    /// more.
    async fn copy_metadata(&self, emptying: &Emptying) -> Result<bool> {
        let of = emptying.of;
        let Some(needed) = self.kept_metadata_in(of).await else { return Ok(false) };
        let superblock = self.core().superblock().clone();
        let reader = Reader::new(&*self.medium, &superblock);
        let mut copies = Copies { drive: self, all: Vec::new() };
        for (offset, Needed { wanted, named }) in needed {
            let raw = match reader.metadata(wanted).await {
                Ok(raw) => raw,
                Err(error) => {
                    let error = error.chain();
                    tracing::warn!(%error, "a part of the map of a snapshot stays where it is");
                    return Ok(false);
                }
            };
            let position = MetaPosition { kind: wanted.kind, number: wanted.number };
            let appended = self
                .with_room(|core| {
                    core.append_meta(position, &raw, &mut self.meta_compressor.borrow_mut())
                })
                .await?;
            copies.all.push(MetadataCopy { offset, place: appended.place, named });
        }
        // The copies are read from the medium.
        self.with_core(Core::seal_all);
        self.flush_log().await?;
        Ok(self.with_core(|core| {
            if core.snapshots().is_void(emptying) {
                return false;
            }
            core.note_metadata(of, &std::mem::take(&mut copies.all));
            core.end_emptying(emptying)
        }))
    }

    /// Returns the records in the segment that roots and maps of snapshots name, by offset; `None`
    /// if one cannot be read.
    async fn kept_metadata_in(&self, of: SegmentUse) -> Option<BTreeMap<u32, Needed>> {
        let mut found: BTreeMap<u32, Needed> = BTreeMap::new();
        let kept = self.core().snapshots().kept().to_vec();
        let (superblock, forwards) = self.core().to_read_kept();
        for kept in kept.iter().filter(|kept| kept.retained.contains(of.segment)) {
            let watermark = kept.entry.watermark;
            let map = KeptMap::open(&*self.medium, &superblock, &kept.entry, &forwards).await;
            let map = map.inspect_err(|error| {
                let (snapshot, error) = (&kept.entry.name, error.chain());
                tracing::warn!(snapshot, %error, "cannot read the map of a snapshot");
            });
            for named in map.ok()?.metadata() {
                let moved = forwards.metadata_at(named.address(), named.place.generation);
                let is_moved = moved.is_some();
                let (place, generation) =
                    moved.unwrap_or((named.address(), named.place.generation));
                if (place.segment, generation) != (of.segment, of.generation) {
                    continue;
                }
                let wanted = Wanted::at(place, generation, named.kind, named.number);
                let needed = found.entry(place.offset);
                let needed = needed.or_insert(Needed { wanted, named: None });
                if !is_moved {
                    // The snapshots are visited oldest first.
                    let (since, _) = needed.named.unwrap_or((watermark, watermark));
                    needed.named = Some((since, watermark));
                }
            }
        }
        Some(found)
    }
}

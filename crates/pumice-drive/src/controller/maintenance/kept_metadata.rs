//! Emptying a segment that holds metadata of snapshots, when it is to go: what their roots and maps
//! name in it is copied, and forwarding tables say where to, as of frames.
//!
//! ```text
//! what the disk's map has there -> written again by a checkpoint
//! root, lists, pages, leaves of each snapshot, as far as they are there -> copied, on the medium
//!    -> tables, in memory -> a checkpoint has them -> the segment is free
//! ```
//!
//! The turn is taken meanwhile, so that no checkpoint counts copies as live which nothing names.
//! *Crash before the checkpoint that has the tables:* the copies are dead, and what was copied is
//! where it was.

use std::collections::BTreeMap;

use super::super::core::{Core, MetaPosition, MetadataCopy};
use super::super::drive::Drive;
use super::super::log::metadata::Wanted;
use super::super::place::SegmentUse;
use super::super::recovery::{KeptMap, Reader};
use crate::base::{Result, SegmentId, SeqNo};

/// A record that snapshots name, and which do.
struct Named {
    wanted: Wanted,
    since: SeqNo,
    until: SeqNo,
}

/// Copies that nothing names yet. Dropped before that, they are dead.
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
    /// Copies what snapshots have in a retained segment of metadata, and lets the disk's own be
    /// written elsewhere.
    pub(super) async fn empty_kept_metadata(&self, segment: SegmentId) -> Result<()> {
        self.with_core(|core| core.begin_victim(segment));
        self.rewrite_metadata_in(segment).await;
        self.checkpoint().await?;
        let of = SegmentUse { segment, generation: self.core().space().generation(segment) };
        let is_stopped = || self.core().must_end() || self.core().must_stop_holding(of);
        let is_emptied = {
            let _turn = self.turn().await;
            !is_stopped() && self.copy_metadata(of).await?
        };
        self.with_core(|core| core.victim_scanned(segment));
        if !is_emptied && !is_stopped() {
            tracing::warn!(%segment, "a segment with maps of snapshots cannot be emptied for now");
            self.with_core(|core| core.set_stuck(segment));
        }
        Ok(())
    }

    /// Copies what snapshots have there; returns whether nothing in the segment is needed any more.
    async fn copy_metadata(&self, of: SegmentUse) -> Result<bool> {
        let Some(named) = self.kept_metadata_in(of).await else { return Ok(false) };
        let superblock = self.core().superblock().clone();
        let reader = Reader::new(&*self.medium, &superblock);
        let mut copies = Copies { drive: self, all: Vec::new() };
        for (offset, Named { wanted, since, until }) in named {
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
            copies.all.push(MetadataCopy { offset, place: appended.place, since, until });
        }
        // They are read from the medium.
        self.with_core(Core::seal_all);
        self.flush_log().await?;
        Ok(self.with_core(|core| {
            let is_possible = !core.must_stop_holding(of);
            if is_possible {
                core.note_metadata(of, &std::mem::take(&mut copies.all));
            }
            is_possible && core.end_holding(of)
        }))
    }

    /// Returns what roots and maps of snapshots name there, by offset; `None` if one cannot be
    /// read.
    async fn kept_metadata_in(&self, of: SegmentUse) -> Option<BTreeMap<u32, Named>> {
        let mut found: BTreeMap<u32, Named> = BTreeMap::new();
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
                let (place, generation) =
                    moved.unwrap_or((named.address(), named.place.generation));
                if (place.segment, generation) != (of.segment, of.generation) {
                    continue;
                }
                let wanted = Wanted::at(place, generation, named.kind, named.number);
                let (since, until) = (watermark, watermark);
                let known = found.entry(place.offset).or_insert(Named { wanted, since, until });
                known.since = known.since.min(watermark);
                known.until = known.until.max(watermark);
            }
        }
        Some(found)
    }
}

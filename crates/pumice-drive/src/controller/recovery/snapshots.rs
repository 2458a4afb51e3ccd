//! The snapshots of a drive that is being opened: the list in the newest checkpoint, and from each
//! root the segments that the snapshot needs.
//!
//! A drive with a damaged list of snapshots does not open, like one with a damaged segment table. A
//! drive with one damaged snapshot opens: everything in use is then retained for that snapshot
//! until it is deleted.

use futures_util::stream::{StreamExt, iter};

use super::super::core::{Forwards, Kept, RETAINED_BYTES_MAX, SegmentSet};
use super::super::space::Space;
use super::READS_AT_ONCE;
use super::reader::Reader;
use crate::base::{Error, ErrorKind, Result, SegmentId, SeqNo};
use crate::format::{
    CheckpointAddress, MetaKind, MetadataAddress, Root, Snapshot, Stream, Superblock,
    decode_snapshots,
};

impl Reader<'_> {
    /// Reads the snapshots that the root at `newest` lists, and the new places of moved records
    /// they name. `space` is the segment table of its checkpoint.
    ///
    /// # Errors
    /// `Medium` or `Corrupt`.
    pub(super) async fn snapshots(
        &self,
        newest: &CheckpointAddress,
        root: &Root,
        space: &Space,
    ) -> Result<(Vec<Kept>, Forwards)> {
        let entries = self.snapshot_list(root, space).await?;
        if entries.len() * (space.segment_count() as usize / 8) > RETAINED_BYTES_MAX {
            let what = "the drive has more snapshots than fit in memory";
            return Err(Error::new(ErrorKind::Corrupt, what));
        }
        let newest_taken = entries.last().map_or(SeqNo(0), |entry| entry.watermark);
        let forwards = self.forwards(root, space, newest_taken).await?;
        let moved = &forwards;
        let of_kept = &self.for_kept(moved);
        let read = entries.into_iter().map(async |mut entry| {
            let place = *entry.root.get_or_insert(*newest);
            let (watermark, retained) = (entry.watermark, SegmentSet::default());
            let named = of_kept.named(&entry, &place, space).await.and_then(|named| {
                let corrupt = |what| Error::new(ErrorKind::Corrupt, what);
                if moved.may_lack(&entry) {
                    return Err(corrupt("a forwarding table is damaged"));
                }
                let is_lost = |segment: SegmentId| {
                    space.is_free(segment) && !moved.is_emptied(segment, watermark)
                };
                if let Some(segment) = named.iter().find(|&segment| is_lost(segment)) {
                    let what = "a snapshot needs a segment that is free";
                    return Err(corrupt(what).in_segment(segment));
                }
                Ok(named)
            });
            match named {
                Ok(named) => Kept { entry, named, retained, damage: None, readers: 0 },
                Err(error) => {
                    tracing::warn!(
                        snapshot = entry.name,
                        error = %error.chain(),
                        "a snapshot is damaged: it retains all segments until it is deleted"
                    );
                    let may_need = |segment: &SegmentId| {
                        !entry.is_bookmark || space.stream(*segment) == Stream::Meta
                    };
                    let mut named = SegmentSet::default();
                    for segment in space.used().map(|used| used.segment).filter(may_need) {
                        named.insert(segment);
                    }
                    let damage = Some(error.chain().to_string());
                    Kept { entry, named, retained, damage, readers: 0 }
                }
            }
        });
        let kept = iter(read).buffered(READS_AT_ONCE).collect().await;
        self.take_up(of_kept);
        Ok((kept, forwards))
    }

    async fn snapshot_list(&self, root: &Root, space: &Space) -> Result<Vec<Snapshot>> {
        let generation = |place: &MetadataAddress| space.generation(place.segment);
        let list = self.list(&root.snapshot_lists, MetaKind::Snapshots, &generation).await?;
        let entries = decode_snapshots(&list)?;
        let is_newest = entries.last().is_some_and(|entry| entry.root.is_none());
        if is_newest && root.retained_lists.is_empty() {
            let what = "a checkpoint is listed as a snapshot, but has no list of retained segments";
            return Err(Error::new(ErrorKind::Corrupt, what));
        }
        Ok(entries)
    }

    /// Returns every segment in which a snapshot or its map names something.
    async fn named(
        &self,
        entry: &Snapshot,
        place: &CheckpointAddress,
        space: &Space,
    ) -> Result<SegmentSet> {
        let wrong = |what| Error::new(ErrorKind::Corrupt, what);
        let root = self.any_root(place).await?;
        let is_it = root.watermark == entry.watermark && root.size_bytes == entry.size_bytes;
        if !is_it || root.retained_lists.is_empty() {
            return Err(wrong("the root of a snapshot belongs to another one"));
        }
        // The record may have been moved, and the segment may be in another use.
        let generation = |place: &MetadataAddress| {
            let known = root.generation_of(place.segment);
            known.unwrap_or_else(|| space.generation(place.segment))
        };
        let bits = self.list(&root.retained_lists, MetaKind::Retained, &generation).await?;
        let set = SegmentSet::decode(&bits, root.segment_count);
        let mut set = set.ok_or_else(|| wrong("the bitmap of a snapshot is invalid"))?;
        set.insert(place.address.segment);
        for piece in root.lists() {
            set.insert(piece.segment);
        }
        Ok(if entry.is_bookmark { of_map(&set, place, space) } else { set })
    }

    /// Returns the entry of the snapshot with a given name; see [`Reader::snapshot_like`].
    ///
    /// # Errors
    /// `NotFound`, `Medium` or `Corrupt`.
    pub(crate) async fn find_snapshot(&self, name: &str) -> Result<(Snapshot, Forwards)> {
        self.snapshot_like(name, |entry| entry.name == name).await
    }

    /// Returns the entry of a snapshot, with the place of its root, and the tables needed to read
    /// it. `name` is the name to report if there is none.
    ///
    /// # Errors
    /// `NotFound`, `Medium` or `Corrupt`.
    pub(crate) async fn snapshot_like(
        &self,
        name: &str,
        is_it: impl Fn(&Snapshot) -> bool,
    ) -> Result<(Snapshot, Forwards)> {
        let Some(newest) = &self.superblock().checkpoint else {
            return Err(not_found(name, std::iter::empty()));
        };
        let root = self.root(newest).await?;
        let checkpoint = self.checkpoint(newest, &root, 0).await?;
        let mut entries = self.snapshot_list(&root, &checkpoint.space).await?;
        let Some(at) = entries.iter().position(is_it) else {
            return Err(not_found(name, entries.iter().map(|entry| entry.name.as_str())));
        };
        let mut found = entries.remove(at);
        found.root.get_or_insert(*newest);
        let newest_taken = entries.last().map_or(found.watermark, |entry| entry.watermark);
        let mut forwards = self.forwards(&root, &checkpoint.space, newest_taken).await?;
        if found.is_bookmark {
            // Entries that other snapshots need lead to existing frames; any other entry may lead
            // anywhere.
            forwards.prune(entries.iter().chain([&found]), |_, _| true);
        }
        let forwards = forwards.of(&found);
        Ok((found, forwards))
    }
}

/// Returns the segments that contain the map of a bookmark, out of those that it named when it was
/// a snapshot: no segment of metadata was opened after that of its root. Other segments may be in
/// another use.
fn of_map(named: &SegmentSet, root: &CheckpointAddress, space: &Space) -> SegmentSet {
    let mut map = SegmentSet::default();
    for segment in named.iter().filter(|&segment| !space.is_free(segment)) {
        let is_as_old = space.generation(segment) <= root.address.generation;
        if space.stream(segment) == Stream::Meta && is_as_old {
            map.insert(segment);
        }
    }
    map
}

/// Returns the superblock of a drive as it was when a snapshot was taken, for reading only.
pub(crate) fn superblock_of(present: &Superblock, snapshot: &Snapshot) -> Superblock {
    let flat_since = present.flat_since;
    let is_flat = flat_since > SeqNo(0) && snapshot.watermark >= flat_since;
    Superblock {
        checkpoint: snapshot.root,
        watermark: snapshot.watermark,
        watermark_checksum: snapshot.watermark_checksum,
        size_bytes: snapshot.size_bytes,
        detours: Vec::new(),
        origin: present.origin.clone().filter(|_| !is_flat),
        flat_since: SeqNo(0),
        clean: true,
        ..present.clone()
    }
}

/// Returns the error for a name that no snapshot has, which lists the existing names.
pub(crate) fn not_found<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Error {
    let names: Vec<&str> = names.collect();
    let what = match names.as_slice() {
        [] => format!("there is no snapshot named {name}: the drive has none"),
        [.., newest] => {
            format!(
                "there is no snapshot named {name}: the drive has {}, the newest is {newest}",
                names.len()
            )
        }
    };
    Error::new(ErrorKind::NotFound, what)
}

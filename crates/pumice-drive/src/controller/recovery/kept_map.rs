//! The map of a snapshot, which garbage collection queries for the frames that the snapshot names.

use futures_util::stream::{StreamExt, iter};

use super::super::core::{Forwards, LeafPlace};
use super::super::log::metadata::Wanted;
use super::super::map::L2p;
use super::super::place::{FramePlace, SegmentUse};
use super::super::space::Space;
use super::READS_AT_ONCE;
use super::reader::{Checkpoint, Reader};
use super::superblock_of;
use crate::base::units::BLOCK_BYTES;
use crate::base::{Error, ErrorKind, Lba, Result, SeqNo};
use crate::format::{
    CheckpointAddress, DirectoryEntry, LEAF_BLOCKS, MetaKind, Root, Snapshot, Superblock,
};
use crate::media::AnyMedium;

/// Bytes of leaves of one map that are cached in memory.
const CACHE_BYTES: usize = 2 << 20;

/// The map of a snapshot.
pub(crate) struct KeptMap {
    watermark: SeqNo,
    superblock: Superblock,
    map: L2p,
    space: Space,
    /// Its root and its lists.
    lists: Vec<Wanted>,
    /// The new places of moved records that it names.
    moved: Forwards,
}

impl KeptMap {
    /// Reads a map without its leaves.
    ///
    /// # Errors
    /// `Medium` or `Corrupt`.
    pub(crate) async fn open(
        medium: &dyn AnyMedium,
        present: &Superblock,
        entry: &Snapshot,
        forwards: &Forwards,
    ) -> Result<Self> {
        let superblock = superblock_of(present, entry);
        let moved = forwards.of_metadata();
        let reader = Reader::of_kept(medium, &superblock, &moved);
        let what = "a snapshot has no root";
        let place = entry.root.ok_or_else(|| Error::new(ErrorKind::Corrupt, what))?;
        let root = reader.any_root(&place).await?;
        let Checkpoint { map, space, .. } = reader.checkpoint(&place, &root, CACHE_BYTES).await?;
        let lists = lists_of(&place, &root, &space);
        Ok(Self { watermark: entry.watermark, superblock, map, space, lists, moved })
    }

    /// Returns every record of metadata that is read for the snapshot, at the places that its root
    /// and its map name.
    pub(crate) fn metadata(&self) -> impl Iterator<Item = Wanted> {
        let of_map = self.map.metadata().map(|(kind, number, place)| {
            Wanted::at(place, self.space.generation(place.segment), kind, number)
        });
        self.lists.iter().copied().chain(of_map)
    }

    /// Returns the last batch of the snapshot.
    pub(crate) fn watermark(&self) -> SeqNo {
        self.watermark
    }

    /// Returns the segments of frames with the bytes that were live in them, and the last batch in
    /// each.
    pub(crate) fn segments(&self) -> impl Iterator<Item = (SegmentUse, u32, SeqNo)> {
        self.space.used().map(|used| {
            let of = SegmentUse { segment: used.segment, generation: used.generation };
            (of, used.live_bytes, self.space.last_seq(used.segment))
        })
    }

    /// Returns which of some frames of a use of a segment the snapshot names. If a leaf cannot be
    /// read, it may name any of them.
    pub(crate) async fn names(
        &mut self,
        medium: &dyn AnyMedium,
        of: SegmentUse,
        frames: &[(Lba, FramePlace)],
    ) -> Vec<bool> {
        let mut named = vec![false; frames.len()];
        if self.space.generation(of.segment) != of.generation {
            return named;
        }
        let blocks = self.superblock.size_bytes / BLOCK_BYTES as u64;
        let mut by_leaf: Vec<usize> = (0..frames.len()).collect();
        let leaf_of =
            |at: &usize| frames.get(*at).map_or(0, |(lba, _)| lba.0 / u64::from(LEAF_BLOCKS));
        by_leaf.sort_by_key(leaf_of);
        let groups: Vec<&[usize]> =
            by_leaf.chunk_by(|one, next| leaf_of(one) == leaf_of(next)).collect();
        for groups in groups.chunks(READS_AT_ONCE) {
            let leaves = groups.iter().filter_map(|group| group.first()).map(leaf_of);
            self.load(medium, leaves.collect()).await;
            for &at in groups.iter().copied().flatten() {
                let (Some(&(lba, place)), Some(named)) = (frames.get(at), named.get_mut(at)) else {
                    continue;
                };
                let count = u64::from(place.blocks);
                *named = lba.0 + count <= blocks
                    && (self.map.missing(lba, count).is_some()
                        || self.map.live_pieces(lba, place).next().is_some());
            }
        }
        named
    }

    /// Loads leaves concurrently, as far as they can be read.
    async fn load(&mut self, medium: &dyn AnyMedium, leaves: Vec<u64>) {
        let Self { superblock, map, space, moved, .. } = self;
        let reader = &Reader::of_kept(medium, superblock, moved);
        reader.widen(space.segment_count());
        let last = superblock.size_bytes.div_ceil(BLOCK_BYTES as u64 * u64::from(LEAF_BLOCKS));
        let on_disk = leaves.into_iter().filter(|&leaf| leaf < last);
        let missing = on_disk.filter_map(|leaf| {
            let first = Lba(leaf * u64::from(LEAF_BLOCKS));
            map.missing(first, 1)?;
            let DirectoryEntry::Leaf(place) = map.entry(leaf) else { return None };
            Some((leaf, LeafPlace { place, generation: space.generation(place.segment) }))
        });
        let missing: Vec<_> = missing.collect();
        let reads = missing
            .into_iter()
            .map(|(leaf, from)| async move { (leaf, from.place, reader.leaf(leaf, from).await) });
        let mut reads = iter(reads).buffer_unordered(READS_AT_ONCE);
        while let Some((leaf, place, read)) = reads.next().await {
            match read {
                Ok(content) => {
                    map.install(leaf, place, content);
                }
                Err(error) => {
                    tracing::warn!(
                        leaf,
                        error = %error.chain(),
                        "cannot read a leaf of a snapshot: keeping every frame that it may name"
                    );
                }
            }
        }
    }
}

/// Returns the root of a snapshot and the lists that are read for it, without those of other
/// snapshots.
fn lists_of(place: &CheckpointAddress, root: &Root, space: &Space) -> Vec<Wanted> {
    let &CheckpointAddress { address, record_bytes, .. } = place;
    let mut found = vec![Wanted { place: address, record_bytes, kind: MetaKind::Root, number: 0 }];
    for (kind, places) in [
        (MetaKind::PageList, &root.page_lists),
        (MetaKind::Table, &root.tables),
        (MetaKind::Dropped, &root.dropped_lists),
        (MetaKind::Retained, &root.retained_lists),
    ] {
        let pieces = (0..).zip(places);
        found.extend(pieces.map(|(number, &place)| {
            Wanted::at(place, space.generation(place.segment), kind, number)
        }));
    }
    found
}

//! Leaves of the map that are damaged beyond restoring.
//!
//! ```text
//! lost:        a leaf in memory whose blocks all map to the damaged record, which is no frame
//! checkpoint:  those blocks get frames without content (encoding "lost") in the host's stream,
//!              the leaf is then written like any other
//! ```
//!
//! Once marked as lost, a leaf is an ordinary leaf whose blocks cannot be read until they are
//! written or trimmed. Frames that it mapped before still count as live in their segments, since
//! their places are unknown. Garbage collection counts them as dead once a scan of the whole
//! segment shows that the map names nothing more in it.

use super::super::map::{LEAF_BLOCKS, Leaf, Mapping};
use super::super::place::blocks_of_frame;
use super::{Core, Purpose};
use crate::base::units::BLOCK_BYTES;
use crate::base::{Lba, Result, SegmentId};
use crate::codec::Encoding;
use crate::format::{DirectoryEntry, RECORD_HEADER_BYTES, Stream};

/// Bytes of the records for a leaf if each block needs a record.
const RECORDS_BYTES: usize = LEAF_BLOCKS as usize * RECORD_HEADER_BYTES;

/// Attempts to read a damaged leaf before it is declared lost: the fault may be in the read.
pub(crate) const LOSE_ATTEMPTS: u32 = 5;

/// The lost leaves of the map.
#[derive(Debug, Default)]
pub(super) struct LostLeaves {
    /// Number of lost leaves over the drive's life.
    count: u32,
    /// Lost leaves in memory that the next checkpoint will write.
    waiting: Vec<u64>,
}

impl Core {
    /// Continues counting lost leaves from the newest checkpoint.
    pub(crate) fn set_lost_leaves(&mut self, count: u32) {
        self.lost.count = count;
    }

    /// Returns the number of leaves that were lost over the drive's life. Unless it is 0, more
    /// bytes may count as live than the map names.
    pub(crate) fn lost_leaves(&self) -> u32 {
        self.lost.count
    }

    /// Returns whether a leaf was lost since the newest checkpoint began.
    pub(crate) fn has_lost_waiting(&self) -> bool {
        !self.lost.waiting.is_empty()
    }

    /// Marks a leaf whose record is damaged beyond restoring as lost, so that everything around it
    /// can be changed and freed.
    pub(crate) fn lose_leaf(&mut self, leaf: u64) {
        let DirectoryEntry::Leaf(place) = self.map.entry(leaf) else { return };
        let first = leaf * u64::from(LEAF_BLOCKS);
        let disk_blocks = self.size_bytes() / BLOCK_BYTES as u64;
        let blocks = disk_blocks.saturating_sub(first).min(LEAF_BLOCKS.into());
        let blocks = u16::try_from(blocks).expect("a leaf has 1024 blocks");
        let lost = Leaf::lost(place, blocks);
        if !self.map.install(leaf, place, lost) || !self.map.touch_leaf(leaf) {
            return;
        }
        self.lost.waiting.push(leaf);
        self.lost.count = self.lost.count.saturating_add(1);
        tracing::error!(
            drive = %self.superblock.uuid,
            leaf,
            segment = %place.segment,
            offset = place.offset,
            blocks,
            "a leaf of the map is lost: reads of its blocks fail until they are written or trimmed"
        );
    }

    /// Appends frames without content for blocks of a lost leaf that were not written since, and
    /// maps the blocks to them. Processes the last lost leaf first. Returns `None` if there is no
    /// space yet.
    ///
    /// # Errors
    /// `NoSpace` or `Poisoned`; nothing has been appended.
    pub(crate) fn append_lost(&mut self) -> Result<Option<()>> {
        let Some(&leaf) = self.lost.waiting.last() else { return Ok(Some(())) };
        if !self.make_room(RECORDS_BYTES, Purpose::Lost)? {
            return Ok(None);
        }
        let frame_blocks = u64::from(self.superblock.frame_blocks);
        let runs = self.map.leaf_runs(leaf).into_iter().flatten();
        let named = runs.filter_map(|(lba, count, mapping)| match mapping {
            Mapping::Frame { place, .. } => Some((lba, count, place.segment)),
            Mapping::Hole | Mapping::Fill(_) => None,
        });
        let lost: Vec<_> = named.filter(|&(_, _, segment)| self.has_metadata(segment)).collect();
        for (lba, count, _) in lost {
            let mut at = lba.0;
            while at < lba.0 + count {
                let end = (at / frame_blocks + 1) * frame_blocks;
                let blocks = blocks_of_frame(end.min(lba.0 + count) - at);
                let batch = self.log.open_batch(Stream::Host);
                let place = batch.push_frame(Lba(at), blocks, |_| (Encoding::Lost, 0));
                self.counters.frame_bytes.add(u64::from(place.record_bytes));
                self.map_frame(Lba(at), place, None);
                at += u64::from(blocks);
            }
        }
        assert_eq!(self.lost.waiting.pop(), Some(leaf), "the leaf that was written waits no more");
        Ok(Some(()))
    }

    /// Returns whether a segment contains metadata: a block that maps to it belongs to a lost leaf.
    pub(crate) fn has_metadata(&self, segment: SegmentId) -> bool {
        self.space.stream(segment) == Stream::Meta
    }

    /// Counts everything in a segment of frames as dead if a leaf was lost. The log shows that the
    /// segment was reused, but not when the frames that the leaf mapped died.
    pub(crate) fn forget_reused(&mut self, segment: SegmentId) {
        if self.lost.count > 0 && !self.has_metadata(segment) {
            self.space.release(segment, self.space.live_bytes_of(segment));
        }
    }

    /// If a leaf was lost, counts all bytes of a segment that still count as live as dead. Call it
    /// only after a scan of the whole segment has moved everything that the map names. Returns
    /// whether a leaf was lost.
    pub(crate) fn forget_live(&mut self, segment: SegmentId) -> bool {
        if self.lost.count == 0 {
            return false;
        }
        let live_bytes = self.space.live_bytes_of(segment);
        tracing::warn!(%segment, live_bytes, "forgetting the blocks of a lost leaf");
        self.space.forget_live(segment, self.log.sealed_seq());
        true
    }
}

//! The state of clones. In an origin: the snapshots that have clones, whose frames stay in place.
//! In a clone: the holes that are not zeroes.
//!
//! Another process reads a cloned snapshot, with the forwarding tables that it found when it opened
//! the drive. Therefore no segment that such a snapshot needs is emptied after the step that begins
//! the checkpoint which names the clone: that checkpoint contains the tables of all segments
//! emptied before.

use super::super::map::{Lookup, Mapping};
use super::{Attempt, Core};
use crate::base::units::len_u32;
use crate::base::{Lba, Result, SeqNo};
use crate::format::{Record, Snapshot};

impl Core {
    /// Returns the number of blocks, from the start of the disk, whose holes read from the origin
    /// of the clone; 0 if the drive is not a clone, or its disk was flattened.
    #[inline]
    pub(crate) fn inherited_blocks(&self) -> u64 {
        match &self.superblock.origin {
            Some(origin) if self.superblock.flat_since == SeqNo(0) => origin.blocks,
            _ => 0,
        }
    }

    /// Returns the number of the batch since which no block of the disk has read from the origin,
    /// provided that none reads from it now, and the number of older snapshots.
    pub(crate) fn flat_since(&self) -> (SeqNo, u32) {
        let known = Some(self.superblock.flat_since).filter(|&since| since > SeqNo(0));
        // Batch numbers start at 1.
        let since = known.unwrap_or(self.log.sealed_seq().max(SeqNo(1)));
        let older = |entry: &Snapshot| entry.watermark < since;
        let older = self.snapshots.kept().iter().filter(|kept| older(&kept.entry)).count();
        (since, len_u32(older))
    }

    /// Returns whether the running checkpoint deletes the last snapshot that still reads from the
    /// origin of a clone, after the clone's disk was flattened.
    pub(crate) fn will_be_independent(&self) -> bool {
        let flat_since = self.superblock.flat_since;
        let reads = |entry: &Snapshot| entry.watermark < flat_since;
        flat_since > SeqNo(0) && !self.snapshots.next_list().iter().any(reads)
    }

    /// Records that the disk is rolled back to a snapshot, which may read from the origin where the
    /// disk does not.
    pub(super) fn inherit_as(&mut self, snapshot: SeqNo) {
        if snapshot < self.superblock.flat_since {
            self.superblock.flat_since = SeqNo(0);
        }
    }

    /// Returns a record that zeroes the same blocks as `record`: a trim of blocks that a clone
    /// would then read from its origin becomes a fill.
    pub(super) fn without_holes(&self, record: &Record) -> Record {
        match *record {
            Record::Trim { lba, lba_count } if lba < Lba(self.inherited_blocks()) => {
                Record::Fill { lba, lba_count, byte: 0 }
            }
            record => record,
        }
    }

    /// Appends zeroes for blocks of one leaf of the map, if all of them are holes.
    ///
    /// # Errors
    /// `NoSpace` or `Poisoned`; nothing has been appended.
    pub(crate) fn fill_hole(&mut self, lba: Lba, blocks: u64) -> Result<Attempt> {
        let is_hole = |core: &Self| match core.map.peek(lba) {
            Lookup::Run(Mapping::Hole, run) => run >= blocks,
            _ => false,
        };
        if !is_hole(self) {
            return Ok(Attempt::Changed);
        }
        self.append_range(&Record::Fill { lba, lba_count: blocks, byte: 0 })
    }
}

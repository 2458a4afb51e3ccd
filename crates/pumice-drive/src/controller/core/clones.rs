//! The state of clones. On the side of the origin: the snapshots that have clones, whose frames
//! stay where they are. On the side of the clone: the holes that are not zeroes.
//!
//! Another process reads a cloned snapshot, with the forwarding tables that it found when it opened
//! the drive. So no segment that such a snapshot needs is emptied, from the step that begins the
//! checkpoint which names the clone: that checkpoint has the tables of all segments emptied before.

use uuid::Uuid;

use super::super::map::{Lookup, Mapping};
use super::{Attempt, Core, SegmentSet};
use crate::base::units::len_u32;
use crate::base::{Error, ErrorKind, Lba, Remedy, Result, SeqNo};
use crate::format::{CLONES_MAX, Record, RegisteredClone, Snapshot, check_clone_path};

/// Clones that a message names.
const NAMED_MAX: usize = 3;

impl Core {
    /// Returns the number of blocks of the disk, from the first on, that read from the origin of a
    /// clone where they are holes; 0 if the drive is no clone, or its disk was flattened.
    #[inline]
    pub(crate) fn inherited_blocks(&self) -> u64 {
        match &self.superblock.origin {
            Some(origin) if self.superblock.flat_since == SeqNo(0) => origin.blocks,
            _ => 0,
        }
    }

    /// Returns the batch from which on nothing reads from the origin, if no block of the disk does,
    /// and the number of older snapshots.
    pub(crate) fn flat_since(&self) -> (SeqNo, u32) {
        let known = Some(self.superblock.flat_since).filter(|&since| since > SeqNo(0));
        // The first batch has number 1.
        let since = known.unwrap_or(self.log.sealed_seq().max(SeqNo(1)));
        let older = |entry: &Snapshot| entry.watermark < since;
        let older = self.snapshots.kept().iter().filter(|kept| older(&kept.entry)).count();
        (since, len_u32(older))
    }

    /// Returns whether the running checkpoint deletes the last snapshot that reads from the origin
    /// of a clone whose disk does not.
    pub(crate) fn will_be_independent(&self) -> bool {
        let flat_since = self.superblock.flat_since;
        let reads = |entry: &Snapshot| entry.watermark < flat_since;
        flat_since > SeqNo(0) && !self.snapshots.next_list().iter().any(reads)
    }

    /// Notes that the disk is rolled back to a snapshot, which may read from the origin where the
    /// disk does not.
    pub(super) fn inherit_as(&mut self, snapshot: SeqNo) {
        if snapshot < self.superblock.flat_since {
            self.superblock.flat_since = SeqNo(0);
        }
    }

    /// Returns a record that makes blocks zeroes like `record`: a trim of blocks that a clone would
    /// then read from its origin becomes a fill.
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
    /// `NoSpace`, `Poisoned`; nothing is appended then.
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

    /// Returns an error if a snapshot that would go has clones.
    pub(super) fn check_uncloned(&self, goes: &impl Fn(SeqNo) -> bool) -> Result<()> {
        let mut cloned = self.snapshots.kept().iter().map(|kept| &kept.entry);
        let cloned = cloned.find(|entry| goes(entry.watermark) && !entry.clones.is_empty());
        let Some(entry) = cloned else { return Ok(()) };
        let named = entry.clones.iter().take(NAMED_MAX).map(|clone| clone.path.as_str());
        let mut clones = named.collect::<Vec<_>>().join(", ");
        if let Some(more) = entry.clones.len().checked_sub(NAMED_MAX).filter(|&more| more > 0) {
            clones += &format!(" and {more} more");
        }
        let what = format!(
            "the snapshot {} is the origin of {clones}: flatten each to make it independent",
            entry.name
        );
        Err(Error::new(ErrorKind::Busy, what).with_remedy(Remedy::Forget))
    }

    /// Checks that a clone can be registered.
    ///
    /// # Errors
    /// `InvalidInput`, `AlreadyExists`, `NoSpace`, `Corrupt`; `Busy` while the key is replaced.
    pub(super) fn check_new_clone(&self, of: SeqNo, clone: &RegisteredClone) -> Result<()> {
        check_clone_path(&clone.path)?;
        if self.is_rekeying {
            // Data that the clone needs would stay under the earlier key.
            let what = "the key of the drive is being replaced: wait until this ends";
            return Err(Error::new(ErrorKind::Busy, what));
        }
        let kept = self.snapshots.kept();
        let all = kept.iter().map(|kept| kept.entry.clones.len()).sum::<usize>();
        if all >= CLONES_MAX {
            let what = format!("the drive has {all} clones, the maximum: flatten some");
            return Err(Error::new(ErrorKind::NoSpace, what));
        }
        let Some(kept) = kept.iter().find(|kept| kept.entry.watermark == of) else { return Ok(()) };
        if let Some(damage) = &kept.damage {
            return Err(Error::new(ErrorKind::Corrupt, damage.clone()));
        }
        if kept.entry.is_bookmark {
            let what = format!("{} is a bookmark, which has no data", kept.entry.name);
            return Err(Error::new(ErrorKind::InvalidInput, what));
        }
        if kept.entry.clones.iter().any(|other| other.drive == clone.drive) {
            let what = format!("the clone {} is registered already", clone.path);
            return Err(Error::new(ErrorKind::AlreadyExists, what));
        }
        Ok(())
    }

    /// Keeps garbage collection away from exactly those segments that are needed by snapshots which
    /// views or clones read.
    pub(super) fn fix_read(&mut self) {
        let mut fixed = SegmentSet::default();
        for kept in self.snapshots.kept().iter().filter(|kept| self.snapshots.is_read(kept)) {
            kept.retained.iter().for_each(|segment| {
                fixed.insert(segment);
            });
        }
        self.space.fix_only(|segment| fixed.contains(segment));
    }

    /// Returns the snapshot that has a clone, if there is one.
    pub(crate) fn origin_of(&self, clone: Uuid) -> Option<SeqNo> {
        let mut kept = self.snapshots.kept().iter();
        let has = |drives: &[RegisteredClone]| drives.iter().any(|found| found.drive == clone);
        kept.find(|kept| has(&kept.entry.clones)).map(|kept| kept.entry.watermark)
    }
}

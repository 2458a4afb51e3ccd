//! The undo log of a power loss: the content that every unsynced write has replaced.
//!
//! ```text
//! begin --> in progress --complete--> done --settle (a sync succeeded)--> forgotten
//!               |                     |
//!               +-------- doom -------+--> doomed (an error: no later sync makes it durable)
//! ```
//!
//! Invariant: records are in the order in which the writes began, and a sector that became durable
//! is never rolled back by an older record.
//!
//! This file does no I/O: it determines which sectors revert to which bytes, and the layer writes
//! them.

use std::collections::BTreeSet;

use super::{Crash, SECTOR_BYTES, below};
use crate::base::seed::Random;
use crate::base::{AlignedBuffer, SegmentId};

/// The target of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Region {
    /// A segment.
    Segment(SegmentId),
    /// A superblock slot.
    Superblock(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    InProgress,
    Done,
    Doomed,
}

/// One unsynced write: the range of whole sectors that contains it, and the earlier content.
#[derive(Debug)]
pub(super) struct Record {
    id: u64,
    state: State,
    pub(super) region: Region,
    /// Start of the range in bytes.
    pub(super) offset: u32,
    /// Earlier content of the whole range.
    pub(super) old: AlignedBuffer,
    /// For each sector of the range, whether the write touches it and no later write made it
    /// durable.
    exposed: Vec<bool>,
}

impl Record {
    fn sector(&self, index: usize) -> (Region, usize) {
        assert!(index < self.exposed.len(), "a sector outside its record");
        (self.region, self.offset as usize / SECTOR_BYTES + index)
    }

    fn exposed_sectors(&self) -> impl Iterator<Item = usize> {
        (0..self.exposed.len()).filter(|&index| self.exposed[index])
    }
}

/// Sectors of one record that revert to their earlier content.
#[derive(Debug)]
pub(super) struct Rollback {
    pub(super) record: Record,
    /// Indices of sectors in the record's range.
    pub(super) sectors: Vec<usize>,
}

/// All unsynced writes of a medium.
#[derive(Debug, Default)]
pub(super) struct UndoLog {
    records: Vec<Record>,
    ids: u64,
}

impl UndoLog {
    /// Records that the write of the bytes `write` is about to replace `old`, the content of a
    /// range of whole sectors that starts at `offset` and contains the write. Returns the number of
    /// the write.
    pub(super) fn begin(
        &mut self,
        region: Region,
        offset: u32,
        old: AlignedBuffer,
        write: std::ops::Range<usize>,
    ) -> u64 {
        assert!(old.len().is_multiple_of(SECTOR_BYTES), "a range of whole sectors");
        assert!(offset as usize <= write.start, "the range contains the write");
        assert!(write.end <= offset as usize + old.len(), "the range contains the write");
        let first = (write.start - offset as usize) / SECTOR_BYTES;
        let end = (write.end - offset as usize).div_ceil(SECTOR_BYTES);
        let exposed = (0..old.len() / SECTOR_BYTES).map(|i| (first..end).contains(&i)).collect();
        self.ids += 1;
        let state = State::InProgress;
        self.records.push(Record { id: self.ids, state, region, offset, old, exposed });
        self.ids
    }

    /// Marks a write as completed: the next sync makes it durable.
    pub(super) fn complete(&mut self, id: u64) {
        self.set_state(&[id], State::Done);
    }

    /// Marks writes that can no longer become durable, because they or a sync that covered them
    /// failed.
    pub(super) fn doom(&mut self, ids: &[u64]) {
        self.set_state(ids, State::Doomed);
    }

    fn set_state(&mut self, ids: &[u64], state: State) {
        for record in self.records.iter_mut().filter(|record| ids.contains(&record.id)) {
            let is_possible = record.state != State::Doomed || state == State::Doomed;
            assert!(is_possible, "no later sync makes a failed write durable");
            record.state = state;
        }
    }

    /// Returns the writes that a sync would make durable now, in order.
    pub(super) fn completed(&self) -> Vec<u64> {
        let done = self.records.iter().filter(|record| record.state == State::Done);
        done.map(|record| record.id).collect()
    }

    /// Removes the writes `ids` (in order), which a successful sync has made durable.
    pub(super) fn settle(&mut self, ids: &[u64]) {
        for id in ids {
            // A discard may have removed it since, or another sync may have doomed it.
            let is_settled = |record: &Record| record.id == *id && record.state == State::Done;
            let Some(index) = self.records.iter().position(is_settled) else {
                continue;
            };
            let settled = self.records.remove(index);
            debug_assert!(self.records.is_sorted_by_key(|record| record.id), "order of writes");
            let older = self.records[..index].iter_mut().filter(|r| r.region == settled.region);
            for record in older {
                for sector in settled.exposed_sectors() {
                    let byte = settled.offset as usize + sector * SECTOR_BYTES;
                    let index = byte.checked_sub(record.offset as usize).map(|b| b / SECTOR_BYTES);
                    if let Some(exposed) = index.and_then(|index| record.exposed.get_mut(index)) {
                        *exposed = false;
                    }
                }
            }
        }
    }

    /// Removes the writes to a segment that was discarded.
    pub(super) fn forget(&mut self, segment: SegmentId) {
        self.records.retain(|record| record.region != Region::Segment(segment));
    }

    /// Draws the fate of the writes in progress, as in a crash, when the writing process has died.
    /// A write that arrived completely counts as completed from now on.
    pub(super) fn kill(&mut self, random: &mut Random) -> (Vec<Rollback>, Crash) {
        let is_in_progress = |record: &Record| record.state == State::InProgress;
        let mut torn = Vec::new();
        for index in (0..self.records.len()).rev() {
            if !is_in_progress(&self.records[index]) {
                continue;
            }
            if below(random, 2) == 0 {
                self.records[index].state = State::Done;
            } else {
                torn.insert(0, self.records.remove(index));
            }
        }
        draw_fates(torn, random)
    }

    /// Returns a sector (its region and byte offset) of each record that a power loss may have
    /// interrupted: the newest write of each region, on which the device was working.
    pub(super) fn last_sectors(&self) -> Vec<(Region, u32)> {
        let mut last = std::collections::BTreeMap::new();
        for record in &self.records {
            if let Some(sector) = record.exposed_sectors().last() {
                let bytes = u32::try_from(sector * SECTOR_BYTES).expect("offsets have 32 bits");
                last.insert(record.region, record.offset + bytes);
            }
        }
        last.into_iter().collect()
    }

    /// Draws the fate of every unsynced write. Returns the rollbacks in the order in which to apply
    /// them, newest first. Each write is preserved, dropped, truncated after some sector, or
    /// scattered (each sector preserved or dropped), with equal probability.
    pub(super) fn crash(&mut self, random: &mut Random) -> (Vec<Rollback>, Crash) {
        draw_fates(std::mem::take(&mut self.records), random)
    }
}

/// Draws the fates of `records`, which are in the order in which they began.
fn draw_fates(records: Vec<Record>, random: &mut Random) -> (Vec<Rollback>, Crash) {
    let mut crash = Crash::default();
    let mut rollbacks = Vec::new();
    // Sectors whose surviving content is decided. Older writes to them no longer matter.
    let mut decided = BTreeSet::new();
    for record in records.into_iter().rev() {
        let exposed: Vec<usize> = record.exposed_sectors().collect();
        let mut lost = vec![false; exposed.len()];
        match below(random, 4) {
            0 => {}
            1 => lost.fill(true),
            2 => lost[below(random, exposed.len() + 1)..].fill(true),
            _ => lost.fill_with(|| below(random, 2) == 0),
        }
        match lost.iter().filter(|&&lost| lost).count() {
            0 => crash.writes_kept += 1,
            count if count == exposed.len() => crash.writes_dropped += 1,
            _ => crash.writes_torn += 1,
        }
        let mut sectors = Vec::new();
        for (&sector, lost) in exposed.iter().zip(lost) {
            if !lost {
                decided.insert(record.sector(sector));
            } else if !decided.contains(&record.sector(sector)) {
                sectors.push(sector);
            }
        }
        rollbacks.push(Rollback { record, sectors });
    }
    let writes = crash.writes_kept + crash.writes_dropped + crash.writes_torn;
    assert_eq!(writes, rollbacks.len() as u64, "each write has one fate");
    (rollbacks, crash)
}

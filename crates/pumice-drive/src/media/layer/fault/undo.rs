//! What a power loss would take back: the content that every unsynced write has replaced.
//!
//! ```text
//! begin --> under way --complete--> done --settle (a sync succeeded)--> forgotten
//!               |                     |
//!               +-------- doom -------+--> doomed (an error: no later sync makes it durable)
//! ```
//!
//! Invariant: records are in the order in which the writes began, and a sector that became durable
//! is never rolled back by an older record.
//!
//! Does no I/O: it says which sectors get which bytes, the layer writes them.

use std::collections::BTreeSet;

use super::{Crash, SECTOR_BYTES, below};
use crate::base::seed::Random;
use crate::base::{AlignedBuffer, SegmentId};

/// What a write can go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    Segment(SegmentId),
    Superblock(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    UnderWay,
    Done,
    Doomed,
}

/// One unsynced write: a range of whole sectors around it, and what was there before.
#[derive(Debug)]
pub(super) struct Record {
    id: u64,
    state: State,
    pub(super) place: Place,
    /// Where the range starts, in bytes.
    pub(super) offset: u32,
    /// What the whole range held before.
    pub(super) old: AlignedBuffer,
    /// The sectors of the range that the write touches and that no later write made durable.
    exposed: Vec<bool>,
}

impl Record {
    fn sector(&self, index: usize) -> (Place, usize) {
        (self.place, self.offset as usize / SECTOR_BYTES + index)
    }

    fn exposed_sectors(&self) -> impl Iterator<Item = usize> {
        (0..self.exposed.len()).filter(|&index| self.exposed[index])
    }
}

/// Sectors of one record that return to what they held before.
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
    /// Remembers what a write of bytes `start..end` is about to replace: `old`, a range of whole
    /// sectors from `offset` that contains the write. Gives the number of the write.
    pub(super) fn begin(
        &mut self,
        place: Place,
        offset: u32,
        old: AlignedBuffer,
        write: std::ops::Range<usize>,
    ) -> u64 {
        let first = (write.start - offset as usize) / SECTOR_BYTES;
        let end = (write.end - offset as usize).div_ceil(SECTOR_BYTES);
        let exposed = (0..old.len() / SECTOR_BYTES).map(|i| (first..end).contains(&i)).collect();
        self.ids += 1;
        let state = State::UnderWay;
        self.records.push(Record { id: self.ids, state, place, offset, old, exposed });
        self.ids
    }

    /// The write has completed: the next sync makes it durable.
    pub(super) fn complete(&mut self, id: u64) {
        self.set_state(&[id], State::Done);
    }

    /// The writes can no longer become durable: they, or the sync that was to cover them, failed.
    pub(super) fn doom(&mut self, ids: &[u64]) {
        self.set_state(ids, State::Doomed);
    }

    fn set_state(&mut self, ids: &[u64], state: State) {
        for record in self.records.iter_mut().filter(|record| ids.contains(&record.id)) {
            record.state = state;
        }
    }

    /// The writes that a sync called now makes durable, in order.
    pub(super) fn completed(&self) -> Vec<u64> {
        let done = self.records.iter().filter(|record| record.state == State::Done);
        done.map(|record| record.id).collect()
    }

    /// A sync that covered the writes `ids` (in order) succeeded: they are durable.
    pub(super) fn settle(&mut self, ids: &[u64]) {
        for id in ids {
            // Meanwhile a discard may have taken it out, or another sync may have doomed it.
            let is_settled = |record: &Record| record.id == *id && record.state == State::Done;
            let Some(index) = self.records.iter().position(is_settled) else {
                continue;
            };
            let settled = self.records.remove(index);
            let older = self.records[..index].iter_mut().filter(|r| r.place == settled.place);
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

    /// Forgets the writes to a segment that was discarded.
    pub(super) fn forget(&mut self, segment: SegmentId) {
        self.records.retain(|record| record.place != Place::Segment(segment));
    }

    /// The writers are gone: draws the fate of what was under way, as in a crash. What had arrived
    /// whole is as any other completed write from now on.
    pub(super) fn kill(&mut self, random: &mut Random) -> (Vec<Rollback>, Crash) {
        let is_under_way = |record: &Record| record.state == State::UnderWay;
        let mut torn = Vec::new();
        for index in (0..self.records.len()).rev() {
            if !is_under_way(&self.records[index]) {
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

    /// Draws the fate of every unsynced write and gives what to roll back, in the order in which
    /// to do it (newest first). Each write is kept, dropped, cut off behind some sector, or
    /// scattered (each sector kept or dropped), one as likely as the other.
    pub(super) fn crash(&mut self, random: &mut Random) -> (Vec<Rollback>, Crash) {
        draw_fates(std::mem::take(&mut self.records), random)
    }
}

/// What a loss leaves of `records`, in the order in which they began.
fn draw_fates(records: Vec<Record>, random: &mut Random) -> (Vec<Rollback>, Crash) {
    let mut crash = Crash::default();
    let mut rollbacks = Vec::new();
    // Sectors whose surviving content is known: what older writes did to them is past.
    let mut decided = BTreeSet::new();
    for record in records.into_iter().rev() {
        let exposed: Vec<usize> = record.exposed_sectors().collect();
        let mut lost = vec![false; exposed.len()];
        match below(random, 4) {
            0 => {}
            1 => lost.fill(true),
            2 => lost[below(random, exposed.len() as u64 + 1) as usize..].fill(true),
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
    (rollbacks, crash)
}

//! The segments of a simulated drive: their live bytes, their erase blocks, their host blocks, and
//! the selection of the next victim.
//!
//! ```text
//! free --open--> open --seal--> sealed --take--> victim --release_victim--> free
//!                                   a block has failed, and its die has no other --> retired
//! ```
//!
//! The selection of a victim examines every segment once: a few bytes each, once per victim. The
//! module is independent of the map and of time.

use std::collections::{BTreeSet, VecDeque};

use super::reverse::LbaSet;
use crate::nand::{BlockAddress, FREE_BLOCK_BYTES, Flash, FlashShape, FreeBlocks, Worn};
use pumice_drive::controller::benefit_over_cost;

/// Minimum number of entries for which thinning a reverse list is worthwhile (arbitrary).
const THINNED_MIN: u32 = 64;

/// The policy that chooses the segment to empty next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VictimPolicy {
    /// The segment with the fewest live bytes.
    Greedy,
    /// The policy of this program's controller: dead bytes times age, divided by the cost of moving
    /// the rest.
    CostBenefit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Open,
    Sealed,
    Victim,
    /// No longer used, because a die has too few good blocks left.
    Retired,
}

#[derive(Clone, Debug)]
struct Segment {
    state: State,
    /// Number of bytes in live frames.
    live_bytes: u32,
    /// Number of live frames.
    live_count: u32,
    /// If sealed: number of bytes before the unusable end, which is too short for a frame.
    used_bytes: u32,
    /// If sealed: number of data rows issued.
    rows: u32,
    /// Number of dies that had failed when the segment was opened.
    dead: u16,
    /// Number of blocks that the host had written when it wrote the most recent frame in this
    /// segment.
    age: u64,
    /// If sealed: the blocks that were live at that time; some may have died since.
    lbas: LbaSet,
}

/// All segments of a drive.
#[derive(Clone, Debug)]
pub(super) struct Segments {
    segments: Vec<Segment>,
    /// For each segment in use, its block on each die.
    blocks: Vec<u32>,
    dies: u32,
    /// In the order in which they became free.
    free: VecDeque<u32>,
    free_blocks: FreeBlocks,
}

impl Segments {
    /// Creates free segments, up to the number of good blocks on the die with the fewest.
    pub(super) fn new(shape: &FlashShape, free_blocks: FreeBlocks) -> Self {
        let count = free_blocks.segment_count();
        let empty = Segment {
            state: State::Free,
            live_bytes: 0,
            live_count: 0,
            used_bytes: 0,
            rows: 0,
            dead: 0,
            age: 0,
            lbas: LbaSet::default(),
        };
        Self {
            segments: vec![empty; count as usize],
            blocks: vec![0; count as usize * shape.dies() as usize],
            dies: shape.dies(),
            free: (0..count).collect(),
            free_blocks,
        }
    }

    pub(super) fn free_count(&self) -> u32 {
        self.free.len() as u32
    }

    pub(super) fn free_blocks(&self) -> &FreeBlocks {
        &self.free_blocks
    }

    /// Returns the block on a die that belongs to a segment in use.
    pub(super) fn block(&self, segment: u32, die: u32) -> BlockAddress {
        let index = segment as usize * self.dies as usize + die as usize;
        BlockAddress { die, block: self.blocks[index] }
    }

    /// Opens a segment that consists of the least or most worn free block of each die. `dead` dies
    /// have failed.
    pub(super) fn open(&mut self, which: Worn, dead: u16) -> Option<u32> {
        let segment = self.free.pop_front()?;
        for die in 0..self.dies {
            let index = segment as usize * self.dies as usize + die as usize;
            self.blocks[index] = self.free_blocks.take(die, which);
        }
        let entry = &mut self.segments[segment as usize];
        assert!(entry.state == State::Free && entry.live_count == 0, "segment {segment} is in use");
        entry.state = State::Open;
        entry.dead = dead;
        entry.age = 0;
        Some(segment)
    }

    /// Adds a frame that is written or moved. `age` is the number of blocks that the host had
    /// written.
    #[inline]
    pub(super) fn add(&mut self, segment: u32, bytes: u32, age: u64) {
        let entry = &mut self.segments[segment as usize];
        assert!(entry.state == State::Open, "segment {segment} takes no frames");
        entry.live_bytes += bytes;
        entry.live_count += 1;
        entry.age = entry.age.max(age);
    }

    /// Records that a frame is dead. Returns whether the segment's list should be thinned because
    /// more than half of it is dead.
    #[inline]
    pub(super) fn release(&mut self, segment: u32, bytes: u32) -> bool {
        let entry = &mut self.segments[segment as usize];
        let has_frame = entry.live_bytes >= bytes && entry.live_count > 0;
        assert!(has_frame, "segment {segment} has no live frame of {bytes} bytes");
        entry.live_bytes -= bytes;
        entry.live_count -= 1;
        let listed = entry.lbas.len();
        entry.state == State::Sealed && listed >= THINNED_MIN && entry.live_count < listed / 2
    }

    /// Seals an open segment with `used_bytes` usable bytes, `rows` issued data rows, and the
    /// blocks `lbas`.
    pub(super) fn seal(&mut self, segment: u32, used_bytes: u32, rows: u32, lbas: LbaSet) {
        let entry = &mut self.segments[segment as usize];
        let fits = entry.live_bytes <= used_bytes && entry.live_count <= lbas.len();
        assert!(entry.state == State::Open && fits, "segment {segment} cannot be sealed");
        entry.state = State::Sealed;
        entry.used_bytes = used_bytes;
        entry.rows = rows;
        entry.lbas = lbas;
    }

    /// Replaces the list of a sealed segment.
    pub(super) fn set_lbas(&mut self, segment: u32, lbas: LbaSet) {
        let entry = &mut self.segments[segment as usize];
        assert_eq!(entry.live_count, lbas.len(), "live frames of segment {segment}");
        entry.lbas = lbas;
    }

    pub(super) fn lbas(&self, segment: u32) -> &LbaSet {
        &self.segments[segment as usize].lbas
    }

    /// Returns the number of issued data rows of a sealed segment.
    pub(super) fn rows(&self, segment: u32) -> u32 {
        self.segments[segment as usize].rows
    }

    /// Returns the number of dies that had failed when a segment was opened.
    pub(super) fn dead(&self, segment: u32) -> u16 {
        self.segments[segment as usize].dead
    }

    pub(super) fn live_bytes(&self, segment: u32) -> u32 {
        self.segments[segment as usize].live_bytes
    }

    pub(super) fn live_count(&self, segment: u32) -> u32 {
        self.segments[segment as usize].live_count
    }

    pub(super) fn age(&self, segment: u32) -> u64 {
        self.segments[segment as usize].age
    }

    /// Returns the sealed segment that should be emptied next, when the host has written `now`
    /// blocks; `None` if no segment has dead bytes.
    pub(super) fn victim(&self, policy: VictimPolicy, now: u64) -> Option<u32> {
        let with_gain = || {
            let sealed = self.segments.iter().enumerate();
            sealed.filter(|(_, entry)| {
                entry.state == State::Sealed && entry.live_bytes < entry.used_bytes
            })
        };
        let found = match policy {
            VictimPolicy::Greedy => with_gain().min_by_key(|(_, entry)| entry.live_bytes),
            VictimPolicy::CostBenefit => {
                let score = |entry: &Segment| {
                    let dead = entry.used_bytes - entry.live_bytes;
                    benefit_over_cost(dead, entry.used_bytes, now - entry.age)
                };
                with_gain().max_by(|(_, a), (_, b)| score(a).total_cmp(&score(b)))
            }
        };
        found.map(|(number, _)| number as u32)
    }

    /// Returns the sealed segment with the lowest mean erase count, and that count.
    pub(super) fn least_worn(&self, flash: &Flash) -> Option<(u32, u32)> {
        let sealed = (0u32..).zip(&self.segments).filter(|(_, entry)| entry.state == State::Sealed);
        let wear = |segment: u32| {
            let erases = (0..self.dies).map(|die| flash.erases(self.block(segment, die)));
            erases.sum::<u32>() / self.dies
        };
        sealed.map(|(number, _)| (number, wear(number))).min_by_key(|&(_, wear)| wear)
    }

    /// Returns the sealed segment with the most live bytes.
    pub(super) fn fullest(&self) -> Option<u32> {
        let sealed = (0u32..).zip(&self.segments).filter(|(_, entry)| entry.state == State::Sealed);
        sealed.max_by_key(|(_, entry)| entry.live_bytes).map(|(number, _)| number)
    }

    /// Selects a sealed segment as a victim, and returns its list.
    pub(super) fn take(&mut self, segment: u32) -> LbaSet {
        let entry = &mut self.segments[segment as usize];
        assert!(entry.state == State::Sealed, "segment {segment} is not a victim");
        entry.state = State::Victim;
        std::mem::take(&mut entry.lbas)
    }

    /// Frees an emptied segment and its blocks, except failed blocks.
    ///
    /// # Panics
    /// If the segment contains live frames.
    pub(super) fn release_victim(
        &mut self,
        segment: u32,
        flash: &Flash,
        failed: &BTreeSet<BlockAddress>,
    ) {
        let entry = &mut self.segments[segment as usize];
        let is_empty = (entry.live_bytes, entry.live_count) == (0, 0);
        assert!(entry.state == State::Victim && is_empty, "segment {segment} is in use");
        entry.state = State::Free;
        for die in 0..self.dies {
            let address = self.block(segment, die);
            if !failed.contains(&address) {
                self.free_blocks.release(address, flash.erases(address));
            }
        }
        self.free.push_back(segment);
        self.retire_segments();
    }

    /// Returns whether a block belongs to a segment in use.
    pub(super) fn is_in_use(&self, address: BlockAddress) -> bool {
        (0u32..).zip(&self.segments).any(|(segment, entry)| {
            let is_used = !matches!(entry.state, State::Free | State::Retired);
            is_used && self.block(segment, address.die) == address
        })
    }

    /// Takes a failed block out of use, unless a segment uses it.
    pub(super) fn retire(&mut self, address: BlockAddress, flash: &Flash) {
        self.free_blocks.remove(address, flash.erases(address));
        self.retire_segments();
    }

    /// Retires free segments until each die has a block for each remaining one.
    fn retire_segments(&mut self) {
        while self.free.len() > self.free_blocks.segment_count() as usize {
            if let Some(segment) = self.free.pop_back() {
                self.segments[segment as usize].state = State::Retired;
            }
        }
    }

    /// Returns the number of heap bytes, including lists.
    pub(super) fn heap_bytes(&self) -> u64 {
        let lists: u64 = self.segments.iter().map(|entry| entry.lbas.heap_bytes()).sum();
        let tables = self.segments.len() * size_of::<Segment>() + self.blocks.len() * 4;
        lists + tables as u64 + self.free_blocks.heap_bytes()
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> u32 {
        self.segments.len() as u32
    }

    #[cfg(test)]
    pub(super) fn is_free(&self, segment: u32) -> bool {
        matches!(self.segments[segment as usize].state, State::Free | State::Retired)
    }

    #[cfg(test)]
    pub(super) fn is_sealed(&self, segment: u32) -> bool {
        self.segments[segment as usize].state == State::Sealed
    }
}

/// Returns the bytes that a segment needs in the tables, excluding its list.
pub(super) fn segment_bytes(dies: u32) -> u64 {
    // The number in the queue of free segments; for each die, the block, and its entry in the die's
    // set while free.
    size_of::<Segment>() as u64 + 4 + u64::from(dies) * (4 + FREE_BLOCK_BYTES)
}

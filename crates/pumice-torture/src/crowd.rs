//! Others who fill the file system on which the drive's file lies, and make room again.
//!
//! The drive's capacity is larger than the room that there is, and the room is as large as the
//! capacity that the world has drawn: a drive that goes by the room refuses what it would refuse
//! without others. Whatever they do, no append may find too little room.

use std::cell::RefCell;

use pumice_drive::base::seed::{Random, random};
use pumice_drive::media::Medium;
use pumice_drive::media::mem::MemMedium;
use rand::RngExt;

use super::oracle::Mismatch;

/// Segments of capacity beyond the room.
pub(super) const SEGMENTS_MORE: u64 = 24;

/// Others leave this much more than the drive needs, at most.
const MORE_BYTES_MAX: u64 = 64 << 20;

/// The file system of a world.
pub(super) struct Crowd {
    memory: MemMedium,
    /// Bytes that the drive can have in any case.
    least_bytes: u64,
    random: RefCell<Random>,
}

impl Crowd {
    pub(super) fn new(memory: MemMedium, least_bytes: u64, seed: u64) -> Self {
        memory.set_room(Some(least_bytes));
        Self { memory, least_bytes, random: RefCell::new(random(seed ^ 0x6372_6f77_6421)) }
    }

    /// Lets others fill the file system, or leave, now and then.
    pub(super) fn press(&self) {
        let mut random = self.random.borrow_mut();
        let more = match random.random_range(0..24) {
            0 => 0,
            1 => random.random_range(0..MORE_BYTES_MAX),
            _ => return,
        };
        let owed = self.least_bytes.saturating_sub(self.memory.taken_bytes());
        self.memory.set_room(Some(owed + more));
    }

    /// Checks what the drive has found.
    pub(super) fn judge(&self) -> Result<(), Mismatch> {
        assert!(self.memory.room().is_some(), "the room of a world with others is bounded");
        match self.memory.refused_appends() {
            0 => Ok(()),
            refused => Err(Mismatch {
                promised: "what a drive appends has its space".to_owned(),
                found: format!("{refused} appends found too little room"),
            }),
        }
    }
}

//! Other users who fill the file system that holds the drive's file, and free space again.
//!
//! The drive's capacity is larger than the available space, and the available space equals the
//! capacity that the world has drawn: a drive that respects this limit refuses the same requests as
//! without other users. No append may find too little space, whatever the other users do.

use std::cell::RefCell;

use pumice_drive::base::seed::{Random, random};
use pumice_drive::media::Medium;
use pumice_drive::media::mem::MemMedium;
use rand::RngExt;

use super::oracle::Mismatch;

/// Segments of capacity beyond the available space.
pub(super) const SEGMENTS_MORE: u64 = 24;

/// Maximum space that other users leave beyond the drive's needs.
const MORE_BYTES_MAX: u64 = 64 << 20;

/// The file system of a world.
pub(super) struct Crowd {
    memory: MemMedium,
    /// Bytes that are always available to the drive.
    least_bytes: u64,
    random: RefCell<Random>,
}

impl Crowd {
    pub(super) fn new(memory: MemMedium, least_bytes: u64, seed: u64) -> Self {
        memory.set_room(Some(least_bytes));
        Self { memory, least_bytes, random: RefCell::new(random(seed ^ 0x6372_6f77_6421)) }
    }

    /// Occasionally lets other users fill the file system or free space.
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

    /// Checks that no append of the drive found too little space.
    pub(super) fn judge(&self) -> Result<(), Mismatch> {
        assert!(self.memory.room().is_some(), "the room of a world with others is bounded");
        match self.memory.refused_appends() {
            0 => Ok(()),
            refused => Err(Mismatch {
                promised: "the appends of a drive have space".to_owned(),
                found: format!("{refused} appends found too little room"),
            }),
        }
    }
}

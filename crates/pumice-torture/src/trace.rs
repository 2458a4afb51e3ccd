//! A fingerprint of all events in a world: two runs of one seed must have equal fingerprints.
//!
//! No history is kept, only a running checksum of numbers in the order of events.

use std::cell::Cell;

use pumice_drive::base::checksum::crc64;

/// The running checksum.
#[derive(Debug, Default)]
pub(super) struct Trace(Cell<u64>);

impl Trace {
    /// Adds numbers to the checksum.
    pub(super) fn add(&self, numbers: &[u64]) {
        let mut state = self.0.get();
        for number in numbers {
            // An odd constant (2^64 divided by the golden ratio) and a shift: order matters, and
            // every bit of a number reaches the whole state.
            state = (state ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            state ^= state >> 29;
        }
        self.0.set(state);
    }

    /// Adds bytes to the checksum.
    pub(super) fn add_bytes(&self, bytes: &[u8]) {
        self.add(&[bytes.len() as u64, crc64(bytes)]);
    }

    /// Returns the checksum.
    pub(super) fn value(&self) -> u64 {
        self.0.get()
    }
}

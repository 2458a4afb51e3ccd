//! Recognises sequential readers: a read that begins where one of the last few ended continues it.

use std::cell::{Cell, RefCell};

/// Readers that are told apart. Random reads take turns in the same slots, so a sequential reader
/// is recognised beside up to this many random reads for each of its own. Arbitrary.
const STREAMS: usize = 32;

/// Where the last reads ended.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    ends: RefCell<[u64; STREAMS]>,
    hand: Cell<usize>,
}

impl Streams {
    /// Notes a read; returns whether it continues an earlier one.
    pub(crate) fn note(&self, offset: u64, len: usize) -> bool {
        let mut ends = self.ends.borrow_mut();
        let end = offset + len as u64;
        let known = ends.iter_mut().find(|known| **known == offset && offset > 0);
        if let Some(known) = known {
            *known = end;
            return true;
        }
        let hand = self.hand.replace((self.hand.get() + 1) % STREAMS);
        if let Some(oldest) = ends.get_mut(hand) {
            *oldest = end;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    //! Goal: what continues is told from what does not.
    use super::*;

    #[test]
    fn a_reader_is_recognised_beside_others() {
        let streams = Streams::default();
        assert!(!streams.note(0, 4096));
        assert!(streams.note(4096, 4096));
        assert!(!streams.note(4096, 100), "a read again is no continuation");
        for other in 0..STREAMS as u64 - 2 {
            assert!(!streams.note((1 << 30) + (other << 20), 4096));
        }
        assert!(streams.note(8192, 100));
        assert!(!streams.note(8192, 100));
        assert!(streams.note(8292, 100));
    }
}

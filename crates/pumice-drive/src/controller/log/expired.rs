//! Uses of segments in which no stream continues, since the key with which they were started is
//! replaced.

use super::{Log, Tail};
use crate::crypt::Cipher;
use crate::format::{KeySlot, Stream};

impl Log {
    /// Ends the continuation of streams in uses of segments with a lower generation. Later segments
    /// have another key, whose recovery slot their headers repeat.
    pub(crate) fn expire(&mut self, generation: u64, recovery: Option<KeySlot>) {
        assert!(self.expired <= generation, "keys follow one another");
        if self.expired < generation {
            self.earlier_recovery = std::mem::replace(&mut self.recovery, recovery);
            self.expired = generation;
        }
    }

    /// Returns a generation with the key of the next append to a stream, unless a segment with
    /// another key is begun before it.
    pub(crate) fn sealing_generation(&self, stream: Stream) -> u64 {
        let tail = self.tail(stream).filter(|tail| !self.is_expired(tail));
        tail.map_or(Cipher::NEWEST, |tail| tail.generation)
    }

    /// Returns whether a stream must not continue in the segment of its tail.
    pub(crate) fn is_expired(&self, tail: &Tail) -> bool {
        tail.generation < self.expired
    }
}

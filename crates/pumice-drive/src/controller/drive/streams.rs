//! Recognizes sequential readers: a read that begins where one of the last few ended continues it.
//! Decides how far to read ahead of such a reader: as far as the reader has read, up to a limit, so
//! that the bytes read in vain are at most the bytes read usefully.

use std::cell::{Cell, RefCell};
use std::ops::Range;

/// Maximum number of readers that are distinguished. Random reads rotate through the same slots, so
/// a sequential reader is recognized among up to this number of random reads for each of its own.
/// Arbitrary.
const STREAMS: usize = 32;

/// Consecutive reads after which a reader counts as sequential enough to read ahead of it: two may
/// be a record that crosses the end of a block.
const READS_MIN: u32 = 3;

/// Maximum number of bytes of the disk that are read ahead of a reader. With half of that, reads of
/// 128 KiB and of 1 MiB, one at a time, are a fifth slower.
const WINDOW_BYTES_MAX: u64 = 2 << 20;

/// The progress of a reader.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    /// Number of consecutive reads.
    reads: u32,
    /// Their bytes.
    bytes: u64,
    /// The end of the bytes that were read ahead.
    ahead: u64,
    /// Whether more should be read ahead.
    is_wanted: bool,
}

impl Run {
    /// Returns the range to read ahead of a reader at `end`: none while half of its window is still
    /// ahead.
    fn next(&self, end: u64) -> Option<Range<u64>> {
        let window = self.bytes.min(WINDOW_BYTES_MAX);
        let ahead = self.ahead.max(end);
        let is_next = self.reads >= READS_MIN && ahead - end <= window / 2;
        is_next.then_some(ahead..end + window)
    }
}

/// The ends of the last reads.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    ends: RefCell<[u64; STREAMS]>,
    runs: RefCell<[Run; STREAMS]>,
    hand: Cell<usize>,
}

/// A range of the disk to be read ahead of a reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// The bytes.
    pub(crate) range: Range<u64>,
    reader: usize,
}

impl Streams {
    /// Records a read. Returns whether it continues an earlier one.
    pub(crate) fn note(&self, offset: u64, len: usize) -> bool {
        let mut ends = self.ends.borrow_mut();
        let mut runs = self.runs.borrow_mut();
        let end = offset + len as u64;
        let known = ends.iter().position(|known| *known == offset && offset > 0);
        let at = known.unwrap_or_else(|| self.hand.replace((self.hand.get() + 1) % STREAMS));
        assert!(at < STREAMS, "a reader has one of the places");
        if let (Some(known_end), Some(run)) = (ends.get_mut(at), runs.get_mut(at)) {
            *known_end = end;
            if known.is_none() {
                *run = Run::default();
            }
            run.reads = run.reads.saturating_add(1);
            run.bytes = run.bytes.saturating_add(len as u64);
        }
        known.is_some()
    }

    /// Records that the last read of the reader at `end` needed the medium. Returns whether there
    /// is anything to read ahead.
    pub(crate) fn want(&self, end: u64) -> bool {
        let reader = self.ends.borrow().iter().position(|known| *known == end);
        let mut runs = self.runs.borrow_mut();
        let Some(run) = reader.and_then(|reader| runs.get_mut(reader)) else { return false };
        run.is_wanted = run.next(end).is_some();
        run.is_wanted
    }

    /// Returns the next range to read ahead.
    pub(crate) fn next_wanted(&self) -> Option<Wanted> {
        let ends = self.ends.borrow();
        let mut runs = self.runs.borrow_mut();
        for (reader, (&end, run)) in ends.iter().zip(runs.iter_mut()).enumerate() {
            if std::mem::take(&mut run.is_wanted)
                && let Some(range) = run.next(end)
            {
                run.ahead = range.end;
                return Some(Wanted { range, reader });
            }
        }
        None
    }

    /// Returns whether a reader has yet to reach the byte before `end`, a part of the most recently
    /// wanted range.
    pub(crate) fn is_ahead(&self, wanted: &Wanted, end: u64) -> bool {
        let at = self.ends.borrow().get(wanted.reader).copied();
        let ahead = self.runs.borrow().get(wanted.reader).map(|run| run.ahead);
        // Otherwise another reader has replaced it.
        let is_same = ahead == Some(wanted.range.end);
        is_same && at.is_some_and(|at| at < end)
    }
}

#[cfg(test)]
mod tests {
    //! Goal: sequential reads are distinguished from others, and are read ahead of in proportion.
    use super::*;

    #[test]
    fn a_reader_is_recognized_beside_others() {
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

    /// Reads `len` bytes at `at`. Returns the range that is read ahead after that.
    fn ahead(streams: &Streams, at: u64, len: usize) -> Option<Range<u64>> {
        streams.note(at, len);
        streams.want(at + len as u64).then(|| streams.next_wanted().unwrap().range)
    }

    #[test]
    fn as_much_is_read_ahead_as_a_reader_has_read() {
        let streams = Streams::default();
        let len = 1 << 16;
        assert_eq!((ahead(&streams, 0, len), ahead(&streams, 1 << 16, len)), (None, None));
        assert_eq!(ahead(&streams, 2 << 16, len), Some(3 << 16..6 << 16));
        // Half of the window is ahead of the reader, later less.
        assert_eq!(ahead(&streams, 3 << 16, len), Some(6 << 16..8 << 16));
        assert_eq!(ahead(&streams, 4 << 16, len), None);
        assert_eq!(streams.next_wanted(), None);
        for at in 5..100 {
            if let Some(range) = ahead(&streams, at << 16, len) {
                assert!(range.end - ((at + 1) << 16) <= WINDOW_BYTES_MAX, "{at}: {range:?}");
                assert!(range.end - range.start >= WINDOW_BYTES_MAX.min(at << 16) / 2);
            }
        }
        // At another place the reader starts again.
        assert_eq!(ahead(&streams, 1 << 30, len), None);
    }

    #[test]
    fn data_behind_a_reader_is_not_read_ahead() {
        let streams = Streams::default();
        (0..3).for_each(|at| _ = streams.note(at << 12, 4096));
        assert!(streams.want(3 << 12));
        let wanted = streams.next_wanted().unwrap();
        assert_eq!(wanted.range, 3 << 12..6 << 12);
        assert!(streams.is_ahead(&wanted, 4 << 12));
        streams.note(3 << 12, 4096);
        assert!(!streams.is_ahead(&wanted, 4 << 12) && streams.is_ahead(&wanted, 5 << 12));
        (0..STREAMS as u64).for_each(|other| _ = streams.note((2 + other) << 30, 4096));
        assert!(!streams.is_ahead(&wanted, 6 << 12), "another reader has taken its place");
    }
}

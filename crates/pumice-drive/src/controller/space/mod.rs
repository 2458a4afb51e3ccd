//! The segment table: for each segment, whether it is free, open or sealed, its live bytes, the age
//! of its data, and the number of reads under way in it.
//!
//! ```text
//!   free --allocate--> open --seal--> sealed --free (nothing live, no reader)--> free
//! ```
//!
//! Live bytes are record bytes (header and payload) that the L2P or the newest checkpoint still
//! names. Free segments are allocated lowest number first, or nearly so: see [`free`]. Garbage
//! collection decides when a sealed segment may be freed: this table has no information about
//! durability.
//!
//! The medium's content may be wrong in ways that no checksum shows: an impossible count of live
//! bytes is recorded ([`Space::check`]) and ends the writes, not the process.

#![warn(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::indexing_slicing
)]

pub(crate) use self::choice::Choice;
pub use self::choice::benefit_over_cost;
use std::collections::BTreeSet;

use super::place::{FramePlace, SegmentUse};
use crate::base::{Error, ErrorKind, Result, SegmentId, SeqNo};
use crate::format::{Stream, TableEntry};

mod choice;
mod free;
mod going;
mod retained;

use self::retained::{RetainedSums, Retention};

/// Use of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Contains nothing.
    Free,
    /// A stream is appended to it.
    Open,
    /// Full.
    Sealed,
}

/// One segment, for display.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentView {
    /// Its use.
    pub(crate) state: State,
    /// The stream whose data it contains; meaningless while it is free.
    pub(crate) stream: Stream,
    /// Record bytes that are named elsewhere.
    pub(crate) live_bytes: u32,
    /// Whether it cannot be emptied.
    pub(crate) is_stuck: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UsedSegment {
    pub(crate) segment: SegmentId,
    pub(crate) generation: u64,
    /// Record bytes that are named elsewhere.
    pub(crate) live_bytes: u32,
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    generation: u64,
    /// The last batch in it.
    last_seq: SeqNo,
    /// The batch in which the host wrote the newest data in it.
    age: SeqNo,
    live_bytes: u32,
    /// Bytes that moving its content also leaves unused elsewhere, as far as this process knows:
    /// the end of the segment into which the next record did not fit and, for moved data, the bytes
    /// of batches that are not records.
    unused_bytes: u32,
    /// Record bytes that were live when they were appended, as far as this process has counted
    /// them.
    filled_bytes: u32,
    /// Bytes that moving all of these would require in addition: dead blocks that frames carry
    /// along because they are smaller whole than in parts, and the sources that a moved frame
    /// names.
    burden_bytes: u32,
    /// Reads under way.
    readers: u32,
    stream: Stream,
    state: State,
    /// Garbage collection could not empty it, because something in it cannot be read.
    stuck: bool,
    /// Nothing can be written in it: once free, it is not allocated.
    is_bad: bool,
    /// Number of failed attempts to empty it in this use of the segment.
    failures: u8,
    /// The content that snapshots need.
    retained: Retention,
}

const FREE: Segment = Segment {
    generation: 0,
    last_seq: SeqNo(0),
    age: SeqNo(0),
    live_bytes: 0,
    unused_bytes: 0,
    filled_bytes: 0,
    burden_bytes: 0,
    readers: 0,
    stream: Stream::Host,
    state: State::Free,
    stuck: false,
    is_bad: false,
    failures: 0,
    retained: Retention::NONE,
};

/// A segment that could not be emptied is retried after 2, 4, 8 checkpoints, and so on up to two to
/// the power of this: the read error may have been transient.
const FAILURES_MAX: u8 = 10;

/// A segment that is excluded from emptying for a while.
#[derive(Clone, Copy, Debug)]
struct Stuck {
    segment: SegmentId,
    generation: u64,
    /// Checkpoints until it is retried.
    rest: u32,
}

/// The segment table of one drive.
#[derive(Debug)]
pub(crate) struct Space {
    segments: Vec<Segment>,
    /// Segments from this one onwards are not allocated: the capacity is changing.
    end: u32,
    /// Uses of segments with a lower generation must end, because their key will be removed; 0 if
    /// there are none.
    expired: u64,
    /// Free segments below `end`.
    free_count: u32,
    /// No segment below this one is free.
    lowest_free: u32,
    /// Free segments that were not discarded: see [`free`].
    warm: Vec<SegmentId>,
    /// Free segments that are temporarily not allocated, which `free_count` includes.
    held: Vec<SegmentId>,
    /// The number of segments, neither warm nor held, for which the file system has space, if that
    /// is low: then only warm ones are allocated.
    room: Option<u32>,
    live_bytes: u64,
    /// The sealed segments without live bytes.
    empty: BTreeSet<SegmentId>,
    /// Counts changes, so that a waiter can determine whether any data died since its last check.
    changes: u64,
    /// The segments that cannot be emptied.
    stuck: Vec<Stuck>,
    sums: RetainedSums,
    /// Whether retained segments are excluded as victims.
    is_retained_fixed: bool,
    /// A segment whose live bytes cannot be right: more died in it than were live, or more are live
    /// than it can contain. The medium's content may be wrong in this way without any other sign.
    inconsistent: Option<SegmentId>,
}

impl Space {
    /// Creates a table of `segment_count` free segments.
    ///
    /// # Errors
    /// `InvalidInput` if the table does not fit in memory.
    pub(crate) fn new(segment_count: u32) -> Result<Self> {
        let mut space = Self {
            segments: Vec::new(),
            end: 0,
            expired: 0,
            free_count: 0,
            lowest_free: 0,
            warm: Vec::new(),
            held: Vec::new(),
            room: None,
            live_bytes: 0,
            empty: BTreeSet::new(),
            changes: 0,
            stuck: Vec::new(),
            sums: RetainedSums::default(),
            is_retained_fixed: false,
            inconsistent: None,
        };
        space.grow(segment_count)?;
        space.set_end(segment_count);
        space.changes = 0;
        Ok(space)
    }

    /// Creates a table in which some segments are bad: they are never allocated.
    ///
    /// # Errors
    /// The errors of [`Space::new`].
    pub(crate) fn with_bad(segment_count: u32, bad: &[SegmentId]) -> Result<Self> {
        let mut space = Self::new(segment_count)?;
        for &segment in bad {
            space.set_bad(segment);
        }
        space.changes = 0;
        Ok(space)
    }

    /// Marks a segment as bad, if it exists.
    pub(crate) fn set_bad(&mut self, segment: SegmentId) {
        let Some(entry) = self.segments.get_mut(segment.0 as usize) else { return };
        let was_available = entry.is_available();
        entry.is_bad = true;
        self.warm.retain(|&warm| warm != segment);
        self.take_free(segment, was_available);
    }

    /// Returns whether nothing can be written in a segment.
    pub(crate) fn is_bad(&self, segment: SegmentId) -> bool {
        self.segments.get(segment.0 as usize).is_some_and(|entry| entry.is_bad)
    }

    /// Returns the number of bad segments that contain nothing.
    pub(crate) fn bad_free_count(&self) -> u32 {
        let free = self.segments.iter().filter(|entry| entry.state == State::Free);
        free.map(|entry| u32::from(entry.is_bad)).sum()
    }

    /// Adds free segments up to `segment_count`; they are allocated after [`Space::set_end`].
    ///
    /// # Errors
    /// `InvalidInput` if the table does not fit in memory.
    pub(crate) fn grow(&mut self, segment_count: u32) -> Result<()> {
        let more = (segment_count as usize).saturating_sub(self.segments.len());
        let too_many = |error| {
            let what = format!("a table of {segment_count} segments does not fit in memory");
            Error::new(ErrorKind::InvalidInput, what).caused_by(error)
        };
        self.segments.try_reserve_exact(more).map_err(too_many)?;
        self.segments.resize(self.segments.len() + more, FREE);
        assert!(self.segment_count() >= segment_count, "a table that has grown is long enough");
        Ok(())
    }

    /// Restricts allocation to existing segments below `end`.
    pub(crate) fn set_end(&mut self, end: u32) {
        self.end = end.min(self.segment_count());
        self.free_count = self.count_free();
        self.lowest_free = 0;
        self.changes += 1;
        self.check_invariants();
    }

    /// Returns the exclusive end of the segments that may be allocated.
    pub(crate) fn end(&self) -> u32 {
        self.end
    }

    /// Returns the number of segments in use from `first` onwards.
    pub(crate) fn used_from(&self, first: u32) -> u32 {
        let from = self.segments.iter().skip(first as usize);
        from.map(|segment| u32::from(segment.state != State::Free)).sum()
    }

    /// Returns the lowest end, at least `end`, that leaves `free_count` free segments below it.
    pub(crate) fn lowest_end(&self, end: u32, free_count: u32) -> u32 {
        assert!(end <= self.segment_count(), "the end that is wanted lies within the table");
        let mut found = 0;
        for (number, segment) in (0..).zip(&self.segments) {
            if number >= end && found >= free_count {
                return number;
            }
            found += u32::from(segment.is_available());
        }
        self.segment_count()
    }

    /// Removes the segments from `segment_count` onwards.
    ///
    /// # Panics
    /// If one of them is not free.
    pub(crate) fn shrink(&mut self, segment_count: u32) {
        assert!(segment_count <= self.segment_count(), "a table shrinks to fewer segments");
        assert_eq!(self.used_from(segment_count), 0, "segments that are removed are free");
        assert!(!self.is_kept_from(segment_count), "segments that are removed are not kept");
        self.segments.truncate(segment_count as usize);
        self.set_end(self.end);
        assert!(self.end <= segment_count, "no segment that was removed is handed out");
    }

    /// Returns the number of free segments below the end, whether or not they have space.
    pub(crate) fn all_free_count(&self) -> u32 {
        self.free_count
    }

    /// Returns the number of segments.
    pub(crate) fn segment_count(&self) -> u32 {
        u32::try_from(self.segments.len()).expect("a table has at most 2^32 segments")
    }

    /// Returns the live record bytes of the drive, metadata included.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// Returns the number of times that data died or a segment was sealed.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Returns the generation of a segment in use; 0 for a free segment or one that does not exist.
    pub(crate) fn generation(&self, segment: SegmentId) -> u64 {
        self.segments.get(segment.0 as usize).map_or(0, |entry| entry.generation)
    }

    /// Returns the current use of a segment.
    pub(crate) fn use_of(&self, segment: SegmentId) -> SegmentUse {
        SegmentUse { segment, generation: self.generation(segment) }
    }

    /// Marks a segment as open that recovery found to be open. The segment must be free or, having
    /// been freed and reused since the checkpoint, contain no live data.
    ///
    /// # Errors
    /// `Corrupt` if it cannot have been opened.
    pub(crate) fn occupy(
        &mut self,
        segment: SegmentId,
        stream: Stream,
        generation: u64,
    ) -> Result<()> {
        let wrong = |what: &'static str| Error::new(ErrorKind::Corrupt, what).in_segment(segment);
        let Some(entry) = self.segments.get_mut(segment.0 as usize) else {
            return Err(wrong("the log continues in a segment that does not exist"));
        };
        match entry.state {
            // The checkpoint from which recovery rolls forward already records this use.
            State::Open if entry.generation == generation && entry.stream == stream => Ok(()),
            State::Open => Err(wrong("the log continues in a segment that is in use")),
            State::Sealed if entry.live_bytes > 0 => {
                Err(wrong("the log continues in a segment that holds live data"))
            }
            State::Sealed if entry.retained.count > 0 => {
                Err(wrong("the log continues in a segment that a snapshot needs"))
            }
            State::Sealed | State::Free => {
                assert_eq!(entry.live_bytes, 0, "a segment that is used again holds nothing live");
                let was_free = entry.is_available();
                let is_bad = entry.is_bad;
                *entry = Segment { generation, stream, state: State::Open, is_bad, ..FREE };
                self.take_free(segment, was_free);
                self.empty.remove(&segment);
                self.check_invariants();
                Ok(())
            }
        }
    }

    /// Removes a segment that was free, and is now in use or bad, from the count.
    fn take_free(&mut self, segment: SegmentId, was_free: bool) {
        let taken = u32::from(was_free && segment.0 < self.end);
        let left = self.free_count.checked_sub(taken);
        self.free_count = left.expect("a free segment below the end is counted");
    }

    /// Restores a segment from a checkpoint.
    ///
    /// # Errors
    /// `Corrupt` if the segment does not exist, or was opened after the checkpoint began, when it
    /// was free.
    pub(crate) fn restore(
        &mut self,
        segment: SegmentId,
        entry: &TableEntry,
        is_open: bool,
    ) -> Result<()> {
        if !entry.in_use {
            return Ok(());
        }
        let Some(target) = self.segments.get_mut(segment.0 as usize) else {
            let what = "a checkpoint names a segment that does not exist";
            return Err(Error::new(ErrorKind::Corrupt, what).in_segment(segment));
        };
        let is_same = (target.generation, target.stream) == (entry.generation, entry.stream);
        if target.state != State::Free && !(is_open && is_same) {
            let what = "a checkpoint contradicts itself about a segment";
            return Err(Error::new(ErrorKind::Corrupt, what).in_segment(segment));
        }
        assert_eq!(target.live_bytes, 0, "the table is restored before anything is live");
        let was_free = target.is_available();
        *target = Segment {
            is_bad: target.is_bad,
            generation: entry.generation,
            last_seq: entry.last_seq,
            age: entry.age,
            live_bytes: entry.live_bytes,
            filled_bytes: entry.live_bytes,
            stream: entry.stream,
            state: if is_open { State::Open } else { State::Sealed },
            ..FREE
        };
        self.live_bytes += u64::from(entry.live_bytes);
        self.take_free(segment, was_free);
        self.note_empty(segment);
        Ok(())
    }

    /// Returns the table for a checkpoint: everything but live metadata.
    pub(crate) fn table(&self) -> Vec<TableEntry> {
        let entry = |segment: &Segment| TableEntry {
            in_use: segment.state != State::Free,
            generation: segment.generation,
            stream: segment.stream,
            last_seq: segment.last_seq,
            age: segment.age,
            live_bytes: if segment.stream == Stream::Meta { 0 } else { segment.live_bytes },
        };
        self.segments.iter().map(entry).collect()
    }

    /// Counts the bytes of a batch of moved frames that are not records: moved again, the frames
    /// would require that many bytes again, up to `most` in all. A higher overhead is due to many
    /// small batches, which the next move may not have.
    pub(crate) fn add_overhead(&mut self, segment: SegmentId, bytes: u32, most: u32) {
        let entry = self.entry_mut(segment);
        entry.unused_bytes = entry.unused_bytes.saturating_add(bytes).min(most);
    }

    /// Marks an open segment as full. The next record did not fit into the `unused_bytes` at its
    /// end: moving the segment's content gains nothing there, since it leaves the same number
    /// elsewhere.
    ///
    /// # Panics
    /// If the segment is not open.
    pub(crate) fn seal(&mut self, segment: SegmentId, unused_bytes: u32) {
        let entry = self.entry_mut(segment);
        assert_eq!(entry.state, State::Open, "segment {segment} is open until it is sealed");
        entry.state = State::Sealed;
        entry.unused_bytes = entry.unused_bytes.saturating_add(unused_bytes);
        self.note_empty(segment);
        self.changes += 1;
        self.check_invariants();
    }

    /// Records that batch `seq` is in a segment, to which a stream is appended.
    pub(crate) fn batch_sealed(&mut self, segment: SegmentId, seq: SeqNo) {
        let entry = self.entry_mut(segment);
        assert_eq!(entry.state, State::Open, "batch {seq} lies in open segment {segment}");
        assert!(seq > SeqNo(0), "the first batch of a log has number 1");
        entry.last_seq = seq;
        if entry.stream != Stream::Moved {
            entry.age = seq;
        }
    }

    /// Records that data which the host wrote in batch `birth` was moved to a segment.
    pub(crate) fn moved_in(&mut self, segment: SegmentId, birth: SeqNo) {
        let entry = self.entry_mut(segment);
        assert_eq!(entry.state, State::Open, "data is moved to open segment {segment}");
        entry.age = entry.age.max(birth);
    }

    /// Returns whether a stream is appended to a segment in this generation.
    pub(crate) fn is_open(&self, segment: SegmentId, stream: Stream, generation: u64) -> bool {
        self.segments.get(segment.0 as usize).is_some_and(|entry| {
            entry.state == State::Open && (entry.stream, entry.generation) == (stream, generation)
        })
    }

    /// Counts `bytes` of a segment as live. See [`Space::check`] for impossible counts.
    pub(crate) fn add_live(&mut self, segment: SegmentId, bytes: u32) {
        let entry = self.segments.get_mut(segment.0 as usize);
        match entry.and_then(|entry| Some((entry.live_bytes.checked_add(bytes)?, entry))) {
            Some((live_bytes, entry)) => {
                let before = (entry.live_bytes, entry.filled_bytes);
                entry.live_bytes = live_bytes;
                entry.filled_bytes = entry.filled_bytes.saturating_add(bytes);
                self.live_bytes += u64::from(bytes);
                self.sums.changed(entry, before.0, before.1);
                if live_bytes == bytes {
                    self.note_empty(segment);
                }
            }
            None => self.inconsistent = Some(segment),
        }
    }

    /// Records the bytes that moving a frame of a segment would require in addition to its live
    /// bytes.
    #[inline]
    pub(crate) fn add_burden(&mut self, segment: SegmentId, bytes: u32) {
        if let Some(entry) = self.segments.get_mut(segment.0 as usize) {
            entry.burden_bytes = entry.burden_bytes.saturating_add(bytes);
        }
    }

    /// Checks that the live bytes have added up so far. They may not if a checkpoint, or records
    /// after it, are wrong in a way no checksum shows. In this case there is no panic but no writes
    /// either, since data that is still needed would count as dead.
    ///
    /// # Errors
    /// `Corrupt`, naming a segment.
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        let Some(segment) = self.inconsistent else { return Ok(()) };
        let what = "the live bytes of a segment do not add up: check the drive";
        Err(Error::new(ErrorKind::Corrupt, what).in_segment(segment))
    }

    /// Counts `bytes` of a segment of `segment_bytes` as live, if that is possible.
    ///
    /// # Errors
    /// `Corrupt` if the segment does not exist, is free or cannot contain that many bytes.
    pub(crate) fn try_add_live(
        &mut self,
        segment: SegmentId,
        bytes: u32,
        segment_bytes: u32,
    ) -> Result<()> {
        let entry = self.segments.get_mut(segment.0 as usize);
        let entry = entry.filter(|entry| entry.state != State::Free);
        match entry.and_then(|entry| {
            let live_bytes = entry.live_bytes.checked_add(bytes)?;
            entry.live_bytes = Some(live_bytes).filter(|&bytes| bytes <= segment_bytes)?;
            Some(entry)
        }) {
            Some(entry) => {
                self.live_bytes += u64::from(bytes);
                self.sums.changed(entry, entry.live_bytes - bytes, entry.filled_bytes);
                self.note_empty(segment);
                Ok(())
            }
            None => {
                let what = "a checkpoint names metadata in a segment that cannot hold it";
                Err(Error::new(ErrorKind::Corrupt, what).in_segment(segment))
            }
        }
    }

    /// Counts blocks of a frame that nothing maps to any more as dead. A segment of metadata
    /// contains no frame: such blocks are blocks of a lost leaf, which never counted.
    #[inline]
    pub(crate) fn release_blocks(&mut self, frame: FramePlace, index: u8, count: u8) {
        let entry = self.segments.get(frame.segment.0 as usize);
        if entry.is_none_or(|entry| entry.stream != Stream::Meta) {
            self.release(frame.segment, frame.share(index, count));
        }
    }

    /// Counts as dead everything in a segment that nothing names although it counts as live: a lost
    /// leaf mapped it, and all blocks that it may have mapped are copied. Until a checkpoint later
    /// than batch `sealed` records this, recovery counts it as live, and the segment is not freed.
    pub(crate) fn forget_live(&mut self, segment: SegmentId, sealed: SeqNo) {
        self.release(segment, self.live_bytes_of(segment));
        self.entry_mut(segment).last_seq = SeqNo(sealed.0 + 1);
    }

    /// Counts `bytes` of a segment as dead. If it has fewer live bytes, see [`Space::check`].
    #[inline]
    pub(crate) fn release(&mut self, segment: SegmentId, bytes: u32) {
        let entry = self.segments.get_mut(segment.0 as usize);
        match entry.and_then(|entry| Some((entry.live_bytes.checked_sub(bytes)?, entry))) {
            Some((live_bytes, entry)) => {
                entry.live_bytes = live_bytes;
                let sum = self.live_bytes.checked_sub(bytes.into());
                self.live_bytes = sum.expect("a segment has more live bytes than the drive");
                self.sums.changed(entry, live_bytes + bytes, entry.filled_bytes);
                if live_bytes == 0 {
                    self.note_empty(segment);
                }
            }
            None => self.inconsistent = Some(segment),
        }
        self.changes += 1;
    }

    /// Returns the last batch in a segment.
    pub(crate) fn last_seq(&self, segment: SegmentId) -> SeqNo {
        self.entry(segment).last_seq
    }

    /// Returns the live bytes of a segment.
    pub(crate) fn live_bytes_of(&self, segment: SegmentId) -> u32 {
        self.entry(segment).live_bytes
    }

    /// Records that a read of a segment begins: the segment is not freed before [`Space::unpin`].
    #[inline]
    pub(crate) fn pin(&mut self, segment: SegmentId) {
        let entry = self.entry_mut(segment);
        entry.readers = entry.readers.checked_add(1).expect("reads under way fit in 32 bits");
    }

    /// Records that a read has ended.
    ///
    /// # Panics
    /// If no read is under way in the segment.
    #[inline]
    pub(crate) fn unpin(&mut self, segment: SegmentId) {
        // A damaged map may name a segment that is free, and a shrink may have removed that
        // segment.
        let Some(entry) = self.segments.get_mut(segment.0 as usize) else { return };
        let left = entry.readers.checked_sub(1);
        entry.readers = left.expect("a segment is unpinned as often as it was pinned");
    }

    /// Returns the sealed segments without live bytes and without readers whose last batch is not
    /// after `checkpointed`.
    pub(crate) fn empty(&self, checkpointed: SeqNo) -> Vec<SegmentId> {
        let may_be_freed = |entry: &Segment| entry.readers == 0 && entry.last_seq <= checkpointed;
        let empty = self.empty.iter().copied();
        empty.filter(|&segment| may_be_freed(self.entry(segment))).collect()
    }

    /// Returns the number of sealed segments without live bytes.
    pub(crate) fn empty_count(&self) -> usize {
        self.empty.len()
    }

    /// Updates the set of empty segments for a segment whose state or live bytes may have changed.
    fn note_empty(&mut self, segment: SegmentId) {
        if self.entry(segment).is_empty() {
            self.empty.insert(segment);
        } else {
            self.empty.remove(&segment);
        }
    }

    /// Returns the first `count` segments that are free, or could be.
    pub(crate) fn lowest_empty(&self, count: usize) -> Vec<SegmentId> {
        let could_be = |entry: &Segment| entry.is_available() || entry.is_empty();
        self.matching(could_be).take(count).collect()
    }

    /// Returns whether a sealed segment without live bytes waits for a checkpoint that is newer
    /// than `checkpointed`.
    pub(crate) fn has_empty_after(&self, checkpointed: SeqNo) -> bool {
        self.empty.iter().any(|&segment| self.entry(segment).last_seq > checkpointed)
    }

    /// Returns whether a read is under way in a sealed segment without live bytes.
    pub(crate) fn has_empty_in_use(&self) -> bool {
        self.empty.iter().any(|&segment| self.entry(segment).readers > 0)
    }

    /// Records that a segment cannot be emptied: it is not chosen as a victim for some checkpoints.
    pub(crate) fn set_stuck(&mut self, segment: SegmentId) {
        let entry = self.entry_mut(segment);
        let is_needed = entry.live_bytes > 0 || entry.retained.count > 0;
        assert!(is_needed, "a segment that is stuck holds something");
        entry.stuck = true;
        entry.failures = entry.failures.saturating_add(1).min(FAILURES_MAX);
        let (generation, rest) = (entry.generation, 1 << entry.failures);
        self.stuck.retain(|stuck| stuck.segment != segment);
        self.stuck.push(Stuck { segment, generation, rest });
    }

    /// Records that a checkpoint, or an equal length of time, has passed. Segments that could not
    /// be emptied are retried after enough calls.
    pub(crate) fn let_stuck_rest(&mut self) {
        let mut stuck = std::mem::take(&mut self.stuck);
        stuck.retain_mut(|stuck| {
            stuck.rest = stuck.rest.saturating_sub(1);
            if stuck.rest > 0 {
                return true;
            }
            let entry = self.segments.get_mut(stuck.segment.0 as usize);
            if let Some(entry) = entry.filter(|entry| entry.generation == stuck.generation) {
                entry.stuck = false;
                self.changes += 1;
            }
            false
        });
        self.stuck = stuck;
    }

    /// Returns the stream of a segment in use.
    pub(crate) fn stream(&self, segment: SegmentId) -> Stream {
        self.entry(segment).stream
    }

    /// Returns whether a segment is free.
    pub(crate) fn is_free(&self, segment: SegmentId) -> bool {
        self.segments.get(segment.0 as usize).is_none_or(|entry| entry.state == State::Free)
    }

    /// Frees an empty segment, unless it is being read, in which case a damaged map names something
    /// in it.
    ///
    /// # Panics
    /// If it is not sealed or contains live bytes.
    pub(crate) fn free(&mut self, segment: SegmentId) {
        let entry = self.entry_mut(segment);
        assert!(entry.is_empty(), "segment {segment} is sealed and empty before it is freed");
        if entry.readers > 0 {
            self.inconsistent = Some(segment);
            return;
        }
        *entry = Segment { is_bad: entry.is_bad, ..FREE };
        let is_available = entry.is_available();
        self.empty.remove(&segment);
        self.free_count += u32::from(is_available && segment.0 < self.end);
        self.lowest_free = self.lowest_free.min(segment.0);
        self.check_invariants();
    }

    /// Returns the segments in use.
    pub(crate) fn used(&self) -> impl Iterator<Item = UsedSegment> {
        let used = self.numbered().filter(|(_, entry)| entry.state != State::Free);
        used.map(|(segment, entry)| UsedSegment {
            segment,
            generation: entry.generation,
            live_bytes: entry.live_bytes,
        })
    }

    /// Returns all segments in order.
    pub(crate) fn views(&self) -> impl Iterator<Item = SegmentView> {
        self.segments.iter().map(|entry| SegmentView {
            state: entry.state,
            stream: entry.stream,
            live_bytes: entry.live_bytes,
            is_stuck: entry.stuck,
        })
    }

    fn entry(&self, segment: SegmentId) -> &Segment {
        self.segments.get(segment.0 as usize).expect("a segment lies within the table")
    }

    fn entry_mut(&mut self, segment: SegmentId) -> &mut Segment {
        self.segments.get_mut(segment.0 as usize).expect("a segment lies within the table")
    }

    /// Returns the segments with their numbers, in order.
    fn numbered(&self) -> impl Iterator<Item = (SegmentId, &Segment)> {
        (0..).map(SegmentId).zip(&self.segments)
    }

    /// Counts the free segments below the end.
    fn count_free(&self) -> u32 {
        let below = self.segments.iter().take(self.end as usize);
        below.map(|segment| u32::from(segment.is_available())).sum()
    }

    /// Asserts the invariants between calls; in debug builds also those that need a scan of the
    /// table.
    #[inline]
    fn check_invariants(&self) {
        assert!(self.end <= self.segment_count(), "only segments of the table are handed out");
        assert!(self.free_count <= self.end, "no more segments are free than are handed out");
        assert!(self.lowest_free <= self.segment_count(), "the search begins within the table");
        debug_assert_eq!(self.free_count, self.count_free(), "free segments are all counted");
        debug_assert!(
            self.empty.iter().copied().eq(self.matching(Segment::is_empty)),
            "empty segments are all listed"
        );
        debug_assert_eq!(
            self.live_bytes,
            self.segments.iter().map(|segment| u64::from(segment.live_bytes)).sum::<u64>(),
            "live bytes of the segments add up to the drive's"
        );
        debug_assert_eq!(self.sums, self.sum_up(), "retained segments add up");
        debug_assert!(
            self.numbered()
                .take(self.lowest_free.min(self.end) as usize)
                .all(|(_, segment)| !segment.is_available()),
            "no segment is free before the one at which the search begins"
        );
    }

    fn matching(&self, wanted: impl Fn(&Segment) -> bool) -> impl Iterator<Item = SegmentId> {
        let found = self.numbered().filter(move |(_, segment)| wanted(segment));
        found.map(|(segment, _)| segment)
    }
}

impl Segment {
    /// Returns whether it can be allocated.
    fn is_available(&self) -> bool {
        self.state == State::Free && !self.is_bad
    }

    /// Returns whether it is sealed, and neither the disk nor a snapshot needs anything in it.
    fn is_empty(&self) -> bool {
        self.state == State::Sealed && self.live_bytes == 0 && self.retained.count == 0
    }
}

#[cfg(test)]
mod tests;

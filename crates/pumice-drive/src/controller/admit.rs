//! Whether a request may run at all, and the wait for room in the log: the only place of
//! back-pressure.
//!
//! A write is let through only when the log is sure to take its worst case, so that once
//! acknowledged it cannot fail for space; a refused one changed nothing.
//!
//! **Reserves.** Free segments are for, from the last one up: checkpoints; garbage collection;
//! trims and write-zeroes; data. So data stops first, and what gives space back goes on.

use super::Drive;
use super::log::Fit;
use super::moving::moved_bytes_max;
use crate::base::{Clock, Error, ErrorKind, Result};
use crate::format::{RECORD_HEADER_BYTES, Record, Stream, generation};
use crate::media::Medium;

/// Segments kept for garbage collection: one that it writes to and one to go on in, so that a
/// victim can always be emptied.
const GC_SEGMENTS: u32 = 2;

/// Segments kept back from data so that trims and write-zeroes still find room when the log is
/// full: while one fills, the one before, in which nothing is live, can be given back. One of 32
/// MiB holds over a million of their records, or 8,000 that are each flushed.
const TRIM_SEGMENTS: u32 = 2;

/// Segments kept back from data beside those for checkpoints.
pub(crate) const RESERVED_SEGMENTS: u32 = GC_SEGMENTS + TRIM_SEGMENTS;

/// Batch buffers that only the host may take: garbage collection and checkpoints wait while there
/// are no more, so that they cannot fill the queue to the medium.
const HOST_BUFFERS: usize = 4;

/// What a request for room is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Data and fills.
    Data,
    /// Trims and write-zeroes.
    Trim,
    /// Frames that garbage collection moves.
    Moved,
    /// Parts of a checkpoint.
    Meta,
}

impl Purpose {
    fn stream(self) -> Stream {
        match self {
            Purpose::Data | Purpose::Trim => Stream::Host,
            Purpose::Moved => Stream::Moved,
            Purpose::Meta => Stream::Meta,
        }
    }
}

/// What stands between a request and its room.
enum Obstacle {
    /// Nothing: this is how it fits.
    None(Fit),
    /// Something that passes: a batch on its way to the medium, garbage collection, a checkpoint.
    Wait,
    /// There is no space, and nothing to be gained.
    Full,
}

impl<M: Medium, C: Clock> Drive<M, C> {
    /// # Errors
    /// `InvalidInput` if the range does not lie on the disk.
    pub(crate) fn check_range(&self, offset: u64, len: u64) -> Result<()> {
        if offset.checked_add(len).is_some_and(|end| end <= self.size_bytes()) {
            return Ok(());
        }
        let what = format!("the range {offset}+{len} lies beyond the disk's end");
        Err(Error::new(ErrorKind::InvalidInput, what))
    }

    /// # Errors
    /// `InvalidInput`, `ReadOnly` or `Poisoned`.
    pub(crate) fn check_writable(&self, offset: u64, len: u64) -> Result<()> {
        self.check_range(offset, len)?;
        if self.ending.get() {
            return Err(Error::new(ErrorKind::Poisoned, "the drive is closing"));
        }
        if self.is_read_only() {
            return Err(Error::new(ErrorKind::ReadOnly, "the drive was opened read-only"));
        }
        self.log.check_poison()
    }

    /// Waits until the open batch of the purpose's stream has room for `bytes` of records. No other
    /// task runs between this returning and the caller's next await.
    ///
    /// # Errors
    /// `NoSpace` if the log is full, `Poisoned`.
    pub(crate) async fn make_room(&self, bytes: usize, purpose: Purpose) -> Result<()> {
        self.log.changed.wait_for(|| self.try_make_room(bytes, purpose).transpose()).await
    }

    /// Whether [`Drive::make_room`] would return at once.
    pub(crate) fn has_room(&self, bytes: usize, purpose: Purpose) -> bool {
        matches!(self.obstacle(bytes, purpose), Obstacle::None(_))
    }

    /// Free segments that a purpose must leave to others.
    pub(crate) fn reserved_segments(&self, purpose: Purpose) -> u32 {
        match purpose {
            Purpose::Data => self.meta_segments.get() + RESERVED_SEGMENTS,
            Purpose::Trim => self.meta_segments.get() + GC_SEGMENTS,
            Purpose::Moved => self.meta_segments.get(),
            Purpose::Meta => 0,
        }
    }

    fn try_make_room(&self, bytes: usize, purpose: Purpose) -> Result<Option<()>> {
        self.log.check_poison()?;
        if let Err(error) = self.space.borrow().check() {
            self.log.poison(&error);
            return Err(error);
        }
        let stream = purpose.stream();
        let fit = match self.obstacle(bytes, purpose) {
            Obstacle::None(fit) => fit,
            Obstacle::Wait => return Ok(None),
            Obstacle::Full => {
                return Err(Error::new(ErrorKind::NoSpace, "the drive's log is full"));
            }
        };
        if fit == Fit::Open {
            return Ok(Some(()));
        }
        if fit == Fit::NewSegment {
            self.open_segment(stream);
        } else {
            self.seal(stream);
        }
        self.log.begin_batch(stream);
        Ok(Some(()))
    }

    fn obstacle(&self, bytes: usize, purpose: Purpose) -> Obstacle {
        let fit = self.log.fit(purpose.stream(), bytes, self.space.borrow().end());
        if matches!(purpose, Purpose::Data | Purpose::Trim) {
            // Once something has begun to use the reserve, what is left of it is not for data.
            let needed = self.reserved_segments(purpose) + u32::from(fit == Fit::NewSegment);
            let lacks_segments = (purpose == Purpose::Data || fit == Fit::NewSegment)
                && self.space.borrow().free_count() < needed;
            if lacks_segments {
                return if self.gc_can_gain() { Obstacle::Wait } else { Obstacle::Full };
            }
            if self.must_wait_for_checkpoint() {
                return Obstacle::Wait;
            }
        } else if fit == Fit::NewSegment
            && self.space.borrow().free_count() <= self.reserved_segments(purpose)
        {
            return Obstacle::Full;
        }
        let needed = match (fit, purpose) {
            (Fit::Open, _) => return Obstacle::None(fit),
            // One to close a segment with, one to name it in the host's stream, one to go on.
            (Fit::NewSegment, Purpose::Data | Purpose::Trim) => 2,
            (Fit::NewBatch, Purpose::Data | Purpose::Trim) => 1,
            (Fit::NewSegment, _) => HOST_BUFFERS + 3,
            (Fit::NewBatch, _) => HOST_BUFFERS + 1,
        };
        if self.log.free_buffers() < needed {
            // What is open becomes one that will be free again.
            self.seal(purpose.stream());
            return Obstacle::Wait;
        }
        if purpose == Purpose::Data && self.must_wait_for_gc() {
            return Obstacle::Wait;
        }
        Obstacle::None(fit)
    }

    /// Has every stream go on in a segment below the segment table's end.
    ///
    /// # Errors
    /// `NoSpace`, `Poisoned`.
    pub(crate) async fn leave_segments_beyond_end(&self) -> Result<()> {
        for purpose in [Purpose::Trim, Purpose::Moved, Purpose::Meta] {
            let end = self.space.borrow().end();
            let tail = self.log.tail(purpose.stream());
            if tail.is_some_and(|tail| tail.segment.0 >= end) {
                self.make_room(RECORD_HEADER_BYTES, purpose).await?;
            }
        }
        Ok(())
    }

    /// Lets a stream go on in a free segment, which there must be; two buffers (four if it is the
    /// stream's first) must be free. Closes the one before.
    fn open_segment(&self, stream: Stream) {
        if stream != Stream::Host && self.log.tail(Stream::Host).is_none() {
            // The log begins in the lowest segment, whatever is written first.
            self.open_segment(Stream::Host);
        }
        let ordinal = self.segments_opened.get();
        self.segments_opened.set(ordinal + 1);
        let generation = generation(self.epoch, ordinal);
        let segment = self.space.borrow_mut().allocate(stream, generation);
        let segment = segment.expect("a free segment was just counted");
        let record = Record::Open { stream, segment, generation };
        if let Some(tail) = self.log.tail(stream) {
            if !self.log.is_open(stream) {
                self.log.begin_closing_batch(stream);
            }
            self.log.announce(stream, &record);
            self.seal(stream);
            self.space.borrow_mut().seal(tail.segment, self.unused_bytes(stream));
        } else if stream != Stream::Host {
            self.announce_first(&record);
        }
        self.log.start_segment(stream, segment, generation);
        self.checkpoints.segment_opened(stream, segment, generation);
    }

    /// Bytes at the end of a stream's full segment in which no frame had room. A write of the host
    /// is placed as a whole, and leaves more: what is moved there fits in.
    fn unused_bytes(&self, stream: Stream) -> u32 {
        let used = self.log.tail(stream).map_or(0, |tail| tail.used);
        let unused = self.superblock.borrow().segment_bytes.saturating_sub(used);
        let frame = moved_bytes_max(usize::from(self.frame_blocks)) as u32;
        if stream == Stream::Host { unused.min(frame) } else { unused }
    }

    /// Names a stream's first segment in the host's stream.
    fn announce_first(&self, record: &Record) {
        let end = self.space.borrow().end();
        if self.log.fit(Stream::Host, RECORD_HEADER_BYTES, end) == Fit::NewSegment {
            self.open_segment(Stream::Host);
        }
        if self.log.fit(Stream::Host, RECORD_HEADER_BYTES, end) != Fit::Open {
            self.seal(Stream::Host);
            self.log.begin_batch(Stream::Host);
        }
        self.log.announce(Stream::Host, record);
        // What is written in the new segment must not come before this in the log.
        self.seal(Stream::Host);
    }
}

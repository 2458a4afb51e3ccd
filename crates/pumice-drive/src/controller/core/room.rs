//! Space in the log: the only place of back-pressure.
//!
//! ```text
//! reserve left? map not too dirty? credit left? buffer free?  no -> wait, or refuse if full
//!    yes -> the open batch has the space | seal it, begin another | in a new segment
//! ```
//!
//! A host write that does not fit into the rest of a segment is divided: its first part goes there
//! ([`Fit::Parts`]), the rest to the next segment ([`Core::continue_in_next_segment`]).
//!
//! A change is admitted only when the log is sure to have space for its worst case, so that an
//! acknowledged change cannot fail for lack of space; a refused change has no effect. The callers
//! in `append` use the space in the same call.

use super::super::log::packing::{RECORDS_BYTES_MAX, frame_bytes_max, moved_bytes_max};
use super::super::log::{Fit, SealedBatch, Tail};
use super::reserves::RESERVED_SEGMENTS;
use super::{Core, Wakes};
use crate::base::units::len_u32;
use crate::base::{Error, ErrorKind, Result, SegmentId, SeqNo};
use crate::format::{RECORD_HEADER_BYTES, Record, Stream, generation};

/// Batch buffers that are left to the host. While no more are free, garbage collection and
/// checkpoints have one batch in flight, so that they cannot fill the queue to the medium.
const HOST_BUFFERS: usize = 4;

/// Number of host requests that may not use the buffers for which a checkpoint or garbage
/// collection waits. The waiter renews its claim after each written batch, and this number exceeds
/// the number of requests until then. A waiter that has given up thus delays no request for long.
const HOST_TURNS: u32 = 1024;

/// The overhead of batches of moved frames does not count as a gain up to this part of a segment:
/// in batches of 160 KiB, header, padding and parity occupy 4 %, in full ones 0.7 %. Any larger
/// overhead must count as a gain, since a full drive has little more than that to spare.
const OVERHEAD_DIVISOR: u32 = 25;

/// Number of opened segments, as a part of all segments, after which the share in use is checked,
/// in addition to the check once a second.
const WARN_DIVISOR: u32 = 1024;

/// The purpose of a request for space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Data and fills.
    Data,
    /// Trims and write-zeroes.
    Trim,
    /// Frames without content, for blocks of leaves that a checkpoint declares lost.
    Lost,
    /// Frames that garbage collection moves.
    Moved,
    /// Parts of a checkpoint.
    Meta,
}

impl Purpose {
    fn stream(self) -> Stream {
        match self {
            Purpose::Data | Purpose::Trim | Purpose::Lost => Stream::Host,
            Purpose::Moved => Stream::Moved,
            Purpose::Meta => Stream::Meta,
        }
    }

    fn is_of_host(self) -> bool {
        matches!(self, Purpose::Data | Purpose::Trim)
    }
}

/// The use of batch buffers by garbage collection and checkpoints.
#[derive(Default)]
pub(crate) struct Background {
    /// The last batch that either sealed.
    sealed: SeqNo,
    /// Number of buffers that they wait for.
    wanted: usize,
    /// Number of further host requests that leave them these buffers.
    host_turns: u32,
}

/// The outcome of a request for space.
enum Obstacle {
    /// No obstacle: the request fits in this way.
    None(Fit),
    /// A temporary obstacle: a batch on its way to the medium, garbage collection, or a checkpoint.
    Wait,
    /// There is no space, and none can be gained.
    Full,
}

impl Core {
    /// Reserves `bytes` of records in the open batch of the purpose's stream. Returns whether the
    /// space is available; if not, the caller waits for [`Wakes::PROGRESS`] and tries again.
    ///
    /// # Errors
    /// `NoSpace` if the log is full; `Poisoned`.
    pub(crate) fn make_room(&mut self, bytes: usize, purpose: Purpose) -> Result<bool> {
        assert!(bytes <= RECORDS_BYTES_MAX, "a request for room fits an empty batch");
        self.log.check_poison()?;
        if let Err(error) = self.log.check_medium_full() {
            // Background work waits, except while the drive closes, which the wait would delay.
            let waits = !purpose.is_of_host() && !self.is_ending;
            return if waits { Ok(false) } else { Err(error) };
        }
        if let Err(error) = self.space.check() {
            self.poison(&error);
            return Err(error);
        }
        let stream = purpose.stream();
        match self.obstacle(bytes, purpose) {
            Obstacle::None(Fit::Open) => {
                self.end_full(purpose);
                return Ok(true);
            }
            Obstacle::None(Fit::NewBatch | Fit::Parts) => self.seal(stream),
            Obstacle::None(Fit::NewSegment) => self.open_segment(stream),
            Obstacle::Wait => return Ok(false),
            Obstacle::Full => {
                if purpose.is_of_host() && self.ask_to_yield() {
                    return Ok(false);
                }
                self.begin_full(purpose);
                return Err(Error::new(ErrorKind::NoSpace, "the drive's log is full"));
            }
        }
        self.check_tail(stream);
        self.end_full(purpose);
        self.log.begin_batch(stream);
        let (room, part_bytes) =
            (self.log.open_batch(stream).room(), self.part_bytes(bytes, purpose));
        assert!(room >= part_bytes, "a new batch with {room} bytes takes the {part_bytes} wanted");
        Ok(true)
    }

    /// Asserts that the log and the segment table agree on the segment to which a stream is
    /// appended.
    fn check_tail(&self, stream: Stream) {
        let tail = self.log.tail(stream).expect("a stream has a segment before a batch begins");
        assert!(
            self.space.is_open(tail.segment, stream, tail.generation),
            "segment {} is open for stream {stream:?}, which is appended to it",
            tail.segment
        );
    }

    /// Returns the size of the largest part into which a request for space may be divided: for host
    /// data, a frame.
    fn part_bytes(&self, bytes: usize, purpose: Purpose) -> usize {
        let frame_blocks = usize::from(self.superblock.frame_blocks);
        let frame_bytes = frame_bytes_max(frame_blocks, self.seal_bytes());
        if purpose == Purpose::Data { bytes.min(frame_bytes) } else { bytes }
    }

    /// Continues a divided write in the next segment if its next record, of up to `bytes`, may not
    /// fit into the open batch. Returns whether it continued there: the batch then counts only
    /// together with the next one, which the caller must seal before anything else is sealed.
    pub(super) fn continue_in_next_segment(&mut self, bytes: usize) -> bool {
        let batch = self.log.open_batch(Stream::Host);
        if batch.room() >= bytes {
            return false;
        }
        batch.set_needs_next();
        self.open_segment(Stream::Host);
        self.log.begin_batch(Stream::Host);
        true
    }

    fn obstacle(&mut self, bytes: usize, purpose: Purpose) -> Obstacle {
        let part_bytes = self.part_bytes(bytes, purpose);
        let fit = self.log.fit_parts(purpose.stream(), bytes, part_bytes, self.space.end());
        let opens_segment = matches!(fit, Fit::Parts | Fit::NewSegment);
        // Held segments are released soon.
        let (free, available) = (self.space.free_count(), self.space.available_count());
        if purpose.is_of_host() {
            if self.snapshots.changes_are_suspended() {
                return Obstacle::Wait;
            }
            // A host that uses each segment as soon as it is free must not delay a snapshot.
            let is_new = purpose == Purpose::Data && opens_segment;
            let wanted = self.snapshots.wanted_segments();
            if is_new && wanted > 0 && available <= wanted {
                return Obstacle::Wait;
            }
            // Once a request has begun to use the reserve, data cannot use the rest of it.
            let needed = self.reserved_segments(purpose) + u32::from(opens_segment);
            // Trims dirty leaves whose old places snapshots retain: a checkpoint must always have
            // space.
            let needs_segments =
                purpose == Purpose::Data || opens_segment || self.space.has_retained();
            if needs_segments && available < needed {
                let comes_back = free >= needed;
                return if comes_back || self.can_gain() { Obstacle::Wait } else { Obstacle::Full };
            }
            // Until a segment is free, the rest of the last one is not available to smaller writes.
            if purpose == Purpose::Data
                && self.reclaim.is_refusing()
                && !self.has_segment_for_data()
            {
                return if self.can_gain() { Obstacle::Wait } else { Obstacle::Full };
            }
            if self.must_wait_for_checkpoint() {
                // Waiting for a checkpoint that fails for lack of space would be futile.
                let fails = self.checkpoints.lacks_space();
                return if fails { Obstacle::Full } else { Obstacle::Wait };
            }
        } else if opens_segment {
            // A stream's first segment is named in the host's stream, which may need a segment as
            // well.
            let reserved = self.reserved_segments(purpose)
                + u32::from(self.log.tail(purpose.stream()).is_none());
            if available <= reserved {
                return if free > reserved { Obstacle::Wait } else { Obstacle::Full };
            }
        }
        if purpose == Purpose::Data && self.must_wait_for_gc() {
            return Obstacle::Wait;
        }
        let has_buffers = match (fit, purpose.is_of_host()) {
            (Fit::Open, _) => return Obstacle::None(fit),
            // One to close a segment, one to name it in the host's stream, one to continue.
            (Fit::Parts, true) => self.has_buffers_for_host(3),
            (Fit::NewSegment, true) => self.has_buffers_for_host(2),
            (Fit::NewBatch, true) => self.has_buffers_for_host(1),
            (Fit::Parts | Fit::NewSegment, false) => self.has_buffers_for_background(3),
            (Fit::NewBatch, false) => self.has_buffers_for_background(1),
        };
        if !has_buffers {
            // The open batch becomes a buffer that will be free again.
            self.seal(purpose.stream());
            return Obstacle::Wait;
        }
        Obstacle::None(fit)
    }

    fn has_buffers_for_host(&mut self, needed: usize) -> bool {
        let free = self.log.free_buffers();
        let Background { wanted, host_turns, .. } = &mut self.background;
        if *host_turns == 0 || free < needed || free >= needed + *wanted {
            return free >= needed;
        }
        *host_turns -= 1;
        false
    }

    /// Returns whether enough buffers are free for background work, including the buffers for which
    /// it waits. A host that always has many batches in flight leaves few buffers free, so
    /// background work that has waited acquires its buffers as soon as enough are free.
    fn has_buffers_for_background(&mut self, needed: usize) -> bool {
        let free = self.log.free_buffers();
        let has_none_under_way = self.log.written_seq() >= self.background.sealed;
        let has_waited = self.background.wanted > 0 && has_none_under_way;
        if free >= HOST_BUFFERS + needed || has_waited && free >= needed {
            (self.background.wanted, self.background.host_turns) = (0, 0);
            return true;
        }
        if has_none_under_way {
            (self.background.wanted, self.background.host_turns) = (needed, HOST_TURNS);
        }
        false
    }

    /// Returns the free segments that a purpose must leave to other purposes. Trims and garbage
    /// collection share a reserve: segments used by trims can be freed without moving anything,
    /// since nothing in them is live, and garbage collection plans to leave trims their share.
    pub(crate) fn reserved_segments(&self, purpose: Purpose) -> u32 {
        let metadata = self.reserves.meta_segments + self.retained_meta_segments();
        match purpose {
            Purpose::Data => metadata + RESERVED_SEGMENTS,
            Purpose::Trim | Purpose::Lost | Purpose::Moved => metadata,
            Purpose::Meta => 0,
        }
    }

    /// Returns the segments in which checkpoints rewrite the metadata that snapshots retain in its
    /// current place: the rewrite frees nothing.
    fn retained_meta_segments(&self) -> u32 {
        if !self.space.has_retained() {
            return 0;
        }
        let tables = self.forwards().dirty_bytes() as u64;
        1 + self.segments_for_metadata(self.space.retained_meta_bytes() + tables)
    }

    /// Returns the segments that `bytes` of metadata occupy, each filled to three quarters.
    fn segments_for_metadata(&self, bytes: u64) -> u32 {
        let usable = u64::from(self.superblock.segment_bytes / 4 * 3);
        u32::try_from(bytes.div_ceil(usable)).unwrap_or(u32::MAX / 2)
    }

    /// Returns the free segments that a drive needs for another snapshot: afterwards all its
    /// metadata is retained, including that of the snapshot's checkpoint, and a checkpoint must
    /// still have space.
    pub(crate) fn segments_for_snapshot(&self) -> u32 {
        let metadata = self.space.meta_bytes() + self.map.dirty_bytes() as u64;
        self.reserves.meta_segments + RESERVED_SEGMENTS + 3 + self.segments_for_metadata(metadata)
    }

    /// Returns whether a few frames can be moved without using the reserves.
    pub(crate) fn has_room_to_repair(&self) -> bool {
        self.space.free_count() > self.reserved_segments(Purpose::Data)
    }

    pub(super) fn must_leave(&self, tail: &Tail) -> bool {
        tail.segment.0 >= self.space.end() || self.log.is_expired(tail)
    }

    /// Moves every stream whose segment must be emptied, because it is beyond the end of the
    /// segment table or its key is being retired, to another segment. Returns whether this is
    /// complete; if not, the caller waits for [`Wakes::PROGRESS`].
    ///
    /// # Errors
    /// `NoSpace` or `Poisoned`.
    pub(crate) fn leave_going_segments(&mut self) -> Result<bool> {
        for purpose in [Purpose::Trim, Purpose::Moved, Purpose::Meta] {
            let tail = self.log.tail(purpose.stream());
            let is_beyond = tail.is_some_and(|tail| self.must_leave(&tail));
            if is_beyond && !self.make_room(RECORD_HEADER_BYTES, purpose)? {
                return Ok(false);
            }
        }
        assert!(
            Stream::ALL
                .iter()
                .filter_map(|&stream| self.log.tail(stream))
                .all(|tail| !self.must_leave(&tail)),
            "every stream continues in a segment that may be handed out"
        );
        Ok(true)
    }

    /// Continues a stream in a free segment although its own has space left, unless that would use
    /// the reserves. Returns whether this is complete; if not, the caller waits for
    /// [`Wakes::PROGRESS`].
    ///
    /// # Errors
    /// `Poisoned`.
    pub(crate) fn leave_segment(&mut self, stream: Stream) -> Result<bool> {
        self.log.check_poison()?;
        // While the medium is full, no buffer may become free; the closing of the drive does not
        // wait.
        let is_hindered = self.is_ending || self.log.check_medium_full().is_err();
        if is_hindered || self.space.available_count() <= self.reserved_segments(Purpose::Data) {
            return Ok(true);
        }
        self.seal(stream);
        if self.log.free_buffers() < HOST_BUFFERS + 3 {
            return Ok(false);
        }
        if let Some(tail) = self.log.tail(stream) {
            self.reclaim.note_left(tail.segment);
        }
        self.open_segment(stream);
        Ok(true)
    }

    /// Seals a stream's open batch; a batch without records is discarded.
    ///
    /// A copy that carries dead blocks along marks them as older than everything. The change that
    /// made them dead must not be lost without the copy, so it precedes the copy in the log.
    pub(crate) fn seal(&mut self, stream: Stream) {
        let carries_dead =
            stream == Stream::Moved && std::mem::take(&mut self.reclaim.carries_dead);
        // A flush does not wait for batches that other streams seal after it was requested.
        let is_flushed = stream != Stream::Host && self.log.is_collecting();
        if carries_dead || is_flushed {
            self.seal(Stream::Host);
        }
        if let Some(sealed) = self.log.seal(stream, self.counters.totals()) {
            self.batch_sealed(stream, sealed);
        }
    }

    fn batch_sealed(&mut self, stream: Stream, sealed: SealedBatch) {
        let SealedBatch { segment, seq, media_bytes, overhead_bytes } = sealed;
        assert!(
            media_bytes <= u64::from(self.superblock.segment_bytes),
            "a batch is no longer than its segment"
        );
        self.counters.media_bytes.add(media_bytes);
        self.note_batch(segment, seq);
        self.checkpoints.batch_sealed(stream, media_bytes);
        if stream != Stream::Host {
            self.background.sealed = seq;
        }
        if stream == Stream::Moved {
            let most = self.superblock.segment_bytes / OVERHEAD_DIVISOR;
            self.space.add_overhead(segment, overhead_bytes, most);
        } else {
            self.reclaim.spend(media_bytes, stream);
        }
        self.wake(Wakes::WRITERS);
        if self.checkpoint_is_due() {
            self.wake(Wakes::CHECKPOINTER);
        }
    }

    /// Seals a batch without records whose watermark states that all batches before it are durable.
    /// Does nothing unless they are durable and nothing on the medium states it yet. Without this
    /// batch, damage to the last of them would look like a torn tail. Returns whether it sealed
    /// one; the log must have space for it.
    pub(crate) fn vouch(&mut self) -> bool {
        let last = self.log.sealed_seq();
        let is_wanted = last == self.log.durable_seq()
            && last > self.superblock.watermark
            && last > self.vouching
            && !self.must_end()
            && !Stream::ALL.into_iter().any(|stream| self.log.has_open_records(stream));
        // The request is for data, so that it uses no reserve. Without space, it must wait.
        if !is_wanted || !matches!(self.make_room(0, Purpose::Data), Ok(true)) {
            return false;
        }
        let sealed = self.log.seal_empty(Stream::Host, self.counters.totals());
        self.vouching = sealed.seq;
        self.batch_sealed(Stream::Host, sealed);
        true
    }

    /// Seals every stream's open batch.
    pub(crate) fn seal_all(&mut self) {
        for stream in Stream::ALL {
            self.seal(stream);
        }
    }

    /// Records that batch `seq` is in a segment, both for sealed and for recovered batches.
    pub(crate) fn note_batch(&mut self, segment: SegmentId, seq: SeqNo) {
        self.space.batch_sealed(segment, seq);
    }

    /// Continues a stream in a free segment, which must exist; two buffers (four for the stream's
    /// first segment) must be free. Closes the previous segment.
    fn open_segment(&mut self, stream: Stream) {
        if stream != Stream::Host && self.log.tail(Stream::Host).is_none() {
            // The log begins in the lowest segment, whichever stream is written first.
            self.open_segment(Stream::Host);
        }
        assert!(self.log.free_buffers() >= 2, "a stream has the buffers to change its segment");
        let generation = self.next_generation();
        if stream == Stream::Host {
            let next = self.space.next_for(stream);
            self.note_host_enters(next.is_some_and(|segment| self.space.is_warm(segment)));
        }
        let segment = self.space.allocate(stream, generation);
        let segment = segment.expect("a free segment was just counted");
        self.takes_room(segment);
        let record = Record::Open { stream, segment, generation };
        if self.log.tail(stream).is_some() {
            if !self.log.is_open(stream) {
                self.log.begin_closing_batch(stream);
            }
            self.log.announce(stream, &record);
            self.seal(stream);
        } else if stream != Stream::Host {
            self.announce_first(&record);
        }
        let unused_bytes = self.unused_bytes(stream);
        self.enter_segment(stream, segment, generation, unused_bytes);
        self.check_tail(stream);
        if self.collection_is_wanted() {
            // Garbage collection starts before any request waits for it.
            self.wake(Wakes::COLLECTOR);
        }
        // The check visits all segments, so it is rare when one is a small part of the drive.
        if self.segments_opened.is_multiple_of(self.space.segment_count() / WARN_DIVISOR + 1) {
            self.warn_of_space();
        }
    }

    /// Returns a generation that no segment has had: the epoch increases with each opening, the
    /// ordinal with each segment.
    pub(crate) fn next_generation(&mut self) -> u64 {
        let ordinal = self.segments_opened;
        self.segments_opened = ordinal.checked_add(1).expect("2^32 segments opened in one epoch");
        generation(self.log.epoch(), ordinal)
    }

    /// Continues a stream in a segment, which is open, both for live traffic and in recovery. The
    /// previous segment, if it exists, is full; the next record did not fit into the `unused_bytes`
    /// at its end.
    pub(crate) fn enter_segment(
        &mut self,
        stream: Stream,
        segment: SegmentId,
        generation: u64,
        unused_bytes: u32,
    ) {
        assert!(
            self.space.is_open(segment, stream, generation),
            "segment {segment} is not open for stream {stream:?} in generation {generation}"
        );
        if let Some(full) = self.log.tail(stream) {
            self.space.seal(full.segment, unused_bytes);
        }
        self.log.start_segment(stream, segment, generation);
        self.checkpoints.segment_opened(stream, segment, generation);
    }

    /// Returns the bytes at the end of a stream's full segment that were too few for a frame. If
    /// the host's stream leaves a segment early, frames still fit there.
    fn unused_bytes(&self, stream: Stream) -> u32 {
        let used = self.log.tail(stream).map_or(0, |tail| tail.used);
        let unused = self.superblock.segment_bytes.checked_sub(used);
        let unused = unused.expect("a stream's tail lies within its segment");
        let frame_blocks = usize::from(self.superblock.frame_blocks);
        let frame = len_u32(moved_bytes_max(frame_blocks, self.seal_bytes()));
        if stream == Stream::Host { unused.min(frame) } else { unused }
    }

    /// Names a stream's first segment in the host's stream.
    fn announce_first(&mut self, record: &Record) {
        let fit = |core: &Self| core.log.fit(Stream::Host, RECORD_HEADER_BYTES, core.space.end());
        if fit(self) == Fit::NewSegment {
            self.open_segment(Stream::Host);
        }
        if fit(self) != Fit::Open {
            self.seal(Stream::Host);
            self.log.begin_batch(Stream::Host);
        }
        self.check_tail(Stream::Host);
        self.log.announce(Stream::Host, record);
        // Records in the new segment must not precede this one in the log.
        self.seal(Stream::Host);
    }
}

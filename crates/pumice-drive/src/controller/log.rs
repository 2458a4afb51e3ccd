//! The order of batches: sealed, written, durable.
//!
//! ```text
//!   open batch --seal--> waiting --next_to_write--> in flight --written--> (buffer is free again)
//!                           written_seq: all batches up to it are on the medium
//!                           durable_seq: all batches up to it survive power loss (the watermark)
//! ```
//!
//! Three streams are appended to, each with an open segment and, at times, an open batch: what the
//! host writes, what garbage collection moves, and metadata. Their batches form one chain, in the
//! order in which they were sealed.
//!
//! Batches go to the medium several at a time and may arrive in any order; `written` only moves
//! over an unbroken row. Invariant: `durable <= written < next_seq`. A failed append or
//! sync poisons the log for good: nothing after it may be called durable.
//!
//! Does no I/O itself: `write_back` and `flush` move batches along.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;

use super::packing::{BatchPlace, OpenBatch, batch_buffer};
use uuid::Uuid;

use crate::base::wait::WaitQueue;
use crate::base::{AlignedBuffer, Error, ErrorKind, Result, SegmentId, SeqNo};
use crate::format::{
    BATCH_ALIGNMENT, BATCH_HEADER_BYTES, BatchHeader, DriveShape, Record, SEGMENT_HEADER_BYTES,
    SegmentHeader, Stream,
};

/// Batch buffers of a drive: one open in each stream, the others on their way to the medium. Eight
/// of 1 MiB keep a medium of 2 GB/s busy for 4 ms, longer than any hiccup of this thread.
pub(crate) const BUFFER_COUNT: usize = 10;

/// Bytes at the end of every segment that are kept for the batch that names the next one.
pub(crate) const CLOSING_BYTES: u32 = BATCH_ALIGNMENT as u32;

/// The segment that a stream is appended to, and the next free byte in it.
#[derive(Clone, Debug)]
pub(crate) struct Tail {
    /// The segment.
    pub(crate) segment: SegmentId,
    /// Its generation.
    pub(crate) generation: u64,
    /// Where the next batch begins; 0 before the segment header is written.
    pub(crate) used: u32,
}

/// A batch that was sealed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SealedBatch {
    /// Its segment.
    pub(crate) segment: SegmentId,
    /// Its sequence number.
    pub(crate) seq: SeqNo,
    /// Bytes it will take on the medium, a segment header included.
    pub(crate) media_bytes: u64,
}

/// Lifetime byte counters, as batch headers carry them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Bytes the host wrote.
    pub(crate) host_bytes: u64,
    /// Record headers and payloads.
    pub(crate) frame_bytes: u64,
    /// Bytes appended to the medium.
    pub(crate) media_bytes: u64,
    /// Bytes of records that garbage collection moved.
    pub(crate) moved_bytes: u64,
}

/// A batch, and its header checksum, which the next one names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChainEnd {
    /// The batch; 0 before the first.
    pub(crate) seq: SeqNo,
    /// Its header checksum, or the chain's start.
    pub(crate) checksum: u64,
}

/// Where the log stands when a drive is opened.
#[derive(Clone, Debug)]
pub(crate) struct LogEnd {
    /// The last batch; 0 in an empty log.
    pub(crate) seq: SeqNo,
    /// Its header checksum, or the chain's start.
    pub(crate) checksum: u64,
    /// Where each stream goes on.
    pub(crate) tails: [Option<Tail>; Stream::COUNT],
}

/// What a request for room finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    /// The open batch has the room.
    Open,
    /// A new batch in the same segment has.
    NewBatch,
    /// Only a new segment has.
    NewSegment,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Waiting,
    InFlight,
    Written,
}

struct Sealed {
    end: ChainEnd,
    place: BatchPlace,
    buffer: Arc<AlignedBuffer>,
    progress: Progress,
}

struct State {
    open: [Option<OpenBatch>; Stream::COUNT],
    tails: [Option<Tail>; Stream::COUNT],
    sealed: VecDeque<Sealed>,
    free: Vec<Arc<AlignedBuffer>>,
    next_seq: SeqNo,
    chain: u64,
}

impl State {
    fn open(&self, stream: Stream) -> Option<&OpenBatch> {
        self.open[stream as usize].as_ref()
    }

    fn tail(&self, stream: Stream) -> Option<&Tail> {
        self.tails[stream as usize].as_ref()
    }
}

/// The log of one drive.
pub(crate) struct Log {
    state: RefCell<State>,
    shape: Cell<DriveShape>,
    epoch: u32,
    uuid: Uuid,
    written: Cell<ChainEnd>,
    durable: Cell<ChainEnd>,
    poison: RefCell<Option<String>>,
    /// Buffers came free, batches were written or became durable, or the log was poisoned.
    pub(crate) changed: WaitQueue,
    /// There is a sealed batch to write, or the log is closing.
    pub(crate) work: WaitQueue,
    /// A sync is asked for, or the log is closing.
    pub(crate) sync_work: WaitQueue,
    /// Syncs of the medium that were asked for, begun, and ended well; each has a number, from 1.
    syncs_asked: Cell<u64>,
    syncs_begun: Cell<u64>,
    syncs_ended: Cell<u64>,
    closing: Cell<bool>,
}

impl Log {
    /// The log of the drive `uuid`, opened for the `epoch`-th time, that continues at `end`;
    /// everything up to there must be durable. It has `buffers` batch buffers: [`BUFFER_COUNT`], or
    /// none if nothing will be written.
    pub(crate) fn new(
        end: LogEnd,
        shape: DriveShape,
        epoch: u32,
        uuid: Uuid,
        buffers: usize,
    ) -> Self {
        let begun_at = ChainEnd { seq: end.seq, checksum: end.checksum };
        let state = State {
            open: [const { None }; Stream::COUNT],
            tails: end.tails,
            sealed: VecDeque::with_capacity(BUFFER_COUNT),
            free: (0..buffers).map(|_| batch_buffer()).collect(),
            next_seq: SeqNo(end.seq.0 + 1),
            chain: end.checksum,
        };
        Self {
            state: RefCell::new(state),
            shape: Cell::new(shape),
            epoch,
            uuid,
            written: Cell::new(begun_at),
            durable: Cell::new(begun_at),
            poison: RefCell::new(None),
            changed: WaitQueue::default(),
            work: WaitQueue::default(),
            sync_work: WaitQueue::default(),
            syncs_asked: Cell::new(0),
            syncs_begun: Cell::new(0),
            syncs_ended: Cell::new(0),
            closing: Cell::new(false),
        }
    }

    /// How `bytes` of records can get into a stream, whose segment must be below `segments_end`.
    pub(crate) fn fit(&self, stream: Stream, bytes: usize, segments_end: u32) -> Fit {
        let state = self.state.borrow();
        if state.tail(stream).is_some_and(|tail| tail.segment.0 >= segments_end) {
            return Fit::NewSegment;
        }
        if state.open(stream).is_some_and(|open| open.room() >= bytes) {
            return Fit::Open;
        }
        let Some(tail) = state.tail(stream) else { return Fit::NewSegment };
        let used = state.open(stream).map_or(tail.used, OpenBatch::end);
        let header = if used == 0 { SEGMENT_HEADER_BYTES } else { 0 } + BATCH_HEADER_BYTES;
        let room = (self.shape.get().segment_bytes - CLOSING_BYTES).saturating_sub(used);
        if room as usize >= header + bytes { Fit::NewBatch } else { Fit::NewSegment }
    }

    /// Batches that could be begun now.
    pub(crate) fn free_buffers(&self) -> usize {
        self.state.borrow().free.len()
    }

    /// Whether a batch is open in a stream.
    pub(crate) fn is_open(&self, stream: Stream) -> bool {
        self.state.borrow().open(stream).is_some()
    }

    /// Makes `segment` the one that a stream is appended to; its open batch must be sealed.
    pub(crate) fn start_segment(&self, stream: Stream, segment: SegmentId, generation: u64) {
        let mut state = self.state.borrow_mut();
        assert!(state.open(stream).is_none());
        state.tails[stream as usize] = Some(Tail { segment, generation, used: 0 });
    }

    /// Where a stream goes on.
    pub(crate) fn tail(&self, stream: Stream) -> Option<Tail> {
        self.state.borrow().tail(stream).cloned()
    }

    /// Bytes of a stream's segment that are taken, by the batch that is open too.
    pub(crate) fn filled(&self, stream: Stream) -> Option<u32> {
        let state = self.state.borrow();
        let tail = state.tail(stream)?;
        Some(state.open(stream).map_or(tail.used, OpenBatch::end))
    }

    /// What segment headers say about the drive from now on.
    pub(crate) fn set_shape(&self, shape: DriveShape) {
        self.shape.set(shape);
    }

    /// Begins a batch at a stream's tail in a free buffer.
    ///
    /// # Panics
    /// If there is no free buffer, no segment, or a batch is open.
    pub(crate) fn begin_batch(&self, stream: Stream) {
        self.begin(stream, self.shape.get().segment_bytes - CLOSING_BYTES);
    }

    /// Begins the batch that closes a stream's segment, in the bytes that are kept for it.
    ///
    /// # Panics
    /// As [`Log::begin_batch`].
    pub(crate) fn begin_closing_batch(&self, stream: Stream) {
        self.begin(stream, self.shape.get().segment_bytes);
    }

    fn begin(&self, stream: Stream, segment_end: u32) {
        let mut state = self.state.borrow_mut();
        assert!(state.open(stream).is_none());
        let buffer = state.free.pop().expect("no free batch buffer");
        let Tail { segment, generation, used } = state.tail(stream).cloned().expect("no segment");
        let place = BatchPlace { segment, generation, base: used };
        let open = OpenBatch::begin(buffer, place, used == 0, segment_end);
        state.open[stream as usize] = Some(open);
    }

    /// Gives a stream's open batch to `append`.
    ///
    /// # Panics
    /// If none is open.
    pub(crate) fn append<T>(&self, stream: Stream, append: impl FnOnce(&mut OpenBatch) -> T) -> T {
        let mut state = self.state.borrow_mut();
        append(state.open[stream as usize].as_mut().expect("no open batch"))
    }

    /// Seals a stream's open batch and hands it to the writers; one without a record is given up,
    /// as its writer did. `totals` are the drive's counters without the batch's own media bytes.
    /// No batch is open in the stream then.
    pub(crate) fn seal(&self, stream: Stream, totals: Totals) -> Option<SealedBatch> {
        let mut state = self.state.borrow_mut();
        let open = state.open[stream as usize].take()?;
        if open.is_empty() {
            state.free.push(open.into_buffer());
            return None;
        }
        let end = open.end();
        let seq = state.next_seq;
        let tail = state.tails[stream as usize].as_mut().expect("an open batch has a segment");
        let media_bytes = u64::from(end - tail.used);
        let segment_header = (tail.used == 0).then(|| SegmentHeader {
            uuid: self.uuid,
            generation: tail.generation,
            first_seq: seq,
            segment: tail.segment,
            stream,
            shape: self.shape.get(),
        });
        tail.used = end;
        let header = BatchHeader {
            records_checksum: 0,
            seq,
            previous_checksum: state.chain,
            watermark: self.durable_seq(),
            generation: 0,
            host_bytes: totals.host_bytes,
            frame_bytes: totals.frame_bytes,
            media_bytes: totals.media_bytes.saturating_add(media_bytes),
            moved_bytes: totals.moved_bytes,
            segment: SegmentId(0),
            offset: 0,
            body_bytes: 0,
            record_bytes: 0,
            record_count: 0,
            epoch: self.epoch,
            uuid: self.uuid,
        };
        let (place, buffer, checksum) = open.seal(header, segment_header.as_ref());
        let end = ChainEnd { seq, checksum };
        state.sealed.push_back(Sealed { end, place, buffer, progress: Progress::Waiting });
        state.next_seq = SeqNo(seq.0 + 1);
        state.chain = checksum;
        drop(state);
        self.work.wake_all();
        Some(SealedBatch { segment: place.segment, seq, media_bytes })
    }

    /// Puts the record that names where a stream goes on into the open batch of `carrier`.
    pub(crate) fn announce(&self, carrier: Stream, record: &Record) {
        self.append(carrier, |open| open.push_open(record));
    }

    /// The next batch for a writer, now in flight: number, place, bytes.
    pub(crate) fn next_to_write(&self) -> Option<(SeqNo, BatchPlace, Arc<AlignedBuffer>)> {
        let mut state = self.state.borrow_mut();
        let mut waiting = state.sealed.iter_mut();
        let sealed = waiting.find(|sealed| sealed.progress == Progress::Waiting)?;
        sealed.progress = Progress::InFlight;
        Some((sealed.end.seq, sealed.place, sealed.buffer.clone()))
    }

    /// Notes that batch `seq` is on the medium; its buffer is free once all before it are too.
    pub(crate) fn written(&self, seq: SeqNo) {
        let mut state = self.state.borrow_mut();
        let found = state.sealed.iter_mut().find(|sealed| sealed.end.seq == seq);
        found.expect("an unknown batch was written").progress = Progress::Written;
        while state.sealed.front().is_some_and(|first| first.progress == Progress::Written) {
            let first = state.sealed.pop_front().expect("checked above");
            self.written.set(first.end);
            state.free.push(first.buffer);
        }
        drop(state);
        self.changed.wake_all();
    }

    /// Calls `use_bytes` with the bytes from `offset` of `segment` on, if they are still in a
    /// buffer.
    pub(crate) fn in_memory<T>(
        &self,
        segment: u32,
        offset: u32,
        use_bytes: impl FnOnce(&[u8]) -> T,
    ) -> Option<T> {
        let state = self.state.borrow();
        let mut open = state.open.iter().flatten();
        if let Some(bytes) = open.find_map(|open| open.bytes_from(segment, offset)) {
            return Some(use_bytes(bytes));
        }
        let sealed = state.sealed.iter().find(|sealed| {
            let base = sealed.place.base;
            sealed.place.segment.0 == segment
                && (base..base + sealed.buffer.len() as u32).contains(&offset)
        })?;
        Some(use_bytes(&sealed.buffer[(offset - sealed.place.base) as usize..]))
    }

    /// The last sealed batch.
    pub(crate) fn sealed_seq(&self) -> SeqNo {
        SeqNo(self.state.borrow().next_seq.0 - 1)
    }

    /// The last batch before which all, and itself, are on the medium.
    pub(crate) fn written_seq(&self) -> SeqNo {
        self.written.get().seq
    }

    /// The same with its checksum.
    pub(crate) fn written_end(&self) -> ChainEnd {
        self.written.get()
    }

    /// The watermark.
    pub(crate) fn durable_seq(&self) -> SeqNo {
        self.durable.get().seq
    }

    /// The same with its checksum.
    pub(crate) fn durable_end(&self) -> ChainEnd {
        self.durable.get()
    }

    /// The last sealed batch and its header checksum.
    pub(crate) fn chain_end(&self) -> ChainEnd {
        let state = self.state.borrow();
        ChainEnd { seq: SeqNo(state.next_seq.0 - 1), checksum: state.chain }
    }

    /// Whether records wait in a stream's open batch.
    pub(crate) fn has_open_records(&self, stream: Stream) -> bool {
        self.state.borrow().open(stream).is_some_and(|open| !open.is_empty())
    }

    /// Moves the watermark to a batch.
    pub(crate) fn set_durable(&self, end: ChainEnd) {
        assert!(end.seq <= self.written_seq());
        if end.seq > self.durable_seq() {
            self.durable.set(end);
        }
        self.changed.wake_all();
    }

    /// Asks for a sync that has not begun yet; gives its number.
    pub(crate) fn ask_for_sync(&self) -> u64 {
        let number = self.syncs_begun.get() + 1;
        self.syncs_asked.set(number);
        self.sync_work.wake_all();
        number
    }

    /// Begins the next sync, if one was asked for.
    pub(crate) fn begin_sync(&self) -> bool {
        let is_asked_for = self.syncs_asked.get() > self.syncs_begun.get();
        if is_asked_for && self.check_poison().is_ok() {
            self.syncs_begun.set(self.syncs_begun.get() + 1);
            return true;
        }
        false
    }

    /// Notes that the sync that was begun last has ended well.
    pub(crate) fn sync_ended(&self) {
        self.syncs_ended.set(self.syncs_begun.get());
        self.changed.wake_all();
    }

    /// Whether the sync with a number has ended well.
    pub(crate) fn has_synced(&self, number: u64) -> bool {
        self.syncs_ended.get() >= number
    }

    /// Ends the log: nothing can become durable any more. The first reason stays.
    pub(crate) fn poison(&self, error: &Error) {
        tracing::error!("the drive takes no more writes: {}", error.chain());
        self.poison.borrow_mut().get_or_insert_with(|| error.chain());
        self.changed.wake_all();
        self.work.wake_all();
    }

    /// # Errors
    /// `Poisoned` after [`Log::poison`].
    pub(crate) fn check_poison(&self) -> Result<()> {
        match &*self.poison.borrow() {
            None => Ok(()),
            Some(reason) => {
                let what = format!("the drive takes no writes until it is reopened: {reason}");
                Err(Error::new(ErrorKind::Poisoned, what))
            }
        }
    }

    /// Lets the writers end once nothing is left to write.
    pub(crate) fn close(&self) {
        self.closing.set(true);
        self.work.wake_all();
        self.sync_work.wake_all();
    }

    /// Whether [`Log::close`] was called.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.get()
    }
}

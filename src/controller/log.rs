//! The order of batches: sealed, written, durable.
//!
//! ```text
//!   open batch --seal--> waiting --next_to_write--> in flight --written--> (buffer is free again)
//!                           written_seq: all batches up to it are on the medium
//!                           durable_seq: all batches up to it survive power loss (the watermark)
//! ```
//!
//! Batches go to the medium several at a time and may arrive in any order; `written_seq` only moves
//! over an unbroken row. Invariant: `durable_seq <= written_seq < next_seq`. A failed append or
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
use crate::format::{BATCH_HEADER_BYTES, BatchHeader, SEGMENT_HEADER_BYTES, SegmentHeader};

/// Batch buffers of a drive: one open, the others on their way to the medium. Eight of 1 MiB keep
/// a medium of 2 GB/s busy for 4 ms, longer than any hiccup of this thread.
pub(crate) const BUFFER_COUNT: usize = 8;

/// The segment that the log is appended to, and the next free byte in it.
#[derive(Clone, Debug)]
pub(crate) struct Tail {
    /// The segment.
    pub(crate) segment: SegmentId,
    /// Its generation.
    pub(crate) generation: u64,
    /// Where the next batch begins; 0 before the segment header is written.
    pub(crate) used: u32,
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
}

/// Where the log stands when a drive is opened.
#[derive(Clone, Debug)]
pub(crate) struct LogEnd {
    /// The last batch; 0 in an empty log.
    pub(crate) seq: SeqNo,
    /// Its header checksum, or the chain's start.
    pub(crate) checksum: u64,
    /// The segment it stands in and where it ends, if there is any.
    pub(crate) tail: Option<Tail>,
}

/// What a request for room finds.
#[derive(Debug, PartialEq, Eq)]
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
    seq: SeqNo,
    place: BatchPlace,
    buffer: Arc<AlignedBuffer>,
    progress: Progress,
}

struct State {
    open: Option<OpenBatch>,
    sealed: VecDeque<Sealed>,
    free: Vec<Arc<AlignedBuffer>>,
    tail: Option<Tail>,
    next_seq: SeqNo,
    chain: u64,
}

/// The log of one drive.
pub(crate) struct Log {
    state: RefCell<State>,
    segment_bytes: u32,
    epoch: u32,
    uuid: Uuid,
    written_seq: Cell<SeqNo>,
    durable_seq: Cell<SeqNo>,
    poison: RefCell<Option<String>>,
    /// Buffers came free, batches were written or became durable, or the log was poisoned.
    pub(crate) changed: WaitQueue,
    /// There is a sealed batch to write, or the log is closing.
    pub(crate) work: WaitQueue,
    /// Whether somebody is syncing the medium for everyone.
    pub(crate) syncing: Cell<bool>,
    closing: Cell<bool>,
}

impl Log {
    /// The log of the drive `uuid`, opened for the `epoch`-th time, that continues at `end`;
    /// everything up to there must be durable.
    pub(crate) fn new(end: LogEnd, segment_bytes: u32, epoch: u32, uuid: Uuid) -> Self {
        let state = State {
            open: None,
            sealed: VecDeque::with_capacity(BUFFER_COUNT),
            free: (0..BUFFER_COUNT).map(|_| batch_buffer()).collect(),
            tail: end.tail,
            next_seq: SeqNo(end.seq.0 + 1),
            chain: end.checksum,
        };
        Self {
            state: RefCell::new(state),
            segment_bytes,
            epoch,
            uuid,
            written_seq: Cell::new(end.seq),
            durable_seq: Cell::new(end.seq),
            poison: RefCell::new(None),
            changed: WaitQueue::default(),
            work: WaitQueue::default(),
            syncing: Cell::new(false),
            closing: Cell::new(false),
        }
    }

    /// How `bytes` of records can get into the log.
    pub(crate) fn fit(&self, bytes: usize) -> Fit {
        let state = self.state.borrow();
        if state.open.as_ref().is_some_and(|open| open.room() >= bytes) {
            return Fit::Open;
        }
        let Some(tail) = &state.tail else { return Fit::NewSegment };
        let used = state.open.as_ref().map_or(tail.used, OpenBatch::end);
        let header = if used == 0 { SEGMENT_HEADER_BYTES } else { 0 } + BATCH_HEADER_BYTES;
        if (self.segment_bytes - used) as usize >= header + bytes {
            Fit::NewBatch
        } else {
            Fit::NewSegment
        }
    }

    /// Whether a batch could be begun now.
    pub(crate) fn has_free_buffer(&self) -> bool {
        !self.state.borrow().free.is_empty()
    }

    /// Makes `segment` the one that the log is appended to; the open batch must be sealed.
    pub(crate) fn start_segment(&self, segment: SegmentId, generation: u64) {
        let mut state = self.state.borrow_mut();
        assert!(state.open.is_none());
        state.tail = Some(Tail { segment, generation, used: 0 });
    }

    /// The segment the log is appended to.
    pub(crate) fn tail_segment(&self) -> Option<SegmentId> {
        self.state.borrow().tail.as_ref().map(|tail| tail.segment)
    }

    /// Begins a batch at the tail in a free buffer.
    ///
    /// # Panics
    /// If there is no free buffer, no segment, or a batch is open.
    pub(crate) fn begin_batch(&self) {
        let mut state = self.state.borrow_mut();
        assert!(state.open.is_none());
        let buffer = state.free.pop().expect("no free batch buffer");
        let first_seq = state.next_seq;
        let Tail { segment, generation, used } = state.tail.clone().expect("no open segment");
        let header = SegmentHeader { uuid: self.uuid, generation, first_seq, segment, stream: 0 };
        let header = (used == 0).then_some(&header);
        let place = BatchPlace { segment, generation, base: used };
        state.open = Some(OpenBatch::begin(buffer, place, header, self.segment_bytes));
    }

    /// Gives the open batch to `append`.
    ///
    /// # Panics
    /// If none is open.
    pub(crate) fn append<T>(&self, append: impl FnOnce(&mut OpenBatch) -> T) -> T {
        append(self.state.borrow_mut().open.as_mut().expect("no open batch"))
    }

    /// Seals the open batch and hands it to the writers; one without a record is given up, as its
    /// writer did. `totals` are the drive's counters without the batch's own media bytes; gives
    /// those. No batch is open then.
    pub(crate) fn seal(&self, totals: Totals) -> u64 {
        let mut state = self.state.borrow_mut();
        let Some(open) = state.open.take() else { return 0 };
        if open.is_empty() {
            state.free.push(open.into_buffer());
            return 0;
        }
        let end = open.end();
        let tail = state.tail.as_mut().expect("an open batch has a segment");
        let media_bytes = u64::from(end - tail.used);
        tail.used = end;
        let seq = state.next_seq;
        let (place, buffer, checksum) = open.seal(BatchHeader {
            records_checksum: 0,
            seq,
            previous_checksum: state.chain,
            watermark: self.durable_seq.get(),
            generation: 0,
            host_bytes: totals.host_bytes,
            frame_bytes: totals.frame_bytes,
            media_bytes: totals.media_bytes.saturating_add(media_bytes),
            segment: SegmentId(0),
            offset: 0,
            body_bytes: 0,
            record_bytes: 0,
            record_count: 0,
            epoch: self.epoch,
            uuid: self.uuid,
        });
        state.sealed.push_back(Sealed { seq, place, buffer, progress: Progress::Waiting });
        state.next_seq = SeqNo(seq.0 + 1);
        state.chain = checksum;
        drop(state);
        self.work.wake_all();
        media_bytes
    }

    /// The next batch for a writer, now in flight: number, place, bytes.
    pub(crate) fn next_to_write(&self) -> Option<(SeqNo, BatchPlace, Arc<AlignedBuffer>)> {
        let mut state = self.state.borrow_mut();
        let mut waiting = state.sealed.iter_mut();
        let sealed = waiting.find(|sealed| sealed.progress == Progress::Waiting)?;
        sealed.progress = Progress::InFlight;
        Some((sealed.seq, sealed.place, sealed.buffer.clone()))
    }

    /// Notes that batch `seq` is on the medium; its buffer is free once all before it are too.
    pub(crate) fn written(&self, seq: SeqNo) {
        let mut state = self.state.borrow_mut();
        let found = state.sealed.iter_mut().find(|sealed| sealed.seq == seq);
        found.expect("an unknown batch was written").progress = Progress::Written;
        while state.sealed.front().is_some_and(|first| first.progress == Progress::Written) {
            let first = state.sealed.pop_front().expect("checked above");
            self.written_seq.set(first.seq);
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
        if let Some(bytes) = state.open.as_ref().and_then(|open| open.bytes_from(segment, offset)) {
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
        self.written_seq.get()
    }

    /// The watermark.
    pub(crate) fn durable_seq(&self) -> SeqNo {
        self.durable_seq.get()
    }

    /// The last sealed batch and its header checksum.
    pub(crate) fn chain_end(&self) -> (SeqNo, u64) {
        let state = self.state.borrow();
        (SeqNo(state.next_seq.0 - 1), state.chain)
    }

    /// Whether records wait in the open batch.
    pub(crate) fn has_open_records(&self) -> bool {
        self.state.borrow().open.as_ref().is_some_and(|open| !open.is_empty())
    }

    /// Moves the watermark to `seq`.
    pub(crate) fn set_durable(&self, seq: SeqNo) {
        assert!(seq <= self.written_seq.get());
        self.durable_seq.set(self.durable_seq.get().max(seq));
        self.changed.wake_all();
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
    }

    /// Whether [`Log::close`] was called.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.get()
    }
}

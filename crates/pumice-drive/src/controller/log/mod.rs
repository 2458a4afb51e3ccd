//! The order of batches: open, sealed, written, durable.
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
//! Several batches are on their way to the medium at a time and may arrive in any order;
//! `written_seq` advances only over an unbroken run. Invariant, asserted at every step:
//! `durable <= written <= sealed < next`. A failed append or sync poisons the log for good: no
//! later batch may be called durable. An append for which the medium has no space is repeated.
//!
//! * `framing`: a write into frames and fills.
//! * `packing`: records into the buffer of an open batch.
//! * `records`: records out of a batch that was read.
//! * `window`, `segment_scan`, `walk`: reading a segment, its batches, the whole log.
//! * `metadata`, `buffers`: reading one metadata record, and buffers for reads.
//!
//! [`Log`] is a part of the core: it does no I/O, awaits nothing and wakes no one.

pub(crate) mod buffers;
pub(crate) mod framing;
pub(crate) mod metadata;
pub(crate) mod packing;
pub(crate) mod records;
pub(crate) mod segment_scan;
pub(crate) mod walk;
pub(crate) mod window;

use std::collections::VecDeque;
use std::sync::Arc;

use uuid::Uuid;

use packing::{BatchPlace, OpenBatch, batch_buffer};

use super::place::FrameAddress;
use crate::base::{AlignedBuffer, Error, ErrorKind, Result, SegmentId, SeqNo};
use crate::format::{
    BATCH_ALIGNMENT, BATCH_HEADER_BYTES, BatchHeader, DriveShape, Record, SEGMENT_HEADER_BYTES,
    SegmentHeader, Stream,
};

/// Batch buffers of a drive: one open in each stream, the rest on their way to the medium. Eight
/// of 1 MiB keep a medium of 2 GB/s busy for 4 ms, longer than any stall of this thread.
pub(crate) const BUFFER_COUNT: usize = 10;

/// Bytes at the end of every segment that are reserved for the batch that names the next segment.
pub(crate) const CLOSING_BYTES: u32 = BATCH_ALIGNMENT as u32;

/// The segment that a stream is appended to, and the next free byte in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// A batch for a writer to append.
pub(crate) struct BatchToWrite {
    /// Its sequence number.
    pub(crate) seq: SeqNo,
    /// Where it goes.
    pub(crate) place: BatchPlace,
    /// Its bytes.
    pub(crate) bytes: Arc<AlignedBuffer>,
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

/// A batch, and its header checksum, which the next batch names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChainEnd {
    /// The batch; 0 before the first.
    pub(crate) seq: SeqNo,
    /// Its header checksum, or the chain's start.
    pub(crate) checksum: u64,
}

/// Where the log ends when a drive is opened.
#[derive(Clone, Debug)]
pub(crate) struct LogEnd {
    /// The last batch; 0 in an empty log.
    pub(crate) seq: SeqNo,
    /// Its header checksum, or the chain's start.
    pub(crate) checksum: u64,
    /// The tail of each stream.
    pub(crate) tails: [Option<Tail>; Stream::COUNT],
}

/// How a request for room can be met.
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

/// The log of one drive.
pub(crate) struct Log {
    open: [Option<OpenBatch>; Stream::COUNT],
    tails: [Option<Tail>; Stream::COUNT],
    /// Sealed batches that are not all written, in the order of the chain.
    sealed: VecDeque<Sealed>,
    free: Vec<Arc<AlignedBuffer>>,
    chain: ChainEnd,
    written: ChainEnd,
    durable: ChainEnd,
    shape: DriveShape,
    epoch: u32,
    uuid: Uuid,
    poison: Option<String>,
    /// The last batch for which the medium had no space, until it is written.
    lacks_space: Option<SeqNo>,
    /// Syncs of the medium that were requested, begun, and ended well; each has a number, from 1.
    syncs_requested: u64,
    syncs_begun: u64,
    syncs_ended: u64,
    is_closing: bool,
}

impl Log {
    /// Creates the log of the drive `uuid`, opened for the `epoch`-th time, that continues at
    /// `end`; everything up to there must be durable. It has `buffers` batch buffers:
    /// [`BUFFER_COUNT`], or none if nothing will be written.
    pub(crate) fn new(
        end: LogEnd,
        shape: DriveShape,
        epoch: u32,
        uuid: Uuid,
        buffers: usize,
    ) -> Self {
        let chain = ChainEnd { seq: end.seq, checksum: end.checksum };
        Self {
            open: [const { None }; Stream::COUNT],
            tails: end.tails,
            sealed: VecDeque::with_capacity(BUFFER_COUNT),
            free: (0..buffers).map(|_| batch_buffer()).collect(),
            chain,
            written: chain,
            durable: chain,
            shape,
            epoch,
            uuid,
            poison: None,
            lacks_space: None,
            syncs_requested: 0,
            syncs_begun: 0,
            syncs_ended: 0,
            is_closing: false,
        }
    }

    #[inline]
    fn open(&self, stream: Stream) -> Option<&OpenBatch> {
        self.open[stream as usize].as_ref()
    }

    /// Returns how `bytes` of records fit into a stream, whose segment must be below
    /// `segments_end`.
    #[inline]
    pub(crate) fn fit(&self, stream: Stream, bytes: usize, segments_end: u32) -> Fit {
        let Some(tail) = self.tails[stream as usize] else { return Fit::NewSegment };
        if tail.segment.0 >= segments_end {
            return Fit::NewSegment;
        }
        let open = self.open(stream);
        if open.is_some_and(|open| open.room() >= bytes) {
            return Fit::Open;
        }
        let used = open.map_or(tail.used, OpenBatch::end);
        let header = if used == 0 { SEGMENT_HEADER_BYTES } else { 0 } + BATCH_HEADER_BYTES;
        let room = (self.shape.segment_bytes - CLOSING_BYTES).saturating_sub(used);
        if room as usize >= header + bytes { Fit::NewBatch } else { Fit::NewSegment }
    }

    /// Returns the number of batches that could be begun now.
    pub(crate) fn free_buffers(&self) -> usize {
        self.free.len()
    }

    /// Returns whether a batch is open in a stream.
    pub(crate) fn is_open(&self, stream: Stream) -> bool {
        self.open(stream).is_some()
    }

    /// Makes `segment` the one that a stream is appended to; its open batch must be sealed.
    ///
    /// # Panics
    /// If a batch is open, or another stream is appended to the same use of the segment.
    pub(crate) fn start_segment(&mut self, stream: Stream, segment: SegmentId, generation: u64) {
        assert!(!self.is_open(stream), "stream {stream:?} changes its segment with an open batch");
        self.tails[stream as usize] = Some(Tail { segment, generation, used: 0 });
    }

    /// Returns the tail of a stream.
    pub(crate) fn tail(&self, stream: Stream) -> Option<Tail> {
        self.tails[stream as usize]
    }

    /// Returns the bytes of a stream's segment that are taken, those of the open batch included.
    pub(crate) fn filled(&self, stream: Stream) -> Option<u32> {
        let tail = self.tail(stream)?;
        Some(self.open(stream).map_or(tail.used, OpenBatch::end))
    }

    /// Sets the shape that segment headers state from now on.
    pub(crate) fn set_shape(&mut self, shape: DriveShape) {
        assert_eq!(shape.segment_bytes, self.shape.segment_bytes, "segments never change size");
        self.shape = shape;
    }

    /// Returns the opening of the drive that batches are written in.
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Begins a batch at a stream's tail in a free buffer.
    ///
    /// # Panics
    /// If there is no free buffer, no segment, or a batch is open.
    pub(crate) fn begin_batch(&mut self, stream: Stream) {
        self.begin(stream, self.shape.segment_bytes - CLOSING_BYTES);
    }

    /// Begins the batch that closes a stream's segment, in the bytes reserved for it.
    ///
    /// # Panics
    /// As [`Log::begin_batch`].
    pub(crate) fn begin_closing_batch(&mut self, stream: Stream) {
        self.begin(stream, self.shape.segment_bytes);
    }

    fn begin(&mut self, stream: Stream, segment_end: u32) {
        assert!(!self.is_open(stream), "stream {stream:?} has an open batch");
        let Tail { segment, generation, used } = self.tail(stream).expect("no segment");
        assert!(used < segment_end, "segment {segment} has no room for a batch");
        let buffer = self.free.pop().expect("no free batch buffer");
        let place = BatchPlace { segment, generation, base: used };
        let open = OpenBatch::begin(buffer, place, used == 0, segment_end);
        self.open[stream as usize] = Some(open);
    }

    /// Returns a stream's open batch.
    ///
    /// # Panics
    /// If none is open.
    #[inline]
    pub(crate) fn open_batch(&mut self, stream: Stream) -> &mut OpenBatch {
        self.open[stream as usize].as_mut().expect("no open batch")
    }

    /// Seals a stream's open batch for the writers; a batch without a record is discarded: the
    /// request that began it was cancelled. `totals` are the drive's counters without the batch's
    /// own media bytes. Afterwards no batch is open in the stream.
    pub(crate) fn seal(&mut self, stream: Stream, totals: Totals) -> Option<SealedBatch> {
        let open = self.open[stream as usize].take()?;
        if open.is_empty() {
            self.free.push(open.into_buffer());
            return None;
        }
        Some(self.seal_batch(stream, open, totals))
    }

    /// Seals a stream's open batch, which holds no record: it vouches for those before it.
    ///
    /// # Panics
    /// If no batch is open, or it holds records.
    pub(crate) fn seal_empty(&mut self, stream: Stream, totals: Totals) -> SealedBatch {
        let open = self.open[stream as usize].take().expect("no open batch");
        assert!(open.is_empty(), "a batch that only vouches holds records");
        self.seal_batch(stream, open, totals)
    }

    fn seal_batch(&mut self, stream: Stream, open: OpenBatch, totals: Totals) -> SealedBatch {
        let end = open.end();
        assert!(end <= self.shape.segment_bytes, "a batch is longer than its segment");
        let seq = SeqNo(self.chain.seq.0 + 1);
        let tail = self.tails[stream as usize].as_mut().expect("an open batch has a segment");
        assert!(tail.used < end, "a sealed batch ends before it begins");
        let media_bytes = u64::from(end - tail.used);
        let segment_header = (tail.used == 0).then_some(SegmentHeader {
            uuid: self.uuid,
            generation: tail.generation,
            first_seq: seq,
            segment: tail.segment,
            stream,
            shape: self.shape,
        });
        tail.used = end;
        let header = BatchHeader {
            records_checksum: 0,
            seq,
            previous_checksum: self.chain.checksum,
            watermark: self.durable.seq,
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
        self.sealed.push_back(Sealed { end, place, buffer, progress: Progress::Waiting });
        self.chain = end;
        SealedBatch { segment: place.segment, seq, media_bytes }
    }

    /// Puts the record that names a stream's next segment into the open batch of `carrier`.
    pub(crate) fn announce(&mut self, carrier: Stream, record: &Record) {
        self.open_batch(carrier).push_open(record);
    }

    /// Returns the next batch for a writer, which is in flight from now on.
    pub(crate) fn next_to_write(&mut self) -> Option<BatchToWrite> {
        let mut waiting = self.sealed.iter_mut();
        let sealed = waiting.find(|sealed| sealed.progress == Progress::Waiting)?;
        sealed.progress = Progress::InFlight;
        let Sealed { end, place, ref buffer, .. } = *sealed;
        Some(BatchToWrite { seq: end.seq, place, bytes: buffer.clone() })
    }

    /// Notes that batch `seq` is on the medium; its buffer is free once all before it are too.
    ///
    /// # Panics
    /// If the batch is not in flight.
    pub(crate) fn written(&mut self, seq: SeqNo) {
        let found = self.sealed.iter_mut().find(|sealed| sealed.end.seq == seq);
        let found = found.expect("an unknown batch was written");
        assert_eq!(found.progress, Progress::InFlight, "batch {seq} is not being written");
        found.progress = Progress::Written;
        self.lacks_space = self.lacks_space.filter(|&lacking| lacking != seq);
        while self.sealed.front().is_some_and(|first| first.progress == Progress::Written) {
            let first = self.sealed.pop_front().expect("checked above");
            assert_eq!(first.end.seq.0, self.written.seq.0 + 1, "batches are written out of order");
            self.written = first.end;
            self.free.push(first.buffer);
        }
    }

    /// Notes that the medium had no space for batch `seq`: it waits to be written again.
    ///
    /// # Panics
    /// If the batch is not in flight.
    pub(crate) fn not_written(&mut self, seq: SeqNo) {
        let found = self.sealed.iter_mut().find(|sealed| sealed.end.seq == seq);
        let found = found.expect("an unknown batch was not written");
        assert_eq!(found.progress, Progress::InFlight, "batch {seq} is not being written");
        found.progress = Progress::Waiting;
        self.lacks_space = self.lacks_space.max(Some(seq));
    }

    /// Returns whether a batch waits because the medium had no space for it.
    pub(crate) fn is_medium_full(&self) -> bool {
        self.lacks_space.is_some()
    }

    /// # Errors
    /// `NoSpace` after [`Log::not_written`], until that batch is written.
    #[inline]
    pub(crate) fn check_medium_full(&self) -> Result<()> {
        if !self.is_medium_full() {
            return Ok(());
        }
        let what = "the medium has no space: the file system that holds the drive is full";
        Err(Error::new(ErrorKind::NoSpace, what))
    }

    /// Returns the bytes from `address` to the end of its batch, if they are still in a buffer.
    pub(crate) fn in_memory(&self, address: FrameAddress) -> Option<&[u8]> {
        let mut open = self.open.iter().flatten();
        if let Some(bytes) = open.find_map(|open| open.bytes_from(address)) {
            return Some(bytes);
        }
        let sealed = self.sealed.iter().find(|sealed| {
            let base = sealed.place.base;
            sealed.place.segment == address.segment
                && (base..base + sealed.buffer.len() as u32).contains(&address.offset)
        })?;
        Some(&sealed.buffer[(address.offset - sealed.place.base) as usize..])
    }

    /// Returns the last sealed batch.
    pub(crate) fn sealed_seq(&self) -> SeqNo {
        self.chain.seq
    }

    /// Returns the last sealed batch and its header checksum.
    pub(crate) fn chain_end(&self) -> ChainEnd {
        self.chain
    }

    /// Returns the last batch that is on the medium together with all before it.
    pub(crate) fn written_seq(&self) -> SeqNo {
        self.written.seq
    }

    /// Returns the same with its checksum.
    pub(crate) fn written_end(&self) -> ChainEnd {
        self.written
    }

    /// Returns the watermark.
    pub(crate) fn durable_seq(&self) -> SeqNo {
        self.durable.seq
    }

    /// Returns the watermark with its checksum.
    pub(crate) fn durable_end(&self) -> ChainEnd {
        self.durable
    }

    /// Returns whether a stream's open batch holds records.
    pub(crate) fn has_open_records(&self, stream: Stream) -> bool {
        self.open(stream).is_some_and(|open| !open.is_empty())
    }

    /// Advances the watermark to a batch.
    ///
    /// # Panics
    /// If the batch is not written, or lies before the watermark.
    pub(crate) fn set_durable(&mut self, end: ChainEnd) {
        assert!(end.seq <= self.written.seq, "a batch is durable before it is written");
        assert!(end.seq >= self.durable.seq, "the watermark moves back");
        self.durable = end;
    }

    /// Requests a sync that has not begun yet; returns its number.
    pub(crate) fn request_sync(&mut self) -> u64 {
        self.syncs_requested = self.syncs_begun + 1;
        self.syncs_requested
    }

    /// Begins the next sync, if one was requested.
    pub(crate) fn begin_sync(&mut self) -> bool {
        if self.syncs_requested <= self.syncs_begun || self.poison.is_some() {
            return false;
        }
        assert_eq!(self.syncs_begun, self.syncs_ended, "two syncs run at once");
        self.syncs_begun += 1;
        true
    }

    /// Notes that the sync that was begun last has ended well.
    pub(crate) fn sync_ended(&mut self) {
        assert_eq!(self.syncs_begun, self.syncs_ended + 1, "no sync is running");
        self.syncs_ended = self.syncs_begun;
    }

    /// Returns whether a sync was begun that has not ended well.
    pub(crate) fn is_syncing(&self) -> bool {
        self.syncs_begun > self.syncs_ended
    }

    /// Returns whether the sync with a number has ended well.
    pub(crate) fn has_synced(&self, number: u64) -> bool {
        self.syncs_ended >= number
    }

    /// Ends the log: nothing can become durable any more. The first reason is kept.
    pub(crate) fn poison(&mut self, error: &Error) {
        self.poison.get_or_insert_with(|| error.chain());
    }

    /// # Errors
    /// `Poisoned` after [`Log::poison`].
    #[inline]
    pub(crate) fn check_poison(&self) -> Result<()> {
        match &self.poison {
            None => Ok(()),
            Some(reason) => {
                let what = format!("the drive takes no writes until it is reopened: {reason}");
                Err(Error::new(ErrorKind::Poisoned, what))
            }
        }
    }

    /// Returns whether [`Log::poison`] was called.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.poison.is_some()
    }

    /// Lets the writers end once nothing is left to write.
    pub(crate) fn close(&mut self) {
        self.is_closing = true;
    }

    /// Returns whether [`Log::close`] was called.
    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing
    }
}

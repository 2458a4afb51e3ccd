//! The order of batches: open, sealed, written, durable.
//!
//! ```text
//!   open batch --seal--> waiting --next_to_write--> in flight --written--> (buffer is free again)
//!                                                   plain, or durable
//!                           written_seq: all batches up to it are on the medium
//!                           durable_seq: all batches up to it survive power loss (the watermark)
//! ```
//!
//! Three streams are appended to the log, each with an open segment and, at times, an open batch:
//! the host's writes, the data moved by garbage collection, and metadata. Their batches form one
//! chain, in the order in which they were sealed.
//!
//! Several batches are on their way to the medium at a time and may arrive in any order.
//! `written_seq` advances only over an unbroken run, and advances over a batch whose last write
//! ends in the next batch only together with the next batch. Invariant, asserted at every step:
//! `durable <= written <= sealed < next`. A failed append or sync poisons the log permanently: no
//! later batch may be called durable. An append for which the medium has no space is repeated.
//!
//! * `framing`: a write into frames and fills. `fit`: finding space for a request.
//! * `packing`: records into the buffer of an open batch.
//! * `records`: records from a batch that was read; `payload`: the content of frames.
//! * `window`, `segment_scan`, `walk`: reading a segment, its batches, the whole log.
//! * `parity`: restoring a damaged batch. `copies`: the copies of a batch on a mirror.
//! * `watermark`: the position up to which everything is durable.
//! * `metadata`, `buffers`: reading one metadata record, and buffers for reads.
//!
//! [`Log`] is a part of the core: it does no I/O, awaits nothing and wakes no task.

#![warn(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::indexing_slicing
)]

pub(crate) mod buffers;
mod by_stream;
pub(crate) mod copies;
mod echo;
mod expired;
mod fit;
pub(crate) mod framing;
pub(crate) mod metadata;
pub(crate) mod packing;
pub(crate) mod parity;
pub(crate) mod payload;
pub(crate) mod records;
pub(crate) mod segment_scan;
pub(crate) mod walk;
mod watermark;
pub(crate) mod window;

use std::collections::VecDeque;
use std::sync::Arc;

use uuid::Uuid;

use by_stream::ByStream;
pub(crate) use fit::Fit;
use packing::{BatchPlace, OpenBatch, batch_buffer, batch_buffer_bytes};
use watermark::Watermark;

use super::place::FrameAddress;
use crate::base::units::len_u32;
use crate::base::{AlignedBuffer, Error, ErrorKind, Result, SegmentId, SeqNo};
use crate::crypt::Cipher;
use crate::format::{
    BATCH_ALIGNMENT, BatchHeader, DriveShape, KeySlot, Record, SEGMENT_HEADER_BYTES, SegmentHeader,
    Stream,
};

/// Batch buffers of a drive: one open in each stream, the rest on their way to the medium. Eight of
/// 1 MiB keep a medium of 2 GB/s busy for 4 ms, longer than any stall of this thread.
pub(crate) const BUFFER_COUNT: usize = 10;

/// Maximum number of batches on their way to the medium at the same time.
pub(crate) const WRITERS: usize = 4;

/// Returns the bytes at the end of every segment of a stream that are reserved for the batch that
/// names the next segment. In the stream of metadata, that batch has a page of parity.
pub(crate) const fn closing_bytes(stream: Stream) -> u32 {
    match stream {
        Stream::Host | Stream::Moved => UNIT,
        Stream::Meta => 2 * UNIT,
    }
}

/// [`BATCH_ALIGNMENT`] in the width of offsets within a segment.
pub(crate) const UNIT: u32 = 4096;
const _: () = assert!(UNIT as usize == BATCH_ALIGNMENT, "offsets and batches have the same unit");

/// [`SEGMENT_HEADER_BYTES`] in the width of offsets within a segment.
pub(crate) const FIRST_BATCH_OFFSET: u32 = 4096;
const _: () = assert!(
    FIRST_BATCH_OFFSET as usize == SEGMENT_HEADER_BYTES,
    "the first batch of a segment follows the segment's header"
);

/// Exclusive upper bound of the sequence numbers accepted from a medium: half of the numbers that a
/// record's sources can name. A drive that continues from a smaller number never exhausts the other
/// half.
const SEQ_END: u64 = 1 << 55;

/// Returns the bytes of a batch whose header was decoded, which enforces a maximum.
pub(crate) fn batch_bytes(header: &BatchHeader) -> u32 {
    u32::try_from(header.batch_bytes()).expect("a decoded batch has at most 4 MiB")
}

/// The segment to which a stream is appended, and the next free byte in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tail {
    pub(crate) segment: SegmentId,
    pub(crate) generation: u64,
    /// Offset at which the next batch begins; 0 before the segment header is written.
    pub(crate) used: u32,
}

/// A batch that was sealed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SealedBatch {
    pub(crate) segment: SegmentId,
    /// Its sequence number.
    pub(crate) seq: SeqNo,
    /// Bytes that it will occupy on the medium, including a segment header.
    pub(crate) media_bytes: u64,
    /// The part of these bytes that is not records: headers, padding, parity.
    pub(crate) overhead_bytes: u32,
}

/// A batch for a writer to append.
pub(crate) struct BatchToWrite {
    /// Its sequence number.
    pub(crate) seq: SeqNo,
    /// Its place on the medium.
    pub(crate) place: BatchPlace,
    pub(crate) bytes: Arc<AlignedBuffer>,
    /// Whether it must be appended durably.
    pub(crate) is_durable: bool,
}

/// Lifetime byte counters, as stored in batch headers.
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

/// The end of the log when a drive is opened.
#[derive(Clone, Debug)]
pub(crate) struct LogEnd {
    /// The last batch; 0 in an empty log.
    pub(crate) seq: SeqNo,
    /// Its header checksum, or the chain's start.
    pub(crate) checksum: u64,
    pub(crate) tails: [Option<Tail>; Stream::COUNT],
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
    /// Whether the batch was passed to a writer to be appended durably.
    is_durable: bool,
    /// Whether the medium had no space for the batch.
    is_repeated: bool,
    /// Whether the batch counts only together with the next one.
    needs_next: bool,
}

/// The log of one drive.
pub(crate) struct Log {
    open: ByStream<Option<OpenBatch>>,
    tails: ByStream<Option<Tail>>,
    /// Sealed batches that are not all written, in the order of the chain.
    sealed: VecDeque<Sealed>,
    /// Free buffers, and the number of further buffers that may be allocated.
    free: Vec<Arc<AlignedBuffer>>,
    unmade: usize,
    /// Batch buffers: free ones, allocated or not, and those of open and sealed batches.
    buffers: usize,
    chain: ChainEnd,
    /// The headers of the last batch, which the next one repeats.
    echo: Vec<u8>,
    written: ChainEnd,
    watermark: Watermark,
    /// Number of sealed batches of the host, and the last of them.
    host_batches: u64,
    host_seq: SeqNo,
    /// Whether a flush waits until the host's open batch is sealed.
    is_collecting: bool,
    /// The watermark in the last sealed batch.
    confirmed: SeqNo,
    shape: DriveShape,
    epoch: u32,
    /// The first batch of the epoch.
    opening_seq: SeqNo,
    uuid: Uuid,
    cipher: Cipher,
    /// The key slot that segment headers repeat.
    recovery: Option<KeySlot>,
    /// The previous key's slot, which headers of a lower generation repeat.
    earlier_recovery: Option<KeySlot>,
    /// Uses of a segment with a lower generation are not continued by any stream.
    expired: u64,
    poison: Option<String>,
    /// The last batch for which the medium had no space, until it is written.
    lacks_space: Option<SeqNo>,
    /// Whether the medium had no space for a superblock, until it is written.
    superblock_lacks_space: bool,
    /// Syncs of the medium that were requested, begun and successfully completed. Each has a
    /// number, from 1.
    syncs_requested: u64,
    syncs_begun: u64,
    syncs_ended: u64,
    is_closing: bool,
}

impl Log {
    /// Creates the log of the drive `uuid`, opened for the `epoch`-th time, that continues at
    /// `end`; everything up to `end` must be durable. It has `buffers` batch buffers:
    /// [`BUFFER_COUNT`], or none if nothing will be written. The last argument states whether the
    /// medium has durable appends.
    pub(crate) fn new(
        end: LogEnd,
        shape: DriveShape,
        epoch: u32,
        uuid: Uuid,
        buffers: usize,
        has_durable_appends: bool,
    ) -> Self {
        assert!(buffers == 0 || buffers == BUFFER_COUNT, "a log has all its buffers or none");
        let chain = ChainEnd { seq: end.seq, checksum: end.checksum };
        let log = Self {
            open: ByStream([const { None }; Stream::COUNT]),
            tails: ByStream(end.tails),
            sealed: VecDeque::with_capacity(BUFFER_COUNT),
            free: Vec::with_capacity(buffers),
            unmade: buffers,
            buffers,
            chain,
            echo: Vec::new(),
            written: chain,
            watermark: Watermark::new(chain, has_durable_appends),
            host_batches: 0,
            host_seq: chain.seq,
            is_collecting: false,
            confirmed: chain.seq,
            shape,
            epoch,
            opening_seq: SeqNo(end.seq.0.saturating_add(1)),
            uuid,
            cipher: Cipher::default(),
            recovery: None,
            earlier_recovery: None,
            expired: 0,
            poison: None,
            lacks_space: None,
            superblock_lacks_space: false,
            syncs_requested: 0,
            syncs_begun: 0,
            syncs_ended: 0,
            is_closing: false,
        };
        log.check_invariants();
        log
    }

    /// Returns the log of a drive with this cipher, whose segment headers repeat a key slot.
    pub(crate) fn with_keys(self, cipher: Cipher, recovery: Option<KeySlot>) -> Self {
        assert_eq!(self.chain, self.written, "keys are set before anything is written");
        Self { cipher, recovery, ..self }
    }

    #[inline]
    fn open(&self, stream: Stream) -> Option<&OpenBatch> {
        self.open[stream].as_ref()
    }

    /// Returns the number of batches that could be started now.
    pub(crate) fn free_buffers(&self) -> usize {
        self.free.len() + self.unmade
    }

    /// Releases the memory of free buffers; they are allocated again when needed.
    pub(crate) fn release_buffers(&mut self) {
        self.unmade += self.free.len();
        self.free.clear();
    }

    /// Returns the bytes of memory of the allocated buffers.
    pub(crate) fn memory_bytes(&self) -> usize {
        (self.buffers - self.unmade) * batch_buffer_bytes()
    }

    fn take_buffer(&mut self) -> Arc<AlignedBuffer> {
        self.free.pop().unwrap_or_else(|| {
            self.unmade =
                self.unmade.checked_sub(1).expect("a batch buffer is free before a batch begins");
            batch_buffer()
        })
    }

    /// Returns whether a batch is open in a stream.
    pub(crate) fn is_open(&self, stream: Stream) -> bool {
        self.open(stream).is_some()
    }

    /// Starts to append a stream to `segment`; the stream's open batch must be sealed.
    ///
    /// # Panics
    /// If a batch is open, or another stream is appended to the same use of the segment.
    pub(crate) fn start_segment(&mut self, stream: Stream, segment: SegmentId, generation: u64) {
        assert!(!self.is_open(stream), "stream {stream:?} seals its batch before it continues");
        assert!(
            self.tails.0.iter().flatten().all(|tail| tail.segment != segment),
            "segment {segment} is the tail of no stream before stream {stream:?} enters it"
        );
        self.tails[stream] = Some(Tail { segment, generation, used: 0 });
    }

    /// Returns the tail of a stream.
    pub(crate) fn tail(&self, stream: Stream) -> Option<Tail> {
        self.tails[stream]
    }

    /// Returns the used bytes of a stream's segment, including those of the open batch.
    pub(crate) fn filled(&self, stream: Stream) -> Option<u32> {
        let tail = self.tail(stream)?;
        let filled = self.open(stream).map_or(tail.used, OpenBatch::end);
        assert!(filled >= tail.used, "an open batch ends after the tail that it began at");
        Some(filled)
    }

    /// Sets the shape that subsequent segment headers state.
    pub(crate) fn set_shape(&mut self, shape: DriveShape) {
        assert_eq!(shape.segment_bytes, self.shape.segment_bytes, "segments never change size");
        assert_eq!(shape.frame_blocks, self.shape.frame_blocks, "frames never change size");
        assert_eq!(shape.data_offset, self.shape.data_offset, "segment 0 stays where it is");
        self.shape = shape;
    }

    /// Returns the number of this opening of the drive, which batches record.
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Begins a batch at a stream's tail in a free buffer.
    ///
    /// # Panics
    /// If there is no free buffer, no segment, or a batch is open.
    pub(crate) fn begin_batch(&mut self, stream: Stream) {
        self.begin(stream, self.shape.segment_bytes - closing_bytes(stream));
    }

    /// Begins the batch that closes a stream's segment, in the bytes reserved for it.
    ///
    /// # Panics
    /// As for [`Log::begin_batch`].
    pub(crate) fn begin_closing_batch(&mut self, stream: Stream) {
        self.begin(stream, self.shape.segment_bytes);
    }

    fn begin(&mut self, stream: Stream, segment_end: u32) {
        assert!(!self.is_open(stream), "stream {stream:?} has at most one open batch");
        let tail = self.tail(stream).expect("a stream has a segment before a batch begins");
        let Tail { segment, generation, used } = tail;
        assert!(used < segment_end, "segment {segment} has room for a batch");
        assert!(used.is_multiple_of(UNIT), "batches begin at multiples of the alignment");
        let buffer = self.take_buffer();
        let place = BatchPlace { segment, generation, base: used };
        let open = OpenBatch::begin(buffer, place, stream, segment_end, self.cipher.clone());
        self.open[stream] = Some(open);
        self.check_invariants();
    }

    /// Returns a stream's open batch.
    ///
    /// # Panics
    /// If none is open.
    #[inline]
    pub(crate) fn open_batch(&mut self, stream: Stream) -> &mut OpenBatch {
        self.open[stream].as_mut().expect("a batch is open before records are added")
    }

    /// Seals a stream's open batch for the writers. A batch without a record is discarded: the
    /// request that began it was cancelled. `totals` are the drive's counters without the batch's
    /// own media bytes. Afterwards no batch is open in the stream.
    pub(crate) fn seal(&mut self, stream: Stream, totals: Totals) -> Option<SealedBatch> {
        let open = self.open[stream].take()?;
        if open.is_empty() {
            self.free.push(open.into_buffer());
            self.check_invariants();
            return None;
        }
        Some(self.seal_batch(stream, open, totals))
    }

    /// Seals a stream's open batch without records, which confirms the previous batches.
    ///
    /// # Panics
    /// If no batch is open, or it contains records.
    pub(crate) fn seal_empty(&mut self, stream: Stream, totals: Totals) -> SealedBatch {
        let open = self.open[stream].take().expect("a batch that only vouches was begun");
        assert!(open.is_empty(), "a batch that only vouches holds records");
        self.seal_batch(stream, open, totals)
    }

    fn seal_batch(&mut self, stream: Stream, open: OpenBatch, totals: Totals) -> SealedBatch {
        let (end, needs_next) = (open.end(), open.needs_next());
        assert!(end <= self.shape.segment_bytes, "a batch ends within its segment");
        let seq = self.chain.seq.0.checked_add(1).map(SeqNo);
        let seq = seq.expect("a drive writes fewer than 2^64 batches");
        let tail = self.tails[stream].as_mut().expect("an open batch has a segment");
        assert!(tail.used < end, "a sealed batch ends after it begins");
        assert_eq!(open.begin_in(tail.segment), Some(tail.used), "a batch begins at its tail");
        let media_bytes = u64::from(end - tail.used);
        let overhead_bytes = end - tail.used - len_u32(open.records_bytes());
        let is_earlier = tail.generation < self.expired;
        let recovery = if is_earlier { &self.earlier_recovery } else { &self.recovery };
        let segment_header = (tail.used == 0).then(|| SegmentHeader {
            recovery: recovery.clone(),
            uuid: self.uuid,
            generation: tail.generation,
            first_seq: seq,
            segment: tail.segment,
            stream,
            opening_seq: self.opening_seq,
            shape: self.shape,
        });
        tail.used = end;
        let header = BatchHeader {
            records_checksum: 0,
            seq,
            previous_checksum: self.chain.checksum,
            watermark: self.watermark.durable().seq,
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
            parity_pages: 0,
            needs_next: false,
            epoch: self.epoch,
            uuid: self.uuid,
        };
        self.confirmed = header.watermark;
        let (place, buffer, checksum) = open.seal(header, segment_header.as_ref(), &mut self.echo);
        let end = ChainEnd { seq, checksum };
        let progress = Progress::Waiting;
        let (is_durable, is_repeated) = (false, false);
        let sealed = Sealed { end, place, buffer, progress, is_durable, is_repeated, needs_next };
        self.sealed.push_back(sealed);
        self.chain = end;
        if stream == Stream::Host {
            self.host_batches += 1;
            self.host_seq = seq;
            if std::mem::take(&mut self.is_collecting) {
                self.watermark.want(seq);
            }
        }
        self.check_invariants();
        SealedBatch { segment: place.segment, seq, media_bytes, overhead_bytes }
    }

    /// Puts the record that names a stream's next segment into the open batch of `carrier`.
    pub(crate) fn announce(&mut self, carrier: Stream, record: &Record) {
        self.open_batch(carrier).push_open(record);
    }

    /// Returns the next batch for a writer and marks it as in flight.
    pub(crate) fn next_to_write(&mut self) -> Option<BatchToWrite> {
        let mut waiting = self.sealed.iter_mut();
        let sealed = waiting.find(|sealed| sealed.progress == Progress::Waiting)?;
        sealed.progress = Progress::InFlight;
        sealed.is_durable = self.watermark.take(sealed.end.seq, sealed.is_repeated);
        let Sealed { end, place, ref buffer, is_durable, .. } = *sealed;
        assert!(end.seq > self.written.seq, "a batch is written once");
        Some(BatchToWrite { seq: end.seq, place, bytes: buffer.clone(), is_durable })
    }

    /// Records that batch `seq` is on the medium, durable if requested. Its buffer is free once all
    /// previous batches are also written; if the medium has retained the buffer, one of the `spare`
    /// buffers replaces it.
    ///
    /// # Panics
    /// If the batch is not in flight.
    pub(crate) fn written(&mut self, seq: SeqNo, mut spare: impl FnMut() -> Option<AlignedBuffer>) {
        let found = self.sealed.iter_mut().find(|sealed| sealed.end.seq == seq);
        let found = found.expect("a batch that was written is sealed, and not written yet");
        assert_eq!(found.progress, Progress::InFlight, "batch {seq} is not being written");
        found.progress = Progress::Written;
        self.lacks_space = self.lacks_space.filter(|&lacking| lacking != seq);
        while let Some(count) = self.written_together() {
            let is_durable = self.sealed.iter().take(count).all(|sealed| sealed.is_durable);
            for _ in 0..count {
                let first = self.sealed.pop_front().expect("the first batches are written");
                assert_eq!(first.end.seq.0, self.written.seq.0 + 1, "batches are written in order");
                self.written = first.end;
                self.free_buffer(first.buffer, &mut spare);
            }
            self.watermark.written(self.written, is_durable);
        }
        self.check_invariants();
    }

    /// Returns the number of oldest sealed batches that are written and count only together: one,
    /// or two if a write ends in the second.
    fn written_together(&self) -> Option<usize> {
        let count = 1 + self.sealed.iter().position(|sealed| !sealed.needs_next)?;
        let mut first = self.sealed.iter().take(count);
        first.all(|sealed| sealed.progress == Progress::Written).then_some(count)
    }

    fn free_buffer(
        &mut self,
        mut buffer: Arc<AlignedBuffer>,
        spare: &mut impl FnMut() -> Option<AlignedBuffer>,
    ) {
        if Arc::get_mut(&mut buffer).is_some() {
            self.free.push(buffer);
            return;
        }
        match spare().filter(|spare| spare.capacity() == batch_buffer_bytes()) {
            Some(spare) => self.free.push(Arc::new(spare)),
            None => self.unmade += 1,
        }
    }

    /// Records that the medium had no space for batch `seq`, which waits to be written again.
    ///
    /// # Panics
    /// If the batch is not in flight.
    pub(crate) fn not_written(&mut self, seq: SeqNo) {
        let found = self.sealed.iter_mut().find(|sealed| sealed.end.seq == seq);
        let found = found.expect("an unknown batch was not written");
        assert_eq!(found.progress, Progress::InFlight, "batch {seq} is not being written");
        found.progress = Progress::Waiting;
        found.is_repeated = true;
        self.lacks_space = self.lacks_space.max(Some(seq));
    }

    /// Records whether a superblock waits because the medium had no space for it.
    pub(crate) fn set_superblock_lacks_space(&mut self, lacks_space: bool) {
        self.superblock_lacks_space = lacks_space;
    }

    /// Returns whether a batch or a superblock waits because the medium had no space for it.
    pub(crate) fn is_medium_full(&self) -> bool {
        self.lacks_space.is_some() || self.superblock_lacks_space
    }

    /// # Errors
    /// `NoSpace` after [`Log::not_written`], until that batch is written, and while a superblock
    /// waits for space.
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
        let mut open = self.open.0.iter().flatten();
        if let Some(bytes) = open.find_map(|open| open.bytes_from(address)) {
            return Some(bytes);
        }
        self.sealed.iter().find_map(|sealed| {
            let at = address.offset.checked_sub(sealed.place.base)?;
            let bytes = sealed.buffer.get(at as usize..)?;
            (sealed.place.segment == address.segment && !bytes.is_empty()).then_some(bytes)
        })
    }

    /// Returns the last sealed batch.
    pub(crate) fn sealed_seq(&self) -> SeqNo {
        self.chain.seq
    }

    /// Returns the last sealed batch and its header checksum.
    pub(crate) fn chain_end(&self) -> ChainEnd {
        self.chain
    }

    /// Returns the last batch that is on the medium together with all previous ones.
    pub(crate) fn written_seq(&self) -> SeqNo {
        self.written.seq
    }

    /// Returns the last written batch and its checksum.
    pub(crate) fn written_end(&self) -> ChainEnd {
        self.written
    }

    /// Returns the watermark.
    pub(crate) fn durable_seq(&self) -> SeqNo {
        self.watermark.durable().seq
    }

    /// Returns the watermark with its checksum.
    pub(crate) fn durable_end(&self) -> ChainEnd {
        self.watermark.durable()
    }

    /// Returns whether every writer has a batch to write.
    pub(crate) fn writers_are_busy(&self) -> bool {
        let left = self.sealed.iter().filter(|sealed| sealed.progress != Progress::Written);
        left.count() >= WRITERS
    }

    /// Makes a flush wait for the host's open batch: the batch is sealed as soon as a writer can
    /// take it, or when another stream seals a batch. Until then it collects the records of other
    /// requests.
    pub(crate) fn collect_for_flush(&mut self) {
        assert!(self.has_open_records(Stream::Host), "an empty batch is not waited for");
        self.is_collecting = true;
    }

    /// Returns whether a flush waits until the host's open batch is sealed.
    pub(crate) fn is_collecting(&self) -> bool {
        self.is_collecting
    }

    /// Returns the number of batches of the host sealed since the opening.
    pub(crate) fn host_batches(&self) -> u64 {
        self.host_batches
    }

    /// Returns the last sealed batch of the host, and records that a flush waits for it. Batches
    /// that other streams sealed after it contain no acknowledged data.
    pub(crate) fn want_host_batches(&mut self) -> SeqNo {
        self.watermark.want(self.host_seq);
        self.host_seq
    }

    /// Returns whether a flush made batches durable that no batch confirms, while later batches are
    /// not durable.
    pub(crate) fn is_unconfirmed(&self) -> bool {
        let is_left = self.durable_seq() < self.sealed_seq();
        is_left && self.watermark.wants_more_than(self.confirmed)
    }

    /// Returns whether batch `seq` is written, and only a sync that has not begun will make it
    /// durable.
    pub(crate) fn needs_sync(&self, seq: SeqNo) -> bool {
        self.written.seq >= seq && self.watermark.needs_sync()
    }

    /// Returns whether a stream's open batch contains records.
    pub(crate) fn has_open_records(&self, stream: Stream) -> bool {
        self.open(stream).is_some_and(|open| !open.is_empty())
    }

    /// Requests a sync that has not begun yet. Returns its number.
    pub(crate) fn request_sync(&mut self) -> u64 {
        self.syncs_requested = self.syncs_begun + 1;
        assert!(self.syncs_requested > self.syncs_ended, "a sync that is requested has not ended");
        self.syncs_requested
    }

    /// Begins the next sync, if one was requested.
    pub(crate) fn begin_sync(&mut self) -> bool {
        if self.syncs_requested <= self.syncs_begun || self.poison.is_some() {
            return false;
        }
        assert_eq!(self.syncs_begun, self.syncs_ended, "syncs run one after the other");
        self.syncs_begun += 1;
        assert_eq!(self.syncs_begun, self.syncs_requested, "a sync that begins was requested");
        self.watermark.sync_began(self.written);
        true
    }

    /// Records that the most recently started sync has succeeded. Everything up to `end` was
    /// written when it began.
    ///
    /// # Panics
    /// If the batches up to `end` are not written.
    pub(crate) fn sync_ended(&mut self, end: ChainEnd) {
        assert_eq!(self.syncs_begun, self.syncs_ended + 1, "a sync begins before it ends");
        assert!(
            end.seq < self.written.seq || end == self.written,
            "the watermark has the checksum of its batch"
        );
        self.syncs_ended = self.syncs_begun;
        self.watermark.sync_ended(end, self.written);
        self.check_invariants();
    }

    /// Returns whether a sync has begun and has not succeeded.
    pub(crate) fn is_syncing(&self) -> bool {
        self.syncs_begun > self.syncs_ended
    }

    /// Returns whether the sync with a given number has succeeded.
    pub(crate) fn has_synced(&self, number: u64) -> bool {
        assert!(number <= self.syncs_requested, "a sync that is waited for was requested");
        // A sync that ends after a failure of the medium proves nothing.
        self.syncs_ended >= number && !self.watermark.has_failed()
    }

    /// Ends the log: nothing can become durable any more. Only the first reason is stored.
    pub(crate) fn poison(&mut self, error: &Error) {
        self.poison.get_or_insert_with(|| error.chain());
        self.watermark.fail();
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

    /// Asserts the invariants that hold between calls.
    #[inline]
    fn check_invariants(&self) {
        let durable = self.watermark.durable();
        assert!(durable.seq <= self.written.seq, "the durable batches are written");
        assert!(self.written.seq <= self.chain.seq, "the written batches are sealed");
        assert_eq!(
            self.chain.seq.0 - self.written.seq.0,
            self.sealed.len() as u64,
            "each batch that is sealed and not written has a buffer"
        );
        assert_eq!(
            self.free_buffers() + self.open.0.iter().flatten().count() + self.sealed.len(),
            self.buffers,
            "each buffer is free, open or sealed"
        );
        debug_assert!(
            (self.written.seq.0 + 1..).zip(&self.sealed).all(|(seq, next)| next.end.seq.0 == seq),
            "sealed batches are consecutive"
        );
    }
}

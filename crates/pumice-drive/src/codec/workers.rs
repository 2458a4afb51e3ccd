//! Threads that compress for drives, in addition to the threads on which the drives run.
//!
//! ```text
//!   writes of a drive -> frames -> tray -> batch -> [queue] -> a thread, or a task of the drive's
//!         ^                                                                  |
//!         +--- each appends its own  <---  outcome of the batch  <-----------+
//! ```
//!
//! Passing work to another thread costs as much as compressing a few kilobytes, so frames of
//! several writes travel together: all frames that the currently ready tasks put on the tray, up to
//! [`batch_bytes`]. A batch owns a copy of its frames, and its outcome is set once. Apart from
//! batches and a byte count, the threads share nothing, so neither side can see a partial result.
//!
//! While the threads are busy, the drives' thread compresses the next writes itself, in place. When
//! none of its tasks is ready, the write that has waited longest takes batches from the queue: with
//! `n` threads, `n` compress. A write that is alone on the tray is compressed by its own task, so
//! at queue depth 1 a write of up to one batch wakes no thread.
//!
//! The threads have no notion of drives, addresses or order, and remember nothing of earlier
//! frames: each drive decides whether a stream is worth an attempt. The threads end when the last
//! handle is dropped.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::mem;
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::thread;

use async_channel::{Receiver, Sender, bounded};
use futures_util::future::select;
use futures_util::task::AtomicWaker;

use super::compress::Encoder;
use super::{Codec, Compressor, Encoding, FrameForm};
use crate::base::clock::AnyClock;
use crate::base::wait::{Line, WaitQueue};

/// Returns the approximate bytes of frames in a batch: enough for 30 to 100 us of compression, a
/// few times the cost of waking a thread, and few enough that many concurrent writes form several
/// batches.
fn batch_bytes(codec: Codec) -> usize {
    match codec {
        Codec::None | Codec::Lz4 => 64 << 10,
        Codec::Zstd { .. } => 16 << 10,
    }
}

/// Maximum number of writes with frames in one batch.
const BATCH_WRITES: usize = 16;

/// Capacity of the queue, in batches. A batch that does not fit is compressed by the task that
/// tried to pass it on.
const QUEUE_BATCHES: usize = 64;

/// Maximum bytes of frames, over all drives, that are copied or compressed and not yet appended.
/// Writes beyond it are compressed where they are appended, without a copy. Threads that pass
/// writes on at the same moment may exceed it by one write each. The memory for these frames, for
/// the same amount of payloads, and for each thread's codecs is not part of a drive's own.
const PASSED_BYTES_MAX: usize = 16 << 20;

/// Number of waiting writes or batches per thread at which the threads count as busy.
const BUSY_WRITES: usize = 2;

/// Maximum number of buffers retained for later batches.
const SPARE_MAX: usize = 16;

/// A handle to threads that compress. Clones belong to the same executor and serve its drives.
/// Drives of other executors share the threads through handles of their own.
#[derive(Clone)]
pub struct Workers {
    own: Rc<Own>,
}

/// The state that belongs to one thread of drives.
struct Own {
    pool: Arc<Pool>,
    contexts: RefCell<Contexts>,
    /// At most one batch for each coding.
    tray: RefCell<Vec<Batch>>,
    /// Waiting writes. The first of them attends to the tray and the queue.
    waiting: Line,
    /// Woken when work is added to the tray or the queue.
    work: WaitQueue,
    spare: RefCell<Vec<Frames>>,
}

/// Threads that compress for drives on any number of threads, each through its own [`Workers`].
pub struct Pool {
    queue: Sender<Batch>,
    /// The receiving end: tasks take batches from it as well.
    batches: Receiver<Batch>,
    threads: Vec<thread::JoinHandle<()>>,
    /// Bytes of frames in transit, up to [`PASSED_BYTES_MAX`].
    passed_bytes: AtomicUsize,
}

/// The encoding of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Coding {
    pub(crate) codec: Codec,
    /// The form of frames of several blocks.
    pub(crate) form: FrameForm,
}

/// Frames of some writes, in order, before and after compression.
#[derive(Debug, Default)]
struct Frames {
    /// The frames, one after the other, and their lengths. Empty if the write's own task compresses
    /// them.
    raw: Vec<u8>,
    lengths: Vec<usize>,
    payloads: Vec<Payload>,
    /// The payloads, one after the other, followed by remains of earlier ones.
    bytes: Vec<u8>,
    /// Bytes of the payloads.
    used: usize,
}

/// One frame's payload in the bytes of several.
#[derive(Clone, Debug)]
struct Payload {
    raw_bytes: usize,
    encoding: Encoding,
    bytes: Range<usize>,
}

impl Frames {
    fn clear(&mut self) {
        self.raw.clear();
        self.lengths.clear();
        self.payloads.clear();
        self.used = 0;
    }

    fn compress(&mut self, raw: &[u8], contexts: &mut Contexts, coding: Coding) {
        let start = self.used;
        let end = start + Compressor::target_bytes(raw.len());
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        let (_, target) = self.bytes.split_at_mut(start);
        let encoder = contexts.encoder(coding.codec);
        let (encoding, len) = encoder.encode_or_store(coding.form, raw, target);
        self.used += len;
        self.payloads.push(Payload { raw_bytes: raw.len(), encoding, bytes: start..self.used });
    }

    fn compress_all(&mut self, contexts: &mut Contexts, coding: Coding) {
        let (raw, lengths) = (mem::take(&mut self.raw), mem::take(&mut self.lengths));
        let mut rest = &raw[..];
        for &length in &lengths {
            let (frame, later) = rest.split_at(length);
            self.compress(frame, contexts, coding);
            rest = later;
        }
        assert!(rest.is_empty(), "the lengths of frames match their bytes");
        (self.raw, self.lengths) = (raw, lengths);
    }
}

/// The result of a batch, and the writes that wait for it.
#[derive(Default)]
struct Outcome {
    /// Set once; `None` if the thread panicked.
    frames: OnceLock<Option<Frames>>,
    waiting: [AtomicWaker; BATCH_WRITES],
}

/// Frames of some writes, to be compressed by one thread.
struct Batch {
    coding: Coding,
    frames: Frames,
    /// Number of writes with frames in the batch.
    writes: usize,
    outcome: Arc<Outcome>,
}

impl Batch {
    fn has_room(&self, bytes: usize) -> bool {
        let is_empty = self.frames.raw.is_empty();
        let fits = is_empty || self.frames.raw.len() + bytes <= batch_bytes(self.coding.codec);
        fits && self.writes < BATCH_WRITES
    }

    fn push(&mut self, frames: &[&[u8]]) -> Part {
        assert!(self.writes < BATCH_WRITES, "a batch has a waker for each of its writes");
        let lengths = &mut self.frames.lengths;
        let first = lengths.len();
        for frame in frames {
            self.frames.raw.extend_from_slice(frame);
            lengths.push(frame.len());
        }
        let frames = first..lengths.len();
        let number = self.writes;
        self.writes += 1;
        Part::Passed { outcome: self.outcome.clone(), number, frames }
    }

    fn run(mut self, contexts: &mut Contexts) {
        let mut frames = mem::take(&mut self.frames);
        frames.compress_all(contexts, self.coding);
        assert!(self.outcome.frames.set(Some(frames)).is_ok(), "a batch is run once");
    }
}

impl Drop for Batch {
    /// Lets the writes continue, even after a panic.
    fn drop(&mut self) {
        self.outcome.frames.get_or_init(|| None);
        self.outcome.waiting.iter().for_each(AtomicWaker::wake);
    }
}

/// Adjacent frames of a write.
enum Part {
    /// Compressed by the write's own task.
    Own(Frames),
    /// In a batch: the number of the write in it, and its frames.
    Passed { outcome: Arc<Outcome>, number: usize, frames: Range<usize> },
}

impl Part {
    /// Returns the compressed frames, once all are compressed.
    ///
    /// # Panics
    /// If the thread that compressed them panicked.
    fn payloads(&self) -> Option<(&[Payload], &[u8])> {
        let (all, part) = match self {
            Self::Own(frames) => (frames, 0..frames.payloads.len()),
            Self::Passed { outcome, frames: part, .. } => {
                let frames = outcome.frames.get()?.as_ref();
                (frames.expect("a thread that compresses has panicked"), part.clone())
            }
        };
        let payloads = all.payloads.get(part).expect("a batch compresses all its frames");
        Some((payloads, &all.bytes))
    }

    /// Waits until the frames are compressed.
    async fn ended(&self) {
        let Self::Passed { outcome, number, .. } = self else { return };
        let waker = outcome.waiting.get(*number).expect("a batch has few writes");
        poll_fn(|context| {
            waker.register(context.waker());
            if self.payloads().is_some() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Returns the buffers, if no other write needs them.
    fn into_frames(self) -> Option<Frames> {
        match self {
            Self::Own(frames) => Some(frames),
            Self::Passed { outcome, .. } => Arc::into_inner(outcome)?.frames.into_inner()?,
        }
    }
}

/// The frames of a write, compressed.
pub(crate) struct CompressedFrames {
    parts: Vec<Part>,
    raw_bytes: usize,
    own: Rc<Own>,
}

impl CompressedFrames {
    /// Returns, for each frame in order, its original length, its encoding and its payload.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, Encoding, &[u8])> {
        self.parts.iter().flat_map(|part| {
            let (payloads, bytes) = part.payloads().expect("the write waited for all its parts");
            payloads.iter().map(|payload| {
                let bytes = bytes.get(payload.bytes.clone()).expect("a payload lies in the bytes");
                (payload.raw_bytes, payload.encoding, bytes)
            })
        })
    }
}

impl Drop for CompressedFrames {
    fn drop(&mut self) {
        let before = self.own.pool.passed_bytes.fetch_sub(self.raw_bytes, Ordering::Relaxed);
        assert!(before >= self.raw_bytes, "bytes leave once");
        let mut spare = self.own.spare.borrow_mut();
        for mut frames in self.parts.drain(..).filter_map(Part::into_frames) {
            if spare.len() < SPARE_MAX {
                frames.clear();
                spare.push(frames);
            }
        }
    }
}

/// A thread's codecs, one for each coding used so far.
#[derive(Default)]
struct Contexts {
    encoders: Vec<(Codec, Encoder)>,
}

impl Contexts {
    fn encoder(&mut self, codec: Codec) -> &mut Encoder {
        let known = self.encoders.iter().position(|(known, _)| *known == codec);
        let at = known.unwrap_or_else(|| {
            self.encoders.push((codec, Encoder::new(codec)));
            self.encoders.len() - 1
        });
        let (_, encoder) = self.encoders.get_mut(at).expect("it was found or added");
        encoder
    }
}

impl Pool {
    /// Starts `count` threads.
    ///
    /// # Errors
    /// The error of the operating system if a thread cannot be started.
    pub fn start(count: usize) -> io::Result<Arc<Self>> {
        let (queue, batches) = bounded(QUEUE_BATCHES);
        let (threads, passed_bytes) = (Vec::with_capacity(count), AtomicUsize::new(0));
        let mut pool = Self { queue, batches, threads, passed_bytes };
        for number in 1..=count {
            let batches = pool.batches.clone();
            let thread = thread::Builder::new().name(format!("codec-{number}"));
            pool.threads.push(thread.spawn(move || {
                let mut contexts = Contexts::default();
                while let Ok(batch) = batches.recv_blocking() {
                    batch.run(&mut contexts);
                }
            })?);
        }
        Ok(Arc::new(pool))
    }
}

impl Workers {
    /// Starts `count` threads for the drives of one executor.
    ///
    /// # Errors
    /// The errors of [`Pool::start`].
    pub fn start(count: usize) -> io::Result<Self> {
        Pool::start(count).map(Self::of)
    }

    /// Returns a handle for the drives of one executor.
    pub fn of(pool: Arc<Pool>) -> Self {
        let (contexts, tray, spare) = (RefCell::default(), RefCell::default(), RefCell::default());
        let (waiting, work) = (Line::default(), WaitQueue::default());
        Self { own: Rc::new(Own { pool, contexts, tray, waiting, work, spare }) }
    }

    /// Returns whether to pass on a write of `bytes` bytes: space is left, and the codec takes much
    /// longer than copying the write's frames and continuing the write in another task. That costs
    /// about 1 us for 4 KiB, half the time that LZ4 takes and a sixth of zstd's (see
    /// `benches/threads.rs`).
    pub(crate) fn can_take(&self, codec: Codec, bytes: usize) -> bool {
        let is_worth_it = match codec {
            Codec::None => false,
            Codec::Lz4 => bytes >= batch_bytes(codec),
            Codec::Zstd { .. } => true,
        };
        let has_room =
            self.own.pool.passed_bytes.load(Ordering::Relaxed) + bytes <= PASSED_BYTES_MAX;
        is_worth_it && has_room && !self.are_busy(codec, bytes)
    }

    /// Returns whether the threads have enough work for the time in which the caller's thread
    /// compresses a write of `bytes` bytes and attends to writes that end meanwhile. The caller's
    /// thread then compresses the write itself, in place and without a copy.
    fn are_busy(&self, codec: Codec, bytes: usize) -> bool {
        let waiting_bytes = self.own.pool.queue.len() * batch_bytes(codec);
        let threads = self.own.pool.threads.len();
        threads > 0 && waiting_bytes >= threads * BUSY_WRITES * bytes.max(batch_bytes(codec))
    }

    /// Compresses frames on these threads and the caller's, while the other tasks of the caller's
    /// thread run. `clock` belongs to the caller's executor.
    ///
    /// # Panics
    /// If a codec panics.
    pub(crate) async fn compress(
        &self,
        clock: &dyn AnyClock,
        coding: Coding,
        frames: &[&[u8]],
    ) -> CompressedFrames {
        let raw_bytes = frames.iter().map(|frame| frame.len()).sum();
        let before = self.own.pool.passed_bytes.fetch_add(raw_bytes, Ordering::Relaxed);
        let parts = self.begin(coding, frames, before == 0);
        let frames = CompressedFrames { parts, raw_bytes, own: self.own.clone() };
        self.wait_for(clock, &frames.parts).await;
        frames
    }

    /// Passes on the frames of a write. If the write is longer than a batch and no other write
    /// waits, this task compresses its share itself, immediately and without a copy.
    fn begin(&self, coding: Coding, frames: &[&[u8]], is_alone: bool) -> Vec<Part> {
        let groups = groups(frames, batch_bytes(coding.codec));
        let own_share = match groups.len() {
            count if is_alone && count > 1 => count.min(self.own.pool.threads.len().max(1) + 1),
            _ => usize::MAX,
        };
        let is_own = |number: usize| number % own_share == own_share - 1;
        let mut parts: Vec<_> = groups
            .iter()
            .enumerate()
            .map(|(number, group)| (!is_own(number)).then(|| self.put(coding, group)))
            .collect();
        if groups.len() > 1 {
            // Other writes cannot add frames before this task has compressed its share.
            self.take_from_tray(|batch| batch.coding == coding).into_iter().for_each(|batch| {
                self.pass_on(batch);
            });
        }
        for (part, group) in parts.iter_mut().zip(&groups) {
            part.get_or_insert_with(|| self.compress_here(coding, group));
        }
        parts.into_iter().flatten().collect()
    }

    fn spare(&self) -> Frames {
        self.own.spare.borrow_mut().pop().unwrap_or_default()
    }

    fn compress_here(&self, coding: Coding, group: &[&[u8]]) -> Part {
        let mut frames = self.spare();
        let contexts = &mut *self.own.contexts.borrow_mut();
        group.iter().for_each(|frame| frames.compress(frame, contexts, coding));
        Part::Own(frames)
    }

    /// Puts frames on the tray. A batch that has no space for them is passed on.
    fn put(&self, coding: Coding, frames: &[&[u8]]) -> Part {
        let bytes: usize = frames.iter().map(|frame| frame.len()).sum();
        let is_full = |batch: &Batch| batch.coding == coding && !batch.has_room(bytes);
        self.take_from_tray(is_full).into_iter().for_each(|batch| self.pass_on(batch));
        let mut tray = self.own.tray.borrow_mut();
        if let Some(batch) = tray.iter_mut().find(|batch| batch.coding == coding) {
            return batch.push(frames);
        }
        let (frames_of_batch, outcome) = (self.spare(), Arc::default());
        let mut batch = Batch { coding, frames: frames_of_batch, writes: 0, outcome };
        let part = batch.push(frames);
        tray.push(batch);
        self.own.work.wake_all();
        part
    }

    fn pass_on(&self, batch: Batch) {
        if let Err(refused) = self.own.pool.queue.try_send(batch) {
            refused.into_inner().run(&mut self.own.contexts.borrow_mut());
        }
        self.own.work.wake_all();
    }

    /// Waits until the parts of a write are compressed. The write that has waited longest attends
    /// to the tray and the queue.
    async fn wait_for(&self, clock: &dyn AnyClock, parts: &[Part]) {
        let ended = async {
            for part in parts {
                part.ended().await;
            }
        };
        select(pin!(ended), pin!(self.help_until_ended(clock, parts))).await;
    }

    /// Takes batches from the tray and the queue whenever no other task is ready. Starts after all
    /// earlier writes have ended and stops when this write has ended.
    async fn help_until_ended(&self, clock: &dyn AnyClock, parts: &[Part]) {
        let _turn = self.own.waiting.turn().await;
        while parts.iter().any(|part| part.payloads().is_none()) {
            self.own.work.wait_for(|| self.has_work().then_some(())).await;
            // Ready tasks, and tasks whose I/O has ended, run first.
            clock.sleep_ns(0).await;
            if let Some(batch) = self.take_from_tray(|_| true) {
                match batch.writes {
                    1 => batch.run(&mut self.own.contexts.borrow_mut()),
                    _ => self.pass_on(batch),
                }
            } else if let Ok(batch) = self.own.pool.batches.try_recv() {
                batch.run(&mut self.own.contexts.borrow_mut());
            }
        }
    }

    fn has_work(&self) -> bool {
        !self.own.tray.borrow().is_empty() || !self.own.pool.batches.is_empty()
    }

    fn take_from_tray(&self, is_wanted: impl Fn(&Batch) -> bool) -> Option<Batch> {
        let mut tray = self.own.tray.borrow_mut();
        let at = tray.iter().position(is_wanted)?;
        Some(tray.swap_remove(at))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.queue.close();
        // Discards batches of dropped writes.
        while self.batches.try_recv().is_ok() {}
        for thread in self.threads.drain(..) {
            // The waiting writes have already received a panic of the thread.
            let _ = thread.join();
        }
    }
}

/// Splits the frames of a write into groups of up to `bytes_max` bytes. A longer frame forms a
/// group of its own.
fn groups<'a, 'b>(frames: &'b [&'a [u8]], bytes_max: usize) -> Vec<&'b [&'a [u8]]> {
    let mut groups = Vec::new();
    let mut rest = frames;
    while !rest.is_empty() {
        let mut bytes = 0;
        let fits = |frame: &&&[u8]| {
            bytes += frame.len();
            bytes <= bytes_max
        };
        let count = rest.iter().take_while(fits).count().max(1);
        let (group, later) = rest.split_at(count);
        groups.push(group);
        rest = later;
    }
    groups
}

#[cfg(test)]
mod tests;

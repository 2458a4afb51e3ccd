//! Stored frames, read from the medium ahead of a sequential reader.
//!
//! ```text
//! reading --arrived--> ready --each frame used, or space needed--> released
//!    \--failed: released
//! ```
//!
//! A *stretch* is a range of a segment that was read in one operation. It is valid only for the
//! frames that were on the medium when it was read, under the generation that their segment had
//! then: bytes between them may be written later. A frame's content never changes while its segment
//! has that generation, so a stretch can never be stale, and overwrites need not invalidate
//! anything. Frames are verified when they are used; a frame that fails is read again.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use super::super::log::buffers::Buffers;
use super::super::place::{FrameAddress, FramePlace};
use crate::base::wait::WaitQueue;
use crate::base::{AlignedBuffer, SegmentId};

/// With this many concurrent host reads or more, nothing is read ahead: they keep the medium busy
/// by themselves.
const READS_MAX: u32 = 4;

/// Number of a stretch; later stretches have higher numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StretchId(u64);

#[derive(Debug)]
struct Stretch {
    /// Byte offset in the segment.
    start: u32,
    /// Bytes of the buffer.
    bytes: usize,
    /// The frames, and whether each was used.
    frames: Vec<(Key, bool)>,
    /// `None` until the frames have arrived.
    buffer: Option<AlignedBuffer>,
    /// The tick at which one of its frames was last used, or the stretch began.
    used_tick: u64,
}

/// Segment and offset of a frame.
type Key = (SegmentId, u32);

/// The frames read ahead in one drive.
#[derive(Debug)]
pub(crate) struct ReadAhead {
    bytes_max: usize,
    bytes: Cell<usize>,
    stretches: RefCell<BTreeMap<StretchId, Stretch>>,
    /// The stretch that contains each frame, and the generation of its segment.
    frames: RefCell<BTreeMap<Key, (u64, StretchId)>>,
    next_id: Cell<u64>,
    tick: Cell<u64>,
    host_reads: Cell<u32>,
    read_bytes: Cell<u64>,
    used_bytes: Cell<u64>,
    /// Woken when a reader needs more to be read ahead, or the drive ends.
    pub(crate) wanted: WaitQueue,
    /// Woken when a stretch has been read, or reading it has failed.
    pub(crate) arrived: WaitQueue,
}

/// A stretch that is being read. It is released when this is dropped, unless it has arrived.
pub(crate) struct Reading<'a> {
    ahead: &'a ReadAhead,
    id: StretchId,
}

/// A read of the host in progress.
pub(crate) struct HostRead<'a>(&'a ReadAhead);

impl Drop for HostRead<'_> {
    fn drop(&mut self) {
        let left = self.0.host_reads.get().checked_sub(1);
        self.0.host_reads.set(left.expect("a read ends once"));
    }
}

impl ReadAhead {
    /// Creates an empty store of up to `bytes_max` bytes.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            bytes: Cell::new(0),
            stretches: RefCell::default(),
            frames: RefCell::default(),
            next_id: Cell::new(0),
            tick: Cell::new(0),
            host_reads: Cell::new(0),
            read_bytes: Cell::new(0),
            used_bytes: Cell::new(0),
            wanted: WaitQueue::default(),
            arrived: WaitQueue::default(),
        }
    }

    /// Counts a read of the host as in progress.
    #[inline]
    pub(crate) fn begin_host_read(&self) -> HostRead<'_> {
        self.host_reads.set(self.host_reads.get() + 1);
        HostRead(self)
    }

    /// Returns whether reading ahead is useful given the host reads in progress.
    #[inline]
    pub(crate) fn is_of_use(&self) -> bool {
        self.bytes_max > 0 && self.host_reads.get() < READS_MAX
    }

    /// Returns the stretch that contains a frame.
    #[inline]
    pub(crate) fn find(&self, address: FrameAddress, generation: u64) -> Option<StretchId> {
        let frames = self.frames.borrow();
        let (found, id) = frames.get(&(address.segment, address.offset))?;
        (*found == generation).then_some(*id)
    }

    /// Returns whether a stretch is being read.
    pub(crate) fn is_reading(&self, id: StretchId) -> bool {
        self.stretches.borrow().get(&id).is_some_and(|stretch| stretch.buffer.is_none())
    }

    /// Begins to read a stretch of these frames in a segment of a generation, with a buffer of
    /// `bytes`. Returns `None` if there is no space for it. Stretches that no reader has used since
    /// the last tick are released to obtain space.
    pub(crate) fn begin(
        &self,
        (frames, generation): (&[FramePlace], u64),
        start: u32,
        bytes: usize,
        buffers: &Buffers,
    ) -> Option<Reading<'_>> {
        while self.bytes.get() + bytes > self.bytes_max {
            self.release_oldest_unused(buffers).then_some(())?;
        }
        let id = StretchId(self.next_id.get());
        self.next_id.set(id.0 + 1);
        self.bytes.set(self.bytes.get() + bytes);
        assert!(self.bytes.get() <= self.bytes_max, "no more is read ahead than the limit");
        let keys: Vec<_> = frames.iter().map(|place| (place.segment, place.offset)).collect();
        let known = keys.iter().map(|&key| (key, (generation, id)));
        self.frames.borrow_mut().extend(known);
        let frames = keys.into_iter().map(|key| (key, false)).collect();
        let used_tick = self.tick.get();
        let stretch = Stretch { start, bytes, frames, buffer: None, used_tick };
        self.stretches.borrow_mut().insert(id, stretch);
        Some(Reading { ahead: self, id })
    }

    /// Passes the bytes read from the start of a frame on to `use_record`. Returns `None` without
    /// calling it if the frame was not read ahead.
    pub(crate) fn with_record<T>(
        &self,
        id: StretchId,
        place: &FramePlace,
        use_record: impl FnOnce(&[u8]) -> T,
    ) -> Option<T> {
        let stretches = self.stretches.borrow();
        let stretch = stretches.get(&id)?;
        let key = (place.segment, place.offset);
        let is_here = stretch.frames.iter().any(|(frame, _)| *frame == key);
        let at = place.offset.checked_sub(stretch.start).filter(|_| is_here)?;
        stretch.buffer.as_ref()?.get(at as usize..).map(use_record)
    }

    /// Records that a frame was used. A stretch is released once all its frames were used.
    pub(crate) fn note_used(&self, id: StretchId, place: &FramePlace, buffers: &Buffers) {
        let mut stretches = self.stretches.borrow_mut();
        let Some(stretch) = stretches.get_mut(&id) else { return };
        let key = (place.segment, place.offset);
        let frame = stretch.frames.iter_mut().find(|(frame, _)| *frame == key);
        let Some((_, is_used)) = frame else { return };
        if !std::mem::replace(is_used, true) {
            self.used_bytes.set(self.used_bytes.get() + u64::from(place.record_bytes));
        }
        stretch.used_tick = self.tick.get();
        if stretch.frames.iter().all(|(_, is_used)| *is_used) {
            drop(stretches);
            self.release(id).into_iter().for_each(|buffer| buffers.keep(buffer));
        }
    }

    fn release_oldest_unused(&self, buffers: &Buffers) -> bool {
        let tick = self.tick.get();
        let is_unused = |stretch: &Stretch| stretch.buffer.is_some() && stretch.used_tick < tick;
        let oldest = {
            let stretches = self.stretches.borrow();
            stretches.iter().find(|(_, stretch)| is_unused(stretch)).map(|(id, _)| *id)
        };
        let Some(id) = oldest else { return false };
        self.release(id).into_iter().for_each(|buffer| buffers.keep(buffer));
        true
    }

    /// Removes a stretch. Returns its buffer, if it has arrived.
    fn release(&self, id: StretchId) -> Option<AlignedBuffer> {
        let stretch = self.stretches.borrow_mut().remove(&id)?;
        let mut frames = self.frames.borrow_mut();
        for (key, _) in stretch.frames {
            // The frame of a later use of the segment may have replaced it.
            if frames.get(&key).is_some_and(|(_, other)| *other == id) {
                frames.remove(&key);
            }
        }
        let left = self.bytes.get().checked_sub(stretch.bytes);
        self.bytes.set(left.expect("a stretch is released once"));
        stretch.buffer
    }

    /// Begins another period: stretches that are not used in it, or in the next, may be released.
    pub(crate) fn tick(&self) {
        self.tick.set(self.tick.get() + 1);
    }

    /// Releases all stretches that have arrived.
    pub(crate) fn release_all(&self, buffers: &Buffers) {
        self.tick();
        while self.release_oldest_unused(buffers) {}
    }

    /// Returns the number of bytes that were read ahead.
    pub(crate) fn read_bytes(&self) -> u64 {
        self.read_bytes.get()
    }

    /// Returns the bytes of the frames that were used.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.used_bytes.get()
    }

    /// Returns the bytes of memory in use.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.bytes.get()
    }
}

impl Reading<'_> {
    /// Ends the reading: the frames have arrived.
    pub(crate) fn arrived(self, buffer: AlignedBuffer) {
        let read_bytes = &self.ahead.read_bytes;
        read_bytes.set(read_bytes.get() + buffer.len() as u64);
        if let Some(stretch) = self.ahead.stretches.borrow_mut().get_mut(&self.id) {
            assert!(stretch.buffer.is_none(), "a stretch arrives once");
            stretch.buffer = Some(buffer);
        }
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        if self.ahead.is_reading(self.id) {
            self.ahead.release(self.id);
        }
        self.ahead.arrived.wake_all();
    }
}

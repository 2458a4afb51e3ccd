//! A medium in memory: for tests, and for measurements of the controller without a device.
//!
//! Every operation completes at its first poll. An append copies nothing: the medium retains the
//! buffer, unless little of it is used, and returns buffers that it no longer needs in exchange. A
//! segment occupies memory from its first append to its discard, so a mostly empty medium may be
//! larger than the machine's memory.
//!
//! ```text
//! segment:  |.....|batch||batch|.....|   appended ranges, disjoint; the rest reads as zeroes
//! ```
//!
//! This medium loses nothing and never fails, unless its space is limited
//! ([`MemMedium::set_room`]). [`super::layer::fault`] adds failures to any medium.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use super::{Capabilities, Geometry, Medium, SLOTS, SUPERBLOCK_BYTES};
use crate::base::units::len_u32;
use crate::base::{AlignedBuffer, Error, ErrorContext, ErrorKind, Result, SegmentId, ensure};
use crate::crypt::Cipher;

mod room;

use room::Room;

/// The write unit of a file with direct I/O, so that tests in memory cover it.
const WRITE_UNIT: u32 = 4096;

/// The finest read unit of common devices.
const READ_UNIT: u32 = 512;

/// A buffer of which less than three quarters are used is copied: the memory of the entire buffer
/// is not worth the time saved.
const KEPT_USE: (usize, usize) = (3, 4);

/// Maximum number of buffers retained for [`Medium::spare_buffer`]: two for each append that a
/// drive has in progress.
const SPARE_MAX: usize = 8;

/// A medium in memory. A clone is another handle to the same bytes, so a caller can retain a clone,
/// drop the drive and open it again.
#[derive(Clone, Debug)]
pub struct MemMedium {
    bytes: u64,
    durable_appends: bool,
    keys: Rc<KeyChain>,
    state: Rc<RefCell<State>>,
}

/// The successive ciphers of a medium. The last one is the current one.
#[derive(Debug, Default)]
struct KeyChain {
    cipher: Cipher,
    next: OnceCell<Box<KeyChain>>,
}

impl KeyChain {
    fn new(cipher: Cipher) -> Self {
        Self { cipher, next: OnceCell::new() }
    }

    fn last(&self) -> &Self {
        let mut last = self;
        while let Some(next) = last.next.get() {
            last = next;
        }
        last
    }
}

#[derive(Debug, Default)]
struct State {
    geometry: Option<Geometry>,
    segments: Vec<Segment>,
    superblocks: [Option<AlignedBuffer>; SLOTS as usize],
    spare: Vec<AlignedBuffer>,
    room: Room,
    refused: u64,
}

/// The content of a segment. A copy shares the buffers.
#[derive(Clone, Debug, Default)]
struct Segment {
    kept: BTreeMap<u32, Kept>,
}

/// A part of a buffer that the medium has retained.
#[derive(Clone, Debug)]
struct Kept {
    buffer: Arc<AlignedBuffer>,
    from: u32,
    len: u32,
}

impl Kept {
    fn bytes(&self) -> &[u8] {
        &self.buffer[self.from as usize..][..self.len as usize]
    }

    /// Returns the part of `len` bytes that begins after `skipped` bytes.
    fn part(&self, skipped: u32, len: u32) -> Self {
        assert!(skipped + len <= self.len, "a part lies in the kept bytes");
        Self { buffer: self.buffer.clone(), from: self.from + skipped, len }
    }
}

impl Segment {
    /// Returns the retained parts in a range, each with its offset, in descending order.
    fn kept_in(&self, start: u32, end: u32) -> impl Iterator<Item = (u32, &Kept)> {
        let before_end = self.kept.range(..end).rev().map(|(&at, kept)| (at, kept));
        before_end.take_while(move |(at, kept)| at + kept.len > start)
    }

    /// Cuts a range out of the retained parts. Returns the buffers that are no longer needed.
    fn cut(&mut self, start: u32, end: u32) -> impl Iterator<Item = AlignedBuffer> {
        let hidden: Vec<_> = self.kept_in(start, end).map(|(at, _)| at).collect();
        let mut hidden = hidden.into_iter();
        std::iter::from_fn(move || {
            loop {
                let at = hidden.next()?;
                let kept = self.kept.remove(&at)?;
                if at < start {
                    self.kept.insert(at, kept.part(0, start - at));
                }
                if at + kept.len > end {
                    self.kept.insert(end, kept.part(end - at, at + kept.len - end));
                }
                if let Some(buffer) = Arc::into_inner(kept.buffer) {
                    return Some(buffer);
                }
            }
        })
    }

    fn read(&self, offset: u32, target: &mut [u8]) {
        let start = offset as usize;
        target.fill(0);
        let end = start + target.len();
        for (at, kept) in self.kept_in(offset, offset + len_u32(target.len())) {
            let (first, last) = (start.max(at as usize), end.min((at + kept.len) as usize));
            let bytes = &kept.bytes()[first - at as usize..last - at as usize];
            target[first - start..last - start].copy_from_slice(bytes);
        }
    }

    fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }
}

impl MemMedium {
    /// Creates an empty medium that accepts any geometry of up to `bytes` bytes. Allocates no
    /// memory for segments.
    pub fn new(bytes: u64) -> Self {
        Self { bytes, durable_appends: true, keys: Rc::default(), state: Rc::default() }
    }

    /// Returns the medium with the keys of its drive.
    #[must_use]
    pub fn with_cipher(self, cipher: Cipher) -> Self {
        Self { keys: Rc::new(KeyChain::new(cipher)), ..self }
    }

    /// Sets keys that were read from the medium again, for this handle and all its clones, as
    /// another process that opens the drive would.
    pub fn set_cipher(&self, cipher: Cipher) {
        let set = self.keys.last().next.set(Box::new(KeyChain::new(cipher)));
        assert!(set.is_ok(), "the last one has none after it");
    }

    /// Returns the medium without durable appends, like a file without direct I/O, and without a
    /// preference for the location of an append.
    #[must_use]
    pub fn without_durable_appends(self) -> Self {
        Self { durable_appends: false, ..self }
    }

    /// Sets the number of free bytes in addition to the space of the segments, as on a file system
    /// that other users fill as well. Space is counted from the first call with a number, which
    /// must precede any append. With `None`, the initial state, space never runs out.
    pub fn set_room(&self, bytes: Option<u64>) {
        self.state.borrow_mut().room.set_left(bytes);
    }

    /// Makes other users take any space that is returned to the limited free space from now on.
    #[cfg(test)]
    pub(crate) fn besiege_room(&self) {
        self.state.borrow_mut().room.besiege();
    }

    /// Returns the bytes of limited space that segments occupy.
    pub fn taken_bytes(&self) -> u64 {
        self.state.borrow().room.taken()
    }

    /// Returns the number of appends that failed for lack of space.
    pub fn refused_appends(&self) -> u64 {
        self.state.borrow().refused
    }

    /// Returns the size in bytes with which the medium was created.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns another medium with a copy of the bytes.
    #[cfg(test)]
    pub(crate) fn deep_copy(&self) -> Self {
        let state = self.state.borrow();
        let state = State {
            geometry: state.geometry,
            segments: state.segments.clone(),
            superblocks: state.superblocks.clone(),
            spare: Vec::new(),
            room: state.room.clone(),
            refused: 0,
        };
        let keys = Rc::new(KeyChain::new(self.keys.last().cipher.clone()));
        Self { state: Rc::new(RefCell::new(state)), keys, ..self.clone() }
    }

    /// Returns the total size of the segments that occupy memory, each from its first append to its
    /// discard. A segment counts in full.
    pub fn resident_bytes(&self) -> u64 {
        let state = self.state.borrow();
        let segments = state.segments.iter().filter(|segment| !segment.is_empty());
        let segment_bytes = state.geometry.map_or(0, |geometry| geometry.segment_bytes);
        segments.count() as u64 * u64::from(segment_bytes)
    }
}

impl State {
    /// Checks a range of a segment against the geometry. Returns the segment's index.
    fn locate(&self, segment: SegmentId, offset: u32, len: usize, unit: u32) -> Result<usize> {
        self.check(segment, offset, len, unit)
            .map_err(|error| error.in_segment(segment).at_offset(u64::from(offset)))
    }

    fn check(&self, segment: SegmentId, offset: u32, len: usize, unit: u32) -> Result<usize> {
        const INVALID: ErrorKind = ErrorKind::InvalidInput;
        let geometry = self.geometry.or_error(INVALID, "the medium has no geometry yet")?;
        let is_known = segment.0 < geometry.segment_count;
        ensure(is_known, INVALID, "the medium has no such segment")?;
        let end = u64::from(offset) + len as u64;
        let is_inside = end <= u64::from(geometry.segment_bytes);
        ensure(is_inside, INVALID, "a transfer reaches beyond the end of its segment")?;
        let is_aligned = offset.is_multiple_of(unit) && len.is_multiple_of(unit as usize);
        ensure(is_aligned, INVALID, "a transfer is not aligned to the unit of the medium")?;
        assert_eq!(self.segments.len(), geometry.segment_count as usize, "segments of the medium");
        Ok(segment.0 as usize)
    }

    fn append(
        &mut self,
        segment: SegmentId,
        offset: u32,
        buffer: Arc<AlignedBuffer>,
    ) -> Result<()> {
        let index = self.locate(segment, offset, buffer.len(), WRITE_UNIT)?;
        let len = len_u32(buffer.len());
        self.room.take(index, offset..offset + len).inspect_err(|_| self.refused += 1)?;
        let content = &mut self.segments[index];
        let room = SPARE_MAX.saturating_sub(self.spare.len());
        content.cut(offset, offset + len).enumerate().for_each(|(number, buffer)| {
            if number < room {
                self.spare.push(buffer);
            }
        });
        let (part, of) = KEPT_USE;
        let buffer = if buffer.len() < buffer.capacity() / of * part {
            let mut copy = AlignedBuffer::zeroed(buffer.len());
            copy.copy_from_slice(&buffer);
            Arc::new(copy)
        } else {
            buffer
        };
        let is_clear = content.kept_in(offset, offset + len).next().is_none();
        debug_assert!(is_clear, "the parts of a segment are disjoint");
        content.kept.insert(offset, Kept { buffer, from: 0, len });
        Ok(())
    }

    fn read(&self, segment: SegmentId, offset: u32, target: &mut [u8]) -> Result<()> {
        let index = self.locate(segment, offset, target.len(), READ_UNIT)?;
        self.segments[index].read(offset, target);
        Ok(())
    }
}

fn check_slot(slot: u32) -> Result<usize> {
    if slot < SLOTS {
        return Ok(slot as usize);
    }
    Err(Error::new(ErrorKind::InvalidInput, format!("the medium has no superblock slot {slot}")))
}

impl Medium for MemMedium {
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
            .with_write_unit(WRITE_UNIT)
            .with_read_unit(READ_UNIT)
            .with_discard(true)
            .with_durable_appends(self.durable_appends)
            .with_prefers_written(self.durable_appends)
    }

    fn cipher(&self) -> &Cipher {
        &self.keys.last().cipher
    }

    /// Drops all content if the size or offset of the segments changes. A change of the number of
    /// segments preserves the content of the remaining ones. Like a device, the medium never
    /// changes its size in bytes.
    fn set_geometry(&self, geometry: Geometry) -> Result<()> {
        if geometry.medium_bytes() > self.bytes {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "the medium is too small: it has {} bytes, the drive needs {}",
                    self.bytes,
                    geometry.medium_bytes()
                ),
            ));
        }
        if !geometry.segment_bytes.is_multiple_of(WRITE_UNIT) {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!("a segment of this medium must be a multiple of {WRITE_UNIT} bytes"),
            ));
        }
        let mut state = self.state.borrow_mut();
        let segment_count = geometry.segment_count;
        let is_same =
            state.geometry.is_some_and(|old| Geometry { segment_count, ..old } == geometry);
        if !is_same {
            state.segments = Vec::new();
        }
        state.geometry = Some(geometry);
        state.segments.resize(segment_count as usize, Segment::default());
        Ok(())
    }

    async fn append(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: Arc<AlignedBuffer>,
    ) -> Result<()> {
        self.state.borrow_mut().append(segment, offset, buffer)
    }

    async fn append_durably(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: Arc<AlignedBuffer>,
    ) -> Result<()> {
        self.append(segment, offset, buffer).await
    }

    async fn read(
        &self,
        segment: SegmentId,
        offset: u32,
        mut buffer: AlignedBuffer,
    ) -> (AlignedBuffer, Result<()>) {
        let result = self.state.borrow().read(segment, offset, &mut buffer);
        (buffer, result)
    }

    async fn sync(&self) -> Result<()> {
        Ok(())
    }

    /// Frees the segment's memory. The segment then reads as zeroes.
    async fn discard(&self, segment: SegmentId) -> Result<()> {
        let mut state = self.state.borrow_mut();
        let index = state.locate(segment, 0, 0, WRITE_UNIT)?;
        state.segments[index] = Segment::default();
        state.room.give_back(index);
        Ok(())
    }

    fn room(&self) -> Option<u64> {
        self.state.borrow().room.left()
    }

    async fn preallocate(&self, segment: SegmentId) -> Result<()> {
        let mut state = self.state.borrow_mut();
        let index = state.locate(segment, 0, 0, WRITE_UNIT)?;
        let segment_bytes = state.geometry.map_or(0, |geometry| geometry.segment_bytes);
        state.room.take(index, 0..segment_bytes)
    }

    fn spare_buffer(&self) -> Option<AlignedBuffer> {
        self.state.borrow_mut().spare.pop()
    }

    async fn read_superblock(&self, slot: u32) -> Result<AlignedBuffer> {
        let slot = check_slot(slot)?;
        let stored = self.state.borrow().superblocks[slot].clone();
        Ok(stored.unwrap_or_else(|| AlignedBuffer::zeroed(SUPERBLOCK_BYTES)))
    }

    async fn write_superblock(&self, slot: u32, bytes: AlignedBuffer) -> Result<()> {
        let slot = check_slot(slot)?;
        if bytes.len() != SUPERBLOCK_BYTES {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!("a superblock has {} bytes instead of {SUPERBLOCK_BYTES}", bytes.len()),
            ));
        }
        self.state.borrow_mut().superblocks[slot] = Some(bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    //! Goal: bytes are stored at their offset and nowhere else, and survive the handle that wrote
    //! them. Method: every operation completes at its first poll, so the futures are polled once.
    use super::*;
    use crate::base::seed::random;
    use rand::RngExt;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    const GEOMETRY: Geometry =
        Geometry { segment_bytes: 64 << 10, segment_count: 4, data_offset: 8192 };

    fn now<T>(future: impl Future<Output = T>) -> T {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => value,
            Poll::Pending => panic!("memory never waits"),
        }
    }

    fn filled(len: usize, byte: u8) -> AlignedBuffer {
        let mut buffer = AlignedBuffer::zeroed(len);
        buffer.fill(byte);
        buffer
    }

    fn medium() -> MemMedium {
        let medium = MemMedium::new(GEOMETRY.medium_bytes());
        medium.set_geometry(GEOMETRY).unwrap();
        medium
    }

    fn read(medium: &MemMedium, segment: u32, offset: u32, len: usize) -> AlignedBuffer {
        let (buffer, result) = now(medium.read(SegmentId(segment), offset, filled(len, 0xee)));
        result.unwrap();
        buffer
    }

    #[test]
    fn bytes_are_where_they_were_put_and_nowhere_else() {
        let first = medium();
        now(first.append(SegmentId(1), 8192, Arc::new(filled(4096, 7)))).unwrap();
        let again = first.clone();
        drop(first);
        again.set_geometry(GEOMETRY).unwrap();
        for segment in 0..4 {
            let content = read(&again, segment, 0, 64 << 10);
            for (offset, &byte) in content.iter().enumerate() {
                let expected = if segment == 1 && offset / 4096 == 2 { 7 } else { 0 };
                assert_eq!(byte, expected, "segment {segment} offset {offset}");
            }
        }
        assert!(read(&again, 1, 11776, 1024)[..512].iter().all(|&byte| byte == 7));
    }

    #[test]
    fn memory_follows_appends_and_discards() {
        let medium = medium();
        assert_eq!(medium.bytes(), GEOMETRY.medium_bytes());
        read(&medium, 0, 0, 512);
        assert_eq!(medium.resident_bytes(), 0);
        now(medium.append(SegmentId(3), 0, Arc::new(filled(4096, 1)))).unwrap();
        assert_eq!(medium.resident_bytes(), 64 << 10);
        let mut little = filled(16 << 10, 1);
        little.set_len(8192);
        let little = Arc::new(little);
        now(medium.append(SegmentId(3), 4096, little.clone())).unwrap();
        assert_eq!(Arc::strong_count(&little), 1, "a buffer is kept for half of it");
        assert_eq!(medium.resident_bytes(), 64 << 10);
        now(medium.discard(SegmentId(3))).unwrap();
        assert_eq!(medium.resident_bytes(), 0);
        assert!(read(&medium, 3, 0, 4096).iter().all(|&byte| byte == 0));
    }

    /// Compares appends of all lengths, retained and copied, overlapping, with an array.
    #[test]
    fn the_last_append_is_read() {
        let (medium, mut random) = (medium(), random(1));
        let mut plain = vec![0; 64 << 10];
        for number in 0..2000u32 {
            let pages = random.random_range(1..=16);
            let at = random.random_range(0..=16 - pages) * 4096;
            let mut buffer = filled(pages * 4096, number.to_le_bytes()[0]);
            if random.random() {
                buffer = filled(2 * buffer.len(), buffer[0]);
                buffer.set_len(pages * 4096);
            }
            plain[at..][..buffer.len()].copy_from_slice(&buffer);
            now(medium.append(SegmentId(1), len_u32(at), Arc::new(buffer))).unwrap();
            let from = random.random_range(0..128) * 512;
            let len = random.random_range(0..=(plain.len() - from) / 512) * 512;
            assert!(*read(&medium, 1, len_u32(from), len) == plain[from..][..len], "{number}");
        }
    }

    #[test]
    fn buffers_are_kept_and_come_back_when_they_are_overwritten() {
        let medium = medium();
        let (first, second) = (Arc::new(filled(8192, 1)), Arc::new(filled(8192, 2)));
        let address = first.as_ptr();
        now(medium.append(SegmentId(0), 0, first.clone())).unwrap();
        assert_eq!(Arc::strong_count(&first), 2, "the bytes were copied");
        now(medium.append(SegmentId(0), 4096, second)).unwrap();
        drop(first);
        assert!(medium.spare_buffer().is_none(), "a buffer came back with half of it in use");
        now(medium.append(SegmentId(0), 0, Arc::new(filled(4096, 3)))).unwrap();
        assert_eq!(medium.spare_buffer().unwrap().as_ptr(), address, "another buffer came back");
        assert!(medium.spare_buffer().is_none());
        for _ in 0..2 * SPARE_MAX {
            now(medium.append(SegmentId(0), 0, Arc::new(filled(4096, 3)))).unwrap();
        }
        assert_eq!(std::iter::from_fn(|| medium.spare_buffer()).count(), SPARE_MAX);
    }

    #[test]
    fn requests_outside_the_medium_are_refused() {
        let blank = MemMedium::new(GEOMETRY.medium_bytes() - 1);
        let kind = ErrorKind::InvalidInput;
        assert_eq!(blank.set_geometry(GEOMETRY).unwrap_err().kind(), kind);
        assert_eq!(now(blank.discard(SegmentId(0))).unwrap_err().kind(), kind);

        let odd = Geometry { segment_bytes: 6144, ..GEOMETRY };
        assert_eq!(MemMedium::new(1 << 20).set_geometry(odd).unwrap_err().kind(), kind);

        let medium = medium();
        for (segment, offset, len) in
            [(4, 0, 4096), (0, 64 << 10, 4096), (0, 60 << 10, 8192), (0, 512, 4096), (0, 0, 512)]
        {
            let result = now(medium.append(SegmentId(segment), offset, Arc::new(filled(len, 1))));
            assert_eq!(result.unwrap_err().kind(), kind, "{segment} {offset} {len}");
        }
        for (segment, offset, len) in [(4, 0, 512), (0, 65_024, 1024), (0, 256, 512), (0, 0, 100)] {
            let result = now(medium.read(SegmentId(segment), offset, filled(len, 1))).1;
            assert_eq!(result.unwrap_err().kind(), kind, "{segment} {offset} {len}");
        }
        assert_eq!(now(medium.discard(SegmentId(4))).unwrap_err().kind(), kind);
        assert_eq!(now(medium.read_superblock(4)).unwrap_err().kind(), kind);
        let short = now(medium.write_superblock(0, filled(512, 1)));
        assert_eq!(short.unwrap_err().kind(), kind);
        assert_eq!(medium.resident_bytes(), 0);
    }

    #[test]
    fn superblocks_are_two_and_apart() {
        let medium = MemMedium::new(1 << 20);
        assert!(now(medium.read_superblock(1)).unwrap().iter().all(|&byte| byte == 0));
        now(medium.write_superblock(1, filled(SUPERBLOCK_BYTES, 9))).unwrap();
        assert_eq!(*now(medium.read_superblock(1)).unwrap(), *filled(SUPERBLOCK_BYTES, 9));
        assert!(now(medium.read_superblock(0)).unwrap().iter().all(|&byte| byte == 0));
    }

    #[test]
    fn another_geometry_starts_empty() {
        let medium = medium();
        now(medium.append(SegmentId(0), 0, Arc::new(filled(4096, 1)))).unwrap();
        medium.set_geometry(Geometry { segment_bytes: 32 << 10, ..GEOMETRY }).unwrap();
        assert!(read(&medium, 0, 0, 4096).iter().all(|&byte| byte == 0));
    }
}

//! Reading a segment from front to back through a window that reads ahead.
//!
//! ```text
//!   ----|===== buffered =====|-- chunk --|-- chunk --|-- chunk --|----> segment
//!       from      (bytes)     (ahead: reads under way)           ahead_end
//! ```
//!
//! Bytes that cannot be read in [`READS_MAX`] attempts become zeroes, which no checksum accepts as
//! content: one bad sector costs its own content and nothing else. A caller that decides something
//! from the *absence* of content must check [`Window::error`], and read again with
//! [`Window::read_again`]. This module only reads, and does not interpret the bytes.

use std::collections::VecDeque;
use std::ops::Range;
use std::pin::Pin;

use futures_util::FutureExt;
use futures_util::future::{MaybeDone, maybe_done};

use super::UNIT;
use crate::base::units::len_u32;
use crate::base::{AlignedBuffer, Error, Result, SegmentId};
use crate::format::BATCH_ALIGNMENT;
use crate::media::{AnyMedium, CopyId};

/// Bytes per read: a long batch and the data after it. Larger reads are no faster on any medium
/// here, and every stream of a log has a window.
const WINDOW_BYTES: usize = if cfg!(fuzzing) { FUZZ_BYTES } else { 2 << 20 };

/// For a fuzzer, whose images have few bytes and which opens hundreds of them per second.
const FUZZ_BYTES: usize = 64 << 10;

/// Bytes of a read that runs while the previous bytes are used.
const CHUNK_BYTES: usize = WINDOW_BYTES / 2;
const _: () = assert!(CHUNK_BYTES.is_multiple_of(BATCH_ALIGNMENT), "reads are whole units");

/// Attempts to read a unit that fails.
const READS_MAX: usize = 3;

/// Bytes per read after a long read has failed.
const PART_BYTES: usize = 64 << 10;

/// Maximum number of reads ahead in a log: enough for a medium that needs several concurrent reads
/// to be fast.
const CHUNKS_AHEAD: usize = 4;

type Chunk<'a> = Pin<Box<dyn Future<Output = (AlignedBuffer, Result<()>)> + 'a>>;

/// A window onto one segment at a time.
pub(crate) struct Window<'a> {
    medium: &'a dyn AnyMedium,
    segment_bytes: u32,
    /// The copy that is read; `None` for any.
    copy: Option<CopyId>,
    bytes: AlignedBuffer,
    buffered: Option<(SegmentId, u32)>,
    /// The reason why a part of the bytes is zeroes.
    error: Option<Error>,
    /// If set, only the requested bytes are read, in reads of this many bytes.
    unit: Option<usize>,
    /// The place at which a long read has failed: up to this offset, only the requested bytes are
    /// read.
    careful_until: Option<(SegmentId, u32)>,
    chunks_ahead: usize,
    /// Reads under way: the data after the window, in order.
    ahead: VecDeque<MaybeDone<Chunk<'a>>>,
    /// The offset of the next read; `None` if the window cannot be continued.
    ahead_end: Option<u32>,
    /// Buffers for these reads.
    spare: Vec<AlignedBuffer>,
}

impl<'a> Window<'a> {
    /// Creates a window that has read nothing yet.
    pub(crate) fn new(medium: &'a dyn AnyMedium, segment_bytes: u32) -> Self {
        Self {
            medium,
            segment_bytes,
            copy: None,
            bytes: AlignedBuffer::zeroed(0),
            buffered: None,
            error: None,
            unit: None,
            careful_until: None,
            chunks_ahead: 0,
            ahead: VecDeque::new(),
            ahead_end: None,
            spare: Vec::new(),
        }
    }

    /// Creates a window for a medium that is not written to while the window reads: once the window
    /// moves from front to back, the next reads run while it is used.
    pub(crate) fn reading_ahead(medium: &'a dyn AnyMedium, segment_bytes: u32) -> Self {
        let chunks_ahead = if cfg!(fuzzing) { 0 } else { CHUNKS_AHEAD };
        Self { chunks_ahead, ..Self::new(medium, segment_bytes) }
    }

    /// Returns the medium.
    pub(crate) fn medium(&self) -> &'a dyn AnyMedium {
        self.medium
    }

    /// Returns the bytes of a segment.
    pub(crate) fn segment_bytes(&self) -> u32 {
        self.segment_bytes
    }

    /// Returns the error that caused some of the bytes in the window to be zeroes, if any.
    pub(crate) fn error(&self) -> Option<&Error> {
        self.error.as_ref()
    }

    /// Returns that error, and clears it.
    pub(crate) fn take_error(&mut self) -> Option<Error> {
        self.error.take()
    }

    /// Forgets all bytes. Each subsequent read covers only the requested bytes: in one operation,
    /// or in operations of `unit` bytes each; `None` reads ahead again.
    pub(crate) fn read_again(&mut self, unit: Option<usize>) {
        self.unit = unit;
        self.buffered = None;
        self.ahead.clear();
        self.ahead_end = None;
    }

    /// Forgets all bytes. Subsequent reads use one copy, or any with `None`.
    pub(crate) fn read_copy(&mut self, copy: Option<CopyId>) {
        self.copy = copy;
        self.buffered = None;
        self.ahead.clear();
        self.ahead_end = None;
    }

    async fn read_from(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: AlignedBuffer,
    ) -> (AlignedBuffer, Result<()>) {
        read_from(self.medium, self.copy, segment, offset, buffer).await
    }

    /// Returns `len` bytes at `offset` of a segment; both multiples of 4096, and within the
    /// segment.
    pub(crate) async fn read(&mut self, segment: SegmentId, offset: u32, len: u32) -> &[u8] {
        assert!(offset.is_multiple_of(UNIT) && len.is_multiple_of(UNIT), "reads are whole units");
        assert!(
            offset.checked_add(len).is_some_and(|end| end <= self.segment_bytes),
            "a read lies within its segment"
        );
        let from = match self.buffered {
            Some((buffered, from))
                if buffered == segment && (from..=self.end(from)).contains(&offset) =>
            {
                if offset + len <= self.end(from) {
                    from
                } else {
                    if !self.advance(segment, offset, len).await {
                        self.load(segment, offset, len).await;
                    }
                    offset
                }
            }
            _ => {
                self.load(segment, offset, len).await;
                offset
            }
        };
        self.part(from, offset, len)
    }

    /// Returns again the bytes that [`Window::read`] last returned for `offset`.
    pub(crate) fn buffered(&self, offset: u32, len: u32) -> &[u8] {
        let (_, from) = self.buffered.expect("a window is asked again only after a read");
        self.part(from, offset, len)
    }

    /// Returns `len` bytes at `offset` of the segment; the window begins at `from`.
    fn part(&self, from: u32, offset: u32, len: u32) -> &[u8] {
        let at = offset.checked_sub(from).expect("a window begins before its part");
        let part = self.bytes.get(at as usize..).and_then(|bytes| bytes.get(..len as usize));
        part.expect("a window holds all that was read")
    }

    fn end(&self, from: u32) -> u32 {
        let end = from + len_u32(self.bytes.len());
        assert!(end <= self.segment_bytes, "a window ends within its segment");
        end
    }

    /// Moves the window's front to `offset`, which is in it or just after it, and adds data that
    /// was read ahead until the window contains `len` bytes. Returns whether that was possible.
    async fn advance(&mut self, segment: SegmentId, offset: u32, len: u32) -> bool {
        let (Some((_, from)), true) = (self.buffered.take(), self.chunks_ahead > 0) else {
            return false;
        };
        let front = (offset - from) as usize;
        self.bytes.copy_within(front.., 0);
        let kept = self.bytes.len().checked_sub(front);
        let mut kept = kept.expect("a window advances to an offset in it or just after it");
        while kept < len as usize {
            self.start_reads(segment);
            let Some(mut read) = self.ahead.pop_front() else { return false };
            (&mut read).await;
            let Some((chunk, Ok(()))) = Pin::new(&mut read).take_output() else { return false };
            self.reserve(kept + chunk.len());
            self.bytes.set_len(kept + chunk.len());
            let (_, target) = self.bytes.split_at_mut(kept);
            target.copy_from_slice(&chunk);
            kept += chunk.len();
            self.spare.push(chunk);
        }
        self.bytes.set_len(kept);
        self.start_reads(segment);
        self.buffered = Some((segment, offset));
        true
    }

    /// Starts the next reads of the segment.
    fn start_reads(&mut self, segment: SegmentId) {
        while let Some(offset) = self.ahead_end
            && self.ahead.len() < self.chunks_ahead
            && offset < self.segment_bytes
        {
            let len = CHUNK_BYTES.min((self.segment_bytes - offset) as usize);
            let mut buffer = self.spare.pop().unwrap_or_else(|| AlignedBuffer::zeroed(CHUNK_BYTES));
            buffer.set_len(len);
            let (medium, copy) = (self.medium, self.copy);
            let read = async move { read_from(medium, copy, segment, offset, buffer).await };
            let mut read = maybe_done(Box::pin(read) as Chunk<'a>);
            // An operation begins when it is first polled.
            (&mut read).now_or_never();
            self.ahead.push_back(read);
            self.ahead_end = Some(offset + len_u32(len));
        }
        assert!(self.ahead.len() <= self.chunks_ahead, "no more reads run ahead than are wanted");
    }

    /// Makes space for `len` bytes and retains the current bytes.
    fn reserve(&mut self, len: usize) {
        if self.bytes.capacity() < len {
            let mut longer = AlignedBuffer::zeroed(len.max(WINDOW_BYTES));
            let (kept, _) = longer.split_at_mut(self.bytes.len());
            kept.copy_from_slice(&self.bytes);
            self.bytes = longer;
        }
        assert!(self.bytes.capacity() >= len, "a window has room for its reads");
    }

    async fn load(&mut self, segment: SegmentId, offset: u32, len: u32) {
        let is_careful = self.careful_until.is_some_and(|(at, end)| at == segment && offset < end);
        let ahead = if self.unit.is_some() || is_careful { len as usize } else { WINDOW_BYTES };
        let window = ahead.min((self.segment_bytes - offset) as usize).max(len as usize);
        self.ahead.clear();
        self.ahead_end = None;
        self.buffered = None;
        self.error = None;
        if let Some(unit) = self.unit.filter(|&unit| unit < len as usize) {
            self.reserve(len as usize);
            self.bytes.set_len(len as usize);
            self.load_units(segment, offset, 0..len as usize, unit).await;
            self.buffered = Some((segment, offset));
            return;
        }
        self.reserve(window);
        self.bytes.set_len(window);
        let buffer = std::mem::replace(&mut self.bytes, AlignedBuffer::zeroed(0));
        let (bytes, result) = self.read_from(segment, offset, buffer).await;
        self.bytes = bytes;
        let reads_ahead = result.is_ok() && self.unit.is_none() && !is_careful;
        self.ahead_end = reads_ahead.then(|| offset + len_u32(window));
        if result.is_err() {
            if !is_careful {
                self.careful_until = Some((segment, offset + len_u32(window)));
            }
            self.load_parts(segment, offset, len).await;
        }
        assert!(self.bytes.len() >= len as usize, "a window holds the requested bytes");
        self.buffered = Some((segment, offset));
    }

    /// Reads `len` bytes in parts, after a single read has failed. A part that fails is read in
    /// pages: reading each page individually would take a thousand operations for the longest
    /// batch.
    async fn load_parts(&mut self, segment: SegmentId, offset: u32, len: u32) {
        self.bytes.set_len(len as usize);
        for at in (0..len as usize).step_by(PART_BYTES) {
            let part = at..(at + PART_BYTES).min(len as usize);
            let buffer = AlignedBuffer::zeroed(part.len());
            let (bytes, result) = self.read_from(segment, offset + len_u32(at), buffer).await;
            if result.is_err() {
                self.load_units(segment, offset, part, BATCH_ALIGNMENT).await;
                continue;
            }
            let target = self.bytes.get_mut(part);
            target.expect("the bytes have the requested length").copy_from_slice(&bytes);
        }
    }

    /// Reads a range of the bytes unit by unit, after a single read has failed.
    async fn load_units(
        &mut self,
        segment: SegmentId,
        offset: u32,
        range: Range<usize>,
        unit: usize,
    ) {
        for at in range.clone().step_by(unit) {
            let part = unit.min(range.end - at);
            let read = self.read_unit(segment, offset + len_u32(at), part).await;
            let target = self.bytes.get_mut(at..at + part);
            let target = target.expect("the bytes have the requested length");
            match read {
                Ok(bytes) => target.copy_from_slice(&bytes),
                Err(error) => {
                    tracing::debug!(error = %error.chain(), "cannot read a part of the log");
                    target.fill(0);
                    self.error = Some(error);
                }
            }
        }
    }

    async fn read_unit(
        &self,
        segment: SegmentId,
        offset: u32,
        len: usize,
    ) -> Result<AlignedBuffer> {
        let mut buffer = AlignedBuffer::zeroed(len);
        let mut attempts = 1;
        loop {
            let (bytes, result) = self.read_from(segment, offset, buffer).await;
            match result {
                Ok(()) => return Ok(bytes),
                Err(error) if attempts == READS_MAX => return Err(error),
                Err(_) => attempts += 1,
            }
            buffer = bytes;
        }
    }
}

async fn read_from(
    medium: &dyn AnyMedium,
    copy: Option<CopyId>,
    segment: SegmentId,
    offset: u32,
    buffer: AlignedBuffer,
) -> (AlignedBuffer, Result<()>) {
    match (copy, medium.as_array()) {
        (Some(copy), Some(array)) => array.read_copy(copy, segment, offset, buffer).await,
        _ => medium.read(segment, offset, buffer).await,
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a window returns the segment's bytes, wherever it is moved, and zeroes only for bytes
    //! that cannot be read. Method: random walks, mostly forwards, over a medium that is slow and
    //! fails occasionally.

    use rand::RngExt;

    use super::*;
    use crate::base::seed::random;
    use crate::media::Geometry;
    use crate::media::layer::{BadRange, Fault, FaultPlan, Region, Trigger};
    use crate::media::mem::MemMedium;
    use crate::runtime::Runtime;

    const SEGMENT_BYTES: u32 = 12 << 20;
    const PAGE: u32 = 4096;

    /// A medium of two segments whose pages all differ.
    fn medium(runtime: &Runtime) -> MemMedium {
        let geometry =
            Geometry { segment_bytes: SEGMENT_BYTES, segment_count: 2, data_offset: 2 << 20 };
        let medium = MemMedium::new(geometry.medium_bytes());
        medium.set_geometry(geometry).unwrap();
        for segment in 0..2_u32 {
            let mut bytes = AlignedBuffer::zeroed(SEGMENT_BYTES as usize);
            for (number, page) in (0_u64..).zip(bytes.chunks_mut(PAGE as usize)) {
                page.fill((number * 7 + u64::from(segment) * 3 + 1).to_le_bytes()[0] | 1);
                let name = number + u64::from(segment) * 10_000;
                page[..8].copy_from_slice(&name.to_le_bytes());
            }
            let appended = medium.append(SegmentId(segment), 0, bytes.into());
            runtime.block_on(appended).unwrap();
        }
        medium
    }

    fn walk(seed: u64, plan: FaultPlan) {
        let runtime = Runtime::simulated();
        let plain = medium(&runtime);
        let fails = !matches!(plan.read_errors, Trigger::Never);
        let medium = Fault::new(plain.clone(), runtime.clone(), seed, plan);
        let mut window = Window::reading_ahead(&medium, SEGMENT_BYTES);
        let mut random = random(seed);
        let (mut segment, mut at) = (SegmentId(0), 0);
        for _ in 0..200 {
            let pages_left = (SEGMENT_BYTES - at) / PAGE;
            if pages_left == 0 || random.random_range(0..30) == 0 {
                segment = SegmentId(random.random_range(0..2));
                at = random.random_range(0..SEGMENT_BYTES / PAGE) * PAGE;
                continue;
            }
            let len = random.random_range(1..=pages_left.min(300)) * PAGE;
            let buffer = AlignedBuffer::zeroed(len as usize);
            let (expected, _) = runtime.block_on(plain.read(segment, at, buffer));
            let bytes = runtime.block_on(window.read(segment, at, len)).to_vec();
            let is_lost = |page: &[u8]| fails && page.iter().all(|byte| *byte == 0);
            let mut lost = false;
            for (got, wanted) in bytes.chunks(PAGE as usize).zip(expected.chunks(PAGE as usize)) {
                lost |= is_lost(got);
                assert!(got == wanted || is_lost(got), "seed {seed}: {segment:?} {at} + {len}");
            }
            assert!(window.buffered(at, len) == bytes);
            assert!(!lost || window.error().is_some(), "seed {seed}: zeroes for nothing");
            // Some headers are read before the subsequent batch.
            at += if !lost && random.random_range(0..3) == 0 { 0 } else { len };
        }
    }

    #[test]
    fn a_window_shows_its_segment() {
        for seed in 0..20 {
            walk(seed, FaultPlan { latency_ns: 0..=1_000_000, ..FaultPlan::default() });
        }
    }

    /// Zeroes that are returned again are still not content.
    #[test]
    fn an_unreadable_drive_is_an_error_while_it_is_listed() {
        let runtime = Runtime::simulated();
        let medium = Fault::new(medium(&runtime), runtime.clone(), 1, FaultPlan::default());
        let region = Region::Segment(SegmentId(1));
        medium.add_bad_range(BadRange::unreadable(region, PAGE..PAGE + 512));
        let mut window = Window::reading_ahead(&medium, SEGMENT_BYTES);
        for _ in 0..3 {
            let bytes = runtime.block_on(window.read(SegmentId(1), PAGE, PAGE));
            assert!(bytes.iter().all(|&byte| byte == 0));
            assert!(window.error().is_some(), "zeroes for content");
        }
        runtime.block_on(window.read(SegmentId(1), 2 * PAGE, PAGE));
        assert!(window.error().is_none());
    }

    #[test]
    fn unreadable_bytes_are_zeroes_and_an_error() {
        for seed in 0..20 {
            let read_errors = Trigger::Probability(0.2);
            walk(
                seed,
                FaultPlan { latency_ns: 0..=1_000_000, read_errors, ..FaultPlan::default() },
            );
        }
    }
}

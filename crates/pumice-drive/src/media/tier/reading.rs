//! Reads from the bucket, in lines that are cached in memory.
//!
//! The checksum of a chunk is verified whenever the entire chunk was read in one request. A chunk
//! that differs is read a second time, then reported by name and returned as it is. Batches, frames
//! and maps have checksums of their own, so a damaged byte affects only the structure that it
//! belongs to, unless parity restores that.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use quick_cache::Weighter;
use quick_cache::unsync::Cache;

use super::object::Chunk;
use super::store::{Patient, Store};
use crate::base::checksum::crc64;
use crate::base::{AlignedBuffer, Clock, Error, ErrorKind, Result, SegmentId};

/// Bytes of a line: a request costs about as much as transferring this much. Arbitrary within a
/// factor of four.
const LINE_BYTES: u32 = 256 << 10;

/// Memory for lines.
const CACHE_BYTES: u64 = 64 << 20;

/// Segment, use, chunk (offset, epoch) and line in the chunk.
type Key = (u32, u64, u32, u32, u32);

#[derive(Clone)]
struct ByLength;

impl Weighter<Key, Arc<[u8]>> for ByLength {
    fn weight(&self, _: &Key, line: &Arc<[u8]>) -> u64 {
        line.len() as u64
    }
}

/// Lines in memory.
type Lines = Cache<Key, Arc<[u8]>, ByLength>;

/// Reads bytes of segments that are in the bucket.
pub(super) struct Reading {
    lines: Rc<RefCell<Lines>>,
    /// The last chunk with a wrong checksum.
    damaged: RefCell<Option<String>>,
    /// Whether a chunk was missing from the bucket.
    has_missed: Cell<bool>,
}

impl Reading {
    pub(super) fn new() -> Rc<Self> {
        let items = usize::try_from(CACHE_BYTES / u64::from(LINE_BYTES)).unwrap_or(usize::MAX);
        let lines = Cache::with_weighter(items, CACHE_BYTES, ByLength);
        Self::with(Rc::new(RefCell::new(lines)))
    }

    fn with(lines: Rc<RefCell<Lines>>) -> Rc<Self> {
        let (damaged, has_missed) = (RefCell::default(), Cell::default());
        Rc::new(Self { lines, damaged, has_missed })
    }

    /// Returns a reader for another image of the same bucket, which shares the lines.
    pub(super) fn for_another(&self) -> Rc<Self> {
        Self::with(self.lines.clone())
    }

    /// Returns whether a requested chunk was missing from the bucket.
    pub(super) fn has_missed(&self) -> bool {
        self.has_missed.get()
    }

    /// Returns the name of the last object that was found to be damaged.
    pub(super) fn damaged_object(&self) -> Option<String> {
        self.damaged.borrow().clone()
    }

    /// Verifies the bytes of a chunk; reports its name if they differ from its checksum.
    pub(super) fn verify(&self, (segment, use_id): (u32, u64), chunk: &Chunk, bytes: &[u8]) {
        if crc64(bytes) == chunk.checksum {
            return;
        }
        let name = chunk.name(segment, use_id);
        if self.damaged.replace(Some(name.clone())).as_ref() != Some(&name) {
            let segment = SegmentId(segment);
            tracing::warn!(%segment, object = name, "an object in the bucket is damaged");
        }
    }

    /// Fills the buffer from `offset` of a segment with the bytes of its chunks, and zeroes
    /// elsewhere.
    pub(super) async fn read<S: Store, C: Clock>(
        &self,
        store: &Patient<S, C>,
        (segment, use_id): (u32, u64),
        chunks: &[Chunk],
        offset: u32,
        buffer: &mut AlignedBuffer,
    ) -> Result<()> {
        buffer.fill(0);
        let end = offset + u32::try_from(buffer.len()).unwrap_or(u32::MAX - offset);
        for chunk in chunks {
            let (from, to) = (chunk.offset.max(offset), chunk.end().min(end));
            let mut at = from;
            while at < to {
                let line = (at - chunk.offset) / LINE_BYTES;
                let last = (to - 1 - chunk.offset) / LINE_BYTES;
                let bytes = self.line(store, (segment, use_id), chunk, line, last).await?;
                let line_at = chunk.offset + line * LINE_BYTES;
                let until = to.min(line_at + LINE_BYTES);
                let source = bytes.get((at - line_at) as usize..(until - line_at) as usize);
                let target = buffer.get_mut((at - offset) as usize..(until - offset) as usize);
                let (Some(source), Some(target)) = (source, target) else {
                    return Err(short(&chunk.name(segment, use_id)));
                };
                target.copy_from_slice(source);
                at = until;
            }
        }
        Ok(())
    }

    /// Returns a line of a chunk, and fetches with it the next lines up to `last` that are not in
    /// memory.
    async fn line<S: Store, C: Clock>(
        &self,
        store: &Patient<S, C>,
        (segment, use_id): (u32, u64),
        chunk: &Chunk,
        line: u32,
        last: u32,
    ) -> Result<Arc<[u8]>> {
        // Chunks of one use that begin at the same offset have the same bytes there, if the same
        // writer made them: of two writers that continue one use, only one has commits that count.
        assert!(line <= last && last <= (chunk.bytes - 1) / LINE_BYTES, "a line lies in its chunk");
        let key = |line| (segment, use_id, chunk.offset, chunk.epoch, line);
        if let Some(bytes) = self.lines.borrow().get(&key(line)) {
            let is_long =
                bytes.len() as u64 >= u64::from((chunk.bytes - line * LINE_BYTES).min(LINE_BYTES));
            if is_long {
                return Ok(bytes.clone());
            }
        }
        let is_missing = |line: u32| self.lines.borrow().get(&key(line)).is_none();
        let missing = (line + 1..=last).take_while(|&line| is_missing(line)).count();
        let lines = 1 + u32::try_from(missing).unwrap_or(0);
        let start = line * LINE_BYTES;
        let end = (start + lines * LINE_BYTES).min(chunk.bytes);
        let name = chunk.name(segment, use_id);
        let mut found = self.get(store, &name, start..end).await?;
        if start == 0 && end == chunk.bytes {
            if crc64(&found) != chunk.checksum {
                // A transient failure of one read need not affect the next.
                found = self.get(store, &name, start..end).await?;
            }
            self.verify((segment, use_id), chunk, &found);
        }
        let mut first = None;
        for (number, bytes) in (line..).zip(found.chunks(LINE_BYTES as usize)) {
            let bytes: Arc<[u8]> = bytes.into();
            self.lines.borrow_mut().insert(key(number), bytes.clone());
            first.get_or_insert(bytes);
        }
        first.ok_or_else(|| short(&name))
    }

    /// Reads a range of a chunk.
    async fn get<S: Store, C: Clock>(
        &self,
        store: &Patient<S, C>,
        name: &str,
        range: Range<u32>,
    ) -> Result<Vec<u8>> {
        let found = store.get(name, Some(range.start.into()..range.end.into())).await?;
        let found = found.ok_or_else(|| {
            self.has_missed.set(true);
            let what = format!(
                "{name} is not in the bucket: if another machine writes the drive, open it again"
            );
            Error::new(ErrorKind::Medium, what)
        })?;
        if found.len() == range.len() { Ok(found) } else { Err(short(name)) }
    }
}

fn short(name: &str) -> Error {
    Error::new(ErrorKind::Medium, format!("{name} is shorter than its commit says"))
}

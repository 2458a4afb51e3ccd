//! Reading a segment from front to back through a window that reads ahead.
//!
//! What cannot be read becomes zeroes, which no checksum takes for content: one bad sector costs
//! what stands in it and nothing else; but who decides something from the *absence* of content must
//! ask [`Window::error`]. Only reads; knows nothing of what the bytes mean.

use crate::base::{AlignedBuffer, Error, Result, SegmentId};
use crate::format::BATCH_ALIGNMENT;
use crate::media::Medium;

/// Bytes read at once: a long batch and what follows it. Larger reads are no faster on any medium
/// here, and every stream of a log has a window.
const WINDOW_BYTES: usize = if cfg!(feature = "fuzz") { FUZZ_BYTES } else { 2 << 20 };

/// For a fuzzer, whose images have few bytes and which opens hundreds of them in a second.
const FUZZ_BYTES: usize = 64 << 10;

/// A window onto one segment at a time.
pub(crate) struct Window<'a, M> {
    medium: &'a M,
    segment_bytes: u32,
    bytes: AlignedBuffer,
    held: Option<(SegmentId, u32)>,
    error: Option<Error>,
}

impl<'a, M: Medium> Window<'a, M> {
    /// A window that has read nothing yet.
    pub(crate) fn new(medium: &'a M, segment_bytes: u32) -> Self {
        Self { medium, segment_bytes, bytes: AlignedBuffer::zeroed(0), held: None, error: None }
    }

    /// Why some of the bytes in the window are zeroes, if they could not be read.
    pub(crate) fn error(&mut self) -> Option<Error> {
        self.error.take()
    }

    /// `len` bytes at `offset` of a segment; both multiples of 4096, and within the segment.
    pub(crate) async fn read(&mut self, segment: SegmentId, offset: u32, len: u32) -> &[u8] {
        let held = self.held.filter(|&(held, from)| {
            held == segment
                && offset >= from
                && (offset - from) as usize + len as usize <= self.bytes.len()
        });
        let from = match held {
            Some((_, from)) => from,
            None => {
                self.load(segment, offset, len).await;
                offset
            }
        };
        &self.bytes[(offset - from) as usize..][..len as usize]
    }

    /// What [`Window::read`] gave last for `offset`, again.
    pub(crate) fn held(&self, offset: u32, len: u32) -> &[u8] {
        let (_, from) = self.held.expect("nothing was read");
        &self.bytes[(offset - from) as usize..][..len as usize]
    }

    async fn load(&mut self, segment: SegmentId, offset: u32, len: u32) {
        let ahead = WINDOW_BYTES.min((self.segment_bytes - offset) as usize).max(len as usize);
        let mut buffer = std::mem::replace(&mut self.bytes, AlignedBuffer::zeroed(0));
        if buffer.capacity() < ahead {
            buffer = AlignedBuffer::zeroed(WINDOW_BYTES.max(ahead));
        }
        buffer.set_len(ahead);
        self.held = None;
        self.error = None;
        let (bytes, result) = self.medium.read(segment, offset, buffer).await;
        self.bytes = bytes;
        if result.is_err() {
            self.load_units(segment, offset, len).await;
        }
        self.held = Some((segment, offset));
    }

    /// Reads `len` bytes unit by unit, where reading ahead failed.
    async fn load_units(&mut self, segment: SegmentId, offset: u32, len: u32) {
        self.bytes.set_len(len as usize);
        for at in (0..len as usize).step_by(BATCH_ALIGNMENT) {
            let page = AlignedBuffer::zeroed(BATCH_ALIGNMENT);
            let (bytes, result): (_, Result<()>) =
                self.medium.read(segment, offset + at as u32, page).await;
            let target = &mut self.bytes[at..at + BATCH_ALIGNMENT];
            match result {
                Ok(()) => target.copy_from_slice(&bytes),
                Err(error) => {
                    tracing::warn!("while reading the log: {}", error.chain());
                    target.fill(0);
                    self.error = Some(error);
                }
            }
        }
    }
}

//! Buffers for reading from the medium, kept for the next read.
//!
//! Two sizes: one for a frame of a small random read, one for a long sequential read. Larger
//! buffers are allocated and dropped.

use std::cell::RefCell;

use crate::base::AlignedBuffer;
use crate::base::aligned::ALIGNMENT;

/// Longest media read that adjacent frames are joined into: what one operation of a fast medium
/// moves in well under a millisecond.
pub(crate) const COALESCED_BYTES_MAX: usize = 1 << 20;

/// A frame of 4 KiB with its header, widened to the read unit on both sides, and some reserve.
const SMALL_BYTES: usize = 16 << 10;

/// The longest coalesced read and its widening.
const LARGE_BYTES: usize = COALESCED_BYTES_MAX + (8 << 10);
const _: () = assert!(
    SMALL_BYTES < LARGE_BYTES
        && SMALL_BYTES.is_multiple_of(ALIGNMENT)
        && LARGE_BYTES.is_multiple_of(ALIGNMENT),
    "the capacity of a kept buffer says which size it has"
);

/// Buffers kept of each size: 4 MiB of small ones, as many as the requests that a server runs at
/// once; 8 MiB of large ones.
const SMALL_KEPT: usize = 256;
const LARGE_KEPT: usize = 8;

/// The kept buffers of one drive.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    small: RefCell<Vec<AlignedBuffer>>,
    large: RefCell<Vec<AlignedBuffer>>,
}

impl Buffers {
    /// Returns a buffer of `len` bytes with unspecified content.
    pub(crate) fn take(&self, len: usize) -> AlignedBuffer {
        let (kept, bytes) = match len {
            0..=SMALL_BYTES => (&self.small, SMALL_BYTES),
            _ if len <= LARGE_BYTES => (&self.large, LARGE_BYTES),
            _ => return AlignedBuffer::zeroed(len),
        };
        let mut buffer = kept.borrow_mut().pop().unwrap_or_else(|| AlignedBuffer::zeroed(bytes));
        assert_eq!(buffer.capacity(), bytes, "kept buffers of one size have that size");
        buffer.set_len(len);
        buffer
    }

    /// Keeps a buffer for the next [`Buffers::take`].
    pub(crate) fn put(&self, buffer: AlignedBuffer) {
        let (kept, limit) = match buffer.capacity() {
            SMALL_BYTES => (&self.small, SMALL_KEPT),
            LARGE_BYTES => (&self.large, LARGE_KEPT),
            _ => return,
        };
        let mut kept = kept.borrow_mut();
        if kept.len() < limit {
            kept.push(buffer);
        }
        assert!(kept.len() <= limit, "no more buffers are kept than the limit");
    }

    /// Returns the bytes of memory held by buffers not in use.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.small.borrow().len() * SMALL_BYTES + self.large.borrow().len() * LARGE_BYTES
    }
}

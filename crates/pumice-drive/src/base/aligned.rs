//! Page-aligned byte buffers, as direct I/O requires.
//!
//! Invariant: the first byte is aligned to [`ALIGNMENT`]; the capacity is a multiple of it and
//! never changes after construction, so the address is stable until the buffer is dropped.

use std::fmt;
use std::ops::{Deref, DerefMut};

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Alignment and granularity of a buffer in bytes: the strictest direct I/O alignment of common
/// devices, and the page size of the supported machines.
pub const ALIGNMENT: usize = 4096;

#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4096))]
struct Page([u8; ALIGNMENT]);

/// An owned byte buffer that is aligned to 4096 bytes. Its length is at most its capacity.
#[derive(Clone)]
pub struct AlignedBuffer {
    pages: Vec<Page>,
    len: usize,
}

impl AlignedBuffer {
    /// Creates a zeroed buffer of `len` bytes. The capacity is `len` rounded up to whole pages.
    ///
    /// # Panics
    /// If the allocation fails.
    pub fn zeroed(len: usize) -> Self {
        let pages = Page::new_vec_zeroed(len.div_ceil(ALIGNMENT)).expect("buffer too large");
        Self { pages, len }
    }

    /// Returns the number of bytes that the buffer can hold.
    pub fn capacity(&self) -> usize {
        self.pages.len() * ALIGNMENT
    }

    /// Sets the length. Bytes beyond the old length have unspecified values: earlier content of the
    /// buffer, or zeroes.
    ///
    /// # Panics
    /// If `len` is above the capacity.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity(), "a length beyond the capacity of a buffer");
        self.len = len;
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];

    #[expect(clippy::indexing_slicing, reason = "the length is at most the capacity")]
    fn deref(&self) -> &[u8] {
        &self.pages.as_bytes()[..self.len]
    }
}

impl DerefMut for AlignedBuffer {
    #[expect(clippy::indexing_slicing, reason = "the length is at most the capacity")]
    fn deref_mut(&mut self) -> &mut [u8] {
        let len = self.len;
        &mut self.pages.as_mut_bytes()[..len]
    }
}

impl fmt::Debug for AlignedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuffer({} of {} bytes)", self.len, self.capacity())
    }
}

#[cfg(test)]
mod tests {
    //! Goal: the alignment and the bounds that direct I/O requires.
    use super::*;

    #[test]
    fn buffers_are_aligned_and_zeroed() {
        for len in [0, 1, 4096, 4097, 1 << 20] {
            let buffer = AlignedBuffer::zeroed(len);
            assert_eq!(buffer.len(), len);
            assert_eq!(buffer.as_ptr() as usize % ALIGNMENT, 0);
            assert_eq!(buffer.capacity(), len.next_multiple_of(ALIGNMENT));
            assert!(buffer.iter().all(|&byte| byte == 0));
        }
    }

    #[test]
    #[should_panic]
    fn a_length_above_the_capacity_is_a_bug() {
        AlignedBuffer::zeroed(4096).set_len(4097);
    }
}

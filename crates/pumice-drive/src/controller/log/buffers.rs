//! Buffers for reading from the medium, in a few sizes, retained for the next read, and bounded.
//!
//! A read uses the smallest size that it fits into, so that a frame of 32 KiB does not occupy, and
//! the first time zero, a buffer for the longest coalesced read. Reads wait while the buffers in
//! flight would exceed [`IN_FLIGHT_BYTES_MAX`]: clients determine the number of concurrent reads,
//! and must not determine the memory use of a drive.
//!
//! **Progress.** A reader holds at most one buffer, and only for one operation of the medium.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use crate::base::aligned::ALIGNMENT;
use crate::base::wait::{Line, WaitQueue};
use crate::base::{AlignedBuffer, Result, SegmentId};
use crate::media::AnyMedium;

/// Maximum length of a media read that joins adjacent frames: an amount that one operation of a
/// fast medium moves in well under a millisecond.
pub(crate) const COALESCED_BYTES_MAX: usize = 1 << 20;

/// Both sides of a read are widened to the read unit.
const WIDENING_BYTES: usize = 8 << 10;

/// The sizes: a page, two pages, a widened frame of one incompressible block, widened frames of 8
/// to 128 such blocks, and the longest coalesced read.
const SIZES: [usize; 9] = [
    4 << 10,
    8 << 10,
    16 << 10,
    (32 << 10) + WIDENING_BYTES,
    (64 << 10) + WIDENING_BYTES,
    (128 << 10) + WIDENING_BYTES,
    (256 << 10) + WIDENING_BYTES,
    (512 << 10) + WIDENING_BYTES,
    COALESCED_BYTES_MAX + WIDENING_BYTES,
];
const _: () = assert!(
    SIZES[0].is_multiple_of(ALIGNMENT) && WIDENING_BYTES.is_multiple_of(ALIGNMENT),
    "the capacity of a kept buffer implies its size"
);

/// Maximum number of bytes of unused buffers that are retained: more than the reads of a deep queue
/// need.
const KEPT_BYTES_MAX: usize = 12 << 20;

/// Bytes of buffers in flight: twice the concurrent reads of one long host read.
const IN_FLIGHT_BYTES_MAX: usize = 64 << 20;

/// The buffers of one drive.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    kept: [RefCell<Vec<AlignedBuffer>>; SIZES.len()],
    kept_bytes: Cell<usize>,
    in_flight_bytes: Cell<usize>,
    in_flight_bytes_most: Cell<usize>,
    /// Reads that wait for space: short reads do not overtake a long one again and again.
    waiting: Line,
    returned: WaitQueue,
}

/// Counts a buffer as in flight until dropped, even if the read is cancelled and the buffer is not
/// returned.
pub(crate) struct InFlight<'a> {
    buffers: &'a Buffers,
    bytes: usize,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        let left = self.buffers.in_flight_bytes.get().checked_sub(self.bytes);
        self.buffers.in_flight_bytes.set(left.expect("a buffer comes back twice"));
        self.buffers.returned.wake_all();
    }
}

impl Buffers {
    /// Returns a buffer of `len` bytes with unspecified content, once the bound permits it.
    pub(crate) async fn take(&self, len: usize) -> (AlignedBuffer, InFlight<'_>) {
        let fitting = self.fitting(len);
        // Only a damaged map requests more.
        let bytes = fitting.map_or(len, |(bytes, _)| bytes);
        let now = self.waiting.is_empty().then(|| self.enter(bytes)).flatten();
        let in_flight = match now {
            Some(in_flight) => in_flight,
            None => {
                let _turn = self.waiting.turn().await;
                self.returned.wait_for(|| self.enter(bytes)).await
            }
        };
        let kept = fitting.and_then(|(_, kept)| kept.borrow_mut().pop());
        let mut buffer = match kept {
            Some(buffer) => {
                let left = self.kept_bytes.get().checked_sub(bytes);
                self.kept_bytes.set(left.expect("a buffer that is kept is counted"));
                buffer
            }
            None => AlignedBuffer::zeroed(bytes),
        };
        assert!(buffer.capacity() >= bytes, "kept buffers of one size have that size");
        buffer.set_len(len);
        (buffer, in_flight)
    }

    /// Returns the smallest size that fits `len` bytes, and the retained buffers of that size.
    fn fitting(&self, len: usize) -> Option<(usize, &RefCell<Vec<AlignedBuffer>>)> {
        SIZES.into_iter().zip(&self.kept).find(|(bytes, _)| len <= *bytes)
    }

    /// Counts a buffer as in flight, if the bound permits it, or if it is the only one.
    fn enter(&self, bytes: usize) -> Option<InFlight<'_>> {
        let others = self.in_flight_bytes.get();
        if others > 0 && others + bytes > IN_FLIGHT_BYTES_MAX {
            return None;
        }
        self.in_flight_bytes.set(others + bytes);
        self.in_flight_bytes_most.set(self.in_flight_bytes_most.get().max(others + bytes));
        Some(InFlight { buffers: self, bytes })
    }

    /// Reads a range of a segment, widened to the read unit of the medium. Returns the result of
    /// `then` for the bytes in the range.
    ///
    /// # Errors
    /// The errors of the medium.
    pub(crate) async fn read<R>(
        &self,
        medium: &dyn AnyMedium,
        segment: SegmentId,
        range: Range<u32>,
        then: impl FnOnce(&[u8]) -> R,
    ) -> Result<R> {
        let unit = medium.capabilities().read_unit;
        let start = range.start / unit * unit;
        let len = range.end.next_multiple_of(unit) - start;
        let (buffer, in_flight) = self.take(len as usize).await;
        let (bytes, result) = medium.read(segment, start, buffer).await;
        let wanted = (range.start - start) as usize..(range.end - start) as usize;
        let wanted = bytes.get(wanted).expect("a read covers its range");
        let result = result.map(|()| then(wanted));
        self.put(bytes, in_flight);
        result
    }

    /// Retains a buffer for the next [`Buffers::take`].
    pub(crate) fn put(&self, buffer: AlignedBuffer, in_flight: InFlight<'_>) {
        drop(in_flight);
        self.keep(buffer);
    }

    /// Retains a buffer that is no longer in flight.
    pub(crate) fn keep(&self, buffer: AlignedBuffer) {
        let bytes = buffer.capacity();
        let kept_bytes = self.kept_bytes.get() + bytes;
        if let Some((size, kept)) = self.fitting(bytes)
            && size == bytes
            && kept_bytes <= KEPT_BYTES_MAX
        {
            self.kept_bytes.set(kept_bytes);
            kept.borrow_mut().push(buffer);
        }
        assert!(self.kept_bytes.get() <= KEPT_BYTES_MAX, "no more is kept than the limit");
    }

    /// Releases the memory of the retained buffers.
    pub(crate) fn release(&self) {
        for kept in &self.kept {
            kept.take();
        }
        self.kept_bytes.set(0);
    }

    /// Returns the bytes of memory of all buffers, retained and in flight.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.kept_bytes.get() + self.in_flight_bytes.get()
    }

    /// Returns the maximum number of bytes that were in flight at one time.
    #[cfg(test)]
    pub(crate) fn in_flight_bytes_most(&self) -> usize {
        self.in_flight_bytes_most.get()
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a buffer is as large as its use requires and is reused, and the total is bounded.
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    fn take(buffers: &Buffers, len: usize) -> Option<(AlignedBuffer, InFlight<'_>)> {
        let mut context = Context::from_waker(Waker::noop());
        match pin!(buffers.take(len)).as_mut().poll(&mut context) {
            std::task::Poll::Ready(taken) => Some(taken),
            std::task::Poll::Pending => None,
        }
    }

    #[test]
    fn a_buffer_is_of_the_smallest_size_and_used_again() {
        let buffers = Buffers::default();
        let sizes = [(1, 4096), (4097, 8192), (8193, 16 << 10), (40 << 10, 40 << 10)];
        for (len, bytes) in sizes.into_iter().chain([((1 << 20) + 1, (1 << 20) + 8192)]) {
            let (buffer, in_flight) = take(&buffers, len).unwrap();
            assert_eq!((buffer.len(), buffer.capacity()), (len, bytes));
            let address = buffer.as_ptr();
            let mut buffer = buffer;
            buffer.fill(7);
            buffers.put(buffer, in_flight);
            let (buffer, in_flight) = take(&buffers, len).unwrap();
            assert_eq!(buffer.as_ptr(), address, "a kept buffer is not used again");
            assert!(buffer.iter().all(|&byte| byte == 7), "a kept buffer is zeroed again");
            buffers.put(buffer, in_flight);
        }
        buffers.release();
        assert_eq!(buffers.memory_bytes(), 0);
    }

    #[test]
    fn retained_and_in_flight_data_is_bounded() {
        let buffers = Buffers::default();
        let mut taken = Vec::new();
        while let Some(buffer) = take(&buffers, 1 << 20).filter(|_| taken.len() < 100) {
            taken.push(buffer);
        }
        assert!((60..=64).contains(&taken.len()), "{} buffers in flight", taken.len());
        // A cancelled read returns no buffer, but its share of the bound is free again.
        drop(taken.pop());
        taken.push(take(&buffers, 1 << 20).unwrap());
        for (buffer, in_flight) in taken {
            buffers.put(buffer, in_flight);
        }
        assert!(buffers.memory_bytes() <= KEPT_BYTES_MAX);
        // A shorter read does not overtake a waiting one.
        let mut others: Vec<_> = std::iter::from_fn(|| take(&buffers, 1 << 20)).collect();
        let mut long = pin!(buffers.take(1 << 20));
        let mut context = Context::from_waker(Waker::noop());
        assert!(long.as_mut().poll(&mut context).is_pending());
        assert!(take(&buffers, 1).is_none(), "a later read got a buffer first");
        others.clear();
        assert!(long.as_mut().poll(&mut context).is_ready());
        // A read that exceeds the bound alone does not wait forever.
        assert!(take(&buffers, IN_FLIGHT_BYTES_MAX + 1).is_some());
    }
}

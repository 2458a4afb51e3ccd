//! Memory for the data of requests, and its limit.
//!
//! Invariant: the lent payloads use less than the limit plus one longest request, as long as every
//! request is accepted only after [`Payloads::have_room`].

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::mem;
use std::ops::Range;
use std::rc::Rc;
use std::task::{Poll, Waker};

use super::wire::REQUEST_HEAD_BYTES;

/// Longest data in bytes: the longest request that the kernel is allowed to send.
pub(super) const REQUEST_BYTES_MAX: usize = 1 << 20;

/// Data of at most this length has a pool of its own.
pub(super) const SHORT_BYTES: usize = 16 << 10;

/// The memory that is not lent, and the amount of lent memory.
pub(super) struct Payloads {
    /// Bytes beyond which no request is accepted. Also limits the memory that each pool retains.
    lent_bytes_max: usize,
    lent_bytes: Cell<usize>,
    short: RefCell<Vec<Box<[u8]>>>,
    long: RefCell<Vec<Box<[u8]>>>,
    /// Waker of the task that waits for space.
    waker: Cell<Option<Waker>>,
}

/// Memory for the data of a request, returned to its pool when dropped. Its content is undefined.
pub(super) struct Payload {
    buffer: Box<[u8]>,
    range: Range<usize>,
    home: Rc<Payloads>,
}

impl Payloads {
    /// Returns empty pools that lend about `lent_bytes_max` at most.
    pub(super) fn new(lent_bytes_max: usize) -> Self {
        Self {
            lent_bytes_max,
            lent_bytes: Cell::new(0),
            short: RefCell::default(),
            long: RefCell::default(),
            waker: Cell::default(),
        }
    }

    /// Waits until [`Self::have_room`].
    pub(super) async fn room(&self) {
        poll_fn(|context| {
            if self.have_room() {
                return Poll::Ready(());
            }
            self.waker.set(Some(context.waker().clone()));
            Poll::Pending
        })
        .await;
    }

    #[cfg(test)]
    pub(super) fn lent_bytes(&self) -> usize {
        self.lent_bytes.get()
    }

    /// Returns whether another request may be accepted.
    pub(super) fn have_room(&self) -> bool {
        self.lent_bytes.get() < self.lent_bytes_max
    }

    /// Returns memory for `length` bytes, at most [`REQUEST_BYTES_MAX`].
    pub(super) fn lend(self: &Rc<Self>, length: usize) -> Payload {
        let buffer = if length <= SHORT_BYTES {
            self.short.borrow_mut().pop().unwrap_or_else(|| zeroed(SHORT_BYTES))
        } else {
            self.long()
        };
        self.lend_buffer(buffer, 0..length)
    }

    /// Returns memory for an entire request, which does not count as lent.
    pub(super) fn long(&self) -> Box<[u8]> {
        let kept = self.long.borrow_mut().pop();
        kept.unwrap_or_else(|| zeroed(REQUEST_HEAD_BYTES + REQUEST_BYTES_MAX))
    }

    /// Returns the data at `range` of a request. Short data is copied. For long data, the request's
    /// memory is taken and replaced by other memory.
    #[expect(clippy::indexing_slicing, reason = "the data of a decoded write lies in its request")]
    pub(super) fn keep(self: &Rc<Self>, request: &mut Box<[u8]>, range: Range<usize>) -> Payload {
        if range.len() > SHORT_BYTES {
            return self.lend_buffer(mem::replace(request, self.long()), range);
        }
        let mut payload = self.lend(range.len());
        payload.bytes_mut().copy_from_slice(&request[range]);
        payload
    }

    fn lend_buffer(self: &Rc<Self>, buffer: Box<[u8]>, range: Range<usize>) -> Payload {
        self.lent_bytes.set(self.lent_bytes.get() + buffer.len());
        Payload { buffer, range, home: self.clone() }
    }
}

#[expect(clippy::indexing_slicing, reason = "the range lies in the buffer that was lent with it")]
impl Payload {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.buffer[self.range.clone()]
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[self.range.clone()]
    }
}

impl Drop for Payload {
    fn drop(&mut self) {
        let buffer = mem::take(&mut self.buffer);
        self.home.lent_bytes.set(self.home.lent_bytes.get() - buffer.len());
        let kept = if buffer.len() == SHORT_BYTES { &self.home.short } else { &self.home.long };
        kept.borrow_mut().push(buffer);
        if let Some(waker) = self.home.waker.take() {
            waker.wake();
        }
    }
}

fn zeroed(bytes: usize) -> Box<[u8]> {
    vec![0; bytes].into_boxed_slice()
}

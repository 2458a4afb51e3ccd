//! Memory for the data of requests, and its limit.
//!
//! A request without data is charged for its task. Invariant: the bytes lent and charged are less
//! than the limit plus one of the largest buffers, as long as every request is accepted only after
//! [`Buffers::have_room`].

use std::cell::{Cell, RefCell};
use std::mem;
use std::rc::Rc;

use pumice_drive::base::wait::WaitQueue;

/// Longest request in bytes that is served in one step, and the piece size of longer ones. The
/// drive applies a write of up to this length completely or not at all.
pub(crate) const PIECE_BYTES: usize = 1 << 20;

/// Data of at most this length has a pool of its own.
const SHORT_BYTES: usize = 16 << 10;

/// Bytes of requests in flight beyond which further requests wait in their rings.
const LENT_BYTES_MAX: usize = 64 << 20;

/// Bytes that a request without data counts as: more than a task uses, so that at most 4096 of them
/// are in flight.
const TASK_BYTES: usize = SHORT_BYTES;

/// Bytes that are retained for reuse, for each of the two pools.
const KEPT_BYTES_MAX: usize = 8 << 20;

/// The free memory, and the number of bytes lent.
#[derive(Default)]
pub(crate) struct Buffers {
    lent_bytes: Cell<usize>,
    short: RefCell<Vec<Box<[u8]>>>,
    long: RefCell<Vec<Box<[u8]>>>,
    returned: WaitQueue,
}

/// Memory for the data of a request, returned to its pool when dropped. Its content is undefined.
pub(crate) struct Buffer {
    bytes: Box<[u8]>,
    length: usize,
    home: Rc<Buffers>,
}

/// The charge of a request without data, until it is dropped.
pub(crate) struct Charge {
    home: Rc<Buffers>,
}

impl Buffers {
    /// Returns whether another request may be accepted.
    pub(crate) fn have_room(&self) -> bool {
        self.lent_bytes.get() < LENT_BYTES_MAX
    }

    /// Waits until [`Self::have_room`] or `is_over`.
    pub(crate) async fn room(&self, is_over: impl Fn() -> bool) {
        self.returned.wait_for(|| (self.have_room() || is_over()).then_some(())).await;
    }

    /// Makes tasks that wait for space check again whether all is over.
    pub(crate) fn wake(&self) {
        self.returned.wake_all();
    }

    /// Returns memory for `length` bytes, at most [`PIECE_BYTES`].
    pub(crate) fn lend(self: &Rc<Self>, length: usize) -> Buffer {
        assert!(length <= PIECE_BYTES, "longer than a piece");
        let (pool, bytes) = self.pool(length);
        let bytes = pool.borrow_mut().pop().unwrap_or_else(|| vec![0; bytes].into_boxed_slice());
        self.lent_bytes.update(|lent| lent + bytes.len());
        Buffer { bytes, length, home: self.clone() }
    }

    /// Charges a request without data for the memory of its task.
    pub(crate) fn charge(self: &Rc<Self>) -> Charge {
        self.lent_bytes.update(|lent| lent + TASK_BYTES);
        Charge { home: self.clone() }
    }

    fn pool(&self, length: usize) -> (&RefCell<Vec<Box<[u8]>>>, usize) {
        if length <= SHORT_BYTES { (&self.short, SHORT_BYTES) } else { (&self.long, PIECE_BYTES) }
    }
}

#[expect(clippy::indexing_slicing, reason = "`lend` has checked the length")]
impl Buffer {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.length]
    }

    /// Shortens the buffer to `length` bytes, which must not exceed its lent length.
    pub(crate) fn truncate(&mut self, length: usize) {
        assert!(length <= self.length, "a buffer does not grow");
        self.length = length;
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let bytes = mem::take(&mut self.bytes);
        self.home.lent_bytes.update(|lent| lent - bytes.len());
        let (pool, _) = self.home.pool(bytes.len());
        let mut pool = pool.borrow_mut();
        if (pool.len() + 1) * bytes.len() <= KEPT_BYTES_MAX {
            pool.push(bytes);
        }
        self.home.returned.wake_all();
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.home.lent_bytes.update(|lent| lent - TASK_BYTES);
        self.home.returned.wake_all();
    }
}

#[cfg(test)]
mod tests {
    //! Goal: the requests of a guest that never waits for one use a limited amount of memory.
    use super::*;

    #[test]
    fn requests_with_and_without_data_are_bounded() {
        let buffers = Rc::new(Buffers::default());
        let mut lent = Vec::new();
        let mut charges = Vec::new();
        while buffers.have_room() {
            lent.push(buffers.lend(4096));
            charges.push(buffers.charge());
        }
        assert_eq!((lent.len(), charges.len()), (2048, 2048));
        drop(charges.pop());
        assert!(buffers.have_room());
        charges.push(buffers.charge());
        assert!(!buffers.have_room());
        drop((lent, charges));
        assert_eq!(buffers.lent_bytes.get(), 0);
    }
}

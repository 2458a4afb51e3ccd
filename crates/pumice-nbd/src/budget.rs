//! The memory for payloads: one budget for a server, a share of it for each connection.
//!
//! Buffers are powers of two, kept for reuse, and counted whether they are in use or kept, so that
//! the budget bounds memory and not only use. A connection that finds the budget spent waits; it
//! never fails. Two rules keep one connection from blocking the others, whatever its client does:
//!
//! * a connection may hold at most half of what the others leave: one alone has half of the budget,
//!   and two that never take their replies leave a quarter for the next;
//! * when the budget is spent, a connection gets *extra* buffers of up to [`EXTRA_BYTES_MAX`] in
//!   all: one long one, or those of a deep queue of short requests. Every request can be carried
//!   out with them, and their release depends on no other connection: there is no deadlock.
//!
//! Payloads therefore take at most the budget plus [`EXTRA_BYTES_MAX`] for each connection.

#![expect(
    clippy::indexing_slicing,
    reason = "a class is below CLASSES: no payload is longer than 32 MiB"
)]

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use pumice_drive::base::wait::{Line, WaitQueue};

/// Room before the data for the header of a reply, so that both are sent at once.
pub(super) use super::chunks::HEAD_BYTES;

/// Extra buffers of a connection in all, in bytes: one piece of a streamed request, or 32 requests
/// of 32 KiB.
pub(super) const EXTRA_BYTES_MAX: usize = super::PIECE_BYTES;

/// Smallest buffer, in bytes; most requests of a file system have this length.
const BUFFER_BYTES_MIN: usize = 4096;

/// Powers of two from [`BUFFER_BYTES_MIN`] to the longest payload, 32 MiB.
const CLASSES: usize = 14;

/// The budget of a server.
#[derive(Debug)]
pub(super) struct Budget {
    limit_bytes: usize,
    /// Bytes in use or kept, without extra buffers.
    allocated_bytes: Cell<usize>,
    /// Bytes in use, without extra buffers.
    lent_bytes: Cell<usize>,
    kept: RefCell<[Vec<Vec<u8>>; CLASSES]>,
    returned: WaitQueue,
}

/// The part of the budget that one connection holds.
#[derive(Debug)]
pub(super) struct Share {
    budget: Rc<Budget>,
    held_bytes: Cell<usize>,
    extra_bytes: Cell<usize>,
    /// Requests that wait for a buffer: no later one gets one before them.
    waiting: Line,
}

/// A buffer with room for the header of a reply and for at least the requested length of data.
///
/// Returns to the budget when dropped.
#[derive(Debug)]
pub(super) struct Payload {
    /// [`HEAD_BYTES`], then the data. An operation that takes the buffer out must put it back.
    pub(super) buffer: Vec<u8>,
    class: usize,
    is_extra: bool,
    share: Rc<Share>,
}

impl Budget {
    /// Returns a budget of `limit_bytes`.
    pub(super) fn new(limit_bytes: usize) -> Rc<Self> {
        Rc::new(Self {
            limit_bytes,
            allocated_bytes: Cell::new(0),
            lent_bytes: Cell::new(0),
            kept: RefCell::default(),
            returned: WaitQueue::default(),
        })
    }

    /// Returns a kept buffer of `class`, or a new one if the limit allows it once kept buffers of
    /// other classes are freed.
    fn take(&self, class: usize) -> Option<Vec<u8>> {
        let mut kept = self.kept.borrow_mut();
        if let Some(buffer) = kept[class].pop() {
            return Some(buffer);
        }
        let bytes = class_bytes(class);
        for other in (0..CLASSES).rev() {
            while self.allocated_bytes.get() + bytes > self.limit_bytes
                && kept[other].pop().is_some()
            {
                self.allocated_bytes.update(|allocated| allocated - class_bytes(other));
            }
        }
        if self.allocated_bytes.get() + bytes > self.limit_bytes {
            return None;
        }
        self.allocated_bytes.update(|allocated| allocated + bytes);
        Some(new_buffer(class))
    }
}

impl Share {
    /// Returns the share of a new connection.
    pub(super) fn new(budget: Rc<Budget>) -> Rc<Self> {
        let (held_bytes, extra_bytes) = (Cell::new(0), Cell::new(0));
        Rc::new(Self { budget, held_bytes, extra_bytes, waiting: Line::default() })
    }

    /// Waits for a buffer for `length` bytes of data, at most [`EXTRA_BYTES_MAX`].
    pub(super) async fn acquire(self: &Rc<Self>, length: usize) -> Payload {
        debug_assert!(length <= EXTRA_BYTES_MAX);
        if let Some(payload) = self.acquire_now(length) {
            return payload;
        }
        let _turn = self.waiting.turn().await;
        self.budget.returned.wait_for(|| self.take(length).or_else(|| self.extra(length))).await
    }

    /// Returns a buffer for `length` bytes of data, at most 32 MiB, if the budget has one now and
    /// no other request waits for it.
    pub(super) fn acquire_now(self: &Rc<Self>, length: usize) -> Option<Payload> {
        self.waiting.is_empty().then(|| self.take(length)).flatten()
    }

    fn take(self: &Rc<Self>, length: usize) -> Option<Payload> {
        let Budget { limit_bytes, lent_bytes, .. } = &*self.budget;
        let class = class_for(length);
        let held = self.held_bytes.get() + class_bytes(class);
        let lent = lent_bytes.get() + class_bytes(class);
        // What it holds is no more than what is left.
        if held > limit_bytes.saturating_sub(lent) {
            return None;
        }
        let buffer = self.budget.take(class)?;
        self.held_bytes.set(held);
        lent_bytes.set(lent);
        Some(Payload { buffer, class, is_extra: false, share: self.clone() })
    }

    fn extra(self: &Rc<Self>, length: usize) -> Option<Payload> {
        let class = class_for(length);
        let bytes = self.extra_bytes.get() + class_bytes(class);
        if bytes > EXTRA_BYTES_MAX {
            return None;
        }
        self.extra_bytes.set(bytes);
        Some(Payload { buffer: new_buffer(class), class, is_extra: true, share: self.clone() })
    }
}

impl Drop for Payload {
    fn drop(&mut self) {
        let budget = &self.share.budget;
        let bytes = class_bytes(self.class);
        if self.is_extra {
            self.share.extra_bytes.update(|extra| extra - bytes);
        } else {
            self.share.held_bytes.update(|held| held - bytes);
            budget.lent_bytes.update(|lent| lent - bytes);
            // An abandoned operation has taken the buffer with it.
            if self.buffer.is_empty() {
                budget.allocated_bytes.update(|allocated| allocated - bytes);
            } else {
                budget.kept.borrow_mut()[self.class].push(std::mem::take(&mut self.buffer));
            }
        }
        budget.returned.wake_all();
    }
}

fn class_for(length: usize) -> usize {
    let bytes = length.max(BUFFER_BYTES_MIN).next_power_of_two();
    (bytes / BUFFER_BYTES_MIN).trailing_zeros() as usize
}

fn class_bytes(class: usize) -> usize {
    BUFFER_BYTES_MIN << class
}

fn new_buffer(class: usize) -> Vec<u8> {
    vec![0; HEAD_BYTES + class_bytes(class)]
}

#[cfg(test)]
mod tests {
    //! Goal: the limit holds, buffers are reused, and a connection is never stopped by another.
    //! Method: futures polled by hand; nothing here needs a runtime.
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn poll<T>(future: impl Future<Output = T>) -> Option<T> {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    #[test]
    fn buffers_are_powers_of_two_and_reused() {
        let budget = Budget::new(1 << 20);
        let share = Share::new(budget.clone());
        let first = poll(share.acquire(4097)).unwrap();
        assert_eq!(first.buffer.len(), HEAD_BYTES + 8192);
        let address = first.buffer.as_ptr();
        drop(first);
        assert_eq!(poll(share.acquire(8000)).unwrap().buffer.as_ptr(), address);
        assert_eq!(budget.allocated_bytes.get(), 8192);
        assert_eq!(share.held_bytes.get(), 0);
        assert_eq!(class_for(0), 0);
        assert_eq!(class_for(32 << 20), CLASSES - 1);
    }

    #[test]
    fn a_share_is_half_and_an_extra() {
        let share = Share::new(Budget::new(64 << 10));
        let held: Vec<_> = (0..8).map(|_| share.acquire_now(4096).unwrap()).collect();
        assert!(share.acquire_now(4096).is_none());
        let extra = poll(share.acquire(EXTRA_BYTES_MAX)).unwrap();
        assert!(extra.is_extra);
        assert!(poll(share.acquire(4096)).is_none(), "more extra buffers");
        drop(extra);
        assert!(poll(share.acquire(4096)).unwrap().is_extra);
        drop(held);
        assert!(!poll(share.acquire(4096)).unwrap().is_extra);
    }

    #[test]
    fn each_takes_at_most_half_of_what_others_leave() {
        let budget = Budget::new(64 << 10);
        let shares: Vec<_> = (0..4).map(|_| Share::new(budget.clone())).collect();
        let held: Vec<Vec<_>> = shares
            .iter()
            .map(|share| std::iter::from_fn(|| share.acquire_now(4096)).collect())
            .collect();
        assert_eq!(held.iter().map(Vec::len).collect::<Vec<_>>(), [8, 4, 2, 1]);
        drop(held);
        assert_eq!(budget.lent_bytes.get(), 0);
    }

    #[test]
    fn a_spent_budget_leaves_every_connection_one_buffer() {
        let budget = Budget::new(64 << 10);
        let shares: Vec<_> = (0..4).map(|_| Share::new(budget.clone())).collect();
        let takers: Vec<_> = (0..5).map(|_| Share::new(budget.clone())).collect();
        let _held: Vec<Vec<_>> = takers
            .iter()
            .map(|share| std::iter::from_fn(|| share.acquire_now(4096)).collect())
            .collect();
        assert!(shares[2].acquire_now(4096).is_none());
        for share in &shares {
            assert!(poll(share.acquire(EXTRA_BYTES_MAX)).unwrap().is_extra);
        }
    }

    /// Guards against a queue that has depth 1 because others take no replies.
    #[test]
    fn a_spent_budget_leaves_every_connection_a_deep_queue() {
        let budget = Budget::new(64 << 10);
        let takers: Vec<_> = (0..5).map(|_| Share::new(budget.clone())).collect();
        let _held: Vec<Vec<_>> = takers
            .iter()
            .map(|share| std::iter::from_fn(|| share.acquire_now(4096)).collect())
            .collect();
        let share = Share::new(budget.clone());
        let queue: Vec<_> = std::iter::from_fn(|| poll(share.acquire(4096))).collect();
        assert_eq!(queue.len(), EXTRA_BYTES_MAX / 4096);
        assert!(queue.iter().all(|payload| payload.is_extra));
        drop(queue);
        assert_eq!(share.extra_bytes.get(), 0);
    }

    #[test]
    fn kept_buffers_make_room_for_other_sizes() {
        let budget = Budget::new(64 << 10);
        let share = Share::new(budget.clone());
        let small: Vec<_> = (0..8).map(|_| share.acquire_now(4096).unwrap()).collect();
        let large = Share::new(budget.clone()).acquire_now(16 << 10).unwrap();
        drop((small, large));
        assert_eq!(budget.allocated_bytes.get(), 48 << 10);
        let next = share.acquire_now(32 << 10).unwrap();
        assert!(budget.allocated_bytes.get() <= 64 << 10);
        drop(next);
    }

    #[test]
    fn a_waiter_is_served_when_a_buffer_returns() {
        let share = Share::new(Budget::new(8192));
        let held = share.acquire_now(4096).unwrap();
        let extra = poll(share.acquire(EXTRA_BYTES_MAX)).unwrap();
        let mut waiting = pin!(share.acquire(4096));
        let context = &mut Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(context).is_pending());
        assert!(!share.budget.returned.is_empty());
        drop(held);
        assert!(share.budget.returned.is_empty());
        assert!(waiting.as_mut().poll(context).is_ready());
        drop(extra);
    }

    #[test]
    fn a_later_request_does_not_pass_one_that_waits() {
        let share = Share::new(Budget::new(16 << 10));
        let held = [share.acquire_now(4096), share.acquire_now(4096)].map(Option::unwrap);
        let extra = poll(share.acquire(EXTRA_BYTES_MAX)).unwrap();
        let mut waiting = pin!(share.acquire(8192));
        let context = &mut Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(context).is_pending());
        let [first, second] = held;
        drop(first);
        assert!(share.acquire_now(4096).is_none(), "one that came later was served first");
        assert!(poll(share.acquire(4096)).is_none());
        drop(second);
        assert!(waiting.as_mut().poll(context).is_ready());
        drop(extra);
    }

    #[test]
    fn an_abandoned_buffer_is_given_back_to_the_limit() {
        let budget = Budget::new(8192);
        let share = Share::new(budget.clone());
        let mut payload = share.acquire_now(4096).unwrap();
        payload.buffer = Vec::new();
        drop(payload);
        assert_eq!(budget.allocated_bytes.get(), 0);
    }
}

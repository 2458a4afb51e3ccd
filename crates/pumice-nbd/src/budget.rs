//! The memory for payloads: one budget for a server, a share of it for each connection.
//!
//! Buffers have powers of two as sizes and are retained for reuse. They count whether they are in
//! use or not, so the budget bounds memory and not only use. A connection that finds the budget
//! spent waits; it never fails. Two rules prevent a connection from blocking the others, whatever
//! its client does:
//!
//! * a connection may hold at most half of the memory that the others leave: a single connection
//!   has half of the budget, and two that never read their replies leave a quarter for the next;
//! * when the budget is spent, a connection gets *extra* buffers of up to [`EXTRA_BYTES_MAX`] in
//!   total: one long buffer, or the buffers of a deep queue of short requests. They suffice for
//!   every request, and their release depends on no other connection, so there is no deadlock.
//!
//! Payloads therefore use at most the budget plus [`EXTRA_BYTES_MAX`] for each connection.
//!
//! A returned buffer wakes only connections that can use it. If hundreds wait because their clients
//! read no replies, polling them all would slow down the others.

#![expect(
    clippy::indexing_slicing,
    reason = "a class is below CLASSES: no payload is longer than 32 MiB"
)]

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use pumice_drive::base::wait::Line;

/// Space before the data for the header of a reply, so that both are sent together.
pub(super) use super::chunks::HEAD_BYTES;

/// Maximum extra buffers of a connection, in bytes: one piece of a streamed request, or 32 requests
/// of 32 KiB.
pub(super) const EXTRA_BYTES_MAX: usize = super::PIECE_BYTES;

/// Smallest buffer, in bytes; most requests of a file system have this length.
const BUFFER_BYTES_MIN: usize = 4096;

/// Number of powers of two from [`BUFFER_BYTES_MIN`] to the longest payload, 32 MiB.
const CLASSES: usize = 14;

/// The budget of a server.
#[derive(Debug)]
pub(super) struct Budget {
    limit_bytes: usize,
    /// Bytes in use or retained, without extra buffers.
    allocated_bytes: Cell<usize>,
    /// Bytes in use, without extra buffers.
    lent_bytes: Cell<usize>,
    kept: RefCell<[Vec<Vec<u8>>; CLASSES]>,
    /// Connections that wait for a buffer, in order of arrival.
    waiting: RefCell<Vec<Rc<Share>>>,
}

/// The part of the budget that one connection holds.
#[derive(Debug)]
pub(super) struct Share {
    budget: Rc<Budget>,
    held_bytes: Cell<usize>,
    extra_bytes: Cell<usize>,
    /// Requests that wait for a buffer; later requests do not overtake them.
    waiting: Line,
    /// The class that the first waiting request wants, and its task.
    wanted: RefCell<Option<(usize, Waker)>>,
}

/// A connection in the list of waiting connections, until dropped.
struct Waiting<'a>(&'a Rc<Share>);

/// A buffer with space for the header of a reply and for at least the requested length of data.
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
            waiting: RefCell::default(),
        })
    }

    /// Returns a retained buffer of `class`, or a new one if the limit allows it once retained
    /// buffers of other classes are freed.
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
        let (waiting, wanted) = (Line::default(), RefCell::default());
        Rc::new(Self { budget, held_bytes, extra_bytes, waiting, wanted })
    }

    /// Waits for a buffer for `length` bytes of data, at most [`EXTRA_BYTES_MAX`].
    pub(super) async fn acquire(self: &Rc<Self>, length: usize) -> Payload {
        debug_assert!(length <= EXTRA_BYTES_MAX);
        if let Some(payload) = self.acquire_now(length) {
            return payload;
        }
        let _turn = self.waiting.turn().await;
        let mut waits = None;
        poll_fn(|context| {
            if let Some(payload) = self.take(length).or_else(|| self.extra(length)) {
                return Poll::Ready(payload);
            }
            waits.get_or_insert_with(|| Waiting::begin(self));
            *self.wanted.borrow_mut() = Some((class_for(length), context.waker().clone()));
            Poll::Pending
        })
        .await
    }

    /// Returns a buffer for `length` bytes of data, at most 32 MiB, if the budget has one now and
    /// no other request waits for it.
    pub(super) fn acquire_now(self: &Rc<Self>, length: usize) -> Option<Payload> {
        self.waiting.is_empty().then(|| self.take(length)).flatten()
    }

    fn take(self: &Rc<Self>, length: usize) -> Option<Payload> {
        let class = class_for(length);
        if !self.may_take(class) {
            return None;
        }
        let buffer = self.budget.take(class)?;
        self.held_bytes.update(|held| held + class_bytes(class));
        self.budget.lent_bytes.update(|lent| lent + class_bytes(class));
        Some(Payload { buffer, class, is_extra: false, share: self.clone() })
    }

    /// Returns whether this share, with one more buffer, would hold no more than the remaining
    /// budget.
    fn may_take(&self, class: usize) -> bool {
        let held = self.held_bytes.get() + class_bytes(class);
        let lent = self.budget.lent_bytes.get() + class_bytes(class);
        held <= self.budget.limit_bytes.saturating_sub(lent)
    }

    /// Wakes the waiting request if it wants a class for which `can_get` holds.
    fn wake_if(&self, can_get: impl FnOnce(usize) -> bool) {
        let mut wanted = self.wanted.borrow_mut();
        if let Some((_, waker)) = wanted.take_if(|(class, _)| can_get(*class)) {
            waker.wake();
        }
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
            self.share.wake_if(|_| true);
        } else {
            self.share.held_bytes.update(|held| held - bytes);
            budget.lent_bytes.update(|lent| lent - bytes);
            // An abandoned operation has taken the buffer with it.
            if self.buffer.is_empty() {
                budget.allocated_bytes.update(|allocated| allocated - bytes);
            } else {
                budget.kept.borrow_mut()[self.class].push(std::mem::take(&mut self.buffer));
            }
            for share in &*budget.waiting.borrow() {
                share.wake_if(|class| share.may_take(class));
            }
        }
    }
}

impl<'a> Waiting<'a> {
    fn begin(share: &'a Rc<Share>) -> Self {
        share.budget.waiting.borrow_mut().push(share.clone());
        Self(share)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.wanted.take();
        self.0.budget.waiting.borrow_mut().retain(|share| !Rc::ptr_eq(share, self.0));
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
    //! Goal: the limit is enforced, buffers are reused, and a connection is never blocked by
    //! another. Method: futures polled directly, without a runtime.
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
    fn each_takes_at_most_half_of_the_remaining_budget() {
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

    /// Guards against a queue that is limited to depth 1 because others read no replies.
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
        assert!(share.wanted.borrow().is_some());
        drop(held);
        assert!(share.wanted.borrow().is_none(), "it was not woken");
        assert!(waiting.as_mut().poll(context).is_ready());
        assert!(share.budget.waiting.borrow().is_empty());
        drop(extra);
    }

    /// Guards against hundreds of connections that are polled for each returned buffer although
    /// they cannot use it.
    #[test]
    fn a_returned_buffer_wakes_only_tasks_that_can_use_it() {
        let budget = Budget::new(64 << 10);
        let [first, second] = [(); 2].map(|()| Share::new(budget.clone()));
        let worker = Share::new(budget.clone());
        let mut held: Vec<_> = std::iter::from_fn(|| first.acquire_now(16 << 10)).collect();
        held.extend(std::iter::from_fn(|| second.acquire_now(4096)));
        let extra = |share: &Rc<Share>| poll(share.acquire(EXTRA_BYTES_MAX)).unwrap();
        let extras = [&first, &second].map(extra);
        let context = &mut Context::from_waker(Waker::noop());
        let mut waiting = [&first, &second].map(|share| Box::pin(share.acquire(4096)));
        for waiting in &mut waiting {
            assert!(waiting.as_mut().poll(context).is_pending());
        }
        drop(worker.acquire_now(4096).unwrap());
        assert!(first.wanted.borrow().is_some() && second.wanted.borrow().is_some());
        let [extra, other] = extras;
        drop(extra);
        assert!(first.wanted.borrow().is_none() && second.wanted.borrow().is_some());
        drop(other);
        drop(held);
        assert!(second.wanted.borrow().is_none());
        drop(waiting);
        assert!(budget.waiting.borrow().is_empty());
        drop(poll(worker.acquire(4096)));
        assert_eq!(budget.lent_bytes.get(), 0);
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

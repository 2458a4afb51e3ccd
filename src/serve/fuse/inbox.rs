//! From the session thread to the drive's: a queue of requests, the memory for their payloads and
//! the limit on both.
//!
//! Invariants:
//! * The payloads that are lent out have at most [`PAYLOAD_BYTES_MAX`] in all, or there is one. The
//!   session thread waits for more; the drive's thread never does, so what it gives back comes.
//! * The drive's thread is woken when a request comes and it has found the queue empty before, once
//!   until it looks again.
//! * Nothing comes after the end.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use fuser::{ReplyData, ReplyEmpty, ReplyWrite};

/// Longest payload in bytes: the longest request that the kernel is told to send.
pub(super) const REQUEST_BYTES_MAX: usize = 1 << 20;

/// Payloads of at most this many bytes share a pool of their own.
pub(super) const SHORT_BYTES: usize = 16 << 10;

/// Bytes of all payloads at once: what a loop device with its 128 requests has under way at 512
/// KiB each. Each of the two pools thus keeps no more.
const PAYLOAD_BYTES_MAX: usize = 64 << 20;

/// What the host asked for, checked against the disk's size.
pub(super) enum Request {
    Read { offset: u64, payload: Payload, reply: ReplyData },
    Write { offset: u64, payload: Payload, reply: ReplyWrite },
    Flush { reply: ReplyEmpty },
    Zero { offset: u64, length: u64, keep_allocated: bool, reply: ReplyEmpty },
}

/// The queue and the pools.
#[derive(Default)]
pub(super) struct Inbox {
    state: Mutex<State>,
    given_back: Condvar,
}

#[derive(Default)]
struct State {
    requests: VecDeque<Request>,
    lent_bytes: usize,
    short: Vec<Box<[u8]>>,
    long: Vec<Box<[u8]>>,
    /// Of the drive's task, while it waits.
    waker: Option<Waker>,
    has_ended: bool,
}

/// Memory for the data of a request; given back when dropped.
pub(super) struct Payload {
    buffer: Box<[u8]>,
    length: usize,
    inbox: Arc<Inbox>,
}

impl Inbox {
    /// Memory for `length` bytes, at most [`REQUEST_BYTES_MAX`], once there is some. What is in it
    /// is what was.
    pub(super) fn payload(self: &Arc<Self>, length: usize) -> Payload {
        let capacity = capacity(length);
        let mut state = self.lock();
        while state.lent_bytes > 0 && state.lent_bytes + capacity > PAYLOAD_BYTES_MAX {
            state = self.given_back.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.lent_bytes += capacity;
        let kept = state.pool(capacity).pop();
        drop(state);
        let buffer = kept.unwrap_or_else(|| vec![0; capacity].into_boxed_slice());
        Payload { buffer, length, inbox: self.clone() }
    }

    /// Hands a request over.
    pub(super) fn push(&self, request: Request) {
        let mut state = self.lock();
        state.requests.push_back(request);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Says that nothing will come any more.
    pub(super) fn end(&self) {
        let mut state = self.lock();
        state.has_ended = true;
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Waits for requests and exchanges them for `requests`, which is empty; false at the end.
    pub(super) async fn take(&self, requests: &mut VecDeque<Request>) -> bool {
        poll_fn(|context| {
            let mut state = self.lock();
            if !state.requests.is_empty() {
                mem::swap(&mut state.requests, requests);
                return Poll::Ready(true);
            }
            if state.has_ended {
                return Poll::Ready(false);
            }
            state.waker = Some(context.waker().clone());
            Poll::Pending
        })
        .await
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in a critical section can panic half-way, so a poisoned state is a whole one.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn pool(&mut self, capacity: usize) -> &mut Vec<Box<[u8]>> {
        if capacity == SHORT_BYTES { &mut self.short } else { &mut self.long }
    }
}

impl Payload {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.buffer[..self.length]
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[..self.length]
    }
}

impl Drop for Payload {
    fn drop(&mut self) {
        let buffer = mem::take(&mut self.buffer);
        let mut state = self.inbox.lock();
        state.lent_bytes -= buffer.len();
        state.pool(buffer.len()).push(buffer);
        drop(state);
        self.inbox.given_back.notify_one();
    }
}

fn capacity(length: usize) -> usize {
    if length <= SHORT_BYTES { SHORT_BYTES } else { REQUEST_BYTES_MAX.max(length) }
}

//! Waiting for a condition within one thread. The controller has no other synchronisation.
//!
//! A waiter states its condition; the code that changes the state wakes all waiters, and each of
//! them checks its condition again. Waiters are woken in order of arrival. Not for use across
//! threads.

use std::cell::RefCell;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// The tasks that wait for a condition on their owner's state.
#[derive(Debug, Default)]
pub struct WaitQueue {
    wakers: RefCell<Vec<Waker>>,
}

impl WaitQueue {
    /// Waits until `condition` returns a value. It is evaluated at once and then after every
    /// [`WaitQueue::wake_all`].
    pub async fn wait_for<T>(&self, mut condition: impl FnMut() -> Option<T>) -> T {
        poll_fn(|context| match condition() {
            Some(value) => Poll::Ready(value),
            None => {
                let mut wakers = self.wakers.borrow_mut();
                if !wakers.iter().any(|waker| waker.will_wake(context.waker())) {
                    wakers.push(context.waker().clone());
                }
                Poll::Pending
            }
        })
        .await
    }

    /// Makes every waiter check its condition again.
    pub fn wake_all(&self) {
        // Waking only queues a task, so this queue is not re-entered while it is drained. The
        // vector keeps its allocation.
        let mut wakers = self.wakers.borrow_mut();
        for waker in wakers.drain(..) {
            waker.wake();
        }
    }

    /// Returns whether no task waits.
    pub fn is_empty(&self) -> bool {
        self.wakers.borrow().is_empty()
    }
}

//! Waiting for a condition inside one thread: the only synchronisation the core has.
//!
//! The waiter states its condition, whoever changes the state wakes everyone, and each waiter
//! looks again. Waiters are woken in the order in which they came. Not for use across threads.

use std::cell::RefCell;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// Tasks waiting for some condition of their owner's state.
#[derive(Debug, Default)]
pub struct WaitQueue {
    wakers: RefCell<Vec<Waker>>,
}

impl WaitQueue {
    /// Waits until `condition` gives a value. It is asked at once, then after every
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

    /// Lets every waiter look at its condition again.
    pub fn wake_all(&self) {
        // Waking only queues a task, so nobody re-enters this queue while it is drained; the
        // vector keeps its allocation.
        let mut wakers = self.wakers.borrow_mut();
        for waker in wakers.drain(..) {
            waker.wake();
        }
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.wakers.borrow().is_empty()
    }
}

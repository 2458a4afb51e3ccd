//! Waiting within one thread: for a condition, or in a queue. The controller has no other
//! synchronization. Not for use across threads.
//!
//! In a [`WaitQueue`], a waiter states its condition. The code that changes the state wakes all
//! waiters, and each of them checks its condition again. If only one of them can proceed, the order
//! in which their tasks run decides which one: a late arrival may always win. Waiters that must
//! proceed in order of arrival use a [`Line`].

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// The tasks that wait for a condition on their owner's state.
#[derive(Debug, Default)]
pub struct WaitQueue {
    wakers: RefCell<Vec<Waker>>,
}

impl WaitQueue {
    /// Waits until `condition` returns a value. It is evaluated immediately and then after every
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

/// Tasks in order of arrival. The first has its turn.
#[derive(Debug, Default)]
pub struct Line {
    /// Waiting tasks, by ascending number. The first has its turn.
    places: RefCell<VecDeque<Waiting>>,
    next_number: Cell<u64>,
}

#[derive(Debug)]
struct Waiting {
    number: u64,
    waker: Option<Waker>,
}

/// A place in a [`Line`], held until it is dropped.
#[derive(Debug)]
pub struct Place<'a> {
    line: &'a Line,
    number: u64,
}

impl Line {
    /// Waits until all earlier tasks have left. A task that stops waiting leaves the line.
    pub async fn turn(&self) -> Place<'_> {
        let place = self.enter();
        poll_fn(|context| {
            let mut places = self.places.borrow_mut();
            let first = places.front().expect("a place is in its line");
            if first.number == place.number {
                return Poll::Ready(());
            }
            let at = places.partition_point(|waiting| waiting.number < place.number);
            let waiting = places.get_mut(at).expect("a place is in its line");
            waiting.waker = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
        place
    }

    /// Returns the turn, if no other task has it or waits for it.
    pub fn turn_now(&self) -> Option<Place<'_>> {
        self.is_empty().then(|| self.enter())
    }

    /// Returns whether no task has the turn or waits for it.
    pub fn is_empty(&self) -> bool {
        self.places.borrow().is_empty()
    }

    fn enter(&self) -> Place<'_> {
        let number = self.next_number.replace(self.next_number.get() + 1);
        let mut places = self.places.borrow_mut();
        assert!(places.back().is_none_or(|last| last.number < number), "numbers ascend in a line");
        places.push_back(Waiting { number, waker: None });
        Place { line: self, number }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut places = self.line.places.borrow_mut();
        let at = places.partition_point(|waiting| waiting.number < self.number);
        let left = places.remove(at);
        assert!(left.is_some_and(|left| left.number == self.number), "a task leaves a line once");
        if at == 0
            && let Some(waker) = places.front_mut().and_then(|first| first.waker.take())
        {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: turns are taken in order of arrival, and a task that stops waiting delays no other.
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Wake};

    use super::*;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn turns_are_taken_in_order_of_arrival() {
        let line = Line::default();
        let wakes = [(); 3].map(|()| Arc::new(Wakes::default()));
        let wakers = wakes.each_ref().map(|wakes| Waker::from(wakes.clone()));
        let [mut first, mut second, mut third] = wakers.each_ref().map(Context::from_waker);
        let woken = || wakes.each_ref().map(|wakes| wakes.0.load(Ordering::Relaxed));
        let held = line.turn_now().unwrap();
        assert!(line.turn_now().is_none());
        let mut gives_up = Box::pin(line.turn());
        assert!(gives_up.as_mut().poll(&mut first).is_pending());
        let mut waits = pin!(line.turn());
        assert!(waits.as_mut().poll(&mut second).is_pending());
        let mut comes_late = pin!(line.turn());
        assert!(comes_late.as_mut().poll(&mut third).is_pending());
        drop(held);
        assert_eq!(woken(), [1, 0, 0]);
        assert!(comes_late.as_mut().poll(&mut third).is_pending(), "one who came late came first");
        drop(gives_up);
        assert_eq!(woken(), [1, 1, 0]);
        let Poll::Ready(turn) = waits.as_mut().poll(&mut second) else { panic!("no turn") };
        drop(turn);
        assert_eq!(woken(), [1, 1, 1]);
        let Poll::Ready(turn) = comes_late.as_mut().poll(&mut third) else { panic!("no turn") };
        assert!(!line.is_empty());
        drop(turn);
        assert!(line.is_empty());
    }
}

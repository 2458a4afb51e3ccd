//! Time: the clock, real or virtual, and the tasks that wait for it.
//!
//! Invariant: timers fire in the order of their deadlines; timers with equal deadlines fire in the
//! order in which they were set. Virtual time advances only in [`Timers::advance`].
//!
//! Only this file reads the operating system's clock on behalf of the controller. The real clocks
//! of a process agree, so times taken on different threads can be compared.

#![allow(clippy::disallowed_methods, reason = "the one file that reads the real clock")]

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::LazyLock;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

/// Zero of the real clock: the time when the first runtime of the process was created.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Returns the nanoseconds since the zero of the real clock.
pub(super) fn real_ns() -> u64 {
    Source::Real(*START).now_ns()
}

#[derive(Debug)]
enum Source {
    Real(Instant),
    Virtual(Cell<u64>),
}

impl Source {
    fn now_ns(&self) -> u64 {
        match self {
            // 2^64 ns are 584 years.
            Self::Real(start) => u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX),
            Self::Virtual(now) => now.get(),
        }
    }
}

/// A deadline and a ticket that makes it unique.
type Key = (u64, u64);

/// The clock of a runtime and its timers.
#[derive(Debug)]
pub(super) struct Timers {
    source: Source,
    waiting: RefCell<BTreeMap<Key, Waker>>,
    tickets: Cell<u64>,
}

impl Timers {
    pub(super) fn real() -> Self {
        Self::new(Source::Real(*START))
    }

    pub(super) fn simulated() -> Self {
        Self::new(Source::Virtual(Cell::new(0)))
    }

    fn new(source: Source) -> Self {
        Self { source, waiting: RefCell::default(), tickets: Cell::new(0) }
    }

    /// Returns the nanoseconds since the zero of the clock.
    pub(super) fn now_ns(&self) -> u64 {
        self.source.now_ns()
    }

    /// Returns a future that completes `ns` nanoseconds after this call.
    pub(super) fn sleep(&self, ns: u64) -> Sleep<'_> {
        let ticket = self.tickets.get();
        self.tickets.set(ticket + 1);
        Sleep { timers: self, key: (self.now_ns().saturating_add(ns), ticket), waiting: false }
    }

    /// Returns the nanoseconds until the earliest timer: 0 if it is due, `None` if no timer is set.
    pub(super) fn next_ns(&self) -> Option<u64> {
        let deadline = self.waiting.borrow().keys().next()?.0;
        Some(deadline.saturating_sub(self.now_ns()))
    }

    /// Wakes every task whose deadline has passed.
    pub(super) fn fire(&self) {
        let mut waiting = self.waiting.borrow_mut();
        if waiting.is_empty() {
            return;
        }
        let now = self.now_ns();
        while let Some(entry) = waiting.first_entry()
            && entry.key().0 <= now
        {
            entry.remove().wake();
        }
    }

    /// Advances virtual time to the earliest deadline. Returns false if no task waits for one.
    ///
    /// # Panics
    /// On real time.
    pub(super) fn advance(&self) -> bool {
        let Source::Virtual(now) = &self.source else { panic!("real time cannot be moved") };
        let Some((deadline, _)) = self.waiting.borrow().keys().next().copied() else {
            return false;
        };
        // A sleep that was first polled after its deadline is due now.
        now.set(deadline.max(now.get()));
        debug_assert_eq!(self.next_ns(), Some(0), "the earliest timer is due");
        true
    }
}

/// A wait for a deadline. Dropping it removes the timer.
pub(super) struct Sleep<'a> {
    timers: &'a Timers,
    key: Key,
    waiting: bool,
}

impl Future for Sleep<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        // While the timer is in the map, this is reached only through a spurious wake. Checking the
        // map instead of the clock saves a clock reading and makes the order of waking the order of
        // firing.
        let mut waiting = self.timers.waiting.borrow_mut();
        if self.waiting {
            return match waiting.get_mut(&self.key) {
                Some(waker) => {
                    waker.clone_from(context.waker());
                    Poll::Pending
                }
                None => Poll::Ready(()),
            };
        }
        let previous = waiting.insert(self.key, context.waker().clone());
        assert!(previous.is_none(), "two timers share a ticket");
        drop(waiting);
        self.waiting = true;
        Poll::Pending
    }
}

impl Drop for Sleep<'_> {
    fn drop(&mut self) {
        if self.waiting {
            self.timers.waiting.borrow_mut().remove(&self.key);
        }
    }
}

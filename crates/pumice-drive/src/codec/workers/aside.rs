//! Work of any kind for the threads of [`super::Workers`], one piece at a time: long reads are
//! verified and decoded this way.
//!
//! ```text
//!   task of a drive: begin -> [queue] -> a thread: work(decompressor) -> outcome, once
//!          |                                                               |
//!          +-- its own share of the work -- finish: waits <----------------+
//! ```
//!
//! The work owns its inputs and returns its results, so nothing is shared meanwhile. Without other
//! threads, `finish` takes from the queue itself: simulations do the same.

use std::future::poll_fn;
use std::mem;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use futures_util::task::AtomicWaker;

use super::super::Decompressor;
use super::{BUSY_WRITES, Contexts, Job, Own, PASSED_BYTES_MAX, SPARE_MAX, Workers};

/// Work that another thread does.
pub(super) type Work = Box<dyn FnOnce(&mut Contexts) + Send>;

/// The present or future outcome of work that was passed on.
pub(crate) struct Aside<T>(Arc<Outcome<T>>);

/// Counts bytes of frames as on their way until it is dropped, even if a read is cancelled.
pub(crate) struct PassedBytes {
    own: Rc<Own>,
    bytes: usize,
}

impl Drop for PassedBytes {
    fn drop(&mut self) {
        let before = self.own.pool.passed_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        assert!(before >= self.bytes, "bytes leave once");
    }
}

struct Outcome<T> {
    /// Locked by the thread when it ends, and by the task that then looks: never for long.
    state: Mutex<State<T>>,
    waiting: AtomicWaker,
}

#[derive(Debug, PartialEq, Eq)]
enum State<T> {
    Running,
    Ended(T),
    /// The thread panicked, or the outcome was taken.
    Gone,
}

impl<T> Outcome<T> {
    fn state(&self) -> MutexGuard<'_, State<T>> {
        // No critical section can panic halfway.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sets the outcome when the work ends, however it ends.
struct Ending<T>(Arc<Outcome<T>>);

impl<T> Drop for Ending<T> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        if matches!(*state, State::Running) {
            *state = State::Gone;
        }
        drop(state);
        self.0.waiting.wake();
    }
}

impl<T> Aside<T> {
    fn is_ended(&self) -> bool {
        !matches!(*self.0.state(), State::Running)
    }

    async fn ended(&self) {
        poll_fn(|context| {
            self.0.waiting.register(context.waker());
            if self.is_ended() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

impl Workers {
    /// Returns how many threads take part in work that is cut into shares, including the caller's:
    /// at least two.
    pub(crate) fn shares(&self) -> usize {
        self.own.pool.threads.len().max(1) + 1
    }

    /// Returns whether the threads have time to decode a part of `bytes` bytes.
    pub(crate) fn can_decode(&self, bytes: usize) -> bool {
        let waiting = self.own.pool.jobs.len();
        let has_room =
            self.own.pool.passed_bytes.load(Ordering::Relaxed) + bytes <= PASSED_BYTES_MAX;
        has_room && waiting <= self.own.pool.threads.len() * BUSY_WRITES
    }

    /// Counts bytes of frames as on their way.
    pub(crate) fn pass_bytes(&self, bytes: usize) -> PassedBytes {
        self.own.pool.passed_bytes.fetch_add(bytes, Ordering::Relaxed);
        PassedBytes { own: self.own.clone(), bytes }
    }

    /// Passes work on, if there is room in the queue; otherwise does it immediately.
    pub(crate) fn begin_aside<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Decompressor) -> T + Send + 'static,
    ) -> Aside<T> {
        let (state, waiting) = (Mutex::new(State::Running), AtomicWaker::new());
        let outcome = Arc::new(Outcome { state, waiting });
        let ending = Ending(outcome.clone());
        let work: Work = Box::new(move |contexts| {
            let value = work(contexts.decompressor());
            *ending.0.state() = State::Ended(value);
        });
        if let Err(refused) = self.own.pool.queue.try_send(Job::Work(work)) {
            refused.into_inner().run(&mut self.own.contexts.borrow_mut());
        }
        self.own.work.wake_all();
        #[cfg(test)]
        self.own.worked_aside.set(self.own.worked_aside.get() + 1);
        Aside(outcome)
    }

    /// Waits for the outcome of work.
    ///
    /// # Panics
    /// If the work panicked.
    pub(crate) async fn finish_aside<T>(&self, aside: Aside<T>) -> T {
        while self.own.pool.threads.is_empty() && !aside.is_ended() {
            let Ok(job) = self.own.pool.jobs.try_recv() else { break };
            job.run(&mut self.own.contexts.borrow_mut());
        }
        aside.ended().await;
        let state = mem::replace(&mut *aside.0.state(), State::Gone);
        let State::Ended(value) = state else { panic!("a thread that decodes has panicked") };
        value
    }

    /// Returns how often work was passed on.
    #[cfg(test)]
    pub(crate) fn worked_aside(&self) -> u64 {
        self.own.worked_aside.get()
    }

    /// Returns a buffer of at least `len` bytes with unspecified content.
    pub(crate) fn target(&self, len: usize) -> Vec<u8> {
        let mut target = self.own.targets.borrow_mut().pop().unwrap_or_default();
        if target.len() < len {
            target.resize(len, 0);
        }
        target
    }

    /// Keeps a buffer for the next [`Workers::target`].
    pub(crate) fn keep_target(&self, target: Vec<u8>) {
        let mut targets = self.own.targets.borrow_mut();
        if targets.len() < SPARE_MAX {
            targets.push(target);
        }
    }
}

//! Tasks for requests that may wait, retained for later requests.
//!
//! A new task for each request would cost an allocation.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use pumice_drive::runtime::Runtime;

/// Maximum number of idle tasks that are retained: more than guests usually have in flight.
const IDLE_MAX: usize = 128;

/// The tasks that wait for a job.
pub(crate) struct Workers<J> {
    idle: RefCell<Vec<Worker<J>>>,
}

/// A task and its job.
pub(crate) struct Worker<J>(Rc<WorkerState<J>>);

struct WorkerState<J> {
    job: Cell<Option<J>>,
    waker: Cell<Option<Waker>>,
}

impl<J> Default for Workers<J> {
    fn default() -> Self {
        Self { idle: RefCell::default() }
    }
}

impl<J> Workers<J> {
    /// Passes a job to an idle worker, or to a new one that runs `serve`.
    pub(crate) fn give<F: Future<Output = ()> + 'static>(
        &self,
        runtime: &Runtime,
        job: J,
        serve: impl FnOnce(Worker<J>) -> F,
    ) {
        if let Some(Worker(state)) = self.idle.borrow_mut().pop() {
            state.job.set(Some(job));
            if let Some(waker) = state.waker.take() {
                waker.wake();
            }
            return;
        }
        let state = WorkerState { job: Cell::new(Some(job)), waker: Cell::new(None) };
        runtime.spawn(serve(Worker(Rc::new(state))));
    }

    /// Waits for the next job of `worker`; `None` if there are enough idle ones.
    pub(crate) async fn next(&self, worker: &Worker<J>) -> Option<J> {
        let Worker(state) = worker;
        if let Some(first) = state.job.take() {
            return Some(first);
        }
        {
            let mut idle = self.idle.borrow_mut();
            if idle.len() >= IDLE_MAX {
                return None;
            }
            idle.push(Worker(state.clone()));
        }
        let job = poll_fn(|context| match state.job.take() {
            Some(job) => Poll::Ready(job),
            None => {
                state.waker.set(Some(context.waker().clone()));
                Poll::Pending
            }
        });
        Some(job.await)
    }
}

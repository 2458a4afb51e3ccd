//! A second thread, in addition to the thread that serves.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result};

use pumice_drive::runtime::Runtime;

/// Work on a second thread, while the thread of the runtime serves the file that the work accesses.
pub(super) struct Worker<T> {
    thread: JoinHandle<Option<T>>,
    /// Closed when the thread ends.
    ended: Arc<OwnedFd>,
}

impl<T: Send + 'static> Worker<T> {
    /// Starts a thread that waits for its input; it ends if the sender is dropped.
    pub(super) fn new<S: Send + 'static>(
        work: impl FnOnce(S) -> T + Send + 'static,
    ) -> Result<(Sender<S>, Self)> {
        let cannot = "cannot start a thread";
        let (start, started) = channel();
        let (ended, ending) = UnixStream::pair().context(cannot)?;
        let thread = thread::Builder::new().name("worker".into()).spawn(move || {
            let result = started.recv().ok().map(work);
            drop(ending);
            result
        });
        Ok((start, Self { thread: thread.context(cannot)?, ended: Arc::new(ended.into()) }))
    }
}

impl<T> Worker<Result<T>> {
    /// Waits for the result of the work.
    pub(super) async fn end(self, runtime: &Runtime) -> Result<T> {
        runtime.receive(&self.ended, vec![0; 1], 0..1).await.1.ok();
        let result = self.thread.join().expect("the thread does not panic");
        result.expect("it was started")
    }
}

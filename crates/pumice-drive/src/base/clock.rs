//! Time and tasks as the controller sees them. The controller has no other access to either, so a
//! simulated drive runs in virtual time.

use std::pin::Pin;

/// A monotonic clock that a task can wait on.
///
/// [`Runtime`](crate::runtime::Runtime) implements it on real or on virtual time.
pub trait Clock {
    /// Returns the nanoseconds since an arbitrary origin. Never decreases.
    fn now_ns(&self) -> u64;

    /// Waits until at least `ns` nanoseconds have passed on this clock.
    fn sleep_ns(&self, ns: u64) -> impl Future<Output = ()>;
}

/// A background task.
pub type Task = Pin<Box<dyn Future<Output = ()>>>;

/// A clock on which tasks can be started: what an open drive runs on.
///
/// Implemented by [`crate::runtime::Runtime`].
pub trait Spawn: Clock {
    /// Starts a task. It runs beside its caller, on the same thread, until it ends.
    fn spawn(&self, task: Task);
}

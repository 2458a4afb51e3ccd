//! Time and tasks as the controller sees them: the only way the core asks what time it is, so that
//! a simulated drive runs in virtual time.

use std::pin::Pin;

/// A monotonic clock and a way to wait on it.
///
/// Implemented by [`crate::runtime::Runtime`], on real or on virtual time.
pub trait Clock {
    /// Nanoseconds since an arbitrary origin; never goes back.
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

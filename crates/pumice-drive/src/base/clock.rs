//! Time and tasks, as the controller uses them. The controller has no other access to either, so a
//! simulated drive runs in virtual time.

use std::any::Any;
use std::pin::Pin;

use super::{ErrorKind, Result};

/// A monotonic clock that a task can wait on.
///
/// [`Runtime`](crate::runtime::Runtime) implements it on real or on virtual time.
pub trait Clock {
    /// Returns the nanoseconds since an arbitrary moment. Never decreases.
    fn now_ns(&self) -> u64;

    /// Waits until at least `ns` nanoseconds have passed on this clock.
    fn sleep_ns(&self, ns: u64) -> impl Future<Output = ()>;
}

/// A background task.
pub type Task = Pin<Box<dyn Future<Output = ()>>>;

/// A clock that can also start tasks. An open drive runs on one.
///
/// Implemented by [`crate::runtime::Runtime`].
pub trait Spawn: Clock {
    /// Starts a task. It runs concurrently with its caller, on the same thread, until it ends.
    fn spawn(&self, task: Task);
}

/// [`Spawn`] as a trait object. Every type that implements [`Spawn`] implements this trait, with
/// the methods of [`Clock`] and [`Spawn`].
#[expect(missing_docs, reason = "as in `Clock` and `Spawn`")]
pub trait AnyClock: Any {
    fn now_ns(&self) -> u64;
    fn sleep_ns(&self, ns: u64) -> Pin<Box<dyn Future<Output = ()> + '_>>;
    fn spawn(&self, task: Task);
}

impl dyn AnyClock {
    /// Returns the clock, if it is of this type.
    pub fn downcast_ref<C: Spawn + 'static>(&self) -> Option<&C> {
        (self as &dyn Any).downcast_ref()
    }
}

impl<C: Spawn + 'static> AnyClock for C {
    fn now_ns(&self) -> u64 {
        Clock::now_ns(self)
    }

    fn sleep_ns(&self, ns: u64) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        Box::pin(Clock::sleep_ns(self, ns))
    }

    fn spawn(&self, task: Task) {
        Spawn::spawn(self, task);
    }
}

/// Number of attempts of [`while_busy`], and the pause between them. The total is one second, far
/// more than a busy machine needs to clean up after a process.
const BUSY_ATTEMPTS: u32 = 50;
const BUSY_PAUSE_NS: u64 = 20_000_000;

/// Repeats `attempt` for up to a second while it fails with `Busy`. The files and sockets of a
/// drive that was just closed, or of a process that was killed, stay in use until the kernel has
/// released the last operation: io_uring reports an operation as complete before it releases the
/// file.
///
/// # Errors
/// The errors of the last attempt.
pub async fn while_busy<T>(
    clock: &impl Clock,
    mut attempt: impl FnMut() -> Result<T>,
) -> Result<T> {
    for _ in 1..BUSY_ATTEMPTS {
        match attempt() {
            Err(error) if error.kind() == ErrorKind::Busy => clock.sleep_ns(BUSY_PAUSE_NS).await,
            result => return result,
        }
    }
    attempt()
}

#[cfg(test)]
mod tests {
    //! Goal: `while_busy` waits for a resource that is in use for a moment, and fails for one that
    //! stays in use.
    use super::super::{Error, ErrorKind};
    use super::{BUSY_ATTEMPTS, BUSY_PAUSE_NS, Clock, while_busy};
    use crate::runtime::Runtime;

    #[test]
    fn resources_in_use_are_retried_for_a_second() {
        let busy = || Err::<(), _>(Error::new(ErrorKind::Busy, "in use"));
        let runtime = Runtime::simulated();
        let mut left = 3;
        let passing = while_busy(&runtime, || {
            left -= 1;
            if left > 0 { busy() } else { Ok(()) }
        });
        runtime.block_on(passing).expect("it is free at the third attempt");
        assert_eq!(runtime.now_ns(), 2 * BUSY_PAUSE_NS);
        let error = runtime.block_on(while_busy(&runtime, busy)).expect_err("it stays in use");
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert_eq!(runtime.now_ns(), (2 + u64::from(BUSY_ATTEMPTS) - 1) * BUSY_PAUSE_NS);
        let other = || Err::<(), _>(Error::new(ErrorKind::NotFound, "not there"));
        let before = runtime.now_ns();
        let error = runtime.block_on(while_busy(&runtime, other)).expect_err("not there");
        assert_eq!((error.kind(), runtime.now_ns()), (ErrorKind::NotFound, before));
    }
}

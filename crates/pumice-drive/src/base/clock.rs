//! Time as the controller sees it. The controller has no other access to time, so a simulated drive
//! runs in virtual time.

/// A monotonic clock that a task can wait on.
///
/// [`Runtime`](crate::runtime::Runtime) implements it on real or on virtual time.
pub trait Clock {
    /// Returns the nanoseconds since an arbitrary origin. Never decreases.
    fn now_ns(&self) -> u64;

    /// Waits until at least `ns` nanoseconds have passed on this clock.
    fn sleep_ns(&self, ns: u64) -> impl Future<Output = ()>;
}

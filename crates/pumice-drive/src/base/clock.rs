//! Time as the controller sees it: the only way the core asks what time it is, so that a
//! simulated drive runs in virtual time.

/// A monotonic clock and a way to wait on it.
///
/// Implemented by [`crate::runtime::Runtime`], on real or on virtual time.
pub trait Clock {
    /// Nanoseconds since an arbitrary origin; never goes back.
    fn now_ns(&self) -> u64;

    /// Waits until at least `ns` nanoseconds have passed on this clock.
    fn sleep_ns(&self, ns: u64) -> impl Future<Output = ()>;
}

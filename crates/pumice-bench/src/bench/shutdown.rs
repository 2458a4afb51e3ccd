//! Limited waiting for a target that may never answer.
//!
//! Requests in flight are still awaited after a stop, because a target that is closed cleanly needs
//! no recovery. The wait has a limit.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};

use pumice_drive::runtime::Runtime;

/// Poll interval for the stop flag, too short for a user to notice and too long to affect
/// measurements.
pub(super) const POLL_NS: u64 = 50_000_000;

/// Maximum time to wait, after a stop, for requests in flight and the subsequent flush. A disk
/// completes a full queue in less time; otherwise arbitrary.
const GRACE_NS: u64 = 5_000_000_000;

/// Runs `work` until it ends. Returns `None` if it is still running [`GRACE_NS`] after `stop` was
/// set. Calls `stopping` whenever `stop` is found to be set.
pub(super) async fn until_stopped<T>(
    runtime: &Runtime,
    stop: &AtomicBool,
    stopping: impl Fn(),
    work: impl Future<Output = T>,
) -> Option<T> {
    let mut work = pin!(work);
    let mut left_ns = GRACE_NS;
    loop {
        if let Some(value) = runtime.timeout(POLL_NS, work.as_mut()).await {
            return Some(value);
        }
        if stop.load(Ordering::Relaxed) {
            stopping();
            left_ns = left_ns.checked_sub(POLL_NS)?;
        }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: work is abandoned only after a stop request, and then in time. Method: virtual time.
    use std::future::pending;

    use super::*;
    use pumice_drive::base::Clock;

    #[test]
    fn endless_work_is_abandoned_only_after_a_stop() {
        let runtime = Runtime::simulated();
        let stop = AtomicBool::new(false);
        let hour_ns = 3_600_000_000_000;
        let long = runtime.timeout(hour_ns, pending::<()>());
        assert_eq!(runtime.block_on(until_stopped(&runtime, &stop, || {}, long)), Some(None));
        assert!(runtime.now_ns() >= hour_ns);
        let begun_ns = runtime.now_ns();
        stop.store(true, Ordering::Relaxed);
        let never = until_stopped(&runtime, &stop, || {}, pending::<()>());
        assert_eq!(runtime.block_on(never), None);
        let waited_ns = runtime.now_ns() - begun_ns;
        assert!((GRACE_NS..=GRACE_NS + 2 * POLL_NS).contains(&waited_ns), "{waited_ns}");
    }

    #[test]
    fn work_that_ends_soon_after_a_stop_is_awaited() {
        let runtime = Runtime::simulated();
        let stop = AtomicBool::new(true);
        let told = std::cell::Cell::new(0);
        let soon = runtime.timeout(GRACE_NS / 2, pending::<()>());
        let waited = until_stopped(&runtime, &stop, || told.set(told.get() + 1), soon);
        assert_eq!(runtime.block_on(waited), Some(None));
        assert!(told.get() > 0, "who works is told to stop");
    }
}

//! Waiting for a target that may never answer.
//!
//! Whoever asks a benchmark to stop expects its end: requests that are under way are waited for,
//! because a target that is left in order need not recover, but not for ever.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};

use pumice_drive::runtime::Runtime;

/// How often it is looked whether to stop: unnoticed by a person, and by what is measured.
pub(super) const LOOK_NS: u64 = 50_000_000;

/// How long requests under way, and the flush behind them, are waited for after that. A disk that
/// works through a full queue takes less; arbitrary beyond that.
const PATIENCE_NS: u64 = 5_000_000_000;

/// Runs `work` to its end, or until [`PATIENCE_NS`] after `stop` was set: `None` then. `stopping`
/// is called each time that `stop` is found set.
pub(super) async fn patiently<T>(
    runtime: &Runtime,
    stop: &AtomicBool,
    stopping: impl Fn(),
    work: impl Future<Output = T>,
) -> Option<T> {
    let mut work = pin!(work);
    let mut left_ns = PATIENCE_NS;
    loop {
        if let Some(value) = runtime.timeout(LOOK_NS, work.as_mut()).await {
            return Some(value);
        }
        if stop.load(Ordering::Relaxed) {
            stopping();
            left_ns = left_ns.checked_sub(LOOK_NS)?;
        }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: nothing is given up that was not asked to stop, and everything that was, in time.
    //! Method: virtual time.
    use std::future::pending;

    use super::*;
    use pumice_drive::base::Clock;

    #[test]
    fn what_never_ends_is_given_up_after_a_stop_only() {
        let runtime = Runtime::simulated();
        let stop = AtomicBool::new(false);
        let hour_ns = 3_600_000_000_000;
        let long = runtime.timeout(hour_ns, pending::<()>());
        assert_eq!(runtime.block_on(patiently(&runtime, &stop, || {}, long)), Some(None));
        assert!(runtime.now_ns() >= hour_ns);
        let begun_ns = runtime.now_ns();
        stop.store(true, Ordering::Relaxed);
        let never = patiently(&runtime, &stop, || {}, pending::<()>());
        assert_eq!(runtime.block_on(never), None);
        let waited_ns = runtime.now_ns() - begun_ns;
        assert!((PATIENCE_NS..=PATIENCE_NS + 2 * LOOK_NS).contains(&waited_ns), "{waited_ns}");
    }

    #[test]
    fn what_ends_soon_after_a_stop_is_waited_for() {
        let runtime = Runtime::simulated();
        let stop = AtomicBool::new(true);
        let told = std::cell::Cell::new(0);
        let soon = runtime.timeout(PATIENCE_NS / 2, pending::<()>());
        let waited = patiently(&runtime, &stop, || told.set(told.get() + 1), soon);
        assert_eq!(runtime.block_on(waited), Some(None));
        assert!(told.get() > 0, "who works is told to stop");
    }
}

//! Rate limits for the requests of an export.
//!
//! ```text
//!  now                 paid_ns
//!   |---- at most BURST ---|          a request may start: its cost moves `paid_ns` on
//!   |---------- more than BURST ------------|          it waits for the difference
//! ```
//!
//! A request of any length pays when it starts, and later requests wait: a long request need not
//! save up first, and a client that leaves while it waits has paid nothing. Without limits, a
//! request costs two loads of words that are written only when the configuration changes.

use std::sync::atomic::{AtomicU64, Ordering};

/// Burst after a pause: the amount that the limits allow in this time. Arbitrary: long enough for
/// the bursts of a file system, and too short to be noticed as a change of speed.
const BURST_NS: u64 = 100_000_000;

const SECOND_NS: u64 = 1_000_000_000;

/// The limits for all clients of an export together. `None` means no limit, and zero counts as one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rate {
    /// Requests per second.
    pub operations: Option<u64>,
    /// Bytes read and written per second.
    pub bytes: Option<u64>,
}

/// A [`Rate`] that another thread may change; 0 for no limit.
#[derive(Debug, Default)]
pub(super) struct Limits {
    operations: AtomicU64,
    bytes: AtomicU64,
}

/// The part of an export's limits that its requests, through any thread, have used.
#[derive(Debug, Default)]
pub(super) struct Paid {
    operations_ns: AtomicU64,
    bytes_ns: AtomicU64,
}

impl Limits {
    /// Changes the limits.
    pub(super) fn set(&self, rate: Rate) {
        let value = |limit: Option<u64>| limit.map_or(0, |limit| limit.max(1));
        self.operations.store(value(rate.operations), Ordering::Relaxed);
        self.bytes.store(value(rate.bytes), Ordering::Relaxed);
    }

    fn get(&self) -> (u64, u64) {
        (self.operations.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }

    /// Returns whether there is a limit.
    pub(super) fn are_set(&self) -> bool {
        self.get() != (0, 0)
    }
}

impl Paid {
    /// Starts a request of `bytes` bytes. If that would exceed the limits, returns how long it has
    /// to wait.
    pub(super) fn start(&self, limits: &Limits, bytes: u64, now_ns: u64) -> Result<(), u64> {
        let (operations, byte_limit) = limits.get();
        let wait = |limit: u64, paid: &AtomicU64| match limit {
            0 => 0,
            _ => paid.load(Ordering::Relaxed).saturating_sub(now_ns + BURST_NS),
        };
        let waits = wait(operations, &self.operations_ns).max(wait(byte_limit, &self.bytes_ns));
        if waits > 0 {
            return Err(waits);
        }
        // Two threads that start a request at the same moment may exceed the limits by one.
        let pay = |limit: u64, paid: &AtomicU64, amount: u64| {
            if let Some(cost) = amount.saturating_mul(SECOND_NS).checked_div(limit) {
                paid.fetch_max(now_ns, Ordering::Relaxed);
                let add = |paid: u64| Some(paid.saturating_add(cost));
                let _ = paid.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
            }
        };
        pay(operations, &self.operations_ns, 1);
        pay(byte_limit, &self.bytes_ns, bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    //! Goal: within a second, no more requests start than the limits and the burst allow, and none
    //! waits forever. Method: time is a plain number.
    use super::*;

    /// Returns the number of requests of `bytes` bytes that start until `end_ns`.
    fn starts(rate: Rate, bytes: u64, end_ns: u64) -> u64 {
        let (limits, paid) = (Limits::default(), Paid::default());
        limits.set(rate);
        let (mut now_ns, mut count) = (0, 0);
        while now_ns < end_ns {
            match paid.start(&limits, bytes, now_ns) {
                Ok(()) => count += 1,
                Err(wait_ns) => now_ns += wait_ns,
            }
            if count > 1_000_000 {
                break;
            }
        }
        count
    }

    #[test]
    fn both_limits_hold_over_time() {
        let operations = Rate { operations: Some(1000), bytes: None };
        let count = starts(operations, 4096, 10 * SECOND_NS);
        assert!((10_000..=10_101).contains(&count), "{count} requests");
        let bytes = Rate { operations: None, bytes: Some(1 << 20) };
        let count = starts(bytes, 4096, 10 * SECOND_NS);
        assert!((2560..=2587).contains(&count), "{count} requests");
        let both = Rate { operations: Some(100), bytes: Some(1 << 20) };
        let count = starts(both, 4096, 10 * SECOND_NS);
        assert!((1000..=1011).contains(&count), "{count} requests");
        assert!(starts(Rate::default(), 4096, SECOND_NS) > 1_000_000, "no limit");
    }

    #[test]
    fn requests_after_a_long_one_wait() {
        let (limits, paid) = (Limits::default(), Paid::default());
        limits.set(Rate { operations: None, bytes: Some(1 << 20) });
        assert!(limits.are_set());
        assert_eq!(paid.start(&limits, 32 << 20, SECOND_NS), Ok(()));
        assert_eq!(paid.start(&limits, 1, SECOND_NS), Err(32 * SECOND_NS - BURST_NS));
        assert_eq!(paid.start(&limits, u64::MAX, 40 * SECOND_NS), Ok(()));
        // A change of the limits applies immediately.
        limits.set(Rate::default());
        assert_eq!(paid.start(&limits, 1, SECOND_NS), Ok(()));
    }

    #[test]
    fn a_pause_saves_up_no_more_than_a_burst() {
        let (limits, paid) = (Limits::default(), Paid::default());
        limits.set(Rate { operations: Some(100), bytes: None });
        let now_ns = 1000 * SECOND_NS;
        let started = (0..100).take_while(|_| paid.start(&limits, 1, now_ns).is_ok()).count();
        assert_eq!(started, 11);
    }

    #[test]
    fn zero_is_a_limit() {
        let (limits, paid) = (Limits::default(), Paid::default());
        limits.set(Rate { operations: Some(0), bytes: Some(0) });
        assert_eq!(paid.start(&limits, 1, 0), Ok(()));
        assert_eq!(paid.start(&limits, 1, 0), Err(SECOND_NS - BURST_NS));
    }
}

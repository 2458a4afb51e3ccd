//! Latencies of requests in virtual time, for the reports of long runs.

use std::cell::RefCell;

/// Latencies in microseconds, in the order of the requests.
#[derive(Debug, Default)]
pub(super) struct Latencies(RefCell<Vec<u32>>);

/// Reported statistics of latencies, in nanoseconds; 0 if there are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Longest {
    /// The longest latency.
    pub(super) max_ns: u64,
    /// The 99.9th percentile, by nearest rank.
    pub(super) p999_ns: u64,
}

impl Latencies {
    /// Adds a latency in nanoseconds.
    pub(super) fn add(&self, ns: u64) {
        self.0.borrow_mut().push(u32::try_from(ns / 1000).unwrap_or(u32::MAX));
    }

    /// Discards all latencies.
    pub(super) fn clear(&self) {
        self.0.borrow_mut().clear();
    }

    /// Returns the statistics, and discards all latencies.
    pub(super) fn take(&self) -> Longest {
        let mut us = self.0.take();
        us.sort_unstable();
        let ns = |us: Option<&u32>| us.map_or(0, |&us| u64::from(us) * 1000);
        let rank = (us.len() * 999).div_ceil(1000).saturating_sub(1);
        Longest { max_ns: ns(us.last()), p999_ns: ns(us.get(rank)) }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: the longest latency and the percentile follow the definition.
    use super::*;

    #[test]
    fn the_percentile_is_the_nearest_rank() {
        let latencies = Latencies::default();
        assert_eq!(latencies.take(), Longest { max_ns: 0, p999_ns: 0 });
        (1..=2000).rev().for_each(|us| latencies.add(us * 1000 + 999));
        assert_eq!(latencies.take(), Longest { max_ns: 2_000_000, p999_ns: 1_998_000 });
        latencies.add(7000);
        assert_eq!(latencies.take(), Longest { max_ns: 7000, p999_ns: 7000 });
    }
}

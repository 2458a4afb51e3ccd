//! A histogram of latencies with fixed buckets: 1 us, 2 us, 4 us and so on up to 16 s, and one for
//! longer latencies.
//!
//! The buckets are those that Prometheus receives, so a scrape computes nothing. With powers of
//! two, a quantile is right within a factor of two, and much closer where many requests share a
//! bucket evenly.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Buckets with an upper bound: powers of two from 1 us to 2^24 us, about 16.8 s.
pub(crate) const BUCKETS: usize = 25;

/// Returns the upper bound of bucket `index`, in nanoseconds.
///
/// # Panics
/// If there is no such bucket.
pub(crate) const fn bucket_limit_ns(index: usize) -> u64 {
    assert!(index < BUCKETS);
    1000 << index
}

/// A histogram of latencies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Latency {
    /// Requests by bucket; each counts in one bucket only. The last bucket has no upper bound.
    pub counts: [u64; BUCKETS + 1],
    /// Sum of all latencies in nanoseconds.
    pub sum_ns: u64,
}

impl Latency {
    /// Counts a request that took `ns` nanoseconds.
    #[expect(clippy::indexing_slicing, reason = "the last bucket takes every longer latency")]
    pub(crate) fn record(&mut self, ns: u64) {
        let microseconds = ns.div_ceil(1000).max(1);
        // 2^n us still belongs to bucket n.
        let bucket = u64::BITS - (microseconds - 1).leading_zeros();
        self.counts[(bucket as usize).min(BUCKETS)] += 1;
        self.sum_ns = self.sum_ns.saturating_add(ns);
    }

    /// Returns the number of requests counted.
    pub(crate) fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| u64::saturating_add(sum, *count))
    }

    /// Returns the counts since `earlier`; zeroes if `earlier` is from another server.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let mut difference = *self;
        for (count, before) in difference.counts.iter_mut().zip(earlier.counts) {
            *count = count.saturating_sub(before);
        }
        difference.sum_ns = self.sum_ns.saturating_sub(earlier.sum_ns);
        difference
    }

    /// Returns the latency in nanoseconds that `share` of the requests, in (0, 1], did not exceed,
    /// assuming that the requests of a bucket are evenly distributed; `None` without requests. A
    /// request in the last bucket counts as if it had taken its lower bound.
    pub(crate) fn quantile_ns(&self, share: f64) -> Option<f64> {
        let rank = share * self.count() as f64;
        let mut below = 0.0;
        for (index, &count) in self.counts.iter().enumerate() {
            let count = count as f64;
            if count > 0.0 && below + count >= rank {
                let upper = bucket_limit_ns(index.min(BUCKETS - 1)) as f64;
                let lower = if index == 0 { 0.0 } else { upper / 2.0 };
                let lower = if index == BUCKETS { upper } else { lower };
                return Some(lower + (upper - lower) * ((rank - below) / count));
            }
            below += count;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    //! Goal: every latency is in its bucket, even at the exact limits, and quantiles are within
    //! their bounds.
    use super::*;

    fn bucket(ns: u64) -> usize {
        let mut latency = Latency::default();
        latency.record(ns);
        assert_eq!((latency.count(), latency.sum_ns), (1, ns));
        latency.counts.iter().position(|&count| count == 1).unwrap()
    }

    #[test]
    fn limits_belong_to_their_bucket() {
        assert_eq!((bucket(0), bucket(1)), (0, 0));
        for index in 0..BUCKETS {
            let limit = bucket_limit_ns(index);
            assert_eq!((bucket(limit), bucket(limit + 1)), (index, index + 1), "{limit}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS);
        assert_eq!(bucket_limit_ns(BUCKETS - 1), 16_777_216_000);
    }

    #[test]
    fn quantiles_lie_in_the_bucket_that_holds_them() {
        let mut latency = Latency::default();
        assert_eq!(latency.quantile_ns(0.5), None);
        for _ in 0..99 {
            latency.record(3_000);
        }
        latency.record(1_000_000_000);
        let median = latency.quantile_ns(0.5).unwrap();
        assert!((2_000.0..=4_000.0).contains(&median), "{median}");
        let highest = latency.quantile_ns(1.0).unwrap();
        assert!((524_288_000.0..=1_048_576_000.0).contains(&highest), "{highest}");
        latency.record(u64::MAX);
        assert_eq!(latency.quantile_ns(1.0), Some(16_777_216_000.0));
    }

    #[test]
    fn a_difference_counts_only_new_samples() {
        let mut latency = Latency::default();
        latency.record(5_000);
        let earlier = latency;
        latency.record(7);
        let mut expected = Latency::default();
        expected.record(7);
        assert_eq!(latency.since(&earlier), expected);
        assert_eq!(earlier.since(&latency).count(), 0);
    }
}

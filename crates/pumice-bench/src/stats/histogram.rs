//! Latencies of single requests, counted in buckets.
//!
//! This is a thin wrapper around an HDR histogram: 1 ns to [`LATENCY_NS_MAX`] with three
//! significant digits, in 264 KiB regardless of the number of values. Values are exact below 2048
//! ns and within 0.1 % above. There is no correction for coordinated omission. The load generator
//! is a closed loop: each task issues its next request when its previous one has completed, so a
//! stall delays the following requests and is recorded once. Latencies are those observed at the
//! given depth, not at an independent arrival rate.

use hdrhistogram::Histogram;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Longest latency that is recorded individually: one hour.
pub const LATENCY_NS_MAX: u64 = 3_600_000_000_000;

/// Significant digits.
const DIGITS: u8 = 3;

/// A histogram of latencies in ns.
///
/// As JSON: a list of [latency in ns, count], ascending, one pair for each non-empty bucket. This
/// form is lossless and can be read without additional tools. The library's own form, deflated and
/// in base64, is about a twelfth of the size and can be read only with the library.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(into = "Pairs", try_from = "Pairs")]
pub struct Latencies(Histogram<u64>);

/// Summary of latencies, all in ns and within 0.1 %.
///
/// A percentile is the smallest latency that this share of the requests did not exceed. The upper
/// end of its bucket is reported, limited to the maximum.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Percentiles {
    /// Number of requests.
    pub count: u64,
    /// Arithmetic mean.
    pub mean_ns: f64,
    /// The median.
    pub p50_ns: u64,
    /// 90 %.
    pub p90_ns: u64,
    /// 99 %.
    pub p99_ns: u64,
    /// 99.9 %.
    pub p99_9_ns: u64,
    /// 99.99 %.
    pub p99_99_ns: u64,
    /// The maximum.
    pub max_ns: u64,
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
struct Pairs(Vec<(u64, u64)>);

impl Default for Latencies {
    fn default() -> Self {
        Self::new()
    }
}

impl Latencies {
    /// Returns an empty histogram.
    pub fn new() -> Self {
        let bounds = Histogram::new_with_bounds(1, LATENCY_NS_MAX, DIGITS);
        Self(bounds.expect("bounds that a histogram can have"))
    }

    /// Records one latency. Latencies above [`LATENCY_NS_MAX`] are recorded as that value. Does not
    /// allocate.
    #[inline]
    pub fn record(&mut self, latency_ns: u64) {
        // The library's own limit is the end of its last bucket, 4.4e12.
        self.0.saturating_record(latency_ns.min(LATENCY_NS_MAX));
    }

    /// Records a latency `count` times; see [`Self::record`].
    pub(crate) fn record_many(&mut self, latency_ns: u64, count: u64) {
        // With a count of zero, the library would still treat the value as the maximum.
        if count > 0 {
            self.0.saturating_record_n(latency_ns.min(LATENCY_NS_MAX), count);
        }
    }

    /// Returns the number of recorded latencies.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// Adds the latencies of `other`.
    pub fn merge(&mut self, other: &Self) {
        self.0.add(&other.0).expect("all have the same bounds");
    }

    /// Returns the latency in ns that a share `level` of the requests, 0 to 1, did not exceed;
    /// `None` if the histogram is empty or the level is out of range.
    pub fn quantile_ns(&self, level: f64) -> Option<u64> {
        let defined = !self.0.is_empty() && (0.0..=1.0).contains(&level);
        defined.then(|| self.0.value_at_quantile(level).min(LATENCY_NS_MAX))
    }

    /// Returns the percentiles, or `None` if the histogram is empty.
    pub fn percentiles(&self) -> Option<Percentiles> {
        Some(Percentiles {
            p50_ns: self.quantile_ns(0.5)?,
            p90_ns: self.quantile_ns(0.9)?,
            p99_ns: self.quantile_ns(0.99)?,
            p99_9_ns: self.quantile_ns(0.999)?,
            p99_99_ns: self.quantile_ns(0.9999)?,
            max_ns: self.0.max().min(LATENCY_NS_MAX),
            mean_ns: self.0.mean(),
            count: self.count(),
        })
    }
}

impl From<Latencies> for Pairs {
    fn from(Latencies(histogram): Latencies) -> Self {
        let lowest = |value| histogram.lowest_equivalent(value);
        let pair = |bucket: hdrhistogram::iterators::IterationValue<u64>| {
            (lowest(bucket.value_iterated_to()), bucket.count_at_value())
        };
        Self(histogram.iter_recorded().map(pair).collect())
    }
}

impl TryFrom<Pairs> for Latencies {
    type Error = String;

    fn try_from(Pairs(pairs): Pairs) -> Result<Self, String> {
        let mut latencies = Self::new();
        let (mut least, mut total) = (0, 0u64);
        for (latency_ns, count) in pairs {
            let sum = total.checked_add(count).filter(|_| count > 0);
            total =
                sum.ok_or_else(|| format!("the count of {latency_ns} ns, {count}, is invalid"))?;
            if latency_ns < least || latency_ns > LATENCY_NS_MAX {
                return Err(format!("{latency_ns} ns is out of order or above one hour"));
            }
            least = latencies.0.next_non_equivalent(latency_ns);
            latencies.0.saturating_record_n(latency_ns, count);
        }
        Ok(latencies)
    }
}

#[cfg(test)]
mod tests {
    //! Goal: latencies are accurate to 0.1 %, and JSON is lossless. Method: comparison with the
    //! sorted list of the recorded latencies.
    use rand_xoshiro::rand_core::Rng;

    use super::*;
    use pumice_drive::base::seed::random;

    /// Returns latencies over the whole range, with equal numbers in each power of two.
    fn some(seed: u64, count: usize) -> Vec<u64> {
        let mut random = random(seed);
        let one = |_| (random.next_u64() >> (23 + random.next_u64() % 41)).min(LATENCY_NS_MAX);
        (0..count).map(one).collect()
    }

    fn recorded(latencies: &[u64]) -> Latencies {
        let mut histogram = Latencies::new();
        latencies.iter().for_each(|latency| histogram.record(*latency));
        histogram
    }

    #[test]
    fn percentiles_are_right_to_a_thousandth() {
        let mut all = some(1, 30_000);
        let told = recorded(&all).percentiles().expect("latencies");
        all.sort_unstable();
        let rank = |share: f64| all[(share * all.len() as f64).ceil() as usize - 1];
        for (told, exact) in [
            (told.p50_ns, rank(0.5)),
            (told.p90_ns, rank(0.9)),
            (told.p99_ns, rank(0.99)),
            (told.p99_9_ns, rank(0.999)),
            (told.p99_99_ns, rank(0.9999)),
            (told.max_ns, all[all.len() - 1]),
        ] {
            assert!(told >= exact && told <= exact + exact / 1000, "{told} for {exact}");
        }
        let mean = all.iter().sum::<u64>() as f64 / all.len() as f64;
        assert!((told.mean_ns / mean - 1.0).abs() < 1e-3, "{} for {mean}", told.mean_ns);
        assert_eq!(told.count, 30_000);
    }

    #[test]
    fn small_latencies_are_exact_and_long_ones_are_cut() {
        let few = recorded(&[0, 1, 2, 2047]).percentiles().expect("latencies");
        assert_eq!((few.p50_ns, few.p90_ns, few.max_ns, few.mean_ns), (1, 2047, 2047, 512.5));
        let told = recorded(&[1, u64::MAX, LATENCY_NS_MAX + 1, 4_300_000_000_000]);
        assert_eq!(told, recorded(&[1, LATENCY_NS_MAX, LATENCY_NS_MAX, LATENCY_NS_MAX]));
        let told = told.percentiles().expect("latencies");
        assert_eq!((told.max_ns, told.p99_ns), (LATENCY_NS_MAX, LATENCY_NS_MAX));
    }

    #[test]
    fn nothing_recorded_says_nothing() {
        let none = Latencies::default();
        assert!(none.percentiles().is_none() && none.quantile_ns(0.5).is_none());
        let one = recorded(&[5]);
        assert_eq!((one.quantile_ns(0.0), one.quantile_ns(1.0)), (Some(5), Some(5)));
        for wrong in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            assert_eq!(one.quantile_ns(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn merged_is_as_recorded_together() {
        let (left, right) = (some(2, 2000), some(3, 500));
        let mut merged = recorded(&left);
        merged.merge(&recorded(&right));
        merged.merge(&Latencies::new());
        assert_eq!(merged, recorded(&[left.clone(), right.clone()].concat()));
        let mut many = recorded(&left);
        right.iter().for_each(|latency| many.record_many(*latency, 2));
        many.record_many(u64::MAX, 0);
        merged.merge(&recorded(&right));
        assert!(many == merged);
        let mut empty = Latencies::new();
        empty.merge(&merged);
        assert_eq!(empty.percentiles(), merged.percentiles());
    }

    #[test]
    fn json_loses_nothing() {
        for latencies in [some(4, 3000), vec![], vec![0], vec![LATENCY_NS_MAX, 7, 7]] {
            let histogram = recorded(&latencies);
            let text = serde_json::to_string(&histogram).expect("JSON");
            let back: Latencies = serde_json::from_str(&text).expect("latencies");
            assert_eq!(back, histogram);
            assert_eq!(back.percentiles(), histogram.percentiles());
            assert_eq!(serde_json::to_string(&back).expect("JSON"), text);
        }
        let text = serde_json::to_string(&recorded(&[7, 5, 7, 4099])).expect("JSON");
        assert_eq!(text, "[[5,1],[7,2],[4096,1]]");
    }

    #[test]
    fn json_that_is_no_histogram_is_refused() {
        for text in [
            "{}",
            "[1]",
            "[[5,0]]",
            "[[-5,1]]",
            "[[5,1.5]]",
            "[[7,1],[5,1]]",
            "[[5,1],[5,1]]",
            "[[4098,1],[4099,1]]",
            "[[3600000000001,1]]",
            "[[5,18446744073709551615],[6,1]]",
        ] {
            assert!(serde_json::from_str::<Latencies>(text).is_err(), "{text}");
        }
        assert!(serde_json::from_str::<Latencies>("[[5,18446744073709551615]]").is_ok());
    }
}

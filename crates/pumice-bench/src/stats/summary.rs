//! A summary of the runs of one cell.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::interval::{Interval, mean_interval};
use super::sample;

/// Summary of a sample of runs, in the unit of its values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Summary {
    /// Number of runs.
    pub n: usize,
    /// Arithmetic mean.
    pub mean: f64,
    /// Standard deviation with n - 1; `None` for a single run.
    pub deviation: Option<f64>,
    /// Coefficient of variation: the deviation as a share of the mean's magnitude. `None` without a
    /// deviation, or if the mean is so close to zero that the share is not finite.
    pub variation: Option<f64>,
    /// Minimum.
    pub min: f64,
    /// First quartile. Quartiles and median are interpolated linearly.
    pub quartile_lower: f64,
    /// Median.
    pub median: f64,
    /// Third quartile.
    pub quartile_upper: f64,
    /// Maximum.
    pub max: f64,
    /// 95 % interval of the mean; `None` for fewer than 3 runs.
    pub mean_interval: Option<Interval>,
}

impl Summary {
    /// Summarises `values`. Returns `None` if there are no values, or if a value cannot be a
    /// measurement (see [`super::MAGNITUDE_MAX`]).
    ///
    /// Coverage of the interval, from 100,000 samples each of lognormal distributions (0.02: nearly
    /// normal; 1: one run in twenty takes five times as long as the median):
    ///
    /// | n | sigma 0.02 | 0.25 | 0.5 | 1 |
    /// |---|---|---|---|---|
    /// | 3 | 95 % | 94 % | 92 % | 84 % |
    /// | 5 | 95 % | 94 % | 92 % | 82 % |
    /// | 10 | 95 % | 94 % | 92 % | 84 % |
    /// | 30 | 95 % | 95 % | 93 % | 88 % |
    ///
    /// Source of quartiles: Hyndman and Fan, "Sample Quantiles in Statistical Packages", The
    /// American Statistician 50 (1996), definition 7; of the interval: Student, "The Probable Error
    /// of a Mean", Biometrika 6 (1908).
    pub fn of(values: &[f64]) -> Option<Self> {
        let values = sample::measured(values)?;
        let mean = sample::mean(values);
        let deviation = sample::deviation(values);
        let variation = deviation.map(|deviation| deviation / mean.abs());
        let (min, max) = sample::extremes(values);
        let mut ordered = values.to_vec();
        Some(Self {
            n: values.len(),
            mean,
            deviation,
            variation: variation.filter(|share| share.is_finite()),
            min,
            quartile_lower: sample::quantile(&mut ordered, 0.25),
            median: sample::quantile(&mut ordered, 0.5),
            quartile_upper: sample::quantile(&mut ordered, 0.75),
            max,
            mean_interval: mean_interval(values),
        })
    }
}

#[cfg(test)]
mod tests {
    //! Goal: the numbers follow the usual definitions. Method: comparison with numpy 2.4.6, `mean`,
    //! `std(ddof=1)`, `quantile`.
    use super::*;

    #[test]
    fn numbers_are_the_usual_ones() {
        let runs = [412.1, 398.7, 405.3, 401.9, 420.4, 399.2, 407.7];
        let summary = Summary::of(&runs).expect("measurements");
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} {b}");
        near(summary.mean, 406.47142857142853);
        near(summary.deviation.expect("several runs"), 7.775327278366764);
        near(summary.variation.expect("a mean"), 0.019128840877435545);
        near(summary.quartile_lower, 400.55);
        near(summary.median, 405.3);
        near(summary.quartile_upper, 409.9);
        assert_eq!((summary.n, summary.min, summary.max), (7, 398.7, 420.4));
        assert!(summary.mean_interval.expect("several runs").contains(summary.mean));
    }

    #[test]
    fn json_brings_it_back() {
        for runs in [&[1.0, 2.0, 3.0, 6.5][..], &[4.0]] {
            let summary = Summary::of(runs).expect("measurements");
            let text = serde_json::to_string(&summary).expect("JSON");
            let back: Summary = serde_json::from_str(&text).expect("a summary");
            // Parsed numbers may differ by one rounding.
            assert_eq!((back.n, back.min, back.max), (summary.n, summary.min, summary.max));
            assert!((back.mean - summary.mean).abs() < 1e-12);
            assert_eq!(back.mean_interval.is_some(), runs.len() > 2);
        }
    }

    #[test]
    fn figures_that_need_more_runs_are_omitted() {
        let one = Summary::of(&[4.0]).expect("a measurement");
        assert_eq!((one.mean, one.median, one.quartile_lower), (4.0, 4.0, 4.0));
        assert_eq!((one.deviation, one.variation, one.mean_interval), (None, None, None));
        let two = Summary::of(&[-1.0, 1.0]).expect("measurements");
        assert!(two.deviation.is_some() && two.variation.is_none() && two.mean_interval.is_none());
        assert!(Summary::of(&[]).is_none());
    }
}

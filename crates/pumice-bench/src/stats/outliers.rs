//! Detects unusual runs, which are reported but never dropped.
//!
//! An outlier is a finding (a background job, a stall of the drive) that a report must show. A
//! sample without its outliers is not the measured sample.

use serde::{Deserialize, Serialize};

use super::sample;

/// Absolute modified z-score at which a run becomes an outlier.
///
/// Source: Iglewicz and Hoaglin, "How to Detect and Handle Outliers", ASQC (1993).
pub const OUTLIER_SCORE: f64 = 3.5;

/// Minimum number of runs. Among three runs, two values that are close by chance would make the
/// third an outlier.
const RUNS_MIN: usize = 5;

/// Factors that convert the median and the mean absolute deviation of normal values to the standard
/// deviation: 1 / 0.6745, and the square root of half pi.
const MEDIAN_SCALE: f64 = 1.482_602_218_505_602;
const MEAN_SCALE: f64 = 1.253_314_137_315_5;

/// An unusual run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outlier {
    /// Index in the sample, from 0.
    pub index: usize,
    /// The value of the run.
    pub value: f64,
    /// Modified z-score: roughly the number of standard deviations above the median, or below it if
    /// negative. Finite.
    pub score: f64,
}

/// Returns the runs whose modified z-score is beyond [`OUTLIER_SCORE`], in order. Returns `None`
/// for fewer than 5 runs, or if a value cannot be a measurement (see [`super::MAGNITUDE_MAX`]).
///
/// If more than half of the runs are equal, the median absolute deviation is zero and is replaced
/// by the mean absolute deviation. With 5 or more runs, a single run that differs from otherwise
/// equal ones is then an outlier.
///
/// An outlier is only a hint: of 20,000 normal samples without contamination, 21 % had an outlier
/// with 5 runs, 13 % with 10 and 9 % with 30.
///
/// Source: Iglewicz and Hoaglin, "How to Detect and Handle Outliers", ASQC (1993); replacing a
/// median of zero with the mean follows IBM SPSS.
pub(crate) fn outliers(values: &[f64]) -> Option<Vec<Outlier>> {
    let values = sample::measured(values).filter(|values| values.len() >= RUNS_MIN)?;
    let median = sample::median(values);
    let distances: Vec<f64> = values.iter().map(|value| (value - median).abs()).collect();
    let spread = match sample::median(&distances) {
        0.0 => MEAN_SCALE * sample::mean(&distances),
        nearest => MEDIAN_SCALE * nearest,
    };
    let label = |(index, &value): (usize, &f64)| {
        // If all values are equal, the score is 0 / 0, which does not exceed any limit. A tiny
        // spread may overflow.
        let score = ((value - median) / spread).clamp(f64::MIN, f64::MAX);
        (score.abs() > OUTLIER_SCORE).then_some(Outlier { index, value, score })
    };
    Some(values.iter().enumerate().filter_map(label).collect())
}

#[cfg(test)]
mod tests {
    //! Goal: unusual runs are reported, and no others. Method: scores calculated from the formulas
    //! with numpy 2.4.6 and scipy 1.17.1.
    use super::*;

    fn labels(values: &[f64]) -> Vec<usize> {
        outliers(values).expect("measurements").iter().map(|outlier| outlier.index).collect()
    }

    #[test]
    fn a_foreign_run_is_named() {
        let found = outliers(&[10.0, 11.0, 9.0, 10.5, 9.8, 30.0, 10.2]).expect("measurements");
        assert_eq!((found.len(), found[0].index, found[0].value), (1, 5, 30.0));
        assert!((found[0].score - 33.38724263).abs() < 1e-6, "{found:?}");
        let low = outliers(&[10.0, 11.0, 9.0, 10.5, 9.8, -30.0]).expect("measurements");
        assert!(low.len() == 1 && low[0].score < -OUTLIER_SCORE);
        assert!(labels(&[10.0, 11.0, 9.0, 10.5, 9.8, 12.0]).is_empty());
        assert_eq!(labels(&[1.0, 1.01, 0.99, 1.02, 9.0]), [4]);
        assert!(outliers(&[1.0, 1.01, 0.99, 9.0]).is_none(), "too few");
        // Scores of 0.6745 times 5.18 and 5.2, which are on either side of 3.5.
        assert!(labels(&[-1.0, 0.0, 1.0, -1.0, 1.0, 0.0, 5.18]).is_empty());
        assert_eq!(labels(&[-1.0, 0.0, 1.0, -1.0, 1.0, 0.0, 5.2]), [6]);
    }

    #[test]
    fn equal_runs_do_not_hide_a_foreign_one() {
        let found = outliers(&[5.0, 5.0, 5.0, 5.0, 5.2]).expect("measurements");
        assert!(found.len() == 1 && (found[0].score - 3.9894228).abs() < 1e-6, "{found:?}");
        assert!(labels(&[5.0; 8]).is_empty());
        assert!(labels(&[0.0; 5]).is_empty());
        let tiny = outliers(&[0.0, 5e-324, 1e-323, 5e-324, 1e100]).expect("measurements");
        assert!(tiny.len() == 1 && tiny[0].score.is_finite());
    }
}

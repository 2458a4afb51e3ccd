//! Detects steady state in rounds of the same workload with one value each: the last few rounds
//! must neither spread nor drift.
//!
//! ```text
//! value |*                        window: the last 5 rounds
//!       |  *                      range:  maximum - minimum        <= 20 % of the average
//!       |    *  .-----------.     slope:  best line, end to end    <= 10 % of the average
//!       |      *|* _ * _ * _|
//!       +-------'-----------'- round
//! ```
//!
//! Source: SNIA, "Solid State Storage Performance Test Specification" 2.0.2 (2020), definition of
//! steady state. The caller chooses the workload of a round and the maximum number of rounds.

use serde::{Deserialize, Serialize};

use super::sample;

/// Number of rounds in a window.
pub const WINDOW_ROUNDS: usize = 5;

/// Maximum range of a window's values, as a share of their average.
pub const RANGE_MAX: f64 = 0.20;

/// Maximum rise or fall of the best-fit line from the first to the last round of a window, as a
/// share of the average.
pub const SLOPE_MAX: f64 = 0.10;

/// Tolerance for rounding, as a share of the average, so that exactly 20 % passes.
const ROUNDING: f64 = 1e-12;

/// A window of rounds evaluated by both criteria, in the unit of the values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// First round of the window, from 0.
    pub first: usize,
    /// The average; above zero.
    pub average: f64,
    /// Maximum minus minimum.
    pub range: f64,
    /// Rise of the best-fit line (least squares) per round. In the middle of the window, the line
    /// equals the average.
    pub slope: f64,
    /// Whether the range is within [`RANGE_MAX`].
    pub range_passes: bool,
    /// Whether the line's rise or fall over the window is within [`SLOPE_MAX`].
    pub slope_passes: bool,
}

/// The result for a series of rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rounds {
    /// The first round, counted from 0, that completed a steady window. Later rounds may have left
    /// steady state; see `last`.
    pub steady_from: Option<usize>,
    /// The last window; `None` if there are too few rounds, if a value in the window cannot be a
    /// measurement (see [`super::MAGNITUDE_MAX`]), or if the average is not above zero.
    pub last: Option<Window>,
}

/// Searches for steady state in a series with one value per round. Windows are not steady if a
/// value cannot be a measurement or the average is not above zero.
pub fn steady(rounds: &[f64]) -> Rounds {
    let windows = || rounds.windows(WINDOW_ROUNDS).enumerate();
    let is_steady = |(first, values)| Window::of(first, values).is_some_and(Window::is_steady);
    let first = windows().position(is_steady);
    Rounds {
        steady_from: first.map(|first| first + WINDOW_ROUNDS - 1),
        last: windows().next_back().and_then(|(first, values)| Window::of(first, values)),
    }
}

impl Window {
    /// Returns whether both criteria are met.
    pub(crate) fn is_steady(self) -> bool {
        self.range_passes && self.slope_passes
    }

    /// Returns the values of the best-fit line in the first and the last round.
    pub fn line(self) -> (f64, f64) {
        let half = self.slope * (WINDOW_ROUNDS - 1) as f64 / 2.0;
        (self.average - half, self.average + half)
    }

    fn of(first: usize, values: &[f64]) -> Option<Self> {
        let average = sample::mean(sample::measured(values)?);
        if average <= 0.0 {
            return None;
        }
        let (low, high) = sample::extremes(values);
        let middle = (values.len() - 1) as f64 / 2.0;
        let offsets = || (0..values.len()).map(|round| round as f64 - middle);
        let rises: f64 = offsets().zip(values).map(|(x, value)| x * (value - average)).sum();
        let slope = rises / offsets().map(|x| x * x).sum::<f64>();
        let excursion = slope.abs() * (values.len() - 1) as f64;
        Some(Self {
            first,
            average,
            range: high - low,
            slope,
            range_passes: high - low <= (RANGE_MAX + ROUNDING) * average,
            slope_passes: excursion <= (SLOPE_MAX + ROUNDING) * average,
        })
    }
}

#[cfg(test)]
mod tests {
    //! Goal: steady state is found exactly where it exists. Method: series with an obvious answer;
    //! the line is compared with numpy 2.4.6, `polyfit`.
    use super::*;

    fn steady_from(rounds: &[f64]) -> Option<usize> {
        steady(rounds).steady_from
    }

    #[test]
    fn a_flat_series_is_steady_at_once() {
        assert_eq!(steady_from(&[7.0; 5]), Some(4));
        assert_eq!(steady_from(&[7.0; 40]), Some(4));
        let noise = |index: u32| 100.0 + f64::from(index * 37 % 13) - 6.0;
        let noisy: Vec<f64> = (0..30).map(noise).collect();
        assert_eq!(steady_from(&noisy), Some(4));
    }

    #[test]
    fn a_fall_ends_where_it_ends() {
        let mut rounds: Vec<f64> = (0..10).map(|round| 1000.0 * 0.8_f64.powi(round)).collect();
        rounds.extend([110.0, 108.0, 111.0, 109.0, 110.0, 110.0]);
        let answer = steady(&rounds);
        // The value 134 stays in the window until round 13.
        assert_eq!(answer.steady_from, Some(14));
        let last = answer.last.expect("a window");
        assert!(last.is_steady() && last.first == 11);
    }

    #[test]
    fn slow_drift_is_refused_by_its_slope() {
        // A fall of 3 % of the first value in each round is 12 % over a window.
        let rounds: Vec<f64> = (0..6).map(|round| 100.0 - 3.0 * f64::from(round)).collect();
        let answer = steady(&rounds);
        assert_eq!(answer.steady_from, None);
        let last = answer.last.expect("a window");
        assert!(last.range_passes && !last.slope_passes, "{last:?}");
        assert!((last.slope + 3.0).abs() < 1e-9);
        let rising: Vec<f64> = rounds.iter().rev().copied().collect();
        assert_eq!(steady_from(&rising), None);
    }

    #[test]
    fn a_saw_and_an_outlier_are_refused_by_their_range() {
        let saw: Vec<f64> = (0..20).map(|round| [100.0, 130.0][round % 2]).collect();
        let answer = steady(&saw);
        assert_eq!(answer.steady_from, None);
        let last = answer.last.expect("a window");
        assert!(!last.range_passes && last.slope_passes, "{last:?}");

        let mut stalled = [100.0; 12];
        stalled[3] = 70.0;
        assert_eq!(steady_from(&stalled), Some(8), "the first window without it");
        stalled[11] = 10.0;
        let answer = steady(&stalled);
        assert_eq!(answer.steady_from, Some(8));
        assert!(!answer.last.expect("a window").is_steady(), "no longer");
    }

    #[test]
    fn the_limits_themselves_pass() {
        // 90..110 and 95..105, both with an average of 100.
        assert_eq!(steady_from(&[90.0, 100.0, 110.0, 110.0, 90.0]), Some(4));
        assert_eq!(steady_from(&[90.0, 100.0, 110.2, 110.0, 89.8]), None);
        assert_eq!(steady_from(&[95.0, 97.5, 100.0, 102.5, 105.0]), Some(4));
        assert_eq!(steady_from(&[94.9, 97.5, 100.0, 102.5, 105.1]), None);
    }

    #[test]
    fn the_last_window_is_told() {
        let last = steady(&[1.0, 100.0, 108.0, 96.0, 104.0, 101.0]).last.expect("a window");
        assert_eq!((last.first, last.average, last.range), (1, 101.8, 12.0));
        let (from, to) = last.line();
        let near = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert!(near(last.slope, -0.2) && near(from, 102.2) && near(to, 101.4), "{last:?}");
    }

    #[test]
    fn invalid_rates_are_not_steady() {
        let nothing = Rounds { steady_from: None, last: None };
        for length in 0..WINDOW_ROUNDS {
            assert_eq!(steady(&vec![7.0; length]), nothing);
        }
        for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e200] {
            assert_eq!(steady(&[wrong; 8]), nothing, "{wrong}");
        }
        let mut rounds = [7.0; 12];
        rounds[2] = f64::NAN;
        assert_eq!(steady_from(&rounds), Some(7));
        rounds[11] = f64::NAN;
        assert!(steady(&rounds).last.is_none());
    }
}

//! Basic statistics, and a check that numbers can be measurements.
//!
//! Only [`measured`] accepts arbitrary numbers; the other functions require numbers that passed
//! this check.

/// Largest magnitude of a measurement: far above any real one, but small enough that squares, sums
/// and ratios stay finite.
pub const MAGNITUDE_MAX: f64 = 1e100;

/// Largest ratio of two measurements.
pub(super) const RATIO_MAX: f64 = 1e200;

/// Returns `values` if the slice is not empty and all values can be measurements.
pub(super) fn measured(values: &[f64]) -> Option<&[f64]> {
    // NaN is in no range.
    let fits = |value: &f64| (-MAGNITUDE_MAX..=MAGNITUDE_MAX).contains(value);
    (!values.is_empty() && values.iter().all(fits)).then_some(values)
}

/// Returns `values` if they are also all above zero, as rates and times of successful runs are.
pub(super) fn positive(values: &[f64]) -> Option<&[f64]> {
    let fits = |value: &f64| *value >= 1.0 / MAGNITUDE_MAX;
    measured(values).filter(|values| values.iter().all(fits))
}

/// Returns the minimum and the maximum.
pub(super) fn extremes(values: &[f64]) -> (f64, f64) {
    let widen = |(low, high): (f64, f64), value: &f64| (low.min(*value), high.max(*value));
    values.iter().fold((f64::INFINITY, f64::NEG_INFINITY), widen)
}

/// Returns the mean, clamped to the extremes, which rounding could otherwise exceed if all values
/// are equal.
pub(super) fn mean(values: &[f64]) -> f64 {
    let (low, high) = extremes(values);
    (values.iter().sum::<f64>() / values.len() as f64).clamp(low, high)
}

/// Returns the standard deviation of the population (n - 1); `None` for a single value.
pub(super) fn deviation(values: &[f64]) -> Option<f64> {
    let mean = mean(values);
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (values.len() > 1).then(|| (squares / (values.len() - 1) as f64).sqrt())
}

/// Returns the quantile at `level` in 0..=1, interpolated linearly. Reorders `values`.
///
/// Source: Hyndman and Fan, "Sample Quantiles in Statistical Packages", The American Statistician
/// 50 (1996), definition 7.
pub(super) fn quantile(values: &mut [f64], level: f64) -> f64 {
    let place = level * (values.len() - 1) as f64;
    let (_, &mut below, rest) = values.select_nth_unstable_by(place as usize, f64::total_cmp);
    match rest.iter().copied().min_by(f64::total_cmp) {
        Some(above) => below + (above - below) * place.fract(),
        None => below,
    }
}

pub(super) fn median(values: &[f64]) -> f64 {
    quantile(&mut values.to_vec(), 0.5)
}

#[cfg(test)]
mod tests {
    //! Goal: only measurements are accepted, and quantiles follow the definition. Method: values
    //! calculated by hand; quantiles from numpy 2.4.6, `quantile`.
    use super::*;

    #[test]
    fn only_measurements_get_through() {
        assert!(measured(&[]).is_none());
        for wrong in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e101, -1e101] {
            assert!(measured(&[1.0, wrong]).is_none(), "{wrong}");
        }
        assert!(measured(&[-1e100, 0.0, 1e100]).is_some());
        for wrong in [0.0, -0.0, -1.0, 1e-101, f64::NAN] {
            assert!(positive(&[1.0, wrong]).is_none(), "{wrong}");
        }
        assert!(positive(&[1e-100, 1e100]).is_some());
    }

    #[test]
    fn quantiles_lie_between_values() {
        let values = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0];
        for (level, wanted) in [(0.0, 1.0), (0.25, 1.75), (0.5, 3.5), (0.75, 5.25), (1.0, 9.0)] {
            assert_eq!(quantile(&mut values.to_vec(), level), wanted, "{level}");
        }
        assert_eq!(quantile(&mut [7.0], 0.3), 7.0);
        assert_eq!(median(&[2.0, 1.0]), 1.5);
    }

    #[test]
    fn equal_values_have_their_value_as_mean() {
        for count in 1..20 {
            let values = vec![0.1; count];
            assert_eq!(mean(&values), 0.1);
            assert_eq!(deviation(&values), (count > 1).then_some(0.0));
        }
    }
}

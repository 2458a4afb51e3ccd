//! Detects whether values depend on the order of the runs. A drive that heats up, fills up or is
//! throttled slows down from run to run, and the mean of such runs is meaningless.

use itertools::Itertools;
use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, StudentsT};

use super::rank::doubled_ranks;
use super::{SIGNIFICANT_P, sample};

/// Maximum number of runs for an exact p over all orders. 9! orders take milliseconds; 10! take ten
/// times as long.
pub const EXACT_ORDER_MAX: usize = 9;

/// Minimum number of runs for an order to be significant: 2 of 5! orders are less than 5 %, but 2
/// of 4! are not.
const RUNS_MIN: usize = 5;

/// Direction of a trend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Later runs have higher values.
    Rising,
    /// Later runs have lower values.
    Falling,
    /// No trend beyond chance.
    None,
    /// Too few runs to distinguish any order from chance.
    TooFewRuns,
}

/// Correlation of values and run order.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trend {
    /// Spearman's rank correlation of value and order, in -1..=1; 0 if all values are equal.
    pub rho: f64,
    /// Two-sided p value: the probability of a correlation at least this strong if the order has no
    /// effect.
    pub p: f64,
    /// Conclusion.
    pub direction: Direction,
}

/// Returns the trend in `values`, given in the order of their runs. Returns `None` for fewer than 3
/// runs, or if a value cannot be a measurement (see [`super::MAGNITUDE_MAX`]).
///
/// For up to [`EXACT_ORDER_MAX`] runs, p is exact, including ties: it is the share of all orders
/// with at least this correlation. For more runs, it is Student's approximation with n - 2 degrees
/// of freedom.
///
/// Source: Spearman, "The Proof and Measurement of Association between Two Things", American
/// Journal of Psychology 15 (1904); both p values: Kendall and Gibbons, "Rank Correlation Methods",
/// 5th edition (1990), chapter 4.
pub(crate) fn trend(values: &[f64]) -> Option<Trend> {
    let n = sample::measured(values).filter(|values| values.len() >= 3)?.len();
    let ranks: Vec<i64> = doubled_ranks(values).into_iter().map(|rank| rank as i64).collect();
    let covariance = covariance(&ranks);
    let spread = |ranks: &mut dyn Iterator<Item = i64>| {
        // The mean of the doubled ranks is n + 1.
        ranks.map(|rank| (rank - n as i64 - 1).pow(2) as f64).sum::<f64>()
    };
    let both = spread(&mut ranks.iter().copied()) * spread(&mut (1..=n as i64).map(|at| 2 * at));
    let rho = if both > 0.0 { (covariance as f64 / both.sqrt()).clamp(-1.0, 1.0) } else { 0.0 };
    let p = if n <= EXACT_ORDER_MAX { exact_p(&ranks, covariance) } else { student_p(rho, n)? };
    let direction = if n < RUNS_MIN {
        Direction::TooFewRuns
    } else if p >= SIGNIFICANT_P {
        Direction::None
    } else if rho > 0.0 {
        Direction::Rising
    } else {
        Direction::Falling
    };
    Some(Trend { rho, p, direction })
}

/// Returns the sum of products of doubled ranks and doubled positions, both relative to their mean.
fn covariance(ranks: &[i64]) -> i64 {
    let mean = ranks.len() as i64 + 1;
    let places = (1..).map(|at| 2 * at - mean);
    ranks.iter().zip(places).map(|(rank, place)| (rank - mean) * place).sum()
}

/// Returns the share of all orders of `ranks` whose covariance is at least as far from zero as
/// `observed`.
fn exact_p(ranks: &[i64], observed: i64) -> f64 {
    let (mut far, mut all) = (0u32, 0u32);
    for order in ranks.iter().copied().permutations(ranks.len()) {
        all += 1;
        far += u32::from(covariance(&order).abs() >= observed.abs());
    }
    f64::from(far) / f64::from(all)
}

fn student_p(rho: f64, n: usize) -> Option<f64> {
    let freedom = (n - 2) as f64;
    let t = rho.abs() * (freedom / (1.0 - rho * rho)).sqrt();
    // Only one of n! orders correlates perfectly; its share in Student's distribution is zero.
    if t.is_infinite() {
        return Some(0.0);
    }
    Some(2.0 * StudentsT::new(0.0, 1.0, freedom).ok()?.sf(t))
}

#[cfg(test)]
mod tests {
    //! Goal: correlation and p agree with other implementations. Method: scipy 1.17.1, `spearmanr`;
    //! p of few runs by enumerating `itertools.permutations` of `rankdata`.
    use super::*;

    fn check(values: &[f64], rho: f64, p: f64, direction: Direction) {
        let trend = trend(values).expect("measurements");
        assert!((trend.rho - rho).abs() < 1e-9, "{values:?}: {trend:?}");
        assert!((trend.p - p).abs() < 1e-9, "{values:?}: {trend:?}");
        assert_eq!(trend.direction, direction, "{values:?}");
    }

    #[test]
    fn few_runs_are_counted_out() {
        let falling = [5.0, 4.0, 4.5, 3.0, 1.0, 2.0, 0.5];
        check(&falling, -0.9285714285714288, 34.0 / 5040.0, Direction::Falling);
        check(&[1.0, 2.0, 3.0, 4.0, 5.0], 1.0, 2.0 / 120.0, Direction::Rising);
        let tied = [2.0, 1.0, 2.0, 3.0, 3.0, 5.0, 4.0];
        check(&tied, 0.8910563851303024, 48.0 / 5040.0, Direction::Rising);
        check(&[1.0, 1.0, 1.0, 2.0, 2.0], 0.8660254037844386, 0.2, Direction::None);
        check(&[1.0, 2.0, 3.0, 4.0], 1.0, 2.0 / 24.0, Direction::TooFewRuns);
        let nine: Vec<f64> = (0..9).map(f64::from).collect();
        check(&nine, 1.0, 2.0 / 362_880.0, Direction::Rising);
    }

    #[test]
    fn many_runs_are_approximated() {
        let throttled = [10.0, 9.5, 9.8, 9.1, 9.3, 8.7, 8.9, 8.8, 8.1, 8.3, 7.9, 8.0];
        check(&throttled, -0.9510489510489512, 2.0384246324655774e-6, Direction::Falling);
        let tied = [3.0, 1.0, 2.0, 2.0, 3.0, 1.0, 4.0, 2.0, 1.0, 3.0, 2.0, 2.0];
        check(&tied, -0.007362700356183045, 0.981882164164597, Direction::None);
        let straight: Vec<f64> = (0..40).map(f64::from).collect();
        check(&straight, 1.0, 0.0, Direction::Rising);
    }

    #[test]
    fn equal_runs_have_no_trend() {
        for count in [5, 9, 10, 40] {
            check(&vec![7.0; count], 0.0, 1.0, Direction::None);
        }
        check(&[7.0; 3], 0.0, 1.0, Direction::TooFewRuns);
        assert!(trend(&[1.0, 2.0]).is_none());
    }
}

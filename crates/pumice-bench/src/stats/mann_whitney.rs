//! The Mann-Whitney U test (Wilcoxon's rank-sum test): whether two samples differ in rank.
//!
//! Makes no assumption about the distribution, so that one slow run neither hides nor creates a
//! difference. Does not measure the size of a difference: `comparison` does.

use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, Normal};

use super::rank::{doubled_ranks, tie_term};
use super::sample;

/// Maximum number of runs in both samples for an exact p: counts stay exact in a double (below
/// 2^53), and counting takes a millisecond.
pub const EXACT_RUNS_MAX: usize = 50;

/// Result of the test.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MannWhitney {
    /// U of the second sample: the number of pairs in which its value is greater, equal values
    /// counting half; from 0 to the product of the sample sizes.
    pub u: f64,
    /// Two-sided p value: the probability of ranks at least this far apart if order is chance.
    pub p: f64,
}

/// Tests `base` against `other`; p is symmetric. Returns `None` if either sample is empty or has a
/// value that cannot be a measurement (see [`super::MAGNITUDE_MAX`]).
///
/// Up to [`EXACT_RUNS_MAX`] runs p is exact, including ties: the share of all assignments of the
/// ranks that lie as far from the middle. Above, it is the normal approximation, corrected for ties
/// and continuity.
///
/// Source: Mann and Whitney, "On a Test of Whether one of Two Random Variables is Stochastically
/// Larger than the Other", Annals of Mathematical Statistics 18 (1947); the corrections: Hollander,
/// Wolfe and Chicken, "Nonparametric Statistical Methods", 3rd edition (2014), section 4.1.
pub fn mann_whitney(base: &[f64], other: &[f64]) -> Option<MannWhitney> {
    let both = [sample::measured(base)?, sample::measured(other)?].concat();
    let ranks = doubled_ranks(&both);
    let sum: u64 = ranks[base.len()..].iter().sum();
    let others = other.len() as u64;
    let u = (sum - others * (others + 1)) as f64 / 2.0;
    let p = if both.len() <= EXACT_RUNS_MAX {
        exact_p(&ranks, other.len(), sum)
    } else {
        approximate_p(&ranks, base.len(), other.len(), u)
    };
    Some(MannWhitney { u, p })
}

/// Returns the smallest p that samples of these sizes can have: all values of one above all of the
/// other.
pub(super) fn least_p(base: usize, other: usize) -> f64 {
    let steps = 1..=base.min(other);
    let ways = steps.fold(1.0, |ways, k| ways * (base + other + 1 - k) as f64 / k as f64);
    (2.0 / ways).min(1.0)
}

/// Returns the share of all choices of `count` of the doubled `ranks` whose sum is at least as far
/// from the mean of such sums as `sum` is.
fn exact_p(ranks: &[u64], count: usize, sum: u64) -> f64 {
    // All doubled ranks add up to n (n + 1), which bounds every sum.
    let sums = ranks.iter().sum::<u64>() as usize + 1;
    // ways[k][s]: choices of k of the ranks so far that add up to s.
    let mut ways = vec![vec![0.0; sums]; count + 1];
    ways[0][0] = 1.0;
    for &rank in ranks {
        let rank = rank as usize;
        for k in (1..=count).rev() {
            let (below, from) = ways.split_at_mut(k);
            let (more, fewer) = (from[0][rank..].iter_mut(), &below[k - 1]);
            more.zip(fewer).for_each(|(more, fewer)| *more += fewer);
        }
    }
    let middle = (count * (ranks.len() + 1)) as u64;
    let distance = sum.abs_diff(middle);
    let far = |&(s, _): &(usize, &f64)| (s as u64).abs_diff(middle) >= distance;
    let far: f64 = ways[count].iter().enumerate().filter(far).map(|(_, ways)| ways).sum();
    far / ways[count].iter().sum::<f64>()
}

fn approximate_p(ranks: &[u64], base: usize, other: usize, u: f64) -> f64 {
    let (n, pairs) = (ranks.len() as f64, base as f64 * other as f64);
    let variance = pairs / 12.0 * (n + 1.0 - tie_term(ranks) / (n * (n - 1.0)));
    let distance = ((u - pairs / 2.0).abs() - 0.5).max(0.0);
    if distance == 0.0 {
        // Also if all values are equal and the variance is zero.
        return 1.0;
    }
    2.0 * Normal::standard().sf(distance / variance.sqrt())
}

#[cfg(test)]
mod tests {
    //! Goal: U and p as others compute them. Method: scipy 1.17.1, `mannwhitneyu(other, base)` with
    //! `method='exact'` or `'asymptotic'`; with ties and few runs by going through all ways to
    //! choose (`itertools.combinations` over `rankdata`).
    use super::*;

    fn test(base: &[f64], other: &[f64]) -> (f64, f64) {
        let forth = mann_whitney(base, other).expect("measurements");
        let back = mann_whitney(other, base).expect("measurements");
        assert_eq!(forth.u + back.u, (base.len() * other.len()) as f64);
        assert!((forth.p - back.p).abs() < 1e-12);
        (forth.u, forth.p)
    }

    fn series(count: u32, step: f64, from: f64) -> Vec<f64> {
        (0..count).map(|index| f64::from(index) * step + from).collect()
    }

    #[test]
    fn few_runs_are_counted_out() {
        let base = [412.1, 398.7, 405.3, 401.9, 420.4, 399.2, 407.7];
        let (u, p) = test(&base, &[431.0, 418.2, 440.9, 409.9, 436.1]);
        assert!(u == 32.0 && (p - 14.0 / 792.0).abs() < 1e-12, "{u} {p}");
        let (u, p) = test(&series(25, 2.0, 0.0), &series(25, 2.0, 9.0));
        assert!(u == 415.0 && (p - 0.047161706806839204).abs() < 1e-12, "{u} {p}");
    }

    #[test]
    fn few_runs_with_ties_are_counted_out() {
        let (u, p) = test(&[1.0, 2.0, 2.0, 3.0, 3.0, 4.0], &[2.0, 3.0, 4.0, 4.0, 5.0]);
        assert!(u == 23.0 && (p - 98.0 / 462.0).abs() < 1e-12, "{u} {p}");
        assert_eq!(test(&[7.0; 4], &[7.0; 6]), (12.0, 1.0));
        // An approximation would say 0.047.
        let (_, p) = test(&[1.0; 3], &[2.0; 3]);
        assert!((p - 0.1).abs() < 1e-12, "{p}");
    }

    #[test]
    fn many_runs_are_approximated() {
        let (u, p) = test(&series(40, 1.0, 0.0), &series(20, 1.25, 0.1));
        assert!(u == 250.0 && (p - 0.019060426155085672).abs() < 1e-9, "{u} {p}");
        let repeat = |count: u32, from: u32| -> Vec<f64> {
            (0..count).map(|index| f64::from(index * 7 % 20 + from)).collect()
        };
        let (u, p) = test(&repeat(30, 0), &repeat(26, 3));
        assert!(u == 508.5 && (p - 0.05230004348454363).abs() < 1e-9, "{u} {p}");
        assert_eq!(test(&[7.0; 40], &[7.0; 60]), (1200.0, 1.0));
    }

    #[test]
    fn the_least_p_is_that_of_samples_apart() {
        for (base, other, wanted) in
            [(3, 3, 0.1), (4, 4, 2.0 / 70.0), (3, 5, 2.0 / 56.0), (1, 1, 1.0), (25, 25, 1.582e-14)]
        {
            let least = least_p(base as usize, other as usize);
            assert!((least / wanted - 1.0).abs() < 1e-3, "{base} {other}: {least}");
            let (_, p) = test(&series(base, 1.0, 0.0), &series(other, 1.0, 100.0));
            assert!((least / p - 1.0).abs() < 1e-9, "{base} {other}: {p}");
        }
    }
}

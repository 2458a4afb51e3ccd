//! Tests whether two targets that took turns differ: a randomization test over whole rounds.
//!
//! ```text
//! round     1     2     3    ...    n
//! A, B    ratio ratio ratio      ratio     of every cell: if the targets are alike, each round's
//!           +     -     +          -       ratios could equally well be inverted
//! ```
//!
//! If the targets are equal, each of the 2^n ways to swap the targets within rounds is as likely as
//! the measured arrangement. p is the share of arrangements in which *any* cell has a difference at
//! least as clear as the measured one. The probability of a false positive is therefore at most 5 %
//! for any distribution of the noise and any number of cells, even if one disturbance changes all
//! cells of a round. An effect on a whole session, such as the current speed of a shared disk,
//! affects both targets of each round and cancels out.
//!
//! The statistic is from Student's paired test on logarithms of ratios, transformed to a normal
//! scale so that cells with different numbers of rounds can be compared.
//!
//! Source: Westfall and Young, "Resampling-Based Multiple Testing" (1993), algorithm 2.8 (step-down
//! maxT), with the sign changes of Fisher, "The Design of Experiments" (1935), chapter III; the
//! transformation: Wallace, "Bounds on Normal Approximations to Student's and the Chi-Square
//! Distributions", Annals of Mathematical Statistics 30 (1959).

use rand_xoshiro::rand_core::Rng;

use super::SIGNIFICANT_P;
use pumice_drive::base::seed::random;

/// Maximum number of rounds for which all sign changes are enumerated. Above that, the same number
/// of sign changes is drawn from the seed. The sign of the first round is fixed, because a
/// statistic and its negative are equivalent.
const EXACT_ROUNDS_MAX: usize = 13;
const DRAWN: usize = 4096;

/// Relative rounding error allowed in the largest statistic.
const ROUNDING: f64 = 1e-9;

/// Logarithms of one cell's ratios by round; `None` for a round in which the cell was not measured
/// on both targets.
pub(super) type LogRatios = Vec<Option<f64>>;

/// Returns the smallest number of rounds for which p, multiplied by `families`, can be significant.
pub(super) fn rounds_wanted(families: usize) -> usize {
    let least = |rounds: &usize| families as f64 * least_p(*rounds) < SIGNIFICANT_P;
    (2..64).find(least).unwrap_or(64)
}

/// Returns the smallest possible p for this number of rounds.
pub(super) fn least_p(rounds: usize) -> f64 {
    0.5_f64.powi(rounds.min(1000).saturating_sub(1) as i32)
}

/// Returns p for each cell, corrected for the number of cells. Cells without rounds have a p of 1.
pub(super) fn p_values(cells: &[LogRatios], seed: u64) -> Vec<f64> {
    let rounds = cells.iter().map(Vec::len).max().unwrap_or(0);
    let all: Vec<Statistic<'_>> = cells.iter().map(|cell| Statistic::new(cell)).collect();
    let measured: Vec<f64> = all.iter().map(|one| one.of(&|_| false)).collect();
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.sort_by(|&a, &b| measured[b].total_cmp(&measured[a]));
    let mut reached = vec![0_usize; all.len()];
    let mut changes = 0;
    for change in sign_changes(rounds, seed) {
        changes += 1;
        let mut greatest = 0.0_f64;
        // From the least clear cell upward, each competes with the cells that are no clearer.
        for &cell in order.iter().rev() {
            greatest = greatest.max(all[cell].of(&|round| change[round]));
            reached[cell] += usize::from(greatest >= measured[cell] * (1.0 - ROUNDING));
        }
    }
    let mut p = vec![1.0; all.len()];
    let mut floor = 0.0_f64;
    for cell in order {
        floor = floor.max(reached[cell] as f64 / f64::from(changes.max(1)));
        p[cell] = if all[cell].rounds == 0 { 1.0 } else { floor };
    }
    p
}

/// Returns sign changes for `rounds` rounds, starting with the unchanged signs: either all sign
/// changes, or a random selection.
fn sign_changes(rounds: usize, seed: u64) -> impl Iterator<Item = Vec<bool>> {
    let is_exact = rounds <= EXACT_ROUNDS_MAX;
    let count = if is_exact { 1 << rounds.saturating_sub(1) } else { DRAWN };
    let mut random = random(seed);
    (0..count).map(move |number: usize| {
        let mut bits = 0;
        let sign = |round: usize| {
            if is_exact {
                return round > 0 && number >> (round - 1) & 1 == 1;
            }
            if round.is_multiple_of(64) {
                bits = random.next_u64();
            }
            // The measured signs are one of the selected arrangements.
            number > 0 && round > 0 && bits >> (round % 64) & 1 == 1
        };
        (0..rounds).map(sign).collect()
    })
}

/// The statistic of one cell, for any signs of its rounds.
struct Statistic<'a> {
    ratios: &'a [Option<f64>],
    rounds: usize,
    /// Product of the sum of squares and the number of rounds: the square of the greatest possible
    /// sum.
    greatest: f64,
    /// Factor and degrees of freedom used in the transformation.
    factor: f64,
    freedom: f64,
}

impl<'a> Statistic<'a> {
    fn new(ratios: &'a [Option<f64>]) -> Self {
        let rounds = ratios.iter().flatten().count();
        let squares: f64 = ratios.iter().flatten().map(|ratio| ratio * ratio).sum();
        let freedom = rounds.saturating_sub(1) as f64;
        let factor = (8.0 * freedom + 1.0) / (8.0 * freedom + 3.0);
        Self { ratios, rounds, greatest: squares * rounds as f64, factor, freedom }
    }

    /// Returns the statistic, at least 0, with the rounds selected by `is_swapped` swapped.
    fn of(&self, is_swapped: &dyn Fn(usize) -> bool) -> f64 {
        if self.greatest <= 0.0 || self.rounds < 2 {
            return 0.0;
        }
        let signed = |(round, ratio): (usize, &Option<f64>)| {
            ratio.map(|ratio| if is_swapped(round) { -ratio } else { ratio })
        };
        let sum: f64 = self.ratios.iter().enumerate().filter_map(signed).sum();
        // The square of t divided by its degrees of freedom equals share / (1 - share).
        let share = (sum * sum / self.greatest).min(1.0 - f64::EPSILON);
        self.factor * (self.freedom * -(1.0 - share).ln()).sqrt()
    }
}

#[cfg(test)]
mod tests {
    //! Goal: p is the share of sign changes that are at least as clear, over all cells. Method:
    //! enumeration by hand; many rounds are compared with two million sign changes in numpy 2.4.6.
    use super::*;

    fn cell(ratios: &[f64]) -> LogRatios {
        ratios.iter().copied().map(Some).collect()
    }

    #[test]
    fn one_cell_is_the_sign_flip_test() {
        // All have the same sign: only this arrangement and its negative are as clear.
        assert_eq!(p_values(&[cell(&[0.3, 0.2, 0.4, 0.1, 0.2, 0.3])], 1), [1.0 / 32.0]);
        // The smallest of six has the opposite sign: 2 of 32 sums are as large.
        assert_eq!(p_values(&[cell(&[0.3, 0.2, 0.4, -0.1, 0.2, 0.3])], 1), [2.0 / 32.0]);
        assert_eq!(p_values(&[cell(&[0.0; 6])], 1), [1.0]);
        assert_eq!(p_values(&[cell(&[0.1, -0.1])], 1), [1.0]);
        assert!(p_values(&[], 1).is_empty());
    }

    #[test]
    fn cells_that_say_the_same_cost_nothing() {
        let clear = cell(&[0.3, 0.2, 0.4, 0.1, 0.2, 0.3]);
        assert_eq!(p_values(&vec![clear; 50], 1), [1.0 / 32.0; 50]);
    }

    #[test]
    fn a_clear_cell_does_not_make_others_clear() {
        let clear = cell(&[0.30, 0.31, 0.29, 0.30, 0.31, 0.30, 0.29, 0.30]);
        let noise = cell(&[0.01, -0.02, 0.015, -0.01, 0.02, -0.005, 0.01, -0.015]);
        let p = p_values(&[noise, clear, vec![None; 8]], 1);
        assert!(p[0] > 0.5 && p[1] == 1.0 / 128.0 && p[2] == 1.0, "{p:?}");
    }

    #[test]
    fn missing_rounds_are_left_out() {
        let whole = cell(&[0.3, 0.2, 0.4, 0.1, 0.2, 0.3]);
        let mut part = whole.clone();
        part.extend([None, None]);
        let long = cell(&[0.3, 0.2, 0.4, 0.1, 0.2, 0.3, 0.2, 0.4]);
        let p = p_values(&[part, long], 1);
        assert!(p[0] >= 1.0 / 32.0 && p[1] <= 2.0 / 128.0, "{p:?}");
    }

    #[test]
    fn many_rounds_are_drawn() {
        let noise: LogRatios = (0..20).map(|i| Some(f64::from(i * 7 % 20) - 8.0)).collect();
        let drawn = p_values(std::slice::from_ref(&noise), 1);
        assert_eq!(drawn, p_values(&[noise], 1));
        assert!((drawn[0] - 0.284).abs() < 0.03, "{drawn:?}");
        assert_eq!(p_values(&[cell(&[0.1; 100])], 1), [1.0 / 4096.0]);
    }

    #[test]
    fn enough_rounds_are_named() {
        assert_eq!([1, 2, 3, 4, 6, 7].map(rounds_wanted), [6, 7, 7, 8, 8, 9]);
        assert_eq!(rounds_wanted(usize::MAX), 64);
        assert_eq!((least_p(0), least_p(1), least_p(6)), (1.0, 1.0, 1.0 / 32.0));
    }
}

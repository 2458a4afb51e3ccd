//! Compares two targets: their ratio, and whether the difference is significant.
//!
//! ```text
//! in turns   both targets in every round of one session: pairs, see `turns`
//! visits     each target in a session of its own: Welch's test on logarithms, in which the
//!            difference of the sessions counts as noise
//! ```
//!
//! Two sessions on one machine differ by more than their runs show: the disk contains other files,
//! the load differs, the temperature differs. A difference between two visits therefore counts only
//! if it is clearly larger than [`VISIT_SPREAD`], and visits cannot reveal small differences at
//! all; turns can.
//!
//! Ratios are between geometric means: means of logarithms, whose errors are symmetric.
//! `NoDifference` means that no difference was observed, not that none exists.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use statrs::distribution::ContinuousCDF;

use super::interval::{Interval, half_width, student};
use super::turns::{self, LogRatios};
use super::{SIGNIFICANT_P, sample};

/// Standard deviation of the factor that one visit to a machine adds to its results, as a fraction;
/// for the difference between two visits, it is multiplied by the square root of two. This value is
/// a convention. With it, a factor of 1.2 is found in nine of ten comparisons of 8 runs of 12 cells
/// with 5 % noise, and a difference of 3 % caused by the visit is reported in fewer than one in
/// twenty.
pub const VISIT_SPREAD: f64 = 0.03;

/// Minimum number of runs of each target in a visit. With 3 and 3 runs, one arrangement in ten is
/// ordered.
pub(crate) const VISIT_RUNS_MIN: usize = 4;

/// Which values are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Better {
    /// Higher values, for rates.
    Higher,
    /// Lower values, for times.
    Lower,
}

/// Conclusion about a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The other target is better than the base, and this is unlikely to be chance.
    Faster,
    /// The other target is worse than the base, and this is unlikely to be chance.
    Slower,
    /// No difference beyond chance.
    NoDifference,
    /// Too few runs to distinguish any difference from chance.
    TooFewRuns,
}

/// The experimental design of the measurement of two targets.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Design {
    /// Both targets in every round of one session.
    Turns,
    /// Each target in a separate session; sessions differ by this share, which is 0 in virtual
    /// time.
    Visits(f64),
}

impl Design {
    /// Returns the design used to judge `rounds` rounds if `families` targets are compared with the
    /// base. Turns with too few rounds are judged as visits.
    pub fn of_rounds(self, rounds: usize, families: usize) -> Self {
        match self {
            Self::Turns if rounds < turns::rounds_wanted(families.max(1)) => {
                Self::Visits(VISIT_SPREAD)
            }
            other => other,
        }
    }
}

/// A comparison of two samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Comparison {
    /// Which values are better.
    pub better: Better,
    /// The other target's geometric mean as a multiple of the base's.
    pub ratio: f64,
    /// 95 % interval of the ratio, including the difference between visits; `None` with fewer than
    /// 3 rounds, or 2 runs per visit.
    pub ratio_interval: Option<Interval>,
    /// Two-sided p value, corrected for the number of cells and targets.
    pub p: f64,
    /// Runs of each target.
    pub runs: usize,
    /// Minimum number of runs of each target for a difference to be significant.
    pub runs_wanted: usize,
    /// Conclusion.
    pub verdict: Verdict,
}

/// One cell of two targets: values by round, `None` for missing rounds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pair {
    /// Values of the base.
    pub base: Vec<Option<f64>>,
    /// Values of the other target.
    pub other: Vec<Option<f64>>,
}

/// Compares all cells of two targets. A cell has no comparison if it is missing on one of them, or
/// has a value that is not above zero or cannot be a measurement (see [`super::MAGNITUDE_MAX`]).
///
/// `families` is the number of targets that are compared with the base; p is corrected for the
/// number of cells and of these targets. For turns with few rounds see [`Design::of_rounds`].
/// `seed` is used to draw sign changes.
///
/// In comparisons of 12 equal cells and 8 runs with 5 % noise, at most 5 % report any difference,
/// for any distribution of the noise (turns), or for normal noise and visits that differ by
/// [`VISIT_SPREAD`] (visits); `stats::tests` has the measured shares.
///
/// Source of the test for visits: Welch, "The Generalization of Student's Problem when Several
/// Different Population Variances are Involved", Biometrika 34 (1947).
pub fn compare(
    cells: &[Pair],
    design: Design,
    better: Better,
    families: usize,
    seed: u64,
) -> Vec<Option<Comparison>> {
    let families = families.max(1);
    let wanted = turns::rounds_wanted(families);
    let ratios: Vec<Option<LogRatios>> = cells.iter().map(Pair::log_ratios).collect();
    let rounds = |ratios: &LogRatios| ratios.iter().flatten().count();
    let most = ratios.iter().flatten().map(rounds).max().unwrap_or(0);
    let mut compared: Vec<Option<Comparison>> = match design.of_rounds(most, families) {
        Design::Turns => {
            let known: Vec<LogRatios> = ratios.into_iter().map(Option::unwrap_or_default).collect();
            // Cells with too few rounds cannot be significant, and would prevent other cells from
            // being significant.
            let tested = |one: &LogRatios| {
                if rounds(one) < wanted { LogRatios::new() } else { one.clone() }
            };
            let tested: Vec<LogRatios> = known.iter().map(tested).collect();
            let p = turns::p_values(&tested, seed).into_iter().zip(known);
            p.map(|(p, ratios)| of_turns(&ratios, better, p, wanted)).collect()
        }
        Design::Visits(spread) => visits(cells, spread, better),
    };
    for comparison in compared.iter_mut().flatten() {
        comparison.p = (comparison.p * families as f64).min(1.0);
        comparison.verdict = comparison.judge();
    }
    compared
}

/// Returns the p values of several tests, in the given order, corrected so that the probability of
/// at least one false positive stays below the significance limit. Values that are not
/// probabilities count as 1.
///
/// Source: Holm, "A Simple Sequentially Rejective Multiple Test Procedure", Scandinavian Journal of
/// Statistics 6 (1979).
fn holm(p: &[f64]) -> Vec<f64> {
    let mut corrected: Vec<f64> =
        p.iter().map(|p| if (0.0..=1.0).contains(p) { *p } else { 1.0 }).collect();
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|&a, &b| corrected[a].total_cmp(&corrected[b]));
    let mut floor = 0.0_f64;
    for (index, at) in order.into_iter().enumerate() {
        floor = floor.max(corrected[at] * (p.len() - index) as f64).min(1.0);
        corrected[at] = floor;
    }
    corrected
}

impl Pair {
    /// Returns a cell whose targets were measured in separate rounds.
    pub fn of(base: &[f64], other: &[f64]) -> Self {
        let known = |values: &[f64]| values.iter().copied().map(Some).collect();
        Self { base: known(base), other: known(other) }
    }

    /// Returns the logarithms of each target's values; `None` if any value is not a rate or time.
    fn logs(&self) -> Option<[Vec<f64>; 2]> {
        let logs = |values: &[Option<f64>]| {
            let values: Vec<f64> = values.iter().copied().flatten().collect();
            Some(sample::positive(&values)?.iter().map(|value| value.ln()).collect())
        };
        Some([logs(&self.base)?, logs(&self.other)?])
    }

    /// Returns the logarithms of the ratios in the rounds that both targets have.
    fn log_ratios(&self) -> Option<LogRatios> {
        self.logs()?;
        let rounds = self.base.iter().zip(&self.other);
        Some(rounds.map(|(base, other)| Some((other.as_ref()? / base.as_ref()?).ln())).collect())
    }
}

fn of_turns(ratios: &LogRatios, better: Better, p: f64, wanted: usize) -> Option<Comparison> {
    let known: Vec<f64> = ratios.iter().copied().flatten().collect();
    let mean = sample::mean(sample::measured(&known)?);
    let half = if known.len() < 3 { None } else { sample::deviation(&known) };
    let half = half.and_then(|deviation| {
        let n = known.len() as f64;
        half_width(deviation / n.sqrt(), n - 1.0)
    });
    Some(Comparison::new(mean, half, better, p, known.len(), wanted))
}

/// Compares cells whose targets were measured in separate sessions, corrected for the number of
/// cells.
fn visits(cells: &[Pair], spread: f64, better: Better) -> Vec<Option<Comparison>> {
    let mut compared: Vec<Option<Comparison>> =
        cells.iter().map(|cell| of_visits(&cell.logs()?, spread, better)).collect();
    let p: Vec<f64> = compared.iter().flatten().map(|comparison| comparison.p).collect();
    for (comparison, p) in compared.iter_mut().flatten().zip(holm(&p)) {
        comparison.p = p;
    }
    compared
}

fn of_visits(logs: &[Vec<f64>; 2], spread: f64, better: Better) -> Option<Comparison> {
    let [base, other] = logs.each_ref();
    let difference = sample::mean(other) - sample::mean(base);
    // Squared standard errors of both means and of the visits.
    let error = |values: &[f64]| Some(sample::deviation(values)?.powi(2) / values.len() as f64);
    let errors = error(base).zip(error(other)).map(|(base, other)| [base, other]);
    let of_visit = 2.0 * (1.0 + spread).ln().powi(2);
    let runs = base.len().min(other.len());
    let Some([one, two]) = errors else {
        return Some(Comparison::new(difference, None, better, 1.0, runs, VISIT_RUNS_MIN));
    };
    let all = one + two + of_visit;
    let share = |square: f64, n: usize| square * square / (n - 1) as f64;
    // Infinite, or NaN, without any spread.
    let freedom = all * all / (share(one, base.len()) + share(two, other.len()));
    let p = match difference.abs() / all.sqrt() {
        distance if distance.is_finite() => 2.0 * student(freedom)?.sf(distance),
        _ if difference == 0.0 => 1.0,
        _ => 0.0,
    };
    let half = half_width(all.sqrt(), freedom);
    Some(Comparison::new(difference, half, better, p, runs, VISIT_RUNS_MIN))
}

impl Comparison {
    /// Returns a comparison without a verdict, from a mean of logarithms, half the width of its
    /// interval, and p.
    fn new(
        mean: f64,
        half: Option<f64>,
        better: Better,
        p: f64,
        runs: usize,
        wanted: usize,
    ) -> Self {
        // A few runs with widely different values could exceed the range of a double.
        let limited = |log: f64| log.exp().clamp(1.0 / sample::RATIO_MAX, sample::RATIO_MAX);
        let ends = |half: f64| Interval { low: limited(mean - half), high: limited(mean + half) };
        let verdict = Verdict::NoDifference;
        let (ratio, ratio_interval) = (limited(mean), half.map(ends));
        Self { better, ratio, ratio_interval, p, runs, runs_wanted: wanted, verdict }
    }

    /// Returns the comparison judged by another [`Better`]. The test is two-sided, so only the
    /// verdict changes.
    #[must_use]
    pub(crate) fn with_better(mut self, better: Better) -> Self {
        self.better = better;
        self.verdict = self.judge();
        self
    }

    fn judge(&self) -> Verdict {
        match self.ratio_interval {
            None => Verdict::TooFewRuns,
            Some(_) if self.runs < self.runs_wanted => Verdict::TooFewRuns,
            Some(interval) if self.p >= SIGNIFICANT_P || interval.contains(1.0) => {
                Verdict::NoDifference
            }
            Some(_) if (self.ratio > 1.0) == (self.better == Better::Higher) => Verdict::Faster,
            Some(_) => Verdict::Slower,
        }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a difference is reported only if one may exist. Method: samples with an obvious
    //! answer; Welch's test against scipy 1.17.1, `ttest_ind(log, log, equal_var=False)`; Holm's
    //! correction against the formula in numpy 2.4.6.
    use super::*;

    const BASE: [f64; 6] = [100.0, 103.0, 98.0, 101.0, 99.5, 102.0];

    fn one(base: &[f64], other: &[f64], design: Design) -> Comparison {
        let all = compare(&[Pair::of(base, other)], design, Better::Higher, 1, 1);
        all[0].expect("measurements")
    }

    fn both(base: &[f64], other: &[f64]) -> [Verdict; 2] {
        [Design::Turns, Design::Visits(VISIT_SPREAD)].map(|design| one(base, other, design).verdict)
    }

    #[test]
    fn a_clear_difference_has_a_direction() {
        let more = BASE.map(|value| value * 1.2);
        let comparison = one(&BASE, &more, Design::Turns);
        let interval = comparison.ratio_interval.expect("enough runs");
        assert!((comparison.ratio - 1.2).abs() < 1e-12 && (interval.high - 1.2).abs() < 1e-9);
        assert_eq!((comparison.p, comparison.runs), (1.0 / 32.0, 6));
        assert_eq!(both(&BASE, &more), [Verdict::Faster; 2]);
        assert_eq!(both(&more, &BASE), [Verdict::Slower; 2]);
        let pair = [Pair::of(&BASE, &more)];
        let lower = compare(&pair, Design::Turns, Better::Lower, 1, 1)[0].expect("measurements");
        assert_eq!(lower.verdict, Verdict::Slower);
    }

    #[test]
    fn common_effects_of_a_session_cancel_out_in_turns_only() {
        // The disk slows down from round to round, by more than the difference between the targets.
        let base = [400.0, 320.0, 250.0, 210.0, 160.0, 100.0];
        let other = base.map(|value| value * 0.9);
        assert_eq!(both(&base, &other), [Verdict::Slower, Verdict::NoDifference]);
        // Two visits that differ by 4 % do not show a difference between drives; turns would.
        let other = BASE.map(|value| value * 0.96);
        assert_eq!(both(&BASE, &other), [Verdict::Slower, Verdict::NoDifference]);
    }

    #[test]
    fn visits_match_welch() {
        let other = [95.0, 91.0, 99.0, 94.0, 96.0, 90.5, 93.0];
        let comparison = one(&BASE, &other, Design::Visits(0.0));
        assert!((comparison.p - 0.000_726_652_73).abs() < 1e-10, "{comparison:?}");
        let interval = comparison.ratio_interval.expect("enough runs");
        assert!((interval.low - 0.906_425_0).abs() < 1e-6, "{interval:?}");
        assert!((interval.high - 0.964_459_0).abs() < 1e-6, "{interval:?}");
        assert_eq!(comparison.verdict, Verdict::Slower);
        assert_eq!(one(&BASE, &other, Design::Visits(0.03)).verdict, Verdict::NoDifference);
        // Virtual time has neither noise nor visits.
        let [same, other] =
            [5.0, 5.01].map(|value| one(&[5.0; 4], &[value; 4], Design::Visits(0.0)));
        assert_eq!((same.verdict, same.p), (Verdict::NoDifference, 1.0));
        assert_eq!((other.verdict, other.p), (Verdict::Faster, 0.0));
    }

    #[test]
    fn no_difference_is_claimed_where_none_is() {
        assert_eq!(both(&BASE, &BASE), [Verdict::NoDifference; 2]);
        let stalled = [106.0, 107.0, 108.0, 109.0, 105.0, 30.0];
        assert_eq!(both(&BASE, &stalled), [Verdict::NoDifference; 2]);
    }

    #[test]
    fn too_few_runs_are_called_so_with_the_number_that_would_do() {
        for (runs, families, verdict, wanted) in [
            (3, 1, Verdict::TooFewRuns, 4),
            // Turns with fewer than six rounds are judged as visits.
            (5, 1, Verdict::Faster, 4),
            (6, 1, Verdict::Faster, 6),
            (6, 2, Verdict::Faster, 4),
            (7, 2, Verdict::Faster, 7),
        ] {
            let pair = Pair::of(&vec![5.0; runs], &vec![9.0; runs]);
            let all = compare(&[pair], Design::Turns, Better::Higher, families, 1);
            let compared = all[0].expect("measurements");
            assert_eq!((compared.verdict, compared.runs_wanted), (verdict, wanted), "{runs}");
        }
        // A cell that was measured in fewer rounds than the others.
        let cells = [Pair::of(&[5.0; 6], &[9.0; 6]), Pair::of(&[5.0; 5], &[9.0; 5])];
        let all = compare(&cells, Design::Turns, Better::Higher, 1, 1);
        let verdicts: Vec<_> = all.iter().map(|one| one.expect("measured").verdict).collect();
        assert_eq!(verdicts, [Verdict::Faster, Verdict::TooFewRuns]);
    }

    #[test]
    fn unmeasured_tests_are_not_compared() {
        let gap = Pair { base: vec![Some(5.0), None], other: vec![None, Some(9.0)] };
        let cells = [gap, Pair::of(&[5.0], &[]), Pair::of(&[5.0], &[0.0]), Pair::default()];
        for design in [Design::Turns, Design::Visits(0.1)] {
            let all = compare(&cells, design, Better::Higher, 1, 1);
            assert_eq!(all.iter().flatten().count(), 1, "{all:?}");
            assert_eq!(all[0].expect("both have a run").verdict, Verdict::TooFewRuns);
        }
        assert!(compare(&[], Design::Turns, Better::Higher, 0, 1).is_empty());
    }

    #[test]
    fn several_tests_are_corrected() {
        for (corrected, wanted) in
            holm(&[0.01, 0.04, 0.03, 0.005]).into_iter().zip([0.03, 0.06, 0.06, 0.02])
        {
            assert!((corrected - wanted).abs() < 1e-12, "{corrected}");
        }
        assert_eq!(holm(&[0.7, f64::NAN, -1.0, 0.6]), [1.0; 4]);
        assert!(holm(&[]).is_empty());
    }
}

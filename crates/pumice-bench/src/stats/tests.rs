//! Goal: intervals have their stated coverage, and numbers that cannot be measurements are handled
//! safely.
//!
//! Method: samples from lognormal distributions, whose mean is known, with fixed seeds; the
//! measured shares are in the docs of `Summary::of` and `compare`. Every function is called with
//! every kind of invalid sample.

use rand_xoshiro::rand_core::Rng;
use statrs::distribution::{ContinuousCDF, Normal};

use super::*;
use pumice_drive::base::seed::{Random, random};

/// Number of samples used to estimate a share; the estimate is accurate to 1 to 2 points (one
/// standard error).
const SAMPLES: u32 = 250;

const ONE: Interval = Interval { low: 1.0, high: 1.0 };

fn lognormal(sigma: f64, count: usize, random: &mut Random) -> Vec<f64> {
    let mut one = || {
        let uniform = ((random.next_u64() >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
        (sigma * Normal::standard().inverse_cdf(uniform)).exp()
    };
    (0..count).map(|_| one()).collect()
}

/// Returns the share of samples for which `holds`, called with a random source, is true.
fn share(mut holds: impl FnMut(&mut Random) -> bool) -> f64 {
    let mut random = random(2024);
    let held = (0..SAMPLES).filter(|_| holds(&mut random)).count();
    held as f64 / f64::from(SAMPLES)
}

#[test]
fn intervals_of_the_mean_cover_it() {
    for (sigma, n, wanted) in [
        (0.05, 3, 0.95),
        (0.05, 5, 0.95),
        (0.05, 10, 0.95),
        (0.25, 3, 0.95),
        (0.25, 10, 0.94),
        (0.5, 5, 0.91),
        (1.0, 10, 0.84),
    ] {
        let mean = (sigma * sigma / 2.0_f64).exp();
        let covered = share(|random| {
            let summary = Summary::of(&lognormal(sigma, n, random)).expect("measurements");
            summary.mean_interval.expect("enough runs").contains(mean)
        });
        assert!((covered - wanted).abs() < 0.04, "sigma {sigma}, n {n}: {covered}");
    }
}

#[test]
fn intervals_of_a_ratio_cover_it() {
    for (sigma, visit) in [(0.05, 0.0), (0.5, 0.0), (0.02, VISIT_SPREAD)] {
        for n in [3, 5, 10] {
            for design in [Design::Turns, Design::Visits(visit)] {
                let covered = share(|random| {
                    let spread = (1.0 + visit).ln();
                    let session = Session { sigma, visit: spread, design, ..Session::default() };
                    let pair = session.pair(n, 3.0, random);
                    let compared = compare(&[pair], design, Better::Higher, 1, 1)[0];
                    let interval = compared.expect("measured").ratio_interval;
                    interval.expect("enough runs").contains(3.0)
                });
                // Turns with few rounds are judged as visits, and have a higher coverage.
                let most = if design == Design::Turns && n < 6 { 1.0 } else { 0.98 };
                let told = format!("{sigma} {visit} {n} {design:?}: {covered}");
                assert!((0.92..=most).contains(&covered), "{told}");
            }
        }
    }
}

/// The noise distribution of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Noise {
    #[default]
    Normal,
    /// Half of the runs are twice as long.
    TwoModes,
    /// One run in ten is three times as long.
    Stalls,
}

/// Two targets in one session or in two.
#[derive(Clone, Copy, Debug)]
struct Session {
    /// Spread of a run's logarithm.
    sigma: f64,
    noise: Noise,
    /// Spread of the logarithmic difference between sessions, independent for every cell.
    visit: f64,
    design: Design,
}

impl Default for Session {
    fn default() -> Self {
        Self { sigma: 0.05, noise: Noise::Normal, visit: 0.0, design: Design::Turns }
    }
}

impl Session {
    /// Returns a cell with this many runs of two targets with a known ratio.
    fn pair(&self, runs: usize, ratio: f64, random: &mut Random) -> Pair {
        let mut sessions = [0.0; 2].map(|_| lognormal(self.visit, 1, random)[0]);
        if self.design == Design::Turns {
            sessions[1] = sessions[0];
        }
        let mut values = |factor: f64| -> Vec<f64> {
            let values = lognormal(self.sigma, runs, random);
            values.into_iter().map(|value| value * factor * self.slow(random)).collect()
        };
        let [base, other] = [values(sessions[0]), values(sessions[1] * ratio)];
        Pair::of(&base, &other)
    }

    fn slow(&self, random: &mut Random) -> f64 {
        let draw = random.next_u64() >> 32;
        match self.noise {
            Noise::Normal => 1.0,
            Noise::TwoModes => [1.0, 0.5][draw as usize % 2],
            Noise::Stalls => {
                if draw.is_multiple_of(10) {
                    0.33
                } else {
                    1.0
                }
            }
        }
    }

    /// Returns the share of comparisons for which `holds` is true. Each has `cells` cells, and the
    /// first cell has `ratio`.
    fn share(&self, cells: usize, runs: usize, ratio: f64, holds: fn(&[Verdict]) -> bool) -> f64 {
        let mut number = 0;
        share(|random| {
            number += 1;
            let ratio = |cell: usize| if cell == 0 { ratio } else { 1.0 };
            let pairs = (0..cells).map(|cell| self.pair(runs, ratio(cell), random));
            let pairs: Vec<Pair> = pairs.collect();
            let all = compare(&pairs, self.design, Better::Higher, 1, number);
            let verdicts: Vec<_> = all.iter().map(|one| one.expect("measured").verdict).collect();
            holds(&verdicts)
        })
    }
}

fn is_claim(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Faster | Verdict::Slower)
}

/// Guards against false alarms caused by treating two sessions as one, by a correction that omits
/// cells, and by noise that is not normal.
#[test]
fn few_differences_are_made_up() {
    let (turns, visits) = (Design::Turns, Design::Visits(VISIT_SPREAD));
    for (design, noise, sigma, visit) in [
        (turns, Noise::Normal, 0.05, 0.0),
        (turns, Noise::Normal, 0.02, 0.05),
        (turns, Noise::TwoModes, 0.01, 0.0),
        (turns, Noise::Stalls, 0.05, 0.1),
        (visits, Noise::Normal, 0.05, 0.0),
        (visits, Noise::Normal, 0.05, 0.03),
        (visits, Noise::Normal, 0.02, 0.02),
        (visits, Noise::Stalls, 0.05, 0.02),
    ] {
        let session = Session { sigma, noise, visit, design };
        let claims = session.share(12, 8, 1.0, |all| all.iter().any(is_claim));
        // Two standard errors above 5 %.
        assert!(claims <= 0.05 + 0.028, "{session:?}: {claims}");
    }
}

#[test]
fn a_difference_that_is_there_is_found() {
    for design in [Design::Turns, Design::Visits(VISIT_SPREAD)] {
        let session = Session { design, ..Session::default() };
        let is_found =
            |all: &[Verdict]| all[0] == Verdict::Slower && !all[1..].iter().any(is_claim);
        let found = session.share(12, 8, 1.0 / 1.2, is_found);
        assert!(found >= 0.9, "{design:?}: {found}");
    }
}

#[test]
fn the_smallest_detectable_difference_is_predicted() {
    let (turns, visits) = (Design::Turns, Design::Visits(VISIT_SPREAD));
    for (design, visit, cells, runs) in
        [(turns, 0.0, 12, 8), (turns, 0.0, 1, 6), (turns, 0.0, 30, 10), (visits, 0.03, 12, 8)]
    {
        let planned = Planned { cells, families: 1, runs, noise: 0.05, design };
        let ratio = planned.detectable().expect("enough runs");
        let session = Session { visit, design, ..Session::default() };
        let found = session.share(cells, runs, ratio, |all| all[0] == Verdict::Faster);
        assert!((0.85..=0.98).contains(&found), "{planned:?}: {found} of {ratio}");
    }
    let few = Planned { cells: 12, families: 1, runs: 3, noise: 0.05, design: turns };
    assert_eq!(few.detectable(), None);
    assert_eq!(Planned { design: visits, ..few }.detectable(), None);
}

#[test]
fn invalid_samples_have_an_answer_everywhere() {
    let good = [1.0, 2.0, 3.0, 4.0, 5.0];
    let mut bad: Vec<Vec<f64>> = vec![vec![]];
    for wrong in [f64::NAN, -f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MAX, f64::MIN] {
        bad.extend([vec![wrong], vec![wrong; 6], vec![1.0, 2.0, wrong, 3.0, 4.0, 5.0]]);
    }
    for values in &bad {
        assert!(Summary::of(values).is_none(), "{values:?}");
        assert!(outliers(values).is_none(), "{values:?}");
        assert!(trend(values).is_none(), "{values:?}");
        for pair in [Pair::of(values, &good), Pair::of(&good, values)] {
            for design in [Design::Turns, Design::Visits(0.0)] {
                let all = compare(std::slice::from_ref(&pair), design, Better::Lower, 1, 1);
                assert_eq!(all, [None], "{values:?}");
            }
        }
        assert_eq!(enough(values, Goal::default()), Progress::Continue, "{values:?}");
        assert!(steady(values).last.is_none_or(|window| window.average > 0.0), "{values:?}");
    }
}

#[test]
fn extreme_measurements_give_finite_numbers() {
    let samples: [&[f64]; 6] = [
        &[1e100, -1e100, 1e100, 1e100, 3.0],
        &[5e-324, 0.0, 5e-324, 1e-323, 1e100],
        &[1e100; 6],
        &[-0.0, 0.0, -0.0, 0.0, 0.0],
        &[1e-100, 1e100, 1e-100, 1e100, 1e-100],
        &[3.0],
    ];
    let finite = |json: serde_json::Result<String>, of: &[f64]| {
        // JSON cannot represent infinity or NaN: serde_json writes null.
        assert!(!json.expect("JSON").contains("null"), "{of:?}");
    };
    for values in samples {
        let summary = Summary::of(values).expect("measurements");
        assert!(summary.mean.is_finite() && summary.deviation.is_none_or(f64::is_finite));
        assert!(summary.variation.is_none_or(f64::is_finite));
        finite(serde_json::to_string(&outliers(values).unwrap_or_default()), values);
        if let Some(trend) = trend(values) {
            finite(serde_json::to_string(&trend), values);
        }
        if let Some(window) = steady(values).last {
            finite(serde_json::to_string(&window), values);
        }
        for design in [Design::Turns, Design::Visits(0.0)] {
            let pair = Pair::of(samples[4], values);
            for comparison in compare(&[pair], design, Better::Higher, 1, 1).into_iter().flatten() {
                let whole = Comparison {
                    ratio_interval: comparison.ratio_interval.or(Some(ONE)),
                    ..comparison
                };
                finite(serde_json::to_string(&whole), values);
            }
        }
    }
}

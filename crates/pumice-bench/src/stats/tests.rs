//! Goal: intervals cover what they say, and numbers that cannot be measurements harm nothing.
//!
//! Method: samples from lognormal distributions, whose mean is known, with seeds that stay; the
//! measured shares stand in the docs of `Summary::of` and `compare`. Every function on every kind
//! of bad sample.

use rand_xoshiro::rand_core::Rng;
use statrs::distribution::{ContinuousCDF, Normal};

use super::*;
use pumice_drive::base::seed::{Random, random};

/// Samples for a share: it is right to 2 points (one standard error).
const SAMPLES: u32 = 250;

fn lognormal(sigma: f64, count: usize, random: &mut Random) -> Vec<f64> {
    let mut one = || {
        let uniform = ((random.next_u64() >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
        (sigma * Normal::standard().inverse_cdf(uniform)).exp()
    };
    (0..count).map(|_| one()).collect()
}

/// In which share of the samples `holds`, given a random source and a seed.
fn share(mut holds: impl FnMut(&mut Random, u64) -> bool) -> f64 {
    let mut random = random(2024);
    let held = (0..SAMPLES).filter(|seed| holds(&mut random, u64::from(*seed))).count();
    held as f64 / f64::from(SAMPLES)
}

#[test]
fn intervals_of_the_mean_cover_it() {
    for (sigma, n, wanted) in
        [(0.25, 5, 0.91), (0.25, 10, 0.94), (0.25, 30, 0.94), (0.5, 5, 0.89), (1.0, 10, 0.85)]
    {
        let mean = (sigma * sigma / 2.0_f64).exp();
        let covered = share(|random, seed| {
            let summary = Summary::of(&lognormal(sigma, n, random), seed).expect("measurements");
            summary.mean_interval.expect("enough runs").contains(mean)
        });
        assert!((covered - wanted).abs() < 0.06, "sigma {sigma}, n {n}: {covered}");
    }
}

#[test]
fn intervals_of_a_ratio_cover_it_and_few_differences_are_made_up() {
    for (base, other) in [(5, 5), (10, 10), (5, 30)] {
        let mut claimed = 0;
        let covered = share(|random, seed| {
            let base = lognormal(0.5, base, random);
            let other: Vec<f64> = lognormal(0.5, other, random).iter().map(|x| x * 3.0).collect();
            let comparison = compare(&base, &other, Better::Higher, seed).expect("measurements");
            let same: Vec<f64> = other.iter().map(|value| value / 3.0).collect();
            let same = compare(&base, &same, Better::Higher, seed).expect("measurements");
            claimed += u32::from(same.verdict != Verdict::NoDifference);
            comparison.ratio_interval.expect("enough runs").contains(3.0)
        });
        assert!(covered >= 0.92, "{base} against {other}: {covered}");
        assert!(claimed <= SAMPLES / 16, "{base} against {other}: {claimed} made up");
    }
}

#[test]
fn what_is_no_sample_has_an_answer_everywhere() {
    let good = [1.0, 2.0, 3.0, 4.0, 5.0];
    let mut bad: Vec<Vec<f64>> = vec![vec![]];
    for wrong in [f64::NAN, -f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MAX, f64::MIN] {
        bad.extend([vec![wrong], vec![wrong; 6], vec![1.0, 2.0, wrong, 3.0, 4.0, 5.0]]);
    }
    for values in &bad {
        assert!(Summary::of(values, 1).is_none(), "{values:?}");
        assert!(outliers(values).is_none(), "{values:?}");
        assert!(trend(values).is_none(), "{values:?}");
        assert!(mann_whitney(values, &good).is_none(), "{values:?}");
        assert!(mann_whitney(&good, values).is_none(), "{values:?}");
        assert!(compare(values, &good, Better::Lower, 1).is_none(), "{values:?}");
        assert!(compare(&good, values, Better::Lower, 1).is_none(), "{values:?}");
        assert_eq!(enough(values, Goal::default(), 1), Progress::Continue, "{values:?}");
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
        // JSON has no number for what is not finite: serde_json writes null.
        assert!(!json.expect("JSON").contains("null"), "{of:?}");
    };
    for values in samples {
        let summary = Summary::of(values, 1).expect("measurements");
        assert!(summary.mean.is_finite() && summary.deviation.is_none_or(f64::is_finite));
        assert!(summary.variation.is_none_or(f64::is_finite));
        finite(serde_json::to_string(&outliers(values).unwrap_or_default()), values);
        finite(serde_json::to_string(&mann_whitney(values, samples[0])), values);
        if let Some(trend) = trend(values) {
            finite(serde_json::to_string(&trend), values);
        }
        if let Some(window) = steady(values).last {
            finite(serde_json::to_string(&window), values);
        }
        if values.len() > 2
            && let Some(comparison) = compare(samples[4], values, Better::Higher, 1)
        {
            finite(serde_json::to_string(&comparison), values);
        }
    }
}

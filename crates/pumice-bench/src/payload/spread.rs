//! A synthetic profile that behaves like real data with a given saving.
//!
//! On 1 GiB of a system's files, LZ4 saves 40 % in 4 KiB chunks with a deviation of 25 points; 14 %
//! of the chunks save less than 5 %, and 1.5 % save more than 90 %. zstd:1 saves 12 points more;
//! chunks of 16 KiB save 4 points more, and chunks of 64 KiB 7 points more. The numbers below
//! reproduce this at 40 % and scale to other savings. The scaling is a guess.

use std::sync::Arc;

use rand_xoshiro::rand_core::Rng;

use super::measure::Meter;
use super::profile::{Profile, Savings, UNIT_BYTES, UNITS, WindowProfile};
use super::saving::Saving;
use super::texture::Library;
use super::weave::Weave;
use crate::error::{Error, Result};
use pumice_drive::base::seed::{Random, random};
use pumice_drive::codec::Codec;

/// Number of windows. Each represents 0.2 % of the data.
const WINDOWS: usize = 512;

/// Share of windows with almost no saving, at a mean of 40 %.
const FLAT_SHARE: f64 = 0.12;

/// The mean above which some windows are zeroes except for a few fresh bytes in each unit, and the
/// share of these windows at a mean of 100 %. Without them, means that exceed the savings of codecs
/// on most data are not possible.
const FILLS_FROM: f64 = 0.8;
const FILLS_SHARE: f64 = 0.9;

/// Variation between windows, and between the units of a window: standard deviations of the
/// log-odds.
const WINDOW_SPREAD: f64 = 1.0;
const UNIT_SPREAD: f64 = 0.35;

/// Range of the zstd:1 size relative to the LZ4 size, for units with at least this LZ4 saving. With
/// smaller LZ4 savings, the gain of zstd decreases proportionally, because such data is mostly
/// compressed already.
const ZSTD_STORES: (f64, f64) = (0.60, 0.92);
const ZSTD_GAINS_FROM: f64 = 0.25;

/// Gain of 16 KiB chunks over 4 KiB, and of 64 KiB chunks over 16 KiB, at a saving of 50 %.
const GAIN_16: f64 = 0.045;
const GAIN_64: f64 = 0.026;

/// Number of trials for calibrating the mean of spread data. The third rarely changes anything.
const SPREAD_TRIALS: usize = 4;

/// Number of units in all windows of a spread. Each trial measures one in three of them.
const SPREAD_TRIAL_UNITS: u64 = 512 * 16;
const SPREAD_TRIAL_STEP: usize = 3;

/// Error in percentage points below which the trials stop, and error above which the best trial is
/// refused.
const SPREAD_MISS_POINTS: f64 = 0.1;
const SPREAD_MISS_POINTS_MAX: f64 = 0.5;

/// Returns a spread with the correct mean for `codec`. The profile is fitted for LZ4 and no texture
/// fits exactly, so each trial corrects the requested saving by the measured error.
///
/// # Errors
/// [`Error::Invalid`] if distinct units cannot reach a saving that large or that small with this
/// codec.
pub(super) fn calibrated(saved: Saving, codec: Codec, seed: u64) -> Result<Weave> {
    let mut wanted = saved;
    let mut best: Option<(f64, Saving, Weave)> = None;
    let library = Arc::new(Library::new(seed));
    let mut unit = vec![0; UNIT_BYTES];
    for _ in 0..SPREAD_TRIALS {
        let weave = Weave::new(&profile(wanted), Arc::clone(&library)).with_stamps();
        let mut meter = Meter::new(codec);
        for number in (0..SPREAD_TRIAL_UNITS).step_by(SPREAD_TRIAL_STEP) {
            weave.fill(0, number, &mut unit);
            meter.add(&unit);
        }
        let measured = meter.tally().saved();
        let miss = measured.points_from(saved);
        wanted = Saving::from_fraction(wanted.fraction() + saved.fraction() - measured.fraction());
        if best.as_ref().is_none_or(|(least, ..)| miss < *least) {
            best = Some((miss, measured, weave));
        }
        if miss < SPREAD_MISS_POINTS {
            break;
        }
    }
    let (miss, measured, weave) = best.expect("there was a trial");
    if miss > SPREAD_MISS_POINTS_MAX {
        let (asked, best) = (saved.percent(), measured.percent());
        return Err(Error::invalid(format!(
            "cannot save {asked:.2} %: units that differ as in real data, no two of them equal, \
             come no nearer than {best:.2} % with {codec} (for more: kind exact, up to 98.9 %, or \
             kind byte:0)"
        )));
    }
    Ok(weave)
}

/// Returns a profile whose units have an average saving of `saved` with LZ4.
pub(super) fn profile(saved: Saving) -> Profile {
    // The windows do not depend on the seed, which determines only the bytes.
    let mean = saved.fraction();
    let flat = FLAT_SHARE * ((1.0 - mean) / 0.6).min(1.0);
    let fills = FILLS_SHARE * ((mean - FILLS_FROM) / (1.0 - FILLS_FROM)).max(0.0);
    let (mut low, mut high) = (-12.0, 12.0);
    for _ in 0..40 {
        let middle = (low + high) / 2.0;
        let fits = mean_of(&windows(middle, flat, fills)) < mean;
        (low, high) = if fits { (middle, high) } else { (low, middle) };
    }
    Profile::new(windows(low, flat, fills), Saving::NONE, 0)
}

fn mean_of(windows: &[WindowProfile]) -> f64 {
    windows.iter().map(|window| window.mean().lz4).sum::<f64>() / windows.len() as f64
}

/// Returns windows: the share `flat` saves almost nothing, the share `fills` is zeroes, and the
/// rest is spread around `center`.
fn windows(center: f64, flat: f64, fills: f64) -> Vec<WindowProfile> {
    let mut random = random(1);
    let one = |index| {
        let rank = (index as f64 + 0.5) / WINDOWS as f64;
        if rank < flat {
            // Already compressed data: the centre of the log-odds is at 1 %.
            return window(-4.6, 1.0, &mut random);
        }
        if rank > 1.0 - fills {
            let all = Savings { lz4: 1.0, zstd: 1.0 };
            return WindowProfile { units: [None; UNITS], middle: all, whole: all };
        }
        let normal = normal_quantile((rank - flat) / (1.0 - flat - fills));
        let (from, to) = ZSTD_STORES;
        let zstd_stores = from + (to - from) * fraction(&mut random);
        window(center + WINDOW_SPREAD * normal, zstd_stores, &mut random)
    };
    (0..WINDOWS).map(one).collect()
}

fn window(center: f64, zstd_stores: f64, random: &mut Random) -> WindowProfile {
    let mut profile = WindowProfile::default();
    for index in 0..UNITS {
        let normal = normal_quantile(fraction(random));
        let lz4 = 1.0 / (1.0 + (-center - UNIT_SPREAD * normal).exp());
        let gains = (1.0 - zstd_stores) * (lz4 / ZSTD_GAINS_FROM).min(1.0);
        profile.units[index] = Some(Savings { lz4, zstd: 1.0 - (1.0 - lz4) * (1.0 - gains) });
    }
    let mean = profile.mean();
    let gained = |from: Savings, gain: f64| {
        let lz4 = gain * 4.0 * mean.lz4 * (1.0 - mean.lz4);
        Savings { lz4: from.lz4 + lz4, zstd: from.zstd + lz4 * zstd_stores }
    };
    profile.middle = gained(mean, GAIN_16);
    profile.whole = gained(profile.middle, GAIN_64);
    profile
}

/// Returns a fraction in (0, 1).
fn fraction(random: &mut Random) -> f64 {
    ((random.next_u64() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
}

/// Returns the quantile of the normal distribution, accurate to about 0.0005.
///
/// Source: Abramowitz and Stegun, "Handbook of Mathematical Functions", 26.2.23.
fn normal_quantile(probability: f64) -> f64 {
    let tail = probability.min(1.0 - probability);
    let t = (-2.0 * tail.ln()).sqrt();
    let above = 2.515517 + t * (0.802853 + t * 0.010328);
    let below = 1.0 + t * (1.432788 + t * (0.189269 + t * 0.001308));
    (t - above / below).copysign(probability - 0.5)
}

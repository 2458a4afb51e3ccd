//! Units of which each saves what was asked: fresh bytes, then zeroes.
//!
//! How many fresh bytes it takes depends on the codec's overhead, so it is measured, not computed.

use super::measure::Meter;
use super::pool::{Pool, WINDOW_BYTES};
use super::saving::Saving;
use crate::error::{Error, Result};
use pumice_drive::codec::Codec;

/// Fresh bytes of a unit at least: enough that no two units of a drive are alike.
const FRESH_BYTES_MIN: usize = 16;

/// Units compressed for each trial. What fresh bytes save is nearly the same for all.
const TRIAL_UNITS: usize = 8;

/// Points by which the best trial may miss what was asked.
const MISS_POINTS_MAX: f64 = 0.5;

/// The fresh bytes with which a unit of `unit_bytes` comes nearest to `saved`.
///
/// # Errors
/// No unit that is not the same as another saves so much with this codec: `InvalidInput`.
pub(super) fn fresh_bytes(
    pool: &Pool,
    saved: Saving,
    codec: Codec,
    unit_bytes: usize,
) -> Result<usize> {
    let mut trial = vec![0; TRIAL_UNITS * unit_bytes];
    let mut saved_with = |fresh: usize| {
        let mut meter = Meter::new(codec);
        for (index, unit) in trial.chunks_mut(unit_bytes).enumerate() {
            let offset = index * unit_bytes % WINDOW_BYTES;
            fill(pool, fresh, Place { base: 0, window: 0, offset }, unit);
        }
        meter.add_chunks(&trial, unit_bytes);
        meter.tally().saved()
    };
    // The more fresh bytes, the less is saved.
    let (mut low, mut high) = (FRESH_BYTES_MIN, unit_bytes);
    while low < high {
        let middle = (low + high) / 2;
        if saved_with(middle) > saved {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    let candidates = [low.saturating_sub(1).max(FRESH_BYTES_MIN), low];
    let misses = candidates.map(|fresh| (saved_with(fresh).points_from(saved), fresh));
    let (points, fresh) = if misses[0].0 < misses[1].0 { misses[0] } else { misses[1] };
    if points > MISS_POINTS_MAX {
        let asked = saved.percent();
        let best = saved_with(FRESH_BYTES_MIN).percent();
        return Err(Error::invalid(format!(
            "cannot save {asked:.2} %: units of {unit_bytes} bytes that all differ save at \
                 most {best:.2} % with {codec} (units of one byte repeated: kind byte:0)"
        )));
    }
    Ok(fresh)
}

/// Where a unit's fresh bytes come from.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) base: u64,
    pub(super) window: u64,
    pub(super) offset: usize,
}

/// Fills `target` with the beginning of a unit.
#[inline]
pub(super) fn fill(pool: &Pool, fresh: usize, place: Place, target: &mut [u8]) {
    let fresh = fresh.min(target.len());
    let (literals, zeroes) = target.split_at_mut(fresh);
    pool.fill(place.base, place.window, place.offset, literals);
    zeroes.fill(0);
}

//! Units that all have the requested saving: fresh random bytes, then zeroes.
//!
//! The number of fresh bytes depends on the codec's overhead, so it is measured rather than
//! computed.

use super::measure::Meter;
use super::pool::{Pool, WINDOW_BYTES};
use super::saving::Saving;
use crate::error::{Error, Result};
use pumice_drive::codec::Codec;

/// Minimum number of fresh bytes in a unit: enough to make all units of a drive distinct.
const FRESH_BYTES_MIN: usize = 16;

/// Number of units compressed in each trial. All units with the same number of fresh bytes have
/// nearly the same saving.
const TRIAL_UNITS: usize = 8;

/// Maximum difference between the best trial and the requested saving, in percentage points.
const MISS_POINTS_MAX: f64 = 0.5;

/// Returns the number of fresh bytes that brings the saving of a unit of `unit_bytes` closest to
/// `saved`.
///
/// # Errors
/// [`Error::Invalid`] if distinct units cannot reach that saving with this codec.
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
            fill(pool, fresh, PoolPosition { base: 0, window: 0, offset }, unit);
        }
        meter.add_chunks(&trial, unit_bytes);
        meter.tally().saved()
    };
    // More fresh bytes reduce the saving.
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

/// Position of a unit's fresh bytes in the pool.
#[derive(Clone, Copy)]
pub(super) struct PoolPosition {
    pub(super) base: u64,
    pub(super) window: u64,
    pub(super) offset: usize,
}

/// Fills `target` with the first bytes of a unit.
#[inline]
pub(super) fn fill(pool: &Pool, fresh: usize, position: PoolPosition, target: &mut [u8]) {
    let fresh = fresh.min(target.len());
    let (literals, zeroes) = target.split_at_mut(fresh);
    pool.fill(position.base, position.window, position.offset, literals);
    zeroes.fill(0);
}

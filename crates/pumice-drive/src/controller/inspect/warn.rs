//! Warnings about space: how much of the capacity is in use, and whether that passed a threshold.
//!
//! The share in use is live bytes, metadata included, of the bytes of the segments that data may
//! take: all but the reserves. A threshold that is passed upwards is logged once, and again only
//! after the share fell [`REARM_POINTS`] below it, so that a drive that hovers there does not fill
//! the log. Refuses nothing: `core::room` does.

use std::cell::Cell;

use super::super::core::{Purpose, WARN_THRESHOLDS_MAX};
use super::super::drive::Drive;
use crate::base::Clock;
use crate::media::Medium;

/// How far below a threshold, in per cent of the capacity, re-arms it.
const REARM_POINTS: f64 = 2.0;

/// Returns the highest threshold that `used_percent` has passed since the last call, if any.
/// `passed` says which thresholds have been passed and logged.
fn newly_passed(
    passed: &Cell<[bool; WARN_THRESHOLDS_MAX]>,
    used_percent: f64,
    thresholds: [u8; WARN_THRESHOLDS_MAX],
) -> Option<u8> {
    let mut now = passed.get();
    let mut highest = None;
    for (passed, threshold) in now.iter_mut().zip(thresholds) {
        let at = f64::from(threshold);
        if threshold > 0 && used_percent >= at && !*passed {
            *passed = true;
            highest = highest.max(Some(threshold));
        } else if used_percent < at - REARM_POINTS {
            *passed = false;
        }
    }
    passed.set(now);
    highest
}

impl<M: Medium, C: Clock> Drive<M, C> {
    /// Returns the share of the capacity in use, in per cent; above 100 if the reserves hold data.
    pub(crate) fn used_percent(&self) -> f64 {
        let core = self.core();
        let space = core.space();
        let segments = space.segment_count().saturating_sub(core.reserved_segments(Purpose::Data));
        let usable = u64::from(segments) * u64::from(core.superblock().segment_bytes);
        space.live_bytes() as f64 * 100.0 / usable.max(1) as f64
    }

    /// Returns the thresholds at which this opening of the drive warns.
    fn warn_percent(&self) -> [u8; WARN_THRESHOLDS_MAX] {
        self.options.warn_percent.unwrap_or(self.core().superblock().warn_percent)
    }

    /// Returns the thresholds that the share in use has reached, lowest first.
    pub(crate) fn warnings(&self) -> Vec<u8> {
        let used_percent = self.used_percent();
        let reached = |threshold: &u8| *threshold > 0 && used_percent >= f64::from(*threshold);
        let mut reached: Vec<u8> = self.warn_percent().into_iter().filter(reached).collect();
        reached.sort_unstable();
        reached
    }

    /// Logs a threshold that was passed since the last call.
    pub(crate) fn warn_of_space(&self) {
        let used_percent = self.used_percent();
        if let Some(threshold) = newly_passed(&self.warned, used_percent, self.warn_percent()) {
            tracing::warn!(
                drive = %self.uuid(),
                "{used_percent:.1} % of the capacity is in use, above the warning threshold of \
                 {threshold} %: trim what is not needed, or extend it with \
                 `pumice resize --capacity`"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: each threshold is reported once, and again only after the share fell well below it.
    use super::*;

    #[test]
    fn a_threshold_is_reported_once_until_it_is_left() {
        let warned = Cell::default();
        let thresholds = [80, 90, 95, 0];
        let shares = [
            (0.0, None),
            (79.9, None),
            (80.0, Some(80)),
            (85.0, None),
            (78.5, None),
            (81.0, None),
            (96.0, Some(95)),
            (94.0, None),
            (96.0, None),
            (77.9, None),
            (80.1, Some(80)),
            (100.0, Some(95)),
        ];
        for (share, reported) in shares {
            assert_eq!(newly_passed(&warned, share, thresholds), reported, "at {share}");
        }
        assert_eq!(newly_passed(&Cell::default(), 100.0, [0; 4]), None);
    }
}

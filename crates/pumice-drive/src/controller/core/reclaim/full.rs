//! The fullness of the drive: the share of the space for data that is in use, the thresholds that
//! it has passed, and whether writes are refused.
//!
//! ```text
//! share = 1 - (free segments above the reserves + rest of the host's segment
//!              + what garbage collection can gain) / space for data
//! ```
//!
//! The share is 100 % exactly while writes are refused. Events are logged when they happen, at the
//! allocation of segments: each threshold once, until the share has fallen [`REARM_POINTS`] below
//! it; the first refused write, and the end of refusal.

use super::super::{Core, Purpose, WARN_THRESHOLDS_MAX};
use super::Reclaim;
use crate::base::units::BLOCK_BYTES;
use crate::format::{RECORD_HEADER_BYTES, Stream};

use super::super::super::log::Fit;

/// Minimum distance below a threshold, in percent of the capacity, that re-arms it.
const REARM_POINTS: f64 = 2.0;

/// Maximum share in use, in percent, while every write is accepted.
const ACCEPTING_PERCENT_MAX: f64 = 99.9;

/// The events about space that were logged.
#[derive(Debug, Default)]
pub(crate) struct Fullness {
    /// Whether a write was refused and, since then, no write was accepted and no segment for data
    /// became free.
    is_refusing: bool,
    /// Which thresholds have been passed.
    passed: [bool; WARN_THRESHOLDS_MAX],
}

/// Returns the thresholds that `used_percent` has passed since the last call, lowest first.
/// `passed` records the thresholds that have been passed and logged; a threshold is logged again
/// after the share has fallen `rearm_points` below it.
fn newly_passed(
    passed: &mut [bool; WARN_THRESHOLDS_MAX],
    used_percent: f64,
    rearm_points: f64,
    thresholds: [u8; WARN_THRESHOLDS_MAX],
) -> Vec<u8> {
    let mut newly = Vec::new();
    for (passed, threshold) in passed.iter_mut().zip(thresholds) {
        let at = f64::from(threshold);
        if threshold > 0 && used_percent >= at && !*passed {
            *passed = true;
            newly.push(threshold);
        } else if used_percent < at - rearm_points {
            *passed = false;
        }
    }
    newly.sort_unstable();
    newly
}

impl Reclaim {
    /// Returns whether a write was refused and, since then, no write was accepted and no segment
    /// for data became free.
    pub(in super::super) fn is_refusing(&self) -> bool {
        self.fullness.is_refusing
    }

    /// Records that the thresholds have changed: thresholds that are already passed are logged
    /// again.
    pub(crate) fn thresholds_changed(&mut self) {
        self.fullness.passed = Default::default();
    }
}

impl Core {
    /// Returns the share of the space for data that is in use, in percent.
    pub(crate) fn used_percent(&self) -> f64 {
        if self.is_full() {
            return 100.0;
        }
        let segment_bytes = u64::from(self.superblock.segment_bytes);
        let reserved = self.reserved_segments(Purpose::Data);
        let free = self.space.free_count();
        let has_rest = free >= reserved && self.fits_host_segment();
        let rest = if has_rest { self.unfilled(Stream::Host) } else { 0 };
        let gainable =
            self.space.gainable_bytes(self.superblock.segment_bytes, self.gain_bytes_min());
        let above = u64::from(free.saturating_sub(reserved)) * segment_bytes;
        let owed = u64::from(reserved.saturating_sub(free)) * segment_bytes;
        let available = (above + rest + gainable).saturating_sub(owed);
        let segments = self.space.usable_count().saturating_sub(reserved);
        // Other streams fill their current segments before they need new ones.
        let usable = (u64::from(segments) * segment_bytes)
            .saturating_sub(self.unfilled(Stream::Moved) + self.unfilled(Stream::Meta));
        let used = usable.saturating_sub(available) as f64 * 100.0 / usable.max(1) as f64;
        used.min(ACCEPTING_PERCENT_MAX)
    }

    /// Returns whether the next write of a block would be refused for lack of space, as far as can
    /// be determined without trying: garbage collection has found that nothing can be gained.
    pub(crate) fn is_full(&self) -> bool {
        let has_no_room = || {
            let reserved = self.reserved_segments(Purpose::Data);
            let needed = reserved + u32::from(!self.fits_host_segment());
            self.space.free_count() < needed
        };
        let nothing_to_gain = self.reclaim.is_exhausted(&self.space);
        !self.settings.is_read_only
            && nothing_to_gain
            && !self.checkpoints.is_running()
            && (self.reclaim.fullness.is_refusing || has_no_room())
    }

    /// Returns whether a segment is free for data.
    pub(in super::super) fn has_segment_for_data(&self) -> bool {
        self.space.free_count() > self.reserved_segments(Purpose::Data)
    }

    fn fits_host_segment(&self) -> bool {
        let block = BLOCK_BYTES + RECORD_HEADER_BYTES + self.seal_bytes();
        self.log.fit(Stream::Host, block, self.space.end()) != Fit::NewSegment
    }

    /// Records that a request was refused for lack of space.
    pub(in super::super) fn begin_full(&mut self, purpose: Purpose) {
        if purpose == Purpose::Data && !self.reclaim.fullness.is_refusing {
            self.reclaim.fullness.is_refusing = true;
            tracing::error!(
                drive = %self.superblock.uuid,
                "the drive is full: writes are refused; trim unneeded data, or {}",
                self.reclaim.makes_room()
            );
        }
    }

    /// Records that a request with this purpose was accepted.
    #[inline]
    pub(in super::super) fn end_full(&mut self, purpose: Purpose) {
        if purpose == Purpose::Data && self.reclaim.fullness.is_refusing {
            self.writes_are_accepted();
        }
    }

    /// Records that a segment became free.
    pub(in super::super) fn space_was_freed(&mut self) {
        if self.reclaim.fullness.is_refusing && self.has_segment_for_data() {
            self.writes_are_accepted();
        }
    }

    fn writes_are_accepted(&mut self) {
        self.reclaim.fullness.is_refusing = false;
        tracing::info!(drive = %self.superblock.uuid, "no longer full: writes are accepted");
    }

    /// Returns the thresholds that apply to this opening of the drive.
    pub(crate) fn warn_percent(&self) -> [u8; WARN_THRESHOLDS_MAX] {
        self.settings.warn_percent.unwrap_or(self.superblock.warn_percent)
    }

    /// Logs the thresholds that were passed since the last call.
    pub(crate) fn warn_of_space(&mut self) {
        let (used_percent, thresholds) = (self.used_percent(), self.warn_percent());
        // With few segments, a change of two segments is not worth a message.
        let rearm_points = REARM_POINTS.max(200.0 / f64::from(self.space.usable_count().max(1)));
        let passed = &mut self.reclaim.fullness.passed;
        // If one step passes several thresholds, only the highest is logged.
        if let Some(threshold) = newly_passed(passed, used_percent, rearm_points, thresholds).pop()
        {
            tracing::warn!(
                drive = %self.superblock.uuid,
                "{used_percent:.1} % of the {} is in use, above the warning threshold of \
                 {threshold} %: trim unneeded data, or {}",
                if self.reclaim.has_low_room() { "available space" } else { "capacity" },
                self.reclaim.makes_room()
            );
        }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: each threshold is reported once, and again only after the share has fallen well below
    //! it.
    use super::*;

    #[test]
    fn a_threshold_is_reported_once_until_it_is_left() {
        let mut passed = Default::default();
        let thresholds = [80, 90, 95, 0];
        let shares: [(f64, &[u8]); 12] = [
            (0.0, &[]),
            (79.9, &[]),
            (80.0, &[80]),
            (85.0, &[]),
            (78.5, &[]),
            (81.0, &[]),
            (96.0, &[90, 95]),
            (94.0, &[]),
            (96.0, &[]),
            (77.9, &[]),
            (80.1, &[80]),
            (100.0, &[90, 95]),
        ];
        for (share, reported) in shares {
            assert_eq!(
                newly_passed(&mut passed, share, REARM_POINTS, thresholds),
                reported,
                "at {share}"
            );
        }
        assert!(newly_passed(&mut Default::default(), 100.0, 2.0, [0; 4]).is_empty());
    }
}

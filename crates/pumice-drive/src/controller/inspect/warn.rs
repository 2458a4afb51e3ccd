//! Warnings about space, for display: the share in use and the thresholds that it has reached.
//! `core::reclaim::full` contains the rule, and logs the events.

use super::super::drive::Drive;

impl Drive {
    /// Returns the share of the space for data that is in use, in percent: 100 exactly while
    /// writes are refused.
    pub(crate) fn used_percent(&self) -> f64 {
        self.core().used_percent()
    }

    /// Returns the thresholds that the share in use has reached, lowest first.
    pub(crate) fn warnings(&self) -> Vec<u8> {
        let used_percent = self.used_percent();
        let mut thresholds = self.thresholds();
        thresholds.retain(|threshold| used_percent >= f64::from(*threshold));
        thresholds
    }

    /// Returns the thresholds at which this opening warns, lowest first.
    pub(crate) fn thresholds(&self) -> Vec<u8> {
        let mut thresholds = self.core().warn_percent().to_vec();
        thresholds.retain(|threshold| *threshold > 0);
        thresholds.sort_unstable();
        thresholds
    }
}

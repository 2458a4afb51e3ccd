//! Ranges of the medium that fail every time: sectors that a device has lost.
//!
//! ```text
//! read:  touches a range that fails reads  -> error, until the range heals
//! write: touches a range that fails writes -> error; else it heals the healing sectors it covers
//! ```

use std::ops::Range;

use super::{Region, SECTOR_BYTES};

/// Bytes at which every operation of some kind fails. A medium retains its bad ranges through every
/// change of the [plan](super::FaultPlan), until a write heals them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRange {
    /// The segment or superblock slot.
    pub region: Region,
    /// The bytes, widened to whole sectors of 512 bytes.
    pub bytes: Range<u32>,
    /// Whether reads that touch the range fail.
    pub fails_reads: bool,
    /// Whether appends and superblock writes that touch the range fail; none of their bytes arrive.
    pub fails_writes: bool,
    /// Whether a successful write makes the sectors that it covers good again, as on a device that
    /// reallocates sectors. A discard heals nothing.
    pub heals: bool,
}

impl BadRange {
    /// Returns a range that cannot be read until it is rewritten, such as a sector whose write was
    /// interrupted by a power loss.
    pub fn unreadable(region: Region, bytes: Range<u32>) -> Self {
        Self { region, bytes, fails_reads: true, fails_writes: false, heals: true }
    }

    /// Returns a range that can never be read or written.
    pub fn dead(region: Region, bytes: Range<u32>) -> Self {
        Self { region, bytes, fails_reads: true, fails_writes: true, heals: false }
    }

    fn touches(&self, region: Region, bytes: &Range<u32>) -> bool {
        let is_apart = self.bytes.end <= bytes.start || bytes.end <= self.bytes.start;
        self.region == region && !is_apart
    }
}

/// The bad ranges of a medium.
#[derive(Debug, Default)]
pub(super) struct BadRanges {
    ranges: Vec<BadRange>,
}

impl BadRanges {
    pub(super) fn ranges(&self) -> &[BadRange] {
        &self.ranges
    }

    pub(super) fn add(&mut self, range: BadRange) {
        let sector = u32::try_from(SECTOR_BYTES).expect("a sector is small");
        let Range { start, end } = range.bytes;
        let bytes = start / sector * sector..end.next_multiple_of(sector);
        self.ranges.push(BadRange { bytes, ..range });
    }

    pub(super) fn clear(&mut self) {
        self.ranges.clear();
    }

    pub(super) fn fails_read(&self, region: Region, bytes: &Range<u32>) -> bool {
        self.ranges.iter().any(|range| range.fails_reads && range.touches(region, bytes))
    }

    pub(super) fn fails_write(&self, region: Region, bytes: &Range<u32>) -> bool {
        self.ranges.iter().any(|range| range.fails_writes && range.touches(region, bytes))
    }

    /// Removes the parts of healing ranges that a successful write covers.
    pub(super) fn heal(&mut self, region: Region, bytes: &Range<u32>) {
        let (healed, kept) = std::mem::take(&mut self.ranges)
            .into_iter()
            .partition::<Vec<_>, _>(|range| range.heals && range.touches(region, bytes));
        self.ranges = kept;
        for range in healed {
            let Range { start, end } = range.bytes;
            for rest in [start..bytes.start, bytes.end..end] {
                if rest.start < rest.end {
                    self.ranges.push(BadRange { bytes: rest, ..range.clone() });
                }
            }
        }
    }
}

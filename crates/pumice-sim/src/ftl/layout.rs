//! Addresses within a segment; arithmetic only.
//!
//! ```text
//! segment   the rows of one erase block on every die, round after round: a round is one row of
//!           each die, with adjacent rows on different channels; each round begins one die after
//!           the previous one
//! stripe    adjacent rows of a round, each on another die; the last one is the parity of the
//!           others, so parity moves from die to die with the rounds
//! data      the concatenated data rows: byte `offset` of a segment
//! map entry segment x units + unit, where a unit is a multiple of the unit size in the segment
//! ```
//!
//! The unit size is a power of two. If all blocks are stored uncompressed, a unit is one block;
//! otherwise it is the smallest size for which 32 bits can address all units of the drive. Frames
//! of a compressing drive start at any byte, and the map then knows their offset only to within a
//! unit. This suffices to determine the pages that a read covers (the middle of the unit is
//! assumed), because the entry is used for timing and not for finding bytes.
//!
//! **Dies that had failed** before a segment was opened contain none of its rows. In a stripe that
//! includes such a die, the last of the other rows is the parity. Offsets do not change: the bytes
//! of a data row without data are a *hole*.

use std::ops::Range;

use super::BLOCK_BYTES;
use super::sizes::FrameSizes;
use crate::nand::FlashShape;
use crate::{Error, Result};

/// Map entry of an unmapped block.
pub(super) const UNMAPPED: u32 = u32::MAX;

/// The layout of segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    dies: u32,
    page_bytes: u32,
    pub(super) row_bytes: u32,
    /// Number of rows in a segment.
    pub(super) rows: u32,
    /// Number of data rows in a segment, excluding parity rows.
    pub(super) data_rows: u32,
    /// Number of bytes in a segment's data rows.
    pub(super) segment_bytes: u32,
    pub(super) unit_bytes: u32,
    /// Number of units in a segment.
    pub(super) units: u32,
    /// Number of rows in a stripe, including its parity; 0 without parity.
    stripe_rows: u32,
}

/// The purpose of a row of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Data,
    Parity,
    /// Unused: its die had failed when the segment was opened.
    Dead,
}

/// The location of a row: its die and its index in the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RowLocation {
    pub(super) die: u32,
    pub(super) row: u32,
}

impl Layout {
    /// Creates the layout of `segment_count` segments over all dies, with stripes of `stripe_dies`
    /// dies, or without parity.
    ///
    /// # Errors
    /// `InvalidInput` if stripes do not fit the dies, if parity leaves no space, or if 32 bits
    /// cannot address every unit.
    pub(super) fn new(
        shape: &FlashShape,
        stripe_dies: Option<u32>,
        segment_count: u32,
        frames: &FrameSizes,
    ) -> Result<Self> {
        let wrong = |what: String| Error::InvalidInput(what.into());
        let rows = u64::from(shape.dies()) * u64::from(shape.pages_per_block);
        let bytes = rows * u64::from(shape.row_bytes());
        if bytes > u64::from(u32::MAX) {
            return Err(wrong(format!("a segment of {bytes} bytes is too large to be simulated")));
        }
        let (dies, rows) = (shape.dies(), rows as u32);
        let stripe_rows = match stripe_dies {
            None => 0,
            Some(count) if count >= 2 && dies.is_multiple_of(count) => count,
            Some(count) => {
                let what = format!("a stripe of {count} dies must have at least 2");
                return Err(wrong(format!("{what}, and the {dies} dies must be whole stripes")));
            }
        };
        let data_rows = rows - rows.checked_div(stripe_rows).unwrap_or(0);
        let segment_bytes = data_rows * shape.row_bytes();
        if segment_bytes < frames.largest() {
            return Err(wrong(
                "a segment has no room for a block in addition to its parity".into(),
            ));
        }
        let is_plain = (frames.smallest(), frames.largest()) == (BLOCK_BYTES, BLOCK_BYTES);
        let mut unit_bytes = if is_plain { BLOCK_BYTES } else { 1 };
        let units = |unit_bytes: u32| segment_bytes.div_ceil(unit_bytes);
        // The last number is reserved for UNMAPPED.
        let fits = |unit| u64::from(segment_count) * u64::from(units(unit)) < UNMAPPED.into();
        while !fits(unit_bytes) && unit_bytes < frames.smallest() {
            unit_bytes *= 2;
        }
        if !fits(unit_bytes) || unit_bytes > frames.smallest() {
            let what = "a map entry of 32 bits cannot address every unit of";
            return Err(wrong(format!(
                "{what} {segment_count} segments of {segment_bytes} bytes, {} bytes apart",
                frames.smallest()
            )));
        }
        Ok(Self {
            dies: shape.dies(),
            page_bytes: shape.page_bytes,
            row_bytes: shape.row_bytes(),
            rows,
            data_rows,
            segment_bytes,
            unit_bytes,
            units: units(unit_bytes),
            stripe_rows,
        })
    }

    /// Returns the map entry for a frame at `offset` of a segment.
    #[inline]
    pub(super) fn entry(&self, segment: u32, offset: u32) -> u32 {
        segment * self.units + offset / self.unit_bytes
    }

    /// Returns the segment of a map entry.
    #[inline]
    pub(super) fn segment(&self, entry: u32) -> u32 {
        entry / self.units
    }

    /// Returns the offset of a map entry in its segment, with the precision of a unit.
    #[inline]
    pub(super) fn offset(&self, entry: u32) -> u32 {
        let begin = entry % self.units * self.unit_bytes;
        if self.unit_bytes == BLOCK_BYTES { begin } else { begin + self.unit_bytes / 2 }
    }

    /// Returns the index of the data row that contains byte `offset`.
    pub(super) fn row_of(&self, offset: u32) -> u32 {
        (offset / self.row_bytes).min(self.data_rows - 1)
    }

    /// Returns the index of the page, within its row, that contains byte `offset`.
    pub(super) fn page_of(&self, offset: u32) -> u32 {
        offset % self.row_bytes / self.page_bytes
    }

    /// Returns the row number of a data row among all rows of its segment; for `data_rows`, the
    /// number after the last row.
    pub(super) fn row_number(&self, data_row: u32) -> u32 {
        match self.stripe_rows {
            0 => data_row,
            rows => data_row / (rows - 1) * rows + data_row % (rows - 1),
        }
    }

    /// Returns the row numbers of the stripe that contains the row with this number; without
    /// parity, only that row.
    pub(super) fn stripe_of(&self, row_number: u32) -> Range<u32> {
        let rows = self.stripe_rows.max(1);
        let first = row_number / rows * rows;
        first..first + rows
    }

    /// Returns whether stripes have parity.
    pub(super) fn has_parity(&self) -> bool {
        self.stripe_rows > 0
    }

    /// Returns the purpose of the row with this number, in a segment that was opened after the dies
    /// `dead` had failed.
    pub(super) fn role(&self, row_number: u32, dead: &[u32]) -> Role {
        let is_dead = |number: u32| dead.contains(&self.row_location(number).die);
        if is_dead(row_number) {
            return Role::Dead;
        }
        let mut later = row_number + 1..self.stripe_of(row_number).end;
        let is_last = self.has_parity() && later.all(is_dead);
        if is_last { Role::Parity } else { Role::Data }
    }

    /// Returns whether a data row contains data, in a segment that was opened after the dies `dead`
    /// had failed.
    pub(super) fn has_data(&self, data_row: u32, dead: &[u32]) -> bool {
        dead.is_empty() || self.role(self.row_number(data_row), dead) == Role::Data
    }

    /// Returns the maximum number of consecutive bytes without a hole, in a segment that is opened
    /// after the dies `dead` have failed.
    pub(super) fn run_bytes_max(&self, dead: &[u32]) -> u64 {
        let (mut run, mut longest) = (0u64, 0);
        for data_row in 0..self.data_rows {
            run = if self.has_data(data_row, dead) { run + u64::from(self.row_bytes) } else { 0 };
            longest = longest.max(run);
        }
        longest
    }

    /// Returns the location of the row with this number.
    pub(super) fn row_location(&self, row_number: u32) -> RowLocation {
        let round = row_number / self.dies;
        RowLocation { die: (row_number + round) % self.dies, row: round }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: every row has one location, every entry maps back, parity is distributed evenly and
    //! survives the loss of a die, and a drive that does not fit is refused. Method: enumeration of
    //! all rows of small shapes; drives at the limit.

    use super::*;
    use crate::ftl::StoredSizes;
    use crate::ftl::sample;

    const SHAPE: FlashShape =
        FlashShape { dies_per_channel: 3, blocks_per_plane: 10, ..sample::SHAPE };

    fn frames(fraction: f64) -> FrameSizes {
        let header = if fraction < 1.0 { 24 } else { 0 };
        FrameSizes::new(&StoredSizes::Constant(fraction), 0.0, header).unwrap()
    }

    #[test]
    fn every_row_has_one_place_and_parity_moves_from_die_to_die() {
        for stripe_dies in [None, Some(2), Some(3), Some(6)] {
            let layout = Layout::new(&SHAPE, stripe_dies, 10, &frames(1.0)).unwrap();
            let parity_rows = stripe_dies.map_or(0, |dies| 48 / dies);
            assert_eq!((layout.rows, layout.data_rows), (48, 48 - parity_rows));
            let numbers = Vec::from_iter((0..=layout.data_rows).map(|row| layout.row_number(row)));
            assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
            assert_eq!(numbers[layout.data_rows as usize], 48);
            let mut seen = [false; 48];
            let mut parity = [0u32; 6];
            for number in 0..48 {
                let RowLocation { die, row } = layout.row_location(number);
                assert!(!std::mem::replace(&mut seen[(die * 8 + row) as usize], true));
                assert_eq!(row, number / 6, "rows of a block are programmed in order");
                let role = layout.role(number, &[]);
                assert_eq!(role == Role::Data, numbers.contains(&number), "{number}");
                parity[die as usize] += u32::from(role == Role::Parity);
                let stripe = layout.stripe_of(number);
                let dies = stripe.clone().map(|number| layout.row_location(number).die);
                let dies = std::collections::BTreeSet::from_iter(dies);
                assert_eq!(dies.len() as u32, stripe_dies.unwrap_or(1), "each on another die");
                assert!(stripe.contains(&number));
            }
            assert_eq!(parity.iter().sum::<u32>(), parity_rows);
            let (least, most) = (parity.iter().min().unwrap(), parity.iter().max().unwrap());
            assert!(most - least <= 2, "{stripe_dies:?}: {parity:?}");
        }
    }

    #[test]
    fn a_stripe_without_a_die_keeps_its_parity() {
        let layout = Layout::new(&SHAPE, Some(3), 10, &frames(1.0)).unwrap();
        for die in 0..6 {
            for first in (0..48).step_by(3) {
                let roles = Vec::from_iter((first..first + 3).map(|it| layout.role(it, &[die])));
                let count = |role| roles.iter().filter(|&&it| it == role).count();
                let has_die = (first..first + 3).any(|it| layout.row_location(it).die == die);
                assert_eq!(count(Role::Parity), 1);
                assert_eq!(count(Role::Data), 2 - usize::from(has_die), "{roles:?}");
            }
            let holes = (0..32).filter(|&row| !layout.has_data(row, &[die])).count();
            assert_eq!(holes, 8, "a row of each round");
        }
        assert_eq!(layout.run_bytes_max(&[]), u64::from(layout.segment_bytes));
        let plain = Layout::new(&SHAPE, None, 10, &frames(1.0)).unwrap();
        assert_eq!((0..48).filter(|&row| !plain.has_data(row, &[1, 4])).count(), 16);
        // Rows 2, 3 and 5, and row 0 of the next round.
        assert_eq!(plain.run_bytes_max(&[1, 4]), 4 * 8192);
    }

    #[test]
    fn entries_lead_back_to_within_a_unit() {
        let plain = Layout::new(&SHAPE, None, 10, &frames(1.0)).unwrap();
        assert_eq!((plain.unit_bytes, plain.units), (4096, 96));
        let entry = plain.entry(9, 95 * 4096);
        assert_eq!((plain.segment(entry), plain.offset(entry)), (9, 95 * 4096));
        let packed = Layout::new(&SHAPE, None, 60_000, &frames(0.5)).unwrap();
        assert_eq!(packed.unit_bytes, 8, "60000 x 393216 bytes / 2^32, rounded up");
        for offset in [0, 7, 8, 391_100, 393_215] {
            let entry = packed.entry(59_999, offset);
            assert_eq!(packed.segment(entry), 59_999);
            assert!(packed.offset(entry).abs_diff(offset) <= 4);
        }
    }

    #[test]
    fn layouts_beyond_32_bits_are_refused() {
        assert!(Layout::new(&SHAPE, None, 44_739_242, &frames(1.0)).is_ok());
        let refused = Layout::new(&SHAPE, None, 44_739_243, &frames(1.0)).unwrap_err();
        assert!(refused.to_string().contains("32 bits"), "{refused}");
        for count in [0, 1, 4, 7] {
            let refused = Layout::new(&SHAPE, Some(count), 10, &frames(1.0)).unwrap_err();
            assert!(refused.to_string().contains("the 6 dies must be whole stripes"), "{refused}");
        }
        let huge = FlashShape { pages_per_block: 1 << 20, ..SHAPE };
        assert!(Layout::new(&huge, None, 10, &frames(1.0)).is_err());
    }
}

//! Addresses within a segment: arithmetic only.
//!
//! ```text
//! segment   the rows of one erase block on every die, stripe after stripe: a stripe is one row of
//!           each die, with adjacent rows on different channels; each stripe begins one die after
//!           the previous one
//! rows      data rows, and parity rows spread evenly among them
//! data      the concatenated data rows: byte `offset` of a segment
//! map entry segment x units + unit, where a unit is a multiple of the unit size in the segment
//! ```
//!
//! The unit size is a power of two: one block if all blocks are stored uncompressed, otherwise the
//! smallest for which the units of the drive fit 32 bits. Frames of a compressing drive begin at
//! any byte; the map then knows their offset only to within a unit. That is enough to tell which
//! pages a read touches (the middle of the unit is assumed), because the entry serves for timing
//! and not for finding bytes.

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
    /// Rows of a segment.
    pub(super) rows: u32,
    /// Data rows of a segment, without parity rows.
    pub(super) data_rows: u32,
    /// Bytes of a segment's data rows.
    pub(super) segment_bytes: u32,
    pub(super) unit_bytes: u32,
    /// Units of a segment.
    pub(super) units: u32,
}

/// The location of a row: its die and its index in the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RowLocation {
    pub(super) die: u32,
    pub(super) row: u32,
}

impl Layout {
    /// Creates the layout of `segment_count` segments over all dies.
    ///
    /// # Errors
    /// `InvalidInput` if parity leaves no room, or if 32 bits cannot address every unit.
    pub(super) fn new(
        shape: &FlashShape,
        parity_percent: f64,
        segment_count: u32,
        frames: &FrameSizes,
    ) -> Result<Self> {
        let wrong = |what: String| Error::InvalidInput(what.into());
        let rows = u64::from(shape.dies()) * u64::from(shape.pages_per_block);
        let bytes = rows * u64::from(shape.row_bytes());
        if bytes > u64::from(u32::MAX) {
            return Err(wrong(format!("a segment of {bytes} bytes is too large to be simulated")));
        }
        if !(0.0..=50.0).contains(&parity_percent) {
            return Err(wrong(format!(
                "parity_percent must be from 0 to 50, not {parity_percent}"
            )));
        }
        let rows = rows as u32;
        let parity_rows = (f64::from(rows) * parity_percent / 100.0).ceil() as u32;
        let data_rows = rows.saturating_sub(parity_rows);
        let segment_bytes = data_rows * shape.row_bytes();
        if segment_bytes < frames.largest() {
            return Err(wrong("a segment has no room for a block beside its parity".into()));
        }
        let is_plain = (frames.smallest(), frames.largest()) == (BLOCK_BYTES, BLOCK_BYTES);
        let mut unit_bytes = if is_plain { BLOCK_BYTES } else { 1 };
        let units = |unit_bytes: u32| segment_bytes.div_ceil(unit_bytes);
        // The last number is UNMAPPED.
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
        })
    }

    /// Returns the map entry of a frame at `offset` of a segment.
    #[inline]
    pub(super) fn entry(&self, segment: u32, offset: u32) -> u32 {
        segment * self.units + offset / self.unit_bytes
    }

    /// Returns the segment of a map entry.
    #[inline]
    pub(super) fn segment(&self, entry: u32) -> u32 {
        entry / self.units
    }

    /// Returns the offset of a map entry in its segment, to within a unit.
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

    /// Returns the number of a data row among all rows of its segment; for `data_rows`, the number
    /// after that of the last data row.
    pub(super) fn row_number(&self, data_row: u32) -> u32 {
        if data_row >= self.data_rows {
            return self.rows;
        }
        let parity_rows = u64::from(self.rows - self.data_rows);
        data_row + (u64::from(data_row) * parity_rows / u64::from(self.data_rows)) as u32
    }

    /// Returns the location of the row with this number.
    pub(super) fn row_location(&self, row_number: u32) -> RowLocation {
        let stripe = row_number / self.dies;
        RowLocation { die: (row_number + stripe) % self.dies, row: stripe }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: every row has one location, every entry maps back, parity is spread evenly, and a
    //! drive that does not fit is refused.
    //! Method: go through all rows of small shapes; drives at the limit.

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
    fn every_row_has_one_place_and_parity_is_spread() {
        for percent in [0.0, 6.25, 13.0, 50.0] {
            let layout = Layout::new(&SHAPE, percent, 10, &frames(1.0)).unwrap();
            assert_eq!(layout.rows, 48);
            let numbers = Vec::from_iter((0..=layout.data_rows).map(|row| layout.row_number(row)));
            assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
            assert_eq!(numbers[layout.data_rows as usize], 48);
            let gaps = numbers.windows(2).map(|pair| pair[1] - pair[0]);
            assert!(gaps.max().unwrap() <= 2, "{percent} %: {numbers:?}");
            let mut seen = [false; 48];
            for number in 0..48 {
                let RowLocation { die, row } = layout.row_location(number);
                assert!(!std::mem::replace(&mut seen[(die * 8 + row) as usize], true));
                assert_eq!(row, number / 6, "rows of a block are programmed in order");
            }
        }
    }

    #[test]
    fn entries_lead_back_to_within_a_unit() {
        let plain = Layout::new(&SHAPE, 0.0, 10, &frames(1.0)).unwrap();
        assert_eq!((plain.unit_bytes, plain.units), (4096, 96));
        let entry = plain.entry(9, 95 * 4096);
        assert_eq!((plain.segment(entry), plain.offset(entry)), (9, 95 * 4096));
        let packed = Layout::new(&SHAPE, 0.0, 60_000, &frames(0.5)).unwrap();
        assert_eq!(packed.unit_bytes, 8, "60000 x 393216 bytes / 2^32, rounded up");
        for offset in [0, 7, 8, 391_100, 393_215] {
            let entry = packed.entry(59_999, offset);
            assert_eq!(packed.segment(entry), 59_999);
            assert!(packed.offset(entry).abs_diff(offset) <= 4);
        }
    }

    #[test]
    fn what_does_not_fit_32_bits_is_refused() {
        assert!(Layout::new(&SHAPE, 0.0, 44_739_242, &frames(1.0)).is_ok());
        let refused = Layout::new(&SHAPE, 0.0, 44_739_243, &frames(1.0)).unwrap_err();
        assert!(refused.to_string().contains("32 bits"), "{refused}");
        assert!(Layout::new(&SHAPE, 51.0, 10, &frames(1.0)).is_err());
        let huge = FlashShape { pages_per_block: 1 << 20, ..SHAPE };
        assert!(Layout::new(&huge, 0.0, 10, &frames(1.0)).is_err());
    }
}

//! The stored size of each block.

use super::BLOCK_BYTES;
use crate::{Error, Result};
use pumice_drive::base::seed::mix;

/// Maximum number of fractions in a table: enough for per-mille steps (arbitrary beyond that).
const FRACTIONS_MAX: usize = 1 << 16;

/// The stored fraction of each block, excluding the header of its frame.
#[derive(Clone, Debug, PartialEq)]
pub enum StoredSizes {
    /// One fraction for all blocks, above 0 and up to 1.
    Constant(f64),
    /// One of these fractions for each block, all with equal frequency: a distribution represented
    /// by its quantiles. A block's address and the seed determine its fraction, so that no state is
    /// needed, and overwriting a block does not change its fraction.
    Table {
        /// Fractions, each above 0 and up to 1; not empty.
        fractions: Vec<f64>,
        /// Seed for the assignment.
        seed: u64,
    },
    /// The size of each block when it was last written; see
    /// [`LogFtl::write_sized`](super::LogFtl::write_sized).
    AsWritten,
}

/// The frame size of each block, by table lookup.
#[derive(Clone, Debug)]
pub(super) struct FrameSizes {
    /// Table with at least one entry.
    bytes: Box<[u32]>,
    seed: u64,
    /// Frame size of each block when it was last written; empty unless sizes are known only at that
    /// time.
    written: Box<[u16]>,
}

impl FrameSizes {
    /// Creates the table of frames that store the given fractions, but at least `floor`, after a
    /// header.
    ///
    /// # Errors
    /// `InvalidInput` for fractions that are out of range.
    pub(super) fn new(sizes: &StoredSizes, floor: f64, header_bytes: u32) -> Result<Self> {
        let wrong = |what: String| Error::InvalidInput(what.into());
        let (fractions, seed) = match sizes {
            StoredSizes::Constant(fraction) => (std::slice::from_ref(fraction), 0),
            StoredSizes::Table { fractions, seed } => (fractions.as_slice(), *seed),
            StoredSizes::AsWritten => (&[floor.max(1.0 / f64::from(BLOCK_BYTES)), 1.0][..], 0),
        };
        if fractions.is_empty() || fractions.len() > FRACTIONS_MAX {
            let what = "a table of stored fractions has from 1 to";
            return Err(wrong(format!("{what} {FRACTIONS_MAX} entries, not {}", fractions.len())));
        }
        let bad = fractions.iter().find(|&&fraction| !(fraction > 0.0 && fraction <= 1.0));
        if let Some(bad) = bad {
            return Err(wrong(format!("a stored fraction must be above 0 and up to 1, not {bad}")));
        }
        if !(0.0..=1.0).contains(&floor) {
            return Err(wrong(format!(
                "the least stored fraction must be from 0 to 1, not {floor}"
            )));
        }
        if header_bytes > BLOCK_BYTES {
            return Err(wrong(format!("a header must have at most {BLOCK_BYTES} bytes")));
        }
        let frame = |fraction: &f64| {
            (fraction.max(floor) * f64::from(BLOCK_BYTES)).ceil() as u32 + header_bytes
        };
        let bytes = fractions.iter().map(frame).collect();
        Ok(Self { bytes, seed, written: Box::default() })
    }

    /// Allocates the sizes of this many blocks for [`FrameSizes::set`].
    pub(super) fn keep_written(&mut self, blocks: u64) {
        self.written = vec![0; blocks as usize].into_boxed_slice();
    }

    /// Returns the size of a frame that stores `stored_bytes` bytes of data.
    pub(super) fn frame_of(&self, stored_bytes: u32, header_bytes: u32) -> u32 {
        (stored_bytes + header_bytes).clamp(self.smallest(), self.largest())
    }

    /// Sets the size of a block's frame.
    pub(super) fn set(&mut self, lba: u32, bytes: u32) {
        self.written[lba as usize] = bytes as u16;
    }

    /// Returns the size of a block's frame, including the header.
    #[inline]
    pub(super) fn frame_bytes(&self, lba: u32) -> u32 {
        if !self.written.is_empty() {
            return self.written[lba as usize].into();
        }
        if let [bytes] = *self.bytes {
            return bytes;
        }
        let draw = u128::from(mix(u64::from(lba) ^ self.seed.rotate_left(32)));
        self.bytes[((draw * self.bytes.len() as u128) >> 64) as usize]
    }

    pub(super) fn heap_bytes(&self) -> u64 {
        2 * self.written.len() as u64
    }

    /// Returns the mean over the table.
    pub(super) fn mean(&self) -> f64 {
        let sum: f64 = self.bytes.iter().map(|&bytes| f64::from(bytes)).sum();
        sum / self.bytes.len() as f64
    }

    pub(super) fn largest(&self) -> u32 {
        *self.bytes.iter().max().expect("a table is not empty")
    }

    pub(super) fn smallest(&self) -> u32 {
        *self.bytes.iter().min().expect("a table is not empty")
    }
}

#[cfg(test)]
mod tests {
    //! Goal: blocks have the fractions of the table, in its proportions and always the same ones.
    //! Method: counts over many blocks.

    use super::*;
    use pumice_drive::base::ErrorKind;

    #[test]
    fn a_table_is_drawn_from_evenly_and_repeatably() {
        let fractions = vec![0.1, 0.25, 0.5, 1.0];
        let sizes = StoredSizes::Table { fractions, seed: 7 };
        let frames = FrameSizes::new(&sizes, 0.14, 24).unwrap();
        assert_eq!((frames.smallest(), frames.largest()), (574 + 24, 4096 + 24));
        for bytes in [598, 1048, 2072, 4120] {
            let count = (0..100_000).filter(|&lba| frames.frame_bytes(lba) == bytes).count();
            assert!((24_500..25_500).contains(&count), "{count} blocks of {bytes} bytes");
        }
        let mean = (0..100_000).map(|lba| f64::from(frames.frame_bytes(lba))).sum::<f64>() / 1e5;
        assert!((mean / 1959.5 - 1.0).abs() < 0.01, "{mean}");
        let other = match sizes {
            StoredSizes::Table { fractions, .. } => StoredSizes::Table { fractions, seed: 8 },
            constant => constant,
        };
        let other = FrameSizes::new(&other, 0.14, 24).unwrap();
        let same = (0..1000).filter(|&lba| other.frame_bytes(lba) == frames.frame_bytes(lba));
        assert!(same.count() < 400, "the seed changes nothing");
    }

    #[test]
    fn invalid_fractions_are_refused() {
        for bad in [0.0, -0.5, 1.01, f64::NAN] {
            let refused = FrameSizes::new(&StoredSizes::Constant(bad), 0.0, 0).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidInput);
        }
        let empty = StoredSizes::Table { fractions: Vec::new(), seed: 0 };
        assert!(FrameSizes::new(&empty, 0.0, 0).is_err());
        assert!(FrameSizes::new(&StoredSizes::Constant(1.0), 1.5, 0).is_err());
        assert!(FrameSizes::new(&StoredSizes::Constant(1.0), 0.0, 5000).is_err());
    }
}

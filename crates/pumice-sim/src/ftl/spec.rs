//! The parameters of a log-structured drive.

use super::layout::Layout;
use super::segments::{self, VictimPolicy};
use super::sizes::FrameSizes;
use super::{StoredSizes, reverse};
use crate::nand::{FlashShape, FlashTiming, FreeBlocks};
use crate::{Error, Result};

/// Minimum number of free segments: one for the host, and one for data that is moved at the same
/// time.
const FREE_SEGMENTS_MIN: u32 = 2;

/// A log-structured drive.
#[derive(Clone, Debug, PartialEq)]
pub struct LogSpec {
    /// Geometry of the flash. A segment is one block of every die.
    pub shape: FlashShape,
    /// Timing of the flash.
    pub timing: FlashTiming,
    /// Number of 4 KiB blocks visible to the host.
    pub user_blocks: u64,
    /// Stored fraction of each block.
    pub stored: StoredSizes,
    /// Minimum stored fraction of a block; 0 to 1.
    pub stored_min: f64,
    /// Header size of each frame in bytes; 0 for a drive that stores every block uncompressed.
    pub header_bytes: u32,
    /// Number of dies in a stripe, including one die for the parity of the others: at least 2, and
    /// a divisor of the number of dies; `None` without parity.
    pub stripe_dies: Option<u32>,
    /// Policy that chooses victims.
    pub victims: VictimPolicy,
    /// Whether collected data goes to separate segments, rather than to the segments of the host's
    /// writes.
    pub moved_apart: bool,
    /// Size of the write buffer in bytes: acknowledged data waiting for the flash. At least two
    /// rows and a frame.
    pub buffer_bytes: u64,
    /// Maximum number of bytes in data rows sent to the flash per second; `None` for no limit.
    /// Parity is calculated on the way, and does not count.
    pub store_bytes_per_s: Option<u64>,
    /// Number of free segments below which garbage collection starts; at least 2.
    pub free_segments: u32,
    /// Share of bad blocks, in percent; 0 to 50.
    pub bad_percent: f64,
    /// Seed for the selection of bad blocks.
    pub seed: u64,
    /// Cold segments are moved when their blocks have been erased this many times less than the
    /// most worn block; `None` for never.
    pub wear_gap_max: Option<u32>,
}

/// The parts of a drive that have passed the checks.
pub(super) struct Parts {
    pub(super) frames: FrameSizes,
    pub(super) layout: Layout,
    pub(super) free_blocks: FreeBlocks,
}

impl LogSpec {
    /// Returns the number of bytes available to frames in segments that contain data, excluding
    /// parity, and excluding segments that are kept free or open.
    ///
    /// # Errors
    /// The errors of [`LogSpec::check`].
    pub fn data_bytes(&self) -> Result<u64> {
        let parts = self.parts()?;
        Ok(self.data_bytes_of(&parts))
    }

    /// Returns the number of bytes in the segments that contain data during garbage collection. Of
    /// the segments kept free, one is half full on average; each of the two open ones is half full.
    ///
    /// # Errors
    /// The errors of [`LogSpec::check`].
    pub fn raw_bytes(&self) -> Result<f64> {
        let parts = self.parts()?;
        let others = f64::from(self.free_segments) + 0.5;
        let full = f64::from(parts.free_blocks.segment_count()) - others;
        Ok(full * f64::from(parts.layout.segment_bytes))
    }

    /// Returns the mean stored size of a block in bytes, including minimums and headers.
    ///
    /// # Errors
    /// `InvalidInput` for fractions that are out of range.
    pub fn stored_mean(&self) -> Result<f64> {
        let frames = FrameSizes::new(&self.stored, self.stored_min, self.header_bytes)?;
        Ok(frames.mean() / f64::from(super::BLOCK_BYTES))
    }

    /// Returns the maximum memory of such a drive in bytes, for any data. It consists of 4 bytes
    /// per block for the map, 2 more if sizes are known only when blocks are written, then the
    /// reverse lists, and small tables. The reverse lists have at most twice as many entries as
    /// there are blocks, and an entry is hardly longer than log2(segments) + 3 bits.
    ///
    /// # Errors
    /// The errors of [`LogSpec::check`].
    pub fn memory_bytes_max(&self) -> Result<u64> {
        let parts = self.parts()?;
        let segment_count = u64::from(parts.free_blocks.segment_count());
        let dies = self.shape.dies();
        let slots = u64::from(parts.layout.segment_bytes / parts.frames.smallest());
        // A list is thinned when more than half of it is dead, unless it is short.
        let short = segment_count * 64;
        let entries = (segment_count * slots).min(2 * self.user_blocks + short);
        let list = reverse::bytes_max(entries.div_ceil(segment_count), self.user_blocks);
        let open = slots * 4 * u64::from(self.open_segments());
        let victim = slots * 8;
        let flash = 8 * u64::from(dies) * u64::from(self.shape.blocks_per_plane);
        let tables = segment_count * segments::segment_bytes(dies);
        let per_block = if self.stored == StoredSizes::AsWritten { 6 } else { 4 };
        Ok(per_block * self.user_blocks + segment_count * list + open + victim + flash + tables)
    }

    /// Returns the share of programmed rows that contain parity; 0 to 0.5.
    pub fn parity_share(&self) -> f64 {
        self.stripe_dies.map_or(0.0, |dies| 1.0 / f64::from(dies))
    }

    /// Checks the parameters.
    ///
    /// # Errors
    /// `InvalidInput` if a parameter is out of its range or the blocks do not fit on the flash.
    pub fn check(&self) -> Result<()> {
        self.parts().map(drop)
    }

    pub(super) fn parts(&self) -> Result<Parts> {
        let wrong = |what: String| Error::InvalidInput(what.into());
        self.shape.check()?;
        self.timing.check()?;
        if self.user_blocks == 0 || self.user_blocks >= u64::from(u32::MAX) {
            return Err(wrong(format!(
                "a drive of {} blocks cannot be simulated",
                self.user_blocks
            )));
        }
        if !(0.0..=50.0).contains(&self.bad_percent) {
            return Err(wrong(format!(
                "bad_percent must be from 0 to 50, not {}",
                self.bad_percent
            )));
        }
        if self.store_bytes_per_s == Some(0) {
            return Err(wrong("store_bytes_per_s must not be zero".into()));
        }
        if self.free_segments < FREE_SEGMENTS_MIN {
            return Err(wrong(format!("free_segments must be at least {FREE_SEGMENTS_MIN}")));
        }
        let frames = FrameSizes::new(&self.stored, self.stored_min, self.header_bytes)?;
        let free_blocks = FreeBlocks::new(&self.shape, self.bad_percent, self.seed);
        let segment_count = free_blocks.segment_count();
        let layout = Layout::new(&self.shape, self.stripe_dies, segment_count, &frames)?;
        let buffer_min = 2 * u64::from(layout.row_bytes) + u64::from(frames.largest());
        if self.buffer_bytes < buffer_min {
            return Err(wrong(format!("the write buffer must have at least {buffer_min} bytes")));
        }
        let parts = Parts { frames, layout, free_blocks };
        let (needed, has) = (self.needed_bytes(&parts.frames), self.data_bytes_of(&parts));
        if needed > has {
            let what = format!("{} blocks need {needed} bytes", self.user_blocks);
            return Err(wrong(format!("{what}, but the flash has room for {has}")));
        }
        Ok(parts)
    }

    /// Returns the maximum number of segments open at the same time.
    fn open_segments(&self) -> u32 {
        1 + u32::from(self.moved_apart) + u32::from(self.wear_gap_max.is_some())
    }

    fn needed_bytes(&self, frames: &FrameSizes) -> u64 {
        if frames.smallest() == frames.largest() || self.stored == StoredSizes::AsWritten {
            return self.user_blocks * u64::from(frames.largest());
        }
        (0..self.user_blocks as u32).map(|lba| u64::from(frames.frame_bytes(lba))).sum()
    }

    fn data_bytes_of(&self, parts: &Parts) -> u64 {
        let others = self.free_segments + self.open_segments();
        let full = parts.free_blocks.segment_count().saturating_sub(others);
        let Layout { segment_bytes, .. } = parts.layout;
        // The end of a segment, which is too short for a frame.
        let is_even = segment_bytes.is_multiple_of(parts.frames.largest())
            && parts.frames.smallest() == parts.frames.largest();
        let lost = if is_even { 0 } else { parts.frames.largest() - 1 };
        u64::from(full) * u64::from(segment_bytes - lost)
    }
}

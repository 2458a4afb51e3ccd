//! What a log-structured drive is made of.

use super::layout::Layout;
use super::sizes::FrameSizes;
use super::{StoredSizes, reverse, segments};
use crate::nand::{FlashShape, FlashTiming, FreeBlocks};
use crate::{Error, Result};

/// Fewest free segments: one for the host, one for what is moved meanwhile.
const FREE_SEGMENTS_MIN: u32 = 2;

/// Which segment is emptied next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VictimPolicy {
    /// The one with the fewest live bytes.
    Greedy,
    /// As the controller chooses: dead bytes by their age, over the cost of moving the rest.
    CostBenefit,
}

/// A log-structured drive.
#[derive(Clone, Debug, PartialEq)]
pub struct LogSpec {
    /// Its flash. A segment is one block of every die.
    pub shape: FlashShape,
    /// What the flash takes.
    pub timing: FlashTiming,
    /// Blocks of 4 KiB that the host sees.
    pub user_blocks: u64,
    /// What is stored of each block.
    pub stored: StoredSizes,
    /// The least that is stored of a block, as a fraction of it; 0 to 1.
    pub stored_min: f64,
    /// Bytes before each frame; 0 for a drive that stores every block as it is.
    pub header_bytes: u32,
    /// Rows that hold parity, in per cent of all; 0 to 50.
    pub parity_percent: f64,
    /// Whom garbage collection empties.
    pub victims: VictimPolicy,
    /// Whether what is collected goes to segments of its own, apart from what the host writes.
    pub moved_apart: bool,
    /// Bytes that wait for the flash, acknowledged; two rows and a frame at least.
    pub buffer_bytes: u64,
    /// Garbage collection begins when fewer segments than this are free; 2 at least.
    pub free_segments: u32,
    /// Bad blocks, in per cent of all; 0 to 50.
    pub bad_percent: f64,
    /// Which blocks are bad.
    pub seed: u64,
    /// Segments that are not rewritten are moved when their blocks were erased so many times less
    /// than the most worn block; none for never.
    pub wear_gap_max: Option<u32>,
}

/// The parts of a drive that passed the checks.
pub(super) struct Parts {
    pub(super) frames: FrameSizes,
    pub(super) layout: Layout,
    pub(super) free_blocks: FreeBlocks,
}

impl LogSpec {
    /// Bytes that frames may take, of segments that hold data: without parity, and without those
    /// kept free or open.
    ///
    /// # Errors
    /// Those of [`LogSpec::check`].
    pub fn data_bytes(&self) -> Result<u64> {
        let parts = self.parts()?;
        Ok(self.data_bytes_of(&parts))
    }

    /// Bytes of the segments that hold data while garbage collection goes on: of those kept free
    /// all but one half are, and of the two that are open each is half full.
    ///
    /// # Errors
    /// Those of [`LogSpec::check`].
    pub fn raw_bytes(&self) -> Result<f64> {
        let parts = self.parts()?;
        let others = f64::from(self.free_segments) + 0.5;
        let full = f64::from(parts.free_blocks.segment_count()) - others;
        Ok(full * f64::from(parts.layout.segment_bytes))
    }

    /// What is stored of the drive's blocks on average, in bytes of a block; floors and headers
    /// included.
    ///
    /// # Errors
    /// `InvalidInput` for fractions that are none.
    pub fn stored_mean(&self) -> Result<f64> {
        let frames = FrameSizes::new(&self.stored, self.stored_min, self.header_bytes)?;
        Ok(frames.mean() / f64::from(super::BLOCK_BYTES))
    }

    /// Most bytes of memory that a drive like this takes, whatever is written to it: 4 bytes per
    /// block for the map, then the reverse lists, whose entries are at most twice as many as there
    /// are blocks and hardly more than log2(segments) + 3 bits long, then small tables.
    ///
    /// # Errors
    /// Those of [`LogSpec::check`].
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
        Ok(4 * self.user_blocks + segment_count * list + open + victim + flash + tables)
    }

    /// # Errors
    /// `InvalidInput` if something is out of its range or the blocks do not fit the flash.
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
            return Err(wrong(format!("0 to 50 % of blocks are bad, not {}", self.bad_percent)));
        }
        if self.free_segments < FREE_SEGMENTS_MIN {
            return Err(wrong(format!("free_segments must be {FREE_SEGMENTS_MIN} at least")));
        }
        let frames = FrameSizes::new(&self.stored, self.stored_min, self.header_bytes)?;
        let free_blocks = FreeBlocks::new(&self.shape, self.bad_percent, self.seed);
        let segment_count = free_blocks.segment_count();
        let layout = Layout::new(&self.shape, self.parity_percent, segment_count, &frames)?;
        let buffer_min = 2 * u64::from(layout.row_bytes) + u64::from(frames.largest());
        if self.buffer_bytes < buffer_min {
            return Err(wrong(format!("the write buffer must have {buffer_min} bytes at least")));
        }
        let parts = Parts { frames, layout, free_blocks };
        let (needed, has) = (self.needed_bytes(&parts.frames), self.data_bytes_of(&parts));
        if needed > has {
            let what = format!("{} blocks take {needed} bytes", self.user_blocks);
            return Err(wrong(format!("{what}, of which the flash has room for {has}")));
        }
        Ok(parts)
    }

    /// Segments that are open at a time, at most.
    fn open_segments(&self) -> u32 {
        1 + u32::from(self.moved_apart) + u32::from(self.wear_gap_max.is_some())
    }

    fn needed_bytes(&self, frames: &FrameSizes) -> u64 {
        if frames.smallest() == frames.largest() {
            return self.user_blocks * u64::from(frames.largest());
        }
        (0..self.user_blocks as u32).map(|lba| u64::from(frames.frame_bytes(lba))).sum()
    }

    fn data_bytes_of(&self, parts: &Parts) -> u64 {
        let others = self.free_segments + self.open_segments();
        let full = parts.free_blocks.segment_count().saturating_sub(others);
        let Layout { segment_bytes, .. } = parts.layout;
        // At the end of a segment, what no frame fits into.
        let is_even = segment_bytes.is_multiple_of(parts.frames.largest())
            && parts.frames.smallest() == parts.frames.largest();
        let lost = if is_even { 0 } else { parts.frames.largest() - 1 };
        u64::from(full) * u64::from(segment_bytes - lost)
    }
}

//! The requests of the host.

use super::Cause;
use super::LogFtl;
use crate::ftl::BLOCK_BYTES;
use crate::ftl::layout::{Layout, UNMAPPED};
use crate::{Error, Result};
use pumice_drive::base::Lba;
use pumice_drive::base::seed::mix;

impl LogFtl {
    /// Writes blocks. Returns the time of the acknowledgement, at which the buffer has space for
    /// the last of them, in the order of writes. While rows are waiting for their die, this time is
    /// a forecast (see the module `drain`): intervening reads delay later writes, but not this one.
    ///
    /// If a host waits for some of its writes before it issues more, the forecast is short. If it
    /// never waits, each write examines all rows that are waiting for a die.
    ///
    /// # Errors
    /// `InvalidInput` for blocks beyond the drive; `NoSpace` if garbage collection cannot reclaim
    /// any space.
    pub fn write(&mut self, now_ns: u64, lba: Lba, blocks: u32) -> Result<u64> {
        let first = self.begin(now_ns, lba, blocks)?;
        for lba in first..first + blocks {
            self.put(lba, self.frames.frame_bytes(lba), Cause::Host, now_ns)?;
        }
        Ok(self.acknowledge(now_ns))
    }

    /// Writes adjacent blocks with these stored sizes, on a drive whose sizes are
    /// [`StoredSizes::AsWritten`](super::super::StoredSizes). Otherwise like [`LogFtl::write`].
    ///
    /// # Errors
    /// The errors of [`LogFtl::write`].
    pub fn write_sized(&mut self, now_ns: u64, lba: Lba, stored_bytes: &[u32]) -> Result<u64> {
        let first = self.begin(now_ns, lba, stored_bytes.len() as u32)?;
        for (lba, &stored) in (first..).zip(stored_bytes) {
            let bytes = self.frames.frame_of(stored, self.spec.header_bytes);
            self.put(lba, bytes, Cause::Host, now_ns)?;
        }
        Ok(self.acknowledge(now_ns))
    }

    /// Reads blocks, and writes the blocks that contain data again. A drive whose map has units
    /// larger than a block works like this. Returns the time of the acknowledgement, like
    /// [`LogFtl::write`].
    ///
    /// # Errors
    /// The errors of [`LogFtl::write`].
    pub fn rewrite(&mut self, now_ns: u64, lba: Lba, blocks: u32) -> Result<u64> {
        let first = self.begin(now_ns, lba, blocks)?;
        let read_ns = self.read_frames(first..first + blocks).last_ns;
        for lba in first..first + blocks {
            if self.map[lba as usize] != UNMAPPED {
                self.put(lba, self.frames.frame_bytes(lba), Cause::Rewritten, read_ns)?;
            }
        }
        Ok(self.acknowledge(now_ns))
    }

    fn put(&mut self, lba: u32, bytes: u32, cause: Cause, ready_ns: u64) -> Result<()> {
        self.append(lba, bytes, cause, ready_ns)?;
        self.faults.replaced(lba);
        self.pace(bytes)
    }

    /// Returns the time at which the buffer has space for all data accepted so far.
    fn acknowledge(&mut self, now_ns: u64) -> u64 {
        let needed = self.accepted_bytes.saturating_sub(self.spec.buffer_bytes);
        let room_ns = self.drain.done_ns(&self.flash, now_ns, needed);
        self.acknowledged_ns = self.acknowledged_ns.max(room_ns).max(now_ns);
        self.acknowledged_ns
    }

    /// Reads blocks. Returns the times at which the first and the last of them are available. Three
    /// kinds of blocks take no time: blocks that were never written, lost blocks, which are
    /// counted, and blocks that are still in the buffer.
    ///
    /// # Errors
    /// `InvalidInput` for blocks beyond the drive.
    pub fn read(&mut self, now_ns: u64, lba: Lba, blocks: u32) -> Result<ReadTimes> {
        let first = self.begin(now_ns, lba, blocks)?;
        self.counts.host_blocks_read += u64::from(blocks);
        if self.counts.blocks_lost > 0 {
            let lost = (first..first + blocks).filter(|&lba| self.faults.is_lost(lba));
            self.counts.blocks_unreadable += lost.count() as u64;
        }
        Ok(self.read_frames(first..first + blocks))
    }

    /// Reads a page of the drive's own data, such as a page of the map. The page must not be larger
    /// than a host block. `number` selects the die. Returns the time at which the page is
    /// available.
    ///
    /// # Errors
    /// `InvalidInput` if time would decrease.
    pub(crate) fn read_own(&mut self, now_ns: u64, number: u64) -> Result<u64> {
        self.begin(now_ns, Lba(0), 0)?;
        let die = (mix(number) % u64::from(self.spec.shape.dies())) as u32;
        let bytes = BLOCK_BYTES.min(self.spec.shape.page_bytes);
        Ok(self.flash.read_own(now_ns, die, bytes))
    }

    /// Reads the frames of blocks.
    pub(super) fn read_frames(&mut self, lbas: impl Iterator<Item = u32>) -> ReadTimes {
        let mut times = ReadTimes { first_ns: u64::MAX, last_ns: self.now_ns };
        let mut row: Option<RowRead> = None;
        for lba in lbas {
            let entry = self.map[lba as usize];
            if entry == UNMAPPED {
                continue;
            }
            let (segment, offset) = (self.layout.segment(entry), self.layout.offset(entry));
            let end = (offset + self.frames.frame_bytes(lba)).min(self.layout.segment_bytes);
            let (first_row, last_row) = (self.layout.row_of(offset), self.layout.row_of(end - 1));
            for data_row in first_row..=last_row {
                let same = |row: &RowRead| (row.segment, row.data_row) == (segment, data_row);
                if !row.as_ref().is_some_and(same) {
                    times.add(self.read_row(row.take()));
                }
                let row = row.get_or_insert(RowRead::new(segment, data_row));
                row.add(&self.layout, offset, end);
            }
        }
        times.add(self.read_row(row));
        times.first_ns = times.first_ns.min(times.last_ns);
        times
    }

    /// Trims blocks. This takes no time on the drive or the flash.
    ///
    /// # Errors
    /// `InvalidInput` for blocks beyond the drive.
    pub fn trim(&mut self, now_ns: u64, lba: Lba, blocks: u32) -> Result<()> {
        let first = self.begin(now_ns, lba, blocks)?;
        for lba in first..first + blocks {
            let entry = std::mem::replace(&mut self.map[lba as usize], UNMAPPED);
            self.faults.replaced(lba);
            if entry != UNMAPPED {
                self.counts.blocks_trimmed += 1;
                self.release(entry, self.frames.frame_bytes(lba));
            }
        }
        Ok(())
    }

    /// Pads and issues the current row. Returns the time at which all written data is on flash,
    /// which is a forecast as in [`LogFtl::write`]. Moved data stays in its incomplete row, because
    /// its old copy still exists.
    ///
    /// # Errors
    /// `NoSpace` if garbage collection cannot reclaim any space.
    pub fn flush(&mut self, now_ns: u64) -> Result<u64> {
        self.begin(now_ns, Lba(0), 0)?;
        let padding = self.pad_row(0);
        if padding > 0 {
            self.pace(padding)?;
        }
        Ok(self.drain.all_done_ns(&self.flash, now_ns).max(now_ns))
    }

    /// Advances time until the flash has completed all work, including a rebuild. Returns that
    /// time, which is the earliest for the next call.
    pub fn settle(&mut self) -> u64 {
        self.finish_rebuild();
        self.now_ns = self.drain.finish(&mut self.flash, self.now_ns);
        self.now_ns
    }

    /// Advances time to `now_ns`, and checks the block range.
    pub(super) fn begin(&mut self, now_ns: u64, lba: Lba, blocks: u32) -> Result<u32> {
        let end = lba.0.checked_add(blocks.into());
        if end.is_none_or(|end| end > self.spec.user_blocks) {
            let what = format!("a drive of {} blocks has none at {lba}", self.spec.user_blocks);
            return Err(Error::InvalidInput(what.into()));
        }
        if now_ns < self.now_ns {
            let what = format!("a call at {now_ns} ns follows one at {} ns", self.now_ns);
            return Err(Error::InvalidInput(what.into()));
        }
        self.advance_rebuild(now_ns);
        self.now_ns = now_ns;
        self.drain.advance(&mut self.flash, now_ns);
        Ok(lba.0 as u32)
    }

    /// Reads pages of a row, unless they are in the buffer. Returns the time at which they are
    /// available.
    pub(super) fn read_row(&mut self, row: Option<RowRead>) -> u64 {
        let Some(RowRead { segment, data_row, planes, pages, bytes, .. }) = row else { return 0 };
        let (address, row) = self.row_address(segment, data_row);
        if self.drain.is_buffered(&self.flash, self.now_ns, address, row) {
            return self.now_ns;
        }
        let pages = pages.min(self.spec.shape.planes);
        if !self.faults.is_empty() {
            // The position of a frame may be known only to within a unit, so its end may be in a
            // hole.
            let number = self.layout.row_number(data_row);
            let lost = self.lost_planes(segment, number) & planes;
            if lost > 0 {
                let stripe_ns = self.read_stripe(segment, number, lost);
                let pages = (planes & !lost).count_ones();
                let bytes = bytes.min(pages * self.spec.shape.page_bytes);
                let read =
                    (pages > 0).then(|| self.flash.read(self.now_ns, address, row, pages, bytes));
                let read_ns = read.map_or(0, |read| read.expect("the row is programmed"));
                return stripe_ns.max(read_ns);
            }
        }
        let bytes = bytes.min(pages * self.spec.shape.page_bytes);
        let read = self.flash.read(self.now_ns, address, row, pages, bytes);
        read.expect("mapped data is programmed or in the buffer")
    }
}

/// The times at which read data is available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadTimes {
    /// Time of the first part, in the order of addresses.
    pub first_ns: u64,
    /// Time of the last part.
    pub last_ns: u64,
}

impl ReadTimes {
    /// Adds the time of the next row; 0 means none.
    fn add(&mut self, row_ns: u64) {
        if row_ns > 0 {
            if self.first_ns == u64::MAX {
                self.first_ns = row_ns;
            }
            self.last_ns = self.last_ns.max(row_ns);
        }
    }
}

/// Pages to read from one row.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowRead {
    segment: u32,
    data_row: u32,
    last_page: u32,
    /// The planes of the pages, one bit each.
    planes: u32,
    pages: u32,
    bytes: u32,
}

impl RowRead {
    pub(super) fn new(segment: u32, data_row: u32) -> Self {
        Self { segment, data_row, last_page: u32::MAX, planes: 0, pages: 0, bytes: 0 }
    }

    /// Adds the part of a frame from `offset` to `end` that the row contains.
    pub(super) fn add(&mut self, layout: &Layout, offset: u32, end: u32) {
        let row_begin = self.data_row * layout.row_bytes;
        let from = offset.max(row_begin);
        let to = end.min(row_begin + layout.row_bytes);
        let (first, last) = (layout.page_of(from), layout.page_of(to - 1));
        // A page shared by two adjacent frames is sensed only once.
        self.pages += last - first + u32::from(self.last_page != first);
        self.last_page = last;
        self.planes |= (first..=last).fold(0, |planes, page| planes | 1 << page);
        self.bytes += to - from;
    }
}

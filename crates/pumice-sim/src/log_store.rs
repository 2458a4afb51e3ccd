//! The storage of a log-structured drive without contents: a translation layer, the cached part of
//! its map, read-ahead, and units of the map that are larger than a block.
//!
//! ```text
//! read   read-ahead, or: page of the map, if it is not cached -> pages of data
//! write  blocks that are covered partly are read -> write buffer -> flash
//! ```
//!
//! No call waits; each returns times. The times of calls must not decrease, so a caller that must
//! wait between two calls makes the second one at a later time.
//!
//! **Read-ahead**: if the host reads sequentially with one command in flight, the drive reads the
//! data of the next command while the data of the current one is sent over the link. With several
//! commands in flight, the next one has already arrived. Any write or trim discards data that was
//! read ahead, and data is read ahead only if its page of the map is cached.
//!
//! **Streams of partial blocks**: the block in which a write ends stays in the buffer, so that a
//! write that continues there needs no read and the block is stored only once.
//!
//! **Units of the map** larger than a block: a drive that writes a part of a unit must write the
//! whole unit. One unit stays open in the buffer, so that a sequential stream with any record size
//! completes it. A write elsewhere closes it, which reads and rewrites the rest of the unit.

use super::ftl::{BLOCK_BYTES, LogFtl, LogSpec, ReadTimes};
use super::map_pages::MapPages;
use crate::Result;
use pumice_drive::base::Lba;

/// Size of a block in bytes.
const BLOCK: u64 = BLOCK_BYTES as u64;

/// Parameters of the storage of a log-structured drive.
#[derive(Clone, Debug, PartialEq)]
pub struct LogStoreSpec {
    /// Translation layer and flash.
    pub log: LogSpec,
    /// Number of bytes of the disk that are covered by the cached pages of the map; `None` if the
    /// whole map is in memory. A page that is not cached is read from a die.
    pub map_cached_bytes: Option<u64>,
    /// Number of blocks in a unit of the map, at least 1.
    pub unit_blocks: u32,
}

/// Data that was read ahead.
#[derive(Clone, Copy, Debug)]
struct Window {
    offset: u64,
    bytes: u64,
    times: ReadTimes,
}

/// The unit that the host has written partly: blocks `from` to `to`.
#[derive(Clone, Copy, Debug)]
struct OpenUnit {
    unit: u64,
    from: u64,
    to: u64,
}

/// The storage of one drive.
#[derive(Clone, Debug)]
pub(super) struct LogStore {
    pub(super) ftl: LogFtl,
    map: Option<MapPages>,
    unit_blocks: u64,
    open: Option<OpenUnit>,
    /// End of the previous write.
    write_end: u64,
    /// End of the previous read.
    read_end: u64,
    /// Whether the previous read continued the one before it.
    is_stream: bool,
    /// Number of reads in flight.
    reading: u32,
    window: Option<Window>,
}

impl LogStore {
    /// Creates an empty drive at time 0.
    ///
    /// # Errors
    /// The errors of [`LogSpec::check`].
    pub(super) fn new(spec: &LogStoreSpec) -> Result<Self> {
        Ok(Self {
            ftl: LogFtl::new(spec.log.clone())?,
            map: spec.map_cached_bytes.map(MapPages::new),
            unit_blocks: spec.unit_blocks.max(1).into(),
            open: None,
            write_end: 0,
            read_end: 0,
            is_stream: false,
            reading: 0,
            window: None,
        })
    }

    /// Starts a read, which must be ended with [`LogStore::end_read`]. Returns the times of its
    /// data if it was read ahead. Otherwise the caller must call [`LogStore::read`] when the page
    /// of the map is available.
    ///
    /// # Errors
    /// `InvalidInput` for a range beyond the drive.
    pub(super) fn begin_read(
        &mut self,
        now_ns: u64,
        offset: u64,
        bytes: u64,
    ) -> Result<Option<ReadTimes>> {
        self.reading += 1;
        self.is_stream = offset > 0 && self.read_end == offset;
        self.read_end = offset + bytes;
        let window = self.window.take();
        let held = window.filter(|it| it.offset == offset && it.bytes >= bytes);
        if held.is_some() && self.is_stream && self.reading == 1 {
            self.read_ahead(now_ns, offset + bytes, bytes)?;
        }
        Ok(held.map(|window| window.times))
    }

    pub(super) fn end_read(&mut self) {
        self.reading -= 1;
    }

    /// Returns the time at which the map page that covers `offset` is cached.
    ///
    /// # Errors
    /// `InvalidInput` if time would decrease.
    pub(super) fn look_up(&mut self, now_ns: u64, offset: u64) -> Result<u64> {
        let missing = self.map.as_mut().and_then(|map| map.need(offset));
        missing.map_or(Ok(now_ns), |number| self.ftl.read_own(now_ns, number))
    }

    /// Reads a range. Returns the times at which its parts are available.
    ///
    /// # Errors
    /// `InvalidInput` for a range beyond the drive.
    pub(super) fn read(&mut self, now_ns: u64, offset: u64, bytes: u64) -> Result<ReadTimes> {
        let (lba, blocks) = covered(offset, bytes);
        let times = self.ftl.read(now_ns, lba, blocks)?;
        if self.is_stream && self.reading == 1 && self.read_end == offset + bytes {
            self.read_ahead(now_ns, offset + bytes, bytes)?;
        }
        Ok(times)
    }

    /// Reads the blocks that a write covers only partly, unless the write continues the previous
    /// one. Returns the time at which they are available.
    ///
    /// # Errors
    /// `InvalidInput` for a range beyond the drive.
    pub(super) fn read_edges(&mut self, now_ns: u64, offset: u64, bytes: u64) -> Result<u64> {
        if let Some(map) = &mut self.map {
            map.need(offset);
        }
        if self.goes_on(offset) {
            return Ok(now_ns);
        }
        let (first, end) = (offset / BLOCK, offset + bytes);
        let last = end.saturating_sub(1) / BLOCK;
        let covers_last = end.is_multiple_of(BLOCK);
        let mut read_ns = now_ns;
        if !offset.is_multiple_of(BLOCK) || (first == last && !covers_last) {
            read_ns = read_ns.max(self.ftl.read(now_ns, Lba(first), 1)?.last_ns);
        }
        if last > first && !covers_last {
            read_ns = read_ns.max(self.ftl.read(now_ns, Lba(last), 1)?.last_ns);
        }
        Ok(read_ns)
    }

    /// Writes a range. `stored_bytes` contains the stored size of each overlapped block, if the
    /// sizes cannot be determined from the addresses. Returns the time of the acknowledgement.
    ///
    /// # Errors
    /// The errors of [`LogFtl::write`].
    pub(super) fn write(
        &mut self,
        now_ns: u64,
        offset: u64,
        bytes: u64,
        stored_bytes: Option<&[u32]>,
    ) -> Result<u64> {
        self.window = None;
        let (mut lba, mut blocks) = covered(offset, bytes);
        let mut stored_bytes = stored_bytes;
        if self.goes_on(offset) && !offset.is_multiple_of(BLOCK) && blocks > 0 {
            // The previous write has already stored this block.
            (lba, blocks) = (Lba(lba.0 + 1), blocks - 1);
            stored_bytes = stored_bytes.map(|stored_bytes| &stored_bytes[1..]);
        }
        self.write_end = offset + bytes;
        let mut ended_ns = now_ns;
        if self.unit_blocks > 1 && blocks > 0 {
            ended_ns = self.enter_units(now_ns, lba.0, lba.0 + u64::from(blocks))?;
        }
        let written_ns = match stored_bytes {
            Some(stored_bytes) => self.ftl.write_sized(now_ns, lba, stored_bytes)?,
            None => self.ftl.write(now_ns, lba, blocks)?,
        };
        Ok(ended_ns.max(written_ns))
    }

    /// Trims the blocks that are completely within a range.
    ///
    /// # Errors
    /// `InvalidInput` for a range beyond the drive.
    pub(super) fn trim(&mut self, now_ns: u64, offset: u64, bytes: u64) -> Result<()> {
        self.window = None;
        let end = (offset + bytes) / BLOCK;
        let first = offset.div_ceil(BLOCK).min(end);
        self.ftl.trim(now_ns, Lba(first), (end - first) as u32)
    }

    /// Makes all data durable. Returns the time at which it is durable.
    ///
    /// # Errors
    /// The errors of [`LogFtl::flush`].
    pub(super) fn flush(&mut self, now_ns: u64) -> Result<u64> {
        let closed_ns = self.close_unit(now_ns)?;
        Ok(self.ftl.flush(now_ns)?.max(closed_ns))
    }

    /// Returns whether a write at `offset` continues the previous one.
    fn goes_on(&self, offset: u64) -> bool {
        offset > 0 && offset == self.write_end
    }

    /// Moves the open unit to the end of a write of blocks `first` to `end`. Returns the time at
    /// which the rewritten data is acknowledged.
    fn enter_units(&mut self, now_ns: u64, first: u64, end: u64) -> Result<u64> {
        let mut ended_ns = now_ns;
        let mut from = first;
        match self.open {
            Some(open) if open.to == first => from = open.from,
            _ => ended_ns = self.close_unit(now_ns)?,
        }
        self.open = None;
        let (first_unit, last_unit) = (from / self.unit_blocks, (end - 1) / self.unit_blocks);
        if first_unit < last_unit {
            // Only the part of the first unit that precedes the write can be missing.
            ended_ns = ended_ns.max(self.rewrite(now_ns, first_unit * self.unit_blocks, from)?);
            from = last_unit * self.unit_blocks;
        }
        self.open = Some(OpenUnit { unit: last_unit, from, to: end });
        if end.is_multiple_of(self.unit_blocks) {
            ended_ns = ended_ns.max(self.close_unit(now_ns)?);
        }
        Ok(ended_ns)
    }

    /// Rewrites the rest of the open unit. Returns the time of the acknowledgement.
    fn close_unit(&mut self, now_ns: u64) -> Result<u64> {
        let Some(OpenUnit { unit, from, to }) = self.open.take() else { return Ok(now_ns) };
        let (begin, end) = (unit * self.unit_blocks, (unit + 1) * self.unit_blocks);
        let end = end.min(self.ftl.spec().user_blocks);
        let before_ns = self.rewrite(now_ns, begin, from)?;
        let after_ns = self.rewrite(now_ns, to, end)?;
        Ok(before_ns.max(after_ns))
    }

    fn rewrite(&mut self, now_ns: u64, first: u64, end: u64) -> Result<u64> {
        if first >= end {
            return Ok(now_ns);
        }
        self.ftl.rewrite(now_ns, Lba(first), (end - first) as u32)
    }

    fn read_ahead(&mut self, now_ns: u64, offset: u64, bytes: u64) -> Result<()> {
        let is_within = offset + bytes <= self.ftl.spec().user_blocks * BLOCK;
        if !is_within || !self.map.as_ref().is_none_or(|map| map.has(offset)) {
            return Ok(());
        }
        let (lba, blocks) = covered(offset, bytes);
        let times = self.ftl.read(now_ns, lba, blocks)?;
        self.window = Some(Window { offset, bytes, times });
        Ok(())
    }
}

/// Returns the blocks that overlap a range.
fn covered(offset: u64, bytes: u64) -> (Lba, u32) {
    let first = offset / BLOCK;
    (Lba(first), ((offset + bytes).div_ceil(BLOCK) - first) as u32)
}

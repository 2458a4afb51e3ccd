//! A flash translation layer that maps units of one erase block, in virtual time, with its bytes in
//! memory. Drives without memory for a finer map have this design.
//!
//! ```text
//! unit   an erase block on a die; at most one more block, its log, takes rows in any order
//! write  row -> the log of its unit; a unit without a log begins one, which first merges the
//!        oldest log if the limit is reached
//! merge  log in order:  the rest of the unit is copied after it, and it becomes the unit (a
//!                       switch if nothing is left to copy); one erase
//!        any other:     every row is copied from log or unit to a new block; two erases
//! ```
//!
//! Source: log blocks that each belong to one unit, and their merges: Kim et al., A Space-Efficient
//! Flash Translation Layer for CompactFlash Systems, IEEE Transactions on Consumer Electronics
//! 48(2), 2002.
//!
//! **Layout**: adjacent rows are in adjacent units, on dies of different channels. A stripe has as
//! many units as there can be logs (at most one per die), so that a sequential write stream keeps
//! the logs of its stripe open, and reads use all channels. A unit always stays on its die, so a
//! merge alternates reads and programs.
//!
//! **Bytes are stored by flash address**: a map that loses a row loses its bytes. [`Flash`] checks
//! the rules of flash. Writes are serialized, and reads run concurrently with them. Writes are
//! never buffered, so a flush has nothing to do. The buffer is used only for read-ahead.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};

use super::content::{Content, Part, check_range, parts};
use crate::nand::{BlockAddress, Flash, FlashCounts, FlashShape, FlashTiming, FreeBlocks, Worn};
use crate::{Error, Result};
use pumice_drive::base::Clock;
use pumice_drive::base::units::transfer_ns;
use pumice_drive::base::wait::{Line, Place};

/// Table entry for an absent block or row.
const NONE: u32 = u32::MAX;

/// Parameters of a block-mapped drive, excluding its front end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockMappedSpec {
    /// Geometry of the flash; a unit is one block on all planes of a die.
    pub shape: FlashShape,
    /// Timing of the flash.
    pub timing: FlashTiming,
    /// Share of factory-bad blocks, in percent, 0 to 50.
    pub bad_percent: f64,
    /// Number of units that can have a log at the same time. With 0, a write merges before it
    /// completes.
    pub log_blocks: u32,
    /// Size of the read-ahead buffer in bytes.
    pub buffer_bytes: u64,
    /// Output rate of the drive in bytes per second. The first bytes are sent while the flash is
    /// still reading the rest.
    pub out_bytes_per_s: u64,
}

/// Merges by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MergeCounts {
    /// Logs that became their unit without copying.
    pub switches: u64,
    /// Logs in order, after which the rest of the unit was copied.
    pub partial: u64,
    /// Logs that were copied, with their unit, to a new block.
    pub full: u64,
    /// Rows programmed by merges.
    pub rows_copied: u64,
}

/// The log of a unit: the block that receives its writes.
#[derive(Clone, Debug)]
struct Log {
    block: u32,
    /// For each row of the unit, the log row that contains its newest version.
    newest: Vec<u32>,
    rows: u32,
    /// Whether each row n of the log is row n of the unit.
    is_ordered: bool,
}

/// A row of the disk: its unit and its index in the unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row {
    unit: u32,
    within: u32,
}

#[derive(Clone, Copy, Debug)]
struct Layout {
    shape: FlashShape,
    size_bytes: u64,
    stripe_units: u32,
    units: u32,
    logs_max: u32,
}

struct State {
    layout: Layout,
    flash: Flash,
    free: FreeBlocks,
    content: Content,
    /// The block of each unit.
    blocks: Vec<u32>,
    logs: BTreeMap<u32, Log>,
    /// Units that have a log, oldest log first.
    order: VecDeque<u32>,
    counts: MergeCounts,
    /// Rows that were read ahead, and the time at which each is in the buffer.
    ahead: BTreeMap<u64, u64>,
    /// End offset of the previous read.
    read_end: u64,
}

/// A drive with a map of large units.
pub struct BlockMapped<C> {
    spec: BlockMappedSpec,
    clock: C,
    layout: Layout,
    state: RefCell<State>,
    /// Writes, flushes and trims, which run one at a time, in order of arrival.
    writers: Line,
}

impl Layout {
    fn new(size_bytes: u64, spec: &BlockMappedSpec) -> Result<Self> {
        let shape = spec.shape;
        let logs_max = spec.log_blocks.max(1);
        let stripe_units = shape.dies().min(logs_max);
        let stripe_bytes = shape.block_bytes() * u64::from(stripe_units);
        let units = size_bytes.div_ceil(stripe_bytes).saturating_mul(stripe_units.into());
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        Ok(Self { shape, size_bytes, stripe_units, units, logs_max })
    }

    /// Returns the number of blocks that a die needs: for its units, for all logs in case they are
    /// all on this die, and for one merge.
    fn die_blocks(&self) -> u64 {
        u64::from(self.units.div_ceil(self.shape.dies())) + u64::from(self.logs_max) + 1
    }

    fn row(&self, number: u64) -> Row {
        let width = u64::from(self.stripe_units);
        let stripe_rows = width * u64::from(self.shape.pages_per_block);
        let (stripe, number) = (number / stripe_rows, number % stripe_rows);
        let unit = (stripe * width + number % width) as u32;
        Row { unit, within: (number / width) as u32 }
    }

    fn address(&self, unit: u32, block: u32) -> BlockAddress {
        BlockAddress { die: unit % self.shape.dies(), block }
    }

    /// Returns the key used to store the bytes of a row.
    fn slot(&self, address: BlockAddress, row: u32) -> u64 {
        let block = u64::from(address.die) * u64::from(self.shape.blocks_per_plane);
        (block + u64::from(address.block)) * u64::from(self.shape.pages_per_block) + u64::from(row)
    }

    /// Returns the rows that overlap a range.
    fn parts(&self, offset: u64, len: u64) -> impl Iterator<Item = Part> + use<> {
        parts(self.shape.row_bytes().into(), offset, len)
    }
}

impl State {
    /// Returns the address of the newest version of a row, if the row has ever been written.
    fn find(&self, row: Row) -> Option<(BlockAddress, u32)> {
        if let Some(log) = self.logs.get(&row.unit) {
            let newest = log.newest[row.within as usize];
            if newest != NONE {
                return Some((self.layout.address(row.unit, log.block), newest));
            }
        }
        self.find_below(row)
    }

    /// Returns the address of a row in the unit itself.
    fn find_below(&self, row: Row) -> Option<(BlockAddress, u32)> {
        let block = self.blocks[row.unit as usize];
        let address = self.layout.address(row.unit, block);
        let is_there = block != NONE && row.within < self.flash.programmed_rows(address);
        is_there.then_some((address, row.within))
    }

    fn begin_log(&mut self, unit: u32) {
        let block = self.free.take(self.layout.address(unit, 0).die, Worn::Least);
        let newest = vec![NONE; self.layout.shape.pages_per_block as usize];
        let old = self.logs.insert(unit, Log { block, newest, rows: 0, is_ordered: true });
        self.order.push_back(unit);
        let fits = self.order.len() == self.logs.len() && old.is_none();
        assert!(fits && self.logs.len() <= self.layout.logs_max as usize, "a log too many");
    }

    /// Programs a row in the log of its unit, which must have space. `bytes` replace the row's
    /// bytes starting at `within`. Returns the time at which programming ends.
    fn program(&mut self, now_ns: u64, row: Row, within: usize, bytes: &[u8]) -> Result<u64> {
        let shape = self.layout.shape;
        let old = self.find(row);
        let mut held = None;
        if let Some((address, at)) = old
            && bytes.len() < shape.row_bytes() as usize
        {
            self.flash.read(now_ns, address, at, shape.planes, shape.row_bytes())?;
        }
        if let Some((address, at)) = old {
            held = self.content.take(self.layout.slot(address, at));
        }
        let log = self.logs.get_mut(&row.unit).expect("a unit with programmed rows has a log");
        let address = self.layout.address(row.unit, log.block);
        let ended_ns = self.flash.program(now_ns, address, log.rows)?;
        let slot = self.layout.slot(address, log.rows);
        self.content.put(slot, held);
        self.content.write(slot, within, bytes);
        log.is_ordered &= row.within == log.rows;
        log.newest[row.within as usize] = log.rows;
        log.rows += 1;
        let is_complete = log.is_ordered && log.rows == shape.pages_per_block;
        if is_complete {
            // This only erases a block, and no request waits for it.
            self.merge(now_ns, row.unit)?;
        }
        Ok(ended_ns)
    }

    /// Merges a unit and its log into one block. Returns the time at which the merge ends.
    fn merge(&mut self, now_ns: u64, unit: u32) -> Result<u64> {
        let log = self.logs.remove(&unit).expect("a unit that is merged has a log");
        self.order.retain(|&other| other != unit);
        let shape = self.layout.shape;
        let (log_address, old) = (self.layout.address(unit, log.block), self.blocks[unit as usize]);
        let old_rows = match old {
            NONE => 0,
            old => self.flash.programmed_rows(self.layout.address(unit, old)),
        };
        let newest_end = log.newest.iter().rposition(|&row| row != NONE).map_or(0, |at| at + 1);
        let end = old_rows.max(newest_end as u32);
        let (target, from) = if log.is_ordered {
            (log_address, log.rows)
        } else {
            let block = self.free.take(log_address.die, Worn::Least);
            (self.layout.address(unit, block), 0)
        };
        for within in from..end {
            let newest = log.newest[within as usize];
            let source = match newest {
                NONE => self.find_below(Row { unit, within }),
                row => Some((log_address, row)),
            };
            let mut held = None;
            if let Some((address, at)) = source {
                self.flash.read(now_ns, address, at, shape.planes, shape.row_bytes())?;
                held = self.content.take(self.layout.slot(address, at));
            }
            // Rows without data are also programmed, because blocks must be programmed in order.
            self.flash.program(now_ns, target, within)?;
            self.content.put(self.layout.slot(target, within), held);
            self.counts.rows_copied += 1;
        }
        self.blocks[unit as usize] = target.block;
        match (log.is_ordered, from < end) {
            (true, false) => self.counts.switches += 1,
            (true, true) => self.counts.partial += 1,
            (false, _) => self.counts.full += 1,
        }
        if !log.is_ordered {
            self.erase(now_ns, log_address)?;
        }
        if old != NONE {
            self.erase(now_ns, self.layout.address(unit, old))?;
        }
        Ok(self.flash.free_at_ns(log_address.die))
    }

    /// Erases a block and discards its bytes.
    fn erase(&mut self, now_ns: u64, address: BlockAddress) -> Result<()> {
        for row in 0..self.flash.programmed_rows(address) {
            self.content.take(self.layout.slot(address, row));
        }
        self.flash.erase(now_ns, address)?;
        self.free.release(address, self.flash.erases(address));
        Ok(())
    }

    /// Reads ahead for a sequential stream that has reached `end`.
    fn read_ahead(&mut self, now_ns: u64, end: u64, buffer_bytes: u64) -> Result<()> {
        let (shape, size_bytes) = (self.layout.shape, self.layout.size_bytes);
        let rows = buffer_bytes / u64::from(shape.row_bytes());
        let first = end / u64::from(shape.row_bytes());
        let last = size_bytes / u64::from(shape.row_bytes());
        self.ahead.retain(|&row, _| row >= first);
        for number in first..(first + rows).min(last) {
            if self.ahead.contains_key(&number) {
                continue;
            }
            let Some((address, row)) = self.find(self.layout.row(number)) else { continue };
            let (planes, bytes) = (shape.planes, shape.row_bytes());
            let ended_ns = self.flash.read(now_ns, address, row, planes, bytes)?;
            self.ahead.insert(number, ended_ns);
        }
        Ok(())
    }
}

impl<C: Clock> BlockMapped<C> {
    /// Creates an empty drive with a disk of `size_bytes` bytes.
    ///
    /// # Errors
    /// `InvalidInput` for an impossible flash, or one without space for the units, the logs and a
    /// merge.
    pub fn new(size_bytes: u64, spec: BlockMappedSpec, clock: C) -> Result<Self> {
        let wrong = |what: String| Err(Error::InvalidInput(what.into()));
        let flash = Flash::new(spec.shape, spec.timing)?;
        if !(0.0..=50.0).contains(&spec.bad_percent) {
            return wrong("bad_percent must be from 0 to 50".into());
        }
        if spec.out_bytes_per_s == 0 {
            return wrong("the speed of the link must not be zero".into());
        }
        let layout = Layout::new(size_bytes, &spec)?;
        let free = FreeBlocks::new(&spec.shape, spec.bad_percent, 1);
        let has = u64::from(free.segment_count());
        if layout.die_blocks() > has {
            let what =
                format!("a die needs {} blocks for the units, the logs", layout.die_blocks());
            return wrong(format!("{what} and a merge, and has {has} good ones"));
        }
        let state = State {
            layout,
            flash,
            free,
            content: Content::new(spec.shape.row_bytes() as usize),
            blocks: vec![NONE; layout.units as usize],
            logs: BTreeMap::new(),
            order: VecDeque::new(),
            counts: MergeCounts::default(),
            ahead: BTreeMap::new(),
            read_end: 0,
        };
        Ok(Self { spec, clock, layout, state: RefCell::new(state), writers: Line::default() })
    }

    /// Returns the number of merges so far, by kind.
    pub fn merges(&self) -> MergeCounts {
        self.state.borrow().counts
    }

    /// Returns the number of flash operations so far.
    pub(crate) fn flash_counts(&self) -> FlashCounts {
        self.state.borrow().flash.counts()
    }

    /// Returns the erase count of each good block.
    pub fn wear(&self) -> Vec<u32> {
        let state = self.state.borrow();
        state.free.erases(&state.flash).collect()
    }

    /// Reads whole sectors.
    ///
    /// # Errors
    /// `InvalidInput` for a range that is not aligned to sectors or extends beyond the disk.
    pub async fn read(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        let len = target.len() as u64;
        check_range(self.layout.size_bytes, offset, len)?;
        let ended_ns = self.sense(offset, target)?;
        // Data that is ready is sent to the host while the flash reads the rest, except for the
        // last row.
        let row_bytes = u64::from(self.layout.shape.row_bytes());
        let early_ns = transfer_ns(len.saturating_sub(row_bytes), self.spec.out_bytes_per_s);
        self.until_ns(ended_ns.saturating_sub(early_ns)).await;
        Ok(())
    }

    /// Reads, and reads ahead if this read continues the previous one. Returns the time at which
    /// the last byte is available.
    fn sense(&self, offset: u64, target: &mut [u8]) -> Result<u64> {
        let now_ns = self.clock.now_ns();
        let state = &mut *self.state.borrow_mut();
        let page_bytes = self.layout.shape.page_bytes as usize;
        let (len, mut rest) = (target.len() as u64, target);
        let mut ended_ns = now_ns;
        for Part { slot: number, within, len } in self.layout.parts(offset, len) {
            let part;
            (part, rest) = std::mem::take(&mut rest).split_at_mut(len);
            let Some((address, row)) = state.find(self.layout.row(number)) else {
                part.fill(0);
                continue;
            };
            state.content.read(self.layout.slot(address, row), within, part);
            let pages = (within + len).div_ceil(page_bytes) - within / page_bytes;
            let read_ns = match state.ahead.get(&number) {
                Some(&in_buffer_ns) => in_buffer_ns,
                None => state.flash.read(now_ns, address, row, pages as u32, len as u32)?,
            };
            ended_ns = ended_ns.max(read_ns);
        }
        let is_stream = offset == state.read_end;
        state.read_end = offset + len;
        if is_stream {
            state.read_ahead(now_ns, offset + len, self.spec.buffer_bytes)?
        } else {
            state.ahead.clear()
        }
        Ok(ended_ns)
    }

    /// Writes whole sectors. They are in flash when this returns.
    ///
    /// # Errors
    /// `InvalidInput` for a range that is not aligned to sectors or extends beyond the disk.
    pub async fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        check_range(self.layout.size_bytes, offset, bytes.len() as u64)?;
        let _turn = self.turn().await;
        self.state.borrow_mut().ahead.clear();
        let (mut rest, mut ended_ns) = (bytes, 0);
        for Part { slot, within, len } in self.layout.parts(offset, bytes.len() as u64) {
            let part;
            (part, rest) = rest.split_at(len);
            let row = self.layout.row(slot);
            self.make_room(row.unit).await?;
            let now_ns = self.clock.now_ns();
            let state = &mut *self.state.borrow_mut();
            ended_ns = ended_ns.max(state.program(now_ns, row, within, part)?);
        }
        self.until_ns(ended_ns).await;
        if self.spec.log_blocks == 0 {
            while let Some(ended_ns) = self.merge_oldest()? {
                self.until_ns(ended_ns).await;
            }
        }
        Ok(())
    }

    /// Waits until all earlier writes are in flash.
    ///
    /// # Errors
    /// Never fails at present.
    pub async fn flush(&self) -> Result<()> {
        drop(self.turn().await);
        Ok(())
    }

    /// Makes sectors read as zeroes, which the map is assumed to record at no cost, and erases the
    /// blocks of units that are completely within the range.
    ///
    /// # Errors
    /// `InvalidInput` for a range that is not aligned to sectors or extends beyond the disk.
    pub async fn trim(&self, offset: u64, len: u64) -> Result<()> {
        check_range(self.layout.size_bytes, offset, len)?;
        let _turn = self.turn().await;
        let now_ns = self.clock.now_ns();
        let state = &mut *self.state.borrow_mut();
        state.ahead.clear();
        let stripe_bytes = self.layout.shape.block_bytes() * u64::from(self.layout.stripe_units);
        let first = offset.div_ceil(stripe_bytes);
        let end = ((offset + len) / stripe_bytes).max(first);
        for unit in
            first * u64::from(self.layout.stripe_units)..end * u64::from(self.layout.stripe_units)
        {
            let unit = unit as u32;
            if let Some(log) = state.logs.remove(&unit) {
                state.order.retain(|&other| other != unit);
                state.erase(now_ns, self.layout.address(unit, log.block))?;
            }
            let block = std::mem::replace(&mut state.blocks[unit as usize], NONE);
            if block != NONE {
                state.erase(now_ns, self.layout.address(unit, block))?;
            }
        }
        for Part { slot, within, len } in self.layout.parts(offset, len) {
            if let Some((address, row)) = state.find(self.layout.row(slot)) {
                state.content.write(self.layout.slot(address, row), within, &vec![0; len]);
            }
        }
        Ok(())
    }

    /// Merges until a unit has a log with free space.
    async fn make_room(&self, unit: u32) -> Result<()> {
        loop {
            let ended_ns = {
                let now_ns = self.clock.now_ns();
                let state = &mut *self.state.borrow_mut();
                match state.logs.get(&unit) {
                    Some(log) if log.rows < self.layout.shape.pages_per_block => return Ok(()),
                    Some(_) => state.merge(now_ns, unit)?,
                    None if state.logs.len() < self.layout.logs_max as usize => {
                        state.begin_log(unit);
                        return Ok(());
                    }
                    None => {
                        let oldest = *state.order.front().expect("every log is in the queue");
                        state.merge(now_ns, oldest)?
                    }
                }
            };
            self.until_ns(ended_ns).await;
        }
    }

    /// Merges the oldest log. Returns the time at which the merge ends.
    fn merge_oldest(&self) -> Result<Option<u64>> {
        let now_ns = self.clock.now_ns();
        let state = &mut *self.state.borrow_mut();
        let Some(&oldest) = state.order.front() else { return Ok(None) };
        state.merge(now_ns, oldest).map(Some)
    }

    /// Acquires the exclusive right to write.
    async fn turn(&self) -> Place<'_> {
        self.writers.turn().await
    }

    async fn until_ns(&self, ns: u64) {
        let now_ns = self.clock.now_ns();
        if ns > now_ns {
            self.clock.sleep_ns(ns - now_ns).await;
        }
    }
}

#[cfg(test)]
mod tests;

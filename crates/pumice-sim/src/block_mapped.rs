//! A flash translation layer whose map knows units of an erase block, in virtual time, with its
//! bytes in memory: what drives without memory for a finer map did.
//!
//! ```text
//! unit   an erase block on a die; at most one more, its log, takes rows in any order
//! write  row -> the unit's log; a unit that has none begins one, for which the oldest log is
//!        merged when there are as many as there may be
//! merge  log in order:  the rest of the unit is copied behind it, and it is the unit (if nothing
//!                       is left to copy: a switch); one erase
//!        any other:     every row is copied from log or unit to a new block; two erases
//! ```
//!
//! Source: the log blocks that belong to one unit each, and their merges: Kim et al., A
//! Space-Efficient Flash Translation Layer for CompactFlash Systems, IEEE Transactions on Consumer
//! Electronics 48(2), 2002.
//!
//! **Where rows are**: neighbouring rows are in neighbouring units, on dies of different channels;
//! a stripe has as many units as there may be logs (all dies at most), so that a stream that is
//! written in order keeps its stripe's logs open and reads come from all channels. A unit never
//! leaves its die, so that a merge is reads and programs one after the other.
//!
//! **Bytes are held by the place in flash at which they are**: a map that loses a row loses its
//! bytes. The rules of flash are checked by [`Flash`]. Writes are done one after the other, reads
//! beside them; nothing waits in a buffer, and a flush has nothing to do. The buffer is for reading
//! ahead of a stream.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};

use super::content::{Content, Part, check_range, parts};
use crate::nand::{BlockAddress, Flash, FlashCounts, FlashShape, FlashTiming, FreeBlocks, Worn};
use crate::{Error, Result};
use pumice_drive::base::Clock;
use pumice_drive::base::units::transfer_ns;
use pumice_drive::base::wait::WaitQueue;

/// A table's entry for what is not there.
const NONE: u32 = u32::MAX;

/// What a block-mapped drive is, behind its front.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockMappedSpec {
    /// Its flash; a unit is a block on all planes of a die.
    pub shape: FlashShape,
    /// See `shape`.
    pub timing: FlashTiming,
    /// Blocks that are bad from the beginning, in per cent, 0 to 50.
    pub bad_percent: f64,
    /// Units that may have a log at the same time; with 0 a write merges before it is done.
    pub log_blocks: u32,
    /// Bytes that are read ahead of a stream.
    pub buffer_bytes: u64,
    /// Bytes a second at which what was read leaves the drive, the first of it while the flash
    /// still reads the rest.
    pub out_bytes_per_s: u64,
}

/// What became of logs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MergeCounts {
    /// Logs that became their unit with nothing to copy.
    pub switches: u64,
    /// Logs in order, behind which the rest of the unit was copied.
    pub partial: u64,
    /// Logs that were copied, with their unit, to a new block.
    pub full: u64,
    /// Rows that were programmed by merges.
    pub rows_copied: u64,
}

/// A block that takes the writes of one unit.
#[derive(Clone, Debug)]
struct Log {
    block: u32,
    /// By row of the unit, the log's row with the newest of it.
    newest: Vec<u32>,
    rows: u32,
    /// Whether row n of the log is row n of the unit, as far as it goes.
    is_ordered: bool,
}

/// A row of the disk: of which unit, and where in it.
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
    /// Block of each unit.
    blocks: Vec<u32>,
    logs: BTreeMap<u32, Log>,
    /// Units that have a log, the one that got it first in front.
    order: VecDeque<u32>,
    counts: MergeCounts,
    /// Rows that were read ahead, and when each is in the buffer.
    ahead: BTreeMap<u64, u64>,
    /// The byte behind the last read.
    read_end: u64,
}

/// A drive with a map of large units.
pub struct BlockMapped<C> {
    spec: BlockMappedSpec,
    clock: C,
    layout: Layout,
    state: RefCell<State>,
    is_writing: Cell<bool>,
    written: WaitQueue,
}

/// The right to write, until it is dropped.
struct Turn<'a, C>(&'a BlockMapped<C>);

impl<C> Drop for Turn<'_, C> {
    fn drop(&mut self) {
        self.0.is_writing.set(false);
        self.0.written.wake_all();
    }
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

    /// Blocks that a die needs: for its units, for the logs if all are on it, and for a merge.
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

    /// Where the bytes of a row of a block are held.
    fn slot(&self, address: BlockAddress, row: u32) -> u64 {
        let block = u64::from(address.die) * u64::from(self.shape.blocks_per_plane);
        (block + u64::from(address.block)) * u64::from(self.shape.pages_per_block) + u64::from(row)
    }

    /// The rows that a range touches.
    fn parts(&self, offset: u64, len: u64) -> impl Iterator<Item = Part> + use<> {
        parts(self.shape.row_bytes().into(), offset, len)
    }
}

impl State {
    /// Where the newest of a row is, if it was ever written.
    fn find(&self, row: Row) -> Option<(BlockAddress, u32)> {
        if let Some(log) = self.logs.get(&row.unit) {
            let newest = log.newest[row.within as usize];
            if newest != NONE {
                return Some((self.layout.address(row.unit, log.block), newest));
            }
        }
        self.find_below(row)
    }

    /// Where a row is in the unit itself.
    fn find_below(&self, row: Row) -> Option<(BlockAddress, u32)> {
        let block = self.blocks[row.unit as usize];
        let address = self.layout.address(row.unit, block);
        let is_there = block != NONE && row.within < self.flash.programmed_rows(address);
        is_there.then_some((address, row.within))
    }

    fn begin_log(&mut self, unit: u32) {
        let block = self.free.take(self.layout.address(unit, 0).die, Worn::Least);
        let newest = vec![NONE; self.layout.shape.pages_per_block as usize];
        self.logs.insert(unit, Log { block, newest, rows: 0, is_ordered: true });
        self.order.push_back(unit);
    }

    /// Programs a row, of which `bytes` are new from byte `within` on, in its unit's log, which has
    /// room; gives when it is in the array.
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
        let log = self.logs.get_mut(&row.unit).expect("a log was begun for what is programmed");
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
            // Only an erase, for which nobody waits.
            self.merge(now_ns, row.unit)?;
        }
        Ok(ended_ns)
    }

    /// Makes one block of a unit and its log; gives when that has ended.
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
        let (target, from) = match log.is_ordered {
            true => (log_address, log.rows),
            false => {
                let block = self.free.take(log_address.die, Worn::Least);
                (self.layout.address(unit, block), 0)
            }
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
            // What nobody has is programmed too: rows are programmed in order.
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

    /// Erases a block and what it holds.
    fn erase(&mut self, now_ns: u64, address: BlockAddress) -> Result<()> {
        for row in 0..self.flash.programmed_rows(address) {
            self.content.take(self.layout.slot(address, row));
        }
        self.flash.erase(now_ns, address)?;
        self.free.give(address, self.flash.erases(address));
        Ok(())
    }

    /// Reads rows ahead of a stream that has come to `end`.
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
    /// An empty drive with a disk of `size_bytes` bytes.
    ///
    /// # Errors
    /// `InvalidInput` for flash that cannot be, or that does not hold the units, the logs and the
    /// room for a merge.
    pub fn new(size_bytes: u64, spec: BlockMappedSpec, clock: C) -> Result<Self> {
        let wrong = |what: String| Err(Error::InvalidInput(what.into()));
        let flash = Flash::new(spec.shape, spec.timing)?;
        if !(0.0..=50.0).contains(&spec.bad_percent) {
            return wrong("0 to 50 per cent of the blocks are bad".into());
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
        let (is_writing, written) = (Cell::new(false), WaitQueue::default());
        Ok(Self { spec, clock, layout, state: RefCell::new(state), is_writing, written })
    }

    /// What became of logs so far.
    pub fn merges(&self) -> MergeCounts {
        self.state.borrow().counts
    }

    /// What was done to the flash so far.
    pub fn flash_counts(&self) -> FlashCounts {
        self.state.borrow().flash.counts()
    }

    /// How often each block was erased that is not bad.
    pub fn wear(&self) -> Vec<u32> {
        let state = self.state.borrow();
        state.free.erases(&state.flash).collect()
    }

    /// Reads whole sectors.
    ///
    /// # Errors
    /// `InvalidInput` for a range that is not of whole sectors of the disk.
    pub async fn read(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        let len = target.len() as u64;
        check_range(self.layout.size_bytes, offset, len)?;
        let ended_ns = self.sense(offset, target)?;
        // The wire takes what is there while the flash reads the rest, but for the last row.
        let row_bytes = u64::from(self.layout.shape.row_bytes());
        let early_ns = transfer_ns(len.saturating_sub(row_bytes), self.spec.out_bytes_per_s);
        self.until_ns(ended_ns.saturating_sub(early_ns)).await;
        Ok(())
    }

    /// Reads, and ahead if this continues the read before; gives when the last byte is there.
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
        match is_stream {
            true => state.read_ahead(now_ns, offset + len, self.spec.buffer_bytes)?,
            false => state.ahead.clear(),
        }
        Ok(ended_ns)
    }

    /// Writes whole sectors; they are in the flash when this returns.
    ///
    /// # Errors
    /// `InvalidInput` for a range that is not of whole sectors of the disk.
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

    /// Waits until what was written before is in the flash.
    ///
    /// # Errors
    /// None so far.
    pub async fn flush(&self) -> Result<()> {
        drop(self.turn().await);
        Ok(())
    }

    /// Lets sectors read as zeroes, which the drive's map is taken to remember at no cost; the
    /// blocks of units that lie within the range as a whole are erased.
    ///
    /// # Errors
    /// `InvalidInput` for a range that is not of whole sectors of the disk.
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

    /// Merges until a unit has a log with room.
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
                        let oldest = *state.order.front().expect("every log has a place in order");
                        state.merge(now_ns, oldest)?
                    }
                }
            };
            self.until_ns(ended_ns).await;
        }
    }

    /// Merges the oldest log; gives when that has ended.
    fn merge_oldest(&self) -> Result<Option<u64>> {
        let now_ns = self.clock.now_ns();
        let state = &mut *self.state.borrow_mut();
        let Some(&oldest) = state.order.front() else { return Ok(None) };
        state.merge(now_ns, oldest).map(Some)
    }

    async fn turn(&self) -> Turn<'_, C> {
        self.written.wait_for(|| (!self.is_writing.get()).then_some(())).await;
        self.is_writing.set(true);
        Turn(self)
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

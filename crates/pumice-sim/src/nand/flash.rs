//! NAND flash in virtual time: its rules, and the completion time of each operation.
//!
//! ```text
//! channel 0 (a bus)  die 0   die 1   ..      a die performs one operation at a time
//! channel 1          die c   ..              a bus carries one transfer at a time
//! program  bus: pages to the die's register -> die: tPROG
//! read     die: tR -> bus: the requested bytes
//! erase    die: tERASE
//! ```
//!
//! Operations are issued in order of time. Each starts as soon as its die and its bus are free, and
//! returns its completion time. There are no events between calls, so a simulation costs a few
//! additions per operation and needs no event queue.
//!
//! A *row* is one page on each plane of a die, and a *block* is one erase block on each plane. All
//! planes are always used together, simultaneously if the part supports it (`multi_plane`),
//! otherwise one after another.
//!
//! **The rules of flash** are checked: a page is programmed only once between two erasures, in
//! order within its block, and read only after it was programmed. The module handles no host
//! addresses and stores no bytes.

use super::timeline::Timeline;
use crate::{Error, Result};
use pumice_drive::base::units::transfer_ns;

/// Maximum number of blocks in a flash. The table of blocks needs 16 bytes for each.
const BLOCKS_MAX: u64 = 1 << 26;

/// Geometry of a flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlashShape {
    /// Number of buses between the controller and the dies.
    pub channels: u32,
    /// Number of dies on each channel.
    pub dies_per_channel: u32,
    /// Number of planes in a die.
    pub planes: u32,
    /// Number of erase blocks in a plane, including bad blocks.
    pub blocks_per_plane: u32,
    /// Number of pages in an erase block.
    pub pages_per_block: u32,
    /// Page size in bytes, excluding the spare area.
    pub page_bytes: u32,
}

/// Timing of a flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlashTiming {
    /// Time from the array to a die's register (tR), in ns.
    pub read_ns: u64,
    /// Time from the register into the array (tPROG), averaged over the rows of a block, in ns.
    pub program_ns: u64,
    /// tPROG of the fast rows of a block, in ns, at most `program_ns`. Two-bit cells program the
    /// first bit faster than the second.
    pub program_fast_ns: u64,
    /// tERASE, in ns.
    pub erase_ns: u64,
    /// Transfer rate of a channel in bytes per second.
    pub bus_bytes_per_s: u64,
    /// Whether all planes of a die are sensed, programmed and erased simultaneously.
    pub multi_plane: bool,
    /// Whether a die accepts the data of the next row while it is programming.
    pub cache_program: bool,
}

/// Counters of flash operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlashCounts {
    /// Pages programmed.
    pub pages_programmed: u64,
    /// Pages sensed.
    pub pages_read: u64,
    /// Erase blocks erased; a set of one on each plane counts as one.
    pub blocks_erased: u64,
}

/// A block: one erase block on each plane of a die.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockAddress {
    /// Number of the die, from 0. The dies of a channel have numbers that are `channels` apart, so
    /// that adjacent dies are on different buses.
    pub die: u32,
    /// Number of the block within each plane, from 0.
    pub block: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Die {
    /// Time at which the die becomes idle.
    free_ns: u64,
    /// Time at which the register accepts data again; not later than `free_ns`.
    register_free_ns: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Block {
    next_row: u32,
    erases: u32,
}

/// A flash, with its state and timing.
#[derive(Clone, Debug)]
pub struct Flash {
    shape: FlashShape,
    timing: FlashTiming,
    dies: Vec<Die>,
    buses: Vec<Timeline>,
    blocks: Vec<Block>,
    counts: FlashCounts,
    #[cfg(test)]
    taken: Vec<tests::Taken>,
}

impl FlashShape {
    /// Returns the number of dies.
    pub fn dies(&self) -> u32 {
        self.channels * self.dies_per_channel
    }

    /// Returns the size of a row in bytes: one page on each plane.
    pub fn row_bytes(&self) -> u32 {
        self.planes * self.page_bytes
    }

    /// Returns the size of a block in bytes: one erase block on each plane.
    pub fn block_bytes(&self) -> u64 {
        u64::from(self.row_bytes()) * u64::from(self.pages_per_block)
    }

    /// Returns the total size of all pages in bytes.
    pub fn bytes(&self) -> u64 {
        self.block_bytes() * u64::from(self.blocks_per_plane) * u64::from(self.dies())
    }

    /// Checks the geometry.
    ///
    /// # Errors
    /// `InvalidInput` if a number is zero, `page_bytes` is not a power of two from 512 bytes to
    /// 1 MiB, or the flash is larger than a simulation can count.
    pub fn check(&self) -> Result<()> {
        let parts = [
            ("channels", self.channels),
            ("dies_per_channel", self.dies_per_channel),
            ("planes", self.planes),
            ("blocks_per_plane", self.blocks_per_plane),
            ("pages_per_block", self.pages_per_block),
        ];
        for (name, value) in parts {
            if value == 0 || value > 1 << 20 {
                return Err(wrong(format!("{name} must be from 1 to {}, not {value}", 1 << 20)));
            }
        }
        if !self.page_bytes.is_power_of_two() || !(512..=1 << 20).contains(&self.page_bytes) {
            let what = "page_bytes must be a power of two from 512 to 1048576";
            return Err(wrong(format!("{what}, not {}", self.page_bytes)));
        }
        let dies = u64::from(self.channels) * u64::from(self.dies_per_channel);
        let blocks = dies.saturating_mul(self.blocks_per_plane.into());
        let row_bytes = u64::from(self.planes) * u64::from(self.page_bytes);
        if blocks > BLOCKS_MAX || row_bytes > 1 << 24 {
            return Err(wrong("a flash of this shape is too large to be simulated".into()));
        }
        Ok(())
    }
}

impl FlashTiming {
    /// Checks the timing.
    ///
    /// # Errors
    /// `InvalidInput` for a bus with a speed of 0, or times above ten seconds.
    pub fn check(&self) -> Result<()> {
        if self.bus_bytes_per_s == 0 {
            return Err(wrong("bus_bytes_per_s must not be zero".into()));
        }
        if self.program_fast_ns > self.program_ns {
            return Err(wrong("program_fast_ns must be at most program_ns".into()));
        }
        let times = [self.read_ns, self.program_ns, self.erase_ns];
        if times.iter().any(|&ns| ns > 10_000_000_000) {
            return Err(wrong("the time of a flash operation must be at most ten seconds".into()));
        }
        Ok(())
    }

    /// Returns tPROG of a row, in ns. Two fast rows alternate with two slow ones.
    ///
    /// Source: the order in which MLC is programmed, in pairs of rows that share cells. The exact
    /// pattern differs between parts, and this one is a guess.
    pub(crate) fn row_program_ns(&self, row: u32) -> u64 {
        let is_fast = row & 2 == 0;
        if is_fast { self.program_fast_ns } else { 2 * self.program_ns - self.program_fast_ns }
    }

    /// Returns the duration of a transfer on the bus, in ns, rounded up.
    pub fn transfer_ns(&self, bytes: u64) -> u64 {
        transfer_ns(bytes, self.bus_bytes_per_s)
    }
}

fn wrong(what: String) -> Error {
    Error::InvalidInput(what.into())
}

impl Flash {
    /// Creates an erased flash at time 0.
    ///
    /// # Errors
    /// The errors of [`FlashShape::check`] and [`FlashTiming::check`].
    pub fn new(shape: FlashShape, timing: FlashTiming) -> Result<Self> {
        shape.check()?;
        timing.check()?;
        let dies = shape.dies() as usize;
        Ok(Self {
            shape,
            timing,
            dies: vec![Die::default(); dies],
            buses: vec![Timeline::default(); shape.channels as usize],
            blocks: vec![Block::default(); dies * shape.blocks_per_plane as usize],
            counts: FlashCounts::default(),
            #[cfg(test)]
            taken: Vec::new(),
        })
    }

    /// Returns the geometry.
    pub fn shape(&self) -> &FlashShape {
        &self.shape
    }

    /// Returns the timing of the parts.
    pub fn timing(&self) -> &FlashTiming {
        &self.timing
    }

    /// Returns the number of operations so far.
    pub fn counts(&self) -> FlashCounts {
        self.counts
    }

    /// Returns the erase count of a block.
    ///
    /// # Panics
    /// If the block does not exist.
    pub fn erases(&self, address: BlockAddress) -> u32 {
        self.blocks[self.index(address)].erases
    }

    /// Returns the number of rows of a block that have been issued for programming since the block
    /// was erased.
    ///
    /// # Panics
    /// If the block does not exist.
    pub(crate) fn programmed_rows(&self, address: BlockAddress) -> u32 {
        self.blocks[self.index(address)].next_row
    }

    /// Returns the erase count of each block, die by die.
    pub fn wear(&self) -> impl Iterator<Item = u32> {
        self.blocks.iter().map(|block| block.erases)
    }

    /// Returns the time at which a die accepts the data of another row.
    pub(crate) fn takes_row_at_ns(&self, die: u32) -> u64 {
        let die = &self.dies[die as usize];
        if self.timing.cache_program { die.register_free_ns } else { die.free_ns }
    }

    /// Returns the time at which a die has completed all issued operations.
    pub fn free_at_ns(&self, die: u32) -> u64 {
        self.dies[die as usize].free_ns
    }

    /// Programs the next row of a block, which must be `row`. Returns the completion time. The
    /// times of calls must not decrease.
    ///
    /// # Errors
    /// `InvalidInput` if `row` is not the next erased row.
    pub fn program(&mut self, now_ns: u64, address: BlockAddress, row: u32) -> Result<u64> {
        let index = self.checked(address)?;
        if self.blocks[index].next_row != row || row >= self.shape.pages_per_block {
            let what = "pages must be programmed in order, once between two erases";
            return Err(broken(what, address, row));
        }
        self.blocks[index].next_row += 1;
        self.counts.pages_programmed += u64::from(self.shape.planes);
        // Without multi-plane operation, each page is transferred and programmed before the next.
        let (times, pages) =
            if self.timing.multi_plane { (1, self.shape.planes) } else { (self.shape.planes, 1) };
        let transfer_ns =
            self.timing.transfer_ns(u64::from(pages) * u64::from(self.shape.page_bytes));
        let bus = &mut self.buses[(address.die % self.shape.channels) as usize];
        let die = &mut self.dies[address.die as usize];
        for _ in 0..times {
            let ready = if self.timing.cache_program { die.register_free_ns } else { die.free_ns };
            let sent_ns = bus.take(now_ns, ready, transfer_ns) + transfer_ns;
            let begun_ns = sent_ns.max(die.free_ns);
            die.register_free_ns = begun_ns;
            die.free_ns = begun_ns + self.timing.row_program_ns(row);
            #[cfg(test)]
            self.taken.extend([
                tests::Taken::bus(address.die, sent_ns - transfer_ns, sent_ns),
                tests::Taken::array(address.die, begun_ns, die.free_ns),
            ]);
        }
        Ok(die.free_ns)
    }

    /// Reads `bytes` bytes from `pages` pages of a row, each on a different plane. Returns the time
    /// at which the last byte has left the bus. The times of calls must not decrease.
    ///
    /// # Errors
    /// `InvalidInput` if the row has not been programmed, or is shorter.
    pub fn read(
        &mut self,
        now_ns: u64,
        address: BlockAddress,
        row: u32,
        pages: u32,
        bytes: u32,
    ) -> Result<u64> {
        let index = self.checked(address)?;
        if row >= self.blocks[index].next_row {
            return Err(broken("a page was read before it was programmed", address, row));
        }
        let has = u64::from(pages) * u64::from(self.shape.page_bytes);
        if pages == 0 || pages > self.shape.planes || u64::from(bytes) > has {
            return Err(broken("a read is longer than the row", address, row));
        }
        self.counts.pages_read += u64::from(pages);
        let times = if self.timing.multi_plane { 1 } else { u64::from(pages) };
        let transfer_ns = self.timing.transfer_ns(bytes.into());
        let die = &mut self.dies[address.die as usize];
        let sensed_ns = die.free_ns.max(now_ns) + times * self.timing.read_ns;
        let bus = &mut self.buses[(address.die % self.shape.channels) as usize];
        let ended_ns = bus.take(now_ns, sensed_ns, transfer_ns) + transfer_ns;
        #[cfg(test)]
        self.taken.extend([
            tests::Taken::array(address.die, sensed_ns - times * self.timing.read_ns, sensed_ns),
            tests::Taken::bus(address.die, ended_ns - transfer_ns, ended_ns),
        ]);
        // The register contains the data until the transfer ends.
        die.free_ns = ended_ns;
        die.register_free_ns = ended_ns;
        Ok(ended_ns)
    }

    /// Reads `bytes` bytes of a page of the drive's own data, which is not part of any block of
    /// this flash. Returns the time at which the last byte has left the bus. The times of calls
    /// must not decrease.
    ///
    /// # Panics
    /// If the die does not exist.
    pub(crate) fn read_own(&mut self, now_ns: u64, die: u32, bytes: u32) -> u64 {
        self.counts.pages_read += 1;
        let transfer_ns = self.timing.transfer_ns(bytes.into());
        let bus = &mut self.buses[(die % self.shape.channels) as usize];
        let die = &mut self.dies[die as usize];
        let sensed_ns = die.free_ns.max(now_ns) + self.timing.read_ns;
        let ended_ns = bus.take(now_ns, sensed_ns, transfer_ns) + transfer_ns;
        die.free_ns = ended_ns;
        die.register_free_ns = ended_ns;
        ended_ns
    }

    /// Erases a block. Returns the completion time. The times of calls must not decrease.
    ///
    /// # Errors
    /// `InvalidInput` if the block does not exist.
    pub fn erase(&mut self, now_ns: u64, address: BlockAddress) -> Result<u64> {
        let index = self.checked(address)?;
        let block = &mut self.blocks[index];
        block.next_row = 0;
        block.erases += 1;
        self.counts.blocks_erased += 1;
        let times = if self.timing.multi_plane { 1 } else { u64::from(self.shape.planes) };
        let die = &mut self.dies[address.die as usize];
        let begun_ns = die.free_ns.max(now_ns);
        die.free_ns = begun_ns + times * self.timing.erase_ns;
        die.register_free_ns = die.free_ns;
        #[cfg(test)]
        self.taken.push(tests::Taken::array(address.die, begun_ns, die.free_ns));
        Ok(die.free_ns)
    }

    fn index(&self, address: BlockAddress) -> usize {
        address.die as usize * self.shape.blocks_per_plane as usize + address.block as usize
    }

    fn checked(&self, address: BlockAddress) -> Result<usize> {
        let exists = address.die < self.shape.dies() && address.block < self.shape.blocks_per_plane;
        if exists {
            Ok(self.index(address))
        } else {
            Err(broken("there is no such block", address, 0))
        }
    }
}

/// Returns the error for a violated rule of flash, which is a bug of the caller.
fn broken(rule: &str, address: BlockAddress, row: u32) -> Error {
    let BlockAddress { die, block } = address;
    wrong(format!("{rule}: die {die}, block {block}, row {row}"))
}

#[cfg(test)]
mod tests;

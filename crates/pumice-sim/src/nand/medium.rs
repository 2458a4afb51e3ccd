//! A medium of simulated flash for the controller, in virtual time: bytes in memory, times from
//! [`Flash`].
//!
//! ```text
//! segment   one block on every die, chosen among the least worn when the segment is begun
//! row r     die 0, die 1, .. in turn
//! append    bytes to memory; each complete row is programmed when its die accepts it
//! discard   every block erased, in the background
//! ```
//!
//! **Incomplete rows stay in the controller's buffer**: the end of a stream that is shorter than a
//! row is not on flash yet, is read without delay, and counts as durable, as on a drive whose
//! buffer survives a power loss. Superblock slots are outside the flash and take no time.
//!
//! An append queues only one row at a die at a time, so that reads can intervene.

use std::cell::RefCell;
use std::sync::Arc;

use super::blocks::{FreeBlocks, Worn};
use super::flash::{BlockAddress, Flash, FlashCounts};
use pumice_drive::base::units::transfer_ns;
use pumice_drive::base::{AlignedBuffer, Clock, Error, ErrorKind, Result, SegmentId};
use pumice_drive::media::layer::Layer;
use pumice_drive::media::mem::MemMedium;
use pumice_drive::media::{Capabilities, Geometry, Medium, SUPERBLOCK_SLOTS, SUPERBLOCK_STRIDE};

/// Write unit of the medium in bytes: the smallest page of the simulated flash.
const WRITE_UNIT: u32 = 4096;

/// Read unit in bytes: a sector, the smallest part of a page that is transferred.
const READ_UNIT: u32 = 512;

/// Use of the flash by the controller.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NandSpec {
    /// Share of factory-bad blocks, in per cent, 0 to 50; drawn by `seed`.
    pub bad_percent: f64,
    /// Seed that chooses the bad blocks.
    pub seed: u64,
    /// Limit on the bytes per second that the controller sends to its flash.
    pub store_bytes_per_s: Option<u64>,
}

/// A medium of simulated flash.
pub struct NandMedium<C> {
    memory: MemMedium,
    clock: C,
    spec: NandSpec,
    geometry: Geometry,
    state: RefCell<State>,
}

struct State {
    flash: Flash,
    free: FreeBlocks,
    segments: Vec<Option<SegmentBlocks>>,
    /// Time at which the controller can send the next row to the flash.
    store_free_ns: u64,
}

/// The blocks of a segment.
struct SegmentBlocks {
    /// The block on each die.
    blocks: Box<[u32]>,
    /// Rows that were issued to the flash.
    rows: u32,
    /// Time at which the last of these rows is programmed.
    ended_ns: u64,
}

impl State {
    /// Returns the blocks of a segment; assigns the least worn ones if it has none yet.
    fn blocks_of(
        &mut self,
        segment: SegmentId,
    ) -> Result<(&mut SegmentBlocks, &mut Flash, &mut u64)> {
        let Some(entry) = self.segments.get_mut(segment.0 as usize) else {
            let what = "the medium has no such segment";
            return Err(Error::new(ErrorKind::InvalidInput, what).in_segment(segment));
        };
        let placed = match entry {
            Some(placed) => placed,
            None => {
                let dies = 0..self.flash.shape().dies();
                let blocks = dies.map(|die| self.free.take(die, Worn::Least)).collect();
                entry.insert(SegmentBlocks { blocks, rows: 0, ended_ns: 0 })
            }
        };
        Ok((placed, &mut self.flash, &mut self.store_free_ns))
    }
}

impl<C: Clock> NandMedium<C> {
    /// Creates a medium on erased flash. The size and the number of its segments follow from the
    /// flash: see [`NandMedium::geometry`].
    ///
    /// # Errors
    /// `InvalidInput` if a segment would be larger than 4 GiB, or a number of `spec` is impossible.
    pub fn new(flash: Flash, spec: NandSpec, clock: C) -> Result<Self> {
        let wrong = |what: String| Error::new(ErrorKind::InvalidInput, what);
        if spec.store_bytes_per_s == Some(0) {
            return Err(wrong("store_bytes_per_s must not be zero".into()));
        }
        if !(0.0..=50.0).contains(&spec.bad_percent) {
            return Err(wrong("bad_percent must be from 0 to 50".into()));
        }
        let shape = *flash.shape();
        let bytes = shape.block_bytes() * u64::from(shape.dies());
        let Ok(segment_bytes) = u32::try_from(bytes) else {
            let what = "one block on every die makes a segment of more than 4 GiB";
            return Err(wrong(format!("{what}: simulate this flash without content")));
        };
        let free = FreeBlocks::new(&shape, spec.bad_percent, spec.seed);
        let segment_count = free.segment_count();
        let data_offset = u64::from(SUPERBLOCK_SLOTS) * SUPERBLOCK_STRIDE;
        let geometry = Geometry { segment_bytes, segment_count, data_offset };
        let memory = MemMedium::new(geometry.medium_bytes());
        memory.set_geometry(geometry)?;
        let segments = (0..segment_count).map(|_| None).collect();
        let state = RefCell::new(State { flash, free, segments, store_free_ns: 0 });
        Ok(Self { memory, clock, spec, geometry, state })
    }

    /// Returns the largest geometry that a drive on this medium can have.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Returns the flash operations so far.
    pub fn counts(&self) -> FlashCounts {
        self.state.borrow().flash.counts()
    }

    /// Returns the erase count of each good block.
    pub fn wear(&self) -> Vec<u32> {
        let state = self.state.borrow();
        state.free.erases(&state.flash).collect()
    }

    /// Returns the time in which the controller sends a row to the flash.
    fn store_ns(&self, row_bytes: u32) -> u64 {
        let of = |bytes_per_s| transfer_ns(row_bytes.into(), bytes_per_s);
        self.spec.store_bytes_per_s.map_or(0, of)
    }

    /// Programs the rows of a segment that its first `to_bytes` bytes complete. Returns the time at
    /// which they are programmed.
    async fn program_rows(&self, segment: SegmentId, to_bytes: u32) -> Result<u64> {
        loop {
            let ready_ns = {
                let state = &mut *self.state.borrow_mut();
                let (placed, flash, store_free_ns) = state.blocks_of(segment)?;
                let shape = *flash.shape();
                if placed.rows >= to_bytes / shape.row_bytes() {
                    return Ok(placed.ended_ns);
                }
                let (row, die) = (placed.rows / shape.dies(), placed.rows % shape.dies());
                let now_ns = self.clock.now_ns();
                let ready_ns = flash.takes_row_at_ns(die).max(*store_free_ns);
                if ready_ns <= now_ns {
                    placed.rows += 1;
                    *store_free_ns = now_ns + self.store_ns(shape.row_bytes());
                    let address = BlockAddress { die, block: placed.blocks[die as usize] };
                    let ended_ns = flash.program(now_ns, address, row).expect("rows are in order");
                    placed.ended_ns = placed.ended_ns.max(ended_ns);
                    continue;
                }
                ready_ns
            };
            // Another request may have taken the die by then: check again.
            self.until_ns(ready_ns).await;
        }
    }

    /// Returns the time at which the flash has read a range of a segment.
    fn sense(&self, segment: SegmentId, offset: u32, len: u32) -> u64 {
        let now_ns = self.clock.now_ns();
        let state = &mut *self.state.borrow_mut();
        let Some(Some(placed)) = state.segments.get(segment.0 as usize) else { return now_ns };
        let shape = *state.flash.shape();
        let (row_bytes, page_bytes) = (shape.row_bytes(), shape.page_bytes);
        let mut ended_ns = now_ns;
        let end = offset + len;
        for row in offset / row_bytes..end.div_ceil(row_bytes) {
            if row >= placed.rows {
                break;
            }
            let from = offset.max(row * row_bytes) - row * row_bytes;
            let to = (end - row * row_bytes).min(row_bytes);
            let pages = to.div_ceil(page_bytes) - from / page_bytes;
            let die = row % shape.dies();
            let address = BlockAddress { die, block: placed.blocks[die as usize] };
            let read = state.flash.read(now_ns, address, row / shape.dies(), pages, to - from);
            ended_ns = ended_ns.max(read.expect("the row was programmed"));
        }
        ended_ns
    }

    async fn until_ns(&self, ns: u64) {
        let now_ns = self.clock.now_ns();
        if ns > now_ns {
            self.clock.sleep_ns(ns - now_ns).await;
        }
    }
}

impl<C: Clock> Layer for NandMedium<C> {
    type Inner = MemMedium;

    fn inner(&self) -> &MemMedium {
        &self.memory
    }

    fn on_capabilities(&self) -> Capabilities {
        Capabilities::default()
            .with_write_unit(WRITE_UNIT)
            .with_read_unit(READ_UNIT)
            .with_discard(true)
    }

    fn on_set_geometry(&self, geometry: Geometry) -> Result<()> {
        let fits = geometry.segment_bytes == self.geometry.segment_bytes
            && geometry.segment_count <= self.geometry.segment_count;
        if !fits {
            let what = format!("this flash holds {} segments", self.geometry.segment_count);
            let what = format!("{what} of {} bytes", self.geometry.segment_bytes);
            return Err(Error::new(ErrorKind::InvalidInput, what));
        }
        self.memory.set_geometry(geometry)
    }

    async fn on_append(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: Arc<AlignedBuffer>,
    ) -> Result<()> {
        let end = offset + buffer.len() as u32;
        self.memory.append(segment, offset, buffer).await?;
        let ended_ns = self.program_rows(segment, end).await?;
        self.until_ns(ended_ns).await;
        Ok(())
    }

    /// What was appended is on flash, or in a buffer that survives a power loss.
    async fn on_append_durably(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: Arc<AlignedBuffer>,
    ) -> Result<()> {
        self.on_append(segment, offset, buffer).await
    }

    async fn on_read(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: AlignedBuffer,
    ) -> (AlignedBuffer, Result<()>) {
        let len = buffer.len() as u32;
        let (buffer, result) = self.memory.read(segment, offset, buffer).await;
        if result.is_ok() {
            self.until_ns(self.sense(segment, offset, len)).await;
        }
        (buffer, result)
    }

    async fn on_discard(&self, segment: SegmentId) -> Result<()> {
        self.memory.discard(segment).await?;
        let now_ns = self.clock.now_ns();
        let state = &mut *self.state.borrow_mut();
        let placed = state.segments.get_mut(segment.0 as usize).and_then(Option::take);
        let Some(placed) = placed else { return Ok(()) };
        for (die, &block) in (0..).zip(&placed.blocks) {
            let address = BlockAddress { die, block };
            state.flash.erase(now_ns, address).expect("the block was programmed");
            state.free.release(address, state.flash.erases(address));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;

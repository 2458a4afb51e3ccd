//! The tables of frames of chunks in a leaf, with which a block is read without the
//! rest of its frame.
//!
//! A table exists from the mapping of its frame until fewer than [`TABLE_BLOCKS_MIN`] blocks of the
//! leaf map to the frame, so a table never belongs to an earlier frame at the same address, and a
//! leaf has at most [`LEAF_TABLES_MAX`]. It may also be missing, for a frame that was mapped by a
//! program without support for tables.
//!
//! Invariant: tables are in order of the frames' addresses, each once.

use super::super::place::{FrameAddress, FramePlace};
use crate::base::SegmentId;
use crate::codec::{CHUNK_TABLE_BYTES, ChunkTable};
use crate::format::{
    LEAF_TABLE_BYTES, LEAF_TABLES_MAX, RECORD_HEADER_BYTES, SOURCE_BYTES, TABLE_BLOCKS_MIN,
};

const _: () = assert!(LEAF_TABLE_BYTES == CHUNK_TABLE_BYTES, "a leaf has a table as it is stored");

#[derive(Clone, Copy, Debug)]
pub(super) struct FrameTable {
    segment: u32,
    offset: u32,
    /// Block of the leaf at which the frame begins.
    pub(super) start: u16,
    /// Blocks of the leaf that map to it.
    live: u8,
    pub(super) table: ChunkTable,
}

const _: () = assert!(size_of::<FrameTable>() == 60, "ARCHITECTURE.md states this size");

impl FrameTable {
    /// Returns the table of a frame that begins at block `start`, to which `live` blocks map.
    /// Returns `None` if they are too few, or if the frame cannot have this table.
    pub(super) fn new(start: u16, live: u8, place: &FramePlace, table: ChunkTable) -> Option<Self> {
        let is_its_own = fits(&table, place.blocks, place.record_bytes);
        let FrameAddress { segment, offset } = place.address();
        let found = Self { segment: segment.0, offset, start, live, table };
        (is_its_own && live >= TABLE_BLOCKS_MIN).then_some(found)
    }

    fn address(&self) -> FrameAddress {
        FrameAddress { segment: SegmentId(self.segment), offset: self.offset }
    }
}

/// Returns whether a record with this length and number of blocks can contain a payload with a
/// table.
pub(super) fn fits(table: &ChunkTable, blocks: u8, record_bytes: u32) -> bool {
    let headers = (record_bytes as usize).checked_sub(table.payload_bytes());
    let sources = headers.and_then(|bytes| bytes.checked_sub(RECORD_HEADER_BYTES));
    let blocks = usize::from(blocks);
    table.blocks() == blocks
        && sources.is_some_and(|bytes| {
            bytes.is_multiple_of(SOURCE_BYTES) && bytes / SOURCE_BYTES <= blocks
        })
}

/// The tables of one leaf.
#[derive(Clone, Debug, Default)]
pub(super) struct Tables(Vec<FrameTable>);

impl Tables {
    /// Reserves memory for a number of tables.
    pub(super) fn with_capacity(count: usize) -> Self {
        Self(Vec::with_capacity(count))
    }

    /// Returns whether there are no tables.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of tables.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the table with a given number.
    pub(super) fn at(&self, number: usize) -> &FrameTable {
        self.0.get(number).expect("a table is found where it is")
    }

    /// Returns the number of a frame's table.
    pub(super) fn number_of(&self, frame: FrameAddress) -> Option<usize> {
        self.search(frame).ok()
    }

    /// Returns the table of a frame that begins at block `start`. A damaged map may have several
    /// frames at one address; the table then belongs to one of them.
    pub(super) fn get(&self, start: u16, frame: &FramePlace) -> Option<ChunkTable> {
        let found = self.0.get(self.number_of(frame.address())?)?;
        let is_its_own = fits(&found.table, frame.blocks, frame.record_bytes);
        (found.start == start && is_its_own).then_some(found.table)
    }

    /// Inserts a table, replacing any other for the same address.
    pub(super) fn insert(&mut self, table: FrameTable) {
        match self.search(table.address()) {
            Ok(number) => *self.0.get_mut(number).expect("a table is found where it is") = table,
            Err(number) => self.0.insert(number, table),
        }
        assert!(self.0.len() <= LEAF_TABLES_MAX, "each frame with a table has blocks of the leaf");
    }

    /// Removes the table of the frame at this address.
    pub(super) fn remove(&mut self, frame: FrameAddress) {
        let Some(number) = self.number_of(frame) else { return };
        self.0.remove(number);
        if self.0.len() < self.0.capacity() / 4 {
            self.0.shrink_to(2 * self.0.len());
        }
    }

    /// Records that `count` blocks no longer map to the frame at this address that begins at
    /// `start`.
    pub(super) fn release(&mut self, start: u16, frame: FrameAddress, count: u8) {
        let Some(number) = self.number_of(frame) else { return };
        let found = self.0.get_mut(number).filter(|found| found.start == start);
        let Some(found) = found else { return };
        found.live = found.live.saturating_sub(count);
        if found.live < TABLE_BLOCKS_MIN {
            self.remove(frame);
        }
    }

    /// Returns the bytes of memory in use.
    pub(super) fn memory_bytes(&self) -> usize {
        self.0.capacity() * size_of::<FrameTable>()
    }

    /// Returns whether the invariant holds.
    pub(super) fn is_valid(&self) -> bool {
        let key = |table: &FrameTable| (table.segment, table.offset);
        self.0.is_sorted_by(|table, next| key(table) < key(next))
            && self.0.iter().all(|table| table.live >= TABLE_BLOCKS_MIN)
    }

    fn search(&self, frame: FrameAddress) -> Result<usize, usize> {
        let wanted = (frame.segment.0, frame.offset);
        self.0.binary_search_by_key(&wanted, |table| (table.segment, table.offset))
    }
}

//! Uses of segments. A use lasts from an append at offset 0 to the next one, or to a discard. It
//! has a number that is never reused. It is stored in a slot of the journal, in chunks in the
//! bucket, or in both, and its bytes in the bucket never change.
//!
//! ```text
//! not written -- append completed --> dirty -- cut --> uploading -- commit counts --> clean
//! a slot is given up only if all bytes of its use are clean
//! ```

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::local::Slot;
use super::object::Chunk;
use super::ranges::Ranges;

/// A use of a segment.
pub(super) struct Use {
    pub(super) segment: u32,
    pub(super) id: u64,
    /// Holds all bytes of the use, if there is one.
    pub(super) slot: RefCell<Option<Rc<Slot>>>,
    /// Whether a sync has covered the header of the slot.
    pub(super) header_is_durable: Cell<bool>,
    /// Whether an earlier process may have written bytes that are not in `written`.
    pub(super) is_inherited: bool,
    pub(super) written: RefCell<Ranges>,
    pub(super) dirty: RefCell<Ranges>,
    pub(super) uploading: RefCell<Ranges>,
    /// Ranges that failed commits have tried to upload. They may be in the bucket, or arrive later.
    pub(super) tried: RefCell<Ranges>,
    /// The chunks that the counted commit refers to.
    pub(super) chunks: RefCell<Vec<Chunk>>,
    /// Ranges of appends in progress.
    pub(super) appending: RefCell<Vec<(u32, u32)>>,
    /// Whether the use is being renumbered. Appends wait meanwhile.
    pub(super) is_moving: Cell<bool>,
    /// The time of its last read or write, in operations.
    pub(super) touched: Cell<u64>,
}

impl Use {
    /// Returns a use without any written bytes.
    pub(super) fn new(segment: u32, id: u64, slot: Option<Rc<Slot>>) -> Self {
        Self {
            segment,
            id,
            slot: RefCell::new(slot),
            header_is_durable: Cell::new(false),
            is_inherited: false,
            written: RefCell::default(),
            dirty: RefCell::default(),
            uploading: RefCell::default(),
            tried: RefCell::default(),
            chunks: RefCell::default(),
            appending: RefCell::default(),
            is_moving: Cell::default(),
            touched: Cell::new(0),
        }
    }

    /// Returns a use that is in the bucket, and in a slot of an earlier process if there is one.
    /// Bytes of such a slot that are in no chunk may have any value.
    pub(super) fn found(
        segment: u32,
        id: u64,
        slot: Option<Rc<Slot>>,
        chunks: Vec<Chunk>,
        segment_bytes: u32,
    ) -> Self {
        let mut written = Ranges::default();
        chunks.iter().for_each(|chunk| written.insert(chunk.offset, chunk.end()));
        let has_slot = slot.is_some();
        let dirty = if has_slot { written.complement(segment_bytes) } else { Ranges::default() };
        Self {
            is_inherited: has_slot,
            header_is_durable: Cell::new(has_slot),
            written: RefCell::new(written),
            dirty: RefCell::new(dirty),
            chunks: RefCell::new(chunks),
            ..Self::new(segment, id, slot)
        }
    }

    pub(super) fn slot(&self) -> Option<Rc<Slot>> {
        self.slot.borrow().clone()
    }

    /// Returns whether an append at offset 0 begins another use.
    pub(super) fn has_beginning(&self, end: u32) -> bool {
        self.is_inherited || self.written.borrow().overlaps(0, end)
    }

    /// Returns whether bytes of a range are in the bucket, may be there, or are being uploaded.
    pub(super) fn is_uploaded(&self, start: u32, end: u32) -> bool {
        let is_named = |chunk: &Chunk| chunk.offset < end && start < chunk.end();
        if self.tried.borrow().overlaps(start, end) {
            return true;
        }
        self.chunks.borrow().iter().any(is_named) || self.uploading.borrow().overlaps(start, end)
    }

    pub(super) fn is_clean(&self) -> bool {
        self.dirty.borrow().is_empty() && self.uploading.borrow().is_empty()
    }
}

//! The contents of a drive that does not compress, in memory, in numbered slots of equal size.
//!
//! A slot of identical bytes needs no memory for them, and a slot of zeroes needs none at all. A
//! span that a benchmark fills with a single byte can therefore be larger than the machine's
//! memory. No operation takes virtual time.

use std::collections::BTreeMap;

use crate::{Error, Result};

/// Size of a sector in bytes, the unit of reads and writes.
pub(super) const SECTOR_BYTES: u64 = 512;

/// The contents of a slot; an absent slot is all zeroes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    /// One byte repeated.
    Fill(u8),
    /// Arbitrary bytes; their number is the slot size of the [`Content`].
    Bytes(Box<[u8]>),
}

impl Slot {
    /// Returns the slot for these bytes; `None` if all of them are zero.
    fn of(bytes: &[u8]) -> Option<Self> {
        let first = *bytes.first()?;
        if bytes.iter().all(|&byte| byte == first) {
            (first != 0).then_some(Self::Fill(first))
        } else {
            Some(Self::Bytes(bytes.into()))
        }
    }
}

/// The part of a range within one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// Number of the slot.
    pub(super) slot: u64,
    /// Offset of the first byte in the slot.
    pub(super) within: usize,
    /// Length in bytes.
    pub(super) len: usize,
}

/// Returns the parts of a range in order, one for each slot of `slot_bytes` bytes that it overlaps.
pub(super) fn parts(slot_bytes: u64, offset: u64, len: u64) -> impl Iterator<Item = Part> {
    let end = offset + len;
    (offset / slot_bytes..end.div_ceil(slot_bytes)).map(move |slot| {
        let from = offset.max(slot * slot_bytes);
        let to = end.min((slot + 1) * slot_bytes);
        Part { slot, within: (from % slot_bytes) as usize, len: (to - from) as usize }
    })
}

/// Checks that a range consists of whole sectors of the disk.
///
/// # Errors
/// `InvalidInput` if it does not.
pub(super) fn check_range(size_bytes: u64, offset: u64, len: u64) -> Result<()> {
    if !offset.is_multiple_of(SECTOR_BYTES) || !len.is_multiple_of(SECTOR_BYTES) {
        let what =
            format!("{len} bytes at {offset} are not aligned to sectors of {SECTOR_BYTES} bytes");
        return Err(Error::InvalidInput(what.into()));
    }
    if offset.checked_add(len).is_none_or(|end| end > size_bytes) {
        let what = format!("{len} bytes at {offset} reach beyond the disk of {size_bytes} bytes");
        return Err(Error::InvalidInput(what.into()));
    }
    Ok(())
}

/// The slots of a drive.
#[derive(Clone, Debug)]
pub(super) struct Content {
    slot_bytes: usize,
    slots: BTreeMap<u64, Slot>,
}

impl Content {
    /// Creates contents of zeroes, in slots of `slot_bytes` bytes.
    pub(super) fn new(slot_bytes: usize) -> Self {
        Self { slot_bytes, slots: BTreeMap::new() }
    }

    /// Reads a slot from byte `within` on, up to its end at most.
    ///
    /// # Panics
    /// If `target` extends beyond the end of the slot.
    pub(super) fn read(&self, slot: u64, within: usize, target: &mut [u8]) {
        match self.slots.get(&slot) {
            None => target.fill(0),
            Some(Slot::Fill(byte)) => target.fill(*byte),
            Some(Slot::Bytes(bytes)) => target.copy_from_slice(&bytes[within..][..target.len()]),
        }
    }

    /// Writes a slot from byte `within` on. Its other bytes are unchanged.
    ///
    /// # Panics
    /// If `bytes` extend beyond the end of the slot.
    pub(super) fn write(&mut self, slot: u64, within: usize, bytes: &[u8]) {
        if bytes.len() == self.slot_bytes {
            self.put(slot, Slot::of(bytes));
            return;
        }
        let mut whole = vec![0; self.slot_bytes];
        self.read(slot, 0, &mut whole);
        whole[within..][..bytes.len()].copy_from_slice(bytes);
        self.put(slot, Slot::of(&whole));
    }

    /// Removes and returns the contents of a slot, which then reads as zeroes.
    pub(super) fn take(&mut self, slot: u64) -> Option<Slot> {
        self.slots.remove(&slot)
    }

    /// Replaces the contents of a slot.
    pub(super) fn put(&mut self, slot: u64, held: Option<Slot>) {
        match held {
            Some(held) => self.slots.insert(slot, held),
            None => self.slots.remove(&slot),
        };
    }

    /// Returns the number of slots that contain anything other than zeroes.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.slots.len()
    }
}

#[cfg(test)]
mod tests {
    //! Goal: every byte is found where it was written, and equal bytes need no memory. Method:
    //! explicit writes of whole slots and of parts.

    use super::*;

    #[test]
    fn bytes_are_where_they_were_put() {
        let mut content = Content::new(8);
        content.write(3, 2, &[1, 2, 3]);
        content.write(3, 4, &[9]);
        let mut back = [7; 8];
        content.read(3, 0, &mut back);
        assert_eq!(back, [0, 0, 1, 2, 9, 0, 0, 0]);
        content.read(2, 0, &mut back);
        assert_eq!(back, [0; 8]);
        let held = content.take(3);
        content.put(5, held);
        content.read(5, 3, &mut back[..2]);
        assert_eq!(back[..2], [2, 9]);
        content.read(3, 0, &mut back);
        assert_eq!(back, [0; 8]);
    }

    #[test]
    fn equal_bytes_take_no_memory() {
        let mut content = Content::new(4);
        content.write(1, 0, &[5; 4]);
        assert_eq!(content.slots[&1], Slot::Fill(5));
        content.write(1, 1, &[6]);
        let mut back = [0; 4];
        content.read(1, 0, &mut back);
        assert_eq!(back, [5, 6, 5, 5]);
        content.write(1, 0, &[0; 4]);
        content.write(2, 1, &[0]);
        assert_eq!(content.held(), 0);
    }
}

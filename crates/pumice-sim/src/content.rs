//! The bytes of a drive that does not compress, in memory, by numbered slots of one size.
//!
//! A slot of equal bytes takes no memory for them, and one of zeroes none at all: a span that a
//! benchmark fills with one byte may be larger than the machine. Nothing here takes time.

use std::collections::BTreeMap;

use crate::{Error, Result};

/// Bytes of a sector, the finest that is read and written.
pub(super) const SECTOR_BYTES: u64 = 512;

/// What a slot holds; all zeroes if there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    /// The same byte all over.
    Fill(u8),
    /// Any bytes: as many as the slots of its [`Content`] have.
    Bytes(Box<[u8]>),
}

impl Slot {
    /// What holds these bytes; `None` if all of them are zero.
    fn of(bytes: &[u8]) -> Option<Self> {
        let first = *bytes.first()?;
        match bytes.iter().all(|&byte| byte == first) {
            true => (first != 0).then_some(Self::Fill(first)),
            false => Some(Self::Bytes(bytes.into())),
        }
    }
}

/// The part of a range that lies in one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// Which slot.
    pub(super) slot: u64,
    /// First byte in it.
    pub(super) within: usize,
    /// Bytes.
    pub(super) len: usize,
}

/// The slots of `slot_bytes` bytes that a range touches, in order.
pub(super) fn parts(slot_bytes: u64, offset: u64, len: u64) -> impl Iterator<Item = Part> {
    let end = offset + len;
    (offset / slot_bytes..end.div_ceil(slot_bytes)).map(move |slot| {
        let from = offset.max(slot * slot_bytes);
        let to = end.min((slot + 1) * slot_bytes);
        Part { slot, within: (from % slot_bytes) as usize, len: (to - from) as usize }
    })
}

/// # Errors
/// `InvalidInput` for a range that is not of whole sectors of the disk.
pub(super) fn check_range(size_bytes: u64, offset: u64, len: u64) -> Result<()> {
    if !offset.is_multiple_of(SECTOR_BYTES) || !len.is_multiple_of(SECTOR_BYTES) {
        let what = format!("{len} bytes at {offset} are no whole sectors of {SECTOR_BYTES} bytes");
        return Err(Error::InvalidInput(what.into()));
    }
    if offset.checked_add(len).is_none_or(|end| end > size_bytes) {
        let what = format!("{len} bytes at {offset} reach beyond the disk's {size_bytes}");
        return Err(Error::InvalidInput(what.into()));
    }
    Ok(())
}

/// Bytes by slot.
#[derive(Clone, Debug)]
pub(super) struct Content {
    slot_bytes: usize,
    slots: BTreeMap<u64, Slot>,
}

impl Content {
    /// Nothing but zeroes, in slots of `slot_bytes` bytes.
    pub(super) fn new(slot_bytes: usize) -> Self {
        Self { slot_bytes, slots: BTreeMap::new() }
    }

    /// Reads a slot from byte `within` on, to its end at most.
    ///
    /// # Panics
    /// If `target` reaches beyond the slot.
    pub(super) fn read(&self, slot: u64, within: usize, target: &mut [u8]) {
        match self.slots.get(&slot) {
            None => target.fill(0),
            Some(Slot::Fill(byte)) => target.fill(*byte),
            Some(Slot::Bytes(bytes)) => target.copy_from_slice(&bytes[within..][..target.len()]),
        }
    }

    /// Writes a slot from byte `within` on; its other bytes stay.
    ///
    /// # Panics
    /// If `bytes` reach beyond the slot.
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

    /// What a slot holds, which is zeroes from now on.
    pub(super) fn take(&mut self, slot: u64) -> Option<Slot> {
        self.slots.remove(&slot)
    }

    /// Replaces what a slot holds.
    pub(super) fn put(&mut self, slot: u64, held: Option<Slot>) {
        match held {
            Some(held) => self.slots.insert(slot, held),
            None => self.slots.remove(&slot),
        };
    }

    /// Slots that hold anything but zeroes.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.slots.len()
    }
}

#[cfg(test)]
mod tests {
    //! Goal: every byte is where it was put, and equal bytes take no memory.
    //! Method: writes by hand, of whole slots and of parts.

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

//! The space of a medium in memory that models a sparse file on a file system with other users:
//! pages have space from their first append or preallocation until their segment is discarded.

use std::ops::Range;

use super::WRITE_UNIT;
use crate::base::{Error, ErrorKind, Result};

/// The free space of the file system, and the pages of each segment that have space.
#[derive(Clone, Debug, Default)]
pub(super) struct Room {
    left_bytes: Option<u64>,
    pages: Vec<Vec<bool>>,
    /// Whether other users take returned space immediately.
    is_besieged: bool,
}

impl Room {
    /// Sets the free space in bytes; `None` never runs out. Space is counted from the first call
    /// with a number.
    pub(super) fn set_left(&mut self, bytes: Option<u64>) {
        self.left_bytes = bytes;
    }

    #[cfg(test)]
    pub(super) fn besiege(&mut self) {
        self.is_besieged = true;
    }

    pub(super) fn left(&self) -> Option<u64> {
        self.left_bytes
    }

    /// Returns the bytes that segments occupy.
    pub(super) fn taken(&self) -> u64 {
        let taken = self.pages.iter().flatten().filter(|&&has_space| has_space).count();
        taken as u64 * u64::from(WRITE_UNIT)
    }

    /// Allocates space for those pages of a range of a segment that have none.
    ///
    /// # Errors
    /// `NoSpace`; the remaining space has then been allocated.
    pub(super) fn take(&mut self, index: usize, range: Range<u32>) -> Result<()> {
        let Some(left) = &mut self.left_bytes else { return Ok(()) };
        if self.pages.len() <= index {
            self.pages.resize(index + 1, Vec::new());
        }
        let pages = &mut self.pages[index];
        let range = (range.start / WRITE_UNIT) as usize..range.end.div_ceil(WRITE_UNIT) as usize;
        if pages.len() < range.end {
            pages.resize(range.end, false);
        }
        for has_space in pages[range].iter_mut().filter(|has_space| !**has_space) {
            match left.checked_sub(WRITE_UNIT.into()) {
                Some(less) => (*left, *has_space) = (less, true),
                None => return Err(Error::new(ErrorKind::NoSpace, "the file system is full")),
            }
        }
        Ok(())
    }

    /// Returns the space of a segment to the file system.
    pub(super) fn give_back(&mut self, index: usize) {
        let pages = self.pages.get_mut(index).map(std::mem::take).unwrap_or_default();
        if self.is_besieged {
            return;
        }
        let taken = pages.into_iter().filter(|&has_space| has_space).count() as u64;
        self.left_bytes = self.left_bytes.map(|left| left + taken * u64::from(WRITE_UNIT));
    }
}

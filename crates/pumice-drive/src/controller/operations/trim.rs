//! Trim and write-zeroes: one record of the log for any length, in time that does not grow with the
//! length.
//!
//! The old leaves of a long range are reaped later, a few with every trim and in the background;
//! see `map`.

use super::super::core::{Attempt, Core};
use super::super::drive::Drive;
use super::super::log::packing::ATOMIC_WRITE_BYTES;
use super::write::Content;
use crate::base::units::{BLOCK_BYTES, len_usize};
use crate::base::{Lba, Result};
use crate::format::Record;

static ZERO_BLOCK: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];

/// Whether blocks that are zeroed stay allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocation {
    /// They stay mapped.
    Keep,
    /// They become holes.
    Release,
}

impl Drive {
    /// Drops the blocks that are entirely within a range; they then read as zeroes. Partly covered
    /// blocks keep their content. Ordered and durable like a write.
    ///
    /// # Errors
    /// `InvalidInput`, `ReadOnly`, `Poisoned`; `NoSpace` when the log is full up to its reserve.
    pub async fn trim(&self, offset: u64, len: u64) -> Result<()> {
        self.begin_trim(offset, len)?;
        let (lba, count) = whole_blocks(offset, len);
        if count > 0 {
            self.append_uniform(&Record::Trim { lba, lba_count: count }).await?;
        }
        self.with_core(|core| core.reap());
        Ok(())
    }

    /// Trims like [`Drive::trim`], and returns when the trim is durable.
    ///
    /// # Errors
    /// The errors of [`Drive::trim`] and [`Drive::flush`].
    pub async fn trim_durable(&self, offset: u64, len: u64) -> Result<()> {
        self.trim(offset, len).await?;
        self.flush().await
    }

    /// Makes a range read as zeroes; partly covered blocks are merged. A range of up to 1 MiB, or
    /// of whole blocks, takes effect completely or not at all. Ordered and durable like a write.
    ///
    /// # Errors
    /// The errors of [`Drive::write`].
    pub async fn write_zeroes(&self, offset: u64, len: u64, allocation: Allocation) -> Result<()> {
        self.begin_trim(offset, len)?;
        let block = BLOCK_BYTES as u64;
        let end = offset + len;
        let is_whole = offset.is_multiple_of(block) && end.is_multiple_of(block);
        if !is_whole && (1..=ATOMIC_WRITE_BYTES as u64).contains(&len) {
            // Applied completely or not at all, like a write.
            let content = match allocation {
                Allocation::Keep => Content::Zeroes,
                Allocation::Release => Content::Holes,
            };
            return self.write_unaligned(offset, &vec![0; len_usize(len)], content).await;
        }
        let (lba, count) = whole_blocks(offset, len);
        let head_end = end.min(offset.next_multiple_of(block));
        self.write_zero_edge(offset, head_end).await?;
        if count > 0 {
            let record = match allocation {
                Allocation::Keep => Record::Fill { lba, lba_count: count, byte: 0 },
                Allocation::Release => Record::Trim { lba, lba_count: count },
            };
            self.append_uniform(&record).await?;
        }
        let tail = head_end.max(end / block * block);
        assert!(tail <= end && end - tail < block, "whole blocks end less than a block before");
        self.write_zero_edge(tail, end).await?;
        self.with_core(|core| core.reap());
        Ok(())
    }

    /// Writes zeroes like [`Drive::write_zeroes`], and returns when they are durable.
    ///
    /// # Errors
    /// The errors of [`Drive::write_zeroes`] and [`Drive::flush`].
    pub async fn write_zeroes_durable(
        &self,
        offset: u64,
        len: u64,
        allocation: Allocation,
    ) -> Result<()> {
        self.write_zeroes(offset, len, allocation).await?;
        self.flush().await
    }

    /// Checks and counts a request.
    fn begin_trim(&self, offset: u64, len: u64) -> Result<()> {
        self.with_core(|core| {
            core.check_writable(offset, len)?;
            core.counters_mut().trims.add(1);
            Ok(())
        })
    }

    async fn write_zero_edge(&self, from: u64, end: u64) -> Result<()> {
        let len = end.checked_sub(from).map(len_usize);
        let (zeroes, _) = ZERO_BLOCK.split_at(len.expect("an edge ends after it begins"));
        if zeroes.is_empty() { Ok(()) } else { self.write(from, zeroes).await }
    }

    /// Appends a fill or a trim of whole blocks, which are on the disk.
    ///
    /// # Errors
    /// `Poisoned`; `NoSpace` when the log is full up to its reserve; `Corrupt` or `Medium` if a
    /// leaf of the map cannot be read.
    pub(in super::super) async fn append_uniform(&self, record: &Record) -> Result<()> {
        let (lba, count) = record.lba_range();
        let mut kept = None;
        loop {
            self.load_edges(lba, count).await?;
            let append = |core: &mut Core| Ok(core.append_range(record)?.unless_waiting());
            match self.with_room(append).await? {
                Attempt::Done => return Ok(()),
                _ if kept.is_none() => kept = Some(self.keep_leaves(lba, count).await),
                _ => {}
            }
        }
    }
}

/// Returns the blocks that are entirely within a byte range.
fn whole_blocks(offset: u64, len: u64) -> (Lba, u64) {
    let block = BLOCK_BYTES as u64;
    let first = offset.div_ceil(block);
    let end = (offset + len) / block;
    (Lba(first), end.saturating_sub(first))
}

#[cfg(test)]
mod tests {
    //! Goal: only blocks that are entirely within a range are dropped.
    use super::*;

    #[test]
    fn partial_blocks_are_left_out() {
        assert_eq!(whole_blocks(0, 4096), (Lba(0), 1));
        assert_eq!(whole_blocks(1, 4096), (Lba(1), 0));
        assert_eq!(whole_blocks(512, 8192), (Lba(1), 1));
        assert_eq!(whole_blocks(4095, 8193), (Lba(1), 2));
        assert_eq!(whole_blocks(100, 0), (Lba(1), 0));
    }
}

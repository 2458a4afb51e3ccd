//! Restoring the order of blocks that the host reads in order.
//!
//! ```text
//! written at random:  frames of single blocks all over the log -> a media read for each
//! read in order once: frames of several blocks, next to each other -> one media read
//! ```
//!
//! A read of a whole aligned group of blocks that needed many media reads appends the group again,
//! like a write of the host, before it returns. It writes no more than it has read, and only until
//! the group is in order: blocks that are never read in order are never written again. The write
//! takes effect only if no block changed during the read, and is not attempted when it would have
//! to wait, when space is scarce, or when snapshots retain the blocks or bookmarks compare them.

use super::super::core::{Attempt, BlockWrite, Core, Edge, Purpose, Version};
use super::super::drive::Drive;
use super::super::log::buffers::COALESCED_BYTES_MAX;
use super::super::log::packing::{ATOMIC_WRITE_BYTES, worst_case_bytes};
use super::super::map::Mapping;
use super::super::place::blocks_of_frame;
use super::read::{Piece, group_len};
use crate::base::units::{BLOCK_BYTES, len_usize};
use crate::base::{Error, ErrorKind, Lba, Result};
use crate::format::LEAF_BLOCKS;

/// Blocks of a group, 128 KiB: the read-ahead of Linux.
const GROUP_BLOCKS: usize = 32;
const GROUP_BYTES: usize = GROUP_BLOCKS * BLOCK_BYTES;

/// Media reads of a group that is in order well enough. A group that needs more costs at most four
/// times its share of the blocks that made it so.
const MEDIA_READS_MAX: usize = 8;

/// Percentage of the drive in use from which on garbage collection needs the space.
const USED_PERCENT_MAX: f64 = 85.0;

impl Drive {
    /// Appends again those groups of a read whose blocks were scattered. `read` begins at byte
    /// `offset` of the disk; `pieces` were read from the medium, in order.
    pub(super) fn restore_order(&self, offset: u64, pieces: &[Piece], read: &[u8]) {
        if pieces.len() <= MEDIA_READS_MAX || self.core().check_reordering().is_err() {
            return;
        }
        let mut pieces = pieces;
        let first = offset.next_multiple_of(GROUP_BYTES as u64);
        let (_, groups) = read.split_at(len_usize(first - offset).min(read.len()));
        for (number, group) in groups.chunks_exact(GROUP_BYTES).enumerate() {
            let lba = Lba(first / BLOCK_BYTES as u64 + (number * GROUP_BLOCKS) as u64);
            let end = lba.0 + GROUP_BLOCKS as u64;
            let begin = pieces.partition_point(|piece| piece.blocks_end() <= lba.0);
            pieces = pieces.get(begin..).unwrap_or_default();
            let len = pieces.partition_point(|piece| piece.lba.0 < end);
            let here = pieces.get(..len).unwrap_or_default();
            if media_reads(here) > MEDIA_READS_MAX && !self.append_in_order(lba, here, group) {
                return;
            }
        }
    }

    /// Reads the disk in order, so that blocks that are scattered over the log are appended again.
    /// Skips blocks that cannot be read. Returns the number of bytes appended again.
    ///
    /// # Errors
    /// `InvalidInput` if the drive has snapshots or bookmarks, or little space; `NoSpace`,
    /// `ReadOnly`, `Poisoned`.
    pub(in super::super) async fn reorder(&self) -> Result<u64> {
        let reordered = || self.core().counters().reordered_bytes.get();
        let before = reordered();
        let leaf_bytes = LEAF_BLOCKS as usize * BLOCK_BYTES;
        let mut out = vec![0; ATOMIC_WRITE_BYTES];
        let next_leaf = |from| self.core().map().next_mapped_leaf(from);
        let mut next = next_leaf(0);
        while let Some(leaf) = next {
            let offset = leaf * leaf_bytes as u64;
            let end = self.core().size_bytes().min(offset + leaf_bytes as u64);
            for offset in (offset..end).step_by(ATOMIC_WRITE_BYTES) {
                self.core().check_reordering()?;
                let room_bytes =
                    worst_case_bytes(ATOMIC_WRITE_BYTES / BLOCK_BYTES, self.core().seal_bytes());
                self.with_room(|core| Ok(core.make_room(room_bytes, Purpose::Data)?.then_some(())))
                    .await?;
                let (out, _) = out.split_at_mut(len_usize(end - offset).min(ATOMIC_WRITE_BYTES));
                if let Err(error) = self.read_range(offset, out, true).await {
                    let error = error.chain();
                    tracing::warn!(error, "blocks that cannot be read stay in place");
                }
            }
            next = next_leaf(leaf + 1);
        }
        Ok(reordered() - before)
    }

    /// Appends a group, if `pieces` are all of it and unchanged. Returns false if the log accepts
    /// no write now.
    fn append_in_order(&self, lba: Lba, pieces: &[Piece], group: &[u8]) -> bool {
        let blocks = lba.0..lba.0 + GROUP_BLOCKS as u64;
        let edges = pieces.iter().flat_map(Piece::versions);
        let edges: Vec<Edge> = edges.filter(|edge| blocks.contains(&edge.lba.0)).collect();
        if edges.len() < GROUP_BLOCKS {
            return true;
        }
        let write = BlockWrite {
            lba,
            blocks: GROUP_BLOCKS,
            parts: &[group],
            edges: &edges,
            host_bytes: 0,
            makes_holes: false,
        };
        let compressor = &mut *self.compressor.borrow_mut();
        self.with_core(|core| {
            match core.append_write(&write, |raw, target| compressor.compress(raw, target)) {
                Ok(Attempt::Done) => core.counters_mut().reordered_bytes.add(GROUP_BYTES as u64),
                Ok(Attempt::Changed) => {}
                Ok(Attempt::Wait) | Err(_) => return false,
            }
            true
        })
    }
}

impl Core {
    /// Checks that blocks may be appended again for their order alone.
    ///
    /// # Errors
    /// `InvalidInput` if the drive has snapshots or bookmarks, or little space; `ReadOnly`,
    /// `Poisoned`.
    fn check_reordering(&self) -> Result<()> {
        self.check_writable(0, 0)?;
        let what = if self.snapshots().all().next().is_some() {
            "the blocks of a drive with snapshots or bookmarks stay in place"
        } else if self.used_percent() >= USED_PERCENT_MAX {
            "more than 85 % of the capacity is in use: too much to put blocks in order"
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::InvalidInput, what))
    }
}

impl Piece {
    /// Returns the block after the last wanted one.
    fn blocks_end(&self) -> u64 {
        self.lba.0 + self.wanted_blocks().len() as u64
    }

    /// Returns the wanted blocks as the map named them.
    fn versions(&self) -> impl Iterator<Item = Edge> {
        let Self { place, generation, lba, .. } = *self;
        self.wanted_blocks().zip(lba.0..).map(move |(index, lba)| {
            let index = blocks_of_frame(index as u64);
            let before = Version::of(Mapping::Frame { place, index }, generation);
            Edge { lba: Lba(lba), before }
        })
    }
}

/// Returns the number of media reads that serve pieces.
fn media_reads(pieces: &[Piece]) -> usize {
    let (mut rest, mut reads) = (pieces, 0);
    while !rest.is_empty() {
        let near = group_len(rest.iter().map(|piece| &piece.place), COALESCED_BYTES_MAX);
        rest = rest.get(near..).unwrap_or_default();
        reads += 1;
    }
    reads
}

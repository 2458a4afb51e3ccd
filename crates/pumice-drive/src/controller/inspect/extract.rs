//! Reading a whole disk from its drive, in order, without a host: the data that `pumice extract`
//! writes and `pumice rebuild` copies.
//!
//! ```text
//! next mapped leaf -> its runs -> frames: read as the host reads, a mebibyte at a time
//!                              -> fills: reported in one piece
//!                              -> unreadable blocks: reported, and skipped
//!                              -> holes of a clone: its origin's content
//! ```
//!
//! Holes are omitted. An extract writes nothing, needs no background task, and works on a drive
//! that was opened read-only. Damage never ends it: the subsequent data is still returned.

use std::collections::VecDeque;

use super::super::drive::Drive;
use super::super::map::{LEAF_BLOCKS, Mapping};
use super::super::operations::{Content, Extent};
use super::Problem;
use crate::base::units::{BLOCK_BYTES, buffer_bytes};
use crate::base::{Error, Lba};

/// Bytes per read: the maximum that one media read joins.
const CHUNK_BYTES: usize = 1 << 20;

/// A part of a disk. Parts are returned in order of their offset and do not overlap; there are
/// holes between them.
#[derive(Debug)]
pub enum Extracted<'a> {
    /// Content, at most 1 MiB.
    Data {
        /// Byte offset on the host's disk.
        offset: u64,
        /// The bytes; whole blocks.
        bytes: &'a [u8],
    },
    /// Bytes that all have one value.
    Fill {
        /// Byte offset on the host's disk.
        offset: u64,
        /// Number of bytes; whole blocks.
        len: u64,
        /// The byte.
        byte: u8,
    },
    /// Blocks whose content cannot be read; the problem states which, and why.
    Lost(Problem),
}

/// A disk being read from its drive.
pub struct Extract<'a> {
    drive: &'a Drive,
    next_leaf: u64,
    runs: VecDeque<(Lba, u64, Mapping)>,
    /// Number of runs to read one by one, because reading them together failed.
    single: usize,
    /// Number of blocks from the start of the disk whose holes read from the origin of a clone.
    inherited_blocks: u64,
    buffer: Vec<u8>,
}

/// Result of [`Extract::advance`].
enum Step {
    Data { offset: u64, len: usize },
    Fill { offset: u64, len: u64, byte: u8 },
    Lost(Problem),
}

impl<'a> Extract<'a> {
    /// Begins with the first block.
    pub fn new(drive: &'a Drive) -> Self {
        let buffer = vec![0; CHUNK_BYTES];
        let inherited_blocks = drive.core().inherited_blocks();
        Self { drive, next_leaf: 0, runs: VecDeque::new(), single: 0, inherited_blocks, buffer }
    }

    /// Like [`Extract::new`], for a clone without its origin's data.
    pub(in super::super) fn of_itself(drive: &'a Drive) -> Self {
        Self { inherited_blocks: 0, ..Self::new(drive) }
    }

    /// Returns the next part of the disk; `None` at its end. It is unspecified whether the host's
    /// writes during the extraction are included.
    pub async fn next(&mut self) -> Option<Extracted<'_>> {
        Some(match self.advance().await? {
            Step::Data { offset, len } => {
                let bytes = self.buffer.get(..len).expect("the data read fits in the buffer");
                Extracted::Data { offset, bytes }
            }
            Step::Fill { offset, len, byte } => Extracted::Fill { offset, len, byte },
            Step::Lost(problem) => Extracted::Lost(problem),
        })
    }

    /// Returns the byte up to which the disk has been read.
    pub fn offset(&self) -> u64 {
        let leaf_start = Lba(self.next_leaf * u64::from(LEAF_BLOCKS));
        let (lba, _, _) = self.runs.front().copied().unwrap_or((leaf_start, 0, Mapping::Hole));
        (lba.0 * BLOCK_BYTES as u64).min(self.drive.size_bytes())
    }

    async fn advance(&mut self) -> Option<Step> {
        while self.runs.is_empty() {
            let next = self.next_leaf();
            let Some(leaf) = next else {
                let blocks = self.drive.size_bytes() / BLOCK_BYTES as u64;
                self.next_leaf = blocks.div_ceil(u64::from(LEAF_BLOCKS));
                return None;
            };
            self.next_leaf = leaf + 1;
            if let Err(error) = self.take_leaf(leaf).await {
                let first = Lba(leaf * u64::from(LEAF_BLOCKS));
                return Some(Step::Lost(self.lost(first, u64::from(LEAF_BLOCKS), &error)));
            }
        }
        let (lba, count, mapping) = self.runs.front().copied().expect("runs of a leaf are left");
        let offset = lba.0 * BLOCK_BYTES as u64;
        if let Mapping::Fill(byte) = mapping {
            self.runs.pop_front();
            return Some(Step::Fill { offset, len: count * BLOCK_BYTES as u64, byte });
        }
        if mapping == Mapping::Hole {
            return match self.inherited(lba, count).await {
                Some(step) => Some(step),
                None => Box::pin(self.advance()).await,
            };
        }
        let (runs, blocks) = self.frames_together();
        assert!(runs > 0 && blocks >= count, "the first run is read");
        let len = buffer_bytes(blocks);
        let target = self.buffer.get_mut(..len).expect("frames read together fit in the buffer");
        match self.drive.read(offset, target).await {
            Err(_) if runs > 1 => {
                self.single = runs;
                Box::pin(self.advance()).await
            }
            read => {
                assert!(runs <= self.runs.len(), "the runs that were read are left");
                self.runs.drain(..runs);
                self.single = self.single.saturating_sub(runs);
                Some(match read {
                    Ok(()) => Step::Data { offset, len },
                    Err(error) => Step::Lost(self.lost(lba, blocks, &error)),
                })
            }
        }
    }

    /// Returns the next leaf with blocks to return.
    fn next_leaf(&self) -> Option<u64> {
        if self.next_leaf * u64::from(LEAF_BLOCKS) < self.inherited_blocks {
            return Some(self.next_leaf);
        }
        self.drive.core().map().next_mapped_leaf(self.next_leaf)
    }

    /// Returns the content that the origin of a clone has for the `count` blocks starting at `lba`,
    /// or for as many of them as have the same kind of content. Returns `None` if the origin has a
    /// hole there.
    async fn inherited(&mut self, lba: Lba, count: u64) -> Option<Step> {
        let block = BLOCK_BYTES as u64;
        let offset = lba.0 * block;
        let mut found = None;
        let visit = |extent| found.replace(extent).is_some();
        let asked = self.drive.extents(offset, count * block, visit).await;
        let (len, content) = match (asked, found) {
            (Ok(()), Some(Extent { bytes, content, .. })) => (bytes, content),
            (Err(error), _) => {
                self.runs.pop_front();
                return Some(Step::Lost(self.lost(lba, count, &error)));
            }
            (Ok(()), None) => unreachable!("a range has an extent"),
        };
        let chunk = if content == Content::Data { len.min(CHUNK_BYTES as u64) } else { len };
        let blocks = chunk / block;
        assert!((1..=count).contains(&blocks), "each step advances within its run");
        self.runs.pop_front();
        if blocks < count {
            self.runs.push_front((Lba(lba.0 + blocks), count - blocks, Mapping::Hole));
        }
        match content {
            Content::Hole => None,
            Content::Zeroes => Some(Step::Fill { offset, len, byte: 0 }),
            Content::Data => {
                let len = buffer_bytes(blocks);
                let target = self.buffer.get_mut(..len).expect("a chunk fits in the buffer");
                Some(match self.drive.read(offset, target).await {
                    Ok(()) => Step::Data { offset, len },
                    Err(error) => Step::Lost(self.lost(lba, blocks, &error)),
                })
            }
        }
    }

    /// Loads the runs of a leaf.
    async fn take_leaf(&mut self, leaf: u64) -> crate::base::Result<()> {
        let end = self.drive.size_bytes() / BLOCK_BYTES as u64;
        loop {
            {
                let core = self.drive.core();
                if let Some(runs) = core.map().leaf_runs(leaf) {
                    // The disk may end within its last leaf.
                    let within = runs.filter(|(lba, _, _)| lba.0 < end);
                    let within =
                        within.map(|(lba, count, mapping)| (lba, count.min(end - lba.0), mapping));
                    let first = leaf * u64::from(LEAF_BLOCKS);
                    let hole_end = self.inherited_blocks.min(first + u64::from(LEAF_BLOCKS));
                    self.runs.extend(with_holes(within, first, hole_end));
                    return Ok(());
                }
            }
            self.drive.load_leaf(leaf).await?;
        }
    }

    /// Returns the number of runs, starting with the first, that are adjacent frames to be read
    /// together, and the number of their blocks.
    fn frames_together(&self) -> (usize, u64) {
        let (mut runs, mut blocks) = (0, 0);
        let limit = if self.single > 0 { 1 } else { self.runs.len() };
        let Some(&(first, _, _)) = self.runs.front() else { return (0, 0) };
        for &(lba, count, mapping) in self.runs.iter().take(limit) {
            let fits = (blocks + count) * BLOCK_BYTES as u64 <= CHUNK_BYTES as u64;
            let is_frame = matches!(mapping, Mapping::Frame { .. });
            if !is_frame || lba.0 != first.0 + blocks || !fits {
                break;
            }
            (runs, blocks) = (runs + 1, blocks + count);
        }
        assert!(blocks * BLOCK_BYTES as u64 <= CHUNK_BYTES as u64, "frames fit in the buffer");
        (runs, blocks)
    }

    fn lost(&self, lba: Lba, count: u64, error: &Error) -> Problem {
        let end = self.drive.size_bytes() / BLOCK_BYTES as u64;
        let rest = end.checked_sub(lba.0).expect("lost blocks lie on the disk");
        Problem {
            what: error.chain(),
            segment: error.segment().map(|segment| segment.0),
            lba: Some(lba.0),
            lba_count: Some(count.min(rest)),
        }
    }
}

/// Returns runs starting at block `at`, in order, with the holes between them up to block
/// `hole_end`.
fn with_holes(
    runs: impl Iterator<Item = (Lba, u64, Mapping)>,
    at: u64,
    hole_end: u64,
) -> Vec<(Lba, u64, Mapping)> {
    let (mut all, mut at) = (Vec::new(), at);
    let end = (Lba(u64::MAX), 0, Mapping::Hole);
    for run @ (lba, count, _) in runs.chain([end]) {
        let hole = lba.0.min(hole_end).saturating_sub(at);
        if hole > 0 {
            all.push((Lba(at), hole, Mapping::Hole));
        }
        if count > 0 {
            all.push(run);
            at = lba.0 + count;
        }
    }
    all
}

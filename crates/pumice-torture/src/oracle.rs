//! The oracle: the content that a disk must have, according to the prefix promise.
//!
//! ```text
//! base --changes, in the order in which the drive accepted them--> disk
//!                     ^ durable: promised by the last flush that returned
//! ```
//!
//! A life begins with a known `base`. Every change is recorded in the poll in which the drive
//! accepts it. After a crash the disk must be `base` with the first k changes, where `durable` <=
//! k: so a change is present completely or not at all, no block is a mixture, and flushed data is
//! never older. A read must return, block by block, a content that the block had at some moment
//! between the begin and the end of the read.
//!
//! The oracle does not know the drive: it is given changes and contents, and compares. Changes with
//! equal content (fills) make several k possible, but never cause a wrong verdict.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::data::describe;
use pumice_drive::base::units::BLOCK_BYTES;

/// The content of a range after a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// These bytes.
    Bytes(Vec<u8>),
    /// This number of zeroes.
    Zeroes(usize),
}

/// One atomic change of the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Change {
    /// Number of the host's request in the world, for messages.
    pub(super) request: u64,
    /// Offset of the first changed byte.
    pub(super) offset: usize,
    /// The new content.
    pub(super) content: Content,
}

impl Change {
    /// Returns the bytes of the disk that the change covers.
    pub(super) fn range(&self) -> Range<usize> {
        let len = match &self.content {
            Content::Bytes(bytes) => bytes.len(),
            Content::Zeroes(len) => *len,
        };
        self.offset..self.offset + len
    }

    fn apply(&self, disk: &mut [u8]) {
        let target = &mut disk[self.range()];
        match &self.content {
            Content::Bytes(bytes) => target.copy_from_slice(bytes),
            Content::Zeroes(_) => target.fill(0),
        }
    }
}

/// A promise, and what was found instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mismatch {
    /// The promise, for this range.
    pub(super) promised: String,
    /// The content of the range.
    pub(super) found: String,
}

/// The number of changes that a crash kept and lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Settled {
    /// Changes that are present.
    pub(super) kept: usize,
    /// Changes that are gone.
    pub(super) lost: usize,
}

/// A read in progress: its range, the content at its begin, and the contents of its blocks since.
#[derive(Debug)]
struct OpenRead {
    range: Range<usize>,
    first: Vec<u8>,
    later: Vec<(usize, Box<[u8]>)>,
}

/// The oracle of one disk.
#[derive(Debug)]
pub(super) struct Oracle {
    base: Vec<u8>,
    disk: Vec<u8>,
    changes: Vec<Change>,
    durable: usize,
    reads: BTreeMap<u64, OpenRead>,
}

impl Oracle {
    /// Creates a disk of zeroes.
    pub(super) fn new(bytes: usize) -> Self {
        Self {
            base: vec![0; bytes],
            disk: vec![0; bytes],
            changes: Vec::new(),
            durable: 0,
            reads: BTreeMap::new(),
        }
    }

    /// Returns the size of the disk.
    pub(super) fn bytes(&self) -> usize {
        self.disk.len()
    }

    /// Returns the disk with which the oracle was last settled.
    pub(super) fn base(&self) -> &[u8] {
        &self.base
    }

    /// Returns the number of changes since the oracle was last settled.
    pub(super) fn taken(&self) -> usize {
        self.changes.len()
    }

    /// Returns the number of changes that are promised to survive.
    pub(super) fn durable(&self) -> usize {
        self.durable
    }

    /// Records a change that the drive accepted.
    pub(super) fn take(&mut self, change: Change) {
        let range = change.range();
        change.apply(&mut self.disk);
        for read in self.reads.values_mut() {
            let shared = range.start.max(read.range.start)..range.end.min(read.range.end);
            if shared.is_empty() {
                continue;
            }
            for block in blocks(&shared) {
                read.later.push((block, self.disk[bytes_of(block)].into()));
            }
        }
        self.changes.push(change);
    }

    /// Records that the first `changes` changes are durable.
    pub(super) fn promise(&mut self, changes: usize) {
        self.durable = self.durable.max(changes);
    }

    /// Records the begin of a read of `range`; `id` is not in use.
    pub(super) fn begin_read(&mut self, id: u64, range: Range<usize>) {
        let first = self.disk[range.clone()].to_vec();
        self.reads.insert(id, OpenRead { range, first, later: Vec::new() });
    }

    /// Records the end of the read `id`, and checks its bytes if it returned any.
    pub(super) fn end_read(&mut self, id: u64, found: Option<&[u8]>) -> Result<(), Mismatch> {
        let (Some(read), Some(found)) = (self.reads.remove(&id), found) else { return Ok(()) };
        for block in blocks(&read.range) {
            let whole = bytes_of(block);
            let here = whole.start.max(read.range.start)..whole.end.min(read.range.end);
            let at = here.start - read.range.start..here.end - read.range.start;
            let got = &found[at.clone()];
            let skip = here.start - whole.start;
            let held = |(number, content): &(usize, Box<[u8]>)| {
                *number == block && content[skip..skip + got.len()] == *got
            };
            if *got == read.first[at.clone()] || read.later.iter().any(held) {
                continue;
            }
            return Err(Mismatch {
                promised: format!(
                    "a read of LBA {block} returns a content it had during the read: {}",
                    describe(&read.first[at])
                ),
                found: describe(got),
            });
        }
        Ok(())
    }

    /// Ends the life; reads in progress are forgotten.
    pub(super) fn end_life(&mut self) {
        self.reads.clear();
    }

    /// Checks the whole disk as found in the next life, and continues from its content.
    ///
    /// # Errors
    /// The disk is not the base with the first k changes, for any k that the promises allow.
    pub(super) fn settle(&mut self, found: &[u8]) -> Result<Settled, Mismatch> {
        let Some(kept) = self.prefix_len(found, self.durable) else {
            return Err(self.explain(found));
        };
        let lost = self.changes.len() - kept;
        self.base.copy_from_slice(found);
        self.disk.copy_from_slice(found);
        self.changes.clear();
        self.durable = 0;
        Ok(Settled { kept, lost })
    }

    /// Returns the number of changes, at least `shortest`, after which the disk was `found`. Of
    /// several answers it returns the largest: they differ by changes that had no effect.
    fn prefix_len(&self, found: &[u8], shortest: usize) -> Option<usize> {
        let mut disk = self.base.clone();
        let (promised, open) = self.changes.split_at(shortest);
        promised.iter().for_each(|change| change.apply(&mut disk));
        let mut wrong = wrong_blocks(&disk, found);
        let mut answer = wrong.is_empty().then_some(shortest);
        for (index, change) in open.iter().enumerate() {
            change.apply(&mut disk);
            for block in blocks(&change.range()) {
                if disk[bytes_of(block)] == found[bytes_of(block)] {
                    wrong.remove(&block);
                } else {
                    wrong.insert(block);
                }
            }
            if wrong.is_empty() {
                answer = Some(shortest + index + 1);
            }
        }
        answer
    }

    /// Describes a disk that no allowed prefix explains.
    fn explain(&self, found: &[u8]) -> Mismatch {
        let (taken, durable) = (self.changes.len(), self.durable);
        if let Some(shorter) = self.prefix_len(found, 0) {
            return Mismatch {
                promised: format!("the first {durable} of {taken} changes, which were flushed"),
                found: format!("the first {shorter} only: a flush was lost"),
            };
        }
        // The prefix with the fewest wrong blocks probably shows the actual error.
        let mut disk = self.base.clone();
        self.changes[..durable].iter().for_each(|change| change.apply(&mut disk));
        let mut best = (wrong_blocks(&disk, found), durable);
        for (index, change) in self.changes.iter().enumerate().skip(durable) {
            change.apply(&mut disk);
            let wrong = wrong_blocks(&disk, found);
            if wrong.len() < best.0.len() {
                best = (wrong, index + 1);
            }
        }
        let (wrong, kept) = best;
        let block = wrong.first().copied().unwrap_or(0);
        let mut disk = self.base.clone();
        self.changes[..kept].iter().for_each(|change| change.apply(&mut disk));
        let touches = |change: &&Change| blocks(&change.range()).contains(&block);
        let numbers = |(index, change): (usize, &Change)| {
            touches(&change).then(|| format!("{} (request {})", index + 1, change.request))
        };
        let history: Vec<String> = self.changes.iter().enumerate().filter_map(numbers).collect();
        Mismatch {
            promised: format!(
                "a prefix of {taken} changes, of at least {durable}; with {kept}, LBA {block} \
                 holds {}",
                describe(&disk[bytes_of(block)])
            ),
            found: format!(
                "{} blocks that no prefix explains; LBA {block}, changed by [{}], holds {}",
                wrong.len(),
                history.join(", "),
                describe(&found[bytes_of(block)])
            ),
        }
    }
}

/// Returns the blocks that a byte range touches.
fn blocks(range: &Range<usize>) -> Range<usize> {
    range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES)
}

/// Returns the bytes of a block.
fn bytes_of(block: usize) -> Range<usize> {
    block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES
}

fn wrong_blocks(disk: &[u8], found: &[u8]) -> BTreeSet<usize> {
    let differs = |block: &usize| disk[bytes_of(*block)] != found[bytes_of(*block)];
    (0..disk.len() / BLOCK_BYTES).filter(differs).collect()
}

#[cfg(test)]
mod tests;

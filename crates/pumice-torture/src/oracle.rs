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
//! between the start and the end of the read.
//!
//! On a damaged medium some blocks cannot be read. Such a block is *vague*: it holds one of the
//! contents that the promises allow, and every later successful read must return one of them.
//! Damage of the newest batch looks like a torn tail, so the prefix may then be shorter than
//! `durable`, but not shorter than the prefix that a later durable change *vouches* for: each
//! change vouches for everything that was durable when it was accepted.
//!
//! The oracle is independent of the drive: it only receives changes and contents, and compares
//! them. Changes with equal content (fills) make several k possible, but never cause a wrong
//! verdict.

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

    /// Writes the part of the change that is in `at` to `target`, which holds that range.
    fn apply(&self, at: Range<usize>, target: &mut [u8]) {
        let range = self.range();
        let shared = range.start.max(at.start)..range.end.min(at.end);
        if shared.is_empty() {
            return;
        }
        let part = &mut target[shared.start - at.start..shared.end - at.start];
        match &self.content {
            Content::Bytes(bytes) => {
                part.copy_from_slice(&bytes[shared.start - range.start..shared.end - range.start]);
            }
            Content::Zeroes(_) => part.fill(0),
        }
    }
}

/// The contents of a vague block.
type Contents = Vec<Box<[u8]>>;

/// A disk with blocks for which only the possible contents are known.
#[derive(Clone, Debug)]
pub(super) struct Image {
    bytes: Vec<u8>,
    vague: BTreeMap<usize, Contents>,
}

impl Image {
    /// Returns the size of the disk in bytes.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the bytes of the disk, where they are known.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Describes the first block that cannot hold the content found in it.
    pub(super) fn first_wrong(&self, found: &Found<'_>) -> Option<String> {
        let wrong = self.wrong_blocks(found);
        let block = *wrong.first()?;
        Some(format!(
            "{} wrong blocks; LBA {block} holds {}, not {}",
            wrong.len(),
            describe(&found.bytes[bytes_of(block)]),
            describe(&self.bytes[bytes_of(block)])
        ))
    }

    /// Returns the disk with zeroes at its end.
    pub(super) fn of_length(mut self, bytes: usize) -> Self {
        self.bytes.resize(bytes, 0);
        self
    }

    fn apply(&mut self, change: &Change) {
        let len = self.bytes.len();
        change.apply(0..len, &mut self.bytes);
        let range = change.range();
        let is_whole =
            |block: usize| range.start <= bytes_of(block).start && bytes_of(block).end <= range.end;
        let touched: Vec<usize> =
            self.vague.range(blocks(&range)).map(|(block, _)| *block).collect();
        for block in touched {
            if is_whole(block) {
                self.vague.remove(&block);
                continue;
            }
            let contents = self.vague.get_mut(&block).expect("just found");
            contents.iter_mut().for_each(|content| change.apply(bytes_of(block), content));
        }
    }

    /// Returns whether a block may hold this content.
    fn holds(&self, block: usize, content: &[u8]) -> bool {
        let mut vague = self.vague.get(&block).into_iter().flatten();
        self.bytes[bytes_of(block)] == *content || vague.any(|possible| **possible == *content)
    }

    /// Returns all contents that a block may hold.
    fn contents(&self, block: usize) -> Contents {
        let mut contents = vec![self.bytes[bytes_of(block)].into()];
        contents.extend(self.vague.get(&block).into_iter().flatten().cloned());
        contents
    }

    /// Returns the blocks that cannot hold the content found in them.
    fn wrong_blocks(&self, found: &Found<'_>) -> BTreeSet<usize> {
        let is_wrong = |block: &usize| found.contradicts(self, *block);
        (0..self.bytes.len() / BLOCK_BYTES).filter(is_wrong).collect()
    }
}

/// A disk as it was read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found<'a> {
    pub(super) bytes: &'a [u8],
    /// The blocks that could not be read.
    pub(super) unreadable: &'a BTreeSet<usize>,
}

impl Found<'_> {
    fn contradicts(&self, image: &Image, block: usize) -> bool {
        let content = &self.bytes[bytes_of(block)];
        !image.holds(block, content) && !self.unreadable.contains(&block)
    }
}

/// A promise, and the contradicting content.
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
    /// Changes that were lost.
    pub(super) lost: usize,
}

/// A read in progress: its range, the content at its start, and the contents of its blocks since.
#[derive(Debug)]
struct OpenRead {
    range: Range<usize>,
    first: Vec<u8>,
    later: Vec<(usize, Box<[u8]>)>,
}

/// A change in the order of all changes.
#[derive(Debug)]
struct Ordered {
    change: Change,
    /// Number of changes that were durable when this one was accepted.
    vouches: usize,
}

/// Maximum number of batches damaged together.
pub(super) const LOST_BATCHES_MAX: u32 = 2;

/// Maximum number of vouched changes that are kept; more are merged into the base.
const VOUCHED_MAX: usize = 256;

/// The oracle of one disk.
#[derive(Debug)]
pub(super) struct Oracle {
    base: Image,
    disk: Image,
    /// Number of changes of the life that the base includes.
    merged: usize,
    changes: Vec<Ordered>,
    durable: usize,
    reads: BTreeMap<u64, OpenRead>,
}

impl Oracle {
    /// Creates a disk of zeroes.
    pub(super) fn new(bytes: usize) -> Self {
        Self::of(Image { bytes: vec![0; bytes], vague: BTreeMap::new() })
    }

    /// Creates a disk with the content of `image`.
    pub(super) fn of(image: Image) -> Self {
        Self {
            base: image.clone(),
            disk: image,
            merged: 0,
            changes: Vec::new(),
            durable: 0,
            reads: BTreeMap::new(),
        }
    }

    /// Returns the size of the disk.
    pub(super) fn bytes(&self) -> usize {
        self.disk.bytes.len()
    }

    /// Makes the disk larger; the new blocks are zeroes.
    pub(super) fn grow(&mut self, bytes: usize) {
        self.base.bytes.resize(bytes, 0);
        self.disk.bytes.resize(bytes, 0);
    }

    /// Removes the end by which a disk grew; returns whether that end was unused.
    pub(super) fn shrink(&mut self, bytes: usize) -> bool {
        let is_used = self.changes.iter().any(|ordered| ordered.change.range().end > bytes);
        self.base.bytes.truncate(bytes);
        self.disk.bytes.truncate(bytes);
        !is_used
    }

    /// Returns the disk with which the oracle was last settled.
    pub(super) fn base(&self) -> &[u8] {
        &self.base.bytes
    }

    /// Returns the first `bytes` of the disk as it is now.
    pub(super) fn freeze(&self, bytes: usize) -> Image {
        let mut image = self.disk.clone();
        image.bytes.truncate(bytes);
        image.vague.retain(|&block, _| bytes_of(block).end <= bytes);
        image
    }

    /// Returns the number of changes since the oracle was last settled.
    pub(super) fn taken(&self) -> usize {
        self.merged + self.changes.len()
    }

    /// Returns the number of changes that are promised to survive.
    pub(super) fn durable(&self) -> usize {
        self.durable
    }

    /// Returns the number of durable changes that survive the loss of any `batches` batches,
    /// because a durable batch after them records that they were durable.
    pub(super) fn vouched(&self, batches: u32) -> usize {
        let mut kept = self.durable;
        for _ in 0..batches {
            match kept.checked_sub(self.merged + 1) {
                Some(last) => kept = self.changes[last].vouches,
                None => return self.merged,
            }
        }
        kept.max(self.merged)
    }

    /// Returns whether a block may hold this content.
    pub(super) fn may_hold(&self, block: usize, content: &[u8]) -> bool {
        self.disk.holds(block, content)
    }

    /// Returns the content of each block that is not one repeated byte.
    pub(super) fn data_blocks(&self) -> impl Iterator<Item = &[u8]> {
        let is_data = |block: &&[u8]| block.iter().any(|&byte| byte != block[0]);
        self.disk.bytes.chunks(BLOCK_BYTES).filter(is_data)
    }

    /// Records a change that the drive accepted.
    pub(super) fn take(&mut self, change: Change) {
        let range = change.range();
        self.disk.apply(&change);
        for read in self.reads.values_mut() {
            let shared = range.start.max(read.range.start)..range.end.min(read.range.end);
            if shared.is_empty() {
                continue;
            }
            for block in blocks(&shared) {
                read.later.extend(self.disk.contents(block).into_iter().map(|held| (block, held)));
            }
        }
        self.changes.push(Ordered { change, vouches: self.durable });
    }

    /// Records that the first `changes` changes are durable.
    pub(super) fn promise(&mut self, changes: usize) {
        self.durable = self.durable.max(changes);
        let vouched = self.vouched(LOST_BATCHES_MAX) - self.merged;
        if vouched > VOUCHED_MAX {
            self.changes.drain(..vouched).for_each(|vouched| self.base.apply(&vouched.change));
            self.merged += vouched;
        }
    }

    /// Records the start of a read of `range`; `id` is not in use.
    pub(super) fn begin_read(&mut self, id: u64, range: Range<usize>) {
        let first = self.disk.bytes[range.clone()].to_vec();
        let vague = self.disk.vague.range(blocks(&range));
        let later = vague
            .flat_map(|(block, contents)| contents.iter().map(|held| (*block, held.clone())))
            .collect();
        self.reads.insert(id, OpenRead { range, first, later });
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

    /// Checks the whole disk as found in the next life, and continues from its content. At least
    /// the first `floor` changes must be present.
    ///
    /// # Errors
    /// The disk is not the base with the first k changes, for any k that the promises allow.
    pub(super) fn settle(&mut self, found: Found<'_>, floor: usize) -> Result<Settled, Mismatch> {
        let Some((fewest, kept)) = self.prefixes(found, floor) else {
            return Err(self.explain(found, floor));
        };
        let lost = self.taken() - kept;
        let vague = self.contents_between(found.unreadable, fewest, kept);
        self.base.bytes.copy_from_slice(found.bytes);
        for (&block, contents) in &vague {
            let first = contents.first().expect("a vague block has contents");
            self.base.bytes[bytes_of(block)].copy_from_slice(first);
        }
        self.base.vague = vague;
        self.disk = self.base.clone();
        self.changes.clear();
        (self.durable, self.merged) = (0, 0);
        Ok(Settled { kept, lost })
    }

    /// Returns the contents of blocks after each number of changes from `fewest` to `most`.
    fn contents_between(
        &self,
        wanted: &BTreeSet<usize>,
        fewest: usize,
        most: usize,
    ) -> BTreeMap<usize, Contents> {
        let mut image = self.base.clone();
        let (before, open) = self.changes[..most - self.merged].split_at(fewest - self.merged);
        before.iter().for_each(|ordered| image.apply(&ordered.change));
        let mut all: BTreeMap<usize, Contents> =
            wanted.iter().map(|&block| (block, image.contents(block))).collect();
        for Ordered { change, .. } in open {
            image.apply(change);
            for block in blocks(&change.range()) {
                let Some(contents) = all.get_mut(&block) else { continue };
                contents.extend(image.contents(block));
            }
        }
        all.values_mut().for_each(|contents| {
            contents.sort();
            contents.dedup();
        });
        all
    }

    /// Returns the smallest and the largest number of changes, at least `shortest`, after which the
    /// disk was `found`. They differ by changes that had no effect.
    fn prefixes(&self, found: Found<'_>, shortest: usize) -> Option<(usize, usize)> {
        let mut image = self.base.clone();
        let (promised, open) = self.changes.split_at(shortest.checked_sub(self.merged)?);
        promised.iter().for_each(|ordered| image.apply(&ordered.change));
        let mut wrong = image.wrong_blocks(&found);
        let mut answer = wrong.is_empty().then_some((shortest, shortest));
        for (index, Ordered { change, .. }) in open.iter().enumerate() {
            image.apply(change);
            for block in blocks(&change.range()) {
                if found.contradicts(&image, block) {
                    wrong.insert(block);
                } else {
                    wrong.remove(&block);
                }
            }
            if wrong.is_empty() {
                let kept = shortest + index + 1;
                answer = Some((answer.map_or(kept, |(fewest, _)| fewest), kept));
            }
        }
        answer
    }

    /// Describes a disk that no allowed prefix explains.
    fn explain(&self, found: Found<'_>, floor: usize) -> Mismatch {
        let taken = self.taken();
        if let Some((_, shorter)) = self.prefixes(found, self.merged) {
            return Mismatch {
                promised: format!("the first {floor} of {taken} changes, which were flushed"),
                found: format!("the first {shorter} only: a flush was lost"),
            };
        }
        // The prefix with the fewest wrong blocks probably shows the actual error.
        let mut image = self.base.clone();
        let (promised, open) = self.changes.split_at(floor - self.merged);
        promised.iter().for_each(|ordered| image.apply(&ordered.change));
        let mut best = (image.wrong_blocks(&found), floor);
        for (index, ordered) in open.iter().enumerate() {
            image.apply(&ordered.change);
            let wrong = image.wrong_blocks(&found);
            if wrong.len() < best.0.len() {
                best = (wrong, floor + index + 1);
            }
        }
        let (wrong, kept) = best;
        let block = wrong.first().copied().unwrap_or(0);
        let mut image = self.base.clone();
        let until = &self.changes[..kept - self.merged];
        until.iter().for_each(|ordered| image.apply(&ordered.change));
        let numbers = |(index, Ordered { change, .. }): (usize, &Ordered)| {
            let touches = blocks(&change.range()).contains(&block);
            let number = self.merged + index + 1;
            touches.then(|| format!("{number} (request {})", change.request))
        };
        let history: Vec<String> = self.changes.iter().enumerate().filter_map(numbers).collect();
        Mismatch {
            promised: format!(
                "a prefix of {taken} changes, of at least {floor}; with {kept}, LBA {block} \
                 holds {}",
                describe(&image.bytes[bytes_of(block)])
            ),
            found: format!(
                "{} blocks that no prefix explains; LBA {block}, changed by [{}], holds {}",
                wrong.len(),
                history.join(", "),
                describe(&found.bytes[bytes_of(block)])
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

#[cfg(test)]
mod tests;

//! One page of the L2P: 1024 logical blocks (4 MiB of the host's disk) as runs.
//!
//! Invariants, checked by `Leaf::check` in tests: the runs partition 0..1024 in order; the first
//! starts at 0; no two neighbours are the same hole or the same fill. A frame written whole is one
//! run; a frame with dead parts is as many runs as it has live pieces.

use super::super::place::{FrameAddress, FramePlace};
use super::{LivePiece, Mapping, Released};
use crate::base::{Result, SegmentId};
pub(crate) use crate::format::LEAF_BLOCKS;
use crate::format::{MapLimits, RunContent, decode_leaf, encode_run};

/// A run, in 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    /// First block of the run within the leaf.
    start: u16,
    /// Position in the frame of the run's first block; of a fill, the byte.
    index: u8,
    /// Blocks of the whole frame; 0 for a hole or a fill.
    blocks: u8,
    segment: u32,
    offset: u32,
    record_bytes: u32,
}

const HOLE: u32 = 0;
const FILL: u32 = 1;

impl Run {
    fn new(start: u16, mapping: Mapping) -> Self {
        let empty = Run { start, index: 0, blocks: 0, segment: HOLE, offset: 0, record_bytes: 0 };
        match mapping {
            Mapping::Hole => empty,
            Mapping::Fill(byte) => Run { index: byte, segment: FILL, ..empty },
            Mapping::Frame { place, index } => Run {
                start,
                index,
                blocks: place.blocks,
                segment: place.segment.0,
                offset: place.offset,
                record_bytes: place.record_bytes,
            },
        }
    }

    fn mapping(&self) -> Mapping {
        match (self.blocks, self.segment) {
            (0, HOLE) => Mapping::Hole,
            (0, _) => Mapping::Fill(self.index),
            _ => Mapping::Frame { place: self.place(), index: self.index },
        }
    }

    fn content(&self) -> RunContent {
        match self.mapping() {
            Mapping::Hole => RunContent::Hole,
            Mapping::Fill(byte) => RunContent::Fill(byte),
            Mapping::Frame { place, index } => RunContent::Frame {
                segment: place.segment.0,
                offset: place.offset,
                record_bytes: place.record_bytes,
                blocks: place.blocks,
                index,
            },
        }
    }

    fn is_hole(&self) -> bool {
        self.blocks == 0 && self.segment == HOLE
    }

    fn is_of(&self, frame: FrameAddress) -> bool {
        self.blocks > 0 && self.segment == frame.segment.0 && self.offset == frame.offset
    }

    fn place(&self) -> FramePlace {
        FramePlace {
            segment: SegmentId(self.segment),
            offset: self.offset,
            record_bytes: self.record_bytes,
            blocks: self.blocks,
        }
    }

    /// Returns the same run from `start` on, which must not precede its own start.
    fn cut_to(&self, start: u16) -> Self {
        let skipped = (start - self.start) as u8;
        let index = if self.blocks == 0 { self.index } else { self.index + skipped };
        Run { start, index, ..*self }
    }

    /// Returns whether `next` continues this run so that both can be one.
    fn joins(&self, next: &Run) -> bool {
        self.blocks == 0
            && next.blocks == 0
            && self.segment == next.segment
            && self.index == next.index
    }
}

/// 1024 blocks as runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Leaf {
    runs: Vec<Run>,
}

impl Leaf {
    /// Creates a leaf whose blocks are all `mapping`, which must be a hole or a fill.
    pub(super) fn uniform(mapping: Mapping) -> Self {
        Self { runs: vec![Run::new(0, mapping)] }
    }

    /// Decodes a leaf from its bytes on the medium.
    ///
    /// # Errors
    /// `Corrupt` unless it is a partition into possible runs whose frames lie within `limits`.
    pub(crate) fn decode(bytes: &[u8], limits: &MapLimits) -> Result<Self> {
        let run = |(start, content)| {
            let mapping = match content {
                RunContent::Hole => Mapping::Hole,
                RunContent::Fill(byte) => Mapping::Fill(byte),
                RunContent::Frame { segment, offset, record_bytes, blocks, index } => {
                    let segment = SegmentId(segment);
                    let place = FramePlace { segment, offset, record_bytes, blocks };
                    Mapping::Frame { place, index }
                }
            };
            Run::new(start, mapping)
        };
        Ok(Self { runs: decode_leaf(bytes, limits)?.map(run).collect() })
    }

    /// Appends the leaf's bytes on the medium, 16 a run, to `target`.
    pub(crate) fn encode(&self, target: &mut Vec<u8>) {
        for run in &self.runs {
            encode_run(run.start, run.content(), target);
        }
    }

    /// Returns what all blocks are, if they are one hole or fill.
    pub(super) fn as_uniform(&self) -> Option<Mapping> {
        (self.runs.len() == 1 && self.runs[0].blocks == 0).then(|| self.runs[0].mapping())
    }

    /// Returns the number of blocks that are not holes.
    pub(super) fn mapped_blocks(&self) -> u64 {
        let mapped = self.runs().filter(|(_, _, mapping)| *mapping != Mapping::Hole);
        mapped.map(|(_, count, _)| u64::from(count)).sum()
    }

    /// Returns the first piece of `frame` among the blocks `start..end`.
    pub(super) fn next_piece(
        &self,
        start: u16,
        end: u16,
        frame: FrameAddress,
    ) -> Option<LivePiece> {
        let first = self.run_at(start);
        let covered = self.runs.iter().enumerate().skip(first);
        let mut covered = covered.take_while(|(_, run)| run.start < end);
        let (at, run) = covered.find(|(_, run)| run.is_of(frame))?;
        let piece = run.cut_to(run.start.max(start));
        let count = (self.run_end(at).min(end) - piece.start) as u8;
        Some(LivePiece { start: piece.start, index: piece.index, count })
    }

    /// Returns the mapping of `block` and how many blocks from it on continue the same run.
    pub(super) fn lookup(&self, block: u16) -> (Mapping, u16) {
        let at = self.run_at(block);
        (self.runs[at].cut_to(block).mapping(), self.run_end(at) - block)
    }

    /// Maps `count` blocks from `start` on to `mapping`, whose frame index is that of `start`, and
    /// reports every frame piece that was mapped there before. Returns how many of the blocks were
    /// holes.
    pub(super) fn replace(
        &mut self,
        start: u16,
        count: u16,
        mapping: Mapping,
        released: &mut impl FnMut(Released),
    ) -> u16 {
        let end = start + count;
        assert!(count > 0 && end <= LEAF_BLOCKS, "blocks {start}..{end} are not in a leaf");
        let first = self.run_at(start);
        let new = Run::new(start, mapping);
        if self.runs[first].start == start && self.run_end(first) == end && new.blocks > 0 {
            report(&self.runs[first], end, released);
            let holes = if self.runs[first].is_hole() { count } else { 0 };
            self.runs[first] = new;
            return holes;
        }
        let last = first + self.runs[first..].partition_point(|run| run.start < end) - 1;
        let mut holes = 0;
        for at in first..=last {
            let run = &self.runs[at];
            let piece = run.cut_to(run.start.max(start));
            let piece_end = self.run_end(at).min(end);
            report(&piece, piece_end, released);
            holes += if piece.is_hole() { piece_end - piece.start } else { 0 };
        }
        self.splice(first, last, new, end);
        holes
    }

    /// Puts `new` (ending at `end`) over the runs `first..=last`, keeping the parts of them outside
    /// of it and joining equal holes and fills.
    fn splice(&mut self, first: usize, last: usize, new: Run, end: u16) {
        let (mut from, mut to) = (first, last + 1);
        let mut pieces = [new; 3];
        let mut used = 0;
        if self.runs[first].start < new.start {
            pieces[used] = self.runs[first];
            used += 1;
        } else if first > 0 {
            from = first - 1;
            pieces[used] = self.runs[from];
            used += 1;
        }
        if used > 0 && pieces[used - 1].joins(&new) {
            used -= 1;
            pieces[used].start = pieces[used].start.min(new.start);
        } else {
            pieces[used] = new;
        }
        used += 1;
        let rest = (self.run_end(last) > end)
            .then(|| self.runs[last].cut_to(end))
            .or_else(|| self.runs.get(to).copied().inspect(|_| to += 1));
        if let Some(rest) = rest
            && !pieces[used - 1].joins(&rest)
        {
            // With a neighbour kept on the left, `new` and a rest on the right, all three are used.
            pieces[used] = rest;
            used += 1;
        }
        self.runs.splice(from..to, pieces[..used].iter().copied());
    }

    /// Reports every frame piece of the leaf.
    pub(super) fn release_all(&self, released: &mut impl FnMut(Released)) {
        for (at, run) in self.runs.iter().enumerate() {
            report(run, self.run_end(at), released);
        }
    }

    /// Returns every run: first block, number of blocks, mapping.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (u16, u16, Mapping)> {
        self.runs
            .iter()
            .enumerate()
            .map(|(at, run)| (run.start, self.run_end(at) - run.start, run.mapping()))
    }

    /// Returns the bytes of memory that the leaf's runs take.
    pub(super) fn memory_bytes(&self) -> usize {
        self.runs.capacity() * size_of::<Run>()
    }

    #[inline]
    fn run_at(&self, block: u16) -> usize {
        // Where every block is a run of its own, as random writes leave a leaf, there is nothing to
        // search: a search costs ten unpredictable branches.
        if self.runs.len() == usize::from(LEAF_BLOCKS) {
            return usize::from(block);
        }
        self.runs.partition_point(|run| run.start <= block) - 1
    }

    fn run_end(&self, at: usize) -> u16 {
        self.runs.get(at + 1).map_or(LEAF_BLOCKS, |next| next.start)
    }

    #[cfg(test)]
    pub(super) fn check(&self) {
        assert_eq!(self.runs[0].start, 0);
        for pair in self.runs.windows(2) {
            assert!(pair[0].start < pair[1].start);
            assert!(!pair[0].joins(&pair[1]), "{pair:?}");
        }
        assert!(self.runs.last().unwrap().start < LEAF_BLOCKS);
    }
}

fn report(run: &Run, end: u16, released: &mut impl FnMut(Released)) {
    if run.blocks > 0 {
        let count = (end - run.start) as u8;
        released(Released { place: run.place(), index: run.index, count });
    }
}

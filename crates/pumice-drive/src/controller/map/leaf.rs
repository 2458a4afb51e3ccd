//! One page of the L2P: 1024 logical blocks (4 MiB of the host's disk) as runs.
//!
//! Invariants, checked by `Leaf::check_invariants`: the runs partition 0..1024 in order; the first
//! starts at 0; no two neighbours are the same hole or the same fill; a run ends within its frame.
//! A frame written whole is one run; a partly dead frame has one run for each live piece. Tables of
//! frames of chunks are stored next to the runs: see [`super::tables`].

use super::super::place::{FrameAddress, FramePlace};
use super::tables::{FrameTable, Tables, fits};
use super::{LivePiece, Mapping, Released};
use crate::base::{ErrorContext, ErrorKind, Result, SegmentId};
use crate::codec::ChunkTable;
pub(crate) use crate::format::LEAF_BLOCKS;
use crate::format::{
    LEAF_RUN_BYTES, LEAF_TABLE_BYTES, LeafTable, MapLimits, MetadataAddress, RunContent,
    TABLE_BLOCKS_MIN, decode_leaf, encode_run,
};

/// A run, in 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    /// First block of the run within the leaf.
    start: u16,
    /// Position in the frame of the run's first block, or the byte of a fill.
    index: u8,
    /// Blocks of the whole frame; 0 for a hole or a fill.
    blocks: u8,
    segment: u32,
    offset: u32,
    record_bytes: u32,
}

const _: () =
    assert!(size_of::<Run>() == LEAF_RUN_BYTES, "a run has one size in memory and on a medium");

const HOLE: u32 = 0;
const FILL: u32 = 1;

/// Blocks of the frames that a lost leaf seems to map: the maximum of a frame.
const LOST_FRAME_BLOCKS: u8 = 64;

/// Bytes of each such frame, which are never counted.
const LOST_FRAME_BYTES: u32 = 64;

impl Run {
    fn new(start: u16, mapping: Mapping) -> Self {
        assert!(start < LEAF_BLOCKS, "a run begins in its leaf");
        if let Mapping::Frame { place, index } = mapping {
            assert!(index < place.blocks, "a block is mapped beyond the end of its frame");
        }
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
        debug_assert!(
            self.blocks > 0 || self.segment <= FILL,
            "a run without frame is a hole or a fill"
        );
        match (self.blocks, self.segment) {
            (0, HOLE) => Mapping::Hole,
            (0, _) => Mapping::Fill(self.index),
            _ => Mapping::Frame { place: self.place(), index: self.index },
        }
    }

    fn content(&self, has_table: bool) -> RunContent {
        match self.mapping() {
            Mapping::Hole => RunContent::Hole,
            Mapping::Fill(byte) => RunContent::Fill(byte),
            Mapping::Frame { place, index } => RunContent::Frame {
                segment: place.segment.0,
                offset: place.offset,
                record_bytes: place.record_bytes,
                blocks: place.blocks,
                index,
                has_table,
            },
        }
    }

    fn is_zero(&self) -> bool {
        self.blocks == 0 && (self.segment == HOLE || self.index == 0)
    }

    fn is_of(&self, frame: FrameAddress) -> bool {
        self.blocks > 0 && self.segment == frame.segment.0 && self.offset == frame.offset
    }

    fn address(&self) -> FrameAddress {
        FrameAddress { segment: SegmentId(self.segment), offset: self.offset }
    }

    /// Returns the block of the leaf at which the run's frame begins. Only a damaged map has a
    /// frame that begins before its leaf.
    fn frame_start(&self) -> Option<u16> {
        self.start.checked_sub(self.index.into())
    }

    fn place(&self) -> FramePlace {
        assert!(self.index < self.blocks, "a run begins within its frame");
        FramePlace {
            segment: SegmentId(self.segment),
            offset: self.offset,
            record_bytes: self.record_bytes,
            blocks: self.blocks,
        }
    }

    /// Returns the same run cut to begin at `start`, which must not precede its own start.
    fn cut_to(&self, start: u16) -> Self {
        let skipped = start.checked_sub(self.start).expect("a run is cut to blocks of its own");
        if self.blocks == 0 {
            return Run { start, ..*self };
        }
        let index = u8::try_from(u16::from(self.index) + skipped);
        let index = index.expect("the index of a block in its frame has 8 bits");
        assert!(index < self.blocks, "a run is cut beyond the end of its frame");
        Run { start, index, ..*self }
    }

    /// Returns whether `next` continues this run so that the two can be joined.
    fn joins(&self, next: &Run) -> bool {
        self.blocks == 0
            && next.blocks == 0
            && self.segment == next.segment
            && self.index == next.index
    }
}

/// 1024 blocks as runs. A leaf without runs fills a free slot and is never looked up.
#[derive(Clone, Debug, Default)]
pub(crate) struct Leaf {
    runs: Vec<Run>,
    tables: Tables,
}

#[expect(
    clippy::indexing_slicing,
    reason = "indexes of runs come from `run_at`, and the runs partition the leaf"
)]
impl Leaf {
    /// Creates a leaf whose blocks are all `mapping`, which must be a hole or a fill.
    pub(super) fn uniform(mapping: Mapping) -> Self {
        assert!(!matches!(mapping, Mapping::Frame { .. }), "a frame is shorter than a leaf");
        Self { runs: vec![Run::new(0, mapping)], tables: Tables::default() }
    }

    /// Creates a leaf in place of the one whose record at `address` is damaged beyond restoring.
    /// Its `blocks` blocks map to that record, which is not a frame, so that reading them fails.
    /// Never written to the medium.
    pub(crate) fn lost(address: MetadataAddress, blocks: u16) -> Self {
        assert!((1..=LEAF_BLOCKS).contains(&blocks), "a leaf has blocks on the disk");
        let place = FramePlace {
            segment: address.segment,
            offset: address.offset,
            record_bytes: LOST_FRAME_BYTES,
            blocks: LOST_FRAME_BLOCKS,
        };
        let starts = (0..blocks).step_by(LOST_FRAME_BLOCKS.into());
        let mapping = Mapping::Frame { place, index: 0 };
        let mut runs: Vec<Run> = starts.map(|start| Run::new(start, mapping)).collect();
        if blocks < LEAF_BLOCKS {
            // The disk ends after these blocks.
            runs.push(Run::new(blocks, Mapping::Hole));
        }
        Self { runs, tables: Tables::default() }
    }

    /// Decodes a leaf from its bytes on the medium.
    ///
    /// # Errors
    /// `Corrupt` unless the bytes are a partition into possible runs whose frames are within
    /// `limits`, with tables that these frames may have.
    pub(crate) fn decode(bytes: &[u8], limits: &MapLimits) -> Result<Self> {
        let run = |(start, content)| {
            let mapping = match content {
                RunContent::Hole => Mapping::Hole,
                RunContent::Fill(byte) => Mapping::Fill(byte),
                RunContent::Frame { segment, offset, record_bytes, blocks, index, .. } => {
                    let segment = SegmentId(segment);
                    let place = FramePlace { segment, offset, record_bytes, blocks };
                    Mapping::Frame { place, index }
                }
            };
            Run::new(start, mapping)
        };
        let (runs, stored) = decode_leaf(bytes, limits)?;
        let mut tables = Tables::with_capacity(stored.len());
        for LeafTable { segment, offset, record_bytes, blocks, start, live, bytes } in stored {
            let table = ChunkTable::from_stored(bytes, blocks.into())?;
            let place = FramePlace { segment: SegmentId(segment), offset, record_bytes, blocks };
            let table = FrameTable::new(start, live, &place, table);
            let what = "a leaf of the map has a table of another frame";
            tables.insert(table.or_error(ErrorKind::Corrupt, what)?);
        }
        let leaf = Self { runs: runs.map(run).collect(), tables };
        leaf.check_invariants();
        Ok(leaf)
    }

    /// Appends the leaf's bytes on the medium, 16 a run and 48 a table, to `target`.
    pub(crate) fn encode(&self, target: &mut Vec<u8>) {
        self.check_invariants();
        let mut is_next = self.tables_to_store();
        let tables_bytes = is_next.iter().filter(|&&is_next| is_next).count() * LEAF_TABLE_BYTES;
        let end = target.len() + self.runs.len() * LEAF_RUN_BYTES + tables_bytes;
        let mut tables = Vec::with_capacity(tables_bytes);
        let has_table = is_next.clone();
        for run in &self.runs {
            let number = self.table_of(run).filter(|&number| has_table[number]);
            encode_run(run.start, run.content(number.is_some()), target);
            if let Some(number) = number
                && std::mem::take(&mut is_next[number])
            {
                tables.extend_from_slice(self.tables.at(number).table.stored());
            }
        }
        target.extend_from_slice(&tables);
        assert_eq!(target.len(), end, "a leaf has 16 bytes for each run and 48 for each table");
    }

    /// Returns the number of the table of a run's frame.
    fn table_of(&self, run: &Run) -> Option<usize> {
        let may_have = run.blocks >= TABLE_BLOCKS_MIN && !self.tables.is_empty();
        if may_have { self.tables.number_of(run.address()) } else { None }
    }

    /// Returns for each table whether it is written to the medium: whether all runs that name the
    /// address of its frame belong to that frame. In a damaged map they may not.
    fn tables_to_store(&self) -> Vec<bool> {
        let mut found = vec![(0, 0u8, true); self.tables.len()];
        for (at, run) in self.runs.iter().enumerate() {
            let named = if run.blocks > 0 { self.tables.number_of(run.address()) } else { None };
            let Some(number) = named else { continue };
            let table = self.tables.at(number);
            let (record_bytes, live, agrees) = &mut found[number];
            *agrees &= run.frame_start() == Some(table.start)
                && fits(&table.table, run.blocks, run.record_bytes)
                && (*live == 0 || *record_bytes == run.record_bytes);
            *record_bytes = run.record_bytes;
            *live = live.saturating_add(run.count_to(self.run_end(at)));
        }
        let is_stored = |(_, live, agrees)| agrees && live >= TABLE_BLOCKS_MIN;
        found.into_iter().map(is_stored).collect()
    }

    /// Returns the table of a frame that begins at block `start`, if it is known.
    pub(super) fn table(&self, start: u16, frame: &FramePlace) -> Option<ChunkTable> {
        self.tables.get(start, frame)
    }

    /// Stores the table of a frame that begins at block `start`, if enough blocks map to that
    /// frame; without a table, forgets the table of an earlier frame.
    pub(super) fn set_table(&mut self, start: u16, place: FramePlace, table: Option<ChunkTable>) {
        let live = table.map_or(0, |_| self.live_blocks(start, place));
        let table = table.and_then(|table| FrameTable::new(start, live, &place, table));
        match table {
            Some(table) => self.tables.insert(table),
            None => self.tables.remove(place.address()),
        }
    }

    /// Returns the number of blocks that map to a frame that begins at block `start`.
    fn live_blocks(&self, start: u16, place: FramePlace) -> u8 {
        let first = self.run_at(start);
        let end = LEAF_BLOCKS.min(start + u16::from(place.blocks));
        let near = self.runs.iter().enumerate().skip(first).take_while(|(_, run)| run.start < end);
        let is_its_own = |run: &Run| run.is_of(place.address()) && run.frame_start() == Some(start);
        let own = near.filter(|(_, run)| is_its_own(run));
        own.fold(0, |live: u8, (at, run)| live.saturating_add(run.count_to(self.run_end(at))))
    }

    /// Returns the mapping of all blocks, if they are one hole or fill.
    pub(super) fn as_uniform(&self) -> Option<Mapping> {
        match &self.runs[..] {
            [run] => {
                assert_eq!(run.blocks, 0, "a frame is shorter than a leaf");
                Some(run.mapping())
            }
            _ => None,
        }
    }

    /// Returns the number of blocks that contain data.
    pub(super) fn mapped_blocks(&self) -> u64 {
        let mapped = self.runs().filter(|(_, _, mapping)| !mapping.is_zero());
        let blocks = mapped.map(|(_, count, _)| u64::from(count)).sum();
        assert!(blocks <= u64::from(LEAF_BLOCKS), "a leaf maps its own blocks");
        blocks
    }

    /// Returns the first piece of `frame` among the blocks `start..end`.
    pub(super) fn next_piece(
        &self,
        start: u16,
        end: u16,
        frame: FrameAddress,
    ) -> Option<LivePiece> {
        assert!(start < end && end <= LEAF_BLOCKS, "blocks {start}..{end} are not in a leaf");
        let first = self.run_at(start);
        let covered = self.runs.iter().enumerate().skip(first);
        let mut covered = covered.take_while(|(_, run)| run.start < end);
        let (at, run) = covered.find(|(_, run)| run.is_of(frame))?;
        let piece = run.cut_to(run.start.max(start));
        let count = piece.count_to(self.run_end(at).min(end));
        Some(LivePiece { start: piece.start, index: piece.index, count })
    }

    /// Returns the mapping of `block` and the number of blocks in the same run, counted from
    /// `block`.
    pub(super) fn lookup(&self, block: u16) -> (Mapping, u16) {
        let at = self.run_at(block);
        let rest = self.run_end(at).checked_sub(block).expect("a run is found before its end");
        assert!(rest > 0, "a block lies in a run");
        (self.runs[at].cut_to(block).mapping(), rest)
    }

    /// Maps `count` blocks starting at `start` to `mapping`, whose frame index belongs to `start`,
    /// and reports every frame piece that was mapped there before. Returns the number of these
    /// blocks that were zeroes.
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
        if new.blocks > 0 {
            new.count_to(end);
        }
        if self.runs[first].start == start && self.run_end(first) == end && new.blocks > 0 {
            report(&self.runs[first], end, released);
            self.release_table(self.runs[first], end);
            let zeroes = if self.runs[first].is_zero() { count } else { 0 };
            self.runs[first] = new;
            debug_assert!(self.is_valid(), "a leaf is invalid after a run was replaced");
            return zeroes;
        }
        let last = first + self.runs[first..].partition_point(|run| run.start < end) - 1;
        let mut zeroes = 0;
        for at in first..=last {
            let run = &self.runs[at];
            let piece = run.cut_to(run.start.max(start));
            let piece_end = self.run_end(at).min(end);
            report(&piece, piece_end, released);
            self.release_table(piece, piece_end);
            zeroes += if piece.is_zero() { piece_end - piece.start } else { 0 };
        }
        self.splice(first, last, new, end);
        assert!(zeroes <= count, "only replaced blocks were zeroes");
        debug_assert!(self.is_valid(), "a leaf is invalid after blocks were replaced");
        zeroes
    }

    /// Records that a piece, which ends at block `end`, no longer maps to its frame.
    #[inline]
    fn release_table(&mut self, piece: Run, end: u16) {
        if piece.blocks >= TABLE_BLOCKS_MIN
            && !self.tables.is_empty()
            && let Some(start) = piece.frame_start()
        {
            self.tables.release(start, piece.address(), piece.count_to(end));
        }
    }

    /// Puts `new` (ending at `end`) over the runs `first..=last`, retaining their parts outside of
    /// it and joining equal holes and fills.
    fn splice(&mut self, first: usize, last: usize, new: Run, end: u16) {
        assert!(first <= last && last < self.runs.len(), "runs of the leaf are replaced");
        assert!(self.runs[first].start <= new.start, "the first replaced run holds the new start");
        assert!(end <= self.run_end(last), "the last replaced run holds the new end");
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
            // With a retained neighbour on the left, `new` and a rest on the right, all three are
            // used.
            pieces[used] = rest;
            used += 1;
        }
        self.runs.splice(from..to, pieces[..used].iter().copied());
        assert!(self.runs.len() <= usize::from(LEAF_BLOCKS), "every run has a block or more");
    }

    /// Reports every frame piece of the leaf.
    pub(super) fn release_all(&self, released: &mut impl FnMut(Released)) {
        for (at, run) in self.runs.iter().enumerate() {
            report(run, self.run_end(at), released);
        }
    }

    /// Returns every run: first block, number of blocks, mapping.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (u16, u16, Mapping)> {
        Self::runs_of(Some(self))
    }

    /// Like [`Leaf::runs`], for a leaf that may not exist.
    pub(super) fn runs_of(leaf: Option<&Self>) -> impl Iterator<Item = (u16, u16, Mapping)> {
        let runs = leaf.map_or(&[][..], |leaf| &leaf.runs);
        let ends = runs.iter().skip(1).map(|next| next.start).chain([LEAF_BLOCKS]);
        runs.iter().zip(ends).map(|(run, end)| (run.start, end - run.start, run.mapping()))
    }

    /// Returns the bytes of memory that the leaf's runs and tables occupy.
    pub(super) fn memory_bytes(&self) -> usize {
        self.runs.capacity() * size_of::<Run>() + self.tables.memory_bytes()
    }

    /// Returns the number of tables.
    pub(super) fn table_count(&self) -> usize {
        self.tables.len()
    }

    #[inline]
    fn run_at(&self, block: u16) -> usize {
        // If every block is a separate run, as after random writes, no search is necessary: a
        // search costs ten unpredictable branches.
        assert!(block < LEAF_BLOCKS, "a block is asked for that is not in the leaf");
        if self.runs.len() == usize::from(LEAF_BLOCKS) {
            return usize::from(block);
        }
        let after = self.runs.partition_point(|run| run.start <= block);
        after.checked_sub(1).expect("the first run starts at 0")
    }

    fn run_end(&self, at: usize) -> u16 {
        self.runs.get(at + 1).map_or(LEAF_BLOCKS, |next| next.start)
    }

    /// Checks the invariants that need no walk, and in debug builds all.
    ///
    /// # Panics
    /// If one is violated.
    pub(super) fn check_invariants(&self) {
        assert!(
            (1..=usize::from(LEAF_BLOCKS)).contains(&self.runs.len()),
            "a leaf has 1 to 1024 runs"
        );
        assert_eq!(self.runs.first().map(|run| run.start), Some(0), "the first run starts at 0");
        debug_assert!(self.is_valid(), "the runs of a leaf partition it");
    }

    fn is_valid(&self) -> bool {
        let is_partition = self.runs.first().is_some_and(|run| run.start == 0)
            && self.runs.is_sorted_by(|run, next| run.start < next.start && !run.joins(next))
            && self.tables.is_valid();
        is_partition
            && self.runs.iter().enumerate().all(|(at, run)| {
                let end = self.run_end(at);
                let frame_end = run.start + u16::from(run.blocks.saturating_sub(run.index));
                run.start < end && (run.blocks == 0 || end <= frame_end)
            })
    }
}

impl Run {
    /// Returns the number of blocks of this run of a frame, which ends at block `end` of the leaf.
    fn count_to(&self, end: u16) -> u8 {
        let count = end.checked_sub(self.start).expect("a run ends after it starts");
        let count = u8::try_from(count).expect("a frame has at most 64 blocks");
        assert!(count > 0, "a run has a block or more");
        assert!(
            u16::from(self.index) + u16::from(count) <= u16::from(self.blocks),
            "a run ends within its frame"
        );
        count
    }
}

fn report(run: &Run, end: u16, released: &mut impl FnMut(Released)) {
    if run.blocks > 0 {
        let count = run.count_to(end);
        released(Released { place: run.place(), index: run.index, count });
    }
}

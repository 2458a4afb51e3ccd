//! The current places of frames that snapshots name and garbage collection has moved.
//!
//! ```text
//! map of a snapshot: segment 5, offset 8192 --(its use of segment 5)--> table of that use
//!     8192 -> segment 9, offset 4096: the frame
//! ```
//!
//! When a copy is copied again, the entries that lead to it are updated: each entry names the
//! current place of its frame, and never a past use of a segment.
//!
//! The same tables lead to records of the maps and lists of snapshots. These records are moved out
//! of segments that are removed when the capacity shrinks.
//!
//! A table belongs to one use of a segment. All tables are in memory; a checkpoint writes those
//! that changed. An entry is needed as long as a snapshot exists between the two batches that it
//! names. Each such snapshot retains the segment that the entry points to, so the segment is not
//! reused, and the target of an entry always exists.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::take;
use std::ops::RangeInclusive;

use super::super::super::place::{FrameAddress, FramePlace, SegmentUse};
use crate::base::{Error, ErrorKind, Result, SegmentId, SeqNo};
use crate::format::{
    FORWARD_PIECES_MAX, FORWARDS_IN_A_PIECE, Forward, ForwardPiece, MetadataAddress,
    RECORD_HEADER_BYTES, Snapshot,
};

/// Approximate bytes that an entry occupies in memory and in a checkpoint.
const ENTRY_BYTES: usize = 128;

/// An entry of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Copied {
    /// The use of the segment that contains the copy.
    pub(crate) to: SegmentUse,
    /// Its offset in the segment.
    pub(crate) offset: u32,
    pub(crate) record_bytes: u32,
    /// Whether blocks of the frame were live when it was copied.
    pub(crate) was_live: bool,
    /// Whether the copy is a record of a map or a list of snapshots, which bookmarks also need.
    pub(crate) is_meta: bool,
    /// No snapshot before this batch names the frame.
    pub(crate) since: SeqNo,
    /// No snapshot after this batch names the frame.
    pub(crate) until: SeqNo,
}

impl Copied {
    /// Returns the address of the copy's record.
    pub(crate) fn address(&self) -> FrameAddress {
        FrameAddress { segment: self.to.segment, offset: self.offset }
    }

    /// Returns whether a snapshot may name the frame.
    pub(crate) fn is_named_by(&self, watermark: SeqNo) -> bool {
        self.since <= watermark && watermark <= self.until
    }

    /// Returns whether a snapshot is read through the entry. A bookmark, which only compares
    /// places, is read through every entry: younger snapshots may still need frames that it named.
    fn is_read_by(&self, entry: &Snapshot) -> bool {
        entry.is_bookmark || self.is_named_by(entry.watermark)
    }

    /// Returns whether a snapshot, or a bookmark, may need the copy.
    pub(crate) fn is_needed_by(&self, entry: &Snapshot) -> bool {
        self.is_named_by(entry.watermark) && (self.is_meta || !entry.is_bookmark)
    }
}

/// The table of one use of a segment.
#[derive(Clone, Debug, Default)]
struct Table {
    /// The newest batch when everything that snapshots name in the segment had been copied; 0
    /// before that.
    emptied: SeqNo,
    entries: BTreeMap<u32, Copied>,
    /// Its places in the newest checkpoint.
    pieces: Vec<MetadataAddress>,
    is_dirty: bool,
}

impl Table {
    fn encode(&self, of: SegmentUse) -> Vec<Vec<u8>> {
        let entries: Vec<Forward> = self.entries.iter().map(forward_of).collect();
        let piece = |entries: &[Forward]| {
            let SegmentUse { segment, generation } = of;
            let entries = entries.to_vec();
            ForwardPiece { segment, generation, emptied: self.emptied, entries }.encode()
        };
        if entries.is_empty() {
            return vec![piece(&[])];
        }
        let pieces: Vec<_> = entries.chunks(FORWARDS_IN_A_PIECE).map(piece).collect();
        assert_eq!(pieces.len(), self.piece_count(), "a root has room for the pieces counted");
        pieces
    }

    fn piece_count(&self) -> usize {
        self.entries.len().div_ceil(FORWARDS_IN_A_PIECE).max(1)
    }
}

fn forward_of((&offset, copied): (&u32, &Copied)) -> Forward {
    Forward {
        offset,
        new_segment: copied.to.segment,
        new_offset: copied.offset,
        new_bytes: copied.record_bytes,
        was_live: copied.was_live,
        is_meta: copied.is_meta,
        since: copied.since,
        until: copied.until,
    }
}

/// A piece of a table that a checkpoint must write.
#[derive(Clone, Debug)]
pub(crate) struct PendingPiece {
    /// The use of the segment to which the table belongs.
    pub(crate) of: SegmentUse,
    /// Its content.
    pub(crate) raw: Vec<u8>,
}

/// The state of the running checkpoint.
#[derive(Clone, Debug)]
struct Running {
    written: BTreeMap<SegmentUse, Vec<MetadataAddress>>,
    /// The pieces of tables that existed when the checkpoint began and that it does not write.
    clean: Vec<MetadataAddress>,
    superseded: Vec<MetadataAddress>,
}

/// An entry, in the order of the copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Lead {
    /// The place of the copy.
    to: (SegmentUse, u32),
    /// The former place of the frame.
    from: (SegmentUse, u32),
}

/// The forwarding tables of one drive.
#[derive(Clone, Debug, Default)]
pub(crate) struct Forwards {
    tables: BTreeMap<SegmentUse, Table>,
    /// The entries, ordered by target.
    leads: BTreeSet<Lead>,
    entry_count: usize,
    /// Pieces that cannot be read. Their tables and targets are unknown.
    lost: Vec<MetadataAddress>,
    /// The last batch of the newest snapshot that may need one of them.
    lost_until: SeqNo,
    /// Pieces that the newest checkpoint names and the next one will not.
    superseded: Vec<MetadataAddress>,
    running: Option<Running>,
}

impl Forwards {
    /// Restores the tables of a checkpoint from their pieces. `generation_of` returns the current
    /// generation of a segment, which for the segment of a needed copy is the copy's.
    ///
    /// # Errors
    /// `Corrupt` if two pieces contradict each other.
    pub(crate) fn restore(
        pieces: Vec<(MetadataAddress, ForwardPiece)>,
        generation_of: impl Fn(SegmentId) -> u64,
    ) -> Result<Self> {
        let mut forwards = Self::default();
        for (place, piece) in pieces {
            let of = SegmentUse { segment: piece.segment, generation: piece.generation };
            let table = forwards.tables.entry(of).or_default();
            let agrees = table.pieces.is_empty() || table.emptied == piece.emptied;
            table.emptied = piece.emptied;
            table.pieces.push(place);
            for forward in piece.entries {
                let segment = forward.new_segment;
                let copied = Copied {
                    to: SegmentUse { segment, generation: generation_of(segment) },
                    offset: forward.new_offset,
                    record_bytes: forward.new_bytes,
                    was_live: forward.was_live,
                    is_meta: forward.is_meta,
                    since: forward.since,
                    until: forward.until,
                };
                if table.entries.insert(forward.offset, copied).is_some() {
                    return Err(contradiction());
                }
                let (to, from) = ((copied.to, copied.offset), (of, forward.offset));
                forwards.leads.insert(Lead { to, from });
                forwards.entry_count += 1;
            }
            if !agrees {
                return Err(contradiction());
            }
        }
        Ok(forwards)
    }

    /// Records pieces that cannot be read, which snapshots up to batch `until` may need.
    pub(crate) fn set_lost(&mut self, pieces: Vec<MetadataAddress>, until: SeqNo) {
        (self.lost, self.lost_until) = (pieces, until);
    }

    /// Returns the number of pieces that cannot be read, and the last batch of the newest snapshot
    /// that may need one of them.
    pub(crate) fn lost(&self) -> (u16, SeqNo) {
        let count = u16::try_from(self.lost.len()).expect("a root names them");
        (count, self.lost_until)
    }

    /// Returns whether a snapshot, or the map of a bookmark, may need an unreadable piece.
    pub(crate) fn may_lack(&self, entry: &Snapshot) -> bool {
        !self.lost.is_empty() && entry.watermark <= self.lost_until
    }

    /// Returns the tables through which a snapshot is read, wherever it is read. These tables are
    /// not written, and no counts include them.
    pub(crate) fn of(&self, entry: &Snapshot) -> Self {
        self.those(|copied| copied.is_read_by(entry))
    }

    /// Returns the tables of moved metadata, for reading.
    pub(crate) fn of_metadata(&self) -> Self {
        self.those(|copied| copied.is_meta)
    }

    fn those(&self, is_wanted: impl Fn(&Copied) -> bool) -> Self {
        let mut forwards = Self::default();
        for (&of, table) in &self.tables {
            let needed = table.entries.iter().filter(|(_, copied)| is_wanted(copied));
            let entries: BTreeMap<u32, Copied> =
                needed.map(|(&at, &copied)| (at, copied)).collect();
            if !entries.is_empty() {
                forwards.entry_count += entries.len();
                forwards.tables.insert(of, Table { entries, ..Table::default() });
            }
        }
        forwards
    }

    /// Returns the current place of a frame that a map names in `generation` of its segment, and
    /// the generation there. Returns the arguments if the frame was not moved.
    pub(crate) fn resolve(&self, place: FramePlace, generation: u64) -> (FramePlace, u64) {
        // Copying a copy again updates the entries that lead to it: no entry leads to another.
        Self::follow(self.leading_from(place, generation), place, generation)
    }

    /// Like [`Forwards::resolve`], in the tables through which a snapshot is read; see
    /// [`Forwards::of`].
    pub(crate) fn resolve_for(
        &self,
        entry: &Snapshot,
        place: FramePlace,
        generation: u64,
    ) -> (FramePlace, u64) {
        let copied = self.leading_from(place, generation);
        Self::follow(copied.filter(|copied| copied.is_read_by(entry)), place, generation)
    }

    fn leading_from(&self, place: FramePlace, generation: u64) -> Option<&Copied> {
        let of = SegmentUse { segment: place.segment, generation };
        self.tables.get(&of)?.entries.get(&place.offset)
    }

    fn follow(copied: Option<&Copied>, place: FramePlace, generation: u64) -> (FramePlace, u64) {
        match copied {
            None => (place, generation),
            Some(&Copied { to, offset, record_bytes, .. }) => {
                let segment = to.segment;
                (FramePlace { segment, offset, record_bytes, ..place }, to.generation)
            }
        }
    }

    /// Returns the current place of a record of metadata that a root or a map of a snapshot names
    /// at a place in `generation` of its segment, and the generation there, if the record was
    /// moved.
    pub(crate) fn metadata_at(
        &self,
        place: MetadataAddress,
        generation: u64,
    ) -> Option<(MetadataAddress, u64)> {
        let of = SegmentUse { segment: place.segment, generation };
        let copied = self.tables.get(&of)?.entries.get(&place.offset)?;
        let Copied { to, offset, record_bytes: bytes, .. } = *copied;
        let is_it = copied.is_meta;
        is_it.then_some((MetadataAddress { segment: to.segment, offset, bytes }, to.generation))
    }

    /// Returns whether there are tables.
    pub(crate) fn is_used(&self) -> bool {
        !self.tables.is_empty()
    }

    /// Returns whether a place has an entry, which then serves every snapshot that names the place.
    pub(crate) fn has(&self, of: SegmentUse, offset: u32) -> bool {
        self.tables.get(&of).is_some_and(|table| table.entries.contains_key(&offset))
    }

    /// Returns whether everything that a snapshot names in a segment was moved out of the use that
    /// it names.
    pub(crate) fn is_emptied(&self, segment: SegmentId, watermark: SeqNo) -> bool {
        let emptied = self.tables_of(segment).map(|(_, table)| table.emptied).max();
        emptied.is_some_and(|emptied| emptied > SeqNo(0) && emptied >= watermark)
    }

    fn tables_of(&self, segment: SegmentId) -> impl Iterator<Item = (&SegmentUse, &Table)> {
        let of = |generation| SegmentUse { segment, generation };
        self.tables.range(of(0)..=of(u64::MAX))
    }

    /// Returns the uses of segments with copies that a snapshot needs. A use may occur more than
    /// once.
    pub(crate) fn needed_by(&self, entry: &Snapshot) -> impl Iterator<Item = SegmentUse> {
        self.copies().filter(|copied| copied.is_needed_by(entry)).map(|copied| copied.to)
    }

    /// Returns the places whose entries lead to offsets in a use of a segment, and the entries.
    pub(crate) fn leading_to(
        &self,
        to: SegmentUse,
        offsets: RangeInclusive<u32>,
    ) -> impl Iterator<Item = ((SegmentUse, u32), Copied)> {
        let of = |segment, generation| SegmentUse { segment: SegmentId(segment), generation };
        let first = Lead { to: (to, *offsets.start()), from: (of(0, 0), 0) };
        let last = Lead { to: (to, *offsets.end()), from: (of(u32::MAX, u64::MAX), u32::MAX) };
        self.leads.range(first..=last).map(|&Lead { from, .. }| {
            let table = self.tables.get(&from.0);
            let entry = table.and_then(|table| table.entries.get(&from.1));
            (from, *entry.expect("every lead belongs to an entry"))
        })
    }

    /// Returns all copies.
    pub(crate) fn copies(&self) -> impl Iterator<Item = &Copied> {
        self.tables.values().flat_map(|table| table.entries.values())
    }

    /// Adds or replaces the entry of a place.
    pub(crate) fn put(&mut self, from: (SegmentUse, u32), copied: Copied) {
        assert!(copied.since <= copied.until, "an entry serves a snapshot");
        let (of, offset) = from;
        let table = self.tables.entry(of).or_default();
        table.is_dirty = true;
        match table.entries.insert(offset, copied) {
            Some(before) => {
                self.leads.remove(&Lead { to: (before.to, before.offset), from });
            }
            None => self.entry_count += 1,
        }
        self.leads.insert(Lead { to: (copied.to, copied.offset), from });
        assert_eq!(self.leads.len(), self.entry_count, "each entry is found by its target");
    }

    /// Records that everything that snapshots name in a use of a segment was copied, when the
    /// newest batch was `sealed`.
    pub(crate) fn set_emptied(&mut self, of: SegmentUse, sealed: SeqNo) {
        assert!(sealed > SeqNo(0), "a segment that is emptied has a batch");
        let table = self.tables.entry(of).or_default();
        (table.emptied, table.is_dirty) = (table.emptied.max(sealed), true);
    }

    /// Drops the entries and tables that no snapshot needs. The snapshots are given in any order;
    /// `names` returns whether the snapshot with a given last batch names anything in a segment.
    ///
    /// # Panics
    /// If a checkpoint is running.
    pub(crate) fn prune<'a>(
        &mut self,
        snapshots: impl Iterator<Item = &'a Snapshot>,
        names: impl Fn(SegmentId, SeqNo) -> bool,
    ) {
        assert!(self.running.is_none(), "no table is dropped while a checkpoint writes it");
        let (mut all, mut watermarks) = (Vec::new(), Vec::new());
        for entry in snapshots {
            all.push(entry.watermark);
            if !entry.is_bookmark {
                watermarks.push(entry.watermark);
            }
        }
        all.sort_unstable();
        watermarks.sort_unstable();
        let is_needed = |copied: &Copied| {
            let watermarks = if copied.is_meta { &all } else { &watermarks };
            let after = watermarks.partition_point(|&watermark| watermark < copied.since);
            watermarks.get(after).is_some_and(|&watermark| watermark <= copied.until)
        };
        let Self { tables, leads, .. } = self;
        for (&of, table) in tables {
            let before = table.entries.len();
            table.entries.retain(|&offset, copied| {
                let stays = is_needed(copied);
                if !stays {
                    let (to, from) = ((copied.to, copied.offset), (of, offset));
                    leads.remove(&Lead { to, from });
                }
                stays
            });
            table.is_dirty |= table.entries.len() < before;
        }
        let Self { tables, superseded, .. } = self;
        tables.retain(|of, table| {
            let is_emptied = table.emptied > SeqNo(0);
            let named =
                |&watermark: &SeqNo| watermark <= table.emptied && names(of.segment, watermark);
            let stays = !table.entries.is_empty() || is_emptied && watermarks.iter().any(named);
            if !stays {
                superseded.append(&mut table.pieces);
            }
            stays
        });
        self.entry_count = self.tables.values().map(|table| table.entries.len()).sum();
        assert_eq!(self.leads.len(), self.entry_count, "no lead is left of an entry that is gone");
        if all.first().is_none_or(|&oldest| oldest > self.lost_until) {
            self.superseded.append(&mut self.lost);
            self.lost_until = SeqNo(0);
        }
    }

    /// Returns the approximate bytes that the tables occupy in memory.
    pub(crate) fn bytes(&self) -> usize {
        (self.entry_count + self.tables.len()) * ENTRY_BYTES
    }

    /// Returns the maximum number of their bytes that the next checkpoint writes.
    pub(crate) fn dirty_bytes(&self) -> usize {
        let dirty = self.tables.values().filter(|table| table.is_dirty);
        let bytes = |table: &Table| {
            let headers = table.piece_count() * 2 * RECORD_HEADER_BYTES;
            table.entries.len() * size_of::<[u64; 4]>() + headers
        };
        dirty.map(bytes).sum()
    }

    /// Returns whether a root has space to name the pieces of all tables and `more` others.
    pub(crate) fn has_room(&self, more: usize) -> bool {
        let count: usize = self.tables.values().map(Table::piece_count).sum();
        count + more <= FORWARD_PIECES_MAX / 2
    }

    /// Returns every piece that is live while no checkpoint is being written.
    pub(crate) fn metadata(&self) -> impl Iterator<Item = MetadataAddress> {
        let pieces = self.tables.values().flat_map(|table| table.pieces.iter().copied());
        pieces.chain(self.lost.iter().copied()).chain(self.superseded_addresses())
    }

    /// Returns the pieces that the newest checkpoint names and the next one will not.
    pub(crate) fn superseded_addresses(&self) -> impl Iterator<Item = MetadataAddress> {
        let running = self.running.iter().flat_map(|running| running.superseded.iter().copied());
        self.superseded.iter().copied().chain(running)
    }

    /// Makes the next checkpoint rewrite the tables that have a piece for which `is_there` returns
    /// true.
    pub(crate) fn touch(&mut self, is_there: impl Fn(&MetadataAddress) -> bool) {
        for table in self.tables.values_mut() {
            table.is_dirty |= table.pieces.iter().any(&is_there);
        }
    }

    /// Begins a checkpoint: returns the pieces of the current tables that it must write.
    pub(crate) fn begin_checkpoint(&mut self) -> Vec<PendingPiece> {
        assert!(self.running.is_none(), "a checkpoint is running already");
        let mut pending = Vec::new();
        let mut running = Running {
            written: BTreeMap::new(),
            clean: Vec::new(),
            superseded: take(&mut self.superseded),
        };
        for (&of, table) in &mut self.tables {
            if take(&mut table.is_dirty) {
                let pieces = table.encode(of).into_iter();
                pending.extend(pieces.map(|raw| PendingPiece { of, raw }));
                running.written.insert(of, Vec::new());
            } else {
                running.clean.extend(&table.pieces);
            }
        }
        self.running = Some(running);
        pending
    }

    /// Records the place at which the running checkpoint wrote a piece.
    pub(crate) fn written(&mut self, of: SegmentUse, place: MetadataAddress) {
        let running = self.running.as_mut().expect("no checkpoint is running");
        let pieces = running.written.get_mut(&of).expect("only dirty tables are written");
        pieces.push(place);
    }

    /// Returns the pieces of all tables for the root of the running checkpoint, including those
    /// that it has written.
    pub(crate) fn pieces(&self) -> Vec<MetadataAddress> {
        let running = self.running.iter();
        let all = running.flat_map(|running| {
            running.clean.iter().chain(running.written.values().flatten()).copied()
        });
        self.lost.iter().copied().chain(all).collect()
    }

    /// Ends the running checkpoint. Returns the pieces that only the previous one named.
    pub(crate) fn end_checkpoint(&mut self) -> Vec<MetadataAddress> {
        let Some(Running { written, superseded, .. }) = self.running.take() else {
            return Vec::new();
        };
        let mut dead = superseded;
        for (of, pieces) in written {
            assert!(!pieces.is_empty(), "a checkpoint has all of a table that it writes");
            let table = self.tables.get_mut(&of).expect("no table is dropped meanwhile");
            dead.extend(std::mem::replace(&mut table.pieces, pieces));
        }
        dead
    }

    /// Abandons the running checkpoint. Returns the pieces that it wrote.
    pub(crate) fn abandon_checkpoint(&mut self) -> Vec<MetadataAddress> {
        let Some(Running { written, superseded, .. }) = self.running.take() else {
            return Vec::new();
        };
        self.superseded.extend(superseded);
        let mut dead = Vec::new();
        for (of, pieces) in written {
            dead.extend(pieces);
            self.tables.get_mut(&of).expect("no table is dropped meanwhile").is_dirty = true;
        }
        dead
    }
}

fn contradiction() -> Error {
    Error::new(ErrorKind::Corrupt, "forwarding tables of a checkpoint contradict each other")
}

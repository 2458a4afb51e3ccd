//! From reserved space to a mapped block, each in one call: writes and trims of the host, frames
//! that garbage collection moves, parts of a checkpoint.
//!
//! ```text
//! space -> (is the map unchanged since the caller read it?) -> record -> map -> live bytes
//! ```
//!
//! A call that returns [`Attempt::Wait`] or [`Attempt::Changed`] has appended nothing. Recovery
//! applies records through the private functions `map_frame`, `map_range` and `map_moved`.

use super::super::log::framing::{Span, spans};
use super::super::log::packing::{
    MetaRecord, MovedFrame, frame_bytes_max, meta_bytes_max, worst_case_bytes,
};
use super::super::map::{BlockMove, LivePiece, Lookup, Mapping};
use super::super::place::{FrameAddress, FramePlace};
use super::{Core, Purpose, Wakes};
use crate::base::units::{BLOCK_BYTES, len_u32};
use crate::base::{Lba, Result, SegmentId, SeqNo};
use crate::codec::{ChunkTable, Compressor, Encoding};
use crate::format::{
    META_RAW_BYTES_MAX, MetaKind, RECORD_HEADER_BYTES, Record, SOURCE_BYTES, Source, Stream,
    TABLE_BLOCKS_MIN,
};

/// The outcome of an attempt to append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Attempt {
    /// The change is appended and mapped.
    Done,
    /// There is no space yet: try again after [`Wakes::PROGRESS`].
    Wait,
    /// A leaf of the map is not in memory, or the map has changed since the caller read it: look
    /// the mapping up again.
    Changed,
}

impl Attempt {
    /// Returns `None` for an attempt that must wait for space.
    pub(crate) fn unless_waiting(self) -> Option<Self> {
        (self != Attempt::Wait).then_some(self)
    }
}

/// A frame that was moved.
pub(super) struct Moved {
    /// Its new place.
    pub(super) to: FramePlace,
    /// Its former place in a retained segment and the batch in which the oldest of its live blocks
    /// was first written, if the frame was moved whole and some of its blocks were live.
    pub(super) from: Option<(FramePlace, SeqNo)>,
}

/// The mapping of a block and the generation of its segment. While both stay the same, so does the
/// content. A pin would serve as well, but a write holds this version while it waits for space, and
/// must not prevent the freeing of the segment that would provide the space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    mapping: Mapping,
    /// Generation of the frame's segment; 0 without a frame.
    generation: u64,
}

impl Version {
    /// Returns the version of a block with this mapping, to a frame in a segment of `generation`.
    pub(crate) fn of(mapping: Mapping, generation: u64) -> Self {
        Self { mapping, generation }
    }

    /// Returns whether the block is a hole.
    pub(crate) fn is_hole(&self) -> bool {
        self.mapping == Mapping::Hole
    }
}

/// A partly written block, merged with its previous content.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Edge {
    /// The block.
    pub(crate) lba: Lba,
    /// Its mapping when it was read.
    pub(crate) before: Version,
}

/// A host write of whole blocks, at most [`super::super::log::packing::ATOMIC_WRITE_BYTES`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockWrite<'a> {
    /// The first block.
    pub(crate) lba: Lba,
    /// Number of blocks.
    pub(crate) blocks: usize,
    /// Their bytes, in order; each part is whole blocks.
    pub(crate) parts: &'a [&'a [u8]],
    /// Blocks that must not have changed since they were merged.
    pub(crate) edges: &'a [Edge],
    /// Bytes that the host wrote.
    pub(crate) host_bytes: usize,
    /// Whether blocks of zeroes become holes.
    pub(crate) makes_holes: bool,
}

impl BlockWrite<'_> {
    /// Asserts the conditions that callers guarantee, on a disk of `size_bytes`.
    #[inline]
    fn check(&self, size_bytes: u64) {
        let end = self.lba.0 + self.blocks as u64;
        assert!(end <= size_bytes / BLOCK_BYTES as u64, "a write lies on the disk");
        assert!(self.host_bytes <= self.blocks * BLOCK_BYTES, "a write's blocks hold its bytes");
        assert!(
            self.edges.iter().all(|edge| (self.lba.0..end).contains(&edge.lba.0)),
            "the edges of a write are among its blocks"
        );
    }
}

/// Why the records of a segment are moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MoveReason {
    /// The segment is emptied; frames that cannot be read are left in place.
    Empty,
    /// The segment is emptied; frames that cannot be read become lost.
    GiveUp,
    /// Damage: frames are moved even if a snapshot needs them in place.
    Repair,
}

/// Live blocks of one frame, encoded for another place in the log.
pub(crate) struct Move<'a> {
    /// First block of the frame.
    pub(crate) lba: Lba,
    /// Its current place.
    pub(crate) from: FramePlace,
    /// Its live blocks when they were encoded.
    pub(crate) pieces: &'a [LivePiece],
    /// The frames that replace it.
    pub(crate) frames: &'a [MovedFrame<'a>],
    /// Bytes that must fit in the open batch.
    pub(crate) room_bytes: usize,
    pub(crate) reason: MoveReason,
}

/// Kind and number of a metadata record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MetaPosition {
    pub(crate) kind: MetaKind,
    /// Its number among the records of its kind.
    pub(crate) number: u64,
}

impl Core {
    /// Appends a host write and maps it. Calls `encode` for each frame, in order, with the frame's
    /// bytes and the space for its payload; see [`super`].
    ///
    /// # Errors
    /// `NoSpace` or `Poisoned`; nothing has been appended.
    #[inline]
    pub(crate) fn append_write(
        &mut self,
        write: &BlockWrite<'_>,
        mut encode: impl FnMut(&[u8], &mut [u8]) -> (Encoding, usize),
    ) -> Result<Attempt> {
        let room_bytes = worst_case_bytes(write.blocks, self.seal_bytes());
        if !self.make_room(room_bytes, Purpose::Data)? {
            return Ok(Attempt::Wait);
        }
        write.check(self.size_bytes());
        let unchanged = |edge: &Edge| self.version(edge.lba) == Some(edge.before);
        if !self.is_resident(write.lba, write.blocks as u64) || !write.edges.iter().all(unchanged) {
            return Ok(Attempt::Changed);
        }
        let (mut lba, mut is_divided) = (write.lba, false);
        for part in write.parts {
            for span in spans(lba, part, self.superblock.frame_blocks) {
                let record_bytes = match span {
                    Span::Data { bytes, .. } => {
                        frame_bytes_max(bytes.len() / BLOCK_BYTES, self.seal_bytes())
                    }
                    Span::Fill { .. } => RECORD_HEADER_BYTES,
                };
                is_divided |= self.continue_in_next_segment(record_bytes);
                match span {
                    Span::Data { lba, bytes } => {
                        let blocks = u8::try_from(bytes.len() / BLOCK_BYTES);
                        let blocks = blocks.expect("a frame has at most 64 blocks");
                        let has_tables = self.superblock.has_chunks;
                        let mut table = None;
                        let encode = |target: &mut [u8]| {
                            let (encoding, len) = encode(bytes, target);
                            let (payload, _) = target.split_at(len);
                            if has_tables {
                                table = table_of(blocks, encoding as u8, payload);
                            }
                            (encoding, len)
                        };
                        let batch = self.log.open_batch(Stream::Host);
                        let place = batch.push_frame(lba, blocks, encode);
                        self.counters.frame_bytes.add(u64::from(place.record_bytes));
                        self.map_frame(lba, place, table);
                    }
                    Span::Fill { lba, count, byte: 0 } if write.makes_holes => {
                        self.push_range(&Record::Trim { lba, lba_count: count });
                    }
                    Span::Fill { lba, count, byte } => {
                        self.counters.fill_blocks.add(count);
                        self.push_range(&Record::Fill { lba, lba_count: count, byte });
                    }
                }
            }
            lba.0 += (part.len() / BLOCK_BYTES) as u64;
        }
        assert_eq!(lba.0, write.lba.0 + write.blocks as u64, "the parts of a write are its blocks");
        self.counters.host_bytes.add(write.host_bytes as u64);
        if is_divided {
            self.seal(Stream::Host);
        }
        Ok(Attempt::Done)
    }

    /// Appends a trim or a fill of any length and maps it.
    ///
    /// # Errors
    /// `NoSpace` or `Poisoned`; nothing has been appended.
    pub(crate) fn append_range(&mut self, record: &Record) -> Result<Attempt> {
        if !self.make_room(RECORD_HEADER_BYTES, Purpose::Trim)? {
            return Ok(Attempt::Wait);
        }
        let (lba, count) = record.lba_range();
        assert!(
            lba.0 + count <= self.size_bytes() / BLOCK_BYTES as u64,
            "a range that is mapped lies on the disk"
        );
        if self.map.missing_edges(lba, count).is_some() {
            return Ok(Attempt::Changed);
        }
        self.push_range(record);
        if self.reclaim.is_refusing() {
            // The trim may have freed space.
            self.wake(Wakes::COLLECTOR);
        }
        Ok(Attempt::Done)
    }

    /// Appends the live blocks of a frame at another place and maps them to it.
    ///
    /// # Errors
    /// `NoSpace` or `Poisoned`; nothing has been appended.
    pub(crate) fn move_frame(&mut self, moved: &Move<'_>) -> Result<Attempt> {
        assert!(!moved.frames.is_empty(), "the live blocks of a frame become a frame");
        let bytes: usize = moved.frames.iter().map(MovedFrame::record_bytes).sum();
        assert!(bytes <= moved.room_bytes, "frames that move fit the room that they ask for");
        if !self.make_room(moved.room_bytes, Purpose::Moved)? {
            return Ok(Attempt::Wait);
        }
        let is_missing = self.map.missing(moved.lba, u64::from(moved.from.blocks)).is_some();
        if is_missing
            || self.stays_for_snapshot(moved.from.segment, moved.reason)
            || !moved.frames.iter().all(|frame| self.has_right_key(frame))
            || !self.map.live_pieces(moved.lba, moved.from).eq(moved.pieces.iter().copied())
        {
            return Ok(Attempt::Changed);
        }
        for frame in moved.frames {
            self.push_moved(frame);
        }
        Ok(Attempt::Done)
    }

    /// Returns whether a moved frame is sealed with the key of the segment that receives it: the
    /// stream may have begun another segment after the frame was encoded. The batch must have space
    /// for the frame.
    pub(super) fn has_right_key(&self, frame: &MovedFrame<'_>) -> bool {
        let next = self.log.sealing_generation(Stream::Moved);
        frame.payload.is_empty() || self.settings.cipher.is_same_key(frame.generation, next)
    }

    /// Returns whether frames of a segment stay at the places that a snapshot names, so that a
    /// comparison with the snapshot can compare places.
    pub(crate) fn stays_for_snapshot(&self, segment: SegmentId, reason: MoveReason) -> bool {
        let may_move = reason == MoveReason::Repair && !self.snapshots.is_rolling_back();
        self.space.is_retained(segment) && !may_move
    }

    /// Appends a metadata record. Returns `None` if there is no space yet.
    ///
    /// # Errors
    /// `NoSpace` or `Poisoned`; nothing has been appended.
    pub(crate) fn append_meta(
        &mut self,
        position: MetaPosition,
        raw: &[u8],
        compressor: &mut Compressor,
    ) -> Result<Option<MetaRecord>> {
        assert!(raw.len() <= META_RAW_BYTES_MAX, "recovery reads no longer metadata");
        if !self.make_room(meta_bytes_max(raw.len(), self.seal_bytes()), Purpose::Meta)? {
            return Ok(None);
        }
        Ok(Some(self.push_meta(position, raw, compressor)))
    }

    /// Puts a metadata record into the open batch of its stream, which must have space for it.
    pub(super) fn push_meta(
        &mut self,
        position: MetaPosition,
        raw: &[u8],
        compressor: &mut Compressor,
    ) -> MetaRecord {
        let MetaPosition { kind, number } = position;
        let batch = self.log.open_batch(Stream::Meta);
        let appended = batch.push_meta(kind, number, raw, compressor);
        assert!(
            appended.place.bytes as usize <= meta_bytes_max(raw.len(), self.seal_bytes()),
            "a metadata record fits the room that was made for it"
        );
        self.space.add_live(appended.place.segment, appended.place.bytes);
        self.counters.meta_bytes.add(u64::from(appended.place.bytes));
        appended
    }

    /// Returns the mapping of a block, if its leaf is in memory.
    pub(crate) fn version(&self, lba: Lba) -> Option<Version> {
        let Lookup::Run(mapping, _) = self.map.peek(lba) else { return None };
        let generation = match mapping {
            Mapping::Frame { place, .. } => self.space.generation(place.segment),
            Mapping::Hole | Mapping::Fill(_) => 0,
        };
        Some(Version { mapping, generation })
    }

    #[inline]
    fn is_resident(&self, lba: Lba, blocks: u64) -> bool {
        self.map.missing(lba, blocks).is_none()
    }

    /// Puts a fill or a trim into the host's open batch, which must have space for it, and maps it.
    fn push_range(&mut self, record: &Record) {
        let record = &self.without_holes(record);
        self.log.open_batch(Stream::Host).push_range(record);
        self.counters.frame_bytes.add(RECORD_HEADER_BYTES as u64);
        self.map_range(record);
    }

    /// Puts a moved frame into the open batch of its stream, which must have space for it, and maps
    /// it.
    fn push_moved(&mut self, moved: &MovedFrame<'_>) {
        let copy = self.push_copy(moved);
        self.snapshots.note_moved(&mut self.space, copy);
    }

    /// Like [`Core::push_moved`], but the caller records the frames that snapshots name.
    pub(super) fn push_copy(&mut self, moved: &MovedFrame<'_>) -> Moved {
        let place = self.log.open_batch(Stream::Moved).push_moved(moved);
        assert_eq!(
            place.record_bytes as usize,
            moved.record_bytes(),
            "a moved frame takes the bytes that were counted for it"
        );
        self.counters.moved_bytes.add(moved.record_bytes() as u64);
        let blocks: u32 = moved.sources.iter().map(|source| u32::from(source.blocks)).sum();
        assert_eq!(blocks, u32::from(moved.blocks), "each block of a moved frame has a source");
        self.reclaim.carries_dead |= moved.sources.iter().any(|source| source.birth == SeqNo(0));
        let table = if self.superblock.has_chunks {
            table_of(moved.blocks, moved.encoding, moved.payload)
        } else {
            None
        };
        self.map_copy(moved.lba, place, moved.sources.iter().copied(), table)
    }
}

/// Returns the table that the map stores for a frame with this payload, which matches its checksum.
pub(crate) fn table_of(blocks: u8, encoding: u8, payload: &[u8]) -> Option<ChunkTable> {
    if blocks < TABLE_BLOCKS_MIN {
        return None;
    }
    match Encoding::from_u8(encoding)? {
        // A frame that no correct program writes fails when it is read.
        Encoding::Chunks => ChunkTable::of(payload, blocks.into()).ok(),
        Encoding::Store => ChunkTable::of_stored(payload),
        Encoding::Lz4 | Encoding::Zstd | Encoding::Lost => None,
    }
}

/// Functions through which a record of the log takes effect, both in live traffic and in recovery.
impl Core {
    /// Maps the blocks of a frame that the host wrote; `table` lists its chunks.
    #[inline]
    pub(crate) fn map_frame(&mut self, lba: Lba, place: FramePlace, table: Option<ChunkTable>) {
        self.check_place(&place);
        let Self { map, space, .. } = self;
        space.add_live(place.segment, place.charged_bytes());
        // When the frame is moved, its record also names its source.
        space.add_burden(place.segment, len_u32(SOURCE_BYTES));
        map.map_frame(lba, place, |dead| space.release_blocks(dead.place, dead.index, dead.count));
        self.note_table(lba, place, table);
    }

    /// Records the table of a frame whose first block is `lba`, for its mapped blocks.
    #[inline]
    pub(crate) fn note_table(&mut self, lba: Lba, place: FramePlace, table: Option<ChunkTable>) {
        // Programs that cannot read tables refuse only such drives.
        if self.superblock.has_chunks {
            self.map.set_table(lba, place, table);
        }
    }

    /// Asserts that a frame is within its segment: it was packed there, or read from a batch in it.
    #[inline]
    fn check_place(&self, place: &FramePlace) {
        let end = u64::from(place.offset) + u64::from(place.record_bytes);
        assert!(
            end <= u64::from(self.superblock.segment_bytes),
            "a frame of segment {} ends within the segment",
            place.segment
        );
        assert!(place.blocks > 0, "a frame has a block");
    }

    /// Maps the blocks of a fill or a trim.
    pub(crate) fn map_range(&mut self, record: &Record) {
        let is_range = matches!(record, Record::Fill { .. } | Record::Trim { .. });
        assert!(is_range, "a fill or a trim is mapped as a range");
        let (lba, count) = record.lba_range();
        assert!(count > 0, "a range has a block");
        let mapping = match *record {
            Record::Fill { byte, .. } => Mapping::Fill(byte),
            _ => Mapping::Hole,
        };
        let Self { map, space, .. } = self;
        map.map_uniform(lba, count, mapping, |dead| {
            space.release_blocks(dead.place, dead.index, dead.count)
        });
    }

    /// Maps the blocks of a moved frame that still map to their sources; `table` lists its
    /// chunks. Any other block was written or trimmed after it was copied, so its copy
    /// is dead.
    pub(crate) fn map_moved(
        &mut self,
        lba: Lba,
        place: FramePlace,
        sources: impl Iterator<Item = Source>,
        table: Option<ChunkTable>,
    ) {
        let moved = self.map_copy(lba, place, sources, table);
        self.snapshots.note_moved(&mut self.space, moved);
    }

    fn map_copy(
        &mut self,
        lba: Lba,
        place: FramePlace,
        sources: impl Iterator<Item = Source>,
        table: Option<ChunkTable>,
    ) -> Moved {
        self.check_place(&place);
        let Self { map, space, .. } = self;
        let (mut index, mut live_bytes) = (0, 0);
        let mut from: Option<(FramePlace, SeqNo)> = None;
        for source in sources {
            space.moved_in(place.segment, source.birth);
            let is_named = space.is_retained(source.segment);
            let at = Lba(lba.0 + u64::from(index));
            let source_at = FrameAddress::from(source);
            let blocks = BlockMove {
                lba: at,
                count: source.blocks.into(),
                from: source_at,
                to: place,
                to_index: index,
            };
            map.move_blocks(blocks, |dead, index| {
                let is_whole = (dead.place.blocks, dead.index) == (place.blocks, index);
                if is_named && is_whole {
                    let since = from.map_or(source.birth, |(_, at)| at.min(source.birth));
                    from = Some((dead.place, since));
                }
                let share = place.share(index, dead.count);
                live_bytes += share;
                space.add_live(place.segment, share);
                space.release_blocks(dead.place, dead.index, dead.count);
            });
            index += source.blocks;
        }
        assert_eq!(index, place.blocks, "the sources of a moved frame match its blocks");
        let carried = place.charged_bytes().saturating_sub(live_bytes);
        if live_bytes > 0 {
            // Dead blocks in the frame stay as long as its live ones.
            space.add_burden(place.segment, carried);
        }
        self.note_table(lba, place, table);
        Moved { to: place, from }
    }
}

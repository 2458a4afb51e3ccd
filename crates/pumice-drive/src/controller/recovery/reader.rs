//! Reading the newest checkpoint: its root, and the records that the root names.
//!
//! ```text
//! root -> lists -> segment table, directory pages, dropped ranges; leaves when they are needed
//! ```
//!
//! Bytes from the medium are never trusted: places must be within the drive, lists must have the
//! lengths that the root states, and the root and a list must agree about a segment, or the
//! checkpoint is `Corrupt`.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;

use futures_util::stream::{StreamExt, TryStreamExt, iter};

use super::super::core::{Forwards, LeafPlace};
use super::super::log::buffers::Buffers;
use super::super::log::metadata::{LIST_BYTES, Metadata, PAGE_ENTRY_BYTES, Wanted, read_meta};
use super::super::log::packing::meta_bytes_max;
use super::super::map::{self, L2p, Leaf, Mapping, RestoredPage};
use super::super::space::Space;
use super::READS_AT_ONCE;
use crate::base::units::{BLOCK_BYTES, len_u32};
use crate::base::{Error, ErrorKind, Result, SegmentId};
use crate::codec::Decompressor;
use crate::crypt::Cipher;
use crate::format::{
    BATCH_ALIGNMENT, CLONES_MAX, CheckpointAddress, DIRECTORY_PAGE_LEAVES, DirectoryEntry,
    DroppedRange, FORWARD_PIECES_MAX, LEAF_BLOCKS, META_RAW_BYTES_MAX, MapLimits, MetaKind,
    MetadataAddress, OpenedSegment, RecordAddress, Root, SEGMENT_HEADER_BYTES,
    SNAPSHOTS_IN_A_PIECE, SNAPSHOTS_MAX, Stream, StreamTail, Superblock, TableEntry, decode_page,
};
use crate::media::AnyMedium;

/// Maximum number of entries in the list of snapshots.
const LISTED_MAX: usize = SNAPSHOTS_MAX + CLONES_MAX;

/// A segment counts fewer live bytes than this many times its size: a record of 29 bytes or more
/// may have 64 blocks, each of which counts as one byte.
const LIVE_FACTOR_MAX: u32 = 3;

/// The content of a checkpoint.
pub(super) struct Checkpoint {
    pub(super) map: L2p,
    /// The segment table.
    pub(super) space: Space,
    /// Its lists and its root.
    pub(super) lists: Vec<MetadataAddress>,
}

/// Reads metadata of a drive that is not open yet.
pub(crate) struct Reader<'a> {
    medium: &'a dyn AnyMedium,
    superblock: &'a Superblock,
    buffers: Buffers,
    decompressor: RefCell<Decompressor>,
    /// Records that are damaged on the medium and were restored.
    restored: RefCell<Vec<Wanted>>,
    /// For a retained root, the current places of metadata that was moved since.
    moved: Option<Forwards>,
    /// The current number of segments, or the number when the root was written.
    segment_count: Cell<u32>,
}

impl<'a> Reader<'a> {
    /// Creates a reader for the drive of a superblock.
    pub(crate) fn new(medium: &'a dyn AnyMedium, superblock: &'a Superblock) -> Self {
        Self {
            medium,
            superblock,
            buffers: Buffers::default(),
            decompressor: RefCell::new(Decompressor::new()),
            restored: RefCell::default(),
            moved: None,
            segment_count: Cell::new(superblock.segment_count),
        }
    }

    /// Creates a reader for the records that the root of a snapshot names, which may have been
    /// moved.
    pub(crate) fn of_kept(
        medium: &'a dyn AnyMedium,
        superblock: &'a Superblock,
        forwards: &Forwards,
    ) -> Self {
        Self { moved: Some(forwards.of_metadata()), ..Self::new(medium, superblock) }
    }

    /// Permits leaves to name segments that the drive had earlier.
    pub(crate) fn widen(&self, segment_count: u32) {
        self.segment_count.set(segment_count.max(self.superblock.segment_count));
    }

    /// Creates a reader like [`Reader::of_kept`], in addition to this one.
    pub(super) fn for_kept(&self, forwards: &Forwards) -> Self {
        Self::of_kept(self.medium, self.superblock, forwards)
    }

    /// Adds the records that another reader has found damaged and restored.
    pub(super) fn take_up(&self, other: &Self) {
        self.restored.borrow_mut().extend(other.restored.take());
    }

    /// Returns the number of segments that the drive has, or had when the most recently read root
    /// was written: the capacity may have shrunk since.
    pub(super) fn segment_count(&self) -> u32 {
        self.segment_count.get()
    }

    pub(super) fn cipher(&self) -> &'a Cipher {
        self.medium.cipher()
    }

    pub(super) fn limits(&self) -> MapLimits {
        MapLimits {
            seal_bytes: len_u32(self.medium.cipher().seal_bytes()),
            segment_count: self.segment_count(),
            segment_bytes: self.superblock.segment_bytes,
        }
    }

    pub(super) async fn read(&self, wanted: Wanted) -> Result<Metadata> {
        let wanted = self.moved_to(wanted).unwrap_or(wanted);
        let end = wanted.place.offset.checked_add(wanted.record_bytes);
        let is_within = wanted.place.segment.0 < self.superblock.segment_count
            && end.is_some_and(|end| end <= self.superblock.segment_bytes);
        if !is_within {
            let what = "a checkpoint names metadata beyond the end of the drive";
            return Err(Error::new(ErrorKind::Corrupt, what).in_segment(wanted.place.segment));
        }
        let segment_bytes = self.superblock.segment_bytes;
        let (buffers, decompressor) = (&self.buffers, &self.decompressor);
        let read = read_meta(self.medium, buffers, decompressor, segment_bytes, wanted).await?;
        if read.is_restored {
            self.restored.borrow_mut().push(wanted);
        }
        Ok(read)
    }

    /// Returns the current place of a record, if it was moved.
    fn moved_to(&self, wanted: Wanted) -> Option<Wanted> {
        let moved = self.moved.as_ref()?;
        let (place, generation) = moved.metadata_at(wanted.address(), wanted.place.generation)?;
        Some(Wanted::at(place, generation, wanted.kind, wanted.number))
    }

    /// Returns the records read so far that are damaged on the medium and were restored.
    pub(super) fn restored(&self) -> Vec<Wanted> {
        self.restored.borrow().clone()
    }

    /// Returns an error for each record read so far that is damaged on the medium and was restored,
    /// and clears the list.
    pub(crate) fn take_restored(&self) -> Vec<Error> {
        let problem = |Wanted { place, .. }: Wanted| {
            let what = "a part of the checkpoint is damaged, and was restored from parity: a scrub \
                        rewrites it";
            let error = Error::new(ErrorKind::Corrupt, what);
            error.in_segment(place.segment).at_offset(place.offset.into())
        };
        self.restored.take().into_iter().map(problem).collect()
    }

    /// Returns the superblock of the drive.
    pub(super) fn superblock(&self) -> &Superblock {
        self.superblock
    }

    /// Reads the root of the newest checkpoint.
    ///
    /// # Errors
    /// `Medium` or `Corrupt`.
    pub(crate) async fn root(&self, checkpoint: &CheckpointAddress) -> Result<Root> {
        self.any_root(checkpoint).await.map_err(|error| {
            let what = "the newest checkpoint cannot be read: rebuild the drive";
            Error::new(error.kind(), what).caused_by(error)
        })
    }

    /// Reads the root of a checkpoint.
    ///
    /// # Errors
    /// `Medium` or `Corrupt`.
    pub(crate) async fn any_root(&self, checkpoint: &CheckpointAddress) -> Result<Root> {
        let CheckpointAddress { address, record_bytes, payload_checksum } = *checkpoint;
        let wanted = Wanted { place: address, record_bytes, kind: MetaKind::Root, number: 0 };
        let longest = meta_bytes_max(META_RAW_BYTES_MAX, self.medium.cipher().seal_bytes());
        if record_bytes as usize > longest {
            let what = "the superblock names a checkpoint of an invalid length";
            return Err(Error::new(ErrorKind::Corrupt, what));
        }
        let metadata = self.read(wanted).await?;
        let root = Root::decode(&metadata.raw)?;
        self.check_lists(&root)?;
        // The drive may have grown since: see `resize`. Since a snapshot was taken, it may have
        // shrunk. A copied record was encoded again.
        let is_right = (metadata.payload_checksum == payload_checksum
            || self.moved_to(wanted).is_some())
            && (root.segment_count <= self.superblock.segment_count || self.moved.is_some())
            && root.size_bytes <= self.superblock.size_bytes;
        if !is_right {
            let what = "the checkpoint is not the one that the superblock names";
            return Err(Error::new(ErrorKind::Corrupt, what));
        }
        self.widen(root.segment_count);
        Ok(root)
    }

    /// Checks a root's counts against each other and against the limits of the drive, so that they
    /// bound the reads made for them.
    fn check_lists(&self, root: &Root) -> Result<()> {
        let blocks = self.superblock.size_bytes / BLOCK_BYTES as u64;
        let leaves = blocks.div_ceil(LEAF_BLOCKS.into());
        let pieces = |count: u32, bytes: usize| (count as usize).div_ceil(LIST_BYTES / bytes);
        let bitmap_pieces = pieces(root.segment_count.div_ceil(8), 1);
        let is_possible = root.tables.len() == pieces(root.segment_count, TableEntry::BYTES)
            && root.page_lists.len() == pieces(root.page_count, PAGE_ENTRY_BYTES)
            && root.dropped_lists.len() == pieces(root.dropped_count, DroppedRange::BYTES)
            && root.snapshot_lists.len() <= LISTED_MAX.div_ceil(SNAPSHOTS_IN_A_PIECE)
            && (root.retained_lists.is_empty() || root.retained_lists.len() == bitmap_pieces)
            && root.forward_lists.len() <= FORWARD_PIECES_MAX
            && u64::from(root.page_count) <= leaves.div_ceil(DIRECTORY_PAGE_LEAVES as u64)
            && u64::from(root.dropped_count) <= leaves;
        let is_tail = |tail: &StreamTail| {
            let is_after_header = tail.used == 0 || tail.used as usize >= SEGMENT_HEADER_BYTES;
            is_after_header
                && tail.used <= self.superblock.segment_bytes
                && (tail.used as usize).is_multiple_of(BATCH_ALIGNMENT)
        };
        if is_possible && root.tails.iter().flatten().all(is_tail) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Corrupt, "a checkpoint's root has invalid counts"))
    }

    /// Reads a record. Returns its payload, decoded.
    ///
    /// # Errors
    /// `Medium` or `Corrupt`.
    pub(crate) async fn metadata(&self, wanted: Wanted) -> Result<Vec<u8>> {
        self.read(wanted).await.map(|metadata| metadata.raw)
    }

    /// Reads one piece of a list that a root names.
    ///
    /// # Errors
    /// `Medium` or `Corrupt`.
    pub(crate) async fn piece(
        &self,
        place: MetadataAddress,
        kind: MetaKind,
        number: u64,
        generation: u64,
    ) -> Result<()> {
        self.read(Wanted::at(place, generation, kind, number)).await.map(|_| ())
    }

    /// Reads the records that a root names.
    pub(super) async fn checkpoint(
        &self,
        newest: &CheckpointAddress,
        root: &Root,
        map_cache_bytes: usize,
    ) -> Result<Checkpoint> {
        let bad_segments = &self.superblock.bad_segments;
        let mut space = Space::with_bad(self.segment_count(), bad_segments)?;
        // Segments opened after the checkpoint began are not in the table, but contain its pieces.
        for &OpenedSegment { segment, generation, stream } in &root.opened_segments {
            space.occupy(segment, stream, generation)?;
        }
        let [_host, _moved, meta] = &root.tails;
        if let Some(tail) = meta {
            space.occupy(tail.segment, Stream::Meta, tail.generation)?;
        }
        self.restore_table(root, &mut space).await?;
        let generation = |place: &MetadataAddress| space.generation(place.segment);
        let pages = self.pages(root, &generation).await?;
        let dropped = self.list(&root.dropped_lists, MetaKind::Dropped, &generation).await?;
        if dropped.len() != root.dropped_count as usize * DroppedRange::BYTES {
            let what = "a checkpoint's list of dropped ranges has the wrong length";
            return Err(Error::new(ErrorKind::Corrupt, what));
        }
        let dropped = dropped.chunks(DroppedRange::BYTES).map(|bytes| {
            let DroppedRange { start, end, mapping } = DroppedRange::decode(bytes)?;
            let mapping = match mapping {
                DirectoryEntry::Fill(byte) => Mapping::Fill(byte),
                _ => Mapping::Hole,
            };
            Ok(map::DroppedRange { start, end, mapping })
        });
        let dropped = dropped.collect::<Result<Vec<_>>>()?;
        let blocks = self.superblock.size_bytes / BLOCK_BYTES as u64;
        let map = L2p::restore(blocks, map_cache_bytes, pages, &dropped, root.mapped_blocks)?;
        let mut lists: Vec<MetadataAddress> = root.lists().copied().collect();
        let RecordAddress { segment, offset, .. } = newest.address;
        lists.push(MetadataAddress { segment, offset, bytes: newest.record_bytes });
        for place in map.metadata_addresses().chain(lists.iter().copied()) {
            space.try_add_live(place.segment, place.bytes, self.superblock.segment_bytes)?;
        }
        Ok(Checkpoint { map, space, lists })
    }

    /// Reads the segment table. The generations of metadata segments, which are needed to read from
    /// them, are in the table itself. The root therefore contains the generations of the segments
    /// with the table's pieces.
    async fn restore_table(&self, root: &Root, space: &mut Space) -> Result<()> {
        let open: HashSet<SegmentId> =
            root.tails.iter().flatten().map(|tail| tail.segment).collect();
        let known = &*space;
        let generation = |place: &MetadataAddress| known.generation(place.segment);
        let table = self.list(&root.tables, MetaKind::Table, &generation).await?;
        if table.len() != root.segment_count as usize * TableEntry::BYTES {
            let what = "a checkpoint's segment table has the wrong length";
            return Err(Error::new(ErrorKind::Corrupt, what));
        }
        for (number, bytes) in (0..).zip(table.chunks_exact(TableEntry::BYTES)) {
            let entry = TableEntry::decode(bytes)?;
            let segment = SegmentId(number);
            // A frame counts as at least one byte for each block, however short its record.
            let most = self.superblock.segment_bytes.saturating_mul(LIVE_FACTOR_MAX);
            if entry.live_bytes > most {
                let what = "a checkpoint counts more live bytes in a segment than it can hold";
                return Err(Error::new(ErrorKind::Corrupt, what).in_segment(segment));
            }
            space.restore(segment, &entry, open.contains(&segment))?;
        }
        for (stream, tail) in Stream::ALL.into_iter().zip(&root.tails) {
            let is_open = |tail: &StreamTail| space.is_open(tail.segment, stream, tail.generation);
            if let Some(tail) = tail.as_ref().filter(|tail| !is_open(tail)) {
                let what =
                    "a checkpoint's segment table does not have the open segment of a stream";
                return Err(Error::new(ErrorKind::Corrupt, what).in_segment(tail.segment));
            }
        }
        Ok(())
    }

    /// Reads the pieces of a list, in order.
    pub(super) async fn list(
        &self,
        places: &[MetadataAddress],
        kind: MetaKind,
        generation: &dyn Fn(&MetadataAddress) -> u64,
    ) -> Result<Vec<u8>> {
        let wanted = (0..)
            .zip(places)
            .map(|(number, place)| Wanted::at(*place, generation(place), kind, number));
        let pieces = iter(wanted.map(|wanted| self.read(wanted))).buffered(READS_AT_ONCE);
        let append = |mut all: Vec<u8>, piece: Metadata| async move {
            all.extend(piece.raw);
            Ok(all)
        };
        pieces.try_fold(Vec::new(), append).await
    }

    /// Reads the directory pages.
    async fn pages(
        &self,
        root: &Root,
        generation: &dyn Fn(&MetadataAddress) -> u64,
    ) -> Result<Vec<RestoredPage>> {
        let wrong = || Error::new(ErrorKind::Corrupt, "a checkpoint's page list is invalid");
        let list = self.list(&root.page_lists, MetaKind::PageList, generation).await?;
        if list.len() != root.page_count as usize * PAGE_ENTRY_BYTES {
            return Err(wrong());
        }
        const { assert!(PAGE_ENTRY_BYTES == 2 * size_of::<u64>(), "an entry is two words") };
        let (words, _) = list.as_chunks::<8>();
        let (entries, rest) = words.as_chunks::<2>();
        assert!(rest.is_empty(), "a list of the right length has whole entries");
        let mut pages = Vec::with_capacity(entries.len());
        for &[number, address] in entries {
            let number = u32::try_from(u64::from_le_bytes(number)).map_err(|_| wrong())?;
            let address = MetadataAddress::unpack(u64::from_le_bytes(address)).ok_or_else(wrong)?;
            pages.push((number, address));
        }
        let limits = self.limits();
        let reads = pages.into_iter().map(|(page, address)| {
            let wanted = Wanted::at(address, generation(&address), MetaKind::Page, u64::from(page));
            async move {
                let metadata = self.read(wanted).await?;
                let entries = Box::new(decode_page(&metadata.raw, &limits)?);
                Ok(RestoredPage { page, address, entries })
            }
        });
        iter(reads).buffered(READS_AT_ONCE).try_collect().await
    }

    /// Reads a leaf.
    ///
    /// # Errors
    /// `Medium` or `Corrupt`.
    pub(crate) async fn leaf(&self, leaf: u64, from: LeafPlace) -> Result<Leaf> {
        let wanted = Wanted::at(from.place, from.generation, MetaKind::Leaf, leaf);
        let metadata = self.read(wanted).await?;
        Leaf::decode(&metadata.raw, &self.limits())
    }
}

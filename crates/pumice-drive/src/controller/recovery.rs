//! Recovery: the state of a drive, rebuilt when it is opened.
//!
//! ```text
//! superblock -> root of the newest checkpoint -> segment table, directory pages, dropped ranges
//!            -> the log behind the checkpoint's watermark, record by record -> end of the log
//! ```
//!
//! Every record goes through the same doors of `l2p` and `space` as live traffic. Leaves are read
//! when a record needs them. Without a checkpoint the walk begins with the log. Writes nothing.
//!
//! **Memory.** A leaf that the log changes stays until the next checkpoint, which only an open
//! drive can write. Damaged or forged bytes could have any number of leaves changed, so there is a
//! limit ([`Limits::for_map_cache`]), beyond which the opening is refused. An open drive stays
//! below it: see [`super::Drive::has_too_many_changed_leaves`].

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};

use futures_util::stream::{StreamExt, TryStreamExt, iter};

use super::MAP_CACHE_BYTES_DEFAULT;
use super::buffers::Buffers;
use super::checkpoint::{LIST_BYTES, PAGE_ENTRY_BYTES};
use super::l2p::{self, FramePlace, L2p, Leaf, Mapping, Reap, RestoredPage};
use super::leaves::{Wanted, read_meta};
use super::log::CLOSING_BYTES;
use super::moving::move_live;
use super::packing::meta_bytes_max;
use super::records::{Found, records};
use super::space::Space;
use super::walk::{Batch, Walk, WalkEnd};
use super::write::release;
use crate::base::units::{BLOCK_BYTES, format_size};
use crate::base::{Error, ErrorKind, Result, SegmentId, SeqNo};
use crate::codec::Decompressor;
use crate::format::{
    BATCH_ALIGNMENT, CheckpointPlace, DIRECTORY_PAGE_LEAVES, DirectoryEntry, DroppedRange,
    LEAF_BLOCKS, META_RAW_BYTES_MAX, MapLimits, MetaKind, MetaPlace, Record, RecordPlace, Root,
    SEGMENT_HEADER_BYTES, Source, Stream, StreamTail, Superblock, TableEntry, decode_page,
};
use crate::media::Medium;

/// Metadata records read at once.
const READS_AT_ONCE: usize = 32;

/// Problems kept for a report.
const PROBLEMS_KEPT_MAX: usize = 1000;

/// Bytes of leaves that recovery may keep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Of clean ones; others are read again.
    pub(crate) clean_bytes: usize,
    /// Of those that the log changed; more are refused.
    pub(crate) changed_bytes: usize,
}

impl Limits {
    /// The limits for a map cache: four times its bytes may be changed, or four times the default
    /// cache if that is more, so that whatever was written with the default opens with a smaller
    /// one. An open drive lets no more change behind its newest checkpoint than twice its cache;
    /// twice that because the same leaf may take twice the memory, as vectors grow.
    pub(crate) fn for_map_cache(bytes: usize) -> Self {
        let changed_bytes = bytes.max(MAP_CACHE_BYTES_DEFAULT).saturating_mul(4);
        Self { clean_bytes: bytes, changed_bytes }
    }

    /// Any number of changed leaves: for a rescue, which may have to take the whole log.
    pub(crate) fn for_rescue() -> Self {
        Self { clean_bytes: MAP_CACHE_BYTES_DEFAULT, changed_bytes: usize::MAX }
    }
}

/// What recovery found.
pub(crate) struct Recovered {
    /// The map.
    pub(crate) l2p: L2p,
    /// The segment table.
    pub(crate) space: Space,
    /// Where the log ends.
    pub(crate) walk_end: WalkEnd,
    /// The newest checkpoint's watermark, and the media bytes when it was begun.
    pub(crate) checkpoint: (SeqNo, u64),
    /// Where its lists and its root stand: segment and bytes.
    pub(crate) lists: Vec<(u32, u32)>,
    /// Batches that were rolled forward.
    pub(crate) batches: u64,
    /// What is wrong in them and did not stop recovery; the first thousand.
    pub(crate) problems: Vec<Error>,
}

/// Rebuilds a drive's state, with no more leaves in memory than `limits` allow.
///
/// # Errors
/// `Medium`; `Corrupt` when durable parts of the log or of the checkpoint are missing;
/// `InvalidInput` when the log changes more leaves than the limits allow.
pub(crate) async fn recover<M: Medium>(
    medium: &M,
    superblock: &Superblock,
    limits: Limits,
) -> Result<Recovered> {
    let (map_cache_bytes, changed_bytes_max) = (limits.clean_bytes, limits.changed_bytes);
    let reader = Reader::new(medium, superblock);
    let (root, mut replay, lists) = match &superblock.checkpoint {
        None => {
            let l2p = L2p::new(superblock.size_bytes / BLOCK_BYTES as u64, map_cache_bytes);
            let space = Space::new(superblock.segment_count)?;
            let open = [None; Stream::COUNT];
            (None, Replay { reader, l2p, space, open, changed_bytes_max }, Vec::new())
        }
        Some(place) => {
            let root = reader.root(place).await?;
            let (l2p, space, lists) = reader.checkpoint(place, &root, map_cache_bytes).await?;
            let open = root.tails.map(|tail| tail.map(|tail| tail.segment));
            (Some(root), Replay { reader, l2p, space, open, changed_bytes_max }, lists)
        }
    };
    let mut walk = Walk::new(medium, superblock, root.as_ref());
    let (mut batches, mut problems) = (0, Vec::new());
    while let Some(batch) = walk.next(&replay.space).await? {
        replay.apply(&batch).await?;
        batches += 1;
        if let Some(damage) = batch.damage
            && problems.len() < PROBLEMS_KEPT_MAX
        {
            tracing::warn!("while reading the log: {}", damage.chain());
            problems.push(damage);
        }
    }
    let walk_end = walk.end();
    check_tails(&walk_end, superblock)?;
    let checkpoint = root.map_or((SeqNo(0), 0), |root| (root.watermark, root.media_bytes));
    let Replay { l2p, space, .. } = replay;
    Ok(Recovered { l2p, space, walk_end, checkpoint, lists, batches, problems })
}

/// Where a stream goes on there must be room for the record that names its next segment.
fn check_tails(walk_end: &WalkEnd, superblock: &Superblock) -> Result<()> {
    for tail in walk_end.end.tails.iter().flatten() {
        if tail.used > superblock.segment_bytes - CLOSING_BYTES {
            let what = "a segment is full, and no record says where its stream goes on";
            return Err(Error::new(ErrorKind::Corrupt, what).in_segment(tail.segment));
        }
    }
    Ok(())
}

/// Reads metadata for a drive that is not open yet.
pub(crate) struct Reader<'a, M> {
    medium: &'a M,
    superblock: &'a Superblock,
    buffers: Buffers,
    decompressor: RefCell<Decompressor>,
}

impl<'a, M: Medium> Reader<'a, M> {
    /// A reader for the drive of a superblock.
    pub(crate) fn new(medium: &'a M, superblock: &'a Superblock) -> Self {
        let decompressor = RefCell::new(Decompressor::new());
        Self { medium, superblock, buffers: Buffers::default(), decompressor }
    }

    fn limits(&self) -> MapLimits {
        MapLimits {
            segment_count: self.superblock.segment_count,
            segment_bytes: self.superblock.segment_bytes,
        }
    }

    async fn read(&self, wanted: Wanted) -> Result<(Vec<u8>, u64)> {
        let end = wanted.place.offset.checked_add(wanted.record_bytes);
        let is_within = wanted.place.segment.0 < self.superblock.segment_count
            && end.is_some_and(|end| end <= self.superblock.segment_bytes);
        if !is_within {
            let what = "a checkpoint names metadata that lies beyond the drive";
            return Err(Error::new(ErrorKind::Corrupt, what).in_segment(wanted.place.segment));
        }
        read_meta(self.medium, &self.buffers, &self.decompressor, wanted).await
    }

    /// Reads the root of a checkpoint.
    ///
    /// # Errors
    /// `Medium`, `Corrupt`.
    pub(crate) async fn root(&self, place: &CheckpointPlace) -> Result<Root> {
        let wanted = Wanted {
            place: place.place,
            record_bytes: place.record_bytes,
            kind: MetaKind::Root,
            number: 0,
        };
        let longest = meta_bytes_max(META_RAW_BYTES_MAX);
        let unreadable = |error: Error| {
            let what = "the newest checkpoint cannot be read: see `pumice rebuild --help`";
            Error::new(error.kind(), what).caused_by(error)
        };
        if place.record_bytes as usize > longest {
            let what = "the superblock names a checkpoint of an impossible length";
            return Err(unreadable(Error::new(ErrorKind::Corrupt, what)));
        }
        let (raw, checksum) = self.read(wanted).await.map_err(unreadable)?;
        let root = Root::decode(&raw).map_err(unreadable)?;
        self.check_lists(&root).map_err(unreadable)?;
        // The drive may have grown since: see `resize`.
        let is_right = checksum == place.payload_checksum
            && root.segment_count <= self.superblock.segment_count
            && root.size_bytes <= self.superblock.size_bytes;
        if !is_right {
            let what = "the checkpoint is not the one that the superblock names";
            return Err(unreadable(Error::new(ErrorKind::Corrupt, what)));
        }
        Ok(root)
    }

    /// Holds a root's counts against each other and against what the drive can have, so that they
    /// bound what is read for them.
    fn check_lists(&self, root: &Root) -> Result<()> {
        let blocks = self.superblock.size_bytes / BLOCK_BYTES as u64;
        let leaves = blocks.div_ceil(LEAF_BLOCKS.into());
        let pieces = |count: u32, bytes| count.div_ceil((LIST_BYTES / bytes) as u32) as usize;
        let is_possible = root.tables.len() == pieces(root.segment_count, TableEntry::BYTES)
            && root.page_lists.len() == pieces(root.page_count, PAGE_ENTRY_BYTES)
            && root.dropped_lists.len() == pieces(root.dropped_count, DroppedRange::BYTES)
            && u64::from(root.page_count) <= leaves.div_ceil(DIRECTORY_PAGE_LEAVES as u64)
            && u64::from(root.dropped_count) <= leaves;
        let is_tail = |tail: &StreamTail| {
            let is_behind_header = tail.used == 0 || tail.used as usize >= SEGMENT_HEADER_BYTES;
            is_behind_header
                && tail.used <= self.superblock.segment_bytes
                && (tail.used as usize).is_multiple_of(BATCH_ALIGNMENT)
        };
        if is_possible && root.tails.iter().flatten().all(is_tail) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Corrupt, "a checkpoint's root names what cannot be"))
    }

    /// Reads one piece of a list that a root names.
    ///
    /// # Errors
    /// `Medium`, `Corrupt`.
    pub(crate) async fn piece(
        &self,
        place: MetaPlace,
        kind: MetaKind,
        number: u64,
        generation: u64,
    ) -> Result<()> {
        self.read(wanted(place, kind, number, &|_| generation)).await.map(|_| ())
    }

    /// Reads what a root names: map and segment table, and where its lists stand.
    async fn checkpoint(
        &self,
        place: &CheckpointPlace,
        root: &Root,
        map_cache_bytes: usize,
    ) -> Result<(L2p, Space, Vec<(u32, u32)>)> {
        let mut space = Space::new(self.superblock.segment_count)?;
        // What was opened behind the watermark is not in the table, but holds its pieces.
        for &(stream, segment, generation) in &root.opened {
            space.occupy(segment, stream, generation)?;
        }
        if let Some(tail) = &root.tails[Stream::Meta as usize] {
            space.occupy(tail.segment, Stream::Meta, tail.generation)?;
        }
        self.restore_table(root, &mut space).await?;
        let generation = |place: &MetaPlace| space.generation(place.segment);
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
            Ok(l2p::DroppedRange { start, end, mapping })
        });
        let dropped = dropped.collect::<Result<Vec<_>>>()?;
        let blocks = self.superblock.size_bytes / BLOCK_BYTES as u64;
        let l2p = L2p::restore(blocks, map_cache_bytes, pages, &dropped, root.mapped_blocks)?;
        let lists = root.page_lists.iter().chain(&root.tables).chain(&root.dropped_lists);
        let mut lists: Vec<_> = lists.map(|place| (place.segment.0, place.bytes)).collect();
        lists.push((place.place.segment.0, place.record_bytes));
        let meta = l2p.meta_places().map(|place| (place.segment.0, place.bytes));
        for (segment, bytes) in meta.collect::<Vec<_>>().into_iter().chain(lists.iter().copied()) {
            space.try_add_live(segment, bytes, self.superblock.segment_bytes)?;
        }
        Ok((l2p, space, lists))
    }

    /// Reads the segment table. The metadata segments' generations must be known to read it, and
    /// stand in it: those that hold pieces of it are read first.
    async fn restore_table(&self, root: &Root, space: &mut Space) -> Result<()> {
        let open: HashSet<SegmentId> =
            root.tails.iter().flatten().map(|tail| tail.segment).collect();
        let known = &*space;
        let generation = |place: &MetaPlace| known.generation(place.segment);
        let table = self.list(&root.tables, MetaKind::Table, &generation).await?;
        if table.len() != root.segment_count as usize * TableEntry::BYTES {
            let what = "a checkpoint's segment table has the wrong length";
            return Err(Error::new(ErrorKind::Corrupt, what));
        }
        for (number, bytes) in (0..).zip(table.chunks_exact(TableEntry::BYTES)) {
            let entry = TableEntry::decode(bytes)?;
            let segment = SegmentId(number);
            if entry.live_bytes > self.superblock.segment_bytes {
                let what = "a segment is said to hold more than it can";
                return Err(Error::new(ErrorKind::Corrupt, what).in_segment(segment));
            }
            space.restore(segment, &entry, open.contains(&segment))?;
        }
        for (stream, tail) in Stream::ALL.into_iter().zip(&root.tails) {
            let is_open = |tail: &StreamTail| space.is_open(tail.segment, stream, tail.generation);
            if let Some(tail) = tail.as_ref().filter(|tail| !is_open(tail)) {
                let what = "a checkpoint's segment table does not know where a stream goes on";
                return Err(Error::new(ErrorKind::Corrupt, what).in_segment(tail.segment));
            }
        }
        Ok(())
    }

    /// Reads the pieces of a list, in order.
    async fn list(
        &self,
        places: &[MetaPlace],
        kind: MetaKind,
        generation: &dyn Fn(&MetaPlace) -> u64,
    ) -> Result<Vec<u8>> {
        let wanted =
            (0..).zip(places).map(|(number, place)| wanted(*place, kind, number, generation));
        let pieces = iter(wanted.map(|wanted| self.read(wanted))).buffered(READS_AT_ONCE);
        let append = |mut all: Vec<u8>, (piece, _): (Vec<u8>, u64)| async move {
            all.extend(piece);
            Ok(all)
        };
        pieces.try_fold(Vec::new(), append).await
    }

    /// Reads the directory pages.
    async fn pages(
        &self,
        root: &Root,
        generation: &dyn Fn(&MetaPlace) -> u64,
    ) -> Result<Vec<RestoredPage>> {
        let wrong = || Error::new(ErrorKind::Corrupt, "a checkpoint's page list is impossible");
        let list = self.list(&root.page_lists, MetaKind::PageList, generation).await?;
        if list.len() != root.page_count as usize * PAGE_ENTRY_BYTES {
            return Err(wrong());
        }
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        let mut pages = Vec::with_capacity(list.len() / PAGE_ENTRY_BYTES);
        for entry in list.chunks_exact(PAGE_ENTRY_BYTES) {
            let number = u32::try_from(word(&entry[..8])).map_err(|_| wrong())?;
            pages.push((number, MetaPlace::unpack(word(&entry[8..])).ok_or_else(wrong)?));
        }
        let limits = self.limits();
        let reads = pages.into_iter().map(|(page, place)| {
            let wanted = wanted(place, MetaKind::Page, u64::from(page), generation);
            async move {
                let (raw, _) = self.read(wanted).await?;
                let entries = Box::new(decode_page(&raw, &limits)?);
                Ok(RestoredPage { page, place, entries })
            }
        });
        iter(reads).buffered(READS_AT_ONCE).try_collect().await
    }

    /// Reads a leaf.
    ///
    /// # Errors
    /// `Medium`, `Corrupt`.
    pub(crate) async fn leaf(&self, leaf: u64, place: MetaPlace, generation: u64) -> Result<Leaf> {
        let wanted = wanted(place, MetaKind::Leaf, leaf, &|_| generation);
        let (raw, _) = self.read(wanted).await?;
        Leaf::decode(&raw, &self.limits())
    }
}

fn wanted(
    place: MetaPlace,
    kind: MetaKind,
    number: u64,
    generation: &dyn Fn(&MetaPlace) -> u64,
) -> Wanted {
    let generation = generation(&place);
    let record_bytes = place.bytes;
    let place = RecordPlace { generation, segment: place.segment, offset: place.offset };
    Wanted { place, record_bytes, kind, number }
}

struct Replay<'a, M> {
    reader: Reader<'a, M>,
    l2p: L2p,
    space: Space,
    open: [Option<SegmentId>; Stream::COUNT],
    changed_bytes_max: usize,
}

impl<M: Medium> Replay<'_, M> {
    async fn apply(&mut self, batch: &Batch<'_>) -> Result<()> {
        if let Some(header) = &batch.enters {
            self.enter(header.stream, header.segment, header.generation).await?;
        }
        self.space.batch_sealed(batch.header.segment, batch.header.seq);
        self.load_ahead(batch).await?;
        for found in records(&batch.header, batch.body) {
            self.apply_record(&found?).await?;
            self.space.check()?;
            self.check_memory().await?;
        }
        Ok(())
    }

    /// Holds the leaves that the log changed, and that so must stay, against their limit.
    async fn check_memory(&mut self) -> Result<()> {
        if self.l2p.dirty_bytes() <= self.changed_bytes_max {
            return Ok(());
        }
        // What was trimmed since went from the memory of the drive that wrote this, too.
        self.reap().await?;
        if self.l2p.dirty_bytes() <= self.changed_bytes_max {
            return Ok(());
        }
        let limit = format_size(self.changed_bytes_max as u64);
        let mebibytes = self.changed_bytes_max >> 21;
        let what = format!(
            "the log behind the newest checkpoint changes more than {limit} of the map; serve the \
             drive once with the `--map-cache` that it was written with, or with {mebibytes}M or \
             more: when it closes, a checkpoint is written"
        );
        Err(Error::new(ErrorKind::InvalidInput, what))
    }

    /// Reads the leaves that a batch's records need side by side; one after the other, scattered
    /// writes would take as long to recover as to write.
    async fn load_ahead(&mut self, batch: &Batch<'_>) -> Result<()> {
        let mut places = BTreeMap::new();
        for found in records(&batch.header, batch.body) {
            let record = found?.record;
            let (lba, count) = record.lba_range();
            let leaf = match record {
                Record::Data { .. } => self.l2p.missing(lba, count),
                Record::Fill { .. } | Record::Trim { .. } => self.l2p.missing_edges(lba, count),
                Record::Open { .. } | Record::Meta { .. } => None,
            };
            if let Some(leaf) = leaf
                && let DirectoryEntry::Leaf(place) = self.l2p.entry(leaf)
            {
                places.insert(leaf, (place, self.space.generation(place.segment)));
            }
        }
        let reader = &self.reader;
        let reads = places.into_iter().map(|(leaf, (place, generation))| async move {
            let loaded = reader.leaf(leaf, place, generation).await?;
            Ok::<_, Error>((leaf, place, loaded))
        });
        let mut reads = iter(reads).buffer_unordered(READS_AT_ONCE);
        while let Some((leaf, place, loaded)) = reads.try_next().await? {
            self.l2p.install(leaf, place, loaded);
        }
        Ok(())
    }

    async fn apply_record(&mut self, found: &Found<'_>) -> Result<()> {
        let place = found.place;
        match found.record {
            Record::Data { lba, lba_count, source_count, .. } => {
                self.load(|l2p| l2p.missing(lba, u64::from(lba_count))).await?;
                let frame = FramePlace {
                    segment: place.segment.0,
                    offset: place.offset,
                    record_bytes: found.record.record_bytes(),
                    blocks: lba_count as u8,
                };
                if source_count > 0 {
                    self.apply_moved(found, frame);
                    return Ok(());
                }
                let space = &mut self.space;
                space.add_live(frame.segment, frame.record_bytes);
                self.l2p.map_frame(lba, frame, |released| release(space, released));
            }
            Record::Fill { lba, lba_count, byte } => {
                self.load(|l2p| l2p.missing_edges(lba, lba_count)).await?;
                let (space, mapping) = (&mut self.space, Mapping::Fill(byte));
                self.l2p.map_uniform(lba, lba_count, mapping, |released| release(space, released));
            }
            Record::Trim { lba, lba_count } => {
                self.load(|l2p| l2p.missing_edges(lba, lba_count)).await?;
                let (space, mapping) = (&mut self.space, Mapping::Hole);
                self.l2p.map_uniform(lba, lba_count, mapping, |released| release(space, released));
            }
            Record::Open { stream, segment, generation } => {
                if self.open[stream as usize] == Some(segment)
                    && self.space.generation(segment) == generation
                {
                    // It would be written from the front again.
                    let what = "the log goes on in the segment in which it is";
                    return Err(Error::new(ErrorKind::Corrupt, what).in_segment(segment));
                }
                self.enter(stream, segment, generation).await?;
            }
            // A checkpoint that was not completed, or the one that recovery began with.
            Record::Meta { .. } => {}
        }
        Ok(())
    }

    /// Moves the blocks that still map to where they were moved from.
    fn apply_moved(&mut self, found: &Found<'_>, frame: FramePlace) {
        let (lba, _) = found.record.lba_range();
        let (l2p, space) = (&mut self.l2p, &mut self.space);
        let mut index = 0;
        for Source { origin, blocks, segment, offset } in found.record.sources(found.bytes) {
            let at = crate::base::Lba(lba.0 + u64::from(index));
            space.moved_in(frame.segment, origin);
            let from = (segment.0, offset);
            l2p.move_blocks(at, blocks.into(), from, frame, index, |released, index| {
                move_live(space, &released, frame, index);
            });
            index += blocks;
        }
    }

    /// A stream goes on in a segment.
    async fn enter(&mut self, stream: Stream, segment: SegmentId, generation: u64) -> Result<()> {
        if self.open[stream as usize] == Some(segment)
            && self.space.generation(segment) == generation
        {
            return Ok(());
        }
        if self.space.generation(segment) != generation && !self.space.is_free(segment) {
            // It was freed since the checkpoint: what was trimmed in it is still to be taken down.
            self.reap().await?;
        }
        self.space.occupy(segment, stream, generation)?;
        if let Some(full) = self.open[stream as usize].replace(segment) {
            // How much of its end was of no use is not known any more.
            self.space.seal(full, 0);
        }
        Ok(())
    }

    async fn load(&mut self, missing: impl Fn(&L2p) -> Option<u64>) -> Result<()> {
        while let Some(leaf) = missing(&self.l2p) {
            self.load_leaf(leaf).await?;
        }
        Ok(())
    }

    async fn load_leaf(&mut self, leaf: u64) -> Result<()> {
        let DirectoryEntry::Leaf(place) = self.l2p.entry(leaf) else { return Ok(()) };
        let generation = self.space.generation(place.segment);
        let loaded = self.reader.leaf(leaf, place, generation).await?;
        self.l2p.install(leaf, place, loaded);
        Ok(())
    }

    async fn reap(&mut self) -> Result<()> {
        loop {
            let space = &mut self.space;
            match self.l2p.reap(u32::MAX, |released| release(space, released)) {
                Reap::Done => return Ok(()),
                Reap::More => {}
                Reap::Missing(leaf) => self.load_leaf(leaf).await?,
            }
        }
    }
}

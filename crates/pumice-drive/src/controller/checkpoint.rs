//! Checkpoints: the map and the segment table on the medium, so that opening a drive reads what was
//! written since the last one and not the whole log.
//!
//! ```text
//! begin:  seal every stream -> watermark; take the table, the tails, the dropped ranges;
//!         dirty leaves become pending (from here the host goes on, on copies)
//! write:  leaves -> directory pages -> lists -> root, as batches of the metadata stream
//! end:    flush -> superblock slot, sync -> the other slot, sync
//!         -> what the checkpoint before named is dead
//! ```
//!
//! The superblock moves only when everything it names is durable, and nothing that the one before
//! named is given back until both slots have moved: whichever slot survives names whole structures.
//! A checkpoint is exact: it says what the drive was after the batch `watermark`, with nothing of
//! what came later, so that rolling forward through the same doors gives the same accounting.

use std::cell::{Cell, RefCell};
use std::mem::take;

use super::Drive;
use super::admit::Purpose;
use super::l2p::{Content, DroppedSnapshot, Mapping};
use super::log::{ChainEnd, Totals};
use super::packing::meta_bytes_max;
use crate::base::wait::WaitQueue;
use crate::base::{Clock, Error, ErrorKind, Result, SegmentId, SeqNo};
use crate::codec::{Codec, Compressor};
use crate::format::{
    CheckpointPlace, DirectoryEntry, DroppedRange, MetaKind, MetaPlace, RecordPlace, Root, Stream,
    StreamTail, TableEntry, encode_page,
};
use crate::media::Medium;

/// Bytes of a piece of a list before encoding.
pub(crate) const LIST_BYTES: usize = 16 << 10;

/// Bytes of a list's entry that names a directory page: its number and its place.
pub(crate) const PAGE_ENTRY_BYTES: usize = 16;

/// Metadata records written before the host has a turn: 8 leaves of 16 KiB take about 0.1 ms.
const RECORDS_A_TURN: u32 = 8;

/// One part of the bytes written to the medium that checkpoints may take.
const COST_DIVISOR: u64 = 50;

/// Bytes of log below which a checkpoint is not worth its two syncs; read again in a tenth of a
/// second.
const DISTANCE_BYTES_MIN: u64 = 64 << 20;

/// Leaves that may have changed since the last checkpoint: recovery reads most of them one by one,
/// and a medium of 50,000 reads a second takes 0.7 s for so many. Reached only by writes scattered
/// over 128 GiB and more.
const DIRTY_LEAVES_MAX: usize = 32 << 10;

/// After a failure, how long to wait before the next attempt.
const RETRY_NS: u64 = 1_000_000_000;

/// The checkpoints of one drive.
pub(crate) struct Checkpoints {
    /// The batch up to which everything is in the newest checkpoint.
    watermark: Cell<SeqNo>,
    /// Media bytes of the drive's life when it was begun.
    begun_at_bytes: Cell<u64>,
    /// Media bytes of metadata sealed since: what the checkpoint itself costs.
    own_bytes: Cell<u64>,
    running: Cell<bool>,
    ended: WaitQueue,
    /// Where the newest checkpoint's lists and root stand: segment and bytes.
    lists: RefCell<Vec<(u32, u32)>>,
    /// Metadata segments opened since the running checkpoint was begun.
    opened: RefCell<Vec<(Stream, SegmentId, u64)>>,
    compressor: RefCell<Compressor>,
    completed: Cell<u64>,
}

/// The state of a drive when a checkpoint is begun.
struct Begun {
    root: Root,
    table: Vec<TableEntry>,
    dropped: Vec<DroppedRange>,
}

impl Checkpoints {
    /// What recovery found: the newest checkpoint's watermark, the media bytes then, its lists.
    pub(crate) fn new(watermark: SeqNo, begun_at_bytes: u64, lists: Vec<(u32, u32)>) -> Self {
        Self {
            watermark: Cell::new(watermark),
            begun_at_bytes: Cell::new(begun_at_bytes),
            own_bytes: Cell::new(0),
            running: Cell::new(false),
            ended: WaitQueue::default(),
            lists: RefCell::new(lists),
            opened: RefCell::default(),
            compressor: RefCell::new(Compressor::new(Codec::Lz4)),
            completed: Cell::new(0),
        }
    }

    /// The batch up to which everything is in the newest checkpoint.
    pub(crate) fn watermark(&self) -> SeqNo {
        self.watermark.get()
    }

    /// Makes the drive believe that the newest checkpoint has everything.
    #[cfg(test)]
    pub(crate) fn pretend_all_is_in(&self) {
        self.watermark.set(SeqNo(u64::MAX));
    }

    /// Checkpoints completed since the opening.
    pub(crate) fn completed(&self) -> u64 {
        self.completed.get()
    }

    /// Whether one is being written.
    pub(crate) fn is_running(&self) -> bool {
        self.running.get()
    }

    /// Notes that a batch was sealed while a checkpoint was being written, or not.
    pub(crate) fn batch_sealed(&self, stream: Stream, media_bytes: u64) {
        if self.running.get() && stream == Stream::Meta {
            self.own_bytes.set(self.own_bytes.get().saturating_add(media_bytes));
        }
    }

    /// Notes that a stream goes on in a segment. Only metadata matters: what a checkpoint names is
    /// read before the log behind its watermark, which would say so.
    pub(crate) fn segment_opened(&self, stream: Stream, segment: SegmentId, generation: u64) {
        if self.running.get() && stream == Stream::Meta {
            self.opened.borrow_mut().push((stream, segment, generation));
        }
    }
}

/// Whoever holds this changes checkpoint and superblock.
pub(crate) struct Turn<'a> {
    checkpoints: &'a Checkpoints,
    /// Who writes checkpoints: one may have become due that could not be begun.
    wanted: &'a WaitQueue,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.checkpoints.running.set(false);
        self.checkpoints.opened.borrow_mut().clear();
        self.checkpoints.ended.wake_all();
        self.wanted.wake_all();
    }
}

/// A checkpoint that is being written. Dropped before its end it is given up: the leaves and pages
/// that it wrote are for the next one to name, its lists are dead.
struct Attempt<'a, M: Medium, C: Clock> {
    drive: &'a Drive<M, C>,
    /// Where its lists and root stand: segment and bytes.
    lists: Vec<(u32, u32)>,
}

impl<M: Medium, C: Clock> Drop for Attempt<'_, M, C> {
    fn drop(&mut self) {
        self.drive.l2p.borrow_mut().abandon_checkpoint();
        self.drive.release_all(take(&mut self.lists));
    }
}

impl<M: Medium, C: Clock> Drive<M, C> {
    /// Writes a checkpoint of the drive as it is now. When this returns, all of it is durable.
    /// Dropped before its end it is given up; while it writes superblocks, the drive is poisoned
    /// then.
    ///
    /// # Errors
    /// `NoSpace`, `Poisoned`, `Medium`: the checkpoint before is still the newest.
    pub async fn checkpoint(&self) -> Result<()> {
        let turn = self.checkpoint_turn().await;
        self.log.check_poison()?;
        if self.log.is_closing() {
            return Err(Error::new(ErrorKind::Poisoned, "the drive is closed"));
        }
        let mut attempt = Attempt { drive: self, lists: Vec::new() };
        let written = self.write_checkpoint(&mut attempt.lists).await;
        let result = written.map(|root| self.end_checkpoint(&root, take(&mut attempt.lists)));
        drop(attempt);
        drop(turn);
        self.log.changed.wake_all();
        self.gc.wake();
        result
    }

    /// Writes a checkpoint whenever one is due, until the drive closes.
    pub(crate) async fn run_checkpoints(&self) {
        while !self.is_read_only() {
            let next = || {
                let ends = self.ending.get() || self.log.check_poison().is_err();
                (ends || self.checkpoint_is_due()).then_some(ends)
            };
            if self.checkpoint_wanted.wait_for(next).await {
                return;
            }
            if let Err(error) = self.checkpoint().await {
                tracing::warn!("no checkpoint was written: {}", error.chain());
                self.clock.sleep_ns(RETRY_NS).await;
            }
        }
    }

    /// Whether so much was written since the last checkpoint, or so much of the map is dirty, that
    /// another is due. Until recovery would take about a second, a checkpoint waits until it costs
    /// no more than 2 % of what was written. What a checkpoint writes does not count: it would be
    /// the reason for the next, and that one for the next, on a drive that nobody uses.
    pub(crate) fn checkpoint_is_due(&self) -> bool {
        let checkpoints = &self.checkpoints;
        // Others wait, whatever was written: metadata being moved dirties leaves, too.
        if !checkpoints.is_running() && self.has_too_many_changed_leaves() {
            return true;
        }
        let counted = checkpoints.begun_at_bytes.get().saturating_add(checkpoints.own_bytes.get());
        let since = self.stats.media_bytes.get().saturating_sub(counted);
        if checkpoints.is_running() || since == 0 {
            return false;
        }
        let (dirty_bytes, dirty_leaves) = {
            let l2p = self.l2p.borrow();
            (l2p.dirty_bytes(), l2p.dirty_leaves())
        };
        let limit = self.options.checkpoint_bytes;
        let paid_off = (dirty_bytes as u64).saturating_mul(COST_DIVISOR).max(DISTANCE_BYTES_MIN);
        since >= limit.min(paid_off)
            || dirty_bytes > self.dirty_bytes_max.get() / 4 * 3
            || dirty_leaves > DIRTY_LEAVES_MAX
    }

    /// Waits until nobody else changes checkpoint and superblock.
    pub(crate) async fn checkpoint_turn(&self) -> Turn<'_> {
        let checkpoints = &self.checkpoints;
        checkpoints.ended.wait_for(|| (!checkpoints.running.get()).then_some(())).await;
        checkpoints.running.set(true);
        Turn { checkpoints, wanted: &self.checkpoint_wanted }
    }

    async fn write_checkpoint(&self, lists: &mut Vec<(u32, u32)>) -> Result<Root> {
        let Begun { mut root, table, dropped } = self.begin_checkpoint();
        self.write_leaves().await?;
        self.write_pages().await?;
        let pages: Vec<(u32, MetaPlace)> = self.l2p.borrow().page_places().collect();
        root.page_count = pages.len() as u32;
        root.page_lists = self
            .write_list(MetaKind::PageList, &pages, PAGE_ENTRY_BYTES, lists, |page, raw| {
                raw.extend(u64::from(page.0).to_le_bytes());
                raw.extend(page.1.pack().to_le_bytes());
            })
            .await?;
        let bytes = TableEntry::BYTES;
        root.tables =
            self.write_list(MetaKind::Table, &table, bytes, lists, TableEntry::encode_into).await?;
        let bytes = DroppedRange::BYTES;
        root.dropped_count = dropped.len() as u32;
        root.dropped_lists = self
            .write_list(MetaKind::Dropped, &dropped, bytes, lists, DroppedRange::encode_into)
            .await?;
        // A segment opened for the root itself must be in it: room for one more, then the list.
        let unopened = (Stream::Meta, SegmentId(0), 0);
        root.opened = self.checkpoints.opened.borrow().clone();
        root.opened.push(unopened);
        self.make_room(meta_bytes_max(root.encode().len()), Purpose::Meta).await?;
        root.opened = self.checkpoints.opened.borrow().clone();
        let (place, payload_checksum) = self.append_meta(MetaKind::Root, 0, &root.encode());
        lists.push((place.segment.0, place.bytes));
        self.seal(Stream::Meta);
        self.flush_log().await?;
        let generation = self.space.borrow().generation(place.segment);
        let named = CheckpointPlace {
            place: RecordPlace { generation, segment: place.segment, offset: place.offset },
            record_bytes: place.bytes,
            payload_checksum,
        };
        self.update_superblocks(|superblock| superblock.checkpoint = Some(named)).await?;
        Ok(root)
    }

    /// Takes everything that a checkpoint must say about this moment.
    fn begin_checkpoint(&self) -> Begun {
        for stream in Stream::ALL {
            self.seal(stream);
        }
        self.checkpoints.opened.borrow_mut().clear();
        self.checkpoints.own_bytes.set(0);
        let ChainEnd { seq: watermark, checksum: watermark_checksum } = self.log.chain_end();
        let DroppedSnapshot { ranges, leaf_mapped_blocks } =
            self.l2p.borrow_mut().begin_checkpoint();
        let dropped = ranges.iter().map(|range| DroppedRange {
            start: range.start,
            end: range.end,
            mapping: match range.mapping {
                Mapping::Fill(byte) => DirectoryEntry::Fill(byte),
                _ => DirectoryEntry::Hole,
            },
        });
        let Totals { host_bytes, frame_bytes, media_bytes, moved_bytes } = self.stats.totals();
        let space = self.space.borrow();
        let tails = Stream::ALL.map(|stream| {
            self.log.tail(stream).map(|tail| StreamTail {
                segment: tail.segment,
                generation: tail.generation,
                used: tail.used,
            })
        });
        let root = Root {
            epoch: self.epoch,
            segment_count: space.segment_count(),
            size_bytes: self.size_bytes(),
            watermark,
            watermark_checksum,
            host_bytes,
            frame_bytes,
            media_bytes,
            moved_bytes,
            mapped_blocks: leaf_mapped_blocks,
            tails,
            opened: Vec::new(),
            page_count: 0,
            dropped_count: 0,
            page_lists: Vec::new(),
            tables: Vec::new(),
            dropped_lists: Vec::new(),
        };
        Begun { root, table: space.table(), dropped: dropped.collect() }
    }

    /// Writes the leaves that were dirty when the checkpoint was begun, as they were then.
    async fn write_leaves(&self) -> Result<()> {
        let mut raw = Vec::new();
        let mut written = 0;
        loop {
            let Some(leaf) = self.l2p.borrow_mut().next_pending() else { return Ok(()) };
            raw.clear();
            let content = self.l2p.borrow().pending_content(leaf, &mut raw);
            let entry = match content {
                Content::Uniform(Mapping::Fill(byte)) => DirectoryEntry::Fill(byte),
                Content::Uniform(_) => DirectoryEntry::Hole,
                Content::Runs => {
                    self.make_room(meta_bytes_max(raw.len()), Purpose::Meta).await?;
                    DirectoryEntry::Leaf(self.append_meta(MetaKind::Leaf, leaf, &raw).0)
                }
            };
            self.l2p.borrow_mut().checkpointed(leaf, entry);
            written += 1;
            if written % RECORDS_A_TURN == 0 {
                self.clock.sleep_ns(0).await;
            }
        }
    }

    /// Writes the directory pages that the leaves changed.
    async fn write_pages(&self) -> Result<()> {
        let pages = self.l2p.borrow().dirty_pages();
        for (written, page) in (1..).zip(pages) {
            let raw = encode_page(&self.l2p.borrow().page(page));
            self.make_room(meta_bytes_max(raw.len()), Purpose::Meta).await?;
            let (place, _) = self.append_meta(MetaKind::Page, u64::from(page), &raw);
            self.l2p.borrow_mut().set_page_place(page, place);
            if written % RECORDS_A_TURN == 0 {
                self.clock.sleep_ns(0).await;
            }
        }
        Ok(())
    }

    /// Writes a list in pieces; gives their places, and adds them to `lists`.
    async fn write_list<T>(
        &self,
        kind: MetaKind,
        entries: &[T],
        entry_bytes: usize,
        lists: &mut Vec<(u32, u32)>,
        mut encode: impl FnMut(&T, &mut Vec<u8>),
    ) -> Result<Vec<MetaPlace>> {
        let mut places = Vec::new();
        for (number, piece) in (0..).zip(entries.chunks(LIST_BYTES / entry_bytes)) {
            let mut raw = Vec::with_capacity(LIST_BYTES);
            for entry in piece {
                encode(entry, &mut raw);
            }
            self.make_room(meta_bytes_max(raw.len()), Purpose::Meta).await?;
            let (place, _) = self.append_meta(kind, number, &raw);
            places.push(place);
            lists.push((place.segment.0, place.bytes));
            if number % u64::from(RECORDS_A_TURN) == 0 {
                self.clock.sleep_ns(0).await;
            }
        }
        Ok(places)
    }

    /// Appends a metadata record to the open batch of its stream, which has the room; gives its
    /// place and the checksum of its payload.
    fn append_meta(&self, kind: MetaKind, number: u64, raw: &[u8]) -> (MetaPlace, u64) {
        let compressor = &mut *self.checkpoints.compressor.borrow_mut();
        let push =
            |open: &mut super::packing::OpenBatch| open.push_meta(kind, number, raw, compressor);
        let (place, checksum) = self.log.append(Stream::Meta, push);
        self.space.borrow_mut().add_live(place.segment.0, place.bytes);
        self.stats.meta_bytes.add(u64::from(place.bytes));
        (place, checksum)
    }

    /// Takes what the checkpoint before named off the live bytes.
    fn end_checkpoint(&self, root: &Root, lists: Vec<(u32, u32)>) {
        let superseded = self.l2p.borrow_mut().end_checkpoint();
        self.release_all(superseded.iter().map(|place| (place.segment.0, place.bytes)));
        self.release_all(self.checkpoints.lists.replace(lists));
        self.checkpoints.watermark.set(root.watermark);
        self.checkpoints.begun_at_bytes.set(root.media_bytes);
        self.checkpoints.completed.set(self.checkpoints.completed.get() + 1);
    }

    /// Bytes of a segment that are live because the newest checkpoint names them, though the map
    /// as it is now does not: lists, its root, and what the next checkpoint will not name.
    pub(crate) fn checkpoint_only_bytes(&self, segment: SegmentId) -> u64 {
        let lists = self.checkpoints.lists.borrow();
        let l2p = self.l2p.borrow();
        let superseded = l2p.superseded_places().map(|place| (place.segment.0, place.bytes));
        let all = lists.iter().copied().chain(superseded);
        all.filter(|(number, _)| *number == segment.0).map(|(_, bytes)| u64::from(bytes)).sum()
    }

    /// Every metadata record that is live while no checkpoint is being written: segment and bytes.
    pub(crate) fn metadata(&self) -> Vec<(u32, u32)> {
        let l2p = self.l2p.borrow();
        let map = l2p.meta_places().chain(l2p.superseded_places());
        let map = map.map(|place| (place.segment.0, place.bytes));
        map.chain(self.checkpoints.lists.borrow().iter().copied()).collect()
    }

    fn release_all(&self, places: impl IntoIterator<Item = (u32, u32)>) {
        let space = &mut *self.space.borrow_mut();
        for (segment, bytes) in places {
            space.release(segment, bytes);
        }
    }
}

//! The state of checkpoints: when one is due, its content, and the records that it makes dead.
//!
//! ```text
//! turn -> begin -> leaves -> pages -> lists -> root -> (flush, superblocks) -> end
//!    \________________________ given up: abandon _______________________________/
//! ```
//!
//! `maintenance::checkpoint` defines the order of the steps and performs the I/O. Invariant: the
//! newest checkpoint contains everything up to batch `checkpointed`, which never moves back and
//! never passes the watermark.

use super::super::log::packing::{MetaRecord, meta_bytes_max};
use super::super::log::{ChainEnd, Totals};
use super::super::map::{DroppedSnapshot, LeafContent, Mapping};
use super::{CheckpointAction, Core, MetaPosition, PendingPiece, Purpose, Wakes};
use crate::base::{Error, ErrorKind, Result, SegmentId, SeqNo};
use crate::codec::Compressor;
use crate::format::{
    CheckpointAddress, DirectoryEntry, DroppedRange, META_RAW_BYTES_MAX, MetaKind, MetadataAddress,
    OpenedSegment, Root, Snapshot, Stream, StreamTail, Superblock, TableEntry, encode_page,
};

/// Checkpoints may use one part in this number of the bytes written to the medium.
const COST_DIVISOR: u64 = 50;

/// Bytes of log below which a checkpoint is not worth its two syncs. Recovery reads this amount in
/// a tenth of a second.
const DISTANCE_BYTES_MIN: u64 = 64 << 20;

/// Leaves that may have changed since the last checkpoint. Recovery reads most of them one by one,
/// which takes 0.7 s on a medium with 50,000 reads per second. Only writes scattered over 128 GiB
/// or more reach this limit.
const DIRTY_LEAVES_MAX: usize = 32 << 10;

#[derive(Clone, Debug, Default)]
pub(crate) struct NewestCheckpoint {
    /// The last batch that it covers: it contains the changes of all batches up to this one.
    pub(crate) checkpointed: SeqNo,
    /// Media bytes of the drive's life when the checkpoint began.
    pub(crate) begun_at_bytes: u64,
    /// The places of its lists and its root.
    pub(crate) lists: Vec<MetadataAddress>,
}

/// The checkpoints of one drive.
pub(crate) struct Checkpoints {
    newest: NewestCheckpoint,
    /// Media bytes of metadata sealed since the checkpoint began: the cost of the checkpoint
    /// itself.
    own_bytes: u64,
    /// Whether a task holds the turn to change checkpoint and superblock.
    is_running: bool,
    /// Metadata segments opened since the running checkpoint began.
    opened_segments: Vec<OpenedSegment>,
    completed: u64,
    /// Whether the last attempt failed for lack of space.
    lacks_space: bool,
}

/// A leaf that a checkpoint must write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingLeaf {
    leaf: u64,
    content: LeafContent,
}

/// The content of a checkpoint as of its beginning.
pub(crate) struct Begun {
    /// The root, without the lists and the segments that are opened for the checkpoint.
    pub(crate) root: Root,
    /// The segment table.
    pub(crate) table: Vec<TableEntry>,
    pub(crate) dropped: Vec<DroppedRange>,
    /// The snapshots that exist once it is complete.
    pub(crate) snapshots: Vec<Snapshot>,
    /// The forwarding tables that it must write.
    pub(crate) forwards: Vec<PendingPiece>,
}

impl Checkpoints {
    pub(super) fn new(newest: NewestCheckpoint) -> Self {
        let opened_segments = Vec::new();
        Self {
            newest,
            own_bytes: 0,
            is_running: false,
            opened_segments,
            completed: 0,
            lacks_space: false,
        }
    }

    /// Returns the last batch that the newest checkpoint covers.
    pub(crate) fn checkpointed(&self) -> SeqNo {
        self.newest.checkpointed
    }

    /// Returns the number of checkpoints completed since the opening.
    pub(crate) fn completed(&self) -> u64 {
        self.completed
    }

    /// Returns whether the last attempt failed for lack of space.
    pub(crate) fn lacks_space(&self) -> bool {
        self.lacks_space
    }

    /// Returns whether a checkpoint or a superblock is being written.
    pub(crate) fn is_running(&self) -> bool {
        self.is_running
    }

    /// Records that a batch was sealed.
    pub(super) fn batch_sealed(&mut self, stream: Stream, media_bytes: u64) {
        if self.is_running && stream == Stream::Meta {
            self.own_bytes = self.own_bytes.saturating_add(media_bytes);
        }
    }

    /// Records that a stream continues in a segment. Only metadata segments are recorded: recovery
    /// reads the records that a checkpoint names before the subsequent log, which would announce
    /// the segment.
    pub(super) fn segment_opened(&mut self, stream: Stream, segment: SegmentId, generation: u64) {
        if self.is_running && stream == Stream::Meta {
            assert!(
                self.opened_segments.iter().all(|opened| opened.segment != segment),
                "segment {segment} is opened once while a checkpoint is written"
            );
            self.opened_segments.push(OpenedSegment { segment, generation, stream });
        }
    }
}

impl Core {
    /// Acquires the turn to change checkpoint and superblock. Returns whether the turn was free.
    pub(crate) fn take_turn(&mut self) -> bool {
        !std::mem::replace(&mut self.checkpoints.is_running, true)
    }

    /// Releases the turn. A checkpoint that could not be started may have become due.
    pub(crate) fn return_turn(&mut self) {
        assert!(self.checkpoints.is_running, "the turn was taken before it is returned");
        self.checkpoints.is_running = false;
        self.checkpoints.opened_segments.clear();
        self.wake(Wakes::TURN);
        self.wake(Wakes::CHECKPOINTER);
        // A write may have waited for the work done in the turn.
        self.wake(Wakes::PROGRESS);
    }

    /// Returns whether another checkpoint is due: enough was written since the last one, or enough
    /// of the map is dirty. Up to a recovery time of about one second, a checkpoint waits until it
    /// costs no more than 2 % of the bytes written. Bytes that a checkpoint writes do not count: on
    /// an idle drive they would cause the next checkpoint.
    pub(crate) fn checkpoint_is_due(&self) -> bool {
        let checkpoints = &self.checkpoints;
        if checkpoints.is_running {
            return false;
        }
        // Requests wait for it, however little was written: moving metadata also dirties leaves.
        if self.has_too_many_changed_leaves() || self.snapshots.has_long_tables() {
            return true;
        }
        let counted = checkpoints.newest.begun_at_bytes.saturating_add(checkpoints.own_bytes);
        let since = self.counters.media_bytes.get().saturating_sub(counted);
        if since == 0 {
            return false;
        }
        let dirty_bytes = self.map.dirty_bytes();
        let paid_off = (dirty_bytes as u64).saturating_mul(COST_DIVISOR).max(DISTANCE_BYTES_MIN);
        since >= self.settings.checkpoint_bytes.min(paid_off)
            || dirty_bytes > self.reserves.dirty_bytes_max / 4 * 3
            || self.map.dirty_leaves() > DIRTY_LEAVES_MAX
    }

    /// Returns whether changes must wait for a checkpoint. Either the checkpoint must make leaves
    /// of the map clean, since only clean leaves can be evicted, or it must complete, because
    /// recovery could not store all leaves that changed since the last one.
    pub(crate) fn must_wait_for_checkpoint(&mut self) -> bool {
        let is_over = self.has_too_many_changed_leaves();
        if is_over && !self.checkpoints.is_running {
            self.wake(Wakes::CHECKPOINTER);
        }
        is_over
    }

    /// Returns whether dirty leaves and the copies set aside exceed the limit of dirty bytes, or
    /// the leaves changed since the newest checkpoint exceed twice that limit. The latter are the
    /// leaves that a running checkpoint writes, and the leaves that change in the meantime. A
    /// failed or interrupted attempt followed by another one therefore leaves no more than that to
    /// recovery: see [`super::super::recovery`].
    fn has_too_many_changed_leaves(&self) -> bool {
        let most = self.reserves.dirty_bytes_max;
        self.map.dirty_bytes() + self.map.frozen_bytes() > most
            || self.map.unsaved_bytes() / 2 > most
    }

    /// Begins a checkpoint of the current state of the drive: seals every stream and collects the
    /// content of the checkpoint as of this moment. Dirty leaves become pending.
    ///
    /// # Errors
    /// The errors of [`Core::check_action`], if the action is impossible; nothing is started.
    ///
    /// # Panics
    /// If the caller does not hold the turn, or a checkpoint is running.
    pub(crate) fn begin_checkpoint(&mut self, action: CheckpointAction) -> Result<Begun> {
        self.check_turn();
        self.check_action(&action)?;
        self.seal_all();
        assert!(
            !Stream::ALL.into_iter().any(|stream| self.log.is_open(stream)),
            "a checkpoint is taken between batches"
        );
        let action = match action {
            CheckpointAction::RollBack(disk, _) => {
                self.roll_back_to(*disk);
                None
            }
            action => Some(action),
        };
        self.checkpoints.opened_segments.clear();
        self.checkpoints.own_bytes = 0;
        let ChainEnd { seq, checksum } = self.log.chain_end();
        assert!(seq >= self.checkpoints.checkpointed(), "a checkpoint is not before the last");
        let DroppedSnapshot { ranges, leaf_mapped_blocks } = self.map.begin_checkpoint();
        let dropped = ranges.iter().map(|range| DroppedRange {
            start: range.start,
            end: range.end,
            mapping: entry_of(range.mapping),
        });
        let Totals { host_bytes, frame_bytes, media_bytes, moved_bytes } = self.counters.totals();
        let tails = Stream::ALL.map(|stream| {
            self.log.tail(stream).map(|tail| StreamTail {
                segment: tail.segment,
                generation: tail.generation,
                used: tail.used,
            })
        });
        let root = Root {
            epoch: self.log.epoch(),
            segment_count: self.space.segment_count(),
            size_bytes: self.size_bytes(),
            watermark: seq,
            watermark_checksum: checksum,
            host_bytes,
            frame_bytes,
            media_bytes,
            moved_bytes,
            mapped_blocks: leaf_mapped_blocks,
            lost_leaves: self.lost_leaves(),
            tails,
            opened_segments: Vec::new(),
            page_count: 0,
            dropped_count: 0,
            page_lists: Vec::new(),
            tables: Vec::new(),
            dropped_lists: Vec::new(),
            snapshot_lists: Vec::new(),
            retained_lists: Vec::new(),
            forward_lists: Vec::new(),
            lost_pieces: 0,
            lost_until: SeqNo(0),
            rolled_back: self.snapshots.rolled_back(),
        };
        let (table, dropped) = (self.space.table(), dropped.collect());
        assert_eq!(table.len(), root.segment_count as usize, "a checkpoint has all segments");
        if let Some(action) = action {
            self.begin_change(action, &root, &table);
        }
        let snapshots = self.snapshots.next_list();
        let forwards = self.snapshots.forwards_mut().begin_checkpoint();
        Ok(Begun { root, table, dropped, snapshots, forwards })
    }

    /// Asserts that a task holds the turn to change checkpoint and superblock.
    fn check_turn(&self) {
        assert!(self.checkpoints.is_running, "checkpoint and superblock change in turn");
    }

    /// Returns the next leaf to write: each leaf once, in order, then `None`. Appends the leaf's
    /// content as of the beginning of the checkpoint to `raw`, unless the leaf is one hole or fill.
    pub(crate) fn next_leaf(&mut self, raw: &mut Vec<u8>) -> Option<PendingLeaf> {
        self.check_turn();
        assert!(raw.is_empty(), "a leaf is written alone");
        let leaf = self.map.next_pending()?;
        Some(PendingLeaf { leaf, content: self.map.pending_content(leaf, raw) })
    }

    /// Appends a leaf that [`Core::next_leaf`] returned. Returns whether there was space.
    ///
    /// # Errors
    /// `NoSpace` or `Poisoned`.
    pub(crate) fn append_leaf(
        &mut self,
        PendingLeaf { leaf, content }: PendingLeaf,
        raw: &[u8],
        compressor: &mut Compressor,
    ) -> Result<bool> {
        let entry = match content {
            LeafContent::Uniform(mapping) => entry_of(mapping),
            LeafContent::Runs => {
                assert!(!raw.is_empty(), "a leaf of runs has content");
                let position = MetaPosition { kind: MetaKind::Leaf, number: leaf };
                match self.append_meta(position, raw, compressor)? {
                    Some(appended) => DirectoryEntry::Leaf(appended.place),
                    None => return Ok(false),
                }
            }
        };
        self.map.checkpointed(leaf, entry);
        Ok(true)
    }

    /// Appends a directory page that the leaves changed. Returns whether there was space.
    ///
    /// # Errors
    /// `NoSpace` or `Poisoned`.
    pub(crate) fn append_page(&mut self, page: u32, compressor: &mut Compressor) -> Result<bool> {
        self.check_turn();
        let raw = encode_page(&self.map.page(page));
        let position = MetaPosition { kind: MetaKind::Page, number: u64::from(page) };
        let Some(appended) = self.append_meta(position, &raw, compressor)? else {
            return Ok(false);
        };
        self.map.set_page_address(page, appended.place);
        Ok(true)
    }

    /// Appends a piece of a forwarding table. Returns whether there was space.
    ///
    /// # Errors
    /// `NoSpace` or `Poisoned`.
    pub(crate) fn append_forwards(
        &mut self,
        piece: &PendingPiece,
        compressor: &mut Compressor,
    ) -> Result<bool> {
        self.check_turn();
        let position = MetaPosition { kind: MetaKind::Forwards, number: 0 };
        let Some(appended) = self.append_meta(position, &piece.raw, compressor)? else {
            return Ok(false);
        };
        self.snapshots.forwards_mut().written(piece.of, appended.place);
        Ok(true)
    }

    /// Appends the root, which names the segments opened for the checkpoint, including its own, and
    /// seals it. Returns `None` if there is no space yet.
    ///
    /// # Errors
    /// `NoSpace` or `Poisoned`.
    pub(crate) fn append_root(
        &mut self,
        root: &mut Root,
        compressor: &mut Compressor,
    ) -> Result<Option<MetaRecord>> {
        self.check_turn();
        assert!(root.watermark <= self.log.sealed_seq(), "a root covers only sealed batches");
        // Reserving space may open another segment.
        root.opened_segments.clone_from(&self.checkpoints.opened_segments);
        let one_more = OpenedSegment { segment: SegmentId(0), generation: 0, stream: Stream::Meta };
        root.opened_segments.push(one_more);
        let longest = root.opened_segments.len();
        if root.encode().len() > META_RAW_BYTES_MAX {
            let what = "a checkpoint has more lists than its root can name: trim less at once";
            return Err(Error::new(ErrorKind::NoSpace, what));
        }
        let room_bytes = meta_bytes_max(root.encode().len(), self.seal_bytes());
        if !self.make_room(room_bytes, Purpose::Meta)? {
            return Ok(None);
        }
        root.opened_segments.clone_from(&self.checkpoints.opened_segments);
        assert!(root.opened_segments.len() <= longest, "making room opens one segment at most");
        root.check_invariants();
        let position = MetaPosition { kind: MetaKind::Root, number: 0 };
        let appended = self.push_meta(position, &root.encode(), compressor);
        self.seal(Stream::Meta);
        Ok(Some(appended))
    }

    /// Ends a checkpoint that both superblock slots name: records that only the previous checkpoint
    /// named are dead.
    pub(crate) fn end_checkpoint(
        &mut self,
        root: &Root,
        lists: Vec<MetadataAddress>,
        named: CheckpointAddress,
    ) {
        self.check_turn();
        let checkpointed = root.watermark;
        assert!(checkpointed >= self.checkpoints.checkpointed(), "a checkpoint never moves back");
        assert!(checkpointed <= self.log.durable_seq(), "a checkpoint covers only durable batches");
        assert!(!lists.is_empty(), "a checkpoint has a root");
        let superseded = self.snapshots.forwards_mut().end_checkpoint();
        self.end_change(named, &lists);
        self.release_all(&superseded);
        let superseded = self.map.end_checkpoint();
        self.release_all(&superseded);
        let newest = NewestCheckpoint { checkpointed, begun_at_bytes: root.media_bytes, lists };
        let before = std::mem::replace(&mut self.checkpoints.newest, newest);
        self.release_all(&before.lists);
        self.checkpoints.completed += 1;
        self.space.let_stuck_rest();
        self.check_invariants();
    }

    /// Wakes all work that waited for a checkpoint, whether or not the checkpoint was written.
    pub(crate) fn checkpoint_ended(&mut self, result: &Result<()>) {
        let error = result.as_ref().err().map(Error::kind);
        self.checkpoints.lacks_space = error == Some(ErrorKind::NoSpace);
        self.wake(Wakes::PROGRESS);
        self.wake(Wakes::COLLECTOR);
    }

    /// Abandons a checkpoint: the next one will name the leaves and pages that this one wrote; its
    /// `lists` are dead. Does nothing after [`Core::end_checkpoint`].
    pub(crate) fn abandon_checkpoint(&mut self, lists: &[MetadataAddress]) {
        self.check_turn();
        let written = self.snapshots.forwards_mut().abandon_checkpoint();
        self.release_all(&written);
        self.abandon_change();
        self.map.abandon_checkpoint();
        self.release_all(lists);
    }

    fn release_all(&mut self, places: &[MetadataAddress]) {
        for place in places {
            assert!(place.bytes > 0, "a metadata record has a header");
            self.space.release(place.segment, place.bytes);
        }
    }

    /// Returns the bytes of a segment that are live only because the newest checkpoint names them,
    /// not the current map: lists, the root, and records that the next checkpoint will not name.
    pub(crate) fn checkpoint_only_bytes(&self, segment: SegmentId) -> u64 {
        let lists = self.checkpoints.newest.lists.iter().copied();
        let tables = self.forwards().metadata();
        let all = lists.chain(self.map.superseded_addresses()).chain(tables);
        all.filter(|place| place.segment == segment).map(|place| u64::from(place.bytes)).sum()
    }

    /// Returns every metadata record that is live while no checkpoint is being written.
    pub(crate) fn metadata(&self) -> Vec<MetadataAddress> {
        let map = self.map.metadata_addresses().chain(self.map.superseded_addresses());
        let tables = self.forwards().metadata();
        map.chain(self.checkpoints.newest.lists.iter().copied()).chain(tables).collect()
    }

    /// Returns the superblock to write next: the current one with the current watermark.
    pub(crate) fn next_superblock(&self) -> Superblock {
        self.check_turn();
        let durable = self.log.durable_end();
        assert!(durable.seq >= self.superblock.watermark, "a watermark never moves back");
        let mut superblock = self.superblock.clone();
        superblock.watermark = durable.seq;
        superblock.watermark_checksum = durable.checksum;
        // A checkpoint taken after a detour records the stream's new tail.
        let checkpointed = self.checkpoints.checkpointed();
        superblock.detours.retain(|detour| detour.seq >= checkpointed);
        superblock
    }

    /// Returns the superblock slot to write next.
    pub(crate) fn next_superblock_slot(&self) -> u32 {
        let slot = 1_u32.checked_sub(self.superblock_slot);
        slot.expect("a medium has two superblock slots")
    }

    /// Records that the superblock in a slot is durable.
    pub(crate) fn superblock_slot_written(&mut self, slot: u32) {
        self.check_turn();
        assert_ne!(slot, self.superblock_slot, "the only valid superblock is not overwritten");
        self.superblock_slot = slot;
    }

    /// Records that a superblock is durable in both slots.
    pub(crate) fn set_superblock(&mut self, superblock: Superblock) {
        // They are equal only if the revision, which is read from the medium, has reached its
        // maximum.
        assert!(superblock.revision >= self.superblock.revision, "revisions never decrease");
        let before = &self.superblock;
        assert_eq!(superblock.uuid, before.uuid, "a drive keeps its identity");
        assert_eq!(superblock.epoch, before.epoch, "the epoch changes when a drive is opened");
        assert!(superblock.size_bytes >= before.size_bytes, "a disk never gets smaller");
        self.superblock = superblock;
        self.check_invariants();
    }

    /// Checks that the log ends as a superblock marked "closed in order" claims.
    ///
    /// # Errors
    /// `Busy` if something was appended after the last flush. If such a superblock marked it as
    /// durable, its loss would look like damage; an unclean end is always safe.
    pub(crate) fn check_all_is_durable(&self) -> Result<()> {
        let has_open_records =
            Stream::ALL.into_iter().any(|stream| self.log.has_open_records(stream));
        if self.log.sealed_seq() == self.log.durable_seq() && !has_open_records {
            return Ok(());
        }
        let what = "the drive was closed while requests were under way";
        Err(Error::new(ErrorKind::Busy, what))
    }
}

/// Returns the directory entry of a leaf that is one hole or fill.
fn entry_of(mapping: Mapping) -> DirectoryEntry {
    match mapping {
        Mapping::Fill(byte) => DirectoryEntry::Fill(byte),
        Mapping::Hole => DirectoryEntry::Hole,
        Mapping::Frame { .. } => unreachable!("a leaf is not uniform"),
    }
}

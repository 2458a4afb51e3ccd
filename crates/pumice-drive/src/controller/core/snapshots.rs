//! The state of snapshots: the list of snapshots, the segments that each needs, and the one that
//! the running checkpoint creates or deletes.
//!
//! ```text
//! create: begin_checkpoint -> segments with live frames are retained, from this moment
//!         leaves, pages, lists -> segments with metadata join the bitmap -> root, superblocks
//!         end_checkpoint -> the segments with metadata are retained, too
//! delete: begin_checkpoint -> a list without it -> root, superblocks
//!         end_checkpoint -> its segments are no longer retained
//! bookmark: begin_checkpoint -> a list that marks it -> root, superblocks
//!           end_checkpoint -> its segments without metadata are no longer retained
//! roll back: begin_checkpoint -> the map of the snapshot is the map of the disk
//!            end_checkpoint -> frames that only the map before named are dead
//! ```
//!
//! Between begin and end no segment is freed, since that takes the turn. An abandoned checkpoint
//! leaves everything as it was before, except for one that rolls back: the state in memory is then
//! ahead of the medium, so the drive takes no more writes.

use std::collections::BTreeSet;

use uuid::Uuid;

use super::super::space::Space;
use super::{Condition, Core, Forwards, KeptDisk, SegmentSet, Wakes};
use crate::base::units::BLOCK_BYTES;
use crate::base::{Error, ErrorKind, Result, SegmentId, SeqNo};
use crate::format::{
    CheckpointAddress, MetadataAddress, RegisteredClone, Root, SNAPSHOTS_MAX, Snapshot, Stream,
    TableEntry,
};

/// Most bytes of bitmaps that a drive holds in memory: 1,024 snapshots up to 16 TiB in segments of
/// 32 MiB.
pub(crate) const RETAINED_BYTES_MAX: usize = 64 << 20;

/// An additional action performed by a checkpoint.
pub(crate) enum CheckpointAction {
    /// Nothing.
    None,
    /// Become a snapshot.
    Create {
        /// The properties of the snapshot.
        new: NewSnapshot,
        /// Whether it must be of the moment at which the host's changes were suspended for it.
        while_suspended: bool,
    },
    /// Write a changed list of snapshots.
    Edit(Edit),
    /// Make the disk that of a snapshot, and drop the snapshots taken after it, if the condition
    /// allows it in the step that replaces the disk.
    RollBack(Box<KeptDisk>, Condition),
}

/// A change of the list of snapshots, each named by its last batch.
pub(crate) enum Edit {
    /// Delete these snapshots.
    Delete(Vec<SeqNo>),
    /// Keep only the map of this snapshot.
    Bookmark(SeqNo),
    /// Add a clone to this snapshot.
    Register(SeqNo, RegisteredClone),
    /// Remove the clone of this identity from this snapshot.
    Forget(SeqNo, Uuid),
}

/// The properties of a new snapshot, chosen by the caller.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct NewSnapshot {
    /// Its name; see [`check_snapshot_name`](crate::format::check_snapshot_name).
    pub name: String,
    /// Its identity, drawn at random.
    pub guid: Uuid,
    /// The time in seconds since 1970, for display.
    pub created_seconds: u64,
    /// Whether it is deleted before a write is refused for space, the oldest such first.
    pub yields: bool,
}

/// A snapshot of an open drive, or a bookmark.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    /// The snapshot's entry in the list.
    pub(crate) entry: Snapshot,
    /// Every segment that held data or metadata of it when it was taken, as its root says. The
    /// frames named there may have been moved since. For a bookmark, the segments of its map.
    pub(crate) named: SegmentSet,
    /// Every segment that holds data or metadata of it now.
    pub(crate) retained: SegmentSet,
    /// Damage to its root or its bitmap, if any: then every segment that was in use is retained.
    pub(crate) damage: Option<String>,
    /// Open views of it.
    pub(crate) readers: u32,
}

impl Kept {
    /// Returns whether a view or a clone reads it: then the frames that it needs stay in place.
    pub(super) fn is_read(&self) -> bool {
        self.readers > 0 || !self.entry.clones.is_empty()
    }

    /// Keeps the map only; returns the segments that it no longer needs.
    fn give_up_data(&mut self, space: &Space) -> Vec<SegmentId> {
        let is_of_map = |segment: &SegmentId| space.stream(*segment) == Stream::Meta;
        let (map, gone): (Vec<_>, Vec<_>) = self.retained.iter().partition(is_of_map);
        self.retained = SegmentSet::default();
        map.into_iter().for_each(|segment| {
            self.retained.insert(segment);
        });
        self.named = self.retained.clone();
        gone
    }
}

/// The change that the running checkpoint makes to the list.
struct Change {
    /// The list once the checkpoint is complete, oldest first.
    list: Vec<Snapshot>,
    /// The last snapshot of the list, if it is being created.
    new: Option<Box<Kept>>,
    /// Whether the checkpoint rolls the disk back.
    rolls_back: bool,
}

impl Change {
    fn entry(&self, of: &Snapshot) -> Option<&Snapshot> {
        let at = self.list.binary_search_by_key(&of.watermark, |entry| entry.watermark);
        at.ok().and_then(|at| self.list.get(at))
    }

    /// Returns whether the change gives up the data of a snapshot.
    fn takes_data_of(&self, of: &Snapshot) -> bool {
        self.entry(of).is_none_or(|entry| entry.is_bookmark != of.is_bookmark)
    }
}

/// The snapshots of one drive.
#[derive(Default)]
pub(crate) struct Snapshots {
    /// Oldest first.
    kept: Vec<Kept>,
    change: Option<Change>,
    /// Checkpoints begun since the opening to create snapshots.
    begun: u64,
    /// Snapshots being created, counted from the first check of whether that is possible.
    creating: u32,
    /// Free segments that a new snapshot needs, which the host leaves free until it is begun; 0 if
    /// none.
    wanted_segments: u32,
    /// Whether that number of free segments cannot be gained.
    lacks_segments: bool,
    /// Identities of the coming snapshots for which the host's changes are suspended.
    suspended_for: Vec<Uuid>,
    /// Whether the host needs the space of a snapshot that yields.
    must_yield: bool,
    /// Snapshots given up for the host since the opening.
    given_up: u64,
    /// Whether the bytes that they retain of each segment are known, as far as they can be.
    is_measured: bool,
    /// The last batch before the disk was last rolled back to a snapshot; 0 if it never was.
    rolled_back: SeqNo,
}

impl Snapshots {
    /// Returns the snapshots, oldest first.
    pub(crate) fn kept(&self) -> &[Kept] {
        &self.kept
    }

    /// Returns the snapshots, and the one being created, to change the segments that they retain.
    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut Kept> {
        let new = self.change.as_mut().and_then(|change| change.new.as_deref_mut());
        self.kept.iter_mut().chain(new)
    }

    /// Returns the snapshots, and the one being created, oldest first.
    pub(crate) fn all(&self) -> impl DoubleEndedIterator<Item = &Kept> {
        let new = self.change.as_ref().and_then(|change| change.new.as_deref());
        self.kept.iter().chain(new)
    }

    /// Returns the last batch of the newest snapshot, including one being created; 0 if there is
    /// none.
    pub(super) fn newest_watermark(&self) -> SeqNo {
        self.all().next_back().map_or(SeqNo(0), |kept| kept.entry.watermark)
    }

    /// Returns whether a comparison reads a bookmark: the frames that it names are not retained,
    /// and must stay where they were when the comparison began.
    pub(super) fn bookmarks_are_read(&self) -> bool {
        self.kept.iter().any(|kept| kept.entry.is_bookmark && kept.readers > 0)
    }

    /// Returns whether the running checkpoint changes the list.
    pub(super) fn is_changing(&self) -> bool {
        self.change.is_some()
    }

    /// Returns whether the bytes that they retain of each segment are known.
    pub(super) fn is_measured(&self) -> bool {
        self.is_measured
    }

    /// Notes whether the bytes that they retain of each segment are known.
    pub(super) fn set_measured(&mut self, is_measured: bool) {
        self.is_measured = is_measured;
    }

    /// Notes that no segment can be gained: a snapshot that waits for free segments is refused, and
    /// the host continues before the snapshot learns of it.
    pub(super) fn give_up_segments(&mut self) {
        self.lacks_segments |= self.wanted_segments > 0;
        self.wanted_segments = 0;
    }

    /// Returns the free segments that the host leaves to a new snapshot.
    #[inline]
    pub(crate) fn wanted_segments(&self) -> u32 {
        self.wanted_segments
    }

    /// Returns the number of checkpoints begun since the opening to create snapshots.
    pub(crate) fn begun(&self) -> u64 {
        self.begun
    }

    /// Notes that the disk is rolled back to a snapshot after batch `last`.
    pub(super) fn begin_rollback(&mut self, watermark: SeqNo, last: SeqNo) {
        assert!(self.change.is_none(), "one checkpoint at a time changes snapshots");
        self.rolled_back = last;
        let mut list = self.list();
        list.retain(|entry| entry.watermark <= watermark);
        self.change = Some(Change { list, new: None, rolls_back: true });
    }

    /// Returns whether a snapshot is being taken, from the first check of whether that is possible.
    pub(super) fn are_taken(&self) -> bool {
        self.creating > 0
    }

    /// Sets the last batch before the disk was last rolled back to a snapshot.
    pub(super) fn set_rolled_back(&mut self, last: SeqNo) {
        self.rolled_back = last;
    }

    /// Returns the last batch before the disk was last rolled back to a snapshot; 0 if it never
    /// was.
    pub(crate) fn rolled_back(&self) -> SeqNo {
        self.rolled_back
    }

    /// Returns the number of yielding snapshots given up since the opening.
    pub(crate) fn given_up(&self) -> u64 {
        self.given_up
    }

    /// Returns the snapshot of a name.
    pub(crate) fn find(&self, name: &str) -> Option<&Kept> {
        self.kept.iter().find(|kept| kept.entry.name == name)
    }

    /// Returns whether the host's changes are suspended: see [`Core::suspend_changes`].
    #[inline]
    pub(crate) fn changes_are_suspended(&self) -> bool {
        !self.suspended_for.is_empty()
    }

    /// Returns whether the host's changes wait for the snapshot `of`.
    pub(crate) fn changes_are_suspended_for(&self, of: Uuid) -> bool {
        self.suspended_for.contains(&of)
    }

    /// Returns whether a view or a clone reads a snapshot, or a clone is being registered.
    pub(super) fn is_read(&self, kept: &Kept) -> bool {
        let next = self.change.as_ref().and_then(|change| change.entry(&kept.entry));
        kept.is_read() || next.is_some_and(|entry| !entry.clones.is_empty())
    }

    /// Returns the list.
    fn list(&self) -> Vec<Snapshot> {
        self.kept.iter().map(|kept| kept.entry.clone()).collect()
    }

    /// Returns the list as of the completion of the running checkpoint.
    pub(super) fn next_list(&self) -> Vec<Snapshot> {
        self.change.as_ref().map_or_else(|| self.list(), |change| change.list.clone())
    }
}

impl Core {
    /// Returns the snapshots.
    pub(crate) fn snapshots(&self) -> &Snapshots {
        &self.snapshots
    }

    /// Installs the snapshots that recovery found and the tables of moved frames, and protects the
    /// segments that they need. Must be called before anything is replayed.
    ///
    /// # Errors
    /// `Corrupt` if a piece of a table lies where none can be.
    pub(crate) fn set_snapshots(&mut self, kept: Vec<Kept>, forwards: Forwards) -> Result<()> {
        let segment_bytes = self.superblock.segment_bytes;
        for place in forwards.metadata() {
            self.space.try_add_live(place.segment, place.bytes, segment_bytes)?;
        }
        (self.snapshots.kept, self.forwards) = (kept, forwards);
        self.prune_forwards();
        let Self { snapshots, forwards, space, .. } = self;
        for kept in &mut snapshots.kept {
            let watermark = kept.entry.watermark;
            let named = kept.named.iter();
            let named = named.filter(|&segment| !forwards.is_emptied(segment, watermark));
            let copies = forwards.needed_by(&kept.entry).map(|to| to.segment);
            for segment in named.chain(copies) {
                if !kept.retained.contains(segment) && space.retain(segment) {
                    kept.retained.insert(segment);
                    space.forget_retained_bytes(segment);
                }
            }
        }
        self.fix_read();
        self.fix_retained();
        Ok(())
    }

    /// Drops the entries that no snapshot needs from the tables of moved frames.
    fn prune_forwards(&mut self) {
        let kept = &self.snapshots.kept;
        let names = |segment, watermark| {
            let at = kept.binary_search_by_key(&watermark, |kept| kept.entry.watermark);
            at.ok().and_then(|at| kept.get(at)).is_some_and(|kept| kept.named.contains(segment))
        };
        self.forwards.prune(kept.iter().map(|kept| &kept.entry), names);
    }

    /// Begins to create a snapshot: from now on the capacity does not change.
    ///
    /// # Errors
    /// `AlreadyExists`, `NoSpace`, `Busy`, `ReadOnly`, `Poisoned`.
    pub(crate) fn begin_snapshot(&mut self, name: &str) -> Result<()> {
        self.check_writable(0, 0)?;
        self.check_new_snapshot(name)?;
        if self.is_resizing {
            let what = "the drive is being resized: take the snapshot afterwards";
            return Err(Error::new(ErrorKind::Busy, what));
        }
        self.snapshots.creating += 1;
        self.snapshots.lacks_segments = false;
        Ok(())
    }

    /// Ends the creation begun by [`Core::begin_snapshot`].
    pub(crate) fn end_snapshot(&mut self) {
        let left = self.snapshots.creating.checked_sub(1);
        self.snapshots.creating = left.expect("a snapshot that was begun ends once");
        // Another snapshot may still wait for the segments.
        if self.snapshots.creating == 0 {
            self.snapshots.wanted_segments = 0;
            self.wake(Wakes::PROGRESS);
        }
    }

    fn check_new_snapshot(&self, name: &str) -> Result<()> {
        if self.snapshots.find(name).is_some() {
            let what = format!("a snapshot named {name} exists already");
            return Err(Error::new(ErrorKind::AlreadyExists, what));
        }
        let bitmap_bytes = self.space.segment_count() as usize / 8;
        let count = self.snapshots.kept.len();
        if count >= SNAPSHOTS_MAX || (count + 1) * bitmap_bytes > RETAINED_BYTES_MAX {
            let what = format!("the drive has {count} snapshots, the maximum: delete some");
            return Err(Error::new(ErrorKind::NoSpace, what));
        }
        Ok(())
    }

    /// Returns whether there is room for another snapshot; `None` if garbage collection may make
    /// it.
    ///
    /// # Errors
    /// `NoSpace`, `Poisoned`.
    pub(crate) fn room_for_snapshot(&mut self) -> Result<Option<()>> {
        // In these cases waiting would not help.
        self.check_writable(0, 0)?;
        self.log.check_medium_full()?;
        let needed = self.segments_for_snapshot();
        // The host leaves this number free until the snapshot is begun.
        self.snapshots.wanted_segments = needed;
        if self.space.free_count() >= needed {
            return Ok(Some(()));
        }
        if !self.snapshots.lacks_segments && self.can_gain() {
            self.wake(Wakes::COLLECTOR);
            return Ok(None);
        }
        self.snapshots.wanted_segments = 0;
        let what = format!(
            "there is no space for a snapshot: it needs {needed} free segments of {} MiB, there \
             are {}: delete snapshots, trim, or {}",
            self.superblock.segment_bytes >> 20,
            self.space.free_count(),
            self.makes_room()
        );
        Err(Error::new(ErrorKind::NoSpace, what))
    }

    /// Begins to read a snapshot or a bookmark: until [`Core::end_view`] it is not deleted, and
    /// nothing that it needs is moved. Returns its entry and the present places of frames that were
    /// moved before; `None` if there is no such snapshot.
    ///
    /// # Errors
    /// `Busy` if it is being deleted.
    pub(crate) fn begin_view(&mut self, name: &str) -> Result<Option<(Snapshot, Forwards)>> {
        let Snapshots { kept, change, .. } = &mut self.snapshots;
        let Some(kept) = kept.iter_mut().find(|kept| kept.entry.name == name) else {
            return Ok(None);
        };
        if change.as_ref().is_some_and(|change| change.takes_data_of(&kept.entry)) {
            let what = format!("the snapshot {name} is being deleted");
            return Err(Error::new(ErrorKind::Busy, what));
        }
        kept.readers = kept.readers.checked_add(1).expect("views take memory");
        let entry = kept.entry.clone();
        self.needs_changed();
        self.fix_read();
        self.fix_retained();
        let forwards = self.forwards.of(&entry);
        Ok(Some((entry, forwards)))
    }

    /// Ends a view, begun by [`Core::begin_view`], of the snapshot of this batch.
    pub(crate) fn end_view(&mut self, watermark: SeqNo) {
        let mut all = self.snapshots.kept.iter_mut();
        let kept = all.find(|kept| kept.entry.watermark == watermark);
        let kept = kept.expect("a snapshot that is read is there");
        kept.readers = kept.readers.checked_sub(1).expect("a view ends once");
        self.fix_read();
        self.fix_retained();
    }

    /// Checks whether a action can still be met at the moment at which its checkpoint begins.
    ///
    /// # Errors
    /// `AlreadyExists`, `NotFound`, `Busy`, `NoSpace`: after the last, there may be room later.
    pub(crate) fn check_action(&self, action: &CheckpointAction) -> Result<()> {
        match action {
            CheckpointAction::None => Ok(()),
            CheckpointAction::Create { new, while_suspended } => {
                self.check_new_snapshot(&new.name)?;
                if *while_suspended && !self.snapshots.changes_are_suspended_for(new.guid) {
                    let what = "the host's writes are no longer suspended, as this snapshot \
                                requires: take it again";
                    return Err(Error::new(ErrorKind::Busy, what));
                }
                if self.space.free_count() < self.segments_for_snapshot() {
                    let what = "the drive was filled while the snapshot was taken";
                    return Err(Error::new(ErrorKind::NoSpace, what));
                }
                Ok(())
            }
            CheckpointAction::Edit(edit) => self.edited(edit).map(drop),
            CheckpointAction::RollBack(disk, is_possible) => {
                is_possible()?;
                entry_in(&mut self.snapshots.list(), disk.watermark)?;
                self.check_unread(|watermark| watermark > disk.watermark)
            }
        }
    }

    /// Returns the list of snapshots after a change.
    ///
    /// # Errors
    /// As [`Core::check_action`].
    fn edited(&self, edit: &Edit) -> Result<Vec<Snapshot>> {
        let mut list = self.snapshots.list();
        match edit {
            Edit::Delete(gone) => {
                for &watermark in gone {
                    entry_in(&mut list, watermark)?;
                }
                self.check_no_base(gone)?;
                self.check_unread(|watermark| gone.contains(&watermark))?;
                list.retain(|entry| !gone.contains(&entry.watermark));
            }
            Edit::Bookmark(of) => {
                let entry = entry_in(&mut list, *of)?;
                self.check_no_base(&[*of])?;
                self.check_unread(|watermark| watermark == *of)?;
                *entry = entry.as_bookmark();
            }
            Edit::Register(of, clone) => {
                let entry = entry_in(&mut list, *of)?;
                self.check_new_clone(*of, clone)?;
                entry.clones.push(clone.clone());
            }
            Edit::Forget(of, clone) => {
                entry_in(&mut list, *of)?.clones.retain(|found| found.drive != *clone);
            }
        }
        Ok(list)
    }

    /// Returns an error if a part is received onto a snapshot whose data would go: rolling back to
    /// it discards the part.
    fn check_no_base(&self, gone: &[SeqNo]) -> Result<()> {
        let mut gone = self
            .snapshots
            .kept
            .iter()
            .map(|kept| &kept.entry)
            .filter(|entry| gone.contains(&entry.watermark));
        let Some(base) = gone.find(|entry| self.is_base_of_part(entry)) else { return Ok(()) };
        let what = format!(
            "the disk holds a part of a snapshot that was sent since {}: receive the rest, or \
             discard the part with a rollback",
            base.name
        );
        Err(Error::new(ErrorKind::Busy, what))
    }

    fn is_base_of_part(&self, entry: &Snapshot) -> bool {
        self.superblock.receiving.is_some_and(|part| part.base == Some(entry.guid))
    }

    /// Returns an error if a snapshot that would go is being read or has clones.
    fn check_unread(&self, goes: impl Fn(SeqNo) -> bool) -> Result<()> {
        self.check_uncloned(&goes)?;
        let mut read = self.snapshots.kept.iter().filter(|kept| kept.readers > 0);
        match read.find(|kept| goes(kept.entry.watermark)) {
            None => Ok(()),
            Some(kept) => {
                let what = format!("the snapshot {} is being read", kept.entry.name);
                Err(Error::new(ErrorKind::Busy, what))
            }
        }
    }

    /// Notes the change that the starting checkpoint makes.
    pub(super) fn begin_change(
        &mut self,
        action: CheckpointAction,
        root: &Root,
        table: &[TableEntry],
    ) {
        assert!(self.snapshots.change.is_none(), "one checkpoint at a time changes snapshots");
        let (list, new) = match action {
            CheckpointAction::None => return self.fix_retained(),
            CheckpointAction::RollBack(..) => {
                unreachable!("the disk is another before its root is made")
            }
            CheckpointAction::Edit(edit) => {
                (self.edited(&edit).expect("the action was checked"), None)
            }
            CheckpointAction::Create { new, .. } => {
                self.snapshots.begun += 1;
                self.snapshots.wanted_segments = 0;
                self.resume_changes(new.guid);
                let new = Box::new(self.retain_frames(new, root, table));
                let mut list = self.snapshots.list();
                list.push(new.entry.clone());
                (list, Some(new))
            }
        };
        self.snapshots.change = Some(Change { list, new, rolls_back: false });
        self.needs_changed();
        self.fix_read();
        self.fix_retained();
    }

    /// Retains every segment in which the map names a frame, that is, every segment with live
    /// bytes.
    fn retain_frames(&mut self, new: NewSnapshot, root: &Root, table: &[TableEntry]) -> Kept {
        let mut retained = SegmentSet::default();
        let mut live_bytes = 0;
        for (segment, entry) in (0..).map(SegmentId).zip(table) {
            if !entry.in_use || entry.stream == Stream::Meta || entry.live_bytes == 0 {
                continue;
            }
            live_bytes += u64::from(entry.live_bytes);
            retained.insert(segment);
            assert!(self.space.retain(segment), "live data lies in segments in use");
            self.space.note_retained_live(segment);
        }
        let entry = Snapshot {
            name: new.name,
            guid: new.guid,
            watermark: root.watermark,
            watermark_checksum: root.watermark_checksum,
            created_seconds: new.created_seconds,
            root: None,
            size_bytes: root.size_bytes,
            mapped_blocks: root.mapped_blocks,
            live_bytes,
            host_bytes: root.host_bytes,
            yields: new.yields,
            is_bookmark: false,
            clones: Vec::new(),
        };
        Kept { entry, named: retained.clone(), retained, damage: None, readers: 0 }
    }

    /// Returns the bitmap of the segments that the snapshot being created needs; `None` if there is
    /// none. Leaves and pages of the checkpoint have their places; `lists` are its lists so far.
    pub(crate) fn retained_bitmap(&mut self, lists: &[MetadataAddress]) -> Option<Vec<u8>> {
        let more = self.metadata_segments(lists);
        let segment_count = self.space.segment_count();
        let mut all = self.snapshots.change.as_ref()?.new.as_ref()?.named.clone();
        more.into_iter().for_each(|segment| {
            all.insert(segment);
        });
        Some(all.encode(segment_count))
    }

    /// Returns the segments of all metadata that the running checkpoint names.
    fn metadata_segments(&self, lists: &[MetadataAddress]) -> BTreeSet<SegmentId> {
        let map = self.map.metadata_addresses().chain(self.map.superseded_addresses());
        map.chain(lists.iter().copied()).map(|place| place.segment).collect()
    }

    /// Applies the change of the checkpoint, which both superblocks name as `named`. Must be called
    /// before the records that only the previous checkpoint named are released.
    pub(super) fn end_change(&mut self, named: CheckpointAddress, lists: &[MetadataAddress]) {
        let Some(mut change) = self.snapshots.change.take() else { return self.fix_retained() };
        let new = change.new.take();
        let (mut gone, mut is_less) = (Vec::new(), change.rolls_back);
        let Self { snapshots, space, .. } = self;
        snapshots.kept.retain_mut(|kept| {
            let next = change.entry(&kept.entry);
            if change.takes_data_of(&kept.entry) {
                is_less = true;
                gone.extend(match next {
                    Some(_) => kept.give_up_data(space),
                    None => kept.retained.iter().collect(),
                });
            }
            next.is_some_and(|next| {
                kept.entry = next.clone();
                true
            })
        });
        if let Some(mut new) = new {
            for segment in self.metadata_segments(lists) {
                new.named.insert(segment);
                if new.retained.insert(segment) {
                    assert!(self.space.retain(segment), "a checkpoint lies in segments in use");
                }
            }
            new.entry.root = Some(named);
            self.snapshots.kept.push(*new);
        }
        for segment in gone {
            self.space.let_go(segment);
            if self.space.is_retained(segment) {
                self.space.forget_retained_bytes(segment);
            }
        }
        if is_less {
            self.prune_forwards();
            self.snapshots.is_measured = false;
            self.needs_changed();
            self.give_back_once();
            self.wake(Wakes::COLLECTOR);
        }
        self.fix_read();
        self.fix_retained();
    }

    /// Discards the change of an abandoned checkpoint.
    pub(super) fn abandon_change(&mut self) {
        let change = self.snapshots.change.take();
        if change.as_ref().is_some_and(|change| change.rolls_back) {
            let what = "the disk was rolled back in memory only: open the drive again";
            self.poison(&Error::new(ErrorKind::Medium, what));
        }
        if let Some(new) = change.and_then(|change| change.new) {
            new.retained.iter().for_each(|segment| self.space.let_go(segment));
            self.prune_forwards();
        }
        self.fix_read();
        self.fix_retained();
    }

    /// Suspends the host's changes until the snapshot `of` is begun, or until
    /// [`Core::resume_changes`].
    pub(crate) fn suspend_changes(&mut self, of: Uuid) {
        self.snapshots.suspended_for.push(of);
    }

    /// Resumes changes that wait for the snapshot `of`, if that is still so.
    pub(crate) fn resume_changes(&mut self, of: Uuid) {
        self.snapshots.suspended_for.retain(|&other| other != of);
        self.wake(Wakes::PROGRESS);
    }

    /// Returns the oldest snapshot that may be given up before the host is refused: it yields, is
    /// not read, has no clones, and is not the base of a part being received.
    fn oldest_that_yields(&self) -> Option<&Snapshot> {
        let unread = self.snapshots.kept.iter().filter(|kept| kept.readers == 0);
        let mut unread = unread.map(|kept| &kept.entry).filter(|it| it.clones.is_empty());
        unread.find(|entry| entry.yields && !self.is_base_of_part(entry))
    }

    /// Requests the space of the oldest snapshot that yields; returns whether there is one.
    pub(super) fn ask_to_yield(&mut self) -> bool {
        let yields = self.oldest_that_yields().is_some();
        if yields && !self.checkpoints.lacks_space() {
            self.snapshots.must_yield = true;
            self.wake(Wakes::CHECKPOINTER);
            return true;
        }
        false
    }

    /// Returns the snapshot to give up now.
    pub(crate) fn next_to_yield(&mut self) -> Option<Snapshot> {
        let is_wanted = std::mem::take(&mut self.snapshots.must_yield);
        self.oldest_that_yields().filter(|_| is_wanted).cloned()
    }

    /// Notes that a snapshot that yields was given up.
    pub(crate) fn note_given_up(&mut self) {
        self.snapshots.given_up += 1;
    }

    /// Returns whether a snapshot must be given up.
    pub(crate) fn must_yield(&self) -> bool {
        self.snapshots.must_yield
    }

    /// Returns whether the checkpoint being written names snapshots, and whether it names clones.
    pub(crate) fn will_have_snapshots(&self) -> (bool, bool) {
        let list = self.snapshots.next_list();
        (!list.is_empty(), list.iter().any(|entry| !entry.clones.is_empty()))
    }

    /// Returns the bytes that only this snapshot retains, which its deletion would free, and the
    /// bytes that it may share with others.
    pub(crate) fn bytes_retained(&self, kept: &Kept) -> [u64; 2] {
        let segment_bytes = self.superblock.segment_bytes;
        let (mut alone, mut shared) = (0, 0);
        for segment in kept.retained.iter() {
            let needed = self.space.needed_bytes_of(segment, segment_bytes);
            let dead = needed.saturating_sub(self.space.live_bytes_of(segment));
            let is_shared = self.space.retained_by(segment) > 1;
            *if is_shared { &mut shared } else { &mut alone } += u64::from(dead);
        }
        [alone, shared]
    }

    /// Returns the size, in bytes, of the blocks of a snapshot that hold data.
    pub(crate) fn mapped_bytes(entry: &Snapshot) -> u64 {
        entry.mapped_blocks.saturating_mul(BLOCK_BYTES as u64)
    }
}

/// Returns the entry of a snapshot in a list.
fn entry_in(list: &mut [Snapshot], of: SeqNo) -> Result<&mut Snapshot> {
    let entry = list.iter_mut().find(|entry| entry.watermark == of);
    entry.ok_or_else(|| Error::new(ErrorKind::NotFound, "the snapshot was deleted meanwhile"))
}

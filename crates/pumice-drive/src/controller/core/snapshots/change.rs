//! Changes of the list of snapshots, each made by a checkpoint, one at a time; and views.
//!
//! ```text
//! create: begin -> segments with live frames are retained, from this moment
//!         leaves, pages, lists -> segments with metadata join the bitmap -> root, superblocks
//!         end -> the segments with metadata are retained, too
//! delete: begin -> a list without it -> root, superblocks
//!         end -> its segments are no longer retained
//! bookmark: begin -> a list that marks it -> root, superblocks
//!           end -> its segments without metadata are no longer retained
//! roll back: begin -> the map of the snapshot is the map of the disk
//!            end -> frames that only the map before named are dead
//! ```
//!
//! Between begin and end no segment is freed, since that requires the turn. An abandoned checkpoint
//! leaves everything as it was before, except for one that rolls back: the state in memory is then
//! ahead of the medium, so the drive accepts no more writes.

use std::collections::BTreeSet;

use uuid::Uuid;

use super::super::super::space::Space;
use super::super::{Core, Exclusive, Wakes};
use super::{
    Condition, Forwards, Kept, KeptDisk, NewSnapshot, RETAINED_BYTES_MAX, SegmentSet, Snapshots,
};
use crate::base::{Error, ErrorKind, Remedy, Result, SegmentId, SeqNo};
use crate::format::{
    CLONES_MAX, CheckpointAddress, MetadataAddress, RegisteredClone, Root, SNAPSHOTS_MAX, Snapshot,
    Stream, Superblock, TableEntry, check_clone_path,
};

/// Maximum number of clones that a message names.
const NAMED_MAX: usize = 3;

/// An additional action performed by a checkpoint.
pub(crate) enum CheckpointAction {
    /// Nothing.
    None,
    /// Become a snapshot.
    Create {
        /// The properties of the snapshot.
        new: NewSnapshot,
        /// Whether the snapshot must show the moment at which the host's changes were suspended for
        /// it.
        while_suspended: bool,
    },
    /// Write a changed list of snapshots.
    Edit(Edit),
    /// Replace the disk by that of a snapshot, and drop the snapshots taken after it, if the
    /// condition still permits this in the step that replaces the disk.
    RollBack(Box<KeptDisk>, Condition),
}

/// A change of the list of snapshots. Each snapshot is named by its last batch.
pub(crate) enum Edit {
    /// Delete these snapshots.
    Delete(Vec<SeqNo>),
    /// Retain only the map of this snapshot.
    Bookmark(SeqNo),
    /// Add a clone to this snapshot.
    Register(SeqNo, RegisteredClone),
    /// Remove the clone with this identity from this snapshot.
    Forget(SeqNo, Uuid),
}

/// The change that the running checkpoint makes to the list.
pub(super) struct Change {
    /// The list once the checkpoint is complete, oldest first.
    pub(super) list: Vec<Snapshot>,
    /// The last snapshot of the list, if it is being created.
    pub(super) new: Option<Box<Kept>>,
    /// Whether the checkpoint rolls the disk back.
    rolls_back: bool,
}

impl Change {
    pub(super) fn entry(&self, of: &Snapshot) -> Option<&Snapshot> {
        let at = self.list.binary_search_by_key(&of.watermark, |entry| entry.watermark);
        at.ok().and_then(|at| self.list.get(at))
    }

    /// Returns whether the change gives up the data of a snapshot.
    pub(super) fn takes_data_of(&self, of: &Snapshot) -> bool {
        self.entry(of).is_none_or(|entry| entry.is_bookmark != of.is_bookmark)
    }
}

impl Core {
    /// Installs the snapshots that recovery found and the tables of moved frames, and protects the
    /// segments that they need. Must be called before any record is replayed.
    ///
    /// # Errors
    /// `Corrupt` if a piece of a table has an impossible place.
    pub(crate) fn set_snapshots(&mut self, kept: Vec<Kept>, forwards: Forwards) -> Result<()> {
        let Self { snapshots, space, superblock, .. } = self;
        assert!(snapshots.kept.is_empty(), "snapshots are found once");
        for place in forwards.metadata() {
            space.try_add_live(place.segment, place.bytes, superblock.segment_bytes)?;
        }
        (snapshots.kept, snapshots.forwards) = (kept, forwards);
        snapshots.prune_forwards();
        let Snapshots { kept, forwards, .. } = snapshots;
        for kept in kept {
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
        self.snapshots.fix(&mut self.space);
        Ok(())
    }

    /// Returns the superblock and the tables of moved metadata, which are needed to read maps of
    /// snapshots.
    pub(crate) fn to_read_kept(&self) -> (Superblock, Forwards) {
        (self.superblock.clone(), self.snapshots.forwards().of_metadata())
    }

    /// Begins to create a snapshot. The capacity does not change until [`Core::end_snapshot`].
    ///
    /// # Errors
    /// `AlreadyExists`, `NoSpace`, `Busy`, `ReadOnly` or `Poisoned`.
    pub(crate) fn begin_snapshot(&mut self, name: &str) -> Result<()> {
        self.check_writable(0, 0)?;
        self.snapshots.check_new(&self.space, name)?;
        if self.is_resizing() {
            let what = "the drive is being resized: take the snapshot afterwards";
            return Err(Error::new(ErrorKind::Busy, what));
        }
        self.snapshots.creating += 1;
        self.snapshots.lacks_segments = false;
        Ok(())
    }

    /// Ends the creation started by [`Core::begin_snapshot`].
    pub(crate) fn end_snapshot(&mut self) {
        let left = self.snapshots.creating.checked_sub(1);
        self.snapshots.creating = left.expect("a snapshot that was begun ends once");
        // Another snapshot may still wait for the segments.
        if self.snapshots.creating == 0 {
            self.snapshots.wanted_segments = 0;
            self.wake(Wakes::PROGRESS);
        }
    }

    /// Returns whether there is space for another snapshot; `None` if garbage collection may free
    /// it.
    ///
    /// # Errors
    /// `NoSpace` or `Poisoned`.
    pub(crate) fn room_for_snapshot(&mut self) -> Result<Option<()>> {
        // In these cases waiting would not help.
        self.check_writable(0, 0)?;
        self.log.check_medium_full()?;
        let needed = self.segments_for_snapshot();
        // The host leaves this number free until the snapshot has begun.
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
            self.reclaim.makes_room()
        );
        Err(Error::new(ErrorKind::NoSpace, what))
    }

    /// Begins to read a snapshot or a bookmark: until [`Core::end_view`] it is not deleted, and
    /// nothing that it needs is moved. Returns its entry and the current places of frames that were
    /// moved before, or `None` if there is no such snapshot.
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
        self.snapshots.needs_changed();
        self.snapshots.fix(&mut self.space);
        let forwards = self.snapshots.forwards.of(&entry);
        Ok(Some((entry, forwards)))
    }

    /// Ends a view, started by [`Core::begin_view`], of the snapshot with this last batch.
    pub(crate) fn end_view(&mut self, watermark: SeqNo) {
        let mut all = self.snapshots.kept.iter_mut();
        let kept = all.find(|kept| kept.entry.watermark == watermark);
        let kept = kept.expect("a snapshot that is read is there");
        kept.readers = kept.readers.checked_sub(1).expect("a view ends once");
        self.snapshots.fix(&mut self.space);
    }

    /// Checks whether an action is still possible when its checkpoint begins.
    ///
    /// # Errors
    /// `AlreadyExists`, `NotFound`, `Busy`, or `NoSpace`, after which there may be space later.
    pub(crate) fn check_action(&self, action: &CheckpointAction) -> Result<()> {
        match action {
            CheckpointAction::None => Ok(()),
            CheckpointAction::Create { new, while_suspended } => {
                self.snapshots.check_new(&self.space, &new.name)?;
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
                self.snapshots.check_unread(|watermark| watermark > disk.watermark)
            }
        }
    }

    /// Returns the list of snapshots after a change.
    ///
    /// # Errors
    /// The errors of [`Core::check_action`].
    fn edited(&self, edit: &Edit) -> Result<Vec<Snapshot>> {
        let mut list = self.snapshots.list();
        match edit {
            Edit::Delete(gone) => {
                for &watermark in gone {
                    entry_in(&mut list, watermark)?;
                }
                self.check_no_base(gone)?;
                self.snapshots.check_unread(|watermark| gone.contains(&watermark))?;
                list.retain(|entry| !gone.contains(&entry.watermark));
            }
            Edit::Bookmark(of) => {
                let entry = entry_in(&mut list, *of)?;
                self.check_no_base(&[*of])?;
                self.snapshots.check_unread(|watermark| watermark == *of)?;
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

    /// Returns an error if a snapshot whose data would be deleted is the base of a part being
    /// received. A rollback to that snapshot discards the part.
    fn check_no_base(&self, gone: &[SeqNo]) -> Result<()> {
        let entries = self.snapshots.kept.iter().map(|kept| &kept.entry);
        let mut gone = entries.filter(|entry| gone.contains(&entry.watermark));
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

    /// Checks that a clone can be registered.
    ///
    /// # Errors
    /// `InvalidInput`, `AlreadyExists`, `NoSpace`, `Corrupt`; `Busy` while the key is replaced.
    fn check_new_clone(&self, of: SeqNo, clone: &RegisteredClone) -> Result<()> {
        check_clone_path(&clone.path)?;
        if self.exclusive == Some(Exclusive::Rekey) {
            // Data that the clone needs would stay under the earlier key.
            let what = "the key of the drive is being replaced: wait until this ends";
            return Err(Error::new(ErrorKind::Busy, what));
        }
        let kept = &self.snapshots.kept;
        let all = kept.iter().map(|kept| kept.entry.clones.len()).sum::<usize>();
        if all >= CLONES_MAX {
            let what = format!("the drive has {all} clones, the maximum: flatten some");
            return Err(Error::new(ErrorKind::NoSpace, what));
        }
        let Some(kept) = kept.iter().find(|kept| kept.entry.watermark == of) else { return Ok(()) };
        if let Some(damage) = &kept.damage {
            return Err(Error::new(ErrorKind::Corrupt, damage.clone()));
        }
        if kept.entry.is_bookmark {
            let what = format!("{} is a bookmark, which has no data", kept.entry.name);
            return Err(Error::new(ErrorKind::InvalidInput, what));
        }
        if kept.entry.clones.iter().any(|other| other.drive == clone.drive) {
            let what = format!("the clone {} is registered already", clone.path);
            return Err(Error::new(ErrorKind::AlreadyExists, what));
        }
        Ok(())
    }

    /// Records the change that the starting checkpoint makes.
    pub(in super::super) fn begin_change(
        &mut self,
        action: CheckpointAction,
        root: &Root,
        table: &[TableEntry],
    ) {
        assert!(self.snapshots.change.is_none(), "one checkpoint at a time changes snapshots");
        let (list, new) = match action {
            CheckpointAction::None => return self.snapshots.fix_retained(&mut self.space),
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
                let new = Box::new(retain_frames(&mut self.space, new, root, table));
                let mut list = self.snapshots.list();
                list.push(new.entry.clone());
                (list, Some(new))
            }
        };
        self.snapshots.change = Some(Change { list, new, rolls_back: false });
        self.snapshots.needs_changed();
        self.snapshots.fix(&mut self.space);
    }

    /// Returns the bitmap of the segments that the snapshot being created needs; `None` if none is
    /// being created. Leaves and pages of the checkpoint have their places; `lists` are its lists
    /// so far.
    pub(crate) fn retained_bitmap(&self, lists: &[MetadataAddress]) -> Option<Vec<u8>> {
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
    pub(in super::super) fn end_change(
        &mut self,
        named: CheckpointAddress,
        lists: &[MetadataAddress],
    ) {
        let Some(mut change) = self.snapshots.change.take() else {
            return self.snapshots.fix_retained(&mut self.space);
        };
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
            self.snapshots.prune_forwards();
            self.snapshots.is_measured = false;
            self.snapshots.needs_changed();
            self.reclaim.give_back_once();
            self.wake(Wakes::COLLECTOR);
        }
        self.snapshots.fix(&mut self.space);
    }

    /// Discards the change of an abandoned checkpoint.
    pub(in super::super) fn abandon_change(&mut self) {
        let change = self.snapshots.change.take();
        if change.as_ref().is_some_and(|change| change.rolls_back) {
            let what = "the disk was rolled back in memory only: open the drive again";
            self.poison(&Error::new(ErrorKind::Medium, what));
        }
        if let Some(new) = change.and_then(|change| change.new) {
            new.retained.iter().for_each(|segment| self.space.let_go(segment));
            self.snapshots.prune_forwards();
        }
        self.snapshots.fix(&mut self.space);
    }

    /// Suspends the host's changes until the snapshot `of` has begun, or until
    /// [`Core::resume_changes`].
    pub(crate) fn suspend_changes(&mut self, of: Uuid) {
        self.snapshots.suspended_for.push(of);
    }

    /// Resumes changes that wait for the snapshot `of`, if any still do.
    pub(crate) fn resume_changes(&mut self, of: Uuid) {
        self.snapshots.suspended_for.retain(|&other| other != of);
        self.wake(Wakes::PROGRESS);
    }

    /// Returns the oldest snapshot that may be given up before the host is refused: it yields, is
    /// not being read, has no clones, and is not the base of a part being received.
    fn oldest_that_yields(&self) -> Option<&Snapshot> {
        let unread = self.snapshots.kept.iter().filter(|kept| kept.readers == 0);
        let mut unread = unread.map(|kept| &kept.entry).filter(|it| it.clones.is_empty());
        unread.find(|entry| entry.yields && !self.is_base_of_part(entry))
    }

    /// Requests the space of the oldest snapshot that yields. Returns whether one exists.
    pub(in super::super) fn ask_to_yield(&mut self) -> bool {
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

    /// Records that a snapshot that yields was given up.
    pub(crate) fn note_given_up(&mut self) {
        self.snapshots.given_up += 1;
    }
}

impl Snapshots {
    /// Checks that a snapshot with a given name can be added.
    ///
    /// # Errors
    /// `AlreadyExists` or `NoSpace`.
    fn check_new(&self, space: &Space, name: &str) -> Result<()> {
        if self.find(name).is_some() {
            let what = format!("a snapshot named {name} exists already");
            return Err(Error::new(ErrorKind::AlreadyExists, what));
        }
        let bitmap_bytes = space.segment_count() as usize / 8;
        let count = self.kept.len();
        if count >= SNAPSHOTS_MAX || (count + 1) * bitmap_bytes > RETAINED_BYTES_MAX {
            let what = format!("the drive has {count} snapshots, the maximum: delete some");
            return Err(Error::new(ErrorKind::NoSpace, what));
        }
        Ok(())
    }

    /// Returns an error if a snapshot to be deleted is being read or has clones.
    fn check_unread(&self, goes: impl Fn(SeqNo) -> bool) -> Result<()> {
        self.check_uncloned(&goes)?;
        let mut read = self.kept.iter().filter(|kept| kept.readers > 0);
        match read.find(|kept| goes(kept.entry.watermark)) {
            None => Ok(()),
            Some(kept) => {
                let what = format!("the snapshot {} is being read", kept.entry.name);
                Err(Error::new(ErrorKind::Busy, what))
            }
        }
    }

    /// Returns an error if a snapshot to be deleted has clones.
    fn check_uncloned(&self, goes: &impl Fn(SeqNo) -> bool) -> Result<()> {
        let mut cloned = self.kept.iter().map(|kept| &kept.entry);
        let cloned = cloned.find(|entry| goes(entry.watermark) && !entry.clones.is_empty());
        let Some(entry) = cloned else { return Ok(()) };
        let named = entry.clones.iter().take(NAMED_MAX).map(|clone| clone.path.as_str());
        let mut clones = named.collect::<Vec<_>>().join(", ");
        if let Some(more) = entry.clones.len().checked_sub(NAMED_MAX).filter(|&more| more > 0) {
            clones += &format!(" and {more} more");
        }
        let what = format!(
            "the snapshot {} is the origin of {clones}: flatten each to make it independent",
            entry.name
        );
        Err(Error::new(ErrorKind::Busy, what).with_remedy(Remedy::Forget))
    }

    /// Checks that snapshots allow the segments from `end` onwards to be emptied.
    ///
    /// # Errors
    /// `Busy` while a snapshot is taken; `InvalidInput`, with the remedy.
    pub(crate) fn check_shrink(&self, end: u32) -> Result<()> {
        if self.creating > 0 {
            let what = "the capacity cannot shrink while a snapshot is taken";
            return Err(Error::new(ErrorKind::Busy, what));
        }
        let invalid = |what: String| Err(Error::new(ErrorKind::InvalidInput, what));
        for kept in &self.kept {
            let name = &kept.entry.name;
            if kept.damage.is_some() {
                return invalid(format!(
                    "the capacity cannot shrink while snapshot {name} is damaged: delete it first"
                ));
            }
            let is_gone = |segment: SegmentId| segment.0 >= end;
            if !kept.entry.clones.is_empty() && kept.retained.iter().any(is_gone) {
                return invalid(format!(
                    "the capacity cannot shrink as far while clones read from snapshot {name} \
                     beyond the new end: flatten them first"
                ));
            }
        }
        Ok(())
    }

    /// Checks that no snapshot is being read: its frames must stay in place for a reader.
    ///
    /// # Errors
    /// `Busy`.
    pub(crate) fn check_no_readers(&self, what: &str) -> Result<()> {
        match self.kept.iter().find(|kept| kept.readers > 0) {
            None => Ok(()),
            Some(kept) => {
                let name = &kept.entry.name;
                let what = format!("{what} while snapshot {name} is read");
                Err(Error::new(ErrorKind::Busy, what))
            }
        }
    }

    /// Checks that snapshots allow everything to be moved.
    ///
    /// # Errors
    /// `InvalidInput`, with the remedy.
    pub(crate) fn check_rekey(&self) -> Result<()> {
        let invalid = |what: String| Err(Error::new(ErrorKind::InvalidInput, what));
        for kept in &self.kept {
            let name = &kept.entry.name;
            if kept.damage.is_some() {
                return invalid(format!(
                    "the key cannot be replaced while snapshot {name} is damaged: delete it first"
                ));
            }
            if !kept.entry.clones.is_empty() {
                return invalid(format!(
                    "the key cannot be replaced while clones read from snapshot {name}: flatten \
                     them first"
                ));
            }
        }
        Ok(())
    }

    /// Records that the disk is rolled back to a snapshot after batch `last`.
    pub(super) fn begin_rollback(&mut self, watermark: SeqNo, last: SeqNo) {
        assert!(self.change.is_none(), "one checkpoint at a time changes snapshots");
        self.needs_changed();
        self.rolled_back = last;
        let mut list = self.list();
        list.retain(|entry| entry.watermark <= watermark);
        self.change = Some(Change { list, new: None, rolls_back: true });
    }

    /// Returns whether the checkpoint being written names snapshots, and whether it names clones.
    pub(crate) fn will_be_listed(&self) -> (bool, bool) {
        let list = self.next_list();
        (!list.is_empty(), list.iter().any(|entry| !entry.clones.is_empty()))
    }
}

/// Retains every segment in which the map names a frame, that is, every segment with live
/// bytes.
fn retain_frames(space: &mut Space, new: NewSnapshot, root: &Root, table: &[TableEntry]) -> Kept {
    let mut retained = SegmentSet::default();
    let mut live_bytes = 0;
    for (segment, entry) in (0..).map(SegmentId).zip(table) {
        if !entry.in_use || entry.stream == Stream::Meta || entry.live_bytes == 0 {
            continue;
        }
        live_bytes += u64::from(entry.live_bytes);
        retained.insert(segment);
        assert!(space.retain(segment), "live data lies in segments in use");
        space.note_retained_live(segment);
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

/// Returns the entry of a snapshot in a list.
fn entry_in(list: &mut [Snapshot], of: SeqNo) -> Result<&mut Snapshot> {
    let entry = list.iter_mut().find(|entry| entry.watermark == of);
    let gone = "there is no snapshot of this name any more: it was deleted in the meantime";
    entry.ok_or_else(|| Error::new(ErrorKind::NotFound, gone))
}

//! Snapshots, as far as they are state: which there are, which segments each needs, and the one
//! that the running checkpoint makes or deletes.
//!
//! ```text
//! create: begin_checkpoint -> segments with live frames are retained, from this moment
//!         leaves, pages, lists -> segments with metadata join the bitmap -> root, superblocks
//!         end_checkpoint -> the segments with metadata are retained, too
//! delete: begin_checkpoint -> a list without it -> root, superblocks
//!         end_checkpoint -> its segments are let go
//! bookmark: begin_checkpoint -> a list that says so -> root, superblocks
//!           end_checkpoint -> its segments without metadata are let go
//! roll back: begin_checkpoint -> the map of the snapshot is the map of the disk
//!            end_checkpoint -> what only the map before named is dead
//! ```
//!
//! Between begin and end no segment is freed, since that takes the turn. A checkpoint that is
//! abandoned leaves everything as it was before, except for one that rolls back: what is in memory
//! is ahead of the medium then, so the drive takes no more writes.

use std::collections::BTreeSet;

use uuid::Uuid;

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

/// What is asked of a checkpoint beside being one.
pub(crate) enum Wish {
    /// Nothing.
    None,
    /// Become a snapshot.
    Create(NewSnapshot),
    /// Be the first without the snapshots of these batches.
    Delete(Vec<SeqNo>),
    /// Be the first that keeps only the map of this snapshot.
    Bookmark(SeqNo),
    /// Be of a disk as a snapshot has it, and the first without those taken after it, if that is
    /// possible in the step in which the disk becomes another.
    RollBack(Box<KeptDisk>, Condition),
    /// Be the first that lists a clone of the snapshot of this batch.
    Register(SeqNo, RegisteredClone),
    /// Be the first without a clone of this identity of that snapshot.
    Forget(SeqNo, Uuid),
}

/// What the one who takes a snapshot decides about it.
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
    /// Its entry in the list.
    pub(crate) entry: Snapshot,
    /// Every segment that held something of it when it was taken: what its root says. What is
    /// named there may have been moved since. Of a bookmark those of its map.
    pub(crate) named: SegmentSet,
    /// Every segment that holds something of it now.
    pub(crate) retained: SegmentSet,
    /// What is wrong with its root or its bitmap: then every segment that was in use is retained.
    pub(crate) damage: Option<String>,
    /// Views of it that are open.
    pub(crate) readers: u32,
}

impl Kept {
    /// Returns whether a view or a clone reads it: then what it needs stays where it is.
    pub(super) fn is_read(&self) -> bool {
        self.readers > 0 || !self.entry.clones.is_empty()
    }
}

/// What the running checkpoint changes.
pub(super) enum Change {
    Create(Box<Kept>),
    Delete(Vec<SeqNo>),
    Bookmark(SeqNo),
    /// The disk is that of this batch from now on; snapshots after it go.
    RollBack(SeqNo),
    /// The snapshot of this batch has these clones.
    Clones(SeqNo, Vec<RegisteredClone>),
}

impl Change {
    /// Returns whether a snapshot goes.
    fn deletes(&self, entry: &Snapshot) -> bool {
        match self {
            Self::Create(_) | Self::Bookmark(_) | Self::Clones(..) => false,
            Self::Delete(gone) => gone.contains(&entry.watermark),
            Self::RollBack(to) => entry.watermark > *to,
        }
    }
}

/// The snapshots of one drive.
#[derive(Default)]
pub(crate) struct Snapshots {
    /// Oldest first.
    kept: Vec<Kept>,
    change: Option<Change>,
    /// Checkpoints begun since the opening that were to become snapshots.
    begun: u64,
    /// Snapshots being made, from the first check of whether that is possible.
    creating: u32,
    /// Free segments that one needs, if they are too few.
    wanted_segments: u32,
    /// Those who hold back the host's changes.
    holds: u32,
    /// They hold them back until `begun` is this.
    held_until: u64,
    /// The host needs the space of a snapshot that yields.
    must_yield: bool,
    /// Snapshots given up for that since the opening.
    given_up: u64,
    /// Whether it is known, as far as it can be, what they hold of each segment.
    is_measured: bool,
    /// The last batch before the disk last became that of one; 0 if it never did.
    rolled_back: SeqNo,
}

impl Snapshots {
    /// Returns the snapshots, oldest first.
    pub(crate) fn kept(&self) -> &[Kept] {
        &self.kept
    }

    /// Returns the snapshots, and the one that is being made, to change what they retain.
    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut Kept> {
        let new = match &mut self.change {
            Some(Change::Create(new)) => Some(&mut **new),
            _ => None,
        };
        self.kept.iter_mut().chain(new)
    }

    /// Returns the snapshots, and the one that is being made, oldest first.
    pub(crate) fn all(&self) -> impl DoubleEndedIterator<Item = &Kept> {
        let new = match &self.change {
            Some(Change::Create(new)) => Some(&**new),
            _ => None,
        };
        self.kept.iter().chain(new)
    }

    /// Returns the last batch of the newest snapshot, one that is being made included; 0 without.
    pub(super) fn newest_watermark(&self) -> SeqNo {
        self.all().next_back().map_or(SeqNo(0), |kept| kept.entry.watermark)
    }

    /// Returns whether a bookmark is compared with: what it names is not retained, and has to be
    /// where it was when that began.
    pub(super) fn bookmarks_are_read(&self) -> bool {
        self.kept.iter().any(|kept| kept.entry.is_bookmark && kept.readers > 0)
    }

    /// Returns whether the running checkpoint changes the list.
    pub(super) fn is_changing(&self) -> bool {
        self.change.is_some()
    }

    /// Returns whether it is known what they hold of each segment.
    pub(super) fn is_measured(&self) -> bool {
        self.is_measured
    }

    /// Notes whether it is known what they hold of each segment.
    pub(super) fn set_measured(&mut self, is_measured: bool) {
        self.is_measured = is_measured;
    }

    /// Returns the free segments that a snapshot to be made waits for.
    #[inline]
    pub(crate) fn wanted_segments(&self) -> u32 {
        self.wanted_segments
    }

    /// Returns the number of checkpoints begun since the opening that were to become snapshots.
    pub(crate) fn begun(&self) -> u64 {
        self.begun
    }

    /// Notes that the disk is that of a snapshot from now on, after batch `last`.
    pub(super) fn begin_rollback(&mut self, watermark: SeqNo, last: SeqNo) {
        assert!(self.change.is_none(), "one checkpoint at a time changes snapshots");
        self.rolled_back = last;
        self.change = Some(Change::RollBack(watermark));
    }

    /// Returns whether one is being taken, from the first check of whether that is possible.
    pub(super) fn are_taken(&self) -> bool {
        self.creating > 0
    }

    /// Sets the last batch before the disk last became that of a snapshot.
    pub(super) fn set_rolled_back(&mut self, last: SeqNo) {
        self.rolled_back = last;
    }

    /// Returns the last batch before the disk last became that of a snapshot; 0 if it never did.
    pub(crate) fn rolled_back(&self) -> SeqNo {
        self.rolled_back
    }

    /// Returns how many snapshots that yield were given up since the opening.
    pub(crate) fn given_up(&self) -> u64 {
        self.given_up
    }

    /// Returns the snapshot of a name.
    pub(crate) fn find(&self, name: &str) -> Option<&Kept> {
        self.kept.iter().find(|kept| kept.entry.name == name)
    }

    /// Returns whether the host's changes wait: they do from [`Core::hold_changes`] until the
    /// next snapshot is begun.
    #[inline]
    pub(crate) fn is_held(&self) -> bool {
        self.holds > 0 && self.begun < self.held_until
    }

    /// Returns the list as it is when the running checkpoint is complete.
    fn next_list(&self) -> Vec<Snapshot> {
        let stays = |entry: &&Snapshot| !self.change.as_ref().is_some_and(|it| it.deletes(entry));
        let new = match &self.change {
            Some(Change::Create(new)) => Some(&new.entry),
            _ => None,
        };
        let all = self.kept.iter().map(|kept| &kept.entry).filter(stays).chain(new);
        let mut list: Vec<Snapshot> = all.cloned().collect();
        for entry in &mut list {
            match &self.change {
                Some(Change::Bookmark(of)) if *of == entry.watermark => {
                    *entry = entry.as_bookmark();
                }
                Some(Change::Clones(of, clones)) if *of == entry.watermark => {
                    entry.clones.clone_from(clones);
                }
                _ => {}
            }
        }
        list
    }
}

impl Core {
    /// Returns the snapshots.
    pub(crate) fn snapshots(&self) -> &Snapshots {
        &self.snapshots
    }

    /// Puts the snapshots in place that recovery found, with the tables of what was moved, and
    /// protects what they need. To be called before anything is replayed.
    ///
    /// # Errors
    /// `Corrupt` if a piece of a table is where there can be none.
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
                    space.forget_held(segment);
                }
            }
        }
        self.fix_read();
        self.fix_retained();
        Ok(())
    }

    /// Drops what no snapshot needs of the tables of what was moved.
    fn prune_forwards(&mut self) {
        let kept = &self.snapshots.kept;
        let names = |segment, watermark| {
            let at = kept.binary_search_by_key(&watermark, |kept| kept.entry.watermark);
            at.ok().and_then(|at| kept.get(at)).is_some_and(|kept| kept.named.contains(segment))
        };
        self.forwards.prune(kept.iter().map(|kept| &kept.entry), names);
    }

    /// Begins to make a snapshot: from now on the capacity does not change.
    ///
    /// # Errors
    /// `AlreadyExists`, `NoSpace`, `Busy`, `ReadOnly`, `Poisoned`.
    pub(crate) fn begin_snapshot(&mut self, name: &str) -> Result<()> {
        self.check_writable(0, 0)?;
        self.check_new_snapshot(name)?;
        if self.is_resizing {
            let what = "the drive is being resized: take the snapshot when that has ended";
            return Err(Error::new(ErrorKind::Busy, what));
        }
        self.snapshots.creating += 1;
        Ok(())
    }

    /// Ends what [`Core::begin_snapshot`] began.
    pub(crate) fn end_snapshot(&mut self) {
        let left = self.snapshots.creating.checked_sub(1);
        self.snapshots.creating = left.expect("a snapshot that was begun ends once");
        // Another one may still wait for them.
        if self.snapshots.creating == 0 {
            self.snapshots.wanted_segments = 0;
        }
    }

    fn check_new_snapshot(&self, name: &str) -> Result<()> {
        if self.snapshots.find(name).is_some() {
            let what = format!("there is a snapshot named {name} already");
            return Err(Error::new(ErrorKind::AlreadyExists, what));
        }
        let bitmap_bytes = self.space.segment_count() as usize / 8;
        let count = self.snapshots.kept.len();
        if count >= SNAPSHOTS_MAX || (count + 1) * bitmap_bytes > RETAINED_BYTES_MAX {
            let what = format!("the drive has {count} snapshots, the most it can: delete some");
            return Err(Error::new(ErrorKind::NoSpace, what));
        }
        Ok(())
    }

    /// Returns whether there is room for one snapshot more; `None` if garbage collection may make
    /// it.
    ///
    /// # Errors
    /// `NoSpace`, `Poisoned`.
    pub(crate) fn room_for_snapshot(&mut self) -> Result<Option<()>> {
        // Nothing would come of waiting.
        self.check_writable(0, 0)?;
        self.log.check_medium_full()?;
        let needed = self.segments_for_snapshot();
        if self.space.free_count() >= needed {
            return Ok(Some(()));
        }
        self.snapshots.wanted_segments = needed;
        self.wake(Wakes::COLLECTOR);
        if self.can_gain() {
            return Ok(None);
        }
        let what = format!(
            "a snapshot needs {needed} free segments of {} MiB, there are {}: delete snapshots, \
             trim, or enlarge the drive with `pumice resize --capacity`",
            self.superblock.segment_bytes >> 20,
            self.space.free_count()
        );
        Err(Error::new(ErrorKind::NoSpace, what))
    }

    /// Begins to read a snapshot or a bookmark: until [`Core::end_view`] it is not deleted, and
    /// nothing that it needs is moved. Returns its entry, and where frames are that were
    /// moved before; `None` if there is no such snapshot.
    ///
    /// # Errors
    /// `Busy` if it is being deleted.
    pub(crate) fn begin_view(&mut self, name: &str) -> Result<Option<(Snapshot, Forwards)>> {
        let Snapshots { kept, change, .. } = &mut self.snapshots;
        let Some(kept) = kept.iter_mut().find(|kept| kept.entry.name == name) else {
            return Ok(None);
        };
        let is_bookmarked =
            matches!(change, Some(Change::Bookmark(of)) if *of == kept.entry.watermark);
        if is_bookmarked || change.as_ref().is_some_and(|change| change.deletes(&kept.entry)) {
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

    /// Ends what [`Core::begin_view`] began for the snapshot of this batch.
    pub(crate) fn end_view(&mut self, watermark: SeqNo) {
        let mut all = self.snapshots.kept.iter_mut();
        let kept = all.find(|kept| kept.entry.watermark == watermark);
        let kept = kept.expect("a snapshot that is read is there");
        kept.readers = kept.readers.checked_sub(1).expect("a view ends once");
        self.fix_read();
        self.fix_retained();
    }

    /// Returns whether a wish can still be met, at the moment at which its checkpoint begins.
    ///
    /// # Errors
    /// `AlreadyExists`, `NotFound`, `Busy`, `NoSpace`: with the last, there may be room again.
    pub(crate) fn check_wish(&self, wish: &Wish) -> Result<()> {
        match wish {
            Wish::None => Ok(()),
            Wish::Create(new) => {
                self.check_new_snapshot(&new.name)?;
                if self.space.free_count() < self.segments_for_snapshot() {
                    let what = "the drive was filled while the snapshot was taken";
                    return Err(Error::new(ErrorKind::NoSpace, what));
                }
                Ok(())
            }
            Wish::Delete(gone) => {
                self.check_kept(gone)?;
                self.check_no_base(gone)?;
                self.check_unread(|watermark| gone.contains(&watermark))
            }
            Wish::Bookmark(of) => {
                self.check_kept(&[*of])?;
                self.check_no_base(&[*of])?;
                self.check_unread(|watermark| watermark == *of)
            }
            Wish::RollBack(disk, is_possible) => {
                is_possible()?;
                self.check_kept(&[disk.watermark])?;
                self.check_unread(|watermark| watermark > disk.watermark)
            }
            Wish::Register(watermark, clone) => {
                self.check_kept(&[*watermark])?;
                self.check_new_clone(*watermark, clone)
            }
            Wish::Forget(watermark, _) => self.check_kept(&[*watermark]),
        }
    }

    fn check_kept(&self, wanted: &[SeqNo]) -> Result<()> {
        let kept: BTreeSet<_> =
            self.snapshots.kept.iter().map(|kept| kept.entry.watermark).collect();
        if wanted.iter().all(|watermark| kept.contains(watermark)) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::NotFound, "the snapshot was deleted meanwhile"))
    }

    /// Returns an error if a part is received onto a snapshot whose data is to go: rolling back to
    /// it gives the part up.
    fn check_no_base(&self, gone: &[SeqNo]) -> Result<()> {
        let mut gone = self
            .snapshots
            .kept
            .iter()
            .map(|kept| &kept.entry)
            .filter(|entry| gone.contains(&entry.watermark));
        let Some(base) = gone.find(|entry| self.is_base_of_part(entry)) else { return Ok(()) };
        let what = format!(
            "the disk holds a part of a snapshot that was sent since {}: receive the rest, or give \
             it up with `pumice snapshot rollback`",
            base.name
        );
        Err(Error::new(ErrorKind::Busy, what))
    }

    fn is_base_of_part(&self, entry: &Snapshot) -> bool {
        self.superblock.receiving.is_some_and(|part| part.base == Some(entry.guid))
    }

    /// Returns an error if a snapshot is read, or has clones, that is to go.
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

    /// Notes what the checkpoint that begins changes.
    pub(super) fn begin_change(&mut self, wish: Wish, root: &Root, table: &[TableEntry]) {
        assert!(self.snapshots.change.is_none(), "one checkpoint at a time changes snapshots");
        let change = match wish {
            Wish::None => None,
            Wish::Delete(gone) => Some(Change::Delete(gone)),
            Wish::Bookmark(of) => Some(Change::Bookmark(of)),
            Wish::RollBack(..) => unreachable!("the disk is another before its root is made"),
            Wish::Register(..) | Wish::Forget(..) => self.begin_clones(wish),
            Wish::Create(new) => {
                self.snapshots.begun += 1;
                // The host's changes are no longer held back.
                self.wake(Wakes::PROGRESS);
                Some(Change::Create(Box::new(self.retain_frames(new, root, table))))
            }
        };
        self.snapshots.change = change;
        if self.snapshots.is_changing() {
            self.needs_changed();
        }
        self.fix_retained();
    }

    /// Returns the list of snapshots as it is when the running checkpoint is complete.
    pub(super) fn next_snapshots(&self) -> Vec<Snapshot> {
        self.snapshots.next_list()
    }

    /// Retains every segment in which the map names a frame, which counts as live there.
    fn retain_frames(&mut self, new: NewSnapshot, root: &Root, table: &[TableEntry]) -> Kept {
        let mut retained = SegmentSet::default();
        let mut live_bytes = 0;
        for (segment, entry) in (0..).map(SegmentId).zip(table) {
            if !entry.in_use || entry.stream == Stream::Meta || entry.live_bytes == 0 {
                continue;
            }
            live_bytes += u64::from(entry.live_bytes);
            retained.insert(segment);
            assert!(self.space.retain(segment), "what is live is in segments in use");
            self.space.hold_live(segment);
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

    /// Returns the bitmap of what the snapshot that is being made needs; `None` if there is none.
    /// Leaves and pages of the checkpoint have their places; `lists` are its lists so far.
    pub(crate) fn retained_bitmap(&mut self, lists: &[MetadataAddress]) -> Option<Vec<u8>> {
        let more = self.metadata_segments(lists);
        let segment_count = self.space.segment_count();
        let Some(Change::Create(new)) = &self.snapshots.change else { return None };
        let mut all = new.named.clone();
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

    /// Makes what the checkpoint changed so: both superblocks name it as `named`. To be called
    /// before what only the checkpoint before named is released.
    pub(super) fn end_change(&mut self, named: CheckpointAddress, lists: &[MetadataAddress]) {
        match self.snapshots.change.take() {
            None => {}
            Some(Change::Create(mut new)) => {
                for segment in self.metadata_segments(lists) {
                    new.named.insert(segment);
                    if new.retained.insert(segment) {
                        assert!(self.space.retain(segment), "a checkpoint lies in segments in use");
                    }
                }
                new.entry.root = Some(named);
                self.snapshots.kept.push(*new);
            }
            Some(Change::Clones(watermark, clones)) => self.end_clones(watermark, clones),
            Some(change) => {
                let mut gone = self.give_up_data(&change);
                let is_gone = |kept: &mut Kept| change.deletes(&kept.entry);
                let deleted = self.snapshots.kept.extract_if(.., is_gone);
                gone.extend(deleted.flat_map(|kept| kept.retained.iter().collect::<Vec<_>>()));
                for segment in gone {
                    self.space.let_go(segment);
                    if self.space.is_retained(segment) {
                        self.space.forget_held(segment);
                    }
                }
                self.prune_forwards();
                self.snapshots.is_measured = false;
                self.give_back_once();
                self.wake(Wakes::COLLECTOR);
            }
        }
        self.fix_retained();
    }

    /// Makes a snapshot a bookmark, if that is the change; returns the segments that it needs no
    /// more.
    fn give_up_data(&mut self, change: &Change) -> Vec<SegmentId> {
        let &Change::Bookmark(of) = change else { return Vec::new() };
        let Self { snapshots, space, .. } = self;
        let kept = snapshots.kept.iter_mut().find(|kept| kept.entry.watermark == of);
        let kept = kept.expect("a snapshot that is given up was there when that began");
        let is_of_map = |segment: &SegmentId| space.stream(*segment) == Stream::Meta;
        let (map, gone): (Vec<_>, Vec<_>) = kept.retained.iter().partition(is_of_map);
        let mut retained = SegmentSet::default();
        map.into_iter().for_each(|segment| {
            retained.insert(segment);
        });
        kept.entry = kept.entry.as_bookmark();
        (kept.named, kept.retained) = (retained.clone(), retained);
        gone
    }

    /// Forgets what a checkpoint that was abandoned would have changed.
    pub(super) fn abandon_change(&mut self) {
        match self.snapshots.change.take() {
            Some(Change::Create(new)) => {
                new.retained.iter().for_each(|segment| self.space.let_go(segment));
                self.prune_forwards();
            }
            Some(Change::RollBack(_)) => {
                let what = "the disk was rolled back in memory only: open the drive again";
                self.poison(&Error::new(ErrorKind::Medium, what));
            }
            Some(Change::Clones(..)) => self.fix_read(),
            Some(Change::Delete(_) | Change::Bookmark(_)) | None => {}
        }
        self.fix_retained();
    }

    /// Holds back the host's changes until the next snapshot is begun, or until
    /// [`Core::let_changes_go`].
    pub(crate) fn hold_changes(&mut self) {
        self.snapshots.holds += 1;
        self.snapshots.held_until = self.snapshots.begun + 1;
    }

    /// Ends what [`Core::hold_changes`] began.
    pub(crate) fn let_changes_go(&mut self) {
        let left = self.snapshots.holds.checked_sub(1);
        self.snapshots.holds = left.expect("changes that were held are let go once");
        self.wake(Wakes::PROGRESS);
    }

    /// Returns the oldest snapshot that is given up before the host is refused: none that is read,
    /// that has clones, or that a part is received onto.
    fn oldest_that_yields(&self) -> Option<&Snapshot> {
        let unread = self.snapshots.kept.iter().filter(|kept| kept.readers == 0);
        let mut unread = unread.map(|kept| &kept.entry).filter(|it| it.clones.is_empty());
        unread.find(|entry| entry.yields && !self.is_base_of_part(entry))
    }

    /// Asks for the space of the oldest snapshot that yields; returns whether there is one.
    pub(super) fn ask_to_yield(&mut self) -> bool {
        let yields = self.oldest_that_yields().is_some();
        if yields && !self.checkpoints.lacks_space() {
            self.snapshots.must_yield = true;
            self.wake(Wakes::CHECKPOINTER);
            return true;
        }
        false
    }

    /// Returns the snapshot that is to be given up now.
    pub(crate) fn next_to_yield(&mut self) -> Option<Snapshot> {
        let is_wanted = std::mem::take(&mut self.snapshots.must_yield);
        self.oldest_that_yields().filter(|_| is_wanted).cloned()
    }

    /// Notes that a snapshot that yields was given up.
    pub(crate) fn note_given_up(&mut self) {
        self.snapshots.given_up += 1;
    }

    /// Returns whether a snapshot is to be given up.
    pub(crate) fn must_yield(&self) -> bool {
        self.snapshots.must_yield
    }

    /// Returns whether the checkpoint that is being written names snapshots, and clones of them.
    pub(crate) fn will_have_snapshots(&self) -> (bool, bool) {
        let list = self.snapshots.next_list();
        (!list.is_empty(), list.iter().any(|entry| !entry.clones.is_empty()))
    }

    /// Returns the bytes that only one snapshot holds, which its deletion gives back, and those
    /// that it may hold together with others.
    pub(crate) fn bytes_held(&self, kept: &Kept) -> [u64; 2] {
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

    /// Returns the bytes of the disk that blocks with data or a fill of a snapshot cover.
    pub(crate) fn mapped_bytes(entry: &Snapshot) -> u64 {
        entry.mapped_blocks.saturating_mul(BLOCK_BYTES as u64)
    }
}

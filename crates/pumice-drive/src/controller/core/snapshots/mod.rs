//! The snapshots of a drive: the list, the segments that each needs, the tables that lead to moved
//! frames, and the change that the running checkpoint makes.
//!
//! Other parts of the core see none of the fields. Calls that also depend on space, the log or the
//! map are methods of the core.

mod change;
mod forwards;
mod retained;
mod rollback;
mod segment_set;

use uuid::Uuid;

use super::super::space::Space;
use crate::base::{SegmentId, SeqNo};
use crate::format::{RegisteredClone, Snapshot, Stream};

use change::Change;
pub(crate) use change::{CheckpointAction, Edit};
pub(crate) use forwards::{Forwards, PendingPiece};
pub(crate) use retained::{Emptying, MetadataCopy, RetainedMove};
pub use rollback::Condition;
pub(crate) use rollback::KeptDisk;
pub(crate) use segment_set::SegmentSet;

/// Tables up to this size stay in memory regardless of the map cache: about a million frames.
const FORWARD_BYTES_MIN: usize = 64 << 20;

/// Share of a segment by which the tables may grow before garbage collection leaves retained
/// segments as they are until a checkpoint has written the tables.
const DIRTY_DIVISOR: u32 = 4;

/// Maximum number of bytes of bitmaps that a drive stores in memory: 1,024 snapshots up to 16 TiB
/// in segments of 32 MiB.
pub(crate) const RETAINED_BYTES_MAX: usize = 64 << 20;

/// The properties of a new snapshot, chosen by the caller.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct NewSnapshot {
    /// Its name; see [`check_snapshot_name`](crate::format::check_snapshot_name).
    pub name: String,
    /// Its identity, drawn at random.
    pub guid: Uuid,
    /// The time in seconds since 1970, for display.
    pub created_seconds: u64,
    /// Whether the snapshot may be deleted before a write is refused for lack of space. The oldest
    /// such snapshot is deleted first.
    pub yields: bool,
}

/// A snapshot of an open drive, or a bookmark.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    /// The snapshot's entry in the list.
    pub(crate) entry: Snapshot,
    /// Every segment that contained data or metadata of the snapshot when it was taken, according
    /// to its root. The frames named there may have been moved since. For a bookmark, the segments
    /// of its map.
    pub(crate) named: SegmentSet,
    /// Every segment that contains data or metadata of the snapshot now.
    pub(crate) retained: SegmentSet,
    /// Damage to its root or its bitmap, if any; every segment that was in use is then retained.
    pub(crate) damage: Option<String>,
    /// Open views of it.
    pub(crate) readers: u32,
}

impl Kept {
    /// Returns whether a view or a clone reads it. If so, the frames that it needs stay in place.
    fn is_read(&self) -> bool {
        self.readers > 0 || !self.entry.clones.is_empty()
    }

    /// Returns the bytes that only this snapshot retains, which its deletion would free, and the
    /// bytes that it may share with other snapshots.
    pub(crate) fn bytes_retained(&self, space: &Space, segment_bytes: u32) -> [u64; 2] {
        let (mut alone, mut shared) = (0, 0);
        for segment in self.retained.iter() {
            let needed = space.needed_bytes_of(segment, segment_bytes);
            let dead = needed.saturating_sub(space.live_bytes_of(segment));
            let is_shared = space.retained_by(segment) > 1;
            *if is_shared { &mut shared } else { &mut alone } += u64::from(dead);
        }
        [alone, shared]
    }

    /// Retains only the map. Returns the segments that are no longer needed.
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

/// The snapshots of one drive.
#[derive(Default)]
pub(crate) struct Snapshots {
    /// The snapshots, oldest first.
    kept: Vec<Kept>,
    change: Option<Change>,
    /// Number of checkpoints started since the opening to create snapshots.
    begun: u64,
    /// Number of snapshots being created, from the first check of whether that is possible.
    creating: u32,
    /// Number of free segments that a new snapshot needs, which the host leaves free until it has
    /// begun; 0 if none.
    wanted_segments: u32,
    /// Whether that number of free segments cannot be gained.
    lacks_segments: bool,
    /// Identities of the snapshots to be taken for which the host's changes are suspended.
    suspended_for: Vec<Uuid>,
    /// Whether the host needs the space of a snapshot that yields.
    must_yield: bool,
    /// Number of snapshots given up for the host since the opening.
    given_up: u64,
    /// Whether the bytes that the snapshots retain of each segment are known, as far as they can
    /// be.
    is_measured: bool,
    /// The last batch before the disk was last rolled back to a snapshot; 0 if it never was.
    rolled_back: SeqNo,
    forwards: Forwards,
    /// Number of changes, for any reason, in the segments that snapshots need.
    needs: u64,
    /// Whether the disk is about to be rolled back: frames that snapshots need stay in place.
    is_rolling_back: bool,
    /// Maximum number of bytes that the tables of moved frames may occupy in memory.
    forward_bytes_max: usize,
    segment_bytes: u32,
}

impl Snapshots {
    /// Creates the state of a drive without snapshots.
    pub(super) fn new(segment_bytes: u32, map_cache_bytes: usize) -> Self {
        let forward_bytes_max = map_cache_bytes.max(FORWARD_BYTES_MIN);
        Self { segment_bytes, forward_bytes_max, ..Self::default() }
    }

    /// Returns the forwarding tables.
    pub(crate) fn forwards(&self) -> &Forwards {
        &self.forwards
    }

    /// Returns the snapshots, oldest first.
    pub(crate) fn kept(&self) -> &[Kept] {
        &self.kept
    }

    /// Returns the snapshots, and the one being created, for changes of the segments that they
    /// retain.
    fn all_mut(&mut self) -> impl Iterator<Item = &mut Kept> {
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
    fn newest_watermark(&self) -> SeqNo {
        self.all().next_back().map_or(SeqNo(0), |kept| kept.entry.watermark)
    }

    /// Returns whether a comparison reads a bookmark. The frames that the bookmark names are not
    /// retained, and must stay where they were when the comparison began.
    fn bookmarks_are_read(&self) -> bool {
        self.kept.iter().any(|kept| kept.entry.is_bookmark && kept.readers > 0)
    }

    /// Records that no segment can be gained: a snapshot that waits for free segments is refused,
    /// and the host continues before the creator of the snapshot learns of it.
    pub(super) fn give_up_segments(&mut self) {
        self.lacks_segments |= self.wanted_segments > 0;
        self.wanted_segments = 0;
    }

    /// Returns the free segments that the host leaves to a new snapshot.
    #[inline]
    pub(crate) fn wanted_segments(&self) -> u32 {
        self.wanted_segments
    }

    /// Returns the number of checkpoints started since the opening to create snapshots.
    pub(crate) fn begun(&self) -> u64 {
        self.begun
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

    /// Returns the snapshot with a given name.
    pub(crate) fn find(&self, name: &str) -> Option<&Kept> {
        self.kept.iter().find(|kept| kept.entry.name == name)
    }

    /// Returns whether the host's changes wait: see [`super::Core::suspend_changes`].
    #[inline]
    pub(crate) fn changes_are_suspended(&self) -> bool {
        !self.suspended_for.is_empty()
    }

    /// Returns whether the host's changes wait for the snapshot `of`.
    pub(crate) fn changes_are_suspended_for(&self, of: Uuid) -> bool {
        self.suspended_for.contains(&of)
    }

    /// Returns whether a view or a clone reads a snapshot, or a clone is being registered.
    fn is_read(&self, kept: &Kept) -> bool {
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

    /// Removes the entries that no snapshot needs from the tables of moved frames.
    fn prune_forwards(&mut self) {
        let kept = &self.kept;
        debug_assert!(
            kept.is_sorted_by(|kept, next| kept.entry.watermark < next.entry.watermark),
            "snapshots are in the order of their watermarks"
        );
        let names = |segment, watermark| {
            let at = kept.binary_search_by_key(&watermark, |kept| kept.entry.watermark);
            at.ok().and_then(|at| kept.get(at)).is_some_and(|kept| kept.named.contains(segment))
        };
        self.forwards.prune(kept.iter().map(|kept| &kept.entry), names);
    }

    /// Returns the forwarding tables, for the running checkpoint to write.
    pub(super) fn forwards_mut(&mut self) -> &mut Forwards {
        &mut self.forwards
    }

    /// Returns whether the disk is about to be rolled back.
    pub(super) fn is_rolling_back(&self) -> bool {
        self.is_rolling_back
    }

    /// Marks in the segment table the retained segments that must stay as they are.
    fn fix(&self, space: &mut Space) {
        self.fix_read(space);
        self.fix_retained(space);
    }

    /// Excludes from garbage collection exactly the segments needed by snapshots that views or
    /// clones read.
    fn fix_read(&self, space: &mut Space) {
        let mut fixed = SegmentSet::default();
        for kept in self.kept.iter().filter(|kept| self.is_read(kept)) {
            kept.retained.iter().for_each(|segment| {
                fixed.insert(segment);
            });
        }
        space.fix_only(|segment| fixed.contains(segment));
    }

    /// Permits garbage collection to empty retained segments, unless the tables would grow too
    /// long, a snapshot is damaged, a bookmark is read, or a snapshot is being created or rolled
    /// back to.
    fn fix_retained(&self, space: &mut Space) {
        let frames = self.segment_bytes as usize / size_of::<[u64; 4]>();
        let is_full = self.forwards.bytes() >= self.forward_bytes_max
            || !self.forwards.has_room(frames / 1024 + 1);
        let is_fixed = is_full
            || self.has_long_tables()
            || self.is_rolling_back
            || self.change.is_some()
            || self.bookmarks_are_read()
            || self.kept.iter().any(|kept| kept.damage.is_some());
        space.set_retained_fixed(is_fixed);
    }

    /// Returns whether a checkpoint should write forwarding tables.
    pub(super) fn has_long_tables(&self) -> bool {
        let most = self.segment_bytes / DIRTY_DIVISOR;
        self.forwards.dirty_bytes() > most as usize
    }

    /// Returns whether a snapshot must be given up.
    pub(crate) fn must_yield(&self) -> bool {
        self.must_yield
    }

    /// Returns the snapshot that has a given clone, if any.
    pub(crate) fn origin_of(&self, clone: Uuid) -> Option<SeqNo> {
        let mut kept = self.kept.iter();
        let has = |drives: &[RegisteredClone]| drives.iter().any(|found| found.drive == clone);
        kept.find(|kept| has(&kept.entry.clones)).map(|kept| kept.entry.watermark)
    }
}

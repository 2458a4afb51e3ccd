//! The in-memory state of a drive in a bucket that is open for writing, and those of its changes
//! that need no waiting: the segments, the next image, and the counted one.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use super::local::Local;
use super::object::{CommitId, EPOCH_MAX, Entry, Index};
use super::options::{Durable, Options};
use super::ranges::Ranges;
use super::reading::Reading;
use super::store::{Patient, Store};
use super::uses::Use;
use crate::base::units::format_size;
use crate::base::wait::{Line, WaitQueue};
use crate::base::{AlignedBuffer, Clock, Error, ErrorKind, Result};
use crate::media::SUPERBLOCK_SLOTS;

/// The content of a segment.
#[derive(Clone)]
pub(super) enum Held {
    Use(Rc<Use>),
    /// A use that is being begun. If no task holds the turn for that, the attempt was abandoned.
    Beginning,
}

/// Outcome of an attempt to free a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Evicted {
    /// A slot is free once its header is cleared.
    One,
    /// The slots that could be freed are being read or uploaded.
    AllHeld,
    /// All slots have bytes that are in no commit.
    None,
}

/// The superblock slots of the drive, as last written.
pub(super) type Superblocks = [Option<Arc<AlignedBuffer>>; SUPERBLOCK_SLOTS as usize];

/// An open drive in a bucket.
pub(super) struct State<L, S, C> {
    pub(super) local: Local<L>,
    pub(super) store: Patient<S, C>,
    pub(super) clock: C,
    pub(super) options: Options,
    pub(super) reading: Rc<Reading>,
    pub(super) epoch: u32,
    pub(super) segments: RefCell<BTreeMap<u32, Held>>,
    pub(super) superblocks: RefCell<Superblocks>,
    /// Segments that differ from the newest image.
    pub(super) changed: RefCell<BTreeSet<u32>>,
    pub(super) superblocks_changed: Cell<bool>,
    pub(super) dirty_bytes: Cell<u64>,
    pub(super) uploading_bytes: Cell<u64>,
    /// Bytes of appends in progress.
    pub(super) appending_bytes: Cell<u64>,
    /// Commits that have failed.
    pub(super) failures: Cell<u64>,
    /// Time of the oldest change that is neither in a counted commit nor in one in progress.
    pub(super) changed_ns: Cell<Option<u64>>,
    /// Time of the oldest change in the commit in progress.
    pub(super) committing_since_ns: Cell<Option<u64>>,
    /// Images cut, and images cut up to the newest counted commit.
    pub(super) cut: Cell<u64>,
    pub(super) counted_cut: Cell<u64>,
    /// The newest counted commit, its image, and the base of the next commit with its size in
    /// bytes.
    pub(super) counted: Cell<CommitId>,
    pub(super) index: RefCell<Index>,
    /// Bytes of the chunks that the image refers to.
    pub(super) stored_bytes: Cell<u64>,
    pub(super) base: Cell<(u64, usize)>,
    /// Segments that differ from the base.
    pub(super) since_base: RefCell<BTreeSet<u32>>,
    pub(super) next_use: Cell<u32>,
    pub(super) operations: Cell<u64>,
    /// The error of the last failed commit.
    pub(super) failure: RefCell<Option<String>>,
    /// The reason why no more writes are possible.
    pub(super) poison: RefCell<Option<String>>,
    /// Whether the reason is a commit that may or may not have arrived.
    pub(super) is_uncertain: Cell<bool>,
    pub(super) is_closing: Cell<bool>,
    pub(super) is_for_reading: Cell<bool>,
    /// Whether a commit is requested now instead of after the lag.
    pub(super) is_urgent: Cell<bool>,
    /// Turns of the tasks that begin uses, and of the tasks that commit.
    pub(super) beginning: Line,
    pub(super) committing: Line,
    /// Uses whose header was written but not covered by a sync yet.
    pub(super) new_headers: RefCell<Vec<Rc<Use>>>,
    /// Woken when there are changes to commit.
    pub(super) wanted: WaitQueue,
    /// Woken when a commit counts, or when no further commit will count.
    pub(super) progress: WaitQueue,
}

impl<L, S, C> State<L, S, C> {
    pub(super) fn new(
        local: Local<L>,
        store: Patient<S, C>,
        clock: C,
        options: Options,
        epoch: u32,
    ) -> Self {
        assert!((1..=EPOCH_MAX).contains(&epoch), "epochs are numbered from 1");
        Self {
            local,
            store,
            clock,
            options,
            reading: Reading::new(),
            epoch,
            segments: RefCell::default(),
            superblocks: RefCell::default(),
            changed: RefCell::default(),
            superblocks_changed: Cell::default(),
            dirty_bytes: Cell::default(),
            uploading_bytes: Cell::default(),
            appending_bytes: Cell::default(),
            failures: Cell::default(),
            changed_ns: Cell::default(),
            committing_since_ns: Cell::default(),
            cut: Cell::default(),
            counted_cut: Cell::default(),
            counted: Cell::default(),
            index: RefCell::default(),
            stored_bytes: Cell::default(),
            base: Cell::default(),
            since_base: RefCell::default(),
            next_use: Cell::new(1),
            operations: Cell::default(),
            failure: RefCell::default(),
            poison: RefCell::default(),
            is_uncertain: Cell::default(),
            is_closing: Cell::default(),
            is_for_reading: Cell::default(),
            is_urgent: Cell::default(),
            beginning: Line::default(),
            committing: Line::default(),
            new_headers: RefCell::default(),
            wanted: WaitQueue::default(),
            progress: WaitQueue::default(),
        }
    }

    /// # Errors
    /// `Poisoned` if another machine has taken over the drive, or the journal failed.
    pub(super) fn check(&self) -> Result<()> {
        match &*self.poison.borrow() {
            None => Ok(()),
            Some(why) => Err(Error::new(ErrorKind::Poisoned, why.clone())),
        }
    }

    /// Starts the time limit for an answer of the bucket, because the drive is being closed.
    pub(super) fn begin_ending(&self)
    where
        S: Store,
        C: Clock,
    {
        self.store.begin_ending();
        self.wake();
    }

    /// Returns the error of an operation that waits for the bucket and fails because the drive is
    /// being closed.
    pub(super) fn lacking(&self, kind: ErrorKind, error: Error) -> Error {
        let (is_poisoned, is_uncertain) = (self.check().is_err(), self.is_uncertain.get());
        if is_poisoned && !is_uncertain {
            return error;
        }
        let lacks = if is_uncertain { "may lack" } else { "lacks" };
        let size = format_size(self.lag_bytes());
        let what = if self.options.is_volatile {
            format!(
                "the bucket {lacks} the last {size} of writes, which are LOST: they were only in \
                 memory, and no flush had returned for them"
            )
        } else {
            format!(
                "the bucket {lacks} the last {size} of writes: the journal has them, and the next \
                 opening commits them"
            )
        };
        Error::new(kind, what).caused_by(error)
    }

    pub(super) fn set_poison(&self, why: String) {
        tracing::error!(error = why, "the drive accepts no more writes");
        self.poison.borrow_mut().get_or_insert(why);
        self.wake();
    }

    pub(super) fn wake(&self) {
        self.wanted.wake_all();
        self.progress.wake_all();
    }

    /// Returns the number of the next use.
    pub(super) fn next_use_id(&self) -> u64 {
        let number = self.next_use.get();
        self.next_use.set(number.checked_add(1).expect("fewer than 2^32 uses in one opening"));
        u64::from(self.epoch) << 32 | u64::from(number)
    }

    pub(super) fn used(&self, segment: u32) -> Option<Rc<Use>> {
        match self.segments.borrow().get(&segment) {
            Some(Held::Use(used)) => Some(used.clone()),
            _ => None,
        }
    }

    /// Records a read or a write of a use.
    pub(super) fn touch(&self, used: &Use) {
        self.operations.set(self.operations.get() + 1);
        used.touched.set(self.operations.get());
    }

    /// Records a change of a segment, or of a superblock if `None`.
    pub(super) fn note_change(&self, segment: Option<u32>, now_ns: u64) {
        match segment {
            Some(segment) => _ = self.changed.borrow_mut().insert(segment),
            None => self.superblocks_changed.set(true),
        }
        if self.changed_ns.get().is_none() {
            self.changed_ns.set(Some(now_ns));
        }
        self.wanted.wake_all();
    }

    pub(super) fn has_changes(&self) -> bool {
        self.superblocks_changed.get() || !self.changed.borrow().is_empty()
    }

    /// Requests a commit now.
    pub(super) fn hurry(&self) {
        self.is_urgent.set(true);
        self.wanted.wake_all();
    }

    /// Replaces the content of a segment; `None` for an empty segment, `Beginning` as a placeholder
    /// for a use.
    pub(super) fn hold(&self, segment: u32, held: Option<Held>) {
        let before = match held {
            Some(held) => self.segments.borrow_mut().insert(segment, held),
            None => self.segments.borrow_mut().remove(&segment),
        };
        if let Some(Held::Use(before)) = before {
            self.forget_dirty(&before);
        }
    }

    /// Forgets the dirty bytes of a use that ends. They are not uploaded any more.
    fn forget_dirty(&self, ended: &Use) {
        let bytes = ended.dirty.take().bytes();
        let left = self.dirty_bytes.get().checked_sub(bytes);
        self.dirty_bytes.set(left.expect("dirty bytes are counted"));
    }

    /// Marks bytes of a use as not in the bucket.
    pub(super) fn add_dirty(&self, used: &Use, ranges: &Ranges) {
        let current = self.used(used.segment);
        let is_current = current.is_some_and(|current| std::ptr::eq(&*current, used));
        assert!(is_current, "only the present use of a segment has dirty bytes");
        let mut dirty = used.dirty.borrow_mut();
        let before = dirty.bytes();
        ranges.iter().for_each(|(start, end)| dirty.insert(start, end));
        let more = dirty.bytes().checked_sub(before).expect("a set only grows by an insertion");
        self.dirty_bytes.set(self.dirty_bytes.get() + more);
    }

    /// Takes the dirty bytes of a use, to upload them. Bytes of appends in progress stay dirty.
    pub(super) fn take_dirty(&self, used: &Use) -> Ranges {
        let mut left = Ranges::default();
        let mut ranges = used.dirty.take();
        let all_bytes = ranges.bytes();
        for &(start, end) in &*used.appending.borrow() {
            let before = ranges.clone();
            ranges.remove(start, end);
            let mut both = Ranges::one(start, end);
            before.complement(u32::MAX).iter().for_each(|(from, to)| both.remove(from, to));
            both.iter().for_each(|(from, to)| left.insert(from, to));
        }
        assert_eq!(ranges.bytes() + left.bytes(), all_bytes, "a byte is taken or stays dirty");
        *used.dirty.borrow_mut() = left;
        let left = self.dirty_bytes.get().checked_sub(ranges.bytes());
        self.dirty_bytes.set(left.expect("dirty bytes are counted"));
        ranges
    }

    /// Returns the number of bytes that are in the journal alone.
    pub(super) fn lag_bytes(&self) -> u64 {
        self.dirty_bytes.get() + self.uploading_bytes.get()
    }

    /// Drops the slot of the least recently touched use that is in the bucket. A use that is being
    /// read or uploaded retains its slot; otherwise two slots could hold one use.
    pub(super) fn evict(&self) -> Evicted {
        let index = self.index.borrow();
        let is_counted = |used: &Use| {
            let entry: Option<&Entry> = index.get(&used.segment);
            entry.is_some_and(|entry| entry.use_id == used.id)
        };
        let segments = self.segments.borrow();
        let uses = segments.values().filter_map(|held| match held {
            Held::Use(used) => Some(used),
            Held::Beginning => None,
        });
        // An append in progress goes to the slot, and its bytes become dirty there.
        let is_idle = |used: &Use| used.appending.borrow().is_empty() && !used.is_moving.get();
        let uses = uses.filter(|used| used.slot.borrow().is_some() && is_idle(used));
        let evictable = uses.filter(|used| used.is_clean() && is_counted(used));
        let is_held = |used: &Rc<Use>| used.slot.borrow().as_ref().map_or(0, Rc::strong_count) > 1;
        let (held, free): (Vec<_>, Vec<_>) = evictable.partition(|used| is_held(used));
        match free.iter().min_by_key(|used| used.touched.get()) {
            Some(used) => {
                let chunks = used.chunks.borrow();
                let bucket_bytes: u64 = chunks.iter().map(|chunk| u64::from(chunk.bytes)).sum();
                assert!(
                    used.is_inherited || used.written.borrow().bytes() <= bucket_bytes,
                    "a slot is given up once the bucket has its bytes"
                );
                used.slot.take();
                Evicted::One
            }
            None if held.is_empty() => Evicted::None,
            None => Evicted::AllHeld,
        }
    }

    pub(super) fn is_durable_in_bucket(&self) -> bool {
        self.options.durable == Durable::Bucket
    }
}

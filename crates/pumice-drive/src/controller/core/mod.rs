//! The core: all state of an open drive, in one struct that cannot wait.
//!
//! ```text
//!   shell (async, `drive`, `operations`, `maintenance`):  I/O over Medium, Clock; waits; buffers
//!      |  one call at a time, through `Drive::with_core`     ^
//!      v                                                     | places, pins, batches, wakes
//!   core:    room        the space for a request, whether it may run, reserves
//!            append      space -> record -> map -> live bytes, in one call
//!            checkpoint  the content of a checkpoint, the records it makes dead
//!            snapshots   the list, the segments that each needs, the places of moved frames
//!            reclaim     what to empty, retain or return, and how full the drive is
//!            bad         segments that cannot be written
//!            |
//!            map         block -> frame        space       live bytes of each segment
//!            log         order of batches      counters
//! ```
//!
//! The core orders and places. Its methods take `&self` or `&mut self` and return; they await
//! nothing, do no I/O, read no clock, and hold no lock, no cell and no waker. Each call is atomic:
//! reserving the space and mapping the block are one method, so no other request can run in
//! between. When a change may let others continue, the core records it in [`Wakes`]; the shell
//! wakes their queues after the call.
//!
//! **Recovery** builds a core from the newest checkpoint and then calls the same private functions
//! as live traffic for every later record of the log: `map_frame`, `map_range`, `map_moved`,
//! `enter_segment`, `note_batch`. A replay therefore ends in the state that the drive had.

#![warn(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::indexing_slicing
)]

mod append;
mod bad;
mod checkpoint;
mod clones;
mod counters;
mod lost;
mod pieces;
mod reclaim;
mod rekey;
mod reserves;
mod resize;
mod room;
mod snapshots;

use super::log::{BatchToWrite, ChainEnd, Log, LogEnd, Tail, Totals};
use super::map::{KeptLeaves, L2p, Leaf, Lookup, Mapping, Reap};
use super::space::Space;
use crate::base::units::len_u32;
use crate::base::{AlignedBuffer, Error, ErrorKind, Lba, Result, SegmentId, SeqNo};
use crate::crypt::Cipher;
use crate::format::{
    DirectoryEntry, KeyArea, MapLimits, MetaKind, MetadataAddress, Stream, Superblock,
    leaf_bytes_max,
};

pub(crate) use append::{
    Attempt, BlockWrite, Edge, MetaPosition, Move, MoveReason, Version, table_of,
};
pub(crate) use lost::LOSE_ATTEMPTS;
use lost::LostLeaves;

pub(crate) use checkpoint::{Begun, Checkpoints, NewestCheckpoint};
pub(crate) use counters::Counters;
pub(crate) use pieces::LeafPiece;
use reclaim::Reclaim;
pub(crate) use reclaim::{FreeWork, GIVE_UP_NS, GivesBack, Occupied, Victim};
use reserves::Reserves;
pub(crate) use reserves::{RESERVED_SEGMENTS, SEGMENTS_MIN, meta_segments, usable_segment_bytes};
pub(crate) use resize::Evacuation;
use room::Background;
pub(crate) use room::Purpose;
pub(crate) use snapshots::{
    CheckpointAction, Edit, Emptying, Forwards, Kept, KeptDisk, MetadataCopy, PendingPiece,
    RETAINED_BYTES_MAX, RetainedMove, SegmentSet, Snapshots,
};
pub use snapshots::{Condition, NewSnapshot};

/// Maximum number of thresholds for warnings about space. A threshold is a percentage; 0 disables
/// it.
pub const WARN_THRESHOLDS_MAX: usize = 4;

/// Number of leaves of trimmed ranges reaped in one step: at most 64 K runs, well under a
/// millisecond.
const REAP_STEPS: u32 = 64;

/// Queues of the shell whose waiters must check again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wakes(u8);

impl Wakes {
    /// Buffers became free, batches were written or became durable, the log was poisoned, or
    /// segments or credit were gained.
    pub(crate) const PROGRESS: Self = Self(1);
    /// A batch was sealed, or the log is closing.
    pub(crate) const WRITERS: Self = Self(2);
    /// A sync was requested, or the log is closing.
    pub(crate) const SYNCER: Self = Self(4);
    /// Garbage collection may have work.
    pub(crate) const COLLECTOR: Self = Self(8);
    /// A checkpoint may be due.
    pub(crate) const CHECKPOINTER: Self = Self(16);
    /// The turn to change checkpoint and superblock is free.
    pub(crate) const TURN: Self = Self(32);
    /// A free segment may have to be discarded or zeroed, or the log is closing.
    pub(crate) const WARMER: Self = Self(64);

    /// Returns whether no queue must be woken.
    #[inline]
    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns whether a queue must be woken.
    pub(crate) fn has(self, queue: Self) -> bool {
        self.0 & queue.0 != 0
    }
}

/// The parts of [`super::OpenOptions`] that the core uses.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Whether the medium makes appends durable without a sync.
    pub(crate) cipher: Cipher,
    /// Whether writes are refused.
    pub(crate) is_read_only: bool,
    /// Whether the medium has durable appends.
    pub(crate) has_durable_appends: bool,
    /// Whether the medium prefers appends into bytes that were written before.
    pub(crate) prefers_written: bool,
    /// Bytes of the map's leaves to cache in memory.
    pub(crate) map_cache_bytes: usize,
    /// Maximum number of log bytes between checkpoints.
    pub(crate) checkpoint_bytes: u64,
    /// The space that is returned to the medium without being needed for new data.
    pub(crate) gives_back: GivesBack,
    /// Thresholds for warnings about space that replace those of the superblock.
    pub(crate) warn_percent: Option<[u8; WARN_THRESHOLDS_MAX]>,
}

/// The source that serves a block.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Located {
    /// Its mapping, the number of blocks from it to the end of the run, and the generation of the
    /// frame's segment.
    Run { mapping: Mapping, blocks: u64, generation: u64 },
    /// The leaf with this number must be loaded first.
    Missing(u64),
}

/// The state that recovery begins with: the newest checkpoint.
pub(crate) struct Restored {
    pub(crate) map: L2p,
    /// The segment table.
    pub(crate) space: Space,
    /// The checkpoint itself.
    pub(crate) newest: NewestCheckpoint,
    pub(crate) tails: [Option<Tail>; Stream::COUNT],
}

/// The place from which a leaf is loaded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeafPlace {
    pub(crate) place: MetadataAddress,
    /// Generation of its segment.
    pub(crate) generation: u64,
}

/// The kind of disk that the core maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The disk of the host.
    Drive,
    /// A snapshot, whose map names frames that may have been moved.
    View,
    /// A bookmark, whose frames may have been freed.
    Bookmark,
}

/// An operation on the whole drive. At most one runs at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exclusive {
    /// Size or capacity is being changed.
    Resize,
    /// A key is being replaced.
    Rekey,
}

/// All state of an open drive.
pub(crate) struct Core {
    settings: Settings,
    kind: Kind,
    superblock: Superblock,
    superblock_slot: u32,
    map: L2p,
    space: Space,
    log: Log,
    counters: Counters,
    checkpoints: Checkpoints,
    snapshots: Snapshots,
    reclaim: Reclaim,
    reserves: Reserves,
    background: Background,
    lost: LostLeaves,
    /// Segments opened in this epoch.
    segments_opened: u32,
    exclusive: Option<Exclusive>,
    /// Whether [`Core::end`] was called.
    is_ending: bool,
    /// The newest empty batch, which confirms the batches before it; 0 if there is none.
    vouching: SeqNo,
    /// The segment in which an append failed, until the superblock names it.
    bad_segment: Option<SegmentId>,
    wakes: Wakes,
}

impl Core {
    /// Creates the core that recovery starts with. It accepts no writes before [`Core::start`].
    pub(crate) fn new(superblock: Superblock, settings: Settings, restored: Restored) -> Self {
        let Restored { map, space, newest, tails } = restored;
        let shape = superblock.shape();
        let leaf_bytes = leaf_bytes_max(superblock.has_chunks);
        assert_eq!(
            space.segment_count(),
            superblock.segment_count,
            "the segment table has the segments of the superblock"
        );
        let end = LogEnd { seq: newest.checkpointed, checksum: 0, tails };
        let log = Log::new(end, shape, superblock.epoch, superblock.uuid, 0, false);
        let log = log.with_keys(settings.cipher.clone(), None);
        Self {
            kind: Kind::Drive,
            snapshots: Snapshots::new(superblock.segment_bytes, settings.map_cache_bytes),
            reclaim: Reclaim::default(),
            reserves: Reserves::new(&shape, leaf_bytes, settings.map_cache_bytes),
            settings,
            superblock,
            superblock_slot: 0,
            map,
            space,
            log,
            counters: Counters::default(),
            checkpoints: Checkpoints::new(newest),
            background: Background::default(),
            lost: LostLeaves::default(),
            segments_opened: 0,
            exclusive: None,
            is_ending: false,
            vouching: SeqNo(0),
            bad_segment: None,
            wakes: Wakes::default(),
        }
    }

    /// Ends recovery: the log, durable up to `end`, continues there with the counters of its last
    /// batch and `buffers` batch buffers. The superblock and its slot are those of this opening.
    pub(crate) fn start(
        &mut self,
        superblock: Superblock,
        superblock_slot: u32,
        end: LogEnd,
        totals: Totals,
        buffers: usize,
    ) {
        assert!(end.seq >= self.checkpoints.checkpointed(), "the log reaches its checkpoint");
        assert!(end.seq >= superblock.watermark, "the log reaches its watermark");
        assert_eq!(buffers == 0, self.settings.is_read_only, "only a drive to write has buffers");
        let segment_use = |tail: Tail| (tail.segment, tail.generation);
        for (stream, tail) in Stream::ALL.into_iter().zip(end.tails) {
            assert_eq!(
                tail.map(segment_use),
                self.log.tail(stream).map(segment_use),
                "the log ends in the segment that replay entered last for stream {stream:?}"
            );
        }
        let mut superblock = superblock;
        if self.kind != Kind::Drive {
            // The map of a snapshot names segments that existed when it was taken.
            superblock.segment_count = self.space.segment_count();
        }
        let Superblock { epoch, uuid, .. } = superblock;
        let has_durable_appends = self.settings.has_durable_appends;
        let log = Log::new(end, superblock.shape(), epoch, uuid, buffers, has_durable_appends);
        let recovery = superblock.keys.as_ref().and_then(KeyArea::recovery).cloned();
        self.log = log.with_keys(self.settings.cipher.clone(), recovery);
        (self.superblock, self.superblock_slot) = (superblock, superblock_slot);
        self.counters = Counters::new(totals);
        self.check_invariants();
    }

    /// Asserts the invariants that hold between calls once the drive is open.
    #[inline]
    fn check_invariants(&self) {
        let durable = self.log.durable_seq();
        assert!(self.checkpoints.checkpointed() <= durable, "the checkpoint is durable");
        assert!(self.superblock.watermark <= durable, "the superblock's watermark is durable");
        assert!(self.superblock_slot <= 1, "a medium has two superblock slots");
        assert!(
            self.is_resizing() || self.space.segment_count() == self.superblock.segment_count,
            "the segment table has the segments of the superblock, except in a resize"
        );
    }

    /// Returns the bytes that sealing adds to a payload.
    #[inline]
    pub(crate) fn seal_bytes(&self) -> usize {
        self.settings.cipher.seal_bytes()
    }

    /// Returns the queues that must be woken, and clears them.
    #[inline]
    pub(crate) fn take_wakes(&mut self) -> Wakes {
        std::mem::take(&mut self.wakes)
    }

    /// Records that the waiters of a queue must check again.
    #[inline]
    pub(crate) fn wake(&mut self, queue: Wakes) {
        assert!(!queue.is_empty(), "a wake names a queue");
        self.wakes.0 |= queue.0;
    }

    /// Returns the superblock as it is on the medium.
    pub(crate) fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Returns the map.
    pub(crate) fn map(&self) -> &L2p {
        &self.map
    }

    /// Returns the segment table.
    pub(crate) fn space(&self) -> &Space {
        &self.space
    }

    /// Returns the log.
    pub(crate) fn log(&self) -> &Log {
        &self.log
    }

    /// Returns the state of checkpoints.
    pub(crate) fn checkpoints(&self) -> &Checkpoints {
        &self.checkpoints
    }

    /// Returns the snapshots.
    pub(crate) fn snapshots(&self) -> &Snapshots {
        &self.snapshots
    }

    /// Returns the forwarding tables.
    #[inline]
    pub(crate) fn forwards(&self) -> &Forwards {
        self.snapshots.forwards()
    }

    /// Returns the state of reclaiming space.
    pub(crate) fn reclaim(&self) -> &Reclaim {
        &self.reclaim
    }

    /// Returns the state of reclaiming space, for changes that affect nothing else.
    pub(crate) fn reclaim_mut(&mut self) -> &mut Reclaim {
        &mut self.reclaim
    }

    /// Returns the counters.
    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the counters, for events that the shell counts.
    pub(crate) fn counters_mut(&mut self) -> &mut Counters {
        &mut self.counters
    }

    /// Returns the bounds of valid places on this drive.
    pub(crate) fn map_limits(&self) -> MapLimits {
        MapLimits {
            seal_bytes: len_u32(self.seal_bytes()),
            segment_count: self.superblock.segment_count,
            segment_bytes: self.superblock.segment_bytes,
        }
    }

    /// Begins to close the drive: no request may follow, and every task ends.
    pub(crate) fn end(&mut self) {
        self.is_ending = true;
        for queue in [Wakes::COLLECTOR, Wakes::PROGRESS, Wakes::CHECKPOINTER, Wakes::WARMER] {
            self.wake(queue);
        }
    }

    /// Returns whether [`Core::end`] was called.
    pub(crate) fn is_ending(&self) -> bool {
        self.is_ending
    }

    /// Returns whether background work must end: the drive is closing, or nothing can become
    /// durable any more.
    pub(crate) fn must_end(&self) -> bool {
        self.is_ending || self.log.is_poisoned()
    }

    /// Returns the size of the host's disk in bytes.
    #[inline]
    pub(crate) fn size_bytes(&self) -> u64 {
        self.superblock.size_bytes
    }

    /// Checks that a range is within the disk.
    ///
    /// # Errors
    /// `InvalidInput`.
    #[inline]
    pub(crate) fn check_range(&self, offset: u64, len: u64) -> Result<()> {
        if offset.checked_add(len).is_some_and(|end| end <= self.size_bytes()) {
            return Ok(());
        }
        let what = format!("the range {offset}+{len} lies beyond the disk's end");
        Err(Error::new(ErrorKind::InvalidInput, what))
    }

    /// Checks that a range may be read.
    ///
    /// # Errors
    /// `InvalidInput` beyond the end of the disk, and for a bookmark.
    #[inline]
    pub(crate) fn check_readable(&self, offset: u64, len: u64) -> Result<()> {
        self.check_range(offset, len)?;
        if self.kind == Kind::Bookmark {
            let what = "a bookmark has no data to read: use it as the start of a diff or a send";
            return Err(Error::new(ErrorKind::InvalidInput, what));
        }
        Ok(())
    }

    /// Checks that a change of a range is permitted.
    ///
    /// # Errors
    /// `InvalidInput`, `ReadOnly` or `Poisoned`.
    #[inline]
    pub(crate) fn check_writable(&self, offset: u64, len: u64) -> Result<()> {
        self.check_range(offset, len)?;
        if self.is_ending {
            return Err(Error::new(ErrorKind::Poisoned, "the drive is closing"));
        }
        if self.settings.is_read_only {
            return Err(Error::new(ErrorKind::ReadOnly, "the drive was opened read-only"));
        }
        self.log.check_poison()
    }

    /// Returns the source that serves a block, and marks its leaf as used.
    #[inline]
    pub(crate) fn locate(&mut self, lba: Lba) -> Located {
        match self.map.lookup(lba) {
            Lookup::Missing(leaf) => Located::Missing(leaf),
            Lookup::Run(mapping, blocks) => {
                assert!(blocks > 0, "a run has a block");
                let (mapping, generation) = match mapping {
                    Mapping::Frame { place, index } => {
                        let generation = self.space.generation(place.segment);
                        let (place, generation) = match self.kind {
                            Kind::Drive => (place, generation),
                            _ => self.forwards().resolve(place, generation),
                        };
                        (Mapping::Frame { place, index }, generation)
                    }
                    Mapping::Hole | Mapping::Fill(_) => (mapping, 0),
                };
                Located::Run { mapping, blocks, generation }
            }
        }
    }

    /// Protects a segment from being freed until [`Core::unpin`].
    #[inline]
    pub(crate) fn pin(&mut self, segment: SegmentId) {
        self.space.pin(segment);
    }

    /// Removes a pin set by [`Core::pin`].
    #[inline]
    pub(crate) fn unpin(&mut self, segment: SegmentId) {
        self.space.unpin(segment);
    }

    /// Marks a segment as open that recovery found to be open.
    ///
    /// # Errors
    /// `Corrupt` if the segment cannot have been opened.
    pub(crate) fn occupy_segment(
        &mut self,
        stream: Stream,
        segment: SegmentId,
        generation: u64,
    ) -> Result<()> {
        self.space.occupy(segment, stream, generation)
    }

    /// Installs the tables through which a snapshot or a bookmark is read: afterwards
    /// [`Core::locate`] returns the current places of frames, not the places that the map names.
    pub(crate) fn read_through(&mut self, forwards: Forwards, kind: Kind) {
        assert_ne!(kind, Kind::Drive, "the tables of a drive come with its snapshots");
        assert_eq!(self.kind, Kind::Drive, "the tables of a snapshot are set once");
        *self.snapshots.forwards_mut() = forwards;
        self.kind = kind;
    }

    /// Returns the kind of disk that the core maps.
    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// Installs a leaf that was loaded from `place` into memory. Does nothing if the leaf has been
    /// loaded, moved or reaped in the meantime.
    pub(crate) fn install_leaf(&mut self, leaf: u64, place: MetadataAddress, content: Leaf) {
        self.map.install(leaf, place, content);
    }

    /// Retains leaves in memory once they are loaded, until the next call; `None` releases them.
    pub(crate) fn keep_leaves(&mut self, leaves: Option<KeptLeaves>) {
        self.map.keep(leaves);
    }

    /// Returns the place from which a leaf must be loaded, if it is not in memory.
    pub(crate) fn leaf_to_load(&self, leaf: u64) -> Option<LeafPlace> {
        let DirectoryEntry::Leaf(place) = self.map.entry(leaf) else { return None };
        Some(LeafPlace { place, generation: self.space.generation(place.segment) })
    }

    /// Returns the current place of a leaf that the map names at `from`: a leaf of a snapshot may
    /// have been moved.
    pub(crate) fn leaf_at(&self, from: LeafPlace) -> LeafPlace {
        let moved = self.forwards().metadata_at(from.place, from.generation);
        let moved = moved.filter(|_| self.kind != Kind::Drive);
        moved.map_or(from, |(place, generation)| LeafPlace { place, generation })
    }

    /// Returns the place of the record that stores a leaf's current content: see
    /// [`L2p::stored_leaf`].
    pub(crate) fn stored_leaf(&self, leaf: u64) -> Option<LeafPlace> {
        let place = self.map.stored_leaf(leaf)?;
        Some(LeafPlace { place, generation: self.space.generation(place.segment) })
    }

    /// Makes the next checkpoint rewrite a leaf elsewhere, if its newest version is at `place`.
    /// Returns `false` if the leaf must be loaded first. The leaf number may be read from the
    /// medium.
    pub(crate) fn touch_leaf(&mut self, leaf: u64, place: MetadataAddress) -> bool {
        !self.map.is_current_leaf(leaf, place) || self.map.touch_leaf(leaf)
    }

    /// Makes the next checkpoint rewrite a directory page elsewhere, if its newest version is at
    /// `place`. The page number may be read from the medium.
    pub(crate) fn touch_page(&mut self, page: u32, place: MetadataAddress) {
        if self.map.is_current_page(page, place) {
            self.map.touch_page(page);
        }
    }

    /// Makes the next checkpoint rewrite a leaf in memory, or a directory page, elsewhere, if its
    /// newest version is at `place`. Every checkpoint rewrites all other metadata anyway. Does
    /// nothing on a read-only drive.
    pub(crate) fn rewrite_metadata(&mut self, kind: MetaKind, number: u64, place: MetadataAddress) {
        match kind {
            _ if self.settings.is_read_only => {}
            MetaKind::Leaf => {
                self.touch_leaf(number, place);
            }
            MetaKind::Page => {
                if let Ok(page) = u32::try_from(number) {
                    self.touch_page(page, place);
                }
            }
            MetaKind::PageList
            | MetaKind::Table
            | MetaKind::Dropped
            | MetaKind::Snapshots
            | MetaKind::Retained
            | MetaKind::Root => {}
            MetaKind::Forwards => self.snapshots.forwards_mut().touch(|&piece| piece == place),
        }
    }

    /// Reaps some leaves of trimmed ranges.
    pub(crate) fn reap(&mut self) -> Reap {
        self.reap_steps(REAP_STEPS)
    }

    /// Reaps all leaves of trimmed ranges that are in memory.
    pub(crate) fn reap_resident(&mut self) -> Reap {
        self.reap_steps(u32::MAX)
    }

    fn reap_steps(&mut self, steps: u32) -> Reap {
        assert!(steps > 0, "taking leaves down makes progress");
        let released_before = self.space.live_bytes();
        let Self { map, space, .. } = self;
        let reap = map.reap(steps, |dead| space.release_blocks(dead.place, dead.index, dead.count));
        assert!(
            self.space.live_bytes() <= released_before,
            "taking leaves down makes nothing live"
        );
        reap
    }

    /// Returns the next batch for a writer and marks it as in flight.
    pub(crate) fn next_to_write(&mut self) -> Option<BatchToWrite> {
        self.log.next_to_write()
    }

    /// Records that the medium had no space for a batch, which must be written again. Until then,
    /// requests that wait for the batch or need space fail.
    pub(crate) fn batch_lacks_space(&mut self, seq: SeqNo, error: &Error) {
        self.warn_of_full_medium(error);
        self.log.not_written(seq);
        self.reclaim.zeroing_failed();
        self.wake(Wakes::PROGRESS);
        // Warm segments occupy space.
        self.wake(Wakes::WARMER);
    }

    /// Records that the medium had no space for a superblock, which must be written again. Until
    /// then, requests that need space fail.
    pub(crate) fn superblock_lacks_space(&mut self, error: &Error) {
        self.warn_of_full_medium(error);
        self.log.set_superblock_lacks_space(true);
        self.reclaim.zeroing_failed();
        self.wake(Wakes::PROGRESS);
        self.wake(Wakes::WARMER);
    }

    /// Records that no superblock waits for space any more.
    pub(crate) fn superblock_has_space(&mut self) {
        let was_full = self.log.is_medium_full();
        self.log.set_superblock_lacks_space(false);
        self.medium_may_have_space(was_full);
        self.wake(Wakes::PROGRESS);
    }

    fn warn_of_full_medium(&self, error: &Error) {
        if !self.log.is_medium_full() {
            tracing::warn!(
                drive = %self.superblock.uuid,
                error = %error.chain(),
                "the medium is full: writes are refused and unwritten data stays in memory until \
                 the file system that holds the drive has space again"
            );
        }
    }

    /// Handles a successful write to a medium that `was_full`.
    fn medium_may_have_space(&mut self, was_full: bool) {
        if was_full && !self.log.is_medium_full() {
            tracing::warn!(
                drive = %self.superblock.uuid,
                "the medium has space again: writes continue"
            );
            self.wake(Wakes::WRITERS);
        }
    }

    /// Records that a batch is on the medium, which returns `spare` buffers in place of those that
    /// it retained.
    pub(crate) fn batch_written(
        &mut self,
        seq: SeqNo,
        is_durable: bool,
        spare: impl FnMut() -> Option<AlignedBuffer>,
    ) {
        assert!(seq <= self.log.sealed_seq(), "a batch is sealed before it is written");
        self.counters.batches.add(1);
        self.counters.durable_appends.add(u64::from(is_durable));
        let was_full = self.log.is_medium_full();
        self.log.written(seq, spare);
        if self.log.is_collecting() && !self.log.writers_are_busy() {
            self.seal(Stream::Host);
        }
        self.medium_may_have_space(was_full);
        self.wake(Wakes::PROGRESS);
    }

    /// Begins a flush of the host: its open batch is sealed now or, while every writer is busy, as
    /// soon as one is free. Returns the number of host batches sealed by then.
    pub(crate) fn begin_flush(&mut self) -> u64 {
        self.counters.flushes.add(1);
        if !self.log.has_open_records(Stream::Host) {
            return self.log.host_batches();
        }
        self.log.collect_for_flush();
        if self.log.writers_are_busy() {
            return self.log.host_batches() + 1;
        }
        self.seal(Stream::Host);
        self.log.host_batches()
    }

    /// Returns the last sealed batch of the host, and records that a flush waits for it.
    pub(crate) fn want_host_batches(&mut self) -> SeqNo {
        self.log.want_host_batches()
    }

    /// Requests a sync that has not begun yet. Returns its number.
    pub(crate) fn request_sync(&mut self) -> u64 {
        self.wake(Wakes::SYNCER);
        self.log.request_sync()
    }

    /// Begins the next sync, if one was requested. Returns the end of the chain that the sync makes
    /// durable.
    pub(crate) fn begin_sync(&mut self) -> Option<ChainEnd> {
        let end = self.log.begin_sync().then(|| self.log.written_end())?;
        assert!(end.seq >= self.log.durable_seq(), "a sync makes no less durable than the last");
        Some(end)
    }

    /// Records that the most recently started sync has succeeded: the watermark advances to `end`.
    pub(crate) fn sync_ended(&mut self, end: ChainEnd) {
        self.counters.syncs.add(1);
        self.log.sync_ended(end);
        self.check_invariants();
        self.wake(Wakes::PROGRESS);
    }

    /// Ends the log permanently: nothing can become durable any more. Only the first reason is
    /// stored.
    pub(crate) fn poison(&mut self, error: &Error) {
        tracing::error!(
            drive = %self.superblock.uuid,
            error = %error.chain(),
            "the drive takes no more writes until it is reopened"
        );
        self.log.poison(error);
        self.wake(Wakes::PROGRESS);
        self.wake(Wakes::WRITERS);
    }

    /// Releases the memory of batch buffers that are not in use.
    pub(crate) fn release_buffers(&mut self) {
        self.log.release_buffers();
    }

    /// Closes the log: writers and syncer end once nothing is left to write.
    pub(crate) fn close(&mut self) {
        assert!(self.is_ending, "requests end before the log closes");
        self.log.close();
        for queue in [Wakes::WRITERS, Wakes::SYNCER, Wakes::WARMER] {
            self.wake(queue);
        }
    }
}

/// Functions for tests that create states which no caller creates.
#[cfg(test)]
impl Core {
    pub(crate) fn map_mut(&mut self) -> &mut L2p {
        &mut self.map
    }

    pub(crate) fn space_mut(&mut self) -> &mut Space {
        &mut self.space
    }

    pub(crate) fn log_mut(&mut self) -> &mut Log {
        &mut self.log
    }
}

//! Moving frames and metadata that snapshots need: the copy, the table that leads to it, and the
//! snapshots that retain it.
//!
//! ```text
//! frame of a retained segment: the disk, an entry or a snapshot needs it -> copied whole
//!                              neither                                   -> dropped
//! all copied -> the table says so -> a checkpoint has the table -> the segment is free
//! ```
//!
//! The whole rule is in ARCHITECTURE.md, "The life of a snapshot".
//!
//! A frame that is copied whole has the same blocks at the same indexes, so a snapshot reads it at
//! the place that the table names. Replay notes the copies of live frames again; the copy of a dead
//! frame is then useless, since its segment still exists.

use std::collections::BTreeMap;

use super::super::log::packing::MovedFrame;
use super::super::map::LivePiece;
use super::super::place::{FramePlace, SegmentUse};
use super::append::Moved;
use super::forwards::{Copied, Forwards};
use super::{Attempt, Core, Kept, Purpose};
use crate::base::{Lba, Result, SegmentId, SeqNo};
use crate::format::{MetadataAddress, Snapshot, Superblock};

/// Tables up to this size are kept in memory regardless of the map cache: about a million frames.
const FORWARD_BYTES_MIN: usize = 64 << 20;

/// Part of a segment by which tables may have changed before garbage collection leaves retained
/// segments alone until a checkpoint has written the tables.
const DIRTY_DIVISOR: u32 = 4;

/// The emptying of a retained segment.
#[derive(Clone, Debug)]
pub(crate) struct Emptying {
    /// The segment, in this use.
    pub(crate) of: SegmentUse,
    /// Snapshots whose maps name frames in it, oldest first.
    pub(crate) users: Vec<Snapshot>,
    /// [`Core::needs`] when they were found.
    needs: u64,
}

/// A frame of a retained segment, to be copied whole.
pub(crate) struct RetainedMove<'a> {
    /// Where it is.
    pub(crate) from: FramePlace,
    /// Its live blocks when it was encoded.
    pub(crate) pieces: &'a [LivePiece],
    /// The copy.
    pub(crate) frame: MovedFrame<'a>,
    /// Bytes that must fit in the open batch.
    pub(crate) room_bytes: usize,
    /// The first and the last snapshot that name it.
    pub(crate) named: Option<(SeqNo, SeqNo)>,
}

impl Core {
    /// Returns the forwarding tables.
    pub(crate) fn forwards(&self) -> &Forwards {
        &self.forwards
    }

    /// Returns the superblock and the tables of moved metadata, with which maps of snapshots are
    /// read.
    pub(crate) fn to_read_kept(&self) -> (Superblock, Forwards) {
        (self.superblock.clone(), self.forwards.of_metadata())
    }

    /// Installs the tables through which a snapshot is read: from now on [`Core::locate`] returns
    /// the present places of frames, not those that the map names.
    pub(crate) fn read_through(&mut self, forwards: Forwards) {
        self.forwards = forwards;
        self.is_view = true;
    }

    /// Returns whether this is the map of a snapshot.
    pub(crate) fn is_view(&self) -> bool {
        self.is_view
    }

    /// Makes this the map of a bookmark, through which nothing is read.
    pub(crate) fn be_bookmark(&mut self) {
        assert!(self.is_view, "a bookmark is not a host's disk");
        self.is_bookmark = true;
    }

    /// Returns whether this is the map of a bookmark.
    pub(crate) fn is_bookmark(&self) -> bool {
        self.is_bookmark
    }

    /// Returns the present place of a frame that a map of this drive or of one of its snapshots
    /// names in `generation` of its segment, and the generation there.
    #[inline]
    pub(crate) fn forwarded(&self, place: FramePlace, generation: u64) -> (FramePlace, u64) {
        self.forwards.resolve(place, generation)
    }

    /// Notes a change in who needs which segments: an emptying under way ends.
    pub(super) fn needs_changed(&mut self) {
        self.needs += 1;
    }

    /// Begins to empty a retained segment; `None` if it is not retained, or must stay for now.
    pub(crate) fn begin_emptying(&self, segment: SegmentId) -> Option<Emptying> {
        if !self.space.is_retained(segment) || self.space.stays_retained(segment) {
            return None;
        }
        let of = self.use_of(segment);
        let kept = self.snapshots.kept().iter();
        let is_user = |kept: &&Kept| {
            let is_named = kept.named.contains(segment);
            is_named && !self.forwards.is_emptied(segment, kept.entry.watermark)
        };
        let users = kept.filter(is_user).map(|kept| kept.entry.clone()).collect();
        Some(Emptying { of, users, needs: self.needs })
    }

    /// Returns whether the findings at the beginning of an emptying are out of date.
    pub(crate) fn is_void(&self, emptying: &Emptying) -> bool {
        self.needs != emptying.needs
    }

    fn use_of(&self, segment: SegmentId) -> SegmentUse {
        SegmentUse { segment, generation: self.space.generation(segment) }
    }

    /// Makes the next checkpoint rewrite the tables that have a piece in a segment.
    pub(crate) fn rewrite_forwards_in(&mut self, segment: SegmentId) {
        self.forwards.touch(|piece| piece.segment == segment);
    }

    /// Returns whether a frame of the segment must be copied, if its leaf is in memory: whether the
    /// disk, an entry or a snapshot needs it at its place.
    pub(crate) fn needs_copy(
        &self,
        it: &Emptying,
        lba: Lba,
        place: FramePlace,
        named: Option<(SeqNo, SeqNo)>,
    ) -> bool {
        let at = place.offset;
        let is_needed = || {
            named.is_some()
                || self.map.live_pieces(lba, place).next().is_some()
                || self.forwards.leading_to(it.of, at..=at).next().is_some()
        };
        !self.is_void(it) && !self.forwards.has(it.of, at) && is_needed()
    }

    /// Copies a frame for which [`Core::needs_copy`] returns true.
    ///
    /// # Errors
    /// `NoSpace`, `Poisoned`; nothing is appended then.
    pub(crate) fn move_retained(
        &mut self,
        it: &Emptying,
        copy: &RetainedMove<'_>,
    ) -> Result<Attempt> {
        let RetainedMove { from, pieces, frame, room_bytes, named } = copy;
        assert!(frame.record_bytes() <= *room_bytes, "a copy fits the room that it asks for");
        assert_eq!(frame.blocks, from.blocks, "a frame that a snapshot may name is copied whole");
        if !self.make_room(*room_bytes, Purpose::Moved)? {
            return Ok(Attempt::Wait);
        }
        let is_missing = self.map.missing(frame.lba, u64::from(from.blocks)).is_some();
        if is_missing
            || !self.needs_copy(it, frame.lba, *from, *named)
            || !self.has_right_key(frame)
            || !self.map.live_pieces(frame.lba, *from).eq(pieces.iter().copied())
        {
            return Ok(Attempt::Changed);
        }
        let Moved { to, .. } = self.push_copy(frame);
        self.note_frame(*from, to, *named, !pieces.is_empty());
        Ok(Attempt::Done)
    }

    /// Notes the effect of a moved frame on snapshots: any snapshot since its data was written may
    /// name it at its former place.
    pub(super) fn note_moved(&mut self, moved: Moved) {
        if let Some((from, since)) = moved.from {
            let named = (since, self.snapshots.newest_watermark());
            self.note_frame(from, moved.to, Some(named), true);
        }
    }

    fn note_frame(
        &mut self,
        from: FramePlace,
        to: FramePlace,
        named: Option<(SeqNo, SeqNo)>,
        was_live: bool,
    ) {
        let copied = Copied {
            to: self.use_of(to.segment),
            offset: to.offset,
            record_bytes: to.record_bytes,
            was_live,
            is_meta: false,
            since: SeqNo(0),
            until: SeqNo(0),
        };
        if self.note_copy((self.use_of(from.segment), from.offset), copied, named) {
            self.space.note_retained_copy(to.segment, to.charged_bytes(), was_live);
        }
    }

    /// Notes that the frame or record at a place was copied: entries that lead there now lead to
    /// the copy, and snapshots from the first to the last of `named` find it through an entry.
    /// Returns whether one needs it.
    fn note_copy(
        &mut self,
        place: (SegmentUse, u32),
        copied: Copied,
        named: Option<(SeqNo, SeqNo)>,
    ) -> bool {
        let led: Vec<_> = self.forwards.leading_to(place.0, place.1..=place.1).collect();
        let led = led.into_iter().map(|(from, Copied { since, until, .. })| (from, since, until));
        let named = named.map(|(since, until)| (place, since, until));
        let mut is_needed = false;
        for (from, since, until) in led.chain(named) {
            let copied = Copied { since, until, ..copied };
            if self.retain_copy(&copied) {
                self.forwards.put(from, copied);
                is_needed = true;
            }
        }
        is_needed
    }

    /// Lets the snapshots that may need a copy retain its segment. Returns whether one does.
    fn retain_copy(&mut self, copied: &Copied) -> bool {
        let (Self { snapshots, space, .. }, to) = (self, copied.to.segment);
        let mut is_needed = false;
        for kept in snapshots.all_mut().filter(|kept| copied.is_needed_by(&kept.entry)) {
            is_needed = true;
            if kept.retained.insert(to) {
                assert!(space.retain(to), "a copy is in a segment in use");
            }
            if kept.is_read() {
                space.fix(to);
            }
        }
        is_needed
    }

    /// Notes that records of maps and lists of snapshots were copied out of a use of a segment, and
    /// that the copies are on the medium. From now on the copies do not count as live.
    pub(crate) fn note_metadata(&mut self, of: SegmentUse, copies: &[MetadataCopy]) {
        for &MetadataCopy { offset, place, named } in copies {
            let copied = Copied {
                to: self.use_of(place.segment),
                offset: place.offset,
                record_bytes: place.bytes,
                was_live: false,
                is_meta: true,
                since: SeqNo(0),
                until: SeqNo(0),
            };
            self.note_copy((of, offset), copied, named);
        }
        self.forget_metadata(copies);
    }

    /// Counts copies as dead.
    pub(crate) fn forget_metadata(&mut self, copies: &[MetadataCopy]) {
        for MetadataCopy { place, .. } in copies {
            self.space.release(place.segment, place.bytes);
        }
    }

    /// Ends the emptying of a retained segment from which everything needed was copied. Returns
    /// whether nothing in it is needed any more.
    pub(crate) fn end_emptying(&mut self, it: &Emptying) -> bool {
        let of = it.of;
        let segment = of.segment;
        let is_led_to = self.forwards.leading_to(of, 0..=u32::MAX).next().is_some();
        if self.is_void(it) || is_led_to || self.space.live_bytes_of(segment) > 0 {
            return false;
        }
        let sealed = self.log.sealed_seq();
        self.forwards.set_emptied(of, sealed);
        let Self { snapshots, space, .. } = self;
        for kept in snapshots.all_mut() {
            if kept.retained.remove(segment) {
                space.let_go(segment);
            }
        }
        self.space.emptied(segment, sealed);
        self.fix_retained();
        true
    }

    /// Lets garbage collection empty retained segments, unless the tables would grow too long, a
    /// snapshot is damaged, a bookmark is read, or a snapshot is being created or rolled back to.
    pub(crate) fn fix_retained(&mut self) {
        let most = self.settings.map_cache_bytes.max(FORWARD_BYTES_MIN);
        let frames = self.superblock.segment_bytes as usize / size_of::<[u64; 4]>();
        let is_full = self.forwards.bytes() >= most || !self.forwards.has_room(frames / 1024 + 1);
        let is_fixed = is_full
            || self.has_long_tables()
            || self.is_rolling_back
            || self.snapshots.is_changing()
            || self.snapshots.bookmarks_are_read()
            || self.snapshots.kept().iter().any(|kept| kept.damage.is_some());
        self.space.set_retained_fixed(is_fixed);
    }

    /// Returns whether a checkpoint should write forwarding tables.
    pub(super) fn has_long_tables(&self) -> bool {
        let most = self.superblock.segment_bytes / DIRTY_DIVISOR;
        self.forwards.dirty_bytes() > most as usize
    }

    /// Returns whether the bytes that snapshots retain must be measured.
    pub(crate) fn wants_measure(&self) -> bool {
        !self.snapshots.is_measured() && self.space.has_retained()
    }

    /// Returns the number of changes in who needs which segments.
    pub(crate) fn needs(&self) -> u64 {
        self.needs
    }

    /// Notes the bytes that snapshots retain in segments not yet measured: bytes that were
    /// live when they were taken, by segment. Does nothing if the figures are out of date, that is,
    /// if [`Core::needs`] has changed.
    pub(crate) fn measured(
        &mut self,
        needs: u64,
        mut direct: BTreeMap<SegmentUse, u64>,
        is_whole: bool,
    ) {
        if self.needs != needs {
            return;
        }
        let mut copies: BTreeMap<SegmentUse, [u64; 2]> = BTreeMap::new();
        // Several entries may lead to one copy.
        let all = self.forwards.copies().map(|copied| ((copied.to, copied.offset), copied));
        for copied in all.collect::<BTreeMap<_, _>>().into_values() {
            let [live, dead] = copies.entry(copied.to).or_default();
            *if copied.was_live { live } else { dead } += u64::from(copied.record_bytes);
        }
        let unknown: Vec<_> = self.space.unmeasured().collect();
        for segment in unknown {
            let of = SegmentUse { segment, generation: self.space.generation(segment) };
            let direct = direct.remove(&of);
            let [live, dead] = copies.remove(&of).unwrap_or_default();
            if direct.is_none() && live + dead == 0 && !is_whole {
                continue;
            }
            // Most copies that were live when they were made were still live when a snapshot was
            // taken later.
            let named = direct.unwrap_or(0).max(live);
            let most = u64::from(self.superblock.segment_bytes);
            self.space.set_retained_bytes(segment, (named + dead).min(most), named);
        }
        self.snapshots.set_measured(true);
    }
}

/// A record of the map or the lists of snapshots that was copied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MetadataCopy {
    /// The offset of the original.
    pub(crate) offset: u32,
    /// The copy, which counts as live.
    pub(crate) place: MetadataAddress,
    /// The first and the last snapshot that name the original.
    pub(crate) named: Option<(SeqNo, SeqNo)>,
}

//! Moving what snapshots need: the copy, the table that says where it is, and who retains it.
//!
//! ```text
//! frame of a retained segment: live           -> copied whole, mapped; the table has it, too
//!                              dead and named -> copied whole; only the table has it
//!                              neither        -> dropped
//! all copied -> the table says so -> a checkpoint has the table -> the segment is free
//! ```
//!
//! A frame that is copied whole has the same blocks at the same indexes, so a snapshot reads it
//! where the table says. Replay notes the copies of live frames again, by the same door; a copy of
//! a dead frame is in vain then, since its segment is still there.

use std::collections::BTreeMap;

use super::super::log::packing::MovedFrame;
use super::super::map::LivePiece;
use super::super::place::{FramePlace, SegmentUse};
use super::forwards::{Copied, Forwards};
use super::{Attempt, Core, Kept, Purpose};
use crate::base::{Result, SegmentId, SeqNo};
use crate::format::{MetadataAddress, Superblock};

/// Tables of fewer bytes than this are kept in memory whatever the map's cache: about a million
/// frames.
const FORWARD_BYTES_MIN: usize = 64 << 20;

/// Tables may have changed by this part of a segment before garbage collection leaves retained
/// segments alone until a checkpoint has written them.
const DIRTY_DIVISOR: u32 = 4;

/// What is known when a retained segment begins to be emptied.
#[derive(Clone, Debug)]
pub(crate) struct Holding {
    /// The segment, in this use.
    pub(crate) of: SegmentUse,
    /// The copies in it that tables lead to, and which snapshots need them.
    pub(crate) copies: BTreeMap<u32, (SeqNo, SeqNo)>,
    /// Snapshots whose maps name something in it.
    pub(crate) users: Vec<Kept>,
    /// Snapshots begun before; `None` if one was being made, which may name something in it, too.
    begun: Option<u64>,
}

/// A frame of a retained segment, to be copied whole.
pub(crate) struct HeldMove<'a> {
    /// Where it is.
    pub(crate) from: FramePlace,
    /// In which use of the segment.
    pub(crate) generation: u64,
    /// Its live blocks when it was encoded.
    pub(crate) pieces: &'a [LivePiece],
    /// The copy.
    pub(crate) frame: MovedFrame<'a>,
    /// Bytes that must fit in the open batch.
    pub(crate) room_bytes: usize,
    /// The first and the last snapshot that name it, if it is dead.
    pub(crate) range: Option<(SeqNo, SeqNo)>,
}

impl Core {
    /// Returns the forwarding tables.
    pub(crate) fn forwards(&self) -> &Forwards {
        &self.forwards
    }

    /// Returns what it takes to read maps of snapshots: the superblock, and where metadata was
    /// moved.
    pub(crate) fn to_read_kept(&self) -> (Superblock, Forwards) {
        (self.superblock.clone(), self.forwards.of_metadata())
    }

    /// Puts the tables in place that a snapshot is read by: from now on [`Core::locate`] returns
    /// where frames are, and not where the map names them.
    pub(crate) fn read_through(&mut self, forwards: Forwards) {
        self.forwards = forwards;
        self.is_view = true;
    }

    /// Returns whether this is the map of a snapshot.
    pub(crate) fn is_view(&self) -> bool {
        self.is_view
    }

    /// Makes this the map of a bookmark, by which nothing is read.
    pub(crate) fn be_bookmark(&mut self) {
        assert!(self.is_view, "a bookmark is no disk of a host");
        self.is_bookmark = true;
    }

    /// Returns whether this is the map of a bookmark.
    pub(crate) fn is_bookmark(&self) -> bool {
        self.is_bookmark
    }

    /// Returns where a frame is that a map of this drive or of one of its snapshots names in
    /// `generation` of its segment, and the generation there.
    #[inline]
    pub(crate) fn forwarded(&self, place: FramePlace, generation: u64) -> (FramePlace, u64) {
        self.forwards.resolve(place, generation)
    }

    /// Begins to empty a retained segment.
    pub(crate) fn begin_holding(&self, segment: SegmentId) -> Holding {
        let of = SegmentUse { segment, generation: self.space.generation(segment) };
        let kept = self.snapshots.kept().iter();
        let is_user = |kept: &&Kept| {
            let is_named = kept.named.contains(segment);
            is_named && !self.forwards.is_emptied(segment, kept.entry.watermark)
        };
        Holding {
            of,
            copies: self.forwards.copies_in(of),
            users: kept.filter(is_user).cloned().collect(),
            begun: (!self.snapshots.is_changing()).then(|| self.snapshots.begun()),
        }
    }

    /// Makes the next checkpoint write the tables again that have a piece in a segment.
    pub(crate) fn rewrite_forwards_in(&mut self, segment: SegmentId) {
        self.forwards.touch(|piece| piece.segment == segment);
    }

    /// Returns whether a retained segment is left as it is for now.
    pub(crate) fn must_stop_holding(&self, of: SegmentUse) -> bool {
        let is_it = self.space.generation(of.segment) == of.generation;
        let must_stay = !self.space.is_retained(of.segment) || self.is_read_in(of.segment);
        !is_it || must_stay || self.errand_is_over()
    }

    /// Returns whether what is known of a retained segment is no longer true, or it is left as it
    /// is for now: a snapshot taken meanwhile may name what has died since, and is not asked.
    pub(crate) fn holding_is_over(&self, holding: &Holding) -> bool {
        let is_known = holding.begun == Some(self.snapshots.begun());
        !is_known || self.must_stop_holding(holding.of)
    }

    /// Returns whether what snapshots need in a segment stays there, because a view or a clone
    /// reads it.
    fn is_read_in(&self, segment: SegmentId) -> bool {
        self.snapshots.are_read() || self.space.is_fixed(segment)
    }

    /// Copies a frame that the disk or a snapshot needs.
    ///
    /// # Errors
    /// `NoSpace`, `Poisoned`; nothing is appended then.
    pub(crate) fn move_held(&mut self, held: &HeldMove<'_>) -> Result<Attempt> {
        let HeldMove { from, generation, pieces, frame, room_bytes, range } = held;
        assert!(!pieces.is_empty() || range.is_some(), "what is copied is needed");
        assert!(frame.record_bytes() <= *room_bytes, "a copy fits the room that it asks for");
        assert_eq!(frame.blocks, from.blocks, "a frame that a snapshot may name is copied whole");
        if !self.make_room(*room_bytes, Purpose::Moved)? {
            return Ok(Attempt::Wait);
        }
        let is_missing = self.map.missing(frame.lba, u64::from(from.blocks)).is_some();
        if is_missing
            || self.space.generation(from.segment) != *generation
            || !self.has_right_key(frame)
            || !self.map.live_pieces(frame.lba, *from).eq(pieces.iter().copied())
        {
            return Ok(Attempt::Changed);
        }
        let place = self.push_moved(frame);
        if let (true, &Some((since, until))) = (pieces.is_empty(), range) {
            let was_live = false;
            self.note_copy(*from, place, Range { since, until, was_live });
        }
        Ok(Attempt::Done)
    }

    /// Notes that a frame, blocks of which are live, was moved whole, if snapshots may name it
    /// where it was: its data is as old as `since`.
    pub(super) fn note_live_copy(&mut self, from: FramePlace, to: FramePlace, since: SeqNo) {
        let until = self.snapshots.newest_watermark();
        self.note_copy(from, to, Range { since, until, was_live: true });
    }

    fn note_copy(&mut self, from: FramePlace, to: FramePlace, range: Range) {
        let used = |segment| SegmentUse { segment, generation: self.space.generation(segment) };
        let Range { mut since, mut until, was_live } = range;
        let of = used(from.segment);
        // A snapshot that needs what leads there needs the copy; and so does one that needs an
        // earlier copy, which this one replaces.
        let leads_there = self.forwards.range_of(of, from.offset);
        let before = self.forwards.copied(of, from.offset);
        for before in leads_there.into_iter().chain(before) {
            (since, until) = (since.min(before.0), until.max(before.1));
        }
        let copied = Copied {
            to: used(to.segment),
            offset: to.offset,
            record_bytes: to.record_bytes,
            was_live,
            is_meta: false,
            since,
            until,
        };
        if self.retain_copy(&copied) {
            self.space.hold_copy(to.segment, to.charged_bytes(), was_live);
            self.forwards.note(of, from.offset, copied);
        }
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
            if !kept.entry.clones.is_empty() {
                space.fix(to);
            }
        }
        is_needed
    }

    /// Notes that records of maps and lists of snapshots were copied out of a use of a segment, and
    /// are on the medium. From now on they do not count as live.
    pub(crate) fn note_metadata(&mut self, of: SegmentUse, copies: &[MetadataCopy]) {
        for &MetadataCopy { offset, place, since, until } in copies {
            let segment = place.segment;
            let to = SegmentUse { segment, generation: self.space.generation(segment) };
            let (was_live, is_meta) = (false, true);
            let (offset_there, record_bytes) = (place.offset, place.bytes);
            let copied =
                Copied { to, offset: offset_there, record_bytes, was_live, is_meta, since, until };
            if self.retain_copy(&copied) {
                self.forwards.note(of, offset, copied);
            }
        }
        self.forget_metadata(copies);
    }

    /// Counts copies as dead.
    pub(crate) fn forget_metadata(&mut self, copies: &[MetadataCopy]) {
        for MetadataCopy { place, .. } in copies {
            self.space.release(place.segment, place.bytes);
        }
    }

    /// Ends the emptying of a retained segment of which everything needed was copied. Returns
    /// whether nothing in it is needed any more.
    pub(crate) fn end_holding(&mut self, of: SegmentUse) -> bool {
        let segment = of.segment;
        let is_it = self.space.generation(segment) == of.generation;
        let is_needed = self.space.live_bytes_of(segment) > 0 || self.is_read_in(segment);
        if !is_it || is_needed || !self.space.is_retained(segment) {
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

    /// Lets garbage collection empty retained segments, unless the tables would get too long, a
    /// snapshot is damaged or read, or one is being made.
    pub(crate) fn fix_retained(&mut self) {
        let most = self.settings.map_cache_bytes.max(FORWARD_BYTES_MIN);
        let frames = self.superblock.segment_bytes as usize / size_of::<[u64; 4]>();
        let is_full = self.forwards.bytes() >= most || !self.forwards.has_room(frames / 1024 + 1);
        let is_fixed = is_full
            || self.has_long_tables()
            || self.snapshots.is_changing()
            || self.snapshots.are_read()
            || self.snapshots.kept().iter().any(|kept| kept.damage.is_some());
        self.space.set_retained_fixed(is_fixed);
    }

    /// Returns whether a checkpoint should write forwarding tables.
    pub(super) fn has_long_tables(&self) -> bool {
        let most = self.superblock.segment_bytes / DIRTY_DIVISOR;
        self.forwards.dirty_bytes() > most as usize
    }

    /// Returns whether it must be measured how much of retained segments snapshots hold.
    pub(crate) fn wants_measure(&self) -> bool {
        !self.snapshots.is_measured() && self.space.has_retained()
    }

    /// Notes what snapshots hold in retained segments of which that was not known: bytes that were
    /// live when they were taken, by segment.
    pub(crate) fn measured(&mut self, mut direct: BTreeMap<SegmentUse, u64>, is_whole: bool) {
        let mut copies: BTreeMap<SegmentUse, [u64; 2]> = BTreeMap::new();
        // Several entries may lead to one.
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
            // Copies that were live when they were made were so when a snapshot was taken after
            // that, most of them.
            let named = direct.unwrap_or(0).max(live);
            let most = u64::from(self.superblock.segment_bytes);
            self.space.set_held(segment, (named + dead).min(most), named);
        }
        self.snapshots.set_measured(true);
    }
}

/// A record of the map or the lists of snapshots that was copied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MetadataCopy {
    /// Its offset where maps or tables named it.
    pub(crate) offset: u32,
    /// The copy, which counts as live.
    pub(crate) place: MetadataAddress,
    /// The first snapshot that names it.
    pub(crate) since: SeqNo,
    /// The last one.
    pub(crate) until: SeqNo,
}

/// Which snapshots may name a frame, and whether blocks of it are live.
struct Range {
    since: SeqNo,
    until: SeqNo,
    was_live: bool,
}

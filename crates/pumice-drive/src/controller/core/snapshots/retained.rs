//! Moving frames and metadata that snapshots need: the copy, the table that leads to it, and the
//! snapshots that retain it.
//!
//! ```text
//! frame of a retained segment: the disk, an entry or a snapshot needs it -> copied whole
//!                              neither                                   -> dropped
//! all copied -> the table records it -> a checkpoint has the table -> the segment is free
//! ```
//!
//! ARCHITECTURE.md, "The life of a snapshot", states the whole rule.
//!
//! A frame that is copied whole has the same blocks at the same indexes, so a snapshot reads it at
//! the place that the table names. Replay records the copies of live frames again; the copy of a
//! dead frame is then useless, since its original segment still exists.

use std::collections::BTreeMap;

use super::super::super::log::packing::MovedFrame;
use super::super::super::map::LivePiece;
use super::super::super::place::{FramePlace, SegmentUse};
use super::super::super::space::Space;
use super::super::append::Moved;
use super::super::{Attempt, Core, Purpose};
use super::forwards::Copied;
use super::{Kept, Snapshots};
use crate::base::{Lba, Result, SegmentId, SeqNo};
use crate::format::{MetadataAddress, Snapshot};

/// The emptying of a retained segment.
#[derive(Clone, Debug)]
pub(crate) struct Emptying {
    /// The segment and its current use.
    pub(crate) of: SegmentUse,
    /// Snapshots whose maps name frames in it, oldest first.
    pub(crate) users: Vec<Snapshot>,
    /// [`Snapshots::needs`] when they were found.
    needs: u64,
}

/// A frame of a retained segment, to be copied whole.
pub(crate) struct RetainedMove<'a> {
    /// Its current place.
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

impl Snapshots {
    /// Records a change in the segments that snapshots need: an emptying under way ends.
    pub(super) fn needs_changed(&mut self) {
        self.needs += 1;
    }

    /// Returns the number of changes in the segments that snapshots need.
    pub(crate) fn needs(&self) -> u64 {
        self.needs
    }

    /// Returns whether the state found at the beginning of an emptying is out of date.
    pub(crate) fn is_void(&self, emptying: &Emptying) -> bool {
        self.needs != emptying.needs
    }

    /// Records the effect of a moved frame on snapshots: any snapshot since its data was written
    /// may name it at its former place.
    pub(in super::super) fn note_moved(&mut self, space: &mut Space, moved: Moved) {
        if let Some((from, since)) = moved.from {
            let named = (since, self.newest_watermark());
            self.note_frame(space, from, moved.to, Some(named), true);
        }
    }

    fn note_frame(
        &mut self,
        space: &mut Space,
        from: FramePlace,
        to: FramePlace,
        named: Option<(SeqNo, SeqNo)>,
        was_live: bool,
    ) {
        let copied = Copied {
            to: space.use_of(to.segment),
            offset: to.offset,
            record_bytes: to.record_bytes,
            was_live,
            is_meta: false,
            since: SeqNo(0),
            until: SeqNo(0),
        };
        if self.note_copy(space, (space.use_of(from.segment), from.offset), copied, named) {
            space.note_retained_copy(to.segment, to.charged_bytes(), was_live);
        }
    }

    /// Records that the frame or record at a place was copied: entries that lead to the place now
    /// lead to the copy, and snapshots from the first to the last of `named` find it through an
    /// entry. Returns whether a snapshot needs the copy.
    fn note_copy(
        &mut self,
        space: &mut Space,
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
            if self.retain_copy(space, &copied) {
                self.forwards.put(from, copied);
                is_needed = true;
            }
        }
        is_needed
    }

    /// Lets the snapshots that may need a copy retain its segment. Returns whether any snapshot
    /// does.
    fn retain_copy(&mut self, space: &mut Space, copied: &Copied) -> bool {
        let to = copied.to.segment;
        let mut is_needed = false;
        for kept in self.all_mut().filter(|kept| copied.is_needed_by(&kept.entry)) {
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
}

impl Core {
    /// Begins to empty a retained segment. Returns `None` if it is not retained, or must stay for
    /// now.
    pub(crate) fn begin_emptying(&self, segment: SegmentId) -> Option<Emptying> {
        if !self.space.is_retained(segment) || self.space.stays_retained(segment) {
            return None;
        }
        let of = self.space.use_of(segment);
        let kept = self.snapshots.kept.iter();
        let is_user = |kept: &&Kept| {
            let is_named = kept.named.contains(segment);
            is_named && !self.snapshots.forwards.is_emptied(segment, kept.entry.watermark)
        };
        let users = kept.filter(is_user).map(|kept| kept.entry.clone()).collect();
        Some(Emptying { of, users, needs: self.snapshots.needs })
    }

    /// Makes the next checkpoint rewrite the tables that have a piece in a segment.
    pub(crate) fn rewrite_forwards_in(&mut self, segment: SegmentId) {
        self.snapshots.forwards.touch(|piece| piece.segment == segment);
    }

    /// Returns whether a frame of the segment must be copied because the disk, an entry or a
    /// snapshot needs it at its place, if its leaf is in memory.
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
                || self.snapshots.forwards.leading_to(it.of, at..=at).next().is_some()
        };
        !self.snapshots.is_void(it) && !self.snapshots.forwards.has(it.of, at) && is_needed()
    }

    /// Copies a frame for which [`Core::needs_copy`] returns true.
    ///
    /// # Errors
    /// `NoSpace` or `Poisoned`; nothing has been appended.
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
        self.snapshots.note_frame(&mut self.space, *from, to, *named, !pieces.is_empty());
        Ok(Attempt::Done)
    }

    /// Records that records of maps and lists of snapshots were copied out of a use of a segment,
    /// and that the copies are on the medium. The copies no longer count as live.
    pub(crate) fn note_metadata(&mut self, of: SegmentUse, copies: &[MetadataCopy]) {
        for &MetadataCopy { offset, place, named } in copies {
            assert_ne!(place.segment, of.segment, "a copy lies in another segment");
            let copied = Copied {
                to: self.space.use_of(place.segment),
                offset: place.offset,
                record_bytes: place.bytes,
                was_live: false,
                is_meta: true,
                since: SeqNo(0),
                until: SeqNo(0),
            };
            self.snapshots.note_copy(&mut self.space, (of, offset), copied, named);
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
        let is_led_to = self.snapshots.forwards.leading_to(of, 0..=u32::MAX).next().is_some();
        if self.snapshots.is_void(it) || is_led_to || self.space.live_bytes_of(segment) > 0 {
            return false;
        }
        let sealed = self.log.sealed_seq();
        self.snapshots.forwards.set_emptied(of, sealed);
        let Self { snapshots, space, .. } = self;
        for kept in snapshots.all_mut() {
            if kept.retained.remove(segment) {
                space.let_go(segment);
            }
        }
        assert!(!self.space.is_retained(segment), "no snapshot needs an emptied segment");
        self.space.emptied(segment, sealed);
        self.snapshots.fix_retained(&mut self.space);
        true
    }

    /// Returns whether the bytes that snapshots retain must be measured.
    pub(crate) fn wants_measure(&self) -> bool {
        !self.snapshots.is_measured && self.space.has_retained()
    }

    /// Records the bytes that snapshots retain in segments not yet measured, by segment: bytes that
    /// were live when the snapshots were taken. Does nothing if the figures are out of date, that
    /// is, if [`Snapshots::needs`] has changed.
    pub(crate) fn measured(
        &mut self,
        needs: u64,
        mut direct: BTreeMap<SegmentUse, u64>,
        is_whole: bool,
    ) {
        if self.snapshots.needs != needs {
            return;
        }
        let mut copies: BTreeMap<SegmentUse, [u64; 2]> = BTreeMap::new();
        // Several entries may lead to one copy.
        let all =
            self.snapshots.forwards.copies().map(|copied| ((copied.to, copied.offset), copied));
        for copied in all.collect::<BTreeMap<_, _>>().into_values() {
            let [live, dead] = copies.entry(copied.to).or_default();
            *if copied.was_live { live } else { dead } += u64::from(copied.record_bytes);
        }
        let unknown: Vec<_> = self.space.unmeasured().collect();
        for segment in unknown {
            let of = self.space.use_of(segment);
            let direct = direct.remove(&of);
            let [live, dead] = copies.remove(&of).unwrap_or_default();
            if direct.is_none() && live + dead == 0 && !is_whole {
                continue;
            }
            // Most copies that were live when they were made were still live when a later snapshot
            // was taken.
            let named = direct.unwrap_or(0).max(live);
            let most = u64::from(self.superblock.segment_bytes);
            self.space.set_retained_bytes(segment, (named + dead).min(most), named);
        }
        self.snapshots.is_measured = true;
    }
}

/// A copied record of the map or the lists of snapshots.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MetadataCopy {
    /// The offset of the original.
    pub(crate) offset: u32,
    /// The copy, which counts as live.
    pub(crate) place: MetadataAddress,
    /// The first and the last snapshot that name the original.
    pub(crate) named: Option<(SeqNo, SeqNo)>,
}

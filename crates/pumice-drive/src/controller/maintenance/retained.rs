//! Emptying a segment that snapshots need: frames that they name in it, and live frames, are copied
//! whole; a table leads to the copies, and the rest is dead. ARCHITECTURE.md, "The life of a
//! snapshot", states the rule.
//!
//! ```text
//! frame of the victim: live -> every snapshot since its batch names it
//!                      dead -> the first such snapshot names it? --no--> none does
//!                                yes: the last one that does, by binary search
//! named, live, or target of an entry -> copied; otherwise dropped
//! ```
//!
//! The maps of snapshots stay as they are on the medium, and are queried batch by batch. No state
//! is carried from one batch to the next, and any change in the segments that snapshots need ends
//! the emptying: frames copied until then are not copied again.

use std::collections::BTreeMap;

use super::super::core::{Attempt, Core, Emptying, Kept, MoveReason, RetainedMove};
use super::super::drive::Drive;
use super::super::log::packing::MovedFrame;
use super::super::log::records::{Found, check_possible, records};
use super::super::log::segment_scan::SegmentScan;
use super::super::map::LivePiece;
use super::super::place::{FramePlace, SegmentUse, blocks_of_frame};
use super::super::recovery::KeptMap;
use super::moving::{Frame, Mover, mark_dead, sources_of};
use crate::base::{Lba, Result, SegmentId, SeqNo};
use crate::format::{BatchHeader, RECORD_HEADER_BYTES, Record, SOURCE_BYTES, Snapshot, Stream};

/// Maximum number of snapshot maps in memory: a binary search in a day of hourly snapshots queries
/// five.
const MAPS_MAX: usize = 6;

/// Bytes copied before other tasks have a turn, as in `gc`.
const TURN_BYTES: u64 = 128 << 10;

/// The maps of the most recently queried snapshots, the latest last.
struct Maps<'a> {
    drive: &'a Drive,
    open: Vec<KeptMap>,
}

/// A frame of a batch, and the bounds of the number of snapshots that name it, counted from the
/// first snapshot that can name it.
struct Candidate<'b> {
    found: &'b Found<'b>,
    lba: Lba,
    place: FramePlace,
    /// Lower bound of that number.
    named: usize,
    /// Upper bound of that number.
    unnamed: usize,
}

impl Candidate<'_> {
    /// Returns the snapshot to query next.
    fn question(&self) -> Option<usize> {
        match self.named {
            named if named == self.unnamed => None,
            0 => Some(0),
            named => Some(named.midpoint(self.unnamed)),
        }
    }

    fn answer(&mut self, asked: usize, is_named: bool) {
        match is_named {
            true => self.named = asked + 1,
            false => self.unnamed = asked,
        }
        assert!(self.named <= self.unnamed, "the bounds of a search do not cross");
    }
}

impl Maps<'_> {
    /// Returns which of some frames a snapshot names. A snapshot that cannot be read may name all.
    async fn ask(
        &mut self,
        snapshot: &Snapshot,
        of: SegmentUse,
        frames: &[(Lba, FramePlace)],
    ) -> Vec<bool> {
        let watermark = snapshot.watermark;
        match self.open.iter().position(|map| map.watermark() == watermark) {
            Some(at) => {
                let map = self.open.remove(at);
                self.open.push(map);
            }
            None => {
                let (superblock, forwards) = self.drive.core().to_read_kept();
                let medium = &*self.drive.medium;
                match KeptMap::open(medium, &superblock, snapshot, &forwards).await {
                    Ok(map) => self.open.push(map),
                    Err(error) => {
                        tracing::warn!(
                            snapshot = snapshot.name,
                            error = %error.chain(),
                            "cannot read the map of a snapshot: keeping every frame that it may \
                             name"
                        );
                        return vec![true; frames.len()];
                    }
                }
            }
        }
        if self.open.len() > MAPS_MAX {
            self.open.remove(0);
        }
        assert!(self.open.len() <= MAPS_MAX, "few maps are in memory");
        match self.open.last_mut() {
            Some(map) => map.names(&*self.drive.medium, of, frames).await,
            None => vec![true; frames.len()],
        }
    }

    /// Queries snapshots until the number of snapshots that name each frame is known.
    async fn search(&mut self, of: SegmentUse, users: &[Snapshot], frames: &mut [Candidate<'_>]) {
        loop {
            let mut questions: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
            for (at, frame) in frames.iter().enumerate() {
                if let Some(user) = frame.question() {
                    questions.entry(user).or_default().push(at);
                }
            }
            if questions.is_empty() {
                return;
            }
            for (user, asked) in questions {
                let snapshot = users.get(user).expect("only users are asked");
                let places = asked.iter().filter_map(|&at| frames.get(at));
                let places: Vec<_> = places.map(|frame| (frame.lba, frame.place)).collect();
                let named = self.ask(snapshot, of, &places).await;
                assert_eq!(named.len(), asked.len(), "each question has an answer");
                for (at, is_named) in asked.into_iter().zip(named) {
                    if let Some(frame) = frames.get_mut(at) {
                        frame.answer(user, is_named);
                    }
                }
            }
        }
    }
}

impl Drive {
    /// Copies the frames that the disk and snapshots need out of a retained segment.
    pub(crate) async fn empty_retained(&self, segment: SegmentId) -> Result<()> {
        if self.core().space().stream(segment) == Stream::Meta {
            return Box::pin(self.empty_kept_metadata(segment)).await;
        }
        let last_seq = self.until_written(segment).await;
        let Some(emptying) = self.core().begin_emptying(segment) else { return Ok(()) };
        self.with_core(|core| core.begin_victim(segment));
        let mut mover = Mover::new(self, MoveReason::Empty);
        let copied = self.copy_needed(&emptying, &mut mover, last_seq).await?;
        let Some(is_whole) = copied else { return Ok(()) };
        if self.reap_for(super::gc::REAP_NS).await? {
            // The rest may be dead.
            return Ok(());
        }
        let is_whole = is_whole && !mover.has_left;
        let is_emptied = is_whole && self.with_core(|core| core.end_emptying(&emptying));
        self.with_core(|core| core.victim_scanned(segment));
        let is_over = self.core().must_end() || self.core().snapshots().is_void(&emptying);
        if !is_emptied && !is_over {
            tracing::warn!(
                %segment,
                "a segment that snapshots need cannot be emptied for now, because something in it \
                 is damaged or cannot be read; a check lists the damage"
            );
            self.with_core(|core| core.set_stuck(segment));
        }
        Ok(())
    }

    /// Copies the needed frames, batch by batch. Returns whether every batch and record was found;
    /// `None` if the emptying ended early.
    async fn copy_needed(
        &self,
        emptying: &Emptying,
        mover: &mut Mover<'_>,
        last_seq: SeqNo,
    ) -> Result<Option<bool>> {
        let SegmentUse { segment, generation } = emptying.of;
        let superblock = self.core().superblock().clone();
        let (uuid, shape) = (superblock.uuid, superblock.shape());
        let mut scan = SegmentScan::new(&*self.medium, uuid, &shape, segment, generation);
        let mut maps = Maps { drive: self, open: Vec::new() };
        let moved_total = || self.core().counters().moved_bytes.get();
        let (mut is_whole, mut last) = (true, SeqNo(0));
        loop {
            let before = scan.offset();
            let is_over = {
                let core = self.core();
                core.must_end() || core.snapshots().is_void(emptying) || core.job_is_over()
            };
            if is_over {
                return Ok(None);
            }
            let Some((header, body)) = scan.next().await else { break };
            let moved_before = moved_total();
            last = header.seq;
            is_whole &= self.copy_needed_of(emptying, (&header, body), mover, &mut maps).await?;
            let moved_bytes = moved_total().saturating_sub(moved_before);
            let passed = scan.offset().saturating_sub(before);
            self.with_core(|core| core.earn(passed, moved_bytes));
            self.pause_gently(passed).await;
            if last >= last_seq {
                // Bytes that a crash left beyond this offset are not part of the log.
                break;
            }
        }
        let rest = superblock.segment_bytes.saturating_sub(scan.offset());
        self.with_core(|core| core.earn(rest, 0));
        Ok(Some(is_whole && last >= last_seq && scan.skipped_bytes == 0))
    }

    /// Copies the needed frames of a batch. Returns whether every record was found.
    async fn copy_needed_of(
        &self,
        emptying: &Emptying,
        (header, body): (&BatchHeader, &[u8]),
        mover: &mut Mover<'_>,
        maps: &mut Maps<'_>,
    ) -> Result<bool> {
        let superblock = self.core().superblock().clone();
        let (mut is_whole, mut found) = (true, Vec::new());
        for record in records(self.medium.cipher(), header, body) {
            match record {
                Ok(record) if check_possible(&record, &superblock).is_ok() => found.push(record),
                _ => is_whole = false,
            }
        }
        let seq = header.seq;
        let before = emptying.users.partition_point(|user| user.watermark < seq);
        let (_, users) = emptying.users.split_at(before);
        let mut frames = self.candidates(users.len(), &found, mover).await;
        maps.search(emptying.of, users, &mut frames).await;
        let mut turn_ends = self.core().counters().moved_bytes.get() + TURN_BYTES;
        for frame in &frames {
            self.wait_for_clean_leaves().await;
            let watermark = |at: usize| users.get(at).map(|user| user.watermark);
            let named =
                frame.named.checked_sub(1).and_then(|last| Some((watermark(0)?, watermark(last)?)));
            mover.move_retained(emptying, seq, frame, named).await?;
            if self.core().counters().moved_bytes.get() >= turn_ends {
                self.clock.sleep_ns(0).await;
                turn_ends = self.core().counters().moved_bytes.get() + TURN_BYTES;
            }
        }
        Ok(is_whole)
    }

    /// Returns the frames of a batch, each with the bounds that are known without querying any of
    /// the `users`, the snapshots that can name it.
    async fn candidates<'b>(
        &self,
        users: usize,
        found: &'b [Found<'b>],
        mover: &mut Mover<'_>,
    ) -> Vec<Candidate<'b>> {
        let mut frames = Vec::new();
        for found in found {
            let Record::Data { lba, lba_count, .. } = found.record else { continue };
            let place = FramePlace {
                segment: found.place.segment,
                offset: found.place.offset,
                record_bytes: found.record.record_bytes(),
                blocks: blocks_of_frame(lba_count.into()),
            };
            if self.load_to_change(lba, u64::from(lba_count)).await.is_err() {
                mover.has_left = true;
                continue;
            }
            // A frame that is live now, even if it dies before its turn, was live when each of the
            // snapshots was taken.
            let is_live = self.core().map().live_pieces(lba, place).next().is_some();
            let named = if is_live { users } else { 0 };
            frames.push(Candidate { found, lba, place, named, unnamed: users });
        }
        frames
    }

    /// Measures the bytes that snapshots retain of each segment, from their tables: after an
    /// opening, and after the deletion of a snapshot.
    pub(crate) async fn measure_retained(&self) {
        let (needs, kept): (u64, Vec<Kept>) = {
            let core = self.core();
            let with_data = core.snapshots().kept().iter().filter(|kept| !kept.entry.is_bookmark);
            (core.snapshots().needs(), with_data.cloned().collect())
        };
        let (superblock, forwards) = self.core().to_read_kept();
        // The last batch in each segment, and the last batch contained in a snapshot so far.
        let mut open: BTreeMap<SegmentUse, (SeqNo, SeqNo)> = {
            let core = self.core();
            let space = core.space();
            let used = |segment| SegmentUse { segment, generation: space.generation(segment) };
            let ends = |segment| (space.last_seq(segment), SeqNo(0));
            space.unmeasured().map(|segment| (used(segment), ends(segment))).collect()
        };
        let mut direct: BTreeMap<SegmentUse, u64> = BTreeMap::new();
        let mut is_whole = true;
        for kept in &kept {
            if open.is_empty() || self.core().must_end() {
                break;
            }
            if !open.keys().any(|of| kept.named.contains(of.segment)) {
                continue;
            }
            let opened = KeptMap::open(&*self.medium, &superblock, &kept.entry, &forwards);
            let map = match opened.await {
                Ok(map) => map,
                Err(error) => {
                    tracing::warn!(error = %error.chain(), "a snapshot cannot be measured");
                    is_whole = false;
                    continue;
                }
            };
            for (of, live_bytes, last_seq) in map.segments() {
                if live_bytes == 0 {
                    continue;
                }
                let Some((end, seen)) = open.get_mut(&of) else { continue };
                if last_seq > *seen {
                    *direct.entry(of).or_default() += u64::from(live_bytes);
                    *seen = last_seq;
                }
                // Nothing was written to the segment after the snapshot.
                if last_seq >= *end {
                    open.remove(&of);
                }
            }
        }
        self.with_core(|core| core.measured(needs, direct, is_whole));
    }
}

impl Mover<'_> {
    /// Copies a frame whole, if it is needed; the snapshots of `named` name it. A damaged frame
    /// stays in place.
    async fn move_retained(
        &mut self,
        emptying: &Emptying,
        seq: SeqNo,
        candidate: &Candidate<'_>,
        named: Option<(SeqNo, SeqNo)>,
    ) -> Result<()> {
        let &Candidate { found, lba, place, .. } = candidate;
        let drive = self.drive;
        let Record::Data { encoding, payload_checksum, .. } = found.record else { return Ok(()) };
        if drive.load_to_change(lba, u64::from(place.blocks)).await.is_ok()
            && !drive.core().needs_copy(emptying, lba, place, named)
        {
            return Ok(());
        }
        let again = self.payload_again(found).await;
        let Some(payload) = again.whole(found) else {
            self.has_left = true;
            return Ok(());
        };
        let generation = found.place.generation;
        let is_whole = true;
        let frame = Frame { lba, generation, encoding, payload, payload_checksum, place, is_whole };
        let all = sources_of(seq, found, self.drive.medium.cipher());
        loop {
            if drive.load_to_change(lba, u64::from(place.blocks)).await.is_err() {
                self.has_left = true;
                return Ok(());
            }
            if !drive.core().needs_copy(emptying, lba, place, named) {
                return Ok(());
            }
            let pieces: Vec<LivePiece> = drive.core().map().live_pieces(lba, place).collect();
            let live: usize = pieces.iter().map(|piece| usize::from(piece.count)).sum();
            let is_live = live == usize::from(place.blocks);
            let sources = if is_live { all.clone() } else { mark_dead(&all, &pieces) };
            self.take_key();
            let encoded = self.copy(&frame, sources);
            let frame: MovedFrame<'_> = self.moved_frame(&encoded, frame.payload);
            let copy = RetainedMove {
                from: place,
                pieces: &pieces,
                frame,
                room_bytes: RECORD_HEADER_BYTES
                    + usize::from(place.blocks) * SOURCE_BYTES
                    + payload.len(),
                named,
            };
            let attempt =
                |core: &mut Core| Ok(core.move_retained(emptying, &copy)?.unless_waiting());
            if drive.with_room(attempt).await? == Attempt::Done {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a binary search finds the last snapshot that names a frame, with few queries.
    use super::*;
    use crate::format::RecordAddress;

    #[test]
    fn the_last_that_names_a_frame_is_found_by_halving() {
        let (lba, segment) = (Lba(0), SegmentId(0));
        let record = Record::Fill { lba, lba_count: 1, byte: 0 };
        let place = RecordAddress { generation: 0, segment, offset: 0 };
        let found = Found { record, place, bytes: &[] };
        let place = FramePlace { segment, offset: 0, record_bytes: 0, blocks: 1 };
        for users in 0..40 {
            for end in 0..=users {
                let (named, unnamed) = (0, users);
                let mut frame = Candidate { found: &found, lba, place, named, unnamed };
                let mut asked = 0;
                while let Some(user) = frame.question() {
                    frame.answer(user, user < end);
                    asked += 1;
                }
                assert_eq!(frame.named, end, "of {users}");
                assert!(asked <= 7, "{asked} questions");
            }
        }
    }
}

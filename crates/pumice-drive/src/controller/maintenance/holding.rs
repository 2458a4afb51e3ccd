//! Emptying a segment that snapshots need: what they name in it, and what is live, is copied whole;
//! a table says where to, and the rest is dead.
//!
//! ```text
//! record of the victim --live, or a table leads to it?----------------------> copied
//!                      --dead, and a snapshot was taken after it was written?
//!                           the oldest such snapshot names it? --no--> dropped
//!                               yes: the last one that does, by halving --> copied
//! ```
//!
//! Frames only die, so the oldest snapshot that may name one decides, and those that name it are
//! neighbors. Their maps stay as they are on the medium, and are asked batch by batch.
//!
//! A copy is needed by two kinds of snapshots: tables lead older ones to it, and those taken while
//! it was live name it where it is. A frame that was copied before is copied again only for
//! snapshots taken after that: the disk names it where it was once it was rolled back.
//!
//! Who is asked is settled when the emptying begins. A snapshot that is taken meanwhile names what
//! was live then, and that may be dead when its turn comes: so a snapshot ends the emptying.

use std::collections::BTreeMap;

use super::super::core::{Attempt, Core, HeldMove, Holding, Kept};
use super::super::drive::Drive;
use super::super::log::packing::MovedFrame;
use super::super::log::records::{Found, check_possible, records};
use super::super::log::segment_scan::SegmentScan;
use super::super::map::LivePiece;
use super::super::place::{FramePlace, SegmentUse, blocks_of_frame};
use super::super::recovery::KeptMap;
use super::joining::Scanned;
use super::moving::{Frame, Mover, mark_dead, sources_of};
use crate::base::{Lba, Result, SegmentId, SeqNo};
use crate::format::{RECORD_HEADER_BYTES, Record, SOURCE_BYTES, Stream};

/// Maps of snapshots in memory: halving a day of hourly snapshots asks five.
const MAPS_MAX: usize = 6;

/// Bytes that are copied before other tasks have a turn, as in `gc`.
const TURN_BYTES: u64 = 128 << 10;

/// The maps of snapshots that were asked last, the newest last.
struct Maps<'a> {
    drive: &'a Drive,
    open: Vec<KeptMap>,
}

/// A frame of a batch.
struct Candidate<'b> {
    found: &'b Found<'b>,
    lba: Lba,
    place: FramePlace,
    need: Need,
}

/// What is known about who needs a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// No one.
    None,
    /// The disk, perhaps.
    Live,
    /// Snapshots from the first to the last of these batches.
    Range(SeqNo, SeqNo),
    /// Of the users of the segment, those from `first` on may name it. `named` does; `unnamed` does
    /// not, nor do those after it. Those of `led` need it in any case.
    Search { first: usize, named: Option<usize>, unnamed: usize, led: Option<(SeqNo, SeqNo)> },
}

impl Need {
    /// Returns the user to ask next.
    fn question(&self) -> Option<usize> {
        let &Need::Search { first, named, unnamed, .. } = self else { return None };
        match named {
            None if first < unnamed => Some(first),
            Some(named) if named + 1 < unnamed => Some(named.midpoint(unnamed)),
            _ => None,
        }
    }

    fn answer(&mut self, asked: usize, is_named: bool) {
        if let Need::Search { named, unnamed, .. } = self {
            if is_named {
                *named = Some(asked);
            } else {
                *unnamed = asked;
            }
        }
    }

    /// Ends the search among `users`.
    fn settle(&mut self, users: &[Kept]) {
        let &mut Need::Search { first, named, led, .. } = self else { return };
        let watermark = |at: usize| users.get(at).map(|kept| kept.entry.watermark);
        let named = named.and_then(|named| Some((watermark(first)?, watermark(named)?)));
        let both = led.into_iter().chain(named);
        *self = match both.reduce(|all, one| (all.0.min(one.0), all.1.max(one.1))) {
            Some((since, until)) => Need::Range(since, until),
            None => Need::None,
        };
    }
}

impl Maps<'_> {
    /// Asks a snapshot which of some frames it names. If it cannot be read, it may name all.
    async fn ask(
        &mut self,
        kept: &Kept,
        of: SegmentUse,
        frames: &[(Lba, FramePlace)],
    ) -> Vec<bool> {
        let watermark = kept.entry.watermark;
        match self.open.iter().position(|map| map.watermark() == watermark) {
            Some(at) => {
                let map = self.open.remove(at);
                self.open.push(map);
            }
            None => {
                let (superblock, forwards) = self.drive.core().to_read_kept();
                let medium = &*self.drive.medium;
                match KeptMap::open(medium, &superblock, &kept.entry, &forwards).await {
                    Ok(map) => self.open.push(map),
                    Err(error) => {
                        tracing::warn!(
                            snapshot = kept.entry.name,
                            error = %error.chain(),
                            "cannot read the map of a snapshot: what it may name is kept"
                        );
                        return vec![true; frames.len()];
                    }
                }
            }
        }
        if self.open.len() > MAPS_MAX {
            self.open.remove(0);
        }
        match self.open.last_mut() {
            Some(map) => map.names(&*self.drive.medium, of, frames).await,
            None => vec![true; frames.len()],
        }
    }
}

impl Drive {
    /// Copies what the disk and snapshots need out of a retained segment.
    pub(crate) async fn empty_retained(&self, segment: SegmentId) -> Result<()> {
        if self.core().space().stream(segment) == Stream::Meta {
            return Box::pin(self.empty_kept_metadata(segment)).await;
        }
        // A batch that is still on its way would not be found.
        let last_seq = self.core().space().last_seq(segment);
        let is_written = |core: &mut Core| {
            (core.log().written_seq() >= last_seq || core.must_end()).then_some(())
        };
        self.wait_for(&self.queues.progress, is_written).await;
        let holding = {
            let core = self.core();
            core.begin_holding(segment)
        };
        self.with_core(|core| core.begin_victim(segment));
        let is_stopped = || self.core().must_end() || self.core().holding_is_over(&holding);
        let mut mover = Mover::new(self);
        let is_whole = self.scan_retained(&holding, &mut mover, last_seq).await?;
        if is_stopped() {
            return Ok(());
        }
        if self.reap_for(super::gc::REAP_NS).await? {
            // What is left may be dead.
            return Ok(());
        }
        let is_all = is_whole && !mover.has_left && !mover.has_unreadable;
        let end = |core: &mut Core| !core.holding_is_over(&holding) && core.end_holding(holding.of);
        let is_emptied = is_all && self.with_core(end);
        self.with_core(|core| core.victim_scanned(segment));
        if !is_emptied && !is_stopped() {
            tracing::warn!(
                %segment,
                "a segment that snapshots need cannot be emptied for now, because something in it \
                 is damaged or cannot be read; `pumice check` lists what"
            );
            self.with_core(|core| core.set_stuck(segment));
        }
        Ok(())
    }

    /// Copies what is needed, batch by batch. Returns whether every batch and record was found.
    async fn scan_retained(
        &self,
        holding: &Holding,
        mover: &mut Mover<'_>,
        last_seq: SeqNo,
    ) -> Result<bool> {
        let SegmentUse { segment, generation } = holding.of;
        let superblock = self.core().superblock().clone();
        let (uuid, shape) = (superblock.uuid, superblock.shape());
        let mut scan = SegmentScan::new(&*self.medium, uuid, &shape, segment, generation);
        let mut maps = Maps { drive: self, open: Vec::new() };
        let moved_total = || self.core().counters().moved_bytes.get();
        let (mut is_whole, mut last) = (true, SeqNo(0));
        loop {
            let before = scan.offset();
            if self.core().must_end() || self.core().holding_is_over(holding) {
                return Ok(false);
            }
            let Some((header, body)) = scan.next().await else { break };
            let moved_before = moved_total();
            last = last.max(header.seq);
            let batch = Scanned { header: &header, body };
            is_whole &= self.hold_batch(holding, batch, mover, &mut maps).await?;
            let moved_bytes = moved_total().saturating_sub(moved_before);
            let passed = scan.offset().saturating_sub(before);
            self.with_core(|core| core.earn(passed, moved_bytes));
            self.pause_gently(passed).await;
        }
        let rest = superblock.segment_bytes.saturating_sub(scan.offset());
        self.with_core(|core| core.earn(rest, 0));
        // A use that was emptied of something before may say that it has a later batch.
        Ok(is_whole && last >= last_seq && scan.skipped_bytes == 0)
    }

    /// Copies what is needed of a batch. Returns whether every record was found.
    async fn hold_batch(
        &self,
        holding: &Holding,
        batch: Scanned<'_>,
        mover: &mut Mover<'_>,
        maps: &mut Maps<'_>,
    ) -> Result<bool> {
        let superblock = self.core().superblock().clone();
        let (mut is_whole, mut found) = (true, Vec::new());
        for record in records(self.medium.cipher(), batch.header, batch.body) {
            match record {
                Ok(record) if check_possible(&record, &superblock).is_ok() => found.push(record),
                _ => is_whole = false,
            }
        }
        let seq = batch.header.seq;
        let mut frames = self.candidates(holding, seq, &found, mover).await?;
        search(holding, &mut frames, maps).await;
        let mut turn_ends = self.core().counters().moved_bytes.get() + TURN_BYTES;
        for frame in &frames {
            self.wait_for_clean_leaves().await;
            let range = match frame.need {
                Need::None | Need::Search { .. } => continue,
                Need::Live => None,
                Need::Range(since, until) => Some((since, until)),
            };
            mover.hold_record(holding, seq, frame.found, range).await?;
            if self.core().counters().moved_bytes.get() >= turn_ends {
                self.clock.sleep_ns(0).await;
                turn_ends = self.core().counters().moved_bytes.get() + TURN_BYTES;
            }
        }
        Ok(is_whole)
    }

    /// Returns the frames of a batch, with what is known without asking maps of snapshots.
    async fn candidates<'b>(
        &self,
        holding: &Holding,
        seq: SeqNo,
        found: &'b [Found<'b>],
        mover: &mut Mover<'_>,
    ) -> Result<Vec<Candidate<'b>>> {
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
            let core = self.core();
            let is_live = core.map().live_pieces(lba, place).next().is_some();
            let copied = core.forwards().copied(holding.of, place.offset);
            let need = if is_live {
                Need::Live
            } else {
                // If it was copied before, later snapshots name it where it was only if the disk
                // was rolled back meanwhile.
                let is_before = |kept: &Kept| match copied {
                    Some((_, until)) => kept.entry.watermark <= until,
                    None => kept.entry.watermark < seq,
                };
                let first = holding.users.partition_point(is_before);
                let unnamed = holding.users.len();
                // Snapshots that were taken when a copy was live name it themselves.
                let led = holding.copies.get(&place.offset).copied();
                let led = led.filter(|_| copied.is_none());
                Need::Search { first, named: None, unnamed, led }
            };
            frames.push(Candidate { found, lba, place, need });
        }
        Ok(frames)
    }

    /// Measures what snapshots hold of each segment, by their tables: after an opening, and after
    /// one was deleted.
    pub(super) async fn measure_retained(&self) {
        let kept: Vec<Kept> = {
            let core = self.core();
            let with_data = core.snapshots().kept().iter().filter(|kept| !kept.entry.is_bookmark);
            with_data.cloned().collect()
        };
        let (superblock, forwards) = self.core().to_read_kept();
        // The last batch in each segment, and the last that a snapshot so far was taken after.
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
                // Nothing was written to it after the snapshot.
                if last_seq >= *end {
                    open.remove(&of);
                }
            }
        }
        self.with_core(|core| core.measured(direct, is_whole));
    }
}

/// Asks the maps of snapshots until it is known which of them name which frames.
async fn search(holding: &Holding, frames: &mut [Candidate<'_>], maps: &mut Maps<'_>) {
    loop {
        let mut questions: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (at, frame) in frames.iter().enumerate() {
            if let Some(user) = frame.need.question() {
                questions.entry(user).or_default().push(at);
            }
        }
        if questions.is_empty() {
            break;
        }
        for (user, asked) in questions {
            let Some(kept) = holding.users.get(user) else { continue };
            let places = asked.iter().filter_map(|&at| frames.get(at));
            let places: Vec<_> = places.map(|frame| (frame.lba, frame.place)).collect();
            let named = maps.ask(kept, holding.of, &places).await;
            for (at, is_named) in asked.into_iter().zip(named) {
                if let Some(frame) = frames.get_mut(at) {
                    // A search that its first question did not end goes on from there.
                    frame.need.answer(user, is_named);
                }
            }
        }
        for frame in frames.iter_mut() {
            if frame.need.question().is_none() {
                frame.need.settle(&holding.users);
            }
        }
    }
    frames.iter_mut().for_each(|frame| frame.need.settle(&holding.users));
}

impl Mover<'_> {
    /// Copies a frame whole, if it is live, or snapshots of `range` name it. One that is damaged
    /// stays where it is.
    async fn hold_record(
        &mut self,
        holding: &Holding,
        seq: SeqNo,
        found: &Found<'_>,
        range: Option<(SeqNo, SeqNo)>,
    ) -> Result<()> {
        let Record::Data { lba, encoding, payload_checksum, lba_count, .. } = found.record else {
            return Ok(());
        };
        let place = FramePlace {
            segment: found.place.segment,
            offset: found.place.offset,
            record_bytes: found.record.record_bytes(),
            blocks: blocks_of_frame(lba_count.into()),
        };
        let again = match self.payload_again(found).await {
            Ok(again) => again,
            Err(()) => {
                self.has_left = true;
                return Ok(());
            }
        };
        let payload = again.as_deref().unwrap_or(found.payload());
        let generation = found.place.generation;
        let is_whole = true;
        let frame = Frame { lba, generation, encoding, payload, payload_checksum, place, is_whole };
        let all = sources_of(seq, found, self.drive.medium.cipher());
        let drive = self.drive;
        loop {
            if drive.load_to_change(lba, u64::from(place.blocks)).await.is_err() {
                self.has_left = true;
                return Ok(());
            }
            let pieces: Vec<LivePiece> = drive.core().map().live_pieces(lba, place).collect();
            if pieces.is_empty() && range.is_none() {
                // It died meanwhile: who names it is not known, and the next pass asks.
                self.has_left = true;
                return Ok(());
            }
            let live: usize = pieces.iter().map(|piece| usize::from(piece.count)).sum();
            let is_live = live == usize::from(place.blocks);
            let sources = if is_live { all.clone() } else { mark_dead(&all, &pieces) };
            self.take_key();
            let encoded = self.copy(&frame, sources);
            let frame: MovedFrame<'_> = self.moved_frame(&encoded, frame.payload);
            let held = HeldMove {
                from: place,
                generation: holding.of.generation,
                pieces: &pieces,
                frame,
                room_bytes: RECORD_HEADER_BYTES
                    + usize::from(place.blocks) * SOURCE_BYTES
                    + payload.len(),
                range,
            };
            let attempt = |core: &mut Core| {
                if core.holding_is_over(holding) {
                    return Ok(Some(Attempt::Done));
                }
                Ok(core.move_held(&held)?.unless_waiting())
            };
            if drive.with_room(attempt).await? == Attempt::Done {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: halving finds the last snapshot that names a frame, and asks few.
    use super::*;

    #[test]
    fn the_last_that_names_a_frame_is_found_by_halving() {
        for users in 0..40 {
            for first in 0..=users {
                for end in first..=users {
                    let mut need = Need::Search { first, named: None, unnamed: users, led: None };
                    let mut asked = 0;
                    while let Some(user) = need.question() {
                        need.answer(user, (first..end).contains(&user));
                        asked += 1;
                    }
                    let Need::Search { named, .. } = need else { panic!("a search goes on") };
                    assert_eq!(named, (first..end).last(), "{users} {first} {end}");
                    assert!(asked <= 7, "{asked} questions");
                }
            }
        }
    }
}

//! Walking the log from a checkpoint, or from its first batch, to its end.
//!
//! ```text
//! tail of each stream -> the one whose next batch continues the chain -> ... -> end
//! ```
//!
//! A stream's next batch follows its last one, or is at the start of the segment that a record
//! named as the next. A walk therefore reads the log and nothing else, whatever the drive's size.
//!
//! **Where the log ends.** The log ends at the first batch that is missing, wrong or unreadable,
//! even when it is read again in several ways, unless that batch is known to have been durable: the
//! superblock's watermark, or the watermark in any batch found beyond, reaches it. Such a batch is
//! damaged and not a torn tail. A damaged batch whose header and record headers are intact still
//! states which blocks it contained, and the walk continues: reads of blocks whose payload is wrong
//! fail, and nothing older is returned in their place. Otherwise the walk fails. Batches found
//! beyond the end are counted in [`Cut`]. A batch whose last write ends in the next batch ends the
//! log if the next batch does not count.
//!
//! **At the end of the log**, a damaged batch cannot be distinguished from one torn by a power
//! loss, and need not be: in both cases, a batch that is restored as a whole contains the host's
//! last writes. The walk accepts it, and recovery writes the restored pages
//! ([`WalkEnd::completed`]).
//!
//! This module only reads. Bytes from the medium are never trusted: every length is checked before
//! use.

mod divided;
mod restoring;

use std::collections::VecDeque;

use super::by_stream::ByStream;
use super::packing::BATCH_LIMIT;
use super::records::{Body, body_state, check_possible, records};
use super::window::Window;
use super::{FIRST_BATCH_OFFSET, LogEnd, SEQ_END, Tail, Totals, UNIT, batch_bytes};
use crate::base::units::len_u32;
use crate::base::{Error, ErrorKind, Result, SegmentId, SeqNo};
use crate::crypt::Cipher;
use crate::format::{
    BATCH_ALIGNMENT, BATCH_HEADER_BYTES, BatchHeader, Detour, Record, RecordAddress, Root,
    SegmentHeader, Stream, Superblock, chain_start,
};
use crate::media::{AnyMedium, CopyId};
use restoring::Restored;

/// Segments searched for a proof that a missing batch was durable, in addition to the segments of
/// the streams. Three would suffice if no segment had been freed since; otherwise arbitrary.
const SEGMENTS_PROBED: usize = 16;

/// Number of ways in which the place of a missing batch is read again, after reading ahead: as a
/// whole, and in units of 4 KiB and of the medium's sectors. A wrong bit or a transfer error rarely
/// occurs twice.
const READINGS: usize = 3;

/// Bytes searched beyond the end of a stream for records that prove that a batch with a torn or
/// damaged header exists: no frame is longer.
const REMAINS_BYTES: u32 = 512 << 10;

/// Maximum number of bytes beyond the end of the log that may be unreadable. A power loss leaves
/// some sectors of the data being written unreadable; if they exceed one batch, the medium is
/// failing. Otherwise arbitrary.
const UNREADABLE_BYTES_MAX: u64 = 1 << 20;

/// The data found beyond the end of the log, which is not part of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cut {
    /// Batches of the last life that wrote to the medium: the torn tail of a crash.
    pub(crate) batches: u64,
    /// Their bytes.
    pub(crate) bytes: u64,
    /// Bytes that cannot be read.
    pub(crate) unreadable_bytes: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct WalkEnd {
    pub(crate) end: LogEnd,
    /// The opening in which the last batch was written.
    pub(crate) epoch: u32,
    /// Lifetime counters in the last batch.
    pub(crate) totals: Totals,
    /// The data found beyond the end.
    pub(crate) cut: Cut,
    /// Pages of 4 KiB beyond the end that cannot be read: segment, offset.
    pub(crate) unreadable: Vec<(SegmentId, u32)>,
    /// On a medium with several copies, the batches that some copies may lack: batches that are not
    /// known to have been durable.
    pub(crate) unproven: Vec<Unproven>,
    /// Restored pages of batches that are not known to have been durable, and pages of a batch that
    /// does not count, which must be zeroed. Recovery writes these pages.
    pub(crate) completed: Vec<Pages>,
}

/// Pages of a batch that were restored.
#[derive(Clone, Debug)]
pub(crate) struct Pages {
    /// Their segment.
    pub(crate) segment: SegmentId,
    /// Their offset in the segment.
    pub(crate) offset: u32,
    /// Their bytes.
    pub(crate) bytes: Vec<u8>,
}

/// A batch that a power loss may have left in one copy only.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unproven {
    /// Its number.
    pub(crate) seq: SeqNo,
    pub(crate) segment: SegmentId,
    /// Its offset in the segment.
    pub(crate) offset: u32,
    /// The checksum of its header.
    pub(crate) checksum: u64,
    /// Whether the segment's header was written with it.
    pub(crate) is_first: bool,
}

/// A batch of the log.
pub(crate) struct Batch<'a> {
    pub(crate) header: BatchHeader,
    /// The header of its segment, if it is the first in it.
    pub(crate) enters: Option<SegmentHeader>,
    /// The bytes after its header.
    pub(crate) body: &'a [u8],
    /// The damage to the batch on the medium.
    pub(crate) damage: Option<Error>,
}

/// The place at which the walk searches for a stream's next batch.
#[derive(Clone, Copy, Debug)]
struct Position {
    segment: SegmentId,
    /// `None` if any generation is accepted: in a drive's first segment.
    generation: Option<u64>,
    /// 0 before the segment is entered.
    used: u32,
}

/// A batch that continues the log.
struct Next {
    stream: Stream,
    offset: u32,
    header: BatchHeader,
    checksum: u64,
    enters: Option<SegmentHeader>,
    is_restored: bool,
}

/// A next batch, and the damage to it on the medium.
struct Step {
    next: Next,
    damage: Option<Error>,
}

/// A next batch with a damaged payload.
struct Damaged {
    next: Next,
    batch: Vec<u8>,
}

impl Damaged {
    fn epoch(&self) -> u32 {
        self.next.header.epoch
    }
}

/// The result of examining a position.
enum Found {
    Batch(Next),
    /// The header continues the log and its record headers are intact, but a payload is not.
    Damaged(Damaged),
    Nothing,
}

/// Returns the damaged batch that continues the log: of two, the one from the later opening, which
/// did not find the end of the log at the other.
fn later(found: Option<Damaged>, damaged: Damaged) -> Option<Damaged> {
    let is_later = found.as_ref().is_none_or(|found| damaged.epoch() > found.epoch());
    if is_later { Some(damaged) } else { found }
}

/// A walk under way.
pub(crate) struct Walk<'a> {
    medium: &'a dyn AnyMedium,
    superblock: &'a Superblock,
    positions: ByStream<Option<Position>>,
    windows: ByStream<Window<'a>>,
    seq: SeqNo,
    chain: u64,
    watermark: SeqNo,
    epoch: u32,
    totals: Totals,
    /// Whether the windows read in ways other than ahead.
    is_reading_again: bool,
    /// The copy that the windows read; `None` for any.
    copy: Option<CopyId>,
    /// See [`WalkEnd::unproven`].
    unproven: VecDeque<Unproven>,
    cut: Cut,
    unreadable: Vec<(SegmentId, u32)>,
    /// The most recently restored or salvaged batch.
    restored: Vec<u8>,
    /// The body of a batch that counts only together with the next one, and the next one, once
    /// found.
    body: Vec<u8>,
    ahead: Option<Step>,
    /// See [`WalkEnd::completed`].
    completed: Vec<Pages>,
    /// Places of batches that have the number after the next batch's.
    after_next: Vec<(SegmentId, u32)>,
    /// Whether the walk searches for these places instead of a proof.
    is_searching: bool,
}

impl<'a> Walk<'a> {
    /// Begins a walk after a checkpoint, or at the log's beginning.
    pub(crate) fn new(
        medium: &'a dyn AnyMedium,
        superblock: &'a Superblock,
        root: Option<&Root>,
    ) -> Self {
        let first = Position { segment: SegmentId(0), generation: None, used: 0 };
        let mut windows =
            Stream::ALL.map(|_| Window::reading_ahead(medium, superblock.segment_bytes));
        let copy = Self::first_copy(medium);
        for window in &mut windows {
            window.read_copy(copy);
        }
        let mut walk = Self {
            medium,
            superblock,
            positions: ByStream([Some(first), None, None]),
            windows: ByStream(windows),
            seq: SeqNo(0),
            chain: chain_start(superblock.uuid),
            watermark: superblock.watermark,
            epoch: 0,
            totals: Totals::default(),
            is_reading_again: false,
            copy,
            unproven: VecDeque::new(),
            cut: Cut::default(),
            unreadable: Vec::new(),
            restored: Vec::new(),
            body: Vec::new(),
            ahead: None,
            completed: Vec::new(),
            after_next: Vec::new(),
            is_searching: false,
        };
        if let Some(root) = root {
            walk.positions = ByStream(root.tails.map(|tail| {
                tail.map(|tail| Position {
                    segment: tail.segment,
                    generation: Some(tail.generation),
                    used: tail.used,
                })
            }));
            // The checkpoint began before the host wrote anything.
            if root.watermark == SeqNo(0) {
                walk.positions[Stream::Host].get_or_insert(first);
            }
            (walk.seq, walk.chain) = (root.watermark, root.watermark_checksum);
            walk.epoch = root.epoch;
            walk.totals = Totals {
                host_bytes: root.host_bytes,
                frame_bytes: root.frame_bytes,
                media_bytes: root.media_bytes,
                moved_bytes: root.moved_bytes,
            };
        }
        walk
    }

    /// Continues in another segment each stream that, according to the superblock, left a bad
    /// segment at this point. Returns the new positions. Must be called before each [`Walk::next`].
    pub(crate) fn take_detours(&mut self) -> Vec<Detour> {
        let detours = self.superblock.detours.iter().filter(|detour| detour.seq == self.seq);
        let detours: Vec<Detour> = detours.copied().collect();
        for &Detour { stream, segment, generation, .. } in &detours {
            let generation = Some(generation);
            self.positions[stream] = Some(Position { segment, generation, used: 0 });
        }
        detours
    }

    /// Returns the next batch of the log; `None` at its end. `lowest_empty` returns the first
    /// segments that are free or could be, according to the segment table so far.
    ///
    /// # Errors
    /// `Corrupt` if durable batches are missing or damaged; `Medium` if they, or too many bytes
    /// beyond the end of the log, cannot be read.
    pub(crate) async fn next(
        &mut self,
        lowest_empty: &dyn Fn(usize) -> Vec<SegmentId>,
    ) -> Result<Option<Batch<'_>>> {
        let step = match self.ahead.take() {
            Some(step) => Some(step),
            None => self.find(lowest_empty).await?,
        };
        match step {
            None => Ok(None),
            Some(step) if step.next.header.needs_next => self.enter_both(step, lowest_empty).await,
            Some(step) => self.enter(step).map(Some),
        }
    }

    /// Searches for the batch that continues the log.
    async fn find(
        &mut self,
        lowest_empty: &dyn Fn(usize) -> Vec<SegmentId>,
    ) -> Result<Option<Step>> {
        if self.seq.0 >= SEQ_END {
            let what = "the log has a batch with an impossibly high number";
            return Err(Error::new(ErrorKind::Corrupt, what));
        }
        let mut damaged = None;
        // The list is read once: if a copy is removed in the meantime, the others must keep their
        // positions.
        let copies = self.medium.copies();
        let others = copies.len().saturating_sub(1);
        for reading in 0..=READINGS + others {
            self.set_reading(reading, &copies);
            if reading <= READINGS {
                damaged = None;
            }
            for stream in Stream::ALL {
                match self.look(stream).await {
                    Found::Batch(next) => return Ok(Some(Step { next, damage: None })),
                    Found::Damaged(found) => damaged = later(damaged, found),
                    Found::Nothing => {}
                }
            }
        }
        let unreadable = self.unreadable();
        self.set_reading(0, &copies);
        let next_seq = SeqNo(self.seq.0 + 1);
        if !self.was_durable(next_seq, lowest_empty).await? {
            return Ok(self.complete().await);
        }
        let restored = match (self.by_parity().await, damaged) {
            // A torn batch of a lost life could also be completed.
            (Some(restored), Some(damaged)) if damaged.epoch() > restored.next.header.epoch => {
                return Ok(Some(self.salvage(damaged)));
            }
            (Some(restored), _) => Some(restored),
            (None, Some(damaged)) => return Ok(Some(self.salvage(damaged))),
            (None, None) => {
                self.is_searching = true;
                // Batches found before an error count.
                self.is_proven(next_seq, lowest_empty).await.ok();
                self.is_searching = false;
                self.by_echo().await
            }
        };
        let Some(Restored { next, error, batch, .. }) = restored else {
            return Err(self.missing(next_seq, unreadable));
        };
        self.restored = batch;
        Ok(Some(Step { next, damage: Some(error) }))
    }

    /// Returns the copy to read first: one copy contains the whole of every accepted batch.
    fn first_copy(medium: &dyn AnyMedium) -> Option<CopyId> {
        Some(medium.copies()).filter(|copies| copies.len() > 1)?.first().copied()
    }

    /// Reads one copy, or any.
    fn set_copy(&mut self, copy: Option<CopyId>) {
        self.copy = copy;
        for window in &mut self.windows.0 {
            window.read_copy(copy);
        }
    }

    /// Sets the windows to read ahead, to read again in other ways (1 to [`READINGS`]), or to read
    /// other copies (beyond that). A batch found in one of the copies was written in this life of
    /// the drive, or was durable: it counts, like a batch that a power loss has left on a medium
    /// with one copy.
    fn set_reading(&mut self, reading: usize, copies: &[CopyId]) {
        if reading == 0 && !self.is_reading_again {
            return;
        }
        self.is_reading_again = reading > 0;
        let other = reading.checked_sub(READINGS).filter(|&number| number > 0);
        let other = other.and_then(|number| copies.get(number).copied());
        let copy = other.or(Self::first_copy(self.medium));
        if copy != self.copy {
            self.set_copy(copy);
        }
        let sector = self.medium.capabilities().read_unit as usize;
        let units = [None, Some(usize::MAX), Some(BATCH_ALIGNMENT), Some(sector)];
        let unit = units.get(reading).copied().flatten();
        for window in &mut self.windows.0 {
            window.read_again(unit);
        }
    }

    /// Returns the reason why the place of a stream's next batch cannot be read.
    fn unreadable(&self) -> Option<Error> {
        let mut failed = self.windows.0.iter().zip(self.positions.0);
        failed.find_map(|(window, at)| {
            let (error, at) = (window.error()?, at?);
            let error = Error::new(error.kind(), error.chain());
            Some(error.in_segment(at.segment).at_offset(at.used.into()))
        })
    }

    /// Returns whether a header belongs to the next batch of the log.
    fn continues(&self, header: &BatchHeader) -> bool {
        header.seq.0 == self.seq.0 + 1
            && header.previous_checksum == self.chain
            && header.epoch >= self.epoch
            && (header.seq <= self.superblock.watermark || header.epoch >= self.superblock.epoch)
            && header.uuid == self.superblock.uuid
    }

    /// Continues with a batch whose record headers are intact, but not all of its payloads.
    fn salvage(&mut self, Damaged { mut next, batch }: Damaged) -> Step {
        let what = "the records of a batch do not match its header";
        let error = Error::new(ErrorKind::Corrupt, what)
            .in_segment(next.header.segment)
            .at_offset(next.header.offset.into());
        // The windows have moved, and the batch may have been read in parts.
        next.is_restored = true;
        self.restored = batch;
        Step { next, damage: Some(error) }
    }

    /// Returns the error for durable batch `seq`, with which no stream continues.
    fn missing(&self, seq: SeqNo, unreadable: Option<Error>) -> Error {
        if let Some(error) = unreadable {
            let what = format!(
                "batch {seq} of the log was durable and cannot be read: try again, or rebuild the \
                 drive"
            );
            return Error::new(ErrorKind::Medium, what).caused_by(error);
        }
        let what = format!(
            "batch {seq} of the log was durable and is missing or damaged, so the newest content \
             of its blocks is unknown: rebuild the drive"
        );
        let error = Error::new(ErrorKind::Corrupt, what);
        match self.positions[Stream::Host] {
            Some(at) => error.in_segment(at.segment).at_offset(at.used.into()),
            None => error,
        }
    }

    /// Returns the current end of the walk.
    pub(crate) fn end(&self) -> WalkEnd {
        let tails = self.positions.0.map(|position| {
            let Position { segment, generation, used } = position?;
            // Without a generation, the segment is the first one of a drive, and empty.
            Some(Tail { segment, generation: generation?, used })
        });
        let end = LogEnd { seq: self.seq, checksum: self.chain, tails };
        let unreadable = self.unreadable.clone();
        let unproven = self.unproven.iter().copied().collect();
        let (epoch, totals, cut) = (self.epoch, self.totals, self.cut);
        let completed = self.completed.clone();
        WalkEnd { end, epoch, totals, cut, unreadable, unproven, completed }
    }

    /// Returns whether a stream's next batch continues the log.
    async fn look(&mut self, stream: Stream) -> Found {
        let Some(at) = self.positions[stream] else { return Found::Nothing };
        let window = &mut self.windows[stream];
        let mut enters = None;
        let mut offset = at.used;
        if at.used == 0 {
            let bytes = window.read(at.segment, 0, FIRST_BATCH_OFFSET).await;
            let decoded = SegmentHeader::decode(bytes, self.superblock.uuid, at.segment);
            let Ok(Some(header)) = decoded else { return Found::Nothing };
            if header.first_seq.0 != self.seq.0 + 1
                || header.stream != stream
                || at.generation.is_some_and(|generation| generation != header.generation)
            {
                return Found::Nothing;
            }
            offset = FIRST_BATCH_OFFSET;
            enters = Some(header);
        }
        let generation = enters.as_ref().map(|header| header.generation).or(at.generation);
        let room = self.superblock.segment_bytes.checked_sub(offset);
        let room = room.expect("a position lies within its segment");
        if (room as usize) < BATCH_ALIGNMENT {
            return Found::Nothing;
        }
        let bytes = window.read(at.segment, offset, UNIT).await;
        let cipher = self.medium.cipher();
        let decoded = BatchHeader::decode_with(bytes, cipher);
        let Ok((header, checksum)) = decoded else { return Found::Nothing };
        let is_here = Some(header.generation) == generation
            && header.segment == at.segment
            && header.offset == offset
            && header.batch_bytes() <= u64::from(room);
        if !is_here || !self.continues(&header) {
            return Found::Nothing;
        }
        let bytes = self.windows[stream].read(at.segment, offset, batch_bytes(&header)).await;
        let (_, body) = bytes.split_at(BATCH_HEADER_BYTES);
        let state = body_state(cipher, &header, body);
        let next = Next { stream, offset, header, checksum, enters, is_restored: false };
        match state {
            Body::Whole => Found::Batch(next),
            Body::WrongPayload if self.is_another(&next) => Found::Nothing,
            Body::WrongPayload => {
                let batch =
                    self.windows[stream].buffered(offset, batch_bytes(&next.header)).to_vec();
                Found::Damaged(Damaged { next, batch })
            }
            Body::Foreign => Found::Nothing,
        }
    }

    /// Returns whether the superblock states that another batch with this number is the durable
    /// one.
    fn is_another(&self, next: &Next) -> bool {
        let Superblock { uuid, watermark, watermark_checksum, .. } = *self.superblock;
        let is_known = watermark_checksum != chain_start(uuid);
        is_known && next.header.seq == watermark && next.checksum != watermark_checksum
    }

    /// Moves past a batch, which is in its stream's window, and returns it.
    fn enter(&mut self, Step { next, damage }: Step) -> Result<Batch<'_>> {
        let Next { stream, offset, header, checksum, enters, is_restored, .. } = next;
        assert_eq!(header.seq.0, self.seq.0 + 1, "a walk enters one batch after the other");
        assert_eq!(header.offset, offset, "a batch is entered where it was found");
        let batch_bytes = batch_bytes(&header);
        let used = offset + batch_bytes;
        assert!(used <= self.superblock.segment_bytes, "a batch ends within its segment");
        self.positions[stream] =
            Some(Position { segment: header.segment, generation: Some(header.generation), used });
        let batch = if is_restored {
            self.restored.get(..batch_bytes as usize).unwrap_or_default()
        } else {
            self.windows[stream].buffered(offset, batch_bytes)
        };
        let (_, body) = batch.split_at(BATCH_HEADER_BYTES);
        for found in records(self.medium.cipher(), &header, body) {
            let found = found?;
            check_possible(&found, self.superblock)?;
            if let Record::Open { stream, segment, generation } = found.record {
                let generation = Some(generation);
                self.positions[stream] = Some(Position { segment, generation, used: 0 });
            }
        }
        self.seq = header.seq;
        self.chain = checksum;
        self.epoch = header.epoch;
        self.watermark = self.watermark.max(header.watermark);
        if self.medium.copies().len() > 1 {
            let (seq, segment, is_first) = (header.seq, header.segment, enters.is_some());
            self.unproven.push_back(Unproven { seq, segment, offset, checksum, is_first });
            let proven = self.unproven.partition_point(|batch| batch.seq <= self.watermark);
            self.unproven.drain(..proven);
        }
        self.totals = Totals {
            host_bytes: header.host_bytes,
            frame_bytes: header.frame_bytes,
            media_bytes: header.media_bytes,
            moved_bytes: header.moved_bytes,
        };
        Ok(Batch { header, enters, body, damage })
    }

    /// Returns whether batch `seq`, which cannot be read, is known to have been durable: some later
    /// batch states it, in the same segment or in a segment that was started later. The record that
    /// names that segment may itself be lost, but streams continue in the lowest free segments.
    async fn was_durable(
        &mut self,
        seq: SeqNo,
        lowest_empty: &dyn Fn(usize) -> Vec<SegmentId>,
    ) -> Result<bool> {
        if self.watermark >= seq {
            return Ok(true);
        }
        assert!(seq > self.seq, "only batches after the walk's last are in doubt");
        self.is_proven(seq, lowest_empty).await
    }

    /// Returns whether a batch beyond the next one states that `seq` was durable. If none does,
    /// counts the batches found there and records the places of the batch after the next one.
    async fn is_proven(
        &mut self,
        seq: SeqNo,
        lowest_empty: &dyn Fn(usize) -> Vec<SegmentId>,
    ) -> Result<bool> {
        let streams = self.positions.0.into_iter().flatten();
        let later = lowest_empty(SEGMENTS_PROBED).into_iter();
        let later = later.map(|segment| Position { segment, generation: None, used: 0 });
        let positions: Vec<Position> = streams.chain(later).collect();
        let copies = if self.is_closed() { Vec::new() } else { self.medium.copies() };
        let apart = if copies.len() > 1 { copies } else { Vec::new() };
        self.after_next.clear();
        for copy in apart.into_iter().map(Some).chain([None]) {
            self.cut = Cut::default();
            self.unreadable.clear();
            self.set_copy(copy);
            for &at in &positions {
                if self.has_proof(seq, at).await? {
                    self.set_copy(Self::first_copy(self.medium));
                    return Ok(true);
                }
            }
        }
        self.set_copy(Self::first_copy(self.medium));
        Ok(false)
    }

    /// Returns whether the drive was closed cleanly and all of its log has been read.
    fn is_closed(&self) -> bool {
        self.superblock.clean && self.seq == self.superblock.watermark
    }

    /// Returns whether a batch at a position or after it in the same segment states that `seq` was
    /// durable. If none does, counts the batches found there.
    async fn has_proof(&mut self, seq: SeqNo, mut at: Position) -> Result<bool> {
        let uuid = self.superblock.uuid;
        let cipher = self.medium.cipher();
        let mut end = self.superblock.segment_bytes;
        if at.used == 0 {
            let bytes = self.page(at.segment, 0).await?;
            match SegmentHeader::decode(bytes, uuid, at.segment) {
                // Remains of an earlier use prove nothing.
                Ok(Some(header)) if header.first_seq < seq => return Ok(false),
                Ok(Some(header)) => at.generation = at.generation.or(Some(header.generation)),
                // The segment was never used, or the first write to it was lost, and not the next.
                Ok(None) => end = end.min(FIRST_BATCH_OFFSET + len_u32(BATCH_LIMIT)),
                // The header may be damaged. Without it, the batches may be remains of an earlier
                // use, but their watermarks are then lower: a durable sequence number is never
                // assigned again.
                Err(_) => {}
            }
        }
        let from = at.used.max(FIRST_BATCH_OFFSET);
        let counted = self.cut.batches;
        let mut remains = 0;
        for offset in (from..self.superblock.segment_bytes).step_by(BATCH_ALIGNMENT) {
            if offset >= end {
                break;
            }
            let page = self.page(at.segment, offset).await?;
            let decoded = BatchHeader::decode_with(page, cipher);
            let Ok((header, _)) = decoded else {
                let place = |generation| RecordAddress { generation, segment: at.segment, offset };
                let place = at.generation.map(place).filter(|_| offset - from < REMAINS_BYTES);
                if place.is_some_and(|place| has_record(page, place, cipher)) {
                    remains += BATCH_ALIGNMENT as u64;
                }
                continue;
            };
            let is_here = header.uuid == uuid
                && at.generation.is_none_or(|generation| generation == header.generation)
                && header.segment == at.segment
                && header.offset == offset;
            if is_here {
                end = self.superblock.segment_bytes;
            }
            if is_here && header.watermark >= seq && !self.is_searching {
                return Ok(true);
            }
            let after_next = self.seq.0 + 2;
            if is_here
                && header.seq.0 == after_next
                && !self.after_next.contains(&(at.segment, offset))
            {
                self.after_next.push((at.segment, offset));
            }
            // An earlier opening has already cut and reported the remains of an earlier life.
            if is_here && header.seq >= seq && header.epoch >= self.superblock.epoch {
                self.cut.batches += 1;
                self.cut.bytes += header.batch_bytes();
            }
        }
        if self.cut.batches == counted && remains > 0 && !self.is_closed() {
            // The header is torn or damaged.
            self.cut.batches += 1;
            self.cut.bytes += remains;
        }
        Ok(false)
    }

    /// Reads a page beyond the end of the log. Returns zeroes if it cannot be read.
    ///
    /// # Errors
    /// `Medium` if too many pages cannot be read.
    async fn page(&mut self, segment: SegmentId, offset: u32) -> Result<&[u8]> {
        let is_closed = self.is_closed();
        let window = &mut self.windows[Stream::Host];
        window.read(segment, offset, UNIT).await;
        // A closed drive has nothing there. Another copy may contain data that one copy lacks.
        let may_lack = is_closed || self.copy.is_some();
        if let Some(error) = window.error().filter(|_| !may_lack) {
            self.cut.unreadable_bytes += BATCH_ALIGNMENT as u64;
            self.unreadable.push((segment, offset));
            if self.cut.unreadable_bytes > UNREADABLE_BYTES_MAX {
                let what = "cannot find the end of the log: too much of the medium cannot be read";
                let error = Error::new(error.kind(), error.chain());
                return Err(Error::new(ErrorKind::Medium, what).caused_by(error));
            }
        }
        Ok(window.buffered(offset, UNIT))
    }
}

/// Returns whether a page of a segment contains, at `place`, a record header of the segment's
/// current use.
fn has_record(page: &[u8], place: RecordAddress, cipher: &Cipher) -> bool {
    let is_record = |(offset, bytes): (u32, &[u8])| {
        let place = RecordAddress { offset, ..place };
        Record::decode_with(bytes, place, cipher).is_ok()
    };
    let is_zero = page.iter().all(|&byte| byte == 0);
    let starts = (0..page.len()).filter_map(|start| page.get(start..));
    !is_zero && (place.offset..).zip(starts).any(is_record)
}

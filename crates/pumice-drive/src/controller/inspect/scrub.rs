//! Scrubbing: reading all data of a drive in use, at a set rate, so that damage is found while a
//! copy of the data may still exist.
//!
//! ```text
//! superblocks, root and lists of the newest checkpoint
//! -> every segment in use: pin -> batches -> each record that the map names: checksum, decode
//!                          -> live bytes that were not found are after damage
//! -> the segments to which garbage collection has moved data since
//! ```
//!
//! A scrub runs concurrently with host requests, garbage collection and checkpoints. Whether a
//! record is live is determined in the step in which it is checked, with no await in between, so
//! records that have died since they were read do no harm. Batches that are only in buffers are
//! omitted: a segment is read up to the last batch sealed when its turn came, once that batch is
//! written.
//!
//! On a mirror, every copy of a batch is read, and copies that differ from an intact one are
//! overwritten. Records that are then still damaged and can be restored from parity are written
//! again elsewhere: metadata by a checkpoint at the end, frames as garbage collection moves them.
//! Nothing else is repaired.

use std::cell::RefCell;
use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::super::core::{Core, Kept, MoveReason};
use super::super::drive::{Drive, ScrubProgress, superblocks};
use super::super::log::copies;
use super::super::log::metadata::{Wanted, decode_meta};
use super::super::log::records::{Found, check_possible, records};
use super::super::log::segment_scan::SegmentScan;
use super::super::maintenance::moving::Mover;
use super::super::map::{Leaf, Mapping};
use super::super::place::{FramePlace, SegmentUse, blocks_of_frame};
use super::super::recovery::Reader;
use super::check_frame;
use super::problem::{PROBLEMS_LISTED_MAX, Problem};
use crate::base::units::{BLOCK_BYTES, buffer_bytes};
use crate::base::{Error, ErrorKind, Lba, Result, SegmentId, SeqNo};
use crate::codec::Decompressor;
use crate::format::{
    DIRECTORY_PAGE_LEAVES, FRAME_BLOCKS_MAX, LEAF_BLOCKS, MetaKind, MetadataAddress, Record,
    RecordAddress, Stream, Superblock, decode_page,
};

/// Maximum number of rounds. The first reads all segments, each later one the segments to which
/// data was moved during the previous round. Under any load that lets garbage collection rest, the
/// second finds next to nothing; the limit is for other loads.
const ROUNDS_MAX: u32 = 4;

/// Maximum delay for which a scrub may still make up in one burst: about one batch at usual rates.
const BURST_NS: u64 = 20_000_000;

/// The longest sleep, so that a scrub at a low rate soon notices that the drive closes.
const SLEEP_NS_MAX: u64 = 100_000_000;

/// Result of a scrub.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ScrubReport {
    /// Segments read.
    pub segments: u64,
    /// Batches in them.
    pub batches: u64,
    /// Frames that the map names; each was decoded.
    pub frames: u64,
    /// Metadata records that the newest checkpoint names; each was decoded.
    pub metadata: u64,
    /// Records, or batches of them, that were damaged and were restored and written again.
    #[serde(default)]
    pub repaired: u64,
    /// Bytes of batches read and checked.
    pub checked_bytes: u64,
    /// Whether the scrub completed; if not, the drive was closed.
    pub completed: bool,
    /// The first ten thousand problems.
    pub problems: Vec<Problem>,
    /// Number of problems.
    pub problem_count: u64,
}

impl ScrubReport {
    fn add(&mut self, error: &Error, lbas: Option<(Lba, u64)>) {
        tracing::warn!(error = %error.chain(), "the scrub found a problem");
        self.problem_count += 1;
        if self.problems.len() < PROBLEMS_LISTED_MAX {
            self.problems.push(Problem::new(error, lbas));
        }
    }

    /// Returns whether a problem of a segment with this block is already listed.
    fn lists(&self, segment: SegmentId, lba: Lba) -> bool {
        self.problems.iter().any(|problem| {
            let first = problem.lba.unwrap_or(u64::MAX);
            let end = first.saturating_add(problem.lba_count.unwrap_or(0));
            problem.segment == Some(segment.0) && (first..end).contains(&lba.0)
        })
    }
}

/// A scrub runs as long as this value exists.
struct Running<'a>(&'a Drive);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.update_scrub(|progress| {
            assert!(progress.scrub_running, "a scrub ends once");
            progress.scrub_running = false;
        });
    }
}

impl Drive {
    fn update_scrub(&self, change: impl FnOnce(&mut ScrubProgress)) {
        let mut progress = self.scrub.get();
        change(&mut progress);
        self.scrub.set(progress);
    }
}

impl Drive {
    /// Reads and checks everything that the map and the newest checkpoint name, at `rate_bytes` a
    /// second (0: without a limit). Ends early when the drive closes; to stop it, drop it.
    /// [`Drive::info`] reports its progress.
    ///
    /// # Errors
    /// `Busy` if a scrub is running, `Poisoned`. Damaged and unreadable data is in the report.
    pub async fn scrub(&self, rate_bytes: u64) -> Result<ScrubReport> {
        let completed = self.scrub.get().scrubs_completed;
        if self.scrub.get().scrub_running {
            let what = "a scrub of this drive is running: wait until it ends, or stop it first";
            return Err(Error::new(ErrorKind::Busy, what));
        }
        let begun = ScrubProgress {
            scrub_running: true,
            scrubs_completed: completed,
            ..ScrubProgress::default()
        };
        self.scrub.set(begun);
        let _running = Running(self);
        let mut scrub = Scrub {
            drive: self,
            report: ScrubReport::default(),
            pace: Pace { rate_bytes, due_ns: 0 },
            decompressor: RefCell::new(Decompressor::new()),
            frame: vec![0; usize::from(FRAME_BLOCKS_MAX) * BLOCK_BYTES],
            is_of_log: false,
            is_beyond_parity: false,
            listed: HashSet::new(),
            done: HashSet::new(),
        };
        scrub.check_roots().await;
        let mut report = scrub.check_rounds().await?;
        if report.repaired > 0
            && let Err(error) = self.checkpoint().await
        {
            report.add(&error, None);
        }
        report.completed = !self.core().is_ending();
        self.update_scrub(|progress| progress.scrubs_completed += u64::from(report.completed));
        Ok(report)
    }
}

/// A scrub under way.
struct Scrub<'a> {
    drive: &'a Drive,
    report: ScrubReport,
    pace: Pace,
    decompressor: RefCell<Decompressor>,
    frame: Vec<u8>,
    /// Whether the batch being checked belongs to the log, and not to a lost life.
    is_of_log: bool,
    /// Whether parity cannot restore a live frame of the batch, which is left in place.
    is_beyond_parity: bool,
    /// Frames that are already listed: the tail of the log may be read again in each round.
    listed: HashSet<RecordAddress>,
    /// Segments that need not be read again.
    done: HashSet<SegmentUse>,
}

/// The part of a segment to read.
struct Extent {
    /// The last batch to check.
    last: SeqNo,
    /// The end of that batch, if the segment was open.
    end: Option<u32>,
}

impl Scrub<'_> {
    /// Checks superblocks, and root and lists of the newest checkpoint, in a turn that prevents
    /// changes to them.
    async fn check_roots(&mut self) {
        let drive = self.drive;
        let _turn = drive.turn().await;
        match superblocks::load(&*drive.medium).await {
            // The checkpoint at the end writes all copies of both.
            Ok(loaded) if loaded.copies > 1 && !drive.is_read_only() => {
                self.report.repaired += loaded.problems.len() as u64;
            }
            Ok(loaded) => loaded.problems.iter().for_each(|error| self.report.add(error, None)),
            Err(error) => self.report.add(&error, None),
        }
        let superblock = drive.core().superblock().clone();
        let Some(place) = &superblock.checkpoint else { return };
        let reader = Reader::new(&*drive.medium, &superblock);
        let root = match reader.root(place).await {
            Ok(root) => root,
            Err(error) => return self.rewrite_roots(vec![error]),
        };
        self.report.metadata += 1;
        let mut damaged = Vec::new();
        let kinds = [
            (MetaKind::PageList, &root.page_lists),
            (MetaKind::Table, &root.tables),
            (MetaKind::Dropped, &root.dropped_lists),
            (MetaKind::Snapshots, &root.snapshot_lists),
            (MetaKind::Retained, &root.retained_lists),
        ];
        for (kind, pieces) in kinds {
            for (number, &piece) in (0..).zip(pieces) {
                let generation = drive.core().space().generation(piece.segment);
                if let Err(error) = reader.piece(piece, kind, number, generation).await {
                    damaged.push(error.in_segment(piece.segment));
                }
                self.report.metadata += 1;
            }
        }
        damaged.extend(reader.take_restored());
        for &piece in &root.forward_lists {
            let generation = drive.core().space().generation(piece.segment);
            let read = reader.piece(piece, MetaKind::Forwards, 0, generation).await.err();
            let found: Vec<_> = read.into_iter().chain(reader.take_restored()).collect();
            if !found.is_empty() {
                drive.with_core(|core| core.rewrite_metadata(MetaKind::Forwards, 0, piece));
            }
            damaged.extend(found.into_iter().map(|error| error.in_segment(piece.segment)));
            self.report.metadata += 1;
        }
        self.check_snapshot_roots(&superblock).await;
        self.rewrite_roots(damaged);
    }

    /// Reports damage to root and lists. All of them are in memory, so the checkpoint at the end
    /// rewrites them.
    fn rewrite_roots(&mut self, damaged: Vec<Error>) {
        if self.drive.is_read_only() {
            damaged.iter().for_each(|error| self.report.add(error, None));
        } else {
            self.report.repaired += damaged.len() as u64;
        }
    }

    /// Makes the checkpoint at the end rewrite a leaf or a page, if its content is known: from
    /// memory, which contains all pages, or from parity. Returns whether the content is known.
    async fn repair(&mut self, kind: MetaKind, number: u64, place: MetadataAddress) -> bool {
        let drive = self.drive;
        if drive.is_read_only() || kind == MetaKind::Leaf && drive.load_leaf(number).await.is_err()
        {
            return false;
        }
        drive.with_core(|core| core.rewrite_metadata(kind, number, place));
        self.report.repaired += 1;
        true
    }

    /// Moves the records that the map names in a segment of metadata elsewhere, because a header in
    /// it is damaged. Returns whether all of them could be read.
    async fn repair_segment(&mut self, segment: SegmentId) -> bool {
        let named: Vec<_> = self.drive.core().map().metadata_in(segment).collect();
        let mut is_whole = true;
        for (kind, number, place) in named {
            is_whole &= self.repair(kind, number, place).await;
        }
        // Its lists and its root are already in the report.
        is_whole
    }

    async fn check_rounds(mut self) -> Result<ScrubReport> {
        for round in 0..ROUNDS_MAX {
            let segments = self.segments(round);
            if segments.is_empty() {
                break;
            }
            let count = segments.len() as u64;
            self.drive.update_scrub(|progress| progress.scrub_segments += count);
            for used in segments {
                if self.drive.core().is_ending() {
                    return Ok(self.report);
                }
                self.check_segment(used).await?;
                self.drive.update_scrub(|progress| {
                    progress.scrub_segments_done += 1;
                    assert!(
                        progress.scrub_segments_done <= progress.scrub_segments,
                        "a scrub reads the segments of its rounds"
                    );
                });
                self.publish_progress();
            }
        }
        Ok(self.report)
    }

    /// Returns the segments that a round must read: all segments in use, or in later rounds the
    /// segments to which data was moved.
    fn segments(&self, round: u32) -> Vec<SegmentUse> {
        let core = self.drive.core();
        let space = core.space();
        let used = space
            .used()
            .map(|used| SegmentUse { segment: used.segment, generation: used.generation });
        let wanted = |used: &SegmentUse| {
            let is_new = round == 0 || space.stream(used.segment) == Stream::Moved;
            is_new && !self.done.contains(used)
        };
        used.filter(wanted).collect()
    }

    /// Checks the roots of snapshots, which stay in place, and reports the snapshots that are known
    /// to be damaged.
    async fn check_snapshot_roots(&mut self, superblock: &Superblock) {
        let forwards = self.drive.core().forwards().of_metadata();
        let reader = Reader::of_kept(&*self.drive.medium, superblock, &forwards);
        let kept = self.drive.core().snapshots().kept().to_vec();
        for Kept { entry, damage, .. } in kept {
            self.report.metadata += 1;
            if let Some(damage) = damage {
                let what = format!("snapshot {} is damaged: {damage}", entry.name);
                self.report.add(&Error::new(ErrorKind::Corrupt, what), None);
                continue;
            }
            let Some(place) = &entry.root else { continue };
            let found = reader.any_root(place).await.err();
            for error in found.into_iter().chain(reader.take_restored()) {
                let what = format!("the root of snapshot {} is damaged", entry.name);
                let error = Error::new(error.kind(), what).caused_by(error);
                self.report.add(&error.in_segment(place.address.segment), None);
            }
        }
    }

    fn is_in_use(&self, SegmentUse { segment, generation }: SegmentUse) -> bool {
        let core = self.drive.core();
        let space = core.space();
        let is_needed = space.live_bytes_of(segment) > 0 || space.is_retained(segment);
        space.generation(segment) == generation && is_needed
    }

    async fn check_segment(&mut self, used: SegmentUse) -> Result<()> {
        let drive = self.drive;
        let SegmentUse { segment, generation } = used;
        if !self.is_in_use(used) {
            return Ok(());
        }
        let _pin = drive.pin(segment);
        let extent = self.extent(segment).await?;
        if extent.end.is_none() {
            self.done.insert(used);
        }
        let (uuid, shape) = (drive.uuid(), drive.core().superblock().shape());
        let mut scan = SegmentScan::new(&*drive.medium, uuid, &shape, segment, generation);
        let (mut live_bytes, mut is_after_last) = (0, false);
        let is_meta = drive.core().space().stream(segment) == Stream::Meta;
        self.report.segments += 1;
        // Once the whole segment is dead, the pin should not prevent it from being freed.
        while self.is_in_use(used) && !drive.core().is_ending() {
            if extent.end.is_some_and(|end| scan.offset() >= end) {
                break;
            }
            let Some((header, body)) = scan.next().await else { break };
            if header.seq > extent.last {
                break;
            }
            if drive.medium.copies().len() > 1 && !drive.is_read_only() {
                match copies::repair_batch(&*drive.medium, &shape, &header).await {
                    Ok(Some(copies)) => self.report.repaired += u64::from(copies),
                    // Live records that cannot be repaired are reported below.
                    Ok(None) => _ = drive.repair_records(&header, body).await,
                    Err(error) => self.report.add(&error.in_segment(segment), None),
                }
            }
            self.is_beyond_parity = false;
            let last = drive.core().space().last_seq(segment);
            self.is_of_log = !is_after_last && header.seq <= last;
            is_after_last |= header.seq >= last;
            for found in records(drive.medium.cipher(), &header, body) {
                // The subsequent records are reported as missing below.
                let Ok(found) = found else { break };
                live_bytes += self.check_record(&found).await;
            }
            // Damage may be in headers, in dead records, or in the parity itself. Live metadata was
            // rewritten above.
            let is_data = !is_meta && !self.is_beyond_parity;
            if is_data && scan.is_damaged(header.offset).await {
                let again = SegmentScan::new(&*drive.medium, uuid, &shape, segment, generation);
                self.repair_batch(again.at(header.offset)).await;
            }
            self.report.batches += 1;
            self.report.checked_bytes += header.batch_bytes();
            self.publish_progress();
            self.pace.spend(drive, header.batch_bytes()).await;
        }
        let is_missed = match extent.end {
            _ if drive.core().is_ending() || !self.is_in_use(used) => false,
            Some(end) => {
                (scan.skipped_bytes > 0 || scan.offset() < end)
                    && (!is_meta || self.is_missed(segment, live_bytes).await)
            }
            None => self.is_missed(segment, live_bytes).await,
        };
        if is_missed {
            self.check_missed(segment).await;
        }
        if extent.end.is_none() {
            self.listed.retain(|place| place.segment != segment);
        }
        Ok(())
    }

    /// Waits until all sealed batches are written. Returns the part of a segment to read.
    async fn extent(&self, segment: SegmentId) -> Result<Extent> {
        let extent = {
            let core = self.drive.core();
            let log = core.log();
            let mut tails = Stream::ALL.into_iter().filter_map(|stream| log.tail(stream));
            let end = tails.find(|tail| tail.segment == segment).map(|tail| tail.used);
            Extent { last: log.sealed_seq(), end }
        };
        let is_written = |core: &mut Core| match core
            .log()
            .check_poison()
            .and_then(|()| core.log().check_medium_full())
        {
            Err(error) => Some(Err(error)),
            Ok(()) => (core.log().written_seq() >= extent.last).then_some(Ok(())),
        };
        self.drive.wait_for(&self.drive.queues.progress, is_written).await?;
        Ok(extent)
    }

    /// Checks a record if it is live. Returns its live bytes.
    async fn check_record(&mut self, found: &Found<'_>) -> u64 {
        match found.record {
            Record::Data { .. } => self.check_data(found).await,
            Record::Meta { kind, number, .. } => self.check_meta(kind, number, found).await,
            Record::Fill { .. } | Record::Trim { .. } | Record::Open { .. } => 0,
        }
    }

    async fn check_data(&mut self, found: &Found<'_>) -> u64 {
        let drive = self.drive;
        let (lba, count) = found.record.lba_range();
        if check_possible(found, drive.core().superblock()).is_err() {
            return 0;
        }
        let record_bytes = found.record.record_bytes();
        if drive.load_range(lba, count).await.is_err() {
            // The leaf is listed as a separate problem; whether this record is live is unknown.
            return u64::from(record_bytes);
        }
        let (segment, offset) = (found.place.segment, found.place.offset);
        let place = FramePlace { segment, offset, record_bytes, blocks: blocks_of_frame(count) };
        let live_bytes = {
            let core = drive.core();
            let pieces = core.map().live_pieces(lba, place);
            pieces.map(|piece| u64::from(place.share(piece.index, piece.count))).sum()
        };
        assert!(
            live_bytes <= u64::from(place.charged_bytes()),
            "the blocks of a frame are live once"
        );
        // Only a snapshot's map states which dead frames the snapshot needs: all in its segments
        // are checked, except those that a crash left after the last batch.
        let may_be_kept = self.is_of_log && drive.core().space().is_retained(segment);
        if live_bytes > 0 || may_be_kept {
            self.report.frames += 1;
            let checked = {
                let decompressor = &mut *self.decompressor.borrow_mut();
                check_frame(self.drive.medium.cipher(), found, decompressor, &mut self.frame)
            };
            if let Err(error) = checked {
                // Otherwise the record's content is lost, or cannot be decoded.
                let is_damaged = !found.is_whole();
                let can_restore = is_damaged
                    && !drive.is_read_only()
                    && Mover::new(drive, MoveReason::Repair).can_restore(found).await;
                if !can_restore {
                    self.is_beyond_parity |= is_damaged;
                    if self.listed.insert(found.place) {
                        self.report.add(&error, Some((lba, count)));
                    }
                }
            }
        }
        live_bytes
    }

    /// Moves the live records in the next batch of a scan elsewhere: a part of the batch is damaged
    /// on the medium, and as long as it is, parity can restore no other part. Reports records for
    /// which there is no space.
    async fn repair_batch(&mut self, mut scan: SegmentScan<'_>) {
        let drive = self.drive;
        let Some((header, body)) = scan.next().await else { return };
        let superblock = drive.core().superblock().clone();
        let moved_before = drive.core().counters().moved_bytes.get();
        let mut mover = Mover::new(drive, MoveReason::Repair);
        for found in records(self.drive.medium.cipher(), &header, body).map_while(Result::ok) {
            if drive.is_read_only() || drive.core().is_ending() {
                return;
            }
            let has_room = drive.core().has_room_to_repair();
            let moved = match has_room {
                true if check_possible(&found, &superblock).is_err() => Ok(()),
                true => mover.move_record(header.seq, &found).await,
                false => Err(Error::new(ErrorKind::NoSpace, "the drive is too full to repair")),
            };
            if let Err(error) = moved {
                let what = "a damaged batch that parity can restore was not written elsewhere";
                let error = Error::new(error.kind(), what).caused_by(error);
                self.report.add(&error.in_segment(found.place.segment), None);
                return;
            }
        }
        let moved_bytes = drive.core().counters().moved_bytes.get();
        self.report.repaired += u64::from(moved_bytes > moved_before);
    }

    /// Decodes a metadata record, if the map names it.
    fn check_named(
        &self,
        wanted: Wanted,
        place: MetadataAddress,
        bytes: &[u8],
    ) -> Option<Result<()>> {
        let core = self.drive.core();
        let (map, Wanted { kind, number, .. }) = (core.map(), wanted);
        let is_live = match kind {
            MetaKind::Leaf => map.is_current_leaf(number, place),
            MetaKind::Page => {
                u32::try_from(number).is_ok_and(|page| map.is_current_page(page, place))
            }
            // The place was read from the root, which is the newest checkpoint's.
            MetaKind::PageList
            | MetaKind::Table
            | MetaKind::Dropped
            | MetaKind::Snapshots
            | MetaKind::Retained
            | MetaKind::Forwards
            | MetaKind::Root => false,
        };
        if !is_live {
            return None;
        }
        let limits = core.map_limits();
        let cipher = self.drive.medium.cipher();
        let checked = decode_meta(cipher, bytes, &self.decompressor, wanted);
        Some(checked.and_then(|metadata| match kind {
            MetaKind::Leaf => Leaf::decode(&metadata.raw, &limits).map(|_| ()),
            _ => decode_page(&metadata.raw, &limits).map(|_| ()),
        }))
    }

    async fn check_meta(&mut self, kind: MetaKind, number: u64, found: &Found<'_>) -> u64 {
        let record_bytes = found.record.record_bytes();
        let (segment, offset) = (found.place.segment, found.place.offset);
        let place = MetadataAddress { segment, offset, bytes: record_bytes };
        let wanted = Wanted { place: found.place, record_bytes, kind, number };
        let Some(checked) = self.check_named(wanted, place, found.bytes) else { return 0 };
        self.report.metadata += 1;
        if let Err(error) = checked
            && !self.repair(kind, number, wanted.address()).await
        {
            let leaf_blocks = u64::from(LEAF_BLOCKS);
            let blocks = match kind {
                MetaKind::Leaf => leaf_blocks,
                _ => leaf_blocks * DIRECTORY_PAGE_LEAVES as u64,
            };
            let what = "a part of the map is damaged on the medium";
            let error = Error::new(error.kind(), what)
                .in_segment(segment)
                .at_offset(u64::from(offset))
                .caused_by(error);
            self.report.add(&error, Some((Lba(number * blocks), blocks)));
        }
        u64::from(record_bytes)
    }

    /// Returns whether more bytes of a full segment are live than were found.
    async fn is_missed(&mut self, segment: SegmentId, met_bytes: u64) -> bool {
        let drive = self.drive;
        // Records written by a running checkpoint count as live, and nothing names them yet.
        let is_meta = drive.core().space().stream(segment) == Stream::Meta;
        let _turn = if is_meta { Some(drive.turn().await) } else { None };
        // Trimmed blocks count as live until they are reaped.
        if let Err(error) = drive.reap_all().await {
            tracing::warn!(%segment, error = %error.chain(), "the scrub cannot recount a segment");
            return false;
        }
        if !is_meta && drive.core().lost_leaves() > 0 {
            // Frames that the lost leaves mapped count as live, and nothing names them.
            return false;
        }
        let live_bytes = u64::from(drive.core().space().live_bytes_of(segment));
        live_bytes > met_bytes + drive.core().checkpoint_only_bytes(segment)
    }

    /// Reports live data after a damaged header, and reads it block by block, since whole frames
    /// can still be read.
    async fn check_missed(&mut self, segment: SegmentId) {
        let drive = self.drive;
        let is_meta = drive.core().space().stream(segment) == Stream::Meta;
        if is_meta && self.repair_segment(segment).await {
            return;
        }
        let what = "a header is damaged: data after it can neither be moved nor, if the map were \
                    lost, found again; copy the drive's content to another drive";
        self.report.add(&Error::new(ErrorKind::Corrupt, what).in_segment(segment), None);
        let next_leaf = |leaf| drive.core().map().next_mapped_leaf(leaf);
        let mut next = next_leaf(0);
        while let Some(leaf) = next {
            next = next_leaf(leaf + 1);
            let first = Lba(leaf * u64::from(LEAF_BLOCKS));
            if drive.core().is_ending() || drive.load_range(first, 1).await.is_err() {
                continue;
            }
            let runs: Vec<(Lba, u64)> = {
                let core = drive.core();
                let runs = core.map().leaf_runs(leaf).into_iter().flatten();
                let here = runs.filter(|(_, _, mapping)| {
                    matches!(mapping, Mapping::Frame { place, .. } if place.segment == segment)
                });
                here.map(|(lba, count, _)| (lba, count)).collect()
            };
            for (lba, count) in runs {
                let bytes = self.frame.get_mut(..buffer_bytes(count));
                let bytes = bytes.expect("the buffer holds the longest frame");
                let read = drive.read_blocks(lba, bytes).await;
                self.pace.spend(drive, count * BLOCK_BYTES as u64).await;
                if let Err(error) = read
                    && !self.report.lists(segment, lba)
                {
                    self.report.add(&error.in_segment(segment), Some((lba, count)));
                }
            }
        }
    }

    fn publish_progress(&self) {
        let report = &self.report;
        self.drive.update_scrub(|progress| {
            progress.scrub_checked_bytes = report.checked_bytes;
            progress.scrub_problems = report.problem_count;
        });
    }
}

/// Limits a scrub to its rate.
struct Pace {
    rate_bytes: u64,
    /// Time at which the next read may begin.
    due_ns: u64,
}

impl Pace {
    /// Waits until reading `bytes` more is within the rate.
    async fn spend(&mut self, drive: &Drive, bytes: u64) {
        let clock = &drive.clock;
        if self.rate_bytes == 0 {
            // Lets other tasks run.
            return clock.sleep_ns(0).await;
        }
        let cost_ns = u128::from(bytes) * 1_000_000_000 / u128::from(self.rate_bytes);
        let from_ns = self.due_ns.max(clock.now_ns().saturating_sub(BURST_NS));
        self.due_ns = from_ns.saturating_add(u64::try_from(cost_ns).unwrap_or(u64::MAX));
        while clock.now_ns() < self.due_ns && !drive.core().is_ending() {
            clock.sleep_ns((self.due_ns - clock.now_ns()).min(SLEEP_NS_MAX)).await;
        }
    }
}

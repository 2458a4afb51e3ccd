//! Checking a drive without changing it. A check reads superblocks, checkpoint, the subsequent log,
//! every leaf of the map and the live bytes of every segment. A full check also reads every record
//! of every segment, and verifies the checksum and decoding of every frame, and whether the map's
//! table of a frame, if any, belongs to it. For snapshots, every leaf and the live bytes are
//! checked; a full check of a snapshot is a separate check.
//!
//! Data that nothing names (overwritten, trimmed, left by a lost life) may be damaged without being
//! a problem: it will never be read.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::super::core::{Core, Forwards, GivesBack, Kept, Kind, Settings, table_of};
use super::super::drive::superblocks::{self, copy_name};
use super::super::log::copies::{damaged_copies, whole_record};
use super::super::log::records::{Found, check_possible, records};
use super::super::log::segment_scan::SegmentScan;
use super::super::map::{Lookup, Mapping, Reap};
use super::super::options::MAP_CACHE_BYTES_DEFAULT;
use super::super::place::{FramePlace, SegmentUse, blocks_of_frame};
use super::super::recovery::{Limits, Reader, Recovered, recover, restore, superblock_of};
use super::super::space::UsedSegment;
use super::frames::check_frame;
use super::problem::{PROBLEMS_LISTED_MAX, Problem};
use crate::base::units::BLOCK_BYTES;
use crate::base::{Error, ErrorKind, Lba, Result, SegmentId, SeqNo};
use crate::codec::Decompressor;
use crate::format::{BatchHeader, FRAME_BLOCKS_MAX, Record, Snapshot, Superblock};
use crate::media::{AnyMedium, CopyId};

/// Returns arbitrary settings: a check writes nothing, so the core's settings for writing do not
/// matter.
fn settings(medium: &dyn AnyMedium) -> Settings {
    Settings {
        cipher: medium.cipher().clone(),
        has_durable_appends: false,
        prefers_written: false,
        is_read_only: true,
        map_cache_bytes: MAP_CACHE_BYTES_DEFAULT,
        checkpoint_bytes: u64::MAX,
        gives_back: GivesBack { empty: false, idle_percent: None },
        warn_percent: None,
    }
}

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CheckReport {
    /// Segments in use.
    pub segments: u64,
    /// Batches after the newest checkpoint, which opening the drive reads.
    pub recovered_batches: u64,
    /// Snapshots whose maps were checked. A separate check by name covers a snapshot's data.
    #[serde(default)]
    pub snapshots: u64,
    /// Leaves of the map that were read.
    pub leaves: u64,
    /// Batches in the segments; 0 in a quick check, like the next three counts.
    pub batches: u64,
    /// Records in them.
    pub records: u64,
    /// Frames that the map names; each was decoded.
    pub frames: u64,
    /// Bytes of batches that were read and checked.
    pub checked_bytes: u64,
    /// The first ten thousand problems.
    pub problems: Vec<Problem>,
    /// Number of problems.
    pub problem_count: u64,
}

/// The progress of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checked {
    /// Number of segments that were read, the last perhaps only in part.
    pub segments: u64,
    /// Segments in use.
    pub segments_total: u64,
    /// Bytes of batches that were read.
    pub bytes: u64,
}

/// The depth of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Superblocks, checkpoint, log, map and accounting: whether the drive opens.
    Quick,
    /// The same, and every frame.
    Full,
}

/// Checks the drive on a medium. Calls `progress` with the amount checked so far.
///
/// # Errors
/// If there is nothing to check: `NotADrive`, `Unsupported`, both superblocks `Corrupt`, the medium
/// too small, `Medium` for a failed read; `InvalidInput` if the log changes more of the map than
/// recovery permits. Other damage is in the report.
pub async fn check(
    medium: &dyn AnyMedium,
    depth: Depth,
    progress: &mut dyn FnMut(Checked),
) -> Result<CheckReport> {
    let copies = medium.copies();
    let mut report = check_all(medium, depth, progress).await?;
    report.add_left_out(medium, &copies);
    Ok(report)
}

/// Like [`check`], without reporting copies that were removed during the check.
async fn check_all(
    medium: &dyn AnyMedium,
    depth: Depth,
    progress: &mut dyn FnMut(Checked),
) -> Result<CheckReport> {
    let (superblock, problems) = load_superblock(medium).await?;
    let superblock = &superblock;
    let mut report = CheckReport::default();
    for problem in &problems {
        report.add(problem, None);
    }
    let limits = Limits::for_map_cache(MAP_CACHE_BYTES_DEFAULT);
    let recovered = match recover(medium, superblock, settings(medium), limits).await {
        Ok(recovered) => recovered,
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            report.add(&error, None);
            return Ok(report);
        }
        Err(error) => return Err(error),
    };
    let snapshots = recovered.core.snapshots().kept().to_vec();
    let forwards = recovered.core.forwards().clone();
    let mut report =
        check_recovered(medium, superblock, recovered, report, depth, progress).await?;
    for Kept { entry, damage, .. } in snapshots {
        report.snapshots += 1;
        let found = match damage {
            Some(damage) => Err(Error::new(ErrorKind::Corrupt, damage)),
            None => {
                let view = (&entry, forwards.of(&entry));
                check_view(medium, superblock, view, Depth::Quick, &mut |_| ()).await
            }
        };
        match found {
            Ok(found) => report.add_all(&entry.name, found),
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                let what = format!("snapshot {} is damaged", entry.name);
                report.add(&Error::new(ErrorKind::Corrupt, what).caused_by(error), None);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(report)
}

/// Checks a snapshot of the drive on a medium, as [`check`] checks the disk. For a bookmark, checks
/// only the map.
///
/// # Errors
/// `NotFound`, or those of [`check`].
pub async fn check_snapshot(
    medium: &dyn AnyMedium,
    name: &str,
    depth: Depth,
    progress: &mut dyn FnMut(Checked),
) -> Result<CheckReport> {
    let copies = medium.copies();
    let (superblock, _) = load_superblock(medium).await?;
    let (entry, forwards) = Reader::new(medium, &superblock).find_snapshot(name).await?;
    let depth = if entry.is_bookmark { Depth::Quick } else { depth };
    let mut report = check_view(medium, &superblock, (&entry, forwards), depth, progress).await?;
    report.add_left_out(medium, &copies);
    Ok(report)
}

/// Reads the superblock, and returns it with the errors of its slots.
async fn load_superblock(medium: &dyn AnyMedium) -> Result<(Superblock, Vec<Error>)> {
    let loaded = superblocks::load(medium).await?;
    let superblock = loaded.stored.superblock;
    medium.set_geometry(superblocks::geometry(&superblock))?;
    Ok((superblock, loaded.problems))
}

/// Checks a snapshot, whose drive has `superblock`.
async fn check_view(
    medium: &dyn AnyMedium,
    superblock: &Superblock,
    (entry, forwards): (&Snapshot, Forwards),
    depth: Depth,
    progress: &mut dyn FnMut(Checked),
) -> Result<CheckReport> {
    let superblock = &superblock_of(superblock, entry);
    let limits = Limits::for_map_cache(MAP_CACHE_BYTES_DEFAULT);
    let recovered =
        restore(medium, superblock, settings(medium), limits, (entry, forwards)).await?;
    let report = CheckReport::default();
    check_recovered(medium, superblock, recovered, report, depth, progress).await
}

async fn check_recovered(
    medium: &dyn AnyMedium,
    superblock: &Superblock,
    recovered: Recovered,
    mut report: CheckReport,
    depth: Depth,
    progress: &mut dyn FnMut(Checked),
) -> Result<CheckReport> {
    let Recovered { core, batches, problems, walk_end } = recovered;
    let first_unproven = walk_end.unproven.first().map(|batch| batch.seq);
    let watermark = first_unproven.map_or(SeqNo(u64::MAX), |seq| SeqNo(seq.0.saturating_sub(1)));
    for problem in &problems {
        report.add(problem, None);
    }
    report.recovered_batches = batches;
    let reader = match core.kind() != Kind::Drive {
        // The view's map names frames that may have been moved, in segments that may no longer
        // exist.
        true => {
            let reader = Reader::of_kept(medium, superblock, core.forwards());
            reader.widen(core.space().segment_count());
            reader
        }
        false => Reader::new(medium, superblock),
    };
    let (decompressor, frame) = (Decompressor::new(), Vec::new());
    let mut check =
        Check { medium, superblock, reader, core, watermark, decompressor, frame, report };
    check.reap().await?;
    let Counted { by_map, by_use } = check.check_map().await?;
    check.check_accounting(&by_map);
    if depth == Depth::Full {
        check.check_segments(&by_use, progress).await?;
    }
    for restored in check.reader.take_restored() {
        check.report.add(&restored, None);
    }
    Ok(check.report)
}

impl CheckReport {
    /// Adds the problems of a snapshot.
    fn add_all(&mut self, name: &str, found: CheckReport) {
        self.problem_count += found.problem_count;
        let room = PROBLEMS_LISTED_MAX.saturating_sub(self.problems.len());
        self.problems.extend(found.problems.into_iter().take(room).map(|mut problem| {
            problem.what = format!("snapshot {name}: {}", problem.what);
            problem
        }));
        assert!(self.problems.len() as u64 <= self.problem_count, "a listed problem is counted");
    }

    /// Adds the copies that existed at the beginning and were removed since: members that do not
    /// respond.
    fn add_left_out(&mut self, medium: &dyn AnyMedium, before: &[CopyId]) {
        let present = medium.copies();
        let members = medium.as_array().map(|array| array.info().members).unwrap_or_default();
        for member in members {
            if before.contains(&member.copy) && !present.contains(&member.copy) {
                let why = member.error.map(|why| format!(": {why}")).unwrap_or_default();
                let what = format!("{} was left out during the check{why}", member.path);
                self.add(&Error::new(ErrorKind::Medium, what), None);
            }
        }
    }

    fn add(&mut self, error: &Error, lbas: Option<(Lba, u64)>) {
        self.problem_count += 1;
        if self.problems.len() < PROBLEMS_LISTED_MAX {
            self.problems.push(Problem::new(error, lbas));
        }
    }
}

/// The bytes and blocks that the map and the checkpoint name.
#[derive(Default)]
struct Counted {
    /// Bytes of records in each segment, at the places that the map names.
    by_map: BTreeMap<SegmentId, u64>,
    /// Blocks of the host's disk in each use of a segment, at their current places.
    by_use: BTreeMap<SegmentUse, u64>,
}

struct Check<'a> {
    medium: &'a dyn AnyMedium,
    superblock: &'a Superblock,
    reader: Reader<'a>,
    core: Core,
    /// Up to this batch, every copy contains every batch.
    watermark: SeqNo,
    decompressor: Decompressor,
    /// The last frame that was decoded.
    frame: Vec<u8>,
    report: CheckReport,
}

/// Where records of metadata begin.
type MetadataOffsets = BTreeSet<(SegmentId, u32)>;

impl Check<'_> {
    /// Loads a leaf and reports any error. Returns whether the leaf is in memory.
    async fn load(&mut self, leaf: u64) -> Result<bool> {
        let Some(from) = self.core.leaf_to_load(leaf) else { return Ok(true) };
        match self.reader.leaf(leaf, from).await {
            Ok(content) => {
                self.core.install_leaf(leaf, from.place, content);
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                let blocks = u64::from(crate::format::LEAF_BLOCKS);
                self.report.add(&error, Some((Lba(leaf * blocks), blocks)));
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Reaps trimmed leaves, so that live bytes are exact.
    async fn reap(&mut self) -> Result<()> {
        loop {
            match self.core.reap_resident() {
                Reap::Done => return Ok(()),
                Reap::More => {}
                Reap::Missing(leaf) => {
                    if !self.load(leaf).await? {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Reads every leaf. Returns the bytes and blocks that the map and the checkpoint name.
    async fn check_map(&mut self) -> Result<Counted> {
        let Counted { mut by_map, mut by_use } = Counted::default();
        let mut next = self.core.map().next_stored_leaf(0);
        while let Some(leaf) = next {
            next = self.core.map().next_stored_leaf(leaf + 1);
            if self.core.map().leaf_runs(leaf).is_none() && !self.load(leaf).await? {
                continue;
            }
            self.report.leaves += 1;
            for (lba, count, mapping) in self.core.map().leaf_runs(leaf).into_iter().flatten() {
                if let Mapping::Frame { place, index } = mapping {
                    if self.core.has_metadata(place.segment) {
                        let error = Error::new(ErrorKind::Corrupt, "a leaf of the map is lost");
                        self.report.add(&error, Some((lba, count)));
                        continue;
                    }
                    let share = place.share(index, blocks_of_frame(count));
                    *by_map.entry(place.segment).or_default() += u64::from(share);
                    let (place, generation) = self.place_of_data(place);
                    let of = SegmentUse { segment: place.segment, generation };
                    *by_use.entry(of).or_default() += count;
                }
            }
        }
        // Leaves that were reaped since the checkpoint are live until the next one.
        for place in self.core.metadata() {
            *by_map.entry(place.segment).or_default() += u64::from(place.bytes);
        }
        Ok(Counted { by_map, by_use })
    }

    /// Returns the current place of a frame that the map names, and the generation there.
    fn place_of_data(&self, place: FramePlace) -> (FramePlace, u64) {
        self.core.forwards().resolve(place, self.core.space().generation(place.segment))
    }

    fn check_accounting(&mut self, counted: &BTreeMap<SegmentId, u64>) {
        if let Err(error) = self.core.space().check() {
            self.report.add(&error, None);
        }
        let used: Vec<_> = self.core.space().used().collect();
        self.report.segments = used.len() as u64;
        let is_used = |segment: &SegmentId| used.iter().any(|used| used.segment == *segment);
        for &segment in counted.keys().filter(|segment| !is_used(segment)) {
            let what = "the map names a segment that is free";
            let error = Error::new(ErrorKind::Corrupt, what).in_segment(segment);
            self.report.add(&error, None);
        }
        for UsedSegment { segment, live_bytes, .. } in used {
            let named = counted.get(&segment).copied().unwrap_or(0);
            // Frames that a lost leaf mapped count as live, and nothing names them.
            let is_right = if self.core.lost_leaves() > 0 {
                named <= u64::from(live_bytes)
            } else {
                named == u64::from(live_bytes)
            };
            if !is_right {
                let what = format!("{live_bytes} bytes count as live, the map names {named}");
                let error = Error::new(ErrorKind::Corrupt, what).in_segment(segment);
                self.report.add(&error, None);
            }
        }
    }

    /// Reads every segment and checks every frame in it that the map names.
    async fn check_segments(
        &mut self,
        counted: &BTreeMap<SegmentUse, u64>,
        progress: &mut dyn FnMut(Checked),
    ) -> Result<()> {
        self.frame = vec![0; usize::from(FRAME_BLOCKS_MAX) * BLOCK_BYTES];
        let used = self.core.space().used();
        let used =
            used.map(|UsedSegment { segment, generation, .. }| SegmentUse { segment, generation });
        // If nothing was moved, the two sets are equal.
        let used: BTreeSet<_> = used.chain(counted.keys().copied()).collect();
        let segments_total = used.len() as u64;
        let metadata = self.core.metadata().into_iter();
        let metadata = metadata.map(|place| (place.segment, place.offset)).collect();
        for (segments, used) in (1..).zip(used) {
            let SegmentUse { segment, generation } = used;
            let shape = self.superblock.shape();
            let uuid = self.superblock.uuid;
            let mut scan = SegmentScan::new(self.medium, uuid, &shape, segment, generation);
            let mut missing_blocks = counted.get(&used).copied().unwrap_or(0);
            while let Some((header, body)) = scan.next().await {
                let (live_records, live_blocks) =
                    self.check_batch(&header, body, &metadata).await?;
                missing_blocks = missing_blocks.saturating_sub(live_blocks);
                if live_records > 0 && scan.is_from_echo() {
                    let what = "headers of a batch are damaged, and frames in it may fail to be \
                                read: a scrub rewrites its live data";
                    let error = Error::new(ErrorKind::Corrupt, what).in_segment(segment);
                    self.report.add(&error.at_offset(header.offset.into()), None);
                }
                self.report.checked_bytes += header.batch_bytes();
                let bytes = self.report.checked_bytes;
                progress(Checked { segments, segments_total, bytes });
            }
            if missing_blocks > 0 {
                let what = format!("{missing_blocks} blocks follow damaged headers");
                let error = Error::new(ErrorKind::Corrupt, what).in_segment(segment);
                self.report.add(&error, None);
            }
        }
        Ok(())
    }

    /// Checks the live records of a batch, and its copies; returns the number of these records and
    /// of their live blocks.
    async fn check_batch(
        &mut self,
        header: &BatchHeader,
        body: &[u8],
        metadata: &MetadataOffsets,
    ) -> Result<(usize, u64)> {
        self.report.batches += 1;
        let (mut live_records, mut live_blocks) = (Vec::new(), 0);
        for found in records(self.medium.cipher(), header, body) {
            // The blocks of the records that follow are missed at the end of the segment.
            let Ok(found) = found else { break };
            self.report.records += 1;
            let blocks = self.live_blocks(&found).await?;
            if blocks > 0 {
                live_blocks += blocks;
                self.report.frames += 1;
                if let Err(error) = self.check_frame(&found).await {
                    self.report.add(&error, Some(found.record.lba_range()));
                }
            }
            if blocks > 0 || metadata.contains(&(header.segment, found.place.offset)) {
                live_records.push(found);
            }
        }
        self.check_copies(header, &live_records).await;
        Ok((live_records.len(), live_blocks))
    }

    /// Checks a frame; on a mirror, in the first copy in which it is whole.
    async fn check_frame(&mut self, found: &Found<'_>) -> Result<()> {
        let cipher = self.medium.cipher();
        let mut whole = None;
        if self.medium.copies().len() > 1 && !found.is_whole() {
            whole = whole_record(self.medium, &self.superblock.shape(), found).await;
        }
        let found = Found { bytes: whole.as_deref().unwrap_or(found.bytes), ..*found };
        check_frame(cipher, &found, &mut self.decompressor, &mut self.frame)?;
        self.check_table(&found)
    }

    /// Compares the copies of a batch in which these records are live, and reports the damaged
    /// copies. Data that an unclean end has left in some copies only is not damage: the next
    /// opening for writing makes them equal.
    async fn check_copies(&mut self, header: &BatchHeader, live: &[Found<'_>]) {
        let Some(first) = live.first().filter(|_| self.medium.copies().len() > 1) else { return };
        if header.seq > self.watermark {
            return;
        }
        let shape = self.superblock.shape();
        for copy in damaged_copies(self.medium, &shape, header, live).await {
            let what =
                format!("the copy of a batch on {} is damaged", copy_name(self.medium, copy));
            let error = Error::new(ErrorKind::Corrupt, what).in_segment(header.segment);
            let lbas =
                matches!(first.record, Record::Data { .. }).then(|| first.record.lba_range());
            self.report.add(&error.at_offset(header.offset.into()), lbas);
        }
    }

    /// Returns the number of blocks of a record that the map still names at its place.
    async fn live_blocks(&mut self, found: &Found<'_>) -> Result<u64> {
        let Record::Data { lba, lba_count, .. } = found.record else { return Ok(0) };
        if check_possible(found, self.superblock).is_err() {
            return Ok(0);
        }
        while let Some(leaf) = self.core.map().missing(lba, u64::from(lba_count)) {
            if !self.load(leaf).await? {
                return Ok(0);
            }
        }
        let (here, generation) = (place_of(found, lba_count), found.place.generation);
        let mut blocks = 0;
        for index in 0..lba_count {
            let at = Lba(lba.0 + u64::from(index));
            let Lookup::Run(Mapping::Frame { place, index: block }, _) = self.core.map().peek(at)
            else {
                continue;
            };
            let is_here = u16::from(block) == index
                && (place == here || self.core.forwards().is_used())
                && self.place_of_data(place) == (here, generation);
            blocks += u64::from(is_here);
        }
        assert!(blocks <= u64::from(lba_count), "the blocks of a frame are live once");
        Ok(blocks)
    }

    /// Checks that the map's table of a frame, if any, matches the payload of the frame, which is
    /// whole. With a wrong table, reads are right but slow: nothing else reveals it.
    fn check_table(&self, found: &Found<'_>) -> Result<()> {
        let Record::Data { lba, lba_count, encoding, .. } = found.record else { return Ok(()) };
        let place = place_of(found, lba_count);
        let Some(table) = self.core.map().table(lba, 0, &place) else { return Ok(()) };
        if table_of(place.blocks, encoding, found.payload()) == Some(table) {
            return Ok(());
        }
        let what = "the map has the table of another frame";
        let error = Error::new(ErrorKind::Corrupt, what).in_segment(place.segment);
        Err(error.at_offset(place.offset.into()))
    }
}

fn place_of(found: &Found<'_>, lba_count: u16) -> FramePlace {
    FramePlace {
        segment: found.place.segment,
        offset: found.place.offset,
        record_bytes: found.record.record_bytes(),
        blocks: blocks_of_frame(lba_count.into()),
    }
}

#[cfg(test)]
mod tests {
    //! Goal: the memory of a check is bounded, however damaged the medium is.
    use super::*;

    #[test]
    fn lists_of_a_wrecked_medium_end() {
        let mut report = CheckReport::default();
        for _ in 0..PROBLEMS_LISTED_MAX + 7 {
            report.add(&Error::new(ErrorKind::Corrupt, "a problem"), None);
        }
        assert_eq!(report.problems.len(), PROBLEMS_LISTED_MAX);
        assert_eq!(report.problem_count, PROBLEMS_LISTED_MAX as u64 + 7);
    }
}

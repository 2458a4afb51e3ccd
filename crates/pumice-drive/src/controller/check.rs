//! Checking a drive without changing it: superblocks, checkpoint, the log behind it, every leaf of
//! the map, the live bytes of every segment, and unless asked to be quick every record of every
//! segment and every frame's checksum and decoding.
//!
//! What nothing names (overwritten, trimmed, left behind by a life that was lost) may be damaged
//! without being a problem: nobody will ever read it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::MAP_CACHE_BYTES_DEFAULT;
use super::l2p::{FramePlace, L2p, Mapping, Reap};
use super::records::{Found, check_possible, records};
use super::recovery::{Limits, Reader, Recovered, recover};
use super::scan::Scan;
use super::space::Space;
use super::superblocks;
use super::write::release;
use crate::base::units::BLOCK_BYTES;
use crate::base::{Error, ErrorKind, Lba, Result, SegmentId};
use crate::codec::{Decompressor, Encoding};
use crate::format::{DirectoryEntry, FRAME_BLOCKS_MAX, Record, Superblock, check_payload};
use crate::media::Medium;

/// Problems listed one by one; more are only counted, so that a wrecked medium cannot fill the
/// memory.
pub(crate) const PROBLEMS_LISTED_MAX: usize = 10_000;

/// Something wrong on the medium.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// What is wrong.
    pub what: String,
    /// In which segment, if in one.
    pub segment: Option<u32>,
    /// First block concerned, if known.
    pub lba: Option<u64>,
    /// Number of blocks concerned.
    pub lba_count: Option<u64>,
}

impl Problem {
    /// An error, and the blocks that it concerns.
    pub(crate) fn new(error: &Error, lbas: Option<(Lba, u64)>) -> Self {
        Self {
            what: error.chain(),
            segment: error.segment().map(|segment| segment.0),
            lba: lbas.map(|(lba, _)| lba.0),
            lba_count: lbas.map(|(_, count)| count),
        }
    }
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckReport {
    /// Segments in use.
    pub segments: u64,
    /// Batches behind the newest checkpoint, which opening the drive reads.
    pub recovered_batches: u64,
    /// Leaves of the map that were read.
    pub leaves: u64,
    /// Batches in the segments; 0 in a quick check, as the next three.
    pub batches: u64,
    /// Records in them.
    pub records: u64,
    /// Records that are frames the map names; each was decoded.
    pub frames: u64,
    /// Bytes of batches that were read and checked.
    pub checked_bytes: u64,
    /// What is wrong, the first ten thousand.
    pub problems: Vec<Problem>,
    /// How many problems there are.
    pub problem_count: u64,
}

/// How much to check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Superblocks, checkpoint, log, map and accounting: whether the drive opens.
    Quick,
    /// Every frame besides.
    Full,
}

/// Checks the drive on a medium; `progress` is told the bytes checked so far.
///
/// # Errors
/// Where there is nothing to check: `NotADrive`, `Unsupported`, both superblocks `Corrupt`, the
/// medium too small, `Medium` for a failed read; `InvalidInput` if the log changes more of the map
/// than the memory is for. Damage beyond that is in the report.
pub async fn check<M: Medium>(
    medium: &M,
    depth: Depth,
    progress: &mut dyn FnMut(u64),
) -> Result<CheckReport> {
    let loaded = superblocks::load(medium).await?;
    medium.set_geometry(superblocks::geometry(&loaded.superblock))?;
    let mut report = CheckReport::default();
    for problem in &loaded.problems {
        report.add(problem, None);
    }
    let superblock = &loaded.superblock;
    let limits = Limits::for_map_cache(MAP_CACHE_BYTES_DEFAULT);
    let recovered = match recover(medium, superblock, limits).await {
        Ok(recovered) => recovered,
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            report.add(&error, None);
            return Ok(report);
        }
        Err(error) => return Err(error),
    };
    let Recovered { l2p, space, batches, lists, problems, .. } = recovered;
    for problem in &problems {
        report.add(problem, None);
    }
    report.recovered_batches = batches;
    let reader = Reader::new(medium, superblock);
    let mut check = Check { medium, superblock, reader, l2p, space, report };
    check.reap().await?;
    let counted = check.check_map(&lists).await?;
    check.check_accounting(&counted);
    if depth == Depth::Full {
        check.check_segments(&counted, progress).await?;
    }
    Ok(check.report)
}

impl CheckReport {
    fn add(&mut self, error: &Error, lbas: Option<(Lba, u64)>) {
        self.problem_count += 1;
        if self.problems.len() < PROBLEMS_LISTED_MAX {
            self.problems.push(Problem::new(error, lbas));
        }
    }
}

/// What the map and the checkpoint name in a segment.
#[derive(Clone, Copy, Debug, Default)]
struct Named {
    /// Bytes of records.
    bytes: u64,
    /// Blocks of the host's disk.
    blocks: u64,
}

struct Check<'a, M> {
    medium: &'a M,
    superblock: &'a Superblock,
    reader: Reader<'a, M>,
    l2p: L2p,
    space: Space,
    report: CheckReport,
}

impl<M: Medium> Check<'_, M> {
    /// Brings a leaf in; notes what is wrong with it.
    async fn load(&mut self, leaf: u64) -> Result<bool> {
        let DirectoryEntry::Leaf(place) = self.l2p.entry(leaf) else { return Ok(true) };
        let generation = self.space.generation(place.segment);
        match self.reader.leaf(leaf, place, generation).await {
            Ok(content) => {
                self.l2p.install(leaf, place, content);
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

    /// Takes trimmed leaves down, so that live bytes are exact.
    async fn reap(&mut self) -> Result<()> {
        loop {
            let space = &mut self.space;
            match self.l2p.reap(u32::MAX, |released| release(space, released)) {
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

    /// Reads every leaf; gives the bytes that the map and the checkpoint name in each segment.
    async fn check_map(&mut self, lists: &[(u32, u32)]) -> Result<BTreeMap<u32, Named>> {
        let mut counted: BTreeMap<u32, Named> = BTreeMap::new();
        let mut next = self.l2p.next_stored_leaf(0);
        while let Some(leaf) = next {
            next = self.l2p.next_stored_leaf(leaf + 1);
            if self.l2p.leaf_runs(leaf).is_none() && !self.load(leaf).await? {
                continue;
            }
            self.report.leaves += 1;
            for (_, count, mapping) in self.l2p.leaf_runs(leaf).into_iter().flatten() {
                if let Mapping::Frame { place, index } = mapping {
                    let share = place.share(index, count as u8);
                    let named = counted.entry(place.segment).or_default();
                    named.bytes += u64::from(share);
                    named.blocks += count;
                }
            }
        }
        // Leaves that were taken down since the checkpoint are live until the next one.
        let meta = self.l2p.meta_places().chain(self.l2p.superseded_places());
        let meta = meta.map(|place| (place.segment.0, place.bytes));
        for (segment, bytes) in meta.chain(lists.iter().copied()) {
            counted.entry(segment).or_default().bytes += u64::from(bytes);
        }
        Ok(counted)
    }

    fn check_accounting(&mut self, counted: &BTreeMap<u32, Named>) {
        if let Err(error) = self.space.check() {
            self.report.add(&error, None);
        }
        let used: Vec<_> = self.space.used().collect();
        self.report.segments = used.len() as u64;
        let is_used = |segment: &u32| used.iter().any(|(number, _, _)| number.0 == *segment);
        for &segment in counted.keys().filter(|segment| !is_used(segment)) {
            let what = "the map names a segment that is free";
            let error = Error::new(ErrorKind::Corrupt, what).in_segment(SegmentId(segment));
            self.report.add(&error, None);
        }
        for (segment, _, live_bytes) in used {
            let named = counted.get(&segment.0).map_or(0, |named| named.bytes);
            if named != u64::from(live_bytes) {
                let what = format!("{live_bytes} bytes count as live, the map names {named}");
                let error = Error::new(ErrorKind::Corrupt, what).in_segment(segment);
                self.report.add(&error, None);
            }
        }
    }

    /// Reads every segment and checks every frame in it that the map names.
    async fn check_segments(
        &mut self,
        counted: &BTreeMap<u32, Named>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let mut decompressor = Decompressor::new();
        let mut frame = vec![0; usize::from(FRAME_BLOCKS_MAX) * BLOCK_BYTES];
        for (segment, generation, _) in self.space.used().collect::<Vec<_>>() {
            let shape = self.superblock.shape();
            let uuid = self.superblock.uuid;
            let mut scan = Scan::new(self.medium, uuid, &shape, segment, generation);
            let mut missing_blocks = counted.get(&segment.0).map_or(0, |named| named.blocks);
            while let Some((header, body)) = scan.next().await {
                self.report.batches += 1;
                for found in records(&header, body) {
                    // What is behind it is missed below.
                    let Ok(found) = found else { break };
                    self.report.records += 1;
                    let live = self.live_blocks(&found).await?;
                    if live > 0 {
                        missing_blocks -= live.min(missing_blocks);
                        self.report.frames += 1;
                        if let Err(error) = check_frame(&found, &mut decompressor, &mut frame) {
                            self.report.add(&error, Some(found.record.lba_range()));
                        }
                    }
                }
                self.report.checked_bytes += header.batch_bytes();
                progress(self.report.checked_bytes);
            }
            if missing_blocks > 0 {
                let what = format!("{missing_blocks} blocks stand behind damaged headers");
                let error = Error::new(ErrorKind::Corrupt, what).in_segment(segment);
                self.report.add(&error, None);
            }
        }
        Ok(())
    }

    /// How many blocks of a record the map still names there.
    async fn live_blocks(&mut self, found: &Found<'_>) -> Result<u64> {
        let Record::Data { lba, lba_count, .. } = found.record else { return Ok(0) };
        if check_possible(found, self.superblock).is_err() {
            return Ok(0);
        }
        while let Some(leaf) = self.l2p.missing(lba, u64::from(lba_count)) {
            if !self.load(leaf).await? {
                return Ok(0);
            }
        }
        let place = FramePlace {
            segment: found.place.segment.0,
            offset: found.place.offset,
            record_bytes: found.record.record_bytes(),
            blocks: lba_count as u8,
        };
        let pieces = self.l2p.live_pieces(lba, place);
        Ok(pieces.map(|piece| u64::from(piece.count)).sum())
    }
}

/// Checks a frame's payload and decodes it into `frame`, which holds the longest one.
///
/// # Errors
/// `Corrupt`, naming the place.
pub(crate) fn check_frame(
    found: &Found<'_>,
    decompressor: &mut Decompressor,
    frame: &mut [u8],
) -> Result<()> {
    let Record::Data { lba_count, encoding, payload_checksum, .. } = found.record else {
        return Ok(());
    };
    let place = found.place;
    check_payload(found.payload(), payload_checksum, place)?;
    let named = |error: Error| error.in_segment(place.segment).at_offset(u64::from(place.offset));
    let encoding = Encoding::from_u8(encoding)
        .ok_or_else(|| named(Error::new(ErrorKind::Corrupt, "a frame has an unknown encoding")))?;
    let frame = &mut frame[..usize::from(lba_count) * BLOCK_BYTES];
    decompressor.decompress(encoding, found.payload(), frame).map_err(named)
}

#[cfg(test)]
mod tests {
    //! Goal: what a check remembers is bounded, however wrecked the medium is.
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

//! Queries for tests of a drive: whether its accounts agree with its map and its metadata, and when
//! a change takes its place in the order of changes.
//!
//! This module writes nothing to the medium, and is not for the data path.

use super::super::core::Core;
use super::super::drive::Drive;
use super::super::map::Mapping;
use super::super::place::blocks_of_frame;
use crate::base::{Error, ErrorKind, Result, SegmentId};
use crate::format::Stream;

/// Number of counts that garbage collection may invalidate before the audit fails. Garbage
/// collection rests when nothing is written, so that one of the first counts succeeds.
const ATTEMPTS_MAX: u32 = 10_000;

/// Time for which garbage collection continues after it has invalidated a count.
const RETRY_NS: u64 = 1_000_000;

/// The accounts of a drive, which were found to be right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Audit {
    /// Record bytes that the map or the newest checkpoint name.
    pub live_bytes: u64,
    /// Segments in use.
    pub used_segments: u32,
    /// Segments that may be written again.
    pub free_segments: u32,
}

/// The amount of data that a drive has accepted since its creation. It changes in the same poll in
/// which a change takes its place in the order of changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Bytes that the host wrote, except trims and whole blocks of write-zeroes.
    pub host_bytes: u64,
    /// Bytes of the records that resulted; trims and write-zeroes also have records.
    pub frame_bytes: u64,
}

impl Drive {
    /// Counts live bytes again from the map and the metadata, segment by segment, and compares the
    /// segment table with the count. Reaps trimmed leaves first, since they count as live until
    /// then, and loads every leaf. No request of a host may be under way; checkpoints wait.
    ///
    /// # Errors
    /// `Corrupt`, naming the wrong account, for a bug of the drive; `Medium` or `Corrupt` if a leaf
    /// cannot be read; `Busy` if garbage collection does not come to rest.
    #[doc(hidden)]
    pub async fn audit(&self) -> Result<Audit> {
        for _ in 0..ATTEMPTS_MAX {
            let turn = self.turn().await;
            self.reap_all().await?;
            let before = self.account_version();
            let counted = self.count_live().await;
            if before == self.account_version() {
                return compare(&self.core(), counted?);
            }
            drop(turn);
            self.clock.sleep_ns(RETRY_NS).await;
        }
        Err(Error::new(ErrorKind::Busy, "garbage collection does not become idle"))
    }

    /// Returns a value that changes whenever a segment's live bytes change.
    fn account_version(&self) -> (u64, u64) {
        let core = self.core();
        let space = core.space();
        // Deaths are counted as changes; data that becomes live makes the sum larger.
        (space.changes(), space.live_bytes())
    }

    /// Returns the live bytes of each segment according to map and metadata.
    async fn count_live(&self) -> Result<Vec<u64>> {
        let mut counted = vec![0u64; self.core().space().segment_count() as usize];
        let mut count = |segment: SegmentId, bytes: u32| {
            let what = "the map names a segment that does not exist";
            let live = counted.get_mut(segment.0 as usize);
            *live.ok_or_else(|| Error::new(ErrorKind::Corrupt, what))? += u64::from(bytes);
            Ok(())
        };
        let mut next = 0;
        loop {
            let Some(leaf) = self.core().map().next_mapped_leaf(next) else { break };
            if !self.count_leaf(leaf, &mut count)? {
                self.load_leaf(leaf).await?;
                continue;
            }
            next = leaf + 1;
        }
        for place in self.core().metadata() {
            count(place.segment, place.bytes)?;
        }
        Ok(counted)
    }

    /// Counts the bytes that a leaf maps. Returns whether the leaf was in memory.
    fn count_leaf(
        &self,
        leaf: u64,
        count: &mut impl FnMut(SegmentId, u32) -> Result<()>,
    ) -> Result<bool> {
        let core = self.core();
        let Some(runs) = core.map().leaf_runs(leaf) else { return Ok(false) };
        for (_, blocks, mapping) in runs {
            let Mapping::Frame { place, index } = mapping else { continue };
            if core.has_metadata(place.segment) {
                // The block belongs to a lost leaf.
                continue;
            }
            count(place.segment, place.share(index, blocks_of_frame(blocks)))?;
        }
        Ok(true)
    }

    /// Returns the amount of data the drive has accepted so far.
    #[doc(hidden)]
    pub fn taken(&self) -> Taken {
        let totals = self.core().counters().totals();
        Taken { host_bytes: totals.host_bytes, frame_bytes: totals.frame_bytes }
    }

    /// Returns the number of snapshots begun since the opening. It changes in the same poll of
    /// [`Drive::create_snapshot`] in which the snapshot takes its place in the order of changes.
    /// The last such poll counts, since an attempt may fail for lack of space and be repeated.
    #[doc(hidden)]
    pub fn snapshots_begun(&self) -> u64 {
        self.core().snapshots().begun()
    }
}

/// Compares the segment table with live bytes counted by segment.
fn compare(core: &Core, mut counted: Vec<u64>) -> Result<Audit> {
    let space = core.space();
    let wrong = |what: String| Err(Error::new(ErrorKind::Corrupt, what));
    let (mut used_segments, mut live_bytes) = (0, 0);
    for used in space.used() {
        used_segments += 1;
        let count = counted.get_mut(used.segment.0 as usize).map_or(0, std::mem::take);
        live_bytes += count;
        // Frames that a lost leaf mapped count as live, and nothing names them.
        let is_less = core.lost_leaves() > 0 && count < u64::from(used.live_bytes);
        if count != u64::from(used.live_bytes) && !is_less {
            let (segment, live) = (used.segment, used.live_bytes);
            return wrong(format!("segment {segment} counts {live} live bytes and has {count}"));
        }
    }
    if let Some(free) = counted.iter().position(|&count| count != 0) {
        return wrong(format!("segment {free} is free and has live records"));
    }
    if live_bytes != space.live_bytes() && core.lost_leaves() == 0 {
        let what = format!("{} live bytes are counted, {live_bytes} exist", space.live_bytes());
        return wrong(what);
    }
    let free_segments = space.all_free_count();
    if used_segments + free_segments + space.bad_free_count() != space.segment_count() {
        return wrong(format!(
            "{used_segments} segments in use and {free_segments} free, of {}",
            space.segment_count()
        ));
    }
    for tail in Stream::ALL.into_iter().filter_map(|stream| core.log().tail(stream)) {
        if space.is_free(tail.segment) {
            return wrong(format!("segment {} is written to and counts as free", tail.segment));
        }
    }
    compare_retained(core)?;
    Ok(Audit { live_bytes, used_segments, free_segments })
}

/// Compares the number of snapshots that need each segment with the segments that each snapshot
/// needs.
pub(super) fn compare_retained(core: &Core) -> Result<()> {
    let mut counted = vec![0u16; core.space().segment_count() as usize];
    for segment in core.snapshots().all().flat_map(|kept| kept.retained.iter()) {
        if let Some(count) = counted.get_mut(segment.0 as usize) {
            *count += 1;
        }
    }
    for (segment, count) in (0..).map(SegmentId).zip(counted) {
        let retained = core.space().retained_by(segment);
        if retained != count || count > 0 && core.space().is_free(segment) {
            let what = format!("segment {segment} is kept for {retained} snapshots, not {count}");
            return Err(Error::new(ErrorKind::Corrupt, what));
        }
    }
    Ok(())
}

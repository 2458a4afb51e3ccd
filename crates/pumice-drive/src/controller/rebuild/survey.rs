//! A survey of all segments of a drive: their uses, the batches that belong to the drive's history,
//! the places of checkpoints' roots, and the places that cannot be read.
//!
//! A batch of a *lost life* (written, not durable, and overwritten in part by the next life) has a
//! sequence number that a later epoch's batch also reaches. If the first batches of that epoch are
//! missing, the headers of segments that were started in it state where it began, and so does the
//! order of batches within a segment. Beyond the highest batch that any other batch states to be
//! durable, batches count only up to the first gap: batches after a gap were never flushed.

use std::collections::BTreeMap;

use super::super::inspect::Problem;
use super::super::log::records::records;
use super::super::log::segment_scan::SegmentScan;
use super::super::log::window::Window;
use super::super::place::SegmentUse;
use super::Identity;
use crate::base::{SegmentId, SeqNo};
use crate::format::{
    BATCH_ALIGNMENT, BatchHeader, CheckpointAddress, MetaKind, Record, SEGMENT_HEADER_BYTES,
    SegmentHeader, epoch_of,
};
use crate::media::AnyMedium;

#[expect(clippy::cast_possible_truncation, reason = "4096 in the width of offsets in segments")]
const FIRST_BATCH_OFFSET: u32 = SEGMENT_HEADER_BYTES as u32;
#[expect(clippy::cast_possible_truncation, reason = "4096 in the width of offsets in segments")]
const PAGE_BYTES: u32 = BATCH_ALIGNMENT as u32;

/// Maximum number of checkpoints remembered, the newest ones.
const ROOTS_MAX: usize = 16;

/// Problems listed one by one; more are only counted.
const PROBLEMS_LISTED_MAX: usize = 10_000;

/// The content of a drive's segments.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    pub(crate) segments: Vec<SegmentUse>,
    /// Roots of checkpoints with the batch that contains each, newest first.
    pub(crate) roots: Vec<(SeqNo, CheckpointAddress)>,
    /// The highest batch that is known to have been durable.
    pub(crate) watermark: SeqNo,
    /// The first ten thousand problems.
    pub(crate) problems: Vec<Problem>,
    /// Number of problems.
    pub(crate) problem_count: u64,
    /// An upper bound of the first sequence number of each epoch; after the survey, of this epoch
    /// and all later ones.
    epochs: BTreeMap<u32, u64>,
    /// Runs of sequence numbers that were found: first, last.
    found: BTreeMap<u64, u64>,
    end: u64,
}

impl Survey {
    /// Reads every segment. Everything up to `durable`, the superblock's watermark, is durable.
    pub(crate) async fn of(medium: &dyn AnyMedium, identity: &Identity, durable: SeqNo) -> Self {
        let mut survey = Self { watermark: durable, ..Self::default() };
        let mut roots = Vec::new();
        for number in 0..identity.shape.segment_count {
            let segment = SegmentId(number);
            let Some(generation) = survey.generation_of(medium, identity, segment).await else {
                continue;
            };
            let used = SegmentUse { segment, generation };
            survey.segments.push(used);
            survey.read_segment(medium, identity, used, &mut roots).await;
        }
        let mut lowest = u64::MAX;
        for first in survey.epochs.values_mut().rev() {
            lowest = lowest.min(*first);
            *first = lowest;
        }
        let watermark = survey.watermark.0;
        let run = survey.found.range(..=watermark.saturating_add(1)).next_back();
        survey.end = run.map_or(watermark, |(_, &last)| last.max(watermark));
        roots.retain(|(header, _)| survey.counts(header));
        roots.sort_by_key(|(header, _)| std::cmp::Reverse(header.seq));
        roots.truncate(ROOTS_MAX);
        assert!(
            survey.segments.is_sorted_by(|used, next| used.segment < next.segment),
            "segments are surveyed once each, in order"
        );
        assert!(survey.end >= watermark, "durable batches belong to the log");
        survey.roots = roots.into_iter().map(|(header, place)| (header.seq, place)).collect();
        survey
    }

    /// Returns whether a batch belongs to the drive's history.
    pub(crate) fn counts(&self, header: &BatchHeader) -> bool {
        let later = header.epoch.checked_add(1).and_then(|next| self.epochs.range(next..).next());
        let is_lost = later.is_some_and(|(_, &first)| first <= header.seq.0);
        !is_lost && header.seq.0 <= self.end
    }

    /// Returns whether the log can be read from its first batch.
    pub(crate) fn has_first_batch(&self) -> bool {
        self.found.contains_key(&1)
    }

    /// Returns the highest missing batch of the drive's history; 0 if all are found.
    pub(crate) fn last_missing(&self) -> SeqNo {
        let run = self.found.range(..=self.end).next_back();
        match run {
            Some((&first, &last)) if last >= self.end => SeqNo(first - 1),
            _ => SeqNo(self.end),
        }
    }

    /// Returns the runs of missing batches of the drive's history: first, last.
    pub(crate) fn missing(&self) -> Vec<(u64, u64)> {
        let mut missing = Vec::new();
        let mut next = 1;
        for (&first, &last) in self.found.range(..=self.end) {
            if next < first {
                missing.push((next, first - 1));
            }
            next = last.saturating_add(1);
        }
        if next <= self.end {
            missing.push((next, self.end));
        }
        missing
    }

    /// Returns whether batches were found after a gap, which are omitted.
    pub(crate) fn has_batches_after_the_end(&self) -> bool {
        self.found.last_key_value().is_some_and(|(_, &last)| last > self.end)
    }

    /// Returns the generation of a segment in use.
    async fn generation_of(
        &mut self,
        medium: &dyn AnyMedium,
        identity: &Identity,
        segment: SegmentId,
    ) -> Option<u64> {
        let segment_bytes = identity.shape.segment_bytes;
        let mut window = Window::new(medium, segment_bytes);
        let page = window.read(segment, 0, FIRST_BATCH_OFFSET).await;
        if let Ok(Some(header)) = SegmentHeader::decode(page, identity.uuid, segment) {
            if header.opening_seq > SeqNo(0) {
                self.note_epoch(epoch_of(header.generation), header.opening_seq);
            }
            return Some(header.generation);
        }
        // A batch states in which use of its segment it was written; the newest use counts.
        let mut newest = None;
        for at in (FIRST_BATCH_OFFSET..segment_bytes).step_by(BATCH_ALIGNMENT) {
            let page = window.read(segment, at, PAGE_BYTES).await;
            let decoded = BatchHeader::decode_with(page, medium.cipher());
            let Ok((header, _)) = decoded else { continue };
            if (header.uuid, header.segment, header.offset) == (identity.uuid, segment, at) {
                newest = newest.max(Some(header.generation));
            }
        }
        if newest.is_some() {
            self.add_problem(Some(segment), "the segment's header is damaged".into());
        }
        newest
    }

    async fn read_segment(
        &mut self,
        medium: &dyn AnyMedium,
        identity: &Identity,
        SegmentUse { segment, generation }: SegmentUse,
        roots: &mut Vec<(BatchHeader, CheckpointAddress)>,
    ) {
        let mut scan =
            SegmentScan::new(medium, identity.uuid, &identity.shape, segment, generation);
        let mut epoch = 0;
        while let Some((header, body)) = scan.next().await {
            self.watermark = self.watermark.max(header.watermark);
            // A batch of an earlier life after one of a later life is data that the later life did
            // not reach: the later life began with the same number or an earlier one.
            epoch = header.epoch.max(epoch);
            self.note_epoch(epoch, header.seq);
            self.note(header.seq.0);
            for found in records(medium.cipher(), &header, body) {
                let Ok(found) = found else {
                    let what = format!(
                        "a record of batch {} is damaged: the blocks of this record and the \
                         records after it are unknown, and their recovered content may be older",
                        header.seq
                    );
                    self.add_problem(Some(segment), what);
                    break;
                };
                if let Record::Meta { kind: MetaKind::Root, payload_checksum, .. } = found.record {
                    let record_bytes = found.record.record_bytes();
                    let address = found.place;
                    let named = CheckpointAddress { address, record_bytes, payload_checksum };
                    roots.push((header.clone(), named));
                }
            }
        }
        if scan.skipped_bytes > 0 {
            let what = format!(
                "{} bytes without an intact batch header: their blocks are unknown, and the \
                 recovered content of those blocks may be older",
                scan.skipped_bytes
            );
            self.add_problem(Some(segment), what);
        }
    }

    /// Adds a problem found, in a segment or in all of them.
    pub(super) fn add_problem(&mut self, segment: Option<SegmentId>, what: String) {
        self.problem_count += 1;
        if self.problems.len() < PROBLEMS_LISTED_MAX {
            let segment = segment.map(|segment| segment.0);
            self.problems.push(Problem { what, segment, lba: None, lba_count: None });
        }
        assert!(self.problems.len() as u64 <= self.problem_count, "a listed problem is counted");
    }

    /// Records that an epoch began with batch `seq` or before.
    fn note_epoch(&mut self, epoch: u32, seq: SeqNo) {
        let first = self.epochs.entry(epoch).or_insert(seq.0);
        *first = seq.0.min(*first);
    }

    /// Records that batch `seq` was found.
    fn note(&mut self, seq: u64) {
        let before = self.found.range(..=seq).next_back().map(|(&first, &last)| (first, last));
        if before.is_some_and(|(_, last)| last >= seq) {
            return;
        }
        let first = match before {
            Some((first, last)) if last + 1 == seq => first,
            _ => seq,
        };
        let last = seq.checked_add(1).and_then(|next| self.found.remove(&next)).unwrap_or(seq);
        assert!(first <= seq && seq <= last, "a run of batches holds the one that was found");
        self.found.insert(first, last);
    }
}

#[cfg(test)]
mod tests {
    //! Goal: the survey finds the missing batches and the end of the log, whatever the order in
    //! which batches are found.
    use super::*;

    fn survey(found: &[u64], end: u64) -> Survey {
        let mut survey = Survey { end, ..Survey::default() };
        for &seq in found {
            survey.note(seq);
        }
        survey
    }

    #[test]
    fn missing_batches_are_counted() {
        for (found, missing) in [
            (&[1, 2, 3, 4][..], 0),
            (&[4, 2, 3, 1, 2], 0),
            (&[4, 3], 2),
            (&[4, 1, 2], 3),
            (&[1, 2, 3], 4),
            (&[], 4),
        ] {
            assert_eq!(survey(found, 4).last_missing(), SeqNo(missing), "{found:?}");
        }
        assert_eq!(survey(&[7, 3, 4, 9], 8).missing(), [(1, 2), (5, 6), (8, 8)]);
        assert_eq!(survey(&[2, 1], 2).missing(), []);
        assert_eq!(survey(&[9], 2).missing(), [(1, 2)]);
    }
}

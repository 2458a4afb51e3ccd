//! Checking a drive without changing it: both superblocks, every batch of the log, every record,
//! every frame's checksum and decoding.

use serde::{Deserialize, Serialize};

use super::replay::{Visitor, walk};
use super::superblocks;
use crate::base::units::BLOCK_BYTES;
use crate::base::{Error, ErrorKind, Result};
use crate::codec::{Decompressor, Encoding};
use crate::format::{
    BatchHeader, FRAME_BLOCKS_MAX, Record, RecordPlace, SegmentHeader, check_payload,
};
use crate::media::Medium;

/// Problems listed one by one; more are only counted, so that a wrecked medium cannot fill the
/// memory.
const PROBLEMS_LISTED_MAX: usize = 10_000;

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

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckReport {
    /// Segments of the log.
    pub segments: u64,
    /// Batches of the log.
    pub batches: u64,
    /// Records in them.
    pub records: u64,
    /// Records that are frames of data; each was decoded.
    pub frames: u64,
    /// Bytes of the log that were read and checked.
    pub checked_bytes: u64,
    /// What is wrong, the first ten thousand.
    pub problems: Vec<Problem>,
    /// How many problems there are.
    pub problem_count: u64,
}

/// Checks the drive on a medium; `progress` is told the bytes checked so far.
///
/// # Errors
/// Where there is nothing to check: `NotADrive`, `Unsupported`, both superblocks `Corrupt`, the
/// medium too small, or `Medium` for a failed read. Damage beyond that is in the report.
pub async fn check<M: Medium>(medium: &M, progress: &mut dyn FnMut(u64)) -> Result<CheckReport> {
    let loaded = superblocks::load(medium).await?;
    medium.set_geometry(superblocks::geometry(&loaded.superblock))?;
    let mut visit = Check {
        report: CheckReport::default(),
        decompressor: Decompressor::new(),
        frame: vec![0; usize::from(FRAME_BLOCKS_MAX) * BLOCK_BYTES],
        stray_headers: Vec::new(),
        progress,
    };
    for problem in loaded.problems {
        visit.problem(problem);
    }
    let stopped = match walk(medium, &loaded.superblock, &mut visit).await {
        Ok(_) => None,
        Err(error) if error.kind() == ErrorKind::Corrupt => Some(error),
        Err(error) => return Err(error),
    };
    if let Some(error) = stopped {
        for stray in std::mem::take(&mut visit.stray_headers) {
            visit.add(&stray, None);
        }
        visit.add(&error, None);
    }
    Ok(visit.report)
}

struct Check<'a> {
    report: CheckReport,
    decompressor: Decompressor,
    frame: Vec<u8>,
    stray_headers: Vec<Error>,
    progress: &'a mut dyn FnMut(u64),
}

impl Check<'_> {
    fn add(&mut self, error: &Error, lbas: Option<(u64, u64)>) {
        self.report.problem_count += 1;
        if self.report.problems.len() < PROBLEMS_LISTED_MAX {
            self.report.problems.push(Problem {
                what: error.chain(),
                segment: error.segment().map(|segment| segment.0),
                lba: lbas.map(|(lba, _)| lba),
                lba_count: lbas.map(|(_, count)| count),
            });
        }
    }

    fn check_frame(&mut self, record: &Record, place: RecordPlace, payload: &[u8]) -> Result<()> {
        let Record::Data { lba_count, encoding, payload_checksum, .. } = *record else {
            return Ok(());
        };
        check_payload(payload, payload_checksum, place)?;
        let encoding = Encoding::from_u8(encoding).ok_or_else(|| {
            Error::new(ErrorKind::Corrupt, "a frame has an unknown encoding")
                .in_segment(place.segment)
                .at_offset(u64::from(place.offset))
        })?;
        let frame = &mut self.frame[..usize::from(lba_count) * BLOCK_BYTES];
        self.decompressor
            .decompress(encoding, payload, frame)
            .map_err(|error| error.in_segment(place.segment).at_offset(u64::from(place.offset)))
    }
}

impl Visitor for Check<'_> {
    fn segment(&mut self, _header: &SegmentHeader) {
        self.report.segments += 1;
    }

    fn batch(&mut self, header: &BatchHeader) {
        self.report.batches += 1;
        self.report.checked_bytes += header.batch_bytes();
        (self.progress)(self.report.checked_bytes);
    }

    fn record(&mut self, record: &Record, place: RecordPlace, payload: &[u8]) -> Result<()> {
        self.report.records += 1;
        self.report.frames += u64::from(matches!(record, Record::Data { .. }));
        if let Err(error) = self.check_frame(record, place, payload) {
            let (lba, count) = record.lba_range();
            self.add(&error, Some((lba.0, count)));
        }
        Ok(())
    }

    fn stray_header(&mut self, error: Error) {
        if self.stray_headers.len() < PROBLEMS_LISTED_MAX {
            self.stray_headers.push(error);
        }
    }

    fn problem(&mut self, error: Error) {
        self.add(&error, None);
    }
}

#[cfg(test)]
mod tests {
    //! Goal: what a check remembers is bounded, however wrecked the medium is.
    use super::*;

    #[test]
    fn lists_of_a_wrecked_medium_end() {
        let mut visit = Check {
            report: CheckReport::default(),
            decompressor: Decompressor::new(),
            frame: Vec::new(),
            stray_headers: Vec::new(),
            progress: &mut |_| (),
        };
        for _ in 0..PROBLEMS_LISTED_MAX + 7 {
            visit.stray_header(Error::new(ErrorKind::Corrupt, "a stray header"));
            visit.problem(Error::new(ErrorKind::Corrupt, "a problem"));
        }
        assert_eq!(visit.stray_headers.len(), PROBLEMS_LISTED_MAX);
        assert_eq!(visit.report.problems.len(), PROBLEMS_LISTED_MAX);
        assert_eq!(visit.report.problem_count, PROBLEMS_LISTED_MAX as u64 + 7);
    }
}

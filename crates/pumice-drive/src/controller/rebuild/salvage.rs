//! A disk assembled from the records of all segments, without any checkpoint.
//!
//! ```text
//! all segments -> newest version of each block of some leaves -> frames read, verified, decoded
//!              -> the next leaves
//! ```
//!
//! The newest version counts even if it is damaged: its blocks are then lost, and nothing older is
//! returned in their place. This module only reads.

use std::collections::VecDeque;
use std::rc::Rc;

use super::super::inspect::{Extracted, Problem, check_frame};
use super::super::log::records::{Found, check_possible, records};
use super::super::log::segment_scan::SegmentScan;
use super::super::place::SegmentUse;
use super::survey::Survey;
use super::versions::{Content, MOVED, Run, Version, Versions};
use super::{Identity, problem};
use crate::base::units::{BLOCK_BYTES, buffer_bytes};
use crate::base::{AlignedBuffer, Error, ErrorKind, Lba, Result};
use crate::codec::Decompressor;
use crate::crypt::Cipher;
use crate::format::{
    BatchHeader, FRAME_BLOCKS_MAX, LEAF_BLOCKS, Record, RecordAddress, Superblock,
};
use crate::media::AnyMedium;

/// The disk of a drive whose checkpoints are lost.
pub(super) struct Salvage {
    medium: Rc<dyn AnyMedium>,
    identity: Identity,
    superblock: Superblock,
    pub(super) survey: Survey,
    versions: Option<Versions>,
    next_leaf: u64,
    runs: VecDeque<Run>,
    decompressor: Decompressor,
    frame: Vec<u8>,
    /// Blocks whose newest version is older than a missing batch, which may have contained a trim
    /// or a fill.
    pub(super) doubtful_blocks: u64,
}

impl Salvage {
    /// Begins with the first block.
    pub(super) fn new(medium: Rc<dyn AnyMedium>, identity: Identity, survey: Survey) -> Self {
        Self {
            medium,
            superblock: identity.superblock_for(None, survey.watermark),
            identity,
            survey,
            versions: None,
            next_leaf: 0,
            runs: VecDeque::new(),
            decompressor: Decompressor::new(),
            frame: vec![0; usize::from(FRAME_BLOCKS_MAX) * BLOCK_BYTES],
            doubtful_blocks: 0,
        }
    }

    /// Returns the byte up to which the disk has been read.
    pub(super) fn offset(&self) -> u64 {
        let at = self.runs.front().map(|run| run.lba.0);
        let at = at.unwrap_or(self.next_leaf * u64::from(LEAF_BLOCKS));
        (at * BLOCK_BYTES as u64).min(self.identity.shape.size_bytes)
    }

    /// Returns the next part of the disk; `None` at its end.
    pub(super) async fn next(&mut self) -> Option<Extracted<'_>> {
        while self.runs.is_empty() {
            let leaves = self.identity.blocks().div_ceil(u64::from(LEAF_BLOCKS));
            let Some(versions) = &self.versions else {
                if self.next_leaf >= leaves {
                    return None;
                }
                self.versions = Some(self.collect(self.next_leaf, leaves).await);
                continue;
            };
            match versions.runs_from(self.next_leaf) {
                Some((runs, next)) => {
                    assert!(next > self.next_leaf, "a pass over the leaves makes progress");
                    self.runs.extend(runs);
                    self.next_leaf = next;
                }
                None => {
                    assert!(
                        versions.end() >= self.next_leaf,
                        "a pass over the leaves moves forward"
                    );
                    self.next_leaf = versions.end();
                    self.versions = None;
                }
            }
        }
        let run = self.runs.pop_front()?;
        if run.version.age < self.survey.last_missing().0 {
            self.doubtful_blocks += run.count;
        }
        let offset = run.lba.0 * BLOCK_BYTES as u64;
        Some(match run.version.content {
            Content::Fill(byte) => {
                Extracted::Fill { offset, len: run.count * BLOCK_BYTES as u64, byte }
            }
            Content::Hole => Extracted::Fill { offset, len: 0, byte: 0 },
            Content::Frame(index) => match self.read_frame(&run, index).await {
                Err(error) => Extracted::Lost(lost(&run, &error)),
                Ok(()) => {
                    let from = usize::from(index) * BLOCK_BYTES;
                    let bytes = self.frame.get(from..from + buffer_bytes(run.count));
                    let bytes = bytes.expect("the buffer holds the longest frame");
                    Extracted::Data { offset, bytes }
                }
            },
        })
    }

    /// Reads all segments for the newest versions of the blocks in leaf `first` and later leaves.
    async fn collect(&self, first: u64, end: u64) -> Versions {
        let mut versions = Versions::new(first, end);
        let (uuid, shape) = (self.identity.uuid, &self.identity.shape);
        for &SegmentUse { segment, generation } in &self.survey.segments {
            let mut scan = SegmentScan::new(&*self.medium, uuid, shape, segment, generation);
            while let Some((header, body)) = scan.next().await {
                if !self.survey.counts(&header) {
                    continue;
                }
                for found in records(self.medium.cipher(), &header, body) {
                    let Ok(found) = found else { break };
                    if check_possible(&found, &self.superblock).is_ok() {
                        take_record(&mut versions, &header, &found, self.medium.cipher());
                    }
                }
            }
        }
        versions
    }

    /// Reads, verifies and decodes the frame of a run.
    async fn read_frame(&mut self, run: &Run, index: u8) -> Result<()> {
        let Version { segment, offset, record_bytes, .. } = run.version;
        let segments = &self.survey.segments;
        let known = segments.binary_search_by_key(&segment, |used| used.segment);
        let known = known.ok().and_then(|at| segments.get(at));
        let generation = known.map_or(0, |used| used.generation);
        let place = RecordAddress { generation, segment, offset };
        let unit = self.medium.capabilities().read_unit;
        let start = offset / unit * unit;
        let end = (offset + record_bytes).next_multiple_of(unit);
        let buffer = AlignedBuffer::zeroed((end - start) as usize);
        let (bytes, read) = self.medium.read(segment, start, buffer).await;
        read?;
        let at = (offset - start) as usize;
        let bytes = bytes.get(at..at + record_bytes as usize);
        let bytes = bytes.expect("a medium returns the buffer that it filled");
        let cipher = self.medium.cipher();
        let record = Record::decode_with(bytes, place, cipher)?;
        let (lba, count) = record.lba_range();
        let is_right = record.record_bytes() == record_bytes
            && lba.0 + u64::from(index) == run.lba.0
            && u64::from(index) + run.count <= count;
        if !is_right {
            let what = "a frame changed while it was being recovered";
            return Err(Error::new(ErrorKind::Corrupt, what).in_segment(segment));
        }
        let found = Found { record, place, bytes };
        check_frame(cipher, &found, &mut self.decompressor, &mut self.frame)
    }
}

/// Adds the content that a record states for its blocks.
fn take_record(versions: &mut Versions, header: &BatchHeader, found: &Found<'_>, cipher: &Cipher) {
    let (lba, count) = found.record.lba_range();
    let version = |age, order, content| Version {
        age,
        order,
        segment: found.place.segment,
        offset: found.place.offset,
        record_bytes: found.record.record_bytes(),
        content,
    };
    let host = |content| version(header.seq.0, found.place.offset, content);
    match found.record {
        Record::Data { source_count: 0, .. } => versions.add(lba, count, host(Content::Frame(0))),
        Record::Data { .. } => {
            let mut index = 0;
            for source in found.sources(cipher) {
                let at = Lba(lba.0 + u64::from(index));
                let content = Content::Frame(index);
                versions.add(at, source.blocks.into(), version(source.birth.0, MOVED, content));
                index += source.blocks;
            }
        }
        Record::Fill { byte, .. } => versions.add(lba, count, host(Content::Fill(byte))),
        Record::Trim { .. } => versions.add(lba, count, host(Content::Hole)),
        Record::Open { .. } | Record::Meta { .. } => {}
    }
}

fn lost(run: &Run, error: &Error) -> Problem {
    Problem { lba: Some(run.lba.0), lba_count: Some(run.count), ..problem(error) }
}

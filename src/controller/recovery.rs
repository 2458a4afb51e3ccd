//! Recovery: the state of a drive, rebuilt from its log when it is opened.
//!
//! Every record goes through the same doors of `l2p` and `space` as live traffic. In this version
//! the whole log is replayed; the superblock has room for a checkpoint to begin from.

use super::l2p::{FramePlace, L2p, Mapping};
use super::replay::{Visitor, WalkEnd, walk};
use super::space::Space;
use super::write::release;
use crate::base::units::BLOCK_BYTES;
use crate::base::{Error, Result, SegmentId};
use crate::format::{BatchHeader, Record, RecordPlace, SegmentHeader, Superblock};
use crate::media::Medium;

/// What recovery found.
pub(crate) struct Recovered {
    /// The map.
    pub(crate) l2p: L2p,
    /// The segment table.
    pub(crate) space: Space,
    /// Where the log ends.
    pub(crate) walk_end: WalkEnd,
}

/// Rebuilds a drive's state. Writes nothing.
///
/// # Errors
/// `Medium`, or `Corrupt` when durable parts of the log are missing.
pub(crate) async fn recover<M: Medium>(medium: &M, superblock: &Superblock) -> Result<Recovered> {
    let mut replay = Replay {
        l2p: L2p::new(superblock.size_bytes / BLOCK_BYTES as u64),
        space: Space::new(superblock.segment_count)?,
        open: None,
    };
    let walk_end = walk(medium, superblock, &mut replay).await?;
    let Replay { mut l2p, mut space, .. } = replay;
    while l2p.reap(u32::MAX, |released| release(&mut space, released)) {}
    Ok(Recovered { l2p, space, walk_end })
}

struct Replay {
    l2p: L2p,
    space: Space,
    open: Option<SegmentId>,
}

impl Visitor for Replay {
    fn segment(&mut self, header: &SegmentHeader) {
        if let Some(full) = self.open.replace(header.segment) {
            self.space.seal(full);
        }
        self.space.occupy(header.segment, header.generation);
    }

    fn batch(&mut self, _header: &BatchHeader) {}

    fn record(&mut self, record: &Record, place: RecordPlace, _payload: &[u8]) -> Result<()> {
        let space = &mut self.space;
        match *record {
            Record::Data { lba, lba_count, .. } => {
                let frame = FramePlace {
                    segment: place.segment.0,
                    offset: place.offset,
                    record_bytes: record.record_bytes(),
                    blocks: lba_count as u8,
                };
                space.add_live(frame.segment, frame.record_bytes);
                self.l2p.map_frame(lba, frame, |released| release(space, released));
            }
            Record::Fill { lba, lba_count, byte } => {
                let mapping = Mapping::Fill(byte);
                self.l2p.map_uniform(lba, lba_count, mapping, |released| release(space, released));
            }
            Record::Trim { lba, lba_count } => {
                let mapping = Mapping::Hole;
                self.l2p.map_uniform(lba, lba_count, mapping, |released| release(space, released));
            }
        }
        Ok(())
    }

    fn stray_header(&mut self, error: Error) {
        // A used device is full of what others left; if the log needs the segment, the walk fails.
        tracing::debug!("no segment of this drive: {}", error.chain());
    }

    fn problem(&mut self, error: Error) {
        tracing::warn!("while reading the log: {}", error.chain());
    }
}

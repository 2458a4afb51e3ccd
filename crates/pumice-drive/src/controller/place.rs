//! Addresses in the log, as types.

use crate::base::SegmentId;
use crate::format::{RecordPlace, Source};

/// Address of a frame: where the header of its record begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FrameAddress {
    /// The segment.
    pub(crate) segment: SegmentId,
    /// Byte offset of the record header in the segment.
    pub(crate) offset: u32,
}

impl From<Source> for FrameAddress {
    fn from(source: Source) -> Self {
        Self { segment: source.segment, offset: source.offset }
    }
}

impl From<RecordPlace> for FrameAddress {
    fn from(place: RecordPlace) -> Self {
        Self { segment: place.segment, offset: place.offset }
    }
}

/// Address and size of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FramePlace {
    /// Segment of the record.
    pub(crate) segment: SegmentId,
    /// Byte offset of the record header in the segment.
    pub(crate) offset: u32,
    /// Bytes of header and payload.
    pub(crate) record_bytes: u32,
    /// Blocks in the frame, at least 1.
    pub(crate) blocks: u8,
}

impl FramePlace {
    /// Returns the address of the frame.
    #[inline]
    pub(crate) fn address(&self) -> FrameAddress {
        FrameAddress { segment: self.segment, offset: self.offset }
    }

    /// Returns the bytes of the record that `count` of its blocks, starting with block `index`,
    /// account for. The shares of any partition of the frame add up to exactly `record_bytes`.
    #[inline]
    pub(crate) fn share(&self, index: u8, count: u8) -> u32 {
        if count == self.blocks {
            return self.record_bytes;
        }
        let up_to =
            |block: u64| u64::from(self.record_bytes) * block / u64::from(self.blocks.max(1));
        (up_to(u64::from(index) + u64::from(count)) - up_to(u64::from(index))) as u32
    }
}

/// One use of a segment: a segment that is freed and opened again has another generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SegmentUse {
    /// The segment.
    pub(crate) segment: SegmentId,
    /// Its generation.
    pub(crate) generation: u64,
}

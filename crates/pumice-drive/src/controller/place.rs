//! Addresses in the log, as types.

#![warn(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::indexing_slicing
)]

use crate::base::SegmentId;
use crate::format::{FRAME_BLOCKS_MAX, RecordAddress, Source};

/// Address of a frame: the start of the header of its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FrameAddress {
    pub(crate) segment: SegmentId,
    /// Byte offset of the record header in the segment.
    pub(crate) offset: u32,
}

impl From<Source> for FrameAddress {
    fn from(source: Source) -> Self {
        Self { segment: source.segment, offset: source.offset }
    }
}

impl From<RecordAddress> for FrameAddress {
    fn from(place: RecordAddress) -> Self {
        Self { segment: place.segment, offset: place.offset }
    }
}

/// Returns a number of blocks of one frame in the width that frames use for it.
///
/// # Panics
/// If no frame has this many blocks.
#[inline]
pub(crate) fn blocks_of_frame(count: u64) -> u8 {
    assert!(count <= u64::from(FRAME_BLOCKS_MAX), "a frame has at most 64 blocks");
    u8::try_from(count).expect("the number of blocks of a frame has 8 bits")
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

    /// Returns the bytes that the frame accounts for while all of it is live: the bytes of its
    /// record, but at least one for each block. A segment with a live block is thus never mistaken
    /// for an empty one.
    #[inline]
    pub(crate) fn charged_bytes(&self) -> u32 {
        self.record_bytes.max(self.blocks.into())
    }

    /// Returns the bytes that `count` of its blocks, starting with block `index`, account for: at
    /// least one. The shares of any partition of the frame add up to exactly
    /// [`FramePlace::charged_bytes`].
    ///
    /// # Panics
    /// If the frame does not have these blocks.
    #[inline]
    pub(crate) fn share(&self, index: u8, count: u8) -> u32 {
        assert!(
            u16::from(index) + u16::from(count) <= u16::from(self.blocks),
            "a share counts blocks of the frame"
        );
        if count == self.blocks {
            return self.charged_bytes();
        }
        let up_to =
            |block: u64| u64::from(self.charged_bytes()) * block / u64::from(self.blocks.max(1));
        let share = up_to(u64::from(index) + u64::from(count)) - up_to(u64::from(index));
        u32::try_from(share).expect("a share is at most the whole record")
    }
}

/// One use of a segment: a segment that is freed and opened again has another generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SegmentUse {
    pub(crate) segment: SegmentId,
    pub(crate) generation: u64,
}

//! The ages of blocks that garbage collection has moved, which show whether they have changed when
//! a disk is compared with a bookmark.
//!
//! The frames that a bookmark names are not retained, so nothing records the places to which they
//! were moved. The record of a moved frame states the batch in which the host wrote each block. A
//! block that is part of a disk and was written up to the bookmark's last batch was part of the
//! bookmark's disk. A frame that was not moved is at its original place, so if the bookmark does
//! not name it, it is younger.

use super::super::core::Kind;
use super::super::drive::Drive;
use super::super::place::FramePlace;
use crate::base::units::len_u32;
use crate::base::{Lba, SeqNo};
use crate::format::{FRAME_BLOCKS_MAX, RECORD_HEADER_BYTES, Record, RecordAddress, SOURCE_BYTES};
use crate::format::{Source, Stream};

/// Maximum number of bytes of a record before its payload.
const HEADERS_BYTES_MAX: usize = RECORD_HEADER_BYTES + FRAME_BLOCKS_MAX as usize * SOURCE_BYTES;

/// Ages of blocks, compared with a bookmark.
pub(super) struct Ages {
    watermark: SeqNo,
    /// The sources of the last frame looked up.
    last: Option<(RecordAddress, Vec<Source>)>,
}

/// A block of a frame of a disk.
#[derive(Clone, Copy)]
pub(super) struct FrameBlock {
    pub(super) lba: Lba,
    pub(super) place: FramePlace,
    pub(super) generation: u64,
    pub(super) index: u8,
}

impl Ages {
    /// Returns the ages for a comparison with `earlier`, if that is a bookmark.
    pub(super) fn since(earlier: &Drive) -> Option<Self> {
        let core = earlier.core();
        let watermark = core.log().durable_seq();
        (core.kind() == Kind::Bookmark).then_some(Self { watermark, last: None })
    }

    /// Returns whether a block of a frame is as old as the bookmark, as far as known, and the
    /// number of blocks of the frame, counted from this one, for which the result is the same.
    pub(super) async fn is_as_old(&mut self, drive: &Drive, block: FrameBlock) -> (bool, u64) {
        let FrameBlock { place, generation, index, .. } = block;
        let address = RecordAddress { generation, segment: place.segment, offset: place.offset };
        if self.last.as_ref().is_none_or(|(of, _)| *of != address) {
            self.last = Some((address, drive.sources_of(block, address).await));
        }
        let sources = self.last.iter().flat_map(|(_, sources)| sources);
        let mut end = 0;
        for source in sources {
            end += source.blocks;
            if index < end {
                // Blocks that were dead when the frame was copied have no age.
                let is_as_old = source.birth > SeqNo(0) && source.birth <= self.watermark;
                return (is_as_old, u64::from(end - index));
            }
        }
        (false, u64::from(place.blocks.saturating_sub(index)).max(1))
    }
}

impl Drive {
    /// Returns the sources of a frame; none if the host wrote it, or if its record cannot be read.
    async fn sources_of(&self, block: FrameBlock, address: RecordAddress) -> Vec<Source> {
        let FrameBlock { lba, place, generation, index } = block;
        let cipher = self.medium.cipher();
        let decode = |bytes: &[u8]| {
            let record = Record::decode_with(bytes, address, cipher).ok()?;
            let Record::Data { lba: first, lba_count, .. } = record else { return None };
            let is_it = first.0 + u64::from(index) == lba.0 && lba_count == u16::from(place.blocks);
            is_it.then(|| record.sources_with(bytes, address, cipher))
        };
        {
            let core = self.core();
            let space = core.space();
            let is_in_use = space.generation(place.segment) == generation;
            if is_in_use && space.stream(place.segment) == Stream::Host {
                return Vec::new();
            }
            if let Some(bytes) = core.log().in_memory(place.address()) {
                return decode(bytes).unwrap_or_default();
            }
        }
        let end = place.offset + place.record_bytes.min(len_u32(HEADERS_BYTES_MAX));
        let read = self.buffers.read(&*self.medium, place.segment, place.offset..end, decode);
        // A record of an earlier use of the segment is not accepted.
        read.await.ok().flatten().unwrap_or_default()
    }
}

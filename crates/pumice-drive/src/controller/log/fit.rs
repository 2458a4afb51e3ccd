//! Finding space for a request: in the open batch, in another one, or in the next segment.

use super::packing::OpenBatch;
use super::{Log, closing_bytes, parity};
use crate::format::{BATCH_HEADER_BYTES, SEGMENT_HEADER_BYTES, Stream};

/// The way in which a request for space can be satisfied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    /// The open batch has the space.
    Open,
    /// A new batch in the same segment has the space.
    NewBatch,
    /// A new batch in the same segment has space for a part, and the next segment for the rest.
    Parts,
    /// Only a new segment has the space.
    NewSegment,
}

impl Log {
    /// Returns how `bytes` of records fit into a stream, whose segment must be below
    /// `segments_end`.
    #[inline]
    pub(crate) fn fit(&self, stream: Stream, bytes: usize, segments_end: u32) -> Fit {
        self.fit_parts(stream, bytes, bytes, segments_end)
    }

    /// Like [`Log::fit`], for `bytes` that may be divided between two batches, in parts of
    /// `part_bytes` or less.
    #[inline]
    pub(crate) fn fit_parts(
        &self,
        stream: Stream,
        bytes: usize,
        part_bytes: usize,
        segments_end: u32,
    ) -> Fit {
        let Some(tail) = self.tail(stream) else { return Fit::NewSegment };
        if tail.segment.0 >= segments_end || self.is_expired(&tail) {
            return Fit::NewSegment;
        }
        let open = self.open(stream);
        if open.is_some_and(|open| open.room() >= bytes) {
            return Fit::Open;
        }
        let used = open.map_or(tail.used, OpenBatch::end);
        assert!(used <= self.shape.segment_bytes, "a stream's tail lies within its segment");
        let header = if used == 0 { SEGMENT_HEADER_BYTES } else { 0 } + BATCH_HEADER_BYTES;
        let room = (self.shape.segment_bytes - closing_bytes(stream)).saturating_sub(used) as usize;
        let room = parity::room_beside_parity(stream, room).checked_sub(header);
        match room {
            Some(room) if room >= bytes => Fit::NewBatch,
            Some(room) if room >= part_bytes => Fit::Parts,
            _ => Fit::NewSegment,
        }
    }
}

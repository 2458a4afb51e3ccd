//! Reading ahead of sequential readers: the next data of a reader is read from the medium while the
//! host processes the previous data.
//!
//! ```text
//! a read that needs the medium -> the third in a row, or later? few reads in progress? -> a task:
//!     map -> frames on the medium -> adjacent ones in one media read -> stretches
//! later reads: frame in a stretch? -> (wait until it arrives) -> checksum -> decode -> copy
//!              no, or a failure   -> the medium; see `read`
//! ```
//!
//! The bytes stay in their stored form. The read that needs the block reports errors.

use futures_util::future::FutureExt;
use futures_util::stream::{StreamExt, iter};

use super::super::core::Located;
use super::super::drive::Drive;
use super::super::drive::frame_cache;
use super::super::drive::read_ahead::StretchId;
use super::super::drive::streams::Wanted;
use super::super::map::Mapping;
use super::super::place::FramePlace;
use super::read::{Piece, group_len};
use crate::base::units::BLOCK_BYTES;
use crate::base::{Lba, Result};
use crate::format::FRAME_BLOCKS_MAX;

/// Maximum length of a media read ahead: a host read that needs its first frame waits for all of
/// it.
const STRETCH_BYTES_MAX: usize = 256 << 10;

/// Concurrent media reads ahead.
const READS_AT_ONCE: usize = 2;

/// A frame to read ahead.
struct Frame {
    place: FramePlace,
    generation: u64,
    /// The byte of the disk at which the frame, or the used part of it, ends.
    end: u64,
}

impl Drive {
    /// Reads ahead of sequential readers until the drive closes.
    pub(crate) async fn run_read_ahead(&self) {
        let next = || match self.core().is_ending() {
            true => Some(None),
            false => self.streams.next_wanted().map(Some),
        };
        while let Some(wanted) = self.ahead.wanted.wait_for(next).await {
            if let Err(error) = self.read_ahead(&wanted).await {
                // The read that needs the block reports the error again.
                tracing::debug!(error = %error.chain(), "cannot read ahead");
            }
        }
    }

    /// Records that a read of the host, which ended at `end`, needed the medium.
    #[inline]
    pub(super) fn want_read_ahead(&self, end: u64) {
        if self.ahead.is_of_use() && self.streams.want(end) {
            self.ahead.wanted.wake_all();
        }
    }

    async fn read_ahead(&self, wanted: &Wanted) -> Result<()> {
        let block = BLOCK_BYTES as u64;
        let mut at = wanted.range.start / block;
        let end = wanted.range.end.min(self.size_bytes()).div_ceil(block);
        // While these pins exist, no segment that is read is freed.
        let mut pins = Vec::new();
        let mut frames: Vec<Frame> = Vec::new();
        while at < end {
            let (mapping, blocks, generation) = match self.with_core(|core| core.locate(Lba(at))) {
                Located::Run { mapping, blocks, generation } => (mapping, blocks, generation),
                Located::Missing(leaf) => {
                    self.load_leaf(leaf).await?;
                    continue;
                }
            };
            if let Mapping::Frame { place, index } = mapping {
                let first = Lba(at.wrapping_sub(index.into()));
                // An overwrite within a frame leaves two runs of it.
                let mut latest = frames.iter().rev().take(FRAME_BLOCKS_MAX.into());
                let is_listed = latest.any(|frame| frame.place == place);
                if !is_listed && !self.is_at_hand(&place, generation, first) {
                    pins.push(self.pin(place.segment));
                    frames.push(Frame {
                        place,
                        generation,
                        end: at.saturating_add(blocks) * block,
                    });
                }
            }
            at = at.saturating_add(blocks);
        }
        let mut groups = Vec::new();
        let mut rest = frames.as_slice();
        while !rest.is_empty() {
            let places = rest.iter().map(|frame| &frame.place);
            let (group, later) = rest.split_at(group_len(places, STRETCH_BYTES_MAX));
            groups.push(self.read_stretch(wanted, group));
            rest = later;
        }
        iter(groups).buffer_unordered(READS_AT_ONCE).collect::<()>().await;
        Ok(())
    }

    /// Returns whether a frame need not be read from the medium.
    fn is_at_hand(&self, place: &FramePlace, generation: u64, lba: Lba) -> bool {
        let address = place.address();
        let bytes = usize::from(place.blocks) * BLOCK_BYTES;
        self.core().log().in_memory(address).is_some()
            || self.ahead.find(address, generation).is_some()
            || self.cache.has(frame_cache::Wanted { address, lba, bytes })
    }

    /// Reads frames that are close together in one segment, if there is space for them and the
    /// reader has not yet reached them.
    async fn read_stretch(&self, wanted: &Wanted, frames: &[Frame]) {
        let ends = frames.first().zip(frames.last());
        let (first, last) = ends.expect("a group of frames has a first and a last");
        assert_eq!(first.place.segment, last.place.segment, "a stretch lies in one segment");
        if !self.streams.is_ahead(wanted, first.end) {
            return;
        }
        let unit = self.read_unit;
        let start = first.place.offset / unit * unit;
        let end = (last.place.offset + last.place.record_bytes).next_multiple_of(unit);
        // Waiting for space would delay reads that are needed now.
        let Some((buffer, in_flight)) = self.buffers.take((end - start) as usize).now_or_never()
        else {
            return;
        };
        let places: Vec<_> = frames.iter().map(|frame| frame.place).collect();
        let bytes = buffer.capacity();
        let content = (places.as_slice(), first.generation);
        let Some(reading) = self.ahead.begin(content, start, bytes, &self.buffers) else {
            return self.buffers.put(buffer, in_flight);
        };
        let media_bytes = u64::from(end - start);
        self.with_core(|core| core.counters_mut().media_read_bytes.add(media_bytes));
        let (buffer, result) = self.medium.read(first.place.segment, start, buffer).await;
        match result {
            Ok(()) => {
                drop(in_flight);
                reading.arrived(buffer);
            }
            Err(error) => {
                self.buffers.put(buffer, in_flight);
                tracing::debug!(error = %error.chain(), "cannot read ahead");
            }
        }
    }

    /// Returns the stretch that contains the frame of a piece.
    #[inline]
    pub(super) fn stretch_of(&self, piece: &Piece) -> Option<StretchId> {
        self.ahead.find(piece.place.address(), piece.generation)
    }

    /// Serves pieces from a stretch that was read ahead, if it contains all of them. Returns false
    /// otherwise, or if one cannot be decoded.
    pub(super) async fn read_from_stretch(
        &self,
        id: StretchId,
        pieces: &[Piece],
        out_at: usize,
        out: &mut [u8],
    ) -> bool {
        let has_arrived = || (!self.ahead.is_reading(id)).then_some(());
        self.ahead.arrived.wait_for(has_arrived).await;
        for piece in pieces {
            let out = piece.part_of(out, out_at);
            let decode = |record: &[u8]| self.decode_piece(piece, record, out);
            match self.ahead.with_record(id, &piece.place, decode) {
                Some(Ok(())) => {}
                Some(Err(error)) => {
                    tracing::debug!(error = %error.chain(), "cannot use data that was read ahead");
                    return false;
                }
                None => return false,
            }
        }
        for piece in pieces {
            self.ahead.note_used(id, &piece.place, &self.buffers);
        }
        true
    }
}

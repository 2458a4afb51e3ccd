//! Copying all parts of the medium that the drive uses to another place while the drive is in use.
//! This rebuilds a member of a mirror.
//!
//! ```text
//! segments in use now -> each: pin, everything appended to it -> superblocks
//!                              \-> batch by batch: checksums -> damage? -> after it, each
//!                                  batch of each copy; the intact one, or parity, -> all copies
//! segments begun later: their appends also go to the other place
//! ```
//!
//! Free segments are not copied. The caller copies the ranges that the drive names and passes the
//! copied bytes to the drive. The drive keeps the data in place and verifies it, so that damage to
//! one member does not spread to all. Data that is damaged on every member is copied as it is.

use std::ops::Range;

use futures_util::stream::{StreamExt, iter};

use super::super::drive::Drive;
use super::super::log::copies::repair_batch;
use super::super::log::parity::is_parity_right;
use super::super::log::records::{Body, body_state, records};
use super::super::log::segment_scan::SegmentScan;
use super::super::log::{FIRST_BATCH_OFFSET, UNIT, batch_bytes};
use super::super::place::SegmentUse;
use crate::base::units::len_u32;
use crate::base::{Error, ErrorKind, Result, SegmentId};
use crate::crypt::Cipher;
use crate::format::{BATCH_HEADER_BYTES, BatchHeader, Record, SegmentHeader, Stream};

/// Segments that are copied in parallel: with only one, the devices would be idle at its end.
const SEGMENTS_AT_ONCE: usize = 2;

impl Drive {
    /// Calls `copy` for each segment in use, two at a time, with the range that may contain data
    /// and a callback for the copied bytes, in order, with their offsets; then writes the
    /// superblocks again. The medium must forward all appends and repairs to the other place,
    /// starting before this call. `plan` receives the sum of the bytes before the first call.
    ///
    /// # Errors
    /// The errors of `copy`; `Poisoned`; `Interrupted` if the drive is closing.
    // For a rebuild of an array, which the program begins and ends.
    #[doc(hidden)]
    pub async fn copy_in_use(
        &self,
        plan: impl FnOnce(u64),
        copy: impl AsyncFn(SegmentId, Range<u32>, &mut dyn FnMut(u32, &[u8])) -> Result<()>,
    ) -> Result<()> {
        let all = self.ranges_in_use();
        plan(all.iter().map(|(_, end)| u64::from(*end)).sum());
        let copy = &copy;
        let copies = all.into_iter().map(|(used, end)| self.copy_segment(used, end, copy));
        let mut copies = iter(copies).buffer_unordered(SEGMENTS_AT_ONCE);
        while let Some(copied) = copies.next().await {
            copied?;
            self.core().log().check_poison()?;
        }
        drop(copies);
        let _turn = self.turn().await;
        self.core().log().check_poison()?;
        self.update_superblocks(|_| ()).await
    }

    async fn copy_segment(
        &self,
        used: SegmentUse,
        end: u32,
        copy: &impl AsyncFn(SegmentId, Range<u32>, &mut dyn FnMut(u32, &[u8])) -> Result<()>,
    ) -> Result<()> {
        let SegmentUse { segment, generation } = used;
        // Otherwise the segment was freed: its current use began later, or a shrink has removed it.
        if self.core().space().generation(segment) != generation {
            return Ok(());
        }
        if self.core().is_ending() {
            return Err(Error::new(ErrorKind::Interrupted, "the drive is closing"));
        }
        let _pin = self.pin(segment);
        let stream = self.core().space().stream(segment);
        let mut verifier = Verifier::new(self.medium.cipher(), used, stream);
        copy(segment, 0..end, &mut |at, bytes| verifier.take(at, bytes)).await?;
        if let Some(from) = verifier.suspect(end) {
            self.mend(used, from..end).await?;
        }
        Ok(())
    }

    /// Repairs the batches of a segment that begin in a range, in all copies, from intact copies or
    /// from parity.
    async fn mend(&self, used: SegmentUse, range: Range<u32>) -> Result<()> {
        let SegmentUse { segment, generation } = used;
        let shape = self.core().superblock().shape();
        let from = range.start.max(FIRST_BATCH_OFFSET);
        let scan = SegmentScan::new(&*self.medium, self.uuid(), &shape, segment, generation);
        let mut scan = scan.at(from);
        let mut lost = 0;
        while scan.offset() < range.end && !self.core().is_ending() {
            let Some((header, body)) = scan.next().await else { break };
            if repair_batch(&*self.medium, &shape, &header).await?.is_none() {
                lost += self.repair_records(&header, body).await;
            }
        }
        if lost > 0 {
            tracing::warn!(
                %segment,
                records = lost,
                "records are damaged in every copy, and are copied as they are: a scrub lists \
                 those that are in use"
            );
        }
        Ok(())
    }

    /// Returns the segments in use, each with the end of the bytes appended to it.
    fn ranges_in_use(&self) -> Vec<(SegmentUse, u32)> {
        let core = self.core();
        let segment_bytes = core.superblock().segment_bytes;
        let end_of = |segment: SegmentId| {
            let tails = Stream::ALL.into_iter().filter_map(|stream| core.log().tail(stream));
            let mut open = tails.filter(|tail| tail.segment == segment);
            open.next()
                .map_or(segment_bytes, |tail| tail.used.next_multiple_of(UNIT).min(segment_bytes))
        };
        let used = core.space().used().map(|used| {
            let (segment, generation) = (used.segment, used.generation);
            (SegmentUse { segment, generation }, end_of(segment))
        });
        used.filter(|(_, end)| *end > 0).collect()
    }
}

/// Follows the batches of a segment in bytes that arrive in order, and finds the first damaged
/// batch.
struct Verifier<'a> {
    cipher: &'a Cipher,
    used: SegmentUse,
    stream: Stream,
    /// Bytes that are not yet verified, and their offset.
    pending: Vec<u8>,
    at: u32,
    /// The header of the segment, which the parity of its first batch covers.
    header: Vec<u8>,
    progress: Verified,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verified {
    /// Everything received so far.
    SoFar,
    /// Everything: the batch that closes the segment was reached.
    All,
    /// Everything before the first pending byte.
    UpToPending,
}

impl<'a> Verifier<'a> {
    fn new(cipher: &'a Cipher, used: SegmentUse, stream: Stream) -> Self {
        let (pending, header) = (Vec::new(), Vec::new());
        Self { cipher, used, stream, pending, at: 0, header, progress: Verified::SoFar }
    }

    fn take(&mut self, offset: u32, bytes: &[u8]) {
        if self.progress != Verified::SoFar {
            return;
        }
        if offset != self.at + len_u32(self.pending.len()) {
            // The bytes in between cannot be read.
            self.progress = Verified::UpToPending;
            return;
        }
        self.pending.extend_from_slice(bytes);
        let mut passed = 0;
        while self.progress == Verified::SoFar {
            let rest = self.pending.get(passed..).unwrap_or_default();
            let Some(len) = self.next_len(rest, self.at + len_u32(passed)) else {
                self.progress = Verified::UpToPending;
                break;
            };
            let Some(whole) = rest.get(..len) else { break };
            let at = self.at + len_u32(passed);
            self.progress = self.verify(whole, at);
            if at == 0 {
                self.header = whole.to_vec();
            }
            if self.progress != Verified::UpToPending {
                passed += len;
            }
        }
        self.pending.drain(..passed);
        self.at += len_u32(passed);
    }

    /// Returns the length of the segment header or batch at the beginning of `rest`; `None` if
    /// `rest` begins with neither.
    fn next_len(&self, rest: &[u8], at: u32) -> Option<usize> {
        if at == 0 || rest.len() < UNIT as usize {
            return Some(FIRST_BATCH_OFFSET.max(UNIT) as usize);
        }
        let (header, _) = BatchHeader::decode_with(rest, self.cipher).ok()?;
        let SegmentUse { segment, generation } = self.used;
        let is_here =
            header.segment == segment && header.generation == generation && header.offset == at;
        is_here.then(|| batch_bytes(&header) as usize)
    }

    fn verify(&self, bytes: &[u8], at: u32) -> Verified {
        let SegmentUse { segment, generation } = self.used;
        if at == 0 {
            let is_right = SegmentHeader::found_in(bytes)
                .is_some_and(|header| header.segment == segment && header.generation == generation);
            return if is_right { Verified::SoFar } else { Verified::UpToPending };
        }
        let (_, body) = bytes.split_at(BATCH_HEADER_BYTES);
        let Ok((header, _)) = BatchHeader::decode_with(bytes, self.cipher) else {
            return Verified::UpToPending;
        };
        if !matches!(body_state(self.cipher, &header, body), Body::Whole) {
            return Verified::UpToPending;
        }
        let segment_header = if at == FIRST_BATCH_OFFSET { &*self.header } else { &[] };
        if !is_parity_right(segment_header, bytes, header.parity_pages.into()) {
            return Verified::UpToPending;
        }
        let closes = records(self.cipher, &header, body).map_while(Result::ok).any(
            |found| matches!(found.record, Record::Open { stream, .. } if stream == self.stream),
        );
        if closes { Verified::All } else { Verified::SoFar }
    }

    /// Returns the offset from which a segment, passed up to `end`, may be damaged.
    fn suspect(&self, end: u32) -> Option<u32> {
        (self.progress != Verified::All && self.at < end).then_some(self.at)
    }
}

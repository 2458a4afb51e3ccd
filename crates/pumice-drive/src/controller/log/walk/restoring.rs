//! Restoring the next batch of the log from its parity, or its headers from the batch after it.

use super::super::echo;
use super::super::parity::Append;
use super::super::records::{Body, body_state, records_and_padding};
use super::super::window::Window;
use super::super::{FIRST_BATCH_OFFSET, batch_bytes};
use super::{Next, Pages, Position, Step, Walk};
use crate::base::{Error, ErrorKind, SegmentId};
use crate::format::{BATCH_HEADER_BYTES, BatchHeader, SegmentHeader, Stream};

/// Maximum number of echoes to try: a lost life may have left another batch with this number.
const ECHOES_MAX: usize = 8;

/// A batch that was restored.
pub(super) struct Restored {
    pub(super) next: Next,
    /// The error that reports the damage.
    pub(super) error: Error,
    /// Its bytes.
    pub(super) batch: Vec<u8>,
    /// The restored pages.
    pages: Pages,
    /// Whether its payloads are also intact.
    is_whole: bool,
}

impl Walk<'_> {
    /// Returns the next batch, which is not known to have been durable, if all of it can be
    /// restored.
    pub(super) async fn complete(&mut self) -> Option<Step> {
        if self.is_closed() {
            return None;
        }
        let restored = match self.by_parity().await.filter(|restored| restored.is_whole) {
            Some(restored) => Some(restored),
            None => self.by_echo().await.filter(|restored| restored.is_whole),
        };
        let Restored { next, error, batch, pages, .. } = restored?;
        if !pages.bytes.is_empty() {
            self.completed.push(pages);
        }
        self.restored = batch;
        Some(Step { next, damage: Some(error) })
    }

    /// Restores the next batch from its parity: of two, the one from the later opening, which did
    /// not find the end of the log at the other.
    pub(super) async fn by_parity(&self) -> Option<Restored> {
        let mut latest: Option<Restored> = None;
        for stream in Stream::ALL {
            let restored = self.by_parity_in(stream).await;
            let epoch = latest.as_ref().map(|latest| latest.next.header.epoch);
            if restored.as_ref().map(|restored| restored.next.header.epoch) > epoch {
                latest = restored;
            }
        }
        latest
    }

    /// Restores the next batch of the log from its parity, if a stream contains the batch and it
    /// has parity.
    async fn by_parity_in(&self, stream: Stream) -> Option<Restored> {
        let Position { segment, generation, used } = self.positions[stream]?;
        let offset = used.max(FIRST_BATCH_OFFSET);
        let mut window = Window::new(self.medium, self.superblock.segment_bytes);
        let continues = |header: &BatchHeader| self.continues(header);
        let append = Append::read(&mut window, segment, generation, offset, &continues).await;
        let mut append = append?;
        let is_entered = |append: &Append, generation: u64| {
            self.entered(append.segment_header(), segment, stream, generation)
        };
        let cipher = self.medium.cipher();
        let state = |append: &Append| {
            let (head, body) = append.batch().split_at_checked(BATCH_HEADER_BYTES)?;
            let (header, checksum) = BatchHeader::decode_with(head, cipher).ok()?;
            let is_here = header.segment == segment
                && header.offset == offset
                && generation.is_none_or(|generation| header.generation == generation);
            let is_next = is_here
                && self.continues(&header)
                && body.len() == header.body_bytes as usize
                && (used > 0 || is_entered(append, header.generation).is_some());
            let state = body_state(cipher, &header, body);
            is_next.then_some((header, checksum, state))
        };
        let is_whole = |append: &Append| matches!(state(append), Some((_, _, Body::Whole)));
        // Payloads are restored again when they are read.
        let is_known = |append: &Append| {
            matches!(state(append), Some((_, _, Body::Whole | Body::WrongPayload)))
        };
        if !append.restore(0..u32::MAX, &mut |append| is_whole(append)) {
            append.restore(0..u32::MAX, &mut |append| is_known(append));
        }
        let (header, checksum, is_whole) = match state(&append)? {
            (_, _, Body::Foreign) => return None,
            (header, checksum, body) => (header, checksum, matches!(body, Body::Whole)),
        };
        let enters = if used == 0 { Some(is_entered(&append, header.generation)?) } else { None };
        let what = "a batch is damaged, and was restored from parity: a scrub rewrites its live \
                    data";
        let error = Error::new(ErrorKind::Corrupt, what);
        let error = error.in_segment(segment).at_offset(offset.into());
        let next = Next { stream, offset, header, checksum, enters, is_restored: true };
        // Several copies may each lack different pages.
        let is_one = self.medium.copies().len() <= 1;
        let (at, pages) = if is_one { append.restored() } else { append.all() };
        let pages = Pages { segment, offset: at, bytes: pages.to_vec() };
        let batch = append.into_batch();
        (!self.is_another(&next)).then_some(Restored { next, error, batch, pages, is_whole })
    }

    /// Restores the headers of the next batch, if it has no parity, from the batch after it.
    pub(super) async fn by_echo(&mut self) -> Option<Restored> {
        let places = self.after_next.iter().take(ECHOES_MAX).copied().collect::<Vec<_>>();
        for (segment, offset) in places {
            if let Some(restored) = self.by_echo_in(segment, offset).await {
                return Some(restored);
            }
        }
        None
    }

    async fn by_echo_in(&self, segment: SegmentId, offset: u32) -> Option<Restored> {
        let cipher = self.medium.cipher();
        let mut window = Window::new(self.medium, self.superblock.segment_bytes);
        let head = window.read(segment, offset, FIRST_BATCH_OFFSET).await;
        let (after, _) = BatchHeader::decode_with(head, cipher).ok()?;
        let room = self.superblock.segment_bytes.checked_sub(offset)?;
        if after.batch_bytes() > u64::from(room) {
            return None;
        }
        let bytes = window.read(segment, offset, batch_bytes(&after)).await;
        let body = bytes.get(BATCH_HEADER_BYTES..)?;
        let padding = records_and_padding(&after, body)?.1.to_vec();
        let (header, checksum) = echo::echoed(&after, &padding, cipher)?;
        let (segment, offset) = (header.segment, header.offset);
        let is_here = |at: &Position| {
            let is_place = at.segment == segment && at.used.max(FIRST_BATCH_OFFSET) == offset;
            is_place && at.generation.is_none_or(|generation| generation == header.generation)
        };
        let is_in = |stream: &Stream| self.positions[*stream].as_ref().is_some_and(is_here);
        let stream = Stream::ALL.into_iter().find(is_in)?;
        let room = self.superblock.segment_bytes.checked_sub(offset)?;
        if !self.continues(&header) || header.batch_bytes() > u64::from(room) {
            return None;
        }
        let mut enters = None;
        if self.positions[stream]?.used == 0 {
            let head = window.read(segment, 0, FIRST_BATCH_OFFSET).await;
            enters = Some(self.entered(head, segment, stream, header.generation)?);
        }
        let bytes = window.read(segment, offset, batch_bytes(&header)).await;
        let mut batch = bytes.to_vec();
        if !echo::restore(&header, &padding, cipher, &mut batch) {
            return None;
        }
        let is_whole = match body_state(cipher, &header, batch.get(BATCH_HEADER_BYTES..)?) {
            Body::Foreign => return None,
            body => matches!(body, Body::Whole),
        };
        let what = "headers of a batch are damaged, and were restored from the batch after it: a \
                    scrub rewrites their live data";
        let error = Error::new(ErrorKind::Corrupt, what);
        let error = error.in_segment(segment).at_offset(offset.into());
        let next = Next { stream, offset, header, checksum, enters, is_restored: true };
        let pages = Pages { segment, offset, bytes: batch.clone() };
        (!self.is_another(&next)).then_some(Restored { next, error, batch, pages, is_whole })
    }

    /// Decodes the header of a segment whose first batch is the next one.
    fn entered(
        &self,
        bytes: &[u8],
        segment: SegmentId,
        stream: Stream,
        generation: u64,
    ) -> Option<SegmentHeader> {
        let decoded = SegmentHeader::decode(bytes, self.superblock.uuid, segment);
        let is_right = |header: &SegmentHeader| {
            header.first_seq.0 == self.seq.0 + 1
                && header.stream == stream
                && header.generation == generation
        };
        decoded.ok().flatten().filter(is_right)
    }
}

//! Joining the frames of a victim that are neighbours on the disk into larger and denser ones.
//!
//! ```text
//! victim:   | ..A0-1.. | ..C5.. | ..B2-4.. |      the map: 0 to 5 live, in this order in the log
//!                 waits    waits    ^ the last of the run: read A and C again
//! moved:    | 0-5, compressed together; sources A, B, C |
//! ```
//!
//! Only with a codec for cold data (`recompress` in
//! [`OpenOptions`](crate::controller::OpenOptions)). A *run* is live blocks of the victim that are
//! consecutive on the disk, within one multiple of the largest cold frame. The scan that empties
//! the victim meets its frames in the order of the log; the last of a run's frames moves all of it,
//! and the earlier frames wait for it, so that nothing has to be sorted and no more than one run is
//! in memory. Frames whose run changed while they waited are left, and a second pass that joins
//! nothing moves them.
//!
//! A joined frame names the frames of all its blocks, and has only live blocks: if any part of the
//! run died while it waited for room, its frames are moved alone.

use futures_util::stream::{StreamExt, iter};

use super::super::core::{Attempt, Core};
use super::super::log::packing::MovedFrame;
use super::super::log::payload::Stored;
use super::super::log::records::Found;
use super::super::map::{L2p, Lookup, Mapping};
use super::super::place::FramePlace;
use super::moving::{Mover, PassedBatch, cut_sources, frame_blocks, sources_of};
use crate::base::checksum::crc64;
use crate::base::units::{BLOCK_BYTES, len_u32};
use crate::base::{Lba, Result, SegmentId, SeqNo};
use crate::codec::Encoding;
use crate::format::{
    BATCH_HEADER_BYTES, BatchHeader, FRAME_BLOCKS_MAX, RECORD_HEADER_BYTES, Record, RecordAddress,
    SEALED, SOURCE_BYTES, Source, check_payload,
};

/// A joined frame must be smaller by this part than the stored blocks to be worth it: every later
/// read pays for decoding more of it.
const JOINED_DIVISOR: u32 = 16;

/// If all frames are already dense, a joined frame must have this many times the blocks of the
/// largest of them: fewer never saved enough on real files.
const DENSE_GROWTH: u8 = 4;

/// Frames of a run that are read concurrently.
const READS_AT_ONCE: usize = 16;

/// Blocks of one frame in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    place: FramePlace,
    index: u8,
    count: u8,
}

/// Live blocks of the victim that are consecutive on the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Run {
    lba: Lba,
    pieces: Vec<Piece>,
}

impl Run {
    fn contains(&self, offset: u32) -> bool {
        self.pieces.iter().any(|piece| piece.place.offset == offset)
    }

    /// Returns the offset in the victim of the last of its frames.
    fn last(&self) -> u32 {
        self.pieces.iter().map(|piece| piece.place.offset).max().unwrap_or(0)
    }

    /// Returns the frames, each once, in the order of the victim.
    fn frames(&self) -> Vec<FramePlace> {
        let mut frames: Vec<_> = self.pieces.iter().map(|piece| piece.place).collect();
        frames.sort_unstable_by_key(|place| place.offset);
        frames.dedup_by_key(|place| place.offset);
        frames
    }

    fn blocks(&self) -> u8 {
        self.pieces.iter().map(|piece| piece.count).sum()
    }

    /// Returns the bytes that the blocks take now.
    fn stored_bytes(&self) -> u32 {
        self.pieces.iter().map(|piece| piece.place.share(piece.index, piece.count)).sum()
    }
}

/// A batch of the victim as it was read.
#[derive(Clone, Copy)]
pub(crate) struct Scanned<'a> {
    /// Its header.
    pub(crate) header: &'a BatchHeader,
    /// The bytes after the header.
    pub(crate) body: &'a [u8],
}

impl<'a> Scanned<'a> {
    /// Returns the bytes of a frame, if it lies in this batch.
    fn frame(&self, frame: &FramePlace) -> Option<&'a [u8]> {
        let body_at = self.header.offset + len_u32(BATCH_HEADER_BYTES);
        let from = frame.offset.checked_sub(body_at)?;
        self.body.get(from as usize..from as usize + frame.record_bytes as usize)
    }
}

/// A frame of a run, read and found whole.
struct Member {
    place: RecordAddress,
    record: Record,
    bytes: Vec<u8>,
    /// The batch it lies in.
    seq: SeqNo,
}

/// Returns the victim's runs among the blocks from `start` to `end`, which lie in one leaf; `None`
/// if it is not in memory.
fn runs_of(map: &L2p, victim: SegmentId, start: Lba, end: u64) -> Option<Vec<Run>> {
    let mut runs: Vec<Run> = Vec::new();
    let mut at = start.0;
    while at < end {
        let Lookup::Run(mapping, blocks) = map.peek(Lba(at)) else { return None };
        let count = blocks.min(end - at);
        if let Mapping::Frame { place, index } = mapping
            && place.segment == victim
        {
            let piece = Piece { place, index, count: frame_blocks(count) };
            match runs.last_mut() {
                Some(run) if run.lba.0 + u64::from(run.blocks()) == at => {
                    run.pieces.push(piece);
                }
                _ => runs.push(Run { lba: Lba(at), pieces: vec![piece] }),
            }
        }
        at += count;
    }
    assert!(runs.iter().all(|run| !run.pieces.is_empty()), "a run has a piece");
    Some(runs)
}

impl Mover<'_> {
    /// Notes the next batch of the victim.
    pub(crate) fn enter_batch(&mut self, header: &BatchHeader) {
        self.joins.enter(PassedBatch { offset: header.offset, seq: header.seq });
    }

    /// Moves a record of `batch`, or its live blocks, with every run of which it is the last frame;
    /// other runs wait for their last frame.
    ///
    /// # Errors
    /// As [`Mover::move_record`].
    pub(crate) async fn join_record(
        &mut self,
        batch: Scanned<'_>,
        found: &Found<'_>,
    ) -> Result<()> {
        let Some(runs) = self.runs_around(found).await else {
            return self.move_record(batch.header.seq, found).await;
        };
        let here = found.place.offset;
        for run in &runs {
            if run.last() > here {
                self.joins.has_waiting = true;
                continue;
            }
            let members = self.read_members(run, batch).await;
            // The second pass may be able to read frames that this one could not.
            self.joins.has_waiting |= members.len() < run.frames().len();
            if !self.join(run, &members).await? {
                for member in &members {
                    let Member { place, record, bytes, seq } = member;
                    let found = Found { record: *record, place: *place, bytes };
                    self.move_record(*seq, &found).await?;
                }
            }
        }
        Ok(())
    }

    /// Returns the runs that hold a part of a frame; `None` if it must be moved alone.
    async fn runs_around(&self, found: &Found<'_>) -> Option<Vec<Run>> {
        let Record::Data { lba, lba_count, payload_checksum, .. } = found.record else {
            return None;
        };
        if self.dense.is_none() || self.drive.options.cold_frame_blocks <= 1 {
            return None;
        }
        let largest = u64::from(self.cold_blocks());
        let start = lba.0 / largest * largest;
        let end = (start + largest).min(self.drive.size_bytes() / BLOCK_BYTES as u64);
        let is_within = lba.0 + u64::from(lba_count) <= end;
        if !is_within || check_payload(found.payload(), payload_checksum, found.place).is_err() {
            return None;
        }
        self.drive.load_range(Lba(start), end - start).await.ok()?;
        let mut runs = runs_of(self.drive.core().map(), found.place.segment, Lba(start), end)?;
        runs.retain(|run| run.contains(found.place.offset));
        let is_alone = match &runs[..] {
            [] => true,
            [run] => match &run.pieces[..] {
                [piece] => piece.count == piece.place.blocks,
                _ => false,
            },
            _ => false,
        };
        (!is_alone).then_some(runs)
    }

    /// Returns the frames of a run that can be read, from this batch or from the medium.
    async fn read_members(&self, run: &Run, batch: Scanned<'_>) -> Vec<Member> {
        let read = |frame: FramePlace| async move {
            let bytes = match batch.frame(&frame) {
                Some(bytes) => bytes.to_vec(),
                None => self.read_record(&frame).await?,
            };
            self.member(&frame, bytes)
        };
        let reads: Vec<_> = run.frames().into_iter().map(read).collect();
        iter(reads).buffered(READS_AT_ONCE).filter_map(async |member| member).collect().await
    }

    /// Reads a frame's record.
    async fn read_record(&self, frame: &FramePlace) -> Option<Vec<u8>> {
        let (drive, range) = (self.drive, frame.offset..frame.offset + frame.record_bytes);
        let read = drive.buffers.read(&*drive.medium, frame.segment, range, <[u8]>::to_vec);
        read.await.ok()
    }

    fn member(&self, frame: &FramePlace, bytes: Vec<u8>) -> Option<Member> {
        let segment = frame.segment;
        let generation = self.drive.core().space().generation(segment);
        let place = RecordAddress { generation, segment, offset: frame.offset };
        let record = Record::decode_with(&bytes, place, self.drive.medium.cipher()).ok()?;
        let is_it = matches!(record, Record::Data { .. })
            && record.record_bytes() == frame.record_bytes
            && record.lba_range().1 == u64::from(frame.blocks);
        let seq = self.joins.seq_at(frame.offset)?;
        is_it.then_some(Member { place, record, bytes, seq })
    }

    /// Moves a run as one frame if that is worth it and none of it has died; returns whether it was
    /// moved.
    async fn join(&mut self, run: &Run, members: &[Member]) -> Result<bool> {
        self.take_key();
        let Some((encoding, bytes, sources)) = self.encode_run(run, members) else {
            return Ok(false);
        };
        let payload = self.encoded(0, bytes);
        let joined = MovedFrame {
            lba: run.lba,
            blocks: run.blocks(),
            encoding,
            payload,
            payload_checksum: crc64(payload),
            sources: &sources,
            generation: self.generation,
        };
        let first = run.pieces.first().expect("a run has a piece");
        let victim = first.place.segment;
        let end = run.lba.0 + u64::from(run.blocks());
        let is_current = |core: &Core| {
            let runs = runs_of(core.map(), victim, run.lba, end);
            !core.stays_for_snapshot(victim, self.reason)
                && runs.as_deref() == Some(std::slice::from_ref(run))
        };
        let join = |core: &mut Core| Ok(core.join_frames(&joined, is_current)?.unless_waiting());
        let is_done = self.drive.with_room(join).await? == Attempt::Done;
        if is_done && run.pieces.len() > 1 {
            self.drive.with_core(|core| core.counters_mut().joined_frames.add(1));
        }
        Ok(is_done)
    }

    /// Compresses the blocks of a run together, if all of them can be read and that is worth it.
    /// Returns the encoding, the bytes in the target, the sources.
    fn encode_run(&mut self, run: &Run, members: &[Member]) -> Option<(u8, usize, Vec<Source>)> {
        let is_dense = |member: &Member| {
            matches!(member.record, Record::Data { encoding, .. }
                if encoding & !SEALED == Encoding::Zstd as u8)
        };
        let largest = run.pieces.iter().map(|piece| piece.place.blocks).max()?;
        if members.iter().all(is_dense) && run.blocks() < largest.saturating_mul(DENSE_GROWTH) {
            return None;
        }
        let mut sources = Vec::with_capacity(run.pieces.len());
        self.joins.blocks.clear();
        let mut lba = run.lba.0;
        for piece in &run.pieces {
            let here = |member: &&Member| member.place.offset == piece.place.offset;
            let member = members.iter().find(here)?;
            self.decode_member(member, lba.checked_sub(piece.index.into())?)?;
            let end = piece.index.checked_add(piece.count)?;
            if end > piece.place.blocks {
                return None;
            }
            let from = usize::from(piece.index) * BLOCK_BYTES;
            let blocks = self.frame.get(from..usize::from(end) * BLOCK_BYTES)?;
            self.joins.blocks.extend_from_slice(blocks);
            let found = Found { record: member.record, place: member.place, bytes: &member.bytes };
            let all = sources_of(member.seq, &found, self.drive.medium.cipher());
            sources.extend(cut_sources(&all, piece.index, piece.count));
            lba += u64::from(piece.count);
        }
        assert_eq!(
            self.joins.blocks.len(),
            usize::from(run.blocks()) * BLOCK_BYTES,
            "a run that is joined is decoded whole"
        );
        let clear_at = self.clear_at();
        let (_, target) = self.target.split_at_mut(clear_at);
        let (encoding, clear_bytes) = self.dense.as_mut()?.compress(&self.joins.blocks, target);
        let bytes = clear_bytes + self.drive.medium.cipher().seal_bytes();
        let record_bytes = RECORD_HEADER_BYTES + sources.len() * SOURCE_BYTES + bytes;
        let stored_bytes = run.stored_bytes();
        let is_worth_it =
            record_bytes as u64 + u64::from(stored_bytes / JOINED_DIVISOR) <= stored_bytes.into();
        if !is_worth_it {
            return None;
        }
        let (encoding, bytes) = self.seal((run.lba, run.blocks()), (encoding, clear_bytes));
        Some((encoding, bytes, sources))
    }

    /// Decodes a frame, which must begin at block `start`.
    fn decode_member(&mut self, member: &Member, start: u64) -> Option<()> {
        let Record::Data { lba, lba_count, payload_checksum, .. } = member.record else {
            return None;
        };
        let (_, payload) = member.bytes.split_at(member.record.header_bytes() as usize);
        check_payload(payload, payload_checksum, member.place).ok()?;
        let cipher = self.drive.medium.cipher();
        let generation = member.place.generation;
        let stored = Stored::of_frame(&member.record, payload, generation, cipher).ok()?;
        (lba.0 == start && self.decode_stored(&stored, frame_blocks(lba_count.into())))
            .then_some(())
    }

    /// Returns the most blocks of a joined frame: a power of two.
    fn cold_blocks(&self) -> u16 {
        let wanted =
            self.drive.options.cold_frame_blocks.max(self.drive.core().superblock().frame_blocks);
        let blocks = wanted.next_power_of_two().min(FRAME_BLOCKS_MAX);
        assert!(blocks.is_power_of_two(), "joined frames divide the leaves of the map");
        blocks
    }
}

//! Walking the log from its first batch to its end: what recovery and `check` share.
//!
//! ```text
//! segment headers -> the segment whose first batch continues the chain
//!                 -> its batches, one behind the other -> the next such segment -> ... -> end
//! ```
//!
//! **Where the log ends.** At the first batch that is missing or wrong, unless that batch is known
//! to have been durable: the superblock's watermark, or the watermark in any batch found beyond,
//! reaches it. Then it is damage and not a torn tail. A damaged batch whose header and record
//! headers are whole still says which blocks it held, and the walk goes on: reading those whose
//! payload is wrong fails, nothing older is returned in their place. Otherwise the walk fails.
//!
//! Only reads. Bytes from the medium are never trusted: every length is checked before use.

use std::collections::BTreeMap;

use futures_util::stream::{StreamExt, iter};

use super::log::{LogEnd, Tail, Totals};
use crate::base::units::BLOCK_BYTES;
use crate::base::{AlignedBuffer, Error, ErrorKind, Result, SegmentId, SeqNo};
use crate::format::{
    BATCH_ALIGNMENT, BATCH_BYTES_MAX, BATCH_HEADER_BYTES, BatchHeader, Record, RecordPlace,
    SEGMENT_HEADER_BYTES, SegmentHeader, Superblock, chain_record, chain_start, check_payload,
};
use crate::media::Medium;

/// Segment headers read at once.
const HEADERS_AT_ONCE: usize = 32;

/// What a walk shows to its visitor, in the order of the log.
pub(crate) trait Visitor {
    /// The log enters a segment.
    fn segment(&mut self, header: &SegmentHeader);

    /// A batch; its records follow.
    fn batch(&mut self, header: &BatchHeader);

    /// A record and its payload. The blocks lie on the disk, and a frame is no longer than the
    /// drive's frames and crosses none of their borders.
    ///
    /// # Errors
    /// Ends the walk.
    fn record(&mut self, record: &Record, place: RecordPlace, payload: &[u8]) -> Result<()>;

    /// A segment's header is wrong. Shown before anything else; it matters only if the log turns
    /// out to need the segment, since the first write to a segment may have been torn.
    fn stray_header(&mut self, error: Error);

    /// Something is wrong in the log that does not end the walk.
    fn problem(&mut self, error: Error);
}

/// Where the walk ended.
#[derive(Clone, Debug)]
pub(crate) struct WalkEnd {
    /// The end of the log.
    pub(crate) end: LogEnd,
    /// The opening in which the last batch was written.
    pub(crate) epoch: u32,
    /// Lifetime counters as the last batch has them.
    pub(crate) totals: Totals,
}

/// Where the next batch is looked for.
#[derive(Clone, Debug)]
struct Position {
    header: SegmentHeader,
    offset: u32,
}

/// Why there is no next batch at a position.
enum Stop {
    /// No batch header that continues the log.
    NoHeader,
    /// The header continues the log and its record headers are right, but a payload is not.
    WrongBody(BatchHeader, u64),
}

struct Walk<'a, M> {
    medium: &'a M,
    superblock: &'a Superblock,
    /// Segments of this drive by the sequence number they begin with.
    starts: BTreeMap<SeqNo, Vec<SegmentHeader>>,
    window: AlignedBuffer,
    window_at: Option<(SegmentId, u32)>,
    seq: SeqNo,
    chain: u64,
    watermark: SeqNo,
    epoch: u32,
    totals: Totals,
}

/// Walks the whole log of a drive.
///
/// # Errors
/// `Medium`, or `Corrupt` when durable batches are missing or unreadable.
pub(crate) async fn walk<M: Medium>(
    medium: &M,
    superblock: &Superblock,
    visitor: &mut impl Visitor,
) -> Result<WalkEnd> {
    let mut walk = Walk {
        medium,
        superblock,
        starts: read_starts(medium, superblock, visitor).await?,
        window: AlignedBuffer::zeroed(BATCH_BYTES_MAX),
        window_at: None,
        seq: SeqNo(0),
        chain: chain_start(superblock.uuid),
        watermark: superblock.watermark,
        epoch: 0,
        totals: Totals::default(),
    };
    let mut position = None;
    while let Some(next) = walk.step(position.clone(), visitor).await? {
        position = Some(next);
    }
    let tail = position.map(|Position { header, offset }| Tail {
        segment: header.segment,
        generation: header.generation,
        used: offset,
    });
    let end = LogEnd { seq: walk.seq, checksum: walk.chain, tail };
    Ok(WalkEnd { end, epoch: walk.epoch, totals: walk.totals })
}

/// Every segment of the drive that has a header, by the batch it begins with.
async fn read_starts<M: Medium>(
    medium: &M,
    superblock: &Superblock,
    visitor: &mut impl Visitor,
) -> Result<BTreeMap<SeqNo, Vec<SegmentHeader>>> {
    let read = |number: u32| async move {
        let segment = SegmentId(number);
        let buffer = AlignedBuffer::zeroed(SEGMENT_HEADER_BYTES);
        let (bytes, result) = medium.read(segment, 0, buffer).await;
        result.map(|()| SegmentHeader::decode(&bytes, superblock.uuid, segment))
    };
    let mut starts: BTreeMap<SeqNo, Vec<SegmentHeader>> = BTreeMap::new();
    let mut reads = iter((0..superblock.segment_count).map(read)).buffered(HEADERS_AT_ONCE);
    while let Some(header) = reads.next().await {
        match header.and_then(|decoded| decoded) {
            Ok(None) => {}
            Ok(Some(header)) => starts.entry(header.first_seq).or_default().push(header),
            Err(error) => visitor.stray_header(error),
        }
    }
    for candidates in starts.values_mut() {
        candidates.sort_by_key(|header| header.generation);
    }
    Ok(starts)
}

impl<M: Medium> Walk<'_, M> {
    /// Visits the next batch; gives where the one after it is looked for first.
    async fn step(
        &mut self,
        position: Option<Position>,
        visitor: &mut impl Visitor,
    ) -> Result<Option<Position>> {
        let mut salvage = None;
        let mut places: Vec<(bool, Position)> =
            position.iter().cloned().map(|at| (false, at)).collect();
        let next_seq = SeqNo(self.seq.0 + 1);
        let starts = self.starts.get(&next_seq).into_iter().flatten().rev();
        places.extend(starts.map(|header| {
            let offset = SEGMENT_HEADER_BYTES as u32;
            (true, Position { header: header.clone(), offset })
        }));
        for (enters, place) in places {
            match self.read_batch(&place).await? {
                Ok((header, checksum)) => {
                    return self.visit(enters, place, header, checksum, visitor).map(Some);
                }
                Err(Stop::WrongBody(header, checksum)) => {
                    salvage = salvage.or(Some((enters, place, header, checksum)));
                }
                Err(Stop::NoHeader) => {}
            }
        }
        if !self.was_durable(next_seq, position.as_ref()).await? {
            return Ok(None);
        }
        let Some((enters, place, header, checksum)) = salvage else {
            let what = format!(
                "batch {next_seq} of the log was durable and is missing or damaged, so the newest \
                 content of its blocks is unknown"
            );
            let error = Error::new(ErrorKind::Corrupt, what);
            return Err(match position {
                Some(at) => error.in_segment(at.header.segment).at_offset(at.offset.into()),
                None => error,
            });
        };
        let damage = Error::new(
            ErrorKind::Corrupt,
            "a batch's records are not those that its header was written for",
        );
        visitor.problem(damage.in_segment(header.segment).at_offset(header.offset.into()));
        self.read_window(place.header.segment, place.offset, header.batch_bytes()).await?;
        self.visit(enters, place, header, checksum, visitor).map(Some)
    }

    /// Reads the batch at a position into the window and checks that it continues the log.
    async fn read_batch(&mut self, at: &Position) -> Result<Result<(BatchHeader, u64), Stop>> {
        let room = u64::from(self.superblock.segment_bytes) - u64::from(at.offset);
        if room < BATCH_ALIGNMENT as u64 {
            return Ok(Err(Stop::NoHeader));
        }
        let segment = at.header.segment;
        let bytes = self.read_window(segment, at.offset, BATCH_ALIGNMENT as u64).await?;
        let Ok((header, checksum)) = BatchHeader::decode(bytes) else {
            return Ok(Err(Stop::NoHeader));
        };
        let continues = header.seq.0 == self.seq.0 + 1
            && header.previous_checksum == self.chain
            && header.epoch >= self.epoch
            && header.uuid == self.superblock.uuid
            && header.generation == at.header.generation
            && header.segment == segment
            && header.offset == at.offset
            && header.batch_bytes() <= room;
        if !continues {
            return Ok(Err(Stop::NoHeader));
        }
        let bytes = self.read_window(segment, at.offset, header.batch_bytes()).await?;
        Ok(match body_state(&header, &bytes[BATCH_HEADER_BYTES..]) {
            Body::Whole => Ok((header, checksum)),
            Body::WrongPayload => Err(Stop::WrongBody(header, checksum)),
            Body::Foreign => Err(Stop::NoHeader),
        })
    }

    /// Shows the batch in the window to the visitor and moves on behind it.
    fn visit(
        &mut self,
        enters: bool,
        at: Position,
        header: BatchHeader,
        checksum: u64,
        visitor: &mut impl Visitor,
    ) -> Result<Position> {
        if enters {
            visitor.segment(&at.header);
        }
        visitor.batch(&header);
        let (_, window_offset) = self.window_at.expect("the batch was just read");
        let from = (at.offset - window_offset) as usize + BATCH_HEADER_BYTES;
        let records = &self.window[from..from + header.record_bytes as usize];
        visit_records(self.superblock, &header, records, visitor)?;
        self.seq = header.seq;
        self.chain = checksum;
        self.epoch = header.epoch;
        self.watermark = self.watermark.max(header.watermark);
        self.totals = Totals {
            host_bytes: header.host_bytes,
            frame_bytes: header.frame_bytes,
            media_bytes: header.media_bytes,
        };
        let offset = at.offset + header.batch_bytes() as u32;
        Ok(Position { header: at.header, offset })
    }

    /// Whether batch `seq`, which cannot be read, is known to have been durable.
    async fn was_durable(&mut self, seq: SeqNo, position: Option<&Position>) -> Result<bool> {
        if self.watermark >= seq {
            return Ok(true);
        }
        let rest = position.map(|at| (at.header.clone(), at.offset));
        let later = self.starts.range(SeqNo(seq.0 + 1)..).flat_map(|(_, headers)| headers);
        let later = later.map(|header| (header.clone(), SEGMENT_HEADER_BYTES as u32));
        for (header, from) in rest.into_iter().chain(later).collect::<Vec<_>>() {
            for offset in (from..self.superblock.segment_bytes).step_by(BATCH_ALIGNMENT) {
                if self.proves_durable(seq, &header, offset).await? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Whether a batch at `offset` says that `seq` was durable.
    async fn proves_durable(
        &mut self,
        seq: SeqNo,
        segment: &SegmentHeader,
        offset: u32,
    ) -> Result<bool> {
        let bytes = self.read_window(segment.segment, offset, BATCH_ALIGNMENT as u64).await?;
        let proof = BatchHeader::decode(bytes).is_ok_and(|(header, _)| {
            header.uuid == segment.uuid
                && header.generation == segment.generation
                && header.segment == segment.segment
                && header.offset == offset
                && header.watermark >= seq
        });
        Ok(proof)
    }

    /// `len` bytes at `offset` of a segment, through a window that reads ahead.
    async fn read_window(&mut self, segment: SegmentId, offset: u32, len: u64) -> Result<&[u8]> {
        let held = self.window_at.filter(|&(held, from)| {
            held == segment
                && offset >= from
                && u64::from(offset - from) + len <= self.window.len() as u64
        });
        let from = match held {
            Some((_, from)) => from,
            None => {
                let rest = (self.superblock.segment_bytes - offset) as usize;
                let mut buffer = std::mem::replace(&mut self.window, AlignedBuffer::zeroed(0));
                buffer.set_len(rest.min(BATCH_BYTES_MAX));
                self.window_at = None;
                let (bytes, result) = self.medium.read(segment, offset, buffer).await;
                self.window = bytes;
                if result.is_err() {
                    self.read_units(segment, offset, len).await;
                }
                self.window_at = Some((segment, offset));
                offset
            }
        };
        let start = (offset - from) as usize;
        Ok(&self.window[start..start + len as usize])
    }

    /// Fills the window with `len` bytes, unit by unit, where reading ahead failed. What cannot be
    /// read becomes zeroes, which no checksum takes for content: one bad sector costs what stands
    /// in it and nothing else.
    async fn read_units(&mut self, segment: SegmentId, offset: u32, len: u64) {
        self.window.set_len(len as usize);
        for at in (0..len as usize).step_by(BATCH_ALIGNMENT) {
            let page = AlignedBuffer::zeroed(BATCH_ALIGNMENT);
            let (bytes, result) = self.medium.read(segment, offset + at as u32, page).await;
            let target = &mut self.window[at..at + BATCH_ALIGNMENT];
            match result {
                Ok(()) => target.copy_from_slice(&bytes),
                Err(error) => {
                    tracing::warn!("while reading the log: {}", error.chain());
                    target.fill(0);
                }
            }
        }
    }
}

/// What stands behind a batch header: see [`body_state`].
enum Body {
    /// What it was written for.
    Whole,
    /// The record headers it was written for; a payload or the padding is wrong.
    WrongPayload,
    /// Something else, if only in one record header: which blocks the batch held is unknown.
    Foreign,
}

/// Holds a batch's body against its header: record headers, payloads, padding.
fn body_state(header: &BatchHeader, body: &[u8]) -> Body {
    let (records, padding) = body.split_at(header.record_bytes as usize);
    let mut rest = records;
    let mut checksum = 0;
    let mut payloads_right = padding.iter().all(|&byte| byte == 0);
    for _ in 0..header.record_count {
        let offset = header.offset + (BATCH_HEADER_BYTES + records.len() - rest.len()) as u32;
        let place = RecordPlace { generation: header.generation, segment: header.segment, offset };
        let Ok(record) = Record::decode(rest, place) else { return Body::Foreign };
        let Some((record_bytes, later)) = rest.split_at_checked(record.record_bytes() as usize)
        else {
            return Body::Foreign;
        };
        let Some((record_header, payload)) = record_bytes.split_first_chunk() else {
            return Body::Foreign;
        };
        if let Record::Data { payload_checksum, .. } = record {
            payloads_right &= check_payload(payload, payload_checksum, place).is_ok();
        }
        checksum = chain_record(checksum, record_header);
        rest = later;
    }
    match rest.is_empty() && checksum == header.records_checksum {
        false => Body::Foreign,
        true if payloads_right => Body::Whole,
        true => Body::WrongPayload,
    }
}

/// Shows the records of a batch to the visitor.
fn visit_records(
    superblock: &Superblock,
    header: &BatchHeader,
    records: &[u8],
    visitor: &mut impl Visitor,
) -> Result<()> {
    let mut at = 0;
    for _ in 0..header.record_count {
        let place = RecordPlace {
            generation: header.generation,
            segment: header.segment,
            offset: header.offset + BATCH_HEADER_BYTES as u32 + at as u32,
        };
        let wrong = |what: &'static str| {
            Error::new(ErrorKind::Corrupt, what)
                .in_segment(place.segment)
                .at_offset(u64::from(place.offset))
        };
        let record = Record::decode(&records[at.min(records.len())..], place)?;
        let end = at + record.record_bytes() as usize;
        if end > records.len() {
            return Err(wrong("a record is longer than its batch"));
        }
        if !is_possible(&record, superblock) {
            return Err(wrong("a record names blocks that the drive cannot have"));
        }
        let payload_at = end - record.stored_bytes() as usize;
        visitor.record(&record, place, &records[payload_at..end])?;
        at = end;
    }
    Ok(())
}

/// Whether a record's blocks lie on the disk and, for a frame, within one frame's borders.
fn is_possible(record: &Record, superblock: &Superblock) -> bool {
    let (lba, count) = record.lba_range();
    let on_disk = lba.0 + count <= superblock.size_bytes / BLOCK_BYTES as u64;
    match record {
        Record::Data { .. } => {
            let frame_blocks = u64::from(superblock.frame_blocks);
            on_disk && lba.0 / frame_blocks == (lba.0 + count - 1) / frame_blocks
        }
        Record::Fill { .. } | Record::Trim { .. } => on_disk,
    }
}

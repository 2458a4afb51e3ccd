//! What a snapshot has that an earlier one has not, as a transfer.
//!
//! ```text
//! differences, in the order of the disk -> parts, as many as a window holds
//!   -> frames read in the order of the medium, adjacent ones together
//!   -> in the order of the disk: whole frames as they are stored; of others the blocks wanted,
//!      in frames of their own; fills and holes
//! ```

use std::collections::VecDeque;

use futures_util::stream::{StreamExt, iter};

use super::super::drive::Drive;
use super::super::log::buffers::COALESCED_BYTES_MAX;
use super::super::log::framing::{Span, spans};
use super::super::maintenance::SnapshotInfo;
use super::super::map::Mapping;
use super::super::operations::{Difference, Differences, READS_AT_ONCE, group_len};
use super::super::place::FramePlace;
use super::writer::Writer;
use crate::base::checksum::crc64;
use crate::base::units::{BLOCK_BYTES, buffer_bytes, len_u32};
use crate::base::{Clock, Error, ErrorKind, Lba, Result};
use crate::codec::{Compressor, Encoding};
use crate::format::{
    FRAME_BLOCKS_MAX, Record, RecordAddress, TransferBase, TransferHead, check_payload,
};
use crate::media::Medium;

/// Bytes of records that are read before the first of them is sent: a few of the longest media
/// reads, so that frames that were written together are read together.
const WINDOW_BYTES: usize = 8 << 20;

/// Most parts of a window.
const PARTS_MAX: usize = 8192;

/// What was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Byte of the disk up to which everything was sent.
    pub offset: u64,
    /// Bytes of the disk that differ.
    pub changed_bytes: u64,
    /// Bytes of the records that they became.
    pub record_bytes: u64,
    /// Bytes of the transfer.
    pub transfer_bytes: u64,
}

/// An open snapshot.
pub struct View<'a, M, C> {
    /// Its disk, as [`Drive::open_snapshot`] opens it.
    pub disk: &'a Drive<M, C>,
    /// What it is.
    pub info: &'a SnapshotInfo,
}

/// A snapshot being sent.
pub struct Send<'a, M, C> {
    drive: &'a Drive<M, C>,
    differences: Differences<'a, M, C>,
    window: Window,
    writer: Writer,
    frame: Vec<u8>,
    target: Vec<u8>,
    compressor: Compressor,
    frame_blocks: u16,
    offset: u64,
    has_ended: bool,
    /// Whether the caller has what the writer holds.
    is_returned: bool,
}

/// Parts that were read together.
#[derive(Default)]
struct Window {
    parts: VecDeque<Part>,
    /// The records of frames, as they are stored.
    bytes: Vec<u8>,
}

/// Blocks of one frame or of one content.
#[derive(Clone, Copy)]
struct Part {
    lba: Lba,
    blocks: u64,
    mapping: Mapping,
    generation: u64,
    /// Where its record is in the bytes of the window.
    at: usize,
}

impl Part {
    fn of(Difference { lba, blocks, mapping, generation }: Difference) -> Self {
        Self { lba, blocks, mapping, generation, at: 0 }
    }

    fn place(&self) -> Option<&FramePlace> {
        match &self.mapping {
            Mapping::Frame { place, .. } => Some(place),
            Mapping::Hole | Mapping::Fill(_) => None,
        }
    }

    /// Adds what follows, if it is more of the same.
    fn extend(&mut self, next: &Difference) -> bool {
        let is_next = self.lba.0 + self.blocks == next.lba.0 && self.generation == next.generation;
        let is_more = match (self.mapping, next.mapping) {
            (Mapping::Frame { place, index }, Mapping::Frame { place: of_next, index: next }) => {
                place == of_next && u64::from(index) + self.blocks == u64::from(next)
            }
            (one, other) => one == other,
        };
        if is_next && is_more {
            self.blocks += next.blocks;
        }
        is_next && is_more
    }
}

impl<'a, M: Medium, C: Clock> Send<'a, M, C> {
    /// Begins to send a snapshot, without what `base`, an earlier snapshot of the same drive, has
    /// already, from byte `start` of the disk on.
    ///
    /// # Errors
    /// `InvalidInput`: the base is not an earlier snapshot of the drive, or the start is not a
    /// multiple of 4096 on the disk.
    pub fn new(
        View { disk: drive, info }: View<'a, M, C>,
        base: Option<View<'a, M, C>>,
        start: u64,
    ) -> Result<Self> {
        let is_earlier = |base: &View<'_, M, C>| {
            base.info.sequence < info.sequence && base.disk.uuid() == drive.uuid()
        };
        if !base.as_ref().is_none_or(is_earlier) {
            let what = "a snapshot is sent since an earlier one of the same drive";
            return Err(Error::new(ErrorKind::InvalidInput, what));
        }
        if drive.origin().is_some() {
            let what = "a clone is sent once it is independent of its origin: see `pumice flatten`";
            return Err(Error::new(ErrorKind::InvalidInput, what));
        }
        if start > drive.size_bytes() || !start.is_multiple_of(BLOCK_BYTES as u64) {
            let what = "the token names a place that is not on the disk";
            return Err(Error::new(ErrorKind::InvalidInput, what));
        }
        let superblock = drive.core().superblock().clone();
        let head = TransferHead {
            drive: superblock.uuid,
            snapshot: info.guid,
            name: info.name.clone(),
            created_seconds: info.created_seconds,
            base: base.as_ref().map(|View { info, .. }| TransferBase {
                snapshot: info.guid,
                name: info.name.clone(),
            }),
            size_bytes: drive.size_bytes(),
            start,
            frame_blocks: superblock.frame_blocks,
            codec: superblock.codec,
            codec_level: superblock.codec_level,
            has_block_frames: superblock.has_block_frames,
        };
        let frame_bytes = usize::from(FRAME_BLOCKS_MAX) * BLOCK_BYTES;
        Ok(Self {
            drive,
            differences: Differences::new(
                drive,
                base.map(|base| base.disk),
                start / BLOCK_BYTES as u64,
            ),
            window: Window::default(),
            writer: Writer::new(&head),
            frame: vec![0; frame_bytes],
            target: vec![0; Compressor::target_bytes(frame_bytes)],
            compressor: Compressor::new(drive.codec.get()).with_form(drive.form),
            frame_blocks: superblock.frame_blocks,
            offset: start,
            has_ended: false,
            is_returned: false,
        })
    }

    /// Returns the next bytes of the transfer, about 1 MiB; `None` after its end.
    ///
    /// # Errors
    /// `Corrupt` or `Medium`: a part of the snapshot cannot be read, which the error names. The
    /// transfer has no end then, and no receiver takes it for whole.
    pub async fn next(&mut self) -> Result<Option<&[u8]>> {
        if std::mem::take(&mut self.is_returned) {
            self.writer.clear();
        }
        while self.writer.out().is_empty() {
            if self.has_ended {
                return Ok(None);
            }
            if self.window.parts.is_empty() {
                self.fill_window().await?;
            }
            match self.window.parts.pop_front() {
                Some(part) => {
                    self.push(&part).await?;
                    self.offset = (part.lba.0 + part.blocks) * BLOCK_BYTES as u64;
                }
                None => {
                    self.writer.end();
                    (self.has_ended, self.offset) = (true, self.drive.size_bytes());
                }
            }
        }
        self.is_returned = true;
        Ok(Some(self.writer.out()))
    }

    /// Returns what was sent so far.
    pub fn sent(&self) -> Sent {
        let (changed_bytes, record_bytes, transfer_bytes) = self.writer.totals();
        Sent { offset: self.offset, changed_bytes, record_bytes, transfer_bytes }
    }

    /// Collects parts and reads their frames.
    async fn fill_window(&mut self) -> Result<()> {
        let Window { parts, bytes } = &mut self.window;
        let mut stored_bytes = 0;
        while stored_bytes < WINDOW_BYTES && parts.len() < PARTS_MAX {
            let Some(next) = self.differences.next().await? else { break };
            if parts.back_mut().is_some_and(|last| last.extend(&next)) {
                continue;
            }
            let part = Part::of(next);
            stored_bytes += part.place().map_or(0, |place| place.record_bytes as usize);
            parts.push_back(part);
        }
        let mut order: Vec<(FramePlace, &mut Part)> = parts
            .iter_mut()
            .filter_map(|part| part.place().copied().map(|place| (place, part)))
            .collect();
        order.sort_by_key(|(place, _)| (place.segment, place.offset));
        let mut end = 0;
        for (place, part) in &mut order {
            part.at = end;
            end += place.record_bytes as usize;
        }
        let order: Vec<FramePlace> = order.into_iter().map(|(place, _)| place).collect();
        // What cannot be read stays zeroes, which are no frame.
        bytes.clear();
        bytes.resize(end, 0);
        let (mut left, mut rest) = (order.as_slice(), bytes.as_mut_slice());
        let mut groups = Vec::new();
        while !left.is_empty() {
            let (group, later) = left.split_at(group_len(left.iter(), COALESCED_BYTES_MAX));
            let group_bytes = group.iter().map(|place| place.record_bytes as usize).sum();
            let (here, there) = rest.split_at_mut(group_bytes);
            groups.push(self.drive.read_records(group, here));
            (left, rest) = (later, there);
        }
        iter(groups).buffer_unordered(READS_AT_ONCE).collect::<()>().await;
        Ok(())
    }

    /// Puts a part into the transfer.
    async fn push(&mut self, part: &Part) -> Result<()> {
        let Part { lba, blocks: lba_count, .. } = *part;
        let (place, index) = match part.mapping {
            Mapping::Frame { place, index } => (place, index),
            Mapping::Hole => {
                self.writer.push(&Record::Trim { lba, lba_count }, &[]);
                return Ok(());
            }
            Mapping::Fill(byte) => {
                self.writer.push(&Record::Fill { lba, lba_count, byte }, &[]);
                return Ok(());
            }
        };
        let stored = self.window.bytes.get(part.at..part.at + place.record_bytes as usize);
        let stored = stored.expect("the record of a part lies in its window");
        let first = Lba(lba.0 - u64::from(index));
        let address = RecordAddress {
            generation: part.generation,
            segment: place.segment,
            offset: place.offset,
        };
        let restored;
        let (record, payload) = match check(stored, address, first, place) {
            Ok(found) => found,
            Err(error) => {
                restored = self.restore(address, first, place, error.at_lba(lba)).await?;
                check(&restored, address, first, place)?
            }
        };
        if lba_count == u64::from(place.blocks) {
            self.writer.push(&record, payload);
            return Ok(());
        }
        let Record::Data { encoding, .. } = record else { unreachable!("a frame was checked") };
        let encoding = Encoding::from_u8(encoding).expect("a frame was checked");
        let (frame, _) = self.frame.split_at_mut(usize::from(place.blocks) * BLOCK_BYTES);
        let decoded = self.drive.decompressor.borrow_mut().decompress(encoding, payload, frame);
        decoded.map_err(|error| error.at_lba(lba))?;
        let from = usize::from(index) * BLOCK_BYTES;
        let wanted = buffer_bytes(lba_count);
        let raw = frame.get(from..from + wanted).expect("a part of a frame lies in it");
        for span in spans(lba, raw, self.frame_blocks) {
            match span {
                Span::Fill { lba, count, byte } => {
                    self.writer.push(&Record::Fill { lba, lba_count: count, byte }, &[]);
                }
                Span::Data { lba, bytes } => {
                    let (encoding, len) = self.compressor.compress(bytes, &mut self.target);
                    let (payload, _) = self.target.split_at(len);
                    let blocks = (bytes.len() / BLOCK_BYTES) as u64;
                    self.writer.push(&data(lba, blocks, encoding, payload), payload);
                }
            }
        }
        Ok(())
    }

    /// Returns the bytes of a damaged record as its batch's parity has them.
    ///
    /// # Errors
    /// `error`, if they cannot be restored.
    async fn restore(
        &self,
        address: RecordAddress,
        first: Lba,
        place: FramePlace,
        error: Error,
    ) -> Result<Vec<u8>> {
        let mut restored = Vec::new();
        let mut is_right = |record: &[u8]| {
            let is_right = check(record, address, first, place).is_ok();
            if is_right {
                restored = record.to_vec();
            }
            is_right
        };
        let drive = self.drive;
        match drive.restore_record(address, place.record_bytes, &mut is_right).await {
            Ok(true) => Ok(restored),
            Ok(false) | Err(_) => Err(error),
        }
    }
}

impl<M: Medium, C: Clock> Drive<M, C> {
    /// Reads the records at places that lie close together in one segment, one after the other,
    /// to `out`. What cannot be read stays as it is.
    async fn read_records(&self, places: &[FramePlace], out: &mut [u8]) {
        if self.read_records_at_once(places, out).await.is_err() && places.len() > 1 {
            let mut rest = out;
            for place in places {
                let (here, there) = rest.split_at_mut(place.record_bytes as usize);
                let _ = self.read_records_at_once(std::slice::from_ref(place), here).await;
                rest = there;
            }
        }
    }

    async fn read_records_at_once(&self, places: &[FramePlace], out: &mut [u8]) -> Result<()> {
        let (first, last) = places.first().zip(places.last()).expect("a group has a record");
        let unit = self.read_unit;
        let start = first.offset / unit * unit;
        let end = (last.offset + last.record_bytes).next_multiple_of(unit);
        let (buffer, in_flight) = self.buffers.take((end - start) as usize).await;
        let (bytes, result) = self.medium.read(first.segment, start, buffer).await;
        if result.is_ok() {
            let mut rest = out;
            for place in places {
                let at = (place.offset - start) as usize;
                let record = bytes.get(at..at + place.record_bytes as usize);
                let (here, there) = rest.split_at_mut(place.record_bytes as usize);
                here.copy_from_slice(record.expect("a read covers its records"));
                rest = there;
            }
        }
        self.buffers.put(bytes, in_flight);
        result
    }
}

/// Returns the frame that `stored` must be, as a host would write it, and its payload.
///
/// # Errors
/// `Corrupt`: it is not.
fn check(
    stored: &[u8],
    address: RecordAddress,
    first: Lba,
    place: FramePlace,
) -> Result<(Record, &[u8])> {
    let wrong = |what| Error::new(ErrorKind::Corrupt, what).in_segment(address.segment);
    let record = Record::decode(stored, address)?;
    let Record::Data { lba, lba_count, encoding, payload_checksum, .. } = record else {
        return Err(wrong("the map names a record that is no frame"));
    };
    if (lba, lba_count) != (first, place.blocks.into())
        || record.record_bytes() != place.record_bytes
    {
        return Err(wrong("a frame is not the one that the map names"));
    }
    let (_, payload) = stored.split_at(record.header_bytes() as usize);
    check_payload(payload, payload_checksum, address)?;
    match Encoding::from_u8(encoding) {
        None => Err(wrong("a frame has an unknown encoding")),
        Some(Encoding::Lost) => {
            Err(wrong("the content is lost: it was damaged before the frame was moved"))
        }
        Some(encoding) => Ok((data(first, place.blocks.into(), encoding, payload), payload)),
    }
}

/// Returns the record of a frame as a host would write it.
fn data(lba: Lba, blocks: u64, encoding: Encoding, payload: &[u8]) -> Record {
    Record::Data {
        lba,
        lba_count: u16::try_from(blocks).expect("a frame has at most 64 blocks"),
        source_count: 0,
        encoding: encoding as u8,
        stored_bytes: len_u32(payload.len()),
        payload_checksum: crc64(payload),
    }
}

//! The difference between a snapshot and an earlier one, as a transfer.
//!
//! ```text
//! windows of differences, read ahead -> parts, in the order of the disk: whole frames as they are
//!   stored; the wanted blocks of others, in separate frames; fills and holes -> batches
//! ```

use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use futures_util::stream::StreamExt;
use serde::{Deserialize, Serialize};

use super::super::drive::Drive;
use super::super::log::framing::{Span, spans};
use super::super::maintenance::SnapshotInfo;
use super::super::map::Mapping;
use super::super::operations::Differences;
use super::window::{Part, Spare, Window, Windows, windows};
use super::writer::Writer;
use crate::base::checksum::crc64;
use crate::base::units::{BLOCK_BYTES, buffer_bytes, len_u32};
use crate::base::{Error, ErrorKind, Lba, Result, ensure};
use crate::codec::{Compressor, Encoding};
use crate::format::{FRAME_BLOCKS_MAX, Record, TransferBase, TransferHead};

/// The amount of data sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    /// Byte of the disk up to which everything was sent.
    pub offset: u64,
    /// Bytes of the disk that differ.
    pub changed_bytes: u64,
    /// Bytes of the records that were sent for them.
    pub record_bytes: u64,
    /// Bytes of the transfer.
    pub transfer_bytes: u64,
}

/// An open snapshot.
pub struct View<'a> {
    /// Its disk, as [`Drive::open_snapshot`] opens it.
    pub disk: &'a Drive,
    /// Its description.
    pub info: &'a SnapshotInfo,
}

/// A snapshot being sent.
pub struct SendStream<'a> {
    drive: &'a Drive,
    windows: Windows<'a>,
    window: Window,
    /// Buffers for windows.
    spare: Spare,
    writer: Writer,
    frame: Vec<u8>,
    target: Vec<u8>,
    compressor: Compressor,
    frame_blocks: u16,
    offset: u64,
    has_ended: bool,
    has_failed: bool,
}

impl<'a> SendStream<'a> {
    /// Begins to send a snapshot, without the data that `base`, an earlier snapshot of the same
    /// drive, already has, starting at byte `start` of the disk. The base may be a bookmark, in
    /// which case the receiver has the snapshot. The data that a clone reads from its origin, which
    /// must be open, is also sent: the received drive is not a clone.
    ///
    /// # Errors
    /// `InvalidInput` if the base is not an earlier snapshot of the drive, or the start is not a
    /// multiple of 4096 on the disk.
    pub fn new(
        View { disk: drive, info }: View<'a>,
        base: Option<View<'a>>,
        start: u64,
    ) -> Result<Self> {
        let is_earlier = |base: &View<'_>| {
            base.info.sequence < info.sequence && base.disk.uuid() == drive.uuid()
        };
        if !base.as_ref().is_none_or(is_earlier) {
            let what = "a snapshot is sent since an earlier one of the same drive";
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
            has_chunks: superblock.has_chunks,
        };
        let frame_bytes = usize::from(FRAME_BLOCKS_MAX) * BLOCK_BYTES;
        let base = base.map(|base| base.disk);
        let differences = Differences::new(drive, base, start / BLOCK_BYTES as u64);
        let spare = Spare::default();
        Ok(Self {
            drive,
            windows: windows(drive, differences, Rc::clone(&spare)),
            window: Window::default(),
            spare,
            writer: Writer::new(&head),
            frame: vec![0; frame_bytes],
            target: vec![0; Compressor::target_bytes(frame_bytes)],
            compressor: Compressor::new(drive.codec.get()).with_form(drive.form),
            frame_blocks: superblock.frame_blocks,
            offset: start,
            has_ended: false,
            has_failed: false,
        })
    }

    /// Returns the next bytes of the transfer, about 1 MiB; `None` after its end. Reads the
    /// subsequent data at the same time. Reads that were already passed to the medium continue
    /// until the next call.
    ///
    /// # Errors
    /// `Corrupt` or `Medium` if a part of the snapshot, named by the error, cannot be read. The
    /// transfer then has no end, and no receiver accepts it as whole; further calls also fail.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>> {
        ensure(!self.has_failed, ErrorKind::InvalidInput, "the transfer has failed")?;
        let next = self.advance().await;
        self.has_failed = next.is_err();
        next
    }

    /// Accepts a buffer that [`SendStream::next`] returned, for reuse in later calls.
    pub fn reuse(&mut self, bytes: Vec<u8>) {
        self.writer.reuse(bytes);
    }

    async fn advance(&mut self) -> Result<Option<Vec<u8>>> {
        // Continues the reads ahead without waiting.
        std::future::poll_fn(|context| {
            let _ = Pin::new(&mut self.windows).poll_peek(context);
            Poll::Ready(())
        })
        .await;
        while !self.writer.has_some() {
            if self.has_ended {
                return Ok(None);
            }
            match self.window.parts.pop_front() {
                Some(part) => {
                    let start = part.lba.0 * BLOCK_BYTES as u64;
                    let end = start + part.blocks * BLOCK_BYTES as u64;
                    assert!(start >= self.offset, "parts are sent in the order of the disk");
                    self.push(part)?;
                    self.offset = end;
                }
                None => match self.windows.next().await {
                    Some(window) => {
                        let sent = std::mem::replace(&mut self.window, window?);
                        self.spare.borrow_mut().push(sent.bytes);
                    }
                    None => {
                        self.writer.end();
                        (self.has_ended, self.offset) = (true, self.drive.size_bytes());
                    }
                },
            }
        }
        Ok(Some(self.writer.take()))
    }

    /// Returns the amount of data sent so far.
    pub fn sent(&self) -> Sent {
        let (changed_bytes, record_bytes, transfer_bytes) = self.writer.totals();
        Sent { offset: self.offset, changed_bytes, record_bytes, transfer_bytes }
    }

    /// Adds a part to the transfer.
    fn push(&mut self, part: Part) -> Result<()> {
        let Part { lba, blocks: lba_count, mapping, at, record, .. } = part;
        let (place, index) = match mapping {
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
        let record = record.expect("a window has read its frames")?;
        let end = at + place.record_bytes as usize;
        let payload = self.window.bytes.get(end - record.stored_bytes() as usize..end);
        let payload = payload.expect("the record of a part lies in its window");
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
}

/// Returns the record of a frame in the form that a host write produces.
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

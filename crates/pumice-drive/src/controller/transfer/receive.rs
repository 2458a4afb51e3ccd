//! Creates a snapshot of another drive from a transfer.
//!
//! ```text
//! apply: each batch is checked, its records written as a host would write them
//!        before the first record: superblocks mark the disk as a part of the snapshot
//!        periodically, and after an error: flush -> superblocks record the progress
//! end:   flush -> checkpoint that is the snapshot; its superblocks mark the disk as whole
//! ```
//!
//! **Power loss** leaves the disk as it was before, or marked as a part; and the snapshot with a
//! whole disk or none. A disk that is a part is opened only on explicit request
//! ([`OpenOptions::partial`](crate::controller::OpenOptions)). Applying a record again changes
//! nothing, so a transfer may begin anywhere up to the offset that the superblocks name. This
//! offset is the end of the last record that was applied: however a receive ends, all data before
//! it is present.

use super::super::core::NewSnapshot;
use super::super::drive::Drive;
use super::super::log::records::Found;
use super::super::maintenance::{Resize, SnapshotInfo};
use super::super::operations::Differences;
use super::reader::TransferReader;
use crate::base::units::{BLOCK_BYTES, buffer_bytes};
use crate::base::{Error, ErrorKind, Remedy, Result, ensure};
use crate::codec::{Codec, Decompressor, Encoding, FrameForm};
use crate::format::{FRAME_BLOCKS_MAX, Receiving, Record, TransferHead};

/// Bytes of a transfer after which the superblocks record its progress: the maximum that is sent
/// again after a crash. Four writes and two syncs cost little in comparison.
const NOTE_BYTES: u64 = 128 << 20;

/// The relation of a drive to a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// The drive contains a part of the snapshot; the transfer continues.
    Part,
    /// The disk has no data, and the transfer is a whole disk.
    Empty,
    /// The newest snapshot, with this name, is the base. Whether the disk was changed since must be
    /// compared.
    Base(String),
}

/// A snapshot being received.
pub struct Receive<'a> {
    drive: &'a Drive,
    reader: TransferReader,
    name: String,
    decompressor: Decompressor,
    frame: Vec<u8>,
    /// Whether frames with the sender's codec are stored as they are.
    keeps_frames: bool,
    /// The byte of the disk up to which records were applied.
    offset: u64,
    /// Whether a batch was not applied as a whole, so that the next one would leave a hole.
    has_failed: bool,
    /// Bytes of the transfer that the superblocks record.
    noted_bytes: u64,
}

impl Drive {
    /// Returns the relation of this drive to a transfer whose snapshot will have a given name here.
    /// Changes nothing.
    ///
    /// # Errors
    /// `AlreadyExists` if the drive has the snapshot, or one with that name; `InvalidInput`,
    /// stating the required drive or state, if the transfer is for another drive or another state
    /// of this one.
    pub async fn check_transfer(&self, head: &TransferHead, name: &str) -> Result<Received> {
        let snapshots = self.snapshots();
        if let Some(same) = snapshots.iter().find(|info| info.guid == head.snapshot) {
            let what = format!("the drive has this snapshot already: it is named {}", same.name);
            return Err(Error::new(ErrorKind::AlreadyExists, what));
        }
        if snapshots.iter().any(|info| info.name == name) {
            let what = format!(
                "the drive has another snapshot named {name}: give the new one another name"
            );
            return Err(Error::new(ErrorKind::AlreadyExists, what));
        }
        let invalid = |what: String| Error::new(ErrorKind::InvalidInput, what);
        if self.origin().is_some() {
            let what = "a clone does not receive: flatten it to make it independent first";
            return Err(invalid(what.into()));
        }
        if head.size_bytes < self.size_bytes() {
            return Err(invalid(format!(
                "the disk of the snapshot has {} bytes, this one {}: a disk cannot shrink",
                head.size_bytes,
                self.size_bytes()
            )));
        }
        let base = head.base.as_ref();
        if let Some(part) = self.partial_receive() {
            let is_same = part.snapshot == head.snapshot
                && part.base == base.map(|base| base.snapshot)
                && head.start <= part.offset;
            return is_same.then_some(Received::Part).ok_or_else(|| {
                let what = format!(
                    "the disk holds a part of the snapshot with identity {}, which this transfer \
                     does not continue",
                    part.snapshot
                );
                invalid(what).with_remedy(Remedy::Resume)
            });
        }
        if head.start > 0 {
            let what = "the transfer continues another one, which this drive has not begun to \
                        receive: send it from the beginning";
            return Err(invalid(what.into()));
        }
        let Some(base) = base else {
            if Differences::new(self, None, 0).next().await?.is_some() {
                let what = "the transfer is a whole disk, and this disk has data already: receive \
                            it to a new drive, or send the changes since a snapshot that is here";
                return Err(invalid(what.into()));
            }
            return Ok(Received::Empty);
        };
        match snapshots.last() {
            Some(newest) if newest.guid == base.snapshot && newest.is_bookmark => {
                Err(invalid(format!(
                    "the transfer adds to snapshot {}, but this drive has only a bookmark of it",
                    base.name
                )))
            }
            Some(newest) if newest.guid == base.snapshot => Ok(Received::Base(newest.name.clone())),
            newest => Err(invalid(format!(
                "the transfer adds to snapshot {} ({}), which {}",
                base.name,
                base.snapshot,
                match newest {
                    None => "this drive does not have: it has no snapshots".to_owned(),
                    Some(newest) => format!("is not the newest here, which is {}", newest.name),
                }
            ))),
        }
    }
}

impl<'a> Receive<'a> {
    /// Prepares to receive onto a drive that [`Drive::check_transfer`] has accepted. The snapshot
    /// will be named `name`. Nothing is changed yet.
    pub fn new(drive: &'a Drive, reader: TransferReader, name: String) -> Self {
        let head = reader.head();
        let codec = Codec::from_format(head.codec, head.codec_level);
        let has_chunks = drive.core().superblock().has_chunks;
        let keeps_frames = drive.codec.get() == codec && has_chunks == head.has_chunks;
        let frame = vec![0; usize::from(FRAME_BLOCKS_MAX) * BLOCK_BYTES];
        let decompressor = Decompressor::new();
        let (offset, noted_bytes) = (head.start, reader.bytes());
        Self {
            drive,
            reader,
            name,
            decompressor,
            frame,
            keeps_frames,
            offset,
            has_failed: false,
            noted_bytes,
        }
    }

    /// Applies the next batch. Returns whether it was the end. When the first batch is found
    /// intact, the disk is marked as a part of the snapshot, durably, and enlarged to its size.
    ///
    /// # Errors
    /// `Corrupt` if the transfer is damaged: nothing of the batch was applied or, if a frame does
    /// not decode, only the records before it. Otherwise the errors of [`Drive::write`].
    /// `InvalidInput` after a batch that was not applied as a whole.
    pub async fn apply(&mut self, batch: &[u8]) -> Result<bool> {
        let what = "the transfer has failed: its next batch would leave a gap";
        ensure(!self.has_failed, ErrorKind::InvalidInput, what)?;
        let batch = self.reader.take(batch)?;
        self.has_failed = true;
        self.mark().await?;
        for found in batch.records() {
            self.apply_record(&found).await?;
            let (lba, count) = found.record.lba_range();
            let end = (lba.0 + count) * BLOCK_BYTES as u64;
            assert!(end >= self.offset, "records are applied in the order of the disk");
            self.offset = end;
        }
        self.has_failed = false;
        // Work that long trims have left.
        self.drive.with_core(|core| core.reap());
        if self.reader.bytes() - self.noted_bytes >= NOTE_BYTES {
            self.note().await?;
        }
        Ok(self.reader.has_ended())
    }

    /// Marks the disk as a part of the snapshot and enlarges it, unless that was already done.
    async fn mark(&self) -> Result<()> {
        let (drive, head) = (self.drive, self.reader.head());
        if drive.partial_receive().is_none() {
            drive.note_receiving(head, head.start).await?;
        }
        if head.size_bytes > drive.size_bytes() {
            let size_bytes = Some(head.size_bytes);
            drive.resize_even_a_part(Resize { size_bytes, capacity_bytes: None }).await?;
        }
        Ok(())
    }

    async fn apply_record(&mut self, found: &Found<'_>) -> Result<()> {
        let Record::Data { .. } = found.record else {
            return self.drive.append_uniform(&found.record).await;
        };
        let (encoding, raw) = decode(&mut self.decompressor, found, &mut self.frame)?;
        let (lba, _) = found.record.lba_range();
        if self.keeps_frames && is_of(encoding, self.drive.codec.get(), self.drive.form) {
            self.drive.write_encoded(lba, raw, encoding, found.payload()).await
        } else {
            self.drive.write(lba.0 * BLOCK_BYTES as u64, raw).await
        }
    }

    /// Returns the byte of the disk up to which the transfer was applied.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the number of bytes of the batches so far.
    pub fn bytes(&self) -> u64 {
        self.reader.bytes()
    }

    /// Makes the applied records durable and records the progress, also after an error. Before the
    /// first batch there is nothing to record.
    ///
    /// # Errors
    /// `Poisoned`, `Medium` or `NoSpace`.
    pub async fn note(&mut self) -> Result<()> {
        self.drive.flush().await?;
        // A transfer that is sent again may have begun before the recorded offset.
        if self.drive.partial_receive().is_some_and(|part| part.offset < self.offset) {
            self.drive.note_receiving(self.reader.head(), self.offset).await?;
        }
        self.noted_bytes = self.reader.bytes();
        Ok(())
    }

    /// Takes the snapshot, with the sender's identity and time. When this returns, the snapshot is
    /// durable, and the disk is whole.
    ///
    /// # Errors
    /// `InvalidInput` before the end of the transfer; the errors of [`Drive::create_snapshot`].
    pub async fn end(self) -> Result<SnapshotInfo> {
        let is_whole = self.reader.has_ended() && !self.has_failed;
        ensure(is_whole, ErrorKind::InvalidInput, "the transfer has not ended")?;
        let TransferHead { snapshot: guid, created_seconds, .. } = *self.reader.head();
        let new = NewSnapshot { name: self.name, guid, created_seconds, yields: false };
        self.drive.create_snapshot(new).await
    }
}

impl Drive {
    /// Marks the disk, durably, as a part of a snapshot, with whose content it agrees up to
    /// `offset`.
    async fn note_receiving(&self, head: &TransferHead, offset: u64) -> Result<()> {
        let base = head.base.as_ref().map(|base| base.snapshot);
        let receiving = Receiving { snapshot: head.snapshot, base, offset };
        let _turn = self.turn().await;
        self.core().log().check_poison()?;
        self.update_superblocks(|superblock| superblock.receiving = Some(receiving)).await
    }
}

/// Decodes a frame to the start of `frame`.
///
/// # Errors
/// `Corrupt`.
fn decode<'f>(
    decompressor: &mut Decompressor,
    found: &Found<'_>,
    frame: &'f mut [u8],
) -> Result<(Encoding, &'f [u8])> {
    let wrong = |what| Error::new(ErrorKind::Corrupt, what);
    let Record::Data { encoding, .. } = found.record else {
        return Err(wrong("a record of the transfer is not a frame"));
    };
    let encoding = Encoding::from_u8(encoding);
    let encoding =
        encoding.ok_or_else(|| wrong("a frame of the transfer has an unknown encoding"))?;
    let (lba, blocks) = found.record.lba_range();
    let (frame, _) = frame.split_at_mut(buffer_bytes(blocks));
    decompressor.decompress(encoding, found.payload(), frame).map_err(|error| error.at_lba(lba))?;
    Ok((encoding, frame))
}

/// Returns whether an encoding is permitted for the codec and the form of frames of a drive. A
/// clone that is sent may have other encodings from its origin.
fn is_of(encoding: Encoding, codec: Codec, form: FrameForm) -> bool {
    match encoding {
        Encoding::Store => true,
        Encoding::Chunks => form == FrameForm::Chunks,
        Encoding::Lz4 => codec == Codec::Lz4,
        Encoding::Zstd => matches!(codec, Codec::Zstd { .. }),
        Encoding::Lost => false,
    }
}

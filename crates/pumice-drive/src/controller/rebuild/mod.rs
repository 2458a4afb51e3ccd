//! Making a working drive from the remains of a damaged one.
//!
//! ```text
//! superblocks, else segment headers -> identity and shape of the drive
//! its own superblock | a checkpoint found in the segments | the log from its first batch
//!                    -> the drive as it was, opened read-only
//! all of them fail   -> the newest version of each block in the records of all segments
//! either             -> parts of the disk, written to a new drive as a host would
//! ```
//!
//! In every case frames are verified, and nothing older is returned if the newest version of a
//! block is known and damaged. Facts that cannot be known from records alone are reported: trims
//! and fills whose records are lost (garbage collection does not move them: the map contains them),
//! and the blocks after a damaged header.
//!
//! This module never writes to the medium it reads: everything is opened read-only.

#![warn(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::indexing_slicing
)]

mod find;
mod salvage;
mod survey;
mod versions;

use std::rc::Rc;
use uuid::Uuid;

pub use find::Finder;
use salvage::Salvage;
use survey::Survey;

use super::Locked;
use super::core::SEGMENTS_MIN;
use super::create::{Spec, create_as};
use super::drive::Drive;
use super::drive::superblocks::{self, StoredSuperblock, geometry};
use super::inspect::{Extract, Extracted, Problem};
use super::operations::Allocation;
use super::options::OpenOptions;
use super::recovery::{Limits, Reader};
use crate::base::clock::AnyClock;
use crate::base::units::BLOCK_BYTES;
use crate::base::{Error, ErrorKind, Result, SeqNo};
use crate::codec::{Codec, FrameForm};
use crate::format::{CheckpointAddress, DriveShape, KeySlot, Superblock, chain_start};
use crate::media::AnyMedium;

/// Bytes of a fill written in one request.
const FILL_BYTES: usize = 1 << 20;

/// The properties of a drive that are needed to read its segments.
#[derive(Clone, Debug)]
pub struct Identity {
    pub(crate) uuid: Uuid,
    pub(crate) shape: DriveShape,
    /// The superblock, if one is whole.
    superblock: Option<StoredSuperblock>,
    /// For an encrypted drive without a superblock, the key slot that segment headers repeat.
    recovery: Option<KeySlot>,
}

impl Identity {
    /// Returns the drive that a superblock of the medium describes; `None` if both are lost.
    ///
    /// # Errors
    /// `Unsupported` if a newer version wrote one; `PermissionDenied` without the drive's key;
    /// `Corrupt` for an incomplete rebuild.
    pub async fn of_superblocks(medium: &dyn AnyMedium) -> Result<Option<Self>> {
        match superblocks::load_any(medium).await {
            // The source of such a drive has the data that it lacks.
            Ok(loaded) if loaded.stored.superblock.incomplete => {
                superblocks::load(medium).await.map(|_| None)
            }
            Ok(loaded) => Ok(Some(Self {
                uuid: loaded.stored.superblock.uuid,
                shape: loaded.stored.superblock.shape(),
                superblock: Some(loaded.stored),
                recovery: None,
            })),
            Err(error)
                if matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::PermissionDenied) =>
            {
                Err(error)
            }
            Err(_) => Ok(None),
        }
    }

    /// Returns the drive that segment headers describe.
    ///
    /// # Errors
    /// `Corrupt` if such a drive is impossible.
    fn new(uuid: Uuid, shape: DriveShape) -> Result<Self> {
        let identity = Self { uuid, shape, superblock: None, recovery: None };
        match identity.superblock_for(None, SeqNo(0)).impossible() {
            None => Ok(identity),
            Some(what) => Err(Error::new(ErrorKind::Corrupt, what)),
        }
    }

    /// Returns the part of an encrypted drive without a superblock that the recovery code unlocks.
    pub fn locked(&self) -> Option<Locked> {
        Some(Locked::by_recovery(self.uuid, self.recovery.clone()?))
    }

    /// Returns the drive's uuid.
    pub fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// Returns the size of the host's disk in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.shape.size_bytes
    }

    /// Returns a new drive of the same size and geometry, with `codec` or else the same codec if it
    /// is known, and the same form of frames.
    pub fn spec(&self, uuid: Uuid, codec: Option<Codec>) -> Spec {
        let old = self.superblock.as_ref().map(|known| &known.superblock);
        let known = old.map(|old| Codec::from_format(old.codec, old.codec_level));
        let segment_count = self.shape.segment_count.max(SEGMENTS_MIN);
        let capacity = u64::from(self.shape.segment_bytes) * u64::from(segment_count);
        let codec = codec.or(known).unwrap_or(Codec::Lz4);
        Spec {
            // Only the snapshots of a flattened clone read from the origin, and they are not
            // rebuilt.
            origin: old.filter(|old| old.flat_since == SeqNo(0)).and_then(|old| old.origin.clone()),
            capacity_bytes: Some(capacity),
            segment_bytes: self.shape.segment_bytes,
            frame_blocks: self.shape.frame_blocks,
            codec,
            frame_form: FrameForm::from_format(old.is_some_and(|old| old.has_chunks)),
            ..Spec::new(uuid, self.shape.size_bytes)
        }
    }

    fn blocks(&self) -> u64 {
        self.shape.size_bytes / BLOCK_BYTES as u64
    }

    /// Returns a superblock that names a checkpoint, and declares everything up to `watermark`
    /// durable.
    fn superblock_for(
        &self,
        checkpoint: Option<CheckpointAddress>,
        watermark: SeqNo,
    ) -> Superblock {
        Superblock {
            uuid: self.uuid,
            revision: 0,
            epoch: 0,
            clean: false,
            incomplete: false,
            size_bytes: self.shape.size_bytes,
            segment_bytes: self.shape.segment_bytes,
            segment_count: self.shape.segment_count,
            data_offset: self.shape.data_offset,
            created_seconds: 0,
            frame_blocks: self.shape.frame_blocks,
            codec: 0,
            codec_level: 0,
            watermark,
            watermark_checksum: chain_start(self.uuid),
            checkpoint,
            warn_percent: [0; 4],
            is_preallocated: false,
            has_chunks: false,
            // Nothing is written that could use the space that snapshots need.
            has_snapshots: false,
            receiving: None,
            origin: None,
            flat_since: SeqNo(0),
            has_clones: false,
            keys: self.superblock.as_ref().and_then(|known| known.superblock.keys.clone()),
            is_array: false,
            bad_segments: Vec::new(),
            // Without them the log seems to end where a stream left a bad segment.
            detours: self
                .superblock
                .as_ref()
                .map_or(Vec::new(), |known| known.superblock.detours.clone()),
        }
    }
}

/// The source from which a disk is rebuilt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RebuiltFrom {
    /// The drive opens as it is.
    Superblock,
    /// A checkpoint and the subsequent log: the disk is as it was, if there are no
    /// [`DamagedDrive::problems`].
    Checkpoint,
    /// The whole log, starting at its first batch: the disk is as it was, if there are no
    /// [`DamagedDrive::problems`].
    Log,
    /// The records of all segments; [`DamagedDrive::problems`] lists changes that they do not show.
    Records,
}

/// The remains of a drive, on a medium that is only read.
pub struct DamagedDrive(Inside, RebuiltFrom);

enum Inside {
    /// A drive that opened, and the changes that the log does not show.
    Drive(Box<Drive>, Vec<Problem>),
    Records(Box<Salvage>),
}

/// The parts of a damaged drive's disk, in order.
pub enum Parts<'s> {
    /// From a drive that could be opened.
    Drive(Extract<'s>),
    /// From records alone.
    Records(PartsOfRecords<'s>),
}

/// Parts from records alone.
pub struct PartsOfRecords<'s>(&'s mut Salvage);

impl DamagedDrive {
    /// Finds the best source of the medium's data. Reads all segments, unless the superblock is
    /// whole and the drive opens.
    ///
    /// # Errors
    /// `InvalidInput` if the medium is smaller than the drive.
    pub async fn open(
        medium: Rc<dyn AnyMedium>,
        clock: Rc<dyn AnyClock>,
        identity: Identity,
    ) -> Result<Self> {
        let mut durable = SeqNo(0);
        medium.set_geometry(geometry(&identity.superblock_for(None, durable)))?;
        let attempt = |stored| try_open(medium.clone(), clock.clone(), stored);
        let guess = |superblock| StoredSuperblock { superblock, slot: 0 };
        if let Some(stored) = identity.superblock.clone() {
            durable = stored.superblock.watermark;
            if let Some(drive) = attempt(stored).await {
                return Ok(Self(
                    Inside::Drive(Box::new(drive), Vec::new()),
                    RebuiltFrom::Superblock,
                ));
            }
        }
        let mut survey = Survey::of(&*medium, &identity, durable).await;
        let rolled_back = last_rollback(&*medium, &identity, &survey).await;
        let from = |seq| (seq <= rolled_back && rolled_back > SeqNo(0)).then(over_a_rollback);
        for &(seq, root) in &survey.roots {
            // A root counts only if all earlier batches exist, since they contain its leaves.
            let watermark = survey.watermark.max(seq);
            let superblock = identity.superblock_for(Some(root), watermark);
            if let Some(drive) = attempt(guess(superblock)).await {
                let problems = from(seq).into_iter().collect();
                return Ok(Self(Inside::Drive(Box::new(drive), problems), RebuiltFrom::Checkpoint));
            }
        }
        if survey.has_first_batch() {
            let superblock = identity.superblock_for(None, survey.watermark);
            if let Some(drive) = attempt(guess(superblock)).await {
                let problems = from(SeqNo(0)).into_iter().collect();
                return Ok(Self(Inside::Drive(Box::new(drive), problems), RebuiltFrom::Log));
            }
        }
        if let Some(Problem { what, .. }) = from(SeqNo(0)) {
            survey.add_problem(None, what);
        }
        let salvage = Salvage::new(medium, identity, survey);
        Ok(Self(Inside::Records(Box::new(salvage)), RebuiltFrom::Records))
    }

    /// Returns the source from which the disk is rebuilt.
    pub fn rebuilt_from(&self) -> RebuiltFrom {
        self.1
    }

    /// Returns the parts of the disk from its beginning.
    pub fn parts(&mut self) -> Parts<'_> {
        match &mut self.0 {
            // The target is a clone with the same origin.
            Inside::Drive(drive, _) => Parts::Drive(Extract::of_itself(drive)),
            Inside::Records(salvage) => Parts::Records(PartsOfRecords(salvage)),
        }
    }

    /// Returns damage that may have cost more than the blocks reported as lost, and changes that
    /// the log does not show, such as a rollback, and the number of all problems. Known when all
    /// parts have been returned.
    pub fn problems(&self) -> (&[Problem], u64) {
        match &self.0 {
            Inside::Drive(_, problems) => (problems, problems.len() as u64),
            Inside::Records(salvage) => (&salvage.survey.problems, salvage.survey.problem_count),
        }
    }

    /// Returns the maximum number of blocks that may have been trimmed, or filled with one byte,
    /// before the drive was lost: their content is older than a lost batch. Known when all parts
    /// have been returned.
    pub fn doubtful_blocks(&self) -> u64 {
        match &self.0 {
            Inside::Drive(..) => 0,
            Inside::Records(salvage) => salvage.doubtful_blocks,
        }
    }

    /// Returns the runs of missing batches: the numbers of the first and the last. Garbage
    /// collection frees batches whose blocks were moved or overwritten; other batches were lost
    /// with all their content.
    pub fn missing_batches(&self) -> Vec<(u64, u64)> {
        match &self.0 {
            Inside::Drive(..) => Vec::new(),
            Inside::Records(salvage) => salvage.survey.missing(),
        }
    }

    /// Returns whether batches are missing without a trace: blocks without any record may have been
    /// filled with one byte.
    pub fn has_missing_batches(&self) -> bool {
        match &self.0 {
            Inside::Drive(..) => false,
            Inside::Records(salvage) => salvage.survey.last_missing() > SeqNo(0),
        }
    }

    /// Returns whether batches were omitted because an earlier batch is missing: they were never
    /// flushed.
    pub fn has_cut_batches(&self) -> bool {
        match &self.0 {
            Inside::Drive(..) => false,
            Inside::Records(salvage) => salvage.survey.has_batches_after_the_end(),
        }
    }
}

impl Parts<'_> {
    /// Returns the next part of the disk; `None` at its end.
    pub async fn next(&mut self) -> Option<Extracted<'_>> {
        match self {
            Self::Drive(extract) => extract.next().await,
            Self::Records(records) => records.0.next().await,
        }
    }

    /// Returns the byte up to which the disk has been read.
    pub fn offset(&self) -> u64 {
        match self {
            Self::Drive(extract) => extract.offset(),
            Self::Records(records) => records.0.offset(),
        }
    }
}

/// Opens a drive as a superblock describes it, if that succeeds and all of its map can be read.
async fn try_open(
    medium: Rc<dyn AnyMedium>,
    clock: Rc<dyn AnyClock>,
    stored: StoredSuperblock,
) -> Option<Drive> {
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let limits = Limits::for_rescue();
    let opened = Drive::open_as(medium, clock, options, limits, stored).await;
    let drive = opened.inspect_err(say_refused).ok()?;
    if drive.core().has_lost_waiting() {
        // The records may contain more.
        tracing::warn!("a leaf of the map that the log changes is damaged");
        return None;
    }
    let mut next = drive.core().map().next_mapped_leaf(0);
    while let Some(leaf) = next {
        drive.load_leaf(leaf).await.inspect_err(say_refused).ok()?;
        next = drive.core().map().next_mapped_leaf(leaf + 1);
    }
    Some(drive)
}

/// Returns the last batch before the disk was last rolled back to a snapshot, according to the
/// newest checkpoint that can be read; 0 if it never was.
async fn last_rollback(medium: &dyn AnyMedium, identity: &Identity, survey: &Survey) -> SeqNo {
    for &(seq, place) in &survey.roots {
        let superblock = identity.superblock_for(Some(place), seq);
        if let Ok(root) = Reader::new(medium, &superblock).any_root(&place).await {
            return root.rolled_back;
        }
    }
    SeqNo(0)
}

fn over_a_rollback() -> Problem {
    let what = "the disk was rolled back to a snapshot, and the remaining log does not show that: \
                blocks may hold data from before the rollback";
    Problem { what: what.to_owned(), segment: None, lba: None, lba_count: None }
}

fn say_refused(error: &Error) {
    tracing::warn!(error = %error.chain(), "cannot rebuild from this source");
}

/// Creates the drive on which a disk is rebuilt, like [`create()`](super::create()). The drive is
/// marked as incomplete until [`complete_target`], and only [`Drive::open_target`] opens it. A
/// rebuild that ends early therefore leaves nothing that looks whole.
///
/// # Errors
/// The errors of [`create()`](super::create()).
pub async fn create_target(medium: &dyn AnyMedium, spec: &Spec) -> Result<()> {
    create_as(medium, spec, true).await
}

/// Marks a drive, which must have been closed cleanly, as complete. The mark is durable when this
/// returns.
///
/// # Errors
/// `NotADrive`, `Unsupported`, `Corrupt` or `Medium`.
pub async fn complete_target(medium: &dyn AnyMedium) -> Result<()> {
    let StoredSuperblock { mut superblock, mut slot } = superblocks::load_any(medium).await?.stored;
    (superblock.incomplete, superblock.clean) = (false, true);
    for _ in 0..2 {
        slot = 1 - slot;
        superblocks::store_next(medium, slot, &mut superblock).await?;
        medium.sync().await?;
    }
    Ok(())
}

/// Writes a part of a disk to a new drive, as a host would.
///
/// # Errors
/// The errors of [`Drive::write`].
pub async fn copy_into(part: &Extracted<'_>, target: &Drive) -> Result<()> {
    match part {
        Extracted::Data { offset, bytes } => target.write(*offset, bytes).await,
        Extracted::Fill { offset, len, byte: 0 } => {
            target.write_zeroes(*offset, *len, Allocation::Keep).await
        }
        Extracted::Fill { offset, len, byte } => {
            let longest = usize::try_from(*len).unwrap_or(usize::MAX);
            let bytes = vec![*byte; FILL_BYTES.min(longest)];
            let mut at = 0;
            while at < *len {
                let rest = usize::try_from(len - at).unwrap_or(usize::MAX);
                let piece = bytes.get(..rest).unwrap_or(&bytes);
                target.write(offset + at, piece).await?;
                at += piece.len() as u64;
            }
            Ok(())
        }
        // A hole of a clone would read the origin's content.
        Extracted::Lost(Problem { lba: Some(lba), lba_count: Some(count), .. })
            if target.origin().is_some() =>
        {
            let block = BLOCK_BYTES as u64;
            target.write_zeroes(lba * block, count * block, Allocation::Keep).await
        }
        Extracted::Lost(_) => Ok(()),
    }
}

fn problem(error: &Error) -> Problem {
    let segment = error.segment().map(|segment| segment.0);
    Problem { what: error.chain(), segment, lba: None, lba_count: None }
}

//! Creating a new drive on a medium.

#![warn(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::indexing_slicing
)]

use uuid::Uuid;

use super::core::{SEGMENTS_MIN, WARN_THRESHOLDS_MAX, meta_segments, usable_segment_bytes};
use super::drive::superblocks::{geometry, store};
use super::options::MAP_CACHE_BYTES_DEFAULT;
use crate::base::units::{BLOCK_BYTES, format_size};
use crate::base::{Error, ErrorKind, Result, SeqNo};
use crate::codec::{self, Codec, FrameForm};
use crate::crypt::SEAL_BYTES;
use crate::format::{
    CHUNKED_BLOCKS_MAX, DriveShape, KeyArea, LEAF_BLOCKS, Origin, RECORD_HEADER_BYTES,
    SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, SEGMENTS_MAX, SIZE_BYTES_MAX, SOURCE_BYTES, Superblock,
    chain_start, leaf_bytes_max,
};
use crate::media::{AnyMedium, Geometry, SUPERBLOCK_SLOTS};

/// Default bytes of a segment. Large enough that a discard or an erase block is small in
/// comparison, small enough that relocating one takes a fraction of a second.
pub const SEGMENT_BYTES_DEFAULT: u32 = 32 << 20;

/// Default number of blocks in a frame: see "Frame sizes" in `docs/bench.md` for the measurements.
pub const FRAME_BLOCKS_DEFAULT: u16 = 8;

/// Byte offset of segment 0: after both superblock slots, aligned to 2 MiB.
pub const DATA_OFFSET: u64 = 2 << 20;

/// Default over-provisioning in percent of the size, between the 7 % and 28 % of commercial drives;
/// uniform random writes of incompressible data then cost a write amplification of 4.85
/// (Xiang-Kurkoski), and compressible data far less.
pub const OVER_PROVISIONING_PERCENT_DEFAULT: u32 = 12;

/// Properties of a new drive. Later versions may add fields: set the fields that differ, and use
/// struct update with [`Spec::new`] for the rest.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Identity; drawn at random by the caller.
    pub uuid: Uuid,
    /// Seconds since 1970; information only.
    pub created_seconds: u64,
    /// Size of the host's disk in bytes: a multiple of 4096.
    pub size_bytes: u64,
    /// Bytes for the log; `None` selects the size plus over-provisioning and overhead.
    pub capacity_bytes: Option<u64>,
    /// If the capacity is not set: the bytes to add to the size of the incompressible disk and its
    /// overhead, in percent of the disk's size.
    pub over_provisioning_percent: u32,
    /// Bytes of a segment: a multiple of 4096 from 4 MiB to 1 GiB.
    pub segment_bytes: u32,
    /// Maximum number of blocks of a frame: a power of two up to 64.
    pub frame_blocks: u16,
    /// Codec for new data.
    pub codec: Codec,
    /// The form of frames. The frames of an encrypted drive, and of a drive with more than 8 blocks
    /// in a frame, are always solid.
    pub frame_form: FrameForm,
    /// Shares of the capacity in use, in percent, that cause a warning; 0 disables a threshold.
    pub warn_percent: [u8; WARN_THRESHOLDS_MAX],
    /// Reserve space for all segments on the medium, and never return it.
    pub preallocated: bool,
    /// For a clone, the origin from which its holes read; see
    /// [`Drive::set_origin`](super::Drive::set_origin).
    pub origin: Option<Origin>,
    /// For an encrypted drive, its keys, as drawn by [`super::new_keys`]; the medium then has their
    /// cipher.
    pub keys: Option<KeyArea>,
}

const _: () = assert!(
    CHUNKED_BLOCKS_MAX as usize == codec::CHUNKED_BLOCKS_MAX,
    "each frame of such a drive can be of chunks"
);

impl Spec {
    /// Returns a drive of `size_bytes` with defaults for the rest.
    pub fn new(uuid: Uuid, size_bytes: u64) -> Self {
        Self {
            uuid,
            created_seconds: 0,
            size_bytes,
            capacity_bytes: None,
            over_provisioning_percent: OVER_PROVISIONING_PERCENT_DEFAULT,
            segment_bytes: SEGMENT_BYTES_DEFAULT,
            frame_blocks: FRAME_BLOCKS_DEFAULT,
            codec: Codec::Lz4,
            frame_form: FrameForm::Chunks,
            warn_percent: WARN_PERCENT_DEFAULT,
            preallocated: false,
            origin: None,
            keys: None,
        }
    }

    /// Returns the division of the medium.
    ///
    /// # Errors
    /// `InvalidInput`, naming the impossible value and the remedy.
    pub fn geometry(&self) -> Result<Geometry> {
        Ok(geometry(&self.superblock()?))
    }

    fn check_size(&self) -> Result<()> {
        let invalid = |what: String| Error::new(ErrorKind::InvalidInput, what);
        let block = BLOCK_BYTES as u64;
        if self.size_bytes == 0 {
            return Err(invalid("invalid size 0: expected a size such as 64G".into()));
        }
        if self.size_bytes > SIZE_BYTES_MAX {
            return Err(invalid("the size must not be above 16 PiB".into()));
        }
        if !self.size_bytes.is_multiple_of(block) {
            let near = self.size_bytes.next_multiple_of(block);
            return Err(invalid(format!(
                "the size must be a multiple of 4 KiB: {} is not, {near} is",
                self.size_bytes
            )));
        }
        Ok(())
    }

    fn superblock(&self) -> Result<Superblock> {
        self.check_size()?;
        let invalid = |what: String| Error::new(ErrorKind::InvalidInput, what);
        if !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&self.segment_bytes)
            || !u64::from(self.segment_bytes).is_multiple_of(BLOCK_BYTES as u64)
        {
            return Err(invalid("a segment must be a multiple of 4 KiB from 4M to 1G".into()));
        }
        let segment_bytes = u64::from(self.segment_bytes);
        let capacity = self.capacity_bytes.unwrap_or_else(|| self.full_capacity_bytes());
        let segment_count = u32::try_from(capacity / segment_bytes).unwrap_or(u32::MAX);
        if segment_count < SEGMENTS_MIN {
            return Err(invalid(format!(
                "a capacity of {} is too small: it must hold {SEGMENTS_MIN} segments of {}",
                format_size(capacity),
                format_size(segment_bytes)
            )));
        }
        if segment_count > SEGMENTS_MAX {
            return Err(invalid(format!(
                "a capacity of {} is more than {SEGMENTS_MAX} segments: make them larger",
                format_size(capacity)
            )));
        }
        let (codec, codec_level) = self.codec.to_format();
        let superblock = Superblock {
            uuid: self.uuid,
            revision: 0,
            epoch: 0,
            clean: true,
            incomplete: false,
            size_bytes: self.size_bytes,
            segment_bytes: self.segment_bytes,
            segment_count,
            data_offset: DATA_OFFSET,
            created_seconds: self.created_seconds,
            frame_blocks: self.frame_blocks,
            codec,
            codec_level,
            watermark: SeqNo(0),
            watermark_checksum: chain_start(self.uuid),
            checkpoint: None,
            warn_percent: self.warn_percent,
            is_preallocated: self.preallocated,
            has_chunks: self.has_chunks(),
            has_snapshots: false,
            receiving: None,
            origin: self.origin.clone(),
            flat_since: SeqNo(0),
            has_clones: false,
            keys: self.keys.clone(),
            is_array: false,
            bad_segments: Vec::new(),
            detours: Vec::new(),
        };
        if let Some(what) = superblock.impossible() {
            return Err(invalid(what.into()));
        }
        superblock.check_invariants();
        assert!(
            geometry(&superblock).capacity_bytes() <= capacity,
            "the segments of a drive fit in its capacity"
        );
        Ok(superblock)
    }

    fn has_chunks(&self) -> bool {
        self.frame_form == FrameForm::Chunks
            && self.frame_blocks <= CHUNKED_BLOCKS_MAX
            && self.keys.is_none()
    }

    /// Returns the bytes of log that store the whole disk with incompressible data, written block
    /// by block, plus over-provisioning, in whole segments.
    fn full_capacity_bytes(&self) -> u64 {
        let segment_bytes = u64::from(self.segment_bytes);
        let usable = usable_segment_bytes(self.segment_bytes);
        let blocks = self.size_bytes / BLOCK_BYTES as u64;
        // Garbage collection adds a source to every frame that it moves. The map exists twice while
        // a checkpoint is written.
        let seal_bytes = if self.keys.is_some() { SEAL_BYTES } else { 0 };
        let overhead = RECORD_HEADER_BYTES + SOURCE_BYTES + seal_bytes;
        let stored = self.size_bytes + blocks * overhead as u64;
        let leaf_bytes = leaf_bytes_max(self.has_chunks());
        let map_bytes = 2 * blocks * (leaf_bytes as u64).div_ceil(LEAF_BLOCKS.into());
        let provisioned =
            stored + map_bytes + self.size_bytes / 100 * u64::from(self.over_provisioning_percent);
        let segments = provisioned.div_ceil(usable);
        let shape = DriveShape {
            size_bytes: self.size_bytes,
            segment_bytes: self.segment_bytes,
            segment_count: u32::try_from(segments).unwrap_or(u32::MAX),
            ..DriveShape::default()
        };
        let kept = meta_segments(&shape, leaf_bytes, MAP_CACHE_BYTES_DEFAULT);
        let capacity = (segments + u64::from(kept) + u64::from(SEGMENTS_MIN)) * segment_bytes;
        assert!(capacity >= self.size_bytes, "a full drive holds the whole disk");
        capacity
    }
}

/// Shares of the capacity in use, in percent, at which a drive warns by default.
const WARN_PERCENT_DEFAULT: [u8; WARN_THRESHOLDS_MAX] = [80, 90, 95, 0];

/// Writes an empty drive's superblocks and makes them durable. The medium's earlier content is
/// lost, though segments are not touched.
///
/// # Errors
/// `InvalidInput` for an impossible spec or a medium that is too small, `NoSpace` or `Unsupported`
/// if space cannot be reserved, before anything is written; `Medium`.
pub async fn create(medium: &dyn AnyMedium, spec: &Spec) -> Result<()> {
    create_as(medium, spec, false).await
}

/// Creates a drive, which is marked as incomplete if it is `incomplete`.
pub(super) async fn create_as(medium: &dyn AnyMedium, spec: &Spec, incomplete: bool) -> Result<()> {
    let is_array = medium.as_array().is_some();
    let mut superblock = Superblock { incomplete, is_array, ..spec.superblock()? };
    let cipher = medium.cipher();
    let has_its_keys =
        if spec.keys.is_some() { cipher.is_of(spec.uuid) } else { cipher.is_plain() };
    assert!(has_its_keys, "the medium of a new drive has the cipher of its keys");
    medium.set_geometry(geometry(&superblock))?;
    if superblock.is_preallocated {
        medium.reserve()?;
    }
    for slot in 0..SUPERBLOCK_SLOTS {
        superblock.revision += 1;
        store(medium, slot, &superblock).await?;
    }
    medium.sync().await
}

#[cfg(test)]
mod tests {
    //! Goal: impossible drives are refused with a hint, and a full drive's capacity covers it.
    use super::*;
    use crate::controller::log::packing::ATOMIC_WRITE_BYTES;
    use crate::format::FRAME_BLOCKS_MAX;

    /// The table in the documentation of the crate.
    #[test]
    fn documented_limits_match_the_constants() {
        let segment = [SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX, SEGMENT_BYTES_DEFAULT];
        let [least, most, default] = segment.map(|bytes| format_size(bytes.into()));
        let (block, disk) = (format_size(BLOCK_BYTES as u64), format_size(SIZE_BYTES_MAX));
        assert!(SEGMENTS_MAX.is_power_of_two());
        for row in [
            format!("| size of the disk | {block} to {disk}, a multiple of {block} |"),
            format!("| segment | {least} to {most}, {default} by default |"),
            format!("| segments | {SEGMENTS_MIN} to 2^{} |", SEGMENTS_MAX.ilog2()),
            format!(
                "| frame | 1 to {FRAME_BLOCKS_MAX} blocks of {block}, {FRAME_BLOCKS_DEFAULT} by \
                 default |"
            ),
            format!("| atomic write | {} |", format_size(ATOMIC_WRITE_BYTES as u64)),
        ] {
            assert!(include_str!("../lib.rs").contains(&row), "lib.rs has no row {row:?}");
        }
    }

    #[test]
    fn impossible_specs_are_refused() {
        let good = Spec::new(Uuid::nil(), 1 << 30);
        assert!(good.geometry().is_ok());
        for spec in [
            Spec { size_bytes: 0, ..good.clone() },
            Spec { size_bytes: 4097, ..good.clone() },
            Spec { size_bytes: 1 << 60, ..good.clone() },
            // Rounding these up, or adding anything to them, overflows.
            Spec { size_bytes: u64::MAX, ..good.clone() },
            Spec { size_bytes: u64::MAX - 4095, ..good.clone() },
            Spec { capacity_bytes: Some(u64::MAX), ..good.clone() },
            // The root of its checkpoint could not name all pieces of its table.
            Spec { capacity_bytes: Some(1 << 50), ..good.clone() },
            Spec { segment_bytes: 4096, ..good.clone() },
            Spec { segment_bytes: (32 << 20) + 1, ..good.clone() },
            Spec { capacity_bytes: Some(32 << 20), ..good.clone() },
            Spec { frame_blocks: 3, ..good.clone() },
        ] {
            assert_eq!(spec.geometry().unwrap_err().kind(), ErrorKind::InvalidInput, "{spec:?}");
        }
        let odd = Spec { size_bytes: 4097, ..good };
        assert!(odd.geometry().unwrap_err().to_string().contains("8192 is"));
    }

    #[test]
    fn a_full_drive_holds_its_size_and_the_over_provisioning() {
        for size in [1u64 << 20, 1 << 30, 64 << 30, 1 << 44] {
            let capacity = Spec::new(Uuid::nil(), size).geometry().unwrap().capacity_bytes();
            assert!(capacity as f64 > size as f64 * 1.12, "{size}: {capacity}");
            assert!((capacity as f64) < size as f64 * 1.2 + 500e6, "{size}: {capacity}");
        }
    }
}

//! The drive to create for the scanned data, as a `pumice create` command line.
//!
//! Every number is conservative. The capacity is sufficient for the data at the upper end of the
//! interval of its stored fraction, for the worst chunk size that a host's writes can cause, with
//! the default over-provisioning and the map of the whole disk.

use schemars::JsonSchema;
use serde::Serialize;
use uuid::Uuid;

use super::chunks::LOG_OVERHEAD;
use super::outcome::Outcome;
use pumice_drive::base::units::{BLOCK_BYTES, format_size, format_size_exact};
use pumice_drive::codec::Codec;
use pumice_drive::controller::{FRAME_BLOCKS_DEFAULT, Spec};
use pumice_drive::format::{LEAF_BLOCKS, leaf_bytes_max};

/// Sizes are multiples of this.
const MIB: u64 = 1 << 20;

/// Space for the metadata of ext4 around files, as a factor and in bytes: inode tables (1.6 %), 5 %
/// reserved for root, bitmaps and partly used blocks of folders; the journal of a small file
/// system. XFS needs less.
const FILE_SYSTEM_FACTOR: f64 = 1.15;
const FILE_SYSTEM_BYTES: u64 = 64 << 20;

/// File system space for each file in bytes: mkfs.ext4 creates one inode per 16 KiB.
const BYTES_PER_FILE: u64 = 18 << 10;

/// A drive for the scanned data.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Provision {
    /// Size of the disk in bytes: the size of the scanned image, device or export; otherwise enough
    /// for a file system with the scanned files.
    pub size_bytes: u64,
    /// Capacity in bytes, which is less than the size; `None` for the capacity required by
    /// incompressible data.
    pub capacity_bytes: Option<u64>,
    /// Codec.
    pub codec: String,
    /// The stored fraction that determines the capacity.
    pub stored: f64,
    /// The command line.
    pub command: String,
}

impl Provision {
    /// Returns the drive for the data of a complete scan; `None` if the scan does not represent all
    /// data.
    pub fn of(outcome: &Outcome) -> Option<Self> {
        if !outcome.is_known() || outcome.shard != "1/1" {
            return None;
        }
        let is_of_drive =
            |index: &usize| outcome.configs[*index].config.is_of_drive(&outcome.configs);
        // Without a choice, no configuration was fast enough, or too little data was compressed to
        // determine the speed.
        let rest = std::iter::once(outcome.main).chain(0..outcome.configs.len());
        let chosen = outcome.choice.as_ref().map(|(index, _)| *index);
        let chosen = chosen.or_else(|| rest.into_iter().find(is_of_drive));
        let config = outcome.configs[chosen?].config;
        let codec = config.codec.of_drive()?;
        let stored = stored_at_worst(outcome, codec)?;
        let size_bytes = size_bytes(outcome);
        let capacity_bytes = capacity_bytes(outcome, stored, size_bytes);
        let mut command = format!("pumice create drive.pumice --size {}", exact(size_bytes));
        if let Some(bytes) = capacity_bytes {
            command += &format!(" --capacity {}", exact(bytes));
        }
        command += &format!(" --codec {codec}");
        let codec = codec.to_string();
        Some(Self { size_bytes, capacity_bytes, codec, stored, command })
    }

    /// Describes the basis of the command line in a sentence.
    pub(super) fn words(&self) -> String {
        let Some(capacity) = self.capacity_bytes else {
            return format!(
                "A drive for this data has a disk of {}. Its log has room for all of the data \
                 uncompressed: a log that relies on compression would hardly be smaller.",
                format_size(self.size_bytes)
            );
        };
        format!(
            "A drive for this data has a disk of {} and a log of {}: room for the scanned data at \
             the upper end of the interval, however it is written ({:.3} stored), garbage \
             collection and the map. The log is smaller than the disk: once less compressible data \
             fills it, writes fail until the host trims.",
            format_size(self.size_bytes),
            format_size(capacity),
            self.stored
        )
    }
}

/// Returns a size in the form that the command line accepts.
fn exact(bytes: u64) -> String {
    format_size_exact(bytes).replace("iB", "").replace(' ', "")
}

/// Returns the largest upper end of the stored fraction with a codec, over all chunk sizes up to
/// the frame size, because small writes create small frames.
fn stored_at_worst(outcome: &Outcome, codec: Codec) -> Option<f64> {
    let most = u32::from(FRAME_BLOCKS_DEFAULT) * BLOCK_BYTES as u32;
    let same = outcome
        .configs
        .iter()
        .filter(|it| it.config.codec == codec.into() && it.config.chunk_bytes <= most);
    same.map(|it| it.drive.stored_high).reduce(f64::max)
}

/// Returns the size of the disk.
fn size_bytes(outcome: &Outcome) -> u64 {
    if outcome.is_disk() {
        // This includes blocks that could not be read.
        return (outcome.bytes + outcome.passed.hole_bytes).next_multiple_of(BLOCK_BYTES as u64);
    }
    let data = (outcome.bytes as f64 * FILE_SYSTEM_FACTOR) as u64;
    (data.max(outcome.files * BYTES_PER_FILE) + FILE_SYSTEM_BYTES).next_multiple_of(MIB)
}

/// Returns the capacity; `None` if it would be at least the size.
fn capacity_bytes(outcome: &Outcome, stored: f64, size_bytes: u64) -> Option<u64> {
    // The map grows with the disk. While a checkpoint is being written, it is stored twice.
    let blocks = size_bytes / BLOCK_BYTES as u64;
    let leaf_bytes = leaf_bytes_max(true) as u64;
    let map_bytes = 2 * blocks * leaf_bytes.div_ceil(LEAF_BLOCKS.into());
    // The metadata of a file system usually compresses well, but this is not certain.
    let added = if outcome.is_disk() { 0 } else { FILE_SYSTEM_BYTES };
    let data = outcome.bytes as f64 * (stored + LOG_OVERHEAD);
    let needed = (data as u64 + added + map_bytes).next_multiple_of(MIB);
    let capacity = Spec::new(Uuid::nil(), needed).geometry().ok()?.capacity_bytes();
    (capacity < size_bytes).then_some(capacity)
}

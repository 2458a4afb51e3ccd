//! Properties of an open drive: identity, geometry, counters, space, memory.

use serde::{Deserialize, Serialize};

use super::super::drive::superblocks::geometry;
use super::super::drive::{Drive, ScrubProgress};
use super::overview::Alert;
use crate::base::units::BLOCK_BYTES;
use crate::codec::Codec;
use crate::format::{Origin, Receiving};
use crate::media::array::ArrayInfo;
use crate::media::tier::Status;
use crate::media::{Copies, Remote};

/// A snapshot of a drive's properties. All sizes are in bytes; fields appear in JSON under these
/// names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Info {
    /// Identity.
    pub uuid: uuid::Uuid,
    /// Format version on the medium.
    pub format_version: u32,
    /// Seconds since 1970 when the drive was created; 0 if unknown.
    pub created_seconds: u64,
    /// Whether the drive was closed cleanly before this opening.
    pub was_clean: bool,
    /// Openings for writing so far.
    pub epoch: u32,
    /// Size of the host's disk.
    pub size_bytes: u64,
    /// Bytes of all segments.
    pub capacity_bytes: u64,
    /// (capacity - size) / size.
    pub over_provisioning: f64,
    /// Bytes of one segment.
    pub segment_bytes: u32,
    /// Number of segments.
    pub segment_count: u32,
    /// Segments that contain nothing.
    pub free_segments: u32,
    /// Segments in which an append failed. They are no longer written.
    #[serde(default)]
    pub bad_segments: Vec<u32>,
    /// Maximum number of blocks of a frame.
    pub frame_blocks: u16,
    /// Whether space for all segments is reserved on the medium.
    pub preallocated: bool,
    /// Whether new frames consist of chunks.
    #[serde(default)]
    pub has_chunks: bool,
    /// Whether everything on the medium is encrypted.
    #[serde(default)]
    pub encrypted: bool,
    /// Whether a key that was replaced is still in use: `pumice rekey` completes the replacement.
    #[serde(default)]
    pub has_earlier_key: bool,
    /// Codec for new data, as given to `create`.
    pub codec: String,
    /// Bytes the host wrote, over the drive's life.
    pub host_bytes: u64,
    /// Bytes of record headers and payloads written for them, over the drive's life.
    pub frame_bytes: u64,
    /// Bytes appended to the medium, over the drive's life.
    pub media_bytes: u64,
    /// frame_bytes / host_bytes; 0 before the first write.
    pub stored_fraction: f64,
    /// media_bytes / host_bytes; 0 before the first write.
    pub write_amplification: f64,
    /// Bytes of records that garbage collection moved, over the drive's life.
    pub moved_bytes: u64,
    /// Record bytes that the map or the newest checkpoint names.
    pub live_bytes: u64,
    /// Share of the space for data that is in use, in percent: 100 exactly while writes are
    /// refused.
    pub used_percent: f64,
    /// The thresholds, in percent, at which this opening warns; lowest first.
    #[serde(default)]
    pub warn_percent: Vec<u8>,
    /// The thresholds, in percent, that the share in use has reached; lowest first.
    pub warnings: Vec<u8>,
    /// The drive's problems, the worst first.
    pub alerts: Vec<Alert>,
    /// Number of snapshots.
    #[serde(default)]
    pub snapshots: u32,
    /// Bytes of segments that snapshots need and that are not live.
    #[serde(default)]
    pub snapshot_bytes: u64,
    /// Time at which the oldest snapshot was taken, in seconds since 1970.
    #[serde(default)]
    pub snapshot_oldest_seconds: Option<u64>,
    /// The snapshot of which the disk contains a part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receiving: Option<Partial>,
    /// For a clone, its origin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<OriginInfo>,
    /// Number of clones that read from snapshots.
    #[serde(default)]
    pub clones: u32,
    /// For a drive on several files or devices, their state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub array: Option<ArrayInfo>,
    /// For a drive in a bucket, the state of its journal relative to the bucket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bucket: Option<Status>,
    /// Bytes that the log occupies on the medium: whole segments, and the filled part of open ones.
    pub occupied_bytes: u64,
    /// Bytes of free segments that are kept on the medium, in addition to the bytes that the log
    /// occupies. They are kept because flushes into bytes that were written before take less time,
    /// or because space on the file system is low.
    #[serde(default)]
    pub warm_bytes: u64,
    /// Bytes left in the file system of a sparse file, if they are so few that they limit the drive
    /// in addition to its capacity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub low_room_bytes: Option<u64>,
    /// Bytes of the host's disk that contain data other than zeroes.
    pub mapped_bytes: u64,
    /// Whether the medium had no space for the newest batch: the file system of a sparse file is
    /// full. Writes and flushes fail with ENOSPC until space is available.
    #[serde(default)]
    pub medium_full: bool,
    /// The last batch of the log.
    pub sequence: u64,
    /// The last batch known to be durable.
    pub watermark: u64,
    /// Host reads, writes, flushes, trims and write-zeroes since the opening.
    pub operations: Operations,
    /// Progress of a scrub.
    #[serde(flatten)]
    pub scrub: ScrubProgress,
    /// Memory in use now.
    pub memory: Memory,
}

/// A part of a snapshot that a disk contains, for display.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Partial {
    /// Identity of the snapshot.
    pub snapshot: uuid::Uuid,
    /// Identity of the snapshot that was the disk's content before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<uuid::Uuid>,
    /// Byte of the disk up to which its content is the new one.
    pub offset: u64,
}

/// The origin of a clone, for display.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OriginInfo {
    /// Identity of the drive.
    pub drive: uuid::Uuid,
    /// Identity of its snapshot.
    pub snapshot: uuid::Uuid,
    /// Path of the drive when the clone was made, or the path given to `pumice set`.
    pub path: String,
    /// Bytes from the start of the disk that read from the snapshot until they are written.
    pub bytes: u64,
}

impl From<&Origin> for OriginInfo {
    fn from(origin: &Origin) -> Self {
        let &Origin { drive, snapshot, blocks, .. } = origin;
        Self { drive, snapshot, path: origin.path.clone(), bytes: blocks * BLOCK_BYTES as u64 }
    }
}

impl From<Receiving> for Partial {
    fn from(Receiving { snapshot, base, offset }: Receiving) -> Self {
        Self { snapshot, base, offset }
    }
}

/// Counters since the opening.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Operations {
    /// Host reads.
    pub reads: u64,
    /// Host writes.
    pub writes: u64,
    /// Flushes, and requests with FUA.
    pub flushes: u64,
    /// Trims and write-zeroes.
    pub trims: u64,
    /// Bytes the host read.
    pub host_read_bytes: u64,
    /// Bytes read from the medium for the host, both for its reads and for writes that cover a part
    /// of a block.
    pub media_read_bytes: u64,
    /// Blocks written as fills, without data.
    pub fill_blocks: u64,
    /// Partly written blocks, which were read and merged.
    pub merged_blocks: u64,
    /// Reads served from a frame decoded for an earlier read.
    pub frame_cache_hits: u64,
    /// Blocks of short reads served from the read cache.
    #[serde(default)]
    pub read_cache_hits: u64,
    /// Blocks of short reads that were read from the medium and decoded.
    #[serde(default)]
    pub read_cache_misses: u64,
    /// Bytes of `media_read_bytes` that were read ahead of sequential readers.
    #[serde(default)]
    pub read_ahead_bytes: u64,
    /// Bytes of frames read ahead and later requested.
    #[serde(default)]
    pub read_ahead_used_bytes: u64,
    /// Reads that failed because of damage.
    pub corrupt_reads: u64,
    /// Frames that were damaged, or could not be read, and were restored from parity for a read.
    #[serde(default)]
    pub restored_reads: u64,
    /// Bytes of the disk that were read in order, found scattered, and appended again in order.
    #[serde(default)]
    pub reordered_bytes: u64,
    /// Segments that garbage collection emptied.
    pub gc_victims: u64,
    /// Bytes of metadata records that checkpoints wrote.
    pub meta_bytes: u64,
    /// Checkpoints written.
    pub checkpoints: u64,
    /// Batches after the newest checkpoint that the opening read.
    pub recovered_batches: u64,
    /// Nanoseconds that the opening spent on checkpoint and log.
    pub recovery_ns: u64,
    /// Batches beyond the end of the log that the opening found and did not accept: the torn tail
    /// of a crash.
    pub cut_batches: u64,
    /// Bytes of these batches.
    pub cut_bytes: u64,
    /// Bytes beyond the end of the log that the opening could not read.
    pub cut_unreadable_bytes: u64,
    /// Look-ups and changes of the map that found their leaf in memory.
    pub map_hits: u64,
    /// Leaves of the map that had to be read.
    pub map_misses: u64,
    /// Leaves evicted for the map's budget.
    pub map_evictions: u64,
    /// Batches appended to the medium.
    pub batches: u64,
    /// Number of these batches that were durable without a sync.
    #[serde(default)]
    pub durable_appends: u64,
    /// Syncs of the medium.
    pub syncs: u64,
    /// Bytes of zeroes written to free segments, so that flushes into them take less time. Not
    /// counted as media bytes.
    #[serde(default)]
    pub zeroed_bytes: u64,
}

/// Bytes of memory in use, by owner.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Memory {
    /// The L2P: directory, leaves and the copies that a checkpoint has set aside.
    pub map_bytes: u64,
    /// The part of it used by leaves; the map cache is their budget.
    pub map_leaf_bytes: u64,
    /// Batch buffers.
    pub batch_bytes: u64,
    /// Read buffers, free and in use, and data that was read ahead.
    pub read_buffer_bytes: u64,
    /// Cached decoded frames.
    pub frame_cache_bytes: u64,
    /// The read cache, and the tables of block places.
    #[serde(default)]
    pub read_cache_bytes: u64,
    /// Budget of the read cache.
    #[serde(default)]
    pub read_cache_bytes_max: u64,
}

impl Drive {
    /// Returns the part of a snapshot that the disk contains, if it is not a whole disk.
    pub fn partial_receive(&self) -> Option<Partial> {
        self.core().superblock().receiving.map(Partial::from)
    }

    /// Returns a snapshot of the drive's properties.
    pub fn info(&self) -> Info {
        let core = &*self.core();
        let superblock = core.superblock();
        let totals = core.counters().totals();
        let capacity_bytes = geometry(superblock).capacity_bytes();
        let fraction = |bytes: u64| match totals.host_bytes {
            0 => 0.0,
            host_bytes => bytes as f64 / host_bytes as f64,
        };
        let space = core.space();
        let kept = core.snapshots().kept();
        let clones = kept.iter().map(|kept| kept.entry.clones.len());
        Info {
            uuid: superblock.uuid,
            format_version: crate::format::FORMAT_VERSION,
            created_seconds: superblock.created_seconds,
            was_clean: self.opened.was_clean,
            epoch: superblock.epoch,
            size_bytes: superblock.size_bytes,
            capacity_bytes,
            over_provisioning: (capacity_bytes as f64 - superblock.size_bytes as f64)
                / superblock.size_bytes as f64,
            segment_bytes: superblock.segment_bytes,
            segment_count: space.segment_count(),
            free_segments: space.all_free_count(),
            bad_segments: superblock.bad_segments.iter().map(|segment| segment.0).collect(),
            frame_blocks: superblock.frame_blocks,
            encrypted: superblock.keys.is_some(),
            has_earlier_key: superblock.keys.as_ref().is_some_and(|keys| keys.earlier.is_some()),
            preallocated: superblock.is_preallocated,
            has_chunks: superblock.has_chunks,
            codec: Codec::from_format(superblock.codec, superblock.codec_level).to_string(),
            host_bytes: totals.host_bytes,
            frame_bytes: totals.frame_bytes,
            media_bytes: totals.media_bytes,
            stored_fraction: fraction(totals.frame_bytes),
            write_amplification: fraction(totals.media_bytes),
            moved_bytes: totals.moved_bytes,
            live_bytes: space.live_bytes(),
            used_percent: self.used_percent(),
            warn_percent: self.thresholds(),
            warnings: self.warnings(),
            alerts: self.alerts(),
            snapshots: u32::try_from(kept.len()).unwrap_or(u32::MAX),
            snapshot_bytes: space.retained_dead_bytes(superblock.segment_bytes),
            snapshot_oldest_seconds: kept.first().map(|kept| kept.entry.created_seconds),
            receiving: superblock.receiving.map(Partial::from),
            origin: superblock.origin.as_ref().map(OriginInfo::from),
            clones: u32::try_from(clones.sum::<usize>()).unwrap_or(u32::MAX),
            array: self.medium().as_array().map(Copies::info),
            bucket: self.medium().as_remote().map(Remote::status),
            occupied_bytes: core.occupied().bytes,
            warm_bytes: core.warm_bytes(),
            low_room_bytes: core.reclaim().low_room(),
            mapped_bytes: core.map().mapped_blocks() * BLOCK_BYTES as u64,
            medium_full: core.log().is_medium_full(),
            sequence: core.log().sealed_seq().0,
            watermark: core.log().durable_seq().0,
            operations: self.operations(),
            scrub: self.scrub.get(),
            memory: self.memory(),
        }
    }

    fn operations(&self) -> Operations {
        let core = self.core();
        let counters = core.counters();
        let map = core.map().stats();
        Operations {
            gc_victims: core.reclaim().victims(),
            meta_bytes: counters.meta_bytes.get(),
            checkpoints: core.checkpoints().completed(),
            recovered_batches: self.opened.recovered_batches,
            recovery_ns: self.opened.recovery_ns,
            cut_batches: self.opened.cut.batches,
            cut_bytes: self.opened.cut.bytes,
            cut_unreadable_bytes: self.opened.cut.unreadable_bytes,
            map_hits: map.hits,
            map_misses: map.misses,
            map_evictions: map.evictions,
            reads: counters.reads.get(),
            writes: counters.writes.get(),
            flushes: counters.flushes.get(),
            trims: counters.trims.get(),
            host_read_bytes: counters.host_read_bytes.get(),
            media_read_bytes: counters.media_read_bytes.get(),
            fill_blocks: counters.fill_blocks.get(),
            merged_blocks: counters.merged_blocks.get(),
            frame_cache_hits: counters.frame_cache_hits.get(),
            read_cache_hits: self.read_cache.hits(),
            read_cache_misses: self.read_cache.misses(),
            read_ahead_bytes: self.ahead.read_bytes(),
            read_ahead_used_bytes: self.ahead.used_bytes(),
            corrupt_reads: counters.corrupt_reads.get(),
            restored_reads: counters.restored_reads.get(),
            reordered_bytes: counters.reordered_bytes.get(),
            batches: counters.batches.get(),
            durable_appends: counters.durable_appends.get(),
            syncs: counters.syncs.get(),
            zeroed_bytes: counters.zeroed_bytes.get(),
        }
    }

    fn memory(&self) -> Memory {
        let core = self.core();
        Memory {
            map_bytes: core.map().memory_bytes() as u64,
            map_leaf_bytes: core.map().resident_bytes() as u64,
            batch_bytes: core.log().memory_bytes() as u64,
            read_buffer_bytes: (self.buffers.memory_bytes() + self.ahead.memory_bytes()) as u64,
            frame_cache_bytes: self.cache.memory_bytes() as u64,
            read_cache_bytes: self.read_cache.memory_bytes() as u64,
            read_cache_bytes_max: self.options.read_cache_bytes as u64,
        }
    }
}

//! The segments reserved for each purpose, and the bytes of the map that may be dirty: arithmetic
//! on the shape of a drive.
//!
//! ```text
//! free segments, from the last one up:  checkpoints | trims | garbage collection | data
//! ```
//!
//! Data stops first; work that frees space continues.

use crate::base::units::{BLOCK_BYTES, len_usize};
use crate::format::{
    BATCH_HEADER_BYTES, DriveShape, LEAF_BLOCKS, SEGMENT_HEADER_BYTES, Stream, TableEntry,
};

use super::super::log::closing_bytes;
use super::super::log::packing::ATOMIC_WRITE_BYTES;

/// Segments reserved for garbage collection: the one that it writes to and the next one, so that a
/// victim can always be emptied.
const GC_SEGMENTS: u32 = 2;

/// Segments withheld from data so that trims and write-zeroes still find space when the log is
/// full: while one fills, the previous one, in which nothing is live, can be freed. A segment of 32
/// MiB has space for over a million of their records, or for 8,000 that are flushed individually.
pub(super) const TRIM_SEGMENTS: u32 = 2;

/// Segments withheld from data in addition to those for checkpoints.
pub(crate) const RESERVED_SEGMENTS: u32 = GC_SEGMENTS + TRIM_SEGMENTS;

/// Minimum number of segments of a drive: the one that each stream writes to, one for it to
/// continue in, the reserves, some for data, and one that may turn bad.
pub(crate) const SEGMENTS_MIN: u32 = 11;
const _: () = assert!(
    SEGMENTS_MIN as usize > 2 * Stream::COUNT + RESERVED_SEGMENTS as usize,
    "the smallest drive has two segments for each stream in addition to the reserves, and a spare \
     one"
);

/// The reserves of a drive with a given shape.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reserves {
    /// Segments reserved for checkpoints.
    pub(super) meta_segments: u32,
    /// Maximum number of bytes of dirty leaves that may wait for a checkpoint.
    pub(super) dirty_bytes_max: usize,
}

impl Reserves {
    pub(super) fn new(shape: &DriveShape, leaf_bytes: usize, map_cache_bytes: usize) -> Self {
        Self {
            meta_segments: meta_segments(shape, leaf_bytes, map_cache_bytes),
            dirty_bytes_max: dirty_bytes_max(shape, leaf_bytes, map_cache_bytes),
        }
    }
}

/// Returns the bytes of records that a segment is assumed to contain: headers, padding and parity
/// of its batches, and a remainder into which no frame fits, occupy no more than an atomic write
/// would.
pub(crate) fn usable_segment_bytes(segment_bytes: u32) -> u64 {
    let closing_bytes = closing_bytes(Stream::Host) as usize;
    let unusable = SEGMENT_HEADER_BYTES + BATCH_HEADER_BYTES + closing_bytes + ATOMIC_WRITE_BYTES;
    let usable = u64::from(segment_bytes).checked_sub(unusable as u64);
    usable.expect("every segment holds an atomic write")
}

/// Returns the segments to reserve for checkpoints: one to write to, and those for the largest
/// checkpoint, when half of the map's cache is dirty. A leaf has up to `leaf_bytes`.
pub(crate) fn meta_segments(shape: &DriveShape, leaf_bytes: usize, map_cache_bytes: usize) -> u32 {
    let map = MapSize::of(shape, leaf_bytes);
    let map_bytes = map.bytes.min(map_cache_bytes as u64 / 2);
    let table_bytes = u64::from(shape.segment_count) * TableEntry::BYTES as u64;
    let checkpoint_bytes = map_bytes + map.leaves * 8 + table_bytes;
    // Parity occupies four pages in a full batch.
    let checkpoint_bytes = checkpoint_bytes + checkpoint_bytes / 64;
    let wanted = checkpoint_bytes.div_ceil(u64::from(shape.segment_bytes));
    // A thin drive cannot reserve the space of its whole map; it writes checkpoints more often.
    let reserved = wanted.min(u64::from(shape.segment_count / 8).max(1));
    assert!(reserved > 0, "a checkpoint has a root, which takes room");
    1 + u32::try_from(reserved).expect("an eighth of the segments has a number")
}

/// Returns the bytes of the map that may be dirty: the capacity of the segments reserved for
/// checkpoints, at most the size of the cache, and at least two leaves. With less, every change
/// waits for a checkpoint, which uses up the space that garbage collection gains. A leaf has up to
/// `leaf_bytes`.
fn dirty_bytes_max(shape: &DriveShape, leaf_bytes: usize, map_cache_bytes: usize) -> usize {
    let reserved = meta_segments(shape, leaf_bytes, map_cache_bytes).checked_sub(1);
    let reserved = u64::from(reserved.expect("one segment is for checkpoints to write to"));
    // The rest is for the directory, the tables and the ends of segments.
    let bytes = reserved * u64::from(shape.segment_bytes / 4 * 3);
    // In memory a leaf occupies up to twice its bytes on the medium.
    let two_leaves = 4 * leaf_bytes;
    if MapSize::of(shape, leaf_bytes).bytes <= bytes {
        map_cache_bytes.max(two_leaves)
    } else {
        len_usize(bytes.min(map_cache_bytes as u64)).max(two_leaves)
    }
}

/// Size of a drive's map when every leaf has its maximum length.
struct MapSize {
    leaves: u64,
    /// Bytes of the leaves on the medium.
    bytes: u64,
}

impl MapSize {
    fn of(shape: &DriveShape, leaf_bytes: usize) -> Self {
        let leaves = shape.size_bytes.div_ceil(u64::from(LEAF_BLOCKS) * BLOCK_BYTES as u64);
        assert!(leaves > 0, "a disk has a block");
        let bytes = leaves * (leaf_bytes as u64 + 64);
        Self { leaves, bytes }
    }
}

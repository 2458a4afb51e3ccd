//! The version of the format, and the limits that several of its structures share.

use crate::base::units::BLOCK_BYTES;

/// The version of the format that this program writes, and the newest that it reads.
pub const FORMAT_VERSION: u32 = 1;

/// Largest disk in bytes, 16 PiB. The L2P directory of an empty disk of this size uses 64 MiB.
pub const SIZE_BYTES_MAX: u64 = 1 << 54;

/// Smallest segment in bytes. It must hold its header and one batch with an entire atomic write,
/// and the unused end of a segment (up to one such write) should remain a small share of it.
pub const SEGMENT_BYTES_MIN: u32 = 4 << 20;

/// Largest segment in bytes. Offsets within a segment have 32 bits.
pub const SEGMENT_BYTES_MAX: u32 = 1 << 30;

/// Number of segments that a [`MetadataAddress`](super::MetadataAddress) can refer to.
pub const META_SEGMENTS_MAX: u32 = 1 << 26;

/// Smallest byte offset of segment 0 on a medium: the superblock slots come first.
pub(super) const DATA_OFFSET_MIN: u64 = 8192;

/// Maximum bytes of one batch, which a reader must be able to hold in memory. An atomic host write
/// of 1 MiB with a header for each block fits well.
pub const BATCH_BYTES_MAX: usize = 4 << 20;

/// Maximum number of blocks of one frame. A run of the L2P counts them in a byte.
pub const FRAME_BLOCKS_MAX: u16 = 64;

/// Maximum number of blocks of a frame on a drive of chunks.
pub const CHUNKED_BLOCKS_MAX: u16 = 8;

const _: () = assert!(SIZE_BYTES_MAX.is_multiple_of(BLOCK_BYTES as u64), "blocks fill a disk");
const _: () = assert!(
    SIZE_BYTES_MAX <= i64::MAX as u64,
    "offsets on the disk fit in the type of the kernel's file offsets"
);
const _: () =
    assert!((SEGMENT_BYTES_MIN as usize).is_multiple_of(BLOCK_BYTES), "blocks fill a segment");
const _: () = assert!(SEGMENT_BYTES_MIN < SEGMENT_BYTES_MAX, "sizes of a segment");
const _: () = assert!(BATCH_BYTES_MAX <= u32::MAX as usize, "lengths in a header have 32 bits");
const _: () = assert!(FRAME_BLOCKS_MAX <= u8::MAX as u16, "a run counts the blocks of a frame");
const _: () = assert!(CHUNKED_BLOCKS_MAX <= FRAME_BLOCKS_MAX, "such frames are frames");

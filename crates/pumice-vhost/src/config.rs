//! Features and configuration space of the device.
//!
//! Source: Virtual I/O Device (VIRTIO) Version 1.2, section 5.2.

use vhost::vhost_user::VhostUserProtocolFeatures as Protocol;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{Immutable, IntoBytes};

/// Bytes of a sector: the unit of positions and lengths in the protocol.
pub(crate) const SECTOR_BYTES: u64 = 512;

/// Maximum number of queues of a device: more than the processors of a guest of any usual size. A
/// queue that the guest does not use costs nothing.
pub(crate) const QUEUES_MAX: u16 = 64;

/// Maximum number of data segments in a request. With a head and a status, a request fits into a
/// ring of 128 entries, QEMU's default, even without tables of descriptors. A request of 4 KiB
/// pages is then shorter than 1 MiB, which the drive applies completely or not at all.
pub(crate) const SEGMENTS_MAX: u32 = 126;

/// Maximum number of ranges of a discard or write-zeroes. Arbitrary; Linux merges up to 256.
pub(crate) const RANGES_MAX: u32 = 16;

/// Longest range in sectors: the largest multiple of 4 KiB.
const RANGE_SECTORS_MAX: u32 = u32::MAX - 7;

/// Feature bits that the device uses.
pub(crate) mod feature {
    pub(crate) const SEG_MAX: u64 = 1 << 2;
    pub(crate) const READ_ONLY: u64 = 1 << 5;
    pub(crate) const BLOCK_SIZE: u64 = 1 << 6;
    pub(crate) const FLUSH: u64 = 1 << 9;
    pub(crate) const TOPOLOGY: u64 = 1 << 10;
    pub(crate) const QUEUES: u64 = 1 << 12;
    pub(crate) const DISCARD: u64 = 1 << 13;
    pub(crate) const WRITE_ZEROES: u64 = 1 << 14;
    pub(crate) const INDIRECT: u64 = 1 << 28;
    pub(crate) const EVENT_INDEX: u64 = 1 << 29;
    pub(crate) const PROTOCOL: u64 = 1 << 30;
    pub(crate) const VERSION_1: u64 = 1 << 32;
}

/// Returns the features of a device.
///
/// A write cache that the driver may switch (11) is not among them. QEMU retains the switch's
/// position when its device restarts, and would then mistake a volatile write for a durable one.
pub(crate) fn features(is_read_only: bool) -> u64 {
    use feature::*;
    let always =
        SEG_MAX | BLOCK_SIZE | FLUSH | TOPOLOGY | QUEUES | INDIRECT | EVENT_INDEX | PROTOCOL;
    let always = always | VERSION_1;
    always | if is_read_only { READ_ONLY } else { DISCARD | WRITE_ZEROES }
}

/// Features that front ends confirm although they were not offered, because they have no effect
/// here: notifying when the ring is empty (24), and any layout of descriptors (27), which is always
/// accepted.
pub(crate) const TOLERATED: u64 = 1 << 24 | 1 << 27;

/// Returns the features of the protocol.
pub(crate) fn protocol_features() -> u64 {
    let features = Protocol::MQ
        | Protocol::REPLY_ACK
        | Protocol::BACKEND_REQ
        | Protocol::CONFIG
        | Protocol::CONFIGURE_MEM_SLOTS;
    features.bits()
}

/// The configuration space, `virtio_blk_config`.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct Config {
    capacity_sectors: U64,
    segment_bytes_max: U32,
    segments_max: U32,
    geometry: [u8; 4],
    block_bytes: U32,
    /// Number of logical blocks in a physical one, as a power of two.
    physical_block_exponent: u8,
    alignment_offset: u8,
    /// In logical blocks, as is the next.
    io_blocks_min: U16,
    io_blocks_preferred: U32,
    unused_0: [u8; 2],
    queues: U16,
    discard_sectors_max: U32,
    discard_ranges_max: U32,
    discard_alignment_sectors: U32,
    zero_sectors_max: U32,
    zero_ranges_max: U32,
    zero_may_unmap: u8,
    unused_1: [u8; 3],
}

const _: () = assert!(size_of::<Config>() == 60);

/// Returns `size` bytes from `offset` of the configuration space. Bytes beyond it are zero: front
/// ends also read the fields of newer versions.
pub(crate) fn read(size_bytes: u64, offset: u32, size: u32) -> Vec<u8> {
    let config = Config {
        capacity_sectors: (size_bytes / SECTOR_BYTES).into(),
        segment_bytes_max: 0.into(),
        segments_max: SEGMENTS_MAX.into(),
        geometry: [0; 4],
        block_bytes: 512.into(),
        physical_block_exponent: 3,
        alignment_offset: 0,
        io_blocks_min: 8.into(),
        io_blocks_preferred: 0.into(),
        unused_0: [0; 2],
        queues: QUEUES_MAX.into(),
        discard_sectors_max: RANGE_SECTORS_MAX.into(),
        discard_ranges_max: RANGES_MAX.into(),
        discard_alignment_sectors: 8.into(),
        zero_sectors_max: RANGE_SECTORS_MAX.into(),
        zero_ranges_max: RANGES_MAX.into(),
        zero_may_unmap: 1,
        unused_1: [0; 3],
    };
    let bytes = config.as_bytes().get(offset as usize..).unwrap_or_default();
    let missing = std::iter::repeat(&0);
    bytes.iter().chain(missing).copied().take(size as usize).collect()
}

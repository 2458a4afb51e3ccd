//! A small drive for tests of the translation layer: four dies of 34 nm MLC, small enough for sums
//! by hand. It is not a profile: no such drive was ever sold.

use super::{LogSpec, StoredSizes, VictimPolicy};
use crate::nand::{FlashShape, FlashTiming};

/// 34 nm MLC, one plane at about 50 MB/s.
pub const TIMING: FlashTiming = FlashTiming {
    read_ns: 50_000,
    program_ns: 900_000,
    program_fast_ns: 900_000,
    erase_ns: 2_000_000,
    bus_bytes_per_s: 51_200_000,
    multi_plane: true,
    cache_program: false,
};

/// Four dies on two channels with rows of 8 KiB: a segment of 64 blocks of the host.
pub const SHAPE: FlashShape = FlashShape {
    channels: 2,
    dies_per_channel: 2,
    planes: 2,
    blocks_per_plane: 40,
    pages_per_block: 8,
    page_bytes: 4096,
};

/// Returns a drive of 2000 blocks with 2560 blocks of flash.
pub fn small() -> LogSpec {
    LogSpec {
        shape: SHAPE,
        timing: TIMING,
        user_blocks: 2000,
        stored: StoredSizes::Constant(1.0),
        stored_min: 0.0,
        header_bytes: 0,
        stripe_dies: None,
        victims: VictimPolicy::Greedy,
        moved_apart: true,
        buffer_bytes: 64 << 10,
        store_bytes_per_s: None,
        free_segments: 3,
        bad_percent: 0.0,
        seed: 1,
        wear_gap_max: None,
    }
}

//! A small drive for tests of the translation layer: four dies of 34 nm MLC, small enough for
//! manual calculation. It is not a profile, because no such drive was ever sold.

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

/// Four dies on two channels with 8 KiB rows; a segment has 64 host blocks.
pub const SHAPE: FlashShape = FlashShape {
    channels: 2,
    dies_per_channel: 2,
    planes: 2,
    blocks_per_plane: 40,
    pages_per_block: 8,
    page_bytes: 4096,
};

/// Returns a drive of 2000 blocks on flash with space for 2560 blocks.
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

//! Tests of the layer as a whole, by what they look at.
//!
//! * `accounts`: what is written adds up, and each block is where its last version went.
//! * `amplification`: what garbage collection costs, against formulas.
//! * `times`: latency and bandwidth, against sums by hand.
//! * `wear`: erasures are spread.

mod accounts;
mod amplification;
mod times;
mod wear;

use super::super::{StoredSizes, VictimPolicy};
use super::*;
use crate::media::nand::{FlashShape, FlashTiming};
use crate::model::host::{Host, HostSpec, Order};

/// What happened to a block or a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// `from` is where it was read, of what is moved.
    Placed {
        lba: u32,
        cause: Cause,
        from: u32,
        to: u32,
    },
    Freed {
        segment: u32,
    },
}

impl Event {
    pub(super) fn placed(lba: u32, cause: Cause, from: u32, to: u32) -> Self {
        Self::Placed { lba, cause, from, to }
    }
}

const TRANSFER_NS: u64 = 80_000;

/// 34 nm MLC, one plane at 50 MB/s or so.
const TIMING: FlashTiming = FlashTiming {
    read_ns: 50_000,
    program_ns: 900_000,
    erase_ns: 2_000_000,
    bus_bytes_per_s: 51_200_000,
    multi_plane: true,
    cache_program: false,
};

/// Four dies on two channels with rows of 8 KiB: a segment of 64 blocks of the host.
const SHAPE: FlashShape = FlashShape {
    channels: 2,
    dies_per_channel: 2,
    planes: 2,
    blocks_per_plane: 40,
    pages_per_block: 8,
    page_bytes: 4096,
};

/// 2560 blocks of flash for 2000.
fn small() -> LogSpec {
    LogSpec {
        shape: SHAPE,
        timing: TIMING,
        user_blocks: 2000,
        stored: StoredSizes::Constant(1.0),
        stored_min: 0.0,
        header_bytes: 0,
        parity_percent: 0.0,
        victims: VictimPolicy::Greedy,
        moved_apart: true,
        buffer_bytes: 64 << 10,
        free_segments: 3,
        bad_percent: 0.0,
        seed: 1,
        wear_gap_max: None,
    }
}

/// The same flash for a drive that compresses, with frames of several sizes.
fn compressing() -> LogSpec {
    let fractions = vec![0.05, 0.2, 0.4, 0.75, 1.0];
    LogSpec {
        stored: StoredSizes::Table { fractions, seed: 5 },
        stored_min: 0.14,
        header_bytes: 24,
        ..small()
    }
}

/// A host of four requests of a block each.
fn host(order: Order, seed: u64) -> Host {
    let spec = HostSpec { depth: 4, blocks: 1, order, read_percent: 0, seed };
    Host::new(spec, 0).unwrap()
}

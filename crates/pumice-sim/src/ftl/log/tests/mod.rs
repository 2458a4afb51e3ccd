//! Tests of the layer as a whole, by subject.
//!
//! * `accounts`: written bytes add up, and each block is at the position of its last version.
//! * `amplification`: the cost of garbage collection, compared with formulas.
//! * `faults`: the data destroyed by flash failures, and the data restored from parity.
//! * `times`: latency and bandwidth, compared with sums calculated by hand.
//! * `wear`: the distribution of erasures.

mod accounts;
mod amplification;
mod faults;
mod times;
mod wear;

use super::super::sample::{SHAPE, TIMING, small};
use super::super::{StoredSizes, VictimPolicy};
use super::*;
use crate::host::{Host, HostSpec, Order};
use crate::nand::{FlashShape, FlashTiming};
use pumice_drive::base::Lba;

/// An event of a block or a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// `from` is the source of moved data.
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

fn assert_near(ns: u64, expected_ns: u64) {
    assert!(ns.abs_diff(expected_ns) <= 8, "{ns} ns, not {expected_ns}");
}

/// Returns the same flash for a drive that compresses, with frames of various sizes.
fn compressing() -> LogSpec {
    let fractions = vec![0.05, 0.2, 0.4, 0.75, 1.0];
    LogSpec {
        stored: StoredSizes::Table { fractions, seed: 5 },
        stored_min: 0.14,
        header_bytes: 24,
        ..small()
    }
}

/// Returns a host that keeps four single-block requests in flight.
fn host(order: Order, seed: u64) -> Host {
    let spec = HostSpec { depth: 4, blocks: 1, order, read_percent: 0, seed };
    Host::new(spec, 0).unwrap()
}

//! The transfer of a snapshot to another drive.
//!
//! ```text
//! snapshot, its base --differences--> stored frames --writer--> head, batches, end
//! head, batches, end --reader--> records --receive--> the path of host writes --> snapshot
//! ```
//!
//! * `window`: the differences between a snapshot and its base, read ahead in large pieces.
//! * `send`: puts these differences into a transfer, in the order of the disk.
//! * `writer`, `reader`: batches in the format of the log. The reader trusts no byte.
//! * `receive`: applies the reader's records, notes the progress, and takes the snapshot.
//!
//! This module uses no file, pipe or socket: bytes are passed in batches.

#![warn(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::indexing_slicing
)]

mod reader;
mod receive;
mod send;
mod window;
mod writer;

use crate::base::SegmentId;
use crate::base::units::len_u32;
use crate::format::{BATCH_HEADER_BYTES, RecordAddress};

pub use reader::{TransferReader, transfer_batch_bytes};
pub use receive::{Receive, Received};
pub use send::{SendStream, Sent, View};

/// Each batch is like the first one of a segment: the records of a transfer have no other place.
const SEGMENT: SegmentId = SegmentId(0);
const OFFSET: u32 = 4096;

/// Returns the place of a record whose first byte is at `at` in the batch with a given number.
fn address(seq: u64, at: usize) -> RecordAddress {
    debug_assert!(at >= BATCH_HEADER_BYTES, "records follow the header");
    let offset = OFFSET + len_u32(at);
    RecordAddress { generation: seq, segment: SEGMENT, offset }
}

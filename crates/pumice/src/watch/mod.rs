//! The facts that a server knows about its drives: counters of requests and their latencies, the
//! state of the drives, and connections.
//!
//! | file | contents |
//! |---|---|
//! | `latency` | a histogram with fixed buckets |
//! | `measured` | a [`Disk`] that counts and times requests |
//! | `snapshot` | everything at one moment, as plain data |
//! | `rates` | the change between two snapshots |
//! | `watched` | the source of snapshots |
//!
//! Nothing here runs periodically: without a client, the only cost is the counting.
//!
//! [`Disk`]: pumice_nbd::Disk

// Snapshots are shown to other machines. Tests index and cast only their own data.
#![cfg_attr(
    not(test),
    warn(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss,
        clippy::indexing_slicing
    )
)]
#![cfg_attr(
    not(all(feature = "http", feature = "top")),
    allow(dead_code, unused_imports, reason = "each of the two shows a part of this")
)]

use std::sync::{Arc, Mutex};

mod latency;
mod measured;
mod rates;
mod snapshot;
#[cfg(test)]
pub(crate) mod tests;
mod watched;

pub(crate) use latency::{BUCKETS, Latency, bucket_limit_ns};
pub(crate) use measured::Measured;
pub(crate) use rates::Rates;
pub(crate) use snapshot::{Connections, DriveSnapshot, Snapshot, Validity};
pub(crate) use watched::{Action, Terms, Watch};

/// The names of the drives of a thread, for any thread; they change when drives are added or
/// removed.
pub(crate) type Names = Arc<Mutex<Vec<String>>>;

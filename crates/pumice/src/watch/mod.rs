//! What a server knows of the drives it serves, for whoever asks: counters of requests and their
//! latencies, the drives' own facts, connections.
//!
//! | file | noun |
//! |---|---|
//! | `latency` | a histogram with fixed buckets |
//! | `measured` | a [`Disk`] that counts and times what passes through it |
//! | `snapshot` | everything at one moment, as plain data |
//! | `rates` | what happened between two of them |
//! | `watched` | where snapshots come from |
//!
//! Nothing here runs by itself: who does not ask costs nothing but the counting.
//!
//! [`Disk`]: pumice_nbd::Disk

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
pub(crate) use snapshot::{Connections, DriveSnapshot, Snapshot};
pub(crate) use watched::{Action, Watch};

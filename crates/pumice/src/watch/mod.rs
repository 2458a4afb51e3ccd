//! What a server knows about the drives it serves: counters of requests and their latencies, the
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

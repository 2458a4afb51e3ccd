//! The state of a server and its drives at one moment: plain data that can leave the thread and the
//! process. Rates need two snapshots.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::latency::Latency;
use crate::objects::Cost;
use pumice_drive::base::ErrorKind;
use pumice_drive::controller::{Info, Overview};

/// A server at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Snapshot {
    /// Version of the program.
    pub version: String,
    /// Nanoseconds of the server's clock, which starts about when the server does. All snapshots of
    /// one process use the same clock.
    pub now_ns: u64,
    /// Nanoseconds that the threads of the drives spent on this snapshot.
    pub taken_ns: u64,
    /// Connections of NBD clients.
    pub connections: Connections,
    /// The drives, in the order of the command line.
    pub drives: Vec<DriveSnapshot>,
}

/// NBD clients of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct Connections {
    /// Current connections, including those in their handshake.
    pub open: u64,
    /// Accepted since the start.
    pub accepted: u64,
    /// Number of refusals of a client: a handshake, a certificate, an export.
    pub refused: u64,
    /// Requests refused before they reached a drive: malformed ones, and those during shutdown.
    pub refused_requests: u64,
    /// Validity of the certificates and revocation lists that the server uses.
    pub validities: Vec<Validity>,
}

/// The time for which a certificate or a revocation list is valid, in seconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Validity {
    /// The file it comes from.
    pub file: String,
    /// Its beginning.
    pub from_s: i64,
    /// Its end.
    pub until_s: i64,
}

impl From<pumice_nbd::Validity> for Validity {
    fn from(validity: pumice_nbd::Validity) -> Self {
        let pumice_nbd::Validity { file, from_s, until_s } = validity;
        Self { file, from_s, until_s }
    }
}

/// One drive at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct DriveSnapshot {
    /// Its name on the server.
    pub name: String,
    /// The output of `pumice info`.
    pub info: Info,
    /// Use of the capacity, and alerts.
    pub overview: Overview,
    /// Requests of hosts.
    pub host: HostStats,
    /// Rated write endurance of the medium in bytes, if given.
    pub rated_write_bytes: Option<u64>,
    /// The cost of the bucket, for a drive in one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bucket_cost: Option<Cost>,
    /// Bytes written to the medium over the drive's life, at the start of the server.
    pub media_bytes_at_start: u64,
}

/// Requests of hosts since the server started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct HostStats {
    /// Reads.
    pub read: CommandStats,
    /// Writes. A write longer than 1 MiB counts once for each piece of 1 MiB.
    pub write: CommandStats,
    /// Flushes; a flush on behalf of FUA counts with its request.
    pub flush: CommandStats,
    /// Trims.
    pub trim: CommandStats,
    /// Write-zeroes.
    pub write_zeroes: CommandStats,
    /// Prefetches.
    pub cache: CommandStats,
    /// Requests in flight.
    pub in_flight: u64,
}

/// Requests of one command.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct CommandStats {
    /// Host bytes of requests that succeeded.
    pub bytes: u64,
    /// Failed requests by kind of error; kinds without failures are omitted.
    pub errors: Vec<(ErrorKind, u64)>,
    /// Latency, of failed requests too: from the time when the server received the request until
    /// its reply was ready.
    pub latency: Latency,
}

impl CommandStats {
    /// Returns the number of failed requests of all kinds.
    pub(crate) fn error_count(&self) -> u64 {
        self.errors.iter().fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }
}

impl HostStats {
    /// Returns the commands with their names, in the order in which they are shown.
    pub(crate) fn commands(&self) -> [(&'static str, &CommandStats); 6] {
        [
            ("read", &self.read),
            ("write", &self.write),
            ("flush", &self.flush),
            ("trim", &self.trim),
            ("write_zeroes", &self.write_zeroes),
            ("cache", &self.cache),
        ]
    }
}

//! Everything that is known of a server and its drives at one moment: plain data, which can leave
//! the thread and the process. Rates are for whoever has two of them.

use serde::{Deserialize, Serialize};

use super::latency::Latency;
use pumice_drive::base::ErrorKind;
use pumice_drive::controller::{Info, Overview};

/// A server at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Snapshot {
    /// Version of the program.
    pub version: String,
    /// Nanoseconds of the server's clock, since about its start. The same clock for all snapshots
    /// of one process.
    pub now_ns: u64,
    /// Nanoseconds that the drives' thread spent on making this.
    pub taken_ns: u64,
    /// Clients.
    pub connections: Connections,
    /// The drives, in the order in which they were named.
    pub drives: Vec<DriveSnapshot>,
}

/// NBD clients of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Connections {
    /// Connected now, those in their handshake included.
    pub open: u64,
    /// Accepted since the start.
    pub accepted: u64,
    /// Requests that never reached a drive: wrong, or during shutdown.
    pub refused_requests: u64,
}

/// One drive at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct DriveSnapshot {
    /// Its name on the server.
    pub name: String,
    /// What `pumice info` says.
    pub info: Info,
    /// Where the capacity is, and what is wrong.
    pub overview: Overview,
    /// What hosts asked of it.
    pub host: HostStats,
    /// Bytes that may be written to the medium in its life, if its owner said so.
    pub rated_write_bytes: Option<u64>,
    /// Bytes written to the medium, over the drive's life, when the server started.
    pub media_bytes_at_start: u64,
}

/// Requests of hosts since the server started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HostStats {
    /// Reads.
    pub read: CommandStats,
    /// Writes. One longer than 1 MiB counts once for each piece of 1 MiB, as it is carried out.
    pub write: CommandStats,
    /// Flushes; those that FUA asks for count with their request.
    pub flush: CommandStats,
    /// Trims.
    pub trim: CommandStats,
    /// Write-zeroes.
    pub write_zeroes: CommandStats,
    /// Requests to bring data nearer.
    pub cache: CommandStats,
    /// Requests under way.
    pub in_flight: u64,
}

/// Requests of one command.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CommandStats {
    /// Host bytes of requests that succeeded.
    pub bytes: u64,
    /// Failed requests by kind of failure; kinds that have not happened are left out.
    pub errors: Vec<(ErrorKind, u64)>,
    /// How long requests took, failed ones too: from when the server had the request in hand to
    /// when its reply was ready.
    pub latency: Latency,
}

impl CommandStats {
    /// Failed requests of all kinds.
    pub(crate) fn error_count(&self) -> u64 {
        self.errors.iter().fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }
}

impl HostStats {
    /// The commands by name, in the order in which they are shown.
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

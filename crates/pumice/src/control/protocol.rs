//! The protocol of a control socket: a request and its answers, each one line of JSON.
//!
//! ```text
//! client: {"request":"scrub","rate_bytes":0}
//! server: {"progress":{...}} ... {"problem":{...}} ... {"scrubbed":{...}}    and the end
//! ```
//!
//! A line has at most [`REQUEST_BYTES_MAX`] or [`ANSWER_BYTES_MAX`] bytes. The last answer is the
//! result of the request; a client that disconnects earlier cancels its request. Client and server
//! are the same program, so there are no versions: each side refuses messages that it does not
//! understand. Only the bytes of a transfer are not lines; the line before them states their
//! number.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::transfer::{Sending, Wanted};
use crate::devices::DeviceChange;
use crate::remedy;
use crate::watch::Snapshot;
use pumice_drive::base::{Error, ErrorKind};
use pumice_drive::controller::{
    Compacted, Flattened, Info, NewKeys, NewSnapshot, Problem, RegisteredClone, Rekeyed, Resize,
    Resized, ScrubReport, Sent, SettingsChange, SettingsChanged, SnapshotInfo,
};
use pumice_drive::media::array::ArrayInfo;
use pumice_nbd::Listed;

/// Longest request in bytes.
pub(super) const REQUEST_BYTES_MAX: usize = 4096;

/// Longest answer in bytes: info has a few thousand, a problem a few hundred.
pub(super) const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// Longest part of a transfer in bytes: a batch of the log and its completion have little more than
/// 1 MiB.
pub(super) const PART_BYTES_MAX: u64 = 8 << 20;

/// Requests of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Request {
    /// Return the drive's info.
    Info {},
    /// Return a snapshot of the server and the drive.
    Watch {},
    /// Scrub the drive.
    Scrub {
        /// Bytes per second; 0 for no limit.
        rate_bytes: u64,
    },
    /// Resize the drive.
    Resize(Resize),
    /// Replace the master key of the drive.
    Rekey {
        /// The new keys; `None` to continue an unfinished replacement.
        keys: Option<NewKeys>,
    },
    /// Change settings of the drive.
    Set(SettingsChange),
    /// Return the space of dead data to the medium.
    Compact {
        /// Occupied space allowed beyond the live data, in percent of the live data.
        percent: u32,
        /// Whether scattered blocks are put in order first.
        in_order: bool,
    },
    /// Take a snapshot of the drive.
    CreateSnapshot(NewSnapshot),
    /// Delete snapshots, in one step.
    DeleteSnapshots {
        /// Their names.
        names: Vec<String>,
    },
    /// Turn a snapshot into a bookmark.
    BookmarkSnapshot {
        /// Its name.
        name: String,
    },
    /// Restore the state of the disk, which no client uses, at the time of a snapshot.
    RollBack {
        /// Name of the snapshot.
        name: String,
        /// Delete the snapshots that were taken after it.
        deletes_newer: bool,
    },
    /// Suspend the host's changes until a snapshot is begun, a second at most.
    SuspendChanges {
        /// Identity of the snapshot.
        guid: Uuid,
    },
    /// List a clone of a snapshot of the drive.
    RegisterClone {
        /// Name of the snapshot.
        name: String,
        /// The clone.
        clone: RegisteredClone,
    },
    /// Remove a clone from the list.
    ForgetClone {
        /// Its identity.
        drive: Uuid,
    },
    /// Copy the data that the drive, a clone, reads from its origin.
    Flatten {},
    /// Change the members of the drive's array.
    Device {
        /// The change.
        change: DeviceChange,
    },
    /// Return the drive's snapshots.
    Snapshots {},
    /// Send a snapshot.
    Send(Wanted),
    /// Offer a snapshot as a file, until the client disconnects.
    #[cfg(feature = "attach")]
    Lend {
        /// Name of the snapshot.
        name: String,
        /// The directory on which the file is mounted.
        directory: String,
        /// Name of the file, which lists of mounts also show.
        shown: String,
    },
    /// Return the way in which the drive is served.
    Service {},
    /// Return the NBD clients of the server.
    Clients {},
    /// Disconnect an NBD client.
    Disconnect {
        /// Its number.
        id: u64,
    },
}

/// Answers of a server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// The drive's info: the result.
    Info(Box<Info>),
    /// The server and the drive: the result.
    Watched(Box<Snapshot>),
    /// The request is in progress.
    Progress(Progress),
    /// A problem that a scrub found; sent before the result.
    Problem(Problem),
    /// Result of a scrub, without the problems.
    Scrubbed(ScrubReport),
    /// Result of a resize.
    Resized(Resized),
    /// Result of replacing a master key.
    Rekeyed(Rekeyed),
    /// Result of a change of settings.
    Set(SettingsChanged),
    /// Result of a compaction.
    Compacted(Compacted),
    /// Some of the snapshots, or those that a rollback deleted; sent before the result.
    SomeSnapshots(Vec<SnapshotInfo>),
    /// The rest of the snapshots, or those that were taken, changed or deleted: the result.
    Snapshots(Vec<SnapshotInfo>),
    /// The snapshots of a transfer; sent before the result.
    Sending(Box<Sending>),
    /// Bytes of a transfer follow this line; sent before the result.
    Part(Part),
    /// The transfer is complete: the result.
    Sent(Sent),
    /// Result of a flattening.
    Flattened(Flattened),
    /// The drive's array after a change: the result.
    Devices(Box<ArrayInfo>),
    /// The snapshot is a file, until the client disconnects.
    Lent {},
    /// The host's changes are suspended; sent before the result.
    Suspended,
    /// The changes are no longer suspended: the result.
    Resumed {
        /// Whether they were suspended until the snapshot was begun.
        in_the_snapshot: bool,
    },
    /// The way in which the drive is served: the result.
    Service(Service),
    /// Some of the clients; sent before the result.
    SomeClients(Vec<ListedClient>),
    /// The rest of the clients: the result.
    Clients(Vec<ListedClient>),
    /// Whether there was such a client: the result.
    Disconnected(bool),
    /// The request failed.
    Failed {
        /// Kind of the error.
        kind: ErrorKind,
        /// The error with its causes.
        what: String,
    },
}

/// The way in which a drive is served.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Service {
    /// The drive's path, as far as it is UTF-8.
    pub path: String,
    /// The server's process.
    pub process: u32,
    /// The drive's name among the exports of the server.
    pub export: String,
    /// Connections of NBD clients, to all drives of the server.
    pub clients: u64,
    /// URIs under which clients reach the drive; empty if it is attached.
    pub uris: Vec<String>,
    /// Sector size in bytes for which the partition table of the disk was made, if it has one.
    pub table_sector_bytes: Option<u32>,
}

/// An NBD client of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct ListedClient {
    /// Number that is unique among all clients on this machine.
    pub id: u64,
    /// `IP:PORT`, or `unix:pid=N`.
    pub address: String,
    /// `certificate=NAME` or `uid=N`, if one is known.
    pub identity: Option<String>,
    /// Name of its export; `None` during its handshake.
    pub export: Option<String>,
    /// Time since it connected, or since the server restarted, in nanoseconds.
    pub connected_ns: u64,
    /// Time since its last request, in nanoseconds; 0 while requests are in flight.
    pub idle_ns: u64,
    /// Requests since it connected, or since the server restarted.
    pub requests: u64,
    /// Bytes that it requested to read.
    pub read_bytes: u64,
    /// Bytes that it sent for writing.
    pub written_bytes: u64,
}

impl From<&Listed> for ListedClient {
    fn from(listed: &Listed) -> Self {
        let Listed { id, address, identity, export, .. } = listed.clone();
        let Listed { connected_ns, idle_ns, requests, read_bytes, written_bytes, .. } = *listed;
        Self {
            id,
            address,
            identity,
            export,
            connected_ns,
            idle_ns,
            requests,
            read_bytes,
            written_bytes,
        }
    }
}

/// A part of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Part {
    /// End of this part on the disk, in bytes.
    pub offset: u64,
    /// Its bytes, at most [`PART_BYTES_MAX`].
    pub bytes: u64,
}

/// Progress of a long request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Progress {
    /// Segments completed.
    pub done: u64,
    /// Segments in total, as far as known; live bytes in a compaction.
    pub total: u64,
    /// Bytes read; bytes occupied in a compaction.
    pub bytes: u64,
}

impl Answer {
    /// Returns the answer for an error.
    pub(super) fn failed(error: &Error) -> Self {
        Answer::Failed { kind: error.kind(), what: remedy::chain(error) }
    }

    /// Whether this is the last answer.
    pub(super) fn is_last(&self) -> bool {
        let is_on_the_way = matches!(
            self,
            Answer::Progress(_)
                | Answer::Problem(_)
                | Answer::SomeClients(_)
                | Answer::SomeSnapshots(_)
                | Answer::Sending(_)
                | Answer::Part(_)
                | Answer::Suspended
        );
        !is_on_the_way
    }
}

/// Returns a message as a line of JSON.
pub(super) fn line(message: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).expect("messages serialize");
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    //! Goal: messages survive a round trip, and a server refuses unknown ones.
    use super::*;
    use pumice_drive::controller::new_keys;
    use pumice_drive::crypt::{Randomness, Secret};

    #[test]
    fn messages_survive_the_way_on_one_line() {
        let request = Request::Scrub { rate_bytes: 7 };
        let bytes = line(&request);
        assert_eq!(bytes.iter().filter(|&&byte| byte == b'\n').count(), 1);
        assert_eq!(serde_json::from_slice::<Request>(&bytes).unwrap(), request);
        let wanted = Wanted { snapshot: Some("b".into()), since: None, resume: None };
        let request = Request::Send(wanted);
        assert_eq!(serde_json::from_slice::<Request>(&line(&request)).unwrap(), request);
        let failed = Answer::failed(&Error::new(ErrorKind::NoSpace, "two\nlines"));
        let bytes = line(&failed);
        assert_eq!(bytes.iter().filter(|&&byte| byte == b'\n').count(), 1);
        assert_eq!(serde_json::from_slice::<Answer>(&bytes).unwrap(), failed);
        assert!(failed.is_last() && !Answer::Progress(Progress::default()).is_last());
    }

    #[test]
    fn new_keys_fit_in_a_request() {
        let secrets: Vec<Secret> = (0..8).map(|byte| Secret::Key(vec![byte; 32].into())).collect();
        let made = new_keys(Uuid::nil(), &secrets, u64::MAX, Randomness::seeded(1));
        let cipher = made.unwrap().0;
        let new = NewKeys::draw(Uuid::nil(), &cipher, &secrets, u64::MAX, Randomness::seeded(2));
        let request = Request::Rekey { keys: Some(new.unwrap()) };
        let bytes = line(&request);
        assert!(bytes.len() <= REQUEST_BYTES_MAX, "{} bytes", bytes.len());
        assert_eq!(serde_json::from_slice::<Request>(&bytes).unwrap(), request);
    }

    #[test]
    fn unknown_requests_are_refused() {
        for text in [
            "",
            "{}",
            "[]",
            "{\"request\":\"format\"}",
            "{\"request\":\"scrub\"}",
            "{\"request\":\"scrub\",\"rate_bytes\":-1}",
            "{\"request\":\"info\",\"more\":1}",
        ] {
            assert!(serde_json::from_str::<Request>(text).is_err(), "{text}");
        }
    }
}

//! The clients of a server, for any thread to list and to disconnect. Locked when a client arrives
//! or leaves, and never for a request.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::caller::{Caller, Counted};

/// The clients of a server.
#[derive(Debug, Default)]
pub struct Roster(Mutex<BTreeMap<u64, Arc<Caller>>>);

/// A client at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Number that is unique among the clients of this machine and unchanged when the server
    /// restarts.
    pub id: u64,
    /// `IP:PORT`, or `unix:pid=N`.
    pub address: String,
    /// `certificate=NAME` or `uid=N`, if one is known.
    pub identity: Option<String>,
    /// Name of the export; `None` while the client is in its handshake.
    pub export: Option<String>,
    /// Time since it connected, or since the server restarted.
    pub connected_ns: u64,
    /// Time since its last request; 0 while requests are in flight.
    pub idle_ns: u64,
    /// Requests since it connected, or since the server restarted. Refused ones are not counted.
    pub requests: u64,
    /// Bytes in its read requests.
    pub read_bytes: u64,
    /// Bytes in its write requests.
    pub written_bytes: u64,
}

impl Roster {
    /// Returns the clients, by number. `now_ns` is the time of any runtime of the process.
    pub fn list(&self, now_ns: u64) -> Vec<Listed> {
        self.lock().values().map(|caller| listed(caller, now_ns)).collect()
    }

    /// Disconnects a client. Returns whether it existed. Its requests in flight still complete.
    pub fn disconnect(&self, id: u64) -> bool {
        let caller = self.lock().get(&id).cloned();
        let Some(caller) = caller else { return false };
        tracing::info!(client = %caller, id, "client disconnected on request");
        caller.cut();
        true
    }

    pub(super) fn add(&self, caller: &Arc<Caller>) {
        self.lock().insert(caller.id, caller.clone());
    }

    pub(super) fn remove(&self, caller: &Arc<Caller>) {
        let mut callers = self.lock();
        // Another connection may have the number by now.
        if callers.get(&caller.id).is_some_and(|other| Arc::ptr_eq(other, caller)) {
            callers.remove(&caller.id);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Caller>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn listed(caller: &Caller, now_ns: u64) -> Listed {
    let Counted { requests, read_bytes, written_bytes } = caller.meter.counted();
    Listed {
        id: caller.id,
        address: caller.to_string(),
        identity: caller.identity(),
        export: caller.export().map(str::to_owned),
        connected_ns: now_ns.saturating_sub(caller.since_ns),
        idle_ns: caller.meter.idle_ns(now_ns),
        requests,
        read_bytes,
        written_bytes,
    }
}

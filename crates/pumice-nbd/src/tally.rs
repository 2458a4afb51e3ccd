//! The counters of a server, for any thread. They change with connections and refusals, not with
//! requests.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::certificate::Validity;

/// The counters of a server.
#[derive(Debug, Default)]
pub struct Tally {
    pub(super) open: AtomicU64,
    pub(super) accepted: AtomicU64,
    pub(super) refused_clients: AtomicU64,
    /// Counters of all exports, including withdrawn ones: a counter never decreases.
    refused: Mutex<Vec<Arc<AtomicU64>>>,
    validities: Mutex<Vec<Validity>>,
}

impl Tally {
    /// Returns the number of clients connected now, including clients in their handshake.
    pub fn open(&self) -> u64 {
        self.open.load(Ordering::Relaxed)
    }

    /// Returns the number of clients accepted since the server started.
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Returns the number of times that a client was refused since the server started: because of
    /// its handshake, its certificate or its export.
    pub fn refused_clients(&self) -> u64 {
        self.refused_clients.load(Ordering::Relaxed)
    }

    /// Returns the number of requests refused before they reached a disk: malformed requests, and
    /// requests that arrived during shutdown.
    pub fn refused_requests(&self) -> u64 {
        lock(&self.refused).iter().map(|refused| refused.load(Ordering::Relaxed)).sum()
    }

    /// Returns the validity of the certificates and revocation lists that the server uses.
    pub fn validities(&self) -> Vec<Validity> {
        lock(&self.validities).clone()
    }

    pub(super) fn add_refused(&self, counter: &Arc<AtomicU64>) {
        lock(&self.refused).push(counter.clone());
    }

    pub(super) fn set_validities(&self, validities: Vec<Validity>) {
        *lock(&self.validities) = validities;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

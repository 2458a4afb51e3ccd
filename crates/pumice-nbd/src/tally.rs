//! What a server has counted, for any thread. Changes with connections and refusals, not with
//! requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The counters of a server.
#[derive(Debug, Default)]
pub struct Tally {
    pub(super) open: AtomicU64,
    pub(super) accepted: AtomicU64,
    /// Those of all exports.
    pub(super) refused: Vec<Arc<AtomicU64>>,
}

impl Tally {
    /// Returns the number of clients connected now, including those in their handshake.
    pub fn open(&self) -> u64 {
        self.open.load(Ordering::Relaxed)
    }

    /// Returns the number of clients accepted since the server started.
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Returns the number of requests refused before they reached a disk: malformed ones, and those
    /// that arrived during shutdown.
    pub fn refused_requests(&self) -> u64 {
        self.refused.iter().map(|refused| refused.load(Ordering::Relaxed)).sum()
    }
}

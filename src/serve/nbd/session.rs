//! The state behind a connection: what all connections of a server share, and what the parts of
//! one connection share. Data only; who does what with it is in `connection`.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use super::Options;
use super::budget::{Budget, Share};
use super::replies::Replies;
use super::request::{Shape, Verb};
use super::stats::Counters;
use super::wire::Errno;
use crate::base::wait::WaitQueue;
use crate::base::{Error, ErrorKind};
use crate::runtime::Runtime;
use crate::serve::Disk;

/// What all connections of a server share.
pub(super) struct Shared<D> {
    pub(super) runtime: Runtime,
    pub(super) disk: Rc<D>,
    pub(super) options: Options,
    pub(super) budget: Rc<Budget>,
    pub(super) counters: Counters,
    pub(super) is_shutting_down: Cell<bool>,
    /// A connection ended, or went quiet during shutdown, or shutdown began.
    pub(super) changed: WaitQueue,
}

/// What the server knows of one connection.
pub(super) struct Link {
    pub(super) socket: Arc<OwnedFd>,
    /// Nothing under way: no request, no reply that is not sent.
    pub(super) is_quiet: Cell<bool>,
}

/// What the reader, the slots and the sender of one connection share.
pub(super) struct Session<D> {
    pub(super) shared: Rc<Shared<D>>,
    pub(super) share: Rc<Share>,
    pub(super) replies: Replies,
    /// The reader is in the middle of a request that was accepted.
    pub(super) is_accepting: Cell<bool>,
}

impl<D: Disk> Shared<D> {
    /// What the checks of a request need to know.
    pub(super) fn shape(&self) -> Shape {
        Shape { size_bytes: self.disk.size_bytes(), is_read_only: self.disk.is_read_only() }
    }
}

impl<D: Disk> Session<D> {
    /// The two ends of a connection that was accepted.
    pub(super) fn new(shared: Rc<Shared<D>>, socket: Arc<OwnedFd>) -> Self {
        let share = Share::new(shared.budget.clone());
        let replies = Replies::new(shared.runtime.clone(), socket);
        Self { shared, share, replies, is_accepting: Cell::new(false) }
    }

    /// Counts a request's outcome, logs a failure and gives its error value.
    pub(super) fn conclude(&self, verb: Verb, bytes: u64, result: Result<(), Error>) -> Errno {
        self.shared.counters.count(verb, bytes, result.is_err());
        let Err(error) = result else { return Errno::OK };
        match error.kind() {
            ErrorKind::Corrupt | ErrorKind::Medium | ErrorKind::Poisoned => {
                tracing::warn!("{verb:?} failed: {}", error.chain());
            }
            _ => tracing::debug!("{verb:?} refused by the disk: {}", error.chain()),
        }
        error.kind().into()
    }
}

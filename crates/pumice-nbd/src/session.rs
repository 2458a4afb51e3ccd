//! The state of connections: what all connections of a server share, and what the parts of one
//! connection share. Also ends requests; the order of steps is in `connection`.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use super::budget::{Budget, Share};
use super::chunks::ReplyTo;
use super::elsewhere::Elsewhere;
use super::export::{Export, Offer};
use super::handover::Known;
use super::replies::{AllPending, Replies};
use super::request::{Command, Dialect, Refusal, Shape};
use super::wire::{Errno, Request};
use super::{Options, Security};
use crate::Disk;
use pumice_drive::base::wait::{Line, WaitQueue};
use pumice_drive::base::{Error, ErrorKind, Result};
use pumice_drive::runtime::{Runtime, shutdown_socket};

/// What all connections of a server share.
pub(super) struct Shared<D> {
    pub(super) runtime: Runtime,
    pub(super) exports: Vec<Rc<Export<D>>>,
    /// Exports on other threads; offered after those on this one.
    pub(super) elsewhere: Vec<Rc<Elsewhere>>,
    pub(super) options: Options,
    pub(super) budget: Rc<Budget>,
    pub(super) all_pending: Rc<AllPending>,
    pub(super) stage: Cell<Stage>,
    /// Wakes waiters when a connection ended, chose its export, or became quiet during shutdown,
    /// and when the stage changed.
    pub(super) changed: WaitQueue,
}

/// Where an export is.
pub(super) enum Place<D> {
    /// On this thread.
    Here(Rc<Export<D>>),
    /// On another thread, at this position.
    There(Rc<Elsewhere>, usize),
}

impl<D: Disk> Shared<D> {
    /// Returns what a handshake tells about the exports.
    pub(super) fn offers(&self) -> Vec<Offer<'_>> {
        let here = self.exports.iter().map(Offer::from);
        here.chain(self.elsewhere.iter().flat_map(|other| other.offers())).collect()
    }

    /// Returns the place of the offer at `index`.
    pub(super) fn place(&self, index: usize) -> Place<D> {
        if let Some(export) = self.exports.get(index) {
            return Place::Here(export.clone());
        }
        let mut index = index - self.exports.len();
        for other in &self.elsewhere {
            if index < other.exports.len() {
                return Place::There(other.clone(), index);
            }
            index -= other.exports.len();
        }
        unreachable!("an offer is an export");
    }

    /// Returns why a client of another server cannot continue on the offer at `index`.
    pub(super) fn objection(&self, known: &Known, index: usize) -> Option<&'static str> {
        if matches!(self.options.security, Security::Require(_)) {
            return Some("TLS is required now");
        }
        match self.place(index) {
            Place::Here(export) => known.objection(&export.lineage.follows, export.shape()),
            Place::There(other, index) => {
                let export = other.exports.get(index).expect("a place is in its list");
                known.objection(&export.follows, export.shape)
            }
        }
    }

    /// Returns the shape of the offer at `index`; `None` if its thread has ended.
    pub(super) async fn shape(&self, index: usize) -> Option<Shape> {
        match self.place(index) {
            Place::Here(export) => Some(export.shape()),
            Place::There(other, index) => other.shape(index).await,
        }
    }
}

/// How a server treats its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Serves existing and new clients.
    Open,
    /// Accepts no new clients; those in their handshake continue.
    Closed,
    /// Stops reading between two requests: the connections are handed over.
    Parking,
    /// Refuses requests: the connections end.
    ShuttingDown,
}

/// What the server knows about a connection.
pub(super) struct Link {
    pub(super) socket: Arc<OwnedFd>,
    /// Address of the client, for the log.
    pub(super) client: String,
    /// Nothing is in flight: no request, no unsent reply.
    pub(super) is_quiet: Cell<bool>,
    /// The client has not chosen an export yet.
    pub(super) is_haggling: Cell<bool>,
    /// The connection waits for its client: for the rest of a request, or for room to send replies.
    pub(super) waits_for_client: Cell<bool>,
}

impl Link {
    /// Ends all traffic at once, also of a connection that another thread continues.
    pub(super) fn cut(&self) {
        shutdown_socket(&self.socket);
    }
}

/// What the receiver, the slots and the sender of one connection share.
pub(super) struct Session<D> {
    pub(super) shared: Rc<Shared<D>>,
    pub(super) export: Rc<Export<D>>,
    /// Address of the client, for the log.
    pub(super) client: String,
    pub(super) dialect: Dialect,
    pub(super) share: Rc<Share>,
    pub(super) replies: Replies,
    /// The receiver is in the middle of a request, also of one that it refuses.
    pub(super) is_in_request: Cell<bool>,
    /// Requests for the status of blocks: one answer of up to 64 KiB at a time.
    pub(super) statuses: Line,
}

impl<D: Disk> Session<D> {
    /// Returns the transmission phase of a client that chose `export`.
    pub(super) fn new(
        shared: Rc<Shared<D>>,
        export: Rc<Export<D>>,
        client: String,
        dialect: Dialect,
        replies: Replies,
    ) -> Self {
        let share = Share::new(shared.budget.clone());
        Self {
            shared,
            export,
            client,
            dialect,
            share,
            replies,
            is_in_request: Cell::new(false),
            statuses: Line::default(),
        }
    }

    /// Returns the fields of a command that its reply repeats.
    pub(super) fn reply_to(&self, command: &Command) -> ReplyTo {
        let Command { cookie, offset, .. } = *command;
        ReplyTo { headers: self.dialect.headers, cookie, offset }
    }

    /// Logs a command that failed, and appends its reply, which has no data.
    pub(super) fn answer(&self, command: &Command, result: Result<()>) {
        self.log_failure(command, &result);
        match &result {
            Ok(()) => {
                let to = self.reply_to(command);
                self.replies.append_with(|out| to.append_done(out));
            }
            Err(error) => self.append_failure(command, error, None),
        }
    }

    /// Counts and refuses a request.
    pub(super) fn refuse(&self, request: &Request, (error, message): Refusal) {
        self.export.count_refused();
        let Request { cookie, offset, .. } = *request;
        tracing::debug!(
            export = %self.export.name,
            client = %self.client,
            command = request.command,
            offset,
            length = request.length,
            reason = message,
            "request refused"
        );
        let to = ReplyTo { headers: self.dialect.headers, cookie, offset };
        self.replies.append_with(|out| to.append_error(out, error, message, None));
    }

    /// Appends the reply to a command that the disk failed; `at` is the byte of the export that
    /// failed, if known. Paths and causes are for the log and not for clients.
    pub(super) fn append_failure(&self, command: &Command, error: &Error, at: Option<u64>) {
        let to = self.reply_to(command);
        let value = Errno::from(error.kind());
        let message = match error.kind() {
            ErrorKind::NoSpace => "the drive is full",
            ErrorKind::ReadOnly => "the drive is read-only",
            ErrorKind::Corrupt => "the data is damaged: see the log of the server",
            ErrorKind::Poisoned => {
                "writes are refused after an earlier failure: see the log of the server"
            }
            _ => "the request failed: see the log of the server",
        };
        self.replies.append_with(|out| to.append_error(out, value, message, at));
    }

    /// Logs a command that the disk failed: as a warning if the drive is damaged or can no longer
    /// store data.
    pub(super) fn log_failure(&self, command: &Command, result: &Result<()>) {
        let Err(error) = result else { return };
        let Command { verb, offset, length, .. } = *command;
        let (kind, error, command) = (error.kind(), error.chain(), verb.name());
        macro_rules! failed {
            ($level:ident) => {
                tracing::$level!(
                    export = %self.export.name,
                    client = %self.client,
                    command,
                    offset,
                    length,
                    ?kind,
                    %error,
                    "request failed"
                )
            };
        }
        if kind.is_failure_of_storage() {
            failed!(warn);
        } else {
            failed!(debug);
        }
    }
}

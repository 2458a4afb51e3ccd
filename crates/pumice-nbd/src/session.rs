//! The state shared by all connections of a server, and the state shared by the parts of one
//! connection. Also ends requests. The order of steps is in `connection`.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::budget::{Budget, Share};
use super::caller::{Caller, Chosen};
use super::chunks::ReplyTo;
use super::export::{Announcement, Earlier, Export, Offer};
use super::handover::Known;
use super::notices::Notices;
use super::policy::Policy;
use super::rate::Limits;
use super::remote_exports::RemoteExports;
use super::replies::{AllPending, Replies};
use super::request::{Command, Dialect, Refusal, Shape};
use super::spare_time::SpareTime;
use super::tally::Tally;
use super::wire::{Errno, Request};
use super::{Options, Security};
use pumice_drive::base::Clock;
use pumice_drive::base::wait::{Line, WaitQueue};
use pumice_drive::base::{Error, ErrorKind, Result};
use pumice_drive::runtime::Runtime;

/// The state shared by all connections of a server.
pub(super) struct Shared {
    pub(super) runtime: Runtime,
    pub(super) exports: RefCell<Vec<Rc<Export>>>,
    /// Exports on other threads, offered after the exports on this one.
    pub(super) remote: Vec<Rc<RemoteExports>>,
    pub(super) options: Options,
    /// Applies to new connections.
    pub(super) security: RefCell<Security>,
    pub(super) policy: RefCell<Policy>,
    pub(super) notices: Notices,
    pub(super) links: RefCell<Vec<Rc<Link>>>,
    pub(super) tally: Arc<Tally>,
    pub(super) budget: Rc<Budget>,
    pub(super) all_pending: Rc<AllPending>,
    pub(super) spare_time: Rc<SpareTime>,
    pub(super) stage: Cell<Stage>,
    /// Wakes waiters when a connection has ended, has chosen its export, or has become quiet during
    /// shutdown, and when the stage has changed.
    pub(super) changed: WaitQueue,
}

/// An export and its location. It may be withdrawn at any time, and stays usable until this is
/// dropped.
pub(super) enum Place {
    /// On this thread.
    Local(Rc<Export>),
    /// On another thread.
    Remote(Rc<RemoteExports>, Arc<Announcement>),
}

impl Place {
    /// Returns the description of the export for a handshake.
    pub(super) fn offer(&self) -> Offer<'_> {
        match self {
            Self::Local(export) => Offer {
                name: &export.name,
                description: &export.description,
                earlier: export.earlier.as_ref(),
            },
            Self::Remote(_, export) => Offer {
                name: &export.name,
                description: &export.description,
                earlier: export.earlier.as_ref(),
            },
        }
    }

    /// Returns the choices of a client that uses this export and this dialect.
    pub(super) fn chosen(&self, dialect: &Dialect) -> Chosen {
        Chosen {
            export: self.name().to_owned(),
            rules: self.ruled_by().to_owned(),
            states: dialect.changes.iter().map(|changes| changes.state.clone()).collect(),
        }
    }

    /// Returns the name of the export whose rules apply.
    pub(super) fn ruled_by(&self) -> &str {
        self.offer().ruled_by()
    }

    /// Returns whether both are the same export.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Local(one), Self::Local(other)) => Rc::ptr_eq(one, other),
            (Self::Remote(_, one), Self::Remote(_, other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }

    /// Returns the name of the export.
    pub(super) fn name(&self) -> &str {
        self.offer().name
    }

    /// Returns the counter of refused requests.
    pub(super) fn refused(&self) -> &Arc<AtomicU64> {
        match self {
            Self::Local(export) => export.refused(),
            Self::Remote(_, export) => &export.refused,
        }
    }

    /// Returns the rate limits of the export's requests.
    pub(super) fn limits(&self) -> &Limits {
        match self {
            Self::Local(export) => &export.limits,
            Self::Remote(_, export) => &export.limits,
        }
    }

    /// Returns the shape of the export; `None` if its thread has ended, or no longer has the
    /// export.
    pub(super) async fn shape(&self) -> Option<Shape> {
        match self {
            Self::Local(export) => Some(export.shape()),
            Self::Remote(other, export) => other.shape(&export.name).await,
        }
    }
}

impl Shared {
    /// Returns the exports that clients may choose now.
    pub(super) fn places(&self) -> Vec<Place> {
        let here = self.exports.borrow();
        let here = here.iter().cloned().map(Place::Local);
        let there = self.remote.iter().flat_map(|other| {
            let exports = other.exports.borrow().clone();
            exports.into_iter().map(|export| Place::Remote(other.clone(), export))
        });
        here.chain(there).collect()
    }

    /// Returns the reason why a client may not use an export under the rules of `name` now, if any.
    pub(super) fn admission(&self, name: &str, caller: &Caller) -> Option<&'static str> {
        let policy = self.policy.borrow();
        let rules = policy.rules.get(name)?;
        rules.objection(caller).or_else(|| {
            let is_full = |max| self.clients_ruled_by(name) >= max;
            let is_full = rules.connections_max.is_some_and(is_full);
            is_full.then_some("the export has reached its limit of connections")
        })
    }

    /// Returns the number of clients that have chosen an export.
    pub(super) fn users_of(&self, export: &str) -> usize {
        let links = self.links.borrow();
        links.iter().filter(|link| link.caller.export() == Some(export)).count()
    }

    /// Returns the number of clients under the rules of an export: its own clients, and the clients
    /// of earlier states of its disk.
    pub(super) fn clients_ruled_by(&self, name: &str) -> usize {
        let links = self.links.borrow();
        links.iter().filter(|link| link.caller.rules() == Some(name)).count()
    }

    /// Returns the number of clients that read an earlier state of a disk.
    pub(super) fn readers_of(&self, export: &str, state: &Earlier) -> usize {
        let links = self.links.borrow();
        links.iter().filter(|link| link.caller.reads(export, state)).count()
    }

    /// Returns the reason why a client of another server cannot continue at this place.
    pub(super) fn objection(
        &self,
        known: &Known,
        place: &Place,
        caller: &Caller,
    ) -> Option<&'static str> {
        if matches!(&*self.security.borrow(), Security::Require(_)) {
            return Some("TLS is required now");
        }
        let changed = match place {
            Place::Local(export) => known.objection(&export.lineage.follows, export.shape()),
            Place::Remote(_, export) => known.objection(&export.lineage.follows, export.shape),
        };
        changed.or(self.policy.borrow().objection(place.ruled_by(), caller))
    }

    /// Counts and logs that a client is refused.
    pub(super) fn note_refused(
        &self,
        caller: &Caller,
        export: Option<&str>,
        reason: impl std::fmt::Display,
    ) {
        self.tally.refused_clients.fetch_add(1, Ordering::Relaxed);
        self.notices.refused(self.runtime.now_ns(), caller, export, reason);
    }
}

/// The stage of a server, which determines how it treats its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Serves existing and new clients.
    Open,
    /// Accepts no new clients; clients in their handshake continue.
    Closed,
    /// Stops reading between two requests: the connections are handed over.
    Parking,
    /// Refuses requests: the connections end.
    ShuttingDown,
}

/// A connection as its server sees it.
pub(super) struct Link {
    pub(super) caller: Arc<Caller>,
    /// Whether this server has accepted the client or continues it. Otherwise, another thread has
    /// accepted the client, and is notified of its end.
    pub(super) is_own: bool,
    /// Whether nothing is in flight: no request, no unsent reply.
    pub(super) is_quiet: Cell<bool>,
    /// Whether the client has not chosen an export yet.
    pub(super) is_haggling: Cell<bool>,
    /// Whether the connection waits for its client: for the rest of a request, or for space to send
    /// replies.
    pub(super) waits_for_client: Cell<bool>,
}

impl Link {
    /// Ends all traffic immediately, even of a connection that another thread continues.
    pub(super) fn cut(&self) {
        self.caller.cut();
    }
}

/// The state shared by the receiver, the slots and the sender of one connection.
pub(super) struct Session {
    pub(super) shared: Rc<Shared>,
    pub(super) export: Rc<Export>,
    pub(super) caller: Arc<Caller>,
    pub(super) dialect: Dialect,
    pub(super) share: Rc<Share>,
    pub(super) replies: Replies,
    /// Whether the receiver is in the middle of a request, possibly of a refused one.
    pub(super) is_in_request: Cell<bool>,
    /// Requests for the status of blocks: one answer of up to 64 KiB at a time.
    pub(super) statuses: Line,
}

impl Session {
    /// Returns the transmission phase of a client that chose `export`.
    pub(super) fn new(
        shared: Rc<Shared>,
        export: Rc<Export>,
        caller: Arc<Caller>,
        dialect: Dialect,
        replies: Replies,
    ) -> Self {
        let share = Share::new(shared.budget.clone());
        Self {
            shared,
            export,
            caller,
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
            client = %self.caller,
            command = request.command,
            offset,
            length = request.length,
            reason = message,
            "request refused"
        );
        let to = ReplyTo { headers: self.dialect.headers, cookie, offset };
        self.replies.append_with(|out| to.append_error(out, error, message, None));
    }

    /// Appends the reply to a command that failed on the disk; `at` is the byte of the export that
    /// failed, if known. Paths and causes are only for the log, not for clients.
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

    /// Logs a command that failed on the disk: as a warning if the drive is damaged or can no
    /// longer store data.
    pub(super) fn log_failure(&self, command: &Command, result: &Result<()>) {
        let Err(error) = result else { return };
        let Command { verb, offset, length, .. } = *command;
        let (kind, error, command) = (error.kind(), error.chain(), verb.name());
        macro_rules! failed {
            ($level:ident) => {
                tracing::$level!(
                    export = %self.export.name,
                    client = %self.caller,
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

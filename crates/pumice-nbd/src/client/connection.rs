//! One connection in its transmission phase: sends requests, waits for their answers, and ends.
//!
//! Three kinds of tasks meet here: the callers, which append requests and wait; one sender; one
//! receiver (`receiver`). Invariants: the first task that ends the connection sets the reason,
//! which all callers receive; the socket is then shut down, so that sender and receiver end; the
//! receiver ends last, and no caller waits once it has ended.

use std::cell::{Cell, OnceCell, RefCell};
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::super::wire::{Errno, Request, command};
use super::handshake::Export;
use super::outgoing::{Outgoing, Payload};
use super::table::{Key, Outcome, Table, Target};
use pumice_drive::base::wait::WaitQueue;
use pumice_drive::base::{Error, ErrorKind, Result};
use pumice_drive::runtime::{Runtime, shutdown_socket};

/// Time limit of an orderly disconnect. Requests in flight are answered first, which takes a slow
/// disk with a full write cache several seconds.
const DISCONNECT_NS: u64 = 30_000_000_000;

/// The reason why a connection accepts no more requests.
#[derive(Debug)]
pub(super) struct End {
    /// The client disconnected, and nothing was in flight.
    pub(super) is_orderly: bool,
    pub(super) what: String,
}

impl End {
    /// Returns an unexpected end.
    pub(super) fn lost(what: impl Into<String>) -> Self {
        Self { is_orderly: false, what: what.into() }
    }
}

/// A request without its payload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    /// A value of [`command`].
    pub(super) command: u16,
    /// `COMMAND_FLAG_` bits.
    pub(super) flags: u16,
    pub(super) offset: u64,
    pub(super) length: u32,
}

impl Call {
    fn failed(&self, kind: ErrorKind, what: &str) -> Error {
        let Self { command, offset, length, .. } = *self;
        let verb = verb(command);
        match command {
            command::FLUSH => Error::new(kind, format!("NBD flush failed: {what}")),
            _ => Error::new(kind, format!("NBD {verb} of {length} bytes failed: {what}"))
                .at_offset(offset),
        }
    }
}

/// Returns the name of a command for an error.
pub(super) fn verb(command: u16) -> &'static str {
    match command {
        command::READ => "read",
        command::WRITE => "write",
        command::FLUSH => "flush",
        command::TRIM => "trim",
        command::WRITE_ZEROES => "write-zeroes",
        _ => "request",
    }
}

/// The state shared by the tasks of a connection.
pub(super) struct Connection {
    pub(super) runtime: Runtime,
    pub(super) socket: Arc<OwnedFd>,
    /// The URI, for errors.
    pub(super) uri: String,
    pub(super) export: Export,
    pub(super) table: RefCell<Table>,
    outgoing: Outgoing,
    end: OnceCell<End>,
    is_leaving: Cell<bool>,
    /// Wakes waiters for space, for a change in the number of requests, and for the end.
    pub(super) changed: WaitQueue,
}

impl Connection {
    /// Returns a connection after its handshake. The caller starts sender and receiver.
    pub(super) fn new(
        runtime: Runtime,
        socket: Arc<OwnedFd>,
        uri: String,
        export: Export,
    ) -> Rc<Self> {
        Rc::new(Self {
            runtime,
            socket,
            uri,
            export,
            table: RefCell::default(),
            outgoing: Outgoing::default(),
            end: OnceCell::new(),
            is_leaving: Cell::new(false),
            changed: WaitQueue::default(),
        })
    }

    /// Waits for space, sends a request and waits for its answer. Always returns the target of a
    /// read.
    ///
    /// # Errors
    /// Errors of the server, with the error value as the cause; `Io` if the connection ended.
    pub(super) async fn call(
        &self,
        call: Call,
        payload: Payload<'_>,
        target: Option<Target>,
    ) -> (Option<Target>, Result<()>) {
        let may_begin = || match self.refusal(&call) {
            Some(refused) => Some(Err(refused)),
            None => self.has_room().then_some(Ok(())),
        };
        if let Err(refused) = self.changed.wait_for(may_begin).await {
            return (target, Err(refused));
        }
        let key = self.table.borrow_mut().begin(target);
        let Call { command, flags, offset, length } = call;
        let length = u64::from(length);
        let request = Request { flags, command, cookie: key.cookie(), offset, length };
        self.outgoing.append(&request, payload);
        let (outcome, target) = Answer { connection: self, key: Some(key) }.await;
        let result = match outcome {
            Outcome::Answered(Errno::OK) => Ok(()),
            Outcome::Answered(error) => Err(self.refused(&call, error)),
            Outcome::Lost => Err(self.lost(&call)),
        };
        (target, result)
    }

    fn has_room(&self) -> bool {
        self.table.borrow().has_room() && self.outgoing.has_room()
    }

    /// Returns the reason why no more requests are possible.
    fn refusal(&self, call: &Call) -> Option<Error> {
        if self.end.get().is_some() {
            return Some(self.lost(call));
        }
        self.is_leaving.get().then(|| call.failed(ErrorKind::Io, "the client is disconnecting"))
    }

    /// Returns the error of a server, with its value as the cause.
    fn refused(&self, call: &Call, error: Errno) -> Error {
        let value = error.to_wire();
        match error.known() {
            // The values of the protocol are the values of Linux.
            Some(kind) => call
                .failed(kind, "the server reports an error")
                .caused_by(io::Error::from_raw_os_error(value as i32)),
            None => {
                let what = format!("the server reports error {value}, which NBD does not define");
                call.failed(ErrorKind::InvalidInput, &what)
            }
        }
    }

    fn lost(&self, call: &Call) -> Error {
        let why = self.end.get().map_or("it ended", |end| &end.what);
        let what = format!("no connection to {}: {why}", self.uri);
        call.failed(ErrorKind::Io, &what)
    }

    /// Sends appended requests until the connection ends.
    pub(super) async fn send(self: Rc<Self>) {
        loop {
            let has_ended = || self.end.get().is_some();
            let made_room = || self.changed.wake_all();
            let sent =
                self.outgoing.send_pending(&self.runtime, &self.socket, has_ended, made_room);
            match sent.await {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => return self.end(End::lost(format!("cannot send: {error}"))),
            }
        }
    }

    /// Ends the connection. Only the first reason counts.
    pub(super) fn end(&self, end: End) {
        // Fails if the connection has already ended.
        let _ = self.end.set(end);
        shutdown_socket(&self.socket);
        self.outgoing.wake_sender();
        self.changed.wake_all();
    }

    /// Returns whether the end of the stream was requested.
    pub(super) fn is_left(&self) -> bool {
        self.is_leaving.get() && self.table.borrow().count() == 0
    }

    /// Refuses new requests, waits for the answers to requests in flight, and disconnects.
    ///
    /// # Errors
    /// `Io` if the connection was lost before, or on timeout.
    pub(super) async fn disconnect(&self) -> Result<()> {
        let is_first = !self.is_leaving.replace(true);
        self.changed.wake_all();
        let has_ended = || self.end.get().is_some();
        let leave = async {
            let is_quiet = || (self.table.borrow().count() == 0 || has_ended()).then_some(());
            self.changed.wait_for(is_quiet).await;
            if is_first {
                let (command, cookie, offset, length) = (command::DISC, 0, 0, 0);
                let request = Request { flags: 0, command, cookie, offset, length };
                self.outgoing.append(&request, Payload::None);
            }
            self.changed.wait_for(|| has_ended().then_some(())).await;
        };
        if self.runtime.timeout(DISCONNECT_NS, leave).await.is_none() {
            self.end(End::lost("the server did not close it within 30 s"));
        }
        match self.end.get() {
            Some(end) if !end.is_orderly => {
                let what = format!("the connection to {} is lost: {}", self.uri, end.what);
                Err(Error::new(ErrorKind::Io, what))
            }
            _ => Ok(()),
        }
    }
}

/// A wait for the end of one request. Dropping it abandons the request.
struct Answer<'a> {
    connection: &'a Connection,
    /// Absent once the request has ended.
    key: Option<Key>,
}

impl Future for Answer<'_> {
    type Output = (Outcome, Option<Target>);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let key = self.key.expect("polled after its end");
        let poll = self.connection.table.borrow_mut().poll(key, context);
        if poll.is_ready() {
            self.key = None;
            self.connection.changed.wake_all();
        }
        poll
    }
}

impl Drop for Answer<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.connection.table.borrow_mut().abandon(key);
            self.connection.changed.wake_all();
        }
    }
}

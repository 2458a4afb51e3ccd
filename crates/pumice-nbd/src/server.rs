//! Accepts connections, and ends them all.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use futures_util::future::{join, join_all};

use super::budget::Budget;
use super::connection;
use super::elsewhere::{self, Elsewhere};
use super::export::Export;
use super::handover::{Handover, Parked};
use super::replies::AllPending;
use super::session::{Link, Place, Shared, Stage};
use super::tally::Tally;
use super::tls::{Identity, Tls};
use crate::{Disk, Listener};
use pumice_drive::base::wait::WaitQueue;
use pumice_drive::base::{Clock, Result};
use pumice_drive::runtime::{Runtime, shutdown_socket};

/// Pause after a failed accept: while the process is out of file descriptors, accept fails at once,
/// again and again, until a connection ends.
const ACCEPT_RETRY_NS: u64 = 100_000_000;

/// Security and limits of a server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Whether clients may or must use TLS.
    pub security: Security,
    /// Time a client has for the handshake, in nanoseconds.
    pub handshake_ns: u64,
    /// Time for requests in flight and unsent replies once the client has sent its last request, or
    /// the server shuts down, in nanoseconds.
    pub grace_ns: u64,
    /// Concurrent connections. Beyond this number a new client replaces the one that has been in
    /// its handshake longest, or waits if there is none.
    pub connections_max: usize,
    /// Memory for the payloads of all connections, in bytes. Each connection may take 1 MiB in
    /// addition, so that no connection can block another.
    pub payload_bytes: usize,
    /// Memory for replies of all connections that their clients have not taken, in bytes. Beyond it
    /// each connection may have 64 KiB.
    pub reply_bytes: usize,
}

impl Options {
    /// Returns the options of one of `count` servers, each on its own thread, that share this
    /// memory.
    #[must_use]
    pub fn shared_by(self, count: usize) -> Self {
        let (payload_bytes, reply_bytes) = (self.payload_bytes / count, self.reply_bytes / count);
        Self { payload_bytes, reply_bytes, ..self }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            security: Security::Clear,
            // A client on the other side of the world needs a second.
            handshake_ns: 10_000_000_000,
            // Long enough for a client that reads its replies, and a limit for one that does not.
            grace_ns: 5_000_000_000,
            // Clients open 1 to 16; one with many requests in flight costs up to 1.7 MiB.
            connections_max: 256,
            // Two of the longest reads, or 64 long writes.
            payload_bytes: 64 << 20,
            // Arbitrary: a deep queue for each of 32 clients.
            reply_bytes: 32 << 20,
        }
    }
}

/// Whether clients may or must use TLS.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Security {
    /// No TLS.
    Clear,
    /// TLS for clients that ask for it.
    Allow(Identity),
    /// TLS for all clients; nothing is revealed before.
    Require(Identity),
}

/// Serves disks to any number of clients.
pub struct Server<D: Disk> {
    shared: Rc<Shared<D>>,
    links: RefCell<Vec<Rc<Link>>>,
    tally: Arc<Tally>,
    listeners: RefCell<Vec<Arc<OwnedFd>>>,
    /// What [`Self::hand_over`] has collected so far.
    handover: RefCell<Handover>,
}

impl<D: Disk + 'static> Server<D> {
    /// Returns a server of `exports` that does not listen yet.
    ///
    /// # Panics
    /// If there are no exports.
    pub fn new(runtime: Runtime, exports: Vec<Rc<Export<D>>>, options: Options) -> Rc<Self> {
        Self::with(runtime, exports, Vec::new(), options)
    }

    /// Returns a server of the exports of other servers, on other threads, that does not listen
    /// yet. It performs the handshakes, and knows when each client has ended; all else is up to the
    /// other threads.
    ///
    /// # Panics
    /// If there are no exports.
    pub fn in_front_of(runtime: Runtime, others: Vec<Elsewhere>, options: Options) -> Rc<Self> {
        Self::with(runtime, Vec::new(), others, options)
    }

    fn with(
        runtime: Runtime,
        exports: Vec<Rc<Export<D>>>,
        elsewhere: Vec<Elsewhere>,
        options: Options,
    ) -> Rc<Self> {
        let here = exports.iter().map(|export| export.refused().clone());
        let there = elsewhere.iter().flat_map(|other| &other.exports);
        let refused: Vec<_> = here.chain(there.map(|export| export.refused.clone())).collect();
        assert!(!refused.is_empty(), "a server needs at least one export");
        let budget = Budget::new(options.payload_bytes);
        let all_pending = AllPending::new(options.reply_bytes);
        let shared = Rc::new(Shared {
            runtime,
            exports,
            elsewhere: elsewhere.into_iter().map(Rc::new).collect(),
            options,
            budget,
            all_pending,
            stage: Cell::new(Stage::Open),
            changed: WaitQueue::default(),
        });
        Rc::new(Self {
            shared,
            links: RefCell::default(),
            tally: Arc::new(Tally { refused, ..Tally::default() }),
            listeners: RefCell::default(),
            handover: RefCell::default(),
        })
    }

    /// Accepts clients on `listener` until [`Self::shutdown`] or [`Self::hand_over`]. May be called
    /// for several listeners.
    pub async fn serve(self: Rc<Self>, listener: Listener) {
        let socket = listener.socket().clone();
        self.listeners.borrow_mut().push(socket.clone());
        self.accept_clients(&listener).await;
        match self.shared.stage.get() {
            Stage::ShuttingDown => drop(listener),
            _ => self.handover.borrow_mut().listeners.push(listener),
        }
        self.listeners.borrow_mut().retain(|other| !Arc::ptr_eq(other, &socket));
        self.shared.changed.wake_all();
    }

    async fn accept_clients(self: &Rc<Self>, listener: &Listener) {
        let Shared { runtime, changed, stage, .. } = &*self.shared;
        loop {
            match self.accept(listener).await {
                None => return,
                Some(Ok(socket)) => match listener.prepare(&socket) {
                    Ok(()) => {
                        let may_enter = || stage.get() != Stage::Open || self.make_room();
                        changed.wait_for(|| may_enter().then_some(())).await;
                        if stage.get() == Stage::ShuttingDown {
                            return;
                        }
                        self.start(socket);
                    }
                    Err(error) => tracing::debug!(%error, "client disconnected at once"),
                },
                Some(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Some(Err(error)) => {
                    tracing::warn!(%error, "cannot accept a connection: retrying");
                    runtime.sleep_ns(ACCEPT_RETRY_NS).await;
                }
            }
        }
    }

    /// Whether another client can be served, if necessary in place of one that has not chosen an
    /// export yet: clients that connect and stay silent must not keep others out.
    fn make_room(&self) -> bool {
        let links = self.links.borrow();
        if links.len() < self.shared.options.connections_max {
            return true;
        }
        let Some(longest) = links.iter().find(|link| link.is_haggling.get()) else {
            tracing::warn!(connections = links.len(), "connection limit reached: new clients wait");
            return false;
        };
        tracing::warn!(
            connections = links.len(),
            client = %longest.client,
            "connection limit reached: closing the oldest connection still in its handshake"
        );
        // Only once; the connection ends at its next turn.
        longest.is_haggling.set(false);
        longest.cut();
        true
    }

    /// Returns the next client; `None` once no more are accepted.
    ///
    /// Shutting down the listening socket does not wake every accept (a non-blocking Unix socket
    /// keeps returning EAGAIN), so the accept is abandoned instead.
    async fn accept(&self, listener: &Listener) -> Option<io::Result<OwnedFd>> {
        let Shared { runtime, changed, stage, .. } = &*self.shared;
        if stage.get() != Stage::Open {
            return None;
        }
        let mut accepted = pin!(runtime.accept(listener.socket()));
        let is_shutting_down = || stage.get() == Stage::ShuttingDown;
        let mut stopped = pin!(changed.wait_for(|| is_shutting_down().then_some(())));
        poll_fn(|context| match stopped.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => accepted.as_mut().poll(context).map(Some),
        })
        .await
    }

    /// Serves the client at the other end of `socket`, which is in blocking mode, in a task.
    pub fn start(self: &Rc<Self>, socket: OwnedFd) {
        let link = self.link(Arc::new(socket), true);
        self.tally.accepted.fetch_add(1, Ordering::Relaxed);
        self.follow(link.clone(), connection::serve(self.shared.clone(), link));
    }

    /// Continues a client that another server has handed over, in a task. The connection is closed
    /// if its export is no longer served or does not follow what the client knows (see
    /// [`Lineage`](super::Lineage)), has become smaller or read-only, or if TLS is required.
    pub fn resume(self: &Rc<Self>, parked: Parked) {
        let shared = self.shared.clone();
        let index = shared.offers().iter().position(|offer| offer.name == parked.export);
        let objection = match index {
            None => Some("its export is no longer served"),
            Some(index) => shared.objection(&parked.known, index),
        };
        let (Some(index), None) = (index, objection) else {
            let (export, client) = (&parked.export, client_address(&parked.socket));
            tracing::warn!(%export, %client, reason = objection, "closing a connection");
            return;
        };
        let link = self.link(parked.socket.clone(), false);
        match shared.place(index) {
            Place::Here(export) => {
                self.follow(link.clone(), connection::resume(shared, export, link, parked, None));
            }
            Place::There(other, _) => {
                self.follow(link.clone(), connection::resume_there(other, link, parked));
            }
        }
    }

    /// Serves a client that has chosen one of these exports on another thread, in a task; calls
    /// `ended` with the client if it was parked.
    pub(super) fn enter(
        self: &Rc<Self>,
        client: Parked,
        tls: Option<Tls>,
        ended: impl FnOnce(Option<Parked>) + 'static,
    ) {
        let export = self.exports().iter().find(|export| export.name == client.export);
        let export = export.expect("the export was announced").clone();
        let link = self.link(client.socket.clone(), false);
        let served = connection::resume(self.shared.clone(), export, link.clone(), client, tls);
        self.follow(link, async move {
            ended(served.await);
            None
        });
    }

    fn link(&self, socket: Arc<OwnedFd>, is_haggling: bool) -> Rc<Link> {
        let client = client_address(&socket);
        let (is_quiet, is_haggling) = (Cell::new(true), Cell::new(is_haggling));
        let waits_for_client = Cell::new(false);
        let link = Rc::new(Link { socket, client, is_quiet, is_haggling, waits_for_client });
        self.links.borrow_mut().push(link.clone());
        self.tally.open.fetch_add(1, Ordering::Relaxed);
        link
    }

    /// Runs a connection to its end, in a task.
    fn follow(
        self: &Rc<Self>,
        link: Rc<Link>,
        connection: impl Future<Output = Option<Parked>> + 'static,
    ) {
        let server = self.clone();
        self.shared.runtime.spawn(async move {
            let parked = connection.await;
            server.handover.borrow_mut().clients.extend(parked);
            server.links.borrow_mut().retain(|other| !Rc::ptr_eq(other, &link));
            server.tally.open.fetch_sub(1, Ordering::Relaxed);
            server.shared.changed.wake_all();
        });
    }

    /// Stops accepting and reading, completes the requests in flight, flushes the disks, and
    /// returns what the next server needs to continue: its clients notice nothing but a pause.
    /// Everything that was acknowledged to them is durable then.
    ///
    /// Clients in their handshake have [`Options::grace_ns`] to choose an export, while the other
    /// clients are served normally; then every client has the same time to complete a request and
    /// take its replies. A client that takes longer is disconnected, and so is an encrypted one,
    /// because its keys stay in this process. The flushes have no time limit.
    ///
    /// # Errors
    /// As for [`Self::shutdown`]: the first flush that failed. All clients are then disconnected,
    /// so that they notice.
    pub async fn hand_over(&self) -> Result<Handover> {
        let Shared { runtime, options, changed, stage, .. } = &*self.shared;
        stage.set(Stage::Closed);
        changed.wake_all();
        for listener in self.listeners.borrow().iter() {
            runtime.interrupt(listener);
        }
        let is_haggling = || self.links.borrow().iter().any(|link| link.is_haggling.get());
        let is_closed = || self.listeners.borrow().is_empty() && !is_haggling();
        let closed = changed.wait_for(|| is_closed().then_some(()));
        if runtime.timeout(options.grace_ns, closed).await.is_none() {
            tracing::warn!("closing connections that are still in their handshake");
        }
        stage.set(Stage::Parking);
        for link in self.links.borrow().iter() {
            if link.is_haggling.get() {
                link.cut();
            } else {
                runtime.interrupt(&link.socket);
            }
        }
        let elsewhere = self.shared.elsewhere.iter().map(|other| other.hand_over());
        let (flushed, ()) = join(join_all(elsewhere), self.parked()).await;
        let handover = self.handover.take();
        let flushed = flushed.into_iter().fold(Ok(()), Result::and);
        flushed.and(self.flush_all().await).map(|()| handover)
    }

    /// Waits until no connection is left; closes those that wait for their client at two checks in
    /// a row.
    async fn parked(&self) {
        let Shared { runtime, options, changed, .. } = &*self.shared;
        let is_over = || self.links.borrow().is_empty() && self.listeners.borrow().is_empty();
        let over = || changed.wait_for(|| is_over().then_some(()));
        let mut late: Vec<Rc<Link>> = Vec::new();
        while runtime.timeout(options.grace_ns / 2, over()).await.is_none() {
            let mut waiting = self.links.borrow().clone();
            waiting.retain(|link| link.waits_for_client.get());
            for link in &waiting {
                if late.iter().any(|other| Rc::ptr_eq(other, link)) {
                    tracing::warn!(
                        client = %link.client,
                        "closing a connection: its client did not complete a request in time"
                    );
                    link.cut();
                }
            }
            late = waiting;
        }
    }

    /// Stops accepting, answers new requests with ESHUTDOWN, lets requests in flight complete for
    /// at most [`Options::grace_ns`], flushes the disks, and closes the connections and listeners.
    ///
    /// The server waits for hosts for at most twice [`Options::grace_ns`]: for requests in flight,
    /// and for connections to close. The flush in between has no limit: a device with a full write
    /// cache needs minutes, and giving up would lose what is about to become durable. To stop
    /// earlier, end the process, which loses just that.
    ///
    /// # Errors
    /// The first flush that failed; the log names its export. What was acknowledged since the last
    /// good flush of that export may be lost. The other disks are flushed anyway.
    pub async fn shutdown(&self) -> Result<()> {
        let Shared { runtime, options, changed, stage, .. } = &*self.shared;
        stage.set(Stage::ShuttingDown);
        changed.wake_all();
        for listener in self.listeners.borrow().iter() {
            shutdown_socket(listener);
        }
        let elsewhere = self.shared.elsewhere.iter().map(|other| other.shut_down());
        let elsewhere = join_all(elsewhere).await;
        let is_quiet = || self.links.borrow().iter().all(|link| link.is_quiet.get());
        let quiet = changed.wait_for(|| is_quiet().then_some(()));
        if runtime.timeout(options.grace_ns, quiet).await.is_none() {
            tracing::warn!("shutting down with requests in flight");
        }
        let flushed = self.flush_all().await;
        let flushed = elsewhere.into_iter().fold(flushed, Result::and);
        for link in self.links.borrow().iter() {
            link.cut();
        }
        let is_over = || self.links.borrow().is_empty() && self.listeners.borrow().is_empty();
        let gone = changed.wait_for(|| is_over().then_some(()));
        if runtime.timeout(options.grace_ns, gone).await.is_none() {
            let connections = self.connections();
            tracing::warn!(connections, "connections still wait for the disk");
        }
        flushed
    }

    async fn flush_all(&self) -> Result<()> {
        let mut flushed = Ok(());
        for export in &self.shared.exports {
            if export.disk.is_read_only() {
                continue;
            }
            if let Err(error) = export.disk.flush().await {
                let (kind, chain) = (error.kind(), error.chain());
                tracing::error!(export = %export.name, ?kind, error = %chain, "flush failed");
                flushed = flushed.and(Err(error));
            }
        }
        flushed
    }

    /// Returns the number of clients connected now, including those in their handshake.
    pub fn connections(&self) -> usize {
        self.links.borrow().len()
    }

    /// Returns the exports.
    pub fn exports(&self) -> &[Rc<Export<D>>] {
        &self.shared.exports
    }

    /// Returns what the server has counted.
    pub fn tally(&self) -> &Arc<Tally> {
        &self.tally
    }

    /// Returns the exports for a server on another thread: see [`Self::in_front_of`]. That one then
    /// ends this one.
    pub fn elsewhere(self: &Rc<Self>) -> Elsewhere {
        elsewhere::of(self)
    }

    pub(super) fn runtime(&self) -> &Runtime {
        &self.shared.runtime
    }
}

/// Returns the address of the peer for the log: `IP:PORT`, or the process at the other end of a
/// Unix socket.
fn client_address(socket: &OwnedFd) -> String {
    let peer = rustix::net::getpeername(socket).ok().flatten();
    match peer.and_then(|address| SocketAddr::try_from(address).ok()) {
        Some(address) => address.to_string(),
        None => match rustix::net::sockopt::socket_peercred(socket) {
            Ok(credentials) => format!("unix:pid={}", credentials.pid),
            Err(_) => "unix".to_owned(),
        },
    }
}

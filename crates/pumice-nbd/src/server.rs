//! Accepts connections, and ends them all.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use async_channel::Sender;
use futures_util::future::{join, join_all};

use super::budget::Budget;
use super::caller::{Caller, Peer};
use super::connection;
use super::export::Export;
use super::handover::{Handover, Parked};
use super::notices::Notices;
use super::options::Options;
use super::remote_exports::{Entering, Order, Orders, RemoteExports};
use super::replies::AllPending;
use super::roster::Roster;
use super::session::{Link, Place, Shared, Stage};
use super::tally::Tally;
use super::tls::Tls;
use crate::Listener;
use pumice_drive::base::wait::WaitQueue;
use pumice_drive::base::{Clock, Result};
use pumice_drive::runtime::{Runtime, shutdown_socket};

/// Pause after a failed accept. While the process is out of file descriptors, every accept fails
/// immediately until a connection ends.
const ACCEPT_RETRY_NS: u64 = 100_000_000;

/// Serves disks to any number of clients.
pub struct Server {
    pub(super) shared: Rc<Shared>,
    roster: Arc<Roster>,
    listeners: RefCell<Vec<Arc<OwnedFd>>>,
    /// The state collected by [`Self::hand_over`] so far.
    handover: RefCell<Handover>,
}

impl Server {
    /// Returns a server of `exports` that does not listen yet.
    ///
    /// # Panics
    /// If there are no exports.
    pub fn new(runtime: Runtime, exports: Vec<Rc<Export>>, options: Options) -> Rc<Self> {
        assert!(!exports.is_empty(), "a server needs at least one export");
        Self::with(runtime, exports, Vec::new(), options)
    }

    /// Returns a server for the exports of other servers, on other threads, that does not listen
    /// yet. It performs the handshakes, and is notified when each client has ended; the other
    /// threads do all other work.
    ///
    /// # Panics
    /// If there are no exports.
    pub fn in_front_of(runtime: Runtime, others: Vec<RemoteExports>, options: Options) -> Rc<Self> {
        let has_exports = others.iter().any(|other| !other.exports.borrow().is_empty());
        assert!(has_exports, "a server needs at least one export");
        Self::with(runtime, Vec::new(), others, options)
    }

    fn with(
        runtime: Runtime,
        exports: Vec<Rc<Export>>,
        remote: Vec<RemoteExports>,
        options: Options,
    ) -> Rc<Self> {
        let budget = Budget::new(options.payload_bytes);
        let all_pending = AllPending::new(options.reply_bytes);
        let shared = Rc::new(Shared {
            runtime,
            exports: RefCell::new(exports),
            remote: remote.into_iter().map(Rc::new).collect(),
            security: RefCell::new(options.security.clone()),
            policy: RefCell::new(options.policy.clone()),
            notices: Notices::default(),
            links: RefCell::default(),
            tally: Arc::default(),
            options,
            budget,
            all_pending,
            spare_time: Rc::default(),
            stage: Cell::new(Stage::Open),
            changed: WaitQueue::default(),
        });
        let places = shared.places();
        // An earlier state is counted with its disk.
        let disks = places.iter().filter(|place| place.offer().earlier.is_none());
        disks.for_each(|place| shared.tally.add_refused(place.refused()));
        let server = Rc::new(Self {
            shared,
            roster: Arc::default(),
            listeners: RefCell::default(),
            handover: RefCell::default(),
        });
        server.settle();
        server
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
            let Some(accepted) = self.accept(listener).await else { return };
            let socket = match accepted {
                Ok(socket) => socket,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection: retrying");
                    runtime.sleep_ns(ACCEPT_RETRY_NS).await;
                    continue;
                }
            };
            if let Err(error) = listener.prepare(&socket) {
                tracing::debug!(%error, "client disconnected at once");
                continue;
            }
            let caller = self.caller(socket);
            if self.is_peer_full(&caller) {
                self.shared.note_refused(&caller, None, "too many connections of this peer");
                continue;
            }
            let may_enter = || stage.get() != Stage::Open || self.make_room();
            changed.wait_for(|| may_enter().then_some(())).await;
            if stage.get() == Stage::ShuttingDown {
                return;
            }
            self.admit(caller);
        }
    }

    /// Returns whether the peer of a client already has its maximum number of connections.
    fn is_peer_full(&self, caller: &Caller) -> bool {
        let Some(max) = self.shared.policy.borrow().connections_per_peer_max else { return false };
        let links = self.shared.links.borrow();
        let peer = caller.peer();
        links.iter().filter(|link| link.caller.peer() == peer).count() >= max
    }

    /// Frees a connection for another client, if necessary by disconnecting one that has not chosen
    /// an export yet: clients that connect and stay silent must not keep others out. Returns
    /// whether a connection is available.
    fn make_room(&self) -> bool {
        let Shared { runtime, links, notices, options, .. } = &*self.shared;
        let links = links.borrow();
        if links.len() < options.connections_max {
            return true;
        }
        // A client of the peer that has most of them, so that this peer does not drive out others.
        let mut counts: HashMap<Peer, usize> = HashMap::new();
        let haggling = || links.iter().filter(|link| link.is_haggling.get());
        haggling().for_each(|link| *counts.entry(link.caller.peer()).or_default() += 1);
        let most = counts.values().max();
        let oldest = haggling().find(|link| counts.get(&link.caller.peer()) == most);
        let caller = oldest.map(|link| &*link.caller);
        notices.full(runtime.now_ns(), links.len(), caller);
        let Some(oldest) = oldest else { return false };
        // The client is chosen only once; the connection ends at its next turn.
        oldest.is_haggling.set(false);
        oldest.cut();
        true
    }

    /// Returns the next client; `None` once the server accepts no more.
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
        self.admit(self.caller(socket));
    }

    fn caller(&self, socket: OwnedFd) -> Arc<Caller> {
        Caller::new(Arc::new(socket), self.shared.runtime.now_ns())
    }

    fn admit(self: &Rc<Self>, caller: Arc<Caller>) {
        let link = self.link(caller, true, true);
        self.shared.tally.accepted.fetch_add(1, Ordering::Relaxed);
        self.follow(link.clone(), connection::serve(self.shared.clone(), link));
    }

    /// Continues a client that another server has handed over, in a task. The connection is closed
    /// if its export is no longer served or does not follow the state on which the client relies
    /// (see [`Lineage`](super::Lineage)), has become smaller or read-only, or no longer admits the
    /// client, or if TLS is required.
    pub fn resume(self: &Rc<Self>, parked: Parked) {
        let shared = self.shared.clone();
        let caller = Caller::new(parked.socket.clone(), shared.runtime.now_ns());
        let place = shared.places().into_iter().find(|place| place.name() == parked.export);
        let objection = match &place {
            None => Some("its export is no longer served"),
            Some(place) => shared.objection(&parked.known, place, &caller),
        };
        let (Some(place), None) = (place, objection) else {
            let export = &parked.export;
            tracing::warn!(%export, client = %caller, reason = objection, "closing a connection");
            return;
        };
        caller.note_chosen(place.chosen(&parked.dialect));
        let link = self.link(caller, true, false);
        match place {
            Place::Local(export) => {
                self.follow(link.clone(), connection::resume(shared, export, link, parked, None));
            }
            Place::Remote(other, _) => {
                self.follow(link.clone(), connection::resume_there(other, link, parked));
            }
        }
    }

    /// Serves a client that has chosen this export on another thread, in a task. Calls `ended` with
    /// the client if it was parked.
    pub(super) fn enter(
        self: &Rc<Self>,
        export: Rc<Export>,
        client: Parked,
        caller: Arc<Caller>,
        tls: Option<Tls>,
        ended: impl FnOnce(Option<Parked>) + 'static,
    ) {
        let link = self.link(caller, false, false);
        let served = connection::resume(self.shared.clone(), export, link.clone(), client, tls);
        self.follow(link, async move {
            ended(served.await);
            None
        });
    }

    fn link(&self, caller: Arc<Caller>, is_own: bool, is_haggling: bool) -> Rc<Link> {
        if is_own {
            self.roster.add(&caller);
        }
        let (is_quiet, is_haggling) = (Cell::new(true), Cell::new(is_haggling));
        let waits_for_client = Cell::new(false);
        let link = Rc::new(Link { caller, is_own, is_quiet, is_haggling, waits_for_client });
        self.shared.links.borrow_mut().push(link.clone());
        self.shared.tally.open.fetch_add(1, Ordering::Relaxed);
        link
    }

    /// Runs a connection until it ends, in a task.
    fn follow(
        self: &Rc<Self>,
        link: Rc<Link>,
        connection: impl Future<Output = Option<Parked>> + 'static,
    ) {
        let server = self.clone();
        self.shared.runtime.spawn(async move {
            let parked = connection.await;
            if link.is_own {
                server.roster.remove(&link.caller);
                if parked.is_none() && link.caller.export().is_some() {
                    let now_ns = server.shared.runtime.now_ns();
                    server.shared.notices.disconnected(now_ns, &link.caller);
                }
            }
            server.handover.borrow_mut().clients.extend(parked);
            server.shared.links.borrow_mut().retain(|other| !Rc::ptr_eq(other, &link));
            server.shared.tally.open.fetch_sub(1, Ordering::Relaxed);
            server.shared.changed.wake_all();
        });
    }

    /// Stops accepting and reading, completes the requests in flight, flushes the disks, and
    /// returns the state that the next server needs to continue. Its clients notice only a pause.
    /// All data acknowledged to them is durable then.
    ///
    /// Clients in their handshake have [`Options::grace_ns`] to choose an export, while the other
    /// clients are served normally. Then every client has the same time to complete a request and
    /// receive its replies. A client that takes longer is disconnected, and so is an encrypted one,
    /// because its keys stay in this process. The flushes have no time limit.
    ///
    /// # Errors
    /// The error of the first flush that failed, as for [`Self::shutdown`]. All clients are then
    /// disconnected, so that they notice.
    pub async fn hand_over(&self) -> Result<Handover> {
        let Shared { runtime, options, changed, stage, .. } = &*self.shared;
        stage.set(Stage::Closed);
        changed.wake_all();
        for listener in self.listeners.borrow().iter() {
            runtime.interrupt(listener);
        }
        let is_haggling = || self.shared.links.borrow().iter().any(|link| link.is_haggling.get());
        let is_closed = || self.listeners.borrow().is_empty() && !is_haggling();
        let closed = changed.wait_for(|| is_closed().then_some(()));
        if runtime.timeout(options.grace_ns, closed).await.is_none() {
            tracing::warn!("closing connections that are still in their handshake");
        }
        stage.set(Stage::Parking);
        changed.wake_all();
        for link in self.shared.links.borrow().iter() {
            if link.is_haggling.get() {
                link.cut();
            } else {
                runtime.interrupt(&link.caller.socket);
            }
        }
        let remote = self.end_remote(RemoteExports::hand_over);
        let (flushed, ()) = join(remote, self.parked()).await;
        let handover = self.handover.take();
        flushed.and(self.flush_all().await).map(|()| handover)
    }

    /// Ends the servers on other threads.
    async fn end_remote(&self, end: impl AsyncFn(&RemoteExports) -> Result<()>) -> Result<()> {
        let ended = join_all(self.shared.remote.iter().map(|other| end(other))).await;
        ended.into_iter().fold(Ok(()), Result::and)
    }

    /// Waits until no connection is left. Closes connections that wait for their client at two
    /// consecutive checks.
    async fn parked(&self) {
        let Shared { runtime, options, changed, .. } = &*self.shared;
        let is_over =
            || self.shared.links.borrow().is_empty() && self.listeners.borrow().is_empty();
        let over = || changed.wait_for(|| is_over().then_some(()));
        let mut late: Vec<Rc<Link>> = Vec::new();
        while runtime.timeout(options.grace_ns / 2, over()).await.is_none() {
            let mut waiting = self.shared.links.borrow().clone();
            waiting.retain(|link| link.waits_for_client.get());
            for link in &waiting {
                if late.iter().any(|other| Rc::ptr_eq(other, link)) {
                    tracing::warn!(
                        client = %link.caller,
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
    /// and for connections to close. The flush in between is limited only by the disk, which is
    /// notified of the end ([`Disk::ending`](crate::Disk::ending)). A device with a full write
    /// cache needs minutes, and abandoning the flush would lose data that is about to become
    /// durable. To stop earlier, end the process, which loses exactly that data.
    ///
    /// # Errors
    /// The first flush that failed; the log states its export. Data acknowledged since the last
    /// successful flush of that export may be lost. The other disks are flushed anyway.
    pub async fn shutdown(&self) -> Result<()> {
        let Shared { runtime, options, changed, stage, .. } = &*self.shared;
        stage.set(Stage::ShuttingDown);
        changed.wake_all();
        for listener in self.listeners.borrow().iter() {
            shutdown_socket(listener);
        }
        self.exports().iter().for_each(|export| export.disk.ending());
        let remote = self.end_remote(RemoteExports::shut_down).await;
        let is_quiet = || self.shared.links.borrow().iter().all(|link| link.is_quiet.get());
        let quiet = changed.wait_for(|| is_quiet().then_some(()));
        if runtime.timeout(options.grace_ns, quiet).await.is_none() {
            tracing::warn!("shutting down with requests in flight");
        }
        let flushed = self.flush_all().await;
        let flushed = remote.and(flushed);
        for link in self.shared.links.borrow().iter() {
            link.cut();
        }
        let is_over =
            || self.shared.links.borrow().is_empty() && self.listeners.borrow().is_empty();
        let gone = changed.wait_for(|| is_over().then_some(()));
        if runtime.timeout(options.grace_ns, gone).await.is_none() {
            let connections = self.connections();
            tracing::warn!(connections, "connections still wait for the disk");
        }
        flushed
    }

    async fn flush_all(&self) -> Result<()> {
        let mut flushed = Ok(());
        for export in self.exports() {
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
        self.shared.links.borrow().len()
    }

    /// Returns the number of clients that have chosen this export, which is on this thread.
    pub fn users_of(&self, export: &str) -> usize {
        self.shared.users_of(export)
    }

    /// Returns the exports on this thread.
    pub fn exports(&self) -> Vec<Rc<Export>> {
        self.shared.exports.borrow().clone()
    }

    /// Returns an export on this thread.
    pub(super) fn export(&self, name: &str) -> Option<Rc<Export>> {
        self.shared.exports.borrow().iter().find(|export| export.name == name).cloned()
    }

    /// Returns the clients, for any thread.
    pub fn roster(&self) -> &Arc<Roster> {
        &self.roster
    }

    /// Returns the counters of the server.
    pub fn tally(&self) -> &Arc<Tally> {
        &self.shared.tally
    }

    /// Returns the exports for a server on another thread: see [`Self::in_front_of`]. That server
    /// then ends this one.
    pub fn remote_exports(self: &Rc<Self>) -> RemoteExports {
        let (remote, orders) = RemoteExports::new(&self.exports());
        self.runtime().spawn(obey(self.clone(), orders));
        remote
    }

    pub(super) fn runtime(&self) -> &Runtime {
        &self.shared.runtime
    }
}

/// Executes the orders of the thread of the front server.
async fn obey(server: Rc<Server>, orders: Orders) {
    // An answer for which no task waits any longer is dropped.
    while let Ok(order) = orders.0.recv().await {
        match order {
            Order::Shape(name, answer) => {
                let _ = answer.try_send(server.export(&name).map(|export| export.shape()));
            }
            Order::Enter(entering) => {
                let Entering { client, caller, tls, ended } = *entering;
                let end = move |parked| drop(ended.try_send(parked));
                // The export may have been withdrawn while the client was being passed on.
                if let Some(export) = server.export(&client.export) {
                    server.enter(export, client, caller, tls, end);
                }
            }
            Order::HandOver(answer) => end_clients(&server, answer, true),
            Order::ShutDown(answer) => end_clients(&server, answer, false),
        }
    }
}

fn end_clients(server: &Rc<Server>, answer: Sender<Result<()>>, hands_over: bool) {
    let server = server.clone();
    server.runtime().clone().spawn(async move {
        let ended = match hands_over {
            true => server.hand_over().await.map(drop),
            false => server.shutdown().await,
        };
        let _ = answer.try_send(ended);
    });
}

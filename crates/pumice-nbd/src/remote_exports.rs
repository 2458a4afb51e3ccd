//! Exports on another thread.
//!
//! ```text
//!  the thread that accepts                       the thread of the disks
//!  handshake, TLS ---- Enter: socket, keys ----> requests and replies, to the end of the client
//!  waits for the end   <---- Parked or nothing -----+
//! ```
//!
//! A client costs one message in each direction, and one for each query of an export's size; its
//! requests cost none. If the other thread ends early, its end of the queue is dropped with the
//! orders in it. The main thread notices, and disconnects the clients.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use async_channel::{Receiver, Sender, bounded};

use super::caller::Caller;
use super::export::{Announcement, Export};
use super::handover::Parked;
use super::request::Shape;
use super::tls::Tls;
use pumice_drive::base::{Error, ErrorKind, Result};

/// Maximum number of orders in the queue. Arbitrary; when it is full, clients in their handshake
/// wait.
const ORDERS_MAX: usize = 64;

/// The exports of a [`Server`](super::Server) on another thread; see
/// [`Server::remote_exports`](super::Server::remote_exports).
#[derive(Debug)]
pub struct RemoteExports {
    /// Exports that clients may choose now.
    pub(super) exports: RefCell<Vec<Arc<Announcement>>>,
    orders: Sender<Order>,
}

/// An order from one thread to another, with a channel for the answer.
pub(super) enum Order {
    /// Return the shape of an export, if it still exists.
    Shape(String, Sender<Option<Shape>>),
    /// Serve a client until it ends.
    Enter(Box<Entering>),
    /// Hand over the clients, each to the thread that passed it on.
    HandOver(Sender<Result<()>>),
    /// Shut down.
    ShutDown(Sender<Result<()>>),
}

/// The receiving end of the queue of orders.
pub(super) struct Orders(pub(super) Receiver<Order>);

impl Drop for Orders {
    /// Drops the remaining orders, so that the tasks waiting for an answer notice.
    fn drop(&mut self) {
        self.0.close();
        while self.0.try_recv().is_ok() {}
    }
}

/// A client that has chosen an export.
pub(super) struct Entering {
    pub(super) client: Parked,
    pub(super) caller: Arc<Caller>,
    pub(super) tls: Option<Tls>,
    /// Receives the client if it was parked, or `None`.
    pub(super) ended: Sender<Option<Parked>>,
}

impl RemoteExports {
    /// Returns the exports for another thread, and the orders that this thread receives.
    pub(super) fn new(exports: &[Rc<Export>]) -> (Self, Orders) {
        let (orders, taken) = bounded(ORDERS_MAX);
        let announced = exports.iter().map(|export| Arc::new(Announcement::of(export))).collect();
        (Self { exports: RefCell::new(announced), orders }, Orders(taken))
    }

    /// Returns the shape of an export; `None` if its thread has ended, or no longer has the export.
    pub(super) async fn shape(&self, export: &str) -> Option<Shape> {
        self.ask(|answer| Order::Shape(export.to_owned(), answer)).await?
    }

    /// Has a client served until it ends. Calls `entered` once the client was passed on. Returns
    /// the client if it was parked.
    pub(super) async fn serve(
        &self,
        client: Parked,
        caller: Arc<Caller>,
        tls: Option<Tls>,
        entered: impl FnOnce(),
    ) -> Option<Parked> {
        let export = client.export.clone();
        let (ended, end) = bounded(1);
        let entering = Box::new(Entering { client, caller, tls, ended });
        let sent = self.orders.send(Order::Enter(entering)).await;
        entered();
        let ended = match sent {
            Ok(()) => end.recv().await.ok(),
            Err(_) => None,
        };
        ended.unwrap_or_else(|| {
            tracing::warn!(%export, "closing a connection: its thread has ended");
            None
        })
    }

    /// Performs [`Server::hand_over`](super::Server::hand_over) on the other thread. A thread that
    /// has ended has nothing to hand over.
    pub(super) async fn hand_over(&self) -> Result<()> {
        self.ask(Order::HandOver).await.unwrap_or(Ok(()))
    }

    /// Performs [`Server::shutdown`](super::Server::shutdown) on the other thread.
    pub(super) async fn shut_down(&self) -> Result<()> {
        self.ask(Order::ShutDown).await.unwrap_or_else(|| {
            let exports = self.exports.borrow();
            let disks = exports.iter().filter(|export| export.earlier.is_none());
            let names: Vec<_> = disks.map(|export| &*export.name).collect();
            let what = format!(
                "the thread of {} ended early: unflushed writes are lost",
                names.join(", ")
            );
            Err(Error::new(ErrorKind::Poisoned, what))
        })
    }

    async fn ask<T>(&self, order: impl FnOnce(Sender<T>) -> Order) -> Option<T> {
        let (sender, answer) = bounded(1);
        self.orders.send(order(sender)).await.ok()?;
        answer.recv().await.ok()
    }
}

//! Exports on another thread.
//!
//! ```text
//!  the thread that accepts                       the thread of the disks
//!  handshake, TLS ---- Enter: socket, keys ----> requests and replies, to the end of the client
//!  waits for the end   <---- Parked or nothing -----+
//! ```
//!
//! A client costs one message in each direction, and one for each time that it asks for the size of
//! an export; its requests cost none. If the other thread ends early, its end of the queue is
//! dropped with all it holds: the main thread notices, and disconnects the clients.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use async_channel::{Receiver, Sender, bounded};

use super::caller::Caller;
use super::export::Export;
use super::handover::Parked;
use super::rate::Limits;
use super::request::Shape;
use super::server::Server;
use super::tls::Tls;
use crate::Disk;
use pumice_drive::base::{Error, ErrorKind, Result};

/// Orders that may wait. Arbitrary; when there are more, clients in their handshake wait.
const ORDERS_MAX: usize = 64;

/// The exports of a [`Server`] on another thread; see [`Server::elsewhere`].
#[derive(Debug)]
pub struct Elsewhere {
    /// Those that clients may choose now.
    pub(super) exports: RefCell<Vec<Arc<Announcement>>>,
    orders: Sender<Order>,
}

/// What is known of an export on another thread without asking for it.
#[derive(Debug)]
pub struct Announcement {
    pub(super) name: String,
    pub(super) description: String,
    /// What it followed and what it was when the server was made.
    pub(super) follows: String,
    pub(super) shape: Shape,
    pub(super) refused: Arc<AtomicU64>,
    pub(super) limits: Arc<Limits>,
}

/// What one thread asks of another, with the way back for the answer.
enum Order {
    /// Return the shape of an export, if it is still there.
    Shape(String, Sender<Option<Shape>>),
    /// Serve a client to its end.
    Enter(Box<Entering>),
    /// Hand the clients over, each to where it came from.
    HandOver(Sender<Result<()>>),
    /// Shut down.
    ShutDown(Sender<Result<()>>),
}

/// A client that has chosen an export.
struct Entering {
    client: Parked,
    caller: Arc<Caller>,
    tls: Option<Tls>,
    /// Takes what becomes of the client.
    ended: Sender<Option<Parked>>,
}

impl Elsewhere {
    /// Returns the shape of an export; `None` if its thread has ended, or no longer has it.
    pub(super) async fn shape(&self, export: &str) -> Option<Shape> {
        self.ask(|answer| Order::Shape(export.to_owned(), answer)).await?
    }

    /// Has a client served to its end; calls `entered` once it is on its way. Returns the client if
    /// it was parked.
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
            tracing::warn!(%export, "closing a connection: the thread of its disk has ended");
            None
        })
    }

    /// As [`Server::hand_over`]. A thread that has ended has nothing to hand over.
    pub(super) async fn hand_over(&self) -> Result<()> {
        self.ask(Order::HandOver).await.unwrap_or(Ok(()))
    }

    /// As [`Server::shutdown`].
    pub(super) async fn shut_down(&self) -> Result<()> {
        self.ask(Order::ShutDown).await.unwrap_or_else(|| {
            let exports = self.exports.borrow();
            let names: Vec<_> = exports.iter().map(|export| &*export.name).collect();
            let what = format!(
                "the thread of {} ended early: what was not flushed before is lost",
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

/// Returns the exports of `server` for another thread. A task carries out what that asks.
pub(super) fn of<D: Disk + 'static>(server: &Rc<Server<D>>) -> Elsewhere {
    let (orders, taken) = bounded(ORDERS_MAX);
    let exports = server.exports();
    let announced = exports.iter().map(|export| Arc::new(Announcement::of(export))).collect();
    server.runtime().spawn(obey(server.clone(), taken));
    Elsewhere { exports: RefCell::new(announced), orders }
}

impl Announcement {
    /// Returns what other threads may know of an export.
    pub fn of<D: Disk>(export: &Export<D>) -> Self {
        Self {
            name: export.name.clone(),
            description: export.description.clone(),
            follows: export.lineage.follows.clone(),
            shape: export.shape(),
            refused: export.refused().clone(),
            limits: export.limits.clone(),
        }
    }
}

async fn obey<D: Disk + 'static>(server: Rc<Server<D>>, orders: Receiver<Order>) {
    // An answer that is no longer waited for is dropped.
    while let Ok(order) = orders.recv().await {
        match order {
            Order::Shape(name, answer) => {
                let _ = answer.try_send(server.export(&name).map(|export| export.shape()));
            }
            Order::Enter(entering) => {
                let Entering { client, caller, tls, ended } = *entering;
                let end = move |parked| drop(ended.try_send(parked));
                match server.export(&client.export) {
                    Some(export) => server.enter(export, client, caller, tls, end),
                    // It was withdrawn while the client came in.
                    None => end(None),
                }
            }
            Order::HandOver(answer) => {
                let server = server.clone();
                server.runtime().clone().spawn(async move {
                    let _ = answer.try_send(server.hand_over().await.map(drop));
                });
            }
            Order::ShutDown(answer) => {
                let server = server.clone();
                server.runtime().clone().spawn(async move {
                    let _ = answer.try_send(server.shutdown().await);
                });
            }
        }
    }
}

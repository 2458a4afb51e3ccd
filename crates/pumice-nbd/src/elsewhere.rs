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

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use async_channel::{Receiver, Sender, bounded};

use super::export::Offer;
use super::handover::Parked;
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
    pub(super) exports: Vec<Announced>,
    orders: Sender<Order>,
}

/// What is known of an export without asking for it.
#[derive(Debug)]
pub(super) struct Announced {
    pub(super) name: String,
    pub(super) description: String,
    /// What it followed and what it was when the server was made.
    pub(super) follows: String,
    pub(super) shape: Shape,
    pub(super) refused: Arc<AtomicU64>,
}

/// What one thread asks of another, with the way back for the answer.
enum Order {
    /// Return the shape of the export at a position.
    Shape(usize, Sender<Shape>),
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
    tls: Option<Tls>,
    /// Takes what becomes of the client.
    ended: Sender<Option<Parked>>,
}

impl Elsewhere {
    /// Returns what a handshake tells about the exports.
    pub(super) fn offers(&self) -> impl Iterator<Item = Offer<'_>> {
        self.exports.iter().map(|export| {
            let Announced { name, description, .. } = export;
            Offer { name, description }
        })
    }

    /// Returns the shape of the export at `index`; `None` if its thread has ended.
    pub(super) async fn shape(&self, index: usize) -> Option<Shape> {
        self.ask(|answer| Order::Shape(index, answer)).await
    }

    /// Has a client served to its end; calls `entered` once it is on its way. Returns the client if
    /// it was parked.
    pub(super) async fn serve(
        &self,
        client: Parked,
        tls: Option<Tls>,
        entered: impl FnOnce(),
    ) -> Option<Parked> {
        let export = client.export.clone();
        let (ended, end) = bounded(1);
        let sent = self.orders.send(Order::Enter(Box::new(Entering { client, tls, ended }))).await;
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
            let names: Vec<_> = self.exports.iter().map(|export| &*export.name).collect();
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
    let announced = server.exports().iter().map(|export| Announced {
        name: export.name.clone(),
        description: export.description.clone(),
        follows: export.lineage.follows.clone(),
        shape: export.shape(),
        refused: export.refused().clone(),
    });
    let exports = announced.collect();
    server.runtime().spawn(obey(server.clone(), taken));
    Elsewhere { exports, orders }
}

async fn obey<D: Disk + 'static>(server: Rc<Server<D>>, orders: Receiver<Order>) {
    // An answer that is no longer waited for is dropped.
    while let Ok(order) = orders.recv().await {
        match order {
            Order::Shape(index, answer) => {
                let export = server.exports().get(index).expect("an announced export");
                let _ = answer.try_send(export.shape());
            }
            Order::Enter(entering) => {
                let Entering { client, tls, ended } = *entering;
                server.enter(client, tls, move |parked| drop(ended.try_send(parked)));
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

//! Accepts front ends of one disk, one after another.
//!
//! The server serves one front end at a time: two guests of one disk would destroy each other's
//! file systems, and a VMM that reconnects may only continue once the requests of its last session
//! have ended. Another front end waits in the backlog of the socket. `guest` decides which guests
//! may continue.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use crate::channel::Channel;
use crate::execute::{Device, Turn};
use crate::guest::{Guests, KnownGuest};
use crate::request::ID_BYTES;
use crate::session::Session;
use crate::workers::Workers;
use pumice_drive::base::wait::WaitQueue;
use pumice_drive::base::{Clock, Result};
use pumice_drive::runtime::{Runtime, shutdown_socket};
use pumice_nbd::{AnyDisk, Listener};

/// How long a shutdown waits for requests in flight, as the NBD server does.
const GRACE_NS: u64 = 5_000_000_000;

/// How long to wait after an error of accept, which may be a lack of descriptors.
const RETRY_NS: u64 = 100_000_000;

/// The identity of the disk for its guest, and the guest that may continue.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The serial number: at most 20 bytes, without zeroes.
    pub serial: String,
    /// The guest that may continue where it was: the result of [`Server::hand_over`] in the server
    /// that restarted as this one, if no write was lost since.
    pub guest: Option<KnownGuest>,
}

/// Serves one disk to front ends.
pub struct Server {
    device: Rc<Device>,
    /// Sessions and listeners that have not ended.
    active: Cell<usize>,
    connected: RefCell<Option<Rc<Session>>>,
    is_ending: Cell<bool>,
    changed: WaitQueue,
    listener: RefCell<Option<std::sync::Arc<std::os::fd::OwnedFd>>>,
}

impl Server {
    /// Returns a server of `disk`.
    pub fn new(runtime: Runtime, disk: Rc<dyn AnyDisk>, identity: &Identity) -> Rc<Self> {
        let mut id = [0; ID_BYTES];
        id.iter_mut().zip(identity.serial.bytes()).for_each(|(to, from)| *to = from);
        let device = Rc::new(Device {
            runtime,
            disk,
            buffers: Rc::default(),
            workers: Workers::default(),
            id,
            has_flush: Cell::new(false),
            guests: Guests::new(identity.guest.clone()),
            turn: Turn::default(),
        });
        Rc::new(Self {
            device,
            active: Cell::new(0),
            connected: RefCell::default(),
            is_ending: Cell::new(false),
            changed: WaitQueue::default(),
            listener: RefCell::default(),
        })
    }

    /// Serves front ends that connect to `listener`, until [`Server::shutdown`].
    pub async fn serve(self: Rc<Self>, listener: Listener) {
        let Device { runtime, .. } = &*self.device;
        self.active.update(|active| active + 1);
        *self.listener.borrow_mut() = Some(listener.socket().clone());
        while !self.is_ending.get() {
            match runtime.accept(listener.socket()).await {
                Ok(socket) if !self.is_ending.get() => {
                    let channel = Channel::new(runtime.clone(), socket);
                    let session = Session::new(self.device.clone(), channel);
                    *self.connected.borrow_mut() = Some(session.clone());
                    session.serve().await;
                    self.connected.borrow_mut().take();
                }
                Ok(_) => {}
                Err(error) if !self.is_ending.get() => {
                    tracing::warn!(%error, "cannot accept a front end");
                    runtime.sleep_ns(RETRY_NS).await;
                }
                Err(_) => {}
            }
        }
        self.active.update(|active| active - 1);
        self.changed.wake_all();
    }

    /// Shuts down: accepts no more front ends, stops all rings, hangs up once the requests in
    /// flight have ended, and makes all data durable. Requests that have not ended after 5 seconds
    /// are dropped; as after a crash, they may or may not have been executed.
    ///
    /// # Errors
    /// The error of the flush.
    pub async fn shutdown(&self) -> Result<()> {
        let Device { runtime, disk, .. } = &*self.device;
        disk.ending();
        self.stop();
        if runtime.timeout(GRACE_NS, self.stopped()).await.is_none() {
            tracing::warn!("shutting down with requests in flight");
        }
        self.flush().await
    }

    /// Like [`Server::shutdown`], but waits for the requests in flight until `interrupted`. Returns
    /// the guest that may continue at the next server; no guest after an interruption.
    ///
    /// # Errors
    /// The error of the flush. No guest may continue then.
    pub async fn hand_over(
        &self,
        interrupted: impl Future<Output = ()>,
    ) -> Result<Option<KnownGuest>> {
        self.stop();
        let mut interrupted = pin!(interrupted);
        let mut flushed = pin!(async {
            self.stopped().await;
            self.flush().await
        });
        let flushed = poll_fn(|context| match flushed.as_mut().poll(context) {
            Poll::Ready(result) => Poll::Ready(Some(result)),
            Poll::Pending => interrupted.as_mut().poll(context).map(|()| None),
        });
        match flushed.await {
            Some(result) => result.map(|()| Some(self.device.guests.known())),
            None => self.shutdown().await.map(|()| None),
        }
    }

    fn stop(&self) {
        self.is_ending.set(true);
        if let Some(listener) = &*self.listener.borrow() {
            shutdown_socket(listener);
        }
        if let Some(session) = &*self.connected.borrow() {
            session.end();
        }
    }

    /// Waits until the session, and with it all requests, have ended.
    async fn stopped(&self) {
        self.changed.wait_for(|| (self.active.get() == 0).then_some(())).await;
    }

    async fn flush(&self) -> Result<()> {
        let disk = &self.device.disk;
        if disk.is_read_only() { Ok(()) } else { disk.flush().await }
    }
}

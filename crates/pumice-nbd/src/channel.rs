//! A connection's bytes, both ways: as they are, or encrypted from some moment on.
//!
//! A channel begins in the clear and may become encrypted once, by [`Channel::encrypt`]; there is
//! no way back. One receive and one send may be under way at a time. Knows no message.

use std::cell::OnceCell;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use super::tls::{Identity, Tls};
use pumice_drive::runtime::{Runtime, shutdown_socket};

/// A socket, and what its bytes go through.
pub(super) struct Channel {
    runtime: Runtime,
    socket: Arc<OwnedFd>,
    tls: OnceCell<Tls>,
}

impl Channel {
    /// A channel in the clear.
    pub(super) fn new(runtime: Runtime, socket: Arc<OwnedFd>) -> Rc<Self> {
        Rc::new(Self { runtime, socket, tls: OnceCell::new() })
    }

    /// Receives at least one byte into `buffer[range]`, or 0 at the end of the stream; gives the
    /// buffer back.
    pub(super) async fn receive(
        &self,
        buffer: Vec<u8>,
        range: Range<usize>,
    ) -> (Vec<u8>, io::Result<usize>) {
        match self.tls.get() {
            None => self.runtime.receive(&self.socket, buffer, range).await,
            Some(tls) => tls.receive(&self.runtime, &self.socket, buffer, range).await,
        }
    }

    /// Sends bytes from the start of `buffer[range]` on; gives the buffer back, and how many.
    pub(super) async fn send(
        &self,
        buffer: Vec<u8>,
        range: Range<usize>,
    ) -> (Vec<u8>, io::Result<usize>) {
        match self.tls.get() {
            None => self.runtime.send(&self.socket, buffer, range).await,
            Some(tls) => tls.send(&self.runtime, &self.socket, buffer, range).await,
        }
    }

    /// Shakes hands as a TLS server; every later byte is encrypted.
    ///
    /// # Errors
    /// The stream ended, or the client is not one that `identity` accepts. Nothing can be said on
    /// the channel any more.
    pub(super) async fn encrypt(&self, identity: &Identity) -> io::Result<()> {
        let tls = Tls::accept(identity, &self.runtime, &self.socket).await?;
        assert!(self.tls.set(tls).is_ok(), "a channel is encrypted once");
        Ok(())
    }

    /// Whether it is.
    pub(super) fn is_encrypted(&self) -> bool {
        self.tls.get().is_some()
    }

    /// The socket.
    pub(super) fn socket(&self) -> &Arc<OwnedFd> {
        &self.socket
    }

    /// Ends all traffic, politely if the channel is encrypted.
    pub(super) async fn close(&self) {
        if let Some(tls) = self.tls.get() {
            tls.close(&self.runtime, &self.socket).await;
        }
        self.cut();
    }

    /// Ends all traffic at once: what waits to receive or send gets an error or the end.
    pub(super) fn cut(&self) {
        shutdown_socket(&self.socket);
    }
}

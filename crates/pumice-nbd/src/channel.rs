//! The bytes of a connection in both directions, in plain text or encrypted.
//!
//! A channel starts in plain text and can become encrypted once, by [`Channel::encrypt`]; it never
//! returns to plain text. One receive and one send may be in flight at a time. The channel does not
//! interpret messages.

use std::cell::OnceCell;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use super::identity::Identity;
use super::tls::Tls;
use pumice_drive::runtime::{Runtime, shutdown_socket};

/// A socket, with or without TLS.
pub(super) struct Channel {
    runtime: Runtime,
    socket: Arc<OwnedFd>,
    tls: OnceCell<Tls>,
}

impl Channel {
    /// Returns a channel in plain text.
    pub(super) fn new(runtime: Runtime, socket: Arc<OwnedFd>) -> Rc<Self> {
        Rc::new(Self { runtime, socket, tls: OnceCell::new() })
    }

    /// Returns a channel that continues another one; encrypted if `tls` is `Some`.
    pub(super) fn continued(runtime: Runtime, socket: Arc<OwnedFd>, tls: Option<Tls>) -> Rc<Self> {
        let tls = tls.map_or_else(OnceCell::new, OnceCell::from);
        Rc::new(Self { runtime, socket, tls })
    }

    /// Returns the state of TLS, which another channel continues, if this one is encrypted.
    pub(super) fn into_tls(self) -> Option<Tls> {
        self.tls.into_inner()
    }

    /// Receives at least one byte into `buffer[range]`, or 0 at the end of the stream. Returns the
    /// buffer.
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

    /// Sends a prefix of `buffer[range]`. Returns the buffer, and the length of the prefix.
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

    /// Performs a TLS handshake as the server. Every later byte is encrypted. Returns the state of
    /// TLS.
    ///
    /// # Errors
    /// The stream ended, or `identity` does not accept the client. The channel cannot be used
    /// afterwards.
    pub(super) async fn encrypt(&self, identity: &Identity) -> io::Result<&Tls> {
        let tls = Tls::accept(identity, &self.runtime, &self.socket).await?;
        assert!(self.tls.set(tls).is_ok(), "a channel is encrypted once");
        Ok(self.tls.get().expect("it was set"))
    }

    /// Returns whether the channel is encrypted.
    pub(super) fn is_encrypted(&self) -> bool {
        self.tls.get().is_some()
    }

    /// Ends all traffic, and announces the end if the channel is encrypted.
    pub(super) async fn close(&self) {
        if let Some(tls) = self.tls.get() {
            tls.close(&self.runtime, &self.socket).await;
        }
        self.cut();
    }

    /// Ends all traffic immediately: pending receives and sends return an error or the end of the
    /// stream.
    pub(super) fn cut(&self) {
        shutdown_socket(&self.socket);
    }
}

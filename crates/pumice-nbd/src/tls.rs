//! An encrypted stream: TLS on the server's side of a connection.
//!
//! ```text
//! socket -> sealed -> connection -> the caller's buffer
//! socket <- opened <- connection <- the caller's buffer
//! ```

#![expect(
    clippy::indexing_slicing,
    reason = "ranges are the caller's own, or lie within the bytes received"
)]

use std::cell::{Cell, RefCell};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustls::ServerConnection;

use super::caller::Caller;
use super::identity::Identity;
use pumice_drive::runtime::Runtime;

/// Bytes of one receive: the longest record and its header.
const SEALED_BYTES: usize = 16 << 10 | 0x400;

/// Plain text bytes taken in one step. Taking an entire send of a long read would need that memory
/// twice; this is four of the longest records.
const PLAIN_BYTES_MAX: usize = 64 << 10;

/// An encrypted stream.
pub(super) struct Tls {
    connection: RefCell<ServerConnection>,
    /// Always [`SEALED_BYTES`] long, except while an operation has it.
    sealed: Cell<Vec<u8>>,
    /// The range of bytes received and not yet passed to the connection.
    unopened: Cell<(usize, usize)>,
    /// Buffer for sending, retained for its allocation.
    opened: Cell<Vec<u8>>,
}

impl Tls {
    /// Performs a TLS handshake with the client on `socket`.
    ///
    /// # Errors
    /// See [`super::channel::Channel::encrypt`].
    pub(super) async fn accept(
        identity: &Identity,
        runtime: &Runtime,
        socket: &Arc<OwnedFd>,
    ) -> io::Result<Self> {
        let mut connection = ServerConnection::new(identity.config()).map_err(io::Error::other)?;
        connection.set_buffer_limit(Some(PLAIN_BYTES_MAX));
        let tls = Self {
            connection: RefCell::new(connection),
            sealed: Cell::new(vec![0; SEALED_BYTES]),
            unopened: Cell::default(),
            opened: Cell::default(),
        };
        loop {
            tls.flush(runtime, socket).await?;
            if !tls.connection.borrow().is_handshaking() {
                return Ok(tls);
            }
            if let Err(error) = tls.advance(runtime, socket).await {
                // An alert for the client is waiting to be sent.
                let _may_be_gone = tls.flush(runtime, socket).await;
                return Err(error);
            }
        }
    }

    /// Records the certificate of the client, if it had to present one.
    pub(super) fn note_certificate(&self, caller: &Caller) {
        if let Some(chain) = self.connection.borrow().peer_certificates() {
            caller.note_certificate(chain);
        }
    }

    /// See [`super::channel::Channel::receive`].
    pub(super) async fn receive(
        &self,
        runtime: &Runtime,
        socket: &Arc<OwnedFd>,
        mut buffer: Vec<u8>,
        range: Range<usize>,
    ) -> (Vec<u8>, io::Result<usize>) {
        loop {
            let target = &mut buffer[range.clone()];
            match self.connection.borrow_mut().reader().read(target) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return (buffer, result),
            }
            match self.advance(runtime, socket).await {
                Ok(()) => {}
                Err(error) => return (buffer, Err(error)),
            }
        }
    }

    /// See [`super::channel::Channel::send`].
    pub(super) async fn send(
        &self,
        runtime: &Runtime,
        socket: &Arc<OwnedFd>,
        buffer: Vec<u8>,
        range: Range<usize>,
    ) -> (Vec<u8>, io::Result<usize>) {
        let taken = self.connection.borrow_mut().writer().write(&buffer[range]);
        let result = match taken {
            Ok(taken) => self.flush(runtime, socket).await.map(|()| taken),
            error => error,
        };
        (buffer, result)
    }

    /// Announces the end of the stream.
    pub(super) async fn close(&self, runtime: &Runtime, socket: &Arc<OwnedFd>) {
        self.connection.borrow_mut().send_close_notify();
        // A client that cannot receive it has left.
        let _may_be_gone = self.flush(runtime, socket).await;
    }

    /// Passes received bytes to the connection. Receives if there are none.
    async fn advance(&self, runtime: &Runtime, socket: &Arc<OwnedFd>) -> io::Result<()> {
        let mut sealed = self.sealed.take();
        // An abandoned receive has taken the buffer.
        sealed.resize(SEALED_BYTES, 0);
        let (mut start, mut end) = self.unopened.get();
        if start == end {
            let (returned, result) = runtime.receive(socket, sealed, 0..SEALED_BYTES).await;
            sealed = returned;
            (start, end) = match result {
                Ok(0) => {
                    self.sealed.set(sealed);
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                Ok(length) => (0, length),
                Err(error) => {
                    self.sealed.set(sealed);
                    return Err(error);
                }
            };
        }
        let mut connection = self.connection.borrow_mut();
        let taken = connection.read_tls(&mut &sealed[start..end]);
        self.sealed.set(sealed);
        self.unopened.set((start + taken?, end));
        match connection.process_new_packets() {
            Ok(_) => Ok(()),
            Err(error) => Err(io::Error::new(io::ErrorKind::InvalidData, error)),
        }
    }

    /// Sends all data that the connection has to send.
    async fn flush(&self, runtime: &Runtime, socket: &Arc<OwnedFd>) -> io::Result<()> {
        let mut bytes = self.opened.take();
        bytes.clear();
        {
            let mut connection = self.connection.borrow_mut();
            while connection.wants_write() {
                connection.write_tls(&mut bytes)?;
            }
        }
        let mut range = 0..bytes.len();
        while !range.is_empty() {
            let (returned, result) = runtime.send(socket, bytes, range.clone()).await;
            bytes = returned;
            match result {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => range.start += sent,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.opened.set(bytes);
        Ok(())
    }
}

//! TLS on the server's side of a connection: the server's identity, the clients it accepts, and
//! encryption.
//!
//! The files have the names that qemu and libnbd use, in one directory: `server-cert.pem` (the
//! certificate, followed by intermediate ones), `server-key.pem`, and, to verify clients,
//! `ca-cert.pem` and optionally `ca-crl.pem`. TLS 1.2 and 1.3 with the defaults of the library; no
//! pre-shared keys, which the library does not offer.
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
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection};

use pumice_drive::base::{Error, ErrorKind, Result};
use pumice_drive::runtime::Runtime;

/// Bytes received at once: the longest record and its header.
const SEALED_BYTES: usize = 16 << 10 | 0x400;

/// Clear bytes taken at once. Taking as much as a whole send of a long read would need that memory
/// twice; this is four of the longest records.
const PLAIN_BYTES_MAX: usize = 64 << 10;

/// The identity of a server, and which clients it accepts.
#[derive(Clone, Debug)]
pub struct Identity(Arc<ServerConfig>);

impl Identity {
    /// Reads the files of a directory; see the header of the module. With `verifies_clients`, a
    /// client needs a certificate that the authority in `ca-cert.pem` has signed and that
    /// `ca-crl.pem`, if it exists, does not revoke; a list that has expired accepts no client.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] and the like for a file; [`ErrorKind::InvalidInput`] if the content
    /// of a file is invalid, or if key and certificate do not belong together.
    pub fn load(directory: &Path, verifies_clients: bool) -> Result<Self> {
        let unusable = |name: &str, error: &dyn std::error::Error| {
            let what = format!("cannot use {}: {error}", directory.join(name).display());
            Error::new(ErrorKind::InvalidInput, what)
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable("", &error))?;
        let builder = if verifies_clients {
            let name = "ca-cert.pem";
            let mut roots = RootCertStore::empty();
            for certificate in certificates(directory, name)? {
                roots.add(certificate).map_err(|error| unusable(name, &error))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider)
                .with_crls(revocations(directory)?)
                // An old list would let in clients whose certificates were revoked since.
                .enforce_revocation_expiration()
                .build()
                .map_err(|error| unusable(name, &error))?;
            builder.with_client_cert_verifier(verifier)
        } else {
            builder.with_no_client_auth()
        };
        let chain = certificates(directory, "server-cert.pem")?;
        let name = "server-key.pem";
        let key = PrivateKeyDer::from_pem_slice(&read(directory, name)?)
            .map_err(|error| unusable(name, &error))?;
        let config =
            builder.with_single_cert(chain, key).map_err(|error| unusable(name, &error))?;
        Ok(Self(Arc::new(config)))
    }
}

fn read(directory: &Path, name: &str) -> Result<Vec<u8>> {
    let path = directory.join(name);
    std::fs::read(&path)
        .map_err(|error| Error::os(format!("cannot read {}", path.display()), error))
}

fn certificates(directory: &Path, name: &str) -> Result<Vec<CertificateDer<'static>>> {
    let certificates: std::result::Result<Vec<_>, _> =
        CertificateDer::pem_slice_iter(&read(directory, name)?).collect();
    match certificates {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        _ => {
            let what = format!("{} holds no certificate", directory.join(name).display());
            Err(Error::new(ErrorKind::InvalidInput, what))
        }
    }
}

fn revocations(directory: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>> {
    let name = "ca-crl.pem";
    if !directory.join(name).exists() {
        return Ok(Vec::new());
    }
    CertificateRevocationListDer::pem_slice_iter(&read(directory, name)?)
        .collect::<std::result::Result<_, _>>()
        .map_err(|error| {
            let what = format!("cannot use {}: {error}", directory.join(name).display());
            Error::new(ErrorKind::InvalidInput, what)
        })
}

/// An encrypted stream.
pub(super) struct Tls {
    connection: RefCell<ServerConnection>,
    /// Always [`SEALED_BYTES`] long, except while an operation has it.
    sealed: Cell<Vec<u8>>,
    /// The range of bytes received and not yet passed to the connection.
    unopened: Cell<(usize, usize)>,
    /// Buffer for sending, kept for its allocation.
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
        let mut connection = ServerConnection::new(identity.0.clone()).map_err(io::Error::other)?;
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

    /// As [`super::channel::Channel::receive`].
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

    /// As [`super::channel::Channel::send`].
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

    /// Passes received bytes to the connection; receives if there are none.
    async fn advance(&self, runtime: &Runtime, socket: &Arc<OwnedFd>) -> io::Result<()> {
        let mut sealed = self.sealed.take();
        // An abandoned receive has kept the buffer.
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

    /// Sends all that the connection has to send.
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

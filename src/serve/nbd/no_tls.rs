//! What stands for TLS in a program that was built without it: an identity that nobody has.

use std::convert::Infallible;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use crate::base::{Error, ErrorKind, Result};
use crate::runtime::Runtime;

/// Who a server is to its clients; there is none here.
#[derive(Clone, Debug)]
pub struct Identity(Infallible);

impl Identity {
    /// Refuses.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`], always.
    pub fn load(_directory: &Path, _verifies_clients: bool) -> Result<Self> {
        let what = "this program was built without TLS: build it with the feature 'tls'";
        Err(Error::new(ErrorKind::Unsupported, what))
    }
}

/// An encrypted stream; there is none here.
pub(super) struct Tls(Infallible);

impl Tls {
    pub(super) async fn accept(
        identity: &Identity,
        _runtime: &Runtime,
        _socket: &Arc<OwnedFd>,
    ) -> io::Result<Self> {
        match identity.0 {}
    }

    pub(super) async fn receive(
        &self,
        _runtime: &Runtime,
        _socket: &Arc<OwnedFd>,
        _buffer: Vec<u8>,
        _range: Range<usize>,
    ) -> (Vec<u8>, io::Result<usize>) {
        match self.0 {}
    }

    pub(super) async fn send(
        &self,
        _runtime: &Runtime,
        _socket: &Arc<OwnedFd>,
        _buffer: Vec<u8>,
        _range: Range<usize>,
    ) -> (Vec<u8>, io::Result<usize>) {
        match self.0 {}
    }

    pub(super) async fn close(&self, _runtime: &Runtime, _socket: &Arc<OwnedFd>) {
        match self.0 {}
    }
}

//! Moves clients and listening sockets from one server to the next, which may run in another
//! process and be another version of the program.
//!
//! ```text
//! memory file   manifest as a line of JSON, then the unread bytes of all clients
//! descriptors   the memory file, the listeners, the clients, the others: through a socket, with
//!               one byte for each DESCRIPTORS_MAX of them
//! ```
//!
//! Nothing is lost in the process: a client is parked between two of its requests, with every reply
//! sent, and data that it sends afterwards waits in its socket. This module does not know why
//! another server follows, or how the next process obtained its end of the socket.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Read, Seek, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};

use super::incoming::BUFFER_BYTES;
use super::request::{Dialect, Shape};
use crate::Listener;
use crate::listen::BoundAddress;
use pumice_drive::base::{Error, ErrorKind, Result};

/// Version of the manifest, and version of a manifest with clients that have selected contexts of
/// changes. A program that reads another version starts without clients.
const VERSION: u32 = 2;
const VERSION_WITH_CHANGES: u32 = 3;

/// Descriptors sent with one byte: Linux allows 253 (`SCM_MAX_FD`).
const DESCRIPTORS_MAX: usize = 250;

/// The state that one server passes to the next.
#[derive(Debug, Default)]
pub struct Handover {
    /// Still listening; new clients wait in their backlogs.
    pub listeners: Vec<Listener>,
    /// For [`Server::resume`](super::Server::resume).
    pub clients: Vec<Parked>,
    /// Other sockets of the program, in order.
    pub others: Vec<OwnedFd>,
}

/// A client between two requests.
#[derive(Debug)]
pub struct Parked {
    pub(super) socket: Arc<OwnedFd>,
    /// The name of its export.
    pub(super) export: String,
    pub(super) dialect: Dialect,
    pub(super) known: Known,
    /// Bytes received and not yet processed, at most [`BUFFER_BYTES`]; they start with a request.
    pub(super) unread: Vec<u8>,
}

/// The state of the disk on which a client relies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Known {
    /// State in which its server left the disk.
    pub(super) left: String,
    pub(super) size_bytes: u64,
    pub(super) is_read_only: bool,
}

impl Known {
    /// Returns the reason why the client cannot continue on a disk that follows this state and has
    /// this shape.
    pub(super) fn objection(&self, follows: &str, shape: Shape) -> Option<&'static str> {
        if self.left != follows {
            Some("its export is another drive now, or another state of it")
        } else if shape.size_bytes < self.size_bytes {
            Some("its export is smaller now")
        } else if shape.is_read_only && !self.is_read_only {
            Some("its export is read-only now")
        } else {
            None
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Manifest {
    version: u32,
    listeners: Vec<BoundAddress>,
    clients: Vec<Client>,
    #[serde(default)]
    others: usize,
}

#[derive(Serialize, Deserialize)]
struct Client {
    export: String,
    dialect: Dialect,
    known: Known,
    unread_bytes: usize,
}

impl Handover {
    /// Writes everything into a socket, from which [`Self::receive`] reads it, in this process or
    /// another one; `self` may be dropped before the read. Closes and removes nothing.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn send(&self, through: &UnixStream) -> Result<()> {
        let cannot = |error| Error::os("cannot hand connections over", error);
        let manifest = self.manifest();
        let mut memory = memory_file().map_err(cannot)?;
        writeln!(memory, "{manifest}").map_err(cannot)?;
        for parked in &self.clients {
            memory.write_all(&parked.unread).map_err(cannot)?;
        }
        let listeners = self.listeners.iter().map(|listener| listener.socket().as_fd());
        let clients = self.clients.iter().map(|parked| parked.socket.as_fd());
        let others = self.others.iter().map(|socket| socket.as_fd());
        let sockets = listeners.chain(clients).chain(others);
        let all: Vec<_> = [memory.as_fd()].into_iter().chain(sockets).collect();
        all.chunks(DESCRIPTORS_MAX)
            .try_for_each(|part| send_descriptors(through, part))
            .map_err(|error| cannot(error.into()))
    }

    /// Returns everything except the descriptors and the unread bytes.
    pub(super) fn manifest(&self) -> String {
        let address = |listener: &Listener| listener.address().clone();
        let client = |parked: &Parked| Client {
            export: parked.export.clone(),
            dialect: parked.dialect.clone(),
            known: parked.known.clone(),
            unread_bytes: parked.unread.len(),
        };
        let has_changes = self.clients.iter().any(|client| !client.dialect.changes.is_empty());
        let manifest = Manifest {
            version: if has_changes { VERSION_WITH_CHANGES } else { VERSION },
            listeners: self.listeners.iter().map(address).collect(),
            clients: self.clients.iter().map(client).collect(),
            others: self.others.len(),
        };
        serde_json::to_string(&manifest).expect("strings and numbers are JSON")
    }

    /// Reads the state that [`Self::send`] wrote into the other end of the socket.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the manifest has another version, [`ErrorKind::Corrupt`] if it
    /// is malformed, errors of the operating system. All connections handed over are then closed.
    pub fn receive(through: &UnixStream) -> Result<Self> {
        let cannot = |error| Error::os("cannot take connections over", error);
        let nonsense = |what: &str| Error::new(ErrorKind::Corrupt, format!("handover: {what}"));
        let mut descriptors = receive_descriptors(through).map_err(cannot)?.into_iter();
        let memory = descriptors.next().ok_or_else(|| nonsense("no data"))?;
        let mut memory = File::from(memory);
        let mut bytes = Vec::new();
        memory.rewind().and_then(|()| memory.read_to_end(&mut bytes)).map_err(cannot)?;
        let mut parts = bytes.splitn(2, |&byte| byte == b'\n');
        let (Some(line), Some(mut unread)) = (parts.next(), parts.next()) else {
            return Err(nonsense("no manifest"));
        };
        let manifest: Manifest =
            serde_json::from_slice(line).map_err(|error| nonsense(&error.to_string()))?;
        if !(VERSION..=VERSION_WITH_CHANGES).contains(&manifest.version) {
            let what = format!("handover version {} is not supported", manifest.version);
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        let mut handover = Self::default();
        let mut next = || descriptors.next().ok_or_else(|| nonsense("a descriptor is missing"));
        for address in manifest.listeners {
            handover.listeners.push(Listener::at(address, next()?));
        }
        for Client { export, dialect, known, unread_bytes } in manifest.clients {
            if unread_bytes > BUFFER_BYTES {
                return Err(nonsense("too many unread bytes"));
            }
            let parts = unread.split_at_checked(unread_bytes);
            let (mine, rest) = parts.ok_or_else(|| nonsense("bytes are missing"))?;
            unread = rest;
            let socket = Arc::new(next()?);
            handover.clients.push(Parked { socket, export, dialect, known, unread: mine.to_vec() });
        }
        for _ in 0..manifest.others {
            handover.others.push(next()?);
        }
        Ok(handover)
    }
}

fn memory_file() -> std::io::Result<File> {
    Ok(memfd_create("pumice-handover", MemfdFlags::CLOEXEC)?.into())
}

/// Sends `text` in place of a manifest.
#[cfg(test)]
pub(super) fn send_text(through: &UnixStream, text: &str) {
    let mut memory = memory_file().unwrap();
    memory.write_all(text.as_bytes()).unwrap();
    send_descriptors(through, &[memory.as_fd()]).unwrap();
}

fn send_descriptors(
    through: &UnixStream,
    descriptors: &[BorrowedFd<'_>],
) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fits = ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    assert!(fits, "the buffer has room for DESCRIPTORS_MAX");
    // Does not block: the reader starts only when everything has been sent.
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmsg(through, &[IoSlice::new(&[0])], &mut ancillary, flags).map(drop)
}

/// Returns all descriptors that are in the socket now.
fn receive_descriptors(through: &UnixStream) -> std::io::Result<Vec<OwnedFd>> {
    let mut descriptors = Vec::new();
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let mut byte = [0];
        match recvmsg(through, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, flags) {
            Ok(message) if message.bytes == 0 => return Ok(descriptors),
            Err(rustix::io::Errno::AGAIN) => return Ok(descriptors),
            result => result.map(drop)?,
        }
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                descriptors.extend(received);
            }
        }
    }
}

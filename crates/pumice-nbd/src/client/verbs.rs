//! The client itself: connects, and sends requests to an export.
//!
//! Requests that cannot succeed are refused before anything is sent: ranges outside of the export,
//! offsets and lengths that are not multiples of its minimum block size, changes of a read-only
//! export, and commands that the server did not offer. Requests above the limits of the server are
//! sent in pieces, one after the other.

#![expect(
    clippy::cast_possible_truncation,
    reason = "a piece is at most 1 GiB, and a payload at most 32 MiB"
)]
#![expect(
    clippy::indexing_slicing,
    reason = "pieces are cut at offsets below the length of the data"
)]

use std::fmt;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use super::super::channel::Channel;
use super::super::disk::{Allocation, Durability};
use super::super::incoming::Incoming;
use super::super::wire::{COMMAND_FLAG_FUA, COMMAND_FLAG_NO_HOLE, command};
use super::connect::connect;
use super::connection::{Call, Connection, End, verb};
use super::handshake::{Capabilities, Handshake};
use super::outgoing::Payload;
use super::receiver;
use super::table::Target;
use super::uri::Uri;
use pumice_drive::base::{AlignedBuffer, Error, ErrorKind, Result};
use pumice_drive::runtime::{Runtime, shutdown_socket};

/// Time limit for connecting and the handshake together.
const CONNECT_NS: u64 = 10_000_000_000;

/// Longest piece of a write whose data is copied, in bytes: limits the memory for unsent data. A
/// power of two, so that it is a multiple of every possible minimum block size.
const COPIED_PIECE_BYTES: u32 = 1 << 20;

/// Longest range of one trim or write-zeroes in bytes. The protocol's field ends below 4 GiB; a
/// power of two is a multiple of every possible minimum block size.
const RANGE_PIECE_BYTES: u32 = 1 << 30;

/// A connection to one export of an NBD server; clones share the connection.
///
/// Any number of tasks of its runtime may use it at once. Up to 1024 requests are in flight
/// together, and the server may execute and answer them in any order. Only a request made after the
/// answer to another one is certain to see its effect. The connection has no time limit for
/// answers; use [`Runtime::timeout`].
///
/// **A dropped future** leaves its request in flight: a write may still happen, and the buffer of a
/// read is freed when its reply has arrived.
///
/// **When the connection ends**, for whatever reason, all waiting and all later requests fail with
/// [`ErrorKind::Io`] and the reason. It does not reconnect.
///
/// When the last clone is dropped, the connection is closed immediately; [`Client::disconnect`]
/// closes it in an orderly way. Its tasks end while the runtime runs.
#[derive(Clone)]
pub struct Client(Rc<Handle>);

/// The state shared by all clones; the tasks of the connection do not hold it.
struct Handle(Rc<Connection>);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.end(End { is_orderly: true, what: "the client was dropped".into() });
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({})", self.connection().uri)
    }
}

/// A socket that is shut down when dropped, unless it becomes a connection: an abandoned receive
/// keeps its descriptor open until the runtime runs next.
pub(super) struct Unfinished(pub(super) Option<Arc<OwnedFd>>);

impl Unfinished {
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(socket) = &self.0 {
            shutdown_socket(socket);
        }
    }
}

/// Data of a write.
#[derive(Clone, Copy)]
enum Data<'a> {
    Copied(&'a [u8]),
    Shared(&'a Arc<AlignedBuffer>),
}

impl Data<'_> {
    fn len(&self) -> usize {
        match self {
            Data::Copied(bytes) => bytes.len(),
            Data::Shared(buffer) => buffer.len(),
        }
    }

    /// Returns the longest payload of one request to a server that accepts up to
    /// `payload_bytes_max`.
    fn piece_bytes(&self, payload_bytes_max: u32) -> u32 {
        match self {
            Data::Copied(_) => payload_bytes_max.min(COPIED_PIECE_BYTES),
            Data::Shared(_) => payload_bytes_max,
        }
    }

    fn part(&self, start: usize, end: usize) -> Payload<'_> {
        match self {
            Data::Copied(bytes) => Payload::Copied(&bytes[start..end]),
            Data::Shared(buffer) => Payload::Shared(buffer, start, end),
        }
    }
}

impl Client {
    /// Connects and negotiates, within ten seconds. Must be called in a task of `runtime`, which
    /// must do real I/O.
    ///
    /// # Errors
    /// `NotFound` if there is no such socket, host or export; `Unsupported` if the server requires
    /// TLS or violates the protocol; `Busy` on timeout; errors of the operating system.
    pub async fn connect(runtime: &Runtime, uri: &Uri) -> Result<Client> {
        Self::connect_within(runtime, uri, CONNECT_NS).await
    }

    /// Connects like [`Client::connect`], with a time limit of `limit_ns` nanoseconds.
    ///
    /// # Errors
    /// The errors of [`Client::connect`].
    pub async fn connect_within(runtime: &Runtime, uri: &Uri, limit_ns: u64) -> Result<Client> {
        let name = uri.to_string();
        match runtime.timeout(limit_ns, Self::open(runtime, uri, &name)).await {
            Some(Ok(client)) => Ok(client),
            Some(Err(error)) => {
                let what = format!("cannot connect to {name}");
                Err(Error::new(error.kind(), what).caused_by(error))
            }
            None => {
                let seconds = limit_ns as f64 / 1e9;
                let what = format!("cannot connect to {name}: no answer within {seconds} s");
                Err(Error::new(ErrorKind::Busy, what))
            }
        }
    }

    async fn open(runtime: &Runtime, uri: &Uri, name: &str) -> Result<Client> {
        let socket = connect(&uri.server).await;
        let socket = Arc::new(socket.map_err(|error| Error::os("cannot connect", error))?);
        let unfinished = Unfinished(Some(socket.clone()));
        let mut incoming = Incoming::new(Channel::new(runtime.clone(), socket.clone()));
        let handshake =
            Handshake { runtime, socket: &socket, incoming: &mut incoming, export: &uri.export };
        let export = handshake.negotiate().await?;
        unfinished.keep();
        let connection = Connection::new(runtime.clone(), socket, name.to_owned(), export);
        runtime.spawn(connection.clone().send());
        runtime.spawn(receiver::receive(connection.clone(), incoming));
        Ok(Client(Rc::new(Handle(connection))))
    }

    pub(super) fn connection(&self) -> &Connection {
        &self.0.0
    }

    /// Returns the size of the export in bytes at the time of the connection; at most `i64::MAX`.
    pub fn size_bytes(&self) -> u64 {
        self.connection().export.size_bytes
    }

    /// Returns whether changes are refused.
    pub fn is_read_only(&self) -> bool {
        self.capabilities().is_read_only
    }

    /// Returns the features and limits of the export.
    pub fn capabilities(&self) -> Capabilities {
        self.connection().export.capabilities
    }

    /// Fills the buffer with the bytes at `offset`, and returns it. A range longer than the
    /// server's largest payload is read in pieces, which need not represent the same moment. After
    /// an error, the content of the buffer is undefined.
    ///
    /// # Errors
    /// `InvalidInput` if the range is outside of the export or not aligned to its blocks; errors of
    /// the server.
    pub async fn read(
        &self,
        offset: u64,
        mut buffer: AlignedBuffer,
    ) -> (AlignedBuffer, Result<()>) {
        if let Err(refused) = self.check(command::READ, offset, buffer.len() as u64) {
            return (buffer, Err(refused));
        }
        let piece_bytes = self.capabilities().payload_bytes_max as usize;
        let mut start = 0;
        while start < buffer.len() {
            let end = buffer.len().min(start + piece_bytes);
            let (at, length) = (offset + start as u64, (end - start) as u32);
            let call = Call { command: command::READ, flags: 0, offset: at, length };
            let target = Target { buffer, range: start..end };
            let (target, result) = self.connection().call(call, Payload::None, Some(target)).await;
            buffer = target.expect("a read's target comes back").buffer;
            if let Err(error) = result {
                return (buffer, Err(error));
            }
            start = end;
        }
        (buffer, Ok(()))
    }

    /// Writes `data` at byte `offset`, with FUA if it must be durable on return. The data is copied
    /// for sending. Data longer than 1 MiB, or than the server's largest payload, is written in
    /// pieces, one after the other, and an error may occur after some of them.
    ///
    /// # Errors
    /// `ReadOnly`; `InvalidInput` if the range is outside of the export or not aligned to its
    /// blocks; `Unsupported` if the server has no FUA; errors of the server.
    pub async fn write(&self, offset: u64, data: &[u8], durability: Durability) -> Result<()> {
        self.write_data(offset, Data::Copied(data), durability).await
    }

    /// Like [`Client::write`], from a complete buffer that other tasks may read at the same time.
    /// Above 32 KiB, it is sent without a copy; only the server's largest payload limits a piece.
    ///
    /// # Errors
    /// The errors of [`Client::write`].
    pub async fn write_shared(
        &self,
        offset: u64,
        data: &Arc<AlignedBuffer>,
        durability: Durability,
    ) -> Result<()> {
        self.write_data(offset, Data::Shared(data), durability).await
    }

    async fn write_data(&self, offset: u64, data: Data<'_>, durability: Durability) -> Result<()> {
        self.check(command::WRITE, offset, data.len() as u64)?;
        let flags = self.fua_flag(command::WRITE, durability)?;
        let piece_bytes = data.piece_bytes(self.capabilities().payload_bytes_max) as usize;
        let mut start = 0;
        while start < data.len() {
            let end = data.len().min(start + piece_bytes);
            let (at, length) = (offset + start as u64, (end - start) as u32);
            let call = Call { command: command::WRITE, flags, offset: at, length };
            self.connection().call(call, data.part(start, end), None).await.1?;
            start = end;
        }
        Ok(())
    }

    /// Makes durable every request that was answered before this call.
    ///
    /// # Errors
    /// `Unsupported` if the server has no FLUSH; errors of the server.
    pub async fn flush(&self) -> Result<()> {
        self.need(command::FLUSH, self.capabilities().has_flush)?;
        let call = Call { command: command::FLUSH, flags: 0, offset: 0, length: 0 };
        self.connection().call(call, Payload::None, None).await.1
    }

    /// Trims `len` bytes at `offset`; their content is undefined until they are written. A range
    /// above 1 GiB is trimmed in pieces.
    ///
    /// # Errors
    /// The errors of [`Client::write`]; `Unsupported` if the server has no TRIM.
    pub async fn trim(&self, offset: u64, len: u64, durability: Durability) -> Result<()> {
        self.check(command::TRIM, offset, len)?;
        self.need(command::TRIM, self.capabilities().has_trim)?;
        let flags = self.fua_flag(command::TRIM, durability)?;
        self.change_range(command::TRIM, flags, offset, len).await
    }

    /// Makes `len` bytes at `offset` read as zeroes. A server may release the space, even if it
    /// should keep it. A range above 1 GiB is zeroed in pieces.
    ///
    /// # Errors
    /// The errors of [`Client::write`]; `Unsupported` if the server has no WRITE_ZEROES.
    pub async fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        allocation: Allocation,
        durability: Durability,
    ) -> Result<()> {
        self.check(command::WRITE_ZEROES, offset, len)?;
        self.need(command::WRITE_ZEROES, self.capabilities().has_write_zeroes)?;
        let hole_flag = match allocation {
            Allocation::Keep => COMMAND_FLAG_NO_HOLE,
            Allocation::Release => 0,
        };
        let flags = self.fua_flag(command::WRITE_ZEROES, durability)? | hole_flag;
        self.change_range(command::WRITE_ZEROES, flags, offset, len).await
    }

    /// Sends a request for each piece of a checked range.
    async fn change_range(&self, command: u16, flags: u16, offset: u64, len: u64) -> Result<()> {
        let mut start = 0;
        while start < len {
            let length = (len - start).min(u64::from(RANGE_PIECE_BYTES)) as u32;
            let call = Call { command, flags, offset: offset + start, length };
            self.connection().call(call, Payload::None, None).await.1?;
            start += u64::from(length);
        }
        Ok(())
    }

    /// Refuses new requests, waits until all requests in flight are answered, and closes the
    /// connection as the protocol specifies, within thirty seconds. Does not flush. Clones cannot
    /// be used afterwards.
    ///
    /// # Errors
    /// `Io` if the connection was lost before, or on timeout.
    pub async fn disconnect(&self) -> Result<()> {
        self.connection().disconnect().await
    }

    /// Checks the range of a request.
    fn check(&self, command: u16, offset: u64, length: u64) -> Result<()> {
        let (size, capabilities) = (self.size_bytes(), self.capabilities());
        let refused = |kind, what: String| {
            let what = format!("NBD {} of {length} bytes refused: {what}", verb(command));
            Err(Error::new(kind, what).at_offset(offset))
        };
        if command != command::READ && capabilities.is_read_only {
            return refused(ErrorKind::ReadOnly, "the export is read-only".into());
        }
        if offset.checked_add(length).is_none_or(|end| end > size) {
            let what = format!("the export has {size} bytes");
            return refused(ErrorKind::InvalidInput, what);
        }
        let block = u64::from(capabilities.block_bytes_min);
        if !offset.is_multiple_of(block) || !length.is_multiple_of(block) {
            let what = format!("the export has blocks of {block} bytes");
            return refused(ErrorKind::InvalidInput, what);
        }
        Ok(())
    }

    fn fua_flag(&self, command: u16, durability: Durability) -> Result<u16> {
        match durability {
            Durability::Volatile => Ok(0),
            Durability::Durable if self.capabilities().has_fua => Ok(COMMAND_FLAG_FUA),
            Durability::Durable => {
                let what = format!("NBD {} refused: the server has no FUA", verb(command));
                Err(Error::new(ErrorKind::Unsupported, what))
            }
        }
    }

    fn need(&self, command: u16, is_offered: bool) -> Result<()> {
        if !is_offered {
            let what = format!("NBD {0} refused: the server has no {0}", verb(command));
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        Ok(())
    }
}

//! Goal: the server as a client meets it, byte by byte.
//! Method: a server on a Unix socket in the test's thread over a disk in memory, and a scripted
//! client that knows nothing but sockets in another thread. The two also share a control socket:
//! the client's end of it tells the server's side what to do next, and closing it ends the test.
//! Every client socket has a time limit, so that a missing reply is a failure and not a hang.

mod dialects;
mod handover;
mod handshake;
mod hostile;
mod shutdown;
mod transmission;

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use super::wire::{self, Request, command};
use super::{Export, Options, Server, Stats};
use crate::base::wait::WaitQueue;
use crate::base::{Error, ErrorKind, Result};
use crate::runtime::{Backend, Runtime};
use crate::serve::disk::{Content, Extent};
use crate::serve::{Access, Disk, Listen, Listener};

/// Of every test's disk, in bytes.
pub(super) const SIZE: u64 = 40 << 20;
const TIME_LIMIT: Duration = Duration::from_secs(20);

/// A disk in memory that fails, waits and remembers as a test wants it to.
pub(super) struct TestDisk {
    pub(super) bytes: RefCell<Vec<u8>>,
    pub(super) is_read_only: bool,
    /// The answer of `write_is_ready`.
    pub(super) is_ready: bool,
    /// Requests that touch this byte fail.
    pub(super) failure: Option<(u64, ErrorKind)>,
    /// Reads and writes at this offset wait until the gate opens.
    pub(super) gated_offset: Option<u64>,
    pub(super) fails_flush: bool,
    /// Flushes wait until the gate opens.
    pub(super) gates_flush: bool,
    /// Any other read opens the gate too.
    pub(super) is_opened_by_reads: bool,
    pub(super) is_open: Cell<bool>,
    pub(super) opened: WaitQueue,
    pub(super) calls: RefCell<Vec<String>>,
}

impl Default for TestDisk {
    fn default() -> Self {
        Self {
            bytes: RefCell::new(vec![0; SIZE as usize]),
            is_read_only: false,
            is_ready: true,
            failure: None,
            gated_offset: None,
            fails_flush: false,
            gates_flush: false,
            is_opened_by_reads: false,
            is_open: Cell::new(false),
            opened: WaitQueue::default(),
            calls: RefCell::default(),
        }
    }
}

impl TestDisk {
    pub(super) fn open_gate(&self) {
        self.is_open.set(true);
        self.opened.wake_all();
    }

    async fn wait_at_gate(&self) {
        self.opened.wait_for(|| self.is_open.get().then_some(())).await;
    }

    fn note(&self, call: String) {
        let mut calls = self.calls.borrow_mut();
        if calls.len() < 100 {
            calls.push(call);
        }
    }

    /// Every request of a server lies within the disk, whatever its client sent.
    fn touch(&self, offset: u64, length: u64) -> Result<()> {
        assert!(offset.checked_add(length).is_some_and(|end| end <= SIZE));
        match self.failure {
            Some((byte, kind)) if (offset..offset + length).contains(&byte) => {
                Err(Error::new(kind, "a failure on request"))
            }
            _ => Ok(()),
        }
    }
}

impl Disk for TestDisk {
    fn size_bytes(&self) -> u64 {
        SIZE
    }

    fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    async fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.touch(offset, out.len() as u64)?;
        if self.gated_offset == Some(offset) {
            self.wait_at_gate().await;
        } else if self.is_opened_by_reads {
            self.open_gate();
        }
        out.copy_from_slice(&self.bytes.borrow()[offset as usize..][..out.len()]);
        Ok(())
    }

    fn write_is_ready(&self, offset: u64, _len: usize) -> bool {
        self.is_ready && self.gated_offset != Some(offset)
    }

    async fn write(&self, offset: u64, data: &[u8], fua: bool) -> Result<()> {
        self.note(format!("write {offset} {} {fua}", data.len()));
        self.touch(offset, data.len() as u64)?;
        if self.gated_offset == Some(offset) {
            self.wait_at_gate().await;
        }
        self.bytes.borrow_mut()[offset as usize..][..data.len()].copy_from_slice(data);
        Ok(())
    }

    async fn flush(&self) -> Result<()> {
        self.note("flush".into());
        if self.gates_flush {
            self.wait_at_gate().await;
        }
        match self.fails_flush {
            true => Err(Error::new(ErrorKind::Medium, "a failure on request")),
            false => Ok(()),
        }
    }

    async fn trim(&self, offset: u64, len: u64, fua: bool) -> Result<()> {
        self.note(format!("trim {offset} {len} {fua}"));
        self.touch(offset, len)?;
        self.bytes.borrow_mut()[offset as usize..][..len as usize].fill(0);
        Ok(())
    }

    async fn write_zeroes(&self, offset: u64, len: u64, keep: bool, fua: bool) -> Result<()> {
        self.note(format!("zero {offset} {len} {keep} {fua}"));
        self.touch(offset, len)?;
        self.bytes.borrow_mut()[offset as usize..][..len as usize].fill(0);
        Ok(())
    }

    async fn prefetch(&self, offset: u64, len: u64) -> Result<()> {
        self.note(format!("prefetch {offset} {len}"));
        self.touch(offset, len)
    }

    /// Blocks of 4 KiB: those that hold nothing but zeroes are holes, if their number is odd, and
    /// zeroes if it is even; the others take as many bytes as their number says.
    async fn extents(
        &self,
        offset: u64,
        len: u64,
        mut visit: impl FnMut(Extent) -> bool,
    ) -> Result<()> {
        self.touch(offset, len)?;
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let block = at / 4096;
            let bytes = ((block + 1) * 4096).min(end) - at;
            let is_zero = self.bytes.borrow()[(block * 4096) as usize..][..4096] == [0; 4096];
            let content = match (is_zero, block % 2) {
                (false, _) => Content::Data,
                (true, 0) => Content::Zeroes,
                (true, _) => Content::Hole,
            };
            let stored_bytes = if is_zero { 0 } else { block };
            if !visit(Extent { bytes, content, stored_bytes }) {
                break;
            }
            at += bytes;
        }
        Ok(())
    }
}

/// What the client asks of the server's side, over the control socket.
const OPEN_GATE: u8 = b'o';
const SHUT_DOWN: u8 = b's';

/// The client's way to its server.
struct Door {
    path: PathBuf,
    control: UnixStream,
}

impl Door {
    /// A connection on which nothing has been said.
    fn connect(&self) -> Client {
        let socket = UnixStream::connect(&self.path).unwrap();
        socket.set_read_timeout(Some(TIME_LIMIT)).unwrap();
        socket.set_write_timeout(Some(TIME_LIMIT)).unwrap();
        Client(socket)
    }

    /// A connection in its transmission phase.
    fn enter(&self) -> Client {
        let mut client = self.connect();
        client.greet(3);
        client.option(wire::option::GO, b"\0\0\0\0\0\0");
        let (kind, data) = client.option_reply(wire::option::GO);
        assert_eq!((kind, data.len()), (wire::reply::INFO, 12));
        assert_eq!(client.option_reply(wire::option::GO), (wire::reply::ACK, vec![]));
        client
    }

    /// Has the server's side do something and returns when it has begun.
    fn signal(&mut self, what: u8) {
        self.control.write_all(&[what]).unwrap();
        self.control.read_exact(&mut [0]).unwrap();
    }
}

/// A client that sends and expects what it is told.
struct Client(UnixStream);

impl Client {
    fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    fn receive(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// The server has closed the connection and sent nothing more.
    fn expect_end(&mut self) {
        match self.0.read(&mut [0; 64]) {
            Ok(length) => assert_eq!(length, 0, "bytes after the end"),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
        }
    }

    /// Says that nothing more will be sent, and takes what still comes.
    fn drain(mut self) {
        let _may_be_closed = self.0.shutdown(Shutdown::Write);
        match self.0.read_to_end(&mut Vec::new()) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
        }
    }

    fn greet(&mut self, flags: u32) {
        assert_eq!(self.receive(18), b"NBDMAGICIHAVEOPT\0\x03");
        self.send(&flags.to_be_bytes());
    }

    fn option(&mut self, option: u32, data: &[u8]) {
        let length = data.len() as u32;
        let header = [&b"IHAVEOPT"[..], &option.to_be_bytes(), &length.to_be_bytes()].concat();
        self.send(&[&header, data].concat());
    }

    fn option_reply(&mut self, option: u32) -> (u32, Vec<u8>) {
        let header = self.receive(20);
        assert_eq!(header[..8], [0, 3, 0xe8, 0x89, 4, 0x55, 0x65, 0xa9]);
        assert_eq!(header[8..12], option.to_be_bytes());
        let field = |start: usize| u32::from_be_bytes(header[start..][..4].try_into().unwrap());
        (field(12), self.receive(field(16) as usize))
    }

    fn request(&mut self, command: u16, flags: u16, cookie: u64, offset: u64, length: u32) {
        let length = length.into();
        self.send(&Request { flags, command, cookie, offset, length }.encode());
    }

    /// Cookie and error value of the next reply.
    fn reply(&mut self) -> (u64, u32) {
        let header = self.receive(wire::REPLY_BYTES);
        let (cookie, error) = wire::decode_reply(header[..].try_into().unwrap()).expect("a reply");
        (cookie, error.to_wire())
    }

    /// The error value of one request without payloads.
    fn call(&mut self, command: u16, flags: u16, offset: u64, length: u32) -> u32 {
        let cookie = offset ^ u64::from(length) << 32;
        self.request(command, flags, cookie, offset, length);
        let (answered, error) = self.reply();
        assert_eq!(answered, cookie);
        error
    }

    fn write(&mut self, flags: u16, offset: u64, data: &[u8]) -> u32 {
        self.request(command::WRITE, flags, 77, offset, data.len() as u32);
        self.send(data);
        let (cookie, error) = self.reply();
        assert_eq!(cookie, 77);
        error
    }

    fn read(&mut self, offset: u64, length: u32) -> std::result::Result<Vec<u8>, u32> {
        match self.call(command::READ, 0, offset, length) {
            0 => Ok(self.receive(length as usize)),
            error => Err(error),
        }
    }

    /// The connection still answers.
    fn expect_alive(&mut self) {
        assert_eq!(self.write(0, 8192, b"still here"), 0);
        assert_eq!(self.read(8192, 10).unwrap(), b"still here");
    }
}

/// What is left when a test's client has gone and the server was shut down.
struct Left {
    disk: Rc<TestDisk>,
    stats: Stats,
    connections: usize,
}

impl Left {
    fn calls(&self) -> Vec<String> {
        self.disk.calls.borrow().clone()
    }
}

/// Runs `client` against a server of `disk`.
fn serve(disk: TestDisk, options: Options, client: impl FnOnce(Door) + Send + 'static) -> Left {
    let runtime = Runtime::new(Backend::Auto).unwrap();
    let disk = Rc::new(disk);
    let export = Rc::new(Export::new("disk", "a test disk", disk.clone()));
    let server = Server::new(runtime.clone(), vec![export.clone()], options);
    serve_with(&runtime, &server, &disk, client);
    Left { disk, stats: export.stats(), connections: server.connections() }
}

/// Runs `client` against `server`; its signals are for `disk`.
fn serve_with(
    runtime: &Runtime,
    server: &Rc<Server<TestDisk>>,
    disk: &TestDisk,
    client: impl FnOnce(Door) + Send + 'static,
) {
    visit(client, |listener, near| {
        runtime.spawn(server.clone().serve(listener));
        runtime.block_on(obey(runtime, server, disk, &near));
    });
}

/// Runs `client` in a thread, and `serve` with what it connects to and the near end of its signals.
fn visit<T>(
    client: impl FnOnce(Door) + Send + 'static,
    serve: impl FnOnce(Listener, Arc<OwnedFd>) -> T,
) -> T {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let listener = Listener::bind(&Listen::Unix(path.clone()), Access::default()).unwrap();
    let (near, far) = UnixStream::pair().unwrap();
    far.set_read_timeout(Some(TIME_LIMIT)).unwrap();
    let door = Door { path: path.clone(), control: far };
    let client = std::thread::spawn(move || client(door));
    let result = serve(listener, Arc::new(near.into()));
    if let Err(panic) = client.join() {
        std::panic::resume_unwind(panic);
    }
    assert!(!path.exists(), "the socket file is left behind");
    result
}

/// Does what the client's signals say; shuts the server down when there are no more.
async fn obey(
    runtime: &Runtime,
    server: &Rc<Server<TestDisk>>,
    disk: &TestDisk,
    near: &Arc<OwnedFd>,
) {
    let mut shutdown = Box::pin(server.shutdown());
    let mut is_shut_down = false;
    let mut buffer = vec![0; 1];
    loop {
        let (returned, received) = runtime.receive(near, buffer, 0..1).await;
        buffer = returned;
        match (received.unwrap(), buffer[0]) {
            (0, _) => break,
            (_, OPEN_GATE) => disk.open_gate(),
            (_, SHUT_DOWN) => {
                // Goes as far as it can; the rest of it waits for the end of the test.
                is_shut_down =
                    poll_fn(|context| Poll::Ready(shutdown.as_mut().poll(context).is_ready()))
                        .await;
            }
            (_, other) => panic!("unknown signal {other}"),
        }
        buffer = runtime.send(near, buffer, 0..1).await.0;
    }
    if !is_shut_down {
        shutdown.await.unwrap();
    }
}

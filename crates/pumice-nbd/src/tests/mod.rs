//! Goal: the server answers its clients correctly, byte by byte. Method: a server on a Unix socket
//! in the test's thread over a disk in memory, and in another thread a scripted client that uses
//! only sockets. The two also share a control socket: signals through the client's end control the
//! server's side, and closing it ends the test. Every client socket has a time limit, so that a
//! missing reply is a failure and not a hang.

mod access;
mod dialects;
mod earlier;
mod handover;
mod handshake;
mod hostile;
mod moving;
mod shutdown;
mod threads;
mod transmission;

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
use super::{Export, Options, Server};
use crate::memory_disk::{MemoryDisk, SIZE};
use crate::{Access, Listen, Listener};
use pumice_drive::base::ErrorKind;
use pumice_drive::runtime::{Backend, Runtime};

const TIME_LIMIT: Duration = Duration::from_secs(20);

/// Signals from the client to the server's side, over the control socket.
const OPEN_GATE: u8 = b'o';
const SHUT_DOWN: u8 = b's';

/// The client's access to its server.
struct Door {
    path: PathBuf,
    control: UnixStream,
}

impl Door {
    /// Returns a connection on which nothing has been sent.
    fn connect(&self) -> Client {
        let socket = UnixStream::connect(&self.path).unwrap();
        socket.set_read_timeout(Some(TIME_LIMIT)).unwrap();
        socket.set_write_timeout(Some(TIME_LIMIT)).unwrap();
        Client(socket)
    }

    /// Returns a connection in its transmission phase.
    fn enter(&self) -> Client {
        let mut client = self.connect();
        client.greet(3);
        client.option(wire::option::GO, b"\0\0\0\0\0\0");
        let (kind, data) = client.option_reply(wire::option::GO);
        assert_eq!((kind, data.len()), (wire::reply::INFO, 12));
        assert_eq!(client.option_reply(wire::option::GO), (wire::reply::ACK, vec![]));
        client
    }

    /// Sends a signal to the server's side, and returns when its action has begun.
    fn signal(&mut self, what: u8) {
        self.control.write_all(&[what]).unwrap();
        self.control.read_exact(&mut [0]).unwrap();
    }
}

/// A client whose sent data and expected answers are scripted.
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

    /// Checks that the server has closed the connection and sent nothing more.
    fn expect_end(&mut self) {
        match self.0.read(&mut [0; 64]) {
            Ok(length) => assert_eq!(length, 0, "bytes after the end"),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
        }
    }

    /// Ends the sending direction, and receives the remaining replies.
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

    /// Returns the cookie and the error value of the next reply.
    fn reply(&mut self) -> (u64, u32) {
        let header = self.receive(wire::REPLY_BYTES);
        let (cookie, error) = wire::decode_reply(header[..].try_into().unwrap()).expect("a reply");
        (cookie, error.to_wire())
    }

    /// Sends one request without payloads, and returns the error value.
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

    /// Checks that the connection still answers.
    fn expect_alive(&mut self) {
        assert_eq!(self.write(0, 8192, b"still here"), 0);
        assert_eq!(self.read(8192, 10).unwrap(), b"still here");
    }
}

/// The state after a test's client has left and the server was shut down.
struct Left {
    disk: Rc<MemoryDisk>,
    refused: u64,
    connections: usize,
}

impl Left {
    fn calls(&self) -> Vec<String> {
        self.disk.calls.borrow().clone()
    }
}

/// Runs `client` against a server of `disk`.
fn serve(disk: MemoryDisk, options: Options, client: impl FnOnce(Door) + Send + 'static) -> Left {
    let runtime = Runtime::new(Backend::Auto).unwrap();
    let disk = Rc::new(disk);
    let export = Rc::new(Export::new("disk", "a test disk", disk.clone()));
    let server = Server::new(runtime.clone(), vec![export.clone()], options);
    serve_with(&runtime, &server, &disk, client);
    Left { disk, refused: export.refused_requests(), connections: server.connections() }
}

/// Runs `client` against `server`. Its signals are for `disk`.
fn serve_with(
    runtime: &Runtime,
    server: &Rc<Server>,
    disk: &MemoryDisk,
    client: impl FnOnce(Door) + Send + 'static,
) {
    visit(client, |listener, near| {
        runtime.spawn(server.clone().serve(listener));
        runtime.block_on(obey(runtime, server, disk, &near));
    });
}

/// Runs `client` in a thread, and `serve` with the socket to which the client connects and the near
/// end of its signals.
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
    assert!(!path.exists(), "the socket file was not removed");
    result
}

/// Obeys the client's signals. Shuts down the server when there are no more.
async fn obey(runtime: &Runtime, server: &Rc<Server>, disk: &MemoryDisk, near: &Arc<OwnedFd>) {
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
                // Proceeds as far as possible; the rest waits for the end of the test.
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

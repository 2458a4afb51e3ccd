//! Goal: the client works with our own server, and survives every other one. Method: `own_server`
//! runs both ends on one runtime over a disk in memory. In `handshakes` and `replies`, a thread
//! plays a server that follows the test's script, byte by byte. Every wait has a time limit, so
//! that a lost answer is a failure and not a hang.

mod allocation;
mod handshakes;
mod own_server;
mod replies;

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use super::super::wire::{self, Information, OptionHeader, Request, info, option, reply};
use super::{Client, Uri};
use crate::Allocation::{Keep, Release};
use crate::Durability::{Durable, Volatile};
use pumice_drive::base::{AlignedBuffer, Error, ErrorKind, Result};
use pumice_drive::runtime::{Backend, Runtime};

const TIME_LIMIT: Duration = Duration::from_secs(20);
const TIME_LIMIT_NS: u64 = 20_000_000_000;

/// The usual flags of a scripted server: flags, flush, FUA, trim, write-zeroes.
const FLAGS: u16 = 1 | 1 << 2 | 1 << 3 | 1 << 5 | 1 << 6;

/// Size of a scripted server's export in bytes.
const SIZE: u64 = 1 << 30;

/// The server's end of a scripted connection.
struct Script(UnixStream);

impl Script {
    /// Sends bytes. It does not matter if the client has vanished.
    fn send(&mut self, bytes: &[u8]) {
        let _may_be_gone = self.0.write_all(bytes);
    }

    fn receive<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes).expect("the client ended early");
        bytes
    }

    /// Greets, and returns the client's flags.
    fn greet(&mut self) -> u32 {
        self.send(&wire::encode_greeting());
        u32::from_be_bytes(self.receive())
    }

    /// Returns the client's next option and its data.
    fn option(&mut self) -> (u32, Vec<u8>) {
        let header = OptionHeader::decode(&self.receive()).expect("an option");
        let mut data = vec![0; header.length as usize];
        self.0.read_exact(&mut data).expect("the option's data");
        (header.option, data)
    }

    fn answer(&mut self, option: u32, kind: u32, data: &[&[u8]]) {
        let mut out = Vec::new();
        wire::append_option_reply(&mut out, option, kind, data);
        self.send(&out);
    }

    fn inform_export(&mut self, size: u64, flags: u16) {
        let kind = info::EXPORT.to_be_bytes();
        let data = [&kind[..], &size.to_be_bytes(), &flags.to_be_bytes()];
        self.answer(option::GO, reply::INFO, &data);
    }

    fn inform_block_size(&mut self, sizes: [u32; 3]) {
        let [min, preferred, most] = sizes.map(u32::to_be_bytes);
        let data = [&info::BLOCK_SIZE.to_be_bytes()[..], &min, &preferred, &most];
        self.answer(option::GO, reply::INFO, &data);
    }

    /// Describes the export, with size constraints if there are any.
    fn enter(&mut self, sizes: Option<[u32; 3]>) {
        self.greet();
        assert_eq!(self.option().0, option::GO);
        self.inform_export(SIZE, FLAGS);
        if let Some(sizes) = sizes {
            self.inform_block_size(sizes);
        }
        self.answer(option::GO, reply::ACK, &[]);
    }

    fn request(&mut self) -> Request {
        Request::decode(&self.receive()).expect("a request")
    }

    fn reply(&mut self, cookie: u64, error: u32, payload: &[u8]) {
        let header = wire::encode_reply(cookie, wire::Errno::from_wire(error));
        self.send(&[&header, payload].concat());
    }

    /// Waits until the client has closed its end.
    fn expect_end(&mut self) {
        let _rest = self.0.read_to_end(&mut Vec::new());
    }
}

/// Runs `body` with a server that follows `script`.
fn meet<T>(
    script: impl FnOnce(&mut Script) + Send + 'static,
    body: impl AsyncFnOnce(&Runtime, &Uri) -> T,
) -> T {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let server = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(TIME_LIMIT)).unwrap();
        stream.set_write_timeout(Some(TIME_LIMIT)).unwrap();
        script(&mut Script(stream));
    });
    let runtime = Runtime::new(Backend::Auto).unwrap();
    let uri = Uri::parse(&format!("nbd+unix:///disk?socket={}", path.display())).unwrap();
    let body = async { runtime.timeout(TIME_LIMIT_NS, body(&runtime, &uri)).await };
    let value = runtime.block_on(body).expect("the client hangs");
    runtime.drop_tasks();
    if let Err(panic) = server.join() {
        std::panic::resume_unwind(panic);
    }
    value
}

/// Runs [`meet`] with a client in its transmission phase.
fn meet_client<T>(
    script: impl FnOnce(&mut Script) + Send + 'static,
    body: impl AsyncFnOnce(&Runtime, Client) -> T,
) -> T {
    meet(script, async |runtime, uri| {
        let client = Client::connect(runtime, uri).await.unwrap();
        body(runtime, client).await
    })
}

/// Returns the error of a read of `len` bytes.
async fn read_error(client: &Client, offset: u64, len: usize) -> Error {
    let (buffer, result) = client.read(offset, AlignedBuffer::zeroed(len)).await;
    assert_eq!(buffer.len(), len, "the buffer comes back");
    result.unwrap_err()
}

/// Returns the number of requests in flight.
fn under_way(client: &Client) -> usize {
    client.connection().table.borrow().count()
}

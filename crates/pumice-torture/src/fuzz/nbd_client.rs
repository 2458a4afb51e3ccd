//! Fuzz targets for the NBD client: the bytes of any server.
//!
//! ```text
//! input   chunk | chunk | ...          at most CHUNKS_MAX, then the server closes its side
//! chunk   u8: bytes to receive before sending | u16 LE: length | that many bytes
//! ```
//!
//! The server is a thread that follows the input. It closes the connection if the bytes do not
//! arrive, so that an input with wrong counts costs time but ends. The client connects, reads,
//! writes and flushes, or asks for the holes of the export; every call must end.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use pumice_drive::base::AlignedBuffer;
use pumice_drive::runtime::{Backend, Runtime};
use pumice_nbd::Durability;
use pumice_nbd::client::{Client, Uri, allocation};

/// Maximum number of chunks: the handshake and a few replies; bounds the time of one input.
const CHUNKS_MAX: usize = 8;

/// Time that the server waits for bytes before each chunk: short for the speed of a fuzzer, long
/// for a test on a busy machine.
const PATIENCE: Duration = Duration::from_millis(if cfg!(fuzzing) { 20 } else { 5_000 });

/// Limit on the time of one input, after which the client counts as hanging.
const LIMIT_NS: u64 = 30_000_000_000;

/// Maximum number of extents that are accepted.
const EXTENTS_MAX: u64 = 1 << 16;

/// Length of the read.
const READ_BYTES: usize = 512;

/// Connects the client to a server that sends the input. Accepted if the read succeeds.
pub fn nbd_client(input: &[u8]) -> bool {
    meet(input, call)
}

/// Queries a server that sends the input for the holes of its export. Accepted if it reports any
/// extent.
pub fn nbd_allocation(input: &[u8]) -> bool {
    meet(input, async |runtime: &Runtime, uri: &Uri| {
        let (mut bytes, mut extents) = (0u64, 0);
        let told = allocation(runtime, uri, LIMIT_NS, |length, _| {
            assert!(length > 0, "an extent of nothing");
            bytes = bytes.checked_add(length).expect("no export is so long");
            extents += 1;
            extents < EXTENTS_MAX
        });
        // The server may refuse or break it.
        let _told = told.await;
        assert!(i64::try_from(bytes).is_ok(), "extents beyond the export");
        extents > 0
    })
}

/// Connects a client to a server that sends the input.
fn meet(input: &[u8], call: impl AsyncFnOnce(&Runtime, &Uri) -> bool) -> bool {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("socket");
    let listener = UnixListener::bind(&path).expect("a listening socket");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            if let Ok((stream, _)) = listener.accept() {
                serve(stream, input);
            }
        });
        let runtime = Runtime::new(Backend::Auto).expect("an I/O backend");
        let uri = Uri::unix(&path, "");
        let calls = runtime.timeout(LIMIT_NS, call(&runtime, &uri));
        let is_read = runtime.block_on(calls).expect("the client hangs");
        runtime.drop_tasks();
        is_read
    })
}

/// Uses the export as a client does. Returns whether the read succeeded.
async fn call(runtime: &Runtime, uri: &Uri) -> bool {
    let Ok(client) = Client::connect(runtime, uri).await else { return false };
    let (buffer, read) = client.read(0, AlignedBuffer::zeroed(READ_BYTES)).await;
    assert_eq!(buffer.len(), READ_BYTES, "a read returns its buffer");
    // The server may refuse or break any of these.
    let _written = client.write(0, &[1; READ_BYTES], Durability::Volatile).await;
    let _flushed = client.flush().await;
    let _ended = client.disconnect().await;
    read.is_ok()
}

/// Sends the chunks of the input, each after its number of received bytes, then closes.
fn serve(mut stream: UnixStream, mut input: &[u8]) {
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket has timeouts");
    for _ in 0..CHUNKS_MAX {
        let Some((head, rest)) = input.split_first_chunk::<3>() else { break };
        let mut expected = [0; u8::MAX as usize];
        if stream.read_exact(&mut expected[..usize::from(head[0])]).is_err() {
            return;
        }
        let length = usize::from(u16::from_le_bytes([head[1], head[2]])).min(rest.len());
        let (chunk, later) = rest.split_at(length);
        if stream.write_all(chunk).is_err() {
            return;
        }
        input = later;
    }
    // Fails if the client has already closed it.
    let _closed = stream.shutdown(Shutdown::Both);
}

//! Fuzz targets for the NBD server: the bytes of one client, from the beginning or after the
//! handshake.
//!
//! Server and client share one thread and a socket pair. The client sends its bytes, shuts its side
//! down, and reads all answers; the server must then end the connection. The disk asserts that
//! every request lies within it.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::future::join;

use super::sockets::{ANSWERS_KEPT_MAX, receive, runtime, send};
use pumice_nbd::memory_disk::MemoryDisk;
use pumice_nbd::{Export, Options, Server};

/// Size of the disk: slightly more than the piece in which long requests are streamed.
const DISK_BYTES: u64 = (1 << 20) + (64 << 10);

/// Length of the greeting.
const GREETING_BYTES: usize = 18;
const OPTION_REPLY_MAGIC: [u8; 8] = 0x0003_e889_0455_65a9_u64.to_be_bytes();

/// Client flags and the option GO for the default export.
const ENTER: &[u8] = b"\0\0\0\x03IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0";

/// Runs a client that sends the input from the beginning. Accepted if it reaches the transmission
/// phase by GO.
pub fn nbd_handshake(input: &[u8]) -> bool {
    let (answers, _) = converse(input);
    assert_eq!(answers.first_chunk(), Some(b"NBDMAGICIHAVEOPT\0\x03"));
    let acknowledged = [&OPTION_REPLY_MAGIC[..], b"\0\0\0\x07\0\0\0\x01\0\0\0\0"].concat();
    answers.windows(acknowledged.len()).any(|window| window == acknowledged)
}

/// Runs a client that sends the input in the transmission phase. Accepted if any request is
/// executed.
pub fn nbd_transmission(input: &[u8]) -> bool {
    let (answers, completed) = converse(&[ENTER, input].concat());
    // Export information (20 + 12 bytes) and acknowledgement (20).
    let replies = &answers[GREETING_BYTES + 52..];
    if answers.len() < ANSWERS_KEPT_MAX {
        check_replies(input, replies);
    }
    completed > 0
}

/// Checks that every answer belongs to a request, is complete, and comes once. Ignores clients that
/// use a cookie twice, because their replies are ambiguous.
fn check_replies(input: &[u8], mut replies: &[u8]) {
    let mut asked = HashMap::new();
    let mut rest = input;
    while let Some((request, later)) = rest.split_first_chunk::<28>() {
        if request[..4] != 0x2560_9513_u32.to_be_bytes() {
            break;
        }
        let cookie: [u8; 8] = *request[8..].first_chunk().expect("inside the request");
        let length = u32::from_be_bytes(*request[24..].last_chunk().expect("inside the request"));
        let (is_read, is_write) = (request[6..8] == [0, 0], request[6..8] == [0, 1]);
        if asked.insert(cookie, if is_read { length as usize } else { 0 }).is_some() {
            return;
        }
        rest = later.get(if is_write { length as usize } else { 0 }..).unwrap_or_default();
    }
    while let Some((reply, later)) = replies.split_first_chunk::<16>() {
        assert_eq!(reply[..4], 0x6744_6698_u32.to_be_bytes(), "no reply's magic");
        let cookie: &[u8; 8] = reply.last_chunk().expect("inside the reply");
        let length = asked.remove(cookie).expect("an answer without a request");
        let payload = if reply[4..8] == [0; 4] { length } else { 0 };
        assert!(payload <= later.len(), "a reply is cut off");
        replies = &later[payload..];
    }
    assert!(replies.is_empty(), "a reply's header is cut off");
}

/// Runs a client that sends `bytes`. Returns the start of the answers, and the number of requests
/// that the disk completed.
fn converse(bytes: &[u8]) -> (Vec<u8>, u64) {
    let runtime = runtime();
    let mut options = Options::default();
    options.payload_bytes = 2 << 20;
    let disk = Rc::new(disk());
    let export = Rc::new(Export::new("drive", "", disk.clone()));
    let server = Server::new(runtime.clone(), vec![export], options);
    let (near, far) = UnixStream::pair().expect("a pair of sockets");
    server.start(OwnedFd::from(far));
    let near = Arc::new(OwnedFd::from(near));
    let client = join(send(&runtime, &near, bytes.to_vec()), receive(&runtime, &near));
    let ((), answers) = runtime.block_on(client);
    runtime.block_on(server.shutdown()).expect("the disk does not fail");
    assert_eq!(server.connections(), 0, "the client was not let go");
    // Without the flush of the shutdown.
    (answers, disk.completed.get() - 1)
}

/// Returns a disk of which every other 64 KiB hold data, so that reads have several parts. Writes
/// at even offsets complete at once, and those at odd ones go through a slot.
fn disk() -> MemoryDisk {
    let disk =
        MemoryDisk { is_ready: |offset| offset.is_multiple_of(2), ..MemoryDisk::new(DISK_BYTES) };
    disk.bytes.borrow_mut().chunks_mut(64 << 10).skip(1).step_by(2).for_each(|data| data.fill(1));
    disk
}

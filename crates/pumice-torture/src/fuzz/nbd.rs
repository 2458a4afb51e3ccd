//! Fuzz targets for the NBD server: the bytes of one client, from the beginning or after the
//! handshake.
//!
//! ```text
//! nbd_transmission   u8: the dialect in the low two bits, in the third whether the client stays
//!                    requests
//! ```
//!
//! Server and client share one thread and a socket pair. The client sends its bytes, shuts its side
//! down, and reads all answers; the server must then end the connection. A client that stays
//! connected shuts nothing down: the server hands it over to another one, or closes its connection.
//! The disk asserts that every request lies within it.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::future::join;

use super::sockets::{ANSWERS_KEPT_MAX, receive, runtime, send, send_and_stay};
use pumice_drive::runtime::Runtime;
use pumice_nbd::memory_disk::MemoryDisk;
use pumice_nbd::{Export, Options, Server};

/// Size of the disk: slightly more than the piece in which long requests are streamed.
const DISK_BYTES: u64 = (1 << 20) + (64 << 10);

/// Length of the greeting.
const GREETING_BYTES: usize = 18;
const OPTION_REPLY_MAGIC: [u8; 8] = 0x0003_e889_0455_65a9_u64.to_be_bytes();

/// Limit on the time of one input, after which the server counts as hanging.
const LIMIT_NS: u64 = 30_000_000_000;

/// Agreements before the transmission phase, after the flags of the client. The contexts are
/// `base:allocation` and `x-pumice:stored` of the default export.
const SIMPLE: &[u8] = b"";
const STRUCTURED: &[u8] = b"IHAVEOPT\0\0\0\x08\0\0\0\0";
const EXTENDED: &[u8] = b"IHAVEOPT\0\0\0\x0b\0\0\0\0";
const CONTEXTS: &[u8] = b"IHAVEOPT\0\0\0\x0a\0\0\0\x2e\0\0\0\0\0\0\0\x02\
    \0\0\0\x0fbase:allocation\0\0\0\x0fx-pumice:stored";
const GO: &[u8] = b"IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0";

/// Command flag: the length in an extended header is the length of a payload.
const PAYLOAD_LEN: u16 = 1 << 5;

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
    let Some((&first, input)) = input.split_first() else { return false };
    let (form, agreements): (_, [&[u8]; 2]) = match first & 3 {
        0 => (Form::Simple, [SIMPLE, SIMPLE]),
        1 => (Form::Structured, [STRUCTURED, SIMPLE]),
        2 => (Form::Structured, [STRUCTURED, CONTEXTS]),
        _ => (Form::Extended, [EXTENDED, CONTEXTS]),
    };
    let enter = [b"\0\0\0\x03", agreements[0], agreements[1], GO].concat();
    let bytes = [&enter[..], input].concat();
    let (answers, completed) = if first & 4 == 0 { converse(&bytes) } else { stay(&bytes) };
    // A server that hands a client over may leave requests to the next one.
    if answers.len() < ANSWERS_KEPT_MAX {
        check_replies(form, input, after_handshake(&answers));
    }
    completed > 0
}

/// The form of requests and replies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Simple,
    Structured,
    Extended,
}

/// Returns the bytes after the acknowledgement of GO.
fn after_handshake(answers: &[u8]) -> &[u8] {
    let mut rest = answers.get(GREETING_BYTES..).expect("a greeting");
    loop {
        let (reply, later) = rest.split_first_chunk::<20>().expect("the reply to an option");
        assert_eq!(reply[..8], OPTION_REPLY_MAGIC);
        let length = be(&reply[16..]) as usize;
        rest = later.get(length..).expect("a whole reply to an option");
        if be(&reply[8..12]) == 7 && be(&reply[12..16]) == 1 {
            return rest;
        }
    }
}

/// A request that is not completely answered; a read has its offset and length.
struct Asked {
    read: Option<(u64, u64)>,
    /// Bytes of a read that were answered.
    answered: u64,
}

/// Checks that every answer belongs to a request, is complete, and arrives once. Ignores clients
/// that use a cookie twice, because their replies are ambiguous.
fn check_replies(form: Form, input: &[u8], replies: &[u8]) {
    let Some(mut asked) = requests(form, input) else { return };
    if form == Form::Simple {
        check_simple(&mut asked, replies);
    } else {
        check_chunks(form, &mut asked, replies);
    }
}

/// Returns the requests of the input by their cookies, or none if two share a cookie.
fn requests(form: Form, input: &[u8]) -> Option<HashMap<u64, Asked>> {
    let mut asked = HashMap::new();
    let mut rest = input;
    let (bytes, magic) = match form {
        Form::Extended => (32, 0x21e4_1c71),
        _ => (28, 0x2560_9513),
    };
    while rest.len() >= bytes {
        let (request, later) = rest.split_at(bytes);
        if be(&request[..4]) != magic {
            break;
        }
        let (flags, command) = (be(&request[4..6]) as u16, be(&request[6..8]));
        let (cookie, offset, length) =
            (be(&request[8..16]), be(&request[16..24]), be(&request[24..]));
        let read = (command == 0).then_some((offset, length));
        if asked.insert(cookie, Asked { read, answered: 0 }).is_some() {
            return None;
        }
        let has_payload = match form {
            Form::Extended => flags & PAYLOAD_LEN != 0,
            _ => command == 1,
        };
        let payload = if has_payload { usize::try_from(length).unwrap_or(usize::MAX) } else { 0 };
        rest = later.get(payload..).unwrap_or_default();
    }
    Some(asked)
}

fn check_simple(asked: &mut HashMap<u64, Asked>, mut replies: &[u8]) {
    while let Some((reply, later)) = replies.split_first_chunk::<16>() {
        assert_eq!(be(&reply[..4]), 0x6744_6698, "no reply's magic");
        let request = asked.remove(&be(&reply[8..])).expect("an answer without a request");
        let (_, length) = request.read.unwrap_or_default();
        let payload = if be(&reply[4..8]) == 0 { length as usize } else { 0 };
        assert!(payload <= later.len(), "a reply is cut off");
        replies = &later[payload..];
    }
    assert!(replies.is_empty(), "a reply's header is cut off");
}

fn check_chunks(form: Form, asked: &mut HashMap<u64, Asked>, mut replies: &[u8]) {
    let (bytes, magic) = match form {
        Form::Extended => (32, 0x6e8a_278c),
        _ => (20, 0x668e_33ef),
    };
    while !replies.is_empty() {
        let (chunk, later) = replies.split_at_checked(bytes).expect("a whole header of a chunk");
        assert_eq!(be(&chunk[..4]), magic, "no chunk's magic");
        let (is_last, kind, cookie) = (chunk[5] & 1 != 0, be(&chunk[6..8]), be(&chunk[8..16]));
        let length = if form == Form::Extended { &chunk[24..] } else { &chunk[16..] };
        let length = usize::try_from(be(length)).expect("a length of a chunk");
        let (payload, later) = later.split_at_checked(length).expect("a whole chunk");
        replies = later;
        let request = asked.get_mut(&cookie).expect("a chunk without a request");
        let is_error = kind & 1 << 15 != 0;
        match kind {
            0 => assert!(is_last && payload.is_empty(), "a chunk of nothing"),
            1 | 2 => {
                let (offset, length) = request.read.expect("data without a read");
                let at = be(&payload[..8]);
                let bytes = if kind == 1 { payload.len() as u64 - 8 } else { be(&payload[8..12]) };
                assert!(bytes > 0 && at >= offset, "data before the read");
                assert!(at - offset + bytes <= length, "data after the read");
                request.answered += bytes;
            }
            5 | 6 => assert!(request.read.is_none(), "a status of a read"),
            _ => assert!(is_error && is_last, "chunk of kind {kind}"),
        }
        if is_last {
            let request = asked.remove(&cookie).expect("looked up before");
            let whole = request.read.map_or(0, |(_, length)| length);
            assert!(is_error || request.answered == whole, "a read is not answered wholly");
        }
    }
}

/// Returns a number of up to 8 bytes.
fn be(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// A server and one client of it.
struct Pair {
    runtime: Runtime,
    disk: Rc<MemoryDisk>,
    server: Rc<Server>,
    client: Arc<OwnedFd>,
}

fn pair(grace_ns: Option<u64>) -> Pair {
    let runtime = runtime();
    let mut options = Options::default();
    options.payload_bytes = 2 << 20;
    options.grace_ns = grace_ns.unwrap_or(options.grace_ns);
    let disk = Rc::new(disk());
    let export = Rc::new(Export::new("drive", "", disk.clone()));
    let server = Server::new(runtime.clone(), vec![export], options);
    let (near, far) = UnixStream::pair().expect("a pair of sockets");
    server.start(OwnedFd::from(far));
    Pair { runtime, disk, server, client: Arc::new(OwnedFd::from(near)) }
}

/// Runs a client that sends `bytes` and then leaves. Returns the start of the answers, and the
/// number of requests that the disk completed.
fn converse(bytes: &[u8]) -> (Vec<u8>, u64) {
    let Pair { runtime, disk, server, client } = pair(None);
    let talk = join(send(&runtime, &client, bytes.to_vec()), receive(&runtime, &client));
    let ((), answers) = runtime.block_on(talk);
    runtime.block_on(server.shutdown()).expect("the disk does not fail");
    assert_eq!(server.connections(), 0, "the client was not let go");
    // Without the flush of the shutdown.
    (answers, disk.completed.get() - 1)
}

/// Runs a client that sends `bytes` and then waits, and hands it over. Returns as `converse` does.
fn stay(bytes: &[u8]) -> (Vec<u8>, u64) {
    let Pair { runtime, disk, server, client } = pair(Some(1_000_000));
    let serve = async {
        send_and_stay(&runtime, &client, bytes.to_vec()).await;
        let handed = runtime.timeout(LIMIT_NS, server.hand_over()).await;
        // Closes the sockets of the clients that were handed over.
        drop(handed.expect("the server hangs").expect("the disk does not fail"));
    };
    let ((), answers) = runtime.block_on(join(serve, receive(&runtime, &client)));
    assert_eq!(server.connections(), 0, "the client was not let go");
    // Without the flush of the handover.
    (answers, disk.completed.get() - 1)
}

/// Returns a disk in which every other 64 KiB hold data, so that reads have several parts. Writes
/// at even offsets complete immediately, writes at odd ones go through a slot.
fn disk() -> MemoryDisk {
    let disk =
        MemoryDisk { is_ready: |offset| offset.is_multiple_of(2), ..MemoryDisk::new(DISK_BYTES) };
    disk.bytes.borrow_mut().chunks_mut(64 << 10).skip(1).step_by(2).for_each(|data| data.fill(1));
    disk
}

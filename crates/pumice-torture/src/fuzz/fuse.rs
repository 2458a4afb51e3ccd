//! Fuzz target for a FUSE session: the requests of any kernel.
//!
//! ```text
//! input     u8: corrections | message | message ...    at most MESSAGES_MAX
//! message   u16 LE: length | that many bytes
//! ```
//!
//! Session and kernel share one thread and a pair of sockets that keep messages apart, as
//! `/dev/fuse` does. The kernel sends everything, shuts its side down and reads all replies; the
//! session must then end. The disk asserts that every request lies within it.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::future::join;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};

use super::sockets::runtime;
use pumice_drive::runtime::Runtime;
use pumice_nbd::memory_disk::MemoryDisk;

/// Size of the disk: more than a short payload, and little enough that several replies fit into the
/// buffer of the socket.
const DISK_BYTES: u64 = (20 << 10) + 7;

/// Limits on the messages of an input, all of which must fit into the buffer of the socket.
const MESSAGES_MAX: usize = 64;
const INPUT_BYTES_MAX: usize = 64 << 10;

/// Limit on the time of one input, after which the session counts as hanging.
const LIMIT_NS: u64 = 30_000_000_000;

/// Bits of the first byte: write the length of each message into its header, and the length of the
/// data into each write; send INIT first.
const LENGTHS: u8 = 1;
const INIT_FIRST: u8 = 2;

/// Length of a request's header, and of the header of a read or write.
const HEAD_BYTES: usize = 40;
const SPAN_BYTES: usize = 80;

/// Operations.
const FORGET: u32 = 2;
const READ: u32 = 15;
const WRITE: u32 = 16;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;
const BATCH_FORGET: u32 = 42;

/// Runs a kernel that sends the input. Accepted if the disk completes any request.
pub fn fuse(input: &[u8]) -> bool {
    let Some((&mode, input)) = input.split_first() else { return false };
    let messages = messages(mode, &input[..input.len().min(INPUT_BYTES_MAX)]);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let (near, far) = pair.expect("a pair of sockets");
    for message in &messages {
        let sent = rustix::io::write(&far, message).expect("room for the messages");
        assert_eq!(sent, message.len());
    }
    // Before the session starts, which waits for its first request.
    shutdown(&far, Shutdown::Write).expect("an open socket");
    let runtime = runtime();
    let is_ready = |offset: u64| offset.is_multiple_of(2);
    let disk = Rc::new(MemoryDisk { is_ready, ..MemoryDisk::new(DISK_BYTES) });
    let Ok(session) = pumice_fuse::serve(&runtime, disk.clone(), near) else { return false };
    let talk = join(session, receive(&runtime, far));
    let talk = runtime.block_on(runtime.timeout(LIMIT_NS, talk));
    let ((), replies) = talk.expect("the session hangs");
    check_replies(&messages, &replies);
    disk.completed.get() > 0
}

/// Returns the messages of the input, corrected as its first byte specifies.
fn messages(mode: u8, mut input: &[u8]) -> Vec<Vec<u8>> {
    let mut messages = Vec::new();
    if mode & INIT_FIRST != 0 {
        let flags: u32 = 1 << 5 | 1 << 15 | 1 << 22;
        let numbers = [HEAD_BYTES as u32 + 16, INIT, 1, 0, 0, 0, 0, 0, 0, 0, 7, 31, 0, flags];
        messages.push(numbers.map(u32::to_ne_bytes).as_flattened().to_vec());
    }
    while let Some((length, rest)) = input.split_first_chunk() {
        let length = usize::from(u16::from_le_bytes(*length)).min(rest.len());
        let (message, later) = rest.split_at(length);
        input = later;
        // An empty message would be the end.
        if !message.is_empty() && messages.len() < MESSAGES_MAX {
            messages.push(message.to_vec());
        }
    }
    if mode & LENGTHS != 0 {
        messages.iter_mut().for_each(|message| put_right(message));
    }
    messages
}

/// Writes the lengths into a message.
fn put_right(message: &mut [u8]) {
    let bytes = message.len();
    if bytes < HEAD_BYTES {
        return;
    }
    message[..4].copy_from_slice(&(bytes as u32).to_ne_bytes());
    if number(message, 4) == WRITE && bytes >= SPAN_BYTES {
        let data_bytes = (bytes - SPAN_BYTES) as u32;
        message[56..60].copy_from_slice(&data_bytes.to_ne_bytes());
    }
}

/// Checks that every reply is well-formed, answers a request, and arrives once. Ignores kernels
/// that use a number twice, because their replies are ambiguous. A reply may be missing: the
/// session drops one that does not fit in the socket.
fn check_replies(messages: &[Vec<u8>], replies: &[Vec<u8>]) {
    let mut asked = HashMap::new();
    for message in messages.iter().filter(|message| message.len() >= HEAD_BYTES) {
        let operation = number(message, 4);
        if matches!(operation, FORGET | BATCH_FORGET | INTERRUPT) {
            continue;
        }
        let is_read = operation == READ && message.len() >= SPAN_BYTES;
        let result_bytes_max = is_read.then(|| number(message, 56) as usize);
        if asked.insert(message[8..16].to_vec(), result_bytes_max).is_some() {
            return;
        }
    }
    for reply in replies {
        assert!(reply.len() >= 16, "a reply's header is cut off");
        assert_eq!(number(reply, 0) as usize, reply.len(), "a reply's length");
        let status = number(reply, 4).cast_signed();
        assert!((-4095..=0).contains(&status), "no errno: {status}");
        assert!(status == 0 || reply.len() == 16, "a result in an error");
        let result_bytes_max = asked.remove(&reply[8..16]).expect("a reply without a request");
        let result_bytes_max = result_bytes_max.unwrap_or(usize::MAX);
        assert!(reply.len() - 16 <= result_bytes_max, "a read returns more than was asked");
    }
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(*bytes[at..].first_chunk().expect("inside the header"))
}

/// Receives replies until the session is gone.
async fn receive(runtime: &Runtime, socket: OwnedFd) -> Vec<Vec<u8>> {
    let socket = Arc::new(socket);
    let mut replies = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        let range = 0..buffer.len();
        let (returned, result) = runtime.receive(&socket, buffer, range).await;
        buffer = returned;
        match result {
            Ok(0) | Err(_) => return replies,
            Ok(length) => replies.push(buffer[..length].to_vec()),
        }
    }
}

//! Fuzz target for the handover of a server to its successor.
//!
//! ```text
//! input   u8: number of sockets, modulo SOCKETS_MAX + 1
//!         content of the memory file: a manifest in one line, then bytes of the clients
//! ```
//!
//! The sockets are halves of pairs: the sockets of listeners do not listen, and the peers of the
//! clients' sockets send nothing. Every client is resumed on a server, which must end it.
//!
//! A manifest may name any path as a listener's. A listener removes its file only if device and
//! inode also match the manifest, which an input cannot guess.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::sockets::{receive, runtime, send};
use pumice_nbd::memory_disk::MemoryDisk;
use pumice_nbd::{Export, Handover, Options, Server};

const SOCKETS_MAX: usize = 7;

/// Size of the disk: little more than a short request.
const DISK_BYTES: u64 = 64 << 10;

/// Limit on the time of one input, after which a server counts as hanging.
const LIMIT_NS: u64 = 30_000_000_000;

/// Receives and resumes the handover that the input describes. Accepted if there is a client.
pub fn nbd_handover(input: &[u8]) -> bool {
    let Some((&count, content)) = input.split_first() else { return false };
    let count = usize::from(count) % (SOCKETS_MAX + 1);
    let pair = || UnixStream::pair().expect("a pair of sockets");
    let (handed, peers): (Vec<_>, Vec<_>) = std::iter::repeat_with(pair).take(count).unzip();
    let memory = memory_file(content);
    let (ours, theirs) = pair();
    let sockets = handed.iter().map(|socket| socket.as_fd());
    send_descriptors(&ours, &[memory.as_fd()].into_iter().chain(sockets).collect::<Vec<_>>());
    drop((handed, ours));
    let Ok(handover) = Handover::receive(&theirs) else { return false };
    let handover = through_a_socket(handover);
    let runtime = runtime();
    let export = Rc::new(Export::new("disk", "", Rc::new(MemoryDisk::new(DISK_BYTES))));
    let server = Server::new(runtime.clone(), vec![export], Options::default());
    let is_accepted = !handover.clients.is_empty();
    // The first of the sockets are the listeners', and are closed here.
    let listener_count = handover.listeners.len();
    drop((handover.listeners, handover.others));
    handover.clients.into_iter().for_each(|client| server.resume(client));
    let talk = async {
        for peer in peers.into_iter().skip(listener_count) {
            let peer = Arc::new(OwnedFd::from(peer));
            send(&runtime, &peer, Vec::new()).await;
            receive(&runtime, &peer).await;
        }
        server.shutdown().await
    };
    let ended = runtime.block_on(runtime.timeout(LIMIT_NS, talk));
    ended.expect("the server hangs").expect("the disk does not fail");
    assert_eq!(server.connections(), 0, "a client was not let go");
    is_accepted
}

/// Hands over the received state again: nothing may be lost.
fn through_a_socket(handover: Handover) -> Handover {
    let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
    handover.send(&ours).expect("a received handover can be sent");
    drop(ours);
    let again = Handover::receive(&theirs).expect("a sent handover can be received");
    assert_eq!(again.listeners.len(), handover.listeners.len());
    assert_eq!(format!("{:?}", Shown(&again)), format!("{:?}", Shown(&handover)));
    again
}

/// The clients of a handover without their sockets, which differ.
struct Shown<'a>(&'a Handover);

impl std::fmt::Debug for Shown<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = |client| format!("{client:?}");
        for client in &self.0.clients {
            let text = text(client);
            let at = text.find("export").expect("the name of its export");
            f.write_str(&text[at..])?;
        }
        Ok(())
    }
}

fn memory_file(content: &[u8]) -> File {
    let memory = memfd_create("handover", MemfdFlags::CLOEXEC).expect("a memory file");
    let mut memory = File::from(memory);
    memory.write_all(content).expect("room for the input");
    memory
}

fn send_descriptors(through: &UnixStream, descriptors: &[BorrowedFd<'_>]) {
    let mut space =
        [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SOCKETS_MAX + 1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(descriptors)), "room for all sockets");
    let byte = [std::io::IoSlice::new(&[0])];
    sendmsg(through, &byte, &mut ancillary, SendFlags::NOSIGNAL).expect("an open socket");
}

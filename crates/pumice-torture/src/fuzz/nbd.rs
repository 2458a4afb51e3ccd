//! Targets for the NBD server: the bytes of one client, from the first or after the handshake.
//!
//! Server and client share one thread and a pair of sockets. The client sends its bytes, says that
//! no more will come, and takes all that the server answers; the server must then let it go. The
//! disk holds the server to its word that every request lies within it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::future::join;
use rustix::net::Shutdown;

use pumice_drive::base::Result;
use pumice_drive::runtime::{Backend, Runtime};
use pumice_nbd::Disk;
use pumice_nbd::disk::{Content, Extent};
use pumice_nbd::{Export, Options, Server, Stats};

/// The disk: a little more than the piece in which long requests are streamed.
const DISK_BYTES: u64 = (1 << 20) + (64 << 10);

/// Answers kept to be looked at; of more than that only this beginning.
const ANSWERS_KEPT_MAX: usize = 8 << 20;

/// The greeting, and the option reply's first word.
const GREETING_BYTES: usize = 18;
const OPTION_REPLY_MAGIC: [u8; 8] = 0x0003_e889_0455_65a9_u64.to_be_bytes();

/// Client flags and the option GO for the default export.
const ENTER: &[u8] = b"\0\0\0\x03IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0";

/// All that a client sends. Taken for good if it reaches the transmission phase by GO.
pub fn nbd_handshake(input: &[u8]) -> bool {
    let (answers, _) = converse(input);
    assert_eq!(answers.first_chunk(), Some(b"NBDMAGICIHAVEOPT\0\x03"));
    let acknowledged = [&OPTION_REPLY_MAGIC[..], b"\0\0\0\x07\0\0\0\x01\0\0\0\0"].concat();
    answers.windows(acknowledged.len()).any(|window| window == acknowledged)
}

/// What a client sends once it is in the transmission phase. Taken for good if any request is
/// carried out.
pub fn nbd_transmission(input: &[u8]) -> bool {
    let (answers, stats) = converse(&[ENTER, input].concat());
    // Export information (20 + 12 bytes) and acknowledgement (20).
    let replies = &answers[GREETING_BYTES + 52..];
    if answers.len() < ANSWERS_KEPT_MAX {
        check_replies(input, replies);
    }
    let verbs = [stats.read, stats.write, stats.flush, stats.trim, stats.write_zeroes];
    verbs.iter().any(|verb| verb.requests > 0)
}

/// Every answer belongs to a request, is whole, and comes once. Says nothing about clients that use
/// a cookie twice: nobody can tell their replies apart.
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
        let length = asked.remove(cookie).expect("an answer that nobody asked for");
        let payload = if reply[4..8] == [0; 4] { length } else { 0 };
        assert!(payload <= later.len(), "a reply is cut off");
        replies = &later[payload..];
    }
    assert!(replies.is_empty(), "a reply's header is cut off");
}

/// Runs a client that sends `bytes`: the beginning of what it is answered, and what the server
/// counted.
fn converse(bytes: &[u8]) -> (Vec<u8>, Stats) {
    let runtime = RUNTIME.with_borrow_mut(|runtime| {
        let new = || Runtime::new(Backend::Auto).expect("an I/O backend");
        runtime.get_or_insert_with(new).clone()
    });
    let options = Options { payload_bytes: 2 << 20, ..Options::default() };
    let export = Rc::new(Export::new("drive", "", Rc::new(MemDisk::new())));
    let server = Server::new(runtime.clone(), vec![export.clone()], options);
    let (near, far) = UnixStream::pair().expect("a pair of sockets");
    server.start(OwnedFd::from(far));
    let near = Arc::new(OwnedFd::from(near));
    let client = join(send(&runtime, &near, bytes.to_vec()), receive(&runtime, &near));
    let ((), answers) = runtime.block_on(client);
    runtime.block_on(server.shutdown()).expect("the disk does not fail");
    assert_eq!(server.connections(), 0, "the client was not let go");
    (answers, export.stats())
}

thread_local! {
    static RUNTIME: RefCell<Option<Runtime>> = const { RefCell::new(None) };
}

async fn send(runtime: &Runtime, socket: &Arc<OwnedFd>, mut bytes: Vec<u8>) {
    let (mut start, end) = (0, bytes.len());
    while start < end {
        let (returned, result) = runtime.send(socket, bytes, start..end).await;
        bytes = returned;
        match result {
            Ok(sent) => start += sent,
            // The server has heard enough.
            Err(_) => break,
        }
    }
    // Fails if the server has closed already.
    let _closed = rustix::net::shutdown(socket, Shutdown::Write);
}

async fn receive(runtime: &Runtime, socket: &Arc<OwnedFd>) -> Vec<u8> {
    let mut answers = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        let range = 0..buffer.len();
        let (returned, result) = runtime.receive(socket, buffer, range).await;
        buffer = returned;
        match result {
            Ok(0) | Err(_) => return answers,
            Ok(length) => {
                let kept = length.min(ANSWERS_KEPT_MAX - answers.len());
                answers.extend_from_slice(&buffer[..kept]);
            }
        }
    }
}

/// A disk in memory that trusts its server's numbers no further than its own.
struct MemDisk(RefCell<Vec<u8>>);

impl MemDisk {
    fn new() -> Self {
        Self(RefCell::new(vec![0; DISK_BYTES as usize]))
    }

    fn fill(&self, offset: u64, len: u64) {
        let range = Self::range(offset, len);
        self.0.borrow_mut()[range].fill(0);
    }

    fn put(&self, offset: u64, data: &[u8]) {
        let range = Self::range(offset, data.len() as u64);
        self.0.borrow_mut()[range].copy_from_slice(data);
    }

    fn range(offset: u64, len: u64) -> std::ops::Range<usize> {
        let end = offset.checked_add(len).filter(|&end| end <= DISK_BYTES);
        offset as usize..end.expect("a request outside the disk") as usize
    }
}

impl Disk for MemDisk {
    fn size_bytes(&self) -> u64 {
        DISK_BYTES
    }

    fn is_read_only(&self) -> bool {
        false
    }

    async fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        out.copy_from_slice(&self.0.borrow()[Self::range(offset, out.len() as u64)]);
        Ok(())
    }

    /// Both paths of a write are taken: at once, and through a slot.
    fn try_write(&self, offset: u64, data: &[u8]) -> Option<Result<()>> {
        offset.is_multiple_of(2).then(|| {
            self.put(offset, data);
            Ok(())
        })
    }

    async fn write(&self, offset: u64, data: &[u8], _fua: bool) -> Result<()> {
        self.put(offset, data);
        Ok(())
    }

    async fn flush(&self) -> Result<()> {
        Ok(())
    }

    async fn trim(&self, offset: u64, len: u64, _fua: bool) -> Result<()> {
        self.fill(offset, len);
        Ok(())
    }

    async fn write_zeroes(&self, offset: u64, len: u64, _keep: bool, _fua: bool) -> Result<()> {
        self.fill(offset, len);
        Ok(())
    }

    async fn prefetch(&self, offset: u64, len: u64) -> Result<()> {
        Self::range(offset, len);
        Ok(())
    }

    /// Every other 64 KiB are a hole, whatever was written there: reads of several parts.
    async fn extents(
        &self,
        offset: u64,
        len: u64,
        mut visit: impl FnMut(Extent) -> bool,
    ) -> Result<()> {
        Self::range(offset, len);
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let next = ((at >> 16) + 1) << 16;
            let bytes = next.min(end) - at;
            let content = if at >> 16 & 1 == 0 { Content::Hole } else { Content::Data };
            if !visit(Extent { bytes, content, stored_bytes: at }) {
                break;
            }
            at += bytes;
        }
        Ok(())
    }
}

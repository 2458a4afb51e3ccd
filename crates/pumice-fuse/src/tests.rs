//! Goal: the conversation with the kernel is right, message by message; no message of the kernel
//! breaks the session. Method: a session and a scripted kernel on one thread, over a disk in
//! memory. They communicate through a pair of sockets that preserve message boundaries, like
//! `/dev/fuse`. The kernel's bytes are written down here by the offsets of `fuse.h`, and not with
//! the structures under test.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use rand_xoshiro::rand_core::Rng;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::file::{DiskFile, file_name};
use super::payloads::{Payloads, SHORT_BYTES};
use super::session::{Device, Session};
use super::wire::{self, Asked};
use pumice_drive::base::wait::WaitQueue;
use pumice_drive::base::{ErrorKind, seed};
use pumice_drive::runtime::{Backend, Runtime};
use pumice_nbd::memory_disk::{MemoryDisk, SIZE};

const TIME_LIMIT_NS: u64 = 20_000_000_000;
const PAYLOAD_BYTES_MAX: usize = 2 << 20;

/// Operations.
const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const WRITE: u32 = 16;
const STATFS: u32 = 17;
const RELEASE: u32 = 18;
const FSYNC: u32 = 20;
const SETXATTR: u32 = 21;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const OPENDIR: u32 = 27;
const READDIR: u32 = 28;
const FALLOCATE: u32 = 43;

/// A reply: a result, or an error.
type Reply = Result<Vec<u8>, Errno>;

/// Returns a pair of nonblocking ends.
fn ends() -> (Arc<OwnedFd>, Arc<OwnedFd>) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let ends = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    (Arc::new(ends.0), Arc::new(ends.1))
}

fn request(operation: u32, unique: u64, node: u64, arguments: &[u8]) -> Vec<u8> {
    let mut bytes = (40 + arguments.len() as u32).to_ne_bytes().to_vec();
    bytes.extend(operation.to_ne_bytes());
    bytes.extend(unique.to_ne_bytes());
    bytes.extend(node.to_ne_bytes());
    bytes.extend([0; 16]);
    bytes.extend(arguments);
    bytes
}

/// Returns the arguments of a read. For a write, the data follows them.
fn span(offset: u64, length: u32) -> Vec<u8> {
    let mut bytes = vec![0; 8];
    bytes.extend(offset.to_ne_bytes());
    bytes.extend(length.to_ne_bytes());
    bytes.resize(40, 0);
    bytes
}

fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_ne_bytes(*bytes[offset..].first_chunk().unwrap())
}

fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from_ne_bytes(*bytes[offset..].first_chunk().unwrap())
}

/// The other side of a session.
struct Kernel {
    runtime: Runtime,
    device: Arc<OwnedFd>,
    asked: Cell<u64>,
}

impl Kernel {
    fn send(&self, bytes: &[u8]) {
        assert_eq!(rustix::io::write(&self.device, bytes).unwrap(), bytes.len());
    }

    /// Sends a request and returns its number, which its reply repeats.
    fn begin(&self, operation: u32, node: u64, arguments: &[u8]) -> u64 {
        self.asked.set(self.asked.get() + 1);
        self.send(&request(operation, self.asked.get(), node, arguments));
        self.asked.get()
    }

    /// Returns the next reply and its number.
    async fn reply(&self) -> (u64, Reply) {
        let mut bytes = vec![0; 64 << 10];
        let length = loop {
            match rustix::io::read(&self.device, &mut bytes) {
                Err(Errno::AGAIN) => {
                    let readable = self.runtime.readable(&self.device);
                    let waited = self.runtime.timeout(TIME_LIMIT_NS, readable).await;
                    waited.expect("a reply in time").unwrap();
                }
                result => break result.unwrap(),
            }
        };
        assert_eq!(u32_at(&bytes, 0) as usize, length);
        let result = match u32_at(&bytes, 4).cast_signed() {
            0 => Ok(bytes[16..length].to_vec()),
            status => Err(Errno::from_raw_os_error(-status)),
        };
        assert!(result.is_ok() || length == 16, "a result in an error");
        (u64_at(&bytes, 8), result)
    }

    async fn ask(&self, operation: u32, node: u64, arguments: &[u8]) -> Reply {
        let asked = self.begin(operation, node, arguments);
        let (answered, reply) = self.reply().await;
        assert_eq!(answered, asked);
        reply
    }

    async fn read(&self, offset: u64, length: u32) -> Reply {
        self.ask(READ, 2, &span(offset, length)).await
    }

    async fn write(&self, offset: u64, data: &[u8]) -> Reply {
        self.ask(WRITE, 2, &[&span(offset, data.len() as u32), data].concat()).await
    }

    async fn allocate(&self, offset: u64, length: u64, mode: u32) -> Reply {
        let numbers = [0, offset, length, mode.into()].map(u64::to_le_bytes);
        self.ask(FALLOCATE, 2, numbers.as_flattened()).await
    }
}

/// The state of a test besides its kernel.
struct Setup {
    disk: Rc<MemoryDisk>,
    payloads: Rc<Payloads>,
}

/// Runs `script` against a session of `disk`, which ends with the script.
fn converse(disk: MemoryDisk, script: impl AsyncFnOnce(&Kernel, &Setup)) -> Vec<String> {
    let runtime = Runtime::new(Backend::Auto).unwrap();
    let (near, far) = ends();
    let setup = Setup { disk: Rc::new(disk), payloads: Rc::new(Payloads::new(PAYLOAD_BYTES_MAX)) };
    let is_read_only = setup.disk.is_read_only;
    let session = Session {
        runtime: runtime.clone(),
        disk: setup.disk.clone(),
        file: DiskFile { name: file_name("").to_owned(), size_bytes: SIZE, is_read_only },
        device: Device(near),
        payloads: setup.payloads.clone(),
    };
    let kernel = Kernel { runtime: runtime.clone(), device: far, asked: Cell::new(0) };
    runtime.block_on(async {
        // The session is a task of its own, so that only the events that it waits for wake it.
        let (has_ended, ended) = (Rc::new(Cell::new(false)), Rc::new(WaitQueue::default()));
        let (sets, wakes) = (has_ended.clone(), ended.clone());
        runtime.spawn(async move {
            session.serve().await;
            sets.set(true);
            wakes.wake_all();
        });
        script(&kernel, &setup).await;
        drop(kernel);
        let end = ended.wait_for(|| has_ended.get().then_some(()));
        runtime.timeout(TIME_LIMIT_NS, end).await.expect("the session ends");
    });
    setup.disk.calls.borrow().clone()
}

#[test]
fn the_file_has_the_name_of_the_disk_if_a_file_can_have_it() {
    for name in ["drive", "a b", "\u{fc}", "..."] {
        assert_eq!(file_name(name), name);
    }
    for name in ["", ".", "..", "a/b", "a\0b"] {
        assert_eq!(file_name(name), "disk", "{name:?}");
    }
    let long = "\u{fffd}".repeat(100);
    assert_eq!(file_name(&long), "\u{fffd}".repeat(85));
}

#[test]
fn the_kernel_is_greeted_or_found_too_old() {
    let wanted = 1 << 5 | 1 << 15 | 1 << 22;
    let init = |version: (u32, u32), flags: u32| {
        let fields = [version.0, version.1, 4096, flags].map(u32::to_ne_bytes);
        request(INIT, 5, 0, &[fields.as_flattened(), &[0; 48]].concat())
    };
    let runtime = Runtime::new(Backend::Auto).unwrap();
    let greet = |requests: &[Vec<u8>]| {
        let (near, far) = ends();
        let kernel = Kernel { runtime: runtime.clone(), device: far, asked: Cell::new(0) };
        requests.iter().for_each(|request| kernel.send(request));
        let greeted = Device(near).shake_hands();
        let answers = runtime.block_on(async {
            let mut answers = Vec::new();
            for _ in 0..requests.len() {
                answers.push(kernel.reply().await.1);
            }
            answers
        });
        (greeted, answers)
    };
    let (greeted, answers) = greet(&[init((7, 45), wanted | 1)]);
    greeted.unwrap();
    let answer = answers[0].as_ref().unwrap();
    assert_eq!((u32_at(answer, 0), u32_at(answer, 4)), (7, 31));
    assert_eq!(u32_at(answer, 12), wanted, "nothing else was agreed on");
    let (background, congested) = (u32_at(answer, 16) as u16, u32_at(answer, 16) >> 16);
    assert_eq!((background, congested), (256, 256));
    assert_eq!(u32_at(answer, 20), 1 << 20, "bytes of a write");
    assert_eq!(u32_at(answer, 28) as u16, 256, "pages of a request");
    // A kernel with another major version learns the supported one, and tries again.
    let (greeted, answers) = greet(&[init((8, 0), wanted), init((7, 40), wanted)]);
    greeted.unwrap();
    assert!(answers.iter().all(|answer| u32_at(answer.as_ref().unwrap(), 0) == 7));
    for request in [init((7, 30), wanted), init((7, 45), wanted & !(1 << 15))] {
        let (greeted, answers) = greet(&[request]);
        assert!(greeted.unwrap_err().to_string().contains("too old"));
        assert_eq!(answers, [Err(Errno::PROTO)]);
    }
}

#[test]
fn the_file_system_is_a_directory_with_a_file() {
    converse(MemoryDisk::default(), async |kernel, _| {
        let entry = kernel.ask(LOOKUP, 1, b"disk\0").await.unwrap();
        assert_eq!(entry.len(), 128);
        assert_eq!((u64_at(&entry, 0), u64_at(&entry, 40), u64_at(&entry, 48)), (2, 2, SIZE));
        let file = kernel.ask(GETATTR, 2, &[0; 16]).await.unwrap();
        assert_eq!(file.len(), 104);
        assert_eq!(file[16..], entry[40..], "two answers for one file");
        assert_eq!((u64_at(&file, 24), u64_at(&file, 32)), (SIZE, SIZE / 512));
        assert_eq!((u32_at(&file, 76), u32_at(&file, 80)), (0o100_600, 1), "mode, links");
        assert_eq!(u32_at(&file, 96), 4096, "block size");
        let root = kernel.ask(GETATTR, 1, &[0; 16]).await.unwrap();
        assert_eq!((u64_at(&root, 24), u32_at(&root, 76)), (0, 0o040_500));
        for (operation, node, arguments) in
            [(LOOKUP, 1, &b"disc\0"[..]), (LOOKUP, 2, b"disk\0"), (GETATTR, 3, &[0; 16])]
        {
            assert_eq!(kernel.ask(operation, node, arguments).await, Err(Errno::NOENT));
        }
        let opened = kernel.ask(OPEN, 2, &[0; 8]).await.unwrap();
        assert_eq!((opened.len(), u32_at(&opened, 8)), (16, 1 | 1 << 6));
        assert_eq!(kernel.ask(OPENDIR, 1, &[0; 8]).await.unwrap().len(), 16);
        let listed = kernel.ask(READDIR, 1, &span(0, 4096)).await.unwrap();
        assert_eq!((u64_at(&listed, 0), u64_at(&listed, 8)), (2, 1));
        assert_eq!((u32_at(&listed, 16), u32_at(&listed, 20)), (4, 8), "length, regular file");
        assert_eq!(&listed[24..], b"disk\0\0\0\0");
        assert_eq!(kernel.ask(READDIR, 1, &span(1, 4096)).await, Ok(vec![]));
        assert_eq!(kernel.ask(READDIR, 1, &span(0, 31)).await, Err(Errno::INVAL));
        let space = kernel.ask(STATFS, 1, &[]).await.unwrap();
        assert_eq!((space.len(), u64_at(&space, 0), u32_at(&space, 40)), (80, SIZE / 4096, 4096));
        for operation in [FLUSH, RELEASE] {
            assert_eq!(kernel.ask(operation, 2, &[0; 24]).await, Ok(vec![]));
        }
        assert_eq!(kernel.ask(SETXATTR, 2, b"x\0y").await, Err(Errno::NOSYS));
    });
}

#[test]
fn bytes_come_back_and_end_with_the_disk() {
    converse(MemoryDisk::default(), async |kernel, setup| {
        let data: Vec<u8> = (0..40_000_u32).map(|number| (number * 7) as u8).collect();
        for length in [1, 4096, SHORT_BYTES, data.len()] {
            let written = kernel.write(4095, &data[..length]).await.unwrap();
            assert_eq!((written.len(), u32_at(&written, 0) as usize), (8, length));
            assert_eq!(kernel.read(4095, length as u32).await.unwrap(), data[..length]);
        }
        kernel.write(SIZE - 3, b"end").await.unwrap();
        assert_eq!(kernel.read(SIZE - 3, 4096).await.unwrap(), b"end");
        for offset in [SIZE, u64::MAX] {
            assert_eq!(kernel.read(offset, 4096).await, Ok(vec![]));
            assert_eq!(kernel.write(offset, b"x").await, Err(Errno::FBIG));
        }
        assert_eq!(kernel.write(SIZE - 3, b"more").await, Err(Errno::FBIG));
        assert_eq!(setup.disk.bytes.borrow()[SIZE as usize - 3..], *b"end");
    });
    let disk = MemoryDisk { is_read_only: true, ..MemoryDisk::default() };
    let calls = converse(disk, async |kernel, _| {
        assert_eq!(u32_at(&kernel.ask(GETATTR, 2, &[0; 16]).await.unwrap(), 76), 0o100_400);
        assert_eq!(kernel.write(0, b"x").await, Err(Errno::ROFS));
        assert_eq!(kernel.allocate(0, 4096, 3).await, Err(Errno::ROFS));
    });
    assert_eq!(calls, Vec::<String>::new());
}

#[test]
fn zeroes_and_syncs_reach_the_disk() {
    let calls = converse(MemoryDisk::default(), async |kernel, _| {
        assert_eq!(kernel.allocate(1, 5000, 0x03).await, Ok(vec![]));
        assert_eq!(kernel.allocate(0, SIZE, 0x11).await, Ok(vec![]));
        assert_eq!(kernel.ask(FSYNC, 2, &[0; 16]).await, Ok(vec![]));
        // Modes that allocate, collapse or insert.
        for mode in [0, 0x01, 0x08, 0x20] {
            assert_eq!(kernel.allocate(0, 4096, mode).await, Err(Errno::OPNOTSUPP));
        }
        for (offset, length) in [(0, SIZE + 1), (SIZE, 1), (u64::MAX, 2)] {
            assert_eq!(kernel.allocate(offset, length, 0x03).await, Err(Errno::FBIG));
        }
    });
    let zeroes = format!("zero 0 {SIZE} Keep Volatile");
    assert_eq!(calls, ["zero 1 5000 Release Volatile", &zeroes, "flush"]);
}

#[test]
fn the_host_receives_the_error() {
    let told = [
        (ErrorKind::NoSpace, Errno::NOSPC),
        (ErrorKind::ReadOnly, Errno::ROFS),
        (ErrorKind::InvalidInput, Errno::INVAL),
        (ErrorKind::Corrupt, Errno::IO),
        (ErrorKind::Medium, Errno::IO),
    ];
    for (kind, errno) in told {
        for is_ready in [|_| true, |_| false] as [fn(u64) -> bool; 2] {
            let disk = MemoryDisk { is_ready, failure: Some((100, kind)), ..MemoryDisk::default() };
            converse(disk, async |kernel, _| {
                assert_eq!(kernel.write(96, &[1; 8]).await, Err(errno));
                assert_eq!(kernel.read(96, 8).await, Err(errno));
                assert_eq!(kernel.allocate(0, 4096, 3).await, Err(errno));
                assert_eq!(kernel.read(0, 8).await, Ok(vec![0; 8]), "others go on");
            });
        }
    }
    let disk = MemoryDisk { fails_flush: true, ..MemoryDisk::default() };
    converse(disk, async |kernel, _| {
        assert_eq!(kernel.ask(FSYNC, 2, &[0; 16]).await, Err(Errno::IO));
    });
}

#[test]
fn waiting_requests_delay_no_others_and_keep_their_bytes() {
    for data in [&b"short"[..], &[b'l'; SHORT_BYTES + 1]] {
        let disk = MemoryDisk { gated_offset: Some(8192), ..MemoryDisk::default() };
        converse(disk, async |kernel, setup| {
            let waiting = kernel.begin(WRITE, 2, &[&span(8192, data.len() as u32), data].concat());
            // The next request may be read into the same memory.
            kernel.write(0, &[b'x'; SHORT_BYTES]).await.unwrap();
            assert_eq!(kernel.read(0, 2).await.unwrap(), b"xx");
            setup.disk.open_gate();
            assert_eq!(kernel.reply().await.0, waiting);
            assert_eq!(setup.disk.bytes.borrow()[8192..][..data.len()], *data);
        });
    }
}

#[test]
fn replies_to_short_writes_wait_for_requests_that_arrived_together() {
    converse(MemoryDisk::default(), async |kernel, _| {
        let write = |data: &[u8]| {
            let arguments = [&span(0, data.len() as u32), data].concat();
            kernel.begin(WRITE, 2, &arguments)
        };
        let asked = [write(b"first"), write(&[7; SHORT_BYTES + 1]), write(b"last")];
        let mut answered = Vec::new();
        for _ in asked {
            answered.push(kernel.reply().await.0);
        }
        assert_eq!(answered, [asked[1], asked[0], asked[2]]);
    });
}

#[test]
fn no_more_is_taken_on_than_there_is_memory_for() {
    let disk = MemoryDisk { gated_offset: Some(4096), ..MemoryDisk::default() };
    converse(disk, async |kernel, setup| {
        let length = SHORT_BYTES as u32 + 1;
        let asked: Vec<_> = (0..5).map(|_| kernel.begin(READ, 2, &span(4096, length))).collect();
        let last = kernel.begin(GETATTR, 2, &[0; 16]);
        for _ in 0..1000 {
            kernel.runtime.yield_now().await;
        }
        let lent = setup.payloads.lent_bytes();
        let limits = PAYLOAD_BYTES_MAX..PAYLOAD_BYTES_MAX + (1 << 20);
        assert!(limits.contains(&lent), "{lent}");
        setup.disk.open_gate();
        let mut answered = Vec::new();
        for _ in 0..=asked.len() {
            answered.push(kernel.reply().await.0);
        }
        answered.sort_unstable();
        assert_eq!(answered, [&asked[..], &[last]].concat());
        assert_eq!(setup.payloads.lent_bytes(), 0);
    });
}

#[test]
fn nonsense_is_passed_over() {
    let good = [&span(4096, 5), &b"bytes"[..]].concat();
    let whole = request(WRITE, 7, 2, &good);
    let range = whole.len() - 5..whole.len();
    assert_eq!(wire::decode(&whole).unwrap().asked, Asked::Write { offset: 4096, range });
    let mut nonsense: Vec<_> = (1..whole.len()).map(|length| whole[..length].to_vec()).collect();
    // The length in the header matches, but arguments or data are missing.
    for operation in [LOOKUP, READ, WRITE, INIT, READDIR, FALLOCATE] {
        nonsense.push(request(operation, 7, 2, &[]));
    }
    nonsense.push(request(GETATTR, 7, 2, &[0; 16])[..50].to_vec());
    nonsense.push(request(LOOKUP, 7, 1, b"disk"));
    nonsense.push(request(WRITE, 7, 2, &[&span(0, 6), &b"bytes"[..]].concat()));
    nonsense.push(request(WRITE, 7, 2, &[&span(0, u32::MAX), &b"bytes"[..]].concat()));
    converse(MemoryDisk::default(), async |kernel, setup| {
        for bytes in &nonsense {
            assert_eq!(wire::decode(bytes), None, "{bytes:?}");
            kernel.send(bytes);
            kernel.begin(FORGET, 2, &[0; 8]);
            assert_eq!(kernel.read(0, 1).await, Ok(vec![0]), "after {bytes:?}");
        }
        assert!(setup.disk.bytes.borrow().iter().all(|&byte| byte == 0));
    });
    let mut random = seed::random(7);
    for _ in 0..20_000 {
        let mut bytes = whole.clone();
        for _ in 0..random.next_u32() % 4 {
            let at = random.next_u32() as usize % bytes.len();
            bytes[at] = random.next_u32() as u8;
        }
        if let Some(wire::Request { asked: Asked::Write { range, .. }, .. }) = wire::decode(&bytes)
        {
            assert_eq!(range, whole.len() - 5..whole.len());
        }
    }
}

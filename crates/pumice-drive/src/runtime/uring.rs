//! I/O through io_uring: one ring, one thread.
//!
//! ```text
//! start: slot taken, entry queued      turn: one io_uring_enter submits all entries and waits
//!   Waiting --completion--> Done --poll--> free
//!      \--future dropped--> Abandoned --completion--> free
//! ```
//!
//! Invariants on which the soundness of this file depends:
//! * From the queueing of an entry to its completion, the slot owns the buffer and the descriptor
//!   that the entry refers to, even if the future is dropped, and no other code accesses the
//!   buffer. A shared buffer has several owners, and all of them, including the kernel, only read
//!   it.
//! * A slot is free only when no entry in the kernel refers to it. The ring is not closed earlier
//!   either: dropping it waits.
//! * A completion is matched to its slot by index *and* generation.
//!
//! This is the only file of the runtime with unsafe code, because io_uring takes raw pointers. The
//! safe alternative is `threads.rs`, with a system call and a thread hop for each operation.

#![allow(unsafe_code)]

use std::cell::RefCell;
use std::hint::spin_loop;
use std::io;
use std::mem;
use std::ops::Range;
use std::pin::Pin;
use std::ptr;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use io_uring::squeue::Entry;
use io_uring::types::{Fd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, opcode};
use rustix::event::PollFlags;
use rustix::fd::{AsRawFd, FromRawFd, OwnedFd};
use rustix::fs::FallocateFlags;
use rustix::io::{Errno, ReadWriteFlags};
use rustix::net::{SendFlags, SocketFlags};

use super::busy_poll::BusyPoll;
use super::direct::Direct;
use super::executor::Shared;
use super::timers;
use crate::base::AlignedBuffer;

/// A file operation that transfers at least this many bytes is submitted at once and not with all
/// other operations at the end of the turn. The medium then works while this thread continues, and
/// the system call is a small part of the cost of 256 KiB.
const SUBMIT_AT_ONCE_BYTES: usize = 256 << 10;

/// Number of entries that one system call can submit. More entries need several calls. Sufficient
/// for a full burst at queue depth 128 (a receive, a send and a medium operation need an entry
/// each).
const SUBMISSION_ENTRIES: u32 = 512;

/// Number of completions that can wait to be reaped. The kernel stores further ones at some cost.
const COMPLETION_ENTRIES: u32 = 4096;

/// Processor pauses between two polls for completions. Each takes about ten nanoseconds.
const POLL_PAUSES: u32 = 16;

/// The maximum number of bytes that Linux transfers in one call (`MAX_RW_COUNT`).
const TRANSFER_BYTES_MAX: usize = 0x7fff_f000;

/// User data of entries without a slot. No slot has this index.
const ALARM: u64 = u64::MAX;
const CANCEL: u64 = u64::MAX - 1;

/// The buffer of an operation while the kernel uses it.
enum Buffer {
    None,
    Aligned(AlignedBuffer),
    /// The buffer of a write, which others may read meanwhile.
    Shared(Arc<AlignedBuffer>),
    Bytes(Vec<u8>),
}

impl Buffer {
    fn into_aligned(self) -> AlignedBuffer {
        let Buffer::Aligned(buffer) = self else { unreachable!("a slot changed its buffer") };
        buffer
    }

    /// Returns the number of bytes that a file operation with this buffer transfers.
    fn file_bytes(&self) -> usize {
        match self {
            Buffer::Aligned(buffer) => buffer.len(),
            Buffer::Shared(buffer) => buffer.len(),
            Buffer::None | Buffer::Bytes(_) => 0,
        }
    }

    fn into_bytes(self) -> Vec<u8> {
        let Buffer::Bytes(buffer) = self else { unreachable!("a slot changed its buffer") };
        buffer
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Reads a file. Completes in bounded time, and runs to completion even if its future is
    /// dropped.
    Read,
    /// Like `Read`, but changes the file or makes changes durable. Threads of the kernel may have
    /// to run for this.
    Change,
    /// May wait forever. Cancelled when its future is dropped.
    Send,
    /// Like `Send`, and may be interrupted.
    Receive,
    /// Like `Receive`, and its result is a descriptor.
    Accept,
}

enum State {
    Free,
    Waiting(Waker),
    Abandoned,
    Done(i32),
}

impl Kind {
    fn is_of_file(self) -> bool {
        matches!(self, Self::Read | Self::Change)
    }
}

struct Slot {
    generation: u32,
    kind: Kind,
    state: State,
    file: Option<Arc<OwnedFd>>,
    buffer: Buffer,
}

#[derive(Clone, Copy)]
struct Key {
    index: u32,
    generation: u32,
}

impl Key {
    fn user_data(self) -> u64 {
        u64::from(self.index) << 32 | u64::from(self.generation)
    }

    #[expect(clippy::cast_possible_truncation, reason = "two halves of 32 bits")]
    fn of(user_data: u64) -> Self {
        Self { index: (user_data >> 32) as u32, generation: user_data as u32 }
    }
}

struct Inner {
    ring: IoUring,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Number of operations whose completion has not been reaped.
    in_flight: usize,
    /// The number of these that are changes.
    changes_in_flight: usize,
    busy_poll: BusyPoll,
    /// Whether a poll of the alarm is queued or in progress.
    alarmed: bool,
    /// The tasks that the reaped completions wake. A field only to reuse its allocation.
    woken: Vec<Waker>,
}

/// The ring of one runtime.
pub(super) struct Uring {
    inner: RefCell<Inner>,
    direct: Direct,
}

impl Uring {
    /// Creates a ring with the best setup that the kernel supports.
    ///
    /// # Errors
    /// The error of the kernel; `Unsupported` if it lacks a required operation (before Linux 5.11).
    pub(super) fn new() -> io::Result<Self> {
        Self::with_setup(0)
    }

    /// Like [`Uring::new`], without the first `skipped` of the [`SETUPS`].
    pub(super) fn with_setup(skipped: usize) -> io::Result<Self> {
        let ring = build_ring(&SETUPS[skipped..])?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        let needed = [
            opcode::Read::CODE,
            opcode::Write::CODE,
            opcode::Fsync::CODE,
            opcode::Fallocate::CODE,
            opcode::Accept::CODE,
            opcode::Recv::CODE,
            opcode::Send::CODE,
            opcode::PollAdd::CODE,
            opcode::AsyncCancel::CODE,
        ];
        let params = ring.params();
        if !needed.iter().all(|&code| probe.is_supported(code))
            || !params.is_feature_ext_arg()
            || !params.is_feature_nodrop()
        {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the kernel lacks io_uring operations: Linux 5.11 or later is required",
            ));
        }
        // A container's filter may allow the calls up to here and refuse the one that does all the
        // work.
        ring.submit()?;
        Ok(Self {
            inner: RefCell::new(Inner {
                ring,
                slots: Vec::new(),
                free: Vec::new(),
                in_flight: 0,
                changes_in_flight: 0,
                busy_poll: BusyPoll::default(),
                alarmed: false,
                woken: Vec::new(),
            }),
            direct: Direct::new(),
        })
    }

    /// See [`super::Runtime::set_busy_poll`].
    pub(super) fn set_busy_poll(&self, limit_ns: u64) {
        self.inner.borrow_mut().busy_poll.set_limit(limit_ns);
    }

    /// Returns the number of waits that were polled.
    #[cfg(test)]
    pub(super) fn polled(&self) -> u64 {
        self.inner.borrow().busy_poll.polled
    }

    /// Returns the maximum number of operations that were in progress at the same time.
    #[cfg(test)]
    pub(super) fn slots(&self) -> usize {
        self.inner.borrow().slots.len()
    }

    /// Submits the queued entries, waits up to `timeout_ns` for an event (`None`: without limit; 0:
    /// not at all) and wakes the tasks of all completed operations.
    pub(super) fn turn(&self, shared: &Shared, timeout_ns: Option<u64>) {
        self.direct.refill();
        let mut inner = self.inner.borrow_mut();
        inner.enter(shared, timeout_ns);
        if inner.reap() {
            shared.silence();
        }
        // No borrow is held: a foreign waker may run any code.
        let mut woken = mem::take(&mut inner.woken);
        drop(inner);
        for waker in woken.drain(..) {
            waker.wake();
        }
        self.inner.borrow_mut().woken = woken;
    }

    pub(super) async fn read_at(
        &self,
        file: &Arc<OwnedFd>,
        offset: u64,
        buffer: AlignedBuffer,
    ) -> (AlignedBuffer, io::Result<usize>) {
        let operation = self.start(Kind::Read, file, Buffer::Aligned(buffer), |fd, buffer| {
            let (pointer, len) = transfer(buffer, None);
            opcode::Read::new(fd, pointer, len).offset(offset).build()
        });
        let (buffer, result) = operation.await;
        (buffer.into_aligned(), result.map(|len| len as usize))
    }

    pub(super) async fn write_at(
        &self,
        file: &Arc<OwnedFd>,
        offset: u64,
        buffer: Arc<AlignedBuffer>,
        flags: ReadWriteFlags,
    ) -> io::Result<usize> {
        let flags = flags.bits().cast_signed();
        let operation = self.start(Kind::Change, file, Buffer::Shared(buffer), |fd, buffer| {
            let (pointer, len) = transfer(buffer, None);
            opcode::Write::new(fd, pointer, len).offset(offset).rw_flags(flags).build()
        });
        operation.await.1.map(|len| len as usize)
    }

    pub(super) async fn sync_data(&self, file: &Arc<OwnedFd>) -> io::Result<()> {
        let operation = self.start(Kind::Change, file, Buffer::None, |fd, _| {
            opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build()
        });
        operation.await.1.map(drop)
    }

    pub(super) async fn fallocate(
        &self,
        file: &Arc<OwnedFd>,
        mode: FallocateFlags,
        offset: u64,
        len: u64,
    ) -> io::Result<()> {
        let mode = mode.bits().cast_signed();
        let operation = self.start(Kind::Change, file, Buffer::None, |fd, _| {
            opcode::Fallocate::new(fd, len).offset(offset).mode(mode).build()
        });
        operation.await.1.map(drop)
    }

    pub(super) async fn accept(&self, listener: &Arc<OwnedFd>) -> io::Result<OwnedFd> {
        let operation = self.start(Kind::Accept, listener, Buffer::None, |fd, _| {
            let flags = SocketFlags::CLOEXEC.bits().cast_signed();
            opcode::Accept::new(fd, ptr::null_mut(), ptr::null_mut()).flags(flags).build()
        });
        let descriptor = operation.await.1?;
        // SAFETY: a successful accept returns an open descriptor that no other code has, and the
        // slot that held the number is free again.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor.cast_signed()) })
    }

    pub(super) async fn readable(&self, file: &Arc<OwnedFd>) -> io::Result<()> {
        let operation = self.start(Kind::Receive, file, Buffer::None, |fd, _| {
            opcode::PollAdd::new(fd, u32::from(PollFlags::IN.bits())).build()
        });
        operation.await.1.map(drop)
    }

    pub(super) async fn receive(
        &self,
        socket: &Arc<OwnedFd>,
        mut buffer: Vec<u8>,
        range: Range<usize>,
    ) -> (Vec<u8>, io::Result<usize>) {
        if let Some(result) = self.direct.receive(socket, &mut buffer[range.clone()]) {
            return (buffer, result);
        }
        let operation = self.start(Kind::Receive, socket, Buffer::Bytes(buffer), |fd, buffer| {
            let (pointer, len) = transfer(buffer, Some(range));
            opcode::Recv::new(fd, pointer, len).build()
        });
        let (buffer, result) = operation.await;
        (buffer.into_bytes(), result.map(|len| len as usize))
    }

    pub(super) async fn send(
        &self,
        socket: &Arc<OwnedFd>,
        buffer: Vec<u8>,
        range: Range<usize>,
    ) -> (Vec<u8>, io::Result<usize>) {
        if let Some(result) = self.direct.send(socket, &buffer[range.clone()]) {
            return (buffer, result);
        }
        let operation = self.start(Kind::Send, socket, Buffer::Bytes(buffer), |fd, buffer| {
            let (pointer, len) = transfer(buffer, Some(range));
            let flags = SendFlags::NOSIGNAL.bits().cast_signed();
            opcode::Send::new(fd, pointer, len).flags(flags).build()
        });
        let (buffer, result) = operation.await;
        (buffer.into_bytes(), result.map(|len| len as usize))
    }

    pub(super) async fn receive_aligned(
        &self,
        socket: &Arc<OwnedFd>,
        mut buffer: AlignedBuffer,
        range: Range<usize>,
    ) -> (AlignedBuffer, io::Result<usize>) {
        if let Some(result) = self.direct.receive(socket, &mut buffer[range.clone()]) {
            return (buffer, result);
        }
        let operation = self.start(Kind::Receive, socket, Buffer::Aligned(buffer), |fd, buffer| {
            let (pointer, len) = transfer(buffer, Some(range));
            opcode::Recv::new(fd, pointer, len).build()
        });
        let (buffer, result) = operation.await;
        (buffer.into_aligned(), result.map(|len| len as usize))
    }

    pub(super) async fn send_shared(
        &self,
        socket: &Arc<OwnedFd>,
        buffer: &Arc<AlignedBuffer>,
        range: Range<usize>,
    ) -> io::Result<usize> {
        if let Some(result) = self.direct.send(socket, &buffer[range.clone()]) {
            return result;
        }
        let buffer = Buffer::Shared(buffer.clone());
        let operation = self.start(Kind::Send, socket, buffer, |fd, buffer| {
            let (pointer, len) = transfer(buffer, Some(range));
            let flags = SendFlags::NOSIGNAL.bits().cast_signed();
            opcode::Send::new(fd, pointer, len).flags(flags).build()
        });
        operation.await.1.map(|len| len as usize)
    }

    /// Interrupts the operations that wait to receive from or accept on `socket`.
    pub(super) fn interrupt(&self, socket: &Arc<OwnedFd>) {
        let mut inner = self.inner.borrow_mut();
        let waits = |slot: &Slot| {
            matches!(slot.kind, Kind::Receive | Kind::Accept)
                && matches!(slot.state, State::Waiting(_))
                && slot.file.as_ref().is_some_and(|file| Arc::ptr_eq(file, socket))
        };
        let waiting = (0..).zip(&inner.slots).filter(|(_, slot)| waits(slot));
        let key = |(index, slot): (u32, &Slot)| Key { index, generation: slot.generation };
        let keys: Vec<_> = waiting.map(key).collect();
        // The slots keep their state, so bytes that arrived before the cancellation are not lost.
        for key in keys {
            inner.cancel(key);
        }
    }

    /// Takes a slot for an operation and queues the entry that `build` returns for the descriptor
    /// and the buffer. The entry must refer to no other memory.
    fn start(
        &self,
        kind: Kind,
        file: &Arc<OwnedFd>,
        buffer: Buffer,
        build: impl FnOnce(Fd, &mut Buffer) -> Entry,
    ) -> Operation<'_> {
        let mut inner = self.inner.borrow_mut();
        let index = inner.free_slot();
        let slot = &mut inner.slots[index as usize];
        let is_long = kind.is_of_file() && buffer.file_bytes() >= SUBMIT_AT_ONCE_BYTES;
        slot.kind = kind;
        assert!(matches!(slot.state, State::Free), "a free slot is in use");
        // The first poll, which follows at once, replaces the waker.
        slot.state = State::Waiting(Waker::noop().clone());
        slot.file = Some(file.clone());
        slot.buffer = buffer;
        let key = Key { index, generation: slot.generation };
        let entry = build(Fd(file.as_raw_fd()), &mut slot.buffer).user_data(key.user_data());
        inner.in_flight += 1;
        inner.changes_in_flight += usize::from(kind == Kind::Change);
        assert!(inner.in_flight <= inner.slots.len(), "each operation has a slot");
        assert!(inner.changes_in_flight <= inner.in_flight, "a change is an operation");
        // SAFETY: the entry refers to the descriptor and the heap memory of the buffer that the
        // slot now owns. Neither is moved, accessed or freed before the completion is reaped: see
        // the invariants at the top of this file.
        unsafe { inner.push(entry) };
        if is_long {
            let submitted = inner.ring.submit();
            inner.check(submitted);
        }
        Operation { uring: self, key, ended: false }
    }
}

/// Returns the error of a negative result.
fn error_of(result: i32) -> io::Error {
    match result.wrapping_neg() {
        // Caused by `Uring::interrupt`: the futures of other cancelled operations are gone.
        code if code == Errno::CANCELED.raw_os_error() => io::ErrorKind::Interrupted.into(),
        code => io::Error::from_raw_os_error(code),
    }
}

/// Returns the address and length of the bytes to transfer: the entire buffer, or a range of it.
///
/// # Panics
/// If the range exceeds the buffer.
fn transfer(buffer: &mut Buffer, range: Option<Range<usize>>) -> (*mut u8, u32) {
    let bytes: &mut [u8] = match buffer {
        Buffer::Shared(buffer) => {
            // The kernel only reads through this address.
            let bytes = match range {
                Some(range) => &buffer[range],
                None => buffer,
            };
            return (bytes.as_ptr().cast_mut(), transfer_bytes(bytes));
        }
        Buffer::Aligned(buffer) => buffer,
        Buffer::Bytes(buffer) => buffer,
        Buffer::None => &mut [],
    };
    let bytes = match range {
        Some(range) => &mut bytes[range],
        None => bytes,
    };
    (bytes.as_mut_ptr(), transfer_bytes(bytes))
}

#[expect(clippy::cast_possible_truncation, reason = "the maximum has 31 bits")]
fn transfer_bytes(bytes: &[u8]) -> u32 {
    bytes.len().min(TRANSFER_BYTES_MAX) as u32
}

/// Ways of running completions, cheapest first.
pub(super) const SETUPS: [fn(&mut io_uring::Builder); 3] = [
    // Linux 6.1: completions run only at the request of this thread.
    |builder| {
        builder.setup_submit_all().setup_taskrun_flag().setup_single_issuer().setup_defer_taskrun();
    },
    // Linux 5.19: completions never interrupt this thread.
    |builder| {
        builder.setup_submit_all().setup_taskrun_flag().setup_coop_taskrun();
    },
    |_| {},
];

/// Builds a ring with the first setup that the kernel supports.
fn build_ring(setups: &[fn(&mut io_uring::Builder)]) -> io::Result<IoUring> {
    let mut result = Err(io::ErrorKind::Unsupported.into());
    for setup in setups {
        let mut builder = IoUring::builder();
        builder.dontfork().setup_cqsize(COMPLETION_ENTRIES);
        setup(&mut builder);
        result = builder.build(SUBMISSION_ENTRIES);
        if !matches!(&result, Err(error) if error.kind() == io::ErrorKind::InvalidInput) {
            break;
        }
    }
    result
}

impl Inner {
    fn free_slot(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            let index = u32::try_from(self.slots.len()).expect("too many operations in progress");
            assert!(index < u32::MAX, "too many operations in progress");
            self.slots.push(Slot {
                generation: 0,
                kind: Kind::Read,
                state: State::Free,
                file: None,
                buffer: Buffer::None,
            });
            index
        })
    }

    /// Frees a slot that the kernel no longer uses and returns its buffer.
    fn release(&mut self, index: u32) -> Buffer {
        let slot = &mut self.slots[index as usize];
        assert!(!matches!(slot.state, State::Free | State::Waiting(_)), "the kernel has the slot");
        slot.state = State::Free;
        slot.generation = slot.generation.wrapping_add(1);
        slot.file = None;
        let buffer = mem::replace(&mut slot.buffer, Buffer::None);
        self.free.push(index);
        buffer
    }

    /// Queues an entry. Submits if the queue is full.
    ///
    /// # Safety
    /// Everything that the entry refers to stays valid and unaccessed until its completion is
    /// reaped.
    unsafe fn push(&mut self, entry: Entry) {
        // SAFETY: the caller guarantees it.
        while unsafe { self.ring.submission().push(&entry) }.is_err() {
            let submitted = self.ring.submit();
            self.check(submitted);
            // An alarm that was not silenced fires again as soon as it is rearmed.
            self.reap();
        }
    }

    /// Ignores the transient errors of an enter, which reaping or repeating resolves.
    ///
    /// # Panics
    /// On all other errors, which mean that the ring is unusable.
    fn check(&self, result: io::Result<usize>) {
        let Err(error) = result else { return };
        match Errno::from_io_error(&error) {
            Some(Errno::INTR | Errno::AGAIN | Errno::BUSY | Errno::TIME | Errno::NOMEM) => {}
            _ => panic!("io_uring_enter failed: {error}"),
        }
    }

    /// Makes the one system call of a turn, or two if it polled for completions.
    fn enter(&mut self, shared: &Shared, timeout_ns: Option<u64>) {
        if timeout_ns != Some(0) {
            self.arm_alarm(shared);
        }
        let reapable = !self.woken.is_empty() || !self.ring.completion().is_empty();
        if timeout_ns == Some(0) || reapable || !shared.park() {
            self.submit();
            return;
        }
        if self.poll(timeout_ns) {
            shared.unpark();
            self.submit();
            return;
        }
        let result = match timeout_ns {
            None => self.ring.submit_and_wait(1),
            Some(ns) => {
                let limit =
                    Timespec::new().sec(ns / 1_000_000_000).nsec((ns % 1_000_000_000) as u32);
                self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&limit))
            }
        };
        shared.unpark();
        self.check(result);
    }

    /// Submits the queued entries, and lets the kernel run completions if there are any.
    fn submit(&mut self) {
        let queue = self.ring.submission();
        if !queue.is_empty() || queue.taskrun() || queue.cq_overflow() {
            drop(queue);
            let submitted = self.ring.submit();
            self.check(submitted);
        }
    }

    /// Polls for completions for a moment. Returns whether there are any. Does not poll while a
    /// file is being changed: the kernel's thread that completes a write may wait for this
    /// processor, until the next tick of its scheduler (4 ms).
    fn poll(&mut self, timeout_ns: Option<u64>) -> bool {
        if self.changes_in_flight > 0 {
            return false;
        }
        let Some(limit_ns) = self.busy_poll.begin(timeout_ns) else { return false };
        self.submit();
        let end_ns = timers::real_ns() + limit_ns;
        let mut is_hit = self.has_completions();
        while !is_hit && timers::real_ns() < end_ns {
            (0..POLL_PAUSES).for_each(|_| spin_loop());
            is_hit = self.has_completions();
        }
        self.busy_poll.ended(is_hit);
        is_hit
    }

    /// Returns whether completions can be reaped, now or after the next system call.
    fn has_completions(&mut self) -> bool {
        let queue = self.ring.submission();
        let will_be = queue.taskrun() || queue.cq_overflow();
        drop(queue);
        will_be || !self.ring.completion().is_empty()
    }

    fn arm_alarm(&mut self, shared: &Shared) {
        if let Some(alarm) = shared.alarm()
            && !mem::replace(&mut self.alarmed, true)
        {
            let flags = u32::from(PollFlags::IN.bits());
            let entry = opcode::PollAdd::new(Fd(alarm.as_raw_fd()), flags).build();
            // SAFETY: the entry refers to no memory, and to a descriptor that outlives the ring
            // (see `Runtime`).
            unsafe { self.push(entry.user_data(ALARM)) };
        }
    }

    /// Moves every completion into its slot. Returns whether the alarm was among them.
    fn reap(&mut self) -> bool {
        let mut alarm = false;
        loop {
            let Some(completion) = self.ring.completion().next() else { return alarm };
            match completion.user_data() {
                CANCEL => {}
                ALARM => {
                    self.alarmed = false;
                    alarm = true;
                }
                data => self.complete(data, completion.result()),
            }
        }
    }

    fn complete(&mut self, user_data: u64, result: i32) {
        let Key { index, generation } = Key::of(user_data);
        let slot = &mut self.slots[index as usize];
        assert_eq!(slot.generation, generation, "completion of an operation that has ended");
        self.in_flight = self.in_flight.checked_sub(1).expect("an unknown operation completed");
        let changes = self.changes_in_flight.checked_sub(usize::from(slot.kind == Kind::Change));
        self.changes_in_flight = changes.expect("an unknown change completed");
        match mem::replace(&mut slot.state, State::Done(result)) {
            State::Waiting(waker) => self.woken.push(waker),
            State::Abandoned => {
                if slot.kind == Kind::Accept && result >= 0 {
                    // SAFETY: the descriptor is open and no other code has it, as in `accept`.
                    drop(unsafe { OwnedFd::from_raw_fd(result) });
                }
                drop(self.release(index));
            }
            State::Free | State::Done(_) => unreachable!("an operation completed twice"),
        }
    }

    /// Abandons an operation whose future was dropped.
    fn abandon(&mut self, key: Key) {
        let slot = &mut self.slots[key.index as usize];
        match slot.state {
            State::Waiting(_) => {
                slot.state = State::Abandoned;
                if !slot.kind.is_of_file() {
                    self.cancel(key);
                    // The cancellation is submitted at once: without deferred completions, the
                    // operation could otherwise take bytes that arrive before the next turn.
                    let submitted = self.ring.submit();
                    self.check(submitted);
                }
            }
            State::Done(result) => {
                // This slot is treated as if the future had been dropped before the completion
                // arrived.
                slot.state = State::Abandoned;
                self.in_flight += 1;
                self.changes_in_flight += usize::from(slot.kind == Kind::Change);
                self.complete(key.user_data(), result);
            }
            State::Free | State::Abandoned => unreachable!("an operation ended twice"),
        }
    }

    fn cancel(&mut self, key: Key) {
        let entry = opcode::AsyncCancel::new(key.user_data()).build().user_data(CANCEL);
        // SAFETY: the entry refers to no memory and no descriptor.
        unsafe { self.push(entry) };
    }
}

impl Drop for Inner {
    /// Waits until the kernel uses none of the buffers. File operations complete in bounded time.
    fn drop(&mut self) {
        for index in (0..).take(self.slots.len()) {
            let slot = &mut self.slots[index as usize];
            if matches!(slot.state, State::Waiting(_)) && !slot.kind.is_of_file() {
                slot.state = State::Abandoned;
                let generation = slot.generation;
                self.cancel(Key { index, generation });
            }
        }
        while self.in_flight > 0 {
            if let Err(error) = self.ring.submit_and_wait(1)
                && !matches!(
                    Errno::from_io_error(&error),
                    Some(Errno::INTR | Errno::AGAIN | Errno::BUSY)
                )
            {
                // The kernel may still use the buffers, so they must never be freed.
                mem::forget(mem::take(&mut self.slots));
                return;
            }
            self.reap();
        }
    }
}

/// An operation in progress. Completes with its buffer and result.
struct Operation<'a> {
    uring: &'a Uring,
    key: Key,
    ended: bool,
}

impl Future for Operation<'_> {
    type Output = (Buffer, io::Result<u32>);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        assert!(!self.ended, "an operation was polled after its end");
        let mut inner = self.uring.inner.borrow_mut();
        let slot = &mut inner.slots[self.key.index as usize];
        match &mut slot.state {
            State::Waiting(waker) => {
                waker.clone_from(context.waker());
                Poll::Pending
            }
            State::Done(result) => {
                let result = *result;
                let buffer = inner.release(self.key.index);
                drop(inner);
                self.ended = true;
                let result = u32::try_from(result).map_err(|_| error_of(result));
                Poll::Ready((buffer, result))
            }
            State::Free | State::Abandoned => unreachable!("an operation lost its slot"),
        }
    }
}

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.uring.inner.borrow_mut().abandon(self.key);
        }
    }
}

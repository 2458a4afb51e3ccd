//! A single-threaded executor with I/O and time. Drives, the file medium and the servers' sockets
//! run on it, on one thread; a simulation runs on it in virtual time.
//!
//! * `executor`: tasks and the queue of ready tasks.
//! * `timers`: the clock, real or virtual, and the tasks that wait for it.
//! * `uring`: I/O through io_uring.
//! * `direct`: the first attempt at a socket operation, without the kernel's queues.
//! * `threads`: I/O without io_uring.
//!
//! ```text
//! loop: run ready tasks until none is left      (every POLLS_PER_TURN polls: a turn that
//!       turn: submit all I/O, wait for some      does not wait)
//!             completion, timer or wake,
//!             in one system call
//! ```
//!
//! The runtime has no worker threads of its own, no priorities and no notion of what its tasks do.
//! A simulated runtime does no I/O.

#![warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::ops::Range;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use rustix::fd::OwnedFd;
use rustix::fs::FallocateFlags;
use rustix::io::ReadWriteFlags;
use rustix::net::Shutdown;

use crate::base::clock::{self, Spawn, Task};
use crate::base::{AlignedBuffer, Clock, OsContext, Result};

mod busy_poll;
mod direct;
mod executor;
mod threads;
mod timers;
mod uring;

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "patterns of test data")]
mod tests;

use executor::{Executor, ROOT};
use threads::Threads;
use timers::Timers;
use uring::Uring;

/// Number of polls after which the loop handles I/O and timers although tasks are still ready.
/// Large enough that a burst of tasks shares one submission, and small enough that no task starves;
/// otherwise arbitrary.
const POLLS_PER_TURN: u32 = 64;

/// The method by which a runtime does I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// io_uring if the kernel supports it; otherwise threads, with a warning in the log.
    Auto,
    /// io_uring, Linux 5.11 or later.
    Uring,
    /// Blocking calls on a pool of threads, and `poll` for sockets. Works everywhere, but slower.
    Threads,
}

enum Driver {
    Uring(Box<Uring>),
    Threads(Threads),
    Simulated,
}

struct Inner {
    // The driver is dropped first, because the ring uses the executor's alarm.
    driver: Driver,
    executor: Executor,
    timers: Timers,
    turns: Cell<u64>,
}

impl Inner {
    fn new(driver: Driver, executor: Executor, timers: Timers) -> Self {
        Self { driver, executor, timers, turns: Cell::new(0) }
    }
}

/// A handle to a single-threaded executor. Clones refer to the same executor.
///
/// Tasks that still wait when a run ends are retained for the next run. They usually hold a clone
/// of the runtime and so keep it alive; [`Runtime::drop_tasks`] breaks that cycle.
///
/// **Descriptors and buffers** stay alive until the kernel no longer uses them, even if the future
/// of an operation is dropped. A dropped read, write, sync or punch still runs to completion. A
/// dropped accept, receive or send is cancelled: it transfers no later bytes, but bytes that had
/// already arrived may be lost with it. Sockets must be in blocking mode, which is their initial
/// mode.
#[derive(Clone)]
pub struct Runtime(Rc<Inner>);

impl Runtime {
    /// Creates a runtime on real time.
    ///
    /// # Errors
    /// The error of the operating system if descriptors or memory are exhausted, or if
    /// [`Backend::Uring`] is requested and not available.
    pub fn new(backend: Backend) -> Result<Runtime> {
        let driver = match backend {
            Backend::Threads => Driver::Threads(Threads::new()),
            Backend::Uring => {
                Driver::Uring(Box::new(Uring::new().os_context(|| "cannot set up io_uring")?))
            }
            Backend::Auto => match Uring::new() {
                Ok(uring) => Driver::Uring(Box::new(uring)),
                Err(error) => {
                    tracing::warn!(%error, "no io_uring: using threads, which are slower");
                    Driver::Threads(Threads::new())
                }
            },
        };
        let executor = Executor::new(true).os_context(|| "cannot create an eventfd")?;
        Ok(Runtime(Rc::new(Inner::new(driver, executor, Timers::real()))))
    }

    /// Creates a runtime on virtual time, which starts at 0 and advances only when no task is
    /// ready. A program polls its tasks in the same order in every run. I/O fails as unsupported.
    pub fn simulated() -> Runtime {
        let executor =
            Executor::new(false).expect("an executor without an alarm needs no descriptor");
        Runtime(Rc::new(Inner::new(Driver::Simulated, executor, Timers::simulated())))
    }

    /// Returns `io_uring`, `threads` or `simulated`.
    pub fn backend_name(&self) -> &'static str {
        match self.0.driver {
            Driver::Uring(_) => "io_uring",
            Driver::Threads(_) => "threads",
            Driver::Simulated => "simulated",
        }
    }

    /// Lets the loop poll for completions for up to `limit_ns` nanoseconds before it sleeps, as
    /// long as that often succeeds and no file is being changed. 0, the initial value, disables
    /// polling. Polling costs processor time and saves clients with few concurrent requests the
    /// wake-up of this thread. It has an effect with `io_uring` only.
    pub fn set_busy_poll(&self, limit_ns: u64) {
        if let Driver::Uring(uring) = &self.0.driver {
            uring.set_busy_poll(limit_ns);
        }
    }

    /// Returns this runtime as the clock of a drive.
    pub fn clock(&self) -> Rc<dyn clock::AnyClock> {
        Rc::new(self.clone())
    }

    /// Starts a task. It runs during [`Runtime::block_on`], for the first time after all tasks that
    /// are ready now.
    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.0.executor.spawn(Box::pin(task));
    }

    /// Runs `future` and all tasks until `future` completes. Unfinished tasks remain for the next
    /// run.
    ///
    /// # Panics
    /// If called from a task of this runtime; on virtual time, if `future` waits for an event that
    /// can never happen.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        let mut value = None;
        {
            let root = pin!(async { value = Some(future.await) });
            self.run(root);
        }
        value.expect("the root future has completed")
    }

    /// Not generic, so that it is compiled only once.
    fn run(&self, mut root: Pin<&mut dyn Future<Output = ()>>) {
        let executor = &self.0.executor;
        let _running = executor.enter();
        let mut polls = 0;
        loop {
            while let Some(task) = executor.next() {
                if task != ROOT {
                    executor.poll_task(task);
                } else if executor.poll_root(root.as_mut()).is_ready() {
                    return;
                }
                polls += 1;
                if polls >= POLLS_PER_TURN {
                    polls = 0;
                    self.turn(Some(0));
                }
            }
            polls = 0;
            self.idle();
        }
    }

    /// Drops all tasks.
    ///
    /// # Panics
    /// If called from a task of this runtime.
    pub fn drop_tasks(&self) {
        self.0.executor.drop_tasks();
    }

    /// Lets every other ready task, and every task whose I/O has completed, run first.
    pub async fn yield_now(&self) {
        self.0.executor.yield_now().await;
    }

    /// Runs `future` for at most `ns` nanoseconds. Returns `None` if it has not completed by then.
    /// At the deadline, `future` has precedence.
    pub async fn timeout<T>(&self, ns: u64, future: impl Future<Output = T>) -> Option<T> {
        let mut sleep = pin!(self.0.timers.sleep(ns));
        let mut future = pin!(future);
        poll_fn(|context| match future.as_mut().poll(context) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            Poll::Pending => sleep.as_mut().poll(context).map(|()| None),
        })
        .await
    }

    /// Returns how many times the loop has handled I/O and timers. Between two turns, the loop
    /// polls at most a few dozen tasks and never waits.
    pub fn turns(&self) -> u64 {
        self.0.turns.get()
    }

    /// Handles I/O and timers when no task is ready, and waits for them unless a task yielded.
    fn idle(&self) {
        if self.0.executor.has_yielded() {
            self.turn(Some(0));
            self.0.executor.resume_yielded();
            return;
        }
        if let Driver::Simulated = self.0.driver {
            assert!(self.0.timers.advance(), "deadlock in virtual time");
        }
        self.turn(self.0.timers.next_ns());
    }

    fn turn(&self, timeout_ns: Option<u64>) {
        self.0.turns.set(self.0.turns.get() + 1);
        match &self.0.driver {
            Driver::Uring(uring) => uring.turn(self.0.executor.shared(), timeout_ns),
            Driver::Threads(threads) => threads.turn(self.0.executor.shared(), timeout_ns),
            Driver::Simulated => {}
        }
        self.0.timers.fire();
    }
}

/// Passes an operation to the driver. A simulated driver returns `$refusal`.
macro_rules! on_driver {
    ($runtime:expr, $call:ident($($argument:expr),*), $refusal:expr) => {
        match &$runtime.0.driver {
            Driver::Uring(uring) => uring.$call($($argument),*).await,
            Driver::Threads(threads) => threads.$call($($argument),*).await,
            Driver::Simulated => $refusal,
        }
    };
}

fn refused<T>() -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "a simulated runtime does no I/O"))
}

/// Input and output. An operation starts when its future is first polled. Operations on one
/// descriptor may be executed in any order.
impl Runtime {
    /// Fills the buffer from `offset` in the file. Returns the number of bytes read, which is less
    /// than the buffer's length at the end of the file and may be less anywhere.
    ///
    /// # Errors
    /// The errors of `pread`, including `Interrupted`.
    pub async fn read_at(
        &self,
        file: &Arc<OwnedFd>,
        offset: u64,
        buffer: AlignedBuffer,
    ) -> (AlignedBuffer, io::Result<usize>) {
        on_driver!(self, read_at(file, offset, buffer), (buffer, refused()))
    }

    /// Writes the buffer, which others may read meanwhile, at `offset` in the file. Returns the
    /// number of bytes written, which may be less than the buffer's length. The bytes are durable
    /// only after [`Runtime::sync_data`].
    ///
    /// # Errors
    /// The errors of `pwrite`, including `Interrupted`.
    pub async fn write_at(
        &self,
        file: &Arc<OwnedFd>,
        offset: u64,
        buffer: Arc<AlignedBuffer>,
    ) -> io::Result<usize> {
        on_driver!(self, write_at(file, offset, buffer, ReadWriteFlags::empty()), refused())
    }

    /// Like [`Runtime::write_at`], and makes only the written bytes durable (`RWF_DSYNC`).
    ///
    /// # Errors
    /// The errors of `pwritev2`. An error does not show whether writing the bytes failed or making
    /// them durable.
    pub async fn write_durably_at(
        &self,
        file: &Arc<OwnedFd>,
        offset: u64,
        buffer: Arc<AlignedBuffer>,
    ) -> io::Result<usize> {
        on_driver!(self, write_at(file, offset, buffer, ReadWriteFlags::DSYNC), refused())
    }

    /// Makes all completed writes and the size of the file durable (`fdatasync`).
    ///
    /// # Errors
    /// The errors of `fdatasync`. Writes since the last success may then be lost, even if a later
    /// call succeeds.
    pub async fn sync_data(&self, file: &Arc<OwnedFd>) -> io::Result<()> {
        on_driver!(self, sync_data(file), refused())
    }

    /// Frees the space of `len` bytes at `offset`. They then read as zeroes, and the size of the
    /// file does not change.
    ///
    /// # Errors
    /// The errors of `fallocate`; `Unsupported` if the file system or device does not support it.
    pub async fn punch_hole(&self, file: &Arc<OwnedFd>, offset: u64, len: u64) -> io::Result<()> {
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        on_driver!(self, fallocate(file, mode, offset, len), refused())
    }

    /// Allocates space in the file system for those of `len` bytes at `offset` that have none.
    /// Existing bytes are preserved, and may be written meanwhile.
    ///
    /// # Errors
    /// The errors of `fallocate`; `Unsupported` if the file system does not support it.
    pub async fn preallocate(&self, file: &Arc<OwnedFd>, offset: u64, len: u64) -> io::Result<()> {
        on_driver!(self, fallocate(file, FallocateFlags::KEEP_SIZE, offset, len), refused())
    }

    /// Waits for a connection. The new socket is closed on exec.
    ///
    /// # Errors
    /// The errors of `accept`; `InvalidInput` after [`shutdown_socket`].
    pub async fn accept(&self, listener: &Arc<OwnedFd>) -> io::Result<OwnedFd> {
        on_driver!(self, accept(listener), refused())
    }

    /// Waits until a read of `file`, which is not a regular file, would not block: because of data,
    /// the end of the file, or an error that the read will return.
    ///
    /// # Errors
    /// The errors of `poll`; `Interrupted` by [`Runtime::interrupt`].
    pub async fn readable(&self, file: &Arc<OwnedFd>) -> io::Result<()> {
        on_driver!(self, readable(file), refused())
    }

    /// Waits for bytes and stores them in `buffer[range]`. Returns their number: at least one, or 0
    /// if the peer will send no more or the range is empty.
    ///
    /// # Errors
    /// The errors of `recv`.
    ///
    /// # Panics
    /// If the range exceeds the buffer.
    pub async fn receive(
        &self,
        socket: &Arc<OwnedFd>,
        buffer: Vec<u8>,
        range: Range<usize>,
    ) -> (Vec<u8>, io::Result<usize>) {
        on_driver!(self, receive(socket, buffer, range), (buffer, refused()))
    }

    /// Ends every operation that waits to read or receive from `socket`, or to accept on it, with
    /// `Interrupted`. Bytes that had already arrived are returned as usual, and no bytes are lost.
    pub fn interrupt(&self, socket: &Arc<OwnedFd>) {
        match &self.0.driver {
            Driver::Uring(uring) => uring.interrupt(socket),
            Driver::Threads(threads) => threads.interrupt(socket),
            Driver::Simulated => {}
        }
    }

    /// Sends `buffer[range]`. Returns the number of bytes sent, which may be less. Sends on one
    /// socket are in order only if each is awaited before the next.
    ///
    /// # Errors
    /// The errors of `send`; `BrokenPipe` without a signal.
    ///
    /// # Panics
    /// If the range exceeds the buffer.
    pub async fn send(
        &self,
        socket: &Arc<OwnedFd>,
        buffer: Vec<u8>,
        range: Range<usize>,
    ) -> (Vec<u8>, io::Result<usize>) {
        on_driver!(self, send(socket, buffer, range), (buffer, refused()))
    }

    /// Like [`Runtime::receive`], into an aligned buffer: for payloads that are long enough to be
    /// received directly into their final buffer.
    ///
    /// # Errors
    /// The errors of `recv`.
    ///
    /// # Panics
    /// If the range exceeds the buffer.
    pub async fn receive_aligned(
        &self,
        socket: &Arc<OwnedFd>,
        buffer: AlignedBuffer,
        range: Range<usize>,
    ) -> (AlignedBuffer, io::Result<usize>) {
        on_driver!(self, receive_aligned(socket, buffer, range), (buffer, refused()))
    }

    /// Like [`Runtime::send`], from a buffer that others may read meanwhile.
    ///
    /// # Errors
    /// The errors of `send`; `BrokenPipe` without a signal.
    ///
    /// # Panics
    /// If the range exceeds the buffer.
    pub async fn send_shared(
        &self,
        socket: &Arc<OwnedFd>,
        buffer: &Arc<AlignedBuffer>,
        range: Range<usize>,
    ) -> io::Result<usize> {
        on_driver!(self, send_shared(socket, buffer, range), refused())
    }
}

impl Clock for Runtime {
    fn now_ns(&self) -> u64 {
        self.0.timers.now_ns()
    }

    /// The time counts from this call, not from the first poll.
    fn sleep_ns(&self, ns: u64) -> impl Future<Output = ()> {
        self.0.timers.sleep(ns)
    }
}

impl Spawn for Runtime {
    fn spawn(&self, task: Task) {
        self.0.executor.spawn(task);
    }
}

/// Shuts a socket down in both directions: pending receives and accepts end, and sends fail.
pub fn shutdown_socket(socket: &OwnedFd) {
    // Fails only for a socket that is not connected.
    let _ = rustix::net::shutdown(socket, Shutdown::Both);
}

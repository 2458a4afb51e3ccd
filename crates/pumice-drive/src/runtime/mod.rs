//! The single-threaded executor and what wakes it: the file medium and the sockets of the servers
//! run on it, on one thread, and a simulation runs on it in virtual time.
//!
//! * `executor`: tasks and the queue of those that can go on.
//! * `timers`: the clock, real or virtual, and who waits for it.
//! * `uring`: I/O through io_uring.
//! * `direct`: the first attempt at a socket operation, without the kernel's queues.
//! * `threads`: I/O where io_uring is not to be had.
//!
//! ```text
//! loop: run ready tasks until none is left      (every POLLS_PER_TURN polls: a turn that
//!       turn: submit all I/O, wait for some      does not wait)
//!             completion, timer or wake,
//!             in one system call
//! ```
//!
//! It deliberately has no worker threads of its own, no priorities and no knowledge of what it
//! runs. A simulated runtime does no I/O.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use rustix::fd::OwnedFd;
use rustix::net::Shutdown;

use crate::base::clock::{Spawn, Task};
use crate::base::{AlignedBuffer, Clock, Error, Result};

mod direct;
mod executor;
mod threads;
mod timers;
mod uring;

#[cfg(test)]
mod tests;

use executor::{Executor, ROOT};
use threads::Threads;
use timers::Timers;
use uring::Uring;

/// Polls after which I/O and timers are looked at although tasks are still ready. Large enough
/// that a burst of tasks shares one submission, small enough that nobody starves; arbitrary
/// within that.
const POLLS_PER_TURN: u32 = 64;

/// How a runtime does its I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// io_uring if the kernel allows it, else threads, with a warning that says why.
    Auto,
    /// io_uring, Linux 5.11 or later.
    Uring,
    /// Blocking calls on a pool of threads, `poll` for sockets. Works everywhere; slow.
    Threads,
}

enum Driver {
    Uring(Box<Uring>),
    Threads(Threads),
    Simulated,
}

struct Inner {
    // Dropped first: the ring names the executor's alarm.
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

/// A handle of a single-threaded executor; clones are the same executor.
///
/// Tasks that still wait when the last run ends are kept for the next run. As they usually hold a
/// clone of the runtime they keep it alive: [`Runtime::drop_tasks`] ends that.
///
/// **Descriptors** are kept open, and buffers kept, until the kernel is done with them, also when
/// the future of an operation is dropped. A dropped read, write, sync or punch still runs to its
/// end; a dropped accept, receive or send is cancelled: it moves nothing that comes later, but what
/// had come already may be lost with it.
/// Sockets must be in blocking mode, as they are created.
#[derive(Clone)]
pub struct Runtime(Rc<Inner>);

impl Runtime {
    /// A runtime on real time.
    ///
    /// # Errors
    /// The operating system's if it has no descriptor or memory left, or if [`Backend::Uring`] is
    /// asked for and refused.
    pub fn new(backend: Backend) -> Result<Runtime> {
        let driver = match backend {
            Backend::Threads => Driver::Threads(Threads::new()),
            Backend::Uring => Driver::Uring(Box::new(
                Uring::new().map_err(|error| Error::os("cannot set io_uring up", error))?,
            )),
            Backend::Auto => match Uring::new() {
                Ok(uring) => Driver::Uring(Box::new(uring)),
                Err(error) => {
                    tracing::warn!(%error, "no io_uring: using threads, which are slower");
                    Driver::Threads(Threads::new())
                }
            },
        };
        let executor =
            Executor::new(true).map_err(|error| Error::os("cannot create an eventfd", error))?;
        Ok(Runtime(Rc::new(Inner::new(driver, executor, Timers::real()))))
    }

    /// A runtime on virtual time, which starts at 0 and moves only when no task can go on. The
    /// same program polls in the same order in every run. I/O is refused as unsupported.
    pub fn simulated() -> Runtime {
        let executor = Executor::new(false).expect("an executor without an alarm needs nothing");
        Runtime(Rc::new(Inner::new(Driver::Simulated, executor, Timers::simulated())))
    }

    /// `io_uring`, `threads` or `simulated`.
    pub fn backend_name(&self) -> &'static str {
        match self.0.driver {
            Driver::Uring(_) => "io_uring",
            Driver::Threads(_) => "threads",
            Driver::Simulated => "simulated",
        }
    }

    /// Starts a task. It runs while some `block_on` runs, first when all that is ready now has
    /// run.
    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.0.executor.spawn(Box::pin(task));
    }

    /// Runs `future` and all tasks until `future` ends. Tasks that have not ended stay for the
    /// next run.
    ///
    /// # Panics
    /// If called from a task of this runtime; on virtual time, if `future` waits for something
    /// that can never happen.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        let executor = &self.0.executor;
        let mut future = pin!(future);
        let _running = executor.enter();
        let mut polls = 0;
        loop {
            while let Some(task) = executor.next() {
                if task != ROOT {
                    executor.poll_task(task);
                } else if let Poll::Ready(value) = executor.poll_root(future.as_mut()) {
                    return value;
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

    /// Ends all tasks by dropping them.
    ///
    /// # Panics
    /// If called from a task of this runtime.
    pub fn drop_tasks(&self) {
        self.0.executor.drop_tasks();
    }

    /// Lets every other task that is ready, and I/O that has completed, go first.
    pub async fn yield_now(&self) {
        self.0.executor.yield_now().await;
    }

    /// Runs `future` for at most `ns` nanoseconds; `None` if it has not ended then. At the
    /// deadline `future` has precedence.
    pub async fn timeout<T>(&self, ns: u64, future: impl Future<Output = T>) -> Option<T> {
        let mut sleep = pin!(self.0.timers.sleep(ns));
        let mut future = pin!(future);
        poll_fn(|context| match future.as_mut().poll(context) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            Poll::Pending => sleep.as_mut().poll(context).map(|()| None),
        })
        .await
    }

    /// How often I/O and timers have been looked at. What happens between two turns happens within
    /// some tens of polls, without any wait.
    pub fn turns(&self) -> u64 {
        self.0.turns.get()
    }

    /// Looks at I/O and timers when no task is ready, and waits for them if nobody yielded.
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

/// Hands an operation to the driver; a simulated one answers `$refusal`.
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

/// Input and output. An operation begins when its future is first polled; those of one descriptor
/// may be carried out in any order.
impl Runtime {
    /// Fills the buffer from `offset` in the file; gives the number of bytes read, which is less
    /// than the buffer's length at the end of the file, and may be less anywhere.
    ///
    /// # Errors
    /// Those of `pread`, `Interrupted` among them.
    pub async fn read_at(
        &self,
        file: &Arc<OwnedFd>,
        offset: u64,
        buffer: AlignedBuffer,
    ) -> (AlignedBuffer, io::Result<usize>) {
        on_driver!(self, read_at(file, offset, buffer), (buffer, refused()))
    }

    /// Writes the buffer, which others may read meanwhile, at `offset` in the file; gives the
    /// number of bytes written, which may be less than the buffer's length. Durable only after
    /// [`Runtime::sync_data`].
    ///
    /// # Errors
    /// Those of `pwrite`, `Interrupted` among them.
    pub async fn write_at(
        &self,
        file: &Arc<OwnedFd>,
        offset: u64,
        buffer: Arc<AlignedBuffer>,
    ) -> io::Result<usize> {
        on_driver!(self, write_at(file, offset, buffer), refused())
    }

    /// Makes durable what had been written when this was called, and the size of the file
    /// (`fdatasync`).
    ///
    /// # Errors
    /// Those of `fdatasync`: what was written since the last success may then be lost, also if
    /// another call succeeds.
    pub async fn sync_data(&self, file: &Arc<OwnedFd>) -> io::Result<()> {
        on_driver!(self, sync_data(file), refused())
    }

    /// Gives the space of `len` bytes at `offset` back; they then read as zeroes, and the size of
    /// the file stays.
    ///
    /// # Errors
    /// Those of `fallocate`: `Unsupported` if the file system or device cannot.
    pub async fn punch_hole(&self, file: &Arc<OwnedFd>, offset: u64, len: u64) -> io::Result<()> {
        on_driver!(self, punch_hole(file, offset, len), refused())
    }

    /// Waits for a connection. The new socket is closed on exec.
    ///
    /// # Errors
    /// Those of `accept`; `InvalidInput` after [`shutdown_socket`].
    pub async fn accept(&self, listener: &Arc<OwnedFd>) -> io::Result<OwnedFd> {
        on_driver!(self, accept(listener), refused())
    }

    /// Waits until a read of `file`, which is not on a disk, would not block: something is there,
    /// the end, or an error, which the read then gives.
    ///
    /// # Errors
    /// Those of `poll`; `Interrupted` by [`Runtime::interrupt`].
    pub async fn readable(&self, file: &Arc<OwnedFd>) -> io::Result<()> {
        on_driver!(self, readable(file), refused())
    }

    /// Waits for bytes and puts them into `buffer[range]`; gives their number: at least one, or 0
    /// if the other side will send no more or the range is empty.
    ///
    /// # Errors
    /// Those of `recv`.
    ///
    /// # Panics
    /// If the range does not lie in the buffer.
    pub async fn receive(
        &self,
        socket: &Arc<OwnedFd>,
        buffer: Vec<u8>,
        range: Range<usize>,
    ) -> (Vec<u8>, io::Result<usize>) {
        on_driver!(self, receive(socket, buffer, range), (buffer, refused()))
    }

    /// Ends with `Interrupted`, without taking anything, whatever waits now to read or receive from
    /// `socket` or to accept on it. What had already arrived is returned as usual.
    pub fn interrupt(&self, socket: &Arc<OwnedFd>) {
        match &self.0.driver {
            Driver::Uring(uring) => uring.interrupt(socket),
            Driver::Threads(threads) => threads.interrupt(socket),
            Driver::Simulated => {}
        }
    }

    /// Sends `buffer[range]`; gives the number of bytes taken, which may be less. Sends of one
    /// socket go out in order only if each is awaited before the next.
    ///
    /// # Errors
    /// Those of `send`; `BrokenPipe` without a signal.
    ///
    /// # Panics
    /// If the range does not lie in the buffer.
    pub async fn send(
        &self,
        socket: &Arc<OwnedFd>,
        buffer: Vec<u8>,
        range: Range<usize>,
    ) -> (Vec<u8>, io::Result<usize>) {
        on_driver!(self, send(socket, buffer, range), (buffer, refused()))
    }

    /// As [`Runtime::receive`], into a buffer that is aligned: for payloads that are long enough to
    /// be received straight to where they belong.
    ///
    /// # Errors
    /// Those of `recv`.
    ///
    /// # Panics
    /// If the range does not lie in the buffer.
    pub async fn receive_aligned(
        &self,
        socket: &Arc<OwnedFd>,
        buffer: AlignedBuffer,
        range: Range<usize>,
    ) -> (AlignedBuffer, io::Result<usize>) {
        on_driver!(self, receive_aligned(socket, buffer, range), (buffer, refused()))
    }

    /// As [`Runtime::send`], from a buffer that others may read meanwhile.
    ///
    /// # Errors
    /// Those of `send`; `BrokenPipe` without a signal.
    ///
    /// # Panics
    /// If the range does not lie in the buffer.
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

/// Ends all traffic of a socket both ways: receives and accepts that wait on it end, sends fail.
pub fn shutdown_socket(socket: &OwnedFd) {
    // Fails only for a socket that has no traffic to end.
    let _ = rustix::net::shutdown(socket, Shutdown::Both);
}

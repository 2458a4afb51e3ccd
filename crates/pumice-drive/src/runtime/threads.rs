//! I/O without io_uring: blocking system calls for files, `poll` for sockets.
//!
//! A file operation is one blocking call on a thread of the `blocking` crate's pool. A socket
//! operation is attempted on the runtime's own thread and waits in the loop's `poll` until the
//! socket is ready. A receive whose future was dropped therefore takes nothing from the socket, and
//! idle connections occupy no threads.
//!
//! This backend is simple rather than fast. The only limit is the pool's own (500 threads).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::FallocateFlags;
use rustix::io::{Errno, ReadWriteFlags, retry_on_intr};
use rustix::net::SocketFlags;

use super::direct::Direct;
use super::executor::Shared;
use crate::base::AlignedBuffer;

/// A task that waits for a socket to become ready.
struct Interest {
    socket: Arc<OwnedFd>,
    flags: PollFlags,
    waker: Waker,
    is_interrupted: bool,
}

/// The sockets for which tasks of one runtime wait.
pub(super) struct Threads {
    direct: Direct,
    interests: RefCell<BTreeMap<u64, Interest>>,
    tickets: Cell<u64>,
}

impl Threads {
    pub(super) fn new() -> Self {
        Self { direct: Direct::new(), interests: RefCell::default(), tickets: Cell::new(0) }
    }

    /// Waits up to `timeout_ns` for an event (`None`: without limit; 0: not at all) and wakes the
    /// tasks whose sockets are ready.
    pub(super) fn turn(&self, shared: &Shared, timeout_ns: Option<u64>) {
        self.direct.refill();
        let park = timeout_ns != Some(0) && shared.park();
        let ready = self.poll(shared, if park { timeout_ns } else { Some(0) });
        if park {
            shared.unpark();
        }
        for ticket in ready {
            let interest = self.interests.borrow_mut().remove(&ticket);
            if let Some(interest) = interest {
                interest.waker.wake();
            }
        }
    }

    /// Returns the tickets of the ready sockets, in the order in which tasks began to wait.
    fn poll(&self, shared: &Shared, timeout_ns: Option<u64>) -> Vec<u64> {
        let interests = self.interests.borrow();
        if interests.is_empty() && timeout_ns == Some(0) {
            return Vec::new();
        }
        let timeout = timeout_ns.map(|ns| Timespec {
            tv_sec: (ns / 1_000_000_000).cast_signed(),
            tv_nsec: (ns % 1_000_000_000).cast_signed(),
        });
        let sockets =
            interests.values().map(|i| PollFd::from_borrowed_fd(i.socket.as_fd(), i.flags));
        let alarm = shared.alarm().map(|alarm| PollFd::from_borrowed_fd(alarm, PollFlags::IN));
        let mut descriptors: Vec<_> = sockets.chain(alarm).collect();
        match poll(&mut descriptors, timeout.as_ref()) {
            Ok(_) => {}
            // The caller starts another turn.
            Err(Errno::INTR | Errno::AGAIN | Errno::NOMEM) => return Vec::new(),
            Err(error) => panic!("poll failed: {error}"),
        }
        if descriptors.last().is_some_and(|alarm| !alarm.revents().is_empty()) {
            shared.silence();
        }
        let answers = interests.keys().zip(&descriptors);
        answers.filter(|(_, answer)| !answer.revents().is_empty()).map(|(&key, _)| key).collect()
    }

    /// Interrupts the operations that wait to receive from or accept on `socket`.
    pub(super) fn interrupt(&self, socket: &Arc<OwnedFd>) {
        let mut woken = Vec::new();
        for interest in self.interests.borrow_mut().values_mut() {
            if interest.flags == PollFlags::IN && Arc::ptr_eq(&interest.socket, socket) {
                interest.is_interrupted = true;
                woken.push(interest.waker.clone());
            }
        }
        // No borrow is held: a foreign waker may run any code.
        woken.into_iter().for_each(Waker::wake);
    }

    /// Waits until `flags` may hold for the socket. An error of the socket counts too.
    ///
    /// # Errors
    /// `Interrupted` by [`Self::interrupt`].
    fn ready<'a>(&'a self, socket: &'a Arc<OwnedFd>, flags: PollFlags) -> Ready<'a> {
        Ready { threads: self, socket, flags, ticket: None }
    }

    pub(super) async fn read_at(
        &self,
        file: &Arc<OwnedFd>,
        offset: u64,
        mut buffer: AlignedBuffer,
    ) -> (AlignedBuffer, io::Result<usize>) {
        let file = file.clone();
        unblock(move || {
            let result = retry_on_intr(|| rustix::io::pread(&file, &mut buffer[..], offset));
            (buffer, result.map_err(io::Error::from))
        })
        .await
    }

    pub(super) async fn write_at(
        &self,
        file: &Arc<OwnedFd>,
        offset: u64,
        buffer: Arc<AlignedBuffer>,
        flags: ReadWriteFlags,
    ) -> io::Result<usize> {
        let file = file.clone();
        if flags.is_empty() {
            return unblock(move || {
                Ok(retry_on_intr(|| rustix::io::pwrite(&file, &buffer, offset))?)
            })
            .await;
        }
        let write = move || {
            let bytes = [IoSlice::new(&buffer)];
            Ok(retry_on_intr(|| rustix::io::pwritev2(&file, &bytes, offset, flags))?)
        };
        unblock(write).await
    }

    pub(super) async fn sync_data(&self, file: &Arc<OwnedFd>) -> io::Result<()> {
        let file = file.clone();
        unblock(move || Ok(rustix::fs::fdatasync(&file)?)).await
    }

    pub(super) async fn fallocate(
        &self,
        file: &Arc<OwnedFd>,
        mode: FallocateFlags,
        offset: u64,
        len: u64,
    ) -> io::Result<()> {
        let file = file.clone();
        unblock(move || Ok(retry_on_intr(|| rustix::fs::fallocate(&file, mode, offset, len))?))
            .await
    }

    pub(super) async fn accept(&self, listener: &Arc<OwnedFd>) -> io::Result<OwnedFd> {
        loop {
            // A blocking listener offers no other way to find out whether accepting would block.
            // Linux retains a connection that its client has closed, so a ready listener remains
            // ready.
            self.ready(listener, PollFlags::IN).await?;
            match rustix::net::accept_with(listener, SocketFlags::CLOEXEC) {
                Err(Errno::INTR | Errno::AGAIN) => {}
                result => return Ok(result?),
            }
        }
    }

    pub(super) async fn readable(&self, file: &Arc<OwnedFd>) -> io::Result<()> {
        self.ready(file, PollFlags::IN).await
    }

    pub(super) async fn receive(
        &self,
        socket: &Arc<OwnedFd>,
        mut buffer: Vec<u8>,
        range: Range<usize>,
    ) -> (Vec<u8>, io::Result<usize>) {
        loop {
            if let Some(result) = self.direct.receive(socket, &mut buffer[range.clone()]) {
                return (buffer, result);
            }
            if let Err(error) = self.ready(socket, PollFlags::IN).await {
                return (buffer, Err(error));
            }
        }
    }

    pub(super) async fn send(
        &self,
        socket: &Arc<OwnedFd>,
        buffer: Vec<u8>,
        range: Range<usize>,
    ) -> (Vec<u8>, io::Result<usize>) {
        loop {
            if let Some(result) = self.direct.send(socket, &buffer[range.clone()]) {
                return (buffer, result);
            }
            if let Err(error) = self.ready(socket, PollFlags::OUT).await {
                return (buffer, Err(error));
            }
        }
    }

    pub(super) async fn receive_aligned(
        &self,
        socket: &Arc<OwnedFd>,
        mut buffer: AlignedBuffer,
        range: Range<usize>,
    ) -> (AlignedBuffer, io::Result<usize>) {
        loop {
            if let Some(result) = self.direct.receive(socket, &mut buffer[range.clone()]) {
                return (buffer, result);
            }
            if let Err(error) = self.ready(socket, PollFlags::IN).await {
                return (buffer, Err(error));
            }
        }
    }

    pub(super) async fn send_shared(
        &self,
        socket: &Arc<OwnedFd>,
        buffer: &Arc<AlignedBuffer>,
        range: Range<usize>,
    ) -> io::Result<usize> {
        loop {
            if let Some(result) = self.direct.send(socket, &buffer[range.clone()]) {
                return result;
            }
            self.ready(socket, PollFlags::OUT).await?;
        }
    }
}

/// Runs `call` on the pool to completion, even if this future is dropped.
async fn unblock<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    struct Detached<T>(Option<blocking::Task<T>>);
    impl<T> Drop for Detached<T> {
        fn drop(&mut self) {
            if let Some(task) = self.0.take() {
                task.detach();
            }
        }
    }
    let mut task = Detached(Some(blocking::unblock(call)));
    poll_fn(|context| {
        let task = task.0.as_mut().expect("taken only when dropped");
        Pin::new(task).poll(context)
    })
    .await
}

/// A wait for a socket. Dropping it ends the wait.
struct Ready<'a> {
    threads: &'a Threads,
    socket: &'a Arc<OwnedFd>,
    flags: PollFlags,
    ticket: Option<u64>,
}

impl Future for Ready<'_> {
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut interests = self.threads.interests.borrow_mut();
        if let Some(ticket) = self.ticket {
            return match interests.get_mut(&ticket) {
                // Removed when this is dropped.
                Some(Interest { is_interrupted: true, .. }) => {
                    Poll::Ready(Err(io::ErrorKind::Interrupted.into()))
                }
                Some(interest) => {
                    interest.waker.clone_from(context.waker());
                    Poll::Pending
                }
                None => Poll::Ready(Ok(())),
            };
        }
        let ticket = self.threads.tickets.get();
        self.threads.tickets.set(ticket + 1);
        let (socket, waker) = (self.socket.clone(), context.waker().clone());
        let flags = self.flags;
        let interest = Interest { socket, flags, waker, is_interrupted: false };
        let previous = interests.insert(ticket, interest);
        assert!(previous.is_none(), "two waiting tasks share a ticket");
        drop(interests);
        self.ticket = Some(ticket);
        Poll::Pending
    }
}

impl Drop for Ready<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.threads.interests.borrow_mut().remove(&ticket);
        }
    }
}

//! The session with the kernel: reads requests, executes them, replies.
//!
//! A write that need not wait is executed immediately, from the memory into which it was read;
//! every other request with data is a task of its own. Their number is limited by the kernel, which
//! has at most [`BACKGROUND_MAX`] in flight, and by the memory for their data.
//!
//! Replies to short writes are sent together, after everything received with them has been
//! executed. Each reply wakes its host, which would otherwise take the processor from the next
//! write, and send one request where it could have sent several.

use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, retry_on_intr};
use zerocopy::IntoBytes;

use super::file::DiskFile;
use super::payloads::{Payload, Payloads, REQUEST_BYTES_MAX, SHORT_BYTES};
use super::wire::{
    self, Asked, Init, REQUEST_HEAD_BYTES, ReplyHead, Request, VERSION, WriteReply, init,
};
use pumice_drive::base::{Error, Result};
use pumice_drive::runtime::Runtime;
use pumice_nbd::{Allocation, AnyDisk, Durability};

/// Number of requests read before other tasks run, and so the maximum number of replies to writes
/// that are sent together: the first of them waits 16 times 10 us for the last, a quarter of the
/// latency of a write at depth 32.
const TOGETHER_MAX: usize = 16;

/// Maximum number of requests in flight that the kernel counts as background, which includes all
/// asynchronous direct I/O: twice the requests of a loop device. The default of 12 would limit the
/// queue depth.
const BACKGROUND_MAX: u16 = 256;

/// An open `/dev/fuse` of a mounted file system. Reads of it do not block.
#[derive(Clone)]
pub(super) struct Device(pub(super) Arc<OwnedFd>);

impl Device {
    /// Answers the kernel's first request, which announces its features.
    ///
    /// # Errors
    /// The kernel is too old, or the request is malformed.
    pub(super) fn shake_hands(&self) -> io::Result<()> {
        let mut buffer = vec![0; REQUEST_HEAD_BYTES + REQUEST_BYTES_MAX];
        loop {
            // The request is available as soon as the file system is mounted.
            retry_on_intr(|| poll(&mut [PollFd::new(&self.0, PollFlags::IN)], None))?;
            let length = rustix::io::read(&self.0, &mut buffer)?;
            let request = buffer.get(..length).and_then(wire::decode);
            let Some(Request { unique, asked, .. }) = request else { return Err(not_fuse()) };
            let Asked::Init { version, max_readahead, flags } = asked else {
                return Err(not_fuse());
            };
            let wanted = init::BIG_WRITES | init::ASYNC_DIO | init::MAX_PAGES;
            if version < VERSION || flags & wanted != wanted {
                self.reply_error(unique, Errno::PROTO);
                let (major, minor) = version;
                let what = format!("the kernel's FUSE is too old: {major}.{minor}, {flags:#x}");
                return Err(io::Error::new(io::ErrorKind::Unsupported, what));
            }
            let init = Init::new(max_readahead, wanted, REQUEST_BYTES_MAX, BACKGROUND_MAX);
            self.reply(unique, init.as_bytes());
            // A kernel with another major version sends its request again.
            if version.0 == VERSION.0 {
                return Ok(());
            }
        }
    }

    fn receive(&self, buffer: &mut [u8]) -> Received {
        loop {
            match rustix::io::read(&self.0, &mut *buffer) {
                Ok(0) | Err(Errno::NODEV) => return Received::End,
                Ok(length) => return Received::Request(length),
                // The latter happens if the process that made the request was killed.
                Err(Errno::INTR | Errno::NOENT) => {}
                Err(Errno::AGAIN) => return Received::Nothing,
                Err(error) => {
                    tracing::error!(%error, "reading /dev/fuse failed");
                    return Received::End;
                }
            }
        }
    }

    fn reply(&self, unique: u64, result: &[u8]) {
        let head = ReplyHead::good(unique, result.len());
        self.write(&[IoSlice::new(head.as_bytes()), IoSlice::new(result)]);
    }

    fn reply_to_write(&self, unique: u64, length: usize, result: Result<()>) {
        match result {
            Ok(()) => self.write(&[IoSlice::new(WriteReply::new(unique, length).as_bytes())]),
            Err(error) => self.reply_error(unique, errno("write", &error)),
        }
    }

    fn reply_error(&self, unique: u64, errno: Errno) {
        self.write(&[IoSlice::new(ReplyHead::bad(unique, errno).as_bytes())]);
    }

    fn write(&self, parts: &[IoSlice]) {
        if let Err(error) = retry_on_intr(|| rustix::io::writev(&self.0, parts)) {
            // The process that made the request was killed, or the file system is unmounted.
            tracing::debug!(%error, "cannot send a FUSE reply");
        }
    }
}

/// The result of reading the device.
enum Received {
    /// A request of this many bytes.
    Request(usize),
    /// Nothing until the device becomes readable.
    Nothing,
    /// Nothing until a request in flight has ended.
    TooMuch,
    /// Nothing more: the file system is unmounted.
    End,
}

fn not_fuse() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the kernel did not start with FUSE_INIT")
}

/// Everything that a request needs.
pub(super) struct Session {
    pub(super) runtime: Runtime,
    pub(super) disk: Rc<dyn AnyDisk>,
    pub(super) file: DiskFile,
    pub(super) device: Device,
    pub(super) payloads: Rc<Payloads>,
}

impl Session {
    /// Executes requests until the file system is unmounted.
    pub(super) async fn serve(self) {
        let mut buffer = self.payloads.long();
        let mut replies = Vec::with_capacity(TOGETHER_MAX);
        loop {
            let mut heard = Received::Nothing;
            for _ in 0..TOGETHER_MAX {
                heard = if self.payloads.have_room() {
                    self.device.receive(&mut buffer)
                } else {
                    Received::TooMuch
                };
                let Received::Request(length) = heard else { break };
                self.carry_out(&mut buffer, length, &mut replies).await;
            }
            for reply in replies.drain(..) {
                self.device.write(&[IoSlice::new(reply.as_bytes())]);
            }
            match heard {
                Received::Request(_) => self.runtime.yield_now().await,
                Received::TooMuch => self.payloads.room().await,
                // If the wait fails, the next read reports the error too.
                Received::Nothing => drop(self.runtime.readable(&self.device.0).await),
                Received::End => return,
            }
        }
    }

    /// Executes the request in the first `length` bytes, or starts to. The reply to a completed
    /// write is added to `replies`.
    #[expect(clippy::indexing_slicing, reason = "the data of a decoded write lies in its request")]
    async fn carry_out(
        &self,
        buffer: &mut Box<[u8]>,
        length: usize,
        replies: &mut Vec<WriteReply>,
    ) {
        let request = buffer.get(..length).and_then(wire::decode);
        let Some(Request { unique, node, asked }) = request else {
            tracing::warn!(bytes = length, "malformed FUSE request");
            return;
        };
        let work = match asked {
            Asked::Write { offset, range } => {
                if let Err(errno) = self.file.check_change(offset, range.len() as u64) {
                    return self.device.reply_error(unique, errno);
                }
                let length = range.len();
                match self.disk.try_write(offset, &buffer[range.clone()]) {
                    Some(Ok(())) if length <= SHORT_BYTES => {
                        return replies.push(WriteReply::new(unique, length));
                    }
                    Some(result) => return self.device.reply_to_write(unique, length, result),
                    None => Work::Write { offset, payload: self.payloads.keep(buffer, range) },
                }
            }
            Asked::Read { offset, length } => {
                // The kernel writes no more than the limit that it was given.
                let length = (self.file.readable(offset, length) as usize).min(REQUEST_BYTES_MAX);
                if length == 0 {
                    return self.device.reply(unique, &[]);
                }
                Work::Read { offset, payload: self.payloads.lend(length) }
            }
            Asked::Sync => Work::Flush,
            Asked::Allocate { offset, length, mode } => {
                match self.file.check_zero(offset, length, mode) {
                    Ok(allocation) => Work::Zero { offset, length, allocation },
                    Err(errno) => return self.device.reply_error(unique, errno),
                }
            }
            Asked::Note => return,
            other => {
                return match self.file.answer(node, &other) {
                    Ok(result) => self.device.reply(unique, &result),
                    Err(errno) => self.device.reply_error(unique, errno),
                };
            }
        };
        let (disk, device) = (self.disk.clone(), self.device.clone());
        self.runtime.spawn(async move { work.carry_out(&*disk, &device, unique).await });
    }
}

/// A request that may wait, checked against the size of the disk.
enum Work {
    Read { offset: u64, payload: Payload },
    Write { offset: u64, payload: Payload },
    Flush,
    Zero { offset: u64, length: u64, allocation: Allocation },
}

impl Work {
    async fn carry_out(self, disk: &dyn AnyDisk, device: &Device, unique: u64) {
        let (command, result) = match self {
            Work::Read { offset, mut payload } => {
                let result = disk.read(offset, payload.bytes_mut()).await;
                if result.is_ok() {
                    return device.reply(unique, payload.bytes());
                }
                ("read", result)
            }
            Work::Write { offset, payload } => {
                let result = disk.write(offset, payload.bytes(), Durability::Volatile).await;
                return device.reply_to_write(unique, payload.bytes().len(), result);
            }
            Work::Flush => ("flush", disk.flush().await),
            Work::Zero { offset, length, allocation } => {
                let durability = Durability::Volatile;
                let result = disk.write_zeroes(offset, length, allocation, durability).await;
                ("write_zeroes", result)
            }
        };
        match result {
            Ok(()) => device.reply(unique, &[]),
            Err(error) => device.reply_error(unique, errno(command, &error)),
        }
    }
}

/// Logs an error and returns the errno to report to the host.
fn errno(command: &str, error: &Error) -> Errno {
    let (kind, chain) = (error.kind(), error.chain());
    if kind.is_failure_of_storage() {
        tracing::warn!(command, ?kind, error = %chain, "request failed");
    } else {
        tracing::debug!(command, ?kind, error = %chain, "request failed");
    }
    Errno::from_raw_os_error(error.kind().errno())
}

//! The conversation with the kernel: reads requests, carries them out, replies.
//!
//! A write that need not wait is carried out on the spot, out of the memory that it was read into;
//! everything else that concerns bytes is a task of its own. How many there are is bounded by the
//! kernel, which keeps [`BACKGROUND_MAX`] under way, and by the memory for their data.
//!
//! Replies to short writes leave together, after what else had come is carried out: each reply
//! wakes its host, which would otherwise take the processor from the next write, and send one
//! request where it could have sent several.

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
use pumice_drive::base::{Error, ErrorKind, Result};
use pumice_drive::runtime::Runtime;
use pumice_nbd::Disk;

/// Requests that are read before other tasks have their turn, and so the most replies to writes
/// that leave together: 16 times 10 us are what the first of them waits for the last, a quarter of
/// what a write takes at depth 32.
const TOGETHER_MAX: usize = 16;

/// Requests under way that the kernel counts as background, which all asynchronous direct I/O is:
/// twice the requests of a loop device. The default of 12 would be the queue depth.
const BACKGROUND_MAX: u16 = 256;

/// An open `/dev/fuse` of a mounted file system. Reading it does not block.
#[derive(Clone)]
pub(super) struct Device(pub(super) Arc<OwnedFd>);

impl Device {
    /// Answers the kernel's first request, with which it says what it can do.
    ///
    /// # Errors
    /// It is too old, or not to be understood.
    pub(super) fn shake_hands(&self) -> io::Result<()> {
        let mut buffer = vec![0; REQUEST_HEAD_BYTES + REQUEST_BYTES_MAX];
        loop {
            // It is there as soon as the file system is mounted.
            retry_on_intr(|| poll(&mut [PollFd::new(&self.0, PollFlags::IN)], None))?;
            let length = rustix::io::read(&self.0, &mut buffer)?;
            let request = wire::decode(&buffer[..length]);
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
            // One of another major version asks again.
            if version.0 == VERSION.0 {
                return Ok(());
            }
        }
    }

    fn hear(&self, buffer: &mut [u8]) -> Heard {
        loop {
            match rustix::io::read(&self.0, &mut *buffer) {
                Ok(0) | Err(Errno::NODEV) => return Heard::End,
                Ok(length) => return Heard::Request(length),
                // Of the latter, whoever asked has been killed meanwhile.
                Err(Errno::INTR | Errno::NOENT) => {}
                Err(Errno::AGAIN) => return Heard::Nothing,
                Err(error) => {
                    tracing::error!("the kernel cannot be heard any more: {error}");
                    return Heard::End;
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
            Err(error) => self.reply_error(unique, errno("a write", &error)),
        }
    }

    fn reply_error(&self, unique: u64, errno: Errno) {
        self.write(&[IoSlice::new(ReplyHead::bad(unique, errno).as_bytes())]);
    }

    fn write(&self, parts: &[IoSlice]) {
        if let Err(error) = retry_on_intr(|| rustix::io::writev(&self.0, parts)) {
            // Whoever asked has been killed, or the file system is unmounted.
            tracing::debug!("a reply was not taken: {error}");
        }
    }
}

/// What there is to do.
enum Heard {
    /// A request of so many bytes.
    Request(usize),
    /// Nothing until something can be read.
    Nothing,
    /// Nothing until some of what is under way has ended.
    TooMuch,
    /// Nothing any more: it is unmounted.
    End,
}

fn not_fuse() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the kernel does not begin as FUSE does")
}

/// All that a request needs.
pub(super) struct Session<D> {
    pub(super) runtime: Runtime,
    pub(super) disk: Rc<D>,
    pub(super) file: DiskFile,
    pub(super) device: Device,
    pub(super) payloads: Rc<Payloads>,
}

impl<D: Disk + 'static> Session<D> {
    /// Carries out what comes until the file system is unmounted.
    pub(super) async fn serve(self) {
        let mut buffer = self.payloads.long();
        let mut replies = Vec::with_capacity(TOGETHER_MAX);
        loop {
            let mut heard = Heard::Nothing;
            for _ in 0..TOGETHER_MAX {
                heard = if self.payloads.have_room() {
                    self.device.hear(&mut buffer)
                } else {
                    Heard::TooMuch
                };
                let Heard::Request(length) = heard else { break };
                self.carry_out(&mut buffer, length, &mut replies).await;
            }
            for reply in replies.drain(..) {
                self.device.write(&[IoSlice::new(reply.as_bytes())]);
            }
            match heard {
                Heard::Request(_) => self.runtime.yield_now().await,
                Heard::TooMuch => self.payloads.room().await,
                // An error of waiting is one of reading, too.
                Heard::Nothing => drop(self.runtime.readable(&self.device.0).await),
                Heard::End => return,
            }
        }
    }

    /// Carries out the request in the first `length` bytes, or begins to. What is to be replied to
    /// a write that is done joins `replies`.
    async fn carry_out(
        &self,
        buffer: &mut Box<[u8]>,
        length: usize,
        replies: &mut Vec<WriteReply>,
    ) {
        let Some(Request { unique, node, asked }) = wire::decode(&buffer[..length]) else {
            tracing::warn!("a request of {length} bytes is none of FUSE");
            return;
        };
        let work = match asked {
            Asked::Write { offset, range } => {
                if let Err(errno) = self.file.check_change(offset, range.len() as u64) {
                    return self.device.reply_error(unique, errno);
                }
                let length = range.len();
                if let Some(result) = self.disk.try_write(offset, &buffer[range.clone()]) {
                    return match result {
                        Ok(()) if length <= SHORT_BYTES => {
                            replies.push(WriteReply::new(unique, length))
                        }
                        result => self.device.reply_to_write(unique, length, result),
                    };
                }
                Work::Write { offset, payload: self.payloads.keep(buffer, range) }
            }
            Asked::Read { offset, length } => {
                // The kernel asks for no more than it was told it may write.
                let length = self.file.readable(offset, length).min(REQUEST_BYTES_MAX);
                if length == 0 {
                    return self.device.reply(unique, &[]);
                }
                Work::Read { offset, payload: self.payloads.lend(length) }
            }
            Asked::Sync => Work::Flush,
            Asked::Allocate { offset, length, mode } => {
                match self.file.check_zero(offset, length, mode) {
                    Ok(keep_allocated) => Work::Zero { offset, length, keep_allocated },
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

/// A request that may wait, checked against the disk's size.
enum Work {
    Read { offset: u64, payload: Payload },
    Write { offset: u64, payload: Payload },
    Flush,
    Zero { offset: u64, length: u64, keep_allocated: bool },
}

impl Work {
    async fn carry_out<D: Disk>(self, disk: &D, device: &Device, unique: u64) {
        let (what, result) = match self {
            Work::Read { offset, mut payload } => {
                let result = disk.read(offset, payload.bytes_mut()).await;
                if result.is_ok() {
                    return device.reply(unique, payload.bytes());
                }
                ("a read", result)
            }
            Work::Write { offset, payload } => {
                let result = disk.write(offset, payload.bytes(), false).await;
                return device.reply_to_write(unique, payload.bytes().len(), result);
            }
            Work::Flush => ("a flush", disk.flush().await),
            Work::Zero { offset, length, keep_allocated } => {
                ("a trim", disk.write_zeroes(offset, length, keep_allocated, false).await)
            }
        };
        match result {
            Ok(()) => device.reply(unique, &[]),
            Err(error) => device.reply_error(unique, errno(what, &error)),
        }
    }
}

/// What the host is told, after the log.
fn errno(what: &str, error: &Error) -> Errno {
    match error.kind() {
        ErrorKind::Corrupt | ErrorKind::Medium | ErrorKind::Poisoned => {
            tracing::warn!("{what} failed: {}", error.chain());
            Errno::IO
        }
        kind => {
            tracing::debug!("{what} was refused by the disk: {}", error.chain());
            match kind {
                ErrorKind::NoSpace => Errno::NOSPC,
                ErrorKind::ReadOnly => Errno::ROFS,
                ErrorKind::InvalidInput => Errno::INVAL,
                _ => Errno::IO,
            }
        }
    }
}

//! The drive's side: carries requests out and replies.
//!
//! A write that need not wait is carried out on the spot; everything else is a task of its own. How
//! many there are is bounded by the kernel, which keeps 256 under way, and by the inbox.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use fuser::Errno;

use super::inbox::{Inbox, Request};
use crate::base::{Error, ErrorKind};
use crate::runtime::Runtime;
use crate::serve::Disk;

/// Carries out what comes until the file system is unmounted.
pub(super) async fn carry_all<D: Disk + 'static>(runtime: Runtime, disk: Rc<D>, inbox: Arc<Inbox>) {
    let mut requests = VecDeque::new();
    while inbox.take(&mut requests).await {
        for request in requests.drain(..) {
            match &request {
                Request::Write { offset, payload, .. }
                    if disk.write_is_ready(*offset, payload.bytes().len()) =>
                {
                    carry(&*disk, request).await;
                }
                _ => {
                    let disk = disk.clone();
                    runtime.spawn(async move { carry(&*disk, request).await });
                }
            }
        }
    }
}

async fn carry<D: Disk>(disk: &D, request: Request) {
    match request {
        Request::Read { offset, mut payload, reply } => {
            match disk.read(offset, payload.bytes_mut()).await {
                Ok(()) => reply.data(payload.bytes()),
                Err(error) => reply.error(errno("a read", &error)),
            }
        }
        Request::Write { offset, payload, reply } => {
            match disk.write(offset, payload.bytes(), false).await {
                Ok(()) => reply.written(payload.bytes().len() as u32),
                Err(error) => reply.error(errno("a write", &error)),
            }
        }
        Request::Flush { reply } => match disk.flush().await {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno("a flush", &error)),
        },
        Request::Zero { offset, length, keep_allocated, reply } => {
            match disk.write_zeroes(offset, length, keep_allocated, false).await {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(errno("a trim", &error)),
            }
        }
    }
}

/// What the host is told, after the log.
fn errno(what: &str, error: &Error) -> Errno {
    match error.kind() {
        ErrorKind::Corrupt | ErrorKind::Medium | ErrorKind::Poisoned => {
            tracing::warn!("{what} failed: {}", error.chain());
            Errno::EIO
        }
        kind => {
            tracing::debug!("{what} was refused by the disk: {}", error.chain());
            match kind {
                ErrorKind::NoSpace => Errno::ENOSPC,
                ErrorKind::ReadOnly => Errno::EROFS,
                ErrorKind::InvalidInput => Errno::EINVAL,
                _ => Errno::EIO,
            }
        }
    }
}

//! Unsent requests of all tasks, in the order in which they were made.
//!
//! ```text
//! append  ->  bytes     | header | header data | header      | header |
//!             inserted                                ^ at 96: shared payload
//! send    ->  header header data header | shared payload | header
//! ```
//!
//! Requests and short payloads are copied into one buffer, so that all requests of one turn are
//! sent with one send. Long shared payloads are sent from their own buffers, in between. While one
//! batch is being sent, the next one is filled; the two batches alternate, so that nothing is
//! allocated after warm-up.
//!
//! Invariant: an appended request is sent completely, even if the task that appended it is dropped.

#![expect(clippy::indexing_slicing, reason = "`verbs` cuts payloads out of their own buffer")]

use std::cell::{Cell, RefCell};
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::super::wire::Request;
use pumice_drive::base::AlignedBuffer;
use pumice_drive::base::wait::WaitQueue;
use pumice_drive::runtime::Runtime;

/// Maximum unsent bytes before new requests wait: twice a full queue of 32 requests of 4 KiB, and
/// far more than a Unix socket holds.
const PENDING_BYTES_MAX: usize = 256 << 10;

/// Shared payloads up to this length are copied: a separate send costs about as much as copying
/// them.
const COPIED_BYTES_MAX: usize = 32 << 10;

/// The data of a request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Payload<'a> {
    None,
    /// Always copied.
    Copied(&'a [u8]),
    /// A range of a buffer; copied if that is cheaper.
    Shared(&'a Arc<AlignedBuffer>, usize, usize),
}

#[derive(Debug)]
struct Inserted {
    /// The position in `bytes` before which it is sent.
    position: usize,
    buffer: Arc<AlignedBuffer>,
    range: Range<usize>,
}

#[derive(Debug, Default)]
struct Batch {
    bytes: Vec<u8>,
    inserted: Vec<Inserted>,
}

/// The unsent requests of a connection.
#[derive(Default)]
pub(super) struct Outgoing {
    pending: RefCell<Batch>,
    /// The batch that is not being filled, retained for its allocation.
    spare: Cell<Option<Batch>>,
    /// Wakes the sender when bytes were appended.
    appended: WaitQueue,
}

impl Outgoing {
    /// Returns whether a request may be appended.
    pub(super) fn has_room(&self) -> bool {
        self.pending.borrow().bytes.len() < PENDING_BYTES_MAX
    }

    /// Appends a request with its payload.
    pub(super) fn append(&self, request: &Request, payload: Payload<'_>) {
        let batch = &mut *self.pending.borrow_mut();
        batch.bytes.extend_from_slice(&request.encode());
        match payload {
            Payload::None => {}
            Payload::Copied(data) => batch.bytes.extend_from_slice(data),
            Payload::Shared(buffer, start, end) if end - start <= COPIED_BYTES_MAX => {
                batch.bytes.extend_from_slice(&buffer[start..end]);
            }
            Payload::Shared(buffer, start, end) => batch.inserted.push(Inserted {
                position: batch.bytes.len(),
                buffer: buffer.clone(),
                range: start..end,
            }),
        }
        self.appended.wake_all();
    }

    /// Wakes the sender, so that it checks whether to end.
    pub(super) fn wake_sender(&self) {
        self.appended.wake_all();
    }

    /// Waits until there are bytes to send, then sends all of them. Calls `made_room` before the
    /// first byte. Returns false if `has_ended` returned true instead.
    ///
    /// # Errors
    /// The errors of `send`.
    pub(super) async fn send_pending(
        &self,
        runtime: &Runtime,
        socket: &Arc<OwnedFd>,
        has_ended: impl Fn() -> bool,
        made_room: impl FnOnce(),
    ) -> io::Result<bool> {
        let has_work = || {
            if has_ended() {
                return Some(false);
            }
            (!self.pending.borrow().bytes.is_empty()).then_some(true)
        };
        if !self.appended.wait_for(has_work).await {
            return Ok(false);
        }
        let mut batch = self.pending.replace(self.spare.take().unwrap_or_default());
        made_room();
        let mut start = 0;
        for Inserted { position, buffer, range } in batch.inserted.drain(..) {
            let before = start..position;
            batch.bytes = send_bytes(runtime, socket, batch.bytes, before).await?;
            start = position;
            send_shared(runtime, socket, &buffer, range).await?;
        }
        let rest = start..batch.bytes.len();
        batch.bytes = send_bytes(runtime, socket, batch.bytes, rest).await?;
        batch.bytes.clear();
        self.spare.set(Some(batch));
        Ok(true)
    }
}

async fn send_bytes(
    runtime: &Runtime,
    socket: &Arc<OwnedFd>,
    mut bytes: Vec<u8>,
    mut range: Range<usize>,
) -> io::Result<Vec<u8>> {
    while !range.is_empty() {
        let (back, result) = runtime.send(socket, bytes, range.clone()).await;
        bytes = back;
        range.start += some_bytes(result)?;
    }
    Ok(bytes)
}

async fn send_shared(
    runtime: &Runtime,
    socket: &Arc<OwnedFd>,
    buffer: &Arc<AlignedBuffer>,
    mut range: Range<usize>,
) -> io::Result<()> {
    while !range.is_empty() {
        let result = runtime.send_shared(socket, buffer, range.clone()).await;
        range.start += some_bytes(result)?;
    }
    Ok(())
}

/// Returns the length of a send. A socket that accepts no bytes is an error; a signal counts as no
/// progress.
fn some_bytes(result: io::Result<usize>) -> io::Result<usize> {
    match result {
        Ok(0) => Err(io::ErrorKind::WriteZero.into()),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
        other => other,
    }
}

//! The sending half of a connection.
//!
//! Replies are appended to one buffer. The sender takes the entire buffer and sends it; replies
//! appended meanwhile are sent together by the next send. The number of sends per request therefore
//! falls as the load rises: one for each request at depth 1, one for a dozen at depth 32.
//!
//! Invariants: one send is in flight at a time, by the holder of the turn; turns are taken in order
//! of arrival, so that no reply waits while later ones are sent; bytes are sent in the order in
//! which they were appended, and a payload sent from its own buffer follows everything appended
//! before its turn. After a failed send, the channel is cut and replies are dropped.
//!
//! The sender registers no waker for new replies. It is part of the connection's task and is polled
//! after everything that appends (see `connection`), so it checks again whenever there may be work.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::task::Poll;

use super::channel::Channel;
use pumice_drive::base::wait::{Line, Place, WaitQueue};

/// Maximum bytes of a connection's replies before its requests wait: all replies to a client that
/// reads 32 KiB at depth 32. With a quarter of it, such reads were 10 to 20 % slower, because of
/// waiting and of copying data that had left the processor's cache. A client that does not read its
/// replies is stopped by this limit.
const PENDING_BYTES_MAX: usize = 1 << 20;

/// Maximum capacity of a buffer that is retained when everything has been sent. Arbitrary.
const KEPT_BYTES_MAX: usize = 256 << 10;

/// The same limit while the replies of all connections exceed their common limit: the largest reply
/// that is appended.
const FEW_PENDING_BYTES: usize = 64 << 10;

/// The bytes of memory that the unsent replies of all connections of a server use.
#[derive(Debug)]
pub(super) struct AllPending {
    bytes: Cell<usize>,
    /// From this limit on, each connection may have only [`FEW_PENDING_BYTES`].
    limit_bytes: usize,
}

/// The unsent replies of a channel.
pub(super) struct Replies {
    channel: Rc<Channel>,
    all: Rc<AllPending>,
    pending: RefCell<Vec<u8>>,
    /// The buffer that is not being filled, retained for its allocation.
    spare: Cell<Vec<u8>>,
    /// Requests that send a payload from its own buffer, and the sender of `pending`.
    senders: Line,
    /// Requests that wait for space in `pending`.
    appenders: Line,
    has_failed: Cell<bool>,
    /// Wakes the first of the appenders, and the tasks waiting in [`Self::nearly_empty`].
    has_changed: WaitQueue,
}

/// The turn to send: exclusive until dropped.
pub(super) struct Turn<'a> {
    replies: &'a Replies,
    _place: Place<'a>,
}

impl AllPending {
    /// Returns the sum of no replies.
    pub(super) fn new(limit_bytes: usize) -> Rc<Self> {
        Rc::new(Self { bytes: Cell::new(0), limit_bytes })
    }
}

impl Replies {
    /// Returns the sending half of `channel`.
    pub(super) fn new(channel: Rc<Channel>, all: Rc<AllPending>) -> Self {
        Self {
            channel,
            all,
            pending: RefCell::default(),
            spare: Cell::default(),
            senders: Line::default(),
            appenders: Line::default(),
            has_failed: Cell::new(false),
            has_changed: WaitQueue::default(),
        }
    }

    /// Waits until a reply may be appended.
    pub(super) async fn room(&self) {
        if !self.has_room() {
            let _turn = self.appenders.turn().await;
            self.has_changed.wait_for(|| self.is_below_limit().then_some(())).await;
        }
    }

    /// Waits until few replies remain that the channel has not begun to send. For a reply that
    /// costs far more to produce than to request.
    pub(super) async fn nearly_empty(&self) {
        let are_few = || self.pending.borrow().len() < FEW_PENDING_BYTES || self.has_failed();
        self.has_changed.wait_for(|| are_few().then_some(())).await;
    }

    /// Returns whether [`Self::room`] would not wait.
    pub(super) fn has_room(&self) -> bool {
        self.appenders.is_empty() && self.is_below_limit()
    }

    fn is_below_limit(&self) -> bool {
        let are_many = self.all.bytes.get() >= self.all.limit_bytes;
        let limit = if are_many { FEW_PENDING_BYTES } else { PENDING_BYTES_MAX };
        self.pending.borrow().len() < limit || self.has_failed.get()
    }

    /// Appends bytes: complete replies, or complete chunks of one.
    pub(super) fn append(&self, reply: &[u8]) {
        self.append_with(|pending| pending.extend_from_slice(reply));
    }

    /// Lets `append` append complete replies or chunks.
    pub(super) fn append_with(&self, append: impl FnOnce(&mut Vec<u8>)) {
        if !self.has_failed.get() {
            let mut pending = self.pending.borrow_mut();
            let before = pending.len();
            append(&mut pending);
            self.all.bytes.update(|all| all + pending.len() - before);
        }
    }

    /// Returns whether every reply has been passed to the channel, or never can be.
    pub(super) fn is_empty(&self) -> bool {
        self.senders.is_empty() && (self.pending.borrow().is_empty() || self.has_failed.get())
    }

    /// Sends appended replies, forever.
    pub(super) async fn send_appended(&self) {
        loop {
            let has_work = || !self.pending.borrow().is_empty();
            let place = poll_fn(|_| match has_work().then(|| self.senders.turn_now()).flatten() {
                Some(place) => Poll::Ready(place),
                None => Poll::Pending,
            })
            .await;
            Turn { replies: self, _place: place }.send_pending().await;
        }
    }

    /// Waits for the turn to send, then sends everything appended before.
    pub(super) async fn turn(&self) -> Turn<'_> {
        let turn = Turn { replies: self, _place: self.senders.turn().await };
        turn.send_pending().await;
        turn
    }

    /// Returns whether a send failed, so that replies are dropped.
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed.get()
    }

    /// Ends the connection: nothing more is received or sent.
    pub(super) fn fail(&self) {
        self.has_failed.set(true);
        self.has_changed.wake_all();
        self.channel.cut();
    }
}

impl Turn<'_> {
    /// Sends `range` of `buffer` and returns the buffer.
    pub(super) async fn send(&self, mut buffer: Vec<u8>, mut range: Range<usize>) -> Vec<u8> {
        let Replies { channel, has_failed, .. } = self.replies;
        while !range.is_empty() && !has_failed.get() {
            let (returned, result) = channel.send(buffer, range.clone()).await;
            buffer = returned;
            match result {
                Ok(0) => self.replies.fail(),
                Ok(sent) => range.start += sent,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::debug!(%error, "cannot send replies");
                    self.replies.fail();
                }
            }
        }
        buffer
    }

    async fn send_pending(&self) {
        let replies = self.replies;
        if replies.pending.borrow().is_empty() {
            return;
        }
        let full = replies.pending.replace(replies.spare.take());
        replies.has_changed.wake_all();
        let length = full.len();
        let _sending = Sending { all: &replies.all, bytes: length };
        let mut sent = self.send(full, 0..length).await;
        sent.clear();
        // A client that pauses retains no large buffers.
        if sent.capacity() > KEPT_BYTES_MAX && replies.pending.borrow().is_empty() {
            replies.pending.take();
        } else {
            replies.spare.set(sent);
        }
    }
}

/// Counts bytes as unsent until dropped.
struct Sending<'a> {
    all: &'a AllPending,
    bytes: usize,
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        self.all.bytes.update(|all| all - self.bytes);
    }
}

impl Drop for Replies {
    fn drop(&mut self) {
        self.all.bytes.update(|all| all - self.pending.borrow().len());
    }
}

#[cfg(test)]
mod tests {
    //! Goal: unsent replies are limited, per connection and in total.
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    use pumice_drive::runtime::{Backend, Runtime};

    use super::*;

    #[test]
    fn unread_replies_are_bounded() {
        let runtime = Runtime::new(Backend::Auto).unwrap();
        const LIMIT_BYTES: usize = 32 << 20;
        let all = AllPending::new(LIMIT_BYTES);
        let replies = || {
            let (socket, _) = UnixStream::pair().unwrap();
            Replies::new(Channel::new(runtime.clone(), Arc::new(socket.into())), all.clone())
        };
        let fill = |replies: &Replies| {
            while replies.has_room() {
                replies.append(&[0; 4096]);
            }
            replies.pending.borrow().len()
        };
        let first = replies();
        assert_eq!(fill(&first), PENDING_BYTES_MAX);
        let others: Vec<_> = (0..100).map(|_| replies()).collect();
        let bytes: usize = others.iter().map(fill).sum();
        assert!(bytes < LIMIT_BYTES + 100 * FEW_PENDING_BYTES, "{bytes} bytes");
        let last = replies();
        assert_eq!(fill(&last), FEW_PENDING_BYTES);
        drop(others);
        assert!(last.has_room());
        drop((first, last));
        assert_eq!(all.bytes.get(), 0);
    }
}

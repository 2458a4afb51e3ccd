//! The sending half of a connection.
//!
//! Replies are appended to one buffer. The sender takes the whole buffer and sends it; replies
//! appended during that time are sent together by the next send. So the number of sends falls as
//! the load rises: one for each request at depth 1, one for a dozen at depth 32.
//!
//! Invariants: one send is in flight at a time, by the holder of the turn; bytes are sent in the
//! order in which they were appended, and a payload sent from its own buffer comes after everything
//! appended before its turn. After a failed send the channel is cut and replies are dropped.
//!
//! The sender registers no waker for new replies: it lives in the task of the connection, is polled
//! after everything that appends (see `connection`), and so checks again whenever there may be
//! work.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::task::Poll;

use super::channel::Channel;
use pumice_drive::base::wait::WaitQueue;

/// Replies that may accumulate before requests wait, in bytes: four times the largest reply that is
/// appended, and thousands of replies without data. A client that does not read its replies is
/// stopped by this limit.
const PENDING_BYTES_MAX: usize = 256 << 10;

/// The unsent replies of a channel.
pub(super) struct Replies {
    channel: Rc<Channel>,
    pending: RefCell<Vec<u8>>,
    /// The buffer that is not being filled, kept for its allocation.
    spare: Cell<Vec<u8>>,
    is_sending: Cell<bool>,
    has_failed: Cell<bool>,
    /// Wakes waiters for room in `pending`, and for the turn to send.
    changed: WaitQueue,
}

/// The turn to send: exclusive until dropped.
pub(super) struct Turn<'a>(&'a Replies);

impl Replies {
    /// Returns the sending half of `channel`.
    pub(super) fn new(channel: Rc<Channel>) -> Self {
        Self {
            channel,
            pending: RefCell::default(),
            spare: Cell::default(),
            is_sending: Cell::new(false),
            has_failed: Cell::new(false),
            changed: WaitQueue::default(),
        }
    }

    /// Waits until a reply may be appended.
    pub(super) async fn room(&self) {
        let has_room = || self.has_room().then_some(());
        if has_room().is_none() {
            self.changed.wait_for(has_room).await;
        }
    }

    /// Whether [`Self::room`] would not wait.
    pub(super) fn has_room(&self) -> bool {
        self.pending.borrow().len() < PENDING_BYTES_MAX || self.has_failed.get()
    }

    /// Appends bytes: whole replies, or whole chunks of one.
    pub(super) fn append(&self, reply: &[u8]) {
        self.append_with(|pending| pending.extend_from_slice(reply));
    }

    /// Lets `append` append whole replies or chunks.
    pub(super) fn append_with(&self, append: impl FnOnce(&mut Vec<u8>)) {
        if !self.has_failed.get() {
            append(&mut self.pending.borrow_mut());
        }
    }

    /// Whether every reply has been passed to the channel, or never can be.
    pub(super) fn is_empty(&self) -> bool {
        !self.is_sending.get() && (self.pending.borrow().is_empty() || self.has_failed.get())
    }

    /// Sends what is appended, forever.
    pub(super) async fn send_appended(&self) {
        loop {
            poll_fn(|_| {
                let must_wait = self.is_sending.get() || self.pending.borrow().is_empty();
                if must_wait { Poll::Pending } else { Poll::Ready(()) }
            })
            .await;
            let turn = self.turn_now();
            turn.send_pending().await;
        }
    }

    /// Waits for the turn to send, then sends everything appended before.
    pub(super) async fn turn(&self) -> Turn<'_> {
        let turn =
            self.changed.wait_for(|| (!self.is_sending.get()).then(|| self.turn_now())).await;
        turn.send_pending().await;
        turn
    }

    /// Whether a send failed, so that replies are dropped.
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed.get()
    }

    /// Ends the connection: nothing more is received or sent.
    pub(super) fn fail(&self) {
        self.has_failed.set(true);
        self.channel.cut();
    }

    fn turn_now(&self) -> Turn<'_> {
        assert!(!self.is_sending.replace(true), "two senders at once");
        Turn(self)
    }
}

impl Turn<'_> {
    /// Sends `range` of `buffer` and returns the buffer.
    pub(super) async fn send(&self, mut buffer: Vec<u8>, mut range: Range<usize>) -> Vec<u8> {
        let Replies { channel, has_failed, .. } = self.0;
        while !range.is_empty() && !has_failed.get() {
            let (returned, result) = channel.send(buffer, range.clone()).await;
            buffer = returned;
            match result {
                Ok(0) => self.0.fail(),
                Ok(sent) => range.start += sent,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::debug!(%error, "cannot send replies");
                    self.0.fail();
                }
            }
        }
        buffer
    }

    async fn send_pending(&self) {
        let replies = self.0;
        if replies.pending.borrow().is_empty() {
            return;
        }
        let full = replies.pending.replace(replies.spare.take());
        replies.changed.wake_all();
        let length = full.len();
        let mut sent = self.send(full, 0..length).await;
        sent.clear();
        replies.spare.set(sent);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.is_sending.set(false);
        self.0.changed.wake_all();
    }
}

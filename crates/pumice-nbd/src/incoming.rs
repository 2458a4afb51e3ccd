//! The receiving half of a connection: a channel and the bytes that came in and are not used yet.
//!
//! One receive asks for as much as the buffer holds, so that a client that keeps many requests
//! under way has a dozen of them delivered at once. Large payloads go past the buffer, directly to
//! where they belong. Knows no message: it hands out byte counts.

#![expect(
    clippy::indexing_slicing,
    reason = "`unread` always lies within the buffer, and callers ask for no more than they filled"
)]

use std::io;
use std::ops::Range;
use std::rc::Rc;

use super::channel::Channel;

/// Size of the buffer: fifteen 4 KiB writes with their headers, so that the cost of a receive is
/// spread thin. Small enough to stay in a core's cache until it is used; beyond that arbitrary.
pub(super) const BUFFER_BYTES: usize = 64 << 10;

/// A channel's unread bytes.
pub(super) struct Incoming {
    channel: Rc<Channel>,
    /// Always [`BUFFER_BYTES`] long, except while an operation has it.
    buffer: Vec<u8>,
    /// The part of the buffer that was received and not consumed.
    unread: Range<usize>,
}

impl Incoming {
    /// The receiving half of `channel`.
    pub(super) fn new(channel: Rc<Channel>) -> Self {
        Self { channel, buffer: vec![0; BUFFER_BYTES], unread: 0..0 }
    }

    /// The receiving half of `channel`, on which these bytes, at most [`BUFFER_BYTES`], have come
    /// already.
    pub(super) fn with_unread(channel: Rc<Channel>, unread: &[u8]) -> Self {
        let mut incoming = Self::new(channel);
        incoming.buffer[..unread.len()].copy_from_slice(unread);
        incoming.unread = 0..unread.len();
        incoming
    }

    /// The bytes received and not consumed.
    pub(super) fn unread(&self) -> &[u8] {
        &self.buffer[self.unread.clone()]
    }

    /// The first `N` unread bytes; receives until there are as many.
    ///
    /// # Errors
    /// See [`Self::fill`].
    pub(super) async fn peek<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        self.fill(N).await?;
        Ok(*self.unread().first_chunk().expect("fill left at least N bytes"))
    }

    /// Receives until at least `length` bytes, at most [`BUFFER_BYTES`], are unread.
    ///
    /// # Errors
    /// `UnexpectedEof` if the peer closes first, with the bytes so far left unread; what the
    /// socket says.
    pub(super) async fn fill(&mut self, length: usize) -> io::Result<()> {
        assert!(length <= BUFFER_BYTES, "a message longer than the receive buffer");
        while self.unread.len() < length {
            self.receive().await?;
        }
        Ok(())
    }

    /// Receives once, behind what is unread, of which there must be less than [`BUFFER_BYTES`]. An
    /// interruption is no error, and no progress.
    ///
    /// # Errors
    /// See [`Self::fill`].
    pub(super) async fn receive(&mut self) -> io::Result<()> {
        // The unused part moves to the front; it is a fragment of one request, because
        // everything before it was consumed without receiving again.
        if self.unread.start > 0 {
            self.buffer.copy_within(self.unread.clone(), 0);
            self.unread = 0..self.unread.len();
        }
        let buffer = std::mem::take(&mut self.buffer);
        let free = self.unread.end..BUFFER_BYTES;
        let (buffer, result) = self.channel.receive(buffer, free).await;
        self.buffer = buffer;
        self.unread.end += some_bytes(result)?;
        Ok(())
    }

    /// Forgets the first `length` unread bytes; there must be as many.
    pub(super) fn consume(&mut self, length: usize) {
        assert!(length <= self.unread.len());
        self.unread.start += length;
    }

    /// Takes the first `length` unread bytes; there must be as many.
    pub(super) fn take(&mut self, length: usize) -> &[u8] {
        let start = self.unread.start;
        self.consume(length);
        &self.buffer[start..start + length]
    }

    /// Receives and forgets `length` bytes.
    ///
    /// # Errors
    /// See [`Self::fill`].
    pub(super) async fn skip(&mut self, mut length: usize) -> io::Result<()> {
        while length > 0 {
            self.fill(1).await?;
            let part = length.min(self.unread.len());
            self.consume(part);
            length -= part;
        }
        Ok(())
    }

    /// Fills `range` of `target`, with what is unread first and then directly from the socket.
    /// Takes no byte beyond the range.
    ///
    /// # Errors
    /// See [`Self::fill`].
    pub(super) async fn read_into(
        &mut self,
        target: &mut Vec<u8>,
        range: Range<usize>,
    ) -> io::Result<()> {
        let buffered = range.len().min(self.unread.len());
        let mut start = range.start + buffered;
        target[range.start..start].copy_from_slice(&self.unread()[..buffered]);
        self.consume(buffered);
        while start < range.end {
            let buffer = std::mem::take(target);
            let (buffer, result) = self.channel.receive(buffer, start..range.end).await;
            *target = buffer;
            start += some_bytes(result)?;
        }
        Ok(())
    }
}

/// The length of a receive, with the end of the stream as an error and an interruption as no
/// progress.
fn some_bytes(result: io::Result<usize>) -> io::Result<usize> {
    match result {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
        other => other,
    }
}

//! The receiving half of a connection: a channel, and its received and not yet consumed bytes.
//!
//! One receive requests as many bytes as the buffer holds, so that a client with many requests in
//! flight has a dozen of them delivered together. Large payloads bypass the buffer and go directly
//! to their destination. This module does not interpret messages; it handles byte counts.

#![expect(
    clippy::indexing_slicing,
    reason = "`unread` always lies within the buffer, and callers ask for no more than they filled"
)]

use std::io;
use std::ops::Range;
use std::rc::Rc;

use super::channel::Channel;

/// Size of the buffer: fifteen 4 KiB writes with their headers, so that they share the cost of a
/// receive. Small enough to stay in the cache of a core until it is used; otherwise arbitrary.
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
    /// Returns the receiving half of `channel`.
    pub(super) fn new(channel: Rc<Channel>) -> Self {
        Self { channel, buffer: vec![0; BUFFER_BYTES], unread: 0..0 }
    }

    /// Returns the receiving half of `channel`, with these bytes, at most [`BUFFER_BYTES`], already
    /// received.
    pub(super) fn with_unread(channel: Rc<Channel>, unread: &[u8]) -> Self {
        let mut incoming = Self::new(channel);
        incoming.buffer[..unread.len()].copy_from_slice(unread);
        incoming.unread = 0..unread.len();
        incoming
    }

    /// Returns the bytes received and not consumed.
    pub(super) fn unread(&self) -> &[u8] {
        &self.buffer[self.unread.clone()]
    }

    /// Returns the first `N` unread bytes. Receives until there are `N`.
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
    /// `UnexpectedEof` if the peer closes first, in which case the bytes so far remain unread;
    /// errors of the socket.
    pub(super) async fn fill(&mut self, length: usize) -> io::Result<()> {
        assert!(length <= BUFFER_BYTES, "a message longer than the receive buffer");
        while self.unread.len() < length {
            self.receive().await?;
        }
        Ok(())
    }

    /// Receives once, after the unread bytes; there must be fewer than [`BUFFER_BYTES`] of them. An
    /// interruption is neither an error nor progress.
    ///
    /// # Errors
    /// See [`Self::fill`].
    pub(super) async fn receive(&mut self) -> io::Result<()> {
        // The unread bytes move to the start. They are a fragment of one request, because every
        // complete request was consumed without receiving again.
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

    /// Drops the first `length` unread bytes, which must exist.
    pub(super) fn consume(&mut self, length: usize) {
        assert!(length <= self.unread.len());
        self.unread.start += length;
    }

    /// Consumes and returns the first `length` unread bytes, which must exist.
    pub(super) fn take(&mut self, length: usize) -> &[u8] {
        let start = self.unread.start;
        self.consume(length);
        &self.buffer[start..start + length]
    }

    /// Receives and drops `length` bytes.
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

    /// Fills `range` of `target`, first with unread bytes and then directly from the socket.
    /// Consumes no byte beyond the range.
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

/// Returns the length of a receive. The end of the stream is an error; an interruption counts as no
/// progress.
fn some_bytes(result: io::Result<usize>) -> io::Result<usize> {
    match result {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
        other => other,
    }
}

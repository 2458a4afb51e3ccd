//! The socket of a front end: one message after another, each with its descriptors.
//!
//! Sending and receiving never block: bytes that have not arrived are awaited, and a reply for
//! which the socket has no space fails, because a front end has only a few messages in flight and
//! reads their replies.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendFlags, recvmsg,
    sendmsg,
};
use zerocopy::IntoBytes;

use crate::message::{DESCRIPTORS_MAX, Head, Malformed};
use pumice_drive::runtime::{Runtime, shutdown_socket};

/// Time limit for the rest of a message once it has begun. Another front end may be waiting.
const REST_NS: u64 = 5_000_000_000;

/// A connected socket.
#[derive(Clone)]
pub(crate) struct Channel {
    runtime: Runtime,
    socket: Arc<OwnedFd>,
}

/// A message as it arrived.
pub(crate) struct Received {
    pub(crate) head: Head,
    pub(crate) body: Vec<u8>,
    pub(crate) descriptors: Vec<OwnedFd>,
}

/// The reason why no message was received.
#[derive(Debug)]
pub(crate) enum End {
    /// The front end has closed the connection, between two messages.
    Closed,
    /// The channel was shut down.
    Shutdown,
    /// The bytes are not a message.
    Malformed(Malformed),
    /// The connection is broken.
    Broken(io::Error),
}

impl Channel {
    /// Takes over a connected socket.
    pub(crate) fn new(runtime: Runtime, socket: OwnedFd) -> Self {
        Self { runtime, socket: Arc::new(socket) }
    }

    /// Waits for a message.
    ///
    /// # Errors
    /// There are no more messages, or the rest of a message does not follow in time.
    pub(crate) async fn receive(&self) -> Result<Received, End> {
        let mut head = Head::default();
        let mut descriptors = Vec::new();
        let filled = self.receive_some(head.as_mut_bytes(), &mut descriptors).await?;
        if filled == 0 {
            return Err(End::Closed);
        }
        let rest = async {
            let missing = head.as_mut_bytes().get_mut(filled..).unwrap_or_default();
            self.fill(missing, &mut descriptors).await?;
            let mut body = vec![0; head.body_bytes().map_err(End::Malformed)?];
            self.fill(&mut body, &mut descriptors).await?;
            Ok(body)
        };
        let rest = self.runtime.timeout(REST_NS, rest).await;
        let body = rest.unwrap_or(Err(End::Malformed(Malformed("incomplete"))))?;
        Ok(Received { head, body, descriptors })
    }

    async fn fill(&self, bytes: &mut [u8], descriptors: &mut Vec<OwnedFd>) -> Result<(), End> {
        let mut filled = 0;
        while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match self.receive_some(rest, descriptors).await? {
                0 => return Err(End::Broken(io::ErrorKind::UnexpectedEof.into())),
                count => filled += count,
            }
        }
        Ok(())
    }

    /// Waits for at least one byte. Returns 0 if the stream has ended.
    async fn receive_some(
        &self,
        bytes: &mut [u8],
        descriptors: &mut Vec<OwnedFd>,
    ) -> Result<usize, End> {
        loop {
            let received = self.receive_now(bytes, descriptors);
            if descriptors.len() > DESCRIPTORS_MAX {
                return Err(End::Malformed(Malformed("with too many descriptors")));
            }
            match received {
                Ok(count) => return Ok(count),
                Err(Errno::AGAIN) => {
                    let readable = self.runtime.readable(&self.socket).await;
                    readable.map_err(|error| match error.kind() {
                        io::ErrorKind::Interrupted => End::Shutdown,
                        _ => End::Broken(error),
                    })?;
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(End::Broken(error.into())),
            }
        }
    }

    /// Receives the bytes that have arrived.
    fn receive_now(
        &self,
        bytes: &mut [u8],
        descriptors: &mut Vec<OwnedFd>,
    ) -> rustix::io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = recvmsg(&self.socket, &mut [IoSliceMut::new(bytes)], &mut control, flags)?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        Ok(received.bytes)
    }

    /// Sends a head and its body.
    ///
    /// # Errors
    /// The connection is broken, or the other side does not read.
    pub(crate) fn send(&self, head: &Head, body: &[u8]) -> io::Result<()> {
        let parts = [IoSlice::new(head.as_bytes()), IoSlice::new(body)];
        let bytes = size_of::<Head>() + body.len();
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let sent = sendmsg(&self.socket, &parts, &mut SendAncillaryBuffer::default(), flags)?;
        if sent == bytes { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    /// Ends a [`Channel::receive`] that waits. The next one is not affected.
    pub(crate) fn interrupt(&self) {
        self.runtime.interrupt(&self.socket);
    }

    /// Hangs up. Ends the present and every later [`Channel::receive`].
    pub(crate) fn shut_down(&self) {
        self.runtime.interrupt(&self.socket);
        shutdown_socket(&self.socket);
    }
}

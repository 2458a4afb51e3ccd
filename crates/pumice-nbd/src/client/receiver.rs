//! The receiving task of a connection: assigns each reply to its request.
//!
//! One receive requests as many bytes as the buffer of `incoming` holds, so that many short replies
//! arrive with one system call; payloads are copied from there. The rest of a long payload is
//! received directly into its buffer. When the buffer is used up, the callers run first, so that
//! their next requests are sent before the next receive.
//!
//! The reply to an abandoned request is read like any other.

#![expect(clippy::indexing_slicing, reason = "the range of a target lies within its buffer")]

use std::io;
use std::rc::Rc;

use super::super::incoming::Incoming;
use super::super::wire::{self, Errno, REPLY_BYTES};
use super::connection::{Connection, End};
use super::table::{Outcome, Target};
use pumice_drive::base::AlignedBuffer;

/// The rest of a payload is received directly if it has at least this length: a separate receive
/// costs about as much as copying 32 KiB.
const DIRECT_BYTES_MIN: usize = 32 << 10;

/// Receives replies until the connection ends. Afterwards, no request waits.
pub(super) async fn receive(connection: Rc<Connection>, mut incoming: Incoming) {
    let end = loop {
        if let Err(end) = receive_reply(&connection, &mut incoming).await {
            break end;
        }
        if incoming.unread().len() < REPLY_BYTES {
            connection.runtime.yield_now().await;
        }
    };
    connection.end(end);
    loop {
        let lost = connection.table.borrow_mut().lose_one();
        match lost {
            Some(waker) => waker.wake(),
            None => break,
        }
    }
    connection.changed.wake_all();
}

async fn receive_reply(connection: &Connection, incoming: &mut Incoming) -> Result<(), End> {
    let header = match incoming.peek::<REPLY_BYTES>().await {
        Ok(header) => header,
        Err(error) => return Err(end_of_stream(connection, incoming, &error)),
    };
    let Some((cookie, error)) = wire::decode_reply(&header) else {
        return Err(End::lost("the server sent an invalid reply header"));
    };
    incoming.consume(REPLY_BYTES);
    let answered = connection.table.borrow_mut().answered(cookie);
    let Some((key, mut target)) = answered else {
        let what = format!("the server sent a reply to an unknown request (cookie {cookie:#x})");
        return Err(End::lost(what));
    };
    let mut result = Ok(());
    if let Some(target) = &mut target
        && error == Errno::OK
    {
        result = receive_payload(connection, incoming, target).await;
    }
    let outcome = if result.is_ok() { Outcome::Answered(error) } else { Outcome::Lost };
    if let Err(error) = &result {
        // The reason must be set before the request is woken.
        connection.end(End::lost(format!("in the middle of a reply: {error}")));
    }
    let waker = connection.table.borrow_mut().complete(key, outcome, target);
    waker.wake();
    connection.changed.wake_all();
    result.map_err(|error| End::lost(error.to_string()))
}

/// Fills the rest of the target, first with unread bytes and then from the socket.
async fn receive_payload(
    connection: &Connection,
    incoming: &mut Incoming,
    target: &mut Target,
) -> io::Result<()> {
    let Target { buffer, range } = target;
    let mut missing = range.clone();
    while !missing.is_empty() {
        if incoming.unread().is_empty() && missing.len() >= DIRECT_BYTES_MIN {
            let out = std::mem::replace(buffer, AlignedBuffer::zeroed(0));
            let Connection { runtime, socket, .. } = connection;
            let (back, result) = runtime.receive_aligned(socket, out, missing.clone()).await;
            *buffer = back;
            match result {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => missing.start += result?,
            }
        } else {
            incoming.fill(1).await?;
            let length = incoming.unread().len().min(missing.len());
            let part = missing.start..missing.start + length;
            buffer[part].copy_from_slice(incoming.take(length));
            missing.start += length;
        }
    }
    Ok(())
}

fn end_of_stream(connection: &Connection, incoming: &Incoming, error: &io::Error) -> End {
    let is_clean = error.kind() == io::ErrorKind::UnexpectedEof && incoming.unread().is_empty();
    match error.kind() {
        // A server that closes with unread bytes of ours resets the connection.
        _ if connection.is_left() => {
            End { is_orderly: true, what: "the client has disconnected".into() }
        }
        _ if is_clean => End::lost("the server closed it"),
        io::ErrorKind::UnexpectedEof => End::lost("the server closed it in the middle of a reply"),
        _ => End::lost(format!("cannot receive: {error}")),
    }
}

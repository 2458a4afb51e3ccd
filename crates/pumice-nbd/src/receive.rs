//! The transmission phase: takes requests off the stream, refuses invalid ones, carries out a write
//! at once if possible, and hands the other requests to slots.
//!
//! A write is carried out at once if its payload is in the receive buffer and the disk can take it
//! without waiting: no copy, no allocation, no change of task. Every other request gets a slot with
//! a buffer of its own. Waiting here (for a slot, memory, or room for replies) stops this
//! connection's reading and nothing else: that is the back-pressure on its client.

#![expect(
    clippy::cast_possible_truncation,
    reason = "payloads are limited to 32 MiB, and refused ones to 64 MiB"
)]
#![expect(
    clippy::indexing_slicing,
    reason = "`fill` has received what is sliced, and a payload has room for its data"
)]

use std::io;

use super::PIECE_BYTES;
use super::chunks::HEAD_BYTES;
use super::execute::{Job, WriteStream};
use super::incoming::Incoming;
use super::request::{self, Command, PAYLOAD_BYTES_MAX, Refusal, Verb};
use super::session::{Session, Stage};
use super::slots::Slots;
use super::wire::{Errno, Request, command};
use crate::Disk;

/// Payloads up to this length go through the receive buffer: a fragment is moved to the start of
/// the buffer (at most 32 KiB, about 1 us) and completed there. Half of the buffer, so that every
/// receive still asks for at least the other half.
const PAYLOAD_BUFFERED_BYTES: usize = super::incoming::BUFFER_BYTES / 2;

/// Longest payload of a refused request that is skipped to stay in step; a longer one ends the
/// connection. Twice the allowed length, so that a client with an honest mistake gets its error
/// value.
const PAYLOAD_SKIPPED_BYTES_MAX: u64 = 2 * PAYLOAD_BYTES_MAX as u64;

/// Why no more requests are read.
#[derive(Debug)]
pub(super) enum End {
    /// The client sent DISC.
    Disconnect,
    /// The stream ended or failed.
    Stream(io::Error),
    /// The client violated the protocol.
    Violation(&'static str),
    /// The server hands the connection over; the unread bytes start with a request.
    Parked,
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        Self::Stream(error)
    }
}

/// Reads requests until the connection ends.
pub(super) async fn read_requests<D: Disk>(
    session: &Session<D>,
    incoming: &mut Incoming,
    slots: &Slots<Job>,
) -> End {
    loop {
        let read = read_request(session, incoming, slots).await;
        session.is_in_request.set(false);
        if let Err(end) = read {
            return end;
        }
    }
}

async fn read_request<D: Disk>(
    session: &Session<D>,
    incoming: &mut Incoming,
    slots: &Slots<Job>,
) -> Result<(), End> {
    let header_bytes = session.dialect.headers.request_bytes();
    let stage = &session.shared.stage;
    loop {
        // What a client that has left asked for is not carried out.
        if session.replies.has_failed() {
            return Err(End::Stream(io::ErrorKind::BrokenPipe.into()));
        }
        if stage.get() == Stage::Parking {
            return Err(End::Parked);
        }
        if incoming.unread().len() >= header_bytes {
            break;
        }
        incoming.receive().await?;
    }
    let request = session.dialect.decode(&incoming.unread()[..header_bytes]);
    let request = request.ok_or(End::Violation("wrong magic in a request"))?;
    incoming.consume(header_bytes);
    session.is_in_request.set(true);
    if request.command == command::DISC {
        return Err(End::Disconnect);
    }
    if !session.replies.has_room() {
        session.replies.room().await;
    }
    let checked = match stage.get() {
        Stage::ShuttingDown => Err((Errno::SHUTDOWN, "the server is shutting down")),
        _ => request::check(&request, session.export.shape(), session.dialect),
    };
    let command = match checked {
        Ok(command) => command,
        Err(refusal) => return refuse(session, incoming, &request, refusal).await,
    };
    match command.verb {
        Verb::Write if command.length > 0 => write(session, incoming, slots, command).await?,
        _ => {
            slots.room().await;
            slots.start(Job::Plain(command));
        }
    }
    Ok(())
}

async fn refuse<D: Disk>(
    session: &Session<D>,
    incoming: &mut Incoming,
    request: &Request,
    refusal: Refusal,
) -> Result<(), End> {
    let payload_bytes = session.dialect.payload_bytes(request);
    if payload_bytes > PAYLOAD_SKIPPED_BYTES_MAX {
        return Err(End::Violation("payload far above the size limit"));
    }
    incoming.skip(payload_bytes as usize).await?;
    session.refuse(request, refusal);
    Ok(())
}

async fn write<D: Disk>(
    session: &Session<D>,
    incoming: &mut Incoming,
    slots: &Slots<Job>,
    command: Command,
) -> Result<(), End> {
    let length = command.length as usize;
    if length > PAYLOAD_BUFFERED_BYTES && length > incoming.unread().len() {
        return write_long(session, incoming, slots, command).await;
    }
    incoming.fill(length).await?;
    let disk = &session.export.disk;
    if !command.fua
        && let Some(result) = disk.try_write(command.offset, &incoming.unread()[..length])
    {
        session.answer(&command, result);
        incoming.consume(length);
        return Ok(());
    }
    slots.room().await;
    let mut payload = session.share.acquire(length).await;
    payload.buffer[HEAD_BYTES..][..length].copy_from_slice(&incoming.unread()[..length]);
    incoming.consume(length);
    slots.start(Job::Write(command, payload));
    Ok(())
}

/// Receives a payload directly into its own buffers. A payload above one piece is written piece by
/// piece, while the next piece arrives.
async fn write_long<D: Disk>(
    session: &Session<D>,
    incoming: &mut Incoming,
    slots: &Slots<Job>,
    command: Command,
) -> Result<(), End> {
    let length = command.length as usize;
    // The only allocation of the data path: a counter for each write above 1 MiB.
    let stream = (length > PIECE_BYTES).then(|| WriteStream::new(command));
    let mut start = 0;
    while start < length {
        let piece = PIECE_BYTES.min(length - start);
        slots.room().await;
        let mut payload = session.share.acquire(piece).await;
        incoming.read_into(&mut payload.buffer, HEAD_BYTES..HEAD_BYTES + piece).await?;
        let offset = command.offset + start as u64;
        slots.start(match &stream {
            None => Job::Write(command, payload),
            Some(stream) => Job::Piece { stream: stream.clone(), offset, length: piece, payload },
        });
        start += piece;
    }
    Ok(())
}

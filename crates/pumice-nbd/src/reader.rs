//! The transmission phase as it arrives: takes requests off the stream, refuses the wrong ones,
//! carries out on the spot what can be, and hands the rest to slots.
//!
//! A write is carried out on the spot if its payload is in the receive buffer and the disk can take
//! it without waiting: no copy, no allocation, no change of task. Everything else gets a slot, and
//! with it its own buffer. Whatever waits here (a slot, memory, room for replies) stops this
//! connection's reading and nothing else: that is the back-pressure on its client.

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

/// Payloads up to this length go through the receive buffer: a fragment of one is moved to its
/// front (32 KiB, about 1 us, at most) and completed there. Half the buffer, so that every receive
/// still asks for a good deal.
const PAYLOAD_BUFFERED_BYTES: usize = super::incoming::BUFFER_BYTES / 2;

/// Longest payload of a refused request that is skipped to stay in step; beyond it the connection
/// is closed. Twice what is allowed, so that an honest mistake gets its error value.
const PAYLOAD_SKIPPED_BYTES_MAX: u64 = 2 * PAYLOAD_BYTES_MAX as u64;

/// Why no more requests are read.
#[derive(Debug)]
pub(super) enum End {
    /// The client said so.
    Disconnect,
    /// The stream ended or broke.
    Stream(io::Error),
    /// The client does not follow the protocol.
    Violation(&'static str),
    /// The server hands the connection over: what is unread begins with a request.
    Parked,
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        Self::Stream(error)
    }
}

/// Reads requests until there are no more.
pub(super) async fn read_requests<D: Disk>(
    session: &Session<D>,
    incoming: &mut Incoming,
    slots: &Slots<Job>,
) -> End {
    loop {
        if let Err(end) = read_request(session, incoming, slots).await {
            session.is_accepting.set(false);
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
        if stage.get() == Stage::Parking {
            return Err(End::Parked);
        }
        if incoming.unread().len() >= header_bytes {
            break;
        }
        incoming.receive().await?;
    }
    let request = session.dialect.decode(&incoming.unread()[..header_bytes]);
    let request = request.ok_or(End::Violation("a request without its magic"))?;
    incoming.consume(header_bytes);
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
    session.is_accepting.set(true);
    match command.verb {
        Verb::Write if command.length > 0 => write(session, incoming, slots, command).await?,
        _ => {
            slots.room().await;
            slots.start(Job::Plain(command));
        }
    }
    session.is_accepting.set(false);
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
        return Err(End::Violation("a payload far above the size limit"));
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

/// Receives a payload directly into buffers of its own. Above one piece, each piece is written as
/// soon as it is complete, while the next one arrives.
async fn write_long<D: Disk>(
    session: &Session<D>,
    incoming: &mut Incoming,
    slots: &Slots<Job>,
    command: Command,
) -> Result<(), End> {
    let length = command.length as usize;
    // The one allocation of the data path: a counter for each write above 1 MiB.
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

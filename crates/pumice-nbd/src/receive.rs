//! The transmission phase: takes requests from the stream, refuses invalid ones, executes a write
//! immediately if possible, and passes the other requests to slots.
//!
//! A write is executed immediately if its payload is in the receive buffer and the disk can accept
//! it without waiting: no copy, no allocation, no task switch. Every other request gets a slot with
//! a buffer of its own. Waiting here (for a slot, memory, or space for replies) stops only the
//! reading of this connection: that is the back-pressure on its client.

#![expect(
    clippy::cast_possible_truncation,
    reason = "payloads are limited to 32 MiB, and refused ones to 64 MiB"
)]
#![expect(
    clippy::indexing_slicing,
    reason = "`fill` has received the sliced bytes, and a payload has room for its data"
)]

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::PIECE_BYTES;
use super::chunks::HEAD_BYTES;
use super::disk::Durability;
use super::execute::{Job, WriteStream};
use super::export::Export;
use super::incoming::Incoming;
use super::request::{self, Command, PAYLOAD_BYTES_MAX, Refusal, Verb};
use super::session::{Session, Shared, Stage};
use super::slots::Slots;
use super::wire::{Errno, Request, command};
use pumice_drive::base::Clock;

/// Payloads up to this length go through the receive buffer: a fragment is moved to the start of
/// the buffer (at most 32 KiB, about 1 us) and completed there. Half of the buffer, so that every
/// receive still requests at least the other half.
const PAYLOAD_BUFFERED_BYTES: usize = super::incoming::BUFFER_BYTES / 2;

/// Longest payload of a refused request that is skipped to stay synchronized; a longer one ends the
/// connection. Twice the allowed length, so that a client with an honest mistake receives its error
/// value.
const PAYLOAD_SKIPPED_BYTES_MAX: u64 = 2 * PAYLOAD_BYTES_MAX as u64;

/// Longest wait for the limits of an export until the connection is checked again, in nanoseconds.
/// Arbitrary; each check is a system call.
const WAIT_NS: u64 = 250_000_000;

/// The reason why no more requests are read.
#[derive(Debug)]
pub(super) enum End {
    /// The client sent DISC.
    Disconnect,
    /// The stream ended or failed.
    Stream(io::Error),
    /// The client violated the protocol.
    Violation(&'static str),
    /// The server hands over the connection; the unread bytes start with a request.
    Parked,
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        Self::Stream(error)
    }
}

/// Reads requests until the connection ends.
pub(super) async fn read_requests(
    session: &Session,
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

async fn read_request(
    session: &Session,
    incoming: &mut Incoming,
    slots: &Slots<Job>,
) -> Result<(), End> {
    let header_bytes = session.dialect.headers.request_bytes();
    let stage = &session.shared.stage;
    loop {
        // Requests of a client that has left are not executed.
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
        session.caller.meter.note_active(session.shared.runtime.now_ns());
    }
    let request = session.dialect.decode(&incoming.unread()[..header_bytes]);
    let request = request.ok_or(End::Violation("wrong magic in a request"))?;
    if session.export.limits.are_set()
        && let Ok(command) = request::check(&request, session.export.shape(), &session.dialect)
    {
        await_turn(session, command.read_bytes() + command.written_bytes()).await?;
    }
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
        _ => request::check(&request, session.export.shape(), &session.dialect),
    };
    let command = match checked {
        Ok(command) => command,
        Err(refusal) => return refuse(session, incoming, &request, refusal).await,
    };
    session.caller.meter.count(command.read_bytes(), command.written_bytes());
    if !matches!(command.verb, Verb::BlockStatus { .. }) {
        session.shared.spare_time.note_other();
    }
    match command.verb {
        Verb::Write if command.length > 0 => write(session, incoming, slots, command).await?,
        _ => {
            slots.room().await;
            slots.start(Job::Plain(command));
        }
    }
    Ok(())
}

/// Waits until the limits of the export allow a request of `bytes` bytes to start. The connection
/// counts as idle meanwhile: its client is parked, and a server that shuts down does not wait for
/// it.
async fn await_turn(session: &Session, bytes: u64) -> Result<(), End> {
    let Shared { runtime, stage, changed, .. } = &*session.shared;
    let Export { limits, paid, .. } = &*session.export;
    loop {
        match stage.get() {
            Stage::Parking => return Err(End::Parked),
            Stage::ShuttingDown => return Ok(()),
            Stage::Open | Stage::Closed => {}
        }
        let Err(wait_ns) = paid.start(limits, bytes, runtime.now_ns()) else { return Ok(()) };
        // No receive is in progress here that would reveal a hang-up.
        if has_hung_up(&session.caller.socket) {
            return Err(End::Stream(io::ErrorKind::ConnectionReset.into()));
        }
        let is_ending =
            || matches!(stage.get(), Stage::Parking | Stage::ShuttingDown).then_some(());
        runtime.timeout(wait_ns.min(WAIT_NS), changed.wait_for(is_ending)).await;
    }
}

fn has_hung_up(socket: &OwnedFd) -> bool {
    let mut events = [PollFd::new(socket, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let ended = PollFlags::HUP | PollFlags::ERR;
    poll(&mut events, Some(&at_once)).is_ok() && events[0].revents().intersects(ended)
}

async fn refuse(
    session: &Session,
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

async fn write(
    session: &Session,
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
    if command.durability == Durability::Volatile
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

/// Receives a payload directly into its own buffers. A payload longer than one piece is written
/// piece by piece, while the next piece arrives.
async fn write_long(
    session: &Session,
    incoming: &mut Incoming,
    slots: &Slots<Job>,
    command: Command,
) -> Result<(), End> {
    let length = command.length as usize;
    // The only allocation of the data path, apart from futures of the disk.
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

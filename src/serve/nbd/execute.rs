//! What a slot does: carries out one request after another and appends their replies.
//!
//! Knows neither how a request arrived nor how its reply leaves. A read of at least
//! [`READ_DIRECT_BYTES`] is the exception: it takes the turn to send and leaves from its own
//! buffer.

use std::cell::Cell;
use std::rc::Rc;

use super::PIECE_BYTES;
use super::budget::{HEAD_BYTES, Payload};
use super::request::{Command, Verb};
use super::session::Session;
use super::slots::Seat;
use super::wire::{self, Errno};
use crate::base::{Error, Result};
use crate::serve::Disk;

/// Reads from this length on are sent from the buffer they were read into. Below, copying to the
/// send buffer costs less than a send of its own (64 KiB copy in about 5 us); the exact value is
/// arbitrary.
const READ_DIRECT_BYTES: usize = 64 << 10;

/// What a slot is given.
pub(super) enum Job {
    /// Anything without a payload.
    Plain(Command),
    /// A write with its data.
    Write(Command, Payload),
    /// One piece of a long write, at `offset`, `length` bytes.
    Piece { stream: Rc<WriteStream>, offset: u64, length: usize, payload: Payload },
}

/// A write that is longer than one piece.
pub(super) struct WriteStream {
    command: Command,
    pieces_left: Cell<usize>,
    /// The first failure of a piece.
    failure: Cell<Option<Error>>,
}

impl WriteStream {
    /// The stream of `command`.
    pub(super) fn new(command: Command) -> Rc<Self> {
        let pieces_left = Cell::new((command.length as usize).div_ceil(PIECE_BYTES));
        Rc::new(Self { command, pieces_left, failure: Cell::new(None) })
    }
}

/// Carries out the jobs of one slot.
pub(super) async fn execute<D: Disk>(session: Rc<Session<D>>, seat: Seat<Job>) {
    loop {
        match seat.job().await {
            Job::Plain(command) if command.verb == Verb::Read && command.length > 0 => {
                read(&session, command).await;
            }
            Job::Plain(command) => {
                let result = without_data(&*session.shared.disk, command).await;
                status(&session, command, result).await;
            }
            Job::Write(command, payload) => {
                let data = &payload.buffer[HEAD_BYTES..][..command.length as usize];
                let disk = &session.shared.disk;
                let result = disk.write(command.offset, data, command.fua).await;
                drop(payload);
                status(&session, command, result).await;
            }
            Job::Piece { stream, offset, length, payload } => {
                let data = &payload.buffer[HEAD_BYTES..][..length];
                let result = session.shared.disk.write(offset, data, false).await;
                drop(payload);
                end_piece(&session, &stream, result).await;
            }
        }
        seat.release();
    }
}

async fn status<D: Disk>(session: &Session<D>, command: Command, result: Result<()>) {
    let error = session.conclude(command.verb, u64::from(command.length), result);
    session.replies.room().await;
    session.replies.append_status(command.cookie, error);
}

/// A request whose reply is a status, and whose request was only a header.
async fn without_data<D: Disk>(disk: &D, command: Command) -> Result<()> {
    let Command { verb, fua, offset, .. } = command;
    let length = u64::from(command.length);
    match verb {
        Verb::Flush => disk.flush().await,
        // FUA promises durability for the changes acknowledged before, even when there is nothing
        // to change.
        _ if length == 0 => match fua && verb.changes() {
            true => disk.flush().await,
            false => Ok(()),
        },
        Verb::Trim => disk.trim(offset, length, fua).await,
        Verb::WriteZeroes { keep_allocated } => {
            disk.write_zeroes(offset, length, keep_allocated, fua).await
        }
        Verb::Cache => disk.prefetch(offset, length).await,
        Verb::Read | Verb::Write => unreachable!("a read or write with data is another job"),
    }
}

/// The last piece to end replies for the whole write. FUA costs one flush, not one for each piece.
async fn end_piece<D: Disk>(session: &Session<D>, stream: &WriteStream, result: Result<()>) {
    if let Err(error) = result {
        let first = stream.failure.take().unwrap_or(error);
        stream.failure.set(Some(first));
    }
    stream.pieces_left.update(|pieces| pieces - 1);
    if stream.pieces_left.get() > 0 {
        return;
    }
    let result = match stream.failure.take() {
        Some(error) => Err(error),
        None if stream.command.fua => session.shared.disk.flush().await,
        None => Ok(()),
    };
    status(session, stream.command, result).await;
}

async fn read<D: Disk>(session: &Session<D>, command: Command) {
    let length = command.length as usize;
    if length >= READ_DIRECT_BYTES {
        return read_direct(session, command).await;
    }
    let mut payload = session.share.acquire(length).await;
    let reply = &mut payload.buffer[..HEAD_BYTES + length];
    let result = session.shared.disk.read(command.offset, &mut reply[HEAD_BYTES..]).await;
    if result.is_err() {
        return status(session, command, result).await;
    }
    session.conclude(command.verb, length as u64, result);
    reply[..HEAD_BYTES].copy_from_slice(&wire::encode_reply(command.cookie, Errno::OK));
    session.replies.room().await;
    session.replies.append(reply);
}

/// A long read, sent from its own buffer: whole if the budget has room for that, else piece by
/// piece. A reply that has begun cannot become an error: the connection then ends, as the protocol
/// demands. That is why the whole is tried first.
async fn read_direct<D: Disk>(session: &Session<D>, command: Command) {
    let length = command.length as usize;
    let (mut payload, piece) = match session.share.acquire_now(length) {
        Some(payload) => (payload, length),
        None => {
            let piece = length.min(PIECE_BYTES);
            (session.share.acquire(piece).await, piece)
        }
    };
    let disk = &session.shared.disk;
    let first = &mut payload.buffer[HEAD_BYTES..][..piece];
    let mut result = disk.read(command.offset, first).await;
    if result.is_err() {
        return status(session, command, result).await;
    }
    let header = wire::encode_reply(command.cookie, Errno::OK);
    payload.buffer[..HEAD_BYTES].copy_from_slice(&header);
    let turn = session.replies.turn().await;
    let buffer = std::mem::take(&mut payload.buffer);
    payload.buffer = turn.send(buffer, 0..HEAD_BYTES + piece).await;
    let mut done = piece;
    while done < length && result.is_ok() {
        let part = piece.min(length - done);
        let next = &mut payload.buffer[HEAD_BYTES..][..part];
        result = disk.read(command.offset + done as u64, next).await;
        if result.is_ok() {
            let buffer = std::mem::take(&mut payload.buffer);
            payload.buffer = turn.send(buffer, HEAD_BYTES..HEAD_BYTES + part).await;
            done += part;
        }
    }
    if session.conclude(command.verb, length as u64, result) != Errno::OK {
        session.replies.fail();
    }
}

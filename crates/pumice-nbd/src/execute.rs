//! The work of a slot: executes one request after another and appends the replies.
//!
//! This module does not know how a request arrived or how its reply is sent.

#![expect(clippy::cast_possible_truncation, reason = "`request::check` limits writes to 32 MiB")]
#![expect(clippy::indexing_slicing, reason = "a payload has room for the data it was acquired for")]

use std::cell::Cell;
use std::rc::Rc;

use super::PIECE_BYTES;
use super::block_status::block_status;
use super::budget::Payload;
use super::chunks::HEAD_BYTES;
use super::disk::Durability;
use super::read_reply::read;
use super::request::{Command, Verb};
use super::session::Session;
use super::slots::SlotInbox;
use crate::AnyDisk;
use pumice_drive::base::{Error, Result};

/// A job of a slot.
pub(super) enum Job {
    /// A request without a payload.
    Plain(Command),
    /// A write with its data.
    Write(Command, Payload),
    /// One piece of a long write: `length` bytes at `offset`.
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
    /// Returns the stream of `command`.
    pub(super) fn new(command: Command) -> Rc<Self> {
        let pieces_left = Cell::new((command.length as usize).div_ceil(PIECE_BYTES));
        Rc::new(Self { command, pieces_left, failure: Cell::new(None) })
    }
}

pub(super) async fn execute(session: Rc<Session>, inbox: SlotInbox<Job>) {
    loop {
        match inbox.job().await {
            Job::Plain(command) => match command.verb {
                Verb::Read { .. } if command.length > 0 => read(&session, command).await,
                Verb::BlockStatus { is_one } => block_status(&session, command, is_one).await,
                _ => {
                    let result = without_data(&*session.export.disk, command).await;
                    answer(&session, command, result).await;
                }
            },
            Job::Write(command, payload) => {
                let data = &payload.buffer[HEAD_BYTES..][..command.length as usize];
                let disk = &session.export.disk;
                let result = disk.write(command.offset, data, command.durability).await;
                drop(payload);
                answer(&session, command, result).await;
            }
            Job::Piece { stream, offset, length, payload } => {
                let data = &payload.buffer[HEAD_BYTES..][..length];
                let result = session.export.disk.write(offset, data, Durability::Volatile).await;
                drop(payload);
                end_piece(&session, &stream, result).await;
            }
        }
        inbox.release();
    }
}

async fn answer(session: &Session, command: Command, result: Result<()>) {
    session.replies.room().await;
    session.answer(&command, result);
}

/// Executes a request that has data neither in the request nor in the reply.
async fn without_data(disk: &dyn AnyDisk, command: Command) -> Result<()> {
    let Command { verb, durability, offset, length, .. } = command;
    match verb {
        Verb::Flush => disk.flush().await,
        // FUA promises durability of earlier acknowledged changes, even if this request changes
        // nothing.
        _ if length == 0 && durability == Durability::Durable && verb.changes() => {
            disk.flush().await
        }
        _ if length == 0 => Ok(()),
        Verb::Trim => disk.trim(offset, length, durability).await,
        Verb::WriteZeroes { allocation } => {
            disk.write_zeroes(offset, length, allocation, durability).await
        }
        Verb::Cache => disk.prefetch(offset, length).await,
        Verb::Read { .. } | Verb::Write | Verb::BlockStatus { .. } => {
            unreachable!("a request with data in it or in its reply is another job")
        }
    }
}

/// Ends one piece of a long write. The last piece sends the reply for the entire write. FUA costs
/// one flush, not one for each piece.
async fn end_piece(session: &Session, stream: &WriteStream, result: Result<()>) {
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
        None => match stream.command.durability {
            Durability::Volatile => Ok(()),
            Durability::Durable => session.export.disk.flush().await,
        },
    };
    answer(session, stream.command, result).await;
}

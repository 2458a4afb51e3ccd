//! Replies to READ, in the negotiated form.
//!
//! Short reads are copied into the buffer of replies. From [`READ_DIRECT_BYTES`] on, data is sent
//! from the buffer into which it was read. If replies consist of chunks, ranges of zeroes are sent
//! as holes without data, and a failure is reported with its offset. If a chunk that must be
//! complete has begun, the rest of it is then zeroes. A simple reply cannot become an error once it
//! has begun: the connection ends, as the protocol requires. The server therefore reads as much as
//! possible before it starts such a reply.

#![expect(clippy::cast_possible_truncation, reason = "`request::check` limits reads to 32 MiB")]
#![expect(
    clippy::indexing_slicing,
    reason = "a payload has room for a head and for the data it was acquired for"
)]

use std::rc::Rc;

use super::PIECE_BYTES;
use super::budget::Payload;
use super::chunks::{HEAD_BYTES, Headers};
use super::request::{Command, Verb};
use super::session::Session;
use crate::AnyDisk;
use crate::disk::{Content, Extent};
use pumice_drive::base::Result;

/// Reads of at least this length are sent from the buffer into which they were read. Below, copying
/// to the send buffer costs less than a separate send (copying 64 KiB takes about 5 us); the exact
/// value is arbitrary.
const READ_DIRECT_BYTES: usize = 64 << 10;

/// Shortest run of zeroes that is sent as a separate hole: it also ends the chunk before it, and
/// each chunk is a send. Arbitrary within a factor of four.
const HOLE_BYTES_MIN: u64 = 32 << 10;

/// Maximum number of parts of a read; the rest is then read as data.
const PARTS_MAX: usize = 64;

/// A part of a read: zeroes, or data to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    is_zero: bool,
    offset: u64,
    length: u64,
}

/// Replies to a read of at least one byte.
pub(super) async fn read(session: &Session, command: Command) {
    if session.replies.has_failed() {
        return;
    }
    let length = command.length as usize;
    if length < READ_DIRECT_BYTES {
        return read_short(session, command).await;
    }
    // If the disk changes by itself, all parts represent the same moment.
    let pinned = session.export.disk.pinned();
    let is_whole = pinned.is_some()
        || session.dialect.headers == Headers::Simple
        || matches!(command.verb, Verb::Read { is_whole: true });
    let result = if is_whole {
        read_whole(session, command, pinned).await
    } else {
        read_parts(session, command).await
    };
    session.log_failure(&command, &result);
}

async fn read_short(session: &Session, command: Command) {
    let length = command.length as usize;
    let mut payload = session.share.acquire(length).await;
    if session.replies.has_failed() {
        return;
    }
    let reply = &mut payload.buffer[..HEAD_BYTES + length];
    let result = session.export.disk.read(command.offset, &mut reply[HEAD_BYTES..]).await;
    session.replies.room().await;
    if result.is_err() {
        return session.answer(&command, result);
    }
    let start = write_head(session, &command, reply, (command.offset, length), true);
    session.replies.append(&reply[start..]);
    session.log_failure(&command, &result);
}

/// Sends one header and all data after it. Reads everything in one step if the budget has space for
/// it, otherwise piece by piece.
async fn read_whole(
    session: &Session,
    command: Command,
    mut pinned: Option<Rc<dyn AnyDisk>>,
) -> Result<()> {
    let length = command.length as usize;
    let mut payload = acquire(session, length).await;
    // The client may have left during the wait for the buffer.
    if session.replies.has_failed() {
        return Ok(());
    }
    let piece = length.min(payload.buffer.len() - HEAD_BYTES);
    let first = &mut payload.buffer[HEAD_BYTES..][..piece];
    let mut result = read_first(session, &mut pinned, command.offset, first).await;
    let disk = pinned.as_ref().unwrap_or(&session.export.disk);
    if let Err(error) = &result {
        session.replies.room().await;
        session.append_failure(&command, error, None);
        return result;
    }
    // A chunk that may still fail is not the last one of its reply.
    let in_one = piece == length;
    let data = (command.offset, length);
    let start = write_head(session, &command, &mut payload.buffer, data, in_one);
    let turn = session.replies.turn().await;
    let buffer = std::mem::take(&mut payload.buffer);
    payload.buffer = turn.send(buffer, start..HEAD_BYTES + piece).await;
    let mut done = piece;
    let mut failed_at = None;
    while done < length && !session.replies.has_failed() {
        let at = command.offset + done as u64;
        let part = piece.min(length - done);
        let next = &mut payload.buffer[HEAD_BYTES..][..part];
        if result.is_ok() {
            result = disk.read(at, next).await;
        }
        if result.is_err() {
            if session.dialect.headers == Headers::Simple {
                session.replies.fail();
                break;
            }
            failed_at.get_or_insert(at);
            next.fill(0);
        }
        let buffer = std::mem::take(&mut payload.buffer);
        payload.buffer = turn.send(buffer, HEAD_BYTES..HEAD_BYTES + part).await;
        done += part;
    }
    drop(turn);
    if !in_one && session.dialect.headers != Headers::Simple {
        session.replies.room().await;
        match &result {
            Ok(()) => {
                let to = session.reply_to(&command);
                session.replies.append_with(|out| to.append_done(out));
            }
            Err(error) => session.append_failure(&command, error, failed_at),
        }
    }
    result
}

/// Reads the first part of a read, before anything is sent. Pins the disk again if the pinned one
/// can no longer be read.
async fn read_first(
    session: &Session,
    pinned: &mut Option<Rc<dyn AnyDisk>>,
    offset: u64,
    out: &mut [u8],
) -> Result<()> {
    let disk = &*session.export.disk;
    loop {
        let Some(current) = &*pinned else { return disk.read(offset, out).await };
        match current.read(offset, out).await {
            Err(_) if current.moves_on().await => *pinned = disk.pinned(),
            result => return result,
        }
    }
}

/// Sends a chunk for each run of zeroes and for each piece of data. Other replies may be sent in
/// between.
async fn read_parts(session: &Session, command: Command) -> Result<()> {
    let end = command.offset + command.length;
    for part in parts(&*session.export.disk, &command).await {
        if part.is_zero {
            session.replies.room().await;
            let is_last = part.offset + part.length == end;
            let to = session.reply_to(&command);
            // No longer than the read.
            let length = part.length as u32;
            session.replies.append_with(|out| to.append_hole(out, part.offset, length, is_last));
            continue;
        }
        let (mut at, part_end) = (part.offset, part.offset + part.length);
        while at < part_end && !session.replies.has_failed() {
            let mut payload = acquire(session, (part_end - at) as usize).await;
            if session.replies.has_failed() {
                return Ok(());
            }
            let piece = (payload.buffer.len() - HEAD_BYTES).min((part_end - at) as usize);
            let target = &mut payload.buffer[HEAD_BYTES..][..piece];
            if let Err(error) = session.export.disk.read(at, target).await {
                session.replies.room().await;
                session.append_failure(&command, &error, Some(at));
                return Err(error);
            }
            let is_last = at + piece as u64 == end;
            let start = write_head(session, &command, &mut payload.buffer, (at, piece), is_last);
            let turn = session.replies.turn().await;
            let buffer = std::mem::take(&mut payload.buffer);
            payload.buffer = turn.send(buffer, start..HEAD_BYTES + piece).await;
            at += piece as u64;
        }
    }
    Ok(())
}

/// Returns a buffer for `length` bytes if the budget has one now, otherwise waits for a buffer for
/// one piece.
async fn acquire(session: &Session, length: usize) -> Payload {
    match session.share.acquire_now(length) {
        Some(payload) => payload,
        None => session.share.acquire(length.min(PIECE_BYTES)).await,
    }
}

/// Writes the header of a part of the reply, an offset and a length in bytes, before the data in
/// `buffer`, and returns its start.
fn write_head(
    session: &Session,
    command: &Command,
    buffer: &mut [u8],
    (offset, length): (u64, usize),
    is_last: bool,
) -> usize {
    let head = buffer.first_chunk_mut().expect("every payload has room for a head");
    session.reply_to(command).write_data_head(head, offset, length, is_last)
}

/// Divides a read into ranges of zeroes and ranges to read.
async fn parts(disk: &dyn AnyDisk, command: &Command) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut visit = |extent| {
        extend(&mut parts, command, extent);
        parts.len() < PARTS_MAX
    };
    if let Err(error) = disk.extents(command.offset, command.length, &mut visit).await {
        // The read itself then fails at the same offset, and its error is reported.
        tracing::debug!(error = %error.chain(), "cannot list the extents of a read");
    }
    merge(&parts, command)
}

fn extend(parts: &mut Vec<Part>, command: &Command, extent: Extent) {
    let is_zero = extent.content != Content::Data;
    match parts.last_mut() {
        Some(last) if last.is_zero == is_zero => last.length += extent.bytes,
        last => {
            let offset = last.map_or(command.offset, |last| last.offset + last.length);
            parts.push(Part { is_zero, offset, length: extent.bytes });
        }
    }
}

/// Converts short runs of zeroes, and ranges without a reported extent, into data.
fn merge(parts: &[Part], command: &Command) -> Vec<Part> {
    let mut merged: Vec<Part> = Vec::with_capacity(parts.len() + 1);
    let covered_end = parts.last().map_or(command.offset, |last| last.offset + last.length);
    let length = command.offset + command.length - covered_end;
    let rest = Part { is_zero: false, offset: covered_end, length };
    for &part in parts.iter().chain([&rest]).filter(|part| part.length > 0) {
        let is_zero = part.is_zero && part.length >= HOLE_BYTES_MIN;
        match merged.last_mut() {
            Some(last) if !last.is_zero && !is_zero => last.length += part.length,
            _ => merged.push(Part { is_zero, ..part }),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    //! Goal: the parts of a read cover it exactly once, and only long zeroes are holes.
    use super::*;
    use crate::Durability;

    fn cut(extents: &[(u64, Content)], length: u64) -> Vec<(bool, u64, u64)> {
        let verb = Verb::Read { is_whole: false };
        let durability = Durability::Volatile;
        let command = Command { verb, durability, cookie: 0, offset: 512, length };
        let mut parts = Vec::new();
        for &(bytes, content) in extents {
            extend(&mut parts, &command, Extent { bytes, content, stored_bytes: 0 });
        }
        let merged = merge(&parts, &command);
        merged.iter().map(|part| (part.is_zero, part.offset, part.length)).collect()
    }

    #[test]
    fn only_long_zeroes_are_holes() {
        use Content::{Data, Hole, Zeroes};
        let long = HOLE_BYTES_MIN;
        assert_eq!(cut(&[(9, Data), (1, Hole), (7, Data)], 17), [(false, 512, 17)]);
        let expected = [(true, 512, long), (false, 512 + long, 9)];
        assert_eq!(cut(&[(long - 1, Hole), (1, Zeroes), (9, Data)], long + 9), expected);
        let expected = [(false, 512, 2), (true, 514, long), (false, 514 + long, 1)];
        assert_eq!(
            cut(&[(2, Data), (long, Zeroes), (1, Hole), (0, Data)][..2], long + 3),
            expected
        );
        assert_eq!(cut(&[], 5), [(false, 512, 5)]);
        assert_eq!(cut(&[(long, Hole)], long), [(true, 512, long)]);
    }
}

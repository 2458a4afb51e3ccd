//! Replies to BLOCK_STATUS: the status of a range in each negotiated metadata context.
//!
//! Replies are computed in the idle time of the thread, and only for a client that reads them.

use super::chunks::Descriptor;
use super::contexts::{Changes, Context, STATE_CHANGED, STATE_HOLE, STATE_ZERO, STORED_WHOLE};
use super::request::{Command, Dialect};
use super::session::{Session, Shared};
use crate::disk::{Change, Content, Extent};
use pumice_drive::base::Result;

/// Maximum number of extents per context in one reply, so that a reply has at most 32 KiB. Clients
/// continue from the end of the last extent.
const EXTENTS_MAX: usize = 2048;

/// Maximum number of extents of the disk examined for one request: a few milliseconds.
const VISITS_MAX: usize = 1 << 16;

/// Number of extents examined in one piece: about a tenth of a millisecond. Other requests are
/// served between pieces.
const PIECE_VISITS: usize = 1 << 10;

/// The extents that one context reports.
struct Answer {
    id: u32,
    descriptors: Vec<Descriptor>,
    descriptors_max: usize,
}

impl Answer {
    fn new(id: u32, descriptors_max: usize) -> Self {
        Self { id, descriptors: Vec::new(), descriptors_max }
    }

    /// Adds the next extent. Returns false if there is no space for it; no extent after it is added
    /// either.
    fn take(&mut self, bytes: u64, status: u64) -> bool {
        let is_full = self.descriptors.len() == self.descriptors_max;
        match self.descriptors.last_mut() {
            Some((before, last)) if *last == status => *before += bytes,
            _ if is_full => {
                // Later extents must not be joined to the last one.
                self.descriptors_max = 0;
                return false;
            }
            _ => self.descriptors.push((bytes, status)),
        }
        true
    }

    fn wants_more(&self) -> bool {
        self.descriptors_max > 0
    }
}

/// Returns the status of an extent in a context.
fn status(context: Context, extent: Extent) -> u64 {
    match (context, extent.content) {
        (Context::Allocation, Content::Hole) => STATE_HOLE | STATE_ZERO,
        (Context::Allocation, Content::Zeroes) => STATE_ZERO,
        (Context::Allocation, Content::Data) => 0,
        // Rounded to the nearest value; a frame is too short for an overflow.
        (Context::Stored, _) => {
            (extent.stored_bytes * STORED_WHOLE + extent.bytes / 2) / extent.bytes
        }
    }
}

/// Replies to a BLOCK_STATUS of at least one byte.
pub(super) async fn block_status(session: &Session, command: Command, is_one: bool) {
    let descriptors_max = if is_one { 1 } else { EXTENTS_MAX };
    let Dialect { contexts, changes, .. } = &session.dialect;
    let new = |context: Context| (context, Answer::new(context.id(), descriptors_max));
    let mut maps: Vec<_> = contexts.iter().map(new).collect();
    let new = |position| Answer::new(Changes::id(position), descriptors_max);
    let mut others: Vec<_> = (0..changes.len()).map(new).collect();
    // All contexts share the visits of one request.
    let visits_max = VISITS_MAX / (changes.len() + 1);
    let _turn = session.statuses.turn().await;
    session.replies.nearly_empty().await;
    if session.replies.has_failed() {
        return;
    }
    let mut result = ask(session, &command, &mut maps, visits_max).await;
    for (changes, answer) in changes.iter().zip(&mut others) {
        if result.is_ok() {
            result = ask_changes(session, &command, &changes.state, answer, visits_max).await;
        }
    }
    if result.is_err() {
        return session.answer(&command, result);
    }
    let to = session.reply_to(&command);
    let answers = || maps.iter().map(|(_, answer)| answer).chain(&others);
    let count = answers().count();
    for (index, answer) in answers().enumerate() {
        let is_last = index + 1 == count;
        let (id, found) = (answer.id, &answer.descriptors);
        session.replies.append_with(|out| to.append_status(out, id, found, is_last));
    }
    session.log_failure(&command, &result);
}

/// Fills the answers about the map, piece by piece, until none needs more extents.
async fn ask(
    session: &Session,
    command: &Command,
    answers: &mut [(Context, Answer)],
    visits_max: usize,
) -> Result<()> {
    let Shared { runtime, spare_time, .. } = &*session.shared;
    let end = command.offset + command.length;
    let (mut at, mut visits, mut is_wanted) = (command.offset, 0, !answers.is_empty());
    // If the disk changes by itself, the next piece may represent another moment.
    let is_one_piece = session.export.disk.pinned().is_some();
    while at < end && is_wanted && visits < visits_max && !session.replies.has_failed() {
        // A disk that reports no extents ends the answer.
        is_wanted = false;
        let from = at;
        let mut visit = |extent: Extent| {
            visits += 1;
            is_wanted = false;
            for (context, answer) in answers.iter_mut().filter(|(_, answer)| answer.wants_more()) {
                is_wanted |= answer.take(extent.bytes, status(*context, extent));
            }
            at += extent.bytes;
            is_wanted && visits % PIECE_VISITS != 0
        };
        let piece = session.export.disk.extents(from, end - from, &mut visit);
        spare_time.piece(runtime, piece).await?;
        is_wanted &= !is_one_piece;
    }
    Ok(())
}

/// Fills the answer about changes since an earlier state, piece by piece.
async fn ask_changes(
    session: &Session,
    command: &Command,
    since: &str,
    answer: &mut Answer,
    visits_max: usize,
) -> Result<()> {
    let Shared { runtime, spare_time, .. } = &*session.shared;
    let end = command.offset + command.length;
    let (mut at, mut visits, mut is_wanted) = (command.offset, 0, true);
    while at < end && is_wanted && visits < visits_max && !session.replies.has_failed() {
        is_wanted = false;
        let from = at;
        let mut visit = |change: Change| {
            visits += 1;
            let status = if change.is_changed { STATE_CHANGED } else { 0 };
            is_wanted = answer.take(change.bytes, status);
            at += change.bytes;
            is_wanted && visits % PIECE_VISITS != 0
        };
        let piece = session.export.disk.changes(since, from, end - from, &mut visit);
        spare_time.piece(runtime, piece).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    //! Goal: adjacent extents of equal status are merged, and a full answer ends exactly at its
    //! limit.
    use super::*;

    fn answer(context: Context, descriptors_max: usize, extents: &[Extent]) -> Answer {
        let mut answer = Answer::new(context.id(), descriptors_max);
        for &extent in extents {
            if answer.wants_more() {
                answer.take(extent.bytes, status(context, extent));
            }
        }
        answer
    }

    const EXTENTS: [Extent; 6] = [
        Extent { bytes: 10, content: Content::Data, stored_bytes: 5 },
        Extent { bytes: 20, content: Content::Data, stored_bytes: 5 },
        Extent { bytes: 30, content: Content::Data, stored_bytes: 0 },
        Extent { bytes: 40, content: Content::Zeroes, stored_bytes: 0 },
        Extent { bytes: 50, content: Content::Hole, stored_bytes: 0 },
        Extent { bytes: 60, content: Content::Data, stored_bytes: 61 },
    ];

    #[test]
    fn neighbours_that_say_the_same_are_joined() {
        let allocation = answer(Context::Allocation, 9, &EXTENTS);
        assert_eq!(allocation.descriptors, [(60, 0), (40, 2), (50, 3), (60, 0)]);
        let stored = answer(Context::Stored, 9, &EXTENTS);
        let expected = [(10, 32768), (20, 16384), (120, 0), (60, 66628)];
        assert_eq!(stored.descriptors, expected);
    }

    #[test]
    fn a_full_answer_ends_before_the_first_extent_that_does_not_fit() {
        let allocation = answer(Context::Allocation, 1, &EXTENTS);
        assert_eq!(allocation.descriptors, [(60, 0)]);
        assert!(!allocation.wants_more());
        let stored = answer(Context::Stored, 3, &EXTENTS);
        assert_eq!(stored.descriptors, [(10, 32768), (20, 16384), (120, 0)]);
        assert!(answer(Context::Stored, 4, &EXTENTS).wants_more());
    }
}

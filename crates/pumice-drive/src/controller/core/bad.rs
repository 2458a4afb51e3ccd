//! Segments in which an append failed, and which are no longer written.
//!
//! ```text
//! (or, at the tail of the log, written bytes cannot be read)
//! append fails -> poisoned -> the superblock names the segment (the shell writes it)
//! next opening -> streams whose tail is in it make a detour into a free segment; the superblock
//!                 names the detours until a checkpoint has their new tails
//! empty        -> stays free, and is never allocated
//! ```
//!
//! A bad segment is never tried again, like a block that a flash drive has retired. After a failed
//! append the drive is unusable until it is reopened, so each attempt would cost the host an
//! outage, and a place that became writable again is the likeliest to fail next. Every drive has a
//! spare segment ([`super::SEGMENTS_MIN`]). An operator who knows that the cause is gone clears the
//! mark by resizing to a capacity without the segment, and back.
//!
//! The stream cannot name its next segment itself, as it does in a full segment: it would have to
//! write the record to the bad segment.

use super::Core;
use crate::base::{Error, ErrorKind, SegmentId};
use crate::format::{BAD_SEGMENTS_MAX, DETOURS_MAX, Detour, Stream, Superblock};

impl Core {
    /// Records that an append failed in a segment: the log ends permanently.
    pub(crate) fn append_failed(&mut self, segment: SegmentId, error: &Error) {
        // An error of another kind does not concern the place.
        if error.kind() == ErrorKind::Medium && !self.log.is_poisoned() {
            self.bad_segment = Some(segment);
        }
        self.poison(error);
    }

    /// Records that a sync failed. The log ends permanently, and no superblock may be written,
    /// since it is unknown which writes the superblock's sync would make durable.
    pub(crate) fn sync_failed(&mut self, error: &Error) {
        self.bad_segment = None;
        self.poison(error);
    }

    /// Returns the bad segment that the superblock does not yet name.
    pub(crate) fn bad_segment(&self) -> Option<SegmentId> {
        self.bad_segment
    }

    /// Returns the superblock that names the new bad segment, for one write; `None` if there is no
    /// bad segment, or no space to name it. The caller holds the turn, and no sync is under way.
    pub(crate) fn superblock_with_bad_segment(&mut self) -> Option<Superblock> {
        let segment = self.bad_segment.take()?;
        assert!(self.log.is_poisoned(), "an append that failed has ended the log");
        let mut superblock = self.next_superblock();
        let is_new = !superblock.bad_segments.contains(&segment);
        if !is_new || superblock.bad_segments.len() >= BAD_SEGMENTS_MAX {
            return None;
        }
        superblock.bad_segments.push(segment);
        Some(superblock)
    }

    /// Records, while the drive is opened, that bytes written to a segment cannot be read.
    pub(crate) fn note_bad_segment(&mut self, segment: SegmentId, superblock: &mut Superblock) {
        let is_new = !superblock.bad_segments.contains(&segment);
        if is_new && superblock.bad_segments.len() < BAD_SEGMENTS_MAX {
            superblock.bad_segments.push(segment);
            self.space.set_bad(segment);
        }
    }

    /// Continues every stream whose segment is bad in another segment, and adds the detours to
    /// `superblock`, which must be made durable before any batch is written. Without a free
    /// segment, or space for a detour, the streams stay where they are.
    pub(crate) fn leave_bad_segments(&mut self, superblock: &mut Superblock) {
        // Detours beyond the end of the log are invalid.
        let known = self.checkpoints.checkpointed()..=self.log.sealed_seq();
        superblock.detours.retain(|detour| known.contains(&detour.seq));
        for stream in Stream::ALL {
            let segment = match (self.log.tail(stream), stream) {
                (Some(tail), _) => tail.segment,
                // The log begins in segment 0.
                (None, Stream::Host) => SegmentId(0),
                (None, _) => continue,
            };
            if !self.space.is_bad(segment) || superblock.detours.len() >= DETOURS_MAX {
                continue;
            }
            let generation = self.next_generation();
            let Some(next) = self.space.allocate(stream, generation) else { continue };
            assert!(!self.space.is_bad(next), "a stream leaves a bad segment for a good one");
            tracing::warn!(
                drive = %superblock.uuid,
                segment = %segment,
                next = %next,
                ?stream,
                "a segment cannot be written: its stream continues in another one"
            );
            self.enter_segment(stream, next, generation, 0);
            let seq = self.log.sealed_seq();
            superblock.detours.push(Detour { seq, generation, segment: next, stream });
        }
    }
}

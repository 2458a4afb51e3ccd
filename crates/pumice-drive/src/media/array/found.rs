//! Reading a mirror whose members differ, without writing to it.
//!
//! ```text
//! member 0  | durable ............. | (an earlier life's batch)  |
//! member 1  | durable ............. | the batch recovery chose   |   holders: member 1
//! ```
//!
//! After an unclean end, bytes that no sync has covered may exist on one member only. A drive that
//! is opened for writing first makes all members equal. A reader cannot, and on a member that lacks
//! the batch chosen by recovery, it would find bytes of an earlier use with valid checksums. The
//! reader therefore records which members have that batch, and reads its range from these members
//! alone.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use uuid::Uuid;

use super::members::Target;
use super::{Array, Place, place_of};
use crate::base::units::len_u32;
use crate::base::{AlignedBuffer, Error, ErrorKind, Result, SegmentId};
use crate::media::{CopyId, Medium};

/// The recorded ranges: the start of each, with its end and the members that hold it.
pub(super) type Holders = BTreeMap<(SegmentId, u32), (u32, Rc<[Uuid]>)>;

impl<M: Medium> Array<M> {
    pub(super) fn note_found(&self, copies: &[CopyId], segment: SegmentId, range: Range<u32>) {
        let members = self.members.borrow();
        let readable = members.iter().filter(|member| member.is_readable());
        let (holders, others): (Vec<_>, Vec<_>) =
            readable.partition(|member| copies.contains(&member.copy));
        if others.is_empty() {
            return;
        }
        let holders = holders.into_iter().map(|member| member.entry.uuid).collect();
        self.holders.borrow_mut().insert((segment, range.start), (range.end, holders));
    }

    /// Returns the parts of a location that are in recorded ranges, each with the members that hold
    /// it.
    fn noted(&self, (segment, range): &Place) -> Vec<(Range<u32>, Rc<[Uuid]>)> {
        let holders = self.holders.borrow();
        let before = holders.range((*segment, 0)..(*segment, range.end));
        let parts = before.map(|(&(_, start), (end, holders))| {
            (start.max(range.start)..range.end.min(*end), holders.clone())
        });
        parts.filter(|(part, _)| !part.is_empty()).collect()
    }

    /// Checks that a member holds the bytes that a reader found at a location.
    ///
    /// # Errors
    /// `Medium`.
    pub(super) fn check_holds(&self, target: &Target<M>, place: Place) -> Result<()> {
        if self.noted(&place).iter().all(|(_, holders)| holders.contains(&target.uuid)) {
            return Ok(());
        }
        let what = "the member lacks the last writes: members are made equal when the drive is \
                    opened for writing";
        Err(Error::new(ErrorKind::Medium, what).in_segment(place.0))
    }

    /// Completes a read from any member: repeats the read of recorded ranges on members that hold
    /// them.
    pub(super) async fn read_as_found(
        &self,
        segment: SegmentId,
        offset: u32,
        mut buffer: AlignedBuffer,
        mut result: Result<()>,
    ) -> (AlignedBuffer, Result<()>) {
        for (part, holders) in self.noted(&place_of(segment, offset, &buffer)) {
            let at = (part.start - offset) as usize;
            match self.read_of(&holders, segment, &part).await {
                Ok(bytes) => {
                    let target = buffer.get_mut(at..at + bytes.len());
                    target.expect("the part lies in the buffer").copy_from_slice(&bytes);
                }
                Err(error) => result = result.and(Err(error)),
            }
        }
        (buffer, result)
    }

    async fn read_of(
        &self,
        holders: &[Uuid],
        segment: SegmentId,
        part: &Range<u32>,
    ) -> Result<AlignedBuffer> {
        let mut failure = None;
        for target in self.targets() {
            if !holders.contains(&target.uuid) {
                continue;
            }
            let buffer = AlignedBuffer::zeroed((part.end - part.start) as usize);
            let (bytes, read) = self.read_one(&target, segment, part.start, buffer).await;
            match read {
                Ok(()) => {
                    assert_eq!(len_u32(bytes.len()), part.end - part.start, "a read is whole");
                    return Ok(bytes);
                }
                Err(error) => failure = Some(error),
            }
        }
        let absent = || Error::new(ErrorKind::Medium, "no member with this data can be read");
        Err(failure.unwrap_or_else(absent))
    }
}

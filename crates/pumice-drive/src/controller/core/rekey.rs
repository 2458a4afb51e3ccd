//! The state of a new key: the generation from which it applies, and the segments left under the
//! previous key. `maintenance::rekey` contains the order of the steps and the crash argument.

use super::{Core, Evacuation, Exclusive, Wakes};
use crate::base::{Error, ErrorKind, Result};
use crate::format::{KeyArea, generation};

/// Generations between the current one and the first one of the new key: more than the number of
/// segments that are started while two superblocks are written.
const MARGIN_SEGMENTS: u32 = 1 << 16;

impl Core {
    /// Begins to replace a key.
    ///
    /// # Errors
    /// `Busy` if another change of the key, a resize or a compaction is under way; `InvalidInput`
    /// if snapshots prevent it.
    pub(crate) fn begin_rekey(&mut self) -> Result<()> {
        if self.exclusive.is_some() || self.reclaim.is_being_compacted() {
            let what = "the drive is being resized, compacted or rekeyed: wait until this ends";
            return Err(Error::new(ErrorKind::Busy, what));
        }
        self.snapshots.check_rekey()?;
        self.exclusive = Some(Exclusive::Rekey);
        Ok(())
    }

    /// Ends the replacement started by [`Core::begin_rekey`], whether or not it is complete.
    pub(crate) fn end_rekey(&mut self) {
        assert_eq!(self.exclusive, Some(Exclusive::Rekey), "a replacement ends after it begins");
        self.exclusive = None;
        self.space.expire(0);
        self.space_was_freed();
        self.wake(Wakes::PROGRESS);
    }

    /// Returns a generation from which another key may apply: no segment is started with it before
    /// [`Core::enter_key`].
    pub(crate) fn next_key_since(&self) -> u64 {
        let ordinal = self.segments_opened.checked_add(MARGIN_SEGMENTS);
        let ordinal = ordinal.expect("2^32 segments opened in one epoch");
        generation(self.log.epoch(), ordinal)
    }

    /// Asserts that no segment was started with a generation of [`Core::next_key_since`] in the
    /// meantime.
    pub(crate) fn check_key_unused(&self, since: u64) {
        let next = generation(self.log.epoch(), self.segments_opened);
        assert!(next <= since, "fewer segments were begun while superblocks were written");
    }

    /// Makes all further segments begin under the key that applies from generation `since`, which
    /// the superblocks already contain.
    pub(crate) fn enter_key(&mut self, since: u64) {
        let (cipher, keys) = (&self.settings.cipher, self.superblock.keys.as_ref());
        assert_eq!(cipher.newest().1, since, "the key is known");
        assert_eq!(keys.map(|keys| keys.since), Some(since), "the superblocks have the key");
        let recovery = keys.and_then(KeyArea::recovery).cloned();
        let ordinal = u32::try_from(since & u64::from(u32::MAX)).expect("half of the bits");
        let is_of_epoch = generation(self.log.epoch(), ordinal) == since;
        if is_of_epoch {
            // The ordinal is already larger if an earlier call in this epoch did not complete.
            self.segments_opened = self.segments_opened.max(ordinal);
        }
        self.log.expire(since, recovery);
        self.space.expire(since);
        self.wake(Wakes::COLLECTOR);
    }

    /// Returns the progress of moving data written under earlier keys.
    pub(crate) fn rekeyed(&self, since: u64) -> Evacuation {
        let left = self.space.used_before(since);
        if left == 0 {
            return Evacuation::Done;
        }
        match self.space.stuck_and_going() {
            Some(segment) => Evacuation::Stuck(segment),
            None => Evacuation::Left(left),
        }
    }
}

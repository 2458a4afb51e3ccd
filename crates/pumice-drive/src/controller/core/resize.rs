//! The state of resizing: the segments in use, and the values that depend on the drive's shape.
//! `maintenance::resize` contains the order of the steps and the crash argument.

use super::{Core, Exclusive, Purpose, Reserves, Wakes};
use crate::base::units::BLOCK_BYTES;
use crate::base::{Error, ErrorKind, Result, SegmentId};
use crate::format::{Superblock, leaf_bytes_max};

/// Free segments, in addition to the reserves, that the drive keeps while others are emptied.
const ROOM_SEGMENTS: u32 = 1;

/// The progress of the evacuation of segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Evacuation {
    /// The segments are empty and no longer allocated.
    Done,
    /// This many segments are left.
    Left(u32),
    /// This segment cannot be emptied.
    Stuck(SegmentId),
}

impl Core {
    /// Begins a resize.
    ///
    /// # Errors
    /// `Busy` if a resize or a change of the key is under way.
    pub(crate) fn begin_resize(&mut self) -> Result<()> {
        if self.exclusive.is_some() {
            let what = "the drive is being resized or rekeyed: wait until this ends";
            return Err(Error::new(ErrorKind::Busy, what));
        }
        self.exclusive = Some(Exclusive::Resize);
        self.wake(Wakes::WARMER);
        Ok(())
    }

    /// Ends a resize, whether or not it is complete. The table must not be longer than the
    /// superblock states, or a checkpoint's table would be too long; withheld segments below that
    /// length return to use.
    pub(crate) fn end_resize(&mut self, segment_count: u32) {
        self.check_resizing();
        self.exclusive = None;
        self.reclaim.set_compacting(false);
        if self.space.segment_count() > segment_count {
            self.space.shrink(segment_count);
        }
        // The memory for the former number of segments was never released.
        if self.space.grow(segment_count).is_ok() && self.space.end() != segment_count {
            self.space.set_end(segment_count);
        }
        // The table loses the marks of segments that are removed from it.
        for &segment in &self.superblock.bad_segments {
            self.space.set_bad(segment);
        }
        self.check_invariants();
    }

    /// Returns whether a resize is under way.
    pub(super) fn is_resizing(&self) -> bool {
        self.exclusive == Some(Exclusive::Resize)
    }

    /// Asserts that a resize is under way.
    fn check_resizing(&self) {
        assert!(self.is_resizing(), "the segments of a drive change in a resize only");
    }

    /// Adds segments to the table without putting them into use.
    ///
    /// # Errors
    /// `InvalidInput` if the table does not fit in memory.
    pub(crate) fn add_segments(&mut self, segment_count: u32) -> Result<()> {
        self.check_resizing();
        self.space.grow(segment_count)
    }

    /// Puts segments and blocks that a durable superblock has added into use.
    pub(crate) fn use_growth(&mut self) {
        self.check_resizing();
        let Superblock { segment_count, size_bytes, .. } = self.superblock;
        assert!(
            segment_count <= self.space.segment_count(),
            "segments are in the table before the superblock names them"
        );
        self.space.set_end(segment_count);
        self.map.grow(size_bytes / BLOCK_BYTES as u64);
        self.take_shape();
    }

    /// Removes the free segments from `segment_count` onwards from the table.
    pub(crate) fn remove_segments(&mut self, segment_count: u32) {
        self.check_resizing();
        assert!(segment_count >= self.space.end(), "segments are emptied before they are removed");
        self.space.shrink(segment_count);
    }

    /// Takes more of the segments from `end` onwards out of use, step by step, so that space always
    /// remains for the frames that garbage collection moves out of them.
    pub(crate) fn evacuate_step(&mut self, end: u32) {
        self.check_resizing();
        let room = self.reserved_segments(Purpose::Data) + ROOM_SEGMENTS;
        let step = self.space.lowest_end(end, room);
        assert!(step >= end, "no segment is emptied that is to stay");
        if step < self.space.end() {
            self.space.set_end(step);
        }
        // Compacting segments with dead bytes frees space before the new end.
        self.reclaim.set_compacting(step > end);
    }

    /// Returns the progress of emptying the segments from `end` onwards.
    pub(crate) fn evacuation(&self, end: u32) -> Evacuation {
        let left = self.space.used_from(end);
        if left == 0 && self.space.end() == end {
            return Evacuation::Done;
        }
        match self.space.stuck_and_going() {
            Some(segment) => Evacuation::Stuck(segment),
            None => Evacuation::Left(left),
        }
    }

    /// Adapts all values that depend on the drive's shape to the superblock.
    pub(crate) fn take_shape(&mut self) {
        self.check_resizing();
        let shape = self.superblock.shape();
        let map_cache_bytes = self.settings.map_cache_bytes;
        self.log.set_shape(shape);
        let leaf_bytes = leaf_bytes_max(self.superblock.has_chunks);
        self.reserves = Reserves::new(&shape, leaf_bytes, map_cache_bytes);
        self.space_was_freed();
        self.wake(Wakes::COLLECTOR);
        self.wake(Wakes::PROGRESS);
    }
}

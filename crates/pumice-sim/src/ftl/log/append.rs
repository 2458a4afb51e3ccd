//! The path of a frame: to the open segment of its stream, to the map, and to the flash.

#[cfg(test)]
use super::tests;
use super::{Cause, LogFtl, Open};
use crate::ftl::StoredSizes;
use crate::ftl::layout::{Role, UNMAPPED};
use crate::ftl::reverse::LbaSet;
use crate::nand::{BlockAddress, Worn};
use crate::{Error, Result};
use pumice_drive::base::units::transfer_ns;

impl LogFtl {
    /// Appends a block's frame of `bytes` bytes to its stream.
    pub(super) fn append(
        &mut self,
        lba: u32,
        bytes: u32,
        cause: Cause,
        ready_ns: u64,
    ) -> Result<()> {
        let stream = match cause {
            Cause::Host | Cause::Rewritten => 0,
            Cause::Collected | Cause::Rebuilt => usize::from(self.spec.moved_apart),
            Cause::Leveled => 2,
        };
        self.make_room(stream, cause, bytes)?;
        let open = self.open[stream].as_mut().expect("room was made in an open segment");
        let (segment, end) = (open.segment, open.offset + bytes);
        let entry = self.layout.entry(segment, open.offset);
        assert!(end <= self.layout.segment_bytes && entry != UNMAPPED, "segment {segment} is full");
        open.offset = end;
        open.ready_ns = open.ready_ns.max(ready_ns);
        open.lbas.push(lba);
        let age = match cause {
            Cause::Host => {
                self.counts.host_blocks_written += 1;
                self.counts.host_bytes += u64::from(bytes);
                self.accepted_bytes += u64::from(bytes);
                self.counts.host_blocks_written
            }
            Cause::Rewritten => {
                self.counts.rewritten_bytes += u64::from(bytes);
                self.accepted_bytes += u64::from(bytes);
                self.counts.host_blocks_written
            }
            Cause::Collected => {
                self.counts.collected_bytes += u64::from(bytes);
                self.collection.age()
            }
            Cause::Leveled => {
                self.counts.leveled_bytes += u64::from(bytes);
                self.collection.age()
            }
            Cause::Rebuilt => {
                self.counts.rebuilt_bytes += u64::from(bytes);
                self.segments.age(self.layout.segment(self.map[lba as usize]))
            }
        };
        self.segments.add(segment, bytes, age);
        let old = std::mem::replace(&mut self.map[lba as usize], entry);
        #[cfg(test)]
        {
            let from = if cause == Cause::Rebuilt { old } else { self.collection.source() };
            self.trace.push(tests::Event::placed(lba, cause, from, entry));
        }
        if old != UNMAPPED {
            self.release(old, self.frames.frame_bytes(lba));
        }
        if self.spec.stored == StoredSizes::AsWritten {
            self.frames.set(lba, bytes);
        }
        if end / self.layout.row_bytes > self.open[stream].as_ref().map_or(0, |open| open.rows) {
            // The bytes beyond the end of the row belong to this frame.
            let is_host = matches!(cause, Cause::Host | Cause::Rewritten);
            let beyond = if is_host { end % self.layout.row_bytes } else { 0 };
            self.hand_on_rows(stream, self.accepted_bytes - u64::from(beyond));
        }
        Ok(())
    }

    /// Ensures that a stream has an open segment with space for `bytes`. The host and a rebuild
    /// always leave one free segment for moved data.
    fn make_room(&mut self, stream: usize, cause: Cause, bytes: u32) -> Result<()> {
        loop {
            self.skip_holes(stream, bytes);
            let limit = self.layout.segment_bytes - bytes;
            if self.open[stream].as_ref().is_some_and(|open| open.offset <= limit) {
                return Ok(());
            }
            let is_moved = matches!(cause, Cause::Collected | Cause::Leveled);
            if !is_moved && self.segments.free_count() <= 1 {
                self.collect_one()?;
                continue;
            }
            self.seal(stream);
            // Cold data goes to the most worn blocks, which are then rarely erased.
            let which = if cause == Cause::Leveled { Worn::Most } else { Worn::Least };
            let Some(segment) = self.segments.open(which, self.faults.dead_count()) else {
                let what = "no segment is free for moved data";
                return Err(Error::NoSpace(what.into()));
            };
            let slots = (self.layout.segment_bytes / self.frames.smallest()) as usize;
            let lbas = Vec::with_capacity(slots);
            let (offset, rows, ready_ns, hole_bytes) = (0, 0, 0, 0);
            self.open[stream] = Some(Open { segment, offset, rows, ready_ns, hole_bytes, lbas });
        }
    }

    /// Moves the end of an open segment past the holes that a frame of `bytes` would overlap.
    fn skip_holes(&mut self, stream: usize, bytes: u32) {
        if self.faults.dead_count() == 0 {
            return;
        }
        let row_bytes = self.layout.row_bytes;
        while let Some(open) = &self.open[stream] {
            let end = open.offset + bytes;
            if end > self.layout.segment_bytes {
                return;
            }
            let dead = self.faults.dead(self.segments.dead(open.segment));
            let mut rows = self.layout.row_of(open.offset)..=self.layout.row_of(end - 1);
            let Some(hole) = rows.find(|&row| !self.layout.has_data(row, dead)) else { return };
            let before = open.offset;
            self.pad_to(stream, (hole + 1) * row_bytes);
            if let Some(open) = &mut self.open[stream] {
                open.hole_bytes += open.offset - before;
            }
        }
    }

    /// Pads the current row of an open segment, and issues it.
    pub(super) fn pad_row(&mut self, stream: usize) -> u32 {
        let Some(open) = &self.open[stream] else { return 0 };
        let end = open.offset.next_multiple_of(self.layout.row_bytes);
        self.pad_to(stream, end)
    }

    /// Pads an open segment up to `end`, except for holes. Returns the number of bytes of padding.
    fn pad_to(&mut self, stream: usize, end: u32) -> u32 {
        let Some(open) = &mut self.open[stream] else { return 0 };
        let row_bytes = self.layout.row_bytes;
        let dead = self.faults.dead(self.segments.dead(open.segment));
        let mut padding = 0;
        while open.offset < end {
            let data_row = open.offset / row_bytes;
            let next = ((data_row + 1) * row_bytes).min(end);
            if self.layout.has_data(data_row, dead) {
                padding += next - open.offset;
            }
            open.offset = next;
        }
        self.counts.padding_bytes += u64::from(padding);
        self.hand_on_rows(stream, self.accepted_bytes);
        padding
    }

    /// Pads the rest of a stream's segment, and seals the segment.
    fn seal(&mut self, stream: usize) {
        let Some(open) = &self.open[stream] else { return };
        let rest = self.layout.segment_bytes - open.offset;
        self.pad_to(stream, self.layout.segment_bytes);
        self.assert_bytes_add_up();
        // Space too short for a frame cannot be reclaimed: a new segment wastes the same amount.
        self.close(stream, self.layout.segment_bytes - rest);
    }

    /// Seals the segment of a stream at its current end, between two rows, because a part of it has
    /// failed.
    pub(super) fn cut(&mut self, stream: usize) {
        self.close(stream, self.layout.segment_bytes);
    }

    fn close(&mut self, stream: usize, used_bytes: u32) {
        let Some(mut open) = self.open[stream].take() else { return };
        open.lbas.sort_unstable();
        open.lbas.dedup();
        let lbas = LbaSet::new(&open.lbas, self.spec.user_blocks);
        let used_bytes = used_bytes - open.hole_bytes;
        self.segments.seal(open.segment, used_bytes, open.rows, lbas);
    }

    /// Asserts that every byte has a cause, and is in an issued row or waiting in an incomplete
    /// one.
    fn assert_bytes_add_up(&self) {
        let row_bytes = self.layout.row_bytes;
        let waiting = self.open.iter().flatten().map(|open| open.offset - open.rows * row_bytes);
        let issued = self.counts.flash_bytes + u64::from(waiting.sum::<u32>());
        assert_eq!(self.counts.caused_bytes(), issued, "bytes by cause, and bytes written");
    }

    /// Issues the full rows and the parity rows that follow them. The host's bytes up to `covered`
    /// are in these rows or in earlier ones.
    pub(super) fn hand_on_rows(&mut self, stream: usize, covered: u64) {
        let Some(open) = &mut self.open[stream] else { return };
        let covered = (stream == 0).then_some(covered);
        let dead = self.faults.dead(self.segments.dead(open.segment));
        let row_bytes = u64::from(self.layout.row_bytes);
        let row_ns = (self.spec.store_bytes_per_s).map_or(0, |rate| transfer_ns(row_bytes, rate));
        while open.offset / self.layout.row_bytes > open.rows {
            let first = self.layout.row_number(open.rows);
            open.rows += 1;
            for number in first..self.layout.row_number(open.rows) {
                let role = self.layout.role(number, dead);
                if role == Role::Dead {
                    continue;
                }
                let location = self.layout.row_location(number);
                let address = self.segments.block(open.segment, location.die);
                if location.row == 0 {
                    self.drain.erase(self.now_ns, address);
                }
                let is_parity = role == Role::Parity;
                let covered = covered.filter(|_| !is_parity);
                let sent_ns = if is_parity { 0 } else { row_ns };
                self.store_free_ns = self.store_free_ns.max(self.now_ns) + sent_ns;
                let ready_ns = open.ready_ns.max(self.store_free_ns);
                self.drain.program(self.now_ns, address, location.row, ready_ns, covered);
                self.counts.flash_bytes += row_bytes;
                self.counts.parity_bytes += if is_parity { row_bytes } else { 0 };
            }
        }
        // The last frame can continue in the next row.
        if open.offset.is_multiple_of(self.layout.row_bytes) {
            open.ready_ns = 0;
        }
    }

    /// Records that the block at a map entry is dead.
    #[inline]
    pub(super) fn release(&mut self, entry: u32, bytes: u32) {
        let segment = self.layout.segment(entry);
        if self.segments.release(segment, bytes) {
            self.thin(segment);
        }
    }

    /// Removes dead blocks from a segment's list.
    fn thin(&mut self, segment: u32) {
        let mut live = Vec::with_capacity(self.segments.live_count(segment) as usize);
        let range = self.entries_of(segment);
        self.segments.lbas(segment).for_each(|lba| {
            if range.contains(&self.map[lba as usize]) {
                live.push(lba);
            }
        });
        self.segments.set_lbas(segment, LbaSet::new(&live, self.spec.user_blocks));
    }

    /// Returns the map entries of blocks in a segment.
    pub(super) fn entries_of(&self, segment: u32) -> std::ops::Range<u32> {
        let first = self.layout.entry(segment, 0);
        first..first + self.layout.units
    }

    pub(super) fn row_address(&self, segment: u32, data_row: u32) -> (BlockAddress, u32) {
        let location = self.layout.row_location(self.layout.row_number(data_row));
        (self.segments.block(segment, location.die), location.row)
    }
}

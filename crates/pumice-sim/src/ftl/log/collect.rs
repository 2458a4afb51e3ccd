//! Garbage collection and wear leveling: empties segments at a pace set by host writes.
//!
//! ```text
//! few segments free -> a victim -> its live frames, in the order of their offsets
//! for every byte of the host, live / (segment - live) bytes are moved, so that the victim is empty
//! when the host has written as many bytes as the victim frees
//! ```
//!
//! When fewer segments are free than configured, collection accelerates proportionally. The host
//! waits for a whole victim only when a single free segment is left.
//!
//! The frames of a victim are read row by row: all live frames of a row are read in one step, when
//! the first of them is moved.

use super::requests::RowRead;
use super::{Cause, LogFtl};
use crate::{Error, Result};

/// At most one in this many victims is selected for wear leveling, which limits its cost
/// (arbitrary).
const LEVELING_EVERY: u32 = 8;

/// The state of garbage collection.
#[derive(Clone, Debug, Default)]
pub(super) struct Collection {
    victim: Option<Victim>,
    /// Number of bytes that may be moved now; negative after too many bytes were moved.
    credit_bytes: f64,
    /// Number of victims since the last one for wear leveling.
    since_leveling: u32,
    /// Buffer for the frames of a victim, kept for reuse.
    spare: Vec<u64>,
}

#[derive(Clone, Debug)]
struct Victim {
    segment: u32,
    cause: Cause,
    age: u64,
    /// Number of bytes to move for each host byte.
    pace: f64,
    /// Map entry in the upper half, and block; ordered by entry.
    frames: Vec<u64>,
    next: usize,
    /// The first data row that has not been read yet.
    row: u32,
    ready_ns: u64,
}

impl Collection {
    /// Returns the age of the data being moved.
    pub(super) fn age(&self) -> u64 {
        self.victim.as_ref().map_or(0, |victim| victim.age)
    }

    pub(super) fn heap_bytes(&self) -> u64 {
        let frames = self.victim.as_ref().map_or(0, |victim| victim.frames.capacity());
        8 * (frames + self.spare.capacity()) as u64
    }

    /// Returns the map entry of the frame being moved.
    #[cfg(test)]
    pub(super) fn source(&self) -> u32 {
        let moving = self.victim.as_ref().filter(|victim| victim.next > 0);
        moving.map_or(0, |victim| (victim.frames[victim.next - 1] >> 32) as u32)
    }

    #[cfg(test)]
    pub(super) fn segment(&self) -> Option<u32> {
        self.victim.as_ref().map(|victim| victim.segment)
    }
}

impl LogFtl {
    /// Moves the frames that are due after the host has written a frame of `host_bytes`.
    #[inline]
    pub(super) fn pace(&mut self, host_bytes: u32) -> Result<()> {
        let missing = self.spec.free_segments.saturating_sub(self.segments.free_count());
        if missing == 0 {
            return Ok(());
        }
        if self.collection.victim.is_none() {
            self.choose_victim();
        }
        let Some(victim) = &self.collection.victim else { return Ok(()) };
        self.collection.credit_bytes += f64::from(host_bytes) * f64::from(missing) * victim.pace;
        while self.collection.credit_bytes > 0.0 && self.collection.victim.is_some() {
            let moved = self.move_one()?;
            self.collection.credit_bytes -= f64::from(moved);
        }
        // A victim without live data neither owes nor earns credit.
        if self.collection.victim.is_none() {
            self.collection.credit_bytes = self.collection.credit_bytes.min(0.0);
        }
        Ok(())
    }

    /// Empties a victim in one step, because the host cannot continue otherwise.
    ///
    /// # Errors
    /// `NoSpace` if no segment has dead bytes.
    pub(super) fn collect_one(&mut self) -> Result<()> {
        let free = self.segments.free_count();
        if self.collection.victim.is_none() {
            self.choose_victim();
        }
        // A victim without live data is already free.
        if self.collection.victim.is_none() && self.segments.free_count() == free {
            let what = "the drive is full: nothing in it is dead";
            return Err(Error::NoSpace(what.into()));
        }
        while self.collection.victim.is_some() {
            self.move_one()?;
        }
        self.collection.credit_bytes = 0.0;
        Ok(())
    }

    /// Selects the next victim, if there is one, and looks up its live frames.
    fn choose_victim(&mut self) {
        let (segment, cause) = match self.cold_segment() {
            Some(segment) => (segment, Cause::Leveled),
            None => {
                let now = self.counts.host_blocks_written;
                match self.segments.victim(self.spec.victims, now) {
                    Some(segment) => (segment, Cause::Collected),
                    None => return,
                }
            }
        };
        let mut frames = std::mem::take(&mut self.collection.spare);
        frames.clear();
        let range = self.entries_of(segment);
        let live_bytes = self.segments.live_bytes(segment);
        let age = self.segments.age(segment);
        self.segments.take(segment).for_each(|lba| {
            let entry = self.map[lba as usize];
            if range.contains(&entry) {
                frames.push(u64::from(entry) << 32 | u64::from(lba));
            }
        });
        frames.sort_unstable();
        assert_eq!(frames.len(), self.segments.live_count(segment) as usize, "live frames");
        let live = f64::from(live_bytes);
        let gain = (f64::from(self.layout.segment_bytes) - live).max(1.0);
        match cause {
            Cause::Leveled => {
                self.counts.segments_leveled += 1;
                self.collection.since_leveling = 0;
            }
            _ => {
                self.counts.segments_collected += 1;
                self.collection.since_leveling += 1;
            }
        }
        self.collection.victim = Some(Victim {
            segment,
            cause,
            age,
            // A victim that frees no space is moved as fast as the host writes.
            pace: if cause == Cause::Leveled { 1.0 } else { live / gain },
            frames,
            next: 0,
            row: 0,
            ready_ns: 0,
        });
        if live_bytes == 0 {
            self.finish_victim();
        }
    }

    /// Returns a segment whose blocks should be reused for hotter data, if wear differs too much.
    fn cold_segment(&mut self) -> Option<u32> {
        let gap_max = self.spec.wear_gap_max?;
        if self.collection.since_leveling < LEVELING_EVERY {
            return None;
        }
        let most = self.flash.wear().max()?;
        let (segment, least) = self.segments.least_worn(&self.flash)?;
        (most - least > gap_max).then_some(segment)
    }

    /// Moves the victim's next frame if it is still live, and frees the segment after the last
    /// frame. Returns the number of bytes moved.
    fn move_one(&mut self) -> Result<u32> {
        let Some(victim) = &mut self.collection.victim else { return Ok(0) };
        let Some(&frame) = victim.frames.get(victim.next) else {
            self.finish_victim();
            return Ok(0);
        };
        victim.next += 1;
        let (entry, lba) = ((frame >> 32) as u32, frame as u32);
        // The host may have overwritten or trimmed the block since.
        if self.map[lba as usize] != entry {
            return Ok(0);
        }
        let offset = self.layout.offset(entry);
        let end = (offset + self.frames.frame_bytes(lba)).min(self.layout.segment_bytes);
        let (cause, first) = (victim.cause, victim.row.max(self.layout.row_of(offset)));
        for data_row in first..=self.layout.row_of(end - 1) {
            self.read_victim_row(data_row);
        }
        let ready_ns = self.collection.victim.as_ref().map_or(0, |victim| victim.ready_ns);
        let moved = self.frames.frame_bytes(lba);
        if let Err(error) = self.append(lba, moved, cause, ready_ns) {
            // The frame stays in place.
            if let Some(victim) = &mut self.collection.victim {
                victim.next -= 1;
            }
            return Err(error);
        }
        if self.collection.victim.as_ref().is_some_and(|it| it.next == it.frames.len()) {
            self.finish_victim();
        }
        Ok(moved)
    }

    /// Reads the live frames of a data row, starting at the frame before `next`.
    fn read_victim_row(&mut self, data_row: u32) {
        let Some(victim) = &mut self.collection.victim else { return };
        let mut row = RowRead::new(victim.segment, data_row);
        for &frame in &victim.frames[victim.next - 1..] {
            let offset = self.layout.offset((frame >> 32) as u32);
            if self.layout.row_of(offset) > data_row {
                break;
            }
            let bytes = self.frames.frame_bytes(frame as u32);
            let end = (offset + bytes).min(self.layout.segment_bytes);
            if self.layout.row_of(end - 1) >= data_row {
                row.add(&self.layout, offset, end);
            }
        }
        victim.row = data_row + 1;
        let read_ns = self.read_row(Some(row));
        if let Some(victim) = &mut self.collection.victim {
            victim.ready_ns = victim.ready_ns.max(read_ns);
        }
    }

    fn finish_victim(&mut self) {
        let Some(victim) = self.collection.victim.take() else { return };
        if !self.faults.is_empty() {
            for die in 0..self.spec.shape.dies() {
                self.faults.forget_pages(self.segments.block(victim.segment, die));
            }
        }
        self.segments.release_victim(victim.segment, &self.flash, self.faults.blocks());
        self.collection.spare = victim.frames;
        #[cfg(test)]
        self.trace.push(super::tests::Event::Freed { segment: victim.segment });
    }
}

//! Failures of the flash: the data that is lost, restored from parity, and rewritten elsewhere.
//!
//! ```text
//! a fault --> rows that wait for it: still in memory, written elsewhere immediately
//!         --> pages on flash: another page of the stripe is lost, or no parity --> block lost
//!                             otherwise --> list of the rebuild
//! rebuild     stripe by stripe: all other rows read -> frames appended like moved data
//! ```
//!
//! One stripe is read at a time, concurrently with host requests. Until a frame on the list is
//! rebuilt, a read of this frame also reads the rest of its stripe.
//!
//! **Permanent failures**: a die, and a block, which is retired when its segment is freed. A page
//! with unreadable data is reused after its block has been erased. After the failure of a die,
//! segments are opened without it; see [`Layout`](crate::ftl::layout::Layout). The parity of an
//! incomplete stripe is in memory. If its segment is closed early, because a die or its block
//! failed, the stripe is rewritten elsewhere.
//!
//! No failure rate is modelled, because none has been published for these drives. The following is
//! also unpublished, and therefore assumed: when and in which order a drive rebuilds, and that it
//! continues without a failed die.

use std::collections::BTreeSet;

use super::{Cause, LogFtl};
use crate::ftl::layout::{Role, UNMAPPED};
use crate::nand::BlockAddress;
use crate::{Error, Result};
use pumice_drive::base::Lba;

/// A part of the flash that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A die, numbered from 0: it cannot be read, programmed or erased.
    Die(u32),
    /// A block, on all planes of its die.
    Block(BlockAddress),
    /// A page whose data cannot be corrected.
    Page {
        /// Its block.
        address: BlockAddress,
        /// Its row in the block, from 0.
        row: u32,
        /// Its plane in the row, from 0.
        plane: u32,
    },
}

/// A kind of [`Fault`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// A die.
    Die,
    /// The block of a die whose segment has the most live bytes.
    Block,
    /// The first page with data in such a block.
    Page,
}

impl Fault {
    fn die(&self) -> u32 {
        match self {
            Self::Die(die) => *die,
            Self::Block(address) | Self::Page { address, .. } => address.die,
        }
    }

    /// Returns the failing planes of a row, one bit each.
    fn planes(&self, of: BlockAddress, of_row: u32) -> u32 {
        match *self {
            Self::Die(die) if of.die == die => u32::MAX,
            Self::Block(address) if of == address => u32::MAX,
            Self::Page { address, row, plane } if (of, of_row) == (address, row) => 1 << plane,
            _ => 0,
        }
    }
}

/// The failed parts, and the rebuild.
#[derive(Clone, Debug, Default)]
pub(super) struct Faults {
    /// Failed dies, in order of failure.
    dies: Vec<u32>,
    blocks: BTreeSet<BlockAddress>,
    /// Block, row and plane of failed pages.
    pages: BTreeSet<(BlockAddress, u32, u32)>,
    /// One bit for each lost block of the host; empty before the first loss.
    lost: Vec<u64>,
    rebuild: Rebuild,
}

/// Frames to rewrite elsewhere, stripe by stripe.
#[derive(Clone, Debug, Default)]
struct Rebuild {
    /// Map entry in the upper half, and block; ordered by entry.
    frames: Vec<u64>,
    next: usize,
    begun_ns: u64,
    /// Time of the next step; after the last step, the time at which it ended.
    next_ns: u64,
    /// Whether space ran out: the remaining frames stay in place.
    has_stalled: bool,
}

/// The progress of the rebuild after the last fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RebuildTimes {
    /// Frames that have not been rewritten yet.
    pub frames_left: u64,
    /// Whether there was too little space for these frames.
    pub has_stalled: bool,
    /// Time from the fault to the last read of the rebuild so far, in ns.
    pub took_ns: u64,
}

impl Faults {
    /// Returns the first `count` failed dies. A segment that was opened after their failure has no
    /// rows on them.
    pub(super) fn dead(&self, count: u16) -> &[u32] {
        &self.dies[..usize::from(count)]
    }

    pub(super) fn dead_count(&self) -> u16 {
        self.dies.len() as u16
    }

    pub(super) fn blocks(&self) -> &BTreeSet<BlockAddress> {
        &self.blocks
    }

    /// Returns whether nothing has failed so far.
    pub(super) fn is_empty(&self) -> bool {
        self.dies.is_empty() && self.blocks.is_empty() && self.pages.is_empty()
    }

    /// Removes the failed pages of a block that will be erased.
    pub(super) fn forget_pages(&mut self, address: BlockAddress) {
        if !self.pages.is_empty() {
            self.pages.retain(|page| page.0 != address);
        }
    }

    /// Returns the planes of a row that cannot be read, one bit each, in a segment that was opened
    /// after `dead` dies had failed.
    fn lost_planes(&self, dead: u16, address: BlockAddress, row: u32) -> u32 {
        let is_gone =
            self.dies[usize::from(dead)..].contains(&address.die) || self.blocks.contains(&address);
        if is_gone {
            return u32::MAX;
        }
        let of_row = (address, row, 0)..=(address, row, u32::MAX);
        self.pages.range(of_row).fold(0, |planes, page| planes | 1 << page.2)
    }

    pub(super) fn is_lost(&self, lba: u32) -> bool {
        self.lost.get(lba as usize / 64).is_some_and(|bits| bits >> (lba % 64) & 1 == 1)
    }

    /// Records that the host has overwritten or trimmed a block.
    #[inline]
    pub(super) fn replaced(&mut self, lba: u32) {
        if let Some(bits) = self.lost.get_mut(lba as usize / 64) {
            *bits &= !(1 << (lba % 64));
        }
    }

    fn lose(&mut self, lba: u32, lba_count: u64) {
        if self.lost.is_empty() {
            self.lost = vec![0; lba_count.div_ceil(64) as usize];
        }
        self.lost[lba as usize / 64] |= 1 << (lba % 64);
    }

    /// Returns the frames that have not been rebuilt yet: map entry in the upper half, and block.
    #[cfg(test)]
    pub(super) fn rebuild_frames(&self) -> &[u64] {
        &self.rebuild.frames[self.rebuild.next..]
    }

    pub(super) fn heap_bytes(&self) -> u64 {
        8 * (self.lost.len() + self.rebuild.frames.capacity()) as u64
    }
}

/// A frame that a fault affects.
struct Affected {
    lba: u32,
    entry: u32,
    /// Whether a part of the frame that is already on flash has failed.
    is_hit: bool,
    /// Whether a part of the frame is only in memory, waiting for the failed part of the flash.
    is_waiting: bool,
}

impl LogFtl {
    /// Makes a part of the flash fail. Data waiting for it is written elsewhere. Data on it is
    /// rebuilt from parity, concurrently with subsequent requests, or lost; see
    /// [`LogFtl::is_lost`]. A page fails only if it has been programmed.
    ///
    /// # Errors
    /// `InvalidInput` for a part that does not exist or has already failed; `NoSpace` if the rest
    /// of the flash has too little space, after which the drive must not be used.
    pub fn fail(&mut self, now_ns: u64, fault: Fault) -> Result<()> {
        self.begin(now_ns, Lba(0), 0)?;
        self.check_fault(fault)?;
        if let Fault::Page { address, row, .. } = fault
            && (!self.segments.is_in_use(address)
                || self.drain.is_buffered(&self.flash, now_ns, address, row))
        {
            // The page contains no data yet.
            return Ok(());
        }
        let cut = self.streams_to_cut(fault);
        for &stream in &cut {
            self.pad_row(stream);
        }
        let affected = self.affected(fault, &cut);
        let block = match fault {
            Fault::Die(die) => {
                self.faults.dies.push(die);
                None
            }
            Fault::Block(address) => {
                self.faults.blocks.insert(address);
                self.segments.retire(address, &self.flash);
                Some(address.block)
            }
            Fault::Page { address, row, plane } => {
                self.faults.pages.insert((address, row, plane));
                return self.put_elsewhere(affected);
            }
        };
        let rows = self.drain.drop_rows(now_ns, fault.die(), block);
        self.counts.failed_bytes += rows * u64::from(self.layout.row_bytes);
        for stream in cut {
            self.cut(stream);
        }
        self.check_runs()?;
        self.put_elsewhere(affected)
    }

    /// Returns a fault of this kind on a die, which must exist.
    pub(crate) fn fault_on(&self, die: u32, kind: FaultKind) -> Fault {
        let segment = self.segments.fullest();
        let address = |segment| self.segments.block(segment, die);
        let has_die = |number: &u32| self.layout.row_location(*number).die == die;
        let mut rows = (0..self.layout.data_rows).map(|row| self.layout.row_number(row));
        match (kind, segment) {
            (FaultKind::Die, _) => Fault::Die(die),
            (FaultKind::Block, segment) => {
                Fault::Block(segment.map_or(BlockAddress { die, block: 0 }, address))
            }
            (FaultKind::Page, segment) => Fault::Page {
                address: segment.map_or(BlockAddress { die, block: 0 }, address),
                row: rows.find(has_die).map_or(0, |number| self.layout.row_location(number).row),
                plane: 0,
            },
        }
    }

    /// Returns whether a host block was lost and has not been written or trimmed since.
    pub fn is_lost(&self, lba: Lba) -> bool {
        u32::try_from(lba.0).is_ok_and(|lba| self.faults.is_lost(lba))
    }

    /// Returns the progress of the rebuild after the last fault.
    pub fn rebuild(&self) -> RebuildTimes {
        let Rebuild { frames, next, begun_ns, next_ns, has_stalled } = &self.faults.rebuild;
        RebuildTimes {
            frames_left: (frames.len() - next) as u64,
            has_stalled: *has_stalled,
            took_ns: next_ns - begun_ns,
        }
    }

    fn check_fault(&self, fault: Fault) -> Result<()> {
        let shape = &self.spec.shape;
        let exists = fault.die() < shape.dies()
            && match fault {
                Fault::Die(_) => true,
                Fault::Block(address) => address.block < shape.blocks_per_plane,
                Fault::Page { address, row, plane } => {
                    let is_in_block = row < shape.pages_per_block && plane < shape.planes;
                    address.block < shape.blocks_per_plane && is_in_block
                }
            };
        let has_failed = self.faults.dies.contains(&fault.die())
            || matches!(fault, Fault::Block(address) if self.faults.blocks.contains(&address));
        if exists && !has_failed {
            return Ok(());
        }
        let what = if exists { "has already failed" } else { "does not exist" };
        Err(Error::InvalidInput(format!("{fault:?} {what}").into()))
    }

    /// Returns the streams whose open segment cannot be used any further.
    pub(super) fn streams_to_cut(&self, fault: Fault) -> Vec<usize> {
        let has_block = |segment: u32| match fault {
            Fault::Die(_) => true,
            Fault::Block(address) => self.segments.block(segment, address.die) == address,
            Fault::Page { .. } => false,
        };
        let open = self.open.iter().enumerate();
        let open = open.filter(|(_, open)| open.as_ref().is_some_and(|it| has_block(it.segment)));
        open.map(|(stream, _)| stream).collect()
    }

    /// Returns the frames that have a part in the failing flash, or in an incomplete stripe of a
    /// segment that is closed early.
    fn affected(&self, fault: Fault, cut: &[usize]) -> Vec<Affected> {
        let open_stripes = cut.iter().filter_map(|&stream| self.open[stream].as_ref());
        let open_stripes = open_stripes.map(|open| {
            let number = self.layout.row_number(open.rows);
            let first = self.layout.stripe_of(number).start;
            (open.segment, if self.layout.has_parity() { first } else { number })
        });
        let open_stripes = Vec::from_iter(open_stripes);
        let mut affected = Vec::new();
        for (lba, &entry) in (0u32..).zip(&self.map) {
            if entry == UNMAPPED {
                continue;
            }
            let segment = self.layout.segment(entry);
            let (mut is_hit, mut is_waiting, mut is_open) = (false, false, false);
            self.for_each_row(entry, self.frames.frame_bytes(lba), |number, planes| {
                let location = self.layout.row_location(number);
                let address = self.segments.block(segment, location.die);
                let is_there = self.is_member(segment, number);
                if is_there && fault.planes(address, location.row) & planes != 0 {
                    let now_ns = self.now_ns;
                    if self.drain.is_buffered(&self.flash, now_ns, address, location.row) {
                        is_waiting = true;
                    } else {
                        is_hit = true;
                    }
                }
                is_open |=
                    open_stripes.iter().any(|&(open, from)| open == segment && number >= from);
            });
            if is_hit || is_waiting || is_open {
                affected.push(Affected { lba, entry, is_hit, is_waiting });
            }
        }
        affected
    }

    /// Calls `visit` with the number of each row that contains a part of a frame, and the planes of
    /// that part.
    fn for_each_row(&self, entry: u32, bytes: u32, mut visit: impl FnMut(u32, u32)) {
        let offset = self.layout.offset(entry);
        let end = (offset + bytes).min(self.layout.segment_bytes);
        for data_row in self.layout.row_of(offset)..=self.layout.row_of(end - 1) {
            let begin = data_row * self.layout.row_bytes;
            let first = self.layout.page_of(offset.max(begin));
            let last = self.layout.page_of(end.min(begin + self.layout.row_bytes) - 1);
            let planes = (first..=last).fold(0, |planes, plane| planes | 1 << plane);
            visit(self.layout.row_number(data_row), planes);
        }
    }

    /// Returns whether a row belongs to its stripe: its die had not failed when the segment was
    /// opened, and the row has been issued.
    fn is_member(&self, segment: u32, number: u32) -> bool {
        let open = self.open.iter().flatten().find(|open| open.segment == segment);
        let rows = open.map_or_else(|| self.segments.rows(segment), |open| open.rows);
        let dead = self.faults.dead(self.segments.dead(segment));
        number < self.layout.row_number(rows) && self.layout.role(number, dead) != Role::Dead
    }

    /// Returns the planes of a row that cannot be read.
    pub(super) fn lost_planes(&self, segment: u32, number: u32) -> u32 {
        let location = self.layout.row_location(number);
        let address = self.segments.block(segment, location.die);
        self.faults.lost_planes(self.segments.dead(segment), address, location.row)
    }

    /// Returns the numbers of the other rows in a row's stripe.
    fn others(&self, segment: u32, number: u32) -> impl Iterator<Item = u32> {
        let others = self.layout.stripe_of(number).filter(move |&other| other != number);
        others.filter(move |&other| self.is_member(segment, other))
    }

    /// Returns whether all parts of a frame on flash can be read, or rebuilt from the rest of their
    /// stripes.
    fn is_whole(&self, entry: u32, bytes: u32) -> bool {
        let segment = self.layout.segment(entry);
        let mut is_whole = true;
        self.for_each_row(entry, bytes, |number, planes| {
            let lost = self.lost_planes(segment, number) & planes;
            let is_other = |other| self.lost_planes(segment, other) & lost != 0;
            let is_beyond = !self.layout.has_parity() || self.others(segment, number).any(is_other);
            is_whole &= lost == 0 || !is_beyond;
        });
        is_whole
    }

    /// Reads the lost planes of a row from the rest of its stripe. Returns the time at which they
    /// are available.
    pub(super) fn read_stripe(&mut self, segment: u32, number: u32, planes: u32) -> u64 {
        let pages = (planes & ((1 << self.spec.shape.planes) - 1)).count_ones();
        let others = Vec::from_iter(self.others(segment, number));
        let mut read_ns = self.now_ns;
        for other in others {
            let location = self.layout.row_location(other);
            let address = self.segments.block(segment, location.die);
            if self.drain.is_buffered(&self.flash, self.now_ns, address, location.row) {
                continue;
            }
            let bytes = pages * self.spec.shape.page_bytes;
            let read = self.flash.read(self.now_ns, address, location.row, pages, bytes);
            read_ns = read_ns.max(read.expect("a row that is not in memory is programmed"));
        }
        read_ns
    }

    /// Checks that a frame fits between two rows on failed dies.
    fn check_runs(&self) -> Result<()> {
        let run_bytes = self.layout.run_bytes_max(&self.faults.dies);
        if run_bytes < u64::from(self.frames.largest()) {
            let what = format!("{} dies have failed", self.faults.dies.len());
            return Err(Error::NoSpace(
                format!("{what}: the others have no room for a block").into(),
            ));
        }
        Ok(())
    }

    /// Writes the data in memory elsewhere, records unreadable data as lost, and starts the rebuild
    /// of the rest.
    fn put_elsewhere(&mut self, affected: Vec<Affected>) -> Result<()> {
        let old = std::mem::take(&mut self.faults.rebuild);
        let mut frames = Vec::new();
        for &frame in &old.frames[old.next..] {
            let (entry, lba) = ((frame >> 32) as u32, frame as u32);
            if self.map[lba as usize] == entry {
                self.keep_or_lose(lba, entry, &mut frames);
            }
        }
        // Unreadable data is recorded as lost first, so that garbage collection does not move it.
        let mut waiting = Vec::new();
        for Affected { lba, entry, is_hit, is_waiting } in affected {
            if self.map[lba as usize] != entry {
                continue;
            }
            if is_waiting && !is_hit {
                waiting.push((lba, entry));
            } else {
                self.keep_or_lose(lba, entry, &mut frames);
            }
        }
        for (lba, entry) in waiting {
            if self.map[lba as usize] == entry {
                let bytes = self.frames.frame_bytes(lba);
                self.append(lba, bytes, Cause::Rebuilt, self.now_ns)?;
            }
        }
        frames.sort_unstable();
        frames.dedup();
        let (begun_ns, next_ns) = (self.now_ns, self.now_ns);
        self.faults.rebuild = Rebuild { frames, next: 0, begun_ns, next_ns, has_stalled: false };
        Ok(())
    }

    fn keep_or_lose(&mut self, lba: u32, entry: u32, frames: &mut Vec<u64>) {
        let bytes = self.frames.frame_bytes(lba);
        if self.is_whole(entry, bytes) {
            frames.push(u64::from(entry) << 32 | u64::from(lba));
            return;
        }
        self.map[lba as usize] = UNMAPPED;
        self.release(entry, bytes);
        self.faults.lose(lba, self.spec.user_blocks);
        self.counts.blocks_lost += 1;
    }

    /// Rebuilds the stripes that are due by `now_ns`.
    #[inline]
    pub(super) fn advance_rebuild(&mut self, now_ns: u64) {
        while self.rebuilds_at().is_some_and(|at_ns| at_ns <= now_ns) {
            self.rebuild_stripe();
        }
    }

    /// Rebuilds all remaining stripes.
    pub(super) fn finish_rebuild(&mut self) {
        while self.rebuilds_at().is_some() {
            self.rebuild_stripe();
        }
    }

    /// Returns the time of the next step of the rebuild.
    fn rebuilds_at(&self) -> Option<u64> {
        let rebuild = &self.faults.rebuild;
        let has_more = rebuild.next < rebuild.frames.len() && !rebuild.has_stalled;
        has_more.then_some(rebuild.next_ns)
    }

    /// Reads the frames of the next stripe and rewrites them elsewhere.
    fn rebuild_stripe(&mut self) {
        let mut rebuild = std::mem::take(&mut self.faults.rebuild);
        self.now_ns = self.now_ns.max(rebuild.next_ns);
        self.drain.advance(&mut self.flash, self.now_ns);
        let stripe = |frame: u64| {
            let entry = (frame >> 32) as u32;
            let number = self.layout.row_number(self.layout.row_of(self.layout.offset(entry)));
            (self.layout.segment(entry), self.layout.stripe_of(number).start)
        };
        let rest = &rebuild.frames[rebuild.next..];
        let count = rest.iter().take_while(|&&frame| stripe(frame) == stripe(rest[0])).count();
        let is_current = |&&frame: &&u64| self.map[frame as u32 as usize] == (frame >> 32) as u32;
        let lbas = rest[..count].iter().filter(is_current).map(|&frame| frame as u32);
        let lbas = Vec::from_iter(lbas);
        let read_ns = self.read_frames(lbas.iter().copied()).last_ns;
        let put = lbas.iter().try_for_each(|&lba| {
            self.append(lba, self.frames.frame_bytes(lba), Cause::Rebuilt, read_ns)
        });
        // If there is no space for frames, they remain readable through the rest of their stripes.
        rebuild.has_stalled = put.is_err();
        rebuild.next += if rebuild.has_stalled { 0 } else { count };
        rebuild.next_ns = read_ns;
        self.faults.rebuild = rebuild;
    }
}

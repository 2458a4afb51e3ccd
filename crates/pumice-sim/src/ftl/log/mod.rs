//! A log-structured flash translation layer without content.
//!
//! ```text
//! host write --> write buffer --(a row is full)--> queue of a die --> flash
//!                    ^ waits while it is full          ^ rows of moved data, in proportion
//! host read  --> map --> in the buffer: at once; else pages of flash, before all waiting rows
//! ```
//!
//! The layer simulates two kinds of drive. *Page-mapped*: every block is stored uncompressed.
//! *Compressing*: a block takes the bytes of its frame; frames are packed byte by byte and can
//! straddle rows, but not segments.
//!
//! **Memory** for 10^12 bytes = 244,140,625 blocks of a host:
//!
//! ```text
//! map              4 bytes a block                                       977 MB
//! reverse lists    at most 2 entries a block (a list is thinned when     two entries of 12 to
//!                  half of it died), each log2(segments), rounded, and   15 bits a block:
//!                  2 to 3 bits                                           730 to 920 MB
//! tables           8 bytes an erase block, about 100 a segment           a few MB
//! ```
//!
//! [`LogSpec::memory_bytes_max`] computes that sum for any drive. Compressible data makes lists
//! longer, but never longer than twice the live blocks.
//!
//! The **work** of a write is that of its block and of the blocks that garbage collection moves for
//! it, some look-ups each, plus a logarithm of the dies for each row. Only the choice of a victim
//! grows with the drive: it looks at each segment once.
//!
//! A call updates the map at once; the flash takes its time afterwards ([`Drain`]). Moved data is
//! also read at that moment and waits in memory that is not counted: a real drive would read it
//! later. Blocks are erased just before their first row is programmed, one die at a time. Power
//! loss is not simulated: nothing is recovered, and the map is not written.
//! not written.

mod collect;
#[cfg(test)]
mod tests;

use collect::Collection;

use super::drain::Drain;
use super::layout::{Layout, UNMAPPED};
use super::reverse::LbaSet;
use super::segments::Segments;
use super::sizes::FrameSizes;
use super::spec::Parts;
use super::{LogCounts, LogSpec};
use crate::nand::{BlockAddress, Flash, FlashCounts, Wear, Worn};
use crate::{Error, Result};
use pumice_drive::base::Lba;

/// The reason for which a frame is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Host,
    Collected,
    Leveled,
}

/// The open segment of a stream.
#[derive(Clone, Debug)]
struct Open {
    segment: u32,
    /// Offset of the next frame.
    offset: u32,
    /// Data rows that were issued.
    rows: u32,
    /// The time at which the data of the current row has arrived.
    ready_ns: u64,
    /// In the order of their frames.
    lbas: Vec<u32>,
}

/// Pages to read from one row.
#[derive(Clone, Copy, Debug)]
struct RowRead {
    segment: u32,
    data_row: u32,
    last_page: u32,
    pages: u32,
    bytes: u32,
}

/// A drive in virtual time. Calls must come in non-decreasing order of time.
#[derive(Clone, Debug)]
pub struct LogFtl {
    spec: LogSpec,
    layout: Layout,
    frames: FrameSizes,
    flash: Flash,
    drain: Drain,
    segments: Segments,
    /// Map entry of each block: see [`Layout`].
    map: Box<[u32]>,
    /// The streams: of the host, of garbage collection (unused if it shares the host's), and of
    /// wear leveling, whose cold data would otherwise be moved again with hot data.
    open: [Option<Open>; 3],
    collection: Collection,
    /// Bytes of the host's frames so far.
    accepted_bytes: u64,
    /// Time of the last acknowledgement: writes are acknowledged in order.
    acknowledged_ns: u64,
    now_ns: u64,
    counts: LogCounts,
    #[cfg(test)]
    trace: Vec<tests::Event>,
}

impl LogFtl {
    /// Creates an empty drive at time 0.
    ///
    /// # Errors
    /// Those of [`LogSpec::check`].
    pub fn new(spec: LogSpec) -> Result<Self> {
        let Parts { frames, layout, free_blocks } = spec.parts()?;
        Ok(Self {
            layout,
            frames,
            flash: Flash::new(spec.shape, spec.timing)?,
            drain: Drain::new(spec.shape.dies()),
            segments: Segments::new(&spec.shape, free_blocks),
            map: vec![UNMAPPED; spec.user_blocks as usize].into_boxed_slice(),
            open: [None, None, None],
            collection: Collection::default(),
            accepted_bytes: 0,
            acknowledged_ns: 0,
            now_ns: 0,
            counts: LogCounts::default(),
            #[cfg(test)]
            trace: Vec::new(),
            spec,
        })
    }

    /// Writes blocks. Returns the time of the acknowledgement: when the buffer has room for the
    /// last of them, in the order of writes. While rows wait for their die, that time is a forecast
    /// (see the module `drain`): reads that come in between delay later writes, not this one.
    ///
    /// A host that waits for some of its writes before it issues more keeps the forecast short; for
    /// a host that never waits, each write looks at all rows that wait for a die.
    ///
    /// # Errors
    /// `InvalidInput` for blocks beyond the drive, `NoSpace` if garbage collection can reclaim
    /// nothing.
    pub fn write(&mut self, now_ns: u64, lba: Lba, blocks: u32) -> Result<u64> {
        let first = self.begin(now_ns, lba, blocks)?;
        for lba in first..first + blocks {
            let bytes = self.append(lba, Cause::Host, now_ns)?;
            self.pace(bytes)?;
        }
        let needed = self.accepted_bytes.saturating_sub(self.spec.buffer_bytes);
        let room_ns = self.drain.done_ns(&self.flash, now_ns, needed);
        self.acknowledged_ns = self.acknowledged_ns.max(room_ns).max(now_ns);
        Ok(self.acknowledged_ns)
    }

    /// Reads blocks. Returns the time at which the last of them is available. Blocks that were
    /// never written, and blocks still in the buffer, take no time.
    ///
    /// # Errors
    /// `InvalidInput` for blocks beyond the drive.
    pub fn read(&mut self, now_ns: u64, lba: Lba, blocks: u32) -> Result<u64> {
        let first = self.begin(now_ns, lba, blocks)?;
        self.counts.host_blocks_read += u64::from(blocks);
        let mut done_ns = now_ns;
        let mut row: Option<RowRead> = None;
        for lba in first..first + blocks {
            let entry = self.map[lba as usize];
            if entry == UNMAPPED {
                continue;
            }
            let (segment, offset) = (self.layout.segment(entry), self.layout.offset(entry));
            let end = (offset + self.frames.frame_bytes(lba)).min(self.layout.segment_bytes);
            let (first_row, last_row) = (self.layout.row_of(offset), self.layout.row_of(end - 1));
            for data_row in first_row..=last_row {
                let same = |row: &RowRead| (row.segment, row.data_row) == (segment, data_row);
                if !row.as_ref().is_some_and(same) {
                    done_ns = done_ns.max(self.read_row(row.take()));
                }
                let row = row.get_or_insert(RowRead::new(segment, data_row));
                row.add(&self.layout, offset, end);
            }
        }
        Ok(done_ns.max(self.read_row(row)))
    }

    /// Trims blocks. Takes no time, neither of the drive nor of the flash.
    ///
    /// # Errors
    /// `InvalidInput` for blocks beyond the drive.
    pub fn trim(&mut self, now_ns: u64, lba: Lba, blocks: u32) -> Result<()> {
        let first = self.begin(now_ns, lba, blocks)?;
        for lba in first..first + blocks {
            let entry = std::mem::replace(&mut self.map[lba as usize], UNMAPPED);
            if entry != UNMAPPED {
                self.counts.blocks_trimmed += 1;
                self.release(entry, self.frames.frame_bytes(lba));
            }
        }
        Ok(())
    }

    /// Issues the current row, padded. Returns the time at which everything written is on flash, a
    /// forecast like that of [`LogFtl::write`]. Moved data stays in its incomplete row: its old
    /// copy still exists.
    ///
    /// # Errors
    /// `NoSpace` if garbage collection can reclaim nothing.
    pub fn flush(&mut self, now_ns: u64) -> Result<u64> {
        self.begin(now_ns, Lba(0), 0)?;
        let partial = self.open[0].as_ref().map_or(0, |open| open.offset % self.layout.row_bytes);
        if let Some(open) = self.open[0].as_mut().filter(|_| partial > 0) {
            let padding = self.layout.row_bytes - partial;
            open.offset += padding;
            self.counts.padding_bytes += u64::from(padding);
            self.hand_on_rows(0, self.accepted_bytes);
            self.pace(padding)?;
        }
        Ok(self.drain.all_done_ns(&self.flash, now_ns).max(now_ns))
    }

    /// Advances time until the flash has completed everything. Returns that time, the earliest for
    /// the next call.
    pub fn settle(&mut self) -> u64 {
        self.now_ns = self.drain.finish(&mut self.flash, self.now_ns);
        self.now_ns
    }

    /// Returns the specification of the drive.
    pub fn spec(&self) -> &LogSpec {
        &self.spec
    }

    /// Returns the counters of written bytes.
    pub fn counts(&self) -> LogCounts {
        self.counts
    }

    /// Returns the flash operations so far, without rows that wait for their die.
    pub fn flash_counts(&self) -> FlashCounts {
        self.flash.counts()
    }

    /// Returns the wear of the good blocks.
    pub fn wear(&self) -> Wear {
        self.segments.free_blocks().wear(&self.flash)
    }

    /// Returns the erase count of each good block, die after die.
    pub fn erases(&self) -> impl Iterator<Item = u32> {
        self.segments.free_blocks().erases(&self.flash)
    }

    /// Returns the number of free segments.
    pub fn free_segments(&self) -> u32 {
        self.segments.free_count()
    }

    /// Returns the memory in use, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        let open: usize = self.open.iter().flatten().map(|open| 4 * open.lbas.capacity()).sum();
        let flash = 8 * u64::from(self.spec.shape.dies() * self.spec.shape.blocks_per_plane);
        let map = 4 * self.map.len() as u64;
        let moving = self.collection.heap_bytes() + open as u64;
        map + self.segments.heap_bytes() + self.drain.heap_bytes() + moving + flash
    }

    /// Advances time to `now_ns`, and checks the range of blocks.
    fn begin(&mut self, now_ns: u64, lba: Lba, blocks: u32) -> Result<u32> {
        let end = lba.0.checked_add(blocks.into());
        if end.is_none_or(|end| end > self.spec.user_blocks) {
            let what = format!("a drive of {} blocks has none at {lba}", self.spec.user_blocks);
            return Err(Error::InvalidInput(what.into()));
        }
        if now_ns < self.now_ns {
            let what = format!("a call at {now_ns} ns follows one at {} ns", self.now_ns);
            return Err(Error::InvalidInput(what.into()));
        }
        self.now_ns = now_ns;
        self.drain.advance(&mut self.flash, now_ns);
        Ok(lba.0 as u32)
    }

    /// Appends a block's frame to its stream. Returns the bytes of the frame.
    fn append(&mut self, lba: u32, cause: Cause, ready_ns: u64) -> Result<u32> {
        let bytes = self.frames.frame_bytes(lba);
        let stream = match cause {
            Cause::Host => 0,
            Cause::Collected => usize::from(self.spec.moved_apart),
            Cause::Leveled => 2,
        };
        self.make_room(stream, cause, bytes)?;
        let open = self.open[stream].as_mut().expect("room was made in an open segment");
        let (segment, end) = (open.segment, open.offset + bytes);
        let entry = self.layout.entry(segment, open.offset);
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
            Cause::Collected => {
                self.counts.collected_bytes += u64::from(bytes);
                self.collection.age()
            }
            Cause::Leveled => {
                self.counts.leveled_bytes += u64::from(bytes);
                self.collection.age()
            }
        };
        self.segments.add(segment, bytes, age);
        let old = std::mem::replace(&mut self.map[lba as usize], entry);
        #[cfg(test)]
        self.trace.push(tests::Event::placed(lba, cause, self.collection.source(), entry));
        if old != UNMAPPED {
            self.release(old, bytes);
        }
        if end / self.layout.row_bytes > self.open[stream].as_ref().map_or(0, |open| open.rows) {
            // The bytes after the end of the row belong to this frame.
            let beyond = if cause == Cause::Host { end % self.layout.row_bytes } else { 0 };
            self.hand_on_rows(stream, self.accepted_bytes - u64::from(beyond));
        }
        Ok(bytes)
    }

    /// Ensures that a stream has an open segment with room for `bytes`. The host always leaves one
    /// free segment for moved data.
    fn make_room(&mut self, stream: usize, cause: Cause, bytes: u32) -> Result<()> {
        loop {
            let limit = self.layout.segment_bytes - bytes;
            if self.open[stream].as_ref().is_some_and(|open| open.offset <= limit) {
                return Ok(());
            }
            if cause == Cause::Host && self.segments.free_count() <= 1 {
                self.collect_one()?;
                continue;
            }
            self.seal(stream);
            // Cold data goes to the most worn blocks, so that these rest.
            let which = if cause == Cause::Leveled { Worn::Most } else { Worn::Least };
            let Some(segment) = self.segments.open(which) else {
                let what = "no segment is free for moved data";
                return Err(Error::NoSpace(what.into()));
            };
            let slots = (self.layout.segment_bytes / self.frames.smallest()) as usize;
            let lbas = Vec::with_capacity(slots);
            self.open[stream] = Some(Open { segment, offset: 0, rows: 0, ready_ns: 0, lbas });
        }
    }

    /// Seals the segment of a stream, after padding the rest.
    fn seal(&mut self, stream: usize) {
        let Some(open) = &mut self.open[stream] else { return };
        let rest = self.layout.segment_bytes - open.offset;
        open.offset += rest;
        self.counts.padding_bytes += u64::from(rest);
        self.hand_on_rows(stream, self.accepted_bytes);
        let Some(mut open) = self.open[stream].take() else { return };
        open.lbas.sort_unstable();
        open.lbas.dedup();
        let lbas = LbaSet::new(&open.lbas, self.spec.user_blocks);
        // The end that no frame fits into is not reclaimable: a new segment wastes as much.
        self.segments.seal(open.segment, self.layout.segment_bytes - rest, lbas);
    }

    /// Issues the full rows and the parity rows that follow them. The host's bytes up to `covered`
    /// are in these rows or earlier ones.
    fn hand_on_rows(&mut self, stream: usize, covered: u64) {
        let Some(open) = &mut self.open[stream] else { return };
        let covered = (stream == 0).then_some(covered);
        while open.offset / self.layout.row_bytes > open.rows {
            let first = self.layout.row_number(open.rows);
            open.rows += 1;
            for number in first..self.layout.row_number(open.rows) {
                let location = self.layout.row_location(number);
                let address = self.segments.block(open.segment, location.die);
                if location.row == 0 {
                    self.drain.erase(self.now_ns, address);
                }
                let is_parity = number > first;
                let covered = covered.filter(|_| !is_parity);
                self.drain.program(self.now_ns, address, location.row, open.ready_ns, covered);
                let row_bytes = u64::from(self.layout.row_bytes);
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
    fn release(&mut self, entry: u32, bytes: u32) {
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
    fn entries_of(&self, segment: u32) -> std::ops::Range<u32> {
        let first = self.layout.entry(segment, 0);
        first..first + self.layout.units
    }

    fn row_address(&self, segment: u32, data_row: u32) -> (BlockAddress, u32) {
        let location = self.layout.row_location(self.layout.row_number(data_row));
        (self.segments.block(segment, location.die), location.row)
    }

    /// Reads pages of a row, unless they are in the buffer. Returns the time at which they are
    /// available.
    fn read_row(&mut self, row: Option<RowRead>) -> u64 {
        let Some(RowRead { segment, data_row, pages, bytes, .. }) = row else { return 0 };
        let (address, row) = self.row_address(segment, data_row);
        if self.drain.is_buffered(&self.flash, self.now_ns, address, row) {
            return self.now_ns;
        }
        let pages = pages.min(self.spec.shape.planes);
        let bytes = bytes.min(pages * self.spec.shape.page_bytes);
        let read = self.flash.read(self.now_ns, address, row, pages, bytes);
        read.expect("what the map names is programmed or in the buffer")
    }
}

impl RowRead {
    fn new(segment: u32, data_row: u32) -> Self {
        Self { segment, data_row, last_page: u32::MAX, pages: 0, bytes: 0 }
    }

    /// Adds the part of a frame from `offset` to `end` that the row contains.
    fn add(&mut self, layout: &Layout, offset: u32, end: u32) {
        let row_begin = self.data_row * layout.row_bytes;
        let from = offset.max(row_begin);
        let to = end.min(row_begin + layout.row_bytes);
        let (first, last) = (layout.page_of(from), layout.page_of(to - 1));
        // A page that two adjacent frames share is sensed once.
        self.pages += last - first + u32::from(self.last_page != first);
        self.last_page = last;
        self.bytes += to - from;
    }
}

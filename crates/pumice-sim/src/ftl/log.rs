//! A log-structured flash translation layer without content.
//!
//! ```text
//! host write --> write buffer --(a row is full)--> queue of a die --> flash
//!                    ^ waits while it is full          ^ rows of moved data, in proportion
//! host read  --> map --> in the buffer: at once; else pages of flash, before all rows that wait
//! ```
//!
//! Stands for two kinds of drive. *Page-mapped*: every block is stored as it is. *Compressing*: a
//! block takes as many bytes as its frame has, frames stand byte by byte behind one another, and
//! may straddle rows, not segments.
//!
//! **Memory** of 10^12 bytes = 244,140,625 blocks of a host:
//!
//! ```text
//! map              4 bytes a block                                       977 MB
//! reverse lists    at most 2 entries a block (a list is thinned when     two entries of 12 to
//!                  half of it died), each log2(segments), rounded, and   15 bits a block:
//!                  2 to 3 bits                                           730 to 920 MB
//! tables           8 bytes an erase block, about 100 a segment           a few MB
//! ```
//!
//! [`LogSpec::memory_bytes_max`] is that sum for any drive. Data that compresses makes lists
//! longer, but never longer than twice what is live.
//!
//! **Work** of a write is that of its block and of those that garbage collection moves for it, some
//! look-ups each, and a logarithm of the dies for each row: nothing grows with the drive but the
//! choice of a victim, which looks at each segment once.
//!
//! What becomes of the map is decided when the host's call comes; the flash takes its time
//! afterwards ([`Drain`]). Moved data is read at that moment too, and waits in memory that is not
//! counted: a real drive would read it later. Blocks are erased just before their first row is
//! programmed, a die at a time. There is no power loss here: nothing is recovered, and the map is
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

/// Why a frame is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Host,
    Collected,
    Leveled,
}

/// A segment that a stream goes on in.
#[derive(Clone, Debug)]
struct Open {
    segment: u32,
    /// Where the next frame begins.
    offset: u32,
    /// Data rows that were handed on.
    rows: u32,
    /// When the data of the row that fills is there.
    ready_ns: u64,
    /// In the order of their frames.
    lbas: Vec<u32>,
}

/// Pages of one row that are to be read.
#[derive(Clone, Copy, Debug)]
struct RowRead {
    segment: u32,
    data_row: u32,
    last_page: u32,
    pages: u32,
    bytes: u32,
}

/// A drive in virtual time. Calls come in non-decreasing time.
#[derive(Clone, Debug)]
pub struct LogFtl {
    spec: LogSpec,
    layout: Layout,
    frames: FrameSizes,
    flash: Flash,
    drain: Drain,
    segments: Segments,
    /// Where each block is: see [`Layout`].
    map: Box<[u32]>,
    /// Of the host, of what is collected (unused if it shares the host's), and of what is moved to
    /// even out wear: cold data, which would be moved again with what is not.
    open: [Option<Open>; 3],
    collection: Collection,
    /// Bytes of the host's frames so far.
    accepted_bytes: u64,
    /// When the last write was acknowledged: they are in order.
    acknowledged_ns: u64,
    now_ns: u64,
    counts: LogCounts,
    #[cfg(test)]
    trace: Vec<tests::Event>,
}

impl LogFtl {
    /// An empty drive at time 0.
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

    /// Writes blocks; gives when they are acknowledged: when the buffer has room for the last of
    /// them, in the order of writes. While rows wait for their die that is a forecast (see the
    /// module `drain`): what reads take that come in between, the writes after this one wait for.
    ///
    /// A host that waits for some of its writes before it makes more keeps the forecast short; one
    /// that never waits has each write look at all that waits for a die.
    ///
    /// # Errors
    /// `InvalidInput` for blocks that do not exist, `NoSpace` if nothing is to be gained any more.
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

    /// Reads blocks; gives when the last of them is there. Blocks that were never written, and
    /// those still in the buffer, take no time.
    ///
    /// # Errors
    /// `InvalidInput` for blocks that do not exist.
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

    /// Forgets blocks. Takes no time, and the flash none.
    ///
    /// # Errors
    /// `InvalidInput` for blocks that do not exist.
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

    /// Hands over the row that fills, padded; gives when everything that was written is on flash, a
    /// forecast as that of [`LogFtl::write`]. Moved data is left to fill its row: its old place is
    /// still there.
    ///
    /// # Errors
    /// `NoSpace` if nothing is to be gained any more.
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

    /// Lets time go on until the flash has done all that was handed to it; gives when that is, the
    /// earliest time for the next call.
    pub fn settle(&mut self) -> u64 {
        self.now_ns = self.drain.finish(&mut self.flash, self.now_ns);
        self.now_ns
    }

    /// What it is made of.
    pub fn spec(&self) -> &LogSpec {
        &self.spec
    }

    /// What was written and why.
    pub fn counts(&self) -> LogCounts {
        self.counts
    }

    /// What the flash has done so far; rows that wait for their die are not in it.
    pub fn flash_counts(&self) -> FlashCounts {
        self.flash.counts()
    }

    /// How worn the blocks are that are not bad.
    pub fn wear(&self) -> Wear {
        self.segments.free_blocks().wear(&self.flash)
    }

    /// How often each block was erased that is not bad, die after die.
    pub fn erases(&self) -> impl Iterator<Item = u32> {
        self.segments.free_blocks().erases(&self.flash)
    }

    /// Segments that are free now.
    pub fn free_segments(&self) -> u32 {
        self.segments.free_count()
    }

    /// Bytes of memory it takes now.
    pub fn memory_bytes(&self) -> u64 {
        let open: usize = self.open.iter().flatten().map(|open| 4 * open.lbas.capacity()).sum();
        let flash = 8 * u64::from(self.spec.shape.dies() * self.spec.shape.blocks_per_plane);
        let map = 4 * self.map.len() as u64;
        let moving = self.collection.heap_bytes() + open as u64;
        map + self.segments.heap_bytes() + self.drain.heap_bytes() + moving + flash
    }

    /// Goes on to `now_ns`, and looks at the blocks.
    fn begin(&mut self, now_ns: u64, lba: Lba, blocks: u32) -> Result<u32> {
        let end = lba.0.checked_add(blocks.into());
        if end.is_none_or(|end| end > self.spec.user_blocks) {
            let what = format!("a drive of {} blocks has none at {lba}", self.spec.user_blocks);
            return Err(Error::InvalidInput(what.into()));
        }
        if now_ns < self.now_ns {
            let what = format!("a call at {now_ns} ns came after one at {} ns", self.now_ns);
            return Err(Error::InvalidInput(what.into()));
        }
        self.now_ns = now_ns;
        self.drain.advance(&mut self.flash, now_ns);
        Ok(lba.0 as u32)
    }

    /// Puts a block's frame at the end of its stream; gives its bytes.
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
            // What stands behind the row's end is of this frame.
            let behind = if cause == Cause::Host { end % self.layout.row_bytes } else { 0 };
            self.hand_on_rows(stream, self.accepted_bytes - u64::from(behind));
        }
        Ok(bytes)
    }

    /// Sees to it that a stream has an open segment with room for `bytes`. The host leaves a free
    /// segment to what is moved.
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
            // What hardly ever changes spares the blocks that have been erased most.
            let which = if cause == Cause::Leveled { Worn::Most } else { Worn::Least };
            let Some(segment) = self.segments.open(which) else {
                let what = "no segment is free for what is moved";
                return Err(Error::NoSpace(what.into()));
            };
            let slots = (self.layout.segment_bytes / self.frames.smallest()) as usize;
            let lbas = Vec::with_capacity(slots);
            self.open[stream] = Some(Open { segment, offset: 0, rows: 0, ready_ns: 0, lbas });
        }
    }

    /// Closes a stream's segment, whose rest is padded.
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
        // The end that no frame fits into is no gain, since as much is lost elsewhere.
        self.segments.seal(open.segment, self.layout.segment_bytes - rest, lbas);
    }

    /// Hands on the rows that are full, and the parity rows behind them. The host's bytes up to
    /// `covered` are in them or before.
    fn hand_on_rows(&mut self, stream: usize, covered: u64) {
        let Some(open) = &mut self.open[stream] else { return };
        let covered = (stream == 0).then_some(covered);
        while open.offset / self.layout.row_bytes > open.rows {
            let first = self.layout.row_number(open.rows);
            open.rows += 1;
            for number in first..self.layout.row_number(open.rows) {
                let place = self.layout.row_place(number);
                let address = self.segments.block(open.segment, place.die);
                if place.row == 0 {
                    self.drain.erase(self.now_ns, address);
                }
                let is_parity = number > first;
                let covered = covered.filter(|_| !is_parity);
                self.drain.program(self.now_ns, address, place.row, open.ready_ns, covered);
                let row_bytes = u64::from(self.layout.row_bytes);
                self.counts.flash_bytes += row_bytes;
                self.counts.parity_bytes += if is_parity { row_bytes } else { 0 };
            }
        }
        // The last frame may go on in the next row.
        if open.offset.is_multiple_of(self.layout.row_bytes) {
            open.ready_ns = 0;
        }
    }

    /// Notes that what a map entry named is dead.
    #[inline]
    fn release(&mut self, entry: u32, bytes: u32) {
        let segment = self.layout.segment(entry);
        if self.segments.release(segment, bytes) {
            self.thin(segment);
        }
    }

    /// Takes the dead out of a segment's list.
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

    /// The map entries of blocks in a segment.
    fn entries_of(&self, segment: u32) -> std::ops::Range<u32> {
        let first = self.layout.entry(segment, 0);
        first..first + self.layout.places
    }

    fn row_address(&self, segment: u32, data_row: u32) -> (BlockAddress, u32) {
        let place = self.layout.row_place(self.layout.row_number(data_row));
        (self.segments.block(segment, place.die), place.row)
    }

    /// Reads pages of a row, unless they are in the buffer; gives when they are there.
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

    /// Adds what the row has of a frame from `offset` to `end`.
    fn add(&mut self, layout: &Layout, offset: u32, end: u32) {
        let row_begin = self.data_row * layout.row_bytes;
        let from = offset.max(row_begin);
        let to = end.min(row_begin + layout.row_bytes);
        let (first, last) = (layout.page_of(from), layout.page_of(to - 1));
        // The page that two neighbours share is sensed once.
        self.pages += last - first + u32::from(self.last_page != first);
        self.last_page = last;
        self.bytes += to - from;
    }
}

//! A log-structured flash translation layer without contents.
//!
//! ```text
//! host write --> write buffer --(a row is full)--> queue of a die --> flash
//!                    ^ waits while it is full          ^ rows of moved data, in proportion
//! host read  --> map --> in the buffer: no wait; else pages of flash, before all waiting rows
//! ```
//!
//! The layer simulates two kinds of drives. *Page-mapped*: every block is stored uncompressed.
//! *Compressing*: a block occupies the bytes of its frame; frames are packed byte by byte and can
//! straddle rows, but not segments.
//!
//! **Memory** for 10^12 bytes, which are 244,140,625 host blocks:
//!
//! ```text
//! map              4 bytes a block                                       977 MB
//! reverse lists    at most 2 entries a block (a list is thinned when     two entries of 12 to
//!                  half of it died), each log2(segments), rounded, and   15 bits a block:
//!                  2 to 3 bits                                           730 to 920 MB
//! tables           8 bytes an erase block, about 100 a segment           a few MB
//! ```
//!
//! [`LogSpec::memory_bytes_max`] calculates this sum for any drive. Compressible data makes the
//! lists longer, but never longer than twice the number of live blocks.
//!
//! The **work** for a write is a few lookups for its block and for each block that garbage
//! collection moves because of it, plus the logarithm of the number of dies for each row. Only the
//! selection of a victim grows with the drive, because it examines each segment once.
//!
//! A call updates the map immediately; the flash operations follow in virtual time ([`Drain`]).
//! Moved data is also read immediately, and waits in memory that is not counted; a real drive would
//! read it later. Blocks are erased just before their first row is programmed, one die at a time.
//! Power loss is not simulated: there is no recovery, and the map is not written.
//!
//! * `requests`: the requests of the host; `append`: the path of a frame to the flash.
//! * `collect`: garbage collection and wear leveling; `faults`: failed parts of the flash.

mod append;
mod collect;
mod faults;
mod requests;

pub use faults::{Fault, FaultKind, RebuildTimes};
pub use requests::ReadTimes;

#[cfg(test)]
mod tests;

use collect::Collection;
use faults::Faults;

use super::drain::Drain;
use super::layout::{Layout, UNMAPPED};
use super::segments::Segments;
use super::sizes::FrameSizes;
use super::spec::Parts;
use super::{LogCounts, LogSpec, StoredSizes};
use crate::Result;
use crate::nand::{Flash, FlashCounts, Wear};

/// The reason why a frame is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Host,
    /// A frame of the host that surrounds a block written by the host.
    Rewritten,
    Collected,
    Leveled,
    /// A rewrite after a failure of the flash.
    Rebuilt,
}

/// The open segment of a stream.
#[derive(Clone, Debug)]
struct Open {
    segment: u32,
    /// Offset of the next frame.
    offset: u32,
    /// Number of data rows issued.
    rows: u32,
    /// The time at which the data of the current row has arrived.
    ready_ns: u64,
    /// Bytes up to `offset` that do not and cannot contain a frame: holes, and the bytes before a
    /// hole that were too few for the next frame.
    hole_bytes: u32,
    /// Blocks in the order of their frames.
    lbas: Vec<u32>,
}

/// A drive in virtual time. The times of successive calls must not decrease.
#[derive(Clone, Debug)]
pub struct LogFtl {
    spec: LogSpec,
    layout: Layout,
    frames: FrameSizes,
    flash: Flash,
    drain: Drain,
    segments: Segments,
    /// Map entry of each block; see [`Layout`].
    map: Box<[u32]>,
    /// The streams: for the host, for garbage collection (unused if it shares the host's), and for
    /// wear leveling, whose cold data would otherwise be moved again together with hot data.
    open: [Option<Open>; 3],
    collection: Collection,
    faults: Faults,
    /// Bytes of the host's frames so far.
    accepted_bytes: u64,
    /// Time at which the next row can be sent to the flash.
    store_free_ns: u64,
    /// Time of the last acknowledgement. Writes are acknowledged in order.
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
    /// The errors of [`LogSpec::check`].
    pub fn new(spec: LogSpec) -> Result<Self> {
        let Parts { mut frames, layout, free_blocks } = spec.parts()?;
        if spec.stored == StoredSizes::AsWritten {
            frames.keep_written(spec.user_blocks);
        }
        Ok(Self {
            layout,
            frames,
            flash: Flash::new(spec.shape, spec.timing)?,
            drain: Drain::new(spec.shape.dies()),
            segments: Segments::new(&spec.shape, free_blocks),
            map: vec![UNMAPPED; spec.user_blocks as usize].into_boxed_slice(),
            open: [None, None, None],
            collection: Collection::default(),
            faults: Faults::default(),
            accepted_bytes: 0,
            store_free_ns: 0,
            acknowledged_ns: 0,
            now_ns: 0,
            counts: LogCounts::default(),
            #[cfg(test)]
            trace: Vec::new(),
            spec,
        })
    }

    /// Returns the specification of the drive.
    pub fn spec(&self) -> &LogSpec {
        &self.spec
    }

    /// Returns the counters of written bytes.
    pub fn counts(&self) -> LogCounts {
        self.counts
    }

    /// Returns the number of flash operations so far, excluding rows that are waiting for their
    /// die.
    pub(crate) fn flash_counts(&self) -> FlashCounts {
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
        let moving = self.collection.heap_bytes() + self.faults.heap_bytes() + open as u64;
        map + self.frames.heap_bytes()
            + self.segments.heap_bytes()
            + self.drain.heap_bytes()
            + moving
            + flash
    }
}

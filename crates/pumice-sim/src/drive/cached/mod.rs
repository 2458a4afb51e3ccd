//! A drive with a cache in front: a software cache in the host's memory, a card with memory, or a
//! faster drive before a slower one.
//!
//! ```text
//! read   hit  -> cache                        miss -> slow drive, then into the cache
//! write  through: cache and slow drive        back -> cache; later, in order, to the slow drive
//! ```
//!
//! **Lines** of 4 to 64 KiB; the least recently used line makes room. A read that misses brings
//! whole lines. A write of a whole line enters the cache; a write of a part of an absent line first
//! brings the rest (write-back) or leaves the line out (write-through).
//!
//! **Write-back**: when more than half of the lines are newer than the slow drive's, they are
//! written back, in ascending order, adjacent lines together. Only lines that the slow drive also
//! has can make room. While there are none, writes go past the cache.
//!
//! **Power loss.** A cache is volatile (memory of the host) or not (flash, memory with a battery).
//! A write-through cache is never the only one to have data. A flush of a write-back cache flushes
//! both drives, and writes back first if the cache is volatile. A line that a cache that is not
//! volatile has written back counts as old only after a flush of the slow drive.
//!
//! Not simulated: the cache's own map on its medium, sequential reads that pass a cache, promotion
//! after several uses, recovery.

mod lines;
mod simulated;
mod spec;
#[cfg(test)]
mod tests;

pub use simulated::CacheCounts;
pub(super) use simulated::Cached;
pub(crate) use spec::{CALL_NS, COPY_BYTES_PER_S};
pub use spec::{CachedSpec, DriveCache};

//! A drive with a cache in front: a software cache in host memory, a card with memory, or a faster
//! drive in front of a slower one.
//!
//! ```text
//! read   hit  -> cache                        miss -> slow drive, then into the cache
//! write  through: cache and slow drive        back -> cache; later, in order, to the slow drive
//! ```
//!
//! **Lines** have 4 to 64 KiB; the least recently used line is evicted. A read that misses fetches
//! whole lines. A write of a whole line enters the cache. A write of a part of an absent line first
//! fetches the rest (write-back) or bypasses the cache (write-through).
//!
//! **Write-back**: when more than half of the lines are newer than on the slow drive, they are
//! written back in ascending order, adjacent lines together. Only lines that are also on the slow
//! drive can be evicted. While there are none, writes bypass the cache.
//!
//! **Power loss.** A cache is volatile (host memory) or non-volatile (flash, memory with a
//! battery). A write-through cache never contains the only copy of data. A flush of a write-back
//! cache flushes both drives, after writing back the cache if it is volatile. A line that a
//! non-volatile cache has written back counts as clean only after a flush of the slow drive.
//!
//! Not simulated: the cache's own map on its medium, sequential reads that bypass a cache,
//! promotion after several uses, recovery.

mod lines;
mod simulated;
mod spec;
#[cfg(test)]
mod tests;

pub use simulated::CacheCounts;
pub(super) use simulated::Cached;
pub(crate) use spec::{CALL_NS, COPY_BYTES_PER_S};
pub use spec::{CachedSpec, DriveCache};

//! The parameters of a hard disk.

use crate::{Error, Result};

/// Parameters of a disk, excluding its front end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DiskSpec {
    /// Revolutions per minute.
    pub rpm: u64,
    /// Seek time to the next track, in ns.
    pub seek_track_ns: u64,
    /// Mean seek time between two random tracks, in ns.
    pub seek_average_ns: u64,
    /// Seek time over the full stroke, in ns.
    pub seek_full_ns: u64,
    /// Bytes per second on the outermost track.
    pub outer_bytes_per_s: u64,
    /// Bytes per second on the innermost track; not more than on the outermost track.
    pub inner_bytes_per_s: u64,
    /// Maximum number of bytes of pending writes, and of read-ahead.
    pub cache_bytes: u64,
    /// Whether the drive reorders commands by access time.
    pub ncq: bool,
    /// With `ncq`, the number of oldest operations from which the drive chooses; at least 1.
    pub reorder_max: u32,
}

impl DiskSpec {
    /// Checks the parameters.
    ///
    /// # Errors
    /// `InvalidInput` for platters that do not turn, an inner rate that is zero or exceeds the
    /// outer rate, seek times that do not increase, or a `reorder_max` of 0.
    pub fn check(&self) -> Result<()> {
        let wrong = |what: &'static str| Err(Error::InvalidInput(what.into()));
        if self.rpm == 0 {
            return wrong("rpm must not be zero");
        }
        if self.inner_bytes_per_s == 0 || self.inner_bytes_per_s > self.outer_bytes_per_s {
            return wrong("inner_bytes_per_s must be from 1 to outer_bytes_per_s");
        }
        let seeks = [self.seek_track_ns, self.seek_average_ns, self.seek_full_ns];
        if !seeks.is_sorted() || self.seek_full_ns > 10_000_000_000 {
            return wrong(
                "seek times must increase from track to average to full, up to ten seconds",
            );
        }
        if self.reorder_max == 0 {
            return wrong("reorder_max must be at least 1");
        }
        Ok(())
    }
}

//! Options for opening a drive, and their defaults.

#![warn(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::indexing_slicing
)]

use super::core::WARN_THRESHOLDS_MAX;
use crate::codec::Codec;

/// Default bytes of clean and dirty leaves of the map in memory: the whole map of a disk of 64 GiB
/// that was written in random blocks.
pub(crate) const MAP_CACHE_BYTES_DEFAULT: usize = 256 << 20;

/// Default maximum bytes of log between checkpoints: the amount that is read again, in a second or
/// less, when a drive is opened after a crash.
const CHECKPOINT_BYTES_DEFAULT: u64 = 1 << 30;

/// Default bytes of memory for decoded blocks that were read: modest, as most hosts have their own
/// cache.
const READ_CACHE_BYTES_DEFAULT: usize = 32 << 20;

/// Default bytes of memory for data that is read ahead of sequential readers: enough for three or
/// four of them whose data does not compress.
pub const READ_AHEAD_BYTES_DEFAULT: usize = 8 << 20;

/// Default for the space that a drive may occupy on its medium in addition to its live bytes, in
/// percent of them, while the host is quiet: equal to the dead bytes of a drive on which garbage
/// collection can work at a low cost.
pub const COMPACT_PERCENT_DEFAULT: u32 = 20;

/// Options for opening a drive. Later versions may add fields: set the fields that differ, and use
/// struct update with [`OpenOptions::default`] for the rest.
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// Refuse writes and change nothing on the medium.
    pub read_only: bool,
    /// Open a disk even if some of its data is missing: one that contains only a part of a snapshot
    /// that is being received, or that of a bookmark, which can be compared but not read.
    pub incomplete: bool,
    /// Approximate bytes of the map's leaves to cache in memory. With less than a few MiB,
    /// checkpoints are frequent, and batches short; with less than 1 MiB, garbage collection of a
    /// drive that is half full may gain nothing, and writes wait.
    pub map_cache_bytes: usize,
    /// Bytes of memory for decoded blocks that were read; 0 disables the cache.
    pub read_cache_bytes: usize,
    /// Bytes of memory for data that is read ahead of sequential readers; 0 disables reading ahead.
    pub read_ahead_bytes: usize,
    /// Maximum bytes of log between checkpoints.
    pub checkpoint_bytes: u64,
    /// A denser codec for data that garbage collection moves.
    pub recompress: Option<Codec>,
    /// Shares of the capacity in use, in percent, that cause a warning; 0 disables a threshold.
    /// `None` uses the thresholds stored on the drive.
    pub warn_percent: Option<[u8; WARN_THRESHOLDS_MAX]>,
    /// While the host changes nothing, segments are emptied and discarded until the drive occupies
    /// no more than this in addition to its live bytes, in percent of them. `None` leaves them
    /// until the log needs them; segments without live bytes are discarded in any case.
    pub compact_percent: Option<u32>,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            incomplete: false,
            map_cache_bytes: MAP_CACHE_BYTES_DEFAULT,
            read_cache_bytes: READ_CACHE_BYTES_DEFAULT,
            read_ahead_bytes: READ_AHEAD_BYTES_DEFAULT,
            checkpoint_bytes: CHECKPOINT_BYTES_DEFAULT,
            recompress: None,
            warn_percent: None,
            compact_percent: Some(COMPACT_PERCENT_DEFAULT),
        }
    }
}

//! The flags of subcommands that open a drive for hosts.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::thread::available_parallelism;

use clap::value_parser;

use super::size;
use super::values::{Compaction, compaction, map_cache};
use crate::storage::{Absent, Access};
use pumice_drive::codec::Codec;
use pumice_drive::controller::{COMPACT_PERCENT_DEFAULT, OpenOptions, READ_AHEAD_BYTES_DEFAULT};

/// Flags of subcommands that open a drive for hosts.
#[derive(Clone, Debug, PartialEq, clap::Args)]
#[group(skip)]
pub(crate) struct Opening {
    /// Refuse writes and change nothing
    #[arg(long)]
    pub(crate) read_only: bool,

    /// Approximate memory for the map of each drive, at least 1M; the rest is read from the drive
    /// on demand. 64M covers 26 GiB written in long requests, or 128 GiB on a drive of solid frames
    /// (`create --frame solid`)
    #[arg(long, value_parser = map_cache, default_value = "256M", value_name = "SIZE")]
    map_cache: u64,

    /// Memory for the recently read, decoded blocks of each drive; 0 for none
    #[arg(long, value_parser = size, default_value = "32M", value_name = "SIZE")]
    cache: u64,

    /// Maximum amount of log between checkpoints; recovery after a crash reads all of it
    #[arg(long, value_parser = size, default_value = "1G", value_name = "SIZE")]
    checkpoint: u64,

    /// Recompress data that garbage collection moves with a denser codec: zstd or zstd:LEVEL. Where
    /// that saves 1/16 or more, frames of chunks become solid ones
    #[arg(long, value_name = "CODEC")]
    recompress: Option<Codec>,

    /// While the host is quiet, return the space of dead data to the medium until the drive
    /// occupies at most this much beyond its live data, in percent of the live data; or off
    /// [default: 20 for a file, off for a block device]
    #[arg(long, value_parser = compaction, value_name = "PERCENT|off")]
    compact: Option<Compaction>,

    /// Threads that compress data, for all drives together and including the threads that serve
    /// them; a server spreads its drives over up to this many [default: one per processor, at most
    /// 8]
    #[arg(long, value_parser = value_parser!(u16).range(1..=THREADS_MAX), value_name = "NUMBER")]
    threads: Option<u16>,

    /// Serve a mirror even if a missing member may have been written to without the others; that
    /// member must be replaced afterwards
    #[arg(long)]
    degraded: bool,

    /// Serve s3://BUCKET/NAME for writing without a local file, and take the drive over from the
    /// machine that has its journal: a flush returns once all data is in the bucket, and up to 20
    /// segments are in memory
    #[arg(long, conflicts_with = "read_only")]
    diskless: bool,

    /// Time for which a thread with drives polls for the next request before it sleeps, in
    /// microseconds, as long as polling often succeeds; 0 saves processor time, but clients with
    /// few requests in flight wait longer
    #[arg(long, value_parser = value_parser!(u16).range(..=BUSY_POLL_US_MAX), default_value = "50",
        value_name = "MICROSECONDS")]
    busy_poll: u16,
}

/// Longer than any client on this machine takes for its next request.
const BUSY_POLL_US_MAX: i64 = 1000;

/// Far more than one thread that orders all writes can use.
const THREADS_MAX: i64 = 64;

/// Maximum of the default number of threads: the same as in other servers of block devices. Not
/// measured: no machine with that many processors was available.
const THREADS_DEFAULT_MAX: usize = 8;

impl Opening {
    /// Returns the number of threads that compress, and the maximum number of threads that serve
    /// drives.
    pub(crate) fn threads(&self) -> usize {
        let processors = || available_parallelism().map_or(1, usize::from);
        let threads = self.threads.map(usize::from);
        threads.unwrap_or_else(|| processors().min(THREADS_DEFAULT_MAX))
    }

    /// Returns the number of compression threads in addition to those of the drives: none if a
    /// single thread does all the work.
    pub(crate) fn compressors(&self) -> usize {
        if self.read_only { 0 } else { self.threads() - 1 }
    }

    /// Returns how the medium is opened; members of its array that were moved may be at `paths`.
    pub(crate) fn access(&self, paths: &[PathBuf]) -> Access {
        Access {
            absent: Absent::default().apart_if(self.degraded),
            members: paths.to_vec(),
            diskless: self.diskless,
            ..Access::new(self.read_only)
        }
    }

    /// Returns how long to poll for completions before sleeping, in nanoseconds.
    pub(crate) fn busy_poll_ns(&self) -> u64 {
        u64::from(self.busy_poll) * 1000
    }

    /// Returns the options for opening the drive at `path`.
    pub(crate) fn options(&self, path: &Path) -> OpenOptions {
        let compact_percent = match self.compact {
            Some(Compaction::Off) => None,
            Some(Compaction::To(percent)) => Some(percent),
            // Few devices benefit from returned space, and returning it costs writes.
            None => Some(COMPACT_PERCENT_DEFAULT).filter(|_| !is_device(path)),
        };
        OpenOptions {
            read_only: self.read_only,
            incomplete: false,
            map_cache_bytes: self.map_cache as usize,
            read_cache_bytes: self.cache as usize,
            read_ahead_bytes: READ_AHEAD_BYTES_DEFAULT,
            checkpoint_bytes: self.checkpoint,
            recompress: self.recompress,
            warn_percent: None,
            compact_percent,
        }
    }
}

fn is_device(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device())
}

//! Opening a drive for a subcommand.

use std::path::Path;
use std::rc::Rc;

use crate::cli::{at_path, size};
use pumice_drive::base::{Clock, ErrorKind, Result};
use pumice_drive::codec::Codec;
use pumice_drive::controller::{COLD_FRAME_BLOCKS_DEFAULT, Drive, OpenOptions};
use pumice_drive::media::file::{self, FileMedium};
use pumice_drive::runtime::Runtime;

/// A drive on a file or device.
pub(crate) type FileDrive = Drive<FileMedium, Runtime>;

/// Flags of those who open a drive to use it.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Opening {
    /// Refuse writes and change nothing
    #[arg(long)]
    pub(crate) read_only: bool,

    /// Memory for the map of a drive, about; what does not fit is read from it when it is needed
    #[arg(long, value_parser = size, default_value = "256M", value_name = "SIZE")]
    map_cache: u64,

    /// Log between checkpoints at most: what an opening after a crash reads again
    #[arg(long, value_parser = size, default_value = "1G", value_name = "SIZE")]
    checkpoint: u64,

    /// Compress what garbage collection moves with a denser codec: zstd or zstd:LEVEL
    #[arg(long, value_name = "CODEC")]
    recompress: Option<Codec>,
}

impl Opening {
    /// What the drive is told.
    pub(crate) fn options(&self) -> OpenOptions {
        OpenOptions {
            read_only: self.read_only,
            map_cache_bytes: self.map_cache as usize,
            checkpoint_bytes: self.checkpoint,
            recompress: self.recompress,
            cold_frame_blocks: COLD_FRAME_BLOCKS_DEFAULT,
            warn_percent: None,
        }
    }
}

/// How often and how long apart something that is in use is tried again: a server that was killed
/// holds its file and its sockets until the kernel has ended the operations it had in flight.
const BUSY_ATTEMPTS: u32 = 50;
const BUSY_PAUSE_NS: u64 = 20_000_000;

/// What `attempt` gives, tried again for a second while it is `Busy`.
pub(crate) fn while_busy<T>(runtime: &Runtime, attempt: impl Fn() -> Result<T>) -> Result<T> {
    for _ in 1..BUSY_ATTEMPTS {
        match attempt() {
            Err(error) if error.kind() == ErrorKind::Busy => {
                runtime.block_on(runtime.sleep_ns(BUSY_PAUSE_NS));
            }
            result => return result,
        }
    }
    attempt()
}

/// Opens the medium at `path`, for writing or for looking only.
///
/// # Errors
/// Those of [`FileMedium::open`]; `Busy` after a second of trying.
pub(crate) fn medium(runtime: &Runtime, path: &Path, read_only: bool) -> Result<FileMedium> {
    let options = file::OpenOptions { read_only, direct: true };
    while_busy(runtime, || FileMedium::open(runtime.clone(), path, options))
}

/// Opens the drive at `path` and starts its background tasks.
///
/// # Errors
/// Those of [`FileMedium::open`] and [`Drive::open`], with the path.
pub(crate) fn drive(runtime: &Runtime, path: &Path, options: OpenOptions) -> Result<Rc<FileDrive>> {
    let medium = medium(runtime, path, options.read_only)?;
    let opening = Drive::open(medium, runtime.clone(), options);
    runtime.block_on(opening).map_err(|error| at_path(path, error))
}

//! Opens a drive for a subcommand.

use std::path::Path;
use std::rc::Rc;

use anyhow::{Context, Result};

use crate::cli::size;
use pumice_drive::base::clock::while_busy;
use pumice_drive::base::{self, ErrorKind};
use pumice_drive::codec::Codec;
use pumice_drive::controller::{COLD_FRAME_BLOCKS_DEFAULT, Drive, OpenOptions};
use pumice_drive::media::file::{FileMedium, FileOptions};
use pumice_drive::runtime::Runtime;

/// A drive on a file or device.
pub(crate) type FileDrive = Drive<FileMedium, Runtime>;

/// Flags of subcommands that open a drive for hosts.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Opening {
    /// Refuse writes and change nothing
    #[arg(long)]
    pub(crate) read_only: bool,

    /// Approximate memory for the map of each drive; the rest is read from the drive on demand
    #[arg(long, value_parser = size, default_value = "256M", value_name = "SIZE")]
    map_cache: u64,

    /// Maximum amount of log between checkpoints, all of which is read after a crash
    #[arg(long, value_parser = size, default_value = "1G", value_name = "SIZE")]
    checkpoint: u64,

    /// Recompress data that garbage collection moves with a denser codec: zstd or zstd:LEVEL
    #[arg(long, value_name = "CODEC")]
    recompress: Option<Codec>,
}

impl Opening {
    /// Returns the options for opening the drive.
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

/// Waits for up to a second until `condition` holds. Returns whether it does.
#[cfg(feature = "attach")]
pub(crate) fn wait_until(runtime: &Runtime, condition: impl Fn() -> bool) -> bool {
    let unmet = || base::Error::new(ErrorKind::Busy, "not yet");
    runtime.block_on(while_busy(runtime, || condition().then_some(()).ok_or_else(unmet))).is_ok()
}

/// Whether a drive could not be opened because it is open elsewhere.
#[cfg(feature = "attach")]
pub(crate) fn is_busy(error: &anyhow::Error) -> bool {
    error.downcast_ref::<base::Error>().is_some_and(|error| error.kind() == ErrorKind::Busy)
}

/// Opens the medium at `path`.
///
/// # Errors
/// Those of [`FileMedium::open`]; `Busy` if the medium is still in use after a second.
pub(crate) fn medium(runtime: &Runtime, path: &Path, read_only: bool) -> Result<FileMedium> {
    let options = FileOptions::default().with_read_only(read_only).with_direct(true);
    let open = || FileMedium::open(runtime.clone(), path, options);
    Ok(runtime.block_on(while_busy(runtime, open))?)
}

/// Opens the drive at `path` and starts its background tasks.
///
/// # Errors
/// Those of [`FileMedium::open`] and [`Drive::open`], with the path.
pub(crate) fn drive(runtime: &Runtime, path: &Path, options: OpenOptions) -> Result<Rc<FileDrive>> {
    let medium = medium(runtime, path, options.read_only)?;
    let opening = Drive::open(medium, runtime.clone(), options);
    runtime.block_on(opening).with_context(|| path.display().to_string())
}

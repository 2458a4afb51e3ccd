//! Opening a drive for a subcommand.

use std::path::Path;
use std::rc::Rc;

use crate::base::{Clock, ErrorKind, Result};
use crate::cli::at_path;
use crate::controller::{Drive, OpenOptions, WRITERS};
use crate::media::file::{self, FileMedium};
use crate::runtime::Runtime;

/// A drive on a file or device.
pub(crate) type FileDrive = Drive<FileMedium, Runtime>;

/// How often and how long apart a locked file is tried again: a server that was killed holds its
/// file until the kernel has ended the operations it had in flight.
const LOCK_ATTEMPTS: u32 = 50;
const LOCK_PAUSE_NS: u64 = 20_000_000;

/// Opens the medium at `path`, for writing or for looking only.
///
/// # Errors
/// Those of [`FileMedium::open`]; `Busy` after a second of trying.
pub(crate) fn medium(runtime: &Runtime, path: &Path, read_only: bool) -> Result<FileMedium> {
    let options = file::OpenOptions { read_only, direct: true };
    for _ in 1..LOCK_ATTEMPTS {
        match FileMedium::open(runtime.clone(), path, options) {
            Err(error) if error.kind() == ErrorKind::Busy => {
                runtime.block_on(runtime.sleep_ns(LOCK_PAUSE_NS));
            }
            result => return result,
        }
    }
    FileMedium::open(runtime.clone(), path, options)
}

/// Opens the drive at `path` and starts its background tasks.
///
/// # Errors
/// Those of [`FileMedium::open`] and [`Drive::open`], with the path.
pub(crate) fn drive(runtime: &Runtime, path: &Path, read_only: bool) -> Result<Rc<FileDrive>> {
    let medium = medium(runtime, path, read_only)?;
    let opening = Drive::open(medium, runtime.clone(), OpenOptions { read_only });
    let drive = runtime.block_on(opening).map_err(|error| at_path(path, error))?;
    let drive = Rc::new(drive);
    for _ in 0..WRITERS {
        let drive = drive.clone();
        runtime.spawn(async move { drive.run_writer().await });
    }
    let upkeep = drive.clone();
    runtime.spawn(async move { upkeep.run_upkeep().await });
    Ok(drive)
}

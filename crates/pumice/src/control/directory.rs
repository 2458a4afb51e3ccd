//! The directory for sockets and records of running drives, and the names in it.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use pumice_drive::base::{Error, ErrorKind, Result};

/// Returns the path of the control socket of a drive.
///
/// # Errors
/// Those of [`place`].
pub(super) fn socket_path(drive: &Path) -> Result<PathBuf> {
    place(drive, "sock")
}

/// Returns a path in the directory of [`private_directory`] for something that belongs to a drive;
/// every path to the drive leads to the same one.
///
/// # Errors
/// `NotFound` if there is nothing at `drive`.
pub(crate) fn place(drive: &Path, suffix: &str) -> Result<PathBuf> {
    let metadata = fs::metadata(drive)
        .map_err(|error| Error::os(format!("cannot open {}", drive.display()), error))?;
    let name = if metadata.file_type().is_block_device() {
        format!("device-{:x}.{suffix}", metadata.rdev())
    } else {
        format!("{:x}-{:x}.{suffix}", metadata.dev(), metadata.ino())
    };
    Ok(directory().join(name))
}

/// Returns the directory for sockets and records of running drives. It is created if it does not
/// exist, and accessible only to the user.
///
/// # Errors
/// It cannot be created, or other users could enter it.
pub(crate) fn private_directory() -> Result<PathBuf> {
    let directory = directory();
    make_private(&directory)?;
    Ok(directory)
}

fn directory() -> PathBuf {
    let user = rustix::process::geteuid();
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(directory) if !directory.is_empty() => PathBuf::from(directory).join("pumice"),
        _ if user.is_root() => PathBuf::from("/run/pumice"),
        _ => std::env::temp_dir().join(format!("pumice-{}", user.as_raw())),
    }
}

/// Creates a directory that only its owner can enter, or checks that it is one.
fn make_private(directory: &Path) -> Result<()> {
    let cannot = |error| Error::os(format!("cannot use {}", directory.display()), error);
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(cannot(error));
        }
        _ => {}
    }
    let metadata = fs::symlink_metadata(directory).map_err(cannot)?;
    let user = rustix::process::geteuid().as_raw();
    if !metadata.is_dir() || metadata.uid() != user || metadata.mode() & 0o077 != 0 {
        let what = format!("{} is not a private directory of this user", directory.display());
        return Err(Error::new(ErrorKind::PermissionDenied, what));
    }
    Ok(())
}

//! Making a place for a new drive, without harm to what is there.
//!
//! Writes no superblock: it only sees to it that there is room, and that the room is ours.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::{FileKind, lock, size};
use rustix::fs::OFlags;

use crate::base::{Error, ErrorKind, Result};

/// Bytes at the front of a device that must be zero for it to count as empty: every common
/// partition table, file system and volume manager leaves a mark there.
const DEVICE_PROBE_BYTES: u64 = 4 << 20;

pub(super) fn create(path: &Path, bytes: u64, force: bool) -> Result<()> {
    match FileKind::of(path) {
        Ok(FileKind::Regular) => reuse_file(path, bytes, force),
        Ok(FileKind::Device) => check_device(path, bytes, force),
        Err(error) if error.kind() == ErrorKind::NotFound => new_file(path, bytes),
        Err(error) => Err(error),
    }
}

fn cannot_create(path: &Path, error: io::Error) -> Error {
    Error::os(format!("cannot create {}", path.display()), error)
}

fn would_overwrite(path: &Path, what: &str) -> Error {
    let what = format!("{} {what}: use --force to overwrite it", path.display());
    Error::new(ErrorKind::AlreadyExists, what)
}

fn new_file(path: &Path, bytes: u64) -> Result<()> {
    let file = File::options()
        .write(true)
        .create_new(true)
        .mode(0o644)
        .open(path)
        .map_err(|error| cannot_create(path, error))?;
    let made = file.set_len(bytes).and_then(|()| file.sync_all()).and_then(|()| sync_parent(path));
    made.map_err(|error| {
        // The first error is the one to report.
        let _ = fs::remove_file(path);
        cannot_create(path, error)
    })
}

/// Makes the directory entry durable.
fn sync_parent(path: &Path) -> io::Result<()> {
    let path = fs::canonicalize(path)?;
    match path.parent() {
        Some(parent) => File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

fn reuse_file(path: &Path, bytes: u64, force: bool) -> Result<()> {
    let failed = |error| cannot_create(path, error);
    let file = File::options().write(true).open(path).map_err(failed)?;
    lock(&file, path, false)?;
    let old_bytes = size(&file, FileKind::Regular).map_err(failed)?;
    if old_bytes > 0 && !force {
        return Err(would_overwrite(path, "exists and is not empty"));
    }
    // Grown before it is emptied: a size that the file system refuses is refused here, with the
    // content untouched.
    file.set_len(old_bytes.max(bytes)).map_err(failed)?;
    file.set_len(0).map_err(failed)?;
    file.set_len(bytes).map_err(failed)?;
    file.sync_all().map_err(failed)?;
    sync_parent(path).map_err(failed)
}

fn check_device(path: &Path, bytes: u64, force: bool) -> Result<()> {
    let failed = |error| cannot_create(path, error);
    let mut opening = File::options();
    // Refused by the kernel if it is mounted or otherwise held.
    opening.read(true).write(true).custom_flags(OFlags::EXCL.bits() as i32);
    let file = opening.open(path).map_err(failed)?;
    lock(&file, path, false)?;
    let device_bytes = size(&file, FileKind::Device).map_err(failed)?;
    if device_bytes < bytes {
        let what = format!(
            "{} is too small: it has {device_bytes} bytes, the drive needs {bytes}",
            path.display()
        );
        return Err(Error::new(ErrorKind::InvalidInput, what));
    }
    if force || is_zero(&file).map_err(failed)? {
        return Ok(());
    }
    Err(would_overwrite(path, "is not blank"))
}

/// Whether the file begins with [`DEVICE_PROBE_BYTES`] zeroes, or is shorter and all zeroes.
fn is_zero(mut file: &File) -> io::Result<bool> {
    io::Seek::rewind(&mut file)?;
    let mut bytes = Vec::new();
    file.take(DEVICE_PROBE_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes.iter().all(|&byte| byte == 0))
}

//! Preparation of a file or device for a new drive, without damage to existing data.
//!
//! This module writes no superblock. It only ensures that enough space exists and that no other
//! data uses it.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::{FileKind, lock, size};
use rustix::fs::OFlags;

use crate::base::units::format_size;
use crate::base::{Error, ErrorKind, OsContext, Remedy, Result};

/// Bytes at the start of a device that must be zero for the device to count as empty. Every common
/// partition table, file system and volume manager has a signature there.
const DEVICE_PROBE_BYTES: u64 = 4 << 20;

/// Permissions of a new drive: its data may not be meant for other users of the file system.
const PRIVATE: u32 = 0o600;

pub(super) fn create(path: &Path, bytes: u64, force: bool) -> Result<()> {
    match FileKind::of(path) {
        Ok(FileKind::Regular) => reuse_file(path, bytes, force),
        Ok(FileKind::Device) => check_device(path, bytes, force),
        Err(error) if error.kind() == ErrorKind::NotFound => new_file(path, bytes),
        Err(error) => Err(error),
    }
}

fn cannot_create(path: &Path) -> impl Fn() -> String {
    move || format!("cannot create {}", path.display())
}

fn would_overwrite(path: &Path, what: &str) -> Error {
    let what = format!("{} {what}", path.display());
    Error::new(ErrorKind::AlreadyExists, what).with_remedy(Remedy::Overwrite)
}

fn new_file(path: &Path, bytes: u64) -> Result<()> {
    let file = File::options()
        .write(true)
        .create_new(true)
        .mode(PRIVATE)
        .open(path)
        .os_context(cannot_create(path))?;
    let made = file.set_len(bytes).and_then(|()| file.sync_all()).and_then(|()| sync_parent(path));
    if made.is_err() {
        // The first error is the one to report.
        let _ = fs::remove_file(path);
    }
    made.os_context(cannot_create(path))
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
    let file = File::options().write(true).open(path).os_context(cannot_create(path))?;
    lock(&file, path, false)?;
    let old_bytes = size(&file, FileKind::Regular).os_context(cannot_create(path))?;
    if old_bytes > 0 && !force {
        return Err(would_overwrite(path, "exists and is not empty"));
    }
    // The file grows before it is emptied, so a size that the file system refuses fails here and
    // leaves the content intact.
    file.set_len(old_bytes.max(bytes))
        .and_then(|()| file.set_len(0))
        .and_then(|()| file.set_len(bytes))
        .and_then(|()| file.sync_all())
        .and_then(|()| sync_parent(path))
        .os_context(cannot_create(path))
}

fn check_device(path: &Path, bytes: u64, force: bool) -> Result<()> {
    let mut opening = File::options();
    // The kernel refuses a device that is mounted or otherwise claimed.
    opening.read(true).write(true).custom_flags(OFlags::EXCL.bits().cast_signed());
    let file = opening.open(path).os_context(cannot_create(path))?;
    lock(&file, path, false)?;
    let device_bytes = size(&file, FileKind::Device).os_context(cannot_create(path))?;
    if device_bytes < bytes {
        let what = format!(
            "{} is too small: it has {} ({device_bytes} bytes), the drive needs {} ({bytes} bytes)",
            path.display(),
            format_size(device_bytes),
            format_size(bytes)
        );
        return Err(Error::new(ErrorKind::InvalidInput, what));
    }
    if force || is_zero(&file).os_context(cannot_create(path))? {
        return Ok(());
    }
    Err(would_overwrite(path, "is not blank"))
}

/// Returns whether the first [`DEVICE_PROBE_BYTES`] bytes, or all bytes of a shorter file, are
/// zero.
fn is_zero(mut file: &File) -> io::Result<bool> {
    io::Seek::rewind(&mut file)?;
    let mut bytes = Vec::new();
    file.take(DEVICE_PROBE_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes.iter().all(|&byte| byte == 0))
}

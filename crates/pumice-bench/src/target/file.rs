//! A file or block device as a target.
//!
//! One descriptor a thread; requests go to the runtime as they are: one operation of io_uring each,
//! no copies, submitted together at the end of a turn. Short reads and writes are carried on with,
//! as a program would.

use std::sync::Arc;

use rustix::fd::OwnedFd;

use super::{Access, Location, Target};
use pumice_drive::base::{AlignedBuffer, Error, ErrorKind, Result};
use pumice_drive::runtime::Runtime;

/// An open file or device.
pub struct FileTarget {
    runtime: Runtime,
    file: Arc<OwnedFd>,
}

impl FileTarget {
    /// Opens the file or device of a location.
    ///
    /// # Errors
    /// Those of [`Location::open_file`].
    pub fn open(runtime: &Runtime, location: &Location, access: Access) -> Result<Self> {
        let file = location.open_file(access)?;
        Ok(Self { runtime: runtime.clone(), file: Arc::new(file.into()) })
    }
}

pub(super) fn failed(what: &str, offset: u64, error: std::io::Error) -> Error {
    Error::os(format!("{what} at byte {offset}"), error)
}

pub(super) fn too_short(len: usize, offset: u64, count: usize) -> Error {
    let what = format!(
        "a read of {len} bytes at byte {offset} gave {count}: the target is shorter than the \
         workload's span, or was cut while it ran"
    );
    Error::new(ErrorKind::Io, what)
}

impl Target for FileTarget {
    async fn read(&self, offset: u64, buffer: AlignedBuffer) -> (AlignedBuffer, Result<()>) {
        let (buffer, result) = self.runtime.read_at(&self.file, offset, buffer).await;
        let result = match result {
            Ok(count) if count == buffer.len() => Ok(()),
            Ok(count) => Err(too_short(buffer.len(), offset, count)),
            Err(error) => Err(failed("a read", offset, error)),
        };
        (buffer, result)
    }

    async fn write(&self, offset: u64, buffer: &Arc<AlignedBuffer>) -> Result<()> {
        let len = buffer.len();
        match self.runtime.write_at(&self.file, offset, Arc::clone(buffer)).await {
            Ok(count) if count == len => Ok(()),
            Ok(count) => Err(Error::new(
                ErrorKind::NoSpace,
                format!("a write of {len} bytes at byte {offset} was cut to {count}: no room left"),
            )),
            Err(error) => Err(failed("a write", offset, error)),
        }
    }

    async fn flush(&self) -> Result<()> {
        let synced = self.runtime.sync_data(&self.file).await;
        synced.map_err(|error| Error::os("the flush", error))
    }

    async fn trim(&self, offset: u64, len: u64) -> Result<()> {
        let punched = self.runtime.punch_hole(&self.file, offset, len).await;
        punched.map_err(|error| match error.kind() {
            std::io::ErrorKind::Unsupported => {
                Error::new(ErrorKind::Unsupported, "the target cannot trim").caused_by(error)
            }
            _ => failed("a trim", offset, error),
        })
    }

    async fn close(&self) -> Result<()> {
        Ok(())
    }
}

//! A file or block device as a target.
//!
//! Each thread has its own descriptor. Each request is one io_uring operation without copying; all
//! requests of a turn are submitted together. Short reads and writes are continued, as in any
//! program.

use std::sync::Arc;

use rustix::fd::OwnedFd;

use super::{Access, Location, Target};
use crate::error::{Error, Result};
use pumice_drive::base::AlignedBuffer;
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
    /// The errors of [`Location::open_file`].
    pub fn open(runtime: &Runtime, location: &Location, access: Access) -> Result<Self> {
        let file = location.open_file(access)?;
        Ok(Self { runtime: runtime.clone(), file: Arc::new(file.into()) })
    }
}

pub(super) fn failed(what: &str, offset: u64, error: std::io::Error) -> Error {
    Error::io(format!("{what} at offset {offset} failed"), error)
}

pub(super) fn too_short(len: usize, offset: u64, count: usize) -> Error {
    Error::ShortRead { offset, requested: len, returned: count }
}

impl Target for FileTarget {
    async fn read(&self, offset: u64, buffer: AlignedBuffer) -> (AlignedBuffer, Result<()>) {
        let (buffer, result) = self.runtime.read_at(&self.file, offset, buffer).await;
        let result = match result {
            Ok(count) if count == buffer.len() => Ok(()),
            Ok(count) => Err(too_short(buffer.len(), offset, count)),
            Err(error) => Err(failed("read", offset, error)),
        };
        (buffer, result)
    }

    async fn write(&self, offset: u64, buffer: &Arc<AlignedBuffer>) -> Result<()> {
        let len = buffer.len();
        match self.runtime.write_at(&self.file, offset, Arc::clone(buffer)).await {
            Ok(count) if count == len => Ok(()),
            Ok(count) => Err(Error::NoSpace(format!(
                "write of {len} bytes at offset {offset} was cut to {count}: no space left"
            ))),
            Err(error) => Err(failed("write", offset, error)),
        }
    }

    async fn flush(&self) -> Result<()> {
        let synced = self.runtime.sync_data(&self.file).await;
        synced.map_err(|error| Error::io("flush failed", error))
    }

    async fn trim(&self, offset: u64, len: u64) -> Result<()> {
        let punched = self.runtime.punch_hole(&self.file, offset, len).await;
        punched.map_err(|error| match error.kind() {
            std::io::ErrorKind::Unsupported => {
                Error::unsupported_because("the target does not support trim", error)
            }
            _ => failed("trim", offset, error),
        })
    }

    async fn close(&self) -> Result<()> {
        Ok(())
    }
}

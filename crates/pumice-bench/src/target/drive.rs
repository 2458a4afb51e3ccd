//! A Pumice drive in this process as a target: the controller without a protocol in front of it.
//!
//! The drive's file is opened with direct I/O, as a server opens it. The bench is a host like any
//! other: it reads, writes, flushes and trims, and sees nothing else of the drive.

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use super::Target;
use pumice_drive::base::{AlignedBuffer, Result};
use pumice_drive::controller::{Drive, OpenOptions};
use pumice_drive::media::file::{self, FileMedium};
use pumice_drive::runtime::Runtime;

/// An open drive.
pub struct DriveTarget(Rc<Drive<FileMedium, Runtime>>);

impl DriveTarget {
    /// Opens the drive in a file or device and starts its background tasks on the runtime.
    ///
    /// # Errors
    /// Those of [`FileMedium::open`] and [`Drive::open`].
    pub async fn open(runtime: &Runtime, path: &Path) -> Result<Self> {
        let options = file::OpenOptions { read_only: false, direct: true };
        let medium = FileMedium::open(runtime.clone(), path, options)?;
        Ok(Self(Drive::open(medium, runtime.clone(), OpenOptions::default()).await?))
    }

    /// Bytes of the disk that the drive shows.
    pub fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }
}

impl Target for DriveTarget {
    async fn read(&self, offset: u64, mut buffer: AlignedBuffer) -> (AlignedBuffer, Result<()>) {
        let result = self.0.read(offset, &mut buffer).await;
        (buffer, result)
    }

    async fn write(&self, offset: u64, buffer: &Arc<AlignedBuffer>) -> Result<()> {
        self.0.write(offset, buffer, false).await
    }

    async fn flush(&self) -> Result<()> {
        self.0.flush().await
    }

    async fn trim(&self, offset: u64, len: u64) -> Result<()> {
        self.0.trim(offset, len, false).await
    }

    async fn close(&self) -> Result<()> {
        self.0.close().await
    }
}

//! A Pumice drive in this process as a target: accesses the controller directly, without a
//! protocol.
//!
//! The drive's file is opened with direct I/O, as by a server. The bench accesses the drive only as
//! a host would: it reads, writes, flushes and trims.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use super::Target;
use crate::error::{Error, Result};
use pumice_drive::base::AlignedBuffer;
use pumice_drive::base::clock::while_busy;
use pumice_drive::controller::{Drive, Info, Locked, OpenOptions};
use pumice_drive::crypt::{Randomness, Secret};
use pumice_drive::media::file::{FileMedium, FileOptions};
use pumice_drive::runtime::Runtime;

/// The file or device of a drive. Two with the same path are equal: the secret does not make it
/// another drive.
#[derive(Clone, Debug)]
pub struct DriveFile {
    /// The path of the file or device.
    pub path: PathBuf,
    /// The secret that unlocks the drive if it is encrypted.
    pub secret: Option<Secret>,
}

impl From<PathBuf> for DriveFile {
    fn from(path: PathBuf) -> Self {
        Self { path, secret: None }
    }
}

impl PartialEq for DriveFile {
    fn eq(&self, other: &Self) -> bool {
        self.path == other.path
    }
}

impl Eq for DriveFile {}

/// Returns the medium, unlocked with the keys of its drive if the drive is encrypted and there is a
/// secret.
async fn unlocked(medium: FileMedium, secret: Option<&Secret>) -> Result<FileMedium> {
    let Some(secret) = secret else { return Ok(medium) };
    // Errors are reported when the drive is opened.
    let Ok(Some(locked)) = Locked::on(&medium).await else { return Ok(medium) };
    Ok(medium.with_cipher(locked.unlock(secret, Randomness::System)?))
}

/// Opens the drive in a file or device, which the previous run may only just have closed, and
/// starts the drive's background tasks on the runtime.
///
/// # Errors
/// The errors of [`FileMedium::open`] and [`Drive::open`].
pub(crate) async fn open(runtime: &Runtime, file: &DriveFile) -> Result<Rc<Drive>> {
    opened(runtime, file, false).await
}

async fn opened(runtime: &Runtime, file: &DriveFile, read_only: bool) -> Result<Rc<Drive>> {
    let options = FileOptions::default().with_direct(true).with_read_only(read_only);
    let open = || FileMedium::open(runtime.clone(), &file.path, options);
    let medium = unlocked(while_busy(runtime, open).await?, file.secret.as_ref()).await?;
    let options = OpenOptions { read_only, ..OpenOptions::default() };
    Ok(Drive::open(Rc::new(medium), runtime.clock(), options).await?)
}

/// An open drive.
pub struct DriveTarget(Rc<Drive>);

impl DriveTarget {
    /// Opens the drive in a file or device and starts its background tasks on the runtime.
    ///
    /// # Errors
    /// The errors of [`FileMedium::open`] and [`Drive::open`].
    pub async fn open(runtime: &Runtime, file: &DriveFile) -> Result<Self> {
        Ok(Self(open(runtime, file).await?))
    }

    /// Opens the drive in a file or device read-only.
    ///
    /// # Errors
    /// The errors of [`DriveTarget::open`].
    pub async fn open_to_read(runtime: &Runtime, file: &DriveFile) -> Result<Self> {
        Ok(Self(opened(runtime, file, true).await?))
    }

    /// Returns information about the drive.
    pub fn info(&self) -> Info {
        self.0.info()
    }
}

impl Target for DriveTarget {
    async fn read(&self, offset: u64, mut buffer: AlignedBuffer) -> (AlignedBuffer, Result<()>) {
        let result = self.0.read(offset, &mut buffer).await;
        (buffer, result.map_err(Error::from))
    }

    async fn write(&self, offset: u64, buffer: &Arc<AlignedBuffer>) -> Result<()> {
        Ok(self.0.write(offset, buffer).await?)
    }

    async fn flush(&self) -> Result<()> {
        Ok(self.0.flush().await?)
    }

    async fn trim(&self, offset: u64, len: u64) -> Result<()> {
        Ok(self.0.trim(offset, len).await?)
    }

    async fn close(&self) -> Result<()> {
        Ok(self.0.close().await?)
    }
}

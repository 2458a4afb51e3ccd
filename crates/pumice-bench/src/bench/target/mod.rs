//! Targets: objects that can be read, written, flushed and trimmed as a host would do it.
//!
//! * `location`: the name of the target, and whether the bench may write to it.
//! * `file`: a file or block device, with or without the page cache.
//! * `stdio`: a file accessed through a buffer of this process, like the C library's streams.
//! * `drive`: a Pumice drive in this process, without a protocol.
//! * `nbd`: an export of any NBD server.
//! * `sim`: a simulated drive, in virtual time.
//!
//! This module is independent of workloads.

mod blank;
mod drive;
mod file;
mod location;
mod nbd;
mod sim;
mod stdio;

use std::sync::Arc;

pub(crate) use drive::open as open_drive;
pub use drive::{DriveFile, DriveTarget};
pub use file::FileTarget;
pub(crate) use location::drive_info;
pub use location::{Access, Contender, Location};
pub use nbd::NbdTarget;
pub use sim::SimTarget;
pub use stdio::StdioTarget;

use crate::error::Result;
use pumice_drive::base::AlignedBuffer;

/// An open target, for use by one thread. All methods may be called concurrently.
pub trait Target {
    /// Fills the buffer with the bytes at `offset`. Returns the buffer in every case.
    ///
    /// # Errors
    /// The errors of the target; [`Error::ShortRead`](crate::Error::ShortRead) if it has fewer
    /// bytes.
    fn read(
        &self,
        offset: u64,
        buffer: AlignedBuffer,
    ) -> impl Future<Output = (AlignedBuffer, Result<()>)>;

    /// Writes the buffer at `offset`. The write is durable only after [`Target::flush`].
    ///
    /// # Errors
    /// The errors of the target.
    fn write(&self, offset: u64, buffer: &Arc<AlignedBuffer>) -> impl Future<Output = Result<()>>;

    /// Makes every completed write durable.
    ///
    /// # Errors
    /// The errors of the target.
    fn flush(&self) -> impl Future<Output = Result<()>>;

    /// Declares that the contents of a range are no longer needed.
    ///
    /// # Errors
    /// The errors of the target; [`Error::Unsupported`](crate::Error::Unsupported) if it does not
    /// support trim.
    fn trim(&self, offset: u64, len: u64) -> impl Future<Output = Result<()>>;

    /// Closes the target.
    ///
    /// # Errors
    /// The errors of the target.
    fn close(&self) -> impl Future<Output = Result<()>>;
}

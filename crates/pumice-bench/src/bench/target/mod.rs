//! Targets: objects that can be read, written, flushed and trimmed as by a host.
//!
//! * `location`: the target by name, and whether the bench may write to it.
//! * `file`: a file or block device, with or without the page cache.
//! * `stdio`: a file through a buffer of this process, like the C library's streams.
//! * `drive`: a Pumice drive in this process, without a protocol.
//! * `nbd`: an export of any NBD server.
//! * `sim`: a simulated drive, in virtual time.
//!
//! Does not know workloads.

mod drive;
mod file;
mod location;
mod nbd;
mod sim;
mod stdio;

use std::sync::Arc;

pub(crate) use drive::open as open_drive;
pub use drive::{DriveTarget, unlock_drives};
pub use file::FileTarget;
pub(crate) use location::drive_info;
pub use location::{Access, Contender, Location};
pub use nbd::NbdTarget;
pub use sim::SimTarget;
pub use stdio::StdioTarget;

use crate::error::Result;
use pumice_drive::base::AlignedBuffer;

/// An open target, for one thread. All methods may be called concurrently.
pub trait Target {
    /// Fills the buffer with the bytes at `offset`; always returns the buffer.
    ///
    /// # Errors
    /// The errors of the target; [`Error::ShortRead`](crate::Error::ShortRead) if it has fewer
    /// bytes.
    fn read(
        &self,
        offset: u64,
        buffer: AlignedBuffer,
    ) -> impl Future<Output = (AlignedBuffer, Result<()>)>;

    /// Writes the buffer at `offset`. Durable only after [`Target::flush`].
    ///
    /// # Errors
    /// The errors of the target.
    fn write(&self, offset: u64, buffer: &Arc<AlignedBuffer>) -> impl Future<Output = Result<()>>;

    /// Makes every completed write durable.
    ///
    /// # Errors
    /// The errors of the target.
    fn flush(&self) -> impl Future<Output = Result<()>>;

    /// Declares that the content of a range is no longer needed.
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

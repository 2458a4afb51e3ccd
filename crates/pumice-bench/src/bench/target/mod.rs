//! What is measured: something with bytes that can be read, written, flushed and trimmed as a host
//! would.
//!
//! * `location`: what the user named, and whether the bench may write there.
//! * `file`: a file or block device, through the page cache or around it.
//! * `stdio`: a file through a buffer of this process, as the C library's streams go.
//! * `drive`: a Pumice drive in this process, without a protocol between.
//! * `nbd`: an export of any NBD server.
//! * `sim`: a simulated drive, in virtual time.
//!
//! Knows no workload.

mod drive;
mod file;
mod location;
mod nbd;
mod sim;
mod stdio;

use std::sync::Arc;

pub use drive::DriveTarget;
pub use file::FileTarget;
pub use location::{Access, Location};
pub use nbd::NbdTarget;
pub use sim::SimTarget;
pub use stdio::StdioTarget;

use crate::error::Result;
use pumice_drive::base::AlignedBuffer;

/// A target that is open, for one thread. All methods may be called while others are under way.
pub trait Target {
    /// Fills the buffer with the bytes at `offset`; the buffer comes back in any case.
    ///
    /// # Errors
    /// The target's; `Medium` if it has fewer bytes.
    fn read(
        &self,
        offset: u64,
        buffer: AlignedBuffer,
    ) -> impl Future<Output = (AlignedBuffer, Result<()>)>;

    /// Writes the buffer at `offset`. Durable only after [`Target::flush`].
    ///
    /// # Errors
    /// The target's.
    fn write(&self, offset: u64, buffer: &Arc<AlignedBuffer>) -> impl Future<Output = Result<()>>;

    /// Makes every write that has ended durable.
    ///
    /// # Errors
    /// The target's.
    fn flush(&self) -> impl Future<Output = Result<()>>;

    /// Tells the target that a range is not needed any more.
    ///
    /// # Errors
    /// The target's; `Unsupported` if it cannot.
    fn trim(&self, offset: u64, len: u64) -> impl Future<Output = Result<()>>;

    /// Ends in order.
    ///
    /// # Errors
    /// The target's.
    fn close(&self) -> impl Future<Output = Result<()>>;
}

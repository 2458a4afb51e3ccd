//! The interface between a server of a host protocol and the disk that it serves.

use pumice_drive::base::{Error, ErrorKind, Result};
pub use pumice_drive::controller::Allocation;
use pumice_drive::controller::Drive;
pub use pumice_drive::controller::{Content, Extent};

/// A run of bytes, compared with an earlier state of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Length; never 0.
    pub bytes: u64,
    /// Whether the run was written since that state.
    pub is_changed: bool,
}

/// Whether a change is durable when its request completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The next flush makes it durable.
    Volatile,
    /// It is durable, as FUA requires.
    Durable,
}

/// A disk as a host sees it: a range of bytes that can be read, written, flushed and trimmed.
///
/// Offsets and lengths are bytes and need no alignment. Every request is within
/// [`Disk::size_bytes`]: the server checks the numbers of the host first. Any number of requests
/// may be in flight at once.
///
/// **Order.** A write becomes visible to reads, and its position in the order of writes is fixed,
/// before its future completes.
///
/// **Durability.** When [`Disk::flush`] or a [`Durability::Durable`] request returns, that request,
/// and every request that completed before it was called, survives power loss.
///
/// A server accepts a disk as a trait object: [`AnyDisk`](crate::AnyDisk).
pub trait Disk {
    /// Returns the size in bytes.
    fn size_bytes(&self) -> u64;

    /// Returns whether writes, trims and write-zeroes are refused.
    fn is_read_only(&self) -> bool;

    /// Returns the current state of the disk, for the parts of one request; `None` for a disk that
    /// changes only by requests. Reads of that state may fail once the disk has moved on to
    /// another.
    fn pinned(&self) -> Option<Self>
    where
        Self: Sized,
    {
        None
    }

    /// Waits, after a failed read of this pinned disk, until the disk from which it was pinned has
    /// moved on. Returns false if the failure has another reason.
    fn moves_on(&self) -> impl Future<Output = bool> {
        async { false }
    }

    /// Fills `out` with the bytes at `offset`. If the disk changes by itself, all bytes represent
    /// the same moment.
    fn read(&self, offset: u64, out: &mut [u8]) -> impl Future<Output = Result<()>>;

    /// Writes `data` at `offset`, not durably, if that completes without waiting for the medium.
    /// Returns `None` if it would have to wait; nothing has been written then.
    fn try_write(&self, offset: u64, data: &[u8]) -> Option<Result<()>>;

    /// Writes `data` at `offset`.
    fn write(
        &self,
        offset: u64,
        data: &[u8],
        durability: Durability,
    ) -> impl Future<Output = Result<()>>;

    /// Makes every completed request durable.
    fn flush(&self) -> impl Future<Output = Result<()>>;

    /// Discards the 4 KiB blocks that are entirely within a range; they then read as zeroes. Blocks
    /// that are partly in the range retain their content.
    fn trim(
        &self,
        offset: u64,
        len: u64,
        durability: Durability,
    ) -> impl Future<Output = Result<()>>;

    /// Makes a range read as zeroes.
    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        allocation: Allocation,
        durability: Durability,
    ) -> impl Future<Output = Result<()>>;

    /// Loads a range into memory if the disk has a cache; best effort.
    fn prefetch(&self, offset: u64, len: u64) -> impl Future<Output = Result<()>>;

    /// Notifies the disk that the server is about to end: requests in progress should no longer
    /// wait long for an answer that may never arrive. A request that is not executed must fail.
    /// Must not block.
    fn ending(&self) {}

    /// Calls `visit` with each extent from `offset` on, until it returns false or `len` bytes are
    /// covered. If the disk changes by itself, all extents represent the same moment, and the calls
    /// may stop earlier. Extents do not reach beyond the range. A disk without a map reports
    /// everything as data.
    fn extents(
        &self,
        _offset: u64,
        len: u64,
        mut visit: impl FnMut(Extent) -> bool,
    ) -> impl Future<Output = Result<()>> {
        async move {
            if len > 0 {
                visit(Extent { bytes: len, content: Content::Data, stored_bytes: 0 });
            }
            Ok(())
        }
    }

    /// Calls `visit` with each run of the `len` bytes from `offset` on, until it returns false.
    /// Each run states whether it was written since the earlier state of this name. Runs do not
    /// reach beyond the range; adjacent runs may be of the same kind.
    ///
    /// # Errors
    /// `NotFound` if there is no such state; errors of the disk.
    fn changes(
        &self,
        _since: &str,
        _offset: u64,
        _len: u64,
        _visit: impl FnMut(Change) -> bool,
    ) -> impl Future<Output = Result<()>> {
        async { Err(Error::new(ErrorKind::NotFound, "the disk has no earlier states")) }
    }
}

impl Disk for Drive {
    fn ending(&self) {
        self.announce_close();
    }

    fn size_bytes(&self) -> u64 {
        self.size_bytes()
    }

    fn is_read_only(&self) -> bool {
        self.is_read_only()
    }

    async fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.read(offset, out).await
    }

    fn try_write(&self, offset: u64, data: &[u8]) -> Option<Result<()>> {
        self.try_write(offset, data)
    }

    async fn write(&self, offset: u64, data: &[u8], durability: Durability) -> Result<()> {
        match durability {
            Durability::Volatile => self.write(offset, data).await,
            Durability::Durable => self.write_durable(offset, data).await,
        }
    }

    async fn flush(&self) -> Result<()> {
        self.flush().await
    }

    async fn trim(&self, offset: u64, len: u64, durability: Durability) -> Result<()> {
        match durability {
            Durability::Volatile => self.trim(offset, len).await,
            Durability::Durable => self.trim_durable(offset, len).await,
        }
    }

    async fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        allocation: Allocation,
        durability: Durability,
    ) -> Result<()> {
        match durability {
            Durability::Volatile => self.write_zeroes(offset, len, allocation).await,
            Durability::Durable => self.write_zeroes_durable(offset, len, allocation).await,
        }
    }

    async fn prefetch(&self, offset: u64, len: u64) -> Result<()> {
        self.prefetch(offset, len).await
    }

    async fn extents(
        &self,
        offset: u64,
        len: u64,
        visit: impl FnMut(Extent) -> bool,
    ) -> Result<()> {
        self.extents(offset, len, visit).await
    }
}

//! Disks of any type, as trait objects for a server.

use std::rc::Rc;

use futures_util::future::{FutureExt, LocalBoxFuture};

use crate::disk::{Allocation, Change, Disk, Durability, Extent};
use pumice_drive::base::Result;

/// [`Disk`] as a trait object, with boxed futures, so that a server is compiled once, in its own
/// crate, and not for each type of disk. Every disk implements it; its methods are those of
/// [`Disk`].
///
/// A request allocates once, even if several disks are wrapped in each other; a write that
/// [`Disk::try_write`] completes does not allocate.
#[expect(missing_docs, reason = "as in `Disk`")]
pub trait AnyDisk {
    fn size_bytes(&self) -> u64;
    fn is_read_only(&self) -> bool;
    fn pinned(&self) -> Option<Rc<dyn AnyDisk>>;
    fn moves_on(&self) -> LocalBoxFuture<'_, bool>;
    fn read<'a>(&'a self, offset: u64, out: &'a mut [u8]) -> LocalBoxFuture<'a, Result<()>>;
    fn try_write(&self, offset: u64, data: &[u8]) -> Option<Result<()>>;
    fn write<'a>(
        &'a self,
        offset: u64,
        data: &'a [u8],
        durability: Durability,
    ) -> LocalBoxFuture<'a, Result<()>>;
    fn flush(&self) -> LocalBoxFuture<'_, Result<()>>;
    fn trim(&self, offset: u64, len: u64, durability: Durability)
    -> LocalBoxFuture<'_, Result<()>>;
    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        allocation: Allocation,
        durability: Durability,
    ) -> LocalBoxFuture<'_, Result<()>>;
    fn prefetch(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, Result<()>>;
    fn ending(&self);
    fn extents<'a>(
        &'a self,
        offset: u64,
        len: u64,
        visit: &'a mut dyn FnMut(Extent) -> bool,
    ) -> LocalBoxFuture<'a, Result<()>>;
    fn changes<'a>(
        &'a self,
        since: &'a str,
        offset: u64,
        len: u64,
        visit: &'a mut dyn FnMut(Change) -> bool,
    ) -> LocalBoxFuture<'a, Result<()>>;
}

impl<D: Disk + 'static> AnyDisk for D {
    fn size_bytes(&self) -> u64 {
        Disk::size_bytes(self)
    }

    fn is_read_only(&self) -> bool {
        Disk::is_read_only(self)
    }

    fn pinned(&self) -> Option<Rc<dyn AnyDisk>> {
        Disk::pinned(self).map(|disk| Rc::new(disk) as Rc<dyn AnyDisk>)
    }

    fn moves_on(&self) -> LocalBoxFuture<'_, bool> {
        Disk::moves_on(self).boxed_local()
    }

    fn read<'a>(&'a self, offset: u64, out: &'a mut [u8]) -> LocalBoxFuture<'a, Result<()>> {
        Disk::read(self, offset, out).boxed_local()
    }

    fn try_write(&self, offset: u64, data: &[u8]) -> Option<Result<()>> {
        Disk::try_write(self, offset, data)
    }

    fn write<'a>(
        &'a self,
        offset: u64,
        data: &'a [u8],
        durability: Durability,
    ) -> LocalBoxFuture<'a, Result<()>> {
        Disk::write(self, offset, data, durability).boxed_local()
    }

    fn flush(&self) -> LocalBoxFuture<'_, Result<()>> {
        Disk::flush(self).boxed_local()
    }

    fn trim(
        &self,
        offset: u64,
        len: u64,
        durability: Durability,
    ) -> LocalBoxFuture<'_, Result<()>> {
        Disk::trim(self, offset, len, durability).boxed_local()
    }

    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        allocation: Allocation,
        durability: Durability,
    ) -> LocalBoxFuture<'_, Result<()>> {
        Disk::write_zeroes(self, offset, len, allocation, durability).boxed_local()
    }

    fn prefetch(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, Result<()>> {
        Disk::prefetch(self, offset, len).boxed_local()
    }

    fn ending(&self) {
        Disk::ending(self);
    }

    fn extents<'a>(
        &'a self,
        offset: u64,
        len: u64,
        visit: &'a mut dyn FnMut(Extent) -> bool,
    ) -> LocalBoxFuture<'a, Result<()>> {
        Disk::extents(self, offset, len, visit).boxed_local()
    }

    fn changes<'a>(
        &'a self,
        since: &'a str,
        offset: u64,
        len: u64,
        visit: &'a mut dyn FnMut(Change) -> bool,
    ) -> LocalBoxFuture<'a, Result<()>> {
        Disk::changes(self, since, offset, len, visit).boxed_local()
    }
}

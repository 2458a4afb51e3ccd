//! The medium of a drive, of any type.

use std::any::Any;
use std::sync::Arc;

use futures_util::future::{FutureExt, LocalBoxFuture};

use super::{Capabilities, Copies, CopyId, Geometry, Medium, Remote};
use crate::base::{AlignedBuffer, Result, SegmentId};
use crate::crypt::Cipher;

/// [`Medium`] as a trait object, with boxed futures, so that the code of a drive is compiled once
/// and not for each type of medium. Every medium implements this trait; its methods are those of
/// [`Medium`].
#[expect(missing_docs, reason = "as in `Medium`")]
pub trait AnyMedium: Any {
    fn capabilities(&self) -> Capabilities;
    fn cipher(&self) -> &Cipher;
    fn set_geometry(&self, geometry: Geometry) -> Result<()>;
    fn reserve(&self) -> Result<()>;
    fn room(&self) -> Option<u64>;
    fn preallocate(&self, segment: SegmentId) -> LocalBoxFuture<'_, Result<()>>;
    fn misplaced(&self) -> Option<String>;
    fn append(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: Arc<AlignedBuffer>,
    ) -> LocalBoxFuture<'_, Result<()>>;
    fn append_durably(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: Arc<AlignedBuffer>,
    ) -> LocalBoxFuture<'_, Result<()>>;
    fn spare_buffer(&self) -> Option<AlignedBuffer>;
    fn read(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: AlignedBuffer,
    ) -> LocalBoxFuture<'_, (AlignedBuffer, Result<()>)>;
    fn sync(&self) -> LocalBoxFuture<'_, Result<()>>;
    fn prepare(&self, segment: SegmentId) -> LocalBoxFuture<'_, Result<bool>>;
    fn discard(&self, segment: SegmentId) -> LocalBoxFuture<'_, Result<()>>;
    fn read_superblock(&self, slot: u32) -> LocalBoxFuture<'_, Result<AlignedBuffer>>;
    fn write_superblock(&self, slot: u32, bytes: AlignedBuffer) -> LocalBoxFuture<'_, Result<()>>;
    fn as_array(&self) -> Option<&dyn Copies>;
    fn as_remote(&self) -> Option<&dyn Remote>;
}

impl dyn AnyMedium {
    /// Returns the medium if it is of type `M`.
    pub fn downcast_ref<M: Medium + 'static>(&self) -> Option<&M> {
        (self as &dyn Any).downcast_ref()
    }

    /// Returns the copies of all data that can be read separately: see [`Copies::copies`]. A medium
    /// that is not an array has one.
    pub(crate) fn copies(&self) -> Vec<CopyId> {
        self.as_array().map_or_else(|| vec![CopyId::default()], Copies::copies)
    }
}

impl<M: Medium + 'static> AnyMedium for M {
    fn capabilities(&self) -> Capabilities {
        Medium::capabilities(self)
    }

    fn cipher(&self) -> &Cipher {
        Medium::cipher(self)
    }

    fn set_geometry(&self, geometry: Geometry) -> Result<()> {
        Medium::set_geometry(self, geometry)
    }

    fn reserve(&self) -> Result<()> {
        Medium::reserve(self)
    }

    fn room(&self) -> Option<u64> {
        Medium::room(self)
    }

    fn preallocate(&self, segment: SegmentId) -> LocalBoxFuture<'_, Result<()>> {
        Medium::preallocate(self, segment).boxed_local()
    }

    fn misplaced(&self) -> Option<String> {
        Medium::misplaced(self)
    }

    fn append(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: Arc<AlignedBuffer>,
    ) -> LocalBoxFuture<'_, Result<()>> {
        Medium::append(self, segment, offset, buffer).boxed_local()
    }

    fn append_durably(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: Arc<AlignedBuffer>,
    ) -> LocalBoxFuture<'_, Result<()>> {
        Medium::append_durably(self, segment, offset, buffer).boxed_local()
    }

    fn spare_buffer(&self) -> Option<AlignedBuffer> {
        Medium::spare_buffer(self)
    }

    fn read(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: AlignedBuffer,
    ) -> LocalBoxFuture<'_, (AlignedBuffer, Result<()>)> {
        Medium::read(self, segment, offset, buffer).boxed_local()
    }

    fn sync(&self) -> LocalBoxFuture<'_, Result<()>> {
        Medium::sync(self).boxed_local()
    }

    fn prepare(&self, segment: SegmentId) -> LocalBoxFuture<'_, Result<bool>> {
        Medium::prepare(self, segment).boxed_local()
    }

    fn discard(&self, segment: SegmentId) -> LocalBoxFuture<'_, Result<()>> {
        Medium::discard(self, segment).boxed_local()
    }

    fn read_superblock(&self, slot: u32) -> LocalBoxFuture<'_, Result<AlignedBuffer>> {
        Medium::read_superblock(self, slot).boxed_local()
    }

    fn write_superblock(&self, slot: u32, bytes: AlignedBuffer) -> LocalBoxFuture<'_, Result<()>> {
        Medium::write_superblock(self, slot, bytes).boxed_local()
    }

    fn as_array(&self) -> Option<&dyn Copies> {
        Medium::as_array(self)
    }

    fn as_remote(&self) -> Option<&dyn Remote> {
        Medium::as_remote(self)
    }
}

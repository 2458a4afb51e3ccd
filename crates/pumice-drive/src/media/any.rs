//! The medium of a drive, of any type.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

use futures_util::future::{FutureExt, LocalBoxFuture};

use super::array::ArrayInfo;
use super::tier::Status;
use super::{Capabilities, CopyId, Geometry, Medium};
use crate::base::{AlignedBuffer, Result, SegmentId};
use crate::crypt::Cipher;

/// [`Medium`] as an object, with boxed futures: the code of a drive is compiled once and not for
/// each type of its medium. Every medium implements it; its methods are those of [`Medium`].
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
    fn copies(&self) -> Vec<CopyId>;
    fn read_copy(
        &self,
        copy: CopyId,
        segment: SegmentId,
        offset: u32,
        buffer: AlignedBuffer,
    ) -> LocalBoxFuture<'_, (AlignedBuffer, Result<()>)>;
    fn read_superblock_copy(
        &self,
        copy: CopyId,
        slot: u32,
    ) -> LocalBoxFuture<'_, Result<AlignedBuffer>>;
    fn repair<'a>(
        &'a self,
        segment: SegmentId,
        offset: u32,
        bytes: &'a [u8],
    ) -> LocalBoxFuture<'a, Result<u32>>;
    fn note_holders(&self, copies: &[CopyId], segment: SegmentId, range: Range<u32>);
    fn bucket(&self) -> Option<Status>;
    fn ending(&self);
    fn finish(&self) -> LocalBoxFuture<'_, Result<()>>;
    fn array(&self) -> Option<ArrayInfo>;
}

impl dyn AnyMedium {
    /// Returns the medium if it is of type `M`.
    pub fn downcast_ref<M: Medium + 'static>(&self) -> Option<&M> {
        (self as &dyn Any).downcast_ref()
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

    fn copies(&self) -> Vec<CopyId> {
        Medium::copies(self)
    }

    fn read_copy(
        &self,
        copy: CopyId,
        segment: SegmentId,
        offset: u32,
        buffer: AlignedBuffer,
    ) -> LocalBoxFuture<'_, (AlignedBuffer, Result<()>)> {
        Medium::read_copy(self, copy, segment, offset, buffer).boxed_local()
    }

    fn read_superblock_copy(
        &self,
        copy: CopyId,
        slot: u32,
    ) -> LocalBoxFuture<'_, Result<AlignedBuffer>> {
        Medium::read_superblock_copy(self, copy, slot).boxed_local()
    }

    fn repair<'a>(
        &'a self,
        segment: SegmentId,
        offset: u32,
        bytes: &'a [u8],
    ) -> LocalBoxFuture<'a, Result<u32>> {
        Medium::repair(self, segment, offset, bytes).boxed_local()
    }

    fn note_holders(&self, copies: &[CopyId], segment: SegmentId, range: Range<u32>) {
        Medium::note_holders(self, copies, segment, range);
    }

    fn bucket(&self) -> Option<Status> {
        Medium::bucket(self)
    }

    fn ending(&self) {
        Medium::ending(self);
    }

    fn finish(&self) -> LocalBoxFuture<'_, Result<()>> {
        Medium::finish(self).boxed_local()
    }

    fn array(&self) -> Option<ArrayInfo> {
        Medium::array(self)
    }
}

//! A medium of any type, as one type.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::future::{FutureExt, LocalBoxFuture};

use crate::base::{AlignedBuffer, Result, SegmentId};
use crate::crypt::Cipher;
use crate::media::array::ArrayInfo;
use crate::media::tier::Status;
use crate::media::{Capabilities, CopyId, Geometry, Medium};

/// A medium of any type, shared. The code of a drive is compiled for each type of its medium, which
/// takes tens of seconds: tests that have several kinds open their drives on this one. Each
/// operation allocates its future.
#[derive(Clone)]
pub struct AnyMedium(Rc<dyn Erased>);

impl AnyMedium {
    /// Takes a medium. To reach it later, pass an [`Rc`] and keep another one.
    pub fn new(medium: impl Medium + 'static) -> Self {
        Self(Rc::new(medium))
    }
}

/// [`Medium`], with boxed futures.
trait Erased {
    fn capabilities(&self) -> Capabilities;
    fn cipher(&self) -> &Cipher;
    fn set_geometry(&self, geometry: Geometry) -> Result<()>;
    fn reserve(&self) -> Result<()>;
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

impl<M: Medium> Erased for M {
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

impl Medium for AnyMedium {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn cipher(&self) -> &Cipher {
        self.0.cipher()
    }

    fn set_geometry(&self, geometry: Geometry) -> Result<()> {
        self.0.set_geometry(geometry)
    }

    fn reserve(&self) -> Result<()> {
        self.0.reserve()
    }

    fn misplaced(&self) -> Option<String> {
        self.0.misplaced()
    }

    fn append(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: Arc<AlignedBuffer>,
    ) -> impl Future<Output = Result<()>> {
        self.0.append(segment, offset, buffer)
    }

    fn append_durably(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: Arc<AlignedBuffer>,
    ) -> impl Future<Output = Result<()>> {
        self.0.append_durably(segment, offset, buffer)
    }

    fn spare_buffer(&self) -> Option<AlignedBuffer> {
        self.0.spare_buffer()
    }

    fn read(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: AlignedBuffer,
    ) -> impl Future<Output = (AlignedBuffer, Result<()>)> {
        self.0.read(segment, offset, buffer)
    }

    fn sync(&self) -> impl Future<Output = Result<()>> {
        self.0.sync()
    }

    fn prepare(&self, segment: SegmentId) -> impl Future<Output = Result<bool>> {
        self.0.prepare(segment)
    }

    fn discard(&self, segment: SegmentId) -> impl Future<Output = Result<()>> {
        self.0.discard(segment)
    }

    fn read_superblock(&self, slot: u32) -> impl Future<Output = Result<AlignedBuffer>> {
        self.0.read_superblock(slot)
    }

    fn write_superblock(
        &self,
        slot: u32,
        bytes: AlignedBuffer,
    ) -> impl Future<Output = Result<()>> {
        self.0.write_superblock(slot, bytes)
    }

    fn copies(&self) -> Vec<CopyId> {
        self.0.copies()
    }

    fn read_copy(
        &self,
        copy: CopyId,
        segment: SegmentId,
        offset: u32,
        buffer: AlignedBuffer,
    ) -> impl Future<Output = (AlignedBuffer, Result<()>)> {
        self.0.read_copy(copy, segment, offset, buffer)
    }

    fn read_superblock_copy(
        &self,
        copy: CopyId,
        slot: u32,
    ) -> impl Future<Output = Result<AlignedBuffer>> {
        self.0.read_superblock_copy(copy, slot)
    }

    async fn repair(&self, segment: SegmentId, offset: u32, bytes: &[u8]) -> Result<u32> {
        self.0.repair(segment, offset, bytes).await
    }

    fn note_holders(&self, copies: &[CopyId], segment: SegmentId, range: Range<u32>) {
        self.0.note_holders(copies, segment, range);
    }

    fn bucket(&self) -> Option<Status> {
        self.0.bucket()
    }

    fn ending(&self) {
        self.0.ending();
    }

    fn finish(&self) -> impl Future<Output = Result<()>> {
        self.0.finish()
    }

    fn array(&self) -> Option<ArrayInfo> {
        self.0.array()
    }
}

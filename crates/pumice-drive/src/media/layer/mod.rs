//! Layers: media that wrap another medium.
//!
//! * `count`: counts the operations and bytes requested of the medium.
//! * `fault`: adds latency, errors, wrong bytes and power loss, reproducible by seed.
//! * `throttle`: limits the medium to the speed of a slower device.
//! * `by_ref`: lends a medium by reference.

use std::sync::Arc;

use super::{Capabilities, Copies, Geometry, Medium, Remote};
use crate::base::{AlignedBuffer, Result, SegmentId};
use crate::crypt::Cipher;

mod by_ref;
pub mod count;
pub mod fault;
pub mod throttle;

pub use count::{Count, Counts};
pub use fault::{BadRange, Crash, Fault, FaultPlan, Region, Trigger};
pub use throttle::{Kept, Pipe, Speed, Throttle};

/// A medium that wraps another one and changes some of its operations.
///
/// Every `on_` method has a default that forwards to [`Layer::inner`]; a layer overrides the
/// operations that it changes. Every layer is a [`Medium`] and must obey its contract. A layer that
/// changes appends or syncs must also change durable appends. Operations on single copies of an
/// array bypass the layer.
pub trait Layer {
    /// The wrapped medium.
    type Inner: Medium;

    /// Returns the wrapped medium.
    fn inner(&self) -> &Self::Inner;

    /// See [`Medium::capabilities`].
    fn on_capabilities(&self) -> Capabilities {
        self.inner().capabilities()
    }

    /// See [`Medium::set_geometry`].
    ///
    /// # Errors
    /// The errors of the wrapped method.
    fn on_set_geometry(&self, geometry: Geometry) -> Result<()> {
        self.inner().set_geometry(geometry)
    }

    /// See [`Medium::append`].
    fn on_append(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: Arc<AlignedBuffer>,
    ) -> impl Future<Output = Result<()>> {
        self.inner().append(segment, offset, buffer)
    }

    /// See [`Medium::append_durably`].
    ///
    /// # Errors
    /// The errors of the wrapped method.
    fn on_append_durably(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: Arc<AlignedBuffer>,
    ) -> impl Future<Output = Result<()>> {
        self.inner().append_durably(segment, offset, buffer)
    }

    /// See [`Medium::read`].
    fn on_read(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: AlignedBuffer,
    ) -> impl Future<Output = (AlignedBuffer, Result<()>)> {
        self.inner().read(segment, offset, buffer)
    }

    /// See [`Medium::sync`].
    fn on_sync(&self) -> impl Future<Output = Result<()>> {
        self.inner().sync()
    }

    /// See [`Medium::discard`].
    fn on_discard(&self, segment: SegmentId) -> impl Future<Output = Result<()>> {
        self.inner().discard(segment)
    }

    /// See [`Medium::read_superblock`].
    fn on_read_superblock(&self, slot: u32) -> impl Future<Output = Result<AlignedBuffer>> {
        self.inner().read_superblock(slot)
    }

    /// See [`Medium::write_superblock`].
    fn on_write_superblock(
        &self,
        slot: u32,
        bytes: AlignedBuffer,
    ) -> impl Future<Output = Result<()>> {
        self.inner().write_superblock(slot, bytes)
    }
}

impl<L: Layer> Medium for L {
    fn capabilities(&self) -> Capabilities {
        self.on_capabilities()
    }

    fn cipher(&self) -> &Cipher {
        self.inner().cipher()
    }

    fn set_geometry(&self, geometry: Geometry) -> Result<()> {
        self.on_set_geometry(geometry)
    }

    fn reserve(&self) -> Result<()> {
        self.inner().reserve()
    }

    fn room(&self) -> Option<u64> {
        self.inner().room()
    }

    fn preallocate(&self, segment: SegmentId) -> impl Future<Output = Result<()>> {
        self.inner().preallocate(segment)
    }

    fn misplaced(&self) -> Option<String> {
        self.inner().misplaced()
    }

    fn append(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: Arc<AlignedBuffer>,
    ) -> impl Future<Output = Result<()>> {
        self.on_append(segment, offset, buffer)
    }

    fn append_durably(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: Arc<AlignedBuffer>,
    ) -> impl Future<Output = Result<()>> {
        self.on_append_durably(segment, offset, buffer)
    }

    fn spare_buffer(&self) -> Option<AlignedBuffer> {
        self.inner().spare_buffer()
    }

    fn read(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: AlignedBuffer,
    ) -> impl Future<Output = (AlignedBuffer, Result<()>)> {
        self.on_read(segment, offset, buffer)
    }

    fn sync(&self) -> impl Future<Output = Result<()>> {
        self.on_sync()
    }

    fn prepare(&self, segment: SegmentId) -> impl Future<Output = Result<bool>> {
        self.inner().prepare(segment)
    }

    fn discard(&self, segment: SegmentId) -> impl Future<Output = Result<()>> {
        self.on_discard(segment)
    }

    fn read_superblock(&self, slot: u32) -> impl Future<Output = Result<AlignedBuffer>> {
        self.on_read_superblock(slot)
    }

    fn write_superblock(
        &self,
        slot: u32,
        bytes: AlignedBuffer,
    ) -> impl Future<Output = Result<()>> {
        self.on_write_superblock(slot, bytes)
    }

    fn as_array(&self) -> Option<&dyn Copies> {
        self.inner().as_array()
    }

    fn as_remote(&self) -> Option<&dyn Remote> {
        self.inner().as_remote()
    }
}

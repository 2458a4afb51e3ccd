//! Media that are only lent: what tries several ways of opening a drive on one, and tests that
//! watch or break the medium of a drive, hold it by reference.

use std::rc::Rc;
use std::sync::Arc;

use super::{Capabilities, Geometry, Medium};
use crate::base::{AlignedBuffer, Result, SegmentId};

macro_rules! lent {
    ($owner:ty) => {
        impl<M: Medium> Medium for $owner {
            fn capabilities(&self) -> Capabilities {
                (**self).capabilities()
            }

            fn set_geometry(&self, geometry: Geometry) -> Result<()> {
                (**self).set_geometry(geometry)
            }

            async fn append(
                &self,
                segment: SegmentId,
                offset: u32,
                buffer: Arc<AlignedBuffer>,
            ) -> Result<()> {
                (**self).append(segment, offset, buffer).await
            }

            async fn read(
                &self,
                segment: SegmentId,
                offset: u32,
                buffer: AlignedBuffer,
            ) -> (AlignedBuffer, Result<()>) {
                (**self).read(segment, offset, buffer).await
            }

            async fn sync(&self) -> Result<()> {
                (**self).sync().await
            }

            async fn discard(&self, segment: SegmentId) -> Result<()> {
                (**self).discard(segment).await
            }

            async fn read_superblock(&self, slot: u32) -> Result<AlignedBuffer> {
                (**self).read_superblock(slot).await
            }

            async fn write_superblock(&self, slot: u32, bytes: AlignedBuffer) -> Result<()> {
                (**self).write_superblock(slot, bytes).await
            }
        }
    };
}

lent!(&M);
lent!(Rc<M>);

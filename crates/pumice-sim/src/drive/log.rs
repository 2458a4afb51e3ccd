//! A drive whose storage is this program's controller on simulated flash.

use std::rc::Rc;

use super::ControllerSpec;
use super::ahead::{Ahead, Reading};
use crate::map_pages::MapPages;
use crate::nand::{Flash, NandMedium};
use crate::stored::StoredBlocks;
use crate::{Error, Result};
use pumice_drive::base::units::BLOCK_BYTES;
use pumice_drive::controller::{Drive, OpenOptions, Spec, create};
use pumice_drive::runtime::Runtime;

/// The controller of this program on simulated flash.
pub(super) struct Log {
    pub(super) drive: Rc<Drive<Rc<NandMedium<Runtime>>, Runtime>>,
    pub(super) medium: Rc<NandMedium<Runtime>>,
    pub(super) map: Option<MapPages>,
    stored: Option<StoredBlocks>,
    pub(super) ahead: Rc<Ahead>,
    pub(super) page_bytes: u32,
}

impl Log {
    /// Creates an empty drive; its tasks run on `runtime`.
    pub(super) fn new(size_bytes: u64, spec: &ControllerSpec, runtime: &Runtime) -> Result<Self> {
        let flash = Flash::new(spec.shape, spec.timing)?;
        let medium = NandMedium::new(flash, spec.nand, runtime.clone())?;
        let medium = Rc::new(medium);
        let map = spec.map.map(MapPages::new);
        let stored = spec.stored_min.map(|least| StoredBlocks::new(least, size_bytes));
        let stored = stored.transpose()?;
        let geometry = medium.geometry();
        let capacity_bytes = geometry.capacity_bytes();
        if capacity_bytes < size_bytes {
            let what =
                format!("the flash holds {capacity_bytes} bytes, but the disk needs {size_bytes}");
            return Err(Error::InvalidInput(what.into()));
        }
        let made = Spec {
            capacity_bytes: Some(capacity_bytes),
            segment_bytes: geometry.segment_bytes,
            frame_blocks: spec.frame_blocks,
            codec: spec.codec,
            ..Spec::new(uuid::Uuid::from_u128(spec.nand.seed.into()), size_bytes)
        };
        let drive = runtime.block_on(async {
            create(&medium, &made).await?;
            // A simulated drive keeps its memory for the map, as real ones do.
            let options =
                OpenOptions { read_cache_bytes: 0, read_ahead_bytes: 0, ..OpenOptions::default() };
            Drive::open(Rc::clone(&medium), runtime.clone(), options).await
        })?;
        let ahead = Rc::default();
        Ok(Self { drive, medium, map, stored, ahead, page_bytes: spec.shape.page_bytes })
    }

    /// Reads. Returns the number of bytes read from flash.
    pub(super) async fn read(&self, offset: u64, target: &mut [u8]) -> Result<u64> {
        self.drive.read(offset, target).await?;
        Ok(self.unpack(offset, target))
    }

    /// Restores the host's bytes from those of the controller. Returns the number of bytes read
    /// from flash.
    pub(super) fn unpack(&self, offset: u64, target: &mut [u8]) -> u64 {
        match &self.stored {
            None => target.len() as u64,
            Some(stored) => {
                stored.uncover(offset, target);
                stored.stored_bytes(offset, target.len())
            }
        }
    }

    /// Starts reading the command of `len` bytes that follows this one, if it is likely to come.
    pub(super) fn read_ahead(
        &self,
        offset: u64,
        len: u64,
        size_bytes: u64,
        runtime: &Runtime,
    ) -> Reading<'_> {
        let (reading, is_likely) = self.ahead.begin(offset, len);
        let next = offset + len;
        if is_likely && next + len <= size_bytes {
            let (ahead, drive) = (Rc::clone(&self.ahead), Rc::clone(&self.drive));
            runtime.spawn(async move {
                let read = async {
                    let mut bytes = vec![0; len as usize];
                    drive.read(next, &mut bytes).await.is_ok().then_some(bytes)
                };
                ahead.fetch(next, read).await;
            });
        }
        reading
    }

    pub(super) async fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        if let Some(map) = &self.map {
            map.need(offset);
        }
        self.ahead.forget();
        let written = match &self.stored {
            None => self.drive.write(offset, bytes, false).await,
            Some(stored) => self.drive.write(offset, &stored.cover(offset, bytes), false).await,
        };
        // A read-ahead that began in between may hold the old bytes.
        self.ahead.forget();
        Ok(written?)
    }

    pub(super) async fn trim(&self, offset: u64, len: u64) -> Result<()> {
        if let Some(stored) = &self.stored {
            stored.forget(offset / BLOCK_BYTES as u64, len / BLOCK_BYTES as u64);
        }
        self.ahead.forget();
        let trimmed = self.drive.trim(offset, len, false).await;
        self.ahead.forget();
        Ok(trimmed?)
    }
}

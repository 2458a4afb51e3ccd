//! Simulated drives with real bytes, attached to a host's link, in virtual time.
//!
//! ```text
//! host -> front: queue, link, processor -> log           the controller of this program, on flash
//!                                       -> block-mapped  a map of large units, on flash
//!                                       -> disk          a head over platters
//! ```
//!
//! **Cost model**: only the flash, the platters and the front take virtual time. Compression and
//! map look-ups take none of their own; a profile includes them in the time of a command. The
//! content of the drive is in memory, compressed where the drive compresses.

use std::rc::Rc;

use futures_util::future::try_join_all;

use ahead::{Ahead, Reading};

use super::block_mapped::{BlockMapped, MergeCounts};
use super::disk::{Disk, DiskCounts};
use super::front::Front;
use super::map_pages::MapPages;
use super::stored::StoredBlocks;
use crate::nand::{Flash, FlashCounts, NandMedium};
use crate::{Error, Result};
use pumice_drive::base::Clock;
use pumice_drive::base::units::BLOCK_BYTES;
use pumice_drive::controller::{Drive, Info, OpenOptions, Spec, create};
use pumice_drive::runtime::Runtime;

mod ahead;
mod spec;

/// Bytes of a command that are read and sent together.
const PART_BYTES: usize = 16 << 10;

pub use spec::{ControllerSpec, SimDesign, SimSpec};

/// Counters of a simulated drive since its creation.
#[derive(Clone, Debug)]
pub struct SimCounts {
    /// Counters that only drives of this design have.
    pub design: DesignCounts,
    /// Flash operations; all 0 for a disk.
    pub flash: FlashCounts,
    /// Programmed bytes; 0 for a disk.
    pub flash_bytes: u64,
    /// Erase count of each good block; empty for a disk.
    pub wear: Vec<u32>,
}

/// Counters of drives of one design.
#[derive(Clone, Debug)]
pub enum DesignCounts {
    /// Information of the controller.
    Log(Box<Info>),
    /// Merges of log blocks.
    BlockMapped(MergeCounts),
    /// Operations of the head.
    Disk(DiskCounts),
}

impl SimCounts {
    /// Returns the information of this program's controller, for a log-structured drive.
    pub fn controller(&self) -> Option<&Info> {
        match &self.design {
            DesignCounts::Log(info) => Some(info),
            DesignCounts::BlockMapped(_) | DesignCounts::Disk(_) => None,
        }
    }
}

/// The controller of this program on simulated flash.
struct Log {
    drive: Rc<Drive<Rc<NandMedium<Runtime>>, Runtime>>,
    medium: Rc<NandMedium<Runtime>>,
    map: Option<MapPages>,
    stored: Option<StoredBlocks>,
    ahead: Rc<Ahead>,
    page_bytes: u32,
}

/// The part that stores the bytes.
enum Core {
    Log(Log),
    BlockMapped(BlockMapped<Runtime>, u32),
    Disk(Rc<Disk<Runtime>>),
}

impl Log {
    /// Creates an empty drive; its tasks run on `runtime`.
    fn new(size_bytes: u64, spec: &ControllerSpec, runtime: &Runtime) -> Result<Self> {
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
            Drive::open(Rc::clone(&medium), runtime.clone(), OpenOptions::default()).await
        })?;
        let ahead = Rc::default();
        Ok(Self { drive, medium, map, stored, ahead, page_bytes: spec.shape.page_bytes })
    }

    /// Reads. Returns the number of bytes read from flash.
    async fn read(&self, offset: u64, target: &mut [u8]) -> Result<u64> {
        self.drive.read(offset, target).await?;
        Ok(self.unpack(offset, target))
    }

    /// Restores the host's bytes from those of the controller. Returns the number of bytes read
    /// from flash.
    fn unpack(&self, offset: u64, target: &mut [u8]) -> u64 {
        match &self.stored {
            None => target.len() as u64,
            Some(stored) => {
                stored.uncover(offset, target);
                stored.stored_bytes(offset, target.len())
            }
        }
    }

    /// Starts reading the command of `len` bytes that follows this one, if it is likely to come.
    fn read_ahead(&self, offset: u64, len: u64, size_bytes: u64, runtime: &Runtime) -> Reading<'_> {
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

    async fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
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

    async fn trim(&self, offset: u64, len: u64) -> Result<()> {
        if let Some(stored) = &self.stored {
            stored.forget(offset / BLOCK_BYTES as u64, len / BLOCK_BYTES as u64);
        }
        self.ahead.forget();
        let trimmed = self.drive.trim(offset, len, false).await;
        self.ahead.forget();
        Ok(trimmed?)
    }
}

impl Core {
    fn new(size_bytes: u64, design: &SimDesign, runtime: &Runtime) -> Result<Self> {
        Ok(match design {
            SimDesign::Log(spec) => Self::Log(Log::new(size_bytes, spec, runtime)?),
            SimDesign::BlockMapped(spec) => {
                let drive = BlockMapped::new(size_bytes, *spec, runtime.clone())?;
                Self::BlockMapped(drive, spec.shape.page_bytes)
            }
            SimDesign::Disk(spec) => {
                let disk = Rc::new(Disk::new(size_bytes, *spec, runtime.clone())?);
                runtime.spawn(Rc::clone(&disk).turn());
                Self::Disk(disk)
            }
        })
    }

    /// Returns how long a read command waits before the first byte is read, in ns.
    fn late_ns(&self, offset: u64) -> u64 {
        match self {
            Self::Log(Log { map: Some(map), .. }) => map.need(offset),
            Self::Log(_) | Self::BlockMapped(..) | Self::Disk(_) => 0,
        }
    }

    /// Returns the bytes of a command that are read and sent together: all of them for a disk.
    fn part_bytes(&self) -> usize {
        match self {
            Self::Log(_) | Self::BlockMapped(..) => PART_BYTES,
            Self::Disk(_) => usize::MAX,
        }
    }

    /// Reads. Returns the number of bytes read from the storage.
    async fn read(&self, offset: u64, target: &mut [u8]) -> Result<u64> {
        let bytes = target.len() as u64;
        match self {
            Self::Log(log) => log.read(offset, target).await,
            Self::BlockMapped(drive, _) => drive.read(offset, target).await.map(|()| bytes),
            Self::Disk(disk) => disk.read(offset, target).await.map(|()| bytes),
        }
    }

    async fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        match self {
            Self::Log(log) => log.write(offset, bytes).await,
            Self::BlockMapped(drive, _) => drive.write(offset, bytes).await,
            Self::Disk(disk) => disk.write(offset, bytes).await,
        }
    }

    async fn flush(&self) -> Result<()> {
        match self {
            Self::Log(log) => Ok(log.drive.flush().await?),
            Self::BlockMapped(drive, _) => drive.flush().await,
            Self::Disk(disk) => disk.flush().await,
        }
    }

    async fn trim(&self, offset: u64, len: u64) -> Result<()> {
        match self {
            Self::Log(log) => log.trim(offset, len).await,
            Self::BlockMapped(drive, _) => drive.trim(offset, len).await,
            Self::Disk(_) => Err(Error::Unsupported("a hard disk has no trim".into())),
        }
    }

    fn counts(&self) -> SimCounts {
        let (design, flash, page_bytes, wear) = match self {
            Self::Log(log) => {
                let info = DesignCounts::Log(Box::new(log.drive.info()));
                (info, log.medium.counts(), log.page_bytes, log.medium.wear())
            }
            Self::BlockMapped(drive, page_bytes) => {
                let merges = DesignCounts::BlockMapped(drive.merges());
                (merges, drive.flash_counts(), *page_bytes, drive.wear())
            }
            Self::Disk(disk) => {
                let head = DesignCounts::Disk(disk.counts());
                (head, FlashCounts::default(), 0, Vec::new())
            }
        };
        let flash_bytes = flash.pages_programmed * u64::from(page_bytes);
        SimCounts { design, flash, flash_bytes, wear }
    }
}

/// A simulated drive in virtual time. All methods may be called concurrently.
pub struct SimDrive {
    runtime: Runtime,
    core: Core,
    front: Front<Runtime>,
    spec: SimSpec,
}

impl SimDrive {
    /// Creates an empty drive, at virtual time 0.
    ///
    /// # Errors
    /// `InvalidInput` for an impossible specification, and for flash that is too small for the
    /// disk.
    pub fn new(spec: SimSpec) -> Result<Self> {
        let runtime = Runtime::simulated();
        let front = Front::new(spec.front, runtime.clone())?;
        if spec.command_bytes_max < BLOCK_BYTES as u64
            || !spec.command_bytes_max.is_multiple_of(BLOCK_BYTES as u64)
        {
            let what = "the longest command must be a multiple of 4096 bytes";
            return Err(Error::InvalidInput(what.into()));
        }
        let core = Core::new(spec.size_bytes, &spec.design, &runtime)?;
        Ok(Self { runtime, core, front, spec })
    }

    /// Returns the runtime of the drive, on virtual time.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Returns the specification of the drive.
    pub fn spec(&self) -> &SimSpec {
        &self.spec
    }

    /// Returns the size of the disk in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.spec.size_bytes
    }

    /// Returns the counters so far.
    pub fn counts(&self) -> SimCounts {
        self.core.counts()
    }

    /// Reads `target.len()` bytes at `offset`.
    ///
    /// # Errors
    /// `InvalidInput` for a range beyond the disk, and the errors of the design: [`Drive::read`],
    /// [`BlockMapped::read`], [`Disk::read`].
    pub async fn read(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        self.check(offset, target.len() as u64)?;
        let most = self.spec.command_bytes_max;
        let commands = (0..).zip(target.chunks_mut(most as usize));
        let commands =
            commands.map(|(number, part)| self.read_command(offset + number * most, part));
        try_join_all(commands).await.map(drop)
    }

    /// Writes at `offset`. The data is durable only after [`SimDrive::flush`].
    ///
    /// # Errors
    /// `InvalidInput` for a range beyond the disk, and the errors of the design: [`Drive::write`],
    /// [`BlockMapped::write`], [`Disk::write`].
    pub async fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.check(offset, bytes.len() as u64)?;
        let most = self.spec.command_bytes_max;
        let commands = (0..).zip(bytes.chunks(most as usize)).map(|(number, part)| {
            let at = offset + number * most;
            self.front.write(part.len() as u64, self.core.write(at, part))
        });
        try_join_all(commands).await.map(drop)
    }

    async fn read_command(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        let _slot = self.front.begin_read().await;
        let bytes = target.len() as u64;
        let _reading = match &self.core {
            Core::Log(log) => {
                let ahead = log.ahead.take(offset, target).await;
                let reading = log.read_ahead(offset, bytes, self.spec.size_bytes, &self.runtime);
                if ahead {
                    self.front.send(bytes, log.unpack(offset, target)).await;
                    return Ok(());
                }
                Some(reading)
            }
            Core::BlockMapped(..) | Core::Disk(_) => None,
        };
        let late_ns = self.core.late_ns(offset);
        if late_ns > 0 {
            self.runtime.sleep_ns(late_ns).await;
        }
        // The first part goes over the link while the rest is read.
        let part_bytes = self.core.part_bytes().min(self.spec.command_bytes_max as usize);
        let parts = (0..).zip(target.chunks_mut(part_bytes)).map(async |(number, part)| {
            let bytes = part.len() as u64;
            let stored_bytes = self.core.read(offset + number * part_bytes as u64, part).await?;
            self.front.send(bytes, stored_bytes).await;
            Ok(())
        });
        try_join_all(parts).await.map(drop)
    }

    /// Checks that a range lies within the disk.
    ///
    /// # Errors
    /// `InvalidInput` if it does not.
    fn check(&self, offset: u64, len: u64) -> Result<()> {
        let size_bytes = self.spec.size_bytes;
        if offset.checked_add(len).is_none_or(|end| end > size_bytes) {
            let what = format!("{len} bytes at {offset} lie beyond the disk of {size_bytes}");
            return Err(Error::InvalidInput(what.into()));
        }
        Ok(())
    }

    /// Makes all earlier writes durable.
    ///
    /// # Errors
    /// Those of the design: [`Drive::flush`], [`BlockMapped::flush`], [`Disk::flush`].
    pub async fn flush(&self) -> Result<()> {
        self.front.write(0, self.core.flush()).await
    }

    /// Trims the blocks that lie completely in a range.
    ///
    /// # Errors
    /// `Unsupported` on a disk; otherwise the errors of the design: [`Drive::trim`],
    /// [`BlockMapped::trim`].
    pub async fn trim(&self, offset: u64, len: u64) -> Result<()> {
        self.check(offset, len)?;
        let block = BLOCK_BYTES as u64;
        let (first, end) = (offset.div_ceil(block), (offset + len) / block);
        if first >= end {
            return Ok(());
        }
        self.front.write(0, self.core.trim(first * block, (end - first) * block)).await
    }
}

impl Drop for SimDrive {
    fn drop(&mut self) {
        // The drive's tasks own the runtime that owns them.
        self.runtime.drop_tasks();
    }
}

#[cfg(test)]
mod tests;

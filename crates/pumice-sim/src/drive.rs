//! Drives behind a host's link, with real bytes, in virtual time.
//!
//! ```text
//! host -> front: queue, wire, processor -> log           the controller of this program, on flash
//!                                       -> block-mapped  a map of large units, on flash
//!                                       -> disk          a head over platters
//! ```
//!
//! **What it costs**, beside what the flash, the platters and the front are told to take: nothing.
//! Compressing and looking the map up take no virtual time of their own; a profile puts them into
//! the time of a command. What the drive holds is in memory, compressed where the drive compresses.

use std::rc::Rc;

use futures_util::future::try_join_all;

use ahead::{Ahead, Reading};

use super::block_mapped::{BlockMapped, MergeCounts};
use super::disk::{Disk, DiskCounts};
use super::front::Front;
use super::map_pages::MapPages;
use super::stored::StoredBlocks;
use crate::nand::{Flash, FlashCounts, NandMedium};
use pumice_drive::base::units::BLOCK_BYTES;
use pumice_drive::base::{Clock, Error, ErrorKind, Result};
use pumice_drive::controller::{Drive, Info, OpenOptions, Spec, create};
use pumice_drive::runtime::Runtime;

mod ahead;
mod spec;

/// Bytes of a command that are read and sent together.
const PART_BYTES: usize = 16 << 10;

pub use spec::{ControllerSpec, SimDesign, SimSpec};

/// What a simulated drive has done since it was made.
#[derive(Clone, Debug)]
pub struct SimCounts {
    /// What only drives of its design have.
    pub design: DesignCounts,
    /// What was done to the flash; nothing on a disk.
    pub flash: FlashCounts,
    /// Bytes that were programmed; 0 on a disk.
    pub flash_bytes: u64,
    /// How often each block was erased that is not bad; a disk has none.
    pub wear: Vec<u32>,
}

/// What drives of one design have done.
#[derive(Clone, Debug)]
pub enum DesignCounts {
    /// As the controller says it.
    Log(Box<Info>),
    /// What became of the blocks that take writes.
    BlockMapped(MergeCounts),
    /// What the head did.
    Disk(DiskCounts),
}

impl SimCounts {
    /// What the controller of this program says, on a drive that is a log.
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

/// What keeps the bytes.
enum Core {
    Log(Log),
    BlockMapped(BlockMapped<Runtime>, u32),
    Disk(Rc<Disk<Runtime>>),
}

impl Log {
    /// A new, empty drive; its tasks run on `runtime`.
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
            let what = format!("the flash holds {capacity_bytes} bytes, the disk has {size_bytes}");
            return Err(Error::new(ErrorKind::InvalidInput, what));
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

    /// Reads; gives how many bytes that took on flash.
    async fn read(&self, offset: u64, target: &mut [u8]) -> Result<u64> {
        self.drive.read(offset, target).await?;
        Ok(self.unpack(offset, target))
    }

    /// Turns what the controller gave into what the host wrote; gives how many bytes that took on
    /// flash.
    fn unpack(&self, offset: u64, target: &mut [u8]) -> u64 {
        match &self.stored {
            None => target.len() as u64,
            Some(stored) => {
                stored.uncover(offset, target);
                stored.stored_bytes(offset, target.len())
            }
        }
    }

    /// Has the command behind this one, of `len` bytes, read as well, if it is likely to come.
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
        // What began to be read meanwhile may be what was there before.
        self.ahead.forget();
        written
    }

    async fn trim(&self, offset: u64, len: u64) -> Result<()> {
        if let Some(stored) = &self.stored {
            stored.forget(offset / BLOCK_BYTES as u64, len / BLOCK_BYTES as u64);
        }
        self.ahead.forget();
        let trimmed = self.drive.trim(offset, len, false).await;
        self.ahead.forget();
        trimmed
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

    /// What a command that reads waits for before anything is read, in ns.
    fn late_ns(&self, offset: u64) -> u64 {
        match self {
            Self::Log(Log { map: Some(map), .. }) => map.need(offset),
            Self::Log(_) | Self::BlockMapped(..) | Self::Disk(_) => 0,
        }
    }

    /// Bytes of a command that are read and sent together: all of them by a head.
    fn part_bytes(&self) -> usize {
        match self {
            Self::Log(_) | Self::BlockMapped(..) => PART_BYTES,
            Self::Disk(_) => usize::MAX,
        }
    }

    /// Reads; gives how many bytes that took where they are stored.
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
            Self::Log(log) => log.drive.flush().await,
            Self::BlockMapped(drive, _) => drive.flush().await,
            Self::Disk(disk) => disk.flush().await,
        }
    }

    async fn trim(&self, offset: u64, len: u64) -> Result<()> {
        match self {
            Self::Log(log) => log.trim(offset, len).await,
            Self::BlockMapped(drive, _) => drive.trim(offset, len).await,
            Self::Disk(_) => Err(Error::new(ErrorKind::Unsupported, "a hard disk has no trim")),
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

/// A drive in virtual time. All methods may be called while others are under way.
pub struct SimDrive {
    runtime: Runtime,
    core: Core,
    front: Front<Runtime>,
    spec: SimSpec,
}

impl SimDrive {
    /// Makes a new, empty drive, at virtual time 0.
    ///
    /// # Errors
    /// `InvalidInput` for what cannot be built, and a flash that does not hold the disk.
    pub fn new(spec: SimSpec) -> Result<Self> {
        let runtime = Runtime::simulated();
        let front = Front::new(spec.front, runtime.clone())?;
        if spec.command_bytes_max < BLOCK_BYTES as u64
            || !spec.command_bytes_max.is_multiple_of(BLOCK_BYTES as u64)
        {
            let what = "the longest command must be a multiple of 4096 bytes";
            return Err(Error::new(ErrorKind::InvalidInput, what));
        }
        let core = Core::new(spec.size_bytes, &spec.design, &runtime)?;
        Ok(Self { runtime, core, front, spec })
    }

    /// Its runtime, on virtual time.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// What it is made of.
    pub fn spec(&self) -> &SimSpec {
        &self.spec
    }

    /// Bytes of its disk.
    pub fn size_bytes(&self) -> u64 {
        self.spec.size_bytes
    }

    /// What it has done so far.
    pub fn counts(&self) -> SimCounts {
        self.core.counts()
    }

    /// Reads from `offset` on; `target` is filled when this returns.
    ///
    /// # Errors
    /// `InvalidInput` for what lies beyond the disk; those of its design: [`Drive::read`],
    /// [`BlockMapped::read`], [`Disk::read`].
    pub async fn read(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        self.check(offset, target.len() as u64)?;
        let most = self.spec.command_bytes_max;
        let commands = (0..).zip(target.chunks_mut(most as usize));
        let commands =
            commands.map(|(number, part)| self.read_command(offset + number * most, part));
        try_join_all(commands).await.map(drop)
    }

    /// Writes at `offset`. Durable only after [`SimDrive::flush`].
    ///
    /// # Errors
    /// `InvalidInput` for what lies beyond the disk; those of its design: [`Drive::write`],
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
        let _place = self.front.begin_read().await;
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
        // What is read first goes over the link while the rest is read.
        let part_bytes = self.core.part_bytes().min(self.spec.command_bytes_max as usize);
        let parts = (0..).zip(target.chunks_mut(part_bytes)).map(async |(number, part)| {
            let bytes = part.len() as u64;
            let stored_bytes = self.core.read(offset + number * part_bytes as u64, part).await?;
            self.front.send(bytes, stored_bytes).await;
            Ok(())
        });
        try_join_all(parts).await.map(drop)
    }

    /// # Errors
    /// `InvalidInput` for what lies beyond the disk.
    fn check(&self, offset: u64, len: u64) -> Result<()> {
        let size_bytes = self.spec.size_bytes;
        if offset.checked_add(len).is_none_or(|end| end > size_bytes) {
            let what = format!("{len} bytes at {offset} lie beyond the disk of {size_bytes}");
            return Err(Error::new(ErrorKind::InvalidInput, what));
        }
        Ok(())
    }

    /// Makes what was written durable.
    ///
    /// # Errors
    /// Those of its design: [`Drive::flush`], [`BlockMapped::flush`], [`Disk::flush`].
    pub async fn flush(&self) -> Result<()> {
        self.front.write(0, self.core.flush()).await
    }

    /// Tells the drive that a range is not needed any more: the blocks that lie in it whole.
    ///
    /// # Errors
    /// `Unsupported` on a disk; else those of its design: [`Drive::trim`], [`BlockMapped::trim`].
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
        // The drive's tasks hold the runtime that holds them.
        self.runtime.drop_tasks();
    }
}

#[cfg(test)]
mod tests;

//! The storage of a drive, in one of three designs, and its counters.

use std::rc::Rc;

use super::SimDesign;
use super::log::Log;
use crate::block_mapped::{BlockMapped, MergeCounts};
use crate::disk::{Disk, DiskCounts};
use crate::nand::FlashCounts;
use crate::{Error, Result};
use pumice_drive::controller::Info;
use pumice_drive::runtime::Runtime;

/// Bytes of a command that are read and sent together.
const PART_BYTES: usize = 16 << 10;

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

/// The part that stores the bytes.
pub(super) enum Core {
    Log(Log),
    BlockMapped(BlockMapped<Runtime>, u32),
    Disk(Rc<Disk<Runtime>>),
}

impl Core {
    pub(super) fn new(size_bytes: u64, design: &SimDesign, runtime: &Runtime) -> Result<Self> {
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
    pub(super) fn late_ns(&self, offset: u64) -> u64 {
        match self {
            Self::Log(Log { map: Some(map), .. }) => map.need(offset),
            Self::Log(_) | Self::BlockMapped(..) | Self::Disk(_) => 0,
        }
    }

    /// Returns the bytes of a command that are read and sent together: all of them for a disk.
    pub(super) fn part_bytes(&self) -> usize {
        match self {
            Self::Log(_) | Self::BlockMapped(..) => PART_BYTES,
            Self::Disk(_) => usize::MAX,
        }
    }

    /// Reads. Returns the number of bytes read from the storage.
    pub(super) async fn read(&self, offset: u64, target: &mut [u8]) -> Result<u64> {
        let bytes = target.len() as u64;
        match self {
            Self::Log(log) => log.read(offset, target).await,
            Self::BlockMapped(drive, _) => drive.read(offset, target).await.map(|()| bytes),
            Self::Disk(disk) => disk.read(offset, target).await.map(|()| bytes),
        }
    }

    pub(super) async fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        match self {
            Self::Log(log) => log.write(offset, bytes).await,
            Self::BlockMapped(drive, _) => drive.write(offset, bytes).await,
            Self::Disk(disk) => disk.write(offset, bytes).await,
        }
    }

    pub(super) async fn flush(&self) -> Result<()> {
        match self {
            Self::Log(log) => Ok(log.drive.flush().await?),
            Self::BlockMapped(drive, _) => drive.flush().await,
            Self::Disk(disk) => disk.flush().await,
        }
    }

    pub(super) async fn trim(&self, offset: u64, len: u64) -> Result<()> {
        match self {
            Self::Log(log) => log.trim(offset, len).await,
            Self::BlockMapped(drive, _) => drive.trim(offset, len).await,
            Self::Disk(_) => Err(Error::Unsupported("a hard disk has no trim".into())),
        }
    }

    pub(super) fn counts(&self) -> SimCounts {
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

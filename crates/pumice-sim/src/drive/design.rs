//! The storage of a drive, in one of three designs, and its counters.

use std::rc::Rc;

use super::SimDesign;
use super::log::Log;
use crate::block_mapped::{BlockMapped, MergeCounts};
use crate::disk::{Disk, DiskCounts};
use crate::ftl::LogCounts;
use crate::nand::FlashCounts;
use crate::{Error, Result};
use pumice_drive::runtime::Runtime;

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
    /// Written bytes by cause.
    Log(LogCounts),
    /// Merges of log blocks.
    BlockMapped(MergeCounts),
    /// Operations of the head.
    Disk(DiskCounts),
}

/// The part that stores the bytes.
pub(super) enum Core {
    Log(Box<Log>),
    BlockMapped(Box<BlockMapped<Runtime>>, u32),
    Disk(Rc<Disk<Runtime>>),
}

impl Core {
    pub(super) fn new(size_bytes: u64, design: &SimDesign, runtime: &Runtime) -> Result<Self> {
        Ok(match design {
            SimDesign::Log(codec, spec) => Self::Log(Box::new(Log::new(size_bytes, *codec, spec)?)),
            SimDesign::BlockMapped(spec) => {
                let drive = BlockMapped::new(size_bytes, *spec, runtime.clone())?;
                Self::BlockMapped(Box::new(drive), spec.shape.page_bytes)
            }
            SimDesign::Disk(spec) => {
                let disk = Rc::new(Disk::new(size_bytes, *spec, runtime.clone())?);
                runtime.spawn(Rc::clone(&disk).turn());
                Self::Disk(disk)
            }
        })
    }

    /// Reads from a drive that is no log.
    pub(super) async fn read(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        match self {
            Self::Log(_) => unreachable!("the reads of a log have times of their own"),
            Self::BlockMapped(drive, _) => drive.read(offset, target).await,
            Self::Disk(disk) => disk.read(offset, target).await,
        }
    }

    pub(super) async fn write(&self, offset: u64, bytes: &[u8], clock: &Runtime) -> Result<()> {
        match self {
            Self::Log(log) => log.write(offset, bytes, clock).await,
            Self::BlockMapped(drive, _) => drive.write(offset, bytes).await,
            Self::Disk(disk) => disk.write(offset, bytes).await,
        }
    }

    pub(super) async fn flush(&self, clock: &Runtime) -> Result<()> {
        match self {
            Self::Log(log) => log.flush(clock).await,
            Self::BlockMapped(drive, _) => drive.flush().await,
            Self::Disk(disk) => disk.flush().await,
        }
    }

    pub(super) async fn trim(&self, offset: u64, len: u64, clock: &Runtime) -> Result<()> {
        match self {
            Self::Log(log) => log.trim(offset, len, clock),
            Self::BlockMapped(drive, _) => drive.trim(offset, len).await,
            Self::Disk(_) => Err(Error::Unsupported("a hard disk has no trim".into())),
        }
    }

    pub(super) fn counts(&self) -> SimCounts {
        let (design, flash, flash_bytes, wear) = match self {
            Self::Log(log) => {
                let (counts, flash, flash_bytes, wear) = log.counts();
                (DesignCounts::Log(counts), flash, flash_bytes, wear)
            }
            Self::BlockMapped(drive, page_bytes) => {
                let merges = DesignCounts::BlockMapped(drive.merges());
                let flash = drive.flash_counts();
                let flash_bytes = flash.pages_programmed * u64::from(*page_bytes);
                (merges, flash, flash_bytes, drive.wear())
            }
            Self::Disk(disk) => {
                let head = DesignCounts::Disk(disk.counts());
                (head, FlashCounts::default(), 0, Vec::new())
            }
        };
        SimCounts { design, flash, flash_bytes, wear }
    }
}

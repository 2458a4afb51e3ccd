//! The storage of a drive, which has one of several designs, and its counters.

use std::cell::RefCell;
use std::rc::Rc;

use super::SimDesign;
use super::cached::{CacheCounts, Cached};
use super::log::Log;
use crate::block_mapped::{BlockMapped, MergeCounts};
use crate::content::{Content, parts};
use crate::disk::{Disk, DiskCounts};
use crate::ftl::LogCounts;
use crate::nand::FlashCounts;
use crate::{Error, Result};
use pumice_drive::base::units::BLOCK_BYTES;
use pumice_drive::runtime::Runtime;

/// Counters of a simulated drive since its creation.
#[derive(Clone, Debug)]
pub struct SimCounts {
    /// Counters specific to drives of this design.
    pub design: DesignCounts,
    /// Flash operations, on the slow drive if there is a cache; all 0 without flash.
    pub flash: FlashCounts,
    /// Programmed bytes; 0 without flash.
    pub flash_bytes: u64,
    /// Erase count of each good block; empty without flash.
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
    /// Memory has no counters.
    Memory,
    /// Lines of the cache, the cache's drive, and the slow drive.
    Cached(CacheCounts, Box<[SimCounts; 2]>),
}

/// The part that stores the data.
pub(super) enum Core {
    Log(Box<Log>),
    BlockMapped(Box<BlockMapped<Runtime>>, u32),
    Disk(Rc<Disk<Runtime>>),
    Memory(RefCell<Content>),
    Cached(Rc<Cached>),
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
            SimDesign::Memory => Self::Memory(RefCell::new(Content::new(BLOCK_BYTES))),
            SimDesign::Cached(spec) => Self::Cached(Cached::new(spec, runtime)?),
        })
    }

    /// Reads from a drive that is not a log.
    pub(super) async fn read(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        match self {
            Self::Log(_) => unreachable!("the reads of a log have times of their own"),
            Self::BlockMapped(drive, _) => drive.read(offset, target).await,
            Self::Disk(disk) => disk.read(offset, target).await,
            Self::Memory(content) => {
                let (content, mut rest) = (content.borrow(), target);
                for part in parts(BLOCK_BYTES as u64, offset, rest.len() as u64) {
                    let now;
                    (now, rest) = std::mem::take(&mut rest).split_at_mut(part.len);
                    content.read(part.slot, part.within, now);
                }
                Ok(())
            }
            Self::Cached(cached) => Box::pin(cached.read(offset, target)).await,
        }
    }

    pub(super) async fn write(&self, offset: u64, bytes: &[u8], clock: &Runtime) -> Result<()> {
        match self {
            Self::Log(log) => log.write(offset, bytes, clock).await,
            Self::BlockMapped(drive, _) => drive.write(offset, bytes).await,
            Self::Disk(disk) => disk.write(offset, bytes).await,
            Self::Memory(content) => {
                let (mut content, mut rest) = (content.borrow_mut(), bytes);
                for part in parts(BLOCK_BYTES as u64, offset, bytes.len() as u64) {
                    let now;
                    (now, rest) = rest.split_at(part.len);
                    content.write(part.slot, part.within, now);
                }
                Ok(())
            }
            Self::Cached(cached) => Box::pin(cached.write(offset, bytes)).await,
        }
    }

    pub(super) async fn flush(&self, clock: &Runtime) -> Result<()> {
        match self {
            Self::Log(log) => log.flush(clock).await,
            Self::BlockMapped(drive, _) => drive.flush().await,
            Self::Disk(disk) => disk.flush().await,
            Self::Memory(_) => Ok(()),
            Self::Cached(cached) => Box::pin(cached.flush()).await,
        }
    }

    pub(super) async fn trim(&self, offset: u64, len: u64, clock: &Runtime) -> Result<()> {
        match self {
            Self::Log(log) => log.trim(offset, len, clock),
            Self::BlockMapped(drive, _) => drive.trim(offset, len).await,
            Self::Disk(_) => Err(Error::Unsupported("a hard disk has no trim".into())),
            Self::Memory(content) => {
                let content = &mut *content.borrow_mut();
                let blocks = parts(BLOCK_BYTES as u64, offset, len);
                blocks.for_each(|block| drop(content.take(block.slot)));
                Ok(())
            }
            Self::Cached(cached) => Box::pin(cached.trim(offset, len)).await,
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
            Self::Memory(_) => (DesignCounts::Memory, FlashCounts::default(), 0, Vec::new()),
            Self::Cached(cached) => {
                let (lines, fast, slow) = cached.counts();
                let (flash, flash_bytes, wear) = (slow.flash, slow.flash_bytes, slow.wear.clone());
                let lines = DesignCounts::Cached(lines, Box::new([fast, slow]));
                (lines, flash, flash_bytes, wear)
            }
        };
        SimCounts { design, flash, flash_bytes, wear }
    }
}

//! A drive with a link to its host.

use std::cell::RefCell;

use futures_util::future::try_join_all;

use super::design::Core;
use super::{SimCounts, SimSpec};
use crate::front::Front;
use crate::streams::Streams;
use crate::{Error, Result};
use pumice_drive::base::Clock;
use pumice_drive::base::units::BLOCK_BYTES;
use pumice_drive::runtime::Runtime;

/// Number of bytes that block-mapped flash reads and sends at a time within a command.
const PART_BYTES: usize = 16 << 10;

/// A simulated drive in virtual time. All methods may be called concurrently.
pub struct SimDrive {
    runtime: Runtime,
    core: Core,
    front: Front<Runtime>,
    streams: RefCell<Streams>,
    spec: SimSpec,
}

impl SimDrive {
    /// Creates an empty drive, at virtual time 0.
    ///
    /// # Errors
    /// `InvalidInput` for an impossible specification, or for flash that is too small for the disk.
    pub fn new(spec: SimSpec) -> Result<Self> {
        Self::on(spec, &Runtime::simulated())
    }

    /// Creates an empty drive on a runtime shared with other drives.
    ///
    /// # Errors
    /// The errors of [`SimDrive::new`].
    pub(crate) fn on(spec: SimSpec, runtime: &Runtime) -> Result<Self> {
        let runtime = runtime.clone();
        let front = Front::new(spec.front, runtime.clone())?;
        if spec.command_bytes_max < BLOCK_BYTES as u64
            || !spec.command_bytes_max.is_multiple_of(BLOCK_BYTES as u64)
        {
            let what = "the longest command must be a multiple of 4096 bytes";
            return Err(Error::InvalidInput(what.into()));
        }
        let core = Core::new(spec.size_bytes, &spec.design, &runtime)?;
        Ok(Self { runtime, core, front, streams: RefCell::default(), spec })
    }

    /// Returns the virtual-time runtime of the drive.
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
    /// `InvalidInput` for a range beyond the disk, and the errors of the design: `Drive::read`,
    /// `BlockMapped::read`, `Disk::read`.
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
    /// `InvalidInput` for a range beyond the disk, and the errors of the design: `Drive::write`,
    /// `BlockMapped::write`, `Disk::write`.
    pub async fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.check(offset, bytes.len() as u64)?;
        let most = self.spec.command_bytes_max;
        let commands = (0..).zip(bytes.chunks(most as usize)).map(|(number, part)| {
            let at = offset + number * most;
            let is_scattered = !self.streams.borrow_mut().add(at, part.len() as u64);
            let write = self.core.write(at, part, &self.runtime);
            self.front.write(part.len() as u64, is_scattered, write)
        });
        try_join_all(commands).await.map(drop)
    }

    async fn read_command(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        let _slot = self.front.begin_read().await;
        let bytes = target.len() as u64;
        if let Core::Log(log) = &self.core {
            let (times, stored_bytes, _reading) = log.read(offset, target, &self.runtime).await?;
            let begin_ns = self.spec.front.send_at_ns(times, bytes, stored_bytes);
            let now_ns = self.runtime.now_ns();
            if begin_ns > now_ns {
                self.runtime.sleep_ns(begin_ns - now_ns).await;
            }
            self.front.send(bytes, stored_bytes).await;
            return Ok(());
        }
        // The first part is sent over the link while the rest is being read from flash.
        let part_bytes = match self.core {
            Core::Disk(_) | Core::Memory(_) | Core::Cached(_) => usize::MAX,
            Core::Log(_) | Core::BlockMapped(..) => PART_BYTES,
        };
        let part_bytes = part_bytes.min(self.spec.command_bytes_max as usize);
        let parts = (0..).zip(target.chunks_mut(part_bytes)).map(async |(number, part)| {
            let bytes = part.len() as u64;
            self.core.read(offset + number * part_bytes as u64, part).await?;
            self.front.send(bytes, bytes).await;
            Ok(())
        });
        try_join_all(parts).await.map(drop)
    }

    /// Checks that a range is within the disk.
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
    /// The errors of the design: `Drive::flush`, `BlockMapped::flush`, `Disk::flush`.
    pub async fn flush(&self) -> Result<()> {
        self.front.write(0, false, self.core.flush(&self.runtime)).await
    }

    /// Trims the blocks that are completely within a range.
    ///
    /// # Errors
    /// `Unsupported` on a disk; otherwise the errors of the design: `Drive::trim`,
    /// `BlockMapped::trim`.
    pub async fn trim(&self, offset: u64, len: u64) -> Result<()> {
        self.check(offset, len)?;
        let block = BLOCK_BYTES as u64;
        let (first, end) = (offset.div_ceil(block), (offset + len) / block);
        if first >= end {
            return Ok(());
        }
        let trim = self.core.trim(first * block, (end - first) * block, &self.runtime);
        self.front.write(0, false, trim).await
    }
}

impl Drop for SimDrive {
    fn drop(&mut self) {
        // The drive's tasks own the runtime, which owns the tasks.
        self.runtime.drop_tasks();
    }
}

//! A drive whose storage is a log on simulated flash: the store determines the timing, and the
//! content stores the bytes.

use std::cell::RefCell;

use crate::content::{Content, parts};
use crate::ftl::{LogCounts, ReadTimes};
use crate::log_store::{LogStore, LogStoreSpec};
use crate::nand::FlashCounts;
use crate::{Error, Result};
use pumice_drive::base::Clock;
use pumice_drive::base::units::BLOCK_BYTES;
use pumice_drive::codec::{Codec, Compressor};
use pumice_drive::runtime::Runtime;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// A log on simulated flash.
pub(super) struct Log {
    store: RefCell<LogStore>,
    content: RefCell<Content>,
    /// `None` for a drive that does not compress its data.
    sizes: Option<RefCell<Sizes>>,
    /// Mean stored fraction of a block if there are no `sizes`.
    stored: f64,
}

/// The stored size of each block when it was last written.
struct Sizes {
    compressor: Compressor,
    scratch: Vec<u8>,
    block: Vec<u8>,
    stored_min: u32,
    stored_bytes: Box<[u16]>,
}

/// A read that is in flight until this is dropped.
pub(super) struct Reading<'a>(&'a Log);

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.store.borrow_mut().end_read();
    }
}

impl Log {
    /// Creates an empty drive.
    ///
    /// # Errors
    /// `InvalidInput` for an impossible specification, or a store smaller than the disk.
    pub(super) fn new(size_bytes: u64, codec: Codec, spec: &LogStoreSpec) -> Result<Self> {
        let has_bytes = spec.log.user_blocks * BLOCK;
        if has_bytes < size_bytes {
            let what = format!("the store has {has_bytes} bytes, but the disk needs {size_bytes}");
            return Err(Error::InvalidInput(what.into()));
        }
        let store = RefCell::new(LogStore::new(spec)?);
        let stored = if codec == Codec::None { spec.log.stored_mean()? } else { 1.0 };
        let sizes = (codec != Codec::None).then(|| {
            RefCell::new(Sizes {
                compressor: Compressor::new(codec),
                scratch: vec![0; Compressor::target_bytes(BLOCK_BYTES)],
                block: vec![0; BLOCK_BYTES],
                stored_min: (spec.log.stored_min * BLOCK as f64).ceil() as u32,
                stored_bytes: vec![0; size_bytes.div_ceil(BLOCK) as usize].into_boxed_slice(),
            })
        });
        Ok(Self { store, content: RefCell::new(Content::new(BLOCK_BYTES)), sizes, stored })
    }

    /// Reads. Returns the time at which the data is available, the number of bytes read from flash,
    /// and a guard that must be held until the data has been sent.
    pub(super) async fn read(
        &self,
        offset: u64,
        target: &mut [u8],
        clock: &Runtime,
    ) -> Result<(ReadTimes, u64, Reading<'_>)> {
        let bytes = target.len() as u64;
        let held = self.store.borrow_mut().begin_read(clock.now_ns(), offset, bytes)?;
        let reading = Reading(self);
        let times = match held {
            Some(times) => times,
            None => {
                let mapped_ns = self.store.borrow_mut().look_up(clock.now_ns(), offset)?;
                until_ns(clock, mapped_ns).await;
                self.store.borrow_mut().read(clock.now_ns(), offset, bytes)?
            }
        };
        let content = self.content.borrow();
        let mut rest = target;
        for part in parts(BLOCK, offset, bytes) {
            let (now, later) = rest.split_at_mut(part.len);
            content.read(part.slot, part.within, now);
            rest = later;
        }
        Ok((times, self.stored_bytes(offset, bytes), reading))
    }

    /// Writes. The data is in the buffer or on flash when this returns.
    pub(super) async fn write(&self, offset: u64, bytes: &[u8], clock: &Runtime) -> Result<()> {
        let len = bytes.len() as u64;
        let merged_ns = self.store.borrow_mut().read_edges(clock.now_ns(), offset, len)?;
        until_ns(clock, merged_ns).await;
        let stored_bytes = self.put(offset, bytes);
        let ended_ns =
            self.store.borrow_mut().write(clock.now_ns(), offset, len, stored_bytes.as_deref())?;
        until_ns(clock, ended_ns).await;
        Ok(())
    }

    pub(super) async fn flush(&self, clock: &Runtime) -> Result<()> {
        let flushed_ns = self.store.borrow_mut().flush(clock.now_ns())?;
        until_ns(clock, flushed_ns).await;
        Ok(())
    }

    /// Trims whole blocks.
    pub(super) fn trim(&self, offset: u64, len: u64, clock: &Runtime) -> Result<()> {
        self.store.borrow_mut().trim(clock.now_ns(), offset, len)?;
        let blocks = offset / BLOCK..(offset + len) / BLOCK;
        if let Some(sizes) = &self.sizes {
            sizes.borrow_mut().stored_bytes[blocks.start as usize..blocks.end as usize].fill(0);
        }
        let content = &mut *self.content.borrow_mut();
        blocks.for_each(|block| drop(content.take(block)));
        Ok(())
    }

    /// Returns the counters of written bytes, the operations of the flash, its programmed bytes
    /// (including bytes that are waiting for a die), and the erase count of each good block.
    pub(super) fn counts(&self) -> (LogCounts, FlashCounts, u64, Vec<u32>) {
        let ftl = &self.store.borrow().ftl;
        (ftl.counts(), ftl.flash_counts(), ftl.counts().flash_bytes, ftl.erases().collect())
    }

    /// Stores the bytes of a write. Returns the stored size of each overlapped block, if the drive
    /// compresses.
    fn put(&self, offset: u64, bytes: &[u8]) -> Option<Vec<u32>> {
        let content = &mut *self.content.borrow_mut();
        let mut sizes = self.sizes.as_ref().map(RefCell::borrow_mut);
        let mut found = Vec::new();
        let mut rest = bytes;
        for part in parts(BLOCK, offset, bytes.len() as u64) {
            let (now, later) = rest.split_at(part.len);
            content.write(part.slot, part.within, now);
            rest = later;
            if let Some(sizes) = &mut sizes {
                let Sizes { compressor, scratch, block, stored_min, stored_bytes } = &mut **sizes;
                let whole = if now.len() == BLOCK_BYTES {
                    now
                } else {
                    content.read(part.slot, 0, block);
                    &block[..]
                };
                let (_, stored) = compressor.compress(whole, scratch);
                let stored = (stored as u32).clamp(*stored_min, BLOCK as u32);
                stored_bytes[part.slot as usize] = stored as u16;
                found.push(stored);
            }
        }
        sizes.map(|_| found)
    }

    /// Returns the number of stored bytes in a range. Blocks that are partly within it count
    /// proportionally.
    fn stored_bytes(&self, offset: u64, len: u64) -> u64 {
        let Some(sizes) = &self.sizes else { return (len as f64 * self.stored) as u64 };
        let sizes = sizes.borrow();
        let stored = |slot: u64| u64::from(sizes.stored_bytes[slot as usize]);
        let sums = parts(BLOCK, offset, len).map(|part| stored(part.slot) * part.len as u64);
        sums.sum::<u64>() / BLOCK
    }
}

async fn until_ns(clock: &Runtime, ns: u64) {
    let now_ns = clock.now_ns();
    if ns > now_ns {
        clock.sleep_ns(ns - now_ns).await;
    }
}

//! The host's operating system: calls, page cache, write-back and read-ahead.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::page_cache::{PAGE_BYTES, PageCache, Presence};
use super::{CacheSpec, SystemSpec};
use crate::drive::{SimCounts, SimDrive};
use crate::{Error, Result};
use pumice_drive::base::Clock;
use pumice_drive::base::units::{BLOCK_BYTES, transfer_ns};
use pumice_drive::base::wait::WaitQueue;
use pumice_drive::runtime::Runtime;

/// Number of bytes that a call fetches and copies at a time, and their number of pages.
const COPY_BYTES: usize = 128 << 10;
const COPY_PAGES: u64 = (COPY_BYTES / PAGE_BYTES) as u64;

/// A host with one simulated drive. All methods may be called concurrently.
pub struct System {
    drive: SimDrive,
    spec: SystemSpec,
    /// Time at which the processor becomes free.
    processor_ns: Cell<u64>,
    pub(super) cache: Option<RefCell<PageCache>>,
    /// Notified when pages have arrived or have been written back.
    changed: WaitQueue,
    /// End of the previous read, and of the read-ahead.
    read_end: Cell<u64>,
    ahead_end: Cell<u64>,
    /// Number of write-back tasks, and number of programs waiting for a flush.
    writers: Cell<u32>,
    flushing: Cell<u32>,
    /// The error of a page that no call was waiting for.
    error: RefCell<Option<Error>>,
}

impl System {
    /// Creates an empty drive, at virtual time 0.
    ///
    /// # Errors
    /// The errors of [`SimDrive::new`].
    pub fn new(spec: SystemSpec) -> Result<Self> {
        spec.check()?;
        let drive = SimDrive::new(spec.drive.clone())?;
        let pages = |cache: &CacheSpec| (cache.cache_bytes / PAGE_BYTES as u64) as usize;
        let cache = spec.cache.as_ref().map(|cache| RefCell::new(PageCache::new(pages(cache))));
        Ok(Self {
            drive,
            spec,
            processor_ns: Cell::new(0),
            cache,
            changed: WaitQueue::default(),
            read_end: Cell::new(0),
            ahead_end: Cell::new(0),
            writers: Cell::new(0),
            flushing: Cell::new(0),
            error: RefCell::new(None),
        })
    }

    /// Returns the virtual-time runtime of the host and its drive.
    pub fn runtime(&self) -> &Runtime {
        self.drive.runtime()
    }

    /// Returns the counters of the drive.
    pub fn counts(&self) -> SimCounts {
        self.drive.counts()
    }

    /// Reads at `offset` of the target.
    ///
    /// # Errors
    /// The errors of the drive.
    pub async fn read(self: &Rc<Self>, offset: u64, target: &mut [u8]) -> Result<()> {
        self.process(self.spec.call_ns).await;
        let (Some(cache), Some(spec)) = (&self.cache, &self.spec.cache) else {
            return self.drive.read(self.spec.offset_bytes + offset, target).await;
        };
        let end = (offset + target.len() as u64).div_ceil(PAGE_BYTES as u64);
        let mut at = offset;
        // Pages that have arrived are copied while more pages are read ahead.
        for part in target.chunks_mut(COPY_BYTES) {
            self.read_ahead(at, part.len() as u64);
            let mut done = 0;
            while done < part.len() {
                let (number, within) = (at / PAGE_BYTES as u64, (at % PAGE_BYTES as u64) as usize);
                let len = (PAGE_BYTES - within).min(part.len() - done);
                if let Some(bytes) = cache.borrow_mut().read(number) {
                    part[done..done + len].copy_from_slice(&bytes[within..within + len]);
                    done += len;
                    at += len as u64;
                    continue;
                }
                self.bring(number, end.min(number + COPY_PAGES)).await?;
            }
            self.process(transfer_ns(part.len() as u64, spec.copy_bytes_per_s)).await;
        }
        Ok(())
    }

    /// Writes at `offset` of the target. The data is durable only after [`System::flush`].
    ///
    /// # Errors
    /// The errors of the drive; with a page cache, also the errors of earlier writes.
    pub async fn write(self: &Rc<Self>, offset: u64, bytes: &[u8]) -> Result<()> {
        let copy_ns = |spec: CacheSpec| transfer_ns(bytes.len() as u64, spec.copy_bytes_per_s);
        self.process(self.spec.call_ns + self.spec.cache.map_or(0, copy_ns)).await;
        let (Some(cache), Some(spec)) = (&self.cache, &self.spec.cache) else {
            return self.drive.write(self.spec.offset_bytes + offset, bytes).await;
        };
        let dirty_max = (spec.cache_bytes / PAGE_BYTES as u64 * spec.dirty_percent / 100) as usize;
        let mut done = 0;
        while done < bytes.len() {
            let has_room = || {
                let is_full = cache.borrow().dirty_pages() >= dirty_max;
                (!is_full || self.error.borrow().is_some()).then_some(())
            };
            // The write-back tasks may have stopped after an error.
            self.write_back(dirty_max / 2);
            self.changed.wait_for(has_room).await;
            self.failed()?;
            let at = offset + done as u64;
            let (number, within) = (at / PAGE_BYTES as u64, (at % PAGE_BYTES as u64) as usize);
            let len = (PAGE_BYTES - within).min(bytes.len() - done);
            if len < PAGE_BYTES && cache.borrow().presence(number) != Presence::Here {
                self.bring(number, number + 1).await?;
                continue;
            }
            cache.borrow_mut().write(number, within, &bytes[done..done + len]);
            done += len;
        }
        self.write_back(dirty_max / 2);
        Ok(())
    }

    /// Makes all earlier writes durable.
    ///
    /// # Errors
    /// The errors of the drive, including the errors of earlier writes.
    pub async fn flush(self: &Rc<Self>) -> Result<()> {
        if let Some(cache) = &self.cache {
            self.flushing.set(self.flushing.get() + 1);
            self.write_back(0);
            let is_clean = || {
                let is_clean = cache.borrow().dirty_pages() == 0;
                (is_clean || self.error.borrow().is_some()).then_some(())
            };
            self.changed.wait_for(is_clean).await;
            self.flushing.set(self.flushing.get() - 1);
            self.failed()?;
        }
        self.drive.flush().await
    }

    /// Trims the pages that are completely within a range.
    ///
    /// # Errors
    /// The errors of the drive.
    pub async fn trim(&self, offset: u64, len: u64) -> Result<()> {
        if let Some(cache) = &self.cache {
            let page = PAGE_BYTES as u64;
            cache.borrow_mut().forget(offset.div_ceil(page)..(offset + len) / page);
            self.changed.wake_all();
        }
        self.drive.trim(self.spec.offset_bytes + offset, len).await
    }

    /// Drops all pages that are also on the drive.
    pub fn drop_clean(&self) {
        if let Some(cache) = &self.cache {
            cache.borrow_mut().drop_clean();
        }
    }

    /// Returns the error of a page that no call was waiting for, only once.
    fn failed(&self) -> Result<()> {
        self.error.take().map_or(Ok(()), Err)
    }

    /// Keeps the processor busy for `len_ns`, after earlier calls.
    async fn process(&self, len_ns: u64) {
        let now_ns = self.runtime().now_ns();
        let ended_ns = self.processor_ns.get().max(now_ns) + len_ns;
        self.processor_ns.set(ended_ns);
        if ended_ns > now_ns {
            self.runtime().sleep_ns(ended_ns - now_ns).await;
        }
    }

    /// Reads page `number` and its absent neighbours before `end`, and waits for page `number`.
    async fn bring(&self, number: u64, end: u64) -> Result<()> {
        let Some(cache) = &self.cache else { return Ok(()) };
        let is_absent = |number: &u64| cache.borrow().presence(*number) == Presence::Absent;
        if is_absent(&number) {
            let end = (number..end).find(|number| !is_absent(number)).unwrap_or(end);
            return self.fetch(number, end).await;
        }
        let has_come = || (cache.borrow().presence(number) != Presence::Coming).then_some(());
        self.changed.wait_for(has_come).await;
        Ok(())
    }

    /// Reads absent pages.
    async fn fetch(&self, first: u64, end: u64) -> Result<()> {
        let Some(cache) = &self.cache else { return Ok(()) };
        cache.borrow_mut().expect(first..end);
        let page = PAGE_BYTES as u64;
        let from = first * page;
        let to = (end * page).min(self.spec.size_bytes());
        let mut bytes = vec![0; ((end - first) * page) as usize];
        let target = &mut bytes[..to.saturating_sub(from) as usize];
        let result = self.drive.read(self.spec.offset_bytes + from, target).await;
        let mut cache = cache.borrow_mut();
        for (number, bytes) in (first..end).zip(bytes.chunks(PAGE_BYTES)) {
            cache.arrive(number, result.is_ok().then_some(bytes));
        }
        self.changed.wake_all();
        result
    }

    /// Starts to read the window after this read, if the read continues the previous one.
    fn read_ahead(self: &Rc<Self>, offset: u64, len: u64) {
        let (Some(cache), Some(spec)) = (&self.cache, &self.spec.cache) else { return };
        let goes_on = offset == self.read_end.replace(offset + len) && offset > 0;
        if !goes_on || self.ahead_end.get() < offset {
            self.ahead_end.set(offset + len);
        }
        if !goes_on {
            return;
        }
        let page = PAGE_BYTES as u64;
        while self.ahead_end.get()
            < (offset + len + spec.readahead_bytes).min(self.spec.size_bytes())
        {
            let first = self.ahead_end.get() / page;
            let end = (first + spec.readahead_bytes / page).min(self.spec.size_bytes() / page);
            if end <= first {
                return;
            }
            self.ahead_end.set(end * page);
            let absent = |number: &u64| cache.borrow().presence(*number) == Presence::Absent;
            let Some(first) = (first..end).find(absent) else { continue };
            let end = (first..end).find(|number| !absent(number)).unwrap_or(end);
            let system = Rc::clone(self);
            self.runtime().spawn(async move {
                // A program that does not find such a page in the cache reads it again, and
                // receives the error.
                let _ = system.fetch(first, end).await;
            });
        }
    }

    /// Writes dirty pages back until at most `pages` are left, with one task for each command that
    /// can be in flight.
    fn write_back(self: &Rc<Self>, pages: usize) {
        let Some(cache) = &self.cache else { return };
        while self.writers.get() < self.spec.drive.front.depth {
            if !self.is_wanted(pages) {
                return;
            }
            let command_pages = (self.spec.drive.command_bytes_max / BLOCK_BYTES as u64) as usize;
            let Some(run) = cache.borrow_mut().leave(command_pages.max(1)) else { return };
            self.writers.set(self.writers.get() + 1);
            let system = Rc::clone(self);
            self.runtime().spawn(async move { system.write_runs(run, pages).await });
        }
    }

    /// Returns whether more pages must be written back.
    fn is_wanted(&self, pages: usize) -> bool {
        let pages = if self.flushing.get() > 0 { 0 } else { pages };
        self.cache.as_ref().is_some_and(|cache| cache.borrow().dirty_pages() > pages)
    }

    /// Writes back a run of pages, then further runs as long as necessary.
    async fn write_runs(&self, run: (u64, Vec<u8>), pages: usize) {
        let Some(cache) = &self.cache else { return };
        let command_pages = (self.spec.drive.command_bytes_max / BLOCK_BYTES as u64) as usize;
        let mut next = Some(run);
        while let Some((first, mut bytes)) = next {
            let count = bytes.len() / PAGE_BYTES;
            let offset = first * PAGE_BYTES as u64;
            bytes.truncate(self.spec.size_bytes().saturating_sub(offset) as usize);
            let result = self.drive.write(self.spec.offset_bytes + offset, &bytes).await;
            cache.borrow_mut().left(first, count, result.is_ok());
            let has_failed = result.is_err();
            if let Err(error) = result {
                self.error.borrow_mut().get_or_insert(error);
            }
            self.changed.wake_all();
            let goes_on = !has_failed && self.is_wanted(pages);
            next = if goes_on { cache.borrow_mut().leave(command_pages.max(1)) } else { None };
        }
        self.writers.set(self.writers.get() - 1);
    }
}

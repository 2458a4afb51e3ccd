//! A host's operating system on top of a simulated drive, in virtual time.
//!
//! ```text
//! program -> call -> page cache -> commands -> drive        buffered
//! program -> call ---------------> commands -> drive        direct
//! ```
//!
//! **Buffered writes** are copied and acknowledged. When more than half of the allowance for dirty
//! pages is used, they are written back in ascending order, adjacent pages together, with as many
//! commands in flight as the queue has slots. When all of it is used, programs wait. A flush writes
//! everything back. For **buffered reads** that continue where the last one ended, the next window
//! is read ahead while the current one is used.
//!
//! The calls of a program use the processor one after the other. Not simulated: file systems and
//! their metadata, more than one file, pages that are written back because of their age.

mod page_cache;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use page_cache::{PAGE_BYTES, PageCache, Presence};

use super::drive::{SimCounts, SimDrive, SimSpec};
use crate::{Error, Result};
use pumice_drive::base::Clock;
use pumice_drive::base::units::{BLOCK_BYTES, parse_size, transfer_ns};
use pumice_drive::base::wait::WaitQueue;
use pumice_drive::runtime::Runtime;

/// Share of the page cache that may be dirty before writers wait, in per cent: Linux's
/// vm.dirty_ratio.
const DIRTY_PERCENT: u64 = 20;

/// Bytes of read-ahead: Linux's read_ahead_kb of 128.
const READAHEAD_BYTES: u64 = 128 << 10;

/// Time of a call without copying, in ns, where there is a page cache (a guess).
const CALL_NS: u64 = 1_500;

/// Bytes per second that are copied between a program and the page cache (a guess, for memory of
/// 2010).
const COPY_BYTES_PER_S: u64 = 3_000_000_000;

/// Bytes that a call fetches and copies at a time, and their pages.
const COPY_BYTES: usize = 128 << 10;
const COPY_PAGES: u64 = (COPY_BYTES / PAGE_BYTES) as u64;

/// Smallest page cache: larger than any request.
const CACHE_BYTES_MIN: u64 = 64 << 20;

/// Largest page cache: it is held in memory.
const CACHE_BYTES_MAX: u64 = 16 << 30;

/// Parameters of a page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSpec {
    /// Size in bytes: 64 MiB to 16 GiB.
    pub cache_bytes: u64,
    /// Share that may be dirty before writers wait, in per cent: 1 to 90.
    pub dirty_percent: u64,
    /// Bytes of read-ahead for a sequential reader; 0 for none.
    pub readahead_bytes: u64,
    /// Bytes per second that are copied between the cache and a program.
    pub copy_bytes_per_s: u64,
}

/// A host and its drive.
#[derive(Clone, Debug)]
pub struct SystemSpec {
    /// The drive, with the queue depth and the longest command of the host's driver.
    pub drive: SimSpec,
    /// Offset of the target on the drive: a multiple of 512 bytes, such as the 63 sectors before
    /// the first partition of old partition tables.
    pub offset_bytes: u64,
    /// Time of a program's call without copying, in ns.
    pub call_ns: u64,
    /// The page cache; `None` for direct I/O.
    pub cache: Option<CacheSpec>,
}

fn invalid(what: impl Into<String>) -> Error {
    Error::InvalidInput(what.into().into())
}

impl SystemSpec {
    /// Parses `PROFILE[?KEY=VALUE[&KEY=VALUE..]]`: the name or file of a profile, and conditions:
    ///
    /// ```text
    /// cache_bytes        page cache, such as 1GiB; without it, calls bypass the page cache
    /// dirty_percent      share that may be dirty before writers wait; default 20
    /// readahead_bytes    read-ahead for a sequential reader; default 128KiB
    /// copy_bytes_per_s   between program and page cache; default 3GB
    /// call_ns            time of a program's call; default 1500 with a page cache, else 0
    /// depth              maximum number of commands in flight: 31 with NCQ on Linux, 1 in IDE mode
    /// command_bytes_max  longest command
    /// offset_bytes       offset of the target on the drive, such as 32256
    /// ```
    ///
    /// # Errors
    /// Those of [`SimSpec::find`]; `InvalidInput` for an unknown key or an invalid value.
    pub fn find(text: &str) -> Result<Self> {
        let (profile, conditions) = text.split_once('?').unwrap_or((text, ""));
        let mut spec =
            Self { drive: SimSpec::find(profile)?, offset_bytes: 0, call_ns: 0, cache: None };
        let mut call_ns = None;
        let mut cache = CacheSpec {
            cache_bytes: 0,
            dirty_percent: DIRTY_PERCENT,
            readahead_bytes: READAHEAD_BYTES,
            copy_bytes_per_s: COPY_BYTES_PER_S,
        };
        let mut of_cache = None;
        for condition in conditions.split('&').filter(|condition| !condition.is_empty()) {
            let (key, value) = condition.split_once('=').unwrap_or((condition, ""));
            let number = parse_size(value).map_err(|error| invalid(format!("{key}: {error}")))?;
            match key {
                "cache_bytes" => cache.cache_bytes = number,
                "dirty_percent" => cache.dirty_percent = number,
                "readahead_bytes" => cache.readahead_bytes = number,
                "copy_bytes_per_s" => cache.copy_bytes_per_s = number,
                "call_ns" => call_ns = Some(number),
                "depth" => {
                    let depth = u32::try_from(number).unwrap_or(u32::MAX);
                    spec.drive.front.depth = depth.min(spec.drive.front.depth);
                }
                "command_bytes_max" => spec.drive.command_bytes_max = number,
                "offset_bytes" => spec.offset_bytes = number,
                _ => {
                    let what = format!("'{key}' is not a condition of a simulated drive");
                    let keys = "cache_bytes, dirty_percent, readahead_bytes, copy_bytes_per_s, \
                                call_ns, depth, command_bytes_max, offset_bytes";
                    return Err(invalid(format!("{what}: expected one of {keys}")));
                }
            }
            if matches!(key, "dirty_percent" | "readahead_bytes" | "copy_bytes_per_s") {
                of_cache = Some(key);
            }
        }
        if let (0, Some(key)) = (cache.cache_bytes, of_cache) {
            return Err(invalid(format!("{key} requires cache_bytes, the size of the page cache")));
        }
        spec.cache = (cache.cache_bytes > 0).then_some(cache);
        spec.call_ns = call_ns.unwrap_or(if spec.cache.is_some() { CALL_NS } else { 0 });
        spec.check()?;
        Ok(spec)
    }

    /// Returns the profile's name or file from a text for [`SystemSpec::find`].
    pub fn profile_of(text: &str) -> &str {
        text.split_once('?').map_or(text, |(profile, _)| profile)
    }

    /// Returns the size of the target in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.drive.size_bytes.saturating_sub(self.offset_bytes)
    }

    /// Checks the parameters.
    ///
    /// # Errors
    /// `InvalidInput` for an impossible parameter.
    fn check(&self) -> Result<()> {
        if !self.offset_bytes.is_multiple_of(512) || self.offset_bytes >= self.drive.size_bytes {
            let what = "offset_bytes must be a multiple of 512, within the drive";
            return Err(invalid(what));
        }
        let Some(cache) = &self.cache else { return Ok(()) };
        if !(CACHE_BYTES_MIN..=CACHE_BYTES_MAX).contains(&cache.cache_bytes) {
            return Err(invalid(
                "cache_bytes must be from 64 MiB to 16 GiB: the cache is held in memory",
            ));
        }
        // Reads need clean pages, too.
        if !(1..=90).contains(&cache.dirty_percent) {
            return Err(invalid("dirty_percent must be from 1 to 90"));
        }
        if cache.readahead_bytes > cache.cache_bytes / 8 {
            return Err(invalid("readahead_bytes must be at most an eighth of cache_bytes"));
        }
        if cache.copy_bytes_per_s == 0 {
            return Err(invalid("copy_bytes_per_s must not be zero"));
        }
        Ok(())
    }
}

/// A host with one simulated drive. All methods may be called concurrently.
pub struct System {
    drive: SimDrive,
    spec: SystemSpec,
    /// Time at which the processor is free.
    processor_ns: Cell<u64>,
    cache: Option<RefCell<PageCache>>,
    /// Notified when pages have arrived or have been written back.
    changed: WaitQueue,
    /// End of the last read, and of the read-ahead.
    read_end: Cell<u64>,
    ahead_end: Cell<u64>,
    /// Number of tasks that write back, and of programs that wait for a flush.
    writers: Cell<u32>,
    flushing: Cell<u32>,
    /// The error of a page for which no call waited.
    error: RefCell<Option<Error>>,
}

impl System {
    /// Creates an empty drive, at virtual time 0.
    ///
    /// # Errors
    /// Those of [`SimDrive::new`].
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

    /// Returns the runtime of the host and its drive, on virtual time.
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
    /// Those of the drive.
    pub async fn read(self: &Rc<Self>, offset: u64, target: &mut [u8]) -> Result<()> {
        self.process(self.spec.call_ns).await;
        let (Some(cache), Some(spec)) = (&self.cache, &self.spec.cache) else {
            return self.drive.read(self.spec.offset_bytes + offset, target).await;
        };
        let end = (offset + target.len() as u64).div_ceil(PAGE_BYTES as u64);
        let mut at = offset;
        // Pages that have arrived are copied while more are read ahead.
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
    /// Those of the drive; with a page cache, also those of earlier writes.
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
            // The tasks that write back may have stopped after an error.
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
    /// Those of the drive, including those of earlier writes.
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

    /// Trims the pages that lie completely in a range.
    ///
    /// # Errors
    /// Those of the drive.
    pub async fn trim(&self, offset: u64, len: u64) -> Result<()> {
        if let Some(cache) = &self.cache {
            let page = PAGE_BYTES as u64;
            cache.borrow_mut().forget(offset.div_ceil(page)..(offset + len) / page);
            self.changed.wake_all();
        }
        self.drive.trim(self.spec.offset_bytes + offset, len).await
    }

    /// Drops all pages that the drive has.
    pub fn drop_clean(&self) {
        if let Some(cache) = &self.cache {
            cache.borrow_mut().drop_clean();
        }
    }

    /// Returns the error of a page for which no call waited, once.
    fn failed(&self) -> Result<()> {
        self.error.take().map_or(Ok(()), Err)
    }

    /// Occupies the processor for `len_ns`, after earlier calls.
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

    /// Starts reading the window that follows this read, if the read continues the last one.
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
                // A program that needs such a page and does not find it reads it again, and gets
                // the error.
                let _ = system.fetch(first, end).await;
            });
        }
    }

    /// Writes dirty pages back until at most `pages` are left, by as many tasks as commands can be
    /// in flight.
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

    /// Writes back a run of pages, then further runs while necessary.
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

#[cfg(test)]
mod tests;

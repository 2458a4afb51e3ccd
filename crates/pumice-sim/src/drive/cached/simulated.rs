//! A cache and its drive in virtual time.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use futures_util::future::{try_join, try_join_all};

use super::CachedSpec;
use super::lines::Lines;
use crate::content::{Part, parts};
use crate::drive::{SimCounts, SimDrive};
use crate::{Error, Result};
use pumice_drive::base::wait::WaitQueue;
use pumice_drive::runtime::Runtime;

/// Maximum number of concurrent reads whose lines are being added to the cache; the lines of
/// further reads bypass it (arbitrary).
const FILLS_MAX: u32 = 64;

/// Number of runs of lines that are written back together (arbitrary: the number of NCQ tags).
const RUNS: usize = 32;

/// Counters of a cache since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounts {
    /// Lines requested by reads.
    pub lines_read: u64,
    /// Requested lines that were in the cache.
    pub lines_hit: u64,
    /// Lines addressed by writes.
    pub lines_written: u64,
    /// Lines of writes that bypassed the cache.
    pub lines_past: u64,
    /// Lines written back to the slow drive.
    pub lines_written_back: u64,
    /// Bytes that are in the cache but not on the slow drive.
    pub dirty_bytes: u64,
    /// Maximum of `dirty_bytes` at any time.
    pub dirty_bytes_max: u64,
}

impl CacheCounts {
    /// Returns the counts since `before`. The dirty bytes and their maximum are the current ones.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            lines_read: self.lines_read - before.lines_read,
            lines_hit: self.lines_hit - before.lines_hit,
            lines_written: self.lines_written - before.lines_written,
            lines_past: self.lines_past - before.lines_past,
            lines_written_back: self.lines_written_back - before.lines_written_back,
            ..*self
        }
    }
}

/// A slow drive with a fast drive as its cache.
pub(crate) struct Cached {
    pub(super) fast: SimDrive,
    pub(super) slow: SimDrive,
    runtime: Runtime,
    size_bytes: u64,
    line_bytes: u64,
    lines_max: usize,
    write_back: bool,
    is_volatile: bool,
    pub(super) lines: RefCell<Lines>,
    counts: Cell<CacheCounts>,
    /// Notified when lines are no longer in use or have been written back.
    changed: WaitQueue,
    /// Number of reads whose lines are being added to the cache.
    fills: Cell<u32>,
    is_writing_back: Cell<bool>,
    /// Number of flushes that wait for the write-back.
    flushing: Cell<u32>,
    /// The error of a write-back that no request was waiting for.
    error: RefCell<Option<Error>>,
}

/// Lines in use until this is dropped.
struct Held {
    cached: Rc<Cached>,
    lines: Range<u64>,
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut lines = self.cached.lines.borrow_mut();
        self.lines.clone().for_each(|line| lines.unlock(line));
        drop(lines);
        self.cached.changed.wake_all();
    }
}

/// The destination of one part of a write; offsets are relative to the write's data.
enum Put {
    /// A part of a present line, or a whole line, is written to its position in the cache.
    Place { line: u64, place: u32, within: usize, from: usize, to: usize },
    /// A part of an absent line; the rest is fetched first.
    Merge { line: u64, place: u32, within: usize, from: usize, to: usize },
    /// Written only to the slow drive.
    Past { from: usize, to: usize },
}

/// Adjacent parts of a read that are all in the cache, or all absent.
enum Get {
    Place { place: u32, within: usize, len: usize },
    Absent { lines: Range<u64>, len: usize },
}

impl Cached {
    /// Creates an empty drive with an empty cache.
    ///
    /// # Errors
    /// The errors of [`SimDrive::new`]; `InvalidInput` for a cache that has no lines or is larger
    /// than its drive.
    pub(crate) fn new(spec: &CachedSpec, runtime: &Runtime) -> Result<Rc<Self>> {
        let CachedSpec { line_bytes, size_bytes, write_back, is_volatile, .. } = *spec;
        let lines_max = u32::try_from(size_bytes / line_bytes.max(1)).unwrap_or(u32::MAX);
        if lines_max == 0 || size_bytes > spec.fast.size_bytes {
            let what = "a cache must have a line at least, and fit into its drive";
            return Err(Error::InvalidInput(what.into()));
        }
        Ok(Rc::new(Self {
            fast: SimDrive::on(spec.fast.clone(), runtime)?,
            slow: SimDrive::on(spec.slow.clone(), runtime)?,
            runtime: runtime.clone(),
            size_bytes: spec.slow.size_bytes,
            line_bytes,
            lines_max: lines_max as usize,
            write_back,
            is_volatile,
            lines: RefCell::new(Lines::new(lines_max)),
            counts: Cell::default(),
            changed: WaitQueue::default(),
            fills: Cell::new(0),
            is_writing_back: Cell::new(false),
            flushing: Cell::new(0),
            error: RefCell::new(None),
        }))
    }

    /// Returns the counters of the cache, of the cache's drive and of the slow drive.
    pub(crate) fn counts(&self) -> (CacheCounts, SimCounts, SimCounts) {
        let dirty_bytes = self.lines.borrow().dirty_lines() as u64 * self.line_bytes;
        let counts = CacheCounts { dirty_bytes, ..self.counts.get() };
        (counts, self.fast.counts(), self.slow.counts())
    }

    /// Reads a range.
    ///
    /// # Errors
    /// The errors of both drives.
    pub(crate) async fn read(self: &Rc<Self>, offset: u64, target: &mut [u8]) -> Result<()> {
        let lines = self.lines_of(offset, target.len() as u64);
        let held = self.hold(lines, true).await;
        let gets = self.gets(offset, target.len() as u64);
        let mut jobs = Vec::with_capacity(gets.len());
        let (mut at, mut rest) = (offset, target);
        for get in &gets {
            let (Get::Place { len, .. } | Get::Absent { len, .. }) = *get;
            let part;
            (part, rest) = std::mem::take(&mut rest).split_at_mut(len);
            jobs.push(self.get(get, at, part));
            at += len as u64;
        }
        let brought = try_join_all(jobs).await?;
        let brought: Vec<_> = brought.into_iter().flatten().collect();
        if !brought.is_empty() && self.fills.get() < FILLS_MAX {
            self.fills.set(self.fills.get() + 1);
            self.runtime.spawn(Rc::clone(self).fill(held, brought));
        }
        Ok(())
    }

    /// Writes a range.
    ///
    /// # Errors
    /// The errors of both drives, and of an earlier write-back.
    pub(crate) async fn write(self: &Rc<Self>, offset: u64, bytes: &[u8]) -> Result<()> {
        self.failed()?;
        let held = self.hold(self.lines_of(offset, bytes.len() as u64), false).await;
        if self.write_back {
            self.put(offset, bytes).await?;
        } else {
            try_join(self.slow.write(offset, bytes), self.put(offset, bytes)).await?;
        }
        drop(held);
        self.begin_write_back();
        Ok(())
    }

    /// Makes all earlier writes durable; see the module documentation.
    ///
    /// # Errors
    /// The errors of both drives, and of an earlier write-back.
    pub(crate) async fn flush(self: &Rc<Self>) -> Result<()> {
        if self.write_back && self.is_volatile {
            let epoch = self.lines.borrow_mut().next_epoch();
            self.flushing.set(self.flushing.get() + 1);
            self.begin_write_back();
            let is_over = || {
                let is_over = self.lines.borrow().epoch_is_over(epoch);
                (is_over || self.error.borrow().is_some()).then_some(())
            };
            self.changed.wait_for(is_over).await;
            self.flushing.set(self.flushing.get() - 1);
        }
        self.failed()?;
        if self.write_back && !self.is_volatile {
            return try_join(self.fast.flush(), self.slow.flush()).await.map(drop);
        }
        self.slow.flush().await
    }

    /// Trims a range. Lines that are completely within it are removed from the cache.
    ///
    /// # Errors
    /// The errors of the slow drive. The cache is unchanged in this case.
    pub(crate) async fn trim(self: &Rc<Self>, offset: u64, len: u64) -> Result<()> {
        let covered = offset.div_ceil(self.line_bytes)..(offset + len) / self.line_bytes;
        let lock = || {
            let mut lines = self.lines.borrow_mut();
            let within = lines.within(&covered);
            let is_free = !within.iter().any(|&line| lines.is_leaving(line));
            (is_free && lines.lock(within.iter().copied(), false)).then_some(within)
        };
        let within = self.changed.wait_for(lock).await;
        let trimmed = self.slow.trim(offset, len).await;
        let mut lines = self.lines.borrow_mut();
        for line in within {
            lines.unlock(line);
            if trimmed.is_ok() {
                lines.forget(line);
            }
        }
        drop(lines);
        self.changed.wake_all();
        trimmed
    }

    fn lines_of(&self, offset: u64, len: u64) -> Range<u64> {
        offset / self.line_bytes..(offset + len).div_ceil(self.line_bytes)
    }

    /// Waits until lines are available to a request. They are shared if a read finds all of them in
    /// the cache; otherwise they are exclusive.
    async fn hold(self: &Rc<Self>, lines: Range<u64>, is_read: bool) -> Held {
        let lock = || {
            let mut known = self.lines.borrow_mut();
            let shared = is_read && lines.clone().all(|line| known.place(line).is_some());
            known.lock(lines.clone(), shared).then_some(())
        };
        self.changed.wait_for(lock).await;
        Held { cached: Rc::clone(self), lines }
    }

    /// Returns the parts of a read, and counts its lines.
    fn gets(&self, offset: u64, len: u64) -> Vec<Get> {
        let (mut lines, mut counts) = (self.lines.borrow_mut(), self.counts.get());
        let mut gets = Vec::new();
        for Part { slot, within, len } in parts(self.line_bytes, offset, len) {
            counts.lines_read += 1;
            match (lines.place(slot), gets.last_mut()) {
                (Some(place), _) => {
                    counts.lines_hit += 1;
                    lines.touch(slot);
                    gets.push(Get::Place { place, within, len });
                }
                (None, Some(Get::Absent { lines, len: sum })) => {
                    (lines.end, *sum) = (slot + 1, *sum + len);
                }
                (None, _) => gets.push(Get::Absent { lines: slot..slot + 1, len }),
            }
        }
        self.counts.set(counts);
        gets
    }

    /// Reads one part of a read at `at`. Returns the lines that were fetched for it, if any.
    async fn get(&self, get: &Get, at: u64, target: &mut [u8]) -> Result<Option<(u64, Vec<u8>)>> {
        match get {
            Get::Place { place, within, .. } => {
                self.fast.read(self.place_bytes(*place) + *within as u64, target).await?;
                Ok(None)
            }
            Get::Absent { lines, .. } => {
                let bytes = self.bring(lines.clone()).await?;
                let from = (at - lines.start * self.line_bytes) as usize;
                target.copy_from_slice(&bytes[from..][..target.len()]);
                Ok(Some((lines.start, bytes)))
            }
        }
    }

    /// Reads whole lines from the slow drive; the last one may end at the end of the disk.
    async fn bring(&self, lines: Range<u64>) -> Result<Vec<u8>> {
        let from = lines.start * self.line_bytes;
        let to = (lines.end * self.line_bytes).min(self.size_bytes);
        let mut bytes = vec![0; (to - from) as usize];
        self.slow.read(from, &mut bytes).await?;
        Ok(bytes)
    }

    /// Adds lines to the cache that a read has fetched and holds exclusively.
    async fn fill(self: Rc<Self>, held: Held, brought: Vec<(u64, Vec<u8>)>) {
        for (first, bytes) in &brought {
            let chunks = (*first..).zip(bytes.chunks(self.line_bytes as usize));
            let jobs = chunks.filter_map(|(line, bytes)| {
                let place = self.lines.borrow_mut().take(line)?;
                Some(self.place(line, place, 0, bytes, true, false))
            });
            let jobs: Vec<_> = jobs.collect();
            // A line that could not be stored will be read again.
            let _ = try_join_all(jobs).await;
        }
        self.fills.set(self.fills.get() - 1);
        drop(held);
    }

    /// Writes data to the cache. With write-back, data that finds no space there goes to the slow
    /// drive.
    async fn put(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let jobs = self.puts(offset, bytes.len() as u64);
        let jobs = jobs.into_iter().map(async |put| match put {
            Put::Place { line, place, within, from, to } => {
                let is_new = within == 0 && self.is_whole(line, to - from);
                self.place(line, place, within, &bytes[from..to], is_new, self.write_back).await
            }
            Put::Merge { line, place, within, from, to } => {
                let mut whole = match self.bring(line..line + 1).await {
                    Ok(whole) => whole,
                    Err(error) => {
                        self.lines.borrow_mut().forget(line);
                        return Err(error);
                    }
                };
                whole[within..][..to - from].copy_from_slice(&bytes[from..to]);
                self.place(line, place, 0, &whole, true, true).await
            }
            Put::Past { from, to } => self.slow.write(offset + from as u64, &bytes[from..to]).await,
        });
        try_join_all(jobs).await.map(drop)
    }

    /// Returns the parts of a write with their destinations, allocates their positions, and counts
    /// the lines.
    fn puts(&self, offset: u64, len: u64) -> Vec<Put> {
        let (mut lines, mut counts) = (self.lines.borrow_mut(), self.counts.get());
        let (mut puts, mut from) = (Vec::new(), 0);
        for Part { slot: line, within, len } in parts(self.line_bytes, offset, len) {
            let to = from + len;
            counts.lines_written += 1;
            let (known, is_whole) = (lines.place(line), self.is_whole(line, len));
            let place =
                known.or_else(|| (is_whole || self.write_back).then(|| lines.take(line)).flatten());
            match (place, puts.last_mut()) {
                (Some(place), _) if known.is_some() || is_whole => {
                    puts.push(Put::Place { line, place, within, from, to });
                }
                (Some(place), _) => puts.push(Put::Merge { line, place, within, from, to }),
                (None, last) => {
                    counts.lines_past += 1;
                    match last {
                        _ if !self.write_back => {}
                        Some(Put::Past { to: end, .. }) => *end = to,
                        _ => puts.push(Put::Past { from, to }),
                    }
                }
            }
            from = to;
        }
        self.counts.set(counts);
        puts
    }

    /// Writes a part of a line to its position and marks the line as present. If this fails, a new
    /// line is discarded.
    async fn place(
        &self,
        line: u64,
        place: u32,
        within: usize,
        bytes: &[u8],
        is_new: bool,
        is_dirty: bool,
    ) -> Result<()> {
        let written = self.fast.write(self.place_bytes(place) + within as u64, bytes).await;
        let mut lines = self.lines.borrow_mut();
        match &written {
            Ok(()) => lines.put(line, is_dirty),
            Err(_) if is_new => lines.forget(line),
            Err(_) => {}
        }
        lines.touch(line);
        let mut counts = self.counts.get();
        let dirty_bytes = lines.dirty_lines() as u64 * self.line_bytes;
        counts.dirty_bytes_max = counts.dirty_bytes_max.max(dirty_bytes);
        self.counts.set(counts);
        written
    }

    /// Returns whether `len` bytes are a whole line. The last line ends at the end of the disk.
    fn is_whole(&self, line: u64, len: usize) -> bool {
        len as u64 == self.line_bytes.min(self.size_bytes - line * self.line_bytes)
    }

    fn place_bytes(&self, place: u32) -> u64 {
        u64::from(place) * self.line_bytes
    }

    /// Returns the error of a write-back, only once.
    fn failed(&self) -> Result<()> {
        self.error.take().map_or(Ok(()), Err)
    }

    /// Returns whether lines must be written back.
    fn is_wanted(&self) -> bool {
        let limit = if self.flushing.get() > 0 { 0 } else { self.lines_max / 2 };
        self.error.borrow().is_none() && self.lines.borrow().dirty_lines() > limit
    }

    /// Starts a write-back if too many lines are dirty.
    fn begin_write_back(self: &Rc<Self>) {
        if self.is_wanted() && !self.is_writing_back.replace(true) {
            self.runtime.spawn(Rc::clone(self).write_lines_back());
        }
    }

    /// Writes lines back as long as necessary.
    async fn write_lines_back(self: Rc<Self>) {
        let run_lines = (self.slow.spec().command_bytes_max / self.line_bytes).max(1);
        while self.is_wanted() {
            let next = || self.lines.borrow_mut().leave(run_lines);
            let runs: Vec<_> = std::iter::from_fn(next).take(RUNS).collect();
            if runs.is_empty() {
                let may_go_on = || {
                    let is_over = !self.is_wanted() || self.lines.borrow().has_idle_dirty();
                    is_over.then_some(())
                };
                self.changed.wait_for(may_go_on).await;
                continue;
            }
            let mut written =
                try_join_all(runs.iter().map(|run| self.write_run(run.clone()))).await.map(drop);
            if written.is_ok() && !self.is_volatile {
                written = self.slow.flush().await;
            }
            let mut lines = self.lines.borrow_mut();
            let mut counts = self.counts.get();
            for run in runs {
                counts.lines_written_back += run.end - run.start;
                lines.left(run, written.is_ok());
            }
            drop(lines);
            self.counts.set(counts);
            if let Err(error) = written {
                self.error.borrow_mut().get_or_insert(error);
            }
            self.changed.wake_all();
        }
        self.is_writing_back.set(false);
    }

    /// Copies departing lines from the cache to the slow drive. They are in use until they have
    /// been read.
    async fn write_run(self: &Rc<Self>, lines: Range<u64>) -> Result<()> {
        let held = Held { cached: Rc::clone(self), lines: lines.clone() };
        let from = lines.start * self.line_bytes;
        let to = (lines.end * self.line_bytes).min(self.size_bytes);
        let mut bytes = vec![0; (to - from) as usize];
        let jobs = lines.zip(bytes.chunks_mut(self.line_bytes as usize));
        let jobs = jobs.filter_map(|(line, bytes)| {
            let place = self.lines.borrow().place(line)?;
            Some(self.fast.read(self.place_bytes(place), bytes))
        });
        try_join_all(jobs.collect::<Vec<_>>()).await?;
        drop(held);
        self.slow.write(from, &bytes).await
    }
}

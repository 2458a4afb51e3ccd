//! A hard disk in virtual time, with its bytes in memory: one head that seeks and waits for its
//! sector, a cache, and a command scheduler.
//!
//! ```text
//! write   into the cache when it has room -> done;   later, in scheduled order: to the platters
//! read    in the cache, or passing under the head now -> done;   else into the queue
//! head    seek -> wait for the sector -> bytes pass;   after a read, it reads ahead
//! flush   waits until the cache holds no write; later requests wait for the flush
//! ```
//!
//! **Order**: operations that hosts wait for go first: reads, and also writes while the cache is
//! full or a flush waits. With NCQ, the head takes the one it reaches first among the oldest
//! `reorder_max` operations; without NCQ, the oldest. No operation is passed over forever.
//!
//! **The cache** has two independent parts that do not compete for room: pending writes, up to its
//! size, and one contiguous range of read data, up to its size ahead of the reader. A second
//! sequential reader replaces that range each time.
//!
//! Writing a sector again while its write is pending takes no further room. A read that one pending
//! write covers takes no time; a read that several of them cover goes to the platters, which
//! affects only its time: bytes are stored by LBA. The model has no bad sectors and loses no data.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use super::content::{Content, Part, check_range, parts};
use crate::{Error, Result};
use pumice_drive::base::Clock;
use pumice_drive::base::units::BLOCK_BYTES;
use pumice_drive::base::wait::WaitQueue;

mod platters;

use platters::Platters;

/// Limit on how often the oldest operation in a queue is passed over; arbitrary.
const PASSED_MAX: u32 = 64;

/// Parameters of a disk, without its front.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DiskSpec {
    /// Revolutions per minute.
    pub rpm: u64,
    /// Seek time to the next track, in ns.
    pub seek_track_ns: u64,
    /// Mean seek time between two random tracks, in ns.
    pub seek_average_ns: u64,
    /// Seek time over the whole disk, in ns.
    pub seek_full_ns: u64,
    /// Bytes per second on the outermost track.
    pub outer_bytes_per_s: u64,
    /// Bytes per second on the innermost track; not more than on the outermost.
    pub inner_bytes_per_s: u64,
    /// Limit on the bytes of pending writes, and on those of read-ahead.
    pub cache_bytes: u64,
    /// Whether the drive reorders commands by access time.
    pub ncq: bool,
    /// With `ncq`, the number of oldest operations among which the drive chooses, from 1.
    pub reorder_max: u32,
}

/// Operations of a disk so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskCounts {
    /// Reads that moved the head.
    pub head_reads: u64,
    /// Writes that moved the head.
    pub head_writes: u64,
    /// Reads that the cache or the read-ahead under the head served.
    pub cached_reads: u64,
    /// Time in seeks and rotational delays, in ns.
    pub access_ns: u64,
}

/// Completion flag of a read.
type Done = Rc<Cell<bool>>;

#[derive(Clone, Debug)]
struct Read {
    number: u64,
    offset: u64,
    len: u64,
    done: Done,
}

/// The contiguous range of the disk that read-ahead holds in the cache.
#[derive(Clone, Copy, Debug, Default)]
struct Ahead {
    from: u64,
    /// End of the part that is in the cache.
    base: u64,
    /// Start of the read that continues from `base`; `None` if the head has moved elsewhere.
    reading_since_ns: Option<u64>,
    /// Offset at which reading ahead stops.
    limit: u64,
    /// End of the part that a host has read or waits for.
    wanted: u64,
}

/// The next operation of the head.
struct Job {
    offset: u64,
    len: u64,
    /// Completion flag, of a read.
    done: Option<Done>,
}

struct State {
    platters: Platters,
    /// Position of the head in turns, while it does not read ahead.
    head: f64,
    ahead: Ahead,
    reads: VecDeque<Read>,
    /// Offsets of pending writes, oldest first, with the number of each.
    order: VecDeque<(u64, u64)>,
    /// Length of each pending write in bytes.
    writes: BTreeMap<u64, u64>,
    /// Bytes in the cache that are pending or being written.
    write_bytes: u64,
    /// The write in progress.
    current: Option<(u64, u64)>,
    numbers: u64,
    /// How often the oldest read and the oldest write were passed over.
    passed: [u32; 2],
    content: Content,
    counts: DiskCounts,
}

/// A simulated hard disk.
pub struct Disk<C> {
    spec: DiskSpec,
    size_bytes: u64,
    clock: C,
    state: RefCell<State>,
    /// Number of requests that wait for bytes to pass under the head, for room, and for a flush.
    wait_ahead: Cell<u32>,
    wait_room: Cell<u32>,
    wait_flush: Cell<u32>,
    asked: WaitQueue,
    ended: WaitQueue,
}

/// A waiting request, counted until dropped.
struct Waiting<'a>(&'a Cell<u32>);

impl<'a> Waiting<'a> {
    fn new(count: &'a Cell<u32>) -> Self {
        count.set(count.get() + 1);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl DiskSpec {
    /// Checks the parameters.
    ///
    /// # Errors
    /// `InvalidInput` for platters that do not turn, an inner rate of zero or beyond the outer one,
    /// seek times that do not increase, and a `reorder_max` of 0.
    pub fn check(&self) -> Result<()> {
        let wrong = |what: &'static str| Err(Error::InvalidInput(what.into()));
        if self.rpm == 0 {
            return wrong("rpm must not be zero");
        }
        if self.inner_bytes_per_s == 0 || self.inner_bytes_per_s > self.outer_bytes_per_s {
            return wrong("inner_bytes_per_s must be from 1 to outer_bytes_per_s");
        }
        let seeks = [self.seek_track_ns, self.seek_average_ns, self.seek_full_ns];
        if !seeks.is_sorted() || self.seek_full_ns > 10_000_000_000 {
            return wrong(
                "seek times must increase from track to average to full, up to ten seconds",
            );
        }
        if self.reorder_max == 0 {
            return wrong("reorder_max must be at least 1");
        }
        Ok(())
    }
}

impl State {
    /// Returns the end of what the head has read ahead.
    fn covered(&self, now_ns: u64) -> u64 {
        let Ahead { base, reading_since_ns, limit, .. } = self.ahead;
        match reading_since_ns {
            Some(since_ns) if now_ns > since_ns => {
                let position =
                    self.platters.passed(self.platters.position(base), now_ns - since_ns);
                self.platters.offset(position).clamp(base, limit)
            }
            _ => base,
        }
    }

    /// Returns the time at which a range is in the cache, if no seek is needed for it.
    fn cached_at_ns(&self, now_ns: u64, offset: u64, end: u64, cache_bytes: u64) -> Option<u64> {
        let covers = |(from, len): (u64, u64)| from <= offset && end <= from + len;
        let waiting = self.writes.range(..=offset).next_back().map(|(&from, &len)| (from, len));
        if waiting.is_some_and(covers) || self.current.is_some_and(covers) {
            return Some(now_ns);
        }
        let covered = self.covered(now_ns);
        if offset < self.ahead.from.max(covered.saturating_sub(cache_bytes)) {
            return None;
        }
        if end <= covered {
            return Some(now_ns);
        }
        // At most one turn beyond what a host waits for: the head reaches it anyway.
        let since_ns = self.ahead.reading_since_ns?;
        let goal = self.platters.position(covered.max(self.ahead.wanted));
        let is_near = self.platters.position(offset) - goal < 1.0;
        let base = self.platters.position(self.ahead.base);
        let passes = since_ns + self.platters.pass_ns(base, self.platters.position(end)) + 1;
        (is_near && end <= self.ahead.limit).then_some(passes.max(now_ns))
    }

    /// Continues reading ahead for a reader that has reached `end` or waits for it: bytes that pass
    /// under the head then leave the cache at once.
    fn read_on(&mut self, now_ns: u64, end: u64, limit: u64) {
        if self.ahead.reading_since_ns.is_none() || end < self.ahead.from || end > self.ahead.limit
        {
            return;
        }
        if self.covered(now_ns) == self.ahead.limit && self.ahead.limit < limit {
            // The head has stopped there, and the next sector has to come round again.
            let position = self.platters.position(self.ahead.limit);
            let access_ns = self.platters.access_ns(now_ns, position, self.ahead.limit);
            self.ahead.base = self.ahead.limit;
            self.ahead.reading_since_ns = Some(now_ns + access_ns);
        }
        self.ahead.limit = self.ahead.limit.max(limit);
        self.ahead.wanted = self.ahead.wanted.max(end);
    }

    /// Returns the position of the head.
    fn head(&self, now_ns: u64) -> f64 {
        match self.ahead.reading_since_ns {
            Some(_) => self.platters.position(self.covered(now_ns)),
            None => self.head,
        }
    }

    /// Removes the next operation from the queues.
    fn choose(&mut self, now_ns: u64, spec: &DiskSpec, of: [bool; 2]) -> Option<Job> {
        let head = self.head(now_ns);
        let first = if spec.ncq { spec.reorder_max as usize } else { 1 };
        let reads = self.reads.iter().map(|read| (read.number, read.offset)).take(first);
        let writes = self.order.iter().copied().take(first);
        let reads = reads.enumerate().map(|(at, read)| (0, at, read)).filter(|_| of[0]);
        let writes = writes.enumerate().map(|(at, write)| (1, at, write)).filter(|_| of[1]);
        let next = reads.chain(writes).min_by_key(|&(queue, at, (number, offset))| {
            let is_late = at == 0 && self.passed[queue] >= PASSED_MAX;
            let access_ns = if spec.ncq && !is_late {
                self.platters.access_ns(now_ns, head, offset)
            } else {
                0
            };
            (access_ns, number)
        });
        let (queue, at, _) = next?;
        if at > 0 {
            self.passed[queue] += 1;
        } else {
            self.passed[queue] = 0;
        }
        if queue == 0 {
            let Read { offset, len, done, .. } = self.reads.remove(at)?;
            return Some(Job { offset, len, done: Some(done) });
        }
        let (_, offset) = self.order.remove(at)?;
        let len = self.writes.remove(&offset)?;
        self.current = Some((offset, len));
        Some(Job { offset, len, done: None })
    }

    /// Moves the head. Returns the time to the first byte of the operation, and to its last.
    fn go(&mut self, now_ns: u64, job: &Job) -> (u64, u64) {
        self.head = self.head(now_ns);
        self.ahead.base = self.covered(now_ns);
        self.ahead.reading_since_ns = None;
        let access_ns = self.platters.access_ns(now_ns, self.head, job.offset);
        let (from, to) =
            (self.platters.position(job.offset), self.platters.position(job.offset + job.len));
        (access_ns, access_ns + self.platters.pass_ns(from, to))
    }

    /// Adds a pending write.
    fn add(&mut self, offset: u64, len: u64) {
        let known = self.writes.get(&offset).copied();
        let longer = known.map_or(len, |known| len.saturating_sub(known));
        self.write_bytes += longer;
        self.writes.insert(offset, known.unwrap_or(0) + longer);
        if known.is_none() {
            self.numbers += 1;
            self.order.push_back((self.numbers, offset));
        }
    }
}

impl<C: Clock> Disk<C> {
    /// Creates an empty disk of `size_bytes` bytes. The head moves only while [`Disk::turn`] runs.
    ///
    /// # Errors
    /// Those of [`DiskSpec::check`].
    pub fn new(size_bytes: u64, spec: DiskSpec, clock: C) -> Result<Self> {
        spec.check()?;
        let state = State {
            platters: Platters::new(size_bytes, &spec),
            head: 0.0,
            ahead: Ahead::default(),
            reads: VecDeque::new(),
            order: VecDeque::new(),
            writes: BTreeMap::new(),
            write_bytes: 0,
            current: None,
            numbers: 0,
            passed: [0; 2],
            content: Content::new(BLOCK_BYTES),
            counts: DiskCounts::default(),
        };
        Ok(Self {
            spec,
            size_bytes,
            clock,
            state: RefCell::new(state),
            wait_ahead: Cell::new(0),
            wait_room: Cell::new(0),
            wait_flush: Cell::new(0),
            asked: WaitQueue::default(),
            ended: WaitQueue::default(),
        })
    }

    /// Returns the operations so far.
    pub fn counts(&self) -> DiskCounts {
        self.state.borrow().counts
    }

    /// Moves the head forever: the task of this disk.
    pub async fn turn(self: Rc<Self>) {
        loop {
            let job = self.asked.wait_for(|| self.choose()).await;
            let (access_ns, ends_ns) = self.state.borrow_mut().go(self.clock.now_ns(), &job);
            self.clock.sleep_ns(ends_ns).await;
            let state = &mut *self.state.borrow_mut();
            let end = job.offset + job.len;
            state.head = state.platters.position(end);
            state.counts.access_ns += access_ns;
            match job.done {
                Some(done) => {
                    done.set(true);
                    state.counts.head_reads += 1;
                    state.ahead = Ahead {
                        from: job.offset,
                        base: end,
                        reading_since_ns: Some(self.clock.now_ns()),
                        limit: self.ahead_limit(end),
                        wanted: 0,
                    };
                }
                None => {
                    state.counts.head_writes += 1;
                    state.write_bytes -= job.len;
                    state.current = None;
                }
            }
            self.ended.wake_all();
        }
    }

    fn choose(&self) -> Option<Job> {
        let state = &mut *self.state.borrow_mut();
        let is_asked = self.wait_room.get() > 0 || self.wait_flush.get() > 0;
        let is_idle = state.reads.is_empty() && self.wait_ahead.get() == 0;
        state.choose(self.clock.now_ns(), &self.spec, [true, is_asked || is_idle])
    }

    fn ahead_limit(&self, end: u64) -> u64 {
        (end + self.spec.cache_bytes).min(self.size_bytes)
    }

    /// Reads whole sectors.
    ///
    /// # Errors
    /// `InvalidInput` for a range that is not aligned to sectors or beyond the disk.
    pub async fn read(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        let len = target.len() as u64;
        check_range(self.size_bytes, offset, len)?;
        if len > 0 {
            self.reach(offset, len).await;
        }
        let state = self.state.borrow();
        let mut rest = target;
        for Part { slot, within, len } in parts(BLOCK_BYTES as u64, offset, len) {
            let part;
            (part, rest) = std::mem::take(&mut rest).split_at_mut(len);
            state.content.read(slot, within, part);
        }
        Ok(())
    }

    /// Waits until a range is in the cache.
    async fn reach(&self, offset: u64, len: u64) {
        let end = offset + len;
        loop {
            let now_ns = self.clock.now_ns();
            let cached = {
                let state = &mut *self.state.borrow_mut();
                let cached = state.cached_at_ns(now_ns, offset, end, self.spec.cache_bytes);
                if let Some(at_ns) = cached {
                    state.counts.cached_reads += u64::from(at_ns == now_ns);
                    state.read_on(now_ns, end, self.ahead_limit(end));
                }
                cached
            };
            match cached {
                Some(at_ns) if at_ns <= now_ns => break,
                Some(at_ns) => {
                    let _waiting = Waiting::new(&self.wait_ahead);
                    self.clock.sleep_ns(at_ns - now_ns).await;
                }
                None => {
                    let done = Done::default();
                    {
                        let state = &mut *self.state.borrow_mut();
                        state.numbers += 1;
                        let (number, done) = (state.numbers, Rc::clone(&done));
                        state.reads.push_back(Read { number, offset, len, done });
                    }
                    self.asked.wake_all();
                    self.ended.wait_for(|| done.get().then_some(())).await;
                    break;
                }
            }
        }
        // The head can continue past the data that waited for the reader.
        self.asked.wake_all();
    }

    /// Writes whole sectors, which are in the cache when this returns.
    ///
    /// # Errors
    /// `InvalidInput` for a range that is not aligned to sectors or beyond the disk.
    pub async fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let len = bytes.len() as u64;
        check_range(self.size_bytes, offset, len)?;
        if len == 0 {
            return Ok(());
        }
        if !self.has_room(offset, len) {
            let _waiting = Waiting::new(&self.wait_room);
            self.asked.wake_all();
            self.ended.wait_for(|| self.has_room(offset, len).then_some(())).await;
        }
        let state = &mut *self.state.borrow_mut();
        state.add(offset, len);
        let mut rest = bytes;
        for Part { slot, within, len } in parts(BLOCK_BYTES as u64, offset, len) {
            let part;
            (part, rest) = rest.split_at(len);
            state.content.write(slot, within, part);
        }
        self.asked.wake_all();
        Ok(())
    }

    /// Returns whether the cache has room for a write; a write larger than the cache needs an empty
    /// one.
    fn has_room(&self, offset: u64, len: u64) -> bool {
        let state = self.state.borrow();
        let longer = len.saturating_sub(state.writes.get(&offset).copied().unwrap_or(0));
        let fits = state.write_bytes == 0 || state.write_bytes + longer <= self.spec.cache_bytes;
        self.wait_flush.get() == 0 && fits
    }

    /// Waits until all earlier writes are on the platters. Later writes wait for the flush, as for
    /// ATA's FLUSH CACHE, which is not queued.
    ///
    /// # Errors
    /// No error is possible yet.
    pub async fn flush(&self) -> Result<()> {
        {
            let _waiting = Waiting::new(&self.wait_flush);
            self.asked.wake_all();
            let is_written = || (self.state.borrow().write_bytes == 0).then_some(());
            self.ended.wait_for(is_written).await;
        }
        self.ended.wake_all();
        Ok(())
    }
}

#[cfg(test)]
mod tests;

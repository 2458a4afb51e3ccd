//! The disk as seen by its host, and the task that moves the head.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use super::DiskSpec;
use super::platters::Platters;
use super::schedule::{Ahead, DiskCounts, Done, Job, Read, State};
use crate::Result;
use crate::content::{Content, Part, check_range, parts};
use pumice_drive::base::Clock;
use pumice_drive::base::units::BLOCK_BYTES;
use pumice_drive::base::wait::{Line, WaitQueue};

/// A simulated hard disk.
pub struct Disk<C> {
    spec: DiskSpec,
    pub(super) size_bytes: u64,
    clock: C,
    pub(super) state: RefCell<State>,
    /// Number of requests that wait for bytes to pass under the head, for cache space, and for a
    /// flush.
    wait_ahead: Cell<u32>,
    wait_room: Cell<u32>,
    wait_flush: Cell<u32>,
    /// Writes that wait for cache space, in order of arrival.
    arrivals: Line,
    asked: WaitQueue,
    pub(super) ended: WaitQueue,
}

/// A waiting request, which is counted until this is dropped.
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

impl<C: Clock> Disk<C> {
    /// Creates an empty disk of `size_bytes` bytes. The head moves only while [`Disk::turn`] runs.
    ///
    /// # Errors
    /// The errors of [`DiskSpec::check`].
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
            arrivals: Line::default(),
            asked: WaitQueue::default(),
            ended: WaitQueue::default(),
        })
    }

    /// Returns the counters so far.
    pub fn counts(&self) -> DiskCounts {
        self.state.borrow().counts
    }

    /// Moves the head indefinitely. This is the task of the disk.
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
                    assert!(state.write_bytes >= job.len, "the cache holds the data written");
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
    /// `InvalidInput` for a range that is not aligned to sectors or extends beyond the disk.
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
        // The head can continue beyond the data that was waiting for the reader.
        self.asked.wake_all();
    }

    /// Writes whole sectors. They are in the cache when this returns.
    ///
    /// # Errors
    /// `InvalidInput` for a range that is not aligned to sectors or extends beyond the disk.
    pub async fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let len = bytes.len() as u64;
        check_range(self.size_bytes, offset, len)?;
        if len == 0 {
            return Ok(());
        }
        // Short writes must not fill the cache before an earlier long one.
        let _turn = self.arrivals.turn().await;
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

    /// Returns whether the cache has space for a write. A write larger than the cache needs an
    /// empty cache.
    fn has_room(&self, offset: u64, len: u64) -> bool {
        let state = self.state.borrow();
        let longer = len.saturating_sub(state.writes.get(&offset).copied().unwrap_or(0));
        let fits = state.write_bytes == 0 || state.write_bytes + longer <= self.spec.cache_bytes;
        self.wait_flush.get() == 0 && fits
    }

    /// Waits until all earlier writes are on the platters. Later writes wait for the flush, as with
    /// ATA's FLUSH CACHE, which is not queued.
    ///
    /// # Errors
    /// Never fails at present.
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

//! The state of a disk's cache and requests, and the selection of the head's next operation.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use super::DiskSpec;
use super::platters::Platters;
use crate::content::Content;

/// Maximum number of times that the oldest operation in a queue is passed over; arbitrary.
pub(super) const PASSED_MAX: u32 = 64;

/// Number of operations of a disk so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskCounts {
    /// Reads that moved the head.
    pub head_reads: u64,
    /// Writes that moved the head.
    pub head_writes: u64,
    /// Reads served by the cache or by the read-ahead under the head.
    pub cached_reads: u64,
    /// Time spent in seeks and rotational delays, in ns.
    pub access_ns: u64,
}

/// Completion flag for a read.
pub(super) type Done = Rc<Cell<bool>>;

#[derive(Clone, Debug)]
pub(super) struct Read {
    pub(super) number: u64,
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) done: Done,
}

/// The contiguous range of the disk that read-ahead stores in the cache.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ahead {
    pub(super) from: u64,
    /// End of the part that is already in the cache.
    pub(super) base: u64,
    /// Start time of the read that continues from `base`; `None` if the head has moved elsewhere.
    pub(super) reading_since_ns: Option<u64>,
    /// Offset at which read-ahead stops.
    pub(super) limit: u64,
    /// End of the part that a host has read or is waiting for.
    pub(super) wanted: u64,
}

/// The next operation of the head.
pub(super) struct Job {
    pub(super) offset: u64,
    pub(super) len: u64,
    /// Completion flag, if this is a read.
    pub(super) done: Option<Done>,
}

pub(super) struct State {
    pub(super) platters: Platters,
    /// Position of the head in revolutions, while it does not read ahead.
    pub(super) head: f64,
    pub(super) ahead: Ahead,
    pub(super) reads: VecDeque<Read>,
    /// Offsets of pending writes, oldest first, with their sequence numbers.
    pub(super) order: VecDeque<(u64, u64)>,
    /// Length of each pending write in bytes.
    pub(super) writes: BTreeMap<u64, u64>,
    /// Bytes in the cache that are pending or being written.
    pub(super) write_bytes: u64,
    /// The write in progress.
    pub(super) current: Option<(u64, u64)>,
    pub(super) numbers: u64,
    /// Number of times that the oldest read and the oldest write were passed over.
    pub(super) passed: [u32; 2],
    pub(super) content: Content,
    pub(super) counts: DiskCounts,
}

impl State {
    /// Returns the end of the data that the head has read ahead.
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

    /// Returns the time at which a range will be in the cache, if no seek is required.
    pub(super) fn cached_at_ns(
        &self,
        now_ns: u64,
        offset: u64,
        end: u64,
        cache_bytes: u64,
    ) -> Option<u64> {
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
        // At most one revolution beyond the data that a host is waiting for, because the head
        // reaches it in any case.
        let since_ns = self.ahead.reading_since_ns?;
        let goal = self.platters.position(covered.max(self.ahead.wanted));
        let is_near = self.platters.position(offset) - goal < 1.0;
        let base = self.platters.position(self.ahead.base);
        let passes = since_ns + self.platters.pass_ns(base, self.platters.position(end)) + 1;
        (is_near && end <= self.ahead.limit).then_some(passes.max(now_ns))
    }

    /// Continues read-ahead for a reader that has reached `end` or is waiting for it. Bytes that
    /// pass the head then leave the cache immediately.
    pub(super) fn read_on(&mut self, now_ns: u64, end: u64, limit: u64) {
        if self.ahead.reading_since_ns.is_none() || end < self.ahead.from || end > self.ahead.limit
        {
            return;
        }
        if self.covered(now_ns) == self.ahead.limit && self.ahead.limit < limit {
            // The head stopped here, so the next sector must complete a revolution.
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
    pub(super) fn choose(&mut self, now_ns: u64, spec: &DiskSpec, of: [bool; 2]) -> Option<Job> {
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

    /// Moves the head. Returns the times to the first and the last byte of the operation.
    pub(super) fn go(&mut self, now_ns: u64, job: &Job) -> (u64, u64) {
        self.head = self.head(now_ns);
        self.ahead.base = self.covered(now_ns);
        self.ahead.reading_since_ns = None;
        let access_ns = self.platters.access_ns(now_ns, self.head, job.offset);
        let (from, to) =
            (self.platters.position(job.offset), self.platters.position(job.offset + job.len));
        (access_ns, access_ns + self.platters.pass_ns(from, to))
    }

    /// Adds a pending write.
    pub(super) fn add(&mut self, offset: u64, len: u64) {
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

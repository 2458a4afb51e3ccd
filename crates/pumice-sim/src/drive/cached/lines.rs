//! The lines of a cache: which are present, which are newer than on the slow drive, and which are
//! in use. The module is independent of time and never waits.
//!
//! ```text
//! absent -> taken -> clean -> dirty -> leaving -> clean
//!                     |  ^---------------'  |
//!                     v                     `-> dirty  written again while leaving
//!                   absent  least recently used, to make room
//! ```

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use hashlink::LinkedHashSet;

/// The kind of use of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lock {
    Shared(u32),
    Exclusive,
}

/// The lines of a cache, by their number on the slow drive.
#[derive(Debug)]
pub(super) struct Lines {
    lines_max: u32,
    /// Position in the cache of each present line.
    places: HashMap<u64, u32>,
    /// Positions that were released, and the first one that was never used.
    free: Vec<u32>,
    unused: u32,
    /// Clean lines, least recently used first.
    clean: LinkedHashSet<u64>,
    /// Epoch in which each dirty line became dirty.
    dirty: BTreeMap<u64, u64>,
    leaving: HashMap<u64, u64>,
    /// Number of dirty and departing lines in each epoch.
    epochs: BTreeMap<u64, usize>,
    epoch: u64,
    locks: HashMap<u64, Lock>,
    /// Line at which the next write-back starts.
    cursor: u64,
}

impl Lines {
    /// Creates an empty cache.
    pub(super) fn new(lines_max: u32) -> Self {
        Self {
            lines_max,
            places: HashMap::new(),
            free: Vec::new(),
            unused: 0,
            clean: LinkedHashSet::new(),
            dirty: BTreeMap::new(),
            leaving: HashMap::new(),
            epochs: BTreeMap::new(),
            epoch: 0,
            locks: HashMap::new(),
            cursor: 0,
        }
    }

    /// Returns the position of a line in the cache.
    pub(super) fn place(&self, line: u64) -> Option<u32> {
        self.places.get(&line).copied()
    }

    /// Returns the present lines in a range, in arbitrary order.
    pub(super) fn within(&self, range: &Range<u64>) -> Vec<u64> {
        if range.end.saturating_sub(range.start) > self.places.len() as u64 {
            return self.places.keys().copied().filter(|line| range.contains(line)).collect();
        }
        range.clone().filter(|line| self.places.contains_key(line)).collect()
    }

    /// Locks all of these lines, or none of them if any has a conflicting use. Returns whether they
    /// were locked.
    pub(super) fn lock(&mut self, lines: impl Iterator<Item = u64> + Clone, shared: bool) -> bool {
        let is_free = |line| match self.locks.get(&line) {
            None => true,
            Some(Lock::Shared(_)) => shared,
            Some(Lock::Exclusive) => false,
        };
        if !lines.clone().all(is_free) {
            return false;
        }
        for line in lines {
            match self.locks.get_mut(&line) {
                Some(Lock::Shared(count)) => *count += 1,
                _ => {
                    let lock = if shared { Lock::Shared(1) } else { Lock::Exclusive };
                    self.locks.insert(line, lock);
                }
            }
        }
        true
    }

    /// Ends one use of a line.
    pub(super) fn unlock(&mut self, line: u64) {
        match self.locks.get_mut(&line) {
            Some(Lock::Shared(count)) if *count > 1 => *count -= 1,
            lock => {
                assert!(lock.is_some(), "line {line} is not in use");
                self.locks.remove(&line);
            }
        }
    }

    /// Marks a clean line as most recently used.
    pub(super) fn touch(&mut self, line: u64) {
        if self.clean.contains(&line) {
            self.clean.insert(line);
        }
    }

    /// Allocates a position for a line that is absent and locked: a free position, or the position
    /// of the least recently used line that is clean and not in use. The caller must then call
    /// [`Lines::put`] or [`Lines::forget`].
    pub(super) fn take(&mut self, line: u64) -> Option<u32> {
        let place = if let Some(place) = self.free.pop() {
            place
        } else if self.unused < self.lines_max {
            self.unused += 1;
            self.unused - 1
        } else {
            let locks = &self.locks;
            let oldest = *self.clean.iter().find(|line| !locks.contains_key(line))?;
            self.clean.remove(&oldest);
            self.places.remove(&oldest)?
        };
        self.places.insert(line, place);
        Some(place)
    }

    /// Records that the cache has the newest contents of a line, and whether the slow drive lacks
    /// them.
    pub(super) fn put(&mut self, line: u64, is_dirty: bool) {
        if !is_dirty {
            if !self.dirty.contains_key(&line) && !self.leaving.contains_key(&line) {
                self.clean.insert(line);
            }
            return;
        }
        self.clean.remove(&line);
        if let std::collections::btree_map::Entry::Vacant(entry) = self.dirty.entry(line) {
            entry.insert(self.epoch);
            *self.epochs.entry(self.epoch).or_default() += 1;
        }
    }

    /// Removes a line that is not being written back.
    pub(super) fn forget(&mut self, line: u64) {
        self.clean.remove(&line);
        if let Some(epoch) = self.dirty.remove(&line) {
            self.end_epoch_of_one(epoch);
        }
        self.free.extend(self.places.remove(&line));
    }

    /// Returns the number of lines that the slow drive lacks.
    pub(super) fn dirty_lines(&self) -> usize {
        self.dirty.len() + self.leaving.len()
    }

    /// Returns whether a line is being written back to the slow drive.
    pub(super) fn is_leaving(&self, line: u64) -> bool {
        self.leaving.contains_key(&line)
    }

    /// Starts an epoch. Returns the previous one, which has ended when [`Lines::epoch_is_over`].
    pub(super) fn next_epoch(&mut self) -> u64 {
        self.epoch += 1;
        self.epoch - 1
    }

    /// Returns whether the slow drive has all data written up to the end of an epoch.
    pub(super) fn epoch_is_over(&self, epoch: u64) -> bool {
        self.epochs.keys().next().is_none_or(|&oldest| oldest > epoch)
    }

    /// Returns whether [`Lines::leave`] would return lines.
    pub(super) fn has_idle_dirty(&self) -> bool {
        self.dirty.keys().any(|line| self.locks.get(line) != Some(&Lock::Exclusive))
    }

    /// Returns the next dirty lines in ascending order, adjacent and at most `lines_max`. They are
    /// then departing and in shared use. The caller must then call [`Lines::left`].
    pub(super) fn leave(&mut self, lines_max: u64) -> Option<Range<u64>> {
        let locks = &self.locks;
        let is_idle = |line: &&u64| locks.get(*line) != Some(&Lock::Exclusive);
        let next = self.dirty.range(self.cursor..).map(|(line, _)| line).find(is_idle);
        let first =
            next.or_else(|| self.dirty.range(..self.cursor).map(|(line, _)| line).find(is_idle));
        let first = *first?;
        let mut end = first;
        while end - first < lines_max && self.dirty.contains_key(&end) {
            if !self.lock(std::iter::once(end), true) {
                break;
            }
            if let Some(epoch) = self.dirty.remove(&end) {
                self.leaving.insert(end, epoch);
            }
            end += 1;
        }
        self.cursor = end;
        Some(first..end)
    }

    /// Ends the write-back of lines. With `has_arrived`, the slow drive has them.
    pub(super) fn left(&mut self, lines: Range<u64>, has_arrived: bool) {
        for line in lines {
            let Some(epoch) = self.leaving.remove(&line) else { continue };
            if has_arrived {
                self.end_epoch_of_one(epoch);
                if !self.dirty.contains_key(&line) {
                    self.clean.insert(line);
                }
            } else if let Some(newer) = self.dirty.insert(line, epoch) {
                self.end_epoch_of_one(newer);
            }
        }
    }

    fn end_epoch_of_one(&mut self, epoch: u64) {
        if let Some(count) = self.epochs.get_mut(&epoch) {
            *count -= 1;
            if *count == 0 {
                self.epochs.remove(&epoch);
            }
        }
    }
}

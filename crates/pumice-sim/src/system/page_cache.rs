//! The pages of a drive that an operating system caches: which are present, which are being read,
//! and which are not on the drive yet. The module is independent of time and never waits.
//!
//! ```text
//! absent -> coming -> clean -> dirty -> leaving -> clean
//!                       |        ^---------'  written again while leaving
//!                       v  least recently used, when there are too many
//!                    absent
//! ```

use std::collections::{BTreeSet, HashMap};

use hashlink::LinkedHashSet;
use pumice_drive::base::units::BLOCK_BYTES;

pub(super) const PAGE_BYTES: usize = BLOCK_BYTES;

/// Whether a page is in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    Absent,
    /// The page is being read.
    Coming,
    Here,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Coming,
    Clean,
    Dirty,
    /// The page is being written to the drive. `again` if it has been changed since.
    Leaving {
        again: bool,
    },
}

#[derive(Debug)]
struct Page {
    state: State,
    /// Empty while the page is being read.
    bytes: Box<[u8]>,
}

/// The cached pages, by number.
#[derive(Debug)]
pub(super) struct PageCache {
    pages_max: usize,
    pages: HashMap<u64, Page>,
    clean: LinkedHashSet<u64>,
    dirty: BTreeSet<u64>,
    leaving: usize,
    /// Page at which the next write-back starts.
    cursor: u64,
}

impl PageCache {
    /// Creates an empty cache. The least recently used clean pages are dropped if there are more
    /// than `pages_max` pages.
    pub(super) fn new(pages_max: usize) -> Self {
        Self {
            pages_max,
            pages: HashMap::new(),
            clean: LinkedHashSet::new(),
            dirty: BTreeSet::new(),
            leaving: 0,
            cursor: 0,
        }
    }

    pub(super) fn presence(&self, number: u64) -> Presence {
        match self.pages.get(&number) {
            None => Presence::Absent,
            Some(Page { state: State::Coming, .. }) => Presence::Coming,
            Some(_) => Presence::Here,
        }
    }

    /// Returns the number of pages that are not on the drive yet.
    pub(super) fn dirty_pages(&self) -> usize {
        self.dirty.len() + self.leaving
    }

    /// Returns the contents of a present page. This counts as a use.
    pub(super) fn read(&mut self, number: u64) -> Option<&[u8]> {
        let page = self.pages.get(&number).filter(|page| page.state != State::Coming)?;
        if page.state == State::Clean {
            self.clean.insert(number);
        }
        Some(&page.bytes)
    }

    /// Marks absent pages as being read.
    pub(super) fn expect(&mut self, numbers: impl IntoIterator<Item = u64>) {
        for number in numbers {
            self.pages.insert(number, Page { state: State::Coming, bytes: Box::default() });
        }
    }

    /// Adds a page that was read; `bytes` is `None` if the read failed. A page that was written
    /// meanwhile keeps its newer contents.
    pub(super) fn arrive(&mut self, number: u64, bytes: Option<&[u8]>) {
        let Some(page) = self.pages.get_mut(&number) else { return };
        if page.state != State::Coming {
            return;
        }
        match bytes {
            None => drop(self.pages.remove(&number)),
            Some(bytes) => {
                *page = Page { state: State::Clean, bytes: bytes.into() };
                self.clean.insert(number);
                self.shrink();
            }
        }
    }

    /// Changes a present page, starting at byte `within`, or replaces a whole page.
    pub(super) fn write(&mut self, number: u64, within: usize, bytes: &[u8]) {
        let whole = bytes.len() == PAGE_BYTES;
        let page = self
            .pages
            .entry(number)
            .or_insert_with(|| Page { state: State::Coming, bytes: Box::default() });
        match (whole, page.bytes.is_empty()) {
            (true, true) => page.bytes = bytes.into(),
            (_, empty) => {
                if empty {
                    page.bytes = vec![0; PAGE_BYTES].into_boxed_slice();
                }
                page.bytes[within..within + bytes.len()].copy_from_slice(bytes);
            }
        }
        match page.state {
            State::Dirty => {}
            State::Leaving { .. } => page.state = State::Leaving { again: true },
            State::Coming | State::Clean => {
                page.state = State::Dirty;
                self.clean.remove(&number);
                self.dirty.insert(number);
                self.shrink();
            }
        }
    }

    /// Selects the next run of adjacent dirty pages for write-back, in ascending order from the end
    /// of the previous run, cyclically. Returns the number of the first page and the bytes of all
    /// pages. The pages are then departing.
    pub(super) fn leave(&mut self, pages_max: usize) -> Option<(u64, Vec<u8>)> {
        let after = self.dirty.range(self.cursor..).next();
        let first = *after.or_else(|| self.dirty.first())?;
        let mut bytes = Vec::new();
        let mut number = first;
        while bytes.len() < pages_max * PAGE_BYTES && self.dirty.remove(&number) {
            if let Some(page) = self.pages.get_mut(&number) {
                bytes.extend_from_slice(&page.bytes);
                page.state = State::Leaving { again: false };
                self.leaving += 1;
            }
            number += 1;
        }
        self.cursor = number;
        Some((first, bytes))
    }

    /// Marks departing pages as written. If the write failed, they become dirty again.
    pub(super) fn left(&mut self, first: u64, count: usize, is_written: bool) {
        for number in first..first + count as u64 {
            let Some(page) = self.pages.get_mut(&number) else { continue };
            let State::Leaving { again } = page.state else { continue };
            self.leaving -= 1;
            if is_written && !again {
                page.state = State::Clean;
                self.clean.insert(number);
            } else {
                page.state = State::Dirty;
                self.dirty.insert(number);
            }
        }
        self.shrink();
    }

    /// Drops pages in any state. Departing pages are dropped when their write ends.
    pub(super) fn forget(&mut self, numbers: impl IntoIterator<Item = u64>) {
        for number in numbers {
            match self.pages.get_mut(&number) {
                None => continue,
                Some(page) if matches!(page.state, State::Leaving { .. }) => {
                    self.leaving -= 1;
                }
                Some(_) => {}
            }
            self.pages.remove(&number);
            self.clean.remove(&number);
            self.dirty.remove(&number);
        }
    }

    /// Drops all clean pages.
    pub(super) fn drop_clean(&mut self) {
        while let Some(number) = self.clean.pop_front() {
            self.pages.remove(&number);
        }
    }

    fn shrink(&mut self) {
        while self.pages.len() > self.pages_max {
            let Some(number) = self.clean.pop_front() else { return };
            self.pages.remove(&number);
        }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: written pages are readable and are written back once, in order; only clean pages are
    //! dropped, and only if the cache is too full. Method: the states of a page, step by step.
    use super::*;

    fn page(byte: u8) -> Vec<u8> {
        vec![byte; PAGE_BYTES]
    }

    #[test]
    fn dirty_pages_leave_in_order_and_stay_as_clean_ones() {
        let mut cache = PageCache::new(100);
        for number in [9, 3, 4, 5] {
            cache.write(number, 0, &page(number as u8));
        }
        assert_eq!(cache.dirty_pages(), 4);
        let (first, bytes) = cache.leave(2).unwrap();
        assert_eq!((first, bytes), (3, [page(3), page(4)].concat()));
        cache.write(4, 0, &[7]);
        assert_eq!(cache.leave(8).unwrap().0, 5);
        assert_eq!(cache.leave(8).unwrap().0, 9);
        assert_eq!((cache.leave(8), cache.dirty_pages()), (None, 4));
        cache.left(3, 2, true);
        cache.left(5, 1, true);
        cache.left(9, 1, false);
        assert_eq!(cache.dirty_pages(), 2, "4 was changed, 9 failed");
        let again = cache.leave(8).unwrap();
        assert_eq!((again.0, again.1[0], again.1[1]), (4, 7, 4));
        assert_eq!(cache.read(5), Some(&page(5)[..]));
    }

    #[test]
    fn a_page_written_during_its_load_is_kept() {
        let mut cache = PageCache::new(100);
        cache.expect([1, 2, 3]);
        assert_eq!((cache.presence(1), cache.read(1)), (Presence::Coming, None));
        cache.write(1, 0, &page(9));
        for number in [1, 2] {
            cache.arrive(number, Some(&page(1)));
        }
        cache.arrive(3, None);
        let read = [1, 2].map(|number| cache.read(number).unwrap()[0]);
        assert_eq!((read, cache.presence(3)), ([9, 1], Presence::Absent));
        cache.write(2, 4095, &[8]);
        assert_eq!(cache.read(2).unwrap()[4094..], [1, 8]);
    }

    #[test]
    fn clean_pages_go_and_dirty_ones_stay() {
        let mut cache = PageCache::new(3);
        cache.expect([1, 2, 3]);
        for number in [1, 2, 3] {
            cache.arrive(number, Some(&page(1)));
        }
        cache.read(1);
        cache.write(4, 0, &page(4));
        assert_eq!(
            [1, 2, 3, 4].map(|n| cache.presence(n) == Presence::Here),
            [true, false, true, true]
        );
        cache.drop_clean();
        assert_eq!([1, 3, 4].map(|n| cache.presence(n) == Presence::Here), [false, false, true]);
    }

    #[test]
    fn dropped_pages_leave_nothing() {
        let mut cache = PageCache::new(100);
        cache.write(1, 0, &page(1));
        cache.write(2, 0, &page(2));
        assert_eq!(cache.leave(1).unwrap().0, 1);
        cache.forget([1, 2]);
        assert_eq!((cache.dirty_pages(), cache.leave(1)), (0, None));
        cache.left(1, 1, true);
        assert_eq!((cache.dirty_pages(), cache.presence(1)), (0, Presence::Absent));
    }
}

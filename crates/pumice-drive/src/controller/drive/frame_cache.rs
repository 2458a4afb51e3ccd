//! A cache of the most recently decoded frames of several blocks, so that small sequential reads do
//! not read and decode a frame once per block.
//!
//! An address in the log refers to one frame until its segment is freed, when the entries of the
//! segment are removed: an entry can never be stale. An entry is valid only for the LBAs of its
//! frame. Frames of one block are not cached: they are used whole.

use std::cell::{Cell, RefCell};

use super::super::place::FrameAddress;
use crate::base::wait::WaitQueue;
use crate::base::{Lba, SegmentId};

/// Entries of the cache. With frames of 32 KiB the cache stores 2 MiB: enough for a few dozen
/// interleaved sequential readers, small enough that a look-up by scanning the keys costs 20 ns.
const ENTRIES: usize = 64;

/// The address that stands for no frame.
const NO_KEY: FrameAddress = FrameAddress { segment: SegmentId(u32::MAX), offset: u32::MAX };

/// The result of [`FrameCache::begin`].
pub(crate) enum Lookup<T> {
    /// The frame is in the cache; the closure's result.
    Hit(T),
    /// The frame is not in the cache: the caller loads it and ends with [`FrameCache::finish`].
    Miss,
    /// Another request is loading it.
    Loading,
}

/// A requested frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) address: FrameAddress,
    /// Its first block.
    pub(crate) lba: Lba,
    /// Its bytes, decoded.
    pub(crate) bytes: usize,
}

#[derive(Default)]
struct Entry {
    lba: Lba,
    bytes: Vec<u8>,
    used: bool,
}

/// The cache of one drive.
pub(crate) struct FrameCache {
    keys: RefCell<[FrameAddress; ENTRIES]>,
    entries: RefCell<Vec<Entry>>,
    hand: Cell<usize>,
    loading: RefCell<Vec<FrameAddress>>,
    /// Woken when a load has ended.
    pub(crate) loaded: WaitQueue,
}

impl FrameCache {
    /// Creates an empty cache.
    pub(crate) fn new() -> Self {
        let entries = (0..ENTRIES).map(|_| Entry::default()).collect();
        Self {
            keys: RefCell::new([NO_KEY; ENTRIES]),
            entries: RefCell::new(entries),
            hand: Cell::new(0),
            loading: RefCell::new(Vec::new()),
            loaded: WaitQueue::default(),
        }
    }

    /// Looks up a decoded frame and, on a hit, passes its bytes to `use_bytes`. On a miss the frame
    /// counts as being loaded by the caller.
    pub(crate) fn begin<T>(&self, wanted: Wanted, use_bytes: impl FnOnce(&[u8]) -> T) -> Lookup<T> {
        if let Some(at) = self.position(wanted) {
            let entry = &mut self.entries.borrow_mut()[at];
            entry.used = true;
            return Lookup::Hit(use_bytes(&entry.bytes));
        }
        let mut loading = self.loading.borrow_mut();
        if loading.contains(&wanted.address) {
            return Lookup::Loading;
        }
        loading.push(wanted.address);
        Lookup::Miss
    }

    /// Returns whether a frame is in the cache.
    pub(crate) fn has(&self, wanted: Wanted) -> bool {
        self.position(wanted).is_some()
    }

    /// Returns the entry that contains a frame. Only a damaged map leads to a request for other
    /// blocks at its address.
    fn position(&self, wanted: Wanted) -> Option<usize> {
        let at = self.keys.borrow().iter().position(|found| *found == wanted.address)?;
        let entry = &self.entries.borrow()[at];
        (entry.lba == wanted.lba && entry.bytes.len() == wanted.bytes).then_some(at)
    }

    /// Removes the frames of a segment that is freed.
    pub(crate) fn forget(&self, segment: SegmentId) {
        for key in self.keys.borrow_mut().iter_mut().filter(|key| key.segment == segment) {
            *key = NO_KEY;
        }
    }

    /// Ends a load: `fill` decodes a frame into the cache, which retains it if that succeeds.
    /// Returns the result of `fill`.
    pub(crate) fn fill<T, E>(
        &self,
        wanted: Wanted,
        fill: impl FnOnce(&mut [u8]) -> Result<T, E>,
    ) -> Result<T, E> {
        let at = self.evict();
        let mut entries = self.entries.borrow_mut();
        let entry = &mut entries[at];
        entry.bytes.resize(wanted.bytes, 0);
        let result = fill(&mut entry.bytes);
        if result.is_ok() {
            (entry.used, entry.lba) = (true, wanted.lba);
            self.keys.borrow_mut()[at] = wanted.address;
        }
        result
    }

    /// Releases the memory of all frames.
    pub(crate) fn release(&self) {
        self.keys.borrow_mut().fill(NO_KEY);
        for entry in self.entries.borrow_mut().iter_mut() {
            *entry = Entry::default();
        }
    }

    /// Returns whether a request is loading the frame.
    pub(crate) fn is_loading(&self, key: FrameAddress) -> bool {
        self.loading.borrow().contains(&key)
    }

    /// Records that the load started by [`FrameCache::begin`] has ended, successfully or not.
    pub(crate) fn finish(&self, key: FrameAddress) {
        let mut loading = self.loading.borrow_mut();
        let before = loading.len();
        loading.retain(|loading| *loading != key);
        assert_eq!(loading.len() + 1, before, "one load of a frame ends");
        drop(loading);
        self.loaded.wake_all();
    }

    /// Returns the bytes of memory in use.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.entries.borrow().iter().map(|entry| entry.bytes.capacity()).sum()
    }

    /// Evicts an entry not used since the hand last passed it (the clock algorithm).
    fn evict(&self) -> usize {
        let mut entries = self.entries.borrow_mut();
        loop {
            let at = self.hand.get();
            self.hand.set((at + 1) % ENTRIES);
            if !std::mem::take(&mut entries[at].used) {
                self.keys.borrow_mut()[at] = NO_KEY;
                return at;
            }
        }
    }
}

/// Ends a load when dropped, so that a failed or cancelled read wakes the requests that wait for
/// it.
pub(crate) struct Load<'a> {
    cache: &'a FrameCache,
    key: FrameAddress,
}

impl<'a> Load<'a> {
    /// Guards the load of `key` that began with a miss.
    pub(crate) fn new(cache: &'a FrameCache, key: FrameAddress) -> Self {
        Self { cache, key }
    }
}

impl Drop for Load<'_> {
    fn drop(&mut self) {
        self.cache.finish(self.key);
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a frame is loaded once, other requests wait for it, and old entries are evicted.
    use super::*;
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::{Context, Wake, Waker};

    fn key(segment: u32, offset: u32) -> FrameAddress {
        FrameAddress { segment: SegmentId(segment), offset }
    }

    fn wanted(address: FrameAddress) -> Wanted {
        Wanted { address, lba: Lba(8), bytes: 10 }
    }

    fn load(cache: &FrameCache, key: FrameAddress, byte: u8) {
        assert!(matches!(cache.begin(wanted(key), |_| ()), Lookup::Miss));
        let load = Load::new(cache, key);
        assert!(matches!(cache.begin(wanted(key), |_| ()), Lookup::Loading));
        let fill = |bytes: &mut [u8]| {
            bytes.fill(byte);
            Ok::<_, ()>(())
        };
        cache.fill(wanted(key), fill).unwrap();
        drop(load);
    }

    fn hit(cache: &FrameCache, key: FrameAddress) -> Option<u8> {
        match cache.begin(wanted(key), |bytes| bytes[0]) {
            Lookup::Hit(byte) => Some(byte),
            Lookup::Miss => {
                cache.finish(key);
                None
            }
            Lookup::Loading => panic!("a load that has ended is still under way"),
        }
    }

    #[test]
    fn a_loaded_frame_is_found_until_it_makes_room() {
        let cache = FrameCache::new();
        for number in 0..ENTRIES as u32 + 1 {
            load(&cache, key(number, 0), number as u8);
        }
        assert_eq!(hit(&cache, key(ENTRIES as u32, 0)), Some(ENTRIES as u8));
        assert_eq!(hit(&cache, key(0, 0)), None);
        assert_eq!(hit(&cache, key(1, 0)), Some(1));
    }

    #[test]
    fn a_frame_serves_no_other_blocks_than_its_own() {
        let cache = FrameCache::new();
        load(&cache, key(1, 1), 7);
        let own = wanted(key(1, 1));
        assert!(cache.has(own));
        for other in [Wanted { lba: Lba(9), ..own }, Wanted { bytes: 20, ..own }] {
            assert!(!cache.has(other));
            assert!(matches!(cache.begin(other, |_| ()), Lookup::Miss));
            cache.finish(other.address);
        }
    }

    #[test]
    fn a_frame_in_use_outlives_one_that_is_not() {
        let cache = FrameCache::new();
        for number in 0..ENTRIES as u32 + 1 {
            load(&cache, key(number, 0), number as u8);
        }
        // The hand has passed all of them: only frames requested since count as used.
        assert_eq!(hit(&cache, key(1, 0)), Some(1));
        load(&cache, key(1000, 0), 7);
        assert_eq!((hit(&cache, key(1, 0)), hit(&cache, key(2, 0))), (Some(1), None));
    }

    /// A load that fails half way has overwritten the entry that was evicted for it.
    #[test]
    fn a_failed_load_takes_nobodys_place() {
        let cache = FrameCache::new();
        for number in 0..ENTRIES as u32 {
            load(&cache, key(number, 0), number as u8);
        }
        let half = |bytes: &mut [u8]| {
            bytes.fill(0xee);
            Err::<(), _>("bad")
        };
        cache.fill(wanted(key(1000, 0)), half).unwrap_err();
        for number in 0..ENTRIES as u32 {
            assert_ne!(hit(&cache, key(number, 0)), Some(0xee), "frame {number}");
        }
    }

    #[test]
    fn the_end_of_a_load_wakes_its_waiters() {
        struct Woken(AtomicBool);
        impl Wake for Woken {
            fn wake(self: Arc<Self>) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let cache = FrameCache::new();
        assert!(matches!(cache.begin(wanted(key(1, 1)), |_| ()), Lookup::Miss));
        let load = Load::new(&cache, key(1, 1));
        let ended = || (!cache.is_loading(key(1, 1))).then_some(());
        let mut waiting = pin!(cache.loaded.wait_for(ended));
        let woken = Arc::new(Woken(AtomicBool::new(false)));
        let waker = Waker::from(woken.clone());
        let mut context = Context::from_waker(&waker);
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        drop(load);
        assert!(woken.0.load(Ordering::Relaxed), "no task was woken");
        assert!(waiting.as_mut().poll(&mut context).is_ready());
    }

    #[test]
    fn a_failed_load_leaves_nothing() {
        let cache = FrameCache::new();
        assert!(matches!(cache.begin(wanted(key(1, 1)), |_| ()), Lookup::Miss));
        let load = Load::new(&cache, key(1, 1));
        assert_eq!(cache.fill(wanted(key(1, 1)), |_| Err::<(), _>("bad")), Err("bad"));
        drop(load);
        assert_eq!(hit(&cache, key(1, 1)), None);
    }
}

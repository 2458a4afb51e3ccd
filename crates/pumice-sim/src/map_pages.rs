//! The map of a drive whose memory is too small to hold all of it: map pages are read from flash,
//! and the most recently used pages are cached.

use std::cell::RefCell;

use hashlink::LinkedHashSet;

use super::profile::MAP_REGION_BYTES;

/// How much of a map is cached, and the cost of a miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapSpec {
    /// Time to read one page of the map, in ns.
    pub read_ns: u64,
    /// Bytes of the disk that the cached map pages cover; at least one page is cached.
    pub cached_bytes: u64,
}

/// The cached pages of a map.
#[derive(Debug)]
pub(super) struct MapPages {
    spec: MapSpec,
    /// Numbers of the cached pages, least recently used first.
    cached: RefCell<LinkedHashSet<u64>>,
}

impl MapPages {
    /// Creates an empty cache.
    pub(super) fn new(spec: MapSpec) -> Self {
        Self { spec, cached: RefCell::default() }
    }

    /// Uses the page that covers byte `offset` of the disk. Returns the time to load it, in ns; 0
    /// if it is cached.
    pub(super) fn need(&self, offset: u64) -> u64 {
        let mut cached = self.cached.borrow_mut();
        let is_new = cached.insert(offset / MAP_REGION_BYTES);
        if !is_new {
            return 0;
        }
        if cached.len() as u64 > (self.spec.cached_bytes / MAP_REGION_BYTES).max(1) {
            cached.pop_front();
        }
        self.spec.read_ns
    }
}

#[cfg(test)]
mod tests {
    //! Goal: the most recently used pages are cached, and no more than the budget allows.
    use super::*;

    #[test]
    fn recently_used_pages_are_cached() {
        let spec = MapSpec { read_ns: 7, cached_bytes: 2 * MAP_REGION_BYTES };
        let map = MapPages::new(spec);
        let regions = [0, 1, 0, 2, 0, 1];
        let took = regions.map(|region| map.need(region * MAP_REGION_BYTES + 4096));
        assert_eq!(took, [7, 7, 0, 7, 0, 7]);
    }
}

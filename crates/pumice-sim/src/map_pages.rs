//! The map of a drive whose memory is too small for the whole map: the most recently used pages are
//! cached, and all others are read from flash.

use hashlink::LinkedHashSet;

use super::profile::MAP_REGION_BYTES;

/// The cached pages of a map.
#[derive(Clone, Debug)]
pub(super) struct MapPages {
    /// Maximum number of cached pages; at least 1.
    pages_max: u64,
    /// Numbers of the cached pages, least recently used first.
    cached: LinkedHashSet<u64>,
}

impl MapPages {
    /// Creates an empty cache for the pages that cover `cached_bytes` bytes of the disk, or for one
    /// page.
    pub(super) fn new(cached_bytes: u64) -> Self {
        let pages_max = (cached_bytes / MAP_REGION_BYTES).max(1);
        Self { pages_max, cached: LinkedHashSet::new() }
    }

    /// Uses the page that covers byte `offset` of the disk. Returns its number if it must be read.
    pub(super) fn need(&mut self, offset: u64) -> Option<u64> {
        let number = offset / MAP_REGION_BYTES;
        if !self.cached.insert(number) {
            return None;
        }
        if self.cached.len() as u64 > self.pages_max {
            self.cached.pop_front();
        }
        Some(number)
    }

    /// Returns whether the page that covers byte `offset` is cached.
    pub(super) fn has(&self, offset: u64) -> bool {
        self.cached.contains(&(offset / MAP_REGION_BYTES))
    }
}

#[cfg(test)]
mod tests {
    //! Goal: the most recently used pages are cached, within the limit.
    use super::*;

    #[test]
    fn recently_used_pages_are_cached() {
        let mut map = MapPages::new(2 * MAP_REGION_BYTES);
        let regions = [0, 1, 0, 2, 0, 1];
        let read = regions.map(|region| map.need(region * MAP_REGION_BYTES + 4096));
        assert_eq!(read, [Some(0), Some(1), None, Some(2), None, Some(1)]);
        assert!(map.has(4096) && !map.has(2 * MAP_REGION_BYTES));
    }
}

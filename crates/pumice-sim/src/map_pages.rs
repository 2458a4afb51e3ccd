//! The map of a drive without memory for all of it: its pages are read from flash, and those used
//! last are kept.

use std::cell::RefCell;

use super::profile::MAP_REGION_BYTES;
use super::recency::Recency;

/// How much of a map is at hand, and what the rest takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapSpec {
    /// What it takes to read a page of the map, in ns.
    pub read_ns: u64,
    /// Bytes of the disk whose map is at hand: one page of it at least.
    pub at_hand_bytes: u64,
}

/// Which pages of a map are at hand.
#[derive(Debug)]
pub(super) struct MapPages {
    spec: MapSpec,
    at_hand: RefCell<Recency>,
}

impl MapPages {
    /// None is at hand yet.
    pub(super) fn new(spec: MapSpec) -> Self {
        Self { spec, at_hand: RefCell::default() }
    }

    /// Uses the page that covers byte `offset` of the disk; gives what it takes to have it, in ns.
    pub(super) fn need(&self, offset: u64) -> u64 {
        let mut at_hand = self.at_hand.borrow_mut();
        if at_hand.touch(offset / MAP_REGION_BYTES) {
            return 0;
        }
        if at_hand.len() as u64 > (self.spec.at_hand_bytes / MAP_REGION_BYTES).max(1) {
            at_hand.pop_oldest();
        }
        self.spec.read_ns
    }
}

#[cfg(test)]
mod tests {
    //! Goal: what was used last is at hand, and no more of it than there is room for.
    use super::*;

    #[test]
    fn pages_used_last_are_at_hand() {
        let spec = MapSpec { read_ns: 7, at_hand_bytes: 2 * MAP_REGION_BYTES };
        let map = MapPages::new(spec);
        let regions = [0, 1, 0, 2, 0, 1];
        let took = regions.map(|region| map.need(region * MAP_REGION_BYTES + 4096));
        assert_eq!(took, [7, 7, 0, 7, 0, 7]);
    }
}

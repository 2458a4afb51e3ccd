//! What was used when: which of many keys was used longest ago.

use std::collections::{BTreeMap, HashMap};

/// Keys in the order of their last use; some 150 bytes each.
#[derive(Debug, Default)]
pub(super) struct Recency {
    next: u64,
    used: HashMap<u64, u64>,
    order: BTreeMap<u64, u64>,
}

impl Recency {
    /// Makes `key` the one used last; says whether it was there.
    pub(super) fn touch(&mut self, key: u64) -> bool {
        let was_there = self.remove(key);
        self.used.insert(key, self.next);
        self.order.insert(self.next, key);
        self.next += 1;
        was_there
    }

    /// Forgets `key`; says whether it was there.
    pub(super) fn remove(&mut self, key: u64) -> bool {
        let used = self.used.remove(&key);
        used.is_some_and(|used| self.order.remove(&used).is_some())
    }

    /// Takes out the key that was used longest ago.
    pub(super) fn pop_oldest(&mut self) -> Option<u64> {
        let (_, key) = self.order.pop_first()?;
        self.used.remove(&key);
        Some(key)
    }

    /// How many keys there are.
    pub(super) fn len(&self) -> usize {
        self.order.len()
    }
}

#[cfg(test)]
mod tests {
    //! Goal: the oldest goes first, whatever was touched and removed in between.
    use super::*;

    #[test]
    fn the_oldest_goes_first() {
        let mut recency = Recency::default();
        for key in [5, 6, 7, 8] {
            assert!(!recency.touch(key));
        }
        assert!(recency.touch(5));
        assert!(recency.remove(7) && !recency.remove(7));
        assert_eq!(recency.len(), 3);
        let order = std::iter::from_fn(|| recency.pop_oldest());
        assert_eq!(order.collect::<Vec<_>>(), [6, 8, 5]);
        assert_eq!(recency.len(), 0);
    }
}

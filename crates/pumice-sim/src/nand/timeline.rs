//! The busy times of a bus, for any type of transfer.
//!
//! A transfer uses the first gap that is long enough, so that a later call for an earlier time is
//! not delayed by a transfer whose data the flash is still reading.

use std::collections::VecDeque;

/// The times at which a bus is busy, starting from now.
#[derive(Clone, Debug, Default)]
pub(super) struct Timeline {
    /// Start and end of each interval, in order and disjoint.
    busy: VecDeque<(u64, u64)>,
}

impl Timeline {
    /// Reserves a contiguous interval of `len_ns` that starts at `earliest_ns` or later. Returns
    /// its start. `now_ns` must not decrease from call to call.
    pub(super) fn take(&mut self, now_ns: u64, earliest_ns: u64, len_ns: u64) -> u64 {
        while self.busy.front().is_some_and(|&(_, to)| to <= now_ns) {
            self.busy.pop_front();
        }
        let mut begin = earliest_ns.max(now_ns);
        // Usually the latest request also has the latest time.
        let mut at = self.busy.len();
        if self.busy.back().is_some_and(|&(_, to)| begin < to) {
            at = 0;
            while let Some(&(from, to)) = self.busy.get(at) {
                if begin + len_ns <= from {
                    break;
                }
                begin = begin.max(to);
                at += 1;
            }
        }
        if len_ns > 0 {
            self.insert(at, begin, begin + len_ns);
        }
        begin
    }

    /// Inserts an interval before the one at `at`, merging it with adjacent neighbours.
    fn insert(&mut self, at: usize, from: u64, to: u64) {
        let touches_before = at > 0 && self.busy[at - 1].1 == from;
        let touches_after = self.busy.get(at).is_some_and(|&(next, _)| next == to);
        match (touches_before, touches_after) {
            (true, true) => {
                let (_, end) = self.busy.remove(at).expect("an interval was just seen there");
                self.busy[at - 1].1 = end;
            }
            (true, false) => self.busy[at - 1].1 = to,
            (false, true) => self.busy[at].0 = from,
            (false, false) => self.busy.insert(at, (from, to)),
        }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: no two transfers overlap, and no transfer waits unnecessarily. Method: gaps chosen by
    //! hand; then random requests compared with a list of single nanoseconds.

    use rand::RngExt;

    use super::*;
    use pumice_drive::base::seed::random;

    #[test]
    fn a_gap_is_taken_when_it_is_long_enough() {
        let mut bus = Timeline::default();
        assert_eq!(bus.take(0, 100, 50), 100);
        assert_eq!(bus.take(0, 0, 60), 0, "before an earlier request");
        assert_eq!(bus.take(0, 0, 41), 150, "the gap is 40 long");
        assert_eq!(bus.take(0, 0, 40), 60);
        assert_eq!(bus.take(0, 0, 1), 191);
        assert_eq!(bus.busy.len(), 1, "neighbours are one: {bus:?}");
        assert_eq!(bus.take(500, 0, 1), 500);
        assert_eq!(bus.busy.len(), 1, "what is over is forgotten: {bus:?}");
    }

    #[test]
    fn agrees_with_a_list_of_moments() {
        let mut random = random(1);
        for _ in 0..50 {
            let mut bus = Timeline::default();
            let mut moments = vec![false; 4000];
            let mut now = 0;
            for _ in 0..100 {
                now += random.random_range(0..6);
                let earliest = now + random.random_range(0..40);
                let len = random.random_range(1..9);
                let is_free = |at: u64| !moments[at as usize..(at + len) as usize].contains(&true);
                let expected = (earliest..).find(|&at| is_free(at)).unwrap();
                assert_eq!(bus.take(now, earliest, len), expected);
                moments[expected as usize..(expected + len) as usize].fill(true);
            }
        }
    }
}

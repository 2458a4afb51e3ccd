//! Decides when to poll for completions before the thread sleeps.
//!
//! Waking a thread whose processor has become idle costs 2 to 5 us on hardware, and 15 to 30 us in
//! a virtual machine, where the host has to wake the processor as well. A client with one request
//! at a time pays this cost in every request: its next request arrives sooner than that. The loop
//! therefore polls for completions first, up to a limit, as QEMU's I/O threads do (`poll-max-ns`).
//!
//! The limit is short, so polling in vain is soon recognized. Each time, the following waits are
//! not polled, twice as many as the time before, up to [`REST_WAITS_MAX`]; a hit ends that. A
//! thread whose clients are slow, or that shares its processor with a busy neighbour, therefore
//! polls in few waits.
//!
//! This module does not know the purpose of a wait. The driver does not poll while the kernel's own
//! threads have to run for it: they may be queued on this processor.

/// Maximum number of waits that are not polled after polling in vain several times in a row. The
/// cost of polling in vain is then one limit in 64 waits, each of which is longer than the limit.
const REST_WAITS_MAX: u32 = 63;

/// Decides for one loop whether a wait is polled.
#[derive(Debug, Default)]
pub(super) struct BusyPoll {
    limit_ns: u64,
    /// Waits not to be polled before the next polled one.
    resting: u32,
    /// The value of `resting` when polling was last in vain; 0 after a hit.
    penalty: u32,
    #[cfg(test)]
    pub(super) polled: u64,
}

impl BusyPoll {
    /// Sets the time for which a wait is polled, in nanoseconds; 0 for never.
    pub(super) fn set_limit(&mut self, limit_ns: u64) {
        *self = Self { limit_ns, ..Self::default() };
    }

    /// Returns for how many nanoseconds to poll in the wait that begins, which ends after
    /// `timeout_ns` at the latest. Call [`BusyPoll::ended`] after polling.
    pub(super) fn begin(&mut self, timeout_ns: Option<u64>) -> Option<u64> {
        if self.limit_ns == 0 || timeout_ns.is_some_and(|timeout_ns| timeout_ns < self.limit_ns) {
            return None;
        }
        if let Some(resting) = self.resting.checked_sub(1) {
            self.resting = resting;
            return None;
        }
        Some(self.limit_ns)
    }

    /// Records whether a completion arrived while the wait was polled.
    pub(super) fn ended(&mut self, is_hit: bool) {
        #[cfg(test)]
        (self.polled += 1);
        self.penalty = if is_hit { 0 } else { (2 * self.penalty + 1).min(REST_WAITS_MAX) };
        self.resting = self.penalty;
    }
}

#[cfg(test)]
mod tests {
    //! Goal: waits are polled as often as the rule requires.
    use super::*;

    /// Returns which of `waits` waits are polled, if each polled wait has this outcome.
    fn polled(poll: &mut BusyPoll, waits: usize, is_hit: bool) -> Vec<usize> {
        let poll = |wait| {
            poll.begin(None)?;
            poll.ended(is_hit);
            Some(wait)
        };
        (0..waits).filter_map(poll).collect()
    }

    #[test]
    fn unsuccessful_polls_become_rare_until_a_hit() {
        let mut poll = BusyPoll::default();
        assert_eq!(polled(&mut poll, 9, true), [0; 0], "without a limit none is polled");
        poll.set_limit(50_000);
        assert_eq!(polled(&mut poll, 3, true), [0, 1, 2]);
        assert_eq!(polled(&mut poll, 200, false), [0, 2, 6, 14, 30, 62, 126, 190]);
        assert_eq!(polled(&mut poll, 60, true), [54, 55, 56, 57, 58, 59]);
    }

    #[test]
    fn a_wait_that_ends_sooner_than_polling_would_is_not_polled() {
        let mut poll = BusyPoll::default();
        poll.set_limit(50_000);
        assert_eq!(poll.begin(Some(49_999)), None);
        assert_eq!(poll.begin(Some(50_000)), Some(50_000));
    }
}

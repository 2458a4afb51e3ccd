//! Chooses the faster method to make an append durable: a write with the flag, or a write and a
//! sync.
//!
//! A write with `RWF_DSYNC` needs one wake-up less. But if the device has no forced writes, the
//! kernel waits for the write and flushes the device's cache on a thread that stays on the
//! processor that the device interrupted (`iomap_dio_complete_work` of Linux 6.18). A process that
//! computes on that processor delays the thread for milliseconds. A sync runs on a thread of
//! io_uring, which moves to an idle processor. Both methods are therefore timed, and the faster one
//! is used.

use std::cell::Cell;

/// A method to make an append durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SyncMethod {
    /// One write with `RWF_DSYNC`.
    Flag,
    /// A write, then `fdatasync`.
    Sync,
}

/// Each cycle of this many appends ends with a trial of the other method.
const CYCLE: u32 = 512;

/// Appends of a trial. At most one append in [`CYCLE`] / [`TRIAL`] uses the slower method.
const TRIAL: u32 = 16;

/// Larger appends are not timed: the device takes longer for them with either method.
const LEN_MAX: usize = 64 << 10;

/// Maximum time that counts. A longer one is due to the device, whichever method was used.
const TOOK_MAX_NS: u64 = 4_000_000;

/// Weight of the earlier times in a mean, as a number of appends.
const MEMORY: f64 = 32.0;

/// Times of both methods.
#[derive(Debug, Default)]
pub(super) struct Pace {
    appends: Cell<u32>,
    flag_ns: Cell<f64>,
    sync_ns: Cell<f64>,
}

impl Pace {
    /// Returns the method for the next append.
    pub(super) fn next_way(&self) -> SyncMethod {
        let at = self.appends.get();
        self.appends.set((at + 1) % CYCLE);
        // The sync must take a tenth less, since means of equal times differ too.
        let (flag, sync) = (self.flag_ns.get(), self.sync_ns.get());
        let is_sync_better = sync > 0.0 && sync < 0.9 * flag;
        if is_sync_better == (at < CYCLE - TRIAL) { SyncMethod::Sync } else { SyncMethod::Flag }
    }

    /// Records the time of an append of `len` bytes, from its call until it was durable.
    pub(super) fn took(&self, way: SyncMethod, len: usize, ns: u64) {
        if len > LEN_MAX {
            return;
        }
        let mean = match way {
            SyncMethod::Flag => &self.flag_ns,
            SyncMethod::Sync => &self.sync_ns,
        };
        let (old, new) = (mean.get(), ns.min(TOOK_MAX_NS) as f64);
        mean.set(if old == 0.0 { new } else { old + (new - old) / MEMORY });
    }
}

#[cfg(test)]
mod tests {
    //! Goal: the faster method is found, and found again when it changes.
    use super::*;

    /// Returns how many of `count` appends are made with the flag. `times` returns the time of
    /// append `at`.
    fn flags(pace: &Pace, count: u64, times: impl Fn(SyncMethod, u64) -> u64) -> u64 {
        let step = |at| {
            let way = pace.next_way();
            pace.took(way, 4096, times(way, at));
            u64::from(way == SyncMethod::Flag)
        };
        (0..count).map(step).sum()
    }

    /// Returns the times on a quiet machine, where the wake-up matters.
    fn quiet(way: SyncMethod, _: u64) -> u64 {
        if way == SyncMethod::Flag { 130_000 } else { 190_000 }
    }

    /// Returns the times next to a computing process, which delays every twentieth write with the
    /// flag, and few syncs.
    fn busy(way: SyncMethod, at: u64) -> u64 {
        let (one_in, ns) = if way == SyncMethod::Flag { (20, 170_000) } else { (100, 200_000) };
        if at.is_multiple_of(one_in) { 3_500_000 } else { ns }
    }

    #[test]
    fn the_way_that_takes_less_is_used() {
        let pace = Pace::default();
        assert_eq!(
            flags(&pace, 496, quiet),
            496,
            "nothing is tried on a drive that hardly flushes"
        );
        assert_eq!(flags(&pace, 5136, quiet), 4960, "a trial in every 512");
        let found = flags(&pace, 1024, busy);
        assert!(found < 700, "{found} of 1024 while that is learnt");
        let kept = flags(&pace, 10_240, busy);
        assert!(kept < 2000, "{kept} of 10240 with the flag beside a computing process");
        flags(&pace, 5120, quiet);
        let back = flags(&pace, 5120, quiet);
        assert_eq!(back, 4960, "with the flag when the machine is quiet again");
    }

    #[test]
    fn neither_long_appends_nor_a_stall_decide() {
        let pace = Pace::default();
        flags(&pace, 1024, quiet);
        for _ in 0..100 {
            pace.took(SyncMethod::Flag, 1 << 20, 2_000_000);
        }
        assert_eq!(flags(&pace, 512, quiet), 496);
        // The device stalls for a second. About one second's appends may use the other method.
        pace.took(SyncMethod::Flag, 4096, 1_000_000_000);
        flags(&pace, 2048, quiet);
        assert_eq!(flags(&pace, 512, quiet), 496);
    }
}

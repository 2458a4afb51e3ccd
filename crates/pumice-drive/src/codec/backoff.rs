//! The decision to stop trying to compress a stream that does not compress.
//!
//! ```text
//! trying --FAILURES_BEFORE_SKIPPING failures--> skip 1, try, skip 2, try, skip 4, try, ...
//!    ^                                                      |
//!    +------------------ the first success -----------------+
//! ```
//!
//! The decision depends only on the results of earlier attempts, never on the data.

/// Consecutive failures before an attempt is skipped.
///
/// On 300 MiB of a system's programs, libraries and documents, in frames of 4 KiB with LZ4, 16
/// costs 0.07 % of the bytes and 8 costs 0.16 %; on random data both are equally fast.
const FAILURES_BEFORE_SKIPPING: u32 = 16;

/// Maximum run of frames that are stored without an attempt. A stream that becomes compressible
/// loses the saving of at most this many frames. At 8, a stream that never compresses pays for one
/// attempt in nine: random 4 KiB frames then pass LZ4 at 18 GB/s instead of 7, zstd 1 at 9 instead
/// of 1.5, and a plain copy at 27.
pub const FRAMES_MISSED_MAX: u32 = 8;
const _: () = assert!(FRAMES_MISSED_MAX.is_power_of_two(), "the number of skips doubles up to it");

/// Decides, for each frame of a stream, whether to try to compress it.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
    skip_next: u32,
    skips_left: u32,
}

impl Backoff {
    /// Returns whether to try the next frame. If so, its result must be
    /// [recorded](Backoff::record).
    pub(super) fn is_worth_trying(&mut self) -> bool {
        if self.skips_left == 0 {
            return true;
        }
        assert!(self.failures == FAILURES_BEFORE_SKIPPING, "attempts are skipped after failures");
        self.skips_left -= 1;
        false
    }

    /// Returns whether the next frame will be tried.
    pub(super) fn is_trying(&self) -> bool {
        self.skips_left == 0
    }

    /// Records the result of an attempt that was made concurrently with others.
    pub(super) fn record_late(&mut self, saved: bool) {
        if saved || self.is_trying() {
            self.record(saved);
        }
    }

    /// Records the result of an attempt.
    pub(super) fn record(&mut self, saved: bool) {
        if saved {
            *self = Self::default();
            return;
        }
        assert!(self.is_trying(), "a result without an attempt");
        self.failures += 1;
        if self.failures < FAILURES_BEFORE_SKIPPING {
            return;
        }
        self.failures = FAILURES_BEFORE_SKIPPING;
        self.skip_next = (self.skip_next * 2).clamp(1, FRAMES_MISSED_MAX);
        self.skips_left = self.skip_next;
        assert!((1..=FRAMES_MISSED_MAX).contains(&self.skips_left), "skips are bounded");
    }
}

//! Runs independent simulations concurrently, each on a separate thread.
//!
//! Results are returned in the order of their numbers, regardless of the order of completion, so
//! that a forecast does not depend on the number of threads.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::error::Result;

/// Maximum memory of all concurrent simulations in bytes: the memory of one simulated 1 TB drive.
const MEMORY_BYTES_MAX: u64 = 2 << 30;

/// Returns the number of concurrent simulations if each needs up to `memory_bytes`: at least one,
/// at most one per processor.
pub(super) fn threads(memory_bytes: u64) -> usize {
    let processors = thread::available_parallelism().map_or(1, |count| count.get());
    let fit = MEMORY_BYTES_MAX / memory_bytes.max(1);
    processors.min(usize::try_from(fit).unwrap_or(usize::MAX)).max(1)
}

/// Calls `work` for each number below `count` on `threads` threads; the first argument is the
/// number of the thread. Returns the results in the order of the numbers, or `None` as soon as one
/// call returns `None`, after which no further call is started.
///
/// # Errors
/// The error of the first failed call, after which no further call is started.
pub(super) fn side_by_side<T: Send>(
    count: usize,
    threads: usize,
    work: impl Fn(usize, usize) -> Result<Option<T>> + Sync,
) -> Result<Option<Vec<T>>> {
    let next = AtomicUsize::new(0);
    let take = |thread: usize| -> Result<Option<Vec<(usize, T)>>> {
        let mut done = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return Ok(Some(done));
            }
            match work(thread, number) {
                Ok(Some(result)) => done.push((number, result)),
                ended => {
                    next.store(count, Ordering::Relaxed);
                    return ended.map(|_| None);
                }
            }
        }
    };
    let take = &take;
    let ended = thread::scope(|scope| {
        let others: Vec<_> =
            (1..threads.min(count)).map(|thread| scope.spawn(move || take(thread))).collect();
        let mut ended = vec![take(0)];
        for other in others {
            ended.push(other.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        ended
    });
    let mut all = Vec::new();
    for done in ended {
        let Some(done) = done? else { return Ok(None) };
        all.extend(done);
    }
    all.sort_by_key(|(number, _)| *number);
    Ok(Some(all.into_iter().map(|(_, result)| result).collect()))
}

#[cfg(test)]
mod tests {
    //! Goal: results keep their order, threads run concurrently, and the first failure ends all.
    //! Method: work that waits for the other thread, or fails.

    use std::sync::Barrier;
    use std::sync::atomic::AtomicU64;

    use super::*;
    use crate::error::Error;

    #[test]
    fn results_keep_their_order() {
        let together = Barrier::new(2);
        let done = side_by_side(6, 2, |thread, number| {
            // Both must run at the same time.
            together.wait();
            Ok(Some((thread < 2).then_some(number * 10)))
        });
        let expected: Vec<_> = (0..6).map(|number| Some(number * 10)).collect();
        assert_eq!(done.unwrap(), Some(expected));
        assert_eq!(side_by_side(0, 2, |_, _| Ok(Some(1))).unwrap(), Some(Vec::new()));
    }

    #[test]
    fn a_failure_ends_all() {
        let begun = AtomicU64::new(0);
        let failed = side_by_side(1000, 2, |_, _| -> Result<Option<()>> {
            begun.fetch_add(1, Ordering::Relaxed);
            Err(Error::invalid("no"))
        });
        assert_eq!(failed.unwrap_err().to_string(), "no");
        assert!(begun.load(Ordering::Relaxed) <= 4);
        let stopped = side_by_side(9, 1, |_, number| Ok((number < 3).then_some(())));
        assert_eq!(stopped.unwrap(), None);
    }

    #[test]
    fn memory_bounds_how_many_go_at_a_time() {
        assert_eq!(threads(u64::MAX), 1);
        assert_eq!(threads(MEMORY_BYTES_MAX), 1);
        assert!(threads(0) >= threads(MEMORY_BYTES_MAX / 2));
    }
}

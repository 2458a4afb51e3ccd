//! The state shared by all threads of a scan.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::chunks::{ChunkMeter, Effort};
use super::options::{ScanOptions, ScanProgress};
use super::passed::Passed;
use super::population::Source;
use super::read::Reader;

/// Minimum number of threads for random reads, because uncached disks have long latencies.
pub(super) const THREADS_MIN: usize = 8;

/// Locks a mutex even if a thread has panicked, because a scan's sums are consistent between
/// updates.
pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The threads of one scan, with their parameters and results.
pub(super) struct Work<'a> {
    pub(super) options: &'a ScanOptions,
    pub(super) progress: &'a dyn ScanProgress,
    stop: &'a AtomicBool,
    failed: Mutex<Passed>,
    efforts: Mutex<Vec<Effort>>,
}

impl<'a> Work<'a> {
    pub(super) fn new(
        options: &'a ScanOptions,
        progress: &'a dyn ScanProgress,
        stop: &'a AtomicBool,
    ) -> Self {
        let efforts = vec![Effort::default(); options.configs.len()];
        Self { options, progress, stop, failed: Mutex::default(), efforts: Mutex::new(efforts) }
    }

    /// Returns whether the scan must stop.
    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Creates one of `count` readers, which share the rate limit.
    pub(super) fn reader(&self, count: usize, in_order: bool) -> Reader {
        let share = self.options.bytes_per_s.map(|bytes| (bytes / count as u64).max(1));
        Reader::new(share, in_order)
    }

    pub(super) fn meter(&self) -> ChunkMeter {
        ChunkMeter::new(&self.options.configs)
    }

    /// Calls `each` for all items until stopped, from several threads that each have a reader.
    pub(super) fn share_out<T: Sync>(&self, items: &[T], each: impl Fn(&mut Reader, &T) + Sync) {
        let next = AtomicUsize::new(0);
        let threads = self.options.threads.max(THREADS_MIN);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    let mut reader = self.reader(threads, false);
                    while !self.is_stopped() {
                        let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) else {
                            break;
                        };
                        each(&mut reader, item);
                    }
                });
            }
        });
    }

    /// Adds the effort of one thread.
    pub(super) fn add_efforts(&self, meter: &ChunkMeter) {
        let mut efforts = locked(&self.efforts);
        efforts.iter_mut().zip(meter.efforts()).for_each(|(sum, effort)| sum.add(effort));
    }

    /// Counts a source that could not be read.
    pub(super) fn failed(&self, source: &Source, error: &std::io::Error) {
        locked(&self.failed).failed(source.name.as_ref(), error);
    }

    /// Returns the sources that could not be read, and the total efforts.
    pub(super) fn finish(self) -> (Passed, Vec<Effort>) {
        let failed = self.failed.into_inner().unwrap_or_else(PoisonError::into_inner);
        (failed, self.efforts.into_inner().unwrap_or_else(PoisonError::into_inner))
    }
}

//! A disk that counts and times the requests to another disk, and changes nothing.
//!
//! **Cost.** The clock is read once, when a request ends (37 ns), and not when it starts: a request
//! counts as started when the previous request of the same turn of the runtime ended, or when the
//! first one of the turn was made. That is when the server received it, so the time that a request
//! waits for others received with it is part of its latency. The counting itself takes a few
//! additions and has not been measured.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::snapshot::{CommandStats, HostStats};
use pumice_drive::base::{Clock, Result};
use pumice_drive::runtime::Runtime;
use pumice_nbd::Disk;
use pumice_nbd::disk::{Allocation, Change, Durability, Extent};

/// A disk with counters of its requests.
pub(crate) struct Measured<D> {
    disk: Rc<D>,
    runtime: Runtime,
    /// Shared with the copy of this disk at one moment ([`Disk::pinned`]).
    counters: Rc<Counters>,
}

/// Counters of requests.
struct Counters {
    stats: RefCell<HostStats>,
    in_flight: Cell<u64>,
    /// The last turn of the runtime in which the clock was read, and the time then.
    last_read: Cell<(u64, u64)>,
}

/// Counts one request in flight until it is dropped.
struct InFlight<'a>(&'a Cell<u64>);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl<D: Disk> Measured<D> {
    /// Counts the requests to `disk`.
    pub(crate) fn new(disk: Rc<D>, runtime: Runtime) -> Self {
        // No turn has this number.
        let last_read = Cell::new((u64::MAX, 0));
        let (stats, in_flight) = (RefCell::default(), Cell::new(0));
        Self { disk, runtime, counters: Rc::new(Counters { stats, in_flight, last_read }) }
    }

    /// Returns the counters since this disk was created.
    pub(crate) fn stats(&self) -> HostStats {
        HostStats {
            in_flight: self.counters.in_flight.get(),
            ..self.counters.stats.borrow().clone()
        }
    }

    /// Carries out a request of `bytes` bytes and counts it.
    async fn measure(
        &self,
        command: fn(&mut HostStats) -> &mut CommandStats,
        bytes: u64,
        work: impl Future<Output = Result<()>>,
    ) -> Result<()> {
        let begun_ns = self.begin_ns();
        self.counters.in_flight.set(self.counters.in_flight.get() + 1);
        let in_flight = InFlight(&self.counters.in_flight);
        let result = work.await;
        drop(in_flight);
        self.record(command, bytes, begun_ns, &result);
        result
    }

    /// Counts a request that has ended.
    fn record(
        &self,
        command: fn(&mut HostStats) -> &mut CommandStats,
        bytes: u64,
        begun_ns: u64,
        result: &Result<()>,
    ) {
        let now_ns = self.read_clock();
        let mut stats = self.counters.stats.borrow_mut();
        let stats = command(&mut stats);
        stats.latency.record(now_ns - begun_ns);
        match result {
            Ok(()) => stats.bytes += bytes,
            Err(error) => {
                let known = stats.errors.iter_mut().find(|(kind, _)| *kind == error.kind());
                match known {
                    Some((_, count)) => *count += 1,
                    None => stats.errors.push((error.kind(), 1)),
                }
            }
        }
    }

    /// Returns the start time of a request that arrives now; see the header.
    fn begin_ns(&self) -> u64 {
        match self.counters.last_read.get() {
            (turn, read_ns) if turn == self.runtime.turns() => read_ns,
            _ => self.read_clock(),
        }
    }

    fn read_clock(&self) -> u64 {
        let now_ns = self.runtime.now_ns();
        self.counters.last_read.set((self.runtime.turns(), now_ns));
        now_ns
    }
}

impl<D: Disk> Disk for Measured<D> {
    fn ending(&self) {
        self.disk.ending();
    }

    fn size_bytes(&self) -> u64 {
        self.disk.size_bytes()
    }

    fn is_read_only(&self) -> bool {
        self.disk.is_read_only()
    }

    fn pinned(&self) -> Option<Self> {
        let disk = Rc::new(self.disk.pinned()?);
        Some(Self { disk, runtime: self.runtime.clone(), counters: self.counters.clone() })
    }

    async fn moves_on(&self) -> bool {
        self.disk.moves_on().await
    }

    async fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let bytes = out.len() as u64;
        self.measure(|stats| &mut stats.read, bytes, self.disk.read(offset, out)).await
    }

    fn try_write(&self, offset: u64, data: &[u8]) -> Option<Result<()>> {
        let begun_ns = self.begin_ns();
        let result = self.disk.try_write(offset, data)?;
        self.record(|stats| &mut stats.write, data.len() as u64, begun_ns, &result);
        Some(result)
    }

    async fn write(&self, offset: u64, data: &[u8], durability: Durability) -> Result<()> {
        let bytes = data.len() as u64;
        let work = self.disk.write(offset, data, durability);
        self.measure(|stats| &mut stats.write, bytes, work).await
    }

    async fn flush(&self) -> Result<()> {
        self.measure(|stats| &mut stats.flush, 0, self.disk.flush()).await
    }

    async fn trim(&self, offset: u64, len: u64, durability: Durability) -> Result<()> {
        self.measure(|stats| &mut stats.trim, len, self.disk.trim(offset, len, durability)).await
    }

    async fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        allocation: Allocation,
        durability: Durability,
    ) -> Result<()> {
        let work = self.disk.write_zeroes(offset, len, allocation, durability);
        self.measure(|stats| &mut stats.write_zeroes, len, work).await
    }

    async fn prefetch(&self, offset: u64, len: u64) -> Result<()> {
        self.measure(|stats| &mut stats.cache, len, self.disk.prefetch(offset, len)).await
    }

    /// Answered from the map, not from the medium; therefore not timed.
    async fn extents(
        &self,
        offset: u64,
        len: u64,
        visit: impl FnMut(Extent) -> bool,
    ) -> Result<()> {
        self.disk.extents(offset, len, visit).await
    }

    /// Same as [`Self::extents`].
    async fn changes(
        &self,
        since: &str,
        offset: u64,
        len: u64,
        visit: impl FnMut(Change) -> bool,
    ) -> Result<()> {
        self.disk.changes(since, offset, len, visit).await
    }
}

#[cfg(test)]
mod tests {
    //! Goal: every command is counted under its kind, with its time and its failure, and so are
    //! requests in flight. Method: a disk in virtual time with a given latency.
    use super::*;
    use crate::watch::Latency;
    use pumice_drive::base::{Error, ErrorKind};

    /// Takes `offset` nanoseconds for each request; fails for a length of 13.
    struct Slow(Runtime);

    impl Slow {
        async fn take(&self, offset: u64, len: u64) -> Result<()> {
            self.0.sleep_ns(offset).await;
            match len {
                13 => Err(Error::new(ErrorKind::NoSpace, "full")),
                _ => Ok(()),
            }
        }
    }

    impl Disk for Slow {
        fn size_bytes(&self) -> u64 {
            1 << 40
        }
        fn is_read_only(&self) -> bool {
            true
        }
        async fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
            self.take(offset, out.len() as u64).await
        }
        fn try_write(&self, offset: u64, data: &[u8]) -> Option<Result<()>> {
            (offset == 0).then(|| match data.len() {
                13 => Err(Error::new(ErrorKind::NoSpace, "full")),
                _ => Ok(()),
            })
        }
        async fn write(&self, offset: u64, data: &[u8], _: Durability) -> Result<()> {
            self.take(offset, data.len() as u64).await
        }
        async fn flush(&self) -> Result<()> {
            self.take(5_000, 0).await
        }
        async fn trim(&self, offset: u64, len: u64, _: Durability) -> Result<()> {
            self.take(offset, len).await
        }
        async fn write_zeroes(
            &self,
            offset: u64,
            len: u64,
            _: Allocation,
            _: Durability,
        ) -> Result<()> {
            self.take(offset, len).await
        }
        async fn prefetch(&self, offset: u64, len: u64) -> Result<()> {
            self.take(offset, len).await
        }
    }

    fn latency(times: &[u64]) -> Latency {
        let mut latency = Latency::default();
        times.iter().for_each(|&ns| latency.record(ns));
        latency
    }

    #[test]
    fn every_command_is_counted_with_its_time_and_failure() {
        let runtime = Runtime::simulated();
        let disk = Measured::new(Rc::new(Slow(runtime.clone())), runtime.clone());
        assert_eq!((disk.size_bytes(), disk.is_read_only()), (1 << 40, true));
        assert!(disk.try_write(1, &[0; 1]).is_none());
        runtime.block_on(async {
            disk.read(10_000, &mut [0; 100]).await.unwrap();
            disk.write(20_000, &[0; 200], Durability::Volatile).await.unwrap();
            disk.write(30_000, &[0; 13], Durability::Durable).await.unwrap_err();
            disk.write(30_000, &[0; 13], Durability::Durable).await.unwrap_err();
            disk.flush().await.unwrap();
            disk.trim(40_000, 300, Durability::Volatile).await.unwrap();
            disk.write_zeroes(50_000, 400, Allocation::Keep, Durability::Volatile).await.unwrap();
            disk.prefetch(60_000, 500).await.unwrap();
        });
        let stats = disk.stats();
        let counted: Vec<_> = stats
            .commands()
            .map(|(name, stats)| (name, stats.bytes, stats.latency))
            .into_iter()
            .collect();
        assert_eq!(
            counted,
            [
                ("read", 100, latency(&[10_000])),
                ("write", 200, latency(&[20_000, 30_000, 30_000])),
                ("flush", 0, latency(&[5_000])),
                ("trim", 300, latency(&[40_000])),
                ("write_zeroes", 400, latency(&[50_000])),
                ("cache", 500, latency(&[60_000])),
            ]
        );
        assert_eq!(stats.write.errors, [(ErrorKind::NoSpace, 2)]);
        assert_eq!((stats.write.error_count(), stats.read.error_count()), (2, 0));
        assert_eq!(stats.in_flight, 0);
    }

    #[test]
    fn requests_under_way_are_seen_and_those_of_a_turn_share_its_clock() {
        let runtime = Runtime::simulated();
        let disk = Rc::new(Measured::new(Rc::new(Slow(runtime.clone())), runtime.clone()));
        for _ in 0..3 {
            let disk = disk.clone();
            runtime.spawn(async move { disk.flush().await.unwrap() });
        }
        runtime.block_on(async {
            runtime.sleep_ns(1_000).await;
            assert_eq!(disk.stats().in_flight, 3);
            runtime.sleep_ns(10_000).await;
        });
        assert_eq!(disk.stats().flush.latency, latency(&[5_000; 3]));
        assert_eq!(disk.stats().in_flight, 0);
        // A request in a later turn starts in that turn.
        runtime.block_on(disk.flush()).unwrap();
        assert_eq!(disk.stats().flush.latency, latency(&[5_000; 4]));
        // A request that is dropped halfway is no longer in flight.
        let gone = runtime.block_on(runtime.timeout(1_000, disk.flush()));
        assert!(gone.is_none());
        assert_eq!(disk.stats().in_flight, 0);
    }
}

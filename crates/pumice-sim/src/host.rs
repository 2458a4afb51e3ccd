//! A closed-loop host that keeps a fixed number of requests in flight: each completion starts the
//! next request.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rand::RngExt;

use super::ftl::LogFtl;
use crate::{Error, Result};
use pumice_drive::base::Lba;
use pumice_drive::base::seed::{Random, random};

/// Order of the requested blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Uniform over the drive, aligned to the length of a request.
    Uniform,
    /// Sequential; after the last block, it starts again at the first.
    Sequential,
}

/// Parameters of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostSpec {
    /// Number of requests in flight; at least 1.
    pub depth: u32,
    /// Number of 4 KiB blocks per request; at least 1.
    pub blocks: u32,
    /// Order of the requested blocks.
    pub order: Order,
    /// Share of reads in percent, drawn at random; the other requests are writes.
    pub read_percent: u32,
    /// Seed of all random choices.
    pub seed: u64,
}

/// Latencies of requests of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latencies {
    /// Number of requests.
    pub count: u64,
    /// Sum in ns.
    pub sum_ns: u64,
    /// Maximum in ns.
    pub max_ns: u64,
}

/// Result of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostRun {
    /// Time of the first request.
    pub began_ns: u64,
    /// Time of the last completion.
    pub ended_ns: u64,
    /// Latencies of reads.
    pub reads: Latencies,
    /// Latencies of writes, up to their acknowledgement.
    pub writes: Latencies,
}

/// A host. Each run continues where the previous one ended.
#[derive(Clone, Debug)]
pub struct Host {
    spec: HostSpec,
    random: Random,
    /// The time at which each slot becomes free.
    slots: BinaryHeap<Reverse<u64>>,
    next: u64,
}

impl Latencies {
    /// Returns the mean in ns; 0 without requests.
    pub fn mean_ns(&self) -> u64 {
        self.sum_ns / self.count.max(1)
    }

    fn add(&mut self, ns: u64) {
        self.count += 1;
        self.sum_ns += ns;
        self.max_ns = self.max_ns.max(ns);
    }
}

impl Host {
    /// Creates a host that starts at `now_ns`.
    ///
    /// # Errors
    /// `InvalidInput` for a depth or length of 0, or for more than 100 % of reads.
    pub fn new(spec: HostSpec, now_ns: u64) -> Result<Self> {
        if spec.depth == 0 || spec.blocks == 0 || spec.read_percent > 100 {
            let what = "depth and blocks must be at least 1, read_percent from 0 to 100";
            return Err(Error::InvalidInput(what.into()));
        }
        let slots = (0..spec.depth).map(|_| Reverse(now_ns)).collect();
        Ok(Self { spec, random: random(spec.seed), slots, next: 0 })
    }

    /// Issues `requests` requests and waits for all of them.
    ///
    /// # Errors
    /// The errors of the drive, and `InvalidInput` if the drive is smaller than a request.
    pub fn run(&mut self, drive: &mut LogFtl, requests: u64) -> Result<HostRun> {
        let starts = drive.spec().user_blocks / u64::from(self.spec.blocks);
        if starts == 0 {
            let what = "a request has more blocks than the drive";
            return Err(Error::InvalidInput(what.into()));
        }
        let mut run = HostRun::default();
        for number in 0..requests {
            let Some(Reverse(now_ns)) = self.slots.pop() else { break };
            let place = match self.spec.order {
                Order::Uniform => self.random.random_range(0..starts),
                Order::Sequential => self.next % starts,
            };
            self.next += 1;
            let lba = Lba(place * u64::from(self.spec.blocks));
            let percent = self.spec.read_percent;
            let is_read = percent > 0 && self.random.random_range(0..100) < percent;
            let (done_ns, latencies) = if is_read {
                (drive.read(now_ns, lba, self.spec.blocks)?.last_ns, &mut run.reads)
            } else {
                (drive.write(now_ns, lba, self.spec.blocks)?, &mut run.writes)
            };
            latencies.add(done_ns - now_ns);
            run.began_ns = if number == 0 { now_ns } else { run.began_ns };
            run.ended_ns = run.ended_ns.max(done_ns);
            self.slots.push(Reverse(done_ns));
        }
        Ok(run)
    }
}

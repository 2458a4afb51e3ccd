//! A host that keeps so many requests in flight: whichever is done first is followed by the next.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rand::RngExt;

use super::ftl::LogFtl;
use crate::{Error, Result};
use pumice_drive::base::Lba;
use pumice_drive::base::seed::{Random, random};

/// Which blocks come next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Uniform over the drive, aligned to the length of a request.
    Uniform,
    /// One behind the other, again from the first after the last.
    Sequential,
}

/// What a host asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostSpec {
    /// Requests in flight; 1 at least.
    pub depth: u32,
    /// Blocks of 4 KiB of a request; 1 at least.
    pub blocks: u32,
    /// Which blocks come next.
    pub order: Order,
    /// Of a hundred requests so many are reads, drawn at random; the others are writes.
    pub read_percent: u32,
    /// Of all that is drawn.
    pub seed: u64,
}

/// How long requests of a kind took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latencies {
    /// How many they were.
    pub count: u64,
    /// All together, in ns.
    pub sum_ns: u64,
    /// The longest, in ns.
    pub max_ns: u64,
}

/// What came of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostRun {
    /// When the first request was made.
    pub began_ns: u64,
    /// When the last was done.
    pub ended_ns: u64,
    /// Of reads.
    pub reads: Latencies,
    /// Of writes, until they were acknowledged.
    pub writes: Latencies,
}

/// A host; it goes on where its last run ended.
#[derive(Clone, Debug)]
pub struct Host {
    spec: HostSpec,
    random: Random,
    /// When each slot is free.
    slots: BinaryHeap<Reverse<u64>>,
    next: u64,
}

impl Latencies {
    /// On average, in ns; 0 of none.
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
    /// A host that begins at `now_ns`.
    ///
    /// # Errors
    /// `InvalidInput` for no requests, requests of nothing, and more than 100 %.
    pub fn new(spec: HostSpec, now_ns: u64) -> Result<Self> {
        if spec.depth == 0 || spec.blocks == 0 || spec.read_percent > 100 {
            let what = "a host has a depth and blocks from 1, and 0 to 100 % of reads";
            return Err(Error::InvalidInput(what.into()));
        }
        let slots = (0..spec.depth).map(|_| Reverse(now_ns)).collect();
        Ok(Self { spec, random: random(spec.seed), slots, next: 0 })
    }

    /// Makes so many requests.
    ///
    /// # Errors
    /// Those of the drive, and `InvalidInput` if it is smaller than a request.
    pub fn run(&mut self, drive: &mut LogFtl, requests: u64) -> Result<HostRun> {
        let places = drive.spec().user_blocks / u64::from(self.spec.blocks);
        if places == 0 {
            let what = "a request has more blocks than the drive";
            return Err(Error::InvalidInput(what.into()));
        }
        let mut run = HostRun::default();
        for number in 0..requests {
            let Some(Reverse(now_ns)) = self.slots.pop() else { break };
            let place = match self.spec.order {
                Order::Uniform => self.random.random_range(0..places),
                Order::Sequential => self.next % places,
            };
            self.next += 1;
            let lba = Lba(place * u64::from(self.spec.blocks));
            let percent = self.spec.read_percent;
            let is_read = percent > 0 && self.random.random_range(0..100) < percent;
            let (done_ns, latencies) = match is_read {
                true => (drive.read(now_ns, lba, self.spec.blocks)?, &mut run.reads),
                false => (drive.write(now_ns, lba, self.spec.blocks)?, &mut run.writes),
            };
            latencies.add(done_ns - now_ns);
            run.began_ns = if number == 0 { now_ns } else { run.began_ns };
            run.ended_ns = run.ended_ns.max(done_ns);
            self.slots.push(Reverse(done_ns));
        }
        Ok(run)
    }
}

//! A full drive at the limit of its space, for any duration: every block is written with
//! incompressible data, then overwritten in bursts by hosts of four kinds, with flushes, trims that
//! are overwritten immediately, and checkpoints, in virtual time.
//!
//! ```text
//! hosts:  uniform | four of five to a fifth | sequential, 64 KiB | uniform, with trims
//!         a burst at full speed, then a pause; each host has blocks of its own, all over the disk
//! ```
//!
//! The promises: no request is refused, none waits for a minute, every block reads as it was last
//! written, and finally the drive opens again without a problem. There are no failures and no
//! crashes here: worlds have those.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use rand::{Rng, RngExt};

use super::latencies::Latencies;
use pumice_drive::base::seed::{Random, random};
use pumice_drive::base::units::BLOCK_BYTES;
use pumice_drive::base::wait::WaitQueue;
use pumice_drive::base::{Clock, Error, ErrorKind, Result};
use pumice_drive::controller::{Depth, Drive, OpenOptions, Spec, check, create};
use pumice_drive::media::layer::{Fault, FaultPlan};
use pumice_drive::media::mem::MemMedium;
use pumice_drive::runtime::Runtime;
use pumice_nbd::Disk;
use pumice_nbd::Durability::{Durable, Volatile};

type Layers = Fault<MemMedium, Runtime>;
/// Latencies of the medium in nanoseconds: from a small read of an SSD to a large write of a busy
/// one.
const LATENCY_NS: std::ops::RangeInclusive<u64> = 80_000..=2_000_000;

/// A request that takes a minute counts as waiting forever.
const PATIENCE_NS: u64 = 60_000_000_000;

const HOSTS: u64 = 4;

/// Adjacent blocks of one host: 64 KiB.
const STRIPE: u64 = 16;

/// Pool of noise that blocks are cut from, in blocks.
const POOL_BLOCKS: u64 = 1024;

/// Parameters of a run.
#[derive(Clone, Copy, Debug)]
pub struct FullPlan {
    /// Seed of all random choices.
    pub seed: u64,
    /// Size of the disk in bytes: a multiple of 256 KiB.
    pub size_bytes: u64,
    /// Capacity in bytes, in segments of 4 MiB; `None` for the default of a full drive.
    pub capacity_bytes: Option<u64>,
    /// Duration in nanoseconds of virtual time.
    pub time_ns: u64,
    /// Bytes that each of the four hosts writes per burst.
    pub burst_bytes: u64,
    /// Pause after a burst, in nanoseconds.
    pub rest_ns: u64,
    /// Options for opening the drive.
    pub options: OpenOptions,
}

/// Result of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct FullReport {
    /// Virtual time in nanoseconds, without the time to fill the disk.
    pub time_ns: u64,
    /// Bytes written by the hosts in that time.
    pub host_bytes: u64,
    /// Bytes appended to the medium.
    pub media_bytes: u64,
    /// Host writes.
    pub writes: u64,
    /// Host flushes.
    pub flushes: u64,
    /// Host trims.
    pub trims: u64,
    /// Segments that garbage collection emptied.
    pub victims: u64,
    /// Checkpoints.
    pub checkpoints: u64,
    /// Share of the disk's blocks in use at the end, in percent.
    pub mapped_percent: u64,
    /// Longest latency of a write, in nanoseconds.
    pub write_ns_max: u64,
    /// 99.9th percentile of the write latency, in nanoseconds.
    pub write_ns_p999: u64,
    /// Longest latency of a flush, in nanoseconds.
    pub flush_ns_max: u64,
}

/// The state that all hosts share.
struct Shared {
    drive: Rc<Drive>,
    runtime: Runtime,
    plan: FullPlan,
    pool: Vec<u8>,
    /// For each block, the number of the write that it holds.
    numbers: RefCell<Vec<u64>>,
    written: Cell<u64>,
    /// Latency of each write in microseconds.
    writes: Latencies,
    flush_ns_max: Cell<u64>,
    left: Cell<u64>,
    ended: WaitQueue,
    failure: RefCell<Option<Error>>,
}

/// Fills a drive, overwrites it for the planned time, and checks it.
///
/// # Errors
/// The first request that failed or waited for a minute; `Corrupt` for a wrong block or a problem
/// that `check` found.
pub fn run_full(plan: FullPlan) -> Result<FullReport> {
    let runtime = Runtime::simulated();
    let uuid = uuid::Uuid::from_u64_pair(plan.seed, 0xf011);
    let capacity_bytes = plan.capacity_bytes;
    let spec = Spec { segment_bytes: 4 << 20, capacity_bytes, ..Spec::new(uuid, plan.size_bytes) };
    let memory = MemMedium::new(spec.geometry()?.medium_bytes());
    runtime.block_on(create(&memory, &spec))?;
    let shared = begin(&plan, &memory, &runtime)?;
    let result = overwrite(&shared);
    runtime.drop_tasks();
    let numbers = shared.numbers.take();
    drop(shared);
    let report = result?;
    let report_of_check = runtime.block_on(check(&memory, Depth::Full, &mut |_| ()))?;
    if report_of_check.problem_count > 0 {
        return Err(corrupt(format!("the closed drive: {:?}", report_of_check.problems)));
    }
    let again = begin(&plan, &memory, &runtime)?;
    again.numbers.replace(numbers);
    let compared = runtime.block_on(again.compare());
    runtime.drop_tasks();
    compared.map(|()| report)
}

/// Creates and opens the drive.
fn begin(plan: &FullPlan, memory: &MemMedium, runtime: &Runtime) -> Result<Rc<Shared>> {
    let faults = FaultPlan { latency_ns: LATENCY_NS, ..FaultPlan::default() };
    let layers = Layers::new(memory.clone(), runtime.clone(), plan.seed, faults);
    let opening = Drive::open(Rc::new(layers), runtime.clock(), plan.options);
    let drive = runtime.block_on(opening)?;
    let mut pool = vec![0; POOL_BLOCKS as usize * BLOCK_BYTES];
    random(plan.seed).fill_bytes(&mut pool);
    let blocks = (plan.size_bytes / BLOCK_BYTES as u64) as usize;
    Ok(Rc::new(Shared {
        drive,
        runtime: runtime.clone(),
        plan: *plan,
        pool,
        numbers: RefCell::new(vec![0; blocks]),
        written: Cell::new(0),
        writes: Latencies::default(),
        flush_ns_max: Cell::new(0),
        left: Cell::new(0),
        ended: WaitQueue::default(),
        failure: RefCell::default(),
    }))
}

fn overwrite(shared: &Rc<Shared>) -> Result<FullReport> {
    let runtime = &shared.runtime;
    runtime.block_on(shared.fill())?;
    let before = shared.drive.info();
    let begun_ns = runtime.now_ns();
    shared.writes.clear();
    shared.left.set(HOSTS);
    for number in 0..HOSTS {
        let seed = shared.plan.seed.wrapping_mul(HOSTS).wrapping_add(number + 1);
        let end_ns = begun_ns + shared.plan.time_ns;
        let host = Host { shared: shared.clone(), number, end_ns, random: random(seed), next: 0 };
        runtime.spawn(host.run());
    }
    let ended = || (shared.left.get() == 0).then_some(());
    runtime.block_on(shared.ended.wait_for(ended));
    if let Some(error) = shared.failure.take() {
        return Err(error);
    }
    runtime.block_on(shared.compare())?;
    let time_ns = runtime.now_ns() - begun_ns;
    let after = shared.drive.info();
    runtime.block_on(shared.drive.close())?;
    let longest = shared.writes.take();
    let (now, then) = (&after.operations, &before.operations);
    Ok(FullReport {
        time_ns,
        host_bytes: after.host_bytes - before.host_bytes,
        media_bytes: after.media_bytes - before.media_bytes,
        writes: now.writes - then.writes,
        flushes: now.flushes - then.flushes,
        trims: now.trims - then.trims,
        victims: now.gc_victims - then.gc_victims,
        checkpoints: now.checkpoints - then.checkpoints,
        mapped_percent: after.mapped_bytes * 100 / shared.plan.size_bytes,
        write_ns_max: longest.max_ns,
        write_ns_p999: longest.p999_ns,
        flush_ns_max: shared.flush_ns_max.get(),
    })
}

impl Shared {
    /// Returns the content of block `lba` after write `number`.
    fn block(&self, lba: u64, number: u64) -> Vec<u8> {
        let at = (lba.wrapping_mul(31).wrapping_add(number) % POOL_BLOCKS) as usize * BLOCK_BYTES;
        let mut block = self.pool[at..at + BLOCK_BYTES].to_vec();
        block[..8].copy_from_slice(&lba.to_le_bytes());
        block[8..16].copy_from_slice(&number.to_le_bytes());
        block
    }

    async fn within<T>(&self, request: impl Future<Output = Result<T>>) -> Result<T> {
        let waited = self.runtime.timeout(PATIENCE_NS, request).await;
        waited.unwrap_or_else(|| {
            Err(Error::new(
                ErrorKind::Busy,
                "a request did not complete within a minute on a full drive",
            ))
        })
    }

    async fn write(&self, lba: u64, count: u64) -> Result<()> {
        let number = self.written.get() + 1;
        self.written.set(number);
        let data: Vec<u8> = (lba..lba + count).flat_map(|lba| self.block(lba, number)).collect();
        let begun_ns = self.runtime.now_ns();
        self.within(self.drive.write(lba * BLOCK_BYTES as u64, &data)).await?;
        self.numbers.borrow_mut()[lba as usize..][..count as usize].fill(number);
        self.writes.add(self.runtime.now_ns() - begun_ns);
        Ok(())
    }

    async fn fill(&self) -> Result<()> {
        let blocks = self.numbers.borrow().len() as u64;
        for lba in (0..blocks).step_by(STRIPE as usize) {
            self.write(lba, STRIPE.min(blocks - lba)).await?;
        }
        self.within(self.drive.flush()).await
    }

    /// Reads the whole disk and compares it with the data written.
    async fn compare(&self) -> Result<()> {
        let mut out = vec![0; STRIPE as usize * BLOCK_BYTES];
        let blocks = self.numbers.borrow().len() as u64;
        for start in (0..blocks).step_by(STRIPE as usize) {
            self.within(self.drive.read(start * BLOCK_BYTES as u64, &mut out)).await?;
            for (lba, found) in (start..blocks).zip(out.chunks(BLOCK_BYTES)) {
                let number = self.numbers.borrow()[lba as usize];
                if found != self.block(lba, number) {
                    return Err(corrupt(format!("LBA {lba} does not hold write {number}")));
                }
            }
        }
        Ok(())
    }
}

/// One host, which owns every fourth stripe of the disk.
struct Host {
    shared: Rc<Shared>,
    number: u64,
    end_ns: u64,
    random: Random,
    /// Next stripe of the sequential host.
    next: u64,
}

impl Host {
    async fn run(mut self) {
        let shared = self.shared.clone();
        while shared.runtime.now_ns() < self.end_ns && shared.failure.borrow().is_none() {
            if let Err(error) = self.burst().await {
                shared.failure.borrow_mut().get_or_insert(error);
            }
            shared.runtime.sleep_ns(shared.plan.rest_ns).await;
        }
        shared.left.set(shared.left.get() - 1);
        shared.ended.wake_all();
    }

    async fn burst(&mut self) -> Result<()> {
        let mut written = 0;
        while written < self.shared.plan.burst_bytes {
            let (lba, count) = self.draw();
            if self.number == 3 && self.random.random_range(0..16) == 0 {
                let (offset, len) = (lba * BLOCK_BYTES as u64, count * BLOCK_BYTES as u64);
                let is_durable = self.random.random_range(0..4) == 0;
                let durability = if is_durable { Durable } else { Volatile };
                let trim = Disk::trim(&*self.shared.drive, offset, len, durability);
                self.shared.within(trim).await?;
            }
            self.shared.write(lba, count).await?;
            written += count * BLOCK_BYTES as u64;
            if self.random.random_range(0..64) == 0 {
                let begun_ns = self.shared.runtime.now_ns();
                self.shared.within(self.shared.drive.flush()).await?;
                let ns = self.shared.runtime.now_ns() - begun_ns;
                self.shared.flush_ns_max.set(self.shared.flush_ns_max.get().max(ns));
            }
        }
        Ok(())
    }

    /// Returns the next blocks to write, all in one stripe.
    fn draw(&mut self) -> (u64, u64) {
        let stripes = self.shared.numbers.borrow().len() as u64 / STRIPE / HOSTS;
        let random = &mut self.random;
        let (stripe, block, count) = match self.number {
            1 if random.random_range(0..5) < 4 => {
                (random.random_range(0..stripes.div_ceil(5)), random.random_range(0..STRIPE), 1)
            }
            2 => {
                self.next = (self.next + 1) % stripes;
                (self.next, 0, STRIPE)
            }
            _ => (random.random_range(0..stripes), random.random_range(0..STRIPE), 1),
        };
        ((stripe * HOSTS + self.number) * STRIPE + block, count)
    }
}

fn corrupt(what: String) -> Error {
    Error::new(ErrorKind::Corrupt, what)
}

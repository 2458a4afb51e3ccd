//! Old age: a thin drive that holds as much as it is asked to is overwritten as a database does,
//! for many times what it holds, in virtual time.
//!
//! ```text
//! hosts:  pages of 4 to 16 KiB, four of five in the hot fifth; now and then 1 MiB in order
//! data:   pages that compress to about a half, more or less; some all but empty, some alike
//! ```
//!
//! The disk is written in order first, in large frames, of which overwriting leaves parts: cold,
//! partly dead frames beside hot ones are what old drives hold. Refused writes are counted; every
//! block must read as it was last written. Crashes are left to worlds, trims to `full`.

use std::cell::{Cell, RefCell};
use std::ops::RangeInclusive;
use std::rc::Rc;

use rand::{Rng, RngExt};

use super::latencies::Latencies;
use pumice_drive::base::seed::{Random, random};
use pumice_drive::base::units::BLOCK_BYTES;
use pumice_drive::base::wait::WaitQueue;
use pumice_drive::base::{Clock, Error, ErrorKind, Result};
use pumice_drive::controller::{Depth, Drive, Info, OpenOptions, Spec, check, create};
use pumice_drive::media::layer::{Fault, FaultPlan};
use pumice_drive::media::mem::MemMedium;
use pumice_drive::runtime::Runtime;

type Layers = Fault<MemMedium, Runtime>;
type AgeingDrive = Drive<Layers, Runtime>;

const BLOCK: u64 = BLOCK_BYTES as u64;

const HOSTS: u64 = 4;

/// Adjacent blocks that are hot or cold together, and of one host.
const EXTENT_BLOCKS: u64 = 256;

/// One extent in this many is hot.
const HOT_DIVISOR: u64 = 5;

/// A request that takes a minute counts as waiting forever.
const PATIENCE_NS: u64 = 60_000_000_000;

/// Bytes of noise that pages are cut from.
const POOL_BYTES: usize = 4 << 20;

/// Parameters of a run.
#[derive(Clone, Debug)]
pub struct AgeingPlan {
    /// Seed of all random choices.
    pub seed: u64,
    /// Capacity of the drive in bytes. Its disk is three times as large.
    pub capacity_bytes: u64,
    /// Bytes of a segment.
    pub segment_bytes: u32,
    /// The disk is filled until this share of the space for data is in use, in per cent.
    pub used_percent: f64,
    /// How many times what it holds then is overwritten.
    pub times: u64,
    /// Latencies of the medium in nanoseconds.
    pub latency_ns: RangeInclusive<u64>,
    /// Time between two writes of a host, in nanoseconds.
    pub pause_ns: u64,
    /// Options for opening the drive.
    pub options: OpenOptions,
}

/// Result of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct AgeingReport {
    /// Virtual time in nanoseconds, without the time to fill the disk.
    pub time_ns: u64,
    /// Bytes of the disk that are in use.
    pub mapped_bytes: u64,
    /// Live record bytes for each byte of that.
    pub stored_fraction: f64,
    /// Share of the space for data in use after filling, in per cent.
    pub used_percent_filled: f64,
    /// The most after that.
    pub used_percent_max: f64,
    /// Bytes written by the hosts while the drive aged.
    pub host_bytes: u64,
    /// Bytes appended to the medium, and of these bytes of frames that were moved.
    pub media_bytes: u64,
    /// Bytes of frames that garbage collection moved.
    pub moved_bytes: u64,
    /// Writes that were refused for lack of space.
    pub refused: u64,
    /// Segments that garbage collection emptied.
    pub victims: u64,
    /// Checkpoints.
    pub checkpoints: u64,
    /// Longest latency of a write, in nanoseconds; writes that were refused do not count.
    pub write_ns_max: u64,
    /// 99.9th percentile of these latencies.
    pub write_ns_p999: u64,
    /// Longest latency of a flush, in nanoseconds.
    pub flush_ns_max: u64,
    /// Most bytes of memory that the drive reported in the first third of the writes.
    pub memory_bytes_early: u64,
    /// The same in the last third.
    pub memory_bytes_late: u64,
}

/// The state that all hosts share.
struct Shared {
    drive: Rc<AgeingDrive>,
    runtime: Runtime,
    plan: AgeingPlan,
    pool: Vec<u8>,
    /// For each block, the number of the write that it holds; 0 for none.
    numbers: RefCell<Vec<u32>>,
    /// Blocks in use, from the first on.
    blocks: Cell<u64>,
    written: Cell<u32>,
    written_blocks: Cell<u64>,
    writes: Latencies,
    flush_ns_max: Cell<u64>,
    refused: Cell<u64>,
    used_percent_max: Cell<f64>,
    memory_bytes: Cell<(u64, u64)>,
    left: Cell<u64>,
    ended: WaitQueue,
    failure: RefCell<Option<Error>>,
}

/// Fills a drive to the planned share, overwrites it, and checks it.
///
/// # Errors
/// The first request that failed otherwise than for space, or that waited for a minute; `Corrupt`
/// for a wrong block or a problem that `check` found.
pub fn run_ageing(plan: &AgeingPlan) -> Result<AgeingReport> {
    let runtime = Runtime::simulated();
    let uuid = uuid::Uuid::from_u64_pair(plan.seed, 0xa9e);
    let spec = Spec {
        segment_bytes: plan.segment_bytes,
        capacity_bytes: Some(plan.capacity_bytes),
        ..Spec::new(uuid, 3 * plan.capacity_bytes)
    };
    let memory = MemMedium::new(spec.geometry()?.medium_bytes());
    runtime.block_on(create(&memory, &spec))?;
    let shared = begin(plan, &memory, &runtime)?;
    let result = age(&shared);
    runtime.drop_tasks();
    drop(shared);
    let report = result?;
    let checked = runtime.block_on(check(&memory, Depth::Full, &mut |_| ()))?;
    if checked.problem_count > 0 {
        return Err(corrupt(format!("the closed drive: {:?}", checked.problems)));
    }
    Ok(report)
}

fn begin(plan: &AgeingPlan, memory: &MemMedium, runtime: &Runtime) -> Result<Rc<Shared>> {
    let faults = FaultPlan { latency_ns: plan.latency_ns.clone(), ..FaultPlan::default() };
    let layers = Layers::new(memory.clone(), runtime.clone(), plan.seed, faults);
    let drive = runtime.block_on(Drive::open(layers, runtime.clone(), plan.options))?;
    let mut pool = vec![0; POOL_BYTES];
    random(plan.seed).fill_bytes(&mut pool);
    Ok(Rc::new(Shared {
        drive,
        runtime: runtime.clone(),
        plan: plan.clone(),
        pool,
        numbers: RefCell::default(),
        blocks: Cell::default(),
        written: Cell::default(),
        written_blocks: Cell::default(),
        writes: Latencies::default(),
        flush_ns_max: Cell::default(),
        refused: Cell::default(),
        used_percent_max: Cell::default(),
        memory_bytes: Cell::default(),
        left: Cell::new(HOSTS),
        ended: WaitQueue::default(),
        failure: RefCell::default(),
    }))
}

fn age(shared: &Rc<Shared>) -> Result<AgeingReport> {
    let runtime = &shared.runtime;
    runtime.block_on(shared.fill())?;
    let before = shared.drive.info();
    let begun_ns = runtime.now_ns();
    shared.writes.clear();
    shared.written_blocks.set(0);
    for number in 0..HOSTS {
        let seed = shared.plan.seed.wrapping_mul(HOSTS).wrapping_add(number + 1);
        let host = Host { shared: shared.clone(), number, random: random(seed) };
        runtime.spawn(host.run());
    }
    let ended = || (shared.left.get() == 0).then_some(());
    runtime.block_on(shared.ended.wait_for(ended));
    if let Some(error) = shared.failure.take() {
        return Err(error);
    }
    let time_ns = runtime.now_ns() - begun_ns;
    runtime.block_on(shared.compare())?;
    let after = shared.drive.info();
    runtime.block_on(shared.drive.close())?;
    Ok(shared.report(time_ns, &before, &after))
}

impl Shared {
    fn report(&self, time_ns: u64, before: &Info, after: &Info) -> AgeingReport {
        let longest = self.writes.take();
        let (memory_bytes_early, memory_bytes_late) = self.memory_bytes.get();
        let (now, then) = (&after.operations, &before.operations);
        AgeingReport {
            time_ns,
            mapped_bytes: after.mapped_bytes,
            stored_fraction: after.live_bytes as f64 / after.mapped_bytes.max(1) as f64,
            used_percent_filled: before.used_percent,
            used_percent_max: self.used_percent_max.get(),
            host_bytes: after.host_bytes - before.host_bytes,
            media_bytes: after.media_bytes - before.media_bytes,
            moved_bytes: after.moved_bytes - before.moved_bytes,
            refused: self.refused.get(),
            victims: now.gc_victims - then.gc_victims,
            checkpoints: now.checkpoints - then.checkpoints,
            write_ns_max: longest.max_ns,
            write_ns_p999: longest.p999_ns,
            flush_ns_max: self.flush_ns_max.get(),
            memory_bytes_early,
            memory_bytes_late,
        }
    }

    /// Appends block `lba` after write `number`: a share of noise that depends on the block, the
    /// rest words.
    fn block(&self, lba: u64, number: u32, out: &mut Vec<u8>) {
        let hash = (lba / 2).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let noise_bytes = match hash % 32 {
            0 => 0,
            1 => BLOCK_BYTES,
            class => 1000 + class as usize * 64,
        };
        let is_alike = hash % 32 == 2;
        let from = if is_alike { 0 } else { lba.wrapping_mul(8191) + u64::from(number) * 4099 };
        let from = from as usize % (POOL_BYTES - BLOCK_BYTES);
        let begin = out.len();
        out.extend(self.pool.iter().skip(from).take(noise_bytes));
        out.extend(b"pumice  ".iter().cycle().take(BLOCK_BYTES - noise_bytes));
        if let Some(stamp) = out.get_mut(begin..begin + 16) {
            stamp[..8].copy_from_slice(&lba.to_le_bytes());
            stamp[8..].copy_from_slice(&u64::from(number).to_le_bytes());
        }
    }

    async fn within<T>(&self, request: impl Future<Output = Result<T>>) -> Result<T> {
        let waited = self.runtime.timeout(PATIENCE_NS, request).await;
        let late = "a request of an old drive did not complete within a minute";
        waited.unwrap_or_else(|| Err(Error::new(ErrorKind::Busy, late)))
    }

    async fn write(&self, lba: u64, count: u64) -> Result<()> {
        let number = self.written.get() + 1;
        self.written.set(number);
        let mut data = Vec::with_capacity(count as usize * BLOCK_BYTES);
        (lba..lba + count).for_each(|lba| self.block(lba, number, &mut data));
        let begun_ns = self.runtime.now_ns();
        match self.within(self.drive.write(lba * BLOCK, &data, false)).await {
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                self.refused.set(self.refused.get() + 1);
                return Ok(());
            }
            result => result?,
        }
        self.writes.add(self.runtime.now_ns() - begun_ns);
        let mut numbers = self.numbers.borrow_mut();
        let written = numbers.iter_mut().skip(lba as usize).take(count as usize);
        written.for_each(|block| *block = number);
        self.written_blocks.set(self.written_blocks.get() + count);
        Ok(())
    }

    /// Writes the disk in order until as much is in use as planned.
    async fn fill(&self) -> Result<()> {
        let stripe = EXTENT_BLOCKS * HOSTS * HOT_DIVISOR;
        while self.drive.info().used_percent < self.plan.used_percent {
            let blocks = self.blocks.get();
            self.numbers.borrow_mut().resize((blocks + stripe) as usize, 0);
            for lba in (blocks..blocks + stripe).step_by(EXTENT_BLOCKS as usize) {
                self.write(lba, EXTENT_BLOCKS).await?;
            }
            self.blocks.set(blocks + stripe);
        }
        self.within(self.drive.flush()).await
    }

    /// Notes what the drive uses.
    fn note(&self) {
        let info = self.drive.info();
        let memory = &info.memory;
        let bytes = memory.map_bytes
            + memory.batch_bytes
            + memory.read_buffer_bytes
            + memory.frame_cache_bytes;
        let (first, last) = self.memory_bytes.get();
        let third = self.blocks.get() * self.plan.times / 3;
        let written = self.written_blocks.get();
        self.memory_bytes.set(match () {
            () if written < third => (first.max(bytes), last),
            () if written > 2 * third => (first, last.max(bytes)),
            () => (first, last),
        });
        self.used_percent_max.set(self.used_percent_max.get().max(info.used_percent));
    }

    /// Reads the whole disk and compares it with what was written.
    async fn compare(&self) -> Result<()> {
        let mut out = vec![0; EXTENT_BLOCKS as usize * BLOCK_BYTES];
        let mut expected = Vec::with_capacity(BLOCK_BYTES);
        for start in (0..self.blocks.get()).step_by(EXTENT_BLOCKS as usize) {
            self.within(self.drive.read(start * BLOCK, &mut out)).await?;
            for (lba, found) in (start..).zip(out.chunks(BLOCK_BYTES)) {
                let number = self.numbers.borrow().get(lba as usize).copied().unwrap_or(0);
                expected.clear();
                self.block(lba, number, &mut expected);
                if found != expected {
                    return Err(corrupt(format!("LBA {lba} is not what write {number} wrote")));
                }
            }
        }
        Ok(())
    }
}

/// One host, which owns every fourth extent of the disk.
struct Host {
    shared: Rc<Shared>,
    number: u64,
    random: Random,
}

impl Host {
    async fn run(mut self) {
        let shared = self.shared.clone();
        let blocks = shared.blocks.get() * shared.plan.times;
        let mut requests = 0_u64;
        while shared.written_blocks.get() < blocks && shared.failure.borrow().is_none() {
            if let Err(error) = self.request().await {
                shared.failure.borrow_mut().get_or_insert(error);
            }
            requests += 1;
            if requests.is_multiple_of(256) {
                shared.note();
            }
            // Without it, no other task would run until something waits.
            shared.runtime.sleep_ns(shared.plan.pause_ns).await;
        }
        shared.left.set(shared.left.get() - 1);
        shared.ended.wake_all();
    }

    async fn request(&mut self) -> Result<()> {
        let extents = self.shared.blocks.get() / EXTENT_BLOCKS;
        let own = extents / HOSTS;
        let extent = self.random.random_range(0..own);
        if self.random.random_range(0..2000) == 0 {
            return self.shared.write((extent * HOSTS + self.number) * EXTENT_BLOCKS, 256).await;
        }
        let extent = match self.random.random_range(0..5) {
            0 => extent,
            _ => extent / HOT_DIVISOR * HOT_DIVISOR,
        };
        let count = [1, 2, 2, 2, 4][self.random.random_range(0..5)];
        let page = self.random.random_range(0..EXTENT_BLOCKS / count) * count;
        let lba = (extent * HOSTS + self.number) * EXTENT_BLOCKS + page;
        self.shared.write(lba, count).await?;
        if self.random.random_range(0..32) == 0 {
            let begun_ns = self.shared.runtime.now_ns();
            self.shared.within(self.shared.drive.flush()).await?;
            let ns = self.shared.runtime.now_ns() - begun_ns;
            self.shared.flush_ns_max.set(self.shared.flush_ns_max.get().max(ns));
        }
        Ok(())
    }
}

fn corrupt(what: String) -> Error {
    Error::new(ErrorKind::Corrupt, what)
}

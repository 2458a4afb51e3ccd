//! Old age: a thin drive, filled to a chosen share of its space, is overwritten in the pattern of a
//! database for weeks of virtual time, many times its data.
//!
//! ```text
//! hosts:  pages of 4 to 16 KiB, four of five in the hot fifth; now and then 1 MiB in order
//! data:   pages that compress to about a half, more or less; some all but empty, some alike
//! time:   fill -> overwrite, add or trim rows of the disk until the wanted share is in use
//!         -> bursts at full speed, with idle hours between
//! ```
//!
//! The disk is first written in order, in large frames. Overwriting then leaves old drives with
//! cold, partly dead frames next to hot ones. Refused writes are counted; every block must read as
//! it was last written. Crashes are left to worlds, trims to `full`.
//!
//! The bytes written by the drive are compared with [`pumice_sim::formula`] for greedy garbage
//! collection under uniform writes:
//!
//! ```text
//! raw space   space occupied by the log, except headers, padding and parity
//! user space  live bytes, compressed
//! expected    (stored bytes * formula of raw over user space) / share of the log that is records
//! ```
//!
//! The raw space excludes free segments, whether reserved or reclaimed in idle hours. Hot data
//! causes less work than the formula predicts, if the drive separates it from cold data.

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
use pumice_sim::formula::write_amplification;

type Layers = Fault<MemMedium, Runtime>;
const BLOCK: u64 = BLOCK_BYTES as u64;

const HOSTS: u64 = 4;

/// Adjacent blocks that are hot or cold together, and of one host.
const EXTENT_BLOCKS: u64 = 256;

/// Unit in which the disk grows and shrinks: one extent per host.
const ROW_BLOCKS: u64 = EXTENT_BLOCKS * HOSTS;

/// Distance from the wanted share in use at which filling in order stops, in percent of the space:
/// small frames, and parts of large ones, take more.
const FILL_SHORT_PERCENT: f64 = 8.0;

/// One extent in this many is hot.
const HOT_DIVISOR: u64 = 5;

/// Maximum number of rounds that bring the share in use to the wanted one.
const ROUNDS_MAX: u32 = 60;

/// Divisor: this part of the blocks in use is overwritten in such a round.
const ROUND_DIVISOR: u64 = 4;

/// How close the share in use must come, in percent of the space.
const NEAR_PERCENT: f64 = 0.3;

/// Requests of a host between two samples of the space and memory in use.
const LOOK_REQUESTS: u64 = 64;

/// Number of samples over which the mean share in use is judged.
const LOOKS_MIN: u64 = 50;

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
    /// The share of the space for data that is in use while the drive ages, in percent.
    pub used_percent: f64,
    /// How many times the blocks in use are overwritten.
    pub times: u64,
    /// Whether four of five writes go to a fifth of the disk; otherwise writes are uniform.
    pub has_hot_data: bool,
    /// Number of bursts in which they are overwritten.
    pub bursts: u64,
    /// Virtual time between the beginnings of two bursts, in nanoseconds.
    pub burst_interval_ns: u64,
    /// Latencies of the medium in nanoseconds.
    pub latency_ns: RangeInclusive<u64>,
    /// Options for opening the drive.
    pub options: OpenOptions,
}

/// Result of a run. All fields cover the bursts and the time between them.
#[derive(Clone, Copy, Debug, Default)]
pub struct AgeingReport {
    /// Virtual time in nanoseconds.
    pub time_ns: u64,
    /// Bytes of the disk that are in use.
    pub mapped_bytes: u64,
    /// The share of the space for data in use during bursts.
    pub used: Used,
    /// Bytes written by the hosts.
    pub host_bytes: u64,
    /// Bytes of the record headers and payloads of those writes.
    pub frame_bytes: u64,
    /// Bytes appended to the medium.
    pub media_bytes: u64,
    /// Bytes of frames that garbage collection moved.
    pub moved_bytes: u64,
    /// `media_bytes` by the formula for uniform writes.
    pub media_bytes_by_formula: f64,
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

impl AgeingReport {
    /// Returns the bytes appended to the medium for each byte that the hosts wrote.
    pub fn write_amplification(&self) -> f64 {
        self.media_bytes as f64 / self.host_bytes.max(1) as f64
    }

    /// Returns the same by the formula.
    pub fn write_amplification_by_formula(&self) -> f64 {
        self.media_bytes_by_formula / self.host_bytes.max(1) as f64
    }
}

/// Observations of the space in use while hosts wrote.
#[derive(Clone, Copy, Debug, Default)]
pub struct Used {
    looks: u64,
    /// The least share in use, in percent.
    pub percent_min: f64,
    /// The greatest share in use, in percent.
    pub percent_max: f64,
    percent_sum: f64,
    occupied_sum: f64,
    live_sum: f64,
}

impl Used {
    fn look(&mut self, info: &Info) {
        let percent = info.used_percent;
        self.percent_min = if self.looks == 0 { percent } else { self.percent_min.min(percent) };
        self.percent_max = self.percent_max.max(percent);
        self.percent_sum += percent;
        self.occupied_sum += info.occupied_bytes as f64;
        self.live_sum += info.live_bytes as f64;
        self.looks += 1;
    }

    /// Returns the mean share in use, in percent.
    pub fn percent(&self) -> f64 {
        self.percent_sum / self.looks.max(1) as f64
    }

    /// Returns the bytes that the log occupied for each byte that was live.
    pub fn occupied_ratio(&self) -> f64 {
        self.occupied_sum / self.live_sum.max(1.0)
    }
}

/// The state that all hosts share.
struct Shared {
    drive: Rc<Drive>,
    runtime: Runtime,
    plan: AgeingPlan,
    pool: Vec<u8>,
    /// For each block, the number of the write that it holds; 0 for none.
    numbers: RefCell<Vec<u32>>,
    /// Number of blocks in use, from the start of the disk.
    blocks: Cell<u64>,
    written: Cell<u32>,
    written_blocks: Cell<u64>,
    writes: Latencies,
    flush_ns_max: Cell<u64>,
    refused: Cell<u64>,
    used: Cell<Used>,
    /// Observations since the last judgement by [`Shared::keep_share`].
    used_lately: Cell<Used>,
    memory_bytes: Cell<(u64, u64)>,
    /// The hosts write until this many blocks are written.
    target_blocks: Cell<u64>,
    left: Cell<u64>,
    ended: WaitQueue,
    failure: RefCell<Option<Error>>,
}

/// Fills a drive to the planned share, overwrites it, and checks it.
///
/// # Errors
/// The first request that failed for a reason other than lack of space, or waited for a minute;
/// `Corrupt` for a wrong block or a problem that `check` found.
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
    let drive = runtime.block_on(Drive::open(Rc::new(layers), runtime.clock(), plan.options))?;
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
        used: Cell::default(),
        used_lately: Cell::default(),
        memory_bytes: Cell::default(),
        target_blocks: Cell::default(),
        left: Cell::default(),
        ended: WaitQueue::default(),
        failure: RefCell::default(),
    }))
}

fn age(shared: &Rc<Shared>) -> Result<AgeingReport> {
    let runtime = &shared.runtime;
    let mut hosts: Vec<Host> = (0..HOSTS)
        .map(|number| {
            let seed = shared.plan.seed.wrapping_mul(HOSTS).wrapping_add(number + 1);
            Host { shared: shared.clone(), number, random: random(seed) }
        })
        .collect();
    runtime.block_on(shared.fill())?;
    settle(shared, &mut hosts)?;
    let before = shared.drive.info();
    shared.begin_measuring();
    let (begun_ns, plan) = (runtime.now_ns(), &shared.plan);
    for burst in 1..=plan.bursts {
        let blocks = shared.blocks.get() * plan.times;
        run_hosts(shared, &mut hosts, blocks * burst / plan.bursts)?;
        runtime.block_on(shared.keep_share())?;
        let next_ns = begun_ns + burst * plan.burst_interval_ns;
        runtime.block_on(runtime.sleep_ns(next_ns.saturating_sub(runtime.now_ns())));
    }
    let time_ns = runtime.now_ns() - begun_ns;
    let after = shared.drive.info();
    runtime.block_on(shared.compare())?;
    runtime.block_on(shared.drive.close())?;
    Ok(shared.report(time_ns, &before, &after))
}

/// Lets the hosts write until `target_blocks` were written in all.
fn run_hosts(shared: &Rc<Shared>, hosts: &mut Vec<Host>, target_blocks: u64) -> Result<()> {
    let runtime = &shared.runtime;
    shared.target_blocks.set(target_blocks);
    shared.left.set(HOSTS);
    let back = Rc::new(RefCell::new(Vec::new()));
    for host in hosts.drain(..) {
        let back = back.clone();
        runtime.spawn(async move {
            let host = host.run().await;
            let shared = host.shared.clone();
            back.borrow_mut().push(host);
            shared.left.set(shared.left.get() - 1);
            shared.ended.wake_all();
        });
    }
    let ended = || (shared.left.get() == 0).then_some(());
    runtime.block_on(shared.ended.wait_for(ended));
    hosts.append(&mut back.borrow_mut());
    shared.failure.take().map_or(Ok(()), Err)
}

/// Overwrites the disk, and lets it grow and shrink, until the wanted share is in use.
///
/// # Errors
/// `Busy` if the share does not settle there.
fn settle(shared: &Rc<Shared>, hosts: &mut Vec<Host>) -> Result<()> {
    let mut near = 0;
    for _ in 0..ROUNDS_MAX {
        let blocks = (shared.blocks.get() / ROUND_DIVISOR).max(1);
        run_hosts(shared, hosts, shared.written_blocks.get() + blocks)?;
        near = if shared.runtime.block_on(shared.keep_share())? { near + 1 } else { 0 };
        if near == 2 {
            return Ok(());
        }
    }
    Err(Error::new(ErrorKind::Busy, "the share in use does not reach its goal"))
}

impl Shared {
    fn begin_measuring(&self) {
        self.writes.clear();
        self.written_blocks.set(0);
        self.flush_ns_max.set(0);
        self.refused.set(0);
        self.used.take();
        self.used_lately.take();
        self.memory_bytes.take();
    }

    fn report(&self, time_ns: u64, before: &Info, after: &Info) -> AgeingReport {
        let longest = self.writes.take();
        let (memory_bytes_early, memory_bytes_late) = self.memory_bytes.get();
        let (now, then) = (&after.operations, &before.operations);
        let frame_bytes = after.frame_bytes - before.frame_bytes;
        let media_bytes = after.media_bytes - before.media_bytes;
        let moved_bytes = after.moved_bytes - before.moved_bytes;
        let records = (frame_bytes + moved_bytes) as f64 / media_bytes.max(1) as f64;
        let amplified = write_amplification(records * self.used.get().occupied_ratio());
        AgeingReport {
            time_ns,
            mapped_bytes: after.mapped_bytes,
            used: self.used.get(),
            host_bytes: after.host_bytes - before.host_bytes,
            frame_bytes,
            media_bytes,
            moved_bytes,
            media_bytes_by_formula: frame_bytes as f64 * amplified / records,
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

    /// Appends block `lba` after write `number`: a share of noise that depends on the block, and
    /// words for the rest.
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
        match self.within(self.drive.write(lba * BLOCK, &data)).await {
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

    /// Writes the disk in order until nearly the planned share is in use.
    async fn fill(&self) -> Result<()> {
        while self.drive.info().used_percent < self.plan.used_percent - FILL_SHORT_PERCENT {
            self.resize_by(1).await?;
        }
        self.within(self.drive.flush()).await
    }

    /// Lets the disk grow or shrink if the share in use since the last call was not the wanted one.
    /// Returns whether it was.
    async fn keep_share(&self) -> Result<bool> {
        let used = self.used_lately.get();
        if used.looks < LOOKS_MIN {
            return Ok(true);
        }
        self.used_lately.take();
        let missing = self.plan.used_percent - used.percent();
        let info = self.drive.info();
        let space = info.live_bytes as f64 / used.percent().max(1.0);
        let stored = info.live_bytes as f64 / info.mapped_bytes.max(1) as f64;
        let rows = (missing * space / (stored * (ROW_BLOCKS * BLOCK) as f64)).round() as i64;
        if missing.abs() <= NEAR_PERCENT || rows == 0 {
            return Ok(true);
        }
        self.resize_by(rows).await?;
        Ok(false)
    }

    /// Writes rows after the last one in order, or trims the last ones.
    async fn resize_by(&self, rows: i64) -> Result<()> {
        let blocks = self.blocks.get();
        if rows < 0 {
            let trimmed = (rows.unsigned_abs() * ROW_BLOCKS).min(blocks.saturating_sub(ROW_BLOCKS));
            let left = blocks - trimmed;
            self.within(self.drive.trim(left * BLOCK, trimmed * BLOCK)).await?;
            self.numbers.borrow_mut().truncate(left as usize);
            self.blocks.set(left);
            return Ok(());
        }
        let end = blocks + rows.unsigned_abs() * ROW_BLOCKS;
        self.numbers.borrow_mut().resize(end as usize, 0);
        for lba in (blocks..end).step_by(EXTENT_BLOCKS as usize) {
            self.write(lba, EXTENT_BLOCKS).await?;
        }
        self.blocks.set(end);
        Ok(())
    }

    /// Records the space and memory in use by the drive.
    fn look(&self) {
        let info = self.drive.info();
        let memory = &info.memory;
        let bytes = memory.map_bytes
            + memory.batch_bytes
            + memory.read_buffer_bytes
            + memory.frame_cache_bytes
            + memory.read_cache_bytes;
        let (first, last) = self.memory_bytes.get();
        let third = self.blocks.get() * self.plan.times / 3;
        let written = self.written_blocks.get();
        self.memory_bytes.set(match () {
            () if written < third => (first.max(bytes), last),
            () if written > 2 * third => (first, last.max(bytes)),
            () => (first, last),
        });
        for seen in [&self.used, &self.used_lately] {
            let mut used = seen.get();
            used.look(&info);
            seen.set(used);
        }
    }

    /// Reads the whole disk and compares it with the data written.
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
                    return Err(corrupt(format!("LBA {lba} does not hold write {number}")));
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
    /// Writes until all hosts together have written the target number of blocks.
    async fn run(mut self) -> Self {
        let shared = self.shared.clone();
        let is_over = || shared.written_blocks.get() >= shared.target_blocks.get();
        let mut requests = 0_u64;
        while !is_over() && shared.failure.borrow().is_none() {
            if let Err(error) = self.request().await {
                shared.failure.borrow_mut().get_or_insert(error);
            }
            requests += 1;
            if requests.is_multiple_of(LOOK_REQUESTS) {
                shared.look();
            }
            // Without this sleep, no other task would run until a request waits.
            shared.runtime.sleep_ns(0).await;
        }
        self
    }

    async fn request(&mut self) -> Result<()> {
        let extents = self.shared.blocks.get() / EXTENT_BLOCKS;
        let own = extents / HOSTS;
        let extent = self.random.random_range(0..own);
        if self.random.random_range(0..2000) == 0 {
            return self.shared.write((extent * HOSTS + self.number) * EXTENT_BLOCKS, 256).await;
        }
        let is_hot = self.shared.plan.has_hot_data && self.random.random_range(0..5) > 0;
        let extent = if is_hot { extent / HOT_DIVISOR * HOT_DIVISOR } else { extent };
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

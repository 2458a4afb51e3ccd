//! Carries a workload out on a target and measures it.
//!
//! ```text
//! thread 0 .. n: a runtime, the open target, `depth` tasks that each
//!    take the next step -> fill the buffer (writes) -> clock -> request -> clock -> record
//! ```
//!
//! The clock stands around the request alone: data is made before, and what that costs is reported
//! as its share of the thread's time, because on a fast target it bounds what can be measured. For
//! a request of 4 KiB: two readings of the clock (37 ns each), one entry of a histogram (9 ns), for
//! a write 95 ns of data at 50 %; no allocation; one system call for all requests of a turn.
//!
//! Asks nothing of the target but what a host asks; prints nothing.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::Barrier;
use std::sync::atomic::AtomicBool;

use serde::{Deserialize, Serialize};

use crate::bench::shutdown::{LOOK_NS, patiently};
use crate::bench::target::{
    Access, DriveTarget, FileTarget, Location, NbdTarget, SimTarget, StdioTarget, Target,
};
use crate::error::{Error, Result};
use crate::payload::{Payload, Stream};
use crate::stats::Latencies;
use crate::workload::pattern::{Request, Requests};
use crate::workload::{Flush, Workload};
use pumice_drive::base::wait::WaitQueue;
use pumice_drive::base::{AlignedBuffer, Clock};
use pumice_drive::runtime::{Backend, Runtime};
use pumice_sim::system::{System, SystemSpec};

/// Intervals of a run's course at most. Twice as many are joined in pairs: a run of any length
/// keeps between these and half of them.
const INTERVALS_MAX: usize = 240;
const INTERVAL_NS_MIN: u64 = 50_000_000;

/// One in so many fills is timed, of those so short that reading the clock would count.
const FILLS_TIMED: u64 = 16;

/// Bytes of a record from which on every fill is timed.
const FILL_TIMED_BYTES: u64 = 64 << 10;

/// A part of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interval {
    /// Requests that ended in it.
    pub operations: u64,
    /// Their latencies together, and the longest.
    pub latency_ns_sum: u64,
    /// See `latency_ns_sum`.
    pub latency_ns_max: u64,
}

/// What a run gave.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Seconds from the first request to the last reply, with the flush if that is timed.
    pub seconds: f64,
    /// Seconds of the flush at the end, counted or not.
    pub flush_seconds: f64,
    /// Requests that ended; a copy is one.
    pub operations: u64,
    /// Bytes that the host read, wrote or trimmed; a copy counts what it wrote.
    pub host_bytes: u64,
    /// Bytes of it that the host wrote.
    pub written_bytes: u64,
    /// Latency of each request in ns.
    pub latency: Latencies,
    /// Nanoseconds of each interval, and the intervals from the start.
    pub interval_ns: u64,
    /// See `interval_ns`.
    pub intervals: Vec<Interval>,
    /// Share of the threads' time that went into making data, 0 to 1.
    pub generation_share: f64,
}

/// What a run is made of, besides the target.
#[derive(Clone)]
pub struct RunSpec {
    /// What is done.
    pub workload: Workload,
    /// What is written.
    pub payload: Payload,
    /// Number of the payload's first stream; each thread takes one, and no other run may have the
    /// same, or it writes the same data again.
    pub stream: u64,
    /// Other seeds draw other addresses.
    pub seed: u64,
}

/// Whether a workload can be carried out on a target, as far as that is known without opening it.
///
/// # Errors
/// `InvalidInput`: those of [`Workload::check`]; several threads on a drive in this process, which
/// has one; buffered operations on anything but a file, or around the page cache.
pub fn check(location: &Location, access: Access, workload: &Workload) -> Result<()> {
    let wrong = |what: String| Err(Error::invalid(what));
    workload.check()?;
    if workload.threads > 1 && matches!(location, Location::Drive(_) | Location::Sim(_)) {
        let what = "a drive in this process has one thread: give more depth instead of --threads";
        return wrong(what.into());
    }
    let name = workload.operation.name();
    if workload.operation.is_stdio() && !location.is_made() {
        return wrong(format!("{name} needs a file: {location} is none"));
    }
    if workload.operation.is_stdio() && access.direct {
        return wrong(format!("{name} goes through the page cache: leave --direct out"));
    }
    Ok(())
}

/// Carries `run` out. When `stop` is set it ends early, and soon even if the target does not answer
/// any more; what it gives then is no measurement.
///
/// # Errors
/// Those of [`check`]; the target's first.
pub fn measure(
    location: &Location,
    access: Access,
    run: &RunSpec,
    stop: &AtomicBool,
) -> Result<Sample> {
    check(location, access, &run.workload)?;
    let threads = run.workload.threads;
    if threads == 1 {
        return thread(location, access, run, 0, &Barrier::new(1), stop);
    }
    let barrier = Barrier::new(threads as usize);
    let samples = std::thread::scope(|scope| {
        let spawned: Vec<_> = (0..threads)
            .map(|number| {
                let barrier = &barrier;
                scope.spawn(move || thread(location, access, run, number, barrier, stop))
            })
            .collect();
        let joined = spawned.into_iter().map(|one| one.join().expect("a bench thread panicked"));
        joined.collect::<Vec<_>>()
    });
    let mut all: Option<Sample> = None;
    for sample in samples {
        let sample = sample?;
        match &mut all {
            None => all = Some(sample),
            Some(all) => all.join(&sample, threads),
        }
    }
    Ok(all.expect("there is a thread"))
}

/// Carries `run` out on a simulated drive, in its time.
///
/// # Errors
/// Those of [`check`]; the drive's first.
pub fn simulate(sim: &Rc<System>, run: &RunSpec, stop: &AtomicBool) -> Result<Sample> {
    on_target(sim.runtime(), SimTarget(Rc::clone(sim)), run, 0, stop)
}

/// One thread's part. `barrier` is passed once by every thread, whatever happens before it.
fn thread(
    location: &Location,
    access: Access,
    run: &RunSpec,
    number: u32,
    barrier: &Barrier,
    stop: &AtomicBool,
) -> Result<Sample> {
    let runtime = Runtime::new(Backend::Auto);
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            barrier.wait();
            return Err(error.into());
        }
    };
    let result = match location {
        Location::Drive(path) => {
            let opened = runtime.block_on(DriveTarget::open(&runtime, path));
            barrier.wait();
            opened.and_then(|target| on_target(&runtime, target, run, number, stop))
        }
        Location::Sim(profile) => {
            barrier.wait();
            let sim = System::new(SystemSpec::find(profile)?)?;
            simulate(&Rc::new(sim), run, stop)
        }
        Location::Nbd(uri) => {
            let opened = runtime.block_on(NbdTarget::open(&runtime, uri));
            barrier.wait();
            opened.and_then(|target| on_target(&runtime, target, run, number, stop))
        }
        _ if run.workload.operation.is_stdio() => {
            let opened = StdioTarget::open(location);
            barrier.wait();
            opened.and_then(|target| on_target(&runtime, target, run, number, stop))
        }
        Location::File(_) | Location::Folder(_) | Location::Device(_) => {
            let opened = FileTarget::open(&runtime, location, access);
            barrier.wait();
            opened.and_then(|target| on_target(&runtime, target, run, number, stop))
        }
    };
    runtime.drop_tasks();
    result
}

fn on_target<T: Target + 'static>(
    runtime: &Runtime,
    target: T,
    run: &RunSpec,
    number: u32,
    stop: &AtomicBool,
) -> Result<Sample> {
    let load = Rc::new(Load::new(runtime, target, run, number));
    runtime.block_on(load.go(stop))
}

/// What the tasks of one thread share.
struct Load<T> {
    runtime: Runtime,
    target: T,
    workload: Workload,
    requests: RefCell<Requests>,
    stream: RefCell<Stream>,
    deadline_ns: Cell<u64>,
    start_ns: Cell<u64>,
    last_ns: Cell<u64>,
    /// When a task next lets others go first.
    pause_ns: Cell<u64>,
    working: Cell<u32>,
    ended: WaitQueue,
    error: RefCell<Option<Error>>,
    record: RefCell<Record>,
    fills: Cell<u64>,
    fill_ns: Cell<u64>,
}

/// What is noted of every request.
struct Record {
    latency: Latencies,
    interval_ns: u64,
    intervals: Vec<Interval>,
    written_bytes: u64,
    host_bytes: u64,
}

impl Record {
    fn new() -> Self {
        Self {
            latency: Latencies::new(),
            interval_ns: INTERVAL_NS_MIN,
            intervals: Vec::with_capacity(INTERVALS_MAX),
            written_bytes: 0,
            host_bytes: 0,
        }
    }

    /// A request that ended `since_ns` after the run's start and took `latency_ns`.
    fn add(&mut self, since_ns: u64, latency_ns: u64) {
        self.latency.record(latency_ns.max(1));
        let mut index = (since_ns / self.interval_ns) as usize;
        while index >= INTERVALS_MAX {
            self.intervals = joined(&self.intervals);
            self.interval_ns *= 2;
            index /= 2;
        }
        if self.intervals.len() <= index {
            self.intervals.resize(index + 1, Interval::default());
        }
        let interval = &mut self.intervals[index];
        interval.operations += 1;
        interval.latency_ns_sum += latency_ns;
        interval.latency_ns_max = interval.latency_ns_max.max(latency_ns);
    }
}

/// Neighbours as one.
fn joined(intervals: &[Interval]) -> Vec<Interval> {
    let pairs = intervals.chunks(2).map(|pair| pair.iter().copied().fold(Interval::default(), sum));
    pairs.collect()
}

fn sum(one: Interval, other: Interval) -> Interval {
    Interval {
        operations: one.operations + other.operations,
        latency_ns_sum: one.latency_ns_sum + other.latency_ns_sum,
        latency_ns_max: one.latency_ns_max.max(other.latency_ns_max),
    }
}

impl<T: Target + 'static> Load<T> {
    fn new(runtime: &Runtime, target: T, run: &RunSpec, number: u32) -> Self {
        Self {
            runtime: runtime.clone(),
            target,
            workload: run.workload.clone(),
            requests: RefCell::new(Requests::new(&run.workload, number, run.seed)),
            stream: RefCell::new(run.payload.stream(run.stream + u64::from(number))),
            deadline_ns: Cell::new(u64::MAX),
            start_ns: Cell::new(0),
            last_ns: Cell::new(0),
            pause_ns: Cell::new(0),
            working: Cell::new(run.workload.depth),
            ended: WaitQueue::default(),
            error: RefCell::new(None),
            record: RefCell::new(Record::new()),
            fills: Cell::new(0),
            fill_ns: Cell::new(0),
        }
    }

    async fn go(self: &Rc<Self>, stop: &AtomicBool) -> Result<Sample> {
        let start_ns = self.runtime.now_ns();
        self.start_ns.set(start_ns);
        self.pause_ns.set(start_ns + LOOK_NS);
        if self.workload.operation.is_timed() {
            self.deadline_ns.set(start_ns + (self.workload.seconds * 1e9) as u64);
        }
        for _ in 0..self.workload.depth {
            let load = Rc::clone(self);
            self.runtime.spawn(async move { load.work().await });
        }
        let stopping = || self.deadline_ns.set(0);
        let ended = patiently(&self.runtime, stop, stopping, self.end()).await;
        // What was given up is no result, and nobody who asked for a stop takes it for one.
        let flush_ns = ended.transpose()?.unwrap_or(0);
        Ok(self.sample(self.ended_ns() - start_ns, flush_ns))
    }

    /// Waits for all requests, flushes and closes; gives the nanoseconds of the flush.
    async fn end(&self) -> Result<u64> {
        self.ended.wait_for(|| (self.working.get() == 0).then_some(())).await;
        let flush_begun_ns = self.runtime.now_ns();
        let flushed = match self.workload.operation.writes() {
            true => self.target.flush().await,
            false => Ok(()),
        };
        let flush_ns = self.runtime.now_ns() - flush_begun_ns;
        let closed = self.target.close().await;
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        flushed?;
        closed?;
        Ok(flush_ns)
    }
}

impl<T: Target + 'static> Load<T> {
    /// When the last request ended; now, if there was none.
    fn ended_ns(&self) -> u64 {
        self.last_ns.get().max(self.start_ns.get())
    }

    fn sample(&self, run_ns: u64, flush_ns: u64) -> Sample {
        let record = self.record.replace(Record::new());
        let timed = self.workload.flush != Flush::Untimed && self.workload.operation.writes();
        let seconds = (run_ns + if timed { flush_ns } else { 0 }) as f64 / 1e9;
        let fills_ns = self.fill_ns.get() as f64 * self.fills_timed() as f64;
        Sample {
            seconds,
            flush_seconds: flush_ns as f64 / 1e9,
            operations: record.latency.count(),
            host_bytes: record.host_bytes,
            written_bytes: record.written_bytes,
            latency: record.latency,
            interval_ns: record.interval_ns,
            intervals: record.intervals,
            generation_share: (fills_ns / run_ns.max(1) as f64).min(1.0),
        }
    }

    /// One of the tasks that keep requests in flight.
    async fn work(&self) {
        let record_bytes = self.workload.record_bytes as usize;
        let mut read_buffer = AlignedBuffer::zeroed(record_bytes);
        let mut write_buffer = Arc::new(AlignedBuffer::zeroed(record_bytes));
        while let Some(request) = self.next() {
            if let Request::Write(_) = request {
                self.fill(&mut write_buffer);
            }
            let begun_ns = self.runtime.now_ns();
            let result = match request {
                Request::Read(offset) => {
                    let (buffer, result) = self.target.read(offset, read_buffer).await;
                    read_buffer = buffer;
                    result
                }
                Request::Write(offset) => self.write(offset, &write_buffer).await,
                Request::Trim(offset) => self.target.trim(offset, self.workload.record_bytes).await,
                Request::Copy(from, to) => {
                    let (buffer, result) = self.target.read(from, read_buffer).await;
                    let copied = Arc::new(buffer);
                    let result = match result {
                        Ok(()) => self.write(to, &copied).await,
                        Err(error) => Err(error),
                    };
                    // The target may keep its share of it for a moment after a failure.
                    read_buffer = Arc::try_unwrap(copied)
                        .unwrap_or_else(|_| AlignedBuffer::zeroed(record_bytes));
                    result
                }
            };
            match result {
                Ok(()) => self.note(request, begun_ns),
                Err(error) => {
                    self.deadline_ns.set(0);
                    self.error.borrow_mut().get_or_insert(error);
                }
            }
            // A target whose requests never wait would keep the thread for itself.
            if self.last_ns.get() >= self.pause_ns.get() {
                self.pause_ns.set(self.last_ns.get() + LOOK_NS);
                self.runtime.yield_now().await;
            }
        }
        self.working.set(self.working.get() - 1);
        self.ended.wake_all();
    }

    /// The next step, until there is none, time is up or something failed.
    fn next(&self) -> Option<Request> {
        let deadline_ns = self.deadline_ns.get();
        if deadline_ns != u64::MAX && self.runtime.now_ns() >= deadline_ns {
            return None;
        }
        self.requests.borrow_mut().next()
    }

    async fn write(&self, offset: u64, buffer: &Arc<AlignedBuffer>) -> Result<()> {
        self.target.write(offset, buffer).await?;
        match self.workload.flush {
            Flush::EachWrite => self.target.flush().await,
            Flush::Timed | Flush::Untimed => Ok(()),
        }
    }

    /// Of how many fills one is timed.
    fn fills_timed(&self) -> u64 {
        if self.workload.record_bytes < FILL_TIMED_BYTES { FILLS_TIMED } else { 1 }
    }

    /// Puts new data into a buffer that nobody else reads any more.
    fn fill(&self, buffer: &mut Arc<AlignedBuffer>) {
        let count = self.fills.get();
        self.fills.set(count + 1);
        // The last of so many: the first ones find nothing in the processor's caches.
        let is_timed = (count + 1).is_multiple_of(self.fills_timed());
        let begun_ns = is_timed.then(|| self.runtime.now_ns());
        // Shared after a failed write only, behind which nothing is written.
        if let Some(bytes) = Arc::get_mut(buffer) {
            self.stream.borrow_mut().fill(bytes);
        }
        if let Some(begun_ns) = begun_ns {
            self.fill_ns.set(self.fill_ns.get() + self.runtime.now_ns() - begun_ns);
        }
    }

    fn note(&self, request: Request, begun_ns: u64) {
        let ended_ns = self.runtime.now_ns();
        self.last_ns.set(ended_ns);
        let mut record = self.record.borrow_mut();
        record.add(ended_ns - self.start_ns.get(), ended_ns - begun_ns);
        record.host_bytes += self.workload.record_bytes;
        if let Request::Write(_) | Request::Copy(..) = request {
            record.written_bytes += self.workload.record_bytes;
        }
    }
}

impl Sample {
    /// Takes in what another thread of the same run measured.
    fn join(&mut self, other: &Self, threads: u32) {
        self.seconds = self.seconds.max(other.seconds);
        self.flush_seconds = self.flush_seconds.max(other.flush_seconds);
        self.operations += other.operations;
        self.host_bytes += other.host_bytes;
        self.written_bytes += other.written_bytes;
        self.generation_share +=
            (other.generation_share - self.generation_share) / f64::from(threads);
        self.latency.merge(&other.latency);
        let mut theirs = other.intervals.clone();
        let mut their_ns = other.interval_ns;
        while self.interval_ns < their_ns {
            self.intervals = joined(&self.intervals);
            self.interval_ns *= 2;
        }
        while their_ns < self.interval_ns {
            theirs = joined(&theirs);
            their_ns *= 2;
        }
        let len = self.intervals.len().max(theirs.len());
        self.intervals.resize(len, Interval::default());
        for (mine, theirs) in self.intervals.iter_mut().zip(theirs) {
            *mine = sum(*mine, theirs);
        }
    }
}

#[cfg(test)]
mod tests;

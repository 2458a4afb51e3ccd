//! Runs one workload on a target and measures it.
//!
//! ```text
//! thread 0 .. n: a runtime, the open target, `depth` tasks that each
//!    take the next request -> fill the buffer (writes) -> clock -> request -> clock -> record
//! ```
//!
//! A closed loop: each task issues its next request when its previous one has completed. Only the
//! request is timed. Data is generated before the request, and the cost is reported as a share of
//! the threads' time, because it limits the measurable speed of a fast target. A 4 KiB request
//! costs two clock readings (37 ns each), one histogram entry (9 ns) and, for a write, 95 ns of
//! data generation at 50 %. It needs no allocation, and all requests of a turn share one system
//! call.
//!
//! The target is used only as a host would use it. This module prints nothing.

mod spots;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::Barrier;
use std::sync::atomic::AtomicBool;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use spots::Spot;
use spots::{SPOTS_MAX, Spots};

use crate::bench::shutdown::{POLL_NS, until_stopped};
use crate::bench::target::{
    Access, DriveTarget, FileTarget, Location, NbdTarget, SimTarget, StdioTarget, Target,
};
use crate::error::{Error, Result};
use crate::payload::{Payload, Stream};
use crate::stats::Latencies;
use crate::workload::pattern::{Action, Request, Requests};
use crate::workload::{Flush, Workload};
use pumice_drive::base::wait::WaitQueue;
use pumice_drive::base::{AlignedBuffer, Clock};
use pumice_drive::runtime::{Backend, Runtime};
use pumice_sim::system::{System, SystemSpec};

/// Maximum number of intervals in a run's timeline. When it is exceeded, adjacent intervals are
/// merged in pairs, so a long run has between half this number and all of it.
const INTERVALS_MAX: usize = 240;
pub(super) const INTERVAL_NS_MIN: u64 = 50_000_000;

/// One in this many fills is timed, if records are so small that reading the clock would matter.
const FILLS_TIMED: u64 = 16;

/// Minimum record size in bytes for timing every fill.
const FILL_TIMED_BYTES: u64 = 64 << 10;

/// Totals of one interval of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Interval {
    /// Requests that ended in the interval.
    pub operations: u64,
    /// Sum and maximum of their latencies.
    pub latency_ns_sum: u64,
    /// See `latency_ns_sum`.
    pub latency_ns_max: u64,
}

/// Measurements of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Sample {
    /// Seconds from the first request to the last reply, including the flush if it is timed.
    pub seconds: f64,
    /// Seconds of the flush at the end, timed or not.
    pub flush_seconds: f64,
    /// Completed requests; a copied file counts as one.
    pub operations: u64,
    /// Bytes read, written or trimmed by the host; a copy counts its written bytes.
    pub host_bytes: u64,
    /// Bytes written by the host.
    pub written_bytes: u64,
    /// Latency of each request in ns; empty if unknown.
    pub latency: Latencies,
    /// Length of each interval in ns, and the intervals in order.
    pub interval_ns: u64,
    /// See `interval_ns`.
    pub intervals: Vec<Interval>,
    /// Positions of the requests, for operations that only read existing data; otherwise empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spots: Vec<Spot>,
    /// Share of the threads' time spent on generating data, 0 to 1.
    pub generation_share: f64,
}

/// Parameters of a run, except the target.
#[derive(Clone)]
pub struct RunSpec {
    /// Workload.
    pub workload: Workload,
    /// Data to write.
    pub payload: Payload,
    /// Number of the payload's first stream. Each thread uses one stream; a run with the same
    /// streams would write the same data again.
    pub stream: u64,
    /// Seed of the addresses.
    pub seed: u64,
}

/// Checks whether a workload can run on a target. Does not open the target.
///
/// # Errors
/// [`Error::Invalid`]: the errors of [`Workload::check`]; several threads on a drive in this
/// process, which supports only one; buffered operations on anything but a file, or with direct
/// I/O; copies of files on anything but a folder.
pub fn check(location: &Location, access: Access, workload: &Workload) -> Result<()> {
    let wrong = |what: String| Err(Error::invalid(what));
    workload.check()?;
    if workload.threads > 1 && location.is_in_process() {
        let what = "a drive in this process has one thread: increase --depth instead of --threads";
        return wrong(what.into());
    }
    let name = workload.operation.name();
    if workload.operation.is_stdio() && !location.is_made() {
        return wrong(format!("{name} needs a file: {location} is not a file"));
    }
    if workload.operation.file_set().is_some() && !matches!(location, Location::Folder(_)) {
        return wrong(format!("{name} needs a folder: {location} is not a folder"));
    }
    if workload.operation.is_stdio() && access.direct {
        return wrong(format!("{name} uses the page cache: remove --direct"));
    }
    Ok(())
}

/// Runs `run` on a target. Setting `stop` ends the run promptly, even if the target no longer
/// responds; the returned sample is then not a measurement.
///
/// # Errors
/// The errors of [`check`]; the first error of the target.
pub fn measure(
    location: &Location,
    access: Access,
    run: &RunSpec,
    stop: &AtomicBool,
) -> Result<Sample> {
    check(location, access, &run.workload)?;
    let threads = run.workload.threads;
    let barrier = Barrier::new(threads as usize);
    let shared = &Shared { location, access, run, barrier, stop };
    if threads == 1 {
        return shared.thread(0);
    }
    let samples = std::thread::scope(|scope| {
        let spawned: Vec<_> =
            (0..threads).map(|number| scope.spawn(move || shared.thread(number))).collect();
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

/// Runs `run` on a simulated drive, in virtual time.
///
/// # Errors
/// The errors of [`check`]; the first error of the drive.
pub fn simulate(sim: &Rc<System>, run: &RunSpec, stop: &AtomicBool) -> Result<Sample> {
    on_target(sim.runtime(), SimTarget(Rc::clone(sim)), run, 0, stop)
}

/// The inputs that all threads of a run share.
struct Shared<'a> {
    location: &'a Location,
    access: Access,
    run: &'a RunSpec,
    /// Every thread passes the barrier once, even if it cannot open its target.
    barrier: Barrier,
    stop: &'a AtomicBool,
}

impl Shared<'_> {
    /// Runs one thread.
    fn thread(&self, number: u32) -> Result<Sample> {
        let runtime = match Runtime::new(Backend::Auto) {
            Ok(runtime) => runtime,
            Err(error) => {
                self.barrier.wait();
                return Err(error.into());
            }
        };
        let result = self.open_and_run(&runtime, number);
        runtime.drop_tasks();
        result
    }

    fn open_and_run(&self, runtime: &Runtime, number: u32) -> Result<Sample> {
        let Self { location, access, run, stop, .. } = *self;
        match location.inner() {
            Location::Drive(file) => {
                let opened = runtime.block_on(async {
                    match location {
                        Location::Existing(_) => DriveTarget::open_to_read(runtime, file).await,
                        _ => DriveTarget::open(runtime, file).await,
                    }
                });
                self.on_target(runtime, opened, number)
            }
            Location::Sim(profile) => {
                self.barrier.wait();
                let sim = System::new(SystemSpec::find(profile)?)?;
                simulate(&Rc::new(sim), run, stop)
            }
            Location::Nbd(uri) => {
                let opened = runtime.block_on(NbdTarget::open(runtime, uri));
                self.on_target(runtime, opened, number)
            }
            _ if run.workload.operation.is_stdio() => {
                self.on_target(runtime, StdioTarget::open(location), number)
            }
            Location::File(_)
            | Location::Folder(_)
            | Location::Device(_)
            | Location::Existing(_) => {
                let opened = FileTarget::open(runtime, location, access);
                self.on_target(runtime, opened, number)
            }
        }
    }

    /// Waits for the other threads, then runs the workload.
    fn on_target<T: Target + 'static>(
        &self,
        runtime: &Runtime,
        opened: Result<T>,
        number: u32,
    ) -> Result<Sample> {
        self.barrier.wait();
        on_target(runtime, opened?, self.run, number, self.stop)
    }
}

fn on_target<T: Target + 'static>(
    runtime: &Runtime,
    target: T,
    run: &RunSpec,
    number: u32,
    stop: &AtomicBool,
) -> Result<Sample> {
    let worker = Rc::new(Worker::new(runtime, target, run, number));
    runtime.block_on(worker.run(stop))
}

/// State shared by the tasks of one thread.
struct Worker<T> {
    runtime: Runtime,
    target: T,
    workload: Workload,
    requests: RefCell<Requests>,
    stream: RefCell<Stream>,
    deadline_ns: Cell<u64>,
    start_ns: Cell<u64>,
    last_ns: Cell<u64>,
    /// The time at which a task next yields.
    pause_ns: Cell<u64>,
    /// The end of the workload's current pause; 0 if it has not paused.
    paused_until_ns: Cell<u64>,
    working: Cell<u32>,
    ended: WaitQueue,
    error: RefCell<Option<Error>>,
    record: RefCell<Record>,
    fills: Cell<u64>,
    fill_ns: Cell<u64>,
}

/// Measurements of the requests so far.
struct Record {
    latency: Latencies,
    interval_ns: u64,
    intervals: Vec<Interval>,
    spots: Spots,
    written_bytes: u64,
    host_bytes: u64,
}

impl Record {
    fn new(workload: &Workload) -> Self {
        Self {
            spots: Spots::new(workload),
            latency: Latencies::new(),
            interval_ns: INTERVAL_NS_MIN,
            intervals: Vec::with_capacity(INTERVALS_MAX),
            written_bytes: 0,
            host_bytes: 0,
        }
    }

    /// Records a request that ended `since_ns` after the start of the run with a latency of
    /// `latency_ns`.
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

/// Merges adjacent intervals in pairs.
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

impl<T: Target + 'static> Worker<T> {
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
            paused_until_ns: Cell::new(0),
            working: Cell::new(run.workload.depth),
            ended: WaitQueue::default(),
            error: RefCell::new(None),
            record: RefCell::new(Record::new(&run.workload)),
            fills: Cell::new(0),
            fill_ns: Cell::new(0),
        }
    }

    async fn run(self: &Rc<Self>, stop: &AtomicBool) -> Result<Sample> {
        let start_ns = self.runtime.now_ns();
        self.start_ns.set(start_ns);
        self.pause_ns.set(start_ns + POLL_NS);
        if self.workload.is_timed() {
            self.deadline_ns.set(start_ns + (self.workload.seconds * 1e9) as u64);
        }
        for _ in 0..self.workload.depth {
            let worker = Rc::clone(self);
            self.runtime.spawn(async move { worker.work().await });
        }
        let stopping = || self.deadline_ns.set(0);
        let ended = until_stopped(&self.runtime, stop, stopping, self.end()).await;
        // An abandoned run is not a result, and a caller that set `stop` does not use it as one.
        let flush_ns = ended.transpose()?.unwrap_or(0);
        Ok(self.sample(self.ended_ns() - start_ns, flush_ns))
    }

    /// Waits for all requests, flushes and closes. Returns the duration of the flush in ns.
    async fn end(&self) -> Result<u64> {
        self.ended.wait_for(|| (self.working.get() == 0).then_some(())).await;
        let flush_begun_ns = self.runtime.now_ns();
        let flushed =
            if self.workload.operation.writes() { self.target.flush().await } else { Ok(()) };
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

impl<T: Target + 'static> Worker<T> {
    /// Returns the end time of the last request, or the start of the run if there was none.
    fn ended_ns(&self) -> u64 {
        self.last_ns.get().max(self.start_ns.get())
    }

    fn sample(&self, run_ns: u64, flush_ns: u64) -> Sample {
        let record = self.record.replace(Record::new(&self.workload));
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
            spots: record.spots.into_vec(),
            generation_share: (fills_ns / run_ns.max(1) as f64).min(1.0),
        }
    }

    /// Runs one of the tasks that keep requests in flight.
    async fn work(&self) {
        let record_bytes = self.workload.record_bytes as usize;
        let mut read_buffer = AlignedBuffer::zeroed(record_bytes);
        let mut write_buffer = Arc::new(AlignedBuffer::zeroed(record_bytes));
        while let Some(request) = self.next() {
            self.pause(request.pause_ns).await;
            read_buffer.set_len(request.bytes as usize);
            if let Action::Write(_) = request.action {
                self.fill(&mut write_buffer, request.bytes as usize);
            }
            let begun_ns = self.runtime.now_ns();
            let result = match request.action {
                Action::Read(offset) => {
                    let (buffer, result) = self.target.read(offset, read_buffer).await;
                    read_buffer = buffer;
                    result
                }
                Action::Write(offset) => self.write(offset, &write_buffer).await,
                Action::Trim(offset) => self.target.trim(offset, request.bytes).await,
                Action::Copy(from, to) => {
                    let (buffer, result) = self.target.read(from, read_buffer).await;
                    let copied = Arc::new(buffer);
                    let result = match result {
                        Ok(()) => self.write(to, &copied).await,
                        Err(error) => Err(error),
                    };
                    // After a failure, the target may briefly retain a reference.
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
            // A target whose requests never wait would otherwise occupy the thread.
            if self.last_ns.get() >= self.pause_ns.get() {
                self.pause_ns.set(self.last_ns.get() + POLL_NS);
                self.runtime.yield_now().await;
            }
        }
        self.working.set(self.working.get() - 1);
        self.ended.wake_all();
    }

    /// Returns the next request; `None` after the last one, after the deadline, or after an error.
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

    /// Returns the number of fills that share one measurement.
    fn fills_timed(&self) -> u64 {
        if self.workload.record_bytes < FILL_TIMED_BYTES { FILLS_TIMED } else { 1 }
    }

    /// Waits until the thread's current pause is over; a new pause may start meanwhile.
    async fn pause(&self, pause_ns: u64) {
        if pause_ns > 0 {
            self.paused_until_ns.set(self.runtime.now_ns() + pause_ns);
        }
        let left_ns = self.paused_until_ns.get().saturating_sub(self.runtime.now_ns());
        if self.paused_until_ns.get() > 0 && left_ns > 0 {
            self.runtime.sleep_ns(left_ns).await;
        }
    }

    /// Fills the first `len` bytes of a buffer with new data, and sets its length to `len`. No
    /// other task reads the buffer.
    fn fill(&self, buffer: &mut Arc<AlignedBuffer>, len: usize) {
        let count = self.fills.get();
        self.fills.set(count + 1);
        // The last fill of the group is timed, because the first ones run with cold processor
        // caches.
        let is_timed = (count + 1).is_multiple_of(self.fills_timed());
        let begun_ns = is_timed.then(|| self.runtime.now_ns());
        // The buffer is shared only after a failed write, which no further write follows.
        if let Some(bytes) = Arc::get_mut(buffer) {
            bytes.set_len(len);
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
        record.host_bytes += request.bytes;
        if let Action::Read(offset) = request.action {
            record.spots.add(offset, request.bytes, (begun_ns, ended_ns));
        }
        if let Action::Write(_) | Action::Copy(..) = request.action {
            record.written_bytes += request.bytes;
        }
    }
}

/// Maximum of any count in an untrusted sample: sums of hundreds of them do not overflow.
const COUNT_MAX: u64 = 1 << 56;

impl Sample {
    /// Returns whether an untrusted sample could be a real measurement, so that it can be merged.
    pub(super) fn is_plausible(&self) -> bool {
        let Self { operations, host_bytes, written_bytes, interval_ns, .. } = *self;
        let counts = [operations, host_bytes, written_bytes, self.latency.count()];
        let steps = interval_ns / INTERVAL_NS_MIN;
        let each = self.intervals.iter();
        let sums = each.flat_map(|one| [one.operations, one.latency_ns_sum]);
        let seconds = [self.seconds, self.flush_seconds, self.generation_share];
        counts.into_iter().chain(sums).all(|count| count <= COUNT_MAX)
            && seconds.iter().all(|seconds| seconds.is_finite() && *seconds >= 0.0)
            && steps.is_power_of_two()
            && steps * INTERVAL_NS_MIN == interval_ns
            && self.intervals.len() <= INTERVALS_MAX
            && self.spots.len() <= SPOTS_MAX
    }

    /// Merges the measurements of another thread of the same run.
    pub(super) fn join(&mut self, other: &Self, threads: u32) {
        self.seconds = self.seconds.max(other.seconds);
        self.flush_seconds = self.flush_seconds.max(other.flush_seconds);
        self.operations += other.operations;
        self.host_bytes += other.host_bytes;
        self.written_bytes += other.written_bytes;
        self.generation_share +=
            (other.generation_share - self.generation_share) / f64::from(threads);
        self.latency.merge(&other.latency);
        self.spots.extend(other.spots.iter().take(SPOTS_MAX.saturating_sub(self.spots.len())));
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

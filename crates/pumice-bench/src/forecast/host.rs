//! Sources of requests: a workload, a fill, or a trace.

use std::fs::File;
use std::path::PathBuf;

use crate::stats::Latencies;
use crate::workload::pattern::{Action, Requests};
use crate::workload::{Flush, Workload};
use pumice_drive::base::Error as DriveError;
use pumice_drive::base::units::{BLOCK_BYTES, format_size};
use pumice_sim::log_drive::{Host, Request, Verb};
use pumice_sim::trace::{Entry, LeftOut, Reader};

/// Number of requests between two progress reports.
const TOLD_EVERY: u64 = 1 << 12;

/// Request size of a fill in bytes.
const FILL_BYTES: u64 = 128 << 10;

/// Receives the progress of simulations. At most one simulation per processor runs at a time; they
/// are numbered from 0.
pub trait Watch: Sync {
    /// Reports that a simulation starts an activity of about this many requests.
    fn begins(&self, simulation: usize, what: String, requests: u64);

    /// Reports that a simulation has completed this many further requests.
    fn advances(&self, simulation: usize, requests: u64);
}

/// Totals of completed requests.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    pub(super) reads: Latencies,
    pub(super) writes: Latencies,
    /// Requests of all kinds.
    pub(super) requests: u64,
    pub(super) read_bytes: u64,
    pub(super) write_bytes: u64,
    /// End time of the last request; 0 without requests.
    pub(super) ended_ns: u64,
}

impl Tally {
    fn add(&mut self, request: &Request, begun_ns: u64, done_ns: u64) {
        let took_ns = done_ns - begun_ns;
        self.requests += 1;
        self.ended_ns = done_ns;
        match request.verb {
            Verb::Read => {
                self.reads.record(took_ns);
                self.read_bytes += request.bytes;
            }
            Verb::Write => {
                self.writes.record(took_ns);
                self.write_bytes += request.bytes;
            }
            Verb::Trim | Verb::Flush => {}
        }
    }
}

/// A progress watcher, and the number of its simulation.
#[derive(Clone, Copy)]
pub(super) struct Lane<'a> {
    pub(super) watch: &'a dyn Watch,
    pub(super) number: usize,
}

impl Lane<'_> {
    pub(super) fn begins(&self, what: String, requests: u64) {
        self.watch.begins(self.number, what, requests);
    }
}

/// Reports progress at intervals.
struct Told<'a> {
    lane: Lane<'a>,
    untold: u64,
}

impl Told<'_> {
    fn one(&mut self) {
        self.untold += 1;
        if self.untold == TOLD_EVERY {
            self.lane.watch.advances(self.lane.number, std::mem::take(&mut self.untold));
        }
    }
}

/// Limits of a round, which ends as soon as one of them is reached.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) write_bytes: u64,
    pub(super) requests: u64,
    pub(super) until_ns: u64,
}

/// The host of a workload, which has threads times depth slots.
pub(super) struct LoadHost<'a> {
    workload: &'a Workload,
    requests: Vec<Requests>,
    /// The next request of each slot after the current one.
    then: Vec<Option<Request>>,
    limits: Limits,
    asked: u64,
    asked_write_bytes: u64,
    pub(super) tally: Tally,
    told: Told<'a>,
}

impl<'a> LoadHost<'a> {
    /// Returns a new host for a checked workload.
    pub(super) fn new(workload: &'a Workload, seed: u64, limits: Limits, lane: Lane<'a>) -> Self {
        let slots = (workload.depth * workload.threads) as usize;
        Self {
            requests: (0..workload.threads).map(|it| Requests::new(workload, it, seed)).collect(),
            then: vec![None; slots],
            workload,
            limits,
            asked: 0,
            asked_write_bytes: 0,
            tally: Tally::default(),
            told: Told { lane, untold: 0 },
        }
    }

    fn is_over(&self, now_ns: u64) -> bool {
        self.asked_write_bytes >= self.limits.write_bytes
            || self.asked >= self.limits.requests
            || now_ns >= self.limits.until_ns
    }
}

fn one(verb: Verb, offset: u64, bytes: u64) -> Request {
    Request { verb, offset, bytes, due_ns: 0 }
}

impl Host for LoadHost<'_> {
    fn next(&mut self, slot: u32, now_ns: u64) -> pumice_sim::Result<Option<Request>> {
        let then = &mut self.then[slot as usize];
        if then.is_some() {
            return Ok(then.take());
        }
        if self.is_over(now_ns) {
            return Ok(None);
        }
        let thread = (slot / self.workload.depth) as usize;
        let Some(request) = self.requests[thread].next() else { return Ok(None) };
        self.asked += 1;
        let bytes = request.bytes;
        Ok(Some(match request.action {
            Action::Read(offset) => one(Verb::Read, offset, bytes),
            Action::Trim(offset) => one(Verb::Trim, offset, bytes),
            Action::Write(offset) => {
                self.asked_write_bytes += bytes;
                if self.workload.flush == Flush::EachWrite {
                    self.then[slot as usize] = Some(one(Verb::Flush, 0, 0));
                }
                one(Verb::Write, offset, bytes)
            }
            Action::Copy(source, target) => {
                self.asked_write_bytes += bytes;
                self.then[slot as usize] = Some(one(Verb::Write, target, bytes));
                one(Verb::Read, source, bytes)
            }
        }))
    }

    fn done(&mut self, request: &Request, begun_ns: u64, done_ns: u64) {
        self.tally.add(request, begun_ns, done_ns);
        self.told.one();
    }
}

/// Writes a range once, sequentially.
pub(super) struct FillHost<'a> {
    next: u64,
    end: u64,
    told: Told<'a>,
}

impl<'a> FillHost<'a> {
    pub(super) fn new(begin: u64, end: u64, lane: Lane<'a>) -> Self {
        Self { next: begin, end, told: Told { lane, untold: 0 } }
    }

    /// Returns the number of requests in a fill.
    pub(super) fn requests(begin: u64, end: u64) -> u64 {
        (end - begin).div_ceil(FILL_BYTES)
    }
}

impl Host for FillHost<'_> {
    fn next(&mut self, _slot: u32, _now_ns: u64) -> pumice_sim::Result<Option<Request>> {
        let bytes = FILL_BYTES.min(self.end - self.next);
        let request = Request { verb: Verb::Write, offset: self.next, bytes, due_ns: 0 };
        self.next += bytes;
        Ok((bytes > 0).then_some(request))
    }

    fn done(&mut self, _request: &Request, _begun_ns: u64, _done_ns: u64) {
        self.told.one();
    }
}

/// Replays a trace. A request starts at its recorded time unless all slots are in use. The wait for
/// a slot counts as delay, not as latency.
pub(super) struct ReplayHost<'a> {
    reader: Reader<File>,
    path: PathBuf,
    size_bytes: u64,
    folds: bool,
    /// Whether requests start at the times in the trace.
    is_paced: bool,
    start_ns: u64,
    /// Time of the first entry.
    first_ns: Option<u64>,
    pub(super) tally: Tally,
    /// Maximum delay of a request.
    pub(super) late_ns: u64,
    told: Told<'a>,
}

impl<'a> ReplayHost<'a> {
    pub(super) fn new(
        reader: Reader<File>,
        load: &super::TraceLoad,
        size_bytes: u64,
        pace_from_ns: Option<u64>,
        lane: Lane<'a>,
    ) -> Self {
        Self {
            reader,
            path: load.path.clone(),
            size_bytes,
            folds: load.folds,
            is_paced: pace_from_ns.is_some(),
            start_ns: pace_from_ns.unwrap_or(0),
            first_ns: None,
            tally: Tally::default(),
            late_ns: 0,
            told: Told { lane, untold: 0 },
        }
    }

    pub(super) fn left_out(&self) -> LeftOut {
        self.reader.left_out()
    }

    /// Returns the drive offset of an entry.
    fn placed(&self, entry: &Entry) -> pumice_sim::Result<u64> {
        let size = self.size_bytes;
        if entry.offset.checked_add(entry.bytes).is_some_and(|end| end <= size) {
            return Ok(entry.offset);
        }
        let wrong = |what: String| {
            let (path, line) = (self.path.display(), self.reader.line_number());
            let what = format!("{path}, line {line}: a request of {} bytes {what}", entry.bytes);
            Err(pumice_sim::Error::InvalidInput(what.into()))
        };
        if entry.bytes > size {
            return wrong(format!("is larger than the drive of {}", format_size(size)));
        }
        if !self.folds {
            let end =
                format!("at {} extends beyond the drive of {}", entry.offset, format_size(size));
            return wrong(format!("{end}: use a larger drive, or --fold to map it into this one"));
        }
        // A request that would cross the end of the drive is moved to a lower offset, by whole
        // blocks.
        let last = (size - entry.bytes) / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        Ok((entry.offset % size).min(last))
    }
}

impl Host for ReplayHost<'_> {
    fn next(&mut self, _slot: u32, _now_ns: u64) -> pumice_sim::Result<Option<Request>> {
        let named = |error: pumice_sim::Error| {
            let what = self.path.display().to_string();
            DriveError::new(error.kind(), what).caused_by(error)
        };
        let Some(entry) = self.reader.next_entry().map_err(named)? else { return Ok(None) };
        let first_ns = *self.first_ns.get_or_insert(entry.time_ns);
        let since_ns = entry.time_ns.saturating_sub(first_ns);
        let due_ns = if self.is_paced { self.start_ns.saturating_add(since_ns) } else { 0 };
        let offset = self.placed(&entry)?;
        Ok(Some(Request { verb: entry.verb, offset, bytes: entry.bytes, due_ns }))
    }

    fn done(&mut self, request: &Request, begun_ns: u64, done_ns: u64) {
        if self.is_paced {
            self.late_ns = self.late_ns.max(begun_ns - request.due_ns);
        }
        self.tally.add(request, begun_ns, done_ns);
        self.told.one();
    }
}

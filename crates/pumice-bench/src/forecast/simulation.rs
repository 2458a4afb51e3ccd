//! Simulates a drive from its new state up to the measured round.
//!
//! ```text
//! new -> every block of the span in order -> rounds of the workload -> the last round counts
//!        (once)                              until two are alike
//! ```
//!
//! A round of a workload that writes has as many bytes as its span, or covers the span once if it
//! is sequential. A round that only reads lasts for the workload's duration. A round of a trace is
//! the whole trace. A drive is steady when the write amplification of two consecutive rounds
//! differs by at most 1 % and both rounds collected segments. With a cache, the shares of hits and
//! of writes that bypass the cache must also differ by at most 1 percentage point, and the amount
//! of data that only the cache contains after the rounds by at most 5 %. A round then has one
//! request for each line of the cache, so that the cache can fill. The number of rounds is limited
//! to twice the ratio of the flash capacity to the data, plus ten, or to [`REPLAYS_MAX`] for a
//! trace.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::RangeInclusive;
use std::sync::atomic::AtomicBool;

use super::device::{Device, Spec};
use super::figures::{
    Breakdown, CacheUse, Endurance, Failing, Figures, LostPart, Point, Preconditioning, Speed,
};
use super::host::{FillHost, Lane, Limits, LoadHost, ReplayHost, Tally};
use super::source::{Case, Load, TraceLoad};
use super::{Data, ForecastOptions, PlannedFault, State};
use crate::error::{Error, Result};
use crate::workload::{Operation, Pattern, Workload};
use pumice_drive::base::ErrorKind;
use pumice_drive::base::seed::mix;
use pumice_sim::drive::cached::CacheCounts;
use pumice_sim::formula;
use pumice_sim::ftl::{BLOCK_BYTES, LogCounts, RebuildTimes};
use pumice_sim::log_drive::{FaultAt, LogDrive};
use pumice_sim::profile::Profile;
use pumice_sim::trace::Reader;

/// Maximum relative difference between the write amplification of two rounds in steady state.
const STEADY: f64 = 0.01;

/// Maximum relative difference between the amounts of data that only a write-back cache contains
/// after two rounds in steady state. It is larger because the data is written back in batches.
const STEADY_DIRTY: f64 = 0.05;

/// Maximum number of rounds after the flash has been written for the first time (arbitrary).
const ROUNDS_MAX: f64 = 10.0;

/// Maximum number of replays of a trace before the measured one (arbitrary).
const REPLAYS_MAX: u32 = 8;

/// Maximum number of requests in a round per record of the span, for workloads with few writes.
const REQUESTS_PER_RECORD: u64 = 8;

/// Maximum number of requests in a read-only round: enough for the highest reported percentile.
const READS_MAX: u64 = 1_000_000;

/// Maximum number of sequential requests in a round on a drive other than a log, which stores its
/// contents.
const OTHER_REQUESTS_MAX: u64 = 8_000_000;

/// Maximum number of random requests in a round with writes on a drive other than a log. Each
/// request takes milliseconds, and the whole span would take days of virtual time.
const OTHER_RANDOM_MAX: u64 = 20_000;

/// Minimum and maximum number of requests in a timed round on a drive with a cache (arbitrary).
const CACHED_REQUESTS: RangeInclusive<u64> = OTHER_RANDOM_MAX..=4_000_000;

/// Number of requests in flight while a drive is filled (arbitrary; enough for any front end).
const FILL_SLOTS: u32 = 32;

/// Maximum number of requests in flight during a replay. Beyond that, the queue of a drive is not a
/// bottleneck (arbitrary).
const REPLAY_SLOTS_MAX: u32 = 1024;

/// A drive and a series of workloads.
#[derive(Clone, Copy, Debug)]
pub struct Scenario<'a> {
    /// Profile of the drive.
    pub profile: &'a Profile,
    /// Workloads that run sequentially on the same drive.
    pub cases: &'a [Case],
    /// The parameters of the forecast.
    pub options: &'a ForecastOptions,
}

/// A scenario with its data.
#[derive(Clone, Copy)]
pub(super) struct Setup<'a> {
    pub(super) scenario: Scenario<'a>,
    pub(super) data: &'a Data,
    /// Whether to calculate the data lost if a die fails.
    pub(super) loses_die: bool,
}

impl Setup<'_> {
    pub(super) fn spec(&self) -> Result<Spec> {
        Spec::of(self.scenario.profile, self.data, self.scenario.options)
    }

    /// Returns the maximum memory of the simulation in bytes.
    pub(super) fn memory_bytes_max(&self) -> Result<u64> {
        self.spec()?.memory_bytes_max()
    }
}

/// One drive and its history.
pub(super) struct Simulation<'a> {
    drive: Device,
    spec: Spec,
    options: &'a ForecastOptions,
    lane: Lane<'a>,
    /// Prefix of progress reports.
    name: &'a str,
    /// Overhead in percent, and program/erase cycles per block; `None` without flash.
    flash: Option<(f64, u64)>,
    size_bytes: u64,
    /// Whether to calculate the data lost if a die fails.
    loses_die: bool,
    /// Range that has been written sequentially so far.
    filled: (u64, u64),
    written_bytes: u64,
    rounds: u64,
}

/// Totals of a round.
struct Round {
    tally: Tally,
    /// `None` for a drive without flash.
    counts: Option<LogCounts>,
    /// `None` without a cache.
    cache: Option<CacheCounts>,
    seconds: f64,
    late_ns: u64,
    remark: Option<String>,
}

impl Round {
    /// Returns flash bytes per host byte, without overhead.
    fn amplification(&self) -> Option<f64> {
        let (bytes, counts) = (self.tally.write_bytes, self.counts.as_ref()?);
        (bytes > 0).then(|| counts.flash_bytes as f64 / bytes as f64)
    }

    /// Returns whether the round shows if the drive is steady: it wrote to flash, or used a cache.
    fn tells(&self) -> bool {
        self.cache.is_some() || self.amplification().is_some()
    }

    fn is_like(&self, before: &Self) -> bool {
        let Some((this, other)) = self.cache.as_ref().zip(before.cache.as_ref()) else {
            return self.amplifies_like(before);
        };
        // The line size does not affect shares.
        let [one, two] = [this, other].map(|counts| CacheUse::of(counts, 1));
        let is_near = |one: Option<f64>, other: Option<f64>| match (one, other) {
            (Some(one), Some(other)) => (one - other).abs() <= STEADY,
            _ => one == other,
        };
        let most = this.dirty_bytes.max(other.dirty_bytes) as f64;
        is_near(one.hit_fraction, two.hit_fraction)
            && is_near(one.past_fraction, two.past_fraction)
            && this.dirty_bytes.abs_diff(other.dirty_bytes) as f64 <= STEADY_DIRTY * most
            && (self.amplification().is_none() || self.amplifies_like(before))
    }

    fn amplifies_like(&self, before: &Self) -> bool {
        let (Some(this), Some(other)) = (self.amplification(), before.amplification()) else {
            return false;
        };
        let collected = [self, before]
            .map(|round| round.counts.as_ref().map_or(0, |counts| counts.segments_collected));
        (this / other - 1.0).abs() <= STEADY && collected.iter().all(|&segments| segments > 0)
    }
}

impl<'a> Simulation<'a> {
    /// Returns a new drive.
    ///
    /// # Errors
    /// The errors of [`Spec::of`].
    pub(super) fn new(setup: &Setup<'a>, lane: Lane<'a>, name: &'a str) -> Result<Self> {
        let Setup { scenario: Scenario { profile, options, .. }, data, loses_die } = *setup;
        let spec = setup.spec()?;
        let flash = profile.flash();
        Ok(Self {
            drive: Device::new(&spec)?,
            spec,
            options,
            lane,
            name,
            flash: flash.map(|flash| (flash.overhead_percent.is, flash.pe_cycles.is)),
            size_bytes: super::size_bytes(profile, data, options)?,
            loses_die,
            filled: (0, 0),
            written_bytes: 0,
            rounds: 0,
        })
    }

    /// Preconditions the drive and measures one case. Returns the figures with a remark, or `None`
    /// if `stop` was set.
    ///
    /// # Errors
    /// The case does not fit on the drive, or a trace cannot be read.
    pub(super) fn case(
        &mut self,
        case: &Case,
        stop: &AtomicBool,
    ) -> Result<Option<(Figures, Option<String>)>> {
        let (begin, end) = match &case.load {
            Load::Steps(workload) => (workload.shift_bytes, workload.end_bytes()),
            Load::Trace(_) => (0, self.spec.size_bytes()),
        };
        let (fill_begin, fill_end) = match self.options.state {
            State::Used => (0, self.spec.size_bytes()),
            State::New | State::Filled | State::Steady => (begin, end),
        };
        let filled_bytes = match self.fill(fill_begin, fill_end, stop)? {
            Some(bytes) => bytes,
            None => return Ok(None),
        };
        // The measurement must not include background work of an earlier case.
        self.drive.settle();
        let most = self.rounds_max(case, end - begin)?;
        let mut before: Option<Round> = None;
        let mut course = Vec::new();
        let is_trace = matches!(case.load, Load::Trace(_));
        for rounds in 0.. {
            let is_last = rounds + 1 >= most;
            let Some(mut round) = self.round(case, is_last, stop)? else { return Ok(None) };
            course.push(self.point(&round));
            let is_steady = before.as_ref().is_some_and(|before| round.is_like(before));
            let is_wanted = self.options.state.is_steady() && round.tells();
            if !is_last && is_wanted && !is_steady {
                before = Some(round);
                continue;
            }
            let mut done = Preconditioning { filled_bytes, rounds, is_steady };
            if is_trace && !is_last {
                // The trace is replayed again, at its recorded pace.
                let Some(paced) = self.round(case, true, stop)? else { return Ok(None) };
                (round, done.rounds) = (paced, rounds + 1);
                course.push(self.point(&round));
            }
            let lost_die = self.lost_die()?;
            let failing = match self.options.faults.is_empty() {
                true => None,
                false => match self.failing(case, round.tally.requests, stop)? {
                    Some(failing) => Some(failing),
                    None => return Ok(None),
                },
            };
            let (figures, remark) = self.figures(case, done, round, course)?;
            return Ok(Some((Figures { lost_die, failing, ..figures }, remark)));
        }
        Ok(None)
    }

    /// Returns the data lost if the first die failed now; `None` if this was not requested, or if
    /// the other dies have too little space for the written data.
    fn lost_die(&self) -> Result<Option<LostPart>> {
        let Some(log) = self.drive.log().filter(|_| self.loses_die) else { return Ok(None) };
        match log.lost_die(0) {
            Ok(lost) => Ok(Some(self.lost_part(lost.blocks_lost, lost.rebuilt_bytes, lost.times))),
            Err(error) if error.kind() == ErrorKind::NoSpace => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the loss caused by a failure, scaled to the whole drive.
    fn lost_part(&self, blocks_lost: u64, rebuilt_bytes: u64, times: RebuildTimes) -> LostPart {
        let whole = self.size_bytes as f64 / self.spec.size_bytes() as f64;
        LostPart {
            lost_bytes: (blocks_lost * u64::from(BLOCK_BYTES)) as f64 * whole,
            rebuilt_bytes: rebuilt_bytes as f64 * whole,
            rebuild_seconds: times.took_ns as f64 / 1e9 * whole,
            is_rebuilt: times.frames_left == 0,
        }
    }

    /// Runs another round of about `requests` requests on a copy of the drive, with the faults of
    /// the options. Returns `None` if `stop` was set.
    fn failing(
        &mut self,
        case: &Case,
        requests: u64,
        stop: &AtomicBool,
    ) -> Result<Option<Failing>> {
        let Some(log) = self.drive.log() else { return Ok(None) };
        let mut log = log.clone();
        let at = |fault: &PlannedFault| FaultAt {
            requests: (requests as f64 * fault.percent / 100.0) as u64,
            kind: fault.kind,
            die: fault.die,
        };
        log.fail_at(self.options.faults.iter().map(at).collect());
        let whole = std::mem::replace(&mut self.drive, Device::Log(Box::new(log)));
        let (written_bytes, before) = (self.written_bytes, whole.counts(self.written_bytes));
        let round = self.round(case, true, stop);
        self.drive.settle();
        let failed = std::mem::replace(&mut self.drive, whole);
        self.written_bytes = written_bytes;
        let (round, ended_by) = match round {
            Ok(None) => return Ok(None),
            Ok(Some(round)) => (Some(round), None),
            Err(Error::Sim(error)) if error.kind() == ErrorKind::NoSpace => {
                (None, Some(error.to_string()))
            }
            Err(error) => return Err(error),
        };
        let counts = failed.counts(written_bytes).since(&before);
        let times = failed.log().map(LogDrive::rebuild).unwrap_or_default();
        let all =
            round.as_ref().map_or(Speed::default(), |it| Speed::all(&it.tally, it.seconds)[0]);
        Ok(Some(Failing {
            faults: self.options.faults.iter().map(ToString::to_string).collect(),
            ended_by,
            all,
            read_latency: round.as_ref().and_then(|round| round.tally.reads.percentiles()),
            write_latency: round.as_ref().and_then(|round| round.tally.writes.percentiles()),
            unreadable_blocks: counts.blocks_unreadable,
            lost: self.lost_part(counts.blocks_lost, counts.rebuilt_bytes, times),
        }))
    }

    /// Returns the maximum number of rounds of a case, including the measured one.
    fn rounds_max(&self, case: &Case, span_bytes: u64) -> Result<u32> {
        if !self.options.state.is_steady() {
            return Ok(1);
        }
        Ok(match (&case.load, &self.spec) {
            (Load::Trace(_), _) => REPLAYS_MAX + 1,
            (Load::Steps(_), Spec::Other(_)) => ROUNDS_MAX as u32,
            (Load::Steps(_), Spec::Log(spec)) => {
                let log = &spec.store.log;
                let turns = spec.raw_bytes()? / (span_bytes as f64 * log.stored_mean()?);
                (ROUNDS_MAX + 2.0 * turns).min(1e6) as u32
            }
        })
    }

    /// Writes the unwritten part of a range, unless the drive must be new. Returns the number of
    /// bytes written.
    fn fill(&mut self, begin: u64, end: u64, stop: &AtomicBool) -> Result<Option<u64>> {
        let is_filled = self.options.state != State::New && self.spec.is_flash();
        if !is_filled || (self.filled.0 <= begin && end <= self.filled.1) {
            return Ok(Some(0));
        }
        self.lane.begins(format!("{}filling", self.name), FillHost::requests(begin, end));
        let mut host = FillHost::new(begin, end, self.lane);
        if !self.drive.run(&mut host, FILL_SLOTS, stop)? {
            return Ok(None);
        }
        self.filled = (begin, end);
        self.written_bytes += end - begin;
        Ok(Some(end - begin))
    }

    fn round(&mut self, case: &Case, is_paced: bool, stop: &AtomicBool) -> Result<Option<Round>> {
        let (before, start_ns) = (self.drive.counts(self.written_bytes), self.drive.now_ns());
        let cache_before = self.drive.cache_counts().unwrap_or_default();
        self.rounds += 1;
        let what = format!("{}{}", self.name, case.name);
        let ended = match &case.load {
            Load::Steps(workload) => self.load(workload, what, stop)?,
            Load::Trace(trace) => self.replay(trace, is_paced, what, stop)?,
        };
        let Some((tally, late_ns, remark)) = ended else { return Ok(None) };
        self.written_bytes += tally.write_bytes;
        let seconds = tally.ended_ns.saturating_sub(start_ns) as f64 / 1e9;
        let counts = self.drive.counts(self.written_bytes).since(&before);
        let counts = self.spec.is_flash().then_some(counts);
        let cache = self.drive.cache_counts().map(|counts| counts.since(&cache_before));
        Ok(Some(Round { tally, counts, cache, seconds, late_ns, remark }))
    }

    fn load(
        &mut self,
        workload: &Workload,
        what: String,
        stop: &AtomicBool,
    ) -> Result<Option<(Tally, u64, Option<String>)>> {
        let records = workload.records();
        let writes = workload.operation.writes() && workload.operation != Operation::Trim;
        let timed_ns = (workload.seconds * 1e9) as u64;
        let is_log = matches!(self.spec, Spec::Log(_));
        // Flash requires as many writes as it does without a cache.
        let flash = if writes && self.spec.is_flash() { records } else { 0 };
        let (least, most) = CACHED_REQUESTS.into_inner();
        let cached = self.spec.cache_lines().map(|lines| lines.max(flash).clamp(least, most));
        let limits = match (writes, workload.is_timed()) {
            (_, true) if cached.is_some() => {
                Limits { write_bytes: u64::MAX, requests: cached.unwrap_or(0), until_ns: u64::MAX }
            }
            (_, false) if !is_log => {
                Limits { write_bytes: u64::MAX, requests: OTHER_REQUESTS_MAX, until_ns: u64::MAX }
            }
            (_, false) => Limits { write_bytes: u64::MAX, requests: u64::MAX, until_ns: u64::MAX },
            (true, true) => Limits {
                write_bytes: records * workload.record_bytes,
                requests: if is_log {
                    records.saturating_mul(REQUESTS_PER_RECORD)
                } else {
                    OTHER_RANDOM_MAX
                },
                until_ns: u64::MAX,
            },
            (false, true) => Limits {
                write_bytes: u64::MAX,
                requests: READS_MAX,
                until_ns: self.drive.now_ns().saturating_add(timed_ns),
            },
        };
        self.lane.begins(what, limits.requests.min(records));
        let seed = mix(self.options.seed ^ mix(self.rounds));
        let mut host = LoadHost::new(workload, seed, limits, self.lane);
        let slots = workload.depth * workload.threads;
        let has_ended = self.drive.run(&mut host, slots, stop)?;
        Ok(has_ended.then_some((host.tally, 0, None)))
    }

    fn replay(
        &mut self,
        trace: &TraceLoad,
        is_paced: bool,
        what: String,
        stop: &AtomicBool,
    ) -> Result<Option<(Tally, u64, Option<String>)>> {
        let shown = trace.path.display();
        let named = |error| Error::from(error).context(shown.to_string());
        let failed = |error| Error::io(format!("cannot read {shown}"), error);
        let file = File::open(&trace.path).map_err(failed)?;
        let reader = Reader::new(file, trace.options).map_err(named)?;
        self.lane.begins(what, 0);
        let size_bytes = self.spec.size_bytes();
        let pace = is_paced.then(|| self.drive.now_ns());
        let mut host = ReplayHost::new(reader, trace, size_bytes, pace, self.lane);
        let slots = self.spec.depth().min(REPLAY_SLOTS_MAX);
        if !self.drive.run(&mut host, slots, stop)? {
            return Ok(None);
        }
        let left_out = host.left_out();
        let (bad, others) = (left_out.bad_lines, left_out.other_disks);
        let remark = format!("{shown}: skipped: malformed lines: {bad};");
        let remark = format!("{remark} requests of other disks: {others}");
        let remark = (left_out != Default::default()).then_some(remark);
        Ok(Some((host.tally, host.late_ns, remark)))
    }

    fn point(&self, round: &Round) -> Point {
        let latency = round.tally.writes.percentiles();
        Point {
            host_bytes: self.written_bytes,
            write_amplification: self.amplification(round).map(|breakdown| breakdown.all),
            mb_per_s: Speed::all(&round.tally, round.seconds)[0].mb_per_s,
            write_mean_ns: latency.map(|latency| latency.mean_ns),
            write_p99_ns: latency.map(|latency| latency.p99_ns),
        }
    }

    /// Returns the write amplification by cause; `None` for reads or for drives without flash.
    fn amplification(&self, round: &Round) -> Option<Breakdown> {
        let (overhead_percent, _) = self.flash?;
        Breakdown::of(round.counts.as_ref()?, round.tally.write_bytes, overhead_percent)
    }

    fn figures(
        &self,
        case: &Case,
        preconditioning: Preconditioning,
        round: Round,
        course: Vec<Point>,
    ) -> Result<(Figures, Option<String>)> {
        let amplification = self.amplification(&round);
        let Round { tally, cache, seconds, late_ns, remark, .. } = round;
        let line_bytes = self.options.cache.as_ref().map_or(0, |cache| cache.line_bytes);
        let host_bytes = tally.write_bytes;
        let [all, reads, writes] = Speed::all(&tally, seconds);
        let endurance = amplification.zip(self.flash).map(|(breakdown, (_, pe_cycles))| {
            let per_day = self.options.bytes_per_day;
            Endurance::of(self.size_bytes, pe_cycles, breakdown.all, per_day)
        });
        let mut erases = BTreeMap::new();
        for count in self.drive.erases() {
            *erases.entry(count).or_default() += 1;
        }
        let figures = Figures {
            preconditioning,
            seconds,
            all,
            reads,
            writes,
            read_latency: tally.reads.percentiles(),
            write_latency: tally.writes.percentiles(),
            late_ns,
            host_bytes,
            flash_bytes: amplification.map_or(0.0, |it| it.all * host_bytes as f64),
            write_amplification: amplification,
            write_amplification_by_formula: self.by_formula(case)?,
            wear: self.drive.wear(),
            endurance,
            cache: cache.map(|counts| CacheUse::of(&counts, line_bytes)),
            lost_die: None,
            failing: None,
            course,
            erases: erases.into_iter().collect(),
        };
        Ok((figures, remark))
    }

    /// Returns the write amplification calculated by the formula, if it applies: for uniform random
    /// writes of whole blocks in steady state.
    fn by_formula(&self, case: &Case) -> Result<Option<f64>> {
        let Load::Steps(workload) = &case.load else { return Ok(None) };
        let is_random = match workload.operation {
            Operation::RandomWrite => true,
            Operation::Mixed => workload.reads_percent < 100,
            _ => false,
        };
        let holds = is_random
            && workload.pattern == Pattern::Uniform
            && workload.mix.is_empty()
            && workload.is_block_aligned()
            && matches!(&self.spec, Spec::Log(spec) if spec.store.unit_blocks == 1)
            && self.options.state == State::Steady;
        if !holds {
            return Ok(None);
        }
        let (Spec::Log(spec), Some((overhead_percent, _))) = (&self.spec, self.flash) else {
            return Ok(None);
        };
        let log = &spec.store.log;
        let (raw, stored) = (spec.raw_bytes()?, log.stored_mean()?);
        let data = formula::first_order(raw, workload.span_bytes as f64, stored);
        let data_share = (1.0 - overhead_percent / 100.0) * (1.0 - log.parity_share());
        Ok(Some(data / data_share))
    }
}

//! The steps of a detection: rounds, their space and speed, sweeps, conclusions.

use std::sync::atomic::{AtomicBool, Ordering};

use rand_xoshiro::rand_core::Rng;

use super::data::Maker;
use super::judge::{self, Rates, Reading, SweepReading};
use super::region::{RECORD_BYTES, Region, Settings};
use super::usage_source::{self, UsageSource, usage_sources};
use super::words;
use super::{Account, Answer, Class, Data, Detection, FORMAT, Operation, Zeroes};
use crate::bench::results::environment::environment;
use crate::bench::target::Location;
use crate::error::{Error, Result};
use pumice_drive::base::seed::random;
use pumice_drive::base::units::format_size_exact;

/// Minimum bytes of a run. At this size duplicates are 2 MiB apart, beyond any unit of compression,
/// and metadata is comparatively small.
pub const SPAN_BYTES_MIN: u64 = 8 << 20;

/// Runs of each kind of data: the minimum at which runs in turns can be significant (two of 64
/// orders).
const ROUNDS: usize = 6;

/// Savings of the threshold sweep, in percent.
pub(super) const SAVINGS: [f64; 7] = [0.0, 5.0, 10.0, 12.5, 25.0, 50.0, 75.0];

/// Distances between repeats in the unit sweep, in KiB.
pub(super) const DISTANCES_KIB: [u64; 7] = [2, 4, 8, 16, 32, 64, 128];

/// Finds out whether a target compresses or deduplicates.
///
/// Writes the span thirty times, or up to 75 times if compression is found, and finally removes or
/// trims the data. Calls `progress` with the next action and the completed share. Setting `stop`
/// ends the detection early; the result then contains the evidence so far.
///
/// # Errors
/// [`Error::Invalid`] if the span is too small or not a multiple of 256 KiB; the errors of
/// [`Location::prepare`] and of the target.
pub fn detect(
    location: &Location,
    settings: Settings,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(&str, f64),
) -> Result<Detection> {
    let Settings { access, span_bytes, seed, .. } = settings;
    check_span(span_bytes)?;
    if let Location::Sim(profile) = location {
        let what = format!("{location} is simulated: 'pumice drives {profile}' shows its codec");
        return Err(Error::unsupported(what));
    }
    if let Location::Existing(_) = location {
        return Err(Error::ReadOnly(format!("{location} is read-only: detection writes to it")));
    }
    let facts = environment(location.path().as_deref());
    let (sources, mut remarks) = usage_sources(location);
    let region = Region::open(location, settings, stop)?;
    let mut look =
        Look { location, region, sources, span_bytes, seed, stop, runs: 0, zeroes: None, progress };
    let mut rounds = look.rounds("first look")?;
    let mut accounts = look.accounts(&rounds);
    let mut speeds = judge::speeds(&rounds.rates(span_bytes), seed);
    let answer = judge::answer(&accounts, &speeds);
    if answer == Answer::CannotTell && judge::faster(&speeds, |_| true) && !look.stopped() {
        // One in twenty first rounds differs by chance, so a second set of rounds on new data must
        // confirm it.
        remarks.push(
            "The first difference in speed was confirmed or refuted by a second test.".into(),
        );
        rounds = look.rounds("second look")?;
        accounts = look.accounts(&rounds);
        speeds = judge::speeds(&rounds.rates(span_bytes), seed);
    }
    let (mut threshold, mut reach) = (None, None);
    if let Some(index) = judge::best(&accounts).filter(|_| !look.stopped()) {
        let name = &accounts[index].name;
        threshold = look.savings(index)?.map(|steps| judge::threshold(name, &steps));
        reach = look.distances(index)?.map(|steps| judge::reach(name, &steps));
    }
    let stopped = look.stopped();
    let answer = judge::answer(&accounts, &speeds);
    let zeroes = judge::zeroes(&accounts, look.zeroes);
    let mut detection = Detection {
        pumice_detection: FORMAT,
        target: location.to_string(),
        environment: facts,
        span_bytes,
        seed,
        direct: access.direct,
        stopped,
        answer,
        verdict: String::new(),
        accounts,
        speeds,
        zeroes,
        threshold,
        reach,
        remarks,
    };
    detection.remark();
    detection.verdict = words::verdict(&detection);
    Ok(detection)
}

fn check_span(span_bytes: u64) -> Result<()> {
    if span_bytes < SPAN_BYTES_MIN || !span_bytes.is_multiple_of(RECORD_BYTES) {
        let [span, least] = [span_bytes, SPAN_BYTES_MIN].map(format_size_exact);
        let what = format!("invalid span {span}: expected at least {least}, a multiple of 256 KiB");
        return Err(Error::invalid(what));
    }
    Ok(())
}

/// A detection in progress.
struct Look<'a> {
    location: &'a Location,
    region: Region<'a>,
    sources: Vec<UsageSource>,
    span_bytes: u64,
    seed: u64,
    stop: &'a AtomicBool,
    runs: u64,
    zeroes: Option<Zeroes>,
    progress: &'a mut dyn FnMut(&str, f64),
}

/// One step of a sweep.
#[derive(Clone, Copy)]
struct SweepInput {
    value: f64,
    data: Data,
}

/// The measurements of one run.
struct RunReadings {
    data: Data,
    write_seconds: f64,
    read_seconds: f64,
    /// Growth of each usage source.
    grown: Vec<Option<i64>>,
}

struct Rounds(Vec<RunReadings>);

impl Look<'_> {
    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn rounds(&mut self, what: &str) -> Result<Rounds> {
        let mut order = random(self.seed.wrapping_add(self.runs));
        let mut done = Vec::new();
        let total = (ROUNDS * Data::COMPARED.len()) as f64;
        for _ in 0..ROUNDS {
            let mut kinds = Data::COMPARED;
            for last in (1..kinds.len()).rev() {
                kinds.swap(last, (order.next_u64() % (last as u64 + 1)) as usize);
            }
            for data in kinds {
                (self.progress)(&format!("{what}: {}", data.name()), done.len() as f64 / total);
                match self.run(data, true)? {
                    Some(run) => done.push(run),
                    None => return Ok(Rounds(done)),
                }
            }
        }
        Ok(Rounds(done))
    }

    /// Writes one kind of data to a fresh target. Returns `None` if it was stopped.
    fn run(&mut self, data: Data, reads: bool) -> Result<Option<RunReadings>> {
        let maker = Maker::new(data, self.seed, self.runs, self.span_bytes)?;
        self.runs += 1;
        self.region.refresh()?;
        let before = self.readings();
        let Some(write_seconds) = self.region.write(&maker)? else { return Ok(None) };
        self.region.settle()?;
        let after = self.readings();
        if data == Data::Zeroes {
            self.zeroes = usage_source::zeroes(self.location, &self.region, self.span_bytes);
        }
        let read_seconds = if reads { self.region.read()? } else { Some(0.0) };
        let Some(read_seconds) = read_seconds else { return Ok(None) };
        let grown = before
            .into_iter()
            .zip(after)
            .map(|(before, after)| i64::try_from(i128::from(after?) - i128::from(before?)).ok());
        Ok(Some(RunReadings { data, write_seconds, read_seconds, grown: grown.collect() }))
    }

    fn readings(&self) -> Vec<Option<u64>> {
        self.sources.iter().map(|source| source.read(&self.region)).collect()
    }

    fn accounts(&self, rounds: &Rounds) -> Vec<Account> {
        let untrimmed = "the device cannot trim: it still held old data";
        let one = |(index, source): (usize, &UsageSource)| {
            let kept = source.class == Class::Usage && !self.region.trims();
            let readings = rounds.readings(index);
            let hindrance = match () {
                () if kept => Some(untrimmed),
                () if rounds.0.len() < ROUNDS * Data::COMPARED.len() => Some("it was stopped"),
                () if readings.iter().any(|reading| reading.bytes.len() < ROUNDS) => {
                    Some("it could not be read")
                }
                () => None,
            };
            judge::account(&source.name, source.class, self.span_bytes, &readings, hindrance)
        };
        self.sources.iter().enumerate().map(one).collect()
    }

    /// Measures the space taken by data with each of [`SAVINGS`].
    fn savings(&mut self, source: usize) -> Result<Option<Vec<SweepReading>>> {
        let step = |percent| SweepInput { value: percent, data: Data::Saving(percent) };
        self.sweep("threshold", source, &SAVINGS.map(step))
    }

    /// Measures the space taken by data without repeats, then with repeats at each of
    /// [`DISTANCES_KIB`].
    fn distances(&mut self, source: usize) -> Result<Option<Vec<SweepReading>>> {
        let repeats = DISTANCES_KIB
            .map(|kib| SweepInput { value: (kib << 10) as f64, data: Data::Repeats(kib << 10) });
        let mut steps = vec![SweepInput { value: 0.0, data: Data::FewValues }];
        steps.extend(repeats);
        self.sweep("unit", source, &steps)
    }

    fn sweep(
        &mut self,
        what: &str,
        source: usize,
        steps: &[SweepInput],
    ) -> Result<Option<Vec<SweepReading>>> {
        let mut taken = Vec::new();
        for (index, &SweepInput { value, data }) in steps.iter().enumerate() {
            (self.progress)(&format!("{what}: {}", data.name()), index as f64 / steps.len() as f64);
            let Some(run) = self.run(data, false)? else { return Ok(None) };
            let Some(bytes) = run.grown[source] else { return Ok(None) };
            taken.push(SweepReading { value, taken_bytes: bytes });
        }
        Ok(Some(taken))
    }
}

impl Rounds {
    fn readings(&self, source: usize) -> Vec<Reading> {
        let of = |data| {
            let runs = self.0.iter().filter(|run| run.data == data);
            Reading { data, bytes: runs.filter_map(|run| run.grown[source]).collect() }
        };
        Data::COMPARED.map(of).into()
    }

    /// Returns speeds in 10^6 bytes per second.
    fn rates(&self, span_bytes: u64) -> Vec<Rates> {
        let rate = |seconds: f64| span_bytes as f64 / 1e6 / seconds.max(1e-9);
        let mut rates = Vec::new();
        for data in Data::COMPARED {
            let runs = || self.0.iter().filter(|run| run.data == data);
            let writes = runs().map(|run| rate(run.write_seconds)).collect();
            let reads = runs().map(|run| rate(run.read_seconds)).collect();
            rates.push(Rates { data, operation: Operation::Write, rates: writes });
            rates.push(Rates { data, operation: Operation::Read, rates: reads });
        }
        rates
    }
}

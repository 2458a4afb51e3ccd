//! Results of a benchmark: everything that a report, a comparison or a continuation needs.
//!
//! * `file`: a file that grows by one line per run, so that an interruption loses no run.
//! * `cells`: summaries of repeated runs.
//! * `environment`: the machine and the device.
//!
//! Contains numbers as measured; conclusions belong to `stats` and the reports.

mod cells;
pub mod environment;
mod file;
#[cfg(test)]
pub(crate) mod sample;

use serde::{Deserialize, Serialize};

use crate::bench::engine::{Interval, Sample};
use crate::bench::target::Location;
use crate::error::Result;
use crate::payload::{Finding, Survey};
use crate::stats::Latencies;
use crate::workload::{Plan, Unit};
use pumice_sim::profile::Profile;
use pumice_sim::system::SystemSpec;

pub use cells::CellSummary;
pub use file::{Writer, read};

/// Version of the format. Others are refused.
pub const FORMAT: u32 = 1;

/// Bytes of each level's data to measure before the first run.
const SURVEY_BYTES: usize = 8 << 20;

/// Everything known before the first run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// [`FORMAT`].
    pub pumice_bench: u32,
    /// Origin of the measurement: `pumice 0.1.0`, or another tool whose results were imported.
    pub tool: String,
    /// Name of the preset.
    pub title: String,
    /// Description of the preset.
    pub about: String,
    /// The target, as specified.
    pub target: String,
    /// The plan.
    pub plan: Plan,
    /// The command line; empty if unknown.
    pub command: String,
    /// Start of the benchmark, in seconds since 1970, UTC; 0 if unknown.
    pub begun_unix_s: u64,
    /// Names with values, in reading order.
    pub environment: Vec<(String, String)>,
    /// Measured savings of each level's data; empty if unknown.
    pub payloads: Vec<LevelFindings>,
}

impl Header {
    /// Collects the facts about this machine and measures 8 MiB of each level's data.
    /// `begun_unix_s`: seconds since 1970.
    ///
    /// # Errors
    /// Data that cannot be generated; an unknown profile.
    pub fn new(
        title: &str,
        about: &str,
        location: &Location,
        plan: Plan,
        begun_unix_s: u64,
    ) -> Result<Self> {
        let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
        Ok(Self {
            pumice_bench: FORMAT,
            tool: format!("pumice {}", env!("CARGO_PKG_VERSION")),
            title: title.to_owned(),
            about: about.to_owned(),
            target: location.to_string(),
            payloads: survey(&plan)?,
            plan,
            command: words.collect::<Vec<_>>().join(" "),
            begun_unix_s,
            environment: match location {
                Location::Sim(text) => {
                    environment::simulated(&Profile::find(SystemSpec::profile_of(text))?)
                }
                _ => environment::environment(location.path().as_deref()),
            },
        })
    }
}

/// Measures the savings of each level's data.
fn survey(plan: &Plan) -> Result<Vec<LevelFindings>> {
    let record_bytes = plan.tests.iter().map(|test| test.workload.record_bytes).max();
    let mut findings = Vec::new();
    for level in &plan.levels {
        let unit_bytes = level.unit_bytes(record_bytes.expect("a checked plan has tests"));
        // No run uses this stream.
        let mut stream = level.payload(plan.seed, unit_bytes)?.stream(u64::MAX);
        let mut data = vec![0; SURVEY_BYTES];
        stream.fill(&mut data);
        let mut survey = Survey::default();
        survey.add(&data);
        findings.push(LevelFindings { level: level.name.clone(), findings: survey.findings() });
    }
    Ok(findings)
}

/// Measured savings of a level's data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LevelFindings {
    /// Name of the level.
    pub level: String,
    /// Findings by codec and chunk size.
    pub findings: Vec<Finding>,
}

/// Bytes that a block device counted during a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceBytes {
    /// Read from it.
    pub read: u64,
    /// Written to it.
    pub written: u64,
    /// Discarded.
    pub discarded: u64,
    /// Written over the device's lifetime, as the device reports it (SMART); absent if not
    /// available.
    #[serde(default)]
    pub smart_written: Option<u64>,
}

/// Position of a run in a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunPosition {
    /// Round, from 0.
    pub round: u32,
    /// Index into the plan's tests.
    pub test: usize,
    /// Index into the plan's levels.
    pub level: usize,
    /// Position in the order of all runs, from 0.
    pub place: u64,
}

/// One run of one cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    /// Round, from 0.
    pub round: u32,
    /// Index into the plan's tests.
    pub test: usize,
    /// Index into the plan's levels.
    pub level: usize,
    /// Position in the order of all runs, from 0.
    pub place: u64,
    /// Seconds since the benchmark's first run began.
    pub begun_s: f64,
    /// Seconds from the first request to the last reply, including the flush if it is timed.
    pub seconds: f64,
    /// Seconds of the flush at the end, timed or not.
    pub flush_seconds: f64,
    /// Completed requests.
    pub operations: u64,
    /// Bytes read, written or trimmed by the host.
    pub host_bytes: u64,
    /// Bytes written by the host.
    pub written_bytes: u64,
    /// Latency of each request; empty if unknown.
    pub latency: Latencies,
    /// Length of each interval of the timeline in ns, and the intervals.
    pub interval_ns: u64,
    /// See `interval_ns`.
    pub intervals: Vec<Interval>,
    /// Share of the threads' time spent on generating data, 0 to 1.
    pub generation_share: f64,
    /// Processor time of the whole bench divided by wall time and threads, 0 to 1.
    pub processor_share: f64,
    /// Counters of the device below; absent if there is none or it does not count.
    pub device: Option<DeviceBytes>,
    /// Warnings for readers of this run.
    pub warnings: Vec<String>,
}

impl RunResult {
    /// Returns the result of a run from the engine's sample.
    pub fn new(position: RunPosition, sample: Sample) -> Self {
        let RunPosition { round, test, level, place } = position;
        Self {
            round,
            test,
            level,
            place,
            begun_s: 0.0,
            seconds: sample.seconds,
            flush_seconds: sample.flush_seconds,
            operations: sample.operations,
            host_bytes: sample.host_bytes,
            written_bytes: sample.written_bytes,
            latency: sample.latency,
            interval_ns: sample.interval_ns,
            intervals: sample.intervals,
            generation_share: sample.generation_share,
            processor_share: 0.0,
            device: None,
            warnings: Vec::new(),
        }
    }

    /// Returns the value in a unit: 10^6 bytes or requests per second.
    pub fn value(&self, unit: Unit) -> f64 {
        let amount = match unit {
            Unit::Throughput => self.host_bytes as f64 / 1e6,
            Unit::Rate => self.operations as f64,
        };
        amount / self.seconds.max(1e-9)
    }
}

/// Results of a benchmark, complete or not.
#[derive(Clone, Debug, PartialEq)]
pub struct Results {
    /// Everything known before the first run.
    pub header: Header,
    /// Runs in the order of completion.
    pub runs: Vec<RunResult>,
}

impl Results {
    /// Returns the runs of one cell, by their round.
    pub fn cell(&self, test: usize, level: usize) -> impl Iterator<Item = &RunResult> {
        self.runs.iter().filter(move |run| run.test == test && run.level == level)
    }

    /// Returns the values of a cell's runs in the test's unit.
    pub fn values(&self, test: usize, level: usize) -> Vec<f64> {
        let unit = self.header.plan.tests[test].unit;
        self.cell(test, level).map(|run| run.value(unit)).collect()
    }
}

/// Returns a unique name for each result: its title, with the target and then a number where
/// titles are not unique.
pub(crate) fn names(all: &[Results]) -> Vec<String> {
    let titles: Vec<String> = all.iter().map(|one| one.header.title.clone()).collect();
    let with_target = |one: &Results| format!("{} on {}", one.header.title, one.header.target);
    let targets: Vec<String> = all.iter().map(with_target).collect();
    let is_unique =
        |names: &[String], name: &String| names.iter().filter(|other| *other == name).count() == 1;
    let name = |index: usize| {
        if is_unique(&titles, &titles[index]) {
            titles[index].clone()
        } else if is_unique(&targets, &targets[index]) {
            targets[index].clone()
        } else {
            format!("{} ({})", targets[index], index + 1)
        }
    };
    (0..all.len()).map(name).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    //! Goal: a run's value is what its unit says.
    use super::*;

    /// A run of 500 requests of 4 KiB in two seconds.
    pub(crate) fn sample() -> Sample {
        Sample {
            seconds: 2.0,
            flush_seconds: 0.5,
            operations: 500,
            host_bytes: 500 * 4096,
            written_bytes: 0,
            latency: Latencies::new(),
            interval_ns: 50_000_000,
            intervals: Vec::new(),
            generation_share: 0.0,
        }
    }

    #[test]
    fn values_have_their_unit() {
        let run = RunResult::new(RunPosition::default(), sample());
        assert_eq!(run.value(Unit::Rate), 250.0);
        assert_eq!(run.value(Unit::Throughput), 1.024);
    }
}

//! Plans: tests at levels, repeated in rounds.
//!
//! A **test** is a workload with a name; a **level** is a kind of data; a **cell** is one test at
//! one level; a **round** runs every cell once. A plan is complete: two results of the same plan
//! can be compared. `preset` creates plans; the bench runs them.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::payload::{self, KindName, Payload, PayloadOptions, Saving, UNIT_BYTES};
use crate::workload::{Operation, RECORD_BYTES_MIN, Workload};

/// Maximum number of tests, levels and runs: a larger plan is a mistake.
pub const TESTS_MAX: usize = 500;
/// See [`TESTS_MAX`].
pub const LEVELS_MAX: usize = 50;
/// See [`TESTS_MAX`].
pub const RUNS_MAX: u32 = 1000;

/// The quantity that a test's reports show first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Unit {
    /// 10^6 bytes per second read or written by the host.
    #[default]
    #[serde(rename = "MB/s")]
    Throughput,
    /// Requests per second.
    #[serde(rename = "IOPS")]
    Rate,
}

impl Unit {
    /// Returns the unit as it is printed.
    pub fn name(self) -> &'static str {
        match self {
            Self::Throughput => "MB/s",
            Self::Rate => "IOPS",
        }
    }
}

/// A workload with a name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Test {
    /// Unique in the plan.
    pub name: String,
    /// The quantity that reports show first.
    pub unit: Unit,
    /// The workload.
    pub workload: Workload,
}

/// A kind of data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Level {
    /// Unique in the plan, such as `50 % saved`.
    pub name: String,
    /// Kind of data, as on the command line: see [`KindName`].
    pub kind: String,
    /// Requested saving in per cent, for kinds that take one.
    pub saved_percent: Option<f64>,
    /// Share of units that repeat earlier ones, in per cent; the default of the kind if absent.
    pub duplicates_percent: Option<f64>,
}

impl Level {
    /// Returns the unit size of the data for a record size: a record, or 4 KiB if that is less, so
    /// that every record has the requested saving. Only IOzone's units are whole records, up to 16
    /// MiB.
    pub fn unit_bytes(&self, record_bytes: u64) -> usize {
        let largest =
            if self.kind.starts_with("iozone") { payload::RECORD_BYTES_MAX } else { UNIT_BYTES };
        let largest = largest as u64;
        let power = 1 << record_bytes.trailing_zeros().min(63);
        largest.min(power).max(RECORD_BYTES_MIN) as usize
    }

    /// Returns the data, in units of `unit_bytes`.
    ///
    /// # Errors
    /// The kind is unknown, needs a saving or takes none, or its file cannot be read.
    pub fn payload(&self, seed: u64, unit_bytes: usize) -> Result<Payload> {
        let wrong = |what| Error::invalid(what);
        let kind: KindName = self.kind.parse().map_err(wrong)?;
        // Windows of real data consist of such units only.
        let is_woven = matches!(kind, KindName::Spread | KindName::Like(_));
        let saving = |percent: f64| Saving::from_fraction(percent / 100.0);
        let mut options = PayloadOptions::new(kind.load(self.saved_percent.map(saving))?);
        options.seed = seed;
        options.unit_bytes = if is_woven { UNIT_BYTES } else { unit_bytes };
        options.duplicates = self.duplicates_percent.map_or(options.duplicates, saving);
        Payload::new(options)
    }
}

/// Order of the cells of a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Levels in a different order in every round, so that heating up or filling up is not mistaken
    /// for an effect of the data; tests as listed.
    #[default]
    Shuffled,
    /// Levels and tests as listed.
    Given,
}

/// State of the page cache before a run that reads through it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cache {
    /// The target is written back and dropped from the cache before every run.
    #[default]
    Dropped,
    /// As the previous run left it.
    Warm,
}

/// A complete plan of a benchmark.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Tests, in the order of execution.
    pub tests: Vec<Test>,
    /// Levels, from the highest to the lowest saving.
    pub levels: Vec<Level>,
    /// Minimum number of rounds.
    pub runs: u32,
    /// Maximum number of rounds, if `precision_percent` is set.
    pub runs_max: u32,
    /// Required precision: half the width of the mean's interval, in per cent of the mean. Cells
    /// that have not reached it run in further rounds.
    pub precision_percent: Option<f64>,
    /// Rounds end when this test is in steady state at every level, or after `runs_max` rounds.
    pub steady: Option<String>,
    /// Whether the used part of the target is trimmed first, so that a flash drive is as new.
    #[serde(default)]
    pub purge: bool,
    /// How many times the whole span is written before the first round, with the first level's
    /// data.
    pub precondition: u32,
    /// Whether each level's data is written before its tests that read, so that every level reads
    /// its own data. Otherwise the target keeps what the tests wrote.
    pub fills: bool,
    /// Order of the cells of a round.
    pub order: Order,
    /// Bypass the page cache (O_DIRECT).
    pub direct: bool,
    /// State of the page cache, if it is used.
    pub cache: Cache,
    /// Duration of the warm-up of each time-based test, in seconds.
    pub warm_up_seconds: f64,
    /// Idle time before each run, in seconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub pause_seconds: f64,
    /// Reports also show the best of this many first runs, as a tool that reports its best run
    /// would.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best_of: Option<u32>,
    /// Seed of addresses, data and order.
    pub seed: u64,
}

fn is_zero(seconds: &f64) -> bool {
    *seconds == 0.0
}

impl Plan {
    /// Checks the invariants that other code relies on.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the invalid number or name.
    pub fn check(&self) -> Result<()> {
        let wrong = |what: String| Err(Error::invalid(what));
        let (tests, levels) = (self.tests.len(), self.levels.len());
        if !(1..=TESTS_MAX).contains(&tests) || !(1..=LEVELS_MAX).contains(&levels) {
            return wrong(format!(
                "{tests} tests at {levels} levels: expected 1 to {TESTS_MAX} and 1 to {LEVELS_MAX}"
            ));
        }
        if !(1..=RUNS_MAX).contains(&self.runs) || !(self.runs..=RUNS_MAX).contains(&self.runs_max)
        {
            return wrong(format!("{} runs: expected 1 to {RUNS_MAX}", self.runs));
        }
        if !(0.0..=1e6).contains(&self.warm_up_seconds) {
            return wrong(format!("a warm-up of {} seconds is out of range", self.warm_up_seconds));
        }
        if !(0.0..=1e6).contains(&self.pause_seconds) {
            return wrong(format!("a pause of {} seconds is out of range", self.pause_seconds));
        }
        if self.best_of.is_some_and(|runs| !(1..=RUNS_MAX).contains(&runs)) {
            return wrong(format!("the best of no runs: expected 1 to {RUNS_MAX}"));
        }
        if self.precision_percent.is_some_and(|percent| !(percent > 0.0 && percent <= 100.0)) {
            return wrong("the precision is out of range: expected a share such as 2%".into());
        }
        for (index, test) in self.tests.iter().enumerate() {
            test.workload
                .check()
                .map_err(|error| error.context(format!("test '{}'", test.name)))?;
            if self.tests[..index].iter().any(|other| other.name == test.name) {
                return wrong(format!("two tests have the name '{}'", test.name));
            }
        }
        for (index, level) in self.levels.iter().enumerate() {
            if self.levels[..index].iter().any(|other| other.name == level.name) {
                return wrong(format!("two levels have the name '{}'", level.name));
            }
        }
        let reads = |test: &Test| {
            !test.workload.operation.writes() || test.workload.operation == Operation::Mixed
        };
        if !self.fills && self.precondition == 0 && self.tests.iter().any(reads) {
            let what = "tests read data that was never written: set 'fills' or 'precondition'";
            return wrong(what.into());
        }
        match &self.steady {
            Some(name) if !self.tests.iter().any(|test| test.name == *name) => {
                wrong(format!("no test has the name '{name}', which 'steady' refers to"))
            }
            _ => Ok(()),
        }
    }

    /// Removes the tests that need a file and the page cache; returns their operations.
    pub fn leave_out_stdio(&mut self) -> Vec<Operation> {
        let mut left_out: Vec<_> = self.tests.iter().map(|test| test.workload.operation).collect();
        left_out.retain(|operation| operation.is_stdio());
        left_out.dedup();
        self.tests.retain(|test| !test.workload.operation.is_stdio());
        left_out
    }

    /// Returns the number of cells: tests at levels.
    pub fn cells(&self) -> usize {
        self.tests.len() * self.levels.len()
    }

    /// Returns the begin of the used part of the target, in bytes.
    pub fn begin_bytes(&self) -> u64 {
        self.tests.iter().map(|test| test.workload.shift_bytes).min().unwrap_or(0)
    }

    /// Returns the end of the used part of the target, in bytes.
    pub fn end_bytes(&self) -> u64 {
        self.tests.iter().map(|test| test.workload.end_bytes()).max().unwrap_or(0)
    }
}

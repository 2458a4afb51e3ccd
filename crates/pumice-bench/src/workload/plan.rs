//! What a benchmark is to do: tests by levels, again and again.
//!
//! A **test** is a workload with a name; a **level** is a kind of data; a **cell** is one test at
//! one level; a **round** is every cell once. A plan is complete: two results of the same plan may
//! be held against each other. Where it comes from is `preset`'s, carrying it out `runner`'s.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::payload::{KindName, Options, Payload, Saving, UNIT_BYTES};
use crate::workload::{Operation, RECORD_BYTES_MAX, RECORD_BYTES_MIN, Workload};

/// Tests, levels and runs at most: a plan of more is a mistake.
pub const TESTS_MAX: usize = 500;
/// See [`TESTS_MAX`].
pub const LEVELS_MAX: usize = 50;
/// See [`TESTS_MAX`].
pub const RUNS_MAX: u32 = 1000;

/// What is looked at first of a test's results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Unit {
    /// 10^6 bytes a second that the host moved.
    #[default]
    #[serde(rename = "MB/s")]
    Throughput,
    /// Requests a second.
    #[serde(rename = "IOPS")]
    Rate,
}

impl Unit {
    /// As it is printed.
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
    /// Unlike those of the plan's other tests.
    pub name: String,
    /// What is looked at first.
    pub unit: Unit,
    /// What is done.
    pub workload: Workload,
}

/// A kind of data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Level {
    /// Unlike those of the plan's other levels, such as `50 % saved`.
    pub name: String,
    /// As on the command line: see [`KindName`].
    pub kind: String,
    /// Share that is to be saved, in per cent, for kinds that take one.
    pub saved_percent: Option<f64>,
    /// Share of units that repeat earlier ones, in per cent; what the kind has itself if absent.
    pub duplicates_percent: Option<f64>,
}

impl Level {
    /// Bytes of its data's units for records of that size: a record, or 4 KiB if that is less, so
    /// that every record saves what was asked; only IOzone's are always whole records.
    pub fn unit_bytes(&self, record_bytes: u64) -> usize {
        let largest =
            if self.kind.starts_with("iozone") { RECORD_BYTES_MAX } else { UNIT_BYTES as u64 };
        let power = 1 << record_bytes.trailing_zeros().min(63);
        largest.min(power).max(RECORD_BYTES_MIN) as usize
    }

    /// Its data, in units of that many bytes.
    ///
    /// # Errors
    /// The kind is none, needs a saving or takes none, or its file cannot be read.
    pub fn payload(&self, seed: u64, unit_bytes: usize) -> Result<Payload> {
        let wrong = |what| Error::invalid(what);
        let kind: KindName = self.kind.parse().map_err(wrong)?;
        // Windows of real data are made of such units only.
        let is_woven = matches!(kind, KindName::Spread | KindName::Like(_));
        let saving = |percent: f64| Saving::from_fraction(percent / 100.0);
        let mut options = Options::new(kind.load(self.saved_percent.map(saving))?);
        options.seed = seed;
        options.unit_bytes = if is_woven { UNIT_BYTES } else { unit_bytes };
        options.duplicates = self.duplicates_percent.map_or(options.duplicates, saving);
        Payload::new(options)
    }
}

/// In which order the cells of a round are run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Levels in another order in every round, so that heating up or filling up is not read as an
    /// effect of the data; tests as they are written.
    #[default]
    Shuffled,
    /// As they are written.
    Given,
}

/// What the page cache holds before a run that reads through it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cache {
    /// Nothing of the target: it is written back and dropped before every run.
    #[default]
    Dropped,
    /// Whatever the run before left.
    Warm,
}

/// What is to be measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// In the order in which they are run.
    pub tests: Vec<Test>,
    /// From the one that saves most to the one that saves least.
    pub levels: Vec<Level>,
    /// Rounds; at least so many.
    pub runs: u32,
    /// Rounds at most, if `precision_percent` asks for more.
    pub runs_max: u32,
    /// Half the width of the interval of the mean that is asked for, in per cent of the mean: cells
    /// that have not reached it run in further rounds.
    pub precision_percent: Option<f64>,
    /// Rounds end when this test is in steady state at every level, after `runs_max` in any case.
    pub steady: Option<String>,
    /// Times that the whole span is written before the first round, with the first level's data.
    pub precondition: u32,
    /// Whether data is put under the tests that read before each round of a level, so that every
    /// level finds its own data. Without it the target is left as the tests leave it.
    pub fills: bool,
    /// In which order cells are run.
    pub order: Order,
    /// Around the page cache.
    pub direct: bool,
    /// What the page cache holds, where it is not gone around.
    pub cache: Cache,
    /// Seconds that an operation which ends with time runs before it is measured.
    pub warm_up_seconds: f64,
    /// Of addresses, data and order.
    pub seed: u64,
}

impl Plan {
    /// Checks what other code relies on.
    ///
    /// # Errors
    /// `InvalidInput`, saying what is wrong and where.
    pub fn check(&self) -> Result<()> {
        let wrong = |what: String| Err(Error::invalid(what));
        let (tests, levels) = (self.tests.len(), self.levels.len());
        if !(1..=TESTS_MAX).contains(&tests) || !(1..=LEVELS_MAX).contains(&levels) {
            return wrong(format!(
                "{tests} tests at {levels} levels: give 1 to {TESTS_MAX} and 1 to {LEVELS_MAX}"
            ));
        }
        if !(1..=RUNS_MAX).contains(&self.runs) || !(self.runs..=RUNS_MAX).contains(&self.runs_max)
        {
            return wrong(format!("{} runs: give 1 to {RUNS_MAX}", self.runs));
        }
        if !(0.0..=1e6).contains(&self.warm_up_seconds) {
            return wrong(format!("{} seconds of warming up", self.warm_up_seconds));
        }
        if self.precision_percent.is_some_and(|percent| !(percent > 0.0 && percent <= 100.0)) {
            return wrong("a precision out of reach: give something like 2%".into());
        }
        for (index, test) in self.tests.iter().enumerate() {
            test.workload
                .check()
                .map_err(|error| error.context(format!("test '{}'", test.name)))?;
            if self.tests[..index].iter().any(|other| other.name == test.name) {
                return wrong(format!("two tests are called '{}'", test.name));
            }
        }
        for (index, level) in self.levels.iter().enumerate() {
            if self.levels[..index].iter().any(|other| other.name == level.name) {
                return wrong(format!("two levels are called '{}'", level.name));
            }
        }
        let reads = |test: &Test| {
            !test.workload.operation.writes() || test.workload.operation == Operation::Mixed
        };
        if !self.fills && self.precondition == 0 && self.tests.iter().any(reads) {
            return wrong(
                "tests read what nobody wrote: let the preset fill or precondition".into(),
            );
        }
        match &self.steady {
            Some(name) if !self.tests.iter().any(|test| test.name == *name) => {
                wrong(format!("no test is called '{name}', which is to become steady"))
            }
            _ => Ok(()),
        }
    }

    /// Leaves out what can only be done on a file through the page cache, and gives the operations
    /// that were.
    pub fn leave_out_stdio(&mut self) -> Vec<Operation> {
        let mut left_out: Vec<_> = self.tests.iter().map(|test| test.workload.operation).collect();
        left_out.retain(|operation| operation.is_stdio());
        left_out.dedup();
        self.tests.retain(|test| !test.workload.operation.is_stdio());
        left_out
    }

    /// Bytes of the target that are touched, from its first.
    pub fn end_bytes(&self) -> u64 {
        self.tests.iter().map(|test| test.workload.end_bytes()).max().unwrap_or(0)
    }
}

//! Plans: tests at several levels, repeated in rounds.
//!
//! A **test** is a named workload; a **level** is a kind of data; a **cell** is one test at one
//! level; a **round** runs every cell once. A plan is complete: two results of the same plan are
//! comparable. `preset` creates plans; the bench runs them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::payload::{self, KindName, Payload, PayloadOptions, Saving, UNIT_BYTES};
use crate::stats::Better;
use crate::workload::{DEPTH_MAX, Operation, RECORD_BYTES_MIN, Workload};

/// Maximum number of tests, levels and runs. A larger plan is assumed to be a mistake.
pub const TESTS_MAX: usize = 500;
/// See [`TESTS_MAX`].
const LEVELS_MAX: usize = 50;
/// See [`TESTS_MAX`].
pub const RUNS_MAX: u32 = 1000;

/// The quantity that reports show first for a test.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Unit {
    /// 10^6 bytes per second read or written by the host.
    #[default]
    #[serde(rename = "MB/s")]
    Throughput,
    /// Requests per second.
    #[serde(rename = "IOPS")]
    Rate,
    /// Mean latency of a request, in milliseconds; lower is better.
    #[serde(rename = "ms")]
    Latency,
    /// Duration of the whole test, in seconds; lower is better.
    #[serde(rename = "s")]
    Duration,
}

impl Unit {
    /// All units, in the order of reports.
    pub const ALL: [Self; 4] = [Self::Throughput, Self::Rate, Self::Latency, Self::Duration];

    /// Returns which values are better.
    pub fn better(self) -> Better {
        match self {
            Self::Throughput | Self::Rate => Better::Higher,
            Self::Latency | Self::Duration => Better::Lower,
        }
    }

    /// Returns the unit as it is printed.
    pub fn name(self) -> &'static str {
        match self {
            Self::Throughput => "MB/s",
            Self::Rate => "IOPS",
            Self::Latency => "ms",
            Self::Duration => "s",
        }
    }
}

/// A named workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Test {
    /// Name, unique within the plan.
    pub name: String,
    /// The quantity that reports show first.
    pub unit: Unit,
    /// The workload.
    pub workload: Workload,
}

/// A kind of data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Level {
    /// Name, unique within the plan, such as `50 % saved`.
    pub name: String,
    /// Kind of data, in the notation of the command line; see [`KindName`].
    pub kind: String,
    /// Requested saving in percent, for kinds that require one.
    pub saved_percent: Option<f64>,
    /// Share of units that repeat earlier ones, in percent; absent for the default of the kind.
    pub duplicates_percent: Option<f64>,
}

impl Level {
    /// Returns the saving of the data in percent, if known: the requested saving, or the saving of
    /// random data (0) or of one repeated byte (100).
    pub fn known_saving(&self) -> Option<f64> {
        self.saved_percent.or(match self.kind.as_str() {
            "random" => Some(0.0),
            kind if kind.starts_with("byte") => Some(100.0),
            _ => None,
        })
    }

    /// Returns the unit size of the data for a record size: the record size, but at most 4 KiB, so
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
    /// The kind is unknown, has a missing or unexpected saving, or its file cannot be read.
    pub fn payload(&self, seed: u64, unit_bytes: usize) -> Result<Payload> {
        let wrong = |what| Error::invalid(what);
        let kind: KindName = self.kind.parse().map_err(wrong)?;
        // Windows of realistic data consist of only these units.
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Levels in a different order in every round, so that heating up or filling up is not mistaken
    /// for an effect of the data; tests in the listed order.
    #[default]
    Shuffled,
    /// Levels and tests as listed.
    Given,
}

/// State of the page cache before a run that reads through it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Cache {
    /// The target is written back and dropped from the cache before every run.
    #[default]
    Dropped,
    /// The cache is left as it was after the previous run.
    Warm,
}

/// A complete plan for a benchmark.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Plan {
    /// Tests, in the order of execution.
    pub tests: Vec<Test>,
    /// Levels, from the highest to the lowest saving.
    pub levels: Vec<Level>,
    /// Minimum number of rounds.
    pub runs: u32,
    /// Maximum number of rounds, if `precision_percent` is set.
    pub runs_max: u32,
    /// Required precision: half the width of the mean's interval, in percent of the mean. Cells
    /// that have not reached it are run in further rounds.
    pub precision_percent: Option<f64>,
    /// The test that must reach steady state: rounds end when it is steady at every level, or after
    /// `runs_max` rounds.
    pub steady: Option<String>,
    /// Whether the used part of the target is trimmed first, so that a flash drive behaves like a
    /// new one.
    #[serde(default)]
    pub purge: bool,
    /// Number of times that the whole span is written before the first round, with the data of the
    /// first level.
    pub precondition: u32,
    /// Whether each level's data is written before the level's tests that read, so that every level
    /// reads its own data. Otherwise the target keeps the data written by the tests.
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
    /// Number of initial runs whose best result is also reported, like a tool that reports its best
    /// run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best_of: Option<u32>,
    /// Seed for addresses, data and order.
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
            let operation = test.workload.operation;
            let reads = !operation.writes() || operation == Operation::Mixed;
            reads && !operation.reads_as_it_is()
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

    /// Removes the tests that require a file and the page cache. Returns their operations.
    pub fn leave_out_stdio(&mut self) -> Vec<Operation> {
        self.leave_out(Operation::is_stdio)
    }

    /// Removes the tests that copy files, which require a folder. Returns their operations.
    pub fn leave_out_copies(&mut self) -> Vec<Operation> {
        self.leave_out(|operation| operation.file_set().is_some())
    }

    fn leave_out(&mut self, is_out: impl Fn(Operation) -> bool) -> Vec<Operation> {
        let mut left_out: Vec<_> = self.tests.iter().map(|test| test.workload.operation).collect();
        left_out.retain(|operation| is_out(*operation));
        left_out.dedup();
        self.tests.retain(|test| !is_out(test.workload.operation));
        left_out
    }

    /// Replaces the threads of each test with one thread that has the same total number of requests
    /// in flight, limited to the maximum depth. Returns whether anything changed. Used for targets
    /// that support only one thread.
    pub fn use_one_thread(&mut self) -> bool {
        let mut is_changed = false;
        for test in self.tests.iter_mut().filter(|test| test.workload.threads > 1) {
            let workload = &mut test.workload;
            let depth = workload.depth.saturating_mul(workload.threads);
            (workload.depth, workload.threads) = (depth.min(DEPTH_MAX), 1);
            is_changed = true;
        }
        is_changed
    }

    /// Returns whether the plan only reads data that already exists on the target, and does not
    /// write.
    pub fn only_looks(&self) -> bool {
        let looks = |test: &Test| test.workload.operation.reads_as_it_is();
        self.tests.iter().all(looks) && !self.purge && self.precondition == 0
    }

    /// Returns the number of cells: tests at levels.
    pub fn cells(&self) -> usize {
        self.tests.len() * self.levels.len()
    }

    /// Returns the start of the used part of the target, in bytes.
    pub(crate) fn begin_bytes(&self) -> u64 {
        self.on_target().map(|workload| workload.shift_bytes).min().unwrap_or(0)
    }

    /// Returns the end of the used part of the target, in bytes; 0 if all tests copy files.
    pub fn end_bytes(&self) -> u64 {
        self.on_target().map(Workload::end_bytes).max().unwrap_or(0)
    }

    /// Returns the start and end of the part that is filled with a level's data before its tests,
    /// in bytes; `None` if no test needs it. If the target `is_own`, this is the whole part that
    /// tests use. For other targets, it excludes the parts from which tests read existing data.
    pub fn filled(&self, is_own: bool) -> Option<(u64, u64)> {
        let filled = || self.on_target().filter(|it| is_own || !it.operation.reads_as_it_is());
        let begin = filled().map(|workload| workload.shift_bytes).min()?;
        Some((begin, filled().map(Workload::end_bytes).max()?))
    }

    /// Returns the size of the largest set of files that a test copies, in bytes; 0 if no test
    /// copies files.
    pub fn copied_bytes(&self) -> u64 {
        let all = self.tests.iter().map(|test| &test.workload);
        let copies = all.filter(|workload| workload.operation.file_set().is_some());
        copies.map(|workload| workload.span_bytes).max().unwrap_or(0)
    }

    /// Returns the workloads that access the target itself.
    fn on_target(&self) -> impl Iterator<Item = &Workload> {
        let all = self.tests.iter().map(|test| &test.workload);
        all.filter(|workload| workload.operation.file_set().is_none())
    }
}

#[cfg(test)]
mod tests {
    //! Goal: the written and the read-only parts of a target are distinguished. Method: plans with
    //! one or two operations.
    use super::*;
    use crate::workload::{Changes, Preset};

    fn plan(preset: &str, changes: &Changes) -> Plan {
        Preset::load(preset).and_then(|preset| preset.plan(changes)).expect("a plan")
    }

    #[test]
    fn plans_that_only_look_are_known() {
        let mut tune = plan("hd-tune", &Changes::default());
        assert!(tune.only_looks());
        assert_eq!((tune.filled(false), tune.filled(true)), (None, Some((0, 1 << 30))));
        tune.purge = true;
        assert!(!tune.only_looks());
        let operations = vec![Operation::AccessRead];
        assert!(plan("as-ssd", &Changes { operations, ..Changes::default() }).only_looks());
        assert!(!plan("as-ssd", &Changes::default()).only_looks());
    }

    /// Guards against filling a drive merely because a test reads all of it.
    #[test]
    fn targets_read_as_they_are_are_not_filled() {
        let whole = Changes { whole_bytes: Some(1 << 40), quick: true, ..Changes::default() };
        let plan = plan("as-ssd", &whole);
        assert_eq!((plan.end_bytes(), plan.copied_bytes()), (1 << 40, 256 << 20));
        assert_eq!(plan.filled(false), Some((0, 256 << 20)));
        assert_eq!(plan.filled(true), Some((0, 1 << 40)));
        let given = Changes { span_bytes: Some(64 << 20), ..whole };
        assert_eq!(self::plan("as-ssd", &given).end_bytes(), 64 << 20);
    }

    #[test]
    fn tests_that_a_target_cannot_do_are_left_out() {
        let mut plan = plan("as-ssd", &Changes::default());
        assert_eq!(plan.leave_out_copies().len(), 3);
        assert_eq!((plan.tests.len(), plan.copied_bytes()), (8, 0));
        assert!(plan.use_one_thread() && !plan.use_one_thread());
        let workload = &plan.tests[4].workload;
        assert_eq!((workload.depth, workload.threads), (64, 1));
        plan.check().expect("a plan");
    }

    #[test]
    fn levels_have_the_saving_of_their_kind() {
        let sweep = plan("as-ssd-compression", &Changes::default());
        let savings: Vec<_> = sweep.levels.iter().map(Level::known_saving).collect();
        assert_eq!((savings.len(), savings[0], savings[10]), (11, Some(100.0), Some(0.0)));
        let kind = "like:x".to_owned();
        let unknown = Level { kind, saved_percent: None, ..sweep.levels[0].clone() };
        assert_eq!(unknown.known_saving(), None);
    }
}

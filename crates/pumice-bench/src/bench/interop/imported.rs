//! Tests, runs and rounds of an imported file, in file order.
//!
//! A repeated test with identical parameters is a further round, because users of tools without
//! rounds run them repeatedly and concatenate the outputs.

use crate::bench::engine::Sample;
use crate::bench::results::{FORMAT, Header, Results, RunResult};
use crate::stats::Latencies;
use crate::workload::{Cache, Level, Order, Plan, Test};
use crate::workload::{DEPTH_MAX, Ends, Flush, Operation, Pattern, THREADS_MAX, Workload};

/// Maximum number of tests in a file. IOzone's automatic mode has 1,134.
const TESTS_MAX: usize = 5000;

/// Maximum number of runs in a file.
const RUNS_MAX: usize = 20_000;

/// One measurement of another tool.
pub(super) struct Measured {
    pub(super) seconds: f64,
    pub(super) operations: u64,
    pub(super) host_bytes: u64,
    pub(super) latency: Latencies,
    pub(super) warnings: Vec<String>,
}

/// Facts about the whole file.
#[derive(Default)]
pub(super) struct About {
    pub(super) tool: String,
    pub(super) about: String,
    pub(super) target: String,
    pub(super) command: String,
    pub(super) begun_unix_s: u64,
    pub(super) direct: bool,
    pub(super) environment: Vec<(String, String)>,
}

/// The tests and runs so far.
#[derive(Default)]
pub(super) struct Imported {
    tests: Vec<Test>,
    runs: Vec<RunResult>,
}

/// Returns a workload with minimum values for all other parameters.
pub(super) fn workload(operation: Operation, record_bytes: u64, span_bytes: u64) -> Workload {
    Workload {
        operation,
        record_bytes,
        depth: 1,
        threads: 1,
        span_bytes,
        shift_bytes: 0,
        pattern: Pattern::Uniform,
        reads_percent: 0,
        seconds: 1.0,
        flush: Flush::Untimed,
        ends: Ends::Usual,
        mix: Vec::new(),
    }
}

impl Imported {
    /// Adds a test and its measurement.
    ///
    /// # Errors
    /// The reason, as text.
    pub(super) fn add(&mut self, mut test: Test, measured: Measured) -> Result<(), String> {
        let workload = &mut test.workload;
        workload.depth = workload.depth.clamp(1, DEPTH_MAX);
        workload.threads = workload.threads.clamp(1, THREADS_MAX);
        let least = workload.record_bytes.saturating_mul(u64::from(workload.threads));
        workload.span_bytes = workload.span_bytes.max(least);
        workload.check().map_err(|error| format!("'{}': {}", test.name, error.chain()))?;
        if !(measured.seconds.is_finite() && measured.seconds > 0.0) {
            return Err(format!("'{}' has an invalid duration", test.name));
        }
        let index = match self.tests.iter().position(|other| other.name == test.name) {
            Some(index) if self.tests[index] == test => index,
            Some(_) => return Err(format!("two different tests have the name '{}'", test.name)),
            None if self.tests.len() == TESTS_MAX => {
                return Err(format!("more than {TESTS_MAX} tests"));
            }
            None => {
                self.tests.push(test);
                self.tests.len() - 1
            }
        };
        if self.runs.len() == RUNS_MAX {
            return Err(format!("more than {RUNS_MAX} runs"));
        }
        let round = self.runs.iter().filter(|run| run.test == index).count();
        let writes = self.tests[index].workload.operation;
        let writes = writes.writes() && writes != Operation::Trim;
        self.runs.push(RunResult {
            round: round as u32,
            test: index,
            level: 0,
            place: self.runs.len() as u64,
            begun_s: 0.0,
            sample: Sample {
                seconds: measured.seconds,
                flush_seconds: 0.0,
                operations: measured.operations,
                host_bytes: measured.host_bytes,
                written_bytes: if writes { measured.host_bytes } else { 0 },
                latency: measured.latency,
                interval_ns: 1_000_000_000,
                intervals: Vec::new(),
                spots: Vec::new(),
                generation_share: 0.0,
            },
            processor_share: 0.0,
            device: None,
            machine: None,
            warnings: measured.warnings,
        });
        Ok(())
    }

    /// Returns the results.
    ///
    /// # Errors
    /// The file contains no measurement.
    pub(super) fn finish(self, about: About) -> Result<Results, String> {
        if self.tests.is_empty() {
            return Err("the file contains no measurement".to_owned());
        }
        let runs = self.runs.iter().map(|run| run.round + 1).max().unwrap_or(1);
        let level = Level {
            name: "as measured".to_owned(),
            kind: "unknown".to_owned(),
            saved_percent: None,
            duplicates_percent: None,
        };
        let plan = Plan {
            tests: self.tests,
            levels: vec![level],
            runs,
            runs_max: runs,
            precision_percent: None,
            steady: None,
            purge: false,
            precondition: 0,
            fills: true,
            order: Order::Given,
            direct: about.direct,
            cache: Cache::Warm,
            warm_up_seconds: 0.0,
            pause_seconds: 0.0,
            best_of: None,
            seed: 0,
        };
        let header = Header {
            pumice_bench: FORMAT,
            tool: about.tool,
            title: String::new(),
            about: about.about,
            target: about.target,
            label: String::new(),
            turns: None,
            plan,
            command: about.command,
            begun_unix_s: about.begun_unix_s,
            environment: about.environment,
            payloads: Vec::new(),
        };
        Ok(Results { header, runs: self.runs })
    }
}

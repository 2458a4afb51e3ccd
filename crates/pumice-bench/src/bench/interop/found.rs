//! Tests, runs and rounds as they are found in a file, in its order.
//!
//! A test that appears again, alike in everything, is a further round: tools that know no rounds
//! are run again and their outputs put into one file.

use crate::bench::results::{FORMAT, Header, Results, RunResult};
use crate::stats::Latencies;
use crate::workload::{Cache, Level, Order, Plan, Test};
use crate::workload::{DEPTH_MAX, Flush, Operation, Pattern, THREADS_MAX, Workload};

/// Tests of a file at most: IOzone's automatic mode makes 1,134.
const TESTS_MAX: usize = 5000;

/// Runs of a file at most.
const RUNS_MAX: usize = 20_000;

/// What a tool measured at once.
pub(super) struct Measured {
    pub(super) seconds: f64,
    pub(super) operations: u64,
    pub(super) host_bytes: u64,
    pub(super) latency: Latencies,
    pub(super) warnings: Vec<String>,
}

/// What is known of the whole file.
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

/// What was found so far.
#[derive(Default)]
pub(super) struct Found {
    tests: Vec<Test>,
    runs: Vec<RunResult>,
}

/// A workload whose other numbers are the least that can be.
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
    }
}

impl Found {
    /// Takes a test with what it gave.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub(super) fn add(&mut self, mut test: Test, measured: Measured) -> Result<(), String> {
        let workload = &mut test.workload;
        workload.depth = workload.depth.clamp(1, DEPTH_MAX);
        workload.threads = workload.threads.clamp(1, THREADS_MAX);
        let least = workload.record_bytes.saturating_mul(u64::from(workload.threads));
        workload.span_bytes = workload.span_bytes.max(least);
        workload.check().map_err(|error| format!("'{}': {}", test.name, error.chain()))?;
        if !(measured.seconds.is_finite() && measured.seconds > 0.0) {
            return Err(format!("'{}' took no time that could be", test.name));
        }
        let index = match self.tests.iter().position(|other| other.name == test.name) {
            Some(index) if self.tests[index] == test => index,
            Some(_) => return Err(format!("two different tests are called '{}'", test.name)),
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
            seconds: measured.seconds,
            flush_seconds: 0.0,
            operations: measured.operations,
            host_bytes: measured.host_bytes,
            written_bytes: if writes { measured.host_bytes } else { 0 },
            latency: measured.latency,
            interval_ns: 1_000_000_000,
            intervals: Vec::new(),
            generation_share: 0.0,
            processor_share: 0.0,
            device: None,
            warnings: measured.warnings,
        });
        Ok(())
    }

    /// All of it as results.
    ///
    /// # Errors
    /// Nothing was found.
    pub(super) fn finish(self, about: About) -> Result<Results, String> {
        if self.tests.is_empty() {
            return Err("nothing was measured in it".to_owned());
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
            precondition: 0,
            fills: true,
            order: Order::Given,
            direct: about.direct,
            cache: Cache::Warm,
            warm_up_seconds: 0.0,
            seed: 0,
        };
        let header = Header {
            pumice_bench: FORMAT,
            tool: about.tool,
            title: String::new(),
            about: about.about,
            target: about.target,
            plan,
            command: about.command,
            begun_unix_s: about.begun_unix_s,
            environment: about.environment,
            payloads: Vec::new(),
        };
        Ok(Results { header, runs: self.runs })
    }
}

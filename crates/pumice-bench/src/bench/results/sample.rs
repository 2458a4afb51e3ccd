//! Results with known numbers, for tests.

use crate::bench::engine::{Interval, Sample};
use crate::bench::results::{DeviceBytes, FORMAT, Header, LevelFindings, Results, RunResult};
use crate::payload::{Finding, Saving};
use crate::stats::Latencies;
use crate::workload::{Cache, Level, Order, Plan, Test, Unit};
use crate::workload::{Ends, Flush, Operation, Pattern, Workload};

/// Record size of both tests in bytes.
const RECORD_BYTES: u64 = 4096;

/// Returns a workload on 64 MiB.
pub(crate) fn workload(operation: Operation, record_bytes: u64) -> Workload {
    Workload {
        operation,
        record_bytes,
        depth: 4,
        threads: 1,
        span_bytes: 64 << 20,
        shift_bytes: 0,
        pattern: Pattern::Uniform,
        reads_percent: 70,
        seconds: 1.0,
        flush: Flush::Timed,
        ends: Ends::Usual,
        mix: Vec::new(),
    }
}

/// Returns a test with this name.
pub(crate) fn test(name: &str, unit: Unit, workload: Workload) -> Test {
    Test { name: name.to_owned(), unit, workload }
}

/// Returns two tests, `sequential write` in MB/s and `random write` in IOPS, at `98 % saved` and
/// `0 % saved`.
pub(crate) fn plan() -> Plan {
    let level = |name: &str, saved| Level {
        name: name.to_owned(),
        kind: "exact".to_owned(),
        saved_percent: Some(saved),
        duplicates_percent: None,
    };
    Plan {
        tests: vec![
            test("sequential write", Unit::Throughput, workload(Operation::Write, RECORD_BYTES)),
            test("random write", Unit::Rate, workload(Operation::RandomWrite, RECORD_BYTES)),
        ],
        levels: vec![level("98 % saved", 98.0), level("0 % saved", 0.0)],
        runs: 1,
        runs_max: 1,
        precision_percent: None,
        steady: None,
        purge: false,
        precondition: 0,
        fills: true,
        order: Order::Shuffled,
        direct: true,
        cache: Cache::Dropped,
        warm_up_seconds: 0.0,
        pause_seconds: 0.0,
        best_of: None,
        seed: 7,
    }
}

/// Returns a run of [`plan`] that took one second, with `value` in the test's unit. Every request
/// took 100 µs, except that every hundredth took 1 ms. The device counted half of the bytes that
/// the host wrote.
pub(crate) fn run(round: u32, test: usize, level: usize, value: f64) -> RunResult {
    let host_bytes = match test {
        0 => (value * 1e6) as u64,
        _ => value as u64 * RECORD_BYTES,
    };
    let mut latency = Latencies::new();
    (0..1000)
        .for_each(|request| latency.record(if request % 100 == 0 { 1_000_000 } else { 100_000 }));
    let interval =
        Interval { operations: 10, latency_ns_sum: 1_000_000, latency_ns_max: 1_000_000 };
    RunResult {
        round,
        test,
        level,
        place: u64::from(round) * 4 + (test * 2 + level) as u64,
        begun_s: 0.0,
        sample: Sample {
            seconds: 1.0,
            flush_seconds: 0.0,
            operations: host_bytes / RECORD_BYTES,
            host_bytes,
            written_bytes: host_bytes,
            latency,
            interval_ns: 50_000_000,
            intervals: vec![interval; 20],
            spots: Vec::new(),
            generation_share: 0.0,
        },
        processor_share: 0.5,
        device: Some(DeviceBytes {
            read: 0,
            written: host_bytes / 2,
            discarded: 0,
            smart_written: None,
        }),
        machine: None,
        warnings: Vec::new(),
    }
}

/// Returns one round for each of `values`. The first level has the value itself, and the second has
/// half of it.
pub(crate) fn results(values: &[f64]) -> Results {
    let mut plan = plan();
    plan.runs = values.len() as u32;
    plan.runs_max = plan.runs;
    let finding = Finding {
        codec: "lz4".to_owned(),
        chunk_bytes: 4096,
        saved: Saving::from_fraction(0.75),
        deviation_points: 0.5,
        chunks: 100,
    };
    let mut runs = Vec::new();
    for (round, value) in (0..).zip(values) {
        for (test, level) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            runs.push(run(round, test, level, if level == 0 { *value } else { value / 2.0 }));
        }
    }
    let header = Header {
        pumice_bench: FORMAT,
        tool: "pumice 0.1.0".to_owned(),
        title: "a sample".to_owned(),
        about: "Two tests at two levels.".to_owned(),
        target: "disk.img".to_owned(),
        label: String::new(),
        turns: None,
        plan,
        command: "pumice bench run sample disk.img".to_owned(),
        begun_unix_s: 1_795_277_844,
        environment: vec![("kernel".to_owned(), "Linux 6.1".to_owned())],
        payloads: vec![LevelFindings { level: "98 % saved".to_owned(), findings: vec![finding] }],
    };
    Results { header, runs }
}

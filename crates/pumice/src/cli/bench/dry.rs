//! What a plan would do, how long it would take, and what it would write.

use pumice_bench::workload::Flush;
use pumice_bench::workload::{Plan, Test};
use pumice_drive::base::units::{format_size, format_size_exact};
use pumice_report::{Align, Table};

/// The speed at which whole spans are taken to be written and read, in bytes a second: a SATA
/// drive's. Only for the estimate.
const ASSUMED_RATE: f64 = 500e6;

/// As the terminal shows it.
pub(super) fn text(plan: &Plan, target: &str) -> String {
    let columns = ["test", "record", "depth", "threads", "span", "ends", "unit"];
    let mut table = Table::new(&columns.map(|name| (name, Align::Left)));
    for test in &plan.tests {
        let workload = &test.workload;
        let ends = match workload.operation.is_timed() {
            true => format!("after {} s", workload.seconds),
            false => "with the span".into(),
        };
        table.row(vec![
            test.name.clone(),
            format_size_exact(workload.record_bytes),
            workload.depth.to_string(),
            workload.threads.to_string(),
            format_size_exact(workload.span_bytes),
            ends,
            test.unit.name().into(),
        ]);
    }
    let levels: Vec<&str> = plan.levels.iter().map(|level| level.name.as_str()).collect();
    let runs = match plan.runs_max > plan.runs {
        true => format!("{} to {} runs", plan.runs, plan.runs_max),
        false => counted(plan.runs as usize, "run"),
    };
    let cache = if plan.direct { "around the page cache" } else { "through the page cache" };
    let rounds = f64::from(plan.runs) * plan.levels.len() as f64;
    let (timed, moved, filled) = estimate(plan);
    let seconds = rounds * (timed + moved / ASSUMED_RATE) + filled / ASSUMED_RATE;
    let flush = plan.tests.iter().all(|test| test.workload.flush == Flush::Timed);
    let flush = if flush { "the flush at the end is timed" } else { "see the flush of each test" };
    format!(
        "{target}: {} at {}, {runs} each, {cache}; {flush}\nlevels: {}\n\n{}\n\
         At least {} (if spans go at {:.0} MB/s), {} written besides what tests that end with \
         time write.\nNothing was done.\n",
        counted(plan.tests.len(), "test"),
        counted(plan.levels.len(), "level"),
        levels.join(", "),
        table.to_text(),
        duration(seconds),
        ASSUMED_RATE / 1e6,
        format_size((rounds * written(plan) + filled) as u64),
    )
}

/// Of a round of one level: seconds of what ends with time, bytes of whole spans; and bytes of what
/// is filled in all.
fn estimate(plan: &Plan) -> (f64, f64, f64) {
    let timed = |test: &&Test| test.workload.operation.is_timed();
    let seconds = plan.tests.iter().filter(timed);
    let seconds = seconds.map(|test| test.workload.seconds + plan.warm_up_seconds).sum();
    let moved = plan.tests.iter().filter(|test| !timed(test));
    let moved: u64 = moved.map(|test| test.workload.span_bytes).sum();
    let end = plan.end_bytes() as f64;
    let rounds = f64::from(plan.runs) * plan.levels.len() as f64;
    let per_level = if plan.fills { rounds * fills(plan) as f64 } else { 0.0 };
    (seconds, moved as f64, end * (per_level + f64::from(plan.precondition)))
}

/// Fills of a round of one level at least.
fn fills(plan: &Plan) -> u64 {
    u64::from(plan.tests.first().is_none_or(|test| !test.workload.operation.is_new()))
}

/// Bytes of a round of one level that are known beforehand.
fn written(plan: &Plan) -> f64 {
    plan.tests.iter().filter_map(|test| test.workload.written_bytes()).sum::<u64>() as f64
}

/// A number of things.
fn counted(count: usize, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

/// As people say it.
pub(super) fn duration(seconds: f64) -> String {
    let minutes = seconds / 60.0;
    match seconds {
        seconds if seconds < 100.0 => format!("{seconds:.0} s"),
        _ if minutes < 100.0 => format!("{minutes:.0} min"),
        _ => format!("{:.1} h", minutes / 60.0),
    }
}

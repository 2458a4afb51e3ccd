//! `pumice bench --dry-run`: the steps of a plan, how long it would take, and how much it would
//! write.

use std::time::Duration;

use super::super::output;
use pumice_bench::stats::{Design, Planned, VISIT_SPREAD};
use pumice_bench::target::Location;
use pumice_bench::workload::Flush;
use pumice_bench::workload::{Plan, Test};
use pumice_drive::base::units::{format_size, format_size_exact};
use pumice_report::{Align, Table};

/// The assumed speed of writing and reading whole spans, in bytes per second: a SATA drive's. Only
/// for the estimate.
const ASSUMED_RATE: f64 = 500e6;

/// The assumed spread of a run, as on a disk without other users. Only for estimates of detectable
/// differences.
const ASSUMED_NOISE: f64 = 0.05;

/// Returns a line with the differences that a plan can detect: between these targets if there are
/// several, or else between its results and others of the same plan.
pub(super) fn power(plan: &Plan, targets: usize) -> String {
    let cells = plan.cells();
    // In a plan that tracks steady state only the last window counts.
    let runs = plan.runs as usize;
    let noise = ASSUMED_NOISE;
    let families = targets.saturating_sub(1).max(1);
    let told = |design| {
        let ratio = Planned { cells, families, runs, noise, design }.detectable();
        ratio.map(|ratio| format!("{:.0} %", ((ratio - 1.0) * 100.0).ceil()))
    };
    let many = format!("{} of each of {}", counted(runs, "run"), counted(cells, "cell"));
    let needed = |design| {
        let wanted = (runs..=64)
            .find(|&runs| Planned { cells, families, runs, noise, design }.detectable().is_some());
        format!("{} runs are needed", wanted.unwrap_or(64))
    };
    let noise = format!("if runs spread by {:.0} %", ASSUMED_NOISE * 100.0);
    let visits = Design::Visits(VISIT_SPREAD);
    match (targets, told(Design::Turns), told(visits)) {
        (1, _, None) => {
            format!("{many} can show no difference from another target: {}", needed(visits))
        }
        (1, turns, Some(visits)) => {
            let turns = turns.unwrap_or_else(|| visits.clone());
            format!(
                "{many} show a difference of {visits} from another session {noise}, or of {turns} \
                 between targets in turns"
            )
        }
        (_, None, _) => format!("{many} can show no difference: {}", needed(Design::Turns)),
        (_, Some(turns), _) => format!("{many} show a difference of {turns} {noise}"),
    }
}

/// Returns the plan as text.
pub(super) fn text(plan: &Plan, targets: &[String], locations: &[Location]) -> String {
    let columns = ["test", "record", "depth", "threads", "span", "ends", "unit"];
    let mut table = Table::new(&columns.map(|name| (name, Align::Left)));
    for test in &plan.tests {
        let workload = &test.workload;
        let ends = match (workload.is_timed(), workload.ends_with_span()) {
            _ if workload.operation.file_set().is_some() => "after the copy".to_owned(),
            (true, true) => format!("after the span or {} s", workload.seconds),
            (true, false) => format!("after {} s", workload.seconds),
            (false, _) => "after the span".to_owned(),
        };
        let up_to = if workload.mix.len() > 1 { "up to " } else { "" };
        table.row(vec![
            test.name.clone(),
            format!("{up_to}{}", format_size_exact(workload.record_bytes)),
            workload.depth.to_string(),
            workload.threads.to_string(),
            format_size_exact(workload.span_bytes),
            ends,
            test.unit.name().into(),
        ]);
    }
    let levels: Vec<&str> = plan.levels.iter().map(|level| level.name.as_str()).collect();
    let runs = if plan.runs_max > plan.runs {
        format!("{} to {} runs", plan.runs, plan.runs_max)
    } else {
        counted(plan.runs as usize, "run")
    };
    let cache = if plan.direct { "bypassing the page cache" } else { "through the page cache" };
    let rounds = f64::from(plan.runs) * plan.levels.len() as f64;
    let is_read = !locations.is_empty()
        && locations.iter().all(|location| matches!(location, Location::Existing(_)));
    let is_made = locations.iter().any(Location::is_made);
    let (timed, moved, filled) = estimate(plan, is_made);
    let filled = if is_read { 0.0 } else { filled };
    let seconds = rounds * (timed + moved / ASSUMED_RATE) + filled / ASSUMED_RATE;
    let seconds = seconds * targets.len() as f64;
    let written = (rounds * written(plan) + filled) * targets.len() as f64;
    let flush = plan.tests.iter().all(|test| test.workload.flush == Flush::Timed);
    let untimed = plan.tests.iter().all(|test| test.workload.flush == Flush::Untimed);
    let flush = match (flush, untimed) {
        (true, _) => "the final flush is timed",
        (_, true) => "the final flush is not timed",
        _ => "flushes differ between tests",
    };
    format!(
        "{}: {} at {}, {runs} each, {cache}; {flush}\nlevels: {}\n\n{}\n{}.\nTakes at least {} (if \
         whole spans run at {:.0} MB/s) and writes {}, plus the writes of time-based tests.\nDry \
         run: nothing was done.\n",
        if targets.len() > 1 {
            format!("{} in turns", targets.join(", "))
        } else {
            targets.concat()
        },
        counted(plan.tests.len(), "test"),
        counted(plan.levels.len(), "level"),
        levels.join(", "),
        output::table(&table),
        power(plan, targets.len()),
        duration(seconds),
        ASSUMED_RATE / 1e6,
        format_size(written as u64),
    )
}

/// Returns the seconds of time-based tests and the bytes of whole spans, both for one round of one
/// level, and the bytes of all fills, either of files that the bench creates or of other targets.
fn estimate(plan: &Plan, is_made: bool) -> (f64, f64, f64) {
    let timed = |test: &&Test| test.workload.is_timed();
    let seconds = plan.tests.iter().filter(timed);
    let seconds = seconds.map(|test| test.workload.seconds + plan.warm_up_seconds).sum();
    let moved = plan.tests.iter().filter_map(|test| test.workload.moved_bytes());
    let moved: u64 = moved.sum();
    let own = plan.filled(is_made).map_or(0, |(begin, end)| end - begin);
    let end = own as f64;
    let rounds = f64::from(plan.runs) * plan.levels.len() as f64;
    let per_level = if plan.fills { rounds * fills(plan) as f64 } else { 0.0 };
    (seconds, moved as f64, end * (per_level + f64::from(plan.precondition)))
}

/// Returns the minimum number of fills in a round of one level.
fn fills(plan: &Plan) -> u64 {
    u64::from(plan.tests.first().is_none_or(|test| !test.workload.operation.is_new()))
}

/// Returns the bytes written in a round of one level, as far as they are known in advance.
fn written(plan: &Plan) -> f64 {
    plan.tests.iter().filter_map(|test| test.workload.written_bytes()).sum::<u64>() as f64
}

/// Returns a number with its noun.
fn counted(count: usize, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

/// Returns a duration as text, rounded to seconds, or to minutes above 10 minutes.
fn duration(seconds: f64) -> String {
    let unit = if seconds < 600.0 { 1.0 } else { 60.0 };
    let rounded = Duration::from_secs(((seconds / unit).round() * unit) as u64);
    humantime::format_duration(rounded).to_string()
}

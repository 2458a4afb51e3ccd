//! The best of several runs, as some tools report it, in addition to the mean.

use super::cells::{Cell, Cells};
use crate::stats::{Better, Latencies};
use pumice_report::{Column, Number, Section, Table};

/// Returns a section with a table. The section has no blocks if the plan does not request the best
/// of several runs, or if no cell has runs.
pub(super) fn section(cells: &Cells<'_>) -> Section {
    let Some(runs) = cells.plan().best_of else { return super::section("") };
    let mut section = super::section(&format!("Best of {runs} runs"));
    let mut columns = ["test", "level", "unit"].map(Column::left).to_vec();
    columns.push(Column::right(format!("best of {runs}")));
    columns.extend(["mean", "95 % from", "95 % to", "best / mean"].map(Column::right));
    columns.push(Column::right("min latency").with_unit("µs"));
    let mut table = Table::with_columns(columns);
    let named = |cell: &Cell<'_>, best: Option<(Number, f64)>| {
        let (Some((best, share)), Some(summary)) = (best, cell.summary) else { return Vec::new() };
        let number = |value: f64| Number::new(value, best.decimals);
        let interval = summary.mean_interval;
        vec![
            cell.test.name.as_str().into(),
            cell.level.name.as_str().into(),
            cell.test.unit.name().into(),
            best.clone().into(),
            number(summary.mean).into(),
            interval.map(|interval| number(interval.low)).into(),
            interval.map(|interval| number(interval.high)).into(),
            Number::new(share, 2).into(),
            least_latency(cell, runs).map(|us| Number::significant(us, 4)).into(),
        ]
    };
    for cell in cells.iter() {
        let row = named(cell, best(cell, runs));
        if !row.is_empty() {
            table.push(row);
        }
    }
    if let Some(table) = super::filled(table) {
        section.paragraph(
            "Tools that report the best of several runs would show the first of these numbers, and \
             the lowest mean latency of a run. The mean of all runs does not depend on one lucky \
             run.",
        );
        section.block(table);
    }
    section
}

/// Returns the best of the first `runs` runs, and its ratio to the mean of all runs.
fn best(cell: &Cell<'_>, runs: u32) -> Option<(Number, f64)> {
    let better = match cell.test.unit.better() {
        Better::Higher => f64::max,
        Better::Lower => f64::min,
    };
    let best = cell.values.iter().take(runs as usize).copied().reduce(better)?;
    let mean = cell.summary?.mean;
    Some((Number::significant(best, 4), best / mean))
}

/// Returns the lowest mean latency of the first `runs` runs, in µs.
fn least_latency(cell: &Cell<'_>, runs: u32) -> Option<f64> {
    let means = cell.runs.iter().take(runs as usize).filter_map(|run| {
        let latency: &Latencies = &run.sample.latency;
        latency.percentiles().map(|percentiles| percentiles.mean_ns / 1e3)
    });
    means.reduce(f64::min)
}
